//! Logs as this version and earlier ones write them, kept in `golden/`: every later version must read them, or refuse them by name.
//! They hold all kinds of entries and the records of two activations, the second one after a crash.
//!
//! The bytes that are written may only change on purpose: together with the format's version, or where earlier versions do not look.
//! Then this test fails; name a new image, write it beside the old ones with `DCD_WRITE_GOLDEN=1 cargo test -p dcd-engine --lib golden`, and go on reading the old.

use std::path::PathBuf;

use crate::log_tests::rig::{Ram, Rig};
use dcd_engine::log_cache::LogCacheConfig;
use dcd_engine::log_cache::offline::{FormatOptions, check, format};
use dcd_engine::*;

const SEGMENT_BYTES: u32 = 16 << 10;
const DATA_BYTES: u64 = 4 << 20;
/// A write of this size bypasses the log.
const BYPASS_SECTORS: u64 = 128;
const LOG_BLOCKS: [u32; 2] = [512, 4096];

/// Superblocks, and enough segments for all that is written.
fn log_bytes(log_block_bytes: u32) -> u64 {
    (16 << 10) + u64::from(SEGMENT_BYTES) * if log_block_bytes == 512 { 4 } else { 8 }
}

fn config() -> LogCacheConfig {
    LogCacheConfig {
        bypass_bytes: BYPASS_SECTORS * SECTOR_BYTES,
        // Longer than anything takes here: only a client that rests lets it destage.
        idle_empty: Nanos::from_secs(10),
        idle_full: Nanos::from_secs(10),
        // A golden image has what earlier programs left there.
        discard_freed: false,
        ..LogCacheConfig::default()
    }
}

/// A byte for each sector and each time it is written.
fn fill(sector: u64, version: u8) -> u8 {
    (sector as u8).wrapping_mul(31).wrapping_add(version.wrapping_mul(101)) | 1
}

fn filled(extent: Extent, version: u8) -> Vec<u8> {
    let sectors = extent.start.0..extent.end().0;
    sectors.flat_map(|sector| [fill(sector, version); SECTOR_BYTES as usize]).collect()
}

fn before() -> Vec<u8> {
    filled(Extent::new(Lba(0), DATA_BYTES / SECTOR_BYTES), 0)
}

/// Operations of a client, on a cache or on a byte array with the expected content.
trait Disk {
    fn write(&mut self, start: u64, sectors: u64, version: u8, durability: Durability);
    fn zero(&mut self, start: u64, sectors: u64, discard: bool);
    fn flush(&mut self);
}

impl Disk for Rig {
    fn write(&mut self, start: u64, sectors: u64, version: u8, durability: Durability) {
        let buf = Buf::copy_of(&filled(Extent::new(Lba(start), sectors), version));
        self.ask(Io::Write { at: Lba(start), buf, durability }).status.expect("written");
    }

    fn zero(&mut self, start: u64, sectors: u64, discard: bool) {
        let extent = Extent::new(Lba(start), sectors);
        let zeroes =
            Io::WriteZeroes { extent, unmap: start.is_multiple_of(16), durability: Durability::Volatile };
        self.ask(if discard { Io::Discard { extent } } else { zeroes }).status.expect("zeroed");
    }

    fn flush(&mut self) {
        self.ask(Io::Flush).status.expect("flushed");
    }
}

impl Disk for Vec<u8> {
    fn write(&mut self, start: u64, sectors: u64, version: u8, _: Durability) {
        let extent = Extent::new(Lba(start), sectors);
        self[Lba(start).bytes() as usize..extent.end().bytes() as usize]
            .copy_from_slice(&filled(extent, version));
    }

    fn zero(&mut self, start: u64, sectors: u64, _: bool) {
        self[Lba(start).bytes() as usize..Lba(start + sectors).bytes() as usize].fill(0);
    }

    fn flush(&mut self) {}
}

use Durability::{Durable, Volatile};

/// Writes data that is destaged before anything else is written.
fn first(disk: &mut dyn Disk) {
    disk.write(0x800, 8, 1, Volatile);
    disk.write(0x828, 2, 1, Volatile);
    disk.flush();
}

/// A large write bypasses the log, which then says that its copies of the same place are stale; a small one stays in it.
fn bypass(disk: &mut dyn Disk) {
    disk.write(0x8f0, 8, 2, Volatile);
    disk.write(0x800, BYPASS_SECTORS, 2, Volatile);
    disk.flush();
}

fn second(disk: &mut dyn Disk) {
    disk.write(0x900, 8, 3, Volatile);
    disk.write(0x903, 2, 4, Volatile);
    disk.zero(0x910, 9, true);
    disk.zero(0x920, 16, false);
    disk.zero(0x938, 4, false);
    disk.flush();
    disk.write(0x912, 1, 5, Durable);
}

/// After a crash.
fn third(disk: &mut dyn Disk) {
    disk.write(0x900, 1, 6, Volatile);
    disk.write(0xa00, 8, 6, Volatile);
    disk.flush();
}

/// The log and the data disk after all of it and one more crash.
fn written(log_block_bytes: u32) -> [Ram; 2] {
    let options = FormatOptions {
        segment_bytes: Some(SEGMENT_BYTES),
        log_block_bytes: Some(log_block_bytes),
        ..FormatOptions::new(*b"a golden cache..", *b"its data disk...")
    };
    let [mut log, mut data] = [Ram::new(log_bytes(log_block_bytes)), Ram::of(before())];
    format(&mut log, &mut data, &options).expect("formatted");
    let mut rig = Rig::start(config(), [log, data]);
    first(&mut rig);
    rig.rest();
    bypass(&mut rig);
    second(&mut rig);
    let mut rig = Rig::start(config(), rig.crash());
    third(&mut rig);
    rig.crash()
}

/// The images, oldest first: before superblocks had lines between the ends of the data disk, before segments had summaries, and now.
const IMAGES: [&str; 4] = ["format-1", "format-1-samples", "format-2", "format-3"];

fn golden(image: &str, log_block_bytes: u32) -> PathBuf {
    let name = format!("tests/golden/{image}-blocks-of-{log_block_bytes}.log");
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read_golden(image: &str, log_block_bytes: u32) -> Vec<u8> {
    let path = golden(image, log_block_bytes);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The data disk as the golden log found it, and the disk that client sees.
fn home_and_seen() -> (Vec<u8>, Vec<u8>) {
    let mut home = before();
    first(&mut home);
    let mut seen = home.clone();
    bypass(&mut seen);
    home.write(0x800, BYPASS_SECTORS, 2, Volatile);
    second(&mut seen);
    third(&mut seen);
    (home, seen)
}

#[test]
fn logs_of_both_formats_are_read() {
    let (home, seen) = home_and_seen();
    for (image, log_block_bytes) in IMAGES.iter().flat_map(|image| LOG_BLOCKS.map(|block| (image, block))) {
        let (mut log, mut data) = (Ram::of(read_golden(image, log_block_bytes)), Ram::of(home.clone()));
        let report = check(&mut log, Some(&mut data), &mut |_| {}).expect("it is a log");
        assert!(report.is_ok(), "{image}, log blocks of {log_block_bytes}: {report:?}");
        let mut rig = Rig::start(config(), [log, data]);
        let buf = Buf::zeroed(seen.len());
        let read = rig.ask(Io::Read { at: Lba(0), buf });
        read.status.expect("it is read");
        let wrong =
            read.buf.bytes().chunks(512).zip(seen.chunks(512)).position(|(found, wanted)| found != wanted);
        assert_eq!(wrong, None, "the first sector that is not as it was written");
    }
}

#[test]
fn logs_are_written_as_format_3_says() {
    let newest = IMAGES[IMAGES.len() - 1];
    for log_block_bytes in LOG_BLOCKS {
        let [log, data] = written(log_block_bytes);
        assert!(data.bytes() == home_and_seen().0, "only what was meant to is on the data disk");
        if std::env::var_os("DCD_WRITE_GOLDEN").is_some() {
            std::fs::write(golden(newest, log_block_bytes), log.bytes())
                .expect("the golden image is written");
        }
        let golden = read_golden(newest, log_block_bytes);
        let differs = golden.iter().zip(log.bytes()).position(|(old, new)| old != new);
        assert_eq!(differs, None, "the first byte that differs, log blocks of {log_block_bytes}");
        assert_eq!(golden.len(), log.bytes().len());
    }
}
