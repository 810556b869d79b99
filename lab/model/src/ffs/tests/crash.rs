//! Checks what a crash leaves of the metadata: the writes of a random run, replayed to every point, every block at any of the
//! versions that the disk may hold there.
//!
//! FFS promises: a name on the disk leads to an inode that is on the disk, and to the file that was given that name, never
//! to one that got the inode later. Bitmaps, sizes and times are for fsck to put right.

use std::collections::BTreeMap;

use super::super::layout::Frag;
use super::super::record::{Effect, Recorded, WriteId};
use super::random::{Character, drive};
use super::*;

/// Content of a block as the name space sees it.
#[derive(Clone, Default)]
struct Content {
    inodes: BTreeMap<Ino, u32>,
    entries: BTreeMap<(Ino, u64), (Ino, u32)>,
}

impl Content {
    fn change(&mut self, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Inode { ino, generation: Some(generation) } => {
                self.inodes.insert(ino, generation);
            }
            Effect::Inode { ino, generation: None } => {
                self.inodes.remove(&ino);
            }
            Effect::Entry { directory, name, to: Some(to) } => {
                self.entries.insert((directory, name), to);
            }
            Effect::Entry { directory, name, to: None } => {
                self.entries.remove(&(directory, name));
            }
        }
    }
}

/// Memory and disk, rebuilt from a record.
#[derive(Default)]
struct Replay {
    memory: BTreeMap<Frag, Content>,
    disk: BTreeMap<Frag, Content>,
    flights: BTreeMap<WriteId, Vec<(Frag, Content)>>,
    /// Names seen dangling, for the test that looks for them.
    dangling: usize,
    points: usize,
}

impl Replay {
    /// `eager` lets a write be on the disk as soon as it is issued; else it is there when it ends.
    fn step(&mut self, recorded: Recorded, eager: bool) {
        match recorded {
            Recorded::Changed { at, effect } => self.memory.entry(at).or_default().change(effect),
            Recorded::Issued { write, at, frags } => {
                let range = at..at.plus(frags);
                let blocks: Vec<_> = self.memory.range(range).map(|(at, c)| (*at, c.clone())).collect();
                if eager {
                    self.disk.extend(blocks);
                } else {
                    self.flights.insert(write, blocks);
                }
            }
            Recorded::Ended { write } => self.disk.extend(self.flights.remove(&write).into_iter().flatten()),
        }
    }

    fn look(&mut self) {
        self.points += 1;
        let inodes: BTreeMap<Ino, u32> = self.disk.values().flat_map(|block| block.inodes.clone()).collect();
        for (ino, generation) in self.disk.values().flat_map(|block| block.entries.values()) {
            self.dangling += usize::from(inodes.get(ino) != Some(generation));
        }
    }
}

fn replay(record: &[Recorded], eager: bool) -> Replay {
    let mut replay = Replay::default();
    for recorded in record {
        let writes = !matches!(recorded, Recorded::Changed { .. });
        replay.step(*recorded, eager);
        if writes {
            replay.look();
        }
    }
    replay
}

fn recorded(seed: u64) -> Vec<Recorded> {
    let mut bench = Bench::new(small(), 8 * MIB);
    bench.ffs.record = Some(Vec::new());
    drive(&mut bench, seed, Character { processes: 4, calls: 300, check_every: 50 });
    bench.ffs.record.take().expect("it was recorded")
}

#[test]
fn a_name_on_the_disk_leads_to_its_inode_at_every_instant() {
    for seed in 0..12 {
        let record = recorded(seed);
        for eager in [false, true] {
            let replay = replay(&record, eager);
            assert_eq!(replay.dangling, 0, "seed {seed}, eager {eager}");
            assert!(replay.points > 300, "{} points", replay.points);
        }
    }
}

/// Moves an inode's write after the entry's: the check must see it.
#[test]
fn the_wrong_order_is_seen() {
    let mut record = recorded(0);
    let is_inode = |recorded: &Recorded| {
        matches!(recorded, Recorded::Changed { effect: Effect::Inode { generation: Some(_), .. }, .. })
    };
    let late = record.iter().position(is_inode).expect("something was created");
    let change = record.remove(late);
    record.insert(late + 12, change);
    assert!(replay(&record, false).dangling > 0);
}
