//! Tests of the lookup table: each rule by itself, then long random runs beside a naive model.

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::{LINE_SECTORS, Lba};

const DISK_LINES: u64 = 1 << 21;

fn table_of(lines_max: usize) -> LookupTable {
    LookupTable::new(&AddressSpace::one(DISK_LINES * LINE_SECTORS), lines_max, 0x5851_f42d_4c95_7f2d)
}

/// Inserts a piece, and returns what was reported as lost.
fn insert(table: &mut LookupTable, line: u64, piece: Piece) -> Vec<Lost> {
    let mut all = Vec::new();
    table.insert(Line(line), piece, |lost| all.push(lost));
    table.check();
    all
}

fn lost(place: u64, sectors: u8, dirty: bool, gone: bool) -> Lost {
    Lost { place: Place(place), sectors, dirty, gone }
}

fn written(place: u64, first: u8, count: u8) -> Piece {
    Piece::written(Place(place), first, count, place as u32)
}

#[test]
fn a_whole_line_replaces_a_whole_line() {
    let mut table = table_of(4);
    assert_eq!(insert(&mut table, 7, written(100, 0, 8)), []);
    assert_eq!(insert(&mut table, 7, written(200, 0, 8)), [lost(100, 8, true, true)]);
    assert_eq!(*table.lookup(Line(7)), [written(200, 0, 8)]);
    assert!(table.lookup(Line(6)).is_empty());
    assert_eq!(table.counts(), TableCounts { lines: 1, pieces: 1, sectors: 8, dirty_sectors: 8 });
}

#[test]
fn overwriting_the_middle_breaks_a_line_and_overwriting_all_mends_it() {
    let mut table = table_of(4);
    insert(&mut table, 7, written(100, 0, 8));
    assert_eq!(insert(&mut table, 7, written(200, 2, 3)), [lost(100, 3, true, false)]);
    let mut pieces = table.lookup(Line(7)).to_vec();
    pieces.sort_by_key(|piece| piece.place);
    // The older piece keeps the extent that its checksum is over.
    assert_eq!(pieces, [Piece { mask: 0b1110_0011, ..written(100, 0, 8) }, written(200, 2, 3)]);
    let mut reports = insert(&mut table, 7, written(300, 0, 8));
    reports.sort_by_key(|lost| lost.place);
    assert_eq!(reports, [lost(100, 5, true, true), lost(200, 3, true, true)]);
    assert_eq!(*table.lookup(Line(7)), [written(300, 0, 8)]);
    assert_eq!(table.fragments.used(), 0);
}

#[test]
fn eight_single_sectors_are_eight_pieces_and_one_write_takes_them_all() {
    let mut table = table_of(4);
    for sector in 0..8 {
        assert_eq!(insert(&mut table, 3, written(100 + u64::from(sector) * 2, sector, 1)), []);
    }
    assert_eq!(table.lookup(Line(3)).len(), PIECES_MAX);
    assert_eq!(table.fragments.used(), 8);
    assert_eq!(insert(&mut table, 3, written(200, 0, 8)).len(), 8);
    assert_eq!(table.counts(), TableCounts { lines: 1, pieces: 1, sectors: 8, dirty_sectors: 8 });
}

#[test]
fn the_first_run_of_wanted_sectors_agrees_with_a_search_sector_by_sector() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for lines_max in [8, 4096] {
        let mut table = table_of(lines_max);
        let mut dirty = BTreeSet::new();
        for place in 0..lines_max.min(12) as u64 {
            let (line, first) = (random.random_range(0..20), random.random_range(0..8));
            if !table.has_room(1) {
                break;
            }
            let piece = written(100 + place * 8, first, random.random_range(1..=8 - first));
            let clean = random.random_bool(0.3);
            table.insert(Line(line), Piece { dirty: !clean, ..piece }, |_| {});
            for sector in first..first + piece.count {
                let sector = line * LINE_SECTORS + u64::from(sector);
                if clean {
                    dirty.remove(&sector)
                } else {
                    dirty.insert(sector)
                };
            }
        }
        for start in 0..160 {
            for end in (start + 1..=161).step_by(3) {
                let first = (start..end).find(|at| dirty.contains(at));
                let run = first.map(|first| {
                    let run = (first..end).take_while(|at| dirty.contains(at)).count();
                    Extent::new(Lba(first), run as u64)
                });
                let extent = Extent::new(Lba(start), end - start);
                assert_eq!(table.first_run(extent, |piece| piece.dirty), run, "{extent}");
            }
        }
    }
}

#[test]
fn removing_sectors_reports_them_and_the_last_takes_the_line_out() {
    let mut table = table_of(4);
    insert(&mut table, 3, written(100, 0, 8));
    let mut reports = Vec::new();
    table.remove_sectors(Line(3), 0b0000_1111, |lost| reports.push(lost));
    table.remove_sectors(Line(3), 0b0000_1111, |lost| reports.push(lost));
    assert_eq!(reports, [lost(100, 4, true, false)]);
    assert!(table.contains_line(Line(3)) && !table.contains_any(Extent::new(Lba(24), 4)));
    table.remove_sectors(Line(3), 0xff, |lost| reports.push(lost));
    assert_eq!(reports[1], lost(100, 4, true, true));
    assert!(!table.contains_line(Line(3)));
    table.check();
}

#[test]
fn only_the_copy_that_was_written_becomes_clean() {
    let mut table = table_of(4);
    insert(&mut table, 3, written(100, 0, 8));
    insert(&mut table, 3, written(200, 0, 2));
    assert_eq!(table.mark_clean(Line(3), Place(100)), Some(6), "what is still valid of it");
    assert_eq!(table.mark_clean(Line(3), Place(100)), None, "clean already");
    assert_eq!(table.mark_clean(Line(3), Place(300)), None, "no such copy");
    assert_eq!(table.mark_clean(Line(4), Place(100)), None, "no such line");
    assert_eq!(table.counts().dirty_sectors, 2);
    insert(&mut table, 3, written(300, 0, 2));
    assert_eq!(table.mark_clean(Line(3), Place(200)), None, "superseded while it was on its way");
    assert_eq!(table.dirty_in(Extent::new(Lba(25), 100)), 1);
    table.check();
}

/// A region without lines costs nothing, and an event looks for a stated number of lines.
#[test]
fn a_large_range_is_looked_through_in_steps() {
    let mut table = table_of(20_000);
    let extent = |lines: u64| Extent::new(Lba(0), lines * LINE_SECTORS);
    assert_eq!(table.step(extent(1 << 39)), extent(1 << 39), "it is empty");
    for line in (0..10_000).map(|line| line * 2 + (1 << 20)) {
        table.insert(Line(line), written(0, 0, 8), |_| {});
    }
    assert_eq!(table.step(extent(100)), extent(100));
    assert_eq!(
        table.step(extent(1 << 30)),
        extent((1 << 20) + STEP_LINES),
        "the lines before are in no region"
    );
    table.remove_extent(extent(1 << 39), |_| {});
    assert_eq!(table.counts().lines, 0);
    table.check();
}

/// The whole pass, in parts.
fn purge(table: &mut LookupTable, released: &[Range<Place>]) {
    let mut part = Some(TablePart::first(3));
    while let Some(next) = part {
        part = table.purge(released, next);
    }
}

/// Lines come and go between the parts of a pass. (By slot, an entry that moved back would be missed, and one that moved on met twice.)
#[test]
fn a_pass_in_parts_meets_once_each_line_that_stays() {
    for seed in 0..200 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut table = LookupTable::new(&AddressSpace::one(DISK_LINES * LINE_SECTORS), 120, seed);
        let even: Vec<u64> = (0..60).map(|line| line * 2).collect();
        for &line in &even {
            insert(&mut table, line, written(line * 8, 0, 8));
        }
        let (mut met, mut part) = (Vec::new(), Some(TablePart::first(random.random_range(1..30))));
        while let Some(next) = part {
            part = table.scan_part(next, |line, _| met.push(line.0));
            for _ in 0..random.random_range(0..20) {
                let line = random.random_range(0..60) * 2 + 1;
                if random.random_bool(0.5) {
                    insert(&mut table, line, written(1 << 20, 0, 8));
                } else {
                    table.remove_sectors(Line(line), u8::MAX, |_| {});
                }
            }
        }
        table.check();
        met.retain(|line| line % 2 == 0);
        met.sort_unstable();
        assert_eq!(met, even, "seed {seed}");
    }
}

#[test]
fn purge_drops_the_clean_pieces_of_the_released_parts_and_no_others() {
    let mut table = table_of(8);
    insert(&mut table, 1, written(100, 0, 8));
    insert(&mut table, 1, written(500, 0, 4));
    insert(&mut table, 2, written(199, 0, 1));
    insert(&mut table, 3, written(200, 0, 8));
    for (line, place) in [(1, 100), (2, 199), (3, 200)] {
        assert!(table.mark_clean(Line(line), Place(place)).is_some());
    }
    purge(&mut table, &[Place(0)..Place(50), Place(100)..Place(200)]);
    table.check();
    assert_eq!(*table.lookup(Line(1)), [written(500, 0, 4)]);
    assert!(!table.contains_line(Line(2)));
    assert_eq!(*table.lookup(Line(3)), [Piece { dirty: false, ..written(200, 0, 8) }]);
}

#[test]
#[should_panic(expected = "released with dirty data")]
fn purge_refuses_to_lose_dirty_data() {
    let mut table = table_of(4);
    insert(&mut table, 1, written(100, 0, 8));
    purge(&mut table, &[Place(100)..Place(101)]);
}

#[test]
fn room_for_an_insert_means_that_it_succeeds() {
    let mut table = table_of(100);
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let (mut inserts, mut place) = (0, 0);
    while table.has_room(1) {
        place += 8;
        insert(&mut table, random.random_range(0..150), written(place, random.random_range(0..8), 1));
        inserts += 1;
    }
    assert!(inserts >= 100, "full after {inserts}");
}

#[test]
#[should_panic(expected = "the lookup table is full")]
fn a_full_table_takes_no_further_line() {
    let mut table = table_of(3);
    for line in 0..4 {
        insert(&mut table, line, written(line * 8, 0, 8));
    }
}

#[test]
#[should_panic(expected = "valid but never written")]
fn a_piece_cannot_be_valid_where_it_was_not_written() {
    insert(&mut table_of(4), 1, Piece { mask: 0b11, ..written(0, 0, 1) });
}

#[test]
fn ranges_of_any_length_are_searched_and_removed_alike() {
    for sectors in [8 * 40 + 3, 1 << 40] {
        let mut table = table_of(50);
        for line in 0..40 {
            insert(&mut table, line, written(line * 8, 0, 8));
        }
        table.mark_clean(Line(39), Place(39 * 8));
        let extent = Extent::new(Lba(8 * 30 + 5), sectors);
        assert_eq!(table.dirty_in(extent), 3 + 8 * 8, "{sectors}");
        assert!(table.contains_any(Extent::new(Lba(8 * 39), sectors)));
        assert!(!table.contains_dirty(Extent::new(Lba(8 * 39), sectors)));
        assert!(!table.contains_any(Extent::new(Lba(8 * 40), sectors)));
        assert!(!table.contains_any(Extent::new(Lba(0), 0)));
        let mut reports = Vec::new();
        table.remove_extent(extent, |lost| reports.push(lost));
        table.check();
        reports.sort_by_key(|lost| lost.place);
        assert_eq!(reports.len(), 10);
        assert_eq!(reports[0], lost(240, 3, true, false));
        assert_eq!(reports[9], lost(312, 8, false, true));
        assert_eq!(table.counts().lines, 31);
    }
}

/// The naive model: where the newest copy of each sector is, and the pieces those copies belong to.
#[derive(Default)]
struct Model {
    sectors: BTreeMap<u64, u64>,
    pieces: BTreeMap<u64, (u64, Piece)>,
}

impl Model {
    /// Takes the sectors that `taken` names, and returns the reports, by place.
    fn remove(&mut self, taken: impl Fn(u64, &Piece) -> bool) -> Vec<Lost> {
        let mut all = BTreeMap::<u64, Lost>::new();
        let pieces = &self.pieces;
        self.sectors.retain(|sector, place| {
            let piece = &pieces[place].1;
            let take = taken(*sector, piece);
            if take {
                all.entry(*place).or_insert(lost(*place, 0, piece.dirty, false)).sectors += 1;
            }
            !take
        });
        for report in all.values_mut() {
            report.gone = !self.sectors.values().any(|place| *place == report.place.0);
        }
        for report in all.values().filter(|report| report.gone) {
            self.pieces.remove(&report.place.0);
        }
        all.into_values().collect()
    }

    fn insert(&mut self, line: u64, piece: Piece) -> Vec<Lost> {
        let sectors = line * 8 + u64::from(piece.first)..line * 8 + u64::from(piece.first + piece.count);
        let reports = self.remove(|sector, _| sectors.contains(&sector));
        self.sectors.extend(sectors.map(|sector| (sector, piece.place.0)));
        self.pieces.insert(piece.place.0, (line, piece));
        reports
    }

    /// The pieces with the masks that follow from the sectors, by place.
    fn all(&self) -> Vec<(u64, Piece)> {
        let mut all = self.pieces.clone();
        all.values_mut().for_each(|(_, piece)| piece.mask = 0);
        for (sector, place) in &self.sectors {
            all.entry(*place).and_modify(|(_, piece)| piece.mask |= 1 << (sector % 8));
        }
        all.into_values().collect()
    }

    fn counts(&self) -> TableCounts {
        let mut counts = TableCounts::default();
        self.all().iter().for_each(|(_, piece)| counts.add(piece));
        let lines: BTreeSet<u64> = self.pieces.values().map(|(line, _)| *line).collect();
        TableCounts { lines: lines.len() as u64, ..counts }
    }
}

/// Makes one random step on both; their reports must agree.
fn step(random: &mut ChaCha8Rng, table: &mut LookupTable, model: &mut Model, head: &mut u64, lines: u64) {
    let line = random.random_range(0..lines);
    let mut reports = Vec::new();
    let mut expected = Vec::new();
    match random.random_range(0..100) {
        0..55 => {
            if !table.has_room(1) {
                return;
            }
            let whole = random.random_bool(0.4);
            let first = if whole { 0 } else { random.random_range(0..8) };
            let count = if whole { 8 } else { random.random_range(1..=8 - first) };
            let piece = Piece::written(Place(*head), first, count, random.random());
            *head += u64::from(count) + random.random_range(0..2);
            table.insert(Line(line), piece, |lost| reports.push(lost));
            expected = model.insert(line, piece);
        }
        55..65 => {
            let mask: u8 = random.random();
            table.remove_sectors(Line(line), mask, |lost| reports.push(lost));
            expected = model.remove(|sector, _| sector / 8 == line && mask >> (sector % 8) & 1 == 1);
        }
        65..70 => {
            let long = random.random_bool(0.2);
            let sectors = random.random_range(1..if long { 8 * lines * 3 } else { 40 });
            let extent = Extent::new(Lba(random.random_range(0..8 * lines)), sectors);
            assert_eq!(table.contains_any(extent), model.sectors.keys().any(|at| extent.contains(Lba(*at))));
            let dirty = model
                .sectors
                .iter()
                .filter(|(at, place)| extent.contains(Lba(**at)) && model.pieces[*place].1.dirty);
            let dirty = dirty.count() as u64;
            assert_eq!((table.dirty_in(extent), table.contains_dirty(extent)), (dirty, dirty > 0));
            if random.random_bool(0.3) {
                table.remove_extent(extent, |lost| reports.push(lost));
                expected = model.remove(|sector, _| extent.contains(Lba(sector)));
            }
        }
        70..95 => {
            // A copy that is there, or one that is not or is another line's.
            let known: Vec<(u64, u64)> =
                model.pieces.iter().map(|(place, (line, _))| (*line, *place)).collect();
            let hit = !known.is_empty() && random.random_bool(0.9);
            let (line, place) = if hit {
                known[random.random_range(0..known.len())]
            } else {
                (line, random.random_range(0..*head + 9))
            };
            let sectors = model.sectors.values().filter(|at| **at == place).count() as u8;
            let dirty = model.pieces.get_mut(&place).filter(|(of, piece)| *of == line && piece.dirty);
            let cleaned = dirty.map(|(_, piece)| piece.dirty = false);
            assert_eq!(table.mark_clean(Line(line), Place(place)), cleaned.map(|()| sectors));
        }
        _ => {
            // The tail of the log, up to the oldest dirty piece, or a part from its middle that has nothing dirty.
            let dirty = model.pieces.values().filter(|(_, piece)| piece.dirty).map(|(_, piece)| piece.place);
            let tail = Place(0)..dirty.min().unwrap_or(Place(*head));
            let clean = model.pieces.values().find(|(_, piece)| !piece.dirty && random.random_bool(0.2));
            let middle = clean.map_or(Place(0)..Place(0), |(_, piece)| piece.place..Place(piece.place.0 + 1));
            purge(table, &[tail.clone(), middle.clone()]);
            model.remove(|_, piece| tail.contains(&piece.place) || middle.contains(&piece.place));
        }
    }
    reports.sort_by_key(|lost| lost.place);
    assert_eq!(reports, expected);
}

fn compare(table: &LookupTable, model: &Model, lines: u64) {
    table.check();
    assert_eq!(table.counts(), model.counts());
    let expected = model.all();
    let mut scanned = Vec::new();
    table.scan(|line, piece| scanned.push((line.0, piece)));
    scanned.sort_by_key(|(_, piece)| piece.place);
    assert_eq!(scanned, expected);
    for line in 0..lines {
        let mut pieces = table.lookup(Line(line)).to_vec();
        pieces.sort_by_key(|piece| piece.place);
        assert!(pieces.iter().eq(expected.iter().filter(|(of, _)| *of == line).map(|(_, piece)| piece)));
        assert_eq!(table.contains_line(Line(line)), !pieces.is_empty());
    }
}

#[test]
fn random_runs_agree_with_a_naive_model() {
    let mut full = 0;
    for seed in 0..150 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // Small tables, often full: long runs of slots that also cross the end of the table.
        let capacity = random.random_range(1..40);
        let lines = random.random_range(1..2 * capacity as u64 + 1);
        let mut table = LookupTable::new(&AddressSpace::one(DISK_LINES * LINE_SECTORS), capacity, seed);
        let (mut model, mut head) = (Model::default(), 0);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..400 {
                step(&mut random, &mut table, &mut model, &mut head, lines);
                compare(&table, &model, lines);
                full += usize::from(!table.has_room(1));
            }
        }));
        assert!(result.is_ok(), "the run with seed {seed} failed");
    }
    assert!(full > 1000, "the runs hardly ever filled a table: {full}");
}

fn info(id: u64, segment: u32) -> RangeInfo {
    RangeInfo { kind: RangeKind::Discard, seq: id, segment, id }
}

#[test]
fn a_newer_range_cuts_the_older_and_the_last_part_is_reported() {
    let mut ranges = ZeroRanges::new();
    let mut gone = Vec::new();
    ranges.insert(Extent::new(Lba(100), 100), info(1, 5), |range| gone.push(range));
    let zeroes = RangeInfo { kind: RangeKind::Zeroes { unmap: true }, ..info(2, 6) };
    ranges.insert(Extent::new(Lba(140), 20), zeroes, |range| gone.push(range));
    ranges.check();
    let parts: Vec<_> =
        ranges.lookup(Extent::new(Lba(0), 150)).map(|part| (part.extent, part.info)).collect();
    assert_eq!(parts, [(Extent::new(Lba(100), 40), info(1, 5)), (Extent::new(Lba(140), 10), zeroes)]);
    assert_eq!(ranges.parts_of(1).count(), 2);
    ranges.cut(Extent::new(Lba(160), 40), |range| gone.push(range));
    assert_eq!(gone, []);
    ranges.insert(Extent::new(Lba(90), 50), info(3, 7), |range| gone.push(range));
    assert_eq!(gone, [RangeGone { segment: 5, id: 1 }]);
    ranges.check();
    assert!(ranges.remove_by_id(2) && !ranges.remove_by_id(2) && !ranges.remove_by_id(1));
    assert!(ranges.contains_any(Extent::new(Lba(139), 1)) && !ranges.contains_any(Extent::new(Lba(140), 99)));
    assert_eq!(ranges.len(), 1);
    ranges.check();
}

#[test]
fn ranges_are_bounded() {
    let mut ranges = ZeroRanges::new();
    let mut id = 0;
    while ranges.has_room() {
        ranges.insert(Extent::new(Lba(id * 10), 5), info(id, 0), |_| ());
        id += 1;
    }
    assert!(ranges.len() <= RANGES_MAX && ranges.len() + 2 > RANGES_MAX);
    ranges.check();
}

#[test]
fn random_ranges_agree_with_a_naive_model() {
    for seed in 0..200 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut ranges = ZeroRanges::new();
        let mut model = BTreeMap::<u64, RangeInfo>::new();
        for id in 0..200 {
            let extent = Extent::new(Lba(random.random_range(0..200)), random.random_range(1..40));
            let before: BTreeMap<u64, u32> = model.values().map(|info| (info.id, info.segment)).collect();
            let mut gone = BTreeMap::new();
            let removed = random.random_range(0..=id);
            match random.random_range(0..4) {
                0 => {
                    let there = model.values().any(|info| info.id == removed);
                    assert_eq!(ranges.remove_by_id(removed), there);
                    model.retain(|_, info| info.id != removed);
                }
                action => {
                    model.retain(|at, _| !extent.contains(Lba(*at)));
                    let mut report =
                        |range: RangeGone| assert!(gone.insert(range.id, range.segment).is_none());
                    if action == 1 {
                        ranges.cut(extent, &mut report);
                    } else {
                        ranges.insert(extent, info(id, random.random()), &mut report);
                    }
                    let left: BTreeSet<u64> = model.values().map(|info| info.id).collect();
                    let lost: BTreeMap<u64, u32> =
                        before.into_iter().filter(|(id, _)| !left.contains(id)).collect();
                    assert_eq!(gone, lost, "seed {seed}");
                    if action != 1 {
                        let newest = ranges.parts_of(id).next().expect("it was just inserted");
                        assert_eq!(newest.extent, extent);
                        model.extend((extent.start.0..extent.end().0).map(|at| (at, newest.info)));
                    }
                }
            }
            ranges.check();
            let window = Extent::new(Lba(random.random_range(0..240)), random.random_range(0..60));
            let found: BTreeMap<u64, RangeInfo> = ranges
                .lookup(window)
                .flat_map(|part| (part.extent.start.0..part.extent.end().0).map(move |at| (at, part.info)))
                .collect();
            assert!(found.iter().eq(model.range(window.start.0..window.end().0)), "seed {seed}");
        }
    }
}
