//! The figures of a trace: those of Tables 3.1 and 4.5 of Biswas, Ramakrishnan and Towsley (1993), and what else a choice of
//! cache depends on.

use serde::Serialize;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Distribution {
    pub count: u64,
    pub mean: f64,
    pub median: u64,
    pub p90: u64,
    pub p99: u64,
    pub max: u64,
    /// (value, share of the count that is at most that value).
    pub cumulative: Vec<(f64, f64)>,
}

/// Reads, or writes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Requests {
    pub count: u64,
    pub bytes: u64,
    pub size_bytes: Distribution,
    /// Only where the trace has response times.
    pub response_ns: Option<Distribution>,
}

/// Figures of blocks of one sector. Weighed for sampling where the trace touches more blocks than are kept.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Blocks {
    pub touched_bytes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Share of the written sectors that overwrite an earlier write: the most that an infinite write cache could save
    /// without putting writes together. It is also the share of written data that is overwritten later ("% dirty data
    /// overwritten" of Table 4.5), as each overwrite has exactly one victim.
    pub overwrite_share: f64,
    /// Share of the blocks written at all that are written again.
    pub rewritten_blocks_share: f64,
    /// Between a write of a block and the next one, in requests to its device.
    pub overwrite_interval_ios: Distribution,
    /// Time between a write of a block and the next one.
    pub overwrite_interval_ns: Distribution,
    /// Share of the read sectors that were written earlier in the trace.
    pub read_after_write_share: f64,
    pub read_after_write_interval_ios: Distribution,
    /// Share of the read sectors that were read before and not written since.
    pub read_again_share: f64,
    /// Between two reads of a block with no write between them, in requests to its device.
    pub read_again_interval_ios: Distribution,
}

/// Figures of a device, or of all.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// None: all devices.
    pub device: Option<u32>,
    pub reads: Requests,
    pub writes: Requests,
    pub discards: u64,
    pub flushes: u64,
    /// Writes with FUA.
    pub fua: u64,
    /// From the first arrival to the last.
    pub seconds: f64,
    /// Requests that came earlier than the one before them in the trace.
    pub out_of_order: u64,
    /// The end of the highest request, in sectors.
    pub lba_end: u64,
    /// The largest power of two that every address and size is a multiple of, in sectors.
    pub align_sectors: u64,
    pub interarrival_ns: Distribution,
    /// Time with no request outstanding. Without response times, a request counts as taking the assumed service time.
    pub idle_ns: Distribution,
    pub busy_share: f64,
    /// The share of requests whose response time is not in the trace.
    pub response_unknown_share: f64,
    /// Share of reads and writes that begin where the one before on the device ended.
    pub sequential_share: f64,
    pub blocks: Option<Blocks>,
}

/// A trace.
#[derive(Clone, Debug, Serialize)]
pub struct Characteristics {
    pub all: Figures,
    pub devices: Vec<Figures>,
    /// Sampling of blocks: one in so many was followed; 1: every one.
    pub sampled_one_in: u64,
    /// Share of accesses to blocks that goes to the hottest 1 %, 10 % and 20 % of them.
    pub hottest: Option<[f64; 3]>,
    /// (seconds since the first request, reads a second, writes a second).
    pub activity: Vec<(f64, f64, f64)>,
    /// Assumed service time of requests without a response time, in nanoseconds.
    pub assumed_service_ns: u64,
}
