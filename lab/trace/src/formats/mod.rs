//! The formats, one file each, but those whose lines are fields; the table of them is [`crate::format::FORMATS`].

pub(crate) mod blk;
pub(crate) mod blkparse;
pub(crate) mod blktrace;
pub(crate) mod compact;
pub(crate) mod disksim;
pub(crate) mod fio;
pub(crate) mod oracle;
pub(crate) mod srt;
pub(crate) mod table;
mod units;
pub(crate) mod validate;
pub(crate) mod vscsi;
