//! Measures how fast traces are written, read and counted: `cargo run --release -p dcd-trace --example speed`.

use std::time::Instant;

use dcd_engine::Nanos;
use dcd_trace::{Characteriser, DeviceId, Inputs, Options, Record, RecordOp, by_name, create, open};

const RECORDS: u64 = 1_000_000;

fn record(number: u64) -> Record {
    // Knuth's multiplicative hash: addresses all over 8 GiB.
    let start = number.wrapping_mul(2_654_435_761) % (1 << 21) * 8;
    let op = if number.is_multiple_of(3) { RecordOp::Read } else { RecordOp::Write };
    let at = Nanos::from_micros(number * 100);
    let record = Record::new(at, DeviceId(0), op, start, 8).expect("within the limits");
    record.answered_after(Some(Nanos::from_micros(80 + number % 50)))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir();
    for name in ["dcd", "msr", "spc", "disksim", "blkparse", "blktrace", "fio3", "vscsi2", "alibaba"] {
        let path = directory.join(format!("dcd-trace-speed-{}.{name}", std::process::id()));
        let mut writer = create(&path, by_name(name)?, &Inputs::default())?;
        let started = Instant::now();
        (0..RECORDS).try_for_each(|number| writer.write(&record(number)))?;
        writer.finish()?;
        let written = RECORDS as f64 / started.elapsed().as_secs_f64();
        let bytes = std::fs::metadata(&path)?.len();
        let mut reader = open(&path, None)?.reader;
        let mut summary = Characteriser::new(Options { blocks_max: None, service: Nanos::ZERO });
        let started = Instant::now();
        while let Some(record) = reader.next_record()? {
            summary.add(&record);
        }
        let read = RECORDS as f64 / started.elapsed().as_secs_f64();
        assert_eq!(summary.finish().all.writes.count, RECORDS - RECORDS.div_ceil(3));
        std::fs::remove_file(&path)?;
        let each = bytes as f64 / RECORDS as f64;
        println!(
            "{name:<9} {each:>5.1} bytes a record, written {written:>9.0}/s, read and summarised {read:>9.0}/s"
        );
    }
    Ok(())
}
