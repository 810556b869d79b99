//! Takes the answered writes of a killed server into its log, before a tool reads that.

use super::{read_superblock, refuse_out_of_use, write_superblock};
use crate::log_cache::answers::{self, MemoryPlace, Taken};
use crate::log_cache::recover::{WalkOptions, walk};
use crate::log_cache::{LogError, format::Header};
use crate::{BlockDevice, Planted};

/// Writes to a log what the last server answered and left in memory alone. A log that is not in use any more stays as it is. `forget`: removes
/// memory that was taken in, once the superblock says that it is not in use, as a start refuses a log whose memory is missing.
pub fn take_in(
    log: &mut dyn BlockDevice,
    memory: &mut dyn MemoryPlace,
    forget: bool,
) -> Result<Taken, LogError> {
    let mut superblock = read_superblock(log)?;
    let Some(mark) = superblock.memory.filter(|_| refuse_out_of_use(&superblock).is_ok()) else {
        return Ok(Taken::default());
    };
    let options = WalkOptions { accept_damage: true, ..WalkOptions::default() };
    let walked = walk(log, &superblock, options, &mut |_: &Header, _: &[usize]| ())?;
    let taken = answers::take_in(log, memory, &superblock, &walked, Planted::default())?;
    if forget && taken.ignored.is_none() && walked.damages == 0 {
        if mark.is_in_use() {
            superblock.memory = Some(mark.out_of_use());
            write_superblock(log, &mut superblock)?;
        }
        memory.forget(&superblock.cache_uuid, mark.number);
    }
    Ok(taken)
}
