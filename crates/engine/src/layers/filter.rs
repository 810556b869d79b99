//! Layers over one thing that pass most requests on unchanged.

use std::cell::Cell;

use crate::layer::{
    ActivateError, AnyStatus, Control, Cx, Event, Geometry, IoResult, Layer, MapPart, MapSource, OpId, Port,
    Ports, Request, RequestId,
};
use crate::{Extent, Lba, Nanos};

/// The geometry of a filter from above, from activation on.
pub type SeenGeometry = Cell<Option<Geometry>>;

/// A layer over one thing. By default, it passes everything on unchanged. Each filter is a [`Layer`].
pub trait Filter {
    const BELOW: Port = Port(0);

    fn seen(&self) -> &SeenGeometry;

    /// Takes a request from above.
    fn pass(&mut self, request: Request, cx: &mut Cx) {
        cx.submit(Self::BELOW, OpId(request.id.0), request.io);
    }

    /// Takes an answer from below.
    fn pass_back(&mut self, id: RequestId, result: IoResult, cx: &mut Cx) {
        cx.reply(id, result);
    }

    /// Returns the place below of a sector.
    fn place_below(&self, at: Lba) -> Lba {
        at
    }

    fn reset_statistics(&mut self, _now: Nanos) {}

    /// Returns the geometry of the filter over a geometry below.
    ///
    /// # Errors
    /// If the filter cannot work over that geometry.
    fn over(&self, below: Geometry) -> Result<Geometry, ActivateError> {
        Ok(below)
    }

    /// See [`Layer::check`].
    fn verify(&self) {}

    /// See [`Layer::status`].
    fn report(&self, _now: Nanos) -> Box<dyn AnyStatus> {
        Box::new(())
    }
}

impl<F: Filter> Layer for F {
    fn handle(&mut self, event: Event, cx: &mut Cx) {
        match event {
            Event::Request(request) => self.pass(request, cx),
            Event::Completed { op, result } => self.pass_back(RequestId(op.0), result, cx),
            Event::Control(Control::ResetStatistics) => self.reset_statistics(cx.now),
            Event::Wake | Event::Control(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    fn check(&self) {
        self.verify();
    }

    fn geometry(&self) -> Geometry {
        self.seen().get().expect("geometry is asked for after activation")
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        let seen = self.over(below.geometry(Self::BELOW))?;
        self.seen().set(Some(seen));
        Ok(())
    }

    fn map(&self, extent: Extent) -> MapPart {
        let source = MapSource::Below(F::BELOW, self.place_below(extent.start));
        MapPart { sectors: extent.sectors, source }
    }

    fn status(&self, now: Nanos) -> Box<dyn AnyStatus> {
        self.report(now)
    }
}
