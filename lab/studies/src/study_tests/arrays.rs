//! The studies of the array, each at a small scale: they run to their end, and every figure is one.

use dcd_studies::{Outcome, Overrides, RunOptions, run};

fn small(name: &str, set: &[&str]) -> Outcome {
    let overrides = Overrides::parse(set.iter().copied()).expect("KEY=VALUE");
    let options =
        RunOptions { seed: 1, jobs: 1, overrides, progress: false, seeds: Some(1), build: String::new() };
    run(name, &options).expect("it runs").remove(0)
}

/// The figures of a table, without units; not a number where there is none.
fn figures(outcome: &Outcome) -> Vec<f64> {
    let cells = outcome.findings.tables.iter().flat_map(|table| table.rows.iter().flat_map(|row| &row[1..]));
    cells.map(|cell| cell.trim_end_matches('x').parse().unwrap_or(f64::NAN)).collect()
}

#[test]
fn ct_random_gains_where_gaps_are_filled() {
    let set = ["workspaces=1", "writes=20000", "counts=5000,10000", "queue-depths=1", "cache=64MiB"];
    let outcome = small("ct-random", &set);
    let figures = figures(&outcome);
    assert!(!figures.is_empty() && figures.iter().all(|figure| figure.is_finite()), "{figures:?}");
    // PBGC, SC and MSC-CT in MB/s.
    assert!(figures[2] > 1.2 * figures[1], "{figures:?}");
}

#[test]
fn ct_bulk_is_faster_with_a_stripe_cache_and_no_slower_with_the_transform() {
    let outcome = small("ct-bulk", &["scale=64", "block-bytes=16MiB"]);
    let rows = &outcome.findings.tables[0].rows;
    assert_eq!(rows.len(), 12);
    for row in rows.iter().filter(|row| row[0].ends_with("(block)")) {
        let [pbgc, sc, ct] = [4, 5, 6].map(|index: usize| row[index].parse::<f64>().expect("a figure"));
        assert!(sc >= 0.99 * pbgc && ct >= 0.99 * sc, "{row:?}");
    }
}

#[test]
fn ct_concurrent_says_that_nothing_is_destaged_for_one_client() {
    let set = ["runs=2", "scale=64", "clients=1,8", "strips=8KiB,128KiB", "strip-clients=8"];
    let outcome = small("ct-concurrent", &set);
    let figures = figures(&outcome);
    assert!(!figures.is_empty() && figures.iter().all(|figure| figure.is_finite()), "{figures:?}");
    let claim = outcome.findings.claims.iter().find(|claim| claim.claim.starts_with("one client"));
    let claim = claim.expect("it was asked for");
    assert_eq!((claim.ours.as_str(), claim.holds()), ("nothing measured: nothing was destaged", false));
}

#[test]
fn ct_aged_gains_from_the_transform_once_files_were_removed() {
    let set =
        ["used=256MiB", "cache=16MiB", "page-cache=8MiB", "means=16KiB", "cycles=0,5", "aged=5", "runs=1"];
    let outcome = small("ct-aged", &set);
    let figures = figures(&outcome);
    assert!(!figures.is_empty() && figures.iter().all(|figure| figure.is_finite()), "{figures:?}");
    // SC and MSC-CT in MB/s.
    let [aged, new] = [0, 1].map(|table: usize| &outcome.findings.tables[table].rows[0]);
    let gain = |row: &[String]| row[2].parse::<f64>().unwrap() / row[1].parse::<f64>().unwrap();
    assert!(gain(aged) > 1.2 && gain(new) < gain(aged), "{:?}", outcome.findings.tables);
}
