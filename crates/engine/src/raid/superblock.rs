//! Reads and writes the superblock of an array, which every member has in two copies: the array's identity, the role of each member, the
//! failed members, the places where parity may be wrong. Bytes are described in docs/format.md.
//!
//! Each update is a new *generation*, and overwrites the copy that is older or damaged, never the copy that counts. A member that was
//! away while others went on is named as failed in a newer generation than its own. An older generation alone says nothing: crashes in the
//! middle of updates leave some members behind that have missed no data.
//!
//! A member is identified by its id, not by its place: a role belongs to the member whose id is in the table. So a replaced member is
//! distinguished from its replacement.

use std::collections::BTreeMap;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::destage::contiguity::ContiguityBytes;
use crate::machine::{Worth, newest};
use crate::raid::away::{AWAY_MAX, Absence, Away, MISSED_BYTES, TRACTS_MAX};
use crate::raid::bitmap::{BITMAP_BYTES, Bitmap, REGIONS_MAX};
use crate::raid::config::{Level, MEMBERS_MAX, is_strip};
use crate::raid::contiguity::Contiguity;
use crate::{BlockDevice, Buf, Durability, Io, IoError, LINE_SECTORS, Lba};

pub const SUPERBLOCK_BYTES: usize = 4096 + BITMAP_BYTES;
/// The sectors of the copies.
pub const COPY_SECTORS: [Lba; 2] = [Lba(0), Lba(16)];

/// The id of no member: the role is free.
pub const NOBODY: u64 = 0;

/// The most caches that the members can tell of.
pub const CACHES_MAX: usize = 3;

/// The most lost blocks that can be remembered.
pub const LOST_MAX: usize = 256;

/// No member gives as many sectors to stripes: 4 PiB.
const MEMBER_SECTORS_MAX: u64 = 1 << 43;
/// Counters in superblocks are less: what is added to them never overflows.
const COUNT_MAX: u64 = 1 << 62;

const MAGIC: [u8; 8] = *b"DCDRAID\0";
const VERSION: u16 = 2;
/// Value in the place of a role: the device is a spare, or no role is being rebuilt.
const NO_ROLE: u32 = u32::MAX;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ArraySuperblockBytes {
    magic: [u8; 8],
    version: U16,
    level: U16,
    crc: U32,
    uuid: [u8; 16],
    generation: U64,
    epoch: U64,
    failed: U64,
    member_sectors: U64,
    members: U32,
    role: U32,
    strip_sectors: U32,
    active: u8,
    journaled: u8,
    calibrated: u8,
    has_journal: u8,
    id: U64,
    rebuilt_sectors: U64,
    rebuilding: U32,
    region_stripes: U32,
    calibration: ContiguityBytes,
    member_ids: [U64; MEMBERS_MAX],
    reshape_from: U32,
    reshape_kept: U32,
    reshaped_sectors: U64,
    lost_blocks: U64,
    lost: [U64; LOST_MAX],
    away: [AbsenceBytes; AWAY_MAX],
    missed: [u8; MISSED_BYTES],
    complete: U64,
    away_had: [U64; AWAY_MAX],
    caches: [U64; CACHES_MAX],
    bitmap: [u8; BITMAP_BYTES],
}

/// A member that is away; all zeroes where there is none, as in a superblock of a program that knows of none.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AbsenceBytes {
    id: U64,
    since: U64,
    failed: U64,
    role: U32,
    unused: U32,
}

const _: () = assert!(size_of::<ArraySuperblockBytes>() == SUPERBLOCK_BYTES);

/// A member that is being filled with what the others say it has to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebuild {
    /// The role has failed until the rebuild is over; the id in its place is that of the new member.
    pub role: usize,
    /// The part that is right and durable: so many sectors of what it gives to stripes, from the first one on.
    pub sectors: u64,
}

/// A move of all data to the stripes of one more member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reshape {
    /// The number of members before.
    pub from_members: usize,
    /// The part that is done and durable: so many sectors of what each member gives to stripes, from the first one on.
    pub sectors: u64,
    /// The sources of the next stripe are kept elsewhere on its members, and may have been overwritten in its place.
    pub kept: bool,
}

/// A data block whose content is not known any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostBlock {
    pub role: usize,
    /// Place on the member, in blocks of 4 KiB from the first stripe on.
    pub block: u64,
}

/// Layout of an entry for a [`LostBlock`]: the bits of its place, and the bit that marks a settled block.
const LOST_ROLE_SHIFT: u32 = 48;
const LOST_SETTLED: u64 = 1 << 63;

/// Reads an entry: the block, and true when it is settled.
const fn lost_block(entry: u64) -> (LostBlock, bool) {
    let role = (entry & !LOST_SETTLED) >> LOST_ROLE_SHIFT;
    let block = entry & ((1 << LOST_ROLE_SHIFT) - 1);
    (LostBlock { role: role as usize, block }, entry & LOST_SETTLED != 0)
}

/// The content of a superblock that all members have alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySuperblock {
    pub uuid: [u8; 16],
    pub level: Level,
    pub members: usize,
    pub strip_sectors: u64,
    /// The sectors that each member gives to stripes.
    pub member_sectors: u64,
    /// Stripes for each bit of `in_doubt`.
    pub region_stripes: u64,
    /// Counts the updates.
    pub generation: u64,
    /// A generation that was durable on all members in use when this one was made; 0: not known.
    pub complete: u64,
    /// Counts the times that it became active: records of a journal are of one epoch.
    pub epoch: u64,
    /// The roles whose members have failed, a bit each.
    pub failed: u64,
    /// The ids of the members, by role.
    pub member_ids: Vec<u64>,
    pub rebuilding: Option<Rebuild>,
    pub reshape: Option<Reshape>,
    /// Writes may be under way.
    pub active: bool,
    /// Since it is active a journal knows what is under way.
    pub journaled: bool,
    /// The array has a journal of its own, whatever is under way: it is not to be served without.
    pub has_journal: bool,
    /// Regions whose parity may be wrong, as it was never computed, or may be after a crash, as they are written to.
    pub in_doubt: Bitmap,
    /// Blocks whose reads fail until they are written. *Settled*: zeroes lie there, and the parity of their row fits; otherwise
    /// nothing may be computed of them.
    pub lost: BTreeMap<LostBlock, bool>,
    /// Members that have failed and may come back, and what they lack.
    pub away: Away,
    /// The result of the stride benchmark.
    pub calibration: Option<Contiguity>,
    /// The first eight bytes of the UUIDs of the caches whose data disk the array is, or a part of it: alone it may be incomplete.
    /// At most [`CACHES_MAX`].
    pub caches: Vec<u64>,
}

/// The identity of a device by its superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberIdentity {
    pub id: u64,
    /// None: a spare.
    pub role: Option<usize>,
    /// The copy of its superblock that counts: the next one is written over the other.
    pub copy: usize,
}

/// Reason for not taking a block as a superblock of an array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArraySuperblockError {
    #[error("it is no member of an array, and no spare of one")]
    NoMagic,
    #[error("its superblock has version {0}, and this program knows version {VERSION}")]
    Version(u16),
    #[error("its superblock is damaged")]
    Checksum,
    #[error("the field \"{0}\" of its superblock is out of range")]
    Field(&'static str),
    #[error("its superblock cannot be read: {0}")]
    Io(IoError),
}

impl ArraySuperblock {
    /// True for an array that was not stopped cleanly, and whose journal has what was under way.
    pub const fn needs_journal(&self) -> bool {
        self.active && self.journaled
    }

    /// Returns the UUID in its usual notation.
    pub fn uuid_text(&self) -> String {
        let digits = format!("{:032x}", u128::from_be_bytes(self.uuid));
        [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]).join("-")
    }

    /// The member of a role, and which of its copies counts.
    pub fn identity(&self, role: usize, copy: usize) -> MemberIdentity {
        MemberIdentity { id: self.member_ids[role], role: Some(role), copy }
    }

    /// The one of several superblocks of an array that counts. Some members may be ahead of others that went on without them: what counts is
    /// how far all that were in use have come together. A program that does not know of that counts generations.
    pub fn newest_of<'a>(
        found: impl IntoIterator<Item = &'a ArraySuperblock, IntoIter: Clone>,
    ) -> Option<&'a ArraySuperblock> {
        let found = found.into_iter();
        let last = found.clone().max_by_key(|superblock| superblock.generation)?;
        match last.complete {
            0 => Some(last),
            _ => found.max_by_key(|superblock| (superblock.complete, superblock.generation)),
        }
    }

    /// By this superblock, the one that the member of a role has is older than it can be: something has put an older content back.
    pub const fn is_outdated(&self, role: usize, generation: u64) -> bool {
        !self.has_failed(role) && generation < self.complete
    }

    /// The member of a role has failed, or is not rebuilt whole.
    pub const fn has_failed(&self, role: usize) -> bool {
        self.failed >> role & 1 == 1
    }

    /// The member of a role is being rebuilt.
    pub fn rebuilds(&self, role: usize) -> bool {
        self.rebuilding.is_some_and(|rebuild| rebuild.role == role)
    }

    /// Superblocks are written to the member of a role, and flushes go there.
    pub fn is_in_use(&self, role: usize) -> bool {
        !self.has_failed(role) || self.rebuilds(role)
    }

    /// The role of the member with an id, if it has one.
    pub fn role_of(&self, id: u64) -> Option<usize> {
        self.member_ids.iter().position(|other| *other == id)
    }

    pub fn encode(&self, member: MemberIdentity) -> Buf {
        let mut bytes = ArraySuperblockBytes::new_zeroed();
        bytes.magic = MAGIC;
        bytes.version = VERSION.into();
        bytes.level = (self.level.parity() as u16 + 4).into();
        bytes.uuid = self.uuid;
        bytes.generation = self.generation.into();
        bytes.epoch = self.epoch.into();
        bytes.failed = self.failed.into();
        bytes.member_sectors = self.member_sectors.into();
        bytes.members = (self.members as u32).into();
        bytes.role = member.role.map_or(NO_ROLE, |role| role as u32).into();
        bytes.strip_sectors = (self.strip_sectors as u32).into();
        (bytes.active, bytes.journaled) = (self.active.into(), self.journaled.into());
        bytes.has_journal = self.has_journal.into();
        bytes.id = member.id.into();
        bytes.rebuilding = self.rebuilding.map_or(NO_ROLE, |rebuild| rebuild.role as u32).into();
        bytes.rebuilt_sectors = self.rebuilding.map_or(0, |rebuild| rebuild.sectors).into();
        if let Some(Reshape { from_members, sectors, kept }) = self.reshape {
            bytes.reshape_from = (from_members as u32).into();
            (bytes.reshape_kept, bytes.reshaped_sectors) = (u32::from(kept).into(), sectors.into());
        }
        bytes.region_stripes = (self.region_stripes as u32).into();
        if let Some(calibration) = &self.calibration {
            bytes.calibrated = 1;
            bytes.calibration = ContiguityBytes::new(calibration);
        }
        for (place, id) in bytes.member_ids.iter_mut().zip(&self.member_ids) {
            *place = (*id).into();
        }
        bytes.lost_blocks = (self.lost.len() as u64).into();
        for (place, (lost, settled)) in bytes.lost.iter_mut().zip(&self.lost) {
            let settled = if *settled { LOST_SETTLED } else { 0 };
            *place = (settled | (lost.role as u64) << LOST_ROLE_SHIFT | lost.block).into();
        }
        for (place, absence) in bytes.away.iter_mut().zip(&self.away.members) {
            (place.id, place.role) = (absence.id.into(), (absence.role as u32).into());
            (place.since, place.failed) = (absence.since.into(), absence.failed.into());
        }
        for (place, absence) in bytes.away_had.iter_mut().zip(&self.away.members) {
            *place = absence.had.into();
        }
        bytes.complete = self.complete.into();
        for (place, cache) in bytes.caches.iter_mut().zip(&self.caches) {
            *place = (*cache).into();
        }
        bytes.missed.copy_from_slice(&self.away.missed.to_bytes()[..MISSED_BYTES]);
        bytes.bitmap = self.in_doubt.to_bytes();
        bytes.crc = crc32c::crc32c(bytes.as_bytes()).into();
        Buf::copy_of(bytes.as_bytes())
    }

    /// Reads a copy: its content, and the identity of the device that it is on.
    pub fn decode(
        block: &[u8],
        copy: usize,
    ) -> Result<(ArraySuperblock, MemberIdentity), ArraySuperblockError> {
        let bytes =
            ArraySuperblockBytes::read_from_bytes(block).map_err(|_| ArraySuperblockError::NoMagic)?;
        if bytes.magic != MAGIC {
            return Err(ArraySuperblockError::NoMagic);
        }
        // The checksum of another version may cover other bytes.
        if bytes.version.get() != VERSION {
            return Err(ArraySuperblockError::Version(bytes.version.get()));
        }
        let mut unsigned = bytes.clone();
        unsigned.crc = 0.into();
        if crc32c::crc32c(unsigned.as_bytes()) != bytes.crc.get() {
            return Err(ArraySuperblockError::Checksum);
        }
        bytes.fields(copy)
    }

    /// Reads the newer of the two copies on a device, and the identity of the device.
    pub fn read(
        member: &mut dyn BlockDevice,
    ) -> Result<(ArraySuperblock, MemberIdentity), ArraySuperblockError> {
        let mut copy = |copy: usize| {
            let block =
                member.read(COPY_SECTORS[copy], SUPERBLOCK_BYTES).map_err(ArraySuperblockError::Io)?;
            ArraySuperblock::decode(block.bytes(), copy)
        };
        ArraySuperblock::newer([copy(0), copy(1)])
    }

    /// The one of the two copies on a device that counts: of one generation, the second. Of two errors, the first is told.
    pub(super) fn newer(
        [first, second]: [Result<(ArraySuperblock, MemberIdentity), ArraySuperblockError>; 2],
    ) -> Result<(ArraySuperblock, MemberIdentity), ArraySuperblockError> {
        newest([second, first], |copy| match copy {
            Ok((superblock, identity)) => Worth::Valid((superblock.generation, identity.copy)),
            Err(ArraySuperblockError::Version(_)) => Worth::OtherVersion,
            Err(ArraySuperblockError::NoMagic) => Worth::None,
            Err(_) => Worth::Damaged,
        })
    }

    /// The write that puts this generation on a device. When it has returned, the other copy counts.
    pub fn write(&self, member: MemberIdentity) -> Io {
        let at = COPY_SECTORS[1 - member.copy];
        Io::Write { at, buf: self.encode(member), durability: Durability::Durable }
    }
}

impl ArraySuperblockBytes {
    fn away(&self) -> Away {
        let listed = self.away.iter().zip(&self.away_had).filter(|(absence, _)| absence.id != NOBODY);
        let absence = |(bytes, had): (&AbsenceBytes, &U64)| Absence {
            role: bytes.role.get() as usize,
            id: bytes.id.get(),
            since: bytes.since.get(),
            failed: bytes.failed.get(),
            had: had.get(),
        };
        let mut missed = [0; BITMAP_BYTES];
        missed[..MISSED_BYTES].copy_from_slice(&self.missed);
        Away { members: listed.map(absence).collect(), missed: Bitmap::from_bytes(&missed) }
    }

    /// Refuses what no program of this version has written.
    fn check(&self, level: Level) -> Result<(), ArraySuperblockError> {
        let (members, role, rebuilding) =
            (self.members.get() as usize, self.role.get(), self.rebuilding.get());
        let strip_sectors = u64::from(self.strip_sectors.get());
        let reshape_from = self.reshape_from.get() as usize;
        let is_role = |role: u32| (role as usize) < members.min(MEMBERS_MAX);
        let flags = [self.active, self.journaled, self.calibrated, self.has_journal];
        let member_sectors = self.member_sectors.get();
        let stripes = member_sectors / strip_sectors.max(1);
        let regions = stripes.div_ceil(u64::from(self.region_stripes.get()).max(1));
        let tracts = regions.div_ceil(regions.div_ceil(TRACTS_MAX).max(1));
        let is_below = |bytes: &[u8], end: u64| {
            let last = bytes.iter().rposition(|byte| *byte != 0);
            last.is_none_or(|last| 8 * last as u64 + u64::from(bytes[last].ilog2()) < end)
        };
        let is_lost = |entry: &U64| {
            let lost = lost_block(entry.get()).0;
            is_role(lost.role as u32) && lost.block < member_sectors / LINE_SECTORS
        };
        let lost_blocks = (self.lost_blocks.get() as usize).min(LOST_MAX);
        let checks = [
            (level.shape(members).is_some(), "members"),
            (role == NO_ROLE || is_role(role), "role"),
            (is_strip(strip_sectors), "strip"),
            (member_sectors >= strip_sectors && member_sectors < MEMBER_SECTORS_MAX, "member sectors"),
            (self.region_stripes.get() > 0 && regions <= REGIONS_MAX, "region"),
            (self.generation.get() < COUNT_MAX, "generation"),
            (self.epoch.get() < COUNT_MAX, "epoch"),
            (self.failed.get().checked_shr(members as u32).unwrap_or(0) == 0, "failed"),
            (is_below(&self.bitmap, regions), "bitmap"),
            (is_below(&self.missed, tracts), "missed"),
            (rebuilding == NO_ROLE || is_role(rebuilding), "rebuilding"),
            (rebuilding == NO_ROLE || self.failed.get() >> (rebuilding % 64) & 1 == 1, "rebuilding"),
            (self.rebuilt_sectors.get() <= member_sectors, "rebuilt sectors"),
            (
                reshape_from == 0 || level.shape(reshape_from).is_some_and(|_| reshape_from + 1 == members),
                "reshape",
            ),
            (self.reshape_kept.get() <= 1, "reshape"),
            (
                self.reshaped_sectors.get() <= member_sectors
                    && self.reshaped_sectors.get().is_multiple_of(LINE_SECTORS),
                "reshaped sectors",
            ),
            (self.lost_blocks.get() <= LOST_MAX as u64, "lost blocks"),
            (self.lost[..lost_blocks].iter().all(is_lost), "lost"),
            (self.away.iter().all(|absence| absence.id == NOBODY || is_role(absence.role.get())), "away"),
            (flags.iter().all(|flag| *flag <= 1), "flags"),
        ];
        checks.iter().try_for_each(|(ok, field)| ok.then_some(()).ok_or(ArraySuperblockError::Field(field)))
    }

    fn lost(&self) -> BTreeMap<LostBlock, bool> {
        self.lost[..self.lost_blocks.get() as usize].iter().map(|entry| lost_block(entry.get())).collect()
    }

    fn fields(&self, copy: usize) -> Result<(ArraySuperblock, MemberIdentity), ArraySuperblockError> {
        let level = match self.level.get() {
            5 => Level::Raid5,
            6 => Level::Raid6,
            _ => return Err(ArraySuperblockError::Field("level")),
        };
        self.check(level)?;
        let (members, role) = (self.members.get() as usize, self.role.get());
        let (rebuilding, reshape_from) = (self.rebuilding.get(), self.reshape_from.get() as usize);
        let calibration = match self.calibrated {
            1 => Some(self.calibration.contiguity().ok_or(ArraySuperblockError::Field("calibration"))?),
            _ => None,
        };
        let superblock = ArraySuperblock {
            uuid: self.uuid,
            level,
            members,
            strip_sectors: self.strip_sectors.get().into(),
            member_sectors: self.member_sectors.get(),
            region_stripes: u64::from(self.region_stripes.get()),
            generation: self.generation.get(),
            complete: self.complete.get(),
            epoch: self.epoch.get(),
            failed: self.failed.get(),
            member_ids: self.member_ids[..members].iter().map(|id| id.get()).collect(),
            rebuilding: (rebuilding != NO_ROLE)
                .then_some(Rebuild { role: rebuilding as usize, sectors: self.rebuilt_sectors.get() }),
            reshape: (reshape_from != 0).then_some(Reshape {
                from_members: reshape_from,
                sectors: self.reshaped_sectors.get(),
                kept: self.reshape_kept.get() == 1,
            }),
            active: self.active == 1,
            journaled: self.journaled == 1,
            has_journal: self.has_journal == 1,
            in_doubt: Bitmap::from_bytes(&self.bitmap),
            lost: self.lost(),
            away: self.away(),
            calibration,
            caches: self.caches.iter().map(|cache| cache.get()).filter(|cache| *cache != 0).collect(),
        };
        let role = (role != NO_ROLE).then_some(role as usize);
        Ok((superblock, MemberIdentity { id: self.id.get(), role, copy }))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::mem::offset_of;
    use std::ops::Range;

    use super::*;
    use crate::raid::contiguity::Strides;

    /// End of the fields before the tables, and range of the fields of a growth.
    pub const HEAD: usize = offset_of!(ArraySuperblockBytes, calibration);
    pub const RESHAPE: Range<usize> =
        offset_of!(ArraySuperblockBytes, reshape_from)..offset_of!(ArraySuperblockBytes, lost_blocks);

    pub fn sample() -> ArraySuperblock {
        let mut in_doubt = Bitmap::default();
        in_doubt.insert(3);
        in_doubt.insert(9000);
        let mut missed = Bitmap::default();
        missed.insert(1999);
        ArraySuperblock {
            uuid: *b"an array of five",
            level: Level::Raid6,
            members: 5,
            strip_sectors: 256,
            member_sectors: 2_560_000,
            region_stripes: 1,
            generation: 7,
            complete: 6,
            epoch: 3,
            failed: 0b100,
            member_ids: vec![11, 12, 13, 14, 15],
            rebuilding: Some(Rebuild { role: 2, sectors: 512 }),
            reshape: Some(Reshape { from_members: 4, sectors: 1024, kept: true }),
            active: true,
            journaled: false,
            has_journal: true,
            in_doubt,
            lost: [(1, 7, false), (4, 319, true)]
                .map(|(role, block, settled)| (LostBlock { role, block }, settled))
                .into(),
            away: Away {
                members: vec![Absence { role: 2, id: 13, since: 6, failed: 0b100, had: 5 }],
                missed,
            },
            calibration: Some(Contiguity {
                read: Strides::up_to(9),
                write: Strides { max: 30, except: vec![(4, 5), (7, 7)] },
            }),
            caches: vec![9, 1 << 63],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let spare = MemberIdentity { id: 99, role: None, copy: 1 };
        for member in [sample().identity(4, 1), spare] {
            let buf = sample().encode(member);
            assert_eq!(ArraySuperblock::decode(buf.bytes(), 1), Ok((sample(), member)));
        }
        let plain = ArraySuperblock {
            rebuilding: None,
            reshape: None,
            calibration: None,
            caches: vec![],
            ..sample()
        };
        let buf = plain.encode(plain.identity(0, 0));
        assert_eq!(ArraySuperblock::decode(buf.bytes(), 0), Ok((plain.clone(), plain.identity(0, 0))));
    }

    #[test]
    fn every_turned_bit_is_noticed() {
        let buf = sample().encode(sample().identity(4, 0));
        let mut bytes = buf.bytes().to_vec();
        for bit in (0..8 * 112).chain((8 * 112..8 * SUPERBLOCK_BYTES).step_by(61)) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            ArraySuperblock::decode(&bytes, 0).expect_err("a bit was turned");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
