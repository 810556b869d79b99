//! The meter: a layer that changes nothing and takes the response times of what passes. It stands on top of a served
//! stack, so its times are what the front-ends see.

use std::collections::BTreeMap;

use dcd_engine::{
    ActivateError, Control, Event, Geometry, Io, IoResult, Layer, Nanos, OpId, Outbox, Port, Ports,
    RequestId, SECTOR_BYTES,
};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

const BELOW: Port = Port(0);
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

const KINDS: [(Kind, &str); 4] =
    [(Kind::Read, "read"), (Kind::Write, "write"), (Kind::Flush, "flush"), (Kind::Other, "other")];

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
    below: Option<Geometry>,
    passing: BTreeMap<RequestId, Passing>,
    counts: [Counts; KINDS.len()],
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

impl Layer for Meter {
    fn handle(&mut self, now: Nanos, event: Event, out: &mut Outbox) {
        match event {
            Event::Request(request) => {
                let kind = match request.io {
                    Io::Read { .. } => Kind::Read,
                    Io::Write { .. } => Kind::Write,
                    Io::Flush => Kind::Flush,
                    Io::Discard { .. } | Io::WriteZeroes { .. } => Kind::Other,
                };
                let bytes =
                    request.io.extent().map_or(0, |extent| extent.sectors.saturating_mul(SECTOR_BYTES));
                self.passing.insert(request.id, Passing { kind, arrived: now, bytes });
                out.submit(BELOW, OpId(request.id.0), request.io);
            }
            Event::Completed { op, result } => {
                self.end(now, RequestId(op.0), &result);
                out.reply(RequestId(op.0), result);
            }
            Event::Control(Control::ResetStatistics) => self.counts = Default::default(),
            Event::Wake | Event::Control(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    fn geometry(&self) -> Geometry {
        self.below.expect("geometry is asked for after activation")
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        self.below = Some(below.geometry(BELOW));
        Ok(())
    }

    fn status(&self, _now: Nanos) -> Value {
        let mut status = json!({ "in_flight": self.passing.len() });
        for (kind, name) in KINDS {
            let counts = &self.counts[kind as usize];
            let times = &counts.times;
            let buckets: Vec<(f64, u64)> = times
                .iter_recorded()
                .map(|bucket| (millis(bucket.value_iterated_to()), bucket.count_at_value()))
                .collect();
            // The upper end of its bucket may lie above the longest.
            let quantile = |quantile: f64| millis(times.value_at_quantile(quantile).min(times.max()));
            status[name] = json!({
                "count": times.len(),
                "bytes": counts.bytes,
                "errors": counts.errors,
                "mean_ms": times.mean() / 1e6,
                "p50_ms": quantile(0.5),
                "p99_ms": quantile(0.99),
                "max_ms": millis(times.max()),
                "buckets": buckets,
            });
        }
        status
    }
}

fn millis(nanos: u64) -> f64 {
    Nanos(nanos).as_millis_f64()
}

#[cfg(test)]
mod tests {
    use dcd_engine::{Buf, Command, ErrorKind, IoError, Lba, Request};

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
        let status = meter.status(Nanos::ZERO);
        assert_eq!(status["read"]["count"], 3);
        assert!((status["read"]["mean_ms"].as_f64().unwrap() - 3.0).abs() < 0.03, "{status}");
        assert_eq!(status["read"]["bytes"], 8192);
        assert_eq!(status["read"]["errors"], 1);
        assert_eq!(status["in_flight"], 0);
        let millis = |field: &str| status["read"][field].as_f64().unwrap();
        assert!(millis("p50_ms") <= millis("p99_ms") && millis("p99_ms") <= millis("max_ms"), "{status}");
        meter.handle(Nanos::ZERO, Event::Control(Control::ResetStatistics), &mut Outbox::default());
        pass(&mut meter, 9, 30, 30, Ok(()));
        let status = meter.status(Nanos::ZERO);
        assert_eq!((&status["read"]["p50_ms"], &status["read"]["max_ms"]), (&0.0.into(), &0.0.into()));
        meter.handle(Nanos::ZERO, Event::Control(Control::ResetStatistics), &mut Outbox::default());
        assert_eq!(meter.status(Nanos::ZERO)["read"]["count"], 0);
    }
}
