//! Surveys a stack before a start: looks at its arrays, mirrored logs, log caches and records, from the bottom up. A look is a start, too,
//! whose writes stay in RAM: a log that lies on an array can only be read once the array has started.

use std::collections::BTreeMap;
use std::path::Path;

use dcd_engine::log_cache::LogError;
use dcd_engine::log_cache::format::LogSuperblock;
use dcd_engine::log_cache::offline::{live_superblock, read_copies, read_superblock};
use dcd_engine::mirror::{FoundLabel, Label, MirrorStatus};
use dcd_engine::{BlockDevice, ErrorKind, Lba, SECTOR_BYTES, Target};
use dcd_stack::{DeviceSource, LayerKind, LayerSpec, Parts};

use crate::failure::Failure;
use crate::session::below::{array_below, home_path, is_read_only, range, stands_on_a_cache};
use crate::session::choice::{ArrayChoice, CacheChoice};
use crate::session::devices::{Opener, Purpose};
use crate::session::journal;
use crate::session::judge::{
    ArraySeen, CacheSeen, MirrorSeen, PlainSeen, SeenStack, StartPlan, judge, of_cache,
};
use crate::session::machine;
use crate::session::members::{Devices, FoundMember, MemberContent, newest};
use crate::session::overwrite::log_in_use;
use crate::session::record::{DiskRecord, LegsSeen, LogSeen, original_of, record_of_disk, uuid_text};
use crate::session::running::{Admitted, RunningCaches};
use crate::session::site::Site;
use crate::session::started::Started;

/// A stack as it was seen, and the records of its data disks.
pub struct Survey {
    pub seen: SeenStack,
    /// By cache, and by the number of the data disk.
    pub records: BTreeMap<(String, usize), DiskRecord>,
}

impl Default for Survey {
    fn default() -> Survey {
        let seen = SeenStack { machine: machine::this(), ..SeenStack::default() };
        Survey { seen, records: BTreeMap::new() }
    }
}

impl Survey {
    /// Looks at parts of a stack and all below them.
    pub fn look_at(&mut self, site: &Site, parts: &[&str], purpose: Purpose) -> Result<(), Failure> {
        if purpose != Purpose::Create {
            self.look_at_devices(site, parts)?;
            for (layer, _) in site.mirrors() {
                if let Some(seen) = self.seen.mirrors.get_mut(&layer.name) {
                    seen.labels = labels(site, layer)?;
                }
            }
        }
        if purpose == Purpose::Change {
            self.look_at_bare_devices(site, parts)?;
        }
        self.look_at_caches(site, parts)
    }

    /// Looks at the records of the devices that arrays and mirrors use without a cache: members, spares, journals and legs. A change of
    /// such a device would be overwritten by an attached cache, or would overwrite what only that cache's log has.
    pub fn look_at_bare_devices(&mut self, site: &Site, parts: &[&str]) -> Result<(), Failure> {
        let needed = site.needed_by(parts);
        let is_group = |kind: &LayerKind| matches!(kind, LayerKind::Raid(_) | LayerKind::Mirror(_));
        let groups = site.layers.iter().filter(|layer| is_group(&layer.kind));
        for part in groups
            .flat_map(|layer| layer.kind.below_names())
            .filter(|&part| needed.iter().any(|name| name == part))
        {
            let device = site.bottom_device(part);
            let is_bare = device.is_some_and(|device| {
                !matches!(device.source, DeviceSource::Memory { .. }) && device.is_there()
            });
            if !is_bare || is_read_only(site, part) || stands_on_a_cache(site, part) {
                continue;
            }
            // A device that cannot be opened is reported, or left out, by the start itself.
            let Some((_offline, opened)) = Failure::unless_busy(start(site, &[part], Purpose::Look))? else {
                continue;
            };
            if let Some(record) = record(site, &opened, part)? {
                let record = Some(record.seen(None)?);
                self.seen.plain.push(PlainSeen { part: part.to_owned(), record, log_of: None });
            }
        }
        Ok(())
    }

    /// Looks at log caches, but not at caches on caches: only the cache below can say what they hold, and only while it is served.
    fn look_at_caches(&mut self, site: &Site, parts: &[&str]) -> Result<(), Failure> {
        let needed = site.needed_by(parts);
        for layer in site.log_caches().filter(|layer| needed.contains(&layer.name)) {
            let choice = CacheChoice::of(site.clone(), Some(&layer.name))?;
            if choice.stands_on_a_cache() {
                continue;
            }
            let mut all = Vec::new();
            for choice in choice.of_disks() {
                let (seen, record) = inspect(&choice).map_err(|failure| match failure {
                    Failure::Refused(refusal) => Failure::Refused(of_cache(site, &layer.name, refusal)),
                    other => other,
                })?;
                all.push(seen);
                self.records.extend(record.map(|record| ((layer.name.clone(), choice.disk), record)));
            }
            self.seen.caches.insert(layer.name.clone(), all);
        }
        Ok(())
    }

    /// Finds missing devices of arrays and mirrored logs, and looks at the superblocks of these arrays.
    pub fn look_at_devices(&mut self, site: &Site, parts: &[&str]) -> Result<(), Failure> {
        let needed = site.needed_by(parts);
        for layer in site.layers.iter().filter(|layer| needed.contains(&layer.name)) {
            let is_absent = |name: &&str| !site.is_there(name);
            let absent = |names: Vec<&str>| names.into_iter().filter(is_absent).map(str::to_owned).collect();
            match &layer.kind {
                LayerKind::Raid(_) => {
                    let choice = ArrayChoice::of(site.clone(), layer.name.clone());
                    let absent: Vec<String> = absent(choice.names());
                    if absent.is_empty() {
                        continue;
                    }
                    let devices = Failure::unless_busy(Devices::open(&choice, Purpose::Look))?;
                    let devices = devices.map(Devices::close);
                    self.seen.arrays.insert(layer.name.clone(), ArraySeen { absent, devices });
                }
                LayerKind::Mirror(_) => {
                    let seen = MirrorSeen { absent: absent(layer.kind.below_names()), labels: Vec::new() };
                    self.seen.mirrors.insert(layer.name.clone(), seen);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Looks at the record of a part that is to be served without a log cache, and for a log on it. A device that is opened for reading
    /// only may be a log.
    pub fn look_at_plain(&mut self, site: &Site, part: &str) -> Result<(), Failure> {
        let layer = site.layer(part);
        if layer.is_some_and(|layer| matches!(layer.kind, LayerKind::LogCache { .. })) {
            return Ok(());
        }
        let is_read_only = is_read_only(site, part);
        let (record, log_of) = match site.bottom_device(part) {
            Some(device) if matches!(device.source, DeviceSource::Memory { .. }) || !device.is_there() => {
                return Ok(());
            }
            Some(_) => {
                let (offline, parts) = start(site, &[part], Purpose::Look)?;
                (record(site, &parts, part)?, log_in_use(&mut offline.part(target(&parts, part))))
            }
            None => {
                let record = array_record(site, part)?;
                // An array on a cache is not started here: the cache is not admitted yet.
                let is_startable =
                    array_below(site, part).is_some() && !is_read_only && !stands_on_a_cache(site, part);
                let started = is_startable.then(|| start(site, &[part], Purpose::Look));
                let started = started.map(Failure::unless_busy).transpose()?.flatten();
                let log =
                    started.and_then(|(offline, parts)| log_in_use(&mut offline.part(target(&parts, part))));
                (record, log)
            }
        };
        let is_whole = record.is_some();
        let record = record.map(|record| record.seen(None)).transpose()?;
        let log_of = log_of.filter(|_| !is_read_only);
        self.seen.plain.push(PlainSeen { part: part.to_owned(), record, log_of });
        let below = layer.filter(|_| !is_whole).map_or(Vec::new(), |layer| layer.kind.below_names());
        below.into_iter().try_for_each(|below| self.look_at_plain(site, below))
    }

    /// Takes the caches that a plan starts, the lower ones first.
    pub fn admitted(self, site: &Site, plan: &StartPlan) -> Vec<Admitted> {
        let Survey { seen, mut records } = self;
        let disks = |layer: &LayerSpec| {
            let choice = CacheChoice::of(site.clone(), Some(&layer.name));
            choice.map_or(Vec::new(), |choice| choice.of_disks())
        };
        let admitted = |choice: CacheChoice| {
            let log = choice.log_place();
            let CacheChoice { layer, disk, .. } = choice;
            let cache = seen.caches.get(&layer)?.get(disk)?;
            let at = (layer, disk);
            let record = records.remove(&at);
            let mirror = site.mirror_below(&choice.log).map(|mirror| mirror.name.clone());
            Some(Admitted {
                mirror: mirror.filter(|_| record.is_some()),
                record,
                unrecorded: plan.unrecorded.get(&at).cloned(),
                cache: cache.superblock.as_ref().map(|superblock| uuid_text(superblock.cache_uuid)),
                layer: at.0,
                disk,
                log,
            })
        };
        site.log_caches().flat_map(disks).filter_map(admitted).collect()
    }
}

/// Opens parts of a stack, and all below them. Starts the log caches among these, if they are admitted.
pub fn start(site: &Site, parts: &[&str], purpose: Purpose) -> Result<(Started, Parts), Failure> {
    let mut site = site.clone();
    site.hold(purpose);
    let mut survey = Survey::default();
    survey.look_at(&site, parts, purpose)?;
    let plan = judge(&site, &survey.seen, &site.asked)?;
    plan.prepare(&mut site, parts);
    let mut caches = RunningCaches::of(survey.admitted(&site, &plan));
    if purpose == Purpose::Look {
        // Their writes stay in RAM, so no record is needed.
        caches = RunningCaches::default();
        site.asked.only_looks = true;
    }
    site.asked.volatile = true;
    let mut opener = Opener::new(&site, purpose);
    let built = site.build_parts(parts, &mut opener).map_err(|error| opener.failure(error))?;
    if site.asked.grow {
        caches.grow()?;
    }
    let arrays = site.arrays().filter_map(|(layer, _)| built.parts.layers.get(&layer.name)).copied();
    let arrays = if purpose == Purpose::Look { Vec::new() } else { arrays.collect() };
    let started = Started::start(built.stack, opener.into_pump(), caches, arrays)?;
    Ok((started.map_err(|error| journal::refusal(&site, &error))?, built.parts))
}

/// Target of a part, in a stack that was built with it.
pub fn target(parts: &Parts, name: &str) -> Target {
    parts.target(name).expect("it was built")
}

/// Lets a command that changes nothing start without missing legs. The command reports them, and nothing relies on its start.
pub fn for_looks(site: &Site, purpose: Purpose) -> Site {
    let mut site = site.clone();
    site.asked.degraded_legs |= purpose == Purpose::Look;
    site
}

/// Looks at a cache without changing anything, and closes its devices again.
pub fn inspect(choice: &CacheChoice) -> Result<(CacheSeen, Option<DiskRecord>), Failure> {
    let choice = &choice.holding(Purpose::Look);
    let (mut log, superblock) = match look_at_log(choice) {
        Ok(looked) => looked,
        // A log, or a leg, that is refused is not missing.
        Err(failure @ (Failure::Busy(_) | Failure::Refused(_))) => return Err(failure),
        // The log itself may be good where the array below it, or its legs, cannot start.
        Err(failure) if array_below(&choice.site, &choice.log).is_some() || choice.is_mirrored() => {
            return Err(failure);
        }
        Err(failure) => {
            let log = LogSeen::Missing(failure.to_string());
            if let Some(why) = why_missing(choice)? {
                return Ok((CacheSeen { log, superblock: None, record: None, missing: Some(why) }, None));
            }
            let record = open_record(choice)?;
            let seen = record.as_ref().map(|record| record.seen(None)).transpose()?;
            return Ok((CacheSeen { log, superblock: None, record: seen, missing: None }, record));
        }
    };
    if let Some(why) = why_missing(choice)? {
        return Ok((CacheSeen { log, superblock, record: None, missing: Some(why) }, None));
    }
    let record = open_record(choice)?;
    if let LogSeen::Missing(why) = &mut log {
        let recorded = record.as_ref().map(|record| record.seen(None)).transpose()?;
        let own = recorded.as_ref().and_then(|seen| seen.all.of(seen.extent));
        journal::admit_moved_log(choice, own, why)?;
        let data = Failure::unless_busy(start(&choice.site, &[&choice.data], Purpose::Look))?;
        let is_log = |(offline, parts): (Started, Parts)| {
            read_superblock(&mut offline.part(target(&parts, &choice.data))).is_ok()
        };
        if data.is_some_and(is_log) {
            *why = "the data device holds a dcd log, and the log device none: they are swapped".to_owned();
        }
    }
    let mut seen = record.as_ref().map(|record| record.seen(superblock.as_ref())).transpose()?;
    if let (Some(seen), Some(superblock)) = (&mut seen, &superblock)
        && seen.all.overlapping(seen.extent).is_none()
        && superblock.has_disk(choice.disk)
    {
        let is_first = choice.disk == 0;
        seen.has_place = (!is_first).then(|| record_of_disk(superblock, choice.disk)).flatten();
        let data = choice.site.path_below(&choice.data);
        seen.original = data.and_then(|data| original_of(data, superblock, choice.disk));
    }
    Ok((CacheSeen { log, superblock, record: seen, missing: None }, record))
}

/// True where a data disk of a log with several cannot be read. What cannot be looked at is reported when it is opened.
pub fn lacks_disk(site: &Site) -> bool {
    let choices = |layer: &LayerSpec| CacheChoice::of(site.clone(), Some(&layer.name)).ok();
    let mut disks = site.log_caches().filter_map(choices).flat_map(|choice| choice.of_disks());
    disks
        .any(|choice| !choice.site.is_free_place(&choice.data) && matches!(why_missing(&choice), Ok(Some(_))))
}

/// Says why a data disk of several cannot be read; none if it can be, or if another reason than its absence is reported when it is opened.
pub fn why_missing(choice: &CacheChoice) -> Result<Option<String>, Failure> {
    let site = &choice.site;
    let Some(device) = site.bottom_device(&choice.data).filter(|_| choice.disks().len() > 1) else {
        return Ok(None);
    };
    match &device.source {
        DeviceSource::Memory { .. } => return Ok(None),
        DeviceSource::Missing => return Ok(Some("it is left out".to_owned())),
        DeviceSource::Remote(_) if !device.is_there() => {
            return Ok(Some("its server does not answer".to_owned()));
        }
        DeviceSource::Path { path, .. } if !device.is_there() => {
            let is_there = std::fs::symlink_metadata(path).is_ok();
            return Ok(Some(if is_there { "it has no medium" } else { "it does not exist" }.to_owned()));
        }
        DeviceSource::Path { .. } | DeviceSource::Remote(_) => {}
    }
    let (offline, parts) = start(site, &[&choice.data], Purpose::Look)?;
    let mut disk = offline.part(target(&parts, &choice.data));
    let block = disk.geometry().logical_block_bytes as usize;
    match disk.read(Lba(0), block) {
        Err(error) if error.kind == ErrorKind::Medium => {
            // A bad block alone is no reason.
            let last = disk.geometry().sectors - block as u64 / SECTOR_BYTES;
            Ok(disk.read(Lba(last), block).err().map(|_| "it cannot be read".to_owned()))
        }
        _ => Ok(None),
    }
}

fn look_at_log(choice: &CacheChoice) -> Result<(LogSeen, Option<LogSuperblock>), Failure> {
    let (offline, parts) = start(&for_looks(&choice.site, Purpose::Look), &[&choice.log], Purpose::Look)?;
    let mirror = choice.site.mirror_below(&choice.log);
    let legs = mirror.map(|mirror| legs_in(&offline, &parts, &mirror.name));
    look_at(&mut offline.part(target(&parts, &choice.log)), legs.as_ref())
}

/// Looks for a log on a device. `legs`: of a mirrored log.
pub fn look_at(
    log: &mut dyn BlockDevice,
    legs: Option<&MirrorStatus>,
) -> Result<(LogSeen, Option<LogSuperblock>), Failure> {
    let copies = read_copies(log)?;
    match live_superblock(&copies) {
        Ok(superblock) => {
            let seen = LogSeen::Present {
                uuid: uuid_text(superblock.cache_uuid),
                epoch: superblock.epoch,
                generation: superblock.generation,
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

/// Reads the labels of the legs that are present; none if these cannot be opened, as the start of the log reports that.
fn labels(site: &Site, mirror: &LayerSpec) -> Result<Vec<(String, FoundLabel)>, Failure> {
    let names: Vec<&str> = mirror.kind.below_names().into_iter().filter(|leg| site.is_there(leg)).collect();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let Some((offline, parts)) = Failure::unless_busy(start(site, &names, Purpose::Look))? else {
        return Ok(Vec::new());
    };
    let read = |name: &&str| ((*name).to_owned(), Label::read(&mut offline.part(target(&parts, name))));
    Ok(names.iter().map(read).collect())
}

/// Looks at the labels of a mirrored log.
pub fn legs_of(site: &Site, mirror: &str) -> Result<MirrorStatus, Failure> {
    let (offline, parts) = start(&for_looks(site, Purpose::Look), &[mirror], Purpose::Look)?;
    Ok(legs_in(&offline, &parts, mirror))
}

pub fn legs_in(offline: &Started, parts: &Parts, mirror: &str) -> MirrorStatus {
    offline.status(parts.layers[mirror]).mirror().expect("it is a mirror").clone()
}

/// True if a mirrored log lacks a leg that no label calls failed: it is not in the stack file, or its device is missing.
pub fn lacks_leg(site: &Site) -> Result<bool, Failure> {
    let mut lacks = false;
    for (mirror, _) in site.mirrors() {
        lacks |= match Failure::unless_busy(legs_of(site, &mirror.name))? {
            Some(legs) => legs.missing() > 0,
            // No label can be read: the log's start says what is wrong.
            None => mirror.kind.below_names().into_iter().any(|leg| !site.is_there(leg)),
        };
    }
    Ok(lacks)
}

/// Opens the record of the data disk, without looking at the log.
pub fn open_record(choice: &CacheChoice) -> Result<Option<DiskRecord>, Failure> {
    let found = match array_record(&choice.site, &choice.data)? {
        Some(record) => Some(record),
        None => {
            let (_offline, parts) = start(&choice.site, &[&choice.data], Purpose::Look)?;
            record(&choice.site, &parts, &choice.data)?
        }
    };
    Ok(found.map(DiskRecord::attached_part).transpose()?)
}

/// Opens the record of the device that a part lies on; none for RAM, and for a part that is not one range of one device.
pub fn record(site: &Site, parts: &Parts, part: &str) -> Result<Option<DiskRecord>, Failure> {
    let place = site.path_below(part).zip(parts.place(part));
    Ok(place.map(|(path, (_, extent))| DiskRecord::open(path, extent)).transpose()?)
}

/// Opens the record of the array that a part lies on; none without an array, or if the array was not made yet or cannot be read. Caches
/// below the array are started to read it, if they are admitted: only they know their data. The array's devices must not be open.
pub fn array_record(site: &Site, part: &str) -> Result<Option<DiskRecord>, Failure> {
    let Some(array) = array_below(site, part) else { return Ok(None) };
    let mut survey = Survey::default();
    survey.look_at_caches(site, &[array])?;
    judge(site, &survey.seen, &site.asked)?;
    let opened = Devices::open(&ArrayChoice::of(site.clone(), array.to_owned()), Purpose::Look);
    // A command that starts the array reports the reason.
    let Some(devices) = Failure::unless_busy(opened)? else { return Ok(None) };
    let newest = &devices.newest;
    let sectors = (newest.members - newest.level.parity()) as u64 * newest.member_sectors;
    let its_own =
        devices.found.iter().filter(|found| found.superblock().is_some_and(|(of, _)| of.uuid == newest.uuid));
    let members: Vec<&Path> = its_own.filter_map(|found| home_path(site, &found.name)).collect();
    match range(site, part, sectors) {
        Some(extent) if !members.is_empty() => {
            Ok(Some(DiskRecord::of_array(&uuid_text(newest.uuid), &members, extent, newest.caches.clone())?))
        }
        _ => Ok(None),
    }
}

impl Devices {
    /// Opens all devices of an array that can be opened.
    pub fn open(choice: &ArrayChoice, purpose: Purpose) -> Result<Devices, Failure> {
        let mut site = choice.site.clone();
        site.hold(purpose);
        let (mut found, mut there) = (Vec::new(), Vec::new());
        for name in choice.names() {
            // Each alone, so that a missing one does not prevent a look at the others.
            match start(&site, &[name], Purpose::Look) {
                Ok(_) => there.push(name),
                Err(Failure::Busy(why)) => return Err(Failure::Busy(why)),
                Err(error) => {
                    let content = MemberContent::Unreadable(error.to_string());
                    found.push(FoundMember { name: name.to_owned(), device: None, content });
                }
            }
        }
        let mut opened = Parts::default();
        if !there.is_empty() {
            let (offline, parts) = start(&site, &there, purpose)?;
            opened = parts.clone();
            found.extend(there.iter().map(|name| FoundMember::new(name, offline.part(target(&parts, name)))));
        }
        let order = choice.names();
        found.sort_by_key(|found| order.iter().position(|name| *name == found.name));
        let newest = newest(&found).ok_or_else(|| {
            let why = found.iter().map(|found| match &found.content {
                MemberContent::Unreadable(why) => format!("\"{}\": {why}", found.name),
                MemberContent::None(error) => format!("\"{}\": {error}", found.name),
                MemberContent::Of(..) => format!("\"{}\" is a spare", found.name),
            });
            let why = why.collect::<Vec<_>>().join("; ");
            Failure::Failed(format!("none of its devices is a member of an array; {why}"))
        })?;
        Ok(Devices { newest, found, parts: opened })
    }
}

#[cfg(test)]
#[path = "survey_tests.rs"]
mod tests;
