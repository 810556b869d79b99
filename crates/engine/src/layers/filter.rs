//! Layers over one thing that pass most requests on unchanged.

use std::cell::RefCell;

use crate::layer::{
    ActivateError, AnyStatus, Control, Cx, Event, Geometry, IoResult, Layer, MapPart, MapSource, OpId, Port,
    Ports, Request, RequestId,
};
use crate::{Extent, Lba, Nanos};

/// The geometry of a filter from above, of each of its disks, from activation on.
pub type SeenGeometry = RefCell<Vec<Geometry>>;

/// A layer over one thing. By default, it passes everything on unchanged. Each filter is a [`Layer`]. A filter of several disks has a port
/// for each.
pub trait Filter {
    const BELOW: Port = Port(0);

    fn seen(&self) -> &SeenGeometry;

    /// Number of disks below.
    fn disks_below(&self) -> usize {
        1
    }

    /// The port of a disk.
    fn below(disk: usize) -> Port {
        Port(Self::BELOW.0 + disk)
    }

    /// Takes a request from above.
    fn pass(&mut self, request: Request, cx: &mut Cx) {
        cx.submit(Self::below(request.disk), OpId(request.id.0), request.io);
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

    /// See [`Layer::next_deadline`].
    fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// Takes the end of the deadline.
    fn wake(&mut self, _now: Nanos) {}

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
            Event::Wake => self.wake(cx.now),
            Event::Control(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.deadline()
    }

    fn check(&self) {
        self.verify();
    }

    fn geometry(&self) -> Geometry {
        self.disk_geometry(0)
    }

    fn disks(&self) -> usize {
        self.seen().borrow().len().max(self.disks_below())
    }

    fn take_disk(&mut self, disk: usize, geometry: Geometry) {
        let mut seen = self.seen().borrow_mut();
        match seen.get_mut(disk) {
            Some(known) => *known = geometry,
            None => seen.push(geometry),
        }
    }

    fn disk_geometry(&self, disk: usize) -> Geometry {
        *self.seen().borrow().get(disk).expect("geometry is asked for after activation")
    }

    fn copies_from(&self) -> Option<Port> {
        Some(F::BELOW)
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        let seen: Result<Vec<Geometry>, ActivateError> =
            (0..self.disks_below()).map(|disk| self.over(below.geometry(F::below(disk)))).collect();
        self.seen().replace(seen?);
        Ok(())
    }

    fn map(&self, extent: Extent) -> MapPart {
        self.disk_map(0, extent)
    }

    fn disk_map(&self, disk: usize, extent: Extent) -> MapPart {
        let source = MapSource::Below(F::below(disk), self.place_below(extent.start));
        MapPart { sectors: extent.sectors, source }
    }

    fn status(&self, now: Nanos) -> Box<dyn AnyStatus> {
        self.report(now)
    }
}
