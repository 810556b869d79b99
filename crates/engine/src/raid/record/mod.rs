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
//! whatever comes back.
//!
//! An array at rest says so after a while, and bits of regions at rest are cleared.

mod run;

use std::collections::BTreeMap;

use crate::Nanos;
use crate::raid::away::Away;
use crate::raid::bitmap::Bitmap;
use crate::raid::superblock::{Identity, LOST_MAX, LostBlock, Rebuild, Superblock};

/// Time after which a region without writes is at rest, and so is an array without requests.
const REST_TIME: Nanos = Nanos::from_secs(5);

/// See the module's documentation.
pub(super) struct Recorder {
    recorded: Superblock,
    /// For each role, which copy of the superblock counts.
    copies: Vec<usize>,
    /// For each role, the generation that its member has; 0 where the member is missing.
    generations: Vec<u64>,
    /// The superblock that is to be recorded; its generation and epoch do not count.
    wanted: Superblock,
    /// True when the two may differ in the marks of regions and tracts, or in the members that are away. Only then are these compared, as
    /// that takes long.
    has_marked: bool,
    /// Regions whose parity is not known to be right: it was never computed, or a crash before this activation may have damaged it.
    in_doubt: Bitmap,
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
    /// See [`Canary::ForgetMissed`].
    pub forgets_missed: bool,
    recording: Option<Superblock>,
    /// Members that have not answered.
    left: u32,
}

impl Recorder {
    /// `now`: what is known at the start, which the superblocks need not say before something is written.
    pub fn new(recorded: Superblock, now: Superblock, copies: Vec<usize>, generations: Vec<u64>) -> Recorder {
        Recorder {
            lacks: now.is_returning().then(|| now.away.missed.clone()),
            skips: (now.failed, now.rebuilding) != (recorded.failed, recorded.rebuilding),
            unconfirmed: match (now.failed, now.complete == recorded.generation) {
                (0, _) => 0,
                (_, true) => 1,
                (_, false) => 2,
            },
            recorded,
            copies,
            generations,
            in_doubt: now.in_doubt.clone(),
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

    pub const fn recorded(&self) -> &Superblock {
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

    /// The superblocks know that a role is being rebuilt.
    pub fn knows_rebuild(&self) -> bool {
        let role = |superblock: &Superblock| superblock.rebuilding.map(|rebuild| rebuild.role);
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
    pub fn is_lacking(&self, tract: u64) -> bool {
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
    pub fn returns(&self, device: &Superblock, identity: Identity) -> Option<usize> {
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
    fn begin_return(&mut self, under_way: &Bitmap) {
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

    /// The parity of a region is right.
    pub fn synced(&mut self, region: u64) {
        self.in_doubt.remove(region);
        if self.wanted.journaled || !self.wanted.active {
            self.has_marked |= self.wanted.in_doubt.remove(region);
        }
    }

    /// The blocks whose reads fail, and whether something may be computed of them.
    pub const fn lost(&self) -> &BTreeMap<LostBlock, bool> {
        &self.wanted.lost
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

    /// A lost block has been written.
    pub fn found(&mut self, lost: &LostBlock) {
        self.wanted.lost.remove(lost);
    }

    /// A member has written the superblock that is being recorded.
    fn wrote(&mut self, role: usize) {
        self.copies[role] ^= 1;
        self.generations[role] = self.recording.as_ref().map_or(0, |next| next.generation);
    }

    /// All members in use have a superblock, durably.
    fn was_recorded(&mut self, recorded: Superblock) {
        self.wanted.away.was_recorded(&recorded.away, recorded.generation, recorded.failed);
        self.wanted.complete = recorded.generation;
        (self.recorded, self.skips) = (recorded, false);
        self.has_marked = self.marks_differ();
        self.unconfirmed = self.unconfirmed.saturating_sub(1);
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

    /// Notes that the journal is gone. `regions`: regions with writes under way, which only the journal covered.
    pub fn lose_journal(&mut self, regions: &Bitmap) {
        if std::mem::take(&mut self.wanted.journaled) && self.wanted.active {
            self.has_marked = true;
            self.wanted.in_doubt.add_all(regions);
            self.touched.add_all(regions);
        }
    }

    /// Notes that no writes are under way any more.
    pub fn rest(&mut self) {
        self.has_marked = true;
        self.wanted.active = false;
        self.wanted.in_doubt = self.in_doubt.clone();
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
    fn known(&self) -> &Superblock {
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
    fn next(&self) -> Option<Superblock> {
        let known = self.known();
        let differs = self.owes()
            || known.rebuilding != self.recorded.rebuilding
            || self.wanted.active != self.recorded.active
            || self.has_marked
                && (known.away.says_more_than(&self.recorded.away)
                    || self.wanted.in_doubt != self.recorded.in_doubt);
        let generation = self.recorded.generation + if self.skips { 2 } else { 1 };
        let writes = if self.unconfirmed == 0 { &self.wanted } else { &self.recorded };
        differs.then(|| Superblock {
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
        let role = |superblock: &Superblock| superblock.rebuilding.map(|rebuild| rebuild.role);
        let (known, recorded) = (self.known(), &self.recorded);
        known.failed != recorded.failed
            || known.member_ids != recorded.member_ids
            || role(known) != role(recorded)
            || self.wanted.journaled != recorded.journaled
            || self.wanted.lost != recorded.lost
    }

    /// Operations may write to a region of a tract.
    fn may_write(&self, region: u64, tract: u64) -> bool {
        let is_marked = |away: &Away| away.is_empty() || away.missed.contains(tract) || self.forgets_missed;
        let allows = |superblock: &Superblock| {
            superblock.active
                && (superblock.journaled || superblock.in_doubt.contains(region))
                && is_marked(&superblock.away)
        };
        // A superblock that is being written may take the bit away.
        allows(&self.recorded) && self.recording.as_ref().is_none_or(allows) && !self.owes()
    }
}
