//! An administrator who changes the settings of a running log cache, and holds its write-back.

use dcd_engine::log_cache::{LogCacheConfig, WhatPolicy, WhenPolicy, WriteRoute};
use dcd_engine::{Control, LayerSettings, Nanos, Stack};

use crate::{MemDriver, SimRng};

/// Chances in a thousand: of a change after each step, and that a change is about write-back.
const CHANGES: u64 = 25;
const HOLDS: u64 = 300;

/// See the module's documentation.
pub(super) struct Tuner {
    rng: SimRng,
    /// The settings of the start.
    config: LogCacheConfig,
    held: bool,
    /// True if the route of writes is changed, too.
    changes_writes: bool,
    pub changes: u64,
}

impl Tuner {
    pub const fn new(rng: SimRng, config: LogCacheConfig, changes_writes: bool) -> Tuner {
        Tuner { rng, config, held: false, changes_writes, changes: 0 }
    }

    /// Changes something now and then. True if writes go to the log alone from now on.
    pub fn act(&mut self, driver: &mut MemDriver, stack: &mut Stack) -> bool {
        if !self.rng.chance(CHANGES) {
            return false;
        }
        let cache = stack.layers().find(|(_, name)| *name == "cache").map(|(layer, _)| layer);
        let mut goes_back = false;
        let control = if self.rng.chance(HOLDS) {
            self.held = !self.held;
            Control::HoldDestage(self.held)
        } else {
            let config = self.draw();
            goes_back = config.writes == WriteRoute::Back;
            Control::Settings(Box::new(LayerSettings::LogCache(config)))
        };
        driver.note(|| format!("the administrator says {control:?}"));
        driver.control(stack, cache.expect("it has a log cache"), control);
        self.changes += 1;
        goes_back
    }

    /// The settings that can change while the cache serves. The delay only becomes shorter, as the oracle goes by that of the start.
    fn draw(&mut self) -> LogCacheConfig {
        let (rng, start) = (&mut self.rng, &self.config);
        LogCacheConfig {
            delay_max: Nanos(rng.range(1, start.delay_max.0)),
            bypass_bytes: rng.pick(&[start.bypass_bytes, 0, 4 << 10, 16 << 10]),
            when: rng.pick(&[WhenPolicy::Idle, WhenPolicy::HighLow, WhenPolicy::Asap, WhenPolicy::Linear]),
            what: rng.pick(&[
                WhatPolicy::OldestFirst,
                WhatPolicy::LastWriteFirst,
                WhatPolicy::LeastValidFirst,
            ]),
            high_mark: rng.pick(&[50, 75, 90]),
            low_mark: rng.pick(&[5, 25, 45]),
            idle_empty: rng.pick(&[Nanos::from_millis(3), Nanos::from_millis(100), Nanos::from_secs(1)]),
            destage_depth: rng.pick(&[1, 4, 32]),
            destage_rate: rng.pick(&[0, 64 << 10, 1 << 20]),
            discard_freed: rng.clone().chance(500),
            wear_budget: if rng.clone().chance(500) { start.wear_budget } else { 0 },
            writes: match self.changes_writes {
                true => rng.pick(&[WriteRoute::Back, WriteRoute::Through]),
                false => start.writes,
            },
            ..start.clone()
        }
    }
}
