//! A disk in memory that forgets what was not flushed, as disks do.
//!
//! It keeps two images and a list between them. `current` is what a read sees. `durable` is what a power cut leaves for
//! certain. `pending` holds the writes that completed since and that no flush has covered, in the order in which they
//! completed. Operations in flight take effect when they complete, and completions come out of order, so that a layer that
//! relies on the order of overlapping operations is found out.
//!
//! [`MemDisk::power_cut`] makes the disk that is found after a cut: each sector of each write that is pending or in flight
//! may have reached the medium or not, on its own. One sector is atomic; nothing larger is. Of two pending writes to one
//! sector the later one wins if it is kept, so the sector may hold any of the versions since the last flush.

use std::collections::BTreeSet;
use std::sync::Arc;

use dcd_engine::{
    BlockDevice, Buf, Discards, Durability, ErrorKind, Extent, Geometry, Io, IoError, IoResult, Lba, Nanos,
    SECTOR_BYTES,
};

use crate::device::Flights;
use crate::{DiskFaults, Image, Latency, SimDevice, SimRng, Ticket, VirtualDriver};

pub(crate) type MemDriver = VirtualDriver<MemDisk>;

const SECTOR: usize = SECTOR_BYTES as usize;

/// New content for a range of sectors.
#[derive(Clone, Debug)]
struct SectorChange {
    extent: Extent,
    /// The bytes, and the offset of the extent in them; none if the sectors become zero.
    bytes: Option<(Arc<[u8]>, usize)>,
}

impl SectorChange {
    fn of(io: &Io) -> SectorChange {
        let extent = io.extent().expect("a flush changes nothing");
        let bytes = match io {
            Io::Write { buf, .. } | Io::WriteCopy { buf, .. } if !buf.is_blank() => {
                Some((Arc::from(buf.bytes()), 0))
            }
            _ => None,
        };
        SectorChange { extent, bytes }
    }

    /// The part of the change inside `part`.
    fn cut(&self, part: Extent) -> SectorChange {
        let skipped = (part.start - self.extent.start) as usize * SECTOR;
        SectorChange {
            extent: part,
            bytes: self.bytes.as_ref().map(|(bytes, at)| (Arc::clone(bytes), at + skipped)),
        }
    }

    fn apply(&self, image: &mut Image) {
        self.apply_part(image, self.extent);
    }

    fn apply_part(&self, image: &mut Image, part: Extent) {
        match &self.bytes {
            Some((bytes, at)) => {
                let from = at + (part.start - self.extent.start) as usize * SECTOR;
                image.write(part.start, &bytes[from..from + part.sectors as usize * SECTOR]);
            }
            None => image.zero(part.start, part.sectors),
        }
    }

    /// Applies some of the sectors, each with the same chance.
    fn apply_some(&self, image: &mut Image, per_mille: u64, rng: &mut SimRng) {
        for sector in 0..self.extent.sectors {
            if rng.chance(per_mille) {
                self.apply_part(image, Extent::new(self.extent.start + sector, 1));
            }
        }
    }
}

#[derive(Clone, Debug)]
struct UnflushedWrite {
    /// Place of the write in the order of completion.
    number: u64,
    change: SectorChange,
}

#[derive(Debug)]
struct DiskFlight {
    io: Io,
    fault: Option<ErrorKind>,
    /// For a flush: the flush covers the writes with numbers below this one.
    covers: u64,
}

/// Effect of a power cut on data that was not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutStyle {
    AllLost,
    AllKept,
    /// The first writes are preserved, one write is torn, and the rest is lost.
    Prefix,
    /// All writes are preserved but one: a hole.
    OneLost,
    OneKept,
    /// Each write is preserved whole or lost whole.
    ByWrite,
    /// Each sector is preserved or lost.
    BySector,
}

impl CutStyle {
    pub const ALL: [CutStyle; 7] = [
        CutStyle::AllLost,
        CutStyle::AllKept,
        CutStyle::Prefix,
        CutStyle::OneLost,
        CutStyle::OneKept,
        CutStyle::ByWrite,
        CutStyle::BySector,
    ];
}

/// See the module's documentation.
#[derive(Debug)]
pub struct MemDisk {
    geometry: Geometry,
    latency: Latency,
    rng: SimRng,
    current: Image,
    durable: Image,
    pending: Vec<UnflushedWrite>,
    /// Sectors that were being written when the power went: see [`DiskFaults::tears`].
    unreadable: BTreeSet<u64>,
    completions: u64,
    flights: Flights<DiskFlight>,
    faults: DiskFaults,
    /// True when the disk has a durable image beside the current one. Without it the disk costs less, and its power cannot be cut.
    can_be_cut: bool,
    /// True if each discarded sector keeps its content, becomes zero, or gets any other content.
    scrambles: bool,
    race: Option<(Extent, Extent)>,
}

impl MemDisk {
    pub fn new(geometry: Geometry, latency: Latency, seed: u64) -> MemDisk {
        let image = Image::new(geometry.sectors);
        MemDisk::with_images(geometry, latency, SimRng::new(seed), image.clone(), image)
    }

    /// Makes a disk whose power cannot be cut: it keeps a single image, and costs less.
    pub fn without_cuts(geometry: Geometry, latency: Latency, seed: u64) -> MemDisk {
        let (current, none) = (Image::new(geometry.sectors), Image::new(0));
        let disk = MemDisk::with_images(geometry, latency, SimRng::new(seed), current, none);
        MemDisk { can_be_cut: false, ..disk }
    }

    /// Makes a disk that takes no time and loses nothing: the backing of a modelled disk, which adds the latencies.
    pub fn instant(geometry: Geometry) -> MemDisk {
        MemDisk::without_cuts(geometry, Latency::INSTANT, 0)
    }

    fn with_images(
        geometry: Geometry,
        latency: Latency,
        rng: SimRng,
        current: Image,
        durable: Image,
    ) -> MemDisk {
        MemDisk {
            geometry,
            latency,
            rng,
            current,
            durable,
            pending: Vec::new(),
            unreadable: BTreeSet::new(),
            completions: 0,
            flights: Flights::default(),
            faults: DiskFaults::default(),
            can_be_cut: true,
            scrambles: false,
            race: None,
        }
    }

    /// Makes a disk whose discards leave anything, as those of an SSD do.
    #[must_use]
    pub const fn scrambling(mut self) -> MemDisk {
        self.scrambles = true;
        self
    }

    pub const fn scrambles(&self) -> bool {
        self.scrambles
    }

    /// Returns two overlapping changes that were in flight together: the medium may have either. Such a race is a bug of the layer in
    /// whichever order they complete, so it is found without the rare order that loses data.
    pub const fn race(&self) -> Option<(Extent, Extent)> {
        self.race
    }

    fn look_for_race(&mut self, io: &Io) {
        let (true, Some(extent)) = (io.modifies() && self.race.is_none(), io.extent()) else { return };
        let mut others = self.flights.iter().filter(|flight| flight.io.modifies());
        let overlapping = |flight: &DiskFlight| flight.io.extent().filter(|other| other.overlaps(extent));
        self.race = others.find_map(overlapping).map(|other| (other, extent));
    }

    pub fn set_faults(&mut self, faults: DiskFaults) {
        self.faults = faults;
    }

    pub const fn faults(&self) -> &DiskFaults {
        &self.faults
    }

    /// Returns the content that reads without faults would see now.
    pub const fn current(&self) -> &Image {
        &self.current
    }

    /// The sectors that cannot be read.
    pub const fn unreadable(&self) -> &BTreeSet<u64> {
        &self.unreadable
    }

    /// Puts bytes on the medium directly, for prefills and damage.
    pub fn put(&mut self, at: Lba, bytes: &[u8]) {
        self.current.write(at, bytes);
        if self.can_be_cut {
            self.durable.write(at, bytes);
        }
    }

    /// Flips a bit of the medium.
    pub fn flip_bit(&mut self, at: Lba, bit: u64) {
        let mut sector = [0; SECTOR];
        self.current.read(at, &mut sector);
        sector[(bit / 8) as usize % SECTOR] ^= 1 << (bit % 8);
        self.put(at, &sector);
    }

    /// Returns the disk as found after a power cut now. A lying or dead disk stays so, and a disk that tears too; all other faults
    /// end.
    pub fn power_cut(&self, style: CutStyle, rng: &mut SimRng) -> MemDisk {
        assert!(self.can_be_cut, "this disk keeps no durable image");
        let mut image = self.durable.clone();
        let in_flight = self.in_flight_changes(rng);
        let changes: Vec<&SectorChange> =
            self.pending.iter().map(|pending| &pending.change).chain(in_flight.iter()).collect();
        let torn = if changes.is_empty() { 0 } else { rng.below(changes.len() as u64) as usize };
        for (index, change) in changes.into_iter().enumerate() {
            let per_mille = match style {
                CutStyle::AllLost => 0,
                CutStyle::AllKept => 1000,
                CutStyle::Prefix if index == torn => 500,
                CutStyle::Prefix => 1000 * u64::from(index < torn),
                CutStyle::OneLost => 1000 * u64::from(index != torn),
                CutStyle::OneKept => 1000 * u64::from(index == torn),
                CutStyle::ByWrite => 1000 * rng.below(2),
                CutStyle::BySector => 500,
            };
            match per_mille {
                0 => {}
                1000 => change.apply(&mut image),
                part => change.apply_some(&mut image, part, rng),
            }
        }
        let mut disk = self.successor(image.clone(), image, rng);
        if self.faults.tears {
            let pending = self.pending.iter().map(|pending| &pending.change);
            let extents: Vec<Extent> = pending.chain(&in_flight).map(|change| change.extent).collect();
            disk.tear(&extents, rng);
        }
        disk
    }

    /// Makes some sectors of writes that the power cut short unreadable.
    fn tear(&mut self, written: &[Extent], rng: &mut SimRng) {
        if written.is_empty() || rng.chance(500) {
            return;
        }
        let (all, only) = (rng.chance(500), rng.below(written.len() as u64) as usize);
        for (_, extent) in written.iter().enumerate().filter(|(index, _)| all || *index == only) {
            let torn = (extent.start.0..extent.end().0).filter(|_| rng.chance(500));
            self.unreadable.extend(torn.collect::<Vec<u64>>());
        }
    }

    /// Returns the disk as a new process finds it after the old one was killed: the volatile cache remains, and each operation
    /// in flight was carried out or not.
    pub fn killed(&self, rng: &mut SimRng) -> MemDisk {
        let mut disk = self.successor(self.current.clone(), self.durable.clone(), rng);
        disk.pending = self.pending.clone();
        disk.completions = self.completions;
        for change in self.in_flight_changes(rng) {
            if rng.chance(500) {
                disk.change(change, Durability::Volatile);
            }
        }
        disk
    }

    fn successor(&self, current: Image, durable: Image, rng: &mut SimRng) -> MemDisk {
        let faults = self.faults.lasting();
        let disk = MemDisk::with_images(self.geometry, self.latency, rng.fork(), current, durable);
        MemDisk { faults, unreadable: self.unreadable.clone(), scrambles: self.scrambles, ..disk }
    }

    /// Returns the changes in flight, in a random order: they may reach the medium in any order.
    fn in_flight_changes(&self, rng: &mut SimRng) -> Vec<SectorChange> {
        let modifying = self.flights.iter().filter(|flight| flight.io.modifies());
        let mut changes: Vec<SectorChange> =
            modifying.map(|flight| self.change_by(&flight.io, rng)).collect();
        for index in (1..changes.len()).rev() {
            changes.swap(index, rng.below(index as u64 + 1) as usize);
        }
        changes
    }

    /// Returns the change that an operation makes.
    fn change_by(&self, io: &Io, rng: &mut SimRng) -> SectorChange {
        let change = SectorChange::of(io);
        if !self.scrambles || !matches!(io, Io::Discard { .. }) {
            return change;
        }
        let mut bytes = vec![0; change.extent.sectors as usize * SECTOR];
        self.current.read(change.extent.start, &mut bytes);
        for sector in bytes.chunks_mut(SECTOR) {
            match rng.below(3) {
                0 => {}
                1 => sector.fill(0),
                _ => sector.fill(rng.range(2, 255) as u8),
            }
        }
        SectorChange { bytes: Some((bytes.into(), 0)), ..change }
    }

    /// Carries a completed change out.
    fn change(&mut self, change: SectorChange, durability: Durability) {
        if !self.unreadable.is_empty() {
            let Extent { start, sectors } = change.extent;
            (start.0..start.0 + sectors).for_each(|sector| _ = self.unreadable.remove(&sector));
        }
        change.apply(&mut self.current);
        if !self.can_be_cut {
            return;
        }
        let durable = durability == Durability::Durable || !self.geometry.volatile_cache;
        if durable && !self.faults.ignore_flushes {
            self.supersede(change.extent);
            change.apply(&mut self.durable);
        } else {
            self.pending.push(UnflushedWrite { number: self.completions, change });
        }
        self.completions += 1;
    }

    /// Drops pending older versions of sectors that have just become durable.
    fn supersede(&mut self, extent: Extent) {
        if !self.pending.iter().any(|pending| pending.change.extent.overlaps(extent)) {
            return;
        }
        let mut kept = Vec::with_capacity(self.pending.len() + 1);
        for pending in self.pending.drain(..) {
            let whole = pending.change.extent;
            if !whole.overlaps(extent) {
                kept.push(pending);
                continue;
            }
            let before = Extent::new(whole.start, extent.start.0.saturating_sub(whole.start.0));
            let behind = Extent::new(extent.end(), whole.end().0.saturating_sub(extent.end().0));
            for part in [before, behind].into_iter().filter(|part| part.sectors > 0) {
                kept.push(UnflushedWrite { number: pending.number, change: pending.change.cut(part) });
            }
        }
        self.pending = kept;
    }

    fn flushed(&mut self, covers: u64) {
        if self.faults.ignore_flushes {
            return;
        }
        let covered = self.pending.partition_point(|pending| pending.number < covers);
        for pending in self.pending.drain(..covered) {
            pending.change.apply(&mut self.durable);
        }
    }

    /// Fails a flush: half the time the disk drops the unwritten data, and no later flush can make that durable.
    fn flush_failed(&mut self, covers: u64) {
        if self.rng.chance(500) {
            let covered = self.pending.partition_point(|pending| pending.number < covers);
            self.pending.drain(..covered);
        }
    }

    fn carry_out(&mut self, flight: DiskFlight) -> IoResult {
        let DiskFlight { io, fault, covers } = flight;
        if let Err(error) = self.geometry.validate(&io) {
            return IoResult::err(io.take_buf(), error);
        }
        if let Some(kind) = fault {
            return self.fail(io, kind, covers);
        }
        match io {
            Io::Read { at, mut buf } | Io::ReadCopy { at, mut buf, .. } => {
                let extent = Extent::new(at, buf.len() as u64 / SECTOR_BYTES);
                if self.unreadable.range(at.0..extent.end().0).next().is_some() {
                    return IoResult::err(buf, IoError::at(ErrorKind::Medium, extent));
                }
                if !buf.is_blank() {
                    self.current.read(at, buf.bytes_mut());
                }
                IoResult::ok(buf)
            }
            Io::Flush => {
                self.flushed(covers);
                IoResult::ok(Buf::none())
            }
            Io::Write { durability, .. }
            | Io::WriteCopy { durability, .. }
            | Io::WriteZeroes { durability, .. } => {
                self.modify(&io, durability);
                IoResult::ok(io.take_buf())
            }
            Io::Discard { .. } if self.scrambles => {
                let mut rng = self.rng.fork();
                self.change(self.change_by(&io, &mut rng), Durability::Volatile);
                IoResult::ok(Buf::none())
            }
            // An advisory discard is done as a whole or ignored.
            Io::Discard { .. } if self.geometry.discards == Discards::Advisory && self.rng.chance(500) => {
                IoResult::ok(Buf::none())
            }
            Io::Discard { .. } => {
                self.modify(&io, Durability::Volatile);
                IoResult::ok(Buf::none())
            }
        }
    }

    fn modify(&mut self, io: &Io, durability: Durability) {
        if let (false, Io::Write { at, buf, .. }) = (self.can_be_cut, io)
            && !buf.is_blank()
        {
            return self.current.write(*at, buf.bytes());
        }
        self.change(SectorChange::of(io), durability);
    }

    fn fail(&mut self, io: Io, kind: ErrorKind, covers: u64) -> IoResult {
        if io.modifies() {
            let change = SectorChange::of(&io);
            let whole = change.extent;
            for sector in 0..whole.sectors {
                if self.rng.chance(500) {
                    self.change(change.cut(Extent::new(whole.start + sector, 1)), Durability::Volatile);
                }
            }
        } else if matches!(io, Io::Flush) {
            self.flush_failed(covers);
        }
        let error = IoError { kind, extent: io.extent() };
        IoResult::err(io.take_buf(), error)
    }
}

impl SimDevice for MemDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, now: Nanos, io: Io) -> Ticket {
        let done = (now + self.latency.draw(&mut self.rng)).max(self.faults.hangs_until(&io));
        let fault = self.faults.strike(&io);
        let covers = self.completions;
        self.look_for_race(&io);
        Ticket { token: self.flights.insert(DiskFlight { io, fault, covers }), done }
    }

    fn finish(&mut self, _now: Nanos, token: u32) -> IoResult {
        let flight = self.flights.remove(token);
        self.carry_out(flight)
    }
}

impl BlockDevice for MemDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn run(&mut self, io: Io) -> IoResult {
        let ticket = self.submit(Nanos::ZERO, io);
        self.finish(Nanos::ZERO, ticket.token)
    }
}

#[cfg(test)]
#[path = "memdisk_tests.rs"]
mod tests;
