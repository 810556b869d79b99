//! `dcd doctor`: which stacks would start, and that looking changes nothing.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Place, dcd, expect, skip};

/// Returns the finding about the stack itself: its level, its text, and what to do. All other findings are about the machine.
fn of_stack(place: &Place) -> (String, String, String) {
    let output = place.run("doctor", &["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let findings = report["findings"].as_array().unwrap();
    let bad = findings.iter().any(|finding| finding["level"] == "bad");
    assert_eq!((report["ok"] == false, output.status.code()), (bad, Some(i32::from(bad))), "{report}");
    let found = findings.iter().find(|finding| finding["about"] == "stack").expect("every stack has one");
    (text(&found["level"]), text(&found["found"]), text(&found["action"]))
}

fn expect_of_stack(place: &Place, level: &str, found: &str, action: &str) {
    let (is, what, todo) = of_stack(place);
    assert!(is == level && what.contains(found) && todo.contains(action), "{is}: {what} -> {todo}");
}

#[test]
fn a_stack_that_would_start_is_told_from_one_that_would_not_and_nothing_is_changed() {
    let place = Place::new();
    expect_of_stack(&place, "bad", "would not start", "");
    place.format();
    let server = place.serve();
    place.nbd().write_fua(0, &[7; 4096]).unwrap();
    expect_of_stack(&place, "ok", "is served, and dirty", "");
    server.kill();
    let files = ["log.img", "data.img", "data.img.dcd", "stack.toml"];
    let all = || files.map(|name| fs::read(place.path(name)).unwrap());
    let before = all();
    expect_of_stack(&place, "ok", "would start, with 4 KiB that the data disk lacks", "");
    assert!(before == all(), "it has recovered the log in RAM");
    expect(
        &place.run("status", &[]),
        1,
        "its log has acknowledged writes (how many is known after the start",
    );
    fs::rename(place.path("log.img"), place.path("away.img")).unwrap();
    expect_of_stack(&place, "bad", "would not start", "dcd serve --without-cache");
    fs::rename(place.path("away.img"), place.path("log.img")).unwrap();
    let server = place.serve();
    assert_eq!(place.nbd().read(0, 4096).unwrap(), [7; 4096]);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_start_that_has_no_way_to_its_clients_is_told() {
    let place = Place::new();
    place.format();
    expect_of_stack(&place, "ok", "is not served, and would start", "");
    let text = fs::read_to_string(place.stack()).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = format!("metrics = \"tcp:{}\"\n", taken.local_addr().unwrap());
    let ublk = [("ublk = true\n", "there is no /dev/ublk-control")];
    let ublk = ublk.into_iter().filter(|_| !std::path::Path::new("/dev/ublk-control").exists());
    let others = [
        ("fuse = \"data.img\"\n", "a file has this name"),
        ("vhost-user = \"unix:data.img\"\n", "it exists and is not a socket"),
        (tcp.as_str(), "cannot listen on 127.0.0.1"),
    ];
    for (more, found) in others.into_iter().chain(ublk) {
        place.add_to_serve(more);
        expect_of_stack(&place, "bad", found, "");
        assert!(place.run("serve", &[]).status.code() == Some(1), "{more}");
        fs::write(place.stack(), &text).unwrap();
    }
    let _other = std::os::unix::net::UnixListener::bind(place.path("nbd.sock")).unwrap();
    expect_of_stack(&place, "bad", "has this socket", "");
}

/// The data disk's record knows what was in the log, also where the log is a file that "dcd format" would make.
#[test]
fn a_missing_log_is_told_as_a_start_tells_it() {
    let place = Place::new();
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace("\"log.img\"\n", "\"log.img\"\nsize = \"8MiB\"\n")).unwrap();
    place.format();
    let server = place.serve();
    place.nbd().write_fua(0, &[7; 4096]).unwrap();
    server.kill();
    fs::remove_file(place.path("log.img")).unwrap();
    let (level, found, action) = of_stack(&place);
    let said = String::from_utf8_lossy(&place.run("serve", &[]).stderr).into_owned();
    let reason = found.strip_prefix("would not start: ").unwrap_or(&found);
    assert!(level == "bad" && said.contains(reason) && said.contains(&action), "{found} -> {action}: {said}");
    assert!(found.contains("the data disk is incomplete without it"), "{found}");
    assert!(action.starts_with("bring the log back") && !action.contains("stop the server"), "{action}");
}

#[test]
fn a_stack_file_that_is_wrong_is_told_with_the_others() {
    let place = Place::new();
    place.format();
    fs::write(place.path("wrong.toml"), "export = \"cache\"\nexprot = 1\n").unwrap();
    let output = dcd().arg("doctor").args([place.stack(), place.path("wrong.toml")]).output().unwrap();
    expect(&output, 1, "wrong.toml");
    expect(&output, 1, "is not served, and would start");
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace("nbd = \"unix:nbd.sock\"\n", "")).unwrap();
    expect_of_stack(&place, "bad", "there is no front-end", "");
}

#[test]
fn a_log_in_ram_is_warned_of_by_format_and_doctor_unless_writes_go_through() {
    let place = Place::new();
    let Ok(ram) = tempfile::tempdir_in("/dev/shm") else { return skip("no RAM disk") };
    let log = ram.path().join("log.img");
    fs::File::create(&log).unwrap().set_len(8 << 20).unwrap();
    let text = fs::read_to_string(place.stack()).unwrap();
    let in_ram = text.replace("\"log.img\"", &format!("{:?}", log.display().to_string()));
    fs::write(place.stack(), &in_ram).unwrap();
    let warning = "is in RAM: it is lost at each restart of the machine";
    expect(&place.run("format", &[]), 0, warning);
    expect(&place.run("doctor", &[]), 1, warning);
    fs::write(place.stack(), in_ram.replace("data = \"data\"", "data = \"data\"\nwrites = \"through\""))
        .unwrap();
    let said = String::from_utf8_lossy(&place.run("doctor", &[]).stdout).into_owned();
    assert!(!said.contains(warning), "{said}");
    fs::write(place.stack(), text).unwrap();
    let formatted = place.run("format", &["--force"]);
    expect(&formatted, 0, "");
    assert!(!String::from_utf8_lossy(&formatted.stderr).contains(warning));
}

#[test]
fn a_loop_device_over_a_file_that_is_served_is_told_with_the_way_out() {
    let test = "a_loop_device_over_a_file_that_is_served_is_told_with_the_way_out";
    let place = Place::new();
    place.format();
    let server = place.serve();
    let made = Command::new("losetup")
        .args(["--find", "--show", "--read-only"])
        .arg(place.path("data.img"))
        .output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        return skip(&format!("{test}: needs loop devices"));
    };
    let node = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let advice = format!("losetup --detach {node}");
    let until = |told: bool| {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let (level, _, action) = of_stack(&place);
            if action.contains(&advice) == told {
                return assert_eq!(level == "bad", told);
            }
            assert!(Instant::now() < end, "{action}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    until(true);
    expect(&place.run("status", &[]), 0, &format!("the loop device {node} is over the same file"));
    assert!(Command::new("losetup").args(["--detach", &node]).status().unwrap().success());
    until(false);
    expect(&server.stop(), 0, &format!("{node} is detached from its file again"));
}
