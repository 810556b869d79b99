//! RAID-5 and RAID-6 with a stripe cache and the contiguity transform: MSC-CT (Baek and Park, "Matrix stripe cache-based
//! contiguity transform for fragmented writes in RAID-5").
//!
//! | module       | what                                                                              |
//! |--------------|-----------------------------------------------------------------------------------|
//! | `config`     | settings                                                                          |
//! | `layout`     | places of the array's sectors on its members                                      |
//! | `matrix`     | the stripe as a matrix: Z, and the operations of the rxw-matrix                   |
//! | `plan`       | from Z to reads, XORs and writes                                                  |
//! | `contiguity` | gaps that may be filled by reads and writes, and when that pays                   |
//! | `compute`    | the XORs of a plan, on bytes                                                      |
//! | `parity`     | P and Q                                                                           |
//! | `stride`     | the stride benchmark, which measures when contiguity pays                         |
//! | `cache`      | the stripe cache: the units, their order, their memory                            |
//! | `unit`       | a unit of the stripe cache: its blocks, its lock                                  |
//! | `array`      | passes events to the parts, and lets what waits for a unit go on                  |
//! | `env`         | the parts that all others use, in an event                                        |
//! | `flight`     | commands under way below the array                                                |
//! | `destaging`  | the choice of the next destage, by marks and policies                             |
//! | `status`     | the state of the array, for people and monitors                                   |
//! | `describe`   | gathers that from the parts                                                       |
//! | `clients`    | requests of clients                                                               |
//! | `operation`  | an operation on a unit: its plan, its blocks, how far it has come                 |
//! | `stripe`     | carries operations out: plan, read, compute, write                                |
//! | `prefetch`   | reads before their destage needs them                                             |
//! | `pass`       | a pass over the whole array: resync, rebuild, or scrub                            |
//! | `passes`     | the choice of the pass that goes on, and of its pace                              |
//! | `window`     | a part of a pass: units that are read, looked at and written together             |
//! | `survey`     | judges what a pass has read                                                       |
//! | `syndrome`   | finds wrong blocks of a row, and computes missing ones                            |
//! | `superblock` | the superblocks that describe the members                                         |
//! | `bitmap`     | regions whose parity may be wrong after a crash                                   |
//! | `away`       | members that are away, and the writes that they have missed                       |
//! | `returns`    | devices that come back                                                            |
//! | `apart`      | members that have diverged                                                        |
//! | `offline`    | makes an array, and changes one that is not served                                |
//! | `grow`       | more members, or larger ones                                                      |
//! | `record`     | writes superblocks before anything relies on them                                 |
//! | `journal`    | closes the write hole                                                             |
//! | `assemble`   | the start                                                                         |
//! | `identify`   | identifies the devices, at a start                                                |
//! | `lost`       | blocks of rows of which more is missing than the parity makes up for              |
//! | `members`    | the devices: the member of each role, spares, those that join                     |
//!
//! Each part owns its state and its behaviour. What it does not own is passed to it by name, and what all parts use, as a `Env`. A part
//! returns what follows for others; `Array` alone acts on that.
//!
//! A write is put into the stripe cache and answered. What is destaged is written durably (FUA), data and parity together,
//! so a flush waits until all that was dirty has been destaged, and needs no flush of the members. Where the RAM is non-volatile a
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
mod clients;
pub mod compute;
mod config;
pub mod contiguity;
mod describe;
mod destaging;
mod env;
mod error;
mod flight;
pub mod grow;
mod identify;
mod journal;
mod layout;
mod lost;
pub mod matrix;
mod members;
pub mod offline;
mod operation;
pub mod parity;
mod pass;
mod passes;
pub mod plan;
mod prefetch;
mod record;
mod returns;
mod right;
mod status;
pub mod stride;
mod stripe;
mod superblock;
mod survey;
mod syndrome;
#[cfg(test)]
mod tests;
mod unit;
mod window;

use crate::layer::{ActivateError, Cx, Event, Geometry, Layer, Ports};
use crate::{AnyStatus, Nanos};

pub use apart::Apart;
use array::Array;
pub use config::{
    ArrayCanary, CacheMemory, CacheUnit, Level, MEMBERS_MAX, RaidConfig, STRIP_SECTORS_MAX, ShapeError,
};
pub use error::{AssembleError, Others, Unused, UnusedWhy, members_named};
pub use journal::{
    FoundJournal, ReplayError, find_journal, has_journal_records, journal_header_bytes, may_be_journal_of,
};
pub use layout::{Chunk, DATA_SECTOR, Layout};
pub use offline::{ArrayCreateError, clear_journal, create};
pub use status::{
    ArrayNote, ArrayState, ArrayStatistics, ArrayStatus, AwayStatus, DevicesStatus, Findings, PassName,
    PassStatus, Return, StridesStatus,
};
pub use superblock::{ArraySuperblock, ArraySuperblockError, CACHES_MAX, MemberIdentity, Rebuild, Reshape};

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

    /// The counters.
    pub fn statistics(&self) -> &ArrayStatistics {
        &self.array().statistics
    }
}

impl Layer for RaidLayer {
    fn handle(&mut self, event: Event, cx: &mut Cx) {
        self.array.as_mut().expect("it is active").handle(event, cx);
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

    fn status(&self, now: Nanos) -> Box<dyn AnyStatus> {
        match &self.array {
            Some(array) => Box::new(ArrayStatus::of(array, now)),
            None => Box::new(()),
        }
    }

    fn has_work(&self, now: Nanos) -> bool {
        self.array.as_ref().is_some_and(|array| array.has_work(now))
    }
}
