//! A summary of any bytes, with the cache's identifier and checksums that fit: it is refused, or its headers lie within their segment and the
//! data disk.
//!
//! `cd crates/engine && cargo +nightly fuzz run log_summary -- -max_len=2048 -max_total_time=60`

#![no_main]

mod shape;

use dcd_engine::log_cache::summary::{SUMMARY_FIXED_BYTES, SUMMARY_MAGIC, Summary, bytes_max};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let superblock = shape::superblock();
    let (segment, sector) = (0, superblock.segment_start(1));
    let mut bytes = data.to_vec();
    bytes.resize(bytes_max(&superblock), 0);
    bytes[..4].copy_from_slice(&SUMMARY_MAGIC);
    bytes[4..6].copy_from_slice(&1_u16.to_le_bytes());
    bytes[24..40].copy_from_slice(&superblock.cache_uuid);
    bytes[48..56].copy_from_slice(&sector.to_le_bytes());
    let body_bytes = u32::from_le_bytes(bytes[16..20].try_into().expect("four bytes")) as usize;
    if let Some(body) = bytes.get(SUMMARY_FIXED_BYTES..SUMMARY_FIXED_BYTES.saturating_add(body_bytes)) {
        let crc = crc32c::crc32c(body);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    bytes[8..12].fill(0);
    let crc = crc32c::crc32c(&bytes[..SUMMARY_FIXED_BYTES]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    let Some(summary) = Summary::decode(&bytes, &superblock, segment, sector) else { return };
    for header in summary.headers(&bytes, &superblock).into_iter().flatten() {
        assert!(header.sector + u64::from(header.sectors) <= superblock.segment_start(1));
        assert!(header.entries.iter().all(|entry| entry.extent.end().0 <= superblock.data_sectors));
        assert!(header.seq.checked_add(1).is_some() && header.epoch.checked_add(1).is_some());
    }
});
