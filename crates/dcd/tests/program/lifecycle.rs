//! The life of a cache, from formatting to detaching, as a user sees it: real files, a real server, NBD.

use std::fs;
use std::time::{Duration, Instant};

use crate::common::{MIB, Place, dcd, expect, original, signal};

/// Writes that stay small, so that they go through the log: 64 blocks spread over the disk.
fn write_blocks(place: &Place, seed: u8) -> Vec<(u64, Vec<u8>)> {
    let mut nbd = place.nbd();
    let blocks: Vec<(u64, Vec<u8>)> =
        (0..64u64).map(|i| ((i * 37 % 64) * 256 * 1024 + 4096, vec![seed ^ i as u8; 4096])).collect();
    for (at, bytes) in &blocks {
        nbd.write(*at, bytes).unwrap();
    }
    nbd.flush().unwrap();
    nbd.disconnect().unwrap();
    blocks
}

fn with_blocks(blocks: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut disk = original(16 * MIB);
    for (at, bytes) in blocks {
        disk[*at as usize..*at as usize + bytes.len()].copy_from_slice(bytes);
    }
    disk
}

fn status(place: &Place) -> serde_json::Value {
    // A disk that takes no writes is no reason to say nothing.
    let output = place.run("status", &["--json"]);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_cache_is_attached_used_and_taken_off_again() {
    let place = Place::new();
    place.format();
    assert!(place.record().exists(), "the disk has a record of its cache");
    assert!(place.bare() == original(16 * MIB), "formatting does not write on the data disk");

    let server = place.serve();
    assert!(place.nbd().read(0, MIB as usize).unwrap() == original(16 * MIB)[..MIB as usize]);
    let blocks = write_blocks(&place, 0x5a);
    assert_eq!(place.nbd().read(blocks[3].0, 4096).unwrap(), blocks[3].1);
    assert_eq!(place.nbd().bytes, 16 * MIB);
    expect(&place.run("status", &[]), 0, "cache");
    expect(&server.stop(), 0, "");

    // A second life: what was written is there, whether it went home or not.
    let server = place.serve();
    assert_eq!(place.nbd().read(blocks[7].0, 4096).unwrap(), blocks[7].1);
    expect(&server.stop(), 0, "");
    expect(&place.run("check", &[]), 0, "");
    expect(&place.run("dump", &[]), 0, "");

    expect(&place.run("detach", &["--quiet"]), 0, "");
    assert!(!place.record().exists(), "the disk is a plain disk again");
    assert!(place.bare() == with_blocks(&blocks), "and holds everything");
    expect(&place.run("serve", &[]), 3, "was detached");

    let events = String::from_utf8(place.run("events", &[]).stdout).unwrap();
    let told: Vec<&str> = events.lines().map(|line| &line["2026-01-01 00:00:00 ".len()..]).collect();
    let starts = told.iter().filter(|line| line.starts_with("notice a server starts, version ")).count();
    let stops = told.iter().filter(|line| **line == "notice the server has stopped").count();
    assert_eq!((starts, stops), (3, 2), "{events}");
    assert!(told.last().unwrap().starts_with("error ") && events.contains("was detached"), "{events}");
    let last = String::from_utf8(place.run("events", &["--lines", "1"]).stdout).unwrap();
    assert!(last.lines().count() == 1 && events.ends_with(&last), "{last}");
}

#[test]
fn flush_brings_everything_home_while_serving() {
    let place = Place::new();
    // Nothing goes home by itself.
    place.write_stack("when = \"when-full\"\nhigh-mark = 100\n");
    place.format();
    let server = place.serve();
    let blocks = write_blocks(&place, 0x11);
    assert!(place.bare() == original(16 * MIB), "it is in the log only");
    let cache = &status(&place)["layers"]["cache"];
    let (used, dirty) = (cache["used_bytes"].as_u64().unwrap(), cache["dirty_bytes"].as_u64().unwrap());
    assert!(used >= dirty && dirty >= 64 * 4096, "what is dirty is in the log: {used} of {dirty}");
    expect(&place.run("flush", &["--quiet"]), 0, "");
    assert!(place.bare() == with_blocks(&blocks), "now it is home");
    assert_eq!(status(&place)["layers"]["cache"]["dirty_bytes"], 0);
    expect(&server.stop(), 0, "");
    let record = fs::read_to_string(place.record()).unwrap();
    assert!(record.contains("\"state\": \"clean\""), "{record}");
}

#[test]
fn a_crash_costs_nothing_that_was_flushed() {
    let place = Place::new();
    place.format();
    for round in 0..5 {
        let server = place.serve();
        let blocks = write_blocks(&place, round);
        server.kill();
        let server = place.serve();
        for (at, bytes) in &blocks {
            assert_eq!(&place.nbd().read(*at, 4096).unwrap(), bytes, "round {round}, byte {at}");
        }
        expect(&server.stop(), 0, "");
    }
}

#[test]
fn a_full_log_before_a_disk_that_takes_no_write_keeps_what_was_flushed() {
    let place = Place::new();
    place.format();
    let sound = fs::read_to_string(place.stack()).unwrap();
    // The data disk takes no write: the log fills up, and its client has to wait.
    let fault = "[layer.bad]\nkind = \"fault\"\nof = \"data\"\nhits = \"writes\"\nfail-after = 1\nfail-count = 1000000\n";
    fs::write(place.stack(), sound.replace("data = \"data\"", "data = \"bad\"") + fault).unwrap();
    let mut server = place.serve();
    let blocks = write_blocks(&place, 0x22);
    let mut nbd = place.nbd();
    let writer = std::thread::spawn(move || {
        let taken = (0..4000).take_while(|i| nbd.write(i * 4096, &[0xee; 4096]).is_ok());
        taken.count()
    });
    let dirty = || status(&place)["layers"]["cache"]["dirty_bytes"].as_u64().unwrap();
    let mut seen = 0;
    let deadline = Instant::now() + Duration::from_secs(60);
    while seen < MIB || dirty() > seen {
        assert!(Instant::now() < deadline, "the log does not fill up");
        seen = dirty();
        std::thread::sleep(Duration::from_secs(1));
    }
    // It stops, or waits for room in the log, until the second signal.
    signal(&server.child, "TERM");
    std::thread::sleep(Duration::from_millis(1500));
    if server.child.try_wait().unwrap().is_none() {
        signal(&server.child, "TERM");
    }
    server.wait();
    assert!(writer.join().unwrap() < 4000, "the client had to wait");
    fs::write(place.stack(), sound).unwrap();
    let server = place.serve();
    for (at, bytes) in blocks.iter().filter(|(at, _)| *at > 8 * MIB) {
        assert_eq!(&place.nbd().read(*at, 4096).unwrap(), bytes, "byte {at}");
    }
    expect(&server.stop(), 0, "");
}

#[test]
fn another_log_takes_the_place_of_one_and_nothing_of_that_is_lost() {
    let place = Place::new();
    place.write_stack("when = \"when-full\"\nhigh-mark = 100\n");
    place.format();
    let server = place.serve();
    let blocks = write_blocks(&place, 0x44);
    server.kill();
    let old = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.path("old.toml"), &old).unwrap();
    let file = fs::File::create(place.path("larger.img")).unwrap();
    file.set_len(12 * MIB).unwrap();
    fs::write(place.path("other.toml"), old.replace("data.img", "larger.img")).unwrap();
    let replace = |with: &str| place.run("format", &["--replace", place.path(with).to_str().unwrap()]);
    expect(&replace("old.toml"), 1, "has the same log");
    // What is wrong with the new log is found before anything is done to the old one.
    fs::File::create(place.path("small.img")).unwrap().set_len(MIB).unwrap();
    for (new, code, said) in
        [("nowhere.img", 1, "no such file"), ("small.img", 3, "the log device has"), ("mnt/x", 1, "")]
    {
        fs::write(place.stack(), old.replace("log.img", new)).unwrap();
        expect(&replace("old.toml"), code, said);
    }
    fs::write(place.stack(), old.replace("log.img", "larger.img")).unwrap();
    expect(&replace("other.toml"), 1, "different data disks");
    expect(&place.run("format", &[]), 3, "dcd format --replace OLD NEW");
    assert!(place.bare() == original(16 * MIB), "nothing was changed");
    let new = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), &old).unwrap();
    let server = place.serve();
    fs::write(place.stack(), new).unwrap();
    expect(&replace("old.toml"), 3, "in use");
    expect(&server.stop(), 0, "");
    expect(&replace("old.toml"), 0, "a log of");
    assert!(place.bare() == with_blocks(&blocks));
    let server = place.serve();
    assert_eq!(place.nbd().read(blocks[0].0, 4096).unwrap(), blocks[0].1);
    expect(&server.stop(), 0, "");
}

#[test]
fn rescue_brings_the_log_home_without_a_server() {
    let place = Place::new();
    place.write_stack("when = \"when-full\"\nhigh-mark = 100\n");
    place.format();
    let server = place.serve();
    let blocks = write_blocks(&place, 0x77);
    server.kill();
    assert!(place.bare() == original(16 * MIB));
    expect(&place.run("rescue", &["--list"]), 0, "");
    assert!(place.bare() == original(16 * MIB), "a list changes nothing");
    expect(&place.run("rescue", &[]), 0, "");
    assert!(place.bare() == with_blocks(&blocks));
}

#[test]
fn detach_after_a_crash_leaves_everything_at_home() {
    let place = Place::new();
    place.format();
    let server = place.serve();
    let blocks = write_blocks(&place, 0x33);
    server.kill();
    expect(&place.run("detach", &["--quiet"]), 0, "");
    assert!(place.bare() == with_blocks(&blocks));
}

#[test]
fn format_writes_a_stack_file_that_can_be_served() {
    let place = Place::new();
    fs::remove_file(place.path("log.img")).unwrap();
    fs::remove_file(place.stack()).unwrap();
    let output = dcd()
        .current_dir(place.dir.path())
        .args([
            "format",
            "--log",
            "log.img",
            "--log-size",
            "8MiB",
            "--data",
            "data.img",
            "--stack",
            "stack.toml",
        ])
        .output()
        .unwrap();
    expect(&output, 0, "stack.toml");
    assert_eq!(fs::metadata(place.path("log.img")).unwrap().len(), 8 * MIB);
    let text = fs::read_to_string(place.stack()).unwrap().replace("unix:stack.sock", "unix:nbd.sock");
    fs::write(place.stack(), text).unwrap();
    let server = place.serve();
    write_blocks(&place, 1);
    expect(&server.stop(), 0, "");
}

#[test]
fn statistics_start_again_on_demand() {
    let place = Place::new();
    place.format();
    let server = place.serve();
    write_blocks(&place, 2);
    assert_eq!(status(&place)["requests"]["write"]["count"], 64);
    expect(&place.run("status", &["--reset"]), 0, "");
    assert_eq!(status(&place)["requests"]["write"]["count"], 0);
    expect(&server.stop(), 0, "");
}

/// A stack whose log fails after 300 operations, and the text of its stack file for when the log is well again.
fn with_a_log_that_fails() -> (Place, String) {
    let place = Place::new();
    place.write_stack("when = \"when-full\"\nhigh-mark = 100\n");
    place.format();
    let sound = fs::read_to_string(place.stack()).unwrap();
    let fault = "[layer.bad]\nkind = \"fault\"\nof = \"log\"\nhits = \"all\"\nfail-after = 300\nfail-count = 1000000\n";
    fs::write(place.stack(), sound.replace("log = \"log\"", "log = \"bad\"") + fault).unwrap();
    (place, sound)
}

/// The advice of each step leads to the next, and at the end nothing is lost.
#[test]
fn a_log_that_fails_and_comes_back_gives_all_that_it_has() {
    let (place, sound) = with_a_log_that_fails();
    let server = place.serve();
    let mut nbd = place.nbd();
    // From the failure on they are written to the data disk, and answered all the same.
    let flushed = 400u64;
    for i in 0..flushed {
        nbd.write_fua(i * 8192, &[i as u8 | 1; 4096]).unwrap();
    }
    let state = place.run("status", &[]);
    assert!(matches!(state.status.code(), Some(4 | 5)), "{state:?}");
    expect(&state, state.status.code().unwrap(), "log-failed");
    // It tries all again, and ends: everything that can be read is on the data disk.
    let began = std::time::Instant::now();
    expect(
        &place.run("flush", &["--quiet"]),
        4,
        "cannot be read from the log device; everything else is on the data disk",
    );
    expect(&place.run("flush", &["--quiet"]), 4, "\"dcd status\" says what to do");
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    let output = server.stop();
    expect(
        &output,
        1,
        "of acknowledged writes may be only there: keep that log. \"dcd rescue --list\" shows what the log has",
    );
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("the next start recovers it"), "{said}");
    assert!(said.contains("the log device failed, and writes go to the data disk"), "{said}");
    assert!(!said.contains("\"cache\": good"), "it never was good again: {said}");
    // The log's device is well again.
    fs::write(place.stack(), sound).unwrap();
    for command in ["serve", "detach", "rescue", "format"] {
        let output = place.run(command, &[]);
        expect(
            &output,
            3,
            "Copy the data disk; then \"dcd rescue --over-newer-data\" writes it back, and overwrites",
        );
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let at = |part: &str| said.find(part).unwrap_or(usize::MAX);
        assert!(at("dcd rescue --list") < at("dcd format").min(at("add --force")), "{said}");
    }
    expect(&place.run("rescue", &["--list"]), 4, "went on without this log");
    expect(&place.run("rescue", &["--force"]), 3, "Copy the data disk");
    expect(&place.run("rescue", &["--over-newer-data"]), 0, "written back: ");
    // It has all now.
    expect(&place.run("rescue", &["--over-newer-data"]), 3, "no data is at risk");
    let bare = place.bare();
    for i in 0..flushed {
        assert!(bare[i as usize * 8192..][..4096] == [i as u8 | 1; 4096], "block {i}");
    }
    place.format();
    expect(&place.serve().stop(), 0, "");
}

/// A discard takes no space in a log, and is not lost with it: only the data that cannot be read is.
#[test]
fn the_loss_with_a_dead_log_is_one_amount_everywhere() {
    let (place, sound) = with_a_log_that_fails();
    let server = place.serve();
    let mut nbd = place.nbd();
    nbd.zero(8 * MIB, 4 * MIB).unwrap();
    for i in 0..400u64 {
        nbd.write_fua(i * 8192, &[i as u8 | 1; 4096]).unwrap();
    }
    expect(&place.run("flush", &["--quiet"]), 4, "cannot be read from the log device");
    let lost = status(&place)["layers"]["cache"]["lost_blocks"].as_u64().unwrap();
    assert!(lost > 100, "{lost}");
    let amount = format!("{} of acknowledged writes", dcd_stack::HumanBytes(lost * 4096));
    nbd.disconnect().unwrap();
    expect(&place.run("stop", &[]), 4, "not stopped cleanly");
    let output = server.wait();
    expect(&output, 1, "of acknowledged writes and 4 MiB of zeroes and discards are written back from it");
    expect(&output, 1, &format!("{lost} blocks of 4 KiB could not be read from it; everything else"));
    expect(&output, 1, &format!("{amount} may be only there"));
    fs::write(place.stack(), sound).unwrap();
    for command in ["serve", "format", "rescue"] {
        expect(&place.run(command, &[]), 3, &amount);
    }
    expect(&place.run("serve", &["--without-cache"]), 3, &format!("{amount} would be lost"));
    expect(&place.run("status", &[]), 1, &format!("its log has {amount}"));
    fs::write(place.path("log.img"), "").unwrap();
    expect(&place.run("serve", &[]), 3, &format!("{amount} would be lost"));
    // Once that is accepted, nothing calls the disk complete.
    expect(&place.serve_with(&["--without-cache", "--force"]).stop(), 0, "");
    expect(&place.run("serve", &[]), 3, "it was discarded before, and what only the log had is lost");
    expect(&place.run("detach", &[]), 0, "its log is missing, and what only the log had is lost");
}
