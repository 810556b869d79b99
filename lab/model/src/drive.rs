//! A drive: a data sheet, checked and ready for use, and the list of those that are always there.
//!
//! To add a drive: put its file beside the others in `drives/`, each number with its source, and list it in `ROTATING` or `SOLID`.
//! `drive_file.rs` reads the files.

use std::path::{Path, PathBuf};

use dcd_engine::{Lba, Nanos, SECTOR_BYTES};

use crate::cache::{CacheShape, ReadAhead};
use crate::controller::Access;
use crate::drive_file::DriveFile;
use crate::geometry::{Spot, Track, Zone};
use crate::mechanics::Mechanics;
use crate::phases::BusPhases;
use crate::shingles::ShinglesShape;
use crate::solid::Solid;
use crate::solid_file::SolidFile;
use crate::write_back::{DestageOrder, WriteBackKind, WriteBackShape};

/// The drives that are always there, by name: those with heads, and those without.
const ROTATING: &[(&str, &str)] = &[
    ("atlas-10k", include_str!("../drives/atlas-10k.toml")),
    ("atlas-iii", include_str!("../drives/atlas-iii.toml")),
    ("barracuda-1996", include_str!("../drives/barracuda-1996.toml")),
    ("barracuda-st32171w", include_str!("../drives/barracuda-st32171w.toml")),
    ("cheetah-15k4", include_str!("../drives/cheetah-15k4.toml")),
    ("hp-c2247a", include_str!("../drives/hp-c2247a.toml")),
    ("nearline-2018", include_str!("../drives/nearline-2018.toml")),
    ("ra81", include_str!("../drives/ra81.toml")),
    ("ra82", include_str!("../drives/ra82.toml")),
    ("ra90", include_str!("../drives/ra90.toml")),
    ("smr-2014", include_str!("../drives/smr-2014.toml")),
];
const SOLID: &[(&str, &str)] = &[
    ("ebs-gp2", include_str!("../drives/ebs-gp2.toml")),
    ("ebs-gp3", include_str!("../drives/ebs-gp3.toml")),
    ("gcp-pd-balanced", include_str!("../drives/gcp-pd-balanced.toml")),
    ("ssd-nvme-2020", include_str!("../drives/ssd-nvme-2020.toml")),
    ("ssd-plp-2017", include_str!("../drives/ssd-plp-2017.toml")),
    ("ssd-sata-2021", include_str!("../drives/ssd-sata-2021.toml")),
];

/// The names of the drives that are always there.
pub fn names() -> impl Iterator<Item = &'static str> {
    rotating_names().chain(SOLID.iter().map(|(name, _)| *name))
}

/// The names of those with heads.
pub fn rotating_names() -> impl Iterator<Item = &'static str> {
    ROTATING.iter().map(|(name, _)| *name)
}

/// The drive file of a drive that is always there.
pub fn text(name: &str) -> Option<&'static str> {
    ROTATING.iter().chain(SOLID).find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// A drive with heads that is always there.
pub fn builtin(name: &str) -> Result<Drive, DriveError> {
    open(name, Path::new(""))
}

/// The text of a drive that is always there, or else of the drive file at `path`.
pub fn source(name: &str, path: &Path) -> Result<String, DriveError> {
    if let Some(text) = text(name) {
        return Ok(text.to_owned());
    }
    if !path.exists() {
        return Err(DriveError::Unknown {
            name: name.to_owned(),
            known: names().collect::<Vec<_>>().join(", "),
        });
    }
    std::fs::read_to_string(path)
        .map_err(|error| DriveError::Read { path: path.to_owned(), why: error.to_string() })
}

/// A drive with heads that is always there, or else that of the drive file at `path`.
pub fn open(name: &str, path: &Path) -> Result<Drive, DriveError> {
    Drive::parse(&source(name, path)?)
}

/// Why there is no such drive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriveError {
    #[error("no drive is called \"{name}\": use one of {known}, or the path of a drive file")]
    Unknown { name: String, known: String },
    #[error("{path} cannot be read: {why}")]
    Read { path: PathBuf, why: String },
    /// Not TOML, an unknown field, a missing one, or one of another type: the text shows the line.
    #[error("not a drive file: {0}")]
    Syntax(String),
    #[error("the drive \"{name}\" does not rotate: name one that does, as nearline-2018")]
    NoHeads { name: String },
    #[error("drive file, field `{field}`: {problem}; {remedy}")]
    Field { field: String, problem: String, remedy: String },
}

/// A command overhead that depends on what the drive did before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overhead {
    pub after_read: Nanos,
    pub after_write: Nanos,
}

impl Overhead {
    pub fn after(&self, wrote_last: bool) -> Nanos {
        if wrote_last { self.after_write } else { self.after_read }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overheads {
    pub read_hit: Overhead,
    pub read: Overhead,
    pub write_hit: Overhead,
    pub write: Overhead,
}

impl Overheads {
    /// The overhead of a command that goes to the medium.
    pub fn of(&self, access: Access, wrote_last: bool) -> Nanos {
        match access {
            Access::Read => self.read.after(wrote_last),
            Access::WriteBehind => self.write_hit.after(wrote_last),
            Access::Write | Access::WriteZeroes => self.write.after(wrote_last),
        }
    }
}

/// A data sheet, checked and ready for use.
#[derive(Clone, Debug)]
pub struct Drive {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) queue_depth: usize,
    pub(crate) logical_block_bytes: u32,
    pub(crate) physical_block_bytes: u32,
    pub(crate) bus_picos_per_sector: u64,
    /// Time that the drive needs to receive a command; it begins no other meanwhile.
    pub(crate) receive: Nanos,
    pub(crate) overhead: Overheads,
    pub(crate) phases: BusPhases,
    pub(crate) cache: CacheShape,
    pub(crate) write_back: WriteBackShape,
    pub(crate) shingles: Option<ShinglesShape>,
    pub(crate) mechanics: Mechanics,
}

impl Drive {
    /// Reads a drive file.
    pub fn parse(text: &str) -> Result<Drive, DriveError> {
        match AnyDrive::parse(text)? {
            AnyDrive::Rotating(drive) => Ok(*drive),
            AnyDrive::Solid(solid) => Err(DriveError::NoHeads { name: solid.name }),
        }
    }

    /// Cuts the cache otherwise: so many segments, of so many sectors. (Some drives let their host choose.)
    ///
    /// # Errors
    /// Fails if there would be none, or more than a drive file may have.
    pub fn with_segments(mut self, segments: usize, sectors: u64) -> Result<Drive, DriveError> {
        crate::drive_file::check_segments(segments, sectors)?;
        self.cache.read_ahead_sectors = self.cache.read_ahead_sectors.min(sectors);
        self.cache.write_segments = self.cache.write_segments.min(segments);
        self.cache.segments = segments;
        self.cache.segment_sectors = sectors;
        Ok(self)
    }

    /// Changes the number of segments that keep written data, and in proportion the room for writes that are not on the medium
    /// yet. With 0, a write leaves nothing behind in the cache, nor takes a place there.
    ///
    /// # Errors
    /// Fails if that is more than the cache has.
    pub fn with_write_segments(mut self, segments: usize) -> Result<Drive, DriveError> {
        crate::drive_file::check_write_segments(segments, self.cache.segments)?;
        let own = self.cache.write_segments.max(1) as u64;
        self.write_back.sectors = self.write_back.sectors / own * segments as u64;
        self.cache.write_segments = segments;
        Ok(self)
    }

    /// Lets the cache have as many segments as files are being read (Zhu and Hu, section 5.2.2), unless writes have segments of their
    /// own.
    #[must_use]
    pub fn with_adaptive_segments(mut self) -> Drive {
        self.cache.adaptive = !self.cache.separate_write_segments;
        self
    }

    /// Changes the depth of the queue.
    ///
    /// # Errors
    /// Fails if no drive file may have that depth.
    pub fn with_queue_depth(mut self, depth: usize) -> Result<Drive, DriveError> {
        crate::drive_file::check_queue_depth(depth)?;
        self.queue_depth = depth;
        Ok(self)
    }

    /// Changes the way of reading ahead.
    #[must_use]
    pub fn with_read_ahead(mut self, read_ahead: ReadAhead) -> Drive {
        self.cache.read_ahead = read_ahead;
        self
    }

    /// Changes the kind of write-back; the write buffer keeps its size. The file of a drive that writes on arrival says nothing
    /// of deferred writes. It gets what the other drive files have: the nearest run first, after a rest of a
    /// millisecond, and as many runs as fit.
    #[must_use]
    pub fn with_write_back(mut self, kind: WriteBackKind) -> Drive {
        if self.write_back.kind == WriteBackKind::OnArrival && kind == WriteBackKind::Deferred {
            self.write_back.runs = self.write_back.sectors as usize;
            self.write_back.order = DestageOrder::Nearest;
            self.write_back.idle = Nanos::from_millis(1);
        }
        self.write_back.kind = kind;
        self
    }

    /// Changes the speed of the bus, in bytes a second.
    ///
    /// # Errors
    /// Fails if that is slower or faster than a drive file may say.
    pub fn with_bus(mut self, bytes_per_second: u64) -> Result<Drive, DriveError> {
        self.bus_picos_per_sector = crate::drive_file::bus_picos(bytes_per_second as f64 / 1e6)?;
        Ok(self)
    }

    /// Changes the time from one head to the next.
    pub fn with_head_switch(mut self, time: Nanos) -> Drive {
        self.mechanics.head_switch = time.0;
        self
    }

    /// The number of cache segments, and the sectors in each.
    pub fn segments(&self) -> (usize, u64) {
        (self.cache.segments, self.cache.segment_sectors)
    }

    /// Returns the maximum number of sectors that the drive can have acknowledged and not written, with its write cache on; 0: it has none.
    pub fn write_buffer_sectors(&self) -> u64 {
        self.write_back.sectors
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn description(&self) -> &str {
        &self.description
    }

    /// The capacity in sectors of 512 bytes.
    pub fn sectors(&self) -> u64 {
        self.shingles.map_or(self.mechanics.geometry.sectors(), |shingles| shingles.cache.start.0)
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

    /// Returns the maximum number of commands that the drive knows at a time.
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

    /// Returns the nanoseconds that a write waits longer than a read, after the seek, when the arm has moved by several cylinders;
    /// below zero where it waits less.
    pub fn write_settle(&self) -> i64 {
        self.mechanics.write_settle
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

    /// Returns the time from `at` until the sector's start comes under the heads, if they are on its track.
    ///
    /// # Panics
    /// Past the end of the drive.
    pub fn rotation_to(&self, lba: Lba, at: Nanos) -> Nanos {
        Nanos(self.mechanics.geometry.rotation_to(&self.locate(lba), at))
    }
}

/// A drive with or without heads.
#[derive(Clone, Debug)]
pub enum AnyDrive {
    Rotating(Box<Drive>),
    Solid(Solid),
}

impl AnyDrive {
    /// Reads a drive file. It is of a device without heads if it has `read-ms`.
    pub fn parse(text: &str) -> Result<AnyDrive, DriveError> {
        let syntax = |e: toml::de::Error| DriveError::Syntax(e.to_string());
        if !text.parse::<toml::Table>().map_err(syntax)?.contains_key("read-ms") {
            return Ok(AnyDrive::Rotating(Box::new(DriveFile::parse(text)?.into_drive()?)));
        }
        toml::from_str::<SolidFile>(text).map_err(syntax)?.into_solid().map(AnyDrive::Solid)
    }

    /// A drive that is always there, or else that of the drive file at `path`.
    pub fn open(name: &str, path: &Path) -> Result<AnyDrive, DriveError> {
        AnyDrive::parse(&source(name, path)?)
    }

    /// The drive, if it has heads.
    pub fn rotating(&self) -> Option<&Drive> {
        match self {
            AnyDrive::Rotating(drive) => Some(drive),
            AnyDrive::Solid(_) => None,
        }
    }

    /// The device, if it has none.
    pub fn solid(&self) -> Option<&Solid> {
        match self {
            AnyDrive::Rotating(_) => None,
            AnyDrive::Solid(solid) => Some(solid),
        }
    }

    pub fn name(&self) -> &str {
        match self {
            AnyDrive::Rotating(drive) => &drive.name,
            AnyDrive::Solid(solid) => &solid.name,
        }
    }

    pub fn description(&self) -> &str {
        match self {
            AnyDrive::Rotating(drive) => &drive.description,
            AnyDrive::Solid(solid) => &solid.description,
        }
    }

    /// The capacity in sectors of 512 bytes.
    pub fn sectors(&self) -> u64 {
        match self {
            AnyDrive::Rotating(drive) => drive.sectors(),
            AnyDrive::Solid(solid) => solid.sectors,
        }
    }

    /// Returns the maximum number of commands that the drive knows at a time.
    pub fn queue_depth(&self) -> usize {
        match self {
            AnyDrive::Rotating(drive) => drive.queue_depth,
            AnyDrive::Solid(solid) => solid.queue_depth,
        }
    }

    pub fn logical_block_bytes(&self) -> u32 {
        self.rotating().map_or(SECTOR_BYTES as u32, Drive::logical_block_bytes)
    }
}
