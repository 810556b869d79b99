//! A drive in words and figures, for a person.

use std::fmt::Write;

use dcd_engine::{Nanos, SECTOR_BYTES};
use dcd_stack::HumanBytes;

use crate::cache::ReadAhead;
use crate::drive::{AnyDrive, Drive, Overhead};
use crate::solid::{Limited, Solid};
use crate::write_back::{DestageOrder, WriteBackKind};

const LABEL_WIDTH: usize = 16;

/// The lines of a description, each with its label.
struct Lines(String);

impl Lines {
    fn line(&mut self, label: &str, text: impl std::fmt::Display) {
        writeln!(self.0, "{label:<LABEL_WIDTH$} {text}").expect("a string takes everything");
    }
}

fn ms(time: u64) -> String {
    format!("{:.3} ms", Nanos(time).as_millis_f64())
}

fn capacity(sectors: u64) -> String {
    format!("{:.2} GB, {sectors} sectors", (sectors * SECTOR_BYTES) as f64 / 1e9)
}

fn size(sectors: u64) -> HumanBytes {
    HumanBytes(sectors * SECTOR_BYTES)
}

/// Describes a drive.
pub fn describe(drive: &AnyDrive) -> String {
    match drive {
        AnyDrive::Rotating(drive) => rotating(drive),
        AnyDrive::Solid(solid) => self::solid(solid),
    }
}

fn solid(solid: &Solid) -> String {
    let mut lines = Lines(format!("{}: {}\n\n", solid.name, solid.description));
    lines.line("capacity", capacity(solid.sectors));
    lines.line("read", ms(solid.read.0));
    lines.line("write", ms(solid.write.0));
    lines.line("flush", ms(solid.flush.0));
    let volatile = match solid.volatile_sectors {
        0 => "none: an answered write is safe".to_owned(),
        sectors => format!("{} of answered writes, until a flush", size(sectors)),
    };
    lines.line("volatile", volatile);
    lines.line("commands", format!("{} at a time", solid.queue_depth));
    if solid.program > Nanos::ZERO {
        let program = format!(
            "{} for {} on one of {} channels",
            ms(solid.program.0),
            size(solid.program_sectors),
            solid.channels
        );
        lines.line("program", program);
        let random = solid.amplification as f64 / 1e3;
        lines.line("amplification", format!("{random:.1} for random writes"));
    }
    for limit in &solid.limits {
        let of = match limit.of {
            Limited::All => "all requests",
            Limited::Reads => "reads",
            Limited::Writes => "writes",
            Limited::Programs => "programs",
        };
        let rate = 1e12 / limit.picos as f64;
        let burst = rate * limit.burst.as_secs_f64();
        let text = match limit.operation_sectors {
            Some(_) => format!("{rate:.0} a second, {burst:.0} at once"),
            None => format!(
                "{:.0} MB/s, {:.1} GB at once",
                rate * SECTOR_BYTES as f64 / 1e6,
                burst * SECTOR_BYTES as f64 / 1e9
            ),
        };
        lines.line(of, text);
    }
    if let Some(bytes) = solid.endurance_bytes {
        lines.line("endurance", format!("{:.0} TB", bytes as f64 / 1e12));
    }
    lines.0
}

fn rotating(drive: &Drive) -> String {
    let mut lines = Lines(format!("{}: {}\n\n", drive.name, drive.description));
    mechanics(drive, &mut lines);
    electronics(drive, &mut lines);
    buffer(drive, &mut lines);
    lines.0.push('\n');
    zones(drive, &mut lines);
    lines.0
}

fn mechanics(drive: &Drive, lines: &mut Lines) {
    let m = &drive.mechanics;
    lines.line("capacity", capacity(drive.sectors()));
    let revolution = drive.revolution();
    let rpm = 60e9 / revolution.0 as f64;
    lines.line("rotation", format!("{rpm:.0} rpm, {} a revolution", ms(revolution.0)));
    lines.line("geometry", format!("{} cylinders, {} heads", drive.cylinders(), drive.heads()));
    let full = drive.cylinders().saturating_sub(1).max(1);
    lines.line(
        "seek",
        format!(
            "{} one cylinder, {} mean, {} full stroke",
            ms(drive.seek(1).0),
            ms(drive.mean_seek().0),
            ms(drive.seek(full).0)
        ),
    );
    lines.line("head switch", ms(m.head_switch));
    lines.line(
        "write settle",
        format!(
            "{:.3} ms after a seek, {:.3} ms to the next track",
            m.write_settle as f64 / 1e6,
            m.write_settle_track as f64 / 1e6
        ),
    );
    let rate = |zone: &crate::Zone| {
        f64::from(zone.sectors_per_track) * SECTOR_BYTES as f64 / revolution.0 as f64 * 1e3
    };
    if let [first, ..] = drive.zones()
        && let Some(last) = drive.zones().last()
    {
        lines.line("media rate", format!("{:.1} MB/s outside, {:.1} MB/s inside", rate(first), rate(last)));
    }
}

fn electronics(drive: &Drive, lines: &mut Lines) {
    let bus = SECTOR_BYTES as f64 * 1e6 / drive.bus_picos_per_sector as f64;
    lines.line("bus", format!("{bus:.2} MB/s"));
    let overhead = |o: &Overhead| match o.after_read == o.after_write {
        true => ms(o.after_read.0),
        false => format!("{} after a read, {} after a write", ms(o.after_read.0), ms(o.after_write.0)),
    };
    lines.line("read hit", overhead(&drive.overhead.read_hit));
    lines.line("read", overhead(&drive.overhead.read));
    lines.line("write hit", overhead(&drive.overhead.write_hit));
    lines.line("write", overhead(&drive.overhead.write));
    lines.line("commands", format!("{} at a time", drive.queue_depth));
}

fn buffer(drive: &Drive, lines: &mut Lines) {
    let cache = &drive.cache;
    if cache.segments == 0 {
        lines.line("buffer", "none");
        return;
    }
    let all = cache.segments as u64 * cache.segment_sectors;
    lines.line(
        "buffer",
        format!("{}: {} segments of {} sectors", size(all), cache.segments, cache.segment_sectors),
    );
    let ahead = match cache.read_ahead {
        ReadAhead::None => "none".to_owned(),
        ReadAhead::Track => "to the end of the track".to_owned(),
        ReadAhead::NextTrack => "to the end of the track, a stream one track more".to_owned(),
        ReadAhead::Segment => "on until the segment is full".to_owned(),
    };
    lines.line("read-ahead", format!("{ahead}, at most {} sectors", cache.read_ahead_sectors));
    let delayed = &drive.write_back;
    let order = match delayed.order {
        DestageOrder::Fifo => "as they came",
        DestageOrder::Lba => "by address",
        DestageOrder::Nearest => "the nearest first",
    };
    let text = match delayed.kind {
        _ if delayed.sectors == 0 => "none".to_owned(),
        WriteBackKind::OnArrival => format!("{}, begun at once", size(delayed.sectors)),
        WriteBackKind::Deferred => format!(
            "{} in {} runs, after a rest of {}, {order}",
            size(delayed.sectors),
            delayed.runs,
            ms(delayed.idle.0)
        ),
    };
    lines.line("delayed writes", text);
}

fn zones(drive: &Drive, lines: &mut Lines) {
    let row = "zone  first cylinder  cylinders  sectors a track  track skew  cylinder skew    first LBA";
    writeln!(lines.0, "{row}").expect("a string takes everything");
    for (index, zone) in drive.zones().iter().enumerate() {
        writeln!(
            lines.0,
            "{index:>4}  {:>14}  {:>9}  {:>15}  {:>10}  {:>13}  {:>11}",
            zone.first_cylinder,
            zone.cylinders,
            zone.sectors_per_track,
            zone.track_skew,
            zone.cylinder_skew,
            zone.first_lba.0
        )
        .expect("a string takes everything");
    }
}
