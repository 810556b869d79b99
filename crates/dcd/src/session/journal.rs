//! Says what is where an array should have its journal, and what may be lost with it. The device may be another one than the stack file means,
//! with data that only it has.

use std::path::Path;

use dcd_engine::log_cache::offline::{check, read_superblock};
use dcd_engine::mirror::Label;
use dcd_engine::raid::{AssembleError, has_journal_records, journal_header_bytes, may_be_journal_of};
use dcd_engine::{BlockDevice, Extent, Lba, SECTOR_BYTES, StartError};
use dcd_stack::{HumanBytes, IMPLIED_JOURNAL_BYTES as JOURNAL_BYTES, LayerKind, StackFile};

use crate::advice::Advised;
use crate::failure::Failure;
use crate::session::below::{array_below, range};
use crate::session::choice::{ArrayChoice, CacheChoice};
use crate::session::devices::Purpose;
use crate::session::members::Devices;
use crate::session::overwrite::{DeviceRange, refuse_content};
use crate::session::probe::probe;
use crate::session::record::{Attachment, Refusal, uuid_text};
use crate::session::site::Site;
use crate::session::survey::{array_record, for_looks, start, target};

/// Size of a journal that the stack file does not name, as the file writes sizes.
const JOURNAL_TEXT: &str = "64MiB";

/// Refusal for a stack that does not start. The devices of the stack must not be open, unless the site holds them.
pub fn refusal(site: &Site, error: &StartError) -> Refusal {
    let foreign = matches!(error.error.downcast_ref(), Some(AssembleError::ForeignJournal));
    let told = foreign.then(|| admit_journal(site, &error.layer));
    match told {
        Some(Err(Failure::Refused(refusal))) => refusal,
        _ => error.refusal(),
    }
}

/// Refuses a device that has something else where an array should have its journal.
pub fn admit_journal(site: &Site, array: &str) -> Result<(), Failure> {
    let choice = ArrayChoice::of(site.clone(), array.to_owned());
    let Some(journal) = &choice.journal else { return Ok(()) };
    let devices = Devices::open(&choice, Purpose::Look)?;
    let can_rescue = devices.can_do_without_journal();
    let newest = devices.close().newest;
    let site = for_looks(site, Purpose::Look);
    let failed = |error| Failure::Failed(format!("reading the journal of array \"{array}\": {error}"));
    let header_bytes = {
        let (offline, parts) = start(&site, &[journal], Purpose::Look)?;
        let mut device = offline.part(target(&parts, journal));
        if may_be_journal_of(&mut device, &newest).map_err(failed)? {
            return Ok(());
        }
        journal_header_bytes(&device, &newest).unwrap_or(0)
    };
    let (what, whose) = content(&site, journal)?;
    let path = site.path_below(journal).unwrap_or(Path::new(journal)).display();
    // A slice is named by its place: other slices of the device may be in use.
    let first = site
        .layer(journal)
        .and_then(|_| range(&site, journal, u64::MAX >> 1))
        .map(|place| place.start.0 * SECTOR_BYTES);
    let place = first.map_or_else(|| path.to_string(), |first| format!("{path} from byte {first} on"));
    let caches = caches_over(&site, array)?;
    let held = caches.iter().map(|(choice, own, _)| {
        format!("; the log of this array's cache \"{}\" has {}, as its record says", choice.layer, own.held())
    });
    let reason = format!(
        "array \"{array}\": there is something else where its journal should be: {place} has {what}{}",
        held.collect::<String>()
    );
    let stack = site.path.display();
    let whole = caches.iter().find(|(.., is_beside)| *is_beside).map(|(choice, own, _)| {
        let way = match own.may_lose_data() {
            true if can_rescue => {
                format!("; \"dcd rescue --list {stack}\" shows what it has, and \"dcd rescue {stack}\" writes that back")
            }
            true => format!("; \"dcd rescue --list {stack}\" shows what it has"),
            false => String::new(),
        };
        format!("the log of \"{}\" on the same device is whole{way}. ", choice.layer)
    });
    let whole = whole.unwrap_or_default();
    let action = match whose {
        Whose::Dcd => format!(
            "{whole}correct its path in the stack file: nothing is lost then. Leave {path} as it is, as another cache or array needs it.{}",
            gone(&choice)
        ),
        Whose::NotOfDcd => format!(
            "{whole}check that it is the right device and place, and correct them in the stack file if not. If they are right, and nothing there is \
             needed, {}: the journal is empty then.{}",
            match first {
                Some(first) => format!(
                    "write zeroes over its header alone (dd if=/dev/zero of={path} bs={header_bytes} count=1 oflag=seek_bytes seek={first} conv=notrunc)"
                ),
                None => "empty it (a device: blkdiscard -zf; a file: remove it)".to_owned(),
            },
            gone(&choice)
        ),
    };
    Err(Failure::refused(reason, action))
}

/// Refuses a device on which an array is to have its own journal from now on, if the journal's place has something on it. A place that was
/// cleared for a journal may have records behind its header, and one with the array's journal is in use already.
pub fn admit_new_journal(site: &Site, array: &str) -> Result<(), Failure> {
    admit_journal(site, array)?;
    let choice = ArrayChoice::of(site.clone(), array.to_owned());
    let Some(journal) = choice.journal.as_deref().filter(|_| choice.config.journal_implied) else {
        return Ok(());
    };
    let newest = Devices::open(&choice, Purpose::Look)?.close().newest;
    let (offline, parts) = start(&for_looks(site, Purpose::Look), &[journal], Purpose::Look)?;
    let mut device = offline.part(target(&parts, journal));
    if has_journal_records(&mut device, &newest) {
        return Ok(());
    }
    let path = site.path_below(journal).unwrap_or(Path::new(journal)).display();
    let name = format!("{path}, where array \"{array}\" is to have its journal,");
    refuse_content(&name, &mut device, false).map(|_| ())
}

/// The way on for an array whose own journal is lost.
fn gone(choice: &ArrayChoice) -> &'static str {
    match choice.config.journal_implied {
        true => "",
        false => {
            " If the array's own journal is gone for good, write journal = \"none\" in the stack file: if no member is missing, the parity is \
             computed again"
        }
    }
}

/// Tells whether somebody else may need a content.
enum Whose {
    Dcd,
    NotOfDcd,
}

/// Describes the content of a device from the place of a part on.
fn content(site: &Site, part: &str) -> Result<(String, Whose), Failure> {
    let base = base(site, part);
    let (offline, parts) = start(site, &[base], Purpose::Look)?;
    let mut device = offline.part(target(&parts, base));
    let first = range(site, part, device.geometry().sectors).map_or(0, |range| range.start.0);
    let rest = device.geometry().sectors.saturating_sub(first);
    let mut device = DeviceRange { device: &mut device, extent: Extent::new(Lba(first), rest) };
    if Label::read(&mut device).is_ok() {
        let log = log_on(&mut DeviceRange::on_leg(&mut device)).unwrap_or_default();
        return Ok((format!("a leg of a mirrored dcd log{log}"), Whose::Dcd));
    }
    if let (Some(log), true) = (log_on(&mut device), read_superblock(&mut device).is_ok()) {
        return Ok((format!("the log of a dcd cache{log}"), Whose::Dcd));
    }
    let found =
        probe(&mut device).map_err(|error| Failure::Failed(format!("reading \"{part}\": {error}")))?;
    let found = found.map_or_else(|| "content that dcd does not know".to_owned(), |found| found.into_owned());
    let whose =
        if found.contains("dcd array") || found.contains("dcd cache") { Whose::Dcd } else { Whose::NotOfDcd };
    Ok((found, whose))
}

/// Names the cache of a log at the beginning of a device, or behind a journal there, and the amount of its dirty data; none where there is no log.
fn log_on(device: &mut dyn BlockDevice) -> Option<String> {
    let sectors = device.geometry().sectors;
    let found = [0, JOURNAL_BYTES / SECTOR_BYTES].into_iter().find_map(|first| {
        let extent = Extent::new(Lba(first), sectors.checked_sub(first)?);
        let mut log = DeviceRange { device: &mut *device, extent };
        let superblock = read_superblock(&mut log).ok()?;
        Some((superblock, check(&mut log, None, &mut |_| {})))
    });
    let (superblock, checked) = found?;
    let dirty = checked.ok().map(|report| report.dirty);
    let dirty = dirty.map(|dirty| HumanBytes(dirty.data_bytes + dirty.zeroes_bytes).to_string());
    Some(format!(
        ", of the cache {} with {} that are not written back",
        uuid_text(superblock.cache_uuid),
        dirty.as_deref().unwrap_or("an unknown amount of writes")
    ))
}

/// Refuses a start that looks for the log of a cache where it is not since the stack file was edited: an array below the cache has its journal
/// before the log, unless the file names another one or none. `own`: the attachment of the data disk. `why`: the reason for calling the log
/// missing, which is told what else is on the device.
pub fn admit_moved_log(
    choice: &CacheChoice,
    own: Option<&Attachment>,
    why: &mut String,
) -> Result<(), Failure> {
    let site = &choice.site;
    let Some(array) = array_below(site, &choice.data) else { return Ok(()) };
    let is_implied = |kind: &&LayerKind| matches!(kind, LayerKind::Slice(slice) if slice.implied);
    let below = site.layer(&choice.log).map(|layer| &layer.kind).filter(is_implied);
    let base = below.map_or(choice.log.as_str(), |slice| slice.below_names()[0]);
    let (is_after, journal) = (below.is_some(), JOURNAL_BYTES / SECTOR_BYTES);
    let first = if is_after { 0 } else { journal };
    let Some((offline, parts)) =
        Failure::unless_busy(start(&for_looks(site, Purpose::Look), &[base], Purpose::Look))?
    else {
        return Ok(());
    };
    let mut device = offline.part(target(&parts, base));
    let sectors = device.geometry().sectors.saturating_sub(first);
    let path = choice.log_name();
    if is_after && Label::read(&mut device).is_ok() {
        *why = format!("{why}: {} is a leg of a mirrored dcd log", path.display());
        return Ok(());
    }
    let there = DeviceRange { device: &mut device, extent: Extent::new(Lba(first), sectors) };
    let Some(found) = read_superblock(&mut { there }).ok().map(|log| uuid_text(log.cache_uuid)) else {
        return Ok(());
    };
    if own.is_some_and(|own| own.cache_uuid != found) {
        *why = format!("{why}: {} has the log of the cache {found}", path.display());
        return Ok(());
    }
    let (layer, path, size) = (&choice.layer, path.display(), HumanBytes(JOURNAL_BYTES));
    let held = own.map_or(String::new(), |own| format!(" It has {}.", own.held()));
    let (place, action) = match is_after {
        true => (
            format!("at the beginning of {path}, and not {size} further on, behind a journal of the array"),
            format!(
                "the stack file had journal = \"none\" in [layer.{array}], or another journal: write that again"
            ),
        ),
        false => (
            format!("{size} behind the beginning of {path}: the array \"{array}\" had its journal before it"),
            match choice.is_mirrored() {
                true => format!("the stack file had no \"journal\" in [layer.{array}]: take it out again"),
                false => format!(
                    "the stack file had no \"journal\" in [layer.{array}]: take it out again; or name the place of the log: add [layer.log-place] with kind \
                     = \"slice\", of = \"{base}\" and first = \"{size}\", and write log = \"log-place\" in [layer.{layer}]",
                    size = JOURNAL_TEXT
                ),
            },
        ),
    };
    Err(Failure::refused(
        format!("the log of \"{layer}\" is {place}.{held} The stack file was edited"),
        format!("{action}. Nothing is lost"),
    ))
}

/// The part below all slices.
pub fn base<'a>(file: &'a StackFile, part: &'a str) -> &'a str {
    match file.layer(part).map(|layer| &layer.kind) {
        Some(kind @ LayerKind::Slice(_)) => base(file, kind.below_names()[0]),
        _ => part,
    }
}

/// The caches of a stack that are attached to an array or to a part of it. True for one whose log is behind the array's journal.
fn caches_over(site: &Site, array: &str) -> Result<Vec<(CacheChoice, Attachment, bool)>, Failure> {
    let mut found = Vec::new();
    for layer in site.log_caches() {
        let choice = CacheChoice::of(site.clone(), Some(&layer.name))?;
        for choice in choice.of_disks() {
            if array_below(site, &choice.data) != Some(array) {
                continue;
            }
            let Some(record) = array_record(site, &choice.data)? else { continue };
            let seen = record.attached_part()?.seen(None)?;
            let Some(own) = seen.all.of(seen.extent).cloned() else { continue };
            let is_on_array = site.needed_by(&[&choice.log]).iter().any(|below| below == array);
            let log = (!is_on_array).then(|| start(site, &[&choice.log], Purpose::Look));
            let log = log.map(Failure::unless_busy).transpose()?.flatten().and_then(|(offline, parts)| {
                read_superblock(&mut offline.part(target(&parts, &choice.log))).ok()
            });
            let is_beside =
                ArrayChoice::of(site.clone(), array.to_owned()).journal_beside(&choice.log).is_some();
            let is_there = log.is_some_and(|log| uuid_text(log.cache_uuid) == own.cache_uuid);
            found.push((choice, own, is_beside && is_there));
        }
    }
    Ok(found)
}
