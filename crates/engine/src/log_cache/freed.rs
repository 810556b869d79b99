//! Discards freed segments of a log on an SSD: the SSD then has room to collect its garbage in, and wears out less.
//!
//! Segments become free in parts, shortly before the head comes to them: until then their clean copies serve reads (see `forget.rs`). So
//! after a start, when there are none, all that is not in use is discarded, and later the part that the head enters next.
//!
//! It promises:
//!
//! - Recovery never needs a discarded segment. Only *free* segments are discarded (see `ring.rs`): their clean copies are forgotten, and
//!   both copies of the superblock have a later tail. So the older one is still good if the newest rots.
//! - A discard and a record are never on their way to the same segment: a segment is pinned until its discard has ended. Nor is a segment
//!   discarded while a read pins it.
//! - The head does not come to wait for a discard in the ordinary way: the next segments of the head are not discarded any more. A segment
//!   that the head reaches first is written over as it is.
//!
//! Discards take at most a tenth of the time. They end if the device takes long for them, or refuses one, until the setting is turned on
//! again or the next start. There are none but on a plain SSD: elsewhere (a file, a thin volume, an export) others could get the space, and
//! the log would fail when the head comes to it.

use serde::{Deserialize, Serialize};

use super::LogCanary;
use super::env::{Env, LOG, Op, View};
use super::forget::segments_ahead;
use crate::layer::{Discards, Geometry, Io, IoResult};
use crate::{Extent, Lba, Nanos};
use std::ops::Range;

/// A discard is at most this long, and a part of the log; one segment at least. Flushes may wait for it.
const BYTES_MAX: u64 = 2 << 20;
const LOG_PART: u64 = 16;
/// Time between two discards, in times that the last one took.
const PAUSE: u64 = 9;
/// Time that an SSD needs at most for one. On some disks, requests wait for it.
const SLOW: Nanos = Nanos::from_millis(5);
/// Number of slow discards after which there are no more; a fast one makes up for a slow one.
const SLOW_MAX: u32 = 4;

/// State of the discards of freed segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FreedDiscards {
    /// The setting is off.
    #[default]
    Off,
    On,
    /// The log's device, or one leg's, is no plain SSD, or takes no discards.
    None,
    /// The device took long.
    Slow,
    /// The device failed one, or a leg was added that is no plain SSD.
    Failed,
}

/// The segments of a discard in flight, and the time when it was sent.
struct SentDiscard {
    numbers: Range<u64>,
    at: Nanos,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Freed {
    /// Number of the last segment that was discarded.
    done: u64,
    sent: Option<SentDiscard>,
    /// Time before which the next one is not sent.
    due: Nanos,
    slow: u32,
    /// Reason why there are no more.
    ended: Option<FreedDiscards>,
}

/// True for a log whose device gains by discards.
fn gains(geometry: &Geometry) -> bool {
    geometry.discards != Discards::No && geometry.ssd
}

impl Freed {
    pub fn status(&self, view: &View) -> FreedDiscards {
        match view.config.discard_freed {
            false => FreedDiscards::Off,
            true if !gains(view.log.geometry()) => FreedDiscards::None,
            true => self.ended.unwrap_or(FreedDiscards::On),
        }
    }

    /// Returns the next segments to discard; empty if there are none.
    fn next(&self, view: &View) -> Range<u64> {
        let ring = view.log.ring();
        let canary = view.config.canary;
        let free = if canary.is(LogCanary::DiscardNeeded) {
            ring.kept().max(self.done + 1)..ring.tail()
        } else {
            let ahead = if canary.is(LogCanary::UnpinnedDiscard) { 0 } else { segments_ahead(view) };
            ring.free_for_both((self.done + 1).max(ring.head() + 1 + ahead))
        };
        let bytes = u64::from(view.log.superblock().segment_bytes);
        let most = (BYTES_MAX / bytes).min(ring.count() / LOG_PART).max(1);
        // The second part is where the ring begins again.
        let [row, _] = ring.indices(&(free.start..free.end.max(free.start)));
        let is_read = |number: &u64| ring.is_pinned(*number..*number + 1);
        let end = free.start + most.min(row.len() as u64);
        free.start..(free.start..end).find(is_read).unwrap_or(end)
    }

    fn may_discard(&self, view: &View) -> bool {
        self.sent.is_none()
            && self.status(view) == FreedDiscards::On
            && view.life.serves()
            && !view.log.has_failed()
    }

    pub fn deadline(&self, view: &View) -> Option<Nanos> {
        (self.may_discard(view) && !self.next(view).is_empty()).then(|| self.due.max(view.now))
    }

    /// Sends the next discard, if it is time for that.
    pub fn step(&mut self, env: &mut Env) {
        if !env.config.discard_freed {
            (self.ended, self.slow) = (None, 0);
        }
        let now = env.cx.now;
        if self.deadline(&env.view()).is_none_or(|at| at > now) {
            return;
        }
        let numbers = self.next(&env.view());
        let (start, end) = (env.log.start_of(numbers.start), env.log.end_of(numbers.end - 1));
        self.pin(&numbers, env);
        self.done = numbers.end - 1;
        self.sent = Some(SentDiscard { numbers, at: now });
        env.submit(LOG, Op::FreedDiscard, Io::Discard { extent: Extent::new(Lba(start), end - start) });
    }

    fn pin(&self, numbers: &Range<u64>, env: &mut Env) {
        for number in numbers.clone().filter(|_| !env.config.canary.is(LogCanary::UnpinnedDiscard)) {
            env.log.pin(env.log.ring().index(number));
        }
    }

    /// Takes a discard that has ended: the head may enter its segments.
    pub fn discarded(&mut self, result: &IoResult, env: &mut Env) {
        let SentDiscard { numbers, at } = self.sent.take().expect("one was sent");
        for number in numbers.clone().filter(|_| !env.config.canary.is(LogCanary::UnpinnedDiscard)) {
            env.log.unpin(env.log.ring().index(number));
        }
        if result.status.is_err() {
            self.ended = Some(FreedDiscards::Failed);
            return;
        }
        let bytes = (numbers.end - numbers.start) * u64::from(env.log.superblock().segment_bytes);
        env.statistics.log_discarded_bytes += bytes;
        let took = env.cx.now.since(at);
        self.due = env.cx.now + Nanos(took.0 * PAUSE);
        self.slow = if took > SLOW { self.slow + 1 } else { self.slow.saturating_sub(1) };
        if self.slow >= SLOW_MAX {
            self.ended = Some(FreedDiscards::Slow);
        }
    }
}
