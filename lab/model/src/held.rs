//! The data of delayed writes: acknowledged, and not handed to the device below yet.
//!
//! The pieces are disjoint, and each is a window on the buffer of the write that brought it. A newer write cuts what it
//! covers out of the older ones. What is handed down stays known until the device below has answered, so that a read finds
//! it, and so that nothing that overlaps it overtakes it.

use std::collections::BTreeMap;

use dcd_engine::{Buf, Extent, Lba, SECTOR_BYTES};

/// A piece of a read that has to come from a delayed write: sectors from the read's start, and the data.
#[derive(Debug)]
pub(crate) struct Patch {
    sector: u64,
    data: Buf,
}

impl Patch {
    /// Cuts out what a read of `wanted` has to take from data that begins at `start`; they overlap.
    pub fn of(start: Lba, data: &Buf, wanted: Extent) -> Patch {
        let part = extent_of(start, data).intersection(wanted).expect("they overlap");
        Patch { sector: part.start - wanted.start, data: window(start, data, part) }
    }

    /// Puts the piece over what was read.
    pub fn apply(&self, buf: &mut Buf) {
        buf.copy_from((self.sector * SECTOR_BYTES) as usize, &self.data, 0, self.data.len());
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pieces: BTreeMap<Lba, Buf>,
}

fn extent_of(start: Lba, buf: &Buf) -> Extent {
    Extent::new(start, buf.len() as u64 / SECTOR_BYTES)
}

fn window(start: Lba, buf: &Buf, part: Extent) -> Buf {
    buf.window(((part.start - start) * SECTOR_BYTES) as usize, (part.sectors * SECTOR_BYTES) as usize)
}

impl Held {
    fn overlapping(&self, extent: Extent) -> impl Iterator<Item = (Lba, &Buf)> {
        // Pieces are disjoint: only the last one that begins before the extent can reach into it.
        let before = self.pieces.range(..extent.start).next_back();
        let inside = self.pieces.range(extent.start..extent.end());
        let all = before.into_iter().chain(inside).map(|(start, buf)| (*start, buf));
        all.filter(move |(start, buf)| extent_of(*start, buf).overlaps(extent))
    }

    /// Keeps a write's data; it is copied, as the buffer goes back to its owner.
    pub fn insert(&mut self, start: Lba, buf: &Buf) {
        let mut data = match buf.is_blank() {
            true => Buf::blank(buf.len()),
            false => Buf::copy_of(buf.bytes()),
        };
        data.share();
        self.take(extent_of(start, &data));
        self.pieces.insert(start, data);
    }

    /// Takes out what is held of a range, in the order of the sectors.
    pub fn take(&mut self, extent: Extent) -> Vec<(Lba, Buf)> {
        let starts: Vec<Lba> = self.overlapping(extent).map(|(start, _)| start).collect();
        let mut taken = Vec::with_capacity(starts.len());
        for start in starts {
            let buf = self.pieces.remove(&start).expect("it was found");
            let whole = extent_of(start, &buf);
            let part = whole.intersection(extent).expect("it overlaps");
            taken.push((part.start, window(start, &buf, part)));
            for rest in [(whole.start, part.start), (part.end(), whole.end())] {
                if rest.0 < rest.1 {
                    let rest = Extent::new(rest.0, rest.1 - rest.0);
                    self.pieces.insert(rest.start, window(start, &buf, rest));
                }
            }
        }
        taken
    }

    /// Returns the pieces that a read of a range has to take from here.
    pub fn patches(&self, extent: Extent) -> impl Iterator<Item = Patch> {
        self.overlapping(extent).map(move |(start, buf)| Patch::of(start, buf, extent))
    }

    pub fn sectors(&self) -> u64 {
        self.pieces.values().map(|buf| buf.len() as u64 / SECTOR_BYTES).sum()
    }
}
