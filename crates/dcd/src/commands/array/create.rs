//! `dcd array create`: makes the array of a stack file.

use dcd_engine::raid::offline::{ChangeError, create, make_spare};
use dcd_engine::raid::{ArrayCreateError, ArraySuperblock, clear_journal};
use dcd_engine::{BlockDevice, SECTOR_BYTES};
use dcd_stack::{HumanBytes, Parts};

use crate::advice::Advised;
use crate::cli_array::ArrayCreate;
use crate::commands::format::Made;
use crate::commands::log::{FormattedLegs, look_at_legs, make_legs};
use crate::failure::Failure;
use crate::session::choice::{ArrayChoice, CacheChoice};
use crate::session::devices::Purpose;
use crate::session::open::reserve_space;
use crate::session::overwrite::{self, may_overwrite};
use crate::session::random::{random_id, random_uuid};
use crate::session::record::uuid_text;
use crate::session::started::StartedPart;
use crate::session::survey::{start, target};

pub fn run(args: &ArrayCreate) -> Result<(), Failure> {
    let choice = ArrayChoice::load(&args.array)?;
    if choice.config.present.contains(&false) {
        return Err(Failure::Failed(format!(
            "layer \"{}\": all of its members must be present when it is created",
            choice.layer
        )));
    }
    let names = choice.names();
    let with_journal: Vec<&str> = names.iter().copied().chain(choice.journal.as_deref()).collect();
    let mut made_files = Made::default();
    with_journal.iter().for_each(|name| made_files.file_that_is_missing(choice.site.path_below(name)));
    let legs = legs_below_journal(&choice, args.force)?;
    if let Some((cache, retired)) = legs {
        // The members are looked at first: nothing is written if one of them is refused.
        let (offline, parts) = start(&choice.site, &names, Purpose::Create)?;
        let mut devices: Vec<StartedPart> =
            names.iter().map(|name| offline.part(target(&parts, name))).collect();
        refuse_members(&choice, &parts, &names, &mut devices, args.force)?;
        drop((devices, offline));
        overwrite::tell(retired);
        make_legs(&cache)?;
    }
    let (offline, parts) = start(&choice.site, &with_journal, Purpose::Create)?;
    let mut devices: Vec<StartedPart> =
        with_journal.iter().map(|name| offline.part(target(&parts, name))).collect();
    refuse_members(&choice, &parts, &with_journal, &mut devices, args.force)?;
    if let Some(journal) = &choice.journal {
        reserve_space(&choice.site, &parts, journal)?;
    }
    let mut journal = devices.split_off(names.len());
    let mut spares = devices.split_off(choice.members.len());
    let mut members: Vec<Option<&mut dyn BlockDevice>> =
        devices.iter_mut().map(|member| Some(member as &mut dyn BlockDevice)).collect();
    let made = create(&mut members, &choice.config, random_uuid()?, false).map_err(|error| match error {
        ArrayCreateError::Io { .. } => Failure::Failed(error.told()),
        _ => Failure::Refused(error.refusal()),
    })?;
    made_files.keep();
    for journal in &mut journal {
        clear_journal(journal, &made)
            .map_err(|error| Failure::Failed(format!("the array was created, but {error}")))?;
    }
    for (name, spare) in choice.spares.iter().zip(&mut spares) {
        make_spare(spare, &made, random_id()?).map_err(|error: ChangeError| {
            Failure::Failed(format!(
                "the array was created, but \"{name}\" did not become a spare: {}",
                error.told()
            ))
        })?;
    }
    let data = (made.members - made.level.parity()) as u64 * made.member_sectors * SECTOR_BYTES;
    let spares = match choice.spares.len() {
        0 => String::new(),
        1 => " and a spare".to_owned(),
        several => format!(" and {several} spares"),
    };
    println!(
        "array {}: {} over {} members{spares}; its parity is computed when it is first served",
        uuid_text(made.uuid),
        HumanBytes(data),
        made.members
    );
    Ok(())
}

/// The cache on whose mirrored log the journal is to lie, if the legs of that log are to be made, too, and descriptions of old logs on them.
fn legs_below_journal(
    choice: &ArrayChoice,
    force: bool,
) -> Result<Option<(CacheChoice, Vec<String>)>, Failure> {
    for layer in choice.site.log_caches() {
        let cache = CacheChoice::of(choice.site.clone(), Some(&layer.name))?;
        if choice.journal_beside(&cache.log).is_none() {
            continue;
        }
        if let FormattedLegs::New { retired } = look_at_legs(&cache, force)? {
            return Ok(Some((cache, retired)));
        }
    }
    Ok(None)
}

/// Refuses devices that may not be overwritten.
fn refuse_members(
    choice: &ArrayChoice,
    parts: &Parts,
    names: &[&str],
    devices: &mut [StartedPart],
    force: bool,
) -> Result<(), Failure> {
    if !force {
        refuse_over_array(&choice.names(), devices)?;
    }
    for (name, device) in names.iter().zip(devices) {
        may_overwrite(&choice.site, parts, name, device, force)?;
    }
    Ok(())
}

/// Refuses to create an array over an existing one: that does not repair the existing one.
fn refuse_over_array(names: &[&str], devices: &mut [StartedPart]) -> Result<(), Failure> {
    let found = names.iter().zip(devices).filter_map(|(name, device)| {
        let (superblock, _) = ArraySuperblock::read(device).ok()?;
        Some((format!("\"{name}\""), uuid_text(superblock.uuid)))
    });
    let (members, uuids): (Vec<String>, Vec<String>) = found.unzip();
    let Some(uuid) = uuids.first() else { return Ok(()) };
    let are = if members.len() == 1 { "is a member" } else { "are members" };
    Err(Failure::refused(
        format!("{} {are} of a dcd array already; the first belongs to array {uuid}", members.join(", ")),
        "if that array does not start, \"dcd array status\" says why. A new array, with --force, loses all data of the old one",
    ))
}
