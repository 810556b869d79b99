//! Devices that become spares while the array is served.
//!
//! What was on the device before is no superblock any more when it gets its own, and only then it is a spare: a crash leaves it
//! without one, or a spare. Who takes a role is recorded afterwards, as for every spare.

use crate::layer::{Geometry, IoResult, Outbox, Port};
use crate::raid::array::{Array, Flight};
use crate::raid::members::Spare;
use crate::raid::superblock::{COPY_SECTORS, DATA_SECTOR, Identity, NOBODY, SUPERBLOCK_BYTES};
use crate::{Buf, Durability, Io, IoError};

/// A device that is being made a spare.
pub(super) struct Joining {
    spare: Spare,
    /// Its own superblock is being written; before, the old ones are wiped.
    is_named: bool,
    /// Writes that have not returned.
    left: u32,
    failed: Option<IoError>,
}

impl Array {
    /// Begins to make a device a spare.
    pub fn join(
        &mut self,
        port: Port,
        geometry: Geometry,
        place: usize,
        id: u64,
        out: &mut Outbox,
    ) -> Result<(), String> {
        self.may_join(&geometry, place, id)?;
        self.spare_places += 1;
        for at in COPY_SECTORS {
            let buf = Buf::zeroed(SUPERBLOCK_BYTES);
            let io = Io::Write { at, buf, durability: Durability::Durable };
            self.submit_to(port, 0, Flight::Join { place }, io, out);
        }
        let spare = Spare { port, id, copy: 0, place };
        let left = COPY_SECTORS.len() as u32;
        self.joining.push(Joining { spare, is_named: false, left, failed: None });
        Ok(())
    }

    fn may_join(&self, geometry: &Geometry, place: usize, id: u64) -> Result<(), String> {
        let needed = self.sectors_needed();
        let blocks = self.geometry.logical_block_bytes;
        if self.broken || self.stopped || self.geometry.read_only {
            Err("the array takes no writes".to_owned())
        } else if geometry.read_only {
            Err("the device cannot be written".to_owned())
        } else if geometry.sectors < needed {
            Err(format!("the device has {} sectors, and each member has {needed}", geometry.sectors))
        } else if geometry.logical_block_bytes > blocks {
            Err(format!(
                "the device has logical blocks of {} bytes, and the array promises its clients {blocks}: stop the server, add it, \
                 and serve it again",
                geometry.logical_block_bytes
            ))
        } else if place != self.spare_places {
            Err(format!("it knows {} spares: name new ones behind them in \"spares\"", self.spare_places))
        } else if id == NOBODY || self.is_taken(id) {
            Err(format!("the id {id:#x} is taken, or reserved: draw another one"))
        } else {
            Ok(())
        }
    }

    fn is_taken(&self, id: u64) -> bool {
        let joining = self.joining.iter().map(|joining| &joining.spare);
        self.recorder.knows(id) || self.spares.iter().chain(joining).any(|spare| spare.id == id)
    }

    /// What a member has to have at least.
    pub fn sectors_needed(&self) -> u64 {
        DATA_SECTOR + self.recorder.recorded().member_sectors
    }

    /// The places among the spares of the devices that are being made spares.
    pub fn joining_places(&self) -> Vec<usize> {
        self.joining.iter().map(|joining| joining.spare.place).collect()
    }

    pub fn join_returned(&mut self, place: usize, result: &IoResult, out: &mut Outbox) {
        let index = self.joining.iter().position(|joining| joining.spare.place == place);
        let index = index.expect("it waits for its writes");
        let joining = &mut self.joining[index];
        joining.left -= 1;
        joining.failed = joining.failed.or(result.status.err());
        if joining.left > 0 {
            return;
        }
        let spare = joining.spare;
        if let Some(error) = joining.failed {
            self.joining.remove(index);
            self.unusable.push(format!(
                "spare {place} could not be made one ({error}): take it out of \"spares\", or check it and add it again when the \
                 server has been stopped"
            ));
        } else if joining.is_named {
            self.joining.remove(index);
            self.spares.push(spare);
        } else {
            (joining.is_named, joining.left) = (true, 1);
            // Over the copy that is not the one of this number.
            let identity = Identity { id: spare.id, role: None, copy: 1 - spare.copy };
            let io = self.recorder.recorded().write(identity);
            self.submit_to(spare.port, 0, Flight::Join { place }, io, out);
        }
    }
}
