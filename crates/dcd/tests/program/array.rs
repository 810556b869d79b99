//! Arrays as a user runs them: making, serving, a member that is gone, a kill, dcd over an array.

use std::fs;
use std::time::{Duration, Instant};

use crate::common::{MIB, Place, Server, dcd, expect};

const MEMBERS: [&str; 4] = ["a", "b", "c", "d"];

/// An array of four members of 4 MiB, with a journal; `cache`: a log cache on it.
fn stack(place: &Place, members: &[&str], cache: bool) {
    let export = if cache { "cache" } else { "array" };
    let mut text = format!(
        "export = \"{export}\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n\
         [device.ssd]\npath = \"ssd.img\"\nsize = \"12MiB\"\n\
         [layer.journal]\nkind = \"slice\"\nof = \"ssd\"\nsize = \"4MiB\"\n"
    );
    for member in members.iter().filter(|member| **member != "missing") {
        text += &format!("[device.{member}]\npath = \"{member}.img\"\nsize = \"4MiB\"\n");
    }
    text += &format!(
        "[layer.array]\nkind = \"raid\"\nof = {members:?}\nstrip = \"64KiB\"\njournal = \"journal\"\n"
    );
    if cache {
        text += "[layer.log]\nkind = \"slice\"\nof = \"ssd\"\nfirst = \"4MiB\"\n\
                 [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"array\"\n";
    }
    fs::write(place.stack(), text).unwrap();
}

fn array(args: &[&str], place: &Place) -> std::process::Output {
    dcd().args(["array", "create"]).arg(place.stack()).args(args).output().unwrap()
}

/// Until all parity is computed, no member can be spared.
fn wait_for_parity(place: &Place) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !String::from_utf8_lossy(&place.run("status", &[]).stdout).contains("array: good") {
        assert!(Instant::now() < deadline, "the parity is not computed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn pattern(block: u64) -> Vec<u8> {
    (0..4096u64).map(|byte| (block * 7 + byte / 16) as u8).collect()
}

#[test]
fn an_array_loses_a_member_and_no_data() {
    let place = Place::new();
    stack(&place, &MEMBERS, false);
    let refused = Server::start(&place, &[]).err().expect("it was not made");
    expect(&refused, 1, "\"dcd array create\" makes a new array");
    expect(&array(&[], &place), 0, "over 4 members");
    expect(&array(&[], &place), 3, "are members of a dcd array already");
    expect(&array(&["--force"], &place), 0, "over 4 members");
    let server = place.serve();
    let mut nbd = place.nbd();
    assert_eq!(nbd.bytes, 9 * MIB, "three members' worth, without their first MiB");
    for block in (0..2304).step_by(5) {
        nbd.write(block * 4096, &pattern(block)).unwrap();
    }
    nbd.flush().unwrap();
    nbd.write(4096, &[9; 4096]).unwrap();
    nbd.disconnect().unwrap();
    wait_for_parity(&place);
    expect(&server.stop(), 0, "");

    fs::remove_file(place.path("c.img")).unwrap();
    stack(&place, &["a", "b", "missing", "d"], false);
    let server = place.serve();
    expect(&place.run("status", &[]), 5, "array: degraded, without member 2");
    let mut nbd = place.nbd();
    assert_eq!(nbd.read(4096, 4096).unwrap(), [9; 4096], "a stop brings everything home");
    for block in (0..2304).step_by(5) {
        assert!(nbd.read(block * 4096, 4096).unwrap() == pattern(block), "block {block}");
    }
    nbd.write(0, &pattern(77)).unwrap();
    nbd.flush().unwrap();
    server.kill();
    let server = place.serve();
    assert!(place.nbd().read(0, 4096).unwrap() == pattern(77));
    expect(&server.stop(), 0, "");
    // Another one is too many.
    stack(&place, &["a", "missing", "missing", "d"], false);
    let refused = Server::start(&place, &[]).err().expect("too few members");
    expect(&refused, 3, "members 1 and 2 are missing");
}

#[test]
fn dcd_stands_on_an_array() {
    let place = Place::new();
    stack(&place, &MEMBERS, true);
    expect(&array(&[], &place), 0, "");
    expect(&place.run("format", &[]), 0, "9 MiB of data");
    let server = place.serve();
    let mut nbd = place.nbd();
    for block in 0..200 {
        nbd.write(block * 4096 * 11, &pattern(block)).unwrap();
    }
    nbd.flush().unwrap();
    // The array may be computing its parity yet.
    let status = place.run("status", &[]);
    let screen = String::from_utf8_lossy(&status.stdout);
    let (cache, array) = (screen.find(" cache: "), screen.find(" array: "));
    assert!(cache.is_some() && cache < array, "the upper one first: {screen}");
    server.kill();
    let server = place.serve();
    expect(&place.run("flush", &[]), 0, "");
    let mut nbd = place.nbd();
    for block in 0..200 {
        assert!(nbd.read(block * 4096 * 11, 4096).unwrap() == pattern(block), "block {block}");
    }
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}

/// No word of a journal in the file, and yet no write hole: it is before the log.
#[test]
fn below_a_log_cache_an_array_needs_no_word_of_a_journal() {
    let place = Place::new();
    stack(&place, &MEMBERS, true);
    let text = fs::read_to_string(place.stack()).unwrap();
    let text = text
        .replacen("[layer.journal]\nkind = \"slice\"\nof = \"ssd\"\nsize = \"4MiB\"\n", "", 1)
        .replacen("journal = \"journal\"\n", "", 1)
        .replacen("first = \"4MiB\"", "first = \"0\"", 1)
        .replacen("size = \"12MiB\"", "size = \"80MiB\"", 1);
    fs::write(place.stack(), text).unwrap();
    expect(&array(&[], &place), 0, "over 4 members");
    expect(&place.run("format", &[]), 0, "");
    let server = place.serve();
    wait_for_parity(&place);
    let mut nbd = place.nbd();
    for block in 0..200 {
        nbd.write(block * 4096 * 11, &pattern(block)).unwrap();
    }
    nbd.flush().unwrap();
    let status = dcd().args(["array", "status"]).arg(place.stack()).output().unwrap();
    expect(&status, 0, "journal: yes");
    expect(&place.run("flush", &[]), 0, "");
    server.kill();
    // It replays, with a member less.
    fs::remove_file(place.path("b.img")).unwrap();
    let text = fs::read_to_string(place.stack()).unwrap();
    let text = text.replacen("\"a\", \"b\"", "\"a\", \"missing\"", 1).replacen(
        "[device.b]\npath = \"b.img\"\nsize = \"4MiB\"\n",
        "",
        1,
    );
    fs::write(place.stack(), text).unwrap();
    let server = place.serve();
    let mut nbd = place.nbd();
    for block in 0..200 {
        assert!(nbd.read(block * 4096 * 11, 4096).unwrap() == pattern(block), "block {block}");
    }
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}

fn on_array(place: &Place, command: &str, more: &[&str]) -> std::process::Output {
    dcd().args(["array", command]).arg(place.stack()).args(more).output().unwrap()
}

/// Writes in some places of all regions of an array. Then a member is taken out and little is written.
#[test]
fn a_member_that_was_away_is_given_what_it_has_missed() {
    let place = Place::new();
    stack(&place, &MEMBERS, false);
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace(".img\"\nsize = \"4MiB\"\n", ".img\"\nsize = \"160MiB\"\n"))
        .unwrap();
    expect(&array(&[], &place), 0, "over 4 members");
    let mut server = place.serve();
    wait_for_parity(&place);
    let mut nbd = place.nbd();
    let mut model = std::collections::BTreeMap::new();
    for at in (0..nbd.bytes - MIB).step_by(7 * 97 * 4096) {
        nbd.write(at, &pattern(at)).unwrap();
        model.insert(at, at);
    }
    nbd.flush().unwrap();
    nbd.disconnect().unwrap();
    for (round, pause) in ["none", "stop", "kill"].into_iter().enumerate() {
        expect(&on_array(&place, "fail", &["c"]), 0, "member 2 is no longer used");
        expect(&on_array(&place, "remove", &["c"]), 0, "\"c\" is closed");
        let mut nbd = place.nbd();
        // In one region, here and there.
        for block in 0..20 {
            let at = (70 * (1 + round as u64)) * MIB + block * 37 * 4096;
            nbd.write(at, &pattern(at + 1)).unwrap();
            model.insert(at, at + 1);
        }
        nbd.flush().unwrap();
        drop(nbd);
        let said = "\"c\" is member 2 now: it was away";
        match pause {
            "stop" => {
                expect(&server.stop(), 0, "");
                expect(
                    &on_array(&place, "status", &[]),
                    5,
                    "away     member 2: something was written in 1 of 8",
                );
                expect(&on_array(&place, "add", &["c"]), 0, said);
                server = place.serve();
            }
            "kill" => {
                server.kill();
                server = place.serve();
                expect(&on_array(&place, "remove", &["c"]), 0, "\"c\" is closed");
                expect(&on_array(&place, "add", &["c"]), 0, said);
            }
            _ => expect(&on_array(&place, "add", &["c"]), 0, said),
        }
        wait_for_parity(&place);
        let status = on_array(&place, "status", &["--json"]);
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
        let last = &status["last_return"];
        let (filled, all) = (last["filled_bytes"].as_u64().unwrap(), last["member_bytes"].as_u64().unwrap());
        assert!(filled > 0 && filled < all / 3, "{pause}: {last}");
        expect(&on_array(&place, "status", &[]), 0, "returned member 2, by regions:");
        expect(&on_array(&place, "scrub", &["--quiet"]), 0, "0 rows that did not match");
        // What is read must be what c has: another one is missing.
        expect(&on_array(&place, "fail", &["a"]), 0, "member 0 is no longer used");
        expect(&on_array(&place, "remove", &["a"]), 0, "\"a\" is closed");
        let mut nbd = place.nbd();
        for (at, value) in &model {
            assert!(nbd.read(*at, 4096).unwrap() == pattern(*value), "{pause}: byte {at}");
        }
        nbd.disconnect().unwrap();
        expect(&on_array(&place, "add", &["a"]), 0, "\"a\" is member 0 now: it was away");
        wait_for_parity(&place);
    }
    expect(&server.stop(), 0, "");
}
