//! Jobs against a file in memory: any mix of unaligned changes, completed in any order, ends as if done one by one.

use dcd_engine::ErrorKind;
use proptest::prelude::*;

use super::*;

const FILE_BYTES: usize = 16 * 512;

/// A stack that finishes its commands in any order, except that overlapping ones keep theirs.
struct Disk {
    bytes: Vec<u8>,
    pending: Vec<(u64, Io)>,
}

impl Disk {
    fn new() -> Disk {
        Disk { bytes: (0..FILE_BYTES).map(|at| (at % 251) as u8).collect(), pending: Vec::new() }
    }

    /// Finishes one of the commands that may be finished now.
    fn finish(&mut self, choice: usize) -> Option<(u64, IoResult)> {
        let overlaps = |a: &Io, b: &Io| match (a.extent(), b.extent()) {
            (Some(a), Some(b)) => a.overlaps(b),
            _ => false,
        };
        let ready: Vec<usize> = (0..self.pending.len())
            .filter(|at| !self.pending[..*at].iter().any(|(_, older)| overlaps(older, &self.pending[*at].1)))
            .collect();
        let chosen = ready.get(choice % ready.len().max(1))?;
        let (token, io) = self.pending.remove(*chosen);
        Some((token, self.run(io)))
    }

    fn run(&mut self, mut io: Io) -> IoResult {
        if let Some(extent) = io.extent() {
            assert!(extent.sectors > 0, "an empty command: {io:?}");
            let range = extent.start.bytes() as usize..extent.end().bytes() as usize;
            match &mut io {
                Io::Read { buf, .. } => buf.bytes_mut().copy_from_slice(&self.bytes[range]),
                Io::Write { buf, .. } => self.bytes[range].copy_from_slice(buf.bytes()),
                _ => self.bytes[range].fill(0),
            }
        }
        IoResult::ok(io.take_buf())
    }
}

fn write(block: u32, offset: usize, len: usize, value: u8) -> ByteIo {
    let mut placed = Placed::covering(u64::from(block), offset as u64, len, Durability::Volatile);
    placed.buf.bytes_mut()[placed.data.clone()].fill(value);
    ByteIo::Write(placed)
}

/// Finishes everything; returns the waiters in the order in which they were answered.
fn finish_all(jobs: &mut Jobs<u32>, disk: &mut Disk) -> Vec<u32> {
    let mut answered = Vec::new();
    loop {
        disk.pending.append(&mut jobs.out);
        let Some((token, result)) = disk.finish(0) else { return answered };
        answered.extend(jobs.complete(token, result).map(|done| done.waiter));
    }
}

#[test]
fn whole_blocks_pass_through_as_they_are() {
    let mut jobs = Jobs::new(512);
    jobs.submit(write(512, 512, 1024, 1), 1);
    jobs.submit(write(512, 512, 1024, 2), 2);
    jobs.submit(ByteIo::Flush, 3);
    jobs.submit(ByteIo::Zero { offset: 0, len: 512, discard: true, unmap: true }, 4);
    let names: Vec<&str> = jobs.out.iter().map(|(_, io)| io.name()).collect();
    assert_eq!(names, ["write", "write", "flush", "discard"]);
    assert_eq!(finish_all(&mut jobs, &mut Disk::new()).len(), 4);
}

#[test]
fn a_partial_write_reads_only_the_blocks_at_its_ends() {
    let mut jobs = Jobs::new(512);
    jobs.submit(write(512, 100, 2000, 9), 1);
    let reads: Vec<_> = jobs.out.iter().map(|(_, io)| (io.name(), io.extent().unwrap())).collect();
    assert_eq!(reads, [("read", Extent::new(Lba(0), 1)), ("read", Extent::new(Lba(4), 1))]);
    let mut disk = Disk::new();
    let before = disk.bytes.clone();
    assert_eq!(finish_all(&mut jobs, &mut disk), [1]);
    assert_eq!(disk.bytes[..100], before[..100]);
    assert_eq!(disk.bytes[100..2100], [9; 2000]);
    assert_eq!(disk.bytes[2100..], before[2100..]);
}

#[test]
fn a_partial_write_and_what_overlaps_it_go_one_by_one_in_their_order() {
    let mut jobs = Jobs::new(512);
    jobs.submit(write(512, 0, 512, 1), 1);
    jobs.submit(write(512, 10, 10, 2), 2);
    jobs.submit(write(512, 0, 512, 3), 3);
    jobs.submit(write(512, 512, 512, 4), 4);
    let starts: Vec<u64> = jobs.out.iter().map(|(_, io)| io.extent().unwrap().start.0).collect();
    assert_eq!(starts, [0, 1], "the first and the one beside it");
    assert_eq!(finish_all(&mut jobs, &mut Disk::new()), [1, 4, 2, 3]);
    assert_eq!((jobs.patching, jobs.waiting.len(), jobs.jobs.len(), jobs.parts.len()), (0, 0, 0, 0));
}

#[test]
fn a_failed_read_changes_nothing_and_frees_the_lock() {
    let mut jobs = Jobs::new(512);
    jobs.submit(write(512, 10, 10, 2), 1);
    jobs.submit(write(512, 20, 10, 2), 2);
    let (token, io) = jobs.out.pop().unwrap();
    let done = jobs.complete(token, IoResult::err(io.take_buf(), IoError::new(ErrorKind::Medium))).unwrap();
    assert_eq!((done.waiter, done.result.status.unwrap_err().kind), (1, ErrorKind::Medium));
    assert_eq!(jobs.out.len(), 1, "the next one begins");
    assert_eq!(finish_all(&mut jobs, &mut Disk::new()), [2]);
}

#[test]
fn an_error_of_one_part_is_the_error_of_the_job() {
    let mut jobs = Jobs::new(512);
    jobs.submit(ByteIo::Zero { offset: 100, len: 2000, discard: false, unmap: false }, 1);
    let mut disk = Disk::new();
    for (token, io) in std::mem::take(&mut jobs.out) {
        assert!(jobs.complete(token, disk.run(io)).is_none());
    }
    assert_eq!(jobs.out.len(), 3, "both ends and the middle");
    let mut done = None;
    for (token, io) in std::mem::take(&mut jobs.out) {
        let failed = io.name() == "write-zeroes";
        let result = if failed {
            IoResult::err(Buf::none(), IoError::new(ErrorKind::NoSpace))
        } else {
            IoResult::ok(Buf::none())
        };
        done = jobs.complete(token, result).or(done);
    }
    assert_eq!(done.unwrap().result.status.unwrap_err().kind, ErrorKind::NoSpace);
}

#[derive(Clone, Debug)]
enum Op {
    Write { offset: usize, len: usize, value: u8 },
    Zero { offset: usize, len: usize, discard: bool },
    Read { offset: usize, len: usize },
    Flush,
    Finish(usize),
}

fn op() -> impl Strategy<Value = Op> {
    // Lengths that are often whole blocks, so that both kinds meet.
    let range = || {
        (0..FILE_BYTES, 1..3000usize, any::<bool>()).prop_map(|(offset, len, whole)| {
            let round = |at: usize| if whole { at / 512 * 512 } else { at };
            let offset = round(offset);
            (offset, round(len).max(if whole { 512 } else { 1 }).min(FILE_BYTES - offset))
        })
    };
    prop_oneof![
        4 => (range(), any::<u8>()).prop_map(|((offset, len), value)| Op::Write { offset, len, value }),
        2 => (range(), any::<bool>()).prop_map(|((offset, len), discard)| Op::Zero { offset, len, discard }),
        1 => range().prop_map(|(offset, len)| Op::Read { offset, len }),
        1 => Just(Op::Flush),
        6 => any::<usize>().prop_map(Op::Finish),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_order_ends_as_one_by_one(block in prop_oneof![Just(512u32), Just(4096)], ops in prop::collection::vec(op(), 1..60)) {
        let mut jobs = Jobs::new(block);
        let mut disk = Disk::new();
        let mut expected = disk.bytes.clone();
        let (mut submitted, mut answered) = (0, 0);
        for op in ops {
            submitted += 1;
            match op {
                Op::Write { offset, len, value } => {
                    expected[offset..offset + len].fill(value);
                    jobs.submit(write(block, offset, len, value), 0);
                }
                Op::Zero { offset, len, discard } => {
                    expected[offset..offset + len].fill(0);
                    let (offset, len) = (offset as u64, len as u64);
                    jobs.submit(ByteIo::Zero { offset, len, discard, unmap: true }, 0);
                }
                Op::Read { offset, len } => jobs.submit(ByteIo::Read { offset: offset as u64, len }, 0),
                Op::Flush => jobs.submit(ByteIo::Flush, 0),
                Op::Finish(choice) => {
                    submitted -= 1;
                    if let Some((token, result)) = disk.finish(choice) {
                        answered += usize::from(jobs.complete(token, result).is_some());
                    }
                }
            }
            disk.pending.append(&mut jobs.out);
        }
        answered += finish_all(&mut jobs, &mut disk).len();
        prop_assert_eq!(answered, submitted);
        prop_assert!(disk.bytes == expected);
        prop_assert_eq!((jobs.patching, jobs.waiting.len(), jobs.jobs.len(), jobs.parts.len()), (0, 0, 0, 0));
    }
}
