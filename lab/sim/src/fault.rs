//! Fault plans: what a simulated device does wrong, and when. A plan is data, so a run with faults repeats from its seed.

use dcd_engine::{ErrorKind, Extent, Io};

/// Which operations a rule counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOn {
    Any,
    Read,
    Write,
    Flush,
    /// Discards and zeroes.
    Erase,
}

impl FaultOn {
    fn matches(self, io: &Io) -> bool {
        match self {
            FaultOn::Any => true,
            FaultOn::Read => matches!(io, Io::Read { .. }),
            FaultOn::Write => matches!(io, Io::Write { .. }),
            FaultOn::Flush => matches!(io, Io::Flush),
            FaultOn::Erase => matches!(io, Io::Discard { .. } | Io::WriteZeroes { .. }),
        }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails. A failed write leaves each of its sectors old or new; a failed flush may have dropped what it
    /// should have covered, for good.
    Error(ErrorKind),
    /// The write is acknowledged and never happens (a phantom write).
    LostWrite,
    /// The write lands this many sectors further on (modulo the device), and is acknowledged.
    MisdirectedWrite(u64),
    /// The read returns what lies this many sectors further on.
    MisdirectedRead(u64),
    /// One bit of what is about to be read has rotted on the medium.
    BitRot,
}

/// One fault, from the operation `first` on (counted from 0 among those that match), `times` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRule {
    pub on: FaultOn,
    /// Only operations that touch these sectors.
    pub within: Option<Extent>,
    pub first: u64,
    /// `u64::MAX`: for ever.
    pub times: u64,
    pub fault: Fault,
}

impl FaultRule {
    /// The `n`-th operation fails, once.
    pub const fn once(on: FaultOn, n: u64, fault: Fault) -> FaultRule {
        FaultRule { on, within: None, first: n, times: 1, fault }
    }

    /// The `n`-th operation and all after it fail.
    pub const fn for_ever(on: FaultOn, n: u64, fault: Fault) -> FaultRule {
        FaultRule { on, within: None, first: n, times: u64::MAX, fault }
    }
}

/// What a device does wrong.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    pub rules: Vec<FaultRule>,
    /// The liar: flushes and FUA are acknowledged and do nothing.
    pub ignore_flushes: bool,
    /// Every operation fails, and a power cut does not change that.
    pub dead: bool,
    counts: Vec<u64>,
    fired: u64,
}

impl FaultPlan {
    pub fn new(rules: Vec<FaultRule>) -> FaultPlan {
        FaultPlan { counts: vec![0; rules.len()], rules, ..FaultPlan::default() }
    }

    pub fn liar() -> FaultPlan {
        FaultPlan { ignore_flushes: true, ..FaultPlan::default() }
    }

    pub fn dead() -> FaultPlan {
        FaultPlan { dead: true, ..FaultPlan::default() }
    }

    /// What a power cut does not change.
    pub(crate) fn lasting(&self) -> FaultPlan {
        FaultPlan { ignore_flushes: self.ignore_flushes, dead: self.dead, ..FaultPlan::default() }
    }

    /// How many operations have met a fault.
    pub const fn fired(&self) -> u64 {
        self.fired
    }

    /// Counts an operation, and says what goes wrong with it.
    pub fn strike(&mut self, io: &Io) -> Option<Fault> {
        let mut struck = self.dead.then_some(Fault::Error(ErrorKind::Medium));
        for (rule, count) in self.rules.iter().zip(&mut self.counts) {
            let inside = match (rule.within, io.extent()) {
                (Some(within), Some(extent)) => within.overlaps(extent),
                (Some(_), None) => false,
                (None, _) => true,
            };
            if !inside || !rule.on.matches(io) {
                continue;
            }
            if *count >= rule.first && *count - rule.first < rule.times {
                struck = struck.or(Some(rule.fault));
            }
            *count += 1;
        }
        self.fired += u64::from(struck.is_some());
        struck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_counts_only_what_it_names() {
        let error = Fault::Error(ErrorKind::Medium);
        let mut plan = FaultPlan::new(vec![
            FaultRule::once(FaultOn::Flush, 1, error),
            FaultRule {
                within: Some(Extent::new(dcd_engine::Lba(8), 8)),
                ..FaultRule::for_ever(FaultOn::Erase, 0, error)
            },
        ]);
        let erase = |start, sectors| Io::Discard { extent: Extent::new(dcd_engine::Lba(start), sectors) };
        assert_eq!(plan.strike(&Io::Flush), None);
        assert_eq!(plan.strike(&erase(0, 8)), None);
        assert_eq!(plan.strike(&Io::Flush), Some(error));
        assert_eq!(plan.strike(&Io::Flush), None);
        assert_eq!(plan.strike(&erase(0, 9)), Some(error));
        assert_eq!(plan.fired(), 2);
    }
}
