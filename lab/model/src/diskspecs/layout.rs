//! DiskSim's layout g1: zones, skews, spares and slipped sectors.

use super::{Fields, ImportError, SpecBlock, Value};
use crate::drive_file::{Gaps, LayoutFile};

/// The zones of a drive file with their layout.
pub(super) struct Zones {
    pub zones: Vec<(u32, u32, u32, u32)>,
    pub layout: LayoutFile,
}

/// A zone of the source.
struct Zone {
    first: u32,
    cylinders: u32,
    sectors_per_track: u32,
    track_skew: u32,
    cylinder_skew: u32,
    start_sector: u32,
    reserved: u64,
    spares: u32,
    slips: Vec<u64>,
}

pub(super) fn zones(layout: &mut Fields<'_>, notes: &mut Vec<String>) -> Result<Zones, ImportError> {
    let mapping = layout.count("LBN-to-PBN mapping scheme")?;
    if mapping > 2 {
        return Err(layout.wrong("LBN-to-PBN mapping scheme", format!("{mapping} is none of 0, 1 and 2")));
    }
    let scheme = layout.count("Sparing scheme used")?;
    let range = layout.count("Rangesize for sparing")?;
    let in_revolutions = layout.text("Skew units")? == Some("revolutions");
    let Some(Value::List(list)) = layout.value("Zones") else {
        return Err(layout.wrong("Zones", "it is no list"));
    };
    let mut zones = Vec::with_capacity(list.len());
    for value in list {
        let Value::Block(block) = value else {
            return Err(layout.wrong("Zones", "it has something that is no block"));
        };
        zones.push(zone(block, in_revolutions, notes)?);
    }
    if mapping == 2 && zones.iter().any(|zone| zone.first % 2 == 1) {
        notes.push("mapping scheme 2 was taken for 1: a zone that begins on an odd cylinder begins at the first head here".to_owned());
    }
    let mut file =
        LayoutFile { serpentine: mapping > 0, zones_start_at_index: true, ..LayoutFile::default() };
    place(&mut file, &zones, layout)?;
    spares(&mut file, &mut zones, scheme, range, layout)?;
    let rows = zones.iter().map(|z| (z.cylinders, z.sectors_per_track, z.track_skew, z.cylinder_skew));
    Ok(Zones { zones: rows.collect(), layout: file })
}

fn zone(block: &SpecBlock, in_revolutions: bool, notes: &mut Vec<String>) -> Result<Zone, ImportError> {
    let mut fields = Fields::new(block);
    let (first, last) = (fields.count("First cylinder number")?, fields.count("Last cylinder number")?);
    if last < first {
        return Err(fields.wrong("Last cylinder number", format!("{last} is before the first, {first}")));
    }
    let per_track = fields.count("Blocks per track")?;
    let in_revolutions = fields.text("Skew units")?.map_or(in_revolutions, |unit| unit == "revolutions");
    let mut sectors = |field: &str| -> Result<u32, ImportError> {
        let number = fields.number(field)?.unwrap_or(0.0);
        let sectors = if in_revolutions { number * f64::from(per_track) } else { number };
        // An angle: a whole turn more changes nothing.
        Ok((sectors.round() as i64).rem_euclid(i64::from(per_track.max(1))) as u32)
    };
    let start_sector = sectors("Offset of first block")?;
    let (track_skew, cylinder_skew) =
        (sectors("Skew for track switch")?, sectors("Skew for cylinder switch")?);
    if !fields.list("defects")?.is_empty() {
        notes.push(format!("the remapped defects of the zone from cylinder {first} on: their sectors are where they were here"));
    }
    Ok(Zone {
        first,
        cylinders: last - first + 1,
        sectors_per_track: per_track,
        track_skew,
        cylinder_skew,
        start_sector,
        reserved: u64::from(fields.count("Empty space at zone front")?),
        spares: fields.count("Number of spares")?,
        slips: fields.list("slips")?.into_iter().map(|slip| slip as u64).collect(),
    })
}

/// Places the zones: gaps, first angles, reserved space.
fn place(file: &mut LayoutFile, zones: &[Zone], layout: &Fields<'_>) -> Result<(), ImportError> {
    let mut gaps = Vec::with_capacity(zones.len());
    let mut next = 0;
    for zone in zones {
        let gap = zone.first.checked_sub(next);
        gaps.push(gap.ok_or_else(|| {
            layout.wrong(
                "Zones",
                format!("the zone from cylinder {} on begins before the end of another", zone.first),
            )
        })?);
        next = zone.first + zone.cylinders;
    }
    let even = gaps.iter().skip(1).all(|&gap| gap == *gaps.get(1).unwrap_or(&0)) && gaps.first() == Some(&0);
    file.gap_cylinders = match even {
        true => Gaps::Between(gaps.get(1).copied().unwrap_or(0)),
        false => Gaps::Before(gaps),
    };
    if zones.iter().any(|zone| zone.start_sector > 0) {
        file.start_sectors = zones.iter().map(|zone| zone.start_sector).collect();
    }
    if zones.iter().any(|zone| zone.reserved > 0) {
        file.reserved_sectors = zones.iter().map(|zone| zone.reserved).collect();
    }
    Ok(())
}

/// The spares, by DiskSim's numbers for their places.
fn spares(
    file: &mut LayoutFile,
    zones: &mut [Zone],
    scheme: u32,
    range: u32,
    layout: &Fields<'_>,
) -> Result<(), ImportError> {
    match scheme {
        0 => zones.iter_mut().for_each(|zone| (zone.spares, zone.slips) = (0, Vec::new())),
        // Whole tracks at the end of zones, which slipped tracks use.
        1 => {
            zones.iter_mut().for_each(|zone| zone.spares = zone.spares.saturating_mul(zone.sectors_per_track))
        }
        2 => file.spare_range_cylinders = 1,
        3 => file.spares_on_each_track = true,
        // At the end of the disk: a slipped sector costs its zone one that has data.
        7 => zones.iter_mut().for_each(|zone| zone.spares = zone.slips.len() as u32),
        8 => file.spare_range_cylinders = range,
        9 => {}
        10 => zones.iter_mut().for_each(|zone| zone.spares += zone.slips.len() as u32),
        4..=6 => {
            let problem = format!(
                "{scheme} (spares at the front of cylinders, or that slipped sectors do not use) is not modelled"
            );
            return Err(layout.wrong("Sparing scheme used", problem));
        }
        _ => return Err(layout.wrong("Sparing scheme used", format!("{scheme} is unknown"))),
    }
    if zones.iter().any(|zone| zone.spares > 0) {
        file.spares = zones.iter().map(|zone| zone.spares).collect();
    }
    let slipped = zones.iter().enumerate().filter(|(_, zone)| !zone.slips.is_empty());
    let slips = slipped.map(|(index, zone)| (index, zone.slips.clone())).collect();
    match scheme {
        1 => file.slipped_tracks = slips,
        _ => file.slips = slips,
    }
    Ok(())
}
