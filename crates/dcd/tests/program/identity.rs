//! A cached disk is known by what it is, whatever it is called; and a log that was taken off a disk is never used with it again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{MIB, Place, Server, expect, skip, tool};

/// A stack that serves one file or device and knows of no cache.
fn plain(place: &Place, disk: &Path) -> PathBuf {
    let text = format!(
        "export = \"d\"\n[serve]\nnbd = \"unix:plain.sock\"\ncontrol = \"plain.control\"\n[device.d]\npath = \"{}\"\n",
        disk.display()
    );
    let path = place.path("plain.toml");
    fs::write(&path, text).unwrap();
    path
}

/// Serves a disk without its cache: that has to be refused, so it ends.
fn serve_plain(place: &Place, disk: &Path) -> Output {
    let stack = plain(place, disk);
    place.dcd().arg("serve").arg("--quiet").arg(stack).output().unwrap()
}

fn format_another(place: &Place, disk: &Path) -> Output {
    let mut format = place.dcd();
    format
        .arg("format")
        .arg("--log")
        .arg(place.path("other.log"))
        .args(["--log-size", "8MiB", "--data"])
        .arg(disk);
    format.output().unwrap()
}

fn has_attributes(place: &Place) -> bool {
    let file = File::open(place.path("data.img")).unwrap();
    dcd_io::read_mark(&file, c"user.dcd").is_ok_and(|mark| mark.is_some())
}

#[test]
fn a_cached_file_is_refused_under_each_of_its_names() {
    let place = Place::new();
    place.format();
    if !has_attributes(&place) {
        skip("a_cached_file_is_refused_under_each_of_its_names: extended attributes");
        return;
    }
    let [link, renamed] = ["link.img", "renamed.img"].map(|name| place.path(name));
    fs::hard_link(place.path("data.img"), &link).unwrap();
    expect(&serve_plain(&place, &link), 3, "is attached to this disk");
    expect(&format_another(&place, &link), 3, "a cache is attached to the data disk already");
    fs::rename(place.path("data.img"), &renamed).unwrap();
    expect(&serve_plain(&place, &renamed), 3, "is attached to this disk");
    // Its record is lost: the file itself says that it has a cache.
    fs::remove_file(place.record()).unwrap();
    expect(&serve_plain(&place, &renamed), 3, "as its attribute user.dcd says");
    expect(&format_another(&place, &renamed), 3, "serve it with that cache");
    // With the cache it is served, and has a record again.
    fs::rename(&renamed, place.path("data.img")).unwrap();
    expect(&place.serve().stop(), 0, "");
    assert!(place.record().exists());
}

#[test]
fn a_file_whose_record_is_lost_is_given_up_on_purpose_only_and_its_log_with_it() {
    for log_is_there in [true, false] {
        let place = Place::new();
        place.format();
        if !has_attributes(&place) {
            return skip("a_file_whose_record_is_lost_is_given_up_on_purpose_only: extended attributes");
        }
        fs::remove_file(place.record()).unwrap();
        if !log_is_there {
            fs::rename(place.path("log.img"), place.path("log.away")).unwrap();
        }
        expect(&place.run("serve", &["--without-cache"]), 3, "as its attribute user.dcd says");
        expect(&place.serve_with(&["--without-cache", "--force"]).stop(), 0, "");
        if !log_is_there {
            log_is_back(&place);
        }
        expect(&place.run("serve", &[]), 3, "never use this log again");
        expect(&place.serve_with(&["--without-cache"]).stop(), 0, "");
    }
}

/// A loop device that was made in another mount namespace names a path that leads nowhere here, or to another file.
#[test]
fn a_loop_device_is_known_by_the_file_that_the_kernel_has() {
    let test = "a_loop_device_is_known_by_the_file_that_the_kernel_has";
    let (Some(losetup), Some(unshare)) = (tool(test, "losetup"), tool(test, "unshare")) else { return };
    let place = Place::new();
    fs::create_dir(place.path("elsewhere")).unwrap();
    let script = format!(
        "mount --bind '{0}' '{0}/elsewhere' && '{1}' --find --show '{0}/elsewhere/data.img'",
        place.dir.path().display(),
        losetup.display()
    );
    let made = Command::new(unshare).args(["-m", "sh", "-c", &script]).output().unwrap();
    if !made.status.success() {
        skip(&format!("{test}: {}", String::from_utf8_lossy(&made.stderr)));
        return;
    }
    let node = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
    let refused = [serve_plain(&place, &node), format_another(&place, &node)];
    // Behind the loop device and by its own name it is one file.
    expect(&Command::new(&losetup).arg("--detach").arg(&node).output().unwrap(), 0, "");
    let again =
        Command::new(&losetup).args(["--find", "--show"]).arg(place.path("data.img")).output().unwrap();
    let visible = PathBuf::from(String::from_utf8(again.stdout).unwrap().trim());
    let formatted = format_another(&place, &visible);
    let plain = serve_plain(&place, &visible);
    expect(&Command::new(&losetup).arg("--detach").arg(&visible).output().unwrap(), 0, "");
    for output in &refused {
        expect(output, 3, "is not at /");
    }
    expect(&formatted, 0, "");
    assert!(place.record().exists());
    expect(&plain, 3, "is attached to this disk");
    expect(&serve_plain(&place, &place.path("data.img")), 3, "is attached to this disk");
}

/// A clean cache whose log goes away.
fn without_log(place: &Place) {
    place.format();
    let server = place.serve();
    let mut nbd = place.nbd();
    // With reads = "keep", what is read twice is copied to the log, once enough was read.
    for _ in 0..16 {
        for line in 0..64 {
            nbd.read(4 * MIB + line * 4096, 4096).unwrap();
        }
    }
    drop(nbd);
    expect(&server.stop(), 0, "");
    fs::rename(place.path("log.img"), place.path("log.away")).unwrap();
}

fn log_is_back(place: &Place) {
    fs::rename(place.path("log.away"), place.path("log.img")).unwrap();
}

#[test]
fn rule_11_what_was_detached_without_its_log_is_never_attached_again() {
    // The file says it, or this machine does.
    for forgets in ["nothing", "the file", "the machine"] {
        let place = Place::new();
        without_log(&place);
        let detached = place.run("detach", &[]);
        expect(&detached, 0, "its log is missing");
        expect(&detached, 0, "never use");
        assert!(!place.record().exists());
        let data = place.path("data.img");
        match forgets {
            "the file" => {
                fs::copy(&data, place.path("copy")).unwrap();
                fs::rename(place.path("copy"), &data).unwrap();
            }
            "the machine" if !has_attributes(&place) => continue,
            "the machine" => fs::remove_dir_all(place.path("state")).unwrap(),
            _ => {}
        }
        log_is_back(&place);
        for command in ["serve", "rescue", "detach"] {
            expect(&place.run(command, &[]), 3, "was detached or discarded");
        }
        // As the refusal says.
        expect(&place.run("rescue", &["--list"]), 0, "");
        expect(&place.run("format", &["--force"]), 0, "");
        expect(&place.serve().stop(), 0, "");
    }
}

/// Serves a disk that was detached, changed and moved, so that neither the file nor the machine knows of the cache any more. The output of
/// the server where it was refused: the start may look at a changed line, as it draws lines from the cache's UUID.
fn serve_changed_without_a_record(memory: &Path) -> Result<(Place, Server), Output> {
    let place = Place::new();
    place.write_stack("reads = \"keep\"");
    // A log that does not spin.
    File::create(memory.join("log.img")).unwrap().set_len(8 * MIB).unwrap();
    fs::remove_file(place.path("log.img")).unwrap();
    std::os::unix::fs::symlink(memory.join("log.img"), place.path("log.img")).unwrap();
    without_log(&place);
    expect(&place.run("detach", &[]), 0, "");
    let data = place.path("data.img");
    let mut bytes = fs::read(&data).unwrap();
    let at = 4 * MIB as usize;
    bytes[at..at + 64 * 4096].fill(9);
    fs::write(place.path("copy"), bytes).unwrap();
    fs::rename(place.path("copy"), &data).unwrap();
    fs::remove_dir_all(place.path("state")).unwrap();
    log_is_back(&place);
    Server::start(&place, &[]).map(|server| (place, server))
}

/// Reads from the disk what the log only has a copy of.
#[test]
fn rule_11_a_disk_without_a_record_is_never_read_from_copies() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        return skip("rule_11_a_disk_without_a_record_is_never_read_from_copies: /dev/shm");
    };
    // One of the 64 changed lines is drawn for one cache in 14.
    let served = (0..8).find_map(|_| {
        let refused = match serve_changed_without_a_record(memory.path()) {
            Ok(served) => return Some(served),
            Err(refused) => refused,
        };
        expect(&refused, 3, "1 of the compared blocks have other data");
        fs::remove_file(memory.path().join("log.img")).unwrap();
        None
    });
    let (place, server) = served.expect("one cache of eight that draws no changed line");
    let mut nbd = place.nbd();
    for line in 0..64 {
        assert!(nbd.read(4 * MIB + line * 4096, 4096).unwrap() == [9; 4096], "line {line} is stale");
    }
    drop(nbd);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_second_detach_has_nothing_to_do() {
    let place = Place::new();
    place.format();
    expect(&place.run("detach", &[]), 0, "was written back");
    expect(&place.run("detach", &[]), 0, "was detached before");
    expect(&place.run("serve", &[]), 3, "was detached");
}
