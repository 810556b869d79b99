//! `dcd drive`: shown, and compared with measurements.

use std::fmt::Write;
use std::process::Output;

use dcd_engine::{Extent, Lba, Nanos};
use dcd_model::drive;
use dcd_model::measured::{Measured, replay};

use crate::common::{Place, dcd, expect};

fn run(args: &[&str]) -> Output {
    dcd().arg("drive").args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn drives_are_listed_described_and_printed_to_be_changed() {
    let list = run(&["show"]);
    for name in drive::names() {
        expect(&list, 0, name);
        assert_eq!(text(&run(&["show", name, "--file"])), drive::text(name).unwrap(), "{name}");
    }
    let atlas = run(&["show", "atlas-10k"]);
    for what in
        ["10025 rpm", "10042 cylinders, 6 heads", "1.245 ms one cylinder", "10 segments of 374 sectors"]
    {
        expect(&atlas, 0, what);
    }
    let ssd = run(&["show", "ssd-nvme-2020"]);
    for what in ["64 MiB of answered writes, until a flush", "1500 MB/s, 70.6 GB at once", "600 TB"] {
        expect(&ssd, 0, what);
    }
    let zones = text(&atlas).lines().skip_while(|line| !line.starts_with("zone")).count();
    assert_eq!(zones, 1 + 24);
    expect(&run(&["show", "--fields"]), 0, "| `high-water-mark` | 0 |");
    expect(&run(&["show", "atlas-11k"]), 1, "no drive is called \"atlas-11k\": use one of atlas-10k");
}

/// Returns the trace that would have been measured on a real drive of this model.
fn measured_trace(name: &str, requests: u64) -> String {
    let drive = drive::builtin(name).unwrap();
    let places = drive.sectors() / 8;
    let request = |n: u64| {
        // Every third request goes on where the one before it ended.
        let place = (n - n % 3) * 7_919 % (places - 3) + n % 3;
        Measured {
            write: n.is_multiple_of(5),
            extent: Extent::new(Lba(place * 8), 8),
            response: Nanos::ZERO,
            think: Nanos::from_micros(n * 613 % 20_000),
        }
    };
    let trace: Vec<Measured> = (0..requests).map(request).collect();
    let responses = replay(&drive, &trace, true).unwrap().responses;
    let mut text = String::new();
    for (request, response) in trace.iter().zip(responses) {
        let kind = if request.write { 'W' } else { 'R' };
        let (response, think) = (response.0 as f64 / 1e3, request.think.0 as f64 / 1e3);
        writeln!(text, "{kind} Miss {} 8 {response:.3} {think:.3}", request.extent.start.0).unwrap();
    }
    text
}

#[test]
fn a_drive_is_as_good_as_its_distribution_of_response_times() {
    let place = Place::new();
    let (trace, page) = (place.path("measured.trace"), place.path("plot.html"));
    std::fs::write(&trace, measured_trace("barracuda-1996", 500)).unwrap();
    let (trace, page) = (trace.to_str().unwrap(), page.to_str().unwrap());
    let validated = |args: &[&str]| {
        let output = run(&[&["validate", "--json"], args].concat());
        expect(&output, 0, "demerit_ms");
        let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&result["requests"], &result["reads"]), (&500.into(), &400.into()));
        ["demerit_ms", "demerit_read_ms", "demerit_write_ms"].map(|what| result[what].as_f64().unwrap())
    };
    let demerit = |args: &[&str]| validated(args)[0];
    // The trace has its times in thousandths of a microsecond.
    assert!(demerit(&["barracuda-1996", trace, "--plots", page]) < 0.001);
    assert!(demerit(&["barracuda-1996", trace, "--read-ahead", "none"]) > 0.01);
    assert!(demerit(&["barracuda-1996", trace, "--write-cache", "off"]) > 0.1);
    // One request in five is a write.
    let [pooled, reads, writes] = validated(&["barracuda-1996", trace, "--write-cache", "off"]);
    assert!(writes > 1.5 * pooled && reads < pooled, "{pooled} {reads} {writes}");
    assert!(demerit(&["barracuda-1996", trace, "--bus", "1000000"]) > 1.0);
    assert!(demerit(&["atlas-10k", trace]) > 1.0);
    let shown = run(&["validate", "barracuda-1996", trace]);
    expect(&shown, 0, "demerit figure 0.000 ms, 0.0 % of the measured mean");
    expect(&shown, 0, "500 requests, 400 of them reads");
    expect(&shown, 0, "100.0 % of the requests took as long as measured to 0.417 ms");
    let plot = std::fs::read_to_string(page).unwrap();
    assert!(plot.contains("<svg") && plot.contains("measured") && plot.contains("barracuda-1996"));
}

#[test]
fn a_trace_that_cannot_be_compared_is_refused_with_the_reason() {
    let place = Place::new();
    let trace = place.path("spc.trace");
    let validate = |text: &str| {
        std::fs::write(&trace, text).unwrap();
        run(&["validate", "ra81", trace.to_str().unwrap()])
    };
    expect(&validate("0,0,4096,r,0.000000\n0,8,4096,w,0.100000\n"), 1, "request 1 has no response time");
    expect(
        &validate("R Miss 891070 8 5000 100\n"),
        1,
        "request 1 ends at sector 891078, and the drive has 891072",
    );
    expect(&run(&["validate", "ra81", "x", "--write-cache", "perhaps"]), 2, "unknown variant `perhaps`");
}
