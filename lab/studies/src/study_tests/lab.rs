//! The lab as a whole: the same seed gives the same results, whatever the number of threads; mistakes are refused; results
//! can be stored and shown again; the documentation names every experiment.

use std::sync::Mutex;

use dcd_studies::experiments::REGISTRY;
use dcd_studies::{
    Claim, LabError, Outcome, Overrides, RunOptions, judge_again, load, run, run_each, save, text_report,
};

fn options(seed: u64, jobs: usize, set: &[&str]) -> RunOptions {
    let overrides = Overrides::parse(set.iter().copied()).expect("KEY=VALUE");
    RunOptions { seed, jobs, overrides, progress: false, seeds: Some(1), build: String::new() }
}

/// Everything that can be seen of a result.
fn image(outcomes: &[Outcome]) -> String {
    let json = serde_json::to_string(outcomes).expect("plain data");
    format!("{json}{}", dcd_studies::html_report(outcomes))
}

#[test]
fn a_seed_fixes_every_bit_of_a_result_on_any_number_of_threads() {
    for (name, set) in [("dcd-rawwrite", "total=1MB"), ("dcd-physical", "requests=40")] {
        let results = |seed, jobs| image(&run(name, &options(seed, jobs, &[set])).expect("it runs"));
        let first = results(7, 1);
        assert_eq!(first, results(7, 1), "{name}: the same twice");
        assert_eq!(first, results(7, 3), "{name}: the same on three threads");
        assert_ne!(first, results(8, 1), "{name}: another seed is another run");
    }
}

#[test]
fn a_parameter_that_nobody_knows_is_refused_with_those_that_are_known() {
    let error = run("dcd-rawwrite", &options(1, 1, &["driv=x"])).expect_err("a typing mistake");
    assert!(matches!(error, LabError::UnknownParam { .. }));
    assert!(error.to_string().contains("drive, sizes, total"), "{error}");
    let error = run("dcd-rawrite", &options(1, 1, &[])).expect_err("a typing mistake");
    assert!(error.to_string().contains("dcd-rawwrite"), "{error}");
    let error = run("dcd-rawwrite", &options(1, 1, &["drive=none"])).expect_err("no such drive");
    assert!(error.to_string().contains("barracuda-1996"), "{error}");
    assert!(run("dcd-rawwrite", &options(1, 1, &["sizes=1000"])).is_err(), "not whole sectors");
}

#[test]
fn parameters_that_cannot_be_measured_are_refused_in_words() {
    for (name, set, says) in [
        ("dcd-nuser", "users=0", "parameter users: it must be at least 1"),
        ("dcd-nuser", "users=999999", "parameter users: at most 10000"),
        ("dcd-nuser", "disks=plain,plain", "parameter disks: number 2 of the list is in it before"),
        (
            "dcd-nuser",
            "cache=900TiB",
            "a log of 900 TiB does not fit here: the drive barracuda-1996 has 4.1 GiB",
        ),
        ("dcd-nuser", "cache=64", "a log of 64 B does not fit here: it has at least 1 MiB"),
        ("dcd-nuser", "segment=5GiB", "parameter segment: must be less than 4 GiB"),
        ("dcd-physical", "reads=101", "parameter reads: 101 percent is more than all"),
        ("nv-size", "sizes=900TiB", "parameter sizes: 900 TiB is more than 16 GiB"),
        ("bic-segments", "segments=0", "parameter segments: it must be at least 1"),
        ("ct-bulk", "members=0", "parameter members: an array has from 3 to 64 members"),
    ] {
        let error = run(name, &options(1, 1, &[set])).expect_err(set);
        assert!(error.to_string().contains(says), "{set}: {error}");
    }
}

#[test]
fn a_drive_may_be_one_of_the_users_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("mine.toml");
    let text = dcd_model::drive::text("barracuda-1996").expect("a drive");
    std::fs::write(&path, text.replace("rpm = 7200", "rpm = 3600")).expect("it is written");
    let bandwidth = |drive: &str| {
        let set = [format!("drive={drive}"), "total=1MB".to_owned(), "sizes=4k".to_owned()];
        let outcomes = run("dcd-rawwrite", &options(1, 1, &set.each_ref().map(String::as_str)));
        outcomes.expect("it runs")[0].samples.get("4096", "bytes_per_second")
    };
    let (own, half) = (bandwidth("barracuda-1996"), bandwidth(path.to_str().expect("UTF-8")));
    assert!(half < own, "{half} and {own} bytes a second");
    std::fs::write(&path, text.replace("rpm = 7200", "rpm = 0")).expect("it is written");
    for name in ["dcd-nuser", "dcd-futurework", "dcd-memory"] {
        let set = format!("drive={}", path.display());
        let error = run(name, &options(1, 1, &[set.as_str()])).expect_err("no such drive").to_string();
        assert!(error.starts_with("parameter drive: drive file, field `rpm`"), "{error}");
    }
    let set = format!("drives=atlas-10k,{}", path.display());
    let error = run("ct-stride", &options(1, 1, &[set.as_str()])).expect_err("no such drive").to_string();
    assert!(error.starts_with("parameter drives: drive file, field `rpm`"), "{error}");
}

#[test]
fn what_is_wrong_with_a_point_is_told_before_all_others_are_measured() {
    // The last of many points; the others take minutes.
    let error = run("dcd-nuser", &options(1, 2, &["segment=1KiB", "disks=ours flush,plain", "users=1,16"]));
    assert!(error.expect_err("no such segments").to_string().contains("segment size must be a power of two"));
}

#[test]
fn a_reason_is_told_as_one_of_the_experiment_as_it_is() {
    let outcomes = run("nv-piggyback", &options(1, 2, &["requests=500", "disks=off-day"])).expect("it runs");
    let claims = &outcomes[0].findings.claims;
    let reasons: Vec<&str> = claims.iter().filter_map(|claim| claim.reason.as_deref()).collect();
    assert!(!reasons.is_empty(), "with so few requests much differs");
    assert!(reasons.iter().all(|reason| reason.starts_with("(with no parameter set) ")), "{reasons:?}");
}

#[test]
fn more_is_judged_by_seeds_and_a_result_is_handed_over_when_it_is_there() {
    let options = RunOptions { seeds: Some(3), ..options(1, 2, &["requests=500"]) };
    let handed = Mutex::new(Vec::new());
    let outcomes = run_each("nv-allocate", &options, &|outcome| {
        handed.lock().unwrap().push(outcome.clone());
        Ok(())
    });
    let outcomes = outcomes.expect("it runs");
    assert_eq!(handed.into_inner().unwrap(), outcomes);
    assert_eq!(outcomes[0].more_samples.len(), 2);
    let over_seeds = |claim: &&Claim| claim.ours.contains("; difference over 3 seeds: ");
    let claims = &outcomes[0].findings.claims;
    assert_eq!(
        claims.iter().filter(over_seeds).count(),
        2,
        "each disk but Off-Day has one that says \"more\": {claims:?}"
    );
    assert_eq!(judge_again(outcomes[0].clone()).expect("it has all points"), outcomes[0]);
    let directory = tempfile::tempdir().expect("a directory");
    save(directory.path(), &outcomes[0], &Default::default()).expect("it is written");
    assert_eq!(load(directory.path(), "nv-allocate").expect("it is read").as_ref(), Some(&outcomes[0]));
    let refuse = |_: &Outcome| Err(LabError::Setup("no room".to_owned()));
    assert_eq!(run_each("dcd-physical", &options, &refuse).expect_err("no room").to_string(), "no room");
}

#[test]
fn results_are_the_same_when_they_are_read_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let outcomes = run("dcd-rawwrite", &options(1, 1, &["total=1MB", "sizes=4k,128k"])).expect("it runs");
    save(directory.path(), &outcomes[0], &Default::default()).expect("it is written");
    let again = load(directory.path(), "dcd-rawwrite").expect("it is read").expect("it is there");
    assert_eq!(again, outcomes[0]);
    assert_eq!(text_report(&again), text_report(&outcomes[0]));
    assert_eq!(load(directory.path(), "dcd-memory").expect("nothing is there"), None);
    assert!(directory.path().join("dcd-rawwrite-1.svg").exists());
}

#[test]
fn the_documentation_names_every_experiment_and_no_other() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/experiments.md");
    let text = std::fs::read_to_string(path).expect("docs/experiments.md");
    let documented: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let known: Vec<&str> = REGISTRY.iter().map(|experiment| experiment.name).collect();
    assert_eq!(documented, known, "run `dcd study run all --doc docs/experiments.md`");
}

#[test]
fn every_experiment_has_a_name_of_its_own_and_says_what_its_parameters_are() {
    let names: std::collections::BTreeSet<&str> = REGISTRY.iter().map(|experiment| experiment.name).collect();
    assert_eq!(names.len(), REGISTRY.len());
    for experiment in REGISTRY.iter() {
        assert!(experiment.params.iter().all(|param| !param.about.is_empty()), "{}", experiment.name);
    }
}
