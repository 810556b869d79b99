//! Makes random ids.

use std::fs::File;
use std::io::Read;

use crate::failure::Failure;

/// A random UUID (version 4).
pub fn random_uuid() -> Result<[u8; 16], Failure> {
    let mut uuid = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut uuid));
    read.map_err(|e| Failure::io("/dev/urandom", e))?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

/// The id of a new member.
pub fn random_id() -> Result<u64, Failure> {
    let bytes = random_uuid()?;
    Ok(bytes.iter().fold(0u64, |id, byte| id.rotate_left(8) ^ u64::from(*byte)).max(1))
}
