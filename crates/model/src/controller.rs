//! A drive at work: one request after the other, its service time from overhead, cache, arm, rotation and bus.
//!
//! The time of a read that is not in the cache is: command overhead, arm movement, rotation, transfer from the medium,
//! and what the bus takes longer than the medium. A write's data comes over the bus while the arm moves. The overhead of
//! a command that waits in the drive's queue passes while the one before it is served, and so does the transfer of its
//! data; this is why a stream of small sequential writes, several in flight, loses no revolution, and one at a time does.

use dcd_engine::{Extent, Nanos};

use crate::cache::{Cache, Lookup};
use crate::drive::Drive;
use crate::geometry::Spot;
use crate::mechanics::{Arm, Mechanics, Passage};

/// What a request does to the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// A write whose data does not come over the bus.
    WriteZeroes,
}

impl Access {
    const fn writes(self) -> bool {
        !matches!(self, Access::Read)
    }
}

/// Where a request was served from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Wholly from the built-in cache.
    Cache,
    /// From the running read-ahead, whose end it waited for.
    Stream,
    Medium,
}

/// How a request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    pub end: Nanos,
    pub served: Served,
    pub seek: Nanos,
    pub rotation: Nanos,
    pub transfer: Nanos,
}

impl Service {
    const fn moved(end: Nanos, served: Served, passage: &Passage) -> Service {
        Service { end, served, seek: passage.seek, rotation: passage.rotation, transfer: passage.transfer }
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Controller {
    drive: Drive,
    cache: Cache,
    arm: Arm,
    wrote_last: bool,
}

impl Controller {
    /// The heads are on the first track, the cache is empty.
    pub fn new(drive: Drive) -> Controller {
        let cache = Cache::new(drive.cache);
        Controller { drive, cache, arm: Arm::default(), wrote_last: false }
    }

    pub fn drive(&self) -> &Drive {
        &self.drive
    }

    /// Serves a request: the drive is free for it from `start` on, and has known it since `known`.
    pub fn serve(&mut self, start: Nanos, known: Nanos, access: Access, extent: Extent) -> Service {
        debug_assert!(known <= start && extent.sectors > 0);
        let service = match access {
            Access::Read => self.read(start, known, extent),
            Access::Write | Access::WriteZeroes => self.write(start, known, access, extent),
        };
        self.wrote_last = access.writes();
        service
    }

    /// The end of a command without data: it costs what an answer from the cache costs.
    pub fn serve_empty(&self, start: Nanos, known: Nanos) -> Nanos {
        start.max(known + self.drive.overhead.read_hit.after(self.wrote_last))
    }

    /// How long after `start` the first sector would pass if the request were served next; 0 for what is in the cache.
    /// The cache must have been brought up to `start` by [`Controller::catch_up`].
    pub(crate) fn positioning(
        &self,
        start: Nanos,
        known: Nanos,
        access: Access,
        extent: Extent,
        spot: &Spot,
    ) -> u64 {
        let overhead = self.drive.overhead.of(access, self.wrote_last);
        let begin = start.max(known + overhead);
        if !access.writes() {
            match self.cache.lookup(extent) {
                Lookup::Hit { .. } => return 0,
                Lookup::Stream if self.cache.is_reading_ahead() => return 0,
                Lookup::Stream | Lookup::Miss { .. } => {}
            }
        }
        let arm = self.cache.arm().unwrap_or(self.arm);
        let mechanics = self.mechanics();
        let moving = mechanics.approach(arm, spot, access.writes());
        let on_track = Nanos(begin.0 + moving);
        (begin.0 - start.0) + moving + mechanics.geometry.rotation_to(spot, on_track)
    }

    /// Brings the read-ahead up to `now`.
    pub(crate) fn catch_up(&mut self, now: Nanos) {
        self.cache.catch_up(&self.drive.mechanics, now);
    }

    pub(crate) fn check(&self) {
        self.cache.check();
    }

    fn read(&mut self, start: Nanos, known: Nanos, extent: Extent) -> Service {
        self.catch_up(start);
        let hit_begin = start.max(known + self.drive.overhead.read_hit.after(self.wrote_last));
        match self.cache.lookup(extent) {
            Lookup::Hit { segment } => {
                self.cache.hit(segment, extent, start);
                let end = hit_begin + self.drive.bus_time(extent.sectors);
                let none = Nanos::ZERO;
                Service { end, served: Served::Cache, seek: none, rotation: none, transfer: none }
            }
            Lookup::Stream => self.read_stream(hit_begin, extent),
            Lookup::Miss { from } => {
                let begin = start.max(known + self.drive.overhead.of(Access::Read, self.wrote_last));
                self.take_arm(begin);
                let missing = extent.end() - from;
                let spot = self.mechanics().geometry.locate(from);
                let passage = self.mechanics().transfer(self.arm, spot, begin, begin, missing, false);
                self.arm = passage.arm;
                self.cache.loaded(extent, passage.end, passage.arm);
                let bus_end = passage.first + self.drive.bus_time(extent.sectors);
                let end = bus_end.max(passage.end + self.drive.bus_time(1));
                Service::moved(end, Served::Medium, &passage)
            }
        }
    }

    /// Goes on where the read-ahead is; what it has read already is only waiting for the bus.
    fn read_stream(&mut self, begin: Nanos, extent: Extent) -> Service {
        let (next, at, arm) = self.cache.stream_from(begin).expect("a stream needs a read-ahead");
        let spot = self.mechanics().geometry.locate(next);
        let passage = self.mechanics().transfer(arm, spot, at, at, extent.end() - next, false);
        self.arm = passage.arm;
        self.cache.streamed(extent, passage.end, passage.arm);
        let bus_end = begin + self.drive.bus_time(extent.sectors);
        let end = bus_end.max(passage.end + self.drive.bus_time(1));
        Service::moved(end, Served::Stream, &passage)
    }

    fn write(&mut self, start: Nanos, known: Nanos, access: Access, extent: Extent) -> Service {
        let decoded = known + self.drive.overhead.of(access, self.wrote_last);
        let begin = start.max(decoded);
        self.take_arm(begin);
        let spot = self.mechanics().geometry.locate(extent.start);
        let data_at = match access {
            Access::WriteZeroes => begin,
            _ => decoded + self.bus_lead(&spot, extent.sectors),
        };
        let passage = self.mechanics().transfer(self.arm, spot, begin, data_at, extent.sectors, true);
        self.arm = passage.arm;
        self.cache.written(extent, access == Access::Write);
        Service::moved(passage.end, Served::Medium, &passage)
    }

    /// How long before the first sector passes the bus has to begin, so that the data never comes too late.
    fn bus_lead(&self, spot: &Spot, sectors: u64) -> Nanos {
        let sector_time = self.drive.mechanics.geometry.revolution() / u64::from(spot.sectors_per_track);
        let ahead = self.drive.bus_time(sectors).since(Nanos(sector_time * (sectors - 1)));
        ahead.max(self.drive.bus_time(1))
    }

    fn take_arm(&mut self, now: Nanos) {
        if let Some(arm) = self.cache.interrupt(&self.drive.mechanics, now) {
            self.arm = arm;
        }
    }

    fn mechanics(&self) -> &Mechanics {
        &self.drive.mechanics
    }
}
