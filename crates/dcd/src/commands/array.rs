//! `dcd array create`: makes the array of a stack file.

use dcd_engine::raid::{CreateError, create};
use dcd_engine::{BlockDevice, SECTOR_BYTES};
use dcd_stack::{HumanBytes, LayerSpec, RaidSpec, StackFile};

use crate::attachment::{Refusal, uuid_text};
use crate::cli::{Array, ArrayCommand, ArrayCreate};
use crate::commands::format::random_uuid;
use crate::failure::Failure;
use crate::opening::{PartDevice, start, target};
use crate::probe::probe;

pub fn run(args: &Array) -> Result<(), Failure> {
    match &args.command {
        ArrayCommand::Create(args) => make(args),
    }
}

fn make(args: &ArrayCreate) -> Result<(), Failure> {
    let file = StackFile::load(&args.file)?;
    let (layer, raid) = choose(&file, args.layer.as_deref())?;
    if raid.config.present.contains(&false) {
        return Err(Failure::Failed(format!(
            "layer \"{}\": all of its members have to be there when it is made",
            layer.name
        )));
    }
    let mut names = layer.kind.below_names();
    names.truncate(raid.config.present.len());
    let (offline, parts) = start(&file, &names, true)?;
    let mut members: Vec<PartDevice> = names.iter().map(|name| offline.part(target(&parts, name))).collect();
    for (name, member) in names.iter().zip(&mut members) {
        let found = probe(member).map_err(|e| Failure::Failed(format!("reading \"{name}\": {e}")))?;
        if let (Some(what), false) = (found, args.force) {
            let size = HumanBytes(member.geometry().sectors * SECTOR_BYTES);
            return Err(Failure::Refused(Refusal::new(
                format!("\"{name}\" has {what} on it"),
                format!("choose another device, or add --force: its {size} would be overwritten"),
            )));
        }
    }
    let mut members: Vec<Option<&mut dyn BlockDevice>> =
        members.iter_mut().map(|member| Some(member as &mut dyn BlockDevice)).collect();
    let made = create(&mut members, &raid.config, random_uuid()?, false).map_err(|error| match error {
        CreateError::Io { .. } => Failure::Failed(error.to_string()),
        _ => Failure::Refused(Refusal::new(error.to_string(), "nothing was changed")),
    })?;
    let data = (made.members - made.level.parity()) as u64 * made.member_sectors * SECTOR_BYTES;
    println!(
        "array {}: {} over {} members; its parity is computed when it is first served",
        uuid_text(made.uuid),
        HumanBytes(data),
        made.members
    );
    Ok(())
}

/// The array called `wanted`, or the only one.
fn choose<'a>(file: &'a StackFile, wanted: Option<&str>) -> Result<(&'a LayerSpec, &'a RaidSpec), Failure> {
    let names: Vec<&str> = file.arrays().map(|(layer, _)| layer.name.as_str()).collect();
    let path = file.path.display();
    let wrong = match (wanted, names.as_slice()) {
        (_, []) => format!("{path}: there is no raid layer in it"),
        (None, [_]) => String::new(),
        (None, _) => format!("{path}: it has several arrays; choose with --layer: {}", names.join(", ")),
        (Some(wanted), _) if names.contains(&wanted) => String::new(),
        (Some(wanted), _) => {
            format!("{path}: no array is called \"{wanted}\"; it has {}", names.join(", "))
        }
    };
    let chosen = file.arrays().find(|(layer, _)| wanted.is_none_or(|wanted| layer.name == wanted));
    chosen.filter(|_| wrong.is_empty()).ok_or(Failure::Failed(wrong))
}
