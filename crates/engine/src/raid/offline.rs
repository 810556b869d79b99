//! Work on the superblocks of an array that is not served: making it, and what its administrator changes.

use std::collections::BTreeMap;

use crate::destage::contiguity::EXCEPT_MAX;
use crate::raid::apart::Apart;
use crate::raid::away::Away;
use crate::raid::bitmap::{Bitmap, region_stripes};
use crate::raid::config::{RaidConfig, ShapeError};
use crate::raid::contiguity::Contiguity;
use crate::raid::error::are;
use crate::raid::journal::{Slots, slots};
use crate::raid::layout::DATA_SECTOR;
use crate::raid::superblock::{
    ArraySuperblock, ArraySuperblockError, COPY_SECTORS, MemberIdentity, NOBODY, Rebuild, SUPERBLOCK_BYTES,
};
use crate::{BlockDevice, Buf, IoError, Lba, SECTOR_BYTES};

/// Reason for refusing to make an array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrayCreateError {
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error("all of its members have to be there when it is made")]
    Missing,
    #[error("member {role} has {sectors} sectors: superblocks and one strip need {needed}")]
    TooSmall { role: usize, sectors: u64, needed: u64 },
    #[error("member {role}: {source}")]
    Io { role: usize, source: IoError },
    #[error("its journal is too small: {kib} KiB at least, as a record holds a whole stripe")]
    JournalTooSmall { kib: u64 },
    #[error("writing its journal: {0}")]
    Journal(IoError),
}

/// Reason for leaving the superblocks of an array as they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    #[error("none of its members can be read")]
    Nobody,
    #[error("member {0} is not of the same array as the others")]
    Foreign(usize),
    #[error(transparent)]
    Apart(#[from] Apart),
    #[error("it has no role {role}: its members have the roles 0 to {}", .members - 1)]
    NoRole { role: usize, members: usize },
    #[error("member {0} is in use: a device takes its place only after it has failed")]
    InUse(usize),
    #[error("member {0} is being rebuilt")]
    Rebuilding(usize),
    #[error("the parity does not make up for more failed members than it has already")]
    NoParity,
    #[error(
        "it cannot be spared: {} missing, or not up to date, and the parity makes up for {parity} in all",
        are(.absent)
    )]
    NotSpared { absent: Vec<usize>, parity: usize },
    #[error(
        "it is not known of all of its parity that it is right, as it was not served yet or did not stop cleanly: what member {0} \
         holds may come out wrong without it"
    )]
    InDoubt(usize),
    #[error("a device with {sectors} sectors is too small: each member has {needed}")]
    TooSmall { sectors: u64, needed: u64 },
    #[error("the id {0:#x} is in use, or reserved")]
    Id(u64),
    #[error("it leaves out more than {EXCEPT_MAX} ranges of strides")]
    TooManyRanges,
    #[error("member {place}: {source}")]
    Member { place: usize, source: ArraySuperblockError },
    #[error(transparent)]
    Superblock(#[from] ArraySuperblockError),
    #[error("writing the superblock of member {role}: {source}")]
    Write { role: usize, source: IoError },
    #[error("writing its superblock: {0}")]
    Io(#[from] IoError),
}

/// The first id of a role: as random as the array's.
fn first_id(uuid: [u8; 16], role: usize) -> u64 {
    let (a, b) = uuid.split_at(8);
    let half = |bytes: &[u8]| bytes.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let mut id = (half(a) ^ half(b).rotate_left(32))
        .wrapping_add((role as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    id = (id ^ id >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    id = (id ^ id >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (id ^ id >> 31).max(NOBODY + 1)
}

/// The roles that have no device, and the least that the others have for data.
fn measure(
    members: &[Option<&mut dyn BlockDevice>],
    config: &RaidConfig,
) -> Result<(u64, u64), ArrayCreateError> {
    let needed = DATA_SECTOR + config.strip_sectors;
    let (mut failed, mut least) = (0, u64::MAX);
    for (role, member) in members.iter().enumerate() {
        let Some(member) = member else {
            failed |= 1 << role;
            continue;
        };
        let sectors = member.geometry().sectors;
        if sectors < needed {
            return Err(ArrayCreateError::TooSmall { role, sectors, needed });
        }
        least = least.min(sectors - DATA_SECTOR);
    }
    Ok((failed, least))
}

/// Makes an array: writes superblocks, and nothing else. `synced`: the parity of what is on the members is known to be right
/// (they are all zeroes), and some may be missing; otherwise the array computes it when it is first served.
pub fn create(
    members: &mut [Option<&mut dyn BlockDevice>],
    config: &RaidConfig,
    uuid: [u8; 16],
    synced: bool,
) -> Result<ArraySuperblock, ArrayCreateError> {
    config.check_shape()?;
    let (failed, least) = measure(members, config)?;
    if failed.count_ones() as usize > if synced { config.level.parity() } else { 0 } {
        return Err(ArrayCreateError::Missing);
    }
    let stripes = least / config.strip_sectors;
    let data = (members.len() - config.level.parity()) as u64;
    let region_stripes =
        region_stripes(stripes, data * config.strip_sectors * SECTOR_BYTES, config.region_bytes);
    let in_doubt = if synced { Bitmap::default() } else { Bitmap::full(stripes.div_ceil(region_stripes)) };
    let superblock = ArraySuperblock {
        uuid,
        level: config.level,
        members: members.len(),
        strip_sectors: config.strip_sectors,
        member_sectors: stripes * config.strip_sectors,
        region_stripes,
        generation: 1,
        complete: 1,
        epoch: 0,
        failed,
        member_ids: (0..members.len()).map(|role| first_id(uuid, role)).collect(),
        rebuilding: None,
        reshape: None,
        active: false,
        journaled: false,
        has_journal: config.journal && !config.journal_implied,
        in_doubt,
        lost: BTreeMap::new(),
        away: Away::default(),
        calibration: None,
        caches: Vec::new(),
    };
    for (role, member) in members.iter_mut().enumerate() {
        let Some(member) = member else { continue };
        put(*member, &superblock, superblock.identity(role, 1))
            .map_err(|source| ArrayCreateError::Io { role, source })?;
    }
    Ok(superblock)
}

/// Makes a device the journal of a new array: it begins with zeroes.
///
/// # Errors
/// If it is too small, or cannot be written.
pub fn clear_journal(
    device: &mut dyn BlockDevice,
    superblock: &ArraySuperblock,
) -> Result<(), ArrayCreateError> {
    let slots = slots(device, superblock).expect("an array that has been made has a shape");
    if slots.count < Slots::COUNT_MIN {
        return Err(ArrayCreateError::JournalTooSmall { kib: slots.bytes_min() / 1024 });
    }
    let zeroes = device.write(Lba(0), Buf::zeroed(slots.header_bytes()));
    zeroes.and_then(|()| device.flush()).map_err(ArrayCreateError::Journal)
}

/// Writes a first superblock: nothing that was there before may be taken for a newer one.
fn put(
    member: &mut dyn BlockDevice,
    superblock: &ArraySuperblock,
    identity: MemberIdentity,
) -> Result<(), IoError> {
    forget(member)?;
    member.run(superblock.write(identity)).status?;
    member.flush()
}

/// Makes a device a spare of an array. `id`: a random number.
///
/// # Errors
/// If the device is too small or cannot be written, or the id is that of a member.
pub fn make_spare(
    device: &mut dyn BlockDevice,
    superblock: &ArraySuperblock,
    id: u64,
) -> Result<(), ChangeError> {
    must_fit(device, superblock)?;
    if id == NOBODY || superblock.role_of(id).is_some() {
        return Err(ChangeError::Id(id));
    }
    Ok(put(device, superblock, MemberIdentity { id, role: None, copy: 1 })?)
}

fn must_fit(device: &dyn BlockDevice, superblock: &ArraySuperblock) -> Result<(), ChangeError> {
    let (sectors, needed) = (device.geometry().sectors, DATA_SECTOR + superblock.member_sectors);
    if sectors < needed {
        return Err(ChangeError::TooSmall { sectors, needed });
    }
    Ok(())
}

/// Takes a device out of every array: wipes its superblocks.
pub fn forget(device: &mut dyn BlockDevice) -> Result<(), IoError> {
    for at in COPY_SECTORS {
        device.write(at, Buf::zeroed(SUPERBLOCK_BYTES))?;
    }
    device.flush()
}

/// The newest superblock of all members. `members` are in the order of their roles.
///
/// # Errors
/// If none of them can be read, one is of another array, or some have diverged.
pub fn newest(members: &mut [Option<&mut dyn BlockDevice>]) -> Result<ArraySuperblock, ChangeError> {
    let mut all: Vec<(ArraySuperblock, MemberIdentity)> = Vec::new();
    for (place, member) in members.iter_mut().enumerate() {
        let Some(member) = member else { continue };
        let found = match ArraySuperblock::read(*member) {
            Ok(found) => found,
            Err(ArraySuperblockError::Io(_)) => continue,
            Err(source) => return Err(ChangeError::Member { place, source }),
        };
        if all.first().is_some_and(|first| first.0.uuid != found.0.uuid) {
            return Err(ChangeError::Foreign(place));
        }
        all.push(found);
    }
    let known = || all.iter().map(|(superblock, identity)| (superblock, *identity));
    let generation = known().map(|(superblock, _)| superblock.generation).max().unwrap_or(0);
    let newest =
        ArraySuperblock::newest_of(known().map(|(superblock, _)| superblock)).ok_or(ChangeError::Nobody)?;
    if let Some(apart) = newest.apart(&known().collect::<Vec<_>>()) {
        return Err(apart.into());
    }
    // The next one is behind all of them.
    Ok(ArraySuperblock { generation, ..newest.clone() })
}

/// Returns the newest superblock, or an error if the array has no such role.
fn newest_with(
    members: &mut [Option<&mut dyn BlockDevice>],
    role: usize,
) -> Result<ArraySuperblock, ChangeError> {
    let superblock = newest(members)?;
    match role < superblock.members {
        true => Ok(superblock),
        false => Err(ChangeError::NoRole { role, members: superblock.members }),
    }
}

/// Changes what the superblocks of all members say that have not failed; the one that is given is the newest.
fn change(
    members: &mut [Option<&mut dyn BlockDevice>],
    mut superblock: ArraySuperblock,
) -> Result<ArraySuperblock, ChangeError> {
    // A crash may have left the next one with members that are away now.
    superblock.generation += 2;
    superblock.away = superblock.away.recorded_by(superblock.generation, superblock.failed);
    for (place, member) in members.iter_mut().enumerate() {
        let Some(member) = member else { continue };
        let Some((role, copy)) = held_role(*member, &superblock) else { continue };
        if !superblock.is_in_use(role) {
            continue;
        }
        let wrong = |source| ChangeError::Write { role: place, source };
        // A killed server may have left the superblock that counts in its cache, and the next one goes over the other copy.
        member.flush().map_err(wrong)?;
        member.run(superblock.write(superblock.identity(role, copy))).status.map_err(wrong)?;
        member.flush().map_err(wrong)?;
    }
    Ok(superblock)
}

/// The role of a device by its id, wherever it is named, and which copy of its superblock counts; none if its content is outdated.
fn held_role(member: &mut dyn BlockDevice, superblock: &ArraySuperblock) -> Option<(usize, usize)> {
    let (own, identity) = ArraySuperblock::read(member).ok()?;
    let role = superblock.role_of(identity.id)?;
    (!superblock.is_outdated(role, own.generation)).then_some((role, identity.copy))
}

/// The roles that devices hold whose content counts, a bit each.
fn held(members: &mut [Option<&mut dyn BlockDevice>], superblock: &ArraySuperblock) -> u64 {
    let roles = members.iter_mut().flatten().filter_map(|member| held_role(*member, superblock));
    roles.fold(0, |held, (role, _)| held | 1 << role)
}

/// Records that the member of a role has failed, and is not to be used again.
///
/// # Errors
/// If the parity does not make up for it, and for other members that are missing; see [`newest`] for others.
pub fn mark_failed(
    members: &mut [Option<&mut dyn BlockDevice>],
    role: usize,
) -> Result<ArraySuperblock, ChangeError> {
    let mut superblock = newest_with(members, role)?;
    if superblock.rebuilds(role) {
        superblock.end_rebuild(role, Some(&Bitmap::default()));
        return change(members, superblock);
    }
    if superblock.has_failed(role) {
        return Ok(superblock);
    }
    if !superblock.in_doubt.is_empty() {
        return Err(ChangeError::InDoubt(role));
    }
    superblock.failed |= 1 << role;
    if superblock.failed.count_ones() as usize > superblock.level.parity() {
        return Err(ChangeError::NoParity);
    }
    let known = superblock.failed | held(members, &superblock);
    let absent: Vec<usize> = (0..superblock.members).filter(|role| known >> role & 1 == 0).collect();
    if superblock.failed.count_ones() as usize + absent.len() > superblock.level.parity() {
        return Err(ChangeError::NotSpared { absent, parity: superblock.level.parity() });
    }
    if superblock.lost.is_empty() {
        superblock.away.add(role, superblock.member_ids[role], superblock.complete, &Bitmap::default());
    }
    change(members, superblock)
}

/// Gives the role of a member that has failed, or is missing, to a device, which is filled from the beginning when the array is served
/// next. It may be the one that had the role before: where it is known what it has missed, it keeps its id, and gets only that. While
/// another one is being rebuilt it becomes a spare, which gets the role after that. `id`: a random number.
///
/// # Errors
/// If the role has a member; see [`mark_failed`], [`make_spare`] and [`newest`] for others.
pub fn replace(
    members: &mut [Option<&mut dyn BlockDevice>],
    role: usize,
    device: &mut dyn BlockDevice,
    id: u64,
) -> Result<ArraySuperblock, ChangeError> {
    let mut superblock = newest_with(members, role)?;
    must_fit(device, &superblock)?;
    let is_rebuilt = superblock.rebuilds(role);
    if superblock.is_in_use(role) {
        if held(members, &superblock) >> role & 1 == 1 {
            return Err(if is_rebuilt { ChangeError::Rebuilding(role) } else { ChangeError::InUse(role) });
        }
        superblock = mark_failed(members, role)?;
    }
    // The superblock that counts may be in its cache only, and the next one goes over the other copy.
    device.flush()?;
    let returns = ArraySuperblock::read(device)
        .is_ok_and(|(own, identity)| superblock.returns(&own, identity) == Some(role));
    if let Some(rebuild) = superblock.rebuilding {
        if returns {
            return Err(ChangeError::Rebuilding(rebuild.role));
        }
        make_spare(device, &superblock, id)?;
        return Ok(superblock);
    }
    if !returns {
        // A spare first: a crash before the others know of it leaves it one.
        make_spare(device, &superblock, id)?;
        superblock.member_ids[role] = id;
        superblock.away.forget(role);
    }
    superblock.rebuilding = Some(Rebuild { role, sectors: 0 });
    let superblock = change(members, superblock)?;
    let (_, identity) = ArraySuperblock::read(device)?;
    device.run(superblock.write(superblock.identity(role, identity.copy))).status?;
    device.flush()?;
    Ok(superblock)
}

/// Stores what the stride benchmark has found of a member.
///
/// # Errors
/// If it does not fit into a superblock; see [`newest`] for others.
pub fn store_calibration(
    members: &mut [Option<&mut dyn BlockDevice>],
    calibration: &Contiguity,
) -> Result<ArraySuperblock, ChangeError> {
    if !calibration.is_storable() {
        return Err(ChangeError::TooManyRanges);
    }
    let superblock = newest(members)?;
    change(members, ArraySuperblock { calibration: Some(calibration.clone()), ..superblock })
}

/// Stores which caches the array is the data disk of, by the first eight bytes of their UUIDs: a member tells that wherever it is
/// moved to.
///
/// # Errors
/// See [`newest`].
pub fn store_caches(
    members: &mut [Option<&mut dyn BlockDevice>],
    caches: Vec<u64>,
) -> Result<ArraySuperblock, ChangeError> {
    let superblock = newest(members)?;
    change(members, ArraySuperblock { caches, ..superblock })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::{Geometry, Io, IoResult};
    use crate::raid::contiguity::Strides;

    const SECTORS: u64 = DATA_SECTOR + 1000;

    struct Device(Vec<u8>);

    impl BlockDevice for Device {
        fn geometry(&self) -> Geometry {
            Geometry::plain(self.0.len() as u64 / SECTOR_BYTES)
        }

        fn run(&mut self, mut io: Io) -> IoResult {
            if let Some(extent) = io.extent() {
                let range = extent.start.bytes() as usize..extent.end().bytes() as usize;
                match &mut io {
                    Io::Read { buf, .. } => buf.bytes_mut().copy_from_slice(&self.0[range]),
                    Io::Write { buf, .. } => self.0[range].copy_from_slice(buf.bytes()),
                    _ => unreachable!("nothing else is sent"),
                }
            }
            IoResult::ok(io.take_buf())
        }
    }

    fn blank(sectors: u64) -> Device {
        Device(vec![0; (sectors * SECTOR_BYTES) as usize])
    }

    fn all(members: &mut [Device]) -> Vec<Option<&mut dyn BlockDevice>> {
        members.iter_mut().map(|member| Some(member as &mut dyn BlockDevice)).collect()
    }

    fn made(synced: bool) -> Vec<Device> {
        let config = RaidConfig { present: vec![true; 4], ..RaidConfig::default() };
        let mut members: Vec<Device> = (0..4).map(|_| blank(SECTORS)).collect();
        create(&mut all(&mut members), &config, *b"sixteen by chanc", synced).expect("made");
        members
    }

    #[test]
    fn each_member_gets_an_id_of_its_own_and_the_table_has_them_all() {
        let mut members = made(true);
        let mut ids = Vec::new();
        for (role, member) in members.iter_mut().enumerate() {
            let (superblock, identity) = ArraySuperblock::read(member).expect("written");
            assert_eq!((superblock.role_of(identity.id), identity.role), (Some(role), Some(role)));
            ids.push(identity.id);
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4);
    }

    #[test]
    fn a_spare_knows_its_array_and_nothing_older_of_another_one() {
        let superblock = newest(&mut all(&mut made(true))).expect("read");
        let mut spare = made(false).remove(0);
        let newer = ArraySuperblock { generation: 1000, ..superblock.clone() };
        spare.run(newer.write(newer.identity(0, 0)));
        make_spare(&mut spare, &superblock, 77).expect("it fits");
        let (found, identity) = ArraySuperblock::read(&mut spare).expect("written");
        assert_eq!((found, identity), (superblock.clone(), MemberIdentity { id: 77, role: None, copy: 0 }));
        let error = make_spare(&mut blank(DATA_SECTOR + 700), &superblock, 78).expect_err("too small");
        assert!(matches!(error, ChangeError::TooSmall { sectors: 2748, .. }), "{error}");
        let taken = superblock.member_ids[2];
        assert_eq!(make_spare(&mut spare, &superblock, taken), Err(ChangeError::Id(taken)));
        forget(&mut spare).expect("wiped");
        assert_eq!(ArraySuperblock::read(&mut spare), Err(ArraySuperblockError::NoMagic));
    }

    #[test]
    fn a_failed_member_is_known_to_the_others_and_a_second_one_is_refused() {
        let mut members = made(true);
        mark_failed(&mut all(&mut members), 2).expect("the parity makes up for it");
        for (role, member) in members.iter_mut().enumerate() {
            let failed = ArraySuperblock::read(member).expect("read").0.failed;
            assert_eq!(failed, if role == 2 { 0 } else { 0b100 });
        }
        mark_failed(&mut all(&mut members), 2).expect("it has failed already");
        assert_eq!(mark_failed(&mut all(&mut members), 1), Err(ChangeError::NoParity));
        let nobody = ChangeError::NoRole { role: 4, members: 4 };
        assert_eq!(mark_failed(&mut all(&mut members), 4), Err(nobody));
        assert_eq!(mark_failed(&mut all(&mut made(false)), 1), Err(ChangeError::InDoubt(1)));
    }

    #[test]
    fn the_last_member_that_can_be_spared_is_not_failed_where_another_is_not_there_or_out_of_date() {
        let not_spared = ChangeError::NotSpared { absent: vec![1], parity: 1 };
        let mut members = made(true);
        let mut there = all(&mut members);
        there[1] = None;
        assert_eq!(mark_failed(&mut there, 2), Err(not_spared.clone()));
        assert!(not_spared.to_string().contains("member 1 is missing"), "{not_spared}");
        mark_failed(&mut there, 1).expect("it is the one that is missing");

        let mut members = made(true);
        let newest = newest(&mut all(&mut members)).expect("read");
        let newer = ArraySuperblock { generation: 8, complete: 8, ..newest };
        for role in [0, 2, 3] {
            members[role].run(newer.write(newer.identity(role, 0)));
        }
        assert_eq!(mark_failed(&mut all(&mut members), 2), Err(not_spared));
        mark_failed(&mut all(&mut members), 1).expect("it is the one that is out of date");
    }

    #[test]
    fn a_failed_member_is_replaced_in_its_place() {
        let mut members = made(true);
        let error = replace(&mut all(&mut members), 2, &mut blank(SECTORS), 77).expect_err("in use");
        assert_eq!(error, ChangeError::InUse(2));
        mark_failed(&mut all(&mut members), 2).expect("the parity makes up for it");
        let mut new = blank(SECTORS);
        replace(&mut all(&mut members[..2]), 2, &mut new, 77).expect("it fits");
        for (role, member) in members.iter_mut().enumerate().take(2).chain([(2, &mut new)]) {
            let (superblock, identity) = ArraySuperblock::read(member).expect("read");
            assert_eq!((identity.role, superblock.member_ids[2], superblock.failed), (Some(role), 77, 0b100));
            assert_eq!(superblock.rebuilding, Some(Rebuild { role: 2, sectors: 0 }));
        }
        let mut there: Vec<Option<&mut dyn BlockDevice>> = all(&mut members[..2]);
        there.push(Some(&mut new));
        let error = replace(&mut there, 2, &mut blank(SECTORS), 78).expect_err("it has a device");
        assert_eq!(error, ChangeError::Rebuilding(2));
        let now = replace(&mut all(&mut members[..2]), 2, &mut blank(SECTORS), 78).expect("that one is gone");
        assert_eq!((now.member_ids[2], now.rebuilding), (78, Some(Rebuild { role: 2, sectors: 0 })));
    }

    #[test]
    fn a_member_that_is_not_there_and_can_be_spared_is_replaced_at_once() {
        let mut members = made(true);
        let there = &mut members[..3];
        let now = replace(&mut all(there), 3, &mut blank(SECTORS), 77).expect("it can be spared");
        assert_eq!((now.failed, now.member_ids[3]), (0b1000, 77));
        assert_eq!(ArraySuperblock::read(&mut members[0]).expect("read").0, now);

        let mut members = made(true);
        let before: Vec<Vec<u8>> = members.iter().map(|member| member.0.clone()).collect();
        let error =
            replace(&mut all(&mut members[..2]), 3, &mut blank(SECTORS), 77).expect_err("two are missing");
        assert_eq!(error, ChangeError::NotSpared { absent: vec![2], parity: 1 });
        let error =
            replace(&mut all(&mut members[..3]), 3, &mut blank(SECTORS - 500), 77).expect_err("too small");
        assert!(matches!(error, ChangeError::TooSmall { .. }), "{error}");
        assert!(members.iter().zip(before).all(|(member, before)| member.0 == before));
    }

    #[test]
    fn a_member_that_comes_back_smaller_is_refused_and_nothing_is_changed() {
        let mut members = made(true);
        mark_failed(&mut all(&mut members), 2).expect("the parity makes up for it");
        let mut device = Device(members.remove(2).0);
        device.0.truncate((SECTORS as usize - 500) * SECTOR_BYTES as usize);
        let before: Vec<Vec<u8>> = members.iter().chain([&device]).map(|device| device.0.clone()).collect();
        let error = replace(&mut all(&mut members), 2, &mut device, 77).expect_err("it is smaller");
        assert!(matches!(error, ChangeError::TooSmall { .. }), "{error}");
        assert!(members.iter().chain([&device]).zip(before).all(|(device, before)| device.0 == before));
        device.0.resize(SECTORS as usize * SECTOR_BYTES as usize, 0);
        let now = replace(&mut all(&mut members), 2, &mut device, 77).expect("it has its size again");
        assert!(now.is_returning());
    }

    /// The names of the commands to a device, in their order.
    struct Told(Device, Vec<&'static str>);

    impl BlockDevice for Told {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }

        fn run(&mut self, io: Io) -> IoResult {
            self.1.push(io.name());
            self.0.run(io)
        }
    }

    #[test]
    fn a_member_that_comes_back_is_flushed_before_its_superblock_is_written_over() {
        let mut members = made(true);
        mark_failed(&mut all(&mut members), 2).expect("the parity makes up for it");
        let mut device = Told(members.remove(2), Vec::new());
        assert!(replace(&mut all(&mut members), 2, &mut device, 77).expect("it comes back").is_returning());
        let first = |name: &str| device.1.iter().position(|told| *told == name);
        assert!(first("flush").is_some() && first("flush") < first("write"), "{:?}", device.1);
    }

    #[test]
    fn a_calibration_is_stored_with_all_members_and_read_by_the_next_start() {
        let mut members = made(true);
        let read = Strides { max: 40, except: vec![(3, 9)] };
        let calibration = Contiguity { read, write: Strides::up_to(0) };
        store_calibration(&mut all(&mut members), &calibration).expect("stored");
        for member in &mut members {
            let found = ArraySuperblock::read(member).expect("read").0;
            assert_eq!((found.calibration.as_ref(), found.generation), (Some(&calibration), 3));
        }
        let except = (0..65).map(|n| (10 * n, 10 * n)).collect();
        let long = Contiguity { write: Strides { max: 900, except }, ..calibration };
        let stored = store_calibration(&mut all(&mut members), &long);
        assert_eq!(stored, Err(ChangeError::TooManyRanges), "no room");
    }

    #[test]
    fn every_member_tells_of_the_caches_until_they_are_taken_off() {
        let mut members = made(true);
        for caches in [vec![7], vec![7, 8, 9], vec![]] {
            store_caches(&mut all(&mut members), caches.clone()).expect("stored");
            mark_failed(&mut all(&mut members), 3).expect("the parity makes up for it");
            for member in &mut members[..3] {
                assert_eq!(
                    ArraySuperblock::read(member).expect("read").0.caches,
                    caches,
                    "through other changes too"
                );
            }
        }
    }

    #[test]
    fn members_of_two_arrays_are_not_changed() {
        let mut members = made(true);
        let (mut other, identity) = ArraySuperblock::read(&mut members[1]).expect("read");
        other.uuid = *b"another array!!!";
        members[1].run(other.write(identity));
        let error = mark_failed(&mut all(&mut members), 0).expect_err("whose?");
        assert_eq!(error, ChangeError::Foreign(1));
    }
}
