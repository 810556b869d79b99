//! Handles a window of a pass: some units, read from all members at once, examined, and written where something has to be written.
//!
//! | it is    | until                                                            | then                              |
//! |----------|------------------------------------------------------------------|-----------------------------------|
//! | locking  | no lock of its units is held by anything else                    | reading                           |
//! | reading  | every member has given its part; what fails is read block by block | surveyed: what has to be written |
//! | writing  | all of that is written, and those before it are over             | over, and its units free          |
//!
//! Only what is on the members counts here: what is dirty in the cache is destaged afterwards as ever. A window writes no
//! new data, so its writes need not be durable before the pass says that it has come so far.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::layer::{Durability, Io, IoResult};
use crate::raid::cache::StripeCache;
use crate::raid::env::Env;
use crate::raid::flight::{Flight, WindowPart};
use crate::raid::layout::Layout;
use crate::raid::lost::BlockPlace;
use crate::raid::pass::{Pass, PassKind};
use crate::raid::stripe::ActiveStripes;
use crate::raid::survey::{Repair, WindowSurvey};
use crate::{Buf, LINE_BYTES};

const BLOCK: usize = LINE_BYTES as usize;

/// See the module's documentation. Rows are counted from its first one.
pub(super) struct Window {
    pub units: Range<u64>,
    /// Locks, or commands, that it waits for.
    pub left: usize,
    /// The rows that each member gave; none where it has failed.
    bytes: Vec<Option<Buf>>,
    /// Unreadable blocks, by role and row.
    unreadable: BTreeSet<(usize, usize)>,
    /// Unreadable blocks that are lost, and lie in rows that do not fit.
    unsettled: BTreeSet<(usize, usize)>,
    /// Rows that could not be made right.
    lost: Vec<usize>,
}

impl Window {
    /// A window that waits for the locks of its units.
    pub fn new(units: Range<u64>, members: usize) -> Window {
        let left = (units.end - units.start) as usize;
        let bytes = (0..members).map(|_| None).collect();
        let (unreadable, unsettled, lost) = Default::default();
        Window { units, left, bytes, unreadable, unsettled, lost }
    }

    const fn rows(&self, layout: &Layout) -> usize {
        (self.units.end - self.units.start) as usize * layout.rows
    }

    /// The unit of a row, and the row's number there.
    const fn place(&self, row: usize, layout: &Layout) -> (u64, usize) {
        (self.units.start + (row / layout.rows) as u64, row % layout.rows)
    }

    /// Reads all members, as the locks are taken. `key`: of this window.
    pub fn begin(&mut self, key: u64, cache: &StripeCache, env: &mut Env) {
        let rows = self.rows(&env.layout);
        self.unsettled = env.recorder.unsettled(self.units.start, rows);
        self.unreadable = self.unsettled.clone();
        for role in 0..env.members.count() {
            if !env.recorder.has_failed_at(role, self.units.start) {
                self.read(WindowPart { window: key, role, rows: 0..rows }, cache, env);
            }
        }
        assert!(self.left > 0, "an array without members is not served");
    }

    fn read(&mut self, part: WindowPart, cache: &StripeCache, env: &mut Env) {
        self.left += 1;
        let at = env.layout.member_lba(self.units.start, part.rows.start);
        let buf = cache.buffer(part.rows.len() * BLOCK);
        env.submit(part.role, Flight::WindowRead(part), Io::Read { at, buf });
    }

    /// A member has given its part. What it cannot give in one piece is read again block by block.
    pub fn read_returned(&mut self, part: WindowPart, result: IoResult, cache: &StripeCache, env: &mut Env) {
        let WindowPart { window, role, rows } = part;
        let all = self.rows(&env.layout);
        let empty = cache.buffer(all * BLOCK);
        self.left -= 1;
        match result.status {
            Ok(()) if rows.len() == all && (empty.is_blank() || !result.buf.is_blank()) => {
                self.bytes[role] = Some(result.buf);
            }
            Ok(()) => {
                let bytes = self.bytes[role].get_or_insert(empty);
                bytes.copy_from(rows.start * BLOCK, &result.buf, 0, rows.len() * BLOCK);
            }
            Err(_) if rows.len() == 1 => {
                self.unreadable.insert((role, rows.start));
            }
            Err(_) => {
                rows.for_each(|row| self.read(WindowPart { window, role, rows: row..row + 1 }, cache, env));
            }
        }
    }

    /// Finds out what has to be written, and writes it. `repairs`: a pass may have made something right that is not flushed.
    pub fn survey(
        &mut self,
        key: u64,
        pass: &mut Pass,
        repairs: bool,
        stripes: &ActiveStripes,
        env: &mut Env,
    ) {
        let (layout, kind) = (env.layout, pass.kind);
        let (units, bytes) = (self.units.clone(), std::mem::take(&mut self.bytes));
        let (unreadable, unsettled) = (&self.unreadable, &self.unsettled);
        let survey = WindowSurvey { layout, kind, units, bytes, unreadable, unsettled };
        let found = survey.carry_out();
        // The data blocks of rows that cannot be made right.
        let missing = found.lost.iter().flat_map(|&row| {
            let (unit, in_unit) = self.place(row, &layout);
            survey.missing(row).into_iter().map(move |role| (unit, in_unit, layout.column(unit, role)))
        });
        let missing: Vec<BlockPlace> = missing.filter(|(.., column)| *column < layout.shape.data).collect();
        let rebuilds = matches!(kind, PassKind::Rebuild { .. });
        self.lost = found.lost;
        let in_doubt = self.lost.iter().map(|row| env.recorder.regions.of_unit(self.place(*row, &layout).0));
        pass.found(&found.findings, in_doubt);
        if !rebuilds || env.losses.lose_blocks(&missing, env.recorder, &stripes.cache) {
            env.record();
        } else if let Some(rebuild) = env.recorder.rebuilding() {
            // Nobody could tell what it has from what it has not.
            env.member_failed(rebuild.role, repairs, &stripes.operations);
        }
        // These units have just been looked at.
        env.losses.forget_unreadable(&self.units);
        for (unit, row, column) in missing.into_iter().filter(|_| !rebuilds) {
            env.losses.cannot_read(unit, row, [column]);
        }
        for Repair { role, rows, buf } in found.repairs {
            // A member that has failed meanwhile gets nothing, and nor does one that has come in its place.
            if !env.recorder.is_in_use(role) || pass.is_void(env.recorder) {
                continue;
            }
            self.left += 1;
            let at = layout.member_lba(self.units.start, rows.start);
            let io = Io::Write { at, buf, durability: Durability::Volatile };
            env.submit(role, Flight::WindowWrite(WindowPart { window: key, role, rows }), io);
        }
    }

    /// A member has written its part. Blocks that were bad are good now, and what a new member got in the place of lost blocks is not.
    pub fn written(&self, part: WindowPart, pass: &mut Pass, cache: &mut StripeCache, env: &mut Env) {
        let WindowPart { role, rows, .. } = part;
        let rebuilt = pass.kind == PassKind::Rebuild { role };
        for row in rows {
            let (unit, row_there) = self.place(row, &env.layout);
            let place = (row_there, env.layout.column(unit, role));
            let bad = &mut cache.unit(unit).bad;
            if rebuilt && self.lost.binary_search(&row).is_ok() {
                bad.insert(place);
            } else {
                bad.remove(&place);
            }
            env.statistics.sectors_repaired += u64::from(self.unreadable.contains(&(role, row)));
            pass.findings.repaired += u64::from(!rebuilt);
        }
    }
}
