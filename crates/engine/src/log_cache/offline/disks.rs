//! Adds a data disk to a log that is not served, or removes one.
//!
//! A single superblock adds the disk, or removes it: a crash before leaves the log as it was. The superblock is written twice, so that both
//! copies know the disks.

use super::rescue::begin_after;
use super::superblock::{check_sizes, read_superblock, refuse_out_of_use, write_superblock};
use super::{LogError, Newest, uuid};
use crate::log_cache::disks::{DISKS_MAX, PART_SECTORS};
use crate::log_cache::fingerprint::{CoveredLines, LineContent};
use crate::log_cache::format::{LogState, LogSuperblock, OtherDisk};
use crate::log_cache::recover::{WalkOptions, walk};
use crate::{BlockDevice, Geometry};

/// The place that the next disk gets: one that is free, or the next one.
pub fn next_place(superblock: &LogSuperblock) -> usize {
    let free = superblock.other_disks.iter().position(OtherDisk::is_free);
    1 + free.unwrap_or(superblock.other_disks.len())
}

/// Returns the place for a data disk that is to be added, or the reason why the log cannot have it.
pub fn admit_disk(
    superblock: &LogSuperblock,
    data: &Geometry,
    data_uuid: [u8; 16],
) -> Result<usize, LogError> {
    if data.read_only {
        return Err(LogError::ReadOnly("data disk"));
    }
    let place = next_place(superblock);
    if place == DISKS_MAX {
        return Err(LogError::Options("a log has at most 64 data disks"));
    }
    if data.sectors == 0 || data.sectors.max(superblock.data_sectors) > PART_SECTORS {
        return Err(LogError::Options(
            "each data disk of a log with several must have at least one sector and at most 64 TiB",
        ));
    }
    let others = superblock.other_disks.iter().map(|disk| disk.data_uuid);
    if std::iter::once(superblock.data_uuid).chain(others).any(|known| known == data_uuid) {
        return Err(LogError::HasDisk(uuid(&data_uuid)));
    }
    Ok(place)
}

/// Adds a data disk at [`next_place`], and returns the superblock. The log may be dirty.
pub fn add_disk(
    log: &mut dyn BlockDevice,
    data: &mut dyn BlockDevice,
    data_uuid: [u8; 16],
) -> Result<LogSuperblock, LogError> {
    if log.geometry().read_only {
        return Err(LogError::ReadOnly("log device"));
    }
    let mut superblock = read_superblock(log)?;
    check_sizes(&superblock, log.geometry(), None)?;
    refuse_out_of_use(&superblock)?;
    let sectors = data.geometry().sectors;
    let place = admit_disk(&superblock, &data.geometry(), data_uuid)?;
    let lines_max = OtherDisk::lines_max(superblock.other_disks.len().max(place));
    // Data that the fingerprint covers must not be lost with the disk's cache.
    data.flush().map_err(LogError::io("flushing the data disk"))?;
    let lines = CoveredLines::few(LineContent::default(), data, sectors, &superblock.cache_uuid, lines_max);
    let fingerprint = lines.map_err(LogError::io("reading the data disk"))?.fingerprint();
    let before = superblock.other_disks.get(place - 1);
    let added =
        OtherDisk { data_uuid, sectors, from_seq: before.map_or(0, |free| free.from_seq), fingerprint };
    match superblock.other_disks.get_mut(place - 1) {
        Some(free) => *free = added,
        None => superblock.other_disks.push(added),
    }
    // The others have room for fewer lines now.
    superblock.other_disks.iter_mut().for_each(|disk| disk.fingerprint.lines.truncate(lines_max));
    write_superblock(log, &mut superblock)?;
    write_superblock(log, &mut superblock)?;
    Ok(superblock)
}

/// Removes the data disk at a place after the first, and returns the superblock. Its place becomes free. Refused while the log has anything
/// for any disk: no record of the disk may be found once another has its place.
pub fn remove_disk(log: &mut dyn BlockDevice, place: usize) -> Result<LogSuperblock, LogError> {
    if log.geometry().read_only {
        return Err(LogError::ReadOnly("log device"));
    }
    let mut superblock = read_superblock(log)?;
    check_sizes(&superblock, log.geometry(), None)?;
    refuse_out_of_use(&superblock)?;
    match place.checked_sub(1).and_then(|other| superblock.other_disks.get_mut(other)) {
        Some(disk) if !disk.is_free() => *disk = OtherDisk::free(superblock.durable_seq),
        _ => return Err(LogError::Options("the log has no such data disk, or it is the first, which stays")),
    }
    let recorded = read_superblock(log)?;
    let walked =
        walk(log, &recorded, WalkOptions::default(), &mut Newest::new(recorded.log_block_sectors()))?;
    if recorded.state != LogState::Stopped || walked.tail_seq != walked.next_seq {
        return Err(LogError::NotEmpty);
    }
    begin_after(&mut superblock, &walked);
    superblock.forget_free_places(walked.next_seq);
    write_superblock(log, &mut superblock)?;
    write_superblock(log, &mut superblock)?;
    Ok(superblock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Control;
    use crate::log_cache::offline::{JoinedDisks, RescueOptions, rescue};
    use crate::log_cache::testing::Ram;
    use crate::log_cache::testing_steps::{Disks, Steps, ZEROES, quiet};

    /// Three disks, each with data of its own, and a log that was stopped with data for all of them.
    fn stopped() -> Disks {
        let mut steps = Steps::over(3, 16, quiet()).expect("it starts");
        for disk in 0..3 {
            steps.on(disk).write(3000, 8, 10 + disk as u8);
        }
        steps.flush();
        steps.control(Control::Stop);
        steps.disks
    }

    fn write_back(disks: &mut Disks) {
        let mut all = std::mem::take(&mut disks.0);
        let mut joined = JoinedDisks::new(all.split_off(1));
        let report = rescue(&mut all[0], &mut joined, RescueOptions::default(), &mut |_| {});
        assert!(report.expect("nothing fails").is_complete());
        all.append(&mut joined.disks_mut().to_vec());
        disks.0 = all;
    }

    #[test]
    fn a_disk_is_removed_or_not_wherever_the_power_fails() {
        let mut before = stopped();
        let refused = remove_disk(&mut before.0[0], 1);
        assert!(matches!(refused, Err(LogError::NotEmpty)), "its data is in the log: {refused:?}");
        write_back(&mut before);
        for place in [0, 3] {
            assert!(matches!(remove_disk(&mut before.0[0], place), Err(LogError::Options(_))), "{place}");
        }
        let mut cuts = 0;
        for left in 0.. {
            let mut disks = before.clone();
            disks.0[0].operations_left = left;
            let removed = remove_disk(&mut disks.0[0], 1);
            disks.0[0].operations_left = u64::MAX;
            cuts += u32::from(removed.is_err());
            let superblock = read_superblock(&mut disks.0[0]).expect("the log is there");
            if superblock.space().sectors(1) == 0 {
                disks.0[2] = Ram::new(8);
            }
            let mut steps = Steps::start(disks, quiet()).expect("it starts");
            assert_eq!([0, 2].map(|disk| steps.on(disk).read(3000)), [Some(10), Some(12)]);
            steps.on(2).write(3000, 8, 33);
            steps.flush();
            let mut steps = steps.restart(quiet());
            assert_eq!(steps.on(2).read(3000), Some(33));
            if removed.is_ok() {
                break;
            }
        }
        assert!(cuts > 4, "{cuts}");
    }

    /// Records for the first disk in a place are never served or written for the next one.
    #[test]
    fn a_place_that_is_free_is_given_again() {
        let mut disks = stopped();
        write_back(&mut disks);
        let superblock = remove_disk(&mut disks.0[0], 1).expect("it is empty");
        assert_eq!((superblock.space().count(), next_place(&superblock)), (3, 1));
        let mut other = Ram::new(4096);
        let superblock = add_disk(&mut disks.0[0], &mut other, [9; 16]).expect("it is added");
        assert_eq!((superblock.space().sectors(1), next_place(&superblock)), (4096, 3));
        disks.0[2] = other;
        let mut steps = Steps::start(disks, quiet()).expect("it starts");
        assert_eq!(steps.on(1).read(3000), Some(ZEROES));
        steps.on(1).write(3000, 8, 20);
        steps.flush();
        let mut steps = steps.restart(quiet());
        assert_eq!([0, 1, 2].map(|disk| steps.on(disk).read(3000)), [Some(10), Some(20), Some(12)]);
        steps.drain();
        let mut disks = steps.restart(quiet()).disks;
        // The last places go, and with all of them the log is one of a single disk.
        write_back(&mut disks);
        assert_eq!(remove_disk(&mut disks.0[0], 1).expect("it is empty").space().count(), 3);
        assert_eq!(remove_disk(&mut disks.0[0], 2).expect("it is empty").space().count(), 1);
        disks.0.truncate(2);
        assert_eq!(Steps::start(disks, quiet()).expect("it starts").read(3000), Some(10));
    }
}
