//! A log with several data disks, as a user has it: made, served by name, killed, stopped, written back, detached, and what is refused.

use std::fs::{self, File};
use std::path::Path;

use serde_json::Value;

use crate::common::{MIB, Nbd, Place, Server, expect, original, tool};
use crate::kill::{Oracle, next};

/// A disk's name and size in MiB.
pub const HOME: (&str, u64) = ("home", 16);
pub const MAIL: (&str, u64) = ("mail", 20);
pub const POOL: (&str, u64) = ("pool", 24);

/// A stack whose log has these disks, which are made where they are missing. Nothing is destaged by itself.
pub fn stack(place: &Place, disks: &[(&str, u64)], more: &str) {
    let mut text = format!(
        "export = \"cache\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n{more}[device.log]\npath = \"log.img\"\n"
    );
    for (disk, mib) in disks {
        let path = place.path(&format!("{disk}.img"));
        if !path.exists() {
            fs::write(path, original(mib * MIB)).unwrap();
        }
        text += &format!("[device.{disk}]\npath = \"{disk}.img\"\n");
    }
    let names: Vec<String> = disks.iter().map(|(disk, _)| format!("\"{disk}\"")).collect();
    text += &format!(
        "[layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = [{}]\nidle-empty = \"3600s\"\n",
        names.join(", ")
    );
    fs::write(place.stack(), text).unwrap();
}

pub fn of(place: &Place, disk: &str) -> Nbd {
    let export = if disk == "home" { "" } else { disk };
    Nbd::connect_to(&place.path("nbd.sock"), export).unwrap()
}

pub fn write(place: &Place, disk: &str, seed: u8) {
    let mut nbd = of(place, disk);
    for block in 0..40u64 {
        nbd.write(block * 96 * 1024, &vec![seed ^ block as u8; 4096]).unwrap();
    }
    nbd.flush().unwrap();
    nbd.disconnect().unwrap();
}

/// The content of a disk after [`write`].
pub fn written((_, mib): (&str, u64), seed: u8) -> Vec<u8> {
    let mut bytes = original(mib * MIB);
    for block in 0..40 {
        bytes[block * 96 * 1024..][..4096].fill(seed ^ block as u8);
    }
    bytes
}

pub fn is_there(place: &Place, disk: (&str, u64), seed: u8) -> bool {
    let mut nbd = of(place, disk.0);
    assert_eq!(nbd.bytes, disk.1 * MIB);
    let read: Vec<u8> = (0..disk.1).flat_map(|mib| nbd.read(mib * MIB, MIB as usize).unwrap()).collect();
    nbd.disconnect().unwrap();
    read == written(disk, seed)
}

pub fn bare(place: &Place, disk: &str) -> Vec<u8> {
    fs::read(place.path(&format!("{disk}.img"))).unwrap()
}

pub fn record(place: &Place, disk: &str) -> Value {
    let text = fs::read_to_string(place.path(&format!("{disk}.img.dcd"))).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["attachments"][0].clone()
}

pub fn status(place: &Place) -> Value {
    serde_json::from_slice(&place.run("status", &["--json"]).stdout).unwrap()
}

pub fn three() -> (Place, Server) {
    let place = Place::new();
    stack(&place, &[HOME, MAIL, POOL], "");
    expect(&place.run("format", &[]), 0, "for 60 MiB of data");
    let server = place.serve();
    (place, server)
}

#[test]
fn disks_of_one_log_are_served_by_name_and_are_as_they_were_after_stops_and_kills() {
    let (place, server) = three();
    assert_eq!(place.nbd().bytes, 16 * MIB, "the first is served as the only disk is");
    assert!(Nbd::connect_to(&place.path("nbd.sock"), "cache").is_err());
    write(&place, "home", 1);
    write(&place, "mail", 2);
    let seen = &status(&place)["layers"]["cache"]["disks"];
    let dirty: Vec<(&str, u64)> = seen
        .as_array()
        .unwrap()
        .iter()
        .map(|disk| (disk["name"].as_str().unwrap(), disk["dirty_bytes"].as_u64().unwrap()))
        .collect();
    assert_eq!(dirty, [("home", 40 * 4096), ("mail", 40 * 4096), ("pool", 0)]);
    expect(&place.run("status", &[]), 0, "mail, 20 MiB: dirty 160 KiB");
    expect(&server.stop(), 0, "");
    let states = || ["home", "mail", "pool"].map(|disk| record(&place, disk)["state"].clone());
    assert_eq!(states(), ["dirty", "dirty", "clean"]);
    assert_eq!([1, 2].map(|disk| record(&place, [HOME, MAIL, POOL][disk].0)["disk"].clone()), [1, 2]);
    assert!(record(&place, "home").get("disk").is_none(), "as with one disk");
    let server = place.serve();
    assert!(is_there(&place, HOME, 1) && is_there(&place, MAIL, 2));
    write(&place, "pool", 3);
    server.kill();
    let server = place.serve();
    assert!(is_there(&place, HOME, 1) && is_there(&place, MAIL, 2) && is_there(&place, POOL, 3));
    expect(&place.run("flush", &[]), 0, "");
    expect(&server.stop(), 0, "");
    assert_eq!(states(), ["clean", "clean", "clean"]);
    for (disk, seed) in [(HOME, 1), (MAIL, 2), (POOL, 3)] {
        assert!(bare(&place, disk.0) == written(disk, seed), "{}", disk.0);
    }
}

/// With memory that outlives the server, no answered write is lost, whichever disk it was for.
#[test]
fn answered_writes_of_each_disk_survive_kills() {
    let place = Place::new();
    if place.memory.is_none() {
        return crate::common::skip("several disks and kills: no memory outlives a server here");
    }
    stack(&place, &[HOME, MAIL], "nbd-recovery = true\n");
    place.format();
    let mut random = 4_711;
    let mut oracles = [HOME, MAIL].map(|disk| (disk.0, Oracle::new(true)));
    for _ in 0..8 {
        let server = place.serve();
        let [(home, of_home), (mail, of_mail)] = &mut oracles;
        let (mut first, mut second) = (of(&place, home), of(&place, mail));
        let mut other = next(&mut random);
        let after = std::time::Duration::from_millis(20 + next(&mut random) % 150);
        crate::kill::killed_under(server, after, || {
            std::thread::scope(|scope| {
                scope.spawn(|| of_home.load(&mut first, &mut random).unwrap_err());
                scope.spawn(|| of_mail.load(&mut second, &mut other).unwrap_err());
            });
        });
        let server = place.serve();
        for (disk, oracle) in &mut oracles {
            assert_eq!(oracle.wrong(&mut of(&place, disk)), 0, "{disk}");
        }
        server.kill();
    }
    expect(&place.run("rescue", &[]), 0, "");
    for (disk, oracle) in &mut oracles {
        assert_eq!(oracle.wrong_in(&bare(&place, disk)), 0, "{disk}");
    }
}

/// Two commands that begin an epoch each, without a start of a server between.
#[test]
fn memory_that_commands_have_taken_in_is_not_warned_of_by_a_later_start() {
    let place = Place::new();
    let Some(memory) = &place.memory else {
        return crate::common::skip("commands take memory in: no memory outlives a server here");
    };
    let left = || fs::read_dir(memory.path()).unwrap().count();
    stack(&place, &[HOME, MAIL, POOL], "");
    place.format();
    let write = |disk: &str, seed: u8| of(&place, disk).write(0, &[seed; 4096]).unwrap();
    let server = place.serve();
    write("home", 1);
    write("pool", 2);
    server.kill();
    assert_eq!(left(), 1);
    let removed = place.run("remove", &["--disk", "pool"]);
    expect(&removed, 0, "taken from its memory into the log");
    assert_eq!((left(), bare(&place, "pool")[..4096] == [2; 4096]), (0, true));
    let server = place.serve();
    write("mail", 3);
    server.kill();
    expect(&place.run("check", &[]), 0, "no problems");
    let doctor = place.run("doctor", &[]);
    expect(&doctor, doctor.status.code().unwrap(), "would start, with 4 KiB");
    assert_eq!(left(), 1, "a look takes nothing in");
    for _ in 0..2 {
        expect(&place.run("rescue", &[]), 0, "");
        assert_eq!(left(), 0);
    }
    let server = place.serve();
    assert_eq!(of(&place, "mail").read(0, 4096).unwrap(), [3; 4096]);
    let said = String::from_utf8(server.stop().stderr).unwrap();
    assert!(!said.contains("its memory is not used"), "{said}");
}

#[test]
fn a_log_of_several_disks_is_checked_written_back_and_detached_as_a_whole() {
    let (place, server) = three();
    write(&place, "home", 1);
    write(&place, "pool", 3);
    server.kill();
    expect(&place.run("check", &[]), 0, "no problems");
    expect(&place.run("rescue", &["--list"]), 0, "dirty: 320 KiB of data");
    expect(&place.run("rescue", &[]), 0, "written back: 320 KiB of data");
    assert!(bare(&place, "home") == written(HOME, 1) && bare(&place, "pool") == written(POOL, 3));
    assert!(bare(&place, "mail") == original(20 * MIB));
    let server = place.serve();
    write(&place, "mail", 2);
    expect(&server.stop(), 0, "");
    expect(&place.run("detach", &["--disk", "mail"]), 1, "to take out one, \"dcd remove");
    expect(&place.run("detach", &[]), 0, "160 KiB was written back");
    assert!(bare(&place, "mail") == written(MAIL, 2));
    for disk in ["home", "mail", "pool"] {
        assert!(!place.path(&format!("{disk}.img.dcd")).exists(), "{disk} is plain");
    }
    expect(&place.run("detach", &[]), 0, "it was detached before");
    expect(&place.run("serve", &[]), 3, "was detached: its cache is not in use any more");
}

#[test]
fn disks_in_other_places_and_of_other_logs_are_refused_and_nothing_is_changed() {
    let (place, server) = three();
    write(&place, "mail", 2);
    expect(&server.stop(), 0, "");
    let log = fs::read(place.path("log.img")).unwrap();
    stack(&place, &[HOME, POOL, MAIL], "");
    for command in ["serve", "rescue", "detach"] {
        let refused = place.run(command, &[]);
        expect(&refused, 3, "\"pool\" is data disk 3 of this log, as its attachment record says");
        expect(&refused, 3, "the stack file names it as number 2");
    }
    stack(&place, &[HOME, MAIL], "");
    expect(&place.run("serve", &[]), 3, "the log is that of 3 data disks, but is used with 2");
    expect(&place.run("rescue", &[]), 3, "the log is that of 3 data disks, but is used with 2");
    let more = ("more", 1);
    stack(&place, &[HOME, MAIL, POOL, more], "");
    expect(&place.run("serve", &[]), 3, "\"more\" is no data disk of this log, or none any more");
    // The disk of one log is not given to another one.
    let other = Place::new();
    fs::write(
        other.stack(),
        format!(
            "export = \"cache\"\n[device.log]\npath = \"log.img\"\n[device.mine]\npath = \"data.img\"\n[device.theirs]\npath = \"{}\"\n\
             [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = [\"mine\", \"theirs\"]\n",
            place.path("mail.img").display()
        ),
    )
    .unwrap();
    expect(&other.run("format", &[]), 3, "a cache is attached to the data disk already");
    assert!(!other.path("data.img.dcd").exists());
    assert!(fs::read(place.path("log.img")).unwrap() == log, "nothing was written");
    stack(&place, &[HOME, MAIL, POOL], "");
    expect(&place.run("serve", &["--without-cache"]), 3, "has 3 data disks");
    // A disk that somebody else has changed.
    let mut changed = bare(&place, "pool");
    changed[0] ^= 1;
    fs::write(place.path("pool.img"), &changed).unwrap();
    expect(&place.run("serve", &[]), 3, "the data disk 3 was changed without this cache");
    changed[0] ^= 1;
    fs::write(place.path("pool.img"), &changed).unwrap();
    let server = place.serve();
    assert!(is_there(&place, MAIL, 2));
    expect(&server.stop(), 0, "");
}

pub fn add(place: &Place, name: &str, path: &str) -> std::process::Output {
    let mut dcd = place.dcd();
    dcd.args(["create", name, "--log"]).arg(place.stack()).arg("--data").arg(place.path(path));
    dcd.output().unwrap()
}

/// The stack file as it names the disks.
pub fn named(place: &Place) -> String {
    let text = fs::read_to_string(place.stack()).unwrap();
    text.lines().find(|line| line.starts_with("data = ")).unwrap().to_owned()
}

#[test]
fn a_disk_is_added_to_a_log_with_data_and_removed_again_and_the_others_stay() {
    let place = Place::new();
    stack(&place, &[HOME], "");
    place.format();
    for (disk, mib) in [MAIL, POOL] {
        fs::write(place.path(&format!("{disk}.img")), original(mib * MIB)).unwrap();
    }
    let server = place.serve();
    write(&place, "home", 1);
    expect(&server.stop(), 0, "");
    expect(&add(&place, "home", "mail.img"), 1, "the name \"home\" is taken");
    expect(&add(&place, "mail", "home.img"), 1, "is the same file as");
    expect(&add(&place, "mail", "mail.img"), 0, "\"mail\" is data disk 2 of the log");
    expect(&add(&place, "mail", "mail.img"), 0, "\"mail\" is data disk 2 of the log");
    expect(&add(&place, "pool", "pool.img"), 0, "\"pool\" is data disk 3 of the log");
    let server = place.serve();
    assert!(is_there(&place, HOME, 1));
    write(&place, "mail", 2);
    write(&place, "pool", 3);
    server.kill();
    expect(&place.run("remove", &["--disk", "home"]), 1, "is the first disk of the log, and stays");
    expect(&place.run("remove", &["--disk", "sofa"]), 1, "is no data disk of a log with several");
    expect(&place.run("remove", &["--disk", "mail"]), 0, "480 KiB of the log were written back");
    assert!(bare(&place, "mail") == written(MAIL, 2) && !place.path("mail.img.dcd").exists());
    assert_eq!(named(&place), "data = [\"home\", \"free\", \"pool\"]");
    let server = place.serve();
    assert!(is_there(&place, HOME, 1) && is_there(&place, POOL, 3));
    assert!(Nbd::connect_to(&place.path("nbd.sock"), "mail").is_err());
    write(&place, "pool", 4);
    server.kill();
    // The place is given again, while the log has data of others.
    fs::write(place.path("more.img"), original(4 * MIB)).unwrap();
    expect(&add(&place, "more", "more.img"), 0, "\"more\" is data disk 2 of the log");
    let server = place.serve();
    write(&place, "more", 5);
    assert!(is_there(&place, HOME, 1) && is_there(&place, POOL, 4) && is_there(&place, ("more", 4), 5));
    expect(&server.stop(), 0, "");
    expect(&place.run("remove", &["--disk", "pool"]), 0, "is a plain disk again");
    expect(&place.run("remove", &["--disk", "more"]), 0, "is a plain disk again");
    assert_eq!(named(&place), "data = [\"home\"]");
    let server = place.serve();
    assert!(is_there(&place, HOME, 1));
    expect(&server.stop(), 0, "");
    assert!(bare(&place, "pool") == written(POOL, 4) && bare(&place, "more") == written(("more", 4), 5));
}

/// The states that a crash leaves between two steps are made by hand: an older copy of a file is put back.
#[test]
fn an_addition_and_a_removal_that_were_cut_off_are_repeated() {
    let place = Place::new();
    stack(&place, &[HOME, MAIL], "");
    place.format();
    let server = place.serve();
    write(&place, "mail", 2);
    expect(&server.stop(), 0, "");
    for disk in ["pool", "more"] {
        fs::write(place.path(&format!("{disk}.img")), original(24 * MIB)).unwrap();
    }
    let state = || ["log.img", "stack.toml", "pool.img.dcd"].map(|file| fs::read(place.path(file)).ok());
    let put = |file: usize, states: &[Option<Vec<u8>>; 3]| {
        let path = place.path(["log.img", "stack.toml", "pool.img.dcd"][file]);
        match &states[file] {
            Some(bytes) => fs::write(path, bytes).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
    };
    let without = state();
    expect(&add(&place, "pool", "pool.img"), 0, "");
    // Only the record was written; another disk may come first.
    put(0, &without);
    put(1, &without);
    let server = place.serve();
    expect(&server.stop(), 0, "");
    let without = [fs::read(place.path("log.img")).ok(), without[1].clone(), None];
    expect(&add(&place, "more", "more.img"), 0, "\"more\" is data disk 3 of the log");
    expect(&add(&place, "pool", "pool.img"), 0, "\"pool\" is data disk 4 of the log");
    expect(&place.run("remove", &["--disk", "more"]), 0, "");
    expect(&place.run("remove", &["--disk", "pool"]), 0, "");
    assert_eq!(named(&place), "data = [\"home\", \"mail\"]");
    // The log has the disk, the stack file has not.
    expect(&add(&place, "pool", "pool.img"), 0, "data disk 3");
    let added = state();
    put(1, &without);
    let refused = place.run("serve", &[]);
    expect(&refused, 3, "the log is that of 3 data disks, but is used with 2");
    expect(&add(&place, "more", "more.img"), 3, "the log is that of 3 data disks, but is used with 2");
    expect(&add(&place, "pool", "pool.img"), 0, "data disk 3");
    assert!(state()[1] == added[1]);
    // A removal: the log has no disk any more, its record and the stack file have.
    let server = place.serve();
    write(&place, "pool", 3);
    expect(&server.stop(), 0, "");
    let before = state();
    expect(&place.run("remove", &["--disk", "pool"]), 0, "");
    put(1, &before);
    put(2, &before);
    expect(&place.run("serve", &[]), 3, "\"pool\" is no data disk of this log, or none any more");
    expect(&place.run("remove", &["--disk", "pool"]), 0, "0 B of the log were written back");
    // Only the stack file has it.
    put(1, &before);
    expect(&place.run("serve", &[]), 3, "\"pool\" is no data disk of this log, or none any more");
    expect(&place.run("remove", &["--disk", "pool"]), 0, "");
    assert!(bare(&place, "pool") == written(POOL, 3));
    let server = place.serve();
    assert!(is_there(&place, MAIL, 2));
    expect(&server.stop(), 0, "");
}

/// A crash between the mark of the log and the last record, of a log that has a free place.
#[test]
fn a_detach_that_was_cut_off_is_repeated_also_beside_a_free_place() {
    let (place, server) = three();
    write(&place, "pool", 3);
    expect(&place.run("remove", &["--disk", "mail"]), 0, "is a plain disk again");
    write(&place, "home", 1);
    server.kill();
    expect(&place.run("rescue", &[]), 0, "");
    let known = fs::read(place.path("pool.img.dcd")).unwrap();
    expect(&place.run("detach", &[]), 0, "was written back");
    fs::write(place.path("pool.img.dcd"), known).unwrap();
    expect(&place.run("detach", &[]), 0, "detached; ");
    assert!(!place.path("pool.img.dcd").exists());
    assert!(bare(&place, "home") == written(HOME, 1) && bare(&place, "pool") == written(POOL, 3));
}

/// Takes the record and the mark of a disk away: a copy has no mark.
fn without_record(place: &Place, disk: &str) {
    fs::remove_file(place.path(&format!("{disk}.img.dcd"))).unwrap();
    fs::copy(place.path(&format!("{disk}.img")), place.path("copy.img")).unwrap();
    fs::rename(place.path("copy.img"), place.path(&format!("{disk}.img"))).unwrap();
}

/// A format that ended between the first superblock and the last disk leaves an empty log with fewer disks, and no record. One that ended
/// later leaves an empty log, and records of some of its disks.
#[test]
fn a_format_that_was_cut_off_is_repeated() {
    let place = Place::new();
    stack(&place, &[HOME], "");
    place.format();
    without_record(&place, "home");
    stack(&place, &[HOME, MAIL], "");
    let refused = place.run("serve", &[]);
    expect(&refused, 3, "the log is that of 1 data disks, but is used with 2");
    expect(&refused, 3, "repeat it");
    place.format();
    expect(&place.run("format", &[]), 3, "a cache is attached to the data disk already");
    let first = record(&place, "home")["cache-uuid"].clone();
    without_record(&place, "mail");
    place.format();
    assert!(record(&place, "home")["cache-uuid"] != first);
    assert_eq!(record(&place, "mail")["cache-uuid"], record(&place, "home")["cache-uuid"]);
    let server = place.serve();
    write(&place, "mail", 2);
    assert!(is_there(&place, MAIL, 2));
    expect(&server.stop(), 0, "");
    // A log that was served is in use, whatever records are there.
    without_record(&place, "mail");
    expect(&place.run("format", &[]), 3, "a cache is attached to the data disk already");
    let server = place.serve();
    assert!(is_there(&place, MAIL, 2));
    expect(&server.stop(), 0, "");
}

#[test]
fn another_log_takes_the_place_of_one_for_all_disks() {
    let (place, server) = three();
    write(&place, "home", 1);
    write(&place, "pool", 3);
    server.kill();
    let old = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.path("old.toml"), &old).unwrap();
    let replace = || place.run("format", &["--replace", place.path("old.toml").to_str().unwrap()]);
    let with = |log: &str, data: &str| {
        let text = old.replace("log.img", log).replace("\"home\", \"mail\", \"pool\"", data);
        fs::write(place.stack(), text).unwrap();
    };
    fs::File::create(place.path("small.img")).unwrap().set_len(MIB).unwrap();
    fs::File::create(place.path("larger.img")).unwrap().set_len(12 * MIB).unwrap();
    let before = ["home", "mail", "pool"].map(|disk| (bare(&place, disk), record(&place, disk)));
    with("larger.img", "\"home\", \"mail\"");
    expect(&replace(), 1, "different data disks");
    with("small.img", "\"home\", \"mail\", \"pool\"");
    expect(&replace(), 3, "the log device has");
    assert!(before == ["home", "mail", "pool"].map(|disk| (bare(&place, disk), record(&place, disk))));
    // In another order.
    with("larger.img", "\"pool\", \"home\", \"mail\"");
    expect(&replace(), 0, "for 60 MiB of data");
    assert!(bare(&place, "home") == written(HOME, 1) && bare(&place, "pool") == written(POOL, 3));
    let server = place.serve();
    let mut first = place.nbd();
    assert!(first.bytes == 24 * MIB && first.read(96 * 1024, 4096).unwrap() == [3 ^ 1; 4096]);
    expect(&server.stop(), 0, "");
    fs::write(place.stack(), &old).unwrap();
    expect(&place.run("serve", &[]), 3, "was detached");
}

#[test]
fn each_disk_of_a_log_has_its_image_in_a_directory_of_its_own() {
    if !Path::new("/dev/fuse").exists() || tool("images of several disks", "fusermount3").is_none() {
        return crate::common::skip("images of several disks: there is no FUSE here");
    }
    let place = Place::new();
    fs::create_dir(place.path("images")).unwrap();
    stack(&place, &[HOME, MAIL], "fuse = \"images\"\n");
    place.format();
    let server = place.serve();
    for (directory, seed) in [("images", 1_u8), ("images-mail", 2)] {
        let image = place.path(directory).join("disk.img");
        let file = File::options().write(true).open(image).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[seed; 8192], 4096).unwrap();
        file.sync_all().unwrap();
    }
    let read = [of(&place, "home"), of(&place, "mail")].map(|mut nbd| nbd.read(4096, 8192).unwrap());
    assert!(read == [vec![1; 8192], vec![2; 8192]]);
    expect(&server.stop(), 0, "");
}
