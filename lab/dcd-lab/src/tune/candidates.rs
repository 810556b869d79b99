//! Generates the candidates: no cache, a write cache in RAM, a log on the same disk, on another disk, on an SSD; each in several sizes and
//! with several policies. A candidate is a stack file, so what is measured is what is served. The RAM of a server is volatile: nothing here
//! declares it to be more.

use std::fmt::Write;
use std::path::Path;

use dcd_engine::SECTOR_BYTES;
use dcd_engine::log_cache::Promise;
use dcd_model::{AnyDrive, Drive};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Policy {
    pub name: &'static str,
    fields: &'static str,
}

/// Biswas, Ramakrishnan and Towsley (1993), sections 4.1 to 4.4, and idleness as the log cache has it. Free piggybacking is
/// not among them: it needs to see the arm, which no served disk shows.
pub const RAM_POLICIES: [Policy; 5] = [
    Policy { name: "one threshold", fields: "when = \"one-threshold\"\n" },
    Policy { name: "two thresholds", fields: "when = \"two-thresholds\"\n" },
    Policy {
        name: "two thresholds, piggyback by track",
        fields: "when = \"two-thresholds\"\npiggyback = \"full\"\nunit = \"track\"\n",
    },
    Policy {
        name: "two thresholds, piggyback by cylinder",
        fields: "when = \"two-thresholds\"\npiggyback = \"full\"\nunit = \"cylinder\"\n",
    },
    Policy { name: "when idle", fields: "when = \"idle\"\nwhat = \"wow\"\n" },
];

pub const LOG_POLICIES: [Policy; 2] = [
    Policy { name: "when idle", fields: "when = \"idle\"\n" },
    Policy { name: "between marks", fields: "when = \"high-low\"\n" },
];

/// Fields of a stack file: which writes bypass the log, how many are destaged at a time, and whether reads are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    Tuning { name: "depth 1", fields: "destage-depth = 1\n", ssd_only: false },
    Tuning { name: "reads kept", fields: "reads = \"keep\"\n", ssd_only: true },
    Tuning { name: "no bypass, reads kept", fields: "bypass = 0\nreads = \"keep\"\n", ssd_only: true },
];

/// Region of a write cache on a drive without tracks: its default.
const REGION_BYTES: u64 = 1 << 20;
const MILLION: f64 = 1e6;
/// A price is for so many bytes.
const GIGABYTE: f64 = 1e9;

const NO_POLICY: Policy = Policy { name: "-", fields: "" };

/// A setup of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

    /// No cache, and the drive's own write cache on.
    pub const AS_SOLD: Candidate =
        Candidate { policy: Policy { name: "its own write cache on", fields: "" }, ..Candidate::NONE };

    /// Order of candidates by cost: cheaper ones are less.
    pub const fn cost(&self) -> (u64, Medium, u64) {
        (self.price_millionths, self.medium, self.bytes)
    }

    /// The order by cost, and of one cost the simpler ones first.
    pub fn order(&self) -> ((u64, Medium, u64), usize) {
        let place = settings(self.medium).position(|settings| settings == (self.policy, self.tuning));
        (self.cost(), place.unwrap_or(0))
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

/// Sizes that a log and RAM must have to be of use, and the unit of sizes.
pub const LOG_BYTES_MIN: u64 = 16 << 20;
pub const RAM_BYTES_MIN: u64 = 64 << 10;
pub const ALIGN_BYTES: u64 = 4096;
/// The next size is so many times the largest one.
const GO_ON: u64 = 4;

/// All places for a cache.
pub const MEDIA: [Medium; 5] = [Medium::Ram, Medium::SameDisk, Medium::OtherDisk, Medium::Ssd, Medium::Nvram];

/// Sizes to try.
#[derive(Clone, Debug)]
pub struct Sizes {
    pub log: Vec<u64>,
    pub ram: Vec<u64>,
}

/// The settings of a cache on a medium, the simplest first.
fn settings(medium: Medium) -> impl Iterator<Item = (Policy, Tuning)> {
    let (policies, tunings): (&[Policy], &[Tuning]) = match medium {
        Medium::None => (&[NO_POLICY], &[Tuning::DEFAULT]),
        Medium::Ram | Medium::Nvram => (&RAM_POLICIES, &[Tuning::DEFAULT]),
        Medium::SameDisk | Medium::OtherDisk | Medium::Ssd => (&LOG_POLICIES, &LOG_TUNINGS),
    };
    let fits = move |tuning: &&Tuning| medium == Medium::Ssd || !tuning.ssd_only;
    tunings.iter().filter(fits).flat_map(move |tuning| policies.iter().map(move |policy| (*policy, *tuning)))
}

/// The sizes of a medium that are tried, and how far they may go on.
#[derive(Clone, Debug)]
struct Sized {
    medium: Medium,
    /// The price of a gigabyte.
    price: f64,
    sizes: Vec<u64>,
    min: u64,
    max: u64,
}

impl Sized {
    fn candidate(&self, bytes: u64, (policy, tuning): (Policy, Tuning)) -> Candidate {
        let price_millionths = (self.price * MILLION * bytes as f64 / GIGABYTE).round() as u64;
        Candidate { medium: self.medium, bytes, policy, tuning, price_millionths }
    }
}

/// The table of each medium: sizes, and settings.
#[derive(Clone, Debug)]
pub struct Grid(Vec<Sized>);

impl Grid {
    /// `useful`: a larger cache on a medium is of no use. `room`: the most that a cache may have there. A medium without room for the
    /// smallest cache is left out.
    pub fn new(
        media: &[Priced],
        sizes: &Sizes,
        useful: impl Fn(Medium) -> u64,
        room: impl Fn(Medium) -> u64,
    ) -> Grid {
        let sized = |&(medium, price): &Priced| {
            let (of_medium, min) = match medium.has_log() {
                true => (&sizes.log, LOG_BYTES_MIN),
                false => (&sizes.ram, RAM_BYTES_MIN),
            };
            let (useful, room) = (useful(medium), room(medium) / ALIGN_BYTES * ALIGN_BYTES);
            let mut all: Vec<u64> = of_medium.iter().copied().filter(|&bytes| bytes <= room).collect();
            if all.len() < of_medium.len() && room >= min && all.last() != Some(&room) {
                all.push(room);
            }
            if medium.in_ram() {
                all.truncate(all.iter().filter(|&&bytes| bytes < useful).count() + 1);
            }
            let max = room.min(useful.next_multiple_of(ALIGN_BYTES).max(*all.last()?));
            Some(Sized { medium, price, sizes: all, min, max })
        };
        Grid(media.iter().filter_map(sized).collect())
    }

    pub fn media(&self) -> impl Iterator<Item = Medium> {
        self.0.iter().map(|sized| sized.medium)
    }

    fn of(&self, medium: Medium) -> Option<&Sized> {
        self.0.iter().find(|sized| sized.medium == medium)
    }

    pub fn sizes(&self, medium: Medium) -> &[u64] {
        self.of(medium).map_or(&[], |sized| &sized.sizes)
    }

    /// Adds a size above the largest one, if one may be larger.
    pub fn go_on(&mut self, medium: Medium) {
        let Some(sized) = self.0.iter_mut().find(|sized| sized.medium == medium) else { return };
        let last = *sized.sizes.last().expect("a medium has a size");
        if last < sized.max {
            sized.sizes.push(last.saturating_mul(GO_ON).min(sized.max));
        }
    }

    /// No cache, and all sizes with the default settings.
    pub fn first(&self) -> Vec<Candidate> {
        let sized = |sized: &Sized| {
            let default = settings(sized.medium).next().expect("a cache has settings");
            sized.sizes.iter().map(|&bytes| sized.candidate(bytes, default)).collect::<Vec<_>>()
        };
        std::iter::once(Candidate::NONE).chain(self.0.iter().flat_map(sized)).collect()
    }

    pub fn all(&self) -> Vec<Candidate> {
        let sized = |sized: &Sized| {
            let of = |settings| sized.sizes.iter().map(move |&bytes| sized.candidate(bytes, settings));
            settings(sized.medium).flat_map(of).collect::<Vec<_>>()
        };
        std::iter::once(Candidate::NONE).chain(self.0.iter().flat_map(sized)).collect()
    }

    /// The other settings at a candidate's size, and the other sizes with its settings, half and double of its own among them.
    pub fn neighbours(&self, candidate: &Candidate) -> Vec<Candidate> {
        let Some(sized) = self.of(candidate.medium) else { return Vec::new() };
        let near = [candidate.bytes / 2 / ALIGN_BYTES * ALIGN_BYTES, candidate.bytes.saturating_mul(2)];
        let near = near.iter().filter(|bytes| (sized.min..=sized.max).contains(bytes));
        let own = (candidate.policy, candidate.tuning);
        let sizes = sized.sizes.iter().chain(near).map(|&bytes| sized.candidate(bytes, own));
        settings(sized.medium).map(|other| sized.candidate(candidate.bytes, other)).chain(sizes).collect()
    }
}

/// Settings that all candidates have in common.
#[derive(Clone, Debug)]
pub struct Setting {
    /// As a stack file names it: a drive that comes with the program, or the absolute path of a drive file.
    pub drive_name: String,
    pub drive: AnyDrive,
    /// The SSD of a log, likewise; none for one that takes the same time for everything.
    pub ssd: Option<(String, AnyDrive)>,
    /// Size of the part of the drive that the workload uses, from its beginning.
    pub data_bytes: u64,
    pub promise: Promise,
    pub block_bytes: u32,
    /// Bytes that may be written to an SSD in its life.
    pub endurance_bytes: Option<u64>,
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

/// A log on a modelled drive of its own.
fn modelled_log(device: &str, log: &str, drive: &str) -> String {
    format!(
        "\n[device.{device}]\nmemory = {log}\n\n[layer.log]\nkind = \"disk\"\nof = \"{device}\"\ndrive = {}\n",
        toml_text(drive)
    )
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
        let bytes = candidate.bytes;
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
        if *candidate == Candidate::AS_SOLD {
            text += "write-cache = \"on\"\n";
        }
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
                text += &modelled_log("other", &log, &self.drive_name);
            }
            Medium::Ssd => match &self.ssd {
                None => {
                    let _ = write!(text, "\n[device.log]\nmemory = {log}\n");
                }
                Some((name, _)) => text += &modelled_log("ssd", &log, name),
            },
        }
        if candidate.medium != Medium::None {
            text.push('\n');
            text += &self.layer(candidate, bytes, data);
        }
        text
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
            text += "# At the beginning of the same disk, as a partition.\n";
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
        let tracks = |drive: &Drive| u64::from(if by_cylinder { 1 } else { drive.heads() });
        let regions = |drive: &Drive| u64::from(drive.cylinders()) * tracks(drive);
        let Some(regions) = self.drive.rotating().map(regions) else { return REGION_BYTES };
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
    use crate::virtual_run::made;

    fn setting(drive: &str) -> Setting {
        Setting {
            drive_name: drive.to_owned(),
            drive: AnyDrive::open(drive, Path::new("")).unwrap(),
            ssd: Some(("ssd-nvme-2020".to_owned(), AnyDrive::open("ssd-nvme-2020", Path::new("")).unwrap())),
            data_bytes: 8 << 20,
            promise: Promise::Always,
            block_bytes: 4096,
            endurance_bytes: None,
        }
    }

    fn grid(media: &[Priced], sizes: &Sizes, written_bytes: u64) -> Grid {
        Grid::new(media, sizes, |_| written_bytes, |_| u64::MAX)
    }

    #[test]
    fn every_candidate_is_a_stack_file_to_simulate_and_to_serve() {
        let sizes = Sizes { log: vec![64 << 20, 1 << 30], ram: vec![1 << 20, 4 << 20] };
        let mut all = grid(&MEDIA.map(|medium| (medium, 0.0)), &sizes, u64::MAX >> 1).all();
        assert_eq!(all.len(), 1 + 2 * 2 * (3 + 3 + 5) + 2 * 2 * 5);
        all.push(Candidate::AS_SOLD);
        let log = Path::new("/dev/nvme0n1p3");
        let to_be_made = Places { disk: Path::new("disk.img"), log, log_bytes: None };
        let larger = Places { log_bytes: Some(1 << 40), ..to_be_made };
        for drive in dcd_model::drive::names() {
            let setting = setting(drive);
            let has_cache = setting.drive.rotating().is_some();
            for candidate in all.iter().filter(|one| has_cache || **one != Candidate::AS_SOLD) {
                let texts = [
                    setting.simulated(candidate),
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
    fn prices_decide_what_is_cheaper() {
        let sizes = Sizes { log: vec![1 << 30], ram: vec![1 << 20] };
        let first = |media: &[Priced]| {
            let all = grid(media, &sizes, u64::MAX >> 1).first();
            all.into_iter().filter(|one| one.medium != Medium::None).min_by_key(Candidate::order).unwrap()
        };
        assert_eq!(first(&[(Medium::SameDisk, 0.0), (Medium::Ssd, 0.0)]).medium, Medium::SameDisk);
        let ssd = first(&[(Medium::SameDisk, 0.5), (Medium::Ssd, 0.1)]);
        assert_eq!((ssd.medium, ssd.price_millionths), (Medium::Ssd, 107_374));
    }

    #[test]
    fn a_cache_in_ram_is_not_larger_than_what_is_written() {
        let sizes = Sizes { log: vec![64 << 20], ram: vec![1 << 20, 4 << 20, 16 << 20] };
        let largest =
            |written| *grid(&[(Medium::Ram, 0.0)], &sizes, written).sizes(Medium::Ram).last().unwrap();
        assert_eq!(
            [100, 1 << 20, 2 << 20, 4 << 20, 5 << 20].map(largest),
            [1 << 20, 1 << 20, 4 << 20, 4 << 20, 16 << 20]
        );
    }

    #[test]
    fn sizes_go_on_as_far_as_there_is_room() {
        let sizes = Sizes { log: vec![64 << 20, 256 << 20], ram: vec![1 << 20] };
        let logs = |room| Grid::new(&[(Medium::Ssd, 0.0)], &sizes, |_| u64::MAX >> 1, |_| room);
        let mut grid = logs(3 << 30);
        (0..5).for_each(|_| grid.go_on(Medium::Ssd));
        assert_eq!(grid.sizes(Medium::Ssd), [64 << 20, 256 << 20, 1 << 30, 3 << 30]);
        // Those without room are left out, and what there is takes their place.
        assert_eq!(logs(100 << 20).sizes(Medium::Ssd), [64 << 20, 100 << 20]);
        assert_eq!(logs(20 << 20).sizes(Medium::Ssd), [20 << 20]);
        assert_eq!(logs(10 << 20).media().count(), 0);
        // Half and double of a size are neighbours as far as they fit.
        let near = |bytes| {
            let grid = logs(100 << 20);
            let one = Candidate { bytes, ..grid.first()[1] };
            let mut near: Vec<u64> = grid.neighbours(&one).iter().map(|one| one.bytes >> 20).collect();
            near.sort_unstable();
            near.dedup();
            near
        };
        assert_eq!((near(64 << 20), near(40 << 20)), (vec![32, 64, 100], vec![20, 40, 64, 80, 100]));
    }
}
