//! The log cache: a write cache that is a log (Disk Caching Disk; Nightingale, Hu, Yang, USENIX ATC 1999).
//!
//! | module | what |
//! |---|---|
//! | `format` | the bytes on the log device |
//! | `recover`, `activate` | from those bytes to a running cache |
//! | `core` | the state of a running cache, and the dispatch of events |
//! | `write`, `read`, `queue` | requests, and those that wait |
//! | `disks`, `disk_change` | the data disks, and their address space; those that come and go meanwhile |
//! | `data_disk`, `streams` | writes that bypass the log, and whether a flush has covered them |
//! | `nearer` | whether a read goes to a rotational log |
//! | `index`, `table`, `lost` | where the newest copy of each sector is; copies that cannot be read |
//! | `log`, `buffers`, `ring` | the log: its records, how far they are durable, which segments are in use |
//! | `answers` | records in memory that outlives the process |
//! | `commit`, `gather` | durability: group commits, and requests that wait for them; how long a record waits for more of them |
//! | `tail` | which segments are free; superblocks |
//! | `stop`, `clean` | drains and the clean stop |
//! | `rotation`, `places` | where a record goes on a rotational log; what is free in the head's segment |
//! | `forget` | segments whose clean copies are forgotten before the head comes to them |
//! | `freed` | free segments of an SSD, which are discarded |
//! | `destager`, `destaged` | destaging; what recovery would still find of it |
//! | `keep` | reads that are copied to the log |
//! | `through` | writes that go to the data disk first, while the log may be lost |
//! | `failure`, `error` | a dead log device; one that cannot be used |
//! | `copies` | a log with several copies |
//! | `fingerprint` | whether the data disk is as this cache left it |
//! | `spindle` | measurements of the log's disk |
//! | `survey`, `surveying` | finding them from the times at which writes end; while the cache serves |
//! | `summary` | what a segment says of the one before, so that recovery need not read that |
//! | `wear` | what a day writes to the log's device, and a budget for it |
//! | `config`, `status`, `statistics` | the settings; what is told |
//! | `offline` | format, check, dump, rescue |

mod activate;
mod answers;
mod append;
mod buffers;
mod carry_forward;
mod clean;
mod commit;
mod config;
mod copies;
mod core;
mod data_disk;
mod destaged;
mod destager;
mod disk_change;
#[cfg(test)]
mod disk_change_tests;
mod disks;
#[cfg(test)]
mod disks_tests;
mod env;
mod error;
mod failure;
pub mod fingerprint;
mod forget;
pub mod format;
mod freed;
#[cfg(test)]
mod freed_tests;
mod gather;
#[cfg(test)]
mod gather_tests;
#[cfg(test)]
mod hostile_tests;
mod index;
mod keep;
mod log;
mod lost;
mod map;
#[cfg(test)]
mod map_tests;
#[cfg(test)]
mod missing_tests;
mod nearer;
pub mod offline;
mod places;
mod queue;
#[cfg(test)]
mod ranges_tests;
mod read;
pub mod recover;
#[cfg(test)]
mod remembered_tests;
mod ring;
mod rotation;
#[cfg(test)]
mod rules_tests;
#[cfg(test)]
mod scale_tests;
#[cfg(test)]
mod share_tests;
pub mod spindle;
mod statistics;
mod status;
mod stop;
#[cfg(test)]
mod stop_tests;
mod streams;
pub mod summary;
#[cfg(test)]
mod summary_tests;
mod survey;
mod surveying;
pub mod table;
mod tail;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod testing_steps;
mod through;
mod wear;
mod write;

pub use answers::{MemoryInUse, MemoryPlace, SharedMemory, Taken};
pub use config::*;
pub use disks::{AddressSpace, DISKS_MAX, PART_SECTORS};
pub use error::{LogError, OtherData};
pub use freed::FreedDiscards;
pub use log::REST;
pub use statistics::LogCacheStatistics;
pub use status::{DataDiskStatus, LogCacheState, LogCacheStatus, LogHead};
pub use through::WritesState;
pub use wear::WearBudget;

use crate::layer::{ActivateError, AnyStatus, Cx, Event, Geometry, Layer, MapPart, Ports};
use crate::{Extent, Nanos};

/// The log cache as a layer: its log on port 0, its data disks on the ports from 1 on.
pub struct LogCache {
    config: LogCacheConfig,
    disks: usize,
    memory: Option<Box<dyn MemoryPlace>>,
    core: Option<Box<core::Core>>,
}

impl LogCache {
    pub const fn new(config: LogCacheConfig) -> LogCache {
        LogCache { config, disks: 1, memory: None, core: None }
    }

    /// A log cache that keeps answered writes for the next process.
    pub fn with_memory(config: LogCacheConfig, memory: Box<dyn MemoryPlace>) -> LogCache {
        LogCache { memory: Some(memory), ..LogCache::new(config) }
    }

    /// A log cache of so many data disks.
    pub const fn of_disks(mut self, disks: usize) -> LogCache {
        self.disks = disks;
        self
    }

    fn core(&self) -> &core::Core {
        self.core.as_deref().expect("a layer is activated before it is used")
    }
}

impl Layer for LogCache {
    fn handle(&mut self, event: Event, cx: &mut Cx) {
        let core = self.core.as_deref_mut().expect("a layer is activated before it gets events");
        core.handle(event, cx);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.core.as_deref().and_then(core::Core::next_deadline)
    }

    fn check(&self) {
        self.core().check();
    }

    fn geometry(&self) -> Geometry {
        self.disk_geometry(0)
    }

    fn disks(&self) -> usize {
        self.core.as_deref().map_or(self.disks, |core| core.data.space().count())
    }

    fn disk_geometry(&self, disk: usize) -> Geometry {
        self.core().view().geometry(disk)
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        let memory = self.memory.as_deref_mut();
        self.core = Some(Box::new(activate::activate(self.config.clone(), memory, self.disks, below)?));
        Ok(())
    }

    fn map(&self, extent: Extent) -> MapPart {
        self.disk_map(0, extent)
    }

    fn disk_map(&self, disk: usize, extent: Extent) -> MapPart {
        self.core().view().map(disk, extent)
    }

    fn status(&self, now: Nanos) -> Box<dyn AnyStatus> {
        match &self.core {
            Some(core) => Box::new(core.status(now)),
            None => Box::new(()),
        }
    }

    fn has_work(&self, _now: Nanos) -> bool {
        self.core.as_deref().is_some_and(core::Core::is_unfinished)
    }
}
