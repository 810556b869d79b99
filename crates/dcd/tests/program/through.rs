//! Writes that go through (`writes = "through"`): the log is thrown away, and the mode changes beside a client.

use std::fs;
use std::os::unix::fs::symlink;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::{MIB, Nbd, Place, expect, skip};

fn cache(place: &Place) -> serde_json::Value {
    let output = place.run("status", &["--json"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    status["layers"]["cache"].clone()
}

/// Waits until writes go there, and the record agrees.
fn wait_for(place: &Place, writes: &str, record: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let is_so = || {
        let recorded = fs::read_to_string(place.record()).unwrap();
        cache(place)["writes"] == writes && recorded.contains(&format!("\"state\": \"{record}\""))
    };
    while !is_so() {
        assert!(Instant::now() < deadline, "{}", fs::read_to_string(place.record()).unwrap());
        sleep(Duration::from_millis(10));
    }
}

/// Writes 100 blocks of this content in places of their own; every tenth is larger than what bypasses the log.
fn write(nbd: &mut Nbd, expected: &mut [u8], content: u8) {
    for block in 0..100usize {
        let at = (block * 37 % 100) * (128 << 10) + 4096 * usize::from(content % 4);
        let length = if block % 10 == 0 { 96 << 10 } else { [512, 4096, 16384][block % 3] };
        let data = vec![content; length];
        nbd.write(at as u64, &data).unwrap();
        expected[at..at + length].copy_from_slice(&data);
    }
}

#[test]
fn a_log_that_is_thrown_away_under_a_killed_server_takes_nothing() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        return skip(
            "a_log_that_is_thrown_away_under_a_killed_server_takes_nothing: /dev/shm cannot be used",
        );
    };
    let place = Place::new();
    place.write_stack("writes = \"through\"");
    // A log that does not spin gets copies.
    fs::File::create(memory.path().join("log.img")).unwrap().set_len(8 * MIB).unwrap();
    fs::remove_file(place.path("log.img")).unwrap();
    symlink(memory.path().join("log.img"), place.path("log.img")).unwrap();
    place.format();
    let server = place.serve();
    wait_for(&place, "through", "clean");
    let mut expected = crate::common::original(16 * MIB);
    let mut nbd = place.nbd();
    for content in 1..5 {
        write(&mut nbd, &mut expected, content);
        assert_eq!(
            (cache(&place)["state"].as_str(), cache(&place)["dirty_bytes"].as_u64()),
            (Some("clean"), Some(0))
        );
    }
    assert!(nbd.read(0, 1 << 20).unwrap() == expected[..1 << 20]);
    assert!(cache(&place)["statistics"]["kept_blocks"].as_u64().unwrap() > 100, "the log has copies");
    server.kill();
    // The log as it was starts as well.
    let server = place.serve();
    wait_for(&place, "through", "clean");
    let mut nbd = place.nbd();
    for at in (0..16).map(|at| at * MIB) {
        assert!(nbd.read(at, 1 << 20).unwrap() == expected[at as usize..][..1 << 20], "at {at}");
    }
    write(&mut nbd, &mut expected, 5);
    server.kill();
    drop(memory);
    assert!(place.bare() == expected, "the plain disk has everything that was answered");
    expect(&place.run("serve", &[]), 3, "the data disk is complete without it");
    expect(&place.serve_with(&["--without-cache"]).stop(), 0, "");
    expect(&place.run("remove", &[]), 0, "its log is missing, and the data disk is complete without it");
    assert!(place.bare() == expected);
}

#[test]
fn rule_16_a_copy_of_the_log_from_before_the_change_is_refused() {
    let place = Place::new();
    place.format();
    let server = place.serve();
    expect(&place.run("writeback", &["pause"]), 0, "");
    place.nbd().write_fua(MIB, &[1; 4096]).unwrap();
    fs::copy(place.path("log.img"), place.path("copy")).unwrap();
    expect(&place.run("set", &["writes=through"]), 0, "");
    wait_for(&place, "through", "clean");
    place.nbd().write_fua(MIB, &[2; 4096]).unwrap();
    server.kill();
    fs::copy(place.path("copy"), place.path("log.img")).unwrap();
    let place = place.without_memory();
    expect(&place.run("serve", &[]), 3, "If it is gone, nothing is lost");
    assert_eq!(place.bare()[MIB as usize..][..4096], [2; 4096]);
}

#[test]
fn the_mode_changes_beside_a_client_and_the_record_before_it() {
    let place = Place::new();
    place.write_stack("writes = \"back\"");
    place.format();
    let server = place.serve();
    let path = place.path("nbd.sock");
    let client = std::thread::spawn(move || {
        let mut nbd = Nbd::connect(&path).unwrap();
        let mut expected = crate::common::original(16 * MIB);
        for content in 1..=40 {
            write(&mut nbd, &mut expected, content);
            nbd.flush().unwrap();
        }
        nbd.disconnect().unwrap();
        expected
    });
    let mut rounds = 0;
    while !client.is_finished() || rounds < 2 {
        expect(&place.run("set", &["writes=through"]), 0, "");
        assert_eq!(cache(&place)["writes"], "through", "the command has waited for that");
        wait_for(&place, "through", "clean");
        expect(&place.run("set", &["writes=back", "--save"]), 0, "");
        wait_for(&place, "back", "dirty");
        rounds += 1;
    }
    let mut expected = client.join().unwrap();
    // Data that is only in the log, after the last change.
    write(&mut place.nbd(), &mut expected, 41);
    assert_eq!(cache(&place)["state"], "dirty");
    server.kill();
    let server = place.serve();
    let mut nbd = place.nbd();
    for at in (0..16).map(|at| at * MIB) {
        assert!(nbd.read(at, 1 << 20).unwrap() == expected[at as usize..][..1 << 20], "at {at}");
    }
    nbd.disconnect().unwrap();
    expect(&place.run("flush", &[]), 0, "");
    expect(&server.stop(), 0, "");
    assert!(place.bare() == expected);
}

#[test]
fn writes_that_go_through_are_refused_where_their_order_is_promised() {
    for other in ["promise = \"ordered\"", "ordered-destage = true"] {
        let place = Place::new();
        place.write_stack(other);
        place.format();
        let server = place.serve();
        expect(&place.run("set", &["writes=through"]), 1, "exclude each other");
        expect(&server.stop(), 0, "");
        place.write_stack(&format!("writes = \"through\"\n{other}"));
        expect(&place.run("serve", &[]), 1, "exclude each other");
    }
}
