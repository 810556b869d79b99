//! Larger built-in caches: how much the file system gains, and what the paper's analytic model says of it.

use dcd_model::drive;
use dcd_stack::HumanBytes;

use super::prelude::*;
use crate::builtin::{BuiltinCase, DRIVE, POSTMARK, WORKLOADS, gain_percent, points};

const SMALL: u64 = 512 << 10;
const LARGE: u64 = 16 << 20;
const MISS_BUFFER: u64 = 32 << 20;
/// Section 5.1: gains with 16 MB of buffer cache, in percent.
const BUFFER_16: [f64; 2] = [1.1, 4.1];
/// Table 1.
const SYSTEM_CALL_MS: f64 = 0.01;
const COPY_MS_PER_KIB: f64 = 0.01;
/// Section 4.2, in KiB a ms: BusTR and DiskTR.
const KIB_PER_MS: f64 = 18_000.0 / 1024.0;

fn key(name: &str, buffer: u64, size: u64) -> String {
    format!("{name}, buffer {buffer}, built-in {size}")
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let sizes = settings.sizes("sizes")?;
    points(settings, |name, buffer| {
        let case = |built_in_bytes| BuiltinCase { built_in_bytes, ..BuiltinCase::new(buffer) };
        sizes.iter().map(|&size| (key(name, buffer, size), case(size))).collect()
    })
}

/// Measurements, by workload, buffer cache and built-in cache.
struct Grid<'a> {
    samples: &'a Samples,
    names: Vec<&'a str>,
    buffers: Vec<u64>,
    sizes: Vec<u64>,
    positioning_ms: f64,
    overhead_ms: f64,
}

impl Grid<'_> {
    fn get(&self, name: &str, buffer: u64, size: u64, what: &str) -> f64 {
        self.samples.get(&key(name, buffer, size), what)
    }

    fn fsrt(&self, name: &str, buffer: u64, size: u64) -> f64 {
        self.get(name, buffer, size, "fsrt_ms")
    }

    /// Equation 4, as it is printed, with the rates and mean sizes of the simulation.
    fn model(&self, name: &str, buffer: u64, size: u64) -> f64 {
        let get = |what| self.get(name, buffer, size, what);
        let (hit, transfer) =
            (SYSTEM_CALL_MS + get("call_kib") * COPY_MS_PER_KIB, get("disk_kib") / KIB_PER_MS);
        let mechanism = self.positioning_ms + transfer;
        hit + get("block_miss") * (self.overhead_ms + transfer + get("p_disk_miss") * mechanism)
    }

    /// The change from the small built-in cache to another one, in percent.
    fn gain(&self, name: &str, buffer: u64, size: u64) -> f64 {
        gain_percent(self.fsrt(name, buffer, SMALL), self.fsrt(name, buffer, size))
    }

    /// A figure of each workload and buffer cache.
    fn each(&self, figure_of: impl Fn(&str, u64) -> f64) -> Vec<f64> {
        let of = |name| self.buffers.iter().map(|&buffer| figure_of(name, buffer)).collect::<Vec<_>>();
        self.names.iter().flat_map(|name| of(name)).collect()
    }

    fn response(&self) -> Table {
        let mut columns = vec!["workload".to_owned(), "buffer cache".to_owned()];
        columns.extend(self.sizes.iter().map(|size| format!("{} (ms)", HumanBytes(*size))));
        columns.push("gain from the smallest to the largest (%)".to_owned());
        let mut table = Table::new("File system response time", &columns.join(" | "));
        for name in &self.names {
            for &buffer in &self.buffers {
                let times: Vec<f64> = self.sizes.iter().map(|&size| self.fsrt(name, buffer, size)).collect();
                let gain = gain_percent(times[0], times[times.len() - 1]);
                let cells = times.into_iter().chain([gain]).map(figure);
                table.row([(*name).to_owned(), HumanBytes(buffer).to_string()].into_iter().chain(cells));
            }
        }
        table
    }

    fn misses(&self) -> Table {
        let mut table = Table::new(
            "Equation 4 and the simulation, 512 KB of built-in cache",
            "workload | buffer cache | P_miss (%) | P_DiskMiss (%) | of reads alone (%) | P_DiskMiss at 16 MB (%) | FSRT, eq. 4 (ms) | \
            FSRT, simulated (ms)",
        );
        for name in &self.names {
            for &buffer in &self.buffers {
                let percent = |size, what| 100.0 * self.get(name, buffer, size, what);
                let [miss, disk, reads] =
                    ["block_miss", "p_disk_miss", "p_disk_read_miss"].map(|what| percent(SMALL, what));
                let (large, human) = (percent(LARGE, "p_disk_miss"), HumanBytes(buffer).to_string());
                let times = (self.model(name, buffer, SMALL), self.fsrt(name, buffer, SMALL));
                table.row(cells![*name, human, miss, disk, reads, large, times.0, times.1]);
            }
        }
        table
    }

    /// Claims of sections 4 and 5.1.1, about the difference that the built-in cache makes.
    fn analysis(&self, settings: &Settings) -> Vec<Claim> {
        let claim = |id| settings.claim(id);
        let disk_miss = |name: &str, buffer, size| 100.0 * self.get(name, buffer, size, "p_disk_miss");
        let model = |size| move |name: &str, buffer| self.model(name, buffer, size);
        let falls = |name: &str, buffer| disk_miss(name, buffer, SMALL) - disk_miss(name, buffer, LARGE);
        let delta = |name: &str, buffer| gain_percent(model(SMALL)(name, buffer), model(LARGE)(name, buffer));
        let any_size = self
            .sizes
            .iter()
            .filter(|size| **size > SMALL)
            .flat_map(|&size| self.each(|name, buffer| self.gain(name, buffer, size)));
        let always =
            [SMALL, LARGE].map(|size| self.each(|name, buffer| disk_miss(name, buffer, size))).concat();
        vec![
            claim("any-size").reaching(&BUFFER_16).sizes(&any_size.collect::<Vec<_>>()),
            claim("disk-misses").sizes(&always),
            claim("disk-misses-fall").sizes(&self.each(falls)),
            claim("delta").sizes(&self.each(delta)),
        ]
    }

    /// Claims of section 5.1.1 about the buffer cache.
    fn by_buffer(&self, settings: &Settings) -> Vec<Claim> {
        let mut claims = Vec::new();
        let miss = |name: &str, buffer| 100.0 * self.get(name, buffer, SMALL, "block_miss");
        if self.buffers.contains(&MISS_BUFFER) {
            let desktop = self.names.iter().filter(|name| !["WEB", POSTMARK].contains(name));
            let misses: Vec<f64> = desktop.map(|name| miss(name, MISS_BUFFER)).collect();
            if !misses.is_empty() {
                claims.push(settings.claim("misses").spread(&misses));
            }
            for (name, id) in [("WEB", "misses-web"), (POSTMARK, "misses-postmark")] {
                if self.names.contains(&name) {
                    claims.push(settings.claim(id).range(miss(name, MISS_BUFFER)));
                }
            }
        }
        let [first, .., last] = self.buffers[..] else { return claims };
        let at = |name: &str, buffer| self.get(name, buffer, SMALL, "p_disk_miss");
        let rises: Vec<f64> = self.names.iter().map(|name| at(name, last) / at(name, first)).collect();
        claims.push(settings.claim("disk-misses-rise").spread(&rises));
        let access = |name: &&str| {
            // The time of hits is as good as nothing: they need the bus alone, and there are few of them.
            let time = |&buffer: &u64| {
                self.get(name, buffer, SMALL, "access_ms") / self.get(name, buffer, SMALL, "p_disk_miss")
            };
            let times: Vec<f64> = self.buffers.iter().map(time).collect();
            most(times.iter().copied()) / least(times)
        };
        claims.push(settings.claim("access").spread(&self.names.iter().map(access).collect::<Vec<_>>()));
        claims
    }

    fn plots(&self) -> impl Iterator<Item = Plot> {
        self.buffers.iter().map(|&buffer| {
            Plot::lines(
                format!("Response time by built-in cache, {} of buffer cache (Fig. 1)", HumanBytes(buffer)),
                Axis::log("built-in cache (KiB)"),
                Axis::log("file system response time (ms)"),
                self.names.iter().map(|name| {
                    let point = |size: &u64| (*size as f64 / 1024.0, self.fsrt(name, buffer, *size));
                    Series::new(*name, self.sizes.iter().map(point).collect())
                }),
            )
        })
    }
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let drive = drive::builtin(DRIVE).map_err(LabError::setup)?;
    let grid = Grid {
        samples,
        names: settings.choices("workloads", &WORKLOADS)?,
        buffers: settings.sizes("buffers")?,
        sizes: settings.sizes("sizes")?,
        positioning_ms: drive.mean_seek().as_millis_f64() + drive.revolution().as_millis_f64() / 2.0,
        overhead_ms: drive.hit_overhead().as_millis_f64(),
    };
    let (mut tables, mut claims) = (vec![grid.response()], Vec::new());
    if grid.sizes.contains(&SMALL) && grid.sizes.contains(&LARGE) {
        for mib in [16, 128].into_iter().filter(|mib| grid.buffers.contains(&(mib << 20))) {
            let gains: Vec<f64> = grid.names.iter().map(|name| grid.gain(name, mib << 20, LARGE)).collect();
            claims.push(settings.claim(&format!("buffer-{mib}")).spread(&gains));
        }
        tables.push(grid.misses());
        claims.extend(grid.analysis(settings));
        claims.extend(grid.by_buffer(settings));
    }
    Ok(Findings { tables, plots: grid.plots().collect(), claims })
}
