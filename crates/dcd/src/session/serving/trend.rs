//! Trends of caches and arrays: how fast dirty data grows or shrinks, and what follows if that continues. The rates are those of the last
//! minute.

use std::collections::VecDeque;

use dcd_engine::{Nanos, SECTOR_BYTES};
use dcd_stack::LayerStatus;
use serde::{Deserialize, Serialize};

/// The rates are taken over this time, or less after the start.
const SPAN: Nanos = Nanos::from_secs(60);
/// Minimum time over which a rate means anything.
const SPAN_MIN: Nanos = Nanos::from_secs(2);

/// Trend of a cache or array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trend {
    /// Growth of dirty data; negative if it shrinks.
    pub dirty_bytes_per_second: f64,
    /// Rate at which a log cache writes back.
    pub destaged_bytes_per_second: f64,
    /// Time until no data is dirty; none if dirty data does not shrink, or the data disk does not take it.
    pub clean_in_seconds: Option<f64>,
    /// Time until the log is full; none if it does not fill, or the data disk takes at least as much as clients write.
    pub full_in_seconds: Option<f64>,
    /// Answers to clients that were delayed as the log was filling.
    pub throttled_per_second: f64,
    /// Seconds of the last minute in which answers were delayed.
    pub throttled_seconds: f64,
    /// Time the data disk would take for the dirty data of a log cache, with nothing else to do.
    pub drain_seconds: Option<f64>,
}

/// The state of a cache or array at an instant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Amounts {
    /// Dirty data. Discards and zeroes do not count: they take next to no time.
    pub dirty_bytes: u64,
    /// True if the data disk did not take what was written back last: nothing says when it will.
    is_failing: bool,
    log: Option<LogAmounts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LogAmounts {
    used_bytes: u64,
    size_bytes: u64,
    /// Bytes written to the log, with the headers of records.
    logged_bytes: u64,
    destaged_bytes: u64,
    nanos_per_sector: u64,
    /// True while dirty data stays in the log: it does up to the high mark, where write-back is held.
    is_held: bool,
    /// Answers that were delayed.
    throttled: u64,
}

impl Amounts {
    pub fn of(status: &LayerStatus) -> Amounts {
        let log = status.log_cache().map(|cache| LogAmounts {
            used_bytes: cache.used_bytes,
            size_bytes: cache.size_bytes,
            logged_bytes: cache.statistics.log_bytes,
            destaged_bytes: cache.statistics.destaged_sectors * SECTOR_BYTES,
            nanos_per_sector: cache.destage_nanos_per_sector,
            is_held: cache.destage_held && !cache.over_high_mark,
            throttled: cache.statistics.throttled,
        });
        let dirty_bytes = status.dirty_data_bytes().unwrap_or(0);
        let is_failing = status.log_cache().is_some_and(|cache| cache.destage_failing);
        Amounts { dirty_bytes, is_failing, log }
    }
}

/// All caches and arrays of a server over the last minute.
#[derive(Debug, Default)]
pub struct Trends {
    /// The oldest first; the first one alone may be older than [`SPAN`].
    samples: VecDeque<(Nanos, Vec<Amounts>)>,
}

impl Trends {
    pub fn note(&mut self, now: Nanos, amounts: Vec<Amounts>) {
        while self.samples.get(1).is_some_and(|(at, _)| *at + SPAN <= now) {
            self.samples.pop_front();
        }
        self.samples.push_back((now, amounts));
    }

    /// Returns the trend of the cache or array at `place`. `is`: its amounts now.
    pub fn of(&self, place: usize, now: Nanos, is: Amounts) -> Trend {
        let mut trend = Trend { drain_seconds: is.drain_seconds(), ..Trend::default() };
        let first = self.samples.front().filter(|(at, _)| *at + SPAN_MIN <= now);
        let Some((at, was)) = first.and_then(|(at, all)| Some((at, all.get(place)?))) else { return trend };
        let seconds = now.since(*at).as_secs_f64();
        let growth = |is: u64, was: u64| (is as f64 - was as f64) / seconds;
        trend.dirty_bytes_per_second = growth(is.dirty_bytes, was.dirty_bytes);
        let clean_in = in_seconds(is.dirty_bytes, -trend.dirty_bytes_per_second);
        trend.clean_in_seconds = clean_in.filter(|_| !is.is_failing);
        if let (Some(is), Some(was)) = (is.log, was.log) {
            // Counters may have started again meanwhile.
            let rate = |is: u64, was: u64| is.checked_sub(was).unwrap_or(is) as f64 / seconds;
            trend.throttled_per_second = rate(is.throttled, was.throttled);
            trend.throttled_seconds = self.throttled_seconds(place, now, is);
            trend.destaged_bytes_per_second = rate(is.destaged_bytes, was.destaged_bytes);
            let free_bytes = is.size_bytes.saturating_sub(is.used_bytes);
            // Destaging may have just begun: the log fills up only if clients write more than the data disk can take.
            let taken = if is.is_held { 0.0 } else { is.destage_bytes_per_second() };
            let excess = rate(is.logged_bytes, was.logged_bytes) - taken;
            trend.full_in_seconds = in_seconds(free_bytes, growth(is.used_bytes, was.used_bytes).min(excess));
        }
        trend
    }

    /// Sums the times between two samples in which answers were delayed.
    fn throttled_seconds(&self, place: usize, now: Nanos, is: LogAmounts) -> f64 {
        let counted = |(at, all): &(Nanos, Vec<Amounts>)| Some((*at, all.get(place)?.log?.throttled));
        let seen: Vec<(Nanos, u64)> =
            self.samples.iter().filter_map(counted).chain([(now, is.throttled)]).collect();
        let delays = seen.windows(2).filter(|pair| pair[1].1 > pair[0].1);
        delays.map(|pair| pair[1].0.since(pair[0].0).as_secs_f64()).sum()
    }
}

impl LogAmounts {
    /// Rate at which the data disk takes data, when it does nothing else. Zero: it is not known.
    fn destage_bytes_per_second(&self) -> f64 {
        if self.nanos_per_sector == 0 {
            0.0
        } else {
            SECTOR_BYTES as f64 * 1e9 / self.nanos_per_sector as f64
        }
    }
}

impl Amounts {
    fn drain_seconds(&self) -> Option<f64> {
        let nanos =
            self.log.map(|log| log.nanos_per_sector).filter(|nanos| *nanos > 0 && !self.is_failing)?;
        Some((self.dirty_bytes / SECTOR_BYTES) as f64 * nanos as f64 / 1e9)
    }
}

fn in_seconds(bytes: u64, per_second: f64) -> Option<f64> {
    match bytes {
        0 => Some(0.0),
        _ => (per_second > 0.0).then(|| bytes as f64 / per_second),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn amounts(dirty: u64, used: u64, destaged: u64) -> Amounts {
        let log = LogAmounts {
            used_bytes: used * MIB,
            size_bytes: 100 * MIB,
            // Clients write far more than the data disk takes: 98 MiB/s.
            logged_bytes: 1000 * used * MIB,
            destaged_bytes: destaged * MIB,
            nanos_per_sector: 5_000,
            is_held: false,
            throttled: 0,
        };
        Amounts { dirty_bytes: dirty * MIB, is_failing: false, log: Some(log) }
    }

    #[test]
    fn what_goes_on_for_a_minute_is_expected_to_go_on() {
        let mut trends = Trends::default();
        let at = Nanos::from_secs;
        assert_eq!(trends.of(0, at(1), amounts(8, 10, 0)).clean_in_seconds, None, "nothing is known");
        assert_eq!(trends.of(0, at(1), amounts(0, 10, 0)).full_in_seconds, None);
        // A minute ago 60 MiB were dirty, and the log gets a MiB more each second.
        for second in 0..=100 {
            trends.note(at(second), vec![amounts(100 - second, second, 2 * second)]);
        }
        let trend = trends.of(0, at(100), amounts(60, 75, 200));
        assert_eq!(trend.dirty_bytes_per_second, 0.0);
        assert_eq!((trend.clean_in_seconds, trend.full_in_seconds), (None, Some(25.0 / (35.0 / 60.0))));
        assert_eq!(trend.destaged_bytes_per_second, 2.0 * MIB as f64);
        let trend = trends.of(0, at(100), amounts(30, 40, 5));
        assert_eq!((trend.clean_in_seconds, trend.full_in_seconds), (Some(60.0), None));
        assert_eq!(trend.destaged_bytes_per_second, (5 * MIB) as f64 / 60.0, "the counter was reset");
        assert_eq!(trend.drain_seconds, Some((30 * 2048 * 5_000) as f64 / 1e9));
        let failing = trends.of(0, at(100), Amounts { is_failing: true, ..amounts(30, 40, 5) });
        assert_eq!(
            (failing.clean_in_seconds, failing.drain_seconds),
            (None, None),
            "the data disk takes nothing"
        );
        assert_eq!(trends.of(0, at(100), amounts(0, 100, 0)).clean_in_seconds, Some(0.0));
        assert_eq!(trends.of(0, at(100), amounts(0, 100, 0)).full_in_seconds, Some(0.0));
        assert_eq!(trends.of(3, at(100), amounts(1, 1, 1)).clean_in_seconds, None, "it is not known");
        assert!(trends.samples.len() <= 62);
    }

    /// A log that gets fuller, as destaging waits for a pause or for the high mark, is never full where clients write less than the data
    /// disk takes.
    #[test]
    fn a_log_fills_only_where_more_is_written_than_the_data_disk_takes() {
        let mut trends = Trends::default();
        let at = Nanos::from_secs;
        let state = |second, rate: u64| {
            let amounts = amounts(second, second, 0);
            let log = amounts.log.map(|log| LogAmounts { logged_bytes: second * rate * MIB, ..log });
            Amounts { log, ..amounts }
        };
        for (rate, full) in [(97, None), (99, Some(40.0))] {
            (0..=60).for_each(|second| trends.note(at(second), vec![state(second, rate)]));
            let told = trends.of(0, at(60), state(60, rate)).full_in_seconds;
            assert_eq!(told.map(|seconds| seconds.round()), full, "{rate} MiB/s");
            trends = Trends::default();
        }
    }

    /// While write-back is held the data disk takes nothing, however fast it is.
    #[test]
    fn a_log_that_is_held_fills_as_fast_as_clients_write() {
        let at = Nanos::from_secs;
        for (is_held, full) in [(false, None), (true, Some(40.0))] {
            let mut trends = Trends::default();
            let state = |second: u64| {
                let amounts = amounts(second, second, 0);
                let log = amounts.log.map(|log| LogAmounts { logged_bytes: second * MIB, is_held, ..log });
                Amounts { log, ..amounts }
            };
            (0..=60).for_each(|second| trends.note(at(second), vec![state(second)]));
            let told = trends.of(0, at(60), state(60)).full_in_seconds;
            assert_eq!(told.map(f64::round), full);
        }
    }

    /// Above the high mark dirty data is written back, held or not.
    #[test]
    fn a_log_that_is_held_at_its_high_mark_does_not_fill() {
        for (over_high_mark, is_held) in [(false, true), (true, false)] {
            let cache =
                dcd_engine::LogCacheStatus { destage_held: true, over_high_mark, ..Default::default() };
            let amounts = Amounts::of(&LayerStatus::LogCache(Box::new(cache)));
            assert_eq!(amounts.log.unwrap().is_held, is_held);
        }
    }

    #[test]
    fn delayed_answers_are_counted_with_the_time_in_which_they_came() {
        let at = Nanos::from_secs;
        let mut trends = Trends::default();
        let state = |throttled| {
            let amounts = amounts(1, 1, 0);
            Amounts { log: amounts.log.map(|log| LogAmounts { throttled, ..log }), ..amounts }
        };
        // Twenty seconds of delays, and then none.
        (0..=30).for_each(|second| trends.note(at(2 * second), vec![state(100 * second.min(10))]));
        let trend = trends.of(0, at(60), state(1000));
        assert_eq!((trend.throttled_seconds, trend.throttled_per_second.round()), (20.0, 17.0));
        assert_eq!(trends.of(0, at(62), state(1001)).throttled_seconds, 22.0);
    }

    #[test]
    fn discards_and_zeroes_are_not_counted_as_dirty_data() {
        let cache =
            dcd_engine::LogCacheStatus { dirty_bytes: 3 << 30, dirty_data_bytes: 4096, ..Default::default() };
        assert_eq!(Amounts::of(&LayerStatus::LogCache(Box::new(cache))).dirty_bytes, 4096);
    }
}
