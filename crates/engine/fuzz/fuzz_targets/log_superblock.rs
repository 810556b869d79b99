//! A superblock of any bytes, with a checksum that fits: it is refused, or is the same after it was written and read again.
//!
//! `cd crates/engine && cargo +nightly fuzz run log_superblock -- -max_len=8192 -max_total_time=60`

#![no_main]

use dcd_engine::log_cache::format::{
    LogSuperblock, SUPERBLOCK_AREA_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_MAGIC,
};
use libfuzzer_sys::fuzz_target;
use zerocopy::IntoBytes;

fuzz_target!(|data: &[u8]| {
    let mut area = data.to_vec();
    area.resize(SUPERBLOCK_AREA_BYTES, 0);
    area[..8].copy_from_slice(&SUPERBLOCK_MAGIC);
    area[12..16].fill(0);
    let crc = crc32c::crc32c(&area[..SUPERBLOCK_BYTES]);
    area[12..16].copy_from_slice(&crc.to_le_bytes());
    if let Ok(superblock) = LogSuperblock::decode(&area) {
        let again = LogSuperblock::decode(superblock.encode().as_bytes()).expect("it was good");
        assert_eq!((again.durable_seq, again.segments), (superblock.durable_seq, superblock.segments));
        assert_eq!(again.fingerprint, superblock.fingerprint);
    }
});
