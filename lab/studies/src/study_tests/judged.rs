//! Judging by made-up results: a sentence holds only by what it says.

use crate::experiments::find;
use crate::{Claim, Count, Findings, Overrides, Sample, Samples, Settings, Verdict};

/// Judges results of which every point has the same names of numbers.
fn judged(name: &str, set: &[&str], names: &[&str], number: impl Fn(&str, &str) -> f64) -> Findings {
    let experiment = find(name).expect("it is registered");
    let overrides = Overrides::parse(set.iter().copied()).expect("KEY=VALUE");
    let settings = Settings::new(experiment.params, &overrides, 1).of(experiment.paper);
    let points = (experiment.plan)(&settings).expect("it can be set up");
    let samples = points.into_iter().map(|point| {
        let numbers = names.iter().map(|what| ((*what).to_owned(), number(&point.key, what))).collect();
        (point.key, Sample { numbers, ..Sample::default() })
    });
    (experiment.conclude)(&settings, &Samples(samples.collect())).expect("it is judged")
}

/// Cases of the sentence in which the paper says this.
fn cases<'a>(findings: &'a Findings, says: &str) -> Vec<&'a Claim> {
    findings.claims.iter().filter(|claim| claim.quote.contains(says)).collect()
}

#[test]
fn the_lock_is_judged_by_both_readings_of_the_driver() {
    let phases = ["untar", "copy", "remove"];
    let of_phases =
        phases.iter().flat_map(|phase| ["seconds", "log_bytes"].map(|what| format!("{phase}/{what}")));
    let others = ["seconds", "destage_writes", "destaged_mb", "destage_seconds", "dirty_mb", "disk_reads"];
    let names: Vec<String> = of_phases.chain(others.map(str::to_owned)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let holding = |waiting: f64| {
        let seconds = |key: &str, _: &str| match (key.ends_with(": paper"), key.contains("benchmark")) {
            (true, true) if key.contains("waiting") => waiting,
            (true, true) => 4.0,
            _ => 1.0,
        };
        let findings = judged("dcd-futurework", &[], &names, seconds);
        let lock: Vec<Claim> = cases(&findings, "limits parallelism").into_iter().cloned().collect();
        (lock.len(), Count::of(&lock).holding)
    };
    assert_eq!(holding(2.0), (4, 1));
    assert_eq!(holding(1.0), (4, 0), "where a buffer waits, the lock costs nothing");
}

#[test]
fn the_fall_of_the_last_megabyte_is_judged_and_not_where_it_ends() {
    let holds = |at_1_mb: f64| {
        let wwc = |key: &str, _: &str| match key {
            key if key.ends_with(", 2048 KiB") => 15.0,
            key if key.ends_with(", 1024 KiB") => at_1_mb,
            _ => 40.0,
        };
        let findings = judged("nv-size", &["disks=sci-off", "requests=10"], &["wwc", "rwc", "stalls"], wwc);
        cases(&findings, "reduces only by 5.9%").iter().all(|claim| claim.holds())
    };
    assert!(holds(21.0) && !holds(17.0));
}

#[test]
fn a_low_threshold_near_0_is_not_below_70_percent() {
    let holds = |at_0: f64, at_10: f64| {
        let names = ["wwc", "stalls", "overwritten", "several", "immediate", "disk_writes"];
        let wwc = |key: &str, _: &str| match key {
            key if key.contains(", 0 to 95") || key.contains(", 5 to 95") => at_0,
            key if key.contains(", 10 to 95") => at_10,
            _ => 20.0,
        };
        let findings = judged("nv-two-thresholds", &["disks=off-day", "requests=10"], &names, wwc);
        cases(&findings, "below 70%").iter().all(|claim| claim.holds())
    };
    assert!(holds(25.0, 20.0) && !holds(20.0, 25.0));
}

#[test]
fn buffers_that_hold_all_files_are_one_measurement() {
    let names = ["fsrt_ms", "p_disk_miss", "p_disk_read_miss", "reads_of_waits"];
    let measured = |repeats: bool| {
        let fsrt = |key: &str, _: &str| {
            let buffer: f64 =
                key.split(' ').nth(2).and_then(|bytes| bytes.trim_end_matches(',').parse().ok()).unwrap();
            let gain = if repeats && buffer > 2e7 { 3e7 } else { buffer } / 1e9;
            let small = if key.contains("built-in 524288,") { 0.001 } else { 0.0 };
            if key.ends_with("off") { 1.0 } else { 0.8 + gain + small }
        };
        let findings = judged("bic-readahead", &["workloads=INS"], &names, fsrt);
        cases(&findings, "nearly achieves a maximum")[0].clone()
    };
    assert!(measured(false).holds());
    let nothing = "nothing was measured in 2 of 4 cases".to_owned();
    assert_eq!(measured(true).verdict, Verdict::Differs(nothing));
}

#[test]
fn a_quantity_that_a_sentence_gives_twice_is_one_case() {
    for (name, says) in [("dcd-latency", "less than 1/14"), ("dcd-latency", "about 1/7")] {
        let claims = find(name).expect("it is registered").paper.claims.iter();
        let ids: Vec<&str> = claims
            .filter(|(_, claim)| {
                claim.quote.contains(says) && claim.chose.is_none() && claim.follows.is_none()
            })
            .map(|(id, _)| id.as_str())
            .collect();
        assert_eq!(ids.len(), 1, "{name}, {says}: {ids:?}");
    }
}
