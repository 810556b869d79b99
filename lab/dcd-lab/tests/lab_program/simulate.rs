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
    // A trace without flushes makes nothing durable with another promise.
    let (flushed, is_told) = ("--set=cache.promise=flush", "this cache makes nothing durable");
    expect(&simulate(&place, &["cached.toml", "--trace", "trace.csv", flushed]), 0, is_told);
    assert!(!String::from_utf8_lossy(&text.stdout).contains(is_told));
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

fn json(output: &Output) -> Value {
    expect(output, 0, "");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_load_of_ones_own_is_a_file_of_ours_or_a_job_of_fio() {
    let place = Place::new();
    prepare(&place);
    fs::write(place.path("mine.toml"), "clients = 4\nsize = \"8KiB\"\nreads = 0.5\nflush-every = 8\n")
        .unwrap();
    fs::write(place.path("job.fio"), "[job]\nrw=randrw\nbs=8k\niodepth=4\nfsync=8\n").unwrap();
    let run = |load: &str| {
        json(&simulate(&place, &["plain.toml", "--load", load, "--requests=500", "--json"]))["stacks"].clone()
    };
    let mine = run("mine.toml");
    assert_eq!(mine, run("job.fio"));
    let count = |kind: &str| mine[0]["requests"][kind]["count"].as_u64().unwrap();
    assert_eq!(count("read") + count("write") + count("flush"), 500);
    assert_eq!(count("write") / 8, count("flush"));
    // Four at a time do more a second, and each waits longer.
    fs::write(place.path("one.toml"), "size = \"8KiB\"\nreads = 0.5\nflush-every = 8\n").unwrap();
    let one = run("one.toml");
    let read = |result: &Value, what: &str| result[0]["requests"]["read"][what].as_f64().unwrap();
    assert!(read(&mine, "per_second") > read(&one, "per_second"), "{mine} {one}");
    assert!(read(&mine, "mean_ms") > 2.0 * read(&one, "mean_ms"), "{mine} {one}");
    fs::write(place.path("open.toml"), "size = \"4KiB\"\nrate = 20\nrequests = 200\nseed = 3\n").unwrap();
    expect(
        &simulate(&place, &["plain.toml", "--load", "open.toml"]),
        0,
        "open.toml: 200 requests at 20 a second, seed 3",
    );
    fs::write(place.path("bad.fio"), "[job]\nrw=randrw\nzonesize=4k\n").unwrap();
    let bad = simulate(&place, &["plain.toml", "--load", "bad.fio"]);
    expect(&bad, 1, "bad.fio: line 3, zonesize: the option is not understood");
}

#[test]
fn a_trace_is_replayed_in_a_closed_loop_and_faster() {
    let place = Place::new();
    prepare(&place);
    expect(&both(&place, &["--closed"]), 1, "request 1 of the trace has no response time");
    expect(&both(&place, &["--depth", "4"]), 2, "--closed");
    let seconds = |more: &[&str]| {
        let result = json(&simulate(&place, &[&["plain.toml", "--json", "--trace"][..], more].concat()));
        result["stacks"][0]["seconds"].as_f64().unwrap()
    };
    assert!((5.9..6.1).contains(&seconds(&["trace.csv"])));
    assert!((2.9..4.0).contains(&seconds(&["trace.csv", "--time-scale", "0.5"])));
    let (one, eight) =
        (seconds(&["trace.csv", "--closed", "--depth=1"]), seconds(&["trace.csv", "--closed", "--depth=8"]));
    assert!(eight < one, "{eight} {one}");
    // The samples of a run are a trace with response times: the same disk answers it again in the same time.
    expect(&simulate(&place, &["plain.toml", "--trace=trace.csv", "--samples", "answered.csv"]), 0, "");
    let samples = fs::read_to_string(place.path("answered.csv")).unwrap();
    assert_eq!(samples.lines().next(), Some("at_ns,device,op,lba,sectors,response_ns"));
    assert_eq!(samples.lines().count(), 601);
    assert!(
        (5.9..6.1).contains(&seconds(&["answered.csv", "--closed"])),
        "{}",
        seconds(&["answered.csv", "--closed"])
    );
    expect(&both(&place, &["--samples", "two.csv"]), 1, "--samples is for one run");
}

#[test]
fn fields_and_seeds_are_swept() {
    let place = Place::new();
    prepare(&place);
    let sweep = ["plain.toml", "--workload=mixed", "--requests=200", "--set", "disk.drive=ra82,atlas-10k"];
    let result = json(&simulate(&place, &[&sweep[..], &["--seeds=3", "--json"]].concat()));
    let stacks = result["stacks"].as_array().unwrap();
    assert_eq!(stacks.len(), 2);
    for (stack, name) in stacks.iter().zip(["plain.toml disk.drive=ra82", "plain.toml disk.drive=atlas-10k"])
    {
        assert_eq!(stack["stack"], name);
        let interval = &stack["intervals_95"]["reads"]["mean_ms"];
        let (mean, half) = (interval[0].as_f64().unwrap(), interval[1].as_f64().unwrap());
        let first = stack["requests"]["read"]["mean_ms"].as_f64().unwrap();
        assert!(half > 0.0 && half < mean && (first - mean).abs() < 3.0 * half, "{first} {interval}");
    }
    let text = simulate(&place, &[&sweep[..], &["--seeds=2"]].concat());
    expect(&text, 0, "plain.toml disk.drive=ra82: reads ");
    expect(&text, 0, " ± ");
    let wrong = ["plain.toml", "--workload=mixed", "--set", "cache.low-mark=1"];
    expect(&simulate(&place, &wrong), 1, "--set layer.cache.low-mark: there is no [layer.cache]");
}

#[test]
fn an_experiment_is_a_file_and_its_claims_are_judged() {
    let place = Place::new();
    prepare(&place);
    let directory = place.path("lab");
    fs::create_dir(&directory).unwrap();
    for name in ["plain.toml", "cached.toml", "trace.csv"] {
        fs::rename(place.path(name), directory.join(name)).unwrap();
    }
    fs::write(directory.join("mine.toml"), "size = \"4KiB\"\nrequests = 80\n").unwrap();
    let head = "stacks = [\"plain.toml\", \"cached.toml\"]\n";
    let claim = |says: &str, range: &str| {
        format!(
            "[[claim]]\nsays = \"{says}\"\nfigure = \"requests.write.mean_ms\"\nof = \"plain.toml\"\n\
             over = \"cached.toml cache.low-mark=20\"\n{range}\n"
        )
    };
    let experiment = |text: &str, more: &[&str]| {
        fs::write(directory.join("experiment.toml"), text).unwrap();
        let command = ["experiment", "lab/experiment.toml"].iter().chain(more);
        dcd().args(command).current_dir(place.dir.path()).output().unwrap()
    };
    let set = "load = \"mine.toml\"\nquiet = true\nseeds = 3\nset = [\"cache.low-mark=20,40\"]\n";
    // A swept field has to be in every stack.
    expect(
        &experiment(&format!("{head}{set}"), &[]),
        1,
        "lab/plain.toml: --set layer.cache.low-mark: there is no",
    );
    let both = "stacks = [\"cached.toml\"]\n";
    let same = claim("the low mark decides nothing here", "at-least = 0.99\nat-most = 1.01")
        .replace("of = \"plain.toml\"", "of = \"cached.toml cache.low-mark=40\"");
    expect(
        &experiment(&format!("{both}{set}{same}"), &[]),
        0,
        "holds: the low mark decides nothing here: 1.000",
    );
    let faster =
        format!("{head}trace = \"trace.csv\"\nquiet = true\n{}", claim("writes are faster", "at-least = 4"));
    let faster = faster.replace(" cache.low-mark=20", "");
    expect(&experiment(&faster, &[]), 0, "holds: writes are faster: ");
    let slower = faster.replace("at-least = 4", "at-most = 4");
    let output = experiment(&slower, &[]);
    expect(&output, 1, "does not hold: writes are faster: ");
    expect(&output, 1, "1 of 1 claims do not hold");
    let output = experiment(&slower, &["--json"]);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["claims"][0]["holds"], false);
    assert!(result["claims"][0]["value"].as_f64().unwrap() > 4.0, "{}", result["claims"]);
    for (text, says) in [
        (faster.replace("quiet", "colour"), "lab/experiment.toml: unexpected argument '--colour'"),
        (
            faster.replace("mean_ms", "colour"),
            "\"requests.write.colour\" is no number of the stack \"plain.toml\"",
        ),
        (
            faster.replace("of = \"plain.toml\"", "of = \"p\""),
            "there is no stack \"p\", but lab/plain.toml, lab/cached.toml",
        ),
        (faster.replace("at-least = 4", ""), "claim \"writes are faster\": write at-least, at-most or both"),
        (faster.replace("trace =", "load ="), "lab/trace.csv"),
        (faster.replace("over", "under"), "unknown field `under`"),
    ] {
        expect(&experiment(&text, &[]), 1, says);
    }
}
