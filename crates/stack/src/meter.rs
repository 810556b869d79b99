//! The meter: a layer that changes nothing and measures the response times of the requests that pass. It stands on top of a served
//! stack, so its times are what the front-ends see.
//!
//! A request is counted once, in the newest of a few slots of ten seconds. A slot that is older than a minute is added to the
//! total of all older ones.
//!
//! The clock is read once for a batch of requests. A request that is answered in its own batch has taken the time until the next reading,
//! which follows immediately: the meter asks to be woken then.

use std::collections::{BTreeMap, VecDeque};

use dcd_engine::layers::filter::{Filter, SeenGeometry};
use dcd_engine::{AnyStatus, Cx, Io, IoResult, Nanos, OpId, Request, RequestId, SECTOR_BYTES};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longer times count as this one.
const TIME_MAX: Nanos = Nanos::from_secs(3600);

/// Requests that have passed a meter, as the layers above saw them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MeterStatus {
    pub in_flight: usize,
    /// Length of the span that `recent` covers: about a minute, less after the start.
    pub recent_seconds: f64,
    pub read: ResponseTimes,
    pub write: ResponseTimes,
    pub flush: ResponseTimes,
    /// Discards and zeroes.
    pub other: ResponseTimes,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResponseTimes {
    pub count: u64,
    pub bytes: u64,
    pub errors: u64,
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
    /// The upper end of each bucket in milliseconds, and how many fell into it.
    pub buckets: Vec<(f64, u64)>,
    pub recent: RecentTimes,
}

/// Requests of one kind that were answered in the last [`MeterStatus::recent_seconds`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecentTimes {
    pub count: u64,
    pub bytes: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

/// Kinds of requests that are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MeteredKind {
    Read,
    Write,
    Flush,
    /// Discards and zeroes.
    Other,
}

/// Two digits: a percentile is at most 1 % off, and a histogram takes some 28 KiB.
const DIGITS: u8 = 2;
/// Length and number of slots: recent figures are at most a minute old.
const SLOT: Nanos = Nanos::from_secs(10);
const SLOTS: u64 = 6;

struct MeterCounts {
    times: Histogram<u64>,
    bytes: u64,
    errors: u64,
}

impl Default for MeterCounts {
    fn default() -> MeterCounts {
        let times = Histogram::new_with_bounds(1_000, TIME_MAX.0, DIGITS).expect("the bounds are sound");
        MeterCounts { times, bytes: 0, errors: 0 }
    }
}

impl MeterCounts {
    fn add(&mut self, other: &MeterCounts) {
        self.times.add(&other.times).expect("all have the same bounds");
        self.bytes += other.bytes;
        self.errors += other.errors;
    }

    /// Empties the histogram: its own `reset` keeps the maximum.
    fn clear(&mut self) {
        if !self.times.is_empty() {
            *self = MeterCounts::default();
        }
    }
}

/// Requests of each kind.
type Kinds = [MeterCounts; 4];

struct Passing {
    kind: MeteredKind,
    arrived: Nanos,
    bytes: u64,
}

/// See the module's documentation.
pub struct Meter {
    seen: SeenGeometry,
    disks: usize,
    passing: BTreeMap<RequestId, Passing>,
    /// Requests that were answered while the clock stood still: their kinds and arrivals.
    at_once: Vec<(MeteredKind, Nanos)>,
    /// Requests that completed before the oldest slot.
    older: Kinds,
    /// The newest last.
    slots: VecDeque<Kinds>,
    /// End of the newest slot.
    slot_ends: Nanos,
    /// Time when counting began.
    since: Nanos,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter {
            seen: SeenGeometry::default(),
            disks: 1,
            passing: BTreeMap::new(),
            at_once: Vec::new(),
            older: Kinds::default(),
            slots: (0..SLOTS).map(|_| Kinds::default()).collect(),
            slot_ends: SLOT,
            since: Nanos::ZERO,
        }
    }
}

impl Meter {
    /// A meter over so many disks, which counts their requests together.
    pub fn of_disks(disks: usize) -> Meter {
        Meter { disks, ..Meter::default() }
    }

    fn end(&mut self, now: Nanos, id: RequestId, result: &IoResult) {
        let Passing { kind, arrived, bytes } = self.passing.remove(&id).expect("what ends has begun");
        let counts = self.newest(now, kind);
        match result.status {
            Ok(()) => counts.bytes += bytes,
            Err(_) => counts.errors += 1,
        }
        match now == arrived {
            true => self.at_once.push((kind, arrived)),
            false => counts.times.saturating_record(now.since(arrived).0),
        }
    }

    /// The counts of the slot that `now` is in.
    fn newest(&mut self, now: Nanos, kind: MeteredKind) -> &mut MeterCounts {
        if now >= self.slot_ends {
            self.turn(now);
        }
        &mut self.slots.back_mut().expect("there are always slots")[kind as usize]
    }

    /// Number of slots that have ended by now, including the newest.
    fn ended(&self, now: Nanos) -> u64 {
        match now < self.slot_ends {
            true => 0,
            false => now.since(self.slot_ends).0 / SLOT.0 + 1,
        }
    }

    /// Begins the slot that `now` is in.
    fn turn(&mut self, now: Nanos) {
        let ended = self.ended(now);
        for _ in 0..ended.min(SLOTS) {
            let mut oldest = self.slots.pop_front().expect("there are always slots");
            for (older, oldest) in self.older.iter_mut().zip(&mut oldest) {
                older.add(oldest);
                oldest.clear();
            }
            self.slots.push_back(oldest);
        }
        self.slot_ends = Nanos(self.slot_ends.0 + ended * SLOT.0);
    }
}

impl Filter for Meter {
    fn seen(&self) -> &SeenGeometry {
        &self.seen
    }

    fn disks_below(&self) -> usize {
        self.disks
    }

    fn pass(&mut self, request: Request, cx: &mut Cx) {
        let kind = match request.io {
            Io::Read { .. } | Io::ReadCopy { .. } => MeteredKind::Read,
            Io::Write { .. } | Io::WriteCopy { .. } => MeteredKind::Write,
            Io::Flush => MeteredKind::Flush,
            Io::Discard { .. } | Io::WriteZeroes { .. } => MeteredKind::Other,
        };
        let bytes = request.io.extent().map_or(0, |extent| extent.sectors.saturating_mul(SECTOR_BYTES));
        self.passing.insert(request.id, Passing { kind, arrived: cx.now, bytes });
        cx.submit(Self::below(request.disk), OpId(request.id.0), request.io);
    }

    fn pass_back(&mut self, id: RequestId, result: IoResult, cx: &mut Cx) {
        self.end(cx.now, id, &result);
        cx.reply(id, result);
    }

    fn reset_statistics(&mut self, now: Nanos) {
        self.slots.iter_mut().flatten().chain(&mut self.older).for_each(MeterCounts::clear);
        self.at_once.clear();
        self.since = now;
    }

    fn deadline(&self) -> Option<Nanos> {
        self.at_once.first().map(|(_, arrived)| *arrived)
    }

    fn wake(&mut self, now: Nanos) {
        let mut at_once = std::mem::take(&mut self.at_once);
        for (kind, arrived) in at_once.drain(..) {
            self.newest(now, kind).times.saturating_record(now.since(arrived).0);
        }
        self.at_once = at_once;
    }

    fn report(&self, now: Nanos) -> Box<dyn AnyStatus> {
        let ended = self.ended(now);
        let newest_ends = self.slot_ends.0 + ended * SLOT.0;
        let begun = newest_ends.saturating_sub(SLOTS * SLOT.0).max(self.since.0);
        let times = |kind: MeteredKind| {
            let mut recent = MeterCounts::default();
            let mut all = MeterCounts::default();
            all.add(&self.older[kind as usize]);
            for (place, slot) in self.slots.iter().enumerate() {
                let into = if (place as u64) < ended { &mut all } else { &mut recent };
                into.add(&slot[kind as usize]);
            }
            all.add(&recent);
            all.response_times(recent.recent_times())
        };
        Box::new(MeterStatus {
            in_flight: self.passing.len(),
            recent_seconds: Nanos(now.0.saturating_sub(begun)).as_secs_f64(),
            read: times(MeteredKind::Read),
            write: times(MeteredKind::Write),
            flush: times(MeteredKind::Flush),
            other: times(MeteredKind::Other),
        })
    }
}

impl MeterCounts {
    /// Returns a quantile, at most the longest time: the upper end of a bucket may lie above that.
    fn quantile_ms(&self, quantile: f64) -> f64 {
        millis(self.times.value_at_quantile(quantile).min(self.times.max()))
    }

    fn recent_times(&self) -> RecentTimes {
        RecentTimes {
            count: self.times.len(),
            bytes: self.bytes,
            p50_ms: self.quantile_ms(0.5),
            p99_ms: self.quantile_ms(0.99),
        }
    }

    fn response_times(&self, recent: RecentTimes) -> ResponseTimes {
        let times = &self.times;
        let bucket = |bucket: hdrhistogram::iterators::IterationValue<u64>| {
            (millis(bucket.value_iterated_to()), bucket.count_at_value())
        };
        ResponseTimes {
            count: times.len(),
            bytes: self.bytes,
            errors: self.errors,
            mean_ms: times.mean() / 1e6,
            p50_ms: self.quantile_ms(0.5),
            p99_ms: self.quantile_ms(0.99),
            max_ms: millis(times.max()),
            buckets: times.iter_recorded().map(bucket).collect(),
            recent,
        }
    }
}

fn millis(nanos: u64) -> f64 {
    Nanos(nanos).as_millis_f64()
}

#[cfg(test)]
mod tests {
    use dcd_engine::{Buf, Command, Control, ErrorKind, Event, IoError, Layer, Lba};

    use super::*;

    fn pass(meter: &mut Meter, id: u64, from: u64, to: u64, status: Result<(), IoError>) {
        let mut cx = Cx::default();
        let io = Io::Read { at: Lba(0), buf: Buf::zeroed(4096) };
        let request = Request { id: RequestId(id), disk: 0, io };
        meter.handle(Event::Request(request), cx.at(Nanos::from_millis(from)));
        let Some(Command::Submit { op, io, .. }) = cx.commands.pop() else { panic!("it passes on") };
        let result = IoResult { buf: io.take_buf(), status };
        meter.handle(Event::Completed { op, result }, cx.at(Nanos::from_millis(to)));
        assert!(matches!(cx.commands.pop(), Some(Command::Reply { id: back, .. }) if back.0 == id));
    }

    #[test]
    fn times_bytes_and_errors_are_counted_and_start_again() {
        let mut meter = Meter::default();
        pass(&mut meter, 7, 10, 12, Ok(()));
        pass(&mut meter, 7, 20, 24, Ok(()));
        pass(&mut meter, 8, 20, 23, Err(IoError::new(ErrorKind::Medium)));
        let read = |meter: &Meter| {
            let status = meter.status(Nanos::ZERO);
            let status = status.get::<MeterStatus>().expect("of a meter");
            assert_eq!(status.in_flight, 0);
            status.read.clone()
        };
        let times = read(&meter);
        assert_eq!((times.count, times.bytes, times.errors), (3, 8192, 1));
        assert!((times.mean_ms - 3.0).abs() < 0.03, "{times:?}");
        assert!(times.p50_ms <= times.p99_ms && times.p99_ms <= times.max_ms, "{times:?}");
        meter.handle(Event::Control(Control::ResetStatistics), &mut Cx::default());
        // The clock of its batch has not moved: it counts once the clock is read again, and that is asked for.
        pass(&mut meter, 9, 30, 30, Ok(()));
        assert_eq!((read(&meter).count, meter.next_deadline()), (0, Some(Nanos::from_millis(30))));
        meter.handle(Event::Wake, Cx::default().at(Nanos(30_020_000)));
        assert_eq!((read(&meter).count, read(&meter).bytes, meter.next_deadline()), (1, 4096, None));
        assert!((read(&meter).max_ms - 0.02).abs() < 0.001, "{:?}", read(&meter));
        meter.handle(Event::Control(Control::ResetStatistics), &mut Cx::default());
        assert_eq!(read(&meter).count, 0);
    }

    #[test]
    fn the_last_minute_is_told_apart_and_nothing_is_counted_twice() {
        let mut meter = Meter::default();
        let at = |meter: &Meter, seconds: u64| {
            let status = meter.status(Nanos::from_secs(seconds));
            let status = status.get::<MeterStatus>().expect("of a meter");
            (status.read.count, status.read.recent.count, status.recent_seconds, status.read.recent)
        };
        // A request every second; it takes a millisecond for each second that has passed.
        for second in 0..100 {
            pass(&mut meter, second, second * 1000, second * 1000 + second.max(1), Ok(()));
        }
        let (count, recent, seconds, times) = at(&meter, 99);
        assert_eq!((count, recent, seconds), (100, 60, 59.0));
        assert_eq!(times.bytes, 60 * 4096);
        assert!((times.p50_ms - 69.0).abs() < 1.5 && (times.p99_ms - 99.0).abs() < 1.5, "{times:?}");
        // Time passes also where nothing is answered.
        assert_eq!(at(&meter, 125), (100, 30, 55.0, at(&meter, 125).3));
        assert_eq!(at(&meter, 1_000_000), (100, 0, 50.0, RecentTimes::default()));
        pass(&mut meter, 1, 2_000_000_000, 2_000_000_001, Ok(()));
        assert_eq!(at(&meter, 2_000_003).1, 1);
        assert_eq!(at(&meter, 2_000_003).0, 101);
        meter.handle(Event::Control(Control::ResetStatistics), Cx::default().at(Nanos::from_secs(2_000_010)));
        assert_eq!(at(&meter, 2_000_015), (0, 0, 5.0, RecentTimes::default()));
    }
}
