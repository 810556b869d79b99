//! Holds the stripe cache: its sectors of each block, the order in which units are destaged and replaced, and their locks.
//!
//! A *unit* (`unit`) is a stripe (SC), or one parity block group (PBGC). Its memory comes in *pieces*: one for each row, or one for
//! all of its rows (`CacheMemory`). Units without memory are here while their lock is held.
//!
//! | a lock is        | by                                        | meanwhile                                      |
//! |------------------|-------------------------------------------|------------------------------------------------|
//! | free             |                                           |                                                |
//! | shared           | reads of clients at members, prefetching  | writes into the cache, and further reads       |
//! | wanted           | a destage that waits for those reads      | what the cache has is read; all else waits     |
//! | claimed          | a pass that waits for its present holder  | the same                                       |
//! | exclusive        | a recovery, a pass                        | the same                                       |
//! | leaving          | a destage                                 | all but what is *pinned*                       |
//!
//! A destage pins the blocks that its plan counts on until it has computed the parity: clean ones, and those that it reads. What
//! is written to the others meanwhile is written with it, or stays dirty for the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::raid::config::CacheMemory;
use crate::raid::layout::{Chunk, Layout};
use crate::raid::matrix::{BlockStatus, Grid};
use crate::raid::unit::{CachedBlock, Unit, WHOLE};
use crate::{Buf, LINE_BYTES, LINE_SECTORS, SECTOR_BYTES};

const BLOCK: usize = LINE_BYTES as usize;
const SECTOR: usize = SECTOR_BYTES as usize;
/// The most units that are remembered for nothing but their bad sectors.
const BAD_UNITS_MAX: usize = 1024;

/// See the module's documentation.
pub struct StripeCache {
    layout: Layout,
    units: BTreeMap<u64, Box<Unit>>,
    /// Rows of one piece of memory.
    piece_rows: usize,
    /// Pieces that there may be, that there are, and those among them that are neither in clean units nor in units that are being destaged.
    capacity: usize,
    held: usize,
    dirty_held: usize,
    /// Dirty units by number, by the stamp that made them dirty, by their last write.
    dirty: BTreeSet<u64>,
    by_since: BTreeSet<(u64, u64)>,
    by_written: BTreeSet<(u64, u64)>,
    /// Units that hold only what the members have too, by their last use.
    clean: BTreeSet<(u64, u64)>,
    /// Units that were released with bad sectors.
    bad: BTreeSet<u64>,
    stamp: u64,
    /// Clients' buffers have bytes; those of a study of timing have none.
    carries_bytes: bool,
    seen_bytes: bool,
}

/// The part of a chunk in one row: sectors of one block.
struct RowPart {
    /// Sectors into the chunk, and into the block.
    in_chunk: u64,
    in_block: u64,
    sectors: u64,
}

impl RowPart {
    const fn mask(&self) -> u8 {
        ((1u16 << (self.in_block + self.sectors)) - (1u16 << self.in_block)) as u8
    }
}

/// The part of a chunk in one of its rows.
fn part(chunk: Chunk, row: usize) -> RowPart {
    let start = row as u64 * LINE_SECTORS;
    let first = chunk.first.max(start);
    let end = (chunk.first + chunk.sectors).min(start + LINE_SECTORS);
    RowPart { in_chunk: first - chunk.first, in_block: first - start, sectors: end - first }
}

fn rows(chunk: Chunk) -> Range<usize> {
    let first = chunk.first / LINE_SECTORS;
    first as usize..(chunk.first + chunk.sectors).div_ceil(LINE_SECTORS) as usize
}

impl StripeCache {
    pub fn new(layout: Layout, memory: CacheMemory, bytes: u64) -> StripeCache {
        let piece_rows = match memory {
            CacheMemory::Row => 1,
            CacheMemory::Unit => layout.rows,
        };
        let units_bytes = bytes.max(layout.unit_bytes() as u64);
        let cache = StripeCache {
            layout,
            units: BTreeMap::new(),
            piece_rows,
            capacity: 0,
            held: 0,
            dirty_held: 0,
            dirty: BTreeSet::new(),
            by_since: BTreeSet::new(),
            by_written: BTreeSet::new(),
            clean: BTreeSet::new(),
            bad: BTreeSet::new(),
            stamp: 0,
            carries_bytes: true,
            seen_bytes: false,
        };
        // Room for one unit at least, or its writes would wait for ever.
        StripeCache { capacity: (units_bytes / cache.piece_bytes() as u64) as usize, ..cache }
    }

    const fn piece_bytes(&self) -> usize {
        self.piece_rows * self.layout.shape.data * BLOCK
    }

    /// RAM that clean and dirty blocks may take.
    pub const fn capacity_bytes(&self) -> u64 {
        (self.capacity * self.piece_bytes()) as u64
    }

    pub const fn held_bytes(&self) -> u64 {
        (self.held * self.piece_bytes()) as u64
    }

    /// The share of the RAM that has to be destaged before it can be used again. What is being destaged counts as clean:
    /// otherwise all would go at once, whatever the low mark says.
    pub fn utilisation(&self) -> f64 {
        self.dirty_held as f64 / self.capacity as f64
    }

    /// The numbers of the dirty units.
    pub const fn dirty(&self) -> &BTreeSet<u64> {
        &self.dirty
    }

    /// Blocks with something that is not on the members.
    pub fn dirty_blocks(&self) -> usize {
        self.dirty.iter().map(|unit| self.units[unit].dirty_blocks).sum()
    }

    /// The dirty units, those first that have been dirty for the longest time.
    pub fn by_since(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_since.iter().copied()
    }

    /// The dirty units that are not being destaged, the least recently written first.
    pub fn by_written(&self) -> impl Iterator<Item = u64> + '_ {
        self.by_written.iter().map(|(_, unit)| *unit)
    }

    /// The dirty unit that is not being destaged and was written next after a stamp, and when.
    pub fn written_after(&self, stamp: u64) -> Option<(u64, u64)> {
        self.by_written.range((stamp + 1, 0)..).next().copied()
    }

    /// A dirty unit may be destaged now.
    pub fn can_destage(&self, unit: u64) -> bool {
        self.get(unit).is_some_and(|unit| unit.may_leave() && unit.readers == 0)
    }

    /// Dirty since a stamp, or for longer.
    pub fn is_behind(&self, unit: u64, stamp: u64) -> bool {
        self.get(unit).is_some_and(|unit| unit.is_dirty() && unit.since() <= stamp)
    }

    /// The first of some units that is dirty since a stamp and may be destaged now. Units before it that only readers are in the way of are
    /// closed to more readers.
    pub fn first_behind(&self, units: impl Iterator<Item = u64>, stamp: u64) -> (Option<u64>, Vec<u64>) {
        let mut read = Vec::new();
        for unit in units.filter(|unit| self.is_behind(*unit, stamp)) {
            match self.get(unit).filter(|entry| entry.may_leave()) {
                Some(entry) if entry.readers > 0 => read.push(unit),
                Some(_) => return (Some(unit), read),
                None => {}
            }
        }
        (None, read)
    }

    /// Returns the newest stamp: everything that was written by now has this stamp or an older one.
    pub const fn stamp(&self) -> u64 {
        self.stamp
    }

    pub const fn carries_bytes(&self) -> bool {
        self.carries_bytes
    }

    /// A client's buffer: the first ones say whether this is a study of timing.
    pub fn saw(&mut self, buf: &Buf) {
        self.seen_bytes |= !buf.is_blank();
        self.carries_bytes = self.seen_bytes;
    }

    /// Memory for blocks: blank in a study of timing.
    pub fn buffer(&self, bytes: usize) -> Buf {
        if self.carries_bytes { Buf::zeroed(bytes) } else { Buf::blank(bytes) }
    }

    pub fn get(&self, unit: u64) -> Option<&Unit> {
        self.units.get(&unit).map(Box::as_ref)
    }

    /// A unit, made where it is missing.
    pub fn unit(&mut self, unit: u64) -> &mut Unit {
        let cells = self.layout.rows * self.layout.shape.data;
        let pieces = self.layout.rows / self.piece_rows;
        self.units.entry(unit).or_insert_with(|| {
            Box::new(Unit {
                blocks: vec![CachedBlock::default(); cells],
                pieces: (0..pieces).map(|_| None).collect(),
                ..Unit::default()
            })
        })
    }

    /// New reads of a chunk at its member, and writes to it, have to wait.
    pub fn is_locked(&self, chunk: Chunk) -> bool {
        let Some(unit) = self.units.get(&chunk.unit) else { return false };
        let pinned = |row: usize| unit.blocks[self.index(row, chunk.column)].pinned;
        unit.is_closed() || (unit.leaving && rows(chunk).any(pinned))
    }

    /// Pins the blocks, by row and column, that must not be written before a planned destage has computed the parity.
    pub fn pin(&mut self, unit: u64, pinned: impl Fn((usize, usize)) -> bool) {
        let data = self.layout.shape.data;
        for (index, block) in self.unit(unit).blocks.iter_mut().enumerate() {
            block.pinned = pinned((index / data, index % data));
        }
    }

    /// A destage has computed: which blocks are written as they are now.
    pub fn take_along(&mut self, unit: u64, taken: impl Fn((usize, usize)) -> bool) {
        let data = self.layout.shape.data;
        for (index, block) in self.unit(unit).blocks.iter_mut().enumerate() {
            (block.pinned, block.taken) = (false, taken((index / data, index % data)));
        }
    }

    /// A planted bug: everything counts as taken along.
    pub fn take_all_along(&mut self, unit: u64) {
        let blocks = self.unit(unit).blocks.iter_mut();
        blocks.filter(|block| block.valid == WHOLE).for_each(|block| block.taken = true);
    }

    /// Makes room for a chunk; false where the cache is full of dirty units.
    pub fn hold(&mut self, chunk: Chunk) -> bool {
        let rows = rows(chunk);
        let pieces = rows.start / self.piece_rows..rows.end.div_ceil(self.piece_rows);
        let missing: Vec<usize> = {
            let entry = self.unit(chunk.unit);
            pieces.filter(|&piece| entry.pieces[piece].is_none()).collect()
        };
        while self.held + missing.len() > self.capacity {
            if !self.evict(chunk.unit) {
                return false;
            }
        }
        missing.into_iter().for_each(|piece| self.allocate(chunk.unit, piece));
        true
    }

    fn allocate(&mut self, unit: u64, piece: usize) {
        let bytes = self.buffer(self.piece_bytes());
        self.stamp += 1;
        let stamp = self.stamp;
        let entry = self.unit(unit);
        assert!(entry.pieces[piece].is_none(), "a piece of memory is given once");
        entry.pieces[piece] = Some(bytes);
        entry.held += 1;
        let (first, dirty, leaving) = (entry.held == 1, entry.is_dirty(), entry.leaving);
        if first {
            entry.used = stamp;
            self.clean.insert((stamp, unit));
        }
        self.dirty_held += usize::from(dirty && !leaving);
        self.held += 1;
    }

    /// Takes the memory of the least recently used unit that is clean and not in use.
    fn evict(&mut self, but: u64) -> bool {
        let victim = self.clean.iter().find(|(_, unit)| *unit != but && self.units[unit].is_idle());
        let Some(&(_, unit)) = victim else { return false };
        self.let_go(unit);
        true
    }

    fn let_go(&mut self, unit: u64) {
        let entry = self.units.get_mut(&unit).expect("it is there");
        self.clean.remove(&(entry.used, unit));
        entry.pieces.fill_with(|| None);
        entry.blocks.fill(CachedBlock::default());
        self.held -= std::mem::take(&mut entry.held);
        self.release(unit);
    }

    /// Takes memory back that was given beyond the capacity.
    pub fn trim(&mut self) {
        while self.held > self.capacity && self.evict(u64::MAX) {}
    }

    /// Forgets a unit that is not in use and holds nothing. If it has bad sectors it is one of those that are remembered.
    pub fn release(&mut self, unit: u64) {
        let is_unused = |unit: &Unit| unit.is_idle() && !unit.is_held();
        match self.get(unit).filter(|entry| is_unused(entry)).map(|entry| entry.bad.is_empty()) {
            Some(true) => {
                self.units.remove(&unit);
                self.bad.remove(&unit);
            }
            Some(false) => {
                self.bad.insert(unit);
            }
            None => {}
        }
        if self.bad.len() > BAD_UNITS_MAX
            && let Some(other) = self.bad.pop_first()
            && self.get(other).is_some_and(is_unused)
        {
            // Its next reader or destage finds them again.
            self.units.remove(&other);
        }
    }

    fn touch(&mut self, unit: u64) {
        let entry = self.units.get_mut(&unit).expect("it is there");
        if entry.is_held() && !entry.is_dirty() {
            self.clean.remove(&(entry.used, unit));
            self.stamp += 1;
            entry.used = self.stamp;
            self.clean.insert((entry.used, unit));
        }
    }

    /// Memory from the time before the first bytes came.
    pub fn materialise(&mut self, unit: u64) {
        let Some(entry) = self.units.get_mut(&unit).filter(|_| self.carries_bytes) else { return };
        for bytes in entry.pieces.iter_mut().flatten().filter(|bytes| bytes.is_blank()) {
            *bytes = Buf::zeroed(bytes.len());
        }
    }

    /// The piece of memory that has a block, and where in it.
    const fn place(&self, row: usize, column: usize) -> (usize, usize) {
        let in_piece = row % self.piece_rows;
        (row / self.piece_rows, (column * self.piece_rows + in_piece) * BLOCK)
    }

    fn index(&self, row: usize, column: usize) -> usize {
        row * self.layout.shape.data + column
    }

    /// Copies new data into a unit that holds the chunk's rows.
    pub fn write(&mut self, chunk: Chunk, source: &Buf, at: usize) {
        self.stamp += 1;
        let stamp = self.stamp;
        self.materialise(chunk.unit);
        for row in rows(chunk) {
            let part = part(chunk, row);
            let (piece, offset) = self.place(row, chunk.column);
            let index = self.index(row, chunk.column);
            let entry = self.units.get_mut(&chunk.unit).expect("it is held");
            let bytes = entry.pieces[piece].as_mut().expect("it is held");
            let from = at + part.in_chunk as usize * SECTOR;
            bytes.copy_from(
                offset + part.in_block as usize * SECTOR,
                source,
                from,
                part.sectors as usize * SECTOR,
            );
            let block = &mut entry.blocks[index];
            entry.dirty_blocks += usize::from(block.dirty == 0);
            // A stripe that is filled block by block gets no second chance.
            entry.referenced |= block.dirty & part.mask() != 0;
            block.valid |= part.mask();
            block.dirty |= part.mask();
            block.taken = false;
        }
        self.written(chunk.unit, stamp);
    }

    fn written(&mut self, unit: u64, stamp: u64) {
        let entry = self.units.get_mut(&unit).expect("it is held");
        if self.dirty.contains(&unit) {
            self.by_written.remove(&(entry.written, unit));
        } else {
            self.clean.remove(&(entry.used, unit));
            entry.since = stamp;
            entry.referenced = false;
            self.dirty.insert(unit);
            self.by_since.insert((stamp, unit));
            self.dirty_held += entry.held;
        }
        entry.written = stamp;
        if entry.leaving {
            entry.late.get_or_insert(stamp);
        } else {
            self.by_written.insert((stamp, unit));
        }
    }

    /// The destage of a dirty unit begins, or ends without success.
    pub fn set_leaving(&mut self, unit: u64, leaving: bool) {
        let entry = self.units.get_mut(&unit).expect("it is there");
        entry.late = None;
        for block in &mut entry.blocks {
            (block.pinned, block.taken) = (false, false);
        }
        match (std::mem::replace(&mut entry.leaving, leaving), leaving) {
            (false, true) => {
                self.dirty_held -= entry.held;
                self.by_written.remove(&(entry.written, unit));
            }
            (true, false) => {
                self.dirty_held += entry.held;
                self.by_written.insert((entry.written, unit));
            }
            _ => {}
        }
    }

    /// Fills a block whose content is unknown with zeroes; what was written of it stays.
    pub fn void(&mut self, unit: u64, row: usize, column: usize) {
        match self.status(unit, row, column) {
            BlockStatus::Empty => {
                let first = row as u64 * LINE_SECTORS;
                self.write(Chunk { unit, column, first, sectors: LINE_SECTORS }, &Buf::blank(BLOCK), 0);
            }
            BlockStatus::Partial => self.fill(unit, row, column, &[]),
            BlockStatus::Clean | BlockStatus::Dirty => {}
        }
    }

    /// The blocks that a destage took along are on the members.
    pub fn destaged(&mut self, unit: u64) {
        self.stamp += 1;
        let entry = self.units.get_mut(&unit).expect("it is there");
        if !entry.is_dirty() {
            return;
        }
        for block in entry.blocks.iter_mut().filter(|block| block.taken) {
            assert!(block.valid == WHOLE, "what is destaged is whole");
            (block.dirty, block.taken) = (0, false);
        }
        entry.dirty_blocks = entry.blocks.iter().filter(|block| block.dirty != 0).count();
        self.by_since.remove(&(entry.since, unit));
        if entry.is_dirty() {
            entry.since = entry.late.expect("what is dirty still was written since");
            self.by_since.insert((entry.since, unit));
            return;
        }
        if !std::mem::take(&mut entry.leaving) {
            self.dirty_held -= entry.held;
        }
        self.dirty.remove(&unit);
        self.by_written.remove(&(entry.written, unit));
        entry.used = self.stamp;
        self.clean.insert((entry.used, unit));
    }

    /// True when the cache has all of a chunk.
    pub fn has(&self, chunk: Chunk) -> bool {
        self.units.get(&chunk.unit).is_some_and(|entry| {
            rows(chunk).all(|row| {
                let mask = part(chunk, row).mask();
                entry.blocks[self.index(row, chunk.column)].valid & mask == mask
            })
        })
    }

    /// The rows of a chunk of which the cache lacks something.
    pub fn lacks(&self, chunk: Chunk) -> impl Iterator<Item = usize> + '_ {
        let valid = move |row: usize| {
            let entry = self.units.get(&chunk.unit);
            entry.map_or(0, |entry| entry.blocks[self.index(row, chunk.column)].valid)
        };
        rows(chunk).filter(move |&row| {
            let mask = part(chunk, row).mask();
            valid(row) & mask != mask
        })
    }

    /// Puts what the cache has of a chunk over what a member gave, or over nothing.
    pub fn read(&mut self, chunk: Chunk, target: &mut Buf, at: usize) {
        self.touch(chunk.unit);
        for row in rows(chunk) {
            let part = part(chunk, row);
            let (piece, offset) = self.place(row, chunk.column);
            let entry = &self.units[&chunk.unit];
            let Some(bytes) = &entry.pieces[piece] else { continue };
            let valid = entry.blocks[self.index(row, chunk.column)].valid;
            let to = at + part.in_chunk as usize * SECTOR;
            if valid & part.mask() == part.mask() {
                let from = offset + part.in_block as usize * SECTOR;
                target.copy_from(to, bytes, from, part.sectors as usize * SECTOR);
                continue;
            }
            for sector in (0..part.sectors).filter(|sector| valid >> (part.in_block + sector) & 1 == 1) {
                let from = offset + (part.in_block + sector) as usize * SECTOR;
                target.copy_from(to + sector as usize * SECTOR, bytes, from, SECTOR);
            }
        }
    }

    /// A read of a chunk has returned: whole blocks of which the cache has nothing are kept, where there is memory.
    pub fn keep(&mut self, chunk: Chunk, source: &Buf) {
        let Some(entry) = self.units.get(&chunk.unit).filter(|entry| entry.is_held()) else { return };
        let has_room = |row: &usize| entry.pieces[self.place(*row, chunk.column).0].is_some();
        let is_empty = |row: &usize| entry.blocks[self.index(*row, chunk.column)].valid == 0;
        let whole = |row: &usize| part(chunk, *row).mask() == WHOLE;
        let empty: Vec<usize> =
            rows(chunk).filter(|row| whole(row) && has_room(row) && is_empty(row)).collect();
        for row in empty {
            let at = (row as u64 * LINE_SECTORS - chunk.first) as usize * SECTOR;
            let block = if source.is_blank() { &[] } else { &source.bytes()[at..at + BLOCK] };
            self.fill(chunk.unit, row, chunk.column, block);
        }
    }

    /// Fills the sectors of a block that the cache lacks with what is on the disk; no bytes are zeroes. Takes memory beyond
    /// the capacity where there is none for the block.
    pub fn fill(&mut self, unit: u64, row: usize, column: usize, source: &[u8]) {
        let (index, (piece, offset)) = (self.index(row, column), self.place(row, column));
        if self.unit(unit).pieces[piece].is_none() {
            self.allocate(unit, piece);
        }
        self.materialise(unit);
        let entry = self.units.get_mut(&unit).expect("it is held");
        let bytes = entry.pieces[piece].as_mut().expect("it is held");
        let block = &mut entry.blocks[index];
        for sector in (0..LINE_SECTORS as usize).filter(|sector| block.valid >> sector & 1 == 0) {
            let at = offset + sector * SECTOR;
            match source {
                [] => bytes.zero(at, SECTOR),
                _ if bytes.is_blank() => {}
                _ => bytes.bytes_mut()[at..at + SECTOR]
                    .copy_from_slice(&source[sector * SECTOR..(sector + 1) * SECTOR]),
            }
        }
        block.valid = WHOLE;
    }

    /// An element of the matrix Z.
    pub fn status(&self, unit: u64, row: usize, column: usize) -> BlockStatus {
        self.units
            .get(&unit)
            .map_or(BlockStatus::Empty, |entry| entry.blocks[self.index(row, column)].status())
    }

    /// The matrix Z of a unit.
    pub fn z(&self, unit: u64) -> Grid<BlockStatus> {
        let data = self.layout.shape.data;
        let mut z = Grid::new(self.layout.rows, data);
        for (index, block) in self.units.get(&unit).into_iter().flat_map(|entry| &entry.blocks).enumerate() {
            z[(index / data, index % data)] = block.status();
        }
        z
    }

    /// The bytes of a block that is in the cache.
    pub fn bytes(&self, unit: u64, row: usize, column: usize) -> &[u8] {
        let (piece, offset) = self.place(row, column);
        let bytes = self.units[&unit].pieces[piece].as_ref().expect("it is held");
        &bytes.bytes()[offset..offset + BLOCK]
    }

    /// Copies blocks of a column that are in the cache, for a write.
    pub fn copy_out(&self, unit: u64, row: usize, column: usize, target: &mut Buf, at: usize) {
        let (piece, offset) = self.place(row, column);
        let bytes = self.units[&unit].pieces[piece].as_ref().expect("it is held");
        target.copy_from(at, bytes, offset, BLOCK);
    }

    /// Numbers of the units that a policy for the second chance has passed over.
    pub fn pass_over(&mut self, unit: u64) {
        self.unit(unit).referenced = false;
    }

    pub fn check(&self) {
        let count = |unit: &Unit| unit.pieces.iter().flatten().count();
        let units = || self.units.values().map(Box::as_ref);
        assert_eq!(units().map(count).sum::<usize>(), self.held, "memory is counted");
        let stays = units().filter(|unit| unit.is_dirty() && !unit.leaving);
        assert_eq!(stays.map(count).sum::<usize>(), self.dirty_held, "memory of dirty units is counted");
        let held = self.units.values().filter(|unit| unit.is_held()).count();
        let dirty = self.units.values().filter(|unit| unit.is_dirty()).count();
        assert!([self.dirty.len(), self.by_since.len()] == [dirty; 2]);
        let leaving = self.units.values().filter(|unit| unit.leaving).count();
        assert_eq!(self.by_written.len(), dirty - leaving);
        assert_eq!(self.clean.len(), held - dirty, "what is held is clean or dirty");
        for (number, unit) in &self.units {
            assert!(!unit.is_dirty() || self.by_since.contains(&(unit.since, *number)));
            let stays = unit.is_dirty() && !unit.leaving;
            assert_eq!(self.by_written.contains(&(unit.written, *number)), stays);
            assert_eq!(unit.blocks.iter().filter(|block| block.dirty != 0).count(), unit.dirty_blocks);
            assert!(unit.blocks.iter().all(|block| block.dirty & !block.valid == 0));
            assert_eq!(unit.held, count(unit));
            assert!(!unit.leaving || (unit.is_dirty() && unit.exclusive), "what is being destaged is locked");
            let lies = |(index, block): (usize, &CachedBlock)| {
                let row = index / self.layout.shape.data;
                block.valid != 0 && unit.pieces[row / self.piece_rows].is_none()
            };
            assert!(!unit.blocks.iter().enumerate().any(lies), "what is valid has memory");
            let alone = unit.exclusive && !unit.leaving;
            assert!(!(alone && unit.readers > 0), "a lock is shared or exclusive");
            let idle = unit.readers == 0 && !unit.exclusive;
            let awaited = !unit.waiting.is_empty() || unit.claimed.is_some();
            assert!(!idle || !awaited, "nobody waits for a lock that is free");
        }
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
