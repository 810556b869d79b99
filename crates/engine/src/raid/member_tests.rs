//! Tests the identity of members: refused members, spares that take over, and what a crash leaves of that.

use super::*;

/// A fresh array of four with so many spares, stopped.
fn stopped(spares: usize, journal: bool) -> (RaidConfig, Members) {
    let config = RaidConfig { spares: vec![true; spares], journal, ..config(Level::Raid5, 4) };
    let mut bench = Bench::new(config.clone());
    for block in 0..4 * 48 {
        bench.write(block, 1, block as u8);
    }
    bench.stop();
    (config, bench.members)
}

fn refused(config: RaidConfig, members: Members) -> AssembleError {
    Bench::start(config, members).err().expect("refused")
}

fn superblock(members: &Members, port: usize) -> (ArraySuperblock, MemberIdentity) {
    ArraySuperblock::read(&mut Memory(members.0[port].0.clone())).expect("it has one")
}

/// Puts a superblock on a device, newer than all others.
fn put(members: &mut Members, port: usize, change: impl FnOnce(&mut ArraySuperblock, &mut MemberIdentity)) {
    let (mut superblock, mut identity) = superblock(members, port);
    superblock.generation += 10;
    change(&mut superblock, &mut identity);
    members.0[port].run(superblock.write(identity)).status.expect("written");
}

/// Another device had the member's role, has failed, and is missing: the role has no member, whatever is in its place.
#[test]
fn a_member_that_was_replaced_by_one_that_failed_is_not_used_and_does_not_hinder_the_start() {
    let (config, mut members) = stopped(0, false);
    for port in 0..3 {
        put(&mut members, port, |superblock, _| (superblock.member_ids[3], superblock.failed) = (77, 0b1000));
    }
    let mut bench = Bench::start(config, members).expect("the others make up for it");
    let status = bench.raid.status(Nanos::ZERO).to_json();
    assert_eq!((&status["state"], &status["failed_members"]), (&"degraded".into(), &serde_json::json!([3])));
    assert_eq!(
        bench.notes(),
        [ArrayNote::Unused(Unused { seat: Seat::Member(3), why: UnusedWhy::OutOfDate })]
    );
    for block in 0..48 {
        assert_eq!(bench.read(block, 1).expect("computed"), [block as u8; BLOCK], "block {block}");
    }
}

#[test]
fn an_array_with_a_journal_is_not_started_without_it_unless_that_is_given_up() {
    let (config, members) = stopped(0, true);
    let four = || Members(members.0[..4].iter().map(|member| Memory(member.0.clone())).collect());
    let without = RaidConfig { journal: false, ..config };
    assert_eq!(refused(without.clone(), four()), AssembleError::NoJournal);
    let given_up = RaidConfig { journal_given_up: true, ..without.clone() };
    let mut bench = Bench::start(given_up, four()).expect("the user wants it");
    bench.write(0, 1, 9);
    bench.stop();
    Bench::start(without, bench.members).expect("it has none any more");
}

#[test]
fn devices_that_do_not_belong_are_refused_with_the_reason() {
    let (config, mut members) = stopped(1, false);
    members.0.swap(1, 2);
    assert_eq!(refused(config, members), AssembleError::OtherRole { place: 1, role: 2 });

    let (config, mut members) = stopped(1, false);
    put(&mut members, 2, |superblock, _| superblock.uuid = *b"another array!!!");
    assert_eq!(refused(config, members), AssembleError::Foreign(2));

    let (config, mut members) = stopped(1, false);
    put(&mut members, 0, |superblock, _| superblock.member_ids[3] = 77);
    assert_eq!(refused(config, members), AssembleError::OutOfDate(3));

    let (config, mut members) = stopped(1, false);
    members.0[1] = Memory(members.0[4].0.clone());
    members.0[4].0[..32 * 512].fill(0);
    assert_eq!(refused(config, members), AssembleError::IsSpare(1));

    let (config, mut members) = stopped(1, false);
    let sectors = (superblock(&members, 0).0.member_sectors + DATA_SECTOR - 8) * 512;
    members.0[1].0.truncate(sectors as usize);
    assert_eq!(refused(config, members), AssembleError::Smaller { role: 1, sectors: 2552, needed: 2560 });

    let (config, mut members) = stopped(2, false);
    members.0[5].0 = members.0[4].0.clone();
    assert_eq!(refused(config, members), AssembleError::NamedTwice(1));

    let (config, mut members) = stopped(1, false);
    members.0[4].0 = members.0[2].0.clone();
    assert_eq!(refused(config, members), AssembleError::MemberAndSpare { member: 2, spare: 0 });
}

type Spoil = fn(&mut Members);

#[test]
fn where_a_spare_has_a_role_it_does_not_matter_what_is_in_the_place_of_the_member() {
    let spare = |_: &mut Members| {};
    let blank = |members: &mut Members| members.0[1].0[..32 * 512].fill(0);
    let foreign = |members: &mut Members| {
        put(members, 1, |superblock, _| superblock.uuid = *b"another array!!!");
    };
    let cases: [Spoil; 3] = [spare, blank, foreign];
    for spoil in cases {
        let (config, mut members) = stopped(1, false);
        members.0.swap(1, 4);
        spoil(&mut members);
        let mut bench = Bench::start(config, members).expect("all members are there");
        let status = bench.status();
        assert_eq!(status["state"], "good", "{status}");
        let taken = ArrayNote::SpareTaken { spare: 0, role: 1 };
        assert_eq!(bench.notes()[0], taken);
        for block in 0..4 * 48 {
            assert_eq!(bench.read(block, 1).expect("read"), [block as u8; BLOCK], "block {block}");
        }
        // It fails in its turn, and the stack file is right as it is.
        bench.tell(ArrayCommand::Fail { role: 1 }).expect("it can be spared");
        bench.rest();
        assert!(!bench.notes().contains(&taken), "{:?}", bench.notes());
    }
}

#[test]
fn a_spare_that_cannot_be_used_is_named_and_keeps_nobody_from_starting() {
    let foreign = |members: &mut Members| {
        put(members, 4, |superblock, _| superblock.uuid = *b"another array!!!");
    };
    let blank = |members: &mut Members| members.0[4].0[..32 * 512].fill(0);
    let small = |members: &mut Members| {
        let sectors = superblock(members, 0).0.member_sectors + DATA_SECTOR - 8;
        members.0[4].0.truncate(sectors as usize * 512);
    };
    let cases: [(Spoil, UnusedWhy); 3] = [
        (foreign, UnusedWhy::Foreign),
        (blank, UnusedWhy::Unknown(ArraySuperblockError::NoMagic)),
        (small, UnusedWhy::TooSmall { sectors: 2552, needed: 2560 }),
    ];
    for (spoil, why) in cases {
        let (config, mut members) = stopped(1, false);
        spoil(&mut members);
        let spare = members.0[4].0.clone();
        let mut bench = Bench::start(config, members).expect("its members are there");
        assert_eq!(bench.notes(), [ArrayNote::Unused(Unused { seat: Seat::Spare(0), why })]);
        bench.tell(ArrayCommand::Fail { role: 1 }).expect("it can be spared");
        bench.rest();
        assert_eq!(bench.status()["state"], "degraded");
        assert_eq!(bench.members.0[4].0, spare, "nothing is written there");
        assert_eq!(bench.read(5, 1).expect("read"), [5; BLOCK]);
    }
}

#[test]
fn a_spare_takes_the_role_of_a_member_that_fails_before_anything_is_acknowledged() {
    let (config, members) = stopped(1, false);
    let mut bench = Bench::start(config, members).expect("active");
    bench.dead.push(2);
    bench.write(32, 1, 200);
    let flush = bench.ask(Io::Flush);
    while bench.answers.iter().all(|(id, _)| *id != flush) {
        assert!(bench.returns(), "the parity makes up for it");
    }
    let id = superblock(&bench.members, 4).1.id;
    for port in [0, 1, 3, 4] {
        let (found, identity) = superblock(&bench.members, port);
        assert_eq!((found.member_ids[2], found.failed), (id, 0b100), "port {port}");
        assert_eq!(found.rebuilding.map(|rebuild| rebuild.role), Some(2), "port {port}");
        assert_eq!(identity.role, Some(if port == 4 { 2 } else { port }));
    }
    assert_eq!(bench.read(32, 1).expect("computed"), [200; BLOCK]);
    assert_eq!(bench.notes(), [ArrayNote::SpareTaken { spare: 0, role: 2 }]);
}

#[test]
fn a_member_that_is_missing_is_replaced_without_being_asked() {
    let (config, mut members) = stopped(1, false);
    members.0.remove(1);
    let present = vec![true, false, true, true];
    let mut bench = Bench::start(RaidConfig { present, ..config }, members).expect("degraded");
    assert_eq!(bench.raid.next_deadline(), Some(Nanos::ZERO));
    bench.wait_for(Nanos::ZERO);
    assert_eq!(bench.raid.array().recorder.rebuilding(), Some(Rebuild { role: 1, sectors: 0 }));
}

/// A spare had the role and failed, and a device was added in the member's own place: a crash before it has the role keeps nothing from
/// starting, although the spare is named still. The crash explorer found this.
#[test]
fn a_device_in_the_place_of_a_spare_that_failed_takes_its_role() {
    let (config, mut members) = stopped(1, false);
    let id = superblock(&members, 4).1.id;
    for port in [0, 1, 2, 4] {
        put(&mut members, port, |found, identity| {
            (found.member_ids[3], found.failed, found.generation) = (id, 0b1000, 1000);
            identity.role = identity.role.or(Some(3));
        });
    }
    put(&mut members, 3, |_, identity| *identity = MemberIdentity { id: 77, role: None, ..*identity });
    let mut bench = Bench::start(config, members).expect("it starts");
    bench.rest();
    assert!(bench.is_good(), "{}", bench.status());
    assert!((0..4).all(|role| bench.raid.array().members.holder(role).is_none()));
    for block in 0..4 * 48 {
        assert_eq!(bench.read(block, 1).expect("read"), [block as u8; BLOCK], "block {block}");
    }
}

/// All that is left of an array are devices that came as spares: they are its members now. The crash explorer found this.
#[test]
fn spares_that_have_taken_all_roles_are_the_array() {
    let (config, mut members) = stopped(3, false);
    let ids = [4, 5, 6].map(|port| superblock(&members, port).1.id);
    let data = DATA_SECTOR as usize * 512;
    for role in 0..3 {
        let content = members.0[role].0[data..].to_vec();
        members.0[4 + role].0[data..].copy_from_slice(&content);
        put(&mut members, 4 + role, |superblock, identity| {
            (superblock.generation, superblock.failed) = (1000, 0b1000);
            superblock.member_ids[..3].copy_from_slice(&ids);
            identity.role = Some(role);
        });
    }
    members.0.drain(..4);
    let mut bench = Bench::start(RaidConfig { present: vec![false; 4], ..config }, members).expect("active");
    for block in 0..4 * 48 {
        assert_eq!(bench.read(block, 1).expect("read"), [block as u8; BLOCK], "block {block}");
    }
}

/// The writes of the superblocks by which a spare takes a role are cut short after each of them.
#[test]
fn a_crash_while_a_spare_takes_a_role_leaves_it_free_or_in_that_role() {
    for cut in 0..=4 {
        let (config, members) = stopped(1, true);
        let mut bench = Bench::start(config.clone(), members).expect("active");
        let mut left = cut;
        bench.write(32, 1, 200);
        bench.flush().expect("flushed");
        bench.dead.push(2);
        bench.write(33, 1, 201);
        bench.ask(Io::Flush);
        let takes = |bench: &Bench| bench.raid.array().members.holder(2).is_some();
        while !takes(&bench) {
            assert!(bench.returns(), "it never takes over");
        }
        while left > 0 && bench.returns() {
            left -= 1;
        }
        let mut bench = Bench::start(config, bench.members).expect("whatever was written");
        for block in (0..4 * 48).filter(|block| *block != 33) {
            let byte = if block == 32 { 200 } else { block as u8 };
            assert_eq!(bench.read(block, 1).expect("read"), [byte; BLOCK], "block {block}, cut after {cut}");
        }
    }
}

/// Below the checkpoint a member that is being rebuilt is one like all others, and above it has nothing.
#[test]
fn a_rebuild_goes_on_where_it_was() {
    let (config, mut members) = stopped(1, false);
    let id = superblock(&members, 4).1.id;
    // Half of it is rebuilt, and the rest is nonsense.
    let half = ((DATA_SECTOR + 2 * STRIP) * 512) as usize;
    let (old, spare) = (members.0[1].0[..half].to_vec(), &mut members.0[4].0);
    spare[DATA_SECTOR as usize * 512..half].copy_from_slice(&old[DATA_SECTOR as usize * 512..]);
    spare[half..].fill(0xee);
    put(&mut members, 0, |superblock, _| {
        superblock.failed = 0b10;
        superblock.member_ids[1] = id;
        superblock.rebuilding = Some(Rebuild { role: 1, sectors: 2 * STRIP });
    });
    members.0[1].0[half / 2..].fill(0xdd);
    let mut bench = Bench::start(config, members).expect("active");
    assert_eq!(bench.raid.status(Nanos::ZERO).to_json()["state"], "rebuilding");
    assert_eq!(bench.raid.status(Nanos::ZERO).to_json()["rebuilt_percent"], 50.0);
    let array = bench.raid.array();
    assert_eq!([0, 1, 2, 3].map(|unit| array.recorder.has_failed_at(1, unit)), [false, false, true, true]);
    // D1 of stripe 0, and D3 of stripe 2.
    assert_eq!(bench.read(16, 1).expect("read"), [16; BLOCK]);
    assert!(bench.sent().contains(&"r4 0+1".to_owned()), "it is read from the spare");
    for block in 0..4 * 48 {
        assert_eq!(bench.read(block, 1).expect("read"), [block as u8; BLOCK], "block {block}");
    }
}

#[test]
fn a_spare_that_fails_while_it_is_filled_is_never_taken_for_the_member() {
    let (config, members) = stopped(2, false);
    let mut bench = Bench::start(config.clone(), members).expect("active");
    bench.dead.extend([2, 4]);
    bench.write(32, 1, 200);
    bench.flush().expect("the parity makes up for it");
    bench.settle();
    assert_eq!(bench.raid.array().members.holder(2), Some(1), "the second spare has taken over");
    bench.write(33, 1, 201);
    bench.flush().expect("flushed");
    let mut bench =
        Bench::start(RaidConfig { accept_damage: true, ..config }, bench.members).expect("active");
    assert_eq!(bench.raid.array().members.holder(2), Some(1));
    assert_eq!(bench.read(33, 1).expect("read"), [201; BLOCK]);
}

#[test]
fn a_calibration_of_the_members_is_used_unless_the_user_knows_better() {
    let measured = Contiguity { read: Strides::up_to(9), write: Strides::up_to(9) };
    for (calibrated, contiguity, used) in
        [(true, None, Some(9)), (false, None, None), (true, Some(Contiguity::default()), Some(0))]
    {
        let (config, mut members) = stopped(0, false);
        (0..4)
            .for_each(|port| put(&mut members, port, |found, _| found.calibration = Some(measured.clone())));
        let bench = Bench::start(RaidConfig { calibrated, contiguity, ..config }, members).expect("active");
        let rule = &bench.raid.array().config.contiguity;
        assert_eq!(rule.as_ref().map(|rule| rule.read.max), used);
    }
}

/// The copy that counts is never written over: what is torn then is the other one, whatever became of earlier updates.
#[test]
fn a_torn_superblock_never_costs_the_other_copy() {
    let (config, mut members) = stopped(0, false);
    // A crash has torn an update of member 3 that the others have, and another one follows.
    let damaged = 1 - superblock(&members, 3).1.copy;
    let at = crate::raid::superblock::COPY_SECTORS[damaged].bytes() as usize;
    members.0[3].0[at..at + 100].fill(0xff);
    (0..3).for_each(|port| put(&mut members, port, |found, _| found.generation += port as u64 % 2));
    let copy = |members: &Members, copy: usize| {
        let at = crate::raid::superblock::COPY_SECTORS[copy].bytes() as usize;
        members.0[3].0[at..at + crate::raid::superblock::SUPERBLOCK_BYTES].to_vec()
    };
    let before = copy(&members, 1 - damaged);
    let bench = Bench::start(config, members).expect("one copy is whole");
    assert!(copy(&bench.members, 1 - damaged) == before, "the copy that counted is as it was");
    assert_eq!(superblock(&bench.members, 3).0.generation, superblock(&bench.members, 0).0.generation);
}
