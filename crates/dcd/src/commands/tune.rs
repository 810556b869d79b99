//! `dcd tune`: reads a trace, searches, and writes what came out.

use std::path::{Path, PathBuf};

use dcd_engine::SECTOR_BYTES;
use dcd_engine::log_cache::Promise;
use dcd_model::{Drive, drive};
use dcd_stack::HumanBytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::trace::opened;
use crate::cli_tune::Tune;
use crate::failure::Failure;
use crate::tune::{
    Medium, Places, Report, Sampling, SearchOptions, Setting, Sizes, Workload, grid, page, search,
};

/// What the trace uses of the drive is taken to be a multiple of this, and not less: disks smaller than this can hardly be cached.
const DATA_UNIT_BYTES: u64 = 16 << 20;
/// The blocks of a write cache, and of file systems.
const DATA_ALIGN_BYTES: u64 = 4096;
/// What a log has to be larger than to be of use, and RAM.
const LOG_BYTES_MIN: u64 = 16 << 20;
const NVRAM_BYTES_MIN: u64 = 64 << 10;

pub fn run(args: &Tune) -> Result<(), Failure> {
    let (drive_name, drive) = drive(&args.drive)?;
    let mut trace = opened(&args.input, &args.reading)?;
    let workload = Workload::read(&mut *trace.reader, args.device, &drive)?;
    let sizes = sizes(args)?;
    let media = media(args, &drive, &workload, &sizes)?;
    // Now, and not when all of the work is done.
    if let Some(directory) = &args.out {
        std::fs::create_dir_all(directory).map_err(|e| Failure::io(directory.display(), e))?;
    }
    let setting = Setting {
        drive_name,
        data_bytes: data_bytes(&workload, &drive),
        drive,
        promise: promise(args, &workload),
        block_bytes: workload.block_bytes,
    };
    let bar = bar(args.reading.quiet);
    let options = SearchOptions {
        objective: args.objective,
        within: args.within / 100.0,
        full_max: args.full_max,
        jobs: args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
        verify: args.verify,
        sampling: Sampling::default(),
    };
    let written_bytes = workload.overwrites().footprint() * crate::tune::DISTANCE_BLOCK_BYTES;
    let found = search(&setting, &workload, grid(&media, &sizes, written_bytes), options, &bar)?;
    bar.finish_and_clear();
    let trace = args.input.display().to_string();
    let report = Report::new(trace, &setting, &workload, (args.objective, options.within), &found);
    if args.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.text());
    }
    let candidate = &found.tried[found.recommended].candidate;
    let places = Places { disk: &args.disk, log: &args.log };
    let served = setting.served(candidate, &places);
    match &args.out {
        None if args.json => {}
        None => print!("\nStack file to serve (--out DIR writes it, and the plots):\n\n{served}"),
        Some(directory) => {
            let simulated = setting.simulated(candidate);
            write(directory, &report, &served, &simulated)?;
        }
    }
    Ok(())
}

fn write(directory: &Path, report: &Report<'_>, served: &str, simulated: &str) -> Result<(), Failure> {
    let heading = format!(
        "# Made by \"dcd tune {}\": {}\n",
        report.trace.replace(char::is_control, "?"),
        report.recommended_words()
    );
    for (name, text) in [
        ("tune.html", page(report, served)),
        ("tune.json", format!("{}\n", report.json())),
        ("serve.toml", format!("{heading}{served}")),
        ("simulate.toml", format!("{heading}{simulated}")),
    ] {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(|e| Failure::io(path.display(), e))?;
    }
    eprintln!("dcd: the report is {}", directory.join("tune.html").display());
    Ok(())
}

/// The drive, and its name for a stack file that may lie anywhere.
fn drive(name: &str) -> Result<(String, Drive), Failure> {
    let path = PathBuf::from(name);
    if drive::text(name).is_some() || !path.exists() {
        let drive = drive::builtin(name).map_err(|e| Failure::Failed(e.to_string()))?;
        return Ok((name.to_owned(), drive));
    }
    let failed = |e| Failure::io(path.display(), e);
    let text = std::fs::read_to_string(&path).map_err(failed)?;
    let drive = Drive::parse(&text).map_err(|e| Failure::Failed(format!("{name}: {e}")))?;
    Ok((path.canonicalize().map_err(failed)?.display().to_string(), drive))
}

fn sizes(args: &Tune) -> Result<Sizes, Failure> {
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
    Ok(Sizes {
        log: sorted(&args.log_sizes, LOG_BYTES_MIN, "--log-sizes")?,
        nvram: sorted(&args.nvram_sizes, NVRAM_BYTES_MIN, "--nvram-sizes")?,
    })
}

/// Where caches can be. The trace has to fit the drive, and with a log on it, what is left.
fn media(args: &Tune, drive: &Drive, workload: &Workload, sizes: &Sizes) -> Result<Vec<Medium>, Failure> {
    if workload.end > drive.sectors() {
        let fitting = drive::names()
            .filter(|name| drive::builtin(name).is_ok_and(|drive| drive.sectors() >= workload.end));
        let fitting: Vec<&str> = fitting.collect();
        return Err(Failure::Failed(format!(
            "the trace reaches to {}, and the drive {} has {}: take a larger one ({}), or shrink the trace (dcd trace scale --space)",
            HumanBytes(workload.end * SECTOR_BYTES),
            drive.name(),
            HumanBytes(drive.sectors() * SECTOR_BYTES),
            if fitting.is_empty() { "none that comes with dcd does".to_owned() } else { fitting.join(", ") }
        )));
    }
    let largest = sizes.log.last().copied().unwrap_or(0);
    let room = (drive.sectors() - workload.end) * SECTOR_BYTES;
    if args.media.contains(&Medium::SameDisk) && room < largest {
        return Err(Failure::Failed(format!(
            "beside the {} that the trace uses, the drive {} has room for a log of {}: give smaller --log-sizes, a larger --drive, \
             or leave same-disk out of --media",
            HumanBytes(workload.end * SECTOR_BYTES),
            drive.name(),
            HumanBytes(room)
        )));
    }
    Ok(args.media.clone())
}

fn data_bytes(workload: &Workload, drive: &Drive) -> u64 {
    let used = (workload.end * SECTOR_BYTES).next_multiple_of(DATA_UNIT_BYTES);
    let whole = drive.sectors() / (DATA_ALIGN_BYTES / SECTOR_BYTES) * DATA_ALIGN_BYTES;
    // Where the trace reaches the very end of a drive with an odd number of sectors.
    if workload.end * SECTOR_BYTES > whole { drive.sectors() * SECTOR_BYTES } else { used.min(whole) }
}

fn promise(args: &Tune, workload: &Workload) -> Promise {
    match args.promise {
        Some(promise) => promise.into(),
        None if workload.flushes > 0 => Promise::Flush,
        None => Promise::Always,
    }
}

fn bar(quiet: bool) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(1), target);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {elapsed}  {msg}");
    bar.set_style(style.expect("the template is well-formed"));
    bar
}
