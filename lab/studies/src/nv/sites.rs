//! The paper's disks and their traces.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use dcd_crash::mix;
use dcd_trace::Record;
use dcd_trace::synthesise::{Description, fitted};

use crate::{LabError, Settings};

/// A disk of Table 3.1. Its name is that of the preset that describes its trace.
#[derive(Debug)]
pub(crate) struct Site {
    pub name: &'static str,
    pub drive: &'static str,
    /// Column in the paper's tables.
    pub index: usize,
}

/// Office applications and decision support, a disk of private users: most requests are writes.
pub(crate) const OFF_DAY: Site = Site { name: "off-day", drive: "ra81", index: 0 };
/// Airline reservation, a database: most requests are reads.
pub(crate) const AIR_RSV: Site = Site { name: "air-rsv", drive: "ra90", index: 1 };
/// Science and office, a disk of private users: reads, and the busiest.
pub(crate) const SCI_OFF: Site = Site { name: "sci-off", drive: "ra82", index: 2 };

pub(crate) const SITES: [&Site; 3] = [&OFF_DAY, &AIR_RSV, &SCI_OFF];

/// A disk that is like the first of its site but for this.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Like {
    pub name: &'static str,
    reads: u64,
    writes: u64,
    /// Part of the sectors read that were read before, and that were written before.
    again: f64,
    after_write: f64,
    written: Option<Written>,
}

/// Writes of a disk, where they are known: bytes a write, and of its overwrites the share, the median and the mean interval.
#[derive(Clone, Copy, Debug)]
struct Written {
    size_bytes: f64,
    overwrite: f64,
    median_ios: f64,
    mean_ios: f64,
}

const fn like(name: &'static str, reads: u64, writes: u64, again: f64, after_write: f64) -> Like {
    Like { name, reads, writes, again, after_write, written: None }
}

/// The disks of Table A1: with R_wc of 12.4 and 29.3 %, of 26.7 and 31.4 %, and of 12.1 and 76.5 %.
pub(crate) const OFF_DAY_OTHERS: [Like; 2] =
    [like("system", 330_916, 12_868, 0.90, 0.01), like("application", 436_041, 45_719, 0.74, 0.03)];
pub(crate) const AIR_RSV_OTHERS: [Like; 2] =
    [like("system", 143_272, 37_065, 0.72, 0.05), like("database", 251_095, 67_546, 0.67, 0.06)];
pub(crate) const SCI_OFF_OTHERS: [Like; 2] =
    [like("system", 812_034, 131_906, 0.90, 0.02), like("database", 576_272, 61_792, 0.25, 0.02)];
/// Another private disk of Off-Day. With Off-Day as the second row of Table 4.11 and the application and the system disk as
/// the third and the fourth, both columns' means want 36600 writes of it. Table 4.5 has 106420 KBytes of such a disk. Reads:
/// as many for each write as on the other private disk.
pub(crate) const PRIVATE: Like = Like {
    written: Some(Written { size_bytes: 2977.0, overwrite: 0.857, median_ios: 127.0, mean_ios: 5763.9 }),
    ..like("private", 23_300, 36_600, 0.36, 0.42)
};

impl Like {
    pub fn describe(&self, first: &Description, device: u32) -> Description {
        let mut this = Description { device, ..first.clone() };
        this.reads.count = self.reads;
        this.writes.count = self.writes;
        this.read_again.share = self.again;
        this.read_after_write.share = self.after_write;
        if let Some(written) = &self.written {
            this.writes.size_bytes.mean = written.size_bytes;
            this.overwrite.share = written.overwrite;
            this.overwrite.interval_ios.median = Some(written.median_ios);
            this.overwrite.interval_ios.mean = written.mean_ios;
        }
        this
    }
}

type Make = Box<dyn FnOnce() -> Result<Vec<Record>, String> + Send>;
type Made = LazyLock<Result<Vec<Record>, String>, Make>;

/// The traces that some point still has to run, by their names and seeds: experiments share them.
static TRACES: Mutex<BTreeMap<(String, u64), Weak<Made>>> = Mutex::new(BTreeMap::new());

/// A trace that is made when it is first wanted, and kept as long as a point has to run it.
#[derive(Clone)]
pub(crate) struct Trace(Arc<Made>);

impl Trace {
    /// `name` and `seed` say all that the trace depends on.
    pub fn new(
        name: &str,
        seed: u64,
        make: impl FnOnce() -> Result<Vec<Record>, String> + Send + 'static,
    ) -> Trace {
        let mut traces = TRACES.lock().expect("nobody panics with the lock");
        let place = traces.entry((name.to_owned(), seed)).or_default();
        let trace = place.upgrade().unwrap_or_else(|| Arc::new(LazyLock::new(Box::new(make))));
        *place = Arc::downgrade(&trace);
        Trace(trace)
    }

    pub fn records(&self) -> Result<&[Record], LabError> {
        self.0.as_ref().as_ref().map(Vec::as_slice).map_err(LabError::setup)
    }
}

/// A trace with the figures of a description.
pub(crate) fn synthesised(description: &Description, seed: u64) -> Result<Vec<Record>, String> {
    let (records, _) = fitted(description, seed).map_err(|error| error.to_string())?;
    Ok(records.collect())
}

impl Site {
    pub fn describe(&self) -> Result<Description, LabError> {
        Description::preset(self.name).map_err(LabError::setup)
    }

    /// The disk's trace, as far as the settings want it.
    pub fn trace(&self, settings: &Settings) -> Result<Trace, LabError> {
        Site::made(settings, self.name.to_owned(), self.describe()?, self.index as u64)
    }

    /// The trace of another disk of the site.
    pub fn trace_like(&self, like: Like, settings: &Settings) -> Result<Trace, LabError> {
        let (name, number) = (format!("{} {}", self.name, like.name), mix(self.index as u64, like.reads));
        Site::made(settings, name, like.describe(&self.describe()?, 0), number)
    }

    fn made(
        settings: &Settings,
        name: String,
        description: Description,
        number: u64,
    ) -> Result<Trace, LabError> {
        let requests: usize = settings.number("requests")?;
        let seed = mix(settings.seed, number);
        Ok(Trace::new(&format!("{name} {requests}"), seed, move || {
            let mut records = synthesised(&description, seed)?;
            if requests > 0 {
                records.truncate(requests);
            }
            Ok(records)
        }))
    }
}
