//! Devices without heads beside their data sheets. Power cuts are tried in `dcd_sim`.

use std::path::Path;

use dcd_engine::{Buf, Durability, Io, Layer, Lba, Nanos};
use dcd_model::{AnyDrive, SolidDisk, drive};

use crate::disk_tests::common::Bench;

type SolidBench = Bench<SolidDisk>;

const MIB_SECTORS: usize = 2048;

fn bench_of(text: &str) -> SolidBench {
    let solid = match AnyDrive::parse(text).unwrap() {
        AnyDrive::Solid(solid) => solid,
        AnyDrive::Rotating(drive) => panic!("{} rotates", drive.name()),
    };
    let sectors = if text.contains("GiB\"") { 100 << 21 } else { 1_953_125_000 };
    Bench::over(SolidDisk::new(solid, Some(sectors * 512)), sectors)
}

fn bench(name: &str) -> SolidBench {
    bench_of(drive::text(name).unwrap())
}

/// Sends a stream of requests, so many at a time, and returns bytes a second (or operations, of one byte each).
fn rate(
    bench: &mut SolidBench,
    depth: usize,
    count: usize,
    mut send: impl FnMut(&mut SolidBench, u64),
) -> f64 {
    let begin = bench.now;
    let mut sent = 0;
    let first = bench.replies.len();
    while bench.replies.len() < first + count {
        if sent < count && sent < bench.replies.len() - first + depth {
            send(bench, sent as u64);
            sent += 1;
        } else {
            bench.step();
        }
    }
    count as f64 / bench.now.since(begin).as_secs_f64()
}

fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 20_000_000 * 8
}

fn streams(bench: &mut SolidBench, first: u64, mib: usize) -> f64 {
    let send = |bench: &mut SolidBench, number: u64| {
        bench.write(((first + number) % 900_000) * MIB_SECTORS as u64, MIB_SECTORS);
    };
    rate(bench, 8, mib, send) * 1.048576
}

fn scatters(bench: &mut SolidBench, depth: usize, first: u64, count: usize) -> f64 {
    rate(bench, depth, count, |bench, number| {
        bench.write(scattered(first + number), 8);
    })
}

fn is_about(value: f64, wanted: f64) {
    assert!((value / wanted - 1.0).abs() < 0.02, "{value}, not {wanted}");
}

fn status(bench: &SolidBench) -> serde_json::Value {
    bench.disk.status(bench.now).to_json()
}

#[test]
fn one_request_at_a_time_takes_what_the_data_sheets_say() {
    for (name, read_us, write_us) in [
        ("ssd-nvme-2020", 46.0, 17.0),
        ("ssd-plp-2017", 88.6, 26.8),
        ("ssd-sata-2021", 87.2, 38.4),
        ("ebs-gp3", 933.3, 1133.3),
        ("ebs-gp2", 933.3, 1133.3),
        ("gcp-pd-balanced", 866.7, 1066.7),
    ] {
        let mut bench = bench(name);
        is_about(bench.timed(|bench| bench.read(scattered(1), 8)).0 as f64 / 1e3, read_us);
        bench.rest(Nanos::from_secs(1));
        is_about(bench.timed(|bench| bench.write(scattered(2), 8)).0 as f64 / 1e3, write_us);
    }
}

#[test]
fn many_requests_at_a_time_get_the_rates_of_the_data_sheets() {
    for (name, reads, megabytes) in [
        ("ssd-nvme-2020", 1_000_000.0, 4000.0),
        ("ssd-plp-2017", 279_500.0, 600.0),
        ("ssd-sata-2021", 98_000.0, 530.0),
    ] {
        let mut bench = bench(name);
        let send = |bench: &mut SolidBench, number| {
            bench.read(scattered(number), 8);
        };
        is_about(rate(&mut bench, 128, 200_000, send), reads);
        is_about(streams(&mut bench, 0, 4000), megabytes);
    }
}

#[test]
fn behind_the_fast_cells_there_is_a_cliff_and_a_rest_frees_them() {
    let mut bench = bench("ssd-nvme-2020");
    let gigabytes = |bench: &mut SolidBench, first: u64| streams(bench, first * 954, 954);
    let fast = (0..).find(|first| gigabytes(&mut bench, *first) < 3500.0).unwrap();
    assert!((112..=114).contains(&fast), "{fast} GB, measured: 113");
    is_about(gigabytes(&mut bench, fast + 1), 1500.0);
    bench.rest(Nanos::from_secs(10));
    is_about(gigabytes(&mut bench, fast + 2), 4000.0);
    // A rest of 10 s frees 15 GB, which last for 24 GB.
    let again = (0..).find(|number| gigabytes(&mut bench, fast + 3 + number) < 3500.0).unwrap();
    assert!((22..=24).contains(&again), "{again} GB");
    bench.rest(Nanos::from_secs(3600));
    // The whole drive, after a long rest. Measured: 1.9 GB/s.
    is_about(streams(&mut bench, 0, 953_674), 1614.0);
}

#[test]
fn random_writes_are_slow_when_collection_has_to_keep_up() {
    let mut bench = bench("ssd-plp-2017");
    let fresh = scatters(&mut bench, 64, 0, 100_000);
    is_about(fresh, 600e6 / 4096.0);
    scatters(&mut bench, 64, 100_000, 3_500_000);
    is_about(scatters(&mut bench, 64, 4_000_000, 100_000), 30_500.0);
    let seen = status(&bench);
    let written = seen["sectors"]["written"].as_f64().unwrap() * 512.0;
    is_about(seen["programmed_bytes"].as_f64().unwrap() / written, 4.8);
    assert_eq!(seen["endurance_bytes"], 1_380_000_000_000_000u64);
    let mut stream = self::bench("ssd-plp-2017");
    is_about(streams(&mut stream, 0, 100_000), 600.0);
    let seen = status(&stream);
    is_about(seen["programmed_bytes"].as_f64().unwrap(), 100_000.0 * 1_048_576.0);
}

#[test]
fn a_flush_costs_what_the_drive_has_to_save() {
    let us = |bench: &mut SolidBench, io: Io| {
        bench.rest(Nanos::from_secs(1));
        let time = bench.timed(|bench| bench.send(io));
        time.0 as f64 / 1e3
    };
    let write = |durability| Io::Write { at: Lba(80_000), buf: Buf::blank(4096), durability };
    let mut bench = bench("ssd-nvme-2020");
    assert!(bench.disk.geometry().volatile_cache);
    is_about(us(&mut bench, Io::Flush), 16.0);
    is_about(us(&mut bench, write(Durability::Volatile)), 17.0);
    assert!(
        bench.handed.iter().all(|(name, ..)| *name == "flush"),
        "the write is in the volatile buffer only"
    );
    is_about(us(&mut bench, Io::Flush), 900.0);
    assert_eq!(bench.handed.len(), 3, "{:?}", bench.handed);
    is_about(us(&mut bench, Io::Flush), 16.0);
    is_about(us(&mut bench, write(Durability::Durable)), 917.0);
    let mut protected = self::bench("ssd-plp-2017");
    is_about(us(&mut protected, write(Durability::Volatile)), 26.8);
    assert_eq!(protected.handed.len(), 1, "an answered write is safe");
    is_about(us(&mut protected, Io::Flush), 20.0);
    is_about(us(&mut protected, write(Durability::Durable)), 26.8);
}

#[test]
fn a_read_waits_for_the_program_on_its_channel() {
    let mut bench = bench("ssd-plp-2017");
    // A program is of 96 sectors: channel 0 has the first.
    bench.write(0, 96);
    bench.drain();
    let waits = bench.timed(|bench| bench.read(0, 8));
    let other = bench.timed(|bench| bench.read(96, 8));
    assert!(waits > Nanos::from_micros(2800) && waits < Nanos::from_micros(3000), "{waits}");
    assert!(other < Nanos::from_micros(100), "{other}");
}

#[test]
fn burst_credits_are_spent_and_earned_again() {
    // A hundredth of the credits, so that they last for 20 s beside the 300 a second that 100 GiB earn.
    let text = drive::text("ebs-gp2").unwrap();
    let mut bench = bench_of(&text.replace("500GiB", "100GiB").replace("5400000", "54000"));
    is_about(scatters(&mut bench, 32, 0, 58_000), 3000.0);
    scatters(&mut bench, 32, 58_000, 4_000);
    is_about(scatters(&mut bench, 32, 62_000, 3_000), 300.0);
    bench.rest(Nanos::from_secs(60));
    is_about(scatters(&mut bench, 32, 65_000, 18_000), 3000.0);
    scatters(&mut bench, 32, 83_000, 4_000);
    is_about(scatters(&mut bench, 32, 87_000, 3_000), 300.0);
    // A MiB counts as four operations; there is a limit of bytes, too.
    let mut large = self::bench("ebs-gp3");
    is_about(streams(&mut large, 0, 500), 131.072);
}

#[test]
fn rates_follow_from_the_size_of_a_volume() {
    let about = |name: &str, size: &str| {
        let text = drive::text(name).unwrap().replace("500GiB", size);
        dcd_model::describe(&AnyDrive::parse(&text).unwrap())
    };
    for (name, size, expected) in [
        ("ebs-gp2", "20GiB", "100 a second, 5400000 at once"),
        ("ebs-gp2", "500GiB", "1500 a second, 5400000 at once"),
        ("ebs-gp2", "10TiB", "16000 a second, 0 at once"),
        ("ebs-gp3", "10TiB", "3000 a second, 0 at once"),
        ("gcp-pd-balanced", "1000GiB", "9000 a second"),
        ("gcp-pd-balanced", "64TiB", "80000 a second"),
        ("gcp-pd-balanced", "100GiB", "176 MB/s"),
    ] {
        let text = about(name, size);
        assert!(text.contains(expected), "{name} of {size}: {text}");
    }
}

#[test]
fn a_wrong_file_is_refused_with_what_to_write() {
    let text = drive::text("ssd-nvme-2020").unwrap();
    for (old, new, expected) in [
        ("size = \"1TB\"", "size = \"large\"", "field `size`: \"large\" is not a size"),
        ("size = \"1TB\"", "size = \"100\"", "field `size`: the value is 100; write 512 to"),
        ("queue-depth = 1024", "queue-depth = 0", "field `queue-depth`: the value is 0; write 1 to 4096"),
        ("read-ms = 0.045", "read-ms = -1.0", "field `read-ms`: a time of -1 ms"),
        ("channels = 16", "channels = 0", "field `channels`"),
        (
            "write-amplification = 4.8",
            "write-amplification = 0.5",
            "field `write-amplification`: the value is 0.5",
        ),
        ("mb-per-s = 7000", "iops = 1\nmb-per-s = 7000", "field `limit[0], iops`: it has both or neither"),
        ("mb-per-s = 7000", "", "field `limit[0], iops`: it has both or neither"),
        ("mb-per-s = 7000", "mb-per-s = 0", "field `limit[0], rate a second`: the value is 0"),
        ("mb-per-s = 7000", "mb-per-s = 7000\nburst = -1", "field `limit[0], burst`"),
        ("mb-per-s = 7000", "mb-per-s = 7000\noperation-size = \"4KiB\"", "field `limit[0], operation-size`"),
        ("of = \"reads\"", "of = \"seeks\"", "unknown variant `seeks`"),
        ("flush-ms = 0.9", "", "missing field `flush-ms`"),
        ("flush-ms = 0.9", "rpm = 7200\nflush-ms = 0.9", "unknown field `rpm`"),
    ] {
        assert!(text.contains(old), "{old}");
        let error = AnyDrive::parse(&text.replacen(old, new, 1)).expect_err(new).to_string();
        assert!(error.contains(expected), "{new}: {error}");
    }
    let error = drive::open("ebs-gp3", Path::new("")).unwrap_err().to_string();
    assert_eq!(error, "the drive \"ebs-gp3\" does not rotate: name one that does, as nearline-2018");
}
