//! The last minutes of a stack: rates between one answer and the next.

use std::collections::VecDeque;
use std::time::Instant;

use dcd_stack::{LayerStatus, ResponseTimes};

use crate::session::serving::status::ServerStatus;

/// Maximum number of points: the widest graph shows as many.
const POINTS_MAX: usize = 240;

/// Values of all graphs at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    pub read_bytes_per_second: f64,
    pub write_bytes_per_second: f64,
    pub dirty_bytes: u64,
    pub requests_per_second: f64,
}

#[derive(Debug, Default)]
pub struct History {
    newest: Option<(Instant, ServerStatus)>,
    points: VecDeque<Point>,
}

impl History {
    pub fn note(&mut self, at: Instant, status: ServerStatus) {
        if let Some((before, was)) = &self.newest {
            let seconds = at.duration_since(*before).as_secs_f64();
            if seconds > 0.0 {
                self.points.push_back(point(was, &status, seconds));
            }
        }
        if self.points.len() > POINTS_MAX {
            self.points.pop_front();
        }
        self.newest = Some((at, status));
    }

    pub fn status(&self) -> Option<&ServerStatus> {
        self.newest.as_ref().map(|(_, status)| status)
    }

    pub fn newest(&self) -> Point {
        self.points.back().copied().unwrap_or_default()
    }

    /// The last `count` values of a graph, the newest last.
    pub fn graph(&self, count: usize, value: fn(&Point) -> f64) -> Vec<u64> {
        let skipped = self.points.len().saturating_sub(count);
        self.points.iter().skip(skipped).map(|point| value(point) as u64).collect()
    }
}

fn point(was: &ServerStatus, is: &ServerStatus, seconds: f64) -> Point {
    // A server that was started again, or reset, counts from zero.
    let rate = |was: u64, is: u64| is.checked_sub(was).unwrap_or(is) as f64 / seconds;
    let all = |status: &ServerStatus| {
        let requests = &status.requests;
        let kinds = [&requests.read, &requests.write, &requests.flush, &requests.other];
        kinds.iter().map(|times: &&ResponseTimes| times.count).sum()
    };
    Point {
        read_bytes_per_second: rate(was.requests.read.bytes, is.requests.read.bytes),
        write_bytes_per_second: rate(was.requests.write.bytes, is.requests.write.bytes),
        dirty_bytes: is.layers.values().filter_map(LayerStatus::dirty_data_bytes).sum(),
        requests_per_second: rate(all(was), all(is)),
    }
}

/// Used share of the fullest log, 0 to 1; none without a log cache.
pub fn log_used(status: &ServerStatus) -> Option<f64> {
    let caches = status.layers.values().filter_map(LayerStatus::log_cache);
    let shares = caches.filter(|cache| cache.size_bytes > 0);
    shares.map(|cache| cache.used_bytes as f64 / cache.size_bytes as f64).reduce(f64::max)
}
