//! The stripe cache: what it has of each block, the order in which units are destaged and replaced, and their locks.
//!
//! A *unit* is a stripe (SC), or one parity block group (PBGC). A unit that holds anything has memory for all of its data
//! blocks (Baek and Park, section III-G3), so that a column is one piece of memory. Units without memory are here while
//! somebody holds their lock.
//!
//! | a lock is        | by                                        | meanwhile                                      |
//! |------------------|-------------------------------------------|------------------------------------------------|
//! | free             |                                           |                                                |
//! | shared           | reads of clients that go to members       | writes into the cache, and further reads       |
//! | wanted           | a destage that waits for those reads      | what the cache has is read; all else waits     |
//! | claimed          | a pass that waits for whoever has it      | the same                                       |
//! | exclusive        | a destage, a recovery, a pass             | the same                                       |

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use crate::raid::layout::{Chunk, Layout};
use crate::raid::matrix::Status;
use crate::{Buf, LINE_BYTES, LINE_SECTORS, SECTOR_BYTES};

const BLOCK: usize = LINE_BYTES as usize;
const SECTOR: usize = SECTOR_BYTES as usize;
const WHOLE: u8 = 0xff;

/// A block: one bit for each sector.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Block {
    /// In the cache.
    valid: u8,
    /// Newer than on the disk.
    dirty: u8,
}

/// A part of a client's request that waits for a lock.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub request: u64,
    pub chunk: Chunk,
    /// Where its bytes are in the request's buffer.
    pub at: usize,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Unit {
    /// Row by row.
    blocks: Vec<Block>,
    /// Column by column; none while it holds nothing.
    bytes: Option<Buf>,
    dirty_blocks: usize,
    /// The stamp of the write that made it dirty, of the last write, and of the last use.
    since: u64,
    written: u64,
    used: u64,
    /// Written again since it became dirty, or since it was passed over.
    pub referenced: bool,
    /// Reads at members.
    pub readers: u32,
    pub exclusive: bool,
    pub wanted: bool,
    /// The window of a pass that gets the lock next.
    pub claimed: Option<u64>,
    pub waiting: VecDeque<Piece>,
    /// Rows of which something has to be computed, as a member cannot give it.
    pub fetch: Option<BTreeSet<usize>>,
    /// A read of several blocks has failed: which of them is found out one by one.
    pub singly: bool,
    /// Bad sectors, by (row, column).
    pub bad: BTreeSet<(usize, usize)>,
}

impl Unit {
    pub const fn is_dirty(&self) -> bool {
        self.dirty_blocks > 0
    }

    pub const fn is_held(&self) -> bool {
        self.bytes.is_some()
    }

    pub const fn since(&self) -> u64 {
        self.since
    }

    pub const fn written(&self) -> u64 {
        self.written
    }

    pub const fn dirty_blocks(&self) -> usize {
        self.dirty_blocks
    }

    /// New reads at members and writes have to wait.
    pub fn is_locked(&self) -> bool {
        self.exclusive
            || self.wanted
            || self.claimed.is_some()
            || self.fetch.is_some()
            || !self.waiting.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.readers == 0 && !self.is_locked()
    }
}

/// See the module's documentation.
pub struct StripeCache {
    layout: Layout,
    units: BTreeMap<u64, Unit>,
    /// How many units may hold memory, and how many do.
    capacity: usize,
    held: usize,
    /// Dirty units by number, by the stamp that made them dirty, by their last write.
    dirty: BTreeSet<u64>,
    by_since: BTreeSet<(u64, u64)>,
    by_written: BTreeSet<(u64, u64)>,
    /// Units that hold only what the members have too, by their last use.
    clean: BTreeSet<(u64, u64)>,
    stamp: u64,
    /// Clients' buffers have bytes; those of a study of timing have none.
    carries_bytes: bool,
    seen_bytes: bool,
}

/// The bits of the sectors `first..first + count` of a column that lie in one of its rows.
fn mask(first: u64, count: u64, row: usize) -> u8 {
    let start = row as u64 * LINE_SECTORS;
    let from = first.max(start) - start;
    let to = (first + count).min(start + LINE_SECTORS).saturating_sub(start);
    if from >= to {
        return 0;
    }
    ((1u16 << to) - (1u16 << from)) as u8
}

fn rows(chunk: Chunk) -> Range<usize> {
    let first = chunk.first / LINE_SECTORS;
    first as usize..(chunk.first + chunk.sectors).div_ceil(LINE_SECTORS) as usize
}

impl StripeCache {
    pub fn new(layout: Layout, bytes: u64) -> StripeCache {
        StripeCache {
            layout,
            units: BTreeMap::new(),
            capacity: (bytes / layout.unit_bytes() as u64).max(1) as usize,
            held: 0,
            dirty: BTreeSet::new(),
            by_since: BTreeSet::new(),
            by_written: BTreeSet::new(),
            clean: BTreeSet::new(),
            stamp: 0,
            carries_bytes: true,
            seen_bytes: false,
        }
    }

    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    pub const fn held(&self) -> usize {
        self.held
    }

    /// The numbers of the dirty units.
    pub const fn dirty(&self) -> &BTreeSet<u64> {
        &self.dirty
    }

    /// Blocks with something that is not home.
    pub fn dirty_blocks(&self) -> usize {
        self.dirty.iter().map(|unit| self.units[unit].dirty_blocks).sum()
    }

    /// The dirty units, those first that have been dirty for the longest time.
    pub fn by_since(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_since.iter().copied()
    }

    /// The dirty units, the least recently written first.
    pub fn by_written(&self) -> impl Iterator<Item = u64> + '_ {
        self.by_written.iter().map(|(_, unit)| *unit)
    }

    /// Everything that was written by now has a stamp of this or less.
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
        self.units.get(&unit)
    }

    /// A unit, made where it is not there.
    pub fn unit(&mut self, unit: u64) -> &mut Unit {
        let cells = self.layout.rows * self.layout.shape.data;
        self.units
            .entry(unit)
            .or_insert_with(|| Unit { blocks: vec![Block::default(); cells], ..Unit::default() })
    }

    /// Gives a unit memory; false where the cache is full of dirty units. `force`: beyond the capacity.
    pub fn hold(&mut self, unit: u64, force: bool) -> bool {
        if self.unit(unit).is_held() {
            return true;
        }
        if self.held >= self.capacity && !self.evict(unit) && !force {
            return false;
        }
        let bytes = self.buffer(self.layout.unit_bytes());
        self.stamp += 1;
        let stamp = self.stamp;
        let entry = self.unit(unit);
        entry.bytes = Some(bytes);
        entry.used = stamp;
        self.clean.insert((stamp, unit));
        self.held += 1;
        true
    }

    /// Takes the memory of the least recently used unit that is clean and that nobody uses.
    fn evict(&mut self, but: u64) -> bool {
        let victim = self.clean.iter().find(|(_, unit)| *unit != but && self.units[unit].is_idle());
        let Some(&(_, unit)) = victim else { return false };
        self.let_go(unit);
        true
    }

    fn let_go(&mut self, unit: u64) {
        let entry = self.units.get_mut(&unit).expect("it is there");
        self.clean.remove(&(entry.used, unit));
        entry.bytes = None;
        entry.blocks.fill(Block::default());
        self.held -= 1;
        self.release(unit);
    }

    /// Takes memory back that was given beyond the capacity.
    pub fn trim(&mut self) {
        while self.held > self.capacity && self.evict(u64::MAX) {}
    }

    /// Forgets a unit that nobody uses and that holds nothing.
    pub fn release(&mut self, unit: u64) {
        let gone = |unit: &Unit| unit.is_idle() && !unit.is_held() && unit.bad.is_empty();
        if self.units.get(&unit).is_some_and(gone) {
            self.units.remove(&unit);
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
        if let Some(bytes) = self.units.get_mut(&unit).and_then(|entry| entry.bytes.as_mut())
            && bytes.is_blank()
            && self.carries_bytes
        {
            *bytes = Buf::zeroed(bytes.len());
        }
    }

    fn offset(&self, row: usize, column: usize) -> usize {
        (column * self.layout.rows + row) * BLOCK
    }

    fn index(&self, row: usize, column: usize) -> usize {
        row * self.layout.shape.data + column
    }

    /// Copies new data into a unit that is held.
    pub fn write(&mut self, chunk: Chunk, source: &Buf, at: usize) {
        self.stamp += 1;
        let stamp = self.stamp;
        let offset = self.offset(0, chunk.column) + chunk.first as usize * SECTOR;
        let rows = rows(chunk);
        let data = self.layout.shape.data;
        self.materialise(chunk.unit);
        let entry = self.units.get_mut(&chunk.unit).expect("it is held");
        let bytes = entry.bytes.as_mut().expect("it is held");
        bytes.copy_from(offset, source, at, chunk.sectors as usize * SECTOR);
        let was_dirty = entry.is_dirty();
        for row in rows {
            let block = &mut entry.blocks[row * data + chunk.column];
            let mask = mask(chunk.first, chunk.sectors, row);
            entry.dirty_blocks += usize::from(block.dirty == 0);
            block.valid |= mask;
            block.dirty |= mask;
        }
        if was_dirty {
            self.by_written.remove(&(entry.written, chunk.unit));
            entry.referenced = true;
        } else {
            self.clean.remove(&(entry.used, chunk.unit));
            entry.since = stamp;
            entry.referenced = false;
            self.dirty.insert(chunk.unit);
            self.by_since.insert((stamp, chunk.unit));
        }
        entry.written = stamp;
        self.by_written.insert((stamp, chunk.unit));
    }

    /// A block of which nobody knows what it held becomes zeroes; what was written of it stays.
    pub fn void(&mut self, unit: u64, row: usize, column: usize) {
        match self.status(unit, row, column) {
            Status::Empty => {
                let first = row as u64 * LINE_SECTORS;
                self.write(Chunk { unit, column, first, sectors: LINE_SECTORS }, &Buf::blank(BLOCK), 0);
            }
            Status::Partial => self.fill(unit, row, column, &[]),
            Status::Clean | Status::Dirty => {}
        }
    }

    /// Everything dirty in a unit is home.
    pub fn is_home(&mut self, unit: u64) {
        self.stamp += 1;
        let entry = self.units.get_mut(&unit).expect("it is there");
        if !entry.is_dirty() {
            return;
        }
        for block in &mut entry.blocks {
            assert!(block.dirty == 0 || block.valid == WHOLE, "what goes home is whole");
            block.dirty = 0;
        }
        entry.dirty_blocks = 0;
        self.dirty.remove(&unit);
        self.by_since.remove(&(entry.since, unit));
        self.by_written.remove(&(entry.written, unit));
        entry.used = self.stamp;
        self.clean.insert((entry.used, unit));
    }

    /// Whether the cache has all of a chunk.
    pub fn has(&self, chunk: Chunk) -> bool {
        self.units.get(&chunk.unit).is_some_and(|entry| {
            rows(chunk).all(|row| {
                let mask = mask(chunk.first, chunk.sectors, row);
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
            let mask = mask(chunk.first, chunk.sectors, row);
            valid(row) & mask != mask
        })
    }

    /// Puts what the cache has of a chunk over what a member gave, or over nothing.
    pub fn read(&mut self, chunk: Chunk, target: &mut Buf, at: usize) {
        self.touch(chunk.unit);
        let entry = &self.units[&chunk.unit];
        let Some(bytes) = &entry.bytes else { return };
        let base = self.offset(0, chunk.column);
        if self.has(chunk) {
            let offset = base + chunk.first as usize * SECTOR;
            return target.copy_from(at, bytes, offset, chunk.sectors as usize * SECTOR);
        }
        for sector in chunk.first..chunk.first + chunk.sectors {
            let (row, bit) = ((sector / LINE_SECTORS) as usize, sector % LINE_SECTORS);
            if entry.blocks[self.index(row, chunk.column)].valid >> bit & 1 == 1 {
                let to = at + (sector - chunk.first) as usize * SECTOR;
                target.copy_from(to, bytes, base + sector as usize * SECTOR, SECTOR);
            }
        }
    }

    /// A read of a chunk has returned: whole blocks of which the cache has nothing are kept, where the unit has memory.
    pub fn keep(&mut self, chunk: Chunk, source: &Buf) {
        let Some(entry) = self.units.get(&chunk.unit).filter(|entry| entry.is_held()) else { return };
        let whole = |row: &usize| mask(chunk.first, chunk.sectors, *row) == WHOLE;
        let index = |row: &usize| self.index(*row, chunk.column);
        let empty: Vec<usize> =
            rows(chunk).filter(|row| whole(row) && entry.blocks[index(row)].valid == 0).collect();
        for row in empty {
            let at = (row as u64 * LINE_SECTORS - chunk.first) as usize * SECTOR;
            let block = if source.is_blank() { &[] } else { &source.bytes()[at..at + BLOCK] };
            self.fill(chunk.unit, row, chunk.column, block);
        }
    }

    /// Fills the sectors of a block that the cache lacks with what is on the disk; no bytes are zeroes.
    pub fn fill(&mut self, unit: u64, row: usize, column: usize, source: &[u8]) {
        let (index, offset) = (self.index(row, column), self.offset(row, column));
        self.materialise(unit);
        let entry = self.units.get_mut(&unit).expect("it is held");
        let bytes = entry.bytes.as_mut().expect("it is held");
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
    pub fn status(&self, unit: u64, row: usize, column: usize) -> Status {
        let Some(entry) = self.units.get(&unit) else { return Status::Empty };
        match entry.blocks[self.index(row, column)] {
            Block { valid: 0, .. } => Status::Empty,
            Block { valid: WHOLE, dirty: 0 } => Status::Clean,
            Block { valid: WHOLE, .. } => Status::Dirty,
            Block { dirty: 0, .. } => unreachable!("a block is filled whole or written"),
            Block { .. } => Status::Partial,
        }
    }

    /// The bytes of a block that is in the cache.
    pub fn bytes(&self, unit: u64, row: usize, column: usize) -> &[u8] {
        let offset = self.offset(row, column);
        let bytes = self.units[&unit].bytes.as_ref().expect("it is held");
        &bytes.bytes()[offset..offset + BLOCK]
    }

    /// Copies blocks of a column that are in the cache, for a write.
    pub fn copy_out(&self, unit: u64, row: usize, column: usize, target: &mut Buf, at: usize) {
        let bytes = self.units[&unit].bytes.as_ref().expect("it is held");
        target.copy_from(at, bytes, self.offset(row, column), BLOCK);
    }

    /// Numbers of the units that a policy for the second chance has passed over.
    pub fn pass_over(&mut self, unit: u64) {
        self.unit(unit).referenced = false;
    }

    pub fn check(&self) {
        let held = self.units.values().filter(|unit| unit.is_held()).count();
        assert_eq!(held, self.held, "memory is counted");
        let dirty = self.units.values().filter(|unit| unit.is_dirty()).count();
        assert!([self.dirty.len(), self.by_since.len(), self.by_written.len()] == [dirty; 3]);
        assert_eq!(self.clean.len(), held - dirty, "what is held is clean or dirty");
        for (number, unit) in &self.units {
            assert!(!unit.is_dirty() || self.by_since.contains(&(unit.since, *number)));
            assert_eq!(unit.blocks.iter().filter(|block| block.dirty != 0).count(), unit.dirty_blocks);
            assert!(unit.blocks.iter().all(|block| block.dirty & !block.valid == 0));
            assert!(unit.is_held() || unit.blocks.iter().all(|block| block.valid == 0));
            assert!(!(unit.exclusive && unit.readers > 0), "a lock is shared or exclusive");
            let idle = unit.readers == 0 && !unit.exclusive;
            let awaited = !unit.waiting.is_empty() || unit.claimed.is_some();
            assert!(!idle || !awaited, "nobody waits for a lock that is free");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid::config::CacheUnit;
    use crate::raid::matrix::Shape;

    fn chunk(unit: u64, column: usize, first: u64, sectors: u64) -> Chunk {
        Chunk { unit, column, first, sectors }
    }

    fn cache(units: u64) -> StripeCache {
        let layout = Layout::new(Shape { data: 2, parity: 1 }, 32, 3200, CacheUnit::Stripe);
        let mut cache = StripeCache::new(layout, units * layout.unit_bytes() as u64);
        cache.saw(&Buf::zeroed(512));
        cache
    }

    #[test]
    fn sectors_make_blocks_partial_and_then_dirty() {
        let mut cache = cache(2);
        assert!(cache.hold(3, false));
        let source = Buf::copy_of(&[7; 16 * 512]);
        cache.write(chunk(3, 1, 6, 4), &source, 0);
        assert_eq!(cache.status(3, 0, 1), Status::Partial);
        assert_eq!(cache.status(3, 1, 1), Status::Partial);
        assert!(cache.has(chunk(3, 1, 6, 4)) && !cache.has(chunk(3, 1, 5, 4)));
        cache.write(chunk(3, 1, 0, 6), &source, 0);
        assert_eq!(cache.status(3, 0, 1), Status::Dirty);
        cache.fill(3, 1, 1, &[9; 4096]);
        assert_eq!(cache.status(3, 1, 1), Status::Dirty);
        let mut out = Buf::zeroed(16 * 512);
        cache.read(chunk(3, 1, 0, 16), &mut out, 0);
        assert_eq!((out.bytes()[10 * 512 - 1], out.bytes()[10 * 512]), (7, 9), "newer sectors are kept");
        cache.check();
        cache.is_home(3);
        assert_eq!(cache.status(3, 0, 1), Status::Clean);
        cache.check();
    }

    #[test]
    fn a_full_cache_gives_up_what_is_clean_and_was_not_used_for_the_longest_time() {
        let mut cache = cache(2);
        let source = Buf::copy_of(&[7; 4096]);
        for unit in [0, 1] {
            assert!(cache.hold(unit, false));
            cache.write(chunk(unit, 0, 0, 8), &source, 0);
        }
        assert!(!cache.hold(2, false), "all is dirty");
        cache.release(2);
        cache.is_home(1);
        cache.is_home(0);
        cache.read(chunk(1, 0, 0, 8), &mut Buf::zeroed(4096), 0);
        assert!(cache.hold(2, false));
        assert!(cache.has(chunk(1, 0, 0, 8)) && !cache.has(chunk(0, 0, 0, 8)));
        cache.check();
        assert!(cache.hold(3, true) && cache.hold(4, true), "an operation needs memory at once");
        cache.check();
        cache.trim();
        assert_eq!(cache.held(), 2);
        cache.check();
    }
}
