//! Drive files: one TOML file for each drive, every number with its source in a comment.
//!
//! A file is read once and checked whole; what is wrong is told with the field, the problem, and what to write instead.
//! Times are milliseconds, as in data sheets, and lengths are sectors of 512 bytes.

use dcd_engine::{Extent, Nanos, SECTOR_BYTES};
use serde::Deserialize;

use crate::cache::{CacheShape, ReadAhead};
use crate::drive::{Drive, DriveError, Overhead, Overheads};
use crate::geometry::{Geometry, Layout, ZoneShape};
use crate::mechanics::Mechanics;
use crate::seek::SeekCurve;
use crate::shingles::ShinglesShape;
use crate::write_back::{DestageOrder, WriteBackKind, WriteBackShape};

/// Bounds that no drive comes near, so that no sum of times or sectors can overflow.
const TIME_MS_MAX: f64 = 4_000.0;
const CYLINDERS_MAX: u32 = 10_000_000;
const HEADS_MAX: u32 = 256;
const SECTORS_PER_TRACK_MAX: u32 = 100_000;
const QUEUE_DEPTH_MAX: usize = 4096;
const SEGMENTS_MAX: usize = 4096;
const ENTRIES_MAX: u64 = 1 << 24;
const SEGMENT_SECTORS_MAX: u64 = 1 << 24;

fn wrong(field: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) -> DriveError {
    DriveError::Field { field: field.into(), problem: problem.into(), remedy: remedy.into() }
}

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct DriveFile {
    name: String,
    description: String,
    rpm: f64,
    heads: u32,
    /// The capacity, where it is less than what the zones hold.
    sectors: Option<u64>,
    #[serde(default = "one")]
    queue_depth: usize,
    #[serde(default = "sector_bytes")]
    logical_block_bytes: u32,
    #[serde(default = "sector_bytes")]
    physical_block_bytes: u32,
    bus_mb_per_s: f64,
    /// How long the drive takes in a command, and sets out for no other.
    #[serde(default)]
    receive_ms: f64,
    head_switch_ms: f64,
    write_settle_ms: f64,
    write_settle_track_ms: Option<f64>,
    /// Distance in cylinders, time in ms.
    seek_ms: Vec<(u32, f64)>,
    #[serde(default)]
    layout: LayoutFile,
    /// Cylinders, sectors per track, track skew, cylinder skew (both in sectors).
    zones: Vec<(u32, u32, u32, u32)>,
    overhead_ms: OverheadFile,
    cache: Option<CacheFile>,
    write_back: Option<WriteBackFile>,
    shingles: Option<ShinglesFile>,
}

/// How LBAs run through the zones. Without it: head by head, no spares, the zones one behind the other.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
struct LayoutFile {
    serpentine: bool,
    zones_start_at_index: bool,
    gap_cylinders: u32,
    /// The cylinders that share their spares; those of a zone, if absent.
    spare_range_cylinders: u32,
    /// For each zone: the spare sectors at the end of each range.
    spares: Vec<u32>,
    /// The zone, and the LBAs (from its first) where a bad sector was slipped over.
    slips: Vec<(usize, Vec<u64>)>,
}

/// Each after a read and after a write.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct OverheadFile {
    read_hit: (f64, f64),
    read: (f64, f64),
    /// That of `write`, if absent.
    write_hit: Option<(f64, f64)>,
    write: (f64, f64),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct CacheFile {
    segments: usize,
    segment_sectors: u64,
    #[serde(default)]
    read_ahead: ReadAhead,
    read_ahead_sectors: u64,
    write_segments: usize,
    #[serde(default)]
    resume_on_hit: bool,
    #[serde(default)]
    keep_passing_sectors: bool,
    #[serde(default)]
    zero_latency_reads: bool,
}

/// What the drive does when its write cache is on.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WriteBackFile {
    kind: WriteBackKind,
    sectors: u64,
    #[serde(default = "one")]
    runs: usize,
    #[serde(default)]
    order: DestageOrder,
    #[serde(default)]
    idle_ms: f64,
}

/// Shingled bands, managed by the drive. The last zone holds the persistent cache; it is the outermost one of the disk.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct ShinglesFile {
    band_sectors: u64,
    entries: usize,
    idle_ms: f64,
}

const fn one() -> usize {
    1
}

const fn sector_bytes() -> u32 {
    SECTOR_BYTES as u32
}

impl DriveFile {
    pub fn parse(text: &str) -> Result<DriveFile, DriveError> {
        toml::from_str(text).map_err(|e| DriveError::Syntax(e.to_string()))
    }

    pub fn into_drive(self) -> Result<Drive, DriveError> {
        if !(100.0..=100_000.0).contains(&self.rpm) {
            return Err(wrong("rpm", format!("{} revolutions per minute", self.rpm), "write 100 to 100000"));
        }
        between("heads", u64::from(self.heads), 1, u64::from(HEADS_MAX))?;
        check_queue_depth(self.queue_depth)?;
        block_bytes("logical-block-bytes", self.logical_block_bytes)?;
        block_bytes("physical-block-bytes", self.physical_block_bytes)?;
        let cache = self.cache.as_ref().map_or(Ok(CacheShape::default()), CacheFile::read)?;
        let write_back =
            self.write_back.as_ref().map_or(Ok(WriteBackShape::default()), WriteBackFile::read)?;
        let mechanics = self.mechanics()?;
        let shingles = self.shingles.as_ref().map(|file| file.read(&mechanics.geometry)).transpose()?;
        Ok(Drive {
            shingles,
            queue_depth: self.queue_depth,
            logical_block_bytes: self.logical_block_bytes,
            physical_block_bytes: self.physical_block_bytes.max(self.logical_block_bytes),
            bus_picos_per_sector: bus_picos(self.bus_mb_per_s)?,
            receive: time("receive-ms", self.receive_ms)?,
            overhead: self.overhead_ms.read()?,
            cache,
            write_back,
            mechanics,
            name: self.name,
            description: self.description,
        })
    }

    fn mechanics(&self) -> Result<Mechanics, DriveError> {
        let geometry = self.geometry()?;
        let write_settle = time("write-settle-ms", self.write_settle_ms)?;
        let write_settle_track = match self.write_settle_track_ms {
            Some(ms) => time("write-settle-track-ms", ms)?,
            None => write_settle,
        };
        Ok(Mechanics {
            seek: self.seek_curve(geometry.cylinders())?,
            geometry,
            head_switch: time("head-switch-ms", self.head_switch_ms)?.0,
            write_settle: write_settle.0,
            write_settle_track: write_settle_track.0,
        })
    }

    fn geometry(&self) -> Result<Geometry, DriveError> {
        let shapes = self.zone_shapes()?;
        let layout = Layout {
            serpentine: self.layout.serpentine,
            zones_start_at_index: self.layout.zones_start_at_index,
            gap_cylinders: self.layout.gap_cylinders,
            spare_range_cylinders: self.layout.spare_range_cylinders,
            last_zone_outermost: self.shingles.is_some(),
            sectors: None,
        };
        let revolution = Nanos((60e9 / self.rpm).round() as u64);
        let geometry = Geometry::new(revolution, self.heads, layout, &shapes);
        let Some(sectors) = self.sectors else { return Ok(geometry) };
        between("sectors", sectors, 1, geometry.sectors())?;
        Ok(Geometry::new(revolution, self.heads, Layout { sectors: Some(sectors), ..layout }, &shapes))
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
            total += u64::from(cylinders) + u64::from(self.layout.gap_cylinders);
            let spares = self.layout.spares.get(index).copied().unwrap_or(0);
            let range = match self.layout.spare_range_cylinders {
                0 => cylinders,
                range => range.min(cylinders),
            };
            let (tracks, rest) = (u64::from(self.heads), cylinders % range);
            let smallest = u64::from(if rest == 0 { range } else { rest }) * tracks * per_track;
            between(&format!("layout, spares[{index}]"), u64::from(spares), 0, smallest - 1)?;
            let slips = self.slips(index, u64::from(range) * tracks * per_track, spares)?;
            shapes.push(ZoneShape { cylinders, sectors_per_track, track_skew, cylinder_skew, spares, slips });
        }
        between("zones, cylinders of all together", total, 1, u64::from(CYLINDERS_MAX))?;
        Ok(shapes)
    }

    /// The slips of a zone, sorted; a range has at most as many as it has spares.
    fn slips(&self, zone: usize, range_places: u64, spares: u32) -> Result<Vec<u64>, DriveError> {
        let of_zone = self.layout.slips.iter().filter(|(index, _)| *index == zone);
        let mut slips: Vec<u64> = of_zone.flat_map(|(_, slips)| slips.iter().copied()).collect();
        slips.sort_unstable();
        let range_sectors = range_places - u64::from(spares);
        for range in slips.chunk_by(|a, b| a / range_sectors == b / range_sectors) {
            let field = format!("layout, slips of zone {zone} from {} on", range[0]);
            between(&field, range.len() as u64, 0, u64::from(spares))?;
        }
        Ok(slips)
    }

    fn seek_curve(&self, cylinders: u32) -> Result<SeekCurve, DriveError> {
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
            Some((1, _)) => Ok(SeekCurve::new(cylinders, points)),
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
            write_hit: both("write-hit", self.write_hit.unwrap_or(self.write))?,
            write: both("write", self.write)?,
        })
    }
}

impl CacheFile {
    fn read(&self) -> Result<CacheShape, DriveError> {
        check_segments(self.segments, self.segment_sectors)?;
        between("cache, read-ahead-sectors", self.read_ahead_sectors, 0, self.segment_sectors)?;
        check_write_segments(self.write_segments, self.segments)?;
        Ok(CacheShape {
            segments: self.segments,
            segment_sectors: self.segment_sectors,
            read_ahead: self.read_ahead,
            read_ahead_sectors: self.read_ahead_sectors,
            write_segments: self.write_segments,
            resume_on_hit: self.resume_on_hit,
            keep_passing: self.keep_passing_sectors,
            any_order: self.zero_latency_reads,
        })
    }
}

impl ShinglesFile {
    fn read(&self, geometry: &Geometry) -> Result<ShinglesShape, DriveError> {
        let cache = match geometry.zones() {
            [_, .., last] => last.first_lba,
            _ => return Err(wrong("zones", "there is one", "write one more for the persistent cache")),
        };
        // The spare band is at the end of the cache's tracks.
        let room = (geometry.sectors() - cache.0).saturating_sub(self.band_sectors);
        between("shingles, band-sectors", self.band_sectors, 1, (geometry.sectors() - cache.0) / 2)?;
        between("shingles, entries", self.entries as u64, 8, ENTRIES_MAX)?;
        Ok(ShinglesShape {
            band_sectors: self.band_sectors,
            cache: Extent::new(cache, room),
            entries: self.entries,
            idle: time("shingles, idle-ms", self.idle_ms)?,
        })
    }
}

impl WriteBackFile {
    fn read(&self) -> Result<WriteBackShape, DriveError> {
        between("write-back, sectors", self.sectors, 1, SEGMENT_SECTORS_MAX)?;
        between("write-back, runs", self.runs as u64, 1, SEGMENTS_MAX as u64)?;
        Ok(WriteBackShape {
            kind: self.kind,
            sectors: self.sectors,
            runs: self.runs,
            order: self.order,
            idle: time("write-back, idle-ms", self.idle_ms)?,
        })
    }
}

/// The time of one sector on a bus.
pub(crate) fn bus_picos(mb_per_s: f64) -> Result<u64, DriveError> {
    if !(0.01..=100_000.0).contains(&mb_per_s) {
        let problem = format!("{mb_per_s} MB/s");
        return Err(wrong("bus-mb-per-s", problem, "write 0.01 to 100000 (1 MB is 1000000 bytes)"));
    }
    Ok((SECTOR_BYTES as f64 * 1e6 / mb_per_s).round() as u64)
}

pub(crate) fn check_queue_depth(depth: usize) -> Result<(), DriveError> {
    between("queue-depth", depth as u64, 1, QUEUE_DEPTH_MAX as u64)
}

pub(crate) fn check_segments(segments: usize, sectors: u64) -> Result<(), DriveError> {
    between("cache, segments", segments as u64, 1, SEGMENTS_MAX as u64)?;
    between("cache, segment-sectors", sectors, 1, SEGMENT_SECTORS_MAX)
}

pub(crate) fn check_write_segments(segments: usize, all: usize) -> Result<(), DriveError> {
    between("cache, write-segments", segments as u64, 0, all as u64)
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
