//! Holds a pass over the array: its purpose, what is left of it, and what it has found.
//!
//! | a pass is a | goes over                              | when                                                       |
//! |-------------|----------------------------------------|------------------------------------------------------------|
//! | resync      | units whose parity may be wrong        | at the start, after a crash                                |
//! | rebuild     | units that a new member has nothing of | as soon as a member is missing and there is one for its role |
//! | scrub       | all                                    | when an administrator asks                                 |

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use crate::Nanos;
use crate::raid::record::Recorder;
use crate::raid::status::{Findings, PassName};

/// The purpose of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassKind {
    Resync,
    Rebuild { role: usize },
    Scrub { repair: bool },
}

impl PassKind {
    pub const fn name(self) -> PassName {
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
pub(super) struct Checkpoint {
    pub position: u64,
    /// Flushes that have not returned.
    pub left: u32,
}

/// See the module's documentation.
pub(super) struct Pass {
    pub kind: PassKind,
    /// Units for which no window has begun, in rising order.
    pub todo: VecDeque<Range<u64>>,
    /// All that it goes over.
    pub units: u64,
    /// The time at which it began or continued, and the units that were left then.
    pub began: Option<(Nanos, u64)>,
    pub findings: Findings,
    /// Regions of which something could not be made right.
    pub wrong: BTreeSet<u64>,
    pub checkpoint: Option<Checkpoint>,
    pub next_checkpoint: Nanos,
    /// The pass has become pointless, and ends without a report.
    pub void: bool,
}

impl Pass {
    pub fn new(kind: PassKind, todo: impl IntoIterator<Item = Range<u64>>) -> Pass {
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

    pub fn units_left(&self) -> u64 {
        self.todo.iter().map(|range| range.end - range.start).sum()
    }

    /// Adds what a window has come across.
    pub fn found(&mut self, findings: &Findings, wrong: impl IntoIterator<Item = u64>) {
        self.findings.mismatches += findings.mismatches;
        self.findings.unreadable += findings.unreadable;
        self.findings.lost += findings.lost;
        self.findings.unlocated += findings.unlocated;
        self.wrong.extend(wrong);
    }

    pub const fn scrubs(&self) -> bool {
        matches!(self.kind, PassKind::Scrub { .. })
    }

    /// The reason for the pass no longer holds.
    pub fn is_void(&self, recorder: &Recorder) -> bool {
        self.void
            || match self.kind {
                PassKind::Resync => recorder.failed() != 0,
                PassKind::Rebuild { role } => {
                    recorder.rebuilding().is_none_or(|rebuild| rebuild.role != role)
                }
                PassKind::Scrub { .. } => false,
            }
    }

    /// Cuts the next window off.
    pub fn take(&mut self, units: u64) -> Option<Range<u64>> {
        let first = self.todo.front_mut()?;
        let window = first.start..first.end.min(first.start + units);
        first.start = window.end;
        if first.is_empty() {
            self.todo.pop_front();
        }
        Some(window)
    }
}
