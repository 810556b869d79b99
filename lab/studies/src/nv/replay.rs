//! A write cache before modelled disks, under a trace: each request comes at its time, whether those before it have been
//! answered or not.

use dcd_crash::{BlankDisk, DriverProgress, Latency, VirtualDriver};
use dcd_engine::{
    Buf, Durability, Geometry, Io, LayerIndex, Lba, Nanos, Pump, RequestId, Stack, StackBuilder, Target,
};
use dcd_model::write_cache::{DiskMap, Metrics, RegionUnit, WriteCache, WriteCacheConfig};
use dcd_model::{Disk, DiskConfig, Drive, Scheduler, disk_map, drive};
use dcd_trace::{Record, RecordOp};
use serde_json::Value;

use crate::LabError;

#[derive(Clone, Debug)]
pub(crate) struct ReplayCase {
    pub config: WriteCacheConfig,
    pub unit: RegionUnit,
    /// Names of drives; the trace's device 0 is the first.
    pub drives: Vec<&'static str>,
}

/// Counts over all disks, and of each.
pub(crate) struct Counted {
    pub all: Metrics,
    pub disks: Vec<Metrics>,
}

fn build(case: &ReplayCase, drives: &[Drive]) -> (Stack, LayerIndex, VirtualDriver<BlankDisk>) {
    let geometry = |drive: &Drive| Geometry { volatile_cache: false, ..Geometry::plain(drive.sectors()) };
    let devices = drives.iter().map(|drive| BlankDisk::new(geometry(drive), Latency::INSTANT, 1)).collect();
    let mut builder = StackBuilder::new();
    let mut ports = Vec::new();
    let mut maps: Vec<DiskMap> = Vec::new();
    for (number, drive) in drives.iter().enumerate() {
        let device = builder.device(geometry(drive));
        // The controller serves in turn (section 2), and these drives have no queue of their own.
        let config = DiskConfig { queue: Scheduler::Fcfs, ..DiskConfig::default() };
        let disk = Disk::with_drive(drive.clone(), &config);
        ports.push(builder.layer(&format!("disk-{number}"), Box::new(disk), &[device]));
        maps.push(disk_map(drive, case.unit));
    }
    let cache = WriteCache::new(case.config, maps);
    let Target::Layer(index) = builder.layer("cache", Box::new(cache), &ports) else {
        unreachable!("a layer was added")
    };
    (builder.finish(Target::Layer(index)), index, VirtualDriver::new(devices))
}

/// The drives of a case. Where a cylinder is what one visit can reach, all its dirty blocks pass in one rotation (section
/// 2.3: the heads are aligned, by a dedicated servo surface), so that changing the head takes no time.
fn drives(case: &ReplayCase) -> Result<Vec<Drive>, LabError> {
    let aligned = |drive: Drive| match case.unit {
        RegionUnit::Track => drive,
        RegionUnit::Cylinder => drive.with_head_switch(Nanos::ZERO),
    };
    case.drives.iter().map(|name| drive::builtin(name).map(aligned).map_err(LabError::setup)).collect()
}

/// Runs a trace to its end. What is dirty then stays in the cache and is not counted, as in the paper.
pub(crate) fn replay(case: &ReplayCase, records: &[Record]) -> Result<Counted, LabError> {
    let drives = drives(case)?;
    let (mut stack, cache, mut driver) = build(case, &drives);
    stack.activate(&mut driver).map_err(LabError::setup)?;
    let places = places(&drives);
    let begin = driver.now();
    let first = records.first().map_or(Nanos::ZERO, |record| record.at);
    for (index, record) in records.iter().enumerate() {
        let at = begin + record.at.since(first);
        driver.set_alarm(at, index as u64);
        while driver.step(&mut stack) != DriverProgress::Alarm(index as u64) {
            drain(&mut driver)?;
        }
        if let Some(io) = request(record, &places) {
            driver.request(&mut stack, RequestId(index as u64), io);
        }
    }
    while driver.step(&mut stack) != DriverProgress::Idle {
        drain(&mut driver)?;
    }
    drain(&mut driver)?;
    let status = stack.layer(cache).status(driver.now()).to_json();
    Ok(Counted { all: counts(&status["counts"])?, disks: counts(&status["counts_per_disk"])? })
}

fn counts<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, LabError> {
    serde_json::from_value(value.clone()).map_err(LabError::setup)
}

/// Returns the start of each disk in the cache's space of addresses, and its sectors.
fn places(drives: &[Drive]) -> Vec<(u64, u64)> {
    let mut first = 0;
    let mut place = |drive: &Drive| {
        let this = (first, drive.sectors());
        first += drive.sectors();
        this
    };
    drives.iter().map(&mut place).collect()
}

/// A disk that is smaller than the one that was traced is wrapped round.
fn request(record: &Record, places: &[(u64, u64)]) -> Option<Io> {
    let (first, sectors) = places[record.device.0 as usize % places.len()];
    let length = record.extent.sectors.min(sectors);
    let start = record.extent.start.0 % (sectors - length + 1);
    let buf = Buf::blank((length * dcd_engine::SECTOR_BYTES) as usize);
    let at = Lba(first + start);
    match record.op {
        RecordOp::Read => Some(Io::Read { at, buf }),
        RecordOp::Write => Some(Io::Write { at, buf, durability: Durability::Volatile }),
        // The paper's traces have neither.
        RecordOp::Discard | RecordOp::Flush => None,
    }
}

fn drain(driver: &mut VirtualDriver<BlankDisk>) -> Result<(), LabError> {
    while let Some((_, result)) = driver.take_reply() {
        result.status.map_err(LabError::setup)?;
    }
    Ok(())
}
