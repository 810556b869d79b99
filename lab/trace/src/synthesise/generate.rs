//! The generator: from a description to records.
//!
//! A write decides, when it is made, whether it will be overwritten and after how many requests; what is due is written
//! again, in the order in which it falls due, and only else is new data written. So of the writes exactly the wanted share
//! overwrites, after the wanted intervals, as far as the order of reads and writes leaves room. Reads come back to an
//! extent that was written or read so many requests ago, or go to a place that was never touched. A run continues where the
//! request before it ended; what was written in one run is due in one run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use dcd_engine::{Extent, Lba, Nanos};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::arrivals::Gaps;
use super::description::Description;
use super::place::{Places, Touched};
use super::spread::Sampler;
use crate::error::TraceError;
use crate::format::ReadTrace;
use dcd_stack::{Record, RecordOp};

/// An overwrite to come: request number, order, where.
type Due = Reverse<(u64, u64, Lba, u64)>;

/// Extents that can be accessed again, by the number of their request.
#[derive(Default)]
struct History(Vec<(u64, Extent)>);

impl History {
    /// The index of the request that is nearest before `number`.
    fn before(&self, number: u64, rng: &mut ChaCha8Rng) -> Option<usize> {
        match self.0.partition_point(|entry| entry.0 <= number) {
            _ if self.0.is_empty() => None,
            0 => Some(rng.random_range(0..self.0.len())),
            found => Some(found - 1),
        }
    }
}

/// Origin of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Written(usize),
    Read(usize),
    New,
}

/// The request before, which the next may continue.
#[derive(Clone, Copy)]
struct Before {
    op: RecordOp,
    extent: Extent,
    /// Origin, if it is a read.
    from: From,
    /// True for a write of new data. A write will be overwritten after `fate` requests.
    new: bool,
    fate: Option<u64>,
}

struct Samplers {
    read_bytes: Sampler,
    write_bytes: Sampler,
    overwrite: Sampler,
    read_after_write: Sampler,
    read_again: Sampler,
}

/// Gives the records of a synthetic trace. Holds some 50 bytes for each request that it gave.
pub struct Synthesiser {
    description: Description,
    rng: ChaCha8Rng,
    samplers: Samplers,
    gaps: Gaps,
    places: Places,
    left: (u64, u64),
    flush_chance: f64,
    flush_next: bool,
    number: u64,
    now: f64,
    before: Option<Before>,
    due: BinaryHeap<Due>,
    written: History,
    read: History,
    written_sectors: Touched,
    read_sectors: Touched,
}

impl Synthesiser {
    /// Makes a generator. An equal description and seed give an equal trace. The trace has the figures of the description only about;
    /// [`super::fitted`] turns the description until they fit.
    pub fn new(description: &Description, seed: u64) -> Result<Synthesiser, TraceError> {
        description.check().map_err(TraceError::Other)?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let places = Places::new(&description.space, &mut rng);
        let samplers = Samplers {
            read_bytes: Sampler::steps(&description.reads.size_bytes),
            write_bytes: Sampler::steps(&description.writes.size_bytes),
            overwrite: Sampler::smooth(&description.overwrite.interval_ios),
            read_after_write: Sampler::smooth(&description.read_after_write.interval_ios),
            read_again: Sampler::smooth(&description.read_again.interval_ios),
        };
        let left = (description.reads.count, description.writes.count);
        Ok(Synthesiser {
            gaps: Gaps::new(&description.arrivals, left.0 + left.1 + description.flushes),
            flush_chance: description.flushes as f64 / (left.1.max(1)) as f64,
            description: description.clone(),
            samplers,
            places,
            left,
            flush_next: false,
            number: 0,
            now: 0.0,
            before: None,
            due: BinaryHeap::new(),
            written: History::default(),
            read: History::default(),
            written_sectors: Touched::default(),
            read_sectors: Touched::default(),
            rng,
        })
    }

    fn chance(&mut self, share: f64) -> bool {
        self.rng.random::<f64>() < share
    }

    /// The operation, and the request that it continues, if it does.
    fn operation(&mut self) -> (RecordOp, Option<Before>) {
        let continues = self.before.filter(|before| match before.op {
            RecordOp::Read => self.left.0 > 0,
            _ => self.left.1 > 0,
        });
        if let Some(before) = continues
            && self.chance(self.description.sequential_share)
        {
            return (before.op, Some(before));
        }
        let reads = self.rng.random_range(0..self.left.0 + self.left.1) < self.left.0;
        (if reads { RecordOp::Read } else { RecordOp::Write }, None)
    }

    fn write(&mut self, continues: Option<Before>) -> Before {
        let again = |synthesiser: &Synthesiser| match (continues, synthesiser.due.peek()) {
            (Some(before), Some(Reverse((.., start, _)))) => !before.new && *start == before.extent.end(),
            (None, Some(Reverse((due, ..)))) => *due <= synthesiser.number,
            _ => false,
        };
        let fate = continues.map(|before| before.fate);
        if again(self) {
            let Reverse((.., start, sectors)) = self.due.pop().expect("it was looked at");
            return self.written(Extent::new(start, sectors), false, fate);
        }
        let sectors = self.places.size(self.samplers.write_bytes.draw(&mut self.rng));
        if let Some(before) = continues.filter(|before| before.new)
            && let Some(next) = self.places.behind(before.extent, sectors)
            && !self.written_sectors.touches(next)
        {
            self.places.note(next);
            return self.written(next, true, fate);
        }
        // A run that ends here leaves this write to what is due.
        if continues.is_some() {
            return self.write(None);
        }
        let taken = &self.written_sectors;
        let extent = self.places.place(sectors, &mut self.rng, |extent| taken.touches(extent));
        self.written(extent, true, fate)
    }

    /// Notes a write, and whether it will be overwritten.
    fn written(&mut self, extent: Extent, new: bool, fate: Option<Option<u64>>) -> Before {
        let fate = fate.unwrap_or_else(|| {
            let again = self.rng.random::<f64>() < self.description.overwrite.share;
            again.then(|| self.samplers.overwrite.draw(&mut self.rng).round().max(1.0) as u64)
        });
        if let Some(interval) = fate {
            let due = self.number.saturating_add(interval);
            self.due.push(Reverse((due, self.number, extent.start, extent.sectors)));
        }
        self.written_sectors.add(extent);
        self.written.0.push((self.number, extent));
        self.left.1 -= 1;
        Before { op: RecordOp::Write, extent, from: From::New, new, fate }
    }

    fn read(&mut self, continues: Option<Before>) -> Before {
        let found = continues.and_then(|before| self.read_on(before)).or_else(|| self.read_back());
        let (extent, from) = found.unwrap_or_else(|| {
            let sectors = self.places.size(self.samplers.read_bytes.draw(&mut self.rng));
            let (read, written) = (&self.read_sectors, &self.written_sectors);
            let taken = |extent| read.touches(extent) || written.touches(extent);
            (self.places.place(sectors, &mut self.rng, taken), From::New)
        });
        if from == From::New {
            self.read_sectors.add(extent);
        }
        if !matches!(from, From::Written(_)) {
            self.read.0.push((self.number, extent));
        }
        self.left.0 -= 1;
        Before { op: RecordOp::Read, extent, from, new: false, fate: None }
    }

    /// Returns what follows the read before, if anything of its kind does.
    fn read_on(&mut self, before: Before) -> Option<(Extent, From)> {
        let next = |history: &History, index: usize| {
            history.0.get(index + 1).map(|entry| entry.1).filter(|next| next.start == before.extent.end())
        };
        match before.from {
            From::Written(index) => Some((next(&self.written, index)?, From::Written(index + 1))),
            From::Read(index) => Some((next(&self.read, index)?, From::Read(index + 1))),
            From::New => {
                let sectors = self.places.size(self.samplers.read_bytes.draw(&mut self.rng));
                let next = self.places.behind(before.extent, sectors)?;
                let free = !self.read_sectors.touches(next) && !self.written_sectors.touches(next);
                if free {
                    self.places.note(next);
                }
                free.then_some((next, From::New))
            }
        }
    }

    /// Something that was written or read before.
    fn read_back(&mut self) -> Option<(Extent, From)> {
        let after_write = self.description.read_after_write.share;
        let u: f64 = self.rng.random();
        if u < after_write {
            let interval = self.samplers.read_after_write.draw(&mut self.rng) as u64;
            let index = self.written.before(self.number.saturating_sub(interval), &mut self.rng)?;
            Some((self.written.0[index].1, From::Written(index)))
        } else if u < after_write + self.description.read_again.share {
            let interval = self.samplers.read_again.draw(&mut self.rng) as u64;
            let index = self.read.before(self.number.saturating_sub(interval), &mut self.rng)?;
            Some((self.read.0[index].1, From::Read(index)))
        } else {
            None
        }
    }
}

impl Iterator for Synthesiser {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let at = Nanos(self.now as u64);
        let device = self.description.device_id();
        if self.flush_next {
            self.flush_next = false;
            self.number += 1;
            self.now += self.gaps.next(&mut self.rng);
            return Some(Record::flush(at, device));
        }
        if self.left == (0, 0) {
            return None;
        }
        self.number += 1;
        let (op, continues) = self.operation();
        let made = if op == RecordOp::Read { self.read(continues) } else { self.write(continues) };
        self.before = Some(made);
        self.flush_next = op == RecordOp::Write && self.flush_chance > 0.0 && self.chance(self.flush_chance);
        self.now += self.gaps.next(&mut self.rng);
        Some(Record { at, device, op, extent: made.extent, response: None, fua: false })
    }
}

impl ReadTrace for Synthesiser {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        Ok(self.next())
    }
}
