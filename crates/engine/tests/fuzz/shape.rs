//! The log that records and summaries are read for.

use dcd_engine::log_cache::fingerprint::Fingerprint;
use dcd_engine::log_cache::format::{
    Entry, EntryKind, FIRST_SEGMENT_SECTOR, Header, LogState, LogSuperblock,
};
use dcd_engine::log_cache::spindle::Spindle;
use dcd_engine::{Extent, Lba};

/// Four segments of 16 KiB, in blocks of 512 bytes, before a data disk of 2 MiB.
pub fn superblock() -> LogSuperblock {
    let (segments, segment_bytes) = (4, 16 << 10);
    LogSuperblock {
        state: LogState::Active,
        generation: 1,
        cache_uuid: *b"cache of a test!",
        data_uuid: *b"disk of the test",
        log_sectors: FIRST_SEGMENT_SECTOR + u64::from(segments * segment_bytes) / 512,
        data_sectors: 1 << 12,
        other_disks: Vec::new(),
        segment_bytes,
        segments,
        log_block_bytes: 512,
        epoch: 1,
        epoch_start_seq: 1,
        tail_seq: 1,
        tail_sector: FIRST_SEGMENT_SECTOR,
        durable_seq: 1,
        flush_epoch: 0,
        live_seq: 1,
        live_sector: 0,
        summaries_epoch: 1,
        fingerprint: Fingerprint::default(),
        calibration: None,
        spindle: Spindle::default(),
        kept_seq: 0,
        machine: 0,
        memory: None,
    }
}

/// A record of two writes with a payload of three sectors.
pub fn header(seq: u64, sector: u64) -> Header {
    let entry =
        |lba, sectors| Entry { kind: EntryKind::Data, extent: Extent::new(Lba(lba), sectors), crc: 7 };
    Header {
        epoch: 1,
        seq,
        sector,
        oldest_live_seq: 2,
        durable_seq: 3,
        flush_epoch: 0,
        sectors: 4,
        continues: false,
        entries: [entry(8, 1), entry(100, 2)].into_iter().collect(),
    }
}

/// Asserts what recovery relies on in a header that was read.
pub fn holds_together(header: &Header, superblock: &LogSuperblock, end: u64) {
    assert!(header.sector + u64::from(header.sectors) <= end);
    assert!(header.entries.iter().all(|entry| entry.extent.end().0 <= superblock.data_sectors));
    assert!(header.seq.checked_add(1).is_some() && header.epoch.checked_add(1).is_some());
}
