//! Delayed writes: when they are answered, when they are on the medium, what a power cut takes, and that nothing is mixed
//! up on the way.

use crate::disk_tests::common::{Bench, ROUND, activate, random};
use dcd_engine::{Buf, Durability, ErrorKind, Geometry, Io, Layer, Lba, Nanos};
use dcd_model::{Disk, DiskConfig, Drive, Scheduler, WriteCache};
use rand::Rng;

const ON_ARRIVAL: &str = "\n[write-back]\nkind = \"on-arrival\"\nsectors = 64\n";
const DEFERRED: &str =
    "\n[write-back]\nkind = \"deferred\"\nsectors = 64\nruns = 4\norder = \"lba\"\nidle-ms = 2.0\n";

fn drive(write_back: &str) -> Drive {
    // A hit costs 0.15 ms, a write to the medium 0.3 ms.
    let text =
        ROUND.replace("write = [0.3, 0.3]", "write-hit = [0.15, 0.15]\nwrite = [0.3, 0.3]") + write_back;
    Drive::parse(&text).expect("the drive of the tests is right")
}

fn bench(write_back: &str, write_cache: WriteCache) -> Bench {
    let drive = drive(write_back);
    let sectors = drive.sectors();
    let mut bench = Bench::new(drive.clone(), Scheduler::Fcfs);
    let config = DiskConfig { queue: Scheduler::Fcfs, write_cache, ..DiskConfig::default() };
    bench.disk = Disk::with_drive(drive, &config);
    activate(&mut bench.disk, Geometry { volatile_cache: false, ..Geometry::plain(sectors) }).unwrap();
    bench.with_memory()
}

fn write(byte: u8, lba: u64, sectors: usize, durability: Durability) -> Io {
    Io::Write { at: Lba(lba), buf: Buf::copy_of(&vec![byte; sectors * 512]), durability }
}

fn volatile(byte: u8, lba: u64, sectors: usize) -> Io {
    write(byte, lba, sectors, Durability::Volatile)
}

/// Returns what is on the medium at a sector.
fn below(bench: &Bench, lba: u64) -> u8 {
    bench.memory[lba as usize * 512]
}

fn read(bench: &mut Bench, lba: u64, sectors: usize) -> Vec<u8> {
    bench.timed(|bench| bench.send(Io::Read { at: Lba(lba), buf: Buf::zeroed(sectors * 512) }));
    let (_, _, result) = bench.replies.last().expect("it was answered");
    result.buf.bytes().iter().step_by(512).copied().collect()
}

/// A hit's overhead and the bus: 0.01 ms a sector.
fn hit(sectors: u64) -> Nanos {
    Nanos::from_micros(150 + 10 * sectors)
}

#[test]
fn a_delayed_write_is_answered_after_overhead_and_bus_and_is_on_the_medium_later() {
    for write_back in [ON_ARRIVAL, DEFERRED] {
        let mut bench = bench(write_back, WriteCache::On);
        assert!(bench.disk.geometry().volatile_cache);
        assert_eq!(bench.timed(|bench| bench.send(volatile(7, 5_000, 8))), hit(8));
        assert_eq!(below(&bench, 5_000), 0, "a power cut now would lose it");
        assert!(bench.disk.has_work(bench.now));
        assert_eq!(read(&mut bench, 4_998, 12), [0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0], "and a read finds it");
        bench.drain();
        assert_eq!((below(&bench, 5_000), below(&bench, 5_007)), (7, 7));
        assert!(!bench.disk.has_work(bench.now) && bench.disk.next_deadline().is_none());
    }
}

#[test]
fn a_write_that_must_be_durable_goes_through_unless_the_drive_ignores_it() {
    for write_back in [ON_ARRIVAL, DEFERRED] {
        let mut careful = bench(write_back, WriteCache::On);
        careful.timed(|bench| bench.send(write(1, 100, 1, Durability::Durable)));
        assert_eq!((below(&careful, 100), careful.durable_writes), (1, 1));
        let mut careless = bench(write_back, WriteCache::IgnoresFua);
        careless.timed(|bench| bench.send(write(1, 100, 1, Durability::Durable)));
        assert_eq!(below(&careless, 100), 0);
        let mut off = bench(write_back, WriteCache::Off);
        let took = off.timed(|bench| bench.send(volatile(1, 100, 1)));
        assert!(took > hit(1) && below(&off, 100) == 1);
        assert!(!off.disk.geometry().volatile_cache);
    }
}

#[test]
fn a_flush_waits_for_everything_that_was_delayed() {
    for write_back in [ON_ARRIVAL, DEFERRED] {
        let mut bench = bench(write_back, WriteCache::IgnoresFua);
        for n in 0..6u8 {
            bench.timed(|bench| bench.send(volatile(n + 1, u64::from(n) * 3_001, 4)));
        }
        bench.timed(|bench| bench.send(Io::Flush));
        for n in 0..6u8 {
            assert_eq!(below(&bench, u64::from(n) * 3_001), n + 1);
        }
        assert_eq!(
            bench.handed.last().map(|(name, ..)| *name),
            Some("flush"),
            "and then the device is flushed"
        );
    }
}

#[test]
fn on_arrival_an_append_joins_and_anything_else_waits_for_the_medium() {
    let mut bench = bench(ON_ARRIVAL, WriteCache::IgnoresFua);
    assert_eq!(bench.timed(|bench| bench.write(5_000, 8)), hit(8));
    assert_eq!(bench.timed(|bench| bench.write(5_008, 8)), hit(8), "it goes on where the last one ends");
    let mut other = Bench::new(drive(ON_ARRIVAL), Scheduler::Fcfs);
    std::mem::swap(&mut other.disk, &mut bench.disk);
    other.now = bench.now;
    let waited = other.timed(|bench| bench.write(9_000, 8));
    assert!(waited > hit(8) + Nanos::from_millis(1), "the arm is on its way elsewhere: {waited}");
    assert_eq!(other.handed.len(), 2, "both writes before it are on the medium");
    // The arm sets out at once: one seek, less than a turn, 16 sectors.
    assert!(other.handed[1].2 < Nanos::from_millis(16), "{}", other.handed[1].2);
}

#[test]
fn deferred_writes_go_home_sorted_after_a_rest_and_a_read_need_not_wait_for_all() {
    let mut bench = bench(DEFERRED, WriteCache::IgnoresFua);
    for lba in [9_000, 3_000, 15_000] {
        assert_eq!(bench.timed(|bench| bench.write(lba, 4)), hit(4));
    }
    let begin = bench.now;
    bench.rest(Nanos(1_999_999));
    assert!(bench.handed.is_empty());
    bench.drain();
    let order: Vec<u64> = bench.handed.iter().map(|(_, extent, _)| extent.unwrap().start.0).collect();
    assert_eq!(order, [3_000, 9_000, 15_000]);
    assert!(bench.handed[0].2 > begin + Nanos::from_millis(2));
    for lba in [9_000, 3_000, 15_000] {
        bench.timed(|bench| bench.write(lba, 4));
    }
    let read = bench.timed(|bench| bench.read(100, 1));
    assert!(read < Nanos::from_millis(25), "before the rest a read goes first: {read}");
    assert_eq!(bench.handed.len(), 4, "three writes of the first time and the read");
}

#[test]
fn a_deferred_write_does_not_end_the_read_ahead() {
    let late = DEFERRED.replace("idle-ms = 2.0", "idle-ms = 1000.0");
    let times = |writes: bool| {
        let mut bench = bench(&late, WriteCache::On);
        let mut all = Nanos::ZERO;
        for number in 0..8 {
            all += bench.timed(|bench| bench.read(number * 4, 4));
            bench.rest(Nanos::from_millis(1));
            let before = bench.now;
            if writes {
                assert_eq!(bench.timed(|bench| bench.write(9_000, 4)), hit(4));
            }
            bench.rest(Nanos(1_000_000 - bench.now.since(before).0));
        }
        all
    };
    assert_eq!(times(true), times(false));
}

#[test]
fn a_full_buffer_makes_a_write_wait_for_a_place() {
    let mut bench = bench(DEFERRED, WriteCache::IgnoresFua);
    for n in 0..4 {
        assert_eq!(bench.timed(|bench| bench.write(n * 4_000, 4)), hit(4));
    }
    let fifth = bench.timed(|bench| bench.write(19_000, 4));
    assert!(fifth > hit(4), "four ranges are all it takes: {fifth}");
    let joined = bench.timed(|bench| bench.write(19_004, 4));
    assert_eq!(joined, hit(4), "but one that joins another needs no place");
    let mut large = self::bench(DEFERRED, WriteCache::IgnoresFua);
    let took = large.timed(|bench| bench.send(volatile(1, 0, 65)));
    assert!(took > Nanos::from_millis(6), "more than the buffer holds goes to the medium: {took}");
    assert_eq!(below(&large, 64), 1);
}

#[test]
fn overwriting_in_the_buffer_saves_writes_to_the_medium() {
    let mut bench = bench(DEFERRED, WriteCache::IgnoresFua);
    for byte in 1..=20 {
        bench.timed(|bench| bench.send(volatile(byte, 700, 8)));
    }
    bench.drain();
    assert_eq!((bench.handed.len(), below(&bench, 707)), (1, 20));
}

#[test]
fn a_deferred_error_is_told_by_the_next_flush_once() {
    for write_back in [ON_ARRIVAL, DEFERRED] {
        let mut bench = bench(write_back, WriteCache::IgnoresFua);
        bench.fail_from = 0;
        let write = bench.send(volatile(1, 64, 1));
        bench.drain();
        assert_eq!(bench.status_of(write), Some(Ok(())), "it was answered before");
        bench.fail_from = usize::MAX;
        let flush = bench.send(Io::Flush);
        bench.drain();
        assert_eq!(bench.status_of(flush).unwrap().unwrap_err().kind, ErrorKind::Medium);
        let flush = bench.send(Io::Flush);
        bench.drain();
        assert_eq!(bench.status_of(flush), Some(Ok(())));
    }
}

/// Random overlapping writes, reads, zeroes and flushes, one after the other, against a plain array; now and then a look
/// at the medium alone, as after a power cut: every sector has its content of the last flush or a later one.
#[test]
fn random_work_is_never_mixed_up_and_a_power_cut_takes_only_what_was_not_flushed() {
    const SECTORS: u64 = 300;
    for seed in 0..12 {
        let write_back = [ON_ARRIVAL, DEFERRED][seed as usize % 2];
        let write_cache = if seed % 4 < 2 { WriteCache::On } else { WriteCache::IgnoresFua };
        println!("seed {seed}, {write_cache:?}{write_back}");
        let mut random = random(seed);
        let mut bench = bench(write_back, write_cache);
        let mut newest = vec![0u8; SECTORS as usize];
        // What each sector may hold after a power cut.
        let mut allowed: Vec<Vec<u8>> = vec![vec![0]; SECTORS as usize];
        let mut lost = 0;
        for step in 0..3_000u32 {
            let at = random.random_range(0..SECTORS - 20);
            let sectors = random.random_range(1..20usize);
            let range = at as usize..at as usize + sectors;
            let durable = random.random_bool(0.1);
            match random.random_range(0..20) {
                0 => {
                    bench.timed(|bench| bench.send(Io::Flush));
                    allowed.iter_mut().zip(&newest).for_each(|(allowed, newest)| *allowed = vec![*newest]);
                }
                1..=8 => assert_eq!(read(&mut bench, at, sectors), newest[range], "step {step}"),
                kind => {
                    let byte = if kind == 9 { 0 } else { random.random() };
                    let durability = if durable { Durability::Durable } else { Durability::Volatile };
                    let io = match kind {
                        9 => Io::WriteZeroes {
                            extent: dcd_engine::Extent::new(Lba(at), sectors as u64),
                            unmap: false,
                            durability,
                        },
                        _ => write(byte, at, sectors, durability),
                    };
                    bench.timed(|bench| bench.send(io));
                    for sector in range {
                        newest[sector] = byte;
                        let through = kind == 9 || (durable && write_cache == WriteCache::On);
                        if through {
                            allowed[sector].clear();
                        }
                        allowed[sector].push(byte);
                    }
                }
            }
            for sector in 0..SECTORS {
                let found = below(&bench, sector);
                assert!(allowed[sector as usize].contains(&found), "step {step}, sector {sector}: {found}");
                lost += u32::from(found != newest[sector as usize]);
            }
            bench.rest(Nanos(random.random_range(0..6_000_000)));
        }
        assert!(lost > 1_000, "a cache that loses nothing is none");
        bench.drain();
        for sector in 0..SECTORS {
            assert_eq!(below(&bench, sector), newest[sector as usize], "sector {sector} at rest");
        }
    }
}
