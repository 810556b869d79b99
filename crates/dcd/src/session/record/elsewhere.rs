//! Finds the caches of the same medium that were attached under another offset: to a partition or its disk, or to a loop device that begins
//! elsewhere in the same file. Each has a record of its own, and two caches of one sector overwrite each other's data.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use dcd_engine::SECTOR_BYTES;
use dcd_engine::log_cache::format::LogSuperblock;

use super::identity::number_text;
use super::mark::offset_of;
use super::place::{
    BlockDisk, FileDisk, RecordLocation, file_of, offset_beside, place, records_in, state_dir,
};
use super::store::{RecordError, RecordFile};
use super::udev::Partition;
use super::{Attachment, AttachmentState, uuid_text};

/// Returns the attachments of the medium of `device` from other records than its own, at the sectors that they have on `device`.
///
/// # Errors
/// If one of those records cannot be understood: the device may have its cache.
pub fn attachments_elsewhere(device: &Path) -> Result<Vec<Attachment>, RecordError> {
    let place = place(device).map_err(|source| RecordError::Io {
        path: device.to_owned(),
        action: "finding",
        source,
    })?;
    let mut all = Vec::new();
    match place {
        RecordLocation::Export(_) => {}
        RecordLocation::File(own) => {
            for offset in offsets(&own).into_iter().filter(|offset| *offset != own.offset) {
                let record = RecordFile::of_file(FileDisk::new(own.file.clone(), offset))?;
                all.extend(shifted(&record, sectors(offset) - sectors(own.offset))?);
            }
        }
        RecordLocation::InStateDir(own) if own.all_paths().is_empty() => {}
        RecordLocation::InStateDir(own) => all = of_block(&own)?,
    }
    Ok(all)
}

/// The attachments of a partition's disk, and of the partitions of a disk.
fn of_block(own: &BlockDisk) -> Result<Vec<Attachment>, RecordError> {
    let mut all = Vec::new();
    if let Some(Partition { disk, number, extent }) = Partition::of(&own.system, own.number) {
        let disk = BlockDisk::new(disk, number, own.state_dir.clone(), own.system.clone());
        all.extend(shifted(&RecordFile::of_block(disk)?, -(extent.start.0 as i64))?);
    }
    for part in partitions(own) {
        if let Some(Partition { extent, .. }) = Partition::of(&own.system, part.number) {
            all.extend(shifted(&RecordFile::of_block(part)?, extent.start.0 as i64)?);
        }
    }
    Ok(all)
}

/// Finds the record in the state directory that gives a place in the log of a cache to another disk. Records beside files are not found.
pub fn record_of_disk(log: &LogSuperblock, disk: usize) -> Option<PathBuf> {
    records_in(&state_dir()).into_iter().find(|record| gives_place(record, log, disk))
}

/// Finds another disk of this machine that has a place in the log of a cache, by its record: `device`, which has no record, may be a copy of
/// it. Of a file, only the others in its directory are found.
pub fn original_of(device: &Path, log: &LogSuperblock, disk: usize) -> Option<PathBuf> {
    match place(device).ok()? {
        RecordLocation::Export(_) => None,
        RecordLocation::File(own) => {
            let records =
                records_in(own.file.parent()?).into_iter().filter(|record| gives_place(record, log, disk));
            let number = |file: &Path| fs::metadata(file).ok().map(|found| (found.dev(), found.ino()));
            let own = number(&own.file);
            records
                .filter_map(|record| file_of(&record))
                .find(|file| number(file).is_some_and(|other| Some(other) != own))
        }
        RecordLocation::InStateDir(own) => {
            let is_there = |record: &PathBuf| RecordFile::at(record.clone()).is_of_another(&own);
            records_in(&own.state_dir)
                .into_iter()
                .find(|record| gives_place(record, log, disk) && is_there(record))
        }
    }
}

/// True for a record with a place in the log of a cache. One that cannot be read refuses its own disk.
fn gives_place(record: &Path, log: &LogSuperblock, disk: usize) -> bool {
    let (cache, id) = (uuid_text(log.cache_uuid), uuid_text(log.uuid_of(disk)));
    let is_it = |own: &Attachment| {
        let is_disk = match &own.disk_uuid {
            Some(known) => *known == id,
            None => own.disk == disk,
        };
        own.cache_uuid == cache && is_disk && own.state != AttachmentState::Abandoned
    };
    RecordFile::at(record.to_owned()).load().is_ok_and(|all| all.0.iter().any(is_it))
}

/// The partitions of a whole disk.
fn partitions(disk: &BlockDisk) -> Vec<BlockDisk> {
    let folder = disk.system.sysfs.join(number_text(disk.number));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let found = entries.filter(|entry| entry.path().join("partition").exists()).filter_map(|entry| {
        let (device, number) = disk.system.node(&entry.path())?;
        Some(BlockDisk::new(device, number, disk.state_dir.clone(), disk.system.clone()))
    });
    found.collect()
}

/// The bytes of a file at which disks with a record begin: by the records beside it, and by its marks.
fn offsets(own: &FileDisk) -> BTreeSet<u64> {
    let beside = fs::read_dir(own.file.parent().unwrap_or(Path::new("/"))).into_iter().flatten().flatten();
    let mut all: BTreeSet<u64> =
        beside.filter_map(|entry| offset_beside(&own.file, &entry.file_name())).collect();
    let names = File::open(&own.file).and_then(|file| dcd_io::mark_names(&file)).unwrap_or_default();
    all.extend(names.iter().map(CString::as_c_str).filter_map(offset_of));
    all
}

const fn sectors(bytes: u64) -> i64 {
    (bytes / SECTOR_BYTES) as i64
}

/// The attachments in use of another record, whose disk begins so many sectors behind the device. What lies before the device is left out.
fn shifted(record: &RecordFile, by: i64) -> Result<Vec<Attachment>, RecordError> {
    let in_use = record.load()?.0.into_iter().filter(|other| other.state != AttachmentState::Abandoned);
    let here = in_use.filter_map(|other| {
        let first = other.first_sector as i64 + by;
        let end = u64::try_from(first + other.sectors as i64).ok().filter(|end| *end > 0)?;
        let first_sector = first.max(0) as u64;
        Some(Attachment { first_sector, sectors: end - first_sector, elsewhere: true, ..other })
    });
    Ok(here.collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use dcd_engine::{Extent, Lba};

    use super::super::Attachments;
    use super::super::identity::tests::Fake;
    use super::super::rules;
    use super::*;

    /// A disk with a partition at sector 2048 and one at sector 10240, of 8192 sectors each, as sysfs shows them, and another disk.
    fn with_partitions() -> Fake {
        let fake = Fake::new();
        let sda = fake.dir.path().join("devices/sda");
        let made = |name: &str, text: &str| {
            let path: PathBuf = sda.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        };
        for (name, text) in [("dev", "8:0"), ("serial", "S1"), ("queue/dev", "no device")] {
            made(name, text);
        }
        for (part, start) in [(1, "2048"), (2, "10240")] {
            let texts = [("partition", part.to_string()), ("dev", format!("8:{part}"))];
            let sizes = [("start", start.to_owned()), ("size", "8192".to_owned())];
            texts.into_iter().chain(sizes).for_each(|(name, text)| made(&format!("sda{part}/{name}"), &text));
            symlink(sda.join(format!("sda{part}")), fake.system.sysfs.join(format!("8:{part}"))).unwrap();
        }
        symlink(&sda, fake.system.sysfs.join("8:0")).unwrap();
        fake.numbered(8 << 8 | 16, "sdb");
        ["sda", "sda1", "sda2", "sdb"].iter().for_each(|name| fake.disk(name, None));
        fake
    }

    fn block(fake: &Fake, name: &str, minor: u64) -> BlockDisk {
        let state_dir = fake.dir.path().join("state");
        BlockDisk::new(fake.device(name), 8 << 8 | minor, state_dir, fake.system.clone())
    }

    /// Makes a record of a cache over sectors of a device, and returns what each device has elsewhere.
    fn seen(name: &str, minor: u64, extent: Extent) -> Vec<Vec<Extent>> {
        let fake = with_partitions();
        let own = rules::tests::attachment(AttachmentState::Dirty, extent);
        RecordFile::of_block(block(&fake, name, minor)).unwrap().store(&Attachments(vec![own])).unwrap();
        let of = |(name, minor)| of_block(&block(&fake, name, minor)).unwrap();
        let all = [("sda", 0), ("sda1", 1), ("sda2", 2), ("sdb", 16)].map(of);
        assert!(all.iter().flatten().all(|attachment| attachment.elsewhere));
        all.iter().map(|found| found.iter().map(Attachment::extent).collect()).collect()
    }

    fn at(start: u64, sectors: u64) -> Extent {
        Extent::new(Lba(start), sectors)
    }

    #[test]
    fn a_cache_of_a_partition_is_found_on_its_disk_and_one_of_the_disk_on_its_partitions() {
        assert_eq!(seen("sda1", 1, at(0, 8192)), [vec![at(2048, 8192)], vec![], vec![], vec![]]);
        assert_eq!(seen("sda2", 2, at(8, 16)), [vec![at(10248, 16)], vec![], vec![], vec![]]);
        // What lies before a partition is not on it.
        let whole = [vec![], vec![at(0, 16_384 - 2048)], vec![at(0, 16_384 - 10_240)], vec![]];
        assert_eq!(seen("sda", 0, at(0, 16_384)), whole);
        assert_eq!(seen("sda", 0, at(0, 4096)), [vec![], vec![at(0, 2048)], vec![], vec![]]);
        assert_eq!(seen("sdb", 16, at(0, 8192)), vec![Vec::<Extent>::new(); 4]);
    }

    #[test]
    fn a_record_that_cannot_be_understood_is_an_error_for_the_disk_and_its_partitions() {
        let fake = with_partitions();
        let of_part = RecordFile::of_block(block(&fake, "sda1", 1)).unwrap();
        of_part
            .store(&Attachments(vec![rules::tests::attachment(AttachmentState::Dirty, at(0, 8))]))
            .unwrap();
        let path = block(&fake, "sda1", 1).all_paths().swap_remove(0);
        fs::write(path, "{").unwrap();
        assert!(of_block(&block(&fake, "sda", 0)).is_err());
    }
}
