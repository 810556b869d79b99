//! The queue of one of md's members, as md sees it: requests of one kind, which the member's scheduler joins.

use std::collections::BTreeSet;

/// Requests of a kind that a block device's queue has.
pub(crate) const QUEUE: usize = 128;

/// Pages of one kind that a member has been asked for, and how many requests they are when neighbours are joined.
#[derive(Default)]
pub(crate) struct Queue {
    pages: BTreeSet<u64>,
    requests: usize,
}

impl Queue {
    fn neighbours(&self, page: u64) -> usize {
        let before = page.checked_sub(1).is_some_and(|before| self.pages.contains(&before));
        usize::from(before) + usize::from(self.pages.contains(&(page + 1)))
    }

    pub fn has_room(&self, page: u64) -> bool {
        self.requests < QUEUE || self.neighbours(page) > 0
    }

    pub fn add(&mut self, page: u64) {
        self.requests = self.requests + 1 - self.neighbours(page);
        self.pages.insert(page);
    }

    pub fn remove(&mut self, page: u64) {
        self.pages.remove(&page);
        self.requests = self.requests + self.neighbours(page) - 1;
    }
}
