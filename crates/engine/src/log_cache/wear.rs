//! The bytes written to the log's device in the last day, by the hour: they wear an SSD out.

use crate::Nanos;
use crate::layer::Io;

const HOUR: Nanos = Nanos::from_secs(3600);
/// Hours of a day.
const HOURS: u64 = 24;

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
    use crate::{Buf, Lba};

    fn write(bytes: usize) -> Io {
        Io::Write { at: Lba(0), buf: Buf::blank(bytes), durability: Durability::Volatile }
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
}
