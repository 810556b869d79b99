//! The superblock of an array, which every member has in two copies: which array it is, which role the member has, and who
//! has failed. Bytes are described in docs/format.md.
//!
//! Each update is a new *generation*, and goes over the copy that is older. A member that was away while others went on
//! is named as failed in a newer generation than its own. An older generation alone says nothing: crashes in the middle of
//! updates leave some members behind that have missed no data.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::raid::config::{Level, MEMBERS_MAX, RaidConfig, STRIP_SECTORS_MAX};
use crate::{BlockDevice, Buf, Durability, Io, IoError, LINE_SECTORS, Lba};

pub const SUPERBLOCK_BYTES: usize = 4096;
/// Where the copies are: generation `g` is in copy `g % 2`.
pub const COPY_SECTORS: [Lba; 2] = [Lba(0), Lba(8)];
/// Where the first stripe begins on each member: at 1 MiB, as partitions do.
pub const DATA_SECTOR: u64 = 2048;

const MAGIC: [u8; 8] = *b"DCDRAID\0";
const VERSION: u16 = 1;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Bytes {
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
    synced: u8,
    journaled: u8,
    reserved: [u8; SUPERBLOCK_BYTES - 79],
}

const _: () = assert!(size_of::<Bytes>() == SUPERBLOCK_BYTES);

/// What all members say alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub uuid: [u8; 16],
    pub level: Level,
    pub members: usize,
    pub strip_sectors: u64,
    /// What each member gives to stripes.
    pub member_sectors: u64,
    /// Counts the updates.
    pub generation: u64,
    /// Counts the starts that wrote: records of a journal are of one epoch.
    pub epoch: u64,
    /// The roles whose members have failed, a bit each.
    pub failed: u64,
    /// Writes may be under way: after a crash, parity may be wrong where they were.
    pub active: bool,
    /// The parity of the whole array was right when it was last not active.
    pub synced: bool,
    /// Since it is active a journal knows what is under way.
    pub journaled: bool,
}

/// Why a block is no superblock of an array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    #[error("it is no member of an array: make one with \"dcd array create\"")]
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

impl Superblock {
    pub fn encode(&self, role: usize) -> Buf {
        let mut bytes = Bytes::new_zeroed();
        bytes.magic = MAGIC;
        bytes.version = VERSION.into();
        bytes.level = (self.level.parity() as u16 + 4).into();
        bytes.uuid = self.uuid;
        bytes.generation = self.generation.into();
        bytes.epoch = self.epoch.into();
        bytes.failed = self.failed.into();
        bytes.member_sectors = self.member_sectors.into();
        bytes.members = (self.members as u32).into();
        bytes.role = (role as u32).into();
        bytes.strip_sectors = (self.strip_sectors as u32).into();
        (bytes.active, bytes.synced, bytes.journaled) =
            (self.active.into(), self.synced.into(), self.journaled.into());
        bytes.crc = crc32c::crc32c(bytes.as_bytes()).into();
        Buf::copy_of(bytes.as_bytes())
    }

    /// Reads one copy: what it says, and the role of the member that it is on.
    pub fn decode(block: &[u8]) -> Result<(Superblock, usize), SuperblockError> {
        let bytes = Bytes::read_from_bytes(block).map_err(|_| SuperblockError::NoMagic)?;
        if bytes.magic != MAGIC {
            return Err(SuperblockError::NoMagic);
        }
        let mut unsigned = bytes.clone();
        unsigned.crc = 0.into();
        if crc32c::crc32c(unsigned.as_bytes()) != bytes.crc.get() {
            return Err(SuperblockError::Checksum);
        }
        if bytes.version.get() != VERSION {
            return Err(SuperblockError::Version(bytes.version.get()));
        }
        let level = match bytes.level.get() {
            5 => Level::Raid5,
            6 => Level::Raid6,
            _ => return Err(SuperblockError::Field("level")),
        };
        let (members, role) = (bytes.members.get() as usize, bytes.role.get() as usize);
        let strip_sectors = u64::from(bytes.strip_sectors.get());
        for (ok, field) in [
            (level.shape(members).is_some(), "members"),
            (role < members.min(MEMBERS_MAX), "role"),
            (
                strip_sectors > 0
                    && strip_sectors.is_multiple_of(LINE_SECTORS)
                    && strip_sectors <= STRIP_SECTORS_MAX,
                "strip",
            ),
            (bytes.member_sectors.get() >= strip_sectors, "member sectors"),
            ([bytes.active, bytes.synced, bytes.journaled].iter().all(|flag| *flag <= 1), "flags"),
        ] {
            if !ok {
                return Err(SuperblockError::Field(field));
            }
        }
        let superblock = Superblock {
            uuid: bytes.uuid,
            level,
            members,
            strip_sectors,
            member_sectors: bytes.member_sectors.get(),
            generation: bytes.generation.get(),
            epoch: bytes.epoch.get(),
            failed: bytes.failed.get(),
            active: bytes.active == 1,
            synced: bytes.synced == 1,
            journaled: bytes.journaled == 1,
        };
        Ok((superblock, role))
    }

    /// The newer of the two copies on a member, and its role.
    pub fn read(member: &mut dyn BlockDevice) -> Result<(Superblock, usize), SuperblockError> {
        let mut copy = |at: Lba| {
            let block = member.read(at, SUPERBLOCK_BYTES).map_err(SuperblockError::Io)?;
            Superblock::decode(block.bytes())
        };
        match (copy(COPY_SECTORS[0]), copy(COPY_SECTORS[1])) {
            // This program must not touch what a newer one wrote.
            (Err(error @ SuperblockError::Version(_)), _) | (_, Err(error @ SuperblockError::Version(_))) => {
                Err(error)
            }
            (Ok(a), Ok(b)) => Ok(if a.0.generation > b.0.generation { a } else { b }),
            (Ok(only), Err(_)) | (Err(_), Ok(only)) => Ok(only),
            (Err(SuperblockError::NoMagic), Err(other)) | (Err(other), Err(_)) => Err(other),
        }
    }

    /// The write that puts this generation on the member of a role.
    pub fn write(&self, role: usize) -> Io {
        let at = COPY_SECTORS[(self.generation % 2) as usize];
        Io::Write { at, buf: self.encode(role), durability: Durability::Durable }
    }
}

/// Why an array cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    #[error("{0}")]
    Members(String),
    #[error(
        "member {role} has {sectors} sectors: superblocks and one strip need {needed}; use larger members or a smaller \
         strip"
    )]
    TooSmall { role: usize, sectors: u64, needed: u64 },
    #[error("member {role}: {source}")]
    Io { role: usize, source: IoError },
}

/// Makes an array: writes superblocks, and nothing else. `synced`: the parity of what is on the members is known to be right
/// (they are all zeroes), and some may be missing; otherwise the array computes it when it is first served.
pub fn create(
    members: &mut [Option<&mut dyn BlockDevice>],
    config: &RaidConfig,
    uuid: [u8; 16],
    synced: bool,
) -> Result<Superblock, CreateError> {
    if let Some(complaint) = config.complaint() {
        return Err(CreateError::Members(complaint));
    }
    let needed = DATA_SECTOR + config.strip_sectors;
    let mut member_sectors = u64::MAX;
    let mut failed = 0u64;
    for (role, member) in members.iter().enumerate() {
        let Some(member) = member else {
            failed |= 1 << role;
            continue;
        };
        let sectors = member.geometry().sectors;
        if sectors < needed {
            return Err(CreateError::TooSmall { role, sectors, needed });
        }
        member_sectors = member_sectors.min(sectors - DATA_SECTOR);
    }
    if failed.count_ones() as usize > if synced { config.level.parity() } else { 0 } {
        return Err(CreateError::Members("all of its members have to be there when it is made".to_owned()));
    }
    let superblock = Superblock {
        uuid,
        level: config.level,
        members: members.len(),
        strip_sectors: config.strip_sectors,
        member_sectors: member_sectors / config.strip_sectors * config.strip_sectors,
        generation: 1,
        epoch: 0,
        failed,
        active: false,
        synced,
        journaled: false,
    };
    for (role, member) in members.iter_mut().enumerate() {
        let Some(member) = member else { continue };
        let wrong = |source| CreateError::Io { role, source };
        member.write(COPY_SECTORS[0], Buf::zeroed(SUPERBLOCK_BYTES)).map_err(wrong)?;
        member.run(superblock.write(role)).status.map_err(wrong)?;
        member.flush().map_err(wrong)?;
    }
    Ok(superblock)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            uuid: *b"an array of five",
            level: Level::Raid6,
            members: 5,
            strip_sectors: 256,
            member_sectors: 2560,
            generation: 7,
            epoch: 3,
            failed: 0b100,
            active: true,
            synced: true,
            journaled: false,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let buf = sample().encode(4);
        assert_eq!(Superblock::decode(buf.bytes()), Ok((sample(), 4)));
    }

    #[test]
    fn every_turned_bit_is_noticed() {
        let buf = sample().encode(4);
        for bit in 0..8 * 80 {
            let mut bytes = buf.bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            Superblock::decode(&bytes).expect_err("a bit was turned");
        }
    }
}
