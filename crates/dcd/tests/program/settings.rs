//! Settings that change while a stack is served: set, get, and what a stack file keeps of it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::{MIB, Place, expect};

/// A formatted place whose stack file has comments.
fn place() -> Place {
    let place = Place::new();
    place.write_stack("# The marks were measured.\nhigh-mark = 70 # percent");
    place.format();
    place
}

fn json(place: &Place, command: &str, more: &[&str]) -> serde_json::Value {
    let output = place.run(command, &[&["--json"], more].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The values of a setting in force and in the file.
fn values(place: &Place, key: &str) -> (String, String) {
    let all = json(place, "get", &[key]);
    let text = |value: &serde_json::Value| value.as_str().unwrap_or("-").to_owned();
    (text(&all[0]["in_force"]), text(&all[0]["file"]))
}

#[test]
fn settings_change_at_once_and_the_file_only_with_save() {
    let place = place();
    expect(&place.run("get", &["high-mark"]), 0, "cache.high-mark  70");
    let server = place.serve();
    let before = fs::read_to_string(place.stack()).unwrap();
    let mut nbd = place.nbd();
    let mut write =
        |mib: u64| (0..50).for_each(|line| nbd.write(mib * MIB + line * 8192, &[1; 4096]).unwrap());
    let bypassed =
        || json(&place, "status", &[])["layers"]["cache"]["statistics"]["bypassed_sectors"].as_u64().unwrap();
    write(1);
    assert_eq!(bypassed(), 0, "they are small");
    expect(&place.run("set", &["bypass=4KiB"]), 0, "");
    write(2);
    let some = bypassed();
    assert!(some > 200, "{some} sectors");
    expect(&place.run("set", &["bypass=0", "cache.high-mark=80"]), 0, "");
    write(3);
    assert_eq!(bypassed(), some, "none");
    assert_eq!(values(&place, "bypass"), ("0".to_owned(), "\"64KiB\"".to_owned()));
    assert_eq!(fs::read_to_string(place.stack()).unwrap(), before);
    expect(&place.run("get", &["high-mark"]), 0, "cache.high-mark  80     70    served");
    let mode = fs::Permissions::from_mode(0o640);
    fs::set_permissions(place.stack(), mode).unwrap();
    expect(&place.run("set", &["high-mark=85", "low-mark=40", "--save"]), 0, "");
    let saved = fs::read_to_string(place.stack()).unwrap();
    assert!(
        saved.contains("# The marks were measured.\nhigh-mark = 85 # percent\nlow-mark = 40\n"),
        "{saved}"
    );
    assert!(!saved.contains("bypass"), "only what was to be saved");
    assert_eq!(fs::metadata(place.stack()).unwrap().mode() & 0o7777, 0o640);
    assert!(!place.path("stack.toml.new").exists());
    expect(&server.stop(), 0, "settings were changed: high-mark=85 low-mark=40");
    let server = place.serve();
    assert_eq!(values(&place, "high-mark"), ("85".to_owned(), "85".to_owned()));
    assert_eq!(values(&place, "bypass").0, "\"64KiB\"", "it was not saved");
    expect(&server.stop(), 0, "");
}

#[test]
fn wrong_settings_change_nothing_and_say_why() {
    let place = place();
    expect(&place.run("set", &["high-mark=80"]), 1, "not served");
    let server = place.serve();
    let before = fs::read_to_string(place.stack()).unwrap();
    for (changes, why) in [
        (vec!["high-marc=80"], "did you mean \"high-mark\"?"),
        (vec!["high-mark=500"], "it must be from 1 to 100"),
        (vec!["bypass=0", "low-mark=90"], "\"low-mark\" (90) must be below \"high-mark\" (70)"),
        (vec!["promise=always"], "changes at a start only"),
        (vec!["segment-size=1MiB"], "fixed in the log by \"dcd format\""),
        (vec!["data=log"], "cannot be set: a log is made for its data disks"),
        (vec!["destage-depth=many"], "\"destage-depth\" must be a whole number"),
    ] {
        for save in [vec![], vec!["--save"]] {
            expect(&place.run("set", &[changes.clone(), save].concat()), 1, why);
        }
        assert_eq!(values(&place, "high-mark").0, "70");
        assert_eq!(values(&place, "bypass").0, "\"64KiB\"");
    }
    expect(&place.run("get", &["nothing"]), 1, "no setting \"nothing\"");
    expect(&place.run("set", &[]), 2, "required arguments");
    assert_eq!(fs::read_to_string(place.stack()).unwrap(), before);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_stack_file_that_cannot_be_replaced_leaves_the_running_setting_as_it_was() {
    let place = place();
    let server = place.serve();
    fs::rename(place.stack(), place.path("real.toml")).unwrap();
    symlink(place.path("real.toml"), place.stack()).unwrap();
    expect(&place.run("set", &["high-mark=80", "--save"]), 1, "it is a link");
    assert_eq!(values(&place, "high-mark"), ("70".to_owned(), "70".to_owned()));
    fs::remove_file(place.stack()).unwrap();
    fs::rename(place.path("real.toml"), place.stack()).unwrap();
    // The new text cannot be written beside it.
    fs::create_dir_all(place.path("stack.toml.new/x")).unwrap();
    expect(&place.run("set", &["high-mark=80", "--save"]), 1, "so nothing was changed");
    assert_eq!(values(&place, "high-mark"), ("70".to_owned(), "70".to_owned()));
    fs::remove_dir_all(place.path("stack.toml.new")).unwrap();
    // The file has a mistake since the start: the running setting can change, but is not saved.
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace("high-mark = 70", "high-mark = 700")).unwrap();
    expect(&place.run("set", &["low-mark=10", "--save"]), 1, "\"high-mark\" is 700");
    expect(&place.run("set", &["low-mark=10"]), 0, "");
    fs::write(place.stack(), &text).unwrap();
    assert_eq!(values(&place, "low-mark"), ("10".to_owned(), "50".to_owned()));
    // The file conflicts with the new setting, and the running stack does not.
    fs::write(place.stack(), text.replace("high-mark = 70", "high-mark = 70\nlow-mark = 60")).unwrap();
    expect(
        &place.run("set", &["high-mark=55", "--save"]),
        1,
        "\"low-mark\" (60) must be below \"high-mark\" (55)",
    );
    assert_eq!(values(&place, "high-mark"), ("70".to_owned(), "70".to_owned()));
    expect(&server.stop(), 0, "");
}

#[test]
fn settings_that_change_under_load_lose_nothing() {
    let place = place();
    let server = place.serve();
    let path = place.path("nbd.sock");
    let writer = std::thread::spawn(move || {
        let mut nbd = crate::common::Nbd::connect(&path).unwrap();
        for round in 0..400u64 {
            let sectors = [8, 1, 256, 3][round as usize % 4];
            nbd.write(round * 37 % 60 * (256 << 10), &vec![round as u8; sectors * 512]).unwrap();
            if round % 7 == 0 {
                nbd.flush().unwrap();
            }
        }
        nbd.disconnect().unwrap();
    });
    let mut rounds = 0;
    while !writer.is_finished() || rounds < 4 {
        let set = [
            [
                "bypass=0",
                "when=asap",
                "what=least-valid-first",
                "high-mark=20",
                "low-mark=1",
                "destage-depth=64",
            ],
            [
                "bypass=4KiB",
                "when=idle",
                "what=last-write-first",
                "high-mark=90",
                "low-mark=30",
                "destage-depth=1",
            ],
        ][rounds % 2];
        expect(&place.run("set", &set), 0, "");
        rounds += 1;
    }
    writer.join().unwrap();
    let mut expected = crate::common::original(16 * MIB);
    for round in 0..400u64 {
        let sectors = [8, 1, 256, 3][round as usize % 4];
        expected[(round * 37 % 60 * (256 << 10)) as usize..][..sectors * 512].fill(round as u8);
    }
    let mut nbd = place.nbd();
    for at in (0..16).map(|at| at * MIB) {
        assert!(nbd.read(at, 1 << 20).unwrap() == expected[at as usize..][..1 << 20], "at {at}");
    }
    nbd.disconnect().unwrap();
    expect(&place.run("flush", &[]), 0, "");
    expect(&server.stop(), 0, "");
    assert!(place.bare() == expected, "the data disk has everything");
}

/// Waits until all data is on the data disk.
fn wait_until_clean(place: &Place) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while json(place, "status", &[])["dirty_bytes"] != 0 {
        assert!(Instant::now() < deadline, "it does not get clean");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn write_back_is_held_until_it_is_resumed_and_a_flush_goes_on() {
    let place = place();
    let server = place.serve();
    let mut nbd = place.nbd();
    expect(&place.run("writeback", &["pause"]), 0, "Over its high mark a log is written back all the same");
    nbd.write(0, &[1; 4096]).unwrap();
    // The disk has to be idle for a second before it would be destaged.
    sleep(Duration::from_secs(3));
    let status = json(&place, "status", &[]);
    assert_eq!(
        (&status["dirty_bytes"], &status["writeback"]["cache"]["held_by"]),
        (&4096.into(), &"pause".into())
    );
    let status = place.run("status", &[]);
    let words = String::from_utf8_lossy(&status.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    let told = format!("write-back is paused until \"dcd writeback {} resume\"", place.stack().display());
    assert!(words.contains(&told), "{words}");
    expect(&place.run("metrics", &[]), 0, "dcd_destage_held{stack=\"stack\",layer=\"cache\"} 1");
    expect(&place.run("flush", &[]), 0, "");
    assert_eq!(json(&place, "status", &[])["dirty_bytes"], 0);
    nbd.write(0, &[2; 4096]).unwrap();
    expect(&place.run("writeback", &["now"]), 0, "write-back has begun");
    wait_until_clean(&place);
    nbd.write(0, &[3; 4096]).unwrap();
    expect(&place.run("writeback", &["resume"]), 0, "goes on as the settings say");
    wait_until_clean(&place);
    expect(&place.run("writeback", &["stop"]), 2, "possible values: pause, resume, now");
    expect(&server.stop(), 0, "");
}

/// A window of an hour that begins in so many hours, by the clock of this machine.
fn window(in_hours: u32) -> String {
    let hour = Command::new("date").arg("+%H").output().unwrap().stdout;
    let hour: u32 = String::from_utf8(hour).unwrap().trim().parse().unwrap();
    let at = |hours: u32| (hour + hours) % 24;
    format!("{:02}:00-{:02}:00", at(in_hours), at(in_hours + 1))
}

#[test]
fn dirty_data_waits_for_its_window_and_doctor_finds_a_log_that_is_full_before() {
    let place = Place::new();
    place.write_stack(&format!("destage-window = [\"{}\"]", window(5)));
    place.format();
    let server = place.serve();
    let mut nbd = place.nbd();
    for line in 0..350u64 {
        nbd.write(line * 8192, &[1; 4096]).unwrap();
        sleep(Duration::from_millis(20));
    }
    let status = json(&place, "status", &[]);
    assert_eq!(status["dirty_bytes"], 350 * 4096);
    let held = &status["writeback"]["cache"];
    let seconds = held["until_seconds"].as_f64().unwrap();
    assert!(held["held_by"] == "window" && (3.0 * 3600.0..=5.0 * 3600.0).contains(&seconds), "{held}");
    expect(&place.run("status", &[]), 0, "write-back waits for its window, which opens 20");
    let doctor = place.run("doctor", &[]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        said.contains("the log of \"cache\" is full in ") && said.contains("destage-window opens in "),
        "{said}"
    );
    // An hour that is open now.
    expect(&place.run("set", &[&format!("destage-window=[\"{}\"]", window(0)), "--save"]), 0, "");
    wait_until_clean(&place);
    expect(&server.stop(), 0, "");
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace(&window(0), "03:00-03:00")).unwrap();
    expect(&place.run("doctor", &[]), 1, "it would never open");
}

#[test]
fn a_stack_without_a_log_cache_has_nothing_to_write_back() {
    let place = Place::new();
    let text = "export = \"data\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n[device.data]\npath = \"data.img\"\n";
    fs::write(place.stack(), text).unwrap();
    let server = place.serve();
    expect(&place.run("writeback", &["pause"]), 1, "the served stack has no log cache");
    expect(&server.stop(), 0, "");
}

/// The unit was forgotten: write-back at 20 bytes a second never ends.
#[test]
fn a_rate_without_its_unit_is_refused_where_it_is_typed_and_in_a_file() {
    let place = place();
    let server = place.serve();
    expect(
        &place.run("set", &["destage-rate=20"]),
        1,
        "\"destage-rate\" is 20 bytes a second: the least is 64 KiB a second",
    );
    expect(&place.run("set", &["destage-rate=20MiB"]), 0, "");
    expect(&place.run("set", &["destage-rate=0"]), 0, "");
    expect(&server.stop(), 0, "");
    place.write_stack("destage-rate = 20");
    expect(&place.run("serve", &[]), 1, "Write the unit, like \"20MiB\"");
}
