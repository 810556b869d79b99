//! `dcd calibrate --store` on the log of a server that was killed, and a power cut at any point of it: a superblock is left, and
//! none that is older than the one that was durable before.

use dcd_crash::{CutStyle, Latency, MemDisk, SimRng};
use dcd_engine::log_cache::LogError;
use dcd_engine::log_cache::format::{LogState, LogSuperblock};
use dcd_engine::log_cache::offline::{
    FormatOptions, format, read_superblock, store_calibration, write_superblock,
};
use dcd_engine::log_cache::{Contiguity, Strides};
use dcd_engine::{BlockDevice, Buf, ErrorKind, Geometry, Io, IoError, IoResult};

/// A disk whose power goes after so many writes and flushes.
struct Cut<'a> {
    disk: &'a mut MemDisk,
    left: u64,
}

impl BlockDevice for Cut<'_> {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn run(&mut self, io: Io) -> IoResult {
        if !matches!(io, Io::Read { .. }) {
            if self.left == 0 {
                return IoResult::err(io.take_buf(), IoError::new(ErrorKind::PowerCut));
            }
            self.left -= 1;
        }
        self.disk.run(io)
    }
}

/// A server that is killed before its flush.
struct Unflushed<'a>(&'a mut MemDisk);

impl BlockDevice for Unflushed<'_> {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn run(&mut self, io: Io) -> IoResult {
        if matches!(io, Io::Flush) { IoResult::ok(Buf::none()) } else { self.0.run(io) }
    }
}

fn disk(sectors: u64, seed: u64) -> MemDisk {
    MemDisk::new(Geometry::plain(sectors), Latency::INSTANT, seed)
}

/// A log as a killed server leaves it: its newest superblock has been written, and not flushed.
fn killed(seed: u64) -> (MemDisk, LogSuperblock, LogSuperblock) {
    let (mut log, mut data) = (disk(32 + 4 * 32, seed), disk(4096, seed));
    let options = FormatOptions { segment_bytes: Some(16 << 10), ..FormatOptions::new([1; 16], [2; 16]) };
    let mut durable = format(&mut log, &mut data, &options).expect("it is formatted");
    durable.state = LogState::Active;
    write_superblock(&mut log, &mut durable).expect("it is written");
    let mut newest = durable.clone();
    newest.epoch += 1;
    write_superblock(&mut Unflushed(&mut log), &mut newest).expect("it is written");
    let mut rng = SimRng::new(seed);
    (log.killed(&mut rng), durable, newest)
}

#[test]
fn a_cut_leaves_a_superblock_that_is_not_older_than_the_durable_one() {
    let calibration = Contiguity { read: Strides::up_to(4), write: Strides::up_to(9) };
    let mut stored = 0;
    for seed in 0..64 {
        for left in 0..=3 {
            let (mut log, durable, newest) = killed(seed);
            let done = store_calibration(&mut Cut { disk: &mut log, left }, &calibration).is_ok();
            for style in CutStyle::ALL {
                let mut found = log.power_cut(style, &mut SimRng::new(seed));
                let found: Result<LogSuperblock, LogError> = read_superblock(&mut found);
                let found = found.unwrap_or_else(|e| panic!("seed {seed}, {left} done, {style:?}: {e}"));
                let with = LogSuperblock {
                    calibration: Some(calibration.clone()),
                    generation: newest.generation + 1,
                    ..newest.clone()
                };
                let may = [&durable, &newest, &with];
                assert!(may.contains(&&found), "seed {seed}, {left} done, {style:?}: {}", found.generation);
                assert!(!done || found == with, "what was stored stays");
                stored += u64::from(found == with);
            }
        }
    }
    assert!(stored > 64 * CutStyle::ALL.len() as u64, "some cuts leave it");
}
