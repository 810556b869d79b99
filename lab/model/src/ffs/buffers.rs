//! The buffer cache: blocks in memory, the oldest evicted first.
//!
//! | a buffer is | and   | until                                                               |
//! |-------------|-------|---------------------------------------------------------------------|
//! | idle        | clean | it is read again, changed, or evicted                               |
//! | idle        | dirty | the update daemon, a sync, a full cluster or lack of room writes it |
//! | reading     | clean | the read ends: idle                                                 |
//! | writing     | clean | the write ends: idle; programs that want it meanwhile wait          |
//!
//! A buffer is named by the address of its first fragment. Only idle buffers are in the lists of the oldest. Metadata may
//! have memory of its own, but for directories; then neither makes room for the other.

use dcd_engine::Nanos;

use super::layout::{Frag, Ino};
use super::lru::Lru;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferState {
    Idle,
    Reading,
    Writing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Data,
    Directory,
    Indirect,
    Inodes,
    /// A group's bitmaps.
    Maps,
}

impl Content {
    /// True if it lies in the separate memory that metadata may have. Directories do not: they are read as files are.
    fn is_apart(self) -> bool {
        !matches!(self, Content::Data | Content::Directory)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub at: Frag,
    pub frags: u32,
    pub state: BufferState,
    pub is_dirty: bool,
    /// Time at which it became dirty, if it is.
    pub dirty_since: Nanos,
    pub content: Content,
    /// Buffers of one file are written together.
    pub owner: Ino,
    /// Was written only to make room: the first to be evicted.
    pub is_aged: bool,
}

/// A buffer's place in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(pub u32);

/// Memory for buffers.
struct Pool {
    oldest_first: Lru,
    /// This buffer and all older ones may not be evicted: see [`BufferCache::pass`].
    passed: Option<u32>,
    used_frags: u64,
    capacity_frags: u64,
}

impl Pool {
    fn new(capacity_frags: u64) -> Pool {
        Pool { oldest_first: Lru::default(), passed: None, used_frags: 0, capacity_frags }
    }

    /// A buffer leaves its place among the idle ones.
    fn leaves(&mut self, slot: u32) -> &mut Lru {
        self.passed = self.passed.filter(|passed| *passed != slot);
        &mut self.oldest_first
    }
}

pub(crate) struct BufferCache {
    /// For each fragment the slot of the buffer that begins there, plus one.
    index: Vec<u32>,
    buffers: Vec<Buffer>,
    spare: Vec<u32>,
    /// For everything, or for data.
    common: Pool,
    metadata: Option<Pool>,
    dirty: u32,
}

impl BufferCache {
    pub fn new(frags: u32, capacity_frags: u64, metadata_frags: Option<u64>) -> BufferCache {
        BufferCache {
            index: vec![0; frags as usize],
            buffers: Vec::new(),
            spare: Vec::new(),
            common: Pool::new(capacity_frags),
            metadata: metadata_frags.map(Pool::new),
            dirty: 0,
        }
    }

    fn pool(&self, content: Content) -> &Pool {
        self.metadata.as_ref().filter(|_| content.is_apart()).unwrap_or(&self.common)
    }

    fn pool_mut(&mut self, content: Content) -> &mut Pool {
        self.metadata.as_mut().filter(|_| content.is_apart()).unwrap_or(&mut self.common)
    }

    fn pools(&self) -> impl Iterator<Item = &Pool> {
        std::iter::once(&self.common).chain(&self.metadata)
    }

    pub fn find(&self, at: Frag) -> Option<Slot> {
        self.index[at.0 as usize].checked_sub(1).map(Slot)
    }

    pub fn get(&self, slot: Slot) -> &Buffer {
        &self.buffers[slot.0 as usize]
    }

    pub fn dirty(&self) -> u32 {
        self.dirty
    }

    pub fn has_room(&self, frags: u32, content: Content) -> bool {
        let pool = self.pool(content);
        pool.used_frags + u64::from(frags) <= pool.capacity_frags
    }

    /// Adds a buffer; idle ones are clean and the newest.
    pub fn insert(&mut self, at: Frag, frags: u32, state: BufferState, content: Content, owner: Ino) -> Slot {
        assert!(self.index[at.0 as usize] == 0, "a block has one buffer");
        let dirty_since = Nanos::ZERO;
        let buffer =
            Buffer { at, frags, state, is_dirty: false, dirty_since, content, owner, is_aged: false };
        let slot = match self.spare.pop() {
            Some(slot) => {
                self.buffers[slot as usize] = buffer;
                slot
            }
            None => {
                self.buffers.push(buffer);
                self.buffers.len() as u32 - 1
            }
        };
        self.index[at.0 as usize] = slot + 1;
        let pool = self.pool_mut(content);
        pool.used_frags += u64::from(frags);
        if state == BufferState::Idle {
            pool.oldest_first.push_newest(slot);
        }
        Slot(slot)
    }

    /// Gives up an idle buffer, whatever is in it.
    pub fn remove(&mut self, slot: Slot) {
        let buffer = self.buffers[slot.0 as usize];
        assert!(buffer.state == BufferState::Idle, "only an idle buffer is given up");
        self.index[buffer.at.0 as usize] = 0;
        self.dirty -= u32::from(buffer.is_dirty);
        let pool = self.pool_mut(buffer.content);
        pool.used_frags -= u64::from(buffer.frags);
        pool.leaves(slot.0).remove(slot.0);
        self.spare.push(slot.0);
    }

    /// An idle buffer was used.
    pub fn touch(&mut self, slot: Slot) {
        let content = self.get(slot).content;
        self.pool_mut(content).leaves(slot.0).touch(slot.0);
    }

    pub fn set_dirty(&mut self, slot: Slot, now: Nanos) {
        let buffer = &mut self.buffers[slot.0 as usize];
        assert!(buffer.state == BufferState::Idle, "only an idle buffer is changed");
        if !buffer.is_dirty {
            buffer.dirty_since = now;
            self.dirty += 1;
        }
        buffer.is_dirty = true;
    }

    /// An idle buffer gets longer.
    pub fn grow(&mut self, slot: Slot, frags: u32) {
        let buffer = &mut self.buffers[slot.0 as usize];
        assert!(buffer.state == BufferState::Idle && frags >= buffer.frags);
        let (more, content) = (frags - buffer.frags, buffer.content);
        buffer.frags = frags;
        self.pool_mut(content).used_frags += u64::from(more);
    }

    /// A write of an idle buffer begins; it is clean from now on.
    pub fn begin_write(&mut self, slot: Slot, is_aged: bool) {
        let buffer = &mut self.buffers[slot.0 as usize];
        assert!(buffer.state == BufferState::Idle, "one write at a time");
        self.dirty -= u32::from(buffer.is_dirty);
        buffer.is_dirty = false;
        buffer.is_aged = is_aged;
        buffer.state = BufferState::Writing;
        let content = buffer.content;
        self.pool_mut(content).leaves(slot.0).remove(slot.0);
    }

    /// A read or a write ended.
    pub fn end_io(&mut self, slot: Slot) {
        let buffer = &mut self.buffers[slot.0 as usize];
        assert!(buffer.state != BufferState::Idle, "what ends has begun");
        buffer.state = BufferState::Idle;
        let (is_aged, content) = (std::mem::take(&mut buffer.is_aged), buffer.content);
        let pool = self.pool_mut(content);
        if is_aged {
            pool.passed = None;
            pool.oldest_first.push_oldest(slot.0);
        } else {
            pool.oldest_first.push_newest(slot.0);
        }
    }

    /// The idle buffers, of each memory the oldest first.
    pub fn idle(&self) -> impl Iterator<Item = Slot> {
        self.pools().flat_map(|pool| pool.oldest_first.iter()).map(Slot)
    }

    /// True if it lies in the separate memory for metadata.
    pub fn is_apart(&self, slot: Slot) -> bool {
        self.metadata.is_some() && self.get(slot).content.is_apart()
    }

    /// The oldest idle buffer in the memory for such content that has not been passed over.
    pub fn oldest(&self, content: Content) -> Option<Slot> {
        let Pool { passed, oldest_first, .. } = self.pool(content);
        passed.map_or_else(|| oldest_first.oldest(), |slot| oldest_first.newer(slot)).map(Slot)
    }

    /// A buffer may not be evicted yet. The next search for room need not look at it again, if it is the oldest but for those of which the
    /// same is true.
    pub fn pass(&mut self, slot: Slot) {
        let content = self.get(slot).content;
        if self.oldest(content) == Some(slot) {
            self.pool_mut(content).passed = Some(slot.0);
        }
    }

    /// Some of those that were passed over may be evicted now.
    pub fn look_again(&mut self) {
        self.common.passed = None;
        self.metadata.iter_mut().for_each(|pool| pool.passed = None);
    }

    /// The one used next after `slot` in the same memory.
    pub fn newer(&self, slot: Slot) -> Option<Slot> {
        self.pool(self.get(slot).content).oldest_first.newer(slot.0).map(Slot)
    }

    /// Forgets everything; nothing may be dirty or under way.
    pub fn clear(&mut self) {
        assert!(self.dirty == 0, "only a clean cache is cleared");
        let idle: Vec<Slot> = self.idle().collect();
        for slot in idle {
            self.remove(slot);
        }
        assert!(self.pools().all(|pool| pool.used_frags == 0), "nothing is under way");
    }

    /// Panics where the counts disagree or buffers overlap.
    #[cfg(test)]
    pub fn check(&self) {
        let (mut used, mut dirty, mut idle, mut end) = (0u64, 0, 0, 0);
        for (frag, slot) in self.index.iter().enumerate().filter(|(_, slot)| **slot != 0) {
            let buffer = &self.buffers[*slot as usize - 1];
            assert!(buffer.at.0 as usize == frag && frag >= end, "buffers overlap at {frag}");
            end = frag + buffer.frags as usize;
            used += u64::from(buffer.frags);
            dirty += u32::from(buffer.is_dirty);
            idle += u32::from(buffer.state == BufferState::Idle);
            assert!(!buffer.is_dirty || buffer.state == BufferState::Idle);
        }
        let in_pools: u64 = self.pools().map(|pool| pool.used_frags).sum();
        assert_eq!((used, dirty, idle), (in_pools, self.dirty, self.idle().count() as u32));
    }
}
