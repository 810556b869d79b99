//! Many traces: `dcd tune DIR`, parts of it, and `dcd-lab merge`.

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

fn traces(report: &Value) -> Vec<&str> {
    report["reports"].as_array().unwrap().iter().map(|one| one["trace"].as_str().unwrap()).collect()
}

#[test]
fn a_directory_is_tuned_at_once_and_its_parts_are_merged_to_the_same() {
    let place = Place::new();
    prepare(&place);
    let output = tune(&place, &["--out", "all"]);
    expect(&output, 0, "3 traces by mean response time, on the drive nearline-2018");
    for said in [
        "waits less s/h",
        "s/h for 1",
        "Left out: traces/reads.csv: the trace has no writes",
        "Left out: traces/README: ",
    ] {
        expect(&output, 0, said);
    }
    let all = report(&place, "all/report.json");
    // The one whose requests wait less comes first.
    assert_eq!(traces(&all), ["traces/busy.csv", "traces/calm.csv", "traces/idle.csv"]);
    let left_out = |report: &Value| {
        let all = report["left_out"].as_array().unwrap().iter();
        all.map(|one| one["trace"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    // A hidden file is not looked at, and a recording of two CPUs is one trace.
    let expected = ["traces/README", "traces/reads.csv", "traces/sda"].map(str::to_owned);
    assert_eq!(left_out(&all), BTreeSet::from(expected));
    for name in ["busy.csv", "calm.csv", "idle.csv"] {
        for result in ["tune.html", "tune.json", "serve.toml", "simulate.toml"] {
            assert!(place.path("all").join(name).join(result).is_file(), "{name} {result}");
        }
    }
    // Alone, a trace gives the same.
    let alone =
        run(&place, &["tune", "traces/calm.csv", "--ssd", "0.10", "--log-sizes=16MiB", "--json", "--quiet"]);
    assert_eq!(
        serde_json::from_slice::<Value>(&alone.stdout).unwrap(),
        report(&place, "all/calm.csv/tune.json")
    );
    let page = fs::read_to_string(place.path("all/report.html")).unwrap();
    assert!(page.find("<svg").unwrap() < page.find("<table").unwrap() && page.contains("traces/busy.csv"));
    crate::tune::fits(&place, &place.path("all/report.html"));

    // Two jobs share the directory, and none of the traces is done twice.
    for part in ["1/2", "2/2"] {
        expect(&tune(&place, &["--out", "parts", "--shard", part]), 0, "");
    }
    let of = |part: &str| report(&place, &format!("parts/report-{part}-of-2.json"));
    assert_eq!(traces(&of("1")).len() + traces(&of("2")).len(), 3);
    let merge = |more: &[&str]| {
        let parts = ["merge", "parts/report-1-of-2.json", "parts/report-2-of-2.json"];
        run(&place, &[&parts[..], more].concat())
    };
    let merged = merge(&["--json", "--html", "merged.html"]);
    expect(&merged, 0, "");
    let merged: Value = serde_json::from_slice(&merged.stdout).unwrap();
    assert_eq!(merged["reports"], all["reports"]);
    assert_eq!(left_out(&merged), left_out(&all));
    assert_eq!(
        merge(&[]).stdout.iter().filter(|&&byte| byte == b'\n').count(),
        output.stdout.iter().filter(|&&b| b == b'\n').count()
    );
    assert!(
        fs::read_to_string(place.path("merged.html")).unwrap().contains("log on an SSD, 16 MiB: 3 traces")
    );

    // Of two machines that call their traces the same, each is told by its report.
    let twice = run(&place, &["merge", "all/calm.csv/tune.json", "all/report.json"]);
    expect(&twice, 0, "all/report.json: traces/calm.csv");
}

#[test]
fn what_cannot_be_compared_is_refused_with_advice() {
    let place = Place::new();
    prepare(&place);
    expect(&tune(&place, &["--shard", "0/2"]), 2, "write it like 2/8");
    expect(&tune(&place, &["--shard", "9/9"]), 1, "part 9 of 9 has no trace");
    expect(
        &tune(&place, &["--out", "traces"]),
        1,
        "--out traces: the traces are there: name another directory",
    );
    let none = run(&place, &["tune", "traces/README", "traces/reads.csv", "--quiet"]);
    expect(&none, 1, "none of the traces could be tuned: traces/README: ");
    fs::write(place.path("other.json"), "{\"a\": 1}").unwrap();
    expect(&run(&place, &["merge", "other.json"]), 1, "name a tune.json or report.json of dcd tune");
    expect(
        &run(&place, &["merge", "other.json", "--html", "other.json"]),
        1,
        "is the same file as other.json",
    );
    for (objective, out) in [("mean", "a"), ("p95", "b")] {
        let args = [
            "tune",
            "traces/idle.csv",
            "--ssd",
            "--log-sizes=16MiB",
            "--quiet",
            "--objective",
            objective,
            "--out",
            out,
        ];
        expect(&run(&place, &args), 0, "");
    }
    expect(
        &run(&place, &["merge", "a/tune.json", "b/tune.json"]),
        1,
        "by 95 % response time: they cannot be compared",
    );
}
