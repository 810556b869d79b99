//! `dcd create`, `dcd list` and `dcd remove` on files, with what this machine has for block devices: FUSE and loop devices at least.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::{MIB, Place, expect, original, skip, tool};

/// A place whose stacks have names; its servers end with the test.
struct Named(Place);

impl Named {
    /// None, with a line that says so, where no block device can be made.
    fn new(test: &str) -> Option<Named> {
        let script = "test $(id -u) = 0 && test -w /dev/fuse && losetup -f";
        if !Command::new("sh").args(["-c", script]).output().is_ok_and(|output| output.status.success()) {
            skip(&format!("{test}: needs root, FUSE and loop devices"));
            return None;
        }
        let place = Place::new();
        fs::remove_file(place.stack()).unwrap();
        fs::create_dir(place.path("state")).unwrap();
        Some(Named(place))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut dcd = self.0.dcd();
        dcd.args(args).current_dir(self.0.dir.path());
        dcd.env("DCD_STACK_DIR", self.0.path("etc")).env("DCD_RUN_DIR", self.0.path("run"));
        dcd
    }

    fn dcd(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn create(&self) -> Output {
        self.dcd(&["create", "srv", "--data", "data.img", "--log", "log.img"])
    }

    fn file(&self) -> PathBuf {
        self.0.path("etc/srv.toml")
    }

    /// The only stack, as "dcd list" has it.
    fn listed(&self) -> serde_json::Value {
        let output = self.dcd(&["list", "--json"]);
        expect(&output, 0, "");
        let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
        list[0].clone()
    }

    /// Asserts that no trace of the cache is left, and that the disk has this content.
    fn is_plain(&self, content: &[u8]) {
        assert!(self.0.bare() == content, "the disk has its content");
        assert!(!self.0.record().exists() && !self.file().exists());
        assert!(!self.0.path("state/srv.fuse").exists() && !self.0.path("run/srv.log").exists());
        let events = fs::read_dir(self.0.path("state/events")).into_iter().flatten().count();
        assert_eq!(events, 0, "another stack may get this name");
        expect(&self.dcd(&["list"]), 0, "there is no stack in ");
        expect(&self.dcd(&["remove", "srv"]), 2, "\"dcd list\" shows the stacks");
    }

    /// Ends a server as a crash would.
    fn kill_server(&self) {
        let of = self.file();
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            if words.nth(1) == Some(b"serve") && words.any(|word| word == of.as_os_str().as_encoded_bytes()) {
                let pid = process.file_name();
                let _ = Command::new("kill").arg("-KILL").arg(&pid).status();
                while process.path().join("fd").read_dir().is_ok_and(|mut fds| fds.next().is_some()) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if self.file().exists() {
            self.dcd(&["attach", "--release", "--force", "srv"]);
            self.kill_server();
            let _ = Command::new("umount").arg("-l").arg(self.0.path("state/srv.fuse")).output();
        }
    }
}

/// The block device that "dcd create" has named.
fn device(created: &Output) -> File {
    let said = String::from_utf8_lossy(&created.stdout).into_owned();
    let node = said.lines().find_map(|line| line.split_once(" is ready")).expect(&said).0.to_owned();
    File::options().read(true).write(true).open(node).unwrap()
}

fn write(device: &File, at: u64, fill: u8) {
    device.write_all_at(&[fill; 4096], at).unwrap();
    device.sync_all().unwrap();
}

#[test]
fn a_disk_that_is_mounted_is_refused_with_its_mount_point() {
    let test = "a_disk_that_is_mounted_is_refused_with_its_mount_point";
    let Some(named) = Named::new(test) else { return };
    let Some(mkfs) = tool(test, "mkfs.ext4") else { return };
    let run = |program: &Path, args: &[&str]| {
        let mut run = Command::new(program);
        run.args(args).current_dir(named.0.dir.path()).output().unwrap()
    };
    let losetup = Path::new("losetup");
    let made = run(losetup, &["--find", "--show", "data.img"]);
    let node = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    run(&mkfs, &["-q", "-F", &node]);
    fs::create_dir(named.0.path("mnt")).unwrap();
    run(Path::new("mount"), &[&node, "mnt"]);
    let refused = named.dcd(&["create", "srv", "--data", &node, "--log", "log.img"]);
    run(Path::new("umount"), &["mnt"]);
    run(losetup, &["--detach", &node]);
    expect(&refused, 3, &format!("{node}: in use: {node}, mounted on {}", named.0.path("mnt").display()));
    expect(&refused, 3, "/mnt what to do: unmount it, or stop what uses it");
}

#[test]
fn a_log_that_is_named_twice_has_two_legs() {
    let Some(named) = Named::new("a_log_that_is_named_twice_has_two_legs") else { return };
    let legs = ["--log", "a.img", "--log", "b.img", "--log-size", "8MiB"];
    let create = |more: &[&str]| named.dcd(&[&["create", "srv", "--data", "data.img"], more].concat());
    expect(&create(&["--log", "a.img", "--log", "./a.img", "--log-size", "8MiB"]), 1, "it is named twice");
    assert!(!named.0.path("a.img").exists() && !named.file().exists());
    let created = create(&legs);
    expect(&created, 0, " is ready");
    write(&device(&created), MIB, 7);
    expect(&named.dcd(&["log", "status", "srv"]), 0, "2 of 2 legs");
    expect(&create(&legs), 0, " is ready");
    expect(&create(&["--log", "a.img"]), 1, "the name srv is taken");
    // A directory for the image is no work for the administrator.
    expect(&named.dcd(&["attach", "--release", "srv"]), 0, "");
    expect(&named.dcd(&["stop", "srv"]), 0, "");
    let image = named.0.path("state/srv.fuse");
    fs::remove_dir(&image).unwrap();
    expect(&create(&legs), 0, " is ready");
    expect(&named.dcd(&["remove", "srv"]), 0, "data.img is a plain disk again");
    let mut content = original(16 * MIB);
    content[MIB as usize..][..4096].fill(7);
    named.is_plain(&content);
    let formatted =
        ["format", "--log", "a.img", "--log", "b.img", "--data", "data.img", "--stack", "two.toml"];
    expect(&named.dcd(&formatted), 0, "two.toml");
    let text = fs::read_to_string(named.0.path("two.toml")).unwrap();
    assert!(text.contains("log = [\"log-1\", \"log-2\"]"), "{text}");
}

#[test]
fn a_disk_has_a_cache_after_one_command_and_is_plain_again_after_another() {
    let Some(named) = Named::new("a_disk_has_a_cache_after_one_command") else { return };
    let created = named.create();
    expect(&created, 0, " is ready; it is served until this machine stops");
    expect(&created, 0, "never mount or check data.img itself from now on");
    let user = device(&created);
    write(&user, MIB, 7);
    let listed = named.listed();
    assert!(listed["name"] == "srv" && listed["is_served"] == true, "{listed}");
    assert!(
        listed["dirty_bytes"].as_u64().is_some()
            && listed["data"] == named.0.path("data.img").to_str().unwrap()
    );
    expect(&named.dcd(&["status", "srv"]), 0, "srv");
    expect(&named.dcd(&["status", "srv.toml"]), 1, "srv.toml");
    expect(&named.create(), 0, " is ready");
    // In use: nothing is changed.
    expect(&named.dcd(&["remove", "srv"]), 3, "unmount what is on it");
    assert!(named.listed()["is_served"] == true);
    let taken =
        named.dcd(&["create", "srv", "--data", "data.img", "--log", "other.img", "--log-size", "8MiB"]);
    expect(&taken, 1, "the name srv is taken");
    assert!(!named.0.path("other.img").exists());
    let other =
        named.dcd(&["create", "srv2", "--data", "data.img", "--log", "other.img", "--log-size", "8MiB"]);
    expect(&other, 3, "");
    assert!(!named.0.path("etc/srv2.toml").exists() && !named.0.path("other.img").exists());
    drop(user);
    expect(&named.dcd(&["flush", "srv"]), 0, "");
    expect(&named.dcd(&["remove", "srv"]), 0, "data.img is a plain disk again");
    let mut content = original(16 * MIB);
    content[MIB as usize..][..4096].fill(7);
    named.is_plain(&content);
}

#[test]
fn a_cache_that_comes_from_another_machine_is_served_as_it_is() {
    let Some(named) = Named::new("a_cache_that_comes_from_another_machine") else { return };
    let user = device(&named.create());
    expect(&named.dcd(&["writeback", "srv", "pause"]), 0, "");
    write(&user, MIB, 7);
    drop(user);
    // A second stack for the same disks is refused here.
    let second = named.dcd(&["create", "srv2", "--data", "data.img", "--log", "log.img"]);
    expect(&second, 3, "");
    let as_it_is = "log.img has the log of this disk's cache, which is served as it is";
    let mut block = [0; 4096];
    // Without the stack file; with it; and with a data disk that a copy has left without its mark. Then with an empty log.
    for step in 0..4 {
        expect(&named.dcd(&["attach", "--release", "srv"]), 0, "");
        expect(&named.dcd(&["stop", "srv"]), 0, "");
        let known = named.listed()["dirty_bytes"].as_u64().unwrap();
        assert!((known > 0) == (step < 3), "{known}");
        match step {
            0 => {
                fs::remove_file(named.file()).unwrap();
                fs::remove_file(named.0.record()).unwrap();
            }
            1 => fs::remove_file(named.0.record()).unwrap(),
            _ => named.0.move_data(),
        }
        if step > 0 {
            // Nothing tells what the log has.
            let one = named.listed();
            assert!(one["dirty_bytes"].is_null() && one["dirty_as_of"].is_null(), "{one}");
            expect(&named.dcd(&["list"]), 0, " ? ");
            expect(&named.dcd(&["status", "srv"]), 1, "its log has perhaps acknowledged writes");
            let other = ["create", "srv", "--data", "data.img", "--log", "other.img"];
            expect(&named.dcd(&other), 1, "correct them in that file");
        }
        let created = named.create();
        expect(&created, 0, as_it_is);
        device(&created).read_exact_at(&mut block, MIB).unwrap();
        assert_eq!(block, [7; 4096]);
        if step == 2 {
            expect(&named.dcd(&["flush", "srv"]), 0, "");
        } else {
            expect(&named.dcd(&["writeback", "srv", "pause"]), 0, "");
            write(&device(&created), MIB, 7);
        }
    }
    expect(&named.dcd(&["remove", "srv"]), 0, "data.img is a plain disk again");
}

#[test]
fn a_create_that_would_lose_something_changes_nothing() {
    let Some(named) = Named::new("a_create_that_would_lose_something") else { return };
    let create = |name: &str, more: &[&str]| {
        let args = [&["create", name, "--data", "data.img"], more].concat();
        named.dcd(&args)
    };
    for odd in ["a-b", "a b", ".a", "", "ä", "a/b", "a.toml"] {
        assert_eq!(create(odd, &["--log", "log.img"]).status.code(), Some(2), "{odd}");
    }
    expect(&create("srv", &[]), 2, "--log");
    let mistyped = ["--log", "/dev/no-such-disk", "--log-size", "8MiB"];
    expect(&create("srv", &mistyped), 1, "there is no device /dev/no-such-disk");
    let formatted = [&["format", "--stack", "other.toml", "--data", "data.img"], &mistyped[..]].concat();
    expect(&named.dcd(&formatted), 1, "there is no device /dev/no-such-disk");
    assert!(!Path::new("/dev/no-such-disk").exists());
    expect(&create("srv", &["--log", "log.img", "--same-disk", "4MiB"]), 2, "cannot be used with");
    expect(&create("srv", &["--log", "none.img"]), 1, "none.img");
    expect(&create("srv", &["--log", "data.img"]), 1, "is the same file as device");
    expect(&create("srv", &["--same-disk", "12MiB"]), 1, "at most half");
    expect(&create("srv", &["--same-disk", "12"]), 2, "write 12MiB, for example");
    expect(&create("srv", &["--log", "new.img", "--log-size", "64"]), 2, "write 64MiB, for example");
    expect(&create("srv", &["--log", "new.img", "--log-size", "64KiB"]), 2, "too few for a log");
    // A file system on the log, and on a disk that is to have its own log.
    let mut super_block = [0; 2048];
    super_block[1080..1082].copy_from_slice(b"\x53\xef");
    fs::write(named.0.path("log.img"), [super_block.as_slice(), &[0; 8 << 20]].concat()).unwrap();
    expect(&create("srv", &["--log", "log.img"]), 3, "ext4 file system on it");
    let same = ["create", "srv", "--data", "log.img", "--same-disk", "2MiB"];
    expect(&named.dcd(&same), 3, "put the log on another device: --log PATH");
    // Content without a signature: at the start, at the end, and in the middle.
    for at in [0, 8 * MIB - 1, 4 * MIB + 100] {
        let mut text = vec![0; 8 << 20];
        let letter = b"Dear";
        let end = (at as usize + letter.len()).min(text.len());
        text[at as usize..end].copy_from_slice(&letter[..end - at as usize]);
        if at == 4 * MIB + 100 {
            // A larger piece: between the ends, only samples are read.
            text[3 << 20..5 << 20].fill(b'x');
        }
        fs::write(named.0.path("log.img"), &text).unwrap();
        expect(
            &create("srv", &["--log", "log.img"]),
            3,
            "log.img has content that dcd does not know (at byte ",
        );
        expect(&create("srv", &["--log", "log.img"]), 3, "check that it is the right device");
        expect(&named.dcd(&same), 3, "has content that dcd does not know");
        let formatted = ["format", "--log", "log.img", "--data", "data.img", "--stack", "other.toml"];
        expect(&named.dcd(&formatted), 3, "has content that dcd does not know");
        assert!(fs::read(named.0.path("log.img")).unwrap() == text && !named.0.path("other.toml").exists());
    }
    let nothing_made = || fs::read_dir(named.0.path("etc")).map_or(0, Iterator::count);
    assert_eq!(nothing_made(), 0, "no stack file");
    assert!(named.0.bare() == original(16 * MIB) && !named.0.record().exists());
}

#[test]
fn a_create_whose_server_is_refused_has_its_exit_code() {
    let Some(named) = Named::new("a_create_whose_server_is_refused") else { return };
    expect(&named.create(), 0, " is ready");
    named.kill_server();
    fs::rename(named.0.path("log.img"), named.0.path("away.img")).unwrap();
    let refused = named.create();
    expect(&refused, 3, "the server has ended");
    expect(&refused, 3, "dcd: srv is not served: mend the following");
    fs::rename(named.0.path("away.img"), named.0.path("log.img")).unwrap();
    expect(&named.dcd(&["remove", "srv"]), 0, "is a plain disk again");
    named.is_plain(&original(16 * MIB));
}

#[test]
fn a_stack_whose_only_disk_is_gone_is_given_up_and_its_log_keeps_what_it_has() {
    let Some(named) = Named::new("a_stack_whose_only_disk_is_gone") else { return };
    let created = named.create();
    expect(&created, 0, " is ready");
    expect(&named.dcd(&["writeback", "srv", "pause"]), 0, "");
    write(&device(&created), MIB, 7);
    expect(&named.dcd(&["remove", "srv", "--force"]), 1, "has one that is there");
    let (data, away) = (named.0.path("data.img"), named.0.path("away.img"));
    // Deleted while it is served, it is not closed.
    fs::rename(&data, &away).unwrap();
    expect(&named.dcd(&["remove", "srv", "--force"]), 3, "is missing while it is served");
    fs::rename(&away, &data).unwrap();
    expect(&named.dcd(&["attach", "--release", "srv"]), 0, "");
    expect(&named.dcd(&["stop", "srv"]), 0, "");
    let log = fs::read(named.0.path("log.img")).unwrap();
    fs::rename(&data, &away).unwrap();
    for command in
        [&["serve", "--without-cache"][..], &["detach", "--force"], &["rescue", "--list"], &["doctor"]]
    {
        let said = named.dcd(&[command, &["srv"]].concat());
        expect(&said, said.status.code().unwrap(), "\"dcd remove STACK --force\" gives up the stack");
        assert!(!said.status.success());
    }
    let refused = named.dcd(&["remove", "srv"]);
    expect(&refused, 3, "reconnect it, or correct its path in ");
    expect(&refused, 3, "--force\" gives up the stack. The log stays as it is. Nothing was changed");
    let removed = named.dcd(&["remove", "srv", "--force"]);
    expect(&removed, 0, "data.img is missing, and may lack what the log ");
    expect(&named.dcd(&["list"]), 0, "there is no stack in ");
    assert!(fs::read(named.0.path("log.img")).unwrap() == log && !named.file().exists());
    // It was not gone.
    fs::rename(&away, &data).unwrap();
    let created = named.create();
    expect(&created, 0, "which is served as it is");
    let mut block = [0; 4096];
    device(&created).read_exact_at(&mut block, MIB).unwrap();
    assert_eq!(block, [7; 4096]);
    expect(&named.dcd(&["remove", "srv"]), 0, "is a plain disk again");
}

#[test]
fn what_is_on_the_log_is_overwritten_where_that_is_forced() {
    let Some(named) = Named::new("what_is_on_the_log_is_overwritten") else { return };
    fs::write(named.0.path("log.img"), vec![b'x'; 8 << 20]).unwrap();
    let create = ["create", "srv", "--data", "data.img", "--log", "log.img"];
    expect(&named.dcd(&create), 3, "add --force");
    expect(&named.dcd(&[&create[..], &["--force"]].concat()), 0, " is ready");
    expect(&named.dcd(&["remove", "srv"]), 0, "is a plain disk again");
    // The log of a cache that is out of use is overwritten without that.
    expect(&named.dcd(&create), 0, " is ready");
    expect(&named.dcd(&["remove", "srv"]), 0, "is a plain disk again");
    named.is_plain(&original(16 * MIB));
}

#[test]
fn a_disk_with_its_own_log_keeps_its_data_where_a_plain_disk_has_it() {
    let Some(named) = Named::new("a_disk_with_its_own_log") else { return };
    File::create(named.0.path("data.img")).unwrap().set_len(64 * MIB).unwrap();
    let create = || named.dcd(&["create", "srv", "--data", "data.img", "--same-disk", "16MiB"]);
    let created = create();
    expect(&created, 0, " is ready");
    let user = device(&created);
    for at in [0, 20 * MIB, 48 * MIB - 4096] {
        write(&user, at, 9);
    }
    drop(user);
    expect(&create(), 0, " is ready");
    expect(&named.dcd(&["remove", "srv"]), 0, "is a plain disk again");
    let bare = named.0.bare();
    assert_eq!(bare.len() as u64, 64 * MIB);
    let mut content = bare.clone();
    content[..48 * MIB as usize].fill(0);
    for at in [0, 20 * MIB, 48 * MIB - 4096] {
        content[at as usize..][..4096].fill(9);
    }
    named.is_plain(&content);
}

/// Both commands and the server are killed at many times; each is then run again, and nothing is lost.
#[test]
fn a_create_or_remove_that_is_killed_is_run_again() {
    let Some(named) = Named::new("a_create_or_remove_that_is_killed") else { return };
    let mut content = original(16 * MIB);
    let mut killed = 0;
    for round in 0..12u64 {
        let after = |step: u64| Duration::from_millis(step * step * 3);
        let mut cut = |args: &[&str], after: Duration| {
            let quiet = Stdio::null;
            let mut child = named.command(args).stdout(quiet()).stderr(quiet()).spawn().unwrap();
            std::thread::sleep(after);
            killed += u32::from(child.try_wait().unwrap().is_none());
            let _ = child.kill();
            child.wait().unwrap();
        };
        cut(&["create", "srv", "--data", "data.img", "--log", "log.img"], after(round));
        let created = named.create();
        expect(&created, 0, " is ready");
        let (at, fill) = (round * MIB, round as u8 + 1);
        write(&device(&created), at, fill);
        content[at as usize..][..4096].fill(fill);
        if round % 3 == 0 {
            named.kill_server();
        }
        cut(&["remove", "srv"], after(round));
        if named.file().exists() {
            expect(&named.dcd(&["remove", "srv"]), 0, "is a plain disk again");
        }
        named.is_plain(&content);
    }
    assert!(killed > 0, "no command was still running");
    assert!(!Path::new(&named.0.path("etc/srv.toml.new")).exists());
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Without ublk and NBD, all disks of a stack are reached in the same way: by loop devices over their images.
#[test]
fn each_disk_of_a_stack_has_a_device_that_is_shown_made_and_released_as_that_of_the_first() {
    let Some(named) = Named::new("each_disk_of_a_stack_has_a_device") else { return };
    fs::write(named.0.path("more.img"), original(4 * MIB)).unwrap();
    let created = named.create();
    expect(&created, 0, " is ready");
    let text = String::from_utf8_lossy(&created.stdout).into_owned();
    let first = text.split_whitespace().next().unwrap().to_owned();
    let add = ["create", "more", "--data", "more.img", "--log", "srv"];
    let added = named.dcd(&add);
    expect(&added, 0, "is data disk 2 of the log");
    let text = String::from_utf8_lossy(&added.stdout).into_owned();
    let second = text.lines().find_map(|line| line.trim().strip_prefix("mount ")).expect(&text);
    let second = second.split_whitespace().next().unwrap().to_owned();
    assert!(first != second && Path::new(&second).exists(), "{first} {second}");
    expect(&named.dcd(&add), 0, &second);
    let shown = || {
        let (one, status) = (named.listed(), json(&named.dcd(&["status", "srv", "--json"])));
        let of_status = [&status["block_devices"], &status["disks"][1]["block_devices"]];
        assert_eq!([&one["block_devices"], &one["others"][0]["block_devices"]], of_status);
        of_status.map(|devices| devices[0].as_str().unwrap_or("").to_owned())
    };
    if first.starts_with("/dev/loop") {
        assert_eq!(shown(), [first.clone(), second.clone()]);
        for command in [&["list"][..], &["status", "srv"]] {
            for device in [&first, &second] {
                expect(&named.dcd(command), 0, device);
            }
        }
        assert_eq!(named.dcd(&["attach", "srv"]).stdout, format!("{first}\n{second}\n").as_bytes());
        expect(&named.dcd(&["attach", "srv", "--disk", "more", "--release"]), 0, "");
        assert_eq!(shown(), [first, String::new()]);
        expect(&named.dcd(&["attach", "srv", "--disk", "more", "--release"]), 0, "is not attached");
        let again = named.dcd(&["attach", "srv", "--disk", "more"]);
        assert_eq!(String::from_utf8_lossy(&again.stdout).trim(), shown()[1]);
    }
    expect(&named.dcd(&["attach", "srv", "--disk", "none"]), 1, "its disks are data, more");
    let printed = named.dcd(&["attach", "--print", "srv", "--disk", "more"]);
    expect(&printed, 0, "");
    // A disk is removed with its device, unless that is in use.
    let second = named.dcd(&["attach", "srv", "--disk", "more"]).stdout;
    let user = File::open(String::from_utf8(second).unwrap().trim()).unwrap();
    expect(&named.dcd(&["remove", "srv", "--disk", "more"]), 3, "is in use");
    drop(user);
    expect(&named.dcd(&["remove", "srv", "--disk", "more"]), 0, "\"more\" is a plain disk again");
    assert!(named.0.path("run/srv.log").exists(), "the server in the background says there what it has to");
    expect(&named.dcd(&["remove", "srv"]), 0, "is a plain disk again");
    named.is_plain(&original(16 * MIB));
    assert!(!named.0.path("run/srv.log").exists() && !named.0.path("state/srv.fuse-more").exists());
}

/// The file of a stack that is served has no control socket: it is not called stopped.
#[test]
fn a_stack_that_is_served_without_a_control_socket_is_listed_as_in_use() {
    let place = Place::new();
    let text = fs::read_to_string(place.stack()).unwrap().replace("control = \"control.sock\"\n", "");
    fs::write(place.stack(), text).unwrap();
    place.format();
    let run = |command: &[&str]| {
        let mut dcd = place.dcd();
        dcd.args(command).env("DCD_STACK_DIR", place.dir.path()).env("DCD_RUN_DIR", place.path("run"));
        dcd.output().unwrap()
    };
    expect(&run(&["list"]), 0, "stopped");
    let server = place.serve();
    let one = json(&run(&["list", "--json"]))[0].clone();
    assert_eq!(
        (&one["state"], &one["is_served"], &one["dirty_bytes"]),
        (&"in use".into(), &true.into(), &serde_json::Value::Null)
    );
    expect(&run(&["list"]), 0, "in use");
    expect(&run(&["status"]), 0, "add control = ");
    expect(&server.stop(), 0, "");
    expect(&run(&["list"]), 0, "stopped");
}

/// A machine without systemd, or a test's stacks: no command of systemd is named.
#[test]
fn a_stopped_stack_names_the_command_that_starts_it_here_and_a_list_tells_zeroes_from_data() {
    let place = Place::new();
    fs::create_dir(place.path("etc")).unwrap();
    fs::create_dir(place.path("run")).unwrap();
    let dcd = |args: &[&str]| {
        let mut dcd = place.dcd();
        dcd.args(args).current_dir(place.dir.path());
        dcd.env("DCD_STACK_DIR", place.path("etc")).env("DCD_RUN_DIR", place.path("run"));
        dcd
    };
    let run = |args: &[&str]| dcd(args).output().unwrap();
    let formatted = run(&["format", "--log", "log.img", "--data", "none.img", "--stack", "srv"]);
    expect(&formatted, 1, "none.img: there is no such file or device: check the path\n");
    let formatted = run(&["format", "--log", "log.img", "--data", "data.img", "--stack", "srv"]);
    expect(&formatted, 0, "serve it with: dcd serve ");
    for stopped in [run(&["status"]), run(&["status", "srv"])] {
        let said = String::from_utf8_lossy(&[stopped.stdout, stopped.stderr].concat()).into_owned();
        assert!(said.contains("dcd serve ") && !said.contains("systemctl"), "{said}");
    }
    let text = fs::read_to_string(place.path("etc/srv.toml")).unwrap();
    let held = text.replace("promise = \"flush\"", "promise = \"flush\"\nidle-empty = \"3600s\"");
    fs::write(place.path("etc/srv.toml"), held).unwrap();
    let mut server = dcd(&["serve", "srv"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let socket = place.path("run/srv.sock");
    let mut nbd = loop {
        match crate::common::Nbd::connect(&socket) {
            Ok(nbd) => break nbd,
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    nbd.write(0, &[7; 4096]).unwrap();
    nbd.zero(4 * MIB, 8 * MIB).unwrap();
    nbd.flush().unwrap();
    expect(&run(&["list"]), 0, "4 KiB and 8 MiB to zero");
    expect(&run(&["status"]), 0, "4 KiB and 8 MiB to zero");
    nbd.disconnect().unwrap();
    fs::write(place.path("more.img"), crate::common::original(4 * MIB)).unwrap();
    let more = run(&["create", "more", "--data", "more.img", "--log", "srv"]);
    expect(&more, 0, "never mount or check more.img itself from now on");
    expect(&more, 0, "for a block device of it: dcd attach ");
    let mut nbd = crate::common::Nbd::connect_to(&socket, "more").unwrap();
    nbd.write(MIB, &[7; 8192]).unwrap();
    nbd.zero(2 * MIB, 2 * MIB).unwrap();
    nbd.disconnect().unwrap();
    // Each disk has a line, with its part.
    let listed = String::from_utf8(run(&["list"]).stdout).unwrap();
    let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    let path = |disk: &str| place.path(disk).display().to_string();
    assert_eq!(lines[0], ["STACK", "STATE", "DIRTY", "DEVICE", "DATA", "DISK"]);
    assert_eq!(lines[1], ["srv", "dirty", "12", "KiB", "*"]);
    assert_eq!(lines[2], ["data", "4", "KiB", "*", "-", &path("data.img")]);
    assert_eq!(lines[3], ["more", "8", "KiB", "*", "-", &path("more.img")]);
    assert!(listed.contains("\n* srv: 12 KiB and 10 MiB to zero\n"), "{listed}");
    assert!(listed.ends_with("\n* srv, more: 8 KiB and 2 MiB to zero\n"), "{listed}");
    // The server of a stack file that has become wrong is asked all the same.
    let right = fs::read_to_string(place.path("etc/srv.toml")).unwrap();
    for wrong in [right.replace("log-cache", "cash"), "export = cash".to_owned()] {
        fs::write(place.path("etc/srv.toml"), wrong).unwrap();
        expect(&run(&["status", "srv"]), 0, "dirty");
        let listed = String::from_utf8(run(&["list"]).stdout).unwrap();
        let lines: Vec<&str> = listed.lines().collect();
        assert!(lines[1].starts_with("srv    dirty  12 KiB *  "), "{listed}");
        assert!(lines[2].starts_with("srv: ") && lines[2].contains("srv.toml:"), "{listed}");
    }
    fs::write(place.path("etc/srv.toml"), "export = cash").unwrap();
    fs::rename(place.path("run/srv.control"), place.path("run/away")).unwrap();
    let listed = String::from_utf8(run(&["list"]).stdout).unwrap();
    assert!(listed.lines().nth(1).unwrap().starts_with("srv    ?  "), "{listed}");
    fs::rename(place.path("run/away"), place.path("run/srv.control")).unwrap();
    fs::write(place.path("etc/srv.toml"), right).unwrap();
    expect(&run(&["status", "srv"]), 0, "more, 4 MiB: dirty 8 KiB and 2 MiB to zero");
    let disks = json(&run(&["status", "srv", "--json"]))["layers"]["cache"]["disks"].clone();
    let parts = ["dirty_bytes", "dirty_data_bytes", "dirty_zeroes_bytes", "dirty_discard_bytes"];
    assert_eq!(parts.map(|part| disks[1][part].as_u64().unwrap()), [8192 + 2 * MIB, 8192, 2 * MIB, 0]);
    expect(&run(&["stop", "srv"]), 0, "");
    server.wait().unwrap();
    // A stopped stack has the amounts of its stop.
    let listed = String::from_utf8(run(&["list"]).stdout).unwrap();
    assert!(listed.contains("10.0 MiB at its stop") && listed.contains("2.0 MiB at its stop"), "{listed}");
    expect(&run(&["status"]), 0, "10.0 MiB at its stop");
    let one = json(&run(&["list", "--json"]))[0].clone();
    assert_eq!((&one["dirty_as_of"], &one["is_served"]), (&"stop".into(), &false.into()));
    // A disk that the stack has already, and that is missing.
    let add = ["create", "more", "--data", "more.img", "--log", "srv"];
    expect(&run(&add), 0, "is data disk 2 of the log");
    fs::rename(place.path("more.img"), place.path("away.img")).unwrap();
    expect(&run(&add), 3, "more.img) of \"cache\" is missing: it does not exist");
    fs::rename(place.path("away.img"), place.path("more.img")).unwrap();
    assert_eq!(one["others"][0]["dirty_bytes"].as_u64(), Some(8192 + 2 * MIB));
    let mut server = dcd(&["serve", "srv"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !run(&["status", "srv"]).status.success() {
        std::thread::sleep(Duration::from_millis(20));
    }
    // A flush that is done before its first display says nothing.
    let flushed = String::from_utf8(run(&["flush", "srv"]).stderr).unwrap();
    assert!(flushed.is_empty() || flushed.ends_with(" written back\n"), "{flushed}");
    expect(&run(&["stop", "srv"]), 0, "");
    server.wait().unwrap();
    expect(&run(&["detach", "srv"]), 0, "");
    let one = json(&run(&["list", "--json"]))[0].clone();
    assert_eq!((&one["state"], &one["dirty_bytes"]), (&"detached".into(), &0.into()));
    expect(&run(&["status", "srv"]), 1, "Its cache was detached, so a start is refused: \"dcd format ");
    expect(&run(&["status"]), 0, "dcd doctor");
}

/// The loop device over a file is the data disk of another stack: that is named, and not the command that would detach it.
#[test]
fn the_file_behind_the_data_disk_of_a_served_stack_is_in_use_by_that_stack() {
    let test = "the_file_behind_the_data_disk_of_a_served_stack";
    let Some(named) = Named::new(test) else { return };
    let losetup = |args: &[&str]| {
        let mut losetup = Command::new("losetup");
        let made = losetup.args(args).current_dir(named.0.dir.path()).output().unwrap();
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    };
    let node = losetup(&["--find", "--show", "data.img"]);
    let created = named.dcd(&["create", "srv", "--data", &node, "--log", "log.img"]);
    let other = ["create", "other", "--data", "data.img", "--log", "other.img", "--log-size", "8MiB"];
    let refused = named.dcd(&other);
    let removed = named.dcd(&["remove", "srv"]);
    losetup(&["--detach", &node]);
    expect(&created, 0, " is ready");
    expect(&refused, 3, &format!("it is a device of {}", named.file().display()));
    expect(&removed, 0, "is a plain disk again");
}

/// The stack file is the only description of the array.
#[test]
fn a_stack_file_with_an_array_is_not_removed() {
    let Some(named) = Named::new("a_stack_file_with_an_array_is_not_removed") else { return };
    let text = "export = \"array\"\n[serve]\nfuse = \"mnt\"\n[layer.array]\nkind = \"raid\"\nof = [\"a\", \"b\", \"c\"]\n\
                [device.a]\npath = \"a.img\"\n[device.b]\npath = \"b.img\"\n[device.c]\npath = \"c.img\"\n";
    fs::create_dir_all(named.file().parent().unwrap()).unwrap();
    fs::write(named.file(), text).unwrap();
    expect(&named.dcd(&["remove", "srv"]), 3, "describes the array \"array\", too");
    assert_eq!(fs::read_to_string(named.file()).unwrap(), text);
}
