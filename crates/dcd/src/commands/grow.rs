//! `dcd grow`: makes a cache serve the space that its data disk has gained. Only a start can do this, so the stack is started and ended.

use dcd_engine::SECTOR_BYTES;
use dcd_stack::HumanBytes;

use crate::cli::Grow;
use crate::failure::Failure;
use crate::session::devices::Purpose;
use crate::session::serving::checks::choices;
use crate::session::site::Site;
use crate::session::survey::{inspect, start, target};

pub fn run(args: &Grow) -> Result<(), Failure> {
    let mut site = Site::load(&args.file)?;
    site.asked.grow = true;
    site.hold(Purpose::Change);
    let mut before = Vec::new();
    for choice in choices(&site)? {
        let (seen, _) = inspect(&choice)?;
        before.push((choice.layer, seen.superblock.map_or(0, |superblock| superblock.data_sectors)));
    }
    let export = site.export.clone();
    let (started, parts) = start(&site, &[&export], Purpose::Change)?;
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
