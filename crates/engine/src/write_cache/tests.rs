//! The write cache step by step: what it sends to the disk, and when.

use crate::destage::what::WhatPolicy;
use crate::destage::when::WhenPolicy;
use crate::layer::{Command, Durability, Io, IoError, OpId, Ports, Request, RequestId};
use crate::{Buf, Extent, Lba};

use super::*;

/// Two sectors a region, eight regions; the cache has four blocks unless said.
const SECTORS: u64 = 16;

struct Below;

impl Ports for Below {
    fn geometry(&self, _port: Port) -> Geometry {
        Geometry::plain(SECTORS)
    }

    fn run(&mut self, _port: Port, _io: Io) -> IoResult {
        unreachable!("a write cache reads nothing to start")
    }
}

/// What was sent: the command, and what it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sent {
    Read(u64, u64),
    Write(u64, u64),
    Flush,
    Answer(u64, bool),
}

struct Bench {
    cache: WriteCache,
    now: Nanos,
    /// The commands below that have not been answered.
    open: Vec<(OpId, Sent)>,
    requests: u64,
}

impl Bench {
    fn with_arm(config: WriteCacheConfig, arm: Option<Box<dyn Arm>>) -> Bench {
        Bench::with_maps(config, vec![DiskMap { regions: Regions::uniform(SECTORS, 2), arm }])
    }

    fn with_maps(config: WriteCacheConfig, maps: Vec<DiskMap>) -> Bench {
        let mut cache = WriteCache::new(config, maps);
        cache.activate(&mut Below).expect("active");
        Bench { cache, now: Nanos::ZERO, open: Vec::new(), requests: 0 }
    }

    fn new(config: WriteCacheConfig) -> Bench {
        Bench::with_arm(config, None)
    }

    fn handle(&mut self, event: Event) -> Vec<Sent> {
        let mut out = Outbox::default();
        self.now += Nanos(1000);
        self.cache.handle(self.now, event, &mut out);
        self.cache.check();
        let mut all = Vec::new();
        for command in out.commands {
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
                        _ => unreachable!("these tests send no others"),
                    };
                    self.open.push((op, sent.clone()));
                    sent
                }
                Command::Reply { id, result } => Sent::Answer(id.0, result.status.is_ok()),
                Command::Report(_) => continue,
            };
            all.push(sent);
        }
        all
    }

    fn ask(&mut self, io: Io) -> Vec<Sent> {
        self.requests += 1;
        self.handle(Event::Request(Request { id: RequestId(self.requests), io }))
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
    assert_eq!(
        bench.done(),
        [Sent::Answer(1, true), Sent::Write(2, 1)],
        "the purge came before the second read"
    );
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
    let again = bench.cache.next_deadline().expect("it will be tried again");
    bench.now = again;
    assert_eq!(bench.handle(Event::Wake), [Sent::Write(3, 1)]);
    assert_eq!(bench.cache.metrics().errors, 1);
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
