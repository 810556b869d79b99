//! The write-intent bitmap, the time of rest, and a journal that fails.

use super::*;
use crate::raid::bitmap::Bitmap;

/// Four regions of one stripe each.
fn regions_of_a_stripe(journal: bool) -> RaidConfig {
    RaidConfig { region_bytes: 1, journal, ..config(Level::Raid5, 4) }
}

fn marked(members: &Members, port: usize) -> Vec<u64> {
    let (superblock, _) = ArraySuperblock::read(&mut Memory(members.0[port].0.clone())).expect("it has one");
    superblock.in_doubt.iter().collect()
}

/// Lets it rest for so many seconds, wake by wake.
fn wait(bench: &mut Bench, seconds: u64) {
    let until = bench.now + Nanos::from_secs(seconds);
    while let Some(deadline) = bench.raid.next_deadline().filter(|deadline| *deadline <= until) {
        bench.now = bench.now.max(deadline);
        bench.handle(Event::Wake);
        bench.settle();
    }
    bench.now = until;
}

#[test]
fn a_bit_is_durable_with_every_member_before_its_region_is_written() {
    let mut bench = Bench::new(regions_of_a_stripe(false));
    for stripe in [2, 0] {
        bench.write(48 * stripe, 1, 1);
        bench.ask(Io::Flush);
        while !bench
            .open
            .iter()
            .any(|(.., io)| io.extent().is_some_and(|e| e.start.0 >= DATA_SECTOR) && io.modifies())
        {
            assert!(bench.returns(), "it never writes");
        }
        for port in 0..4 {
            assert!(marked(&bench.members, port).contains(&stripe), "port {port}, stripe {stripe}");
        }
        bench.settle();
    }
    assert_eq!(marked(&bench.members, 3), [0, 2], "and no other is");
}

#[test]
fn after_a_crash_the_parity_of_marked_regions_is_computed_anew_and_of_no_others() {
    let mut bench = Bench::new(regions_of_a_stripe(false));
    bench.write(48 * 2, 1, 1);
    bench.flush().expect("flushed");
    let mut bench = Bench::start(regions_of_a_stripe(false), bench.members).expect("all members are there");
    let status = bench.raid.status(Nanos::ZERO).to_json();
    assert_eq!((&status["state"], &status["regions_in_doubt"]), (&"resyncing".into(), &1.into()));
    bench.sent();
    bench.wait_for(Nanos::ZERO);
    bench.settle();
    assert_eq!(bench.raid.status(Nanos::ZERO).to_json()["state"], "good");
    let rows: Vec<bool> = bench.sent().iter().map(|sent| sent.contains(" 32+")).collect();
    assert!(!rows.is_empty() && rows.iter().all(|row| *row), "stripe 2 begins with row 32");
    bench.check_parity();
}

#[test]
fn a_resync_flushes_the_members_before_the_superblocks_say_that_the_parity_is_right() {
    let mut bench = Bench::new(regions_of_a_stripe(false));
    bench.write(48 * 2, 1, 1);
    bench.flush().expect("flushed");
    // The parity fits, but what a killed server has written may be in the members' caches and nowhere else.
    let mut bench = Bench::start(regions_of_a_stripe(false), bench.members).expect("all members are there");
    bench.wait_for(Nanos::ZERO);
    let mut flushed = vec![false; bench.members.0.len()];
    while !bench.raid.array().recorder.recorded().in_doubt.is_empty() {
        for (.., io) in &bench.open {
            let Io::Write { at, buf, .. } = io else { continue };
            assert!(at.0 < DATA_SECTOR, "nothing has to be written");
            let (superblock, _) = ArraySuperblock::decode(buf.bytes(), 0).expect("whole");
            assert!(!superblock.in_doubt.is_empty() || flushed.iter().all(|flushed| *flushed), "{flushed:?}");
        }
        if let Some((port, _, Io::Flush)) = bench.open.front() {
            flushed[port.0] = true;
        }
        assert!(bench.returns(), "it never comes to its end");
    }
}

#[test]
fn at_rest_the_superblocks_say_so_and_a_crash_leaves_nothing_in_doubt() {
    for journal in [false, true] {
        let mut bench = Bench::new(regions_of_a_stripe(journal));
        bench.write(0, 1, 1);
        bench.flush().expect("flushed");
        wait(&mut bench, 4);
        assert!(bench.raid.array().recorder.recorded().active, "not yet");
        wait(&mut bench, 3);
        let recorded = bench.raid.array().recorder.recorded().clone();
        assert!(!recorded.active && recorded.in_doubt.is_empty());
        assert!(bench.raid.next_deadline().is_none(), "it sleeps");
        let epoch = recorded.epoch;
        bench.write(0, 1, 2);
        bench.flush().expect("flushed");
        assert_eq!(bench.raid.array().recorder.recorded().epoch, epoch + 1);
        wait(&mut bench, 7);
        let bench = Bench::start(regions_of_a_stripe(journal), bench.members).expect("active");
        assert_eq!(bench.raid.status(Nanos::ZERO).to_json()["state"], "good");
    }
}

#[test]
fn regions_at_rest_are_cleared_while_others_are_written() {
    let mut bench = Bench::new(regions_of_a_stripe(false));
    bench.write(0, 1, 1);
    bench.flush().expect("flushed");
    for round in 0..8 {
        wait(&mut bench, 2);
        bench.write(48, 1, round);
        bench.flush().expect("flushed");
    }
    assert_eq!(marked(&bench.members, 0), [1]);
}

#[test]
fn what_is_not_written_does_not_make_an_idle_array_active() {
    let mut bench = Bench::new(regions_of_a_stripe(false));
    bench.read(0, 48).expect("read");
    wait(&mut bench, 60);
    assert_eq!(bench.raid.statistics().superblocks, 0);
}

/// While a region is in doubt, nothing is computed of its parity; elsewhere all is as ever.
#[test]
fn a_member_that_fails_before_the_parity_is_right_leaves_errors_and_no_wrong_data() {
    let mut bench = Bench::new(regions_of_a_stripe(false));
    for block in 0..4 * 48 {
        bench.write(block, 1, 7);
    }
    bench.flush().expect("flushed");
    wait(&mut bench, 7);
    bench.write(48, 1, 8);
    bench.flush().expect("flushed");
    let mut bench = Bench::start(regions_of_a_stripe(false), bench.members).expect("active");
    assert_eq!(bench.raid.array().recorder.in_doubt().iter().collect::<Vec<_>>(), [1]);
    // Member 0 has D1 of stripe 1, and D0 of stripe 0.
    bench.dead.push(0);
    bench.write(1, 1, 9);
    bench.flush().expect("the parity makes up for it");
    assert_eq!(bench.read(0, 1).expect("computed"), [7; BLOCK]);
    let error = bench.read(48 + 16, 1).map(drop).expect_err("its parity is in doubt");
    assert_eq!(error.kind, ErrorKind::Medium);
    assert_eq!(bench.read(48, 1).expect("its member is there"), [8; BLOCK]);
    assert_ne!(bench.raid.status(Nanos::ZERO).to_json()["state"], "broken");
}

#[test]
fn a_journal_that_fails_is_recorded_before_the_next_write_and_the_bitmap_takes_its_place() {
    let config = regions_of_a_stripe(true);
    let mut bench = Bench::new(config.clone());
    bench.write(0, 1, 1);
    bench.flush().expect("flushed");
    assert_eq!(marked(&bench.members, 0), Vec::<u64>::new(), "with a journal no bits are needed");
    bench.dead.push(4);
    bench.write(48 * 3, 1, 2);
    bench.write(48, 1, 2);
    bench.flush().expect("it goes on without");
    let (superblock, _) =
        ArraySuperblock::read(&mut Memory(bench.members.0[2].0.clone())).expect("it has one");
    assert!(superblock.active && !superblock.journaled);
    assert_eq!(superblock.in_doubt.iter().collect::<Vec<_>>(), [1, 3]);
    let status = bench.raid.status(Nanos::ZERO).to_json();
    assert_eq!((&status["state"], &status["journal"]), (&"good".into(), &false.into()));
    assert_eq!(bench.notes(), [ArrayNote::JournalFailed { required: false }]);
    bench.check_parity();
    // It comes back as it was, and is not replayed.
    bench.write(0, 1, 5);
    bench.flush().expect("flushed");
    let mut bench = Bench::start(config, bench.members).expect("active");
    assert_eq!(bench.raid.array().recorder.in_doubt().len(), 3);
    assert_eq!(bench.read(0, 1).expect("read"), [5; BLOCK]);
}

/// Members of which the journal is dead.
struct WithoutJournal(Members);

impl Ports for WithoutJournal {
    fn geometry(&self, port: Port) -> Geometry {
        self.0.geometry(port)
    }

    fn run(&mut self, port: Port, io: Io) -> IoResult {
        match port.0 {
            4 => IoResult::err(io.take_buf(), IoError::new(ErrorKind::Medium)),
            _ => self.0.run(port, io),
        }
    }
}

#[test]
fn a_journal_that_cannot_be_read_is_refused_only_where_it_is_needed() {
    let config = regions_of_a_stripe(true);
    let required = RaidConfig { journal_required: true, ..config.clone() };
    let starts = |stops: bool, config: &RaidConfig| {
        let mut bench = Bench::new(config.clone());
        bench.write(0, 1, 1);
        bench.flush().expect("flushed");
        if stops {
            bench.stop();
        }
        let mut raid = RaidLayer::new(config.clone());
        match raid.activate(&mut WithoutJournal(bench.members)) {
            Ok(()) => raid.status(Nanos::ZERO).to_json()["journal_failed"] == true,
            Err(error) => match error.downcast_ref() {
                Some(AssembleError::Journal { what: "reading", .. }) => false,
                _ => panic!("{error}"),
            },
        }
    };
    assert!(starts(true, &config), "nothing is in it that counts");
    assert!(!starts(false, &config), "it knows what was under way");
    assert!(!starts(true, &required), "the user wants one");
}

#[test]
fn where_the_user_wants_it_a_journal_that_fails_stops_writes() {
    let mut bench = Bench::new(RaidConfig { journal_required: true, ..regions_of_a_stripe(true) });
    bench.write(0, 1, 1);
    bench.flush().expect("flushed");
    bench.dead.push(4);
    bench.write(48, 1, 2);
    bench.flush().expect_err("nothing is written without a journal");
    assert_eq!(bench.raid.status(Nanos::ZERO).to_json()["state"], "broken");
    assert_eq!(bench.read(0, 1).expect("read"), [1; BLOCK]);
}

#[test]
fn a_new_array_is_in_doubt_everywhere_and_goes_on_where_it_was() {
    let config = regions_of_a_stripe(false);
    let mut bench = Bench::over(config.clone(), false);
    assert_eq!(bench.raid.array().recorder.in_doubt(), &Bitmap::full(4));
    bench.wait_for(Nanos::ZERO);
    while bench.raid.array().recorder.recorded().in_doubt.len() > 2 {
        bench.wait_for(Nanos::from_secs(1));
        assert!(bench.returns(), "it resyncs");
    }
    let bench = Bench::start(config, bench.members).expect("active");
    assert!(bench.raid.array().recorder.in_doubt().len() <= 2);
}

#[test]
fn all_that_is_dirty_is_marked_by_one_superblock() {
    // The first superblock of an activation marks nothing. A flush destages all of it; dirty data in non-volatile RAM may stay there, and
    // is marked when it leaves.
    for (flushes, non_volatile, superblocks) in [(true, false, 2), (false, false, 2), (false, true, 4)] {
        let one_by_one = RaidConfig { destage_depth: 1, flush_depth: 1, ..regions_of_a_stripe(false) };
        let mut bench = Bench::new(RaidConfig { when: WhenPolicy::Idle, non_volatile, ..one_by_one });
        for stripe in [0, 1, 3] {
            bench.write(48 * stripe, 1, 1);
        }
        assert!(marked(&bench.members, 0).is_empty(), "nothing is written yet");
        match flushes {
            true => bench.flush().expect("flushed"),
            false => {
                bench.wait_for(Nanos::from_secs(2));
                while !bench.raid.array().stripes.cache.dirty().is_empty() {
                    assert!(bench.returns(), "it destages dirty blocks");
                }
            }
        }
        assert_eq!(bench.raid.statistics().superblocks, superblocks, "{flushes} {non_volatile}");
        assert_eq!(marked(&bench.members, 0), [0, 1, 3]);
    }
}

/// The answer to a flush leaves the array without requests. What was written meanwhile is destaged when its time comes.
#[test]
fn what_is_written_during_a_flush_is_destaged_when_nobody_asks_for_anything() {
    let mut bench = Bench::new(RaidConfig { when: WhenPolicy::Idle, ..config(Level::Raid5, 4) });
    bench.write(0, 1, 1);
    let flush = bench.ask(Io::Flush);
    bench.write(48, 1, 2);
    bench.settle();
    bench.answer(flush).status.expect("flushed");
    wait(&mut bench, 2);
    assert!(bench.raid.array().stripes.cache.dirty().is_empty());
}
