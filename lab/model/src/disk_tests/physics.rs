//! The model against what its parameters say about it, never against its own formulas.

use crate::disk_tests::common::{Bench, random, round};
use dcd_engine::{Extent, Layer, Lba, Nanos};
use dcd_model::{Access, Controller, Drive, Scheduler, Served, drive};
use rand::Rng;

const MS: f64 = 1e6;

fn close(what: &str, got: f64, expected: f64, part: f64) {
    println!("{what}: {got:.1}, expected {expected:.1}");
    assert!((got - expected).abs() <= expected * part, "{what}: {got:.1}, expected {expected:.1}");
}

/// The mean seek between random sectors, which are on the outer cylinders more often than on the inner ones.
fn mean_seek_of_random_sectors(drive: &Drive) -> f64 {
    let mut random = random(99);
    let mut cylinder = || drive.locate(Lba(random.random_range(0..drive.sectors()))).cylinder;
    let pairs = 200_000;
    (0..pairs).map(|_| drive.seek(cylinder().abs_diff(cylinder())).0 as f64).sum::<f64>() / f64::from(pairs)
}

#[test]
fn a_random_read_costs_overhead_mean_seek_half_a_revolution_and_transfer() {
    // The costs of a bus that is given up are tested by themselves.
    let holds_the_bus = |name: &&str| !drive::text(name).unwrap().contains("[bus-phases]");
    for name in drive::rotating_names().filter(holds_the_bus) {
        let drive = drive::builtin(name).unwrap();
        let count = 20_000;
        let mut bench = Bench::new(drive.clone(), Scheduler::Fcfs);
        let ends = bench.random_load(1, 1, count, 8, 1.0);
        let mean = ends.last().unwrap().0 as f64 / count as f64;
        let track = drive.zones()[drive.zones().len() / 2].sectors_per_track;
        let sector = drive.revolution().0 as f64 / f64::from(track);
        let bus = drive.bus_time(1).0 as f64;
        let expected = drive.command_overhead(Access::Read).0 as f64
            + mean_seek_of_random_sectors(&drive)
            + drive.revolution().0 as f64 / 2.0
            + (8.0 * sector + bus).max(sector + 8.0 * bus);
        close(&format!("{name}, random read"), mean, expected, 0.015);
    }
}

#[test]
fn a_random_write_costs_a_settle_more() {
    let drive = drive::builtin("nearline-2018").unwrap();
    let mean = |read_part| {
        let mut bench = Bench::new(drive.clone(), Scheduler::Fcfs);
        bench.random_load(2, 1, 20_000, 8, read_part).last().unwrap().0 as f64 / 20_000.0
    };
    close("settle", mean(0.0) - mean(1.0), drive.write_settle() as f64, 0.15);
}

#[test]
fn the_nearline_drive_has_the_average_seek_of_its_data_sheet() {
    let drive = drive::builtin("nearline-2018").unwrap();
    close("average seek", drive.mean_seek().0 as f64, 7.4 * MS, 0.005);
    close("single track seek", drive.seek(1).0 as f64, 0.23 * MS, 0.0);
    close("capacity", drive.sectors() as f64 * 512.0, 6e12, 0.001);
}

#[test]
fn the_old_drive_has_four_gigabytes_and_an_average_seek_of_a_third_of_its_stroke() {
    let drive = drive::builtin("barracuda-1996").unwrap();
    assert!(drive.sectors() * 512 >= 4 << 30);
    // The rule of thumb for curves that are nearly straight from a third on.
    close("average seek", drive.mean_seek().0 as f64, drive.seek(drive.cylinders() / 3).0 as f64, 0.05);
}

#[test]
fn a_sequential_read_runs_at_the_medium_s_rate_less_the_skews() {
    for (name, sectors, requests) in
        [("barracuda-1996", 128, 4000), ("barracuda-1996", 8, 40_000), ("nearline-2018", 1024, 4000)]
    {
        let drive = drive::builtin(name).unwrap();
        let mut bench = Bench::new(drive.clone(), Scheduler::Fcfs);
        for request in 0..requests {
            bench.timed(|bench| bench.read(request * sectors, sectors as usize));
        }
        let zone = &drive.zones()[0];
        assert!(requests * sectors < drive.zones()[1].first_lba.0, "all of it is in the first zone");
        let heads = f64::from(drive.heads());
        let skews = (heads - 1.0) * f64::from(zone.track_skew) + f64::from(zone.cylinder_skew);
        let per_track = f64::from(zone.sectors_per_track);
        let turns_per_cylinder = heads + skews / per_track;
        let rate = heads * per_track / (turns_per_cylinder * drive.revolution().0 as f64);
        let got = (requests * sectors) as f64 / bench.now.0 as f64;
        close(&format!("{name}, sequential KB/s"), got * 512.0 * MS, rate * 512.0 * MS, 0.02);
    }
}

#[test]
fn the_inner_zone_is_slower_by_the_ratio_of_its_tracks() {
    let drive = drive::builtin("nearline-2018").unwrap();
    let time = |first: u64| {
        let mut bench = Bench::new(drive.clone(), Scheduler::Fcfs);
        bench.timed(|bench| bench.read(first, 8));
        let begin = bench.now;
        for request in 0..500 {
            bench.timed(|bench| bench.read(first + 8 + request * 1024, 1024));
        }
        bench.now.since(begin).0 as f64
    };
    close("inner to outer", time(0) / time(drive.sectors() - 600_000) * 1e3, 0.48 * 1e3, 0.02);
}

#[test]
fn writing_one_sector_again_costs_exactly_one_revolution() {
    // Shingled tracks are the exception: there a write goes to the end of a log.
    for name in drive::rotating_names().filter(|name| !name.starts_with("smr")) {
        let drive = drive::builtin(name).unwrap();
        let mut bench = Bench::new(drive.clone(), Scheduler::Sptf);
        bench.timed(|bench| bench.write(800_001, 8));
        for _ in 0..100 {
            assert_eq!(bench.timed(|bench| bench.write(800_001, 8)), drive.revolution());
        }
    }
}

#[test]
fn small_sequential_writes_lose_a_revolution_each_unless_the_queue_holds_the_next_one() {
    let drive = drive::builtin("barracuda-1996").unwrap();
    let text =
        include_str!("../../drives/barracuda-1996.toml").replace("queue-depth = 64", "queue-depth = 1");
    let without_queue = Drive::parse(&text).unwrap();
    let writes = 400;
    let time = |drive: &Drive, depth: usize| {
        let mut bench = Bench::new(drive.clone(), Scheduler::Fcfs);
        let mut sent = 0;
        while bench.replies.len() < writes {
            while sent < writes && sent - bench.replies.len() < depth {
                bench.write(sent as u64 * 8, 8);
                sent += 1;
            }
            bench.step();
        }
        bench.now.0 as f64
    };
    let revolution = drive.revolution().0 as f64;
    let (alone, queued) = (time(&drive, 1) / revolution, time(&drive, 8) / revolution);
    // One revolution for each write, and 8 sectors further each time; 3200 sectors are 17.2 tracks.
    close("one at a time, revolutions", alone, writes as f64 * (1.0 + 8.0 / 186.0), 0.01);
    assert!(queued < 17.2 * 1.35, "eight in flight: {queued} revolutions");
    assert_eq!(
        time(&without_queue, 8),
        time(&drive, 1),
        "a drive that knows one command cannot prepare the next"
    );
    // Eight sectors pass in 0.36 ms; overhead and bus need 1.26 ms, so the commands of four writes ahead have to be known.
    let five = Drive::parse(&text.replace("queue-depth = 1", "queue-depth = 5")).unwrap();
    assert_eq!(time(&five, 8), time(&drive, 8));
}

#[test]
fn the_overhead_depends_on_what_the_drive_did_before() {
    let text = crate::disk_tests::common::ROUND.replace("read-hit = [0.1, 0.1]", "read-hit = [0.1, 0.4]");
    let drive = Drive::parse(&text).unwrap();
    let mut bench = Bench::new(drive, Scheduler::Fcfs);
    bench.timed(|bench| bench.write(500, 1));
    assert_eq!(bench.timed(|bench| bench.read(500, 1)), Nanos::from_micros(410), "after a write");
    assert_eq!(bench.timed(|bench| bench.read(500, 1)), Nanos::from_micros(110), "after a read");
}

#[test]
fn head_switches_and_arm_movements_cost_what_the_drive_file_says() {
    let drive = round();
    let at = Nanos::from_millis(1000);
    let fresh = |lba: u64, access| {
        Controller::new(drive.clone()).serve(at, at, access, Extent::new(Lba(lba), 1)).seek.as_millis_f64()
    };
    assert_eq!(fresh(50, Access::Read), 0.0, "same track");
    assert_eq!(fresh(150, Access::Read), 0.5, "other head");
    assert_eq!(fresh(200, Access::Read), 1.0, "next cylinder");
    assert_eq!(fresh(99 * 200, Access::Read), 10.8, "last cylinder");
    assert_eq!(fresh(99 * 200 + 100, Access::Read), 10.8, "a head switch is hidden behind the arm");
    assert_eq!(fresh(50, Access::Write), 0.0, "no settle where nothing moved");
    assert_eq!(fresh(150, Access::Write), 0.8);
    assert_eq!(fresh(99 * 200, Access::WriteZeroes), 11.1);
}

#[test]
fn a_track_is_under_the_heads_when_its_angle_says_so() {
    let drive = round();
    for lba in [0, 7, 99, 100, 250, 3_333, 19_999] {
        let track = drive.track_at(Lba(lba));
        let sector_turn = (lba - track.first_lba.0) as f64 / f64::from(track.sectors);
        let turns = 1000.0 + (track.start_angle + sector_turn) % 1.0;
        let passes = Nanos((turns * drive.revolution().0 as f64).round() as u64);
        assert_eq!(drive.rotation_to(Lba(lba), passes), Nanos::ZERO, "{lba}");
        // A request that is there just in time waits for nothing, and one that is 1 ns late waits for a revolution.
        let mut controller = Controller::new(drive.clone());
        let warm = Nanos::from_millis(100);
        controller.serve(warm, warm, Access::Write, Extent::new(track.first_lba, 1));
        let known = Nanos(passes.0 - drive.command_overhead(Access::Write).0 - drive.bus_time(1).0);
        let mut late = controller.clone();
        let just = controller.serve(known, known, Access::Write, Extent::new(Lba(lba), 1));
        assert_eq!((just.seek, just.end), (Nanos::ZERO, passes + Nanos::from_micros(100)), "{lba}");
        let known = known + Nanos(1);
        let missed = late.serve(known, known, Access::Write, Extent::new(Lba(lba), 1));
        assert_eq!(missed.end, just.end + drive.revolution(), "{lba}");
    }
}

#[test]
fn sptf_serves_a_deep_queue_about_twice_as_fast() {
    for (name, factors) in [("barracuda-1996", 1.7..2.6), ("nearline-2018", 2.0..3.0)] {
        let drive = drive::builtin(name).unwrap();
        let time = |queue, depth| {
            let mut bench = Bench::new(drive.clone(), queue);
            bench.random_load(3, depth, 6000, 8, 0.66).last().unwrap().0 as f64
        };
        let factor = time(Scheduler::Fcfs, 32) / time(Scheduler::Sptf, 32);
        println!("{name}: SPTF is {factor:.2} times as fast at depth 32");
        assert!(factors.contains(&factor), "{name}: {factor}");
        close("depth 1", time(Scheduler::Fcfs, 1), time(Scheduler::Sptf, 1), 0.0);
    }
}

#[test]
fn the_same_seed_gives_the_same_times() {
    let run = |seed| {
        Bench::new(drive::builtin("barracuda-1996").unwrap(), Scheduler::Sptf)
            .random_load(seed, 8, 2000, 16, 0.5)
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn the_heads_read_ahead_while_the_drive_rests() {
    let drive = round();
    let hit = drive.hit_overhead() + drive.bus_time(8);
    let mut bench = Bench::new(drive, Scheduler::Fcfs);
    bench.timed(|bench| bench.read(0, 8));
    // Four sectors pass in 0.4 ms, 64 in two revolutions with a track change.
    bench.rest(Nanos::from_millis(25));
    for lba in [8, 16, 64] {
        assert_eq!(bench.timed(|bench| bench.read(lba, 8)), hit, "{lba}");
    }
    let beyond = bench.timed(|bench| bench.read(72, 8));
    assert!(beyond > hit, "the read-ahead of 64 sectors ended at 72");
}

#[test]
fn what_passes_before_the_arm_moves_is_in_the_buffer_and_nothing_else() {
    let drive = round();
    let mut controller = Controller::new(drive);
    let first = controller.serve(Nanos::ZERO, Nanos::ZERO, Access::Read, Extent::new(Lba(0), 8));
    // The command that takes the arm away comes when 20 more sectors of 0.1 ms have passed: 1.8 ms and its own overhead
    // of 0.2 ms behind the end of the first one's last sector, which passed 0.01 ms before the end of the request.
    let asked = Nanos(first.end.0 - 10_000 + 1_800_000);
    let far = controller.serve(asked, asked, Access::Read, Extent::new(Lba(10_000), 8));
    let mut other = controller.clone();
    let inside = controller.serve(far.end, far.end, Access::Read, Extent::new(Lba(8), 20));
    assert_eq!(inside.served, Served::Cache);
    let outside = other.serve(far.end, far.end, Access::Read, Extent::new(Lba(8), 21));
    assert_eq!(outside.served, Served::Medium);
}

#[test]
fn a_read_that_goes_on_waits_for_the_read_ahead_and_not_for_a_revolution() {
    let drive = round();
    let mut bench = Bench::new(drive.clone(), Scheduler::Fcfs);
    bench.timed(|bench| bench.read(0, 8));
    let begin = bench.now;
    for lba in (8..48).step_by(8) {
        let time = bench.timed(|bench| bench.read(lba, 8));
        assert!(time < Nanos::from_millis(2), "{lba}: {time}");
    }
    close("five times eight sectors", bench.now.since(begin).0 as f64, 5.0 * 0.8 * MS, 0.01);
}

#[test]
fn writes_push_reads_out_of_a_small_buffer() {
    // Two segments, one of them for writes at most: the second read and the write leave the first read no place.
    let drive = round();
    let hit = drive.hit_overhead() + drive.bus_time(8);
    let mut bench = Bench::new(drive, Scheduler::Fcfs);
    bench.timed(|bench| bench.read(0, 8));
    bench.timed(|bench| bench.write(5_000, 8));
    assert_eq!(bench.timed(|bench| bench.read(0, 8)), hit, "there is a place for each");
    assert_eq!(bench.timed(|bench| bench.read(5_000, 8)), hit, "written data can be read from the buffer");
    bench.timed(|bench| bench.write(7_000, 8));
    assert_eq!(bench.timed(|bench| bench.read(0, 8)), hit, "a write replaces a write");
    bench.timed(|bench| bench.read(9_000, 8));
    bench.timed(|bench| bench.write(3_000, 8));
    assert!(bench.timed(|bench| bench.read(0, 8)) > hit);
}

#[test]
fn an_adaptive_cache_has_a_segment_for_each_file_that_is_being_read() {
    let hits = |drive: Drive| {
        let mut bench = Bench::new(drive, Scheduler::Fcfs);
        // Three files, in turn; a rest after each read lets the drive read ahead.
        for round in 0..6 {
            for file in 0..3 {
                bench.timed(|bench| bench.read(file * 2000 + round * 4, 4));
                bench.rest(Nanos::from_millis(3));
            }
        }
        bench.disk.status(bench.now).to_json()["cache"]["hits"].as_u64().expect("counted")
    };
    assert_eq!(hits(round()), 0, "two segments");
    assert!(hits(round().with_adaptive_segments()) >= 6, "as soon as their number is known, and stays");
}

#[test]
fn a_write_clears_what_it_overlaps() {
    let drive = round();
    let hit = drive.hit_overhead() + drive.bus_time(8);
    let mut bench = Bench::new(drive, Scheduler::Fcfs);
    bench.timed(|bench| bench.read(0, 16));
    bench.timed(|bench| bench.write(12, 8));
    assert!(bench.timed(|bench| bench.read(0, 8)) > hit);
}

#[test]
fn a_long_transfer_crosses_tracks_cylinders_and_zones() {
    let text = crate::disk_tests::common::ROUND
        .replace("zones = [[100, 100, 10, 20]]", "zones = [[50, 100, 10, 20], [50, 50, 5, 10]]");
    let drive = Drive::parse(&text).unwrap();
    let mut controller = Controller::new(drive.clone());
    let service =
        controller.serve(Nanos::ZERO, Nanos::ZERO, Access::Read, Extent::new(Lba(0), drive.sectors()));
    // 200 tracks of one revolution each; 100 head skews of a tenth and 99 cylinder skews of a fifth between them.
    let turns = 200.0 + 10.0 + 19.8;
    close("whole drive", service.end.0 as f64, turns * drive.revolution().0 as f64, 0.005);
    close("transfer", service.transfer.0 as f64, 200.0 * drive.revolution().0 as f64, 1e-9);
}
