//! Limits the bytes that destaging writes in a second while clients are active.

use crate::Nanos;
use crate::log_cache::data_disk::DiskStanding;
use crate::log_cache::env::{DiskView, View};

/// Clients are active until so long after the last request: longer than the disk must be idle before destaging begins, so that the limit
/// also holds for batches between two bursts.
pub(super) const ACTIVE: Nanos = Nanos::from_secs(5);

/// Bytes that were written without a rest: the next write waits until the limit allows for them.
#[derive(Default)]
pub struct Throttle {
    since: Nanos,
    bytes: u64,
}

impl Throttle {
    /// Returns when the limit allows for the bytes written so far.
    fn paid_at(&self, rate: u64) -> Nanos {
        let nanos = u128::from(self.bytes) * 1_000_000_000 / u128::from(rate.max(1));
        self.since.saturating_add(Nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Notes a write.
    pub fn sent(&mut self, bytes: u64, view: &DiskView) {
        let rate = view.config.destage_rate;
        if rate == 0 || self.paid_at(rate) <= view.now {
            (self.since, self.bytes) = (view.now, 0);
        }
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Returns when the next write may be sent; none if now.
    pub fn until(&self, view: &DiskView) -> Option<Nanos> {
        let rate = view.config.destage_rate;
        if rate == 0 || !view.is_rate_limited() {
            return None;
        }
        let rests = match view.foreground() {
            0 => view.last_activity().saturating_add(ACTIVE),
            _ => Nanos(u64::MAX),
        };
        Some(self.paid_at(rate).min(rests)).filter(|at| *at > view.now)
    }
}

impl DiskView<'_> {
    /// True if destaging keeps to `destage_rate`: clients are active, and nobody waits for what it frees.
    fn is_rate_limited(&self) -> bool {
        let is_active = self.foreground() > 0 || self.now < self.last_activity().saturating_add(ACTIVE);
        is_active && !self.must_destage() && !self.is_over_high_mark()
    }

    /// True if destaging waits for no policy: the log has failed, all is to be destaged, or a request waits for space.
    pub(super) fn must_destage(&self) -> bool {
        self.log.has_failed() || self.empties_log() || self.wants_space()
    }

    /// True while a write waits until something of the disk is destaged.
    pub(super) fn wants_space(&self) -> bool {
        self.queue.wants_space_on(self.disk)
    }
}

impl DiskView<'_> {
    /// True if all of the disk is to be destaged: for a drain, before writes go through, or before the disk leaves the log.
    pub(super) fn empties_log(&self) -> bool {
        let view: &View = self;
        view.empties_log() || self.data.standing == DiskStanding::Leaving
    }
}

impl View<'_> {
    pub fn is_over_high_mark(&self) -> bool {
        self.log.ring().utilisation() >= f64::from(self.config.high_mark) / 100.0
    }

    /// True if all is to be destaged: for a drain, or before writes go through.
    fn empties_log(&self) -> bool {
        self.life.drains() || self.log.through().is_turning()
    }
}
