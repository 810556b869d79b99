//! Generates the candidates: no cache, a write cache in RAM, a log on the same disk, on another disk, on an SSD; each in several sizes and
//! with several policies. A candidate is a stack file, so what is measured is what is served. The RAM of a server is volatile: nothing here
//! declares it to be more.

use std::fmt::Write;
use std::path::Path;

use dcd_engine::SECTOR_BYTES;
use dcd_engine::log_cache::Promise;
use dcd_model::Drive;
use dcd_stack::{HumanBytes, toml_text};
use serde::{Deserialize, Serialize};

/// Medium of the cache. The order is that of what has to be bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// No cache
    None,
    /// A write cache in the server's RAM: a flush destages it
    Ram,
    /// A log on a slice of the disk itself
    SameDisk,
    /// A log on another disk of the same model
    OtherDisk,
    /// A log on an SSD
    Ssd,
    /// A write cache in RAM that survives: a flush is answered from it
    Nvram,
}

impl Medium {
    pub const fn words(self) -> &'static str {
        match self {
            Medium::None => "no cache",
            Medium::Ram => "write cache in RAM",
            Medium::SameDisk => "log on the same disk",
            Medium::OtherDisk => "log on another disk",
            Medium::Ssd => "log on an SSD",
            Medium::Nvram => "write cache in NVRAM",
        }
    }

    pub const fn in_ram(self) -> bool {
        matches!(self, Medium::Ram | Medium::Nvram)
    }

    pub const fn has_log(self) -> bool {
        match self {
            Medium::None | Medium::Ram | Medium::Nvram => false,
            Medium::SameDisk | Medium::OtherDisk | Medium::Ssd => true,
        }
    }
}

/// A policy of destaging (when, what and how): a name, and the fields of a stack file that select it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub name: &'static str,
    fields: &'static str,
    /// True if the policy waits until the disk has been idle for some time.
    idle: bool,
}

/// Biswas, Ramakrishnan and Towsley (1993), sections 4.1 to 4.4, and idleness as the log cache has it. Free piggybacking is
/// not among them: it needs to see the arm, which no served disk shows.
pub const RAM_POLICIES: [Policy; 5] = [
    Policy { name: "one threshold", fields: "when = \"one-threshold\"\n", idle: false },
    Policy { name: "two thresholds", fields: "when = \"two-thresholds\"\n", idle: false },
    Policy {
        name: "two thresholds, piggyback by track",
        fields: "when = \"two-thresholds\"\npiggyback = \"full\"\nunit = \"track\"\n",
        idle: false,
    },
    Policy {
        name: "two thresholds, piggyback by cylinder",
        fields: "when = \"two-thresholds\"\npiggyback = \"full\"\nunit = \"cylinder\"\n",
        idle: false,
    },
    Policy { name: "when idle", fields: "when = \"idle\"\nwhat = \"wow\"\n", idle: true },
];

pub const LOG_POLICIES: [Policy; 2] = [
    Policy { name: "when idle", fields: "when = \"idle\"\n", idle: true },
    Policy { name: "between marks", fields: "when = \"high-low\"\n", idle: false },
];

/// Fields of a stack file: which writes bypass the log, how many are destaged at a time, and whether reads are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    pub name: &'static str,
    fields: &'static str,
    /// A log that spins is refused with it.
    ssd_only: bool,
}

impl Tuning {
    const DEFAULT: Tuning = Tuning { name: "", fields: "", ssd_only: false };
}

pub const LOG_TUNINGS: [Tuning; 5] = [
    Tuning::DEFAULT,
    Tuning { name: "no bypass", fields: "bypass = 0\n", ssd_only: false },
    Tuning { name: "depth 4", fields: "destage-depth = 4\n", ssd_only: false },
    Tuning { name: "reads kept", fields: "reads = \"keep\"\n", ssd_only: true },
    Tuning { name: "no bypass, reads kept", fields: "bypass = 0\nreads = \"keep\"\n", ssd_only: true },
];

const MILLION: f64 = 1e6;
/// A price is for so many bytes.
const GIGABYTE: f64 = 1e9;

const NO_POLICY: Policy = Policy { name: "-", fields: "", idle: false };

/// A setup of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub medium: Medium,
    pub bytes: u64,
    pub policy: Policy,
    pub tuning: Tuning,
    /// The price in millionths; 0 where none was given.
    pub price_millionths: u64,
}

impl Candidate {
    pub const NONE: Candidate = Candidate {
        medium: Medium::None,
        bytes: 0,
        policy: NO_POLICY,
        tuning: Tuning::DEFAULT,
        price_millionths: 0,
    };

    /// Order of candidates by cost: cheaper ones are less.
    pub const fn cost(&self) -> (u64, Medium, u64) {
        (self.price_millionths, self.medium, self.bytes)
    }

    pub fn price(&self) -> f64 {
        self.price_millionths as f64 / MILLION
    }

    pub fn words(&self) -> String {
        match self.medium {
            Medium::None => self.medium.words().to_owned(),
            _ => format!("{}, {}, {}", self.medium.words(), HumanBytes(self.bytes), self.settings()),
        }
    }

    /// Names the policy and the differences from the defaults.
    pub fn settings(&self) -> String {
        let words = [self.policy.name, self.tuning.name];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
    }
}

/// A place for a cache, and the price of a gigabyte there; 0 where that plays no part.
pub type Priced = (Medium, f64);

/// All places for a cache.
pub const MEDIA: [Medium; 5] = [Medium::Ram, Medium::SameDisk, Medium::OtherDisk, Medium::Ssd, Medium::Nvram];

/// Sizes to try.
#[derive(Clone, Debug)]
pub struct Sizes {
    pub log: Vec<u64>,
    pub ram: Vec<u64>,
}

/// All candidates, the cheapest first. A cache in RAM that holds all that is ever written is as large as one can be of use, so
/// of larger sizes one is kept; a log is not bounded by that, as it keeps what was overwritten until its tail comes by.
pub fn grid(media: &[Priced], sizes: &Sizes, written_bytes: u64) -> Vec<Candidate> {
    let mut candidates = vec![Candidate::NONE];
    let mut add = |medium: Medium, sizes: &[u64], policies: &[Policy], tunings: &[Tuning]| {
        let Some(&(_, gigabyte)) = media.iter().find(|(named, _)| *named == medium) else { return };
        for &bytes in sizes {
            for &policy in policies {
                let fits = |tuning: &&Tuning| medium == Medium::Ssd || !tuning.ssd_only;
                let price_millionths = (gigabyte * MILLION * bytes as f64 / GIGABYTE).round() as u64;
                let one = |&tuning: &Tuning| Candidate { medium, bytes, policy, tuning, price_millionths };
                candidates.extend(tunings.iter().filter(fits).map(one));
            }
        }
    };
    let useful = sizes.ram.iter().filter(|&&bytes| bytes < written_bytes).count() + 1;
    for medium in MEDIA {
        match medium.has_log() {
            true => add(medium, &sizes.log, &LOG_POLICIES, &LOG_TUNINGS),
            false => {
                add(medium, &sizes.ram[..useful.min(sizes.ram.len())], &RAM_POLICIES, &[Tuning::DEFAULT])
            }
        }
    }
    candidates.sort_by_key(Candidate::cost);
    candidates
}

/// Settings that all candidates have in common.
#[derive(Clone, Debug)]
pub struct Setting {
    /// As a stack file names it: a drive that comes with the program, or the absolute path of a drive file.
    pub drive_name: String,
    pub drive: Drive,
    /// Size of the part of the drive that the workload uses, from its beginning.
    pub data_bytes: u64,
    pub promise: Promise,
    pub block_bytes: u32,
}

fn size(bytes: u64) -> String {
    match [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
        .iter()
        .find(|(unit, _)| bytes.is_multiple_of(*unit))
    {
        Some((unit, name)) => format!("\"{}{name}\"", bytes / unit),
        None => format!("\"{bytes}\""),
    }
}

impl Setting {
    const fn promise_word(&self) -> &'static str {
        match self.promise {
            Promise::Flush => "flush",
            Promise::Always => "always",
            Promise::Ordered => "ordered",
        }
    }

    /// The cache's layer, over "log" and "disk".
    fn layer(&self, candidate: &Candidate, bytes: u64, data: &str) -> String {
        let fields = format!("{}{}", candidate.policy.fields, candidate.tuning.fields);
        match candidate.medium {
            Medium::None => String::new(),
            Medium::SameDisk | Medium::OtherDisk | Medium::Ssd => {
                let promise = self.promise_word();
                format!(
                    "[layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"{data}\"\npromise = \"{promise}\"\n{fields}"
                )
            }
            Medium::Ram | Medium::Nvram => {
                let survives = if candidate.medium == Medium::Nvram { "non-volatile = true\n" } else { "" };
                let depth = self.drive.queue_depth();
                format!(
                    "[layer.cache]\nkind = \"write-cache\"\nof = \"{data}\"\nwrite-size = {}\n\
                     read-size = 0\nblock = {}\ndepth = {depth}\n{survives}{fields}",
                    size(bytes),
                    self.block_bytes
                )
            }
        }
    }

    /// The stack file that is simulated: the candidate before the modelled disk.
    pub fn simulated(&self, candidate: &Candidate) -> String {
        self.scaled(candidate, 0)
    }

    /// Returns the stack file for a sample: all caches are smaller by two to this power, the disk's own too.
    pub fn scaled(&self, candidate: &Candidate, sampled: u32) -> String {
        let bytes = candidate.bytes >> sampled;
        let log = size(bytes);
        let (export, data) = match candidate.medium {
            Medium::None => ("disk", "disk"),
            Medium::SameDisk => ("cache", "data"),
            Medium::Ram | Medium::OtherDisk | Medium::Ssd | Medium::Nvram => ("cache", "disk"),
        };
        // No more than is used: memory that stands for terabytes takes time to set up.
        let medium_bytes = self.data_bytes + if candidate.medium == Medium::SameDisk { bytes } else { 0 };
        let mut text = format!(
            "export = \"{export}\"\n\n[device.medium]\nmemory = {}\n\n\
             [layer.disk]\nkind = \"disk\"\nof = \"medium\"\ndrive = {}\n",
            size(medium_bytes),
            toml_text(&self.drive_name)
        );
        text += &self.drive_buffer(sampled);
        match candidate.medium {
            Medium::None | Medium::Ram | Medium::Nvram => {}
            Medium::SameDisk => {
                let _ = write!(
                    text,
                    "\n[layer.log]\nkind = \"slice\"\nof = \"disk\"\nsize = {log}\n\n\
                     [layer.data]\nkind = \"slice\"\nof = \"disk\"\nfirst = {log}\n"
                );
            }
            Medium::OtherDisk => {
                let _ = write!(
                    text,
                    "\n[device.other]\nmemory = {log}\n\n[layer.log]\nkind = \"disk\"\nof = \"other\"\ndrive = {}\n{}",
                    toml_text(&self.drive_name),
                    self.drive_buffer(sampled)
                );
            }
            Medium::Ssd => {
                let _ = write!(text, "\n[device.log]\nmemory = {log}\n");
            }
        }
        if candidate.medium != Medium::None {
            text.push('\n');
            text += &self.layer(candidate, bytes, data);
            if sampled > 0 && candidate.policy.idle {
                // The disk is idle for longer where fewer requests come.
                let _ = writeln!(text, "idle-empty = \"{}ms\"", 1_000u64 << sampled);
                if candidate.medium.in_ram() {
                    let _ = writeln!(text, "idle-full = \"{}ms\"", 1u64 << sampled);
                }
            }
        }
        text
    }

    /// The buffer of a modelled drive under a sample; as the drive file has it for all of the workload.
    fn drive_buffer(&self, sampled: u32) -> String {
        let (segments, sectors) = self.drive.segments();
        if sampled == 0 || sectors == 0 {
            return String::new();
        }
        // Fewer segments, or a smaller one where that would be less than one.
        let sectors = (((segments as u64 * sectors) >> sampled).max(1)).min(sectors);
        format!("segments = {}\nsegment-size = {}\n", (segments >> sampled).max(1), sectors * SECTOR_BYTES)
    }

    /// The stack file to serve: the same cache over real devices.
    pub fn served(&self, candidate: &Candidate, places: &Places<'_>) -> String {
        let device = |name: &str, path: &Path, bytes: u64| {
            // What is there was named from here, and has its size; what is not is made beside the stack file.
            let there = path.canonicalize().and_then(|_| std::path::absolute(path));
            let named = there.as_deref().unwrap_or(path);
            let mut text = format!("[device.{name}]\npath = {}\n", toml_text(&named.display().to_string()));
            // Never makes a file where a device should be.
            if there.is_err() && !path.starts_with("/dev") {
                let _ = writeln!(text, "size = {}", size(bytes));
            }
            text + "\n"
        };
        let export = if candidate.medium == Medium::None { "disk" } else { "cache" };
        let mut text = format!(
            "export = \"{export}\"\n\n[serve]\nnbd = \"unix:disk.sock\"\ncontrol = \"disk.control\"\n\n{}",
            device("disk", places.disk, self.data_bytes)
        );
        if candidate.medium == Medium::SameDisk {
            text += "# A partition at the beginning of the same disk.\n";
        }
        if candidate.medium.has_log() {
            text += "# \"dcd format\" overwrites it.\n";
            if places.log_bytes.is_some_and(|bytes| bytes > candidate.bytes) {
                text += &device("log-device", places.log, candidate.bytes);
                let log = size(candidate.bytes);
                let _ = write!(
                    text,
                    "# As much of it as was measured.\n[layer.log]\nkind = \"slice\"\nof = \"log-device\"\nsize = {log}\n\n"
                );
            } else {
                text += &device("log", places.log, candidate.bytes);
            }
        }
        text += &self.layer(candidate, candidate.bytes, "disk");
        match candidate.medium {
            Medium::Ram | Medium::Nvram => {
                let _ = write!(
                    text,
                    "# What lies together where tracks cannot be seen: as much as on the modelled drive.\nregion = {}\n",
                    size(self.region_bytes(candidate))
                );
            }
            Medium::None | Medium::Ssd | Medium::SameDisk | Medium::OtherDisk => {}
        }
        text
    }

    /// The mean track or cylinder, in blocks.
    fn region_bytes(&self, candidate: &Candidate) -> u64 {
        let by_cylinder = candidate.policy.fields.contains("cylinder");
        let tracks = u64::from(self.drive.cylinders()) * u64::from(self.drive.heads());
        let regions = if by_cylinder { u64::from(self.drive.cylinders()) } else { tracks };
        let block = u64::from(self.block_bytes);
        (self.drive.sectors() * SECTOR_BYTES / regions.max(1) / block).max(1) * block
    }
}

/// Paths of the served stack.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    pub disk: &'a Path,
    pub log: &'a Path,
    /// The size of the log's device; none where it is to be made, or is missing.
    pub log_bytes: Option<u64>,
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::virtual_run::{RunOptions, VirtualRun, made};

    fn setting(drive: &str) -> Setting {
        Setting {
            drive_name: drive.to_owned(),
            drive: dcd_model::drive::builtin(drive).unwrap(),
            data_bytes: 8 << 20,
            promise: Promise::Always,
            block_bytes: 4096,
        }
    }

    #[test]
    fn every_candidate_is_a_stack_file_to_simulate_and_to_serve() {
        let sizes = Sizes { log: vec![64 << 20, 1 << 30], ram: vec![1 << 20, 4 << 20] };
        let all = grid(&MEDIA.map(|medium| (medium, 0.0)), &sizes, u64::MAX);
        assert_eq!(all.len(), 1 + 2 * 2 * (3 + 3 + 5) + 2 * 2 * 5);
        assert!(all.is_sorted_by_key(Candidate::cost));
        let log = Path::new("/dev/nvme0n1p3");
        let to_be_made = Places { disk: Path::new("disk.img"), log, log_bytes: None };
        let larger = Places { log_bytes: Some(1 << 40), ..to_be_made };
        for drive in dcd_model::drive::names() {
            let setting = setting(drive);
            for candidate in &all {
                let texts = [
                    setting.simulated(candidate),
                    setting.scaled(candidate, 3),
                    setting.served(candidate, &to_be_made),
                    setting.served(candidate, &larger),
                ];
                for text in texts {
                    let parsed = made(&text);
                    let file = parsed.unwrap_or_else(|error| panic!("{error}\n{text}"));
                    assert_eq!(
                        !file.non_volatile_layers().is_empty(),
                        candidate.medium == Medium::Nvram,
                        "{text}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_caches_of_every_drive_can_be_scaled() {
        let candidate = Candidate {
            medium: Medium::Ram,
            bytes: 1 << 20,
            policy: RAM_POLICIES[1],
            tuning: Tuning::DEFAULT,
            price_millionths: 0,
        };
        for drive in dcd_model::drive::names() {
            let text = setting(drive).scaled(&candidate, 3);
            let file = made(&text).unwrap();
            let run = VirtualRun::start(&file, RunOptions::new(1));
            assert!(run.is_ok(), "{}\n{text}", run.err().unwrap());
        }
    }

    #[test]
    fn prices_decide_what_is_cheaper() {
        let sizes = Sizes { log: vec![1 << 30], ram: vec![1 << 20] };
        let first = |media: &[Priced]| grid(media, &sizes, u64::MAX)[1];
        assert_eq!(first(&[(Medium::SameDisk, 0.0), (Medium::Ssd, 0.0)]).medium, Medium::SameDisk);
        let ssd = first(&[(Medium::SameDisk, 0.5), (Medium::Ssd, 0.1)]);
        assert_eq!((ssd.medium, ssd.price_millionths), (Medium::Ssd, 107_374));
    }

    #[test]
    fn a_cache_in_ram_is_not_larger_than_what_is_written() {
        let sizes = Sizes { log: vec![64 << 20], ram: vec![1 << 20, 4 << 20, 16 << 20] };
        let largest = |written| {
            let all = grid(&[(Medium::Ram, 0.0)], &sizes, written);
            all.iter().map(|candidate| candidate.bytes).max().unwrap()
        };
        assert_eq!(
            [100, 1 << 20, 2 << 20, 4 << 20, 5 << 20].map(largest),
            [1 << 20, 1 << 20, 4 << 20, 4 << 20, 16 << 20]
        );
    }
}
