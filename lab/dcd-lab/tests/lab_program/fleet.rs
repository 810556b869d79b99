//! Many traces: `dcd tune DIR`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::process::Output;

use crate::common::{Place, dcd, expect};
use serde_json::Value;

/// Three hosts, one busier than the other, one that only reads, and a file that is no trace.
fn prepare(place: &Place) {
    fs::create_dir(place.path("traces")).unwrap();
    for (name, requests, gap) in
        [("busy.csv", 900u64, 40_000), ("calm.csv", 300, 900_000), ("idle.csv", 60, 9_000_000)]
    {
        let mut text = String::new();
        for i in 0..requests {
            let (kind, offset) = if i % 3 == 0 { ("Read", 4 << 20) } else { ("Write", 0) };
            let offset = offset + i * i % 97 * 8192;
            writeln!(text, "{},host,0,{kind},{offset},4096,0", 128_166_372_000_000_000 + i * gap).unwrap();
        }
        fs::write(place.path("traces").join(name), text).unwrap();
    }
    fs::write(place.path("traces/reads.csv"), "128166372000000000,host,0,Read,0,4096,0\n").unwrap();
    fs::write(place.path("traces/README"), "Traces of three hosts\n").unwrap();
    for cpu in ["traces/sda.blktrace.0", "traces/sda.blktrace.1"] {
        fs::write(place.path(cpu), "cut off").unwrap();
    }
    fs::write(place.path("traces/.hidden"), "no trace either\n").unwrap();
}

fn run(place: &Place, args: &[&str]) -> Output {
    dcd().args(args).current_dir(place.dir.path()).output().unwrap()
}

const TUNE: [&str; 7] = ["tune", "traces", "--ssd", "0.10", "--log-sizes=16MiB", "--jobs=2", "--quiet"];

fn tune(place: &Place, more: &[&str]) -> Output {
    run(place, &[&TUNE[..], more].concat())
}

fn report(place: &Place, file: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(place.path(file)).unwrap()).unwrap()
}

#[test]
fn a_directory_is_tuned_at_once_and_those_that_gain_most_come_first() {
    let place = Place::new();
    prepare(&place);
    let output = tune(&place, &["--out", "all"]);
    expect(&output, 0, "waits less s/h");
    let told = String::from_utf8(output.stdout.clone()).unwrap();
    let at = |name: &str| told.find(name).unwrap_or_else(|| panic!("{name}: {told}"));
    assert!(at("traces/busy.csv: log on an SSD, 16 MiB, ") < at("traces/calm.csv: "), "{told}");
    assert!(at("traces/calm.csv: ") < at("traces/idle.csv: "), "{told}");
    // A hidden file is not looked at, and a recording of two CPUs is one trace.
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    let left_out: BTreeSet<&str> = errors
        .lines()
        .filter_map(|line| line.strip_prefix("dcd-lab: left out: "))
        .map(|line| line.split_once(": ").unwrap().0)
        .collect();
    assert_eq!(left_out, BTreeSet::from(["traces/README", "traces/reads.csv", "traces/sda"]), "{errors}");
    assert!(errors.contains("traces/reads.csv: the trace has no writes"), "{errors}");
    for name in ["busy.csv", "calm.csv", "idle.csv"] {
        for result in ["tune.html", "tune.json", "serve.toml", "simulate.toml"] {
            assert!(place.path("all").join(name).join(result).is_file(), "{name} {result}");
        }
    }
    // Alone, a trace gives the same; and a line for each is what the files have.
    let alone =
        run(&place, &["tune", "traces/calm.csv", "--ssd", "0.10", "--log-sizes=16MiB", "--json", "--quiet"]);
    let calm = report(&place, "all/calm.csv/tune.json");
    assert_eq!(serde_json::from_slice::<Value>(&alone.stdout).unwrap(), calm);
    let lines = tune(&place, &["--json"]);
    let lines = String::from_utf8(lines.stdout).unwrap();
    let reports: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((reports.len(), &reports[1]), (3, &calm));
}

#[test]
fn traces_that_cannot_be_tuned_together_are_refused_with_advice() {
    let place = Place::new();
    prepare(&place);
    expect(
        &tune(&place, &["--out", "traces"]),
        1,
        "--out traces: the traces are there: name another directory",
    );
    let none = run(&place, &["tune", "traces/README", "traces/reads.csv", "--quiet"]);
    expect(&none, 1, "none of the traces could be tuned: traces/README: ");
}
