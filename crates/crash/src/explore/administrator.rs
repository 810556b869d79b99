//! An administrator who fails members of a running array, removes them, and adds the same disks again, unchanged or blank.

use dcd_engine::raid::offline::replace;
use dcd_engine::raid::{ArraySuperblock, ArraySuperblockError, DATA_SECTOR, MemberIdentity};
use dcd_engine::{
    ArrayCommand, BlockDevice, CommandError, Control, DeviceIndex, Geometry, LayerIndex, Lba, Port, Pump,
    Report, SECTOR_BYTES, Seat, Stack,
};
use serde_json::{Value, json};

use crate::{MemDisk, MemDriver, SimRng};

/// Chances in a thousand: of a look at the array after each step, and of a member's failure at a look if the array is good. Some
/// administrators act as soon as possible, others later.
const HABITS: [(u64, u64); 3] = [(60, 200), (60, 200), (300, 40)];
/// Chance in a thousand that an added disk is a different, blank one.
const NEW: u64 = 300;
/// Chances in a thousand at a start: that a member is missing, and that a failed member is added before it.
const MISSING: u64 = 100;
const ADDED_BEFORE: u64 = 300;

/// An array whose members are removed and added again while it runs. The members are the first devices of the stack; spares follow.
pub struct HotAdd {
    pub layer: LayerIndex,
    pub members: usize,
    pub spares: usize,
    /// Makes the stack with "missing" in the places of members.
    pub build_without: BuildWithout,
}

/// Makes a stack over such disks, without the members of some roles.
pub type BuildWithout = Box<dyn Fn(&[Geometry], &[usize]) -> Stack>;

#[derive(Clone, Copy)]
enum AskedOfArray {
    Fail,
    Remove(usize),
    RemoveSpare,
    Add(usize, Port),
}

/// See the module's documentation.
pub(super) struct Administrator {
    rng: SimRng,
    looks: u64,
    fails: u64,
    layer: LayerIndex,
    /// Port of each role's disk; none where the disk was taken out.
    ports: Vec<Option<Port>>,
    /// Port of each spare's disk at the start.
    spare_ports: Vec<Port>,
    asked: Option<AskedOfArray>,
    /// Number of disks that were added again.
    pub added: u64,
}

impl Administrator {
    /// `missing`: members that the stack was made without.
    pub fn new(mut rng: SimRng, hot_add: &HotAdd, missing: &[usize]) -> Administrator {
        let mut next = 0;
        let mut port = || {
            next += 1;
            Port(next - 1)
        };
        let ports = (0..hot_add.members).map(|role| (!missing.contains(&role)).then(&mut port)).collect();
        let spare_ports = (0..hot_add.spares).map(|_| port()).collect();
        let (looks, fails) = rng.pick(&HABITS);
        Administrator { rng, looks, fails, layer: hot_add.layer, ports, spare_ports, asked: None, added: 0 }
    }

    /// Looks at the array now and then, and takes the next step.
    ///
    /// # Errors
    /// If the array refuses a step without a reason.
    pub fn act(&mut self, driver: &mut MemDriver, stack: &mut Stack) -> Result<(), String> {
        while let Some((_, report)) = driver.take_report() {
            if let Report::Array(answer) = report {
                self.answered(answer)?;
            }
        }
        if self.asked.is_some() || !self.rng.chance(self.looks) {
            return Ok(());
        }
        let status = stack.layer(self.layer).status(driver.now()).to_json();
        let Some((asked, command)) = self.choose(&status, driver, stack) else { return Ok(()) };
        driver.note(|| format!("the administrator says {command:?}"));
        self.asked = Some(asked);
        driver.control(stack, self.layer, Control::Array(command));
        Ok(())
    }

    fn choose(
        &mut self,
        status: &Value,
        driver: &mut MemDriver,
        stack: &mut Stack,
    ) -> Option<(AskedOfArray, ArrayCommand)> {
        let is_in =
            |list: &str, role: usize| status[list].as_array().is_some_and(|all| all.contains(&json!(role)));
        if status["state"] == "good" {
            let role = self.rng.below(self.ports.len() as u64) as usize;
            return self.rng.chance(self.fails).then_some((AskedOfArray::Fail, ArrayCommand::Fail { role }));
        }
        let idle = |role: &usize| {
            is_in("failed_members", *role)
                && !is_in("joining_members", *role)
                && status["rebuilding_member"] != json!(*role)
        };
        let role = (0..self.ports.len()).find(idle)?;
        if let Some(port) = self.ports[role] {
            return Some((AskedOfArray::Remove(role), ArrayCommand::Remove { port }));
        }
        // A spare had the role when it failed.
        if let (Some(place), true) = (status["holders"][role].as_u64(), status["open_members"][role] == true)
        {
            let port = self.spare_ports[place as usize];
            return Some((AskedOfArray::RemoveSpare, ArrayCommand::Remove { port }));
        }
        if self.rng.chance(NEW) {
            let blank = vec![0; (DATA_SECTOR * SECTOR_BYTES) as usize];
            driver.devices_mut()[role].put(Lba(0), &blank);
        }
        let port = stack.add_port(self.layer, DeviceIndex(role));
        let geometry = driver.devices()[role].geometry();
        let id = self.rng.next_u64().max(1);
        Some((
            AskedOfArray::Add(role, port),
            ArrayCommand::Add { port, geometry, seat: Seat::Member(role), id },
        ))
    }

    fn answered(&mut self, answer: Result<(), CommandError>) -> Result<(), String> {
        match (self.asked.take().expect("it was asked"), answer) {
            (AskedOfArray::Remove(role), Ok(())) => self.ports[role] = None,
            (AskedOfArray::Add(role, port), Ok(())) => {
                self.ports[role] = Some(port);
                self.added += 1;
            }
            // A failure may be refused: parity may be out of sync, or another member has failed meanwhile.
            (AskedOfArray::Fail, _) | (AskedOfArray::RemoveSpare, Ok(())) => {}
            (AskedOfArray::Remove(_) | AskedOfArray::RemoveSpare, Err(CommandError::Held(_))) => {}
            (AskedOfArray::RemoveSpare, Err(why)) => {
                return Err(format!("the array does not let go of a spare: {why}"));
            }
            (AskedOfArray::Remove(role) | AskedOfArray::Add(role, _), Err(why)) => {
                return Err(format!("the array refuses to change member {role}: {why}"));
            }
        }
        Ok(())
    }
}

/// Returns members whose superblocks a crash has left wiped or half written, except those whose role a spare has.
pub(super) fn blank_members(hot_add: &HotAdd, disks: &mut [MemDisk]) -> Vec<usize> {
    let read = superblocks(hot_add, disks);
    let newest = newest(&read);
    let spares = || read[hot_add.members..].iter().flatten();
    let has_spare = |role: usize| {
        newest
            .as_ref()
            .is_some_and(|newest| spares().any(|(_, identity)| identity.id == newest.member_ids[role]))
    };
    let blank = |role: &usize| {
        let found = ArraySuperblock::read(&mut disks[*role]);
        matches!(found, Err(ArraySuperblockError::NoMagic | ArraySuperblockError::Checksum))
            && !has_spare(*role)
    };
    (0..hot_add.members).filter(blank).collect()
}

type FoundSuperblock = Option<(ArraySuperblock, MemberIdentity)>;

/// Reads the superblocks of the members, and then of the spares.
fn superblocks(hot_add: &HotAdd, disks: &mut [MemDisk]) -> Vec<FoundSuperblock> {
    let devices = hot_add.members + hot_add.spares;
    disks[..devices].iter_mut().map(|disk| ArraySuperblock::read(disk).ok()).collect()
}

fn newest(read: &[FoundSuperblock]) -> Option<ArraySuperblock> {
    let with_role = read.iter().flatten().filter(|(_, identity)| identity.role.is_some());
    ArraySuperblock::newest_of(with_role.map(|(superblock, _)| superblock)).cloned()
}

/// Returns members that have lost their role to a disk that cannot be read: a start refuses them.
pub(super) fn replaced_members(hot_add: &HotAdd, disks: &mut [MemDisk]) -> Vec<usize> {
    let read = superblocks(hot_add, disks);
    let Some(newest) = newest(&read) else { return Vec::new() };
    let is_replaced = |role: &usize| {
        let Some((_, identity)) = &read[*role] else { return false };
        let holds = |found: &FoundSuperblock| {
            found.as_ref().is_some_and(|(_, identity)| identity.id == newest.member_ids[*role])
        };
        let waits = identity.role.is_none() && newest.failed >> *role & 1 == 1;
        newest.role_of(identity.id).is_none() && !waits && !read.iter().any(holds)
    };
    (0..hot_add.members).filter(is_replaced).collect()
}

/// True if a device can be added offline in the place of a member: the member is recorded as failed, and no other is being filled.
pub(super) fn may_add_offline(hot_add: &HotAdd, disks: &mut [MemDisk], role: usize) -> bool {
    newest(&superblocks(hot_add, disks))
        .is_some_and(|newest| newest.failed >> role & 1 == 1 && newest.rebuilding.is_none())
}

/// Chooses a member that is missing at a start, although it could be present, and comes back later.
pub(super) fn late_member(
    hot_add: &HotAdd,
    disks: &mut [MemDisk],
    may_lose: &[usize],
    rng: &mut SimRng,
) -> Option<usize> {
    let read = superblocks(hot_add, disks);
    // A new member that is left out while the others record it as being filled is refused by the next start.
    let is_new = |role: usize| {
        let others: Vec<FoundSuperblock> =
            read.iter().enumerate().map(|(other, found)| found.clone().filter(|_| other != role)).collect();
        newest(&others).is_some_and(|newest| {
            newest.rebuilding.is_some_and(|rebuild| rebuild.role == role) && !newest.is_returning()
        })
    };
    let members = may_lose.iter().copied().filter(|disk| *disk < hot_add.members && !is_new(*disk));
    let members: Vec<usize> = members.collect();
    (!members.is_empty() && rng.chance(MISSING)).then(|| rng.pick(&members))
}

/// Chooses a failed member to be added before a start.
pub(super) fn failed_member(hot_add: &HotAdd, disks: &mut [MemDisk], rng: &mut SimRng) -> Option<usize> {
    if !rng.chance(ADDED_BEFORE) {
        return None;
    }
    let read = superblocks(hot_add, disks);
    let newest = newest(&read)?;
    let failed = |role: &usize| newest.failed >> role & 1 == 1 && read[*role].is_some();
    (0..hot_add.members).find(failed).filter(|_| newest.rebuilding.is_none())
}

/// Acts as "dcd array add" on an array that is not served: gives a disk the role of its place. Ignores disks without a
/// superblock: a crash can leave them in the place of members whose roles spares have.
pub(super) fn add_offline(
    hot_add: &HotAdd,
    disks: &mut [MemDisk],
    role: usize,
    rng: &mut SimRng,
) -> Result<(), String> {
    let (before, rest) = disks[..hot_add.members + hot_add.spares].split_at_mut(role);
    let (disk, behind) = rest.split_first_mut().expect("the role has a disk");
    let others = before.iter_mut().chain(behind).filter_map(|disk| {
        let is_known = ArraySuperblock::read(disk).is_ok();
        is_known.then_some(Some(disk as &mut dyn BlockDevice))
    });
    let mut others: Vec<Option<&mut dyn BlockDevice>> = others.collect();
    let added = replace(&mut others, role, disk, rng.next_u64().max(1));
    added.map(|_| ()).map_err(|error| format!("member {role} cannot be added offline: {error}"))
}
