//! The settings of an array. Level, strip and roles are also in its members' superblocks, and have to agree.

use serde::{Deserialize, Serialize};

use crate::destage::what::WhatPolicy;
use crate::destage::when::WhenPolicy;
use crate::layer::Port;
use crate::raid::contiguity::Contiguity;
use crate::raid::matrix::Shape;
use crate::{LINE_SECTORS, Nanos, Planted};

/// The most members of an array: superblocks name those that failed in 64 bits.
pub const MEMBERS_MAX: usize = 64;
/// The longest strip, 16 MiB: a stripe cache unit is one allocation.
pub const STRIP_SECTORS_MAX: u64 = 32_768;

/// The number of members that may fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Level {
    /// P alone.
    #[default]
    #[serde(rename = "raid5")]
    Raid5,
    /// P and Q.
    #[serde(rename = "raid6")]
    Raid6,
}

impl Level {
    /// The word for it in stack files.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Raid5 => "raid5",
            Level::Raid6 => "raid6",
        }
    }

    pub const fn parity(self) -> usize {
        match self {
            Level::Raid5 => 1,
            Level::Raid6 => 2,
        }
    }

    /// The columns of a stripe over so many members; none where they are too few or too many.
    pub const fn shape(self, members: usize) -> Option<Shape> {
        let parity = self.parity();
        if members < parity + 2 || members > MEMBERS_MAX {
            return None;
        }
        Some(Shape { data: members - parity, parity })
    }
}

/// Members and a strip that make no array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    #[error("it has {members} members: from {least} to {MEMBERS_MAX} make an array")]
    Members { members: usize, least: usize },
    #[error("a strip is a multiple of 4KiB, and at most 16MiB")]
    Strip,
}

/// The unit in which the cache is managed: locked, replaced and destaged as one (Baek and Park, section III-A, Fig. 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheUnit {
    /// SC, and with the contiguity transform MSC-CT.
    #[default]
    Stripe,
    /// PBGC: one row of blocks, as in Linux md.
    ParityBlockGroup,
}

/// Bugs to plant, so that the crash explorer can show that it finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayCanary {
    /// Writes to a region before its bit is durable.
    LateIntent,
    /// Writes to members what the journal does not have.
    SkipJournal,
    /// Takes what was written during a destage for destaged.
    LateWrite,
    /// Does not mark what a member that is away misses.
    ForgetMissed,
}

/// Unit in which the stripe cache takes its RAM (Baek and Park, section III-G3, name both).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheMemory {
    /// A row of blocks: writes at random places take little of it.
    #[default]
    Row,
    /// A whole unit, as in the paper: fewer allocations.
    Unit,
}

/// Settings of an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct RaidConfig {
    pub level: Level,
    pub strip_sectors: u64,
    /// For each member, in the order of their roles: true if its device is present. Ports lead to the devices that are.
    pub present: Vec<bool>,
    /// The port after the members leads to a journal.
    pub journal: bool,
    /// The journal comes with the log of a cache above: it is not missed where that cache has been detached.
    pub journal_implied: bool,
    /// Starts without the journal that the array had.
    pub journal_given_up: bool,
    /// If the journal fails, no more writes are taken; otherwise the array goes on as one without a journal.
    pub journal_required: bool,
    /// For each place among the spares: true if a device is present. Ports between those of the members and of the journal lead to them.
    pub spares: Vec<bool>,
    /// The least of the array that one bit of the write-intent bitmap stands for; an array that is made gets it for good.
    pub region_bytes: u64,
    /// Bytes in a second that a rebuild, a resync or a scrub moves at each member while clients are active. 0: none is begun.
    pub pass_rate: u64,
    /// RAM for stripe cache units.
    pub cache_bytes: u64,
    pub unit: CacheUnit,
    pub memory: CacheMemory,
    /// None: what the superblocks have from the stride benchmark, if `calibrated`; otherwise SC or PBGC.
    pub contiguity: Option<Contiguity>,
    pub calibrated: bool,
    /// The RAM keeps its content without power, so that a write is safe in it. Without this a flush destages.
    pub non_volatile: bool,
    pub when: WhenPolicy,
    pub what: WhatPolicy,
    /// Percent of the RAM that is dirty from which it is destaged whatever the load, and at which high-low stops. The paper has 95
    /// and 85, for RAM that is not volatile; where a flush destages, disks that rest before it are time lost.
    pub high_mark: u8,
    pub low_mark: u8,
    /// Units destaged at a time.
    pub destage_depth: u32,
    /// Units of few dirty blocks destaged at a time, while clients wait for nothing but a flush.
    pub flush_depth: u32,
    /// Number of stamps of the cache after which an unwritten unit is prefetched: blocks that its destage will read are read before.
    /// The cache gives a stamp for each write, and for each piece of memory. 0: nothing is prefetched.
    pub prefetch_after: u64,
    /// Times for the idle policy below the high mark: see the log cache.
    pub idle_empty: Nanos,
    pub idle_full: Nanos,
    /// RAM for passes: what they have read and not written yet. One stripe with its parity at least.
    pub pass_bytes: u64,
    /// Starts although members are missing and the parity is in doubt: what they held may come out wrong.
    pub accept_damage: bool,
    #[serde(skip)]
    pub canary: Planted<ArrayCanary>,
}

impl Default for RaidConfig {
    fn default() -> Self {
        RaidConfig {
            level: Level::Raid5,
            // 128 KiB.
            strip_sectors: 256,
            present: Vec::new(),
            journal: false,
            journal_implied: false,
            journal_given_up: false,
            journal_required: false,
            spares: Vec::new(),
            region_bytes: 64 << 20,
            pass_rate: 10 << 20,
            cache_bytes: 64 << 20,
            unit: CacheUnit::Stripe,
            memory: CacheMemory::Row,
            contiguity: None,
            calibrated: true,
            non_volatile: false,
            when: WhenPolicy::Idle,
            what: WhatPolicy::Wow,
            high_mark: 10,
            low_mark: 5,
            destage_depth: 32,
            flush_depth: 128,
            prefetch_after: 128,
            idle_empty: Nanos::from_secs(1),
            idle_full: Nanos::from_millis(1),
            pass_bytes: 32 << 20,
            accept_damage: false,
            canary: Planted::default(),
        }
    }
}

/// True when a strip may have this number of sectors.
pub(super) const fn is_strip(sectors: u64) -> bool {
    sectors > 0 && sectors.is_multiple_of(LINE_SECTORS) && sectors <= STRIP_SECTORS_MAX
}

impl RaidConfig {
    /// The port of the journal, if it has one: it comes after those of members and spares.
    pub fn journal_port(&self) -> Port {
        Port(self.present.iter().chain(&self.spares).filter(|there| **there).count())
    }

    /// Takes over those settings that can change while the array serves.
    pub const fn change(&mut self, to: &RaidConfig) {
        self.pass_rate = to.pass_rate;
        (self.when, self.what) = (to.when, to.what);
        (self.high_mark, self.low_mark) = (to.high_mark, to.low_mark);
        self.destage_depth = to.destage_depth;
    }

    /// Refuses members or a strip that make no array.
    pub fn check_shape(&self) -> Result<(), ShapeError> {
        let members = self.present.len();
        if self.level.shape(members).is_none() {
            return Err(ShapeError::Members { members, least: self.level.parity() + 2 });
        }
        if !is_strip(self.strip_sectors) {
            return Err(ShapeError::Strip);
        }
        Ok(())
    }
}
