//! Superblocks of any numbers on all members of an array, with checksums that fit: the array starts, or is refused.
//!
//! `cd crates/engine && cargo +nightly fuzz run array_superblock -- -max_len=8192 -max_total_time=60`

#![no_main]

mod array;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut members = array::made();
    for member in &mut members.0[..3] {
        // What is given goes over what the array has, behind the magic, the version and the checksum.
        let block = &mut member.0[..8192];
        for (byte, change) in block[16..].iter_mut().zip(data) {
            *byte ^= change;
        }
        block[12..16].fill(0);
        let crc = crc32c::crc32c(block);
        block[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    array::start(members);
});
