//! `dcd array assemble`: finds the members of an array among devices, and writes a stack file that serves it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use dcd_engine::SECTOR_BYTES;
use dcd_engine::raid::{ArraySuperblock, FoundJournal, find_journal};
use dcd_stack::{DeviceSource, toml_text};

use crate::cli_array::{ArrayArgs, ArrayAssemble};
use crate::control::not_served;
use crate::failure::Failure;
use crate::session::choice::ArrayChoice;
use crate::session::devices::Purpose;
use crate::session::members::{FoundMember, MemberContent, Standing, apart, standing};
use crate::session::record::{Refusal, caches_text, uuid_text};
use crate::session::serving::checks::admit_plain_parts;
use crate::session::serving::status::without;
use crate::session::site::Site;
use crate::session::started::StartedPart;
use crate::session::survey::{start, target};

pub fn run(args: &ArrayAssemble) -> Result<(), Failure> {
    if let [file] = args.devices.as_slice()
        && file.extension().is_some_and(|extension| extension == "toml")
    {
        return check(file);
    }
    let mut found =
        args.devices.iter().map(|path| look(path)).collect::<Result<Vec<FoundMember>, Failure>>()?;
    let chosen = choose(&found, args.array.as_deref());
    let journal = tell_others(&mut found, chosen.as_ref().ok());
    let array = chosen?;
    refuse_apart(&array, &found)?;
    refuse_twice(&array, &found)?;
    let members = DevicesByRole::of(&array, &found);
    members.complain(&array)?;
    members.tell_left_out(&array, &found);
    if !args.without_journal {
        refuse_without_journal(&array, journal.as_ref())?;
    }
    let text = members.stack_file(&array, journal.as_ref())?;
    match &args.out {
        None => print!("{text}"),
        Some(path) => {
            let mut file = std::fs::File::options().write(true).create_new(true).open(path).map_err(|e| {
                match e.kind() {
                    ErrorKind::AlreadyExists => {
                        Failure::Failed(format!("{}: it exists; choose another name", path.display()))
                    }
                    _ => Failure::io(path.display(), e),
                }
            })?;
            file.write_all(text.as_bytes()).map_err(|e| Failure::io(path.display(), e))?;
        }
    }
    Ok(())
}

/// Opens a device without changing it, and reads its superblock.
fn look(path: &Path) -> Result<FoundMember, Failure> {
    let site = Site::of_device(path, true)?;
    let (offline, parts) = start(&site, &[&site.export], Purpose::Look)?;
    Ok(FoundMember::new(&path.display().to_string(), offline.part(target(&parts, &site.export))))
}

/// Says which devices belong to no array. Returns the journal of `array`, if a device begins with it.
fn tell_others(found: &mut [FoundMember], array: Option<&ArraySuperblock>) -> Option<JournalDevice> {
    let mut journal = None;
    for FoundMember { name, device, content } in found {
        let MemberContent::None(error) = content else { continue };
        let find = |(device, array): (&mut StartedPart, &ArraySuperblock)| find_journal(device, array);
        match device.as_mut().zip(array).and_then(find) {
            Some(found) => journal = Some(JournalDevice { path: name.clone(), found }),
            None => eprintln!("dcd: {name}: {error}"),
        }
    }
    journal
}

/// The device that begins with the journal of the array.
struct JournalDevice {
    path: String,
    found: FoundJournal,
}

/// Refuses to leave out a journal: the write hole would be open again, and after a crash, data that is only in the journal would be lost.
fn refuse_without_journal(array: &ArraySuperblock, journal: Option<&JournalDevice>) -> Result<(), Failure> {
    if journal.is_some() || !(array.has_journal || array.active && array.journaled) {
        return Ok(());
    }
    Err(Failure::refused(
        format!("array {}: it has a journal, but none of the devices begins with it", uuid_text(array.uuid)),
        "name the journal's device, too. If the journal is a slice further on in its device, add --without-journal, and name the slice \
         instead of \"none\" in the stack file. If that device is lost for good, or if nothing has been written to the array yet, add \
         --without-journal; nothing was changed",
    ))
}

/// Chooses the array whose UUID begins with `wanted`, or the only one. Says which devices cannot be read.
fn choose(found: &[FoundMember], wanted: Option<&str>) -> Result<ArraySuperblock, Failure> {
    let mut arrays: BTreeMap<String, Vec<&FoundMember>> = BTreeMap::new();
    for device in found {
        match &device.content {
            MemberContent::Of(superblock, _) => {
                arrays.entry(uuid_text(superblock.uuid)).or_default().push(device)
            }
            MemberContent::Unreadable(why) => eprintln!("dcd: {}: cannot be read: {why}", device.name),
            MemberContent::None(_) => {}
        }
    }
    let of = |devices: &[&FoundMember]| {
        let with_role = devices.iter().filter_map(|device| device.superblock());
        let with_role = with_role.filter(|(_, identity)| identity.role.is_some());
        ArraySuperblock::newest_of(with_role.map(|(superblock, _)| superblock)).cloned()
    };
    let mut matching = arrays.iter().filter(|(uuid, _)| wanted.is_none_or(|wanted| uuid.starts_with(wanted)));
    match (matching.next(), matching.next()) {
        (None, _) => Err(Failure::Failed(
            "none of the devices belongs to an array, or to the one that --array names".to_owned(),
        )),
        (Some((uuid, devices)), None) => of(devices).ok_or_else(|| {
            Failure::Failed(format!("array {uuid}: only spares of it are named: name its members, too"))
        }),
        (Some(_), Some(_)) => {
            let mut text = "the devices are of several arrays; choose one with --array:".to_owned();
            for (uuid, devices) in &arrays {
                let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
                let _ = write!(text, "\n  {uuid}: {}", names.join(", "));
            }
            Err(Failure::Failed(text))
        }
    }
}

/// Refuses members that have diverged: each part lacks what was written to the other.
fn refuse_apart(array: &ArraySuperblock, found: &[FoundMember]) -> Result<(), Failure> {
    let Some(apart) = apart(array, found.iter()) else { return Ok(()) };
    for device in found {
        let role = device.superblock().and_then(|(_, identity)| array.role_of(identity.id));
        if let Some(role) = role {
            eprintln!("dcd: {}: it is member {role}", device.name);
        }
    }
    Err(Failure::refused(
        format!("array {}: {apart}", uuid_text(array.uuid)),
        "name only the devices of the part that you keep; nothing was changed",
    ))
}

/// Refuses two devices with the same id: nothing tells which of them has the newest data.
fn refuse_twice(array: &ArraySuperblock, found: &[FoundMember]) -> Result<(), Failure> {
    let mut seen: BTreeMap<u64, &str> = BTreeMap::new();
    for device in found {
        let Some((superblock, identity)) = device.superblock() else { continue };
        if !matches!(
            standing(array, superblock, identity),
            Standing::InUse(_) | Standing::Rebuilding(..) | Standing::Spare
        ) {
            continue;
        }
        if let Some(other) = seen.insert(identity.id, &device.name) {
            let what = match array.role_of(identity.id) {
                Some(role) => format!("member {role}"),
                None => "the same spare".to_owned(),
            };
            return Err(Failure::refused(
                format!("array {}: {other} and {} are both {what}", uuid_text(array.uuid), device.name),
                "one may be a copy, or both may be paths to one device: name only the one that the array was served with; \
                 nothing was changed",
            ));
        }
    }
    Ok(())
}

/// Devices by role, and the spares.
struct DevicesByRole<'a> {
    roles: Vec<Option<&'a str>>,
    spares: Vec<&'a str>,
}

impl<'a> DevicesByRole<'a> {
    /// Gives each device its place.
    fn of(array: &ArraySuperblock, found: &'a [FoundMember]) -> DevicesByRole<'a> {
        let mut members = DevicesByRole { roles: vec![None; array.members], spares: Vec::new() };
        for device in found {
            let Some((superblock, identity)) = device.superblock() else { continue };
            match standing(array, superblock, identity) {
                Standing::InUse(role) | Standing::Rebuilding(role, _) => {
                    members.roles[role] = Some(&device.name)
                }
                Standing::Spare => members.spares.push(&device.name),
                Standing::Outdated(_) | Standing::Failed(_) | Standing::Stale | Standing::Foreign => {}
            }
        }
        members
    }

    /// Says why devices of the array get no place, and which members are missing.
    fn tell_left_out(&self, array: &ArraySuperblock, found: &[FoundMember]) {
        for device in found {
            let Some((superblock, identity)) = device.superblock() else { continue };
            let name = &device.name;
            let (role, what) = match standing(array, superblock, identity) {
                Standing::Outdated(role) => (role, ", with older data"),
                Standing::Failed(role) => (role, ", which has failed"),
                Standing::Stale => {
                    eprintln!("dcd: {name}: another device has taken its role: left out");
                    continue;
                }
                _ => continue,
            };
            match self.roles[role] {
                Some(other) => {
                    eprintln!("dcd: {name}: member {role}{what}; {other} is that member now: left out")
                }
                None => eprintln!(
                    "dcd: {name}: member {role}{what}: left out; to fill it, name it in the place of \"missing\", and \"dcd array add\" it"
                ),
            }
        }
        let missing: Vec<String> = self.missing().map(|role| role.to_string()).collect();
        if !missing.is_empty() {
            eprintln!(
                "dcd: without member {}: missing data is computed from the other members, so reads are slower and fewer members may fail; \
                 \"dcd array assemble FILE\" checks whether the array would start",
                missing.join(" and ")
            );
        }
    }

    fn missing(&self) -> impl Iterator<Item = usize> {
        self.roles.iter().enumerate().filter(|(_, name)| name.is_none()).map(|(role, _)| role)
    }

    /// Refuses an array that lacks more members than its parity makes up for.
    fn complain(&self, array: &ArraySuperblock) -> Result<(), Failure> {
        let missing: Vec<String> = self.missing().map(|role| role.to_string()).collect();
        let parity = array.level.parity();
        if missing.len() > parity {
            return Err(Failure::refused(
                format!(
                    "array {}: of its {} members, {} are not among the devices or have failed; parity makes up for only {parity}",
                    uuid_text(array.uuid),
                    array.members,
                    missing.join(", ")
                ),
                "name more devices; nothing was changed",
            ));
        }
        Ok(())
    }

    fn stack_file(
        &self,
        array: &ArraySuperblock,
        journal: Option<&JournalDevice>,
    ) -> Result<String, Failure> {
        let mut text = format!("# Array {}\n", uuid_text(array.uuid));
        if !array.caches.is_empty() {
            let _ = writeln!(
                text,
                "# The log cache {} is attached to this array, or to a part of it: name the cache here before you serve the array, as\n# the \
                 newest data may be in the cache's log.",
                caches_text(&array.caches)
            );
        }
        text += "export = \"array\"\n\n[serve]\nnbd = \"unix:array.sock\"\ncontrol = \"array.control\"\n";
        let mut device = |name: String, path: Option<&str>| -> Result<String, Failure> {
            let Some(path) = path else { return Ok("missing".to_owned()) };
            let absolute = DeviceSource::absolute(Path::new(path)).map_err(|e| Failure::io(path, e))?;
            let _ =
                write!(text, "\n[device.{name}]\npath = {}\n", toml_text(&absolute.display().to_string()));
            Ok(name)
        };
        let mut of = Vec::new();
        for (role, path) in self.roles.iter().enumerate() {
            of.push(device(format!("disk{role}"), *path)?);
        }
        let mut spares = Vec::new();
        for (number, path) in self.spares.iter().enumerate() {
            spares.push(device(format!("spare{number}"), Some(path))?);
        }
        let slice_bytes = journal.and_then(|journal| journal.found.slice_bytes);
        if let Some(journal) = journal {
            let name = if slice_bytes.is_some() { "journal-device" } else { "journal" };
            device(name.to_owned(), Some(&journal.path))?;
        }
        if let Some(bytes) = slice_bytes {
            let _ = write!(
                text,
                "\n[layer.journal]\nkind = \"slice\"\nof = \"journal-device\"\nsize = \"{}KiB\"\n",
                bytes / 1024
            );
        }
        if array.reshape.is_some() {
            text += "\n# The array is growing: \"dcd array grow\" must finish before it can be served.\n";
        }
        let level = array.level.name();
        let strip = array.strip_sectors * SECTOR_BYTES / 1024;
        let _ = write!(
            text,
            "\n[layer.array]\nkind = \"raid\"\nlevel = \"{level}\"\nof = {of:?}\nspares = {spares:?}\nstrip = \"{strip}KiB\"\n"
        );
        text += match journal {
            Some(_) if !array.caches.is_empty() => {
                "# Leave this out if the cache that you name here has the journal before its log: the journal is found there.\njournal = \"journal\"\n"
            }
            Some(_) => "journal = \"journal\"\n",
            None if array.has_journal || array.journaled => {
                "# The array had a journal.\njournal = \"none\"\n"
            }
            None => "",
        };
        Ok(text)
    }
}

/// Checks whether the arrays of a stack file would start.
fn check(path: &Path) -> Result<(), Failure> {
    let site = Site::load(path)?;
    admit_plain_parts(&site)?;
    let layers: Vec<String> = site.arrays().map(|(layer, _)| layer.name.clone()).collect();
    if layers.is_empty() {
        return Err(Failure::Failed(format!("{}: there is no raid layer in it", path.display())));
    }
    for layer in layers {
        let choice = ArrayChoice::load(&ArrayArgs { file: path.to_owned(), layer: Some(layer.clone()) })?;
        not_served(&choice.site, "check it")?;
        let status = choice.try_start()?.map_err(|Refusal { reason, action }| {
            Failure::refused(format!("array \"{layer}\" would not start: {reason}"), action)
        })?;
        let how = without(&status);
        println!(
            "array \"{layer}\": {} members, {}: it would start{how}",
            choice.members.len(),
            match choice.spares.len() {
                1 => "1 spare".to_owned(),
                spares => format!("{spares} spares"),
            }
        );
        for advice in &status.advice {
            println!("note: {advice}");
        }
    }
    Ok(())
}
