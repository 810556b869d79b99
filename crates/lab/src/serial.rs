//! One request at a time: the lock of the paper's driver, which holds the whole cache from the arrival of a request to its
//! end (section 4.2.2: "we exclusively lock the entire cache for the request until the request is complete").

use std::collections::VecDeque;

use dcd_engine::{
    ActivateError, Event, Geometry, Layer, Nanos, OpId, Outbox, Port, Ports, Request, RequestId,
};

const BELOW: Port = Port(0);

/// A layer that passes a request on when the one before it has been answered.
#[derive(Default)]
pub(crate) struct Serial {
    waiting: VecDeque<Request>,
    inside: Option<RequestId>,
    geometry: Option<Geometry>,
}

impl Serial {
    fn admit(&mut self, out: &mut Outbox) {
        if self.inside.is_none()
            && let Some(Request { id, io }) = self.waiting.pop_front()
        {
            self.inside = Some(id);
            out.submit(BELOW, OpId(id.0), io);
        }
    }
}

impl Layer for Serial {
    fn handle(&mut self, _now: Nanos, event: Event, out: &mut Outbox) {
        match event {
            Event::Request(request) => self.waiting.push_back(request),
            Event::Completed { op, result } => {
                let inside = self.inside.take();
                assert_eq!(inside, Some(RequestId(op.0)), "only one request is inside");
                out.reply(RequestId(op.0), result);
            }
            Event::Wake | Event::Control(_) => {}
        }
        self.admit(out);
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
}

#[cfg(test)]
mod tests {
    use dcd_engine::{Command, Io, IoResult};

    use super::*;

    #[test]
    fn the_second_request_waits_for_the_end_of_the_first() {
        let mut layer = Serial::default();
        let mut out = Outbox::default();
        for id in [1, 2] {
            layer.handle(Nanos::ZERO, Event::Request(Request { id: RequestId(id), io: Io::Flush }), &mut out);
        }
        assert_eq!(out.commands.len(), 1, "one is inside");
        out.commands.clear();
        let result = IoResult::ok(dcd_engine::Buf::none());
        layer.handle(Nanos::ZERO, Event::Completed { op: OpId(1), result }, &mut out);
        assert!(matches!(
            out.commands[..],
            [Command::Reply { id: RequestId(1), .. }, Command::Submit { op: OpId(2), .. }]
        ));
        layer.check();
    }
}
