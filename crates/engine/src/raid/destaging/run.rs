//! Choosing the units that are destaged.

use crate::destage::what::{self, Part, WhatPolicy};
use crate::destage::when::{self, Choice};
use crate::raid::array::Array;
use crate::{LINE_SECTORS, Nanos};

impl Array {
    /// Whether a dirty unit may be destaged now; readers that are in the way keep others out from now on.
    pub fn can_destage(&mut self, unit: u64) -> bool {
        let unit = self.cache.unit(unit);
        if !unit.may_leave() {
            return false;
        }
        unit.wanted = unit.readers > 0;
        !unit.wanted
    }

    /// Disks that know of more commands find shorter ways. Only where these keep no other client waiting, and take little RAM.
    fn may_go_deeper(&self) -> bool {
        let whole = self.config.destage_depth as usize * self.layout.rows * self.layout.shape.data;
        self.destaging.running < self.config.flush_depth
            && self.destaging.blocks < whole / 4
            && self.clients.wait_for_flush_only()
    }

    /// The unit that is destaged next, if one is to be now.
    pub fn next_destage(&mut self, now: Nanos) -> Option<u64> {
        let dirty = self.cache.dirty().len().saturating_sub(self.destaging.running as usize);
        let utilisation = self.cache.utilisation();
        let (high_mark, low_mark) =
            (f64::from(self.config.high_mark) / 100.0, f64::from(self.config.low_mark) / 100.0);
        let triggered = when::hysteresis(self.destaging.triggered, utilisation, high_mark, low_mark);
        self.destaging.triggered = triggered;
        let room = self.destaging.running < self.config.destage_depth;
        if dirty == 0 || self.broken || !(room || self.may_go_deeper()) {
            return None;
        }
        if let Some(unit) = self.wanted_by_waiters() {
            return Some(unit);
        }
        if !room {
            return None;
        }
        if self.clients.wait_for_room() && self.destaging.running == 0 {
            return self.choose();
        }
        let view = when::View {
            now,
            utilisation,
            foreground: self.clients.foreground(),
            last_activity: self.clients.last_activity(),
            running: triggered,
            in_flight: self.destaging.running,
            depth: self.config.destage_depth,
            high_mark,
            low_mark,
            idle_empty: self.config.idle_empty,
            idle_full: self.config.idle_full,
        };
        match when::policy(self.config.when).choose(&view) {
            Choice::Run => self.choose(),
            Choice::At(time) => {
                self.wake_at(time);
                None
            }
            Choice::Wait => None,
        }
    }

    /// The dirty unit that the policy wants destaged first.
    fn choose(&mut self) -> Option<u64> {
        if self.config.what == WhatPolicy::LeastRecentlyWritten {
            let order: Vec<u64> = self.cache.by_written().take(self.operations.len() + 1).collect();
            return order.into_iter().find(|&unit| self.can_destage(unit));
        }
        if matches!(self.config.what, WhatPolicy::CScan | WhatPolicy::Wow | WhatPolicy::Stow) {
            return self.sweep(self.config.what != WhatPolicy::CScan);
        }
        let units: Vec<u64> = self.cache.dirty().iter().copied().collect();
        let units: Vec<u64> = units.into_iter().filter(|&unit| self.can_destage(unit)).collect();
        let count = self.layout.units();
        let part = |&number: &u64| {
            let unit = self.cache.get(number).expect("it is dirty");
            Part {
                number: unit.since(),
                dirty_sectors: unit.dirty_blocks() as u64 * LINE_SECTORS,
                written: unit.written(),
                ahead: (number + count - self.destaging.hand % count) % count,
                distance: 0,
                referenced: unit.referenced,
            }
        };
        let parts = units.iter().map(|number| (*number, part(number)));
        let chosen = what::choose(self.config.what, parts, |number| number.abs_diff(self.destaging.hand))?;
        for unit in chosen.passed {
            self.cache.pass_over(unit);
        }
        Some(chosen.best)
    }

    /// The next dirty unit in the direction of rising addresses, and round again. With a second chance, one that was written
    /// again is passed over once.
    fn sweep(&mut self, chances: bool) -> Option<u64> {
        let mut passed = None;
        let mut ranges = vec![0..self.destaging.hand, self.destaging.hand..u64::MAX];
        while let Some(range) = ranges.pop() {
            let Some(&unit) = self.cache.dirty().range(range.clone()).next() else { continue };
            ranges.push(unit + 1..range.end);
            if !self.can_destage(unit) {
                continue;
            }
            if !chances || !self.cache.unit(unit).referenced {
                return Some(unit);
            }
            self.cache.pass_over(unit);
            passed = passed.or(Some(unit));
        }
        passed
    }
}
