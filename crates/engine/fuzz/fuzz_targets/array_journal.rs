//! A record of any numbers in the journal of an array that was cut off, with a checksum that fits: it is replayed, or refused.
//!
//! `cd crates/engine && cargo +nightly fuzz run array_journal -- -max_len=256 -max_total_time=60`

#![no_main]

mod array;

use dcd_engine::raid::ArraySuperblock;
use libfuzzer_sys::fuzz_target;

/// The header of a record of three columns.
const HEADER_BYTES: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let mut members = array::made();
    for member in &mut members.0[..3] {
        let (superblock, identity) = ArraySuperblock::read(member).expect("it has one");
        let active = ArraySuperblock { active: true, journaled: true, epoch: 1, generation: 2, ..superblock };
        let _ = dcd_engine::BlockDevice::run(member, active.write(identity));
    }
    let (superblock, _) = ArraySuperblock::read(&mut members.0[0]).expect("it has one");
    let header = &mut members.0[3].0[..HEADER_BYTES];
    header[..8].copy_from_slice(b"DCDRJRNL");
    header[16..32].copy_from_slice(&superblock.uuid);
    header[32] = 1;
    for (byte, change) in header[12..].iter_mut().zip(data) {
        *byte ^= change;
    }
    header[8..12].fill(0);
    let crc = crc32c::crc32c(header);
    header[8..12].copy_from_slice(&crc.to_le_bytes());
    array::start(members);
});
