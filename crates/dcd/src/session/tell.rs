//! Stores on the members of an array which caches are on it: a record may stay behind when disks are moved.

use dcd_engine::raid::offline::store_caches;
use dcd_engine::raid::{CACHES_MAX, clear_journal, may_be_journal_of};

use crate::failure::Failure;
use crate::session::below::{array_below, is_read_only};
use crate::session::choice::{ArrayChoice, CacheChoice};
use crate::session::devices::Purpose;
use crate::session::members::Devices;
use crate::session::record::DiskRecord;
use crate::session::site::Site;
use crate::session::survey::{start, target};

/// Stores on the members of the array below a part the caches that the part's record has, and removes those that are `gone`. The devices of
/// the array must not be open.
pub fn tell_members(site: &Site, part: &str, record: &DiskRecord, gone: &[u64]) -> Result<(), Failure> {
    let Some(array) = array_below(site, part) else { return Ok(()) };
    let told = record.told().unwrap_or(&[]);
    let mut caches = record.load()?.to_tell();
    // Caches that the record lacks are kept: they may have been lost with an older record.
    for cache in told {
        if caches.len() < CACHES_MAX && !gone.contains(cache) && !caches.contains(cache) {
            caches.push(*cache);
        }
    }
    caches.sort_unstable();
    if caches == told || is_read_only(site, array) {
        return Ok(());
    }
    let mut devices = Devices::open(&ArrayChoice::of(site.clone(), array.to_owned()), Purpose::Change)?;
    store_caches(&mut devices.members(), caches)?;
    Ok(())
}

/// Returns the array below a cache, if it has its own journal on the device of the log.
pub fn array_with_journal_beside(choice: &CacheChoice) -> Option<&str> {
    let array = array_below(&choice.site, &choice.data)?;
    ArrayChoice::of(choice.site.clone(), array.to_owned()).journal_beside(&choice.log).map(|_| array)
}

/// Overwrites foreign data at the beginning of the log's device, if the array below the cache has its own journal there. The log, which is
/// about to be made on the same device, overwrites what it finds, too.
pub fn clear_foreign_journal(choice: &CacheChoice) -> Result<(), Failure> {
    let site = &choice.site;
    let Some(array) = array_below(site, &choice.data) else { return Ok(()) };
    let array = ArrayChoice::of(site.clone(), array.to_owned());
    let Some(journal) = array.journal_beside(&choice.log) else { return Ok(()) };
    let newest = Devices::open(&array, Purpose::Look)?.newest;
    let (offline, parts) = start(site, &[journal], Purpose::Create)?;
    let mut device = offline.part(target(&parts, journal));
    let failed = |why: String| Failure::Failed(format!("the journal of the array: {why}"));
    if !may_be_journal_of(&mut device, &newest).map_err(|error| failed(error.to_string()))? {
        clear_journal(&mut device, &newest).map_err(|error| failed(error.to_string()))?;
        eprintln!(
            "dcd: the beginning of the log's device, where the array has its journal, held other data and was overwritten"
        );
    }
    Ok(())
}
