//! The life of an array, as its administrator sees it: members fail, are replaced, are looked over, and become more.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use crate::common::array::{
    JOURNAL, array, device, disk, full, good, pattern, read_all, stack, status, wait_for, write_all,
};
use crate::common::{MIB, Place, Server, dcd, expect};
use serde_json::Value;

#[test]
fn a_failed_member_is_rebuilt_on_a_spare_and_a_kill_does_not_hinder_that() {
    let place = Place::new();
    let (server, blocks) = full(&place, 48, &["e"], JOURNAL);
    expect(&array(&place, "fail", &["nobody"]), 1, "there are: a, b, c, d");
    expect(&array(&place, "add", &["e"]), 3, "is a spare of the server already");
    expect(&array(&place, "fail", &["b"]), 0, "member 1 is no longer used");
    expect(&array(&place, "fail", &["c"]), 3, "member 2 cannot be spared");
    // Somewhere on the way.
    std::thread::sleep(Duration::from_millis(60));
    server.kill();
    let offline = status(&place);
    assert!(["rebuilding", "good"].contains(&offline["state"].as_str().unwrap()), "{offline}");
    let server = place.serve();
    expect(&array(&place, "rebuild", &["--quiet"]), 0, "spare 0 is member 1 now");
    let now = status(&place);
    assert_eq!(
        (device(&now, "b"), device(&now, "e")),
        ("replaced by spare 0".to_owned(), "in use".to_owned())
    );
    read_all(&mut place.nbd(), blocks);
    expect(&array(&place, "scrub", &["--quiet"]), 0, "0 rows that did not match");
    expect(&server.stop(), 0, "");
    let offline = status(&place);
    assert!(device(&offline, "b").starts_with("stale"), "{offline}");
    expect(&array(&place, "remove", &["e"]), 3, "is member 1, and in use");
    expect(&array(&place, "remove", &["b"]), 0, "no longer belongs to an array");
    // As the note says.
    stack(&place, &["a", "e", "c", "d"], &[], JOURNAL);
    expect(&dcd().args(["array", "assemble"]).arg(place.stack()).output().unwrap(), 0, "it would start");
    fs::remove_file(place.path("a.img")).unwrap();
    stack(&place, &["missing", "e", "c", "d"], &[], JOURNAL);
    let server = place.serve();
    read_all(&mut place.nbd(), blocks);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_failed_member_whose_file_is_deleted_holds_no_stop_up() {
    let place = Place::new();
    let (server, blocks) = full(&place, 8, &[], JOURNAL);
    fs::rename(place.path("c.img"), place.path("c.away")).unwrap();
    expect(&place.run("stop", &[]), 3, "what is on it is lost when the server ends");
    expect(&array(&place, "fail", &["c"]), 0, "member 2 is no longer used");
    expect(&place.run("stop", &[]), 0, "");
    expect(&server.wait(), 0, "");
    let server = place.serve();
    read_all(&mut place.nbd(), blocks);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_failed_member_is_replaced_by_a_new_device_while_the_array_is_served() {
    let place = Place::new();
    let (server, blocks) = full(&place, 8, &[], JOURNAL);
    expect(&array(&place, "fail", &["c"]), 0, "member 2 is no longer used");
    disk(&place, "new", 8);
    disk(&place, "small", 4);
    disk(&place, "more", 8);
    stack(&place, &["a", "b", "new", "d"], &["small"], JOURNAL);
    expect(&array(&place, "add", &["new"]), 3, "whose device the server still has open");
    expect(&array(&place, "add", &["d"]), 3, "is member 3 of the server's array already, and in use");
    stack(&place, &["a", "more", "new", "d"], &["small"], JOURNAL);
    expect(&array(&place, "add", &["more"]), 3, "name it in \"spares\" and add it");
    expect(&array(&place, "add", &["small"]), 3, "is too small: it has 4 MiB, and each member 8 MiB");
    stack(&place, &["a", "b", "c", "d"], &["new", "more"], JOURNAL);
    expect(&array(&place, "add", &["new"]), 0, "\"new\" is member 2 now");
    expect(&array(&place, "add", &["new"]), 3, "is member 2 of the server's array already");
    expect(&array(&place, "rebuild", &["--quiet"]), 0, "all members are complete");
    // On it goes with the array, beside clients.
    expect(&array(&place, "add", &["more"]), 0, "\"more\" is a spare now");
    let now = good(&place);
    assert_eq!(
        (device(&now, "c").as_str(), device(&now, "new").as_str(), device(&now, "more").as_str()),
        ("replaced by spare 0", "in use", "spare")
    );
    let counters: Vec<&Value> = now["devices"].as_array().unwrap().iter().map(|d| &d["generation"]).collect();
    assert!(counters[0].is_u64() && counters[0] == counters[1], "{counters:?}");
    read_all(&mut place.nbd(), blocks);
    expect(&array(&place, "remove", &["c"]), 0, "another device has its place");
    server.kill();
    let server = place.serve();
    read_all(&mut place.nbd(), blocks);
    expect(&array(&place, "fail", &["a"]), 0, "member 0 is no longer used");
    good(&place);
    expect(&array(&place, "scrub", &["--quiet"]), 0, "0 rows that did not match");
    expect(&server.stop(), 0, "");
    stack(&place, &["more", "b", "new", "d"], &[], JOURNAL);
    let server = place.serve();
    read_all(&mut place.nbd(), blocks);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_served_array_lets_a_failed_member_go_and_takes_it_back() {
    let place = Place::new();
    let (server, blocks) = full(&place, 8, &["e"], JOURNAL);
    expect(&array(&place, "remove", &["nobody"]), 3, "\"nobody\" is not open here");
    expect(&array(&place, "remove", &["c"]), 3, "the device is member 2, and in use");
    expect(&array(&place, "remove", &["journal"]), 3, "is the journal");
    expect(&array(&place, "remove", &["e"]), 0, "\"e\" is closed");
    expect(&array(&place, "fail", &["c"]), 0, "member 2 is no longer used");
    expect(&array(&place, "add", &["c"]), 3, "whose device the server still has open");
    expect(
        &array(&place, "remove", &["c"]),
        0,
        "\"c\" is closed, and no longer used: nothing on it was changed. \"dcd array add\" adds it again",
    );
    let now = status(&place);
    assert!(device(&now, "c").starts_with("removed") && device(&now, "e").starts_with("new"), "{now}");
    expect(&array(&place, "remove", &["c"]), 3, "\"c\" is not open here");
    // Nobody has the file open any more: it is as if it were unplugged, and plugged in again under another name.
    let held = fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap();
    let held: Vec<_> = held.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok()).collect();
    assert!(held.contains(&place.path("d.img")) && !held.contains(&place.path("c.img")), "{held:?}");
    let mut nbd = place.nbd();
    for block in 0..blocks / 2 {
        nbd.write(block * 4096, &pattern(block + 1)).unwrap();
    }
    nbd.flush().unwrap();
    expect(&array(&place, "add", &["c"]), 0, "\"c\" is member 2 now");
    let now = good(&place);
    assert_eq!(device(&now, "c"), "in use");
    expect(&array(&place, "scrub", &["--quiet"]), 0, "0 rows that did not match");
    // Once more, as a spare this time, and in its place another device.
    expect(&array(&place, "fail", &["c"]), 0, "member 2 is no longer used");
    expect(&array(&place, "remove", &["2"]), 0, "\"c\" is closed");
    fs::rename(place.path("c.img"), place.path("plugged.img")).unwrap();
    stack(&place, &["a", "b", "missing", "d"], &["plugged"], JOURNAL);
    expect(&array(&place, "add", &["plugged"]), 0, "\"plugged\" is member 2 now");
    good(&place);
    expect(&array(&place, "fail", &["plugged"]), 0, "member 2 is no longer used");
    expect(&array(&place, "remove", &["plugged"]), 0, "\"plugged\" is closed");
    disk(&place, "other", 8);
    stack(&place, &["a", "b", "other", "d"], &[], JOURNAL);
    expect(&array(&place, "add", &["other"]), 0, "\"other\" is member 2 now");
    good(&place);
    expect(&server.stop(), 0, "");
    let server = place.serve();
    expect(&array(&place, "scrub", &["--quiet"]), 0, "0 rows that did not match");
    let mut nbd = place.nbd();
    for block in 0..blocks {
        let wanted = if block < blocks / 2 { pattern(block + 1) } else { pattern(block) };
        assert!(nbd.read(block * 4096, 4096).unwrap() == wanted, "block {block}");
    }
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}

#[test]
fn a_member_is_replaced_in_its_place_while_nothing_is_served() {
    let place = Place::new();
    let (server, blocks) = full(&place, 6, &[], "");
    expect(&server.stop(), 0, "");
    expect(&array(&place, "add", &["c"]), 3, "is member 2 already, and in use");
    let measured = dcd()
        .arg("calibrate")
        .arg(place.path("a.img"))
        .args(["--span", "1MiB", "--strides", "2,4", "--store"])
        .arg(place.stack())
        .output()
        .unwrap();
    expect(&measured, 0, "Smax");
    assert_eq!(status(&place)["calibrated"], true);
    expect(&array(&place, "fail", &["2"]), 0, "member 2 is no longer used");
    assert_eq!(device(&status(&place), "c"), "failed");
    expect(&array(&place, "fail", &["a"]), 3, "does not make up for more");
    expect(&array(&place, "remove", &["2"]), 0, "\"c\" (member 2) no longer belongs to an array");
    disk(&place, "new", 2);
    stack(&place, &["a", "b", "new", "d"], &[], "");
    expect(&array(&place, "add", &["new"]), 3, "too small");
    disk(&place, "new", 6);
    expect(&array(&place, "rebuild", &[]), 3, "dcd array add");
    expect(&array(&place, "add", &["new"]), 0, "\"new\" is member 2 now");
    expect(&array(&place, "rebuild", &[]), 0, "all members are complete");
    let now = status(&place);
    assert_eq!((now["state"].as_str(), device(&now, "new").as_str()), (Some("good"), "in use"));
    fs::remove_file(place.path("a.img")).unwrap();
    stack(&place, &["missing", "b", "new", "d"], &[], "");
    let server = place.serve();
    read_all(&mut place.nbd(), blocks);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_scrub_finds_and_repairs_what_has_rotted() {
    let place = Place::new();
    let (server, blocks) = full(&place, 6, &[], "");
    expect(&server.stop(), 0, "");
    let rot = || {
        let file = File::options().write(true).open(place.path("c.img")).unwrap();
        file.write_all_at(&[0x5a; 3], 3 * MIB + 777).unwrap();
    };
    expect(&array(&place, "scrub", &["--quiet"]), 0, "0 rows that did not match");
    rot();
    expect(&array(&place, "scrub", &["--quiet"]), 4, "1 row that did not match");
    let server = place.serve();
    expect(&array(&place, "scrub", &[]), 4, "--repair rewrites them");
    expect(&array(&place, "status", &[]), 4, "right except for what the scrub found");
    expect(&array(&place, "scrub", &["--repair"]), 0, "1 row that did not match");
    expect(&array(&place, "scrub", &[]), 0, "0 rows that did not match");
    expect(&array(&place, "status", &[]), 0, "scrubbed 0 rows that did not match");
    expect(&array(&place, "status", &[]), 0, "known to be right");
    expect(&server.stop(), 0, "");
    // RAID-5 cannot know which block it was; the parity fits again, and all other blocks are as they were.
    let server = place.serve();
    let mut nbd = place.nbd();
    let changed =
        (0..blocks).filter(|block| nbd.read(block * 4096, 4096).unwrap() != pattern(*block)).count();
    assert!(changed <= 1, "{changed} blocks have changed");
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}

#[test]
fn an_array_is_found_again_among_bare_devices() {
    let place = Place::new();
    let (server, blocks) = full(&place, 6, &["e"], "");
    expect(&server.stop(), 0, "");
    let find = |names: &[&str], more: &[&str]| {
        let paths = names.iter().map(|name| place.path(&format!("{name}.img")));
        dcd().args(["array", "assemble"]).args(paths).args(more).output().unwrap()
    };
    disk(&place, "blank", 6);
    expect(&find(&["c", "a"], &[]), 3, "of its 4 members, 1, 3 are not among the devices");
    expect(&find(&["blank"], &[]), 1, "none of the devices belongs to an array");
    let out = place.path("found.toml");
    let found = find(&["d", "e", "blank", "a", "b"], &["--out", out.to_str().unwrap()]);
    expect(&found, 0, "blank.img: it is no member of an array");
    expect(&found, 0, "without member 2: missing data is computed from the other members");
    expect(&find(&["d", "a", "b"], &["--out", out.to_str().unwrap()]), 1, "exists");
    let text = fs::read_to_string(&out).unwrap();
    assert!(text.contains("of = [\"disk0\", \"disk1\", \"missing\", \"disk3\"]"), "{text}");
    assert!(text.contains("spares = [\"spare0\"]") && text.contains("strip = \"64KiB\""), "{text}");
    // A copy of a member from before the others were served once more.
    fs::copy(place.path("a.img"), place.path("old.img")).unwrap();
    // It is served as it is; the spare takes the place of the member that is missing.
    fs::write(place.stack(), text.replace("array.sock", "nbd.sock").replace("array.control", "control.sock"))
        .unwrap();
    let server = place.serve();
    read_all(&mut place.nbd(), blocks);
    expect(&server.stop(), 0, "");
    let found = find(&["d", "e", "a", "b", "old"], &[]);
    expect(&found, 0, "old.img: member 0, with older data");
    expect(&found, 0, "a.img is that member now: left out");
}

#[test]
fn an_array_grows_by_a_member_and_by_larger_ones() {
    let place = Place::new();
    disk(&place, "e", 6);
    let (server, blocks) = full(&place, 6, &[], "");
    expect(&array(&place, "grow", &[]), 3, "stop its server");
    expect(&server.stop(), 0, "");
    expect(&array(&place, "grow", &[]), 0, "nothing to gain");
    stack(&place, &["a", "b", "c", "d"], &[], JOURNAL);
    let server = place.serve();
    place.nbd().write(0, &pattern(0)).unwrap();
    expect(&server.stop(), 0, "");
    stack(&place, &["a", "b", "c", "d", "e"], &[], JOURNAL);
    expect(&array(&place, "grow", &["--quiet"]), 0, "the array now has 20 MiB over 5 members");
    let server = place.serve();
    let mut nbd = place.nbd();
    assert_eq!(nbd.bytes, 20 * MIB);
    read_all(&mut nbd, blocks);
    assert!(nbd.read(blocks * 4096, MIB as usize).unwrap().iter().all(|byte| *byte == 0));
    nbd.disconnect().unwrap();
    expect(&array(&place, "scrub", &["--quiet"]), 0, "0 rows that did not match");
    expect(&server.stop(), 0, "");
    for name in ["a", "b", "c", "d", "e"] {
        File::options()
            .write(true)
            .open(place.path(&format!("{name}.img")))
            .unwrap()
            .set_len(8 * MIB)
            .unwrap();
    }
    expect(&array(&place, "grow", &["--quiet"]), 0, "the array now has 28 MiB over 5 members");
    let server = place.serve();
    let mut nbd = place.nbd();
    assert_eq!(nbd.bytes, 28 * MIB);
    read_all(&mut nbd, blocks);
    nbd.disconnect().unwrap();
    expect(&array(&place, "scrub", &["--quiet"]), 0, "0 rows that did not match");
    expect(&server.stop(), 0, "");
}

#[test]
fn growing_stops_where_it_is_interrupted_and_goes_on_from_there() {
    let place = Place::new();
    disk(&place, "e", 24);
    let (server, blocks) = full(&place, 24, &[], "");
    expect(&server.stop(), 0, "");
    stack(&place, &["a", "b", "c", "d", "e"], &[], "");
    // A signal that came while it was held back is there when the program begins.
    let interrupted = Command::new("env")
        .args(["--block-signal=INT", "sh", "-c", "kill -INT $$; exec \"$0\" array grow --quiet \"$1\""])
        .arg(dcd().get_program())
        .arg(place.stack())
        .output()
        .unwrap();
    expect(&interrupted, 1, "what was done is kept; \"dcd array grow\" continues");
    let percent = status(&place)["reshaped_percent"].as_f64().expect("it is growing");
    assert!(percent > 0.0 && percent < 100.0, "{percent}");
    expect(&array(&place, "grow", &["--quiet"]), 0, "over 5 members");
    let server = place.serve();
    read_all(&mut place.nbd(), blocks);
    expect(&array(&place, "scrub", &["--quiet"]), 0, "0 rows that did not match");
    expect(&server.stop(), 0, "");
}

/// Serves a part of an array of four, and writes a block.
fn serve_part(place: &Place, members: &[&str], block: u64, from: u64) {
    stack(place, members, &[], "level = \"raid6\"\n");
    let server = place.serve();
    let mut nbd = place.nbd();
    nbd.write(block * 4096, &pattern(from)).unwrap();
    nbd.flush().unwrap();
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}

#[test]
fn halves_of_an_array_that_were_used_apart_are_refused_until_one_is_chosen() {
    const RAID_6: &str = "level = \"raid6\"\n";
    let place = Place::new();
    for name in ["a", "b", "c", "d"] {
        disk(&place, name, 4);
    }
    stack(&place, &["a", "b", "c", "d"], &[], RAID_6);
    expect(&array(&place, "create", &[]), 0, "over 4 members");
    let server = place.serve();
    write_all(&mut place.nbd(), 64);
    good(&place);
    expect(&server.stop(), 0, "");
    serve_part(&place, &["a", "b", "missing", "missing"], 0, 100);
    serve_part(&place, &["missing", "missing", "c", "d"], 1, 101);
    serve_part(&place, &["missing", "missing", "c", "d"], 1, 102);
    stack(&place, &["a", "b", "c", "d"], &[], RAID_6);
    let images = ["a.img", "b.img", "c.img", "d.img"].map(|name| place.path(name));
    let mut assemble = dcd();
    assemble.args(["array", "assemble"]).args(&images);
    expect(&assemble.output().unwrap(), 3, "a.img: it is member 0");
    expect(&assemble.output().unwrap(), 3, "were used apart: member 0 (event counter ");
    expect(&dcd().args(["array", "assemble"]).arg(place.stack()).output().unwrap(), 3, "were used apart");
    expect(&Server::start(&place, &[]).err().unwrap(), 3, "were used apart");
    expect(&array(&place, "fail", &["a"]), 3, "were used apart");
    expect(&array(&place, "status", &[]), 4, "were used apart");
    assert_eq!(status(&place)["state"], "apart");
    expect(&array(&place, "add", &["d"]), 3, "were used apart");
    // The older half is kept. One of the other is added while nothing is served, and one to the server.
    let first = dcd().args(["array", "assemble"]).args(&images[..2]).output().unwrap();
    expect(&first, 0, "\"missing\", \"missing\"");
    stack(&place, &["a", "b", "c", "missing"], &[], RAID_6);
    expect(&array(&place, "add", &["c"]), 0, "\"c\" is member 2 now: it is filled");
    let server = place.serve();
    stack(&place, &["a", "b", "c", "d"], &[], RAID_6);
    wait_for(&place, "the end of the rebuild", |status| status["rebuilding_member"].is_null());
    expect(&array(&place, "add", &["d"]), 0, "\"d\" is member 3 now: it is being filled");
    good(&place);
    expect(&array(&place, "scrub", &["--quiet"]), 0, "0 rows that did not match");
    expect(&server.stop(), 0, "");
    stack(&place, &["missing", "missing", "c", "d"], &[], RAID_6);
    let server = place.serve();
    let mut nbd = place.nbd();
    for block in 0..64 {
        let from = if block == 0 { 100 } else { block };
        assert!(nbd.read(block * 4096, 4096).unwrap() == pattern(from), "block {block}");
    }
    expect(&server.stop(), 0, "");
}

#[test]
fn an_array_that_is_not_served_keeps_the_last_member_that_it_can_spare() {
    let place = Place::new();
    let (server, blocks) = full(&place, 8, &[], "");
    expect(&server.stop(), 0, "");
    let members = ["a", "b", "c", "d"];
    // Not named, without a superblock, and an older one of the same member.
    let old = fs::read(place.path("b.img")).unwrap();
    stack(&place, &["a", "missing", "c", "d"], &[], "");
    let refused = "member 1 is missing, or not up to date, and the parity makes up for 1 in all";
    expect(&array(&place, "fail", &["a"]), 3, refused);
    stack(&place, &members, &[], "");
    disk(&place, "blank", 8);
    fs::copy(place.path("blank.img"), place.path("b.img")).unwrap();
    expect(&array(&place, "fail", &["a"]), 3, refused);
    fs::write(place.path("b.img"), &old).unwrap();
    let server = place.serve();
    let mut nbd = place.nbd();
    nbd.write(0, &pattern(0)).unwrap();
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
    let newer = fs::read(place.path("b.img")).unwrap();
    fs::write(place.path("b.img"), old).unwrap();
    expect(&array(&place, "fail", &["a"]), 3, refused);
    assert_eq!(
        (device(&status(&place), "b").split(':').next(), &status(&place)["state"]),
        (Some("out of date"), &"degraded".into())
    );
    expect(&array(&place, "assemble", &[]), 0, "it would start, without member 1");
    // The one that is not up to date can be failed, and with all of them one can.
    fs::write(place.path("b.img"), newer).unwrap();
    expect(&array(&place, "fail", &["a"]), 0, "member 0 is no longer used");
    let server = place.serve();
    read_all(&mut place.nbd(), blocks);
    expect(&server.stop(), 0, "");
}

/// The array cannot record the crash, and no member is to blame for that.
#[test]
fn a_read_only_array_that_was_killed_is_read_and_not_changed() {
    let place = Place::new();
    let (server, blocks) = full(&place, 8, &[], "");
    let mut nbd = place.nbd();
    (0..blocks).step_by(3).for_each(|block| nbd.write(block * 4096, &pattern(block)).unwrap());
    nbd.flush().unwrap();
    nbd.write(0, &pattern(0)).unwrap();
    server.kill();
    assert_eq!(status(&place)["state"], "in doubt");
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace(".img\"\n", ".img\"\nread-only = true\n")).unwrap();
    let images = || ["a", "b", "c", "d"].map(|name| fs::read(place.path(&format!("{name}.img"))).unwrap());
    let before = images();
    let server = place.serve();
    let mut nbd = place.nbd();
    read_all(&mut nbd, blocks);
    let now = status(&place);
    assert_eq!(
        (&now["failed_members"], &now["regions_in_doubt"], &now["state"]),
        (&serde_json::json!([]), &1.into(), &"in doubt".into()),
        "{now}"
    );
    expect(&array(&place, "fail", &["b"]), 3, "the array takes no writes");
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
    assert!(images() == before, "nothing was written");
}

#[test]
fn a_device_with_something_else_on_it_takes_the_place_of_a_member_that_is_gone() {
    let other = Place::new();
    let (server, _) = full(&other, 8, &[], "");
    expect(&server.stop(), 0, "");
    for (foreign, told_first) in [(false, false), (true, false), (true, true)] {
        let place = Place::new();
        let (server, blocks) = full(&place, 8, &[], "");
        expect(&server.stop(), 0, "");
        match foreign {
            true => drop(fs::copy(other.path("b.img"), place.path("b.img")).unwrap()),
            false => fs::write(place.path("b.img"), vec![0; 8 << 20]).unwrap(),
        }
        let refused = Server::start(&place, &[]).err().expect("it is no member");
        expect(&refused, 3, "dcd array add");
        let said = if foreign { "member 1 belongs to another array" } else { "member 1: it is no member" };
        expect(&array(&place, "assemble", &[]), 3, said);
        assert_eq!(status(&place)["state"], "refused");
        if told_first {
            expect(&array(&place, "fail", &["b"]), 0, "member 1 is no longer used");
        }
        if foreign {
            expect(&array(&place, "add", &["b"]), 3, "add --force");
        }
        expect(&array(&place, "add", &["b", "--force"]), 0, "\"b\" is member 1 now: it is filled");
        let server = place.serve();
        good(&place);
        expect(&array(&place, "scrub", &["--quiet"]), 0, "0 rows that did not match");
        read_all(&mut place.nbd(), blocks);
        expect(&server.stop(), 0, "");
    }
}

#[test]
fn a_spare_that_was_never_added_is_named_and_can_be_added_at_any_time() {
    for served in [true, false] {
        let place = Place::new();
        let (server, blocks) = full(&place, 8, &[], "");
        expect(&server.stop(), 0, "");
        disk(&place, "new", 8);
        stack(&place, &["a", "b", "c", "d"], &["new"], "");
        let note =
            "note: spare 0 is not used: it is no member of an array, and no spare of one; \"dcd array add\"";
        expect(&array(&place, "status", &[]), 0, note);
        expect(&array(&place, "assemble", &[]), 0, note);
        let server = place.serve();
        let now = status(&place);
        assert_eq!((&now["state"], device(&now, "new").as_str()), (&"good".into(), "not used"));
        if !served {
            expect(&server.stop(), 0, "");
            expect(&array(&place, "add", &["new"]), 0, "\"new\" is a spare now");
            expect(&array(&place, "remove", &["new"]), 0, "no longer belongs to an array");
            expect(&array(&place, "add", &["new"]), 0, "\"new\" is a spare now");
            let server = place.serve();
            assert_eq!(device(&status(&place), "new"), "spare");
            expect(&server.stop(), 0, "");
            continue;
        }
        expect(&array(&place, "add", &["new"]), 0, "\"new\" is a spare now");
        expect(&array(&place, "fail", &["c"]), 0, "member 2 is no longer used");
        expect(&array(&place, "rebuild", &["--quiet"]), 0, "all members are complete");
        read_all(&mut place.nbd(), blocks);
        expect(&server.stop(), 0, "");
    }
}

#[test]
fn whether_an_array_would_start_is_what_its_start_says() {
    let place = Place::new();
    let (server, blocks) = full(&place, 8, &[], "");
    expect(&server.stop(), 0, "");
    stack(&place, &["a", "c", "b", "d"], &[], "");
    expect(&array(&place, "assemble", &[]), 3, "would not start: layer \"array\": member 1 has the role 2");
    expect(&array(&place, "status", &[]), 4, "in the wrong place: it is member 2");
    expect(&array(&place, "status", &[]), 4, "state    refused, not served");
    stack(&place, &["a", "b", "c", "d"], &[], "");
    // What a member that failed had cannot be told from parity that may be half written.
    let server = place.serve();
    expect(&array(&place, "fail", &["b"]), 0, "member 1 is no longer used");
    let mut nbd = place.nbd();
    (0..blocks).step_by(3).for_each(|block| nbd.write(block * 4096, &pattern(block)).unwrap());
    nbd.flush().unwrap();
    server.kill();
    let images = || ["a", "b", "c", "d"].map(|name| fs::read(place.path(&format!("{name}.img"))).unwrap());
    let before = images();
    let why = "its parity is in doubt in 1 of 1 regions";
    expect(&array(&place, "assemble", &[]), 3, why);
    expect(&array(&place, "status", &[]), 4, why);
    assert_eq!(status(&place)["state"], "refused");
    expect(&Server::start(&place, &[]).err().expect("refused"), 3, why);
    assert!(images() == before, "to look changes nothing");
    fs::write(place.path("b.img"), vec![0; 8 << 20]).unwrap();
    expect(&array(&place, "add", &["b"]), 0, "\"b\" is member 1 now");
    expect(&array(&place, "rebuild", &["--quiet"]), 3, why);
    expect(&array(&place, "rebuild", &["--quiet", "--accept-doubt"]), 0, "all members are complete");
    let server = place.serve();
    read_all(&mut place.nbd(), blocks);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_member_that_is_not_there_is_not_made_by_a_start() {
    let place = Place::new();
    let (server, _) = full(&place, 8, &[], "");
    expect(&server.stop(), 0, "");
    fs::remove_file(place.path("b.img")).unwrap();
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace(".img\"\n", ".img\"\nsize = \"8MiB\"\n")).unwrap();
    let refused = Server::start(&place, &[]).err().expect("a member is missing");
    expect(&refused, 3, "member 1 is missing, and the superblocks do not say that it failed");
    assert!(!place.path("b.img").exists());
}

/// The stack file may name other devices by now than the server has.
#[test]
fn a_served_array_goes_by_the_names_that_its_devices_had_when_it_was_started() {
    let place = Place::new();
    let (server, blocks) = full(&place, 8, &["e"], "");
    disk(&place, "new", 8);
    stack(&place, &["b", "a", "c", "d"], &["e"], "");
    let now = status(&place);
    assert_eq!((device(&now, "a"), &now["devices"][0]["name"]), ("in use".to_owned(), &"a".into()));
    assert!(now["advice"].to_string().contains("the stack file names other members"), "{now}");
    expect(&array(&place, "fail", &["b"]), 0, "member 1 is no longer used");
    expect(&array(&place, "rebuild", &["--quiet"]), 0, "spare 0 is member 1 now");
    // As the note says, and then another spare.
    stack(&place, &["a", "e", "c", "d"], &["new"], "");
    let now = status(&place);
    assert_eq!(
        (device(&now, "e"), now["advice"].to_string()),
        ("in use".to_owned(), "[]".to_owned()),
        "{now}"
    );
    assert!(device(&now, "new").starts_with("new: "), "{now}");
    expect(&array(&place, "add", &["new"]), 0, "\"new\" is a spare now");
    expect(&array(&place, "fail", &["e"]), 0, "member 1 is no longer used");
    expect(&array(&place, "rebuild", &["--quiet"]), 0, "all members are complete");
    read_all(&mut place.nbd(), blocks);
    expect(&server.stop(), 0, "");
    expect(&array(&place, "grow", &[]), 3, "name that one there in \"of\", even if it was a spare");
    stack(&place, &["a", "new", "c", "d"], &[], "");
    let server = place.serve();
    assert_eq!(status(&place)["state"], "good");
    read_all(&mut place.nbd(), blocks);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_spare_or_a_member_that_is_not_there_does_not_lead_to_a_new_array() {
    let place = Place::new();
    let (server, blocks) = full(&place, 8, &["e"], JOURNAL);
    expect(&server.stop(), 0, "");
    fs::remove_file(place.path("e.img")).unwrap();
    expect(&array(&place, "assemble", &[]), 0, "note: spare 0 is missing");
    let server = place.serve();
    assert_eq!(status(&place)["state"], "good");
    expect(&array(&place, "status", &[]), 0, "missing");
    disk(&place, "e", 8);
    expect(&array(&place, "status", &[]), 0, "new: \"dcd array add\" makes it a spare");
    stack(&place, &["a", "b", "c", "d", "e"], &[], JOURNAL);
    expect(&array(&place, "add", &["e"]), 3, "is named after the 4 members that the server's array has");
    stack(&place, &["a", "b", "c", "d"], &["e"], JOURNAL);
    expect(&array(&place, "add", &["e"]), 0, "\"e\" is a spare now");
    expect(&array(&place, "fail", &["c"]), 0, "member 2 is no longer used");
    expect(&array(&place, "rebuild", &["--quiet"]), 0, "all members are complete");
    expect(&server.stop(), 0, "");
    fs::remove_file(place.path("journal.img")).unwrap();
    let refused = Server::start(&place, &[]).err().expect("the journal is missing");
    expect(&refused, 1, "if it is gone for good, write journal = \"none\" in the stack file");
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace("journal.img\"\n", "journal.img\"\nsize = \"8MiB\"\n")).unwrap();
    let said = "if that array does not start, \"dcd array status\" says why. A new array, with --force, loses all data";
    expect(&array(&place, "create", &[]), 3, said);
    assert!(!place.path("journal.img").exists(), "what is refused makes nothing");
    stack(&place, &["a", "b", "c", "d"], &["e"], "journal = \"none\"\n");
    let server = place.serve();
    read_all(&mut place.nbd(), blocks);
    expect(&server.stop(), 0, "");
    // The stale one may go, as the spare has its role.
    expect(&array(&place, "remove", &["c"]), 0, "no longer belongs to an array");
    let server = place.serve();
    assert_eq!(status(&place)["state"], "good");
    expect(&server.stop(), 0, "");
    expect(
        &array(&place, "add", &["c"]),
        3,
        "cannot be member 2: \"e\" already is that member and holds its data",
    );
}

#[test]
fn a_member_is_not_given_up_while_the_journal_that_makes_up_for_a_crash_is_not_there() {
    let place = Place::new();
    let (server, blocks) = full(&place, 8, &[], JOURNAL);
    let mut nbd = place.nbd();
    (0..blocks).step_by(3).for_each(|block| nbd.write(block * 4096, &pattern(block)).unwrap());
    nbd.flush().unwrap();
    server.kill();
    let journal = fs::read(place.path("journal.img")).unwrap();
    fs::write(place.path("journal.img"), vec![0; 8 << 20]).unwrap();
    let why = "the journal has no record of this array's last activity";
    expect(&array(&place, "fail", &["a"]), 3, why);
    expect(&array(&place, "status", &[]), 4, "parity   not known, as the start is refused");
    let refused = Server::start(&place, &[]).err().expect("it is another journal");
    expect(
        &refused,
        3,
        "if it is gone for good, \"dcd serve --accept-doubt\" starts without it: if no member is missing, the parity is computed again",
    );
    fs::write(place.path("journal.img"), journal).unwrap();
    // With it, one can be spared.
    expect(&array(&place, "fail", &["a"]), 0, "member 0 is no longer used");
    let server = place.serve();
    read_all(&mut place.nbd(), blocks);
    expect(&server.stop(), 0, "");
    let found = dcd()
        .args(["array", "assemble"])
        .args(["journal", "d", "b", "c"].map(|name| place.path(&format!("{name}.img"))))
        .output()
        .unwrap();
    expect(&found, 0, "journal = \"journal\"");
}
