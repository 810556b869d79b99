//! Tells what sectors hold without reading them: data, or zeroes that are in the log and not destaged. The data disk knows the rest.
//!
//! A block that is clean, or is not in the log, is durable on the data disk. So the disk may be asked later than the log, and not earlier:
//! meanwhile a block could become clean.

use super::disks::AddressSpace;
use super::env::{View, data_port};
use super::table::RangeKind;
use crate::layer::{Discards, MapPart, MapSource, SectorState};
use crate::{Extent, Geometry};

impl View<'_> {
    /// See [`crate::Layer::map`].
    pub fn map(&self, disk: usize, at: Extent) -> MapPart {
        let (table, geometry) = (self.index.table(), self.data[disk].geometry());
        let extent = Extent::new(at.start + AddressSpace::start(disk).0, at.sectors);
        // A disk that cannot tell its holes is taken for full of data.
        let below = match geometry.holes {
            true => MapSource::Below(data_port(disk), at.start),
            false => MapSource::Known(SectorState::Data),
        };
        let range = self.index.ranges().lookup(extent).next();
        let (sectors, source) = match range {
            Some(part) if part.extent.start == extent.start => {
                (part.extent.sectors, MapSource::Known(state_of(part.info.kind, geometry)))
            }
            Some(part) => (part.extent.start - extent.start, below),
            None => (extent.sectors, below),
        };
        if source == MapSource::Known(SectorState::Data) {
            return MapPart { sectors, source };
        }
        // Data in the table is newer than a range, and if it is dirty, newer than the data disk.
        let in_range = matches!(source, MapSource::Known(_));
        let extent = table.step(Extent::new(extent.start, sectors));
        match table.first_run(extent, |piece| piece.dirty || in_range) {
            Some(run) if run.start == extent.start => {
                MapPart { sectors: run.sectors, source: MapSource::Known(SectorState::Data) }
            }
            Some(run) => MapPart { sectors: run.start - extent.start, source },
            None => MapPart { sectors: extent.sectors, source },
        }
    }
}

fn state_of(kind: RangeKind, geometry: &Geometry) -> SectorState {
    match kind {
        // Once destaged, it may read as anything.
        RangeKind::Discard if geometry.discards != Discards::Zero => SectorState::Data,
        RangeKind::Discard | RangeKind::Zeroes { unmap: true } => SectorState::Hole,
        RangeKind::Zeroes { unmap: false } => SectorState::Zeroes,
    }
}
