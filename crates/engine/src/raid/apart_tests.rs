//! Members that were used without each other, and those that a crash only makes look like it.

use super::*;
use crate::raid::apart::Apart;

/// Some members of an array, with "missing" in the place of the others; the journal is missing.
fn part(level: Level, members: usize, roles: &[usize]) -> RaidConfig {
    let present = (0..members).map(|role| roles.contains(&role)).collect();
    RaidConfig { present, accept_damage: true, ..config(level, members) }
}

/// The devices of an array of which parts are started.
struct Parts {
    level: Level,
    devices: Vec<Memory>,
}

impl Parts {
    fn new(level: Level, members: usize) -> Parts {
        let mut bench = Bench::new(config(level, members));
        for block in 0..16 {
            bench.write(block, 1, 1);
        }
        bench.stop();
        Parts { level, devices: bench.members.0 }
    }

    fn start(&mut self, roles: &[usize]) -> Result<Bench, AssembleError> {
        let members = roles.iter().map(|role| Memory(self.devices[*role].0.clone())).collect();
        Bench::start(part(self.level, self.devices.len(), roles), Members(members))
    }

    fn keep(&mut self, roles: &[usize], bench: Bench) {
        for (role, device) in roles.iter().zip(bench.members.0) {
            self.devices[*role] = device;
        }
    }

    /// A part is served: each time a block is written, and then it stops or is killed.
    fn serve(&mut self, roles: &[usize], byte: u8, times: u32, stops: bool) {
        for _ in 0..times {
            let mut bench = self.start(roles).expect("it can do without the others");
            bench.write(0, 1, byte);
            bench.flush().expect("flushed");
            if stops {
                bench.stop();
            }
            self.keep(roles, bench);
        }
    }

    fn all(&self) -> Vec<usize> {
        (0..self.devices.len()).collect()
    }

    fn refusal(&mut self, roles: &[usize]) -> Apart {
        match self.start(roles).err() {
            Some(AssembleError::Apart(apart)) => apart,
            other => panic!("not refused for that, but {other:?}"),
        }
    }

    /// Finds diverged members, as an offline command does.
    fn apart(&mut self) -> Option<Apart> {
        let mut all: Vec<Option<&mut dyn BlockDevice>> =
            self.devices.iter_mut().map(|member| Some(member as &mut dyn BlockDevice)).collect();
        match offline::newest(&mut all) {
            Ok(_) => None,
            Err(offline::ChangeError::Apart(apart)) => Some(apart),
            Err(error) => panic!("{error}"),
        }
    }

    fn superblock(&mut self, role: usize) -> (ArraySuperblock, MemberIdentity) {
        ArraySuperblock::read(&mut self.devices[role]).expect("a member")
    }

    /// Puts another superblock on a member, as a crash may have done.
    fn change(&mut self, role: usize, change: impl FnOnce(&mut ArraySuperblock)) {
        let (mut superblock, identity) = self.superblock(role);
        change(&mut superblock);
        self.devices[role].run(superblock.write(identity));
    }
}

fn roles(members: &[(usize, u64)]) -> Vec<usize> {
    members.iter().map(|(role, _)| *role).collect()
}

#[test]
fn pairs_of_raid_6_that_were_used_without_each_other_are_refused_by_name() {
    for (times, stops) in [((1, 1), true), ((3, 1), true), ((1, 3), true), ((1, 1), false), ((2, 1), false)] {
        let mut parts = Parts::new(Level::Raid6, 4);
        parts.serve(&[0, 1], 7, times.0, stops);
        parts.serve(&[2, 3], 8, times.1, stops);
        let before: Vec<Vec<u8>> = parts.devices.iter().map(|device| device.0.clone()).collect();
        let refusal = parts.refusal(&[0, 1, 2, 3]);
        for role in 0..4 {
            let named = (role, parts.superblock(role).0.generation);
            assert!(refusal.left_behind.contains(&named) || refusal.newest.contains(&named), "{refusal}");
        }
        let apart = parts.apart().expect("a command refuses it, too");
        let mut pairs = [roles(&apart.left_behind), roles(&apart.newest)];
        pairs.sort();
        assert_eq!(pairs, [[0, 1], [2, 3]]);
        // One of a pair is enough.
        for some in [[0, 2, 3], [1, 2, 3], [0, 1, 2], [0, 1, 3]] {
            parts.refusal(&some);
        }
        assert!(parts.devices.iter().zip(before).all(|(device, before)| device.0 == before));
    }
}

/// As the refusal says. Nothing of what the other pair has may come back, not even where that is the newer one.
#[test]
fn the_pair_that_is_kept_fills_the_others_whole() {
    for (kept, left) in [([0, 1], [2, 3]), ([2, 3], [0, 1])] {
        let mut parts = Parts::new(Level::Raid6, 4);
        parts.serve(&kept, 7, 1, true);
        let mut bench = parts.start(&left).expect("it can do without the others");
        for block in 0..40 {
            bench.write(block, 1, 8);
        }
        bench.stop();
        parts.keep(&left, bench);
        parts.serve(&left, 8, 3, true);
        let mut bench = parts.start(&kept).expect("one pair");
        for role in left {
            let device = Memory(parts.devices[role].0.clone());
            let geometry = device.geometry();
            bench.members.0.push(device);
            let port = Port(bench.members.0.len() - 1);
            let add = ArrayCommand::Add { port, geometry, seat: Seat::Member(role), id: 4000 + role as u64 };
            bench.tell(add).expect("it has failed");
            bench.rest();
            assert!(bench.status()["last_return"].is_null(), "it is of another history");
        }
        assert!(bench.is_good(), "{}", bench.status());
        assert_eq!(bench.scrub(false), crate::raid::status::Findings::default());
        bench.stop();
        let order = kept.iter().chain(&left).copied().collect::<Vec<_>>();
        parts.keep(&order, bench);
        // The data columns of the first stripe are on members 0 and 1: now what was added is read.
        for some in [left, kept] {
            let mut bench = parts.start(&some).expect("any two");
            for block in 0..40 {
                let byte = if block == 0 { 7 } else { u8::from(block < 16) };
                assert_eq!(bench.read(block, 1).expect("read"), [byte; BLOCK], "block {block} of {some:?}");
            }
        }
    }
}

/// Two members fail at a time, which the others have recorded when the server is killed; the two are started alone.
#[test]
fn a_pair_that_had_only_recorded_that_the_others_failed_may_have_acknowledged_something() {
    let mut parts = Parts::new(Level::Raid6, 4);
    let all = parts.all();
    let mut bench = parts.start(&all).expect("active");
    bench.write(0, 1, 5);
    bench.flush().expect("flushed");
    for port in [2, 3] {
        bench.dead.push(port);
    }
    bench.write(1, 1, 6);
    bench.flush().expect("the parity makes up for both");
    parts.keep(&all, bench);
    let generation = parts.superblock(0).0.generation;
    assert!(parts.superblock(0).0.failed == 0b1100 && parts.superblock(2).0.generation < generation);
    parts.serve(&[2, 3], 8, 1, true);
    assert_eq!(roles(&parts.apart().expect("neither has all").left_behind), [0, 1]);
    parts.refusal(&all);
}

/// A crash in the middle of the update that names two members leaves it on one of the others. Nothing was acknowledged, so the
/// members that go on without that one have not diverged from it.
#[test]
fn a_member_that_a_crash_left_ahead_was_not_used_apart() {
    for gone in [vec![0], vec![0, 1]] {
        for ahead in [1, 4] {
            let mut parts = Parts::new(Level::Raid6, 4);
            parts.change(0, |superblock| {
                superblock.complete = superblock.generation;
                superblock.generation += ahead;
                superblock.failed = 0b1100;
            });
            let rest: Vec<usize> = (0..4).filter(|role| !gone.contains(role)).collect();
            parts.serve(&rest, 7, 1, true);
            assert_eq!(parts.apart(), None, "without {gone:?}, {ahead} ahead");
            let mut bench = parts.start(&[0, 1, 2, 3]).expect("it starts");
            assert_eq!(bench.status()["failed_members"], serde_json::json!(gone));
            assert_eq!(bench.read(0, 1).expect("read"), [7; BLOCK]);
            if gone.len() == 1 {
                // Another one fails afterwards.
                bench.tell(ArrayCommand::Fail { role: 1 }).expect("it can be spared");
                bench.stop();
                parts.keep(&[0, 1, 2, 3], bench);
                parts.start(&[0, 1, 2, 3]).expect("it starts");
                parts.start(&[0, 2, 3]).expect("it starts");
            }
        }
    }
}

/// A member of RAID-5 can be in both histories only where an older content was put back on it.
#[test]
fn an_array_of_which_a_member_was_used_twice_is_refused_by_name() {
    for times in [(1, 1), (1, 4), (4, 1)] {
        for (first, second) in [([0, 1], [1, 2]), ([1, 2], [0, 1])] {
            let mut parts = Parts::new(Level::Raid5, 3);
            let image = parts.devices[1].0.clone();
            parts.serve(&first, 7, times.0, true);
            parts.devices[1].0 = image;
            parts.serve(&second, 8, times.1, true);
            assert_eq!(Some(parts.refusal(&[0, 1, 2])), parts.apart(), "{times:?}");
        }
    }
}

/// Members fail one after another and come back: all of it is one history.
#[test]
fn members_that_failed_in_turns_were_not_used_apart() {
    for first in 0..4 {
        let mut parts = Parts::new(Level::Raid6, 4);
        let order: Vec<usize> = (0..4).map(|step| (first + step) % 4).collect();
        for window in [[0, 1], [1, 2], [2, 3]] {
            let absent = window.map(|step: usize| order[step]);
            let rest: Vec<usize> = (0..4).filter(|role| !absent.contains(role)).collect();
            let all = parts.all();
            let mut bench = parts.start(&all).expect("one history");
            for role in absent {
                if !bench.raid.array().recorder.has_failed(role) {
                    bench.tell(ArrayCommand::Fail { role }).expect("it can be spared");
                }
            }
            bench.write(0, 1, 9);
            bench.flush().expect("flushed");
            bench.stop();
            parts.keep(&all, bench);
            parts.serve(&rest, 3, 1, true);
            assert_eq!(parts.apart(), None);
            let mut bench = parts.start(&all).expect("one history");
            let role = absent[0];
            bench.tell(ArrayCommand::Remove { port: Port(role) }).expect("it has failed");
            let device = Memory(parts.devices[role].0.clone());
            let geometry = device.geometry();
            bench.members.0.push(device);
            let (port, seat) = (Port(4), Seat::Member(role));
            bench.tell(ArrayCommand::Add { port, geometry, seat, id: 4000 }).expect("there is room");
            bench.rest();
            bench.stop();
            let device = bench.members.0.pop().expect("it was added");
            bench.members.0[role] = device;
            parts.keep(&all, bench);
        }
    }
}
