//! Clients of a file server on an array: by their number, and by the strip.

use std::collections::BTreeMap;

use dcd_sim::workloads::{DBench, Workload};

use super::prelude::*;
use crate::array::{ArraySetup, HostSetup, SECONDS_PER_MB, Scheme, rate_of_runs};

fn key(scheme: Scheme, clients: u64, strip: u64) -> String {
    format!("{} {clients} clients, {} KiB", scheme.name(), strip >> 10)
}

/// Cases to measure: numbers of clients and strips.
fn cases(settings: &Settings) -> Result<(Vec<u64>, Vec<u64>, u64, u64), LabError> {
    let clients: Vec<u64> = settings.counts("clients")?;
    let many: u64 = settings.count("strip-clients")?;
    Ok((clients, settings.sizes("strips")?, many, settings.bytes("strip")?))
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let scale: u64 = settings.count("scale")?;
    let runs: u64 = settings.count("runs")?;
    let scaled = |key| settings.bytes(key).map(|bytes| bytes / scale);
    let whole = ArraySetup::read(settings)?;
    let setup = ArraySetup { cache: whole.cache / scale, ..whole };
    let (clients, strips, many, strip) = cases(settings)?;
    let (bytes, kept, mean_bytes) = (scaled("bytes")?, scaled("kept")?, settings.ram("file")?.max(1));
    let host = HostSetup { used: scaled("used")?, page_cache: scaled("page-cache")?, scale };
    let by_clients = clients.into_iter().map(|count| (count, strip));
    let by_strip = strips.into_iter().map(|strip| (many, strip));
    let mut points = BTreeMap::new();
    for (clients, strip) in by_clients.chain(by_strip) {
        for scheme in Scheme::ALL {
            let setup = ArraySetup { strip, ..setup.clone() };
            let files = (bytes / mean_bytes / clients).max(1) as u32;
            let kept = (kept / mean_bytes) as u32;
            let load = DBench { clients: clients as u32, files, kept, mean_bytes };
            points.insert(key(scheme, clients, strip), (setup, scheme, load));
        }
    }
    let seed = settings.seed;
    let point = |(key, (setup, scheme, load)): (String, (ArraySetup, Scheme, DBench))| {
        let seed = mix(seed, u64::from(load.clients));
        Point::new(key, move || rate_of_runs(runs, seed, |seed| measure(&setup, scheme, &host, load, seed)))
    };
    Ok(points.into_iter().map(point).collect())
}

fn measure(
    setup: &ArraySetup,
    scheme: Scheme,
    host: &HostSetup,
    load: DBench,
    seed: u64,
) -> Result<Sample, LabError> {
    let ran = setup.run(scheme, host, &Workload::DBench(load), seed)?;
    let phase = ran.measured.phase("clients");
    let moved = 2 * u64::from(load.clients) * u64::from(load.files) * load.mean_bytes;
    let mut sample = Sample::default();
    sample.set(SECONDS_PER_MB, phase.elapsed.as_secs_f64() / (moved as f64 / 1e6));
    sample.set("blocks", ran.blocks_per_command());
    Ok(sample)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let (clients, strips, many, strip) = cases(settings)?;
    let rate = |scheme, clients, strip| samples.get(&key(scheme, clients, strip), "mb_per_s");
    let columns = " | PBGC (MB/s) | SC | MSC-CT | over SC | over PBGC | blocks a command, PBGC | SC | \
            MSC-CT";
    let row = |table: &mut Table, name: String, clients: u64, strip: u64| {
        let [pbgc, sc, ct] = Scheme::ALL.map(|scheme| rate(scheme, clients, strip));
        let blocks = |scheme| samples.get(&key(scheme, clients, strip), "blocks");
        let [b0, b1, b2] = Scheme::ALL.map(blocks);
        let [over_sc, over_pbgc] = [sc, pbgc].map(|other| format!("{:.2}x", ct / other));
        table.row(cells![name, pbgc, sc, ct, over_sc, over_pbgc, b0, b1, b2]);
    };
    let mut by_clients = Table::new(format!("Strips of {} KiB, by clients", strip >> 10), columns);
    clients.iter().for_each(|count| row(&mut by_clients, count.to_string(), *count, strip));
    let mut by_strip = Table::new(format!("{many} clients, by the strip"), columns);
    strips.iter().for_each(|strip| row(&mut by_strip, format!("{} KiB", strip >> 10), many, *strip));
    let blocks = |scheme, clients, strip| samples.get(&key(scheme, clients, strip), "blocks");
    let claims = claims(settings, (&clients, &strips, many, strip), &rate, &blocks);
    let plot = |title: &str, x: Axis, points: &dyn Fn(Scheme) -> Vec<(f64, f64)>| {
        Plot::lines(
            title,
            x,
            Axis::linear("MB/s"),
            Scheme::ALL.map(|scheme| Series::new(scheme.name(), points(scheme))),
        )
    };
    let of_clients =
        |scheme| clients.iter().map(|count| (*count as f64, rate(scheme, *count, strip))).collect();
    let of_strips =
        |scheme| strips.iter().map(|strip| ((strip >> 10) as f64, rate(scheme, many, *strip))).collect();
    let plots = vec![
        plot("Throughput by clients (Fig. 13a)", Axis::log("clients"), &of_clients),
        plot("Throughput by the strip (Fig. 13b)", Axis::log("strip (KiB)"), &of_strips),
    ];
    Ok(Findings { tables: vec![by_clients, by_strip], plots, claims })
}

fn claims(
    settings: &Settings,
    (clients, strips, many, strip): (&[u64], &[u64], u64, u64),
    rate: &dyn Fn(Scheme, u64, u64) -> f64,
    blocks: &dyn Fn(Scheme, u64, u64) -> f64,
) -> Vec<Claim> {
    let claim = |id| settings.claim(id);
    let over = |scheme, clients, strip| rate(Scheme::MscCt, clients, strip) / rate(scheme, clients, strip);
    let mut claims = Vec::new();
    if clients.contains(&1) {
        claims.push(match blocks(Scheme::Sc, 1, strip) {
            0.0 => claim("one").nothing("nothing was destaged"),
            _ => claim("one").range(over(Scheme::Sc, 1, strip)),
        });
    }
    let others: Vec<u64> = clients.iter().copied().filter(|count| *count > 1).collect();
    if !others.is_empty() {
        let of = |scheme| others.iter().map(|count| over(scheme, *count, strip)).collect::<Vec<f64>>();
        let other_strips = strips.iter().filter(|other| **other != strip);
        let by_strip: Vec<f64> = other_strips.map(|other| over(Scheme::Sc, many, *other)).collect();
        let all = [of(Scheme::Sc), by_strip].concat();
        claims.extend([
            claim("several-over-sc").range(most(of(Scheme::Sc))),
            claim("several-over-pbgc").range(most(of(Scheme::Pbgc))),
            claim("never-slower").ratios(&all),
        ]);
        // Saturated: SC is as fast as with the next smaller number of clients, to a twentieth.
        let sc = |count: u64| rate(Scheme::Sc, count, strip);
        let falls =
            |pair: &&[u64]| pair[1] > 1 && (more(sc(pair[0]), sc(pair[1])) || more(sc(pair[1]), sc(pair[0])));
        let unsaturated: Vec<u64> = clients.windows(2).filter(falls).map(|pair| pair[1]).collect();
        if !unsaturated.is_empty() {
            let named: Vec<String> = unsaturated.iter().map(u64::to_string).collect();
            let gains: Vec<f64> = unsaturated.iter().map(|count| over(Scheme::Sc, *count, strip)).collect();
            claims.push(claim("significantly").with("clients", named.join(", ")).ratios(&gains));
        }
    }
    let by_strip = |scheme| strips.iter().map(|strip| over(scheme, many, *strip)).collect::<Vec<f64>>();
    claims.push(claim("sc-falls").not_run());
    // A strip of two blocks has no gap between them.
    const TWO_BLOCKS: u64 = 8 << 10;
    let with_gaps = strips.iter().filter(|strip| **strip > TWO_BLOCKS);
    let gains: Vec<f64> = with_gaps.map(|strip| over(Scheme::Sc, many, *strip)).collect();
    if gains.len() > 1 {
        let listed: Vec<String> = gains.iter().map(|gain| format!("{gain:.2}x")).collect();
        let steps = gains.windows(2).map(|pair| (pair[1], pair[0]));
        claims.push(claim("grows").with("gains", listed.join(", ")).more(steps));
    }
    if !strips.is_empty() {
        claims.push(claim("any-strip").range(most(by_strip(Scheme::Pbgc))));
        let cases = clients.iter().map(|count| (*count, strip));
        let cases = cases.chain(strips.iter().map(|strip| (many, *strip)));
        let sc: Vec<f64> = cases
            .map(|(clients, strip)| rate(Scheme::Sc, clients, strip) / rate(Scheme::Pbgc, clients, strip))
            .collect();
        claims.push(claim("sc-over-pbgc").spread(&sc));
    }
    claims
}
