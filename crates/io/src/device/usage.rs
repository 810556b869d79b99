//! Operations of a device: how many, of how many bytes, and how long they took.

use dcd_engine::{Io, Nanos, SECTOR_BYTES};
use hdrhistogram::Histogram;

/// Longer times count as this one.
const TIME_MAX: Nanos = Nanos::from_secs(3600);
/// Digits of a time: a percentile is at most a tenth off, and a histogram takes some 4 KiB.
const DIGITS: u8 = 1;

/// Kinds of operations that are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    Read,
    /// Zeroes too.
    Write,
    Flush,
    Discard,
}

impl OpKind {
    pub const ALL: [OpKind; 4] = [OpKind::Read, OpKind::Write, OpKind::Flush, OpKind::Discard];

    pub(crate) const fn of(io: &Io) -> OpKind {
        match io {
            Io::Read { .. } | Io::ReadCopy { .. } => OpKind::Read,
            Io::Flush => OpKind::Flush,
            Io::Discard { .. } => OpKind::Discard,
            Io::Write { .. } | Io::WriteCopy { .. } | Io::WriteZeroes { .. } => OpKind::Write,
        }
    }

    pub const fn word(self) -> &'static str {
        match self {
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Flush => "flush",
            OpKind::Discard => "discard",
        }
    }
}

/// An operation that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BegunOp {
    pub kind: OpKind,
    pub bytes: u64,
    pub at: Nanos,
}

impl BegunOp {
    pub fn new(io: &Io, at: Nanos) -> BegunOp {
        let bytes = io.extent().map_or(0, |extent| extent.sectors.saturating_mul(SECTOR_BYTES));
        BegunOp { kind: OpKind::of(io), bytes, at }
    }
}

/// Operations of one kind that have ended, failed ones too.
#[derive(Clone, Debug)]
pub struct OpCounts {
    pub bytes: u64,
    /// Nanoseconds from the request to its end.
    pub times: Histogram<u64>,
}

/// Operations of a device that have ended, by their kind.
#[derive(Clone, Debug)]
pub struct DeviceUsage([OpCounts; 4]);

impl Default for DeviceUsage {
    fn default() -> DeviceUsage {
        DeviceUsage(std::array::from_fn(|_| OpCounts {
            bytes: 0,
            times: Histogram::new_with_bounds(1_000, TIME_MAX.0, DIGITS).expect("the bounds are sound"),
        }))
    }
}

impl DeviceUsage {
    pub const fn of(&self, kind: OpKind) -> &OpCounts {
        &self.0[kind as usize]
    }

    pub(crate) fn ended(&mut self, op: &BegunOp, now: Nanos) {
        let counts = &mut self.0[op.kind as usize];
        counts.bytes = counts.bytes.saturating_add(op.bytes);
        counts.times.saturating_record(now.since(op.at).0);
    }
}
