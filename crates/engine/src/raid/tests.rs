//! The array step by step: what it sends to its members, and when.

#[path = "apart_tests.rs"]
mod apart;
#[path = "away_tests.rs"]
mod away;
#[path = "intent_tests.rs"]
mod intent;
#[path = "join_tests.rs"]
mod joins;
#[path = "journal_tests.rs"]
mod journals;
#[path = "late_tests.rs"]
mod late;
#[path = "lost_tests.rs"]
mod lost;
#[path = "member_tests.rs"]
mod members;
#[path = "number_tests.rs"]
mod numbers;
#[path = "outdated_tests.rs"]
mod outdated;
#[path = "pass_tests.rs"]
mod passes;
#[path = "prefetch_tests.rs"]
mod prefetches;
#[path = "rebuild_tests.rs"]
mod rebuilds;
#[path = "work_tests.rs"]
mod work;

use std::collections::VecDeque;

use super::*;
use crate::destage::what::WhatPolicy;
use crate::destage::when::WhenPolicy;
use crate::layer::{
    ArrayCommand, Command, CommandError, Control, Durability, ErrorKind, Io, IoError, IoResult, OpId, Port,
    Request, RequestId, Seat,
};
use crate::raid::bitmap::Bitmap;
use crate::raid::contiguity::{Contiguity, Strides};
use crate::{BlockDevice, Buf, Lba};

/// Sixteen blocks in a strip, four stripes.
const STRIP: u64 = 16 * 8;
const MEMBER: u64 = DATA_SECTOR + 4 * STRIP;
const BLOCK: usize = 4096;

/// A member in memory.
struct Memory(Vec<u8>);

impl BlockDevice for Memory {
    fn geometry(&self) -> Geometry {
        Geometry::plain(self.0.len() as u64 / 512)
    }

    fn run(&mut self, mut io: Io) -> IoResult {
        let Some(extent) = io.extent() else { return IoResult::ok(Buf::none()) };
        let range = extent.start.bytes() as usize..extent.end().bytes() as usize;
        if range.end > self.0.len() {
            return IoResult::err(io.take_buf(), IoError::new(ErrorKind::OutOfRange));
        }
        match &mut io {
            Io::Read { buf, .. } => buf.bytes_mut().copy_from_slice(&self.0[range]),
            Io::Write { buf, .. } => self.0[range].copy_from_slice(buf.bytes()),
            Io::WriteZeroes { .. } => self.0[range].fill(0),
            _ => unreachable!("an array sends no others"),
        }
        IoResult::ok(io.take_buf())
    }
}

struct Members(Vec<Memory>);

impl Ports for Members {
    fn geometry(&self, port: Port) -> Geometry {
        self.0[port.0].geometry()
    }

    fn run(&mut self, port: Port, io: Io) -> IoResult {
        self.0[port.0].run(io)
    }
}

/// An array that is stepped by hand; commands are carried out when they are told to return.
struct Bench {
    raid: RaidLayer,
    members: Members,
    open: VecDeque<(Port, OpId, Io)>,
    answers: Vec<(u64, IoResult)>,
    /// Reports of the array, and the number of notices.
    reports: Vec<crate::Report>,
    notices: u32,
    /// Commands so far, in words, those to superblocks left out.
    sent: Vec<String>,
    /// Members whose reads or writes fail.
    bad_reads: Vec<(usize, Lba)>,
    dead: Vec<usize>,
    requests: u64,
    /// The invariants are checked after each event, which takes the longer the more is cached.
    checks: bool,
    now: Nanos,
}

fn config(level: Level, members: usize) -> RaidConfig {
    RaidConfig { level, strip_sectors: STRIP, present: vec![true; members], ..RaidConfig::default() }
}

impl Bench {
    fn new(config: RaidConfig) -> Bench {
        Bench::over(config, true)
    }

    fn over(config: RaidConfig, synced: bool) -> Bench {
        Bench::sized(config, synced, MEMBER)
    }

    fn sized(config: RaidConfig, synced: bool, sectors: u64) -> Bench {
        let mut members: Vec<Memory> =
            config.present.iter().map(|_| Memory(vec![0; (sectors * 512) as usize])).collect();
        let mut all: Vec<Option<&mut dyn BlockDevice>> =
            members.iter_mut().map(|member| Some(member as &mut dyn BlockDevice)).collect();
        let made = create(&mut all, &config, *b"an array of test", synced).expect("made");
        for spare in 0..config.spares.len() {
            let mut device = Memory(vec![0; (sectors * 512) as usize]);
            offline::make_spare(&mut device, &made, 70 + spare as u64).expect("it fits");
            members.push(device);
        }
        if config.journal {
            members.push(Memory(vec![0; 4 << 20]));
        }
        Bench::start(config, Members(members)).expect("active")
    }

    fn start(config: RaidConfig, mut members: Members) -> Result<Bench, AssembleError> {
        let mut raid = RaidLayer::new(config);
        match raid.activate(&mut members) {
            Ok(()) => {}
            Err(error) => return Err(*error.downcast().expect("it is an array")),
        }
        Ok(Bench {
            raid,
            members,
            open: VecDeque::new(),
            answers: Vec::new(),
            reports: Vec::new(),
            notices: 0,
            sent: Vec::new(),
            bad_reads: Vec::new(),
            dead: Vec::new(),
            requests: 0,
            checks: true,
            now: Nanos::ZERO,
        })
    }

    fn handle(&mut self, event: Event) {
        let mut cx = Cx::default();
        self.raid.handle(event, cx.at(self.now));
        if self.checks {
            self.raid.check();
        }
        for command in cx.commands {
            match command {
                Command::Submit { port, op, io } => {
                    if let Some(extent) = io.extent().filter(|extent| extent.start.0 >= DATA_SECTOR) {
                        let row = (extent.start.0 - DATA_SECTOR) / 8;
                        let letter = &io.name()[..1];
                        self.sent.push(format!("{letter}{} {row}+{}", port.0, extent.sectors / 8));
                    }
                    self.open.push_back((port, op, io));
                }
                Command::Reply { id, result } => self.answers.push((id.0, result)),
                Command::Report(crate::Report::Notice) => self.notices += 1,
                Command::Report(report) => self.reports.push(report),
            }
        }
        self.raid.check_progress(self.now, !self.open.is_empty());
    }

    /// The clock moves to the time that the array has asked for.
    fn wait(&mut self) {
        self.now = self.now.max(self.raid.next_deadline().expect("it has asked for an alarm"));
        self.handle(Event::Wake);
    }

    /// Lets time go by. The array is woken at its deadlines, and only there.
    fn wait_for(&mut self, time: Nanos) {
        let end = self.now + time;
        while self.raid.next_deadline().is_some_and(|at| at <= end) {
            self.wait();
        }
        self.now = end;
    }

    fn ask(&mut self, io: Io) -> u64 {
        self.requests += 1;
        self.handle(Event::Request(Request { id: RequestId(self.requests), disk: 0, io }));
        self.requests
    }

    /// Writes blocks from a block of the array on.
    fn write(&mut self, block: u64, blocks: usize, byte: u8) -> u64 {
        let buf = Buf::copy_of(&vec![byte; blocks * BLOCK]);
        self.ask(Io::Write { at: Lba(block * 8), buf, durability: Durability::Volatile })
    }

    /// The oldest command returns.
    fn returns(&mut self) -> bool {
        let Some((port, op, io)) = self.open.pop_front() else { return false };
        let bad = io.extent().is_some_and(|extent| {
            let hit = |bad: &(usize, Lba)| bad.0 == port.0 && extent.contains(bad.1);
            matches!(io, Io::Read { .. }) && self.bad_reads.iter().any(hit)
        });
        if let (Io::Write { at, buf, .. }, false) = (&io, bad) {
            let end = *at + buf.len() as u64 / 512;
            self.bad_reads.retain(|(member, lba)| *member != port.0 || *lba < *at || *lba >= end);
        }
        let result = if bad || self.dead.contains(&port.0) {
            IoResult::err(io.take_buf(), IoError::new(ErrorKind::Medium))
        } else {
            self.members.run(port, io)
        };
        self.handle(Event::Completed { op, result });
        true
    }

    fn settle(&mut self) {
        while self.returns() {}
    }

    fn answer(&mut self, id: u64) -> IoResult {
        let index = self.answers.iter().position(|(other, _)| *other == id).expect("it is answered");
        self.answers.remove(index).1
    }

    fn flush(&mut self) -> Result<(), IoError> {
        let id = self.ask(Io::Flush);
        self.settle();
        self.answer(id).status
    }

    fn read(&mut self, block: u64, blocks: usize) -> Result<Vec<u8>, IoError> {
        let id = self.ask(Io::Read { at: Lba(block * 8), buf: Buf::zeroed(blocks * BLOCK) });
        self.settle();
        let result = self.answer(id);
        result.status.map(|()| result.buf.bytes().to_vec())
    }

    /// The commands since the last call, sorted.
    fn sent(&mut self) -> Vec<String> {
        let mut sent = std::mem::take(&mut self.sent);
        sent.sort();
        sent
    }

    /// Every parity block is what its row says.
    fn check_parity(&self) {
        let array = self.raid.array();
        for unit in 0..array.layout.units() {
            for row in 0..array.layout.rows {
                let block = |column: usize| {
                    let at = array.layout.member_lba(unit, row).bytes() as usize;
                    &self.members.0[array.layout.member(unit, column)].0[at..at + BLOCK]
                };
                let shape = array.layout.shape;
                for column in shape.parity_columns() {
                    let mut sum = vec![0; BLOCK];
                    for data in 0..shape.data {
                        let weight = parity::weight(column - shape.data, data);
                        parity::add_scaled(&mut sum, block(data), weight);
                    }
                    assert!(sum == block(column), "unit {unit}, row {row}, column {column}");
                }
            }
        }
    }

    fn stop(&mut self) {
        self.handle(Event::Control(crate::Control::Stop));
        self.settle();
        assert_eq!(self.reports, [crate::Report::Stopped]);
    }
}

#[test]
fn a_small_write_is_four_commands_when_it_goes_home_and_none_before() {
    let mut bench = Bench::new(config(Level::Raid5, 5));
    let id = bench.write(3, 1, 7);
    bench.answer(id).status.expect("it is in the cache");
    assert!(bench.open.is_empty());
    bench.flush().expect("flushed");
    assert_eq!(bench.sent(), ["r0 3+1", "r4 3+1", "w0 3+1", "w4 3+1"]);
    bench.check_parity();
    assert_eq!(bench.read(3, 1).expect("read"), [7; BLOCK]);
    assert!(bench.sent().is_empty(), "it is clean in the cache");
}

#[test]
fn a_whole_stripe_is_written_without_reading() {
    let mut bench = Bench::new(config(Level::Raid6, 5));
    bench.write(0, 48, 9);
    bench.flush().expect("flushed");
    assert_eq!(bench.sent(), ["w0 0+16", "w1 0+16", "w2 0+16", "w3 0+16", "w4 0+16"]);
    bench.check_parity();
}

#[test]
fn the_contiguity_transform_makes_one_command_of_several() {
    let rule = Contiguity { read: Strides::up_to(9), write: Strides::up_to(9) };
    for (contiguity, commands) in [(None, 12), (Some(rule), 4)] {
        let mut bench = Bench::new(RaidConfig { contiguity, ..config(Level::Raid5, 5) });
        [0, 4, 8].into_iter().for_each(|block| assert!(bench.write(block, 1, 5) > 0));
        bench.flush().expect("flushed");
        assert_eq!(bench.sent().len(), commands);
        bench.check_parity();
        assert_eq!(bench.read(1, 1).expect("read"), [0; BLOCK]);
    }
}

#[test]
fn a_parity_block_group_cache_destages_row_by_row() {
    let mut bench = Bench::new(RaidConfig { unit: CacheUnit::ParityBlockGroup, ..config(Level::Raid5, 3) });
    bench.write(0, 2, 5);
    bench.flush().expect("flushed");
    // On three members a reconstruct-write reads one block.
    assert_eq!(
        bench.sent(),
        ["r1 0+1", "r1 1+1", "w0 0+1", "w0 1+1", "w2 0+1", "w2 1+1"],
        "two units, no command for both"
    );
    bench.check_parity();
}

#[test]
fn marks_decide_when_and_the_least_recently_written_goes_first() {
    let unit_bytes = 2 * STRIP * 512;
    let marks = RaidConfig {
        cache_bytes: 4 * unit_bytes,
        memory: CacheMemory::Unit,
        when: WhenPolicy::HighLow,
        what: WhatPolicy::LeastRecentlyWritten,
        high_mark: 75,
        low_mark: 50,
        ..config(Level::Raid5, 3)
    };
    let mut bench = Bench::new(marks);
    let first = |stripe: u64| stripe * 2 * STRIP / 8;
    bench.write(first(1), 1, 1);
    bench.write(first(0), 1, 1);
    bench.write(first(1), 1, 2);
    assert!(bench.open.is_empty(), "two of four are dirty");
    bench.write(first(2), 1, 1);
    bench.settle();
    let array = bench.raid.array();
    assert_eq!(
        array.stripes.cache.dirty().iter().copied().collect::<Vec<_>>(),
        [1, 2],
        "stripe 0 was destaged"
    );
}

#[test]
fn writes_wait_for_room_and_for_the_lock() {
    let unit_bytes = 2 * STRIP * 512;
    let small = RaidConfig {
        cache_bytes: unit_bytes,
        memory: CacheMemory::Unit,
        when: WhenPolicy::WhenFull,
        ..config(Level::Raid5, 3)
    };
    let mut bench = Bench::new(small);
    bench.write(0, 1, 1);
    let second = bench.write(2 * STRIP / 8, 1, 2);
    let third = bench.write(1, 1, 3);
    assert!(bench.answers.iter().all(|(id, _)| *id != second), "there is room for one stripe");
    bench.settle();
    bench.answer(second).status.expect("written");
    bench.answer(third).status.expect("written");
    bench.flush().expect("flushed");
    for (block, byte) in [(0, 1), (1, 3), (2 * STRIP / 8, 2)] {
        assert_eq!(bench.read(block, 1).expect("read"), [byte; BLOCK]);
    }
    bench.check_parity();
}

#[test]
fn parts_of_blocks_are_filled_from_the_disk() {
    let mut bench = Bench::new(config(Level::Raid5, 4));
    bench.write(5, 1, 1);
    bench.flush().expect("flushed");
    let mut bench = Bench::start(config(Level::Raid5, 4), bench.members).expect("active");
    let buf = Buf::copy_of(&[2; 512]);
    bench.ask(Io::Write { at: Lba(5 * 8 + 3), buf, durability: Durability::Durable });
    bench.settle();
    bench.answer(1).status.expect("durable");
    bench.check_parity();
    let block = bench.read(5, 1).expect("read");
    assert_eq!((block[3 * 512 - 1], block[3 * 512], block[4 * 512]), (1, 2, 1));
}

#[test]
fn what_missing_members_had_is_computed_and_written_around() {
    for (level, members, missing) in [(Level::Raid5, 4, vec![1]), (Level::Raid6, 5, vec![1, 3])] {
        let mut bench = Bench::new(config(level, members));
        let blocks = 4 * 16 * (members as u64 - level.parity() as u64);
        for block in 0..blocks {
            bench.write(block, 1, block as u8);
        }
        bench.stop();
        let mut present = vec![true; members];
        missing.iter().for_each(|&role| present[role] = false);
        let mut role = 0;
        bench.members.0.retain(|_| {
            role += 1;
            present[role - 1]
        });
        let degraded = RaidConfig { present, ..config(level, members) };
        let mut bench = Bench::start(degraded.clone(), bench.members).expect("it can do without them");
        for block in 0..blocks {
            assert_eq!(bench.read(block, 1).expect("computed"), [block as u8; BLOCK], "{level:?} {block}");
        }
        for block in (0..blocks).step_by(7) {
            bench.write(block, 1, 200);
        }
        bench.flush().expect("flushed");
        bench.stop();
        let mut bench = Bench::start(degraded, bench.members).expect("again");
        for block in 0..blocks {
            let byte = if block % 7 == 0 { 200 } else { block as u8 };
            assert_eq!(bench.read(block, 1).expect("computed"), [byte; BLOCK], "{level:?} {block}");
        }
    }
}

#[test]
fn a_bad_sector_is_computed_and_written_again() {
    let mut bench = Bench::new(config(Level::Raid5, 4));
    bench.write(0, 48, 3);
    bench.stop();
    let mut bench = Bench::start(config(Level::Raid5, 4), bench.members).expect("active");
    bench.bad_reads.push((0, Lba(DATA_SECTOR + 4 * 8)));
    assert_eq!(bench.read(0, 16).expect("computed"), [3; 16 * BLOCK]);
    assert!(bench.bad_reads.is_empty(), "it was written again");
    let statistics = *bench.raid.statistics();
    assert_eq!((statistics.sectors_repaired, statistics.member_failures), (1, 0));
    bench.check_parity();
}

#[test]
fn a_member_that_cannot_write_has_failed_and_is_not_taken_back() {
    let mut bench = Bench::new(config(Level::Raid5, 4));
    bench.write(0, 48, 3);
    bench.flush().expect("flushed");
    bench.dead.push(2);
    bench.write(32, 1, 4);
    bench.flush().expect("the parity makes up for it");
    assert_eq!(bench.raid.status(Nanos::ZERO).to_json()["failed_members"], serde_json::json!([2]));
    assert_eq!(bench.read(32, 1).expect("read"), [4; BLOCK]);
    // It comes back as it was, and what it has is old.
    bench.stop();
    let mut bench = Bench::start(config(Level::Raid5, 4), bench.members).expect("active");
    assert_eq!(bench.read(32, 1).expect("computed"), [4; BLOCK]);
    // A second one is too many: errors, and no wrong data.
    bench.dead.push(0);
    let error = bench.read(1, 1).map(drop).expect_err("two of four are gone");
    assert_eq!(error.kind, ErrorKind::Medium);
    bench.write(16, 1, 9);
    bench.flush().expect_err("it cannot be made safe");
    assert_eq!(bench.raid.status(Nanos::ZERO).to_json()["state"], "broken");
}

#[test]
fn members_that_do_not_belong_are_refused() {
    let refused = |change: &dyn Fn(&mut RaidConfig, &mut Members)| {
        let mut bench = Bench::new(config(Level::Raid5, 4));
        bench.write(0, 1, 1);
        bench.stop();
        let (mut config, mut members) = (config(Level::Raid5, 4), bench.members);
        change(&mut config, &mut members);
        Bench::start(config, members).err().expect("refused")
    };
    let error = refused(&|_, members| members.0.swap(1, 2));
    assert_eq!(error, AssembleError::OtherRole { place: 1, role: 2 });
    let error = refused(&|_, members| members.0[3].0.fill(0));
    let wrong = vec![(ArraySuperblockError::NoMagic, vec![3])];
    assert_eq!(error, AssembleError::Unknown { wrong, others: Others::MakeUp });
    let error = refused(&|config, _| config.strip_sectors = 8);
    assert!(matches!(error, AssembleError::Described { strip_sectors: 128, grows: false, .. }), "{error}");
    let error = refused(&|config, members| {
        config.present = vec![true, false, true, false];
        members.0.remove(3);
        members.0.remove(1);
    });
    assert_eq!(error, AssembleError::TooManyFailed { roles: vec![1, 3], parity: 1 });
    let error = refused(&|_, members| {
        let other = Bench::new(config(Level::Raid5, 4)).members;
        let mut superblock = ArraySuperblock::read(&mut Memory(other.0[0].0.clone())).expect("made").0;
        superblock.uuid = *b"another array!!!";
        superblock.generation = 9;
        let identity = superblock.identity(0, 0);
        members.0[0].run(superblock.write(identity));
    });
    assert_eq!(error, AssembleError::Foreign(0));
}

#[test]
fn parity_in_doubt_is_computed_anew_and_not_trusted_without_a_member() {
    let five = config(Level::Raid5, 5);
    let mut bench = Bench::over(five.clone(), false);
    // What is on the members of a new array fits no parity.
    for (index, member) in bench.members.0.iter_mut().enumerate() {
        member.0[(DATA_SECTOR * 512) as usize..].fill(index as u8 + 1);
    }
    bench.write(40, 1, 77);
    bench.flush().expect("flushed");
    let mut alone = Bench::start(five.clone(), bench.members).expect("it was not stopped");
    assert_eq!(alone.raid.status(Nanos::ZERO).to_json()["state"], "resyncing");
    alone.read(0, 1).expect("read");
    alone.settle();
    assert_eq!(alone.raid.status(Nanos::ZERO).to_json()["state"], "good");
    alone.check_parity();
    alone.write(41, 1, 78);
    alone.flush().expect("flushed");
    // A crash: the superblocks say that writes were under way.
    let mut members = alone.members;
    members.0.remove(0);
    let mut degraded = RaidConfig { present: vec![false, true, true, true, true], ..five };
    let left = || Members(members.0.iter().map(|member| Memory(member.0.clone())).collect());
    let error = Bench::start(degraded.clone(), left()).err().expect("refused");
    assert!(matches!(&error, AssembleError::InDoubt { lacking, .. } if *lacking == [0]), "{error}");
    degraded.accept_damage = true;
    let mut bench = Bench::start(degraded, left()).expect("on the user's word");
    assert_eq!(bench.read(41, 1).expect("read"), [78; BLOCK]);
}

#[test]
fn a_start_asks_for_the_journal_where_that_is_not_there() {
    let with_journal = RaidConfig { journal: true, ..config(Level::Raid5, 5) };
    let mut bench = Bench::new(with_journal.clone());
    bench.write(40, 1, 77);
    bench.flush().expect("flushed");
    // A crash before all of the parity was computed: no journal makes up for that.
    let mut members = bench.members;
    for member in &mut members.0[..5] {
        let (newest, identity) = ArraySuperblock::read(member).expect("made");
        let (generation, in_doubt) = (newest.generation + 1, Bitmap::full(1));
        assert!(newest.active && newest.journaled);
        let crashed = ArraySuperblock { generation, in_doubt, ..newest };
        member.run(crashed.write(identity)).status.expect("written");
    }
    members.0.remove(0);
    let refusal = |journal: bool| {
        let present = vec![false, true, true, true, true];
        let degraded = RaidConfig { present, journal, journal_given_up: !journal, ..with_journal.clone() };
        let there = members.0.iter().take(4 + usize::from(journal));
        let left = Members(there.map(|member| Memory(member.0.clone())).collect());
        Bench::start(degraded, left).err().expect("the parity is in doubt")
    };
    for journal in [true, false] {
        let (lacking, absent) = (vec![0], vec![0]);
        let lacks_journal = !journal;
        let expected =
            AssembleError::InDoubt { in_doubt: 1, regions: 1, region: 0, lacking, absent, lacks_journal };
        assert_eq!(refusal(journal), expected);
    }
}

#[test]
fn a_journal_makes_writes_whole_that_a_crash_has_cut_short() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        let with_journal = RaidConfig { journal: true, ..config(level, members) };
        let data = members - level.parity();
        for cut in 0..20 {
            let mut bench = Bench::new(with_journal.clone());
            bench.write(0, 16 * data, 1);
            bench.flush().expect("flushed");
            bench.write(0, 1, 2);
            bench.write(17, 3, 3);
            bench.ask(Io::Flush);
            for _ in 0..cut {
                bench.returns();
            }
            // The server dies; the member with the first block is lost with it.
            let mut left = bench.members;
            left.0.remove(0);
            let mut present = vec![true; members];
            present[0] = false;
            let mut bench =
                Bench::start(RaidConfig { present, ..with_journal.clone() }, left).expect("no doubt is left");
            for block in 1..16 {
                let found = bench.read(block, 1).expect("computed");
                assert_eq!(found, [1; BLOCK], "{level:?}: nobody wrote block {block}, cut after {cut}");
            }
            let found = bench.read(0, 1).expect("computed");
            assert!(found == [1; BLOCK] || found == [2; BLOCK], "old or new");
        }
    }
}

#[test]
fn the_wrong_journal_is_refused() {
    let with_journal = RaidConfig { journal: true, ..config(Level::Raid5, 4) };
    let mut bench = Bench::new(with_journal.clone());
    bench.write(0, 1, 1);
    bench.flush().expect("flushed");
    let mut members = bench.members;
    members.0[4].0.fill(0);
    let left = || Members(members.0.iter().map(|member| Memory(member.0.clone())).collect());
    let error = Bench::start(with_journal.clone(), left()).err().expect("refused");
    assert_eq!(error, AssembleError::Replay(ReplayError::NotThis));
    let accepts = RaidConfig { accept_damage: true, ..with_journal.clone() };
    let mut bench = Bench::start(accepts, left()).expect("on the user's word");
    assert_eq!(bench.raid.status(Nanos::ZERO).to_json()["state"], "resyncing");
    bench.settle();
    bench.check_parity();
    assert_eq!(bench.read(0, 1).expect("read"), [1; BLOCK]);
    // And with it from then on.
    bench.write(1, 1, 2);
    bench.flush().expect("flushed");
    let mut bench = Bench::start(with_journal.clone(), bench.members).expect("it has the records again");
    assert_eq!(bench.read(1, 1).expect("read"), [2; BLOCK]);
    let mut bench = Bench::new(with_journal.clone());
    bench.members.0[4].0[..512].fill(b'x');
    let error = Bench::start(with_journal.clone(), bench.members).err().expect("refused");
    assert!(matches!(error, AssembleError::ForeignJournal), "{error}");
    let mut bench = Bench::new(with_journal.clone());
    bench.members.0[4].0.truncate(64 << 10);
    let error = Bench::start(with_journal, bench.members).err().expect("refused");
    assert!(matches!(error, AssembleError::JournalTooSmall { .. }), "{error}");
}

#[test]
fn an_administrator_fails_a_member_that_the_others_make_up_for() {
    let fail = |role| ArrayCommand::Fail { role };
    let mut bench = Bench::new(config(Level::Raid5, 4));
    assert_eq!(bench.tell(fail(4)), Err(CommandError::NoMember { role: 4, members: 4 }));
    assert_eq!(bench.tell(fail(2)), Ok(()));
    bench.settle();
    assert_eq!(bench.raid.status(bench.now).to_json()["failed_members"], serde_json::json!([2]));
    assert_eq!(bench.tell(fail(2)), Err(CommandError::HasFailed(2)));
    assert_eq!(bench.tell(fail(1)), Err(CommandError::NotSpared(1)));
    let mut unsynced = Bench::over(config(Level::Raid5, 4), false);
    assert_eq!(unsynced.tell(fail(1)), Err(CommandError::Resyncing));
}

/// Deep queues shorten seeks, as long as no client waits for them and they carry little.
#[test]
fn a_flush_alone_brings_home_more_sparse_units_at_a_time() {
    let destages = |blocks: usize, reads: bool| {
        let mut bench =
            Bench::new(RaidConfig { destage_depth: 1, flush_depth: 3, ..config(Level::Raid5, 4) });
        (0..4).for_each(|stripe| {
            bench.write(48 * stripe, blocks, 1);
        });
        if reads {
            bench.ask(Io::Read { at: Lba((144 + 40) * 8), buf: Buf::zeroed(BLOCK) });
        }
        bench.ask(Io::Flush);
        let before = bench.raid.array().stripes.destaging.running();
        if reads {
            bench.returns();
        }
        let after = bench.raid.array().stripes.destaging.running();
        bench.settle();
        assert_eq!(
            (bench.raid.array().stripes.cache.dirty().len(), bench.raid.array().stripes.destaging.blocks()),
            (0, 0)
        );
        bench.check_parity();
        (before, after)
    };
    assert_eq!(destages(1, false), (3, 3));
    assert_eq!(destages(1, true), (1, 3), "a client reads");
    assert_eq!(destages(12, false), (1, 1), "a quarter of a stripe is not little");
}
