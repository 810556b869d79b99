//! Runs the explorer once: a client on a stack, and the tree of crashes that grows from it.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use dcd_engine::{
    Buf, Control, Discards, Io, LayerIndex, Lba, Nanos, Pump, Report, SECTOR_BYTES, Stack, Unfinished,
};

use super::administrator::Administrator;
use super::guest::{Guest, GuestContent};
use super::legs::LegKeeper;
use super::sampler::{BETWEEN_STORES, Cut, Sampler, cut};
use super::trouble::DiskTrouble;
use super::tuner::Tuner;
use super::{DEPTH_MAX, ExplorationCounts, Rig, Subject, panic_text};
use crate::{
    Character, DiskFaults, DriverProgress, LeftMemory, MemDisk, MemDriver, Oracle, SeenContent, SimClient,
    SimMemory, SimRng, describe, mix, stamp,
};

mod away;
pub(super) mod rescue;
pub(super) mod rot;
mod starts;
pub(super) mod take_over;
mod torn;

use away::AwayDisk;
use take_over::Here;

/// The whole device is read in pieces of this size.
const READ_SECTORS: u64 = 256;
/// Maximum number of events: a client that is not done by then waits for something that never comes.
const EVENTS_MAX: u64 = 2_000_000;
/// Maximum virtual time, for the same reason.
const TIME_MAX: Nanos = Nanos::from_secs(36_000);
/// Maximum time for work that a stack begins by itself.
const REST_TIME: Nanos = Nanos::from_secs(60);
/// Lines of the story that are kept of each level.
const STORY_LINES_MAX: usize = 120;

struct ExplorerRun {
    seed: u64,
    rig: Rig,
    rng: SimRng,
    /// The client of the first activation; it often comes back.
    character: Option<Character>,
    /// The members that the running stack was made without.
    missing: Vec<usize>,
    /// The data disk that is missing in the present activation.
    away: Option<AwayDisk>,
    /// Machine that serves the present activation.
    here: Here,
    /// Memory that the last process left, and that of the running one.
    left: LeftMemory,
    memory: Option<SimMemory>,
    /// Writes go through: the log may be lost.
    log_is_spare: Rc<Cell<bool>>,
    states_left: u64,
    counts: ExplorationCounts,
    checks: bool,
    tells: bool,
    story: Vec<String>,
}

type RunResult<T = ()> = Result<T, String>;

/// Runs a seed. The second value is the violation, with the story if it was asked for.
pub(super) fn run(
    seed: u64,
    subject: &Subject,
    states: u64,
    checks: bool,
    tells: bool,
) -> (ExplorationCounts, Option<(String, Vec<String>)>) {
    let mut run = ExplorerRun {
        seed,
        rig: subject(seed),
        rng: SimRng::new(mix(seed, 0x0af1)),
        character: None,
        missing: Vec::new(),
        away: None,
        here: Here::FIRST,
        left: LeftMemory::default(),
        memory: None,
        log_is_spare: Rc::default(),
        states_left: states,
        counts: ExplorationCounts { runs: 1, ..ExplorationCounts::default() },
        checks,
        tells,
        story: Vec::new(),
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| run.first_life(seed)));
    let outcome = outcome.unwrap_or_else(|panic| Err(panic_text(&*panic)));
    let story = run.story;
    (run.counts, outcome.err().map(|what| (what, story)))
}

impl ExplorerRun {
    fn tell(&mut self, line: impl FnOnce() -> String) {
        if self.tells {
            self.story.push(line());
        }
    }

    /// Moves the driver's part of the story over.
    fn tell_driver(&mut self, driver: &mut MemDriver) {
        if self.tells {
            let lines = driver.take_story();
            let skipped = lines.len().saturating_sub(STORY_LINES_MAX);
            if skipped > 0 {
                self.story.push(format!("    ... {skipped} lines"));
            }
            self.story.extend(lines.into_iter().skip(skipped).map(|line| format!("    {line}")));
        }
    }

    /// Makes the administrator that fails members while a client is served, and adds them again.
    fn administrator(&mut self) -> Option<Administrator> {
        let hot_add = self.rig.hot_add.as_ref()?;
        Some(Administrator::new(self.rng.fork(), hot_add, &self.missing))
    }

    /// Makes the administrator that takes legs out while a client is served, and gives them back.
    fn leg_keeper(&mut self) -> Option<LegKeeper> {
        let legs = self.rig.legs?;
        Some(LegKeeper::new(self.rng.fork(), legs))
    }

    /// Makes the administrator that changes settings while a client is served.
    fn tuner(&mut self) -> Option<Tuner> {
        let config = self.rig.tuned.clone()?;
        Some(Tuner::new(self.rng.fork(), config, self.rig.through.is_some()))
    }

    fn sampler(
        &mut self,
        driver: &mut MemDriver,
        at_writes: u64,
        elsewhere: u64,
        left: u32,
    ) -> Rc<RefCell<Sampler>> {
        let sampler = Sampler {
            rng: self.rng.fork(),
            at_writes,
            elsewhere,
            left,
            cuts: Vec::new(),
            memory: self.memory.clone(),
            before: None,
            log_is_spare: Rc::clone(&self.log_is_spare),
            between: Vec::new(),
        };
        let sampler = Rc::new(RefCell::new(sampler));
        let inside = Rc::clone(&sampler);
        if self.memory.is_some() {
            let inside = Rc::clone(&sampler);
            let before = move |now, disks: &[MemDisk]| inside.borrow_mut().look_before(now, disks);
            driver.observe_before(Box::new(before));
        }
        driver.observe(Box::new(move |moment, disks: &[MemDisk]| inside.borrow_mut().look(moment, disks)));
        sampler
    }

    fn draw_character(&mut self, geometry: dcd_engine::Geometry) -> Character {
        let drawn = Character::draw(&mut self.rng, geometry, self.rig.overlaps);
        let avoids = self.away.as_ref().map(|away| (away.disk, self.rig.dealt));
        let drawn = Character { chunk: self.rig.chunk, avoids, ..drawn };
        if self.rig.reads_again { drawn.reads_again(&mut self.rng) } else { drawn }
    }

    fn first_life(&mut self, seed: u64) -> RunResult {
        let disks = std::mem::take(&mut self.rig.disks);
        let base = std::mem::take(&mut self.rig.base);
        let mut oracle =
            Oracle::new(self.rig.promise, self.rig.delay_max, seed, base).of_disks(self.rig.dealt);
        if self.rig.data_alone.is_some() {
            oracle = oracle.judges_disk();
        }
        oracle.guest = self.rig.guest.as_ref().map(|_| GuestContent::default());
        let about = self.rig.about.clone();
        self.tell(|| format!("run {seed:#x}: {about}"));
        let (mut driver, mut stack) = self.start(disks)?;
        let sampler = self.sampler(&mut driver, 100, 10, 2);
        stack.activate(&mut driver).map_err(|e| format!("a fresh device does not start: {e}"))?;
        self.try_cuts(&mut driver, &sampler, &oracle, 0, "first start")?;
        {
            let mut sampler = sampler.borrow_mut();
            // At every write and flush of some runs, which are short, and at some of more runs.
            let drawn = self.rng.pick(&[1000, 100, 40, 12, 12, 12, 12, 12]);
            let at_writes = if self.rig.eager { 1000 } else { drawn };
            (sampler.at_writes, sampler.elsewhere, sampler.left) = (at_writes, at_writes / 15, u32::MAX);
        }
        let geometry = stack.geometry(stack.root());
        let mut character = self.draw_character(geometry);
        if sampler.borrow().at_writes == 1000 {
            // Some hundred states, not thousands: settings and clients matter as much.
            character.requests /= 6;
        }
        self.tell(|| format!("client: {character:?}"));
        self.character = Some(character);
        let mut client = SimClient::new(character, oracle, self.rng.fork());
        let rots = self.rig.log.filter(|_| self.rig.rots);
        if rots.is_some() {
            let mut sampler = sampler.borrow_mut();
            (sampler.at_writes, sampler.elsewhere) = (0, 0);
        }
        self.serve(&mut driver, &mut stack, &mut client, &sampler, 0)?;
        if let Some(log) = rots {
            return self.rot(&mut driver, &mut stack, client.oracle, log);
        }
        self.last_words(&mut driver, &mut stack, &client.oracle, &sampler, 0)?;
        self.add_paths(&stack, driver.now());
        self.counts.trace = driver.trace_hash();
        Ok(())
    }

    /// Lets a client work until it is done; every crash on the way is tried at once.
    fn serve(
        &mut self,
        driver: &mut MemDriver,
        stack: &mut Stack,
        client: &mut SimClient,
        sampler: &Rc<RefCell<Sampler>>,
        depth: u32,
    ) -> RunResult {
        let events_max = driver.events() + EVENTS_MAX;
        let mut paused = false;
        let mut administrator = self.administrator();
        let mut keeper = self.leg_keeper();
        let mut tuner = self.tuner();
        let mut guest = self.guest(&client.oracle);
        let mut trouble = self.rig.troubled.map(|disks| DiskTrouble::new(self.rng.fork(), disks));
        while !client.is_done() && self.states_left > 0 {
            if !paused && let Some(pause) = client.take_pause() {
                driver.set_alarm(driver.now() + pause, 0);
                paused = true;
            }
            while !paused && let Some((id, io)) = client.next_request() {
                driver.note(|| format!("client asks r{} {}", id.0, describe(&io)));
                if let Some(trouble) = &mut trouble {
                    trouble.asked(id, &io, driver.now());
                }
                driver.request(stack, id, io);
            }
            match driver.step(stack) {
                DriverProgress::Idle if client.in_flight() > 0 => {
                    self.tell_driver(driver);
                    let state = statuses(stack, driver.now());
                    return Err(format!("{} requests are never answered;{state}", client.in_flight()));
                }
                DriverProgress::Idle if has_guest_waiting(guest.as_ref(), &client.oracle) => {
                    self.tell_driver(driver);
                    let state = statuses(stack, driver.now());
                    return Err(format!("a change of the guest, or a request to it, has no end;{state}"));
                }
                DriverProgress::Idle | DriverProgress::Moved => {}
                DriverProgress::Alarm(_) => paused = false,
            }
            // No answer of this step counts yet.
            let between = std::mem::take(&mut sampler.borrow_mut().between);
            self.try_each(driver, between, &client.oracle, depth, "serving")?;
            while let Some((id, result)) = driver.take_reply() {
                let status = result.status;
                driver.note(|| format!("client is answered r{}: {status:?}", id.0));
                if let Some(guest) = guest.as_mut().filter(|_| Guest::is_own(id)) {
                    guest.take(id, &result)?;
                    continue;
                }
                if let Some(trouble) = &mut trouble {
                    trouble.answered(id);
                }
                if let Err(what) = client.reply(driver.now(), id, &result) {
                    self.tell_driver(driver);
                    return Err(what);
                }
            }
            self.try_cuts(driver, sampler, &client.oracle, depth, "serving")?;
            if let (Some(guest), Some(of)) = (&mut guest, &mut client.oracle.guest)
                && let Err(what) = guest.act(driver, stack, of, true)
            {
                self.tell_driver(driver);
                return Err(what);
            }
            if let Some(administrator) = &mut administrator
                && let Err(what) = administrator.act(driver, stack)
            {
                self.tell_driver(driver);
                return Err(what);
            }
            if let Some(keeper) = &mut keeper
                && let Err(what) = keeper.act(driver, stack)
            {
                self.tell_driver(driver);
                return Err(what);
            }
            if self.rig.through.is_some() {
                while let Some((_, report)) = driver.take_report() {
                    self.note_report(&report);
                }
            }
            if let Some(trouble) = &mut trouble
                && let Err(what) = trouble.act(driver)
            {
                self.tell_driver(driver);
                return Err(format!("{what};{}", statuses(stack, driver.now())));
            }
            if let Some(tuner) = &mut tuner
                && tuner.act(driver, stack)
            {
                self.log_is_spare.set(false);
            }
            if driver.events() > events_max || driver.now() > TIME_MAX {
                self.tell_driver(driver);
                return Err(format!("{} requests are not answered by {}", client.in_flight(), driver.now()));
            }
        }
        if let Some(keeper) = keeper {
            *self.counts.kinds.entry("legs added while served".into()).or_default() += keeper.added;
        }
        if let Some(tuner) = tuner {
            *self.counts.kinds.entry("settings changed while served".into()).or_default() += tuner.changes;
        }
        if let Some(mut trouble) = trouble {
            trouble.end(driver);
            *self.counts.kinds.entry("disks hung while served".into()).or_default() += trouble.hung;
            *self.counts.kinds.entry("disks failing while served".into()).or_default() += trouble.failed;
        }
        if let Some(guest) = guest {
            self.leave_guest(driver, stack, client, sampler, depth, guest)?;
        }
        if let Some(administrator) = administrator {
            *self.counts.kinds.entry("members added while served".into()).or_default() += administrator.added;
        }
        Ok(())
    }

    /// Makes the administrator of a data disk that comes and goes.
    fn guest(&mut self, oracle: &Oracle) -> Option<Guest> {
        let place = self.rig.guest.clone()?;
        let content = oracle.guest.as_ref()?;
        Some(Guest::new(self.rng.fork(), place, self.rig.promise, content))
    }

    /// Waits for the answers of a guest.
    fn leave_guest(
        &mut self,
        driver: &mut MemDriver,
        stack: &mut Stack,
        client: &mut SimClient,
        sampler: &Rc<RefCell<Sampler>>,
        depth: u32,
        mut guest: Guest,
    ) -> RunResult {
        while guest.in_flight() > 0 && self.states_left > 0 {
            if driver.step(stack) == DriverProgress::Idle {
                return Err("a request to the guest is never answered".to_owned());
            }
            while let Some((id, result)) = driver.take_reply() {
                guest.take(id, &result)?;
            }
            self.try_cuts(driver, sampler, &client.oracle, depth, "serving")?;
            if let Some(of) = &mut client.oracle.guest {
                guest.act(driver, stack, of, false)?;
            }
        }
        *self.counts.kinds.entry("disks added while served".into()).or_default() += guest.added;
        *self.counts.kinds.entry("disks removed while served".into()).or_default() += guest.removed;
        Ok(())
    }

    /// Judges a data disk that comes and goes; returns what was found.
    fn judge_guest(
        &mut self,
        driver: &mut MemDriver,
        stack: &mut Stack,
        oracle: &Oracle,
        is_there: bool,
    ) -> RunResult<Option<Vec<u64>>> {
        let (Some(place), Some(of)) = (self.rig.guest.clone(), &oracle.guest) else { return Ok(None) };
        // A disk that never came has nothing to be judged.
        if of.life() == 0 {
            return Ok(None);
        }
        let found = place.read(driver, stack, of.life(), is_there)?;
        of.judge(is_there, &found)?;
        let kind = if is_there { "guests found in the log" } else { "guests found outside" };
        *self.counts.kinds.entry(kind.into()).or_default() += 1;
        Ok(Some(found))
    }

    /// The crashes that the sampler has made.
    fn try_cuts(
        &mut self,
        driver: &mut MemDriver,
        sampler: &Rc<RefCell<Sampler>>,
        oracle: &Oracle,
        depth: u32,
        place: &str,
    ) -> RunResult {
        if let Some((first, second)) = driver.devices().iter().find_map(MemDisk::race) {
            self.tell_driver(driver);
            return Err(format!(
                "{first} and {second} of one device are written at the same time while {place}"
            ));
        }
        let cuts = {
            let mut sampler = sampler.borrow_mut();
            let mut cuts = std::mem::take(&mut sampler.between);
            cuts.append(&mut sampler.cuts);
            cuts
        };
        self.try_each(driver, cuts, oracle, depth, place)
    }

    fn try_each(
        &mut self,
        driver: &mut MemDriver,
        cuts: Vec<Cut>,
        oracle: &Oracle,
        depth: u32,
        place: &str,
    ) -> RunResult {
        if cuts.is_empty() {
            return Ok(());
        }
        self.tell_driver(driver);
        // Those of this activation, which continues after the cuts were tried.
        let (missing, here) = (self.missing.clone(), self.here.clone());
        let (left, memory) = (self.left.clone(), self.memory.clone());
        let log_is_spare = self.log_is_spare.get();
        let away = self.away.take();
        for cut in cuts {
            self.crashed(cut, oracle, depth + 1, place)?;
            self.here = here.clone();
        }
        self.away = away;
        self.log_is_spare.set(log_is_spare);
        (self.left, self.memory) = (left, memory);
        self.missing = missing;
        Ok(())
    }

    /// Adds the counters of the layers of an activation.
    fn add_paths(&mut self, stack: &Stack, now: Nanos) {
        for (layer, _) in stack.layers() {
            let status = stack.layer(layer).status(now).to_json();
            let Some(statistics) = status["statistics"].as_object() else { continue };
            for (path, count) in statistics {
                if let Some(count) = count.as_u64() {
                    *self.counts.paths.entry(path.clone()).or_default() += count;
                }
            }
        }
    }

    fn count(&mut self, cut: &Cut, depth: u32, place: &str) {
        self.counts.states += 1;
        self.states_left -= 1;
        for kind in
            [format!("cut {depth} deep"), format!("while {place}"), format!("while {place}, {depth} deep")]
        {
            *self.counts.kinds.entry(kind).or_default() += 1;
        }
        let style = if cut.killed { "killed" } else { "power cut" };
        *self.counts.kinds.entry(style.into()).or_default() += 1;
        if cut.how.starts_with(BETWEEN_STORES) {
            *self.counts.kinds.entry("killed between two stores".into()).or_default() += 1;
        }
    }

    /// Loses disks permanently, mostly as many as may be lost.
    fn lose_disks(&mut self, cut: &mut Cut) {
        while self.rig.losses.as_ref().is_some_and(|losses| losses.in_crashes) && self.rng.chance(800) {
            let Some(lost) = self.lose_disk(&mut cut.disks) else { return };
            cut.how.push_str(&format!(", disk {lost} is lost"));
            *self.counts.kinds.entry("disks lost".into()).or_default() += 1;
        }
    }

    /// Flips bits at rest, on a disk whose data has copies on other disks.
    fn spoil(&mut self, cut: &mut Cut) {
        let Some((disk, sectors)) = self.rig.spoils else { return };
        for _ in 0..self.rng.below(4) {
            let at = Lba(self.rng.below(sectors));
            cut.disks[disk].flip_bit(at, self.rng.below(SECTOR_BYTES * 8));
            cut.how.push_str(&format!(", a bit flips at {at} of disk {disk}"));
            *self.counts.kinds.entry("bits flipped".into()).or_default() += 1;
        }
    }

    /// Loses a disk permanently, if one may be lost.
    fn lose_disk(&mut self, disks: &mut [MemDisk]) -> Option<usize> {
        let losses = self.rig.losses.as_ref()?;
        let may_lose = (losses.may_lose)(disks);
        if may_lose.is_empty() {
            return None;
        }
        let lost = self.rng.pick(&may_lose);
        disks[lost].set_faults(DiskFaults::dead());
        Some(lost)
    }

    /// Waits until nothing is left to be done. Then a disk is lost that may be lost at rest: the next activation must have all data.
    fn rest(
        &mut self,
        driver: &mut MemDriver,
        stack: &mut Stack,
        oracle: &Oracle,
        found: &[SeenContent],
        depth: u32,
    ) -> RunResult {
        let sampler = self.sampler(driver, 60, 5, 3);
        let until = driver.now() + REST_TIME;
        while driver.now() < until && driver.step(stack) != DriverProgress::Idle {
            self.try_cuts(driver, &sampler, oracle, depth, "resting")?;
        }
        let rests = |status: serde_json::Value| status["state"] == "good" && status["clean"] == true;
        if !stack.layers().any(|(layer, _)| rests(stack.layer(layer).status(driver.now()).to_json())) {
            return Ok(());
        }
        let mut disks: Vec<MemDisk> =
            driver.devices().iter().map(|disk| disk.killed(&mut self.rng)).collect();
        let Some(lost) = self.lose_disk(&mut disks) else { return Ok(()) };
        self.tell_driver(driver);
        self.tell(|| format!("-- disk {lost} is lost at rest"));
        *self.counts.kinds.entry("disks lost at rest".into()).or_default() += 1;
        let (mut driver, mut stack) = self.start(disks)?;
        let activated = stack.activate(&mut driver);
        self.tell_driver(&mut driver);
        activated.map_err(|e| format!("a start without disk {lost} is refused: {e}"))?;
        match self.read_all(&mut driver, &mut stack, oracle)? == found {
            true => Ok(()),
            false => Err(format!("disk {lost}, which was lost at rest, took data with it")),
        }
    }

    /// Recovers a state, judges it, and perhaps continues from it.
    fn crashed(&mut self, mut cut: Cut, oracle: &Oracle, depth: u32, place: &str) -> RunResult {
        if self.states_left == 0 {
            return Ok(());
        }
        self.count(&cut, depth, place);
        // Whoever was missing is back.
        self.away = None;
        self.lose_disks(&mut cut);
        self.spoil(&mut cut);
        self.see_to_machines(&mut cut)?;
        let has_lost_memory = self.lose_memory(&mut cut);
        self.left = cut.left.clone();
        let nests = depth < DEPTH_MAX && !self.rig.eager;
        let goes_away = if nests { self.draw_away(&mut cut) } else { None };
        let told = self.story.len();
        let state = self.counts.states;
        self.tell(|| format!("-- state {state}: {} at {} while {place}, {depth} deep", cut.how, cut.at));
        self.judge_data_alone(&cut, oracle)?;
        self.judge_without_log(&cut, oracle)?;
        self.judge_rescue(&cut, oracle)?;
        // Asked before the start, as the start fills legs.
        let is_torn = self.are_torn(&cut.disks);
        let disks = std::mem::take(&mut cut.disks);
        let without = goes_away
            .map(|disk| (disk, disks.iter().map(|disk| disk.killed(&mut self.rng)).collect::<Vec<_>>()));
        let (mut driver, mut stack) = self.start(disks)?;
        // Nested starts look, too.
        let is_guest_there = self.rig.guest.as_ref().is_some_and(|guest| guest.is_there.get());
        driver.hash_no_payloads();
        // After a kill the devices still have something to lose while the recovery runs.
        let sampler = if nests && self.rng.chance(if cut.killed { 300 } else { 50 }) {
            self.sampler(&mut driver, 350, 20, 2)
        } else {
            self.sampler(&mut driver, 0, 0, 0)
        };
        let activated = stack.activate(&mut driver);
        self.tell_driver(&mut driver);
        if let Err(refused) = &activated
            && is_torn
        {
            self.tell(|| format!("-- {refused}"));
            return self.accept_torn(driver.devices(), &refused.error, oracle, cut.at);
        }
        if let Err(refused) = &activated
            && has_lost_memory
        {
            self.tell(|| format!("-- {refused}"));
            return self.accept_loss(driver.devices(), &refused.error, oracle, cut.at);
        }
        activated.map_err(|e| format!("recovery refuses: {e}"))?;
        // This activation has its own clock and served nothing: the crash before it decided which data may be lost.
        for nested in &mut sampler.borrow_mut().cuts {
            nested.at = cut.at;
            nested.only_killed &= cut.only_killed;
        }
        for nested in &mut sampler.borrow_mut().between {
            nested.at = cut.at;
            nested.only_killed &= cut.only_killed;
        }
        self.try_cuts(&mut driver, &sampler, oracle, depth, "recovering")?;
        self.here.has_started();
        let found = self.read_all(&mut driver, &mut stack, oracle)?;
        oracle.judge(cut.at, &found)?;
        if cut.only_killed && self.rig.outlives_server {
            oracle.judge_killed(&found)?;
        }
        if let Some(without) = without {
            self.live_without(without, &cut, oracle, found.clone(), depth)?;
            self.away = None;
        }
        let guest = self.judge_guest(&mut driver, &mut stack, oracle, is_guest_there)?;
        // Data after a hole must not reappear in a later activation: explore that more often.
        if nests && self.rng.chance(if cut.holes { 800 } else { 350 }) {
            let mut next = oracle.clone();
            if cut.killed && self.rig.promise != dcd_engine::log_cache::Promise::Ordered {
                // The disks kept their caches, so unflushed data may still be lost.
                next.killed(&found);
            } else {
                next.recovered(&found);
            }
            if let (Some(of), Some(guest)) = (&mut next.guest, guest) {
                of.found(is_guest_there, &guest, cut.killed);
            }
            self.live_on(&mut driver, &mut stack, next, found, depth, cut.holes)?;
        }
        self.add_paths(&stack, driver.now());
        self.story.truncate(told);
        Ok(())
    }

    /// Judges the data disk as it would be without the cache.
    fn judge_data_alone(&mut self, cut: &Cut, oracle: &Oracle) -> RunResult {
        let Some((device, start)) = self.rig.data_alone else { return Ok(()) };
        let found = look_at_disk(&cut.disks[device], start, oracle);
        *self.counts.kinds.entry("data disk judged alone".into()).or_default() += 1;
        oracle.judge_disk(&found)
    }

    /// Notes that the log may be lost, where a report says so.
    fn note_report(&self, report: &Report) {
        if *report == Report::WritesThrough {
            self.log_is_spare.set(true);
        }
    }

    /// Throws the log away, if the cache has said that it may be lost, and judges the data disk.
    fn judge_without_log(&mut self, cut: &Cut, oracle: &Oracle) -> RunResult {
        let Some((device, start)) = self.rig.through.filter(|_| cut.log_is_spare) else { return Ok(()) };
        let found = look_at_disk(&cut.disks[device], start, oracle);
        *self.counts.kinds.entry("the log thrown away".into()).or_default() += 1;
        oracle.judge(cut.at, &found).map_err(|what| format!("without the log: {what}"))?;
        match cut.only_killed && self.rig.outlives_server {
            true => oracle.judge_killed(&found),
            false => Ok(()),
        }
    }

    /// Cuts the disks now.
    fn cut(&mut self, driver: &MemDriver) -> Cut {
        let cut = cut(driver.devices(), self.memory.as_ref(), driver.now(), &mut self.rng);
        Cut { log_is_spare: self.log_is_spare.get(), ..cut }
    }

    /// Continues after a recovery in one of several ways, with further crashes.
    fn live_on(
        &mut self,
        driver: &mut MemDriver,
        stack: &mut Stack,
        oracle: Oracle,
        found: Vec<SeenContent>,
        depth: u32,
        holes: bool,
    ) -> RunResult {
        if self.rig.losses.is_some() && self.rng.chance(300) {
            return self.rest(driver, stack, &oracle, &found, depth);
        }
        match self.rng.below(8) {
            0 => {
                let cut = self.cut(driver);
                self.crashed(cut, &oracle, depth + 1, "just recovered")
            }
            1 | 2 => {
                let sampler = self.sampler(driver, 150, 10, 3);
                self.drain(driver, stack, &oracle, &sampler, depth)?;
                let again = self.read_all(driver, stack, &oracle)?;
                if !oracle.are_same(&again, &found) {
                    return Err("draining changed what the device holds".into());
                }
                Ok(())
            }
            _ => {
                let at_writes = if holes { 1000 } else { self.rng.pick(&[100, 1000]) };
                let sampler = self.sampler(driver, at_writes, 10, 4);
                let geometry = stack.geometry(stack.root());
                let drawn = self.draw_character(geometry);
                let mut character = if self.rng.chance(if holes { 950 } else { 700 }) {
                    Character { avoids: drawn.avoids, ..self.character.unwrap_or(drawn) }
                } else {
                    drawn
                };
                let most = if holes { 8 } else { self.rng.pick(&[4, 8, 40]) };
                character.requests = self.rng.range(1, most);
                self.tell(|| format!("client: {character:?}"));
                let mut client = SimClient::new(character, oracle, self.rng.fork());
                self.serve(driver, stack, &mut client, &sampler, depth)?;
                self.last_words(driver, stack, &client.oracle, &sampler, depth)
            }
        }
    }

    /// Ends an activation that no crash cut short: perhaps drained, perhaps stopped; then the power goes.
    fn last_words(
        &mut self,
        driver: &mut MemDriver,
        stack: &mut Stack,
        oracle: &Oracle,
        sampler: &Rc<RefCell<Sampler>>,
        depth: u32,
    ) -> RunResult {
        if self.states_left == 0 {
            return Ok(());
        }
        if self.rng.chance(400) {
            self.drain(driver, stack, oracle, sampler, depth)?;
        }
        let found = self.read_all(driver, stack, oracle)?;
        let mut oracle = oracle.clone();
        if self.rng.chance(500) {
            let reports =
                self.control(driver, stack, Control::Stop, oracle.clone(), sampler, depth, "stopping")?;
            if reports.contains(&Report::Stopped) {
                oracle.stopped();
                oracle.recovered(&found);
            }
        }
        let cut = self.cut(driver);
        self.tell_driver(driver);
        self.crashed(cut, &oracle, depth + 1, "at rest")
    }

    fn drain(
        &mut self,
        driver: &mut MemDriver,
        stack: &mut Stack,
        oracle: &Oracle,
        sampler: &Rc<RefCell<Sampler>>,
        depth: u32,
    ) -> RunResult {
        self.control(driver, stack, Control::Drain, oracle.clone(), sampler, depth, "destaging").map(|_| ())
    }

    /// Sends a control to every layer, to all together or from the top down, and waits for the answers.
    #[allow(clippy::too_many_arguments)]
    fn control(
        &mut self,
        driver: &mut MemDriver,
        stack: &mut Stack,
        control: Control,
        oracle: Oracle,
        sampler: &Rc<RefCell<Sampler>>,
        depth: u32,
        place: &str,
    ) -> RunResult<Vec<Report>> {
        driver.note(|| format!("control {control:?}"));
        while let Some((_, report)) = driver.take_report() {
            self.note_report(&report);
        }
        // A slice has nothing to destage, and does not answer a control.
        let answers =
            |layer: &usize| stack.layer(LayerIndex(*layer)).status(driver.now()).get::<()>().is_none();
        let all: Vec<usize> = (0..stack.layer_count()).filter(answers).collect();
        let groups: Vec<Vec<usize>> = if self.rig.upper_first {
            all.into_iter().rev().map(|layer| vec![layer]).collect()
        } else {
            vec![all]
        };
        let mut reports = Vec::new();
        let events_max = driver.events() + EVENTS_MAX;
        for group in groups {
            for layer in group {
                driver.control(stack, LayerIndex(layer), control.clone());
            }
            let answered = reports.len();
            loop {
                let progress = driver.step(stack);
                while let Some((_, report)) = driver.take_report() {
                    let gives_up = report == Report::Failed(Unfinished::Hangs) && self.rig.troubled.is_some();
                    if gives_up {
                        *self.counts.kinds.entry("stops that gave up".into()).or_default() += 1;
                        reports.push(report);
                        continue;
                    }
                    if let Report::Failed(text) = &report {
                        return Err(format!("{control:?} failed on good devices: {text}"));
                    }
                    self.note_report(&report);
                    // Other reports are no answer to this control.
                    if matches!(report, Report::Drained | Report::Stopped) {
                        reports.push(report);
                    }
                }
                self.try_cuts(driver, sampler, &oracle, depth, place)?;
                if progress == DriverProgress::Idle || reports.len() > answered {
                    break;
                }
                if driver.events() > events_max {
                    self.tell_driver(driver);
                    return Err(format!("{control:?} has no end"));
                }
            }
        }
        Ok(reports)
    }

    /// Reads the whole device, some of it twice.
    fn read_all(
        &mut self,
        driver: &mut MemDriver,
        stack: &mut Stack,
        oracle: &Oracle,
    ) -> RunResult<Vec<SeenContent>> {
        let total = oracle.sectors();
        let mut found = Vec::with_capacity(total as usize);
        let twice = self.rng.chance(100) && stack.geometry(stack.root()).discards != Discards::Advisory;
        let mut buf = Buf::none();
        for start in (0..total).step_by(READ_SECTORS as usize) {
            let sectors = READ_SECTORS.min(total - start);
            if let Some(away) = &self.away
                && let Some(content) = away.content(Lba(start), sectors, self.rig.dealt)
            {
                found.extend_from_slice(content);
                continue;
            }
            let first = read(driver, stack, start, sectors, buf);
            if first.is_err() {
                self.tell_driver(driver);
            }
            let first = first?;
            if twice && read(driver, stack, start, sectors, Buf::none())?.bytes() != first.bytes() {
                return Err(format!("two reads at {} differ", Lba(start)));
            }
            for (index, sector) in first.bytes().chunks_exact(SECTOR_BYTES as usize).enumerate() {
                found.push(stamp::look(sector, Lba(start + index as u64), oracle.seed()));
            }
            buf = first;
        }
        Ok(found)
    }
}

fn has_guest_waiting(guest: Option<&Guest>, oracle: &Oracle) -> bool {
    guest.zip(oracle.guest.as_ref()).is_some_and(|(guest, of)| guest.waits(of))
}

/// Looks at the content of a data disk without its cache.
fn look_at_disk(disk: &MemDisk, start: Lba, oracle: &Oracle) -> Vec<SeenContent> {
    let mut bytes = vec![0; (oracle.sectors() * SECTOR_BYTES) as usize];
    disk.current().read(start, &mut bytes);
    let sectors = bytes.chunks_exact(SECTOR_BYTES as usize).enumerate();
    sectors.map(|(index, bytes)| stamp::look(bytes, Lba(index as u64), oracle.seed())).collect()
}

/// Returns the status of all layers.
fn statuses(stack: &Stack, now: Nanos) -> String {
    stack
        .layers()
        .map(|(layer, name)| format!(" {name}: {}", stack.layer(layer).status(now).to_json()))
        .collect()
}

/// Reads into `buf`, if that has the right length.
fn read(driver: &mut MemDriver, stack: &mut Stack, start: u64, sectors: u64, buf: Buf) -> RunResult<Buf> {
    let bytes = (sectors * SECTOR_BYTES) as usize;
    let buf = if buf.len() == bytes { buf } else { Buf::zeroed(bytes) };
    let root = stack.root();
    let result = stack.run_blocking(driver, root, Io::Read { at: Lba(start), buf });
    result.status.map_err(|error| format!("a read failed on good devices: {error}"))?;
    Ok(result.buf)
}
