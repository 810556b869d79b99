//! A slice: a range of the sectors of the device or layer below. Two slices of one disk make a *logical* DCD (Nightingale et al. 1999,
//! section 2): the cache-disk and the data disk are partitions of one spindle.

use crate::layer::{ActivateError, Cx, ErrorKind, Geometry, Io, IoError, IoResult, OpId, Request, RequestId};
use crate::layers::filter::{Filter, SeenGeometry};
use crate::{Extent, Lba};

/// Reason why a slice cannot be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SliceError {
    #[error("the slice {slice} does not fit on a device of {sectors} sectors")]
    TooLong { slice: Extent, sectors: u64 },
    #[error("the slice {slice} is not aligned to the device's blocks of {block_bytes} bytes")]
    Unaligned { slice: Extent, block_bytes: u32 },
}

/// See the module's documentation.
pub struct Slice {
    extent: Extent,
    seen: SeenGeometry,
}

impl Slice {
    pub const fn new(extent: Extent) -> Slice {
        Slice { extent, seen: SeenGeometry::new(Vec::new()) }
    }

    fn moved(&self, mut io: Io) -> Result<Io, (Io, IoError)> {
        if let Some(extent) = io.extent().filter(|extent| !extent.is_within(self.extent.sectors)) {
            return Err((io, IoError::at(ErrorKind::OutOfRange, extent)));
        }
        if let Some(start) = io.start_mut() {
            start.0 += self.extent.start.0;
        }
        Ok(io)
    }
}

impl Filter for Slice {
    fn seen(&self) -> &SeenGeometry {
        &self.seen
    }

    fn place_below(&self, at: Lba) -> Lba {
        at + self.extent.start.0
    }

    fn pass(&mut self, request: Request, cx: &mut Cx) {
        match self.moved(request.io) {
            Ok(io) => cx.submit(Self::BELOW, OpId(request.id.0), io),
            Err((io, error)) => cx.reply(request.id, IoResult::err(io.take_buf(), error)),
        }
    }

    fn pass_back(&mut self, id: RequestId, mut result: IoResult, cx: &mut Cx) {
        if let Err(IoError { extent: Some(extent), .. }) = &mut result.status {
            extent.start.0 = extent.start.0.saturating_sub(self.extent.start.0);
        }
        cx.reply(id, result);
    }

    fn over(&self, below: Geometry) -> Result<Geometry, ActivateError> {
        if !self.extent.is_within(below.sectors) || self.extent.sectors == 0 {
            return Err(SliceError::TooLong { slice: self.extent, sectors: below.sectors }.into());
        }
        if !self.extent.is_multiple_of(below.block_sectors()) {
            let block_bytes = below.logical_block_bytes;
            return Err(SliceError::Unaligned { slice: self.extent, block_bytes }.into());
        }
        let stripes = below.stripes.map(|stripes| stripes.behind(self.extent.start.0));
        Ok(Geometry { sectors: self.extent.sectors, stripes, ..below })
    }
}
