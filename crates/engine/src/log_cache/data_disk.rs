//! The data disk: the writes that bypass the log, and whether a flush of the data disk has covered them (rules 6
//! and 7).
//!
//! A write that bypasses the log is *in flight* until it has completed, and then in exactly one of these states until a flush has
//! covered it.
//!
//! | a range that bypassed the log | when | then |
//! |---|---|---|
//! | unflushed | its write has ended | the next flush covers it |
//! | in a flush | that flush is in flight | it is durable if the flush succeeds, and at risk if it fails |
//! | at risk | a flush failed that should have covered it | every flush of a client fails until the range has been written again |
//!
//! After a failed flush the disk may have dropped data that it could not write, and the next flush succeeds nevertheless. So no flush
//! is acknowledged while a range is at risk. A new write over the range, through the log or bypassing it, is covered by the next flush
//! like any other write, and ends the risk.

use super::fingerprint::CoveredLines;
use super::nearer::Nearer;
use super::streams::Streams;
use crate::layer::RequestId;
use crate::slab::Slab;
use crate::{Extent, Geometry, IoError, Lba, Nanos};

/// Maximum number of ranges in a set. Beyond it, neighbours are joined with the gap between them: the set may then cover too much, but
/// never too little.
const EXTENTS_MAX: usize = 1024;

/// A set of sectors.
#[derive(Clone, Debug, Default)]
struct Extents(Vec<Extent>);

impl Extents {
    fn insert(&mut self, extent: Extent) {
        let first = self.0.partition_point(|old| old.end() < extent.start);
        let last = self.0.partition_point(|old| old.start <= extent.end());
        let joined = self.0[first..last].iter().fold(extent, |sum, old| {
            let (start, end) = (sum.start.min(old.start), sum.end().max(old.end()));
            Extent::new(start, end - start)
        });
        self.0.splice(first..last, [joined]);
        if self.0.len() > EXTENTS_MAX {
            self.join_nearest();
        }
    }

    fn join_nearest(&mut self) {
        let gaps = self.0.windows(2).enumerate().map(|(index, pair)| (pair[1].start - pair[0].end(), index));
        let Some((_, index)) = gaps.min() else { return };
        let next = self.0.remove(index + 1);
        self.0[index].sectors = next.end() - self.0[index].start;
    }

    fn cut(&mut self, extent: Extent) {
        let first = self.0.partition_point(|old| old.end() <= extent.start);
        let last = self.0.partition_point(|old| old.start < extent.end());
        if first >= last {
            return;
        }
        let (head, tail) = (self.0[first].start, self.0[last - 1].end());
        let before = (head < extent.start).then(|| Extent::new(head, extent.start - head));
        let behind = (tail > extent.end()).then(|| Extent::new(extent.end(), tail - extent.end()));
        self.0.splice(first..last, before.into_iter().chain(behind));
    }

    fn overlaps(&self, extent: Extent) -> bool {
        let first = self.0.partition_point(|old| old.end() <= extent.start);
        self.0.get(first).is_some_and(|old| old.overlaps(extent))
    }

    fn take_from(&mut self, other: &mut Extents) {
        std::mem::take(&mut other.0).into_iter().for_each(|extent| self.insert(extent));
    }
}

/// A write that bypasses the log, in flight.
pub struct Bypass {
    pub id: RequestId,
    pub extent: Extent,
    /// Records that must be durable before the answer.
    pub seq: u64,
    /// Written durably (FUA).
    pub durable: bool,
    /// Sent when the log had failed.
    pub has_no_log: bool,
}

/// Reads of the data disk by clients, so that destaging can give way to them.
#[derive(Default)]
pub struct Readers {
    /// Reads in flight.
    reads: u64,
    last: Option<Nanos>,
    /// Reads that have completed since a destage operation was sent.
    since: u64,
}

impl Readers {
    /// Notes that a read is sent.
    pub const fn begin(&mut self) {
        self.reads += 1;
    }

    pub const fn end(&mut self, now: Nanos) {
        self.reads -= 1;
        self.since += 1;
        self.last = Some(now);
    }

    /// Notes that a destage operation is sent.
    pub const fn meet(&mut self) {
        self.since = 0;
    }

    /// Number of reads completed since the last destage operation was sent.
    pub const fn undisturbed(&self) -> u64 {
        self.since
    }

    /// Returns when the last read completed; `None` while one is in flight.
    pub fn last_of_all(&self) -> Option<Nanos> {
        self.last.filter(|_| self.reads == 0)
    }

    /// Returns for how long clients have read nothing; `None` if they never did.
    pub fn quiet(&self, now: Nanos) -> Option<Nanos> {
        if self.reads > 0 { Some(Nanos::ZERO) } else { self.last.map(|last| now.since(last)) }
    }
}

/// Standing of a data disk with its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskStanding {
    Served,
    /// Being added: its clients are refused until a start would know it.
    Joining,
    /// Being removed: its clients are refused, and its data is written back at full speed.
    Leaving,
}

/// See the module's documentation.
pub struct DataDisk {
    pub standing: DiskStanding,
    geometry: Geometry,
    bypasses: Slab<Bypass>,
    streams: Streams,
    /// The newest record with an invalidate entry.
    last_invalidate: u64,
    /// Completed writes that bypassed the log.
    completed: u64,
    /// Number of completed bypassing writes that a flush has covered.
    flushed: u64,
    /// Number of completed bypassing writes that the flush in flight will cover.
    flying: Option<u64>,
    unflushed: Extents,
    in_flush: Extents,
    /// Extents that the flush of the running batch will cover.
    in_batch: Extents,
    at_risk: Extents,
    error: Option<IoError>,
    last_failed: bool,
    /// A flush failed after the one that is in flight was sent.
    failed_since: bool,
    /// The fingerprint; what is destaged changes it.
    pub fingerprint: CoveredLines,
    pub readers: Readers,
    pub nearer: Nearer,
}

impl DataDisk {
    pub fn new(geometry: Geometry, fingerprint: CoveredLines) -> DataDisk {
        DataDisk {
            standing: DiskStanding::Served,
            geometry,
            bypasses: Slab::default(),
            streams: Streams::default(),
            last_invalidate: 0,
            completed: 0,
            flushed: 0,
            flying: None,
            unflushed: Extents::default(),
            in_flush: Extents::default(),
            in_batch: Extents::default(),
            at_risk: Extents::default(),
            error: None,
            last_failed: false,
            failed_since: false,
            fingerprint,
            readers: Readers::default(),
            nearer: Nearer::new(),
        }
    }

    /// Stands in a place that a disk has left.
    pub fn none() -> DataDisk {
        DataDisk::new(Geometry::plain(0), CoveredLines::none())
    }

    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub const fn last_invalidate(&self) -> u64 {
        self.last_invalidate
    }

    pub const fn invalidated(&mut self, seq: u64) {
        self.last_invalidate = seq;
    }

    pub fn is_bypassed(&self, extent: Extent) -> bool {
        !self.bypasses.is_empty() && self.bypasses.iter().any(|bypass| bypass.extent.overlaps(extent))
    }

    /// True when the extent is durable on the data disk, and no write that bypasses the log can still change it.
    pub fn is_settled(&self, extent: Extent) -> bool {
        let volatile = [&self.unflushed, &self.in_flush, &self.in_batch, &self.at_risk];
        !self.last_failed
            && !self.is_bypassed(extent)
            && !volatile.iter().any(|extents| extents.overlaps(extent))
    }

    pub fn nothing_bypasses(&self) -> bool {
        self.bypasses.is_empty()
    }

    /// True if a small write that begins here continues a large write that bypassed the log.
    pub fn continues_stream(&self, start: Lba) -> bool {
        self.streams.continues(start)
    }

    /// Ends all streams at a flush: a journal's commit record does not continue the writes that it commits.
    pub fn end_streams(&mut self) {
        self.streams.forget();
    }

    /// Notes a write that bypasses the log, and returns its key.
    pub fn send_bypass(&mut self, bypass: Bypass, is_large: bool) -> u64 {
        if is_large {
            self.streams.note(bypass.extent);
        }
        self.bypasses.insert(bypass)
    }

    /// Notes that a bypassing write has completed or failed, and returns it.
    pub fn end_bypass(&mut self, key: u64, ok: bool) -> Bypass {
        let bypass = self.bypasses.remove(key);
        self.ended(bypass.extent, ok, bypass.durable);
        bypass
    }

    /// Notes that a bypassing write has completed or failed (then the client is told). `durable`: no flush is needed.
    fn ended(&mut self, extent: Extent, ok: bool, durable: bool) {
        self.completed += 1;
        if ok && !durable {
            self.unflushed.insert(extent);
        }
        if ok {
            self.written_again(extent);
        }
    }

    /// Notes that newer data of these sectors is in the log, or has bypassed it.
    pub fn written_again(&mut self, extent: Extent) {
        self.at_risk.cut(extent);
        if self.at_risk.0.is_empty() {
            self.error = None;
        }
    }

    /// True when no flush has covered some completed write that bypassed the log.
    pub const fn is_owed(&self) -> bool {
        self.completed > self.flushed
    }

    /// Returns how many bypassing writes a client's flush must cover; zero if a flush has covered all.
    pub const fn owed(&self) -> u64 {
        if self.is_owed() { self.completed } else { 0 }
    }

    pub const fn flushed(&self) -> u64 {
        self.flushed
    }

    pub const fn is_flying(&self) -> bool {
        self.flying.is_some()
    }

    /// Notes that a flush is sent.
    pub fn begin(&mut self) {
        self.flying = Some(self.completed);
        self.failed_since = false;
        self.in_flush.take_from(&mut self.unflushed);
    }

    /// Notes that the flush of a batch is sent.
    pub fn begin_batch(&mut self) {
        self.in_batch.take_from(&mut self.unflushed);
    }

    /// Notes that the flush of a batch has completed, or failed. `failed_flush`: another flush failed while this one was in flight, or
    /// while its batch was written.
    pub fn batch_flush_completed(&mut self, status: Result<(), IoError>, failed_flush: bool) {
        match status {
            Ok(()) => {
                self.in_batch.0.clear();
                self.last_failed &= failed_flush;
            }
            Err(error) => self.failed(error),
        }
    }

    /// Notes that the flush of a client has completed, or failed. (Another failed flush may already have put the writes that it covers at
    /// risk.)
    pub fn flush_completed(&mut self, status: Result<(), IoError>) {
        let covered = self.flying.take().expect("a flush was in flight");
        match status {
            Ok(()) => {
                self.last_failed &= self.failed_since;
                self.flushed = self.flushed.max(covered);
                self.in_flush.0.clear();
            }
            Err(error) => self.failed(error),
        }
    }

    /// Notes that a flush has failed: completed writes are no longer owed, but at risk.
    fn failed(&mut self, error: IoError) {
        self.at_risk.take_from(&mut self.in_batch);
        self.at_risk.take_from(&mut self.in_flush);
        self.at_risk.take_from(&mut self.unflushed);
        self.flushed = self.completed;
        (self.last_failed, self.failed_since) = (true, true);
        if !self.at_risk.0.is_empty() {
            self.error = Some(error);
        }
    }

    /// True when the last flush failed, whether or not anything is at risk.
    pub const fn last_failed(&self) -> bool {
        self.last_failed
    }

    /// Error for which no flush may be acknowledged.
    pub const fn error(&self) -> Option<IoError> {
        self.error
    }

    pub fn at_risk(&self) -> &[Extent] {
        &self.at_risk.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockDevice;
    use crate::layer::ErrorKind;
    use crate::log_cache::testing::Ram;

    fn extent(start: u64, sectors: u64) -> Extent {
        Extent::new(Lba(start), sectors)
    }

    fn data_disk() -> DataDisk {
        let mut ram = Ram::new(1);
        let sectors = ram.geometry().sectors;
        let fingerprint = CoveredLines::read(&mut ram, sectors, &[0; 16]).unwrap();
        DataDisk::new(ram.geometry(), fingerprint)
    }

    #[test]
    fn a_set_of_sectors_agrees_with_a_naive_one() {
        let mut seed = 1u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let (mut set, mut naive) = (Extents::default(), [false; 100]);
        for _ in 0..20_000 {
            let start = draw(90);
            let part = extent(start, 1 + draw(10));
            let insert = draw(2) == 0;
            if insert {
                set.insert(part)
            } else {
                set.cut(part)
            }
            naive[start as usize..part.end().0 as usize].fill(insert);
            let held: Vec<bool> =
                (0..100).map(|at| set.0.iter().any(|old| old.overlaps(extent(at, 1)))).collect();
            assert_eq!(held, naive);
            assert!(set.0.windows(2).all(|pair| pair[0].end() < pair[1].start), "apart, and in order");
        }
    }

    #[test]
    fn a_set_that_is_full_joins_what_is_nearest() {
        let mut set = Extents::default();
        for index in 0..=EXTENTS_MAX as u64 {
            set.insert(extent(index * 100 + u64::from(index == 7) * 95, 1));
        }
        assert_eq!(set.0.len(), EXTENTS_MAX);
        assert!(set.0.contains(&extent(795, 6)), "7 and 8 lie nearest");
    }

    #[test]
    fn what_a_failed_flush_should_have_covered_is_at_risk_until_it_is_written_again() {
        let mut flush = data_disk();
        flush.ended(extent(0, 128), true, false);
        flush.ended(extent(500, 128), false, false);
        flush.ended(extent(700, 8), true, true);
        flush.begin();
        flush.ended(extent(1000, 8), true, false);
        flush.flush_completed(Err(IoError::new(ErrorKind::Medium)));
        assert_eq!(flush.at_risk(), [extent(0, 128), extent(1000, 8)]);
        flush.written_again(extent(0, 64));
        flush.ended(extent(1000, 8), true, false);
        assert!(flush.error().is_some() && flush.is_owed());
        flush.ended(extent(64, 64), true, false);
        assert!(flush.error().is_none() && flush.is_owed(), "the next flush covers what was written again");
        flush.begin();
        flush.flush_completed(Ok(()));
        assert!(!flush.is_owed() && flush.at_risk().is_empty() && !flush.last_failed());
    }

    #[test]
    fn what_the_flush_of_a_batch_has_covered_is_not_at_risk_later() {
        let mut flush = data_disk();
        flush.ended(extent(0, 8), true, false);
        flush.begin_batch();
        flush.ended(extent(100, 8), true, false);
        flush.batch_flush_completed(Ok(()), false);
        flush.batch_flush_completed(Err(IoError::new(ErrorKind::Medium)), false);
        assert_eq!(flush.at_risk(), [extent(100, 8)]);
        // One that was sent before another failed says nothing of what that one has lost.
        flush.begin();
        flush.batch_flush_completed(Err(IoError::new(ErrorKind::Medium)), false);
        flush.flush_completed(Ok(()));
        assert!(flush.last_failed());
    }
}
