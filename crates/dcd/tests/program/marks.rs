//! Backup marks as a user has them: full and incremental backups over NBD, through clean restarts, and everything that makes a mark lost.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::{MIB, Nbd, Place, expect, tool};
use crate::kill::next;
use crate::several::{HOME, MAIL, of, stack};

const GRAIN: u64 = 64 << 10;
const REGION: u64 = 16 * MIB;
const NBDINFO: &str = "nbdinfo";

const DISK: u64 = 3 * REGION;

fn marked_place_unformatted() -> Place {
    let place = Place::new();
    fs::write(place.path("data.img"), crate::common::original(DISK)).unwrap();
    place
}

/// A cache over a disk of 48 MiB.
fn marked_place() -> Place {
    let place = marked_place_unformatted();
    place.format();
    place
}

fn uri(place: &Place) -> String {
    format!("nbd+unix:///?socket={}", place.path("nbd.sock").display())
}

fn mark(place: &Place) -> u64 {
    let output = place.run("mark", &[]);
    expect(&output, 0, "");
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

fn map_of(uri: &str, mark: u64) -> Output {
    let context = format!("--map=dcd:changed-since={mark}");
    Command::new(NBDINFO).arg(context).arg("--json").arg(uri).output().unwrap()
}

fn map(place: &Place, mark: u64) -> Output {
    map_of(&uri(place), mark)
}

/// The extents of a disk that have changed since a mark, with offset and length.
fn extents(uri: &str, mark: u64, bytes: u64) -> Vec<(u64, u64)> {
    let output = map_of(uri, mark);
    expect(&output, 0, "");
    let runs: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let field = |run: &Value, name: &str| run[name].as_u64().unwrap();
    assert_eq!(runs.iter().map(|run| field(run, "length")).sum::<u64>(), bytes);
    let dirty = runs.iter().filter(|run| field(run, "type") == 1);
    dirty.map(|run| (field(run, "offset"), field(run, "length"))).collect()
}

fn changed(place: &Place, mark: u64) -> Vec<(u64, u64)> {
    extents(&uri(place), mark, DISK)
}

fn whole(nbd: &mut Nbd) -> Vec<u8> {
    (0..DISK / MIB).flat_map(|at| nbd.read(at * MIB, MIB as usize).unwrap()).collect()
}

/// Copies what has changed since a mark over an older copy, which has to be equal to the disk then. Returns the number of copied bytes.
fn update(place: &Place, mark: u64, backup: &mut [u8]) -> u64 {
    let mut nbd = place.nbd();
    let mut copied = 0;
    for (offset, length) in changed(place, mark) {
        for at in (offset..offset + length).step_by(GRAIN as usize) {
            let read = nbd.read(at, GRAIN as usize).unwrap();
            backup[at as usize..][..GRAIN as usize].copy_from_slice(&read);
        }
        copied += length;
    }
    let now = whole(&mut nbd);
    let differs = now.chunks(4096).zip(backup.chunks(4096)).position(|(now, backup)| now != backup);
    assert_eq!(differs, None, "the first block that an incremental backup lacks");
    copied
}

fn listed(place: &Place) -> Vec<Value> {
    serde_json::from_slice(&place.run("mark", &["--list", "--json"]).stdout).unwrap()
}

/// The reason why the only mark is lost.
fn lost(place: &Place) -> String {
    let all = listed(place);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0]["lost"].as_str().unwrap_or("it is not").to_owned()
}

fn events(place: &Place) -> String {
    String::from_utf8(place.run("events", &[]).stdout).unwrap()
}

/// The files of marks beside the record of a disk.
fn files(place: &Place, disk: &str) -> Vec<PathBuf> {
    let beside = fs::read_dir(place.path(disk).parent().unwrap()).unwrap();
    let paths = beside.map(|entry| entry.unwrap().path());
    let is_one = |path: &PathBuf| {
        path.to_string_lossy().ends_with(".marks")
            && path.file_name().unwrap().to_string_lossy().starts_with(disk)
    };
    paths.filter(is_one).collect()
}

#[test]
fn a_backup_copies_only_what_has_changed_through_clean_restarts() {
    let Some(_) = tool("marks", NBDINFO) else { return };
    let place = marked_place();
    let mut server = place.serve();
    let mut nbd = place.nbd();
    nbd.write(MIB, &[1; 8192]).unwrap();
    let first = mark(&place);
    let mut backup = whole(&mut nbd);
    assert_eq!(changed(&place, first), [], "what was written before is none of it");
    nbd.write(4096, &[2; 4096]).unwrap();
    nbd.write(3 * GRAIN - 512, &[3; 1024]).unwrap();
    nbd.zero(REGION + GRAIN, 3 * GRAIN).unwrap();
    let extents = [(0, GRAIN), (2 * GRAIN, 2 * GRAIN), (REGION + GRAIN, 3 * GRAIN)];
    assert_eq!(changed(&place, first), extents);
    assert_eq!(update(&place, first, &mut backup.clone()), 6 * GRAIN);
    drop(nbd);
    for _ in 0..2 {
        expect(&server.stop(), 0, "");
        server = place.serve();
        assert_eq!(changed(&place, first), extents);
    }
    // A mark does not tell the changes before it.
    let next = mark(&place);
    assert!(next != first && next < 1 << 53);
    let mut second = whole(&mut place.nbd());
    place.nbd().write(2 * REGION, &[4; 512]).unwrap();
    expect(&place.run("stop", &["--for-restart"]), 0, "");
    expect(&server.wait(), 0, "");
    let server = place.serve();
    assert_eq!(changed(&place, next), [(2 * REGION, GRAIN)]);
    assert_eq!(update(&place, next, &mut second), GRAIN);
    assert_eq!(update(&place, first, &mut backup), 7 * GRAIN);
    let all = listed(&place);
    let amounts: Vec<u64> = all.iter().map(|one| one["changed_bytes"].as_u64().unwrap()).collect();
    assert_eq!(amounts, [7 * GRAIN, GRAIN]);
    expect(&place.run("mark", &["--list"]), 0, "448 KiB");
    expect(&place.run("mark", &["--drop", &first.to_string()]), 0, "");
    assert_eq!(update(&place, next, &mut second), GRAIN);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_kill_and_every_other_start_lose_the_marks_and_say_so() {
    let Some(_) = tool("marks", NBDINFO) else { return };
    type Harm<'a> = (&'a str, &'a dyn Fn(&Place));
    let serves_once = |place: &Place| expect(&place.serve().stop(), 0, "");
    let elsewhere = "the log was started without them since";
    let harms: [Harm; 5] = [
        ("the last server was not stopped cleanly", &|place| place.serve().kill()),
        (elsewhere, &|place| {
            // A copy of the file that was put back does not help.
            let file = files(place, "data.img").remove(0);
            let kept = fs::read(&file).unwrap();
            serves_once(place);
            fs::write(file, kept).unwrap();
        }),
        (elsewhere, &|place| expect(&place.run("rescue", &[]), 0, "")),
        ("damage may have been accepted", &|_| ()),
        ("the size of the disk has changed since", &|place| {
            let data = fs::OpenOptions::new().write(true).open(place.path("data.img")).unwrap();
            data.set_len(4 * REGION).unwrap();
            expect(&place.run("grow", &[]), 0, "");
        }),
    ];
    for (reason, harm) in harms {
        let place = marked_place();
        let server = place.serve();
        let made = mark(&place);
        place.nbd().write(0, &[1; 4096]).unwrap();
        expect(&server.stop(), 0, "");
        harm(&place);
        let accepts = reason.starts_with("damage");
        let server = if accepts { place.serve_with(&["--accept-damage"]) } else { place.serve() };
        assert!(lost(&place).contains(reason), "{reason}: {}", lost(&place));
        assert!(events(&place).contains("the next backup has to be a full one"), "{reason}");
        let refused = map(&place, made);
        assert!(!refused.status.success(), "{reason}");
        let next = mark(&place);
        expect(&place.run("mark", &["--drop", &made.to_string()]), 0, "");
        assert_eq!((listed(&place).len(), listed(&place)[0]["mark"].as_u64()), (1, Some(next)));
        expect(&server.stop(), 0, "");
        serves_once(&place);
    }
}

/// A mark of the server that is killed, which no clean stop has ever stored.
#[test]
fn a_mark_of_a_killed_server_is_lost_and_its_cache_has_no_file_after_a_detach() {
    let Some(_) = tool("marks", NBDINFO) else { return };
    let place = marked_place();
    let server = place.serve();
    let made = mark(&place);
    expect(&server.stop(), 0, "");
    let server = place.serve();
    let other = mark(&place);
    // The thread of the records has it by then.
    let is_noted = || {
        let file = files(&place, "data.img").into_iter().next();
        file.is_some_and(|file| {
            String::from_utf8_lossy(&fs::read(file).unwrap()).contains(&other.to_string())
        })
    };
    while !is_noted() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    server.kill();
    let server = place.serve();
    let numbers: Vec<u64> = listed(&place).iter().map(|one| one["mark"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [made, other]);
    assert!(listed(&place).iter().all(|one| one["lost"] == "the last server was not stopped cleanly"));
    expect(&map(&place, made), 1, "");
    expect(&place.run("mark", &["--list"]), 0, "lost");
    expect(&server.stop(), 0, "");
    assert_eq!(files(&place, "data.img").len(), 1);
    expect(&place.run("detach", &[]), 0, "");
    assert!(files(&place, "data.img").is_empty());
}

#[test]
fn a_stack_that_could_miss_a_change_has_no_marks_and_each_disk_has_its_own() {
    let place = Place::new();
    stack(&place, &[HOME, MAIL], "");
    expect(&place.run("format", &[]), 0, "");
    let server = place.serve();
    expect(
        &place.run("mark", &[]),
        1,
        "each data disk has its own marks: name one of home, mail with --disk",
    );
    expect(&place.run("mark", &["--disk", "attic"]), 1, "they are home, mail");
    let mail = || place.run("mark", &["--disk", "mail"]);
    let made: Vec<String> = (0..8).map(|_| String::from_utf8(mail().stdout).unwrap()).collect();
    expect(&mail(), 1, "--drop N drops one; older ones stay good");
    expect(&place.run("mark", &["--disk", "mail", "--drop", made[2].trim()]), 0, "");
    expect(&place.run("mark", &["--disk", "mail", "--drop", made[2].trim()]), 1, "the disk has no mark");
    expect(&place.run("mark", &["--disk", "home", "--json"]), 0, "{\"mark\":");
    of(&place, "mail").write(0, &[1; 4096]).unwrap();
    let amount = |disk: &str| {
        let output = place.run("mark", &["--disk", disk, "--list", "--json"]);
        let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        all.iter().map(|one| one["changed_bytes"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((amount("home"), amount("mail")), (0, 7 * GRAIN));
    expect(&server.stop(), 0, "");
    let bare = Place::new();
    bare.write_stack_with("slow", "", "[layer.slow]\nkind = \"slice\"\nof = \"cache\"\n");
    expect(&bare.run("format", &[]), 0, "");
    let server = bare.serve();
    expect(&bare.run("mark", &[]), 1, "the export \"slow\" is no log cache");
    expect(&server.stop(), 0, "");
}

#[test]
fn what_is_written_through_an_image_counts_as_changed() {
    if !Path::new("/dev/fuse").exists() || tool("marks of an image", "fusermount3").is_none() {
        return crate::common::skip("marks of an image: there is no FUSE here");
    }
    let place = marked_place();
    fs::create_dir(place.path("images")).unwrap();
    place.add_to_serve("fuse = \"images\"\n");
    let server = place.serve();
    mark(&place);
    let image = fs::File::options().write(true).open(place.path("images/disk.img")).unwrap();
    image.write_all_at(&[9; 512], REGION).unwrap();
    image.sync_all().unwrap();
    drop(image);
    assert_eq!(listed(&place)[0]["changed_bytes"], GRAIN);
    expect(&server.stop(), 0, "");
}

/// Two data disks that share a device, and so its record.
#[test]
fn slices_of_one_device_keep_their_marks_apart() {
    let Some(_) = tool("marks", NBDINFO) else { return };
    let place = marked_place_unformatted();
    let half = DISK / 2;
    let text = format!(
        "export = \"cache\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n[device.log]\npath = \"log.img\"\n\
         [device.data]\npath = \"data.img\"\n\
         [layer.home]\nkind = \"slice\"\nof = \"data\"\nsize = \"{half}\"\n\
         [layer.mail]\nkind = \"slice\"\nof = \"data\"\nfirst = \"{half}\"\n\
         [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = [\"home\", \"mail\"]\n"
    );
    fs::write(place.stack(), text).unwrap();
    place.format();
    let mut server = place.serve();
    let made = |disk: &str| {
        let output = place.run("mark", &["--disk", disk]);
        expect(&output, 0, "");
        String::from_utf8(output.stdout).unwrap().trim().parse::<u64>().unwrap()
    };
    let (home, mail) = (made("home"), made("mail"));
    for (disk, at) in [("mail", 9 * MIB), ("home", 17 * MIB)] {
        of(&place, disk).write(at, &[7; 4096]).unwrap();
    }
    let of_mail = uri(&place).replace("///", "///mail");
    for _ in 0..2 {
        assert_eq!(extents(&uri(&place), home, half), [(17 * MIB, GRAIN)]);
        assert_eq!(extents(&of_mail, mail, half), [(9 * MIB, GRAIN)]);
        assert!(!map_of(&of_mail, home).status.success(), "a mark of the other disk");
        expect(&server.stop(), 0, "");
        assert_eq!(files(&place, "data.img").len(), 2);
        server = place.serve();
    }
    server.kill();
    let server = place.serve();
    for disk in ["home", "mail"] {
        expect(&place.run("mark", &["--disk", disk, "--list"]), 0, "lost");
    }
    expect(&server.stop(), 0, "");
}

fn script(place: &Place) -> Output {
    script_with(place, &[], &uri(place))
}

fn script_with(place: &Place, first: &[&str], uri: &str) -> Output {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/backup/backup.sh");
    let mut command = Command::new("bash");
    let dcd = place.dcd();
    command.envs(dcd.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let programs = format!(
        // nbdsh wants the Python of the system.
        "{}:{}:/usr/bin:/bin:{}",
        place.path("bin").display(),
        std::path::Path::new(dcd.get_program()).parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    command.env("PATH", programs).arg(script).args(first).arg(place.stack()).arg(uri);
    command.arg(place.path("backup.img")).output().unwrap()
}

#[test]
fn the_backup_script_makes_the_images_equal_and_fails_aloud_without_its_mark() {
    for needed in [NBDINFO, "nbdcopy", "nbdsh"] {
        let Some(_) = tool("marks", needed) else { return };
    }
    let place = marked_place();
    let backup = || fs::read(place.path("backup.img")).unwrap();
    let mark = || fs::read_to_string(place.path("backup.img.mark")).unwrap();
    let server = place.serve();
    // A client writes while all is copied for the first time.
    fs::create_dir(place.path("bin")).unwrap();
    let copies =
        "#!/bin/sh\n/usr/bin/nbdcopy \"$@\" && nbdsh --uri \"$1\" --command 'h.pwrite(b\"x\" * 4096, 0)'\n";
    fs::write(place.path("bin/nbdcopy"), copies).unwrap();
    fs::set_permissions(place.path("bin/nbdcopy"), fs::Permissions::from_mode(0o755)).unwrap();
    expect(&script(&place), 0, "");
    assert_eq!(backup()[..4096], [b'x'; 4096]);
    assert!(backup() == whole(&mut place.nbd()));
    assert_eq!(listed(&place).len(), 1);
    let mut random = 0x1234_5678_9ABC;
    for round in 0..3u8 {
        let mut nbd = place.nbd();
        for _ in 0..20 {
            nbd.write(next(&mut random) % (DISK / 4096) * 4096, &[round; 4096]).unwrap();
        }
        nbd.zero(DISK - GRAIN, GRAIN).unwrap();
        expect(&script(&place), 0, "");
        assert!(backup() == whole(&mut nbd), "round {round}");
        assert_eq!(listed(&place).len(), 1, "older marks are dropped");
    }
    // A run that fails is repeated by the next one.
    place.nbd().write(REGION, &[9; 4096]).unwrap();
    let (before, short) =
        (mark(), fs::OpenOptions::new().write(true).open(place.path("backup.img")).unwrap());
    short.set_len(DISK - 1).unwrap();
    expect(&script(&place), 1, "has another size");
    assert_eq!((mark(), listed(&place).len()), (before, 1), "its own mark is dropped");
    short.set_len(DISK).unwrap();
    short.write_all_at(&[0], DISK - 1).unwrap();
    expect(&script(&place), 0, "");
    assert!(backup() == whole(&mut place.nbd()));
    server.kill();
    let server = place.serve();
    place.nbd().write(0, &[8; 4096]).unwrap();
    let kept = (mark(), backup());
    expect(&script(&place), 1, "for a full backup");
    assert!((mark(), backup()) == kept);
    fs::remove_file(place.path("backup.img.mark")).unwrap();
    expect(&script(&place), 0, "");
    assert!(backup() == whole(&mut place.nbd()));
    expect(&server.stop(), 0, "");
    expect(&script(&place), 1, "");
    assert_eq!(
        fs::read_dir(place.path(""))
            .unwrap()
            .filter(|entry| {
                entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("backup.img.")
            })
            .count(),
        1,
        "only the mark is beside the backup"
    );
}

#[test]
fn the_backup_script_knows_the_disks_of_a_log() {
    for needed in [NBDINFO, "nbdcopy", "nbdsh"] {
        let Some(_) = tool("marks", needed) else { return };
    }
    let place = Place::new();
    stack(&place, &[HOME, MAIL], "");
    place.format();
    let server = place.serve();
    let backup = || script_with(&place, &["--disk", "mail"], &uri(&place).replace("///", "///mail"));
    for round in 1..3u8 {
        of(&place, "mail").write(9 * MIB, &[round; 4096]).unwrap();
        expect(&backup(), 0, "");
        let saved = fs::read(place.path("backup.img")).unwrap();
        assert!(saved.len() as u64 == MAIL.1 * MIB && saved[(9 << 20)..][..4096] == [round; 4096]);
    }
    expect(&server.stop(), 0, "");
}

#[test]
fn qemu_reads_the_marks_as_its_own_bitmaps() {
    let Some(qemu) = tool("marks", "qemu-img") else { return };
    let place = marked_place();
    let server = place.serve();
    let made = mark(&place);
    place.nbd().write(GRAIN, &[1; 4096]).unwrap();
    let options = format!(
        "driver=nbd,server.type=unix,server.path={},x-dirty-bitmap=dcd:changed-since={made}",
        place.path("nbd.sock").display()
    );
    let map = |options: &str| {
        Command::new(&qemu).args(["map", "--output=json", "--image-opts"]).arg(options).output().unwrap()
    };
    let output = map(&options);
    expect(&output, 0, "");
    let runs: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    // qemu-img shows a bit that is set as "no data".
    let dirty: Vec<_> =
        runs.iter().filter(|run| run["data"] == false).map(|run| run["start"].clone()).collect();
    assert_eq!(dirty, [GRAIN]);
    expect(&map(&options.replace(&format!("since={made}"), "since=7")), 1, "");
    expect(&server.stop(), 0, "");
}
