//! One request at a time: the lock of the paper's driver, which holds the whole cache from the arrival of a request to its
//! end (section 4.2.2: "we exclusively lock the entire cache for the request until the request is complete").

use std::collections::VecDeque;

use dcd_engine::{
    ActivateError, Control, Event, Geometry, Io, Layer, LayerStatus, Nanos, OpId, Outbox, Port, Ports,
    Request, RequestId,
};
use dcd_model::Histogram;
use serde_json::json;

use crate::nuser::Times;

const BELOW: Port = Port(0);

/// The request that has the lock.
struct Inside {
    id: RequestId,
    since: Nanos,
    /// None for a flush.
    reads: Option<bool>,
}

/// A layer that passes a request on when the one before it has been answered. Its status tells how long reads and writes
/// had the lock.
#[derive(Default)]
pub(crate) struct Serial {
    waiting: VecDeque<Request>,
    inside: Option<Inside>,
    reads: Histogram,
    writes: Histogram,
    geometry: Option<Geometry>,
}

impl Serial {
    fn admit(&mut self, now: Nanos, out: &mut Outbox) {
        if self.inside.is_none()
            && let Some(Request { id, io }) = self.waiting.pop_front()
        {
            let reads = (!matches!(io, Io::Flush)).then(|| !io.modifies());
            self.inside = Some(Inside { id, since: now, reads });
            out.submit(BELOW, OpId(id.0), io);
        }
    }

    fn leave(&mut self, now: Nanos, op: OpId) {
        let inside = self.inside.take().expect("an answer is for the request that is inside");
        assert_eq!(inside.id, RequestId(op.0), "only one request is inside");
        let took = now.since(inside.since);
        match inside.reads {
            Some(true) => self.reads.add(took),
            Some(false) => self.writes.add(took),
            None => {}
        }
    }
}

impl Layer for Serial {
    fn handle(&mut self, now: Nanos, event: Event, out: &mut Outbox) {
        match event {
            Event::Request(request) => self.waiting.push_back(request),
            Event::Completed { op, result } => {
                self.leave(now, op);
                out.reply(RequestId(op.0), result);
            }
            Event::Control(Control::ResetStatistics) => {
                (self.reads, self.writes) = (Histogram::default(), Histogram::default());
            }
            Event::Wake | Event::Control(_) => {}
        }
        self.admit(now, out);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    fn check(&self) {
        assert!(self.inside.is_some() || self.waiting.is_empty(), "the lock is free while requests wait");
    }

    fn geometry(&self) -> Geometry {
        self.geometry.expect("geometry is asked for after activation")
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        self.geometry = Some(below.geometry(BELOW));
        Ok(())
    }

    fn status(&self, _now: Nanos) -> LayerStatus {
        LayerStatus::Other(json!({ "read": Times::of(&self.reads), "write": Times::of(&self.writes) }))
    }
}

#[cfg(test)]
mod tests {
    use dcd_engine::{Buf, Command, IoResult, Lba};

    use super::*;

    #[test]
    fn the_second_request_waits_for_the_end_of_the_first() {
        let mut layer = Serial::default();
        let mut out = Outbox::default();
        let read = || Io::Read { at: Lba(0), buf: Buf::blank(512) };
        for id in [1, 2] {
            layer.handle(Nanos::ZERO, Event::Request(Request { id: RequestId(id), io: read() }), &mut out);
        }
        assert_eq!(out.commands.len(), 1, "one is inside");
        out.commands.clear();
        let completed = |op| Event::Completed { op: OpId(op), result: IoResult::ok(Buf::blank(512)) };
        layer.handle(Nanos::from_millis(8), completed(1), &mut out);
        assert!(matches!(
            out.commands[..],
            [Command::Reply { id: RequestId(1), .. }, Command::Submit { op: OpId(2), .. }]
        ));
        layer.check();
        layer.handle(Nanos::from_millis(10), completed(2), &mut out);
        let times = &layer.status(Nanos::from_millis(10)).to_json()["read"];
        assert_eq!(
            (&times["count"], &times["mean_ms"]),
            (&json!(2), &json!(5.0)),
            "8 and 2, without the wait"
        );
    }
}
