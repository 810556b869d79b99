//! Tests of the lookup table: each rule by itself, then long random runs beside a naive model.

use super::*;

/// What was lost, as reported.
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
    let mut table = LookupTable::with_capacity(4);
    assert_eq!(insert(&mut table, 7, written(100, 0, 8)), []);
    assert_eq!(insert(&mut table, 7, written(200, 0, 8)), [lost(100, 8, true, true)]);
    assert_eq!(*table.lookup(Line(7)), [written(200, 0, 8)]);
    assert!(table.lookup(Line(6)).is_empty());
    assert_eq!(table.counts(), Counts { lines: 1, pieces: 1, sectors: 8, dirty_sectors: 8 });
}

#[test]
fn overwriting_the_middle_breaks_a_line_and_overwriting_all_mends_it() {
    let mut table = LookupTable::with_capacity(4);
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
