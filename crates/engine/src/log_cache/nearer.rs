//! Decides whether the log or the data disk is nearer for a read, when both have the data and may be on one disk.
//!
//! A read that continues another one belongs to the data disk: the disk has read ahead, or its arm is there, and the next reads go there,
//! too. In the log, neighbours were written at the same time. Any other read costs a seek in either place. So the log is nearer if the
//! arm is there already. Otherwise the data disk is nearer while most reads continue others, as later reads go there; while few do, the
//! data in the log lies closer together.

use super::streams::Streams;
use crate::Extent;

/// Maximum distance of a read from the end of the one that it continues, in sectors (128 KiB).
const REACH: u64 = 256;

/// See the module's documentation.
pub struct Nearer {
    streams: Streams,
    /// The latest reads, one bit each: set if the read continued another one.
    latest: u32,
    arm_is_at_log: bool,
}

impl Nearer {
    pub fn new() -> Nearer {
        Nearer { streams: Streams::reaching(REACH), latest: 0, arm_is_at_log: false }
    }

    /// Notes that something is read or written.
    pub const fn sent(&mut self, to_log: bool) {
        self.arm_is_at_log = to_log;
    }

    /// Notes a read of a client.
    pub fn note(&mut self, extent: Extent) {
        let goes_on = self.streams.continues(extent.start);
        self.streams.note(extent);
        self.latest = self.latest << 1 | u32::from(goes_on);
    }

    /// True when the log is nearer for the read that was noted last.
    pub const fn is_log(&self) -> bool {
        let goes_on = self.latest & 1 == 1;
        !goes_on && (self.arm_is_at_log || self.latest.count_ones() <= u32::BITS / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lba;

    fn read(nearer: &mut Nearer, at: u64) -> bool {
        nearer.note(Extent::new(Lba(at), 8));
        nearer.is_log()
    }

    #[test]
    fn a_read_that_goes_on_is_for_the_data_disk() {
        let mut nearer = Nearer::new();
        nearer.sent(true);
        assert!(read(&mut nearer, 10_000));
        assert!(!read(&mut nearer, 10_008), "right behind");
        assert!(!read(&mut nearer, 10_016 + REACH), "and a little further on");
        assert!(read(&mut nearer, 10_025 + 2 * REACH), "far behind");
        assert!(read(&mut nearer, 9_000), "before");
    }

    #[test]
    fn while_most_reads_go_on_the_arm_stays_where_it_is() {
        let mut nearer = Nearer::new();
        assert!(read(&mut nearer, 1 << 20), "few go on");
        (0..40).for_each(|at| _ = read(&mut nearer, 8 * at));
        assert!(!read(&mut nearer, 2 << 20), "the arm is at the data");
        nearer.sent(true);
        assert!(read(&mut nearer, 3 << 20), "the arm is at the log");
        nearer.sent(false);
        let places = (4..40).map(|at| at << 20);
        let at_log = places.filter(|&at| read(&mut nearer, at)).count();
        assert!((16..24).contains(&at_log), "{at_log}: as soon as most of the latest 32 do not go on");
    }
}
