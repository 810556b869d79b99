//! Checks a stack before it is served: every log belongs to its data disk, or is left out on purpose.

use dcd_engine::log_cache::format::LogState;
use dcd_stack::{LayerKind, Parts};

use crate::failure::Failure;
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::judge::{PlainSeen, SeenStack, judge};
use crate::session::machine;
use crate::session::running::Admitted;
use crate::session::site::Site;
use crate::session::survey::{Survey, record};
use crate::session::tell::tell_members;

/// The log caches of a stack, the upper ones first.
pub fn choices(site: &Site) -> Result<Vec<CacheChoice>, Failure> {
    let names: Vec<String> = site.log_caches().map(|layer| layer.name.clone()).collect();
    names.iter().rev().map(|name| CacheChoice::of(site.clone(), Some(name))).collect()
}

/// Looks at a stack that is to be served, and returns its log caches, the upper ones first, if it may be. They are started by what was seen.
pub fn admit(site: &mut Site) -> Result<Vec<Admitted>, Failure> {
    let export = site.export.clone();
    let mut survey = Survey::default();
    survey.look_at_plain(site, &export)?;
    survey.look_at(site, &[&export], Purpose::Change)?;
    let plan = judge(site, &survey.seen, &site.asked)?;
    plan.told.iter().for_each(|line| eprintln!("dcd: {line}"));
    if let (Some(warning), false) = (machine::without_id(), survey.seen.caches.is_empty()) {
        eprintln!("dcd: {warning}");
    }
    for (layer, of_disks) in &survey.seen.caches {
        let log = of_disks.first().and_then(|cache| cache.superblock.as_ref());
        if log.is_some_and(|log| log.state == LogState::Active) {
            eprintln!(
                "dcd: log cache \"{layer}\": its last server did not stop cleanly (a kill, or a power cut): its log is recovered"
            );
        }
    }
    plan.prepare(site, &[&export]);
    let mut admitted = survey.admitted(site, &plan);
    admitted.reverse();
    for Admitted { layer, disk, record, unrecorded, .. } in &admitted {
        if let (Some(record), None) = (record, unrecorded) {
            // A format that was killed may not have stored that yet.
            let choice = CacheChoice::of(site.clone(), Some(layer))?;
            tell_members(site, &choice.disks()[*disk], record, &[])?;
        }
    }
    Ok(admitted)
}

/// Refuses to serve a part, or a device of an array below it, without the cache that is attached to it, or a log as if it were a disk.
pub fn admit_plain_parts(site: &Site) -> Result<(), Failure> {
    let mut survey = Survey::default();
    survey.look_at_plain(site, &site.export)?;
    survey.look_at_bare_devices(site, &[&site.export])?;
    judge(site, &survey.seen, &site.asked)?;
    Ok(())
}

/// Refuses a disk with an attached cache once it is open: a file that was just made may have a record from before.
pub fn admit_bare(site: &Site, parts: &Parts, part: &str) -> Result<(), Failure> {
    let layer = site.layer(part);
    if layer.is_some_and(|layer| matches!(layer.kind, LayerKind::LogCache { .. })) {
        return Ok(());
    }
    let Some(record) = record(site, parts, part)? else {
        let below = layer.map_or(Vec::new(), |layer| layer.kind.below_names());
        return below.into_iter().try_for_each(|below| admit_bare(site, parts, below));
    };
    let plain = PlainSeen { part: part.to_owned(), record: Some(record.seen(None)?), log_of: None };
    judge(site, &SeenStack { plain: vec![plain], ..SeenStack::default() }, &site.asked)?;
    Ok(())
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
