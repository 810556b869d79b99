//! `dcd calibrate`: what it says of modelled drives and real files, and that it writes nothing but what it was told to.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use common::{MIB, Place, dcd, expect, original};
use serde_json::Value;

const QUICK: [&str; 4] = ["--span", "4MiB", "--strides", "2,8,32"];

fn calibrate(path: &Path, more: &[&str]) -> Output {
    dcd().arg("calibrate").arg(path).args(QUICK).args(more).output().unwrap()
}

fn json(output: &Output) -> Value {
    expect(output, 0, "");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_modelled_drive_gives_the_same_curve_each_time() {
    let run = |drive: &str| {
        json(&dcd().args(["calibrate", "--json", "--drive", drive]).args(QUICK).output().unwrap())
    };
    let cheetah = run("cheetah-15k4");
    assert_eq!(cheetah, run("cheetah-15k4"));
    assert_eq!(cheetah["write"]["max"], 32, "{cheetah}");
    assert_eq!(cheetah["write"]["except"], serde_json::json!([]));
    assert!(cheetah["write"]["curve"][0][1].as_f64().unwrap() > 2.0, "{cheetah}");
    assert_eq!(run("nearline-2018")["write"]["max"], 1, "a drive that loses nothing fills nothing");
    let output = dcd().args(["calibrate", "--drive", "no-such-drive"]).output().unwrap();
    expect(&output, 1, "no drive is called \"no-such-drive\"");
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

    let both = json(&calibrate(&data, &["--json", "--write-range", "4MiB+8MiB"]));
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
        (["--write-range", "12MiB+8MiB"], "choose another range"),
        (["--write-range", "1000+8MiB"], "multiple of 4096"),
        (["--write-range", "0+1MiB"], "4 MiB (--span) at least"),
    ] {
        expect(&calibrate(&data, &more), 1, said);
    }
    let output = dcd().arg("calibrate").arg(&data).args(["--strides", "4,2"]).output().unwrap();
    expect(&output, 1, "numbers that rise");
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
