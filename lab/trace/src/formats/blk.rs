//! Makes requests of events, for blkparse's text and blktrace's binary.
//!
//! A request is a Q event (it arrived at the block layer) or, in a trace without these, a D event (it was issued to the
//! driver): the kind that comes first in the trace counts, and the other is not a request but another stage of one. A C
//! event completes the request of the same range, or every request within its range, as requests are merged on the
//! way. Requests are given out in the order of their events; one waits for its completion while at most [`WAITING_MAX`]
//! are behind it.
//!
//! PREFLUSH on a request with data is a flush before it, a request of its own. The block layer sends it to the device by itself, and
//! its completion (`FF`) answers it, and all flushes that came before it was issued. Where that is not seen (a stack of devices answers
//! flush and data at once), its response time is not known.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
    /// A flush comes before the data.
    pub preflush: bool,
}

impl BlkEvent {
    /// Makes an event of what both formats have. None: it concerns neither data nor a flush.
    pub fn of(
        action: Action,
        (at, device): (Nanos, DeviceId),
        rwbs: Rwbs,
        (start, sectors): (u64, u64),
    ) -> Result<Option<BlkEvent>, String> {
        let flush = Record::flush(at, device);
        let event = |record, preflush| Ok(Some(BlkEvent { action, record, preflush }));
        match rwbs.op {
            // A request that a flush follows is completed once more, with nothing left.
            _ if sectors == 0 && !rwbs.preflush => Ok(None),
            Some(op) if op != RecordOp::Flush && sectors > 0 => {
                event(Record::new(at, device, op, start, sectors)?.with_fua(rwbs.fua), rwbs.preflush)
            }
            _ if rwbs.preflush => event(flush, false),
            _ => Ok(None),
        }
    }
}

/// The operation of an event and its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rwbs {
    /// None: neither data nor a flush.
    pub op: Option<RecordOp>,
    /// The device is flushed before.
    pub preflush: bool,
    pub fua: bool,
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
    /// Numbers of requests with data; the flush before it has the number before.
    preflushed: BTreeSet<u64>,
    /// By device: the requests before this number are covered by the flush that was issued.
    issued: BTreeMap<DeviceId, u64>,
}

impl Requests {
    pub fn event(&mut self, BlkEvent { action, record, preflush }: BlkEvent) {
        if action == Action::Complete {
            self.complete(&record);
        } else if *self.begins.get_or_insert(action) == action {
            if preflush {
                self.wait_for(Record::flush(record.at, record.device));
            }
            self.wait_for(record);
            self.preflushed.extend(preflush.then_some(self.last()));
        } else if action == Action::Issue && record.op == RecordOp::Flush {
            self.issued.insert(record.device, self.front + self.waiting.len() as u64);
        }
    }

    fn wait_for(&mut self, record: Record) {
        self.waiting.push_back((record, false));
        let key = (record.device, record.op, record.extent.start.0, self.last());
        self.open.insert(key, record.extent.sectors);
    }

    /// The number of the request that came last.
    fn last(&self) -> u64 {
        self.front + self.waiting.len() as u64 - 1
    }

    fn complete(&mut self, done: &Record) {
        let (start, end) = (done.extent.start.0, done.extent.end().0);
        let key = |start, number| (done.device, done.op, start, number);
        let exact = self.open.range(key(start, 0)..=key(start, u64::MAX));
        let exact = exact.filter(|&(_, &n)| n == done.extent.sectors).map(|(&k, _)| k).next();
        let issued = if done.op == RecordOp::Flush { self.issued.remove(&done.device) } else { None };
        let found: Vec<Key> = match (exact, issued) {
            (Some(first), Some(end)) if first.3 < end => {
                self.open.range(first..key(start, end)).map(|(&key, _)| key).collect()
            }
            (Some(key), _) => vec![key],
            (None, _) => {
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
            if self.preflushed.remove(&key.3) {
                self.end_preflush(key.3 - 1);
            }
        }
    }

    /// Ends the wait for the completion of a flush: the data that came with it has been written.
    fn end_preflush(&mut self, number: u64) {
        // It may have been given out already.
        let Some((record, answered)) =
            number.checked_sub(self.front).and_then(|n| self.waiting.get_mut(n as usize))
        else {
            return;
        };
        *answered = true;
        self.open.remove(&(record.device, RecordOp::Flush, 0, number));
    }

    /// The next request that waits no longer; at the end of the input, the next one.
    pub fn next(&mut self, ended: bool) -> Option<Record> {
        let &(record, answered) = self.waiting.front()?;
        if !(answered || ended || self.waiting.len() > WAITING_MAX) {
            return None;
        }
        self.open.remove(&(record.device, record.op, record.extent.start.0, self.front));
        self.preflushed.remove(&self.front);
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
            preflush: false,
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

    #[test]
    fn a_flush_of_the_device_answers_all_that_came_before_it_was_issued() {
        let mut requests = Requests::default();
        let flush =
            |action, at| BlkEvent { action, record: Record::flush(Nanos(at), DeviceId(1)), preflush: false };
        let (queue, issue, complete) = (Action::Queue, Action::Issue, Action::Complete);
        let events =
            [(queue, 10), (queue, 20), (issue, 30), (queue, 40), (complete, 50), (issue, 60), (complete, 90)];
        events.iter().for_each(|&(action, at)| requests.event(flush(action, at)));
        let responses: Vec<_> = std::iter::from_fn(|| requests.next(false)).map(|r| r.response).collect();
        assert_eq!(responses, [Some(Nanos(40)), Some(Nanos(30)), Some(Nanos(50))]);
        assert!(requests.issued.is_empty());
    }

    #[test]
    fn a_flush_before_data_is_a_request_and_waits_no_longer_than_the_data() {
        let commit = |action, at| BlkEvent {
            action,
            record: Record::new(Nanos(at), DeviceId(1), RecordOp::Write, 64, 8).unwrap().with_fua(true),
            preflush: true,
        };
        let flushed = |at| BlkEvent {
            action: Action::Complete,
            record: Record::flush(Nanos(at), DeviceId(1)),
            preflush: false,
        };
        let given = |events: &[BlkEvent]| {
            let mut requests = Requests::default();
            events.iter().for_each(|&event| requests.event(event));
            let given: Vec<_> = std::iter::from_fn(|| requests.next(false)).collect();
            assert!(requests.open.is_empty() && requests.preflushed.is_empty());
            given.into_iter().map(|r| (r.op, r.fua, r.response)).collect::<Vec<_>>()
        };
        let (flush, write) = (RecordOp::Flush, RecordOp::Write);
        let seen = given(&[commit(Action::Queue, 10), flushed(30), commit(Action::Complete, 60)]);
        assert_eq!(seen, [(flush, false, Some(Nanos(20))), (write, true, Some(Nanos(50)))]);
        let unseen = given(&[commit(Action::Queue, 10), commit(Action::Complete, 60)]);
        assert_eq!(unseen, [(flush, false, None), (write, true, Some(Nanos(50)))]);
    }
}
