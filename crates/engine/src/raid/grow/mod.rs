//! Growing an array that is not served: by a member, or to the size of larger members.
//!
//! With a member more, stripes get longer, and all data moves towards the beginning, some stripes at a time (a *band*). What is
//! done is in the superblocks, so it goes on after a crash where it was: nothing of a band is written before all that it is made of
//! is either behind the band or kept elsewhere, and the next band begins when this one is durable, and known to be done. No
//! member is needed that the parity makes up for.
//!
//! | module    | what                                               |
//! |-----------|----------------------------------------------------|
//! | `reshape` | moving one band after the other                    |
//! | `band`    | which stripes move together, and where from        |
//! | `source`  | reading old stripes                                |
//! | `backup`  | what is kept elsewhere while it is overwritten     |

mod backup;
mod band;
mod reshape;
mod source;

use std::ops::ControlFlow;

use crate::raid::apart::Apart;
use crate::raid::away::Away;
use crate::raid::bitmap::REGIONS_MAX;
use crate::raid::config::CacheUnit;
use crate::raid::error::{are, members_named};
use crate::raid::journal::Slots;
use crate::raid::layout::{DATA_SECTOR, Layout};
use crate::raid::offline::forget;
use crate::raid::superblock::{ArraySuperblock, ArraySuperblockError, MemberIdentity, NOBODY, Reshape};
use crate::{BlockDevice, Buf, Durability, Extent, Io, IoError, Lba, SECTOR_BYTES};

use backup::BACKUP_SECTORS_MAX;
use band::Bands;
use reshape::Mover;

/// The sectors of each member that are zeroed between two records of progress.
const ZEROED_SECTORS: u64 = (256 << 20) / SECTOR_BYTES;

/// The members in the order of their roles; none where one is missing.
pub type GrowMembers<'a, 'b> = &'a mut [Option<&'b mut dyn BlockDevice>];

/// Reason for not growing an array, or for stopping on the way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrowError {
    /// The growth was refused, and nothing was changed.
    #[error(transparent)]
    Refused(#[from] GrowRefusal),
    #[error("member {role}: {error}")]
    Superblock { role: usize, error: ArraySuperblockError },
    #[error(
        "member {role} cannot be written ({error}), and the parity makes up for no more: what was done is kept, and it goes on \
         when the member can be written again"
    )]
    TooManyFailed { role: usize, error: IoError },
    #[error(
        "{} missing, or cannot be read, and the parity makes up for no more: what was done is kept, and it goes on when the members are there",
        are(.roles)
    )]
    TooManyMissing { roles: Vec<usize> },
    #[error(
        "stripe {stripe} cannot be read, and not be computed from the other members: what was done is kept, and it goes on when \
         it can be read again"
    )]
    Lost { stripe: u64 },
    #[error("the journal cannot be emptied: {0}")]
    Journal(IoError),
    #[error("stopped; what was done is kept")]
    Stopped,
}

/// Reason for refusing to begin growing an array, or to go on with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrowRefusal {
    #[error("it grows to {members} members already")]
    Begun { members: usize },
    #[error("it gets another member")]
    GetsMember,
    #[error("all of its {members} members have to be named, and to be there")]
    NotAllThere { members: usize },
    #[error("none of its members can be read")]
    Unreadable,
    #[error(transparent)]
    Apart(#[from] Apart),
    #[error("member {0} is of another array")]
    Foreign(usize),
    #[error("the device in the place of member {0} is not the one that has this role")]
    OtherRole(usize),
    #[error(
        "member {0} has older data than the other members know that it had, as if restored from an image or a copy"
    )]
    Outdated(usize),
    #[error("its parity is not known to be right")]
    InDoubt,
    #[error("it has failed members")]
    HasFailed,
    #[error("some of its blocks could neither be read nor computed")]
    Lost,
    #[error("it has {members} members, and {named} are named")]
    Named { members: usize, named: usize },
    #[error("it has {members} members, and more is not possible")]
    TooMany { members: usize },
    #[error("a member is missing or cannot be read: all have to be there when it begins to grow")]
    Missing,
    #[error("the new member has {sectors} sectors, and the others give {needed}")]
    TooSmall { sectors: u64, needed: u64 },
    #[error("the id {0:#x} is in use, or reserved")]
    Id(u64),
    #[error("the new member and {} are missing. Nothing had moved: the array has {members} members again", members_named(.failed))]
    TakenBack { members: usize, failed: Vec<usize> },
}

/// Sectors of each member that are done, and all of them.
pub type GrowProgress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// Adds the last of `members` to the array of the others, or goes on with that. `id` is the new member's; about `band_bytes` of
/// data move at a time. The journal is emptied: its records are as long as the stripes were.
///
/// # Errors
/// If the array is not at rest or the new member does not fit; where a medium fails; where `progress` breaks.
pub fn add_member(
    members: GrowMembers<'_, '_>,
    journal: Option<&mut dyn BlockDevice>,
    id: u64,
    band_bytes: u64,
    progress: GrowProgress<'_>,
) -> Result<ArraySuperblock, GrowError> {
    let mut work = survey(members)?;
    match work.superblock.reshape {
        None => work.begin(id)?,
        Some(_) if work.superblock.members != work.members.len() => {
            return Err(GrowRefusal::Begun { members: work.superblock.members }.into());
        }
        Some(reshape) => work.resume(&reshape)?,
    }
    let Some(reshape) = work.superblock.reshape else { return Ok(work.superblock) };
    let layout = |members: usize| {
        let ArraySuperblock { level, strip_sectors, member_sectors, .. } = work.superblock;
        let shape = level.shape(members).expect("it was looked at");
        Layout::new(shape, strip_sectors, member_sectors, CacheUnit::Stripe)
    };
    let bands = Bands {
        old: layout(reshape.from_members),
        new: layout(work.superblock.members),
        sectors_max: band_bytes / SECTOR_BYTES,
        backup_sectors_max: BACKUP_SECTORS_MAX,
    };
    if let Some(journal) = journal {
        let slots = Slots::new(&bands.new, journal.geometry().sectors);
        let zeroes = Buf::zeroed(slots.header_bytes());
        let cleared = journal.write(Lba(0), zeroes).and_then(|()| journal.flush());
        cleared.map_err(GrowError::Journal)?;
    }
    Mover { work: &mut work, bands }.run(reshape, progress)?;
    work.superblock.reshape = None;
    // The data of members that are away has moved.
    work.superblock.away = Away::default();
    work.record()?;
    Ok(work.superblock)
}

/// Gives the array all of its members' space, as far as they all have it; the new part reads as zeroes. None where there is
/// nothing to gain.
///
/// # Errors
/// If the array is not at rest; where a medium fails; where `progress` breaks: then nothing has changed.
pub fn take_space(
    members: GrowMembers<'_, '_>,
    progress: GrowProgress<'_>,
) -> Result<Option<ArraySuperblock>, GrowError> {
    let mut work = survey(members)?;
    let superblock = &work.superblock;
    at_rest(superblock)?;
    if superblock.reshape.is_some() {
        return Err(GrowRefusal::GetsMember.into());
    }
    if work.members.len() != superblock.members || work.copies.contains(&None) {
        return Err(GrowRefusal::NotAllThere { members: superblock.members }.into());
    }
    let strip = superblock.strip_sectors;
    let least = work.members.iter().flatten().map(|member| member.geometry().sectors).min().unwrap_or(0);
    let (first, end) = (superblock.member_sectors, least.saturating_sub(DATA_SECTOR) / strip * strip);
    if end <= first {
        return Ok(None);
    }
    work.zero(first, end, &mut |_, position| progress(position - first, end - first))?;
    work.superblock.member_sectors = end;
    work.superblock.region_stripes = work.superblock.region_stripes.max((end / strip).div_ceil(REGIONS_MAX));
    work.record()?;
    Ok(Some(work.superblock))
}

/// Reads the superblocks of members that are all in their places. The last may be new.
fn survey<'a, 'b>(members: GrowMembers<'a, 'b>) -> Result<GrowWork<'a, 'b>, GrowError> {
    let mut found: Vec<(usize, ArraySuperblock, MemberIdentity)> = Vec::new();
    let last = members.len().saturating_sub(1);
    for (role, member) in members.iter_mut().enumerate() {
        let Some(member) = member else { continue };
        match ArraySuperblock::read(*member) {
            Ok((superblock, identity)) => found.push((role, superblock, identity)),
            Err(ArraySuperblockError::NoMagic) if role == last => {}
            Err(ArraySuperblockError::Io(_)) => {}
            Err(error) => return Err(GrowError::Superblock { role, error }),
        }
    }
    let newest = ArraySuperblock::newest_of(found.iter().map(|(_, superblock, _)| superblock));
    let mut newest = newest.cloned().ok_or(GrowRefusal::Unreadable)?;
    let known: Vec<_> = found.iter().map(|(_, superblock, identity)| (superblock, *identity)).collect();
    if let Some(apart) = newest.apart(&known) {
        return Err(GrowRefusal::Apart(apart).into());
    }
    let mut copies = vec![None; members.len()];
    for (role, superblock, identity) in &found {
        if superblock.uuid != newest.uuid {
            return Err(GrowRefusal::Foreign(*role).into());
        }
        if *role < newest.members && newest.role_of(identity.id) != Some(*role) {
            return Err(GrowRefusal::OtherRole(*role).into());
        }
        if newest.is_outdated(*role, superblock.generation) {
            return Err(GrowRefusal::Outdated(*role).into());
        }
        copies[*role] = Some(identity.copy);
        // A crash may have left the next one with members that are away now.
        newest.generation = newest.generation.max(superblock.generation + 1);
    }
    Ok(GrowWork { members, superblock: newest, copies, flushed: false })
}

/// Refuses to grow an array that is not at rest.
fn at_rest(superblock: &ArraySuperblock) -> Result<(), GrowRefusal> {
    if superblock.active || !superblock.in_doubt.is_empty() {
        return Err(GrowRefusal::InDoubt);
    }
    if superblock.failed != 0 || superblock.rebuilding.is_some() {
        return Err(GrowRefusal::HasFailed);
    }
    Ok(())
}

/// An array at work: its members, and what their superblocks say.
struct GrowWork<'a, 'b> {
    members: GrowMembers<'a, 'b>,
    superblock: ArraySuperblock,
    /// The copy of its superblock that counts on each member; none where it has none that can be read.
    copies: Vec<Option<usize>>,
    /// The superblocks that were found are durable: a killed server may have left them in the caches of members.
    flushed: bool,
}

impl<'b> GrowWork<'_, 'b> {
    /// Takes the last member into an array that is at rest.
    fn begin(&mut self, id: u64) -> Result<(), GrowError> {
        at_rest(&self.superblock)?;
        if !self.superblock.lost.is_empty() {
            return Err(GrowRefusal::Lost.into());
        }
        let (members, named) = (self.superblock.members, self.members.len());
        if named != members + 1 {
            return Err(GrowRefusal::Named { members, named }.into());
        }
        if self.superblock.level.shape(named).is_none() {
            return Err(GrowRefusal::TooMany { members }.into());
        }
        if self.members.iter().any(Option::is_none) || self.copies[..members].contains(&None) {
            return Err(GrowRefusal::Missing.into());
        }
        let needed = DATA_SECTOR + self.superblock.member_sectors;
        let sectors = self.members[members].as_ref().map_or(0, |member| member.geometry().sectors);
        if sectors < needed {
            return Err(GrowRefusal::TooSmall { sectors, needed }.into());
        }
        if id == NOBODY || self.superblock.role_of(id).is_some() {
            return Err(GrowRefusal::Id(id).into());
        }
        self.prepare_last()?;
        self.superblock.reshape = Some(Reshape { from_members: members, sectors: 0, kept: false });
        self.superblock.members = named;
        self.superblock.member_ids.push(id);
        self.record()
    }

    /// Wipes what was on the new member before, so that it cannot be taken for a superblock.
    fn prepare_last(&mut self) -> Result<(), GrowError> {
        let role = self.members.len() - 1;
        if let Some(member) = self.members[role].as_deref_mut() {
            forget(member)
                .map_err(|error| GrowError::Superblock { role, error: ArraySuperblockError::Io(error) })?;
            self.copies[role] = Some(1);
        }
        Ok(())
    }

    /// Continues a growth that was interrupted.
    fn resume(&mut self, reshape: &Reshape) -> Result<(), GrowError> {
        let untouched = reshape.sectors == 0 && !reshape.kept;
        // The others know of the new member, and the new member has no superblock yet.
        let lacks_last = untouched && self.copies.last() == Some(&None);
        let prepared = lacks_last && self.prepare_last().is_ok();
        let absent = |role: &usize| self.members[*role].is_none() || self.copies[*role].is_none();
        let absent: Vec<usize> = self.live().into_iter().filter(absent).collect();
        let failed = absent.iter().fold(self.superblock.failed, |failed, role| failed | 1 << role);
        if untouched && failed.count_ones() as usize > self.superblock.level.parity() {
            self.take_back(reshape.from_members, failed)?;
        }
        if !absent.is_empty() && failed.count_ones() as usize > self.superblock.level.parity() {
            return Err(GrowError::TooManyMissing { roles: absent });
        }
        self.superblock.failed = failed;
        if prepared || self.superblock.failed != 0 {
            self.record()?;
        }
        if self.superblock.failed != 0 {
            // The second one says that the first was complete: then these count, whoever comes back.
            self.record()?;
        }
        Ok(())
    }

    /// Makes the array what it was before it began to grow, where too many members have failed with the new one, and may not have without it.
    /// No sector has moved yet.
    fn take_back(&mut self, members: usize, failed: u64) -> Result<(), GrowError> {
        let old = failed & ((1 << members) - 1);
        if old == failed || old.count_ones() as usize > self.superblock.level.parity() {
            return Ok(());
        }
        self.superblock.members = members;
        self.superblock.member_ids.truncate(members);
        self.superblock.reshape = None;
        self.superblock.failed = old;
        // As in `resume`, the second one makes the first count.
        self.record()?;
        self.record()?;
        let failed = (0..members).filter(|&role| self.superblock.has_failed(role)).collect();
        Err(GrowRefusal::TakenBack { members, failed }.into())
    }

    /// The members that can be used.
    fn live(&self) -> Vec<usize> {
        (0..self.superblock.members).filter(|&role| !self.superblock.has_failed(role)).collect()
    }

    fn member(&mut self, role: usize) -> &mut (dyn BlockDevice + 'b) {
        self.members[role].as_deref_mut().expect("it is live")
    }

    /// A member is used no more; the next superblocks say so.
    fn fail(&mut self, role: usize, error: IoError) -> Result<(), GrowError> {
        self.superblock.failed |= 1 << role;
        if self.superblock.failed.count_ones() as usize > self.superblock.level.parity() {
            return Err(GrowError::TooManyFailed { role, error });
        }
        Ok(())
    }

    /// Writes the superblocks of all members that can be used.
    fn record(&mut self) -> Result<(), GrowError> {
        if !std::mem::replace(&mut self.flushed, true) {
            self.flush()?;
        }
        loop {
            let before = self.superblock.failed;
            self.superblock.generation += 1;
            let superblock = self.superblock.clone();
            for role in self.live() {
                let copy = self.copies[role].expect("it is live");
                let write = superblock.write(superblock.identity(role, copy));
                match self.member(role).run(write).status {
                    Ok(()) => self.copies[role] = Some(1 - copy),
                    Err(error) => self.fail(role, error)?,
                }
            }
            if self.superblock.failed == before {
                self.superblock.complete = self.superblock.generation;
                return Ok(());
            }
        }
    }

    /// Makes all that was written durable.
    fn flush(&mut self) -> Result<(), GrowError> {
        for role in self.live() {
            if let Err(error) = self.member(role).flush() {
                self.fail(role, error)?;
            }
        }
        Ok(())
    }

    /// Writes zeroes over a part of every member, in steps; they are durable before `step` is told how far it has got.
    fn zero(
        &mut self,
        first: u64,
        end: u64,
        step: &mut dyn FnMut(&mut Self, u64) -> ControlFlow<()>,
    ) -> Result<(), GrowError> {
        let mut at = first;
        while at < end {
            let sectors = ZEROED_SECTORS.min(end - at);
            let extent = Extent::new(Lba(DATA_SECTOR + at), sectors);
            for role in self.live() {
                let io = Io::WriteZeroes { extent, unmap: true, durability: Durability::Volatile };
                if let Err(error) = self.member(role).run(io).status {
                    self.fail(role, error)?;
                }
            }
            self.flush()?;
            at += sectors;
            if step(self, at).is_break() {
                return Err(GrowError::Stopped);
            }
        }
        Ok(())
    }
}
