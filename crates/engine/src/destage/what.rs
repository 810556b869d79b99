//! Which parts of a cache are destaged first.

use crate::log_cache::WhatPolicy;

/// A part of a cache that can be chosen: a segment of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its age: a smaller number is older.
    pub number: u64,
    pub dirty_sectors: u64,
}

pub trait What: Sync {
    /// Puts the best part first. Parts come oldest first.
    fn order(&self, parts: &mut [Part]);
}

/// What has waited longest: it frees the log's tail.
struct OldestFirst;

impl What for OldestFirst {
    fn order(&self, parts: &mut [Part]) {
        parts.sort_unstable_by_key(|part| part.number);
    }
}

/// The newest segment first (Nightingale et al. 1999, section 3.5.3).
struct LastWriteFirst;

impl What for LastWriteFirst {
    fn order(&self, parts: &mut [Part]) {
        parts.sort_unstable_by_key(|part| std::cmp::Reverse(part.number));
    }
}

/// The segment with the least valid data first: the least work for a free segment (the same section, as future work).
struct LeastValidFirst;

impl What for LeastValidFirst {
    fn order(&self, parts: &mut [Part]) {
        parts.sort_unstable_by_key(|part| (part.dirty_sectors, part.number));
    }
}

/// The registry.
pub fn policy(name: WhatPolicy) -> &'static dyn What {
    match name {
        WhatPolicy::OldestFirst => &OldestFirst,
        WhatPolicy::LastWriteFirst => &LastWriteFirst,
        WhatPolicy::LeastValidFirst => &LeastValidFirst,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_has_its_order() {
        let parts = [(1, 50), (2, 10), (3, 90)].map(|(number, dirty_sectors)| Part { number, dirty_sectors });
        let order = |policy: WhatPolicy| {
            let mut parts = parts;
            super::policy(policy).order(&mut parts);
            parts.map(|part| part.number)
        };
        assert_eq!(order(WhatPolicy::OldestFirst), [1, 2, 3]);
        assert_eq!(order(WhatPolicy::LastWriteFirst), [3, 2, 1]);
        assert_eq!(order(WhatPolicy::LeastValidFirst), [2, 1, 3]);
    }
}
