//! `dcd array grow`: adds a member, or takes the space of larger members.

use std::ops::ControlFlow;

use dcd_engine::raid::ArraySuperblock;
use dcd_engine::raid::grow::{GrowError, add_member, take_space};
use dcd_engine::{BlockDevice, SECTOR_BYTES};
use dcd_io::Signals;
use dcd_stack::{HumanBytes, LayerKind, Parts, StackFile};

use crate::advice::Advised;
use crate::cli_array::ArrayGrow;
use crate::control::not_served;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::session::choice::ArrayChoice;
use crate::session::devices::Purpose;
use crate::session::members::Devices;
use crate::session::overwrite::may_overwrite;
use crate::session::random::random_id;
use crate::session::record::{AttachmentState, admit_without_record};
use crate::session::started::StartedPart;
use crate::session::survey::{array_record, start, target};

const FIRST_DETACH: &str = "\"dcd detach\" the cache with the stack file that has no new member yet, leave it out of the stack file while \
                            the array grows, and \"dcd format\" it again afterwards";
/// Data that moves between two records of the progress.
const BAND_BYTES: u64 = 16 << 20;

pub fn run(args: &ArrayGrow) -> Result<(), Failure> {
    let choice = ArrayChoice::load(&args.array)?;
    not_served(&choice.site, "let the array grow")?;
    if let Some(cache) = cache_on(&choice.site, &choice.layer) {
        return Err(Failure::refused(
            format!("log cache \"{cache}\" is built on it, and has recorded the size of its data disk"),
            FIRST_DETACH,
        ));
    }
    refuse_below_a_cache(&choice)?;
    let signals = Signals::of_command().map_err(|error| Failure::io("signals", error))?;
    let names: Vec<&str> =
        choice.members.iter().flatten().chain(&choice.journal).map(String::as_str).collect();
    let (offline, parts) = start(&choice.site, &names, Purpose::Change)?;
    let open = |name: &String| offline.part(target(&parts, name));
    let mut devices: Vec<Option<StartedPart>> =
        choice.members.iter().map(|name| name.as_ref().map(open)).collect();
    let mut journal = choice.journal.as_ref().map(open);
    let adds = adds_member(&choice, &parts, &mut devices, args.force)?;
    let mut members: Vec<Option<&mut dyn BlockDevice>> = devices
        .iter_mut()
        .map(|device| device.as_mut().map(|device| device as &mut dyn BlockDevice))
        .collect();
    let mut progress = Progress::new(args.quiet);
    let mut step = |done: u64, total: u64| {
        progress.left((total - done) * SECTOR_BYTES);
        if signals.take().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let grown = if adds {
        let journal = journal.as_mut().map(|journal| journal as &mut dyn BlockDevice);
        add_member(&mut members, journal, random_id()?, BAND_BYTES, &mut step).map(Some)
    } else {
        take_space(&mut members, &mut step)
    };
    progress.end();
    match grown.map_err(refused)? {
        Some(grown) => {
            let data = (grown.members - grown.level.parity()) as u64 * grown.member_sectors * SECTOR_BYTES;
            println!("the array now has {} over {} members", HumanBytes(data), grown.members);
        }
        None => println!("nothing to gain: the array has all the space that its smallest member allows"),
    }
    Ok(())
}

/// True when the device that is named last is to be a new member, or is being made one. Refuses a device that may not be overwritten.
fn adds_member(
    choice: &ArrayChoice,
    parts: &Parts,
    devices: &mut [Option<StartedPart>],
    force: bool,
) -> Result<bool, Failure> {
    let known = devices.iter_mut().flatten().filter_map(|device| ArraySuperblock::read(device).ok());
    let known: Vec<ArraySuperblock> = known.map(|(superblock, _)| superblock).collect();
    let Some(newest) = ArraySuperblock::newest_of(&known) else { return Ok(false) };
    if newest.reshape.is_some() || newest.members >= choice.members.len() {
        return Ok(newest.reshape.is_some());
    }
    if let (Some(Some(device)), Some(Some(name))) = (devices.last_mut(), choice.members.last()) {
        let role = ArraySuperblock::read(device).ok().and_then(|(_, identity)| newest.role_of(identity.id));
        if let Some(role) = role {
            return Err(Failure::refused(
                format!("\"{name}\" is member {role} already, and is named last"),
                "name the new device last in \"of\"; nothing was changed",
            ));
        }
        may_overwrite(&choice.site, parts, name, device, force)?;
    }
    Ok(true)
}

/// Refuses if a cache that this stack file does not name is attached to the array. A grow that has begun continues: until it ends, the
/// array cannot be served.
fn refuse_below_a_cache(choice: &ArrayChoice) -> Result<(), Failure> {
    let Some(record) = array_record(&choice.site, &choice.layer)? else { return Ok(()) };
    let seen = record.seen(None)?;
    let attached = seen.all.0.iter().find(|cache| cache.state != AttachmentState::Abandoned);
    let lost = seen.lost();
    if attached.is_none() && lost.is_none() || Devices::open(choice, Purpose::Look)?.newest.reshape.is_some()
    {
        return Ok(());
    }
    admit_without_record(lost, seen.teller, false, FIRST_DETACH)?;
    let Some(cache) = attached else { return Ok(()) };
    Err(Failure::refused(
        format!(
            "the cache {} is attached to it, and has recorded the size of its data disk",
            cache.cache_uuid
        ),
        format!("{FIRST_DETACH}; its log is {}", cache.log.display()),
    ))
}

fn refused(error: GrowError) -> Failure {
    match error {
        GrowError::Refused(why) => Failure::Refused(why.refusal()),
        GrowError::Lost { .. } => Failure::Damage(error.told()),
        other => Failure::Failed(other.told()),
    }
}

/// Finds a log cache that is built on a layer, directly or not.
fn cache_on<'a>(file: &'a StackFile, layer: &str) -> Option<&'a str> {
    file.layers.iter().filter(|upper| upper.kind.below_names().contains(&layer)).find_map(
        |upper| match &upper.kind {
            LayerKind::LogCache { .. } => Some(upper.name.as_str()),
            _ => cache_on(file, &upper.name),
        },
    )
}
