//! `dcd rescue --disk`: writes back what a log has for one of its data disks, without a server. The cache is started with that disk alone, as
//! if the others were missing: the log keeps what it has for them.

use dcd_stack::HumanBytes;

use crate::cli::Rescue;
use crate::commands::rescue::unwritten;
use crate::control::not_served;
use crate::failure::Failure;
use crate::session::absent::missing_disk;
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::survey::{start, why_missing};

/// Finds a data disk of a log with several.
pub fn find(choice: &CacheChoice, name: &str) -> Result<CacheChoice, Failure> {
    let stack = choice.site.path.display();
    let named = choice.of_disks().into_iter().find(|own| own.data == name && choice.disks().len() > 1);
    named.filter(|_| !choice.site.is_free_place(name)).ok_or_else(|| {
        Failure::Failed(format!(
            "{stack}: \"{name}\" is no data disk of a log with several; they are {}. Nothing was changed",
            choice.disks().join(", ")
        ))
    })
}

pub fn rescue(args: &Rescue, name: &str) -> Result<(), Failure> {
    let mut choice = CacheChoice::load(&args.file, args.layer.as_deref())?;
    choice.site.asked.degraded_legs = args.degraded;
    let own = find(&choice, name)?;
    if args.list || args.force {
        return Err(Failure::Failed(format!(
            "--disk writes back all that the log has for \"{name}\", or fails: leave out --list and --force, which are for all disks of the \
             log. Nothing was changed"
        )));
    }
    not_served(&choice.site, "write back")?;
    let written = HumanBytes(write_back(&own)?);
    match args.json {
        true => println!("{}", serde_json::json!({ "disk": name, "written_bytes": written.0 })),
        false => println!(
            "\"{name}\" has all its data: {written} were written back. The log keeps what it has for the other disks"
        ),
    }
    Ok(())
}

/// Writes back what the log has for a disk, and returns how much that was.
fn write_back(own: &CacheChoice) -> Result<u64, Failure> {
    if let Some(why) = why_missing(own)? {
        return Err(missing_disk(own, &why).into());
    }
    let mut site = own.site.clone();
    site.asked.degraded_disks = true;
    for other in own.of_disks().iter().filter(|other| is_apart(own, other)) {
        site.file.leave_out_disk(&other.data);
    }
    site.hold(Purpose::Change);
    let (started, parts) = start(&site, &[&own.layer], Purpose::Change)?;
    let cache = parts.layers[&own.layer];
    let disk = || {
        let status = started.status(cache);
        status.log_cache().map(|status| status.disks[own.disk].clone()).unwrap_or_default()
    };
    let before = disk().dirty_bytes;
    let drained = started.drain(cache);
    let after = disk();
    started.stop(cache)?;
    match (after.lost_blocks, after.dirty_bytes) {
        (0, 0) => Ok(before),
        (0, bytes) => {
            Err(drained.err().map_or_else(|| unwritten(bytes), |why| Failure::Failed(why.to_string())))
        }
        (lost, _) => Err(Failure::Damage(format!(
            "{lost} blocks of 4 KiB for \"{}\" cannot be read from the log, which keeps them; the rest is written back. \"dcd rescue --list\" \
             lists them",
            own.data
        ))),
    }
}

/// True for another disk that shares no device with this one, nor with the log.
fn is_apart(own: &CacheChoice, other: &CacheChoice) -> bool {
    let device = |part: &str| own.site.bottom_device(part).map(|device| device.name.clone());
    let it = device(&other.data);
    let legs = own.legs();
    let mut shared = legs.into_iter().chain([own.log.as_str(), own.data.as_str()]);
    other.disk != own.disk && !own.site.is_free_place(&other.data) && !shared.any(|part| device(part) == it)
}
