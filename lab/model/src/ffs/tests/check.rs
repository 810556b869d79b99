//! The fsck of what is in memory: run by tests after every call.

use crate::ffs::config::BLOCK_FRAGMENTS;
use crate::ffs::directory::Directory;
use crate::ffs::layout::{Frag, GroupIndex, Ino};
use crate::ffs::machine::Ffs;
use crate::ffs::plan::Step;
use crate::ffs::volume::Volume;

/// Marks the fragments that are held.
struct Holders {
    held: Vec<bool>,
    count: u64,
}

impl Holders {
    fn hold(&mut self, at: Frag, frags: u32, who: &str) {
        for frag in at.0..at.0 + frags {
            let before = std::mem::replace(&mut self.held[frag as usize], true);
            assert!(!before, "fragment {frag} is held twice, the second time by {who}");
        }
        self.count += u64::from(frags);
    }
}

impl Ffs {
    /// Panics where the file system contradicts itself.
    pub fn check(&self) {
        self.volume.allocator.check();
        self.cache.check();
        let layout = &self.volume.allocator.layout;
        let mut holders = Holders { held: vec![false; layout.frags() as usize], count: 0 };
        for group in (0..layout.groups).map(GroupIndex) {
            holders.hold(layout.first_frag(group), layout.metadata_blocks * BLOCK_FRAGMENTS, "the group");
        }
        if let Some(journal) = &self.journal {
            let (first, frags) = journal.place();
            holders.hold(first, frags, "the journal");
            journal.freed.iter().for_each(|(at, frags)| holders.hold(*at, *frags, "the next commit"));
        }
        let mut inodes_going = 0;
        for process in &self.processes {
            for step in &process.steps[process.cursor.min(process.steps.len())..] {
                match step {
                    Step::Release { at, frags } => holders.hold(*at, *frags, "a call that frees it"),
                    Step::ReleaseInode { ino, .. } => {
                        inodes_going += 1;
                        assert!(
                            self.volume.inodes.find(*ino).is_none(),
                            "{ino:?} is being freed, and in use"
                        );
                    }
                    _ => {}
                }
            }
        }
        let inodes = self.volume.check_files(&mut holders);
        self.volume.check_names();
        let total = u64::from(layout.frags());
        assert_eq!(holders.count + self.volume.allocator.free_frags(), total, "fragments held and free");
        for frag in (0..layout.frags()).map(Frag) {
            let group = layout.group_of(frag);
            let is_free = self.volume.allocator.map(group).is_free(frag.0 - layout.first_frag(group).0);
            assert!(is_free != holders.held[frag.0 as usize], "{frag:?} is free in one place only");
        }
        let free: u64 =
            (0..layout.groups).map(|g| u64::from(self.volume.allocator.map(GroupIndex(g)).free_inodes)).sum();
        assert_eq!(inodes + inodes_going + 2 + free, u64::from(layout.inodes()), "inodes in use and free");
    }
}

impl Volume {
    /// Every file has the blocks of its size, and no other file has them. Gives the number of inodes.
    fn check_files(&self, holders: &mut Holders) -> u64 {
        let mut count = 0;
        for (ino, inode) in self.inodes.iter() {
            count += 1;
            assert!(!self.allocator.is_inode_free(ino), "{ino:?} is in use");
            assert!(
                inode.blocks.len() as u32 <= self.shape.blocks(inode.bytes),
                "{ino:?} has blocks past its end"
            );
            let who = format!("{ino:?}");
            for (block, at) in inode.blocks.iter().enumerate().filter(|(_, at)| !at.is_none()) {
                holders.hold(*at, inode.frags_of(block as u32, &self.shape), &who);
                for index in self.shape.indirects_of(block as u32) {
                    let leads = inode.indirects.get(index).is_some_and(|at| !at.is_none());
                    assert!(leads, "block {block} of {ino:?} cannot be found");
                }
            }
            for at in inode.indirects.iter().filter(|at| !at.is_none()) {
                holders.hold(*at, BLOCK_FRAGMENTS, &who);
            }
        }
        count
    }

    /// Every name leads to an inode in use, and every inode has as many links as names lead to it.
    fn check_names(&self) {
        let mut links = std::collections::BTreeMap::<Ino, u32>::new();
        *links.entry(Ino::ROOT).or_default() += 1;
        let directories =
            self.inodes.iter().filter_map(|(ino, inode)| Some((ino, inode.directory.as_deref()?)));
        for (ino, directory) in directories {
            Directory::check(directory);
            assert_eq!(directory.bytes(), self.inodes.get(ino).bytes, "the size of {ino:?}");
            *links.entry(ino).or_default() += 1;
            if ino != Ino::ROOT {
                *links.entry(directory.parent).or_default() += 1;
            }
            for (name, entry) in directory.iter() {
                assert!(self.inodes.find(entry.ino).is_some(), "{name:?} leads to an inode that is free");
                *links.entry(entry.ino).or_default() += 1;
            }
        }
        for (ino, inode) in self.inodes.iter() {
            let found = links.get(&ino).copied().unwrap_or(0);
            assert_eq!(inode.links, found, "links of {ino:?}");
            assert!(inode.links > 0 || inode.opens > 0, "{ino:?} is lost");
        }
    }
}
