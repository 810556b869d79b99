//! `dcd tune`: reads a trace, searches, and writes what came out.

mod many;

use std::path::{Path, PathBuf};

use dcd_engine::SECTOR_BYTES;
use dcd_engine::log_cache::Promise;
use dcd_model::{AnyDrive, drive};
use dcd_stack::HumanBytes;
use dcd_trace::{Inputs, inputs_of_trace};
use indicatif::ProgressBar;

use crate::cli_tune::{Tune, flag};
use crate::commands::trace::{opened, tell_note};
use crate::failure::Failure;
use crate::jobs::{jobs, progress};
use crate::load::{Purpose, Workload};
use crate::tune::{
    ALIGN_BYTES, Grid, LOG_BYTES_MIN, LogPlace, MEDIA, Medium, Places, Priced, RAM_BYTES_MIN, Report,
    SearchOptions, Setting, Sizes, page, search,
};

/// Unit and minimum of the part of the drive that the trace uses: disks smaller than this can hardly be cached.
const DATA_UNIT_BYTES: u64 = 16 << 20;
/// Path of the log if none is named.
const LOG_DEFAULT: &str = "log.img";
/// The files in --out.
const RESULTS: [&str; 4] = ["tune.html", "tune.json", "serve.toml", "simulate.toml"];

pub fn run(args: &Tune) -> Result<(), Failure> {
    let [input] = &args.inputs[..] else { return many::run(args) };
    if input.is_dir() {
        return many::run(args);
    }
    let bar = progress(args.reading.quiet, "runs");
    let tuned = tune(args, input, args.out.as_deref(), jobs(args.jobs), &bar)?;
    bar.finish_and_clear();
    match args.json {
        true => println!("{}", tuned.json),
        false => print!("{}", tuned.text),
    }
    match &args.out {
        None if args.json => {}
        None => print!("\nStack file to serve (--out DIR writes it, and the plots):\n\n{}", tuned.served),
        Some(directory) => eprintln!("dcd: the report is {}", directory.join("tune.html").display()),
    }
    Ok(())
}

/// Result for one trace.
struct Tuned {
    json: serde_json::Value,
    text: String,
    served: String,
}

/// Finds the cache for one trace, and writes the results into a directory.
fn tune(
    args: &Tune,
    input: &Path,
    out: Option<&Path>,
    jobs: usize,
    bar: &ProgressBar,
) -> Result<Tuned, Failure> {
    let (drive_name, drive) = drive(&args.drive)?;
    let ssd = args.ssd_drive.as_deref().map(self::drive).transpose()?;
    let endures = ssd.as_ref().and_then(|(_, ssd)| ssd.solid()?.endurance_bytes());
    let mut trace = opened(input, &args.reading)?;
    let workload =
        Workload::read(&mut *trace.reader, args.device, drive.logical_block_bytes(), Purpose::Tune);
    tell_note(&*trace.reader);
    let mut workload = workload?;
    let place = args.log.as_deref().map(|log| LogPlace::find(log, &args.disk));
    let sizes = sizes(args, place.as_ref())?;
    let priced = media(args, place.as_ref())?;
    let media: Vec<Medium> = priced.iter().map(|(medium, _)| *medium).collect();
    admit(&drive, &workload)?;
    if let (Some(log), Some(place)) = (&args.log, &place) {
        workload.notes.push(about_log(log, place, &media));
    }
    let inputs = inputs(args, [input]);
    // Now, and not when all of the work is done.
    if let Some(directory) = out {
        std::fs::create_dir_all(directory).map_err(|e| Failure::io(directory.display(), e))?;
        RESULTS.iter().try_for_each(|name| inputs.check(&directory.join(name)))?;
    }
    let setting = Setting {
        drive_name,
        data_bytes: data_bytes(&workload, &drive),
        drive,
        promise: promise(args, &workload, &media)?,
        block_bytes: workload.block_bytes,
        endurance_bytes: args.endurance.or(endures),
        ssd,
    };
    let options =
        SearchOptions { objective: args.objective, within: args.within / 100.0, jobs, verify: args.verify };
    let grid = grid(args, &priced, &sizes, &setting, &workload, place.as_ref())?;
    let found = search(&setting, &workload, grid, options, bar)?;
    let name = input.display().to_string();
    let report = Report::new(name, &setting, &workload, (args.objective, options.within), &found);
    let candidate = &found.tried[found.recommended].candidate;
    let places = Places {
        disk: &args.disk,
        log: args.log.as_deref().unwrap_or(Path::new(LOG_DEFAULT)),
        log_bytes: place.and_then(|place| place.bytes),
    };
    let served = setting.served(candidate, &places);
    if let Some(directory) = out {
        write(directory, &inputs, &report, &served, &setting.simulated(candidate))?;
    }
    Ok(Tuned { json: report.json(), text: report.text(), served })
}

/// Lists the files that are read and the disks that are named: no result is written over any of them.
fn inputs<'a>(args: &Tune, traces: impl IntoIterator<Item = &'a Path>) -> Inputs {
    let mut inputs = Inputs::new(traces.into_iter().flat_map(inputs_of_trace));
    [Path::new(&args.drive), &args.disk]
        .into_iter()
        .chain(args.log.as_deref())
        .chain(args.ssd_drive.as_deref().map(Path::new))
        .for_each(|path| inputs.add(path));
    inputs
}

fn write(
    directory: &Path,
    inputs: &Inputs,
    report: &Report<'_>,
    served: &str,
    simulated: &str,
) -> Result<(), Failure> {
    let heading = format!(
        "# Made by \"dcd tune {}\": {}\n",
        report.trace.replace(char::is_control, "?"),
        report.recommended_words()
    );
    let texts = [
        page(report, served),
        format!("{}\n", report.json()),
        format!("{heading}{served}"),
        format!("{heading}{simulated}"),
    ];
    for (name, text) in RESULTS.iter().zip(texts) {
        inputs.write(&directory.join(name), text)?;
    }
    Ok(())
}

/// The drive, and its name for a stack file that may lie anywhere.
fn drive(name: &str) -> Result<(String, AnyDrive), Failure> {
    let path = PathBuf::from(name);
    let drive = AnyDrive::open(name, &path).map_err(|e| Failure::Failed(format!("drive {name}: {e}")))?;
    if drive::text(name).is_some() {
        return Ok((name.to_owned(), drive));
    }
    let absolute = path.canonicalize().map_err(|e| Failure::io(path.display(), e))?;
    Ok((absolute.display().to_string(), drive))
}

/// The sizes to begin with.
fn sizes(args: &Tune, place: Option<&LogPlace>) -> Result<Sizes, Failure> {
    let sorted = |sizes: &[u64], least: u64, flag: &str| {
        let mut sizes = sizes.to_vec();
        sizes.sort_unstable();
        sizes.dedup();
        match sizes.first() {
            Some(&size) if size >= least && sizes.iter().all(|size| size.is_multiple_of(4096)) => Ok(sizes),
            _ => Err(Failure::Failed(format!(
                "{flag}: sizes are multiples of 4096 bytes, and at least {}",
                HumanBytes(least)
            ))),
        }
    };
    if let (Some(path), Some(bytes)) = (&args.log, place.and_then(|place| place.bytes))
        && bytes < LOG_BYTES_MIN
    {
        return Err(Failure::Failed(format!(
            "--log {}: it has {}, and a log needs at least {}: name a larger device",
            path.display(),
            HumanBytes(bytes),
            HumanBytes(LOG_BYTES_MIN)
        )));
    }
    Ok(Sizes {
        log: sorted(&args.log_sizes, LOG_BYTES_MIN, "--log-sizes")?,
        ram: sorted(&args.ram_sizes, RAM_BYTES_MIN, "--ram-sizes")?,
    })
}

/// Lists the media that a cache can use. A log that is named is on one medium.
fn media(args: &Tune, place: Option<&LogPlace>) -> Result<Vec<Priced>, Failure> {
    let named = |medium: Medium| Some((medium, args.price(medium)?));
    let mut media: Vec<Priced> = MEDIA.into_iter().filter_map(named).collect();
    if media.is_empty() {
        let without = place.map_or(vec![Medium::SameDisk, Medium::Ssd], |place| vec![place.medium]);
        media = without.into_iter().map(|medium| (medium, 0.0)).collect();
    }
    if place.is_some() && media.iter().filter(|(medium, _)| medium.has_log()).count() != 1 {
        return Err(Failure::Failed(
            "--log names one place for a log, and the flags for media not one: leave them out, or say what the log is on (one of \
             --same-disk, --other-disk, --ssd)"
                .to_owned(),
        ));
    }
    Ok(media)
}

/// Explains which medium the named log is taken for.
fn about_log(log: &Path, place: &LogPlace, media: &[Medium]) -> String {
    let taken = media.iter().find(|medium| medium.has_log()).map_or("", |medium| medium.words());
    let said = media.iter().find(|medium| medium.has_log()).map_or("", |medium| flag(*medium));
    let why = if media.contains(&place.medium) { place.why.to_owned() } else { format!("{said} says so") };
    let bytes = place.bytes.map(|bytes| format!(", of {}", HumanBytes(bytes))).unwrap_or_default();
    format!("--log {}{bytes}: a {taken}, as {why}", log.display())
}

/// The trace has to fit the drive.
fn admit(drive: &AnyDrive, workload: &Workload) -> Result<(), Failure> {
    if workload.end <= drive.sectors() {
        return Ok(());
    }
    let fits =
        |name: &&str| AnyDrive::open(name, Path::new("")).is_ok_and(|drive| drive.sectors() >= workload.end);
    let fitting = drive::names().filter(fits);
    let fitting: Vec<&str> = fitting.collect();
    Err(Failure::Failed(format!(
        "the trace reaches to {}, and the drive {} has {}: take a larger one ({}), or shrink the trace (dcd trace scale --space)",
        HumanBytes(workload.end * SECTOR_BYTES),
        drive.name(),
        HumanBytes(drive.sectors() * SECTOR_BYTES),
        if fitting.is_empty() { "none that comes with dcd does".to_owned() } else { fitting.join(", ") }
    )))
}

/// The candidates, as far as there is room for them.
fn grid(
    args: &Tune,
    priced: &[Priced],
    sizes: &Sizes,
    setting: &Setting,
    workload: &Workload,
    place: Option<&LogPlace>,
) -> Result<Grid, Failure> {
    let drive_bytes = setting.drive.sectors() * SECTOR_BYTES;
    let on_drive = |medium| match medium {
        Medium::SameDisk => drive_bytes - setting.data_bytes,
        Medium::OtherDisk => drive_bytes,
        Medium::Ssd => setting.ssd.as_ref().map_or(u64::MAX, |(_, ssd)| ssd.sectors() * SECTOR_BYTES),
        Medium::None | Medium::Ram | Medium::Nvram => u64::MAX,
    };
    let room = |medium: Medium| {
        let named = place.and_then(|place| place.bytes).filter(|_| medium.has_log()).unwrap_or(u64::MAX);
        on_drive(medium).min(named).min(args.size_max)
    };
    // RAM holds each block once. A log that is twice as large as all that comes into it is never full.
    let once = workload.overwrites().footprint() * u64::from(workload.block_bytes);
    let [reads, writes] = [false, true].map(|writes| workload.bytes(writes));
    let useful = |medium| match medium {
        Medium::None | Medium::Ram | Medium::Nvram => once,
        Medium::SameDisk | Medium::OtherDisk => 2 * writes,
        Medium::Ssd => 2 * (writes + reads),
    };
    let grid = Grid::new(priced, sizes, useful, room);
    if grid.media().next().is_some() {
        return Ok(grid);
    }
    Err(Failure::Failed(format!(
        "beside the {} that the trace uses, the drive {} has no room for a log of {}, the smallest of use: name a larger --drive or \
         --size-max, or another medium (--ssd)",
        HumanBytes(setting.data_bytes),
        setting.drive.name(),
        HumanBytes(LOG_BYTES_MIN)
    )))
}

fn data_bytes(workload: &Workload, drive: &AnyDrive) -> u64 {
    let used = (workload.end * SECTOR_BYTES).next_multiple_of(DATA_UNIT_BYTES);
    let whole = drive.sectors() / (ALIGN_BYTES / SECTOR_BYTES) * ALIGN_BYTES;
    // Where the trace reaches the very end of a drive with an odd number of sectors.
    if workload.end * SECTOR_BYTES > whole { drive.sectors() * SECTOR_BYTES } else { used.min(whole) }
}

fn promise(args: &Tune, workload: &Workload, media: &[Medium]) -> Result<Promise, Failure> {
    let promise = match args.promise {
        Some(promise) => promise.into(),
        None if workload.flushes > 0 => Promise::Flush,
        None => Promise::Always,
    };
    if promise == Promise::Always && media.contains(&Medium::Ram) {
        let flushes = if args.promise.is_some() { "" } else { ", the default for a trace without flushes" };
        return Err(Failure::Failed(format!(
            "--ram: RAM is lost with the server, and cannot keep the promise \"always\"{flushes}: leave it out, or \
             take --promise flush"
        )));
    }
    Ok(promise)
}
