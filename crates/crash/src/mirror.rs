//! A rig of the log cache with its log on two or three legs. Legs fail while it runs, come back with their old content, are lost
//! permanently in crashes, or rot. As long as a leg with all data is left, nothing may be lost.

use std::cell::Cell;
use std::rc::Rc;

use dcd_engine::log_cache::{self, Promise};
use dcd_engine::mirror::offline::create;
use dcd_engine::mirror::{CONTENT_SECTOR, Label, LegCanary, LegState, MirrorConfig};
use dcd_engine::{BlockDevice, ErrorKind, Geometry, Lba, SECTOR_BYTES};

use crate::cache::NextMemory;
use crate::explore::{AreTorn, LossRule, Machines, MayLose, Rig, Who, disk};
use crate::raid::Now;
use crate::{CutStyle, DiskFaults, FaultOn, FaultRule, MemDisk, SimRng, cache, mix};

/// A bug to plant, in the mirror or in the log cache above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorCanary {
    Mirror(LegCanary),
    /// See [`log_cache::LogCanary::UnevenCopies`].
    UnevenCopies,
    /// See [`log_cache::LogCanary::AnyMachine`].
    AnyMachine,
    /// See [`log_cache::LogCanary::OverwriteCopies`].
    OverwriteCopies,
}

/// Fate of the legs of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Crashes destroy some legs.
    Lost,
    /// A leg fails while it is used, and comes back with its earlier content. Crashes destroy the others.
    Fails { leg: usize, rule: FaultRule },
    /// A leg rots.
    Rots(usize),
    /// A leg lies about flushes: crashes lose data that it reported as durable.
    Lies(usize),
    /// Each leg is on a machine of its own, and the machines take over from each other.
    Apart,
}

/// The legs of a log.
pub(crate) struct MirrorLegs {
    pub config: MirrorConfig,
    count: usize,
    fate: Fate,
    /// True if sectors that are being written at a power cut become unreadable.
    pub tears: bool,
}

impl MirrorLegs {
    fn draw(rng: &mut SimRng, canary: Option<MirrorCanary>) -> MirrorLegs {
        let count = rng.pick(&[2, 2, 2, 3]);
        let leg = rng.below(count as u64) as usize;
        let on = rng.pick(&[FaultOn::Any, FaultOn::Write, FaultOn::Flush]);
        let most = if on == FaultOn::Flush { 20 } else { 200 };
        let (first, error) = (rng.below(most), ErrorKind::Medium);
        let rule = if rng.chance(700) {
            FaultRule::for_ever(on, first, error)
        } else {
            FaultRule::once(on, first, error)
        };
        let drawn = rng.below(10);
        let fate = match (canary, drawn) {
            // The bug shows only while the label is being written.
            (Some(MirrorCanary::Mirror(LegCanary::LateLabel)), _) => {
                let on = rng.pick(&[FaultOn::Flush, FaultOn::Write]);
                Fate::Fails { leg, rule: FaultRule::for_ever(on, rng.range(3, 12), error) }
            }
            (Some(MirrorCanary::OverwriteCopies), _) => Fate::Rots(leg),
            (None, _) if rng.clone().chance(60) => Fate::Lies(leg),
            (_, 0..3) => Fate::Lost,
            (_, 3..8) => Fate::Fails { leg, rule },
            _ => Fate::Rots(leg),
        };
        let names = (0..count).map(|leg| format!("leg {leg}")).collect();
        let tears = match canary {
            None => rng.clone().chance(500),
            canary => canary == Some(MirrorCanary::OverwriteCopies),
        };
        let (canary, _) = planted(canary);
        let canary = canary.into();
        MirrorLegs {
            config: MirrorConfig { names, degraded: true, only_looks: false, canary },
            count,
            fate,
            tears,
        }
    }

    /// Returns legs with the content of a log.
    pub fn of(&self, rng: &mut SimRng, log: &MemDisk, tears: bool) -> Vec<MemDisk> {
        let sectors = log.current().sectors();
        let mut content = vec![0; (sectors * SECTOR_BYTES) as usize];
        log.current().read(Lba(0), &mut content);
        let geometry = Geometry { sectors: CONTENT_SECTOR + sectors.next_multiple_of(8), ..log.geometry() };
        let mut legs: Vec<MemDisk> = (0..self.count).map(|_| disk(rng, geometry)).collect();
        let ids: Vec<u64> = (0..self.count).map(|_| rng.next_u64().max(1)).collect();
        let mut devices: Vec<&mut dyn BlockDevice> =
            legs.iter_mut().map(|leg| leg as &mut dyn BlockDevice).collect();
        create(&mut devices, *b"a log with legs!", &ids).expect("good disks become legs");
        if log.scrambles() {
            legs = legs.into_iter().map(MemDisk::scrambling).collect();
        }
        for leg in &mut legs {
            leg.put(Lba(CONTENT_SECTOR), &content);
        }
        for (number, leg) in legs.iter_mut().enumerate() {
            let mut plan = match self.fate {
                Fate::Fails { leg, rule } if leg == number => DiskFaults::new(rule),
                Fate::Lies(leg) if leg == number => DiskFaults::liar(),
                _ => DiskFaults::default(),
            };
            plan.tears = tears;
            leg.set_faults(plan);
        }
        legs
    }
}

/// Returns the legs that may be lost, as another leg has all acknowledged data by the newest label. After a kill, the disks' caches may
/// still lose data, so this must hold with and without them.
fn may_lose(legs: usize) -> MayLose {
    Box::new(move |disks| {
        let disks = &disks[..legs];
        let durable: Vec<MemDisk> =
            disks.iter().map(|disk| disk.power_cut(CutStyle::AllLost, &mut SimRng::new(0))).collect();
        let images = [labels(disks), labels(&durable)];
        (0..legs)
            .filter(|leg| images.iter().all(|read| read[*leg].is_some() && holds_without(read, *leg)))
            .collect()
    })
}

fn labels(disks: &[MemDisk]) -> Vec<Option<(Label, u64)>> {
    let alive = |disk: &&MemDisk| !disk.faults().dead;
    disks
        .iter()
        .map(|disk| Some(disk).filter(alive).and_then(|disk| Label::read(&mut Now(disk)).ok()))
        .collect()
}

/// Returns the legs with all acknowledged data, by their labels.
fn whole(read: &[Option<(Label, u64)>]) -> Vec<usize> {
    let Some((newest, _)) = read.iter().flatten().max_by_key(|(label, _)| label.generation) else {
        return Vec::new();
    };
    // A leg that was just filled counts only once its own label says so, too.
    let is_whole = |(label, own): &(Label, u64)| {
        let says_so = |label: &Label| label.standing(*own) == Some(LegState::Whole);
        says_so(newest) && says_so(label) && label.generation >= newest.complete
    };
    (0..read.len()).filter(|leg| read[*leg].as_ref().is_some_and(is_whole)).collect()
}

/// True if every whole leg has unreadable sectors: then some data may be readable on none.
pub(crate) fn are_torn(legs: usize) -> AreTorn {
    Box::new(move |disks| {
        let whole = whole(&labels(&disks[..legs])).into_iter().map(|leg| &disks[leg]);
        // A lying leg does not count: the mirror may notice that it lies.
        whole.filter(|leg| !leg.faults().ignore_flushes).all(|leg| !leg.unreadable().is_empty())
    })
}

fn holds_without(read: &[Option<(Label, u64)>], lost: usize) -> bool {
    whole(read).into_iter().any(|leg| leg != lost)
}

const fn planted(canary: Option<MirrorCanary>) -> (Option<LegCanary>, Option<log_cache::LogCanary>) {
    match canary {
        Some(MirrorCanary::Mirror(canary)) => (Some(canary), None),
        Some(MirrorCanary::UnevenCopies) => (None, Some(log_cache::LogCanary::UnevenCopies)),
        Some(MirrorCanary::AnyMachine) => (None, Some(log_cache::LogCanary::AnyMachine)),
        Some(MirrorCanary::OverwriteCopies) => (None, Some(log_cache::LogCanary::OverwriteCopies)),
        None => (None, None),
    }
}

/// The log cache with a leg of its log on each of two machines, which take over from each other, with settings from the seed.
pub fn take_over_rig(seed: u64, promise: Promise, canary: Option<MirrorCanary>) -> Rig {
    let mut rng = SimRng::new(mix(seed, 0x7a4e));
    let (_, of_cache) = planted(canary);
    let drawn = MirrorLegs::draw(&mut rng, canary);
    let mut legs = MirrorLegs { count: 2, fate: Fate::Apart, tears: false, ..drawn };
    legs.config.names.truncate(legs.count);
    let who = Rc::new(Cell::new(Who::FIRST));
    let rig = cache::rig_on_legs(seed, promise, of_cache, &legs, &who, None);
    let about = format!("a leg on each of two machines, {}", rig.about);
    let machines = Machines { who, may_lose: may_lose(legs.count) };
    Rig { machines: Some(machines), about, upper_first: true, rescued: None, ..rig }
}

/// The log cache with its log on legs, with settings from the seed.
pub fn mirrored_rig(seed: u64, promise: Promise, canary: Option<MirrorCanary>) -> Rig {
    rig_of(seed, promise, canary, None, |_| {})
}

/// The log cache with its log on legs and memory that outlives its process.
pub fn mirrored_memory_rig(seed: u64, promise: Promise) -> Rig {
    let rig = rig_of(seed, promise, None, Some(NextMemory::default()), |_| {});
    Rig { rescued: None, ..rig }
}

fn rig_of(
    seed: u64,
    promise: Promise,
    canary: Option<MirrorCanary>,
    memory: Option<NextMemory>,
    change: impl FnOnce(&mut MirrorLegs),
) -> Rig {
    let mut rng = SimRng::new(mix(seed, 0x1e65));
    let (_, of_cache) = planted(canary);
    let mut legs = MirrorLegs::draw(&mut rng, canary);
    change(&mut legs);
    let rig = cache::rig_on_legs(seed, promise, of_cache, &legs, &Rc::new(Cell::new(Who::FIRST)), memory);
    let sectors = rig.disks[0].current().sectors();
    let (spoils, losses) = match legs.fate {
        Fate::Rots(leg) => (Some((leg, sectors)), None),
        // A lying leg lacks acknowledged data, so no leg may be lost.
        Fate::Lies(_) => (None, None),
        _ => (None, Some(LossRule { may_lose: may_lose(legs.count), in_crashes: true })),
    };
    // Off with planted bugs, which show after fewer states without it.
    let comes_and_goes = canary.is_none() && rng.chance(600) && legs.fate == Fate::Lost;
    let torn = if rig.are_torn.is_some() { ", torn sectors are unreadable" } else { "" };
    let about = format!("{} legs, {:?}{torn}, {}", legs.count, legs.fate, rig.about);
    let eager = canary == Some(MirrorCanary::Mirror(LegCanary::LateLabel));
    let legs = comes_and_goes.then_some(legs.count);
    let rescued = rig.rescued.filter(|_| canary.is_none());
    Rig { spoils, losses, legs, eager, about, upper_first: true, rescued, ..rig }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::{ExploreConfig, explore};
    use crate::{SweepConfig, sweep_errors};

    #[track_caller]
    fn holds(promise: Promise) {
        let explored =
            explore(&ExploreConfig::new(6, 2500), &|seed| mirrored_rig(seed, promise, None), &mut |_| {});
        if let Some(violation) = explored.violation {
            panic!("{violation}");
        }
        for kind in ["disks lost", "bits flipped", "legs added while served", "rescued"] {
            let count = explored.counts.kinds.get(kind).copied().unwrap_or_default();
            assert!(count > 0, "{kind}: {:?}", explored.counts);
        }
        let torn = explored.counts.kinds.get("starts refused for torn sectors").copied().unwrap_or_default();
        assert!(torn > 0, "{:?}", explored.counts);
        for path in ["legs_failed", "legs_filled", "log_other_copy"] {
            assert!(explored.counts.paths[path] > 0, "{path}: {:?}", explored.counts);
        }
    }

    /// `dcd-crash --legs --seed 6 --promise P --states 2500` does the same by hand.
    #[test]
    fn a_log_on_legs_keeps_the_promise_flush() {
        holds(Promise::Flush);
    }

    #[test]
    fn a_log_on_legs_keeps_the_promise_always() {
        holds(Promise::Always);
    }

    #[test]
    fn a_log_on_legs_keeps_the_promise_ordered() {
        holds(Promise::Ordered);
    }

    #[test]
    fn a_leg_that_lies_about_flushes_costs_nothing_and_is_found_out() {
        let subject = |seed| rig_of(seed, Promise::Flush, None, None, |legs| legs.fate = Fate::Lies(1));
        let explored = explore(&ExploreConfig::new(5, 300), &subject, &mut |_| {});
        if let Some(violation) = explored.violation {
            panic!("{violation}");
        }
        assert!(explored.counts.paths["legs_distrusted"] > 0, "{:?}", explored.counts);
        let subject = |seed| rig_of(seed, Promise::Flush, None, None, |legs| legs.fate = Fate::Lost);
        let explored = explore(&ExploreConfig::new(6, 300), &subject, &mut |_| {});
        assert!(explored.violation.is_none(), "{:?}", explored.violation);
        assert_eq!(explored.counts.paths["legs_distrusted"], 0, "no leg lies here");
    }

    #[track_caller]
    fn take_overs_hold(promise: Promise) {
        let explored =
            explore(&ExploreConfig::new(5, 2500), &|seed| take_over_rig(seed, promise, None), &mut |_| {});
        if let Some(violation) = explored.violation {
            panic!("{violation}");
        }
        for kind in [
            "taken over",
            "starts refused to the other machine",
            "first machines that go on alone",
            "legs of the other machine seen again",
            "legs refused that were used apart",
        ] {
            let count = explored.counts.kinds.get(kind).copied().unwrap_or_default();
            assert!(count > 10, "{kind}: {:?}", explored.counts);
        }
    }

    /// `dcd-crash --take-over --seed 5 --promise P --states 2500` does the same by hand.
    #[test]
    fn a_take_over_keeps_the_promise_flush() {
        take_overs_hold(Promise::Flush);
    }

    #[test]
    fn a_take_over_keeps_the_promise_always() {
        take_overs_hold(Promise::Always);
    }

    #[test]
    fn a_take_over_keeps_the_promise_ordered() {
        take_overs_hold(Promise::Ordered);
    }

    #[test]
    fn bugs_of_take_overs_are_caught() {
        for canary in [MirrorCanary::AnyMachine, MirrorCanary::Mirror(LegCanary::StaleLeg)] {
            is_caught_in(canary, 1, take_over_rig);
        }
    }

    /// Number of states that `dcd-crash` tries by default.
    const STATES: u64 = 10_000;

    #[track_caller]
    fn is_caught(canary: MirrorCanary, seed: u64) {
        is_caught_in(canary, seed, mirrored_rig);
    }

    #[track_caller]
    fn is_caught_in(canary: MirrorCanary, seed: u64, rig: fn(u64, Promise, Option<MirrorCanary>) -> Rig) {
        let subject = |seed| rig(seed, Promise::Flush, Some(canary));
        let explored = explore(&ExploreConfig::new(seed, STATES), &subject, &mut |_| {});
        assert!(
            explored.violation.is_some(),
            "{canary:?} is not caught in {} states",
            explored.counts.states
        );
    }

    #[test]
    fn a_leg_that_is_believed_and_missed_something_is_caught() {
        is_caught(MirrorCanary::Mirror(LegCanary::StaleLeg), 1);
    }

    #[test]
    fn an_answer_after_the_first_leg_is_caught() {
        is_caught(MirrorCanary::Mirror(LegCanary::OneLeg), 1);
    }

    #[test]
    fn answers_before_the_labels_name_a_leg_are_caught() {
        for seed in [1, 4711, 27] {
            is_caught(MirrorCanary::Mirror(LegCanary::LateLabel), seed);
        }
    }

    #[test]
    fn what_is_written_over_the_only_good_copy_is_caught() {
        for seed in [1, 4711] {
            is_caught(MirrorCanary::OverwriteCopies, seed);
        }
    }

    #[test]
    fn a_start_that_leaves_copies_uneven_is_caught() {
        is_caught(MirrorCanary::UnevenCopies, 1);
    }

    /// No error of one leg reaches a client.
    #[test]
    fn each_operation_of_a_leg_may_fail() {
        let config = SweepConfig { devices_max: 2, stride: 3, ..SweepConfig::new(3, 25) };
        let swept = sweep_errors(&config, &|seed| mirrored_rig(seed, Promise::Flush, None));
        if let Some(violation) = swept.violation {
            panic!("{violation}");
        }
        assert!(swept.cases > 50 && swept.told == 0 && swept.log_failures == 0, "{swept:?}");
    }
}
