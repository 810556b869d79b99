//! The write cache: RAM before one or more disks, a write-behind cache and a read cache (Biswas, Ramakrishnan and Towsley,
//! 1993). Where the RAM is non-volatile a write is safe as soon as it is in it; where it is not, a flush destages.
//!
//! | module    | what                                                                                |
//! |-----------|-------------------------------------------------------------------------------------|
//! | `config`  | what can be set                                                                     |
//! | `pool`    | the blocks of one cache: recency, evictions                                         |
//! | `dirty`   | its dirty blocks by region                                                          |
//! | `stow`    | the two queues of the policy of that name                                           |
//! | `order`   | the dirty regions in the order of a policy, in chains (`chain`) or sorted (`sorted`) |
//! | `store`   | their bytes                                                                         |
//! | `regions` | which blocks lie together on a disk, and what the arm can do                        |
//! | `clients` | requests of clients: hits, misses, writes that wait for room, flushes               |
//! | `disk`    | what each disk does next: its queue, when and what it purges                        |
//! | `operation` | reads with what they take along, purges, what bypasses: their commands            |
//! | `metrics` | the paper's counts                                                                  |
//!
//! A write is put into the cache and answered. It overwrites a dirty block of the same address, which is the point of it
//! all. When dirty blocks are purged, and which first, is for the policies in `destage`; each *purge* writes all dirty
//! blocks of one region. A read that finds nothing goes to the disk, and may take dirty blocks along (*piggybacking*).
//! If no slot is free or clean, a write waits, and the next purge is *immediate*: it takes its turn among the reads.
//!
//! Several disks are one space of addresses, one after the other.
//!
//! A purge writes durably (FUA), so a block that became clean needs no flush of the disk. It is clean only if nobody wrote it meanwhile.
//! If a block is written while it is being read, the cache does not keep what was read. What bypasses the cache runs alone on its disk,
//! and is durable before an older copy in the cache is dropped. A region that cannot be written *rests* for a second, and the others are
//! purged: a flush that waits for nothing else fails, and a stop goes on trying.

mod chain;
mod clients;
mod config;
mod dirty;
mod disk;
mod metrics;
mod operation;
mod order;
mod pool;
mod regions;
mod sorted;
mod stack_kind;
mod status;
mod store;
pub mod stow;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use dcd_engine::machine::Lifecycle;
use dcd_engine::{
    ActivateError, AnyStatus, Control, Cx, ErrorKind, Event, Geometry, IoError, IoResult, LINE_BYTES, Layer,
    Nanos, Port, Ports, Report, SECTOR_BYTES, Slab,
};
use dcd_stack::{WriteCacheState, WriteCacheStatus};
use serde_json::Value;

pub use config::{DYNAMIC_LOW, OnWrite, Piggyback, RegionUnit, WriteCacheConfig};
pub use dirty::{DirtyRegion, RegionId};
pub use metrics::Metrics;
pub use order::{Order, Position};
pub use pool::{BlockId, Pool, Settled, SlotIndex};
pub use regions::{Arm, Regions, Stretch};
pub use stack_kind::KIND;
use status::Details;

use clients::{Unanswered, Waiter, WaitingFor};
use disk::Disk;
use operation::{CacheFlight, Operation};
use store::Store;

/// Why a write cache cannot stand on its disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteCacheError {
    /// The cache's blocks are not of 512 or 4096 bytes, or smaller than the disk's.
    #[error(
        "a write cache with blocks of {block_bytes} bytes cannot stand on disk {disk}, whose blocks have {disk_bytes} bytes: set `block` to \
         512 or 4096, and not less than that"
    )]
    Blocks { block_bytes: u32, disk: usize, disk_bytes: u32 },
    #[error("the map of disk {disk} has {mapped} sectors, and the disk {sectors}")]
    Map { disk: usize, mapped: u64, sectors: u64 },
}

/// A disk under the cache: how its blocks lie together, and its arm where that can be seen.
pub struct DiskMap {
    pub regions: Regions,
    pub arm: Option<Box<dyn Arm>>,
}

/// The caches that some disks share.
struct Share {
    writes: Pool,
    write_bytes: Store,
    /// None: the one cache holds both.
    reads: Option<Pool>,
    read_bytes: Store,
    /// Pieces of write requests that wait for room, in order.
    stalled: VecDeque<clients::ClientPiece>,
    /// An immediate purge is in a queue or under way.
    purging_now: bool,
    /// Purging has begun at the high mark and not reached the low one.
    triggered: bool,
}

impl Share {
    /// The dirty part of what there is room for.
    fn utilisation(&self) -> f64 {
        self.writes.dirty() as f64 / self.writes.capacity() as f64
    }
}

/// See the module's documentation.
pub struct WriteCache {
    config: WriteCacheConfig,
    maps: Vec<DiskMap>,
    geometry: Option<Geometry>,
    disks: Vec<Disk>,
    shares: Vec<Share>,
    requests: Slab<Unanswered>,
    operations: Slab<Operation>,
    flights: Slab<CacheFlight>,
    /// Flushes and durable writes that wait until something is purged.
    waiters: Vec<Waiter>,
    high_mark: f64,
    low_mark: f64,
    /// Blocks read and written since the marks were set.
    interval: (u64, u64, u64),
    foreground: u64,
    last_activity: Nanos,
    waiters_so_far: u64,
    /// No more requests are taken; the end is told once those that were taken are answered.
    life: Lifecycle,
    metrics: Metrics,
    per_disk: Vec<Metrics>,
    writer: u32,
    deadline: Option<Nanos>,
}

impl WriteCache {
    /// A cache over the disks on ports 0, 1, ...
    pub fn new(config: WriteCacheConfig, maps: Vec<DiskMap>) -> WriteCache {
        assert!(!maps.is_empty(), "a write cache has a disk");
        WriteCache {
            high_mark: f64::from(config.high_mark) / 100.0,
            low_mark: f64::from(config.low_mark) / 100.0,
            config,
            maps,
            geometry: None,
            disks: Vec::new(),
            shares: Vec::new(),
            requests: Slab::default(),
            operations: Slab::default(),
            flights: Slab::default(),
            waiters: Vec::new(),
            interval: (0, 0, 0),
            foreground: 0,
            last_activity: Nanos::ZERO,
            waiters_so_far: 0,
            life: Lifecycle::Serving,
            metrics: Metrics::default(),
            per_disk: Vec::new(),
            writer: 0,
            deadline: None,
        }
    }

    /// The counts of all disks together.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn block_sectors(&self) -> u64 {
        u64::from(self.config.block_bytes) / SECTOR_BYTES
    }

    /// The caches of a disk.
    fn share_of(&self, disk: u32) -> usize {
        if self.config.partitioned { disk as usize } else { 0 }
    }

    fn count(&mut self, disk: u32, change: impl Fn(&mut Metrics)) {
        change(&mut self.metrics);
        change(&mut self.per_disk[disk as usize]);
    }

    fn make_shares(&mut self) {
        let shares = if self.config.partitioned { self.disks.len() } else { 1 };
        let blocks = |bytes: u64| (bytes / shares as u64 / u64::from(self.config.block_bytes)) as usize;
        let block_bytes = self.config.block_bytes as usize;
        for _ in 0..shares {
            let writes = blocks(self.config.write_bytes);
            let reads = blocks(self.config.read_bytes);
            let maps = self.disks.iter().map(|disk| disk.map.regions.clone());
            let order = Order::new(self.config.what, self.block_sectors(), maps);
            let pool = Pool::new(writes).with_order(order);
            self.shares.push(Share {
                writes: if self.config.single { pool.marking_targets() } else { pool },
                write_bytes: Store::new(writes, block_bytes),
                reads: (!self.config.single).then(|| Pool::new(reads)),
                read_bytes: Store::new(reads, block_bytes),
                stalled: VecDeque::new(),
                purging_now: false,
                triggered: false,
            });
        }
    }

    fn control(&mut self, control: Control, cx: &mut Cx) {
        match control {
            Control::Drain if self.life.serves() => self.wait_until_safe(WaitingFor::Report(Report::Drained)),
            Control::DrainCancel if self.life.serves() => self.cancel_drains(),
            Control::Stop => self.life = Lifecycle::Ending,
            Control::ResetStatistics => {
                self.metrics = Metrics::default();
                self.per_disk.fill(Metrics::default());
            }
            Control::Drain
            | Control::DrainCancel
            | Control::LogFailureRecorded
            | Control::Settings(_)
            | Control::HoldDestage(_)
            | Control::Array(_)
            | Control::Disk(_)
            | Control::DistrustCopy(_) => {}
        }
        self.step(cx);
    }

    /// Goes on with all that can be done now; runs after every event.
    fn step(&mut self, cx: &mut Cx) {
        self.deadline = None;
        self.end_rests(cx.now);
        for disk in 0..self.disks.len() as u32 {
            self.run_disk(disk, cx);
        }
        self.finish_waiters(cx);
        // The last request may have been answered just now.
        if self.life == Lifecycle::Ending && self.requests.is_empty() {
            self.life = Lifecycle::Flushing;
            self.wait_until_safe(WaitingFor::Report(Report::Stopped));
            for disk in 0..self.disks.len() as u32 {
                self.run_disk(disk, cx);
            }
            self.finish_waiters(cx);
        }
        if self.life == Lifecycle::Flushing && self.waiters.is_empty() {
            self.life = Lifecycle::Stopped;
        }
    }
}

impl Layer for WriteCache {
    fn handle(&mut self, event: Event, cx: &mut Cx) {
        match event {
            Event::Request(request) if !self.life.serves() => {
                let error = IoError::new(ErrorKind::Shutdown);
                cx.reply(request.id, IoResult::err(request.io.take_buf(), error));
            }
            Event::Request(request) => {
                self.accept(request, cx);
                self.step(cx);
            }
            Event::Completed { op, result } => {
                self.completed(op.0, result, cx);
                self.step(cx);
            }
            Event::Wake => self.step(cx),
            Event::Control(control) => self.control(control, cx),
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.deadline
    }

    fn check(&self) {
        // The time of a check grows with the cache; small ones, as in tests, are checked whole.
        for share in self.shares.iter().filter(|share| share.writes.capacity() <= 4096) {
            share.writes.check();
            if let Some(reads) = &share.reads {
                reads.check();
                assert_eq!(reads.dirty(), 0, "the read cache holds nothing that the disk lacks");
            }
        }
        if self.shares.iter().all(|share| share.writes.capacity() <= 4096) {
            self.check_waiters();
        }
        for disk in &self.disks {
            assert!(disk.operations > 0 || disk.queue.is_empty(), "a disk rests while requests wait");
        }
    }

    fn geometry(&self) -> Geometry {
        self.geometry.expect("geometry is asked for after activation")
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        let block_bytes = self.config.block_bytes;
        let mut geometry = below.geometry(Port(0));
        (geometry.sectors, geometry.copies) = (0, 1);
        if self.maps.len() > 1 {
            geometry.stripes = None;
        }
        let mut first_sector = 0;
        for (port, map) in std::mem::take(&mut self.maps).into_iter().enumerate() {
            let this = below.geometry(Port(port));
            let block = block_bytes.max(this.logical_block_bytes);
            if ![SECTOR_BYTES as u32, LINE_BYTES as u32].contains(&block_bytes) || block != block_bytes {
                let disk_bytes = this.logical_block_bytes;
                return Err(WriteCacheError::Blocks { block_bytes, disk: port, disk_bytes }.into());
            }
            let sectors = this.sectors - this.sectors % (u64::from(block_bytes) / SECTOR_BYTES);
            if map.regions.sectors() < sectors {
                let mapped = map.regions.sectors();
                return Err(WriteCacheError::Map { disk: port, mapped, sectors }.into());
            }
            geometry.sectors += sectors;
            geometry.read_only |= this.read_only;
            geometry.discards = geometry.discards.min(this.discards);
            geometry.fast_zeroes &= this.fast_zeroes;
            geometry.rotational |= this.rotational;
            self.disks.push(Disk::new(Port(port), first_sector, sectors, map));
            first_sector += sectors;
        }
        geometry.logical_block_bytes = block_bytes;
        geometry.physical_block_bytes = geometry.physical_block_bytes.max(block_bytes);
        geometry.volatile_cache = true;
        self.geometry = Some(geometry);
        self.per_disk = vec![Metrics::default(); self.disks.len()];
        self.make_shares();
        Ok(())
    }

    fn status(&self, _now: Nanos) -> Box<dyn AnyStatus> {
        let blocks = |pool: &Pool| pool.len() as u64 * u64::from(self.config.block_bytes);
        let dirty: u64 = self.shares.iter().map(|share| share.writes.dirty() as u64).sum();
        let details = Details {
            write_bytes: self.config.write_bytes,
            write_bytes_used: self.shares.iter().map(|share| blocks(&share.writes)).sum(),
            read_bytes_used: self.shares.iter().filter_map(|share| share.reads.as_ref()).map(blocks).sum(),
            high_mark: self.high_mark,
            low_mark: self.low_mark,
            writes_with_caching_percent: self.metrics.writes_with_caching(),
            reads_with_caching_percent: self.metrics.reads_with_caching(),
            io_stall_percent: self.metrics.io_stall(),
            piggyback_success_percent: self.metrics.piggyback_success(),
            counts: self.metrics,
            counts_per_disk: self.per_disk.clone(),
        };
        let Ok(Value::Object(more)) = serde_json::to_value(details) else {
            unreachable!("a status is plain data")
        };
        Box::new(WriteCacheStatus {
            state: if dirty > 0 { WriteCacheState::Dirty } else { WriteCacheState::Clean },
            dirty_bytes: dirty * u64::from(self.config.block_bytes),
            non_volatile: self.config.non_volatile,
            more,
        })
    }

    fn has_work(&self, now: Nanos) -> bool {
        let is_asked =
            !self.requests.is_empty() || !self.waiters.is_empty() || self.life == Lifecycle::Ending;
        is_asked
            || !self.operations.is_empty()
            || (0..self.disks.len()).any(|disk| self.purges(now, disk as u32))
    }
}
