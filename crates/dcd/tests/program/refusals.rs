//! Every way in which cache and data disk may not belong together: each is refused with what to do, and nothing is changed.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{MIB, Place, Server, SmallFs, dcd, expect, original, skip};

/// A cache with dirty data in its log, not served.
pub fn dirty() -> Place {
    let place = Place::new();
    place.write_stack("when = \"when-full\"\nhigh-mark = 100\n");
    place.format();
    let server = place.serve();
    let mut nbd = place.nbd();
    for i in 0..16u64 {
        nbd.write(i * 65536, &[0xd1; 4096]).unwrap();
    }
    nbd.flush().unwrap();
    expect(&server.stop(), 0, "");
    place
}

/// A cache with nothing dirty, not served.
fn clean() -> Place {
    let place = dirty();
    let server = place.serve();
    expect(&place.run("flush", &["--quiet"]), 0, "");
    expect(&server.stop(), 0, "");
    place
}

fn refused(place: &Place, more: &[&str], said: &str) {
    let before = place.bare();
    match Server::start(place, more) {
        Ok(_) => panic!("it was served: {said}"),
        Err(output) => expect(&output, 3, said),
    }
    assert!(place.bare() == before, "a refusal changes nothing");
}

fn poke(place: &Place, file: &str, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(place.path(file)).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

#[test]
fn rule_11_a_missing_log_with_dirty_data_names_the_bytes_at_risk() {
    let place = dirty();
    fs::rename(place.path("log.img"), place.path("elsewhere")).unwrap();
    refused(&place, &[], "64 KiB of acknowledged writes would be lost");
    refused(&place, &["--without-cache"], "64 KiB of acknowledged writes would be lost");
    // Given up on purpose, the disk is served as it is, and the log is never used again.
    let server = place.serve_with(&["--without-cache", "--force"]);
    assert!(place.nbd().read(0, 4096).unwrap() == original(16 * MIB)[..4096]);
    expect(&server.stop(), 0, "");
    fs::rename(place.path("elsewhere"), place.path("log.img")).unwrap();
    refused(&place, &[], "never use this log again");
    expect(&place.run("rescue", &["--list"]), 4, "went on without this log");
    expect(&place.run("rescue", &["--list", "--json"]), 4, "\"given_up\":true");
}

/// Zeroes take no room in the log, and are as much of what a client was told is written as data is.
#[test]
fn zeroes_that_are_not_written_back_are_counted_wherever_data_is() {
    let place = Place::new();
    place.write_stack("when = \"high-low\"\n");
    place.format();
    let server = place.serve();
    let mut nbd = place.nbd();
    nbd.zero(4 * MIB, 9 * MIB).unwrap();
    nbd.flush().unwrap();
    expect(&place.run("status", &[]), 0, "dirty 9 MiB");
    expect(&server.stop(), 0, "");
    expect(&place.run("check", &[]), 0, "9 MiB");
    fs::rename(place.path("log.img"), place.path("elsewhere")).unwrap();
    refused(&place, &[], "9 MiB of zeroes and discards would be lost");
    fs::rename(place.path("elsewhere"), place.path("log.img")).unwrap();
    // After a kill it is not known how much it is; the log's size is no bound for zeroes.
    place.serve().kill();
    fs::rename(place.path("log.img"), place.path("elsewhere")).unwrap();
    refused(&place, &[], "and zeroes and discards of any size");
}

#[test]
fn rule_11_a_log_of_which_there_is_no_record_is_given_up_on_purpose_only_and_never_used_again() {
    let place = dirty();
    place.move_data();
    refused(&place, &["--without-cache"], "the data disk is incomplete without its cache");
    assert!(!place.record().exists(), "a refusal changes nothing");
    let server = place.serve_with(&["--without-cache", "--force"]);
    place.nbd().write_fua(0, &[9; 4096]).unwrap();
    expect(&server.stop(), 0, "");
    refused(&place, &[], "never use this log again");
    assert!(place.bare()[..4096] == [9; 4096]);
}

#[test]
fn rule_11_a_log_that_was_given_up_says_so_itself() {
    let place = dirty();
    expect(&place.serve_with(&["--without-cache", "--force"]).stop(), 0, "");
    let log = fs::read(place.path("log.img")).unwrap();
    // The disk is moved, and its record stays behind.
    fs::remove_file(place.record()).unwrap();
    refused(&place, &[], "never use this log again");
    expect(&place.run("check", &[]), 0, "given up");
    expect(&place.run("rescue", &[]), 3, "never use this log again");
    expect(&place.run("detach", &[]), 3, "never use this log again");
    expect(&place.run("rescue", &["--list"]), 4, "went on without this log");
    assert!(fs::read(place.path("log.img")).unwrap() == log && !place.record().exists());
    // It is no cache of that disk, which is served by itself as before.
    expect(&place.serve_with(&["--without-cache"]).stop(), 0, "");
    // Its data can be had yet, by name; the log stays out of use.
    let bare = place.bare();
    expect(&place.run("rescue", &["--force"]), 3, "never use this log again");
    expect(&place.run("rescue", &["--over-newer-data"]), 0, "written back: 64 KiB");
    assert!(place.bare() != bare && !place.record().exists());
    refused(&place, &[], "never use this log again");
    expect(&place.run("format", &[]), 0, "a log of");
    expect(&place.serve().stop(), 0, "");
}

#[test]
fn the_log_of_another_cache_is_not_given_up_with_the_one_that_is() {
    let place = clean();
    let other = dirty();
    fs::copy(other.path("log.img"), place.path("log.img")).unwrap();
    let before = fs::read(place.path("log.img")).unwrap();
    expect(&place.serve_with(&["--without-cache"]).stop(), 0, "");
    assert!(fs::read(place.path("log.img")).unwrap() == before);
}

#[test]
fn a_cache_on_a_cache_that_was_given_up_is_not_served_again() {
    let place = Place::new();
    write_two_caches(&place);
    for layer in ["low", "up"] {
        expect(&place.run("format", &["--layer", layer]), 0, "a log of");
    }
    let server = place.serve();
    place.nbd().write_fua(1 << 20, &[7; 4096]).unwrap();
    expect(&server.stop(), 0, "");
    let server = place.serve_with(&["--without-cache", "--force"]);
    place.nbd().write_fua(1 << 20, &[8; 4096]).unwrap();
    expect(&server.stop(), 0, "");
    refused(&place, &[], "log cache \"low\": the data disk has been written without the log");
    // A new cache below: nothing but the upper log itself knows.
    expect(&place.run("format", &["--layer", "low"]), 0, "a log of");
    refused(&place, &[], "the cache of this log was discarded");
    expect(&place.run("rescue", &["--layer", "up"]), 3, "the cache of this log was discarded");
    assert!(place.bare()[1 << 20..][..4096] == [8; 4096]);
    // It has the only copy of what was discarded.
    expect(&place.run("format", &["--layer", "up"]), 3, "in it are not on its data disk yet");
    expect(&place.run("format", &["--layer", "up", "--force"]), 0, "a log of");
    expect(&place.serve().stop(), 0, "");
}

/// A cache on a cache, of which nothing goes home by itself.
fn write_two_caches(place: &Place) {
    fs::write(
        place.stack(),
        "export = \"up\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n[device.log]\npath = \"log.img\"\nsize = \"8MiB\"\n\
         [device.upper]\npath = \"upper.img\"\nsize = \"8MiB\"\n[device.data]\npath = \"data.img\"\n\
         [layer.low]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"data\"\n\
         [layer.up]\nkind = \"log-cache\"\nlog = \"upper\"\ndata = \"low\"\nwhen = \"when-full\"\n",
    )
    .unwrap();
}

#[test]
fn a_cache_on_a_cache_is_left_out_on_purpose_only() {
    let place = Place::new();
    write_two_caches(&place);
    expect(&place.run("format", &["--layer", "low"]), 0, "a log of");
    expect(&place.run("format", &["--layer", "up"]), 0, "a log of");
    let server = place.serve();
    place.nbd().write_fua(1 << 20, &[7; 4096]).unwrap();
    expect(&server.stop(), 0, "");
    let order = format!("detach --layer up {0}; dcd detach --layer low {0}", place.stack().display());
    expect(&place.run("remove", &[]), 3, &order);
    expect(&place.run("rescue", &["--layer", "low"]), 0, "");
    refused(&place, &["--without-cache"], "the cache \"up\" stands on another one");
    expect(&place.run("detach", &["--layer", "up"]), 0, "4 KiB was written back");
    expect(&place.run("rescue", &["--layer", "low"]), 0, "written back: 4 KiB");
    let server = place.serve_with(&["--without-cache"]);
    assert_eq!(place.nbd().read(1 << 20, 4096).unwrap(), [7; 4096]);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_cache_that_was_given_up_is_taken_off_without_its_log() {
    let place = clean();
    let server = place.serve_with(&["--without-cache"]);
    // The first MiB is in every fingerprint.
    for at in [8 * MIB, MIB - 4096] {
        place.nbd().write_fua(at, &[9; 4096]).unwrap();
    }
    expect(&server.stop(), 0, "");
    expect(
        &place.run("check", &[]),
        0,
        "note: this log is not served: the data disk has been written without",
    );
    expect(&place.run("detach", &[]), 0, "the cache had been discarded before");
    assert!(!place.record().exists() && place.bare()[8 << 20..][..4096] == [9; 4096]);
    refused(&place, &[], "was detached");
    for (more, says) in [(vec![], 0), (vec!["--list"], 0), (vec!["--over-newer-data"], 0)] {
        expect(&place.run("rescue", &more), if more.is_empty() { 3 } else { says }, "");
        assert!(!place.record().exists(), "the log of a cache that is detached makes no record: {more:?}");
    }
    expect(&place.run("format", &[]), 0, "a log of");
}

#[test]
fn a_log_that_has_lost_its_newer_superblock_is_brought_home_by_name() {
    // A start that makes memory writes two superblocks of its activation, of which either is enough.
    let place = dirty().without_memory();
    let server = place.serve();
    place.nbd().write_fua(1 << 20, &[3; 4096]).unwrap();
    server.kill();
    let generation = |copy: u64| {
        let bytes = fs::read(place.path("log.img")).unwrap();
        u64::from_le_bytes(bytes[copy as usize * 8192 + 16..][..8].try_into().unwrap())
    };
    let newer = if generation(0) > generation(1) { 0 } else { 1 };
    poke(&place, "log.img", newer * 8192, &[0xee; 4096]);
    refused(&place, &[], "\"dcd rescue --over-newer-data --force\" writes back what it holds");
    expect(&place.run("rescue", &[]), 3, "the log with its newer superblock lost, or an old copy");
    expect(&place.run("rescue", &["--list"]), 4, "the log is damaged, and nothing is known to be lost");
    expect(&place.run("rescue", &["--force"]), 3, "or an old copy");
    expect(&place.run("rescue", &["--over-newer-data"]), 4, "nothing was written. --force writes the rest");
    expect(&place.run("rescue", &["--over-newer-data", "--force"]), 4, "written back: 68 KiB");
    let bare = place.bare();
    assert!(bare[1 << 20..][..4096] == [3; 4096] && bare[65536..][..4096] == [0xd1; 4096]);
}

#[test]
fn devices_that_were_cut_short_are_named_as_such() {
    let place = dirty();
    let resize = |file: &str, bytes: u64| {
        OpenOptions::new().write(true).open(place.path(file)).unwrap().set_len(bytes).unwrap();
    };
    let whole = fs::read(place.path("data.img")).unwrap();
    resize("data.img", 15 * MIB);
    for command in ["serve", "rescue", "detach"] {
        expect(&place.run(command, &[]), 3, "the data disk has become smaller: it has 15 MiB");
    }
    fs::write(place.path("data.img"), whole).unwrap();
    let log = fs::metadata(place.path("log.img")).unwrap().len();
    let last = fs::read(place.path("log.img")).unwrap()[log as usize - 4096..].to_vec();
    resize("log.img", log - 4096);
    for command in ["serve", "rescue", "detach"] {
        expect(&place.run(command, &[]), 3, "the data that it still holds is not lost");
    }
    resize("log.img", log);
    poke(&place, "log.img", log - 4096, &last);
    expect(&place.run("detach", &[]), 0, "64 KiB was written back");
}

#[test]
fn a_data_disk_that_cannot_be_written_loses_nothing_and_says_so() {
    let place = dirty();
    let text = fs::read_to_string(place.stack()).unwrap();
    let fault = "[layer.bad]\nkind = \"fault\"\nof = \"data\"\nhits = \"writes\"\nfail-after = 1\nfail-count = 1000000\n";
    fs::write(place.stack(), text.replace("data = \"data\"", "data = \"bad\"") + fault).unwrap();
    for command in ["detach", "rescue"] {
        expect(
            &place.run(command, &[]),
            1,
            "could not be written to the data disk, and are still in the log: nothing is lost",
        );
    }
    let server = place.serve();
    let mut flush = dcd().arg("flush").arg(place.stack()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    let mut said = BufReader::new(flush.stderr.take().unwrap());
    while !told.contains("not all dirty data can be written back (medium)") {
        assert!(said.read_line(&mut told).unwrap() > 0, "it ended: {told}");
    }
    expect(&place.run("status", &[]), 5, "not all dirty data can be written back (medium)");
    flush.kill().unwrap();
    flush.wait().unwrap();
    // It looks every two seconds.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    expect(&server.stop(), 0, "it stays in the log, and writing it back is tried again");
    fs::write(place.stack(), text).unwrap();
    expect(&place.run("detach", &[]), 0, "KiB was written back");
    assert!(place.bare()[65536..][..4096] == [0xd1; 4096]);
}

#[test]
fn a_missing_log_with_nothing_in_it_may_be_left_out() {
    let place = clean();
    fs::remove_file(place.path("log.img")).unwrap();
    refused(&place, &[], "--without-cache");
    let server = place.serve_with(&["--without-cache"]);
    place.nbd().write(0, &[9; 4096]).unwrap();
    expect(&server.stop(), 0, "");
    assert!(place.bare()[..4096] == [9; 4096]);
}

#[test]
fn rule_11_swapped_logs_are_refused() {
    let (one, two) = (dirty(), dirty());
    fs::copy(two.path("log.img"), one.path("log.img")).unwrap();
    refused(&one, &[], "another cache is attached");
}

/// The log is right, and the data disk is that of another stack.
#[test]
fn a_data_disk_of_another_stack_is_refused_with_the_name_of_that_stack() {
    let (one, two) = (dirty(), dirty());
    let text = fs::read_to_string(one.stack()).unwrap();
    let theirs = format!("\"{}\"", two.path("data.img").display());
    fs::write(one.stack(), text.replace("\"data.img\"", &theirs)).unwrap();
    let run = |command: &str| {
        one.dcd().env("DCD_STACK_DIR", two.dir.path()).arg(command).arg(one.stack()).output().unwrap()
    };
    let serve = || run("serve");
    expect(&serve(), 3, &format!("The disk belongs to {}", two.stack().display()));
    expect(&serve(), 3, "name the right data disk in the stack file, or the right log");
    let server = two.serve();
    let user = format!(
        "{} is in use: it is a device of {}, which is served, by process {}. Stop that first",
        two.path("data.img").display(),
        two.stack().display(),
        server.child.id()
    );
    // A server may be started again: the device may be free then.
    for (command, code) in [("serve", 1), ("check", 3), ("detach", 3)] {
        expect(&run(command), code, &user);
    }
    expect(&server.stop(), 0, "");
}

/// Exit codes are what scripts look at.
#[test]
fn each_command_has_the_same_exit_code_for_a_device_in_use_and_for_a_stack_that_does_not_exist() {
    let place = dirty();
    let server = place.serve();
    for command in ["detach", "grow", "check", "dump", "rescue", "format"] {
        expect(&place.run(command, &[]), 3, "is in use");
    }
    expect(&place.run("serve", &[]), 1, "is in use");
    let new = ["format", "--log", "log.img", "--data", "data.img", "--stack", "new.toml"];
    expect(&place.dcd().args(new).current_dir(place.dir.path()).output().unwrap(), 3, "log.img");
    expect(&server.stop(), 0, "");
    for command in
        ["flush", "status", "stop", "set", "get", "attach", "detach", "grow", "check", "serve", "remove"]
    {
        let more: &[&str] = if command == "set" { &["share=30"] } else { &[] };
        let run = |stack: &str| place.dcd().arg(command).arg(stack).args(more).output().unwrap();
        expect(&run("nobody_has_this"), 2, "\"dcd list\" shows the stacks");
        expect(&run("/nowhere/srv.toml"), 1, "/nowhere/srv.toml");
    }
}

/// A copied stack file names the control socket of another stack, and another program has its disk.
#[test]
fn a_server_of_another_stack_is_not_told_to_be_stopped_for_a_disk_that_it_does_not_have() {
    let (one, two) = (dirty(), dirty());
    let text = fs::read_to_string(two.stack()).unwrap();
    let theirs = format!("\"{}\"", one.path("control.sock").display());
    fs::write(two.path("copy.toml"), text.replace("\"control.sock\"", &theirs)).unwrap();
    let (server, user) = (one.serve(), two.serve());
    let checked = two.dcd().arg("check").arg(two.path("copy.toml")).output().unwrap();
    assert_ne!(checked.status.code(), Some(0));
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(!said.contains(&format!("process {} ", server.child.id())), "{said}");
    expect(&server.stop(), 0, "");
    expect(&user.stop(), 0, "");
}

#[test]
fn a_log_that_is_too_small_to_be_of_use_is_warned_of() {
    let place = Place::new();
    for (mib, is_small) in [(3, true), (8, true), (64, false)] {
        let name = format!("log-{mib}.img");
        let (stack, size) = (format!("{mib}.toml"), format!("{mib}MiB"));
        fs::write(place.path(&format!("{mib}.img")), original(MIB)).unwrap();
        let data = format!("{mib}.img");
        let args = ["format", "--log", &name, "--log-size", &size, "--data", &data, "--stack", &stack];
        let formatted = place.dcd().args(args).current_dir(place.dir.path()).output().unwrap();
        expect(&formatted, 0, "");
        let said = String::from_utf8_lossy(&formatted.stderr).into_owned();
        assert_eq!(said.contains("MiB is small: after "), is_small, "{said}");
    }
    let args = ["format", "--log", "x.img", "--log-size", "2MiB", "--data", "data.img", "--stack", "x.toml"];
    let formatted = place.dcd().args(args).current_dir(place.dir.path()).output().unwrap();
    expect(&formatted, 3, "needs ");
    assert!(!place.path("x.img").exists() && !place.path("x.toml").exists());
}

#[test]
fn swapped_data_disks_are_refused_also_without_a_record() {
    let place = dirty();
    let other: Vec<u8> = original(16 * MIB).into_iter().map(|byte| !byte).collect();
    fs::write(place.path("data.img"), other).unwrap();
    refused(&place, &[], "");
    fs::remove_file(place.record()).unwrap();
    let Err(output) = Server::start(&place, &[]) else { panic!("it was served") };
    expect(&output, 3, "");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!told.contains("record") && !place.record().exists(), "no record was made: {told}");
}

#[test]
fn a_data_disk_that_changed_behind_the_cache_is_refused() {
    let place = dirty();
    expect(&place.run("rescue", &["--list"]), 0, "dirty: 64 KiB");
    poke(&place, "data.img", 8192, &[1; 512]);
    refused(&place, &[], "");
    expect(
        &place.run("rescue", &["--list"]),
        4,
        "changed without the cache: 4 KiB of the data disk, the first at LBA 16",
    );
    expect(&place.run("rescue", &["--list", "--json"]), 4, "\"changed_lbas\":[16]");
    for more in [&[][..], &["--force"]] {
        expect(
            &place.run("rescue", more),
            3,
            "\"dcd rescue --over-newer-data\" writes the log's data over the changes",
        );
    }
    expect(&place.run("rescue", &["--over-newer-data"]), 0, "written back: 64 KiB");
}

#[test]
fn rule_11_an_old_copy_of_the_log_is_refused() {
    let place = dirty();
    fs::copy(place.path("log.img"), place.path("snapshot")).unwrap();
    let server = place.serve();
    place.nbd().write_fua(1 << 20, &[3; 4096]).unwrap();
    expect(&server.stop(), 0, "");
    fs::copy(place.path("snapshot"), place.path("log.img")).unwrap();
    refused(&place, &[], "old copy");
}

/// A stack whose data disk has a byte of 2 at [`AT`], and is complete; its log held a 1 there.
const AT: u64 = 1 << 20;

/// Serves a stack, and has `between` happen after a 1 was written, and before it is a 2.
fn written_twice(between: impl FnOnce(&Place)) -> Place {
    let place = Place::new();
    place.format();
    let server = place.serve();
    expect(&place.run("writeback", &["pause"]), 0, "");
    place.nbd().write_fua(AT, &[1; 4096]).unwrap();
    between(&place);
    place.nbd().write_fua(AT, &[2; 4096]).unwrap();
    expect(&place.run("flush", &[]), 0, "");
    expect(&server.stop(), 0, "");
    place
}

#[test]
fn rule_11_a_log_from_before_the_last_stop_is_refused_and_nothing_is_lost() {
    let copied = written_twice(|place| {
        fs::copy(place.path("log.img"), place.path("copy")).unwrap();
    });
    fs::copy(copied.path("copy"), copied.path("log.img")).unwrap();
    // Another file has the log's place while it is served.
    let moved = written_twice(|place| {
        fs::rename(place.path("log.img"), place.path("log.old")).unwrap();
        fs::copy(place.path("log.old"), place.path("log.img")).unwrap();
    });
    for place in [copied, moved] {
        refused(&place, &[], "If it is gone, nothing is lost: the data disk is complete without it");
        for more in [&[][..], &["--force"], &["--over-newer-data"], &["--over-newer-data", "--force"]] {
            expect(&place.run("rescue", more), 3, "is an old copy");
        }
        expect(&place.run("rescue", &["--list"]), 0, "nothing is lost: the log");
        let detached = place.run("detach", &[]);
        expect(&detached, 0, "its log is out of date, and the data disk is complete without it");
        assert_eq!(place.bare()[AT as usize..][..4096], [2; 4096]);
        refused(&place, &[], "was detached");
    }
    // The log itself is served.
    let place = written_twice(|place| {
        fs::rename(place.path("log.img"), place.path("log.old")).unwrap();
        fs::copy(place.path("log.old"), place.path("log.img")).unwrap();
    });
    fs::rename(place.path("log.old"), place.path("log.img")).unwrap();
    let server = place.serve();
    assert_eq!(place.nbd().read(AT, 4096).unwrap(), [2; 4096]);
    expect(&server.stop(), 0, "");
}

/// A loop device that begins at an offset of a file, for as long as this lives.
struct Loop(String);

impl Loop {
    fn new(file: &Path, offset: u64) -> Option<Loop> {
        let made =
            Command::new("losetup").args(["-f", "--show", "-o", &offset.to_string()]).arg(file).output();
        let made = made.ok().filter(|made| made.status.success())?;
        Some(Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn rule_11_a_part_of_a_cached_file_at_another_offset_is_refused() {
    let place = dirty();
    let Some(node) = Loop::new(&place.path("data.img"), MIB) else {
        return skip("rule_11_a_part_of_a_cached_file_at_another_offset: no loop device can be made");
    };
    let other = Place::new();
    let text = fs::read_to_string(other.stack()).unwrap();
    let stack = |log: &str, data: &str| {
        let text = text.replace("\"log.img\"", &format!("\"{log}\""));
        fs::write(other.stack(), text.replace("\"data.img\"", &format!("\"{data}\""))).unwrap();
    };
    stack("log.img", &node.0);
    for force in [&[][..], &["--force"]] {
        expect(&other.run("format", force), 3, "as a partition of it, its whole disk, or at another offset");
    }
    stack(&node.0, "data.img");
    expect(&other.run("format", &[]), 3, "is the data disk of the cache");
    fs::write(
        other.stack(),
        format!("export = \"d\"\n[serve]\nnbd = \"unix:nbd.sock\"\n[device.d]\npath = \"{}\"\n", node.0),
    )
    .unwrap();
    expect(&other.run("serve", &[]), 3, "as a partition of it");
    // The same with the part cached, and the whole file named.
    drop(node);
    expect(&place.run("detach", &[]), 0, "");
    let node = Loop::new(&place.path("data.img"), MIB).unwrap();
    stack("log.img", &node.0);
    other.format();
    drop(node);
    expect(&place.run("format", &["--force"]), 3, "at another offset of its file");
    let node = Loop::new(&place.path("data.img"), MIB).unwrap();
    stack("log.img", &node.0);
    expect(&other.run("detach", &[]), 0, "");
    drop(node);
    expect(&place.run("format", &[]), 0, "");
}

#[test]
fn rule_11_a_record_that_is_older_than_the_log_decides_nothing() {
    let place = Place::new();
    place.format();
    expect(&place.serve().stop(), 0, "");
    let record = fs::read(place.record()).unwrap();
    let server = place.serve();
    expect(&place.run("writeback", &["pause"]), 0, "");
    place.nbd().write_fua(AT, &[3; 4096]).unwrap();
    expect(&server.stop(), 0, "");
    fs::write(place.record(), record).unwrap();
    refused(&place, &["--without-cache"], "the data disk is incomplete without its cache");
    expect(&place.run("format", &[]), 3, "of acknowledged writes would be lost");
    let server = place.serve();
    assert_eq!(place.nbd().read(AT, 4096).unwrap(), [3; 4096]);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_disk_that_was_moved_here_without_its_record_is_served() {
    let place = dirty();
    fs::remove_file(place.record()).unwrap();
    let server = place.serve();
    assert_eq!(place.nbd().read(65536, 4096).unwrap(), [0xd1; 4096]);
    assert!(place.record().exists(), "the record is made anew");
    expect(&server.stop(), 0, "");
}

#[test]
fn a_damaged_record_is_refused() {
    let place = dirty();
    let text = fs::read_to_string(place.record()).unwrap();
    fs::write(place.record(), text.replace("dirty", "clean")).unwrap();
    refused(&place, &[], "damaged");
}

#[test]
fn smaller_disks_are_refused_before_any_write() {
    let place = dirty();
    let log = OpenOptions::new().write(true).open(place.path("log.img")).unwrap();
    log.set_len(4 * MIB).unwrap();
    refused(&place, &[], "");
    log.set_len(8 * MIB).unwrap();
    let place = dirty();
    let data = OpenOptions::new().write(true).open(place.path("data.img")).unwrap();
    data.set_len(8 * MIB).unwrap();
    refused(&place, &[], "");
}

#[test]
fn a_data_disk_that_has_grown_is_served_with_its_old_size_until_that_is_asked_for() {
    let place = dirty();
    let bytes = place.bare().len() as u64;
    let grow = || {
        let data = OpenOptions::new().write(true).open(place.path("data.img")).unwrap();
        data.set_len(data.metadata().unwrap().len() + 4 * MIB).unwrap();
    };
    grow();
    let before = fs::read(place.path("data.img")).unwrap();
    let server = place.serve();
    let mut nbd = place.nbd();
    assert_eq!(nbd.bytes, bytes, "as the cache knows it");
    nbd.write(bytes - 4096, &[0xe5; 4096]).unwrap();
    nbd.flush().unwrap();
    server.kill();
    grow();
    // It is the disk of that cache as before, whatever its size.
    let stack = fs::read_to_string(place.stack()).unwrap();
    let plain = "export = \"data\"\n[serve]\nnbd = \"unix:nbd.sock\"\n[device.data]\npath = \"data.img\"\n";
    fs::write(place.stack(), plain).unwrap();
    refused(&place, &[], "is attached to this disk");
    fs::write(place.stack(), stack).unwrap();
    fs::rename(place.path("log.img"), place.path("elsewhere")).unwrap();
    refused(&place, &[], "the log is missing");
    fs::rename(place.path("elsewhere"), place.path("log.img")).unwrap();
    expect(&place.serve().stop(), 0, "has grown by 8 MiB");
    let all = bytes + 8 * MIB;
    expect(&place.run("grow", &[]), 0, "\"cache\" now has 24 MiB, 8 MiB more than before");
    expect(&place.run("grow", &[]), 0, "\"cache\" has 24 MiB, which is all of its data disk");
    expect(&place.run("check", &[]), 0, ", stopped");
    let server = place.serve();
    let mut nbd = place.nbd();
    assert_eq!(nbd.bytes, all);
    nbd.write(all - 4096, &[0xe6; 4096]).unwrap();
    nbd.flush().unwrap();
    server.kill();
    // That is for good.
    expect(&place.run("check", &[]), 0, "");
    let server = place.serve();
    assert_eq!(place.nbd().bytes, all);
    expect(&server.stop(), 0, "");
    expect(&place.run("detach", &[]), 0, "detached");
    assert!(!place.record().exists());
    let after = fs::read(place.path("data.img")).unwrap();
    for (end, tag) in [(bytes, 0xe5), (all, 0xe6)] {
        assert!(after[end as usize - 4096..end as usize] == [tag; 4096], "{tag:x}");
    }
    assert!(after[bytes as usize..before.len()] == before[bytes as usize..]);
}

/// The record is written first: a crash before the log knows leaves it as it was, and others are kept off.
#[test]
fn a_disk_that_has_grown_and_is_another_one_is_refused_and_the_cache_stays_as_it_was() {
    let place = dirty();
    let data = OpenOptions::new().write(true).open(place.path("data.img")).unwrap();
    let bytes = data.metadata().unwrap().len();
    data.set_len(bytes + 4 * MIB).unwrap();
    poke(&place, "data.img", 4096, &[0x77; 4096]);
    expect(&place.run("grow", &[]), 3, "was changed without this cache, or is another disk");
    poke(&place, "data.img", 4096, &original(16 * MIB)[4096..8192]);
    let server = place.serve();
    assert_eq!(place.nbd().bytes, bytes);
    expect(&place.run("grow", &[]), 3, "in use");
    expect(&server.stop(), 0, "has grown by 4 MiB");
    expect(&place.run("grow", &[]), 0, "4 MiB more");
    let server = place.serve();
    assert_eq!(place.nbd().bytes, bytes + 4 * MIB);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let place = dirty();
    let mut log = fs::read(place.path("log.img")).unwrap();
    for at in [0, 8192] {
        // The version stands after the magic; the checksum, over the block with its own field zero, after the state.
        log[at + 8] = 99;
        log[at + 12..at + 16].fill(0);
        let crc = crc32c::crc32c(&log[at..at + 4096]);
        log[at + 12..at + 16].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(place.path("log.img"), &log).unwrap();
    refused(&place, &[], "version");
    assert!(fs::read(place.path("log.img")).unwrap() == log);
}

#[test]
fn a_hostile_superblock_is_no_log() {
    let place = dirty();
    for at in [0, 8192] {
        poke(&place, "log.img", at + 8, &[0xff; 4088]);
    }
    refused(&place, &[], "");
}

#[test]
fn a_data_disk_is_not_named_by_what_is_on_it() {
    let place = Place::new();
    let mut format = dcd();
    format.args(["format", "--log-size", "16MiB", "--data", "/dev/disk/by-uuid/1-2", "--log"]);
    let output = format.arg(place.path("log")).output().unwrap();
    expect(&output, 3, "name the disk by /dev/disk/by-id");
    assert!(!place.path("log").exists());
}

#[test]
fn a_second_server_is_refused() {
    let place = dirty();
    let server = place.serve();
    let other = dcd().arg("serve").arg("--quiet").arg(place.stack()).output().unwrap();
    assert_ne!(other.status.code(), Some(0));
    for command in ["check", "detach", "rescue", "format"] {
        expect(&place.run(command, &[]), 3, "in use");
        expect(&place.run(command, &[]), 3, &format!("process {} serves it", server.child.id()));
    }
    assert_eq!(place.nbd().read(0, 4096).unwrap(), [0xd1; 4096], "the first one goes on");
    expect(&server.stop(), 0, "");
}

#[test]
fn format_refuses_what_is_worth_something() {
    let place = dirty();
    expect(&place.run("format", &[]), 3, "64 KiB of acknowledged writes would be lost");
    // A log with something else on it.
    let place = Place::new();
    poke(&place, "log.img", 1080, b"\x53\xef");
    expect(&place.run("format", &[]), 3, "ext4");
    expect(&place.run("format", &["--force"]), 0, "");
    // The log of another disk's cache.
    let other = Place::new();
    fs::copy(dirty().path("log.img"), other.path("log.img")).unwrap();
    expect(&other.run("format", &[]), 3, "64 KiB in it are not on its data disk yet");
}

/// A log that failed while all went home is out of date, and costs nothing: no --force is needed to make another.
#[test]
fn a_log_that_failed_and_has_nothing_is_made_anew_without_force() {
    a_log_fails(|server, _| expect(&server.stop(), 0, ""));
    // A thread records what is written back, soon after it is.
    a_log_fails(|server, place| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !fs::read_to_string(place.record()).unwrap().contains("\"dirty-bytes\": 0") {
            assert!(Instant::now() < deadline, "the record says that nothing is dirty");
            std::thread::sleep(Duration::from_millis(20));
        }
        server.kill();
    });
}

fn a_log_fails(ends: impl FnOnce(Server, &Place)) {
    let place = Place::new();
    place.format();
    let text = fs::read_to_string(place.stack()).unwrap();
    let fault = "[layer.bad]\nkind = \"fault\"\nof = \"log\"\nhits = \"writes\"\nfail-after = 40\nfail-count = 1000000\n";
    fs::write(place.stack(), text.replace("log = \"log\"\ndata", "log = \"bad\"\ndata") + fault).unwrap();
    let server = place.serve();
    let mut nbd = place.nbd();
    for i in 0..100u64 {
        nbd.write_fua(i * 16384, &[0xab; 4096]).unwrap();
    }
    expect(&place.run("flush", &["--quiet"]), 0, "");
    // The log has an older copy of this block.
    nbd.write_fua(0, &[0xcd; 4096]).unwrap();
    ends(server, &place);
    fs::write(place.stack(), text).unwrap();
    refused(&place, &[], "no data is at risk");
    let newer = place.bare();
    for more in [&[][..], &["--force"], &["--over-newer-data"], &["--force", "--over-newer-data"]] {
        expect(&place.run("rescue", more), 3, "no data is at risk");
    }
    let listed = place.run("rescue", &["--list"]);
    expect(&listed, 0, "nothing is lost");
    assert!(listed.stderr.is_empty(), "no alarm: {listed:?}");
    expect(&place.run("rescue", &["--list", "--json"]), 0, "\"given_up\":true");
    // The log has only older data: that is no reason against a new one.
    expect(&place.run("detach", &[]), 0, "detached; ");
    assert!(place.bare() == newer && newer[..4096] == [0xcd; 4096], "nothing was overwritten");
    expect(&place.run("format", &[]), 0, "a log of");
    let server = place.serve();
    assert_eq!(place.nbd().read(99 * 16384, 4096).unwrap(), [0xab; 4096]);
    expect(&server.stop(), 0, "");
}

/// Rule 13. The log takes no more writes from one moment on: what was acknowledged and flushed before is served and goes home,
/// what comes later goes to the data disk, status says so, and this log is never used again.
#[test]
fn rule_13_a_log_that_fails_while_served_loses_nothing_and_is_never_used_again() {
    let place = Place::new();
    let fault = "[layer.bad]\nkind = \"fault\"\nof = \"log\"\nhits = \"writes\"\nfail-after = 40\nfail-count = 1000000\n";
    place.format();
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace("log = \"log\"\ndata", "log = \"bad\"\ndata") + fault).unwrap();
    let server = place.serve();
    let mut nbd = place.nbd();
    for i in 0..200u64 {
        nbd.write(i * 16384, &[0xab; 4096]).unwrap();
        nbd.flush().unwrap();
    }
    expect(&place.run("status", &[]), 5, "log-failed");
    for i in 0..200u64 {
        let read = nbd.read(i * 16384, 4096).unwrap_or_else(|e| panic!("block {i}: {e}"));
        assert_eq!(read, [0xab; 4096], "block {i}");
    }
    expect(&place.run("flush", &["--quiet"]), 0, "");
    server.kill();
    let bare = place.bare();
    for i in 0..200usize {
        assert!(bare[i * 16384..][..4096] == [0xab; 4096], "on the data disk, block {i}");
    }
    fs::write(place.stack(), text).unwrap();
    refused(&place, &[], "never use this log again");
}

#[test]
fn the_data_disk_of_a_cache_is_no_log_and_no_member() {
    // Log and data swapped in the stack file: what the refusal of `serve` advises must not cost the data.
    let place = dirty();
    let before = place.bare();
    let text = fs::read_to_string(place.stack()).unwrap();
    let swapped = text.replace("log = \"log\"\ndata = \"data\"", "log = \"data\"\ndata = \"log\"");
    assert_ne!(text, swapped);
    fs::write(place.stack(), &swapped).unwrap();
    refused(&place, &[], "swapped");
    refused(&place, &["--without-cache"], "is the log of the cache");
    expect(&place.run("format", &[]), 3, "is the data disk of the cache");
    // The same without a record.
    let record = fs::read(place.record()).unwrap();
    place.move_data();
    expect(&place.run("format", &[]), 3, "has the log of the cache");
    assert!(place.bare() == before);
    // A member of an array, and a spare.
    fs::write(place.record(), record).unwrap();
    let devices: String =
        ["a", "b"].map(|name| format!("[device.{name}]\npath = \"{name}\"\nsize = \"16MiB\"\n")).concat();
    let array = format!(
        "export = \"array\"\n[device.data]\npath = \"data.img\"\n{devices}\
         [layer.array]\nkind = \"raid\"\nlevel = \"raid5\"\nof = [\"a\", \"b\", \"data\"]\n"
    );
    fs::write(place.stack(), array).unwrap();
    let create = dcd().args(["array", "create"]).arg(place.stack()).output().unwrap();
    expect(&create, 3, "is the data disk of the cache");
    assert!(place.bare() == before);
    // Nothing of this has cost anything.
    fs::write(place.stack(), text).unwrap();
    let server = place.serve();
    assert_eq!(place.nbd().read(65536, 4096).unwrap(), [0xd1; 4096]);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_log_is_not_served_as_a_disk() {
    let place = dirty();
    let bare = |more: &str| {
        let text = format!(
            "export = \"log\"\n[serve]\nnbd = \"unix:nbd.sock\"\n[device.log]\npath = \"log.img\"\n{more}"
        );
        fs::write(place.stack(), text).unwrap();
    };
    bare("");
    let before = fs::read(place.path("log.img")).unwrap();
    refused(&place, &[], "is the log of the cache");
    assert!(fs::read(place.path("log.img")).unwrap() == before);
    bare("read-only = true\n");
    expect(&place.serve().stop(), 0, "");
    // One that was detached is a disk like any other.
    place.write_stack("");
    expect(&place.run("detach", &[]), 0, "");
    bare("");
    expect(&place.serve().stop(), 0, "");
}

#[test]
fn a_rescue_from_the_log_of_another_cache_is_refused_also_with_force() {
    let (place, other) = (dirty(), dirty());
    let log = fs::read(place.path("log.img")).unwrap();
    fs::copy(other.path("log.img"), place.path("log.img")).unwrap();
    let (data, record) = (place.bare(), fs::read(place.record()).unwrap());
    for more in [vec![], vec!["--force", "--over-newer-data"]] {
        expect(&place.run("rescue", &more), 3, "another cache is attached");
    }
    assert!(place.bare() == data);
    assert_eq!(fs::read(place.record()).unwrap(), record, "the disk still belongs to its cache");
    fs::write(place.path("log.img"), log).unwrap();
    expect(&place.run("rescue", &["--force"]), 0, "written back: 64 KiB");
}

#[test]
fn a_format_that_cannot_be_completed_leaves_nothing() {
    let place = Place::new();
    let format = |stack: &str| {
        let mut command = dcd();
        command.arg("format").arg("--log").arg(place.path("new.img")).args(["--log-size", "8MiB", "--data"]);
        command.arg(place.path("data.img")).arg("--stack").arg(place.path(stack)).output().unwrap()
    };
    expect(&format("nowhere/disk.toml"), 1, "there is no directory");
    assert!(!place.record().exists() && !place.path("new.img").exists());
    expect(&format("disk.toml"), 0, "serve it with");
    // The disk has a cache now.
    fs::remove_file(place.path("new.img")).unwrap();
    expect(&format("other.toml"), 3, "a cache is attached");
    assert!(!place.path("other.toml").exists() && !place.path("new.img").exists());
}

#[test]
fn more_memory_than_the_machine_has_is_refused_in_words() {
    let place = Place::new();
    place.format();
    place.write_stack("destage-memory = \"1000TiB\"");
    match Server::start(&place, &[]) {
        Ok(_) => panic!("it was served"),
        Err(output) => expect(&output, 1, "of RAM, and this machine has"),
    }
}

#[test]
fn what_was_typed_is_what_a_message_speaks_of() {
    let place = Place::new();
    let nowhere = place.path("nowhere");
    let said = format!("dcd: {}: there is no such file", nowhere.display());
    let format =
        dcd().arg("format").arg("--log").arg(&nowhere).arg("--data").arg(place.path("data.img")).output();
    expect(&format.unwrap(), 1, &said);
    expect(&dcd().args(["array", "assemble"]).arg(&nowhere).output().unwrap(), 1, &said);
}

/// The log, and the data disk: all bytes of the first have their space.
fn assert_allocated(path: &Path) {
    use std::os::unix::fs::MetadataExt;
    let log = fs::metadata(path).unwrap();
    assert!(log.blocks() * 512 >= log.size(), "{} of {} bytes", log.blocks() * 512, log.size());
}

#[test]
fn a_log_that_is_formatted_has_its_space_however_it_was_made() {
    // Made by truncate, and named in a stack file, or by options.
    let place = Place::new();
    place.format();
    assert_allocated(&place.path("log.img"));
    for size in [&["--log-size", "8MiB"][..], &[]] {
        let place = Place::new();
        if !size.is_empty() {
            fs::remove_file(place.path("log.img")).unwrap();
        }
        let mut command = dcd();
        command.arg("format").arg("--log").arg(place.path("log.img")).args(size).arg("--data");
        expect(&command.arg(place.path("data.img")).output().unwrap(), 0, "a log of");
        assert_allocated(&place.path("log.img"));
    }
}

#[test]
fn a_log_that_does_not_fit_its_file_system_is_refused_with_the_figures() {
    let Some(small) = SmallFs::mount("a log that does not fit", 4 * MIB) else { return };
    let place = Place::new();
    let log = small.path("log.img");
    fs::File::create(&log).unwrap().set_len(8 * MIB).unwrap();
    let mut command = dcd();
    command.arg("format").arg("--log").arg(&log).arg("--data").arg(place.path("data.img"));
    let output = command.arg("--stack").arg(place.path("new.toml")).output().unwrap();
    expect(&output, 1, "needs 8 MiB, 8 MiB of it are not allocated yet, and the file system has 4 MiB free");
    assert!(!place.record().exists() && !place.path("new.toml").exists());
    assert_eq!(std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&log).unwrap()), 0, "it keeps no space");
}

#[test]
fn a_full_file_system_under_the_record_keeps_no_disk_from_starting() {
    let Some(small) = SmallFs::mount("a full file system under the record", 20 * MIB) else { return };
    let place = Place::new();
    fs::rename(place.path("log.img"), place.path("log")).unwrap();
    fs::copy(place.path("data.img"), small.path("data.img")).unwrap();
    let data = small.path("data.img").display().to_string();
    let text = fs::read_to_string(place.stack()).unwrap();
    let text = text.replace("data.img", &data).replace("log.img", "log");
    fs::write(place.stack(), text).unwrap();
    place.format();
    small.fill();
    // It was clean: that it is not any more has to be on the medium before a client writes.
    let server = place.serve();
    let record = || fs::read_to_string(small.path("data.img.dcd")).unwrap();
    assert!(record().contains("\"state\": \"dirty\""), "{}", record());
    place.nbd().write_fua(8 * MIB, &[7; 4096]).unwrap();
    expect(&server.stop(), 0, "this attachment record was overwritten in place");
    assert!(!small.path("data.img.dcd.new").exists());
    expect(&place.run("detach", &[]), 0, "detached");
    assert!(fs::read(small.path("data.img")).unwrap()[8 << 20..][..4096] == [7; 4096]);
}

/// A copy has no record, and the log knows its content. What is written back to it would be missing on the original.
#[test]
fn a_copy_of_a_data_disk_does_not_get_the_data_of_its_log() {
    let place = dirty();
    fs::write(place.path("other.img"), place.bare()).unwrap();
    let stack = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), stack.replace("data.img", "other.img")).unwrap();
    let log = fs::read(place.path("log.img")).unwrap();
    for (command, args) in [
        ("serve", [].as_slice()),
        ("detach", &[]),
        ("remove", &[]),
        ("rescue", &[]),
        ("rescue", &["--force"]),
        ("rescue", &["--over-newer-data"]),
    ] {
        let said = format!("is of another disk, which is there, too: {}", place.path("data.img").display());
        expect(&place.run(command, args), 3, &said);
    }
    assert!(fs::read(place.path("other.img")).unwrap() == place.bare());
    assert!(fs::read(place.path("log.img")).unwrap() == log);
    // A disk that was renamed without its record is no copy.
    fs::rename(place.path("data.img"), place.path("other.img")).unwrap();
    expect(&place.serve().stop(), 0, "");
    fs::rename(place.path("other.img"), place.path("data.img")).unwrap();
    fs::write(place.stack(), stack).unwrap();
    expect(&place.run("detach", &[]), 0, "64 KiB was written back");
    assert!((0..16).all(|i| place.bare()[i * 65536..][..4096] == [0xd1; 4096]));
}

#[test]
fn a_disk_that_lacks_data_is_not_called_complete_because_its_log_was_detached() {
    let place = dirty();
    let (data, record) = (place.bare(), fs::read(place.record()).unwrap());
    expect(&place.run("detach", &[]), 0, "");
    // Both are as they were, as if another disk had been in this one's place meanwhile.
    fs::write(place.path("data.img"), data).unwrap();
    fs::write(place.record(), record).unwrap();
    for command in ["detach", "remove"] {
        expect(&place.run(command, &[]), 3, "says that this disk lacks");
    }
    expect(&place.run("rescue", &["--list"]), 4, "says that this disk lacks");
    expect(&place.run("detach", &["--force"]), 0, "");
}
