//! Writes the labels. One update is under way at a time; later changes go into the next one.

use super::{LegCanary, LegState, MirrorCore, MirrorOp};
use crate::layer::{Cx, Io, IoError, Report};
use crate::{Durability, Lba};

/// Progress of writing the label.
pub struct LabelUpdate {
    /// The newest generation that all whole legs had when it was complete.
    pub durable: u64,
    /// The label has changed since the last update began.
    wanted: bool,
    /// Whole legs that have not written the running update.
    left: Option<u32>,
    /// Number of labels on their way to other legs; only the next update waits for them.
    others: u32,
    /// Number of legs that no longer count as whole; next, how many of them the running update names, and the labels name.
    gone: u64,
    naming: u64,
    named: u64,
    /// Set if no whole leg could be written: nothing is acknowledged any more.
    pub is_dead: Option<IoError>,
}

impl LabelUpdate {
    pub const fn of(generation: u64) -> LabelUpdate {
        LabelUpdate {
            durable: generation,
            wanted: false,
            left: None,
            others: 0,
            gone: 0,
            naming: 0,
            named: 0,
            is_dead: None,
        }
    }

    pub const fn change(&mut self) {
        self.wanted = true;
    }

    /// Notes that a whole leg gets no more writes that count.
    pub const fn leg_gone(&mut self) {
        self.gone += 1;
        self.wanted = true;
    }

    /// True if the labels name every leg that has missed something.
    pub const fn names_all(&self) -> bool {
        self.named == self.gone
    }

    /// True when nothing more is written to the labels.
    pub const fn is_over(&self) -> bool {
        self.is_settled() || self.is_dead.is_some() && !self.is_writing()
    }

    const fn is_writing(&self) -> bool {
        self.left.is_some() || self.others > 0
    }

    /// True if the labels are up to date.
    pub const fn is_settled(&self) -> bool {
        !self.wanted && !self.is_writing()
    }
}

impl MirrorCore {
    /// Marks a leg as failed that has missed a write, or cannot be written. The last whole leg stays: its errors are reported.
    pub fn fail_leg(&mut self, leg: u64, error: IoError, cx: &mut Cx) {
        match self.label.standing(leg) {
            Some(LegState::Whole) if !self.is_last_whole(leg) => self.record.leg_gone(),
            Some(LegState::Filling) => self.record.change(),
            _ => return,
        }
        self.label.set(leg, LegState::Failed);
        self.causes.push((leg, IoError { extent: None, ..error }));
        self.statistics.legs_failed += 1;
        self.copier.forget(leg);
        cx.report(Report::Notice);
    }

    /// Refills a copy that has lost data which its leg had reported as durable. The last whole leg stays: it has the most.
    pub fn distrust(&mut self, copy: u8, cx: &mut Cx) {
        let Some(leg) = self.leg_of(copy).filter(|leg| !self.is_last_whole(*leg)) else { return };
        self.record.leg_gone();
        self.label.set(leg, LegState::Filling);
        self.distrusted.push(leg);
        self.statistics.legs_distrusted += 1;
        self.copier.forget(leg);
        cx.report(Report::Notice);
    }

    pub fn record_step(&mut self, cx: &mut Cx) {
        if !self.record.wanted || self.record.is_writing() || self.record.is_dead.is_some() {
            return;
        }
        self.record.wanted = false;
        self.record.naming = self.record.gone;
        self.label.generation += 1;
        self.label.complete = self.record.durable;
        let mut left = 0;
        for leg in self.written() {
            let counts = self.label.standing(leg) == Some(LegState::Whole);
            left += u32::from(counts);
            self.record.others += u32::from(!counts);
            let (at, buf) = self.label.encode(leg);
            self.submit(
                leg,
                MirrorOp::Label { leg, counts },
                Io::Write { at, buf, durability: Durability::Durable },
                cx,
            );
        }
        self.record.left = Some(left);
    }

    pub fn on_label(&mut self, leg: u64, counts: bool, status: Result<(), IoError>, cx: &mut Cx) {
        if let Err(error) = status {
            if self.is_last_whole(leg) {
                self.record.is_dead = Some(error);
            }
            self.fail_leg(leg, error, cx);
        }
        if !counts {
            self.record.others -= 1;
            return;
        }
        let left = self.record.left.as_mut().expect("an update is under way");
        *left -= 1;
        if *left == 0 {
            self.record.left = None;
            if self.record.is_dead.is_none() {
                // A leg that failed meanwhile is named by the next update.
                self.record.named = self.record.naming;
                self.record.durable = self.label.generation;
            }
        }
    }

    /// True when completed operations may be answered: the labels name every leg that missed something.
    pub fn may_answer(&self) -> bool {
        self.record.names_all() || self.canary.is(LegCanary::LateLabel)
    }

    /// Erases the labels of a leg that was removed, and marks it.
    pub fn erase(&mut self, leg: u64, cx: &mut Cx) {
        for (at, buf) in super::label::COPY_SECTORS.into_iter().zip(super::label::removed()) {
            self.submit(
                leg,
                MirrorOp::Erase { leg },
                Io::Write { at: Lba(at.0), buf, durability: Durability::Durable },
                cx,
            );
        }
    }
}
