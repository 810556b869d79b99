//! Tests mistakes of administrators about an array, and what they are told without asking.

use std::fs;

use crate::common::array::{JOURNAL, array, disk, full, good, pattern, read_all, stack, status};
use crate::common::{Place, dcd, expect};

/// A copy of a member has its identity, and may be older than the member: nothing tells which of the two counts.
#[test]
fn a_copy_of_a_member_is_not_taken_for_it() {
    let place = Place::new();
    let (server, _) = full(&place, 8, &["e"], "");
    server.kill();
    let names = ["a", "b", "c", "d", "e", "copy"];
    let assemble = |devices: &[&str]| {
        let paths = devices.iter().map(|name| place.path(&format!("{name}.img")));
        dcd().args(["array", "assemble"]).args(paths).output().unwrap()
    };
    for (copied, what) in [("c", "are both member 2"), ("e", "are both the same spare")] {
        fs::copy(place.path(&format!("{copied}.img")), place.path("copy.img")).unwrap();
        expect(&assemble(&names), 3, what);
    }
    expect(&assemble(&names[..5]), 0, "spare0");
}

/// The journal of the array that was there has records of that one.
#[test]
fn a_new_array_over_an_old_one_takes_its_journal_too() {
    let place = Place::new();
    let (server, _) = full(&place, 16, &[], JOURNAL);
    expect(&server.stop(), 0, "");
    for member in ["a", "b", "c", "d"] {
        disk(&place, member, 16);
    }
    expect(&array(&place, "create", &[]), 3, "has the journal of a dcd array on it");
    expect(&array(&place, "create", &["--force"]), 0, "over 4 members");
    let server = place.serve();
    let mut nbd = place.nbd();
    nbd.write(4096, &pattern(1)).unwrap();
    nbd.flush().unwrap();
    server.kill();
    let server = place.serve();
    assert_eq!(place.nbd().read(4096, 4096).unwrap(), pattern(1));
    expect(&server.stop(), 0, "");

    fs::File::create(place.path("journal.img")).unwrap().set_len(256 << 10).unwrap();
    expect(&array(&place, "create", &["--force"]), 1, "the array was created, but its journal is too small");
}

#[test]
fn a_new_member_that_is_not_named_last_is_no_reason_to_overwrite_an_old_one() {
    let place = Place::new();
    let (server, blocks) = full(&place, 8, &[], "");
    expect(&server.stop(), 0, "");
    disk(&place, "new", 8);
    stack(&place, &["a", "new", "b", "c", "d"], &[], "");
    for force in [&[][..], &["--force"]] {
        expect(&array(&place, "grow", force), 3, "\"d\" is member 3 already, and is named last");
    }
    stack(&place, &["a", "b", "c", "d", "new"], &[], "");
    expect(&array(&place, "grow", &["--quiet"]), 0, "over 5 members");
    let server = place.serve();
    read_all(&mut place.nbd(), blocks);
    expect(&server.stop(), 0, "");
}

/// The server's messages tell when an array goes on without a member, and when it is whole again.
#[test]
fn a_server_tells_what_happens_to_its_array() {
    let place = Place::new();
    let (server, _) = full(&place, 8, &[], "");
    expect(&array(&place, "fail", &["b"]), 0, "member 1 is no longer used");
    // It looks every two seconds.
    std::thread::sleep(std::time::Duration::from_secs(3));
    expect(&server.stop(), 0, "array \"array\": degraded, without member 1");

    let server = place.serve();
    std::thread::sleep(std::time::Duration::from_secs(1));
    disk(&place, "new", 8);
    expect(&array(&place, "rebuild", &[]), 1, "takes a device that is named in the place of the member");
    stack(&place, &["a", "new", "c", "d"], &[], "");
    expect(&array(&place, "remove", &["b"]), 0, "");
    expect(&array(&place, "add", &["new"]), 0, "is member 1 now");
    good(&place);
    std::thread::sleep(std::time::Duration::from_secs(3));
    let said = server.stop();
    expect(&said, 0, "array \"array\": degraded, without member 1");
    expect(&said, 0, "array \"array\": good");
    assert_eq!(status(&place)["state"], "good");
}
