//! Offline tools on a log and its data disk: plain functions over devices that answer at once.
//!
//! Each tool is a file: `format`, `check`, `dump`, `rescue`. What they share is here and in `superblock`, which the serving cache uses
//! too.

mod check;
mod dump;
mod format;
mod newest;
mod rescue;
mod superblock;

#[cfg(test)]
mod tests;

pub use check::{CheckReport, CopyReport, FingerprintReport, check};
pub use dump::{DumpFilter, Row, dump};
pub use format::{FormatOptions, format};
pub use newest::{Content, Newest, Piece, Totals};
pub(super) use rescue::read_payload;
pub use rescue::{RescueOptions, RescueReport, Unsaved, rescue};
pub use superblock::{
    check_sizes, live_superblock, read_copies, read_superblock, refuse_out_of_use, store_calibration,
    write_superblock,
};

use super::format::{State, SuperblockError};
use super::recover::RecoverError;
use crate::IoError;
use crate::destage::contiguity::EXCEPT_MAX;

/// Data moves in pieces of at most this many sectors (1 MiB).
const CHUNK_SECTORS: u64 = 2048;

/// How far a tool is, in bytes of what it was given to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub bytes_done: u64,
    pub bytes_total: u64,
}

/// Bytes for people: whole numbers, rounded down.
pub(crate) fn human(bytes: u64) -> String {
    match bytes {
        b if b >= 10 << 30 => format!("{} GiB", b >> 30),
        b if b >= 10 << 20 => format!("{} MiB", b >> 20),
        b if b >= 10 << 10 => format!("{} KiB", b >> 10),
        b => format!("{b} bytes"),
    }
}

/// A state's name for reports.
pub(crate) const fn state_name(state: State) -> &'static str {
    match state {
        State::Stopped => "stopped",
        State::Active => "active",
        State::Detached => "detached",
        State::GivenUp => "given up",
    }
}

/// 16 bytes as a UUID is written.
pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The data disk holds what was not written through its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherData {
    pub lines: usize,
    pub first_byte: u64,
    /// What of the log is not on the disk.
    pub dirty_bytes: u64,
}

impl std::error::Error for OtherData {}

impl std::fmt::Display for OtherData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let OtherData { lines, first_byte, dirty_bytes } = *self;
        write!(
            f,
            "the data disk was changed without this cache, or is another disk: {lines} of the blocks that are compared hold something \
             else, the first at byte {first_byte}. Nothing was written. If it is another disk, connect the right one (`dcd check` says \
             whether the log has lost its newest superblock). "
        )?;
        match dirty_bytes {
            0 => f.write_str(
                "If it is the right disk, nothing is lost: the log holds nothing that is not on it, and `dcd rescue --force` takes the \
                 disk as it is now",
            ),
            dirty => write!(
                f,
                "If it is the right disk, copy it first: {} of the log belong over it, and do not fit what was changed. Then either \
                 `dcd rescue --force` writes the log's data over the changes, or `dcd serve --without-cache --force` keeps the changes \
                 and discards the log's data. Check the file system in either case",
                human(dirty)
            ),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    #[error(
        "the log device holds no dcd log. Is it the right device? If there never was one, `dcd format` makes it"
    )]
    NotFormatted,
    #[error(
        "neither copy of the superblock on the log device is usable (copy 0: {0}; copy 1: {1}). If this was a dcd log, what is \
         dirty in it cannot be found without one; keep the device as it is"
    )]
    NoSuperblock(SuperblockError, SuperblockError),
    #[error("the log device: {0}")]
    Version(SuperblockError),
    #[error(
        "the two superblocks on the log device belong to different caches ({0} and {1}). It was copied together from two; \
         nothing was changed"
    )]
    TwoCaches(String, String),
    #[error(
        "the {which} has {found} sectors of 512 bytes, and had {recorded} when it was formatted: is it the right one? If it was made \
         smaller, make it as large as it was: what it still holds is not lost"
    )]
    Smaller { which: &'static str, found: u64, recorded: u64 },
    #[error(
        "the {which} has logical blocks of {found} bytes, and the log was formatted for at most {recorded}. Use the device \
         that it was formatted on"
    )]
    BlockSize { which: &'static str, found: u32, recorded: u32 },
    #[error(
        "the log device has {found} bytes, and a log with segments of {segment_bytes} bytes needs {needed}. Use a larger \
         device or smaller segments"
    )]
    TooSmall { found: u64, needed: u64, segment_bytes: u32 },
    #[error("the result leaves out more than {EXCEPT_MAX} ranges of strides: measure fewer of them")]
    TooManyRanges,
    #[error("the log was detached from its data disk: `dcd format` attaches it again")]
    Detached,
    #[error(
        "the cache of this log was given up: its data disk has been served without it since, and its data would go over newer. `dcd \
         rescue --list` says what the log holds that is dirty, and `dcd rescue --force` writes that back, over what may be newer. Then \
         `dcd format` makes a new log"
    )]
    GivenUp,
    #[error("{0}")]
    Options(&'static str),
    #[error("the {0} is read only: make it writable, or take read-only = true out of the stack file")]
    ReadOnly(&'static str),
    #[error(
        "the log device is in use by cache {uuid}: {state}. Formatting it would lose that. Serve it and `dcd detach` it, or \
         `dcd rescue` it first; --force formats it all the same"
    )]
    Occupied { uuid: String, state: String },
    #[error(transparent)]
    OtherData(#[from] OtherData),
    #[error(transparent)]
    Recover(#[from] RecoverError),
    #[error("{what}: {source}. Check the device, then try again; nothing is lost by trying again")]
    Io { what: &'static str, source: IoError },
}

impl OfflineError {
    fn io(what: &'static str) -> impl FnOnce(IoError) -> OfflineError {
        move |source| OfflineError::Io { what, source }
    }
}
