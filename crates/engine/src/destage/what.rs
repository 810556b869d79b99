//! Policies for the part of a cache that is destaged first.

use serde::{Deserialize, Serialize};

/// The names of the policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhatPolicy {
    /// The part that has been dirty for the longest time; it frees a log's tail.
    #[default]
    OldestFirst,
    /// The newest first (Nightingale et al. 1999, section 3.5.3).
    LastWriteFirst,
    /// The part with the least dirty data first: the least work for a free segment (the same section, as future work).
    LeastValidFirst,
    /// The part that has not been written for the longest time.
    LeastRecentlyWritten,
    /// The part with the most dirty blocks for one visit of the arm; the nearest of equals (Biswas et al. 1993, section 2.1).
    MostDirty,
    /// The next part in the direction of rising addresses, wrapping around.
    CScan,
    /// By age, but a part that was written again since it came gets a second chance.
    Clock,
    /// `CScan` and `Clock` combined: by address, with a second chance for parts that were written again (Gill and Modha, FAST 2005).
    Wow,
    /// `Wow` with two queues, for sequential writes and for the rest (Gill et al., USENIX ATC 2009). A cache without such queues, like a
    /// log or an array, does the same as for `Wow`.
    Stow,
}

impl WhatPolicy {
    /// All policies.
    pub const ALL: [WhatPolicy; 9] = [
        WhatPolicy::OldestFirst,
        WhatPolicy::LastWriteFirst,
        WhatPolicy::LeastValidFirst,
        WhatPolicy::LeastRecentlyWritten,
        WhatPolicy::MostDirty,
        WhatPolicy::CScan,
        WhatPolicy::Clock,
        WhatPolicy::Wow,
        WhatPolicy::Stow,
    ];

    /// Orders the parts: the one with the smallest key is first.
    #[inline]
    pub fn key(self, part: &Part) -> (u64, u64) {
        match self {
            WhatPolicy::OldestFirst => (part.number, 0),
            WhatPolicy::LastWriteFirst => (u64::MAX - part.number, 0),
            WhatPolicy::LeastValidFirst => (part.dirty_sectors, part.number),
            WhatPolicy::LeastRecentlyWritten => (part.written, part.number),
            WhatPolicy::MostDirty => (u64::MAX - part.dirty_sectors, part.distance),
            WhatPolicy::CScan => (0, part.ahead),
            WhatPolicy::Clock => (u64::from(part.referenced), part.number),
            WhatPolicy::Wow | WhatPolicy::Stow => (u64::from(part.referenced), part.ahead),
        }
    }

    /// True when some parts get a second chance: parts come after others only because they were written again.
    pub const fn gives_chances(self) -> bool {
        matches!(self, WhatPolicy::Clock | WhatPolicy::Wow | WhatPolicy::Stow)
    }
}

/// A part of a cache that can be chosen: a segment of a log, a track or a stripe of a write cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Age of the part: a smaller number is older.
    pub number: u64,
    pub dirty_sectors: u64,
    /// The age of its last write.
    pub written: u64,
    /// The distance ahead of the sweep's hand, in the direction of rising addresses, wrapping around.
    pub ahead: u64,
    /// The distance that the arm has to move.
    pub distance: u64,
    /// True if the part was written again since it came, or since it was last passed over.
    pub referenced: bool,
}

/// The choice of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen<T> {
    pub best: T,
    pub key: (u64, u64),
    /// Parts that were passed over for the best one only because of their second chance, which is used up now.
    pub passed: Vec<T>,
}

/// Chooses the best of some parts, each with its name. `distance`: how far the arm has to move to a part. It is called only for parts
/// that can still be the best, and the parts themselves need not hold it.
pub fn choose<T: Copy + PartialEq>(
    policy: WhatPolicy,
    parts: impl Iterator<Item = (T, Part)> + Clone,
    distance: impl Fn(T) -> u64,
) -> Option<Chosen<T>> {
    let mut chosen: Option<(T, (u64, u64))> = None;
    for (name, part) in parts.clone() {
        // The first number of a key never has to do with the distance.
        let (first, _) = policy.key(&part);
        if chosen.is_some_and(|(_, best)| first > best.0) {
            continue;
        }
        let key = policy.key(&Part { distance: distance(name), ..part });
        if chosen.is_none_or(|(_, best)| key < best) {
            chosen = Some((name, key));
        }
    }
    let (best, key) = chosen?;
    let mut passed = Vec::new();
    if policy.gives_chances() {
        let would_go = |part: Part| policy.key(&Part { referenced: false, ..part }) < key;
        passed.extend(parts.filter(|(_, part)| part.referenced && would_go(*part)).map(|(name, _)| name));
        passed.retain(|name| *name != best);
    }
    Some(Chosen { best, key, passed })
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
            parts.sort_by_key(|part| policy.key(part));
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
        let choose = |policy| {
            let chosen = super::choose(policy, parts.iter().map(|part| (part.number, *part)), |_| 0);
            chosen.map(|chosen| (chosen.best, chosen.passed))
        };
        assert_eq!(choose(WhatPolicy::Wow), Some((1, vec![2])), "part 3 lies behind what was chosen");
        assert_eq!(choose(WhatPolicy::CScan), Some((2, vec![])));
        assert_eq!(super::choose::<u64>(WhatPolicy::Wow, std::iter::empty(), |_| 0), None);
    }

    #[test]
    fn the_nearest_of_the_most_dirty_goes_first() {
        let parts =
            [(9, 5), (2, 4), (9, 3), (9, 4)].map(|(dirty, distance)| (distance, part(1, dirty, 1, 0, false)));
        let chosen = super::choose(WhatPolicy::MostDirty, parts.into_iter(), |distance| distance);
        assert_eq!(chosen.map(|chosen| (chosen.best, chosen.key)), Some((3, (u64::MAX - 9, 3))));
    }
}
