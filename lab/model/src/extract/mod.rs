//! Measures a disk by the times of its reads alone: rotation, tracks and zones, seek curve, head switch, buffer.
//!
//! A read of one block that comes from the medium ends when the block has passed the head. So the time at which it
//! ends, divided by a revolution, has the block's *angle* for a rest (plus what is the same for all blocks). Angles show
//! where tracks begin and how long they are; the shortest time from the end of one read to the end of another shows what the
//! arm needs. (DIXtrac asks SCSI disks for their layout; here the angles tell it, as later tools do for disks that answer no
//! such question.) Nothing is written, and there is no clock here: [`Reads`] has it.

mod arm;
mod buffer;
mod modelled;
mod rotation;
mod tracks;

use dcd_engine::{Lba, Nanos};

use crate::drive_file::{CacheFile, DriveFile, Gaps, LayoutFile, OverheadFile};
use buffer::Buffer;
pub use modelled::ModelledReads;
use tracks::Layout;

/// A disk that can be read, and the times of it.
pub trait Reads {
    fn sectors(&self) -> u64;
    /// The least that can be read, in sectors.
    fn unit(&self) -> u64;
    /// Reads, and returns the times of the read's begin and end.
    ///
    /// # Errors
    /// Fails with what the device said.
    fn read(&mut self, at: Lba, sectors: u64) -> Result<(Nanos, Nanos), String>;
    fn pause(&mut self, time: Nanos);
    /// Reports what is being measured, and the share of it that is done.
    fn progress(&mut self, what: &str, done: f64);
}

/// Why nothing came out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MeasureError {
    #[error("a read failed: {0}")]
    Read(String),
    #[error("it has {0} sectors: too few to measure")]
    Small(u64),
    #[error(
        "it does not turn: reads take {0:.3} ms on average, and no period from 3.5 to 21 ms fits their ends. It is a solid-state \
         disk, an array, a virtual disk or a file in the memory of this machine, for which there is no drive file"
    )]
    NoRotation(f64),
    #[error("{0}")]
    Unclear(String),
}

/// A drive file, and what could not be found out.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    pub text: String,
    pub notes: Vec<String>,
    pub reads: u64,
}

/// A read and its times.
#[derive(Clone, Copy, Debug)]
struct Timed {
    begin: Nanos,
    end: Nanos,
}

impl Timed {
    fn took(&self) -> Nanos {
        self.end.since(self.begin)
    }
}

/// The disk, and what is known of it so far.
struct Probe<'a> {
    reads: &'a mut dyn Reads,
    unit: u64,
    sectors: u64,
    count: u64,
    /// Time at which the first read began; `span` is the time from there to the end of the last.
    began: Option<Nanos>,
    span: Nanos,
    random: u64,
    /// A read from the buffer takes less than this; 0: nothing comes from a buffer.
    hit_below: Nanos,
    /// Reads of other places after which a block is not in the buffer any more.
    evict: u64,
    /// A revolution in nanoseconds.
    revolution: f64,
}

/// Disks that are smaller have too few tracks.
const SECTORS_MIN: u64 = 200_000;
/// Number of times that a block that was in the buffer is read again after others.
const TRIES: usize = 4;

impl Probe<'_> {
    /// A number below `below` (splitmix64: any fixed sequence does).
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }

    fn read(&mut self, at: u64, sectors: u64) -> Result<Timed, MeasureError> {
        self.count += 1;
        let (begin, end) = self.reads.read(Lba(at), sectors).map_err(MeasureError::Read)?;
        self.span = end.since(*self.began.get_or_insert(begin));
        Ok(Timed { begin, end })
    }

    fn one(&mut self, at: u64) -> Result<Timed, MeasureError> {
        let at = at.min(self.sectors - self.unit) / self.unit * self.unit;
        self.read(at, self.unit)
    }

    fn anywhere(&mut self) -> u64 {
        let units = self.sectors / self.unit;
        self.random(units) * self.unit
    }

    fn is_hit(&self, timed: Timed) -> bool {
        timed.took() < self.hit_below
    }

    /// Reads a block: did it come from the buffer?
    fn is_hit_at(&mut self, at: u64) -> Result<bool, MeasureError> {
        let timed = self.one(at)?;
        Ok(self.is_hit(timed))
    }

    fn forget(&mut self, count: u64) -> Result<(), MeasureError> {
        for _ in 0..count {
            let place = self.anywhere();
            self.one(place)?;
        }
        Ok(())
    }

    /// A read from the medium.
    fn medium_read(&mut self, at: u64) -> Result<Timed, MeasureError> {
        let mut timed = self.one(at)?;
        for _ in 0..TRIES {
            if !self.is_hit(timed) {
                break;
            }
            self.forget(self.evict)?;
            timed = self.one(at)?;
        }
        Ok(timed)
    }

    /// The angle of a block, 0 to 1.
    fn angle(&mut self, at: u64) -> Result<f64, MeasureError> {
        let end = self.medium_read(at)?.end;
        Ok((end.0 as f64 / self.revolution).rem_euclid(1.0))
    }

    fn progress(&mut self, what: &str, done: f64) {
        self.reads.progress(what, done);
    }
}

/// Measures a disk. `name` and `description` are for the drive file.
///
/// # Errors
/// Where a read fails, where the disk does not turn, or where its tracks cannot be told.
pub fn measure(reads: &mut dyn Reads, name: &str, description: &str) -> Result<Measurement, MeasureError> {
    let (unit, sectors) = (reads.unit(), reads.sectors() / reads.unit() * reads.unit());
    if sectors < SECTORS_MIN {
        return Err(MeasureError::Small(sectors));
    }
    let mut probe = Probe {
        reads,
        unit,
        sectors,
        count: 0,
        began: None,
        span: Nanos::ZERO,
        random: 1,
        hit_below: Nanos::ZERO,
        evict: 0,
        revolution: 0.0,
    };
    let mut notes = Vec::new();
    let hits = buffer::hits(&mut probe, &mut notes)?;
    rotation::measure(&mut probe)?;
    let layout = tracks::layout(&mut probe, &mut notes)?;
    let bus = hits.map_or(Nanos::ZERO, |hits| hits.sector);
    let seek = arm::seek_curve(&mut probe, &layout, bus)?;
    let head_switch = arm::head_switch(&mut probe, &layout, bus)?;
    let buffer = match hits {
        Some(hits) => Some(buffer::measure(&mut probe, &layout, hits, &mut notes)?),
        None => None,
    };
    probe.progress("done", 1.0);
    notes.extend(NOT_MEASURED.map(str::to_owned));
    let file = drive_file(&probe, name, description, &layout, (seek, head_switch), buffer.as_ref());
    let comment = comment(&probe, &notes);
    let text = file.text(&comment);
    crate::Drive::parse(&text)
        .map_err(|e| MeasureError::Unclear(format!("what was measured is no drive: {e}")))?;
    Ok(Measurement { text, notes, reads: probe.count })
}

/// Properties that reads alone do not tell.
const NOT_MEASURED: [&str; 4] = [
    "write settling, overheads of writes and write caching: writes take as long as reads here",
    "the overhead of a read from the medium: it is in the seek times and the head switch",
    "whether the head stays when the cylinder changes, and zones that differ in their skews alone",
    "spares and slipped sectors: what a zone lacks is at its end here",
];

fn comment(probe: &Probe<'_>, notes: &[String]) -> Vec<String> {
    let mut comment = vec![
        format!(
            "Measured by \"dcd drive measure\": every number is from the times of {} reads, in {:.0} minutes.",
            probe.count,
            (probe.span.as_secs_f64() / 60.0).ceil()
        ),
        String::new(),
        "Not found out:".to_owned(),
    ];
    comment.extend(notes.iter().map(|note| format!("  - {note}")));
    comment
}

fn ms(nanos: f64) -> f64 {
    (nanos / 1e3).round() / 1e3
}

fn drive_file(
    probe: &Probe<'_>,
    name: &str,
    description: &str,
    layout: &Layout,
    (seek, head_switch): (Vec<(u32, Nanos)>, Nanos),
    buffer: Option<&Buffer>,
) -> DriveFile {
    let cylinder = |zone: &tracks::Zone| u64::from(layout.heads) * zone.sectors_per_track;
    let places = |zone: &tracks::Zone| zone.sectors().div_ceil(cylinder(zone)) * cylinder(zone);
    let rows = layout.zones.iter().map(|zone| {
        let cylinders = zone.sectors().div_ceil(cylinder(zone));
        (cylinders as u32, zone.sectors_per_track as u32, zone.track_skew as u32, zone.cylinder_skew as u32)
    });
    let overhead = buffer.map_or(0.0, |buffer| ms(buffer.hits.overhead.0 as f64));
    let sector = buffer.map_or(0.0, |buffer| buffer.hits.sector.0 as f64);
    DriveFile {
        name: name.to_owned(),
        description: description.to_owned(),
        rpm: (60e9 / probe.revolution * 100.0).round() / 100.0,
        heads: layout.heads,
        sectors: Some(probe.sectors),
        queue_depth: 1,
        logical_block_bytes: if probe.unit == 8 { 4096 } else { 512 },
        physical_block_bytes: if probe.unit == 8 { 4096 } else { 512 },
        // A bus too fast to be measured costs nothing.
        bus_mb_per_s: if sector < 1.0 { 6_000.0 } else { (512e3 / sector * 100.0).round() / 100.0 },
        receive_ms: 0.0,
        head_switch_ms: ms(head_switch.0 as f64),
        write_settle_ms: 0.0,
        write_settle_track_ms: None,
        seek_ms: seek.into_iter().map(|(cylinders, time)| (cylinders, ms(time.0 as f64))).collect(),
        zones: rows.collect(),
        layout: LayoutFile {
            gap_cylinders: Gaps::default(),
            spares: layout.zones.iter().map(|zone| (places(zone) - zone.sectors()) as u32).collect(),
            ..LayoutFile::default()
        },
        overhead_ms: OverheadFile {
            read_hit: (overhead, overhead),
            read: (0.0, 0.0),
            write_hit: None,
            write: (0.0, 0.0),
        },
        bus_phases: None,
        cache: buffer.map(|buffer| CacheFile {
            segments: buffer.segments as usize,
            segment_sectors: buffer.segment_sectors,
            read_ahead: buffer.read_ahead,
            read_ahead_sectors: buffer.read_ahead_sectors,
            write_segments: 0,
            separate_write_segments: false,
            keep_requested: false,
            resume_on_hit: false,
            keep_passing_sectors: buffer.keeps_passing,
            zero_latency_reads: buffer.zero_latency,
        }),
        write_back: None,
        shingles: None,
    }
}
