//! Choosing the units that are destaged.

use super::LOOKS_MAX;
use crate::destage::what::{self, Part, WhatPolicy};
use crate::destage::when::{self, Choice};
use crate::raid::array::Array;
use crate::{LINE_SECTORS, Nanos};

impl Array {
    /// A dirty unit may be destaged now.
    fn can_destage(&self, unit: u64) -> bool {
        self.cache.get(unit).is_some_and(|unit| unit.may_leave() && unit.readers == 0)
    }

    /// The first of some units that is dirty since a stamp and may be destaged now. Units before it that only readers are in the way of are
    /// closed to more readers.
    pub fn first_behind(&self, units: impl Iterator<Item = u64>, stamp: u64) -> (Option<u64>, Vec<u64>) {
        let mut read = Vec::new();
        for unit in units {
            let behind = self.cache.get(unit).filter(|entry| entry.is_dirty() && entry.since() <= stamp);
            match behind.filter(|entry| entry.may_leave()) {
                Some(entry) if entry.readers > 0 => read.push(unit),
                Some(_) => return (Some(unit), read),
                None => {}
            }
        }
        (None, read)
    }

    /// Dirty units from the one after the last destaged one on, by rising addresses, and round again.
    pub fn in_sweep(&self) -> impl Iterator<Item = u64> + '_ {
        let (hand, dirty) = (self.destaging.hand, self.cache.dirty());
        self.destaging.look_at(dirty.range(hand..).chain(dirty.range(..hand)).copied())
    }

    /// Closes the oldest unit to new readers, if all units that may be destaged are being read. The unit is destaged after its present
    /// readers. Only one unit is closed at a time: the policy may no longer want the next one.
    fn close_one(&mut self) {
        let wanted = |unit: u64| self.cache.get(unit).is_some_and(|entry| entry.wanted);
        if self.destaging.closed.is_some_and(wanted) {
            return;
        }
        let is_read =
            |unit: &u64| self.cache.get(*unit).is_some_and(|entry| entry.may_leave() && entry.readers > 0);
        let closed = self.destaging.look_at(self.cache.by_since().map(|(_, unit)| unit)).find(is_read);
        if let Some(unit) = closed {
            self.cache.unit(unit).wanted = true;
        }
        self.destaging.closed = closed;
    }

    /// Disks that know of more commands find shorter ways. Only where these keep no other client waiting, and take little RAM.
    fn may_go_deeper(&self) -> bool {
        let whole = self.config.destage_depth as usize * self.layout.rows * self.layout.shape.data;
        self.destaging.running < self.config.flush_depth
            && self.destaging.blocks < whole / 4
            && self.clients.wait_for_flush_only()
    }

    /// The policy's choice, for what is dirty and nobody waits for.
    pub fn when(&self, now: Nanos) -> Choice {
        self.config.when.choose(&when::View {
            now,
            utilisation: self.cache.utilisation(),
            foreground: self.clients.foreground(),
            last_activity: self.clients.last_activity(),
            running: self.destaging.triggered,
            in_flight: self.destaging.running,
            depth: self.config.destage_depth,
            high_mark: f64::from(self.config.high_mark) / 100.0,
            low_mark: f64::from(self.config.low_mark) / 100.0,
            idle_empty: self.config.idle_empty,
            idle_full: self.config.idle_full,
        })
    }

    /// The unit that is destaged next, if one is to be now.
    pub fn next_destage(&mut self, now: Nanos) -> Option<u64> {
        let dirty = self.cache.dirty().len().saturating_sub(self.destaging.running as usize);
        let utilisation = self.cache.utilisation();
        let (high_mark, low_mark) =
            (f64::from(self.config.high_mark) / 100.0, f64::from(self.config.low_mark) / 100.0);
        self.destaging.triggered =
            when::hysteresis(self.destaging.triggered, utilisation, high_mark, low_mark);
        let room = self.destaging.running < self.config.destage_depth;
        if dirty == 0 || self.recorder.broken || !(room || self.may_go_deeper()) {
            return None;
        }
        if self.destaging.looks() >= LOOKS_MAX {
            self.wake_at(now);
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
        match self.when(now) {
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
        let chosen = match self.config.what {
            WhatPolicy::LeastRecentlyWritten => {
                self.destaging.look_at(self.cache.by_written()).find(|&unit| self.can_destage(unit))
            }
            WhatPolicy::CScan | WhatPolicy::Wow | WhatPolicy::Stow => {
                self.sweep(self.config.what != WhatPolicy::CScan)
            }
            _ => self.compare(),
        };
        if chosen.is_none() {
            self.close_one();
        }
        chosen
    }

    /// The first of the next dirty units by what the policy compares.
    fn compare(&mut self) -> Option<u64> {
        let mut units: Vec<u64> = self.in_sweep().filter(|&unit| self.can_destage(unit)).collect();
        units.sort_unstable();
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
        let (mut best, mut passed) = (None, Vec::new());
        for unit in self.in_sweep().filter(|&unit| self.can_destage(unit)) {
            if !chances || !self.cache.get(unit).is_some_and(|entry| entry.referenced) {
                best = Some(unit);
                break;
            }
            passed.push(unit);
        }
        passed.iter().for_each(|&unit| self.cache.pass_over(unit));
        best.or(passed.first().copied())
    }
}
