//! The start of an array: finds the members that can be used, and repairs the traces of a crash.

use std::collections::{BTreeMap, BTreeSet};

use crate::layer::{Geometry, Port, PortDevice, Ports, Stripes};
use crate::raid::array::Array;
use crate::raid::away::{Away, TRACTS_MAX};
use crate::raid::bitmap::{Bitmap, Regions};
use crate::raid::config::RaidConfig;
use crate::raid::error::AssembleError;
use crate::raid::identify::identify;
use crate::raid::journal::{self, Journal, PendingRecords, ReplayError, Slots};
use crate::raid::layout::{DATA_SECTOR, Layout};
use crate::raid::members::Members;
use crate::raid::record::Recorder;
use crate::raid::superblock::ArraySuperblock;
use crate::{BlockDevice, Durability, Io, LINE_BYTES, Lba};

/// Reads the superblocks, makes up for a crash, and gives the array.
pub(super) fn assemble(config: &RaidConfig, below: &mut dyn Ports) -> Result<Array, AssembleError> {
    config.check_shape()?;
    let found = identify(config, below)?;
    let recorded = found.newest.clone();
    let shape = config.level.shape(recorded.members).expect("it was looked at");
    let layout = Layout::new(shape, recorded.strip_sectors, recorded.member_sectors, config.unit);
    let regions = Regions::new(&layout, recorded.region_stripes);
    let mut starting = Starting {
        config,
        layout: &layout,
        regions,
        tracts: regions.at_most(TRACTS_MAX),
        replayed: Bitmap::default(),
        members: &found.members,
        outdated: found.outdated,
        copies: found.copies,
        generations: found.generations,
        now: recorded.clone(),
    };
    starting.miss_absent()?;
    let geometry = starting.geometry(below)?;
    if !geometry.read_only {
        starting.flush(below)?;
    }
    let journal = starting.open_journal(&recorded, geometry.read_only, below)?;
    let lacks_journal = recorded.needs_journal() && journal.is_none();
    match starting.damaged() {
        None => starting.list_away(recorded.failed),
        Some(region) if !config.accept_damage => {
            return Err(starting.damage(region, recorded.failed, lacks_journal));
        }
        Some(_) => {
            starting.now.in_doubt = Bitmap::default();
            // Their content there differs from what is computed of the others.
            starting.now.away = Away::default();
        }
    }
    let mut recorded = recorded;
    starting.now.active = false;
    // A superblock that only some members have is lost with them, and then an older one counts: before the journal that it speaks
    // of is used again, all have to have the same. The crash explorer found this.
    let is_behind = |role: usize| starting.in_use(role).is_some() && found.differing >> role & 1 == 1;
    let behind = (0..recorded.members).any(is_behind);
    if (recorded.active || behind || recorded.in_doubt != starting.now.in_doubt) && !geometry.read_only {
        // A crash may have left the next one with members that are away now.
        starting.now.generation = found.generation_max + 2;
        recorded = starting.write_superblocks(below)?;
    }
    let mut config = config.clone();
    if config.contiguity.is_none() && config.calibrated {
        config.contiguity = recorded.calibration.clone();
    }
    let Starting { now, copies, generations, .. } = starting;
    let recorder = Recorder::new(layout, recorded, now, copies, generations, journal);
    Ok(Array::new(config, geometry, recorder, found.members))
}

/// The members at a start, and what is known of them by now.
struct Starting<'a> {
    config: &'a RaidConfig,
    layout: &'a Layout,
    regions: Regions,
    tracts: Regions,
    /// Tracts that the journal had something of.
    replayed: Bitmap,
    members: &'a Members,
    outdated: u64,
    copies: Vec<usize>,
    generations: Vec<u64>,
    now: ArraySuperblock,
}

impl Starting<'_> {
    /// A member that is missing has failed; one that was being rebuilt is not taken back, unless it had been away.
    fn miss_absent(&mut self) -> Result<(), AssembleError> {
        let is_absent = |role: usize| self.members.port(role).is_none() || self.outdated >> role & 1 == 1;
        for role in (0..self.now.members).filter(|&role| is_absent(role)).collect::<Vec<_>>() {
            self.fail(role)?;
        }
        Ok(())
    }

    /// # Errors
    /// If the data cannot be computed from the others.
    fn fail(&mut self, role: usize) -> Result<(), AssembleError> {
        self.now.failed |= 1 << role;
        if self.now.rebuilds(role) {
            self.now.end_rebuild(role, Some(&Bitmap::default()));
        }
        let parity = self.now.level.parity();
        if self.now.failed.count_ones() as usize > parity {
            return Err(AssembleError::TooManyFailed { roles: listed(self.now.failed), parity });
        }
        Ok(())
    }

    /// The port of a role's member, if it is written to.
    fn in_use(&self, role: usize) -> Option<Port> {
        self.members.port(role).filter(|_| self.now.is_in_use(role))
    }

    /// Finds a region in doubt of which a member has failed, or is not rebuilt so far: the parity cannot make up for that.
    fn damaged(&self) -> Option<u64> {
        let lacks = |region: &u64| {
            let end = self.regions.units(*region).end * self.layout.column_sectors();
            let whole = self.now.rebuilding.filter(|rebuild| rebuild.sectors >= end);
            self.now.failed & !whole.map_or(0, |rebuild| 1 << rebuild.role) != 0
        };
        self.now.in_doubt.iter().find(lacks)
    }

    /// Returns the reason for refusing to start with a region in doubt. `failed`: the roles that had failed before.
    fn damage(&self, region: u64, failed: u64, lacks_journal: bool) -> AssembleError {
        AssembleError::InDoubt {
            in_doubt: self.now.in_doubt.len(),
            regions: self.regions.count(),
            region,
            lacking: listed(self.now.failed),
            // A failed member is not trusted any more, even if it is there.
            absent: listed(self.now.failed & !failed),
            lacks_journal,
        }
    }

    fn geometry(&self, below: &dyn Ports) -> Result<Geometry, AssembleError> {
        let mut geometry = Geometry {
            physical_block_bytes: LINE_BYTES as u32,
            stripes: Some(Stripes { sectors: self.layout.stripe_sectors(), first: 0 }),
            ..Geometry::plain(self.layout.sectors())
        };
        let needed = DATA_SECTOR + self.layout.stripes * self.layout.strip_sectors;
        for role in 0..self.now.members {
            let Some(port) = self.in_use(role) else { continue };
            let member = below.geometry(port);
            if member.sectors < needed {
                return Err(AssembleError::Smaller { role, sectors: member.sectors, needed });
            }
            geometry.logical_block_bytes = geometry.logical_block_bytes.max(member.logical_block_bytes);
            geometry.rotational |= member.rotational;
            geometry.read_only |= member.read_only;
        }
        Ok(geometry)
    }

    /// A killed server may have left the superblocks that count in the caches of members. The next ones go over the others: if a power cut
    /// tore both, the identity of a member would be lost. The crash explorer found this.
    fn flush(&mut self, below: &mut dyn Ports) -> Result<(), AssembleError> {
        for role in 0..self.now.members {
            if let Some(port) = self.in_use(role)
                && below.run(port, Io::Flush).status.is_err()
            {
                self.fail(role)?;
            }
        }
        Ok(())
    }

    /// Opens the journal, and makes its writes again if there may be any. Without them the parity is in doubt everywhere.
    fn open_journal(
        &mut self,
        recorded: &ArraySuperblock,
        read_only: bool,
        below: &mut dyn Ports,
    ) -> Result<Option<Journal>, AssembleError> {
        let config = self.config;
        if recorded.has_journal && !config.journal && !config.journal_given_up && !read_only {
            return Err(AssembleError::NoJournal);
        }
        self.now.has_journal = config.journal && !config.journal_implied;
        let replays = recorded.needs_journal();
        let needed = replays && !config.accept_damage || config.journal_required;
        let port = config.journal_port();
        let slots = match config.journal {
            true => open(port, self.layout, recorded, needed, below)?,
            false => None,
        };
        let mut replayed = false;
        if let Some(slots) = slots.as_ref().filter(|_| replays && !read_only) {
            let mut device = PortDevice { ports: below, port };
            match journal::pending(&mut device, slots, self.now.uuid, self.now.epoch) {
                Ok(pending) => {
                    self.replay(port, &pending, below)?;
                    replayed = true;
                }
                Err(_) if config.accept_damage => {}
                Err(error) => return Err(error.into()),
            }
        }
        if replays && !replayed {
            self.now.in_doubt = Bitmap::full(self.regions.count());
        }
        Ok(slots.map(|slots| Journal::new(port, slots)))
    }

    /// Makes the writes of the journal again, one record after the other. They are all there, whichever of them a crash has cut short.
    fn replay(
        &mut self,
        port: Port,
        pending: &PendingRecords,
        below: &mut dyn Ports,
    ) -> Result<(), AssembleError> {
        let mut device = PortDevice { ports: below, port };
        // A server that was killed may have left the newest record in the device's cache: if a power cut took it while its
        // writes are half made, nobody could finish them. The crash explorer found this.
        device.flush().map_err(|error| AssembleError::Journal { what: "flushing", error })?;
        let column_sectors = self.layout.column_sectors();
        let unit_of = |at: Lba| (at.0 - DATA_SECTOR) / column_sectors;
        // The last record counts.
        let void: BTreeMap<_, _> =
            pending.void.iter().map(|(number, role, at)| ((*role, unit_of(*at)), *number)).collect();
        // A member that is missing may lack what the newest of them all wrote there.
        let over: BTreeSet<u64> = pending.over.iter().map(|at| unit_of(*at)).collect();
        for unit in &over {
            self.replayed.insert(self.tracts.of_unit(*unit));
        }
        for number in pending.records.clone() {
            let mut device = PortDevice { ports: below, port };
            let record =
                journal::read_record(&mut device, &pending.slots, self.now.uuid, self.now.epoch, number)?;
            for write in record.ok_or(ReplayError::Damaged(number))? {
                let unit = unit_of(write.at);
                self.replayed.insert(self.tracts.of_unit(unit));
                if over.contains(&unit) || void.get(&(write.role, unit)).is_some_and(|last| number <= *last) {
                    continue;
                }
                let Some(port) = self.in_use(write.role) else { continue };
                let io = Io::Write { at: write.at, buf: write.buf, durability: Durability::Durable };
                if below.run(port, io).status.is_err() {
                    self.fail(write.role)?;
                }
            }
        }
        Ok(())
    }

    /// Members that are missing for the first time lack what the journal was replayed for, if the parity is right.
    fn list_away(&mut self, before: u64) {
        let knows = self.now.in_doubt.is_empty() && self.now.lost.is_empty();
        let new = self.now.failed & !before & !self.outdated;
        for role in (0..self.now.members).filter(|role| knows && new >> role & 1 == 1) {
            self.now.away.add(role, self.now.member_ids[role], self.now.complete, &Bitmap::default());
        }
        if !self.now.away.is_empty() {
            self.now.away.missed.add_all(&self.replayed);
        }
    }

    /// Records what is known now; gives what was recorded.
    fn write_superblocks(&mut self, below: &mut dyn Ports) -> Result<ArraySuperblock, AssembleError> {
        self.now.away = self.now.away.recorded_by(self.now.generation, self.now.failed);
        let next = self.now.clone();
        for role in 0..next.members {
            let Some(port) = self.in_use(role) else { continue };
            let write = next.write(next.identity(role, self.copies[role]));
            match below.run(port, write).status {
                Ok(()) => {
                    self.copies[role] ^= 1;
                    self.generations[role] = next.generation;
                }
                Err(_) => self.fail(role)?,
            }
        }
        self.now.complete = next.generation;
        Ok(next)
    }
}

fn listed(roles: u64) -> Vec<usize> {
    (0..64).filter(|role| roles >> role & 1 == 1).collect()
}

/// The places of the journal's records; none where it cannot be read and is not needed.
fn open(
    port: Port,
    layout: &Layout,
    newest: &ArraySuperblock,
    needed: bool,
    below: &mut dyn Ports,
) -> Result<Option<Slots>, AssembleError> {
    let slots = Slots::new(layout, below.geometry(port).sectors);
    if slots.count < Slots::COUNT_MIN {
        return Err(AssembleError::JournalTooSmall { kib: slots.bytes_min() / 1024 });
    }
    let mut device = PortDevice { ports: below, port };
    match journal::fits(&mut device, &slots, newest.uuid) {
        Ok(true) => Ok(Some(slots)),
        Err(_) if !needed => Ok(None),
        Err(error) => Err(AssembleError::Journal { what: "reading", error }),
        Ok(false) => Err(AssembleError::ForeignJournal),
    }
}
