//! Chooses the pass over the array that goes on, and leads it, in windows of some units that are read and written in large pieces, several at a
//! time.
//!
//! Passes run one at a time. While clients are active, a pass takes so much of each member's time as `pass_rate` says, in small
//! windows, one at a time: no client waits for more than one window, and the pass is not starved either. While there are
//! no requests the pass goes as fast as the members do. A scrub that is stopped, or that a rebuild has come before, goes on where it was.

use std::collections::VecDeque;
use std::ops::Range;

use crate::layer::{CommandError, Io, IoResult};
use crate::raid::cache::StripeCache;
use crate::raid::clients::Clients;
use crate::raid::config::RaidConfig;
use crate::raid::env::Env;
use crate::raid::flight::{Flight, WindowPart};
use crate::raid::layout::Layout;
use crate::raid::pass::{Checkpoint, Pass, PassKind};
use crate::raid::record::Recorder;
use crate::raid::status::{Findings, PassStatus, Return};
use crate::raid::stripe::ActiveStripes;
use crate::raid::window::Window;
use crate::slab::Slab;
use crate::{LINE_BYTES, Nanos, SECTOR_BYTES};

/// Clients are active until so long after the last request.
const ACTIVE: Nanos = Nanos::from_millis(500);
/// The bytes of a window on each member while clients are active: some ten milliseconds of a disk.
const ACTIVE_WINDOW_BYTES: u64 = 512 << 10;
/// Windows at a time while they are not: some are read while others are written.
const DEPTH: u64 = 4;

/// A pass says so often how far it has come: what a restart does again at most.
const CHECKPOINT_TIME: Nanos = Nanos::from_secs(10);

/// The bytes of a unit on each member.
const fn column_bytes(layout: &Layout) -> u64 {
    layout.rows as u64 * LINE_BYTES
}

/// The units of the next window. `is_active`: clients are.
fn window_units(is_active: bool, env: &Env) -> u64 {
    let share = env.config.pass_bytes / (DEPTH * env.members.count() as u64);
    let bytes = if is_active { share.min(ACTIVE_WINDOW_BYTES) } else { share };
    (bytes / column_bytes(&env.layout)).max(1)
}

/// The pass that goes on, and what is known of others.
#[derive(Default)]
pub(super) struct Passes {
    current: Option<Pass>,
    /// Windows of the current pass that have begun, and their order.
    windows: Slab<Window>,
    order: VecDeque<u64>,
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

    /// True when no window is under way.
    pub fn rest(&self) -> bool {
        self.windows.is_empty()
    }

    /// A pass may have made something right that is not flushed.
    pub fn repairs(&self) -> bool {
        let repairs = |pass: &Pass| matches!(pass.kind, PassKind::Resync | PassKind::Scrub { repair: true });
        self.current.iter().chain(&self.parked).any(repairs)
    }

    /// The current pass has been over everything below this unit; none where it has been over all.
    fn position(&mut self) -> Option<u64> {
        match self.order.front() {
            Some(&first) => Some(self.windows.get_mut(first).units.start),
            None => self.current.as_ref()?.todo.front().map(|range| range.start),
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

    /// Begins a scrub, or goes on with the one that was stopped.
    pub fn scrub(&mut self, repair: bool, recorder: &Recorder) -> Result<(), CommandError> {
        if recorder.failed() != 0 {
            return Err(CommandError::MemberMissing);
        }
        if recorder.read_only {
            return Err(CommandError::MemberReadOnly);
        }
        let kind = PassKind::Scrub { repair };
        self.paused = false;
        if self.parked.as_ref().is_none_or(|pass| pass.kind != kind)
            && self.current.as_ref().is_none_or(|pass| pass.kind != kind)
        {
            self.parked = Some(Pass::new(kind, std::iter::once(0..recorder.layout.units())));
        }
        Ok(())
    }

    /// Stops a scrub; the next one goes on where it was.
    pub fn stop_scrub(&mut self) -> Result<(), CommandError> {
        if self.paused || !self.current.iter().chain(&self.parked).any(Pass::scrubs) {
            return Err(CommandError::NoScrub);
        }
        self.paused = true;
        Ok(())
    }

    /// The current pass is to begin no more windows.
    fn is_held_up(&self, recorder: &Recorder) -> bool {
        let Some(pass) = &self.current else { return true };
        match pass.kind {
            PassKind::Resync => false,
            // Before the superblocks say who has the role, nothing is written there.
            PassKind::Rebuild { .. } => !recorder.knows_rebuild(),
            PassKind::Scrub { .. } => self.paused || recorder.failed() != 0 || self.parked.is_some(),
        }
    }

    /// Ends a pass that is void, as soon as nothing of it is under way.
    pub fn end_void(&mut self, recorder: &Recorder) {
        let Some(pass) = self.current.as_mut().filter(|pass| pass.is_void(recorder)) else { return };
        pass.todo.clear();
        pass.void = true;
        if self.windows.is_empty() && pass.checkpoint.is_none_or(|checkpoint| checkpoint.left == 0) {
            self.current = None;
        }
    }

    /// Lets the pass that is most urgent be the current one.
    fn choose(&mut self, recorder: &Recorder) {
        let scrubs = |pass: &Pass| pass.scrubs() && pass.checkpoint.is_none();
        if self.windows.is_empty() && self.is_held_up(recorder) && self.current.as_ref().is_some_and(scrubs) {
            let pass = self.current.take();
            // One of another kind that has been asked for meanwhile takes its place.
            self.parked = self.parked.take().or(pass);
        }
        if self.current.is_some() {
            return;
        }
        if let Some(rebuild) = recorder.rebuilding() {
            let units = recorder.units_to_rebuild(&rebuild);
            let mut pass = units.map(|units| Pass::new(PassKind::Rebuild { role: rebuild.role }, units));
            if let Some(pass) = pass.as_mut().filter(|_| !recorder.is_returning()) {
                // It goes on where it was, and its percentage is that of the member.
                pass.units = recorder.layout.units();
            }
            self.current = pass;
        } else if !self.paused && recorder.failed() == 0 {
            self.current = self.parked.take();
        }
        if let Some(pass) = &mut self.current {
            pass.began = None;
        }
    }

    /// Begins windows, as many as there may be now; ends the pass after the last one.
    pub fn go_on(&mut self, stripes: &mut ActiveStripes, clients: &Clients, env: &mut Env) {
        if env.recorder.takes_no_writes() || env.config.pass_rate == 0 {
            return;
        }
        self.choose(env.recorder);
        self.go_on_with_checkpoint(env);
        let is_active = clients.foreground() > 0
            || stripes.destaging.running() > 0
            || env.cx.now < clients.last_activity() + ACTIVE;
        while !self.is_held_up(env.recorder) && self.may_begin_window(is_active, clients, env) {
            let left = self.units_left();
            let Some(pass) = &mut self.current else { return };
            let Some(units) = pass.take(window_units(is_active, env)) else { return };
            if pass.began.is_none() {
                (pass.began, pass.next_checkpoint) = (Some((env.cx.now, left)), env.cx.now + CHECKPOINT_TIME);
            }
            self.pace(&units, env);
            self.begin_window(units, stripes, env);
        }
    }

    /// A pass goes on, while the array is served.
    pub fn want_to_go_on(&self, recorder: &Recorder, config: &RaidConfig) -> bool {
        !recorder.read_only && config.pass_rate > 0 && !self.is_held_up(recorder)
    }

    fn may_begin_window(&self, is_active: bool, clients: &Clients, env: &mut Env) -> bool {
        let begun = self.windows.len() as u64;
        if !is_active {
            let window_bytes = column_bytes(&env.layout) * env.members.count() as u64;
            return begun < (env.config.pass_bytes / window_bytes).clamp(1, DEPTH);
        }
        if begun == 0 && env.cx.now < self.next_at {
            let rest = clients.last_activity() + ACTIVE;
            env.wake_at(if rest > env.cx.now { self.next_at.min(rest) } else { self.next_at });
            return false;
        }
        begun == 0
    }

    /// The next window has to wait so long that the rate is kept.
    fn pace(&mut self, units: &Range<u64>, env: &Env) {
        let bytes = (units.end - units.start) * column_bytes(&env.layout);
        let takes = u128::from(bytes) * 1_000_000_000 / u128::from(env.config.pass_rate);
        self.next_at =
            env.cx.now.max(self.next_at).saturating_add(Nanos(takes.min(u128::from(u64::MAX)) as u64));
    }

    /// Claims a window's units, and takes the locks that are free.
    fn begin_window(&mut self, units: Range<u64>, stripes: &mut ActiveStripes, env: &mut Env) {
        let key = self.windows.insert(Window::new(units.clone(), env.members.count()));
        self.order.push_back(key);
        for unit in units {
            let entry = stripes.cache.unit(unit);
            entry.claimed = Some(key);
            if !entry.exclusive && entry.readers == 0 && entry.fetch.is_none() {
                self.lock(unit, stripes, env);
            }
        }
    }

    /// Gives a unit to the window that has claimed it.
    pub fn lock(&mut self, unit: u64, stripes: &mut ActiveStripes, env: &mut Env) {
        let entry = stripes.cache.unit(unit);
        let key = entry.claimed.take().expect("a window has claimed it");
        (entry.exclusive, entry.wanted) = (true, false);
        stripes.prefetch.take(unit, &mut stripes.cache);
        let window = self.windows.get_mut(key);
        window.left -= 1;
        if window.left == 0 {
            window.begin(key, &stripes.cache, env);
        }
    }

    /// A member has given its part of a window.
    pub fn read_returned(
        &mut self,
        part: WindowPart,
        result: IoResult,
        stripes: &ActiveStripes,
        env: &mut Env,
    ) {
        let (key, repairs) = (part.window, self.repairs());
        let window = self.windows.get_mut(key);
        window.read_returned(part, result, &stripes.cache, env);
        if window.left == 0 {
            let pass = self.current.as_mut().expect("a pass goes on");
            window.survey(key, pass, repairs, stripes, env);
        }
    }

    /// A member has written its part of a window, or has failed.
    pub fn write_returned(&mut self, part: WindowPart, is_ok: bool, cache: &mut StripeCache, env: &mut Env) {
        let window = self.windows.get_mut(part.window);
        window.left -= 1;
        if is_ok {
            let pass = self.current.as_mut().expect("a pass goes on");
            window.written(part, pass, cache, env);
        }
    }

    /// A window is over when all before it are: what a pass has been over is everything below one unit. Gives its units, which are free.
    pub fn next_over(&mut self, env: &mut Env) -> Option<Range<u64>> {
        let first = *self.order.front()?;
        if self.windows.get_mut(first).left > 0 {
            return None;
        }
        self.order.pop_front();
        let Window { units, .. } = self.windows.remove(first);
        let position = self.position();
        let pass = self.current.as_ref().expect("a pass goes on");
        match pass.kind {
            _ if pass.is_void(env.recorder) => {}
            PassKind::Resync => env.statistics.resynced_units += units.end - units.start,
            PassKind::Rebuild { .. } => env.recorder.rebuilt(env.recorder.sectors_below(position)),
            PassKind::Scrub { .. } => {}
        }
        Some(units)
    }

    /// Now and then, and at the end, it is recorded how far a pass has come.
    fn go_on_with_checkpoint(&mut self, env: &mut Env) {
        let position = self.position();
        let Some(pass) = &mut self.current else { return };
        match pass.checkpoint {
            Some(Checkpoint { left: 0, position }) => self.end_checkpoint(position, env),
            Some(_) => {}
            None if pass.void => {}
            None => match position {
                None => self.begin_checkpoint(u64::MAX, env),
                Some(position) if env.cx.now >= pass.next_checkpoint => self.begin_checkpoint(position, env),
                Some(_) => {}
            },
        }
    }

    /// Records at a stop how far a pass has come. True when nothing is left to record. Nothing of the pass is under way.
    pub fn has_noted(&mut self, env: &mut Env) -> bool {
        self.go_on_with_checkpoint(env);
        let position = self.position();
        let Some(pass) = &mut self.current else { return true };
        if pass.checkpoint.is_some() {
            return false;
        }
        if env.recorder.broken || pass.void || pass.began.is_none() {
            return true;
        }
        // Only once.
        pass.began = None;
        self.begin_checkpoint(position.unwrap_or(u64::MAX), env);
        self.current.as_ref().is_none_or(|pass| pass.checkpoint.is_none())
    }

    fn begin_checkpoint(&mut self, position: u64, env: &mut Env) {
        let Some(pass) = &self.current else { return };
        let (kind, wrote) = (pass.kind, pass.findings.repaired > 0);
        let flushes = |role: &usize| match kind {
            PassKind::Rebuild { role: new } => new == *role,
            // A parity that fits may do so only in the caches of members, where a killed server has left it.
            PassKind::Resync => (wrote || env.members.unflushed) && env.recorder.is_in_use(*role),
            PassKind::Scrub { .. } => wrote && env.recorder.is_in_use(*role),
        };
        let roles: Vec<usize> = (0..env.members.count()).filter(flushes).collect();
        if let Some(pass) = &mut self.current {
            pass.checkpoint = Some(Checkpoint { position, left: roles.len() as u32 });
        }
        for role in &roles {
            env.submit(*role, Flight::PassFlush, Io::Flush);
        }
        if roles.is_empty() {
            self.end_checkpoint(position, env);
        }
    }

    /// A member has flushed what a pass has written, or has failed.
    pub fn flushed(&mut self) {
        if let Some(Checkpoint { left, .. }) = self.current.as_mut().and_then(|pass| pass.checkpoint.as_mut())
        {
            *left -= 1;
        }
    }

    fn end_checkpoint(&mut self, position: u64, env: &mut Env) {
        let Some(pass) = &mut self.current else { return };
        (pass.checkpoint, pass.next_checkpoint) = (None, env.cx.now + CHECKPOINT_TIME);
        let (kind, findings, over) = (pass.kind, pass.findings, position == u64::MAX);
        let filled_bytes = pass.units * column_bytes(&env.layout);
        let returning = over && env.recorder.is_returning();
        match kind {
            PassKind::Resync => {
                let regions = env.recorder.regions;
                let right =
                    |region: &u64| regions.units(*region).end <= position && !pass.wrong.contains(region);
                let right: Vec<u64> = env.recorder.in_doubt().iter().filter(right).collect();
                for region in right {
                    env.recorder.synced(region);
                }
            }
            PassKind::Rebuild { .. } => {
                env.recorder.checkpoint(env.recorder.sectors_below((!over).then_some(position)))
            }
            PassKind::Scrub { .. } => {}
        }
        if over {
            self.current = None;
            match kind {
                PassKind::Resync => {}
                PassKind::Rebuild { role } => {
                    let member_bytes = env.recorder.recorded().member_sectors * SECTOR_BYTES;
                    let done = returning.then_some(Return { role, filled_bytes, member_bytes });
                    (self.last_rebuild, self.last_return) = (Some(findings), done);
                }
                PassKind::Scrub { .. } => self.last_scrub = Some(findings),
            }
        }
        env.record();
    }
}
