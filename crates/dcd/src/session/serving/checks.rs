//! Checks a stack before it is served: every log belongs to its data disk, or is left out on purpose.

use dcd_engine::log_cache::LogError;
use dcd_engine::log_cache::format::{State, Superblock};
use dcd_engine::log_cache::offline::read_superblock;
use dcd_stack::{DeviceSource, LayerKind, Parts};

use crate::failure::Failure;
use crate::session::below::{array_below, is_read_only, stands_on_a_cache};
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::record::{Record, Refusal, admit_plain, admit_without_record, uuid_text};
use crate::session::running::Admitted;
use crate::session::site::Site;
use crate::session::start::{admit_one, array_record, start, target};
use crate::session::tell::tell_members;

/// The log caches of a stack, the upper ones first.
pub fn choices(site: &Site) -> Result<Vec<CacheChoice>, Failure> {
    let names: Vec<String> = site.log_caches().map(|layer| layer.name.clone()).collect();
    names.iter().rev().map(|name| CacheChoice::of(site.clone(), Some(name))).collect()
}

/// Admits every log cache of a stack, the upper ones first.
pub fn admit(site: &Site) -> Result<Vec<Admitted>, Failure> {
    let choices = choices(site)?;
    let by_name = |choice: &CacheChoice| {
        admit_one(choice).map_err(|failure| match failure {
            Failure::Refused(refusal) if choices.len() > 1 => {
                let reason = format!("log cache \"{}\": {}", choice.layer, refusal.reason);
                Failure::Refused(Refusal { reason, ..refusal })
            }
            other => other,
        })
    };
    let admitted = choices.iter().map(by_name).collect::<Result<Vec<Admitted>, Failure>>()?;
    for (choice, Admitted { record, unrecorded, .. }) in choices.iter().zip(&admitted) {
        if let (Some(record), None) = (record, unrecorded) {
            // A format that was killed may not have stored that yet.
            tell_members(site, &choice.data, record, &[])?;
        }
    }
    Ok(admitted)
}

/// Way out if a log is lost, and its record, too.
const NO_LOG_LEFT: &str =
    "If the log is gone, name it in the stack file all the same, and serve with --without-cache --force";

/// Refuses to serve a disk without the cache that is attached to it: the log has the disk's newest data.
pub fn admit_bare(site: &Site, parts: &Parts, part: &str) -> Result<(), Failure> {
    let layer = site.layer(part);
    if layer.is_some_and(|layer| matches!(layer.kind, LayerKind::LogCache { .. })) {
        return Ok(());
    }
    let (Some(path), Some((_, extent))) = (site.path_below(part), parts.place(part)) else {
        let below = layer.map_or(Vec::new(), |layer| layer.kind.below_names());
        return below.into_iter().try_for_each(|below| admit_bare(site, parts, below));
    };
    let record = Record::open(path, extent)?;
    admit_without_record(record.lost()?, record.teller(), false, NO_LOG_LEFT)?;
    Ok(admit_plain(&record.load()?, extent)?)
}

/// Refuses an array as [`admit_bare`] does, before the array is opened.
pub fn admit_bare_array(site: &Site, part: &str) -> Result<(), Failure> {
    let Some(layer) = site.layer(part).filter(|layer| !matches!(layer.kind, LayerKind::LogCache { .. }))
    else {
        return Ok(());
    };
    if let Some(record) = array_record(site, part)? {
        admit_without_record(record.lost()?, record.teller(), false, NO_LOG_LEFT)?;
        return Ok(admit_plain(&record.load()?, record.extent())?);
    }
    layer.kind.below_names().into_iter().try_for_each(|below| admit_bare_array(site, below))
}

/// Refuses a stack whose layers keep flushed data only in RAM (`non-volatile`), unless the user `consents`.
pub fn admit_non_volatile(site: &Site, consents: bool) -> Result<(), Failure> {
    let layers = site.non_volatile_layers();
    let Some(first) = layers.first() else { return Ok(()) };
    let names = layers.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    if consents {
        eprintln!(
            "dcd: {names}: flushes are answered from RAM; data that is not destaged is lost when this process ends"
        );
        return Ok(());
    }
    Err(Failure::refused(
        format!(
            "layer {names} declares its RAM non-volatile, and would answer flushes from it: what was flushed would be lost \
             when this process is killed or the power fails"
        ),
        format!(
            "remove \"non-volatile = true\" from [layer.{first}]: a flush then destages, and nothing is lost. Or, where losing \
             flushed writes is acceptable, add --i-have-nvram"
        ),
    ))
}

/// Refuses to serve a log as if it were a disk: clients would overwrite its records. A device that is opened for reading only
/// may be a log.
pub fn admit_no_log(site: &Site, part: &str) -> Result<(), Failure> {
    let layer = site.layer(part);
    if layer.is_some_and(|layer| matches!(layer.kind, LayerKind::LogCache { .. })) {
        return Ok(());
    }
    let seen = match site.bottom_device(part) {
        Some(device) => {
            let is_memory = matches!(device.source, DeviceSource::Memory { .. });
            if device.read_only || is_memory || !device.is_there() {
                return Ok(());
            }
            look_for_log(site, part).map(Some)?
        }
        None => look_for_log_on_array(site, part)?,
    };
    match seen {
        Some(Ok(superblock)) if superblock.state != State::Detached => Err(Failure::refused(
            format!("\"{part}\" is the log of the cache {}, not a disk", uuid_text(superblock.cache_uuid)),
            "serve the stack of that cache; if that is not used any more, \"dcd detach\" it. A device with read-only = true is \
             served even so",
        )),
        Some(_) => Ok(()),
        None => {
            let below = layer.map_or(Vec::new(), |layer| layer.kind.below_names());
            below.into_iter().try_for_each(|below| admit_no_log(site, below))
        }
    }
}

fn look_for_log(site: &Site, part: &str) -> Result<Result<Superblock, LogError>, Failure> {
    let (offline, parts) = start(site, &[part], Purpose::Look)?;
    Ok(read_superblock(&mut offline.part(target(&parts, part))))
}

/// Looks for a log on a part of an array; none for other parts, and for an array that does not start: then it is not served either.
/// An array on a cache is not started here: the cache is not admitted yet.
fn look_for_log_on_array(site: &Site, part: &str) -> Result<Option<Result<Superblock, LogError>>, Failure> {
    let on_devices = |array: &&str| !stands_on_a_cache(site, array);
    let Some(array) = array_below(site, part).filter(on_devices) else { return Ok(None) };
    if is_read_only(site, array) {
        return Ok(None);
    }
    Failure::unless_busy(look_for_log(site, part))
}
