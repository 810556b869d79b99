use dcd_engine::{Command, Lba, SECTOR_BYTES};

use std::collections::BTreeSet;

use super::*;
use crate::md_queue::QUEUE;

const STRIP: u64 = 128 << 10;
const STRIP_PAGES: u64 = STRIP / LINE_BYTES;

struct Members;

impl Ports for Members {
    fn geometry(&self, _port: Port) -> Geometry {
        Geometry::plain(1 << 22)
    }

    fn run(&mut self, _port: Port, _io: Io) -> IoResult {
        unreachable!("md reads nothing at its start")
    }
}

/// md of five members with so many heads, and what it sent and answered.
struct Bench {
    md: Md,
    now: Nanos,
    /// Commands that are not completed: which one, its member, and whether it writes.
    sent: VecDeque<(OpId, usize, bool)>,
    answered: Vec<u64>,
}

impl Bench {
    fn new(heads: u64) -> Bench {
        let mut md = Md::new(5, STRIP, heads * 5 * LINE_BYTES);
        md.activate(&mut Members).unwrap();
        Bench { md, now: Nanos::ZERO, sent: VecDeque::new(), answered: Vec::new() }
    }

    fn event(&mut self, event: Event) {
        let mut out = Outbox::default();
        self.md.handle(self.now, event, &mut out);
        self.md.check();
        for command in out.commands {
            match command {
                Command::Submit { port, op, io } => self.sent.push_back((op, port.0, io.modifies())),
                Command::Reply { id, .. } => self.answered.push(id.0),
                Command::Report(_) => {}
            }
        }
    }

    /// Writes a page of the array, or reads it.
    fn page(&mut self, id: u64, page: u64, writes: bool) {
        let (at, buf) = (Lba(page * LINE_SECTORS), Buf::blank(LINE_BYTES as usize));
        let io = match writes {
            true => Io::Write { at, buf, durability: Durability::Volatile },
            false => Io::Read { at, buf },
        };
        self.event(Event::Request(Request { id: RequestId(id), io }));
    }

    fn wait(&mut self) {
        self.now = self.md.next_deadline().expect("it is plugged");
        self.event(Event::Wake);
    }

    /// Ends the command that was sent first.
    fn end_one(&mut self) {
        let (op, _, _) = self.sent.pop_front().expect("something is under way");
        self.event(Event::Completed { op, result: IoResult::ok(Buf::blank(LINE_BYTES as usize)) });
    }

    fn end_all(&mut self) {
        (0..self.sent.len()).for_each(|_| self.end_one());
    }

    /// How many reads and writes are under way.
    fn under_way(&self) -> (usize, usize) {
        let writes = self.sent.iter().filter(|(_, _, writes)| *writes).count();
        (self.sent.len() - writes, writes)
    }
}

/// The page in the same row of another column of the first stripe.
const fn in_column(column: u64) -> u64 {
    column * STRIP_PAGES
}

#[test]
fn a_whole_group_is_written_at_once_and_answered_when_all_of_it_is_there() {
    let mut bench = Bench::new(64);
    (0..3).for_each(|column| bench.page(column, in_column(column), true));
    assert_eq!(bench.under_way(), (0, 0), "it waits for the rest");
    bench.page(3, in_column(3), true);
    assert_eq!(bench.under_way(), (0, 5));
    let members: BTreeSet<usize> = bench.sent.iter().map(|(_, member, _)| *member).collect();
    assert_eq!(members.len(), 5);
    (0..4).for_each(|_| bench.end_one());
    assert!(bench.answered.is_empty());
    bench.end_one();
    assert_eq!(bench.answered, [0, 1, 2, 3]);
}

#[test]
fn a_page_is_delayed_and_then_read_with_the_parity_before_both_are_written() {
    let mut bench = Bench::new(64);
    bench.page(1, 0, true);
    assert_eq!(bench.under_way(), (0, 0));
    bench.wait();
    assert_eq!((bench.now, bench.under_way()), (UNPLUG_DELAY, (2, 0)));
    bench.end_all();
    assert_eq!(bench.under_way(), (0, 2));
    bench.end_one();
    assert!(bench.answered.is_empty(), "the parity is not there yet");
    bench.end_one();
    assert_eq!(bench.answered, [1]);
    bench.page(2, 0, true);
    assert_eq!(bench.under_way(), (0, 2), "nothing has to be read again");
    bench.end_all();
    bench.page(3, 0, false);
    assert_eq!((bench.under_way(), bench.answered.clone()), ((0, 0), vec![1, 2, 3]));
}

#[test]
fn three_pages_of_four_need_one_read() {
    let mut bench = Bench::new(64);
    (0..3).for_each(|column| bench.page(column, in_column(column), true));
    bench.wait();
    assert_eq!(bench.under_way(), (1, 0));
    bench.end_all();
    assert_eq!(bench.under_way(), (0, 4));
}

#[test]
fn heads_that_come_later_wait_until_those_that_read_begin_to_write() {
    let mut bench = Bench::new(64);
    bench.page(1, 0, true);
    bench.wait();
    bench.page(2, 1, true);
    bench.wait();
    assert_eq!(bench.under_way(), (2, 0), "the first one still reads");
    bench.end_all();
    assert_eq!(bench.under_way(), (2, 2), "now it is the second one's turn");
    bench.end_all();
    bench.end_all();
    assert_eq!(bench.answered, [1, 2]);
}

#[test]
fn a_read_does_not_wait_and_unplugs_the_device() {
    let mut bench = Bench::new(64);
    bench.page(1, 0, true);
    bench.page(2, 5, false);
    assert_eq!(bench.under_way(), (3, 0));
    assert_eq!(bench.md.next_deadline(), None);
}

#[test]
fn without_a_free_head_a_request_waits_until_a_quarter_of_them_is_free() {
    let mut bench = Bench::new(16);
    (0..17).for_each(|page| bench.page(page, page, true));
    bench.wait();
    assert_eq!(bench.under_way(), (32, 0));
    bench.end_all();
    assert_eq!(bench.under_way(), (0, 32));
    while bench.answered.len() < 4 {
        bench.end_one();
    }
    assert_eq!(bench.md.headless.len(), 1, "twelve of sixteen are used");
    while bench.answered.len() < 5 {
        bench.end_one();
    }
    assert!(bench.md.headless.is_empty());
    while !bench.sent.is_empty() || bench.md.next_deadline().is_some() {
        if bench.sent.is_empty() { bench.wait() } else { bench.end_one() }
    }
    assert_eq!(bench.answered.len(), 17);
}

#[test]
fn the_thread_waits_where_a_queue_is_full_and_neighbours_are_one_request() {
    let mut bench = Bench::new(1024);
    // Every second row of the first stripes, in the column of the first member.
    let stripe = 4 * STRIP_PAGES;
    (0..200).for_each(|n| bench.page(n, n / 16 * 5 * stripe + n % 16 * 2, true));
    bench.wait();
    let reads = bench.under_way().0;
    assert_eq!(reads, 2 * QUEUE);
    bench.end_one();
    assert_eq!(bench.under_way().0, reads, "one went, and the next one came");
    let mut bench = Bench::new(1024);
    (0..200).for_each(|n| bench.page(n, n / 32 * 5 * stripe + n % 32, true));
    bench.wait();
    assert_eq!(bench.under_way().0, 400);
}

#[test]
fn what_is_not_a_whole_page_is_read_first() {
    let mut bench = Bench::new(64);
    let io =
        Io::Write { at: Lba(1), buf: Buf::blank(SECTOR_BYTES as usize), durability: Durability::Volatile };
    bench.event(Event::Request(Request { id: RequestId(1), io }));
    assert_eq!(bench.under_way(), (1, 0), "and that without delay");
    bench.wait();
    bench.end_all();
    bench.end_all();
    bench.end_all();
    assert_eq!(bench.answered, [1]);
}
