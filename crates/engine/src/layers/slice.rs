//! A slice: a range of the sectors of what is below. Two slices of one disk make a *logical* DCD (Nightingale et al. 1999,
//! section 2): the cache-disk and the data disk are partitions of one spindle.

use crate::layer::{
    ActivateError, ErrorKind, Event, Geometry, Io, IoError, IoResult, Layer, OpId, Outbox, Port, Ports,
    RequestId,
};
use crate::{Extent, Lba, Nanos};

const BELOW: Port = Port(0);

/// See the module's documentation.
pub struct Slice {
    extent: Extent,
    below: Option<Geometry>,
}

impl Slice {
    pub const fn new(extent: Extent) -> Slice {
        Slice { extent, below: None }
    }

    fn moved(&self, io: Io) -> Result<Io, (Io, IoError)> {
        let Some(extent) = io.extent() else { return Ok(io) };
        if extent.start.0.checked_add(extent.sectors).is_none_or(|end| end > self.extent.sectors) {
            let error = IoError::at(ErrorKind::OutOfRange, extent);
            return Err((io, error));
        }
        let base = self.extent.start.0;
        let up = |at: Lba| at + base;
        let up_extent = |e: Extent| Extent::new(e.start + base, e.sectors);
        Ok(match io {
            Io::Read { at, buf } => Io::Read { at: up(at), buf },
            Io::Write { at, buf, durability } => Io::Write { at: up(at), buf, durability },
            Io::Flush => Io::Flush,
            Io::Discard { extent } => Io::Discard { extent: up_extent(extent) },
            Io::WriteZeroes { extent, unmap, durability } => {
                Io::WriteZeroes { extent: up_extent(extent), unmap, durability }
            }
        })
    }
}

impl Layer for Slice {
    fn handle(&mut self, _now: Nanos, event: Event, out: &mut Outbox) {
        match event {
            Event::Request(request) => match self.moved(request.io) {
                Ok(io) => out.submit(BELOW, OpId(request.id.0), io),
                Err((io, error)) => out.reply(request.id, IoResult::err(io.take_buf(), error)),
            },
            Event::Completed { op, mut result } => {
                if let Err(IoError { extent: Some(extent), .. }) = &mut result.status {
                    extent.start.0 = extent.start.0.saturating_sub(self.extent.start.0);
                }
                out.reply(RequestId(op.0), result);
            }
            Event::Wake | Event::Control(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    fn geometry(&self) -> Geometry {
        let below = self.below.expect("geometry is asked for after activation");
        let stripes = below.stripes.map(|stripes| stripes.behind(self.extent.start.0));
        Geometry { sectors: self.extent.sectors, stripes, ..below }
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        let geometry = below.geometry(BELOW);
        let fits =
            self.extent.start.0.checked_add(self.extent.sectors).is_some_and(|end| end <= geometry.sectors);
        if !fits || self.extent.sectors == 0 {
            return Err(ActivateError(format!(
                "the slice {} does not fit on a device of {} sectors: make it smaller or move it",
                self.extent, geometry.sectors
            )));
        }
        let block = u64::from(geometry.logical_block_bytes) / crate::SECTOR_BYTES;
        if !self.extent.start.0.is_multiple_of(block) || !self.extent.sectors.is_multiple_of(block) {
            return Err(ActivateError(format!(
                "the slice {} is not aligned to the device's blocks of {} bytes",
                self.extent, geometry.logical_block_bytes
            )));
        }
        self.below = Some(geometry);
        Ok(())
    }
}
