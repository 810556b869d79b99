//! `dcd calibrate`: the stride benchmark on a device, or on a modelled drive in virtual time.

mod result;
mod store;

use std::path::Path;

use dcd_engine::raid::stride::{BLOCK_BYTES, StrideBench, StridePass, THRESHOLD};
use dcd_engine::{DeviceIndex, Extent, Geometry, Io, Lba, Nanos, Pump, SECTOR_BYTES, StackBuilder};
use dcd_io::{FileDevice, FileSpec};
use dcd_stack::{DeviceOpener, HumanBytes};

use crate::advice::Advised;
use crate::cli::Calibrate;
use crate::commands::Modelled;
use crate::failure::Failure;
use crate::output::print_json;
use crate::progress::Progress;
use crate::session::devices::{Opener, Purpose};
use crate::session::probe::probe;
use crate::session::record::{DiskRecord, admit_plain};
use crate::session::site::Site;
use result::{CalibrationResult, Measured};
use store::GapLayer;

/// Minimum span: shorter passes are no measure.
const SPAN_MIN: u64 = 1 << 20;

pub fn run(args: &Calibrate, modelled: Option<Modelled>) -> Result<(), Failure> {
    check(args)?;
    // Checked first: a result that cannot be stored need not be measured.
    let target = match &args.store {
        Some(file) => Some(GapLayer::choose(file, args.layer.as_deref())?),
        None => None,
    };
    let found = found(args, modelled)?;
    if args.json {
        print_json(&found)?;
    } else {
        print!("{found}");
    }
    match target {
        Some(target) => {
            let told = target.store(&found)?;
            if !args.json {
                println!("\n{told}");
            }
        }
        None if !args.json => println!(
            "\nAn array of such disks, or a log cache before one, uses this once it is stored: --store STACK"
        ),
        None => {}
    }
    Ok(())
}

fn found(args: &Calibrate, modelled: Option<Modelled>) -> Result<CalibrationResult, Failure> {
    let (device, read, write) = match (&args.device, &args.drive, &args.from) {
        (Some(path), ..) => {
            let (reads, writes) = of_device(args, path)?;
            (path.display().to_string(), reads, writes)
        }
        (_, Some(name), _) => {
            let Some(times) = modelled else {
                return Err(Failure::Failed("--drive: modelled drives are a part of dcd-lab".to_owned()));
            };
            let times =
                |writes| times(name, &|whole| passes(args, writes, whole)).map(|t| measured(args, &t));
            (name.clone(), times(false)?, Some(times(true)?))
        }
        (.., Some(path)) => return CalibrationResult::load(path),
        (None, None, None) => unreachable!("the parser wants one of them"),
    };
    Ok(CalibrationResult {
        device,
        block_bytes: BLOCK_BYTES,
        span_bytes: args.span,
        threshold: THRESHOLD,
        read,
        write,
    })
}

fn check(args: &Calibrate) -> Result<(), Failure> {
    let rising = args.strides.windows(2).all(|pair| pair[0] < pair[1]);
    if !rising || args.strides.first().is_none_or(|first| *first < 2) {
        return Err(Failure::Failed("--strides: write rising numbers, the first 2 or more".to_owned()));
    }
    if args.span < SPAN_MIN || !args.span.is_multiple_of(BLOCK_BYTES) {
        let least = HumanBytes(SPAN_MIN);
        return Err(Failure::Failed(format!(
            "--span: {} bytes; write a multiple of 4096, at least {least}",
            args.span
        )));
    }
    if let Some((offset, length)) = args.write_range
        && (!offset.is_multiple_of(BLOCK_BYTES) || length < args.span)
    {
        return Err(Failure::Failed(format!(
            "--write-range: the offset must be a multiple of 4096, and the length at least {} (--span)",
            HumanBytes(args.span)
        )));
    }
    Ok(())
}

/// Makes the contiguous pass and one for each stride, each in a place of its own while there is space: reads from the
/// disk's cache would be no measure of the disk.
fn passes(args: &Calibrate, writes: bool, region: Extent) -> Vec<StridePass> {
    let span = args.span / SECTOR_BYTES;
    let places = region.sectors / span;
    let at = |index: usize| Extent::new(region.start + (index as u64 % places) * span, span);
    let strides = std::iter::once(1).chain(args.strides.iter().copied());
    strides.enumerate().map(|(index, stride)| StridePass::strided(writes, at(index), stride)).collect()
}

fn measured(args: &Calibrate, times: &[Nanos]) -> Measured {
    let contiguous = times[0].as_secs_f64();
    let over = times[1..].iter().map(|time| time.as_secs_f64() / contiguous);
    Measured::new(args.span as f64 / contiguous, args.strides.iter().copied().zip(over).collect())
}

fn of_device(args: &Calibrate, path: &Path) -> Result<(Measured, Option<Measured>), Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::Failed(format!("{}: {e}", path.display()));
    if args.write_range.is_some() {
        admit_writes(path, args.force)?;
    }
    let site = Site::of_device(path, args.write_range.is_none())?;
    let mut opener = Opener::new(&site, Purpose::Change);
    let geometry =
        opener.open(DeviceIndex(0), &site.devices[0]).map_err(|e| Failure::Failed(e.to_string()))?;
    let mut work = passes(args, false, region(args, path, geometry, None)?);
    let reads = work.len();
    if args.write_range.is_some() {
        work.extend(passes(args, true, region(args, path, geometry, args.write_range)?));
    }
    let count = work.len();
    let mut driver = dcd_io::Driver::new()?;
    for device in opener.into_devices() {
        driver.add_device(device).map_err(|e| failed(&e))?;
    }
    let mut builder = StackBuilder::new();
    let device = builder.device(geometry);
    let root = builder.layer("strides", Box::new(StrideBench::new(work)), &[device]);
    let mut stack = builder.finish(root);
    stack.activate(&mut driver).map_err(|e| failed(&e.told()))?;
    let mut progress = Progress::new(false);
    let mut times = Vec::with_capacity(count);
    for done in 0..count {
        progress.left((count - done) as u64 * args.span);
        let began = driver.now();
        stack.run_blocking(&mut driver, root, Io::Flush).status.map_err(|e| failed(&e))?;
        times.push(driver.now().since(began));
    }
    progress.end();
    let writes = (count > reads).then(|| measured(args, &times[reads..]));
    Ok((measured(args, &times[..reads]), writes))
}

/// Returns the range of a device to measure in; fails if it has no space for a pass.
fn region(
    args: &Calibrate,
    path: &Path,
    geometry: Geometry,
    range: Option<(u64, u64)>,
) -> Result<Extent, Failure> {
    let bytes = geometry.sectors * SECTOR_BYTES;
    let (offset, length) = range.unwrap_or((0, bytes));
    let fits = offset.checked_add(length).is_some_and(|end| end <= bytes);
    if !fits || length < args.span {
        return Err(Failure::Failed(format!(
            "{}: has {}; that is too little for {} from {} on: choose another range, or a smaller --span",
            path.display(),
            HumanBytes(bytes),
            HumanBytes(length.max(args.span)),
            HumanBytes(offset),
        )));
    }
    Ok(Extent::new(Lba(offset / SECTOR_BYTES), length / SECTOR_BYTES))
}

/// Refuses to write to a disk that a cache is attached to, and, without force, to one that is not blank.
fn admit_writes(path: &Path, force: bool) -> Result<(), Failure> {
    if path.to_str().is_some_and(dcd_nbd::Uri::is_meant) {
        return Err(Failure::Failed(format!(
            "{}: an export of a server is measured by reading only: leave --write-range out",
            path.display()
        )));
    }
    let spec = FileSpec { read_only: true, ..FileSpec::new(path) };
    let mut device = FileDevice::open(&spec).map_err(|e| Failure::Failed(e.to_string()))?;
    let whole = Extent::new(Lba(0), dcd_engine::BlockDevice::geometry(&device).sectors);
    let found = probe(&mut device).map_err(|e| Failure::Failed(e.to_string()))?;
    drop(device);
    admit_plain(&DiskRecord::open(path, whole)?.load()?, whole)?;
    match found.filter(|_| !force) {
        None => Ok(()),
        Some(what) => Err(Failure::refused(
            format!("{} holds {what}, and --write-range overwrites a part of it", path.display()),
            "leave the option out to measure only reads, or add --force",
        )),
    }
}
