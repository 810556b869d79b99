//! `dcd calibrate`: what it says of real files, and that it writes nothing but what it was told to.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::{MIB, Place, dcd, expect, original};
use serde_json::Value;

const QUICK: [&str; 4] = ["--span", "4MiB", "--strides", "2,8,32"];
/// Output of `dcd calibrate --drive cheetah-15k4 --json` with these options.
const CHEETAH: &str = include_str!("cheetah-15k4.json");

fn calibrate(path: &Path, more: &[&str]) -> Output {
    dcd().arg("calibrate").arg(path).args(QUICK).args(more).output().unwrap()
}

fn json(output: &Output) -> Value {
    expect(output, 0, "");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_device_is_only_read_unless_a_range_is_named() {
    let place = Place::new();
    let data = place.path("data.img");
    let read = json(&calibrate(&data, &["--json"]));
    assert_eq!(read["write"], Value::Null);
    assert_eq!(read["read"]["curve"].as_array().unwrap().len(), 3);
    assert!(read["read"]["contiguous_bytes_per_second"].as_f64().unwrap() > 0.0);
    assert!(place.bare() == original(16 * MIB), "nothing was written");

    let unforced = calibrate(&data, &["--json", "--write-range", "4MiB+8MiB"]);
    expect(&unforced, 3, "holds content that dcd does not know");
    assert!(place.bare() == original(16 * MIB), "nothing was written");
    let both = json(&calibrate(&data, &["--json", "--write-range", "4MiB+8MiB", "--force"]));
    assert_eq!(both["write"]["curve"].as_array().unwrap().len(), 3);
    let (before, after) = (original(16 * MIB), place.bare());
    let (from, to) = (4 << 20, 12 << 20);
    assert!(after[..from] == before[..from] && after[to..] == before[to..], "nothing outside of the range");
    assert!(after[from..2 * from].iter().all(|byte| *byte == 0), "the contiguous pass wrote all of its span");
}

#[test]
fn what_would_do_harm_or_make_no_sense_is_refused() {
    let place = Place::new();
    let data = place.path("data.img");
    let write = ["--write-range", "4MiB+8MiB"];
    for (more, said) in [
        (["--force", "--write-range", "12MiB+8MiB"], "choose another range"),
        (["--force", "--write-range", "1000+8MiB"], "multiple of 4096"),
        (["--force", "--write-range", "0+1MiB"], "at least 4 MiB (--span)"),
    ] {
        expect(&calibrate(&data, &more), 1, said);
    }
    let output = dcd().arg("calibrate").arg(&data).args(["--strides", "4,2"]).output().unwrap();
    expect(&output, 1, "rising numbers");
    let output = dcd().arg("calibrate").arg(&data).args(["--span", "32MiB"]).output().unwrap();
    expect(&output, 1, "choose another range, or a smaller --span");
    expect(&calibrate(&place.path("nothing"), &[]), 1, "nothing");

    let image = place.path("ext4.img");
    fs::File::create(&image).unwrap().set_len(16 * MIB).unwrap();
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let made = Command::new("mkfs.ext4").env("PATH", path).arg("-qF").arg(&image).status().unwrap();
    assert!(made.success());
    let before = fs::read(&image).unwrap();
    expect(&calibrate(&image, &write), 3, "file system");
    assert!(fs::read(&image).unwrap() == before);
    expect(&calibrate(&image, &["--write-range", "4MiB+8MiB", "--force"]), 0, "");

    place.format();
    expect(&calibrate(&data, &write), 3, "is attached to this disk");
    expect(&calibrate(&data, &[]), 0, "");
    assert!(place.bare() == original(16 * MIB));
}

/// Returns the status of the served cache, which tells of the gaps that it fills.
fn filled(place: &Place) -> Value {
    let output = place.run("status", &["--json"]);
    let status = json(&output);
    status["layers"]["cache"].clone()
}

fn from(place: &Place, file: &str, more: &[&str]) -> Output {
    dcd().args(["calibrate", "--from"]).arg(place.path(file)).args(more).output().unwrap()
}

#[test]
fn a_log_cache_uses_what_is_stored_in_its_log() {
    let place = Place::new();
    let stack = place.stack();
    let store = ["--store", stack.to_str().unwrap()];
    let found: Value = serde_json::from_str(CHEETAH).unwrap();
    fs::write(place.path("found.json"), CHEETAH).unwrap();
    expect(&from(&place, "found.json", &store), 3, "no dcd log");
    place.format();
    let server = place.serve();
    assert_eq!((&filled(&place)["calibrated"], &filled(&place)["fills"]), (&false.into(), &Value::Null));
    let mut nbd = place.nbd();
    nbd.write(8 << 20, &[7; 4096]).unwrap();
    nbd.flush().unwrap();
    expect(&from(&place, "found.json", &store), 3, "in use");
    server.kill();
    // The log of a cache that was killed, and is dirty.
    expect(&from(&place, "found.json", &store), 0, "stored in the log of \"cache\": its next start uses it");
    expect(&place.run("check", &[]), 0, "stride benchmark: Smax");
    let server = place.serve();
    let status = filled(&place);
    assert_eq!(status["calibrated"], true);
    assert_eq!(status["fills"]["write"]["max"], found["write"]["max"], "{status}");
    assert_eq!(place.nbd().read(8 << 20, 4096).unwrap(), [7; 4096]);
    expect(&server.stop(), 0, "");
    let mut of_reads = found.clone();
    of_reads["write"] = Value::Null;
    fs::write(place.path("reads.json"), of_reads.to_string()).unwrap();
    expect(&from(&place, "reads.json", &store), 0, "their stored result is kept");
    let server = place.serve();
    assert_eq!(filled(&place)["fills"]["write"]["max"], found["write"]["max"]);
    expect(&server.stop(), 0, "");
    expect(&place.run("detach", &[]), 0, "detached");
    expect(&from(&place, "found.json", &store), 3, "was detached");
}

#[test]
fn what_is_no_result_or_has_no_place_is_refused() {
    let place = Place::new();
    let good: Value = serde_json::from_str(CHEETAH).unwrap();
    let write = |change: fn(&mut Value)| {
        let mut found = good.clone();
        change(&mut found);
        fs::write(place.path("found.json"), found.to_string()).unwrap();
        from(&place, "found.json", &[])
    };
    expect(&write(|_| {}), 0, "gaps below 32 blocks are filled");
    expect(&write(|found| found["write"]["max"] = 7.into()), 1, "do not follow from its curve");
    expect(&write(|found| found["threshold"] = 1.5.into()), 1, "its threshold 1.2");
    expect(&write(|found| *found = Value::Null), 1, "name a file with what");
    expect(&write(|found| found["write"] = Value::Null), 0, "writes: not measured");
    place.format();
    let stack = place.stack();
    let store =
        |more: &[&str]| from(&place, "found.json", &[&["--store", stack.to_str().unwrap()], more].concat());
    expect(
        &store(&["--layer", "cash"]),
        1,
        "no layer called \"cash\" fills gaps; choose with --layer: cache",
    );
    expect(&store(&[]), 0, "it fills no gaps");
    fs::write(
        &stack,
        "export = \"cache\"\n[device.log]\npath = \"log.img\"\n[device.data]\npath = \"data.img\"\n\
         [device.b]\nmemory = \"16MiB\"\n[device.c]\nmemory = \"16MiB\"\n\
         [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"disks\"\n\
         [layer.disks]\nkind = \"raid\"\nof = [\"data\", \"b\", \"c\"]\n",
    )
    .unwrap();
    expect(&store(&["--layer", "cache"]), 3, "store it there: --layer disks");
}
