//! A record header of any bytes, with the cache's identifier and a checksum that fits: it is refused, or lies within its segment and the
//! data disk, and is the same after it was written and read again.
//!
//! `cd crates/engine && cargo +nightly fuzz run log_record -- -max_len=512 -max_total_time=60`

#![no_main]

mod shape;

use dcd_engine::log_cache::format::{FIRST_SEGMENT_SECTOR, RECORD_MAGIC, decode_header, encode_header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let superblock = shape::superblock();
    let mut block = data.to_vec();
    block.resize(512, 0);
    block[..4].copy_from_slice(&RECORD_MAGIC);
    block[4..6].copy_from_slice(&1_u16.to_le_bytes());
    block[16..32].copy_from_slice(&superblock.cache_uuid);
    block[48..56].copy_from_slice(&FIRST_SEGMENT_SECTOR.to_le_bytes());
    block[8..12].fill(0);
    let crc = crc32c::crc32c(&block);
    block[8..12].copy_from_slice(&crc.to_le_bytes());
    let Some(header) = decode_header(&block, &superblock, FIRST_SEGMENT_SECTOR) else { return };
    let end = superblock.segment_start(1);
    assert!(header.sector + u64::from(header.sectors) <= end);
    assert!(header.entries.iter().all(|entry| entry.extent.end().0 <= superblock.data_sectors));
    assert!(header.seq.checked_add(1).is_some() && header.epoch.checked_add(1).is_some());
    let mut again = vec![0; 512];
    encode_header(&mut again, superblock.cache_uuid, &header);
    assert_eq!(decode_header(&again, &superblock, FIRST_SEGMENT_SECTOR), Some(header));
});
