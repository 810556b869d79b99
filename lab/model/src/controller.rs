//! A drive at work: one request after the other, its service time from overhead, cache, arm, rotation and bus.
//!
//! The time of a read that is not in the cache is: command overhead, arm movement, rotation, transfer from the medium,
//! and what the bus takes longer than the medium. A write's data comes over the bus while the arm moves. The overhead of
//! a command that waits in the drive's queue passes while the one before it is served, and so does the transfer of its
//! data; this is why a stream of small sequential writes, several in flight, loses no revolution, and one at a time does.

use dcd_engine::{Extent, Lba, Nanos};

use crate::cache::{Cache, Lookup};
use crate::drive::Drive;
use crate::geometry::Spot;
use crate::mechanics::{Arm, Mechanics, Pass, Passage, Wanted};
use crate::shingles::Shingles;
use crate::write_back::{WriteBack, WriteBackKind};

/// Kind of access to the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// A write that may be acknowledged from the cache, where the drive delays writes.
    WriteBehind,
    /// A write whose data does not come over the bus.
    WriteZeroes,
}

impl Access {
    const fn writes(self) -> bool {
        !matches!(self, Access::Read)
    }
}

/// Source from which a request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Wholly from the built-in cache. A write that was is not on the medium yet.
    Cache,
    /// From the running read-ahead, whose end it waited for.
    Stream,
    Medium,
}

/// Times of a request that was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    pub end: Nanos,
    pub served: Served,
    pub seek: Nanos,
    pub rotation: Nanos,
    pub transfer: Nanos,
}

impl Service {
    pub(crate) const fn without_data(end: Nanos) -> Service {
        let none = Nanos::ZERO;
        Service { end, served: Served::Cache, seek: none, rotation: none, transfer: none }
    }

    const fn moved(end: Nanos, served: Served, passage: &Passage) -> Service {
        Service { end, served, seek: passage.seek, rotation: passage.rotation, transfer: passage.transfer }
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Controller {
    drive: Drive,
    cache: Cache,
    write_back: WriteBack,
    shingles: Option<Shingles>,
    arm: Arm,
    wrote_last: bool,
    /// Last place that was located: a write asks for the same place twice.
    located: (Lba, Spot),
}

impl Controller {
    /// The heads are on the first track, the cache is empty.
    pub fn new(drive: Drive) -> Controller {
        let cache = Cache::new(drive.cache);
        let write_back = WriteBack::new(drive.write_back);
        let shingles = drive.shingles.map(Shingles::new);
        let located = (Lba(0), drive.locate(Lba(0)));
        Controller { drive, cache, write_back, shingles, arm: Arm::default(), wrote_last: false, located }
    }

    pub fn drive(&self) -> &Drive {
        &self.drive
    }

    /// Serves a request: the drive is free for it from `start` on, and has known it since `known`.
    pub fn serve(&mut self, start: Nanos, known: Nanos, access: Access, extent: Extent) -> Service {
        debug_assert!(known <= start && extent.sectors > 0);
        let service = match access {
            Access::Read => self.read(start, known, extent),
            Access::WriteBehind if self.write_back.takes(extent.sectors) => {
                self.write_behind(start, known, extent)
            }
            Access::Write | Access::WriteBehind => self.write(start, known, Access::Write, extent),
            Access::WriteZeroes => self.write(start, known, access, extent),
        };
        self.wrote_last = access.writes();
        service
    }

    /// Serves a flush: its end is when nothing waits for the medium any more, and at least what an answer from the cache
    /// costs.
    pub fn flush(&mut self, start: Nanos, known: Nanos) -> Nanos {
        let begin = start.max(known + self.drive.overhead.read_hit.after(self.wrote_last));
        self.destage_all(begin, None);
        begin.max(self.write_back.free_at())
    }

    /// Lets a drive that has nothing to serve since `idle_since` destage what it would begin before `now` (or at `now`, if
    /// nothing else happens then).
    pub fn rest(&mut self, idle_since: Nanos, now: Nanos, nothing_else: bool) {
        while let Some(begin) = self.write_back.begins_at(idle_since) {
            if begin > now || (begin == now && !nothing_else) {
                return;
            }
            self.begin_destage(begin, None);
        }
        if self.shingles.is_some() {
            self.clean_bands(idle_since, now);
        }
    }

    /// Cleans the bands that a resting drive would begin to clean before `now`.
    fn clean_bands(&mut self, idle_since: Nanos, now: Nanos) {
        let idle_since = idle_since.max(self.write_back.free_at());
        while let Some(shingles) = &self.shingles
            && let Some(begin) = shingles.begins_at(idle_since).filter(|begin| *begin < now)
        {
            self.clean_band(begin);
        }
    }

    fn clean_band(&mut self, begin: Nanos) {
        self.take_arm(begin);
        if let Some(shingles) = &mut self.shingles {
            self.arm = shingles.clean(&self.drive.mechanics, self.arm, begin);
        }
    }

    /// From when on the heads are free for something else.
    fn heads_free_at(&self) -> Nanos {
        let cleaning = self.shingles.as_ref().map_or(Nanos::ZERO, Shingles::free_at);
        self.write_back.free_at().max(cleaning)
    }

    /// Begins to write one run of delayed data.
    fn begin_destage(&mut self, begin: Nanos, wanted: Option<Extent>) {
        let at = begin.max(self.heads_free_at());
        self.take_arm(at);
        let run = self.write_back.take_run(&self.drive.mechanics, self.arm, at, wanted);
        let at = self.make_room(at, run.sectors);
        let passage = self.put(run, at, at);
        self.write_back.writing(run, passage.end);
    }

    /// Waits until the persistent cache of shingled bands can take a write.
    fn make_room(&mut self, at: Nanos, sectors: u64) -> Nanos {
        let mut at = at;
        while let Some(shingles) = &self.shingles
            && shingles.is_full(sectors)
        {
            self.clean_band(at);
            at = at.max(self.heads_free_at());
        }
        at
    }

    /// Takes out a range of delayed writes that is on the medium by `now`.
    pub fn take_destaged(&mut self, now: Nanos) -> Option<Extent> {
        self.write_back.take_done(now)
    }

    /// Returns the time at which the next range of delayed writes is on the medium, if the drive has begun to write any.
    pub fn next_destaged(&self) -> Option<Nanos> {
        self.write_back.part_end()
    }

    /// Returns the time at which a drive that has nothing to serve since `idle_since` begins to destage.
    pub fn next_destage(&self, idle_since: Nanos) -> Option<Nanos> {
        self.write_back.begins_at(idle_since)
    }

    /// Shingled bands that were cleaned.
    pub fn cleaned_bands(&self) -> u64 {
        self.shingles.as_ref().map_or(0, Shingles::cleaned)
    }

    /// True if writes were acknowledged that are not on the medium.
    pub fn has_unwritten(&self) -> bool {
        !self.write_back.is_empty()
    }

    /// Returns the time from `start` until the first sector would pass if the request were served next; 0 for what is in the cache.
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
        let begin = start.max(known + overhead).max(self.heads_free_at());
        match access {
            Access::Read => match self.cache.lookup(extent) {
                Lookup::Hit { .. } => return 0,
                Lookup::Stream if self.cache.is_reading_ahead() => return 0,
                Lookup::Stream | Lookup::Miss { .. } => {}
            },
            Access::WriteBehind if self.write_back.kind() == WriteBackKind::Deferred => return 0,
            _ => {}
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
        self.write_back.check();
        if let Some(shingles) = &self.shingles {
            shingles.check();
        }
    }

    fn read(&mut self, start: Nanos, known: Nanos, extent: Extent) -> Service {
        self.catch_up(start);
        let mut hit_begin = start.max(known + self.drive.overhead.read_hit.after(self.wrote_last));
        if self.write_back.kind() == WriteBackKind::OnArrival {
            hit_begin = hit_begin.max(self.write_back.free_at());
        }
        hit_begin += self.drive.phases.preparation;
        if self.write_back.holds(extent) {
            return self.answer(hit_begin, extent, self.drive.phases.read_completion);
        }
        match self.cache.lookup(extent) {
            Lookup::Hit { segment } => {
                self.cache.hit(&self.drive.mechanics, segment, extent, start);
                self.answer(hit_begin, extent, self.drive.phases.read_completion)
            }
            Lookup::Stream => self.read_stream(hit_begin, extent),
            Lookup::Miss { from, segment } => {
                let begin = start.max(known + self.drive.overhead.of(Access::Read, self.wrote_last));
                self.read_medium(begin.max(self.heads_free_at()), extent, from, segment)
            }
        }
    }

    fn answer(&self, begin: Nanos, extent: Extent, completion: Nanos) -> Service {
        let none = Nanos::ZERO;
        let end = begin + self.drive.bus_time(extent.sectors) + completion;
        Service { end, served: Served::Cache, seek: none, rotation: none, transfer: none }
    }

    /// Reads the sectors from `from` on; the ones before are in a segment.
    fn read_medium(&mut self, begin: Nanos, extent: Extent, from: Lba, segment: Option<usize>) -> Service {
        self.take_arm(begin);
        let spot = self.mechanics().geometry.locate(from);
        let access = if self.drive.cache.any_order { Pass::ReadAnyOrder } else { Pass::Read };
        let sectors = extent.end() - from;
        let wanted = Wanted { access, arm: self.arm, lba: from, spot, sectors, at: begin, data_at: begin };
        let ready = match self.drive.phases.awaited(sectors) {
            1 => None,
            awaited => Some(self.mechanics().transfer(&Wanted { sectors: awaited, ..wanted }).end),
        };
        let passage = match &self.shingles {
            None => self.transfer(wanted),
            Some(shingles) => self.gather(wanted, &shingles.places(Extent::new(from, sectors))),
        };
        let mut before = 0;
        if self.drive.cache.keep_passing && segment.is_none() {
            let passing = self.mechanics().passing_before(&spot, passage.on_track);
            before = u64::from(passing).min(from.0);
        }
        self.cache.loaded(&self.drive.mechanics, extent, segment, before, passage.end, passage.arm);
        let ready = ready.unwrap_or(passage.first);
        // The bus moves what there is while the rest passes under the heads.
        let phases = &self.drive.phases;
        let bus_begin = match segment {
            Some(_) => begin + phases.preparation,
            None => phases.read_begins(begin, self.wrote_last, ready),
        };
        let bus_end = bus_begin + self.drive.bus_time(extent.sectors);
        let end = bus_end.max(passage.end + self.drive.bus_time(1)) + phases.read_completion;
        Service::moved(end, Served::Medium, &passage)
    }

    /// Reads what lies in several places.
    fn gather(&mut self, wanted: Wanted, places: &[Extent]) -> Passage {
        let mut whole: Option<Passage> = None;
        for place in places {
            let at = whole.map_or(wanted.at, |passage| passage.end);
            let spot = self.mechanics().geometry.locate(place.start);
            let (lba, sectors) = (place.start, place.sectors);
            let part = self.transfer(Wanted { arm: self.arm, lba, spot, sectors, at, data_at: at, ..wanted });
            whole = Some(whole.map_or(part, |whole| whole.then(&part)));
        }
        whole.expect("a read has sectors")
    }

    /// Goes on where the read-ahead is; what it has read already is only waiting for the bus.
    fn read_stream(&mut self, begin: Nanos, extent: Extent) -> Service {
        let (next, at, arm) = self.cache.stream_from(begin).expect("a stream needs a read-ahead");
        let spot = self.mechanics().geometry.locate(next);
        let sectors = extent.end() - next;
        let passage =
            self.transfer(Wanted { access: Pass::Read, arm, lba: next, spot, sectors, at, data_at: at });
        self.cache.streamed(&self.drive.mechanics, extent, passage.end, passage.arm);
        let bus_end = begin + self.drive.bus_time(extent.sectors);
        let end = bus_end.max(passage.end + self.drive.bus_time(1)) + self.drive.phases.read_completion;
        Service::moved(end, Served::Stream, &passage)
    }

    /// A write that is acknowledged when it is on the medium.
    fn write(&mut self, start: Nanos, known: Nanos, access: Access, extent: Extent) -> Service {
        let phases = self.drive.phases;
        let decoded = known + phases.write_command(self.drive.overhead.of(access, self.wrote_last));
        if self.write_back.overlaps_waiting(extent) {
            self.destage_all(start.max(decoded), Some(extent));
        }
        let begin = self.make_room(start.max(decoded).max(self.heads_free_at()), extent.sectors);
        self.take_arm(begin);
        let data_begins = phases.write_begins(decoded);
        let (data_at, data_end) = match access {
            Access::WriteZeroes => (begin, begin),
            _ => (
                data_begins + self.bus_lead(extent).max(self.drive.bus_time(phases.buffered(extent.sectors))),
                data_begins + self.drive.bus_time(extent.sectors),
            ),
        };
        let passage = self.put(extent, begin, data_at.max(decoded + phases.write_positioning_min));
        self.cache.written(extent, access == Access::Write);
        Service::moved(phases.write_ends(passage.end, data_end), Served::Medium, &passage)
    }

    /// A write that is acknowledged when its data has come over the bus.
    fn write_behind(&mut self, start: Nanos, known: Nanos, extent: Extent) -> Service {
        let decoded = known + self.drive.overhead.write_hit.after(self.wrote_last);
        let (begin, passage) = match self.write_back.kind() {
            WriteBackKind::OnArrival => self.write_on_arrival(start, decoded, extent),
            WriteBackKind::Deferred => (self.write_deferred(start.max(decoded), extent), None),
        };
        self.catch_up(begin);
        // The arm stays where it is for a write that waits.
        if passage.is_some() || self.cache.is_in_the_way(extent) {
            self.take_arm(begin);
        }
        self.cache.written(extent, true);
        let phases = &self.drive.phases;
        let answer = self.answer(begin + phases.preparation, extent, phases.write_completion);
        passage.map_or(answer, |passage| Service::moved(answer.end, Served::Cache, &passage))
    }

    /// Sends the arm out for a write at once; tells when its data begins to come, and what the arm does.
    fn write_on_arrival(&mut self, start: Nanos, decoded: Nanos, extent: Extent) -> (Nanos, Option<Passage>) {
        let appends = self.write_back.tail() == Some(extent.start);
        let begin = match appends {
            true => self.write_back.room_at(extent.sectors, start.max(decoded)),
            false => start.max(decoded).max(self.heads_free_at()),
        };
        let begin = self.make_room(begin, extent.sectors);
        self.take_arm(begin);
        let data_at = begin + self.bus_lead(extent);
        // An append goes on where the heads are when they are through with what came before.
        let passage = self.put(extent, begin.max(self.heads_free_at()), data_at);
        self.write_back.writing(extent, passage.end);
        (begin, Some(passage))
    }

    /// Puts a write among those that wait; tells when it has a place.
    fn write_deferred(&mut self, begin: Nanos, extent: Extent) -> Nanos {
        let mut begin = begin;
        while !self.write_back.has_room(extent, begin) {
            if self.write_back.next_end(begin).is_none() {
                self.begin_destage(begin, None);
            }
            begin = self.write_back.next_end(begin).expect("a part has just been begun");
        }
        self.write_back.wait(extent);
        begin
    }

    /// Begins to destage, one after the other, all runs that wait, or those that overlap a range.
    fn destage_all(&mut self, begin: Nanos, wanted: Option<Extent>) {
        let more = |write_back: &WriteBack| match wanted {
            Some(extent) => write_back.overlaps_waiting(extent),
            None => write_back.is_waiting(),
        };
        while more(&self.write_back) {
            self.begin_destage(begin, wanted);
        }
    }

    /// Writes a range, or what shingles make of it.
    fn put(&mut self, extent: Extent, at: Nanos, data_at: Nanos) -> Passage {
        let lba = match &mut self.shingles {
            Some(shingles) => shingles.put(extent),
            None => extent.start,
        };
        let spot = self.locate(lba);
        let (arm, sectors) = (self.arm, extent.sectors);
        self.transfer(Wanted { access: Pass::Write, arm, lba, spot, sectors, at, data_at })
    }

    fn transfer(&mut self, wanted: Wanted) -> Passage {
        let passage = self.drive.mechanics.transfer(&wanted);
        self.arm = passage.arm;
        passage
    }

    /// Returns how long before the first sector passes the bus has to begin, so that the data never comes too late.
    fn bus_lead(&mut self, extent: Extent) -> Nanos {
        let spot = self.locate(extent.start);
        let sector_time = self.drive.mechanics.geometry.revolution() / u64::from(spot.sectors_per_track);
        let passing = Nanos(sector_time * (extent.sectors - 1));
        self.drive.bus_time(extent.sectors).since(passing).max(self.drive.bus_time(1))
    }

    fn locate(&mut self, lba: Lba) -> Spot {
        if self.located.0 != lba {
            self.located = (lba, self.drive.locate(lba));
        }
        self.located.1
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
