//! An administrator who removes legs of a log and adds the same disks again, unchanged or blank.

use dcd_engine::mirror::{CONTENT_SECTOR, LegState, MirrorStatus};
use dcd_engine::{
    ArrayCommand, BlockDevice, Control, DeviceIndex, LayerIndex, Lba, Port, Pump, Report, SECTOR_BYTES, Seat,
    Stack,
};

use crate::{MemDriver, SimRng};

/// Chances in a thousand: of a look after each step, and of removing a leg at a look if all legs are whole.
const HABITS: [(u64, u64); 3] = [(60, 200), (200, 100), (5, 300)];
/// Chance in a thousand that an added disk is blank.
const NEW: u64 = 300;

#[derive(Clone, Copy)]
enum AskedOfMirror {
    Remove(usize),
    Add(usize, Port),
}

/// See the module's documentation. The legs are the first devices of the stack, and the mirror its first layer.
pub(super) struct LegKeeper {
    rng: SimRng,
    looks: u64,
    takes: u64,
    /// Port of each disk at the mirror; none where the disk was taken out.
    ports: Vec<Option<Port>>,
    asked: Option<AskedOfMirror>,
    /// Number of disks that were added again.
    pub added: u64,
}

const MIRROR: LayerIndex = LayerIndex(0);

impl LegKeeper {
    pub fn new(mut rng: SimRng, legs: usize) -> LegKeeper {
        let (looks, takes) = rng.pick(&HABITS);
        LegKeeper {
            rng,
            looks,
            takes,
            ports: (0..legs).map(|leg| Some(Port(leg))).collect(),
            asked: None,
            added: 0,
        }
    }

    /// Looks at the log now and then, and takes the next step.
    ///
    /// # Errors
    /// If the mirror refuses a step without a reason.
    pub fn act(&mut self, driver: &mut MemDriver, stack: &mut Stack) -> Result<(), String> {
        while let Some((_, report)) = driver.take_report() {
            if let Report::Array(answer) = report {
                match (self.asked.take().expect("it was asked"), answer) {
                    (AskedOfMirror::Remove(leg), Ok(())) => self.ports[leg] = None,
                    (AskedOfMirror::Add(leg, port), Ok(())) => {
                        self.ports[leg] = Some(port);
                        self.added += 1;
                    }
                    // A removal may be refused: another leg has failed meanwhile.
                    (AskedOfMirror::Remove(_), Err(_)) => {}
                    (AskedOfMirror::Add(leg, _), Err(why)) => {
                        return Err(format!("leg {leg} cannot be added: {why}"));
                    }
                }
            }
        }
        if self.asked.is_some() || !self.rng.chance(self.looks) {
            return Ok(());
        }
        let status = stack.layer(MIRROR).status(driver.now());
        let mirror = status.get().expect("the first layer is the mirror");
        let Some((asked, command)) = self.choose(mirror, driver, stack) else { return Ok(()) };
        driver.note(|| format!("the administrator says {command:?}"));
        self.asked = Some(asked);
        driver.control(stack, MIRROR, Control::Array(command));
        Ok(())
    }

    fn choose(
        &mut self,
        mirror: &MirrorStatus,
        driver: &mut MemDriver,
        stack: &mut Stack,
    ) -> Option<(AskedOfMirror, ArrayCommand)> {
        if let Some(leg) = self.ports.iter().position(Option::is_none) {
            if self.rng.chance(NEW) {
                let blank = vec![0; (CONTENT_SECTOR * SECTOR_BYTES) as usize];
                driver.devices_mut()[leg].put(Lba(0), &blank);
            }
            let port = stack.add_port(MIRROR, DeviceIndex(leg));
            let geometry = driver.devices()[leg].geometry();
            let (seat, id) = (Seat::Spare(0), self.rng.next_u64().max(1));
            return Some((AskedOfMirror::Add(leg, port), ArrayCommand::Add { port, geometry, seat, id }));
        }
        let standing = |leg: usize| {
            let port = self.ports[leg].map(|port| port.0);
            mirror.legs.iter().find(|other| other.port == port).and_then(|leg| leg.standing)
        };
        // A leg that has failed, or is not used as one, is removed first; a good one now and then.
        let bad = (0..self.ports.len()).find(|leg| matches!(standing(*leg), None | Some(LegState::Failed)));
        let leg = match bad {
            Some(leg) => leg,
            None if self.rng.chance(self.takes) => self.rng.below(self.ports.len() as u64) as usize,
            None => return None,
        };
        let port = self.ports[leg]?;
        Some((AskedOfMirror::Remove(leg), ArrayCommand::Remove { port }))
    }
}
