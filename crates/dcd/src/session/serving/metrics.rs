//! Metrics of served stacks as OpenMetrics text. Where bcache in node_exporter has a metric of the same meaning, the name is the same
//! after the prefix: dirty_data_bytes, cache_hits_total, bypassed_bytes_total, written_bytes_total.

use std::fmt;

use dcd_engine::log_cache::WearBudget;
use dcd_engine::mirror::MirrorStatus;
use dcd_engine::raid::ArrayStatus;
use dcd_engine::{LogCacheState, LogCacheStatus, SECTOR_BYTES};
use dcd_stack::{LayerStatus, ResponseTimes};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::session::serving::status::{DeviceState, ServerStatus};
use crate::session::serving::verdict::Verdict;

/// The upper ends of the buckets of response times in seconds: from a log in memory to a disk that wakes up.
const BUCKETS: [f64; 17] = [
    0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
    0.5, 1.0, 2.5, 10.0,
];
const YEAR_SECONDS: f64 = 365.25 * 86_400.0;
/// Size of a block that is counted as lost.
const LOST_BLOCK_BYTES: u64 = 4096;

/// The metrics of all these stacks; a label tells them apart.
pub fn openmetrics(stacks: &[ServerStatus]) -> String {
    let mut families = Families::default();
    stacks.iter().for_each(|status| server(status, &mut families));
    let mut registry = Registry::with_prefix("dcd");
    registry.register_collector(Box::new(families));
    let mut text = String::new();
    text::encode(&mut text, &registry).expect("a string takes all that is written");
    text
}

type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
enum Sample {
    Gauge(f64),
    Counter(u64),
    Histogram { sum: f64, count: u64, buckets: Vec<(f64, u64)> },
    Info,
}

/// All samples of one name.
#[derive(Debug)]
struct MetricFamily {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    samples: Vec<(Labels, Sample)>,
}

/// Families of samples, in the order of their first sample: the format wants all samples of one name together.
#[derive(Debug, Default)]
struct Families(Vec<MetricFamily>);

impl Families {
    fn add(
        &mut self,
        name: &'static str,
        help: &'static str,
        unit: Option<Unit>,
        labels: Labels,
        sample: Sample,
    ) {
        match self.0.iter_mut().find(|family| family.name == name) {
            Some(family) => family.samples.push((labels, sample)),
            None => self.0.push(MetricFamily { name, help, unit, samples: vec![(labels, sample)] }),
        }
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for MetricFamily { name, help, unit, samples } in &self.0 {
            let kind = samples.first().map_or(MetricType::Unknown, |(_, sample)| sample.kind());
            let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
            for (labels, sample) in samples {
                match sample {
                    Sample::Info => metric.encode_info(labels)?,
                    sample => sample.encode(metric.encode_family(labels)?)?,
                }
            }
        }
        Ok(())
    }
}

impl Sample {
    const fn kind(&self) -> MetricType {
        match self {
            Sample::Gauge(_) => MetricType::Gauge,
            Sample::Counter(_) => MetricType::Counter,
            Sample::Histogram { .. } => MetricType::Histogram,
            Sample::Info => MetricType::Info,
        }
    }

    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Sample::Gauge(value) => encoder.encode_gauge(value),
            Sample::Counter(value) => encoder.encode_counter::<NoLabelSet, u64, u64>(value, None),
            Sample::Histogram { sum, count, buckets } => {
                encoder.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)
            }
            Sample::Info => Ok(()),
        }
    }
}

/// Collects the samples of a stack, a layer or a device, with their labels.
struct Of<'a> {
    families: &'a mut Families,
    labels: Labels,
}

impl Of<'_> {
    fn with(&mut self, label: &'static str, value: &str) -> Of<'_> {
        let mut labels = self.labels.clone();
        labels.push((label, value.to_owned()));
        Of { families: &mut *self.families, labels }
    }

    fn add(&mut self, name: &'static str, help: &'static str, unit: Option<Unit>, sample: Sample) {
        self.families.add(name, help, unit, self.labels.clone(), sample);
    }

    fn bytes(&mut self, name: &'static str, help: &'static str, bytes: u64) {
        self.add(name, help, Some(Unit::Bytes), Sample::Gauge(bytes as f64));
    }

    fn bytes_total(&mut self, name: &'static str, help: &'static str, bytes: u64) {
        self.add(name, help, Some(Unit::Bytes), Sample::Counter(bytes));
    }

    fn total(&mut self, name: &'static str, help: &'static str, count: u64) {
        self.add(name, help, None, Sample::Counter(count));
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, value: f64) {
        self.add(name, help, None, Sample::Gauge(value));
    }

    fn flag(&mut self, name: &'static str, help: &'static str, is: bool) {
        self.gauge(name, help, f64::from(u8::from(is)));
    }

    fn seconds(&mut self, name: &'static str, help: &'static str, seconds: f64) {
        self.add(name, help, Some(Unit::Seconds), Sample::Gauge(seconds));
    }
}

fn server(status: &ServerStatus, families: &mut Families) {
    let mut of = Of { families, labels: vec![("stack", status.name())] };
    of.with("export", &status.export).add("stack", "What is served", None, Sample::Info);
    if let Some(version) = &status.version {
        of.with("version", version).add("build", "The server's program", None, Sample::Info);
    }
    let help = "Exit code that dcd status has: 0, 4 (damage) or 5 (degraded)";
    of.gauge("health", help, f64::from(Verdict::of(status).health.code()));
    of.seconds("uptime", "Time since the server started", status.uptime_seconds);
    of.gauge("requests_in_flight", "Requests that are not answered", status.requests.in_flight as f64);
    let requests = &status.requests;
    for (operation, times) in [
        ("read", &requests.read),
        ("write", &requests.write),
        ("flush", &requests.flush),
        ("discard", &requests.other),
    ] {
        response_times(&mut of.with("operation", operation), times);
    }
    for (name, layer) in &status.layers {
        let mut of = of.with("layer", name);
        if let Some(bytes) = layer.dirty_bytes() {
            of.bytes("dirty_data", "Data that is not on the disks below yet", bytes);
        }
        match layer {
            LayerStatus::LogCache(cache) => {
                log_cache(&mut of, cache);
                if let Some(rate) = status.day_rate(cache) {
                    let help =
                        "All that is written to the log's device in a day, at the rate of the last day";
                    of.bytes("log_device_written_daily", help, rate as u64);
                }
            }
            LayerStatus::Raid(array) => raid(&mut of, array),
            LayerStatus::Mirror(mirror) => legs(&mut of, mirror),
            _ => {}
        }
    }
    devices(status, &mut of);
}

fn response_times(of: &mut Of<'_>, times: &ResponseTimes) {
    let mut buckets: Vec<(f64, u64)> = BUCKETS.iter().chain(&[f64::INFINITY]).map(|end| (*end, 0)).collect();
    for (end_ms, count) in &times.buckets {
        let fits = buckets.iter_mut().find(|(end, _)| *end_ms / 1e3 <= *end);
        fits.expect("the last one takes all").1 += count;
    }
    let histogram =
        Sample::Histogram { sum: times.mean_ms / 1e3 * times.count as f64, count: times.count, buckets };
    of.add("request_duration", "Response times of clients' requests", Some(Unit::Seconds), histogram);
    of.bytes_total("request", "Data that clients' requests moved", times.bytes);
    of.total("request_errors", "Clients' requests that failed", times.errors);
}

fn log_cache(of: &mut Of<'_>, cache: &LogCacheStatus) {
    let counts = &cache.statistics;
    let ranges = cache.dirty_discard_bytes + cache.dirty_zeroes_bytes;
    of.bytes(
        "dirty_discards",
        "Discards and zeroes in dirty_data, which most disks do much faster than they write",
        ranges,
    );
    of.bytes("log_size", "The log's segments", cache.size_bytes);
    of.bytes("log_used", "Segments of the log that are in use", cache.used_bytes);
    of.bytes("cached_data", "Data that reads can take from the log", cache.cached_bytes);
    for (source, bytes) in [
        ("ram", counts.read_ram_bytes),
        ("dirty", counts.read_dirty_bytes),
        ("clean", counts.read_clean_bytes),
        ("miss", counts.read_miss_bytes),
    ] {
        of.with("source", source).bytes_total("cache_read", "Data that was read, by its source", bytes);
    }
    of.total("cache_hits", "Reads that came from the cache, at least in part", counts.read_hits);
    of.total(
        "cache_misses",
        "Reads of which nothing came from the cache",
        counts.reads.saturating_sub(counts.read_hits),
    );
    of.bytes_total("bypassed", "Writes that bypassed the log", counts.bypassed_sectors * SECTOR_BYTES);
    of.bytes_total("written", "Data written to the log", counts.log_bytes);
    of.bytes_total(
        "log_device_written",
        "All that was written to the log's device",
        counts.log_device_bytes(),
    );
    of.bytes_total(
        "log_discarded",
        "Freed segments of the log that were discarded",
        counts.log_discarded_bytes,
    );
    if cache.wear_budget != WearBudget::None {
        let help = "Bytes that may be written to the log's device in a day before it is spared";
        of.bytes("wear_budget", help, cache.wear_budget_bytes);
        let help = "1 while that budget is used up";
        of.flag("wear_budget_used_up", help, cache.wear_budget == WearBudget::UsedUp);
    }
    let destaged = (counts.destaged_sectors + counts.destaged_range_sectors) * SECTOR_BYTES;
    of.bytes_total("destaged", "Data written back to the data disk", destaged);
    of.total("destage_errors", "Attempts to write back that failed", counts.destage_errors);
    of.total("log_read_errors", "Reads of the log that failed", counts.log_read_errors);
    of.total(
        "log_other_copies",
        "Reads of the log that were wrong on one leg and right on another",
        counts.log_other_copy,
    );
    of.total("throttled", "Answers that were delayed as the log was filling", counts.throttled);
    of.flag("destage_failing", "1 while the last attempt to write back has failed", cache.destage_failing);
    of.flag("destage_held", "1 while write-back is paused, or its window is closed", cache.destage_held);
    of.flag("destage_limited", "1 while write-back waits for destage-rate", cache.destage_limited);
    of.flag("log_failed", "1 once the log device has failed", cache.state == LogCacheState::LogFailed);
    of.bytes(
        "flush_at_risk",
        "Data that a failed flush of the data disk may have lost",
        cache.flush_at_risk_bytes,
    );
    of.bytes("lost_data", LOST, cache.lost_blocks as u64 * LOST_BLOCK_BYTES);
}

const LOST: &str = "Data that cannot be read any more";

fn legs(of: &mut Of<'_>, mirror: &MirrorStatus) {
    of.gauge("log_legs", "Legs of the log", mirror.listed() as f64);
    of.gauge("log_legs_whole", "Legs that have all that was acknowledged", mirror.whole() as f64);
    let counts = &mirror.statistics;
    of.total("log_legs_failed", "Legs that have failed", counts.legs_failed);
    of.total("log_reads_elsewhere", "Reads that one leg failed and another answered", counts.reads_elsewhere);
    of.total(
        "log_places_mended",
        "Blocks that a leg could not read and that were written again",
        counts.mended,
    );
}

fn raid(of: &mut Of<'_>, array: &ArrayStatus) {
    of.gauge("raid_members", "Members of the array", array.members as f64);
    of.gauge("raid_failed_members", "Members that have failed", array.failed_members.len() as f64);
    of.flag("raid_journal_failed", "1 while the array's journal has failed", array.journal_failed);
    of.gauge("raid_regions_in_doubt", "Regions whose parity may be wrong", array.regions_in_doubt as f64);
    if let Some(pass) = &array.pass {
        let progress = Sample::Gauge(pass.percent / 100.0);
        let help = "Progress of a resync, rebuild or scrub";
        of.with("pass", pass.kind.word()).add("raid_pass_progress_ratio", help, None, progress);
    }
    of.bytes("lost_data", LOST, array.blocks_lost() as u64 * LOST_BLOCK_BYTES);
}

fn devices(status: &ServerStatus, of: &mut Of<'_>) {
    for device in &status.devices {
        let mut of = of.with("device", device.name());
        for (operation, failed) in
            [("read", device.failed_reads), ("write", device.failed_writes), ("flush", device.failed_flushes)]
        {
            of.with("operation", operation).total(
                "device_errors",
                "Operations that the device failed",
                failed,
            );
        }
        for (operation, ops) in &device.operations {
            let mut of = of.with("operation", operation);
            of.total("device_operations", "Operations that the device has ended", ops.count);
            of.bytes_total("device_operation", "Bytes of these operations", ops.bytes);
        }
        of.gauge("device_in_flight", "Operations that the device has not answered", device.in_flight as f64);
        let help = "1 while a cache or array runs without the device";
        of.flag("device_failed", help, device.state == DeviceState::Failed);
        let help = "1 while the device works only until the server ends, as its file was deleted or moved";
        of.flag("device_removed", help, device.state == DeviceState::Removed);
        for ssd in &device.ssds {
            let mut of = of.with("disk", &ssd.disk);
            let help = "Share of the SSD's rated life that is used, by its own count";
            let used = Sample::Gauge(f64::from(ssd.used_percent) / 100.0);
            of.add("ssd_life_used_ratio", help, None, used);
            if let Some(years) = ssd.years_left {
                let help = "Time until all of that life is used, at the rate of the last day";
                of.seconds("ssd_life_left", help, years * YEAR_SECONDS);
            }
        }
        let silent = status.devices_not_answering.iter().find(|silent| silent.path == device.path);
        let seconds = silent.map_or(0.0, |silent| silent.seconds);
        of.seconds("device_not_answering", "For how long the device has not answered, from 10 s on", seconds);
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
