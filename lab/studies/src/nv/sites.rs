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
        let requests: usize = settings.number("requests")?;
        let (description, seed) = (self.describe()?, mix(settings.seed, self.index as u64));
        Ok(Trace::new(&format!("{} {requests}", self.name), seed, move || {
            let mut records = synthesised(&description, seed)?;
            if requests > 0 {
                records.truncate(requests);
            }
            Ok(records)
        }))
    }
}
