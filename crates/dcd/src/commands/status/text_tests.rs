//! The screen, and the exit code that goes with it.

use dcd_engine::layers::trace::{SinkStatus, TraceStatus};
use dcd_engine::log_cache::LogCacheStatistics;
use dcd_engine::mirror::{LegState, LegStatus, MirrorStatus};
use dcd_engine::raid::{ArrayState, PassStatus};
use dcd_engine::{ErrorKind, Extent, IoError, Lba, LogCacheState};
use dcd_stack::RecentTimes;

use super::*;
use crate::cli::VERSION;
use crate::failure::Failure;
use crate::session::serving::status::SilentDevice;
use crate::session::serving::wear::SsdStatus;

fn log_cache(state: LogCacheState) -> LogCacheStatus {
    LogCacheStatus { state, used_bytes: 4 << 20, size_bytes: 64 << 20, ..LogCacheStatus::default() }
}

fn server(cache: LogCacheStatus) -> ServerStatus {
    let times = |count| ResponseTimes { count, mean_ms: 0.256, ..ResponseTimes::default() };
    let requests = MeterStatus { write: times(7), flush: times(2), ..MeterStatus::default() };
    let layers = [("cache".to_owned(), LayerStatus::LogCache(Box::new(cache)))];
    let version = Some(VERSION.to_owned());
    ServerStatus { version, requests, layers: layers.into(), ..ServerStatus::default() }
}

fn screen_of(status: &ServerStatus) -> String {
    screen(status, &Verdict::of(status), usize::MAX)
}

fn verdict(status: &ServerStatus) -> Result<(), Failure> {
    Verdict::of(status).health.verdict()
}

fn with_array(array: ArrayStatus) -> ServerStatus {
    let mut status = server(log_cache(LogCacheState::Clean));
    status.layers.insert("disks".to_owned(), LayerStatus::Raid(Box::new(array)));
    status
}

#[test]
fn the_wear_of_an_ssd_is_told_as_far_as_it_is_known() {
    let cache =
        |log_head| LogCacheStatus { day_written_bytes: 6 << 30, log_head, ..log_cache(LogCacheState::Clean) };
    let mut status = server(cache(LogHead::NotRotational));
    status.uptime_seconds = 7200.0 * 3.0;
    let ssd = |disk: &str, years_left| SsdStatus {
        disk: disk.to_owned(),
        used_percent: 3,
        years_left,
        ..SsdStatus::default()
    };
    let ssds = vec![
        ssd("a", None),
        ssd("b", Some(0.0)),
        ssd("c", Some(0.5)),
        ssd("d", Some(11.6)),
        ssd("e", Some(1e6)),
    ];
    status.devices =
        vec![DeviceStatus { path: "/dev/md0".to_owned(), holds_log: true, ssds, ..DeviceStatus::default() }];
    let text = screen_of(&status);
    for line in [
        "            6 GiB written to the log today, 24 GiB a day at this rate\n",
        "            a: 3 % worn by its own count, years left: not known\n",
        "            b: 3 % worn by its own count, all of its rated life is used\n",
        "            c: 3 % worn by its own count, 6 months left at today's rate\n",
        "            d: 3 % worn by its own count, 12 years left at today's rate\n",
        "            e: 3 % worn by its own count, more than 100 years left\n",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    status.uptime_seconds = 10.0 * 86_400.0 + 1800.0;
    assert!(screen_of(&status).contains(", 6.1 GiB a day"), "23.5 hours are counted: {}", screen_of(&status));
    let told = |wear_budget, freed_discards| {
        let cache = LogCacheStatus {
            wear_budget,
            wear_budget_bytes: 50_000_000_000,
            freed_discards,
            ..log_cache(LogCacheState::Clean)
        };
        screen_of(&server(cache))
    };
    let used_up = told(WearBudget::UsedUp, FreedDiscards::Slow);
    assert!(used_up.contains("wear-budget of 46.6 GiB a day is used up: "), "{used_up}");
    let ordered = LogCacheStatus {
        wear_budget: WearBudget::UsedUp,
        promise: Promise::Ordered,
        ..log_cache(LogCacheState::Clean)
    };
    assert!(screen_of(&server(ordered)).contains("all writes still go to it"), "there is no bypass");
    assert!(used_up.contains("free segments are not discarded (its device is slow at it)"), "{used_up}");
    let within = told(WearBudget::Within, FreedDiscards::On);
    assert!(!within.contains("wear-budget") && !within.contains("discarded"), "{within}");
    status.uptime_seconds = 5.0;
    assert!(screen_of(&status).contains("6 GiB written to the log today\n"), "no rate after seconds");
    let spinning = screen_of(&server(cache(LogHead::Followed)));
    assert!(!spinning.contains("today"), "nothing wears a spinning disk out: {spinning}");
}

#[test]
fn one_screen_says_it_all() {
    let dirty = LogCacheStatus { dirty_bytes: 3 << 20, ..log_cache(LogCacheState::Dirty) };
    let mut status = server(dirty);
    (status.stack, status.uptime_seconds) = ("/etc/dcd/disk.toml".into(), 7200.0 * 3.0);
    status.dirty_bytes = 3 << 20;
    let cache = match status.layers.get_mut("cache") {
        Some(LayerStatus::LogCache(cache)) => cache,
        _ => panic!("it is there"),
    };
    cache.statistics.read_ram_bytes = 1 << 20;
    cache.statistics.read_miss_bytes = 3 << 20;
    let trend = Trend {
        dirty_bytes_per_second: -1.0,
        destaged_bytes_per_second: f64::from(1 << 20),
        clean_in_seconds: Some(40.0),
        full_in_seconds: None,
        drain_seconds: Some(3.0),
        ..Trend::default()
    };
    status.trends.insert("cache".to_owned(), trend);
    status.requests.recent_seconds = 60.0;
    status.requests.write.recent = RecentTimes { count: 7, bytes: 60 << 20, p50_ms: 0.25, p99_ms: 1.5 };
    let device = |name: &str, path: &str| DeviceStatus {
        device: Some(name.to_owned()),
        path: path.to_owned(),
        ..DeviceStatus::default()
    };
    let failing = DeviceStatus {
        failed_reads: 3,
        failed_flushes: 1,
        last_error: Some("flush: I/O error on the medium".to_owned()),
        ..device("data", "/dev/sdb")
    };
    status.devices = vec![device("log", "/dev/nvme0n1p3"), failing];
    let expected = "     \
stack: /etc/dcd/disk.toml, up for 6 h
     state: dirty
    action: none
     cache: dirty 3 MiB, log 4 MiB of 64 MiB
            clean in 40 s at the rate of the last minute, log not filling,
            writing back 1 MiB/s
            hits 25.0 %: RAM 25.0 %, dirty 0.0 %, clean 0.0 %; misses 75.0 %
  answered: 7 writes 0.26 ms, 2 flushes 0.26 ms, no errors

 last 60 s  per second    throughput          p50          p99
     reads         0.0         0 B/s            -            -
    writes         0.1       1 MiB/s      0.25 ms      1.50 ms
   flushes         0.0                          -            -

    device  state                    path
       log  ok                       /dev/nvme0n1p3
      data  errors: 3 read, 1 flush  /dev/sdb
            last error: flush: I/O error on the medium
";
    assert_eq!(screen_of(&status), expected);
    assert!(verdict(&status).is_ok());
}

/// A server that has worked for days, with large numbers and long names, over these devices.
fn busy(log_head: LogHead, devices: &[(&str, &str)]) -> ServerStatus {
    let statistics = LogCacheStatistics {
        write_bytes: 1 << 40,
        log_bytes: 3 << 39,
        logged_sectors: 1 << 31,
        read_ram_bytes: 123 << 30,
        read_dirty_bytes: 234 << 30,
        read_clean_bytes: 345 << 30,
        read_miss_bytes: 456 << 30,
        ..LogCacheStatistics::default()
    };
    let mut status = server(LogCacheStatus {
        state: LogCacheState::Dirty,
        dirty_bytes: 1021 << 20,
        dirty_data_bytes: 1000 << 20,
        dirty_discard_bytes: 21 << 20,
        used_bytes: 1022 << 20,
        size_bytes: 31 << 30,
        day_written_bytes: 1023 << 30,
        log_head,
        statistics,
        ..LogCacheStatus::default()
    });
    (status.stack, status.uptime_seconds) = ("/etc/dcd/virtual-machines.toml".into(), 86_400.0 * 123.0);
    status.dirty_bytes = 1021 << 20;
    let trend = Trend {
        destaged_bytes_per_second: 1e8,
        full_in_seconds: Some(7000.0),
        drain_seconds: Some(7000.0),
        ..Trend::default()
    };
    status.trends.insert("cache".to_owned(), trend);
    let recent = RecentTimes { count: 600_000, bytes: 60 << 30, p50_ms: 123.45, p99_ms: 678.9 };
    let times = || ResponseTimes { count: 1_234_567_890, mean_ms: 12.34, recent, ..ResponseTimes::default() };
    status.requests = MeterStatus {
        recent_seconds: 60.0,
        read: times(),
        write: times(),
        flush: times(),
        other: times(),
        ..MeterStatus::default()
    };
    let ublk = dcd_serve::ublk::UblkStatus {
        device: "/dev/ublkb12".to_owned(),
        queues: 2,
        depth: 128,
        flags: vec!["recovery".to_owned(), "reissue".to_owned()],
        ..dcd_serve::ublk::UblkStatus::default()
    };
    status.ublk = Some(ublk);
    let ssd = SsdStatus {
        disk: "nvme0n1".to_owned(),
        used_percent: 3,
        years_left: Some(1e6),
        ..SsdStatus::default()
    };
    let device = |&(name, path): &(&str, &str)| DeviceStatus {
        device: Some(name.to_owned()),
        path: path.to_owned(),
        holds_log: name == "log",
        ssds: if name == "log" { vec![ssd.clone()] } else { Vec::new() },
        ..DeviceStatus::default()
    };
    status.devices = devices.iter().map(device).collect();
    status
}

#[test]
fn the_screen_of_one_disk_fits_a_terminal() {
    let log = ("log", "/dev/disk/by-id/nvme-Samsung_SSD_980_PRO_1TB_S5GXNX0T123456-part3");
    let disk = "/dev/disk/by-id/ata-WDC_WD40EFRX-68N32N0_WD-WCC7K0123456";
    let heads = [LogHead::Followed, LogHead::NotMeasured, LogHead::NotShown, LogHead::DoesNotPay];
    let same_disk = heads.map(|head| busy(head, &[("disk", disk)]));
    let on_ssd = busy(LogHead::NotRotational, &[log, ("data", disk)]);
    let mut other = on_ssd.clone();
    other.version = Some("0.10.10 (0123456789ab-dirty)".to_owned());
    for status in same_disk.into_iter().chain([on_ssd, other]) {
        let text = screen_of(&status);
        println!("{text}");
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > WIDTH).collect();
        assert_eq!(wide, Vec::<&str>::new(), "{text}");
        // The command and the next prompt have a line each.
        assert!(text.lines().count() <= 22, "{} lines:\n{text}", text.lines().count());
        assert!(text.contains("WCC7K0123456"), "the disk is recognised: {text}");
    }
}

/// The widest screens with something to do: a log on two legs, of which one is whole, failed, or deleted.
#[test]
fn the_screen_of_legs_fits_a_terminal() {
    let disk = "/dev/disk/by-id/ata-WDC_WD40EFRX-68N32N0_WD-WCC7K0123456";
    let legs = ["/dev/disk/by-id/nvme-Samsung_SSD_980_PRO_1TB_S5GXNX0T123456-part3", "/srv/dcd/leg-b.img"];
    let on_legs = |standing, removed: Option<&str>| {
        let devices = [("leg-a", legs[0]), ("leg-b", legs[1]), ("data", disk)];
        let mut status = busy(LogHead::NotRotational, &devices);
        let leg = |name: &str, standing| LegStatus {
            name: Some(name.to_owned()),
            standing: Some(standing),
            error: (standing == LegState::Failed)
                .then_some(IoError { kind: ErrorKind::Medium, extent: None }),
            ..LegStatus::default()
        };
        let legs = vec![leg("leg-a", LegState::Whole), leg("leg-b", standing)];
        let mirror = MirrorStatus { legs, ..MirrorStatus::default() };
        status.layers.insert("cache.legs".to_owned(), LayerStatus::Mirror(Box::new(mirror)));
        // Nothing is predicted of a layer that is never dirty.
        status.trends.insert("cache.legs".to_owned(), Trend::default());
        for (number, device) in status.devices.iter_mut().enumerate() {
            let ssd = SsdStatus { disk: "nvme0n1".to_owned(), used_percent: 3, ..SsdStatus::default() };
            (device.holds_log, device.ssds) = (number < 2, if number < 2 { vec![ssd] } else { Vec::new() });
        }
        let leg = &mut status.devices[1];
        if standing == LegState::Failed {
            (leg.state, leg.failed_writes) = (DeviceState::Failed, 1);
            leg.last_error = Some("write: I/O error on the medium".to_owned());
        }
        if removed.is_some() {
            (leg.state, leg.removed) = (DeviceState::Removed, removed.map(str::to_owned));
        }
        status
    };
    for (status, told) in [
        (on_legs(LegState::Whole, None), "2 of 2 legs whole"),
        (on_legs(LegState::Failed, None), "dcd log remove virtual.machines leg-b"),
        (
            on_legs(LegState::Whole, Some("its file was deleted or moved")),
            "dcd log remove virtual.machines leg-b",
        ),
    ] {
        let mut status = status;
        status.stack = "/etc/dcd/virtual.machines.toml".into();
        let text = screen(&status, &Verdict::of(&status), LINES);
        println!("{text}");
        assert!(text.lines().count() <= LINES, "{} lines:\n{text}", text.lines().count());
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(told) && words.contains("leg-b.img"), "{told}: {text}");
        assert_eq!(text.matches("\n\n").count(), 2, "blank lines are before the tables alone: {text}");
        assert!(screen_of(&status).contains("worn by its own count"), "elsewhere nothing is left out");
    }
}

#[test]
fn the_screen_of_the_guide_is_that_of_the_program() {
    let guide = include_str!("../../../../../docs/monitoring.md");
    let shown = guide.split_once("```text\n").and_then(|(_, rest)| rest.split_once("```")).unwrap().0;
    let mut status = server(LogCacheStatus {
        dirty_bytes: 152 << 20,
        used_bytes: 170 << 20,
        size_bytes: 1023 << 20,
        log_head: LogHead::NotRotational,
        day_written_bytes: 2150 << 20,
        statistics: LogCacheStatistics {
            logged_sectors: 20 << 10,
            log_bytes: 13 << 20,
            read_ram_bytes: 12,
            read_dirty_bytes: 40,
            read_clean_bytes: 31,
            read_miss_bytes: 17,
            ..LogCacheStatistics::default()
        },
        ..log_cache(LogCacheState::Dirty)
    });
    (status.stack, status.uptime_seconds) = ("/etc/dcd/disk.toml".into(), 3600.0 * 6.0);
    status.dirty_bytes = 152 << 20;
    let trend =
        Trend { destaged_bytes_per_second: 4_090_000.0, clean_in_seconds: Some(40.0), ..Trend::default() };
    status.trends.insert("cache".to_owned(), trend);
    let times = |count, mean_ms, (recent, bytes, p50_ms, p99_ms)| ResponseTimes {
        count,
        mean_ms,
        recent: RecentTimes { count: recent, bytes, p50_ms, p99_ms },
        ..ResponseTimes::default()
    };
    status.requests = MeterStatus {
        recent_seconds: 56.0,
        read: times(1200, 0.26, (1120, 70_464_307, 0.09, 0.31)),
        write: times(31, 0.32, (28, 688_128, 0.008, 0.019)),
        flush: times(4, 0.9, (4, 0, 0.85, 2.1)),
        ..MeterStatus::default()
    };
    let ssd = SsdStatus {
        disk: "nvme0n1".to_owned(),
        used_percent: 3,
        years_left: Some(12.0),
        ..SsdStatus::default()
    };
    let device = |name: &str, path: &str, ssds| DeviceStatus {
        device: Some(name.to_owned()),
        path: path.to_owned(),
        ssds,
        ..DeviceStatus::default()
    };
    status.devices = vec![device("log", "/dev/nvme0n1p3", vec![ssd]), device("data", "/dev/sdb", Vec::new())];
    assert_eq!(screen_of(&status), shown);
}

#[test]
fn what_goes_on_is_named() {
    let spins = LogCacheStatus { log_head: LogHead::DoesNotPay, ..log_cache(LogCacheState::Clean) };
    assert!(screen_of(&server(spins)).contains("of 64 MiB, rotational, head tracking off (no gain)\n"));
    let mut gaps = LogCacheStatus { log_head: LogHead::Followed, ..log_cache(LogCacheState::Clean) };
    gaps.statistics = LogCacheStatistics {
        logged_sectors: 8,
        log_bytes: 4608,
        log_gap_bytes: 11_264,
        log_rest_bytes: 512,
        ..LogCacheStatistics::default()
    };
    let screen = screen_of(&server(gaps));
    assert!(
        screen.contains("of 64 MiB, rotational, head tracking on,\n            write amplification 4.0\n"),
        "{screen}"
    );
    // On an SSD: records with their headers, and superblocks, for what clients wrote.
    let mut ssd = LogCacheStatus { log_head: LogHead::NotRotational, ..log_cache(LogCacheState::Clean) };
    ssd.statistics = LogCacheStatistics {
        // Of these, most bypassed the log.
        write_bytes: 1 << 20,
        logged_sectors: 20,
        compacted_sectors: 4,
        log_bytes: 12_288,
        superblocks: 1,
        log_gap_bytes: 1 << 20,
        ..LogCacheStatistics::default()
    };
    let screen = screen_of(&server(ssd));
    assert!(screen.contains("of 64 MiB, write amplification 2.0\n"), "{screen}");
    let mut buffered = LogCacheStatus { log_head: LogHead::NotRotational, ..log_cache(LogCacheState::Clean) };
    buffered.statistics =
        LogCacheStatistics { logged_sectors: 20, superblocks: 1, ..LogCacheStatistics::default() };
    assert!(!screen_of(&server(buffered)).contains("amplification"), "most of it is not written yet");
    assert!(screen_of(&ServerStatus::default()).contains("no cache"));
    let mut status = server(log_cache(LogCacheState::Clean));
    let file = SinkStatus { path: String::new(), recorded: 9, dropped: 2, error: None };
    let trace = TraceStatus { operations: 0, failed: 0, in_flight: 0, file: Some(file), newest: Vec::new() };
    status.layers.insert(RECORD.to_owned(), LayerStatus::Trace(Box::new(trace)));
    status.flushing = true;
    status.requests.read.errors = 3;
    status.devices_not_answering = vec![SilentDevice {
        device: Some("data".to_owned()),
        path: "/dev/sdb".to_owned(),
        operations: 1,
        seconds: 12.4,
    }];
    let text = screen_of(&status);
    let state = "state: clean, flushing, device data has not answered for 12 s, recording,\n            9 requests (2 left out)\n";
    assert!(text.contains(state), "{text}");
    assert!(text.contains("2 flushes 0.26 ms, 3 errors\n"), "{text}");
    let json = serde_json::to_value(&status).unwrap();
    let back: ServerStatus = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(back).unwrap(), json, "clients read it back");
    let older = serde_json::json!({ "export": "cache", "requests": { "in_flight": 1 }, "layers": {} });
    assert!(
        serde_json::from_value::<ServerStatus>(older).is_ok(),
        "an upgraded client reads an older server"
    );
}

#[test]
fn a_program_that_is_not_the_asking_one_is_named() {
    let mut status = server(log_cache(LogCacheState::Clean));
    assert!(screen_of(&status).contains("     state: clean\n"));
    status.version = Some("0.0.9 (0123456789ab)".to_owned());
    let text = screen_of(&status);
    assert!(text.contains("     state: clean, runs another dcd: 0.0.9 (0123456789ab)\n"), "{text}");
    // A server from before this field.
    let mut older = serde_json::to_value(&status).unwrap();
    older.as_object_mut().unwrap().remove("version");
    let text = screen_of(&serde_json::from_value(older).unwrap());
    assert!(text.contains("     state: clean, runs an older dcd\n"), "{text}");
    assert!(verdict(&status).is_ok(), "it works");
}

#[test]
fn actions_are_broken_into_lines_of_a_terminal() {
    let failed = LogCacheStatus { dirty_bytes: 4096, ..log_cache(LogCacheState::LogFailed) };
    let text = screen_of(&server(failed));
    let action: Vec<&str> = text.lines().skip_while(|line| !line.contains("action:")).collect();
    assert!(action.len() > 4 && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(action[1].starts_with("            ") && action[1].as_bytes()[12] != b' ', "{text}");
}

#[test]
fn what_does_not_get_clean_says_how_long_a_pause_would_take() {
    let dirty = LogCacheStatus { dirty_bytes: 1 << 20, ..log_cache(LogCacheState::Dirty) };
    let mut status = server(dirty);
    let trend = Trend { drain_seconds: Some(180.0), full_in_seconds: Some(600.0), ..Trend::default() };
    status.trends.insert("cache".to_owned(), trend);
    let text = screen_of(&status);
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = "not getting clean, clean in about 3 min if clients pause, log full in 10 min";
    assert!(words(&text).contains(told), "{text}");
    // With a device that does not answer, or blocks that cannot be read, there is no estimate.
    let mut silent = status.clone();
    silent.devices_not_answering =
        vec![SilentDevice { device: None, path: "/dev/sdb".to_owned(), operations: 1, seconds: 12.0 }];
    let lost = LogCacheStatus { dirty_bytes: 4096, lost_blocks: 1, ..log_cache(LogCacheState::LogFailed) };
    let mut failed = server(lost);
    let known = Trend { clean_in_seconds: Some(40.0), ..trend };
    for status in [&mut silent, &mut failed] {
        status.trends.insert("cache".to_owned(), known);
    }
    let (silent, failed) = (screen_of(&silent), screen_of(&failed));
    assert!(!silent.contains("clean in") && silent.contains("log full in"), "{silent}");
    assert!(!failed.contains("clean in") && !failed.contains("log full in"), "{failed}");
    status.trends.insert("cache".to_owned(), Trend { drain_seconds: Some(0.2), ..trend });
    assert!(words(&screen_of(&status)).contains("clean at once if clients pause"), "{}", screen_of(&status));
    assert_eq!(
        [5.0, 119.0, 7199.0, 172799.0, 172801.0].map(span),
        ["5 s", "119 s", "120 min", "48 h", "2 days"]
    );
    let shown = [0.0, 0.0009, 0.004, 0.25, 999.0, 1500.0].map(response_time);
    assert_eq!(shown, ["< 1 us", "< 1 us", "4 us", "0.25 ms", "999.00 ms", "1.5 s"]);
}

#[test]
fn discards_are_told_apart_from_data() {
    let dirty = LogCacheStatus {
        dirty_bytes: (18 + 243) << 20,
        dirty_data_bytes: 18 << 20,
        dirty_discard_bytes: 243 << 20,
        ..log_cache(LogCacheState::Dirty)
    };
    assert!(screen_of(&server(dirty)).contains("cache: dirty 18 MiB and 243 MiB to discard, log"));
}

#[test]
fn what_is_wrong_with_a_log_cache_is_told_and_decides_the_exit_code() {
    let error = |kind| Some(IoError { kind, extent: None });
    let mut failing = LogCacheStatus { destage_failing: true, ..log_cache(LogCacheState::Dirty) };
    failing.statistics.last_error = error(ErrorKind::NoSpace);
    let status = server(failing);
    assert!(screen_of(&status).contains(" not all dirty data can be written back (no-space)\n"));
    assert!(matches!(verdict(&status), Err(Failure::Degraded(_))));
    let status = server(LogCacheStatus {
        flush_error: error(ErrorKind::Medium),
        flush_at_risk_bytes: 65536,
        flush_at_risk: vec![Extent::new(Lba(2048), 128)],
        ..log_cache(LogCacheState::Clean)
    });
    assert!(screen_of(&status).contains(", flushes fail\n"));
    let Err(Failure::Degraded(why)) = verdict(&status) else { panic!("degraded") };
    let told = "64 KiB that bypassed the log may be lost (byte ranges 1048576+65536)";
    assert!(why.contains(told), "{why}");
    let accepted_damage = vec!["records 2..3 were durable".to_owned()];
    let status = server(LogCacheStatus { accepted_damage, ..log_cache(LogCacheState::Clean) });
    let Err(Failure::Damage(why)) = verdict(&status) else { panic!("damaged") };
    assert!(why.contains("damage of the log was accepted: records 2..3 were durable"), "{why}");
    let lost = LogCacheStatus { dirty_bytes: 4096, lost_blocks: 1, ..log_cache(LogCacheState::LogFailed) };
    let status = server(lost);
    assert!(screen_of(&status).contains("cache: log-failed 4 KiB, "));
    assert!(screen_of(&status).contains(", 1 block of 4 KiB lost\n"));
    assert!(matches!(verdict(&status), Err(Failure::Damage(_))));
}

#[test]
fn what_is_wrong_with_an_array_is_told_and_decides_the_exit_code() {
    let degraded = ArrayStatus {
        state: ArrayState::Degraded,
        dirty_bytes: 4096,
        failed_members: vec![2],
        ..ArrayStatus::default()
    };
    let status = with_array(degraded.clone());
    assert!(screen_of(&status).contains("disks: degraded 4 KiB, without member 2\n"));
    assert!(matches!(verdict(&status), Err(Failure::Degraded(_))));
    let status = with_array(ArrayStatus { lost_blocks: 2, ..ArrayStatus::default() });
    assert!(
        screen_of(&status).contains("disks: damaged, 2 blocks of 4 KiB lost\n"),
        "{}",
        screen_of(&status)
    );
    assert!(matches!(verdict(&status), Err(Failure::Damage(_))));
    let pass = PassStatus {
        kind: PassName::Rebuild,
        role: Some(2),
        member_bytes: 0,
        paused: false,
        percent: 41.04,
        member_bytes_left: 0,
        member_bytes_per_second: None,
        findings: dcd_engine::raid::Findings::default(),
    };
    let rebuilding = ArrayStatus {
        state: ArrayState::Rebuilding,
        dirty_bytes: 0,
        pass: Some(pass),
        journal_failed: true,
        ..degraded
    };
    assert!(
        screen_of(&with_array(rebuilding))
            .contains("disks: rebuilding, rebuild 41.0 %, without member 2, its journal has failed\n")
    );
}

#[test]
fn the_screen_says_what_holds_back_write_back_and_until_when() {
    let held = |held_by, overridden| WritebackStatus {
        held_by: Some(held_by),
        until: (held_by == HeldBy::Window).then(|| "2026-11-30T02:00:00+01:00".to_owned()),
        until_seconds: (held_by == HeldBy::Window).then_some(10_800.0),
        overridden,
    };
    for (held, said) in [
        (
            held(HeldBy::Pause, false),
            "write-back is paused until \"dcd writeback disk resume\", or until the server stops",
        ),
        (
            held(HeldBy::Window, false),
            "write-back waits for its window, which opens 2026-11-30 02:00 (in 3 h)\n",
        ),
        (held(HeldBy::Window, true), "(in 3 h); it goes on now, as a flush was asked for"),
        (held(HeldBy::Rate, false), "write-back keeps to 20 MiB/s (destage-rate) while clients are active\n"),
    ] {
        let cache = LogCacheStatus { destage_rate: 20 << 20, ..log_cache(LogCacheState::Dirty) };
        let mut status = server(cache);
        status.stack = "/etc/dcd/disk.toml".into();
        status.writeback.insert("cache".to_owned(), held);
        let screen = screen_of(&status);
        assert!(
            screen.split_whitespace().collect::<Vec<_>>().join(" ").contains(said.trim_end()),
            "{screen}"
        );
        assert!(screen.lines().all(|line| line.chars().count() <= WIDTH), "{screen}");
    }
    for (state, over_high_mark, why) in [
        (LogCacheState::LogFailed, true, "as the log has failed"),
        (LogCacheState::Dirty, true, "as the log is over its high mark"),
    ] {
        let mut status = server(LogCacheStatus { over_high_mark, ..log_cache(state) });
        status.writeback.insert("cache".to_owned(), held(HeldBy::Pause, true));
        assert!(screen_of(&status).contains(why), "{}", screen_of(&status));
    }
    assert!(!screen_of(&server(log_cache(LogCacheState::Dirty))).contains("write-back"));
    // Only a file in /etc/dcd has a name.
    let mut status = server(log_cache(LogCacheState::Dirty));
    status.stack = "/root/f.toml".into();
    status.writeback.insert("cache".to_owned(), held(HeldBy::Pause, false));
    assert!(screen_of(&status).contains("\"dcd writeback /root/f.toml resume\""), "{}", screen_of(&status));
}
