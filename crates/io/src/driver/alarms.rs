//! Alarms: timers in the ring that may ring early and never late.
//!
//! Programming a timer for each wait costs more than the wait's system call, and most deadlines only move away: an idle
//! threshold starts again with each request. So an alarm is set only where none rings early enough. If it rings
//! before the deadline, because that has moved, the next alarm is set.

use std::time::Duration;

use dcd_engine::Nanos;
use io_uring::opcode;
use io_uring::types::Timespec;
use slab::Slab;

use crate::ring::{IoRing, RingPurpose, Token};

/// Alarms that are set at a time. Each is earlier than those before it, so more would be a strange coincidence.
const ALARMS_MAX: usize = 16;

struct Alarm {
    at: Nanos,
    /// Read by the kernel when the entry is submitted.
    _after: Box<Timespec>,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Alarms {
    set: Slab<Alarm>,
    earliest: Option<Nanos>,
}

impl Alarms {
    /// Makes the ring wake up at `at` or earlier. Returns false if too many alarms are already set.
    pub fn ensure(&mut self, ring: &mut IoRing, now: Nanos, at: Nanos) -> bool {
        if self.earliest.is_some_and(|earliest| earliest <= at) {
            return true;
        }
        if self.set.len() >= ALARMS_MAX {
            return false;
        }
        let after = Box::new(Timespec::from(Duration::from_nanos(at.since(now).0)));
        let entry = opcode::Timeout::new(&raw const *after).build();
        let index = self.set.insert(Alarm { at, _after: after });
        self.earliest = Some(at);
        // SAFETY: the time lies on the heap, and stays in its place until the entry completes.
        unsafe { ring.push(entry, Token::new(RingPurpose::Alarm, index)) };
        true
    }

    /// An alarm has rung, or could not be set.
    pub fn rang(&mut self, index: usize) {
        self.set.remove(index);
        self.earliest = self.set.iter().map(|(_, alarm)| alarm.at).min();
    }

    pub fn cancel(&self, ring: &mut IoRing) {
        for (index, _) in &self.set {
            ring.cancel(Token::new(RingPurpose::Alarm, index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_is_set_only_where_none_rings_early_enough() {
        let mut ring = IoRing::new().expect("a ring");
        let mut alarms = Alarms::default();
        let start = std::time::Instant::now();
        assert!(alarms.ensure(&mut ring, Nanos::ZERO, Nanos::from_millis(20)));
        assert!(alarms.ensure(&mut ring, Nanos::ZERO, Nanos::from_millis(900)));
        assert_eq!(alarms.set.len(), 1, "the first rings before the second would");
        assert!(alarms.ensure(&mut ring, Nanos::ZERO, Nanos::from_millis(5)));
        assert_eq!(alarms.set.len(), 2);
        let mut rung = Vec::new();
        while rung.len() < 2 {
            ring.enter(1, None).expect("enter");
            ring.take(&mut rung);
        }
        assert!(start.elapsed() >= Duration::from_millis(20));
        alarms.rang(rung[0].token.index);
        assert_eq!(alarms.earliest, Some(Nanos::from_millis(20)), "the shorter one rang first");
        alarms.rang(rung[1].token.index);
        assert_eq!(alarms.earliest, None);
    }
}
