//! Passes over the array, in windows of some units that are read and written in large pieces, several at a time.
//!
//! | a pass is a | goes over                              | when                                                       |
//! |-------------|----------------------------------------|------------------------------------------------------------|
//! | resync      | units whose parity may be wrong        | at the start, after a crash                                |
//! | rebuild     | units that a new member has nothing of | as soon as a member is missing and there is one for its role |
//! | scrub       | all                                    | when an administrator asks                                 |
//!
//! One pass goes on at a time. While clients are active it takes so much of each member's time as `pass_rate` says, in small
//! windows, one at a time: no client waits for more than one window, and the pass is not starved either. While there are
//! no requests the pass goes as fast as the members do. A scrub that is stopped, or that a rebuild has come before, goes on where it was.

mod run;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use crate::raid::layout::Layout;
use crate::raid::status::{Findings, PassName, PassStatus, Return};
use crate::raid::window::Window;
use crate::slab::Slab;
use crate::{LINE_BYTES, Nanos};

/// Clients are active until so long after the last request.
const ACTIVE: Nanos = Nanos::from_millis(500);
/// The bytes of a window on each member while clients are active: some ten milliseconds of a disk.
const ACTIVE_WINDOW_BYTES: u64 = 512 << 10;
/// Windows at a time while they are not: some are read while others are written.
const DEPTH: u64 = 4;

/// A pass says so often how far it has come: what a restart does again at most.
const CHECKPOINT_TIME: Nanos = Nanos::from_secs(10);

/// The purpose of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassKind {
    Resync,
    Rebuild { role: usize },
    Scrub { repair: bool },
}

impl PassKind {
    const fn name(self) -> PassName {
        match self {
            PassKind::Resync => PassName::Resync,
            PassKind::Rebuild { .. } => PassName::Rebuild,
            PassKind::Scrub { repair: false } => PassName::Scrub,
            PassKind::Scrub { repair: true } => PassName::ScrubRepair,
        }
    }
}

/// The writes of a pass below a unit are being made durable, so that its progress can be recorded.
#[derive(Clone, Copy)]
struct Checkpoint {
    position: u64,
    /// Flushes that have not returned.
    left: u32,
}

/// See the module's documentation.
struct Pass {
    kind: PassKind,
    /// Units for which no window has begun, in rising order.
    todo: VecDeque<Range<u64>>,
    /// All that it goes over.
    units: u64,
    /// The time at which it began or continued, and the units that were left then.
    began: Option<(Nanos, u64)>,
    findings: Findings,
    /// Regions of which something could not be made right.
    wrong: BTreeSet<u64>,
    checkpoint: Option<Checkpoint>,
    next_checkpoint: Nanos,
    /// The pass has become pointless, and ends without a report.
    void: bool,
}

impl Pass {
    fn new(kind: PassKind, todo: impl IntoIterator<Item = Range<u64>>) -> Pass {
        let todo: VecDeque<Range<u64>> = todo.into_iter().filter(|range| !range.is_empty()).collect();
        let units = todo.iter().map(|range| range.end - range.start).sum();
        Pass {
            kind,
            todo,
            units,
            began: None,
            findings: Findings::default(),
            wrong: BTreeSet::new(),
            checkpoint: None,
            next_checkpoint: Nanos::MAX,
            void: false,
        }
    }

    fn units_left(&self) -> u64 {
        self.todo.iter().map(|range| range.end - range.start).sum()
    }

    /// Cuts the next window off.
    fn take(&mut self, units: u64) -> Option<Range<u64>> {
        let first = self.todo.front_mut()?;
        let window = first.start..first.end.min(first.start + units);
        first.start = window.end;
        if first.is_empty() {
            self.todo.pop_front();
        }
        Some(window)
    }
}

/// The pass that goes on, and what is known of others.
#[derive(Default)]
pub(super) struct Passes {
    current: Option<Pass>,
    /// Windows of the current pass that have begun, and their order.
    pub windows: Slab<Window>,
    pub order: VecDeque<u64>,
    /// The time at which the next window may begin while clients are active.
    next_at: Nanos,
    /// A scrub that does not go on now.
    parked: Option<Pass>,
    /// An administrator has stopped it.
    paused: bool,
    /// The findings of the last passes that came to their end.
    pub last_scrub: Option<Findings>,
    pub last_rebuild: Option<Findings>,
    pub last_return: Option<Return>,
}

impl Passes {
    /// The parity of some units is in doubt.
    pub fn resync(units: impl IntoIterator<Item = Range<u64>>) -> Passes {
        let pass = Pass::new(PassKind::Resync, units);
        Passes { current: (pass.units > 0).then_some(pass), ..Passes::default() }
    }

    pub const fn is_running(&self) -> bool {
        self.current.is_some()
    }

    /// A pass may have made something right that is not flushed.
    pub fn repairs(&self) -> bool {
        let repairs = |pass: &Pass| matches!(pass.kind, PassKind::Resync | PassKind::Scrub { repair: true });
        self.current.iter().chain(&self.parked).any(repairs)
    }

    /// The kind of the pass that goes on.
    pub fn kind(&self) -> PassKind {
        self.current.as_ref().expect("a pass goes on").kind
    }

    /// The current pass has been over everything below this unit; none where it has been over all.
    fn position(&mut self) -> Option<u64> {
        match self.order.front() {
            Some(&first) => Some(self.windows.get_mut(first).units.start),
            None => self.current.as_ref()?.todo.front().map(|range| range.start),
        }
    }

    /// Adds what a window has come across.
    pub fn found(&mut self, findings: &Findings, wrong: impl IntoIterator<Item = u64>) {
        let Some(pass) = &mut self.current else { return };
        pass.findings.mismatches += findings.mismatches;
        pass.findings.unreadable += findings.unreadable;
        pass.findings.lost += findings.lost;
        pass.findings.unlocated += findings.unlocated;
        pass.wrong.extend(wrong);
    }

    /// Blocks of a member that were wrong or unreadable have been written.
    pub fn repaired(&mut self, blocks: u64) {
        if let Some(pass) = &mut self.current {
            pass.findings.repaired += blocks;
        }
    }

    pub fn resynced_percent(&self) -> Option<f64> {
        let pass = self.current.as_ref().filter(|pass| pass.kind == PassKind::Resync)?;
        Some(100.0 * (1.0 - self.units_left() as f64 / pass.units.max(1) as f64))
    }

    fn units_left(&self) -> u64 {
        let begun: u64 = self.windows.iter().map(|window| window.units.end - window.units.start).sum();
        begun + self.current.as_ref().map_or(0, Pass::units_left)
    }

    pub fn status(&self, now: Nanos, layout: &Layout) -> Option<PassStatus> {
        let (pass, left) = match (&self.current, &self.parked) {
            (Some(pass), _) => (pass, self.units_left()),
            (None, Some(pass)) => (pass, pass.units_left()),
            (None, None) => return None,
        };
        let bytes = layout.rows as u64 * LINE_BYTES;
        let speed = pass.began.filter(|_| self.is_running()).map(|(began, left_then)| {
            let seconds = now.since(began).as_secs_f64().max(1e-3);
            ((left_then - left) * bytes) as f64 / seconds
        });
        let role = match pass.kind {
            PassKind::Rebuild { role } => Some(role),
            PassKind::Resync | PassKind::Scrub { .. } => None,
        };
        Some(PassStatus {
            kind: pass.kind.name(),
            role,
            member_bytes: pass.units * bytes,
            paused: !self.is_running(),
            percent: 100.0 * (1.0 - left as f64 / pass.units.max(1) as f64),
            member_bytes_left: left * bytes,
            member_bytes_per_second: speed,
            findings: pass.findings,
        })
    }
}
