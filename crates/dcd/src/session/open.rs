//! Opens the parts of a stack that an offline command needs, and finds out what stands where the log should be.

use std::borrow::Cow;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use dcd_engine::log_cache::LogError;
use dcd_engine::log_cache::format::{State, Superblock};
use dcd_engine::log_cache::offline::{live_superblock, read_copies, read_superblock, write_superblock};
use dcd_engine::mirror::MirrorStatus;
use dcd_engine::raid::ArrayStatus;
use dcd_engine::{BlockDevice, Extent, SECTOR_BYTES, Target};
use dcd_io::DeviceError;
use dcd_nbd::Uri;
use dcd_stack::{HumanBytes, Parts, StackFile};

use crate::advice::{NOTHING_CHANGED, advise};
use crate::cli::LogArgs;
use crate::failure::Failure;
use crate::session::absent::{Allowed, leave_out};
use crate::session::admit::{admit_below, admit_running};
use crate::session::below::{array_below, home_path, range};
use crate::session::choice::{ArrayChoice, CacheChoice};
use crate::session::devices::{Opener, Purpose};
use crate::session::machine::admit_machine;
use crate::session::members::{Content, Devices, Found, newest};
use crate::session::record::{Attachment, AttachmentState, LegsSeen, LogSeen, Record, Refusal, uuid_text};
use crate::session::running::RunningCaches;
use crate::session::started::{PartDevice, Started};

/// Number of bytes at the start of a file that tell a log from a text.
const LOG_START_BYTES: u64 = 16 << 10;

/// Log and data disk of one cache, open and locked, and the record of the data disk.
pub struct Opened {
    pub log: PartDevice,
    /// Legs of a mirrored log, as their labels describe them.
    legs: Option<MirrorStatus>,
    pub data: PartDevice,
    /// Record of the data disk; none if that has no path (RAM), or is not one range of one device or array.
    pub record: Option<Record>,
    /// Record of the device that a new log is to lie on: that may be the data disk of another cache.
    pub log_record: Option<Record>,
    pub parts: Parts,
}

impl Opened {
    /// Opens both parts of a cache.
    pub fn open(choice: &CacheChoice, purpose: Purpose) -> Result<Opened, Failure> {
        let create = purpose == Purpose::Create;
        refuse_other_machine(choice, purpose)?;
        let log_array = if create { array_record(&choice.file, &choice.log)? } else { None };
        let data_array = array_record(&choice.file, &choice.data)?;
        let file = for_looks(&choice.file, purpose);
        let (offline, parts) = start(&file, &[&choice.log, &choice.data], purpose)?;
        let record_of = |name: &str, array: Option<Record>| match array {
            Some(array) => Ok(Some(array)),
            None => record(&choice.file, &parts, name),
        };
        let log_record = if create { record_of(&choice.log, log_array)? } else { None };
        let record = match record_of(&choice.data, data_array)? {
            Some(record) if !create => Some(record.attached_part()?),
            record => record,
        };
        let part = |name: &str| offline.part(target(&parts, name));
        let mirror = choice.file.mirror_below(&choice.log);
        let legs = mirror.map(|mirror| legs_in(&offline, &parts, &mirror.name));
        Ok(Opened { log: part(&choice.log), legs, data: part(&choice.data), record, log_record, parts })
    }

    /// Reads the log's superblock, in the form that is compared with the record.
    pub fn seen(&mut self) -> Result<LogSeen, Failure> {
        look_at(&mut self.log, self.legs.as_ref()).map(|(seen, _)| seen)
    }
}

/// The log that `check` and `dump` look at: of a cache in a stack file, or a device or file of its own.
pub struct Log {
    pub log: PartDevice,
    /// The data disk, where a stack file names it and it can be opened.
    pub data: Option<PartDevice>,
}

impl Log {
    pub fn open(args: &LogArgs) -> Result<Log, Failure> {
        if !is_log(&args.file)? {
            let choice = CacheChoice::load(&args.file, args.layer.as_deref())?;
            let opened = Opened::open(&choice, Purpose::Look)?;
            return Ok(Log { log: opened.log, data: Some(opened.data) });
        }
        let file = StackFile::of_device(&args.file, true).map_err(|e| Failure::Failed(e.to_string()))?;
        let (offline, parts) = start(&file, &[&file.export], Purpose::Look)?;
        Ok(Log { log: offline.part(target(&parts, &file.export)), data: None })
    }
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
pub fn superblock_of(choice: &CacheChoice) -> Result<Option<Superblock>, Failure> {
    let log = Failure::unless_busy(open_log(choice, Purpose::Look))?;
    Ok(log.and_then(|mut log| read_superblock(&mut log).ok()))
}

/// Refuses to change a log that another machine may be serving, even the labels of its legs.
fn refuse_other_machine(choice: &CacheChoice, purpose: Purpose) -> Result<(), Failure> {
    match purpose {
        Purpose::Change if !choice.stands_on_a_cache() => match superblock_of(choice)? {
            Some(superblock) => admit_machine(choice, &superblock),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Lets a command that changes nothing start without missing legs. The command reports them, and nothing relies on its start.
fn for_looks(file: &StackFile, purpose: Purpose) -> Cow<'_, StackFile> {
    let mut file = Cow::Borrowed(file);
    if purpose == Purpose::Look {
        file.to_mut().degrade_mirrors();
    }
    file
}

/// Opens the log alone.
pub fn open_log(choice: &CacheChoice, purpose: Purpose) -> Result<PartDevice, Failure> {
    refuse_other_machine(choice, purpose)?;
    let (offline, parts) = start(&for_looks(&choice.file, purpose), &[&choice.log], purpose)?;
    Ok(offline.part(target(&parts, &choice.log)))
}

/// Writes the state of a cache into the superblock of its log.
pub fn mark(log: &mut dyn BlockDevice, state: State) -> Result<(), Failure> {
    let mut superblock = read_superblock(log)?;
    superblock.state = state;
    write_superblock(log, &mut superblock).map_err(Failure::from)
}

/// The data disk's record, and the content of the log's device, which may not even open.
pub struct Inspection {
    pub record: Option<Record>,
    pub seen: LogSeen,
    pub superblock: Option<Superblock>,
}

/// Looks at a cache without changing anything, and closes its devices again.
pub fn inspect(choice: &CacheChoice) -> Result<Inspection, Failure> {
    let (mut seen, superblock) = match look_at_log(choice) {
        Ok(looked) => looked,
        Err(Failure::Busy(why)) => return Err(Failure::Busy(why)),
        // The log itself may be good where the array below it, or its legs, cannot start.
        Err(failure) if array_below(&choice.file, &choice.log).is_some() || choice.is_mirrored() => {
            return Err(failure);
        }
        // A log, or a leg, that is refused is not missing.
        Err(failure @ Failure::Refused(_)) => return Err(failure),
        Err(failure) => {
            let seen = LogSeen::Missing(failure.to_string());
            return Ok(Inspection { record: open_record(choice)?, seen, superblock: None });
        }
    };
    let LogSeen::Missing(why) = &mut seen else {
        return Ok(Inspection { record: open_record(choice)?, seen, superblock });
    };
    let mut opened = Opened::open(choice, Purpose::Look)?;
    if read_superblock(&mut opened.data).is_ok() {
        *why = "the data device holds a dcd log, and the log device none: they are swapped".to_owned();
    }
    Ok(Inspection { record: opened.record, seen, superblock })
}

/// Looks at the labels of a mirrored log.
pub fn legs_of(file: &StackFile, mirror: &str) -> Result<MirrorStatus, Failure> {
    let (offline, parts) = start(&for_looks(file, Purpose::Look), &[mirror], Purpose::Look)?;
    Ok(legs_in(&offline, &parts, mirror))
}

fn legs_in(offline: &Started, parts: &Parts, mirror: &str) -> MirrorStatus {
    offline.status(parts.layers[mirror]).mirror().expect("it is a mirror").clone()
}

/// Warns that a look at a mirrored log leaves out missing legs.
pub fn tell_missing_legs(choice: &CacheChoice) -> Result<(), Failure> {
    let Some(mirror) = choice.file.mirror_below(&choice.log) else { return Ok(()) };
    let missing = Failure::unless_busy(legs_of(&choice.file, &mirror.name))?.map_or(0, |legs| legs.missing());
    if missing > 0 {
        let legs = if missing == 1 { "a leg is" } else { "legs are" };
        eprintln!(
            "dcd: log \"{}\": {legs} missing, and no label calls it failed: writes that only a missing leg has are not seen here",
            mirror.name
        );
    }
    Ok(())
}

/// Opens the record of the data disk, without looking at the log.
pub fn open_record(choice: &CacheChoice) -> Result<Option<Record>, Failure> {
    let found = match array_record(&choice.file, &choice.data)? {
        Some(record) => Some(record),
        None => {
            let (_offline, parts) = start(&choice.file, &[&choice.data], Purpose::Look)?;
            record(&choice.file, &parts, &choice.data)?
        }
    };
    Ok(found.map(Record::attached_part).transpose()?)
}

/// Opens parts of a stack, and all below them. Starts the log caches among these, if they are admitted.
pub fn start(file: &StackFile, parts: &[&str], purpose: Purpose) -> Result<(Started, Parts), Failure> {
    let mut file = Cow::Borrowed(file);
    if purpose != Purpose::Create {
        leave_out(file.to_mut(), parts, Allowed::Nothing)?;
    }
    let mut caches = admit_running(&file, parts)?;
    caches.unrecorded().for_each(|layer| file.to_mut().doubt_kept(layer));
    if purpose == Purpose::Look {
        // Their writes stay in RAM, so no record is needed.
        caches = RunningCaches::default();
        file.to_mut().without_passes();
    }
    file.to_mut().without_non_volatile();
    let mut opener = Opener::new(&file, purpose);
    let built = file.build_parts(parts, &mut opener).map_err(|error| opener.failure(error))?;
    if file.grows() {
        caches.grow()?;
    }
    let arrays = file.arrays().filter_map(|(layer, _)| built.parts.layers.get(&layer.name)).copied();
    let arrays = if purpose == Purpose::Look { Vec::new() } else { arrays.collect() };
    Ok((Started::start(built.stack, opener.into_pump(), caches, arrays)?, built.parts))
}

/// Reserves the space of a part in the file that it lies on: a log or a journal is written all over, and would fail once the file system
/// is full. Does nothing for parts on several devices, or on block devices.
pub fn reserve_space(file: &StackFile, parts: &Parts, part: &str) -> Result<(), Failure> {
    if let Some(mirror) = file.mirror_below(part) {
        return mirror.kind.below_names().into_iter().try_for_each(|leg| reserve_space(file, parts, leg));
    }
    let (Some(path), Some((_, extent))) = (file.path_below(part), parts.place(part)) else {
        return Ok(());
    };
    if path.to_str().is_some_and(Uri::is_meant) {
        return Ok(());
    }
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

/// Target of a part, in a stack that was built with it.
pub fn target(parts: &Parts, name: &str) -> Target {
    parts.target(name).expect("it was built")
}

/// Opens the record of the device that a part lies on; none for RAM, and for a part that is not one range of one device.
pub fn record(file: &StackFile, parts: &Parts, part: &str) -> Result<Option<Record>, Failure> {
    let (Some(path), Some((_, extent))) = (file.path_below(part), parts.place(part)) else {
        return Ok(None);
    };
    Ok(Some(Record::open(path, extent)?))
}

fn look_at_log(choice: &CacheChoice) -> Result<(LogSeen, Option<Superblock>), Failure> {
    let (offline, parts) = start(&for_looks(&choice.file, Purpose::Look), &[&choice.log], Purpose::Look)?;
    let mirror = choice.file.mirror_below(&choice.log);
    let legs = mirror.map(|mirror| legs_in(&offline, &parts, &mirror.name));
    look_at(&mut offline.part(target(&parts, &choice.log)), legs.as_ref())
}

/// Looks for a log on a device. `legs`: of a mirrored log.
fn look_at(
    log: &mut dyn BlockDevice,
    legs: Option<&MirrorStatus>,
) -> Result<(LogSeen, Option<Superblock>), Failure> {
    let copies = read_copies(log)?;
    match live_superblock(&copies) {
        Ok(superblock) => {
            let seen = LogSeen::Present {
                uuid: uuid_text(superblock.cache_uuid),
                epoch: superblock.epoch,
                state: superblock.state,
                torn: copies.iter().any(Result::is_err),
                legs: legs.map(LegsSeen::of).unwrap_or_default(),
            };
            Ok((seen, Some(superblock)))
        }
        Err(error @ (LogError::NotFormatted | LogError::NoSuperblock(..))) => {
            Ok((LogSeen::Missing(error.to_string()), None))
        }
        Err(error) => Err(error.into()),
    }
}

/// The attachment of a cache as its superblock describes it.
pub fn attachment(
    choice: &CacheChoice,
    extent: Extent,
    superblock: &Superblock,
    state: AttachmentState,
) -> Attachment {
    Attachment {
        cache_uuid: uuid_text(superblock.cache_uuid),
        log: choice.log_place(),
        first_sector: extent.start.0,
        sectors: extent.sectors,
        epoch: superblock.epoch,
        state,
        dirty_bytes: Some(0),
        stale_legs: Vec::new(),
        log_bytes: u64::from(superblock.segments) * u64::from(superblock.segment_bytes),
    }
}

/// Opens the record of the array that a part lies on; none without an array, or if the array was not made yet or cannot be read. Caches
/// below the array are started to read it, if they are admitted: only they know their data. The array's devices must not be open.
pub fn array_record(file: &StackFile, part: &str) -> Result<Option<Record>, Failure> {
    let Some(array) = array_below(file, part) else { return Ok(None) };
    admit_below(file, array)?;
    let opened = Devices::open(&ArrayChoice::of(file.clone(), array.to_owned()), Purpose::Look);
    // A command that starts the array reports the reason.
    let Some(devices) = Failure::unless_busy(opened)? else { return Ok(None) };
    let newest = &devices.newest;
    let sectors = (newest.members - newest.level.parity()) as u64 * newest.member_sectors;
    let its_own = devices
        .found
        .iter()
        .filter(|found| found.superblock().is_some_and(|(superblock, _)| superblock.uuid == newest.uuid));
    let members: Vec<&Path> = its_own.filter_map(|found| home_path(file, &found.name)).collect();
    match range(file, part, sectors) {
        Some(extent) if !members.is_empty() => {
            Ok(Some(Record::of_array(&uuid_text(newest.uuid), &members, extent, newest.caches.clone())?))
        }
        _ => Ok(None),
    }
}

impl Devices {
    /// Opens all devices of an array that can be opened.
    pub fn open(choice: &ArrayChoice, purpose: Purpose) -> Result<Devices, Failure> {
        let mut found = Vec::new();
        let mut there = Vec::new();
        for name in choice.names() {
            // Each alone, so that a missing one does not prevent a look at the others.
            match start(&choice.file, &[name], Purpose::Look) {
                Ok(_) => there.push(name),
                Err(Failure::Busy(why)) => return Err(Failure::Busy(why)),
                Err(error) => {
                    let content = Content::Unreadable(error.to_string());
                    found.push(Found { name: name.to_owned(), device: None, content });
                }
            }
        }
        let mut opened = Parts::default();
        if !there.is_empty() {
            let (offline, parts) = start(&choice.file, &there, purpose)?;
            opened = parts.clone();
            found.extend(there.iter().map(|name| Found::new(name, offline.part(target(&parts, name)))));
        }
        let order = choice.names();
        found.sort_by_key(|found| order.iter().position(|name| *name == found.name));
        let newest = newest(&found).ok_or_else(|| {
            let why = found.iter().map(|found| match &found.content {
                Content::Unreadable(why) => format!("\"{}\": {why}", found.name),
                Content::None(error) => format!("\"{}\": {error}", found.name),
                Content::Of(..) => format!("\"{}\" is a spare", found.name),
            });
            Failure::Failed(format!(
                "none of its devices is a member of an array; {}",
                why.collect::<Vec<_>>().join("; ")
            ))
        })?;
        Ok(Devices { newest, found, parts: opened })
    }
}

impl ArrayChoice {
    /// Tries the next start without changing anything. Returns the array's status then, or the refusal.
    pub fn try_start(&self) -> Result<Result<ArrayStatus, Refusal>, Failure> {
        match start(&self.file, &[&self.layer], Purpose::Look) {
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
