//! Protects data from being overwritten by mistake.

use dcd_engine::log_cache::offline::{is_out_of_use, read_superblock};
use dcd_engine::mirror::{CONTENT_SECTOR, Label, content_sectors, was_removed};
use dcd_engine::{BlockDevice, Extent, Geometry, Io, IoError, IoResult, Lba, SECTOR_BYTES};
use dcd_stack::{HumanBytes, Parts};

use crate::failure::Failure;
use crate::session::probe::{foreign, holds_foreign, probe};
use crate::session::record::{admit_overwrite, uuid_text};
use crate::session::site::Site;
use crate::session::started::StartedPart;
use crate::session::survey::record;

/// Refuses, without `force`, to overwrite the content of a device, and the data disk of a cache. Says so of an old log that is overwritten.
pub fn may_overwrite(
    site: &Site,
    parts: &Parts,
    name: &str,
    device: &mut StartedPart,
    force: bool,
) -> Result<(), Failure> {
    admit(site, parts, name, device, force).map(tell)
}

/// As [`may_overwrite`], but returns the description of an old log.
pub fn admit(
    site: &Site,
    parts: &Parts,
    name: &str,
    device: &mut StartedPart,
    force: bool,
) -> Result<Option<String>, Failure> {
    if let Some(record) = record(site, parts, name)? {
        admit_overwrite(&record.load_with_others()?, record.extent(), &format!("\"{name}\""), force)?;
    }
    refuse_content(&format!("\"{name}\""), device, force)
}

/// Says what is overwritten although nobody has asked for it with --force.
pub fn tell(retired: impl IntoIterator<Item = String>) {
    for what in retired {
        eprintln!("dcd: {what}: nothing needs it any more, and it is overwritten");
    }
}

/// Refuses, without `force`, to overwrite a device that is not blank. A log that is out of use is no reason: its description is returned.
pub fn refuse_content(
    name: &str,
    device: &mut dyn BlockDevice,
    force: bool,
) -> Result<Option<String>, Failure> {
    if force {
        return Ok(None);
    }
    let failed = |error| Failure::Failed(format!("reading {name}: {error}"));
    let Some(what) = probe(device).map_err(failed)? else { return Ok(None) };
    match retired(device).map_err(failed)? {
        Some(was) => Ok(Some(format!("{name} was {was}"))),
        None => Err(refusal(name, device, &what)),
    }
}

/// Describes a log, or a leg of one, that nothing needs any more; none if something else was made over it since, or if it may have the only
/// copy of data.
fn retired(device: &mut dyn BlockDevice) -> Result<Option<&'static str>, IoError> {
    let was = if was_removed(device)? {
        Some("a leg that was removed from a mirrored log")
    } else if let Ok((label, _)) = Label::read(device) {
        match label.is_unused() {
            true => Some("a leg of a log that was never used, as its format was cut off"),
            false => is_out_of_use(&mut DeviceRange::on_leg(device))
                .then_some("a leg of a log whose cache was detached"),
        }
    } else {
        is_out_of_use(device).then_some("the log of a cache that was detached")
    };
    Ok(if was.is_some() && holds_foreign(device)? { None } else { was })
}

/// Describes the log of a cache that may be in use, or a leg of one, on a device that is to be a disk; none if there is none.
pub fn log_in_use(device: &mut dyn BlockDevice) -> Option<String> {
    // A file system that was made over a leg may leave one of its labels.
    let label = Label::read(device).ok().filter(|_| !holds_foreign(device).unwrap_or(false));
    let Some((label, _)) = label else { return named(device, "the log") };
    if label.is_unused() {
        return None;
    }
    // It may be being filled.
    let part = "a leg of the log";
    match read_superblock(&mut DeviceRange::on_leg(device)) {
        Err(_) => Some(format!("{part} of a cache")),
        Ok(_) => named(&mut DeviceRange::on_leg(device), part),
    }
}

/// Describes a log that is not detached.
fn named(log: &mut dyn BlockDevice, part: &str) -> Option<String> {
    let found = read_superblock(log).ok()?;
    if is_out_of_use(log) {
        return None;
    }
    Some(format!("{part} of the cache {}", uuid_text(found.cache_uuid)))
}

/// A range of a device, as a device.
pub struct DeviceRange<'a> {
    pub device: &'a mut dyn BlockDevice,
    pub extent: Extent,
}

impl DeviceRange<'_> {
    /// The content of a leg.
    pub fn on_leg(device: &mut dyn BlockDevice) -> DeviceRange<'_> {
        let sectors = content_sectors(device.geometry().sectors);
        DeviceRange { device, extent: Extent::new(Lba(CONTENT_SECTOR), sectors) }
    }
}

impl BlockDevice for DeviceRange<'_> {
    fn geometry(&self) -> Geometry {
        Geometry { sectors: self.extent.sectors, ..self.device.geometry() }
    }

    fn run(&mut self, mut io: Io) -> IoResult {
        if let Some(at) = io.start_mut() {
            at.0 += self.extent.start.0;
        }
        self.device.run(io)
    }
}

/// Refuses, without `force`, to overwrite an old log of dcd that something else was made over since.
pub fn refuse_foreign(name: &str, device: &mut dyn BlockDevice, force: bool) -> Result<(), Failure> {
    if force {
        return Ok(());
    }
    let found = foreign(device).map_err(|e| Failure::Failed(format!("reading {name}: {e}")))?;
    found.map_or(Ok(()), |what| Err(refusal(name, device, what)))
}

fn refusal(name: &str, device: &dyn BlockDevice, what: &str) -> Failure {
    let size = HumanBytes(device.geometry().sectors * SECTOR_BYTES);
    Failure::refused(
        format!("{name} has {what} on it"),
        format!(
            "check that it is the right device, and choose another if its content is needed. If not, empty it (a device: blkdiscard -zf; a file: \
             remove it), or add --force: its {size} would be overwritten"
        ),
    )
}
