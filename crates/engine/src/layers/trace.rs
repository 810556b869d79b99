//! A trace layer: passes everything on unchanged, and records each operation: its time, kind, place and latency.
//!
//! The newest records are kept in a ring, so that a long run costs no more memory than a short one; a sink, if there is one, gets every
//! record. Requests are served even if they cannot be recorded.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::layer::{Cx, Durability, Io, IoKind, IoResult, OpId, Request, RequestId};
use crate::layers::filter::{Filter, SeenGeometry};
use crate::{AnyStatus, Extent, Nanos};

/// A completed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TraceRecord {
    /// The time of its arrival.
    pub at: Nanos,
    pub operation: IoKind,
    pub extent: Option<Extent>,
    /// True if the operation had to be durable.
    pub durable: bool,
    /// Time from arrival to answer.
    pub latency: Nanos,
    pub ok: bool,
}

/// A receiver of every record.
pub trait Sink {
    /// Takes a record immediately: requests must not wait for it.
    fn take(&mut self, record: &TraceRecord);

    /// Status of the sink.
    fn status(&self) -> SinkStatus;
}

/// A file that gets every record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkStatus {
    pub path: String,
    pub recorded: u64,
    pub dropped: u64,
    /// The error that ended writing.
    pub error: Option<String>,
}

/// The state of a trace layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceStatus {
    pub operations: u64,
    pub failed: u64,
    pub in_flight: usize,
    pub file: Option<SinkStatus>,
    pub newest: Vec<TraceRecord>,
}

/// See the module's documentation.
pub struct Trace {
    kept_max: usize,
    records: VecDeque<TraceRecord>,
    total: u64,
    failed: u64,
    in_flight: BTreeMap<RequestId, TraceRecord>,
    sink: Option<Box<dyn Sink>>,
    seen: SeenGeometry,
}

impl Trace {
    /// Keeps the newest `kept_max` records.
    pub const fn new(kept_max: usize) -> Trace {
        Trace {
            kept_max,
            records: VecDeque::new(),
            total: 0,
            failed: 0,
            in_flight: BTreeMap::new(),
            sink: None,
            seen: SeenGeometry::new(Vec::new()),
        }
    }

    pub fn with_sink(kept_max: usize, sink: Box<dyn Sink>) -> Trace {
        Trace { sink: Some(sink), ..Trace::new(kept_max) }
    }

    /// The newest records, in the order of their answers, oldest first.
    pub fn records(&self) -> impl Iterator<Item = &TraceRecord> {
        self.records.iter()
    }

    fn begin(&mut self, now: Nanos, id: RequestId, io: &Io) {
        let durable = match io {
            Io::Write { durability, .. }
            | Io::WriteCopy { durability, .. }
            | Io::WriteZeroes { durability, .. } => *durability == Durability::Durable,
            Io::Read { .. } | Io::ReadCopy { .. } | Io::Flush | Io::Discard { .. } => false,
        };
        let record = TraceRecord {
            at: now,
            operation: io.kind(),
            extent: io.extent(),
            durable,
            latency: Nanos::ZERO,
            ok: true,
        };
        self.in_flight.insert(id, record);
    }

    fn end(&mut self, now: Nanos, id: RequestId, ok: bool) {
        let mut record = self.in_flight.remove(&id).expect("what is answered was asked");
        record.latency = now.since(record.at);
        record.ok = ok;
        self.total += 1;
        self.failed += u64::from(!ok);
        if let Some(sink) = &mut self.sink {
            sink.take(&record);
        }
        if self.records.len() == self.kept_max {
            self.records.pop_front();
        }
        if self.kept_max > 0 {
            self.records.push_back(record);
        }
    }
}

impl Filter for Trace {
    fn seen(&self) -> &SeenGeometry {
        &self.seen
    }

    fn pass(&mut self, request: Request, cx: &mut Cx) {
        self.begin(cx.now, request.id, &request.io);
        cx.submit(Self::BELOW, OpId(request.id.0), request.io);
    }

    fn pass_back(&mut self, id: RequestId, result: IoResult, cx: &mut Cx) {
        self.end(cx.now, id, result.status.is_ok());
        cx.reply(id, result);
    }

    fn report(&self, _now: Nanos) -> Box<dyn AnyStatus> {
        Box::new(TraceStatus {
            operations: self.total,
            failed: self.failed,
            in_flight: self.in_flight.len(),
            file: self.sink.as_ref().map(|sink| sink.status()),
            newest: self.records.iter().copied().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buf, Command, ErrorKind, Event, IoError, Layer, Lba};

    fn ask(trace: &mut Trace, now: u64, id: u64, io: Io, cx: &mut Cx) {
        trace.handle(Event::Request(Request { id: RequestId(id), disk: 0, io }), cx.at(Nanos(now)));
    }

    fn answer(trace: &mut Trace, now: u64, id: u64, result: IoResult, cx: &mut Cx) {
        trace.handle(Event::Completed { op: OpId(id), result }, cx.at(Nanos(now)));
    }

    #[test]
    fn what_passes_is_recorded_and_not_changed() {
        struct Sum(u64);
        impl Sink for Sum {
            fn take(&mut self, record: &TraceRecord) {
                self.0 += record.latency.0;
            }

            fn status(&self) -> SinkStatus {
                SinkStatus { path: String::new(), recorded: self.0, dropped: 0, error: None }
            }
        }
        let mut trace = Trace::with_sink(3, Box::new(Sum(0)));
        let mut cx = Cx::default();
        let write = Io::Write { at: Lba(8), buf: Buf::copy_of(&[5; 512]), durability: Durability::Durable };
        ask(&mut trace, 10, 1, write, &mut cx);
        ask(&mut trace, 11, 2, Io::Flush, &mut cx);
        let Command::Submit { io: Io::Write { at, buf, durability }, .. } = &cx.commands[0] else {
            panic!("{:?}", cx.commands[0])
        };
        assert_eq!((*at, buf.bytes()[511], *durability), (Lba(8), 5, Durability::Durable));
        let error = IoError::new(ErrorKind::Medium);
        answer(&mut trace, 30, 2, IoResult::err(Buf::none(), error), &mut cx);
        answer(&mut trace, 40, 1, IoResult::ok(Buf::none()), &mut cx);
        assert_eq!(trace.sink.as_ref().unwrap().status().recorded, 19 + 30);
        for begin in [50, 60] {
            ask(&mut trace, begin, 1, Io::Discard { extent: Extent::new(Lba(0), 4) }, &mut cx);
            answer(&mut trace, begin + 5, 1, IoResult::ok(Buf::none()), &mut cx);
        }
        let Command::Reply { id: RequestId(2), result } = &cx.commands[2] else {
            panic!("{:?}", cx.commands[2])
        };
        assert_eq!(result.status, Err(error));

        let records: Vec<_> = trace.records().copied().collect();
        assert_eq!(records.len(), 3, "the ring keeps the newest");
        assert_eq!((records[0].operation, records[0].durable, records[0].ok), (IoKind::Write, true, true));
        assert_eq!((records[0].at, records[0].latency), (Nanos(10), Nanos(30)));
        assert_eq!(records[1].extent, Some(Extent::new(Lba(0), 4)));
        let status = trace.status(Nanos(70));
        let status = status.get::<TraceStatus>().expect("of a trace");
        assert_eq!((status.operations, status.failed), (4, 1));
        assert_eq!(
            status.file.as_ref().unwrap().recorded,
            19 + 30 + 5 + 5,
            "it gets what the ring has forgotten, too"
        );
    }
}
