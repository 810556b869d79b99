//! Finds the newest record of a log for each sector of the data disk. For the tools, which have time and memory (about 100 bytes for each
//! piece); the serving cache has its lookup table.

use std::collections::BTreeMap;

use crate::log_cache::format::{EntryKind, Header};
use crate::log_cache::recover::Visitor;
use crate::{Extent, Lba, SECTOR_BYTES};

/// Content of the sectors of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewestContent {
    /// A part of the payload of an entry: the payload of `entry` is at `place` in the log, with this checksum.
    Data { place: u64, entry: Extent, crc: u32, bad: bool },
    /// Zeroes, from an entry of this kind.
    Zeroes(EntryKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewestPiece {
    pub extent: Extent,
    pub seq: u64,
    pub content: NewestContent,
}

/// Totals of a log, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Totals {
    /// Data that is dirty.
    pub data_bytes: u64,
    /// Zeroes and discards that are not destaged.
    pub zeroes_bytes: u64,
}

/// The newest pieces, by their first sector; they never overlap.
#[derive(Debug)]
pub struct Newest {
    pieces: BTreeMap<u64, NewestPiece>,
    block_sectors: u64,
}

impl Newest {
    pub const fn new(log_block_sectors: u64) -> Newest {
        Newest { pieces: BTreeMap::new(), block_sectors: log_block_sectors }
    }

    /// Removes all older pieces from an extent.
    fn cut(&mut self, extent: Extent) {
        let before = self.pieces.range(..extent.start.0).next_back().map(|(&start, _)| start);
        let first =
            before.filter(|start| self.pieces[start].extent.overlaps(extent)).unwrap_or(extent.start.0);
        let hit: Vec<u64> = self.pieces.range(first..extent.end().0).map(|(&start, _)| start).collect();
        for start in hit {
            let piece = self.pieces.remove(&start).expect("it was found just now");
            let (old, new) = (piece.extent, extent);
            if old.start < new.start {
                self.put(NewestPiece { extent: Extent::new(old.start, new.start - old.start), ..piece });
            }
            if new.end() < old.end() {
                self.put(NewestPiece { extent: Extent::new(new.end(), old.end() - new.end()), ..piece });
            }
        }
    }

    fn put(&mut self, piece: NewestPiece) {
        self.pieces.insert(piece.extent.start.0, piece);
    }

    /// Forgets pieces of records that are destaged.
    pub fn purge_before(&mut self, seq: u64) {
        self.pieces.retain(|_, piece| piece.seq >= seq);
    }

    /// Keeps only the pieces in extents that are wanted.
    pub fn retain(&mut self, is_wanted: impl Fn(Extent) -> bool) {
        self.pieces.retain(|_, piece| is_wanted(piece.extent));
    }

    /// The pieces in the order of their LBAs.
    pub fn pieces(&self) -> impl Iterator<Item = &NewestPiece> {
        self.pieces.values()
    }

    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for piece in self.pieces.values() {
            let bytes = piece.extent.sectors * SECTOR_BYTES;
            match piece.content {
                NewestContent::Data { .. } => totals.data_bytes += bytes,
                NewestContent::Zeroes(_) => totals.zeroes_bytes += bytes,
            }
        }
        totals
    }
}

impl Visitor for Newest {
    fn record(&mut self, header: &Header, bad: &[usize]) {
        let mut place = header.sector + self.block_sectors;
        for (index, entry) in header.entries.iter().enumerate() {
            if entry.kind != EntryKind::Left {
                self.cut(entry.extent);
            }
            let content = match entry.kind {
                EntryKind::Data => {
                    let bad = bad.contains(&index);
                    let data = NewestContent::Data { place, entry: entry.extent, crc: entry.crc, bad };
                    place += entry.extent.sectors;
                    data
                }
                EntryKind::Discard | EntryKind::Zeroes | EntryKind::ZeroesUnmap => {
                    NewestContent::Zeroes(entry.kind)
                }
                // The data disk has the newest copy.
                EntryKind::Invalidate | EntryKind::Clean | EntryKind::Left => {
                    place += entry.payload_sectors();
                    continue;
                }
            };
            self.put(NewestPiece { extent: entry.extent, seq: header.seq, content });
        }
    }
}

impl Newest {
    /// The newest piece that covers a sector.
    pub fn at(&self, lba: Lba) -> Option<&NewestPiece> {
        let (_, piece) = self.pieces.range(..=lba.0).next_back()?;
        piece.extent.contains(lba).then_some(piece)
    }
}
