//! The formats, one file each, but those of CSV; the table of them is [`crate::format::FORMATS`].

pub(crate) mod blk;
pub(crate) mod blkparse;
pub(crate) mod blktrace;
mod columns;
pub(crate) mod comma;
pub(crate) mod compact;
pub(crate) mod csv;
pub(crate) mod disksim;
pub(crate) mod fio;
pub(crate) mod oracle;
pub(crate) mod srt;
pub(crate) mod validate;
pub(crate) mod vscsi;
