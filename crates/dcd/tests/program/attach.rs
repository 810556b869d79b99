//! `dcd attach` without a kernel that has NBD: what it prints, what it refuses, and loop devices. `ublk.rs` has the rest, under such a kernel.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{Place, dcd, expect, skip};

/// The data disk of the place, with these lines in [serve].
fn served(place: &Place, serve: &str) {
    let text = format!(
        "export = \"data\"\n[serve]\ncontrol = \"control.sock\"\n{serve}\n[device.data]\npath = \"data.img\"\n"
    );
    fs::write(place.stack(), text).unwrap();
}

fn printed(place: &Place, serve: &str) -> String {
    served(place, serve);
    let output = place.run("attach", &["--print"]);
    expect(&output, 0, "");
    String::from_utf8(output.stdout).unwrap().replace(place.dir.path().to_str().unwrap(), "DIR")
}

#[test]
fn the_commands_of_other_programs_are_printed_without_a_server() {
    let place = Place::new();
    let nbd = printed(&place, "nbd = [\"tcp:10809\", \"unix:nbd.sock\"]\nfuse = \"mnt\"");
    assert_eq!(nbd, "modprobe nbd\nnbd-client -unix DIR/nbd.sock /dev/nbd0\n", "a unix socket goes first");
    let named = printed(&place, "nbd = \"tcp:10809\"\nnbd-name = \"it's big\"\nnbd-recovery = true");
    let command = "nbd-client 127.0.0.1 10809 -name 'it'\\''s big' /dev/nbd0\n";
    assert!(named.contains(command), "{named}");
    assert!(named.contains("ends with its server: \"dcd attach\" makes one that outlives it"), "{named}");
    let fuse = printed(&place, "fuse = \"mnt\"");
    assert_eq!(fuse, "losetup --direct-io=on --find --show DIR/mnt/disk.img\n");
    let ublk = printed(&place, "ublk = true\nnbd = \"unix:nbd.sock\"");
    assert!(ublk.starts_with("modprobe ublk_drv\ndcd serve DIR/stack.toml "), "{ublk}");
    let several = fs::read_to_string(place.stack()).unwrap().replace("ublk = true\n", "");
    let several = several.replace("export = \"data\"", "export = \"cache\"")
        + "[device.mail]\npath = \"mail.img\"\n[device.log]\npath = \"log.img\"\n\
           [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = [\"data\", \"mail\"]\n";
    fs::write(place.stack(), several).unwrap();
    let lines = String::from_utf8(place.run("attach", &["--print"]).stdout).unwrap();
    assert!(lines.contains("nbd.sock /dev/nbd0\n") && lines.contains("-name mail /dev/nbd1\n"), "{lines}");
    let lines = String::from_utf8(place.run("attach", &["--print", "--disk", "mail"]).stdout).unwrap();
    assert!(!lines.contains("nbd1") && lines.contains("-name mail /dev/nbd0\n"), "{lines}");
    served(&place, "");
    for more in [&["--print"][..], &[]] {
        let code = if more.is_empty() { "not served" } else { "it has no way to a block device" };
        expect(&place.run("attach", more), 1, code);
    }
}

#[test]
fn options_that_contradict_each_other_are_wrong_usage() {
    let place = Place::new();
    expect(&place.run("attach", &["--print", "--release"]), 2, "cannot be used with");
    expect(&place.run("attach", &["--force"]), 2, "--release");
}

#[test]
fn a_stack_that_is_not_served_is_not_attached_and_releasing_it_is_no_error() {
    let place = Place::new();
    served(&place, "nbd = \"unix:nbd.sock\"");
    expect(&place.run("attach", &[]), 1, "is the stack served? (\"dcd serve STACK\")");
    expect(&place.run("attach", &["--release"]), 0, "is not attached");
    served(&place, "ublk = true");
    expect(&place.run("attach", &["--release"]), 0, "its ublk device ends with its server");
}

fn has_nbd() -> bool {
    Path::new("/sys/module/nbd").exists()
        || Command::new("modprobe").args(["--dry-run", "--quiet", "nbd"]).status().is_ok_and(|s| s.success())
}

#[test]
fn a_kernel_without_nbd_is_told_of_with_what_helps() {
    if has_nbd() {
        return skip("a kernel without NBD is needed");
    }
    let place = Place::new();
    served(&place, "nbd = \"unix:nbd.sock\"");
    let server = place.serve();
    let output = place.run("attach", &[]);
    expect(&output, 1, "modprobe nbd");
    expect(&output, 1, "add fuse = \"DIR\"");
    expect(&server.stop(), 0, "");
}

#[test]
fn without_nbd_the_image_of_fuse_is_attached_once_and_released_when_nobody_has_it() {
    let test = "without_nbd_the_image_of_fuse_is_attached";
    let script = "test $(id -u) = 0 && test -w /dev/fuse && losetup -f";
    if !Command::new("sh").args(["-c", script]).output().is_ok_and(|output| output.status.success()) {
        return skip(&format!("{test}: needs root, FUSE and loop devices"));
    }
    let place = Place::new();
    fs::create_dir(place.path("mnt")).unwrap();
    let nbd = if has_nbd() { "" } else { "nbd = \"unix:nbd.sock\"\n" };
    served(&place, &format!("{nbd}fuse = \"mnt\""));
    let server = place.serve();
    let attach = || {
        let output = place.run("attach", &[]);
        expect(&output, 0, "/dev/loop");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let node = attach();
    assert_eq!(attach(), node, "it is attached once");
    let backing = format!("/sys/block/{}/loop/backing_file", node.strip_prefix("/dev/").unwrap());
    assert_eq!(fs::read_to_string(&backing).unwrap().trim(), place.path("mnt/disk.img").to_str().unwrap());
    let user = File::open(&node).unwrap();
    let refused = place.run("attach", &["--release"]);
    expect(&refused, 3, &format!("{node} is not released: it is in use: open in process"));
    expect(&refused, 3, "unmount what is on it");
    drop(user);
    let releases = || {
        // By its bare name, too: the stack is the same.
        let mut release = dcd();
        release.current_dir(place.dir.path()).args(["attach", "--release", "stack.toml"]).output().unwrap()
    };
    expect(&releases(), 0, "");
    assert!(!Path::new(&backing).exists(), "the loop device is free");
    expect(&releases(), 0, "is not attached");
    // Several at once make one device.
    let at_once: Vec<_> = (0..4)
        .map(|_| place.dcd().arg("attach").arg(place.stack()).stdout(Stdio::piped()).spawn().unwrap())
        .collect();
    let made: Vec<Output> = at_once.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    assert!(made.iter().all(|output| output.stdout == made[0].stdout), "{made:?}");
    let old = attach();
    // The device of a killed server is found again.
    server.kill();
    let server = place.serve();
    let again = place.run("attach", &[]);
    expect(&again, 0, &format!("{old} is left from an earlier server"));
    assert_ne!(String::from_utf8_lossy(&again.stdout).trim(), old);
    let user = File::open(&old).ok();
    let doctor = place.dcd().arg("doctor").arg(place.stack()).output().unwrap();
    if user.is_some() {
        expect(&doctor, 1, "its requests fail, and it is in use");
    }
    drop(user);
    expect(&doctor, doctor.status.code().unwrap(), &old);
    // The advice takes the old device away, and no other.
    let advice = format!("losetup --detach {old}");
    expect(&again, 0, &advice);
    expect(&doctor, doctor.status.code().unwrap(), &advice);
    assert!(Command::new("sh").args(["-c", &advice]).status().unwrap().success());
    let new = String::from_utf8_lossy(&again.stdout).trim().to_owned();
    assert_eq!(attach(), new);
    let without = place.run("attach", &[]);
    assert!(!String::from_utf8_lossy(&without.stderr).contains("is left"), "{without:?}");
    expect(&releases(), 0, "");
    // A device that another program has made of the image is found, too.
    let by_hand =
        Command::new("losetup").args(["--find", "--show"]).arg(place.path("mnt/disk.img")).output().unwrap();
    let by_hand = String::from_utf8(by_hand.stdout).unwrap().trim().to_owned();
    expect(&place.run("status", &[]), 0, &format!("attached: {by_hand}"));
    server.kill();
    let server = place.serve();
    let doctor = place.dcd().arg("doctor").arg(place.stack()).output().unwrap();
    expect(&doctor, doctor.status.code().unwrap(), &format!("losetup --detach {by_hand}"));
    assert!(Command::new("losetup").args(["--detach", &by_hand]).status().unwrap().success());
    let doctor = place.dcd().arg("doctor").arg(place.stack()).output().unwrap();
    assert!(!String::from_utf8_lossy(&doctor.stdout).contains(&by_hand), "{doctor:?}");
    for node in [&old, String::from_utf8_lossy(&again.stdout).trim()] {
        let backing = format!("/sys/block/{}/loop/backing_file", node.strip_prefix("/dev/").unwrap());
        assert!(!Path::new(&backing).exists(), "{node} is free");
    }
    expect(&server.stop(), 0, "");
}
