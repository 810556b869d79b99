//! Interprets requests: checks every number that a client sends, before anything is allocated or changed.

use dcd_engine::{Durability, Extent, Io, Lba, SECTOR_BYTES};

use super::exports::{Export, PAYLOAD_BYTES_MAX};
use super::flight::AnswerKind;
use super::negotiation::{Agreed, MetaContext};
use super::protocol::{self as p, Errno, RequestHeader};
use super::replies::{ReplyForm, STATUS_RUNS_MAX};
use crate::Outlives;

/// A valid request.
#[derive(Debug)]
pub enum Work {
    Read {
        at: Lba,
        kind: AnswerKind,
    },
    Write {
        durability: Durability,
    },
    Other {
        kind: AnswerKind,
        io: Io,
    },
    /// The status of blocks, at most so many runs.
    Status {
        extent: Extent,
        runs_max: usize,
    },
    /// A request of length zero: nothing to do.
    Nothing,
    Disconnect,
}

/// The limits of the export that the client has chosen.
#[derive(Debug)]
pub struct Transmission {
    pub disk: usize,
    bytes: u64,
    block: u64,
    flags: u16,
    form: ReplyForm,
    /// Metadata contexts that the client has selected.
    pub contexts: Vec<MetaContext>,
    fast_zeroes: bool,
    /// True if every write must be durable.
    durable: bool,
}

impl Transmission {
    pub fn new(export: &Export, outlives: Outlives, agreed: &Agreed) -> Transmission {
        Transmission {
            disk: export.disk,
            bytes: export.bytes(),
            block: u64::from(export.block_bytes_min()),
            flags: export.flags(agreed.form),
            form: agreed.form,
            contexts: agreed.contexts_of(&export.name).to_vec(),
            fast_zeroes: export.geometry.fast_zeroes,
            durable: outlives == Outlives::Durable,
        }
    }

    /// The sector of a byte offset that [`Transmission::check`] has found aligned.
    pub fn lba(offset: u64) -> Lba {
        Lba(offset / SECTOR_BYTES)
    }

    /// Checks the command, its flags, and its range, in this order.
    pub fn check(&self, header: &RequestHeader) -> Result<Work, Errno> {
        let modifies = matches!(header.command, p::CMD_WRITE | p::CMD_TRIM | p::CMD_WRITE_ZEROES);
        if modifies && self.flags & p::TFLAG_READ_ONLY != 0 {
            return Err(Errno::Perm);
        }
        self.check_flags(header)?;
        match header.command {
            p::CMD_DISC => return Ok(Work::Disconnect),
            p::CMD_FLUSH if header.offset != 0 || header.length != 0 => return Err(Errno::Inval),
            p::CMD_FLUSH => return Ok(Work::Other { kind: AnswerKind::Flush, io: Io::Flush }),
            _ => {}
        }
        let extent = self.extent(header)?;
        if extent.sectors == 0 {
            return if header.command == p::CMD_BLOCK_STATUS { Err(Errno::Inval) } else { Ok(Work::Nothing) };
        }
        let fua = header.flags & p::CMD_FLAG_FUA != 0;
        let durability = if fua || self.durable { Durability::Durable } else { Durability::Volatile };
        Ok(match header.command {
            p::CMD_READ | p::CMD_CACHE if header.length > u64::from(PAYLOAD_BYTES_MAX) => {
                return Err(Errno::Inval);
            }
            p::CMD_READ => Work::Read { at: extent.start, kind: AnswerKind::Read },
            p::CMD_CACHE => Work::Read { at: extent.start, kind: AnswerKind::Cache },
            p::CMD_BLOCK_STATUS => {
                let one = header.flags & p::CMD_FLAG_REQ_ONE != 0;
                Work::Status { extent, runs_max: if one { 1 } else { STATUS_RUNS_MAX } }
            }
            p::CMD_WRITE => Work::Write { durability },
            p::CMD_TRIM => {
                let kind = if fua { AnswerKind::TrimThenFlush } else { AnswerKind::Trim };
                Work::Other { kind, io: Io::Discard { extent } }
            }
            _ => {
                let fast = header.flags & p::CMD_FLAG_FAST_ZERO != 0;
                if fast && !self.fast_zeroes {
                    return Err(Errno::NotSup);
                }
                let unmap = header.flags & p::CMD_FLAG_NO_HOLE == 0;
                Work::Other {
                    kind: AnswerKind::Zeroes { fast },
                    io: Io::WriteZeroes { extent, unmap, durability },
                }
            }
        })
    }

    /// Refuses commands that are unknown or were not offered, and flags that the command does not have.
    fn check_flags(&self, header: &RequestHeader) -> Result<(), Errno> {
        let (offered, flags) = match header.command {
            // FUA is allowed on every command, also where it has no effect. A flush is also done if it was not offered: a device of the
            // kernel that an earlier server had offered it to continues to flush.
            p::CMD_READ if self.form >= ReplyForm::Structured => (true, p::CMD_FLAG_FUA | p::CMD_FLAG_DF),
            p::CMD_WRITE if self.form == ReplyForm::Extended => {
                (true, p::CMD_FLAG_FUA | p::CMD_FLAG_PAYLOAD_LEN)
            }
            p::CMD_READ | p::CMD_WRITE | p::CMD_DISC | p::CMD_FLUSH | p::CMD_CACHE => (true, p::CMD_FLAG_FUA),
            p::CMD_BLOCK_STATUS => (!self.contexts.is_empty(), p::CMD_FLAG_FUA | p::CMD_FLAG_REQ_ONE),
            p::CMD_TRIM => (self.flags & p::TFLAG_SEND_TRIM != 0, p::CMD_FLAG_FUA),
            p::CMD_WRITE_ZEROES => {
                let flags = p::CMD_FLAG_FUA | p::CMD_FLAG_NO_HOLE | p::CMD_FLAG_FAST_ZERO;
                (self.flags & p::TFLAG_SEND_WRITE_ZEROES != 0, flags)
            }
            _ => (false, 0),
        };
        if offered && header.flags & !flags == 0 { Ok(()) } else { Err(Errno::Inval) }
    }

    /// The sectors of a request, where they are aligned and inside the export.
    fn extent(&self, header: &RequestHeader) -> Result<Extent, Errno> {
        let length = header.length;
        let inside = header.offset.checked_add(length).is_some_and(|end| end <= self.bytes);
        if !inside {
            let writes_data = matches!(header.command, p::CMD_WRITE | p::CMD_WRITE_ZEROES);
            return Err(if writes_data { Errno::NoSpc } else { Errno::Inval });
        }
        if !header.offset.is_multiple_of(self.block) || !length.is_multiple_of(self.block) {
            return Err(Errno::Inval);
        }
        Ok(Extent::new(Transmission::lba(header.offset), length / SECTOR_BYTES))
    }
}
