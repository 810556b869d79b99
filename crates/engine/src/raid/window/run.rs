//! Carrying out a window of a pass.

use std::ops::Range;

use super::{BLOCK, Window};
use crate::layer::{Durability, Io, IoResult, Outbox};
use crate::raid::array::Array;
use crate::raid::members::Flight;
use crate::raid::pass::PassKind;
use crate::raid::survey::{Repair, Survey};

impl Array {
    const fn window_rows(&self, units: &Range<u64>) -> usize {
        (units.end - units.start) as usize * self.layout.rows
    }

    /// Takes the locks of a window's units, as soon as they are free.
    pub fn begin_window(&mut self, units: Range<u64>, out: &mut Outbox) {
        let left = (units.end - units.start) as usize;
        let bytes = (0..self.members.count()).map(|_| None).collect();
        let (unreadable, unsettled) = Default::default();
        let (lost, ended) = (Vec::new(), false);
        let window = Window { units: units.clone(), left, bytes, unreadable, unsettled, lost, ended };
        let key = self.passes.windows.insert(window);
        self.passes.order.push_back(key);
        for unit in units {
            let entry = self.cache.unit(unit);
            entry.claimed = Some(key);
            if !entry.exclusive && entry.readers == 0 && entry.fetch.is_none() {
                self.lock_for_window(unit, out);
            }
        }
    }

    /// Gives a unit to the window that has claimed it.
    pub fn lock_for_window(&mut self, unit: u64, out: &mut Outbox) {
        let entry = self.cache.unit(unit);
        let key = entry.claimed.take().expect("a window has claimed it");
        (entry.exclusive, entry.wanted) = (true, false);
        self.take_prefetched(unit);
        let window = self.passes.windows.get_mut(key);
        window.left -= 1;
        if window.left == 0 {
            self.read_window(key, out);
        }
    }

    fn read_window(&mut self, key: u64, out: &mut Outbox) {
        let units = self.passes.windows.get_mut(key).units.clone();
        let rows = self.window_rows(&units);
        let unsettled = self.recorder.unsettled(units.start, rows);
        let window = self.passes.windows.get_mut(key);
        (window.unreadable, window.unsettled) = (unsettled.clone(), unsettled);
        for role in 0..self.members.count() {
            if !self.recorder.has_failed_at(role, units.start) {
                self.read_rows(key, role, 0..rows, out);
            }
        }
        assert!(self.passes.windows.get_mut(key).left > 0, "an array without members is not served");
    }

    fn read_rows(&mut self, key: u64, role: usize, rows: Range<usize>, out: &mut Outbox) {
        let window = self.passes.windows.get_mut(key);
        window.left += 1;
        let at = self.layout.member_lba(window.units.start, rows.start);
        let buf = self.cache.buffer(rows.len() * BLOCK);
        self.members.submit(role, Flight::WindowRead { key, rows }, Io::Read { at, buf }, out);
    }

    /// A member has given something of a window. What it cannot give in one piece is read again block by block.
    pub fn window_read(
        &mut self,
        key: u64,
        role: usize,
        rows: Range<usize>,
        result: IoResult,
        out: &mut Outbox,
    ) {
        let units = self.passes.windows.get_mut(key).units.clone();
        let all = self.window_rows(&units);
        let empty = self.cache.buffer(all * BLOCK);
        let window = self.passes.windows.get_mut(key);
        window.left -= 1;
        match result.status {
            Ok(()) if rows.len() == all && (empty.is_blank() || !result.buf.is_blank()) => {
                window.bytes[role] = Some(result.buf);
            }
            Ok(()) => {
                let bytes = window.bytes[role].get_or_insert(empty);
                bytes.copy_from(rows.start * BLOCK, &result.buf, 0, rows.len() * BLOCK);
            }
            Err(_) => self.window_read_failed(key, role, rows, out),
        }
        if self.passes.windows.get_mut(key).left == 0 {
            self.survey_window(key, out);
        }
    }

    fn window_read_failed(&mut self, key: u64, role: usize, rows: Range<usize>, out: &mut Outbox) {
        if rows.len() == 1 {
            self.passes.windows.get_mut(key).unreadable.insert((role, rows.start));
            return;
        }
        for row in rows {
            self.read_rows(key, role, row..row + 1, out);
        }
    }

    /// Finds out what has to be written, and writes it.
    fn survey_window(&mut self, key: u64, out: &mut Outbox) {
        let kind = self.passes.kind();
        let window = self.passes.windows.get_mut(key);
        let (units, bytes) = (window.units.clone(), std::mem::take(&mut window.bytes));
        let (unreadable, unsettled) = (&window.unreadable, &window.unsettled);
        let survey = Survey { layout: self.layout, kind, units, bytes, unreadable, unsettled };
        let found = survey.carry_out();
        let missing = |row: &usize| survey.missing(*row).into_iter().map(|role| (*row, role)).collect();
        let missing: Vec<Vec<(usize, usize)>> = found.lost.iter().map(missing).collect();
        let (lost, unknown) = match kind {
            PassKind::Rebuild { .. } => (missing.concat(), Vec::new()),
            PassKind::Resync | PassKind::Scrub { .. } => (Vec::new(), missing.concat()),
        };
        let looked_at = survey.units.clone();
        window.lost = found.lost;
        let regions = self.recorder.regions;
        let first = window.units.start;
        let unit_of = |row: usize| first + (row / self.layout.rows) as u64;
        let in_doubt: Vec<u64> = window.lost.iter().map(|row| regions.of_unit(unit_of(*row))).collect();
        self.passes.found(&found.findings, in_doubt);
        if self.losses.lose_blocks(first, &lost, &mut self.recorder, &self.cache) {
            self.record(out);
        } else if let Some(rebuild) = self.recorder.rebuilding() {
            // Nobody could tell what it has from what it has not.
            self.member_failed(rebuild.role, out);
        }
        // These units have just been looked at.
        self.losses.forget_unreadable(&looked_at);
        for (row, role) in unknown {
            let unit = first + (row / self.layout.rows) as u64;
            let column = self.layout.column(unit, role);
            let column = (column < self.layout.shape.data).then_some(column);
            self.losses.cannot_read(unit, row % self.layout.rows, column);
        }
        for Repair { role, rows, buf } in found.repairs {
            // A member that has failed meanwhile gets nothing, and nor does one that has come in its place.
            if !self.recorder.is_in_use(role) || self.is_void() {
                continue;
            }
            self.passes.windows.get_mut(key).left += 1;
            let at = self.layout.member_lba(first, rows.start);
            let io = Io::Write { at, buf, durability: Durability::Volatile };
            self.members.submit(role, Flight::WindowWrite { key, rows }, io, out);
        }
        if self.passes.windows.get_mut(key).left == 0 {
            self.end_window(key, out);
        }
    }

    /// A member has written something of a window, or has failed.
    pub fn window_write(&mut self, key: u64, role: usize, rows: Range<usize>, is_ok: bool, out: &mut Outbox) {
        if is_ok {
            self.window_written(key, role, rows);
        }
        let window = self.passes.windows.get_mut(key);
        window.left -= 1;
        if window.left == 0 {
            self.end_window(key, out);
        }
    }

    /// Blocks that were bad are good now, and what a new member got in the place of lost blocks is not.
    fn window_written(&mut self, key: u64, role: usize, rows: Range<usize>) {
        let rebuilt = self.passes.kind() == PassKind::Rebuild { role };
        let window = self.passes.windows.get_mut(key);
        let (first, lost) = (window.units.start, std::mem::take(&mut window.lost));
        for row in rows {
            let unit = first + (row / self.layout.rows) as u64;
            let place = (row % self.layout.rows, self.layout.column(unit, role));
            let bad = &mut self.cache.unit(unit).bad;
            if rebuilt && lost.binary_search(&row).is_ok() {
                bad.insert(place);
            } else {
                bad.remove(&place);
            }
            let unreadable = self.passes.windows.get_mut(key).unreadable.contains(&(role, row));
            self.statistics.sectors_repaired += u64::from(unreadable);
            self.passes.repaired(u64::from(!rebuilt));
        }
        self.passes.windows.get_mut(key).lost = lost;
    }

    /// A window is over when all before it are: what a pass has been over is everything below one unit.
    fn end_window(&mut self, key: u64, out: &mut Outbox) {
        self.passes.windows.get_mut(key).ended = true;
        while let Some(&first) = self.passes.order.front()
            && self.passes.windows.get_mut(first).ended
        {
            self.passes.order.pop_front();
            let window = self.passes.windows.remove(first);
            self.passed(window.units.end - window.units.start);
            for unit in window.units {
                self.cache.unit(unit).exclusive = false;
                self.unlocked(unit, out);
            }
        }
    }
}
