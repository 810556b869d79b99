//! Records a run over time, in a bounded count of rows.

use dcd_engine::Nanos;

use crate::virtual_run::{Kind, RunState};

/// With so many rows, each two become one and rows are twice as long from then on, where no length was asked for.
const ROWS_MAX: usize = 512;
/// Length of a row at first.
const INTERVAL_FIRST: Nanos = Nanos::from_millis(1);

/// A count and a sum of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub count: u64,
    nanos: u128,
}

impl Sum {
    const fn add(&mut self, time: Nanos) {
        self.count += 1;
        self.nanos += time.0 as u128;
    }

    const fn join(self, other: Sum) -> Sum {
        Sum { count: self.count + other.count, nanos: self.nanos + other.nanos }
    }

    pub fn mean_ms(self) -> Option<f64> {
        (self.count > 0).then(|| self.nanos as f64 / self.count as f64 / 1e6)
    }
}

/// An interval: what was answered in it, and the most that was seen to wait and to be in the caches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Row {
    /// Since the beginning of the run.
    pub end: Nanos,
    pub reads: Sum,
    pub writes: Sum,
    pub waiting_max: usize,
    pub dirty_bytes_max: Option<u64>,
    pub log_used_bytes_max: Option<u64>,
}

impl Row {
    fn join(self, later: Row) -> Row {
        Row {
            reads: self.reads.join(later.reads),
            writes: self.writes.join(later.writes),
            waiting_max: self.waiting_max.max(later.waiting_max),
            dirty_bytes_max: self.dirty_bytes_max.max(later.dirty_bytes_max),
            log_used_bytes_max: self.log_used_bytes_max.max(later.log_used_bytes_max),
            end: later.end,
        }
    }

    fn see(&mut self, state: RunState) {
        self.waiting_max = self.waiting_max.max(state.waiting);
        self.dirty_bytes_max = self.dirty_bytes_max.max(state.dirty_bytes);
        self.log_used_bytes_max = self.log_used_bytes_max.max(state.log_used_bytes);
    }
}

#[derive(Debug)]
pub struct Series {
    begin: Nanos,
    interval: Nanos,
    is_fixed: bool,
    rows: Vec<Row>,
    /// Has no end yet.
    open: Row,
}

impl Series {
    /// Rows of `interval`, or of a length that grows with the run.
    pub fn new(begin: Nanos, interval: Option<Nanos>) -> Series {
        Series {
            begin,
            interval: interval.unwrap_or(INTERVAL_FIRST),
            is_fixed: interval.is_some(),
            rows: Vec::new(),
            open: Row::default(),
        }
    }

    /// Notes that so many requests wait now, the newest included.
    pub fn asked(&mut self, waiting: usize) {
        self.open.waiting_max = self.open.waiting_max.max(waiting);
    }

    pub fn see(&mut self, state: RunState) {
        self.open.see(state);
    }

    pub fn answered(&mut self, kind: Kind, time: Nanos) {
        match kind {
            Kind::Read => self.open.reads.add(time),
            Kind::Write => self.open.writes.add(time),
            Kind::Flush => {}
        }
    }

    /// Returns the time when the open row ends.
    pub fn next_look(&self) -> Nanos {
        self.begin + self.rows.last().map_or(Nanos::ZERO, |last| last.end) + self.interval
    }

    pub fn look(&mut self, state: RunState) {
        self.open.see(state);
        self.rows.push(Row { end: state.now.since(self.begin), ..self.open });
        // The next one begins like this.
        self.open = Row::default();
        self.open.see(state);
        if !self.is_fixed && self.rows.len() == ROWS_MAX {
            self.rows = self.rows.chunks(2).map(|two| two[0].join(two[1])).collect();
            self.interval = Nanos(2 * self.interval.0);
        }
    }

    /// The rows up to the end, when the state was this.
    pub fn end(mut self, state: RunState) -> Vec<Row> {
        let ended = self.rows.last().map_or(Nanos::ZERO, |last| last.end);
        if state.now.since(self.begin) > ended || self.rows.is_empty() {
            self.look(state);
        }
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write a millisecond, answered at once, and a look whenever one is due.
    fn of(writes: u64, interval: Option<Nanos>) -> Vec<Row> {
        let mut series = Series::new(Nanos::from_secs(1), interval);
        let state = |now| RunState { now, waiting: 2, dirty_bytes: Some(now.0), ..RunState::default() };
        for ms in 0..writes {
            let now = Nanos::from_secs(1) + Nanos::from_millis(ms);
            while series.next_look() <= now {
                series.look(state(series.next_look()));
            }
            series.asked(if ms == 700 { 9 } else { 1 });
            series.answered(Kind::Write, Nanos::from_millis(ms));
        }
        series.end(state(Nanos::from_secs(1) + Nanos::from_millis(writes)))
    }

    #[test]
    fn a_long_run_has_a_bounded_count_of_rows_that_add_up() {
        let rows = of(100_000, None);
        assert!((ROWS_MAX / 2 - 1..ROWS_MAX).contains(&rows.len()), "{}", rows.len());
        assert!(rows.windows(2).all(|two| two[0].end < two[1].end));
        assert_eq!(rows.last().unwrap().end, Nanos::from_millis(100_000));
        let all = rows.iter().fold(Sum::default(), |sum, row| sum.join(row.writes));
        assert_eq!((all.count, all.mean_ms()), (100_000, Some(49_999.5)));
        assert_eq!(rows.iter().filter(|row| row.waiting_max == 9).count(), 1);
    }

    #[test]
    fn a_length_that_was_asked_for_is_kept() {
        let rows = of(2_500, Some(Nanos::from_secs(1)));
        let ends: Vec<u64> = rows.iter().map(|row| row.end.0 / 1_000_000).collect();
        assert_eq!(ends, [1000, 2000, 2500]);
        assert_eq!(rows[1].writes.count, 1000);
        assert_eq!(rows[1].dirty_bytes_max, Some(3_000_000_000), "what there is at the end of the row");
        assert_eq!(of(0, None).len(), 1);
    }
}
