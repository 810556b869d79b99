//! The memory that destaging needs, allocated once, when the cache starts: what writes dirty data back must not ask for
//! memory when memory is short (rule 14), as that may be what is waited for.

use std::collections::VecDeque;

use crate::destage::{how, what};
use crate::log_cache::LogCacheConfig;
use crate::log_cache::format::LogSuperblock;
use crate::log_cache::table::{Line, Piece};
use crate::{Buf, Extent, LINE_BYTES, LINE_SECTORS, Lba, SECTOR_BYTES};

/// Lines in a batch, where the log is on a device that need not seek: sorting more gains more.
const BATCH_LINES_MAX: usize = 1 << 16;
/// Log blocks before, between and after the pieces of a group.
const GROUP_BLOCKS: u64 = 3;

/// A piece of which every other sector was written again is so many runs.
const RUNS_OF_PIECE_MAX: usize = LINE_SECTORS as usize / 2;

/// Whole lines that fit the memory given for destaging.
fn memory_lines(config: &LogCacheConfig) -> usize {
    (config.destage_memory / LINE_BYTES as usize).max(1)
}

/// A dirty piece of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub line: Line,
    pub piece: Piece,
    pub failed: bool,
}

/// An operation of a batch that is in flight.
pub enum BatchFlight {
    /// For a flush epoch, from the log.
    Epoch,
    Range(Extent),
    Read(Group),
    /// For gaps, from the data disk.
    Gaps(GapRead),
    /// These blocks of the window.
    Write(std::ops::Range<usize>),
    Flush,
}

/// Neighbours in the log, read together.
pub struct Group {
    pub extent: Extent,
    pub segment: u32,
    /// A stretch of the window's `order`.
    pub first: u32,
    pub count: u32,
    /// The copy of the log that it is read from, after another was bad.
    pub copy: Option<u8>,
}

impl Group {
    pub fn items(&self) -> std::ops::Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }
}

/// Neighbours on the data disk, written together, with the gaps between them that are filled.
pub struct WriteRun {
    pub start: Lba,
    pub sectors: u64,
    /// Offset of the run in the window's memory.
    pub at: usize,
    pub blocks: std::ops::Range<usize>,
}

impl WriteRun {
    pub fn end(&self) -> Lba {
        self.start + self.sectors
    }

    /// Returns the offset of a sector in the window's memory.
    pub fn place_of(&self, sector: Lba) -> usize {
        self.at + ((sector - self.start) * SECTOR_BYTES) as usize
    }

    /// The end of its lines in the window's memory.
    pub fn memory_end(&self) -> usize {
        self.place_of(self.end()).next_multiple_of(LINE_BYTES as usize)
    }
}

/// Sectors that an item brings.
pub struct ItemTarget {
    pub item: u32,
    pub extent: Extent,
    /// First of the sectors in the log.
    pub place: u64,
    /// Offset of the sectors in the window's memory.
    pub at: usize,
}

/// A piece that a window reads from the log: its item, and the first of the item's targets.
#[derive(Clone, Copy)]
pub struct ItemRead {
    pub item: u32,
    pub target: u32,
}

/// Sectors between two blocks of a run, which are written with them if their content comes in time.
pub struct Gap {
    pub extent: Extent,
    pub run: u32,
    /// Sectors whose content has not come.
    pub missing: u64,
    /// Read from the data disk.
    pub is_read: bool,
    /// Clean pieces of the window that belong to gaps before it.
    pub clean: usize,
}

/// A read of the data disk for gaps: a stretch of the window's `gaps`.
pub struct GapRead {
    pub extent: Extent,
    pub first: u32,
    pub count: u32,
}

impl GapRead {
    pub fn gaps(&self) -> std::ops::Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }
}

/// Room for a batch: everything in it keeps its memory from one batch to the next.
pub struct Room {
    /// Pieces in a batch, at most. What is left over goes with the next one.
    pub items_max: usize,
    /// Blocks in a window, at most: each takes a line of `runs` or less.
    pub blocks_max: usize,
    pub items: Vec<Item>,
    /// Clean pieces that fill gaps of a window; their indices continue after those of `items`. `clean_max`: how many at most.
    pub clean: Vec<Item>,
    pub clean_max: usize,
    pub blocks: Vec<how::DirtyBlock>,
    pub gaps: Vec<Gap>,
    pub gap_reads: VecDeque<GapRead>,
    /// Targets of the pieces of a window, by item.
    pub targets: Vec<ItemTarget>,
    /// The pieces of a window in the order of the log; groups are stretches of it.
    pub order: Vec<ItemRead>,
    pub groups: VecDeque<Group>,
    pub runs: Vec<WriteRun>,
    pub parts: Vec<what::Part>,
    /// The segments of a batch, by index, and how many pieces of each segment it could take: at most the 32,768 sectors of 16 MiB.
    pub chosen: Vec<bool>,
    /// The segments in which a choice found nothing, by index.
    pub barren: Vec<bool>,
    pub pieces: Vec<u16>,
    /// Memory for what a window writes. Sectors of a run lie in it as they lie in their lines, so that aligned parts of the disk are
    /// aligned in memory.
    memory: Buf,
    read_bytes: usize,
}

/// Returns the size of a buffer for reads.
fn read_bytes(superblock: &LogSuperblock) -> usize {
    let group_bytes =
        LogCacheConfig::READ_BYTES_MAX + GROUP_BLOCKS as usize * superblock.log_block_bytes as usize;
    group_bytes.min(superblock.segment_bytes as usize)
}

/// Buffers for reads, which the batches of all disks take in turn. A read of the log has a buffer until it ends, so a data disk that hangs
/// keeps none.
pub struct ReadBuffers {
    free: Vec<Buf>,
    count: usize,
    bytes: usize,
}

impl ReadBuffers {
    pub fn new(config: &LogCacheConfig, superblock: &LogSuperblock) -> ReadBuffers {
        let (count, bytes) = (config.destage_depth, read_bytes(superblock));
        ReadBuffers { free: (0..count).map(|_| Buf::zeroed(bytes)).collect(), count, bytes }
    }

    /// Returns how many operations have buffers for reads.
    pub const fn count(&self) -> usize {
        self.count
    }

    pub const fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Adds a buffer where `destage_depth` was raised: one in each event, so that no event takes long.
    pub fn grow(&mut self, destage_depth: usize) {
        if self.count < destage_depth {
            self.free.push(Buf::zeroed(self.bytes));
            self.count += 1;
        }
    }

    pub fn take(&mut self, bytes: usize) -> Buf {
        let mut buf = self.free.pop().unwrap_or_else(|| Buf::zeroed(self.bytes.max(bytes)));
        buf.set_len(bytes);
        buf
    }

    /// Takes back a buffer whose content was read and used.
    pub fn give_back(&mut self, buf: Buf) {
        if buf.has_room(self.bytes) {
            self.free.push(buf);
        }
    }
}

impl Room {
    pub fn new(config: &LogCacheConfig, superblock: &LogSuperblock, spins: bool) -> Room {
        let segment_bytes = u64::from(superblock.segment_bytes);
        let segments = superblock.segments as usize;

        let blocks_max = memory_lines(config).max(LINE_SECTORS as usize);
        let items_max = Room::batch_lines(config, spins).max((segment_bytes / SECTOR_BYTES) as usize);
        let gaps_max = if config.contiguity.is_some() { blocks_max } else { 0 };
        let pieces_max = blocks_max + gaps_max;
        Room {
            items_max,
            blocks_max,
            items: Vec::with_capacity(items_max + LINE_SECTORS as usize),
            clean: Vec::with_capacity(gaps_max),
            clean_max: gaps_max,
            blocks: Vec::with_capacity(blocks_max + LINE_SECTORS as usize),
            gaps: Vec::with_capacity(gaps_max),
            // One for each, and one for each buffer that is filled by a long one.
            gap_reads: VecDeque::with_capacity(2 * gaps_max),
            targets: Vec::with_capacity(blocks_max + gaps_max * RUNS_OF_PIECE_MAX),
            order: Vec::with_capacity(pieces_max),
            groups: VecDeque::with_capacity(pieces_max),
            runs: Vec::with_capacity(blocks_max),
            parts: Vec::with_capacity(segments),
            chosen: vec![false; segments],
            barren: vec![false; segments],
            pieces: vec![0; segments],
            memory: Buf::zeroed(blocks_max * LINE_BYTES as usize),
            read_bytes: read_bytes(superblock),
        }
    }

    /// Lines in a batch: where the log is on a device that need not seek, sorting more gains more.
    pub fn batch_lines(config: &LogCacheConfig, spins: bool) -> usize {
        let lines = memory_lines(config);
        if spins { lines } else { lines.max(BATCH_LINES_MAX) }
    }

    /// A piece of the batch, or one that fills a gap.
    pub fn item(&self, index: u32) -> &Item {
        let index = index as usize;
        self.items.get(index).unwrap_or_else(|| &self.clean[index - self.items.len()])
    }

    pub fn item_mut(&mut self, index: u32) -> &mut Item {
        let (index, items) = (index as usize, self.items.len());
        if index < items { &mut self.items[index] } else { &mut self.clean[index - items] }
    }

    /// The group of one piece of a group.
    pub fn single(&self, group: &Group, at: usize) -> Group {
        let piece = self.item(self.order[at].item).piece;
        let extent = Extent::new(Lba(piece.place.0), u64::from(piece.count));
        Group { extent, segment: group.segment, first: at as u32, count: 1, copy: group.copy }
    }

    /// The window is written, or begins anew.
    pub fn clear_window(&mut self) {
        self.blocks.clear();
        self.runs.clear();
        self.targets.clear();
        self.order.clear();
        self.groups.clear();
        self.gaps.clear();
        self.gap_reads.clear();
        self.clean.clear();
    }

    pub fn newest_run(&self) -> &WriteRun {
        self.runs.last().expect("a run has begun")
    }

    pub const fn memory_bytes(&self) -> usize {
        self.memory.len()
    }

    /// Whole lines that fit a buffer for reads.
    pub const fn read_sectors(&self) -> u64 {
        self.read_bytes as u64 / LINE_BYTES * LINE_SECTORS
    }

    /// The memory of the runs, to be filled.
    pub fn fill(&mut self) -> &mut Buf {
        if !self.memory.reclaim() {
            // A device below has kept a part of it: it may keep it.
            self.memory = Buf::zeroed(self.blocks_max * LINE_BYTES as usize);
        }
        &mut self.memory
    }

    /// A part of it, to be written.
    pub fn window(&mut self, at: usize, bytes: usize) -> Buf {
        self.memory.share();
        self.memory.window(at, bytes)
    }
}
