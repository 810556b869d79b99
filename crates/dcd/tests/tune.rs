//! `dcd tune`, as a user runs it: what it writes can be simulated, formatted and served.

mod common;

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Output;

use common::{Place, dcd, expect};

/// A trace in MSR's format: small writes to the same places again and again, and reads elsewhere.
fn trace(place: &Place) {
    let mut text = String::new();
    for i in 0..600u64 {
        let (kind, offset) = if i % 3 == 0 { ("Read", 4 << 20) } else { ("Write", 0) };
        let offset = offset + i * i % 97 * 8192;
        let time = 128_166_372_000_000_000 + i * 70_000;
        writeln!(text, "{time},host,0,{kind},{offset},4096,0").unwrap();
    }
    fs::write(place.path("trace.csv"), text).unwrap();
}

fn tune(place: &Place, more: &[&str]) -> Output {
    let mut command = dcd();
    command.arg("tune").arg("trace.csv").arg("--quiet").args(more).current_dir(place.dir.path());
    command.output().unwrap()
}

#[test]
fn what_is_recommended_can_be_simulated_formatted_and_served() {
    let place = Place::new();
    trace(&place);
    for medium in ["same-disk", "ssd", "nvram"] {
        // Log and disk are to be made.
        for name in ["log.img", "disk.img", "disk.img.dcd"] {
            let _ = fs::remove_file(place.path(name));
        }
        let logs = "--log-sizes=16MiB";
        let output = tune(&place, &["--media", medium, "--out", "out", logs, "--verify", "--json"]);
        expect(&output, 0, "");
        let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(result["recommended"]["medium"], medium, "{result}");
        assert!(result["verified"]["worse_percent"].as_f64().unwrap() <= 2.0);
        let saved: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(place.path("out/tune.json")).unwrap()).unwrap();
        assert_eq!(saved, result);
        let page = fs::read_to_string(place.path("out/tune.html")).unwrap();
        assert!(page.matches("<svg").count() >= 3 && page.contains("Recommended: "));
        assert!(page.contains("Requests that stall"));
        for file in ["simulate.toml", "serve.toml"] {
            let path = place.path("out").join(file);
            let simulate = |path: &Path| {
                dcd().arg("simulate").arg(path).args(["--workload=mixed", "--requests=50"]).output().unwrap()
            };
            expect(&simulate(&path), 0, "trace hash");
        }
        serve(&place, medium != "nvram");
        fs::remove_dir_all(place.path("out")).unwrap();
    }
}

#[test]
fn disks_that_are_there_are_named_as_seen_from_the_stack_file() {
    let place = Place::new();
    trace(&place);
    let places = ["--disk=data.img", "--log=log.img", "--media=ssd", "--log-sizes=16MiB", "--out=out"];
    expect(&tune(&place, &places), 0, "");
    expect(&dcd().arg("format").arg(place.path("out/serve.toml")).output().unwrap(), 0, "16 MiB of data");
    // A place for the results that is none is told before the work.
    fs::remove_dir_all(place.path("out")).unwrap();
    fs::write(place.path("out"), "").unwrap();
    let output = tune(&place, &places);
    expect(&output, 1, "out: File exists");
    assert!(output.stdout.is_empty(), "nothing was run");
}

/// Serves what was recommended, and stops it.
fn serve(place: &Place, formats: bool) {
    fs::copy(place.path("out/serve.toml"), place.stack()).unwrap();
    // Nothing makes the disk of a stack with no log but serving it.
    if formats {
        expect(&place.run("format", &[]), 0, "");
    }
    let server = place.serve_with(if formats { &[] } else { &["--i-have-nvram"] });
    let mut nbd = common::Nbd::connect(&place.path("disk.sock")).unwrap();
    nbd.write(4096, &[7; 4096]).unwrap();
    nbd.flush().unwrap();
    assert_eq!(nbd.read(4096, 4096).unwrap(), [7; 4096]);
    expect(&server.stop(), 0, "");
    if formats {
        expect(&place.run("detach", &["--quiet"]), 0, "");
    }
}

#[test]
fn the_text_has_the_table_the_reasons_and_the_stack_file() {
    let place = Place::new();
    trace(&place);
    let output = tune(&place, &["--media", "ssd,nvram", "--log-sizes", "16MiB", "--nvram-sizes", "1MiB"]);
    for said in ["no cache", "Recommended: ", "How sure: ", "Assumed:", "always durable", "[layer.cache]"] {
        let said = if said == "always durable" { "makes each write durable before it answers" } else { said };
        expect(&output, 0, said);
    }
}

#[test]
fn what_cannot_be_tuned_is_refused_with_advice() {
    let place = Place::new();
    trace(&place);
    for (more, said) in [
        (&["--drive", "ra99"][..], "no drive is called"),
        (&["--device", "7"], "no device 7; it has 0"),
        (&["--log-sizes", "1KiB"], "at least 16 MiB"),
        (&["--nvram-sizes", "1000001"], "multiples of 4096"),
        (&["--drive", "ra81", "--log-sizes", "1GiB"], "smaller --log-sizes"),
    ] {
        expect(&tune(&place, more), 1, said);
    }
    let far =
        "128166372000000000,host,0,Write,900000000000,4096,0\n128166372000000001,host,0,Write,0,512,0\n";
    fs::write(place.path("trace.csv"), far).unwrap();
    expect(&tune(&place, &["--drive", "ra81"]), 1, "take a larger one (nearline-2018");
    fs::write(place.path("trace.csv"), "128166372000000000,host,0,Read,0,4096,0\n").unwrap();
    expect(&tune(&place, &[]), 1, "no writes");
}
