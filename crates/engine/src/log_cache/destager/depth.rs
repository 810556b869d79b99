//! Limits the destage operations in flight, so that clients do not wait for them.

use crate::Nanos;
use crate::destage::when::WhenPolicy;
use crate::layer::Port;
use crate::log_cache::env::{DiskView, LOG};

/// Reads that go undisturbed by destaging after each one that met it, while nobody writes: fewer than one in a hundred wait.
const READS_FIRST: u64 = 127;
/// A client that has read nothing for so long does not wait for the disk now; and it does not come back soon.
pub(super) const READER_RESTS: Nanos = Nanos::from_millis(20);
const READER_GONE: Nanos = Nanos::from_secs(1);
/// Operations in flight while nobody is there. A client that comes waits for all of them: 32 take 136 ms on a disk of 7200 rpm.
const IDLE_DEPTH: usize = 8;
/// Beside destaging, a write to the log that a client waits for may take so long.
const LOG_WRITE_WAITS: Nanos = Nanos::from_millis(50);
/// A write that took longer met too many operations. (With 50 ms writers wait less, and all of them together write a quarter less.)
const LOG_WRITE_SLOW: Nanos = Nanos::from_millis(100);
/// Few clients that each wait for an answer have no more requests on their way: more are a burst.
const BURST: u64 = 8;
/// A client that has written nothing for so long needs no space soon.
const WRITER_GONE: Nanos = Nanos::from_secs(1);

/// Learns how many destage operations may run beside writes of the log. Begins with one: a queue of 32 would hold the first write up
/// before anything is known.
pub struct Patience {
    depth: usize,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { depth: 1 }
    }
}

impl Patience {
    pub fn learn(&mut self, took: Nanos, most: usize) {
        self.depth = if took > LOG_WRITE_SLOW { self.depth / 2 } else { self.depth + 1 }.min(most).max(1);
    }

    /// Returns how many operations may be in flight on a device.
    ///
    /// On a disk that seeks, each operation that a read meets costs it a seek and a turn. So while clients read, a number of reads go
    /// undisturbed after each one that met destaging. The number falls to none as writers fill the log; a writer that waits for space
    /// comes before all readers. While nobody writes, a single operation is in flight: beside writers, it would have to wait at the
    /// disk for their and the readers' requests each time, and the log would be full.
    pub fn depth_on(&self, port: Port, view: &DiskView) -> usize {
        if view.log_is_held_up() || view.space_waits_for_log() {
            return 0;
        }
        view.depth_beside_readers(port).min(self.depth_beside_writers(view))
    }

    /// A log that spins may be on the disk that destaging keeps busy. So while clients write, as many operations are in flight as writes
    /// of the log have borne. Above the high mark there are ever more in any case; who waits for space waits for all of them. While the
    /// disk is idle there is nobody to give way to.
    ///
    /// A burst that the log has room for is over sooner without destaging: so there is none beside it at the high mark, and ever more
    /// above it (with the square of what is used), until the log is full. This ends, as each request of the burst waits for a disk, or
    /// for space, and then all operations are allowed. A drain goes on beside bursts: somebody waits for its end.
    fn depth_beside_writers(&self, view: &DiskView) -> usize {
        let most = view.config.destage_depth;
        let gives_way = view.log.geometry().rotational
            && !view.log.has_failed()
            && view.life.serves()
            && !view.wants_space()
            && view.has_writers();
        if !gives_way {
            return most;
        }
        let high = f64::from(view.config.high_mark.min(99)) / 100.0;
        let utilisation = view.log.ring().utilisation();
        if view.config.when == WhenPolicy::Idle && utilisation < high {
            return most;
        }
        let over = ((utilisation - high) / (1.0 - high)).clamp(0.0, 1.0);
        if view.foreground() > BURST && !view.empties_log() {
            return (most as f64 * over * over) as usize;
        }
        self.depth.max((most as f64 * over) as usize).min(most)
    }
}

impl DiskView<'_> {
    fn depth_beside_readers(&self, port: Port) -> usize {
        let spins =
            if port == LOG { self.log.geometry().rotational } else { self.data.geometry().rotational };
        match self.readers_quiet() {
            Some(quiet) if spins => {
                let may = quiet >= READER_RESTS || self.data.readers.undisturbed() >= self.reads_first();
                let depth = if self.has_writers() { self.config.destage_depth } else { 1 };
                if may { depth.min(self.config.destage_depth) } else { 0 }
            }
            _ if spins && self.has_time() => self.config.destage_depth.min(IDLE_DEPTH),
            _ => self.config.destage_depth,
        }
    }

    /// True while nobody reads or writes, and nobody waits for space or for a drain.
    fn has_time(&self) -> bool {
        self.config.when == WhenPolicy::Idle
            && self.life.serves()
            && !self.has_writers()
            && !self.wants_space()
            && !self.empties_log()
            && !self.is_over_high_mark()
    }

    /// A client waits for a write to a log that spins, and has waited for long: it may be behind destaging, on the same disk. (A disk
    /// that takes what is nearest first can leave it there for seconds.)
    fn log_is_held_up(&self) -> bool {
        let somebody_waits = self.queue.has_pending() || !self.queue.waiters().is_empty();
        self.log.geometry().rotational
            && !self.log.has_failed()
            && somebody_waits
            && !self.wants_space()
            && self.log.busy_since().is_some_and(|sent| self.now.since(sent) >= LOG_WRITE_WAITS)
    }

    /// A client waits for space that is destaged: it lacks a durable record, or the superblock that says so. On the same disk, they
    /// would wait for the next batch. (One share of the log is no reason: other disks write to the log all the time.)
    fn space_waits_for_log(&self) -> bool {
        self.log.geometry().rotational
            && !self.log.has_failed()
            && self.queue.wants_space()
            && (self.log.is_releasing() || self.log.busy_since().is_some())
    }

    /// Returns for how long the clients have been quiet that destaging gives way to; `None` if there are none.
    pub(super) fn readers_quiet(&self) -> Option<Nanos> {
        let gives_way = self.config.when == WhenPolicy::Idle
            && !self.log.has_failed()
            && self.life.serves()
            && !self.wants_space()
            && self.data.geometry().rotational;
        self.data.readers.quiet(self.now).filter(|&quiet| gives_way && quiet < READER_GONE)
    }

    pub(super) fn has_writers(&self) -> bool {
        self.queue.last_write().is_some_and(|at| self.now.since(at) < WRITER_GONE)
    }

    /// The reads that go undisturbed after each operation.
    fn reads_first(&self) -> u64 {
        if self.empties_log() {
            return 1;
        }
        let free =
            (1.0 - self.log.ring().utilisation()) / (1.0 - f64::from(self.config.high_mark.min(99)) / 100.0);
        if self.has_writers() { (READS_FIRST as f64 * free.clamp(0.0, 1.0)) as u64 } else { READS_FIRST }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::env::DATA;
    use super::super::super::testing_steps::{Steps, quiet};
    use super::super::super::{LogCacheConfig, Promise};
    use super::*;
    use crate::{Io, LINE_SECTORS};

    #[test]
    fn more_are_in_flight_while_writes_of_the_log_are_quick_and_half_as_many_after_a_slow_one() {
        let mut patience = Patience::default();
        let mut depth_after = |times: usize, millis| {
            (0..times).for_each(|_| patience.learn(Nanos::from_millis(millis), 32));
            patience.depth
        };
        assert_eq!(depth_after(5, 20), 6);
        assert_eq!(depth_after(1, 110), 3);
        assert_eq!(depth_after(9, 110), 1);
        assert_eq!(depth_after(99, 2), 32);
    }

    #[test]
    fn whoever_comes_to_a_disk_that_seeks_waits_for_few_operations() {
        for (spins, many) in [(true, IDLE_DEPTH), (false, 20)] {
            let mut disks = Steps::new(33, quiet()).disks;
            disks.0[DATA.0].rotational = spins;
            let rest = Nanos::from_secs(1);
            let config = LogCacheConfig { idle_empty: rest, idle_full: rest, ..quiet() };
            let mut steps = Steps::start(disks, config).unwrap();
            steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Write { .. }));
            // Apart, so that each is a write of its own.
            (0..20).for_each(|line| _ = steps.write(line * 2 * LINE_SECTORS, LINE_SECTORS, 1));
            steps.wait(10);
            assert_eq!(steps.held.len(), many, "spins: {spins}");
        }
    }

    /// A client that writes durably meets one operation at first, more when the log has little room left, and all while it waits for
    /// space. (The first version sent 32 at once, whatever the policy: a log on the same disk stood still for seconds at the high mark.)
    #[test]
    fn on_a_log_that_spins_writers_meet_few_operations_until_it_is_nearly_full() {
        for (spins, least, most) in [(true, 1, 2), (false, 8, 32)] {
            let mut disks = Steps::new(33, quiet()).disks;
            disks.0[LOG.0].rotational = spins;
            let config = LogCacheConfig { promise: Promise::Always, high_mark: 50, ..quiet() };
            let mut steps = Steps::start(disks, config).unwrap();
            let flights = |steps: &Steps| steps.held.iter().filter(|held| held.port == DATA).count();
            steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Write { .. }));
            let (mut line, mut first, mut last) = (0, None, 0);
            while !steps.core.queue.wants_space() {
                // Apart, so that each is a write of its own.
                line += 1;
                steps.write(line % 500 * 2 * LINE_SECTORS, LINE_SECTORS, 1);
                if !steps.core.queue.wants_space() && flights(&steps) > 0 {
                    last = flights(&steps);
                    first = first.or(Some(last));
                }
            }
            let first = first.expect("the high mark was reached");
            assert!((least..=most).contains(&first), "{first} at the high mark");
            assert!(last > 10, "{last} before it is full");
        }
    }

    /// Clients that have sent many requests at once meet no destaging while the log has room. (Destaging went on beside them, with ever
    /// more operations in flight, as each single write of the log was quick enough: a burst waited for seconds, and the log was as full
    /// after it as before.)
    #[test]
    fn nothing_is_destaged_beside_a_burst_that_the_log_has_room_for() {
        let mut disks = Steps::new(100, quiet()).disks;
        disks.0[LOG.0].rotational = true;
        let config = LogCacheConfig { promise: Promise::Always, high_mark: 50, ..quiet() };
        let mut steps = Steps::start(disks, config).unwrap();
        steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Write { .. }));
        let mut line = 0;
        let mut write = |steps: &mut Steps| {
            line += 1;
            steps.write(line % 500 * 2 * LINE_SECTORS, LINE_SECTORS, 1);
        };
        let depth = |steps: &Steps| steps.core.destagers[0].patience.depth_on(DATA, &steps.core.view().of(0));
        while steps.held.is_empty() {
            write(&mut steps);
        }
        assert!(depth(&steps) > 0, "a client that waits for each answer");
        steps.hold = Box::new(|_, io| matches!(io, Io::Write { .. }));
        (0..=BURST).for_each(|_| write(&mut steps));
        assert_eq!(depth(&steps), 0, "a burst");
        assert!(steps.core.stop.drain());
        assert!(depth(&steps) > 0, "somebody waits for a drain");
        steps.core.stop.end_drain();
        while !steps.core.queue.wants_space() {
            steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Write { .. }));
            steps.settle();
            write(&mut steps);
        }
        assert_eq!(depth(&steps), 32, "there is no room");
    }

    /// Writers that fill the log wait for the batch that runs, so it is a part of the log. (It was all that was dirty.)
    #[test]
    fn beside_writers_a_batch_is_a_part_of_the_log() {
        let config = LogCacheConfig { promise: Promise::Always, high_mark: 50, ..quiet() };
        let mut steps = Steps::new(96, config);
        steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Write { .. }));
        let mut line = 0;
        while !steps.core.queue.wants_space() {
            line += 1;
            steps.write(line % 500 * 2 * LINE_SECTORS, LINE_SECTORS, 1);
        }
        let batch = steps.core.destagers[0].room.items.len();
        let log = &steps.core.log;
        let all = log.ring().count() * log.superblock().segment_sectors() / LINE_SECTORS;
        assert!(batch > 0 && batch as u64 <= all / 5, "{batch} of {all} blocks");
    }

    /// A write that frees space goes before the next batch on the same disk. (It came behind its operations, which the disk took first.)
    #[test]
    fn nothing_is_destaged_while_a_writer_waits_for_the_superblock_that_frees_space() {
        let mut disks = Steps::new(33, quiet()).disks;
        disks.0[LOG.0].rotational = true;
        let config = LogCacheConfig { promise: Promise::Always, high_mark: 50, ..quiet() };
        let mut steps = Steps::start(disks, config).unwrap();
        steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Write { .. }));
        let mut line = 0;
        while !steps.core.queue.wants_space() {
            line += 1;
            steps.write(line % 500 * 2 * LINE_SECTORS, LINE_SECTORS, 1);
        }
        let is_superblock = |port, io: &Io| port == LOG && matches!(io, Io::Write { at, .. } if at.0 < 32);
        steps.hold = Box::new(move |port, io| is_superblock(port, io));
        steps.settle();
        assert!(
            steps.held.iter().any(|held| is_superblock(held.port, &held.io)),
            "space is about to be free"
        );
        let sent =
            steps.sent.iter().rev().take_while(|(_, _, extent)| extent.is_none_or(|at| at.start.0 >= 32));
        assert_eq!(sent.filter(|(port, _, _)| *port == DATA).count(), 0, "destaging gives way");
        steps.hold = Box::new(|_, _| false);
        steps.settle();
        assert!(!steps.core.queue.has_pending(), "there is space");
    }

    /// Only a write that finds no room waits for space. (Those behind it counted as well, although they waited for their turn: the
    /// log was destaged until it was empty, with all operations in flight, while clients waited for the disk.)
    #[test]
    fn nobody_waits_for_space_once_the_first_write_has_got_it() {
        let mut steps =
            Steps::new(8, LogCacheConfig { promise: Promise::Always, segment_buffers: 2, ..quiet() });
        steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Flush));
        for line in 0..100 {
            steps.write(line * LINE_SECTORS, LINE_SECTORS, 1);
        }
        assert!(steps.core.queue.wants_space(), "the log is full");
        steps.hold = Box::new(|port, io| port == LOG && matches!(io, Io::Write { at, .. } if at.0 >= 100));
        steps.settle();
        assert!(steps.core.queue.has_pending(), "writes wait for a buffer");
        assert!(steps.core.log.ring().free() > 0);
        assert!(!steps.core.queue.wants_space());
    }
}
