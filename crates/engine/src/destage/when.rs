//! When destaging runs.

use crate::Nanos;
use crate::log_cache::WhenPolicy;

/// What a policy may look at.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub now: Nanos,
    /// How full the cache is, 0 to 1.
    pub utilisation: f64,
    /// Requests of clients that are not answered yet.
    pub foreground: u64,
    /// When the last request came or was answered.
    pub last_activity: Nanos,
    /// Destaging is running now.
    pub running: bool,
    pub high_mark: f64,
    pub low_mark: f64,
    pub idle_empty: Nanos,
    pub idle_full: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Run,
    /// Not now; ask again then.
    At(Nanos),
    /// Not now; ask again after the next request.
    Wait,
}

pub trait When: Sync {
    fn choose(&self, view: &View) -> Choice;
}

/// The paper's (Nightingale et al. 1999, section 3.5.3): when there was no request for a span that falls from `idle_empty`
/// when the cache is empty to `idle_full` when it is full; the next request suspends it. From the high mark on it runs
/// in the foreground, as nothing is gained by waiting.
struct Idle;

impl When for Idle {
    fn choose(&self, view: &View) -> Choice {
        if view.utilisation >= view.high_mark {
            return Choice::Run;
        }
        if view.foreground > 0 {
            return Choice::Wait;
        }
        let (empty, full) = (view.idle_empty.0 as f64, view.idle_full.0 as f64);
        let threshold = empty + (full - empty) * view.utilisation.clamp(0.0, 1.0);
        let at = view.last_activity.saturating_add(Nanos(threshold as u64));
        if at <= view.now { Choice::Run } else { Choice::At(at) }
    }
}

/// From the high mark down to the low mark, whatever else goes on.
struct HighLow;

impl When for HighLow {
    fn choose(&self, view: &View) -> Choice {
        let on = view.utilisation >= view.high_mark || (view.running && view.utilisation > view.low_mark);
        if on { Choice::Run } else { Choice::Wait }
    }
}

/// The registry.
pub fn policy(name: WhenPolicy) -> &'static dyn When {
    match name {
        WhenPolicy::Idle => &Idle,
        WhenPolicy::HighLow => &HighLow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(utilisation: f64) -> View {
        View {
            now: Nanos::from_millis(600),
            utilisation,
            foreground: 0,
            last_activity: Nanos::ZERO,
            running: false,
            high_mark: 0.75,
            low_mark: 0.5,
            idle_empty: Nanos::from_secs(1),
            idle_full: Nanos::from_millis(1),
        }
    }

    #[test]
    fn the_idle_threshold_falls_with_utilisation() {
        assert_eq!(Idle.choose(&view(0.0)), Choice::At(Nanos::from_secs(1)));
        assert_eq!(Idle.choose(&view(0.5)), Choice::Run, "500.5 ms are over");
        assert_eq!(Idle.choose(&View { foreground: 1, ..view(0.5) }), Choice::Wait);
        assert_eq!(Idle.choose(&View { foreground: 1, ..view(0.8) }), Choice::Run, "full enough not to wait");
    }

    #[test]
    fn marks_have_hysteresis() {
        assert_eq!(HighLow.choose(&view(0.6)), Choice::Wait);
        assert_eq!(HighLow.choose(&View { running: true, ..view(0.6) }), Choice::Run);
        assert_eq!(HighLow.choose(&View { running: true, ..view(0.4) }), Choice::Wait);
        assert_eq!(HighLow.choose(&View { foreground: 9, ..view(0.75) }), Choice::Run);
    }
}
