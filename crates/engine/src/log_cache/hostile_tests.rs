//! A log device may be anybody's. Whatever the numbers in superblocks, record headers and summaries are, with checksums that fit, a start, a
//! check, a dump and a rescue end in bounded time, and none panics.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::LogCacheConfig;
use super::format::{
    HEADER_FIXED_BYTES, RECORD_MAGIC, SUPERBLOCK_AREA_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_SECTORS,
};
use super::offline::{DumpFilter, RescueOptions, check, dump, rescue};
use super::summary::{SUMMARY_FIXED_BYTES, SUMMARY_MAGIC};
use super::testing_steps::{Disks, Steps, quiet};
use crate::layer::{Durability, Io};
use crate::{Extent, Lba};

/// A log with records, discards, copies of destaged blocks and summaries.
fn image() -> Disks {
    let mut steps = Steps::new(8, quiet());
    for i in 0..40 {
        steps.write_as(i * 16, 8, 1, Durability::Durable);
        if i % 8 == 0 {
            steps.send(Io::Discard { extent: Extent::new(Lba(i * 16 + 8), 4) });
        }
        if i == 20 {
            steps.drain();
        }
    }
    steps.disks
}

/// Changes some bytes of a block, to random ones, by a bit, or to the limits of a number.
fn mutate(random: &mut ChaCha8Rng, block: &mut [u8]) {
    for _ in 0..random.random_range(1..4) {
        let at = random.random_range(0..block.len());
        let count = [1, 2, 4, 8][random.random_range(0..4)].min(block.len() - at);
        let bytes = &mut block[at..at + count];
        match random.random_range(0..4) {
            0 => bytes[0] ^= 1 << random.random_range(0..8),
            1 => bytes.fill_with(|| random.random()),
            2 => bytes.fill(0xff),
            _ => bytes.fill(0),
        }
    }
}

/// Returns the offsets of the log's blocks that begin with these bytes.
fn blocks_with(disks: &Disks, magic: [u8; 4]) -> Vec<usize> {
    let bytes = &disks.0[0].bytes;
    (0..bytes.len() / 512).map(|sector| sector * 512).filter(|&at| bytes[at..at + 4] == magic).collect()
}

/// Everything that reads a log.
fn read(disks: &Disks) -> bool {
    for accept_damage in [false, true] {
        // A start takes this memory at once.
        let config = LogCacheConfig { accept_damage, destage_memory: 64 << 10, destage_depth: 2, ..quiet() };
        if let Ok(mut steps) = Steps::start(disks.clone(), config) {
            steps.write(24, 8, 2);
            steps.drain();
        }
    }
    let [mut log, mut data] = disks.clone().two();
    let is_good = check(&mut log, Some(&mut data), &mut |_| {}).is_ok_and(|report| report.is_ok());
    let _ = dump(&mut log, &DumpFilter::default(), &mut |_| {});
    for force in [false, true] {
        let [mut log, mut data] = disks.clone().two();
        let options = RescueOptions { force, over_newer: force, ..RescueOptions::default() };
        let _ = rescue(&mut log, &mut data, options, &mut |_| {});
    }
    is_good
}

#[test]
fn superblocks_of_any_numbers_are_read_or_refused() {
    let image = image();
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut good = 0;
    for round in 0..100 {
        let mut disks = image.clone();
        for copy in SUPERBLOCK_SECTORS {
            let area = &mut disks.0[0].bytes[copy.bytes() as usize..][..SUPERBLOCK_AREA_BYTES];
            // The fields; the fingerprint, the sums of samples and what was measured of the disk; and both.
            let part = [16..208, 208..SUPERBLOCK_BYTES, 16..SUPERBLOCK_BYTES][round % 3].clone();
            mutate(&mut random, &mut area[part]);
            area[12..16].fill(0);
            let crc = crc32c::crc32c(&area[..SUPERBLOCK_BYTES]);
            area[12..16].copy_from_slice(&crc.to_le_bytes());
        }
        good += usize::from(read(&disks));
    }
    assert!((1..100).contains(&good), "{good} are good");
}

/// (A record that named the last sequence number of all was one after which there is no next: a start that accepted damage panicked.)
#[test]
fn record_headers_of_any_numbers_are_read_or_refused() {
    let image = image();
    let headers = blocks_with(&image, RECORD_MAGIC);
    assert!(headers.len() > 20);
    let mut random = ChaCha8Rng::seed_from_u64(2);
    for round in 0..150 {
        let mut disks = image.clone();
        for _ in 0..random.random_range(1..4) {
            let at = headers[random.random_range(0..headers.len())];
            let block = &mut disks.0[0].bytes[at..at + 512];
            // Numbers, entries, and single numbers at their limits.
            match round % 3 {
                0 => mutate(&mut random, &mut block[32..HEADER_FIXED_BYTES]),
                1 => mutate(&mut random, &mut block[12..HEADER_FIXED_BYTES + 64]),
                _ => {
                    let field = 32 + 8 * [0, 1, 3, 4, 5][random.random_range(0..5)];
                    let number = u64::MAX - random.random_range(0..3);
                    block[field..field + 8].copy_from_slice(&number.to_le_bytes());
                }
            }
            block[8..12].fill(0);
            let crc = crc32c::crc32c(block);
            block[8..12].copy_from_slice(&crc.to_le_bytes());
        }
        read(&disks);
    }
}

#[test]
fn summaries_of_any_numbers_are_believed_or_not() {
    let image = image();
    let summaries = blocks_with(&image, SUMMARY_MAGIC);
    assert!(!summaries.is_empty());
    let mut random = ChaCha8Rng::seed_from_u64(3);
    for _ in 0..80 {
        let mut disks = image.clone();
        let at = summaries[random.random_range(0..summaries.len())];
        let log = &mut disks.0[0].bytes;
        mutate(&mut random, &mut log[at + 8..at + SUMMARY_FIXED_BYTES + 100]);
        let body_bytes = u32::from_le_bytes(log[at + 16..at + 20].try_into().unwrap()) as usize;
        let body = at + SUMMARY_FIXED_BYTES..(at + SUMMARY_FIXED_BYTES).saturating_add(body_bytes);
        if let Some(body) = log.get(body) {
            let crc = crc32c::crc32c(body);
            log[at + 12..at + 16].copy_from_slice(&crc.to_le_bytes());
        }
        log[at + 8..at + 12].fill(0);
        let crc = crc32c::crc32c(&log[at..at + SUMMARY_FIXED_BYTES]);
        log[at + 8..at + 12].copy_from_slice(&crc.to_le_bytes());
        read(&disks);
    }
}
