//! The five traces of Zhu and Hu (2003, Table 2), made anew: programs that read and write whole files with the table's
//! counts, bytes and sizes of files.
//!
//! What the table states is met: the number of reads and writes (divided by a stated scale), the bytes of each, and the
//! part of files up to 16 KB. What it does not state is chosen here, each for a reason:
//!
//! | what                   | from                                                                                       |
//! |------------------------|--------------------------------------------------------------------------------------------|
//! | programs               | the machines or people that section 3.2.1 counts                                           |
//! | think                  | INS: some 27 reads a second, the mean over its 31 days. WEB: 2300 accesses a day (3.2.1)   |
//! | files, skew (Zipf)     | misses of a buffer cache of 32 MB: below 15 %, WEB some 45 % (section 5.1.1)               |
//! | large_bytes, scattered | misses of the built-in cache: always over 90 % of requests, writes included (section 5.1.1) |
//! | row                    | INS reads many small files, and gains most from reading ahead (section 5.2)                |
//! | REPLACE_PER_MILLE      | the gains of write caching, one number for all traces (section 5.3)                        |
//!
//! These choices were made by hand, with the paper's gains in view. No gain has a parameter of its own; what a range of
//! section 5.1.1 left open was used so that reading ahead gains INS the most. [`Fit`] sets the table's numbers beside those
//! of the run.
//!
//! What a program does depends on the seed alone, and not on how fast it gets its answers, as in a trace that is played:
//! two disks are compared under the same calls.

use std::collections::VecDeque;

use dcd_engine::Nanos;
use dcd_model::ffs::{Done, Op};

use super::host::{Host, Program};
use super::steps::{OpenFiles, Step};
use super::{Measured, RunError};
use dcd_crash::{SimDevice, SimRng};

/// Profile of a trace. Bytes are in MB (10^6), calls in thousands, as in the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    pub name: &'static str,
    pub read_mb: f64,
    pub write_mb: f64,
    pub reads_thousand: f64,
    pub writes_thousand: f64,
    /// The part of files with at most 16 KB.
    pub small_files: f64,
    /// Calls of the trace for each call of the run.
    pub scale: f64,
    /// Programs that run at once: machines or people behind the trace.
    pub programs: u32,
    pub files: usize,
    /// The exponent of Zipf's law: 0 is even use.
    pub skew: f64,
    /// The mean size of the files above 16 KB.
    pub large_bytes: f64,
    /// The part of readings of a large file that go here and there in it, up to a part of it that is drawn evenly, as a
    /// database's do; the others read it in order, and all of it. Roselli et al. (2000, the source of three of the traces)
    /// found that files above some 20 KB are often read at random places.
    pub scattered: f64,
    /// Files of one directory that a program reads one after the other.
    pub row: usize,
    /// The mean time that a program waits before it goes on to the next files. The traces are of days and weeks with one to
    /// twenty people: what the update daemon finds dirty is little, and requests seldom meet. WEB had 2300 accesses a day.
    pub think: Nanos,
}

/// Thirteen desktops of a research group.
pub const RES: Profile = Profile {
    name: "RES",
    read_mb: 52_743.0,
    write_mb: 14_105.0,
    reads_thousand: 9_433.0,
    writes_thousand: 2_216.0,
    small_files: 0.60,
    scale: 60.0,
    programs: 13,
    files: 3_000,
    skew: 1.0,
    large_bytes: 28_000.0,
    scattered: 0.75,
    row: 1,
    think: Nanos::from_secs(10),
};

/// Twenty machines for undergraduate classes.
pub const INS: Profile = Profile {
    name: "INS",
    read_mb: 94_619.0,
    write_mb: 16_804.0,
    reads_thousand: 71_869.0,
    writes_thousand: 4_650.0,
    small_files: 0.88,
    scale: 150.0,
    programs: 20,
    files: 4_600,
    skew: 1.1,
    large_bytes: 26_000.0,
    scattered: 0.75,
    row: 3,
    think: Nanos::from_secs(30),
};

/// A web server with a database of images.
pub const WEB: Profile = Profile {
    name: "WEB",
    read_mb: 327_838.0,
    write_mb: 960.0,
    reads_thousand: 9_545.0,
    writes_thousand: 779.0,
    small_files: 0.63,
    scale: 150.0,
    programs: 4,
    files: 3_200,
    skew: 0.85,
    large_bytes: 280_000.0,
    scattered: 1.0,
    row: 1,
    think: Nanos::from_secs(150),
};

/// Two programmers on one workstation.
pub const HARP: Profile = Profile {
    name: "HARP",
    read_mb: 520.0,
    write_mb: 249.0,
    reads_thousand: 26.0,
    writes_thousand: 12.0,
    small_files: 0.73,
    scale: 1.0,
    programs: 2,
    files: 1_300,
    skew: 1.0,
    large_bytes: 150_000.0,
    scattered: 0.75,
    row: 1,
    think: Nanos::from_secs(10),
};

/// A workstation that many use from elsewhere.
pub const SITAR: Profile = Profile {
    name: "SITAR",
    read_mb: 213.0,
    write_mb: 183.0,
    reads_thousand: 57.0,
    writes_thousand: 49.0,
    small_files: 0.80,
    scale: 1.0,
    programs: 6,
    files: 5_000,
    skew: 0.9,
    large_bytes: 32_000.0,
    scattered: 0.75,
    row: 1,
    think: Nanos::from_secs(10),
};

pub const PROFILES: [Profile; 5] = [RES, INS, WEB, HARP, SITAR];

/// The bound of the table's column of small files.
const SMALL_BYTES: u64 = 16 << 10;
/// Files in one directory.
const DIRECTORY_FILES: usize = 25;
/// Number of writings of a file in a thousand that put a new one in its place; the others write over it. A call waits for the
/// making of a file, so this decides what write caching can gain. With this number the mean over the four traces that gain is
/// about the paper's.
const REPLACE_PER_MILLE: u64 = 120;

/// A number of the table (divided by the scale) and what the run has instead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    pub what: &'static str,
    pub table: f64,
    pub run: f64,
}

/// A trace to run, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Synthetic {
    pub profile: Profile,
}

struct Population {
    bytes: Vec<u64>,
    /// Cumulative popularity, up to 1.
    popularity: Vec<f64>,
}

impl Population {
    /// Sizes follow the ranks by the golden ratio, so that small and large files are mixed evenly among the popular ones too:
    /// drawn at random, the sizes of the first few would decide what the trace moves.
    fn new(profile: &Profile) -> Population {
        const GOLDEN: f64 = 0.618_033_988_749_894_9;
        let small = profile.small_files;
        let size = |rank: usize| {
            let part = ((rank + 1) as f64 * GOLDEN).fract();
            if part < small {
                // Even on a logarithmic scale, from 256 bytes up to the bound.
                (256.0 * (SMALL_BYTES as f64 / 256.0).powf(part / small)) as u64
            } else {
                // Exponential, from the bound on.
                let above = -(1.0 - (part - small) / (1.0 - small)).ln();
                SMALL_BYTES + 1 + (above * (profile.large_bytes - SMALL_BYTES as f64)) as u64
            }
        };
        let bytes = (0..profile.files).map(size).collect();
        let weights: Vec<f64> = (1..=profile.files).map(|rank| (rank as f64).powf(-profile.skew)).collect();
        let sum: f64 = weights.iter().sum();
        let mut total = 0.0;
        let popularity = weights
            .iter()
            .map(|weight| {
                total += weight / sum;
                total
            })
            .collect();
        Population { bytes, popularity }
    }

    fn pick(&self, rng: &mut SimRng) -> usize {
        let point = rng.unit();
        self.popularity.partition_point(|sum| *sum <= point).min(self.bytes.len() - 1)
    }

    /// The size of a call that gives this mean, over files as often as they are used: whole ones, but for the part of large
    /// ones that is `scattered`, of which half is moved in the mean. Where files are too small for it, whole files are the
    /// most there can be.
    fn call_bytes(&self, mean: f64, scattered: f64) -> u64 {
        let mean_of = |call: u64| {
            let (mut bytes, mut calls, mut before) = (0.0, 0.0, 0.0);
            for (size, sum) in self.bytes.iter().zip(&self.popularity) {
                let all = size.div_ceil(call) as f64;
                let here_and_there = if *size > SMALL_BYTES { scattered } else { 0.0 };
                let moved = 1.0 - here_and_there + here_and_there * (all + 1.0) / (2.0 * all);
                let weight = (sum - before) * moved;
                before = *sum;
                bytes += weight * *size as f64;
                calls += weight * all;
            }
            bytes / calls
        };
        let (mut low, mut high) = (64u64, 16 << 20);
        while low + 1 < high {
            let middle = (low + high) / 2;
            if mean_of(middle) < mean { low = middle } else { high = middle }
        }
        high
    }
}

/// Calls that a program has left, and bytes that it has moved.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    reads: u64,
    writes: u64,
    reads_left: u64,
    writes_left: u64,
    read_bytes: u64,
    write_bytes: u64,
}

impl Share {
    /// The share of one of several programs; what does not divide goes to the first ones.
    fn of(reads: u64, writes: u64, programs: u64, index: u64) -> Share {
        let part = |all: u64| all / programs + u64::from(index < all % programs);
        let (reads, writes) = (part(reads), part(writes));
        Share { reads, writes, reads_left: reads, writes_left: writes, ..Share::default() }
    }

    fn add(&mut self, other: &Share) {
        self.reads += other.reads - other.reads_left;
        self.writes += other.writes - other.writes_left;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
    }
}

impl Synthetic {
    /// The phase with the trace's name.
    pub(super) fn run<D: SimDevice>(&self, host: &mut Host<D>, seed: u64) -> Result<Measured, RunError> {
        let profile = &self.profile;
        let mut rng = SimRng::new(seed);
        let population = Population::new(profile);
        for directory in 0..profile.files.div_ceil(DIRECTORY_FILES) {
            host.set_up(Op::Mkdir { path: format!("/d{directory}") })?;
        }
        for (file, bytes) in population.bytes.iter().enumerate() {
            host.set_up_file(&path(file), *bytes)?;
        }
        let reads = (profile.reads_thousand * 1000.0 / profile.scale) as u64;
        let writes = (profile.writes_thousand * 1000.0 / profile.scale) as u64;
        let sizes = CallSizes {
            read: population.call_bytes(profile.read_mb * 1000.0 / profile.reads_thousand, profile.scattered),
            write: population.call_bytes(profile.write_mb * 1000.0 / profile.writes_thousand, 0.0),
        };
        let programs = u64::from(profile.programs);
        let mut people: Vec<Person> = (0..programs)
            .map(|index| Person {
                profile,
                population: &population,
                share: Share::of(reads, writes, programs, index),
                sizes,
                rng: rng.fork(),
                steps: VecDeque::new(),
                open: OpenFiles::NONE,
            })
            .collect();
        let mut programs: Vec<&mut dyn Program> = people.iter_mut().map(|person| person as _).collect();
        host.phase(profile.name, &mut programs)?;
        let mut done = Share::default();
        people.iter().for_each(|person| done.add(&person.share));
        let mut measured = host.take_measured();
        measured.fit = self.fit(&done, &population);
        Ok(measured)
    }

    fn fit(&self, done: &Share, population: &Population) -> Vec<Fit> {
        let Profile { scale, .. } = self.profile;
        let small = population.bytes.iter().filter(|bytes| **bytes <= SMALL_BYTES).count();
        let row = |what, table: f64, run: f64| Fit { what, table, run };
        vec![
            row("reads, thousands", self.profile.reads_thousand / scale, done.reads as f64 / 1e3),
            row("writes, thousands", self.profile.writes_thousand / scale, done.writes as f64 / 1e3),
            row("data read, MB", self.profile.read_mb / scale, done.read_bytes as f64 / 1e6),
            row("data written, MB", self.profile.write_mb / scale, done.write_bytes as f64 / 1e6),
            row(
                "read:write, bytes",
                self.profile.read_mb / self.profile.write_mb,
                done.read_bytes as f64 / done.write_bytes.max(1) as f64,
            ),
            row(
                "files up to 16 KB, %",
                self.profile.small_files * 100.0,
                small as f64 * 100.0 / population.bytes.len() as f64,
            ),
        ]
    }
}

fn path(file: usize) -> String {
    format!("/d{}/f{file}", file / DIRECTORY_FILES)
}

#[derive(Clone, Copy)]
struct CallSizes {
    read: u64,
    write: u64,
}

/// A program: thinks, opens a file, reads or writes all of it in order, closes it.
struct Person<'a> {
    profile: &'a Profile,
    population: &'a Population,
    share: Share,
    sizes: CallSizes,
    rng: SimRng,
    steps: VecDeque<Step>,
    open: OpenFiles,
}

impl Person<'_> {
    /// Whichever of reading and writing is further behind; none when the trace is over.
    fn plan(&mut self) -> Option<()> {
        let Share { reads, writes, reads_left, writes_left, .. } = self.share;
        if reads_left == 0 && writes_left == 0 {
            return None;
        }
        let reads_next = u128::from(reads_left) * u128::from(writes.max(1))
            >= u128::from(writes_left) * u128::from(reads.max(1));
        let file = self.population.pick(&mut self.rng);
        let think = Nanos((self.rng.exponential() * self.profile.think.0 as f64) as u64);
        self.steps.push_back(Step::Plain(Op::Think { time: think }));
        if reads_next {
            let directory_end = (file / DIRECTORY_FILES + 1) * DIRECTORY_FILES;
            let end = (file + self.profile.row).min(directory_end).min(self.population.bytes.len());
            (file..end).for_each(|file| self.read(file));
        } else {
            self.write(file);
        }
        Some(())
    }

    fn read(&mut self, file: usize) {
        let (size, piece) = (self.population.bytes[file], self.sizes.read);
        let calls = size.div_ceil(piece);
        let scattered = size > SMALL_BYTES && self.rng.unit() < self.profile.scattered;
        // A program that reads here and there does not read all of it.
        let wanted = if scattered { self.rng.range(1, calls) } else { calls };
        let count = wanted.min(self.share.reads_left);
        self.steps.push_back(Step::open(0, path(file)));
        for call in 0..count {
            let call = if scattered { self.rng.below(calls) } else { call };
            let (offset, bytes) = (call * piece, piece.min(size - call * piece));
            self.steps.push_back(Step::Read { slot: 0, offset, bytes });
            self.share.read_bytes += bytes;
        }
        self.steps.push_back(Step::Close { slot: 0 });
        self.share.reads_left -= count;
    }

    fn write(&mut self, file: usize) {
        let (size, piece) = (self.population.bytes[file], self.sizes.write);
        let count = size.div_ceil(piece).min(self.share.writes_left);
        let moved = size.min(count * piece);
        // A file is replaced only where all of it is written again, so that files keep their sizes.
        let path = path(file);
        if moved == size && self.rng.chance(REPLACE_PER_MILLE) {
            self.steps.push_back(Step::Plain(Op::Unlink { path: path.clone() }));
            self.steps.push_back(Step::create(0, path));
        } else {
            self.steps.push_back(Step::open(0, path));
        }
        let pieces = (0..count).map(|n| (n * piece, piece.min(size - n * piece)));
        self.steps.extend(pieces.map(|(offset, bytes)| Step::Write { slot: 0, offset, bytes }));
        self.steps.push_back(Step::Close { slot: 0 });
        self.share.writes_left -= count;
        self.share.write_bytes += moved;
    }
}

impl Program for Person<'_> {
    fn next(&mut self, last: Done) -> Option<Op> {
        self.open.note(last);
        if self.steps.is_empty() {
            self.plan()?;
        }
        self.steps.pop_front().map(|step| self.open.op(step))
    }

    fn failed(&mut self, error: dcd_model::ffs::FsError) -> Option<Done> {
        // Another program has taken the file away and not yet made the new one, or has made it first: this one gives up.
        use dcd_model::ffs::FsError::{Exists, NotFound};
        matches!(error, Exists | NotFound).then(|| {
            self.steps.clear();
            Done::Nothing
        })
    }
}
