//! The one record that every format is read into and written from.

use std::fmt;

use dcd_engine::{Extent, Lba, Nanos, SECTOR_BYTES};
use serde::{Deserialize, Serialize};

/// The end of the largest address that a trace may have, in sectors: its byte offset still fits a signed 64-bit number,
/// as every operating system wants it.
pub const LBA_END_MAX: u64 = 1 << 54;

/// The most sectors of a read or a write: as many as a SCSI command can name. (Zeroes count as writes.)
pub const SECTORS_MAX: u64 = u32::MAX as u64;

/// Number of a disk, a volume or a logical unit in the trace. In a blktrace it is the kernel's device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceId(pub u32);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordOp {
    Read,
    Write,
    Discard,
    /// Makes all writes before it durable. It has no address.
    Flush,
}

impl RecordOp {
    pub const fn name(self) -> &'static str {
        match self {
            RecordOp::Read => "read",
            RecordOp::Write => "write",
            RecordOp::Discard => "discard",
            RecordOp::Flush => "flush",
        }
    }
}

/// A request to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Time of arrival, from the origin that the format defines.
    pub at: Nanos,
    pub device: DeviceId,
    pub op: RecordOp,
    /// Empty, at sector 0, for a flush; for anything else at least one sector.
    pub extent: Extent,
    /// From arrival to completion, where the trace knows.
    pub response: Option<Nanos>,
    /// A write that is durable when it is answered (force unit access).
    pub fua: bool,
}

/// Error for a record that is not a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRecord {
    #[error("a {} of no sectors", .0.name())]
    Empty(RecordOp),
    #[error("{sectors} sectors at {start} are past the end of any device")]
    PastEnd { start: u64, sectors: u64 },
    #[error("{bytes} bytes at {offset} are past the end of any device")]
    BytesPastEnd { offset: u64, bytes: u64 },
    #[error("a {} of {sectors} sectors: no request has more than {SECTORS_MAX}", .op.name())]
    TooLong { op: RecordOp, sectors: u64 },
}

/// Readers report an error in a line of a trace as text.
impl From<InvalidRecord> for String {
    fn from(invalid: InvalidRecord) -> String {
        invalid.to_string()
    }
}

impl Record {
    /// A request for whole sectors.
    pub fn new(
        at: Nanos,
        device: DeviceId,
        op: RecordOp,
        start: u64,
        sectors: u64,
    ) -> Result<Record, InvalidRecord> {
        if sectors == 0 {
            return Err(InvalidRecord::Empty(op));
        }
        let end = start.checked_add(sectors).filter(|&end| end <= LBA_END_MAX);
        if end.is_none() {
            return Err(InvalidRecord::PastEnd { start, sectors });
        }
        if op != RecordOp::Discard && sectors > SECTORS_MAX {
            return Err(InvalidRecord::TooLong { op, sectors });
        }
        Ok(Record { at, device, op, extent: Extent::new(Lba(start), sectors), response: None, fua: false })
    }

    /// A request for bytes: every sector that they touch.
    pub fn of_bytes(
        at: Nanos,
        device: DeviceId,
        op: RecordOp,
        offset: u64,
        bytes: u64,
    ) -> Result<Record, InvalidRecord> {
        if bytes == 0 {
            return Err(InvalidRecord::Empty(op));
        }
        let end = offset.checked_add(bytes).ok_or(InvalidRecord::BytesPastEnd { offset, bytes })?;
        let start = offset / SECTOR_BYTES;
        Record::new(at, device, op, start, end.div_ceil(SECTOR_BYTES) - start)
    }

    pub const fn flush(at: Nanos, device: DeviceId) -> Record {
        let extent = Extent::new(Lba(0), 0);
        Record { at, device, op: RecordOp::Flush, extent, response: None, fua: false }
    }

    pub const fn answered_after(self, response: Option<Nanos>) -> Record {
        Record { response, ..self }
    }

    /// Returns the record with FUA, if `fua` is true and it is a write: other operations have none.
    pub fn with_fua(self, fua: bool) -> Record {
        Record { fua: fua && self.op == RecordOp::Write, ..self }
    }

    /// The bytes that it moves.
    pub const fn bytes(&self) -> u64 {
        self.extent.sectors * SECTOR_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_every_sector_that_they_touch() {
        let of = |offset, bytes| {
            Record::of_bytes(Nanos(0), DeviceId(0), RecordOp::Read, offset, bytes).map(|r| r.extent)
        };
        assert_eq!(of(512, 512), Ok(Extent::new(Lba(1), 1)));
        assert_eq!(of(511, 2), Ok(Extent::new(Lba(0), 2)));
        assert!(of(0, 0).is_err());
        assert!(of(u64::MAX, 1).is_err());
        assert!(of(0, 512 * (SECTORS_MAX + 1)).is_err() && of(0, 512 * SECTORS_MAX).is_ok());
        assert!(of(u64::MAX - 1, 1).is_err());
    }
}
