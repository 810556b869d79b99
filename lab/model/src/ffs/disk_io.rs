//! Block requests: reading into the buffer cache, reading ahead, and writing dirty buffers, neighbours together.

use dcd_engine::{Buf, Durability, Io, IoResult, Nanos, Request, RequestId, SECTOR_BYTES};

use super::buffers::{BufferState, Content, Slot};
use super::config::BLOCK_FRAGMENTS;
use super::layout::{Frag, Ino};
use super::machine::{Ffs, Wait};
use super::measure::RequestClass;
use super::op::ProcessId;
use super::record::{Recorded, WriteId};

/// Maximum number of writes that a search for room begins before it waits for one of them. Enough to keep a disk's queue full.
const WRITES_FOR_ROOM_MAX: u32 = 16;

/// Dirty buffers that are to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which {
    All,
    Data,
    /// Every so many-th place in memory.
    Slice(u32),
    File(Ino),
}

#[derive(Clone, Copy, Debug)]
struct FfsFlight {
    class: RequestClass,
    at: Frag,
    frags: u32,
    issued: Nanos,
    /// Names it in the record.
    write: WriteId,
}

/// Block requests that are not answered yet, and those that are to be sent.
#[derive(Default)]
pub(crate) struct Flights {
    places: Vec<Option<FfsFlight>>,
    spare: Vec<u32>,
    requests: Vec<Request>,
    writes: u32,
    count: u64,
}

impl Flights {
    pub fn take_requests(&mut self, requests: &mut Vec<Request>) {
        requests.append(&mut self.requests);
    }

    pub fn writes(&self) -> u32 {
        self.writes
    }

    fn begin(&mut self, flight: FfsFlight, io: Io) -> RequestId {
        self.writes += u32::from(flight.class.is_write());
        let place = match self.spare.pop() {
            Some(place) => {
                self.places[place as usize] = Some(flight);
                place
            }
            None => {
                self.places.push(Some(flight));
                self.places.len() as u32 - 1
            }
        };
        let id = RequestId(u64::from(place));
        self.requests.push(Request { id, disk: 0, io });
        id
    }

    fn end(&mut self, id: RequestId) -> FfsFlight {
        let flight = self.places[id.0 as usize].take().expect("a request is answered once");
        self.spare.push(id.0 as u32);
        self.writes -= u32::from(flight.class.is_write());
        flight
    }
}

impl Ffs {
    /// A block in memory and idle, or what to wait for until it is.
    pub(crate) fn need(
        &mut self,
        id: ProcessId,
        at: Frag,
        frags: u32,
        content: Content,
        owner: Ino,
    ) -> Result<Slot, Wait> {
        match self.cache.find(at) {
            Some(slot) if self.cache.get(slot).state == BufferState::Idle => {
                if content != Content::Data {
                    self.measured.metadata.count(true);
                }
                self.cache.touch(slot);
                Ok(slot)
            }
            Some(slot) => Err(Wait::Buffer(slot)),
            None => {
                self.make_room(frags, content)?;
                if content != Content::Data {
                    self.measured.metadata.count(false);
                }
                let slot = self.cache.insert(at, frags, BufferState::Reading, content, owner);
                let class = if content == Content::Data {
                    RequestClass::DataRead
                } else {
                    RequestClass::MetadataRead
                };
                self.submit(Some(id), class, at, frags);
                Err(Wait::Buffer(slot))
            }
        }
    }

    /// As [`Ffs::need`], with room for more fragments beside it.
    pub(crate) fn need_with_room(
        &mut self,
        id: ProcessId,
        (at, frags): (Frag, u32),
        more: u32,
        content: Content,
        owner: Ino,
    ) -> Result<Slot, Wait> {
        let slot = self.need(id, at, frags, content, owner)?;
        self.make_room(more, content)?;
        // It may have been the last that could make room; then others are on their way.
        let is_there = self.cache.find(at) == Some(slot) && self.cache.get(slot).state == BufferState::Idle;
        if is_there { Ok(slot) } else { Err(Wait::Room) }
    }

    /// Reads a block of a file for a program that reads up to `last`: from the cache, or with its neighbours from the disk.
    pub(crate) fn read_block(&mut self, id: ProcessId, file: Ino, block: u32, last: u32) -> Result<(), Wait> {
        let shape = self.volume.shape;
        for index in shape.indirects_of(block) {
            let at = self.volume.inodes.get(file).indirects[index];
            self.need(id, at, BLOCK_FRAGMENTS, Content::Indirect, file)?;
        }
        let inode = self.volume.inodes.get(file);
        let at = inode.blocks[block as usize];
        if at.is_none() {
            return Ok(());
        }
        let is_repeated = block + 1 == inode.next_read;
        let is_sequential = block == inode.next_read || block == 0;
        let found = self.cache.find(at);
        if let Some(slot) = found {
            if self.cache.get(slot).state != BufferState::Idle {
                return Err(Wait::Buffer(slot));
            }
            self.cache.touch(slot);
        }
        if is_repeated && found.is_some() {
            return Ok(());
        }
        let inode = self.volume.inodes.get_mut(file);
        if !is_sequential && !is_repeated {
            inode.window = 1;
            inode.ahead = 0;
        }
        inode.next_read = block + 1;
        let mut wait = None;
        if found.is_none() {
            let wanted = last - block + 1;
            let read = self.read_row(Some(id), file, block, wanted, RequestClass::DataRead)?;
            let inode = self.volume.inodes.get_mut(file);
            inode.ahead = inode.ahead.max(block + read);
            wait = self.cache.find(at).map(Wait::Buffer);
        }
        if is_sequential && self.volume.config.read_ahead {
            self.read_ahead(id, file, block, last);
        }
        wait.map_or(Ok(()), Err)
    }

    /// Asks for the blocks behind `block` when the reader comes near the end of what was asked for.
    fn read_ahead(&mut self, id: ProcessId, file: Ino, block: u32, last: u32) {
        let (cluster, most) = (self.volume.config.cluster_blocks(), self.volume.config.read_ahead_blocks());
        let inode = self.volume.inodes.get_mut(file);
        let window = inode.window;
        let start = inode.ahead.max(block + 1);
        if start > block + (window / 2).max(1) || start as usize >= inode.blocks.len() {
            return;
        }
        inode.window = (window * 2).min(most);
        inode.ahead = start + window;
        // A request moves a cluster at most.
        let mut next = start;
        for _ in 0..window.div_ceil(cluster) {
            let wanted = (start + window).saturating_sub(next);
            let read = self.read_ahead_row(id, file, next, wanted, last);
            if read == 0 {
                return;
            }
            next += read;
        }
    }

    /// Asks for a row of blocks that no call waits for, and says how far it got; nothing where they are in memory or missing.
    fn read_ahead_row(&mut self, id: ProcessId, file: Ino, start: u32, wanted: u32, last: u32) -> u32 {
        let at = self.volume.inodes.get(file).blocks.get(start as usize).copied();
        if wanted == 0 || at.is_none_or(|at| at.is_none() || self.cache.find(at).is_some()) {
            return 0;
        }
        // No room is no reason to wait: nobody has asked for these blocks yet.
        let class = if start <= last { RequestClass::DataRead } else { RequestClass::ReadAhead };
        let read = self.read_row(Some(id), file, start, wanted, class).unwrap_or(0).max(1);
        self.volume.inodes.get_mut(file).ahead = start + read;
        read
    }

    /// Reads blocks that lie in a row and are not in memory, from `block` on, at most `wanted` and a cluster. Says how many.
    fn read_row(
        &mut self,
        id: Option<ProcessId>,
        file: Ino,
        block: u32,
        wanted: u32,
        class: RequestClass,
    ) -> Result<u32, Wait> {
        let shape = self.volume.shape;
        let most = wanted.min(self.volume.config.cluster_blocks());
        let inode = self.volume.inodes.get(file);
        let start = inode.blocks[block as usize];
        let (mut count, mut frags) = (0, 0);
        while count < most
            && let Some(at) = inode.blocks.get((block + count) as usize)
            && *at == start.plus(frags)
            && self.cache.find(*at).is_none()
        {
            frags += inode.frags_of(block + count, &shape);
            count += 1;
        }
        self.make_room(frags, Content::Data)?;
        for index in block..block + count {
            let inode = self.volume.inodes.get(file);
            let (at, frags) = (inode.blocks[index as usize], inode.frags_of(index, &shape));
            self.cache.insert(at, frags, BufferState::Reading, Content::Data, file);
        }
        self.submit(id, class, start, frags);
        Ok(count)
    }

    /// Gives up the oldest buffers until there is room; dirty ones are written first.
    pub(crate) fn make_room(&mut self, frags: u32, content: Content) -> Result<(), Wait> {
        let mut writes = 0;
        let mut next = self.cache.oldest(content);
        while !self.cache.has_room(frags, content) {
            let Some(slot) = next else {
                if !self.commit_for_room() {
                    return Err(Wait::Room);
                }
                next = self.cache.oldest(content);
                continue;
            };
            next = self.cache.newer(slot);
            if !self.cache.get(slot).is_dirty {
                self.cache.remove(slot);
                continue;
            }
            if self.is_held(self.cache.get(slot).at) {
                self.cache.pass(slot);
                continue;
            }
            if writes == WRITES_FOR_ROOM_MAX {
                return Err(Wait::Room);
            }
            writes += 1;
            let (first, frags) = self.row_around(slot);
            self.write_row(first, frags, true);
            // The row may hold what came next in the list.
            next = self.cache.oldest(content);
        }
        Ok(())
    }

    /// Writes a buffer that a call waits for.
    pub(crate) fn write_sync(&mut self, id: ProcessId, slot: Slot) {
        let buffer = *self.cache.get(slot);
        self.cache.begin_write(slot, false);
        self.submit(Some(id), RequestClass::SyncMetadata, buffer.at, buffer.frags);
    }

    /// A cluster of a file is complete.
    pub(crate) fn push_cluster(&mut self, at: Frag) {
        if let Some(slot) = self.cache.find(at)
            && self.can_write(slot)
        {
            let (first, frags) = self.row_around(slot);
            self.write_row(first, frags, false);
        }
    }

    fn can_write(&self, slot: Slot) -> bool {
        let buffer = self.cache.get(slot);
        buffer.is_dirty && buffer.state == BufferState::Idle && !self.is_held(buffer.at)
    }

    /// The dirty data of the same file around a buffer, at most a cluster. Metadata is written alone.
    fn row_around(&self, slot: Slot) -> (Frag, u32) {
        let buffer = *self.cache.get(slot);
        let most = self.volume.config.cluster_blocks() * BLOCK_FRAGMENTS;
        let (mut first, mut frags) = (buffer.at, buffer.frags);
        if buffer.content != Content::Data {
            return (first, frags);
        }
        let joins = |at: Frag| {
            let neighbour = self.cache.find(at).filter(|slot| self.can_write(*slot))?;
            let neighbour = self.cache.get(neighbour);
            (neighbour.owner == buffer.owner && neighbour.content == Content::Data).then_some(neighbour.frags)
        };
        while frags + BLOCK_FRAGMENTS <= most
            && first.0 > BLOCK_FRAGMENTS
            && joins(Frag(first.0 - BLOCK_FRAGMENTS)) == Some(BLOCK_FRAGMENTS)
        {
            first.0 -= BLOCK_FRAGMENTS;
            frags += BLOCK_FRAGMENTS;
        }
        while first.plus(frags).0 < self.volume.allocator.layout.frags()
            && let Some(more) = joins(first.plus(frags))
            && frags + more <= most
        {
            frags += more;
        }
        (first, frags)
    }

    /// Writes buffers that lie in a row; no call waits for it.
    fn write_row(&mut self, first: Frag, frags: u32, for_room: bool) {
        let mut next = 0;
        let mut class = RequestClass::DelayedMetadata;
        while next < frags {
            let slot = self.cache.find(first.plus(next)).expect("a row is in memory");
            let buffer = *self.cache.get(slot);
            if buffer.content == Content::Data {
                class = RequestClass::DataWrite;
            } else {
                self.leave_journal(buffer.at);
            }
            self.cache.begin_write(slot, for_room);
            next += buffer.frags;
        }
        self.submit(None, class, first, frags);
    }

    /// The update daemon has its turn.
    pub(crate) fn update(&mut self) {
        let slices = self.volume.config.update_slices;
        self.update_at = self.now + Nanos(self.volume.config.update_interval.0 / u64::from(slices));
        self.update_slice = (self.update_slice + 1) % slices;
        if self.journal.is_some() {
            self.commit_and_expire();
            return;
        }
        self.write_all(Which::Slice(self.update_slice));
    }

    /// The update daemon writes a dirty buffer now: metadata in memory of its own when it has been dirty for the interval,
    /// the rest in its turn.
    fn is_due(&self, slot: Slot, has_turn: bool) -> bool {
        if !self.cache.is_apart(slot) {
            return has_turn;
        }
        self.now.since(self.cache.get(slot).dirty_since) >= self.volume.config.update_interval
    }

    /// Writes what is dirty, in the order of addresses.
    pub(crate) fn write_all(&mut self, which: Which) {
        if self.cache.dirty() == 0 {
            return;
        }
        let slices = self.volume.config.update_slices;
        let idle = || self.cache.idle().filter(|slot| self.cache.get(*slot).is_dirty);
        let at = |slot| self.cache.get(slot).at;
        let mut dirty: Vec<Frag> = match which {
            Which::All => idle().map(at).collect(),
            Which::Data => {
                let is_data = |slot: &Slot| self.cache.get(*slot).content == Content::Data;
                idle().filter(is_data).map(at).collect()
            }
            Which::Slice(slice) => {
                idle().filter(|slot| self.is_due(*slot, slot.0 % slices == slice)).map(at).collect()
            }
            Which::File(file) => {
                let inode = self.volume.inodes.get(file);
                inode.blocks.iter().chain(&inode.indirects).filter(|at| !at.is_none()).copied().collect()
            }
        };
        dirty.sort_unstable();
        self.write_home(&dirty);
    }

    /// Writes what is dirty of these blocks, with what joins them.
    pub(crate) fn write_home(&mut self, blocks: &[Frag]) {
        for at in blocks {
            if let Some(slot) = self.cache.find(*at)
                && self.can_write(slot)
            {
                let (first, frags) = self.row_around(slot);
                self.write_row(first, frags, false);
            }
        }
    }

    pub(crate) fn flush_device(&mut self) -> RequestId {
        let flight = self.flight(RequestClass::Flush, Frag::NONE, 0);
        self.flights.begin(flight, Io::Flush)
    }

    fn flight(&mut self, class: RequestClass, at: Frag, frags: u32) -> FfsFlight {
        self.flights.count += 1;
        FfsFlight { class, at, frags, issued: self.now, write: WriteId(self.flights.count) }
    }

    pub(crate) fn submit(&mut self, id: Option<ProcessId>, class: RequestClass, at: Frag, frags: u32) {
        let extent = self.volume.allocator.layout.extent(at, frags);
        let buf = Buf::blank((extent.sectors * SECTOR_BYTES) as usize);
        let durability =
            if class == RequestClass::SyncMetadata { Durability::Durable } else { Durability::Volatile };
        let io = if class.is_read() {
            Io::Read { at: extent.start, buf }
        } else {
            Io::Write { at: extent.start, buf, durability }
        };
        let flight = self.flight(class, at, frags);
        if let Some(record) = &mut self.record
            && class.is_write()
        {
            record.push(Recorded::Issued { write: flight.write, at, frags });
        }
        self.flights.begin(flight, io);
        let cost = self.volume.config.cpu.request(class.is_write(), extent.sectors * SECTOR_BYTES);
        match id {
            Some(id) => self.processes[id.0 as usize].debt += cost,
            None if cost > Nanos::ZERO => self.cpu.kernel(self.now, cost),
            None => {}
        }
    }

    pub(crate) fn completed(&mut self, id: RequestId, result: IoResult) {
        let flight = self.flights.end(id);
        if let Err(error) = result.status {
            self.error.get_or_insert(error);
        }
        self.measured.add_request(flight.class, result.buf.len() as u64, self.now.since(flight.issued));
        if flight.class == RequestClass::Flush {
            self.wake(Wait::Flush(id));
            return;
        }
        if let Some(record) = &mut self.record
            && flight.class.is_write()
        {
            record.push(Recorded::Ended { write: flight.write });
        }
        // What is in the journal is in no buffer.
        let mut next = if flight.class == RequestClass::Journal { flight.frags } else { 0 };
        while next < flight.frags {
            let slot = self.cache.find(flight.at.plus(next)).expect("a busy buffer stays");
            next += self.cache.get(slot).frags;
            self.cache.end_io(slot);
            self.wake(Wait::Buffer(slot));
        }
        self.wake(Wait::Room);
        if self.flights.writes() == 0 {
            self.wake(Wait::Writes);
        }
    }
}
