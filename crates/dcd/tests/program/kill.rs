//! The server is killed (SIGKILL) under load, again and again; what was promised must be there. And a server that lies
//! about its flushes must be caught by the same checks.
//!
//! A kill is not a power cut: what reached the files stays. What is lost is whatever the server kept in RAM, so this
//! shows that nothing is acknowledged too early. Power cuts are simulated, by the million, elsewhere.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{MIB, Nbd, Place, Server, expect, signal, tool};
use crate::remote::{Foreign, far, near};

const ROUNDS: u64 = 20;
const BLOCK: usize = 4096;
const BLOCKS: u64 = 16 * MIB / BLOCK as u64;

/// A block that says where it belongs and which write it is.
fn stamp(block: u64, version: u64) -> Vec<u8> {
    [block.to_le_bytes(), version.to_le_bytes()].concat().repeat(BLOCK / 16)
}

/// Knowledge of a client: for each block the last version that it wrote, and the last one that a flush covered.
#[derive(Clone)]
pub struct Oracle {
    written: Vec<u64>,
    flushed: Vec<u64>,
    /// True when no answered write may be lost.
    keeps_answered: bool,
}

impl Oracle {
    pub fn new(keeps_answered: bool) -> Oracle {
        Oracle { written: vec![0; BLOCKS as usize], flushed: vec![0; BLOCKS as usize], keeps_answered }
    }

    fn write(&mut self, nbd: &mut Nbd, block: u64) -> io::Result<()> {
        let version = self.written[block as usize] + 1;
        // Whether a write that failed has an effect is not known: it counts as written, not as flushed.
        self.written[block as usize] = version;
        nbd.write(block * BLOCK as u64, &stamp(block, version))?;
        if self.keeps_answered {
            self.flushed[block as usize] = version;
        }
        Ok(())
    }

    fn flush(&mut self, nbd: &mut Nbd) -> io::Result<()> {
        nbd.flush()?;
        self.flushed = self.written.clone();
        Ok(())
    }

    /// Writes until the server dies: single blocks, and a flush after every few if the server offers that.
    pub fn load(&mut self, nbd: &mut Nbd, random: &mut u64) -> io::Result<()> {
        loop {
            for _ in 0..next(random) % 12 {
                self.write(nbd, next(random) % BLOCKS)?;
            }
            if nbd.flushes {
                self.flush(nbd)?;
            }
        }
    }

    /// Counts the wrong blocks. A right block is whole, of a version from the last flushed to the last written.
    pub fn wrong(&mut self, nbd: &mut Nbd) -> u64 {
        self.wrong_by(|block| nbd.read(block * BLOCK as u64, BLOCK).unwrap())
    }

    /// Counts the wrong blocks of a disk without its cache.
    pub fn wrong_in(&mut self, bare: &[u8]) -> u64 {
        self.wrong_by(|block| bare[block as usize * BLOCK..][..BLOCK].to_vec())
    }

    fn wrong_by(&mut self, mut read: impl FnMut(u64) -> Vec<u8>) -> u64 {
        let mut wrong = 0;
        for block in 0..BLOCKS {
            let (low, high) = (self.flushed[block as usize], self.written[block as usize]);
            if high == 0 {
                continue;
            }
            let read = read(block);
            let version = u64::from_le_bytes(read[8..16].try_into().unwrap());
            let whole = read == stamp(block, version);
            let fresh = low == 0
                && read == crate::common::original(BLOCK as u64 * (block + 1))[block as usize * BLOCK..];
            if !fresh && (!whole || version < low || version > high) {
                wrong += 1;
            }
            // What it is now, it stays.
            if whole {
                (self.written[block as usize], self.flushed[block as usize]) = (version, version);
            } else if fresh {
                self.written[block as usize] = 0;
            }
        }
        wrong
    }
}

/// A small generator: xorshift, as nothing here needs more.
pub fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Runs `load` against a server that is killed after a while.
pub fn killed_under<T>(server: Server, after: Duration, load: impl FnOnce() -> T) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(after);
            server.kill();
            done.store(true, Ordering::SeqCst);
        });
        load();
    });
    assert!(done.load(Ordering::SeqCst));
}

fn rounds_with_oracle(place: &Place, keeps_answered: bool, rounds: u64, seed: u64) -> u64 {
    let mut oracle = Oracle::new(keeps_answered);
    let mut random = seed;
    let mut wrong = 0;
    for _ in 0..rounds {
        let server = place.serve();
        let mut nbd = place.nbd();
        let after = Duration::from_millis(20 + next(&mut random) % 150);
        killed_under(server, after, || oracle.load(&mut nbd, &mut random).unwrap_err());
        let server = place.serve();
        wrong += oracle.wrong(&mut place.nbd());
        server.kill();
    }
    wrong
}

#[test]
fn flushed_writes_survive_a_kill() {
    for (promise, seed) in [("flush", 1), ("always", 2)] {
        let place = Place::new();
        place.write_stack(&format!("promise = \"{promise}\"\n"));
        place.format();
        let server = place.serve();
        assert_eq!(place.nbd().flushes, promise == "flush");
        server.kill();
        let wrong = rounds_with_oracle(&place, promise == "always", ROUNDS / 2, seed);
        assert_eq!(wrong, 0, "promise {promise}, seed {seed}");
    }
}

#[test]
fn with_nbd_recovery_answered_writes_survive_a_kill() {
    for (promise, seed) in [("flush", 4), ("ordered", 5)] {
        for place in [Place::new(), Place::new().without_memory()] {
            place.write_stack(&format!("promise = \"{promise}\"\n"));
            place.add_to_serve("nbd-recovery = true\n");
            place.format();
            assert_eq!(rounds_with_oracle(&place, true, ROUNDS / 2, seed), 0, "promise {promise}");
        }
    }
}

/// Writes without a flush, under a server that is killed each time before anything asks for the log to be written.
#[test]
fn rule_15_memory_keeps_answered_writes_over_many_kills() {
    let place = Place::new();
    let Some(memory) = &place.memory else { return eprintln!("SKIPPED: /dev/shm cannot be written") };
    place.add_to_serve("nbd-recovery = true\n");
    place.format();
    let (mut oracle, mut random, mut left) = (Oracle::new(true), 15, 0);
    for _ in 0..ROUNDS {
        let server = place.serve();
        let mut nbd = place.nbd();
        assert_eq!(oracle.wrong(&mut nbd), 0);
        for _ in 0..next(&mut random) % 200 {
            oracle.write(&mut nbd, next(&mut random) % BLOCKS).unwrap();
        }
        server.kill();
        left += std::fs::read_dir(memory.path()).unwrap().count();
    }
    assert_eq!(left as u64, ROUNDS, "each server leaves its memory");
    let server = place.serve();
    assert_eq!(oracle.wrong(&mut place.nbd()), 0);
    server.stop();
    assert_eq!(std::fs::read_dir(memory.path()).unwrap().count(), 0, "a clean stop leaves none");
}

/// A start says that writes wait for the log where no memory outlives the server, and only then.
#[test]
fn a_device_that_outlives_its_server_without_memory_is_told_to_be_slow() {
    let said = |place: &Place| {
        let mut server = place.dcd();
        server.arg("serve").arg(place.stack()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = Server { child: server.spawn().unwrap() };
        let mut line = String::new();
        BufReader::new(server.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        String::from_utf8(server.stop().stderr).unwrap()
    };
    for (memory, recovery) in [(false, true), (false, false), (true, true)] {
        let place = if memory { Place::new() } else { Place::new().without_memory() };
        if memory && place.memory.is_none() {
            continue;
        }
        place.add_to_serve(&format!("nbd-recovery = {recovery}\n"));
        place.format();
        let said = said(&place);
        assert_eq!(said.contains("each write waits for the log"), !memory && recovery, "{said}");
    }
}

/// Offline commands see, and do not lose, what is in memory alone.
#[test]
fn rule_15_a_detach_after_a_kill_writes_back_what_memory_has() {
    let place = Place::new();
    if place.memory.is_none() {
        return eprintln!("SKIPPED: /dev/shm cannot be written");
    }
    place.format();
    let server = place.serve();
    place.nbd().write(0, &stamp(0, 7)).unwrap();
    server.kill();
    expect(&place.run("check", &[]), 0, "");
    expect(&place.run("detach", &[]), 0, "taken from its memory into the log");
    assert_eq!(place.bare()[..BLOCK], stamp(0, 7));
    let left = std::fs::read_dir(place.memory.as_ref().unwrap().path()).unwrap().count();
    assert_eq!(left, 0, "nobody needs it any more");
}

/// A cache and a copy of its files have the same UUID, and count the same activations and records.
#[test]
fn rule_15_memory_of_a_copy_is_neither_taken_nor_removed() {
    for is_stopped in [true, false] {
        let (mut place, mut copy) = (Place::new(), Place::new());
        if place.memory.is_none() {
            return eprintln!("SKIPPED: /dev/shm cannot be written");
        }
        for place in [&place, &copy] {
            place.add_to_serve("nbd-recovery = true\n");
        }
        place.format();
        place.serve().stop();
        for name in ["log.img", "data.img", "data.img.dcd"] {
            std::fs::copy(place.path(name), copy.path(name)).unwrap();
        }
        let write = |place: &Place, block: u64, version: u64, flush: bool| {
            let mut nbd = place.nbd();
            nbd.write(block * BLOCK as u64, &stamp(block, version)).unwrap();
            if flush {
                nbd.flush().unwrap();
            }
        };
        let server = place.serve();
        (0..3).for_each(|block| write(&place, block, 1, is_stopped));
        if is_stopped {
            drop(server.stop())
        } else {
            server.kill()
        }
        std::mem::swap(&mut place.memory, &mut copy.memory);
        let server = copy.serve();
        (10..13).for_each(|block| write(&copy, block, 2, is_stopped));
        write(&copy, 0, 2, false);
        server.kill();
        std::mem::swap(&mut place.memory, &mut copy.memory);
        if is_stopped {
            expect(&place.run("detach", &[]), 0, "");
            assert!(place.bare()[..BLOCK] == stamp(0, 1), "it was flushed");
        } else {
            let server = place.serve();
            assert!((0..3).all(|block| place.nbd().read(block * 4096, BLOCK).unwrap() == stamp(block, 1)));
            server.stop();
        }
        std::mem::swap(&mut place.memory, &mut copy.memory);
        let server = copy.serve();
        assert!(copy.nbd().read(0, BLOCK).unwrap() == stamp(0, 2), "nothing has removed the copy's memory");
        server.stop();
        let left = std::fs::read_dir(copy.memory.as_ref().unwrap().path()).unwrap().count();
        assert_eq!(left, 0, "nobody needs it any more");
    }
}

/// A file system on a device that outlives its server would see its disk go back in time.
#[test]
fn rule_15_memory_that_is_gone_while_the_machine_runs_is_missed() {
    for recovery in [true, false] {
        let place = Place::new();
        let Some(memory) = &place.memory else { return eprintln!("SKIPPED: /dev/shm cannot be written") };
        place.add_to_serve(&format!("nbd-recovery = {recovery}\n"));
        place.format();
        let server = place.serve();
        place.nbd().write(0, &stamp(0, 7)).unwrap();
        server.kill();
        let file = std::fs::read_dir(memory.path()).unwrap().next().unwrap().unwrap().path();
        std::fs::remove_file(file).unwrap();
        if recovery {
            expect(&place.run("serve", &[]), 3, "this start cannot use it: it is gone");
            expect(&place.run("detach", &[]), 3, "dcd serve --accept-damage");
            expect(&place.run("check", &[]), 0, "it is gone");
        }
        let mut server = place.dcd();
        server.arg("serve").arg(place.stack()).stdout(Stdio::piped()).stderr(Stdio::piped());
        server.args(recovery.then_some("--accept-damage"));
        let mut server = Server { child: server.spawn().unwrap() };
        let mut line = String::new();
        BufReader::new(server.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        place.nbd().read(0, BLOCK).unwrap();
        let said = String::from_utf8(server.stop().stderr).unwrap();
        assert!(said.contains("may be lost: its memory is not used, as it is gone"), "{said}");
        expect(&place.run("check", &[]), 0, "");
    }
}

/// A command that would write back the log without them waits for the memory (half a minute), and changes nothing.
#[test]
fn rule_15_nothing_is_written_back_while_answered_writes_cannot_be_taken_in() {
    let test = "rule_15_nothing_is_written_back_while_answered_writes_cannot_be_taken_in";
    let (place, flock) = (Place::new(), tool(test, "flock"));
    let (Some(memory), Some(flock)) = (&place.memory, flock) else {
        return eprintln!("SKIPPED: /dev/shm cannot be written, or flock is missing");
    };
    place.format();
    let server = place.serve();
    place.nbd().write(0, &stamp(0, 7)).unwrap();
    server.kill();
    let file = std::fs::read_dir(memory.path()).unwrap().next().unwrap().unwrap().path();
    let mut user = Command::new(flock);
    user.arg("-F").arg(&file).args(["sh", "-c", "echo; exec sleep 1000"]);
    let mut user = user.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(user.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    for command in ["detach", "rescue"] {
        expect(&place.run(command, &[]), 3, "cannot be taken into the log");
    }
    user.kill().unwrap();
    user.wait().unwrap();
    expect(&place.run("detach", &[]), 0, "taken from its memory into the log");
    assert_eq!(place.bare()[..BLOCK], stamp(0, 7));
}

type Request = fn(&mut Oracle, &mut Nbd) -> io::Result<()>;

const WRITES: Request = |oracle, nbd| (0..16).try_for_each(|block| oracle.write(nbd, block));
const WRITES_AND_FLUSH: Request = |oracle, nbd| WRITES(oracle, nbd).and_then(|()| oracle.flush(nbd));

/// Kills a server whose log has stopped taking writes before `request`, and counts the blocks that are not what they may
/// be. What the server answers to `request` is in its RAM alone, however fast or slow this machine is: the log is on
/// another machine, whose own server is stopped. Where no answer may come, the kill comes after a while.
fn wrong_where_the_log_stopped(
    near: &Place,
    far: &Place,
    nbdkit: &Path,
    mut oracle: Oracle,
    request: Request,
    answered: bool,
) -> u64 {
    let log = Foreign::start(nbdkit, far);
    near.format();
    let server = near.serve();
    let mut nbd = near.nbd();
    WRITES_AND_FLUSH(&mut oracle, &mut nbd).unwrap();
    signal(&log.0, "STOP");
    if answered {
        request(&mut oracle, &mut nbd).unwrap();
        server.kill();
    } else {
        killed_under(server, Duration::from_millis(300), || request(&mut oracle, &mut nbd).unwrap_err());
    }
    // With all that it has not read.
    drop(log);
    let _log = Foreign::start(nbdkit, far);
    let _server = near.serve();
    oracle.wrong(&mut near.nbd())
}

#[test]
fn without_nbd_recovery_answered_writes_are_lost_by_a_kill_and_the_checks_see_it() {
    let Some(nbdkit) = tool("nbd-recovery and a log that stops", "nbdkit") else { return };
    for (recovery, memory, lost) in [(true, false, 0), (false, false, 16), (true, true, 0), (false, true, 0)]
    {
        let far = far(8);
        let near = near(&far, "log", "", "");
        if memory && near.memory.is_none() {
            continue;
        }
        let near = if memory { near } else { near.without_memory() };
        near.add_to_serve(&format!("nbd-recovery = {recovery}\n"));
        let answered = memory || !recovery;
        let wrong = wrong_where_the_log_stopped(&near, &far, &nbdkit, Oracle::new(true), WRITES, answered);
        assert_eq!(wrong, lost, "nbd-recovery = {recovery}, memory: {memory}");
    }
}

#[test]
fn a_server_that_lies_about_flushes_is_caught() {
    let Some(nbdkit) = tool("a server that lies about flushes", "nbdkit") else { return };
    for (lies, lost) in [(false, 0), (true, 16)] {
        let far = far(8);
        let near = near(
            &far,
            "log",
            "",
            &format!("[layer.liar]\nkind = \"fault\"\nof = \"cache\"\nignore-flush = {lies}\n"),
        );
        let near = near.without_memory();
        let text = std::fs::read_to_string(near.stack()).unwrap();
        std::fs::write(near.stack(), text.replace("export = \"cache\"", "export = \"liar\"")).unwrap();
        let wrong =
            wrong_where_the_log_stopped(&near, &far, &nbdkit, Oracle::new(false), WRITES_AND_FLUSH, lies);
        assert_eq!(wrong, lost, "ignore-flush = {lies}");
    }
}

/// fio that writes blocks with checksums and numbers, and notes how far it came.
fn fio(place: &Place, target: &[&str], more: &[&str]) -> Command {
    let mut command = Command::new("fio");
    command
        .current_dir(place.dir.path())
        .args(["--name=kill", "--rw=randwrite", "--bs=4k", "--size=8m", "--iodepth=1", "--thread=1"])
        .args(["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=1", "--output=fio.out"])
        .args(["--random_generator=tausworthe64", "--norandommap=0", "--loops=1"])
        .args(target)
        .args(more)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn verified(place: &Place, target: &[&str], seed: &str) -> Output {
    let mut command = fio(place, target, &[seed, "--verify_only=1", "--verify_state_load=1"]);
    command.stderr(Stdio::piped()).output().unwrap()
}

/// Kills a server under fio. Returns whether all writes that fio saw completed are verified.
fn fio_round(place: &Place, target: &[&str], mount: Option<&Path>, round: u64) -> bool {
    let seed = format!("--randseed={}", round + 1);
    let server = place.serve();
    let mut load = fio(place, target, &[&seed, "--do_verify=0", "--rate_iops=3000"]).spawn().unwrap();
    wait_for_writes(place, 50);
    killed_under(server, Duration::from_millis(100 + round * 40), || {
        load.wait().unwrap();
    });
    detach_fuse(mount);
    let server = place.serve();
    let output = verified(place, target, &seed);
    server.kill();
    detach_fuse(mount);
    if !output.status.success() {
        let said = std::fs::read_to_string(place.path("fio.out")).unwrap_or_default();
        println!("{}\n{said}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

/// Waits until a client is at work: on a busy machine that takes its time.
fn wait_for_writes(place: &Place, count: u64) {
    let began = Instant::now();
    loop {
        let output = place.run("status", &["--json"]);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if status["requests"]["write"]["count"].as_u64().is_some_and(|seen| seen >= count) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "fio writes");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A killed FUSE server leaves a dead mount.
fn detach_fuse(mount: Option<&Path>) {
    if let Some(mount) = mount {
        let _ = Command::new("fusermount3").arg("-uz").arg(mount).stderr(Stdio::null()).status();
    }
}

#[test]
fn completed_writes_of_fio_survive_a_kill_over_nbd() {
    if tool("kill over NBD", "fio").is_none() {
        return;
    }
    let place = Place::new();
    place.write_stack("promise = \"always\"\n");
    place.format();
    let uri = format!("--uri=nbd+unix:///?socket={}", place.path("nbd.sock").display());
    for round in 0..ROUNDS / 2 {
        assert!(fio_round(&place, &["--ioengine=nbd", &uri], None, round), "round {round}");
    }
}

#[test]
fn completed_writes_of_fio_survive_a_kill_over_fuse() {
    if tool("kill over FUSE", "fio").is_none() {
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        crate::common::skip("kill over FUSE: /dev/fuse is not here");
        return;
    }
    let place = Place::new();
    let mount = place.path("mnt");
    std::fs::create_dir(&mount).unwrap();
    place.write_stack("promise = \"always\"\n");
    let text = std::fs::read_to_string(place.stack()).unwrap();
    std::fs::write(place.stack(), text.replace("[serve]", "[serve]\nfuse = \"mnt\"")).unwrap();
    place.format();
    let file = format!("--filename={}", mount.join("disk.img").display());
    let target = ["--ioengine=psync", "--direct=1", &file];
    for round in 0..ROUNDS / 2 {
        assert!(fio_round(&place, &target, Some(&mount), round), "round {round}");
    }
}
