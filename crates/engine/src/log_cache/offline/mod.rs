//! Offline tools on a log and its data disk: plain functions over synchronous devices.
//!
//! Each tool is a file: `format` (with `measure`), `check`, `dump`, `rescue`. Their common code is here and in `superblock`, which the
//! serving cache uses, too.

mod check;
mod disks;
mod dump;
mod format;
mod joined;
mod measure;
mod newest;
mod rescue;
mod superblock;
mod take_in;

#[cfg(test)]
mod tests;

pub use check::{CheckReport, CopyReport, FingerprintReport, check};
pub use disks::{add_disk, admit_disk, next_place, remove_disk};
pub use dump::{DumpFilter, Row, dump};
pub use format::{FormatOptions, admit_format, format, is_format_begun, is_out_of_use};
pub use joined::{JoinedDisks, place_of_address};
pub use newest::{Newest, NewestContent, NewestPiece, Totals};
pub(super) use rescue::read_payload;
pub use rescue::{RescueOptions, RescueReport, Unsaved, rescue};
pub(super) use superblock::newest_generation;
pub use superblock::{
    check_sizes, live_superblock, read_copies, read_superblock, refuse_out_of_use, store_calibration,
    write_superblock,
};
pub use take_in::take_in;

use super::format::LogState;
use super::{LogError, OtherData};

/// Data moves in pieces of at most this many sectors (1 MiB).
const CHUNK_SECTORS: u64 = 2048;

/// Progress of a tool, in bytes of the whole work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolProgress {
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
pub(crate) const fn state_name(state: LogState) -> &'static str {
    match state {
        LogState::Stopped => "stopped",
        LogState::Active => "active",
        LogState::Detached => "detached",
        LogState::GivenUp => "given up",
    }
}

/// Formats 16 bytes as a UUID.
pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
