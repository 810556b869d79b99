//! Writes the superblocks of a running array, and knows what waits for that.
//!
//! Before the first write the superblocks say that writes are under way (*active*), before the first write to a region without
//! a journal its bit is set, and before anything is acknowledged that a failed member has missed, they say that it has failed. While
//! one is away that may come back (`away`), the tract is marked too, also where there is a journal.
//! Otherwise a later start would trust parity that a crash left half-written, or a member that is out of date.
//!
//! A member that is missing may have superblocks that no other member has: crashes in the middle of updates leave some ahead. So each says
//! which generation all members in use had before it (*complete*), and that counts first. Without all members nothing is written, and
//! the journal is not used, before the superblocks say that a generation of this activation was complete: then those count,
//! whatever comes back. With all members the first update comes before that which lets them be written: so a member that comes back
//! as it was before this activation lacks a complete generation, and is known by that.
//!
//! An array at rest says so after a while, and bits of regions at rest are cleared.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use crate::Nanos;
use crate::layer::{CommandError, Cx};
use crate::raid::away::{Away, TRACTS_MAX};
use crate::raid::bitmap::{Bitmap, Regions};
use crate::raid::flight::Flight;
use crate::raid::journal::Journal;
use crate::raid::layout::{DATA_SECTOR, Layout};
use crate::raid::members::Members;
use crate::raid::right::RightRows;
use crate::raid::status::ArrayStatistics;
use crate::raid::superblock::{ArraySuperblock, LOST_MAX, LostBlock, MemberIdentity, Rebuild};

/// Time after which a region without writes is at rest, and so is an array without requests.
const REST_TIME: Nanos = Nanos::from_secs(5);

/// See the module's documentation.
pub(super) struct Recorder {
    pub layout: Layout,
    pub regions: Regions,
    /// The tracts that are marked for members that are away.
    pub tracts: Regions,
    /// Some member is read-only: the superblocks cannot be written, and need not be.
    pub read_only: bool,
    pub journal: Option<Journal>,
    /// More members have failed than the parity makes up for, or the journal has: no more writes are taken.
    pub broken: bool,
    /// The administrator is to be told that something has failed.
    pub notice: bool,
    recorded: ArraySuperblock,
    /// For each role, which copy of the superblock counts.
    copies: Vec<usize>,
    /// For each role, the generation that its member has; 0 where the member is missing.
    generations: Vec<u64>,
    /// The superblock that is to be recorded; its generation and epoch do not count.
    wanted: ArraySuperblock,
    /// True when the two may differ in the marks of regions and tracts, or in the members that are away. Only then are these compared, as
    /// that takes long.
    has_marked: bool,
    /// Regions whose parity is not known to be right: it was never computed, or a crash before this activation may have damaged it.
    in_doubt: Bitmap,
    pub right_rows: RightRows,
    /// Regions that were written to since the last check for regions at rest.
    touched: Bitmap,
    look_at: Option<Nanos>,
    /// Sectors of the member that is being rebuilt that are as they should be, flushed or not.
    rebuilt: u64,
    /// Tracts of which the member that is being rebuilt lacks something; none while it is not recorded that it has come back, or where
    /// it is a new one: then it lacks all.
    lacks: Option<Bitmap>,
    /// The first update of an activation without all members counts by two: a crash may have left the next one on members that are away.
    skips: bool,
    /// Updates that have to be complete before writes may be under way.
    unconfirmed: u32,
    /// A member failed in this activation. A member that was missing from the start does not count before something is written.
    news: bool,
    /// See [`crate::raid::config::ArrayCanary::ForgetMissed`].
    pub forgets_missed: bool,
    recording: Option<ArraySuperblock>,
    /// Members that have not answered.
    left: u32,
}

impl Recorder {
    /// `now`: what is known at the start, which the superblocks need not say before something is written.
    pub fn new(
        layout: Layout,
        recorded: ArraySuperblock,
        now: ArraySuperblock,
        copies: Vec<usize>,
        generations: Vec<u64>,
        journal: Option<Journal>,
    ) -> Recorder {
        let regions = Regions::new(&layout, recorded.region_stripes);
        Recorder {
            layout,
            regions,
            tracts: regions.at_most(TRACTS_MAX),
            read_only: false,
            journal,
            broken: false,
            notice: false,
            lacks: now.is_returning().then(|| now.away.missed.clone()),
            skips: (now.failed, now.rebuilding) != (recorded.failed, recorded.rebuilding),
            unconfirmed: match (now.failed, now.complete == recorded.generation) {
                (0, _) | (_, true) => 1,
                (_, false) => 2,
            },
            recorded,
            copies,
            generations,
            in_doubt: now.in_doubt.clone(),
            right_rows: RightRows::new(regions, layout.rows),
            touched: Bitmap::default(),
            look_at: None,
            rebuilt: now.rebuilding.map_or(0, |rebuild| rebuild.sectors),
            wanted: now,
            has_marked: true,
            news: false,
            forgets_missed: false,
            recording: None,
            left: 0,
        }
    }

    pub const fn recorded(&self) -> &ArraySuperblock {
        &self.recorded
    }

    /// True when a member has this id, or will have.
    pub fn knows(&self, id: u64) -> bool {
        self.wanted.role_of(id).is_some() || self.recorded.role_of(id).is_some()
    }

    /// For each role, the generation of the superblock that its member has.
    pub fn generations(&self) -> &[u64] {
        &self.generations
    }

    /// The roles whose members have failed, or are not rebuilt whole.
    pub const fn failed(&self) -> u64 {
        self.wanted.failed
    }

    /// The member of a role has failed, or is not rebuilt whole.
    pub const fn has_failed(&self, role: usize) -> bool {
        self.wanted.has_failed(role)
    }

    /// Superblocks are written to the member of a role, and flushes go there.
    pub fn is_in_use(&self, role: usize) -> bool {
        self.wanted.is_in_use(role)
    }

    pub const fn in_doubt(&self) -> &Bitmap {
        &self.in_doubt
    }

    /// The role that is being rebuilt, and so many sectors that are as they should be.
    pub fn rebuilding(&self) -> Option<Rebuild> {
        self.wanted.rebuilding.map(|rebuild| Rebuild { sectors: self.rebuilt, ..rebuild })
    }

    /// A unit's column with this member cannot be read, and is not to be written: the member has failed, is not rebuilt so far, or
    /// lacks the column since it was away.
    pub fn has_failed_at(&self, role: usize, unit: u64) -> bool {
        self.has_failed(role)
            && self.rebuilding().is_none_or(|rebuild| {
                let is_below = rebuild.sectors >= (unit + 1) * self.layout.column_sectors();
                rebuild.role != role || (!is_below && self.is_lacking(self.tracts.of_unit(unit)))
            })
    }

    /// The parity of a unit may be wrong.
    pub fn is_unsynced(&self, unit: u64) -> bool {
        self.in_doubt.contains(self.regions.of_unit(unit))
    }

    /// The array takes no more writes, or never took any.
    pub const fn takes_no_writes(&self) -> bool {
        self.broken || self.read_only
    }

    /// The least size of a member.
    pub const fn member_sectors_min(&self) -> u64 {
        DATA_SECTOR + self.recorded.member_sectors
    }

    /// The parity makes up for one more member.
    pub fn is_spared(&self) -> bool {
        (self.failed().count_ones() as usize) < self.layout.shape.parity
    }

    /// Refuses to take a member out of use, unless the others have all of its data.
    pub fn may_fail(&self, role: usize) -> Result<(), CommandError> {
        let members = self.layout.shape.columns();
        if role >= members {
            Err(CommandError::NoMember { role, members })
        } else if self.has_failed(role) {
            Err(CommandError::HasFailed(role))
        } else if self.takes_no_writes() {
            Err(CommandError::NoWrites)
        } else if !self.in_doubt.is_empty() {
            Err(CommandError::Resyncing)
        } else if !self.is_spared() {
            Err(CommandError::NotSpared(role))
        } else {
            Ok(())
        }
    }

    /// The sectors of a member below a unit, or all of them.
    pub fn sectors_below(&self, unit: Option<u64>) -> u64 {
        unit.map_or(self.recorded.member_sectors, |unit| unit * self.layout.column_sectors())
    }

    /// The units that the member that is being rebuilt lacks; none as long as that is not known.
    pub fn units_to_rebuild(&self, rebuild: &Rebuild) -> Option<Vec<Range<u64>>> {
        let left = rebuild.sectors / self.layout.column_sectors()..self.layout.units();
        if !self.is_returning() {
            return Some(vec![left]);
        }
        let units = self.lacks()?.iter().map(|tract| self.tracts.units(tract));
        Some(units.map(|units| units.start.max(left.start)..units.end.min(left.end)).collect())
    }

    /// The superblocks know that a role is being rebuilt.
    pub fn knows_rebuild(&self) -> bool {
        let role = |superblock: &ArraySuperblock| superblock.rebuilding.map(|rebuild| rebuild.role);
        role(&self.wanted).is_some() && role(&self.wanted) == role(&self.recorded) && !self.owes()
    }

    /// The member of a role has failed. `under_way`: the tracts that it may lack something of; none where that is not known.
    pub fn fail(&mut self, role: usize, under_way: Option<&Bitmap>) {
        self.has_marked = true;
        self.wanted.failed |= 1 << role;
        self.news = true;
        if self.wanted.rebuilds(role) {
            self.lacks = None;
            self.wanted.end_rebuild(role, under_way);
        } else if let Some(tracts) = under_way {
            self.wanted.away.add(role, self.wanted.member_ids[role], self.wanted.complete, tracts);
        }
    }

    /// True when the member that is being rebuilt may lack something of a tract.
    fn is_lacking(&self, tract: u64) -> bool {
        self.lacks.as_ref().is_none_or(|lacks| lacks.contains(tract))
    }

    /// The tracts that the member that is being rebuilt lacks, if it has come back.
    pub const fn lacks(&self) -> Option<&Bitmap> {
        self.lacks.as_ref()
    }

    /// The member that is being rebuilt has come back, and lacks only what is marked.
    pub fn is_returning(&self) -> bool {
        self.wanted.is_returning()
    }

    /// The role of a member that was away, which may have it again by what its device says.
    pub fn returns(&self, device: &ArraySuperblock, identity: MemberIdentity) -> Option<usize> {
        let role = self.recorded.returns(device, identity)?;
        self.wanted.returns(device, identity).filter(|other| *other == role)
    }

    /// A member that was away has its role again.
    pub fn come_back(&mut self, role: usize, copy: usize, generation: u64) {
        self.copies[role] = copy;
        self.generations[role] = generation;
        self.wanted.rebuilding = Some(Rebuild { role, sectors: 0 });
        (self.rebuilt, self.lacks) = (0, None);
        self.news = true;
    }

    /// Notes what a member lacks, once its return is recorded: what was marked until then, and what is under way without it. From now on
    /// the member gets writes.
    pub fn begin_return(&mut self, under_way: &Bitmap) {
        if self.lacks.is_none() && self.wanted.is_returning() && self.knows_rebuild() {
            let mut lacks = self.wanted.away.missed.clone();
            lacks.add_all(under_way);
            self.lacks = Some(lacks);
        }
    }

    /// Lets the superblocks name the failed members, although nothing is written.
    pub const fn tell(&mut self) {
        self.news = true;
    }

    /// A spare takes the role of a failed member.
    pub fn take_over(&mut self, role: usize, id: u64, copy: usize) {
        self.has_marked = true;
        self.wanted.member_ids[role] = id;
        self.copies[role] = copy;
        self.generations[role] = 0;
        self.wanted.rebuilding = Some(Rebuild { role, sectors: 0 });
        self.wanted.away.forget(role);
        (self.rebuilt, self.lacks) = (0, None);
        self.news = true;
    }

    /// Below this sector the member that is being rebuilt is up to date, and is kept so.
    pub const fn rebuilt(&mut self, sectors: u64) {
        self.rebuilt = sectors;
    }

    /// All below this sector of the member that is being rebuilt is durable; the last one ends the rebuild.
    pub fn checkpoint(&mut self, sectors: u64) {
        let Some(rebuild) = &mut self.wanted.rebuilding else { return };
        rebuild.sectors = sectors;
        // Progress may be recorded without a write of a client, if nothing else would be recorded with it.
        self.news |= self.wanted.failed == self.recorded.failed;
        if sectors >= self.wanted.member_sectors {
            self.has_marked = true;
            self.wanted.failed &= !(1 << rebuild.role);
            self.wanted.away.forget(rebuild.role);
            (self.wanted.rebuilding, self.lacks) = (None, None);
            self.news = true;
        }
    }

    /// A pass has made the parity of a region right, with zeroes in the place of what is lost there.
    pub fn synced(&mut self, region: u64) {
        self.settle_voided(self.regions.units(region));
        self.right_rows.forget_region(region);
        self.in_doubt.remove(region);
        if self.wanted.journaled || !self.wanted.active {
            self.has_marked |= self.wanted.in_doubt.remove(region);
        }
    }

    /// The blocks whose reads fail, and whether something may be computed of them.
    pub const fn lost(&self) -> &BTreeMap<LostBlock, bool> {
        &self.wanted.lost
    }

    /// The name of a data block in the list of lost blocks.
    pub fn lost_block(&self, unit: u64, row: usize, column: usize) -> LostBlock {
        let block = unit * self.layout.rows as u64 + row as u64;
        LostBlock { role: self.layout.member(unit, column), block }
    }

    /// True when a block is lost and its row does not fit. Nothing may then be computed from the block.
    pub fn is_unsettled(&self, unit: u64, row: usize, column: usize) -> bool {
        let lost = self.lost();
        !lost.is_empty() && lost.get(&self.lost_block(unit, row, column)) == Some(&false)
    }

    /// The blocks of some rows that nothing may be computed of, by role and row.
    pub fn unsettled(&self, first: u64, rows: usize) -> BTreeSet<(usize, usize)> {
        let first = first * self.layout.rows as u64;
        let unsettled = self.lost().iter().filter(|(_, settled)| !**settled);
        let within = unsettled.filter(|(lost, _)| (first..first + rows as u64).contains(&lost.block));
        within.map(|(lost, _)| (lost.role, (lost.block - first) as usize)).collect()
    }

    /// Records a block as lost: its content is not known any more. False where there is no room to remember that.
    pub fn lose(&mut self, lost: LostBlock) -> bool {
        let room = self.wanted.lost.len() < LOST_MAX || self.wanted.lost.contains_key(&lost);
        if room {
            self.wanted.lost.entry(lost).or_insert(false);
        }
        room
    }

    /// Zeroes lie in the place of a lost block, and the parity of its row fits.
    pub fn settle(&mut self, lost: LostBlock) {
        self.wanted.lost.entry(lost).and_modify(|settled| *settled = true);
    }

    /// A resync has written zeroes in the place of what is lost in some units, and their parity.
    fn settle_voided(&mut self, units: Range<u64>) {
        let rows = self.layout.rows as u64;
        let within = |lost: &LostBlock| units.contains(&(lost.block / rows));
        self.wanted.lost.iter_mut().filter(|(lost, _)| within(lost)).for_each(|(_, settled)| *settled = true);
    }

    /// A lost block has been written.
    pub fn found(&mut self, lost: &LostBlock) {
        self.wanted.lost.remove(lost);
    }

    /// The superblocks do not say yet what they have to.
    pub fn is_recording(&self) -> bool {
        self.recording.is_some() || self.next().is_some()
    }

    /// Writes the superblocks, if they have something new to say and are not being written.
    pub fn record(&mut self, members: &mut Members, statistics: &mut ArrayStatistics, cx: &mut Cx) {
        if self.recording.is_some() || self.broken {
            return;
        }
        let Some(mut next) = self.next() else { return };
        if self.read_only {
            // It cannot be, and need not be: nothing is written that depends on it, and the next start finds the same.
            return self.was_recorded(next);
        }
        if next.active && !self.recorded.active {
            next.epoch += 1;
            if let Some(journal) = &mut self.journal {
                if let Some(record) = journal.open(self.recorded.uuid, next.epoch) {
                    members.submit_to(journal.port(), 0, Flight::Journal { operation: None }, record, cx);
                }
                if !journal.is_open(next.epoch) {
                    return;
                }
            }
        }
        statistics.superblocks += 1;
        for role in 0..members.count() {
            if self.is_in_use(role) {
                self.left += 1;
                let write = next.write(next.identity(role, self.copies[role]));
                members.submit(role, Flight::Superblock, write, cx);
            }
        }
        self.recording = Some(next);
    }

    /// A member has written its superblock, or has failed. True when all have.
    pub fn superblock_returned(&mut self, role: usize, is_ok: bool) -> bool {
        self.left -= 1;
        if is_ok {
            self.copies[role] ^= 1;
            self.generations[role] = self.recording.as_ref().map_or(0, |next| next.generation);
        }
        if self.left == 0 {
            let recorded = self.recording.take().expect("it is being recorded");
            self.was_recorded(recorded);
        }
        self.left == 0
    }

    /// All members in use have a superblock, durably.
    fn was_recorded(&mut self, recorded: ArraySuperblock) {
        self.wanted.away.was_recorded(&recorded.away, recorded.generation, recorded.failed);
        self.wanted.complete = recorded.generation;
        (self.recorded, self.skips) = (recorded, false);
        self.has_marked = self.marks_differ();
        self.unconfirmed = self.unconfirmed.saturating_sub(1);
    }

    /// An operation is going to write to a unit, which is to be recorded. `together`: with it all that is dirty, as each update interrupts all
    /// members.
    pub fn announce(&mut self, unit: u64, dirty: &BTreeSet<u64>, together: bool) {
        let (region, tract) = (self.regions.of_unit(unit), self.tracts.of_unit(unit));
        let journaled = self.journal.is_some();
        let together = together || !self.wanted.away.is_empty();
        if together && !self.is_begun(region, tract, journaled) {
            let mut next = 0;
            while let Some(&unit) = dirty.range(next..).next() {
                let region = self.regions.of_unit(unit);
                self.begin(region, self.tracts.of_unit(unit), journaled);
                next = self.regions.units(region).end;
            }
        }
        self.begin(region, tract, journaled);
    }

    /// A region of a tract is about to be written to.
    fn begin(&mut self, region: u64, tract: u64, journaled: bool) {
        (self.wanted.active, self.wanted.journaled) = (true, journaled);
        if !self.forgets_missed {
            let tracts = self.wanted.missed_regions_max();
            self.has_marked |= self.wanted.away.mark(tract, tracts);
        }
        if !journaled {
            self.has_marked |= self.wanted.in_doubt.insert(region);
            self.touched.insert(region);
        }
    }

    /// The next superblock announces writes to a region of a tract.
    fn is_begun(&self, region: u64, tract: u64, journaled: bool) -> bool {
        let away = &self.wanted.away;
        (journaled || self.wanted.in_doubt.contains(region))
            && (away.is_empty() || away.missed.contains(tract))
    }

    /// The journal could not be written. From now on the bitmap says what is under way (`writing`); where no writes are wanted without a journal
    /// (`required`) none are made. Gives the operations that wait to be recorded.
    pub fn lose_journal(&mut self, writing: &Bitmap, required: bool) -> Option<VecDeque<u64>> {
        let mut journal = self.journal.take()?;
        self.notice = true;
        self.broken |= required;
        if std::mem::take(&mut self.wanted.journaled) && self.wanted.active {
            self.has_marked = true;
            self.wanted.in_doubt.add_all(writing);
            self.touched.add_all(writing);
        }
        Some(journal.take_queue())
    }

    /// Notes that no writes are under way any more.
    pub fn rest(&mut self) {
        self.has_marked = true;
        self.wanted.active = false;
        self.wanted.in_doubt = self.in_doubt.clone();
    }

    /// Records what is at rest, now and then; gives the time to do that again. `rests_since`: of the array. `writing`: regions that
    /// operations are under way in.
    pub fn look_for_rest(
        &mut self,
        now: Nanos,
        rests_since: Option<Nanos>,
        writing: impl FnOnce(Regions) -> Bitmap,
    ) -> Option<Nanos> {
        if !self.wanted.active || self.broken {
            self.look_at = None;
            return None;
        }
        let at = *self.look_at.get_or_insert(now + REST_TIME);
        if now >= at {
            let rests = rests_since.is_some_and(|since| now.since(since) >= REST_TIME);
            match rests {
                true => self.rest(),
                false => self.clear(&writing(self.regions)),
            }
            self.look_at = (!rests).then_some(now + REST_TIME);
        }
        self.look_at
    }

    /// Clears the bits of regions at rest. `writing`: operations are under way in them.
    fn clear(&mut self, writing: &Bitmap) {
        self.has_marked = true;
        let keeps =
            |region: &u64| [&self.touched, &self.in_doubt, writing].iter().any(|set| set.contains(*region));
        let clear: Vec<u64> = self.wanted.in_doubt.iter().filter(|region| !keeps(region)).collect();
        for region in clear {
            self.wanted.in_doubt.remove(region);
        }
        self.touched = Bitmap::default();
    }

    /// The failed members, as the superblocks have to say it.
    fn known(&self) -> &ArraySuperblock {
        if self.news || self.wanted.active || self.recorded.active { &self.wanted } else { &self.recorded }
    }

    /// True when the marks, or the members that are away, differ from what is recorded.
    fn marks_differ(&self) -> bool {
        self.wanted.away.says_more_than(&self.recorded.away) || self.wanted.in_doubt != self.recorded.in_doubt
    }

    /// Panics if marks differ from the recorded ones and the recorder has not noticed.
    pub fn check(&self) {
        assert!(self.has_marked || !self.marks_differ(), "what was marked is to be recorded");
    }

    /// The superblocks say, or will say, that no writes are under way.
    pub const fn rests(&self) -> bool {
        !self.wanted.active
    }

    /// The next superblock, if it differs from the recorded one.
    fn next(&self) -> Option<ArraySuperblock> {
        let known = self.known();
        let differs = self.owes()
            || known.rebuilding != self.recorded.rebuilding
            || self.wanted.active != self.recorded.active
            || self.has_marked
                && (known.away.says_more_than(&self.recorded.away)
                    || self.wanted.in_doubt != self.recorded.in_doubt);
        let generation = self.recorded.generation + if self.skips { 2 } else { 1 };
        let writes = if self.unconfirmed == 0 { &self.wanted } else { &self.recorded };
        differs.then(|| ArraySuperblock {
            generation,
            epoch: self.recorded.epoch,
            active: writes.active,
            journaled: writes.journaled,
            in_doubt: writes.in_doubt.clone(),
            failed: known.failed,
            member_ids: known.member_ids.clone(),
            rebuilding: known.rebuilding,
            away: known.away.recorded_by(generation, known.failed),
            ..self.wanted.clone()
        })
    }

    /// True when something is not recorded without which nothing may be written or acknowledged: failed members, a failed journal, lost
    /// blocks.
    pub fn owes(&self) -> bool {
        let role = |superblock: &ArraySuperblock| superblock.rebuilding.map(|rebuild| rebuild.role);
        let (known, recorded) = (self.known(), &self.recorded);
        known.failed != recorded.failed
            || known.member_ids != recorded.member_ids
            || role(known) != role(recorded)
            || self.wanted.journaled != recorded.journaled
            || self.wanted.lost != recorded.lost
    }

    /// Operations may write to a unit.
    pub fn may_write(&self, unit: u64) -> bool {
        let (region, tract) = (self.regions.of_unit(unit), self.tracts.of_unit(unit));
        let is_marked = |away: &Away| away.is_empty() || away.missed.contains(tract) || self.forgets_missed;
        let allows = |superblock: &ArraySuperblock| {
            superblock.active
                && (superblock.journaled || superblock.in_doubt.contains(region))
                && is_marked(&superblock.away)
        };
        // A superblock that is being written may take the bit away.
        allows(&self.recorded) && self.recording.as_ref().is_none_or(allows) && !self.owes()
    }
}
