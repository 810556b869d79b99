//! The kinds of stack files that come from here; and the kind "disk", a modelled disk over a device that holds its data.

use std::path::Path;
use std::sync::Arc;

use crate::write_cache::{DiskMap, RegionUnit};
use dcd_engine::{Layer, SECTOR_BYTES};
use dcd_stack::{Below, Fields, RegisteredKind, RegisteredLayer, Role, StackFileError};

use crate::{AnyDrive, Disk, DiskConfig, SolidDisk, disk_map};

const KIND: RegisteredKind = RegisteredKind { word: "disk", on_several: false, read, reference: REFERENCE };

/// Makes the kinds "disk" and "write-cache" known to stack files.
pub fn register_kinds() {
    dcd_stack::register(KIND);
    dcd_stack::register(crate::write_cache::KIND);
}

/// A modelled disk, with its drive as the file changes it.
#[derive(Debug)]
pub(crate) struct ModelledDisk {
    drive: AnyDrive,
    config: DiskConfig,
}

impl ModelledDisk {
    /// Returns the regions that a write cache above destages together, and the arm that it sees, if the drive has one.
    pub(crate) fn map(&self, unit: RegionUnit) -> Option<DiskMap> {
        self.drive.rotating().map(|drive| disk_map(drive, unit))
    }
}

impl RegisteredLayer for ModelledDisk {
    fn make(&self, below: &[Below<'_>]) -> (Box<dyn Layer>, u64) {
        let sectors = self.config.size.map_or(below[0].sectors, |bytes| bytes / SECTOR_BYTES);
        let layer: Box<dyn Layer> = match self.drive.clone() {
            AnyDrive::Rotating(drive) => Box::new(Disk::with_drive(*drive, &self.config)),
            AnyDrive::Solid(solid) => Box::new(SolidDisk::new(solid, self.config.size)),
        };
        (layer, sectors)
    }

    fn role(&self) -> Role {
        Role::ModelledDisk
    }
}

fn read(fields: &mut Fields<'_>, dir: &Path) -> Result<Arc<dyn RegisteredLayer>, StackFileError> {
    let d = DiskConfig::default();
    let drive = fields.required_text("drive", &d.drive)?;
    let config = DiskConfig {
        drive: drive.text.clone(),
        size: fields.size("size")?,
        queue: fields.word("queue")?.unwrap_or(d.queue),
        queue_depth: fields.number_in("queue-depth", 1..=4096)?.map(|n| n as usize),
        write_cache: fields.word("write-cache")?.unwrap_or(d.write_cache),
        write_back: fields.word("write-back")?,
        segments: fields.number_in("segments", 1..=4096)?.map(|n| n as usize),
        segment_bytes: fields.size("segment-size")?,
        read_ahead: fields.word("read-ahead")?,
        bus: fields.size("bus")?,
    };
    let named = AnyDrive::open(&drive.text, &dir.join(&drive.text))
        .map_err(|why| fields.error(fields.value_span("drive"), format!("\"drive\": {why}")))?;
    let drive = match named {
        AnyDrive::Rotating(named) => {
            AnyDrive::Rotating(Box::new(config.change(*named).map_err(|why| fields.error_here(why))?))
        }
        AnyDrive::Solid(_)
            if config != (DiskConfig { drive: config.drive.clone(), size: config.size, ..d }) =>
        {
            return Err(fields.error_here(format!(
                "the drive \"{}\" does not rotate, and has no such option: only \"drive\", \"of\" and \"size\" are for it",
                drive.text
            )));
        }
        solid @ AnyDrive::Solid(_) => solid,
    };
    Ok(Arc::new(ModelledDisk { drive, config }))
}

const REFERENCE: &str = r#"[layer.NAME]
kind = "disk"               a modelled disk, paced in real time when it is served
of = "NAME"                 where its data is
drive = "NAME"              nearline-2018, ssd-nvme-2020, ebs-gp3 or another that an unknown name
                            lists, or the path of a drive file. Without heads, only size is used
queue = "sptf"              in which order the drive serves what waits: fcfs, sptf,
                            look, c-look, sstf
queue-depth = 32            among how many; left out: as in its drive file
size = "4GiB"               how much of the drive is used; left out: all that is below
write-cache = "off"         which writes are answered from the drive's buffer, and lost in a
                            power cut before a flush: off, on (those without FUA),
                            ignores-fua (all)
write-back = "deferred"     when cached writes go to the medium: on-arrival, or deferred to a
                            quiet moment; left out: as in its drive file
segments = 10               the drive's buffer; left out: as in its drive file
segment-size = "187KiB"
read-ahead = "segment"      none, track, next-track, segment
bus = "80MB"                bytes a second to and from the host
"#;
