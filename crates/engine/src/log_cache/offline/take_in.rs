//! Takes the answered writes of a killed server into its log, before a tool reads that.

use super::{read_superblock, refuse_out_of_use};
use crate::log_cache::answers::{self, MemoryPlace, Taken};
use crate::log_cache::recover::{WalkOptions, walk};
use crate::log_cache::{LogError, format::Header};
use crate::{BlockDevice, Planted};

/// Writes to a log what the last server answered and left in memory alone. A log that is not in use any more stays as it is.
pub fn take_in(log: &mut dyn BlockDevice, memory: &mut dyn MemoryPlace) -> Result<Taken, LogError> {
    let superblock = read_superblock(log)?;
    let is_needless = superblock.memory.is_none() && memory.find(&superblock.cache_uuid)?.is_none();
    if is_needless || refuse_out_of_use(&superblock).is_err() {
        return Ok(Taken::default());
    }
    let options = WalkOptions { accept_damage: true, ..WalkOptions::default() };
    let walked = walk(log, &superblock, options, &mut |_: &Header, _: &[usize]| ())?;
    answers::take_in(log, memory, &superblock, &walked, Planted::default())
}
