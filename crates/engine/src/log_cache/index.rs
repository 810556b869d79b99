//! The index: where the newest copy of each sector is, and what each segment of the log still holds.
//!
//! It promises:
//!
//! - A segment's counts are the dirty sectors of the table and the dirty ranges that lie in it, after every call. So a segment with
//!   counts of zero may be passed by the tail, once `superseded_by` is durable (rule 6).
//! - A piece or a range becomes clean only by [`Index::clean`] or [`Index::clean_range`], or when newer data replaces it.
//! - A destaged range counts as such until its record is released: recovery would repeat it (rule 7).
//! - A clean piece equals the data disk. It is remembered until the head comes to its segment; a write that bypasses the log,
//!   zeroes and discards drop it.

use super::destaged::Destaged;
use super::disks::{AddressSpace, PART_SECTORS};
use super::format::{EntryKind, FIRST_SEGMENT_SECTOR, Header, LOG_SECTORS_MAX, LogSuperblock};
use super::lost::LostPieces;
use super::table::{
    Line, LookupTable, Lost, PLACE_MAX, Piece, Place, RANGES_MAX, RangeInfo, RangeKind, RangePart, TablePart,
    ZeroRanges,
};
use crate::{Extent, LINE_SECTORS, SECTOR_BYTES};
use std::ops::Range;

const _: () = assert!(LOG_SECTORS_MAX - 1 == PLACE_MAX);

/// Counts and marks of a segment.
#[derive(Clone, Copy, Default)]
struct Holding {
    /// Discards and zeroes in the segment that are not destaged yet.
    dirty_ranges: u32,
    /// The newest record that replaced something dirty in the segment: until that record is durable, the old copy is needed (rule 6).
    superseded_by: u64,
    /// Recovery would find records in the segment.
    is_visible: bool,
    /// A piece in the segment was read.
    is_hit: bool,
}

/// Contents of the segments.
struct Holdings {
    segments: Vec<Holding>,
    /// Sectors that are dirty and the newest copy: of each data disk, in each segment.
    dirty: Vec<Box<[u32]>>,
    /// Dirty sectors of each data disk, and the pieces with them.
    dirty_on: Vec<u64>,
    pieces_on: Vec<u64>,
    segment_sectors: u64,
}

impl Holdings {
    fn segment_of(&self, place: Place) -> u32 {
        ((place.0 - FIRST_SEGMENT_SECTOR) / self.segment_sectors) as u32
    }

    fn of(&mut self, place: Place) -> &mut Holding {
        let segment = self.segment_of(place);
        &mut self.segments[segment as usize]
    }

    fn soil(&mut self, place: Place, disk: usize, sectors: u64) {
        let segment = self.segment_of(place);
        self.dirty[disk][segment as usize] += sectors as u32;
        self.dirty_on[disk] += sectors;
        self.pieces_on[disk] += 1;
    }

    /// Notes that sectors are not dirty any more; `gone`: nothing of their piece is.
    fn clean(&mut self, place: Place, disk: usize, sectors: u8, gone: bool) {
        let segment = self.segment_of(place);
        self.dirty[disk][segment as usize] -= u32::from(sectors);
        self.dirty_on[disk] -= u64::from(sectors);
        self.pieces_on[disk] -= u64::from(gone);
    }

    fn lose(&mut self, lost: Lost, disk: usize, seq: u64) {
        if lost.dirty {
            self.clean(lost.place, disk, lost.sectors, lost.gone);
            let holding = self.of(lost.place);
            holding.superseded_by = holding.superseded_by.max(seq);
        }
    }
}

/// See the module's documentation.
pub struct Index {
    table: LookupTable,
    ranges: ZeroRanges,
    destaged: Destaged,
    /// Pieces of the table that could not be read from the log.
    pub lost: LostPieces,
    range_id: u64,
    space: AddressSpace,
    holdings: Holdings,
    block_sectors: u64,
    /// Clean copies in records before this one do not count.
    kept_seq: u64,
    /// A write has no room in the table while clean copies take it.
    is_asked_for_room: bool,
}

impl Index {
    /// Notes that a write has no room in the table, and that clean copies are to be forgotten.
    pub const fn ask_for_room(&mut self) {
        self.is_asked_for_room = true;
    }

    pub const fn is_asked_for_room(&self) -> bool {
        self.is_asked_for_room
    }

    /// Notes that clean copies were forgotten.
    pub const fn has_made_room(&mut self) {
        self.is_asked_for_room = false;
    }

    /// Creates an index with all its memory, for data disks that are larger than the superblock says if they have grown.
    pub fn new(superblock: &LogSuperblock, space: AddressSpace, lines_max: usize) -> Index {
        let [seed, _] = superblock.cache_uuid.as_chunks::<8>().0 else { unreachable!("it has 16 bytes") };
        Index {
            // No client knows the identifier.
            table: LookupTable::new(&space, lines_max, u64::from_le_bytes(*seed)),
            ranges: ZeroRanges::new(),
            destaged: Destaged::default(),
            lost: LostPieces::default(),
            range_id: 0,
            holdings: Holdings {
                segments: vec![Holding::default(); superblock.segments as usize],
                dirty: vec![vec![0; superblock.segments as usize].into_boxed_slice(); space.count()],
                dirty_on: vec![0; space.count()],
                pieces_on: vec![0; space.count()],
                segment_sectors: superblock.segment_sectors(),
            },
            space,
            block_sectors: superblock.log_block_sectors(),
            kept_seq: superblock.kept_seq,
            is_asked_for_room: false,
        }
    }

    /// The newest data.
    pub const fn table(&self) -> &LookupTable {
        &self.table
    }

    /// Zeroes and discards that are not destaged. Data over them is in the table.
    pub const fn ranges(&self) -> &ZeroRanges {
        &self.ranges
    }

    pub const fn destaged(&self) -> &Destaged {
        &self.destaged
    }

    pub fn segment_of(&self, place: Place) -> u32 {
        self.holdings.segment_of(place)
    }

    fn holding(&self, segment: u32) -> &Holding {
        &self.holdings.segments[segment as usize]
    }

    /// Dirty bytes: data, zeroes and discards that the data disk lacks.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_data_bytes() + (self.ranges.discarded() + self.ranges.zeroed()) * SECTOR_BYTES
    }

    /// Dirty data, without zeroes and discards. (Data over a range that is not destaged yet counts for both.)
    pub fn dirty_data_bytes(&self) -> u64 {
        self.table.counts().dirty_sectors * SECTOR_BYTES
    }

    pub fn is_dirty(&self) -> bool {
        self.table.counts().dirty_sectors > 0 || !self.ranges.is_empty()
    }

    /// True when the log has data, zeroes or a discard that this data disk lacks.
    pub fn is_dirty_on(&self, disk: usize) -> bool {
        self.holdings.dirty_on[disk] > 0 || self.ranges.contains_any(self.space.extent(disk))
    }

    /// Sectors of data that this data disk lacks.
    pub fn dirty_sectors_on(&self, disk: usize) -> u64 {
        self.holdings.dirty_on[disk]
    }

    /// Returns the part of the log, from 0 to 1, that the dirty blocks of a data disk take. A piece counts as a whole line, as it may take
    /// one of the table. Zeroes and discards count by their own limit.
    pub fn part_of(&self, disk: usize) -> f64 {
        let log_sectors = self.holdings.segments.len() as u64 * self.holdings.segment_sectors;
        let sectors = self.holdings.pieces_on[disk] * LINE_SECTORS;
        (sectors as f64 / log_sectors as f64).max(self.ranges.len_on(disk) as f64 / RANGES_MAX as f64)
    }

    /// Dirty bytes: data, zeroes and discards that this data disk lacks.
    pub fn dirty_bytes_on(&self, disk: usize) -> u64 {
        self.dirty_parts_on(disk).iter().sum()
    }

    /// Parts of the dirty bytes that this data disk lacks: of data, of discards, and of zeroes.
    pub fn dirty_parts_on(&self, disk: usize) -> [u64; 3] {
        let [mut discards, mut zeroes] = [self.ranges.discarded(), self.ranges.zeroed()];
        if self.space.count() > 1 {
            [discards, zeroes] = [0, 0];
            for part in self.ranges.lookup(self.space.extent(disk)) {
                match part.info.kind {
                    RangeKind::Discard => discards += part.extent.sectors,
                    RangeKind::Zeroes { .. } => zeroes += part.extent.sectors,
                }
            }
        }
        [self.holdings.dirty_on[disk], discards, zeroes].map(|sectors| sectors * SECTOR_BYTES)
    }

    /// True when the log has data, zeroes or a discard of the extent that the data disk lacks.
    pub fn is_dirty_in(&self, extent: Extent) -> bool {
        self.table.contains_dirty(extent) || self.ranges.contains_any(extent)
    }

    /// True when recovery would destage nothing in the log over the extent.
    pub fn is_silent_on(&self, extent: Extent) -> bool {
        !self.is_dirty_in(extent) && !self.destaged.touches(extent)
    }

    /// True when recovery would find data of the extent in the log, dirty or clean.
    pub fn is_visible_in(&self, extent: Extent) -> bool {
        self.table.any_in(extent, |piece| self.is_visible(piece.place))
    }

    /// True when recovery would find a clean copy of the extent in the log.
    pub fn is_kept_in(&self, extent: Extent) -> bool {
        self.table.any_in(extent, |piece| piece.kept && self.is_visible(piece.place))
    }

    fn is_visible(&self, place: Place) -> bool {
        self.holding(self.segment_of(place)).is_visible
    }

    pub fn has_room_for_range(&self) -> bool {
        self.ranges.has_room()
    }

    /// True while carrying forward may make more parts of ranges: half of them are for clients.
    pub fn may_split_ranges(&self) -> bool {
        self.ranges.len() < RANGES_MAX / 2
    }

    pub fn memory_bytes(&self) -> usize {
        let dirty: usize = self.holdings.dirty.iter().map(|disk| size_of_val(&**disk)).sum();
        size_of_val(&*self.holdings.segments) + dirty
    }

    /// Sectors of a segment that a data disk lacks.
    pub fn dirty_sectors_of(&self, segment: u32, disk: usize) -> u64 {
        u64::from(self.holdings.dirty[disk][segment as usize])
    }

    pub fn is_dirty_segment(&self, segment: u32) -> bool {
        let dirty = (0..self.space.count()).any(|disk| self.dirty_sectors_of(segment, disk) > 0);
        dirty || self.holding(segment).dirty_ranges > 0
    }

    pub fn has_dirty_ranges(&self, segment: u32) -> bool {
        self.holding(segment).dirty_ranges > 0
    }

    /// True when the segment is not needed: nothing in it is dirty, and all that replaced its copies is durable.
    pub fn is_clean(&self, segment: u32, durable: u64) -> bool {
        !self.is_dirty_segment(segment) && self.holding(segment).superseded_by <= durable
    }

    /// Notes the data of record `seq`.
    pub fn insert(&mut self, extent: Extent, place: Place, crc: u32, seq: u64) {
        let first = (extent.start.0 % LINE_SECTORS) as u8;
        let piece = Piece::written(place, first, extent.sectors as u8, crc);
        let (holdings, disk) = (&mut self.holdings, self.space.disk_of(extent.start));
        self.table.insert(Line::of(extent.start), piece, |lost| holdings.lose(lost, disk, seq));
        holdings.soil(place, disk, extent.sectors);
        holdings.of(place).is_visible = true;
        self.lost.prune(extent, &self.table);
    }

    /// Notes a clean copy in record `seq`.
    pub fn insert_kept(&mut self, extent: Extent, place: Place, crc: u32, seq: u64) {
        let first = (extent.start.0 % LINE_SECTORS) as u8;
        let piece = Piece::copied(place, first, extent.sectors as u8, crc);
        let (holdings, disk) = (&mut self.holdings, self.space.disk_of(extent.start));
        self.table.insert(Line::of(extent.start), piece, |lost| holdings.lose(lost, disk, seq));
        holdings.of(place).is_visible = true;
    }

    /// Forgets all clean copies: a lost record may have invalidated them. Does one part of the table; returns the next part, if there is one.
    pub fn forget_kept(&mut self, part: TablePart) -> Option<TablePart> {
        self.table.remove_kept(part)
    }

    /// Notes that a piece was read.
    pub fn mark_hit(&mut self, line: Line, place: Place) {
        if self.table.mark_hit(line, place, true) {
            self.holdings.of(place).is_hit = true;
        }
    }

    /// True when something in the segment was read since it was written there.
    pub fn is_hit(&self, segment: u32) -> bool {
        self.holding(segment).is_hit
    }

    /// Returns the kind of the range that an entry without data makes.
    pub fn range_kind(kind: EntryKind) -> RangeKind {
        match kind {
            EntryKind::Discard => RangeKind::Discard,
            _ => RangeKind::Zeroes { unmap: kind == EntryKind::ZeroesUnmap },
        }
    }

    /// Notes the zeroes or the discard of record `seq`.
    pub fn insert_range(&mut self, extent: Extent, kind: EntryKind, seq: u64, segment: u32) {
        self.forget(extent, seq);
        self.range_id += 1;
        let info = RangeInfo { kind: Index::range_kind(kind), seq, segment, id: self.range_id };
        self.ranges.insert(extent, info, |_| unreachable!("what it covers was cut before"));
        let holding = &mut self.holdings.segments[segment as usize];
        holding.dirty_ranges += 1;
        holding.is_visible = true;
    }

    /// Takes a record that was read from the log; false if the index has no space for all of it.
    pub fn insert_record(&mut self, header: &Header) -> bool {
        let mut place = header.sector + self.block_sectors;
        let segment = self.segment_of(Place(header.sector));
        let mut fits = true;
        for entry in &header.entries {
            match entry.kind {
                EntryKind::Data => {
                    match self.table.has_room(1) {
                        true => self.insert(entry.extent, Place(place), entry.crc, header.seq),
                        false => fits = false,
                    }
                    place += entry.extent.sectors;
                }
                EntryKind::Invalidate => self.forget(entry.extent, header.seq),
                EntryKind::Clean => {
                    self.forget(entry.extent, header.seq);
                    if header.seq < self.kept_seq {
                        // The copy is stale permanently.
                    } else if self.table.has_room(1) {
                        self.insert_kept(entry.extent, Place(place), entry.crc, header.seq);
                    } else {
                        self.destaged.add(entry.extent, header.seq);
                    }
                    place += entry.extent.sectors;
                }
                EntryKind::Left => place += entry.payload_sectors(),
                _ if !self.ranges.has_room() => fits = false,
                kind => self.insert_range(entry.extent, kind, header.seq, segment),
            }
        }
        fits
    }

    /// Notes that record `seq` replaces the extent.
    pub fn forget(&mut self, extent: Extent, seq: u64) {
        let (holdings, disk) = (&mut self.holdings, self.space.disk_of(extent.start));
        self.table.remove_extent(extent, |lost| holdings.lose(lost, disk, seq));
        // A range of which a part is left counts too: that part may be destaged before record `seq` is durable.
        for part in self.ranges.lookup(extent) {
            let holding = &mut holdings.segments[part.info.segment as usize];
            holding.superseded_by = holding.superseded_by.max(seq);
        }
        self.ranges.cut(extent, |gone| holdings.segments[gone.segment as usize].dirty_ranges -= 1);
        self.lost.prune(extent, &self.table);
    }

    /// Forgets zeroes and discards below data that covers the extent. Until that data, in records up to `seq`, is durable, recovery needs
    /// them, and until they are released it repeats them.
    pub fn leave_range(&mut self, extent: Extent, seq: u64) {
        let parts: Vec<RangePart> = self.ranges.lookup(extent).collect();
        let holdings = &mut self.holdings;
        for part in parts {
            let holding = &mut holdings.segments[part.info.segment as usize];
            holding.superseded_by = holding.superseded_by.max(seq);
            self.destaged.add(part.extent, part.info.seq);
        }
        self.ranges.cut(extent, |gone| holdings.segments[gone.segment as usize].dirty_ranges -= 1);
    }

    /// Notes that records before `seq`, at these places, turned out to be destaged. `with_kept`: clean copies are forgotten, too.
    pub fn forget_before(&mut self, seq: u64, places: &[Range<Place>], with_kept: bool) {
        let (mut places, mut old) = (places.to_vec(), Vec::new());
        places.sort_by_key(|part| part.start);
        let is_in = |place: Place| {
            let after = places.partition_point(|part| part.start <= place);
            after > 0 && places[after - 1].contains(&place)
        };
        if !places.is_empty() {
            self.table.scan(|line, piece| {
                if (with_kept || !piece.kept) && is_in(piece.place) {
                    old.push((line, piece.mask));
                }
            });
        }
        for (line, mask) in old {
            let (holdings, disk) = (&mut self.holdings, self.space.disk_of(line.start()));
            self.table.remove_sectors(line, mask, |lost| holdings.lose(lost, disk, 0));
        }
        let ids: Vec<u64> =
            self.ranges.iter().filter(|part| part.info.seq < seq).map(|part| part.info.id).collect();
        for id in ids {
            self.remove_range(id);
        }
    }

    /// Takes a data disk of so many sectors: a new one, or one in the place of a disk of which nothing is left.
    pub fn set_disk(&mut self, disk: usize, sectors: u64) {
        let Holdings { segments, dirty, dirty_on, pieces_on, .. } = &mut self.holdings;
        if disk == dirty.len() {
            dirty.push(vec![0; segments.len()].into_boxed_slice());
            dirty_on.push(0);
            pieces_on.push(0);
        }
        assert_eq!((dirty_on[disk], pieces_on[disk]), (0, 0), "nothing is dirty of the disk");
        self.space.set(disk, sectors);
        self.table.set_disk(disk, sectors);
    }

    /// Forgets the clean copies of a data disk, of which nothing is dirty. Does one part of the table; returns the next part, if there is
    /// one.
    pub fn forget_disk(&mut self, disk: usize, part: TablePart) -> Option<TablePart> {
        let extent = AddressSpace::of(disk, PART_SECTORS);
        self.destaged.forget(extent);
        self.table.remove_clean_of(extent, part)
    }

    /// Forgets everything, of one disk.
    pub fn clear(&mut self) {
        self.table.remove_extent(Extent::new(crate::Lba(0), 1 << 43), |_| {});
        self.ranges = ZeroRanges::new();
        self.destaged = Destaged::default();
        self.holdings.segments.fill(Holding::default());
        self.holdings.dirty.iter_mut().for_each(|disk| disk.fill(0));
        self.holdings.dirty_on.fill(0);
        self.holdings.pieces_on.fill(0);
    }

    /// Notes that a piece is durable on the data disk. Rule 9: clean only if the table still points at the copy that was written.
    pub fn clean(&mut self, line: Line, place: Place) {
        if let Some(sectors) = self.table.mark_clean(line, place) {
            self.holdings.clean(place, self.space.disk_of(line.start()), sectors, true);
        }
    }

    /// Notes that the rest of a range is durable on the data disk.
    pub fn clean_range(&mut self, id: u64) {
        for part in self.remove_range(id) {
            self.destaged.add(part.extent, part.info.seq);
        }
    }

    fn remove_range(&mut self, id: u64) -> Vec<RangePart> {
        let parts: Vec<_> = self.ranges.parts_of(id).collect();
        if let Some(first) = parts.first() {
            self.holdings.segments[first.info.segment as usize].dirty_ranges -= 1;
            self.ranges.remove_by_id(id);
        }
        parts
    }

    /// Forgets a clean copy that cannot be read. False if the copy is dirty, as there is no other then. Recovery may find the copy again:
    /// until all records up to `last_seq` are released, no write bypasses the log there.
    pub fn drop_clean(&mut self, line: Line, place: Place, last_seq: u64) -> bool {
        let piece = self.table.lookup(line).iter().copied().find(|piece| piece.place == place);
        match piece {
            Some(piece) if piece.dirty => return false,
            Some(piece) => {
                if self.is_visible(place) {
                    line.runs(piece.mask, |run| self.destaged.add(run, last_seq));
                }
                self.table.remove_sectors(line, piece.mask, |_| {});
            }
            None => {}
        }
        true
    }

    /// Notes that no superblock will name a record before `first_seq` any more, so recovery does not find these segments.
    pub fn release(&mut self, first_seq: u64, segments: impl Iterator<Item = u32>) {
        for segment in segments {
            assert!(!self.is_dirty_segment(segment), "a free segment holds nothing dirty");
            self.holdings.segments[segment as usize].is_visible = false;
        }
        self.destaged.release(first_seq);
    }

    /// Forgets the clean copies in neighbouring segments that are about to be written again. Some may lie at the end of the log and the
    /// others at its start. Does one part of the table; returns the next part, if there is one.
    pub fn forget_segments(&mut self, segments: [Range<u32>; 2], part: TablePart) -> Option<TablePart> {
        let start =
            |segment: u32| Place(FIRST_SEGMENT_SECTOR + u64::from(segment) * self.holdings.segment_sectors);
        let places = segments.clone().map(|segments| start(segments.start)..start(segments.end));
        let next = self.table.purge(&places, part);
        if next.is_none() {
            for segment in segments.into_iter().flatten() {
                let holding = std::mem::take(&mut self.holdings.segments[segment as usize]);
                assert!(!holding.is_visible, "recovery does not find a segment that is written again");
            }
        }
        next
    }

    /// A planted bug: forgets that a segment holds anything.
    pub fn skip(&mut self, segment: u32) {
        self.holdings.segments[segment as usize] = Holding::default();
        self.holdings.dirty.iter_mut().for_each(|disk| disk[segment as usize] = 0);
    }

    pub fn check(&self) {
        let disks = self.space.count();
        let sum = |disk: &[u32]| disk.iter().map(|sectors| u64::from(*sectors)).sum::<u64>();
        let dirty_on: Vec<u64> = self.holdings.dirty.iter().map(|disk| sum(disk)).collect();
        assert_eq!(dirty_on, self.holdings.dirty_on, "the segments count what each disk lacks");
        let sum: u64 = dirty_on.iter().sum();
        assert_eq!(sum, self.table.counts().dirty_sectors, "the segments count what the table holds");
        if disks == 1 {
            return;
        }
        let mut pieces_on = vec![0; disks];
        self.table.scan(|line, piece| pieces_on[self.space.disk_of(line.start())] += u64::from(piece.dirty));
        assert_eq!(pieces_on, self.holdings.pieces_on, "each dirty piece counts for its disk");
    }
}
