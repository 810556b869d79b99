//! Growing an array with the power cut at every write: all data is where it belongs afterwards, and all parity is right.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::rc::Rc;

use dcd_crash::{CutStyle, Latency, MemDisk, SimRng, VirtualDriver};
use dcd_engine::raid::grow::{GrowError, GrowRefusal, add_member, take_space};
use dcd_engine::raid::offline::create;
use dcd_engine::raid::{
    ArraySuperblock, CacheUnit, DATA_SECTOR, Layout, Level, RaidConfig, RaidLayer, parity,
};
use dcd_engine::{
    BlockDevice, Buf, Durability, ErrorKind, Geometry, Io, IoError, IoResult, Lba, SECTOR_BYTES, Stack,
    StackBuilder, StackDevice,
};

const ID: u64 = 0x1234_5678;

/// A disk of a machine whose power goes after so many commands that change something; one member may be dead besides.
struct Powered<'a> {
    disk: &'a mut MemDisk,
    left: Rc<Cell<u64>>,
    dead: bool,
}

impl BlockDevice for Powered<'_> {
    fn geometry(&self) -> Geometry {
        BlockDevice::geometry(self.disk)
    }

    fn run(&mut self, io: Io) -> IoResult {
        if self.dead {
            return IoResult::err(io.take_buf(), IoError::new(ErrorKind::Medium));
        }
        if io.modifies() || matches!(io, Io::Flush) {
            if self.left.get() == 0 {
                return IoResult::err(io.take_buf(), IoError::new(ErrorKind::PowerCut));
            }
            self.left.set(self.left.get() - 1);
        }
        self.disk.run(io)
    }
}

/// An array of test: how it is, and what is on it.
struct Case {
    level: Level,
    members: usize,
    strip_sectors: u64,
    stripes: u64,
}

impl Case {
    fn geometry(&self) -> Geometry {
        Geometry::plain(DATA_SECTOR + self.stripes * self.strip_sectors)
    }

    fn config(&self, members: usize) -> RaidConfig {
        RaidConfig {
            level: self.level,
            strip_sectors: self.strip_sectors,
            present: vec![true; members],
            ..RaidConfig::default()
        }
    }

    fn sectors(&self, members: usize) -> u64 {
        (members - self.level.parity()) as u64 * self.strip_sectors * self.stripes
    }

    /// A full array that was stopped cleanly, and a blank disk behind its members.
    fn disks(&self) -> Vec<MemDisk> {
        let mut disks: Vec<MemDisk> = (0..self.members)
            .map(|seed| MemDisk::new(self.geometry(), Latency::INSTANT, seed as u64))
            .collect();
        let mut all: Vec<Option<&mut dyn BlockDevice>> =
            disks.iter_mut().map(|disk| Some(disk as &mut dyn BlockDevice)).collect();
        create(&mut all, &self.config(self.members), *b"an array to grow", true).expect("made");
        let sectors = self.sectors(self.members);
        let mut disks = served(self.config(self.members), disks, |array| {
            assert_eq!(array.geometry().sectors, sectors);
            let mut buf = Buf::zeroed((sectors * SECTOR_BYTES) as usize);
            buf.bytes_mut().copy_from_slice(&pattern(sectors));
            let write = Io::Write { at: Lba(0), buf, durability: Durability::Durable };
            array.run(write).status.expect("written");
        });
        disks.push(MemDisk::new(self.geometry(), Latency::INSTANT, 99));
        disks
    }

    /// An array that did not grow has all of its data, without the members that are not present.
    fn check_old(&self, mut disks: Vec<MemDisk>, present: &[bool], about: &str) {
        disks.truncate(self.members);
        let config = RaidConfig { present: present[..self.members].to_vec(), ..self.config(self.members) };
        let old = self.sectors(self.members);
        let there = disks.into_iter().zip(present).filter(|(_, present)| **present).map(|(disk, _)| disk);
        served(config, there.collect(), |array| {
            assert_eq!(array.geometry().sectors, old, "{about}");
            let all = array.read(Lba(0), (old * SECTOR_BYTES) as usize).expect("read");
            assert!(all.bytes() == pattern(old), "{about}: the data has changed");
        });
    }

    /// All data is there, what is new is zero, and the parity is right.
    fn check(&self, disks: Vec<MemDisk>, present: &[bool], about: &str) {
        let config = RaidConfig { present: present.to_vec(), ..self.config(self.members + 1) };
        let (old, new) = (self.sectors(self.members), self.sectors(self.members + 1));
        let there = disks.into_iter().zip(present).filter(|(_, present)| **present).map(|(disk, _)| disk);
        let disks = served(config, there.collect(), |array| {
            assert_eq!(array.geometry().sectors, new, "{about}");
            let all = array.read(Lba(0), (new * SECTOR_BYTES) as usize).expect("read");
            let (data, rest) = all.bytes().split_at((old * SECTOR_BYTES) as usize);
            assert!(data == pattern(old), "{about}: the data has changed");
            assert!(rest.iter().all(|byte| *byte == 0), "{about}: the new part is not zero");
        });
        if present.iter().all(|present| *present) {
            self.check_parity(&disks, about);
        }
    }

    fn check_parity(&self, disks: &[MemDisk], about: &str) {
        let shape = self.level.shape(disks.len()).expect("enough members");
        let member_sectors = self.stripes * self.strip_sectors;
        let layout = Layout::new(shape, self.strip_sectors, member_sectors, CacheUnit::Stripe);
        for stripe in 0..self.stripes {
            let columns: Vec<Vec<u8>> = (0..disks.len())
                .map(|column| {
                    let mut bytes = vec![0; (self.strip_sectors * SECTOR_BYTES) as usize];
                    disks[layout.member(stripe, column)]
                        .current()
                        .read(layout.member_lba(stripe, 0), &mut bytes);
                    bytes
                })
                .collect();
            let data: Vec<&[u8]> = columns[..shape.data].iter().map(Vec::as_slice).collect();
            let (mut p, mut q) = (vec![0; data[0].len()], vec![0; data[0].len()]);
            parity::p_and_q(&data, &mut p, &mut q);
            assert!(columns[shape.data] == p, "{about}: P of stripe {stripe}");
            assert!(shape.parity == 1 || columns[shape.data + 1] == q, "{about}: Q of stripe {stripe}");
        }
    }
}

fn pattern(sectors: u64) -> Vec<u8> {
    let words = (0..sectors * SECTOR_BYTES / 8).map(|word| (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

/// Serves an array for a moment, and stops it cleanly.
fn served(config: RaidConfig, disks: Vec<MemDisk>, work: impl FnOnce(&mut dyn BlockDevice)) -> Vec<MemDisk> {
    let mut driver = VirtualDriver::new(disks);
    let mut builder = StackBuilder::new();
    let ports: Vec<_> = driver.geometries().iter().map(|geometry| builder.device(*geometry)).collect();
    let root = builder.layer("array", Box::new(RaidLayer::new(config)), &ports);
    let mut stack: Stack = builder.finish(root);
    stack.activate(&mut driver).expect("it starts");
    work(&mut StackDevice { stack: &mut stack, pump: &mut driver, target: root });
    driver.control(&mut stack, dcd_engine::LayerIndex(0), dcd_engine::Control::Stop);
    while driver.take_report().is_none_or(|(_, report)| report != dcd_engine::Report::Stopped) {
        driver.step(&mut stack);
    }
    driver.into_devices()
}

/// Grows with the power on for so many commands; one member may be dead.
fn grow(disks: &mut [MemDisk], commands: u64, dead: Option<usize>) -> Result<ArraySuperblock, GrowError> {
    let left = Rc::new(Cell::new(commands));
    let powered = |(role, disk)| Powered { disk, left: Rc::clone(&left), dead: dead == Some(role) };
    let mut powered: Vec<Powered<'_>> = disks.iter_mut().enumerate().map(powered).collect();
    let mut members: Vec<Option<&mut dyn BlockDevice>> =
        powered.iter_mut().map(|disk| Some(disk as &mut dyn BlockDevice)).collect();
    // Small bands, so that there are many.
    add_member(&mut members, None, ID, 64 << 10, &mut |_, _| ControlFlow::Continue(()))
}

/// Grows as far as it comes without the devices that are missing.
fn grow_without(disks: &mut [MemDisk], missing: &[usize]) -> Result<ArraySuperblock, GrowError> {
    let mut members: Vec<Option<&mut dyn BlockDevice>> = disks
        .iter_mut()
        .enumerate()
        .map(|(role, disk)| (!missing.contains(&role)).then_some(disk as &mut dyn BlockDevice))
        .collect();
    add_member(&mut members, None, ID, 64 << 10, &mut |_, _| ControlFlow::Continue(()))
}

/// The last superblock was written before the power went.
fn was_through(error: &GrowError) -> bool {
    matches!(error, GrowError::Refused(GrowRefusal::Named { .. }))
}

const CASES: [Case; 4] = [
    Case { level: Level::Raid5, members: 3, strip_sectors: 8, stripes: 11 },
    Case { level: Level::Raid5, members: 4, strip_sectors: 64, stripes: 7 },
    Case { level: Level::Raid6, members: 4, strip_sectors: 16, stripes: 10 },
    Case { level: Level::Raid6, members: 6, strip_sectors: 8, stripes: 33 },
];

#[test]
fn an_array_gets_a_member() {
    for case in CASES {
        let mut disks = case.disks();
        let superblock = grow(&mut disks, u64::MAX, None).expect("grown");
        assert_eq!((superblock.members, superblock.reshape), (case.members + 1, None));
        case.check(disks, &vec![true; case.members + 1], "grown");
    }
}

#[test]
fn the_power_may_go_at_every_write() {
    let mut rng = SimRng::new(7);
    for case in CASES {
        let fresh = case.disks();
        let mut cut = 0;
        loop {
            let copy = |disk: &MemDisk| disk.power_cut(CutStyle::AllKept, &mut SimRng::new(1));
            let mut disks: Vec<MemDisk> = fresh.iter().map(copy).collect();
            let ended = grow(&mut disks, cut, None).is_ok();
            let style = CutStyle::ALL[rng.below(CutStyle::ALL.len() as u64) as usize];
            let mut disks: Vec<MemDisk> = disks.iter().map(|disk| disk.power_cut(style, &mut rng)).collect();
            // A second cut on the way on, and then to the end.
            let again = rng.below(12);
            let _ = grow(&mut disks, again, None);
            let mut disks: Vec<MemDisk> = disks.iter().map(|disk| disk.power_cut(style, &mut rng)).collect();
            let about = format!("{:?} of {}, cut at {cut}, {again}, {style:?}", case.level, case.members);
            if let Err(error) = grow(&mut disks, u64::MAX, None) {
                assert!(was_through(&error), "{about}: {error}");
            }
            case.check(disks, &vec![true; case.members + 1], &about);
            if ended {
                break;
            }
            cut += 1;
        }
        assert!(cut > 60, "there are many places to cut at: {cut}");
    }
}

#[test]
fn a_member_may_die_with_the_power() {
    let mut rng = SimRng::new(8);
    for case in CASES {
        let fresh = case.disks();
        for cut in (20..400).step_by(3) {
            let copy = |disk: &MemDisk| disk.power_cut(CutStyle::AllKept, &mut SimRng::new(1));
            let mut disks: Vec<MemDisk> = fresh.iter().map(copy).collect();
            if grow(&mut disks, cut, None).is_ok() {
                break;
            }
            let mut disks: Vec<MemDisk> =
                disks.iter().map(|disk| disk.power_cut(CutStyle::BySector, &mut rng)).collect();
            let dead = rng.below(case.members as u64 + 1) as usize;
            let about = format!("{:?} of {}, cut at {cut}, without {dead}", case.level, case.members);
            match grow(&mut disks, u64::MAX, Some(dead)) {
                Ok(superblock) => assert_eq!(superblock.failed, 1 << dead, "{about}"),
                Err(error) => assert!(was_through(&error), "{about}: {error}"),
            }
            let mut present = vec![true; case.members + 1];
            present[dead] = false;
            case.check(disks, &present, &about);
        }
    }
}

/// The power goes before or after the new member has its superblock, and some members are missing when growing goes on: it ends, or it is
/// taken back. It never panics, and never leaves an array that can neither be served nor grow.
#[test]
fn members_may_be_missing_after_a_cut_at_the_beginning() {
    let (mut grown, mut taken_back, mut not_begun) = (0, 0, 0);
    let mut rng = SimRng::new(9);
    for case in CASES {
        let fresh = case.disks();
        let new = case.members;
        let parity = case.level.parity();
        for cut in 0..40 {
            let copy = |disk: &MemDisk| disk.power_cut(CutStyle::AllKept, &mut SimRng::new(1));
            let mut disks: Vec<MemDisk> = fresh.iter().map(copy).collect();
            let _ = grow(&mut disks, cut, None);
            let disks: Vec<MemDisk> =
                disks.iter().map(|disk| disk.power_cut(CutStyle::BySector, &mut rng)).collect();
            let mut sets: Vec<Vec<usize>> = (0..=new).map(|role| vec![role]).collect();
            // As many as the parity makes up for, and the new one.
            sets.push((0..parity).chain([new]).collect());
            for missing in sets {
                let mut disks: Vec<MemDisk> = disks.iter().map(copy).collect();
                let about = format!("{:?} of {new}, cut at {cut}, without {missing:?}", case.level);
                let present: Vec<bool> = (0..=new).map(|role| !missing.contains(&role)).collect();
                match grow_without(&mut disks, &missing) {
                    Ok(superblock) => {
                        assert!(superblock.reshape.is_none(), "{about}");
                        case.check(disks, &present, &about);
                        grown += 1;
                    }
                    Err(GrowError::Refused(GrowRefusal::TakenBack { members, .. })) => {
                        assert_eq!((members, missing.len()), (new, parity + 1), "{about}");
                        case.check_old(disks, &present, &about);
                        taken_back += 1;
                    }
                    Err(GrowError::Refused(GrowRefusal::Missing)) => {
                        case.check_old(disks, &present, &about);
                        not_begun += 1;
                    }
                    // Something has moved, and more is missing than the parity makes up for.
                    Err(GrowError::TooManyMissing { .. }) if missing.len() > parity => {}
                    Err(error) => panic!("{about}: {error}"),
                }
            }
        }
    }
    assert!(grown > 100 && taken_back > 10 && not_begun > 10, "{grown} {taken_back} {not_begun}");
}

#[test]
fn larger_members_give_their_space() {
    let case = &CASES[1];
    let mut disks = case.disks();
    disks.pop();
    let larger = Geometry::plain(DATA_SECTOR + 9 * case.strip_sectors + 17);
    let mut disks: Vec<MemDisk> = disks
        .iter()
        .map(|disk| {
            let mut copy = MemDisk::new(larger, Latency::INSTANT, 5);
            let mut bytes = vec![0; (case.geometry().sectors * SECTOR_BYTES) as usize];
            disk.current().read(Lba(0), &mut bytes);
            copy.put(Lba(0), &bytes);
            // What was there before is not zero.
            copy.put(Lba(case.geometry().sectors), &vec![7; 2 * case.strip_sectors as usize * 512]);
            copy
        })
        .collect();
    let take = |disks: &mut [MemDisk]| {
        let mut members: Vec<Option<&mut dyn BlockDevice>> =
            disks.iter_mut().map(|disk| Some(disk as &mut dyn BlockDevice)).collect();
        take_space(&mut members, &mut |_, _| ControlFlow::Continue(())).expect("at rest")
    };
    let superblock = take(&mut disks).expect("there is more");
    assert_eq!(superblock.member_sectors, 9 * case.strip_sectors);
    assert_eq!(take(&mut disks), None, "it has all of it");
    let mut some: Vec<Option<&mut dyn BlockDevice>> =
        disks[..3].iter_mut().map(|disk| Some(disk as &mut dyn BlockDevice)).collect();
    let refused = take_space(&mut some, &mut |_, _| ControlFlow::Continue(())).expect_err("one is not named");
    assert_eq!(refused, GrowError::Refused(GrowRefusal::NotAllThere { members: 4 }));
    let old = case.sectors(case.members);
    let disks = served(case.config(case.members), disks, |array| {
        let sectors = array.geometry().sectors;
        assert_eq!(sectors, 9 * 3 * case.strip_sectors);
        let all = array.read(Lba(0), (sectors * SECTOR_BYTES) as usize).expect("read");
        let (data, rest) = all.bytes().split_at((old * SECTOR_BYTES) as usize);
        assert!(data == pattern(old) && rest.iter().all(|byte| *byte == 0));
    });
    Case { stripes: 9, ..CASES[1] }.check_parity(&disks, "larger");
}

#[test]
fn what_would_lose_data_is_refused() {
    let case = &CASES[0];
    let refused = |disks: &mut [MemDisk]| grow(disks, 0, None).expect_err("refused").to_string();
    let mut disks = case.disks();
    disks.pop();
    let error = refused(&mut disks);
    assert!(error.contains("has 3 members, and 3 are named"), "{error}");
    let mut disks = case.disks();
    disks[3] = MemDisk::new(Geometry::plain(DATA_SECTOR + 8), Latency::INSTANT, 1);
    assert!(refused(&mut disks).contains("the new member has 2056 sectors"));
    let mut disks = case.disks();
    disks.swap(0, 1);
    assert!(refused(&mut disks).contains("not the one that has this role"));
    let mut disks = case.disks();
    for disk in &mut disks[1..3] {
        let (superblock, identity) = ArraySuperblock::read(disk).expect("read");
        let failed = ArraySuperblock { failed: 1, generation: 50, ..superblock };
        disk.run(failed.write(identity)).status.expect("written");
    }
    assert!(refused(&mut disks).contains("it has failed members"));
}
