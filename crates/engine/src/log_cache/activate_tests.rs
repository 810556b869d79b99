//! Starting on logs that were made by hand.

use super::*;
use crate::layer::{Geometry, Io, IoResult, Port, Stripes};
use crate::log_cache::config::{Contiguity, HowPolicy, Strides};
use crate::log_cache::fingerprint::Fingerprint;
use crate::log_cache::format::SUPERBLOCK_BYTES;
use crate::log_cache::offline::read_superblock;
use crate::log_cache::table::Line;
use crate::log_cache::testing::{Log, Part, Ram};
use crate::log_cache::testing_steps::{Disks, Steps, quiet};
use crate::{BlockDevice, SECTOR_BYTES};

struct Two([Ram; 2]);

impl Ports for Two {
    fn geometry(&self, port: Port) -> Geometry {
        self.0[port.0].geometry()
    }

    fn run(&mut self, port: Port, io: Io) -> IoResult {
        self.0[port.0].run(io)
    }
}

fn started(log: Log, config: LogCacheConfig) -> Core {
    let data = Ram::new(log.superblock.data_sectors);
    activate(config, None, 1, &mut Two([log.device, data])).expect("it starts")
}

/// Every record was destaged when the power went, but for a request of which only the first record was written; the log in front
/// of it ended with its segment. The first version took the start of the next segment for the tail, so that the ring
/// looked full and was empty: nothing was ever destaged or written again.
#[test]
fn an_empty_log_at_the_end_of_a_segment_is_not_a_full_one() {
    for last in [0, 3] {
        for ordered_destage in [false, true] {
            let mut log = Log::new(4, 512);
            let segment = log.superblock.segment_sectors();
            for _ in 0..=last {
                // Header and payload fill the segment.
                log.append(&[
                    Part::Data(0, 8, 1),
                    Part::Data(8, 8, 1),
                    Part::Data(16, 8, 1),
                    Part::Data(24, 7, 1),
                ]);
            }
            assert_eq!(log.sector, log.superblock.segment_start(last) + segment, "the segment is full");
            (log.oldest_live_seq, log.durable_seq) = (log.seq, log.seq);
            if last == 3 {
                // The head comes round only after a superblock has moved the tail.
                (log.superblock.tail_seq, log.superblock.tail_sector) = (2, log.superblock.segment_start(1));
                log.superblock.durable_seq = 2;
                log.superblock.generation += 1;
                log.store_superblock();
            }
            let next = log.seq;
            log.append_with(&[Part::Data(64, 8, 2)], true);
            let core = started(log, LogCacheConfig { ordered_destage, ..LogCacheConfig::default() });
            assert_eq!(core.log.next_seq(), next, "half a request is none");
            assert_eq!((core.log.ring().live(), core.log.ring().index(core.log.ring().head())), (1, last));
            assert_eq!((core.index.table().counts().dirty_sectors, core.log.ring().free()), (0, 3));
            core.check();
        }
    }
}

#[test]
fn a_dirty_log_is_as_full_as_it_was() {
    let mut log = Log::new(4, 512);
    for i in 0..6 {
        log.append(&[Part::Data(i * 8, 8, 1)]);
    }
    let core = started(log, LogCacheConfig::default());
    assert_eq!((core.log.ring().live(), core.index.table().counts().dirty_sectors), (2, 6 * 8));
    assert_eq!(core.index.table().counts().dirty_sectors * SECTOR_BYTES, 6 * 4096);
}

#[test]
fn a_calibration_in_the_log_is_used_unless_the_user_knows_better_or_an_array_is_below() {
    let strides = |read, write| Contiguity { read: Strides::up_to(read), write: Strides::up_to(write) };
    let (stored, named) = (strides(3, 9), strides(0, 5));
    let plain = LogCacheConfig::default();
    let told = LogCacheConfig { contiguity: Some(named.clone()), ..plain.clone() };
    let not_told = LogCacheConfig { calibrated: false, ..plain.clone() };
    let unsorted = LogCacheConfig { how: HowPolicy::AsItComes, ..plain.clone() };
    let array = Some(Stripes { sectors: 64, first: 0 });
    for (calibration, config, stripes, used) in [
        (None, &plain, None, None),
        (Some(stored.clone()), &plain, None, Some(stored.clone())),
        (Some(stored.clone()), &told, None, Some(named.clone())),
        (None, &told, None, Some(named)),
        (Some(stored.clone()), &not_told, None, None),
        (Some(stored.clone()), &unsorted, None, None),
        (Some(strides(9, 1)), &plain, None, None),
        (Some(stored.clone()), &plain, array, None),
    ] {
        let mut log = Log::new(4, 512);
        log.superblock.calibration.clone_from(&calibration);
        log.store_superblock();
        let mut data = Ram::new(log.superblock.data_sectors);
        data.stripes = stripes;
        let mut devices = Two([log.device, data]);
        let core = activate(config.clone(), None, 1, &mut devices).expect("it starts");
        assert_eq!(core.config.contiguity, used);
        assert_eq!(core.status(crate::Nanos::ZERO).calibrated, calibration.is_some());
        assert_eq!(read_superblock(&mut devices.0[0]).unwrap().calibration, calibration, "it stays there");
    }
}

#[test]
fn what_is_dirty_must_be_whole_blocks_of_the_data_disk() {
    for (part, block, starts) in [
        (Part::Data(8, 8, 1), 4096, true),
        (Part::Data(9, 1, 1), 512, true),
        (Part::Data(9, 1, 1), 4096, false),
        (Part::Range(EntryKind::Discard, 8, 8), 4096, true),
        (Part::Range(EntryKind::Discard, 8, 9), 4096, false),
    ] {
        let mut log = Log::new(4, 512);
        log.append(std::slice::from_ref(&part));
        let mut data = Ram::new(log.superblock.data_sectors);
        data.logical_block_bytes = block;
        let before = log.device.bytes.clone();
        let mut disks = Two([log.device, data]);
        let error = activate(LogCacheConfig::default(), None, 1, &mut disks).err();
        assert_eq!(error.is_none(), starts, "{part:?} on blocks of {block}: {error:?}");
        if let Some(error) = error {
            let expected = matches!(error, LogError::PartsOfBlocks { block_bytes: 4096, parts: 1 });
            assert!(expected, "{error}");
            assert!(disks.0[0].bytes == before, "nothing was changed");
        }
    }
}

/// A copy of what the data disk has calls older records old. It counts for ever, or not at all any more, if a later record is lost.
#[test]
fn a_clean_entry_counts_unless_a_later_record_is_lost() {
    let copied = || {
        let mut log = Log::new(8, 512);
        log.append(&[Part::Data(8, 8, 1), Part::Data(64, 8, 1)]);
        log.append(&[Part::Clean(8, 8, 2)]);
        log
    };
    let pieces = |core: &Core| core.index.table().lookup(Line(1)).to_vec();
    let core = started(copied(), LogCacheConfig::default());
    assert!(matches!(pieces(&core)[..], [piece] if piece.kept && !piece.dirty));
    assert_eq!((core.index.table().counts().dirty_sectors, core.log.superblock().kept_seq), (8, 0));

    let mut log = copied();
    log.superblock.kept_seq = 2;
    log.superblock.durable_seq = 3;
    log.superblock.generation += 1;
    log.store_superblock();
    assert_eq!(pieces(&started(log, LogCacheConfig::default())).len(), 1);
    let mut log = copied();
    log.superblock.kept_seq = 3;
    log.superblock.durable_seq = 3;
    log.superblock.generation += 1;
    log.store_superblock();
    let core = started(log, LogCacheConfig::default());
    assert_eq!((pieces(&core).len(), core.index.table().counts().dirty_sectors), (0, 8));

    let mut log = copied();
    let lost = log.append(&[Part::Data(200, 8, 1)]);
    log.durable_seq = log.seq;
    log.append(&[Part::Data(304, 8, 1)]);
    log.corrupt(lost.sector, 0, 1);
    let core = started(log, LogCacheConfig { accept_damage: true, ..LogCacheConfig::default() });
    assert_eq!(core.accepted_damage.len(), 1);
    assert!(pieces(&core).is_empty());
    assert_eq!(core.log.superblock().kept_seq, core.log.next_seq());
}

/// The log has a dirty block, and the data disk has become twice as large since it was formatted.
fn grown() -> Two {
    grown_by(2)
}

fn grown_by(times: u64) -> Two {
    let mut log = Log::new(4, 512);
    let before = log.superblock.data_sectors;
    let mut data = Ram::new(times * before);
    log.superblock.fingerprint = Fingerprint::read(&mut data, before, &log.superblock.cache_uuid).unwrap();
    log.superblock.generation += 1;
    log.store_superblock();
    log.append(&[Part::Data(8, 8, 1)]);
    Two([log.device, data])
}

#[test]
fn what_the_data_disk_has_grown_by_is_taken_over_where_that_is_asked_for() {
    let (keep, grow) =
        (LogCacheConfig::default(), LogCacheConfig { grow: true, ..LogCacheConfig::default() });
    let sectors = |disks: &mut Two| read_superblock(&mut disks.0[0]).unwrap().data_sectors;
    let mut disks = grown();
    let before = sectors(&mut disks);
    let start = |config: &LogCacheConfig, disks: &mut Two| activate(config.clone(), None, 1, disks);
    assert_eq!(start(&keep, &mut disks).unwrap().log.superblock().data_sectors, before);
    for config in [&grow, &grow, &keep] {
        let core = start(config, &mut disks).unwrap();
        assert_eq!((core.index.table().counts().dirty_sectors, sectors(&mut disks)), (8, 2 * before));
        core.check();
    }
    // The fingerprint covers the new end.
    *disks.0[1].bytes.last_mut().unwrap() ^= 1;
    assert!(matches!(start(&keep, &mut disks), Err(LogError::OtherData(_))));
    // A disk that is another one does not become this cache's by being larger.
    let mut disks = grown();
    disks.0[1].bytes[0] ^= 1;
    let log = disks.0[0].bytes.clone();
    assert!(matches!(start(&grow, &mut disks), Err(LogError::OtherData(_))));
    assert!(disks.0[0].bytes == log, "nothing was changed");
}

/// The lookup table takes its memory at the start, before the superblock has the new size.
#[test]
fn a_cache_that_has_grown_takes_writes_at_its_new_end() {
    let Two(disks) = grown_by(16);
    let last = disks[1].geometry().sectors - 8;
    for ordered_destage in [false, true] {
        let config = LogCacheConfig { grow: true, ordered_destage, ..quiet() };
        let mut steps = Steps::start(Disks(disks.to_vec()), config).unwrap();
        steps.write(last, 8, 7);
        assert_eq!(steps.read(last), Some(7));
        steps.drain();
        assert_eq!(steps.on_data_disk(last), 7);
    }
}

#[test]
fn a_superblock_that_is_torn_while_the_disk_grows_leaves_the_cache_as_it_was() {
    let grow = LogCacheConfig { grow: true, ..LogCacheConfig::default() };
    let mut disks = grown();
    let old = disks.0[0].bytes.clone();
    activate(grow.clone(), None, 1, &mut disks).unwrap();
    let new = disks.0[0].bytes.clone();
    let changed: Vec<usize> = (0..new.len()).filter(|at| new[*at] != old[*at]).collect();
    // The second page has sums of its own, and is not needed for the first to count.
    let page = changed[0] - changed[0] % SUPERBLOCK_BYTES + SUPERBLOCK_BYTES;
    let first = changed.iter().filter(|at| **at < page).count();
    for keep in [0, 1, first / 2, first - 1, first, (first + changed.len()) / 2] {
        let sectors = if keep < first { 1 << 12 } else { 2 << 12 };
        let mut torn = grown();
        changed[..keep].iter().for_each(|at| torn.0[0].bytes[*at] = new[*at]);
        let core = activate(LogCacheConfig::default(), None, 1, &mut torn).unwrap();
        assert_eq!(
            (core.log.superblock().data_sectors, core.index.table().counts().dirty_sectors),
            (sectors, 8),
        );
        assert_eq!(
            activate(grow.clone(), None, 1, &mut torn).unwrap().log.superblock().data_sectors,
            2 << 12
        );
    }
}

#[test]
fn a_log_that_another_machine_has_not_stopped_is_served_only_after_it_was_taken_over() {
    let on = |machine, take_over| LogCacheConfig { machine, take_over, ..LogCacheConfig::default() };
    let left = |state, machine| {
        let mut log = Log::new(4, 512);
        (log.superblock.state, log.superblock.machine) = (state, machine);
        log.superblock.generation += 1;
        log.store_superblock();
        log.append(&[Part::Data(8, 8, 1)]);
        Two([log.device, Ram::new(log.superblock.data_sectors)])
    };
    for (state, by, machine, starts) in [
        (LogState::Active, 1, 1, true),
        (LogState::Active, 1, 2, false),
        (LogState::Active, 1, 0, false),
        (LogState::Active, 0, 2, true),
        (LogState::Stopped, 1, 2, true),
    ] {
        let mut disks = left(state, by);
        let before = disks.0[0].bytes.clone();
        match activate(on(machine, false), None, 1, &mut disks) {
            Ok(core) => {
                assert!(starts, "{state:?} by {by}, and now {machine}");
                assert_eq!(core.log.superblock().machine, machine);
            }
            Err(LogError::OtherMachine { other, this }) => {
                assert!(!starts && (other, this) == (by, machine));
                assert!(disks.0[0].bytes == before, "nothing was changed");
            }
            Err(error) => panic!("{error}"),
        }
        // From then on it is this machine's, and the other one has to ask.
        assert_eq!(
            activate(on(machine, true), None, 1, &mut disks).unwrap().log.superblock().machine,
            machine
        );
        activate(on(machine, false), None, 1, &mut disks).unwrap();
        let refused =
            matches!(activate(on(3, false), None, 1, &mut disks), Err(LogError::OtherMachine { .. }));
        assert_eq!(refused, machine != 0);
    }
}
