//! The stride benchmark: Smax and Sexcept of a disk, and whether the Smax that it finds is the fastest one.

use dcd_engine::raid::contiguity::Strides;
use dcd_engine::raid::stride::{BLOCK_BYTES, StridePass, THRESHOLD};
use dcd_engine::{Extent, Lba, SECTOR_BYTES};
use dcd_model::{Drive, drive};

use super::ct_fragmented::{ARRAY_DRIVE, BEFORE_THE_PAPER, blocks, span};
use super::prelude::*;
use crate::params::drive_of;
use crate::stride_times;

/// "We limit the maximum stride distance up to 64 blocks."
const DISTANCE_MAX: u64 = 64;
/// The Smax that Fig. 15 tries, for writes and for reads.
const TRIED_WRITE: [u64; 11] = [9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29];
const TRIED_READ: [u64; 11] = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

fn strides(settings: &Settings) -> Result<Vec<u64>, LabError> {
    let strides: Vec<u64> = settings.numbers("strides")?;
    let rising = strides.windows(2).all(|pair| pair[0] < pair[1]);
    if !rising || strides.first().is_none_or(|first| *first < 2) {
        let problem = "the strides must rise from 2 on".to_owned();
        return Err(LabError::BadValue { key: "strides".to_owned(), problem });
    }
    Ok(strides)
}

/// The array's disk with tracks as long as a batch at a stride of 4 blocks, and a skew of half a revolution.
const SKEWED: &str = "cheetah-15k4, skewed";
const SKEWED_ZONES: &str = "zones = [[52432, 1024, 560, 560]]\n";

fn drives(settings: &Settings) -> Result<Vec<&str>, LabError> {
    let mut drives = settings.drives("drives")?;
    drives.push(SKEWED);
    Ok(drives)
}

fn drive(name: &str) -> Result<Drive, LabError> {
    if name != SKEWED {
        return drive_of(name);
    }
    let text = drive::text(ARRAY_DRIVE).unwrap_or_default();
    let (before, zones) = text.split_once("zones = [").unwrap_or_default();
    let (_, after) = zones.split_once("\n]\n").unwrap_or_default();
    Drive::parse(&format!("{before}{SKEWED_ZONES}{after}")).map_err(LabError::setup)
}

const fn word(writes: bool) -> &'static str {
    if writes { "write" } else { "read" }
}

fn key(drive: &str, writes: bool) -> String {
    format!("{drive} {}", word(writes))
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let span = span(settings, 8 << 20)?;
    let strides = strides(settings)?;
    let mean = settings.number::<f64>("mean")?;
    if !(1.0..=DISTANCE_MAX as f64).contains(&mean) {
        let problem = format!("{mean} is not between 1 and {DISTANCE_MAX}");
        return Err(LabError::BadValue { key: "mean".to_owned(), problem });
    }
    let seed = settings.seed;
    let mut points = Vec::new();
    for name in drives(settings)? {
        for writes in [true, false] {
            let (name, strides) = (name.to_owned(), strides.clone());
            points.push(Point::new(key(&name, writes), move || {
                let drive = drive(&name)?;
                measure(&drive, writes, span, &strides, mean, seed)
            }));
        }
    }
    Ok(points)
}

fn curve(strides: &[u64], normalised: &[f64]) -> Vec<(u64, f64)> {
    strides.iter().copied().zip(normalised.iter().copied()).collect()
}

/// Gaps are filled within a stripe's column, as a destage does, and not those from one to the next (section IV-F).
fn within_columns(writes: bool, blocks: &[Lba], rule: &Strides) -> StridePass {
    let column = |block: &Lba| block.0 / (DISTANCE_MAX * BLOCK_BYTES / SECTOR_BYTES);
    let columns = blocks.chunk_by(|one, next| column(one) == column(next));
    let passes = columns.map(|blocks| StridePass::of_blocks(writes, blocks.iter().copied(), rule));
    StridePass { writes, requests: passes.flat_map(|pass| pass.requests).collect() }
}

fn measure(
    drive: &Drive,
    writes: bool,
    span: Extent,
    strides: &[u64],
    mean: f64,
    seed: u64,
) -> Result<Sample, LabError> {
    let mut passes = vec![StridePass::strided(writes, span, 1)];
    passes.extend(strides.iter().map(|stride| StridePass::strided(writes, span, *stride)));
    let times = stride_times(drive, passes)?;
    let contiguous = times[0].as_secs_f64();
    let normalised: Vec<f64> = times[1..].iter().map(|time| time.as_secs_f64() / contiguous).collect();
    let rule = Strides::from_curve(&curve(strides, &normalised), THRESHOLD);
    let fragmented = blocks(span, mean, DISTANCE_MAX, seed);
    let tried = if writes { TRIED_WRITE } else { TRIED_READ };
    let with = |rule: &Strides| within_columns(writes, &fragmented, rule);
    let mut passes = vec![with(&Strides::default()), with(&rule), with(&Strides::up_to(rule.max))];
    passes.extend(tried.iter().map(|max| with(&Strides::up_to(*max))));
    let times = stride_times(drive, passes)?;
    let unfilled = times[0].as_secs_f64();
    let over = |time: &dcd_engine::Nanos| time.as_secs_f64() / unfilled;
    let mut sample = Sample::default();
    sample.set("contiguous_mb_per_s", (span.sectors * SECTOR_BYTES) as f64 / 1e6 / contiguous);
    sample.set("max", rule.max as f64);
    let except = rule.except.iter().flat_map(|(first, last)| [*first as f64, *last as f64]);
    sample.set_list("except", except.collect());
    sample.set_list("normalised", normalised);
    sample.set("chosen", over(&times[1]));
    sample.set("no_except", over(&times[2]));
    sample.set_list("tried", times[3..].iter().map(over).collect());
    Ok(sample)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let strides = strides(settings)?;
    let drives = drives(settings)?;
    let mut chosen = Table::new(
        "What the benchmark says",
        "drive |  | contiguous (MB/s) | stride 2 | Smax | Sexcept | \
            gaps filled, over not filled | Sexcept filled, too",
    );
    let mut plots = Vec::new();
    for writes in [true, false] {
        let mut series = Vec::new();
        for drive in &drives {
            let key = key(drive, writes);
            let normalised = samples.list(&key, "normalised");
            let except = samples.list(&key, "except");
            let ranges: Vec<String> =
                except.chunks_exact(2).map(|range| format!("{} to {}", range[0], range[1])).collect();
            chosen.row([
                (*drive).to_owned(),
                word(writes).to_owned(),
                figure(samples.get(&key, "contiguous_mb_per_s")),
                format!("{:.2}", normalised.first().copied().unwrap_or(f64::NAN)),
                figure(samples.get(&key, "max")),
                if ranges.is_empty() { "none".to_owned() } else { ranges.join(", ") },
                format!("{:.3}", samples.get(&key, "chosen")),
                format!("{:.3}", samples.get(&key, "no_except")),
            ]);
            let points = curve(&strides, normalised).into_iter().map(|(s, v)| (s as f64, v)).collect();
            series.push(Series::new(*drive, points));
        }
        plots.push(Plot::lines(
            format!("Strided {}s (Fig. 9)", word(writes)),
            Axis::linear("stride (blocks)"),
            Axis::linear("time over that of the contiguous pass"),
            series,
        ));
    }
    let mut tables = vec![chosen];
    let mut claims = Vec::new();
    if drives.contains(&ARRAY_DRIVE) {
        for writes in [true, false] {
            let key = key(ARRAY_DRIVE, writes);
            let tried = if writes { TRIED_WRITE } else { TRIED_READ };
            let times = samples.list(&key, "tried");
            let fastest = tried.iter().zip(times).min_by(|one, other| one.1.total_cmp(other.1));
            let fastest = fastest.map_or(f64::NAN, |(max, _)| *max as f64);
            let max = samples.get(&key, "max");
            let mut table = Table::new(
                format!("Smax for {}s tried on {ARRAY_DRIVE} (Fig. 15)", word(writes)),
                "Smax | time",
            );
            for (tried, time) in tried.iter().zip(times) {
                table.row([tried.to_string(), format!("{time:.3}")]);
            }
            tables.push(table);
            let range = (tried[0] as f64, tried[tried.len() - 1] as f64);
            let claim = |id| settings.claim(id).with("kind", word(writes));
            let tried = claim("tried").with("from", tried[0]).with("to", tried[tried.len() - 1]);
            claims.extend([
                tried.of_paper(Rule::Range(range.0, range.1)).range(max),
                claim("fastest").range(max / fastest),
            ]);
        }
        let before = drives.iter().filter(|drive| BEFORE_THE_PAPER.contains(drive));
        let lowest =
            before.map(|drive| least(samples.list(&key(drive, false), "normalised").iter().copied()));
        claims.push(settings.claim("reads").range(least(lowest)));
    }
    Ok(Findings { tables, plots, claims })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_filled_within_a_column_and_not_between_two() {
        let block = |number: u64| Lba(number * BLOCK_BYTES / SECTOR_BYTES);
        let pass = within_columns(true, &[60, 62, 64, 66].map(block), &Strides::up_to(3));
        let requests: Vec<(Lba, usize)> =
            pass.requests.iter().map(|(at, asked)| (at.start, *asked)).collect();
        assert_eq!(requests, [(block(60), 2), (block(64), 2)]);
    }
}
