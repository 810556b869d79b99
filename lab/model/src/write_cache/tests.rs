//! The write cache step by step: what it sends to the disk, and when.

use dcd_engine::destage::what::WhatPolicy;
use dcd_engine::destage::when::WhenPolicy;
use dcd_engine::{Buf, Command, Durability, Extent, Io, IoError, Lba, OpId, Ports, Request, RequestId};

use super::*;

/// Two sectors a region, eight regions; the cache has four blocks unless said.
const SECTORS: u64 = 16;

struct Below(u64);

impl Ports for Below {
    fn geometry(&self, _port: Port) -> Geometry {
        Geometry::plain(self.0)
    }

    fn run(&mut self, _port: Port, _io: Io) -> IoResult {
        unreachable!("a write cache reads nothing to start")
    }
}

/// A command that was sent, and its subject.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sent {
    Read(u64, u64),
    Write(u64, u64),
    Flush,
    Zeroes(u64, u64),
    Answer(u64, bool),
}

struct Bench {
    cache: WriteCache,
    now: Nanos,
    /// The commands below that have not been answered.
    open: Vec<(OpId, Sent)>,
    requests: u64,
    reports: Vec<Report>,
}

impl Bench {
    fn with_arm(config: WriteCacheConfig, arm: Option<Box<dyn Arm>>) -> Bench {
        Bench::with_maps(config, vec![DiskMap { regions: Regions::uniform(SECTORS, 2), arm }])
    }

    fn with_maps(config: WriteCacheConfig, maps: Vec<DiskMap>) -> Bench {
        let sectors = maps[0].regions.sectors();
        let mut cache = WriteCache::new(config, maps);
        cache.activate(&mut Below(sectors)).expect("active");
        Bench { cache, now: Nanos::ZERO, open: Vec::new(), requests: 0, reports: Vec::new() }
    }

    fn new(config: WriteCacheConfig) -> Bench {
        Bench::with_arm(config, None)
    }

    fn handle(&mut self, event: Event) -> Vec<Sent> {
        let mut cx = Cx::default();
        self.cache.handle(event, cx.at(self.now));
        self.cache.check();
        let mut all = Vec::new();
        for command in cx.commands {
            let sent = match command {
                Command::Submit { op, io, .. } => {
                    let extent = io.extent().unwrap_or(Extent::new(Lba(0), 0));
                    let sent = match io {
                        Io::Read { .. } => Sent::Read(extent.start.0, extent.sectors),
                        Io::Write { durability, .. } => {
                            assert_eq!(
                                durability,
                                Durability::Durable,
                                "what is purged is safe when it returns"
                            );
                            Sent::Write(extent.start.0, extent.sectors)
                        }
                        Io::Flush => Sent::Flush,
                        Io::WriteZeroes { .. } => Sent::Zeroes(extent.start.0, extent.sectors),
                        _ => unreachable!("these tests send no others"),
                    };
                    self.open.push((op, sent.clone()));
                    sent
                }
                Command::Reply { id, result } => Sent::Answer(id.0, result.status.is_ok()),
                Command::Report(report) => {
                    self.reports.push(report);
                    continue;
                }
            };
            all.push(sent);
        }
        self.cache.check_progress(self.now, !self.open.is_empty());
        all
    }

    /// The clock moves to the time that the layer has asked for, and nowhere else.
    fn wait(&mut self) -> Vec<Sent> {
        self.now = self.now.max(self.cache.next_deadline().expect("it has asked for an alarm"));
        self.handle(Event::Wake)
    }

    fn control(&mut self, control: Control) -> Vec<Sent> {
        self.handle(Event::Control(control))
    }

    fn fail(&mut self) -> Vec<Sent> {
        self.returns(Err(IoError::new(ErrorKind::Medium)))
    }

    fn ask(&mut self, io: Io) -> Vec<Sent> {
        self.requests += 1;
        self.handle(Event::Request(Request { id: RequestId(self.requests), disk: 0, io }))
    }

    fn write(&mut self, at: u64) -> Vec<Sent> {
        self.ask(Io::Write { at: Lba(at), buf: Buf::blank(512), durability: Durability::Volatile })
    }

    fn read(&mut self, at: u64) -> Vec<Sent> {
        self.ask(Io::Read { at: Lba(at), buf: Buf::blank(512) })
    }

    /// The oldest open command returns.
    fn returns(&mut self, status: Result<(), IoError>) -> Vec<Sent> {
        let (op, sent) = self.open.remove(0);
        let len = match sent {
            Sent::Read(_, sectors) | Sent::Write(_, sectors) => sectors as usize * 512,
            _ => 0,
        };
        self.handle(Event::Completed { op, result: IoResult { buf: Buf::blank(len), status } })
    }

    fn done(&mut self) -> Vec<Sent> {
        self.returns(Ok(()))
    }
}

fn small(write_blocks: u64) -> WriteCacheConfig {
    WriteCacheConfig {
        non_volatile: true,
        write_bytes: write_blocks * 512,
        read_bytes: 4 * 512,
        high_mark: 75,
        low_mark: 25,
        ..WriteCacheConfig::default()
    }
}

#[test]
fn the_region_with_the_most_dirty_blocks_is_purged_until_the_low_mark() {
    let mut bench = Bench::new(small(8));
    for (request, at) in [(1, 0), (2, 4), (3, 5), (4, 8), (5, 12), (6, 13)] {
        assert_eq!(bench.write(at), [Sent::Answer(request, true)], "6 of 8 are not above 75 %");
    }
    assert_eq!(bench.write(6), [Sent::Answer(7, true), Sent::Write(4, 2)]);
    assert_eq!(bench.done(), [Sent::Write(12, 2)], "the other pair");
    let mut last = bench.done();
    assert_eq!(last.len(), 1, "3 of 8 are still above 25 %");
    last = bench.done();
    assert_eq!(last, [], "2 of 8 are not");
    let metrics = bench.cache.metrics();
    assert_eq!((metrics.purges, metrics.purged_blocks, metrics.purges_of_several_writes), (3, 5, 2));
}

#[test]
fn one_threshold_stops_where_it_started() {
    let mut bench = Bench::new(WriteCacheConfig { when: WhenPolicy::OneThreshold, ..small(4) });
    (0..3).for_each(|at| drop(bench.write(at * 2)));
    assert_eq!(bench.write(6).len(), 2, "4 of 4 are above 75 %");
    assert_eq!(bench.done(), []);
}

#[test]
fn disks_that_share_a_cache_purge_what_is_the_most_dirty_of_all() {
    let map = || DiskMap { regions: Regions::uniform(SECTORS, 2), arm: None };
    let mut bench = Bench::with_maps(WriteCacheConfig { low_mark: 40, ..small(8) }, vec![map(), map()]);
    // Single blocks on the first disk, two pairs on the second.
    for at in [0, 4, SECTORS + 2, SECTORS + 3, SECTORS + 6, SECTORS + 7] {
        bench.write(at);
    }
    let sent = bench.write(SECTORS + 10);
    assert_eq!(sent, [Sent::Answer(7, true), Sent::Write(2, 2)], "the first disk has nothing that is due");
    assert_eq!(bench.done(), [Sent::Write(6, 2)]);
    assert_eq!(bench.done(), [], "3 of 8 are not above 40 %");
    assert_eq!(bench.cache.per_disk[0].purges, 0);
}

#[test]
fn disks_that_share_a_cache_purge_at_the_same_time_what_both_have_to() {
    let map = || DiskMap { regions: Regions::uniform(SECTORS, 2), arm: None };
    let mut bench = Bench::with_maps(small(8), vec![map(), map()]);
    for at in [4, 5, 0, SECTORS + 2, SECTORS + 3, SECTORS + 6] {
        bench.write(at);
    }
    assert_eq!(bench.write(SECTORS + 10), [Sent::Answer(7, true), Sent::Write(4, 2), Sent::Write(2, 2)]);
}

#[test]
fn stow_destages_the_longer_queue_and_then_the_other() {
    let mut bench = Bench::new(WriteCacheConfig { what: WhatPolicy::Stow, ..small(8) });
    for at in [0, 1, 4, 5, 9, 13] {
        bench.write(at);
    }
    let sent = bench.write(15);
    assert_eq!(sent, [Sent::Answer(7, true), Sent::Write(4, 2)], "4 of 7 are sequential; the sweep goes up");
    assert_eq!(bench.done(), [Sent::Write(0, 2)], "and round");
    assert_eq!(bench.done(), [Sent::Write(9, 1)], "then the random ones in their order");
    assert_eq!(bench.done(), []);
}

#[test]
fn to_fill_a_region_is_no_second_chance_for_it() {
    let mut pool = Pool::new(4);
    let region = RegionId { disk: 0, number: 0 };
    let slots = [0, 1].map(|number| pool.insert(BlockId { disk: 0, number }).expect("there is room"));
    slots.iter().for_each(|&slot| pool.write(slot, region, 1));
    let known = |pool: &Pool| {
        pool.regions().next().map(|region| (region.referenced, region.run_longest)).expect("it is dirty")
    };
    assert_eq!(known(&pool), (false, 2));
    pool.write(slots[0], region, 2);
    assert_eq!(known(&pool), (true, 2), "but to write a block of it again is");
}

#[test]
fn a_purge_waits_for_reads_and_a_write_without_room_takes_its_turn() {
    let mut bench = Bench::new(WriteCacheConfig { high_mark: 100, ..small(2) });
    assert_eq!(bench.read(15), [Sent::Read(15, 1)]);
    bench.write(0);
    bench.write(2);
    assert_eq!(bench.write(4), [], "no room, and the disk is busy");
    assert_eq!(bench.read(14), []);
    bench.now += Nanos(1000);
    assert_eq!(
        bench.done(),
        [Sent::Answer(1, true), Sent::Write(2, 1)],
        "the purge came before the second read"
    );
    bench.now += Nanos(1000);
    assert_eq!(bench.done(), [Sent::Answer(4, true), Sent::Read(14, 1)]);
    let metrics = bench.cache.metrics();
    assert_eq!((metrics.immediate_purges, metrics.stalls), (1, 2));
    assert!(metrics.read_queueing > metrics.read_queueing_behind_writes);
    assert!(metrics.read_queueing_behind_writes > Nanos::ZERO);
}

#[test]
fn clean_blocks_stay_readable() {
    let mut bench = Bench::new(WriteCacheConfig { when: WhenPolicy::Asap, ..small(4) });
    assert_eq!(bench.write(3), [Sent::Answer(1, true), Sent::Write(3, 1)]);
    bench.done();
    assert_eq!(bench.read(3), [Sent::Answer(2, true)]);
    assert_eq!(bench.cache.metrics().blocks_hit_in_write_cache, 1);
}

#[test]
fn a_block_written_while_it_is_purged_is_purged_again() {
    let mut bench = Bench::new(WriteCacheConfig { when: WhenPolicy::Asap, ..small(4) });
    bench.write(3);
    assert_eq!(bench.write(3), [Sent::Answer(2, true)]);
    assert_eq!(bench.done(), [Sent::Write(3, 1)], "the newer content");
    assert_eq!(bench.done(), []);
    assert_eq!(bench.cache.metrics().dirty_blocks_overwritten, 1);
}

#[test]
fn a_failed_purge_keeps_its_blocks_and_is_tried_again_later() {
    let mut bench = Bench::new(WriteCacheConfig { when: WhenPolicy::Asap, ..small(4) });
    bench.write(3);
    assert_eq!(bench.returns(Err(IoError::new(ErrorKind::Medium))), [], "not at once");
    assert_eq!(bench.wait(), [Sent::Write(3, 1)]);
    assert_eq!(bench.cache.metrics().errors, 1);
}

#[test]
fn a_region_that_cannot_be_written_keeps_no_other_dirty_and_fails_the_flush() {
    let config = WriteCacheConfig { non_volatile: false, when: WhenPolicy::WhenFull, ..small(8) };
    let mut bench = Bench::new(config);
    bench.write(0);
    bench.write(4);
    assert_eq!(bench.ask(Io::Flush), [Sent::Write(0, 1)]);
    assert_eq!(bench.fail(), [Sent::Write(4, 1)], "the other region is purged meanwhile");
    assert_eq!(bench.done(), [Sent::Answer(3, false)], "all that is left is what cannot be written");
    assert_eq!(bench.ask(Io::Flush), [Sent::Answer(4, false)], "it is still dirty, and rests");
    assert_eq!(bench.wait(), []);
    assert_eq!(bench.ask(Io::Flush), [Sent::Write(0, 1)], "then it is tried again");
    assert_eq!(bench.done(), [Sent::Flush]);
    assert_eq!(bench.done(), [Sent::Answer(5, true)]);
    assert_eq!(bench.cache.shares[0].writes.dirty(), 0);
}

#[test]
fn a_drain_tells_what_cannot_be_written_and_a_stop_goes_on_trying() {
    let config = WriteCacheConfig { when: WhenPolicy::WhenFull, ..small(8) };
    let mut bench = Bench::new(config);
    bench.write(0);
    bench.write(4);
    assert_eq!(bench.control(Control::Drain), [Sent::Write(0, 1)]);
    bench.fail();
    bench.done();
    assert_eq!(bench.reports, [Report::Failed(IoError::new(ErrorKind::Medium).into())]);
    bench.wait();
    assert_eq!(bench.control(Control::Stop), [Sent::Write(0, 1)]);
    for _ in 0..3 {
        assert_eq!(bench.fail(), []);
        assert_eq!(bench.wait(), [Sent::Write(0, 1)], "it is all that is left of the data");
    }
    bench.done();
    while !bench.open.is_empty() {
        bench.done();
    }
    assert_eq!(bench.reports.last(), Some(&Report::Stopped));
}

#[test]
fn a_stop_goes_on_after_a_flush_that_needs_no_more_commands() {
    let config = WriteCacheConfig { non_volatile: false, when: WhenPolicy::WhenFull, ..small(8) };
    let mut bench = Bench::new(config);
    bench.write(0);
    bench.ask(Io::Flush);
    bench.done();
    bench.done();
    bench.write(0);
    assert_eq!(bench.ask(Io::Flush), [Sent::Write(0, 1)]);
    bench.control(Control::Stop);
    assert_eq!(bench.done(), [Sent::Answer(4, true)]);
    assert_eq!(bench.reports, [Report::Stopped]);
}

#[test]
fn writes_without_room_go_on_where_one_region_cannot_be_written() {
    for single in [false, true] {
        let config = WriteCacheConfig { single, when: WhenPolicy::WhenFull, ..small(2) };
        let mut bench = Bench::new(config);
        bench.write(0);
        bench.write(4);
        let first = bench.write(8);
        assert_eq!(first.len(), 1, "there is no room");
        let second = bench.fail();
        assert!(second.len() == 1 && second != first, "{second:?} after {first:?}: the other one");
        bench.fail();
        assert_eq!(bench.open, [], "both rest");
        assert_eq!(bench.wait().len(), 1, "and are tried again without any request");
        assert_eq!(bench.done().first(), Some(&Sent::Answer(3, true)), "single: {single}");
    }
}

#[test]
fn a_disk_of_which_many_regions_fail_is_left_alone() {
    let sectors = 2 * 200;
    let map = DiskMap { regions: Regions::uniform(sectors, 2), arm: None };
    let config = WriteCacheConfig { when: WhenPolicy::WhenFull, ..small(200) };
    let mut bench = Bench::with_maps(config, vec![map]);
    (0..200).for_each(|region| drop(bench.write(2 * region)));
    bench.control(Control::Drain);
    let mut tried = 0;
    while !bench.open.is_empty() {
        bench.fail();
        tried += 1;
    }
    assert_eq!(tried, super::disk::RESTING_MAX);
    assert_eq!(bench.reports, [Report::Failed(IoError::new(ErrorKind::Medium).into())]);
    assert_eq!(bench.wait(), []);
    bench.control(Control::Stop);
    assert!(!bench.open.is_empty(), "it is tried again");
}

/// Whatever fails, and whatever the policy is: what waits has something in flight or an alarm, and once the disks work again a stop ends
/// with everything on them.
#[test]
fn nothing_waits_for_ever_whatever_fails() {
    let mut state = 1u64;
    let mut below = move |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let whens = [
        WhenPolicy::Idle,
        WhenPolicy::HighLow,
        WhenPolicy::OneThreshold,
        WhenPolicy::TwoThresholds,
        WhenPolicy::Asap,
        WhenPolicy::WhenFull,
        WhenPolicy::Linear,
    ];
    for run in 0..400 {
        let config = WriteCacheConfig {
            non_volatile: below(2) == 0,
            single: below(2) == 0,
            partitioned: below(2) == 0,
            when: whens[below(whens.len() as u64) as usize],
            what: WhatPolicy::ALL[below(WhatPolicy::ALL.len() as u64) as usize],
            piggyback: if below(2) == 0 { Piggyback::None } else { Piggyback::Full },
            depth: 1 + below(3) as u32,
            ..small(2 + below(8))
        };
        let map = || DiskMap { regions: Regions::uniform(SECTORS, 2), arm: None };
        let mut bench = Bench::with_maps(config, vec![map(), map()]);
        for _ in 0..200 {
            let at = Lba(below(2 * SECTORS));
            let sectors = (1 + below(4)).min(2 * SECTORS - at.0);
            let buf = Buf::blank(512 * sectors as usize);
            match below(12) {
                0..4 => drop(bench.ask(Io::Write { at, buf, durability: Durability::Volatile })),
                4 => drop(bench.ask(Io::Write { at, buf, durability: Durability::Durable })),
                5 => drop(bench.ask(Io::Flush)),
                6 => drop(bench.ask(Io::Read { at, buf })),
                7 => {
                    let (extent, durability) = (Extent::new(at, sectors), Durability::Volatile);
                    drop(bench.ask(Io::WriteZeroes { extent, unmap: false, durability }));
                }
                8 if bench.cache.next_deadline().is_some() => drop(bench.wait()),
                _ if bench.open.is_empty() => {}
                _ => {
                    let open = below(bench.open.len() as u64) as usize;
                    bench.open.swap(0, open);
                    let fails = below(3) == 0;
                    drop(if fails { bench.fail() } else { bench.done() });
                }
            }
        }
        bench.control(Control::Stop);
        for step in 0.. {
            assert!(step < 2000, "run {run} does not end");
            match bench.open.is_empty() {
                false => drop(bench.done()),
                true if !bench.cache.has_work(bench.now) => break,
                true => drop(bench.wait()),
            }
        }
        assert!(bench.cache.shares.iter().all(|share| share.writes.dirty() == 0), "run {run}");
    }
}

#[test]
fn a_request_over_two_disks_is_counted_once() {
    let map = || DiskMap { regions: Regions::uniform(SECTORS, 2), arm: None };
    let mut bench = Bench::with_maps(small(8), vec![map(), map()]);
    bench.ask(Io::Write { at: Lba(SECTORS - 1), buf: Buf::blank(1024), durability: Durability::Volatile });
    bench.ask(Io::Read { at: Lba(SECTORS - 1), buf: Buf::blank(1024) });
    let counted =
        |metrics: &Metrics| (metrics.writes, metrics.blocks_written, metrics.reads, metrics.blocks_read);
    assert_eq!(counted(bench.cache.metrics()), (1, 2, 1, 2));
    assert!(bench.cache.per_disk.iter().all(|metrics| counted(metrics) == (1, 1, 1, 1)), "half on each");
}

#[test]
fn volatile_ram_is_purged_before_a_flush_returns() {
    let mut bench = Bench::new(WriteCacheConfig { non_volatile: false, ..small(4) });
    bench.write(3);
    assert_eq!(bench.ask(Io::Flush), [Sent::Write(3, 1)]);
    assert_eq!(
        bench.done(),
        [Sent::Flush],
        "a server before this one may have left something in the disk's cache"
    );
    assert_eq!(bench.done(), [Sent::Answer(2, true)]);
    bench.write(3);
    assert_eq!(bench.ask(Io::Flush), [Sent::Write(3, 1)]);
    assert_eq!(bench.done(), [Sent::Answer(4, true)], "purges are durable by themselves");
}

#[test]
fn a_read_takes_the_dirty_blocks_of_its_region_along() {
    let mut bench = Bench::new(WriteCacheConfig { piggyback: Piggyback::Full, ..small(4) });
    bench.write(4);
    bench.write(8);
    assert_eq!(bench.read(5), [Sent::Read(5, 1), Sent::Write(4, 1)]);
    bench.done();
    bench.done();
    assert_eq!(bench.cache.metrics().piggyback_success(), 100.0);
    assert_eq!(bench.cache.metrics().writes_with_caching(), 0.0, "no write of its own");
}

/// A sector passes in 10 ns, 2 of them in a revolution of 20: the head is at sector `at / 10 % 2` of each region.
struct Turning;

impl Arm for Turning {
    fn on_track(&self, now: Nanos, _to: Lba, _write: bool) -> Nanos {
        Nanos(now.0 / 20 * 20)
    }

    fn pass(&self, at: Nanos, extent: Extent) -> (Nanos, Nanos) {
        let begins = at + Nanos((extent.start.0 % 2) * 10);
        (begins, begins + Nanos(extent.sectors * 10))
    }

    fn switch(&self, _from: Lba, _to: Lba) -> Nanos {
        Nanos::ZERO
    }

    fn moved(&mut self, _to: Lba) {}
}

#[test]
fn free_piggybacking_takes_what_passes_before_the_read() {
    let config = WriteCacheConfig { piggyback: Piggyback::Free, ..small(4) };
    let mut bench = Bench::with_arm(config, Some(Box::new(Turning)));
    bench.write(4);
    assert_eq!(bench.read(5), [Sent::Write(4, 1), Sent::Read(5, 1)], "sector 4 passes first");
    bench.done();
    bench.done();
    bench.write(9);
    assert_eq!(bench.read(8), [Sent::Read(8, 1)], "sector 9 passes after the read");
}

#[test]
fn a_single_cache_purges_what_an_eviction_passed_over() {
    let config = WriteCacheConfig { single: true, high_mark: 100, what: WhatPolicy::MostDirty, ..small(3) };
    let mut bench = Bench::new(config);
    bench.write(0);
    bench.write(6);
    bench.read(10);
    bench.done();
    assert_eq!(bench.read(12), [Sent::Read(12, 1)]);
    assert_eq!(
        bench.done(),
        [Sent::Answer(4, true), Sent::Write(0, 1)],
        "block 10 was clean and gave its place; block 0 is older, and a target"
    );
    assert_eq!(bench.done(), [Sent::Write(6, 1)], "so was block 6");
    bench.done();
    assert_eq!(bench.read(0).len(), 1, "both are still there");
    assert_eq!(bench.read(6).len(), 1);
}

#[test]
fn dynamic_marks_follow_the_share_of_writes() {
    let config = WriteCacheConfig { single: true, dynamic_interval: 4, ..small(4) };
    let mut bench = Bench::new(config);
    bench.write(0);
    bench.write(0);
    bench.write(0);
    bench.read(0);
    let status = bench.cache.status(bench.now).to_json();
    assert_eq!(
        (status["high_mark"].as_f64(), status["low_mark"].as_f64()),
        (Some(0.75), Some(0.75 * DYNAMIC_LOW))
    );
}

#[test]
fn without_a_write_cache_writes_go_through() {
    let mut bench = Bench::new(small(0));
    bench.requests = 10;
    let sent = bench.ask(Io::Write { at: Lba(3), buf: Buf::blank(512), durability: Durability::Durable });
    assert_eq!(sent, [Sent::Write(3, 1)]);
    assert_eq!(bench.done(), [Sent::Answer(11, true)]);
    assert_eq!(bench.cache.metrics().writes_with_caching(), 100.0);
}
