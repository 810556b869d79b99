//! A `disksim_disk` with its model, as a drive file.

use super::{Fields, ImportError, Imported, SpecBlock, Value, layout, seek};
use crate::cache::ReadAhead;
use crate::drive_file::{
    BusPhasesFile, CacheFile, DriveFile, EarlyDisconnectFile, OverheadFile, WriteBackFile,
};
use crate::write_back::{DestageOrder, WriteBackKind};

/// Fields that say nothing about a drive that is asked by one host.
const WITHOUT_EFFECT: [&str; 13] = [
    "Print stats",
    "Avg sectors per cylinder",
    "Calc sector by sector",
    "Scheduler",
    "Hold bus entire read xfer",
    "Hold bus entire write xfer",
    "Stop prefetch in sector",
    "Read directly to buffer",
    "Combine seq writes",
    "Immediate buffer write",
    "First ten seek times",
    "HPL seek equation values",
    "Average seek time",
];

/// Fields with the only value that this model knows; another value is reported in the notes.
const FIXED: [(&str, f64); 12] = [
    ("Allow almost read hits", 0.0),
    ("Allow sneaky full read hits", 0.0),
    ("Allow sneaky partial read hits", 0.0),
    ("Allow sneaky intermediate read hits", 0.0),
    ("Allow write prebuffering", 0.0),
    ("Preseeking level", 0.0),
    ("Low (write) water mark", 0.0),
    ("Minimum read-ahead (blks)", 0.0),
    ("Disconnect write if seek", 0.0),
    ("Write hit stop prefetch", 1.0),
    ("Immed transfer partial hit", 1.0),
    ("Percent error in rpms", 0.0),
];

/// DiskSim has drives that disconnect early wait for so many sectors of a write, and no parameter for it. (It has 15 for a write of
/// 45 and more, for which the data has to come earlier anyhow.)
const BUFFERED_SECTORS: u64 = 10;

pub(super) fn convert(
    blocks: &[SpecBlock],
    source: &str,
    include: &dyn Fn(&str) -> Result<String, String>,
    bus_mb_per_s: Option<f64>,
) -> Result<Imported, ImportError> {
    let mut disks = blocks.iter().filter(|block| block.kind == "disksim_disk");
    let missing = || {
        ImportError::Missing(
            "there is no block disksim_disk: name a .diskspecs file, or a .parv file that names one"
                .to_owned(),
        )
    };
    let disk = disks.next().ok_or_else(missing)?;
    let mut notes: Vec<String> = disks
        .map(|other| format!("{} was left out: it is the second disk of the file", other.name))
        .collect();
    let mut disk = Fields::new(disk);
    let mut model = Fields::new(disk.block("Model")?);
    let mut mechanics = Fields::new(g1(&mut model, "Mechanical Model", "dm_mech_g1")?);
    let mut zones = Fields::new(g1(&mut model, "Layout Model", "dm_layout_g1")?);
    let (heads, cylinders) = (model.count("Number of data surfaces")?, model.count("Number of cylinders")?);
    let sectors = model.count("Block count")?;
    let laid_out = layout::zones(&mut zones, &mut notes)?;
    match mechanics.text("Access time type")? {
        Some("trackSwitchPlusRotation") => {}
        other => {
            let what = other.unwrap_or("missing").to_owned();
            return Err(mechanics.wrong(
                "Access time type",
                format!("{what}: only trackSwitchPlusRotation is a drive that turns"),
            ));
        }
    }
    let seek_ms = seek::curve(&mut mechanics, cylinders, include)?;
    mechanics.text("Single cylinder seek time")?;
    mechanics.text("Full strobe seek time")?;
    let name = disk.block.name.clone();
    let mut file = DriveFile {
        name: name.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-"),
        description: format!("{name}, imported from {source}"),
        rpm: mechanics.required("Rotation speed (in rpms)")?,
        heads,
        sectors: Some(u64::from(sectors)),
        queue_depth: disk.count("Max queue length")?.max(1) as usize,
        logical_block_bytes: 512,
        physical_block_bytes: 512,
        bus_mb_per_s: bus(&mut disk, blocks, bus_mb_per_s, &mut notes)?,
        receive_ms: 0.0,
        head_switch_ms: mechanics.required("Head switch time")?,
        write_settle_ms: mechanics.required("Add. write settling delay")?,
        write_settle_track_ms: None,
        seek_ms,
        zones: laid_out.zones,
        layout: laid_out.layout,
        overhead_ms: overheads(&mut disk)?,
        bus_phases: phases(&mut disk)?,
        cache: None,
        write_back: None,
        shingles: None,
    };
    buffer(&mut disk, &mut file, &mut notes)?;
    for fields in [&mut disk, &mut model, &mut mechanics, &mut zones] {
        leftovers(fields, &mut notes)?;
    }
    finish(file, source, notes)
}

/// Refuses what is no drive, and trims what the source counts otherwise.
fn finish(mut file: DriveFile, source: &str, mut notes: Vec<String>) -> Result<Imported, ImportError> {
    let wanted = file.sectors.take();
    let text = file.text(&[]);
    let holds = crate::Drive::parse(&text)?.sectors();
    match wanted {
        Some(wanted) if wanted < holds => file.sectors = Some(wanted),
        Some(wanted) if wanted > holds => {
            notes.push(format!("the block count of {wanted}: the zones hold {holds} sectors"));
        }
        _ => {}
    }
    let mut comment =
        vec![format!("Imported from {source} by \"dcd drive import\": every number is from there.")];
    if !notes.is_empty() {
        comment.push(String::new());
        comment.push("Not as in the source:".to_owned());
        comment.extend(notes.iter().map(|note| format!("  - {note}")));
    }
    let text = file.text(&comment);
    crate::Drive::parse(&text)?;
    Ok(Imported { text, notes })
}

fn g1<'a>(model: &mut Fields<'a>, field: &str, kind: &str) -> Result<&'a SpecBlock, ImportError> {
    let block = model.block(field)?;
    match block.kind == kind {
        true => Ok(block),
        false => Err(model.wrong(field, format!("{} is not read, only {kind}", block.kind))),
    }
}

/// The slowest of the drive, the buses and the controllers that the files have.
fn bus(
    disk: &mut Fields<'_>,
    blocks: &[SpecBlock],
    given: Option<f64>,
    notes: &mut Vec<String>,
) -> Result<f64, ImportError> {
    let mut slowest = disk.required("Bulk sector transfer time")?;
    for block in blocks {
        let mut fields = Fields::new(block);
        match block.kind.as_str() {
            "disksim_bus" => {
                let read = fields.number("Read block transfer time")?.unwrap_or(0.0);
                let write = fields.number("Write block transfer time")?.unwrap_or(0.0);
                if write > read && write > slowest {
                    notes.push(format!(
                        "writes take {write} ms a block on {}: they take {read} ms here, as reads do",
                        block.name
                    ));
                }
                slowest = slowest.max(read);
            }
            "disksim_ctlr" => {
                slowest = slowest.max(fields.number("Bulk sector transfer time")?.unwrap_or(0.0))
            }
            _ => {}
        }
    }
    match given {
        Some(rate) => Ok(rate),
        None if slowest > 0.0 => Ok((512e-3 / slowest * 1e6).round() / 1e6),
        None => Err(disk.wrong(
            "Bulk sector transfer time",
            "it is 0, so the rate of the bus is that of a bus which is not in the file: name the .parv file that has it, or \
             give the rate with --bus",
        )),
    }
}

/// Each after a read and after a write.
fn both(disk: &mut Fields<'_>, what: &str) -> Result<(f64, f64), ImportError> {
    Ok((disk.required(&format!("{what} after read"))?, disk.required(&format!("{what} after write"))?))
}

fn overheads(disk: &mut Fields<'_>) -> Result<OverheadFile, ImportError> {
    let scale = disk.number("Time scale for overheads")?.unwrap_or(1.0);
    let each = disk.number("Per-request overhead time")?.unwrap_or(0.0);
    let all = |(read, write): (f64, f64)| (round(scale * (each + read)), round(scale * (each + write)));
    Ok(OverheadFile {
        read_hit: all(both(disk, "Read hit over.")?),
        read: all(both(disk, "Read miss over.")?),
        write_hit: Some(all(both(disk, "Write hit over.")?)),
        write: all(both(disk, "Write miss over.")?),
    })
}

/// To picoseconds: a product of decimal numbers has digits that were not written.
fn round(ms: f64) -> f64 {
    (ms * 1e9).round() / 1e9
}

/// The section is left out where all of it is 0.
fn phases(disk: &mut Fields<'_>) -> Result<Option<BusPhasesFile>, ImportError> {
    let scale = disk.number("Time scale for overheads")?.unwrap_or(1.0);
    let connected = disk.is_set("Never disconnect")?;
    let by_request = disk.is_set("Set watermark by reqsize")?;
    let mut ms = |field: &str| Ok::<f64, ImportError>(round(scale * disk.number(field)?.unwrap_or(0.0)));
    let mut file = BusPhasesFile {
        high_water_mark: 0.0,
        preparation_ms: ms("Data preparation overhead")?,
        read_disconnect_ms: (ms("Read disconnect afterread")?, ms("Read disconnect afterwrite")?),
        write_disconnect_ms: ms("Write disconnect overhead")?,
        reselect_ms: ms("First reselect overhead")?,
        reselect_again_ms: ms("Other reselect overhead")?,
        read_completion_ms: ms("Read completion overhead")?,
        write_completion_ms: ms("Write completion overhead")?,
        write_positioning_min_ms: ms("Minimum seek delay")?,
        early_disconnect: None,
    };
    let early = EarlyDisconnectFile {
        command_ms: ms("Extradisc command overhead")?,
        disconnect_ms: ms("Extradisc disconnect overhead")?,
        pause_ms: ms("Extradisc inter-disconnect delay")?,
        second_disconnect_ms: ms("Extradisc 2nd disconnect overhead")?,
        seek_delay_ms: ms("Extradisc seek delta")?,
        buffered_sectors: BUFFERED_SECTORS,
    };
    if disk.is_set("Extra write disconnect")? && !connected {
        file.early_disconnect = Some(early);
    }
    const MARK: &str = "High (read) water mark";
    file.high_water_mark = disk.number(MARK)?.unwrap_or(0.0);
    if file.high_water_mark > 0.0 && !by_request {
        return Err(disk.wrong(
            MARK,
            "it is a part of a segment (\"Set watermark by reqsize\" is 0), which is not modelled",
        ));
    }
    if connected {
        file = BusPhasesFile {
            preparation_ms: file.preparation_ms,
            read_completion_ms: file.read_completion_ms,
            write_completion_ms: file.write_completion_ms,
            write_positioning_min_ms: file.write_positioning_min_ms,
            high_water_mark: file.high_water_mark,
            ..BusPhasesFile::default()
        };
    }
    Ok((file != BusPhasesFile::default()).then_some(file))
}

fn buffer(disk: &mut Fields<'_>, file: &mut DriveFile, notes: &mut Vec<String>) -> Result<(), ImportError> {
    let segments = disk.count("Number of buffer segments")? as usize;
    let segment_sectors = u64::from(disk.count("Segment size (in blks)")?);
    let mut write_segments = (disk.count("Maximum number of write segments")? as usize).min(segments);
    let mut separate = disk.is_set("Use separate write segment")?;
    let read_ahead = read_ahead(disk, notes)?;
    let over_requested = disk.is_set("Read-ahead over requested")?;
    let most = u64::from(disk.count("Maximum read-ahead (blks)")?);
    // DiskSim looks at "over requested" only if there is no maximum, and at neither if it reads to the end of a track.
    let (read_ahead_sectors, keep_requested) = match (read_ahead, most) {
        (ReadAhead::NextTrack, _) => {
            let longest = file.zones.iter().map(|zone| u64::from(zone.1)).max();
            (2 * longest.unwrap_or(0), false)
        }
        (_, 0) => (segment_sectors, !over_requested),
        _ => (most.min(segment_sectors), false),
    };
    let resume_on_hit = disk.is_set("Read-ahead on idle hit")?;
    let keep_passing_sectors = disk.is_set("Read any free blocks")?;
    let zero_latency_reads = disk.is_set("Immediate buffer read")?;
    let keeps_written = disk.is_set("Allow read hits on write data")?;
    let level = disk.count("Fast write level")?;
    if level > 0 && segment_sectors > 0 {
        // An append goes on in its segment.
        file.write_back = Some(WriteBackFile {
            kind: WriteBackKind::OnArrival,
            sectors: segment_sectors,
            runs: 1,
            order: DestageOrder::default(),
            idle_ms: 0.0,
        });
    }
    if !disk.is_set("Enable caching in buffer")? || segments == 0 {
        notes.push("the buffer is no cache: nothing is read ahead or found in it".to_owned());
        return Ok(());
    }
    let mut read_segments = segments;
    if !keeps_written {
        // The writes' segment holds nothing that can be read.
        read_segments -= if separate { write_segments } else { 0 };
        (write_segments, separate) = (0, false);
    }
    if separate && write_segments >= read_segments {
        notes.push("all segments are for writes: none is kept apart".to_owned());
        separate = false;
    }
    file.cache = Some(CacheFile {
        segments: read_segments,
        segment_sectors,
        read_ahead,
        read_ahead_sectors,
        write_segments,
        separate_write_segments: separate,
        keep_requested,
        resume_on_hit,
        keep_passing_sectors,
        zero_latency_reads,
    });
    Ok(())
}

fn read_ahead(disk: &mut Fields<'_>, notes: &mut Vec<String>) -> Result<ReadAhead, ImportError> {
    const FIELD: &str = "Buffer continuous read";
    Ok(match disk.count(FIELD)? {
        0 => ReadAhead::None,
        1 => ReadAhead::Track,
        2 => {
            notes.push("reading ahead to the end of the cylinder: to the end of the segment here".to_owned());
            ReadAhead::Segment
        }
        3 => ReadAhead::Segment,
        4 => ReadAhead::NextTrack,
        other => return Err(disk.wrong(FIELD, format!("{other} is none of 0 to 4"))),
    })
}

/// Notes the fields that were not read, unless they have no effect, or the value that this model has.
fn leftovers(fields: &mut Fields<'_>, notes: &mut Vec<String>) -> Result<(), ImportError> {
    for (name, fixed) in FIXED {
        if let Some(value) = fields.number(name)?.filter(|&value| value != fixed) {
            notes.push(format!("\"{name}\" is {value}: it is not modelled, and acts as {fixed}"));
        }
    }
    for (name, value) in fields.rest().filter(|(name, _)| !WITHOUT_EFFECT.contains(name)) {
        let value = match value {
            Value::Text(text) => format!(" = {text}"),
            Value::List(_) | Value::Block(_) => String::new(),
        };
        notes.push(format!("\"{name}\"{value}: the field is unknown"));
    }
    Ok(())
}
