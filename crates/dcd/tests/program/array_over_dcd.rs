//! An array whose members are disks with a log cache each: served, killed, without one member.

use std::fs;

use crate::common::{Place, dcd, expect};

const MEMBERS: u64 = 3;

fn stack(place: &Place, of: &[&str]) {
    let mut text = format!(
        "export = \"array\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n\
         [layer.array]\nkind = \"raid\"\nof = {of:?}\nstrip = \"64KiB\"\n"
    );
    for member in of.iter().filter(|member| **member != "missing") {
        text += &format!(
            "[device.{member}-log]\npath = \"{member}-log.img\"\nsize = \"8MiB\"\n\
             [device.{member}-disk]\npath = \"{member}-disk.img\"\nsize = \"4MiB\"\n\
             [layer.{member}]\nkind = \"log-cache\"\nlog = \"{member}-log\"\ndata = \"{member}-disk\"\n"
        );
    }
    fs::write(place.stack(), text).unwrap();
}

fn pattern(block: u64) -> Vec<u8> {
    (0..4096u64).map(|byte| (block * 13 + byte / 32) as u8).collect()
}

#[test]
fn an_array_stands_on_dcd() {
    let place = Place::new();
    stack(&place, &["a", "b", "c"]);
    for member in ["a", "b", "c"] {
        expect(&place.run("format", &["--layer", member]), 0, "4 MiB of data");
    }
    let create = dcd().args(["array", "create"]).arg(place.stack()).output().unwrap();
    expect(&create, 0, "over 3 members");
    let server = place.serve();
    let mut nbd = place.nbd();
    let blocks = nbd.bytes / 4096;
    assert_eq!(
        nbd.bytes,
        (MEMBERS - 1) * 3 * crate::common::MIB,
        "two members' worth, without their first MiB"
    );
    for block in 0..blocks {
        nbd.write(block * 4096, &pattern(block)).unwrap();
    }
    nbd.flush().unwrap();
    server.kill();
    // Each member's log has what its disk lacks, so the kill has lost nothing that was flushed.
    let server = place.serve();
    let mut nbd = place.nbd();
    for block in 0..blocks {
        assert!(nbd.read(block * 4096, 4096).unwrap() == pattern(block), "block {block}");
    }
    nbd.disconnect().unwrap();
    let scrub = dcd().args(["array", "scrub"]).arg(place.stack()).output().unwrap();
    expect(&scrub, 0, "0 rows that did not match");
    expect(&server.stop(), 0, "");
    stack(&place, &["a", "missing", "c"]);
    let server = place.serve();
    let mut nbd = place.nbd();
    for block in 0..blocks {
        assert!(nbd.read(block * 4096, 4096).unwrap() == pattern(block), "block {block} without a member");
    }
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}

/// Rule 13, in commands that run the array themselves: the log of a member's cache takes no more writes.
#[test]
fn a_log_that_fails_during_a_command_is_out_of_date_and_the_command_does_its_work() {
    // Without memory, the start writes one superblock, and the log fails after it.
    let place = Place::new().without_memory();
    stack(&place, &["a", "b", "c"]);
    for member in ["a", "b", "c"] {
        expect(&place.run("format", &["--layer", member]), 0, "4 MiB of data");
    }
    let array = |command: &str, more: &[&str]| {
        place.dcd().args(["array", command]).arg(place.stack()).args(more).output().unwrap()
    };
    expect(&array("create", &[]), 0, "over 3 members");
    expect(&array("scrub", &[]), 0, "");
    let text = fs::read_to_string(place.stack()).unwrap();
    let with_fault = |log: &str| {
        let fault =
            "[layer.bad]\nkind = \"fault\"\nhits = \"writes\"\nfail-after = 1\nfail-count = 1000000\n";
        let bad = text.replace(&format!("log = \"{log}\""), "log = \"bad\"");
        fs::write(place.stack(), format!("{bad}{fault}of = \"{log}\"\n")).unwrap();
    };
    let failed = |output: &std::process::Output, cache: &str| {
        expect(output, 0, "");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains(&format!("log cache \"{cache}\": the log device failed")), "{told}");
    };
    // One request after the other.
    with_fault("a-log");
    failed(&array("fail", &["c"]), "a");
    fs::write(place.stack(), &text).unwrap();
    expect(&array("status", &[]), 4, "written without the log");
    expect(&place.run("format", &["--layer", "a"]), 0, "a log of");
    // Many at once.
    expect(&array("add", &["c"]), 0, "");
    with_fault("c-log");
    failed(&array("rebuild", &[]), "c");
    fs::write(place.stack(), &text).unwrap();
    expect(&place.run("format", &["--layer", "c"]), 0, "a log of");
    expect(&array("scrub", &[]), 0, "0 rows that did not match");
}
