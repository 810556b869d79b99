//! The disk as a layer: what it hands down and when, errors, flushes, late drivers, and what it refuses.

use crate::disk_tests::common::{Bench, activate, round};
use dcd_engine::{
    Buf, Command, Control, Cx, Durability, ErrorKind, Event, Extent, Geometry, Io, IoError, IoResult, Layer,
    Lba, Nanos, Request, RequestId,
};
use dcd_model::{Disk, DiskConfig, Drive, DriveError, Scheduler, drive};
use rand::Rng;

fn memory_bench(queue: Scheduler) -> Bench {
    Bench::new(round(), queue).with_memory()
}

fn write_of(byte: u8, lba: u64, sectors: usize) -> Io {
    Io::Write {
        at: Lba(lba),
        buf: Buf::copy_of(&vec![byte; sectors * 512]),
        durability: Durability::Volatile,
    }
}

#[test]
fn a_write_is_not_below_before_it_was_served() {
    let mut bench = memory_bench(Scheduler::Fcfs);
    let id = bench.send(write_of(7, 500, 2));
    let end = bench.disk.next_deadline().expect("it is being served");
    assert!(end > Nanos::from_micros(300), "not before the command overhead");
    bench.rest(Nanos(end.0 - 1));
    assert!(bench.handed.is_empty() && bench.memory.iter().all(|byte| *byte == 0));
    bench.rest(Nanos(1));
    assert_eq!(bench.memory[500 * 512..502 * 512], [7; 1024]);
    assert_eq!(bench.status_of(id), Some(Ok(())));
    assert_eq!(bench.handed, [("write", Some(Extent::new(Lba(500), 2)), end)]);
}

#[test]
fn what_was_written_is_read_from_the_medium_and_from_the_cache() {
    let mut bench = memory_bench(Scheduler::Sptf);
    bench.timed(|bench| bench.send(write_of(3, 100, 8)));
    for lba in [100, 104, 98, 10_000, 100] {
        bench.timed(|bench| bench.send(Io::Read { at: Lba(lba), buf: Buf::zeroed(4 * 512) }));
    }
    let last = |n: usize| bench.replies[bench.replies.len() - n].2.buf.bytes().to_vec();
    assert_eq!(last(5), [3; 2048]);
    assert_eq!(last(4), [3; 2048]);
    assert_eq!((last(3)[1023], last(3)[1024]), (0, 3), "from the sector that was written on");
    assert_eq!(last(2), [0; 2048]);
    assert_eq!(last(1), [3; 2048]);
}

#[test]
fn random_requests_are_answered_once_with_the_bytes_of_the_last_write() {
    for (seed, queue) in [(1, Scheduler::Fcfs), (2, Scheduler::Sptf), (3, Scheduler::Sptf)] {
        println!("seed {seed}, {queue:?}");
        let mut random = crate::disk_tests::common::random(seed);
        let mut bench = memory_bench(queue);
        // Requests in flight touch different places, 32 of them, so that their order does not matter.
        let mut newest = [0u8; 32];
        let mut busy: Vec<Option<(u64, Option<u8>)>> = vec![None; 32];
        let (mut sent, mut seen) = (0u64, 0);
        while sent < 3000 || seen < bench.replies.len() {
            for (id, _, result) in &bench.replies[seen..] {
                let place =
                    busy.iter().position(|b| b.is_some_and(|(sent, _)| sent == *id)).expect("answered once");
                let (_, written) = busy[place].take().expect("it was busy");
                match written {
                    Some(byte) => newest[place] = byte,
                    None => assert!(result.buf.bytes().iter().all(|byte| *byte == newest[place])),
                }
            }
            seen = bench.replies.len();
            let place = random.random_range(0..32);
            if sent < 3000 && busy[place].is_none() {
                let lba = place as u64 * 613;
                let byte = random.random();
                let written = random.random_bool(0.5).then_some(byte);
                let id = match written {
                    Some(byte) => bench.send(write_of(byte, lba, 16)),
                    None => bench.send(Io::Read { at: Lba(lba), buf: Buf::zeroed(16 * 512) }),
                };
                busy[place] = Some((id, written));
                sent += 1;
            }
            bench.rest(Nanos(random.random_range(0..20_000_000)));
        }
        bench.drain();
        assert_eq!((bench.replies.len(), bench.handed.len()), (3000, 3000));
        assert!(bench.handed.is_sorted_by_key(|(_, _, at)| *at));
    }
}

#[test]
fn requests_are_handed_down_in_the_order_of_service() {
    let far_then_near = |queue| {
        let mut bench = Bench::new(round(), queue);
        bench.read(0, 1);
        bench.read(18_000, 1);
        bench.read(50, 1);
        bench.drain();
        bench.handed.iter().map(|(_, extent, _)| extent.unwrap().start.0).collect::<Vec<_>>()
    };
    assert_eq!(far_then_near(Scheduler::Fcfs), [0, 18_000, 50]);
    assert_eq!(far_then_near(Scheduler::Sptf), [0, 50, 18_000]);
}

#[test]
fn a_command_that_is_passed_over_again_and_again_has_its_turn_in_the_end() {
    let mut bench = Bench::new(round(), Scheduler::Sptf);
    bench.read(0, 1);
    let far = bench.read(19_900, 1);
    let mut near = 0;
    while bench.status_of(far).is_none() {
        // Writes to one track, always two waiting: there is always something nearer.
        near += 1;
        assert!(near < 1000, "starved");
        bench.write(near % 100, 1);
        bench.write((near + 50) % 100, 1);
        bench.step();
        bench.step();
    }
    assert!(bench.now > Nanos::from_secs(1), "it was passed over for long: {}", bench.now);
    assert!(bench.now < Nanos::from_secs(3), "and then served: {}", bench.now);
}

#[test]
fn a_flush_comes_after_the_writes_before_it_and_is_passed_down() {
    for queue in [Scheduler::Fcfs, Scheduler::Sptf] {
        let mut bench = Bench::new(round(), queue);
        bench.write(0, 1);
        for lba in [18_000, 40, 9_000] {
            bench.write(lba, 1);
        }
        let flush = bench.send(Io::Flush);
        bench.write(41, 1);
        while bench.status_of(flush).is_none() {
            assert!(bench.step());
        }
        let names: Vec<_> = bench.handed.iter().map(|(name, ..)| *name).collect();
        let place = names.iter().position(|name| *name == "flush").expect("it went down");
        let before: Vec<_> =
            bench.handed[..place].iter().map(|(_, extent, _)| extent.unwrap().start.0).collect();
        for lba in [0, 18_000, 40, 9_000] {
            assert!(before.contains(&lba), "{queue:?}: {lba} is not before the flush");
        }
        bench.drain();
    }
}

#[test]
fn a_flush_of_a_resting_disk_costs_no_more_than_a_command() {
    let mut bench = Bench::new(round(), Scheduler::Sptf);
    assert_eq!(bench.timed(|bench| bench.send(Io::Flush)), round().hit_overhead());
}

#[test]
fn durability_and_zeroes_are_passed_down() {
    let mut bench = Bench::new(round(), Scheduler::Fcfs);
    let durability = Durability::Durable;
    bench.timed(|bench| bench.send(Io::Write { at: Lba(0), buf: Buf::blank(512), durability }));
    bench.timed(|bench| bench.write(1, 1));
    assert_eq!(bench.durable_writes, 1);
    let extent = Extent::new(Lba(0), 200);
    let took = bench.timed(|bench| bench.send(Io::WriteZeroes { extent, unmap: false, durability }));
    assert!(took > Nanos::from_millis(20), "zeroes take the time of writing them: {took}");
    assert_eq!(bench.handed[2].0, "write-zeroes");
}

#[test]
fn errors_from_below_go_up_with_the_buffer() {
    let mut bench = memory_bench(Scheduler::Fcfs);
    bench.fail_from = 1;
    bench.timed(|bench| bench.send(write_of(1, 0, 1)));
    let failed = bench.send(write_of(2, 8, 1));
    let flush = bench.send(Io::Flush);
    let read = bench.send(Io::Read { at: Lba(0), buf: Buf::zeroed(1024) });
    bench.drain();
    let medium = |lba, sectors| Some(Err(IoError::at(ErrorKind::Medium, Extent::new(Lba(lba), sectors))));
    assert_eq!(bench.status_of(failed), medium(8, 1));
    assert_eq!(bench.status_of(flush), medium(0, 0));
    assert_eq!(bench.status_of(read), medium(0, 2));
    assert_eq!(
        bench.replies.iter().map(|(_, _, result)| result.buf.len()).collect::<Vec<_>>(),
        [512, 512, 0, 1024]
    );
}

#[test]
fn what_a_disk_cannot_do_is_refused_at_once() {
    let mut bench = Bench::new(round(), Scheduler::Fcfs);
    let end = bench.disk.geometry().sectors;
    let extent = Extent::new(Lba(8), 8);
    let durability = Durability::Volatile;
    let refused = [
        (Io::Discard { extent }, ErrorKind::Unsupported),
        (Io::Read { at: Lba(end - 1), buf: Buf::blank(1024) }, ErrorKind::OutOfRange),
        (Io::Read { at: Lba(u64::MAX), buf: Buf::blank(512) }, ErrorKind::OutOfRange),
        (
            Io::WriteZeroes { extent: Extent::new(Lba(0), u64::MAX), unmap: true, durability },
            ErrorKind::OutOfRange,
        ),
        (Io::Read { at: Lba(0), buf: Buf::none() }, ErrorKind::Invalid),
        (Io::Write { at: Lba(0), buf: Buf::blank(700), durability }, ErrorKind::Invalid),
        (Io::WriteZeroes { extent: Extent::new(Lba(0), 0), unmap: true, durability }, ErrorKind::Invalid),
    ];
    for (io, kind) in refused {
        let name = io.name();
        let len = match &io {
            Io::Read { buf, .. } | Io::Write { buf, .. } => buf.len(),
            _ => 0,
        };
        bench.send(io);
        let (_, at, result) = bench.replies.pop().expect("answered at once");
        assert_eq!(
            (at, result.status.unwrap_err().kind, result.buf.len()),
            (Nanos::ZERO, kind, len),
            "{name}"
        );
    }
    assert!(bench.handed.is_empty() && bench.disk.next_deadline().is_none());
}

#[test]
fn a_late_driver_does_not_slow_the_disk_down() {
    let run = |late: Nanos| {
        let mut bench = Bench::new(drive::builtin("barracuda-1996").unwrap(), Scheduler::Sptf);
        bench.late = late;
        for place in 0..200u64 {
            bench.write(place * 7_919_777 % 8_000_000, 8);
        }
        bench.drain();
        assert_eq!(bench.replies.len(), 200);
        bench
    };
    let (exact, late) = (run(Nanos::ZERO), run(Nanos::from_millis(3)));
    let status = |bench: &Bench| bench.disk.status(bench.now).to_json();
    assert_eq!(late.now, exact.now + Nanos::from_millis(3), "only the last answer is late");
    assert_eq!(status(&late)["busy_ms"], status(&exact)["busy_ms"]);
    assert_eq!(status(&late)["response_ms"], status(&exact)["response_ms"]);
    assert_eq!(status(&exact)["late"]["count"], 0);
    assert_eq!(status(&late)["late"]["max_ms"], 3.0);
    assert_eq!(status(&late)["late"]["count"], 200);
    let order = |bench: &Bench| bench.handed.iter().map(|(_, extent, _)| extent.unwrap()).collect::<Vec<_>>();
    assert_eq!(order(&late), order(&exact));
}

#[test]
fn a_driver_that_slept_through_many_services_gets_them_all_at_once() {
    let mut bench = Bench::new(round(), Scheduler::Fcfs);
    for lba in 0..10 {
        bench.write(lba * 1000, 1);
    }
    bench.now = Nanos::from_secs(5);
    bench.write(5, 1);
    assert_eq!(
        bench.replies.len(),
        10,
        "what ended in the meantime was handed down before the new request came"
    );
    let end = bench.disk.next_deadline().unwrap();
    assert!(end > Nanos::from_secs(5), "and the new one begins when it came: {end}");
}

#[test]
fn the_status_counts_what_was_done() {
    let mut bench = Bench::new(round(), Scheduler::Sptf);
    for lba in 0..4 {
        bench.write(lba * 100, 2);
    }
    bench.drain();
    bench.timed(|bench| bench.read(0, 8));
    bench.rest(Nanos::from_millis(50));
    bench.timed(|bench| bench.read(8, 8));
    bench.timed(|bench| bench.send(Io::Flush));
    let extent = Extent::new(Lba(0), 4);
    bench.timed(|bench| {
        bench.send(Io::WriteZeroes { extent, unmap: false, durability: Durability::Volatile })
    });
    let status = bench.disk.status(bench.now).to_json();
    assert_eq!(status["requests"], serde_json::json!({"read": 2, "write": 4, "write_zeroes": 1, "flush": 1}));
    assert_eq!(status["sectors"], serde_json::json!({"read": 16, "written": 12}));
    assert_eq!(status["cache"]["hits"], 1);
    assert_eq!(status["queue_depth_max"], 4);
    assert_eq!((&status["drive"], &status["scheduler"]), (&"round".into(), &"sptf".into()));
    let moving = ["seek_ms", "rotation_ms", "transfer_ms"]
        .iter()
        .map(|key| status[key].as_f64().unwrap())
        .sum::<f64>();
    let busy = status["busy_ms"].as_f64().unwrap();
    assert!(moving < busy && moving > 0.7 * busy, "{status}");
    let mut cx = Cx::default();
    bench.disk.handle(Event::Control(Control::ResetStatistics), cx.at(bench.now));
    assert_eq!(bench.disk.status(bench.now).to_json()["requests"]["read"], 0);
}

#[test]
fn activation_takes_the_size_from_below_or_from_the_configuration() {
    let drive = round();
    let disk = |size| Disk::with_drive(drive.clone(), &DiskConfig { size, ..DiskConfig::default() });
    let exported = |size, below: Geometry| {
        let mut disk = disk(size);
        activate(&mut disk, below).map(|()| disk.geometry())
    };
    let whole = drive.sectors();
    let geometry = exported(None, Geometry::plain(whole / 2)).unwrap();
    assert_eq!(
        (geometry.sectors, geometry.rotational, geometry.discards),
        (whole / 2, true, dcd_engine::Discards::No)
    );
    assert!(geometry.volatile_cache, "what is below is volatile");
    let safe = Geometry { volatile_cache: false, read_only: true, ..Geometry::plain(whole) };
    let geometry = exported(Some(512 * 100), safe).unwrap();
    assert_eq!((geometry.sectors, geometry.volatile_cache, geometry.read_only), (100, false, true));
    let too_large = exported(None, Geometry::plain(whole + 1)).unwrap_err();
    assert!(too_large.contains("\"round\"") && too_large.contains("choose a larger drive"), "{too_large}");
    let too_small = exported(Some(512 * 100), Geometry::plain(50)).unwrap_err();
    assert!(too_small.contains("only 25600"), "{too_small}");
    assert!(exported(Some(700), Geometry::plain(50)).unwrap_err().contains("multiple"));
    assert!(exported(None, Geometry::plain(0)).is_err());
    let blocks = Geometry { logical_block_bytes: 4096, ..Geometry::plain(80) };
    let geometry = exported(None, blocks).unwrap();
    assert_eq!((geometry.logical_block_bytes, geometry.physical_block_bytes), (4096, 4096));
}

#[test]
fn the_configuration_is_read_from_toml() {
    let config: DiskConfig =
        toml::from_str("drive = \"nearline-2018\"\nsize = 1048576\nqueue = \"fcfs\"").unwrap();
    let expected = DiskConfig {
        drive: "nearline-2018".into(),
        size: Some(1 << 20),
        queue: Scheduler::Fcfs,
        ..DiskConfig::default()
    };
    assert_eq!(config, expected);
    let wrong = toml::from_str::<DiskConfig>("drvie = \"nearline-2018\"").unwrap_err().to_string();
    assert!(wrong.contains("drvie"), "{wrong}");
}

#[test]
fn wrong_drive_files_are_told_by_field_problem_and_remedy() {
    let cases = [
        ("rpm = 6000", "rpm = 0", "field `rpm`: 0 revolutions per minute; write 100 to 100000"),
        ("rpm = 6000", "rpm = nan", "field `rpm`"),
        ("heads = 2", "heads = 0", "field `heads`: the value is 0; write 1 to 256"),
        ("heads = 2", "", "missing field `heads`"),
        ("heads = 2", "heads = 2\ncolour = 1", "colour"),
        ("queue-depth = 32", "queue-depth = 0", "field `queue-depth`"),
        ("queue-depth = 32", "logical-block-bytes = 520", "blocks of 520 bytes; write 512 or 4096"),
        ("bus-mb-per-s = 51.2", "bus-mb-per-s = 0.0", "field `bus-mb-per-s`"),
        ("head-switch-ms = 0.5", "head-switch-ms = -1.0", "field `head-switch-ms`: a time of -1 ms"),
        ("[[1, 1.0], [99, 10.8]]", "[]", "begin with [1, ms]"),
        ("[[1, 1.0], [99, 10.8]]", "[[2, 1.0]]", "begin with [1, ms]"),
        (
            "[[1, 1.0], [99, 10.8]]",
            "[[1, 1.0], [1, 2.0]]",
            "field `seek-ms[1]`: a distance of 1 cylinders after one of 1",
        ),
        ("[[1, 1.0], [99, 10.8]]", "[[1, inf]]", "field `seek-ms[0]`: a time of inf ms"),
        ("[[100, 100, 10, 20]]", "[]", "write at least one zone"),
        ("[[100, 100, 10, 20]]", "[[0, 100, 10, 20]]", "field `zones[0], cylinders`"),
        (
            "[[100, 100, 10, 20]]",
            "[[1, 1, 0, 0], [100, 100, 100, 20]]",
            "field `zones[1], track skew`: the value is 100",
        ),
        ("[[100, 100, 10, 20]]", "[[9000000, 9, 0, 0], [9000000, 9, 0, 0]]", "cylinders of all together"),
        ("[[100, 100, 10, 20]]", "[[100, 100, 10]]", "zones"),
        ("read = [0.2, 0.2]", "read = [0.2, 20000.0]", "field `overhead-ms, read`"),
        (
            "read-ahead-sectors = 64",
            "read-ahead-sectors = 65",
            "field `cache, read-ahead-sectors`: the value is 65; write 0 to 64",
        ),
        ("segments = 2", "segments = 0", "field `cache, segments`"),
    ];
    for (old, new, expected) in cases {
        assert!(crate::disk_tests::common::ROUND.contains(old));
        let error =
            Drive::parse(&crate::disk_tests::common::ROUND.replacen(old, new, 1)).expect_err(new).to_string();
        assert!(error.contains(expected), "{new}: {error}");
    }
    let unknown = drive::builtin("barracuda").unwrap_err();
    assert!(
        matches!(&unknown, DriveError::Unknown { known, .. } if known.contains("barracuda-1996")),
        "{unknown}"
    );
}

#[test]
fn every_built_in_drive_is_listed_under_its_own_name() {
    for name in drive::rotating_names() {
        assert_eq!(drive::builtin(name).unwrap().name(), name);
        assert!(Disk::new(&DiskConfig { drive: name.to_owned(), ..DiskConfig::default() }).is_ok());
    }
}

#[test]
fn a_drive_without_a_cache_goes_to_the_medium_each_time() {
    let text = &crate::disk_tests::common::ROUND[..crate::disk_tests::common::ROUND.find("[cache]").unwrap()];
    let drive = Drive::parse(text).unwrap();
    let mut bench = Bench::new(drive.clone(), Scheduler::Sptf);
    bench.timed(|bench| bench.read(0, 1));
    for _ in 0..5 {
        assert_eq!(bench.timed(|bench| bench.read(0, 1)), drive.revolution());
    }
}

#[test]
fn a_slow_device_below_shows_in_the_status_and_does_not_hold_the_disk_up() {
    let mut disk = Disk::with_drive(round(), &DiskConfig { queue: Scheduler::Fcfs, ..DiskConfig::default() });
    activate(&mut disk, Geometry::plain(round().sectors())).unwrap();
    let mut cx = Cx::default();
    for id in 0..2 {
        let io = Io::Read { at: Lba(id * 5_000), buf: Buf::blank(512) };
        disk.handle(Event::Request(Request { id: RequestId(id), disk: 0, io }), cx.at(Nanos::ZERO));
    }
    let first = disk.next_deadline().unwrap();
    disk.handle(Event::Wake, cx.at(first));
    let second = disk.next_deadline().expect("the next service begins at once");
    disk.handle(Event::Wake, cx.at(second));
    let end = second + Nanos::from_millis(5);
    for (index, command) in cx.commands.drain(..).collect::<Vec<_>>().into_iter().enumerate() {
        let Command::Submit { op, io, .. } = command else { panic!("nothing is answered yet: {command:?}") };
        disk.handle(Event::Completed { op, result: IoResult::ok(io.take_buf()) }, cx.at(end));
        assert_eq!(cx.commands.len(), index + 1);
    }
    let below = disk.status(end).to_json()["below"].clone();
    let expected = end.since(first).as_millis_f64() + 5.0;
    assert_eq!(below["now"], 0);
    assert!((below["total_ms"].as_f64().unwrap() - expected).abs() < 1e-6, "{below}, expected {expected}");
}

#[test]
fn reads_from_where_the_data_begins_are_counted_apart() {
    let drive = round();
    let geometry = Geometry::plain(drive.sectors());
    let mut bench = Bench::new(drive.clone(), Scheduler::Fcfs);
    bench.disk = Disk::with_drive(drive, &DiskConfig::default()).counting_from(Lba(1000));
    activate(&mut bench.disk, geometry).unwrap();
    bench.timed(|bench| bench.read(100, 8));
    bench.timed(|bench| bench.read(2000, 8));
    // 0.1 ms a sector: what follows has been read ahead.
    bench.rest(Nanos::from_millis(2));
    bench.timed(|bench| bench.read(2008, 8));
    let status = bench.disk.status(bench.now).to_json();
    assert_eq!(status["requests"]["read"], 3);
    assert_eq!((&status["data"]["reads"], &status["data"]["hits"]), (&2.into(), &1.into()));
    bench.event(Event::Control(Control::ResetStatistics));
    bench.timed(|bench| bench.read(3000, 8));
    assert_eq!(bench.disk.status(bench.now).to_json()["data"]["reads"], 1, "the place is remembered");
}

#[test]
fn the_time_in_the_queue_ends_when_the_service_begins() {
    let mut bench = Bench::new(round(), Scheduler::Fcfs);
    let begin = bench.now;
    bench.write(500, 2);
    bench.read(9000, 2);
    bench.step();
    let first = bench.now.since(begin).as_millis_f64();
    bench.drain();
    let status = bench.disk.status(bench.now).to_json();
    assert_eq!(status["queued_ms"]["write"], 0.0);
    assert_eq!(
        status["queued_ms"]["read"].as_f64(),
        Some(first),
        "the read waits for the write and no longer"
    );
}

#[test]
fn a_drive_can_have_more_segments_for_writes_but_not_more_than_it_has() {
    let drive = drive::builtin("atlas-10k").unwrap();
    let own = drive.write_buffer_sectors();
    assert_eq!(drive.clone().with_write_segments(1).unwrap().write_buffer_sectors(), own);
    assert_eq!(drive.clone().with_write_segments(3).unwrap().write_buffer_sectors(), 3 * own);
    let (segments, _) = drive.segments();
    let error = drive.with_write_segments(segments + 1).unwrap_err().to_string();
    assert!(error.contains("write-segments"), "{error}");
}

#[test]
fn without_segments_for_writes_a_write_pushes_nothing_out() {
    // Two segments, each with a read; the write is elsewhere.
    let hits_after_write = |write_segments| {
        let drive = round().with_write_segments(write_segments).unwrap();
        let mut bench = Bench::new(drive, Scheduler::Fcfs);
        bench.timed(|bench| bench.read(0, 8));
        bench.timed(|bench| bench.read(2000, 8));
        bench.timed(|bench| bench.write(6000, 8));
        bench.timed(|bench| bench.read(0, 8));
        bench.disk.status(bench.now).to_json()["cache"]["hits"].as_u64()
    };
    assert_eq!((hits_after_write(1), hits_after_write(0)), (Some(0), Some(1)));
}
