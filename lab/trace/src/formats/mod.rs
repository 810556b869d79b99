//! The formats, one file each; the table of them is [`crate::format::FORMATS`].

pub(crate) mod alibaba;
pub(crate) mod blk;
pub(crate) mod blkparse;
pub(crate) mod blktrace;
mod columns;
pub(crate) mod compact;
pub(crate) mod csv;
pub(crate) mod disksim;
pub(crate) mod fio;
pub(crate) mod msr;
pub(crate) mod oracle;
pub(crate) mod spc;
pub(crate) mod srt;
pub(crate) mod tencent;
pub(crate) mod validate;
pub(crate) mod vscsi;
