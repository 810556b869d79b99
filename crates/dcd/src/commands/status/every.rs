//! `dcd status --every TIME`: what each device has done in each interval.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use dcd_engine::Nanos;
use dcd_stack::HumanBytes;

use super::text::response_time;
use crate::control;
use crate::failure::Failure;
use crate::session::serving::status::{DeviceOps, DeviceStatus, ServerStatus};

/// Intervals below this one would ask the server more than they show.
const INTERVAL_MIN: Nanos = Nanos::from_millis(100);

/// Devices by their stack and name.
type DeviceLook = BTreeMap<(String, String), DeviceStatus>;

pub fn run(files: &[PathBuf], interval: Nanos) -> Result<(), Failure> {
    if interval < INTERVAL_MIN {
        return Err(Failure::Failed("--every: an interval is 100ms or more".to_owned()));
    }
    let (mut before, mut looked) = (look(files)?, Instant::now());
    loop {
        thread::sleep(Duration::from_nanos(interval.0));
        let now = look(files)?;
        let seconds = looked.elapsed().as_secs_f64();
        looked = Instant::now();
        match writeln!(std::io::stdout(), "{}", table(&before, &now, seconds)) {
            Ok(()) => before = now,
            // The reader has gone.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Failure::io("standard output", error)),
        }
    }
}

/// Asks all servers; it ends with the first that does not answer, as no interval is whole without it.
fn look(files: &[PathBuf]) -> Result<DeviceLook, Failure> {
    let answers = control::ask_all(files, ServerStatus::ask);
    let mut looked = DeviceLook::new();
    for status in answers {
        let status = status?;
        let stack = status.name();
        looked.extend(
            status.devices.into_iter().map(|device| ((stack.clone(), device.name().to_owned()), device)),
        );
    }
    match looked.is_empty() {
        true => Err(Failure::Failed("no stack is served: name one".to_owned())),
        false => Ok(looked),
    }
}

/// A line for each kind of operations that a device has ended in the interval, and one for a device without any.
fn table(before: &DeviceLook, now: &DeviceLook, seconds: f64) -> String {
    let stack_width = now.keys().map(|(stack, _)| stack.chars().count()).max().unwrap_or(0).max(5);
    let width = now.keys().map(|(_, device)| device.chars().count()).max().unwrap_or(0).max(6);
    let mut text = format!(
        "{:stack_width$}  {:width$}  {:7} {:>8} {:>11} {:>8} {:>8} {:>5} {:>6}\n",
        "stack", "device", "", "ops/s", "bytes/s", "p50", "p99", "queue", "errors"
    );
    for (key @ (stack, name), device) in now {
        let mut begun = format!("{stack:stack_width$}  {name:width$}");
        let old = before.get(key);
        let ops = device.operations.iter().map(|(kind, ops)| {
            let nothing = DeviceOps::default();
            let earlier = old.and_then(|old| old.operations.get(kind)).unwrap_or(&nothing);
            (kind.as_str(), ops.since(earlier))
        });
        let mut ops: Vec<(&str, DeviceOps)> = ops.filter(|(_, ops)| ops.count > 0).collect();
        if ops.is_empty() {
            ops.push(("idle", DeviceOps::default()));
        }
        let mut at_end = format!("{:>5} {:>6}", device.in_flight, errors(device, old));
        for (kind, ops) in ops {
            let time = |quantile| match ops.count {
                0 => "-".to_owned(),
                _ => response_time(ops.quantile_ms(quantile)),
            };
            let rate = HumanBytes((ops.bytes as f64 / seconds) as u64).to_string();
            let line = format!(
                "{begun}  {kind:7} {:>8.1} {rate:>11} {:>8} {:>8} {at_end}",
                ops.count as f64 / seconds,
                time(0.5),
                time(0.99),
            );
            let _ = writeln!(text, "{}", line.trim_end());
            begun = " ".repeat(stack_width + 2 + width);
            at_end.clear();
        }
    }
    text
}

/// Operations that have failed in the interval.
fn errors(device: &DeviceStatus, before: Option<&DeviceStatus>) -> u64 {
    let failed = |device: &DeviceStatus| device.failed_reads + device.failed_writes + device.failed_flushes;
    failed(device).saturating_sub(before.map_or(0, failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(writes: DeviceOps, failed_writes: u64) -> DeviceLook {
        let device = DeviceStatus {
            device: Some("data".to_owned()),
            failed_writes,
            in_flight: 3,
            operations: BTreeMap::from([
                ("read".to_owned(), DeviceOps { count: 7, bytes: 7 << 12, buckets: vec![(1.0, 7)] }),
                ("write".to_owned(), writes),
            ]),
            ..DeviceStatus::default()
        };
        BTreeMap::from([(("srv".to_owned(), "data".to_owned()), device)])
    }

    #[test]
    fn a_table_shows_what_was_done_since_the_one_before() {
        let before = device(DeviceOps { count: 100, bytes: 1 << 20, buckets: vec![(2.0, 100)] }, 1);
        let ops = DeviceOps { count: 200, bytes: 3 << 20, buckets: vec![(2.0, 150), (8.0, 49), (64.0, 1)] };
        let now = device(ops, 3);
        let lines = |text: String| -> Vec<Vec<String>> {
            text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
        };
        let all = lines(table(&before, &now, 2.0));
        assert_eq!(
            all[1],
            ["srv", "data", "write", "50.0", "1", "MiB", "2.00", "ms", "8.00", "ms", "3", "2"],
            "no read has ended since"
        );
        assert_eq!(all.len(), 2);
        let idle = lines(table(&now, &now, 2.0));
        assert_eq!(idle[1], ["srv", "data", "idle", "0.0", "0", "B", "-", "-", "3", "0"]);
        assert!(table(&before, &now, 2.0).lines().all(|line| line.chars().count() <= 80));
    }
}
