//! Members that were away and come back: what they are given, and when they are not taken for what they were.

use super::passes::byte_of;
use super::*;
use crate::raid::away::Away;
use crate::raid::bitmap::Bitmap;
use crate::raid::status::Findings;
use crate::raid::superblock::{COPY_SECTORS, LostBlock};

/// A region for each of the four stripes.
fn by_stripes(level: Level, members: usize) -> RaidConfig {
    RaidConfig { region_bytes: 1, ..config(level, members) }
}

fn device_of(bench: &mut Bench, port: usize) -> Memory {
    std::mem::replace(&mut bench.members.0[port], Memory(Vec::new()))
}

impl Bench {
    fn fail_and_remove(&mut self, role: usize) -> Memory {
        self.tell(ArrayCommand::Fail { role }).expect("it can be spared");
        self.settle();
        self.tell(ArrayCommand::Remove { port: Port(role) }).expect("it has failed");
        device_of(self, role)
    }

    fn give_back(&mut self, role: usize, device: Memory) {
        let geometry = device.geometry();
        self.members.0.push(device);
        let port = Port(self.members.0.len() - 1);
        let id = 1000 + port.0 as u64;
        self.tell(ArrayCommand::Add { port, geometry, seat: Seat::Member(role), id }).expect("there is room");
    }

    /// A block of a stripe is written and destaged.
    fn change(&mut self, stripe: u64, byte: u8) {
        let blocks = self.array().layout.stripe_sectors() / 8;
        self.write(stripe * blocks, 1, byte);
        self.flush().expect("the parity makes up for who is away");
    }

    /// Every block is what was written last: some stripes begin with another block.
    fn check_changed(&mut self, changed: &[(u64, u8)]) {
        let blocks = self.array().layout.stripe_sectors() / 8;
        for block in 0..self.array().layout.sectors() / 8 {
            let change = changed.iter().rev().find(|(stripe, _)| block == stripe * blocks);
            let byte = change.map_or(byte_of(block), |(_, byte)| *byte);
            assert_eq!(self.read(block, 1).expect("read"), [byte; BLOCK], "block {block}");
        }
    }

    /// The stripes of which something was written to a port since the last time.
    fn stripes_written(&mut self, port: usize) -> Vec<u64> {
        let letter = format!("w{port} ");
        let sent = self.sent();
        let rows = sent.iter().filter_map(|command| command.strip_prefix(&letter)?.split_once('+'));
        let number = |text: &str| text.parse::<u64>().expect("a number");
        let stripes =
            rows.flat_map(|(row, rows)| number(row) / 16..(number(row) + number(rows)).div_ceil(16));
        let mut stripes: Vec<u64> = stripes.collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes
    }

    fn newest(&self) -> ArraySuperblock {
        self.raid.array().recorder.recorded().clone()
    }
}

#[test]
fn a_member_that_comes_back_is_given_what_it_has_missed_and_no_more() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        for (role, journal) in (0..members).flat_map(|role| [(role, false), (role, true)]) {
            let mut bench = Bench::filled(RaidConfig { journal, ..by_stripes(level, members) });
            let device = bench.fail_and_remove(role);
            bench.change(2, 200);
            bench.change(3, 201);
            bench.sent();
            bench.give_back(role, device);
            bench.rest();
            assert!(bench.is_good(), "{}", bench.status());
            let port = bench.members.0.len() - 1;
            assert_eq!(bench.stripes_written(port), [2, 3], "{level:?}, member {role}, journal: {journal}");
            let strip_bytes = STRIP * 512;
            assert_eq!(
                bench.status()["last_return"],
                serde_json::json!({ "role": role, "filled_bytes": 2 * strip_bytes, "member_bytes": 4 * strip_bytes })
            );
            assert!(bench.newest().away.is_empty() && bench.newest().away.missed.is_empty());
            bench.check_changed(&[(2, 200), (3, 201)]);
            assert_eq!(bench.scrub(false), Findings::default());
            // It is a member like all others: it fails again, and comes back again.
            bench.tell(ArrayCommand::Fail { role }).expect("it can be spared");
            bench.settle();
            bench.tell(ArrayCommand::Remove { port: Port(port) }).expect("it has failed");
            bench.change(0, 202);
            bench.sent();
            let device = device_of(&mut bench, port);
            bench.give_back(role, device);
            bench.rest();
            assert_eq!(bench.stripes_written(port + 1), [0]);
            bench.check_changed(&[(0, 202), (2, 200), (3, 201)]);
            assert_eq!(bench.scrub(false), Findings::default());
        }
    }
}

#[test]
fn nothing_is_written_while_a_member_is_away_before_its_mark_is_durable_on_all_others() {
    for journal in [false, true] {
        let mut bench = Bench::filled(RaidConfig { journal, ..by_stripes(Level::Raid5, 4) });
        drop(bench.fail_and_remove(1));
        for stripe in 0..4 {
            bench.write(stripe * 48, 1, 7);
            let flush = bench.ask(Io::Flush);
            while bench.answers.iter().all(|(id, _)| *id != flush) {
                for (port, _, io) in &bench.open {
                    let Io::Write { at, .. } = io else { continue };
                    if port.0 > 3 || at.0 < DATA_SECTOR {
                        continue;
                    }
                    let stripe = (at.0 - DATA_SECTOR) / STRIP;
                    for role in [0, 2, 3] {
                        let found = ArraySuperblock::read(&mut Memory(bench.members.0[role].0.clone()));
                        let away = found.expect("a member").0.away;
                        assert!(
                            away.missed.contains(stripe),
                            "member {role} does not know of stripe {stripe}"
                        );
                    }
                }
                // Superblocks come last.
                let is_superblock =
                    |(_, _, io): &(Port, OpId, Io)| matches!(io, Io::Write { at, .. } if at.0 < 32);
                let other = |command: &(Port, OpId, Io)| command.0 == Port(4) || !is_superblock(command);
                if let Some(index) = bench.open.iter().position(other) {
                    let command = bench.open.remove(index).expect("it is there");
                    bench.open.push_front(command);
                }
                assert!(bench.returns(), "it goes on");
            }
        }
    }
}

#[test]
fn what_was_under_way_when_a_member_failed_is_missed() {
    for failing in [false, true] {
        let mut bench = Bench::filled(by_stripes(Level::Raid5, 4));
        bench.write(2 * 48, 48, 99);
        bench.ask(Io::Flush);
        let is_write = |(port, _, io): &(Port, OpId, Io)| {
            port.0 == 1 && matches!(io, Io::Write { at, .. } if at.0 >= DATA_SECTOR)
        };
        while !bench.open.iter().any(is_write) {
            assert!(bench.returns(), "it is destaged");
        }
        if failing {
            bench.dead.push(1);
        } else {
            bench.tell(ArrayCommand::Fail { role: 1 }).expect("it can be spared");
        }
        bench.settle();
        assert_eq!(bench.newest().away.missed.iter().collect::<Vec<_>>(), [2]);
        bench.tell(ArrayCommand::Remove { port: Port(1) }).expect("it has failed");
        // The write to it was lost, whatever it said.
        let mut device = device_of(&mut bench, 1);
        let at = ((DATA_SECTOR + 2 * STRIP) * 512) as usize;
        device.0[at..at + (STRIP * 512) as usize].fill(0xdd);
        bench.dead.clear();
        bench.give_back(1, device);
        bench.rest();
        assert!(bench.is_good(), "{}", bench.status());
        assert_eq!(bench.scrub(false), Findings::default());
        assert_eq!(bench.read(2 * 48, 48).expect("read"), [99; 48 * BLOCK]);
    }
}

#[test]
fn a_member_that_was_missing_at_a_start_comes_back_by_what_was_written_since() {
    for journal in [false, true] {
        let config = RaidConfig { journal, ..by_stripes(Level::Raid5, 4) };
        let mut bench = Bench::filled(config.clone());
        bench.stop();
        let mut members = bench.members;
        let device = members.0.remove(2);
        let present = vec![true, true, false, true];
        let mut bench = Bench::start(RaidConfig { present, ..config }, members).expect("degraded");
        assert!(bench.newest().away.is_empty(), "nothing is written before there is something to write");
        bench.change(1, 200);
        bench.sent();
        bench.give_back(2, device);
        bench.rest();
        assert!(bench.is_good(), "{}", bench.status());
        let port = bench.members.0.len() - 1;
        assert_eq!(bench.stripes_written(port), [1]);
        bench.check_changed(&[(1, 200)]);
        assert_eq!(bench.scrub(false), Findings::default());
    }
}

/// The journal was replayed without it.
#[test]
fn a_member_that_was_missing_at_a_replay_lacks_what_that_wrote() {
    let config = RaidConfig { journal: true, ..by_stripes(Level::Raid5, 4) };
    let mut bench = Bench::filled(config.clone());
    bench.write(3 * 48, 48, 99);
    bench.ask(Io::Flush);
    while bench.sent.iter().all(|command| !command.starts_with("w1 48")) {
        assert!(bench.returns(), "it is destaged");
    }
    // The power goes: no write but the record has been made.
    let mut members = bench.members;
    let device = members.0.remove(1);
    let present = vec![true, false, true, true];
    let mut bench = Bench::start(RaidConfig { present, ..config }, members).expect("degraded");
    assert_eq!(bench.newest().away.missed.iter().collect::<Vec<_>>(), [3]);
    bench.give_back(1, device);
    bench.rest();
    assert!(bench.is_good(), "{}", bench.status());
    assert_eq!(bench.read(3 * 48, 48).expect("read"), [99; 48 * BLOCK]);
    assert_eq!(bench.scrub(false), Findings::default());
}

/// While a write elsewhere keeps older records from being given up, a member fails after one record, misses the next, and comes back. It
/// has what was written last, and a replay must not put back what the first record has for it.
#[test]
fn a_replay_does_not_put_older_blocks_on_a_member_that_has_come_back() {
    let config = RaidConfig { journal: true, ..by_stripes(Level::Raid5, 4) };
    let mut bench = Bench::filled(config.clone());
    let role = bench.array().layout.member(0, 0);
    let blocks = bench.array().layout.stripe_sectors() / 8;
    bench.write(3 * blocks, 1, 100);
    bench.ask(Io::Flush);
    // Behind the members there is the journal.
    let goes_home = |(port, _, io): &(Port, OpId, Io)| {
        let at_home = |at: &Lba| at.0 >= DATA_SECTOR + 3 * STRIP;
        port.0 < 4 && port.0 != role && matches!(io, Io::Write { at, .. } if at_home(at))
    };
    let held = loop {
        match bench.open.iter().position(goes_home) {
            Some(index) => break bench.open.remove(index).expect("it is there"),
            None => assert!(bench.returns(), "it is destaged"),
        }
    };
    bench.write(0, 1, 101);
    bench.ask(Io::Flush);
    bench.settle();
    let device = bench.fail_and_remove(role);
    bench.write(0, 1, 102);
    bench.ask(Io::Flush);
    bench.settle();
    bench.give_back(role, device);
    bench.settle();
    bench.open.push_back(held);
    bench.rest();
    assert!(bench.is_good(), "{}", bench.status());
    assert!(bench.newest().active, "the journal is needed still");
    // The power goes.
    let mut members = bench.members;
    members.0.swap_remove(role);
    let mut bench = Bench::start(config, members).expect("active");
    bench.check_changed(&[(3, 100), (0, 102)]);
    assert_eq!(bench.scrub(false), Findings::default());
}

/// A member fails between the plan of a write and its record, and the power goes before any superblock says so: it is used again.
#[test]
fn a_record_has_what_was_planned_for_a_member_that_failed_meanwhile() {
    let config = RaidConfig { journal: true, ..by_stripes(Level::Raid5, 4) };
    let mut bench = Bench::filled(config.clone());
    let role = bench.array().layout.member(0, 0);
    let blocks = bench.array().layout.stripe_sectors() / 8;
    bench.write(3 * blocks, 1, 100);
    bench.write(0, 1, 101);
    bench.ask(Io::Flush);
    while bench.array().statistics.journal_records == 0 {
        assert!(bench.returns(), "it is destaged");
    }
    // Behind the members there is the journal: while one record is written, the other waits.
    let journal = bench.open.iter().position(|(port, ..)| port.0 == 4).expect("it is written");
    let record = bench.open.remove(journal).expect("it is there");
    bench.settle();
    bench.tell(ArrayCommand::Fail { role }).expect("it can be spared");
    // No superblock is ever written.
    bench.open.clear();
    bench.open.push_back(record);
    bench.settle();
    assert_eq!(bench.array().statistics.journal_records, 2);
    let mut bench = Bench::start(config, bench.members).expect("active");
    assert!(bench.is_good(), "{}", bench.status());
    bench.check_changed(&[(3, 100), (0, 101)]);
    assert_eq!(bench.scrub(false), Findings::default());
}

/// A crash after any command of a return leaves nothing stale, and the return goes on or begins again.
#[test]
fn a_crash_while_a_member_comes_back_leaves_nothing_old() {
    let config = RaidConfig { journal: true, ..by_stripes(Level::Raid5, 4) };
    for cut in 0.. {
        let mut bench = Bench::filled(config.clone());
        let device = bench.fail_and_remove(1);
        bench.change(0, 200);
        bench.change(2, 201);
        bench.give_back(1, device);
        let mut more = true;
        for _ in 0..cut {
            bench.wait_for(Nanos::ZERO);
            more = bench.returns();
            if bench.array().recorder.lacks().is_some() && cut % 2 == 0 {
                // Beside the return, in a stripe that it lacks nothing of.
                bench.write(3 * 48, 1, 202);
                bench.ask(Io::Flush);
            }
        }
        let wrote = bench.read(3 * 48, 1).expect("read")[0];
        bench.flush().expect("flushed");
        let mut members = bench.members;
        members.0[1] = members.0.pop().expect("it is there");
        let mut bench = Bench::start(config.clone(), members).expect("it starts");
        let changed = [(0, 200), (2, 201), (3, wrote)];
        bench.check_changed(&changed);
        bench.rest();
        if !bench.is_good() {
            bench.tell(ArrayCommand::Remove { port: Port(1) }).expect("it has failed");
            let device = device_of(&mut bench, 1);
            bench.give_back(1, device);
            bench.rest();
        }
        assert!(bench.is_good(), "cut after {cut}: {}", bench.status());
        bench.check_changed(&changed);
        assert_eq!(bench.scrub(false), Findings::default(), "cut after {cut}");
        if !more {
            assert!(cut > 10, "it was cut somewhere");
            return;
        }
    }
}

#[test]
fn beside_a_return_what_the_member_has_is_kept_up_to_date_and_read_from_it() {
    let config = RaidConfig { pass_bytes: 1, ..by_stripes(Level::Raid5, 4) };
    let mut bench = Bench::filled(config);
    let device = bench.fail_and_remove(0);
    bench.change(1, 200);
    bench.give_back(0, device);
    while bench.array().recorder.lacks().is_none() {
        assert!(
            (0..4).all(|unit| bench.array().recorder.has_failed_at(0, unit)),
            "it is not recorded that it is back"
        );
        assert!(bench.returns(), "it comes back");
    }
    let gone = [0, 1, 2, 3].map(|unit| bench.array().recorder.has_failed_at(0, unit));
    assert_eq!(gone, [false, true, false, false]);
    bench.sent();
    // Member 0 has D0 of stripe 0 here.
    bench.write(0, 1, 201);
    bench.ask(Io::Flush);
    bench.settle();
    assert!(bench.sent().contains(&"w4 0+1".to_owned()), "it is written to");
    bench.rest();
    assert!(bench.is_good(), "{}", bench.status());
    bench.check_changed(&[(0, 201), (1, 200)]);
    assert_eq!(bench.scrub(false), Findings::default());
}

#[test]
fn what_is_under_way_without_a_member_when_it_is_back_is_filled() {
    let mut bench = Bench::filled(by_stripes(Level::Raid5, 4));
    let device = bench.fail_and_remove(0);
    bench.change(1, 200);
    // Its own block: D0 of stripe 0 is on member 0. The operation has read, and is to write, when it is recorded.
    bench.write(0, 1, 201);
    bench.ask(Io::Flush);
    bench.give_back(0, device);
    while bench.array().recorder.lacks().is_none() {
        let is_of_joining =
            |(_, _, io): &(Port, OpId, Io)| io.extent().is_none_or(|at| at.start.0 < DATA_SECTOR);
        let index = bench.open.iter().position(is_of_joining).expect("it comes back");
        let command = bench.open.remove(index).expect("it is there");
        bench.open.push_front(command);
        bench.returns();
    }
    bench.rest();
    assert!(bench.is_good(), "{}", bench.status());
    bench.check_changed(&[(0, 201), (1, 200)]);
    assert_eq!(bench.scrub(false), Findings::default());
}

#[test]
fn a_member_that_fails_while_it_comes_back_may_come_back_again() {
    let config = RaidConfig { journal: true, ..by_stripes(Level::Raid5, 4) };
    let mut bench = Bench::filled(config);
    let device = bench.fail_and_remove(1);
    bench.change(1, 200);
    bench.give_back(1, device);
    while bench.array().recorder.lacks().is_none() {
        assert!(bench.returns(), "it comes back");
    }
    let port = bench.members.0.len() - 1;
    bench.dead.push(port);
    bench.rest();
    bench.change(3, 201);
    assert_eq!(bench.status()["state"], "degraded");
    bench.dead.clear();
    bench.tell(ArrayCommand::Remove { port: Port(port) }).expect("it has failed");
    let device = device_of(&mut bench, port);
    bench.sent();
    bench.give_back(1, device);
    bench.rest();
    assert!(bench.is_good(), "{}", bench.status());
    assert_eq!(bench.stripes_written(port + 1), [1, 3]);
    bench.check_changed(&[(1, 200), (3, 201)]);
    assert_eq!(bench.scrub(false), Findings::default());
}

#[test]
fn where_nobody_knows_what_a_member_has_its_absence_is_not_listed() {
    let is_listed = |bench: &mut Bench| {
        bench.tell(ArrayCommand::Fail { role: 1 }).expect("it can be spared");
        bench.settle();
        !bench.newest().away.is_empty()
    };
    let mut bench = Bench::filled(by_stripes(Level::Raid5, 4));
    assert!(is_listed(&mut bench));
    // Blocks are lost.
    let mut bench = Bench::filled(by_stripes(Level::Raid5, 4));
    assert!(bench.array().recorder.lose(LostBlock { role: 2, block: 5 }));
    assert!(!is_listed(&mut bench));
    // A repair is not flushed.
    let mut bench = Bench::filled(RaidConfig { pass_bytes: 1, ..by_stripes(Level::Raid5, 4) });
    bench.tell(ArrayCommand::Scrub { repair: true }).expect("it is whole");
    assert!(!is_listed(&mut bench));
    // The parity was never computed.
    let mut bench = Bench::over(by_stripes(Level::Raid5, 4), false);
    bench.dead.push(1);
    bench.rest();
    assert!(bench.newest().failed == 0b10 && bench.newest().away.is_empty());
    // The parity may be wrong after a crash, and that is accepted.
    let config = by_stripes(Level::Raid5, 4);
    let mut bench = Bench::filled(config.clone());
    bench.write(0, 1, 7);
    bench.ask(Io::Flush);
    while bench.newest().in_doubt.is_empty() {
        assert!(bench.returns(), "it is recorded");
    }
    let mut members = bench.members;
    members.0.remove(1);
    let present = vec![true, false, true, true];
    let accepts = RaidConfig { accept_damage: true, present, ..config };
    let bench = Bench::start(accepts, members).expect("degraded");
    assert!(bench.newest().failed == 0b10 && bench.newest().away.is_empty());
}

#[test]
fn only_the_member_itself_with_what_it_had_is_taken_back() {
    let mut bench = Bench::filled(by_stripes(Level::Raid6, 5));
    let mut device = bench.fail_and_remove(1);
    bench.change(1, 200);
    let newest = bench.newest();
    let (own, identity) = ArraySuperblock::read(&mut device).expect("a member");
    assert_eq!(newest.returns(&own, identity), Some(1));
    let since = newest.away.members[0].since;
    assert_eq!(newest.returns(&ArraySuperblock { generation: since - 1, ..own.clone() }, identity), Some(1));
    // It has been in use since, alone or with others.
    assert_eq!(newest.returns(&ArraySuperblock { generation: since, ..own.clone() }, identity), None);
    assert_eq!(newest.returns(&ArraySuperblock { failed: 0b100, ..own.clone() }, identity), None);
    assert_eq!(
        newest.returns(&ArraySuperblock { uuid: *b"another array!!!", ..own.clone() }, identity),
        None
    );
    assert_eq!(newest.returns(&ArraySuperblock { member_sectors: STRIP, ..own.clone() }, identity), None);
    assert_eq!(newest.returns(&own, MemberIdentity { id: 5, ..identity }), None);
    assert_eq!(newest.returns(&own, MemberIdentity { role: None, ..identity }), None);
    assert_eq!(newest.returns(&own, MemberIdentity { role: Some(2), ..identity }), None);
    // It was being filled itself when it failed.
    let filled = Some(Rebuild { role: 1, sectors: STRIP });
    assert_eq!(newest.returns(&ArraySuperblock { rebuilding: filled, ..own.clone() }, identity), None);
    let lost = [(LostBlock { role: 2, block: 5 }, false)].into();
    assert_eq!(ArraySuperblock { lost, ..newest.clone() }.returns(&own, identity), None);
    // Somebody else has its role.
    let mut member_ids = newest.member_ids.clone();
    member_ids[1] = 5;
    assert_eq!(ArraySuperblock { member_ids, ..newest.clone() }.returns(&own, identity), None);
    let mut forgotten = newest;
    forgotten.away.forget(1);
    assert_eq!(forgotten.returns(&own, identity), None);
}

#[test]
fn another_device_in_its_place_or_one_that_went_on_elsewhere_is_filled_whole() {
    for elsewhere in [false, true] {
        let mut bench = Bench::filled(by_stripes(Level::Raid5, 4));
        let mut device = bench.fail_and_remove(1);
        bench.change(1, 200);
        if elsewhere {
            let (mut own, identity) = ArraySuperblock::read(&mut device).expect("a member");
            own.generation += 50;
            device.run(own.write(identity));
        } else {
            COPY_SECTORS.iter().for_each(|at| device.0[at.bytes() as usize..][..4096].fill(0));
        }
        bench.sent();
        bench.give_back(1, device);
        bench.rest();
        assert!(bench.is_good(), "{}", bench.status());
        let port = bench.members.0.len() - 1;
        assert_eq!(bench.stripes_written(port), [0, 1, 2, 3]);
        assert!(bench.status()["last_return"].is_null());
        assert_eq!(bench.newest().member_ids[1], 1000 + port as u64);
        bench.check_changed(&[(1, 200)]);
    }
}

#[test]
fn two_members_of_a_raid_6_come_back_one_after_the_other() {
    let mut bench = Bench::filled(by_stripes(Level::Raid6, 5));
    let first = bench.fail_and_remove(1);
    bench.change(0, 200);
    let second = bench.fail_and_remove(3);
    bench.change(2, 201);
    bench.give_back(1, first);
    bench.give_back(3, second);
    bench.rest();
    assert!(bench.is_good(), "{}", bench.status());
    bench.check_changed(&[(0, 200), (2, 201)]);
    assert_eq!(bench.scrub(false), Findings::default());
    assert_eq!(bench.raid.array().statistics.members_returned, 2);
}

/// A crash has left the next generation with the member that is away now: the others must not use the same number.
#[test]
fn a_member_with_an_update_of_its_own_is_not_taken_for_one_that_knows_the_newest() {
    let config = RaidConfig { journal: true, ..by_stripes(Level::Raid5, 4) };
    let mut bench = Bench::filled(config.clone());
    bench.stop();
    let mut members = bench.members;
    let mut device = members.0.remove(3);
    let (mut own, identity) = ArraySuperblock::read(&mut device).expect("a member");
    (own.generation, own.epoch, own.active, own.journaled) = (own.generation + 1, own.epoch + 1, true, true);
    device.run(own.write(identity));
    let present = vec![true, true, true, false];
    let mut bench = Bench::start(RaidConfig { present, ..config.clone() }, members).expect("degraded");
    bench.change(1, 200);
    let mut members = bench.members;
    members.0.insert(3, device);
    let mut bench = Bench::start(config, members).expect("active");
    assert_eq!(bench.status()["failed_members"], serde_json::json!([3]));
    bench.check_changed(&[(1, 200)]);
}

#[test]
fn neighbours_are_marked_with_a_tract_only_where_writes_are_everywhere() {
    let mut away = Away::default();
    away.mark(5, 2000);
    assert!(away.missed.is_empty(), "nobody is away");
    away.add(1, 11, 0, &Bitmap::default());
    let few = |away: &mut Away| (0..256).filter(|tract| away.mark(7 * tract, 2000)).count();
    assert_eq!((few(&mut away), few(&mut away)), (256, 0));
    assert_eq!(away.missed.iter().collect::<Vec<_>>(), (0..256).map(|tract| 7 * tract).collect::<Vec<_>>());
    away.mark(1999, 2000);
    assert_eq!(
        away.missed.iter().filter(|tract| *tract >= 1990).collect::<Vec<_>>(),
        (1992..2000).collect::<Vec<_>>()
    );
    assert_eq!(away.missed.len(), 264);
    // The last group is not whole.
    away.mark(2001, 2003);
    assert!(!away.missed.contains(2003) && away.missed.contains(2002));
}
