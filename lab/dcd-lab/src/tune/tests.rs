//! The whole search, on a short synthetic trace.

use std::path::Path;

use dcd_crash::SimRng;
use dcd_engine::Nanos;
use dcd_engine::log_cache::Promise;
use dcd_model::AnyDrive;
use dcd_trace::{DeviceId, ReadTrace, Record, RecordOp, TraceError};
use indicatif::ProgressBar;

use super::candidates::Candidate;
use super::search::Found;
use super::*;
use crate::load::{Purpose, Workload};

const BLOCK_SECTORS: u64 = 8;
const MIB: u64 = 1 << 20;

struct Given(std::vec::IntoIter<Record>);

impl ReadTrace for Given {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        Ok(self.0.next())
    }
}

/// An office's disk: bursts of small requests, two of three of them writes, most of them to a few hot places.
fn office(requests: u64) -> Vec<Record> {
    office_of(7, requests)
}

fn office_of(seed: u64, requests: u64) -> Vec<Record> {
    let mut rng = SimRng::new(seed);
    let mut at = Nanos::ZERO;
    let mut one = |_| {
        at +=
            Nanos(if rng.chance(300) { rng.range(50_000_000, 900_000_000) } else { rng.range(0, 8_000_000) });
        // The third power makes the low numbers the hot ones; the places are spread over the disk.
        let unit = rng.range(0, 999_999) as f64 / 1e6;
        let block = (unit * unit * unit * 40_000.0) as u64;
        let start = (block % 64 + block / 64 * 4_000) * BLOCK_SECTORS;
        let op = if rng.chance(667) { RecordOp::Write } else { RecordOp::Read };
        Record::new(at, DeviceId(0), op, start, BLOCK_SECTORS).unwrap()
    };
    (0..requests).map(&mut one).collect()
}

fn nearline() -> AnyDrive {
    AnyDrive::open("nearline-2018", Path::new("")).unwrap()
}

fn workload(records: Vec<Record>, drive: &AnyDrive) -> Workload {
    Workload::read(&mut Given(records.into_iter()), None, drive.logical_block_bytes(), Purpose::Tune).unwrap()
}

fn find(records: Vec<Record>, jobs: usize, verify: bool) -> (Found, String) {
    let media = [Medium::Ram, Medium::SameDisk, Medium::Ssd].map(|medium| (medium, 0.0));
    find_among(records, &media, Objective::Mean, jobs, verify)
}

fn find_among(
    records: Vec<Record>,
    media: &[Priced],
    objective: Objective,
    jobs: usize,
    verify: bool,
) -> (Found, String) {
    let drive = nearline();
    let workload = workload(records, &drive);
    let setting = Setting {
        drive_name: drive.name().to_owned(),
        data_bytes: (workload.end * 512).next_multiple_of(MIB),
        drive,
        ssd: None,
        promise: Promise::Flush,
        block_bytes: workload.block_bytes,
        endurance_bytes: Some(1 << 40),
    };
    let sizes = Sizes { log: vec![64 * MIB, 256 * MIB], ram: vec![MIB, 4 * MIB, 16 * MIB] };
    let grid = Grid::new(media, &sizes, |_| 256 * MIB, |_| 256 * MIB);
    let options = SearchOptions { objective, within: 0.02, jobs, verify };
    let found = search(&setting, &workload, grid, options, &ProgressBar::hidden()).unwrap();
    let text = Report::new("office".to_owned(), &setting, &workload, (objective, 0.02), &found).text();
    (found, text)
}

#[test]
fn the_recommendation_is_near_the_best_of_the_table_and_of_half_and_double_its_size() {
    let (found, text) = find(office(6_000), 2, true);
    let (unverified, _) = find(office(6_000), 2, false);
    let verified = found.verified.as_ref().expect("it was asked for");
    assert!(verified.worse_percent <= 5.0 && verified.candidates == found.tried.len(), "{text}");
    assert!(unverified.tried.len() < found.tried.len(), "the search leaves candidates out");
    let recommended = &unverified.tried[unverified.recommended];
    assert_eq!(found.tried[found.recommended].candidate, recommended.candidate);
    let own = recommended.candidate;
    for bytes in [own.bytes / 2, own.bytes * 2] {
        let near = unverified.tried.iter().find(|tried| tried.candidate == Candidate { bytes, ..own });
        let near = near.unwrap_or_else(|| panic!("{bytes} was not measured\n{text}"));
        assert!(recommended.value <= near.value * 1.05, "{text}");
    }
    // Somebody who writes that much over what he wrote gains by a cache.
    assert!(found.tried[found.recommended].value * 2.0 < found.tried[0].value, "{text}");
}

#[test]
fn sizes_go_on_while_larger_ones_are_better() {
    // The larger the RAM, the fewer writes come to the disk, until it holds all of them.
    let mut rng = SimRng::new(3);
    let mut one = |number: u64| {
        let start = rng.range(0, 16_000) * 4_000 * BLOCK_SECTORS;
        Record::new(Nanos::from_micros(1500 * number), DeviceId(0), RecordOp::Write, start, BLOCK_SECTORS)
            .unwrap()
    };
    let records: Vec<Record> = (0..20_000).map(&mut one).collect();
    let (found, text) = find_among(records, &[(Medium::Ram, 0.0)], Objective::Writes, 2, false);
    assert!(found.tried[found.best].candidate.bytes > 16 * MIB, "{text}");
}

#[test]
fn what_an_ssd_endures_is_said_in_years() {
    let (_, text) = find_among(office(500), &[(Medium::Ssd, 0.0)], Objective::Mean, 2, false);
    assert!(text.contains(" to the SSD: its 1 TiB last for "), "{text}");
}

#[test]
fn the_table_has_the_recommended_row_and_the_drive_as_it_is_sold() {
    let (found, text) = find(office(2_000), 2, false);
    let starred: Vec<&str> = text.lines().filter(|line| line.starts_with("  *")).collect();
    assert_eq!(starred.len(), 1, "{text}");
    let candidate = found.tried[found.recommended].candidate;
    assert!(
        starred[0].contains(candidate.medium.words()) && starred[0].contains(&candidate.settings()),
        "{text}"
    );
    // It is better than no cache, and yet never recommended: its promise is another one.
    let sold = found.as_sold.expect("the drive has a write cache");
    assert!(sold.value < found.tried[0].value && text.contains("its own write cache on"), "{text}");
    assert!(found.tried.iter().all(|tried| tried.candidate != sold.candidate));
}

/// The recommendation, and what would do as well.
fn advice(records: Vec<Record>) -> (String, Vec<String>, String) {
    let (found, text) = find(records, 2, false);
    let words = |index: usize| found.tried[index].candidate.words();
    assert!(found.either.contains(&found.best) && found.either.is_sorted());
    let best = found.tried[found.best].value;
    for (index, tried) in found.tried.iter().enumerate() {
        assert!(
            tried.value > best * 1.05 || found.either.contains(&index),
            "{}\n{text}",
            tried.candidate.words()
        );
        assert!(
            tried.value < best * 1.25 || !found.either.contains(&index),
            "{}\n{text}",
            tried.candidate.words()
        );
    }
    (words(found.recommended), found.either.iter().map(|&index| words(index)).collect(), text)
}

#[test]
fn half_the_trace_or_another_seed_gives_the_same_recommendation_or_says_either() {
    let whole = office_of(7, 6_000);
    let (recommended, either, text) = advice(whole.clone());
    for (other, records) in [
        ("the first half", whole[..3_000].to_vec()),
        ("the second half", whole[3_000..].to_vec()),
        ("another seed", office_of(11, 6_000)),
        ("a third seed", office_of(12, 6_000)),
    ] {
        let (theirs, their_either, their_text) = advice(records);
        assert!(
            theirs == recommended
                || (their_either.contains(&recommended) && their_text.contains("Either that, or: ")),
            "{other}\n{text}\n{their_text}"
        );
    }
    // What is far from the best is not named: no cache, and a cache that is too small.
    assert!(!either.iter().any(|words| words == "no cache"), "{text}");
    assert!(either.iter().all(|words| !words.contains("1 MiB")), "{text}");
}

#[test]
fn the_result_does_not_depend_on_the_number_of_threads() {
    let [one, two] = [1, 2].map(|jobs| find(office(1_000), jobs, false).1);
    assert_eq!(one, two);
}

#[test]
fn nothing_that_is_cheaper_is_as_good() {
    let (found, _) = find(office(500), 2, false);
    let best = found.tried.iter().map(|tried| tried.value).fold(f64::INFINITY, f64::min);
    let recommended = &found.tried[found.recommended];
    assert!(recommended.value <= best * 1.02);
    for tried in found.tried.iter().filter(|tried| tried.candidate.cost() < recommended.candidate.cost()) {
        assert!(tried.value > best * 1.02, "{}", tried.candidate.words());
    }
}

#[test]
fn for_reads_alone_only_a_log_that_keeps_them_is_of_use() {
    let mut records = office(6_000);
    // One write, so that there is something to tune for.
    for record in records.iter_mut().skip(1) {
        record.op = RecordOp::Read;
    }
    records[0].op = RecordOp::Write;
    let (found, text) = find(records, 2, false);
    let keeps = |candidate: &Candidate| candidate.settings().contains("reads kept");
    assert!(keeps(&found.tried[found.recommended].candidate), "{text}");
    for tried in found.tried.iter().filter(|tried| !keeps(&tried.candidate)) {
        assert!(tried.value * 1.02 > found.tried[0].value, "{}", tried.candidate.words());
    }
}

#[test]
fn of_several_devices_the_busiest_is_taken_and_it_is_said() {
    let drive = nearline();
    let mut records = office(90);
    for (index, record) in records.iter_mut().enumerate() {
        record.device = DeviceId(if index % 3 == 0 { 4 } else { 9 });
    }
    let all = records.clone();
    let chosen = workload(records, &drive);
    assert_eq!(chosen.requests.len(), 60);
    assert!(chosen.notes[0].contains("device 9"), "{:?}", chosen.notes);
    let named = Workload::read(
        &mut Given(all.clone().into_iter()),
        Some(4),
        drive.logical_block_bytes(),
        Purpose::Tune,
    )
    .unwrap();
    assert_eq!(named.requests.len(), 30);
    let error =
        Workload::read(&mut Given(all.into_iter()), Some(5), drive.logical_block_bytes(), Purpose::Tune)
            .unwrap_err()
            .to_string();
    assert!(error.contains("no device 5; it has 4 (23 writes), 9 (36 writes)"), "{error}");
}
