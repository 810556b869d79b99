//! `dcd grow`: makes a cache serve the space that its data disk has gained. Only a start can do this, so the stack is started and ended.

use dcd_engine::SECTOR_BYTES;
use dcd_stack::{HumanBytes, StackFile};

use crate::cli::Grow;
use crate::failure::Failure;
use crate::session::admit::Inspection;
use crate::session::devices::Purpose;
use crate::session::serving::admit::choices;
use crate::session::start::{inspect, start, target};

pub fn run(args: &Grow) -> Result<(), Failure> {
    let mut file = StackFile::load(&args.file)?;
    file.grow();
    let mut before = Vec::new();
    for choice in choices(&file)? {
        let Inspection { superblock, .. } = inspect(&choice)?;
        before.push((choice.layer, superblock.map_or(0, |superblock| superblock.data_sectors)));
    }
    let export = file.export.clone();
    let (started, parts) = start(&file, &[&export], Purpose::Change)?;
    for (layer, before) in before {
        let sectors = started.geometry(target(&parts, &layer)).sectors;
        let size = HumanBytes(sectors * SECTOR_BYTES);
        match sectors > before {
            true => println!(
                "\"{layer}\" now has {size}, {} more than before",
                HumanBytes((sectors - before) * SECTOR_BYTES)
            ),
            false => println!("\"{layer}\" has {size}, which is all of its data disk"),
        }
    }
    Ok(())
}
