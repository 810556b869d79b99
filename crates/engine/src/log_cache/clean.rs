//! Rule 12: the tail is as fine as a segment, and what lies after it counts as dirty at the next start. So before a clean stop, records say
//! which of it is on the data disk, as far as the log has room.

use super::env::{Env, View};
use super::forget::Forgetting;
use super::format::{Entry, EntryKind};
use super::table::{Line, Piece, STEP_LINES, TablePart};
use crate::{Extent, LINE_SECTORS};

/// Lines that are called clean in one event, at most; an extent counts for `CLEAN_LINES_MIN` at least.
const CLEAN_LINES: u64 = 1 << 15;
const CLEAN_LINES_MIN: u64 = 1 << 5;
/// Clean neighbours are one entry, within so many lines.
const RUN_LINES: u64 = 1 << 6;

/// The records of what is clean, before a clean stop.
#[derive(Default)]
pub enum CleanRecords {
    #[default]
    NotBegun,
    /// These extents are put into records, as far as they are clean, and then what is found in the next part of the table.
    Noting(Vec<Extent>, Option<TablePart>),
    Done,
}

impl CleanRecords {
    /// True while there is work that waits for nothing.
    pub const fn goes_on(&self) -> bool {
        matches!(self, CleanRecords::Noting(..))
    }

    /// Does one part of the work; true when all of it is done and durable. (Ordered destage has its own mark.)
    pub fn step(&mut self, forgetting: &Forgetting, env: &mut Env) -> bool {
        *self = match std::mem::take(self) {
            CleanRecords::NotBegun if env.config.ordered_destage => CleanRecords::Done,
            CleanRecords::NotBegun => {
                let destaged = env.index.destaged().since(env.view().oldest_live_seq()).collect();
                CleanRecords::Noting(destaged, Some(TablePart::first(env.config.scan_slots)))
            }
            CleanRecords::Noting(clean, part) if clean.is_empty() => match part {
                Some(part) => find_clean(part, &env.view()),
                None => CleanRecords::Done,
            },
            CleanRecords::Noting(clean, part) => note_clean(clean, part, forgetting, env),
            CleanRecords::Done => CleanRecords::Done,
        };
        matches!(self, CleanRecords::Done) && env.log.buffers().is_empty()
    }
}

/// Finds what is clean and live in a part of the table. Whole lines are found by the first of each run.
fn find_clean(part: TablePart, view: &View) -> CleanRecords {
    let is_clean = |piece: &Piece| {
        !piece.dirty && !piece.kept && view.log.ring().is_live(view.index.segment_of(piece.place))
    };
    let is_whole = |line: u64| {
        let pieces = view.index.table().lookup(Line(line));
        pieces.iter().any(|piece| piece.mask == u8::MAX && is_clean(piece))
    };
    let mut clean = Vec::new();
    let next = view.index.table().scan_part(part, |line, piece| {
        if !is_clean(&piece) {
            return;
        }
        if piece.mask != u8::MAX {
            return line.runs(piece.mask, |run| clean.push(run));
        }
        if line.0.is_multiple_of(RUN_LINES) || !is_whole(line.0 - 1) {
            let run_end = (line.0 + 1).next_multiple_of(RUN_LINES);
            let end = (line.0 + 1..run_end).find(|next| !is_whole(*next)).unwrap_or(run_end);
            clean.push(Extent::new(line.start(), (end - line.0) * LINE_SECTORS));
        }
    });
    CleanRecords::Noting(clean, next)
}

/// Notes the next extents that are clean, as far as there is room.
fn note_clean(
    mut clean: Vec<Extent>,
    part: Option<TablePart>,
    forgetting: &Forgetting,
    env: &mut Env,
) -> CleanRecords {
    let mut lines = 0;
    while lines < CLEAN_LINES
        && let Some(all) = clean.pop()
    {
        let extent = env.index.table().step(all);
        lines += (extent.sectors / LINE_SECTORS).clamp(CLEAN_LINES_MIN, STEP_LINES);
        let is_dirty = env.index.is_dirty_in(extent);
        if !is_dirty && !env.make_room(1, 0) {
            // Only segments that are not forgotten yet are worth waiting for.
            let comes = forgetting.deadline(&env.view()).is_some() || !env.ops.is_empty();
            clean.push(all);
            return if comes { CleanRecords::Noting(clean, part) } else { CleanRecords::Done };
        }
        if !is_dirty {
            env.open_record();
            env.log.note(Entry { kind: EntryKind::Invalidate, extent, crc: 0 });
        }
        if extent != all {
            clean.push(Extent::new(extent.end(), all.sectors - extent.sectors));
        }
    }
    CleanRecords::Noting(clean, part)
}
