//! Chooses the next destage: by marks and policies, and by what waits.

use std::cell::Cell;

use crate::destage::what::{self, Part, WhatPolicy};
use crate::destage::when::{self, Choice};
use crate::raid::cache::StripeCache;
use crate::raid::clients::{Clients, DestageWaiter};
use crate::raid::config::RaidConfig;
use crate::raid::env::Env;
use crate::{LINE_SECTORS, Nanos};

/// The most dirty units that one choice looks at, so that no event takes longer the more is dirty. A policy that compares units compares so
/// many, from the last one that was destaged on. An event that has looked at so many leaves further choices to the next one.
pub(super) const LOOKS_MAX: usize = 1024;

/// The destages under way, and where the next one is looked for.
#[derive(Default)]
pub(super) struct Destaging {
    running: u32,
    /// Blocks that were dirty when these began.
    blocks: usize,
    /// The unit at which a sweep continues.
    hand: u64,
    /// Destaging has begun at the high mark and not reached the low one.
    triggered: bool,
    /// The unit that the policy has closed to readers, as there was no other to destage.
    closed: Option<u64>,
    /// Looks at dirty units in this event.
    looks: Cell<usize>,
}

impl Destaging {
    pub const fn running(&self) -> u32 {
        self.running
    }

    /// Blocks that were dirty when the running ones began.
    #[cfg(test)]
    pub const fn blocks(&self) -> usize {
        self.blocks
    }

    /// An event begins.
    pub fn begin_event(&mut self) {
        self.looks = Cell::new(0);
    }

    /// Lets a choice look at [`LOOKS_MAX`] of some units, and counts them.
    fn look_at<T>(&self, units: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        units.take(LOOKS_MAX).inspect(|_| self.looks.set(self.looks.get() + 1))
    }

    /// Looks at dirty units in this event.
    pub fn looks(&self) -> usize {
        self.looks.get()
    }

    /// A destage of a unit with so many dirty blocks begins.
    pub const fn begin(&mut self, unit: u64, blocks: usize) {
        self.running += 1;
        self.blocks += blocks;
        self.hand = unit + 1;
    }

    pub const fn end(&mut self, blocks: usize) {
        self.running -= 1;
        self.blocks -= blocks;
    }

    /// Dirty units from the one after the last destaged one on, by rising addresses, and round again.
    fn in_sweep<'a>(&'a self, cache: &'a StripeCache) -> impl Iterator<Item = u64> + 'a {
        let (hand, dirty) = (self.hand, cache.dirty());
        self.look_at(dirty.range(hand..).chain(dirty.range(..hand)).copied())
    }

    /// Closes the oldest unit to new readers, if all units that may be destaged are being read. The unit is destaged after its present
    /// readers. Only one unit is closed at a time: the policy may no longer want the next one.
    fn close_one(&mut self, cache: &mut StripeCache) {
        let wanted = |unit: u64| cache.get(unit).is_some_and(|entry| entry.wanted);
        if self.closed.is_some_and(wanted) {
            return;
        }
        let is_read =
            |unit: &u64| cache.get(*unit).is_some_and(|entry| entry.may_leave() && entry.readers > 0);
        let closed = self.look_at(cache.by_since().map(|(_, unit)| unit)).find(is_read);
        if let Some(unit) = closed {
            cache.unit(unit).wanted = true;
        }
        self.closed = closed;
    }

    /// Disks that know of more commands find shorter ways. Only where these keep no other client waiting, and take little RAM.
    fn may_go_deeper(&self, clients: &Clients, env: &Env) -> bool {
        let whole = env.config.destage_depth as usize * env.layout.rows * env.layout.shape.data;
        self.running < env.config.flush_depth && self.blocks < whole / 4 && clients.wait_for_flush_only()
    }

    /// The policy's choice, for what is dirty and nobody waits for.
    pub fn when(&self, now: Nanos, cache: &StripeCache, clients: &Clients, config: &RaidConfig) -> Choice {
        config.when.choose(&when::PolicyView {
            now,
            utilisation: cache.utilisation(),
            foreground: clients.foreground(),
            last_activity: clients.last_activity(),
            running: self.triggered,
            in_flight: self.running,
            depth: config.destage_depth,
            high_mark: f64::from(config.high_mark) / 100.0,
            low_mark: f64::from(config.low_mark) / 100.0,
            idle_empty: config.idle_empty,
            idle_full: config.idle_full,
        })
    }

    /// The unit that is destaged next, if one is to be now.
    pub fn next(&mut self, cache: &mut StripeCache, clients: &Clients, env: &mut Env) -> Option<u64> {
        let config = env.config;
        let dirty = cache.dirty().len().saturating_sub(self.running as usize);
        let (high_mark, low_mark) = (f64::from(config.high_mark) / 100.0, f64::from(config.low_mark) / 100.0);
        self.triggered = when::hysteresis(self.triggered, cache.utilisation(), high_mark, low_mark);
        let room = self.running < config.destage_depth;
        if dirty == 0 || env.recorder.broken || !(room || self.may_go_deeper(clients, env)) {
            return None;
        }
        if self.looks() >= LOOKS_MAX {
            env.wake_at(env.cx.now);
            return None;
        }
        if let Some(unit) = self.wanted_by(clients.waiters(), cache) {
            return Some(unit);
        }
        if !room {
            return None;
        }
        if clients.wait_for_room() && self.running == 0 {
            return self.choose(cache, env);
        }
        match self.when(env.cx.now, cache, clients, config) {
            Choice::Run => self.choose(cache, env),
            Choice::At(time) => {
                env.wake_at(time);
                None
            }
            Choice::Wait => None,
        }
    }

    /// The dirty unit that waiters want destaged first: the next one in the direction of rising addresses, if it is near, or else the oldest.
    /// Readers that are in the way keep others out from now on.
    fn wanted_by(&self, waiters: &[DestageWaiter], cache: &mut StripeCache) -> Option<u64> {
        let (mut whole, mut close) = (0, Vec::new());
        let mut found = None;
        for waiter in waiters {
            match &waiter.units {
                None => whole = whole.max(waiter.stamp),
                Some(units) if found.is_none() => {
                    let (unit, read) = cache.first_behind(self.look_at(units.iter().copied()), waiter.stamp);
                    found = unit;
                    close.extend(read);
                }
                Some(_) => {}
            }
        }
        let is_behind = |since: Option<(u64, u64)>| since.is_some_and(|(since, _)| since <= whole);
        if found.is_none() && is_behind(cache.by_since().next()) {
            let (unit, read) = cache.first_behind(self.in_sweep(cache), whole);
            found = unit;
            close.extend(read);
            if found.is_none() {
                let oldest = cache.by_since().take_while(|(since, _)| *since <= whole);
                let oldest = self.look_at(oldest.map(|(_, unit)| unit));
                let (unit, read) = cache.first_behind(oldest, whole);
                found = unit;
                close.extend(read);
            }
        }
        close.into_iter().for_each(|unit| cache.unit(unit).wanted = true);
        found
    }

    /// The dirty unit that the policy wants destaged first.
    fn choose(&mut self, cache: &mut StripeCache, env: &Env) -> Option<u64> {
        let what = env.config.what;
        let chosen = match what {
            WhatPolicy::LeastRecentlyWritten => {
                self.look_at(cache.by_written()).find(|&unit| cache.can_destage(unit))
            }
            WhatPolicy::CScan | WhatPolicy::Wow | WhatPolicy::Stow => {
                self.sweep(what != WhatPolicy::CScan, cache)
            }
            _ => self.compare(what, env.layout.units(), cache),
        };
        if chosen.is_none() {
            self.close_one(cache);
        }
        chosen
    }

    /// The first of the next dirty units by what the policy compares. `count`: the units of the array.
    fn compare(&self, what: WhatPolicy, count: u64, cache: &mut StripeCache) -> Option<u64> {
        let mut units: Vec<u64> = self.in_sweep(cache).filter(|&unit| cache.can_destage(unit)).collect();
        units.sort_unstable();
        let part = |&number: &u64| {
            let unit = cache.get(number).expect("it is dirty");
            Part {
                number: unit.since(),
                dirty_sectors: unit.dirty_blocks() as u64 * LINE_SECTORS,
                written: unit.written(),
                ahead: (number + count - self.hand % count) % count,
                distance: 0,
                referenced: unit.referenced,
            }
        };
        let parts = units.iter().map(|number| (*number, part(number)));
        let chosen = what::choose(what, parts, |number| number.abs_diff(self.hand))?;
        for unit in chosen.passed {
            cache.pass_over(unit);
        }
        Some(chosen.best)
    }

    /// The next dirty unit in the direction of rising addresses, and round again. With a second chance, one that was written
    /// again is passed over once.
    fn sweep(&self, chances: bool, cache: &mut StripeCache) -> Option<u64> {
        let (mut best, mut passed) = (None, Vec::new());
        for unit in self.in_sweep(cache).filter(|&unit| cache.can_destage(unit)) {
            if !chances || !cache.get(unit).is_some_and(|entry| entry.referenced) {
                best = Some(unit);
                break;
            }
            passed.push(unit);
        }
        passed.iter().for_each(|&unit| cache.pass_over(unit));
        best.or(passed.first().copied())
    }
}
