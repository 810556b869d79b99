//! Where a record goes on a log that spins.
//!
//! A log that is written sector after sector, one flush at a time, waits for nearly a whole revolution each time: the next
//! sector has just gone by when the next flush comes. So where the log is on a disk whose tracks are known, and nothing else
//! is being written there, the record is put a little further on, where the head will be. What is left out is lost until
//! the log comes round, so this is done only below the high mark.
//!
//! A record that is begun while another one is being written is sent when that one has ended, with the head at its end: only
//! the lead is left out before it.
//!
//! How far ahead is learnt: a record that came too late for its sector took more than three quarters of a revolution, and
//! the lead grows; while records are in time, it shrinks slowly.

use crate::{Nanos, SECTOR_BYTES};

/// What is known of the log's spindle.
pub struct Rotation {
    revolution: u64,
    track_sectors: u64,
    /// When the head was at the end of the last record.
    passed: Option<Nanos>,
    /// The time from the choice of a place to when the drive can write there.
    lead: u64,
    /// The filling buffer's place was chosen while another write was on its way: it counts from when it is sent.
    behind: bool,
    /// When the write was sent, or begun, whose place was chosen.
    sent: Option<Nanos>,
}

impl Rotation {
    /// `revolution` zero: the log does not spin, or nothing is known of it.
    pub const fn new(revolution: Nanos, track_bytes: u64) -> Rotation {
        let track_sectors = track_bytes / SECTOR_BYTES;
        Rotation {
            revolution: revolution.0,
            track_sectors,
            passed: None,
            lead: revolution.0 / 16,
            behind: false,
            sent: None,
        }
    }

    /// How many sectors to leave out, so that the head is there in time. Known once after each write.
    pub fn gap(&mut self, now: Nanos) -> u64 {
        if self.revolution == 0 || self.track_sectors == 0 {
            return 0;
        }
        let Some(passed) = self.passed.take() else { return 0 };
        self.sectors((now.since(passed).0 + self.lead) % self.revolution)
    }

    /// How many sectors to leave out behind a write that is on its way, for a record that follows it at once.
    pub fn gap_behind(&self) -> u64 {
        if self.revolution == 0 { 0 } else { self.sectors(self.lead) }
    }

    fn sectors(&self, turned: u64) -> u64 {
        (u128::from(turned) * u128::from(self.track_sectors) / u128::from(self.revolution)) as u64
    }

    /// The gap was left: the next write shows whether it was enough.
    pub fn placed(&mut self, now: Nanos) {
        self.sent = Some(now);
    }

    /// The same for [`Rotation::gap_behind`].
    pub const fn placed_behind(&mut self) {
        self.behind = true;
    }

    /// A write of the log is sent.
    pub fn sending(&mut self, now: Nanos) {
        // Where nobody waited for it, the head is anywhere by now.
        if std::mem::take(&mut self.behind) && self.passed == Some(now) {
            self.sent = Some(now);
        }
    }

    /// A write of the log has ended: the head is at its end.
    pub fn written(&mut self, now: Nanos) {
        self.passed = Some(now);
        let Some(sent) = self.sent.take() else { return };
        if now.since(sent).0 > self.revolution / 4 * 3 {
            self.lead = (self.lead + self.revolution / 16).min(self.revolution / 4);
        } else {
            self.lead = (self.lead - self.lead / 64).max(self.revolution / 64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_is_what_turns_by_and_the_lead_is_learnt() {
        let mut rotation = Rotation::new(Nanos::from_millis(8), 800 * SECTOR_BYTES);
        let gap = |rotation: &mut Rotation, millis| {
            rotation.placed(Nanos::from_millis(millis));
            rotation.gap(Nanos::from_millis(millis))
        };
        assert_eq!(gap(&mut rotation, 0), 0, "nothing is known of the angle yet");
        rotation.written(Nanos::from_millis(1));
        assert_eq!(
            gap(&mut rotation, 2),
            100 + 49,
            "1 ms has gone by, and the lead is a little under 0.5 ms"
        );
        rotation.written(Nanos::from_millis(10));
        assert_eq!(gap(&mut rotation, 11), 100 + 99, "that was too late: 0.5 ms more");
        rotation.written(Nanos::from_millis(12));
        assert!(gap(&mut rotation, 13) < 100 + 99, "that was in time");
        assert_eq!(Rotation::new(Nanos::ZERO, 0).gap(Nanos::from_millis(5)), 0);
    }

    #[test]
    fn behind_a_write_that_is_on_its_way_only_the_lead_is_left_out() {
        let mut rotation = Rotation::new(Nanos::from_millis(8), 800 * SECTOR_BYTES);
        assert_eq!(rotation.gap_behind(), 50, "the lead is 0.5 ms");
        rotation.placed_behind();
        rotation.written(Nanos::from_millis(20));
        rotation.sending(Nanos::from_millis(20));
        rotation.written(Nanos::from_millis(28));
        assert_eq!(rotation.gap_behind(), 100, "a whole revolution: too late by the lead");
        rotation.placed_behind();
        rotation.sending(Nanos::from_millis(35));
        rotation.written(Nanos::from_millis(43));
        assert_eq!(rotation.gap_behind(), 100, "sent when the head had gone on: it says nothing of the lead");
        assert_eq!(Rotation::new(Nanos::ZERO, 0).gap_behind(), 0);
    }
}
