//! Disks that a log has already, and disks that have left it while the stack file names them still: none gets another's place or data.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::common::{MIB, Place, expect, original, tool};
use crate::remote::Foreign;
use crate::several::{HOME, MAIL, POOL, add, bare, is_there, named, of, record, stack, write, written};

fn two() -> Place {
    let place = Place::new();
    stack(&place, &[HOME, MAIL], "");
    place.format();
    place
}

/// Has the server remove a disk for a command that is killed before it changes the stack file.
fn removed_by_server(place: &Place, disk: &str) {
    let mut control = UnixStream::connect(place.path("control.sock")).unwrap();
    let call =
        format!("{{\"id\":1,\"verb\":\"disk\",\"args\":{{\"command\":\"remove\",\"name\":\"{disk}\"}}}}\n");
    control.write_all(call.as_bytes()).unwrap();
    let lines = BufReader::new(control).lines().map(Result::unwrap);
    let ended = lines.inspect(|line| assert!(!line.contains("error"), "{line}"));
    assert!(ended.into_iter().any(|line| line.contains("result")));
}

/// Another program serves a blank disk to this machine; its place in a stack file, and its file here.
fn exported(place: &Place, disk: &str) -> (Foreign, Place, PathBuf) {
    let far = Place::new();
    File::create(far.path("disk.img")).unwrap().set_len(4 * MIB).unwrap();
    fs::hard_link(far.path("disk.img"), place.path(&format!("{disk}.img"))).unwrap();
    let server = Foreign::start(&tool("exports of disks", "qemu-nbd").unwrap(), &far);
    let uri = format!("nbd+unix:///disk?socket={}", far.path("nbd.sock").display());
    (server, far, uri.into())
}

/// The record of an added disk calls it complete: that of a disk with data in the log must stay.
#[test]
fn a_disk_that_the_log_has_is_not_added_again() {
    let place = two();
    let server = place.serve();
    write(&place, "home", 1);
    write(&place, "mail", 2);
    expect(&server.stop(), 0, "");
    std::os::unix::fs::symlink(place.path("home.img"), place.path("link.img")).unwrap();
    fs::hard_link(place.path("mail.img"), place.path("hard.img")).unwrap();
    let before = ["home", "mail"].map(|disk| record(&place, disk));
    let text = fs::read_to_string(place.stack()).unwrap();
    let create = |path: &str| {
        let mut dcd = place.dcd();
        dcd.current_dir(place.dir.path());
        dcd.args(["create", "more", "--log", "stack.toml", "--data", path]).output().unwrap()
    };
    for (path, number, name) in [("home.img", 1, "home"), ("link.img", 1, "home"), ("hard.img", 2, "mail")] {
        let refused = create(path);
        expect(&refused, 3, &format!("{path} is data disk {number} of this log already"));
        expect(&refused, 3, &format!("names that disk \"{name}\""));
        assert!(before == ["home", "mail"].map(|disk| record(&place, disk)), "{path}");
    }
    assert_eq!(fs::read_to_string(place.stack()).unwrap(), text);
    // So it is with a single disk.
    let single = Place::new();
    single.format();
    let server = single.serve();
    single.nbd().write(0, &[5; 4096]).unwrap();
    expect(&server.stop(), 0, "");
    let mut dcd = single.dcd();
    dcd.current_dir(single.dir.path()).args(["create", "z", "--log", "stack.toml", "--data", "data.img"]);
    expect(&dcd.output().unwrap(), 3, "data.img is data disk 1 of this log already");
    expect(&single.run("serve", &["--without-cache"]), 3, "4 KiB of acknowledged writes would be lost");
}

/// Between the removal by the server and the change of the stack file, the disk's place may be given to no other disk, and the refusal
/// names the command that ends the removal.
#[test]
fn a_removal_whose_command_was_killed_is_repeated_before_anything_else() {
    let place = two();
    fs::write(place.path("pool.img"), original(POOL.1 * MIB)).unwrap();
    let server = place.serve();
    write(&place, "home", 1);
    write(&place, "mail", 2);
    removed_by_server(&place, "mail");
    let refused = add(&place, "pool", "pool.img");
    expect(&refused, 3, "\"mail\" is no data disk of this log, or none any more");
    server.kill();
    let server = place.run("serve", &[]);
    expect(&server, 3, "\"mail\" is no data disk of this log, or none any more");
    expect(&server, 3, &format!("\"dcd remove {} --disk mail\"", place.stack().display()));
    assert!(!String::from_utf8_lossy(&server.stderr).contains("dcd format"));
    expect(&place.run("doctor", &[]), 1, "--disk mail\"");
    expect(&add(&place, "pool", "pool.img"), 3, "\"mail\" is no data disk of this log");
    expect(&place.run("remove", &["--disk", "mail"]), 0, "is a plain disk again");
    assert!(bare(&place, "mail") == written(MAIL, 2) && !place.path("mail.img.dcd").exists());
    expect(&add(&place, "pool", "pool.img"), 0, "\"pool\" is data disk 2 of the log");
    let server = place.serve();
    assert!(is_there(&place, HOME, 1));
    expect(&server.stop(), 0, "");
}

/// Exports, like block devices, have no mark: the records alone know them. All of these are blank, so their content tells nothing.
#[test]
fn a_removed_disk_never_gets_the_data_of_the_one_in_its_place() {
    if tool("a removed disk", "qemu-nbd").is_none() {
        return;
    }
    let place = Place::new();
    let blank = || vec![0; 4 * MIB as usize];
    let [(_mail_server, _mail_place, mail), (_more_server, _more_place, more)] =
        ["mail", "more"].map(|disk| exported(&place, disk));
    stack(&place, &[HOME], "");
    let text = fs::read_to_string(place.stack())
        .unwrap()
        .replace("data = [\"home\"]", "data = [\"home\", \"mail\"]");
    let before = text + &format!("[device.mail]\npath = \"{}\"\n", mail.display());
    fs::write(place.stack(), &before).unwrap();
    place.format();
    let server = place.serve();
    removed_by_server(&place, "mail");
    let add_more = || {
        let mut dcd = place.dcd();
        dcd.args(["create", "more", "--log"]).arg(place.stack()).arg("--data").arg(&more).output().unwrap()
    };
    expect(&add_more(), 3, "\"mail\" is no data disk of this log");
    let records = || {
        let records = fs::read_dir(place.path("state")).unwrap().map(|entry| entry.unwrap().path());
        records.filter(|path| path.extension().is_some_and(|name| name == "dcd")).count()
    };
    assert_eq!(records(), 1, "until the stack file is changed, the record says which disk has left");
    expect(&place.run("remove", &["--disk", "mail"]), 0, "is a plain disk again");
    assert_eq!(records(), 0);
    expect(&add_more(), 0, "\"more\" is data disk 2 of the log");
    let mut client = of(&place, "more");
    (0..20).for_each(|block| client.write(block * 4096, &[9; 4096]).unwrap());
    client.flush().unwrap();
    client.disconnect().unwrap();
    server.kill();
    // The stack file of before: the record of the other disk has the place.
    fs::write(place.stack(), &before).unwrap();
    for command in ["serve", "rescue"] {
        let refused = place.run(command, &[]);
        expect(
            &refused,
            3,
            "\"mail\" is no data disk of this log, or none any more: its place has the disk of",
        );
        expect(&refused, 3, "takes it out of the stack file");
    }
    expect(&place.run("remove", &["--disk", "mail"]), 0, "is a plain disk again");
    assert_eq!(named(&place), "data = [\"home\"]");
    assert!(bare(&place, "mail") == blank());
    expect(&place.run("serve", &[]), 3, "the log is that of 2 data disks, but is used with 1");
    expect(&add_more(), 0, "\"more\" is data disk 2 of the log");
    assert_eq!(named(&place), "data = [\"home\", \"more\"]");
    let server = place.serve();
    assert!(of(&place, "more").read(0, 20 * 4096).unwrap() == vec![9; 20 * 4096]);
    expect(&server.stop(), 0, "");
}

/// A place that a disk has left takes no other one by an edit of the stack file.
#[test]
fn a_free_place_takes_no_disk_that_was_not_added() {
    let place = two();
    fs::write(place.path("pool.img"), original(POOL.1 * MIB)).unwrap();
    expect(&add(&place, "pool", "pool.img"), 0, "");
    expect(&place.run("remove", &["--disk", "mail"]), 0, "");
    let text = fs::read_to_string(place.stack()).unwrap();
    assert_eq!(named(&place), "data = [\"home\", \"free\", \"pool\"]");
    let with = text.replace("\"free\"", "\"mail\"") + "[device.mail]\npath = \"copy.img\"\n";
    // A copy has no mark.
    fs::copy(place.path("mail.img"), place.path("copy.img")).unwrap();
    fs::write(place.stack(), with).unwrap();
    expect(&place.run("serve", &[]), 3, "\"mail\" is no data disk of this log, or none any more");
    assert!(!place.path("copy.img.dcd").exists());
    expect(&place.run("remove", &["--disk", "mail"]), 0, "");
    expect(&place.serve().stop(), 0, "");
}

/// The copy lacks a disk that was added since: that is no reason to take the disk out of the stack file.
#[test]
fn an_old_copy_of_the_log_removes_no_disk() {
    let place = two();
    fs::write(place.path("pool.img"), original(POOL.1 * MIB)).unwrap();
    expect(&add(&place, "pool", "pool.img"), 0, "");
    expect(&place.run("remove", &["--disk", "mail"]), 0, "");
    fs::copy(place.path("log.img"), place.path("old.img")).unwrap();
    expect(&add(&place, "mail", "mail.img"), 0, "\"mail\" is data disk 2 of the log");
    let server = place.serve();
    write(&place, "mail", 2);
    expect(&server.stop(), 0, "");
    fs::rename(place.path("log.img"), place.path("away")).unwrap();
    fs::rename(place.path("old.img"), place.path("log.img")).unwrap();
    expect(&place.run("serve", &[]), 3, "is an old copy");
    expect(&place.run("remove", &["--disk", "mail"]), 3, "is an old copy");
    fs::rename(place.path("away"), place.path("log.img")).unwrap();
    let server = place.serve();
    assert!(is_there(&place, MAIL, 2));
    expect(&server.stop(), 0, "");
}

/// A leg has its label where a log has its superblock: it is no disk, either.
#[test]
fn a_leg_of_a_log_is_taken_for_no_disk() {
    let mirrored = Place::new();
    let text = fs::read_to_string(mirrored.stack()).unwrap();
    let legs = "[device.log]\npath = \"log.img\"\n[device.leg]\npath = \"leg.img\"\n";
    let text = text
        .replace("[device.log]\npath = \"log.img\"\n", legs)
        .replace("log = \"log\"", "log = [\"log\", \"leg\"]");
    fs::write(mirrored.stack(), text).unwrap();
    File::create(mirrored.path("leg.img")).unwrap().set_len(8 * MIB).unwrap();
    mirrored.format();
    let leg = mirrored.path("leg.img");
    let place = two();
    let create = || {
        let mut dcd = place.dcd();
        dcd.args(["create", "leg", "--log"]).arg(place.stack()).arg("--data").arg(&leg).output().unwrap()
    };
    expect(&create(), 3, "has a leg of the log of the cache");
    let server = place.serve();
    expect(&create(), 3, "has a leg of the log of the cache");
    expect(&server.stop(), 0, "");
    let other = Place::new();
    let text = fs::read_to_string(other.stack()).unwrap();
    fs::write(other.stack(), text.replace("data.img", leg.to_str().unwrap())).unwrap();
    expect(&other.run("format", &[]), 3, "has a leg of the log of the cache");
    let text = "export = \"data\"\n[serve]\nnbd = \"unix:nbd.sock\"\n[device.data]\npath = \"LEG\"\n";
    fs::write(other.stack(), text.replace("LEG", leg.to_str().unwrap())).unwrap();
    expect(&other.run("serve", &[]), 3, "\"data\" is a leg of the log of the cache");
    // It is free once its cache was detached.
    expect(&mirrored.run("detach", &[]), 0, "");
    expect(&create(), 0, "\"leg\" is data disk 3 of the log");
}

/// Without an id of the machine, nothing refuses a log that another one serves.
#[test]
fn a_machine_without_an_id_is_told() {
    let mut place = Place::new();
    place.machine = Some(" ");
    place.format();
    let server = place.serve();
    expect(&server.stop(), 0, "this machine has no id");
    expect(&place.run("doctor", &[]), 0, "this machine has no id");
    place.machine = Some("one");
    let stopped = place.serve().stop();
    assert!(!String::from_utf8_lossy(&stopped.stderr).contains("no id"));
}

/// A stack file for the log of a place and another disk.
fn with_other_disk(place: &Place) -> PathBuf {
    let text = fs::read_to_string(place.stack()).unwrap();
    let other = place.path("other.toml");
    fs::write(place.path("other.img"), original(8 * MIB)).unwrap();
    fs::write(&other, text.replace("data.img", "other.img")).unwrap();
    other
}

fn format(place: &Place, stack: &Path, more: &[&str]) -> Output {
    place.dcd().arg("format").arg(stack).args(more).output().unwrap()
}

/// A cache with 40 KiB in its log.
fn dirty() -> Place {
    let place = Place::new();
    place.write_stack("idle-empty = \"3600s\"");
    place.format();
    let server = place.serve();
    (0..10).for_each(|block| place.nbd().write(block * 8192, &[7; 4096]).unwrap());
    expect(&server.stop(), 0, "");
    place
}

/// The list of retired caches has the one that was detached in a copy, and one that was discarded: their logs may have the only copy of
/// data.
#[test]
fn a_log_with_data_is_not_free_because_its_cache_was_retired() {
    let place = dirty();
    fs::create_dir(place.path("copy")).unwrap();
    for file in ["data.img", "log.img", "data.img.dcd", "stack.toml"] {
        fs::copy(place.path(file), place.path("copy").join(file)).unwrap();
    }
    let detached = place.dcd().arg("detach").arg(place.path("copy/stack.toml")).output().unwrap();
    expect(&detached, 0, "40 KiB was written back");
    let other = with_other_disk(&place);
    expect(&format(&place, &other, &[]), 3, "40 KiB in it are not on its data disk yet");
    let server = place.serve();
    assert!(place.nbd().read(0, 4096).unwrap() == [7; 4096]);
    expect(&server.stop(), 0, "");
    // The copy's own log is free, as it says so itself.
    fs::copy(&other, place.path("copy/other.toml")).unwrap();
    fs::copy(place.path("other.img"), place.path("copy/other.img")).unwrap();
    expect(&format(&place, &place.path("copy/other.toml"), &[]), 0, "");
    // A cache that was discarded while its log was away, or at hand.
    for is_away in [true, false] {
        let place = dirty();
        if is_away {
            fs::rename(place.path("log.img"), place.path("away")).unwrap();
        }
        expect(&place.serve_with(&["--without-cache", "--force"]).stop(), 0, "");
        if is_away {
            let text = fs::read_to_string(place.stack()).unwrap();
            fs::write(place.path("new.toml"), text.replace("log.img", "new.img")).unwrap();
            File::create(place.path("new.img")).unwrap().set_len(8 * MIB).unwrap();
            expect(&format(&place, &place.path("new.toml"), &[]), 0, "");
            fs::rename(place.path("away"), place.path("log.img")).unwrap();
        }
        let other = with_other_disk(&place);
        expect(&format(&place, &other, &[]), 3, "40 KiB in it are not on its data disk yet");
        expect(&format(&place, &other, &["--force"]), 0, "");
    }
}

/// Two stack files name one log: the refusal for the first disk says what the log has of the second.
#[test]
fn a_format_tells_what_the_log_has_of_another_disk() {
    let place = Place::new();
    place.write_stack("idle-empty = \"3600s\"");
    place.format();
    let other = with_other_disk(&place);
    expect(&format(&place, &other, &[]), 0, "");
    let own = fs::read_to_string(place.stack()).unwrap();
    fs::copy(&other, place.stack()).unwrap();
    let server = place.serve();
    (0..10).for_each(|block| place.nbd().write(block * 8192, &[7; 4096]).unwrap());
    expect(&server.stop(), 0, "");
    fs::write(place.stack(), own).unwrap();
    let refused = place.run("serve", &[]);
    expect(&refused, 3, "another cache is attached to the data disk");
    let refused = place.run("format", &[]);
    expect(&refused, 3, "a cache is attached to the data disk already");
    assert!(!String::from_utf8_lossy(&refused.stderr).contains("no data is at risk"));
    expect(&refused, 3, "40 KiB in it are not on its data disk yet");
}
