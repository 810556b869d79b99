//! Sequential and bulky I/O on an array: what the contiguity transform must not make slower.

use std::collections::VecDeque;

use dcd_crash::SimRng;
use dcd_engine::{Buf, Durability, Io, Lba, SECTOR_BYTES};
use dcd_sim::workloads::{LargeFile, SelfCopy, Workload};

use super::prelude::*;
use crate::array::{ArraySetup, HostSetup, Scheme};

/// Measurements, and the paper's figures for PBGC, SC and MSC-CT: seconds, or MB/s.
const ROWS: [(&str, bool, [f64; 3]); 12] = [
    ("video self-copy", true, [31.4, 21.6, 21.6]),
    ("music self-copy", true, [20.6, 10.5, 10.5]),
    ("src self-copy", true, [29.3, 15.2, 13.5]),
    (MKFS, true, [42.0, 34.2, 34.0]),
    ("sequential read (fs)", false, [190.0, 252.0, 252.0]),
    ("sequential write (fs)", false, [166.0, 189.0, 189.0]),
    ("bulky random read (fs)", false, [57.5, 67.4, 67.4]),
    ("bulky random write (fs)", false, [58.8, 68.0, 68.0]),
    ("sequential read (block)", false, [106.0, 381.0, 381.0]),
    ("sequential write (block)", false, [168.0, 289.0, 289.0]),
    ("bulky random read (block)", false, [81.0, 85.0, 85.0]),
    ("bulky random write (block)", false, [80.0, 94.0, 94.0]),
];

/// The paper's files: how many, their bytes, and whether their sizes differ.
const COPIES: [(&str, u64, u64, bool); 3] = [
    ("video self-copy", 1, 2_130_000_000, false),
    ("music self-copy", 154, 682_000_000, false),
    ("src self-copy", 25_628, 458_000_000, true),
];

/// The making of a file system on all of the array, as mke2fs does it: a table of inodes of 2 MiB (an inode for 8 KiB) in
/// each group of 128 MiB, written in ascending order through the host's queue.
const MKFS: &str = "mkfs (ext3)";
const GROUP_BYTES: u64 = 128 << 20;
const TABLE_BYTES: u64 = 2 << 20;
const PIECE_BYTES: u64 = 128 << 10;
const QUEUE: usize = 128;

/// Phases of the large file, by rows.
const LARGE: [(&str, &str); 4] = [
    ("sequential write (fs)", "write"),
    ("sequential read (fs)", "read"),
    ("bulky random read (fs)", "random read"),
    ("bulky random write (fs)", "random write"),
];

/// The file that is written and read.
const LARGE_BYTES: u64 = 2 << 30;

fn key(scheme: Scheme, part: &str) -> String {
    format!("{} {part}", scheme.name())
}

/// Accesses at the block level: name, true for a write, true for random places.
const BLOCK_LEVEL: [(&str, bool, bool); 4] = [
    ("sequential read (block)", false, false),
    ("sequential write (block)", true, false),
    ("bulky random read (block)", false, true),
    ("bulky random write (block)", true, true),
];

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let scale: u64 = settings.count("scale")?;
    let whole = ArraySetup::read(settings)?;
    let setup = ArraySetup { cache: whole.cache / scale, ..whole };
    let (used, page_cache) = (settings.bytes("used")? / scale, settings.bytes("page-cache")? / scale);
    let host = HostSetup { used, page_cache, scale };
    let (bytes, in_flight) = (settings.ram("block-bytes")?, settings.number::<usize>("in-flight")?.max(1));
    let seed = settings.seed;
    let mut points = Vec::new();
    for scheme in Scheme::ALL {
        for (name, files, bytes, varied) in COPIES {
            let setup = setup.clone();
            let load = SelfCopy { files: files.div_ceil(scale), bytes: bytes / scale, varied };
            points.push(Point::new(key(scheme, name), move || {
                let ran = setup.run(scheme, &host, &Workload::SelfCopy(load), seed)?;
                let mut sample = Sample::default();
                let seconds = ran.measured.phase("copy").elapsed + ran.destaging;
                sample.set(name, seconds.as_secs_f64() * scale as f64);
                Ok(sample)
            }));
        }
        let large = setup.clone();
        points.push(Point::new(key(scheme, "large"), move || {
            let bytes = LARGE_BYTES / scale;
            let random_bytes = large.stripe_bytes();
            let load = Workload::LargeFile(LargeFile { bytes, random_bytes });
            let ran = large.run(scheme, &host, &load, seed)?;
            let mut sample = Sample::default();
            for (name, phase) in LARGE {
                let seconds = ran.measured.phase(phase).elapsed.as_secs_f64();
                sample.set(name, bytes as f64 / 1e6 / seconds);
            }
            Ok(sample)
        }));
        for (name, writes, random) in BLOCK_LEVEL {
            let setup = setup.clone();
            points.push(Point::new(key(scheme, name), move || {
                let stripe = setup.stripe_bytes();
                let (count, mut random_places) = (bytes / stripe, SimRng::new(mix(seed, u64::from(writes))));
                let access = Access { writes, bytes: stripe, in_flight };
                let seconds = access.measure(&setup, scheme, |stripes| {
                    let place = |index| if random { random_places.below(stripes) } else { index % stripes };
                    (0..count).map(place).collect()
                })?;
                let mut sample = Sample::default();
                sample.set(name, (count * stripe) as f64 / 1e6 / seconds);
                Ok(sample)
            }));
        }
        let setup = setup.clone();
        points.push(Point::new(key(scheme, MKFS), move || {
            let access = Access { writes: true, bytes: PIECE_BYTES, in_flight: QUEUE };
            let seconds = access.measure(&setup, scheme, |pieces| {
                let groups = pieces / (GROUP_BYTES / PIECE_BYTES) / scale;
                let table = |group| {
                    (0..TABLE_BYTES / PIECE_BYTES).map(move |n| group * GROUP_BYTES / PIECE_BYTES + n)
                };
                (0..groups).flat_map(table).collect()
            })?;
            let mut sample = Sample::default();
            sample.set(MKFS, seconds * scale as f64);
            Ok(sample)
        }));
    }
    Ok(points)
}

/// Requests of one size at the block level.
struct Access {
    writes: bool,
    bytes: u64,
    in_flight: usize,
}

impl Access {
    /// Seconds, until what was written is on the disks. `places` makes the places, of so many.
    fn measure(
        &self,
        setup: &ArraySetup,
        scheme: Scheme,
        places: impl FnOnce(u64) -> VecDeque<u64>,
    ) -> Result<f64, LabError> {
        let mut rig = setup.build(scheme)?;
        let mut left = places(rig.sectors() * SECTOR_BYTES / self.bytes);
        let (begin, mut in_flight) = (rig.now(), 0);
        loop {
            while in_flight < self.in_flight
                && let Some(place) = left.pop_front()
            {
                let (at, buf) = (Lba(place * self.bytes / SECTOR_BYTES), Buf::blank(self.bytes as usize));
                rig.submit(match self.writes {
                    true => Io::Write { at, buf, durability: Durability::Volatile },
                    false => Io::Read { at, buf },
                });
                in_flight += 1;
            }
            if in_flight == 0 {
                break;
            }
            rig.wait_reply()?;
            in_flight -= 1;
        }
        rig.drain();
        Ok(rig.now().since(begin).as_secs_f64())
    }
}

/// The point that measures a row.
fn part(row: &'static str) -> &'static str {
    if LARGE.iter().any(|(large, _)| *large == row) { "large" } else { row }
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let get = |scheme, row| samples.get(&key(scheme, part(row)), row);
    let mut table = Table::new(
        "Seconds for copies, MB/s otherwise",
        " | PBGC, paper | SC | MSC-CT | PBGC, ours | SC | MSC-CT",
    );
    for (row, _, paper) in ROWS {
        let [p0, p1, p2] = paper.map(figure);
        let [o0, o1, o2] = Scheme::ALL.map(|scheme| figure(get(scheme, row)));
        table.row([row.to_owned(), p0, p1, p2, o0, o1, o2]);
    }
    // How much faster the first is than the second.
    let over = |a, b, row: &'static str, seconds: bool| {
        let ratio = get(a, row) / get(b, row);
        if seconds { 1.0 / ratio } else { ratio }
    };
    let (pbgc, sc, ct) = (Scheme::Pbgc, Scheme::Sc, Scheme::MscCt);
    let claim = |id| settings.claim(id);
    let bulky = ROWS.iter().filter(|(row, ..)| !["src self-copy", MKFS].contains(row));
    let bulky: Vec<f64> = bulky.map(|(row, seconds, _)| over(ct, sc, row, *seconds)).collect();
    let by_sc: Vec<f64> = ROWS.iter().map(|(row, seconds, _)| over(sc, pbgc, row, *seconds)).collect();
    let block =
        |scheme| ["bulky random read (block)", "bulky random write (block)"].map(|row| get(scheme, row));
    let ([read, write], [ct_read, ct_write]) = (block(sc), block(ct));
    let faster = claim("writes-faster").with("write", ct_write).with("read", ct_read);
    let own = least(ROWS.map(|(_, seconds, [pbgc, sc, _])| if seconds { pbgc / sc } else { sc / pbgc }));
    let claims = vec![
        claim("bulky").ratios(&bulky),
        claim("sources-over-sc").ratios(&[over(ct, sc, "src self-copy", true)]),
        claim("sources-over-pbgc").range(over(ct, pbgc, "src self-copy", true)),
        claim("video").range(over(sc, pbgc, "video self-copy", true)),
        claim("music").range(over(sc, pbgc, "music self-copy", true)),
        claim("sc-over-pbgc").with("least", own).reaching(&[own]).spread(&by_sc),
        claim("random-reads").range(read),
        claim("random-writes").range(write),
        faster.more([(ct_write, ct_read)]),
    ];
    let series = |scheme: Scheme, index: usize| {
        let relative = |(number, (row, seconds, _)): (usize, &(&'static str, bool, [f64; 3]))| {
            (number as f64 + 1.0, over(scheme, pbgc, row, *seconds))
        };
        let paper = |(number, (_, seconds, figures)): (usize, &(&str, bool, [f64; 3]))| {
            let ratio = figures[index] / figures[0];
            (number as f64 + 1.0, if *seconds { 1.0 / ratio } else { ratio })
        };
        let ours = Series::new(scheme.name(), ROWS.iter().enumerate().map(relative).collect());
        let theirs =
            Series::new(format!("{}, paper", scheme.name()), ROWS.iter().enumerate().map(paper).collect());
        [ours, theirs]
    };
    let plot = Plot::lines(
        "How many times PBGC's speed (Table II)",
        Axis::linear("row of the table"),
        Axis::linear("times PBGC"),
        [series(sc, 1), series(ct, 2)].concat(),
    );
    Ok(Findings { tables: vec![table], plots: vec![plot], claims })
}
