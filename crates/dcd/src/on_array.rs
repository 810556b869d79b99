//! The attachment record of what lies on an array. Who the array is say the superblocks of its members: they are read, and it is
//! not started. They also tell that there is a cache: a record may stay behind when disks are moved.

use std::path::Path;

use dcd_engine::raid::offline::store_caches;
use dcd_engine::raid::{CACHES_MAX, clear_journal, may_be_journal_of};
use dcd_engine::{Extent, Lba, SECTOR_BYTES};
use dcd_stack::{LayerKind, StackFile};

use crate::admission::admit_below;
use crate::attachment::{Record, uuid_text};
use crate::commands::array::{Choice, Devices, refused};
use crate::failure::Failure;
use crate::opening::{start, target};
use crate::real::Purpose;

/// The array whose sectors, or one range of them, a part of a stack is.
pub fn array_below<'a>(file: &'a StackFile, part: &str) -> Option<&'a str> {
    let layer = file.layer(part)?;
    match (&layer.kind, layer.kind.below_names().as_slice()) {
        (LayerKind::Raid(_), _) => Some(&layer.name),
        (LayerKind::LogCache { .. } | LayerKind::WriteCache(_), _) => None,
        (_, [below]) => array_below(file, below),
        _ => None,
    }
}

/// The record of the array that a part lies on. None where it lies on none, or on one that has not been made or cannot be read. Caches
/// below it are started to read it, if they may be: only they can say what they hold. Its devices must not be open.
pub fn record(file: &StackFile, part: &str) -> Result<Option<Record>, Failure> {
    let Some(array) = array_below(file, part) else { return Ok(None) };
    admit_below(file, array)?;
    let devices = match Devices::open(&Choice::of(file.clone(), array.to_owned()), Purpose::Look) {
        Ok(devices) => devices,
        Err(Failure::Busy(why)) => return Err(Failure::Busy(why)),
        // Whoever starts the array is told more of it.
        Err(_) => return Ok(None),
    };
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

/// Has the members of the array that a part lies on tell of the caches that its record has, and no more of those that are gone. Its
/// devices must not be open.
pub fn tell_members(file: &StackFile, part: &str, record: &Record, gone: &[u64]) -> Result<(), Failure> {
    let Some(array) = array_below(file, part) else { return Ok(()) };
    let told = record.told().unwrap_or(&[]);
    let mut caches = record.load()?.to_tell();
    // What the record does not have may have been lost with an older one.
    for cache in told {
        if caches.len() < CACHES_MAX && !gone.contains(cache) && !caches.contains(cache) {
            caches.push(*cache);
        }
    }
    caches.sort_unstable();
    if caches == told || is_read_only(file, array) {
        return Ok(());
    }
    let mut devices = Devices::open(&Choice::of(file.clone(), array.to_owned()), Purpose::Change)?;
    store_caches(&mut devices.members(), caches).map_err(refused)?;
    Ok(())
}

/// Overwrites what lies where the array below a cache has its journal by itself, at the beginning of the device of the log, and is none:
/// as the log, which is about to be made there.
pub fn clear_foreign_journal(choice: &crate::choice::Choice) -> Result<(), Failure> {
    let file = &choice.file;
    let Some(array) = array_below(file, &choice.data) else { return Ok(()) };
    let array = Choice::of(file.clone(), array.to_owned());
    let Some(journal) = array.journal_beside(&choice.log) else { return Ok(()) };
    let newest = Devices::open(&array, Purpose::Look)?.newest;
    let (offline, parts) = start(file, &[journal], Purpose::Create)?;
    let mut device = offline.part(target(&parts, journal));
    let failed = |why: String| Failure::Failed(format!("the journal of the array: {why}"));
    if !may_be_journal_of(&mut device, &newest).map_err(|error| failed(error.to_string()))? {
        clear_journal(&mut device, &newest).map_err(|error| failed(error.to_string()))?;
        eprintln!(
            "dcd: what was at the beginning of the log's device, where the array has its journal, was overwritten"
        );
    }
    Ok(())
}

/// The file or block device that a part is at home on: where caches lie between, it is on their data disks.
fn home_path<'a>(file: &'a StackFile, part: &'a str) -> Option<&'a Path> {
    match file.layer(part).map(|layer| &layer.kind) {
        Some(LayerKind::LogCache { data, .. }) => home_path(file, &data.text),
        Some(kind) => match kind.below_names().as_slice() {
            [below] => home_path(file, below),
            _ => None,
        },
        None => file.path_below(part),
    }
}

/// The sectors of its array that a part is.
fn range(file: &StackFile, part: &str, array_sectors: u64) -> Option<Extent> {
    let kind = &file.layer(part)?.kind;
    if matches!(kind, LayerKind::Raid(_)) {
        return Some(Extent::new(Lba(0), array_sectors));
    }
    let below = range(file, kind.below_names().first()?, array_sectors)?;
    let LayerKind::Slice(slice) = kind else { return Some(below) };
    let first = slice.first_bytes / SECTOR_BYTES;
    let rest = below.sectors.checked_sub(first)?;
    Some(Extent::new(below.start + first, slice.size_bytes.map_or(rest, |bytes| bytes / SECTOR_BYTES)))
}

/// True for a log cache, and for what has one below it.
pub fn stands_on_a_cache(file: &StackFile, part: &str) -> bool {
    let Some(layer) = file.layer(part) else { return false };
    matches!(layer.kind, LayerKind::LogCache { .. })
        || layer.kind.below_names().into_iter().any(|below| stands_on_a_cache(file, below))
}

/// True where a part lies on a device that is opened for reading only.
pub fn is_read_only(file: &StackFile, part: &str) -> bool {
    match (file.device(part), file.layer(part)) {
        (Some(device), _) => device.read_only,
        (None, Some(layer)) => layer.kind.below_names().into_iter().any(|below| is_read_only(file, below)),
        (None, None) => false,
    }
}
