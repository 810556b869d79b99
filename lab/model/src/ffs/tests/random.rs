//! Random programs, several at once, with the fsck as they go: nothing is owned twice, nothing is lost.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

pub(super) struct Character {
    pub processes: usize,
    pub calls: usize,
    pub check_every: usize,
}

/// A program that makes calls that mostly succeed.
struct Wild {
    rng: ChaCha8Rng,
    open: Vec<Ino>,
    opening: bool,
}

impl Wild {
    fn path(&mut self) -> String {
        let directory = ["", "/a", "/b", "/a/c"][self.rng.random_range(0..4)];
        format!(
            "{directory}/{}",
            ["a", "b", "c"]
                .get(self.rng.random_range(0..40))
                .map_or_else(|| format!("file{}", self.rng.random_range(0..60)), |name| (*name).to_owned(),)
        )
    }

    fn next(&mut self) -> Op {
        let path = self.path();
        let file = (!self.open.is_empty()).then(|| self.open[self.rng.random_range(0..self.open.len())]);
        let bytes = [100, 1024, 5000, 8192, 30_000, 150_000][self.rng.random_range(0..6)];
        if self.open.len() > 4 {
            let file = self.open.swap_remove(0);
            return Op::Close { file };
        }
        match (self.rng.random_range(0..16), file) {
            (0..=3, _) => Op::Create { path },
            (4, _) => Op::Open { path },
            (5 | 6, Some(file)) => Op::Append { file, bytes },
            (7, Some(file)) => Op::Read { file, offset: bytes / 3, bytes },
            (8, Some(file)) => Op::Write { file, offset: bytes * 2, bytes },
            (9, Some(file)) if self.rng.random_bool(0.2) => Op::Fsync { file },
            (5..=10, _) => Op::Unlink { path },
            (11, _) => Op::Rename { from: path, to: self.path() },
            (12, _) => Op::Mkdir { path: ["/a", "/b", "/a/c", "/c"][self.rng.random_range(0..4)].into() },
            (13, _) => Op::Rmdir { path },
            (14, _) if self.rng.random_bool(0.3) => Op::Sync,
            (14, _) => Op::Readdir { path: "/".into() },
            _ => Op::Think { time: Nanos::from_secs(self.rng.random_range(0..8)) },
        }
    }
}

pub(super) fn drive(bench: &mut Bench, seed: u64, character: Character) {
    let mut programs: Vec<Wild> = (0..character.processes as u64)
        .map(|number| Wild {
            rng: ChaCha8Rng::seed_from_u64(seed * 1000 + number),
            open: Vec::new(),
            opening: false,
        })
        .collect();
    let mut left = character.calls;
    let mut under_way = 0;
    let mut returns: Vec<Return> = (0..character.processes as u32)
        .map(|process| Return { process: ProcessId(process), op: Op::Sync, result: Ok(Done::Nothing) })
        .collect();
    under_way += returns.len();
    while under_way > 0 {
        for Return { process, result, .. } in std::mem::take(&mut returns) {
            let program = &mut programs[process.0 as usize];
            if let (true, Ok(Done::Opened(file))) = (program.opening, result) {
                program.open.push(file);
            }
            if left == 0 {
                under_way -= 1;
                continue;
            }
            left -= 1;
            let op = program.next();
            program.opening = matches!(op, Op::Create { .. } | Op::Open { .. });
            returns.extend(bench.start(process.0, op));
        }
        if returns.is_empty() && under_way > 0 {
            returns.extend(bench.step());
        }
        if left.is_multiple_of(character.check_every) {
            bench.ffs.check();
        }
    }
    bench.ffs.check();
}

#[test]
fn one_program_keeps_the_file_system_whole_after_every_call() {
    for seed in 0..6 {
        let mut bench = Bench::new(small(), 8 * MIB);
        drive(&mut bench, seed, Character { processes: 1, calls: 250, check_every: 1 });
    }
}

#[test]
fn six_programs_at_once_keep_it_whole() {
    for seed in 0..6 {
        let mut bench = Bench::new(small(), 8 * MIB);
        drive(&mut bench, 100 + seed, Character { processes: 6, calls: 600, check_every: 20 });
    }
}

/// With room for four clusters only, every call has to make room, and waits for it.
#[test]
fn a_tiny_buffer_cache_only_makes_it_slow() {
    let config = FfsConfig { buffer_cache_bytes: 256 << 10, ..small() };
    for seed in 0..4 {
        let mut bench = Bench::new(config, 8 * MIB);
        drive(&mut bench, 200 + seed, Character { processes: 5, calls: 400, check_every: 20 });
    }
}

#[test]
fn so_does_little_memory_for_metadata() {
    let config =
        FfsConfig { buffer_cache_bytes: 256 << 10, metadata_cache_bytes: Some(128 << 10), ..small() };
    for seed in 0..4 {
        let mut bench = Bench::new(config, 32 * MIB);
        drive(&mut bench, 300 + seed, Character { processes: 5, calls: 400, check_every: 20 });
    }
}

#[test]
fn the_same_calls_give_the_same_requests() {
    let log = |seed| {
        let mut bench = Bench::new(small(), 8 * MIB);
        drive(&mut bench, seed, Character { processes: 3, calls: 200, check_every: 100 });
        (bench.now, bench.take_log())
    };
    assert_eq!(log(1), log(1));
    assert_ne!(log(1).1, log(2).1);
}
