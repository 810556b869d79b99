//! How an array starts: who its members are, who of them can be used, what a crash has left.

use crate::layer::{ActivateError, Geometry, Port, PortDevice, Ports};
use crate::raid::array::Array;
use crate::raid::bitmap::{Bitmap, Regions};
use crate::raid::config::RaidConfig;
use crate::raid::journal::{self, Journal, Slots};
use crate::raid::layout::Layout;
use crate::raid::record::Recorder;
use crate::raid::superblock::{DATA_SECTOR, Identity, Superblock, SuperblockError};
use crate::{BlockDevice, Durability, Io, LINE_BYTES, SECTOR_BYTES};

fn refuse<T>(why: impl Into<String>) -> Result<T, ActivateError> {
    Err(ActivateError(why.into()))
}

/// What the members' superblocks say together.
struct Found {
    newest: Superblock,
    /// The roles that cannot be used.
    failed: u64,
}

/// Reads the superblocks, makes up for a crash, and gives the array.
pub(super) fn assemble(config: &RaidConfig, below: &mut dyn Ports) -> Result<Array, ActivateError> {
    if let Some(complaint) = config.complaint() {
        return refuse(complaint);
    }
    let mut count = 0;
    let mut port = |present: &bool| {
        count += usize::from(*present);
        present.then(|| Port(count - 1))
    };
    let ports: Vec<Option<Port>> = config.present.iter().map(&mut port).collect();
    let journal_port = config.journal.then_some(Port(count));
    let Found { newest, mut failed } = read_superblocks(config, &ports, below)?;
    let shape = config.level.shape(ports.len()).expect("it was looked at");
    enough(failed, shape.parity)?;
    let layout = Layout::new(shape, newest.strip_sectors, newest.member_sectors, config.unit);
    let geometry = geometry(&layout, &ports, failed, below)?;
    let journal = journal_port.map(|port| open(port, &layout, &newest, below)).transpose()?;
    let replays = newest.active && newest.journaled;
    let mut replayed = false;
    if let (true, Some((port, slots))) = (replays && !geometry.read_only, &journal) {
        replay(*port, slots, &newest, &ports, &mut failed, below)?;
        enough(failed, shape.parity)?;
        replayed = true;
    }
    let mut in_doubt = newest.in_doubt.clone();
    if replays && !replayed {
        in_doubt = Bitmap::full(Regions::new(&layout, newest.region_stripes).count());
    }
    if !in_doubt.is_empty() && failed != 0 {
        if !config.accept_damage {
            let journal = match replays && !replayed {
                true => "give it the journal that it had, ",
                false => "",
            };
            return refuse(format!(
                "it did not stop cleanly, so its parity is in doubt, and {} missing: what they held may come out wrong. \
                 Bring them back, {journal}or accept that",
                names(failed)
            ));
        }
        in_doubt = Bitmap::default();
    }
    let mut recorded = newest;
    if (recorded.active || recorded.in_doubt != in_doubt) && !geometry.read_only {
        let generation = recorded.generation + 1;
        recorded = Superblock { generation, active: false, in_doubt, failed, ..recorded };
        write_superblocks(&recorded, &ports, &mut failed, below);
        enough(failed, shape.parity)?;
    }
    let mut config = config.clone();
    if config.contiguity.is_none() && config.calibrated {
        config.contiguity = recorded.calibration.clone();
    }
    let journal = journal.map(|(port, slots)| Journal::new(port, slots));
    Ok(Array::new(config, layout, geometry, ports, Recorder::new(recorded, failed), journal))
}

fn names(roles: u64) -> String {
    let roles: Vec<String> =
        (0..64).filter(|role| roles >> role & 1 == 1).map(|role: u64| role.to_string()).collect();
    match roles.as_slice() {
        [one] => format!("member {one} is"),
        several => format!("members {} are", several.join(", ")),
    }
}

/// Refuses to start with fewer members than the data can be computed from.
fn enough(failed: u64, parity: usize) -> Result<(), ActivateError> {
    if failed.count_ones() as usize > parity {
        return refuse(format!(
            "{} missing, unreadable or out of date, and the parity makes up for {parity}",
            names(failed)
        ));
    }
    Ok(())
}

fn read_superblocks(
    config: &RaidConfig,
    ports: &[Option<Port>],
    below: &mut dyn Ports,
) -> Result<Found, ActivateError> {
    let mut read: Vec<Option<Superblock>> = Vec::new();
    for (place, port) in ports.iter().enumerate() {
        let Some(port) = *port else {
            read.push(None);
            continue;
        };
        match Superblock::read(&mut PortDevice { ports: below, port }) {
            Ok((_, Identity { role: Some(role), .. })) if role != place => {
                return refuse(format!(
                    "member {place} has the role {role}: put the members in the order in which they were"
                ));
            }
            Ok((_, Identity { role: None, .. })) => {
                return refuse(format!("member {place} is a spare: name it in \"spares\""));
            }
            Ok((superblock, _)) => read.push(Some(superblock)),
            Err(SuperblockError::Io(_)) => read.push(None),
            Err(error) => return refuse(format!("member {place}: {error}")),
        }
    }
    let known = || read.iter().flatten();
    let Some(newest) = known().max_by_key(|superblock| superblock.generation).cloned() else {
        return refuse("none of its members can be read");
    };
    if known().any(|superblock| superblock.uuid != newest.uuid) {
        return refuse("its members are of different arrays");
    }
    let (members, strip) = (ports.len(), config.strip_sectors);
    if (newest.members, newest.level, newest.strip_sectors) != (members, config.level, strip) {
        return refuse(format!(
            "it was made with level {:?}, {} members and strips of {} KiB: describe it so",
            newest.level,
            newest.members,
            newest.strip_sectors * SECTOR_BYTES / 1024
        ));
    }
    let mut failed = newest.failed;
    for (role, superblock) in read.iter().enumerate() {
        failed |= u64::from(superblock.is_none()) << role;
    }
    Ok(Found { newest, failed })
}

fn geometry(
    layout: &Layout,
    ports: &[Option<Port>],
    failed: u64,
    below: &dyn Ports,
) -> Result<Geometry, ActivateError> {
    let mut geometry =
        Geometry { physical_block_bytes: LINE_BYTES as u32, ..Geometry::plain(layout.sectors()) };
    let needed = DATA_SECTOR + layout.stripes * layout.strip_sectors;
    for (role, port) in ports.iter().enumerate().filter(|(role, _)| failed >> role & 1 == 0) {
        let member = below.geometry(port.expect("it can be used"));
        if member.sectors < needed {
            return refuse(format!("member {role} has {} sectors, and had {needed}", member.sectors));
        }
        geometry.logical_block_bytes = geometry.logical_block_bytes.max(member.logical_block_bytes);
        geometry.rotational |= member.rotational;
        geometry.read_only |= member.read_only;
    }
    Ok(geometry)
}

fn open(
    port: Port,
    layout: &Layout,
    newest: &Superblock,
    below: &mut dyn Ports,
) -> Result<(Port, Slots), ActivateError> {
    let slots = Slots::new(layout, below.geometry(port).sectors);
    if slots.count < Slots::COUNT_MIN {
        return refuse(format!(
            "its journal is too small: {} KiB at least, as a record holds a whole stripe",
            slots.bytes_min() / 1024
        ));
    }
    let mut device = PortDevice { ports: below, port };
    let fits = journal::fits(&mut device, &slots, newest.uuid)
        .map_err(|e| ActivateError(format!("reading the journal: {e}")))?;
    if !fits {
        return refuse(format!(
            "there is something else where its journal should be: name another device, or write zeroes over its first {} KiB",
            slots.header_bytes() / 1024
        ));
    }
    Ok((port, slots))
}

/// Makes the writes of the journal again. They are all there, whichever of them a crash has cut short.
fn replay(
    port: Port,
    slots: &Slots,
    superblock: &Superblock,
    ports: &[Option<Port>],
    failed: &mut u64,
    below: &mut dyn Ports,
) -> Result<(), ActivateError> {
    let mut device = PortDevice { ports: below, port };
    let writes = journal::pending(&mut device, slots, superblock.uuid, superblock.epoch)
        .map_err(|e| ActivateError(e.to_string()))?;
    // A server that was killed may have left the newest record in the device's cache: if a power cut took it while its writes
    // are half made, nobody could finish them. The crash explorer found this.
    device.flush().map_err(|e| ActivateError(format!("flushing the journal: {e}")))?;
    for write in writes {
        let Some(port) = ports.get(write.role).copied().flatten().filter(|_| *failed >> write.role & 1 == 0)
        else {
            continue;
        };
        let io = Io::Write { at: write.at, buf: write.buf, durability: Durability::Durable };
        if below.run(port, io).status.is_err() {
            *failed |= 1 << write.role;
        }
    }
    Ok(())
}

fn write_superblocks(next: &Superblock, ports: &[Option<Port>], failed: &mut u64, below: &mut dyn Ports) {
    for (role, port) in ports.iter().enumerate() {
        if let Some(port) = port.filter(|_| *failed >> role & 1 == 0)
            && below.run(port, next.write(next.identity(role))).status.is_err()
        {
            *failed |= 1 << role;
        }
    }
}
