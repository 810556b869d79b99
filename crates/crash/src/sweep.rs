//! The error sweep: fails the N-th operation of a device, for every N, once and permanently, and judges the results.
//!
//! Each case is one activation of the same run, equal up to the fault. It must end in right data, in an error for what the fault
//! has touched, or in a refusal to start; never in wrong data, a panic, or silence. What is still readable at its end is
//! compared with the oracle; then the power goes, the disks come back in good health, and the oracle judges again: no write
//! that a good flush covered may be gone. A failed write leaves its sectors old or new, and a failed flush may have
//! dropped what it should have covered for good (see [`FaultRule`]), so a flush that is retried and acknowledged is
//! found out.

use std::panic::{AssertUnwindSafe, catch_unwind};

use dcd_engine::{
    Buf, Control, ErrorKind, Extent, Io, LayerIndex, Lba, Nanos, Pump, Report, SECTOR_BYTES, Stack,
};

use crate::explore::{Rig, Subject, Violation, look_at_all, panic_text};
use crate::{
    Character, CutStyle, DiskFaults, DriverProgress, FaultOn, FaultRule, MemDisk, MemDriver, Oracle,
    SeenContent, SimClient, SimRng, describe, mix,
};

/// Requests that are unanswered for this long (virtual) are stuck.
const ANSWER_TIME_MAX: Nanos = Nanos::from_secs(600);
const EVENTS_MAX: u64 = 2_000_000;
/// Time that the host takes to record that the log has failed.
const RECORDING_TIME: Nanos = Nanos::from_millis(2);
const RECORDED: u64 = 1;
const PAUSED: u64 = 2;
const READ_SECTORS: u64 = 64;

/// Parameters of a sweep.
#[derive(Clone, Copy, Debug)]
pub struct SweepConfig {
    pub seed: u64,
    /// Requests of the client in each case.
    pub requests: u64,
    /// Step between the operations that fail; 1: each fails.
    pub stride: u64,
    /// Number of cases of a kind of fault after which the stride doubles, each time: so even a very long run is finished.
    pub doubles_after: u64,
    /// Number of devices whose operations fail: the first ones in the order of the rig's disks.
    pub devices_max: usize,
    /// True if parity may be out of sync: an error may lose a member's data, and a start may be refused, but no data may be wrong.
    pub in_doubt: bool,
}

impl SweepConfig {
    /// Makes a sweep over every operation of every device.
    pub const fn new(seed: u64, requests: u64) -> SweepConfig {
        SweepConfig {
            seed,
            requests,
            stride: 1,
            doubles_after: u64::MAX,
            devices_max: usize::MAX,
            in_doubt: false,
        }
    }
}

/// A fault to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepCase {
    pub device: usize,
    pub on: FaultOn,
    pub error: ErrorKind,
    pub n: u64,
    pub for_ever: bool,
}

/// Results of the sweep.
#[derive(Clone, Debug, Default)]
pub struct Swept {
    pub cases: u64,
    /// Cases in which the client was told of an error.
    pub told: u64,
    pub refused: u64,
    pub log_failures: u64,
    /// Cases in which requests waited until the end, as the fault never went away.
    pub blocked: u64,
    pub violation: Option<Violation>,
}

/// End of an activation under faults.
#[derive(Clone, Copy, Debug, Default)]
struct ActivationEnd {
    fired: bool,
    told: bool,
    refused: bool,
    log_failed: bool,
    blocked: bool,
}

/// Tries every case until one ends badly.
pub fn sweep_errors(config: &SweepConfig, subject: &Subject) -> Swept {
    let mut swept = Swept::default();
    let devices = subject(config.seed).disks.len().min(config.devices_max);
    let kinds = [
        (FaultOn::Any, ErrorKind::Medium),
        (FaultOn::Write, ErrorKind::NoSpace),
        (FaultOn::Flush, ErrorKind::Medium),
    ];
    for device in 0..devices {
        for (on, error) in kinds {
            for for_ever in [false, true] {
                let (mut n, mut stride) = (0, config.stride);
                for tried in 1u64.. {
                    let case = SweepCase { device, on, error, n, for_ever };
                    let ending = match try_case(config, subject, case, false) {
                        Ok(ending) => ending,
                        Err(_) => {
                            swept.violation = Some(tell_case(config, subject, case, swept.cases));
                            return swept;
                        }
                    };
                    swept.cases += 1;
                    swept.told += u64::from(ending.told);
                    swept.refused += u64::from(ending.refused);
                    swept.log_failures += u64::from(ending.log_failed);
                    swept.blocked += u64::from(ending.blocked);
                    if !ending.fired {
                        break;
                    }
                    if tried.is_multiple_of(config.doubles_after) {
                        stride *= 2;
                    }
                    n += stride;
                }
            }
        }
    }
    swept
}

/// Runs a case again, for its story.
fn tell_case(config: &SweepConfig, subject: &Subject, case: SweepCase, cases: u64) -> Violation {
    let (what, story) = try_case(config, subject, case, true).expect_err("a case repeats from its seed");
    Violation { run_seed: config.seed, states: cases, what: format!("{what}\nin the case {case:?}"), story }
}

fn try_case(
    config: &SweepConfig,
    subject: &Subject,
    case: SweepCase,
    tells: bool,
) -> Result<ActivationEnd, (String, Vec<String>)> {
    let mut life = Life {
        rig: subject(config.seed),
        rng: SimRng::new(mix(config.seed, 0x5eed)),
        case,
        in_doubt: config.in_doubt,
        tells,
        story: Vec::new(),
        ending: ActivationEnd::default(),
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| life.run(config)));
    let outcome = outcome.unwrap_or_else(|panic| Err(panic_text(&*panic)));
    outcome.map(|()| life.ending).map_err(|what| (what, life.story))
}

struct Life {
    rig: Rig,
    rng: SimRng,
    case: SweepCase,
    in_doubt: bool,
    tells: bool,
    story: Vec<String>,
    ending: ActivationEnd,
}

impl Life {
    fn run(&mut self, config: &SweepConfig) -> Result<(), String> {
        let SweepCase { device, on, error, n, for_ever } = self.case;
        let mut disks = std::mem::take(&mut self.rig.disks);
        let rule = if for_ever { FaultRule::for_ever } else { FaultRule::once };
        disks[device].set_faults(DiskFaults::new(rule(on, n, error)));
        let base = std::mem::take(&mut self.rig.base);
        let oracle = Oracle::new(self.rig.promise, self.rig.delay_max, config.seed, base);
        let mut driver = MemDriver::new(disks);
        if self.tells {
            driver.tell_story();
        }
        let outcome = self.first_life(config, &mut driver, oracle);
        self.story.extend(driver.take_story());
        let oracle = outcome?;
        self.ending.fired = driver.devices()[device].faults().fired() > 0;
        if self.ending.log_failed && self.ending.blocked && driver.devices().len() == 1 {
            // Log and data are on the disk that is dead for ever: nothing can be saved.
            return Ok(());
        }
        self.second_life(&mut driver, &oracle)
    }

    /// Runs an activation under faults; returns the oracle with all that was promised.
    fn first_life(
        &mut self,
        config: &SweepConfig,
        driver: &mut MemDriver,
        oracle: Oracle,
    ) -> Result<Oracle, String> {
        let mut stack = (self.rig.build)(&driver.geometries());
        stack.enable_checks();
        let mut character_rng = self.rng.fork();
        let client_rng = self.rng.fork();
        if let Err(error) = stack.activate(driver) {
            driver.note(|| format!("refused: {error}"));
            self.ending.refused = true;
            return Ok(oracle);
        }
        let geometry = stack.geometry(stack.root());
        let character = Character {
            requests: config.requests,
            flushes: 150,
            large: 60,
            pauses: 30,
            chunk: self.rig.chunk,
            ..Character::draw(&mut character_rng, geometry, self.rig.overlaps)
        };
        let mut client = SimClient::new(character, oracle, client_rng);
        client.errors_expected = true;
        self.serve(driver, &mut stack, &mut client)?;
        self.ending.told = client.errors() > 0;
        if self.ending.blocked {
            return Ok(client.oracle);
        }
        if self.ending.log_failed {
            self.bring_home(driver, &mut stack)?;
        }
        self.look_at_all(driver, &mut stack, &mut client.oracle)?;
        Ok(client.oracle)
    }

    /// Destages all that can be saved of a failed log, from the top layer down: the next start does not read that log again.
    fn bring_home(&mut self, driver: &mut MemDriver, stack: &mut Stack) -> Result<(), String> {
        for layer in (0..stack.layer_count()).rev().map(LayerIndex) {
            // A slice has nothing to destage, and does not answer.
            if stack.layer(layer).status(driver.now()).get::<()>().is_none() {
                // By now the host has recorded the failure, also if the client ended earlier.
                driver.control(stack, layer, Control::LogFailureRecorded);
                driver.control(stack, layer, Control::Drain);
                self.wait_until_drained(driver, stack, layer)?;
            }
        }
        Ok(())
    }

    fn wait_until_drained(
        &mut self,
        driver: &mut MemDriver,
        stack: &mut Stack,
        layer: LayerIndex,
    ) -> Result<(), String> {
        let until = driver.now() + ANSWER_TIME_MAX;
        while driver.now() < until && driver.events() < EVENTS_MAX {
            let progress = driver.step(stack);
            while let Some((by, report)) = driver.take_report() {
                driver.note(|| format!("report {report:?}"));
                if by == layer && matches!(report, Report::Drained | Report::Failed(_)) {
                    return Ok(());
                }
            }
            if progress == DriverProgress::Idle {
                return Ok(());
            }
        }
        if self.case.for_ever && driver.devices().len() == 1 {
            self.ending.blocked = true;
            return Ok(());
        }
        Err(format!("draining {} after the log has failed has no end", stack.layer_name(layer)))
    }

    fn serve(
        &mut self,
        driver: &mut MemDriver,
        stack: &mut Stack,
        client: &mut SimClient,
    ) -> Result<(), String> {
        let (mut paused, mut answered_at) = (false, driver.now());
        let mut failed_layer = None;
        while !client.is_done() {
            if !paused && let Some(pause) = client.take_pause() {
                driver.set_alarm(driver.now() + pause, PAUSED);
                paused = true;
            }
            while !paused && let Some((id, io)) = client.next_request() {
                driver.note(|| format!("client asks r{} {}", id.0, describe(&io)));
                driver.request(stack, id, io);
            }
            let progress = driver.step(stack);
            while let Some((id, result)) = driver.take_reply() {
                answered_at = driver.now();
                driver.note(|| format!("client is answered r{}: {:?}", id.0, result.status));
                client.reply(driver.now(), id, &result)?;
            }
            while let Some((layer, report)) = driver.take_report() {
                driver.note(|| format!("report {report:?}"));
                if report == Report::LogFailed {
                    self.ending.log_failed = true;
                    failed_layer = Some(layer);
                    driver.set_alarm(driver.now() + RECORDING_TIME, RECORDED);
                }
            }
            match progress {
                DriverProgress::Alarm(RECORDED) => {
                    let layer = failed_layer.unwrap_or(LayerIndex(0));
                    driver.control(stack, layer, Control::LogFailureRecorded);
                }
                DriverProgress::Alarm(_) => {
                    paused = false;
                    answered_at = driver.now();
                }
                DriverProgress::Idle if client.in_flight() > 0 => {
                    return Err(format!("{} requests are never answered", client.in_flight()));
                }
                DriverProgress::Idle | DriverProgress::Moved => {}
            }
            let waits = !paused && driver.now().since(answered_at) > ANSWER_TIME_MAX;
            if waits || driver.events() > EVENTS_MAX {
                // With a permanent fault, or an array that takes no more writes, a full cache may be unable to destage. A fault that
                // has ended is no excuse.
                if self.case.for_ever || self.in_doubt {
                    self.ending.blocked = true;
                    return Ok(());
                }
                return Err(format!("{} requests wait since {answered_at}", client.in_flight()));
            }
        }
        Ok(())
    }

    /// Reads everything while the fault may still be there: right data, or an error.
    fn look_at_all(
        &mut self,
        driver: &mut MemDriver,
        stack: &mut Stack,
        oracle: &mut Oracle,
    ) -> Result<(), String> {
        let mut lost = Vec::new();
        for start in (0..oracle.sectors()).step_by(READ_SECTORS as usize) {
            let extent = Extent::new(Lba(start), READ_SECTORS.min(oracle.sectors() - start));
            if let Some(buf) = read(driver, stack, extent) {
                oracle.read_ends(&oracle.read_begins(extent), buf.bytes())?;
                continue;
            }
            // Sector by sector, to see which are really lost.
            for lba in start..extent.end().0 {
                let one = Extent::new(Lba(lba), 1);
                match read(driver, stack, one) {
                    Some(buf) => oracle.read_ends(&oracle.read_begins(one), buf.bytes())?,
                    None => lost.push(Lba(lba)),
                }
            }
        }
        if !lost.is_empty() && !self.case.for_ever && !self.ending.log_failed && !self.in_doubt {
            return Err(format!(
                "one fault that is over makes {} sectors unreadable, {} first",
                lost.len(),
                lost[0]
            ));
        }
        if self.ending.log_failed || self.in_doubt {
            // The client was told, so nothing is promised for such a sector after the next start.
            lost.into_iter().for_each(|lba| oracle.lost(lba));
        }
        Ok(())
    }

    /// Cuts the power, and starts again on disks without faults.
    fn second_life(&mut self, driver: &mut MemDriver, oracle: &Oracle) -> Result<(), String> {
        let now = driver.now();
        let style = self.rng.pick(&CutStyle::ALL);
        let disks: Vec<MemDisk> =
            driver.devices().iter().map(|disk| disk.power_cut(style, &mut self.rng)).collect();
        let mut driver = MemDriver::new(disks);
        self.story.push(format!("-- power cut {style:?} at {now}, and a start on good disks"));
        if self.tells {
            driver.tell_story();
        }
        let outcome = self.recover(now, &mut driver, oracle);
        self.story.extend(driver.take_story());
        outcome
    }

    fn recover(&mut self, now: Nanos, driver: &mut MemDriver, oracle: &Oracle) -> Result<(), String> {
        let build = match (&self.rig.build_after_log_failure, self.ending.log_failed) {
            (Some(build), true) => build,
            _ => &self.rig.build,
        };
        let mut stack = build(&driver.geometries());
        match stack.activate(driver) {
            Ok(()) => {}
            Err(_) if self.in_doubt => {
                self.ending.refused = true;
                return Ok(());
            }
            Err(error) => return Err(format!("recovery refuses: {error}")),
        }
        let found = look_at_all(driver, &mut stack, oracle);
        let mut oracle = oracle.clone();
        if self.in_doubt {
            // An error may have destroyed a durable copy whose data was still read from RAM until now.
            let unreadable = found.iter().enumerate().filter(|(_, seen)| **seen == SeenContent::Unreadable);
            unreadable.for_each(|(lba, _)| oracle.lost(Lba(lba as u64)));
        }
        oracle.judge(now, &found)
    }
}

fn read(driver: &mut MemDriver, stack: &mut Stack, extent: Extent) -> Option<Buf> {
    let buf = Buf::zeroed((extent.sectors * SECTOR_BYTES) as usize);
    let root = stack.root();
    let result = stack.run_blocking(driver, root, Io::Read { at: extent.start, buf });
    result.status.is_ok().then_some(result.buf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::simple::{Twist, rig};
    use dcd_engine::log_cache::Promise;

    fn swept(twist: Twist) -> Swept {
        let config = SweepConfig::new(5, 60);
        sweep_errors(&config, &|seed| rig(seed, Promise::Flush, twist, &DiskFaults::default()))
    }

    #[test]
    fn a_slice_passes_every_error_on() {
        let swept = swept(Twist::None);
        if let Some(violation) = swept.violation {
            panic!("{violation}");
        }
        assert!(swept.cases > 120 && swept.told > 100, "{} {}", swept.cases, swept.told);
    }

    #[test]
    fn a_sweep_tries_later_operations_more_and_more_thinly() {
        let swept = |doubles_after: u64| {
            let config = SweepConfig { doubles_after, ..SweepConfig::new(5, 60) };
            sweep_errors(&config, &|seed| rig(seed, Promise::Flush, Twist::None, &DiskFaults::default()))
                .cases
        };
        let (all, some) = (swept(u64::MAX), swept(1));
        assert!(some <= 7 * u64::from(all.ilog2() + 2) && some > 12, "{some} of {all}");
    }

    #[test]
    fn hidden_errors_are_caught() {
        let violation = swept(Twist::HideErrors).violation.expect("caught");
        assert!(violation.what.contains("wrong data") || violation.what.contains("took data"), "{violation}");
    }

    #[test]
    fn a_flush_that_is_tried_again_is_caught() {
        let violation = swept(Twist::RetryFlushes).violation.expect("caught");
        assert!(violation.what.contains("took data"), "{violation}");
    }

    #[test]
    fn silence_and_panics_are_caught() {
        let violation = swept(Twist::Stall).violation.expect("caught");
        assert!(violation.what.contains("never answered"), "{violation}");
        let violation = swept(Twist::PanicOnErrors).violation.expect("caught");
        assert!(violation.what.contains("panic"), "{violation}");
    }
}
