//! The text, and an independent reader of the format.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use dcd_engine::log_cache::DataDiskStatus;
use dcd_engine::raid::{ArrayState, Findings, PassName, PassStatus};
use dcd_stack::{MeterStatus, RecentTimes};

use super::*;
use crate::session::serving::status::{DeviceOps, DeviceStatus, SilentDevice};
use crate::session::serving::wear::SsdStatus;

/// A stack with everything, and names that need escapes.
fn stack(name: &str) -> ServerStatus {
    let mut cache = LogCacheStatus { dirty_bytes: 4096, lost_blocks: 2, ..LogCacheStatus::default() };
    cache.day_written_bytes = 1000;
    (cache.wear_budget, cache.wear_budget_bytes) = (WearBudget::UsedUp, 900);
    cache.statistics.reads = 5;
    cache.statistics.read_hits = 2;
    cache.statistics.bypassed_sectors = 3;
    let pass = PassStatus {
        kind: PassName::Rebuild,
        role: None,
        member_bytes: 0,
        paused: false,
        percent: 25.0,
        member_bytes_left: 0,
        member_bytes_per_second: None,
        findings: Findings::default(),
    };
    let array = ArrayStatus { failed_members: vec![1], pass: Some(pass), ..ArrayStatus::default() };
    let layers = [
        ("cache".to_owned(), LayerStatus::LogCache(Box::new(cache))),
        ("legs".to_owned(), LayerStatus::Mirror(Box::default())),
        ("odd \"name\"\\\n".to_owned(), LayerStatus::Raid(Box::new(array))),
    ];
    let write = ResponseTimes {
        count: 4,
        bytes: 8192,
        errors: 1,
        mean_ms: 0.5,
        buckets: vec![(0.02, 1), (0.1, 1), (0.1001, 1), (20_000.0, 1)],
        recent: RecentTimes::default(),
        ..ResponseTimes::default()
    };
    let device = |name: &str| DeviceStatus {
        device: Some(name.to_owned()),
        path: format!("/dev/{name}"),
        failed_reads: 7,
        operations: [("read".to_owned(), DeviceOps::default())].into(),
        ..DeviceStatus::default()
    };
    let ssd = SsdStatus {
        disk: "nvme0n1".to_owned(),
        used_percent: 3,
        years_left: Some(2.0),
        ..SsdStatus::default()
    };
    let log = DeviceStatus { ssds: vec![ssd], ..device("log") };
    let silent = SilentDevice { device: None, path: "/dev/data".to_owned(), operations: 1, seconds: 12.5 };
    ServerStatus {
        stack: format!("/etc/dcd/{name}.toml").into(),
        version: Some("0.1.0 (0123456789ab)".to_owned()),
        export: "cache".to_owned(),
        uptime_seconds: 43_200.0,
        requests: MeterStatus { write, in_flight: 3, ..MeterStatus::default() },
        layers: layers.into(),
        devices: vec![log, device("data")],
        devices_not_answering: vec![silent],
        ..ServerStatus::default()
    }
}

#[test]
fn values_come_with_their_names_units_and_labels() {
    let text = openmetrics(&[stack("a"), stack("b")]);
    for line in [
        "# TYPE dcd_dirty_data_bytes gauge",
        "# UNIT dcd_dirty_data_bytes bytes",
        "dcd_stack_info{stack=\"a\",export=\"cache\"} 1",
        "dcd_build_info{stack=\"a\",version=\"0.1.0 (0123456789ab)\"} 1",
        "dcd_health{stack=\"a\"} 4.0",
        "dcd_uptime_seconds{stack=\"b\"} 43200.0",
        "dcd_dirty_data_bytes{stack=\"a\",layer=\"cache\"} 4096.0",
        "dcd_requests_in_flight{stack=\"a\"} 3.0",
        "# TYPE dcd_request_duration_seconds histogram",
        "dcd_request_duration_seconds_sum{stack=\"a\",operation=\"write\"} 0.002",
        "dcd_request_duration_seconds_count{stack=\"a\",operation=\"write\"} 4",
        "dcd_request_duration_seconds_bucket{le=\"0.000025\",stack=\"a\",operation=\"write\"} 1",
        "dcd_request_duration_seconds_bucket{le=\"0.0001\",stack=\"a\",operation=\"write\"} 2",
        "dcd_request_duration_seconds_bucket{le=\"0.00025\",stack=\"a\",operation=\"write\"} 3",
        "dcd_request_duration_seconds_bucket{le=\"10.0\",stack=\"a\",operation=\"write\"} 3",
        "dcd_request_duration_seconds_bucket{le=\"+Inf\",stack=\"a\",operation=\"write\"} 4",
        "dcd_request_bytes_total{stack=\"a\",operation=\"write\"} 8192",
        "dcd_request_errors_total{stack=\"a\",operation=\"write\"} 1",
        "dcd_cache_hits_total{stack=\"a\",layer=\"cache\"} 2",
        "dcd_cache_misses_total{stack=\"a\",layer=\"cache\"} 3",
        "dcd_bypassed_bytes_total{stack=\"a\",layer=\"cache\"} 1536",
        "dcd_lost_data_bytes{stack=\"a\",layer=\"cache\"} 8192.0",
        "dcd_log_device_written_daily_bytes{stack=\"a\",layer=\"cache\"} 2000.0",
        "dcd_wear_budget_bytes{stack=\"a\",layer=\"cache\"} 900.0",
        "dcd_wear_budget_used_up{stack=\"a\",layer=\"cache\"} 1.0",
        "dcd_ssd_life_used_ratio{stack=\"a\",device=\"log\",disk=\"nvme0n1\"} 0.03",
        "dcd_ssd_life_left_seconds{stack=\"b\",device=\"log\",disk=\"nvme0n1\"} 63115200.0",
        "dcd_raid_failed_members{stack=\"a\",layer=\"odd \\\"name\\\"\\\\\\n\"} 1.0",
        "dcd_raid_pass_progress_ratio{stack=\"a\",layer=\"odd \\\"name\\\"\\\\\\n\",pass=\"rebuild\"} 0.25",
        "dcd_device_errors_total{stack=\"a\",device=\"log\",operation=\"read\"} 7",
        "dcd_device_not_answering_seconds{stack=\"a\",device=\"data\"} 12.5",
        "dcd_device_not_answering_seconds{stack=\"a\",device=\"log\"} 0.0",
    ] {
        assert!(text.lines().any(|other| other == line), "{line} is not in:\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let once: std::collections::BTreeSet<&str> = types.iter().copied().collect();
    assert_eq!(types.len(), once.len(), "all samples of a name stand together");
    assert_eq!(openmetrics(&[]), "# EOF\n");
}

/// The metric has what status knows and no other metric shows.
#[test]
fn the_health_is_the_exit_code_of_status() {
    let missing = DataDiskStatus { missing: true, ..DataDiskStatus::default() };
    let absent = LogCacheStatus { disks: vec![missing], ..LogCacheStatus::default() };
    let accepted =
        LogCacheStatus { accepted_damage: vec!["records".to_owned()], ..LogCacheStatus::default() };
    let scrubbed = Findings { mismatches: 1, ..Findings::default() };
    let scrubbed = ArrayStatus { last_scrub: Some(scrubbed), ..ArrayStatus::default() };
    let doubtful = ArrayStatus { state: ArrayState::InDoubt, regions_in_doubt: 3, ..ArrayStatus::default() };
    for (layer, code) in [
        (LayerStatus::LogCache(Box::default()), 0),
        (LayerStatus::LogCache(Box::new(absent)), 5),
        (LayerStatus::LogCache(Box::new(accepted)), 4),
        (LayerStatus::Raid(Box::new(scrubbed)), 4),
        (LayerStatus::Raid(Box::new(doubtful)), 5),
    ] {
        let layers = [("layer".to_owned(), layer)].into();
        let text = openmetrics(&[ServerStatus { stack: "a.toml".into(), layers, ..ServerStatus::default() }]);
        assert!(text.contains(&format!("\ndcd_health{{stack=\"a\"}} {code}.0\n")), "{code}: {text}");
    }
}

#[test]
fn rules_dashboard_and_guide_name_metrics_that_there_are() {
    let text = openmetrics(&[stack("a")]);
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    for file in ["packaging/prometheus/dcd.rules.yml", "packaging/grafana/dcd.json", "docs/monitoring.md"] {
        let used = fs::read_to_string(format!("{root}{file}")).unwrap();
        let words = used.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: Vec<&str> = words.filter(|word| word.starts_with("dcd_")).collect();
        assert!(names.len() > 5, "{file} uses metrics");
        for name in names {
            let is_known =
                text.contains(&format!("\n{name}{{")) || text.contains(&format!("\n# TYPE {name} "));
            assert!(is_known, "{file}: no server tells {name}");
        }
    }
}

#[test]
fn another_program_reads_the_text() {
    let reader = "import sys\n\
                  from prometheus_client.openmetrics.parser import text_string_to_metric_families as read\n\
                  print(sum(len(f.samples) for f in read(sys.stdin.read())))";
    let has = Command::new("/usr/bin/python3").args(["-c", "import prometheus_client"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: another program reads the text: python3-prometheus-client is not installed"
        );
        return;
    }
    let text = openmetrics(&[stack("a"), stack("b")]);
    let mut python = Command::new("/usr/bin/python3")
        .args(["-c", reader])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let read = python.wait_with_output().unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(read.status.success(), "it is refused:\n{text}");
    assert_eq!(String::from_utf8_lossy(&read.stdout).trim(), samples.to_string());
}
