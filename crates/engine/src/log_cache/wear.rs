//! The bytes written to the log's device in the last day, by the hour: they wear an SSD out. A budget limits them, as far as they can be
//! spared: first no more reads are copied to the log, then smaller writes bypass it. All other writes go to the log whatever the budget is.

use serde::{Deserialize, Serialize};

use super::env::View;
use crate::layer::Io;
use crate::{Extent, Nanos, SECTOR_BYTES};

const HOUR: Nanos = Nanos::from_secs(3600);
/// Hours of a day.
const HOURS: u64 = 24;

/// Percent of the budget from which no more reads are copied to the log.
const COPIES_PERCENT: u64 = 75;
/// Size from which writes bypass the log once the budget is used up, where `bypass` is larger or off. Smaller ones
/// gain the most from the log, and wear it out the least.
const BYPASS_BYTES: u64 = 16 << 10;

/// State of the budget of writes to the log's device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WearBudget {
    /// There is no budget.
    #[default]
    None,
    Within,
    /// Nearly used up: no reads are copied to the log.
    Low,
    /// Used up: besides, smaller writes bypass the log.
    UsedUp,
}

impl View<'_> {
    pub fn wear_budget(&self) -> WearBudget {
        let budget = self.config.wear_budget;
        let used = || self.wear.day_bytes(self.now);
        match budget {
            0 => WearBudget::None,
            budget if used() >= budget => WearBudget::UsedUp,
            budget if used() >= budget / 100 * COPIES_PERCENT => WearBudget::Low,
            _ => WearBudget::Within,
        }
    }

    /// True while the budget allows copies of reads.
    pub fn wear_allows_copies(&self) -> bool {
        matches!(self.wear_budget(), WearBudget::None | WearBudget::Within)
    }

    /// True if a write of this size bypasses the log where it may.
    pub fn is_large(&self, extent: Extent) -> bool {
        let is_spared =
            || extent.sectors * SECTOR_BYTES >= BYPASS_BYTES && self.wear_budget() == WearBudget::UsedUp;
        self.config.is_large(extent) || is_spared()
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct Wear {
    /// Bytes written in each hour, at the hour's number modulo 24.
    hours: [u64; HOURS as usize],
    /// Number of the newest hour with a write, since the host's clock began.
    newest: u64,
}

impl Wear {
    /// Notes that an operation is sent to the log's device.
    pub fn sent(&mut self, now: Nanos, io: &Io) {
        let (Io::Write { buf, .. } | Io::WriteCopy { buf, .. }) = io else { return };
        let hour = now.0 / HOUR.0;
        for passed in (self.newest + 1..=hour).take(HOURS as usize) {
            self.hours[(passed % HOURS) as usize] = 0;
        }
        self.newest = self.newest.max(hour);
        self.hours[(hour % HOURS) as usize] += buf.len() as u64;
    }

    /// Bytes written in the hour that is not over and in the 23 before.
    pub fn day_bytes(&self, now: Nanos) -> u64 {
        let hour = now.0 / HOUR.0;
        let counted = (hour + 1).saturating_sub(HOURS)..=hour.min(self.newest);
        counted.map(|hour| self.hours[(hour % HOURS) as usize]).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Durability;
    use crate::log_cache::testing_steps::{Steps, quiet};
    use crate::log_cache::{LogCacheConfig, Reads};
    use crate::{Buf, Lba};

    fn write(bytes: usize) -> Io {
        Io::Write { at: Lba(0), buf: Buf::zeroed(bytes), durability: Durability::Volatile }
    }

    #[test]
    fn writes_of_the_last_day_count_and_older_ones_do_not() {
        let mut wear = Wear::default();
        let at = |hour: u64| Nanos(hour * HOUR.0 + 7);
        assert_eq!(wear.day_bytes(at(0)), 0);
        wear.sent(at(0), &write(512));
        wear.sent(at(0), &Io::Flush);
        wear.sent(at(1), &write(1024));
        assert_eq!(
            [wear.day_bytes(at(1)), wear.day_bytes(at(23)), wear.day_bytes(at(24))],
            [1536, 1536, 1024]
        );
        assert_eq!(wear.day_bytes(at(25)), 0, "nothing was written since");
        wear.sent(at(24), &write(4096));
        assert_eq!(wear.day_bytes(at(24)), 1024 + 4096, "the first hour's place is taken again");
        wear.sent(at(500), &write(8192));
        assert_eq!(
            [wear.day_bytes(at(500)), wear.day_bytes(at(523)), wear.day_bytes(at(524))],
            [8192, 8192, 0]
        );
    }

    const LINE: u64 = crate::LINE_SECTORS;

    /// Writes of 20 KiB are far below `bypass`.
    #[test]
    fn writes_bypass_the_log_once_the_budget_is_used_up_and_the_next_day_they_do_not() {
        let config = LogCacheConfig { wear_budget: 100 << 10, ..quiet() };
        let mut steps = Steps::new(40, config);
        let bypasses = |steps: &Steps| steps.core.statistics.bypasses;
        let mut at = 3000;
        let mut write = |steps: &mut Steps, lines: u64| {
            at += 100;
            let id = steps.write(at, lines * LINE, 1);
            steps.flush();
            assert!(steps.is_ok(id));
        };
        assert_eq!(steps.core.status(steps.now).wear_budget, WearBudget::Within);
        while steps.core.status(steps.now).wear_budget != WearBudget::UsedUp {
            write(&mut steps, 5);
            assert_eq!(bypasses(&steps), 0, "within the budget");
        }
        assert!(steps.core.status(steps.now).day_written_bytes >= 100 << 10);
        write(&mut steps, 5);
        assert_eq!(bypasses(&steps), 1);
        write(&mut steps, 3);
        assert_eq!(bypasses(&steps), 1, "small writes go to the log whatever the budget is");
        steps.wait(24 * 3600);
        assert_eq!(steps.core.status(steps.now).wear_budget, WearBudget::Within);
        write(&mut steps, 5);
        assert_eq!(bypasses(&steps), 1);
    }

    #[test]
    fn reads_are_no_longer_copied_before_the_budget_is_used_up() {
        for (budget, state, copies) in
            [(0, WearBudget::None, 1), (80 << 10, WearBudget::Within, 1), (28 << 10, WearBudget::Low, 0)]
        {
            let config = LogCacheConfig { wear_budget: budget, reads: Reads::Keep, ..quiet() };
            let mut steps = Steps::new(40, config);
            steps.core.keep.earn(1 << 20);
            // Five lines, with the headers of records.
            steps.write(1000, 5 * LINE, 1);
            steps.flush();
            assert_eq!(
                steps.core.status(steps.now).wear_budget,
                state,
                "{}",
                steps.core.status(steps.now).day_written_bytes
            );
            for _ in 0..2 {
                steps.send(Io::Read { at: Lba(2176), buf: Buf::zeroed(4096) });
            }
            assert_eq!(steps.core.statistics.kept_blocks, copies, "{state:?}");
        }
    }
}
