//! An array of image files, and what its administrator does with it.

use std::fs::{self, File};
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{MIB, Nbd, Place, Server, dcd, expect};

/// A stack file of an array: members and spares by name, "missing" among them; a blank line between kinds of devices.
pub fn stack(place: &Place, members: &[&str], spares: &[&str], more: &str) {
    let mut text =
        "export = \"array\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n".to_owned();
    for name in members.iter().chain(spares).filter(|name| **name != "missing") {
        text += &format!("[device.{name}]\npath = \"{name}.img\"\n");
    }
    text += &format!(
        "[layer.array]\nkind = \"raid\"\nof = {members:?}\nspares = {spares:?}\nstrip = \"64KiB\"\n{more}"
    );
    fs::write(place.stack(), text).unwrap();
}

pub fn disk(place: &Place, name: &str, mib: u64) {
    File::create(place.path(&format!("{name}.img"))).unwrap().set_len(mib * MIB).unwrap();
}

pub fn array(place: &Place, command: &str, more: &[&str]) -> Output {
    dcd().args(["array", command]).arg(place.stack()).args(more).output().unwrap()
}

pub fn status(place: &Place) -> Value {
    let output = array(place, "status", &["--json"]);
    // The exit code says how the array is.
    let code = output.status.code().unwrap();
    assert!([0, 4, 5].contains(&code), "exit {code}");
    serde_json::from_slice(&output.stdout).unwrap()
}

pub fn device(status: &Value, name: &str) -> String {
    let devices = status["devices"].as_array().unwrap();
    let found = devices.iter().find(|device| device["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is in {status}"))["state"].as_str().unwrap().to_owned()
}

pub fn pattern(block: u64) -> Vec<u8> {
    (0..4096u64).map(|byte| (block.wrapping_mul(7919) + byte / 16) as u8).collect()
}

pub fn write_all(nbd: &mut Nbd, blocks: u64) {
    for first in (0..blocks).step_by(64) {
        let bytes: Vec<u8> = (first..(first + 64).min(blocks)).flat_map(pattern).collect();
        nbd.write(first * 4096, &bytes).unwrap();
    }
    nbd.flush().unwrap();
}

pub fn read_all(nbd: &mut Nbd, blocks: u64) {
    for block in 0..blocks {
        assert!(nbd.read(block * 4096, 4096).unwrap() == pattern(block), "block {block}");
    }
}

/// Waits until a served array says so.
pub fn wait_for(place: &Place, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let status = status(place);
        if is_so(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "{what} does not come: {status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn good(place: &Place) -> Value {
    wait_for(place, "a good state", |status| status["state"] == "good")
}

pub const JOURNAL: &str = "journal = \"journal\"\n[device.journal]\npath = \"journal.img\"\n";

/// An array of four members that is full and served.
pub fn full(place: &Place, mib: u64, spares: &[&str], more: &str) -> (Server, u64) {
    for name in ["a", "b", "c", "d", "journal"].iter().chain(spares) {
        disk(place, name, mib);
    }
    stack(place, &["a", "b", "c", "d"], spares, more);
    expect(&array(place, "create", &[]), 0, "over 4 members");
    let server = place.serve();
    let mut nbd = place.nbd();
    let blocks = nbd.bytes / 4096;
    write_all(&mut nbd, blocks);
    good(place);
    nbd.disconnect().unwrap();
    (server, blocks)
}
