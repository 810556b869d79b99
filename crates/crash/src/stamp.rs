//! Stamps: every written sector identifies its write, so that a read can tell which write it sees.
//!
//! The whole sector depends on its address, the number of the write and the seed of the run; a sector that is torn, rotten
//! or from elsewhere is therefore never taken for a good one.

use dcd_engine::{Lba, SECTOR_BYTES};

use crate::mix;

const WORDS: usize = SECTOR_BYTES as usize / 8;

/// Value that a sector may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// Any content: the sector was discarded, on a disk that does not define the content afterwards.
    Any,
    Zero,
    /// The stamp of the write with this number; 0 is what was there before the first.
    Write(u32),
}

/// Content that a sector was found to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenContent {
    Value(Value),
    /// A good stamp that belongs to another sector.
    Misplaced {
        lba: Lba,
        write: u32,
    },
    Garbage,
    /// The sector could not be read.
    Unreadable,
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Any => f.write_str("anything"),
            Value::Zero => f.write_str("zeroes"),
            Value::Write(0) => f.write_str("the first content"),
            Value::Write(write) => write!(f, "write {write}"),
        }
    }
}

impl std::fmt::Display for SeenContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SeenContent::Value(value) => value.fmt(f),
            SeenContent::Misplaced { lba, write } => write!(f, "write {write} of another place, {lba}"),
            SeenContent::Garbage => f.write_str("garbage"),
            SeenContent::Unreadable => f.write_str("an error"),
        }
    }
}

/// Bytes of a sector that name its address and the write; the rest follows from them and the seed.
const NAME_BYTES: usize = 16;

/// The words of a sector: sums only, as every state of the crash explorer is compared with them word by word.
fn word(key: u64, index: usize) -> u64 {
    key.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn key_of(lba: Lba, write: u32, seed: u64) -> u64 {
    mix(mix(seed, lba.0), u64::from(write))
}

fn stamp_sector(sector: &mut [u8], lba: Lba, write: u32, seed: u64) {
    let key = key_of(lba, write, seed);
    for (index, bytes) in sector.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(key, index).to_le_bytes());
    }
    sector[..8].copy_from_slice(&lba.0.to_le_bytes());
    sector[8..NAME_BYTES].copy_from_slice(&u64::from(write).to_le_bytes());
}

/// A plain loop over an array, which the compiler turns into vector instructions: half of the explorer's time was spent here.
fn is_stamped(sector: &[u8], lba: Lba, write: u32, seed: u64) -> bool {
    let key = key_of(lba, write, seed);
    let Ok(sector) = <&[u8; SECTOR_BYTES as usize]>::try_from(sector) else { return false };
    let mut differences = 0;
    for index in NAME_BYTES / 8..WORDS {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&sector[8 * index..8 * index + 8]);
        differences |= word(key, index) ^ u64::from_le_bytes(bytes);
    }
    differences == 0
}

/// Stamps every sector of `bytes`, which begin at `at`.
pub fn stamp(bytes: &mut [u8], at: Lba, write: u32, seed: u64) {
    for (index, sector) in bytes.chunks_exact_mut(SECTOR_BYTES as usize).enumerate() {
        stamp_sector(sector, at + index as u64, write, seed);
    }
}

/// Identifies the content of the sector at `at`.
pub fn look(sector: &[u8], at: Lba, seed: u64) -> SeenContent {
    debug_assert_eq!(sector.len(), WORDS * 8);
    let lba = Lba(u64::from_le_bytes(sector[..8].try_into().expect("8 bytes")));
    let write = u64::from_le_bytes(sector[8..NAME_BYTES].try_into().expect("8 bytes"));
    if let Ok(write) = u32::try_from(write)
        && is_stamped(sector, lba, write, seed)
    {
        return if lba == at {
            SeenContent::Value(Value::Write(write))
        } else {
            SeenContent::Misplaced { lba, write }
        };
    }
    if sector.iter().all(|byte| *byte == 0) { SeenContent::Value(Value::Zero) } else { SeenContent::Garbage }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_tells_its_write_and_its_place() {
        let mut bytes = [0; 1024];
        assert_eq!(look(&bytes[..512], Lba(0), 7), SeenContent::Value(Value::Zero));
        stamp(&mut bytes, Lba(40), 3, 7);
        assert_eq!(look(&bytes[512..], Lba(41), 7), SeenContent::Value(Value::Write(3)));
        assert_eq!(look(&bytes[512..], Lba(40), 7), SeenContent::Misplaced { lba: Lba(41), write: 3 });
        assert_eq!(look(&bytes[512..], Lba(41), 8), SeenContent::Garbage);
        for byte in 512..1024 {
            bytes[byte] ^= 1;
            assert_ne!(look(&bytes[512..], Lba(41), 7), SeenContent::Value(Value::Write(3)));
            bytes[byte] ^= 1;
        }
    }
}
