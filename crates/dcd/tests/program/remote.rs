//! Devices on another machine, as far as one machine can be two: exports of servers that are killed, come back, or do not.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::Value;

use crate::common::{MIB, Nbd, Place, Server, expect, tool};

const BLOCK: u64 = 4096;

/// The other machine: it serves `disk.img`, which has this size.
pub fn far(mib: u64) -> Place {
    let place = Place::new();
    File::create(place.path("disk.img")).unwrap().set_len(mib * MIB).unwrap();
    let text = "export = \"disk\"\n[serve]\nnbd = \"unix:nbd.sock\"\nnbd-name = \"disk\"\ncontrol = \"control.sock\"\n[device.disk]\npath = \"disk.img\"\n";
    fs::write(place.stack(), text).unwrap();
    place
}

/// A stack whose part of this name, `log` or `data`, is on the other machine.
pub fn near(far: &Place, part: &str, more_device: &str, more_cache: &str) -> Place {
    let place = Place::new();
    let uri = format!("nbd+unix:///disk?socket={}", far.path("nbd.sock").display());
    let (log, data) = match part {
        "log" => (format!("path = \"{uri}\"\n{more_device}"), "path = \"data.img\"".to_owned()),
        _ => ("path = \"log.img\"".to_owned(), format!("path = \"{uri}\"\n{more_device}")),
    };
    let text = format!(
        "export = \"cache\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n[device.log]\n{log}\n[device.data]\n{data}\n\
         [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"data\"\n{more_cache}\n"
    );
    fs::write(place.stack(), text).unwrap();
    place
}

fn status(place: &Place) -> Value {
    let output = place.run("status", &["--json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// Waits until the status is so.
fn until(place: &Place, what: &str, is_so: impl Fn(&Value) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let status = status(place);
        if is_so(&status) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {status:#}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn connection(status: &Value, device: &str) -> String {
    let devices = status["devices"].as_array().unwrap();
    let device = devices.iter().find(|found| found["device"] == device).unwrap();
    device["connection"].as_str().unwrap_or_default().to_owned()
}

fn stamp(block: u64, version: u64) -> Vec<u8> {
    [block.to_le_bytes(), version.to_le_bytes()].concat().repeat(BLOCK as usize / 16)
}

/// Writes blocks, reads others back, and flushes now and then; returns the version of each.
fn load(nbd: &mut Nbd, versions: &mut [u64], seed: u64, until: impl Fn() -> bool) {
    let mut random = seed;
    let mut version = seed << 32;
    while !until() {
        for _ in 0..16 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = (random >> 33) % versions.len() as u64;
            version += 1;
            versions[block as usize] = version;
            nbd.write(block * BLOCK, &stamp(block, version)).unwrap();
            let other = (random >> 20) % versions.len() as u64;
            let expected = stamp_or_zero(other, versions[other as usize]);
            assert!(nbd.read(other * BLOCK, BLOCK as usize).unwrap() == expected, "block {other}");
        }
        nbd.flush().unwrap();
    }
}

fn stamp_or_zero(block: u64, version: u64) -> Vec<u8> {
    if version == 0 { vec![0; BLOCK as usize] } else { stamp(block, version) }
}

/// Compares a file that nobody serves any more.
fn compare(file: &File, versions: &[u64]) {
    let mut found = vec![0; BLOCK as usize];
    for (block, version) in versions.iter().enumerate() {
        file.read_exact_at(&mut found, block as u64 * BLOCK).unwrap();
        assert!(found == stamp_or_zero(block as u64, *version), "block {block}");
    }
}

/// A server that is killed when it is dropped.
pub struct Foreign(pub Child);

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Foreign {
    /// Has another program than dcd serve the other machine's disk.
    pub fn start(program: &Path, far: &Place) -> Foreign {
        let (socket, disk) = (far.path("nbd.sock"), far.path("disk.img"));
        let _ = fs::remove_file(&socket);
        let mut command = Command::new(program);
        if program.ends_with("nbdkit") {
            command
                .args(["--foreground", "--exit-with-parent", "--unix"])
                .arg(&socket)
                .arg("file")
                .arg(&disk);
        } else {
            command.args(["--format=raw", "--persistent", "--shared=8", "--export-name=disk", "--socket"]);
            command.arg(&socket).arg(&disk);
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        // The socket's file is there before somebody listens.
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < deadline, "{} does not start", program.display());
            std::thread::sleep(Duration::from_millis(5));
        }
        Foreign(child)
    }
}

#[test]
fn clients_do_not_see_that_the_server_of_the_data_disk_is_killed() {
    let far = far(16);
    let mut other = Some(far.serve());
    // All that is written soon goes to the other machine.
    let near = near(&far, "data", "", "idle-empty = \"1ms\"\nbypass = \"0\"");
    // A log that is full would have clients wait for the other machine.
    File::options().write(true).open(near.path("log.img")).unwrap().set_len(64 * MIB).unwrap();
    near.format();
    let server = near.serve();
    let mut versions = vec![0; (16 * MIB / BLOCK) as usize];
    let mut nbd = near.nbd();
    for round in 1..=8 {
        let began = Instant::now();
        load(&mut nbd, &mut versions, round, || began.elapsed() > Duration::from_millis(200));
        other.take().unwrap().kill();
        let began = Instant::now();
        // What is in the log is written and read meanwhile; reads of the rest wait, so there are none.
        let mut written = vec![0; versions.len()];
        while began.elapsed() < Duration::from_millis(100) {
            for block in 0..16u64 {
                written[block as usize] += 1;
                let version = round << 32 | 1 << 31 | written[block as usize];
                versions[block as usize] = version;
                nbd.write(block * BLOCK, &stamp(block, version)).unwrap();
                assert!(nbd.read(block * BLOCK, BLOCK as usize).unwrap() == stamp(block, version));
            }
            nbd.flush().unwrap();
        }
        until(&near, "the loss is told", |status| connection(status, "data").starts_with("not connected"));
        other = Some(far.serve());
    }
    nbd.disconnect().unwrap();
    until(&near, "the losses are told", |status| connection(status, "data").contains("lost 8 times"));
    expect(&server.stop(), 0, "");
    expect(&near.run("detach", &["--quiet"]), 0, "");
    expect(&other.unwrap().stop(), 0, "");
    compare(&File::open(far.path("disk.img")).unwrap(), &versions);
}

/// A data disk that is away is named once, and a log gets no line for each look at an amount that stays.
#[test]
fn a_flush_says_which_disk_it_waits_for() {
    let far = far(16);
    let other = far.serve();
    let place = near(&far, "data", "", "when = \"when-full\"\n");
    place.format();
    let server = place.serve();
    place.nbd().write(0, &stamp(0, 1)).unwrap();
    other.kill();
    let mut flush = place.dcd().arg("flush").arg(place.stack()).stderr(Stdio::piped()).spawn().unwrap();
    until(&place, "the loss is told", |status| {
        status["devices_not_answering"][0]["seconds"].as_f64() > Some(13.0)
    });
    flush.kill().unwrap();
    let said = String::from_utf8(flush.wait_with_output().unwrap().stderr).unwrap();
    assert_eq!((said.matches("4 KiB left").count(), said.matches("waiting").count()), (1, 1), "{said}");
    assert!(said.contains("waiting, as device \"data\" (") && said.contains("not connected for "), "{said}");
    let other = far.serve();
    expect(&place.run("flush", &[]), 0, "");
    expect(&server.stop(), 0, "");
    expect(&other.stop(), 0, "");
}

/// The other machine offers no flush, and its writes survive its kills. With another promise it is not continued with.
#[test]
fn a_server_with_the_promise_always_is_not_flushed_and_keeps_that_promise() {
    let far = Place::new();
    let stack = |promise: &str| {
        far.write_stack(&format!("promise = \"{promise}\"\n"));
        far.add_to_serve("nbd-name = \"disk\"\n");
    };
    stack("always");
    far.format();
    let mut other = far.serve();
    let near = near(&far, "data", "", "idle-empty = \"1ms\"");
    near.format();
    let server = near.serve();
    let (mut nbd, mut versions) = (near.nbd(), vec![0; 512]);
    for (block, version) in versions.iter_mut().enumerate() {
        *version = 1 << 40 | block as u64;
        nbd.write(block as u64 * BLOCK, &stamp(block as u64, *version)).unwrap();
    }
    for round in 1..=3 {
        let began = Instant::now();
        load(&mut nbd, &mut versions, round, || began.elapsed() > Duration::from_millis(200));
        other.kill();
        other = far.serve();
    }
    until(&near, "it is destaged", |status| status["state"] == "clean");
    other.kill();
    stack("flush");
    other = far.serve();
    until(&near, "the promise", |status| connection(status, "data").contains("another promise"));
    other.kill();
    stack("always");
    other = far.serve();
    until(&near, "the right promise", |status| connection(status, "data").starts_with("connected"));
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
    expect(&near.run("detach", &["--quiet"]), 0, "");
    expect(&other.stop(), 0, "");
    expect(&far.run("detach", &["--quiet"]), 0, "");
    compare(&File::open(far.path("data.img")).unwrap(), &versions);
}

#[test]
fn a_log_on_another_machine_outlives_either_server() {
    // dcd serves no log as if it were a disk.
    let Some(nbdkit) = tool("a_log_on_another_machine_outlives_either_server", "nbdkit") else { return };
    let far = far(8);
    let mut other = Foreign::start(&nbdkit, &far);
    let near = near(&far, "log", "", "idle-empty = \"3600s\"");
    near.format();
    let mut server = near.serve();
    let mut versions = vec![0; 512];
    let mut nbd = near.nbd();
    // The data disk is not empty.
    for (block, version) in versions.iter_mut().enumerate() {
        *version = 1 << 40 | block as u64;
        nbd.write(block as u64 * BLOCK, &stamp(block as u64, *version)).unwrap();
    }
    for round in 1..=4 {
        let began = Instant::now();
        load(&mut nbd, &mut versions, round, || began.elapsed() > Duration::from_millis(100));
        drop(other);
        other = Foreign::start(&nbdkit, &far);
        load(&mut nbd, &mut versions, round + 100, || began.elapsed() > Duration::from_millis(300));
        server.kill();
        server = near.serve();
        nbd = near.nbd();
    }
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
    expect(&near.run("detach", &["--quiet"]), 0, "");
    compare(&File::open(near.path("data.img")).unwrap(), &versions);
    drop(other);
}

#[test]
fn another_disk_under_the_name_is_not_taken_and_the_right_one_is() {
    let far = far(16);
    let mut other = far.serve();
    let near = near(&far, "data", "", "idle-empty = \"1ms\"");
    near.format();
    let server = near.serve();
    let mut nbd = near.nbd();
    nbd.write(0, &stamp(0, 7)).unwrap();
    nbd.flush().unwrap();
    until(&near, "it is destaged", |status| status["state"] == "clean");
    expect(&near.run("check", &[]), 3, "in use");
    for (image, why) in [(17, "it is another disk"), (16, "other content than before")] {
        other.kill();
        fs::rename(far.path("disk.img"), far.path("right.img")).unwrap();
        File::create(far.path("disk.img")).unwrap().set_len(image * MIB).unwrap();
        other = far.serve();
        until(&near, why, |status| connection(status, "data").contains(why));
        assert_eq!(
            fs::read(far.path("disk.img")).unwrap(),
            vec![0; (image * MIB) as usize],
            "nothing was written"
        );
        other.kill();
        fs::rename(far.path("right.img"), far.path("disk.img")).unwrap();
        other = far.serve();
        until(&near, "the right one", |status| connection(status, "data").starts_with("connected"));
    }
    assert_eq!(nbd.read(0, BLOCK as usize).unwrap(), stamp(0, 7));
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}

#[test]
fn a_leg_on_another_machine_that_does_not_come_back_is_left_out_after_its_timeout() {
    let far = far(8);
    let other = far.serve();
    let near = near(&far, "data", "", "");
    let text = format!(
        "export = \"cache\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n[device.data]\npath = \"data.img\"\n\
         [device.here]\npath = \"log.img\"\n[device.there]\npath = \"nbd+unix:///disk?socket={}\"\ntimeout = \"500ms\"\n\
         [layer.cache]\nkind = \"log-cache\"\nlog = [\"here\", \"there\"]\ndata = \"data\"\nidle-empty = \"3600s\"\n",
        far.path("nbd.sock").display()
    );
    fs::write(near.stack(), text).unwrap();
    near.format();
    let server = near.serve();
    let mut nbd = near.nbd();
    nbd.write(0, &stamp(0, 1)).unwrap();
    nbd.flush().unwrap();
    other.kill();
    nbd.write(BLOCK, &stamp(1, 1)).unwrap();
    nbd.flush().unwrap();
    let legs = |near: &Place| near.dcd().args(["log", "status"]).arg(near.stack()).output().unwrap();
    expect(&legs(&near), 5, "1 of 2 legs whole");
    nbd.disconnect().unwrap();
    server.kill();
    // Its label says so: a start needs no consent.
    let server = near.serve();
    let mut nbd = near.nbd();
    assert_eq!(nbd.read(BLOCK, BLOCK as usize).unwrap(), stamp(1, 1));
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}

/// A server that answers the handshake as another one did, and nothing after it.
fn mute(socket: &Path, said: &[u8]) {
    let listener = UnixListener::bind(socket).unwrap();
    let said = said.to_vec();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        while let Ok((mut client, _)) = listener.accept() {
            let answers = [&said[..GREETING], &said[GREETING..]].map(<[u8]>::to_vec);
            let mute = client.try_clone().unwrap();
            std::thread::spawn(move || -> std::io::Result<()> {
                client.write_all(&answers[0])?;
                client.read_exact(&mut [0; 4 + 16])?;
                client.write_all(&answers[1])?;
                std::io::copy(&mut client, &mut std::io::sink()).map(|_| ())
            });
            open.push(mute);
        }
    });
}

const GREETING: usize = 18;

/// Returns the bytes that a server sends in the handshake with a client of dcd.
fn said_in_handshake(socket: &Path) -> Vec<u8> {
    let mut said = Said { stream: UnixStream::connect(socket).unwrap(), bytes: Vec::new() };
    dcd_nbd::handshake::handshake(&mut said, "disk", false).unwrap();
    said.bytes
}

struct Said {
    stream: UnixStream,
    bytes: Vec<u8>,
}

impl Read for Said {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.stream.read(into)?;
        self.bytes.extend_from_slice(&into[..count]);
        Ok(count)
    }
}

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_leg_whose_server_comes_back_mute_is_left_out_after_its_timeout() {
    let far = far(8);
    let other = far.serve();
    let near = near(&far, "data", "", "");
    let text = format!(
        "export = \"cache\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n[device.data]\npath = \"data.img\"\n\
         [device.here]\npath = \"log.img\"\n[device.there]\npath = \"nbd+unix:///disk?socket={}\"\ntimeout = \"2s\"\n\
         [layer.cache]\nkind = \"log-cache\"\nlog = [\"here\", \"there\"]\ndata = \"data\"\nidle-empty = \"3600s\"\n",
        far.path("nbd.sock").display()
    );
    fs::write(near.stack(), text).unwrap();
    near.format();
    let server = near.serve();
    let mut nbd = near.nbd();
    nbd.write(0, &stamp(0, 1)).unwrap();
    nbd.flush().unwrap();
    let said = said_in_handshake(&far.path("nbd.sock"));
    other.kill();
    fs::remove_file(far.path("nbd.sock")).unwrap();
    mute(&far.path("nbd.sock"), &said);
    until(&near, "it is connected again", |status| connection(status, "there").contains("lost once"));
    nbd.write(BLOCK, &stamp(1, 1)).unwrap();
    nbd.flush().unwrap();
    let legs = |near: &Place| near.dcd().args(["log", "status"]).arg(near.stack()).output().unwrap();
    expect(&legs(&near), 5, "1 of 2 legs whole");
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}

#[test]
fn a_server_that_stood_still_itself_blames_no_leg() {
    let far = far(8);
    let other = far.serve();
    let near = near(&far, "log", "timeout = \"1s\"\n", "");
    near.format();
    let server = near.serve();
    let mut nbd = near.nbd();
    for round in 0..3 {
        nbd.write(0, &stamp(0, round)).unwrap();
        crate::common::signal(&server.child, "STOP");
        std::thread::sleep(Duration::from_millis(1500));
        crate::common::signal(&server.child, "CONT");
        nbd.flush().unwrap();
    }
    expect(&near.run("status", &[]), 0, "");
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
    expect(&other.stop(), 0, "");
}

#[test]
fn what_is_wrong_with_an_export_is_said_and_nothing_is_lost() {
    let far = far(16);
    let near = near(&far, "data", "", "");
    expect(&near.run("format", &[]), 1, "cannot be reached");
    let right = fs::read_to_string(near.stack()).unwrap();
    for (wrong, said) in [
        ("nbd+unix:///disk", "no socket is named"),
        ("nbd://host:99999/disk", "the port \"99999\" is no number from 1 to 65535"),
        ("nbdx://host/disk", "is no NBD URI"),
    ] {
        let uri = format!("nbd+unix:///disk?socket={}", far.path("nbd.sock").display());
        fs::write(near.stack(), right.replace(&uri, wrong)).unwrap();
        expect(&near.run("check", &[]), 1, said);
    }
    fs::write(near.stack(), right.replace("path = \"log.img\"", "path = \"log.img\"\ntimeout = \"3s\""))
        .unwrap();
    expect(&near.run("check", &[]), 1, "\"timeout\" belongs to the URI of an NBD server");
    fs::write(near.stack(), right.replace("///disk", "///other")).unwrap();
    let other = far.serve();
    let made = |uri: &str| {
        let mut format = near.dcd();
        format.arg("format").args(["--data", uri, "--log"]).arg(near.path("log.img")).arg("--stack");
        format.arg(near.path("made.toml")).output().unwrap()
    };
    expect(&made("nbd:///disk"), 1, "no host is named");
    expect(
        &made(&format!("nbd+unix:///other?socket={}", far.path("nbd.sock").display())),
        1,
        "no export has this name",
    );
    expect(&near.run("format", &[]), 1, "no export has this name");
    fs::write(near.stack(), &right).unwrap();
    near.format();
    let server = near.serve();
    let mut nbd = near.nbd();
    nbd.write(0, &stamp(0, 1)).unwrap();
    nbd.flush().unwrap();
    nbd.disconnect().unwrap();
    server.kill();
    // The record of what is over there is here, and keeps the disk from being served without its newest data.
    let device = &right[right.find("[device.data]").unwrap()..right.find("[layer.cache]").unwrap()];
    let serve = "[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n";
    fs::write(near.stack(), format!("export = \"data\"\n{serve}{device}")).unwrap();
    expect(&near.run("serve", &[]), 3, "cache");
    fs::write(near.stack(), right).unwrap();
    let server = near.serve();
    let mut nbd = near.nbd();
    assert_eq!(nbd.read(0, BLOCK as usize).unwrap(), stamp(0, 1));
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
    expect(&other.stop(), 0, "");
}

#[test]
fn qemu_nbd_and_nbdkit_are_servers_like_any_other() {
    let name = "qemu_nbd_and_nbdkit_are_servers_like_any_other";
    for program in ["qemu-nbd", "nbdkit"] {
        let Some(program) = tool(name, program) else { continue };
        let far = far(16);
        let mut other = Foreign::start(&program, &far);
        let near = near(&far, "data", "", "idle-empty = \"1ms\"");
        near.format();
        let server = near.serve();
        let mut versions = vec![0; (16 * MIB / BLOCK) as usize];
        let mut nbd = near.nbd();
        for round in 1..=4 {
            let began = Instant::now();
            load(&mut nbd, &mut versions, round, || began.elapsed() > Duration::from_millis(200));
            drop(other);
            other = Foreign::start(&program, &far);
        }
        nbd.zero(0, 64 * 1024).unwrap();
        versions[..16].fill(0);
        nbd.disconnect().unwrap();
        expect(&server.stop(), 0, "");
        expect(&near.run("detach", &["--quiet"]), 0, "");
        drop(other);
        compare(&File::open(far.path("disk.img")).unwrap(), &versions);
    }
}

/// Two machines with a leg each, and the data disk on a third.
struct Pair {
    disk: Place,
    peer: Place,
    first: Place,
    second: Place,
}

impl Pair {
    /// `timeout`: of the first machine's connection to the leg of the second.
    fn new(timeout: &str) -> Pair {
        let (disk, peer) = (far(16), far(8));
        // No second dcd of one machine is let in by one address.
        let text = fs::read_to_string(disk.stack()).unwrap();
        let sockets = "[\"unix:nbd.sock\", \"unix:other.sock\"]";
        fs::write(disk.stack(), text.replace("\"unix:nbd.sock\"", sockets)).unwrap();
        let stack = |socket: &str, there: &str| {
            format!(
                "export = \"cache\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n\
                 [device.data]\npath = \"nbd+unix:///disk?socket={}\"\n[device.here]\npath = \"log.img\"\n[device.there]\n{there}\n\
                 [layer.cache]\nkind = \"log-cache\"\nlog = [\"here\", \"there\"]\ndata = \"data\"\nidle-empty = \"3600s\"\n",
                disk.path(socket).display()
            )
        };
        let (first, second) = (
            Place { machine: Some("first"), ..Place::new() },
            Place { machine: Some("second"), ..Place::new() },
        );
        let there =
            format!("path = \"nbd+unix:///disk?socket={}\"\n{timeout}", peer.path("nbd.sock").display());
        fs::write(first.stack(), stack("nbd.sock", &there)).unwrap();
        let there = format!("path = \"{}\"", peer.path("disk.img").display());
        fs::write(second.stack(), stack("other.sock", &there)).unwrap();
        fs::remove_file(second.path("log.img")).unwrap();
        Pair { disk, peer, first, second }
    }

    fn leg(&self) -> Vec<u8> {
        fs::read(self.peer.path("disk.img")).unwrap()
    }
}

fn write_all(place: &Place, version: u64) {
    let mut nbd = place.nbd();
    for block in 0..64 {
        nbd.write(block * BLOCK, &stamp(block, version)).unwrap();
    }
    nbd.flush().unwrap();
    nbd.disconnect().unwrap();
}

#[track_caller]
fn holds_all(place: &Place, version: u64) {
    let mut nbd = place.nbd();
    for block in 0..64 {
        assert_eq!(nbd.read(block * BLOCK, BLOCK as usize).unwrap(), stamp(block, version));
    }
    nbd.disconnect().unwrap();
}

#[test]
fn the_other_machine_takes_over_from_its_leg() {
    let Some(nbdkit) = tool("the_other_machine_takes_over_from_its_leg", "nbdkit") else { return };
    let pair = Pair::new("timeout = \"5s\"");
    let Pair { disk, peer, first, second } = &pair;
    let storage = disk.serve();
    let export = Foreign::start(&nbdkit, peer);
    first.format();
    let server = first.serve();
    write_all(first, 1);
    server.kill();
    let leg = pair.leg();
    expect(&second.run("serve", &[]), 3, "was served last by another machine");
    for command in [vec!["serve", "--degraded"], vec!["rescue"], vec!["detach", "--quiet"]] {
        expect(&second.run(command[0], &command[1..]), 3, "");
    }
    expect(&second.run("serve", &["--degraded"]), 3, "was served last by another machine");
    drop(export);
    expect(&second.run("serve", &["--take-over"]), 3, "add --other-is-off, or --fence COMMAND");
    for nothing in ["", " ", "# off", "\n #off\n"] {
        expect(&second.run("serve", &["--take-over", "--fence", nothing]), 2, "there is no command in it");
    }
    expect(&second.run("serve", &["--take-over", "--fence", "false"]), 3, "has failed (exit status: 1)");
    assert!(pair.leg() == leg, "nothing was changed");
    let fence = format!("test ${{#DCD_OTHER_MACHINE}} = 16 && touch '{}'", second.path("fenced").display());
    let server = second.serve_with(&["--take-over", "--fence", &fence]);
    assert!(second.path("fenced").exists());
    holds_all(second, 1);
    write_all(second, 2);
    server.kill();
    // It is its own now, and the leg that is missing is known to have failed.
    let server = second.serve();
    holds_all(second, 2);
    server.kill();
    // The first machine comes back: its own leg is out of date, and does not count.
    let export = Foreign::start(&nbdkit, peer);
    expect(&first.run("serve", &[]), 3, "was served last by another machine");
    drop(export);
    expect(&second.serve().stop(), 0, "");
    let export = Foreign::start(&nbdkit, peer);
    let server = first.serve();
    holds_all(first, 2);
    expect(&server.stop(), 0, "");
    drop(export);
    expect(&storage.stop(), 0, "");
}

#[test]
fn a_machine_that_was_taken_for_dead_writes_nothing_to_the_leg_that_was_taken_over() {
    let name = "a_machine_that_was_taken_for_dead_writes_nothing_to_the_leg_that_was_taken_over";
    let Some(nbdkit) = tool(name, "nbdkit") else { return };
    let pair = Pair::new("");
    let Pair { disk, peer, first, second } = &pair;
    let storage = disk.serve();
    let export = Foreign::start(&nbdkit, peer);
    first.format();
    let old = first.serve();
    write_all(first, 1);
    expect(&second.run("serve", &["--take-over", "--other-is-off"]), 3, "nbdkit (process");
    // The link is cut. The first machine lives on, and its client waits.
    drop(export);
    until(first, "the loss is told", |status| connection(status, "there").starts_with("not connected"));
    let mut nbd = first.nbd();
    let waits = std::thread::spawn(move || nbd.write(0, &stamp(0, 3)).and_then(|()| nbd.flush()));
    let server = second.serve_with(&["--take-over", "--other-is-off"]);
    holds_all(second, 1);
    write_all(second, 2);
    expect(&server.stop(), 0, "");
    let leg = pair.leg();
    let export = Foreign::start(&nbdkit, peer);
    until(first, "it sees that", |status| {
        connection(status, "there").contains("another machine has written to it")
    });
    assert!(!waits.is_finished(), "nothing is answered that the leg has not");
    old.kill();
    assert!(waits.join().unwrap().is_err());
    drop(export);
    assert!(pair.leg() == leg, "nothing was written there");
    let server = second.serve();
    holds_all(second, 2);
    expect(&server.stop(), 0, "");
    expect(&storage.stop(), 0, "");
}

/// Certificates of an authority, a server and a client, in a directory.
fn certificates(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    let mut parameters = CertificateParams::new(Vec::new()).unwrap();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    fs::write(directory.join("ca-cert.pem"), parameters.self_signed(&key).unwrap().pem()).unwrap();
    let authority = Issuer::new(parameters, key);
    for (whose, name) in [("server", "127.0.0.1"), ("client", "a client")] {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &authority).unwrap();
        fs::write(directory.join(format!("{whose}-cert.pem")), certificate.pem()).unwrap();
        fs::write(directory.join(format!("{whose}-key.pem")), key.serialize_pem()).unwrap();
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn over_tls_both_sides_know_each_other_and_nobody_else_is_served() {
    let far = far(16);
    let right = far.path("tls");
    certificates(&right);
    let port = free_port();
    let text = fs::read_to_string(far.stack()).unwrap();
    let tls = format!("[\"unix:nbd.sock\", \"tcp:{port}\"]\nnbd-tls = \"tls\"");
    fs::write(far.stack(), text.replace("\"unix:nbd.sock\"", &tls)).unwrap();
    let authority = right.join("ca-cert.pem");
    fs::rename(&authority, far.path("away")).unwrap();
    let refused = Server::start(&far, &[]).err().expect("all clients would be served");
    expect(&refused, 1, "nbd-tls-clients = \"anyone\"");
    expect(&far.run("doctor", &[]), 1, "nbd-tls-clients = \"anyone\"");
    fs::rename(far.path("away"), &authority).unwrap();
    let mut other = far.serve();
    let near = near(&far, "data", "", "idle-empty = \"1ms\"");
    let text = fs::read_to_string(near.stack()).unwrap();
    let unix = format!("nbd+unix:///disk?socket={}", far.path("nbd.sock").display());
    let foreign = far.path("foreign");
    certificates(&foreign);
    // It knows the server, which does not know it.
    let (unknown, nobody) = (far.path("unknown"), far.path("nobody"));
    for (directory, own) in [(&unknown, true), (&nobody, false)] {
        fs::create_dir(directory).unwrap();
        fs::copy(right.join("ca-cert.pem"), directory.join("ca-cert.pem")).unwrap();
        for name in ["client-cert.pem", "client-key.pem"].into_iter().filter(|_| own) {
            fs::copy(foreign.join(name), directory.join(name)).unwrap();
        }
    }
    let over_tls = |certificates: &Path| {
        format!("nbds://127.0.0.1:{port}/disk?tls-certificates={}", certificates.display())
    };
    for (uri, said) in [
        (format!("nbd://127.0.0.1:{port}/disk"), "write nbds instead of nbd"),
        (over_tls(&foreign), "TLS fails"),
        (over_tls(&unknown), "TLS fails: received fatal alert"),
        (over_tls(&nobody), "TLS fails: received fatal alert"),
        (over_tls(&far.path("empty")), "ca-cert.pem"),
        (format!("{}&tls-hostname=other", over_tls(&right)), "TLS fails"),
        (
            unix.replace("nbd+", "nbds+")
                .replace("disk?", &format!("disk?tls-certificates={}&", right.display())),
            "has no TLS",
        ),
    ] {
        fs::write(near.stack(), text.replace(&unix, &uri)).unwrap();
        expect(&near.run("format", &[]), 1, said);
    }
    expect(&other.stop(), 0, "is not served: its TLS handshake has failed: ");
    other = far.serve();
    fs::write(near.stack(), text.replace(&unix, &over_tls(&right))).unwrap();
    near.format();
    let server = near.serve();
    let mut versions = vec![0; (16 * MIB / BLOCK) as usize];
    let mut nbd = near.nbd();
    for round in 1..=3 {
        let began = Instant::now();
        load(&mut nbd, &mut versions, round, || began.elapsed() > Duration::from_millis(300));
        other.kill();
        other = far.serve();
    }
    // Longer than a record of TLS, and than what is sent at once.
    let long: Vec<u8> = (0..1 << 20).map(|at| (at / 4096) as u8).collect();
    nbd.write(0, &long).unwrap();
    assert!(nbd.read(0, long.len()).unwrap() == long);
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
    expect(&near.run("detach", &["--quiet"]), 0, "");
    expect(&other.stop(), 0, "");
    let disk = fs::read(far.path("disk.img")).unwrap();
    assert!(disk[..long.len()] == long);
    let file = File::open(far.path("disk.img")).unwrap();
    let rest = long.len() / BLOCK as usize;
    for (block, version) in versions.iter().enumerate().skip(rest) {
        let mut found = vec![0; BLOCK as usize];
        file.read_exact_at(&mut found, block as u64 * BLOCK).unwrap();
        assert!(found == stamp_or_zero(block as u64, *version), "block {block}");
    }
}
