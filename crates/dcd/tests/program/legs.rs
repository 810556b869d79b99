//! A log on legs, as its administrator sees it: made, lost in part, filled again, used apart.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{MIB, Place, Server, dcd, expect, original, tool};

/// A stack whose log is on these files, of 8 MiB each, which are made where they are missing.
fn stack(place: &Place, legs: &[&str]) {
    let mut text = String::from(
        "export = \"cache\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n[device.data]\npath = \"data.img\"\n",
    );
    for leg in legs {
        let path = place.path(&format!("{leg}.img"));
        if !path.exists() {
            File::create(path).unwrap().set_len(8 * MIB).unwrap();
        }
        text += &format!("[device.{leg}]\npath = \"{leg}.img\"\n");
    }
    let named: Vec<String> = legs.iter().map(|leg| format!("\"{leg}\"")).collect();
    // Nothing is destaged by itself: what is not in the log is lost.
    text += &format!(
        "[layer.cache]\nkind = \"log-cache\"\nlog = [{}]\ndata = \"data\"\nidle-empty = \"3600s\"\n",
        named.join(", ")
    );
    fs::write(place.stack(), text).unwrap();
}

fn log(place: &Place, command: &str, more: &[&str]) -> Output {
    dcd().args(["log", command]).arg(place.stack()).args(more).output().unwrap()
}

fn write(place: &Place, seed: u8) {
    let mut nbd = place.nbd();
    for block in 0..64u64 {
        nbd.write(block * 128 * 1024, &vec![seed ^ block as u8; 4096]).unwrap();
    }
    nbd.flush().unwrap();
    nbd.disconnect().unwrap();
}

fn holds(place: &Place, seed: u8) {
    let mut nbd = place.nbd();
    for block in 0..64u64 {
        assert_eq!(
            nbd.read(block * 128 * 1024, 4096).unwrap(),
            vec![seed ^ block as u8; 4096],
            "block {block}"
        );
    }
    nbd.disconnect().unwrap();
}

fn two_legs() -> (Place, Server) {
    let place = Place::new();
    stack(&place, &["a", "b"]);
    place.format();
    let server = place.serve();
    (place, server)
}

/// A leg that was away is filled when it is back.
fn until_whole(place: &Place) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while log(place, "status", &[]).status.code() != Some(0) {
        assert!(Instant::now() < deadline, "{:?}", log(place, "status", &[]));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_leg_that_is_deleted_beside_a_whole_one_holds_no_stop_up() {
    let (place, server) = two_legs();
    write(&place, 3);
    fs::remove_file(place.path("b.img")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while log(&place, "status", &[]).status.code() != Some(5) {
        assert!(Instant::now() < deadline, "the legs are called whole: {:?}", log(&place, "status", &[]));
        std::thread::sleep(Duration::from_millis(100));
    }
    expect(&log(&place, "status", &[]), 5, "leg \"b\" works only until the server ends");
    expect(&place.run("stop", &[]), 0, "");
    expect(&server.wait(), 0, "");
    let refused = place.run("serve", &[]);
    expect(&refused, 3, "leg \"b\"");
    assert!(!String::from_utf8_lossy(&refused.stderr).contains("left out"), "{refused:?}");
    // Nothing was written back: the other leg has it.
    assert_eq!(place.bare()[..4096], original(16 * MIB)[..4096]);
    let server = place.serve_with(&["--degraded"]);
    holds(&place, 3);
    // The stack file names the leg that no device is open for.
    let status = place.run("status", &[]);
    expect(&status, 5, "\"b\" missing, though no label calls it failed");
    expect(&status, 5, &format!("dcd log remove {} b", place.stack().display()));
    fs::remove_file(place.path("a.img")).unwrap();
    expect(&place.run("stop", &["--for-restart"]), 3, "would not find the log");
    expect(&place.run("stop", &[]), 0, "");
    expect(&server.wait(), 0, "");
    assert_eq!(place.bare()[..4096], vec![3; 4096], "all is written back before the last leg is lost");
}

#[test]
fn a_log_of_two_legs_is_given_up_and_the_disk_served_without_it() {
    let (place, server) = two_legs();
    write(&place, 3);
    expect(&place.run("flush", &[]), 0, "");
    expect(&server.stop(), 0, "");
    let server = place.serve_with(&["--without-cache"]);
    holds(&place, 3);
    expect(&server.stop(), 0, "");
    expect(&place.run("serve", &[]), 3, "");
    expect(&place.run("status", &[]), 1, "so a start is refused: \"dcd doctor\" says what to do");
    // Legs that are gone: the data disk has all.
    for leg in ["a", "b"] {
        File::create(place.path(&format!("{leg}.img"))).unwrap().set_len(8 * MIB).unwrap();
    }
    let server = place.serve_with(&["--without-cache"]);
    holds(&place, 3);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_leg_whose_device_is_in_use_elsewhere_is_refused_by_its_name() {
    let (place, server) = two_legs();
    stack(&place, &["a", "b", "c"]);
    let other = Place::new();
    let text = "export = \"data\"\n[serve]\nnbd = \"unix:nbd.sock\"\n[device.data]\n";
    let data = format!("path = \"{}\"\n", place.path("c.img").display());
    fs::write(other.stack(), text.to_owned() + &data).unwrap();
    let user = other.serve();
    expect(&log(&place, "add", &["c"]), 3, "the device of \"c\" is in use, and not by this stack");
    expect(&user.stop(), 0, "");
    expect(&log(&place, "add", &["c"]), 0, "is a leg now");
    expect(&server.stop(), 0, "");
}

#[test]
fn either_leg_is_enough_after_a_kill_and_the_other_is_filled_when_it_is_back() {
    let (place, server) = two_legs();
    write(&place, 1);
    expect(&log(&place, "status", &[]), 0, "2 of 2 legs whole");
    server.kill();
    fs::rename(place.path("a.img"), place.path("a.away")).unwrap();
    expect(&place.run("serve", &[]), 3, "\"b\" does not say that it failed");
    let server = place.serve_with(&["--degraded"]);
    holds(&place, 1);
    write(&place, 2);
    expect(&log(&place, "status", &[]), 5, "1 of 2 legs whole");
    expect(&place.run("status", &[]), 5, "works again, take it back: dcd log add");
    server.kill();
    // It says itself that it has everything, and the other one knows better.
    fs::rename(place.path("a.away"), place.path("a.img")).unwrap();
    let server = place.serve();
    until_whole(&place);
    holds(&place, 2);
    server.kill();
    fs::remove_file(place.path("b.img")).unwrap();
    let server = place.serve_with(&["--degraded"]);
    holds(&place, 2);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_leg_is_added_and_taken_out_beside_clients() {
    let (place, server) = two_legs();
    write(&place, 3);
    stack(&place, &["a", "b", "c"]);
    expect(&log(&place, "add", &["d"]), 1, "\"d\" is not named in \"log\"");
    expect(&log(&place, "add", &["a"]), 3, "is a leg already");
    File::create(place.path("c.img")).unwrap().set_len(4 * MIB).unwrap();
    expect(&log(&place, "add", &["c"]), 3, "is too small");
    File::create(place.path("c.img")).unwrap().set_len(8 * MIB).unwrap();
    expect(&log(&place, "add", &["c", "--quiet"]), 0, "\"c\" is a leg now, and has all data");
    expect(&log(&place, "status", &[]), 0, "3 of 3 legs whole");
    expect(&log(&place, "remove", &["a"]), 0, "Take \"a\" out of \"log\"");
    // A leg that was taken out on purpose does not count.
    let status = log(&place, "status", &[]);
    expect(&status, 0, "2 of 2 legs whole");
    assert!(String::from_utf8_lossy(&status.stdout).contains("or take it out of \"log\""), "{status:?}");
    stack(&place, &["a", "c"]);
    expect(&log(&place, "remove", &["b"]), 0, "\"b\" was removed from the log, and its device is closed\n");
    expect(&log(&place, "remove", &["c"]), 3, "the only leg that has all that was acknowledged");
    write(&place, 4);
    server.kill();
    stack(&place, &["c"]);
    let server = place.serve();
    holds(&place, 4);
    expect(&server.stop(), 0, "");
    let record = fs::read_to_string(place.record()).unwrap();
    assert!(record.contains("c.img\"") && !record.contains("a.img and"), "{record}");
    // Each command knows a leg without the list.
    let list = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), list.replace("log = [\"c\"]", "log = \"c\"")).unwrap();
    for command in ["serve", "check", "rescue", "detach"] {
        let refused = place.run(command, &[]);
        expect(&refused, 3, "is a leg of a mirrored log");
        assert!(!String::from_utf8_lossy(&refused.stderr).contains("missing"), "{command}: {refused:?}");
    }
    // Those that were taken out are none any more.
    stack(&place, &["a", "b"]);
    expect(&place.run("serve", &[]), 3, "none of the devices is a leg of a mirrored log");
    // Nothing on them is needed: as the log of another cache, or as legs.
    let other = Place::new();
    let format_on = |leg: &str| {
        let text = fs::read_to_string(Place::new().stack()).unwrap();
        let path = place.path(&format!("{leg}.img"));
        fs::write(other.stack(), text.replace("\"log.img\"", &format!("{:?}", path.display().to_string())))
            .unwrap();
        other.run("format", &[])
    };
    expect(&format_on("c"), 3, "a leg of a mirrored dcd log");
    expect(&format_on("a"), 0, "was a leg that was removed from a mirrored log: nothing needs it any more");
    expect(&other.run("detach", &[]), 0, "");
    // With something else on it, it is refused again.
    File::options().write(true).open(place.path("b.img")).unwrap().write_all_at(b"\x53\xef", 1080).unwrap();
    expect(&format_on("b"), 3, "the log of a dcd cache on it");
}

#[test]
fn the_legs_of_a_detached_log_are_used_again_and_one_that_failed_is_not() {
    let (place, server) = two_legs();
    write(&place, 3);
    server.kill();
    fs::rename(place.path("b.img"), place.path("b.away")).unwrap();
    let server = place.serve_with(&["--degraded"]);
    expect(&server.stop(), 0, "");
    expect(&place.run("detach", &[]), 0, "");
    stack(&place, &["c", "a"]);
    expect(&place.run("format", &[]), 0, "\"a\" was a leg of a log whose cache was detached");
    expect(&place.run("detach", &[]), 0, "");
    // It does not say itself that its cache was detached, and may be the only copy, as the log of a discarded cache is.
    fs::rename(place.path("b.away"), place.path("b.img")).unwrap();
    stack(&place, &["c", "b"]);
    expect(&place.run("format", &[]), 3, "\"b\" is a leg of a log already");
    expect(&place.run("format", &["--force"]), 0, "");
}

/// A data disk with a cache whose log, on one device, has the newest blocks. The stack file of that is old.toml; the present one names two legs.
fn dirty_and_two_new_legs() -> Place {
    let place = Place::new();
    stack(&place, &["a"]);
    place.format();
    let server = place.serve();
    write(&place, 3);
    expect(&server.stop(), 0, "");
    fs::rename(place.stack(), place.path("old.toml")).unwrap();
    stack(&place, &["b", "c"]);
    place
}

fn format_instead_of_old(place: &Place) -> Output {
    place.run("format", &["--replace", place.path("old.toml").to_str().unwrap()])
}

#[test]
fn a_format_with_legs_tells_all_reasons_against_it_before_it_writes_anything() {
    let place = dirty_and_two_new_legs();
    expect(&place.run("format", &[]), 3, "256 KiB of acknowledged writes would be lost");
    let blank = vec![0; 8 * MIB as usize];
    for leg in ["b", "c"] {
        assert!(fs::read(place.path(&format!("{leg}.img"))).unwrap() == blank, "no label was written");
    }
    let mut ext4 = blank;
    ext4[1080..1082].copy_from_slice(b"\x53\xef");
    fs::write(place.path("b.img"), &ext4).unwrap();
    let refused = place.run("format", &[]);
    expect(&refused, 3, "\"b\" has an ext2, ext3 or ext4 file system on it");
    expect(&refused, 3, "256 KiB of acknowledged writes would be lost");
    expect(&format_instead_of_old(&place), 3, "\"b\" has an ext2, ext3 or ext4 file system on it");
    assert!(fs::read(place.path("b.img")).unwrap() == ext4);
    fs::write(place.path("b.img"), vec![0; 8 * MIB as usize]).unwrap();
    expect(&format_instead_of_old(&place), 0, "");
    let server = place.serve();
    holds(&place, 3);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_replacement_that_was_cut_off_between_two_labels_is_repeated_as_it_was() {
    let place = dirty_and_two_new_legs();
    let mut legs = [(); 2].map(|()| dcd_io::MemoryDevice::new(8 * MIB));
    let [first, second] = &mut legs;
    dcd_engine::mirror::offline::create(&mut [first, second], [7; 16], &[1, 2]).unwrap();
    let labels = dcd_engine::BlockDevice::read(first, dcd_engine::Lba(0), 8192).unwrap();
    let leg = File::options().write(true).open(place.path("b.img")).unwrap();
    leg.write_all_at(labels.bytes(), 0).unwrap();
    expect(&format_instead_of_old(&place), 0, "\"b\" was a leg of a log that was never used");
    // Cut off after the old log was detached.
    expect(&place.run("detach", &[]), 0, "");
    expect(&format_instead_of_old(&place), 0, "");
    let server = place.serve();
    holds(&place, 3);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_log_moves_to_another_slice_of_its_disk() {
    let place = Place::new();
    let text = |data: &str, log: &str| {
        format!(
            "export = \"cache\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n[device.disk]\npath = \"disk.img\"\n\
             [layer.data]\nkind = \"slice\"\nof = \"disk\"\nsize = \"{data}\"\n[layer.log]\nkind = \"slice\"\nof = \"disk\"\nfirst = \"{log}\"\n\
             [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"data\"\nidle-empty = \"3600s\"\n"
        )
    };
    File::create(place.path("disk.img")).unwrap().set_len(32 * MIB).unwrap();
    fs::write(place.stack(), text("16MiB", "16MiB")).unwrap();
    place.format();
    let server = place.serve();
    write(&place, 5);
    expect(&server.stop(), 0, "");
    fs::rename(place.stack(), place.path("old.toml")).unwrap();
    fs::write(place.stack(), text("16MiB", "20MiB")).unwrap();
    expect(&format_instead_of_old(&place), 1, "or one that overlaps it");
    File::options().write(true).open(place.path("disk.img")).unwrap().set_len(64 * MIB).unwrap();
    fs::write(
        place.path("old.toml"),
        text("16MiB", "16MiB").replace("first = \"16MiB\"", "first = \"16MiB\"\nsize = \"16MiB\""),
    )
    .unwrap();
    fs::write(place.stack(), text("16MiB", "48MiB")).unwrap();
    expect(&format_instead_of_old(&place), 0, "");
    let server = place.serve();
    holds(&place, 5);
    expect(&server.stop(), 0, "");
}

/// A loop device over a file.
struct Loop(String);

impl Loop {
    fn new(file: &std::path::Path) -> Option<Loop> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        made.status.success().then(|| Loop(String::from_utf8_lossy(&made.stdout).trim().to_owned()))
    }

    fn set(&self, how: &str) {
        assert!(Command::new("blockdev").args([how, &self.0]).status().unwrap().success());
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // The kernel keeps that for the next user of the loop device.
        let _ = Command::new("blockdev").args(["--setrw", &self.0]).status();
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// The device is still open in the server, and takes writes again: its label is that of this log. Where the command is refused, the leg
/// still counts as failed.
#[test]
fn a_leg_that_failed_is_taken_back_by_the_server_that_saw_it_fail() {
    let Some((place, server, leg)) = with_a_failed_leg() else { return };
    // Refused: the device cannot be written yet.
    let refused = log(&place, "add", &["b", "--quiet"]);
    assert!(!refused.status.success(), "{refused:?}");
    expect(&log(&place, "status", &[]), 5, "1 of 2 legs whole");
    leg.set("--setrw");
    expect(&log(&place, "add", &["b", "--quiet"]), 0, "\"b\" is a leg now, and has all data");
    expect(&log(&place, "status", &[]), 0, "2 of 2 legs whole");
    server.kill();
    hide(&place, "a");
    let server = place.serve_with(&["--degraded"]);
    holds(&place, 2);
    expect(&server.stop(), 0, "");
}

/// Two legs, one of which has failed; none where this machine has no loop devices.
fn with_a_failed_leg() -> Option<(Place, Server, Loop)> {
    let place = Place::new();
    stack(&place, &["a", "b"]);
    let Some(leg) = Loop::new(&place.path("b.img")) else {
        crate::common::skip("a leg that takes no writes: there is no loop device here");
        return None;
    };
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace("path = \"b.img\"", &format!("path = \"{}\"", leg.0))).unwrap();
    place.format();
    let server = place.serve();
    write(&place, 1);
    leg.set("--setro");
    write(&place, 2);
    expect(&log(&place, "status", &[]), 5, "1 of 2 legs whole");
    Some((place, server, leg))
}

/// Follows the advice of the status word for word, while the server that saw the leg fail still has its device open.
#[test]
fn a_device_that_is_named_in_the_place_of_a_failed_leg_replaces_it() {
    let Some((place, server, _leg)) = with_a_failed_leg() else { return };
    stack(&place, &["a", "c"]);
    expect(&log(&place, "add", &["c", "--quiet"]), 0, "\"c\" is a leg now, and has all data");
    expect(&log(&place, "status", &[]), 0, "2 of 2 legs whole");
    expect(&place.run("status", &[]), 0, "action: none");
    expect(&log(&place, "remove", &["b"]), 3, "\"b\" is no leg of this log; its legs are a, c");
    server.kill();
    let events = place.run("events", &[]);
    expect(&events, 0, "\"b\" failed (");
    expect(&events, 0, "\"c\" was added");
    assert!(!String::from_utf8_lossy(&events.stdout).contains("did not stop cleanly"), "{events:?}");
    let server = place.serve();
    holds(&place, 2);
    expect(&server.stop(), 0, "");
    let events = place.run("events", &[]);
    expect(&events, 0, "its last server did not stop cleanly (a kill, or a power cut)");
}

#[test]
fn a_failed_leg_that_is_gone_is_removed_after_a_restart() {
    for named in ["b", "missing"] {
        let Some((place, server, _leg)) = with_a_failed_leg() else { return };
        stack(&place, &["a", "b", "c"]);
        expect(&log(&place, "add", &["c", "--quiet"]), 0, "");
        expect(&log(&place, "status", &[]), 5, "2 of 3 legs whole");
        expect(&server.stop(), 0, "");
        fs::remove_file(place.path("b.img")).unwrap();
        if named == "missing" {
            stack(&place, &["a", "c"]);
        }
        let server = place.serve();
        expect(&log(&place, "status", &[]), 5, "2 of 3 legs whole");
        expect(
            &log(&place, "remove", &["typo"]),
            3,
            "\"missing\" stands for a failed leg that has no name there",
        );
        let removed = log(&place, "remove", &[named]);
        let next = if named == "b" { ". Take \"b\" out of \"log\"" } else { "\n" };
        expect(&removed, 0, &format!("log: 2 of 2 legs whole: \"a\" whole, \"c\" whole{next}"));
        stack(&place, &["a", "c"]);
        expect(&place.run("status", &[]), 0, "action: none");
        expect(&server.stop(), 0, "");
        let server = place.serve();
        holds(&place, 2);
        expect(&log(&place, "status", &[]), 0, "2 of 2 legs whole");
        expect(&server.stop(), 0, "");
    }
}

#[test]
fn legs_that_were_used_apart_are_refused_by_name() {
    let (place, server) = two_legs();
    write(&place, 5);
    server.kill();
    for away in ["b", "a"] {
        let hide = |name: &str| place.path(&format!("{name}.away"));
        fs::rename(place.path(&format!("{away}.img")), hide(away)).unwrap();
        let server = place.serve_with(&["--degraded"]);
        holds(&place, 5);
        server.kill();
        fs::rename(hide(away), place.path(&format!("{away}.img"))).unwrap();
        if away == "b" {
            fs::rename(place.path("a.img"), hide("a")).unwrap();
            expect(&place.run("serve", &["--degraded"]), 3, "lacks acknowledged writes");
            fs::rename(hide("a"), place.path("a.img")).unwrap();
            // Another machine has no record of the data disk.
            fs::remove_file(place.record()).unwrap();
        }
    }
    expect(&place.run("serve", &[]), 3, "were used without each other");
    expect(&place.run("serve", &["--degraded"]), 3, "change neither until you know which to keep");
    // The way out that the refusal names.
    stack(&place, &["b"]);
    let server = place.serve_with(&["--degraded"]);
    holds(&place, 5);
    stack(&place, &["a", "b"]);
    expect(&log(&place, "add", &["a", "--quiet"]), 3, "a leg of a mirrored dcd log");
    expect(&log(&place, "add", &["a", "--quiet", "--force"]), 0, "has all data");
    expect(&server.stop(), 0, "");
    let server = place.serve();
    holds(&place, 5);
    expect(&server.stop(), 0, "");
}

#[test]
fn rot_on_one_leg_costs_nothing() {
    let (place, server) = two_legs();
    write(&place, 6);
    server.kill();
    // Every block of one leg behind its labels and the log's superblocks.
    let leg = File::options().read(true).write(true).open(place.path("a.img")).unwrap();
    let mut byte = [0];
    for at in (64 << 10..8 * MIB).step_by(4096) {
        leg.read_exact_at(&mut byte, at + 77).unwrap();
        leg.write_all_at(&[byte[0] ^ 0x10], at + 77).unwrap();
    }
    let server = place.serve();
    holds(&place, 6);
    expect(&place.run("flush", &["--quiet"]), 0, "");
    expect(&server.stop(), 0, "");
    expect(&place.run("detach", &["--quiet"]), 0, "");
    assert_eq!(place.bare()[..4096], [6; 4096]);
}

/// Has a leg fail after some more writes, from the next start on.
fn fault(place: &Place, leg: &str) {
    let text = fs::read_to_string(place.stack()).unwrap();
    let text = text.replace(&format!("\"{leg}\"]"), "\"faulty\"]");
    let layer = format!(
        "[layer.faulty]\nkind = \"fault\"\nof = \"{leg}\"\nhits = \"writes\"\nfail-after = 12\nfail-count = 1000000\n"
    );
    fs::write(place.stack(), text + &layer).unwrap();
}

/// Puts an older content back on a leg.
fn put_back(place: &Place, leg: &str, content: &[u8]) {
    fs::write(place.path(&format!("{leg}.img")), content).unwrap();
}

fn hide(place: &Place, leg: &str) {
    fs::rename(place.path(&format!("{leg}.img")), place.path(&format!("{leg}.away"))).unwrap();
}

fn bring_back(place: &Place, leg: &str) {
    fs::rename(place.path(&format!("{leg}.away")), place.path(&format!("{leg}.img"))).unwrap();
}

/// Waits until the attachment record says what it is waited for.
fn until_recorded(place: &Place, says: impl Fn(&str) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !says(&fs::read_to_string(place.record()).unwrap()) {
        assert!(Instant::now() < deadline, "{}", fs::read_to_string(place.record()).unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_leg_that_missed_acknowledged_writes_is_never_served_alone() {
    let (place, server) = two_legs();
    write(&place, 1);
    server.kill();
    fault(&place, "b");
    let server = place.serve();
    until_recorded(&place, |record| {
        write(&place, 2);
        record.contains("stale-legs")
    });
    server.kill();
    stack(&place, &["a", "b"]);
    hide(&place, "a");
    // As the unit does, by hand, and for the commands that write back.
    for command in [
        vec!["serve", "--degraded=1s"],
        vec!["serve", "--degraded"],
        vec!["serve"],
        vec!["rescue", "--degraded"],
        vec!["detach", "--degraded"],
    ] {
        expect(&place.run(command[0], &command[1..]), 3, "lacks acknowledged writes");
    }
    bring_back(&place, "a");
    let server = place.serve_with(&["--degraded=1s"]);
    holds(&place, 2);
    until_whole(&place);
    until_recorded(&place, |record| !record.contains("stale-legs"));
    server.kill();
    // It has been filled since, and is as good as the other one.
    hide(&place, "a");
    let server = place.serve_with(&["--degraded"]);
    holds(&place, 2);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_start_that_nobody_watches_leaves_out_no_leg_and_waits_for_none_that_has_failed() {
    let (place, server) = two_legs();
    write(&place, 1);
    server.kill();
    hide(&place, "a");
    expect(&place.run("serve", &["--degraded=300ms"]), 3, "\"b\" does not say that it failed");
    let server = place.serve_with(&["--degraded"]);
    holds(&place, 1);
    server.kill();
    // The labels call it failed by now: nothing is waited for.
    let began = Instant::now();
    let server = place.serve_with(&["--degraded=10min"]);
    holds(&place, 1);
    assert!(began.elapsed() < Duration::from_secs(300));
    expect(&server.stop(), 0, "");
}

#[test]
fn beside_a_blank_leg_or_one_that_is_not_in_the_list_the_whole_one_is_reached() {
    for blank in [true, false] {
        let (place, server) = two_legs();
        write(&place, 1);
        server.kill();
        let named = match blank {
            true => {
                File::create(place.path("a.img")).unwrap().set_len(8 * MIB).unwrap();
                "\"a\" is no leg: it has no label of a mirrored log"
            }
            false => {
                stack(&place, &["b"]);
                "\"b\" does not say that it failed"
            }
        };
        for command in [vec!["serve"], vec!["serve", "--degraded=300ms"], vec!["rescue"], vec!["detach"]] {
            expect(&place.run(command[0], &command[1..]), 3, named);
        }
        // What only looks says what it does without.
        expect(&log(&place, "status", &[]), 5, "missing, though no label calls it failed");
        expect(&place.run("check", &[]), 0, "no label calls it failed");
        expect(&place.run("rescue", &["--list"]), 0, "dirty: 256 KiB");
        let go_on: &[&str] = if blank { &["--degraded"] } else { &["--take-over", "--other-is-off"] };
        let server = place.serve_with(go_on);
        holds(&place, 1);
        expect(&server.stop(), 0, "");
        expect(&place.run("detach", &["--quiet"]), 0, "");
        assert_eq!(place.bare()[..4096], [1; 4096]);
    }
}

#[test]
fn the_commands_that_write_back_go_on_without_a_leg_where_they_are_told_to() {
    let (place, server) = two_legs();
    write(&place, 1);
    server.kill();
    hide(&place, "b");
    expect(&place.run("rescue", &["--degraded"]), 0, "");
    expect(&place.run("detach", &["--degraded", "--quiet"]), 0, "");
    assert_eq!(place.bare()[..4096], [1; 4096]);
}

#[test]
fn a_leg_that_lost_what_it_had_said_was_durable_is_named_and_filled() {
    for liar in ["a", "b"] {
        let (place, server) = two_legs();
        write(&place, 1);
        let older = fs::read(place.path(&format!("{liar}.img"))).unwrap();
        for seed in 2..8 {
            write(&place, seed);
        }
        server.kill();
        put_back(&place, liar, &older);
        let server = place.serve();
        holds(&place, 7);
        until_whole(&place);
        expect(&server.stop(), 0, &format!("leg \"{liar}\" had lost writes"));
        hide(&place, if liar == "a" { "b" } else { "a" });
        let server = place.serve_with(&["--degraded"]);
        holds(&place, 7);
        expect(&server.stop(), 0, "");
    }
}

/// A start that a device holds up names it.
#[test]
fn a_leg_that_answers_nothing_but_errors_is_named_by_the_start_that_waits_for_it() {
    let Some(nbdkit) = tool("a_leg_that_answers_nothing_but_errors", "nbdkit") else { return };
    let place = Place::new();
    stack(&place, &["a", "b"]);
    let (socket, fails) = (place.path("leg.sock"), place.path("fails"));
    let mut far = Command::new(nbdkit);
    far.arg("-f").arg("-U").arg(&socket).args(["--filter=error", "memory", "8M", "error-rate=1"]);
    far.arg(format!("error-file={}", fails.display())).stderr(Stdio::null());
    let mut far = far.spawn().unwrap();
    while !socket.exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = fs::read_to_string(place.stack()).unwrap();
    let remote = format!("nbd+unix:///?socket={}", socket.display());
    fs::write(place.stack(), text.replace("path = \"b.img\"", &format!("path = \"{remote}\""))).unwrap();
    place.format();
    fs::write(&fails, "").unwrap();
    let mut serves = place.dcd();
    let mut server = serves.arg("serve").arg(place.stack()).stderr(Stdio::piped()).spawn().unwrap();
    let (said, heard) = std::sync::mpsc::channel();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(server.stderr.take().unwrap()));
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(said.send(line))));
    let mut all = Vec::new();
    let named = format!("dcd: waiting for device \"b\" ({remote}), which has not answered for 5 s");
    while !all.contains(&named) {
        match heard.recv_timeout(Duration::from_secs(30)) {
            Ok(line) => all.push(line),
            Err(error) => {
                let _ = (server.kill(), far.kill());
                panic!("{error}: {all:?}");
            }
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
    far.kill().unwrap();
    far.wait().unwrap();
}

/// A start without a leg records that the leg has failed: not before it is known that the start has a way to its clients.
#[test]
fn a_start_that_lacks_a_directory_leaves_the_legs_as_they_are() {
    let (place, server) = two_legs();
    write(&place, 1);
    expect(&server.stop(), 0, "");
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::rename(place.path("a.img"), place.path("a.away")).unwrap();
    fs::write(place.stack(), text.replace("[serve]\n", "[serve]\nfuse = \"data.img\"\n")).unwrap();
    expect(&place.run("serve", &["--degraded"]), 1, "data.img is not a directory: a file has this name");
    fs::write(place.stack(), &text).unwrap();
    fs::rename(place.path("a.away"), place.path("a.img")).unwrap();
    expect(&log(&place, "status", &[]), 0, "2 of 2 legs whole");
    fs::write(place.stack(), text.replace("[serve]\n", "[serve]\nfuse = \"/sys/dcd-none\"\n")).unwrap();
    expect(&place.run("serve", &[]), 1, "/sys/dcd-none: this directory cannot be made: ");
    fs::write(place.stack(), &text).unwrap();
    // The directory of a socket is made.
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace("[serve]\n", "[serve]\nmetrics = \"unix:made/metrics.sock\"\n"))
        .unwrap();
    // What to do about a leg that has failed names the command as a whole.
    fs::rename(place.path("a.img"), place.path("a.away")).unwrap();
    let server = place.serve_with(&["--degraded"]);
    expect(&place.run("status", &[]), 5, &format!("dcd log add {} a", place.stack().display()));
    expect(&server.stop(), 0, "");
}
