//! Counts what a disk tells in `status`: requests, times, how late the driver was, and how long the device below took.

use dcd_engine::{Extent, Lba, Nanos};
use serde_json::{Value, json};

use crate::controller::{Access, Served, Service};
use crate::histogram::Histogram;
use crate::queue::{DiskWork, Pending};

/// Reads, and from where they were served.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    count: u64,
    from_cache: u64,
    from_stream: u64,
}

impl Reads {
    fn add(&mut self, served: Served) {
        self.count += 1;
        self.from_cache += u64::from(served == Served::Cache);
        self.from_stream += u64::from(served == Served::Stream);
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Statistics {
    reads: Reads,
    /// The reads from this sector on are counted apart, too.
    data_first: Option<Lba>,
    data_reads: Reads,
    writes: u64,
    zeroes: u64,
    flushes: u64,
    sectors_read: u64,
    sectors_written: u64,
    delayed: u64,
    /// From arrival to the start of service, reads and writes.
    read_queued: u128,
    write_queued: u128,
    /// On the disk's own timeline, from arrival to the end of service.
    read_response: Histogram,
    write_response: Histogram,
    flush_response: Histogram,
    busy: u128,
    seek: u128,
    rotation: u128,
    transfer: u128,
    queue_depth_max: usize,
    late_count: u64,
    late_sum: u128,
    late_max: Nanos,
    /// Requests that were handed down and are not answered, since when there are so many of them, and the time that all
    /// requests together have spent there. In a model it should be nothing beside `busy`.
    below: u64,
    below_since: Nanos,
    below_time: u128,
}

impl Statistics {
    /// Counts the reads from `first` on apart.
    pub fn count_from(&mut self, first: Lba) {
        self.data_first = Some(first);
    }

    fn read(&mut self, extent: Extent, served: Served) {
        self.reads.add(served);
        self.sectors_read += extent.sectors;
        if self.data_first.is_some_and(|first| extent.start >= first) {
            self.data_reads.add(served);
        }
    }

    /// A request was served from `start` on.
    pub fn served(&mut self, start: Nanos, service: &Service, pending: &Pending) {
        let response = service.end.since(pending.arrival);
        let queued = u128::from(start.since(pending.arrival).0);
        self.busy += u128::from(service.end.since(start).0);
        self.seek += u128::from(service.seek.0);
        self.rotation += u128::from(service.rotation.0);
        self.transfer += u128::from(service.transfer.0);
        match pending.work {
            DiskWork::Flush => {
                self.flushes += 1;
                self.flush_response.add(response);
            }
            DiskWork::Transfer { access: Access::Read, extent, .. } => {
                self.read(extent, service.served);
                self.read_queued += queued;
                self.read_response.add(response);
            }
            DiskWork::Transfer { access, extent, .. } => {
                self.writes += u64::from(access != Access::WriteZeroes);
                self.delayed += u64::from(service.served == Served::Cache);
                self.zeroes += u64::from(access == Access::WriteZeroes);
                self.sectors_written += extent.sectors;
                self.write_queued += queued;
                self.write_response.add(response);
            }
        }
    }

    /// A device that serves so many at a time gave one of its places for a service.
    pub fn side_by_side(&mut self, service: Nanos, places: u64) {
        self.busy -= u128::from(service.0 - service.0 / places);
    }

    /// The driver took note of the end of a service this long after it.
    pub fn late(&mut self, late: Nanos) {
        if late > Nanos::ZERO {
            self.late_count += 1;
            self.late_sum += u128::from(late.0);
            self.late_max = self.late_max.max(late);
        }
    }

    /// A request was handed down, or came back.
    pub fn below_changes(&mut self, now: Nanos, handed_down: bool) {
        self.below_time += u128::from(self.below) * u128::from(now.since(self.below_since).0);
        self.below_since = now;
        self.below = if handed_down { self.below + 1 } else { self.below - 1 };
    }

    /// Counts anew; what is below stays there.
    pub fn reset(&mut self, now: Nanos) {
        let (below, data_first) = (self.below, self.data_first);
        *self = Statistics { below, below_since: now, data_first, ..Statistics::default() };
    }

    /// Raises the maximum number of requests that are waiting or being served.
    pub fn queued(&mut self, depth: usize) {
        self.queue_depth_max = self.queue_depth_max.max(depth);
    }

    pub fn to_json(&self) -> Value {
        let late_mean = self.late_sum / u128::from(self.late_count.max(1));
        let data = self.data_first.map(|first| {
            let Reads { count, from_cache, from_stream } = self.data_reads;
            json!({ "first_sector": first.0, "reads": count, "hits": from_cache, "read_ahead_hits": from_stream })
        });
        json!({
            "requests": {
                "read": self.reads.count,
                "write": self.writes,
                "write_zeroes": self.zeroes,
                "flush": self.flushes,
            },
            "sectors": { "read": self.sectors_read, "written": self.sectors_written },
            "cache": {
                "hits": self.reads.from_cache,
                "read_ahead_hits": self.reads.from_stream,
                "delayed_writes": self.delayed,
            },
            "data": data,
            "queued_ms": { "read": millis(self.read_queued), "write": millis(self.write_queued) },
            "response_ms": {
                "read": response(&self.read_response),
                "write": response(&self.write_response),
                "flush": response(&self.flush_response),
            },
            "busy_ms": millis(self.busy),
            "seek_ms": millis(self.seek),
            "rotation_ms": millis(self.rotation),
            "transfer_ms": millis(self.transfer),
            "queue_depth_max": self.queue_depth_max,
            "below": { "now": self.below, "total_ms": millis(self.below_time) },
            "late": {
                "count": self.late_count,
                "mean_ms": millis(late_mean),
                "max_ms": self.late_max.as_millis_f64(),
            },
        })
    }
}

/// Null where there was none of the kind.
fn response(times: &Histogram) -> Value {
    if times.count() == 0 {
        return Value::Null;
    }
    json!({
        "mean": times.mean().as_millis_f64(),
        "p50": times.quantile(0.5).as_millis_f64(),
        "p90": times.quantile(0.9).as_millis_f64(),
        "p99": times.quantile(0.99).as_millis_f64(),
        "max": times.max().as_millis_f64(),
    })
}

fn millis(nanos: u128) -> f64 {
    nanos as f64 / 1e6
}
