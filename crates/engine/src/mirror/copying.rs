//! Copies from leg to leg, one place at a time: fills a leg, and repairs places that one leg could not read and another could. While a
//! place is copied, no client writes there.

use std::collections::VecDeque;

use super::clients::{down, down_extent};
use super::label::Label;
use super::{Core, Op, Standing, Stop};
use crate::layer::{Durability, Io, IoResult, Outbox, Report};
use crate::{Buf, Extent, Lba, Nanos, SECTOR_BYTES};

/// Sectors copied at once: enough to stream, but so few that a client's write waits no longer than for another write.
const WINDOW_SECTORS: u64 = 2048;
/// Sectors copied at once in a window with unreadable sectors.
const PIECE_SECTORS: u64 = 8;
/// Maximum number of places that wait to be repaired. A later read finds the others again.
const MENDS_MAX: usize = 64;

/// A leg that is being filled, and its progress.
struct Fill {
    leg: u64,
    done_sectors: u64,
    /// End of the sectors that are copied in small pieces.
    pieces_until: u64,
    flushing: bool,
}

enum Phase {
    /// Waits for the operations under way in the place.
    Locked,
    Reading {
        from: u64,
    },
    Writing,
}

struct Copy {
    to: u64,
    extent: Extent,
    is_fill: bool,
    phase: Phase,
    /// Legs that cannot read the place.
    unreadable: Vec<u64>,
    began: Nanos,
}

#[derive(Default)]
pub struct Copier {
    fill: Option<Fill>,
    mends: VecDeque<(u64, Extent)>,
    running: Option<Copy>,
    /// Time of the next copy: clients come first.
    rests_until: Nanos,
    /// No leg is filled in this activation.
    only_looks: bool,
}

impl Copier {
    pub fn new(only_looks: bool) -> Copier {
        Copier { only_looks, ..Copier::default() }
    }

    pub fn holds(&self, extent: Extent) -> bool {
        self.running.as_ref().is_some_and(|copy| copy.extent.overlaps(extent))
    }

    pub fn mend(&mut self, leg: u64, extent: Extent) {
        if self.mends.len() < MENDS_MAX && !self.mends.contains(&(leg, extent)) {
            self.mends.push_back((leg, extent));
        }
    }

    /// Stops copying to a leg.
    pub fn forget(&mut self, leg: u64) {
        self.mends.retain(|(other, _)| *other != leg);
        if self.fill.as_ref().is_some_and(|fill| fill.leg == leg) {
            self.fill = None;
        }
    }

    pub const fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns the number of sectors of a leg that are filled.
    pub fn filled_sectors(&self, leg: u64) -> u64 {
        self.fill.as_ref().filter(|fill| fill.leg == leg).map_or(0, |fill| fill.done_sectors)
    }

    /// The next leg to fill.
    fn unfilled(&self, label: &Label) -> Option<u64> {
        let next = label.legs.iter().find(|leg| leg.standing == Standing::Filling);
        next.filter(|_| !self.only_looks).map(|leg| leg.id)
    }
}

impl Core {
    /// True when a leg is to be filled, a place is to be repaired, or a copy is running.
    pub fn copies(&self) -> bool {
        let Copier { fill, mends, running, .. } = &self.copier;
        let fills = fill.is_some() || self.copier.unfilled(&self.label).is_some();
        running.is_some() || !mends.is_empty() || fills && self.record.is_dead.is_none()
    }

    pub fn next_copy(&self) -> Option<Nanos> {
        if self.copier.running.is_some() || self.stop != Stop::No {
            return None;
        }
        if !self.copier.mends.is_empty() {
            return Some(Nanos::ZERO);
        }
        let fills = match &self.copier.fill {
            Some(fill) => !fill.flushing,
            None => self.copier.unfilled(&self.label).is_some(),
        };
        (fills && self.record.is_settled()).then_some(self.copier.rests_until)
    }

    pub fn copy_step(&mut self, now: Nanos, out: &mut Outbox) {
        if self.copier.fill.is_none() && self.record.is_settled() {
            let fill = |leg| Fill { leg, done_sectors: 0, pieces_until: 0, flushing: false };
            self.copier.fill = self.copier.unfilled(&self.label).map(fill);
        }
        if self.copier.running.is_none() && self.stop == Stop::No {
            self.copier.running = self.next_place(now, out);
        }
        let Some(copy) = &mut self.copier.running else { return };
        if matches!(copy.phase, Phase::Locked) && !self.clients.changes(copy.extent) {
            self.read_place(out);
        }
    }

    fn next_place(&mut self, now: Nanos, out: &mut Outbox) -> Option<Copy> {
        let copy = |to, extent, is_fill| Copy {
            to,
            extent,
            is_fill,
            phase: Phase::Locked,
            unreadable: Vec::new(),
            began: now,
        };
        if let Some((leg, extent)) = self.copier.mends.pop_front() {
            return Some(copy(leg, extent, false));
        }
        // A fill begins only once the labels say so.
        let fill = self.copier.fill.as_mut().filter(|fill| !fill.flushing)?;
        if now < self.copier.rests_until || !self.record.is_settled() {
            return None;
        }
        let left = self.label.sectors - fill.done_sectors;
        if left == 0 {
            fill.flushing = true;
            let leg = fill.leg;
            self.submit(leg, Op::Filled { leg }, Io::Flush, out);
            return None;
        }
        let most = if fill.done_sectors < fill.pieces_until { PIECE_SECTORS } else { WINDOW_SECTORS };
        let extent = Extent::new(Lba(fill.done_sectors), left.min(most));
        Some(copy(fill.leg, extent, true))
    }

    /// Reads the place from a leg that has not failed to read it.
    fn read_place(&mut self, out: &mut Outbox) {
        let copy = self.copier.running.as_ref().expect("a place is copied");
        let (to, extent, is_fill) = (copy.to, copy.extent, copy.is_fill);
        let mut but = copy.unreadable.clone();
        but.push(to);
        let Some(from) = self.reader(&but) else {
            if is_fill && extent.sectors <= PIECE_SECTORS {
                // No leg can read the place. Old content of the new leg must not be taken for it.
                return self.write_place(Buf::zeroed((extent.sectors * SECTOR_BYTES) as usize), out);
            }
            if let Some(fill) = self.copier.fill.as_mut().filter(|_| is_fill) {
                fill.pieces_until = extent.end().0;
            }
            self.copier.running = None;
            return self.start_waiting(out);
        };
        let copy = self.copier.running.as_mut().expect("a place is copied");
        copy.phase = Phase::Reading { from };
        let buf = Buf::zeroed((extent.sectors * SECTOR_BYTES) as usize);
        self.submit(from, Op::Copy { leg: from }, Io::Read { at: down(extent.start), buf }, out);
    }

    fn write_place(&mut self, buf: Buf, out: &mut Outbox) {
        let copy = self.copier.running.as_mut().expect("a place is copied");
        copy.phase = Phase::Writing;
        let (to, at) = (copy.to, down_extent(copy.extent).start);
        self.submit(to, Op::Copy { leg: to }, Io::Write { at, buf, durability: Durability::Volatile }, out);
    }

    pub fn on_copied(&mut self, now: Nanos, result: IoResult, out: &mut Outbox) {
        let written = self.written();
        let copy = self.copier.running.as_mut().expect("a place is copied");
        let (to, extent, is_fill, began) = (copy.to, copy.extent, copy.is_fill, copy.began);
        match (&copy.phase, result.status) {
            // The target leg has failed meanwhile, or was removed.
            _ if !written.contains(&to) => {}
            (Phase::Reading { .. }, Ok(())) => return self.write_place(result.buf, out),
            (Phase::Reading { from }, Err(_)) => {
                let from = *from;
                copy.unreadable.push(from);
                return self.read_place(out);
            }
            (_, Err(_)) => self.fail_leg(to, out),
            (_, Ok(())) if is_fill => {
                self.statistics.filled_sectors += extent.sectors;
                if let Some(fill) = self.copier.fill.as_mut().filter(|fill| fill.leg == to) {
                    fill.done_sectors = extent.end().0;
                }
            }
            (_, Ok(())) => self.statistics.mended += 1,
        }
        self.copier.running = None;
        if is_fill && !self.clients.is_idle() {
            self.copier.rests_until = now + Nanos(2 * now.since(began).0);
        }
        self.start_waiting(out);
    }

    /// Notes that a whole leg is copied and flushed.
    pub fn on_filled(&mut self, leg: u64, result: IoResult, out: &mut Outbox) {
        if self.copier.fill.take_if(|fill| fill.leg == leg).is_none() {
            return;
        }
        match result.status {
            Ok(()) => {
                self.label.set(leg, Standing::Whole);
                self.number(leg);
                self.statistics.legs_filled += 1;
                self.record.change();
                out.report(Report::Notice);
            }
            Err(_) => self.fail_leg(leg, out),
        }
    }
}
