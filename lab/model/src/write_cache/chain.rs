//! Regions in the order in which something happened to them, one chain for each disk: the one it happened to last is at the end.

/// No region.
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
}

/// Handles of regions are small numbers: each has its link at its own place.
#[derive(Default)]
pub struct Chain {
    links: Vec<Link>,
    /// Ends by disk: the last region is `before`, the first one `after`, as if the chain were a ring.
    ends: Vec<Link>,
}

impl Chain {
    /// Chains for so many disks, with room for so many regions.
    pub fn new(disks: usize, regions: usize) -> Chain {
        Chain { links: Vec::with_capacity(regions), ends: vec![Link { before: NIL, after: NIL }; disks] }
    }

    /// A region is new.
    pub fn push(&mut self, disk: u32, handle: u32) {
        let end = &mut self.ends[disk as usize];
        let last = std::mem::replace(&mut end.before, handle);
        let link = Link { before: last, after: NIL };
        match last {
            NIL => end.after = handle,
            last => self.links[last as usize].after = handle,
        }
        match self.links.get_mut(handle as usize) {
            Some(place) => *place = link,
            None => {
                assert_eq!(handle as usize, self.links.len(), "handles are given out one after the other");
                self.links.push(link);
            }
        }
    }

    pub fn remove(&mut self, disk: u32, handle: u32) {
        let Link { before, after } = self.links[handle as usize];
        let end = &mut self.ends[disk as usize];
        match before {
            NIL => end.after = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NIL => end.before = before,
            after => self.links[after as usize].before = before,
        }
    }

    /// Moves a region to the end.
    pub fn move_to_end(&mut self, disk: u32, handle: u32) {
        if self.ends[disk as usize].before != handle {
            self.remove(disk, handle);
            self.push(disk, handle);
        }
    }

    /// From the first to the last.
    pub fn iter(&self, disk: u32) -> impl Iterator<Item = u32> + '_ {
        follow(self.ends[disk as usize].after, |handle| self.links[handle as usize].after)
    }

    /// From the last to the first.
    pub fn iter_back(&self, disk: u32) -> impl Iterator<Item = u32> + '_ {
        follow(self.ends[disk as usize].before, |handle| self.links[handle as usize].before)
    }
}

fn follow(first: u32, next: impl Fn(u32) -> u32) -> impl Iterator<Item = u32> {
    std::iter::successors((first != NIL).then_some(first), move |&handle| {
        let next = next(handle);
        (next != NIL).then_some(next)
    })
}
