//! Arrays under the conformance suite, the crash explorer and the error sweep.

use dcd_engine::StackDevice;
use dcd_engine::raid::parity;
use dcd_engine::testing::conformance;

use super::*;
use crate::explore::ExplorationCounts;
use crate::{DiskFaults, ExploreConfig, Explored, SweepConfig, explore, sweep_errors};

const LEVELS: [Level; 2] = [Level::Raid5, Level::Raid6];

/// `dead` members fail from the beginning on, and so many of them are rebuilt on spares meanwhile.
fn conforms(level: Level, seed: u64, dead: usize, spares: usize, journal: bool) {
    let mut rng = SimRng::new(mix(seed, 5));
    let non_volatile = rng.chance(200);
    let config =
        RaidConfig { non_volatile, journal, spares: vec![true; spares], ..draw_config(&mut rng, level) };
    let geometry = member_geometry(&config, 4096);
    let count = config.present.len();
    let fresh = members(&config, geometry);
    let mut disks: Vec<MemDisk> = fresh.iter().map(|member| copy(&mut rng, geometry, member)).collect();
    for _ in 0..dead {
        let lost = rng.below(count as u64) as usize;
        disks[lost].set_faults(DiskFaults::dead());
    }
    if journal {
        disks.push(disk(&mut rng, Geometry::plain(8192)));
    }
    let mut driver = VirtualDriver::new(disks);
    let mut stack = stack(&config, &driver.geometries());
    stack.enable_checks();
    stack.activate(&mut driver).expect("active");
    let target = stack.root();
    conformance(&mut StackDevice { stack: &mut stack, pump: &mut driver, target }, seed);
    stack.run_blocking(&mut driver, target, Io::Flush).status.expect("flushed");
    let status = |stack: &Stack| stack.layer(LayerIndex(0)).status(Nanos::ZERO).to_json();
    while spares > 0 && status(&stack)["state"] != "good" {
        assert_ne!(driver.step(&mut stack), crate::DriverProgress::Idle, "{}", status(&stack));
    }
    let status = status(&stack);
    assert_eq!(status["state"], if dead == 0 || spares > 0 { "good" } else { "degraded" });
    if (dead == 0 || spares > 0) && !config.non_volatile {
        let holder = |role: usize| status["holders"][role].as_u64().map(|place| count + place as usize);
        let disks = driver.devices();
        let members: Vec<&MemDisk> = (0..count).map(|role| &disks[holder(role).unwrap_or(role)]).collect();
        check_parity(&config, &members);
    }
}

/// P and Q of every row are what its data says.
fn check_parity(config: &RaidConfig, members: &[&MemDisk]) {
    let count = config.present.len();
    let data = count - config.level.parity();
    let strip_bytes = (config.strip_sectors * SECTOR_BYTES) as usize;
    let end = member_geometry(config, 4096).sectors;
    for (stripe, at) in (DATA_SECTOR..end).step_by(config.strip_sectors as usize).enumerate() {
        let strip = |behind_p: usize| {
            let mut bytes = vec![0; strip_bytes];
            let p = count - 1 - stripe % count;
            members[(p + behind_p) % count].current().read(Lba(at), &mut bytes);
            bytes
        };
        for which in 0..config.level.parity() {
            let mut sum = vec![0; strip_bytes];
            for column in 0..data {
                let weight = parity::weight(which, column);
                parity::add_scaled(&mut sum, &strip(config.level.parity() + column), weight);
            }
            assert!(sum == strip(which), "stripe {stripe}, parity {which}");
        }
    }
}

#[test]
fn arrays_conform_with_any_settings() {
    for level in LEVELS {
        (0..16).for_each(|seed| conforms(level, seed, 0, 0, seed % 4 == 0));
    }
}

#[test]
fn degraded_arrays_conform_too() {
    for level in LEVELS {
        (100..112).for_each(|seed| conforms(level, seed, level.parity(), 0, seed % 4 == 0));
    }
}

#[test]
fn arrays_conform_while_spares_are_filled() {
    for level in LEVELS {
        let parity = level.parity();
        (200..216).for_each(|seed| conforms(level, seed, parity, parity, seed % 4 == 0));
    }
}

fn explored(subject: RaidSubject, states: u64) -> Explored {
    explore(&ExploreConfig::new(4, states), &|seed| raid_rig(seed, subject), &mut |_| {})
}

#[track_caller]
fn holds(subject: RaidSubject, states: u64) -> ExplorationCounts {
    let explored = explored(subject, states);
    if let Some(violation) = explored.violation {
        panic!("{violation}");
    }
    assert_eq!(explored.counts.states, states);
    let lost = explored.counts.kinds.get("disks lost").copied().unwrap_or(0);
    assert_eq!(lost > states / 10, subject.loses_members, "{:?}", explored.counts);
    let at_rest = explored.counts.kinds.get("disks lost at rest").copied().unwrap_or(0);
    assert!(at_rest >= states / 400, "{:?}", explored.counts);
    for path in ["destages", "destage_reads", "read_misses", "superblocks"] {
        assert!(explored.counts.paths[path] > 0, "{path} was never taken: {:?}", explored.counts);
    }
    explored.counts
}

#[test]
fn arrays_keep_the_contract_of_a_block_device() {
    for level in LEVELS {
        let counts = holds(RaidSubject::new(level), 1500);
        assert!(counts.paths["prefetches"] > 0, "{counts:?}");
    }
}

#[test]
fn with_a_journal_a_crash_that_takes_members_loses_nothing() {
    for level in LEVELS {
        holds(RaidSubject { journal: true, loses_members: true, ..RaidSubject::new(level) }, 10_000);
    }
}

#[test]
fn what_is_lost_is_rebuilt_on_a_spare_and_may_be_lost_again() {
    for level in LEVELS {
        let subject =
            RaidSubject { journal: true, loses_members: true, spares: 2, ..RaidSubject::new(level) };
        let without = explored(RaidSubject { spares: 0, ..subject }, 1500).counts.kinds["disks lost"];
        let explored = explored(subject, 1500);
        if let Some(violation) = explored.violation {
            panic!("{violation}");
        }
        // More than the parity makes up for at a time: spares have taken over.
        let lost = explored.counts.kinds["disks lost"];
        assert!(lost > without + without / 2, "{lost}, and {without} without spares");
    }
}

#[test]
fn members_that_come_and_go_while_clients_write_take_no_data_with_them() {
    for (level, loses_members) in
        [(LEVELS[0], false), (LEVELS[1], false), (LEVELS[0], true), (LEVELS[1], true)]
    {
        let subject = RaidSubject { journal: true, hot_add: true, loses_members, ..RaidSubject::new(level) };
        let explored = explored(subject, 3000);
        if let Some(violation) = explored.violation {
            panic!("{violation}");
        }
        for kind in [
            "members added while served",
            "starts that name a blank member",
            "failed members added before a start",
            "starts without a member that comes back",
        ] {
            assert!(
                explored.counts.kinds.get(kind).is_some_and(|count| *count > 5),
                "{kind}: {:?}",
                explored.counts
            );
        }
        assert!(explored.counts.paths["members_returned"] > 20, "{:?}", explored.counts);
    }
}

#[test]
fn nor_do_they_where_spares_take_their_roles() {
    for level in LEVELS {
        let subject = RaidSubject {
            journal: true,
            hot_add: true,
            loses_members: true,
            spares: 1,
            ..RaidSubject::new(level)
        };
        let explored = explored(subject, 2000);
        if let Some(violation) = explored.violation {
            panic!("{violation}");
        }
        let kinds = &explored.counts.kinds;
        for kind in ["members added while served", "members left out whose spares are lost"] {
            assert!(kinds.get(kind).is_some_and(|count| *count > 5), "{kind}: {kinds:?}");
        }
    }
}

#[test]
fn a_member_that_comes_back_without_what_it_has_missed_is_caught() {
    for level in LEVELS {
        let canary = Some(ArrayCanary::ForgetMissed);
        let subject = RaidSubject { journal: true, hot_add: true, canary, ..RaidSubject::new(level) };
        let violation = explored(subject, 5_000).violation.expect("caught");
        let words = ["took data", "differ", "read"];
        assert!(words.iter().any(|word| violation.what.contains(word)), "{level:?}: {violation}");
    }
}

/// A newer superblock that a killed server has left in a cache says that a member is whole again: it may be gone at the next cut.
#[test]
fn no_disk_may_be_lost_on_the_word_of_a_cache() {
    let config = draw_config(&mut SimRng::new(1), Level::Raid5);
    let geometry = Geometry { volatile_cache: true, ..member_geometry(&config, DATA_SECTORS) };
    let mut rng = SimRng::new(2);
    let mut disks: Vec<MemDisk> =
        members(&config, geometry).iter().map(|member| copy(&mut rng, geometry, member)).collect();
    let count = disks.len();
    assert_eq!(may_lose(count)(&disks).len(), count, "any one of them");
    let mut tell = |failed: u64, durability: Durability| {
        for disk in &mut disks {
            let (mut superblock, identity) = ArraySuperblock::read(disk).expect("a member");
            (superblock.failed, superblock.generation) = (failed, superblock.generation + 1);
            let Io::Write { at, buf, .. } = superblock.write(identity) else { unreachable!("it is a write") };
            disk.run(Io::Write { at, buf, durability }).status.expect("written");
        }
        may_lose(count)(&disks)
    };
    assert_eq!(tell(1 << 1, Durability::Durable), [1], "one has failed, which others make up for");
    assert_eq!(tell(0, Durability::Durable).len(), count);
    tell(1 << 1, Durability::Durable);
    assert_eq!(tell(0, Durability::Volatile), [1], "so it says, but not durably");
}

#[test]
fn writes_that_no_bit_or_record_announces_are_caught() {
    for (canary, journal) in [(ArrayCanary::LateIntent, false), (ArrayCanary::SkipJournal, true)] {
        let subject = RaidSubject {
            journal,
            loses_members: journal,
            canary: Some(canary),
            ..RaidSubject::new(Level::Raid5)
        };
        let violation = explored(subject, 20_000).violation.expect("caught");
        assert!(violation.what.contains("took data"), "{canary:?}: {violation}");
    }
}

#[test]
fn a_write_during_a_destage_that_counts_as_home_is_caught() {
    let subject = RaidSubject { canary: Some(ArrayCanary::LateWrite), ..RaidSubject::new(Level::Raid5) };
    explored(subject, 5_000).violation.expect("caught");
}

#[test]
fn below_a_log_cache_it_loses_nothing_either() {
    for level in LEVELS {
        let subject = RaidSubject {
            journal: true,
            loses_members: true,
            log_cache: Some(LogPlace::Device),
            ..RaidSubject::new(level)
        };
        holds(subject, 700);
    }
}

/// The log's records lie in rows as all else does, so without a journal no crash may take members.
#[test]
fn with_the_log_on_the_array_itself_it_loses_nothing() {
    for level in LEVELS {
        for journal in [false, true] {
            let log_cache = Some(LogPlace::Slice);
            // A loss of members at rest is drawn seldom.
            holds(
                RaidSubject { journal, loses_members: journal, log_cache, ..RaidSubject::new(level) },
                1_400,
            );
        }
    }
}

#[test]
fn without_a_journal_the_write_hole_is_found() {
    for (level, log_cache) in [
        (Level::Raid5, None),
        (Level::Raid6, None),
        (Level::Raid5, Some(LogPlace::Device)),
        (Level::Raid5, Some(LogPlace::Slice)),
    ] {
        let subject = RaidSubject { loses_members: true, log_cache, ..RaidSubject::new(level) };
        let violation = explored(subject, 4000).violation.expect("the hole is found");
        // Where a log cache stands on it, its fingerprint of the data may notice first, or its log.
        let words = ["took data", "the data disk was changed without this cache", "the log is damaged"];
        assert!(words.iter().any(|word| violation.what.contains(word)), "{violation}");
    }
}

#[test]
fn ram_that_only_claims_to_be_non_volatile_is_caught() {
    let subject = RaidSubject { lies: true, ..RaidSubject::new(Level::Raid5) };
    let violation = explored(subject, 1000).violation.expect("flushed data is lost");
    assert!(violation.what.contains("took data"), "{violation}");
}

/// Every operation of every member, and of the journal, fails once, and for ever: no client is told of any of it.
#[test]
fn the_failure_of_one_member_or_of_the_journal_is_nobodys_business() {
    for (seed, level) in [(1, Level::Raid5), (2, Level::Raid5), (3, Level::Raid6)] {
        let config = SweepConfig { stride: 3, ..SweepConfig::new(seed, 20) };
        let swept = sweep_errors(&config, &|seed| {
            raid_rig(seed, RaidSubject { journal: true, ..RaidSubject::new(level) })
        });
        if let Some(violation) = swept.violation {
            panic!("{violation}");
        }
        assert!(swept.cases > 50, "{}", swept.cases);
        assert_eq!((swept.told, swept.refused, swept.blocked), (0, 0, 0));
    }
}

/// A member fails while the parity is in doubt, at any moment: what cannot be computed is an error, and nothing comes out wrong.
#[test]
fn a_member_that_fails_while_the_parity_is_in_doubt_makes_errors_and_no_wrong_data() {
    let mut told = 0;
    for seed in 1..9 {
        let level = if seed % 4 == 0 { Level::Raid6 } else { Level::Raid5 };
        let config = SweepConfig { stride: 5, in_doubt: true, ..SweepConfig::new(seed, 40) };
        let swept = sweep_errors(&config, &|seed| {
            raid_rig(seed, RaidSubject { in_doubt: true, ..RaidSubject::new(level) })
        });
        if let Some(violation) = swept.violation {
            panic!("{violation}");
        }
        told += swept.told;
    }
    assert!(told > 30, "{told}");
}

/// An array whose parity is right makes up for whatever one disk does. That includes a log on the array, wherever it is.
#[test]
fn errors_below_a_log_cache_on_an_array_make_nothing_wrong() {
    let mut log_failures = 0;
    for (seed, place, journal) in [
        (1, LogPlace::Slice, true),
        (1, LogPlace::Slice, false),
        (2, LogPlace::Device, true),
        (2, LogPlace::Device, false),
    ] {
        let in_doubt = !journal;
        let config = SweepConfig { stride: 29, in_doubt, ..SweepConfig::new(seed, 40) };
        let swept = sweep_errors(&config, &|seed| {
            let log_cache = Some(place);
            raid_rig(seed, RaidSubject { journal, in_doubt, log_cache, ..RaidSubject::new(Level::Raid5) })
        });
        if let Some(violation) = swept.violation {
            panic!("{violation}");
        }
        if place == LogPlace::Slice && journal {
            assert_eq!((swept.told, swept.refused, swept.log_failures, swept.blocked), (0, 0, 0, 0));
        }
        log_failures += swept.log_failures;
    }
    assert!(log_failures > 10, "{log_failures}");
}

/// Seed 531622 resyncs in thousands of small windows: with a case for each operation the sweep had no end.
#[test]
fn a_sweep_over_an_array_of_many_operations_ends() {
    let config =
        SweepConfig { doubles_after: 1, devices_max: 1, in_doubt: true, ..SweepConfig::new(531_622, 40) };
    let swept = sweep_errors(&config, &|seed| {
        let log_cache = Some(LogPlace::Device);
        raid_rig(seed, RaidSubject { in_doubt: true, log_cache, ..RaidSubject::new(Level::Raid5) })
    });
    if let Some(violation) = swept.violation {
        panic!("{violation}");
    }
    assert!((12..120).contains(&swept.cases), "{}", swept.cases);
}

/// The array takes no more writes, and then the log on it fails, too. Until that is recorded, nothing is tried again, and no waiter wakes.
#[test]
fn a_cache_on_a_broken_array_whose_log_fails_waits_for_its_record() {
    let config = SweepConfig { stride: 43, devices_max: 1, in_doubt: true, ..SweepConfig::new(2, 40) };
    let swept = sweep_errors(&config, &|seed| {
        let log_cache = Some(LogPlace::Slice);
        raid_rig(seed, RaidSubject { in_doubt: true, log_cache, ..RaidSubject::new(Level::Raid5) })
    });
    if let Some(violation) = swept.violation {
        panic!("{violation}");
    }
    assert!(swept.log_failures > 0);
}
