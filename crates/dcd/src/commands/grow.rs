//! `dcd grow`: makes a cache serve the space that its data disk has gained. Only a start can do this, so the stack is started and ended.

use std::collections::BTreeSet;

use dcd_engine::{SECTOR_BYTES, Target};
use dcd_stack::HumanBytes;

use crate::cli::Grow;
use crate::failure::Failure;
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::serving::checks::choices;
use crate::session::site::Site;
use crate::session::survey::{inspect, start};

pub fn run(args: &Grow) -> Result<(), Failure> {
    let mut site = Site::load(&args.file)?;
    site.asked.grow = true;
    site.hold(Purpose::Change);
    let mut before = Vec::new();
    for choice in choices(&site)?.iter().flat_map(CacheChoice::of_disks) {
        let (seen, _) = inspect(&choice)?;
        let space = seen.superblock.map(|superblock| superblock.space());
        let sectors =
            space.filter(|space| choice.disk < space.count()).map_or(0, |space| space.sectors(choice.disk));
        before.push((choice, sectors));
    }
    let export = site.export.clone();
    let (started, parts) = start(&site, &[&export], Purpose::Change)?;
    for (choice, before) in &before {
        if choice.site.is_free_place(&choice.data) {
            continue;
        }
        let target = Target::Disk(parts.layers[&choice.layer], choice.disk);
        let sectors = started.geometry(target).sectors;
        let layer = if choice.disks().len() > 1 { &choice.data } else { &choice.layer };
        let size = HumanBytes(sectors * SECTOR_BYTES);
        match sectors > *before {
            true => println!(
                "\"{layer}\" now has {size}, {} more than before",
                HumanBytes((sectors - before) * SECTOR_BYTES)
            ),
            false => println!("\"{layer}\" has {size}, which is all of its data disk"),
        }
    }
    // A cache may lie on another one: those above stop first.
    let caches: BTreeSet<_> = before.iter().map(|(choice, _)| parts.layers[&choice.layer]).collect();
    caches.into_iter().rev().try_for_each(|cache| started.stop(cache))
}
