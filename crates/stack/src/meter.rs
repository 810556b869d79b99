//! The meter: a layer that changes nothing and takes the response times of what passes. It stands on top of a served
//! stack, so its times are what the front-ends see.

use std::collections::BTreeMap;

use dcd_engine::layers::filter::{Filter, Seen};
use dcd_engine::{
    Io, IoResult, LayerStatus, MeterStatus, Nanos, OpId, Outbox, Request, RequestId, ResponseTimes,
    SECTOR_BYTES,
};
use hdrhistogram::Histogram;

/// Longer times count as this one.
const TIME_MAX: Nanos = Nanos::from_secs(3600);

/// What is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
    /// Discards and zeroes.
    Other,
}

/// Two digits: a percentile is at most 1 % off, and a histogram takes some 50 KiB.
const DIGITS: u8 = 2;

struct Counts {
    times: Histogram<u64>,
    bytes: u64,
    errors: u64,
}

impl Default for Counts {
    fn default() -> Counts {
        let times = Histogram::new_with_bounds(1_000, TIME_MAX.0, DIGITS).expect("the bounds are sound");
        Counts { times, bytes: 0, errors: 0 }
    }
}

struct Passing {
    kind: Kind,
    arrived: Nanos,
    bytes: u64,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Meter {
    seen: Seen,
    passing: BTreeMap<RequestId, Passing>,
    counts: [Counts; 4],
}

impl Meter {
    fn end(&mut self, now: Nanos, id: RequestId, result: &IoResult) {
        let passing = self.passing.remove(&id).expect("what ends has begun");
        let counts = &mut self.counts[passing.kind as usize];
        counts.times.saturating_record(now.since(passing.arrived).0);
        match result.status {
            Ok(()) => counts.bytes += passing.bytes,
            Err(_) => counts.errors += 1,
        }
    }
}

impl Filter for Meter {
    fn seen(&self) -> &Seen {
        &self.seen
    }

    fn pass(&mut self, now: Nanos, request: Request, out: &mut Outbox) {
        let kind = match request.io {
            Io::Read { .. } => Kind::Read,
            Io::Write { .. } => Kind::Write,
            Io::Flush => Kind::Flush,
            Io::Discard { .. } | Io::WriteZeroes { .. } => Kind::Other,
        };
        let bytes = request.io.extent().map_or(0, |extent| extent.sectors.saturating_mul(SECTOR_BYTES));
        self.passing.insert(request.id, Passing { kind, arrived: now, bytes });
        out.submit(Self::BELOW, OpId(request.id.0), request.io);
    }

    fn pass_back(&mut self, now: Nanos, id: RequestId, result: IoResult, out: &mut Outbox) {
        self.end(now, id, &result);
        out.reply(id, result);
    }

    fn reset_statistics(&mut self) {
        self.counts = Default::default();
    }

    fn report(&self) -> LayerStatus {
        let times = |kind: Kind| self.counts[kind as usize].response_times();
        LayerStatus::Meter(Box::new(MeterStatus {
            in_flight: self.passing.len(),
            read: times(Kind::Read),
            write: times(Kind::Write),
            flush: times(Kind::Flush),
            other: times(Kind::Other),
        }))
    }
}

impl Counts {
    fn response_times(&self) -> ResponseTimes {
        let times = &self.times;
        let bucket = |bucket: hdrhistogram::iterators::IterationValue<u64>| {
            (millis(bucket.value_iterated_to()), bucket.count_at_value())
        };
        // The upper end of its bucket may lie above the longest.
        let quantile = |quantile: f64| millis(times.value_at_quantile(quantile).min(times.max()));
        ResponseTimes {
            count: times.len(),
            bytes: self.bytes,
            errors: self.errors,
            mean_ms: times.mean() / 1e6,
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
            max_ms: millis(times.max()),
            buckets: times.iter_recorded().map(bucket).collect(),
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
        let mut out = Outbox::default();
        let io = Io::Read { at: Lba(0), buf: Buf::zeroed(4096) };
        let request = Request { id: RequestId(id), io };
        meter.handle(Nanos::from_millis(from), Event::Request(request), &mut out);
        let Some(Command::Submit { op, io, .. }) = out.commands.pop() else { panic!("it passes on") };
        let result = IoResult { buf: io.take_buf(), status };
        meter.handle(Nanos::from_millis(to), Event::Completed { op, result }, &mut out);
        assert!(matches!(out.commands.pop(), Some(Command::Reply { id: back, .. }) if back.0 == id));
    }

    #[test]
    fn times_bytes_and_errors_are_counted_and_start_again() {
        let mut meter = Meter::default();
        pass(&mut meter, 7, 10, 12, Ok(()));
        pass(&mut meter, 7, 20, 24, Ok(()));
        pass(&mut meter, 8, 20, 23, Err(IoError::new(ErrorKind::Medium)));
        let read = |meter: &Meter| {
            let LayerStatus::Meter(status) = meter.status(Nanos::ZERO) else { panic!("of a meter") };
            assert_eq!(status.in_flight, 0);
            status.read
        };
        let times = read(&meter);
        assert_eq!((times.count, times.bytes, times.errors), (3, 8192, 1));
        assert!((times.mean_ms - 3.0).abs() < 0.03, "{times:?}");
        assert!(times.p50_ms <= times.p99_ms && times.p99_ms <= times.max_ms, "{times:?}");
        meter.handle(Nanos::ZERO, Event::Control(Control::ResetStatistics), &mut Outbox::default());
        pass(&mut meter, 9, 30, 30, Ok(()));
        assert_eq!((read(&meter).p50_ms, read(&meter).max_ms), (0.0, 0.0));
        meter.handle(Nanos::ZERO, Event::Control(Control::ResetStatistics), &mut Outbox::default());
        assert_eq!(read(&meter).count, 0);
    }
}
