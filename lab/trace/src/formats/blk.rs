//! Makes requests of events, for blkparse's text and blktrace's binary.
//!
//! A request is a Q event (it arrived at the block layer) or, in a trace without these, a D event (it was issued to the
//! driver): the kind that comes first in the trace counts, and the other is not a request but another stage of one. A C
//! event completes the request of the same range, or every request within its range, as requests are merged on the
//! way. Requests are given out in the order of their events; one waits for its completion while at most [`WAITING_MAX`]
//! are behind it.

use std::collections::{BTreeMap, VecDeque};

use dcd_engine::Nanos;

use dcd_stack::{DeviceId, Record, RecordOp};

/// Deeper than any device's queue, so that what waits longer has lost its completion.
const WAITING_MAX: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Queue,
    Issue,
    Complete,
}

/// An event that concerns a request. `record` has the time of the event.
#[derive(Clone, Copy, Debug)]
pub struct BlkEvent {
    pub action: Action,
    pub record: Record,
}

type Key = (DeviceId, RecordOp, u64, u64);

#[derive(Default)]
pub struct Requests {
    begins: Option<Action>,
    waiting: VecDeque<(Record, bool)>,
    /// The number of the request at the front of `waiting`.
    front: u64,
    /// By device, operation, first sector and number: the count of sectors.
    open: BTreeMap<Key, u64>,
}

impl Requests {
    pub fn event(&mut self, BlkEvent { action, record }: BlkEvent) {
        if action == Action::Complete {
            self.complete(&record);
        } else if *self.begins.get_or_insert(action) == action {
            let number = self.front + self.waiting.len() as u64;
            self.open
                .insert((record.device, record.op, record.extent.start.0, number), record.extent.sectors);
            self.waiting.push_back((record, false));
        }
    }

    fn complete(&mut self, done: &Record) {
        let (start, end) = (done.extent.start.0, done.extent.end().0);
        let key = |start, number| (done.device, done.op, start, number);
        let exact = self.open.range(key(start, 0)..=key(start, u64::MAX));
        let exact = exact.filter(|&(_, &n)| n == done.extent.sectors).map(|(&k, _)| k).next();
        let found: Vec<Key> = match exact {
            Some(key) => vec![key],
            None => {
                let within = self.open.range(key(start, 0)..key(end, 0));
                within.filter(|&(k, n)| k.2 + n <= end).map(|(&k, _)| k).collect()
            }
        };
        for key in found {
            self.open.remove(&key);
            let (record, answered) = &mut self.waiting[(key.3 - self.front) as usize];
            // Where the clocks of two CPUs differ, it may seem to be answered before it came.
            record.response = Some(done.at.since(record.at)).filter(|&response| response > Nanos::ZERO);
            *answered = true;
        }
    }

    /// The next request that waits no longer; at the end of the input, the next one.
    pub fn next(&mut self, ended: bool) -> Option<Record> {
        let &(record, answered) = self.waiting.front()?;
        if !(answered || ended || self.waiting.len() > WAITING_MAX) {
            return None;
        }
        self.open.remove(&(record.device, record.op, record.extent.start.0, self.front));
        self.waiting.pop_front();
        self.front += 1;
        Some(record)
    }
}

/// Completions of written requests, in the order of their times between the requests themselves.
#[derive(Default)]
pub struct Completions {
    /// By time, then by number.
    open: BTreeMap<(u64, u64), Record>,
    number: u64,
}

impl Completions {
    pub fn add(&mut self, record: &Record) {
        if let Some(response) = record.response {
            let at = record.at.saturating_add(response);
            self.open.insert((at.0, self.number), Record { at, ..*record });
            self.number += 1;
        }
    }

    /// The next one that is due before `now`; any if there is no now.
    pub fn next(&mut self, now: Option<u64>) -> Option<Record> {
        let (&key, _) = self.open.first_key_value()?;
        // More than can wait in a reader are not kept in a writer.
        if now.is_some_and(|now| key.0 > now) && self.open.len() <= WAITING_MAX {
            return None;
        }
        self.open.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_answers_every_request_that_was_merged_into_it() {
        let mut requests = Requests::default();
        let event = |action, at, start, sectors| BlkEvent {
            action,
            record: Record::new(Nanos(at), DeviceId(1), RecordOp::Write, start, sectors).unwrap(),
        };
        requests.event(event(Action::Queue, 10, 0, 8));
        requests.event(event(Action::Queue, 20, 8, 8));
        requests.event(event(Action::Queue, 25, 64, 8));
        requests.event(event(Action::Issue, 30, 0, 16));
        assert_eq!(requests.next(false), None);
        requests.event(event(Action::Complete, 50, 0, 16));
        let responses: Vec<_> = std::iter::from_fn(|| requests.next(false)).map(|r| r.response).collect();
        assert_eq!(responses, [Some(Nanos(40)), Some(Nanos(30))]);
        assert_eq!(requests.next(true).map(|r| r.response), Some(None), "never completed");
        assert_eq!(requests.next(true), None);
        requests.event(event(Action::Queue, 90, 0, 8));
        requests.event(event(Action::Complete, 80, 0, 8));
        assert_eq!(requests.next(false).map(|r| r.response), Some(None), "by another clock");
    }
}
