//! `dcd log`: the legs of a mirrored log.

use std::path::PathBuf;
use std::time::Duration;

use dcd_engine::mirror::{Label, LabelError, LegState, LegStatus, MirrorStatus};
use dcd_engine::{BlockDevice, SECTOR_BYTES};
use dcd_serve::control::{ClientError, ControlClient};
use dcd_stack::{HumanBytes, LayerStatus};
use serde_json::json;

use crate::cli_log::{LegsArgs, Log, LogAdd, LogCommand, LogRemove, LogStatus};
use crate::control::{ask, server_of};
use crate::failure::{Failure, Health};
use crate::output::print_json;
use crate::progress::Progress;
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::overwrite::{admit, may_overwrite, refuse_content};
use crate::session::random::{random_id, random_uuid};
use crate::session::serving::status::{
    DeviceStatus, MISSING_LEG, ServerStatus, leg_name, legs_text, mirror_of_server,
};
use crate::session::site::Site;
use crate::session::started::StartedPart;
use crate::session::survey::{legs_of, start, target};

/// Polling interval of a server for the progress of a leg.
const INTERVAL: Duration = Duration::from_millis(100);

pub fn run(args: &Log) -> Result<(), Failure> {
    match &args.command {
        LogCommand::Status(args) => status(args),
        LogCommand::Add(args) => add(args),
        LogCommand::Remove(args) => remove(args),
    }
}

/// A cache whose log is on legs.
struct Mirrored {
    choice: CacheChoice,
    /// The mirror layer of the legs.
    layer: String,
}

impl Mirrored {
    fn load(args: &LegsArgs) -> Result<Mirrored, Failure> {
        let choice = CacheChoice::load(&args.file, args.layer.as_deref())?;
        match choice.site.mirror_below(&choice.log).map(|mirror| mirror.name.clone()) {
            Some(layer) => Ok(Mirrored { choice, layer }),
            None => Err(Failure::Failed(format!(
                "{}: the log of \"{}\" is one device: legs are written as a list, log = [\"{}\", ..], and \"dcd format --replace\" moves the log to them",
                args.file.display(),
                choice.layer,
                choice.log
            ))),
        }
    }

    fn site(&self) -> &Site {
        &self.choice.site
    }

    /// Connects to the server: only a server changes legs.
    fn server(&self, what: &str) -> Result<ControlClient, Failure> {
        server_of(self.site())?.ok_or_else(|| {
            Failure::Failed(format!(
                "{}: it is not served: {what} only while it is (the next start fills a leg that was away)",
                self.site().path.display()
            ))
        })
    }

    fn path(&self, name: &str) -> Result<PathBuf, Failure> {
        let place = self.site().device(name).map(|device| device.source.absolute_place()).transpose();
        let place = place.map_err(|e| Failure::io(name, e))?.flatten();
        place.ok_or_else(|| {
            Failure::Failed(format!(
                "\"{name}\" is not a file, block device or export: a running server cannot build layers"
            ))
        })
    }
}

fn status(args: &LogStatus) -> Result<(), Failure> {
    let mirrored = Mirrored::load(&args.legs)?;
    let (mut mirror, removed): (MirrorStatus, Vec<String>) = match server_of(mirrored.site())? {
        Some(mut client) => {
            let status = ServerStatus::ask(&mut client)?;
            let is_removed = |device: &&DeviceStatus| device.removed.is_some();
            let removed = status.devices.iter().filter(is_removed).map(|device| device.name().to_owned());
            (status.mirror(&mirrored.layer)?.clone(), removed.collect())
        }
        None => (offline_status(&mirrored)?, Vec::new()),
    };
    let is_removed = |leg: &LegStatus| leg.name.as_ref().is_some_and(|name| removed.contains(name));
    // The stack file may name a leg that is missing, or a device that is no leg yet: no server has these open.
    let mut unnamed = mirror.legs.iter().filter(|leg| leg.name.is_none()).count();
    for name in mirrored.choice.legs() {
        if mirror.legs.iter().any(|leg| leg.name.as_deref() == Some(name)) {
            continue;
        }
        if unnamed > 0 {
            unnamed -= 1;
        } else {
            mirror.legs.push(LegStatus { name: Some(name.to_owned()), ..LegStatus::default() });
        }
    }
    if args.json {
        print_json(&mirror)?;
    } else {
        let name = |leg: &LegStatus| leg.name.clone().unwrap_or_else(|| "missing".to_owned());
        println!(
            "log of {}, {}",
            HumanBytes(mirror.size_bytes),
            legs_text(&mirror).split(':').next().unwrap_or("")
        );
        for leg in &mirror.legs {
            let path = leg.name.as_ref().and_then(|name| mirrored.site().path_below(name));
            let path = path.map(|path| format!("  {}", path.display())).unwrap_or_default();
            let removed = if is_removed(leg) {
                ", but its file was deleted or moved: dcd status says what to do"
            } else {
                ""
            };
            println!("{:>12}  {}{removed}{path}", name(leg), word(&mirror, leg));
        }
    }
    let mut health = Health::default();
    if !mirror.is_good() {
        health.degraded(format!("log \"{}\": {}", mirrored.layer, legs_text(&mirror)));
    }
    for leg in mirror.legs.iter().filter(|leg| is_removed(leg)) {
        health.degraded(format!("leg {} works only until the server ends", leg_name(leg)));
    }
    health.verdict()
}

fn word(mirror: &MirrorStatus, leg: &LegStatus) -> String {
    match leg.standing {
        Some(LegState::Whole) => "whole".to_owned(),
        Some(LegState::Filling) => {
            format!("filled to {:.0} %", leg.filled_bytes as f64 * 100.0 / mirror.size_bytes.max(1) as f64)
        }
        Some(LegState::Failed) if leg.missing => "missing, though nothing says that it failed".to_owned(),
        Some(LegState::Failed) => "failed".to_owned(),
        None => "not a leg: \"dcd log add\" makes it one, or take it out of \"log\"".to_owned(),
    }
}

/// Reads the status of the legs from their labels.
fn offline_status(mirrored: &Mirrored) -> Result<MirrorStatus, Failure> {
    let mut mirror = legs_of(mirrored.site(), &mirrored.layer)?;
    // A leg's port is its place among the legs that are present.
    let there: Vec<&str> =
        mirrored.choice.legs().into_iter().filter(|leg| mirrored.site().is_there(leg)).collect();
    for leg in &mut mirror.legs {
        leg.name = leg.port.and_then(|port| there.get(port)).map(|name| (*name).to_owned());
    }
    Ok(mirror)
}

fn add(args: &LogAdd) -> Result<(), Failure> {
    let mirrored = Mirrored::load(&args.legs)?;
    let name = &args.name;
    if !mirrored.choice.legs().contains(&name.as_str()) {
        return Err(Failure::Failed(format!(
            "{}: \"{name}\" is not named in \"log\": name it there first; named are {}",
            mirrored.site().path.display(),
            mirrored.choice.legs().join(", ")
        )));
    }
    let path = mirrored.path(name)?;
    let mut client = mirrored.server("a leg is added")?;
    let before = mirror_of_server(&mut client, &mirrored.layer)?;
    match before.legs.iter().find(|leg| leg.name.as_deref() == Some(name)).and_then(|leg| leg.standing) {
        Some(LegState::Whole | LegState::Filling) => {
            return Err(Failure::refused(format!("\"{name}\" is a leg already"), "nothing was changed"));
        }
        Some(LegState::Failed) | None => {}
    }
    // The server still has the device open if it was present at the start, but was no leg or has failed since. A failed leg stays known as
    // failed, whatever is refused from here on.
    close(&mut client, &mirrored.layer, name)?;
    prepare(&mirrored, name, &before, args.force)?;
    // A leg that failed, and whose place the new one takes, is forgotten once its device is closed.
    let replaced = before.legs.iter().filter(|leg| leg.standing == Some(LegState::Failed));
    let legs = mirrored.choice.legs();
    for old in replaced.filter_map(|leg| leg.name.as_deref()).filter(|old| !legs.contains(old)) {
        close(&mut client, &mirrored.layer, old)?;
    }
    let call = json!({
        "layer": mirrored.layer, "command": "add", "name": name, "path": path, "place": legs.len()
    });
    ask(&mut client, "array", call).map_err(refused)?;
    let mut progress = Progress::new(args.quiet);
    loop {
        let mirror = mirror_of_server(&mut client, &mirrored.layer)?;
        let leg = mirror.legs.iter().find(|leg| leg.name.as_deref() == Some(name));
        match leg.map(|leg| (leg.standing, leg.filled_bytes)) {
            Some((Some(LegState::Whole), _)) => {
                progress.end();
                println!("\"{name}\" is a leg now, and has all data");
                return Ok(());
            }
            Some((Some(LegState::Filling), filled)) => {
                progress.left(mirror.size_bytes.saturating_sub(filled).max(1));
            }
            _ => {
                progress.end();
                return Err(Failure::Failed(format!(
                    "\"{name}\" failed while it was filled: look at the device (dmesg), or name another one"
                )));
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Refuses a device that is too small, or whose content may not be overwritten.
fn prepare(mirrored: &Mirrored, name: &str, mirror: &MirrorStatus, force: bool) -> Result<(), Failure> {
    let (offline, parts) = start(mirrored.site(), &[name], Purpose::Look).map_err(|failure| match failure {
        // The server has let go of it.
        Failure::Busy(_) => Failure::refused(
            format!("the device of \"{name}\" is in use, and not by this stack"),
            "unmount what is on it, or end the program that has it open (lsblk, fuser), or name another device. Nothing was changed",
        ),
        other => other,
    })?;
    let mut device = offline.part(target(&parts, name));
    let (has, needs) = (device.geometry().sectors * SECTOR_BYTES, mirror.device_bytes());
    if has < needs {
        return Err(Failure::refused(
            format!(
                "\"{name}\" is too small: it has {}, and a leg needs {}",
                HumanBytes(has),
                HumanBytes(needs)
            ),
            "name a larger device",
        ));
    }
    // An unused leg of this log has nothing that the others lack, unless it has diverged from them.
    let of_this = Label::read(&mut device)
        .is_ok_and(|(label, _)| label.uuid == mirror.uuid && !mirror.was_apart(&label));
    may_overwrite(mirrored.site(), &parts, name, &mut device, force || of_this)
}

fn close(client: &mut ControlClient, layer: &str, name: &str) -> Result<(), Failure> {
    let call = json!({ "layer": layer, "command": "close", "name": name });
    match ask(client, "array", call) {
        Ok(_) => Ok(()),
        // The device was not open.
        Err(ClientError::Refused { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn refused(error: ClientError) -> Failure {
    match error {
        ClientError::Refused { .. } => Failure::refused(error.to_string(), "nothing was changed"),
        error => error.into(),
    }
}

fn remove(args: &LogRemove) -> Result<(), Failure> {
    let mirrored = Mirrored::load(&args.legs)?;
    let name = &args.name;
    let mut client = mirrored.server("a leg is taken out")?;
    let (path, status) = (mirrored.site().path.display(), ServerStatus::ask(&mut client)?);
    let legs =
        status.layers.get(&mirrored.layer).and_then(LayerStatus::mirror).map_or(&[][..], |log| &log.legs);
    let is_open = status.devices.iter().any(|device| device.device.as_ref() == Some(name))
        || legs.iter().any(|leg| leg.name.as_ref() == Some(name) && leg.port.is_some());
    let command = if is_open { "remove" } else { forgettable(&mirrored, name, legs)? };
    let call = json!({ "layer": mirrored.layer, "command": command, "name": name });
    ask(&mut client, "array", call).map_err(refused)?;
    let is_named = mirrored.choice.legs().contains(&name.as_str());
    let next = if is_named { format!(". Take \"{name}\" out of \"log\" in {path}") } else { String::new() };
    match is_open {
        true => println!("\"{name}\" was removed from the log, and its device is closed{next}"),
        false => {
            let legs = legs_text(&mirror_of_server(&mut client, &mirrored.layer)?);
            println!("what was missing was removed from the log: {legs}{next}");
        }
    }
    Ok(())
}

/// Returns the command that removes a leg whose device the server does not have open. Labels have no names of devices, so any name of the
/// stack file stands for it.
fn forgettable(mirrored: &Mirrored, name: &str, legs: &[LegStatus]) -> Result<&'static str, Failure> {
    let is_missing = |leg: &LegStatus| leg.standing == Some(LegState::Failed) && leg.port.is_none();
    let is_known = name == MISSING_LEG || mirrored.site().device(name).is_some();
    match legs.iter().any(is_missing) {
        true if is_known => Ok("forget"),
        true => Err(Failure::refused(
            format!("the stack file has no device \"{name}\""),
            format!(
                "name the leg as the stack file does; \"{MISSING_LEG}\" stands for a failed leg that has no name there. Nothing was changed"
            ),
        )),
        false => {
            let names: Vec<&str> = legs.iter().filter_map(|leg| leg.name.as_deref()).collect();
            Err(Failure::refused(
                format!("\"{name}\" is no leg of this log; its legs are {}", names.join(", ")),
                "nothing was changed",
            ))
        }
    }
}

/// The legs of a log that is to be made.
pub enum FormattedLegs {
    /// The devices are the legs of one log already, or the log is on one device.
    Made,
    /// The devices are no legs yet, or are to be made legs anew. `retired`: descriptions of old logs on them.
    New { retired: Vec<String> },
}

/// Makes the missing files of parts of a stack, or reports those that cannot be made.
pub fn make_missing(site: &Site, parts: &[&str]) -> Result<(), Failure> {
    let missing: Vec<&str> = parts.iter().copied().filter(|part| !site.is_there(part)).collect();
    if missing.is_empty() { Ok(()) } else { start(site, &missing, Purpose::Create).map(|_| ()) }
}

/// Looks at the devices of a mirrored log that is to be formatted, and refuses those that may not be overwritten. `force`: none is refused, and
/// all are made legs anew.
pub fn look_at_legs(choice: &CacheChoice, force: bool) -> Result<FormattedLegs, Failure> {
    let legs = choice.legs();
    if legs.is_empty() {
        return Ok(FormattedLegs::Made);
    }
    make_missing(&choice.site, &legs)?;
    let (offline, parts) = start(&choice.site, &legs, Purpose::Look)?;
    let mut devices: Vec<_> = legs.iter().map(|leg| offline.part(target(&parts, leg))).collect();
    let labels: Vec<_> = devices.iter_mut().map(|device| Label::read(device)).collect();
    let is_one_log = match labels.iter().cloned().collect::<Result<Vec<_>, LabelError>>() {
        Ok(labels) => labels.windows(2).all(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1),
        Err(_) => false,
    };
    let is_complete = labels.first().is_some_and(|label| {
        label
            .as_ref()
            .is_ok_and(|(label, _)| label.whole().count() == legs.len() && label.legs.len() == legs.len())
    });
    if is_one_log && is_complete && !force {
        return Ok(FormattedLegs::Made);
    }
    let mut retired = Vec::new();
    let mut admit_leg = |(leg, device, label): (&&str, &mut StartedPart, &Result<_, LabelError>)| {
        let is_leg = matches!(label, Ok(_) | Err(LabelError::Version(_) | LabelError::Damaged));
        if is_leg && !force && refuse_content(leg, device, false).is_err() {
            return Err(Failure::refused(
                format!("\"{leg}\" is a leg of a log already, but the other devices are not its other legs"),
                "name all legs of that log, or choose another device; or add --force, which overwrites it",
            ));
        }
        retired.extend(admit(&choice.site, &parts, leg, device, force)?);
        Ok(())
    };
    let each = legs.iter().zip(&mut devices).zip(&labels);
    Failure::of_all(each.map(|((leg, device), label)| admit_leg((leg, device, label))).collect::<Vec<_>>())?;
    Ok(FormattedLegs::New { retired })
}

/// Makes legs of the devices of a log, over any content.
pub fn make_legs(choice: &CacheChoice) -> Result<(), Failure> {
    let legs = choice.legs();
    let (offline, parts) = start(&choice.site, &legs, Purpose::Create)?;
    let mut devices: Vec<_> = legs.iter().map(|leg| offline.part(target(&parts, leg))).collect();
    let ids = legs.iter().map(|_| random_id()).collect::<Result<Vec<u64>, _>>()?;
    let mut all: Vec<&mut dyn BlockDevice> =
        devices.iter_mut().map(|device| device as &mut dyn BlockDevice).collect();
    dcd_engine::mirror::offline::create(&mut all, random_uuid()?, &ids)
        .map(|_| ())
        .map_err(|(leg, error)| Failure::Failed(format!("\"{}\" cannot be a leg: {error}", legs[leg])))
}
