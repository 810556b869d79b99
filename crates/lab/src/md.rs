//! RAID-5 as the md driver of Linux 2.6.11 has it (`drivers/md/raid5.c`): what "PBGC" is in the paper's figures (Baek and Park,
//! section IV-A).
//!
//! | rule            | here                                                                                            |
//! |-----------------|-------------------------------------------------------------------------------------------------|
//! | stripe heads    | a parity block group each, one page for each member; as many as the cache has memory for        |
//! | a request       | is cut into pages; each is put to its head, which is looked at at once                          |
//! | no head is free | requests wait until fewer than three quarters of the heads are in use                           |
//! | a read          | from the head's page if that is right; else the page is read, without delay                     |
//! | a write         | is answered when its page and the parity are on the members: nothing is kept back               |
//! | parity          | reconstruct-write or read-modify-write, whichever reads less; what a head has is not read       |
//! | delay           | a head that has to read for that waits until the device is unplugged and all heads that began   |
//! |                 | to read before have begun to write; then all that are delayed begin                             |
//! | unplugging      | 3 ms after the first request since the last time, or where somebody waits for a read or a flush |
//! | commands        | pages, each for itself: it is the members' schedulers that join them                            |
//! | the thread      | one, which looks at the heads in their order, and waits where a member's queue is full          |
//! | a member's queue| 128 requests of a kind, neighbours joined; requests of the host go beyond that                   |
//! | what heads keep | pages that are right, the parity too, until the head is used for another group: the oldest first |
//!
//! Left out: the processor's time, failed members, resync, and the superblock that says that the array is in use.
//!
//! Studies of timing only: no bytes are kept, and reads give blank buffers.

use std::collections::{BTreeMap, VecDeque};

use dcd_engine::raid::matrix::Shape;
use dcd_engine::raid::{CacheUnit, Chunk, DATA_SECTOR, Layout};
use dcd_engine::{
    ActivateError, Buf, Control, Durability, Event, Geometry, Io, IoError, IoResult, LINE_BYTES,
    LINE_SECTORS, Layer, Nanos, OpId, Outbox, Port, Ports, Report, Request, RequestId,
};
use serde_json::{Value, json};

use crate::md_queue::Queue;

/// How long a plugged device waits for more requests.
const UNPLUG_DELAY: Nanos = Nanos::from_millis(3);

/// The columns of a group, one bit each; the parity's is the last.
type Columns = u64;

/// What a page of a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Read,
    Write,
    /// On its way to the members.
    Written,
}

/// The list that a head is in; by what it has there, the least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// None: it is looked at, or commands are under way.
    #[default]
    Nowhere,
    /// It may be taken for another group.
    Idle(u64),
    /// The thread looks at it in its turn.
    Listed(u64),
    /// It waits until it may read.
    Delayed(u64),
}

/// A stripe head. Each set of columns is one flag of its pages.
#[derive(Default)]
struct Head {
    /// Pages that are as the members have them, or will have them.
    right: Columns,
    /// Pages that are read or written.
    locked: Columns,
    to_read: Columns,
    to_write: Columns,
    /// Of those that are to be written: where a request leaves a part of the page as it is.
    partial: Columns,
    written: Columns,
    /// Who waits for what: by column.
    requests: Vec<(usize, Part, u64)>,
    is_delayed: bool,
    /// It may read for its parity.
    may_read: bool,
    place: Place,
}

/// A request of the host, and how many of its pages are not done.
struct Pending {
    id: RequestId,
    buf: Buf,
    left: usize,
}

/// A page for a member.
#[derive(Clone, Copy)]
struct Page {
    group: u64,
    column: usize,
    writes: bool,
}

#[derive(Default)]
struct Statistics {
    read_pages: u64,
    written_pages: u64,
    /// Pages read for requests of the host.
    read_misses: u64,
    read_hits: u64,
}

/// See the module's documentation.
pub(crate) struct Md {
    layout: Option<Layout>,
    members: usize,
    strip_sectors: u64,
    heads_max: usize,
    heads: BTreeMap<u64, Head>,
    /// Groups by [`Place`], the oldest first.
    idle: BTreeMap<u64, u64>,
    listed: BTreeMap<u64, u64>,
    delayed: BTreeMap<u64, u64>,
    stamps: u64,
    /// Pages of requests for which no head is free.
    headless: VecDeque<(u64, Chunk, Part)>,
    /// Heads that may read and have not begun to write.
    reading: usize,
    plugged: Option<Nanos>,
    /// What the thread has begun to send.
    sending: VecDeque<Page>,
    /// For each member its reads and its writes.
    queues: Vec<[Queue; 2]>,
    requests: BTreeMap<u64, Pending>,
    next_request: u64,
    under_way: BTreeMap<OpId, Page>,
    next_op: u64,
    drains: bool,
    statistics: Statistics,
}

const fn bit(column: usize) -> Columns {
    1 << column
}

/// Stripe heads that a cache has memory for.
pub(crate) fn heads(members: usize, cache_bytes: u64) -> usize {
    (cache_bytes / (members as u64 * LINE_BYTES)).max(16) as usize
}

impl Md {
    pub fn new(members: usize, strip_bytes: u64, cache_bytes: u64) -> Md {
        Md {
            layout: None,
            members,
            strip_sectors: strip_bytes / dcd_engine::SECTOR_BYTES,
            heads_max: heads(members, cache_bytes),
            heads: BTreeMap::new(),
            idle: BTreeMap::new(),
            listed: BTreeMap::new(),
            delayed: BTreeMap::new(),
            stamps: 0,
            headless: VecDeque::new(),
            reading: 0,
            plugged: None,
            sending: VecDeque::new(),
            queues: (0..members).map(|_| <[Queue; 2]>::default()).collect(),
            requests: BTreeMap::new(),
            next_request: 0,
            under_way: BTreeMap::new(),
            next_op: 0,
            drains: false,
            statistics: Statistics::default(),
        }
    }

    fn layout(&self) -> Layout {
        self.layout.expect("it is active")
    }

    fn parity(&self) -> Columns {
        bit(self.members - 1)
    }

    fn accept(&mut self, now: Nanos, request: Request, out: &mut Outbox) {
        let Some(extent) = request.io.extent() else {
            // What was answered is on the members.
            out.reply(request.id, IoResult::ok(Buf::none()));
            return self.unplug(out);
        };
        let part = match request.io {
            Io::Write { .. } => Part::Write,
            Io::Read { .. } => Part::Read,
            _ => {
                let error = IoError::at(dcd_engine::ErrorKind::Unsupported, extent);
                return out.reply(request.id, IoResult::err(request.io.take_buf(), error));
            }
        };
        let chunks: Vec<Chunk> = self.layout().chunks(extent).collect();
        let key = self.next_request;
        self.next_request += 1;
        let pending = Pending { id: request.id, buf: request.io.take_buf(), left: chunks.len() };
        self.requests.insert(key, pending);
        for chunk in chunks {
            let is_blocked = !self.headless.is_empty();
            if self.heads.contains_key(&chunk.unit) || (!is_blocked && self.take_head(chunk.unit)) {
                self.put(now, key, chunk, part, out);
            } else {
                self.headless.push_back((key, chunk, part));
            }
        }
        if part == Part::Read {
            self.unplug(out);
        }
    }

    /// Gives a group a head; false where none is free.
    fn take_head(&mut self, group: u64) -> bool {
        if self.heads.len() >= self.heads_max {
            let Some((_, oldest)) = self.idle.pop_first() else { return false };
            self.heads.remove(&oldest);
        }
        self.heads.insert(group, Head::default());
        true
    }

    /// Lets those go on for whom a head is free again.
    fn take_heads(&mut self, now: Nanos, out: &mut Outbox) {
        let used = self.heads.len() - self.idle.len();
        if self.headless.is_empty() || used >= self.heads_max * 3 / 4 {
            return;
        }
        while let Some((key, chunk, part)) = self.headless.front().copied() {
            if !self.heads.contains_key(&chunk.unit) && !self.take_head(chunk.unit) {
                return;
            }
            self.headless.pop_front();
            self.put(now, key, chunk, part, out);
        }
    }

    /// Puts a page of a request to its head, and looks at that.
    fn put(&mut self, now: Nanos, key: u64, chunk: Chunk, part: Part, out: &mut Outbox) {
        self.unlist(chunk.unit);
        self.plugged.get_or_insert(now + UNPLUG_DELAY);
        let head = self.heads.get_mut(&chunk.unit).expect("the group was given one");
        let column = bit(chunk.column);
        head.requests.push((chunk.column, part, key));
        match part {
            Part::Read => {
                let hit = head.right & column != 0;
                self.statistics.read_hits += u64::from(hit);
                self.statistics.read_misses += u64::from(!hit);
                head.to_read |= column;
            }
            Part::Write | Part::Written => {
                let is_whole = chunk.sectors == LINE_SECTORS;
                if is_whole {
                    head.partial &= !column;
                } else if head.to_write & column == 0 {
                    head.partial |= column;
                }
                head.to_write |= column;
            }
        }
        // The host's own process does this; it does not wait for the thread's turn.
        for page in self.look_at(chunk.unit, out) {
            self.send(page, out);
        }
    }

    /// Does what can be done for a head; says what is to be sent for it.
    fn look_at(&mut self, group: u64, out: &mut Outbox) -> Vec<Page> {
        let parity = self.parity();
        let all = parity | (parity - 1);
        let head = self.heads.get_mut(&group).expect("a listed head is there");
        head.is_delayed = false;
        let mut done = Vec::new();
        let mut answer = |head: &mut Head, columns: Columns, part: Part| {
            head.requests.retain(|(column, of, key)| {
                let is_done = *of == part && columns & bit(*column) != 0;
                done.extend(is_done.then_some(*key));
                !is_done
            });
        };
        let read = head.to_read & head.right;
        answer(head, read, Part::Read);
        head.to_read &= !read;
        if parity & head.right & !head.locked != 0 {
            let safe = head.written & !head.locked;
            answer(head, safe, Part::Written);
            head.written &= !safe;
        }
        let mut reads = (head.to_read | head.partial) & !head.locked & !head.right;
        if reads != 0 && (head.right & all).count_ones() + 1 == all.count_ones() {
            // The one that is missing is computed.
            head.right |= reads;
            reads = 0;
        }
        head.locked |= reads;
        let mut writes = 0;
        if head.to_write != 0 {
            let missing = !head.locked & !head.right;
            let modify = (head.to_write | parity) & missing;
            let whole = head.to_write & !head.partial;
            let reconstruct = (parity - 1) & !whole & missing;
            let wanted = if modify.count_ones() < reconstruct.count_ones() { modify } else { reconstruct };
            if wanted != 0 && head.may_read {
                head.locked |= wanted;
                reads |= wanted;
            }
            head.is_delayed = wanted != 0 && !head.may_read;
            if head.locked == 0 && wanted == 0 {
                writes = head.to_write | parity;
                head.written |= head.to_write;
                (head.to_write, head.partial) = (0, 0);
                head.right |= writes;
                head.locked = writes;
                head.requests
                    .iter_mut()
                    .filter(|(_, part, _)| *part == Part::Write)
                    .for_each(|it| it.1 = Part::Written);
                self.reading -= usize::from(std::mem::take(&mut head.may_read));
            }
        }
        let pages = |columns: Columns, writes: bool| {
            let columns = (0..self.members).rev().filter(move |column| columns & bit(*column) != 0);
            columns.map(move |column| Page { group, column, writes })
        };
        let pages = pages(reads, false).chain(pages(writes, true)).collect();
        self.let_go(group);
        done.into_iter().for_each(|key| self.page_done(key, out));
        pages
    }

    fn unlist(&mut self, group: u64) {
        let head = self.heads.get_mut(&group).expect("the group has one");
        match std::mem::take(&mut head.place) {
            Place::Nowhere => None,
            Place::Idle(at) => self.idle.remove(&at),
            Place::Listed(at) => self.listed.remove(&at),
            Place::Delayed(at) => self.delayed.remove(&at),
        };
    }

    /// Puts a head into the list where it has to wait now; behind all others there.
    fn let_go(&mut self, group: u64) {
        let head = self.heads.get_mut(&group).expect("the group has one");
        if head.locked != 0 {
            return;
        }
        self.stamps += 1;
        let at = self.stamps;
        if head.is_delayed {
            head.place = Place::Delayed(at);
            self.delayed.insert(at, group);
        } else if head.to_read | head.to_write | head.written != 0 {
            head.place = Place::Listed(at);
            self.listed.insert(at, group);
        } else {
            self.reading -= usize::from(std::mem::take(&mut head.may_read));
            head.place = Place::Idle(at);
            self.idle.insert(at, group);
        }
    }

    fn page_done(&mut self, key: u64, out: &mut Outbox) {
        let request = self.requests.get_mut(&key).expect("a page is done once");
        request.left -= 1;
        if request.left == 0 {
            let request = self.requests.remove(&key).expect("it is there");
            out.reply(request.id, IoResult::ok(request.buf));
        }
    }

    fn member_of(&self, page: Page) -> usize {
        self.layout().member(page.group, page.column)
    }

    fn send(&mut self, page: Page, out: &mut Outbox) {
        let member = self.member_of(page);
        self.queues[member][usize::from(page.writes)].add(page.group);
        let op = OpId(self.next_op);
        self.next_op += 1;
        self.under_way.insert(op, page);
        let (at, buf) = (self.layout().member_lba(page.group, 0), Buf::blank(LINE_BYTES as usize));
        let io = match page.writes {
            true => Io::Write { at, buf, durability: Durability::Durable },
            false => Io::Read { at, buf },
        };
        self.statistics.read_pages += u64::from(!page.writes);
        self.statistics.written_pages += u64::from(page.writes);
        out.submit(Port(member), op, io);
    }

    fn completed(&mut self, op: OpId) {
        let page = self.under_way.remove(&op).expect("a command ends once");
        let member = self.member_of(page);
        self.queues[member][usize::from(page.writes)].remove(page.group);
        let head = self.heads.get_mut(&page.group).expect("a used head stays");
        head.locked &= !bit(page.column);
        head.right |= bit(page.column);
        self.let_go(page.group);
    }

    fn unplug(&mut self, out: &mut Outbox) {
        if self.plugged.take().is_some() {
            self.activate_delayed();
        }
        self.run(out);
    }

    /// All heads that wait to read may do so, unless others still do.
    fn activate_delayed(&mut self) {
        if self.reading > 0 {
            return;
        }
        for group in std::mem::take(&mut self.delayed).into_values() {
            self.stamps += 1;
            let head = self.heads.get_mut(&group).expect("a used head stays");
            head.is_delayed = false;
            self.reading += usize::from(!std::mem::replace(&mut head.may_read, true));
            head.place = Place::Listed(self.stamps);
            self.listed.insert(self.stamps, group);
        }
    }

    /// The thread: until nothing is left for it, or a member's queue is full.
    fn run(&mut self, out: &mut Outbox) {
        loop {
            while let Some(page) = self.sending.front().copied() {
                if !self.queues[self.member_of(page)][usize::from(page.writes)].has_room(page.group) {
                    return;
                }
                self.sending.pop_front();
                self.send(page, out);
            }
            if self.listed.is_empty() && self.plugged.is_none() {
                self.activate_delayed();
            }
            let Some(group) = self.listed.values().next().copied() else { return };
            self.unlist(group);
            let pages = self.look_at(group, out);
            self.sending.extend(pages);
        }
    }
}

impl Layer for Md {
    fn handle(&mut self, now: Nanos, event: Event, out: &mut Outbox) {
        match event {
            Event::Request(request) => self.accept(now, request, out),
            Event::Completed { op, result } => match result.status {
                Ok(()) => self.completed(op),
                Err(error) => out.report(Report::Failed(format!("a member failed: {error}"))),
            },
            Event::Wake => {
                if self.plugged.is_some_and(|at| at <= now) {
                    self.unplug(out);
                }
            }
            Event::Control(Control::Drain) => self.drains = true,
            Event::Control(Control::ResetStatistics) => self.statistics = Statistics::default(),
            Event::Control(_) => {}
        }
        self.run(out);
        self.take_heads(now, out);
        if self.drains && self.requests.is_empty() {
            self.drains = false;
            out.report(Report::Drained);
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.plugged
    }

    fn check(&self) {
        assert!(self.heads.len() <= self.heads_max, "no more heads than there is memory for");
        let idle = self.under_way.is_empty() && self.plugged.is_none();
        assert!(!idle || self.requests.is_empty(), "requests wait, and nothing is left that could end them");
    }

    fn geometry(&self) -> Geometry {
        let sectors = self.layout().sectors();
        Geometry { volatile_cache: false, rotational: true, ..Geometry::plain(sectors) }
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        let sizes = (0..self.members).map(|member| below.geometry(Port(member)).sectors);
        let least =
            sizes.min().filter(|_| (3..=64).contains(&self.members) && self.strip_sectors >= LINE_SECTORS);
        let Some(least) = least else {
            let problem = "md needs 3 to 64 members, and strips of 4 KiB at least".to_owned();
            return Err(ActivateError(problem));
        };
        let shape = Shape { data: self.members - 1, parity: 1 };
        let room = least.saturating_sub(DATA_SECTOR);
        self.layout = Some(Layout::new(shape, self.strip_sectors, room, CacheUnit::ParityBlockGroup));
        Ok(())
    }

    fn status(&self, _now: Nanos) -> Value {
        let Statistics { read_pages, written_pages, read_misses, read_hits } = self.statistics;
        json!({ "statistics": {
            "read_hits": read_hits,
            "read_misses": read_misses,
            "destage_reads": read_pages.saturating_sub(read_misses),
            "destage_read_blocks": read_pages.saturating_sub(read_misses),
            "destage_writes": written_pages,
            "destage_written_blocks": written_pages,
        }})
    }
}

#[cfg(test)]
#[path = "md_tests.rs"]
mod tests;
