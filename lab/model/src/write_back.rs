//! The drive's built-in cache, as far as delayed writes go: data that was acknowledged and is not on the medium yet.
//!
//! | kind       | a write is acknowledged when its data came over the bus, and                                         |
//! |------------|------------------------------------------------------------------------------------------------------|
//! | on arrival | the arm sets out for it at once. A write that goes on where the last one ends joins it, whenever it   |
//! |            | comes; any other request first waits until everything is on the medium.                               |
//! | deferred   | it waits in the buffer, joined with its neighbours, until the drive has rested for a moment, or until |
//! |            | its place is needed. Other requests only wait for the range that is being written just now.           |
//!
//! A *run* is a range of sectors that waits; a *part* is a range that the heads are writing or have been told to write,
//! with the time at which it is on the medium. Parts end in order and are never called back.

use std::collections::VecDeque;

use dcd_engine::{Extent, Lba, Nanos};
use serde::{Deserialize, Serialize};

use crate::mechanics::{Arm, Mechanics};

/// Time at which data goes to the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteBackKind {
    #[default]
    OnArrival,
    Deferred,
}

/// Order in which runs go to the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DestageOrder {
    /// As they came.
    Fifo,
    /// Rising from where the arm is, and round again.
    Lba,
    /// The shortest positioning time.
    #[default]
    Nearest,
}

/// The write buffer of a drive file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteBackShape {
    pub kind: WriteBackKind,
    /// Maximum number of sectors that wait; 0: the drive delays no writes.
    pub sectors: u64,
    /// Maximum number of runs that wait.
    pub runs: usize,
    pub order: DestageOrder,
    /// Time that the drive rests before it begins.
    pub idle: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct WrittenPart {
    extent: Extent,
    end: Nanos,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteBack {
    shape: WriteBackShape,
    /// Sorted by place, disjoint, and not touching each other; with a number that rises with their age.
    runs: Vec<(Extent, u64)>,
    parts: VecDeque<WrittenPart>,
    waiting_sectors: u64,
    arrivals: u64,
    /// Time at which the last part is on the medium.
    free_at: Nanos,
    /// Place of the last sector, for the order by LBA.
    last: Lba,
}

impl WriteBack {
    pub fn new(shape: WriteBackShape) -> WriteBack {
        WriteBack { shape, ..WriteBack::default() }
    }

    pub fn takes(&self, sectors: u64) -> bool {
        sectors <= self.shape.sectors
    }

    pub fn kind(&self) -> WriteBackKind {
        self.shape.kind
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.parts.is_empty()
    }

    /// True while a run waits that the drive has not begun to write.
    pub fn is_waiting(&self) -> bool {
        !self.runs.is_empty()
    }

    /// From when on the heads are free.
    pub fn free_at(&self) -> Nanos {
        self.free_at
    }

    pub fn part_end(&self) -> Option<Nanos> {
        self.parts.front().map(|part| part.end)
    }

    /// Returns the time at which the next run would be begun on a drive that rests since `idle_since`.
    pub fn begins_at(&self, idle_since: Nanos) -> Option<Nanos> {
        self.is_waiting().then(|| (idle_since + self.shape.idle).max(self.free_at))
    }

    /// Takes out a part that is on the medium by `now`.
    pub fn take_done(&mut self, now: Nanos) -> Option<Extent> {
        let part = self.parts.front().filter(|part| part.end <= now)?;
        let extent = part.extent;
        self.parts.pop_front();
        Some(extent)
    }

    /// True if all of it is in the buffer.
    pub fn holds(&self, extent: Extent) -> bool {
        let inside = |held: Extent| held.start <= extent.start && extent.end() <= held.end();
        self.runs.iter().any(|(run, _)| inside(*run)) || self.parts.iter().any(|part| inside(part.extent))
    }

    /// The end of what is on its way, where a write can join it.
    pub fn tail(&self) -> Option<Lba> {
        self.parts.back().map(|part| part.extent.end())
    }

    /// The parts that are not on the medium at a time.
    fn unwritten(&self, now: Nanos) -> impl Iterator<Item = &WrittenPart> {
        self.parts.iter().filter(move |part| part.end > now)
    }

    /// Returns the time at which so many more sectors have a place beside what is on its way.
    pub fn room_at(&self, sectors: u64, now: Nanos) -> Nanos {
        let mut going: u64 = self.unwritten(now).map(|part| part.extent.sectors).sum();
        let mut room_at = now;
        for part in self.unwritten(now) {
            if going + sectors <= self.shape.sectors {
                break;
            }
            going -= part.extent.sectors;
            room_at = part.end;
        }
        room_at
    }

    /// Returns the time at which the part that the heads are busy with at `now` is on the medium.
    pub fn next_end(&self, now: Nanos) -> Option<Nanos> {
        self.unwritten(now).next().map(|part| part.end)
    }

    /// The heads write a range until `end`.
    pub fn writing(&mut self, extent: Extent, end: Nanos) {
        self.parts.push_back(WrittenPart { extent, end });
        self.free_at = end;
        self.last = extent.end();
    }

    /// True where a write of this range needs no place of its own.
    fn joins(&self, extent: Extent) -> bool {
        self.runs.iter().any(|(run, _)| run.start <= extent.end() && extent.start <= run.end())
    }

    pub fn has_room(&self, extent: Extent, now: Nanos) -> bool {
        let going: u64 = self.unwritten(now).map(|part| part.extent.sectors).sum();
        let places = self.runs.len() + self.unwritten(now).count();
        self.waiting_sectors + going + extent.sectors <= self.shape.sectors
            && (places < self.shape.runs || self.joins(extent))
    }

    /// A range waits from now on, joined with what it touches.
    pub fn wait(&mut self, extent: Extent) {
        let (mut start, mut end) = (extent.start, extent.end());
        let first = self.runs.partition_point(|(run, _)| run.end() < start);
        let after = self.runs.partition_point(|(run, _)| run.start <= end);
        self.arrivals += 1;
        let mut age = self.arrivals;
        for (run, oldest) in self.runs.drain(first..after) {
            start = start.min(run.start);
            end = end.max(run.end());
            age = age.min(oldest);
            self.waiting_sectors -= run.sectors;
        }
        let joined = Extent::new(start, end - start);
        self.waiting_sectors += joined.sectors;
        self.runs.insert(first, (joined, age));
    }

    pub fn overlaps_waiting(&self, extent: Extent) -> bool {
        self.runs.iter().any(|(run, _)| run.overlaps(extent))
    }

    /// Takes out the run to write next, the one that overlaps `wanted` if there is a wish.
    pub fn take_run(&mut self, mechanics: &Mechanics, arm: Arm, at: Nanos, wanted: Option<Extent>) -> Extent {
        let wished = wanted.and_then(|wanted| self.runs.iter().position(|(run, _)| run.overlaps(wanted)));
        let index = wished.unwrap_or_else(|| self.choose(mechanics, arm, at));
        let (run, _) = self.runs.remove(index);
        self.waiting_sectors -= run.sectors;
        run
    }

    fn choose(&self, mechanics: &Mechanics, arm: Arm, at: Nanos) -> usize {
        let runs = self.runs.iter().enumerate();
        let best = match self.shape.order {
            DestageOrder::Fifo => runs.min_by_key(|(_, (_, age))| *age),
            DestageOrder::Lba => runs.min_by_key(|(_, (run, _))| (run.start < self.last, run.start)),
            DestageOrder::Nearest => runs.min_by_key(|(_, (run, _))| {
                let spot = mechanics.geometry.locate(run.start);
                let moving = mechanics.approach(arm, &spot, true);
                moving + mechanics.geometry.rotation_to(&spot, Nanos(at.0 + moving))
            }),
        };
        best.map(|(index, _)| index).expect("a run waits")
    }

    /// Panics where runs are not sorted and apart, or where there are more than fit.
    pub fn check(&self) {
        assert!(self.runs.windows(2).all(|pair| pair[0].0.end() < pair[1].0.start));
        assert_eq!(self.waiting_sectors, self.runs.iter().map(|(run, _)| run.sectors).sum::<u64>());
        assert!(self.waiting_sectors <= self.shape.sectors && self.runs.len() <= self.shape.runs);
        assert!(self.parts.iter().is_sorted_by_key(|part| part.end));
    }
}
