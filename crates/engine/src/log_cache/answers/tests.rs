use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::super::config::{LogCacheConfig, Promise};
use super::super::env::LOG;
use super::super::error::LogError;
use super::super::format::{EntryKind, MemoryMark};
use super::super::offline::take_in;
use super::super::recover::{WalkOptions, Walked, walk};
use super::super::testing::{Log, Ram, sector_of};
use super::super::testing_steps::{Disks, Steps, quiet};
use super::found::{AnswerRecord, Ignored, found};
use super::*;
use crate::layer::{Control, PortDevice};
use crate::{Extent, Lba, Nanos, Planted};

/// Place with the memory of each number.
#[derive(Clone, Default)]
struct Shared {
    memories: Rc<RefCell<BTreeMap<u32, Vec<u8>>>>,
    /// Every state that a memory was in.
    states: Rc<RefCell<Vec<Vec<u8>>>>,
    drawn: Rc<Cell<u32>>,
    boot: u8,
    bytes_max: Option<usize>,
}

/// Memory of one number.
struct SharedPart(u32, Shared);

impl SharedMemory for SharedPart {
    fn len(&self) -> usize {
        self.1.memories.borrow().get(&self.0).map_or(0, Vec::len)
    }

    fn store(&mut self, at: usize, bytes: &[u8]) {
        for (index, word) in bytes.chunks(8).enumerate() {
            let mut memories = self.1.memories.borrow_mut();
            let memory = memories.get_mut(&self.0).expect("it was made");
            memory[at + 8 * index..][..word.len()].copy_from_slice(word);
            self.1.states.borrow_mut().push(memory.clone());
        }
    }

    fn mark(&mut self, at: usize, number: u64) {
        self.store(at, &number.to_le_bytes());
    }

    fn remove(self: Box<Self>) {
        self.1.memories.borrow_mut().remove(&self.0);
    }
}

impl MemoryPlace for Shared {
    fn boot(&self) -> [u8; 16] {
        [self.boot; 16]
    }

    fn draw(&mut self, _cache: &[u8; 16], _max: u32) -> Option<u32> {
        self.drawn.set(self.drawn.get() + 1);
        Some(self.drawn.get())
    }

    fn find(&mut self, _cache: &[u8; 16], number: u32) -> Result<Option<Vec<u8>>, MemoryInUse> {
        Ok(self.memories.borrow().get(&number).cloned())
    }

    fn make(&mut self, _cache: &[u8; 16], number: u32, bytes: usize) -> Option<Box<dyn SharedMemory>> {
        let bytes = self.bytes_max.unwrap_or(bytes);
        if bytes == 0 {
            return None;
        }
        self.memories.borrow_mut().insert(number, vec![0; bytes]);
        Some(Box::new(SharedPart(number, self.clone())))
    }

    fn forget(&mut self, _cache: &[u8; 16], number: u32) {
        self.memories.borrow_mut().remove(&number);
    }
}

impl Shared {
    /// Makes a place with one memory of this number.
    fn of(number: u32, bytes: usize) -> (Shared, Box<SharedPart>) {
        let shared = Shared::default();
        shared.memories.borrow_mut().insert(number, vec![0; bytes]);
        (shared.clone(), Box::new(SharedPart(number, shared)))
    }

    /// Returns the memory as a kill now leaves it.
    fn left(&self) -> Shared {
        Shared {
            memories: Rc::new(RefCell::new(self.memories.borrow().clone())),
            drawn: Rc::new(Cell::new(self.drawn.get())),
            boot: self.boot,
            ..Shared::default()
        }
    }

    /// The memory that was drawn last.
    fn bytes(&self) -> Vec<u8> {
        self.memories.borrow().values().last().expect("there is one").clone()
    }

    fn count(&self) -> usize {
        self.memories.borrow().len()
    }
}

fn walked(log: &mut Log) -> Walked {
    let options = WalkOptions::default();
    walk(&mut log.device, &log.superblock, options, &mut |_: &_, _: &[usize]| ()).unwrap()
}

fn stamp(log: &Log) -> Stamp {
    Stamp {
        cache_uuid: log.superblock.cache_uuid,
        epoch: log.superblock.epoch,
        oldest_live_seq: 1,
        durable_seq: 1,
        flush_epoch: 0,
    }
}

/// Fills a ring over and over: a cut after any 8 bytes leaves exactly what was published last.
#[test]
fn rule_15_a_kill_between_any_two_stores_leaves_whole_records() {
    let mut log = Log::new(4, 512);
    let walked = walked(&mut log);
    let (shared, memory) = Shared::of(7, HEAD_BYTES + 8 * 1024);
    log.superblock.memory = Some(MemoryMark::new(7));
    let mut answers = Answers::new(memory, [0; 16], &log.superblock, 7).unwrap();
    let stamp = stamp(&log);
    let found_in = |bytes: &[u8]| -> Vec<(u64, Vec<u8>)> {
        let records = found(bytes, [0; 16], &log.superblock, &walked, Planted::default());
        let pair = |record: AnswerRecord| (record.seq, record.image.bytes().to_vec());
        records.expect("it is whole").into_iter().map(pair).collect()
    };
    let (mut cuts, mut uncovered, mut published) = (0, 0, Vec::new());
    let mut sector = log.superblock.segment_start(0);
    for seq in 1..60 {
        shared.states.borrow_mut().clear();
        answers.release(seq / 4 * 4);
        answers.begin(seq, sector, &stamp, true);
        for part in 0..1 + seq % 3 {
            let (extent, tag) = (Extent::new(Lba(8 * part), 1 + seq % 4), seq as u8);
            let payload: Vec<u8> =
                (extent.start.0..extent.end().0).flat_map(|at| sector_of(at, tag)).collect();
            let entry =
                |payload: &[u8]| Entry { kind: EntryKind::Data, extent, crc: crc32c::crc32c(payload) };
            answers.entry(seq, &entry(&payload), &payload, false);
            let newer = vec![tag; payload.len()];
            answers.entry(seq, &entry(&newer), &newer, true);
            answers.entry(seq, &Entry { kind: EntryKind::Discard, extent, crc: 0 }, &[], false);
        }
        if seq % 5 > 0 {
            answers.sealed(seq, &stamp, seq % 2 == 0);
        }
        uncovered += u64::from(answers.awaited(seq) == seq);
        // Before the mark, only records that were released meanwhile are gone.
        for state in shared.states.borrow().iter() {
            let left = found_in(state);
            assert_eq!(left, published[published.len() - left.len()..], "{seq}");
            cuts += 1;
        }
        answers.publish();
        published = found_in(&shared.bytes());
        assert!(answers.awaited(seq) == seq || published.last().is_some_and(|(last, _)| *last == seq));
        sector = if seq % 2 == 0 { log.superblock.segment_start(0) } else { sector + 64 };
    }
    assert!(cuts > 10_000 && (5..50).contains(&uncovered), "{cuts} cuts, {uncovered} not covered");
}

#[test]
fn memory_that_is_not_whole_or_not_of_this_log_is_refused() {
    let mut log = Log::new(4, 512);
    let found_walked = walked(&mut log);
    let (shared, memory) = Shared::of(7, 4096);
    log.superblock.memory = Some(MemoryMark::new(7).in_use(&[3; 16], false));
    let mut answers = Answers::new(memory, [3; 16], &log.superblock, 7).unwrap();
    answers.begin(1, log.superblock.segment_start(0), &stamp(&log), true);
    let payload = sector_of(8, 1);
    let entry =
        Entry { kind: EntryKind::Data, extent: Extent::new(Lba(8), 1), crc: crc32c::crc32c(&payload) };
    answers.entry(1, &entry, &payload, false);
    answers.publish();
    let bytes = shared.bytes();
    let look = |bytes: &[u8], boot: u8, log: &Log| {
        found(bytes, [boot; 16], &log.superblock, &found_walked, Planted::default())
            .map(|records| records.len())
    };
    assert_eq!(look(&bytes, 3, &log), Ok(1));
    assert_eq!(look(&bytes, 4, &log), Err(Ignored::Boot));
    let used = HEAD_BYTES + 2 * FRAME_BYTES + payload.len();
    for at in 0..used {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        let result = look(&flipped, 3, &log);
        // The bytes between the marks say nothing; without a magic number there is nothing.
        let is_unused = (72..END_AT).contains(&at) || (END_AT + 8..HEAD_BYTES).contains(&at);
        assert!(result.is_err() || is_unused || result == Ok(0), "byte {at}: {result:?}");
    }
    for length in [0, 8, HEAD_BYTES - 1, HEAD_BYTES, used - 1] {
        assert_eq!(look(&bytes[..length], 3, &log), Err(Ignored::NotWhole), "{length} bytes");
    }
    let mut other = Log::new(4, 512);
    assert_eq!(look(&bytes, 3, &other), Ok(0), "the log names no memory");
    other.superblock.memory = Some(MemoryMark::new(8).in_use(&[3; 16], false));
    assert_eq!(look(&bytes, 3, &other), Err(Ignored::Copy));
    other.superblock.cache_uuid = [9; 16];
    assert_eq!(look(&bytes, 3, &other), Err(Ignored::Cache));
    log.superblock.data_sectors = 8;
    assert_eq!(look(&bytes, 3, &log), Err(Ignored::NotWhole), "a write past the end of the data disk");
}

fn outlives() -> LogCacheConfig {
    LogCacheConfig { outlives_server: true, ..quiet() }
}

fn start(disks: Disks, memory: &mut Shared, config: LogCacheConfig) -> Steps {
    Steps::start_with(disks, Some(memory), config).unwrap()
}

/// A server that has answered three writes, none of which is in the log.
fn answered(config: &LogCacheConfig, memory: &mut Shared) -> Steps {
    let disks = Steps::new(8, quiet()).disks;
    let mut steps = start(disks, memory, config.clone());
    steps.hold = Box::new(|port, io| port == LOG && io.modifies());
    for tag in 1..4 {
        let id = steps.write(4000, 8, tag);
        assert!(steps.is_ok(id), "memory has it");
        // Some records are sent, and none is overdue.
        steps.now += Nanos(config.delay_max.0 / 4);
        steps.wait(0);
    }
    steps
}

#[test]
fn rule_15_answered_writes_survive_the_server_without_waiting_for_the_log() {
    for promise in [Promise::Flush, Promise::Ordered] {
        let config = LogCacheConfig { promise, ..outlives() };
        let mut memory = Shared::default();
        let steps = answered(&config, &mut memory);
        assert!(steps.core.status(steps.now).memory_held_bytes > 0);
        // Killed twice: before it has taken anything in, and after.
        let (disks, mut left) = (steps.disks.clone(), memory.left());
        let mut next = start(disks, &mut left, config.clone());
        assert_eq!((next.read(4000), next.core.status(next.now).memory_taken > 0), (Some(3), true));
        let mut again = start(next.disks.clone(), &mut left, config.clone());
        assert_eq!((again.read(4000), again.core.status(again.now).memory_taken), (Some(3), 0));
        assert_eq!(again.core.status(again.now).memory_ignored, None);
        // A server that was killed before it came to replace the memory: the one before is found once more.
        let mut stays = Shared { bytes_max: Some(0), ..memory.left() };
        let next = start(steps.disks.clone(), &mut stays, config.clone());
        let mut torn = start(next.disks.clone(), &mut memory.left(), config.clone());
        assert_eq!((torn.read(4000), torn.core.status(torn.now).memory_ignored.clone()), (Some(3), None));
        let mut none = Steps::start(steps.disks.clone(), config).unwrap();
        assert_eq!(none.read(4000), Some(0), "without the memory they are lost");
    }
}

#[test]
fn memory_that_was_taken_in_is_removed_where_no_other_takes_its_place() {
    let mut memory = Shared::default();
    let steps = answered(&outlives(), &mut memory);
    for (promise, bytes_max) in [(Promise::Always, None), (Promise::Flush, Some(0))] {
        let config = LogCacheConfig { promise, ..outlives() };
        let mut left = Shared { bytes_max, ..memory.left() };
        let mut next = start(steps.disks.clone(), &mut left, config.clone());
        assert_eq!((next.read(4000), left.count()), (Some(3), 0));
        for _ in 0..2 {
            next = start(next.disks, &mut left, config.clone());
            assert_eq!(next.core.status(next.now).memory_ignored, None);
        }
        assert_eq!(next.read(4000), Some(3));
    }
}

/// A tool removes the memory only once the log has everything, and its superblock names no memory: a start without both is refused.
#[test]
fn rule_15_a_tool_that_is_killed_while_it_takes_memory_in_loses_nothing() {
    let mut memory = Shared::default();
    let steps = answered(&outlives(), &mut memory);
    for operations in 0.. {
        let (mut disks, mut left) = (steps.disks.clone(), memory.left());
        let take_in = |log: &mut Ram, left: &mut Shared, operations: u64| {
            log.operations_left = operations;
            let taken = take_in(log, left, true);
            log.operations_left = u64::MAX;
            taken.is_ok()
        };
        let first = take_in(&mut disks.0[LOG.0], &mut left, operations);
        assert_eq!(left.count() > 0, !first, "{operations}");
        let mut next = start(disks.clone(), &mut left.left(), outlives());
        assert_eq!(next.read(4000), Some(3), "{operations}");
        assert!(take_in(&mut disks.0[LOG.0], &mut left, u64::MAX) && left.count() == 0);
        let mut next = start(disks, &mut left, outlives());
        assert_eq!(next.read(4000), Some(3), "{operations}");
        if first {
            break;
        }
    }
}

/// A mounted file system would see its disk go back in time.
#[test]
fn rule_15_a_start_that_misses_what_a_client_may_rely_on_is_refused_until_that_is_accepted() {
    let refused = |steps: &Steps, memory: &Shared, config: LogCacheConfig| match Steps::start_with(
        steps.disks.clone(),
        Some(&mut memory.left()),
        config,
    ) {
        Err(LogError::MemoryMissed(why)) => Some(why),
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    };
    let accepts = || LogCacheConfig { accept_damage: true, ..outlives() };
    for outlives_server in [true, false] {
        let config = LogCacheConfig { outlives_server, ..quiet() };
        let mut memory = Shared::default();
        let steps = answered(&config, &mut memory);
        let why = outlives_server.then_some(Ignored::Gone);
        assert_eq!(refused(&steps, &Shared::default(), config.clone()), why, "only where a client goes on");
        assert_eq!(refused(&steps, &Shared::default(), accepts()), None);
        assert_eq!(
            refused(&steps, &Shared { boot: 1, ..Shared::default() }, config.clone()),
            None,
            "a reboot"
        );
        let torn = memory.left();
        torn.memories.borrow_mut().values_mut().for_each(|memory| memory[HEAD_BYTES] ^= 1);
        assert_eq!(refused(&steps, &torn, config.clone()), outlives_server.then_some(Ignored::NotWhole));
        let mut without = memory.left();
        without.memories.borrow_mut().clear();
        let mut lost = start(steps.disks.clone(), &mut without, accepts());
        assert!(lost.core.status(lost.now).memory_ignored.is_some_and(|why| why.contains("gone")));
        let why = Some(Ignored::Gone);
        assert_eq!(
            refused(&lost, &memory, config.clone()),
            why,
            "that of the activation before is no substitute"
        );
        // No memory is missed where none can be made, and after a clean stop.
        let mut none = Steps::new(8, config.clone());
        none.write(4000, 8, 1);
        assert_eq!(refused(&none, &Shared::default(), config.clone()), None);
        lost.control(Control::Stop);
        assert_eq!(refused(&lost, &Shared::default(), config), None);
    }
}

#[test]
fn rule_15_what_memory_cannot_hold_is_answered_when_it_is_written() {
    let mut memory = Shared { bytes_max: Some(HEAD_BYTES + 6 * 1024), ..Shared::default() };
    let disks = Steps::new(8, quiet()).disks;
    let mut steps = start(disks, &mut memory, outlives());
    steps.hold = Box::new(|port, io| port == LOG && io.modifies());
    let first = steps.write(4000, 8, 1);
    let second = steps.write(4008, 8, 2);
    assert!(steps.is_ok(first));
    assert_eq!(steps.status(second), None, "the memory is full");
    let mut killed = start(steps.disks.clone(), &mut memory.left(), outlives());
    assert_eq!((killed.read(4000), killed.read(4008)), (Some(1), Some(0)));
    steps.let_go();
    assert!(steps.is_ok(second));
    steps.hold = Box::new(|port, io| port == LOG && io.modifies());
    let third = steps.write(4016, 8, 3);
    assert!(steps.is_ok(third), "the log has the others, so there is room");
    let mut killed = start(steps.disks.clone(), &mut memory.left(), outlives());
    assert_eq!([4000, 4008, 4016].map(|at| killed.read(at)), [Some(1), Some(2), Some(3)]);
}

/// A request that has no space as a whole leaves no part, although its first line had space.
#[test]
fn rule_15_memory_keeps_a_request_as_a_whole_or_not_at_all() {
    let config = LogCacheConfig { promise: Promise::Ordered, ..outlives() };
    let mut memory = Shared { bytes_max: Some(HEAD_BYTES + 6 * 1024), ..Shared::default() };
    let mut steps = start(Steps::new(8, quiet()).disks, &mut memory, config.clone());
    steps.hold = Box::new(|port, io| port == LOG && io.modifies());
    let small = steps.write(4000, 1, 1);
    let covered = steps.core.log.last_seq();
    let large = steps.write(4008, 24, 2);
    assert_eq!(steps.core.log.last_seq(), covered + 1, "a later record never joins a part of this one");
    let next = steps.write(4080, 16, 3);
    assert!(steps.is_ok(small));
    assert_eq!((steps.status(large), steps.status(next)), (None, None));
    let mut killed = start(steps.disks.clone(), &mut memory.left(), config);
    assert_eq!([4000, 4008, 4080, 4088].map(|at| killed.read(at)), [Some(1), Some(0), Some(0), Some(0)]);
}

#[test]
fn rule_15_memory_of_another_boot_or_activation_is_not_taken_in() {
    let mut memory = Shared::default();
    let steps = answered(&outlives(), &mut memory);
    let mut left = Shared { boot: 1, ..memory.left() };
    let mut other_boot = start(steps.disks.clone(), &mut left, outlives());
    assert_eq!(other_boot.read(4000), Some(0));
    assert!(
        other_boot.core.status(other_boot.now).memory_ignored.is_some_and(|why| why.contains("earlier boot"))
    );
    // Another machine served the log meanwhile.
    let mut elsewhere = Steps::start(steps.disks.clone(), outlives()).unwrap();
    elsewhere.write(4000, 8, 9);
    let mut back = start(elsewhere.disks.clone(), &mut memory.left(), outlives());
    assert_eq!(back.read(4000), Some(9));
}

#[test]
fn a_clean_stop_leaves_no_memory_and_a_promise_that_needs_none_makes_none() {
    let mut memory = Shared::default();
    let mut steps = answered(&outlives(), &mut memory);
    steps.let_go();
    assert_eq!(memory.count(), 1);
    steps.control(Control::Stop);
    assert_eq!(memory.count(), 0);
    let always = LogCacheConfig { promise: Promise::Always, ..outlives() };
    let mut none = Shared::default();
    let steps = start(steps.disks, &mut none, always);
    assert!(none.count() == 0 && steps.core.status(steps.now).memory_bytes == 0);
}

/// Two copies of one cache have the same UUID, and count the same activations and records.
#[test]
fn rule_15_memory_of_a_copy_is_neither_taken_nor_replaced() {
    let write = |steps: &mut Steps, at, tag| {
        steps.hold = Box::new(|port, io| port == LOG && io.modifies());
        let id = steps.write(at, 8, tag);
        assert!(steps.is_ok(id), "memory has it");
    };
    let stopped = Steps::new(8, quiet()).disks;
    let mut memory = Shared::default();
    // Both are killed.
    let mut original = start(stopped.clone(), &mut memory, outlives());
    write(&mut original, 4000, 1);
    let mut copy = start(stopped.clone(), &mut memory, outlives());
    write(&mut copy, 4000, 2);
    assert_eq!(memory.count(), 2);
    let mut again = start(original.disks.clone(), &mut memory, outlives());
    assert_eq!((again.read(4000), memory.count()), (Some(1), 2));
    assert_eq!(start(copy.disks.clone(), &mut memory.left(), outlives()).read(4000), Some(2));
    // The original has stopped, and its flushed records have the numbers of those that the copy answers next.
    again.control(Control::Stop);
    let mut copy = start(stopped.clone(), &mut memory, outlives());
    for tag in 3..6 {
        write(&mut copy, 4000, tag);
    }
    let mut original = start(again.disks.clone(), &mut memory, outlives());
    assert_eq!(original.read(4000), Some(1));
}

/// A server of an older program gave its memory no number, and was killed.
#[test]
fn memory_of_an_older_program_is_taken_in_once() {
    let mut memory = Shared::default();
    let mut steps = Steps::new(8, quiet());
    let mut superblock = steps.core.log.superblock().clone();
    let bytes = Answers::bytes_for(steps.core.log.buffers_bytes());
    let mark = MemoryMark::new(0).in_use(&memory.boot(), true);
    let answers =
        Answers::new(memory.make(&superblock.cache_uuid, 0, bytes).unwrap(), [0; 16], &superblock, 0);
    let mut device = PortDevice { ports: &mut steps.disks, port: LOG };
    steps.core.log.remember(answers.unwrap(), mark, &mut device).unwrap();
    superblock = steps.core.log.superblock().clone();
    assert_eq!(superblock.memory, Some(mark));
    steps.hold = Box::new(|port, io| port == LOG && io.modifies());
    steps.write(4000, 8, 3);
    assert_eq!(memory.memories.borrow().keys().copied().collect::<Vec<_>>(), [0]);
    let mut next = start(steps.disks.clone(), &mut memory, outlives());
    assert_eq!(next.read(4000), Some(3));
    assert_eq!(memory.memories.borrow().keys().copied().collect::<Vec<_>>(), [1]);
}
