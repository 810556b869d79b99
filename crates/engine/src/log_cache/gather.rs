//! Gathering: a record waits a little for clients that were answered a moment ago, as they will want the next record durable, too.
//!
//! Without that, clients that flush one write after another form two groups. The first to come back sends its record at once, and the others
//! wait until that is durable: each waits for two flushes of the log, and each flush answers half of them. A client that is alone is never
//! held back, and neither is anybody long after the last answer. Where some of them do not come in that time, the next records are not held
//! back.

use crate::Nanos;

/// Maximum time for which a record is held back.
const HELD_MAX: Nanos = Nanos::from_millis(2);
/// Maximum number of commits that are not held back, after records were held back, and not all have come.
const PAUSE_MAX: u32 = 255;

/// See the module's documentation.
#[derive(Default)]
pub struct Gathering {
    /// Clients that waited when the log became durable last: those that were answered, and those that still wait.
    crowd: usize,
    /// The record up to which it became durable then.
    durable_seq: u64,
    /// Time until which the next record waits for the crowd.
    until: Nanos,
    sent: Nanos,
    /// A record is held back.
    is_holding: bool,
    /// Commits that are not held back, and how many that were at first.
    pauses: u32,
    pause: u32,
}

impl Gathering {
    /// Notes that the log is durable up to a record. `waits`: counts the clients that wait for a record after the one given.
    pub fn durable(&mut self, now: Nanos, seq: u64, waits: impl Fn(u64) -> usize) {
        if seq <= self.durable_seq {
            return;
        }
        self.crowd = waits(self.durable_seq);
        self.durable_seq = seq;
        // Two commits take twice as long as one: half of one is less than what a whole group gains.
        self.until = now.saturating_add(Nanos(now.since(self.sent).0 / 2).min(HELD_MAX));
        self.pauses = self.pauses.saturating_sub(1);
    }

    /// Notes that a record is sent to the log.
    pub const fn sent(&mut self, now: Nanos) {
        self.sent = now;
        self.is_holding = false;
    }

    /// Notes that nobody waits for the next record.
    pub const fn rest(&mut self) {
        self.is_holding = false;
    }

    /// Decides whether the next record, for which so many wait, is held back. `answers`: some are answered first, once the record before it
    /// is durable.
    pub fn holds(&mut self, now: Nanos, waiting: usize, answers: bool) -> bool {
        let is_possible = self.crowd > waiting && self.pauses == 0;
        if answers {
            self.is_holding = false;
            return is_possible;
        }
        if is_possible && now < self.until {
            self.is_holding = true;
            return true;
        }
        if self.is_holding {
            let has_gathered = waiting >= self.crowd;
            // A crowd that comes now and then is not worth the wait for it.
            self.pause = if has_gathered { self.pause / 2 } else { (2 * self.pause + 1).min(PAUSE_MAX) };
            self.pauses = self.pause;
        }
        false
    }

    /// Time when a record that is held back is sent at the latest.
    pub fn deadline(&self) -> Option<Nanos> {
        self.is_holding.then_some(self.until)
    }
}
