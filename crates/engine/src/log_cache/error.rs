//! Reasons why a log cannot be used. Nothing was changed, unless the text says so.

use super::answers::{Ignored, MemoryInUse};
use super::format::{LogSuperblockError, SEGMENTS_MAX};
use super::offline::human;
use super::recover::RecoverError;
use crate::IoError;
use crate::destage::contiguity::EXCEPT_MAX;

/// The data disk holds data that was not written through its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the data disk{} was changed without this cache, or is another disk: {lines} of the compared blocks have other data, the first at \
     byte {first_byte}. Nothing was written",
    if *disk > 0 { format!(" {}", disk + 1) } else { String::new() }
)]
pub struct OtherData {
    /// Number of the data disk; 0: the first or only one, and messages count from 1.
    pub disk: usize,
    pub lines: usize,
    pub first_byte: u64,
    /// Bytes of the log that are not on the data disk.
    pub dirty_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("the log device holds no dcd log")]
    NotFormatted,
    #[error("the log device is a leg of a mirrored log")]
    Leg,
    #[error("neither copy of the superblock on the log device is usable (copy 0: {0}; copy 1: {1})")]
    NoSuperblock(LogSuperblockError, LogSuperblockError),
    #[error("the log device: {0}")]
    Version(LogSuperblockError),
    #[error(
        "the two superblocks on the log device belong to different caches ({0} and {1}): parts of two logs were copied to it"
    )]
    TwoCaches(String, String),
    #[error("the {which} has {found} sectors of 512 bytes, but had {recorded} when the log was formatted")]
    Smaller { which: &'static str, found: u64, recorded: u64 },
    #[error(
        "the {which} has logical blocks of {found} bytes, but the log was formatted for at most {recorded}"
    )]
    BlockSize { which: &'static str, found: u32, recorded: u32 },
    #[error(
        "the log device has {} ({found} bytes), but a log with segments of {} needs {} ({needed} bytes)",
        human(*found), human(u64::from(*segment_bytes)), human(*needed)
    )]
    TooSmall { found: u64, needed: u64, segment_bytes: u32 },
    #[error(
        "a log of {} with segments of {} would have more than {SEGMENTS_MAX} segments",
        human(*found), human(u64::from(*segment_bytes))
    )]
    TooManySegments { found: u64, segment_bytes: u32 },
    #[error("the result leaves out more than {EXCEPT_MAX} ranges of strides")]
    TooManyRanges,
    #[error("the log is that of {recorded} data disks, but is used with {found}")]
    Disks { found: usize, recorded: usize },
    #[error("the log already has the data disk {0}")]
    HasDisk(String),
    #[error("the log still has data or records for its data disks, or was not stopped cleanly")]
    NotEmpty,
    #[error("the log was detached from its data disk")]
    Detached,
    #[error(
        "the cache of this log was discarded: the data disk has been served without it since, and the log would overwrite newer data"
    )]
    GivenUp,
    #[error(
        "the log was served last by another machine ({other:016x}; this one is {this:016x}), which did not stop it and may still serve it"
    )]
    OtherMachine { other: u64, this: u64 },
    #[error("{0}")]
    Options(&'static str),
    #[error("the {0} is read only")]
    ReadOnly(&'static str),
    #[error("the log device has the log of cache {uuid}: {state}. Formatting would lose its data")]
    Occupied { uuid: String, state: String },
    #[error(transparent)]
    OtherData(#[from] OtherData),
    #[error(transparent)]
    Recover(#[from] RecoverError),
    #[error("{what}: {source}")]
    Io { what: &'static str, source: IoError },
    #[error("answered writes were written to the log, but are not found there. Their memory is retained")]
    NotTaken,
    #[error(
        "the last server answered writes from memory in /dev/shm, and this start cannot use it: {0}. Clients that outlived that server, as a \
         mounted file system, may rely on writes that are lost"
    )]
    MemoryMissed(Ignored),
    #[error(transparent)]
    MemoryInUse(#[from] MemoryInUse),
    #[error("the log holds more pieces than fit in its lookup table")]
    TooManyPieces,
    /// Ordered destage needs a log that contains all writes.
    #[error("the log was written without ordered-destage, and large writes bypassed it")]
    Bypassed,
    #[error(
        "the data disk now has blocks of {block_bytes} bytes, and had smaller ones: {parts} dirty pieces of the log are only parts of blocks"
    )]
    PartsOfBlocks { block_bytes: u32, parts: usize },
}

impl LogError {
    pub(super) fn io(what: &'static str) -> impl FnOnce(IoError) -> LogError {
        move |source| LogError::Io { what, source }
    }
}
