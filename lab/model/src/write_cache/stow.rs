//! STOW: a sequential and a random queue, each destaged in the order of WOW (Gill, Ko, Debnath and Belluomini, USENIX ATC
//! 2009).
//!
//! From its published description: the write cache is parted into a sequential and a random queue, each in an order that has
//! both localities, spatial and temporal; their relative sizes adapt all the time; one-time sequential data does not push
//! the random data out. The rate of destages, its other half, is for the policy that says when (`linear`, for instance).
//! The speed at which the sizes adapt and the time that one queue is served are not taken from it, and are the constants here.
//!
//! The arm leaves the one sweep for the other only after [`STAY`] parts, as each change costs a seek. A sequential part that
//! is destaged before it is whole will cost a second visit: its queue was too short. A random part that was written again
//! while it waited is a visit saved by a long queue of those.

/// Parts that are destaged from one queue before the other gets its turn.
pub const STAY: u32 = 8;
/// The part that one sign that a queue is too short adds to its share of what is dirty.
const STEP: f64 = 1.0 / 64.0;
/// Each queue keeps at least this share, so that it can show what it is good for.
const SHARE_MIN: f64 = 1.0 / 16.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StowQueue {
    Sequential = 0,
    Random = 1,
}

impl StowQueue {
    pub const fn of(sequential: bool) -> StowQueue {
        if sequential { StowQueue::Sequential } else { StowQueue::Random }
    }
}

/// The memory of the policy for a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stow {
    /// The share of what is dirty that may be sequential.
    share: f64,
    current: StowQueue,
    /// Parts until the queue may change.
    left: u32,
    hands: [u32; 2],
}

impl Default for Stow {
    fn default() -> Stow {
        Stow { share: 0.5, current: StowQueue::Random, left: 0, hands: [0; 2] }
    }
}

impl Stow {
    /// The queue whose turn it is, where so many sectors wait in each; the one that has anything, if only one has.
    pub fn queue(&self, sequential: u64, random: u64) -> StowQueue {
        let waiting = [sequential, random];
        if self.left > 0 && waiting[self.current as usize] > 0 {
            return self.current;
        }
        let over = sequential as f64 > self.share * (sequential + random) as f64;
        StowQueue::of(random == 0 || (over && sequential > 0))
    }

    /// The part that the sweep of a queue visited last.
    pub const fn hand(&self, queue: StowQueue) -> u32 {
        self.hands[queue as usize]
    }

    /// A part is destaged; `whole`: all of it was dirty.
    pub fn destaged(&mut self, queue: StowQueue, number: u32, whole: bool) {
        if queue != self.current || self.left == 0 {
            (self.current, self.left) = (queue, STAY);
        }
        self.left -= 1;
        self.hands[queue as usize] = number;
        if queue == StowQueue::Sequential && !whole {
            self.lean(STEP);
        }
    }

    /// A part was passed over, as it had been written again.
    pub fn passed(&mut self, queue: StowQueue) {
        if queue == StowQueue::Random {
            self.lean(-STEP);
        }
    }

    fn lean(&mut self, by: f64) {
        self.share = (self.share + by).clamp(SHARE_MIN, 1.0 - SHARE_MIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_that_is_over_its_share_goes_first_and_for_a_while() {
        let mut stow = Stow::default();
        assert_eq!(stow.queue(60, 40), StowQueue::Sequential);
        assert_eq!(stow.queue(40, 60), StowQueue::Random);
        for number in 0..STAY {
            assert_eq!(stow.queue(40 + u64::from(number) * 10, 60), StowQueue::Random, "it stays");
            stow.destaged(StowQueue::Random, number, true);
        }
        assert_eq!(stow.queue(70, 60), StowQueue::Sequential, "until it has destaged so many");
        assert_eq!((stow.hand(StowQueue::Random), stow.hand(StowQueue::Sequential)), (STAY - 1, 0));
        stow.destaged(StowQueue::Sequential, 5, true);
        assert_eq!(stow.queue(0, 60), StowQueue::Random, "or has nothing left");
        assert_eq!(stow.queue(1, 0), StowQueue::Sequential);
    }

    #[test]
    fn the_shares_follow_what_each_queue_is_good_for() {
        let mut stow = Stow::default();
        for number in 0..2 * STAY {
            stow.destaged(StowQueue::Sequential, number, false);
        }
        assert_eq!(stow.queue(60, 40), StowQueue::Random, "broken parts: the sequential queue may be longer");
        for _ in 0..1000 {
            stow.passed(StowQueue::Random);
        }
        assert_eq!(stow.queue(7, 93), StowQueue::Sequential, "saved writes: the random queue may be longer");
        assert_eq!(stow.queue(6, 94), StowQueue::Random, "each keeps a little");
        stow.passed(StowQueue::Sequential);
        assert_eq!(stow.queue(6, 94), StowQueue::Random, "a sequential part written again says nothing");
    }
}
