//! Ranges that read as zeroes, because a discard or a write of zeroes is in the log and is not destaged yet.
//!
//! Parts never overlap: a newer range cuts the older ones. Data pieces of the lookup table win over ranges: the caller removes the
//! covered sectors from the table before it inserts a range, so pieces in the table are newer.
//!
//! A *range* is one entry of a record; it has an id, and may be left in several *parts* when newer ranges or removals cut it. When the
//! last part goes, the caller is told ([`RangeGone`]), as its segment then has one dirty range less.

use std::collections::BTreeMap;

use crate::log_cache::disks::PART_SECTORS;
use crate::{Extent, Lba};

/// Maximum number of parts: 64 Ki take about 8 MiB of RAM, and are far more than a file system discards in the life of a log.
pub const RANGES_MAX: usize = 1 << 16;

/// Maximum number of parts that one `insert` or `cut` adds: the new one, and one by cutting an older one in two.
const PARTS_PER_STEP: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeKind {
    Discard,
    /// Zeroes were written; with `unmap` the disk may free the space.
    Zeroes {
        unmap: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeInfo {
    pub kind: RangeKind,
    /// The sequence number of the record that holds the range.
    pub seq: u64,
    /// The index of the segment that holds the record.
    pub segment: u32,
    /// Unique among the ranges present.
    pub id: u64,
}

/// A part of a range that no newer range or data has replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangePart {
    pub extent: Extent,
    pub info: RangeInfo,
}

/// A range that lost its last part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeGone {
    pub segment: u32,
    pub id: u64,
}

/// Span of a whole range: the extent that holds its parts, and their number.
struct RangeSpan {
    extent: Extent,
    parts: usize,
}

/// The data disk of a part, if there are several.
const fn disk_of(part: &RangePart) -> usize {
    (part.extent.start.0 / PART_SECTORS) as usize
}

#[derive(Default)]
pub struct ZeroRanges {
    parts: BTreeMap<Lba, RangePart>,
    /// Sectors of all discarded parts; next, of all zeroed parts.
    discarded: u64,
    zeroed: u64,
    spans: BTreeMap<u64, RangeSpan>,
    /// Number of parts on each data disk, where there are several.
    parts_on: BTreeMap<usize, usize>,
}

impl ZeroRanges {
    pub fn new() -> ZeroRanges {
        ZeroRanges::default()
    }

    /// Number of parts.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Number of parts on one of several data disks.
    pub fn len_on(&self, disk: usize) -> usize {
        self.parts_on.get(&disk).copied().unwrap_or(0)
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Sectors to discard.
    pub const fn discarded(&self) -> u64 {
        self.discarded
    }

    /// Sectors to zero.
    pub const fn zeroed(&self) -> u64 {
        self.zeroed
    }

    const fn sectors_mut(&mut self, kind: RangeKind) -> &mut u64 {
        match kind {
            RangeKind::Discard => &mut self.discarded,
            RangeKind::Zeroes { .. } => &mut self.zeroed,
        }
    }

    fn put_part(&mut self, part: RangePart) {
        *self.sectors_mut(part.info.kind) += part.extent.sectors;
        *self.parts_on.entry(disk_of(&part)).or_default() += 1;
        self.parts.insert(part.extent.start, part);
    }

    fn take_part(&mut self, part: &RangePart) {
        *self.sectors_mut(part.info.kind) -= part.extent.sectors;
        *self.parts_on.entry(disk_of(part)).or_default() -= 1;
        self.parts.remove(&part.extent.start);
    }

    /// True when one more `insert` or `cut` surely finds space.
    pub fn has_room(&self) -> bool {
        self.parts.len() + PARTS_PER_STEP <= RANGES_MAX
    }

    /// Makes `extent` read as zeroes. Reports the older ranges of which nothing is left. Panics if there is no space.
    pub fn insert(&mut self, extent: Extent, info: RangeInfo, gone: impl FnMut(RangeGone)) {
        assert!(extent.sectors > 0, "an empty range");
        assert!(self.has_room(), "too many ranges: has_room() was not asked");
        self.cut(extent, gone);
        let span = RangeSpan { extent, parts: 1 };
        assert!(self.spans.insert(info.id, span).is_none(), "range {} is there already", info.id);
        self.put_part(RangePart { extent, info });
    }

    /// Returns the parts of `extent` that read as zeroes, by address.
    pub fn lookup(&self, extent: Extent) -> impl Iterator<Item = RangePart> + '_ {
        self.touching(extent).filter_map(move |part| {
            part.extent.intersection(extent).map(|common| RangePart { extent: common, info: part.info })
        })
    }

    /// True when any of `extent` is in a range.
    pub fn contains_any(&self, extent: Extent) -> bool {
        self.lookup(extent).next().is_some()
    }

    /// The parts that are left of a range.
    pub fn parts_of(&self, id: u64) -> impl Iterator<Item = RangePart> + '_ {
        let span = self.spans.get(&id).map(|span| span.extent);
        span.into_iter().flat_map(|span| self.touching(span)).filter(move |part| part.info.id == id)
    }

    /// The parts of the oldest ranges, range by range.
    pub fn oldest(&self) -> impl Iterator<Item = RangePart> + '_ {
        self.spans.keys().flat_map(|id| self.parts_of(*id))
    }

    /// Every part, by address.
    pub fn iter(&self) -> impl Iterator<Item = RangePart> + '_ {
        self.parts.values().copied()
    }

    /// Forgets a range: it is destaged. Returns whether anything of it was left.
    pub fn remove_by_id(&mut self, id: u64) -> bool {
        let parts: Vec<RangePart> = self.parts_of(id).collect();
        parts.iter().for_each(|part| self.take_part(part));
        self.spans.remove(&id).is_some()
    }

    /// Forgets the ranges within `extent`. Reports the ranges of which nothing is left. Panics if a part would have to be cut in two and
    /// there is no space.
    pub fn cut(&mut self, extent: Extent, mut gone: impl FnMut(RangeGone)) {
        let touched: Vec<RangePart> =
            self.touching(extent).filter(|part| part.extent.overlaps(extent)).collect();
        for part in touched {
            self.take_part(&part);
            let before = (part.extent.start, extent.start);
            let behind = (extent.end(), part.extent.end());
            let mut kept = 0;
            for (start, end) in [before, behind] {
                if start < end {
                    let rest = Extent::new(start, end - start);
                    self.put_part(RangePart { extent: rest, info: part.info });
                    kept += 1;
                }
            }
            self.recount(part.info, kept, &mut gone);
        }
        assert!(self.parts.len() <= RANGES_MAX, "too many ranges: has_room() was not asked");
    }

    /// Notes that one part of the range became `kept` parts.
    fn recount(&mut self, info: RangeInfo, kept: usize, gone: &mut impl FnMut(RangeGone)) {
        let Some(span) = self.spans.get_mut(&info.id) else {
            unreachable!("a part of a range that is not known: {info:?}");
        };
        span.parts = span.parts + kept - 1;
        if span.parts == 0 {
            self.spans.remove(&info.id);
            gone(RangeGone { segment: info.segment, id: info.id });
        }
    }

    /// The parts from the first that may reach into `extent` to the last that begins within it.
    fn touching(&self, extent: Extent) -> impl Iterator<Item = RangePart> + '_ {
        let before = self.parts.range(..extent.start).next_back();
        before.into_iter().chain(self.parts.range(extent.start..extent.end())).map(|(_, part)| *part)
    }

    /// Panics if parts overlap or a count is wrong.
    pub fn check(&self) {
        let mut end = Lba(0);
        let mut parts = BTreeMap::<u64, usize>::new();
        for (start, part) in &self.parts {
            assert!(*start == part.extent.start && end <= *start && part.extent.sectors > 0, "{part:?}");
            end = part.extent.end();
            *parts.entry(part.info.id).or_default() += 1;
            let span = &self.spans[&part.info.id];
            assert_eq!(
                span.extent.intersection(part.extent),
                Some(part.extent),
                "outside of its range: {part:?}"
            );
        }
        assert!(
            parts
                .iter()
                .map(|(id, parts)| (*id, *parts))
                .eq(self.spans.iter().map(|(id, span)| (*id, span.parts)))
        );
        assert!(self.parts.len() <= RANGES_MAX);
        let (discards, zeroes): (Vec<_>, Vec<_>) =
            self.parts.values().partition(|part| part.info.kind == RangeKind::Discard);
        let sum = |parts: Vec<&RangePart>| parts.iter().map(|part| part.extent.sectors).sum::<u64>();
        assert_eq!((self.discarded, self.zeroed), (sum(discards), sum(zeroes)));
        assert_eq!(self.parts_on.values().sum::<usize>(), self.parts.len());
    }
}
