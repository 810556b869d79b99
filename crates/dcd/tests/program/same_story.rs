//! Faults of a cache, and the reports of all commands on them: each gives the reason that `dcd serve` gives.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::{MIB, Place, Server, expect};
use crate::refusals::dirty;

/// All files of a place, with their attributes.
struct Backup(tempfile::TempDir);

fn copy_all(from: &Path, to: &Path) {
    let copied = Command::new("cp").args(["-a", "--sparse=always"]).arg(from.join(".")).arg(to).status();
    assert!(copied.unwrap().success());
}

impl Backup {
    fn of(place: &Place) -> Backup {
        let backup = Backup(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        copy_all(place.dir.path(), backup.0.path());
        backup
    }

    fn restore(&self, place: &Place) {
        for entry in fs::read_dir(place.dir.path()).unwrap() {
            let path = entry.unwrap().path();
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.unwrap();
        }
        copy_all(self.0.path(), place.dir.path());
    }
}

fn overwrite(place: &Place, name: &str, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(place.path(name)).unwrap().write_all_at(bytes, at).unwrap();
}

fn rename(place: &Place, from: &str, to: &str) {
    fs::rename(place.path(from), place.path(to)).unwrap();
}

/// Something that happens to a cache, and the commands that go on all the same, as nothing is lost by them.
struct Case(&'static str, fn(&Place), &'static [&'static str]);

const CASES: &[Case] = &[
    Case("nothing", |_| {}, &[]),
    Case("log away", |place| rename(place, "log.img", "away.img"), &["detach if clean"]),
    Case(
        "log zeroed",
        |place| overwrite(place, "log.img", 0, &vec![0; 8 * MIB as usize]),
        &["detach if clean"],
    ),
    Case(
        "log of another cache",
        |place| {
            let other = Place::new();
            other.format();
            fs::copy(other.path("log.img"), place.path("log.img")).unwrap();
        },
        &[],
    ),
    Case(
        "swapped",
        |place| {
            let text = fs::read_to_string(place.stack()).unwrap();
            let swapped = text.replace("log = \"log\"\ndata = \"data\"", "log = \"data\"\ndata = \"log\"");
            assert!(swapped != text);
            fs::write(place.stack(), swapped).unwrap();
        },
        &[],
    ),
    Case("record gone", |place| fs::remove_file(place.record()).unwrap(), &["format if clean"]),
    Case("moved without its record", Place::move_data, &["format if clean"]),
    Case("record damaged", |place| overwrite(place, "data.img.dcd", 20, b"\x55"), &[]),
    Case(
        "log from a backup",
        |place| {
            fs::copy(place.path("log.img"), place.path("old.img")).unwrap();
            let server = place.serve();
            place.nbd().write_fua(0, &[3; 4096]).unwrap();
            server.kill();
            rename(place, "old.img", "log.img");
        },
        &[],
    ),
    Case("detached", |place| expect(&place.run("detach", &[]), 0, ""), &["detach", "format"]),
    Case(
        "given up",
        |place| expect(&place.serve_with(&["--without-cache", "--force"]).stop(), 0, ""),
        &["detach", "format"],
    ),
    Case(
        "data changed",
        |place| overwrite(place, "data.img", 0, &vec![0x5a; 16 * MIB as usize]),
        &["detach if clean", "rescue if clean"],
    ),
    Case("data away", |place| rename(place, "data.img", "away.img"), &[]),
    Case(
        "data cut",
        |place| {
            OpenOptions::new().write(true).open(place.path("data.img")).unwrap().set_len(12 * MIB).unwrap();
        },
        &[],
    ),
];

/// Words of the commands that look at each block themselves.
const FOUND: [&str; 3] = [
    "it is another disk, or was written without its cache",
    "the data disk is another one, or was changed without its cache",
    "the cache went on without this log, or was served without it",
];

fn said(output: &Output) -> String {
    String::from_utf8([output.stdout.as_slice(), &output.stderr].concat()).unwrap()
}

/// The reason for which a start is refused, and its way out; None if the cache is served.
fn served(place: &Place) -> Option<(String, String)> {
    let output = Server::start(place, &[]).map(|server| expect(&server.stop(), 0, "")).err()?;
    let said = said(&output);
    let (reason, action) = said.split_once("\n  what to do: ").unwrap_or((&said, ""));
    let reason = reason.trim().strip_prefix("dcd: ").unwrap().trim_start_matches("layer \"cache\": ");
    Some((reason.to_owned(), action.trim().to_owned()))
}

fn doctor(place: &Place) -> (bool, String) {
    let report: Value = serde_json::from_slice(&place.run("doctor", &["--json"]).stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["about"] == "stack").expect("every stack has one");
    let text = |key: &str| found[key].as_str().unwrap_or("").to_owned();
    (found["level"] == "bad", format!("{} {}", text("found"), text("action")))
}

#[test]
fn every_command_gives_the_reason_that_serve_gives() {
    let place = dirty();
    let dirty = Backup::of(&place);
    let server = place.serve();
    expect(&place.run("flush", &["--quiet"]), 0, "");
    expect(&server.stop(), 0, "");
    let clean = Backup::of(&place);
    for (Case(name, happen, go_on), state, backup) in
        CASES.iter().flat_map(|case| [(case, "dirty", &dirty), (case, "clean", &clean)])
    {
        backup.restore(&place);
        happen(&place);
        let happened = Backup::of(&place);
        let refused = served(&place);
        let (reason, action) = refused.clone().unwrap_or_default();
        happened.restore(&place);
        let (is_bad, found) = doctor(&place);
        assert_eq!(is_bad, refused.is_some(), "{state}, {name}: doctor: {found}");
        assert!(found.contains(&reason) && found.contains(&action), "{state}, {name}: {reason}: {found}");
        for (command, more) in
            [("check", None), ("rescue", Some("--list")), ("detach", None), ("rescue", None)]
        {
            let output = place.run(command, more.as_slice());
            happened.restore(&place);
            let goes_on = [command.to_owned(), format!("{command} if {state}")];
            let what = format!("{state}, {name}: {command} {more:?}: {output:?}, serve: {refused:?}");
            let looks = command == "check" || more.is_some();
            let is_fine = output.status.success();
            if !looks {
                let goes_on = refused.is_none() || goes_on.iter().any(|name| go_on.contains(&name.as_str()));
                assert_eq!(is_fine, goes_on, "{what}");
            }
            let said = said(&output);
            let names_the_reason =
                said.contains(&reason) || looks && FOUND.iter().any(|it| said.contains(it));
            assert!(is_fine && !looks || names_the_reason, "{what}");
        }
        let goes_on = ["format".to_owned(), format!("format if {state}")];
        let goes_on = goes_on.iter().any(|name| go_on.contains(&name.as_str()));
        let output = place.run("format", &[]);
        assert_eq!(output.status.success(), goes_on, "{state}, {name}: {output:?}");
    }
}
