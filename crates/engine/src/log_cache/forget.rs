//! Forgetting: drops the clean copies in segments that the head will enter soon. They leave the table in parts: an event looks at a
//! limited number of slots, so even a large log delays no request.

use super::Reads;
use super::core::Core;
use super::table::TablePart;
use super::write::SEGMENTS_READY;
use crate::Nanos;
use crate::layer::Outbox;
use std::ops::Range;

/// Number of parts of the log; clean copies are forgotten for a part at a time.
const FORGET_PART: u64 = 16;
/// Like `FORGET_PART`, if reads are cached: hot pieces are copied before, and take space twice.
const FORGET_PART_KEEPING: u64 = 64;

/// The state of forgetting.
#[derive(Default)]
pub struct Forgetting {
    /// The numbers of the segments whose clean copies are being forgotten, and the next part of the table.
    pass: Option<(Range<u64>, TablePart)>,
    /// True if the table has no room for a write.
    is_asked: bool,
}

impl Forgetting {
    /// The number after the segments that are being forgotten.
    pub fn end(&self) -> Option<u64> {
        self.pass.as_ref().map(|(numbers, _)| numbers.end)
    }

    /// Notes that a write has no room in the table.
    pub const fn ask(&mut self) {
        self.is_asked = true;
    }
}

impl Core {
    /// Number of segments that are forgotten at a time.
    pub fn forget_part(&self) -> u64 {
        let part = if self.config.reads == Reads::Keep { FORGET_PART_KEEPING } else { FORGET_PART };
        (self.log.ring().count() / part).max(SEGMENTS_READY)
    }

    /// True when the head will soon enter segments that are not forgotten yet, or a write has no room in the table.
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
