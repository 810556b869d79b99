//! A list of small numbers in the order of their last use: buffers, inodes and names in memory.

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Links {
    older: u32,
    newer: u32,
}

const OUTSIDE: Links = Links { older: NONE, newer: NONE };

/// See the module's documentation. Place 0 is the list's own; number `n` is at place `n + 1`.
#[derive(Clone)]
pub(crate) struct Lru {
    links: Vec<Links>,
    len: u32,
}

impl Default for Lru {
    fn default() -> Self {
        Lru { links: vec![Links { older: 0, newer: 0 }], len: 0 }
    }
}

impl Lru {
    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn contains(&self, number: u32) -> bool {
        self.links.get(number as usize + 1).is_some_and(|links| links.older != NONE)
    }

    pub fn oldest(&self) -> Option<u32> {
        self.links[0].newer.checked_sub(1)
    }

    /// The oldest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.oldest(), |number| self.newer(*number))
    }

    /// The one used next after `number`.
    pub fn newer(&self, number: u32) -> Option<u32> {
        self.links[number as usize + 1].newer.checked_sub(1)
    }

    pub fn push_newest(&mut self, number: u32) {
        let newest = self.links[0].older;
        self.insert_after(newest, number);
    }

    pub fn push_oldest(&mut self, number: u32) {
        self.insert_after(0, number);
    }

    /// Makes it the newest; it must be in the list.
    pub fn touch(&mut self, number: u32) {
        if self.links[0].older != number + 1 {
            self.remove(number);
            self.push_newest(number);
        }
    }

    pub fn remove(&mut self, number: u32) {
        let place = number as usize + 1;
        let Links { older, newer } = self.links[place];
        assert!(older != NONE, "only what is in the list leaves it");
        self.links[older as usize].newer = newer;
        self.links[newer as usize].older = older;
        self.links[place] = OUTSIDE;
        self.len -= 1;
    }

    /// Takes as long as there are numbers in the list, however large they are.
    pub fn clear(&mut self) {
        while let Some(number) = self.oldest() {
            self.remove(number);
        }
    }

    fn insert_after(&mut self, older: u32, number: u32) {
        let place = number as usize + 1;
        if place >= self.links.len() {
            self.links.resize(place + 1, OUTSIDE);
        }
        assert!(self.links[place].older == NONE, "a number is in the list once");
        let newer = self.links[older as usize].newer;
        self.links[place] = Links { older, newer };
        self.links[older as usize].newer = place as u32;
        self.links[newer as usize].older = place as u32;
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(lru: &Lru) -> Vec<u32> {
        lru.iter().collect()
    }

    #[test]
    fn the_order_is_that_of_the_last_use() {
        let mut lru = Lru::default();
        for number in [4, 0, 7] {
            lru.push_newest(number);
        }
        lru.touch(4);
        lru.push_oldest(9);
        assert_eq!(order(&lru), [9, 0, 7, 4]);
        lru.remove(7);
        assert_eq!((order(&lru), lru.len(), lru.contains(7)), (vec![9, 0, 4], 3, false));
        lru.clear();
        assert_eq!((lru.oldest(), lru.len(), lru.contains(9)), (None, 0, false));
        lru.push_newest(9);
        assert_eq!(order(&lru), [9]);
    }
}
