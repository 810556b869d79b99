//! Forgetting: drops the clean copies in segments that the head will enter soon. They leave the table in parts: an event looks at a
//! limited number of slots, so even a large log delays no request.

use super::append::SEGMENTS_READY;
use super::env::{Env, View};
use super::table::TablePart;
use crate::Nanos;
use std::ops::Range;

/// Number of parts of the log; clean copies are forgotten for a part at a time.
const FORGET_PART: u64 = 16;
/// Like `FORGET_PART`, if reads are cached: hot pieces are copied before, and take space twice.
const FORGET_PART_KEEPING: u64 = 64;

/// Number of segments that are forgotten at a time.
pub fn forget_part(view: &View) -> u64 {
    let part = if view.keeps_copies() { FORGET_PART_KEEPING } else { FORGET_PART };
    (view.log.ring().count() / part).max(SEGMENTS_READY)
}

/// The segments whose clean copies are being forgotten.
#[derive(Default)]
pub struct Forgetting {
    /// Their numbers, and the next part of the table.
    pass: Option<(Range<u64>, TablePart)>,
}

impl Forgetting {
    /// The number after the segments that are being forgotten.
    pub fn end(&self) -> Option<u64> {
        self.pass.as_ref().map(|(numbers, _)| numbers.end)
    }

    /// Does one part of the work. True when segments were forgotten: writes may have room now.
    pub fn step(&mut self, env: &mut Env) -> bool {
        if self.pass.is_none() && is_due(&env.view()) {
            let numbers = env.log.ring().next_remembered(forget_part(&env.view()));
            self.pass = Some((numbers, TablePart::first(env.config.scan_slots)));
        }
        let Some((numbers, part)) = self.pass.take() else { return false };
        let segments = env.log.ring().indices(&numbers);
        if let Some(next) = env.index.forget_segments(segments, part) {
            self.pass = Some((numbers, next));
            return false;
        }
        env.log.forget(numbers);
        env.index.has_made_room();
        true
    }

    pub fn deadline(&self, view: &View) -> Option<Nanos> {
        (self.pass.is_some() || is_due(view)).then_some(view.now)
    }
}

/// True when the head will soon enter segments that are not forgotten yet, or a write has no room in the table.
fn is_due(view: &View) -> bool {
    let ring = view.log.ring();
    ring.remembered() > 0 && (view.index.is_asked_for_room() || ring.ready() < segments_ahead(view))
}

/// Number of segments that the head may enter before work on those after them has ended: a pass takes several events, and the head moves
/// on meanwhile.
pub fn segments_ahead(view: &View) -> u64 {
    SEGMENTS_READY + forget_part(view) / 4
}
