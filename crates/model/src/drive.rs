//! Drive files: one TOML file for each drive, every number with its source in a comment.
//!
//! A file is read into [`Drive`] once and checked whole; what is wrong is told with the field, the problem, and what to
//! write instead. Times in a file are milliseconds, as in data sheets. To add a drive: put its file beside the others in
//! `drives/` and list it in `BUILTIN`.

use dcd_engine::{Lba, Nanos, SECTOR_BYTES};
use serde::Deserialize;

use crate::cache::CacheShape;
use crate::controller::Access;
use crate::geometry::{Geometry, Spot, Track, Zone, ZoneShape};
use crate::mechanics::Mechanics;
use crate::seek::SeekCurve;

/// The drives that are always there, by name.
const BUILTIN: &[(&str, &str)] = &[
    ("barracuda-1996", include_str!("../drives/barracuda-1996.toml")),
    ("nearline-2018", include_str!("../drives/nearline-2018.toml")),
];

/// Bounds that no drive comes near, so that no sum of times or sectors can overflow.
const TIME_MS_MAX: f64 = 10_000.0;
const CYLINDERS_MAX: u32 = 10_000_000;
const HEADS_MAX: u32 = 256;
const SECTORS_PER_TRACK_MAX: u32 = 100_000;
const QUEUE_DEPTH_MAX: usize = 4096;
const SEGMENTS_MAX: usize = 4096;
const SEGMENT_SECTORS_MAX: u64 = 1 << 24;

/// The names of the drives that are always there.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|(name, _)| *name)
}

/// The drive file of a drive that is always there.
pub fn text(name: &str) -> Option<&'static str> {
    BUILTIN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// A drive that is always there.
pub fn builtin(name: &str) -> Result<Drive, DriveError> {
    match BUILTIN.iter().find(|(known, _)| *known == name) {
        Some((_, text)) => Drive::parse(text),
        None => {
            Err(DriveError::Unknown { name: name.to_owned(), known: names().collect::<Vec<_>>().join(", ") })
        }
    }
}

/// Why there is no such drive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriveError {
    #[error("no drive is called \"{name}\": use one of {known}, or the path of a drive file")]
    Unknown { name: String, known: String },
    /// Not TOML, an unknown field, a missing one, or one of another type: the text shows the line.
    #[error("not a drive file: {0}")]
    Syntax(String),
    #[error("drive file, field `{field}`: {problem}; {remedy}")]
    Field { field: String, problem: String, remedy: String },
}

fn wrong(field: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) -> DriveError {
    DriveError::Field { field: field.into(), problem: problem.into(), remedy: remedy.into() }
}

/// A command overhead that depends on what the drive did before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overhead {
    after_read: Nanos,
    after_write: Nanos,
}

impl Overhead {
    pub fn after(&self, wrote_last: bool) -> Nanos {
        if wrote_last { self.after_write } else { self.after_read }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overheads {
    pub read_hit: Overhead,
    read: Overhead,
    write: Overhead,
}

impl Overheads {
    /// The overhead of a command that goes to the medium.
    pub fn of(&self, access: Access, wrote_last: bool) -> Nanos {
        match access {
            Access::Read => self.read.after(wrote_last),
            Access::Write | Access::WriteZeroes => self.write.after(wrote_last),
        }
    }
}

/// A data sheet, checked and ready for use.
#[derive(Clone, Debug)]
pub struct Drive {
    name: String,
    description: String,
    queue_depth: usize,
    logical_block_bytes: u32,
    physical_block_bytes: u32,
    bus_picos_per_sector: u64,
    pub(crate) overhead: Overheads,
    pub(crate) cache: CacheShape,
    pub(crate) mechanics: Mechanics,
}

impl Drive {
    /// Reads a drive file.
    pub fn parse(text: &str) -> Result<Drive, DriveError> {
        let file: DriveFile = toml::from_str(text).map_err(|e| DriveError::Syntax(e.to_string()))?;
        file.into_drive()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn description(&self) -> &str {
        &self.description
    }

    /// The capacity in sectors of 512 bytes.
    pub fn sectors(&self) -> u64 {
        self.mechanics.geometry.sectors()
    }

    pub fn cylinders(&self) -> u32 {
        self.mechanics.geometry.cylinders()
    }

    pub fn heads(&self) -> u32 {
        self.mechanics.geometry.heads()
    }

    pub fn zones(&self) -> &[Zone] {
        self.mechanics.geometry.zones()
    }

    /// The most commands that the drive knows at a time.
    pub fn queue_depth(&self) -> usize {
        self.queue_depth
    }

    pub fn logical_block_bytes(&self) -> u32 {
        self.logical_block_bytes
    }

    pub fn physical_block_bytes(&self) -> u32 {
        self.physical_block_bytes
    }

    pub fn revolution(&self) -> Nanos {
        Nanos(self.mechanics.geometry.revolution())
    }

    pub fn head_switch(&self) -> Nanos {
        Nanos(self.mechanics.head_switch)
    }

    /// What a write waits after an arm movement of several cylinders, on top of the seek.
    pub fn write_settle(&self) -> Nanos {
        Nanos(self.mechanics.write_settle)
    }

    /// The time of an arm movement, for reading.
    pub fn seek(&self, cylinders: u32) -> Nanos {
        Nanos(self.mechanics.seek.time(cylinders))
    }

    /// The mean seek over all pairs of different cylinders: what data sheets call the average seek time. Walks over all
    /// distances, so do not ask for each request.
    pub fn mean_seek(&self) -> Nanos {
        Nanos(self.mechanics.seek.mean(self.cylinders()))
    }

    /// The command overhead of a read from the medium, or of a write, after a command of the same kind.
    pub fn command_overhead(&self, access: Access) -> Nanos {
        self.overhead.of(access, access != Access::Read)
    }

    /// The overhead of a read from the built-in cache after a read, and of a flush.
    pub fn hit_overhead(&self) -> Nanos {
        self.overhead.read_hit.after(false)
    }

    /// The time in which the bus moves some sectors.
    pub fn bus_time(&self, sectors: u64) -> Nanos {
        Nanos(sectors * self.bus_picos_per_sector / 1000)
    }

    /// The place of a sector.
    ///
    /// # Panics
    /// Past the end of the drive.
    pub fn locate(&self, lba: Lba) -> Spot {
        self.mechanics.geometry.locate(lba)
    }

    /// The track that a sector is on.
    ///
    /// # Panics
    /// Past the end of the drive.
    pub fn track_at(&self, lba: Lba) -> Track {
        self.mechanics.geometry.track_at(lba)
    }

    /// How long after `at` the sector's start comes under the heads, if they are on its track.
    ///
    /// # Panics
    /// Past the end of the drive.
    pub fn rotation_to(&self, lba: Lba, at: Nanos) -> Nanos {
        Nanos(self.mechanics.geometry.rotation_to(&self.locate(lba), at))
    }
}

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct DriveFile {
    name: String,
    description: String,
    rpm: f64,
    heads: u32,
    #[serde(default = "one")]
    queue_depth: usize,
    #[serde(default = "sector_bytes")]
    logical_block_bytes: u32,
    #[serde(default = "sector_bytes")]
    physical_block_bytes: u32,
    bus_mb_per_s: f64,
    head_switch_ms: f64,
    write_settle_ms: f64,
    write_settle_track_ms: Option<f64>,
    /// Distance in cylinders, time in ms.
    seek_ms: Vec<(u32, f64)>,
    /// Cylinders, sectors per track, track skew, cylinder skew (both in sectors).
    zones: Vec<(u32, u32, u32, u32)>,
    overhead_ms: OverheadFile,
    cache: Option<CacheFile>,
}

/// Each after a read and after a write.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct OverheadFile {
    read_hit: (f64, f64),
    read: (f64, f64),
    write: (f64, f64),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct CacheFile {
    segments: usize,
    segment_sectors: u64,
    read_ahead_sectors: u64,
    write_segments: usize,
    #[serde(default)]
    resume_on_hit: bool,
}

const fn one() -> usize {
    1
}

const fn sector_bytes() -> u32 {
    SECTOR_BYTES as u32
}

impl DriveFile {
    fn into_drive(self) -> Result<Drive, DriveError> {
        if !(100.0..=100_000.0).contains(&self.rpm) {
            return Err(wrong("rpm", format!("{} revolutions per minute", self.rpm), "write 100 to 100000"));
        }
        if !(0.01..=100_000.0).contains(&self.bus_mb_per_s) {
            let problem = format!("{} MB/s", self.bus_mb_per_s);
            return Err(wrong("bus-mb-per-s", problem, "write 0.01 to 100000 (1 MB is 1000000 bytes)"));
        }
        between("heads", u64::from(self.heads), 1, u64::from(HEADS_MAX))?;
        between("queue-depth", self.queue_depth as u64, 1, QUEUE_DEPTH_MAX as u64)?;
        block_bytes("logical-block-bytes", self.logical_block_bytes)?;
        block_bytes("physical-block-bytes", self.physical_block_bytes)?;
        let revolution = Nanos((60e9 / self.rpm).round() as u64);
        let shapes = self.zone_shapes()?;
        let write_settle = time("write-settle-ms", self.write_settle_ms)?;
        let write_settle_track = match self.write_settle_track_ms {
            Some(ms) => time("write-settle-track-ms", ms)?,
            None => write_settle,
        };
        let mechanics = Mechanics {
            geometry: Geometry::new(revolution, self.heads, &shapes),
            seek: self.seek_curve()?,
            head_switch: time("head-switch-ms", self.head_switch_ms)?.0,
            write_settle: write_settle.0,
            write_settle_track: write_settle_track.0,
        };
        Ok(Drive {
            queue_depth: self.queue_depth,
            logical_block_bytes: self.logical_block_bytes,
            physical_block_bytes: self.physical_block_bytes.max(self.logical_block_bytes),
            bus_picos_per_sector: (SECTOR_BYTES as f64 * 1e6 / self.bus_mb_per_s).round() as u64,
            overhead: self.overhead_ms.read()?,
            cache: CacheFile::read(self.cache.as_ref())?,
            mechanics,
            name: self.name,
            description: self.description,
        })
    }

    fn zone_shapes(&self) -> Result<Vec<ZoneShape>, DriveError> {
        if self.zones.is_empty() {
            return Err(wrong("zones", "the list is empty", "write at least one zone"));
        }
        let mut total: u64 = 0;
        let mut shapes = Vec::with_capacity(self.zones.len());
        for (index, &(cylinders, sectors_per_track, track_skew, cylinder_skew)) in
            self.zones.iter().enumerate()
        {
            let field = format!("zones[{index}]");
            between(&format!("{field}, cylinders"), u64::from(cylinders), 1, u64::from(CYLINDERS_MAX))?;
            let per_track = u64::from(sectors_per_track);
            between(&format!("{field}, sectors per track"), per_track, 1, u64::from(SECTORS_PER_TRACK_MAX))?;
            between(&format!("{field}, track skew"), u64::from(track_skew), 0, per_track - 1)?;
            between(&format!("{field}, cylinder skew"), u64::from(cylinder_skew), 0, per_track - 1)?;
            total += u64::from(cylinders);
            shapes.push(ZoneShape { cylinders, sectors_per_track, track_skew, cylinder_skew });
        }
        between("zones, cylinders of all together", total, 1, u64::from(CYLINDERS_MAX))?;
        Ok(shapes)
    }

    fn seek_curve(&self) -> Result<SeekCurve, DriveError> {
        let mut points = Vec::with_capacity(self.seek_ms.len());
        let mut last = 0;
        for (index, &(distance, ms)) in self.seek_ms.iter().enumerate() {
            let field = format!("seek-ms[{index}]");
            if distance <= last {
                let problem = format!("a distance of {distance} cylinders after one of {last}");
                return Err(wrong(field, problem, "write distances that rise, from 1 on"));
            }
            last = distance;
            points.push((distance, time(&field, ms)?));
        }
        match points.first() {
            Some((1, _)) => Ok(SeekCurve::new(points)),
            _ => Err(wrong("seek-ms", "there is no time for one cylinder", "begin with [1, ms]")),
        }
    }
}

impl OverheadFile {
    fn read(&self) -> Result<Overheads, DriveError> {
        let both = |name: &str, (after_read, after_write): (f64, f64)| {
            let field = format!("overhead-ms, {name}");
            Ok(Overhead { after_read: time(&field, after_read)?, after_write: time(&field, after_write)? })
        };
        Ok(Overheads {
            read_hit: both("read-hit", self.read_hit)?,
            read: both("read", self.read)?,
            write: both("write", self.write)?,
        })
    }
}

impl CacheFile {
    fn read(file: Option<&CacheFile>) -> Result<CacheShape, DriveError> {
        let Some(file) = file else {
            return Ok(CacheShape {
                segments: 0,
                segment_sectors: 0,
                read_ahead_sectors: 0,
                write_segments: 0,
                resume_on_hit: false,
            });
        };
        between("cache, segments", file.segments as u64, 1, SEGMENTS_MAX as u64)?;
        between("cache, segment-sectors", file.segment_sectors, 1, SEGMENT_SECTORS_MAX)?;
        between("cache, read-ahead-sectors", file.read_ahead_sectors, 0, file.segment_sectors)?;
        between("cache, write-segments", file.write_segments as u64, 0, file.segments as u64)?;
        Ok(CacheShape {
            segments: file.segments,
            segment_sectors: file.segment_sectors,
            read_ahead_sectors: file.read_ahead_sectors,
            write_segments: file.write_segments,
            resume_on_hit: file.resume_on_hit,
        })
    }
}

fn between(field: &str, value: u64, min: u64, max: u64) -> Result<(), DriveError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(wrong(field, format!("the value is {value}"), format!("write {min} to {max}")))
}

fn block_bytes(field: &str, bytes: u32) -> Result<(), DriveError> {
    match bytes {
        512 | 4096 => Ok(()),
        _ => Err(wrong(field, format!("blocks of {bytes} bytes"), "write 512 or 4096")),
    }
}

fn time(field: &str, ms: f64) -> Result<Nanos, DriveError> {
    if (0.0..=TIME_MS_MAX).contains(&ms) {
        return Ok(Nanos((ms * 1e6).round() as u64));
    }
    Err(wrong(field, format!("a time of {ms} ms"), format!("write 0 to {TIME_MS_MAX} milliseconds")))
}
