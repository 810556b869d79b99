//! Sequential and bulky I/O on an array: what the contiguity transform must not make slower.

use std::collections::VecDeque;

use dcd_engine::{Buf, Durability, Io, Lba, SECTOR_BYTES};
use dcd_sim::SimRng;
use dcd_sim::workloads::{LargeFile, SelfCopy, Workload};

use super::prelude::*;
use crate::array::{ArraySetup, HostSetup, Scheme};

const NO_PREALLOCATION: &str = "the paper names the blocks as the cause that ext3 allocates in advance and leaves unused between files. From Linux 2.6.10 \
     on ext3 only reserves them in memory, and gives them up when a file is closed: the next file of one program begins where the \
     last one ends. What is left between files are directories and blocks of addresses, which the journal keeps back for a while. But \
     512 MiB have room for the whole copy, and before it goes to the disks a sync has brought them, too: nothing is left to transform. \
     With half of the cache and one command at a time (--set cache=256MiB --set queue-depth=1) it is 1.11x";
const EACH_FILE_A_REVOLUTION: &str = "a disk that does not read on loses a revolution at each small file, so that PBGC takes 6 ms for each; md took 1.1 ms, less than \
     such a disk needs for one read. The table's rows do not agree on its disks. Reading in order, md's 190 and 106 MB/s are those of \
     disks that do not read on (175 and 117 here, but 379 and 381 with --set read-ahead=yes); its sources are those of disks that do \
     (then PBGC takes 11 s, and MSC-CT gains 2.0x, but SC loses its gain with the video and the music). Seagate's manuals for \
     drives of this family have them read on where they sense that it will be a hit, and do not say when";
const HOST_READS_ON: &str = "md has the host read two stripes ahead in a file, which keeps all disks as busy as the prefetching of stripes does, and the \
     scheduler soon stops to wait for a reader that thinks for long; what is left is the writing";

/// What is measured, and the paper's figures for PBGC, SC and MSC-CT: seconds, or MB/s.
const ROWS: [(&str, bool, [f64; 3]); 9] = [
    ("video self-copy", true, [31.4, 21.6, 21.6]),
    ("music self-copy", true, [20.6, 10.5, 10.5]),
    ("src self-copy", true, [29.3, 15.2, 13.5]),
    ("sequential read (fs)", false, [190.0, 252.0, 252.0]),
    ("sequential write (fs)", false, [166.0, 189.0, 189.0]),
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

/// The file that is written and read.
const LARGE_BYTES: u64 = 2 << 30;

fn key(scheme: Scheme, part: &str) -> String {
    format!("{} {part}", scheme.name())
}

/// One access at the block level: its name, whether it writes, and whether at random.
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
            let load = Workload::LargeFile(LargeFile { bytes });
            let ran = large.run(scheme, &host, &load, seed)?;
            let mut sample = Sample::default();
            for (name, phase) in [("sequential write (fs)", "write"), ("sequential read (fs)", "read")] {
                let seconds = ran.measured.phase(phase).elapsed.as_secs_f64();
                sample.set(name, bytes as f64 / 1e6 / seconds);
            }
            Ok(sample)
        }));
        for (name, writes, random) in BLOCK_LEVEL {
            let setup = setup.clone();
            points.push(Point::new(key(scheme, name), move || {
                let mut sample = Sample::default();
                let access = Access { writes, random, bytes, in_flight };
                sample.set(name, access.measure(&setup, scheme, mix(seed, u64::from(writes)))?);
                Ok(sample)
            }));
        }
    }
    Ok(points)
}

/// Requests of a stripe.
struct Access {
    writes: bool,
    random: bool,
    bytes: u64,
    in_flight: usize,
}

impl Access {
    /// MB/s, until what was written is on the disks.
    fn measure(&self, setup: &ArraySetup, scheme: Scheme, seed: u64) -> Result<f64, LabError> {
        let stripe = setup.strip * (setup.members as u64 - 1);
        let mut rig = setup.build(scheme)?;
        let (count, stripes) = (self.bytes / stripe, rig.sectors() * SECTOR_BYTES / stripe);
        let mut random = SimRng::new(seed);
        let place = |index| if self.random { random.below(stripes) } else { index % stripes };
        let mut left: VecDeque<u64> = (0..count).map(place).collect();
        let (begin, mut in_flight) = (rig.now(), 0);
        loop {
            while in_flight < self.in_flight
                && let Some(place) = left.pop_front()
            {
                let (at, buf) = (Lba(place * stripe / SECTOR_BYTES), Buf::blank(stripe as usize));
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
        Ok((count * stripe) as f64 / 1e6 / rig.now().since(begin).as_secs_f64())
    }
}

/// The point that measures a row.
fn part(row: &'static str) -> &'static str {
    match row {
        "sequential read (fs)" | "sequential write (fs)" => "large",
        other => other,
    }
}

pub fn conclude(_settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
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
    let mut claims = Vec::new();
    let bulky = ROWS.iter().filter(|(row, ..)| *row != "src self-copy");
    let gains: Vec<f64> = bulky.map(|(row, seconds, _)| over(ct, sc, row, *seconds)).collect();
    claims.push(Claim::spread(
        "all but the sources: MSC-CT over SC",
        "the same throughput",
        &gains,
        (0.97, 1.05),
        "x",
    ));
    let gain = over(ct, sc, "src self-copy", true);
    claims.push(
        Claim::range("sources: MSC-CT over SC", "1.13x", gain, (1.04, 1.25), "x").because(NO_PREALLOCATION),
    );
    let gain = over(ct, pbgc, "src self-copy", true);
    claims.push(
        Claim::range("sources: MSC-CT over PBGC", "2.17x", gain, (1.6, 2.8), "x")
            .because(EACH_FILE_A_REVOLUTION),
    );
    let gain = over(sc, pbgc, "video self-copy", true);
    claims.push(Claim::range("video: SC over PBGC", "1.45x", gain, (1.1, 1.8), "x").because(HOST_READS_ON));
    let gain = over(sc, pbgc, "music self-copy", true);
    claims.push(Claim::range("music: SC over PBGC", "1.96x", gain, (1.4, 2.5), "x"));
    let gains: Vec<f64> = ROWS.iter().map(|(row, seconds, _)| over(sc, pbgc, row, *seconds)).collect();
    claims.push(Claim::spread(
        "SC over PBGC, in every row",
        "significantly faster in all cases",
        &gains,
        (1.0, f64::INFINITY),
        "x",
    ));
    let (read, write) = (get(sc, "bulky random read (block)"), get(sc, "bulky random write (block)"));
    claims.push(Claim::range("bulky random reads, SC", "85 MB/s", read, (60.0, 110.0), " MB/s"));
    claims.push(Claim::range("bulky random writes, SC", "94 MB/s", write, (66.0, 122.0), " MB/s"));
    claims.push(Claim::fact(
        "bulky random writes are faster than reads",
        "the scheduler reduces the seeks of writes",
        format!("{} against {} MB/s", figure(write), figure(read)),
        write > read,
    ));
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
