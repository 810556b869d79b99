//! Tests of data disks that come and go while the cache serves the others.

use super::data_disk::DiskStanding;
use super::disks::AddressSpace;
use super::env::{DATA, LOG, data_port};
use super::offline::{next_place, read_superblock};
use super::testing::Ram;
use super::testing_steps::{Kind, Steps, ZEROES, kind, quiet};
use super::{LogCacheConfig, Reads, WriteRoute};
use crate::layer::{
    Control, DiskChangeError, DiskCommand, ErrorKind, Io, IoError, LayerSettings, Ports, Report,
};
use crate::{Buf, Extent, Geometry, Lba};

/// Sectors of the disks that are added.
const SECTORS: u64 = 4096;

fn add(disk: usize, id: u8) -> Control {
    let geometry = Geometry::plain(SECTORS);
    Control::Disk(DiskCommand::Add { disk, data_uuid: [id; 16], geometry })
}

const fn remove(disk: usize) -> Control {
    Control::Disk(DiskCommand::Remove { disk })
}

impl Steps {
    /// Puts a device at the port of a place.
    fn connect(&mut self, disk: usize, device: Ram) {
        match self.disks.0.get_mut(DATA.0 + disk) {
            Some(known) => *known = device,
            None => self.disks.0.push(device),
        }
    }

    fn answer_of_change(&mut self) -> Option<Result<(), DiskChangeError>> {
        let found = self.reports.iter().position(|report| matches!(report, Report::Disk(_)))?;
        let Report::Disk(answer) = self.reports.remove(found) else { return None };
        Some(answer)
    }

    /// Adds a new disk of zeroes at a place.
    fn adds(&mut self, disk: usize, id: u8) {
        self.connect(disk, Ram::new(SECTORS));
        self.control(add(disk, id));
        assert_eq!(self.answer_of_change(), Some(Ok(())));
    }

    fn removes(&mut self, disk: usize) {
        self.control(remove(disk));
        self.wait(10);
        assert_eq!(self.answer_of_change(), Some(Ok(())));
    }

    fn recorded(&mut self) -> Vec<u64> {
        let superblock = read_superblock(self.log()).expect("it is there");
        (0..superblock.space().count()).map(|disk| superblock.space().sectors(disk)).collect()
    }
}

fn refused(answer: Option<Result<(), DiskChangeError>>, words: &str) -> bool {
    matches!(&answer, Some(Err(DiskChangeError::Refused(why))) if why.contains(words))
}

#[test]
fn a_disk_comes_and_goes_beside_the_others() {
    let mut steps = Steps::over(1, 16, quiet()).expect("it starts");
    steps.write(3000, 8, 10);
    steps.adds(1, 7);
    assert_eq!(steps.recorded(), [8192, SECTORS]);
    assert_eq!([0, 1].map(|disk| steps.on(disk).read(3000)), [Some(10), Some(ZEROES)]);
    steps.on(1).write(3000, 8, 20);
    let flush = steps.flush();
    assert!(steps.is_ok(flush));
    let mut steps = steps.restart(quiet());
    assert_eq!([0, 1].map(|disk| steps.on(disk).read(3000)), [Some(10), Some(20)]);
    steps.removes(1);
    assert_eq!((steps.recorded(), steps.on(1).on_data_disk(3000)), (vec![8192], 20));
    assert_eq!(steps.on(0).on_data_disk(3000), 0, "nobody writes the others back");
    let gone = steps.on(1).write(0, 8, 1);
    assert!(matches!(steps.status(gone), Some(Err(_))));
    // Its records are still in the log, and those of the first disk, too.
    let mut disks = steps.disks;
    disks.0.truncate(2);
    let mut steps = Steps::start(disks, quiet()).expect("it starts");
    assert_eq!((steps.read(3000), steps.core.data.space().count()), (Some(10), 1));
    steps.drain();
    assert_eq!(
        read_superblock(steps.log()).expect("it is there").other_disks.len(),
        1,
        "a walk may find its records"
    );
    for round in 0..32 {
        steps.write(3200 + 8 * round, 8, 11);
    }
    steps.drain();
    assert!(read_superblock(steps.log()).expect("it is there").other_disks.is_empty());
}

/// Records of the disk that had the place before are neither served nor written back for the next one.
#[test]
fn the_next_disk_in_a_place_has_its_own_data_alone() {
    let mut steps = Steps::over(3, 32, quiet()).expect("it starts");
    for disk in 0..3 {
        steps.on(disk).write(3000, 8, 10 + disk as u8);
    }
    steps.on(1).send(Io::Discard { extent: Extent::new(Lba(2600), 64) });
    steps.removes(1);
    let superblock = read_superblock(steps.log()).expect("it is there");
    assert_eq!((next_place(&superblock), superblock.space().count()), (1, 3));
    steps.adds(1, 9);
    steps.on(1).write(1000, 8, 30);
    steps.flush();
    for _ in 0..2 {
        steps = steps.restart(quiet());
        assert_eq!([0, 1, 2].map(|disk| steps.on(disk).read(3000)), [Some(10), Some(ZEROES), Some(12)]);
        assert_eq!(steps.on(1).read(1000), Some(30));
    }
    steps.drain();
    assert_eq!(steps.on(1).on_data_disk(3000), ZEROES);
    assert_eq!(steps.on(1).on_data_disk(1000), 30);
}

#[test]
fn a_disk_counts_once_both_superblocks_have_it() {
    let mut steps = Steps::over(2, 16, quiet()).expect("it starts");
    steps.connect(2, Ram::new(SECTORS));
    steps.hold = Box::new(|port, io| port == LOG && io.modifies());
    steps.control(add(2, 7));
    for marks in 0..2 {
        assert_eq!((steps.held.len(), steps.answer_of_change()), (1, None), "{marks}");
        let refused = steps.on(2).write(0, 8, 1);
        assert!(matches!(steps.status(refused), Some(Err(error)) if error.kind == ErrorKind::Shutdown));
        steps.carry_out(0);
        steps.settle();
    }
    assert_eq!(steps.answer_of_change(), Some(Ok(())));
    steps.let_go();
    let written = steps.on(2).write(0, 8, 1);
    assert!(steps.is_ok(written));
    let copies =
        [0, 16].map(|sector| steps.disks.run(LOG, Io::Read { at: Lba(sector), buf: Buf::zeroed(8192) }));
    for copy in copies {
        let superblock = super::format::LogSuperblock::decode(copy.buf.bytes()).expect("it is good");
        assert_eq!(superblock.space().count(), 3);
    }
}

/// Whatever comes, the other disks are served, and no operation of a removal waits for them.
#[test]
fn clients_of_the_others_go_on_during_a_change() {
    let mut steps = Steps::over(3, 16, quiet()).expect("it starts");
    steps.on(1).write(3000, 8, 11);
    steps.hold = Box::new(|port, _| port == data_port(1));
    steps.control(remove(1));
    assert!(!steps.held.is_empty(), "it is written back");
    for tag in 1..9 {
        let [write, flush] = [steps.on(2).write(8 * u64::from(tag), 8, tag), steps.flush()];
        assert!(steps.is_ok(write) && steps.is_ok(flush));
    }
    assert_eq!(steps.answer_of_change(), None);
    steps.control(add(3, 8));
    assert!(refused(steps.answer_of_change(), "another disk is being"));
    steps.let_go();
    assert_eq!(steps.answer_of_change(), Some(Ok(())));
    assert_eq!(steps.on(1).on_data_disk(3000), 11);
}

#[test]
fn a_disk_leaves_only_with_all_its_data_durable_on_it() {
    for is_dirty in [false, true] {
        let config = LogCacheConfig { bypass_bytes: 64 << 10, ..quiet() };
        let mut steps = Steps::over(2, 16, config).expect("it starts");
        let is_covered = |at: &u64| {
            let extent = Extent::new(AddressSpace::start(1) + *at, 128);
            steps.core.data[1].fingerprint.covers(extent)
        };
        let at = (2048..6144).step_by(128).find(|at| !is_covered(at)).expect("few lines are covered");
        steps.on(1).write(at, 128, 5);
        assert_eq!((steps.core.statistics.bypasses, steps.core.index.is_dirty()), (1, false));
        if is_dirty {
            steps.on(1).write(at + 256, 8, 11);
        }
        steps.hold = Box::new(|port, io| port == data_port(1) && kind(io) == Kind::Flush);
        steps.control(remove(1));
        steps.wait(1);
        assert_eq!(steps.held.len(), 1);
        while !steps.held.is_empty() {
            assert_eq!((steps.recorded().len(), steps.answer_of_change()), (2, None), "a flush is awaited");
            steps.carry_out(0);
            steps.settle();
        }
        assert_eq!((steps.recorded().len(), steps.answer_of_change()), (1, Some(Ok(()))));
        assert_eq!(steps.on(1).on_data_disk(at), 5);
        assert!(!is_dirty || steps.on(1).on_data_disk(at + 256) == 11);
    }
}

#[test]
fn a_disk_that_fails_stays() {
    let mut steps =
        Steps::over(2, 16, LogCacheConfig { bypass_bytes: 64 << 10, ..quiet() }).expect("it starts");
    for at in (0..8192).step_by(128) {
        steps.on(1).write(at, 128, 5);
    }
    steps.hold = Box::new(|port, io| port == data_port(1) && kind(io) == Kind::Flush);
    steps.control(remove(1));
    steps.wait(1);
    while !steps.held.is_empty() {
        steps.fail(0, IoError::new(ErrorKind::Medium));
    }
    let answer = steps.answer_of_change();
    assert!(matches!(answer, Some(Err(DiskChangeError::Io(_)))), "{answer:?}");
    assert_eq!((steps.recorded().len(), steps.core.data[1].standing), (2, DiskStanding::Served));
}

#[test]
fn a_disk_that_cannot_be_read_is_not_added() {
    let mut steps = Steps::over(2, 16, quiet()).expect("it starts");
    steps.connect(2, Ram::new(SECTORS));
    steps.hold = Box::new(|port, _| port == data_port(2));
    steps.control(add(2, 7));
    assert_eq!(steps.held.len(), 1, "a flush");
    steps.fail(0, IoError::new(ErrorKind::Medium));
    assert!(matches!(steps.answer_of_change(), Some(Err(DiskChangeError::Io(_)))));
    assert_eq!((steps.recorded().len(), steps.core.data.space().count()), (2, 2));
    steps.let_go();
    steps.adds(2, 7);
}

/// The next start knows the content of an added disk, as if the disk had been there when the log was made.
#[test]
fn a_disk_that_was_changed_without_its_cache_is_refused() {
    let mut steps = Steps::over(2, 16, quiet()).expect("it starts");
    steps.adds(2, 7);
    let mut disks = steps.disks;
    let changed = disks.run(
        data_port(2),
        Io::Write { at: Lba(0), buf: Buf::copy_of(&[7; 512]), durability: crate::Durability::Durable },
    );
    assert!(changed.status.is_ok());
    let error = Steps::start(disks, quiet()).err().expect("refused");
    assert!(error.to_string().contains("data disk"), "{error}");
}

#[test]
fn what_cannot_be_added_or_removed_is_refused_with_words() {
    let mut steps = Steps::over(2, 16, quiet()).expect("it starts");
    for (command, words) in [
        (add(1, 7), "gets place 2"),
        (add(2, 1), "already"),
        (remove(0), "the first, which stays"),
        (remove(2), "no such data disk"),
    ] {
        steps.control(command);
        let answer = steps.answer_of_change();
        assert!(refused(answer.clone(), words), "{answer:?}");
    }
    let small = Control::Disk(DiskCommand::Add { disk: 2, data_uuid: [7; 16], geometry: Geometry::plain(0) });
    steps.control(small);
    assert!(refused(steps.answer_of_change(), "at most 64 TiB"));
    let mut ordered = Steps::new(16, LogCacheConfig { ordered_destage: true, ..quiet() });
    ordered.control(add(1, 7));
    assert!(refused(ordered.answer_of_change(), "ordered-destage"));
    steps.control(Control::Stop);
    steps.control(add(2, 7));
    assert_eq!(steps.answer_of_change(), Some(Err(DiskChangeError::Stopping)));
}

/// Clean copies are forgotten in parts, and none is read for the next disk in the place.
#[test]
fn kept_copies_leave_with_their_disk() {
    let config = LogCacheConfig { reads: Reads::Keep, ..quiet() };
    let mut steps = Steps::over(2, 16, config.clone()).expect("it starts");
    for _ in 0..4 {
        for at in (2600..3400).step_by(8) {
            steps.on(1).send(Io::Read { at: Lba(at), buf: Buf::zeroed(4096) });
        }
    }
    assert!(steps.core.index.table().counts().lines > 0, "copies were made");
    steps.removes(1);
    assert_eq!(steps.core.index.table().counts().lines, 0);
    steps.adds(1, 9);
    let mut steps = steps.restart(config);
    assert!((2600..3400).step_by(8).all(|at| steps.on(1).read(at) == Some(ZEROES)));
}

#[test]
fn a_stop_ends_a_change_and_leaves_the_log_whole() {
    for held in [LOG, data_port(1), data_port(2)] {
        for command in [remove(1), add(2, 7)] {
            let mut steps = Steps::over(2, 16, quiet()).expect("it starts");
            steps.connect(2, Ram::new(SECTORS));
            steps.on(1).write(3000, 8, 11);
            steps.flush();
            steps.hold = Box::new(move |port, io| port == held && kind(io) != Kind::Read);
            steps.control(command);
            steps.control(Control::Stop);
            steps.let_go();
            steps.wait(5);
            assert!(steps.reports.contains(&Report::Stopped), "{held:?}");
            assert!(steps.answer_of_change().is_some(), "{held:?}");
            let (count, mut disks) = (steps.recorded().len(), steps.disks);
            disks.0.truncate(1 + count);
            let mut steps = Steps::start(disks, quiet()).expect("it starts");
            if count > 1 {
                assert_eq!(steps.on(1).read(3000), Some(11));
            }
        }
    }
}

/// The driver flushes all places before a stop, also one that is free.
#[test]
fn a_flush_of_a_place_that_is_free_is_waited_for() {
    let mut steps = Steps::over(3, 32, quiet()).expect("it starts");
    steps.removes(1);
    steps.connect(1, Ram::new(SECTORS));
    steps.hold =
        Box::new(|port, io| port == data_port(1) && kind(io) == Kind::Read || port == LOG && io.modifies());
    steps.control(add(1, 9));
    steps.on(0).write(3000, 8, 10);
    let flush = steps.on(1).flush();
    assert_eq!(steps.status(flush), None);
    while let Some(read) = steps.held.iter().position(|held| held.port == data_port(1)) {
        steps.carry_out(read);
        steps.settle();
    }
    assert_eq!((steps.status(flush), steps.answer_of_change()), (None, None));
    steps.let_go();
    assert!(steps.is_ok(flush) && steps.answer_of_change() == Some(Ok(())));
    assert_eq!(steps.on(0).read(3000), Some(10));
}

/// The settings of a log of one disk apply again after a removal, and no disk is added to one that writes through.
#[test]
fn settings_for_one_disk_exclude_a_second_one_and_are_free_after_it() {
    let through = LogCacheConfig { writes: WriteRoute::Through, ..quiet() };
    let settings = || Control::Settings(Box::new(LayerSettings::LogCache(through.clone())));
    let mut steps = Steps::over(1, 32, quiet()).expect("it starts");
    steps.connect(1, Ram::new(SECTORS));
    steps.hold = Box::new(|port, io| port == data_port(1) && kind(io) == Kind::Read);
    steps.control(add(1, 9));
    steps.control(settings());
    steps.let_go();
    assert!(refused(steps.answer_of_change(), "is for a log with one data disk"));
    let mut steps = Steps::over(2, 32, quiet()).expect("it starts");
    steps.control(settings());
    assert_eq!(steps.core.config.writes, WriteRoute::Back);
    steps.removes(1);
    steps.control(settings());
    assert_eq!(steps.core.config.writes, WriteRoute::Through);
}

#[test]
fn a_disk_that_hangs_while_it_is_added_holds_up_no_stop() {
    let mut steps = Steps::over(2, 16, quiet()).expect("it starts");
    steps.connect(2, Ram::new(SECTORS));
    steps.hold = Box::new(|port, _| port == data_port(2));
    steps.control(add(2, 7));
    steps.on(1).write(3000, 8, 11);
    steps.control(Control::Stop);
    steps.wait(5);
    assert!(steps.reports.contains(&Report::Stopped));
    assert_eq!(steps.core.status(steps.now).of_disk(2).dirty_bytes, 0, "the log has nothing for it");
    assert!(steps.core.status(steps.now).dirty_bytes > 0);
}

/// With several disks, clients leave segments for carrying blocks forward. A request that has begun without has to end before.
#[test]
fn a_request_that_is_split_ends_before_there_is_a_second_disk() {
    let mut steps = Steps::new(16, LogCacheConfig { bypass_bytes: 0, segment_buffers: 2, ..quiet() });
    steps.connect(1, Ram::new(SECTORS));
    steps.hold = Box::new(|port, io| port == LOG && io.modifies());
    let write = steps.write(2600, 200, 10);
    assert!(steps.core.log.chain().is_some(), "its last records have no buffer yet");
    steps.control(add(1, 7));
    assert_eq!(steps.core.data.space().count(), 1);
    steps.let_go();
    steps.wait(1);
    assert!(steps.is_ok(write) && steps.answer_of_change() == Some(Ok(())));
}
