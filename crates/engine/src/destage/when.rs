//! Policies for when destaging runs.

use serde::{Deserialize, Serialize};

use crate::Nanos;

/// The names of the policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenPolicy {
    /// No request for 1 s when the cache is empty, down to 1 ms when it is full (Nightingale et al. 1999, section 3.5.3).
    #[default]
    Idle,
    /// From the high mark down to the low mark, even if requests wait.
    HighLow,
    /// While more than the high mark is dirty and no request waits (Biswas et al. 1993, section 2.2).
    OneThreshold,
    /// From the high mark down to the low mark, whenever no request waits (the same section).
    TwoThresholds,
    /// Whenever no request waits (the same, section 4.5).
    Asap,
    /// Only when there is no space: pure write-behind (the same, section 2.1).
    WhenFull,
    /// The more is dirty, the more destages at a time: none at the low mark, all at the high mark, whatever the load (the linear
    /// threshold of Varma and Jacobson, as Gill and Modha, FAST 2005, describe it).
    Linear,
}

/// The state that a policy may look at.
#[derive(Clone, Copy, Debug)]
pub struct PolicyView {
    pub now: Nanos,
    /// The share of the cache that is full, 0 to 1.
    pub utilisation: f64,
    /// Requests of clients that are not answered yet.
    pub foreground: u64,
    /// The time at which the last request came or was answered.
    pub last_activity: Nanos,
    /// True if destaging is running, or was suspended before it reached the low mark.
    pub running: bool,
    /// Number of destages at the disk, and the maximum.
    pub in_flight: u32,
    pub depth: u32,
    pub high_mark: f64,
    pub low_mark: f64,
    pub idle_empty: Nanos,
    pub idle_full: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Run,
    /// Not now; ask again at this time.
    At(Nanos),
    /// Not now; ask again after the next request.
    Wait,
}

impl WhenPolicy {
    pub fn choose(self, view: &PolicyView) -> Choice {
        let (utilisation, quiet) = (view.utilisation, view.foreground == 0);
        let runs = match self {
            WhenPolicy::Idle => return view.idle(),
            WhenPolicy::HighLow => hysteresis(view.running, utilisation, view.high_mark, view.low_mark),
            WhenPolicy::OneThreshold => quiet && utilisation > view.high_mark,
            WhenPolicy::TwoThresholds => {
                quiet && hysteresis(view.running, utilisation, view.high_mark.next_up(), view.low_mark)
            }
            WhenPolicy::Asap => quiet && utilisation > 0.0,
            WhenPolicy::WhenFull => false,
            WhenPolicy::Linear => {
                let span = (view.high_mark - view.low_mark).max(f64::EPSILON);
                let part = ((utilisation - view.low_mark) / span).clamp(0.0, 1.0);
                f64::from(view.in_flight) < (part * f64::from(view.depth)).ceil()
            }
        };
        if runs { Choice::Run } else { Choice::Wait }
    }
}

impl PolicyView {
    /// The required time without a request falls from `idle_empty` for an empty cache to `idle_full` for a full one; the next request
    /// suspends destaging. From the high mark on, destaging runs in the foreground, as waiting gains nothing.
    fn idle(&self) -> Choice {
        if self.utilisation >= self.high_mark {
            return Choice::Run;
        }
        if self.foreground > 0 {
            return Choice::Wait;
        }
        let (empty, full) = (self.idle_empty.0 as f64, self.idle_full.0 as f64);
        let threshold = empty + (full - empty) * self.utilisation.clamp(0.0, 1.0);
        let at = self.last_activity.saturating_add(Nanos(threshold as u64));
        if at <= self.now { Choice::Run } else { Choice::At(at) }
    }
}

/// Returns the next state of a switch that turns on at the high mark and off at the low mark.
pub fn hysteresis(was_on: bool, value: f64, high_mark: f64, low_mark: f64) -> bool {
    value >= high_mark || (was_on && value > low_mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(utilisation: f64) -> PolicyView {
        PolicyView {
            now: Nanos::from_millis(600),
            utilisation,
            foreground: 0,
            last_activity: Nanos::ZERO,
            running: false,
            in_flight: 0,
            depth: 4,
            high_mark: 0.75,
            low_mark: 0.5,
            idle_empty: Nanos::from_secs(1),
            idle_full: Nanos::from_millis(1),
        }
    }

    #[test]
    fn the_idle_threshold_falls_with_utilisation() {
        assert_eq!(WhenPolicy::Idle.choose(&view(0.0)), Choice::At(Nanos::from_secs(1)));
        assert_eq!(WhenPolicy::Idle.choose(&view(0.5)), Choice::Run, "500.5 ms are over");
        assert_eq!(WhenPolicy::Idle.choose(&PolicyView { foreground: 1, ..view(0.5) }), Choice::Wait);
        assert_eq!(
            WhenPolicy::Idle.choose(&PolicyView { foreground: 1, ..view(0.8) }),
            Choice::Run,
            "full enough not to wait"
        );
    }

    #[test]
    fn marks_have_hysteresis() {
        assert_eq!(WhenPolicy::HighLow.choose(&view(0.6)), Choice::Wait);
        assert_eq!(WhenPolicy::HighLow.choose(&PolicyView { running: true, ..view(0.6) }), Choice::Run);
        assert_eq!(WhenPolicy::HighLow.choose(&PolicyView { running: true, ..view(0.4) }), Choice::Wait);
        assert_eq!(WhenPolicy::HighLow.choose(&PolicyView { foreground: 9, ..view(0.75) }), Choice::Run);
    }

    #[test]
    fn quiescent_purging_waits_for_requests() {
        let busy = |utilisation| PolicyView { foreground: 1, ..view(utilisation) };
        let running = |utilisation| PolicyView { running: true, ..view(utilisation) };
        assert_eq!(WhenPolicy::OneThreshold.choose(&view(0.8)), Choice::Run);
        assert_eq!(WhenPolicy::OneThreshold.choose(&busy(0.8)), Choice::Wait);
        assert_eq!(WhenPolicy::OneThreshold.choose(&running(0.7)), Choice::Wait, "there is no hysteresis");
        assert_eq!(WhenPolicy::TwoThresholds.choose(&running(0.7)), Choice::Run);
        assert_eq!(WhenPolicy::TwoThresholds.choose(&view(0.7)), Choice::Wait);
        assert_eq!(
            WhenPolicy::TwoThresholds.choose(&PolicyView { foreground: 1, ..running(0.7) }),
            Choice::Wait
        );
        let at_the_top = PolicyView { high_mark: 1.0, ..view(1.0) };
        assert_eq!(
            WhenPolicy::TwoThresholds.choose(&at_the_top),
            Choice::Wait,
            "a mark of 100 % is never passed"
        );
        assert_eq!(WhenPolicy::Asap.choose(&view(0.01)), Choice::Run);
        assert_eq!(WhenPolicy::Asap.choose(&view(0.0)), Choice::Wait);
        assert_eq!(WhenPolicy::WhenFull.choose(&view(1.0)), Choice::Wait);
    }

    #[test]
    fn a_linear_threshold_destages_more_the_fuller_it_is() {
        let wanted = |utilisation| {
            (0..).find(|&in_flight| {
                WhenPolicy::Linear.choose(&PolicyView { in_flight, ..view(utilisation) }) == Choice::Wait
            })
        };
        assert_eq!([0.5, 0.51, 0.625, 0.75, 0.9].map(wanted), [Some(0), Some(1), Some(2), Some(4), Some(4)]);
    }
}
