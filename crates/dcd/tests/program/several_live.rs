//! Data disks that come and go while the server serves the others, as a user has it.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{MIB, Nbd, Place, expect, original, skip, tool};
use crate::kill::{Oracle, next};
use crate::several::{
    HOME, MAIL, POOL, add, bare, is_there, named, of, record, stack, status, write, written,
};

/// A stack with one disk, and files for two others.
fn one() -> Place {
    let place = Place::new();
    stack(&place, &[HOME], "");
    place.format();
    for (disk, mib) in [MAIL, POOL] {
        fs::write(place.path(&format!("{disk}.img")), original(mib * MIB)).unwrap();
    }
    place
}

fn remove(place: &Place, disk: &str) -> Output {
    place.run("remove", &["--disk", disk])
}

/// Names of the disks that the server tells of.
fn served(place: &Place) -> Vec<String> {
    let seen = status(place);
    let names = seen["disks"].as_array().unwrap().iter();
    names.map(|disk| disk["name"].as_str().unwrap().to_owned()).collect()
}

/// Writes to the first disk and flushes it until `is_done`, and checks what it has written; returns the number of flushes.
fn keeps_writing(place: &Place, is_done: &AtomicBool) -> u64 {
    let mut nbd = of(place, "home");
    let mut rounds = 0_u64;
    while !is_done.load(Ordering::SeqCst) {
        for block in 0..8 {
            nbd.write(8 * MIB + block * 8192, &[(rounds as u8) ^ block as u8; 4096]).unwrap();
        }
        nbd.flush().unwrap();
        for block in 0..8 {
            let read = nbd.read(8 * MIB + block * 8192, 4096).unwrap();
            assert!(read == [(rounds as u8) ^ block as u8; 4096], "round {rounds}");
        }
        rounds += 1;
    }
    nbd.disconnect().unwrap();
    rounds
}

#[test]
fn disks_come_and_go_while_a_client_of_another_writes() {
    let place = one();
    let server = place.serve();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| keeps_writing(&place, &is_done));
        let ends = scope.spawn(|| {
            comes_and_goes(&place);
            is_done.store(true, Ordering::SeqCst);
        });
        let ended = ends.join();
        is_done.store(true, Ordering::SeqCst);
        assert!(writer.join().unwrap() > 10);
        ended.unwrap();
    });
    expect(&server.stop(), 0, "");
    let server = place.serve();
    assert!(is_there(&place, POOL, 3));
    expect(&server.stop(), 0, "");
}

fn comes_and_goes(place: &Place) {
    expect(&add(place, "home", "mail.img"), 1, "the name \"home\" is taken");
    expect(&add(place, "mail", "nowhere.img"), 1, "no such file");
    let added = add(place, "mail", "mail.img");
    expect(&added, 0, "\"mail\" is data disk 2 of the log");
    expect(&added, 0, "export \"mail\" of nbd unix:");
    expect(&add(place, "mail", "mail.img"), 0, "\"mail\" is data disk 2 of the log");
    assert_eq!(
        (served(place), named(place)),
        (vec!["home".into(), "mail".into()], "data = [\"home\", \"mail\"]".into())
    );
    assert_eq!(
        (record(place, "mail")["state"].clone(), record(place, "mail")["disk"].clone()),
        ("dirty".into(), 1.into())
    );
    write(place, "mail", 2);
    assert!(is_there(place, MAIL, 2));
    // A client has it.
    let client = of(place, "mail");
    expect(&remove(place, "mail"), 3, "\"mail\" is in use: process");
    client.disconnect().unwrap();
    expect(&remove(place, "home"), 1, "is the first disk of the log, and stays");
    expect(&remove(place, "sofa"), 1, "is no data disk of a log with several");
    while remove_now(place, "mail") {}
    assert!(bare(place, "mail") == written(MAIL, 2) && !place.path("mail.img.dcd").exists());
    assert_eq!(named(place), "data = [\"home\"]");
    assert!(Nbd::connect_to(&place.path("nbd.sock"), "mail").is_err());
    assert!(served(place).is_empty(), "a single one");
    // The place is given again.
    expect(&add(place, "pool", "pool.img"), 0, "\"pool\" is data disk 2 of the log");
    assert!(of(place, "pool").read(0, 24 << 20).unwrap() == original(24 * MIB));
    write(place, "pool", 3);
}

/// Each layer above the cache has a place for a disk more, and knows the size of one that comes into a free place.
#[test]
fn disks_come_to_a_server_that_started_with_several() {
    let place = one();
    stack(&place, &[HOME, MAIL], "");
    expect(&place.run("format", &["--force"]), 0, "");
    let server = place.serve();
    expect(&add(&place, "pool", "pool.img"), 0, "\"pool\" is data disk 3 of the log");
    write(&place, "pool", 3);
    write(&place, "mail", 2);
    repeated(&place, || remove(&place, "pool"), "is a plain disk again");
    assert!(bare(&place, "pool") == written(POOL, 3));
    repeated(&place, || remove(&place, "mail"), "is a plain disk again");
    expect(&add(&place, "pool", "pool.img"), 0, "\"pool\" is data disk 2 of the log");
    let end = POOL.1 * MIB;
    let mut nbd = of(&place, "pool");
    nbd.write(end - 4096, &[9; 4096]).unwrap();
    nbd.flush().unwrap();
    nbd.disconnect().unwrap();
    repeated(&place, || remove(&place, "pool"), "is a plain disk again");
    expect(&server.stop(), 0, "");
    let pool = bare(&place, "pool");
    assert!(pool[pool.len() - 4096..] == [9; 4096], "larger than the disk that was there");
}

/// Removes a disk; true if a client that has just gone still counts.
fn remove_now(place: &Place, disk: &str) -> bool {
    let removed = remove(place, disk);
    let is_left = String::from_utf8_lossy(&removed.stderr).contains("is in use");
    if !is_left {
        expect(&removed, 0, "is a plain disk again");
    }
    is_left
}

/// Wherever the server or the command is killed, the command is repeated, and no write of any disk is lost.
#[test]
fn changes_that_are_cut_off_anywhere_are_repeated() {
    let place = one();
    if place.memory.is_none() {
        return skip("changes that are cut off: no memory outlives a server here");
    }
    let mut random = 0x5eed_u64;
    let mut oracle = Oracle::new(true);
    let mut is_added = false;
    for round in 0..24_u8 {
        let server = place.serve();
        let mut home = of(&place, "home");
        assert_eq!(oracle.wrong(&mut home), 0, "round {round}");
        if is_added {
            assert!(is_there(&place, MAIL, round - 1), "round {round}");
            write(&place, "mail", round);
        }
        let mut dcd = place.dcd();
        match is_added {
            true => dcd.arg("remove").arg(place.stack()).args(["--disk", "mail"]),
            false => {
                fs::write(place.path("mail.img"), original(20 * MIB)).unwrap();
                dcd.args(["create", "mail", "--log"])
                    .arg(place.stack())
                    .arg("--data")
                    .arg(place.path("mail.img"))
            }
        };
        let after = Duration::from_micros(next(&mut random) % 90_000);
        let kills_command = next(&mut random).is_multiple_of(3);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut command = dcd.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                std::thread::sleep(after);
                if kills_command {
                    let _ = command.kill();
                    std::thread::sleep(Duration::from_millis(40));
                }
                server.kill();
                command.wait().unwrap();
            });
            oracle.load(&mut home, &mut random).unwrap_err();
        });
        // A server that was killed may leave the stack served by nobody, and the change anywhere.
        match is_added {
            true => {
                if named(&place).contains("mail") {
                    expect(&remove(&place, "mail"), 0, "is a plain disk again");
                }
                assert!(bare(&place, "mail") == written(MAIL, round), "round {round}");
                // A command that is killed after the change of the stack file leaves a record that says that the disk has left its log.
                if place.path("mail.img.dcd").exists() {
                    assert_eq!(record(&place, "mail")["state"], "abandoned", "round {round}");
                }
            }
            false => {
                expect(&add(&place, "mail", "mail.img"), 0, "\"mail\" is data disk 2 of the log");
                let server = place.serve();
                write(&place, "mail", round);
                server.kill();
            }
        }
        is_added = !is_added;
    }
    let server = place.serve();
    assert_eq!(oracle.wrong(&mut of(&place, "home")), 0);
    expect(&server.stop(), 0, "");
}

/// The command is killed, and the server goes on: it ends the change, or has not begun it, and the command is repeated.
#[test]
fn a_command_that_is_killed_is_repeated_at_the_same_server() {
    let place = one();
    let server = place.serve();
    let mut random = 77_u64;
    for round in 0..8_u8 {
        killed(&place, &["create", "mail", "--data", "mail.img", "--log", "stack.toml"], &mut random);
        repeated(&place, || add(&place, "mail", "mail.img"), "\"mail\" is data disk 2 of the log");
        write(&place, "mail", round);
        killed(&place, &["remove", "stack.toml", "--disk", "mail"], &mut random);
        if named(&place).contains("mail") {
            repeated(&place, || remove(&place, "mail"), "is a plain disk again");
        }
        assert!(bare(&place, "mail") == written(MAIL, round), "round {round}");
        fs::write(place.path("mail.img"), original(20 * MIB)).unwrap();
    }
    expect(&server.stop(), 0, "");
}

/// Runs a command in the directory of the disks, and kills it after a while.
fn killed(place: &Place, args: &[&str], random: &mut u64) {
    let mut dcd = place.dcd();
    dcd.current_dir(place.dir.path()).args(args).stdout(Stdio::null()).stderr(Stdio::null());
    let mut command = dcd.spawn().unwrap();
    std::thread::sleep(Duration::from_micros(next(random) % 60_000));
    let _ = command.kill();
    command.wait().unwrap();
}

/// Repeats a command until the server has ended the change that the last one had begun.
fn repeated(place: &Place, mut run: impl FnMut() -> Output, said: &str) {
    for _ in 0..200 {
        let output = run();
        if output.status.success() {
            return expect(&output, 0, said);
        }
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let passes = ["another disk is being added or removed", "is in use", "locked it"];
        assert!(passes.iter().any(|why| text.contains(why)), "{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("the change has no end: {:?}", served(place));
}

#[test]
fn a_disk_that_another_cache_has_is_refused_and_the_server_goes_on() {
    let place = one();
    let other = Place::new();
    other.format();
    let theirs = other.path("data.img");
    let log = other.path("log.img");
    let server = place.serve();
    let mut dcd = place.dcd();
    dcd.args(["create", "sofa", "--log"]).arg(place.stack()).arg("--data").arg(&theirs);
    expect(&dcd.output().unwrap(), 3, "a cache is attached to the data disk already");
    let mut dcd = place.dcd();
    dcd.args(["create", "sofa", "--log"]).arg(place.stack()).arg("--data").arg(&log);
    expect(&dcd.output().unwrap(), 3, "has the log of the cache");
    let held = other.serve();
    let mut dcd = place.dcd();
    dcd.args(["create", "sofa", "--log"]).arg(place.stack()).arg("--data").arg(&theirs);
    assert!(!dcd.output().unwrap().status.success(), "it is served");
    drop(held);
    assert_eq!(named(&place), "data = [\"home\"]");
    assert!(of(&place, "home").read(0, 16 << 20).unwrap() == original(16 * MIB));
    expect(&server.stop(), 0, "");
}

#[test]
fn images_come_and_go_with_their_disks() {
    if !Path::new("/dev/fuse").exists() || tool("images that come and go", "fusermount3").is_none() {
        return skip("images that come and go: there is no FUSE here");
    }
    let place = one();
    fs::create_dir(place.path("images")).unwrap();
    place.add_to_serve("fuse = \"images\"\n");
    let server = place.serve();
    expect(&add(&place, "mail", "mail.img"), 0, "images-mail/disk.img");
    let image = place.path("images-mail/disk.img");
    let file = File::options().write(true).open(&image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 8192], 4096).unwrap();
    file.sync_all().unwrap();
    expect(&remove(&place, "mail"), 3, "images-mail/disk.img, open once");
    assert_eq!(fs::metadata(&image).unwrap().len(), 20 * MIB, "it stays");
    drop(file);
    repeated(&place, || remove(&place, "mail"), "is a plain disk again");
    assert!(!image.exists(), "the directory is no mount any more");
    assert!(bare(&place, "mail")[4096..12288] == [7; 8192]);
    let first = File::options().write(true).open(place.path("images/disk.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&first, &[8; 4096], 0).unwrap();
    first.sync_all().unwrap();
    drop(first);
    expect(&add(&place, "mail", "mail.img"), 0, "images-mail/disk.img");
    expect(&server.stop(), 0, "");
    let left = Command::new("mountpoint").arg("-q").arg(place.path("images-mail")).status().unwrap();
    assert!(!left.success(), "nothing stays mounted");
}

/// The stack file may change while a server works: the command changes what is there then.
#[test]
fn a_change_of_the_stack_file_meanwhile_is_kept() {
    let place = one();
    let server = place.serve();
    expect(&add(&place, "mail", "mail.img"), 0, "data disk 2");
    let before = fs::read_to_string(place.stack()).unwrap();
    expect(&add(&place, "pool", "pool.img"), 0, "data disk 3");
    // The second command ended before the first one had changed the file.
    let one_disk = before.replace("[device.mail]\npath = \"", "[device.unused]\npath = \"");
    let text = one_disk.replace("data = [\"home\", \"mail\"]", "data = [\"home\"]");
    fs::write(place.stack(), text).unwrap();
    expect(&add(&place, "pool", "pool.img"), 0, "data disk 3");
    assert_eq!(named(&place), "data = [\"home\", \"free\", \"pool\"]");
    expect(&add(&place, "mail", "pool.img"), 1, "is the same file as");
    expect(&place.run("set", &["--save", "high-mark=77"]), 0, "");
    expect(&add(&place, "mail", "mail.img"), 0, "data disk 2");
    assert_eq!(named(&place), "data = [\"home\", \"mail\", \"pool\"]");
    expect(&remove(&place, "pool"), 0, "is a plain disk again");
    assert!(fs::read_to_string(place.stack()).unwrap().contains("high-mark = 77"));
    let got = place.run("get", &["high-mark"]);
    expect(&got, 0, "77");
    fs::write(place.path("other.img"), original(MIB)).unwrap();
    expect(&add(&place, "mail", "other.img"), 1, "the name \"mail\" is taken");
    expect(&server.stop(), 0, "");
    let server = place.serve();
    expect(&server.stop(), 0, "");
}
