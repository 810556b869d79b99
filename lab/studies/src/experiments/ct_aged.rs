//! Writing files on a file system that has aged, on an array: by the mean file size, and by how far it has aged.

use std::collections::BTreeSet;

use dcd_sim::workloads::Aging;

use super::prelude::*;
use crate::array::{ArraySetup, HostSetup, SECONDS_PER_MB, Scheme};

/// The paper's file system.
const USED: u64 = 10 << 30;

/// Files larger than this get more runs, by as much as they are larger, and at most by `MORE_RUNS_MAX`: there are fewer of them, so
/// their places differ more from run to run.
const MORE_RUNS_FROM: u64 = 128 << 10;
const MORE_RUNS_MAX: u64 = 6;

/// PBGC is not in the paper's figure.
const SCHEMES: [Scheme; 2] = [Scheme::Sc, Scheme::MscCt];

fn key(mean: u64, cycles: u32) -> String {
    format!("{mean} bytes, {cycles} cycles")
}

fn name(scheme: Scheme, what: &str) -> String {
    format!("{}/{what}", scheme.name())
}

/// Mean sizes, cycles at the first of them, and cycles at all.
fn cases(settings: &Settings) -> Result<(Vec<u64>, Vec<u32>, u32), LabError> {
    let means = settings.sizes("means")?;
    if means.contains(&0) {
        let problem = "a file has 1 byte at least".to_owned();
        return Err(LabError::BadValue { key: "means".to_owned(), problem });
    }
    Ok((means, settings.numbers("cycles")?, settings.number("aged")?))
}

fn percent(settings: &Settings, key: &str) -> Result<u64, LabError> {
    match settings.number(key)? {
        percent @ 1..=95 => Ok(percent),
        other => {
            let problem = format!("{other} is not a percentage from 1 to 95");
            Err(LabError::BadValue { key: key.to_owned(), problem })
        }
    }
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let setup = ArraySetup::read(settings)?;
    let (means, cycles, aged) = cases(settings)?;
    let (used, page_cache) = (settings.bytes("used")?, settings.bytes("page-cache")?);
    let host = HostSetup { used, page_cache, scale: USED / used.max(1) };
    let (fill_percent, removed_percent) = (percent(settings, "fill")?, percent(settings, "removed")?);
    // As much as a removal makes room for, also where nothing was removed.
    let measured_bytes = used / 100 * fill_percent / 100 * removed_percent;
    let by_mean = means.iter().map(|mean| (*mean, aged));
    let by_cycles = cycles.into_iter().map(|cycles| (means[0], cycles));
    // Those that take long come first.
    let cases: BTreeSet<(u32, u64)> =
        by_mean.chain(by_cycles).map(|(mean_bytes, cycles)| (cycles, mean_bytes)).collect();
    let (runs, seed) = (settings.count::<u64>("runs")?, settings.seed);
    let point = |(cycles, mean_bytes): (u32, u64)| {
        let aging = Aging { mean_bytes, fill_percent, removed_percent, cycles, measured_bytes };
        let (setup, seed) = (setup.clone(), mix(seed, mean_bytes ^ u64::from(cycles) << 40));
        let runs = runs * (mean_bytes / MORE_RUNS_FROM).clamp(1, MORE_RUNS_MAX);
        Point::new(key(mean_bytes, cycles), move || {
            Sample::mean(runs, |run| measure(&setup, &host, &aging, mix(seed, run)))
        })
    };
    Ok(cases.into_iter().rev().map(point).collect())
}

/// All schemes on the same file system.
fn measure(setup: &ArraySetup, host: &HostSetup, aging: &Aging, seed: u64) -> Result<Sample, LabError> {
    let aged = setup.age(host, aging, seed)?;
    let mut sample = Sample::default();
    for scheme in SCHEMES {
        let ran = setup.run_aged(scheme, host, &aged)?;
        let seconds = (ran.measured.phase("write").elapsed + ran.destaging).as_secs_f64();
        sample.set(name(scheme, SECONDS_PER_MB), seconds / (aging.measured_bytes as f64 / 1e6));
        sample.set(name(scheme, "blocks"), ran.blocks_per_command());
    }
    Ok(sample)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let (means, cycles, aged) = cases(settings)?;
    let of = |scheme, what, mean, cycles| samples.get(&key(mean, cycles), &name(scheme, what));
    let rate = |scheme, mean, cycles| 1.0 / of(scheme, SECONDS_PER_MB, mean, cycles);
    let gain = |mean, cycles| rate(Scheme::MscCt, mean, cycles) / rate(Scheme::Sc, mean, cycles);
    let columns = " | SC (MB/s) | MSC-CT | over SC | blocks a command, SC | MSC-CT";
    let row = |table: &mut Table, name: String, mean: u64, cycles: u32| {
        let [sc, ct] = SCHEMES.map(|scheme| figure(rate(scheme, mean, cycles)));
        let [b0, b1] = SCHEMES.map(|scheme| figure(of(scheme, "blocks", mean, cycles)));
        table.row([name, sc, ct, format!("{:.2}x", gain(mean, cycles)), b0, b1]);
    };
    let mut by_mean = Table::new(format!("After {aged} removals, by the mean file size"), columns);
    means.iter().for_each(|mean| row(&mut by_mean, format!("{} KiB", mean >> 10), *mean, aged));
    let first = means[0];
    let mut by_cycles = Table::new(format!("Files of {} KiB, by removals", first >> 10), columns);
    cycles.iter().for_each(|cycles| row(&mut by_cycles, cycles.to_string(), first, *cycles));

    let claim = |id| settings.claim(id);
    let mut claims = Vec::new();
    for (id, mean) in [("small", 16 << 10), ("large", 2 << 20)] {
        if means.contains(&mean) {
            claims.push(claim(id).range(gain(mean, aged)));
        }
    }
    let gains: Vec<f64> = means.iter().map(|mean| gain(*mean, aged)).collect();
    if let [first, .., last] = gains[..] {
        let falls = gains.windows(2).all(|pair| pair[0] >= pair[1]) && first > last;
        let claim = claim("by-size").with("first", format!("{first:.2}"));
        claims.push(
            claim.with("last", format!("{last:.2}")).more([(if falls { first } else { f64::NAN }, last)]),
        );
    }
    if cycles.contains(&1) && cycles.contains(&20) {
        let loss = |scheme| rate(scheme, first, 1) / rate(scheme, first, 20);
        let [sc, ct] = SCHEMES.map(loss);
        claims.extend([
            claim("sc-loses").range(sc),
            claim("ct-loses").range(ct),
            claim("ct-loses-less").with("sc", sc).with("ct", ct).more([(sc, ct)]),
        ]);
    }
    let plot = |title: &str, x: Axis, points: &dyn Fn(Scheme) -> Vec<(f64, f64)>| {
        Plot::lines(
            title,
            x,
            Axis::linear("MB/s"),
            SCHEMES.map(|scheme| Series::new(scheme.name(), points(scheme))),
        )
    };
    let of_means =
        |scheme| means.iter().map(|mean| ((mean >> 10) as f64, rate(scheme, *mean, aged))).collect();
    let of_cycles =
        |scheme| cycles.iter().map(|count| (f64::from(*count), rate(scheme, first, *count))).collect();
    let plots = vec![
        plot("Aged file system by the mean file size (Fig. 14a)", Axis::log("KiB"), &of_means),
        plot("By ageing (Fig. 14b)", Axis::linear("removals"), &of_cycles),
    ];
    Ok(Findings { tables: vec![by_mean, by_cycles], plots, claims })
}
