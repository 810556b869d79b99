//! Lets one request through at a time: the lock of the paper's driver, which holds the whole cache from the arrival of a request to its
//! end (section 4.2.2: "we exclusively lock the entire cache for the request until the request is complete").

use std::collections::VecDeque;

use dcd_engine::layers::filter::{Filter, SeenGeometry};
use dcd_engine::{AnyStatus, Cx, Io, IoResult, Nanos, OpId, Request, RequestId};
use dcd_model::Histogram;
use serde_json::json;

use crate::nuser::NuserTimes;

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
    seen: SeenGeometry,
}

impl Serial {
    fn admit(&mut self, cx: &mut Cx) {
        if self.inside.is_none()
            && let Some(Request { id, io, .. }) = self.waiting.pop_front()
        {
            let reads = (!matches!(io, Io::Flush)).then(|| !io.modifies());
            self.inside = Some(Inside { id, since: cx.now, reads });
            cx.submit(Self::BELOW, OpId(id.0), io);
        }
    }

    fn leave(&mut self, now: Nanos, id: RequestId) {
        let inside = self.inside.take().expect("an answer is for the request that is inside");
        assert_eq!(inside.id, id, "only one request is inside");
        let took = now.since(inside.since);
        match inside.reads {
            Some(true) => self.reads.add(took),
            Some(false) => self.writes.add(took),
            None => {}
        }
    }
}

impl Filter for Serial {
    fn seen(&self) -> &SeenGeometry {
        &self.seen
    }

    fn pass(&mut self, request: Request, cx: &mut Cx) {
        self.waiting.push_back(request);
        self.admit(cx);
    }

    fn pass_back(&mut self, id: RequestId, result: IoResult, cx: &mut Cx) {
        self.leave(cx.now, id);
        cx.reply(id, result);
        self.admit(cx);
    }

    fn reset_statistics(&mut self, _now: Nanos) {
        (self.reads, self.writes) = (Histogram::default(), Histogram::default());
    }

    fn verify(&self) {
        assert!(self.inside.is_some() || self.waiting.is_empty(), "the lock is free while requests wait");
    }

    fn report(&self, _now: Nanos) -> Box<dyn AnyStatus> {
        Box::new(json!({ "read": NuserTimes::of(&self.reads), "write": NuserTimes::of(&self.writes) }))
    }
}

#[cfg(test)]
mod tests {
    use dcd_engine::{Buf, Command, Event, Layer, Lba};

    use super::*;

    #[test]
    fn the_second_request_waits_for_the_end_of_the_first() {
        let mut layer = Serial::default();
        let mut cx = Cx::default();
        let read = || Io::Read { at: Lba(0), buf: Buf::blank(512) };
        for id in [1, 2] {
            layer.handle(
                Event::Request(Request { id: RequestId(id), disk: 0, io: read() }),
                cx.at(Nanos::ZERO),
            );
        }
        assert_eq!(cx.commands.len(), 1, "one is inside");
        cx.commands.clear();
        let completed = |op| Event::Completed { op: OpId(op), result: IoResult::ok(Buf::blank(512)) };
        layer.handle(completed(1), cx.at(Nanos::from_millis(8)));
        assert!(matches!(
            cx.commands[..],
            [Command::Reply { id: RequestId(1), .. }, Command::Submit { op: OpId(2), .. }]
        ));
        layer.check();
        layer.handle(completed(2), cx.at(Nanos::from_millis(10)));
        let times = &layer.status(Nanos::from_millis(10)).to_json()["read"];
        assert_eq!(
            (&times["count"], &times["mean_ms"]),
            (&json!(2), &json!(5.0)),
            "8 and 2, without the wait"
        );
    }
}
