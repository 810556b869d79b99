//! Opens the log and the data disk of a cache for an offline command, and reserves their space.

use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use dcd_engine::log_cache::format::{LogState, LogSuperblock};
use dcd_engine::log_cache::offline::{JoinedDisks, read_superblock, take_in, write_superblock};
use dcd_engine::log_cache::{LogError, Taken};
use dcd_engine::raid::ArrayStatus;
use dcd_engine::{BlockDevice, SECTOR_BYTES};
use dcd_io::DeviceError;
use dcd_nbd::Uri;
use dcd_stack::{HumanBytes, Parts, StackFile};

use crate::advice::{NOTHING_CHANGED, advise};
use crate::cli::LogArgs;
use crate::failure::Failure;
use crate::session::choice::{ArrayChoice, CacheChoice};
use crate::session::devices::{Purpose, memory_place};
use crate::session::judge::admit_machine;
use crate::session::machine;
use crate::session::members::Devices;
use crate::session::record::{DiskRecord, Refusal};
use crate::session::site::Site;
use crate::session::started::{Started, StartedPart};
use crate::session::survey::{array_record, for_looks, legs_of, record, start, target, why_missing};

/// Number of bytes at the start of a file that tell a log from a text.
const LOG_START_BYTES: u64 = 16 << 10;

/// Log and data disks of one cache, open and locked, and the record of each data disk.
pub struct OpenedCache {
    pub log: StartedPart,
    pub data: JoinedDisks<StartedPart>,
    /// Record of each data disk; none if that has no path (RAM), or is not one range of one device or array.
    pub records: Vec<Option<DiskRecord>>,
    pub parts: Parts,
}

impl OpenedCache {
    /// Opens both parts of a cache. A command that changes them asks the judge first: a refusal changes not even the label of a leg.
    pub fn open(choice: &CacheChoice, purpose: Purpose) -> Result<OpenedCache, Failure> {
        let create = purpose == Purpose::Create;
        let mut choice = choice.holding(purpose);
        if purpose == Purpose::Look {
            leave_out_missing(&mut choice)?;
        }
        let choice = &choice;
        let of_arrays = choice.disks().iter().map(|disk| array_record(&choice.site, disk));
        let of_arrays = of_arrays.collect::<Result<Vec<_>, _>>()?;
        let site = for_looks(&choice.site, purpose);
        let wanted: Vec<&str> = [&choice.log].into_iter().chain(choice.disks()).map(String::as_str).collect();
        let (offline, parts) = match start(&site, &wanted, purpose) {
            Err(Failure::Refused(why)) if !create => without_journals(&site, &wanted, purpose, why)?,
            started => started?,
        };
        let mut records = Vec::new();
        for (disk, array) in choice.disks().iter().zip(of_arrays) {
            let record = match array {
                Some(array) => Some(array),
                None => record(&choice.site, &parts, disk)?,
            };
            records.push(match record {
                Some(record) if !create => Some(record.attached_part()?),
                record => record,
            });
        }
        let part = |name: &str| offline.part(target(&parts, name));
        let mut log = part(&choice.log);
        if !create {
            take_in_answers(&mut log, &choice.layer, purpose, choice.site.asked.take_over)?;
        }
        let data = JoinedDisks::new(choice.disks().iter().map(|disk| part(disk)).collect());
        Ok(OpenedCache { log, data, records, parts })
    }
}

/// Starts a cache's parts without the journals of its arrays, if these cannot be used: a log can be read even so, and written back to an array
/// that was stopped cleanly. `why`: the refusal of a start with the journals.
fn without_journals(
    site: &Site,
    wanted: &[&str],
    purpose: Purpose,
    why: Refusal,
) -> Result<(Started, Parts), Failure> {
    let mut without = site.clone();
    if !without.file.leave_out_journals() {
        return Err(why.into());
    }
    // Blocks of missing members may be wrong then: a look reads the log.
    without.asked.accept_doubt |= purpose == Purpose::Look;
    for (layer, _) in site.arrays().filter(|_| purpose == Purpose::Change) {
        let devices = Devices::open(&ArrayChoice::of(site.clone(), layer.name.clone()), Purpose::Look)?;
        if !devices.can_do_without_journal() {
            return Err(why.into());
        }
    }
    let Some(started) = Failure::unless_busy(start(&without, wanted, purpose))? else {
        return Err(why.into());
    };
    eprintln!("dcd: the array's journal is not used: {}", why.reason);
    Ok(started)
}

/// Leaves the data disks of several out that are missing: a look at the log needs none.
fn leave_out_missing(choice: &mut CacheChoice) -> Result<(), Failure> {
    for own in choice.of_disks() {
        if let Some(why) = why_missing(&own)? {
            eprintln!("dcd: data disk \"{}\" is missing, and is not looked at: {why}", own.data);
            choice.site.file.leave_out_disk(&own.data);
        }
    }
    Ok(())
}

/// The log that `check` and `dump` look at: of a cache in a stack file, or a device or file of its own.
pub struct OpenedLog {
    pub log: StartedPart,
    /// The data disks, where a stack file names them and they can be opened.
    pub data: Option<JoinedDisks<StartedPart>>,
}

impl OpenedLog {
    pub fn open(args: &LogArgs) -> Result<OpenedLog, Failure> {
        if !is_log(&args.file)? {
            let choice = CacheChoice::load(&args.file, args.layer.as_deref())?;
            let opened = OpenedCache::open(&choice, Purpose::Look)?;
            return Ok(OpenedLog { log: opened.log, data: Some(opened.data) });
        }
        let site = Site::of_device(&args.file, true)?;
        let (offline, parts) = start(&site, &[&site.export], Purpose::Look)?;
        let mut log = offline.part(target(&parts, &site.export));
        take_in_answers(&mut log, &site.export, Purpose::Look, false)?;
        Ok(OpenedLog { log, data: None })
    }
}

/// Takes into a log what a killed server answered and left in memory alone. A command that only looks sees it as if it were in the log.
/// `force`: go on without it where that fails.
fn take_in_answers(log: &mut StartedPart, layer: &str, purpose: Purpose, force: bool) -> Result<(), Failure> {
    let Some(mut memory) = memory_place(purpose) else { return Ok(()) };
    if read_superblock(log).is_err() {
        return Ok(());
    }
    let taken = take_in(log, &mut memory, purpose == Purpose::Change).and_then(|taken| match taken.ignored {
        Some(why) if taken.is_missed && purpose == Purpose::Change && !force => {
            Err(LogError::MemoryMissed(why))
        }
        _ => Ok(taken),
    });
    match taken {
        Err(missed @ LogError::MemoryMissed(_)) => return Err(missed.into()),
        Ok(Taken { ignored: Some(why), .. }) => eprintln!(
            "dcd: \"{layer}\": writes that the last server answered and that the log lacks may be lost: its memory is not used, as {why}"
        ),
        Ok(Taken { records: 1.., .. }) if purpose == Purpose::Change => {
            eprintln!(
                "dcd: \"{layer}\": writes that the last server had answered were taken from its memory into the log"
            );
        }
        Ok(_) => {}
        Err(error) => {
            let why = format!(
                "\"{layer}\": writes that the last server answered are in its memory alone, and cannot be taken into the log: {error}"
            );
            if purpose == Purpose::Change && !force {
                return Err(Failure::refused(
                    why,
                    "end the process that uses the memory, or repair the log's device, and do this again: nothing was changed. \
                     \"dcd rescue --force\" writes back the log without these writes",
                ));
            }
            eprintln!("dcd: {why}");
        }
    }
    Ok(())
}

/// True for a device or an export, and for a file that begins as a log does; all else is read as a stack file.
pub fn is_log(path: &Path) -> Result<bool, Failure> {
    if path.to_str().is_some_and(Uri::is_meant) {
        return Ok(true);
    }
    let wrong = |e| Failure::io(path.display(), e);
    if std::fs::metadata(path).map_err(wrong)?.file_type().is_block_device() {
        return Ok(true);
    }
    let mut start = Vec::new();
    let file = std::fs::File::open(path).map_err(wrong)?;
    std::io::Read::take(file, LOG_START_BYTES).read_to_end(&mut start).map_err(wrong)?;
    // A text has no zero bytes, and a log has many.
    Ok(start.contains(&0))
}

/// Reads the valid superblock of a log, if there is one. The data disk is not opened.
pub fn superblock_of(choice: &CacheChoice) -> Result<Option<LogSuperblock>, Failure> {
    let log = Failure::unless_busy(open_log(choice, Purpose::Look))?;
    Ok(log.and_then(|mut log| read_superblock(&mut log).ok()))
}

/// Opens the log alone. A log that another machine may be serving is not changed, not even the labels of its legs.
pub fn open_log(choice: &CacheChoice, purpose: Purpose) -> Result<StartedPart, Failure> {
    let choice = &choice.holding(purpose);
    let is_judged = purpose == Purpose::Change && !choice.stands_on_a_cache();
    if let Some(superblock) = is_judged.then(|| superblock_of(choice)).transpose()?.flatten() {
        admit_machine(&superblock, machine::this(), &choice.site.asked)?;
    }
    let (offline, parts) = start(&for_looks(&choice.site, purpose), &[&choice.log], purpose)?;
    Ok(offline.part(target(&parts, &choice.log)))
}

/// Opens the log alone to read it, with what a killed server left in memory.
pub fn open_log_to_read(choice: &CacheChoice) -> Result<StartedPart, Failure> {
    let mut log = open_log(choice, Purpose::Look)?;
    take_in_answers(&mut log, &choice.layer, Purpose::Look, false)?;
    Ok(log)
}

/// Writes the state of a cache into the superblock of its log.
pub fn mark(log: &mut dyn BlockDevice, state: LogState) -> Result<(), Failure> {
    let mut superblock = read_superblock(log)?;
    superblock.state = state;
    write_superblock(log, &mut superblock).map_err(Failure::from)
}

/// Takes the records of a log that its disks do not need out of use: no later command takes them for data that a disk lacks.
pub fn forget_records(log: &mut dyn BlockDevice) -> Result<(), Failure> {
    let mut superblock = read_superblock(log)?;
    superblock.forget_records();
    write_superblock(log, &mut superblock).map_err(Failure::from)
}

/// Warns that a look at a mirrored log leaves out missing legs.
pub fn tell_missing_legs(choice: &CacheChoice) -> Result<(), Failure> {
    let Some(mirror) = choice.site.mirror_below(&choice.log) else { return Ok(()) };
    let missing = Failure::unless_busy(legs_of(&choice.site, &mirror.name))?.map_or(0, |legs| legs.missing());
    if missing > 0 {
        let legs = if missing == 1 { "a leg is" } else { "legs are" };
        eprintln!(
            "dcd: log \"{}\": {legs} missing, and no label calls it failed: writes that only a missing leg has are not seen here",
            mirror.name
        );
    }
    Ok(())
}

/// Reserves the space of a part in the file that it lies on: a log or a journal is written all over, and would fail once the file system
/// is full. Does nothing for parts on several devices, or on block devices.
pub fn reserve_space(file: &StackFile, parts: &Parts, part: &str) -> Result<(), Failure> {
    if let Some(mirror) = file.mirror_below(part) {
        return mirror.kind.below_names().into_iter().try_for_each(|leg| reserve_space(file, parts, leg));
    }
    let path = file.path_below(part).filter(|path| !path.to_str().is_some_and(Uri::is_meant));
    let (Some(path), Some((_, extent))) = (path, parts.place(part)) else { return Ok(()) };
    let bytes = extent.start.0 * SECTOR_BYTES..extent.end().0 * SECTOR_BYTES;
    let size = HumanBytes(bytes.end - bytes.start);
    let reserved = dcd_io::reserve_space(path, bytes);
    let path = path.display();
    match reserved {
        Ok(0) => Ok(()),
        Ok(lacking) => {
            eprintln!(
                "dcd: {path}: its file system cannot reserve space: keep {} free there, or \"{part}\" ({size}) fails when it is full",
                HumanBytes(lacking)
            );
            Ok(())
        }
        Err(DeviceError::NoSpace { lacking, free, .. }) => Err(Failure::Failed(format!(
            "{path}: \"{part}\" needs {size}, {} of it are not allocated yet, and the file system has {} free: free space there, make \
             the file smaller, or put it on another file system",
            HumanBytes(lacking),
            HumanBytes(free)
        ))),
        Err(error) => Err(Failure::Failed(error.to_string())),
    }
}

impl ArrayChoice {
    /// Tries the next start without changing anything. Returns the array's status then, or the refusal.
    pub fn try_start(&self) -> Result<Result<ArrayStatus, Refusal>, Failure> {
        match start(&self.site, &[&self.layer], Purpose::Look) {
            Ok((offline, parts)) => {
                let status = offline.status(parts.layers[&self.layer]);
                let mut array = status.array().expect("it is an array").clone();
                advise(&mut array);
                Ok(Ok(array))
            }
            Err(Failure::Busy(why)) => Err(Failure::Busy(why)),
            Err(Failure::Refused(refusal)) => Ok(Err(refusal)),
            Err(failure) => Ok(Err(Refusal::new(failure.to_string(), NOTHING_CHANGED))),
        }
    }
}
