//! The label of a leg, which every leg has in two copies: it names the mirror and its legs, and says which legs are whole. docs/format.md
//! describes the bytes.
//!
//! Each update is a new *generation*, and overwrites the older or damaged copy, never the valid one.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::machine::{Worth, newest, place_of};
use crate::{BlockDevice, Buf, ErrorKind, IoError, Lba, SECTOR_BYTES};

pub const LABEL_BYTES: usize = 4096;
/// The first sectors of the two copies.
pub const COPY_SECTORS: [Lba; 2] = [Lba(0), Lba(8)];
/// First sector of the content.
pub const CONTENT_SECTOR: u64 = 16;
/// Maximum number of legs. A write takes as long as the slowest leg, so more than three are unlikely.
pub const LEGS_MAX: usize = 8;

/// Number of labels that [`super::offline::create`] writes to a leg. Each start of the mirror writes another one.
pub const FIRST_LABELS: u64 = 2;

/// No sum on a generation can overflow below this.
const GENERATION_MAX: u64 = 1 << 62;

const MAGIC: [u8; 8] = *b"DCDLEGS\0";
/// First bytes of a removed leg. Zeroes follow, up to the end of the second label.
const REMOVED: [u8; 8] = *b"DCDLEFT\0";
const VERSION: u16 = 1;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LabelBytes {
    magic: [u8; 8],
    version: U16,
    legs: U16,
    crc: U32,
    uuid: [u8; 16],
    generation: U64,
    complete: U64,
    sectors: U64,
    own: U64,
    ids: [U64; LEGS_MAX],
    standings: [u8; LEGS_MAX],
    reserved: [u8; LABEL_BYTES - 136],
}

const _: () = assert!(size_of::<LabelBytes>() == LABEL_BYTES);

/// State of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LegState {
    /// The leg has all that was acknowledged.
    Whole,
    /// The leg gets all writes, and lacks earlier ones.
    Filling,
    /// The leg lacks acknowledged data.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    pub id: u64,
    pub standing: LegState,
}

/// The part of a label that all legs of a mirror share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    pub uuid: [u8; 16],
    /// Counts the updates.
    pub generation: u64,
    /// A generation that all whole legs had when this label was made; 0: not known.
    pub complete: u64,
    /// The content of each leg, in sectors from [`CONTENT_SECTOR`] on.
    pub sectors: u64,
    pub legs: Vec<Leg>,
}

/// Reason why a device is not a leg.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    #[error("it has no label of a mirrored log")]
    None,
    #[error("its label is damaged")]
    Damaged,
    #[error("its label is of version {0}, which this program does not know: use a newer one")]
    Version(u16),
    #[error("its label cannot be read: {0}")]
    Io(IoError),
}

impl Label {
    /// True for a leg of a mirror that was never started: it was made, and holds nothing.
    pub const fn is_unused(&self) -> bool {
        self.generation <= FIRST_LABELS
    }

    pub fn standing(&self, id: u64) -> Option<LegState> {
        self.legs.iter().find(|leg| leg.id == id).map(|leg| leg.standing)
    }

    pub fn set(&mut self, id: u64, standing: LegState) {
        self.legs.iter_mut().filter(|leg| leg.id == id).for_each(|leg| leg.standing = standing);
    }

    pub fn whole(&self) -> impl Iterator<Item = u64> {
        self.legs.iter().filter(|leg| leg.standing == LegState::Whole).map(|leg| leg.id)
    }

    /// Encodes the label for the leg with this id; returns the sector to write it to.
    pub fn encode(&self, own: u64) -> (Lba, Buf) {
        assert!(self.legs.len() <= LEGS_MAX, "the table has room");
        let mut bytes = LabelBytes::new_zeroed();
        bytes.magic = MAGIC;
        bytes.version = VERSION.into();
        bytes.legs = (self.legs.len() as u16).into();
        bytes.uuid = self.uuid;
        bytes.generation = self.generation.into();
        bytes.complete = self.complete.into();
        bytes.sectors = self.sectors.into();
        bytes.own = own.into();
        for (index, leg) in self.legs.iter().enumerate() {
            bytes.ids[index] = leg.id.into();
            bytes.standings[index] = match leg.standing {
                LegState::Whole => 1,
                LegState::Filling => 2,
                LegState::Failed => 3,
            };
        }
        bytes.crc = crc32c::crc32c(bytes.as_bytes()).into();
        (COPY_SECTORS[place_of(self.generation)], Buf::copy_of(bytes.as_bytes()))
    }

    /// Decodes a label, and the id of its leg.
    pub fn decode(bytes: &[u8]) -> Result<(Label, u64), LabelError> {
        let Ok(bytes) = LabelBytes::ref_from_bytes(bytes) else { return Err(LabelError::None) };
        if bytes.magic != MAGIC {
            return Err(LabelError::None);
        }
        let mut unsigned = bytes.clone();
        unsigned.crc = 0.into();
        if crc32c::crc32c(unsigned.as_bytes()) != bytes.crc.get() {
            return Err(LabelError::Damaged);
        }
        if bytes.version.get() != VERSION {
            return Err(LabelError::Version(bytes.version.get()));
        }
        let count = usize::from(bytes.legs.get());
        let mut legs = Vec::new();
        for (id, standing) in bytes.ids.iter().zip(&bytes.standings).take(count) {
            let standing = match standing {
                1 => LegState::Whole,
                2 => LegState::Filling,
                3 => LegState::Failed,
                _ => return Err(LabelError::Damaged),
            };
            legs.push(Leg { id: id.get(), standing });
        }
        let label = Label {
            uuid: bytes.uuid,
            generation: bytes.generation.get(),
            complete: bytes.complete.get(),
            sectors: bytes.sectors.get(),
            legs,
        };
        let fits = label.sectors > 0 && label.sectors < 1 << 54 && (1..=LEGS_MAX).contains(&count);
        let once = |leg: &Leg| label.legs.iter().filter(|other| other.id == leg.id).count() == 1;
        let counts = label.complete <= label.generation && label.generation < GENERATION_MAX;
        if fits && counts && label.legs.iter().all(once) {
            Ok((label, bytes.own.get()))
        } else {
            Err(LabelError::Damaged)
        }
    }

    /// Reads both copies, and returns the newer one that is good.
    pub fn read(device: &mut dyn BlockDevice) -> Result<(Label, u64), LabelError> {
        let mut copy = |index: usize| {
            let (label, own) = match device.read(COPY_SECTORS[index], LABEL_BYTES) {
                Ok(block) => Label::decode(block.bytes())?,
                Err(error) if error.kind == ErrorKind::OutOfRange => return Err(LabelError::None),
                Err(error) => return Err(LabelError::Io(error)),
            };
            if place_of(label.generation) == index { Ok((label, own)) } else { Err(LabelError::Damaged) }
        };
        newest([copy(0), copy(1)], |copy| match copy {
            Ok((label, _)) => Worth::Valid(label.generation),
            Err(LabelError::Version(_)) => Worth::OtherVersion,
            Err(LabelError::None) => Worth::None,
            Err(LabelError::Damaged | LabelError::Io(_)) => Worth::Damaged,
        })
    }
}

/// Returns the two blocks that take the place of the labels of a removed leg.
pub fn removed() -> [Buf; 2] {
    let mut first = vec![0; LABEL_BYTES];
    first[..REMOVED.len()].copy_from_slice(&REMOVED);
    [Buf::copy_of(&first), Buf::zeroed(LABEL_BYTES)]
}

/// True for a leg that was removed from a log while other legs had everything, if its labels were not written since.
pub fn was_removed(device: &mut dyn BlockDevice) -> Result<bool, IoError> {
    if device.geometry().sectors < CONTENT_SECTOR {
        return Ok(false);
    }
    let found = device.read(COPY_SECTORS[0], 2 * LABEL_BYTES)?;
    Ok(found.bytes() == removed().map(|block| block.bytes().to_vec()).concat())
}

/// Returns the content that fits a device.
pub const fn content_sectors(device: u64) -> u64 {
    device.saturating_sub(CONTENT_SECTOR) / crate::LINE_SECTORS * crate::LINE_SECTORS
}

/// Returns the minimum size of a leg's device.
pub const fn device_sectors(content: u64) -> u64 {
    CONTENT_SECTOR + content
}

const _: () = assert!(CONTENT_SECTOR * SECTOR_BYTES == 2 * LABEL_BYTES as u64);

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Label {
        let legs = vec![
            Leg { id: 7, standing: LegState::Whole },
            Leg { id: 8, standing: LegState::Failed },
            Leg { id: 9, standing: LegState::Filling },
        ];
        Label { uuid: *b"legs of a mirror", generation: 5, complete: 4, sectors: 1000, legs }
    }

    #[test]
    fn what_is_written_is_read() {
        let (at, buf) = label().encode(8);
        assert_eq!(at, COPY_SECTORS[1]);
        assert_eq!(Label::decode(buf.bytes()), Ok((label(), 8)));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let (_, buf) = label().encode(8);
        for bit in 0..LABEL_BYTES * 8 {
            let mut bytes = buf.bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Label::decode(&bytes).is_err(), "bit {bit}");
        }
    }
}
