//! The start of an export, where labels and superblocks lie: a machine that takes a disk over writes there before anything else.
//! So a client that comes back and finds it changed must write nothing.

use dcd_engine::{Extent, Io, Lba, SECTOR_BYTES};

const START_BYTES: u64 = 64 << 10;
/// Maximum number of writes that are remembered for a sector. With more, the content of the sector is unknown.
const WRITES_MAX: usize = 64;

/// Content that a write leaves in a sector: a checksum, or none if it is unknown.
#[derive(Clone, Copy, Debug)]
struct LeftContent {
    write: u64,
    sum: Option<u32>,
}

/// Possible contents of each sector: the durable content first, then those of later writes.
#[derive(Debug)]
pub(super) struct PossibleContents {
    sectors: Vec<Vec<LeftContent>>,
    is_known: bool,
}

impl PossibleContents {
    pub fn new(export_bytes: u64) -> PossibleContents {
        let sectors = export_bytes.min(START_BYTES) / SECTOR_BYTES;
        PossibleContents { sectors: vec![Vec::new(); sectors as usize], is_known: false }
    }

    pub fn extent(&self) -> Extent {
        Extent::new(Lba(0), self.sectors.len() as u64)
    }

    /// A write will be sent.
    pub fn written(&mut self, write: u64, io: &Io) {
        let extent = io.extent().expect("what modifies has an extent");
        for sector in self.within(extent) {
            let sum = match io {
                Io::Write { buf, at, .. } => {
                    let from = (sector as u64 - at.0) * SECTOR_BYTES;
                    Some(crc32c::crc32c(&buf.bytes()[from as usize..(from + SECTOR_BYTES) as usize]))
                }
                Io::WriteZeroes { .. } => Some(crc32c::crc32c(&[0; SECTOR_BYTES as usize])),
                _ => None,
            };
            let known = &mut self.sectors[sector];
            known.push(LeftContent { write, sum });
            if known.len() > WRITES_MAX {
                *known = vec![LeftContent { write, sum: None }];
            }
        }
    }

    /// A write is on the medium for certain, and what came before it is gone.
    pub fn is_durable(&mut self, write: u64, extent: Extent) {
        for sector in self.within(extent) {
            self.sectors[sector].retain(|left| left.write >= write);
        }
    }

    /// Compares the start of the export with what this client can have left there. The first call records the content. Returns false if the
    /// content cannot come from writes through this client.
    pub fn is_as_left(&mut self, found: &[u8]) -> bool {
        let sums = found.chunks_exact(SECTOR_BYTES as usize).map(crc32c::crc32c);
        if !std::mem::replace(&mut self.is_known, true) {
            // Writes that wait come after it.
            let sectors = self.sectors.iter_mut().zip(sums);
            sectors.for_each(|(known, sum)| known.insert(0, LeftContent { write: 0, sum: Some(sum) }));
            return true;
        }
        let may_hold =
            |known: &Vec<LeftContent>, sum| known.iter().any(|left| left.sum.is_none_or(|left| left == sum));
        self.sectors.iter().zip(sums).all(|(known, sum)| may_hold(known, sum))
    }

    fn within(&self, extent: Extent) -> std::ops::Range<usize> {
        let sectors = self.sectors.len() as u64;
        extent.start.0.min(sectors) as usize..extent.end().0.min(sectors) as usize
    }
}
