//! A data disk of several is missing at a start: it has to be allowed, the others are served, and nothing of it is lost.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Nbd, Place, Server, expect};
use crate::several::{HOME, MAIL, POOL, bare, is_there, record, stack, status, three, write, written};

/// Takes a disk away, or gives it back.
fn away(place: &Place, disk: &str) {
    fs::rename(place.path(&format!("{disk}.img")), place.path("away")).unwrap();
}

fn back(place: &Place, disk: &str) {
    fs::rename(place.path("away"), place.path(&format!("{disk}.img"))).unwrap();
}

fn export(place: &Place, name: &str) -> bool {
    Nbd::connect_to(&place.path("nbd.sock"), name).is_ok()
}

/// Three disks of which two have data in the log, after a kill.
fn killed() -> Place {
    let (place, server) = three();
    write(&place, "home", 1);
    write(&place, "mail", 2);
    server.kill();
    place
}

fn of_disk(place: &Place, name: &str) -> Value {
    let status = status(place);
    let disks = status["layers"]["cache"]["disks"].as_array().unwrap();
    disks
        .iter()
        .find(|disk| disk["name"] == name || name == "mail" && disk["missing"] == true)
        .unwrap()
        .clone()
}

fn stops(server: Server, place: &Place) {
    let stopped = place.run("stop", &[]);
    expect(&stopped, 0, "for it stay in the log, which loses nothing");
    expect(&server.wait(), 0, "");
}

#[test]
fn a_start_without_a_disk_has_to_be_allowed_and_loses_nothing_of_it() {
    let place = killed();
    away(&place, "mail");
    let log = fs::read(place.path("log.img")).unwrap();
    let refused = place.run("serve", &[]);
    expect(&refused, 3, "data disk \"mail\"");
    expect(&refused, 3, "mail.img) of \"cache\" is missing: it does not exist");
    expect(&refused, 3, "dcd serve --degraded");
    let doctor = place.run("doctor", &[]);
    expect(&doctor, doctor.status.code().unwrap(), "would not start: data disk \"mail\"");
    expect(&place.run("check", &[]), 0, "no problems");
    expect(&place.run("check", &[]), 0, "data disk \"mail\" is missing, and is not looked at");
    expect(&place.run("dump", &[]), 0, "");
    expect(&place.run("rescue", &["--list"]), 0, "dirty: 320 KiB of data");
    for command in ["rescue", "detach"] {
        expect(&place.run(command, &[]), 3, "data disk \"mail\"");
    }
    assert!(fs::read(place.path("log.img")).unwrap() == log, "nothing was changed");
    let before = record(&place, "mail");
    let server = place.serve_with(&["--degraded"]);
    assert!(is_there(&place, HOME, 1) && !export(&place, "mail"));
    write(&place, "pool", 3);
    let disk = of_disk(&place, "mail");
    assert_eq!((disk["missing"].clone(), disk["dirty_bytes"].clone()), (true.into(), (40 * 4096).into()));
    expect(&place.run("status", &[]), 5, "mail, 20 MiB: dirty 160 KiB, missing, and not served");
    expect(&place.run("status", &[]), 5, "reconnect data disk \"mail\"");
    let doctor = place.run("doctor", &[]);
    expect(&doctor, doctor.status.code().unwrap(), "reconnect data disk \"mail\"");
    // The others go on being served.
    expect(
        &place.run("remove", &[]),
        3,
        "data disk \"mail\" is missing, and the log may have its newest data",
    );
    expect(&place.run("flush", &[]), 5, "\"mail\" is missing, and 160 KiB for it stay in the log");
    assert!(bare(&place, "home") == written(HOME, 1) && bare(&place, "pool") == written(POOL, 3));
    stops(server, &place);
    assert_eq!(record(&place, "mail"), before);
    assert_eq!(["home", "pool"].map(|disk| record(&place, disk)["state"].clone()), ["clean", "clean"]);
    // Another start without it, which is killed.
    let server = place.serve_with(&["--degraded"]);
    write(&place, "home", 4);
    server.kill();
    back(&place, "mail");
    let server = place.serve();
    assert!(is_there(&place, HOME, 4) && is_there(&place, MAIL, 2) && is_there(&place, POOL, 3));
    expect(&place.run("flush", &[]), 0, "");
    assert!(bare(&place, "mail") == written(MAIL, 2));
    expect(&server.stop(), 0, "");
}

#[test]
fn a_start_that_waits_leaves_the_first_disk_out_but_never_all() {
    let place = killed();
    away(&place, "home");
    let server = place.serve_with(&["--degraded=1s"]);
    assert!(!export(&place, "") && is_there(&place, MAIL, 2));
    server.kill();
    let moved = |from: &str, to: &str| fs::rename(place.path(from), place.path(to)).unwrap();
    moved("mail.img", "mail.away");
    moved("pool.img", "pool.away");
    let refused = place.run("serve", &["--degraded=1s"]);
    expect(&refused, 3, "all data disks of \"cache\" are missing: \"home\"");
    moved("mail.away", "mail.img");
    moved("pool.away", "pool.img");
    back(&place, "home");
    let server = place.serve();
    assert!(is_there(&place, HOME, 1) && is_there(&place, MAIL, 2));
    expect(&server.stop(), 0, "");
}

#[test]
fn a_disk_that_was_exchanged_or_changed_is_refused_whatever_is_allowed() {
    let place = killed();
    away(&place, "mail");
    stops(place.serve_with(&["--degraded"]), &place);
    back(&place, "mail");
    let good = bare(&place, "mail");
    let mut changed = good.clone();
    // A block for which the log has data, and one that nobody has written.
    for at in [0, good.len() - 1] {
        changed[at] ^= 1;
        fs::write(place.path("mail.img"), &changed).unwrap();
        expect(&place.run("serve", &["--degraded"]), 3, "the data disk 2 was changed without this cache");
        changed.clone_from(&good);
    }
    fs::write(place.path("mail.img"), &good).unwrap();
    let swap = |one: &Path, other: &Path| {
        fs::rename(one, place.path("third")).unwrap();
        fs::rename(other, one).unwrap();
        fs::rename(place.path("third"), other).unwrap();
    };
    for file in ["img", "img.dcd"] {
        swap(&place.path(&format!("mail.{file}")), &place.path(&format!("pool.{file}")));
    }
    expect(&place.run("serve", &["--degraded"]), 3, "is data disk 3 of this log");
    for file in ["img", "img.dcd"] {
        swap(&place.path(&format!("mail.{file}")), &place.path(&format!("pool.{file}")));
    }
    // A log that is missing, too, is not served.
    away(&place, "mail");
    fs::rename(place.path("log.img"), place.path("log.away")).unwrap();
    let refused = place.run("serve", &["--degraded"]);
    expect(&refused, 3, "the log is missing");
    fs::rename(place.path("log.away"), place.path("log.img")).unwrap();
    back(&place, "mail");
    let server = place.serve();
    assert!(is_there(&place, MAIL, 2));
    expect(&server.stop(), 0, "");
}

#[test]
fn one_disk_is_written_back_while_another_is_missing_and_the_log_keeps_the_rest() {
    let place = killed();
    away(&place, "mail");
    let before = ["mail", "pool"].map(|disk| record(&place, disk));
    expect(&place.run("rescue", &["--disk", "sofa"]), 1, "is no data disk of a log with several");
    expect(&place.run("rescue", &["--disk", "home", "--force"]), 1, "leave out --list and --force");
    expect(&place.run("rescue", &["--disk", "mail"]), 3, "data disk \"mail\"");
    expect(
        &place.run("rescue", &["--disk", "home"]),
        0,
        "\"home\" has all its data: 160 KiB were written back",
    );
    assert!(bare(&place, "home") == written(HOME, 1));
    assert_eq!(record(&place, "home")["state"], "clean");
    assert_eq!(["mail", "pool"].map(|disk| record(&place, disk)), before);
    expect(&place.run("rescue", &["--disk", "home"]), 0, "0 B were written back");
    expect(&place.run("rescue", &["--list"]), 0, "dirty: 160 KiB of data");
    back(&place, "mail");
    let server = place.serve();
    assert!(is_there(&place, HOME, 1) && is_there(&place, MAIL, 2));
    write(&place, "pool", 3);
    expect(&place.run("rescue", &["--disk", "pool"]), 3, "it is served");
    server.kill();
    let untouched = bare(&place, "mail");
    expect(&place.run("rescue", &["--disk", "pool"]), 0, "160 KiB were written back");
    assert!(bare(&place, "pool") == written(POOL, 3) && bare(&place, "mail") == untouched);
    expect(&place.run("rescue", &[]), 0, "written back: 160 KiB of data");
    assert!(bare(&place, "mail") == written(MAIL, 2));
}

/// Another disk is there, and only left out: what somebody writes to it afterwards must not be overwritten.
#[test]
fn a_disk_that_is_changed_after_another_was_written_back_alone_is_refused() {
    let place = killed();
    expect(&place.run("rescue", &["--disk", "home"]), 0, "160 KiB were written back");
    let good = bare(&place, "mail");
    let mut changed = good.clone();
    changed[0] ^= 1;
    fs::write(place.path("mail.img"), &changed).unwrap();
    expect(&place.run("serve", &[]), 3, "the data disk 2 was changed without this cache");
    assert!(bare(&place, "mail") == changed);
    fs::write(place.path("mail.img"), &good).unwrap();
    let server = place.serve();
    assert!(is_there(&place, HOME, 1) && is_there(&place, MAIL, 2));
    expect(&server.stop(), 0, "");
}

/// Puts a fault over a device. Returns the text of the stack before.
fn fault(place: &Place, of: &str, hits: &str, after: u32) -> String {
    let text = fs::read_to_string(place.stack()).unwrap();
    let layer = format!(
        "[layer.bad]\nkind = \"fault\"\nof = \"{of}\"\nhits = \"{hits}\"\nfail-after = {after}\nfail-count = 1000000\n"
    );
    let (before, cache) = text.split_once("[layer.cache]").unwrap();
    let cache = cache.replace(&format!("\"{of}\""), "\"bad\"");
    fs::write(place.stack(), format!("{before}{layer}[layer.cache]{cache}")).unwrap();
    text
}

#[test]
fn a_start_that_waits_leaves_out_a_disk_that_cannot_be_read() {
    let place = killed();
    let text = fault(&place, "mail", "reads", 0);
    expect(&place.run("serve", &[]), 3, "is missing: it cannot be read");
    let server = place.serve_with(&["--degraded=1s"]);
    assert!(is_there(&place, HOME, 1) && !export(&place, "bad"));
    server.kill();
    fs::write(place.stack(), text).unwrap();
    let server = place.serve();
    assert!(is_there(&place, HOME, 1) && is_there(&place, MAIL, 2));
    expect(&server.stop(), 0, "");
}

#[test]
fn one_disk_is_written_back_from_a_log_that_takes_no_writes() {
    let place = killed();
    away(&place, "pool");
    let text = fault(&place, "log", "writes", 0);
    let log = fs::read(place.path("log.img")).unwrap();
    let rescued = place.run("rescue", &["--disk", "mail"]);
    expect(&rescued, 0, "\"mail\" has all its data: 160 KiB were written back");
    expect(&rescued, 0, "the log cannot be written: it is only read");
    assert!(bare(&place, "mail") == written(MAIL, 2) && bare(&place, "home") == original_of(HOME));
    assert!(fs::read(place.path("log.img")).unwrap() == log, "it is only read");
    assert_eq!(record(&place, "mail")["state"], "abandoned");
    expect(&place.run("rescue", &["--disk", "mail"]), 3, "has been written without the log");
    fs::write(place.stack(), text).unwrap();
    back(&place, "pool");
    expect(&place.run("serve", &[]), 3, "--disk NAME");
    expect(&place.run("rescue", &["--force"]), 3, "--disk home");
    for disk in ["home", "pool"] {
        expect(&place.run("rescue", &["--disk", disk]), 0, "has all its data");
    }
    assert!(bare(&place, "home") == written(HOME, 1));
    expect(&place.run("format", &[]), 0, "for 60 MiB of data");
    let server = place.serve();
    assert!(is_there(&place, HOME, 1) && is_there(&place, MAIL, 2));
    expect(&server.stop(), 0, "");
}

fn original_of((_, mib): (&str, u64)) -> Vec<u8> {
    crate::common::original(mib * crate::common::MIB)
}

/// The only copy of what the missing disk lacks is in the log. Every message leads to the one step that loses nothing.
#[test]
fn rule_13_a_log_that_fails_while_a_disk_is_missing_keeps_what_it_has_for_it() {
    for is_killed in [false, true] {
        let place = killed();
        away(&place, "mail");
        let text = fault(&place, "log", "writes", 4);
        let server = place.serve_with(&["--degraded"]);
        [5, 6, 7, 8, 3].into_iter().for_each(|seed| write(&place, "pool", seed));
        let status = place.run("status", &[]);
        expect(&status, 5, "log-failed");
        expect(&status, 5, "--disk mail");
        let states = || {
            ["home", "pool"].map(|disk| {
                (record(&place, disk)["state"].clone(), record(&place, disk)["dirty-bytes"].clone())
            })
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        let complete = ("abandoned".into(), 0.into());
        while is_killed && states() != [complete.clone(), complete.clone()] {
            assert!(Instant::now() < deadline, "{:?}", states());
            std::thread::sleep(Duration::from_millis(50));
        }
        match is_killed {
            true => server.kill(),
            false => {
                let stopped = place.run("stop", &[]);
                expect(&stopped, 1, "dcd rescue STACK --disk NAME");
                assert!(!String::from_utf8_lossy(&stopped.stderr).contains("--force"), "{stopped:?}");
                server.wait();
            }
        }
        assert_eq!(states(), [complete.clone(), complete.clone()]);
        fs::write(place.stack(), text).unwrap();
        let log = fs::read(place.path("log.img")).unwrap();
        let is_whole = || {
            assert!(fs::read(place.path("log.img")).unwrap() == log, "the log is as it was");
            assert!(bare(&place, "home") == written(HOME, 1) && bare(&place, "pool") == written(POOL, 3));
        };
        for leads_to in ["", "--disk"] {
            for command in ["detach", "rescue", "serve"] {
                expect(&place.run(command, &[]), 3, leads_to);
            }
            expect(&place.run("serve", &["--degraded"]), 3, "--disk");
            is_whole();
            if !place.path("mail.img").exists() {
                back(&place, "mail");
            }
        }
        let refused = place.run("rescue", &["--force"]);
        expect(&refused, 3, "--disk mail");
        is_whole();
        let rescued = place.run("rescue", &["--disk", "mail"]);
        expect(&rescued, 0, "\"mail\" has all its data: 160 KiB were written back");
        is_whole();
        assert!(bare(&place, "mail") == written(MAIL, 2));
        match is_killed {
            true => expect(&place.run("detach", &[]), 0, "complete without it"),
            false => {
                expect(&place.run("format", &[]), 0, "for 60 MiB of data");
                let server = place.serve();
                assert!(is_there(&place, HOME, 1) && is_there(&place, MAIL, 2) && is_there(&place, POOL, 3));
                expect(&server.stop(), 0, "");
            }
        }
    }
}

#[test]
fn a_disk_that_is_gone_for_good_is_given_up_and_the_others_become_plain() {
    let place = killed();
    expect(&place.run("detach", &["--gone", "sofa"]), 1, "is no data disk of a log with several");
    let there = place.run("detach", &["--gone", "mail"]);
    expect(&there, 3, "data disk \"mail\" is there");
    expect(&there, 3, "--disk mail");
    away(&place, "mail");
    let known = record(&place, "mail");
    let refused = place.run("detach", &["--gone", "mail"]);
    expect(&refused, 3, "160 KiB for \"mail\" would be lost");
    expect(&refused, 3, "reconnect it, or correct its path");
    for command in ["detach", "remove"] {
        let refused = place.run(command, &[]);
        expect(&refused, 3, "mail.img) of \"cache\" is missing");
        expect(&refused, 3, &format!("dcd detach {} --gone mail\"", place.stack().display()));
    }
    expect(&place.run("remove", &["--force"]), 1, "has one that is there");
    // The refusal has lost nothing.
    back(&place, "mail");
    let server = place.serve();
    assert!(is_there(&place, HOME, 1) && is_there(&place, MAIL, 2));
    write(&place, "pool", 3);
    away(&place, "mail");
    expect(&place.run("detach", &["--gone", "mail"]), 3, "it is served");
    server.kill();
    let before = fs::read(place.path("pool.img.dcd")).unwrap();
    let detached = place.run("detach", &["--gone", "mail", "--force"]);
    expect(&detached, 0, "160 KiB for the disks that are gone were given up");
    let is_plain = || ["home", "pool"].iter().all(|disk| !place.path(&format!("{disk}.img.dcd")).exists());
    assert!(
        bare(&place, "home") == written(HOME, 1) && bare(&place, "pool") == written(POOL, 3) && is_plain()
    );
    // A record from before looks like that of a disk that was missing.
    fs::write(place.path("pool.img.dcd"), before).unwrap();
    expect(&place.run("serve", &["--degraded"]), 3, "was detached");
    expect(&place.run("detach", &["--gone", "mail"]), 3, "were given up");
    expect(&place.run("detach", &["--gone", "mail", "--force"]), 0, "detached; ");
    assert!(is_plain());
    // The stack is removed without the disk.
    let removed = place.run("remove", &[]);
    expect(&removed, 0, "it was detached before");
    expect(&removed, 0, "and stays");
    // The disk is found again: its record says that it is not complete.
    back(&place, "mail");
    assert_eq!(record(&place, "mail")["cache-uuid"], known["cache-uuid"]);
    expect(&place.run("serve", &[]), 3, "was detached");
    expect(&place.run("serve", &[]), 3, "--disk NAME\". Then make a new one");
    expect(&place.run("format", &[]), 3, "a cache is attached to the data disk already");
    let lacks = "of acknowledged writes for it were given up. This disk lacks them. Unless something was written over the log";
    expect(&place.run("rescue", &["--list"]), 4, lacks);
    expect(&place.run("rescue", &["--over-newer-data"]), 4, lacks);
    expect(&place.run("detach", &[]), 3, lacks);
    expect(&place.run("format", &[]), 3, "a cache is attached to the data disk already");
    expect(&place.run("detach", &["--force"]), 0, "detached; ");
    assert!(!place.path("mail.img.dcd").exists());
    stack(&place, &[HOME, POOL], "");
    let log = fs::read(place.path("log.img")).unwrap();
    expect(&place.run("format", &[]), 3, "160 KiB in it are of a data disk that was gone");
    assert!(fs::read(place.path("log.img")).unwrap() == log);
    expect(&place.run("format", &["--force"]), 0, "");
    let server = place.serve();
    assert!(is_there(&place, HOME, 1) && is_there(&place, POOL, 3));
    expect(&server.stop(), 0, "");
}

/// The disk comes back after all. Its record and its fingerprint say that nothing has written to it since.
#[test]
fn rule_11_a_detached_log_is_written_back_to_a_disk_that_was_missing_and_to_no_other() {
    let place = killed();
    let mail = bare(&place, "mail");
    let of_home = fs::read(place.path("home.img.dcd")).unwrap();
    away(&place, "mail");
    expect(&place.run("detach", &["--gone", "mail", "--force"]), 0, "dcd rescue");
    expect(&place.run("rescue", &["--disk", "mail"]), 3, "is missing");
    back(&place, "mail");
    let log = fs::read(place.path("log.img")).unwrap();
    let alone = ["--disk", "mail"];
    // Those that were there are plain disks now. A record from a backup does not change that for one that was written since.
    for disk in ["home", "pool"] {
        expect(&place.run("rescue", &["--disk", disk]), 3, "was detached");
    }
    fs::write(place.path("home.img.dcd"), of_home).unwrap();
    let mut used = bare(&place, "home");
    let written_at = used.iter().zip(original_of(HOME)).position(|(new, old)| *new != old).unwrap();
    [1024, written_at].into_iter().for_each(|at| used[at] ^= 1);
    fs::write(place.path("home.img"), &used).unwrap();
    let rescued = place.run("rescue", &["--disk", "home"]);
    assert!(bare(&place, "home") == used, "{rescued:?}");
    fs::remove_file(place.path("home.img.dcd")).unwrap();
    // The disk was used, or the log.
    let mut used = mail.clone();
    used[1024] ^= 1;
    fs::write(place.path("mail.img"), &used).unwrap();
    expect(&place.run("rescue", &alone), 3, "changed without this cache");
    assert!(bare(&place, "mail") == used);
    fs::write(place.path("mail.img"), &mail).unwrap();
    let mut over = log.clone();
    over[64 << 10..].fill(0xe5);
    fs::write(place.path("log.img"), &over).unwrap();
    expect(&place.run("rescue", &alone), 4, "nothing was written");
    assert!(bare(&place, "mail") == mail);
    fs::write(place.path("log.img"), &log).unwrap();
    for command in ["rescue", "detach"] {
        let refused = place.run(command, &[]);
        expect(&refused, refused.status.code().unwrap(), "--disk mail\" writes them back");
        assert!(!refused.status.success());
    }
    let rescued = place.run("rescue", &alone);
    expect(&rescued, 0, "\"mail\" has all its data: 160 KiB were written back");
    expect(&rescued, 0, "the log was detached: it is only read");
    assert!(bare(&place, "mail") == written(MAIL, 2));
    expect(&place.run("rescue", &alone), 3, "");
    assert!(fs::read(place.path("log.img")).unwrap() == log, "it is only read");
    expect(&place.run("detach", &[]), 0, "detached; ");
    assert!(!place.path("mail.img.dcd").exists());
}

/// Only the last disk is there, and then none.
#[test]
fn the_first_disk_may_be_gone_but_not_all_of_them() {
    let place = killed();
    away(&place, "home");
    for disk in ["mail", "pool"] {
        fs::rename(place.path(&format!("{disk}.img")), place.path(&format!("{disk}.away"))).unwrap();
    }
    let all = ["--gone", "home", "--gone", "mail", "--gone", "pool", "--force"];
    expect(&place.run("detach", &all), 3, "all data disks are gone");
    expect(&place.run("detach", &all[..2]), 3, "\"mail\" (");
    fs::rename(place.path("mail.away"), place.path("mail.img")).unwrap();
    let detached = place.run("detach", &["--gone", "home", "--gone", "pool", "--force"]);
    expect(&detached, 0, "160 KiB was written back, and 160 KiB for the disks that are gone were given up");
    assert!(bare(&place, "mail") == written(MAIL, 2));
}
