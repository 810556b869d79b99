//! Measures response times of calls by kind, block requests by class, cache hits, and the processor.

use dcd_engine::Nanos;

use super::op::{Op, OpKind};
use crate::Histogram;

/// Purpose of a block request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestClass {
    MetadataRead,
    DataRead,
    ReadAhead,
    /// A call waits for it; written durably.
    SyncMetadata,
    DelayedMetadata,
    /// Metadata on its way into the journal.
    Journal,
    DataWrite,
    Flush,
}

impl RequestClass {
    pub const ALL: [RequestClass; 8] = [
        RequestClass::MetadataRead,
        RequestClass::DataRead,
        RequestClass::ReadAhead,
        RequestClass::SyncMetadata,
        RequestClass::DelayedMetadata,
        RequestClass::Journal,
        RequestClass::DataWrite,
        RequestClass::Flush,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            RequestClass::MetadataRead => "metadata read",
            RequestClass::DataRead => "data read",
            RequestClass::ReadAhead => "readahead",
            RequestClass::SyncMetadata => "sync metadata",
            RequestClass::DelayedMetadata => "delayed metadata",
            RequestClass::Journal => "journal",
            RequestClass::DataWrite => "data write",
            RequestClass::Flush => "flush",
        }
    }

    pub const fn is_read(self) -> bool {
        matches!(self, RequestClass::MetadataRead | RequestClass::DataRead | RequestClass::ReadAhead)
    }

    pub const fn is_write(self) -> bool {
        !self.is_read() && !matches!(self, RequestClass::Flush)
    }
}

/// The block requests of one class.
#[derive(Clone, Debug, Default)]
pub struct ClassMeasured {
    pub bytes: u64,
    pub response: Histogram,
    /// Number of requests of each size in bytes, the smallest first.
    pub sizes: std::collections::BTreeMap<u64, u64>,
}

/// Hits and misses of the buffer cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheHits {
    pub hits: u64,
    pub misses: u64,
}

impl CacheHits {
    pub(crate) fn count(&mut self, hit: bool) {
        *(if hit { &mut self.hits } else { &mut self.misses }) += 1;
    }

    /// The part of searches that found nothing; zero where there were none.
    pub fn miss_rate(&self) -> f64 {
        self.misses as f64 / (self.hits + self.misses).max(1) as f64
    }
}

/// Since the start, or since [`super::Ffs::reset_measured`].
#[derive(Clone, Debug, Default)]
pub struct FfsMeasured {
    pub since: Nanos,
    ops: [Histogram; OpKind::ALL.len()],
    requests: [ClassMeasured; RequestClass::ALL.len()],
    /// Calls that read files: a miss had to wait for the disk, be it for what was read ahead.
    pub data: CacheHits,
    /// Blocks of metadata that were needed.
    pub metadata: CacheHits,
    /// Bytes that programs asked to read or write.
    pub bytes_called: u64,
    /// Time that the processor was busy.
    pub cpu: Nanos,
    /// Time that calls waited for blocks that were being read, be it ahead of them; of all processes together.
    pub waited_for_reads: Nanos,
}

impl FfsMeasured {
    /// Response times of the calls of a kind.
    pub fn op(&self, kind: OpKind) -> &Histogram {
        &self.ops[kind as usize]
    }

    pub fn class(&self, class: RequestClass) -> &ClassMeasured {
        &self.requests[class as usize]
    }

    /// The time that programs wait for a read or a write, with what it takes to get at the file: to open it or to make it,
    /// and to close it. Removing a file is neither.
    pub fn file_response(&self) -> Nanos {
        let kinds = [OpKind::Read, OpKind::Write, OpKind::Open, OpKind::Create, OpKind::Close];
        let sum: u128 = kinds.iter().map(|kind| self.op(*kind).sum()).sum();
        let count = self.op(OpKind::Read).count() + self.op(OpKind::Write).count();
        Nanos((sum / u128::from(count.max(1))) as u64)
    }

    pub(crate) fn add_op(&mut self, op: &Op, response: Nanos) {
        self.ops[op.kind() as usize].add(response);
        if let Op::Read { bytes, .. } | Op::Write { bytes, .. } | Op::Append { bytes, .. } = op {
            self.bytes_called += bytes;
        }
    }

    pub(crate) fn add_request(&mut self, class: RequestClass, bytes: u64, response: Nanos) {
        let measured = &mut self.requests[class as usize];
        measured.bytes += bytes;
        measured.response.add(response);
        *measured.sizes.entry(bytes).or_default() += 1;
    }
}
