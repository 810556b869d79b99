//! The sources of a band in the critical section, kept on each member between its superblocks and its first stripe while it is
//! overwritten. Bytes are described in docs/format.md.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::raid::layout::DATA_SECTOR;
use crate::{BlockDevice, Buf, Durability, Io, IoError, LINE_BYTES, LINE_SECTORS, Lba, SECTOR_BYTES};

/// Behind both copies of the superblock.
const BACKUP_SECTOR: Lba = Lba(32);
/// The most that can be kept.
pub const BACKUP_SECTORS_MAX: u64 = DATA_SECTOR - BACKUP_SECTOR.0 - LINE_SECTORS;

const MAGIC: [u8; 8] = *b"DCDRGROW";

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BandHeader {
    magic: [u8; 8],
    uuid: [u8; 16],
    /// The sector at which the band begins, from the first stripe on.
    position: U64,
    sectors: U32,
    role: U32,
    /// Checksum of the header and what follows it.
    crc: U32,
}

/// The identity of a kept band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptBand {
    pub uuid: [u8; 16],
    pub position: u64,
    pub role: usize,
}

fn header(kept: &KeptBand, data: &[u8]) -> BandHeader {
    let mut header = BandHeader::new_zeroed();
    header.magic = MAGIC;
    header.uuid = kept.uuid;
    header.position = kept.position.into();
    header.role = (kept.role as u32).into();
    header.sectors = ((data.len() as u64 / SECTOR_BYTES) as u32).into();
    header.crc = crc32c::crc32c_append(crc32c::crc32c(header.as_bytes()), data).into();
    header
}

/// Keeps what a member has of a band; it is durable afterwards.
pub fn keep(member: &mut dyn BlockDevice, kept: &KeptBand, data: &[u8]) -> Result<(), IoError> {
    let mut buf = Buf::zeroed(LINE_BYTES as usize + data.len());
    let header = header(kept, data);
    buf.bytes_mut()[..size_of::<BandHeader>()].copy_from_slice(header.as_bytes());
    buf.bytes_mut()[LINE_BYTES as usize..].copy_from_slice(data);
    member.run(Io::Write { at: BACKUP_SECTOR, buf, durability: Durability::Durable }).status
}

/// The bytes that were kept of a band on a member; none where it is damaged, or of another band.
pub fn kept(member: &mut dyn BlockDevice, kept: &KeptBand) -> Result<Option<Vec<u8>>, IoError> {
    let block = member.read(BACKUP_SECTOR, LINE_BYTES as usize)?;
    let Ok((found, _)) = BandHeader::read_from_prefix(block.bytes()) else { return Ok(None) };
    let sectors = u64::from(found.sectors.get());
    if found.magic != MAGIC || sectors == 0 || sectors > BACKUP_SECTORS_MAX {
        return Ok(None);
    }
    let data = member.read(BACKUP_SECTOR + LINE_SECTORS, (sectors * SECTOR_BYTES) as usize)?;
    let expected = header(kept, data.bytes());
    Ok((expected.as_bytes() == found.as_bytes()).then(|| data.bytes().to_vec()))
}
