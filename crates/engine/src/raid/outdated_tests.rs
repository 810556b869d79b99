//! Superblocks that only a member has that was missing while others went on, and members with an older content than they had.

use super::passes::byte_of;
use super::*;
use crate::raid::status::Findings;

const MEMBERS: usize = 4;

fn by_stripes() -> RaidConfig {
    RaidConfig { region_bytes: 1, journal: true, ..config(Level::Raid5, MEMBERS) }
}

fn without(role: usize) -> RaidConfig {
    let present = (0..MEMBERS).map(|other| other != role).collect();
    RaidConfig { present, ..by_stripes() }
}

impl Bench {
    /// Adds a device that is not used in the place of its role, and lets it be filled.
    fn fill_anew(&mut self, role: usize) {
        self.tell(ArrayCommand::Remove { port: Port(role) }).expect("it is not used");
        let device = std::mem::replace(&mut self.members.0[role], Memory(Vec::new()));
        self.add_device(role, device);
    }

    fn add_device(&mut self, role: usize, device: Memory) {
        let geometry = device.geometry();
        self.members.0.push(device);
        let port = Port(self.members.0.len() - 1);
        self.tell(ArrayCommand::Add { port, geometry, seat: Seat::Member(role), id: 4000 })
            .expect("there is room");
        self.rest();
        assert!(self.is_good(), "{}", self.status());
    }

    fn change_stripe(&mut self, stripe: u64, byte: u8) {
        self.write(stripe * 48, 1, byte);
        self.flush().expect("the parity makes up for who is away");
    }

    fn check_stripes(&mut self, changed: &[(u64, u8)]) {
        for block in 0..4 * 48 {
            let change = changed.iter().rev().find(|(stripe, _)| block == stripe * 48);
            let byte = change.map_or(byte_of(block), |(_, byte)| *byte);
            assert_eq!(self.read(block, 1).expect("read"), [byte; BLOCK], "block {block}");
        }
    }
}

/// The power goes when only the member that comes back has the superblock that says so. It is missing at the next start, and is again
/// at the one after that.
#[test]
fn a_return_that_only_the_member_itself_knows_of_has_not_happened() {
    for (role, writes) in (0..MEMBERS).flat_map(|role| [(role, false), (role, true)]) {
        let mut bench = Bench::filled(by_stripes());
        bench.tell(ArrayCommand::Fail { role }).expect("it can be spared");
        bench.settle();
        bench.tell(ArrayCommand::Remove { port: Port(role) }).expect("it has failed");
        let changed = [(0, if writes { 200 } else { byte_of(0) }), (1, 201)];
        if writes {
            bench.change_stripe(0, 200);
        }
        let device = std::mem::replace(&mut bench.members.0[role], Memory(Vec::new()));
        let geometry = device.geometry();
        bench.members.0.push(device);
        let port = Port(MEMBERS + 1);
        let seat = Seat::Member(role);
        bench.tell(ArrayCommand::Add { port, geometry, seat, id: 4000 }).expect("there is room");
        let knows = |bench: &mut Bench| {
            let found = ArraySuperblock::read(&mut bench.members.0[port.0]).expect("a member").0;
            found.rebuilding.is_some_and(|rebuild| rebuild.role == role)
        };
        while !knows(&mut bench) {
            let to_it = bench.open.iter().position(|(to, ..)| *to == port).expect("it comes back");
            let command = bench.open.remove(to_it).expect("it is there");
            bench.open.push_front(command);
            bench.returns();
        }
        let mut members = bench.members;
        let device = members.0.pop().expect("it is there");
        members.0.remove(role);
        let mut bench = Bench::start(without(role), members).expect("degraded");
        bench.change_stripe(1, 201);
        let mut members = bench.members;
        members.0.insert(role, device);
        let mut bench = Bench::start(by_stripes(), members).expect("it starts");
        bench.check_stripes(&changed);
        bench.rest();
        if !bench.is_good() {
            bench.fill_anew(role);
        }
        bench.check_stripes(&changed);
        assert_eq!(bench.scrub(false), Findings::default(), "member {role}");
    }
}

/// Starts that crash while they write superblocks leave a member ahead of all others, by any number.
#[test]
fn a_member_that_crashes_left_ahead_of_others_that_went_on_without_it_is_not_believed() {
    for ahead in 1..9 {
        for role in [0, MEMBERS - 1] {
            let mut bench = Bench::filled(by_stripes());
            bench.stop();
            let mut members = bench.members;
            let mut device = members.0.remove(role);
            let (mut own, identity) = ArraySuperblock::read(&mut device).expect("a member");
            own.generation += ahead;
            device.run(own.write(identity));
            let mut bench = Bench::start(without(role), members).expect("degraded");
            bench.change_stripe(1, 201);
            let mut members = bench.members;
            members.0.insert(role, device);
            let mut bench = Bench::start(by_stripes(), members).expect("active");
            assert_eq!(bench.status()["failed_members"], serde_json::json!([role]), "{ahead} ahead");
            bench.check_stripes(&[(1, 201)]);
            bench.fill_anew(role);
            bench.check_stripes(&[(1, 201)]);
            assert_eq!(bench.scrub(false), Findings::default());
        }
    }
}

/// The command that changes superblocks while nothing is served looks at them in the same way.
#[test]
fn nor_does_a_command_believe_it() {
    let mut bench = Bench::filled(by_stripes());
    bench.stop();
    let mut members = bench.members;
    let (mut own, identity) = ArraySuperblock::read(&mut members.0[0]).expect("a member");
    own.generation += 7;
    members.0[0].run(own.write(identity));
    let device = members.0.remove(0);
    let mut bench = Bench::start(without(0), members).expect("degraded");
    bench.change_stripe(1, 201);
    let mut members = bench.members;
    members.0.insert(0, device);
    let mut all: Vec<Option<&mut dyn BlockDevice>> =
        members.0[..MEMBERS].iter_mut().map(|member| Some(member as &mut dyn BlockDevice)).collect();
    assert_eq!(offline::newest(&mut all).expect("read").failed, 1);
    let changed = offline::store_calibration(&mut all, &Contiguity::default()).expect("stored");
    assert!(changed.failed == 1 && changed.generation > own.generation, "{}", changed.generation);
}

/// Without all members, nothing is written and the journal is not used before a generation of this activation is known to be
/// complete.
#[test]
fn without_all_members_a_complete_generation_comes_before_the_first_write() {
    let mut bench = Bench::filled(by_stripes());
    bench.stop();
    let mut members = bench.members;
    members.0.remove(2);
    let before = ArraySuperblock::read(&mut members.0[0]).expect("a member").0;
    let mut bench = Bench::start(without(2), members).expect("degraded");
    bench.write(0, 1, 7);
    bench.ask(Io::Flush);
    let mut used = false;
    while bench.answers.len() < 2 {
        let journal = Port(MEMBERS - 1);
        let writes = bench.open.iter().any(
            |(port, _, io)| matches!(io, Io::Write { at, .. } if *port == journal || at.0 >= DATA_SECTOR),
        );
        if writes {
            used = true;
            for role in 0..MEMBERS - 1 {
                let found =
                    ArraySuperblock::read(&mut Memory(bench.members.0[role].0.clone())).expect("one").0;
                assert!(found.complete > before.generation || found.generation > before.generation + 2);
                assert!(found.failed == 0b100 && found.generation > before.generation + 1);
            }
        }
        assert!(bench.returns(), "it goes on");
    }
    assert!(used);
}

/// A snapshot of a member, a copy, an image of its disk is put in its place.
#[test]
fn a_member_with_an_older_content_is_not_used() {
    for role in 0..MEMBERS {
        let mut bench = Bench::filled(by_stripes());
        let older = Memory(bench.members.0[role].0.clone());
        bench.change_stripe(0, 200);
        bench.change_stripe(1, 201);
        bench.stop();
        let mut bench = Bench::start(by_stripes(), bench.members).expect("active");
        bench.change_stripe(2, 202);
        let mut members = bench.members;
        members.0[role] = older;
        let mut bench = Bench::start(by_stripes(), members).expect("the parity makes up for it");
        let status = bench.status();
        assert_eq!(status["failed_members"], serde_json::json!([role]));
        assert_eq!(
            bench.notes(),
            [ArrayNote::Unused(Unused { seat: Seat::Member(role), why: UnusedWhy::Outdated })]
        );
        let changed = [(0, 200), (1, 201), (2, 202), (3, 203)];
        bench.check_stripes(&changed[..3]);
        bench.change_stripe(3, 203);
        bench.fill_anew(role);
        assert!(bench.status()["last_return"].is_null(), "nobody knows what it lacks");
        bench.check_stripes(&changed);
        assert_eq!(bench.scrub(false), Findings::default());
    }
}

/// The image is of the last clean stop, or of an array that was just made; the activation since was cut off after its first write.
#[test]
fn nor_is_one_with_its_content_from_before_this_activation() {
    for (role, journal) in (0..MEMBERS).flat_map(|role| [(role, false), (role, true)]) {
        let by_stripes = || RaidConfig { journal, ..by_stripes() };
        let new = Bench::new(by_stripes()).members;
        let mut filled = Bench::filled(by_stripes());
        filled.stop();
        for (members, is_new) in [(new, true), (filled.members, false)] {
            let older = Memory(members.0[role].0.clone());
            let mut bench = Bench::start(by_stripes(), members).expect("active");
            bench.change_stripe(0, 200);
            bench.change_stripe(1, 201);
            let mut members = bench.members;
            members.0[role] = older;
            match Bench::start(by_stripes(), members) {
                Ok(mut bench) => {
                    assert_eq!(bench.status()["failed_members"], serde_json::json!([role]), "{is_new}");
                    assert_eq!(bench.read(0, 1).expect("read"), [200; BLOCK]);
                    assert_eq!(bench.read(48, 1).expect("read"), [201; BLOCK]);
                }
                // It may have been cut off amid a write, and only the journal would tell.
                Err(error) => assert!(!journal && matches!(error, AssembleError::InDoubt { .. }), "{error}"),
            }
        }
    }
}

#[test]
fn nor_is_it_taken_back_by_what_was_written_while_it_was_away() {
    for missing_at_start in [false, true] {
        let mut bench = Bench::filled(by_stripes());
        let older = Memory(bench.members.0[1].0.clone());
        bench.change_stripe(0, 200);
        bench.stop();
        let mut bench = Bench::start(by_stripes(), bench.members).expect("active");
        bench.change_stripe(1, 201);
        if missing_at_start {
            bench.stop();
            let mut members = bench.members;
            members.0.remove(1);
            bench = Bench::start(without(1), members).expect("degraded");
        } else {
            bench.tell(ArrayCommand::Fail { role: 1 }).expect("it can be spared");
            bench.settle();
            bench.tell(ArrayCommand::Remove { port: Port(1) }).expect("it has failed");
        }
        bench.change_stripe(2, 202);
        bench.add_device(1, older);
        assert!(bench.status()["last_return"].is_null());
        bench.check_stripes(&[(0, 200), (1, 201), (2, 202)]);
        assert_eq!(bench.scrub(false), Findings::default());
    }
}

/// An unreadable copy of a superblock makes no member outdated.
#[test]
fn a_member_without_its_newest_superblock_is_not_outdated() {
    for stops in [false, true] {
        for role in 0..MEMBERS {
            let mut bench = Bench::filled(by_stripes());
            bench.change_stripe(0, 200);
            if stops {
                bench.stop();
            }
            let mut members = bench.members;
            let copy = ArraySuperblock::read(&mut members.0[role]).expect("a member").1.copy;
            let at = crate::raid::superblock::COPY_SECTORS[copy].bytes() as usize;
            members.0[role].0[at + 100..at + 200].fill(0xff);
            let mut bench = Bench::start(by_stripes(), members).expect("active");
            assert_eq!(bench.status()["failed_members"], serde_json::json!([]), "member {role}");
            bench.check_stripes(&[(0, 200)]);
        }
    }
}

/// Records the commands that members get at a start, in order.
struct Told {
    members: Members,
    told: Vec<(Port, &'static str)>,
}

impl Ports for Told {
    fn geometry(&self, port: Port) -> Geometry {
        self.members.geometry(port)
    }

    fn run(&mut self, port: Port, io: Io) -> IoResult {
        self.told.push((port, io.name()));
        self.members.run(port, io)
    }
}

/// A killed server has left its last superblocks in the caches of members. They have to be durable before the other copies are written
/// over.
#[test]
fn the_superblocks_that_count_are_durable_before_the_next_ones() {
    let mut bench = Bench::filled(by_stripes());
    bench.change_stripe(0, 200);
    let mut told = Told { members: bench.members, told: Vec::new() };
    RaidLayer::new(by_stripes()).activate(&mut told).expect("active");
    for role in (0..MEMBERS).map(Port) {
        let first = |name: &str| told.told.iter().position(|told| *told == (role, name));
        assert!(first("write").is_some(), "it was active");
        assert!(first("flush") < first("write") && first("flush").is_some(), "{role:?}");
    }
}
