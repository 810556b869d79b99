//! `dcd simulate --trace`, as a user runs it: stacks beside each other under one trace.

use std::fmt::Write;
use std::fs;
use std::process::Output;

use crate::common::{Place, dcd, expect};
use serde_json::Value;

const DISK: &str = "[device.medium]\nmemory = \"64MiB\"\n\
    [layer.disk]\nkind = \"disk\"\nof = \"medium\"\ndrive = \"barracuda-1996\"\n";

/// A plain disk, one behind a log, and a trace in MSR's format: 400 small writes and 200 reads, 10 ms apart.
fn prepare(place: &Place) {
    fs::write(place.path("plain.toml"), format!("export = \"disk\"\n{DISK}")).unwrap();
    let cached = format!(
        "export = \"cache\"\n{DISK}[device.log]\nmemory = \"16MiB\"\n\
         [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"disk\"\npromise = \"always\"\n"
    );
    fs::write(place.path("cached.toml"), cached).unwrap();
    let mut text = String::new();
    for i in 0..600u64 {
        let (kind, offset) = if i % 3 == 0 { ("Read", 4 << 20) } else { ("Write", 0) };
        let offset = offset + i * i % 97 * 8192;
        writeln!(text, "{},host,0,{kind},{offset},4096,0", 128_166_372_000_000_000 + i * 100_000).unwrap();
    }
    fs::write(place.path("trace.csv"), text).unwrap();
}

fn simulate(place: &Place, more: &[&str]) -> Output {
    dcd().arg("simulate").args(more).arg("--quiet").current_dir(place.dir.path()).output().unwrap()
}

const BOTH: [&str; 4] = ["plain.toml", "cached.toml", "--trace", "trace.csv"];

fn both(place: &Place, more: &[&str]) -> Output {
    simulate(place, &[&BOTH[..], more].concat())
}

#[test]
fn stacks_stand_beside_each_other_under_one_trace() {
    let place = Place::new();
    prepare(&place);
    let output = both(&place, &["--csv", "series.csv", "--html", "page.html", "--json", "--jobs=2"]);
    expect(&output, 0, "");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |stack: usize, kind: &str| result["stacks"][stack]["requests"][kind].clone();
    for stack in 0..2 {
        for (kind, count) in [("read", 200), ("write", 400), ("flush", 0)] {
            let times = of(stack, kind);
            assert_eq!((&times["count"], &times["bytes"]), (&count.into(), &(count * 4096).into()));
            let shares =
                ["p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms"].map(|p| times[p].as_f64().unwrap());
            assert!(shares.is_sorted(), "{times}");
        }
    }
    let mean = |stack: usize| of(stack, "write")["mean_ms"].as_f64().unwrap();
    assert!(mean(0) > 4.0 && mean(1) < 1.0, "a disk has to turn, an SSD has not: {result}");
    // The series has all requests, and what only a cache has.
    let series = fs::read_to_string(place.path("series.csv")).unwrap();
    let mut lines = series.lines();
    assert_eq!(
        lines.next().unwrap(),
        "stack,time_s,reads,writes,read_mean_ms,write_mean_ms,dirty_bytes_max,log_used_bytes_max,waiting_max"
    );
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    for (stack, name) in ["plain.toml", "cached.toml"].into_iter().enumerate() {
        let rows: Vec<&Vec<&str>> = rows.iter().filter(|row| row[0] == name).collect();
        let sum = |column: usize| rows.iter().map(|row| row[column].parse::<u64>().unwrap()).sum::<u64>();
        assert_eq!((sum(2), sum(3)), (200, 400));
        assert!(rows.len() > 200 && rows.len() <= 512, "{}", rows.len());
        let most = |column: usize| rows.iter().filter_map(|row| row[column].parse::<u64>().ok()).max();
        assert_eq!(most(6).is_some(), stack == 1);
        assert!(stack == 0 || (most(6).unwrap() >= 4096 && most(7).unwrap() >= most(6).unwrap()), "{rows:?}");
        assert!(most(8).unwrap() >= 1);
    }
    let page = fs::read_to_string(place.path("page.html")).unwrap();
    assert!(page.find("<svg").unwrap() < page.find("<table").unwrap(), "a chart comes first");
    for title in ["Response times of writes", "Mean response time of reads", "Dirty data", "Log in use"] {
        assert!(page.contains(title), "{title}");
    }
    // The same again, whatever runs beside it; and as text.
    let again = both(&place, &["--json", "--jobs=1"]);
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap(), result);
    let text = both(&place, &[]);
    for said in
        ["trace.csv: 600 requests in 6 s, 67 % of them writes", "p99.9", "cached.toml: ", "dirty at the end"]
    {
        expect(&text, 0, said);
    }
    crate::tune::fits(&place, &place.path("page.html"));
}

#[test]
fn a_series_has_rows_as_long_as_was_asked_for() {
    let place = Place::new();
    prepare(&place);
    expect(&both(&place, &["--csv", "series.csv", "--interval", "2s"]), 0, "");
    let series = fs::read_to_string(place.path("series.csv")).unwrap();
    let ends: Vec<&str> =
        series.lines().filter(|l| l.starts_with("plain")).map(|l| l.split(',').nth(1).unwrap()).collect();
    assert_eq!(ends[..2], ["2.000000", "4.000000"]);
    assert_eq!(ends.len(), 3);
    assert!(series.lines().nth(1).unwrap().starts_with("plain.toml,2.000000,67,133,"), "{series}");
}

#[test]
fn what_cannot_be_replayed_is_refused_with_advice() {
    let place = Place::new();
    prepare(&place);
    let far = "128166372000000000,host,0,Write,900000000,4096,0\n";
    fs::write(place.path("far.csv"), far).unwrap();
    let of = |trace: &'static str| ["plain.toml", "--trace", trace];
    expect(
        &simulate(&place, &of("far.csv")),
        1,
        "plain.toml: the export has 64 MiB, and the trace reaches to 858.3 MiB",
    );
    expect(&simulate(&place, &of("none.csv")), 1, "none.csv: No such file");
    expect(&simulate(&place, &["plain.toml"]), 2, "--trace <FILE>|--workload <NAME>");
    expect(
        &simulate(&place, &["none.toml", "--workload", "mixed"]),
        1,
        "none.toml: cannot be read: No such file",
    );
    expect(&both(&place, &["--device", "7"]), 1, "the trace has no device 7; it has 0");
    expect(
        &both(&place, &["--csv", "trace.csv"]),
        1,
        "trace.csv is the same file as trace.csv, which is read",
    );
    expect(&both(&place, &["--html", "no/page.html"]), 1, "no/page.html: No such file");
    fs::write(place.path("old.csv"), "older").unwrap();
    expect(
        &simulate(&place, &["none.toml", "--workload", "mixed", "--csv", "old.csv"]),
        1,
        "none.toml: cannot be read",
    );
    assert_eq!(fs::read_to_string(place.path("old.csv")).unwrap(), "older", "nothing has taken its place");
    expect(&both(&place, &["--interval", "0s"]), 2, "longer than nothing");
    let many = [&["plain.toml"; 11][..], &["--trace", "trace.csv"]].concat();
    expect(&simulate(&place, &many), 1, "name 10 at most");
    // A trace that only reads has no use for a cache, and is replayed all the same.
    fs::write(place.path("reads.csv"), "128166372000000000,host,0,Read,0,4096,0\n").unwrap();
    expect(&simulate(&place, &of("reads.csv")), 0, "reads    plain.toml            1");
}
