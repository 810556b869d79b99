//! Devices of an array that are missing: what has failed need not be, and all else has to be allowed.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::common::array::{
    JOURNAL, array, device, disk, full, good, pattern, read_all, stack, status, wait_for, write_all,
};
use crate::common::{MIB, Place, Server, dcd, expect, skip};

fn image(place: &Place, name: &str) -> std::path::PathBuf {
    place.path(&format!("{name}.img"))
}

fn take_away(place: &Place, name: &str) {
    fs::rename(image(place, name), place.path(&format!("{name}.away"))).unwrap();
}

fn bring_back(place: &Place, name: &str) {
    fs::rename(place.path(&format!("{name}.away")), image(place, name)).unwrap();
}

fn refused(place: &Place, said: &str) {
    expect(&Server::start(place, &[]).err().expect("refused"), 3, said);
}

/// A server that goes on without a member.
fn serves(place: &Place, more: &[&str], blocks: u64) {
    let server = place.serve_with(more);
    read_all(&mut place.nbd(), blocks);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_member_that_has_failed_need_not_be_there() {
    let place = Place::new();
    let (server, blocks) = full(&place, 8, &[], JOURNAL);
    expect(&array(&place, "fail", &["c"]), 0, "member 2 is no longer used");
    expect(&server.stop(), 0, "");
    take_away(&place, "c");
    expect(&array(&place, "assemble", &[]), 0, "it would start, without member 2");
    expect(&array(&place, "status", &[]), 5, "failed, and missing");
    expect(&array(&place, "scrub", &["--quiet"]), 1, "a member is missing");
    expect(&array(&place, "fail", &["c"]), 0, "member 2 is no longer used");
    expect(&array(&place, "fail", &["d"]), 3, "does not make up for more failed members");
    expect(&array(&place, "remove", &["c"]), 0, "\"c\" (member 2) is missing");
    let server = place.serve();
    read_all(&mut place.nbd(), blocks);
    expect(&array(&place, "status", &[]), 5, "failed, and missing");
    expect(&array(&place, "remove", &["c"]), 0, "the server does not have it open");
    expect(&array(&place, "add", &["c"]), 1, "c.img");
    // A new one in its place, while it is served.
    disk(&place, "c", 8);
    expect(&array(&place, "add", &["c"]), 0, "\"c\" is member 2 now");
    good(&place);
    expect(&array(&place, "status", &[]), 0, "state    good");
    read_all(&mut place.nbd(), blocks);
    expect(&server.stop(), 0, "");
}

#[test]
fn the_disk_that_a_spare_has_replaced_need_not_be_there_and_nor_need_a_spare() {
    let place = Place::new();
    let (server, blocks) = full(&place, 8, &["e", "f"], JOURNAL);
    expect(&array(&place, "fail", &["c"]), 0, "member 2 is no longer used");
    wait_for(&place, "the rebuild", |status| status["failed_members"].as_array().unwrap().is_empty());
    expect(&server.stop(), 0, "");
    take_away(&place, "c");
    take_away(&place, "f");
    expect(&array(&place, "assemble", &[]), 0, "note: spare 1 is missing");
    assert_eq!(device(&status(&place), "c"), "replaced, and missing");
    serves(&place, &[], blocks);
    expect(&array(&place, "remove", &["c"]), 0, "\"c\" (member 2) is missing");

    // The spare that has the role: nothing says that it has failed, whatever is in the place of the disk before it.
    take_away(&place, "e");
    for of in [["a", "b", "c", "d"], ["a", "b", "missing", "d"]] {
        stack(&place, &of, &["e", "f"], JOURNAL);
        refused(&place, "member 2 is missing, and the superblocks do not say that it failed");
    }
    stack(&place, &["a", "b", "c", "d"], &["e", "f"], JOURNAL);
    bring_back(&place, "c");
    refused(&place, "spare 0 (\"e\"");
    serves(&place, &["--degraded"], blocks);
    take_away(&place, "c");
    bring_back(&place, "e");

    // What the note says leaves a file that is served.
    let server = place.serve();
    let now = status(&place);
    let note = now["advice"][0].as_str().unwrap();
    assert!(
        note.contains("name it in the place of that member in \"of\", take it out of \"spares\""),
        "{note}"
    );
    assert!(note.contains("remove the table of the device that it replaces"), "{note}");
    expect(&server.stop(), 0, "");
    let text = fs::read_to_string(place.stack()).unwrap();
    let text = text
        .replace("of = [\"a\", \"b\", \"c\", \"d\"]", "of = [\"a\", \"b\", \"e\", \"d\"]")
        .replace("spares = [\"e\", \"f\"]", "spares = [\"f\"]")
        .replace("[device.c]\npath = \"c.img\"\n", "");
    fs::write(place.stack(), text).unwrap();
    serves(&place, &[], blocks);
}

#[test]
fn another_member_is_missed_until_the_user_allows_to_go_on_without() {
    let place = Place::new();
    let (server, blocks) = full(&place, 8, &[], "");
    expect(&server.stop(), 0, "");
    take_away(&place, "b");
    let said = "array \"array\": member 1 is missing, and the superblocks do not say that it failed";
    refused(&place, said);
    refused(&place, "\"dcd serve --degraded ");
    expect(&array(&place, "assemble", &[]), 3, said);
    expect(&array(&place, "status", &[]), 4, said);
    expect(&array(&place, "scrub", &["--quiet"]), 3, said);
    expect(&array(&place, "remove", &["b"]), 3, "the superblocks do not say that it has failed");
    // It comes in time.
    let away = (place.path("b.away"), image(&place, "b"));
    let comes = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(600));
        fs::rename(away.0, away.1).unwrap();
    });
    let server = place.serve_with(&["--degraded=10min"]);
    comes.join().unwrap();
    assert_eq!(status(&place)["state"], "good");
    expect(&server.stop(), 0, "");
    // And not.
    take_away(&place, "b");
    let server = place.serve_with(&["--degraded=300ms"]);
    read_all(&mut place.nbd(), blocks);
    let mut nbd = place.nbd();
    nbd.write(4096, &pattern(1)).unwrap();
    nbd.flush().unwrap();
    expect(&array(&place, "status", &[]), 5, "state    degraded");
    let said = server.stop();
    expect(&said, 0, "array \"array\": member 1 (\"b\"");
    expect(&said, 0, "is missing, and is left out");
    // Since something was written, the superblocks know it.
    serves(&place, &[], blocks);
    take_away(&place, "d");
    refused(&place, "the parity makes up for 1 in all, and 1 failed before");
    let beyond = Server::start(&place, &["--degraded"]).err().expect("one too many");
    expect(&beyond, 3, "members 1 and 3 are missing");
}

/// A device that has the node of a disk, and no disk.
#[test]
fn a_failed_member_on_a_block_device_need_not_be_there() {
    let place = Place::new();
    let (server, blocks) = full(&place, 8, &[], "");
    expect(&array(&place, "fail", &["c"]), 0, "");
    expect(&server.stop(), 0, "");
    let attached = Command::new("losetup").args(["--find", "--show"]).arg(image(&place, "c")).output();
    let Some(attached) = attached.ok().filter(|output| output.status.success()) else {
        return skip("a_failed_member_on_a_block_device_need_not_be_there: no loop device");
    };
    let node = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace("path = \"c.img\"", &format!("path = \"{node}\""))).unwrap();
    let there = array(&place, "status", &[]);
    assert!(Command::new("losetup").args(["--detach", &node]).status().unwrap().success());
    expect(&there, 5, "failed, event counter");
    expect(&array(&place, "status", &[]), 5, "failed, and missing");
    serves(&place, &[], blocks);
}

/// The commands that look at a log, and those that take it off, start the array below it.
#[test]
fn a_cache_on_an_array_is_looked_at_without_the_member_that_has_failed() {
    let place = Place::new();
    for name in ["a", "b", "c", "d", "ssd"] {
        disk(&place, name, if name == "ssd" { 80 } else { 8 });
    }
    let more = "[device.ssd]\npath = \"ssd.img\"\n\
                [layer.cache]\nkind = \"log-cache\"\nlog = \"ssd\"\ndata = \"array\"\nwhen = \"high-low\"\n";
    stack(&place, &["a", "b", "c", "d"], &[], more);
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace("export = \"array\"", "export = \"cache\"")).unwrap();
    expect(&array(&place, "create", &[]), 0, "over 4 members");
    expect(&place.run("format", &[]), 0, "");
    let server = place.serve();
    good(&place);
    let mut nbd = place.nbd();
    write_all(&mut nbd, 64);
    nbd.disconnect().unwrap();
    expect(&array(&place, "fail", &["c"]), 0, "");
    expect(&server.stop(), 0, "");
    take_away(&place, "c");
    expect(&place.run("check", &[]), 0, "no problems");
    expect(&place.run("dump", &[]), 0, "");
    expect(&place.run("rescue", &["--list"]), 0, "256 KiB of data");
    serves(&place, &[], 64);
    expect(&place.run("rescue", &[]), 0, "");
    expect(&place.run("detach", &[]), 0, "");
}

/// All members of the array are in use, and still it is not good: the blocks cannot be restored.
#[test]
fn blocks_that_are_lost_are_told_at_once_and_the_array_is_not_good() {
    let place = Place::new();
    let (server, blocks) = full(&place, 8, &[], "");
    expect(&server.stop(), 0, "");
    let server = place.serve();
    // All but the beginning of two members is gone.
    for name in ["b", "c"] {
        fs::File::options().write(true).open(image(&place, name)).unwrap().set_len(2 * MIB).unwrap();
    }
    let mut nbd = place.nbd();
    let lost = (0..blocks).rev().find(|block| nbd.read(block * 4096, 4096).is_err()).expect("one is lost");
    let now = status(&place);
    assert_eq!(
        (&now["state"], &now["unreadable_blocks"]),
        (&"damaged".into(), &2.into()),
        "both of its row: {now}"
    );
    expect(&array(&place, "status", &[]), 4, "2 blocks of 4 KiB lost");
    assert!(!String::from_utf8_lossy(&place.run("status", &[]).stdout).contains("good"));
    // Before the next look at all arrays.
    let said = stderr_of(server);
    assert!(said.contains("array \"array\": damaged"), "{said}");
    assert!(said.contains("2 blocks of 4 KiB could neither be read nor computed"), "{said}");
    assert!(lost > 0);
}

/// Kills a server and returns its messages until then.
fn stderr_of(mut server: Server) -> String {
    let mut pipe = server.child.stderr.take().unwrap();
    server.kill();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut pipe, &mut said).unwrap();
    said
}

#[test]
fn an_array_is_found_with_its_journal_or_not_at_all() {
    let place = Place::new();
    let slice = "journal = \"journal\"\n[device.ssd]\npath = \"ssd.img\"\n\
                 [layer.journal]\nkind = \"slice\"\nof = \"ssd\"\nsize = \"4MiB\"\n";
    disk(&place, "ssd", 12);
    let (server, blocks) = full(&place, 8, &[], slice);
    // Behind the journal is somebody else's data.
    expect(&server.stop(), 0, "");
    let mut ssd = fs::read(image(&place, "ssd")).unwrap();
    ssd[4 * MIB as usize..].fill(0xda);
    fs::write(image(&place, "ssd"), &ssd).unwrap();
    let find = |names: &[&str], more: &[&str]| {
        let paths = names.iter().map(|name| image(&place, name));
        dcd().args(["array", "assemble"]).args(paths).args(more).output().unwrap()
    };
    expect(&find(&["a", "b", "c", "d"], &[]), 3, "it has a journal, but none of the devices begins with it");
    let without = find(&["a", "b", "c", "d"], &["--without-journal"]);
    expect(&without, 0, "journal = \"none\"");
    let found = find(&["a", "ssd", "b", "c", "d"], &[]);
    expect(&found, 0, "kind = \"slice\"");
    // A file without a word of it is not served, however it was written.
    let text = String::from_utf8(found.stdout).unwrap();
    let text = text.replace("array.sock", "nbd.sock").replace("array.control", "control.sock");
    stack(&place, &["a", "b", "c", "d"], &[], "");
    refused(&place, "it has a journal, and none is named");
    fs::write(place.stack(), text).unwrap();
    let server = place.serve();
    expect(&array(&place, "status", &[]), 0, "journal: yes");
    write_all(&mut place.nbd(), blocks);
    expect(&server.stop(), 0, "");
    let after = fs::read(image(&place, "ssd")).unwrap();
    assert!(after[..4 * MIB as usize] != ssd[..4 * MIB as usize], "it was used");
    assert!(after[4 * MIB as usize..] == ssd[4 * MIB as usize..], "and nothing behind it");
    // On purpose it goes on without, and then it has none any more.
    stack(&place, &["a", "b", "c", "d"], &[], "journal = \"none\"\n");
    let server = place.serve();
    write_all(&mut place.nbd(), 64);
    expect(&server.stop(), 0, "");
    stack(&place, &["a", "b", "c", "d"], &[], "");
    serves(&place, &[], blocks);
    expect(&find(&["a", "b", "c", "d"], &[]), 0, "of = ");
}
