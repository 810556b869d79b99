//! Real traces, where the environment variable DCD_TRACES names their directory: what is known of them from elsewhere.

use std::path::PathBuf;

use dcd_engine::Nanos;

use crate::{Characteriser, Characteristics, Options, open};

fn characterised(file: &str) -> Option<(&'static str, Characteristics)> {
    let Some(directory) = std::env::var_os("DCD_TRACES") else {
        eprintln!("SKIPPED: DCD_TRACES does not name a directory of real traces");
        return None;
    };
    let mut trace = open(&PathBuf::from(directory).join(file), None).unwrap();
    let mut characteriser =
        Characteriser::new(Options { blocks_max: Some(Options::BLOCKS_MAX), service: Nanos::ZERO });
    while let Some(record) = trace.reader.next_record().unwrap() {
        characteriser.add(&record);
    }
    Some((trace.format.name, characteriser.finish()))
}

#[test]
fn a_week_of_a_workstation_of_1992() {
    let Some((format, figures)) = characterised("ajw.1week.srt.gz") else { return };
    let all = figures.all;
    assert_eq!((format, all.reads.count + all.writes.count, figures.devices.len()), ("srt", 44_519, 2));
    let share = all.blocks.unwrap().overwrite_share;
    assert!((share - 0.925).abs() < 0.0005, "{share}");
    let mean_bytes = (all.reads.bytes + all.writes.bytes) as f64 / 44_519.0;
    assert!((mean_bytes - 5_914.0).abs() < 60.0, "whole sectors are a little more: {mean_bytes}");
    let total = |r: &crate::Requests| r.response_ns.as_ref().unwrap().mean * r.count as f64;
    let response_ms = (total(&all.reads) + total(&all.writes)) / 44_519.0 / 1e6;
    assert!((response_ms - 25.09).abs() < 0.01, "{response_ms}");
}

#[test]
fn fourteen_disks_and_a_measured_drive() {
    let Some((format, figures)) = characterised("ascii.trace.gz") else { return };
    assert_eq!((format, figures.devices.len()), ("disksim", 14));
    let share = figures.all.blocks.unwrap().overwrite_share;
    assert!((share - 0.081).abs() < 0.0005, "{share}");
    let Some((format, figures)) = characterised("atlas10k.trace.gz") else { return };
    let all = figures.all;
    assert_eq!((format, all.reads.count + all.writes.count), ("validate", 10_000));
    let total = |r: &crate::Requests| r.response_ns.as_ref().unwrap().mean * r.count as f64;
    let response_ms = (total(&all.reads) + total(&all.writes)) / 10_000.0 / 1e6;
    assert!((response_ms - 3.893).abs() < 0.0006, "{response_ms}");
}
