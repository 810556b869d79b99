//! Changes of a block that its checksum covers. Few fields change, and often by little: what is wrong everywhere is refused at once.

use bolero::TypeGenerator;

#[derive(Debug, TypeGenerator)]
pub struct Forged {
    at: u16,
    /// Width of the field in bytes, less one.
    #[generator(0..8_u8)]
    width: u8,
    change: Change,
}

#[derive(Debug, TypeGenerator)]
enum Change {
    Set(u64),
    Add(i8),
}

/// Changes a block behind its first `fixed` bytes.
pub fn forge(block: &mut [u8], fixed: usize, changes: &[Forged]) {
    for Forged { at, width, change } in changes {
        let width = usize::from(*width) + 1;
        let at = fixed + usize::from(*at) % (block.len() - fixed - width);
        let mut field = [0; 8];
        field[..width].copy_from_slice(&block[at..at + width]);
        let value = match change {
            Change::Set(value) => *value,
            Change::Add(less) => u64::from_le_bytes(field).wrapping_add_signed((*less).into()),
        };
        block[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

/// Writes the checksum of a block over the four bytes at `at`.
pub fn sign(block: &mut [u8], at: usize) {
    block[at..at + 4].fill(0);
    let crc = crc32c::crc32c(block);
    block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}
