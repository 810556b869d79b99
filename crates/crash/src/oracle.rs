//! The oracle: what a device may hold, given what its client was told.
//!
//! It follows the requests and answers at the top of a stack and keeps, for each sector, the chain of writes to it in the
//! order in which they were submitted (overlapping requests keep that order). From the chain follow
//! - what a read may return: the last write that was answered before the read was submitted, or any later one;
//! - what a crash may leave, for each promise:
//!   - `flush`: the last write that a finished flush covers (it was answered before the flush was submitted) or that was
//!     answered with FUA, or any later one;
//!   - `always`: the last write that was answered, or any later one;
//!   - `ordered`: the whole device is what it was after some prefix of all writes, and the prefix holds every write that
//!     was answered more than `delay_max` before the crash.
//!
//! A write that failed may or may not have happened, until a later one covers it.
//!
//! Where destaging is ordered, it also judges the data disk alone, as if there were no cache ([`Oracle::judge_disk`]): a plain
//! disk under the same client could have crashed in that state at some instant. At each instant everything that a finished
//! flush covers is on it, and nothing that was submitted later; between flushes anything goes.

use std::fmt::Write as _;
use std::sync::Arc;

use dcd_engine::log_cache::Promise;
use dcd_engine::{Extent, Lba, Nanos, SECTOR_BYTES};

use crate::explore::GuestContent;
use crate::{SeenContent, Value, dealt, stamp};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteState {
    InFlight,
    Answered(Nanos),
    Failed,
}

/// Content that a write leaves.
#[derive(Clone, Debug)]
pub enum WriteContent {
    Stamps,
    Zeroes,
    /// A discard, on a disk that does not define the content afterwards.
    Unknown,
    /// Content of the whole device that was found after a process was killed.
    Found(Arc<[Value]>),
}

#[derive(Clone, Debug)]
struct Written {
    extent: Extent,
    content: WriteContent,
    durable: bool,
    state: WriteState,
    /// Barriers (flushes and durable writes) that were answered when the write was submitted,
    begun: u32,
    /// and with the first barrier that covers the write; `u32::MAX`: none does.
    covered: u32,
}

/// A link of a sector's chain.
#[derive(Clone, Copy, Debug)]
struct ChainLink {
    write: u32,
    /// The index of the link before, plus one; 0 ends the chain.
    before: u32,
}

#[derive(Clone, Copy, Debug)]
struct Sector {
    /// The index of the newest link, plus one.
    newest: u32,
    /// The newest write that is known to be durable; 0: what was there at the last start.
    durable: u32,
    /// The newest write that was answered.
    answered: u32,
    base: Value,
    /// True if the client was told that the sector's content is lost.
    lost: bool,
}

/// A flush in flight: how many answers came before it.
#[derive(Clone, Copy, Debug)]
pub struct FlushMark(u64);

/// A read in flight: for each of its sectors, the oldest write that it may still return.
#[derive(Clone, Debug)]
pub struct ReadMark {
    extent: Extent,
    floors: Vec<u32>,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Oracle {
    promise: Promise,
    delay_max: Nanos,
    seed: u64,
    sectors: Vec<Sector>,
    links: Vec<ChainLink>,
    /// The writes since the last start; the first has the number `first`.
    writes: Vec<Written>,
    first: u32,
    /// Answered writes that no finished flush has covered yet, with the number of their answer.
    uncovered: Vec<(u64, u32)>,
    answers: u64,
    /// All answered writes of this activation, the first with the number `answers_before`, and how many a barrier has covered.
    answered: Vec<u32>,
    answers_before: u64,
    barriers: u32,
    barred: usize,
    /// The previous activation, while the data disk may still be in one of its states.
    before: Option<Arc<Oracle>>,
    judges_disk: bool,
    /// Disks to which the chunks of the device are dealt: each has its own order of writes.
    disks: usize,
    /// Content of a data disk that comes and goes beside the device.
    pub guest: Option<GuestContent>,
}

impl Oracle {
    /// `delay_max` only matters for `ordered`. `base` is what the device holds at first.
    pub fn new(promise: Promise, delay_max: Nanos, seed: u64, base: Vec<Value>) -> Oracle {
        let sector = |base| Sector { newest: 0, durable: 0, answered: 0, base, lost: false };
        Oracle {
            promise,
            delay_max,
            seed,
            sectors: base.into_iter().map(sector).collect(),
            links: Vec::new(),
            writes: Vec::new(),
            first: 1,
            uncovered: Vec::new(),
            answers: 0,
            answered: Vec::new(),
            answers_before: 0,
            barriers: 0,
            barred: 0,
            before: None,
            judges_disk: false,
            disks: 1,
            guest: None,
        }
    }

    /// Prepares for [`Oracle::judge_disk`], which costs memory for each activation.
    pub fn judges_disk(mut self) -> Oracle {
        self.judges_disk = true;
        self
    }

    /// Judges the order of writes for each of so many disks, to which the chunks of the device are dealt.
    pub const fn of_disks(mut self, disks: usize) -> Oracle {
        self.disks = disks;
        self
    }

    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    pub const fn seed(&self) -> u64 {
        self.seed
    }

    fn of(&self, extent: Extent) -> &[Sector] {
        &self.sectors[extent.start.0 as usize..extent.end().0 as usize]
    }

    fn of_mut(&mut self, extent: Extent) -> &mut [Sector] {
        &mut self.sectors[extent.start.0 as usize..extent.end().0 as usize]
    }

    fn written(&self, write: u32) -> &Written {
        &self.writes[(write - self.first) as usize]
    }

    /// Notes the submission of a write: stamps, zeroes, or unknown content. Returns the number for its stamps.
    pub fn write_begins(&mut self, extent: Extent, content: WriteContent, durable: bool) -> u32 {
        self.append(extent, content, durable, WriteState::InFlight)
    }

    fn append(&mut self, extent: Extent, content: WriteContent, durable: bool, state: WriteState) -> u32 {
        let written = Written { extent, content, durable, state, begun: self.barriers, covered: u32::MAX };
        let write = self.first + self.writes.len() as u32;
        self.writes.push(written);
        for index in extent.start.0 as usize..extent.end().0 as usize {
            let before = self.sectors[index].newest;
            self.links.push(ChainLink { write, before });
            self.sectors[index].newest = self.links.len() as u32;
        }
        write
    }

    pub fn write_ends(&mut self, write: u32, ok: bool, now: Nanos) {
        let always = self.promise == Promise::Always;
        let written = &mut self.writes[(write - self.first) as usize];
        assert_eq!(written.state, WriteState::InFlight, "a write is answered once");
        written.state = if ok { WriteState::Answered(now) } else { WriteState::Failed };
        if !ok {
            return;
        }
        let Written { extent, durable, .. } = written.clone();
        if always || durable {
            self.barriers += 1;
            written.covered = self.barriers;
        }
        self.answered.push(write);
        let durable = always || (durable && self.promise == Promise::Flush);
        for sector in self.of_mut(extent) {
            sector.answered = sector.answered.max(write);
            if durable {
                sector.durable = sector.durable.max(write);
            }
        }
        self.uncovered.push((self.answers, write));
        self.answers += 1;
    }

    pub const fn flush_begins(&self) -> FlushMark {
        FlushMark(self.answers)
    }

    /// Notes the end of a flush. After a failed flush, the client knows that the writes before it may be lost, and no later flush covers
    /// them: they count as unwritten.
    pub fn flush_ends(&mut self, mark: FlushMark, ok: bool) {
        if ok {
            self.bar(mark);
        }
        if !ok {
            self.uncovered.retain(|(answer, _)| *answer >= mark.0);
        } else if self.promise != Promise::Ordered {
            self.cover(mark.0);
        }
    }

    /// Notes a barrier: a plain disk would now have made these writes durable.
    fn bar(&mut self, mark: FlushMark) {
        self.barriers += 1;
        let end = (mark.0.saturating_sub(self.answers_before) as usize).max(self.barred);
        for index in self.barred..end {
            let write = (self.answered[index] - self.first) as usize;
            self.writes[write].covered = self.writes[write].covered.min(self.barriers);
        }
        self.barred = end;
    }

    fn cover(&mut self, below: u64) {
        let covered = self.uncovered.partition_point(|(answer, _)| *answer < below);
        let writes: Vec<u32> = self.uncovered.drain(..covered).map(|(_, write)| write).collect();
        for write in writes {
            let extent = self.written(write).extent;
            for sector in self.of_mut(extent) {
                sector.durable = sector.durable.max(write);
            }
        }
    }

    pub fn read_begins(&self, extent: Extent) -> ReadMark {
        ReadMark { extent, floors: self.of(extent).iter().map(|sector| sector.answered).collect() }
    }

    /// Judges the data of a read.
    pub fn read_ends(&self, mark: &ReadMark, bytes: &[u8]) -> Result<(), String> {
        let sectors = bytes.chunks_exact(SECTOR_BYTES as usize);
        for (index, (sector, floor)) in sectors.zip(&mark.floors).enumerate() {
            let at = mark.extent.start + index as u64;
            let seen = stamp::look(sector, at, self.seed);
            if !self.allows(at, *floor, seen) {
                return Err(format!("a read returned wrong data. {}", self.explain(at, *floor, seen)));
            }
        }
        Ok(())
    }

    /// The chain of a sector from the newest write back to `floor`, which is included; 0 stands for the base.
    fn candidates(&self, at: Lba, floor: u32) -> impl Iterator<Item = u32> {
        let mut next = Some(self.sectors[at.0 as usize].newest);
        std::iter::from_fn(move || match next? {
            0 => {
                next = None;
                Some(0)
            }
            link => {
                let link = self.links[link as usize - 1];
                next = (link.write > floor).then_some(link.before);
                Some(link.write)
            }
        })
    }

    fn value(&self, at: Lba, write: u32) -> Value {
        if write == 0 {
            return self.sectors[at.0 as usize].base;
        }
        match &self.written(write).content {
            WriteContent::Stamps => Value::Write(write),
            WriteContent::Zeroes => Value::Zero,
            WriteContent::Unknown => Value::Any,
            WriteContent::Found(values) => values[at.0 as usize],
        }
    }

    fn allows(&self, at: Lba, floor: u32, seen: SeenContent) -> bool {
        if self.sectors[at.0 as usize].lost {
            return true;
        }
        let SeenContent::Value(seen) = seen else { return false };
        self.candidates(at, floor).any(|write| [seen, Value::Any].contains(&self.value(at, write)))
    }

    /// Returns the value that a sector holds from now on, after it was found to hold `seen`.
    fn settled(&self, at: Lba, floor: u32, seen: SeenContent) -> Value {
        let SeenContent::Value(value) = seen else { panic!("what was judged good has a value") };
        let is_unknown = self.candidates(at, floor).any(|write| self.value(at, write) == Value::Any);
        if is_unknown { Value::Any } else { value }
    }

    /// True when two readings of the whole device, with nothing written in between, agree.
    pub fn are_same(&self, one: &[SeenContent], other: &[SeenContent]) -> bool {
        let floor = |index: usize| self.sectors[index].durable;
        one.iter().zip(other).enumerate().all(|(index, (one, other))| {
            let at = Lba(index as u64);
            one == other || self.settled(at, floor(index), *one) == Value::Any
        })
    }

    /// Judges the content found after a crash at `now` and a recovery.
    pub fn judge(&self, now: Nanos, found: &[SeenContent]) -> Result<(), String> {
        assert_eq!(found.len(), self.sectors.len(), "the device kept its size");
        if self.promise == Promise::Ordered {
            return (0..self.disks).try_for_each(|disk| self.judge_prefix(disk, now, found));
        }
        for (index, (sector, seen)) in self.sectors.iter().zip(found).enumerate() {
            let at = Lba(index as u64);
            if !self.allows(at, sector.durable, *seen) {
                return Err(format!("the crash took data. {}", self.explain(at, sector.durable, *seen)));
            }
        }
        Ok(())
    }

    /// Judges the content found after a kill of the process, if no answered write may be lost with it.
    pub fn judge_killed(&self, found: &[SeenContent]) -> Result<(), String> {
        for (index, (sector, seen)) in self.sectors.iter().zip(found).enumerate() {
            let at = Lba(index as u64);
            if !self.allows(at, sector.answered, *seen) {
                let told = self.explain(at, sector.answered, *seen);
                return Err(format!("the end of the process took data. {told}"));
            }
        }
        Ok(())
    }

    fn is_on(&self, disk: usize, at: Lba) -> bool {
        self.disks == 1 || dealt::place_of(at, self.disks).0 == disk
    }

    /// Looks for a prefix of the writes that gives exactly the content found on a disk.
    fn judge_prefix(&self, disk: usize, now: Nanos, found: &[SeenContent]) -> Result<(), String> {
        let end = self.writes.len();
        // Number of sectors that agree with the prefix of each length, stored as differences.
        let mut agree = vec![0i64; end + 2];
        let mut sectors = 0;
        for (index, seen) in found.iter().enumerate() {
            let at = Lba(index as u64);
            if !self.is_on(disk, at) {
                continue;
            }
            sectors += 1;
            if !self.add_agreement(at, *seen, &mut agree) {
                return Err(format!("the device holds what never was. {}", self.explain(at, 0, *seen)));
            }
        }
        let oldest = self.oldest_prefix(disk, now);
        let (mut count, mut best, mut too_old) = (0, (0, 0), None);
        for (length, difference) in agree[..=end].iter().enumerate() {
            count += difference;
            if count == sectors {
                if length >= oldest {
                    return Ok(());
                }
                too_old = Some(length);
            }
            best = best.max((count, length));
        }
        if let Some(length) = too_old {
            let missing = self.first + length as u32;
            return Err(format!(
                "the crash took more than the last {}: write {missing} ({:?}) is gone at {now}",
                self.delay_max,
                self.written(missing)
            ));
        }
        Err(self.explain_mix(best.1, found))
    }

    /// Judges the data disk alone, without the cache. Looks for an instant at which a plain disk could have crashed with this
    /// content: in this activation or, if nothing of it is destaged yet, in the previous one.
    pub fn judge_disk(&self, found: &[SeenContent]) -> Result<(), String> {
        let mut life = Some(self);
        while let Some(oracle) = life {
            if oracle.fits_plain_disk(found) {
                return Ok(());
            }
            life = oracle.before.as_deref();
        }
        Err("the data disk alone is in a state in which no plain disk could have crashed".into())
    }

    /// True if some instant of this activation fits. Instants are counted by the barriers answered before them.
    fn fits_plain_disk(&self, found: &[SeenContent]) -> bool {
        let mut agree = vec![0i64; self.barriers as usize + 2];
        for (index, seen) in found.iter().enumerate() {
            let SeenContent::Value(seen) = *seen else { return false };
            let at = Lba(index as u64);
            // Allowed up to `last`, after which a barrier covers a newer write. Instants from `taken` on are already counted.
            let (mut last, mut taken) = (self.barriers, self.barriers + 1);
            for write in self.candidates(at, 0) {
                let (begun, covered) = match write {
                    0 => (0, u32::MAX),
                    write => (self.written(write).begun, self.written(write).covered),
                };
                let end = (last + 1).min(taken);
                if self.value(at, write) == seen && begun < end {
                    agree[begun as usize] += 1;
                    agree[end as usize] -= 1;
                    taken = begun;
                }
                last = last.min(covered.saturating_sub(1));
            }
        }
        let mut count = 0;
        agree.iter().any(|difference| {
            count += difference;
            count == found.len() as i64
        })
    }

    /// Adds the prefix lengths for which the sector holds `seen`; false where there are none.
    fn add_agreement(&self, at: Lba, seen: SeenContent, agree: &mut [i64]) -> bool {
        let SeenContent::Value(seen) = seen else { return false };
        let (mut any, mut behind) = (false, agree.len() - 1);
        for write in self.candidates(at, 0) {
            let from = if write == 0 { 0 } else { (write - self.first + 1) as usize };
            if self.value(at, write) == seen {
                agree[from] += 1;
                agree[behind] -= 1;
                any = true;
            }
            behind = from;
        }
        any
    }

    /// The length of the shortest prefix that `delay_max` allows.
    fn oldest_prefix(&self, disk: usize, now: Nanos) -> usize {
        let Some(limit) = now.0.checked_sub(self.delay_max.0) else { return 0 };
        let old = |written: &Written| {
            let is_all = written.extent.sectors == self.sectors();
            let is_old = matches!(written.state, WriteState::Answered(at) if at.0 < limit);
            is_old && (is_all || self.is_on(disk, written.extent.start))
        };
        self.writes.iter().rposition(old).map_or(0, |index| index + 1)
    }

    fn explain_mix(&self, length: usize, found: &[SeenContent]) -> String {
        let last = self.first + length as u32;
        let mut text =
            format!("no prefix of the writes gives this device; up to write {} it fits best, but", last - 1);
        let mut named = 0;
        for (index, seen) in found.iter().enumerate() {
            let at = Lba(index as u64);
            let write = self.candidates(at, 0).find(|write| *write < last).unwrap_or(0);
            if *seen != SeenContent::Value(self.value(at, write)) && named < 4 {
                named += 1;
                let _ = write!(text, "\n{}", self.explain(at, write, *seen));
            }
        }
        text
    }

    /// A sector's chain in words.
    fn explain(&self, at: Lba, floor: u32, seen: SeenContent) -> String {
        let mut text = format!("{at} holds {seen}; allowed:");
        for write in self.candidates(at, floor) {
            let _ = write!(text, " {}", self.value(at, write));
            if write != 0 {
                let written = self.written(write);
                let _ = write!(
                    text,
                    " ({}, {:?}{});",
                    written.extent,
                    written.state,
                    if written.durable { ", FUA" } else { "" }
                );
            }
        }
        if let SeenContent::Value(Value::Write(write)) = seen
            && write >= self.first
            && let Some(written) = self.writes.get((write - self.first) as usize)
        {
            let _ = write!(text, " (found: {}, {:?})", written.extent, written.state);
        }
        text
    }

    fn all_settled(&self, found: &[SeenContent]) -> Vec<Value> {
        let settled = |(index, seen): (usize, &SeenContent)| {
            self.settled(Lba(index as u64), self.sectors[index].durable, *seen)
        };
        found.iter().enumerate().map(settled).collect()
    }

    /// Notes the content found by a recovery: the initial content of the next activation.
    pub fn recovered(&mut self, found: &[SeenContent]) {
        if self.judges_disk {
            self.before = Some(Arc::new(self.clone()));
        }
        for (sector, base) in self.all_settled(found).into_iter().enumerate() {
            self.sectors[sector] = Sector { newest: 0, durable: 0, answered: 0, base, lost: false };
        }
        self.first += self.writes.len() as u32;
        self.writes.clear();
        self.links.clear();
        self.uncovered.clear();
        self.answered.clear();
        self.answers_before = self.answers;
        (self.barriers, self.barred) = (0, 0);
    }

    /// True if a crash may leave several values in the sector.
    pub fn is_uncertain(&self, at: Lba) -> bool {
        let floor = self.sectors[at.0 as usize].durable;
        self.candidates(at, floor).nth(1).is_some()
    }

    /// Notes that the client was told of a sector's loss: nothing is promised of it until the next recovery.
    pub fn lost(&mut self, at: Lba) {
        self.sectors[at.0 as usize].lost = true;
    }

    /// Notes a kill of the process, and the content that the next one found. The devices kept their caches, so this content may still be
    /// lost. Other writes were only in RAM, and are gone unless the devices bring them back in a power cut. So the content counts as
    /// written without a flush.
    pub fn killed(&mut self, found: &[SeenContent]) {
        for written in &mut self.writes {
            if written.state == WriteState::InFlight {
                written.state = WriteState::Failed;
            }
        }
        let content = WriteContent::Found(self.all_settled(found).into());
        let extent = Extent::new(Lba(0), self.sectors());
        let state = WriteState::Answered(Nanos::ZERO);
        let write = self.append(extent, content, false, state);
        self.answered.push(write);
        self.sectors.iter_mut().for_each(|sector| sector.answered = write);
        self.uncovered.clear();
        self.uncovered.push((self.answers, write));
        self.answers += 1;
    }

    /// Notes a clean stop: all answered writes are durable.
    pub fn stopped(&mut self) {
        self.cover(u64::MAX);
        self.guest.iter_mut().for_each(GuestContent::stopped);
    }
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
