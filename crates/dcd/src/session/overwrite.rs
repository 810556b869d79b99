//! Protects data from being overwritten by mistake.

use dcd_engine::{BlockDevice, SECTOR_BYTES};
use dcd_stack::{HumanBytes, Parts};

use crate::failure::Failure;
use crate::session::probe::{foreign, probe};
use crate::session::record::admit_overwrite;
use crate::session::site::Site;
use crate::session::started::StartedPart;
use crate::session::survey::record;

/// Refuses, without `force`, to overwrite the content of a device, and the data disk of a cache.
pub fn may_overwrite(
    site: &Site,
    parts: &Parts,
    name: &str,
    device: &mut StartedPart,
    force: bool,
) -> Result<(), Failure> {
    if let Some(record) = record(site, parts, name)? {
        admit_overwrite(&record.load()?, record.extent(), &format!("\"{name}\""), force)?;
    }
    refuse_content(&format!("\"{name}\""), device, force)
}

/// Refuses, without `force`, to overwrite a device that is not blank.
pub fn refuse_content(name: &str, device: &mut dyn BlockDevice, force: bool) -> Result<(), Failure> {
    if force {
        return Ok(());
    }
    let found = probe(device).map_err(|e| Failure::Failed(format!("reading {name}: {e}")))?;
    found.map_or(Ok(()), |what| Err(refusal(name, device, &what)))
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
