//! Fault plans: the faults of a simulated device, and their times. A plan is data, so a run with faults repeats from its seed.

use dcd_engine::{ErrorKind, Io, Nanos};

/// Operations that a rule counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOn {
    Any,
    Write,
    /// Writes, zeroes and discards.
    Change,
    Flush,
}

impl FaultOn {
    fn matches(self, io: &Io) -> bool {
        match self {
            FaultOn::Any => true,
            FaultOn::Write => matches!(io, Io::Write { .. }),
            FaultOn::Change => io.modifies(),
            FaultOn::Flush => matches!(io, Io::Flush),
        }
    }
}

/// Operations that fail: from the operation `first` on (counted from 0 among those that match), `times` times. A failed write
/// leaves each of its sectors old or new; a failed flush may have dropped the writes that it should have covered, permanently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRule {
    on: FaultOn,
    first: u64,
    times: u64,
    error: ErrorKind,
}

impl FaultRule {
    /// Makes a rule by which only the `n`-th operation fails.
    pub const fn once(on: FaultOn, n: u64, error: ErrorKind) -> FaultRule {
        FaultRule { on, first: n, times: 1, error }
    }

    /// Makes a rule by which the `n`-th operation and all later ones fail.
    pub const fn for_ever(on: FaultOn, n: u64, error: ErrorKind) -> FaultRule {
        FaultRule { on, first: n, times: u64::MAX, error }
    }
}

/// Faults of a device.
#[derive(Clone, Debug, Default)]
pub struct DiskFaults {
    rule: Option<FaultRule>,
    /// True for a disk that lies: it acknowledges flushes and FUA without doing them.
    pub ignore_flushes: bool,
    /// Sectors that are being written when the power goes cannot be read afterwards, until they are written again.
    pub tears: bool,
    /// True for a dead disk: every operation fails, also after a power cut.
    pub dead: bool,
    /// Time before which no change or flush completes; next, true if reads wait for it, too.
    hangs_until: Nanos,
    hangs_reads: bool,
    /// Operations that the rule has matched.
    matched: u64,
    fired: u64,
}

impl DiskFaults {
    pub fn new(rule: FaultRule) -> DiskFaults {
        DiskFaults { rule: Some(rule), ..DiskFaults::default() }
    }

    pub fn liar() -> DiskFaults {
        DiskFaults { ignore_flushes: true, ..DiskFaults::default() }
    }

    /// A disk that hangs until then; `reads`: its reads, too.
    pub fn hung(until: Nanos, reads: bool) -> DiskFaults {
        DiskFaults { hangs_until: until, hangs_reads: reads, ..DiskFaults::default() }
    }

    /// Returns the time before which an operation does not complete.
    pub const fn hangs_until(&self, io: &Io) -> Nanos {
        let is_read = matches!(io, Io::Read { .. } | Io::ReadCopy { .. });
        if is_read && !self.hangs_reads { Nanos::ZERO } else { self.hangs_until }
    }

    pub fn dead() -> DiskFaults {
        DiskFaults { dead: true, ..DiskFaults::default() }
    }

    /// Returns the faults that survive a power cut.
    pub(crate) fn lasting(&self) -> DiskFaults {
        let DiskFaults { ignore_flushes, tears, dead, .. } = *self;
        DiskFaults { ignore_flushes, tears, dead, ..DiskFaults::default() }
    }

    /// Number of operations that have failed.
    pub const fn fired(&self) -> u64 {
        self.fired
    }

    /// Counts an operation, and returns its error, if it fails.
    pub fn strike(&mut self, io: &Io) -> Option<ErrorKind> {
        let mut struck = self.dead.then_some(ErrorKind::Medium);
        if let Some(rule) = self.rule.filter(|rule| rule.on.matches(io)) {
            let hits = self.matched >= rule.first && self.matched - rule.first < rule.times;
            struck = struck.or(hits.then_some(rule.error));
            self.matched += 1;
        }
        self.fired += u64::from(struck.is_some());
        struck
    }
}

#[cfg(test)]
mod tests {
    use dcd_engine::{Extent, Lba};

    use super::*;

    #[test]
    fn a_rule_counts_only_what_it_names() {
        let error = ErrorKind::Medium;
        let mut plan = DiskFaults::new(FaultRule::once(FaultOn::Flush, 1, error));
        let discard = Io::Discard { extent: Extent::new(Lba(0), 8) };
        assert_eq!(plan.strike(&Io::Flush), None);
        assert_eq!(plan.strike(&discard), None);
        assert_eq!(plan.strike(&Io::Flush), Some(error));
        assert_eq!(plan.strike(&Io::Flush), None);
        let mut plan = DiskFaults::new(FaultRule::for_ever(FaultOn::Any, 2, error));
        let struck = [Io::Flush, discard, Io::Flush, Io::Flush].map(|io| plan.strike(&io));
        assert_eq!(struck, [None, None, Some(error), Some(error)]);
        assert_eq!(plan.fired(), 2);
    }
}
