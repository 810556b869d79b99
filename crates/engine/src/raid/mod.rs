//! RAID-5 and RAID-6 with a stripe cache and the contiguity transform: MSC-CT (Baek and Park, "Matrix stripe cache-based
//! contiguity transform for fragmented writes in RAID-5").
//!
//! | module       | what                                                                              |
//! |--------------|-----------------------------------------------------------------------------------|
//! | `config`     | what can be set                                                                   |
//! | `layout`     | where the sectors of the array lie on its members                                 |
//! | `matrix`     | the stripe as a matrix: Z, and the operations of the rxw-matrix                   |
//! | `plan`       | from Z to reads, XORs and writes                                                  |
//! | `contiguity` | what may be read and written in between, and when that pays                       |
//! | `compute`    | the XORs of a plan, on bytes                                                      |
//! | `parity`     | P and Q                                                                           |
//! | `stride`     | the stride benchmark, which says when contiguity pays                             |
//! | `cache`      | the stripe cache: the units, their order, their memory                            |
//! | `unit`       | a unit of it: its blocks, its lock                                                |
//! | `array`      | what the array does next: destages by marks and policies, failures                |
//! | `command`    | what an administrator tells a running array                                       |
//! | `request`    | requests of clients                                                               |
//! | `stripe`     | an operation on a unit: plan, read, compute, write                                |
//! | `prefetch`   | what destages will read, read before                                              |
//! | `pass`       | passes over the whole array: resync, rebuild, scrub                               |
//! | `window`     | a part of a pass: units that are read, looked at and written together             |
//! | `survey`     | what a pass makes of what it has read                                             |
//! | `syndrome`   | which blocks of a row are wrong, and what the missing ones are                    |
//! | `superblock` | who the members are, and what is known of them                                    |
//! | `bitmap`     | where parity may be wrong after a crash                                           |
//! | `away`       | members that are away, and what they have missed                                  |
//! | `apart`      | members that were used without each other                                          |
//! | `offline`    | making an array, and what its administrator changes while it is not served        |
//! | `grow`       | more members, or larger ones                                                      |
//! | `record`     | keeping the superblocks true                                                      |
//! | `join`       | devices that come and go while the array is served                                |
//! | `journal`    | closes the write hole                                                             |
//! | `assemble`   | the start                                                                         |
//! | `identify`   | who the devices are, at a start                                                   |
//! | `lost`       | blocks of rows of which more is missing than the parity makes up for              |
//! | `members`    | members that fail, and spares that take their place                               |
//!
//! A write is put into the stripe cache and answered. What is destaged is written durably (FUA), data and parity together,
//! so a flush waits until all that was dirty is home, and needs no flush of the members. Where the RAM is non-volatile a
//! write is safe at once.
//!
//! Reads see the cache first. What they bring from a member is kept where the stripe is in the cache anyway.
//!
//! Discards are refused: what a member returns for discarded blocks must not differ from what the parity was computed of.

mod apart;
mod array;
mod assemble;
mod away;
mod bitmap;
mod cache;
mod command;
pub mod compute;
mod config;
pub mod contiguity;
pub mod grow;
mod identify;
mod join;
mod journal;
mod layout;
mod lost;
pub mod matrix;
mod members;
pub mod offline;
pub mod parity;
mod pass;
pub mod plan;
mod prefetch;
mod record;
mod request;
mod right;
pub mod stride;
mod stripe;
mod superblock;
mod survey;
mod syndrome;
#[cfg(test)]
mod tests;
mod unit;
mod window;

use crate::Nanos;
use crate::layer::{ActivateError, Event, Geometry, Layer, Outbox, Port, Ports};

pub use apart::Apart;
use array::Array;
pub use array::Statistics;
pub use config::{CacheMemory, CacheUnit, Canary, Level, MEMBERS_MAX, RaidConfig, STRIP_SECTORS_MAX};
pub use journal::{FoundJournal, clear_journal, find_journal, may_be_journal_of};
pub use layout::{Chunk, Layout};
pub use members::members_named;
pub use offline::{CreateError, create};
pub use superblock::{CACHES_MAX, DATA_SECTOR, Identity, Rebuild, Reshape, Superblock, SuperblockError};

/// See the module's documentation.
pub struct RaidLayer {
    config: RaidConfig,
    /// Since activation.
    array: Option<Array>,
}

impl RaidLayer {
    /// An array over the members on ports 0, 1, ..., those that are present, and its journal on the next, if it has one.
    pub const fn new(config: RaidConfig) -> RaidLayer {
        RaidLayer { config, array: None }
    }

    fn array(&self) -> &Array {
        self.array.as_ref().expect("it is active")
    }

    /// What has been counted.
    pub fn statistics(&self) -> &Statistics {
        &self.array().statistics
    }
}

impl Layer for RaidLayer {
    fn handle(&mut self, now: Nanos, event: Event, out: &mut Outbox) {
        self.array.as_mut().expect("it is active").handle(now, event, out);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.array.as_ref().and_then(|array| array.deadline)
    }

    fn check(&self) {
        if let Some(array) = &self.array {
            array.check();
        }
    }

    fn geometry(&self) -> Geometry {
        self.array().geometry
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        self.array = Some(assemble::assemble(&self.config, below)?);
        Ok(())
    }

    fn status(&self, now: Nanos) -> serde_json::Value {
        let array = self.array();
        let failed: Vec<usize> = (0..array.ports.len()).filter(|&role| array.is_failed(role)).collect();
        let resync = array.passes.resynced_percent();
        let rebuilding = array.recorder.rebuilding();
        let state = match (array.broken, failed.is_empty(), resync, rebuilding) {
            (true, ..) => "broken",
            (false, _, Some(_), _) => "resyncing",
            (false, false, None, Some(_)) => "rebuilding",
            (false, false, None, None) => "degraded",
            (false, true, None, _) if array.has_losses() => "damaged",
            (false, true, None, _) if array.recorder.in_doubt().is_empty() => "good",
            (false, true, None, _) => "in doubt",
        };
        let strides = array.config.contiguity.as_ref().map(|contiguity| {
            let source = if self.config.contiguity.is_some() { "stack file" } else { "stride benchmark" };
            contiguity.status(source)
        });
        let percent = |sectors: u64| 100.0 * sectors as f64 / array.recorder.recorded().member_sectors as f64;
        let recorded = array.recorder.recorded();
        let mut status = serde_json::json!({
            "state": state,
            "failed_members": failed,
            "resynced_percent": resync,
            "lost_blocks": array.lost.len(),
            "unreadable_blocks": array.unreadable.len(),
            "clean": !array.recorder.recorded().active && array.recorder.recorded().in_doubt.is_empty(),
            "rebuilding_member": rebuilding.map(|rebuild| rebuild.role),
            "rebuilt_percent": rebuilding.map(|rebuild| percent(rebuild.sectors)),
            "spares": array.waiting_places(),
            "joining": array.joining_places(),
            "joining_members": array.joining_roles(),
            "spare_places": array.spare_places.iter().map(Option::is_some).collect::<Vec<_>>(),
            "open_members": array.ports.iter().map(Option::is_some).collect::<Vec<_>>(),
            "held_members": (0..array.ports.len()).filter(|&role| array.is_held(role)).collect::<Vec<_>>(),
            "member_sectors_min": array.sectors_needed(),
            "logical_block_bytes": array.geometry.logical_block_bytes,
            "regions_in_doubt": array.recorder.in_doubt().len(),
            "regions": array.regions.count(),
            "uuid": recorded.uuid_text(),
            "generation": recorded.generation,
            "generations": array.recorder.generations(),
            "level": recorded.level,
            "members": recorded.members,
            "strip_bytes": recorded.strip_sectors * crate::SECTOR_BYTES,
            "size_bytes": array.geometry.sectors * crate::SECTOR_BYTES,
            "calibrated": recorded.calibration.is_some(),
            "holders": array.holders,
            "pass": array.passes.status(now, &array.layout),
            "last_scrub": array.passes.last_scrub,
            "last_rebuild": array.passes.last_rebuild,
            "away": recorded.away_status(),
            "last_return": array.passes.last_return,
            "journal": array.journal.is_some(),
            "journal_failed": array.journal_failed,
            "advice": array.advice(),
            "non_volatile": array.config.non_volatile,
            "cache_bytes": array.cache.capacity_bytes(),
            "held_bytes": array.cache.held_bytes(),
            "dirty_units": array.cache.dirty().len(),
            "dirty_bytes": array.cache.dirty_blocks() as u64 * crate::LINE_BYTES,
            "statistics": array.statistics,
        });
        let number = |port: &Option<Port>| port.map(|port| port.0);
        status["member_ports"] = array.ports.iter().map(number).collect();
        status["spare_ports"] = array.spare_places.iter().map(number).collect();
        status["read_only"] = array.geometry.read_only.into();
        status["strides"] = strides.into();
        status["read_errors"] = array.read_errors.clone().into();
        status
    }

    fn is_busy(&self) -> bool {
        self.array
            .as_ref()
            .is_some_and(|array| !array.operations.is_empty() || !array.passes.windows.is_empty())
    }
}
