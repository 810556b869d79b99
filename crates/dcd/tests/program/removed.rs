//! A file that is deleted or moved while it is served: the open file works on, and is lost when the server ends.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{MIB, Place, expect, original};

/// Waits until the status gives a device this state, and returns the status.
fn until(place: &Place, device: &str, state: &str) -> Value {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let status: Value =
            serde_json::from_slice(&place.run("status", &["--json"]).stdout).expect("a status");
        let devices = status["devices"].as_array().unwrap();
        let found = devices.iter().find(|found| found["device"] == device).unwrap();
        if found["state"] == state {
            return status;
        }
        assert!(Instant::now() < deadline, "{status}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn write(place: &Place) -> Vec<u8> {
    let mut nbd = place.nbd();
    let mut content = original(16 * MIB);
    for block in 0..64u64 {
        nbd.write(block * 128 * 1024, &[block as u8; 4096]).unwrap();
        content[block as usize * 128 * 1024..][..4096].fill(block as u8);
    }
    nbd.flush().unwrap();
    nbd.disconnect().unwrap();
    content
}

#[test]
fn a_log_that_is_deleted_while_it_is_served_loses_nothing() {
    let place = Place::new();
    // Nothing is destaged by itself.
    place.write_stack("idle-empty = \"3600s\"");
    place.format();
    let server = place.serve();
    let content = write(&place);
    fs::remove_file(place.path("log.img")).unwrap();
    let status = until(&place, "log", "removed");
    assert_eq!(status["state"], "degraded", "{status}");
    assert!(status["dirty_bytes"].as_u64().unwrap() > 0);
    expect(&place.run("status", &[]), 5, "its file was deleted or moved");
    expect(&place.run("doctor", &[]), 1, "dcd stop");
    expect(&place.run("metrics", &[]), 0, "dcd_device_removed{stack=\"stack\",device=\"log\"} 1.0\n");
    expect(&place.run("metrics", &[]), 0, "dcd_device_removed{stack=\"stack\",device=\"data\"} 0.0\n");
    // The next server would not find the log, so clients must not wait for it.
    expect(&place.run("stop", &["--for-restart"]), 3, "would not find the log");
    expect(&place.run("stop", &[]), 0, "");
    expect(&server.wait(), 0, "\"dcd status\" says what to do");
    assert!(place.bare() == content, "everything was written back");
    expect(&place.run("detach", &[]), 0, "");
    fs::File::create(place.path("log.img")).unwrap().set_len(8 * MIB).unwrap();
    place.format();
    expect(&place.serve().stop(), 0, "");
}

/// A signal writes everything back, too, also if the deletion was not noticed before.
#[test]
fn a_signal_writes_everything_back_when_the_log_is_deleted() {
    let place = Place::new();
    place.write_stack("idle-empty = \"3600s\"");
    place.format();
    let server = place.serve();
    let content = write(&place);
    fs::rename(place.path("log.img"), place.path("away.img")).unwrap();
    fs::write(place.path("log.img"), "another file").unwrap();
    until(&place, "log", "removed");
    fs::remove_file(place.path("log.img")).unwrap();
    fs::rename(place.path("away.img"), place.path("log.img")).unwrap();
    until(&place, "log", "ok");
    fs::remove_file(place.path("log.img")).unwrap();
    until(&place, "log", "removed");
    expect(&server.stop(), 0, "has its place again");
    assert!(place.bare() == content, "everything was written back");
}

#[test]
fn a_stop_that_is_asked_for_notices_a_deletion_by_itself() {
    let place = Place::new();
    place.write_stack("idle-empty = \"3600s\"");
    place.format();
    let server = place.serve();
    let content = write(&place);
    fs::remove_file(place.path("log.img")).unwrap();
    expect(&place.run("stop", &[]), 0, "");
    expect(&server.wait(), 0, "");
    assert!(place.bare() == content, "everything was written back");
}

#[test]
fn a_data_disk_that_is_deleted_keeps_its_server_from_a_stop() {
    let place = Place::new();
    place.format();
    let server = place.serve();
    write(&place);
    fs::rename(place.path("data.img"), place.path("away.img")).unwrap();
    expect(&place.run("stop", &[]), 3, "what is on it is lost when the server ends");
    until(&place, "data", "removed");
    expect(&place.run("status", &[]), 5, "copy it to another disk first");
    fs::rename(place.path("away.img"), place.path("data.img")).unwrap();
    expect(&place.run("stop", &[]), 0, "");
    expect(&server.wait(), 0, "");
    fs::rename(place.path("data.img"), place.path("away.img")).unwrap();
    fs::rename(place.path("away.img"), place.path("data.img")).unwrap();
    let server = place.serve();
    fs::rename(place.path("data.img"), place.path("away.img")).unwrap();
    expect(&place.run("stop", &["--force"]), 0, "");
    drop(server);
}
