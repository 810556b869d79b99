//! `dcd format`: makes the log of a cache, and attaches it to a data disk.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use dcd_engine::log_cache::format::{LogSuperblock, SEGMENT_BYTES_MAX};
use dcd_engine::log_cache::offline::{
    FormatOptions, add_disk, admit_format, format, is_format_begun, read_superblock,
};
use dcd_engine::log_cache::{LogCacheConfig, LogError};
use dcd_engine::{BlockDevice, Extent, Geometry, Lba, SECTOR_BYTES};
use dcd_io::MemoryDevice;
use dcd_stack::{DeviceSource, HumanBytes, LayerKind, StackFile, toml_text};

use crate::cli::{Detach, Format};
use crate::commands::create::has_units;
use crate::commands::detach;
use crate::commands::disks::names_content;
use crate::commands::log::{FormattedLegs, look_at_legs, make_legs, make_missing};
use crate::control::{sockets_dir, stack_name, stacks_dir};
use crate::failure::Failure;
use crate::session::below::range;
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::journal::admit_new_journal;
use crate::session::open::{OpenedCache, reserve_space, superblock_of};
use crate::session::overwrite::{self, DeviceRange};
use crate::session::random::random_uuid;
use crate::session::record::{
    AttachmentState, DiskRecord, Teller, admit_attach, admit_on_array, admit_overwrite, admit_without_record,
    uuid_text,
};
use crate::session::started::StartedPart;
use crate::session::survey::{array_record, for_looks, open_record, record, start, target};
use crate::session::system::{is_by_content, logs_in_memory};
use crate::session::tell::{array_with_journal_beside, clear_foreign_journal, tell_members};

pub fn run(args: &Format) -> Result<(), Failure> {
    make(args, &written_stack(args)?)?;
    match (&args.stack, &args.file) {
        (Some(path), _) => println!("stack file: {}; {}", path.display(), next_step(path)),
        (None, Some(file)) => println!("{}", next_step(file)),
        (None, None) => println!(
            "next: write a stack file that names log and data disk (dcd stack-file describes it; dcd format --stack FILE writes one), and serve it with: dcd serve FILE"
        ),
    }
    Ok(())
}

/// Makes the log of a cache. `written`: the text of the stack file, where there is none yet.
pub fn make(args: &Format, written: &str) -> Result<(), Failure> {
    let choice = match &args.file {
        Some(file) => CacheChoice::load(file, args.layer.as_deref())?,
        None => CacheChoice::of(StackFile::parse(written, Path::new(""))?, None)?,
    };
    let paths = choice.disks().iter().filter_map(|disk| choice.site.path_below(disk));
    if let Some(data) = paths.into_iter().find(|data| is_by_content(data)) {
        return Err(names_content(data));
    }
    if let Some(free) = choice.disks().iter().find(|disk| choice.site.is_free_place(disk)) {
        return Err(Failure::Failed(format!(
            "{}: \"{free}\" is a place that a disk has left, and a new log has none: take \"free\" out of \"data\"",
            choice.site.path.display()
        )));
    }
    // Files made here are removed again if the format fails.
    let mut made = Made::default();
    for device in &choice.site.devices {
        if let DeviceSource::Path { path, size: Some(_) } = &device.source {
            made.file_that_is_missing(Some(path));
        }
    }
    let replaced = args.replace.as_deref().map(|old| refuse_to_replace(old, &choice)).transpose()?.flatten();
    let legs = refuse(&choice, args.force, replaced.as_deref())?;
    if let Some(old) = &args.replace {
        try_first(args, &choice, &legs)?;
        detach::run(&Detach::of(old))?;
    }
    // All reasons against it have been told: what is on the devices is overwritten from here on.
    if let FormattedLegs::New { retired } = legs {
        // They were free while the old log was written back, which may have taken long.
        look_at_legs(&choice, args.force)?;
        overwrite::tell(retired);
        make_legs(&choice)?;
    }
    if args.force {
        clear_foreign_journal(&choice)?;
    }
    let mut opened = OpenedCache::open(&choice, Purpose::Create)?;
    // Another command may have attached a cache since.
    let superblock = read_superblock(&mut opened.log).ok();
    refuse_attached(&opened.records, superblock.as_ref(), args.force, None)?;
    let retired = refuse_content(&mut opened.log, &choice, args.force)?;
    let is_retired = retired.is_some();
    overwrite::tell(retired);
    reserve_space(&choice.site, &opened.parts, &choice.log)?;
    if let Some(path) = &args.stack {
        write_new(path, written, &mut made)?;
    }
    for log in logs_in_memory(&choice.site) {
        warnln!("dcd: {log}. Use it for trials only, or choose a file or a partition on a disk");
    }
    let out_of_date = is_retired || is_out_of_date(&opened.records, &mut opened.log)?;
    let options = options(args, out_of_date)?;
    let superblock = format_for_all(&mut opened.log, opened.data.disks_mut(), &options)?;
    let mut gone = Vec::new();
    for (choice, record) in choice.of_disks().iter().zip(&opened.records) {
        if let Some(record) = record {
            gone.push(record.seen(None)?.told_of_part());
            let attached = choice.attachment(record.extent(), &superblock, AttachmentState::Clean);
            record.update(|_| attached)?;
        }
    }
    made.keep();
    let OpenedCache { log, data, records, .. } = opened;
    let Geometry { rotational: is_rotational, sectors: log_sectors, .. } = log.geometry();
    drop((log, data));
    for ((disk, record), gone) in choice.disks().iter().zip(records.iter().flatten()).zip(&gone) {
        tell_members(&choice.site, disk, record, gone)?;
    }
    let log_bytes = u64::from(superblock.segments) * u64::from(superblock.segment_bytes);
    println!(
        "cache {}: a log of {} for {} of data, which stays in place",
        uuid_text(superblock.cache_uuid),
        HumanBytes(log_bytes),
        HumanBytes(
            choice.disks().iter().enumerate().map(|(disk, _)| superblock.space().sectors(disk)).sum::<u64>()
                * SECTOR_BYTES
        )
    );
    // By its device: records and superblocks take a part of that.
    if log_sectors * SECTOR_BYTES < SMALL_LOG_BYTES {
        warnln!("dcd: {}", small(log_bytes));
    }
    let unused = log_sectors * SECTOR_BYTES - log_bytes;
    if unused > 2 * u64::from(SEGMENT_BYTES_MAX) {
        let unused = HumanBytes(unused);
        println!("the last {unused} of the log's device are not used: no log is larger");
    }
    let journal = choice.site.layers.iter().find_map(|layer| match &layer.kind {
        LayerKind::Slice(slice) if slice.implied => slice.size_bytes,
        _ => None,
    });
    if let Some(bytes) = journal {
        let (log, bytes) = (choice.log_name(), HumanBytes(bytes));
        println!(
            "the array's journal takes the first {bytes} of {}, and the log has the rest",
            log.display()
        );
    }
    if is_rotational {
        println!("{}", superblock.spindle);
    }
    Ok(())
}

/// Size of a log below which it is of little use. With this one, the README's measurements were made.
const SMALL_LOG_BYTES: u64 = 64 << 20;

/// Warns of a small log. The high mark is the default one.
fn small(log_bytes: u64) -> String {
    let mark = u64::from(LogCacheConfig::default().high_mark);
    format!(
        "a log of {} is small: after {} of small writes the data disk has to take them while clients wait. A log of {} or more takes bursts",
        HumanBytes(log_bytes),
        HumanBytes(log_bytes / 100 * mark),
        HumanBytes(SMALL_LOG_BYTES)
    )
}

/// Formats the log for the first data disk, and adds the others. A log that a crash leaves with fewer disks is empty, and in no record: a
/// start refuses it, and the next format makes it again, as it does for a log that is not in all records yet.
fn format_for_all<D: BlockDevice>(
    log: &mut dyn BlockDevice,
    disks: &mut [D],
    options: &FormatOptions,
) -> Result<LogSuperblock, Failure> {
    let [first, others @ ..] = disks else { unreachable!("a log has a data disk") };
    let mut superblock = format(log, first, options)?;
    for disk in others {
        superblock = add_disk(log, disk, random_uuid()?)?;
    }
    Ok(superblock)
}

/// Returns the command that serves a stack file; for a file in /etc/dcd, this starts its unit.
fn next_step(file: &Path) -> String {
    match stack_name(file).filter(|_| has_units()) {
        Some(name) => {
            format!("serve it with: systemctl enable --now dcd@{name} (or: dcd serve {})", file.display())
        }
        None => format!("serve it with: dcd serve {}", file.display()),
    }
}

fn options(args: &Format, out_of_date: bool) -> Result<FormatOptions, Failure> {
    let segment_bytes = args.segment_size.map(u32::try_from).transpose();
    Ok(FormatOptions {
        segment_bytes: segment_bytes
            .map_err(|_| Failure::Failed("--segment-size: it must be at most 16MiB".to_owned()))?,
        force: args.force || out_of_date,
        ..FormatOptions::new(random_uuid()?, random_uuid()?)
    })
}

/// Refuses to replace the cache of another stack file where the two have different data disks, or share sectors for their logs. The order
/// of the disks may differ: the old log has nothing for them once it is replaced. Returns the UUID of the cache that is replaced.
fn refuse_to_replace(old: &Path, choice: &CacheChoice) -> Result<Option<String>, Failure> {
    let before = CacheChoice::load(old, None)?;
    let paths = |choice: &CacheChoice| {
        let disks = choice.disks().iter().filter(|disk| !choice.site.is_free_place(disk));
        let mut paths: Vec<_> = disks.map(|disk| choice.site.data_path(disk).map(Path::to_owned)).collect();
        paths.sort();
        paths
    };
    if paths(&before) != paths(choice) {
        return Err(Failure::Failed(format!(
            "{} and {} have different data disks: nothing is replaced, and nothing was changed",
            old.display(),
            choice.site.path.display()
        )));
    }
    let (olds, news) = (places(&before), places(choice));
    let is_same = |(new, extent): &&(PathBuf, Extent)| {
        olds.iter().any(|(old, other)| old == new && other.overlaps(*extent))
    };
    match news.iter().find(is_same) {
        Some((same, _)) => Err(Failure::Failed(format!(
            "{} has the same log, {}, or one that overlaps it: name another place for the new one in the other file. Nothing was changed",
            old.display(),
            same.display()
        ))),
        None => Ok(superblock_of(&before)?.map(|superblock| uuid_text(superblock.cache_uuid))),
    }
}

/// The places of a log, or of its legs, on their devices.
fn places(choice: &CacheChoice) -> Vec<(PathBuf, Extent)> {
    let place = |part: &str| {
        let path = choice.site.path_below(part).map_or_else(|| PathBuf::from(part), Path::to_owned);
        // To the end of a device of any size.
        let extent = range(&choice.site, part, u64::MAX >> 1);
        let extent = extent.unwrap_or(Extent::new(Lba(0), u64::MAX >> 1));
        (fs::canonicalize(&path).unwrap_or(path), extent)
    };
    let legs = choice.legs();
    if legs.is_empty() { vec![place(&choice.log)] } else { legs.into_iter().map(place).collect() }
}

/// Tries the format on devices whose writes stay in RAM, so that it is refused before the old log is touched. A format with --replace that is cut
/// off after the old log is detached can be repeated: there is nothing to detach then.
fn try_first(args: &Format, choice: &CacheChoice, legs: &FormattedLegs) -> Result<(), Failure> {
    let site = &choice.site;
    let names = choice.legs();
    let names = if names.is_empty() { vec![choice.log.as_str()] } else { names };
    {
        // The devices can be opened for changes, and have space.
        let (_offline, parts) = start(site, &names, Purpose::Create)?;
        names.iter().try_for_each(|name| reserve_space(site, &parts, name))?;
    }
    let stand_in = |_: &String| MemoryDevice::new(TRIED_BYTES);
    let mut disks: Vec<_> = choice.disks().iter().map(stand_in).collect();
    if let FormattedLegs::Made = legs {
        let (offline, parts) = start(&for_looks(site, Purpose::Look), &[&choice.log], Purpose::Look)?;
        let mut log = offline.part(target(&parts, &choice.log));
        let is_retired = refuse_content(&mut log, choice, args.force)?.is_some();
        let records = choice.of_disks().iter().map(open_record).collect::<Result<Vec<_>, Failure>>()?;
        let options = options(args, is_retired || is_out_of_date(&records, &mut log)?)?;
        return format_for_all(&mut log, &mut disks, &options).map(|_| ());
    }
    // The mirror has no labels yet. Its log will be as long as on the smallest leg.
    let (offline, parts) = start(site, &names, Purpose::Look)?;
    let legs = names.iter().map(|leg| offline.part(target(&parts, leg)));
    let smallest = legs.min_by_key(|leg| leg.geometry().sectors);
    let mut leg = smallest.expect("a mirror has legs");
    let mut content = DeviceRange::on_leg(&mut leg);
    let extent = range(site, &choice.log, content.extent.sectors).unwrap_or(content.extent);
    let mut log = DeviceRange { device: &mut content, extent };
    format_for_all(&mut log, &mut disks, &options(args, true)?).map(|_| ())
}

/// Size of the data disk in a trial format: the log does not depend on it.
const TRIED_BYTES: u64 = 1 << 20;

/// Files that are removed when this is dropped, unless `keep` was called, so that a refused command can be repeated.
#[derive(Default)]
pub(super) struct Made(Vec<PathBuf>);

impl Made {
    /// Notes a file that does not exist yet, and may be made from now on.
    pub(super) fn file_that_is_missing(&mut self, path: Option<&Path>) {
        self.0.extend(path.filter(|path| std::fs::symlink_metadata(path).is_err()).map(Path::to_owned));
    }

    pub(super) fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Refuses to lose data: a log device with something on it, or a data disk that has a cache already, other than the one that is `replaced`. All
/// reasons are told together, and nothing has been written then. Missing files are made.
fn refuse(choice: &CacheChoice, force: bool, replaced: Option<&str>) -> Result<FormattedLegs, Failure> {
    let log = (!choice.is_mirrored()).then_some(&choice.log);
    let parts: Vec<&str> = choice.disks().iter().chain(log).map(String::as_str).collect();
    make_missing(&choice.site, &parts)?;
    // Log and data may lie on one device. Devices that are in use are refused, as those of a start that changes them.
    let choice = &choice.holding(Purpose::Create);
    let site = &choice.site;
    let mut checks = Vec::new();
    let legs = kept(&mut checks, look_at_legs(choice, force));
    let mut log = match legs {
        Some(FormattedLegs::Made) => {
            let looked = start(&for_looks(site, Purpose::Look), &[&choice.log], Purpose::Look);
            kept(&mut checks, looked)
                .map(|(offline, parts)| (offline.part(target(&parts, &choice.log)), parts))
        }
        _ => None,
    };
    let superblock = log.as_mut().and_then(|(log, _)| read_superblock(log).ok());
    // Journals are looked at on their own: they may lie on legs that are not made yet.
    let mut bare = site.clone();
    bare.file.leave_out_journals();
    bare.asked.accept_doubt = true;
    let mut records = Vec::new();
    for disk in choice.disks() {
        let started = kept(&mut checks, start(&bare, &[disk], Purpose::Look));
        if let Some((offline, parts)) = started.as_ref().filter(|_| !force) {
            checks.push(refuse_log_on_data(&mut offline.part(target(parts, disk)), disk, choice));
        }
        let record = match array_record(site, disk)? {
            Some(record) => Some(record),
            None => started.map(|(_offline, parts)| record(site, &parts, disk)).transpose()?.flatten(),
        };
        records.push(record);
    }
    checks.push(refuse_attached(&records, superblock.as_ref(), force, replaced));
    if let Some((log, parts)) = &mut log {
        let log_record = match array_record(site, &choice.log)? {
            Some(record) => Some(record),
            None => record(site, parts, &choice.log)?,
        };
        checks.extend(log_record.iter().map(|record| refuse_data_disk(record, choice, force)));
        checks.push(refuse_occupied(&records, log, force));
        checks.push(refuse_content(log, choice, force).map(|_| ()));
    }
    if !force {
        let journal = log.is_some().then(|| array_with_journal_beside(choice)).flatten();
        checks.push(journal.map_or(Ok(()), |array| admit_new_journal(site, array)));
    }
    Failure::of_all(checks)?;
    Ok(legs.expect("its refusal was told"))
}

/// Takes the failure of a look to the others.
fn kept<T>(checks: &mut Vec<Result<(), Failure>>, looked: Result<T, Failure>) -> Option<T> {
    looked.map_err(|failure| checks.push(Err(failure))).ok()
}

/// Refuses data disks that have a cache already, other than the one that is `replaced`. `log`: the superblock of the log that is to be overwritten.
fn refuse_attached(
    records: &[Option<DiskRecord>],
    log: Option<&LogSuperblock>,
    force: bool,
    replaced: Option<&str>,
) -> Result<(), Failure> {
    let unfinished = unfinished(records, log)?;
    let of_disk = |record: &DiskRecord| {
        let mut all = record.load_with_others()?;
        if replaced.is_none() {
            refuse_lost_record(record, force)?;
        }
        log.iter().for_each(|log| all.doubt(log));
        all.0.retain(|own| ![unfinished.as_deref(), replaced].contains(&Some(&own.cache_uuid)));
        admit_attach(&all, record.extent(), force)?;
        match record.teller() {
            Teller::Members => Ok(admit_on_array(&all, record.extent())?),
            _ => Ok(()),
        }
    };
    Failure::of_all(records.iter().flatten().map(of_disk).collect::<Vec<_>>())
}

/// Returns the cache of the log if its format was cut off before each disk had a record. It was never started, so it holds nothing.
fn unfinished(
    records: &[Option<DiskRecord>],
    log: Option<&LogSuperblock>,
) -> Result<Option<String>, Failure> {
    let Some(superblock) = log.filter(|found| found.epoch == 0) else { return Ok(None) };
    let uuid = uuid_text(superblock.cache_uuid);
    for record in records.iter().flatten() {
        if record.load()?.of(record.extent()).is_none_or(|own| own.cache_uuid != uuid) {
            return Ok(Some(uuid));
        }
    }
    Ok(None)
}

/// Refuses a data disk that has a log on it.
fn refuse_log_on_data(data: &mut StartedPart, disk: &str, choice: &CacheChoice) -> Result<(), Failure> {
    let Some(log) = overwrite::log_in_use(data) else { return Ok(()) };
    let data = choice.site.path_below(disk).unwrap_or(Path::new(disk));
    Err(Failure::refused(
        format!("{} has {log} on it", data.display()),
        "log and data may have been swapped; if that cache is out of use, \"dcd detach\" it, or add --force",
    ))
}

fn refuse_lost_record(record: &DiskRecord, force: bool) -> Result<(), Failure> {
    let instead = "Or add --force: data that only its log has is lost";
    Ok(admit_without_record(record.seen(None)?.lost(), record.teller(), force, instead)?)
}

/// Refuses a log device that is the data disk of a cache.
fn refuse_data_disk(record: &DiskRecord, choice: &CacheChoice, force: bool) -> Result<(), Failure> {
    refuse_lost_record(record, force)?;
    let log = choice.log_name().display().to_string();
    Ok(admit_overwrite(&record.load_with_others()?, record.extent(), &log, force)?)
}

/// Refuses a log with data, unless the refusal of one of its disks says how much that is: the records are of other caches.
fn refuse_occupied(
    records: &[Option<DiskRecord>],
    log: &mut dyn BlockDevice,
    force: bool,
) -> Result<(), Failure> {
    let Ok(superblock) = read_superblock(log) else { return Ok(()) };
    let uuid = uuid_text(superblock.cache_uuid);
    for record in records.iter().flatten() {
        if record.load()?.overlapping(record.extent()).is_some_and(|own| own.cache_uuid == uuid) {
            return Ok(());
        }
    }
    if force { Ok(()) } else { Ok(admit_format(log)?) }
}

/// True for a log of these disks that has failed or was left out, if each disk is complete without it.
fn is_out_of_date(records: &[Option<DiskRecord>], log: &mut dyn BlockDevice) -> Result<bool, Failure> {
    let Ok(superblock) = read_superblock(log) else { return Ok(false) };
    if superblock.space().count() > records.len() {
        return Ok(false);
    }
    let uuid = uuid_text(superblock.cache_uuid);
    for record in records {
        let Some(record) = record else { return Ok(false) };
        let all = record.load()?;
        let is_out_of_date = all.overlapping(record.extent()).is_some_and(|attachment| {
            attachment.state == AttachmentState::Abandoned
                && !attachment.may_lose_data()
                && attachment.cache_uuid == uuid
        });
        if !is_out_of_date {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Refuses a log device with something on it, unless that is the empty log of a cache that is not in use.
fn refuse_content(
    log: &mut dyn BlockDevice,
    choice: &CacheChoice,
    force: bool,
) -> Result<Option<String>, Failure> {
    let name = choice.log_name().display().to_string();
    match read_superblock(log) {
        // `format` reads that log, and decides if it may be overwritten.
        Ok(_) => overwrite::refuse_foreign(&name, log, force).map(|()| None),
        Err(LogError::Io { what, source }) => Err(Failure::Failed(format!("{what}: {source}"))),
        Err(_) if is_format_begun(log).unwrap_or(false) => {
            overwrite::refuse_foreign(&name, log, force).map(|()| None)
        }
        Err(_) => overwrite::refuse_content(&name, log, force),
    }
}

/// Refuses to make a log in /dev: the name of a device was mistyped, and the file would be in RAM.
pub fn refuse_new_in_dev(log: &Path, size: Option<u64>) -> Result<(), Failure> {
    let full = std::path::absolute(log).map_err(|error| Failure::io(log.display(), error))?;
    if size.is_none() || full.exists() || !full.starts_with("/dev") || full.starts_with("/dev/shm") {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "there is no device {}: correct its name, or choose a place for the log that is not in /dev, as a file there is gone after the next \
         boot. Nothing was changed",
        full.display()
    )))
}

/// The stack file that `--log` and `--data` describe.
fn written_stack(args: &Format) -> Result<String, Failure> {
    let origin = args.stack.clone().unwrap_or_else(|| PathBuf::from("dcd.toml"));
    let Some(data) = &args.data else { return Ok(String::new()) };
    let (log_tables, log) = log_tables(&args.log, args.log_size)?;
    if let Some(stack) = args.stack.as_deref().filter(|stack| stack.exists()) {
        return Err(Failure::Failed(format!("{}: it exists; choose another name", stack.display())));
    }
    if let Some(stack) = &args.stack {
        let directory =
            stack.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !directory.is_dir() {
            return Err(Failure::Failed(format!(
                "{}: there is no directory {}: make it, or choose another place for the stack file; nothing was changed",
                stack.display(),
                directory.display()
            )));
        }
    }
    let name = origin.file_stem().and_then(|stem| stem.to_str()).unwrap_or("dcd");
    // Sockets lie beside the stack file, but not in /etc.
    let full = std::path::absolute(&origin).unwrap_or_else(|_| origin.clone());
    let in_etc = full.starts_with("/etc") || full.parent() == Some(&stacks_dir());
    let sockets = if in_etc { sockets_dir().join("") } else { PathBuf::new() };
    let sockets = sockets.display();
    let mut text = String::from(
        "# Written by dcd format; \"dcd stack-file\" describes every field.\nexport = \"cache\"\n\n",
    );
    let _ = writeln!(
        text,
        "[serve]\nnbd = {}\ncontrol = {}\n",
        toml_text(&format!("unix:{sockets}{name}.sock")),
        toml_text(&format!("{sockets}{name}.control"))
    );
    let _ = writeln!(text, "{log_tables}[device.data]\npath = {}\n", quoted_place(data)?);
    let _ = writeln!(
        text,
        "[layer.cache]\nkind = \"log-cache\"\nlog = {log}\ndata = \"data\"\npromise = \"flush\""
    );
    Ok(text)
}

/// Returns the tables of the devices of a log in a stack file, and the text that names them: each of several devices has a copy of the log.
pub fn log_tables(logs: &[PathBuf], size: Option<u64>) -> Result<(String, String), Failure> {
    let full = |log: &PathBuf| fs::canonicalize(log).or_else(|_| std::path::absolute(log)).ok();
    let (mut tables, mut names) = (String::new(), Vec::new());
    for (at, log) in logs.iter().enumerate() {
        refuse_new_in_dev(log, size)?;
        if logs[..at].iter().any(|other| full(other) == full(log)) {
            return Err(Failure::Failed(format!(
                "{}: it is named twice, and each copy of the log needs a device of its own. Nothing was changed",
                log.display()
            )));
        }
        let name = if logs.len() == 1 { "log".to_owned() } else { format!("log-{}", at + 1) };
        let size = size.map(|size| format!("size = {size}\n")).unwrap_or_default();
        let _ = writeln!(tables, "[device.{name}]\npath = {}\n{size}", quoted_place(log)?);
        names.push(toml_text(&name));
    }
    let named = if names.len() == 1 { names.remove(0) } else { format!("[{}]", names.join(", ")) };
    Ok((tables, named))
}

/// A typed place as a stack file has it: typed paths are relative to the working directory, those in a stack file to the file's directory.
pub fn quoted_place(typed: &Path) -> Result<String, Failure> {
    let place = DeviceSource::absolute(typed).map_err(|error| Failure::io(typed.display(), error))?;
    let text = place.to_str().ok_or_else(|| Failure::Failed(format!("{}: not UTF-8", typed.display())))?;
    Ok(toml_text(text))
}

/// Writes a file whole or not at all.
fn write_new(path: &Path, text: &str, made: &mut Made) -> Result<(), Failure> {
    let failed = |error| Failure::io(path.display(), error);
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = Made(vec![beside.into()]);
    let mut file = File::create(&beside.0[0]).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    // A link fails where the file exists. Some file systems have no links.
    let linked = fs::hard_link(&beside.0[0], path).or_else(|error| match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::Unsupported => fs::rename(&beside.0[0], path),
        _ => Err(error),
    });
    linked.map_err(failed)?;
    made.0.push(path.to_owned());
    Ok(())
}
