//! A device over several disks: its chunks are dealt to the disks in turn, and a flush flushes all of them.
//!
//! A client of one device then uses all disks of a log cache, and the oracle judges them together. No request crosses a chunk.

use dcd_engine::{
    ActivateError, Cx, Event, Extent, Geometry, Io, IoError, IoResult, Layer, Lba, Nanos, OpId, Port, Ports,
    Request, RequestId, Slab,
};

/// Sectors of a chunk. The disks have a multiple of it.
pub const CHUNK_SECTORS: u64 = 256;

/// The disk of a sector, and the sector there.
pub const fn place_of(at: Lba, disks: usize) -> (usize, Lba) {
    let (chunk, within) = (at.0 / CHUNK_SECTORS, at.0 % CHUNK_SECTORS);
    ((chunk % disks as u64) as usize, Lba(chunk / disks as u64 * CHUNK_SECTORS + within))
}

/// An operation that was sent to a disk.
enum DealtOp {
    One { id: RequestId, disk: usize },
    PartOfFlush(u64),
}

/// A flush, until all disks have answered.
struct OpenFlush {
    id: RequestId,
    left: usize,
    status: Result<(), IoError>,
}

/// See the module's documentation. The disks are on the first ports.
pub struct Dealt {
    disks: usize,
    /// A disk that is missing: no request goes there.
    missing: Option<usize>,
    geometry: Option<Geometry>,
    ops: Slab<DealtOp>,
    flushes: Slab<OpenFlush>,
}

impl Dealt {
    pub fn new(disks: usize) -> Dealt {
        Dealt::without(disks, None)
    }

    pub fn without(disks: usize, missing: Option<usize>) -> Dealt {
        Dealt { disks, missing, geometry: None, ops: Slab::default(), flushes: Slab::default() }
    }

    fn request(&mut self, Request { id, mut io, .. }: Request, cx: &mut Cx) {
        let Some(extent) = io.extent() else {
            let present = (0..self.disks).filter(|disk| self.missing != Some(*disk));
            let left = present.clone().count();
            let flush = self.flushes.insert(OpenFlush { id, left, status: Ok(()) });
            for disk in present {
                let op = self.ops.insert(DealtOp::PartOfFlush(flush));
                cx.submit(Port(disk), OpId(op), Io::Flush);
            }
            return;
        };
        assert!(extent.start.0 % CHUNK_SECTORS + extent.sectors <= CHUNK_SECTORS, "{extent} crosses a chunk");
        let (disk, start) = place_of(extent.start, self.disks);
        *io.start_mut().expect("it has an extent") = start;
        let op = self.ops.insert(DealtOp::One { id, disk });
        cx.submit(Port(disk), OpId(op), io);
    }

    fn completed(&mut self, op: OpId, mut result: IoResult, cx: &mut Cx) {
        match self.ops.remove(op.0) {
            DealtOp::One { id, disk } => {
                if let Err(IoError { extent: Some(Extent { start, .. }), .. }) = &mut result.status {
                    let chunk = start.0 / CHUNK_SECTORS * self.disks as u64 + disk as u64;
                    start.0 = chunk * CHUNK_SECTORS + start.0 % CHUNK_SECTORS;
                }
                cx.reply(id, result);
            }
            DealtOp::PartOfFlush(key) => {
                let flush = self.flushes.get_mut(key);
                flush.left -= 1;
                flush.status = flush.status.and(result.status);
                if flush.left == 0 {
                    let OpenFlush { id, status, .. } = self.flushes.remove(key);
                    cx.reply(id, IoResult { buf: result.buf, status });
                }
            }
        }
    }
}

impl Layer for Dealt {
    fn handle(&mut self, event: Event, cx: &mut Cx) {
        match event {
            Event::Request(request) => self.request(request, cx),
            Event::Completed { op, result } => self.completed(op, result, cx),
            Event::Wake | Event::Control(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    fn geometry(&self) -> Geometry {
        self.geometry.expect("active")
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        let disk = below.geometry(Port(0));
        self.geometry = Some(Geometry { sectors: disk.sectors * self.disks as u64, ..disk });
        Ok(())
    }
}
