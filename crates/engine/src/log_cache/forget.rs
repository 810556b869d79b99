//! Forgetting: the head is about to come to segments whose clean copies are still read. They leave the table before, in parts: an event looks
//! at a stated number of slots, so a large log holds up no request.

use super::Reads;
use super::core::Core;
use super::table::TablePart;
use super::write::SEGMENTS_READY;
use crate::Nanos;
use crate::layer::Outbox;
use std::ops::Range;

/// Number of parts of the log; clean copies are forgotten for a part at a time.
const FORGET_PART: u64 = 16;
/// Like `FORGET_PART`, where reads are kept: hot pieces were copied before, and take space twice.
const FORGET_PART_KEEPING: u64 = 64;

/// The state of forgetting.
#[derive(Default)]
pub struct Forgetting {
    /// The numbers of the segments that are being forgotten, and the next part of the table.
    pass: Option<(Range<u64>, TablePart)>,
    /// The table has no room for a write.
    is_asked: bool,
}

impl Forgetting {
    /// The number behind the segments that are being forgotten.
    pub fn end(&self) -> Option<u64> {
        self.pass.as_ref().map(|(numbers, _)| numbers.end)
    }

    /// A write has no room in the table.
    pub const fn ask(&mut self) {
        self.is_asked = true;
    }
}

impl Core {
    /// Segments whose clean copies are forgotten at a time.
    pub fn forget_part(&self) -> u64 {
        let part = if self.config.reads == Reads::Keep { FORGET_PART_KEEPING } else { FORGET_PART };
        (self.log.ring().count() / part).max(SEGMENTS_READY)
    }

    /// The head comes to segments soon that are not forgotten yet, or a write has no room before.
    fn has_to_forget(&self) -> bool {
        let ring = self.log.ring();
        // A pass takes several events, and the head moves on meanwhile.
        let soon = SEGMENTS_READY + self.forget_part() / 4;
        ring.remembered() > 0 && (self.forgetting.is_asked || ring.ready() < soon)
    }

    /// Does one part of the work; runs after every event.
    pub fn forget_step(&mut self, now: Nanos, out: &mut Outbox) {
        if self.forgetting.pass.is_none() && self.has_to_forget() {
            let numbers = self.log.ring().next_remembered(self.forget_part());
            self.forgetting.pass = Some((numbers, TablePart::first(self.config.scan_slots)));
        }
        let Some((numbers, part)) = self.forgetting.pass.take() else { return };
        let segments = self.log.ring().indices(&numbers);
        if let Some(next) = self.index.forget_segments(segments, part) {
            self.forgetting.pass = Some((numbers, next));
            return;
        }
        self.log.forget(numbers);
        self.forgetting.is_asked = false;
        self.retry_pending(now, out);
    }

    pub fn forget_deadline(&self) -> Option<Nanos> {
        (self.forgetting.pass.is_some() || self.has_to_forget()).then_some(self.now)
    }
}
