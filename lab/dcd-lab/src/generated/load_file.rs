//! A load file: TOML, or a job file of fio.

use std::path::Path;

use dcd_engine::{Nanos, SECTOR_BYTES};
use dcd_stack::{HumanBytes, parse_duration, parse_size};
use serde::Deserialize;
use serde::de::{Deserializer, Error};

use super::fio;
use crate::cli_simulate::Workload;

const SIZE_MAX: u64 = 32 << 20;
const CLIENTS_MAX: usize = 1 << 16;

/// Places of requests on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Places {
    #[default]
    Uniform,
    /// In order, and again from the start after the end.
    Sequential,
    /// Zipf's law with this exponent: few places get most requests.
    Zipf(f64),
    /// The first part of the space gets this share of the requests.
    Hot { part: f64, share: f64 },
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LoadFile {
    /// Clients, each with one request in flight.
    #[serde(default = "one")]
    pub clients: usize,
    /// Sectors, and how often such a request comes, relative to the others.
    #[serde(rename = "size", deserialize_with = "sizes")]
    pub sizes: Vec<(u64, f64)>,
    /// Share of the requests that are reads.
    #[serde(default)]
    pub reads: f64,
    #[serde(default)]
    pub places: Places,
    /// Bytes from the start of the device that the load uses; all of it if not given.
    #[serde(default, deserialize_with = "space")]
    pub space: Option<u64>,
    /// Time from an answer to the next request of the same client, before every `think_every`-th request.
    #[serde(default, deserialize_with = "think")]
    pub think: Nanos,
    #[serde(default = "every")]
    pub think_every: u64,
    /// Requests a second at random times, in place of clients that wait.
    pub rate: Option<f64>,
    /// A flush after so many writes; 0: none.
    #[serde(default)]
    pub flush_every: u64,
    /// Share of the writes with FUA.
    #[serde(default)]
    pub fua: f64,
    /// For these two, options of the command come first.
    pub requests: Option<u64>,
    pub seed: Option<u64>,
}

fn one() -> usize {
    1
}

fn every() -> u64 {
    1
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|e| e.to_string())?;
    match bytes.is_multiple_of(SECTOR_BYTES) && (SECTOR_BYTES..=SIZE_MAX).contains(&bytes) {
        true => Ok(bytes / SECTOR_BYTES),
        false => Err(format!("\"{text}\": write a multiple of 512, up to 32MiB")),
    }
}

fn sizes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(u64, f64)>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Sizes {
        One(String),
        Weighted(Vec<(String, f64)>),
    }
    let list = match Sizes::deserialize(from)? {
        Sizes::One(text) => vec![(text, 1.0)],
        Sizes::Weighted(list) => list,
    };
    let read = |(text, weight): &(String, f64)| Ok((size(text).map_err(D::Error::custom)?, *weight));
    list.iter().map(read).collect()
}

fn space<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    parse_size(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

fn think<'de, D: Deserializer<'de>>(from: D) -> Result<Nanos, D::Error> {
    parse_duration(&String::deserialize(from)?).map_err(D::Error::custom)
}

impl LoadFile {
    /// A load that is always there.
    pub fn builtin(workload: Workload) -> LoadFile {
        let text = match workload {
            Workload::RandomWrites => include_str!("../../loads/random-writes.toml"),
            Workload::FsyncWrites => include_str!("../../loads/fsync-writes.toml"),
            Workload::Mixed => include_str!("../../loads/mixed.toml"),
            Workload::Sequential => include_str!("../../loads/sequential.toml"),
        };
        LoadFile::parse(text).expect("tests read all of them")
    }

    /// Reads a file; one whose name ends in `.fio` is a job file of fio.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or says what is not understood.
    pub fn read(path: &Path) -> Result<LoadFile, String> {
        let named = |e: String| format!("{}: {e}", path.display());
        let text = std::fs::read_to_string(path).map_err(|e| named(e.to_string()))?;
        match path.extension().is_some_and(|ending| ending == "fio") {
            true => fio::parse(&text).and_then(LoadFile::checked).map_err(named),
            false => LoadFile::parse(&text).map_err(named),
        }
    }

    pub fn parse(text: &str) -> Result<LoadFile, String> {
        toml::from_str::<LoadFile>(text).map_err(|e| e.to_string().trim_end().to_owned())?.checked()
    }

    fn checked(self) -> Result<LoadFile, String> {
        let is_share = |share: f64| (0.0..=1.0).contains(&share);
        let wrong = match &self {
            file if !(1..=CLIENTS_MAX).contains(&file.clients) => {
                format!("clients: write 1 to {CLIENTS_MAX}")
            }
            file if file.sizes.is_empty()
                || file.sizes.iter().any(|size| !(size.1 > 0.0 && size.1.is_finite())) =>
            {
                "size: write a size, or sizes with weights above 0: [[\"4KiB\", 60], [\"64KiB\", 40]]"
                    .to_owned()
            }
            file if !is_share(file.reads) || !is_share(file.fua) => {
                "reads, fua: write a share, 0 to 1".to_owned()
            }
            LoadFile { places: Places::Zipf(theta), .. } if !(0.0..=10.0).contains(theta) => {
                "zipf: write an exponent, 0 to 10".to_owned()
            }
            LoadFile { places: Places::Hot { part, share }, .. } if !is_share(*part) || !is_share(*share) => {
                "hot: write part and share, 0 to 1".to_owned()
            }
            file if file.think_every == 0 => "think-every: write 1 or more".to_owned(),
            LoadFile { rate: Some(rate), .. } if !(1e-6..=1e9).contains(rate) => {
                "rate: write requests a second, 0.000001 to 1000000000".to_owned()
            }
            file if file.rate.is_some() && (file.clients > 1 || file.think > Nanos::ZERO) => {
                "rate: requests come at random times and wait for no answer: leave out clients and think"
                    .to_owned()
            }
            _ => return Ok(self),
        };
        Err(wrong)
    }

    /// Sectors of the smallest request.
    pub fn smallest(&self) -> u64 {
        self.sizes.iter().map(|size| size.0).min().unwrap_or(1)
    }

    /// Sectors that the load uses on a device of so many.
    pub fn space_on(&self, sectors: u64) -> Result<u64, String> {
        let largest = self.sizes.iter().map(|size| size.0).max().unwrap_or(1);
        let space = self.space.map_or(sectors, |bytes| bytes / SECTOR_BYTES);
        let least = largest.max(self.space.map_or(0, |_| space));
        match sectors >= least && space >= largest {
            true => Ok(space),
            false if space < largest => {
                Err("the load's space is smaller than its largest request".to_owned())
            }
            false => Err(format!("the export is too small: {} at least", HumanBytes(least * SECTOR_BYTES))),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn the_loads_that_are_always_there_can_be_read() {
        for workload in Workload::value_variants() {
            assert_eq!(LoadFile::builtin(*workload).clients, 1);
        }
    }

    #[test]
    fn what_is_wrong_in_a_load_file_is_told() {
        for (text, said) in [
            ("", "missing field `size`"),
            ("size = \"4KiB\"\nreeds = 0.5\n", "unknown field `reeds`"),
            ("size = \"1000\"", "multiple of 512"),
            ("size = []", "sizes with weights"),
            ("size = [[\"4KiB\", 0]]", "sizes with weights"),
            ("size = \"4KiB\"\nreads = 2", "a share"),
            ("size = \"4KiB\"\nplaces = \"everywhere\"", "unknown variant"),
            ("size = \"4KiB\"\nplaces = { zipf = -1 }", "an exponent"),
            ("size = \"4KiB\"\nrate = 5\nclients = 2", "leave out clients"),
            ("size = \"4KiB\"\nclients = 0", "write 1 to"),
            ("size = \"4KiB\"\nthink = \"soon\"", "line 2"),
        ] {
            let told = LoadFile::parse(text).unwrap_err();
            assert!(told.contains(said), "{text}: {told}");
        }
        let file = LoadFile::parse("size = \"1MiB\"\nspace = \"64MiB\"").unwrap();
        assert_eq!(file.space_on(1 << 17), Ok(1 << 17));
        assert!(file.space_on(1 << 16).unwrap_err().contains("64 MiB at least"));
    }
}
