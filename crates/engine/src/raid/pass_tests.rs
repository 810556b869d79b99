//! Passes over an array, step by step: what they find, what they write, and who waits for them.

use super::*;
use crate::raid::status::Findings;

/// Blocks of a stripe on one member.
const ROWS: u64 = STRIP / 8;

/// Windows of a single stripe, one at a time.
fn small_windows(level: Level, members: usize) -> RaidConfig {
    RaidConfig { pass_bytes: 1, ..config(level, members) }
}

pub(super) fn byte_of(block: u64) -> u8 {
    (block % 251) as u8 + 1
}

impl Bench {
    pub(super) fn array(&mut self) -> &mut Array {
        self.raid.array.as_mut().expect("it is active")
    }

    /// An array with something of its own in every block, and nothing in the cache.
    pub(super) fn filled(config: RaidConfig) -> Bench {
        let mut bench = Bench::new(config.clone());
        for block in 0..bench.array().layout.sectors() / 8 {
            bench.write(block, 1, byte_of(block));
        }
        bench.flush().expect("flushed");
        bench.stop();
        Bench::start(config, bench.members).expect("active")
    }

    pub(super) fn check_data(&mut self) {
        for block in 0..self.array().layout.sectors() / 8 {
            assert_eq!(self.read(block, 1).expect("read"), [byte_of(block); BLOCK], "block {block}");
        }
    }

    /// Everything returns, and time goes on, until no pass does.
    pub(super) fn rest(&mut self) {
        for _ in 0..10_000 {
            self.wait_for(Nanos::ZERO);
            self.settle();
            let deadline = self.raid.next_deadline();
            let Some(deadline) = deadline.filter(|_| self.array().passes.is_running()) else { return };
            self.now = self.now.max(deadline);
        }
        panic!("it never rests: {}", self.status());
    }

    fn begin_scrub(&mut self, repair: bool) {
        self.tell(ArrayCommand::Scrub { repair }).expect("it is whole");
    }

    pub(super) fn notes(&self) -> Vec<ArrayNote> {
        let status = self.raid.status(self.now);
        let array = status.get::<ArrayStatus>().expect("it is an array");
        array.notes.clone()
    }

    pub(super) fn status(&self) -> serde_json::Value {
        self.raid.status(self.now).to_json()
    }

    /// Sends an administrator's command and returns the answer.
    pub(super) fn tell(&mut self, command: ArrayCommand) -> Result<(), CommandError> {
        self.handle(Event::Control(Control::Array(command)));
        match self.reports.pop() {
            Some(crate::Report::Array(answer)) => answer,
            other => panic!("no answer but {other:?}"),
        }
    }

    pub(super) fn scrub(&mut self, repair: bool) -> Findings {
        self.begin_scrub(repair);
        self.rest();
        self.array().passes.last_scrub.expect("it has come to its end")
    }

    /// A block on its member.
    fn block(&mut self, unit: u64, row: usize, column: usize) -> &mut [u8] {
        let layout = self.array().layout;
        let at = layout.member_lba(unit, row).bytes() as usize;
        &mut self.members.0[layout.member(unit, column)].0[at..at + BLOCK]
    }
}

#[test]
fn a_scrub_counts_rows_that_do_not_fit_and_writes_their_parity_if_told_to() {
    for (unit, row, column) in [(2, 3, 1), (3, 0, 3)] {
        let mut bench = Bench::filled(config(Level::Raid5, 4));
        assert_eq!(bench.scrub(false), Findings::default());
        bench.block(unit, row, column)[77] ^= 0x10;
        bench.sent.clear();
        let found = Findings { mismatches: 1, ..Findings::default() };
        assert_eq!(bench.scrub(false), found);
        assert!(bench.sent().iter().all(|command| command.starts_with('r')), "it only reads");
        assert_eq!(bench.scrub(true), Findings { repaired: 1, unlocated: 1, ..found });
        bench.check_parity();
        assert_eq!(bench.scrub(false), Findings::default());
    }
}

#[test]
fn raid_6_repairs_the_one_block_that_is_wrong() {
    // Each of the columns: data, P and Q.
    for column in 0..5 {
        let mut bench = Bench::filled(config(Level::Raid6, 5));
        let right = bench.block(1, 5, column).to_vec();
        bench.block(1, 5, column)[100] ^= 0xff;
        bench.block(1, 5, column)[4000] ^= 0x01;
        bench.sent.clear();
        assert_eq!(bench.scrub(true), Findings { mismatches: 1, repaired: 1, ..Findings::default() });
        assert_eq!(bench.block(1, 5, column), right, "column {column}");
        assert_eq!(bench.sent().iter().filter(|command| command.starts_with('w')).count(), 1);
        bench.check_data();
    }
}

#[test]
fn where_nothing_says_which_block_is_wrong_the_parity_is_written() {
    let mut bench = Bench::filled(config(Level::Raid6, 5));
    bench.block(1, 5, 0)[100] ^= 0xff;
    bench.block(1, 5, 2)[200] ^= 0xff;
    let found = Findings { mismatches: 1, repaired: 2, unlocated: 1, ..Findings::default() };
    assert_eq!(bench.scrub(true), found);
    bench.check_parity();
}

#[test]
fn a_scrub_computes_what_cannot_be_read_and_writes_it() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        for repair in [false, true] {
            let mut bench = Bench::filled(config(level, members));
            bench.bad_reads =
                (0..members).map(|role| (role, Lba(DATA_SECTOR + 8 * (role as u64 + 3) + 1))).collect();
            let count = members as u64;
            let found = Findings { unreadable: count, repaired: count, ..Findings::default() };
            assert_eq!(bench.scrub(repair), found);
            assert!(bench.bad_reads.is_empty());
            assert_eq!(bench.raid.statistics().sectors_repaired, count);
            let errors = bench.status()["read_errors"].clone();
            assert!(errors.as_array().unwrap().iter().all(|errors| errors.as_u64() > Some(0)), "{errors}");
            bench.check_parity();
            bench.check_data();
        }
    }
}

#[test]
fn more_bad_blocks_than_parity_makes_up_for_are_counted_and_left_alone() {
    let mut bench = Bench::filled(config(Level::Raid5, 4));
    let bad = vec![(0, Lba(DATA_SECTOR + 8)), (1, Lba(DATA_SECTOR + 8))];
    bench.bad_reads.clone_from(&bad);
    assert_eq!(bench.scrub(true), Findings { lost: 2, ..Findings::default() });
    assert_eq!(bench.bad_reads, bad);
}

#[test]
fn what_is_dirty_in_the_cache_is_no_mismatch_and_goes_home_afterwards() {
    let mut bench = Bench::filled(config(Level::Raid6, 5));
    for block in [0, 5, 50, 100] {
        bench.write(block, 1, 200);
    }
    assert_eq!(bench.scrub(true), Findings::default());
    assert!(!bench.array().stripes.cache.dirty().is_empty());
    bench.flush().expect("flushed");
    bench.check_parity();
    assert_eq!(bench.read(50, 1).expect("read"), [200; BLOCK]);
}

#[test]
fn a_scrub_is_stopped_and_goes_on_where_it_was() {
    let mut bench = Bench::filled(small_windows(Level::Raid5, 4));
    bench.block(0, 0, 0)[0] ^= 1;
    bench.block(3, 0, 0)[0] ^= 1;
    bench.sent.clear();
    bench.begin_scrub(false);
    bench.tell(ArrayCommand::ScrubStop).expect("one is running");
    bench.rest();
    assert_eq!(bench.sent(), ["r0 0+16", "r1 0+16", "r2 0+16", "r3 0+16"], "what had begun has ended");
    let status = bench.raid.status(bench.now).to_json();
    assert_eq!((&status["pass"]["paused"], &status["pass"]["percent"]), (&true.into(), &25.0.into()));
    assert_eq!(bench.array().passes.last_scrub, None);
    assert_eq!(bench.scrub(false).mismatches, 2);
    assert_eq!(bench.sent().len(), 3 * 4, "nothing is read twice");
    bench.tell(ArrayCommand::ScrubStop).expect_err("it is over");
    // One of another kind begins anew.
    bench.begin_scrub(false);
    bench.tell(ArrayCommand::ScrubStop).expect("one is running");
    bench.rest();
    let found = Findings { mismatches: 2, repaired: 2, unlocated: 2, ..Findings::default() };
    assert_eq!(bench.scrub(true), found);
}

#[test]
fn clients_wait_for_one_window_and_the_pass_for_the_rate() {
    let mut bench = Bench::filled(RaidConfig { pass_rate: STRIP * 512, ..small_windows(Level::Raid5, 4) });
    bench.write(0, 1, 99);
    bench.sent.clear();
    bench.answers.clear();
    bench.begin_scrub(false);
    assert_eq!(bench.open.len(), 4);
    let hit = bench.ask(Io::Read { at: Lba(0), buf: Buf::zeroed(BLOCK) });
    assert_eq!(bench.answer(hit).buf.bytes(), [99; BLOCK], "what the cache has is read at any time");
    let (miss, write) = (bench.ask(Io::Read { at: Lba(8), buf: Buf::zeroed(BLOCK) }), bench.write(2, 1, 98));
    let elsewhere = bench.write(3 * ROWS, 1, 97);
    bench.answer(elsewhere).status.expect("another stripe is free");
    assert!(bench.answers.is_empty() && bench.open.len() == 4, "they wait for the window");
    bench.settle();
    assert_eq!(bench.answer(miss).buf.bytes(), [byte_of(1); BLOCK]);
    bench.answer(write).status.expect("written");
    assert_eq!(bench.sent().len(), 4 + 1, "one window and one read");
    // At the rate that was set a window is due each second; without clients they follow each other at once.
    let began = bench.now;
    let next = bench.raid.next_deadline().expect("the pass goes on");
    assert!(next > began && next <= began + Nanos::from_millis(501), "when clients have gone: {next}");
    for _ in 0..3 {
        bench.read(40, 1).expect("read");
        bench.wait_for(Nanos::from_millis(300));
        assert!(bench.open.is_empty(), "not before its time");
    }
    bench.wait_for(Nanos::from_millis(101));
    assert_eq!(bench.open.len(), 4, "a pass is not starved");
    bench.wait_for(Nanos::from_millis(501));
    bench.rest();
    assert_eq!(bench.array().passes.last_scrub, Some(Findings::default()));
}

#[test]
fn a_window_waits_for_those_who_have_the_lock() {
    let mut bench = Bench::filled(small_windows(Level::Raid5, 4));
    let read = bench.ask(Io::Read { at: Lba(0), buf: Buf::zeroed(BLOCK) });
    bench.begin_scrub(false);
    assert_eq!(bench.open.len(), 1, "only the client's read");
    let later = bench.ask(Io::Read { at: Lba(16), buf: Buf::zeroed(BLOCK) });
    assert_eq!(bench.open.len(), 1, "a new one waits, so that the pass is not starved");
    bench.returns();
    bench.answer(read).status.expect("read");
    assert_eq!(bench.open.len(), 4, "the window");
    bench.settle();
    bench.answer(later).status.expect("read");
    let durable = Io::Write { at: Lba(0), buf: Buf::copy_of(&[9; BLOCK]), durability: Durability::Durable };
    bench.ask(durable);
    bench.rest();
    assert_eq!(bench.array().passes.last_scrub, Some(Findings::default()));
}

#[test]
fn a_stop_waits_for_the_windows_that_have_begun() {
    let mut bench = Bench::filled(small_windows(Level::Raid5, 4));
    bench.begin_scrub(true);
    bench.handle(Event::Control(crate::Control::Stop));
    assert!(bench.reports.is_empty());
    bench.rest();
    assert_eq!(bench.reports, [crate::Report::Stopped]);
}

#[test]
fn a_resync_writes_only_the_parity_that_is_wrong() {
    let mut bench = Bench::filled(config(Level::Raid6, 5));
    bench.write(0, 1, 1);
    bench.flush().expect("flushed");
    // A crash: what was under way is in doubt.
    bench.block(2, 7, 3)[1] ^= 2;
    bench.block(2, 8, 4)[1] ^= 2;
    bench.block(3, 0, 0)[1] ^= 2;
    let mut bench = Bench::start(config(Level::Raid6, 5), bench.members).expect("active");
    assert!(bench.raid.next_deadline().is_some(), "nobody has to ask for it");
    bench.wait_for(Nanos::ZERO);
    bench.rest();
    assert_eq!(bench.raid.status(bench.now).to_json()["state"], "good");
    let writes: Vec<String> = bench.sent().into_iter().filter(|command| command.starts_with('w')).collect();
    assert_eq!(writes, ["w1 48+1", "w2 39+2", "w2 48+1", "w3 39+2"], "P and Q of three rows");
    bench.check_parity();
}
