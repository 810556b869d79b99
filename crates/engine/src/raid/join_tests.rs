//! Devices that come and go while the array is served: what is on them at each moment, and what is refused.

use super::*;
use crate::raid::offline::replace;
use crate::raid::status::Findings;

impl Bench {
    /// Plugs a device in, and tells the array of it.
    fn join(&mut self, device: Memory, seat: Seat, id: u64) -> Result<(), CommandError> {
        let geometry = device.geometry();
        self.members.0.push(device);
        let port = Port(self.members.0.len() - 1);
        self.add(port, geometry, seat, id)
    }

    fn add(&mut self, port: Port, geometry: Geometry, seat: Seat, id: u64) -> Result<(), CommandError> {
        self.tell(ArrayCommand::Add { port, geometry, seat, id })
    }
}

/// A member of another array, with newer superblocks in both copies.
fn foreigner() -> Memory {
    let mut device = Memory(vec![0; (MEMBER * 512) as usize]);
    let mut members: Vec<Memory> = (0..3).map(|_| Memory(vec![0; (MEMBER * 512) as usize])).collect();
    let mut all: Vec<Option<&mut dyn BlockDevice>> =
        members.iter_mut().map(|member| Some(member as &mut dyn BlockDevice)).collect();
    let other = create(&mut all, &config(Level::Raid5, 3), *b"another array!!!", true).expect("made");
    for copy in 0..2 {
        let newer = ArraySuperblock { generation: 1_000_000 + copy as u64, ..other.clone() };
        device.run(newer.write(MemberIdentity { copy, ..newer.identity(1, 0) }));
    }
    device
}

#[test]
fn a_device_that_is_added_is_nobody_or_a_spare_at_any_moment_and_then_takes_a_role() {
    for dead in 0..4 {
        let mut bench = Bench::filled(config(Level::Raid5, 4));
        let had = bench.members.0[dead].0[(DATA_SECTOR * 512) as usize..].to_vec();
        let uuid = bench.array().recorder.recorded().uuid;
        bench.tell(ArrayCommand::Fail { role: dead }).expect("it can be spared");
        bench.settle();
        bench.join(foreigner(), Seat::Spare(0), 77).expect("it fits");
        assert_eq!(bench.status()["joining"], serde_json::json!([0]));
        let (mut was_nobody, mut was_spare) = (false, false);
        while bench.array().recorder.rebuilding().is_none() {
            let newcomer = bench.members.0.last_mut().expect("it is there");
            match ArraySuperblock::read(newcomer) {
                Ok((superblock, identity)) if superblock.uuid == uuid => {
                    assert_eq!((identity.id, identity.role), (77, None));
                    was_spare = true;
                }
                Ok((superblock, _)) => {
                    assert!(superblock.generation >= 1_000_000 && !was_nobody && !was_spare);
                }
                Err(_) => was_nobody = true,
            }
            // In any order: the newest first.
            bench.open.rotate_right(1);
            assert!(bench.returns(), "it goes on");
        }
        let newcomer = bench.members.0.last_mut().expect("it is there");
        let (superblock, identity) = ArraySuperblock::read(newcomer).expect("it has one");
        assert_eq!(
            (superblock.uuid, identity.id, identity.role),
            (uuid, 77, None),
            "a role is recorded behind that"
        );
        assert!(was_nobody, "the old superblocks are wiped first");
        bench.rest();
        assert!(bench.is_good(), "{}", bench.status());
        assert!(bench.members.0[4].0[(DATA_SECTOR * 512) as usize..] == had, "member {dead}");
        bench.write(3, 1, 200);
        bench.stop();
        let with_spare = RaidConfig { spares: vec![true], ..config(Level::Raid5, 4) };
        let mut bench = Bench::start(with_spare, bench.members).expect("a start finds it in its role");
        assert!(bench.is_good());
        assert_eq!(bench.read(3, 1).expect("read"), [200; BLOCK]);
        assert_eq!(bench.scrub(false), Findings::default());
    }
}

#[test]
fn a_member_that_fails_later_is_rebuilt_on_a_device_that_was_added() {
    let mut bench = Bench::filled(RaidConfig { spares: vec![true], ..config(Level::Raid6, 5) });
    bench.join(Memory(vec![9; (MEMBER * 512) as usize]), Seat::Spare(1), 71).expect("it fits");
    bench.settle();
    assert_eq!(bench.status()["spares"], serde_json::json!([0, 1]));
    bench.lose_two();
    assert_eq!(bench.status()["holders"], serde_json::json!([null, 0, null, null, 1]));
    bench.check_data();
}

#[test]
fn a_device_that_cannot_be_written_is_no_spare() {
    let mut bench = Bench::filled(config(Level::Raid5, 4));
    bench.dead.push(4);
    bench.join(Memory(vec![0; (MEMBER * 512) as usize]), Seat::Spare(0), 77).expect("it begins");
    bench.settle();
    let status = bench.status();
    assert_eq!((&status["spares"], &status["joining"]), (&serde_json::json!([]), &serde_json::json!([])));
    let notes = bench.notes();
    let not_made = |note: &ArrayNote| {
        matches!(note, ArrayNote::Unused(Unused { seat: Seat::Spare(0), why: UnusedWhy::NotMade(_) }))
    };
    assert!(notes.iter().all(not_made) && notes.len() == 1, "{notes:?}");
    assert!(bench.is_good(), "the members are not concerned");
}

#[test]
fn what_fits_nowhere_is_refused_and_not_written() {
    let mut bench = Bench::filled(RaidConfig { spares: vec![true], ..config(Level::Raid5, 4) });
    let fits = Geometry::plain(MEMBER);
    let taken = bench.array().recorder.recorded().member_ids[2];
    for (geometry, place, id, why) in [
        (
            Geometry::plain(MEMBER - STRIP),
            1,
            77,
            CommandError::TooSmall { sectors: MEMBER - STRIP, needed: MEMBER },
        ),
        (Geometry { read_only: true, ..fits }, 1, 77, CommandError::ReadOnly),
        (
            Geometry { logical_block_bytes: 4096, ..fits },
            1,
            77,
            CommandError::Blocks { block_bytes: 4096, promised: 512 },
        ),
        (fits, 0, 77, CommandError::SpareThere(0)),
        (fits, 2, 77, CommandError::BehindSpares { known: 1 }),
        (fits, 1, taken, CommandError::Id(taken)),
        (fits, 1, 70, CommandError::Id(70)),
        (fits, 1, 0, CommandError::Id(0)),
    ] {
        assert_eq!(bench.add(Port(5), geometry, Seat::Spare(place), id), Err(why));
    }
    assert!(bench.open.is_empty(), "nothing was sent");
    bench.stop();
    bench.reports.clear();
    assert_eq!(bench.add(Port(5), fits, Seat::Spare(1), 77), Err(CommandError::NoWrites));
}

#[test]
fn a_member_that_failed_leaves_and_comes_back_as_a_new_device() {
    // A block of member 2.
    for (level, members, block) in [(Level::Raid5, 4, 32), (Level::Raid6, 5, 16)] {
        let mut bench = Bench::filled(config(level, members));
        let in_use = CommandError::InUse { role: 2, filled: false };
        assert_eq!(bench.tell(ArrayCommand::Remove { port: Port(2) }), Err(in_use));
        // It fails with a read under way there.
        let id = bench.ask(Io::Read { at: Lba(block * 8), buf: Buf::zeroed(BLOCK) });
        assert_eq!(bench.open.iter().map(|(port, ..)| *port).collect::<Vec<_>>(), [Port(2)]);
        bench.tell(ArrayCommand::Fail { role: 2 }).expect("it can be spared");
        assert_eq!(bench.tell(ArrayCommand::Remove { port: Port(2) }), Err(CommandError::Held(2)));
        let fits = Geometry::plain(MEMBER);
        assert_eq!(bench.add(Port(members), fits, Seat::Member(2), 77), Err(CommandError::StillThere(2)));
        bench.settle();
        bench.answer(id).status.expect("read");
        bench.tell(ArrayCommand::Remove { port: Port(2) }).expect("it has failed");
        bench.sent();
        bench.write(block, 1, 200);
        bench.flush().expect("the parity makes up for it");
        let sent = bench.sent();
        assert!(!sent.is_empty() && !sent.iter().any(|command| command[1..].starts_with('2')), "{sent:?}");
        let nobody = CommandError::NoMember { role: members, members };
        for (role, why) in [(1, CommandError::NotFailed(1)), (members, nobody)] {
            assert_eq!(bench.add(Port(members), fits, Seat::Member(role), 77), Err(why));
        }
        // The same device, on a port of its own, with all that it had.
        let device = std::mem::replace(&mut bench.members.0[2], Memory(Vec::new()));
        bench.join(device, Seat::Member(2), 77).expect("there is room");
        assert_eq!(bench.status()["joining_members"], serde_json::json!([2]));
        bench.rest();
        assert!(bench.is_good(), "{}", bench.status());
        let null: Option<usize> = None;
        assert_eq!(
            bench.status()["holders"],
            serde_json::json!(vec![null; members]),
            "it is in its own place"
        );
        bench.stop();
        // As a server finds it: in its place.
        let device = bench.members.0.pop().expect("it is there");
        bench.members.0[2] = device;
        let mut bench = Bench::start(config(level, members), bench.members).expect("active");
        assert!(bench.is_good(), "{}", bench.status());
        assert_eq!(bench.scrub(false), Findings::default());
        assert_eq!(bench.read(block, 1).expect("read"), [200; BLOCK]);
    }
}

#[test]
fn a_crash_before_a_device_has_the_role_in_whose_place_it_was_added_does_not_keep_the_array_from_starting() {
    let mut bench = Bench::filled(config(Level::Raid5, 4));
    bench.tell(ArrayCommand::Fail { role: 1 }).expect("it can be spared");
    bench.settle();
    bench.tell(ArrayCommand::Remove { port: Port(1) }).expect("it has failed");
    bench.join(Memory(vec![3; (MEMBER * 512) as usize]), Seat::Member(1), 77).expect("there is room");
    let is_spare = |device: &mut Memory| {
        ArraySuperblock::read(device).is_ok_and(|(_, identity)| (identity.id, identity.role) == (77, None))
    };
    while !is_spare(bench.members.0.last_mut().expect("it is there")) {
        assert!(bench.returns(), "it goes on");
    }
    let mut members = bench.members;
    members.0[1] = members.0.pop().expect("it is there");
    let mut bench = Bench::start(config(Level::Raid5, 4), members).expect("it starts");
    bench.wait_for(Nanos::ZERO);
    bench.rest();
    assert!(bench.is_good(), "{}", bench.status());
    bench.check_data();
}

#[test]
fn a_spare_leaves_and_its_place_is_free() {
    let mut bench = Bench::filled(RaidConfig { spares: vec![true; 2], ..config(Level::Raid5, 4) });
    bench.tell(ArrayCommand::Remove { port: Port(4) }).expect("nobody needs it");
    let status = bench.status();
    assert_eq!(
        (&status["spares"], &status["spare_places"]),
        (&serde_json::json!([1]), &serde_json::json!([false, true]))
    );
    bench.tell(ArrayCommand::Remove { port: Port(5) }).expect("nobody needs it");
    assert_eq!(bench.status()["spare_places"], serde_json::json!([]));
    bench.tell(ArrayCommand::Fail { role: 3 }).expect("it can be spared");
    bench.settle();
    assert_eq!(bench.status()["state"], "degraded", "no spare is left");
    bench
        .join(Memory(vec![3; (MEMBER * 512) as usize]), Seat::Spare(0), 70)
        .expect("an id of one that left is free");
    bench.rest();
    assert!(bench.is_good(), "{}", bench.status());
    assert_eq!(bench.status()["holders"], serde_json::json!([null, null, null, 0]));
    let in_use = CommandError::InUse { role: 3, filled: false };
    assert_eq!(bench.tell(ArrayCommand::Remove { port: Port(6) }), Err(in_use));
    // What it has replaced may go.
    bench.tell(ArrayCommand::Remove { port: Port(3) }).expect("it is nobody");
}

#[test]
fn nothing_is_let_go_or_wiped_before_it_is_recorded_who_has_failed() {
    let mut bench = Bench::filled(config(Level::Raid5, 4));
    bench.tell(ArrayCommand::Fail { role: 2 }).expect("it can be spared");
    assert!(
        !bench.open.is_empty() && bench.open.iter().all(|(port, ..)| *port != Port(2)),
        "the others are told"
    );
    assert_eq!(bench.tell(ArrayCommand::Remove { port: Port(2) }), Err(CommandError::Held(2)));
    bench.join(Memory(vec![3; (MEMBER * 512) as usize]), Seat::Spare(0), 77).expect("there is room");
    while bench.array().recorder.recorded().failed == 0 {
        assert!(bench.open.iter().all(|(port, ..)| *port != Port(4)), "it may be the one that has failed");
        assert!(bench.returns(), "it goes on");
    }
    assert!(bench.open.iter().any(|(port, ..)| *port == Port(4)), "now it is wiped");
    bench.tell(ArrayCommand::Remove { port: Port(2) }).expect("it is known");
    bench.rest();
    assert!(bench.is_good(), "{}", bench.status());
    bench.check_data();
}

/// A killed server has left the superblock that counts in the device's cache. The next superblock overwrites the other copy: if a power
/// cut tore both, the device's identity would be lost.
#[test]
fn a_member_that_comes_back_is_flushed_before_its_superblock_is_written_over() {
    for is_known in [true, false] {
        let mut bench = Bench::filled(config(Level::Raid5, 4));
        bench.tell(ArrayCommand::Fail { role: 1 }).expect("it can be spared");
        bench.settle();
        bench.tell(ArrayCommand::Remove { port: Port(1) }).expect("it has failed");
        let device = match is_known {
            true => std::mem::replace(&mut bench.members.0[1], Memory(Vec::new())),
            false => foreigner(),
        };
        bench.join(device, Seat::Member(1), 77).expect("there is room");
        let mut returned = Vec::new();
        while !returned.contains(&"write") {
            let (port, _, io) = bench.open.front().expect("it goes on");
            returned.extend((*port == Port(4)).then_some(io.name()));
            let writes = bench.open.iter().any(|(port, _, io)| *port == Port(4) && io.name() == "write");
            assert!(!writes || returned.first() == Some(&"flush"), "{returned:?}");
            bench.returns();
        }
        assert_eq!(returned[..3], ["flush", "read", "read"], "what is read is what stays");
        bench.rest();
        assert!(bench.is_good(), "{}", bench.status());
        assert_eq!(bench.status()["last_return"].is_null(), !is_known);
    }
}

/// Two members are added at a time, and a crash cuts that while their old superblocks are wiped.
#[test]
fn a_start_names_all_members_that_a_crash_left_blank_and_they_are_brought_back() {
    let six = |present: [bool; 4]| RaidConfig { present: present.to_vec(), ..config(Level::Raid6, 4) };
    for damaged in [false, true] {
        let mut bench = Bench::filled(six([true; 4]));
        for role in [1, 3] {
            bench.tell(ArrayCommand::Fail { role }).expect("it can be spared");
        }
        bench.stop();
        let mut members = bench.members;
        for role in [1, 3] {
            members.0[role].0[..64 << 10].fill(0);
        }
        if damaged {
            let magic = members.0[0].0[..8].to_vec();
            members.0[3].0[..8].copy_from_slice(&magic);
            members.0[3].0[8..10].copy_from_slice(&2u16.to_le_bytes());
        }
        let copy = Members(members.0.iter().map(|member| Memory(member.0.clone())).collect());
        let refusal = Bench::start(six([true; 4]), copy).err().expect("it is refused");
        let wrong = match damaged {
            true => vec![(ArraySuperblockError::NoMagic, vec![1]), (ArraySuperblockError::Checksum, vec![3])],
            false => vec![(ArraySuperblockError::NoMagic, vec![1, 3])],
        };
        assert_eq!(refusal, AssembleError::Unknown { wrong, others: Others::MakeUp });
        for role in [3, 1] {
            let mut device = Memory(std::mem::take(&mut members.0[role].0));
            let [first, _, third, _] = &mut members.0[..] else { unreachable!("it has four") };
            let there: [&mut dyn BlockDevice; 2] = [first, third];
            replace(&mut there.map(Some), role, &mut device, 70 + role as u64)
                .expect("the others make up for it");
            members.0[role] = device;
        }
        let mut bench = Bench::start(six([true; 4]), members).expect("active");
        bench.rest();
        assert!(bench.is_good(), "{}", bench.status());
        bench.check_data();
    }
}
