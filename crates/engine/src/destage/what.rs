//! Which parts of a cache are destaged first.

use serde::{Deserialize, Serialize};

/// The names of the policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhatPolicy {
    /// What has been dirty for the longest time; it frees a log's tail.
    #[default]
    OldestFirst,
    /// The newest first (Nightingale et al. 1999, section 3.5.3).
    LastWriteFirst,
    /// The least dirty data first: the least work for a free segment (the same section, as future work).
    LeastValidFirst,
    /// What nobody has written for the longest time.
    LeastRecentlyWritten,
    /// The most dirty blocks for one visit of the arm; the nearest of equals (Biswas et al. 1993, section 2.1).
    MostDirty,
    /// The next one in the direction of rising addresses, and round again.
    CScan,
    /// By age, but what was written again since it came gets a second chance.
    Clock,
    /// Both at once: by address, with a second chance for what was written again (Gill and Modha, FAST 2005).
    Wow,
    /// The same in two queues, of what was written sequentially and of the rest (Gill et al., USENIX ATC 2009); see
    /// [`super::stow`]. A log is not swept by address: there it is the same as `Wow`.
    Stow,
}

/// A part of a cache that can be chosen: a segment of a log, a track or a stripe of a write cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Its age: a smaller number is older.
    pub number: u64,
    pub dirty_sectors: u64,
    /// The age of its last write.
    pub written: u64,
    /// How far it lies ahead of the sweep's hand, in the direction of rising addresses and round again.
    pub ahead: u64,
    /// How far the arm has to move.
    pub distance: u64,
    /// Written again since it came, or since it was last passed over.
    pub referenced: bool,
}

/// Which part goes first: the one with the smallest key.
pub trait What: Sync {
    fn key(&self, part: &Part) -> (u64, u64);

    /// Puts the best part first. Parts come oldest first.
    fn order(&self, parts: &mut [Part]) {
        parts.sort_by_key(|part| self.key(part));
    }

    /// The best part, and those that would have gone before it but for their second chance.
    fn choose(&self, parts: &[Part]) -> Option<(usize, Vec<usize>)> {
        let best = (0..parts.len()).min_by_key(|&index| self.key(&parts[index]))?;
        let best_key = self.key(&parts[best]);
        let would_go = |part: &Part| self.key(&Part { referenced: false, ..*part }) < best_key;
        let passed = |index: &usize| *index != best && parts[*index].referenced && would_go(&parts[*index]);
        Some((best, (0..parts.len()).filter(passed).collect()))
    }
}

struct OldestFirst;

impl What for OldestFirst {
    fn key(&self, part: &Part) -> (u64, u64) {
        (part.number, 0)
    }
}

struct LastWriteFirst;

impl What for LastWriteFirst {
    fn key(&self, part: &Part) -> (u64, u64) {
        (u64::MAX - part.number, 0)
    }
}

struct LeastValidFirst;

impl What for LeastValidFirst {
    fn key(&self, part: &Part) -> (u64, u64) {
        (part.dirty_sectors, part.number)
    }
}

struct LeastRecentlyWritten;

impl What for LeastRecentlyWritten {
    fn key(&self, part: &Part) -> (u64, u64) {
        (part.written, part.number)
    }
}

struct MostDirty;

impl What for MostDirty {
    fn key(&self, part: &Part) -> (u64, u64) {
        (u64::MAX - part.dirty_sectors, part.distance)
    }
}

struct CScan;

impl What for CScan {
    fn key(&self, part: &Part) -> (u64, u64) {
        (0, part.ahead)
    }
}

struct Clock;

impl What for Clock {
    fn key(&self, part: &Part) -> (u64, u64) {
        (u64::from(part.referenced), part.number)
    }
}

struct Wow;

impl What for Wow {
    fn key(&self, part: &Part) -> (u64, u64) {
        (u64::from(part.referenced), part.ahead)
    }
}

/// The registry.
pub fn policy(name: WhatPolicy) -> &'static dyn What {
    match name {
        WhatPolicy::OldestFirst => &OldestFirst,
        WhatPolicy::LastWriteFirst => &LastWriteFirst,
        WhatPolicy::LeastValidFirst => &LeastValidFirst,
        WhatPolicy::LeastRecentlyWritten => &LeastRecentlyWritten,
        WhatPolicy::MostDirty => &MostDirty,
        WhatPolicy::CScan => &CScan,
        WhatPolicy::Clock => &Clock,
        WhatPolicy::Wow | WhatPolicy::Stow => &Wow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: u64, dirty_sectors: u64, written: u64, ahead: u64, referenced: bool) -> Part {
        Part { number, dirty_sectors, written, ahead, distance: ahead, referenced }
    }

    #[test]
    fn each_policy_has_its_order() {
        let parts = [
            part(1, 50, 9, 30, false),
            part(2, 10, 3, 20, true),
            part(3, 90, 4, 40, false),
            part(4, 90, 8, 10, true),
        ];
        let order = |policy: WhatPolicy| {
            let mut parts = parts;
            super::policy(policy).order(&mut parts);
            parts.map(|part| part.number)
        };
        assert_eq!(order(WhatPolicy::OldestFirst), [1, 2, 3, 4]);
        assert_eq!(order(WhatPolicy::LastWriteFirst), [4, 3, 2, 1]);
        assert_eq!(order(WhatPolicy::LeastValidFirst), [2, 1, 3, 4]);
        assert_eq!(order(WhatPolicy::LeastRecentlyWritten), [2, 3, 4, 1]);
        assert_eq!(order(WhatPolicy::MostDirty), [4, 3, 1, 2]);
        assert_eq!(order(WhatPolicy::CScan), [4, 2, 1, 3]);
        assert_eq!(order(WhatPolicy::Clock), [1, 3, 2, 4]);
        assert_eq!(order(WhatPolicy::Wow), [1, 3, 4, 2]);
    }

    #[test]
    fn a_second_chance_is_lost_by_being_passed_over() {
        let parts = [part(1, 1, 1, 30, false), part(2, 1, 1, 20, true), part(3, 1, 1, 40, true)];
        let choose = |policy| super::policy(policy).choose(&parts);
        assert_eq!(choose(WhatPolicy::Wow), Some((0, vec![1])), "part 3 lies behind what was chosen");
        assert_eq!(choose(WhatPolicy::CScan), Some((1, vec![])));
        assert_eq!(super::policy(WhatPolicy::Wow).choose(&[]), None);
    }
}
