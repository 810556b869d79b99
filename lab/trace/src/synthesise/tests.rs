use dcd_engine::Nanos;

use super::*;
use crate::characterise::{Characteriser, Options};
use crate::figures::Characteristics;
use dcd_stack::Record;

/// A part of a preset, with the long intervals as much shorter: as likely, and quick.
fn part(name: &str, one_in: u64) -> Description {
    let mut description = Description::preset(name).unwrap();
    let Description { overwrite, read_after_write, read_again, .. } = &mut description;
    for interval in [overwrite, read_after_write, read_again].map(|reuse| &mut reuse.interval_ios) {
        let median = interval.median.unwrap();
        interval.mean = median + (interval.mean - median) / one_in as f64;
    }
    description.reads.count /= one_in;
    description.writes.count /= one_in;
    description.arrivals.seconds /= one_in as f64;
    description
}

fn characterised(records: impl Iterator<Item = Record>) -> Characteristics {
    let mut characteriser =
        Characteriser::new(Options { blocks_max: Some(Options::BLOCKS_MAX), service: Nanos::ZERO });
    records.for_each(|record| characteriser.add(&record));
    characteriser.finish()
}

#[test]
fn the_paper_s_off_day_is_met() {
    let description = Description::preset("off-day").unwrap();
    let (synthesiser, fit) = fitted(&description, 1).unwrap();
    for figure in &fit {
        assert!(figure.off() < 0.1, "{figure:?}");
    }
    // Table 3.1 and Table 4.5, disk 1, counted from the records themselves.
    let records: Vec<Record> = synthesiser.collect();
    let all = characterised(records.iter().copied()).all;
    let blocks = all.blocks.unwrap();
    assert_eq!((all.reads.count, all.writes.count), (58_468, 91_726));
    let near = |got: f64, wanted: f64, part: f64| {
        assert!((got / wanted - 1.0).abs() < part, "{got} for {wanted}");
    };
    near(all.writes.bytes as f64 / 1024.0, 220_370.0, 0.02);
    near(blocks.overwrite_share, 0.861, 0.02);
    near(blocks.overwrite_interval_ios.mean, 3249.3, 0.05);
    near(blocks.overwrite_interval_ios.median as f64, 100.0, 0.05);
    assert!(records.is_sorted_by_key(|record| record.at));
    assert!(all.lba_end * 512 <= description.space.bytes);
}

#[test]
fn every_preset_is_met_in_its_shares_and_sizes() {
    for (name, _) in PRESETS {
        let (_, fit) = fitted(&Description::preset(name).unwrap(), 1).unwrap();
        for figure in fit.iter().filter(|f| f.name.ends_with("share") || f.name.ends_with("bytes")) {
            assert!(figure.off() < 0.05, "{name}: {figure:?}");
        }
    }
}

#[test]
fn a_seed_fixes_the_trace() {
    let description = part("sci-off", 50);
    let of = |seed| Synthesiser::new(&description, seed).unwrap().collect::<Vec<Record>>();
    assert_eq!(of(3), of(3));
    assert_ne!(of(3), of(4));
}

#[test]
fn a_trace_like_another_has_its_figures() {
    let (first, _) = fitted(&part("off-day", 10), 1).unwrap();
    let figures = characterised(first).all;
    let description = Description::like("like", &figures, 0.0).unwrap();
    let (_, fit) = fitted(&description, 2).unwrap();
    for figure in &fit {
        // The medians follow from the points of the distributions, and are not turned.
        let most = if figure.name.contains("median") { 0.25 } else { 0.1 };
        assert!(figure.off() < most, "{figure:?}");
    }
}

#[test]
fn nonsense_is_refused() {
    let mut description = part("off-day", 10);
    description.overwrite.share = 1.5;
    let error = Synthesiser::new(&description, 1).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("overwrite.share"), "{error}");
    let error = Description::parse("mine.toml", "name = 3").unwrap_err().to_string();
    assert!(error.contains("mine.toml"), "{error}");
}

#[test]
fn a_full_disk_is_no_endless_search() {
    let mut description = part("off-day", 50);
    description.space.bytes = 1 << 20;
    let written = Synthesiser::new(&description, 1).unwrap().count() as u64;
    assert_eq!(written, description.reads.count + description.writes.count);
}
