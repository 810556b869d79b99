//! Fragmented writes beside contiguous ones over the same span: what a disk loses by leaving out blocks.

use dcd_crash::SimRng;
use dcd_engine::raid::contiguity::Strides;
use dcd_engine::raid::stride::{BLOCK_BYTES, StridePass};
use dcd_engine::{Extent, LINE_SECTORS, Lba, SECTOR_BYTES};
use dcd_model::Drive;

use super::prelude::*;
use crate::params::drive_of;
use crate::stride_times;

/// "The maximum stride distance is limited up to 32 blocks."
const DISTANCE_MAX: u64 = 32;
pub(super) const ARRAY_DRIVE: &str = "cheetah-15k4";
/// Drives that the paper could have measured.
pub(super) const BEFORE_THE_PAPER: [&str; 3] = [ARRAY_DRIVE, "atlas-10k", "barracuda-st32171w"];

/// Blocks that the host sends together.
const BATCH: usize = 32;

/// Blocks of a span, with distances that are exponential with a mean and at most a maximum, in blocks.
pub(super) fn blocks(span: Extent, mean: f64, most: u64, seed: u64) -> Vec<Lba> {
    let mut random = SimRng::new(seed);
    let block_sectors = BLOCK_BYTES / SECTOR_BYTES;
    let mut blocks = Vec::new();
    let mut at = span.start;
    while at < span.end() {
        blocks.push(at);
        let distance = (mean * random.exponential()).round().clamp(1.0, most as f64) as u64;
        at = at + distance * block_sectors;
    }
    blocks
}

/// A span at the start of the disk.
pub(super) fn span(settings: &Settings, least: u64) -> Result<Extent, LabError> {
    let bytes = settings.bytes("span")?;
    if bytes < least || !bytes.is_multiple_of(BLOCK_BYTES) {
        let problem = format!("{bytes} bytes is not a multiple of 4096, or less than {least}");
        return Err(LabError::BadValue { key: "span".to_owned(), problem });
    }
    Ok(Extent::new(Lba(0), bytes / SECTOR_BYTES))
}

fn drives(settings: &Settings) -> Result<Vec<&str>, LabError> {
    settings.drives("drives")
}

fn means(settings: &Settings) -> Result<Vec<u64>, LabError> {
    let means: Vec<u64> = settings.numbers("means")?;
    match means.iter().find(|mean| !(1..=DISTANCE_MAX).contains(*mean)) {
        None => Ok(means),
        Some(mean) => {
            let problem = format!("{mean} is not between 1 and {DISTANCE_MAX}");
            Err(LabError::BadValue { key: "means".to_owned(), problem })
        }
    }
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let span = span(settings, 1 << 20)?;
    let means = means(settings)?;
    let (runs, seed) = (settings.count("runs")?, settings.seed);
    let points = drives(settings)?.into_iter().map(|name| {
        let (name, means) = (name.to_owned(), means.clone());
        Point::new(name.clone(), move || {
            Sample::mean(runs, |run| measure(&name, span, &means, mix(seed, run)))
        })
    });
    Ok(points.collect())
}

fn measure(name: &str, span: Extent, means: &[u64], seed: u64) -> Result<Sample, LabError> {
    let drive = drive_of(name)?;
    let mut passes = vec![StridePass::strided(true, span, 1)];
    let fragmented = |mean: &u64| blocks(span, *mean as f64, DISTANCE_MAX, mix(seed, *mean));
    passes
        .extend(means.iter().map(|mean| StridePass::of_blocks(true, fragmented(mean), &Strides::default())));
    let times = stride_times(&drive, passes)?;
    let contiguous = times[0].as_secs_f64();
    let mut sample = Sample::default();
    sample.set("contiguous_mb_per_s", (span.sectors * SECTOR_BYTES) as f64 / 1e6 / contiguous);
    sample.set("revolution_ms", drive.revolution().as_millis_f64());
    let by_equation = means.iter().map(|mean| equation(&drive, span, &fragmented(mean)));
    sample.set_list("equation", by_equation.collect());
    sample.set_list("normalised", times[1..].iter().map(|time| time.as_secs_f64() / contiguous).collect());
    Ok(sample)
}

/// Equation 1, over the time of the contiguous write: a revolution is lost where taking in a batch (Fig. 2) lasts longer than
/// the gap before it.
fn equation(drive: &Drive, span: Extent, blocks: &[Lba]) -> f64 {
    let revolution = drive.revolution().as_secs_f64();
    let passing =
        |sectors: u64| revolution * sectors as f64 / f64::from(drive.locate(span.start).sectors_per_track);
    let taking_in = |batch: &[Lba]| {
        let commands = batch.chunk_by(|one, next| *next - *one == LINE_SECTORS).count();
        let transfer = drive.bus_time(batch.len() as u64 * LINE_SECTORS);
        drive.hit_overhead().as_secs_f64() * commands as f64 + transfer.as_secs_f64()
    };
    let batches: Vec<&[Lba]> = blocks.chunks(BATCH).collect();
    let gap = |batch: &[Lba], next: &[Lba]| passing(next[0] - batch[batch.len() - 1] - LINE_SECTORS);
    let lost = batches.windows(2).filter(|pair| taking_in(pair[1]) > gap(pair[0], pair[1])).count();
    1.0 + revolution * lost as f64 / passing(span.sectors)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let means = means(settings)?;
    let drives = drives(settings)?;
    let mut columns = vec!["drive".to_owned(), "contiguous (MB/s)".to_owned()];
    columns.extend(means.iter().map(|mean| format!("mean {mean}")));
    let mut table =
        Table::new("Time over that of the contiguous write, by mean stride distance", &columns.join(" | "));
    let mut series = Vec::new();
    for drive in &drives {
        let normalised = samples.list(drive, "normalised");
        let mut row = vec![(*drive).to_owned(), figure(samples.get(drive, "contiguous_mb_per_s"))];
        row.extend(normalised.iter().map(|value| format!("{value:.2}")));
        table.row(row);
        let points = means.iter().zip(normalised).map(|(mean, value)| (*mean as f64, *value)).collect();
        series.push(Series::new(*drive, points));
    }
    let at_small = |drive: &&str| samples.list(drive, "normalised").first().copied().unwrap_or(f64::NAN);
    let before = drives.iter().filter(|drive| BEFORE_THE_PAPER.contains(drive));
    let all: Vec<f64> = before.flat_map(|drive| samples.list(drive, "normalised")).copied().collect();
    let mut claims = vec![settings.claim("longer").spread(&all)];
    if drives.contains(&ARRAY_DRIVE) {
        let equation = samples.list(ARRAY_DRIVE, "equation");
        let title = format!("{ARRAY_DRIVE}, equation 1");
        let cells = equation.iter().map(|value| format!("{value:.2}"));
        table.row([title.clone(), "–".to_owned()].into_iter().chain(cells));
        let points = means.iter().zip(equation).map(|(mean, value)| (*mean as f64, *value)).collect();
        series.push(Series::new(title, points));
        let normalised = samples.list(ARRAY_DRIVE, "normalised");
        let over: Vec<f64> = equation.iter().zip(normalised).map(|(model, disk)| model / disk).collect();
        let listed: Vec<String> = normalised.iter().map(|value| format!("{value:.2}")).collect();
        let finer = settings.claim("finer").with("listed", listed.join(", "));
        claims.extend([
            settings.claim("equation").spread(&over),
            settings.claim("much-slower").range(at_small(&ARRAY_DRIVE)),
            finer.fact("each less than the one before", normalised.windows(2).all(|pair| pair[1] < pair[0])),
        ]);
    }
    let plot = Plot::lines(
        "Writes with exponential stride distances (Fig. 1)",
        Axis::linear("mean stride distance (blocks)"),
        Axis::linear("time over that of the contiguous write"),
        series,
    );
    Ok(Findings { tables: vec![table], plots: vec![plot], claims })
}
