//! Starts parts of a stack, from the bottom up: looks at what they lie on, has that judged, and builds them.
//!
//! A look is a start, too, whose writes stay in RAM: a log that lies on an array can only be read once the array has started. So a look and
//! a start call each other here, each time for what lies lower in the stack. `absent` and `judge` judge what was seen, and open nothing.

use std::path::Path;
use std::time::{Duration, Instant};

use dcd_engine::log_cache::LogError;
use dcd_engine::log_cache::format::Superblock;
use dcd_engine::log_cache::offline::{live_superblock, read_copies, read_superblock};
use dcd_engine::mirror::MirrorStatus;
use dcd_engine::{BlockDevice, Target};
use dcd_stack::{LayerSpec, Parts};

use crate::failure::Failure;
use crate::session::absent::{self, Allowed};
use crate::session::below::{array_below, home_path, range};
use crate::session::choice::{ArrayChoice, CacheChoice};
use crate::session::devices::{Opener, Purpose};
use crate::session::judge::{Inspection, admit_seen};
use crate::session::members::{Content, Devices, Found, newest};
use crate::session::record::{LegsSeen, LogSeen, Record, uuid_text};
use crate::session::running::{Admitted, RunningCaches};
use crate::session::site::Site;
use crate::session::started::Started;

/// Polling interval for missing devices.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Opens parts of a stack, and all below them. Starts the log caches among these, if they are admitted.
pub fn start(site: &Site, parts: &[&str], purpose: Purpose) -> Result<(Started, Parts), Failure> {
    let mut site = site.clone();
    site.hold(purpose);
    if purpose != Purpose::Create {
        leave_out(&mut site, parts, Allowed::Nothing)?;
    }
    let mut caches = admit_running(&site, parts)?;
    site.asked.doubt_kept.extend(caches.unrecorded().map(str::to_owned));
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
    Ok((Started::start(built.stack, opener.into_pump(), caches, arrays)?, built.parts))
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

/// Takes missing devices of arrays and mirrored logs out of a stack file, if these can start without them and `parts` need them. Returns a
/// line for the administrator about each.
pub fn leave_out(site: &mut Site, parts: &[&str], allowed: Allowed) -> Result<Vec<String>, Failure> {
    let mut told = Vec::new();
    let needed = site.needed_by(parts);
    let arrays = site.arrays().map(|(layer, _)| layer.name.clone()).filter(|name| needed.contains(name));
    for array in arrays.collect::<Vec<String>>() {
        let choice = ArrayChoice::of(site.clone(), array.clone());
        let mut absent = choice.names();
        absent.retain(|name| !site.is_there(name));
        if absent.is_empty() {
            continue;
        }
        let Some(devices) = Failure::unless_busy(Devices::open(&choice, Purpose::Look))? else {
            // No superblock can be read: the start of the array says what is wrong. Only spares can be left out.
            absent.retain(|name| choice.role_of(name).is_none());
            site.file.leave_out(&array, &absent);
            continue;
        };
        let (names, lines) = absent::without(&choice, &absent, &devices, allowed)?;
        told.extend(lines);
        site.file.leave_out(&array, &names);
        site.file.keep_only(parts);
    }
    site.asked.degraded_legs |= allowed == Allowed::MembersAndLegs;
    told.extend(leave_out_legs(site, parts));
    Ok(told)
}

/// Leaves out missing legs of mirrored logs. The labels of the other legs say whether a log may start, and its start reads them.
fn leave_out_legs(site: &mut Site, parts: &[&str]) -> Vec<String> {
    let mut told = Vec::new();
    let needed = site.needed_by(parts);
    let mirrors = site.mirrors().map(|(layer, _)| layer.clone()).filter(|layer| needed.contains(&layer.name));
    for mirror in mirrors.collect::<Vec<LayerSpec>>() {
        let mut absent = mirror.kind.below_names();
        absent.retain(|leg| !site.is_there(leg));
        for leg in &absent {
            let path = site.path_below(leg).map(|path| format!(" ({})", path.display())).unwrap_or_default();
            told.push(format!("log \"{}\": leg \"{leg}\"{path} is missing, and is left out", mirror.name));
        }
        if !absent.is_empty() {
            site.file.leave_out_legs(&mirror.name, &absent);
            site.file.keep_only(parts);
        }
    }
    told
}

/// Waits for all devices of the stack, except those that are known to have failed, and then does what [`leave_out`] does. Members that are
/// still missing after `wait` may be left out.
pub fn leave_out_after(site: &mut Site, wait: Duration) -> Result<Vec<String>, Failure> {
    let until = Instant::now() + wait;
    let export = site.export.clone();
    loop {
        let mut left = site.clone();
        left.hold(Purpose::Change);
        let lacks_leg = lacks_leg(&left)?;
        match leave_out(&mut left, &[&export], Allowed::Nothing) {
            Ok(told)
                if !lacks_leg
                    && !left.devices.iter().any(|device| !device.is_there() && !device.is_made()) =>
            {
                left.release();
                *site = left;
                return Ok(told);
            }
            Err(failure @ Failure::Busy(_)) => return Err(failure),
            Ok(_) | Err(_) if Instant::now() >= until => {
                drop(left);
                return leave_out(site, &[&export], Allowed::Members);
            }
            Ok(_) | Err(_) => std::thread::sleep(LOOK_INTERVAL),
        }
    }
}

/// Admits the caches among some parts of a stack and below them, the lower ones first: they may be started. Their devices must not be open.
pub fn admit_running(site: &Site, parts: &[&str]) -> Result<RunningCaches, Failure> {
    let needed = site.needed_by(parts);
    let caches = site.log_caches().filter(|layer| needed.contains(&layer.name));
    let admitted = caches.map(|layer| admit_one(&CacheChoice::of(site.clone(), Some(&layer.name))?));
    Ok(RunningCaches::of(admitted.collect::<Result<Vec<Admitted>, Failure>>()?))
}

/// Admits a log cache: it may be started. Its devices must not be open.
pub fn admit_one(choice: &CacheChoice) -> Result<Admitted, Failure> {
    if choice.stands_on_a_cache() {
        // Only the cache below can say what it holds, and only while it is served.
        let layer = choice.layer.clone();
        return Ok(Admitted { layer, mirror: None, record: None, unrecorded: None, cache: None });
    }
    admit_seen(choice, inspect(choice)?)
}

/// Looks at a cache without changing anything, and closes its devices again.
pub fn inspect(choice: &CacheChoice) -> Result<Inspection, Failure> {
    let (mut seen, superblock) = match look_at_log(choice) {
        Ok(looked) => looked,
        // A log, or a leg, that is refused is not missing.
        Err(failure @ (Failure::Busy(_) | Failure::Refused(_))) => return Err(failure),
        // The log itself may be good where the array below it, or its legs, cannot start.
        Err(failure) if array_below(&choice.site, &choice.log).is_some() || choice.is_mirrored() => {
            return Err(failure);
        }
        Err(failure) => {
            let seen = LogSeen::Missing(failure.to_string());
            return Ok(Inspection { record: open_record(choice)?, seen, superblock: None });
        }
    };
    let record = open_record(choice)?;
    if let LogSeen::Missing(why) = &mut seen {
        let (offline, parts) = start(&choice.site, &[&choice.data], Purpose::Look)?;
        if read_superblock(&mut offline.part(target(&parts, &choice.data))).is_ok() {
            *why = "the data device holds a dcd log, and the log device none: they are swapped".to_owned();
        }
    }
    Ok(Inspection { record, seen, superblock })
}

fn look_at_log(choice: &CacheChoice) -> Result<(LogSeen, Option<Superblock>), Failure> {
    let (offline, parts) = start(&for_looks(&choice.site, Purpose::Look), &[&choice.log], Purpose::Look)?;
    let mirror = choice.site.mirror_below(&choice.log);
    let legs = mirror.map(|mirror| legs_in(&offline, &parts, &mirror.name));
    look_at(&mut offline.part(target(&parts, &choice.log)), legs.as_ref())
}

/// Looks for a log on a device. `legs`: of a mirrored log.
pub fn look_at(
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
pub fn open_record(choice: &CacheChoice) -> Result<Option<Record>, Failure> {
    let found = match array_record(&choice.site, &choice.data)? {
        Some(record) => Some(record),
        None => {
            let (_offline, parts) = start(&choice.site, &[&choice.data], Purpose::Look)?;
            record(&choice.site, &parts, &choice.data)?
        }
    };
    Ok(found.map(Record::attached_part).transpose()?)
}

/// Opens the record of the device that a part lies on; none for RAM, and for a part that is not one range of one device.
pub fn record(site: &Site, parts: &Parts, part: &str) -> Result<Option<Record>, Failure> {
    let place = site.path_below(part).zip(parts.place(part));
    Ok(place.map(|(path, (_, extent))| Record::open(path, extent)).transpose()?)
}

/// Opens the record of the array that a part lies on; none without an array, or if the array was not made yet or cannot be read. Caches
/// below the array are started to read it, if they are admitted: only they know their data. The array's devices must not be open.
pub fn array_record(site: &Site, part: &str) -> Result<Option<Record>, Failure> {
    let Some(array) = array_below(site, part) else { return Ok(None) };
    admit_running(site, &[array])?;
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
            Ok(Some(Record::of_array(&uuid_text(newest.uuid), &members, extent, newest.caches.clone())?))
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
                    let content = Content::Unreadable(error.to_string());
                    found.push(Found { name: name.to_owned(), device: None, content });
                }
            }
        }
        let mut opened = Parts::default();
        if !there.is_empty() {
            let (offline, parts) = start(&site, &there, purpose)?;
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
            let why = why.collect::<Vec<_>>().join("; ");
            Failure::Failed(format!("none of its devices is a member of an array; {why}"))
        })?;
        Ok(Devices { newest, found, parts: opened })
    }
}
