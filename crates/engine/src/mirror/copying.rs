//! Copies from leg to leg, one place at a time: fills a leg, and repairs blocks that one leg could not read and another could. While a
//! place is copied, no client writes there.
//!
//! A place with unreadable blocks is divided, down to single blocks: a block that its leg can read is never written, as it may be the only
//! good copy, and a leg that is filled gets every block that some leg can read.

use std::collections::VecDeque;

use super::clients::{down, down_extent};
use super::label::Label;
use super::{LegState, MirrorCore, MirrorOp};
use crate::layer::{Cx, Durability, Io, IoResult, Report};
use crate::{Buf, Extent, Lba, Nanos, SECTOR_BYTES};

/// Sectors copied at once: enough to stream, but so few that a client's write waits no longer than for another write.
const WINDOW_SECTORS: u64 = 2048;
/// Sectors copied at once in a window with unreadable blocks.
const PIECE_SECTORS: u64 = 8;
/// Maximum number of places that wait to be repaired. A later read finds the others again.
const MENDS_MAX: usize = 64;

/// Sectors that are copied place by place, and the progress.
#[derive(Clone, PartialEq, Eq)]
struct CopyWalk {
    next: u64,
    end: u64,
    /// Ends of the sectors that are copied in pieces, and block by block.
    pieces_until: u64,
    blocks_until: u64,
}

impl CopyWalk {
    const fn new(extent: Extent) -> CopyWalk {
        CopyWalk { next: extent.start.0, end: extent.end().0, pieces_until: 0, blocks_until: 0 }
    }

    fn place(&self, block: u64) -> Extent {
        let most = match self.next {
            next if next < self.blocks_until => block,
            next if next < self.pieces_until => PIECE_SECTORS,
            _ => WINDOW_SECTORS,
        };
        Extent::new(Lba(self.next), most.min(self.end - self.next))
    }

    /// Divides the next place; false if it is one block.
    fn divide(&mut self, block: u64) -> bool {
        let place = self.place(block);
        let is_piece = place.sectors <= PIECE_SECTORS;
        let until = if is_piece { &mut self.blocks_until } else { &mut self.pieces_until };
        *until = place.end().0;
        place.sectors > block
    }
}

/// A leg that is being filled.
struct Fill {
    leg: u64,
    walk: CopyWalk,
    flushing: bool,
}

enum CopyPhase {
    /// Waits for the operations under way in the place.
    Locked,
    /// Reads it from the leg to be repaired: which blocks are bad?
    Checking,
    Reading {
        from: u64,
    },
    Writing,
}

struct Copy {
    to: u64,
    /// Sectors left to do, of a repair or a fill.
    walk: CopyWalk,
    extent: Extent,
    is_fill: bool,
    phase: CopyPhase,
    /// Legs that cannot read the place.
    unreadable: Vec<u64>,
    began: Nanos,
}

#[derive(Default)]
pub struct Copier {
    fill: Option<Fill>,
    mends: VecDeque<(u64, CopyWalk)>,
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
        let mend = (leg, CopyWalk::new(extent));
        if self.mends.len() < MENDS_MAX && !self.mends.contains(&mend) {
            self.mends.push_back(mend);
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
        self.fill.as_ref().filter(|fill| fill.leg == leg).map_or(0, |fill| fill.walk.next)
    }

    /// The next leg to fill.
    fn unfilled(&self, label: &Label) -> Option<u64> {
        let next = label.legs.iter().find(|leg| leg.standing == LegState::Filling);
        next.filter(|_| !self.only_looks).map(|leg| leg.id)
    }
}

impl MirrorCore {
    /// True when a leg is to be filled, a place is to be repaired, or a copy is running.
    pub fn copies(&self) -> bool {
        let Copier { fill, mends, running, .. } = &self.copier;
        let fills = fill.is_some() || self.copier.unfilled(&self.label).is_some();
        running.is_some() || !mends.is_empty() || fills && self.record.is_dead.is_none()
    }

    pub fn next_copy(&self) -> Option<Nanos> {
        if self.copier.running.is_some() || !self.life.serves() {
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

    pub fn copy_step(&mut self, cx: &mut Cx) {
        if self.copier.fill.is_none() && self.record.is_settled() {
            let walk = CopyWalk::new(Extent::new(Lba(0), self.label.sectors));
            let fill = |leg| Fill { leg, walk, flushing: false };
            self.copier.fill = self.copier.unfilled(&self.label).map(fill);
        }
        if self.copier.running.is_none() && self.life.serves() {
            self.copier.running = self.next_place(cx);
        }
        let Some(copy) = &mut self.copier.running else { return };
        if matches!(copy.phase, CopyPhase::Locked) && !self.clients.changes(copy.extent) {
            let (is_fill, to) = (copy.is_fill, copy.to);
            if is_fill {
                self.read_place(cx);
            } else {
                self.read_from(to, CopyPhase::Checking, cx);
            }
        }
    }

    fn next_place(&mut self, cx: &mut Cx) -> Option<Copy> {
        let block = self.block_sectors();
        let copy = |to, walk: CopyWalk, is_fill| {
            let (extent, phase, unreadable) = (walk.place(block), CopyPhase::Locked, Vec::new());
            Copy { to, walk, extent, is_fill, phase, unreadable, began: cx.now }
        };
        if let Some((leg, walk)) = self.copier.mends.pop_front() {
            return Some(copy(leg, walk, false));
        }
        // A fill begins only once the labels say so.
        let fill = self.copier.fill.as_mut().filter(|fill| !fill.flushing)?;
        if cx.now < self.copier.rests_until || !self.record.is_settled() {
            return None;
        }
        if fill.walk.next == fill.walk.end {
            fill.flushing = true;
            let leg = fill.leg;
            self.submit(leg, MirrorOp::Filled { leg }, Io::Flush, cx);
            return None;
        }
        Some(copy(fill.leg, fill.walk.clone(), true))
    }

    /// Sectors of the smallest part of a leg that is read or written.
    fn block_sectors(&self) -> u64 {
        u64::from(self.geometry.logical_block_bytes) / SECTOR_BYTES
    }

    fn read_from(&mut self, from: u64, phase: CopyPhase, cx: &mut Cx) {
        let copy = self.copier.running.as_mut().expect("a place is copied");
        copy.phase = phase;
        let at = down(copy.extent.start);
        let buf = Buf::zeroed((copy.extent.sectors * SECTOR_BYTES) as usize);
        self.submit(from, MirrorOp::Copy { leg: from }, Io::Read { at, buf }, cx);
    }

    /// Reads the place from a leg that has not failed to read it.
    fn read_place(&mut self, cx: &mut Cx) {
        let copy = self.copier.running.as_ref().expect("a place is copied");
        let but = [&copy.unreadable[..], &[copy.to]].concat();
        match self.reader(&but) {
            Some(from) => self.read_from(from, CopyPhase::Reading { from }, cx),
            None => self.divide_place(cx),
        }
    }

    /// Goes on with a part of a place that cannot be read as a whole. A block that no leg can read is passed over by a repair; a leg that
    /// is filled gets zeroes, as its old content must not be taken for the block's.
    fn divide_place(&mut self, cx: &mut Cx) {
        let block = self.block_sectors();
        let copy = self.copier.running.as_mut().expect("a place is copied");
        let is_divided = copy.walk.divide(block);
        if copy.is_fill && !is_divided {
            let zeroes = Buf::zeroed((copy.extent.sectors * SECTOR_BYTES) as usize);
            return self.write_place(zeroes, cx);
        }
        self.end_place(!is_divided, cx);
    }

    /// Ends a copy; `is_passed`: the next place begins behind it.
    fn end_place(&mut self, is_passed: bool, cx: &mut Cx) {
        let Some(Copy { to, mut walk, extent, is_fill, .. }) = self.copier.running.take() else { return };
        if is_passed {
            walk.next = extent.end().0;
        }
        if let Some(fill) = self.copier.fill.as_mut().filter(|fill| is_fill && fill.leg == to) {
            fill.walk = walk;
        } else if !is_fill && walk.next < walk.end && self.written().contains(&to) {
            self.copier.mends.push_front((to, walk));
        }
        self.start_waiting(cx);
    }

    fn write_place(&mut self, buf: Buf, cx: &mut Cx) {
        let copy = self.copier.running.as_mut().expect("a place is copied");
        copy.phase = CopyPhase::Writing;
        let (to, at) = (copy.to, down_extent(copy.extent).start);
        self.submit(
            to,
            MirrorOp::Copy { leg: to },
            Io::Write { at, buf, durability: Durability::Volatile },
            cx,
        );
    }

    pub fn on_copied(&mut self, result: IoResult, cx: &mut Cx) {
        let (written, block) = (self.written(), self.block_sectors());
        let copy = self.copier.running.as_mut().expect("a place is copied");
        let (to, extent, is_fill, began) = (copy.to, copy.extent, copy.is_fill, copy.began);
        match (&copy.phase, result.status) {
            // The target leg has failed meanwhile, or was removed.
            _ if !written.contains(&to) => {}
            (CopyPhase::Reading { .. }, Ok(())) => return self.write_place(result.buf, cx),
            (CopyPhase::Reading { from }, Err(_)) => {
                let from = *from;
                copy.unreadable.push(from);
                return self.read_place(cx);
            }
            (CopyPhase::Checking, Ok(())) => {}
            (CopyPhase::Checking, Err(_)) if extent.sectors > block => return self.divide_place(cx),
            (CopyPhase::Checking, Err(_)) => return self.read_place(cx),
            (_, Err(error)) => self.fail_leg(to, error, cx),
            (_, Ok(())) if is_fill => self.statistics.filled_sectors += extent.sectors,
            (_, Ok(())) => self.statistics.mended += 1,
        }
        if is_fill && !self.clients.is_idle() {
            self.copier.rests_until = cx.now + Nanos(2 * cx.now.since(began).0);
        }
        self.end_place(true, cx);
    }

    /// Notes that a whole leg is copied and flushed.
    pub fn on_filled(&mut self, leg: u64, result: IoResult, cx: &mut Cx) {
        if self.copier.fill.take_if(|fill| fill.leg == leg).is_none() {
            return;
        }
        match result.status {
            Ok(()) => {
                self.label.set(leg, LegState::Whole);
                self.number(leg);
                self.statistics.legs_filled += 1;
                self.record.change();
                cx.report(Report::Notice);
            }
            Err(error) => self.fail_leg(leg, error, cx),
        }
    }
}
