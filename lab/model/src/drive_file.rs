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
use crate::phases::{BusPhases, EarlyDisconnect};
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

pub(crate) fn wrong(
    field: impl Into<String>,
    problem: impl Into<String>,
    remedy: impl Into<String>,
) -> DriveError {
    DriveError::Field { field: field.into(), problem: problem.into(), remedy: remedy.into() }
}

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct DriveFile {
    pub name: String,
    pub description: String,
    pub rpm: f64,
    pub heads: u32,
    /// The capacity, where it is less than what the zones hold.
    pub sectors: Option<u64>,
    #[serde(default = "one")]
    pub queue_depth: usize,
    #[serde(default = "sector_bytes")]
    pub logical_block_bytes: u32,
    #[serde(default = "sector_bytes")]
    pub physical_block_bytes: u32,
    pub bus_mb_per_s: f64,
    /// Time that the drive needs to receive a command; it begins no other meanwhile.
    #[serde(default)]
    pub receive_ms: f64,
    pub head_switch_ms: f64,
    pub write_settle_ms: f64,
    pub write_settle_track_ms: Option<f64>,
    /// Distance in cylinders, time in ms.
    pub seek_ms: Vec<(u32, f64)>,
    /// Cylinders, sectors per track, track skew, cylinder skew (both in sectors).
    pub zones: Vec<(u32, u32, u32, u32)>,
    #[serde(default)]
    pub layout: LayoutFile,
    pub overhead_ms: OverheadFile,
    pub bus_phases: Option<BusPhasesFile>,
    pub cache: Option<CacheFile>,
    pub write_back: Option<WriteBackFile>,
    pub shingles: Option<ShinglesFile>,
}

/// Order of the LBAs in the zones. Without it: head by head, no spares, the zones one behind the other.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct LayoutFile {
    pub serpentine: bool,
    pub zones_start_at_index: bool,
    /// The cylinders without data before each zone.
    pub gap_cylinders: Gaps,
    /// For each zone that starts at the index: which of its sectors is there.
    pub start_sectors: Vec<u32>,
    /// For each zone: the sectors at its front that hold no data of users.
    pub reserved_sectors: Vec<u64>,
    /// The cylinders that share their spares; those of a zone, if absent.
    pub spare_range_cylinders: u32,
    /// Each track has spares of its own.
    pub spares_on_each_track: bool,
    /// For each zone: the spare sectors at the end of each range.
    pub spares: Vec<u32>,
    /// The zone, and the LBAs (from its first) where a bad sector was slipped over.
    pub slips: Vec<(usize, Vec<u64>)>,
    /// The zone, and the tracks (from its first with data) that were slipped over.
    pub slipped_tracks: Vec<(usize, Vec<u64>)>,
}

/// A number between each two zones, or before each zone.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Gaps {
    Between(u32),
    Before(Vec<u32>),
}

impl Default for Gaps {
    fn default() -> Gaps {
        Gaps::Between(0)
    }
}

impl Gaps {
    fn before(&self, zone: usize) -> u32 {
        match self {
            Gaps::Between(cylinders) => {
                if zone == 0 {
                    0
                } else {
                    *cylinders
                }
            }
            Gaps::Before(each) => each.get(zone).copied().unwrap_or(0),
        }
    }
}

/// Each after a read and after a write.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct OverheadFile {
    pub read_hit: (f64, f64),
    pub read: (f64, f64),
    /// That of `write`, if absent.
    pub write_hit: Option<(f64, f64)>,
    pub write: (f64, f64),
}

/// Costs of commands on a bus that the drive gives up meanwhile.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct BusPhasesFile {
    pub high_water_mark: f64,
    pub preparation_ms: f64,
    /// After a read and after a write.
    pub read_disconnect_ms: (f64, f64),
    pub write_disconnect_ms: f64,
    pub reselect_ms: f64,
    pub reselect_again_ms: f64,
    pub read_completion_ms: f64,
    pub write_completion_ms: f64,
    pub write_positioning_min_ms: f64,
    pub early_disconnect: Option<EarlyDisconnectFile>,
}

/// Costs of a write that disconnects before its data is taken.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct EarlyDisconnectFile {
    pub command_ms: f64,
    pub disconnect_ms: f64,
    pub pause_ms: f64,
    pub second_disconnect_ms: f64,
    pub seek_delay_ms: f64,
    /// Sectors that have come before the drive begins to write.
    #[serde(default)]
    pub buffered_sectors: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct CacheFile {
    pub segments: usize,
    pub segment_sectors: u64,
    #[serde(default)]
    pub read_ahead: ReadAhead,
    pub read_ahead_sectors: u64,
    pub write_segments: usize,
    /// They hold nothing else.
    #[serde(default)]
    pub separate_write_segments: bool,
    /// Reading ahead replaces nothing that the request asked for.
    #[serde(default)]
    pub keep_requested: bool,
    #[serde(default)]
    pub resume_on_hit: bool,
    #[serde(default)]
    pub keep_passing_sectors: bool,
    #[serde(default)]
    pub zero_latency_reads: bool,
}

/// Behaviour of the drive while its write cache is on.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct WriteBackFile {
    pub kind: WriteBackKind,
    pub sectors: u64,
    #[serde(default = "one")]
    pub runs: usize,
    #[serde(default)]
    pub order: DestageOrder,
    #[serde(default)]
    pub idle_ms: f64,
}

/// Shingled bands, managed by the drive. The last zone holds the persistent cache; it is the outermost one of the disk.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct ShinglesFile {
    pub band_sectors: u64,
    pub entries: usize,
    pub idle_ms: f64,
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
            phases: self.bus_phases.as_ref().map_or(Ok(BusPhases::default()), BusPhasesFile::read)?,
            cache,
            write_back,
            mechanics,
            name: self.name,
            description: self.description,
        })
    }

    fn mechanics(&self) -> Result<Mechanics, DriveError> {
        let geometry = self.geometry()?;
        let write_settle = signed_time("write-settle-ms", self.write_settle_ms)?;
        let write_settle_track = match self.write_settle_track_ms {
            Some(ms) => signed_time("write-settle-track-ms", ms)?,
            None => write_settle,
        };
        Ok(Mechanics {
            seek: self.seek_curve(geometry.cylinders())?,
            geometry,
            head_switch: time("head-switch-ms", self.head_switch_ms)?.0,
            write_settle,
            write_settle_track,
        })
    }

    fn geometry(&self) -> Result<Geometry, DriveError> {
        let shapes = self.zone_shapes()?;
        let layout = Layout {
            serpentine: self.layout.serpentine,
            zones_start_at_index: self.layout.zones_start_at_index,
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
            let layout = &self.layout;
            let gap_cylinders = layout.gap_cylinders.before(index);
            total += u64::from(cylinders) + u64::from(gap_cylinders);
            let spares = layout.spares.get(index).copied().unwrap_or(0);
            let tracks = u64::from(cylinders) * u64::from(self.heads);
            let range_tracks = match layout.spare_range_cylinders {
                _ if layout.spares_on_each_track => 1,
                0 => tracks,
                range => u64::from(range.min(cylinders)) * u64::from(self.heads),
            };
            let (rest, range_places) = (tracks % range_tracks, range_tracks * per_track);
            let smallest = if rest == 0 { range_tracks } else { rest } * per_track;
            between(&format!("layout, spares[{index}]"), u64::from(spares), 0, smallest - 1)?;
            let holding = tracks * per_track - tracks.div_ceil(range_tracks) * u64::from(spares);
            let reserved = layout.reserved_sectors.get(index).copied().unwrap_or(0);
            between(&format!("layout, reserved-sectors[{index}]"), reserved, 0, holding - 1)?;
            let start_sector = layout.start_sectors.get(index).copied().unwrap_or(0);
            between(&format!("layout, start-sectors[{index}]"), u64::from(start_sector), 0, per_track - 1)?;
            let slips = self.slips(index, range_places, spares, per_track)?;
            shapes.push(ZoneShape {
                cylinders,
                sectors_per_track,
                track_skew,
                cylinder_skew,
                gap_cylinders,
                start_sector,
                reserved,
                range_places,
                spares,
                slips,
            });
        }
        between("zones, cylinders of all together", total, 1, u64::from(CYLINDERS_MAX))?;
        Ok(shapes)
    }

    /// The slips of a zone, sorted; a range has at most as many as it has spares.
    fn slips(
        &self,
        zone: usize,
        range_places: u64,
        spares: u32,
        per_track: u64,
    ) -> Result<Vec<u64>, DriveError> {
        let of_zone = |all: &[(usize, Vec<u64>)]| -> Vec<u64> {
            all.iter()
                .filter(|(index, _)| *index == zone)
                .flat_map(|(_, slips)| slips.iter().copied())
                .collect()
        };
        let mut slips = of_zone(&self.layout.slips);
        let mut tracks = of_zone(&self.layout.slipped_tracks);
        tracks.sort_unstable();
        tracks.dedup();
        between("layout, slipped-tracks", tracks.len() as u64 * per_track, 0, u64::from(spares))?;
        // A track counts the slipped ones before it, too, and a sector does not.
        for (before, track) in (0..).zip(tracks) {
            let first = track.saturating_sub(before).saturating_mul(per_track);
            slips.extend(std::iter::repeat_n(first, per_track as usize));
        }
        // The file counts them from the first address, the geometry from the first place.
        let reserved = self.layout.reserved_sectors.get(zone).copied().unwrap_or(0);
        slips.iter_mut().for_each(|slip| *slip = slip.saturating_add(reserved));
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

impl BusPhasesFile {
    fn read(&self) -> Result<BusPhases, DriveError> {
        let time = |name: &str, ms: f64| time(&format!("bus-phases, {name}"), ms);
        if !(0.0..=1.0).contains(&self.high_water_mark) {
            let problem = format!("the value is {}", self.high_water_mark);
            return Err(wrong("bus-phases, high-water-mark", problem, "write a part of a read, 0 to 1"));
        }
        let early = |early: &EarlyDisconnectFile| -> Result<EarlyDisconnect, DriveError> {
            Ok(EarlyDisconnect {
                command: time("early-disconnect, command-ms", early.command_ms)?,
                disconnect: time("early-disconnect, disconnect-ms", early.disconnect_ms)?,
                pause: time("early-disconnect, pause-ms", early.pause_ms)?,
                second_disconnect: time(
                    "early-disconnect, second-disconnect-ms",
                    early.second_disconnect_ms,
                )?,
                seek_delay: time("early-disconnect, seek-delay-ms", early.seek_delay_ms)?,
                buffered: early.buffered_sectors,
            })
        };
        let (after_read, after_write) = self.read_disconnect_ms;
        Ok(BusPhases {
            high_water: self.high_water_mark,
            preparation: time("preparation-ms", self.preparation_ms)?,
            read_disconnect: Overhead {
                after_read: time("read-disconnect-ms", after_read)?,
                after_write: time("read-disconnect-ms", after_write)?,
            },
            write_disconnect: time("write-disconnect-ms", self.write_disconnect_ms)?,
            reselect: time("reselect-ms", self.reselect_ms)?,
            reselect_again: time("reselect-again-ms", self.reselect_again_ms)?,
            read_completion: time("read-completion-ms", self.read_completion_ms)?,
            write_completion: time("write-completion-ms", self.write_completion_ms)?,
            early: self.early_disconnect.as_ref().map(early).transpose()?,
            write_positioning_min: time("write-positioning-min-ms", self.write_positioning_min_ms)?,
        })
    }
}

impl CacheFile {
    fn read(&self) -> Result<CacheShape, DriveError> {
        check_segments(self.segments, self.segment_sectors)?;
        let most = match self.read_ahead {
            // The segment keeps the newest sectors.
            ReadAhead::Track | ReadAhead::NextTrack => SEGMENT_SECTORS_MAX,
            ReadAhead::None | ReadAhead::Segment => self.segment_sectors,
        };
        between("cache, read-ahead-sectors", self.read_ahead_sectors, 0, most)?;
        check_write_segments(self.write_segments, self.segments)?;
        if self.separate_write_segments {
            let most = self.segments.saturating_sub(1) as u64;
            between("cache, write-segments", self.write_segments as u64, 1, most.max(1))?;
        }
        Ok(CacheShape {
            segments: self.segments,
            segment_sectors: self.segment_sectors,
            adaptive: false,
            read_ahead: self.read_ahead,
            read_ahead_sectors: self.read_ahead_sectors,
            write_segments: self.write_segments,
            separate_write_segments: self.separate_write_segments,
            keep_requested: self.keep_requested,
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

pub(crate) fn between(field: &str, value: u64, min: u64, max: u64) -> Result<(), DriveError> {
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

/// A time that may be below zero.
fn signed_time(field: &str, ms: f64) -> Result<i64, DriveError> {
    if (-TIME_MS_MAX..=TIME_MS_MAX).contains(&ms) {
        return Ok((ms * 1e6).round() as i64);
    }
    Err(wrong(
        field,
        format!("a time of {ms} ms"),
        format!("write -{TIME_MS_MAX} to {TIME_MS_MAX} milliseconds"),
    ))
}

pub(crate) fn time(field: &str, ms: f64) -> Result<Nanos, DriveError> {
    if (0.0..=TIME_MS_MAX).contains(&ms) {
        return Ok(Nanos((ms * 1e6).round() as u64));
    }
    Err(wrong(field, format!("a time of {ms} ms"), format!("write 0 to {TIME_MS_MAX} milliseconds")))
}
