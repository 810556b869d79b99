//! The data disks of a log as one device, whose sectors are the addresses of the log. One data disk is such a device itself.

use crate::log_cache::LogError;
use crate::log_cache::disks::AddressSpace;
use crate::log_cache::format::LogSuperblock;
use crate::{BlockDevice, ErrorKind, Extent, Geometry, Io, IoError, IoResult, Lba};

/// See the module's documentation.
pub struct JoinedDisks<D> {
    disks: Vec<D>,
    space: AddressSpace,
    /// The only disk that is flushed; none: all are.
    only: Option<usize>,
}

impl<D: BlockDevice> JoinedDisks<D> {
    /// Joins the data disks of a log, in their order.
    ///
    /// # Panics
    /// Without a disk, and with more than a log may have.
    pub fn new(disks: Vec<D>) -> JoinedDisks<D> {
        let space = AddressSpace::new(disks.iter().map(|disk| disk.geometry().sectors).collect());
        JoinedDisks { disks, space, only: None }
    }

    /// Joins disks of which only this one is written: the others may be missing.
    pub fn with_only(disks: Vec<D>, disk: usize) -> JoinedDisks<D> {
        JoinedDisks { only: Some(disk), ..JoinedDisks::new(disks) }
    }

    /// The disks by themselves, in the order of the log.
    pub fn disks_mut(&mut self) -> &mut [D] {
        &mut self.disks
    }
}

impl<D: BlockDevice> BlockDevice for JoinedDisks<D> {
    /// The properties that all of the disks have.
    fn geometry(&self) -> Geometry {
        let all = self.disks.iter().map(BlockDevice::geometry);
        let joined = all.reduce(|one, other| Geometry {
            logical_block_bytes: one.logical_block_bytes.max(other.logical_block_bytes),
            physical_block_bytes: one.physical_block_bytes.max(other.physical_block_bytes),
            volatile_cache: one.volatile_cache || other.volatile_cache,
            discards: one.discards.min(other.discards),
            fast_zeroes: one.fast_zeroes && other.fast_zeroes,
            rotational: one.rotational || other.rotational,
            read_only: one.read_only || other.read_only,
            ..one
        });
        let last = self.space.extent(self.space.count() - 1);
        Geometry { sectors: last.end().0, ..joined.expect("there is a disk") }
    }

    fn run(&mut self, mut io: Io) -> IoResult {
        let Some(extent) = io.extent() else {
            let mut disks = self.disks.iter_mut().enumerate();
            let is_flushed = |disk: usize| self.only.is_none_or(|only| only == disk);
            let flushed =
                disks.try_for_each(|(disk, device)| if is_flushed(disk) { device.flush() } else { Ok(()) });
            return IoResult { buf: io.take_buf(), status: flushed };
        };
        let disk = self.space.disk_of(extent.start);
        let start = AddressSpace::start(disk);
        let is_on_it = self.disks.len() > disk && extent.end().0 - start.0 <= self.space.sectors(disk);
        if !is_on_it {
            return IoResult::err(io.take_buf(), IoError::at(ErrorKind::OutOfRange, extent));
        }
        if let Some(at) = io.start_mut() {
            at.0 -= start.0;
        }
        self.disks[disk].run(io)
    }

    fn disk_sectors(&self) -> Vec<u64> {
        (0..self.space.count()).map(|disk| self.space.sectors(disk)).collect()
    }
}

/// A disk of data disks that are joined, in its own addresses.
pub(super) struct DiskOf<'a> {
    pub joined: &'a mut dyn BlockDevice,
    pub disk: usize,
}

impl BlockDevice for DiskOf<'_> {
    fn geometry(&self) -> Geometry {
        Geometry { sectors: self.joined.disk_sectors()[self.disk], ..self.joined.geometry() }
    }

    fn run(&mut self, mut io: Io) -> IoResult {
        if let Some(at) = io.start_mut() {
            at.0 += AddressSpace::start(self.disk).0;
        }
        self.joined.run(io)
    }
}

/// Refuses other data disks than those of a log: records would be written to a wrong one.
pub(super) fn refuse_other_disks(superblock: &LogSuperblock, data: &dyn BlockDevice) -> Result<(), LogError> {
    let (found, recorded) = (data.disk_sectors(), superblock.space());
    if found.len() != recorded.count() {
        return Err(LogError::Disks { found: found.len(), recorded: recorded.count() });
    }
    let sizes = found.into_iter().enumerate().map(|(disk, found)| (found, recorded.sectors(disk)));
    match sizes.into_iter().find(|(found, recorded)| found < recorded) {
        Some((found, recorded)) => Err(LogError::Smaller { which: "data disk", found, recorded }),
        None => Ok(()),
    }
}

/// Returns an address of a log as a disk and a place on it.
pub fn place_of_address(superblock: &LogSuperblock, at: Lba) -> (usize, Lba) {
    let space = superblock.space();
    (space.disk_of(at), space.local(Extent::new(at, 1)).start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_cache::disks::PART_SECTORS;
    use crate::log_cache::offline::{RescueOptions, RescueReport, check, rescue};
    use crate::log_cache::testing::Ram;
    use crate::log_cache::testing_steps::{Disks, Steps, quiet};
    use crate::{BlockDevice, Buf};

    /// A log that was cut off with data and zeroes for each of three disks.
    fn cut_off() -> Disks {
        let mut steps = Steps::over(3, 16, quiet()).expect("it starts");
        for disk in 0..3 {
            steps.on(disk).write(0, 8, 10 + disk as u8);
            steps.on(disk).write(3000, 16, 20 + disk as u8);
        }
        steps.drain();
        for disk in 0..3 {
            steps.on(disk).write(3008, 8, 30 + disk as u8);
            steps.on(disk).send(Io::Discard { extent: Extent::new(Lba(3000), 4) });
            steps.on(disk).write(8184, 8, 40 + disk as u8);
        }
        steps.on(0).flush();
        steps.disks
    }

    fn rescued(disks: &mut Disks, disks_left: [u64; 3]) -> Result<RescueReport, LogError> {
        let mut all = std::mem::take(&mut disks.0);
        let data: Vec<Ram> =
            all.drain(1..).zip(disks_left).map(|(ram, left)| Ram { operations_left: left, ..ram }).collect();
        let mut joined = JoinedDisks::new(data);
        let report = rescue(&mut all[0], &mut joined, RescueOptions::default(), &mut |_| {});
        all.extend(joined.disks.into_iter().map(|ram| Ram { operations_left: u64::MAX, ..ram }));
        disks.0 = all;
        report
    }

    #[test]
    fn a_rescue_of_several_disks_writes_to_each_what_is_its_own_and_may_be_cut_on_any() {
        let before = cut_off();
        let mut cuts = 0;
        for cut in 0..3 {
            for left in 0.. {
                let mut disks = before.clone();
                let mut all_left = [u64::MAX; 3];
                all_left[cut] = left;
                let is_cut = rescued(&mut disks, all_left).is_err();
                cuts += u32::from(is_cut);
                let report = rescued(&mut disks, [u64::MAX; 3]).expect("nothing fails");
                assert!(report.is_complete(), "{report:?}");
                for (disk, ram) in disks.0[1..].iter().enumerate() {
                    let tag = |lba: usize| ram.bytes[lba * 512 + 511];
                    let found = [0, 3000, 3004, 3008, 8191].map(tag);
                    let disk = disk as u8;
                    assert_eq!(found, [10 + disk, 0, 20 + disk, 30 + disk, 40 + disk], "disk {disk}");
                }
                // The fingerprints are those of the disks as they are now.
                let mut steps = disks.clone();
                let [log, data @ ..] = steps.0.as_mut_slice() else { unreachable!("it has disks") };
                let mut joined = JoinedDisks::new(data.to_vec());
                assert!(check(log, Some(&mut joined), &mut |_| {}).expect("it is a log").is_ok());
                assert!(!Steps::start(disks, quiet()).expect("it starts").core.index.is_dirty());
                if !is_cut {
                    break;
                }
            }
        }
        assert!(cuts > 9, "{cuts}");
    }

    #[test]
    fn one_disk_is_rescued_from_a_log_that_takes_no_writes_wherever_that_is_cut_off() {
        let before = cut_off();
        let options = RescueOptions { disk: Some(1), ..RescueOptions::default() };
        let mut cuts = 0;
        for left in 0.. {
            let mut all = before.0.clone();
            let mut data = all.split_off(1);
            let sectors = all[0].geometry().sectors;
            all[0].unwritable.extend(0..sectors);
            [0, 2].iter().for_each(|missing: &usize| data[*missing].operations_left = 0);
            data[1].operations_left = left;
            let mut joined = JoinedDisks::with_only(data, 1);
            let is_cut = rescue(&mut all[0], &mut joined, options, &mut |_| {}).is_err();
            cuts += u32::from(is_cut);
            joined.disks[1].operations_left = u64::MAX;
            let report = rescue(&mut all[0], &mut joined, options, &mut |_| {}).expect("nothing fails");
            assert_eq!((report.unsaved_bytes, report.refused, report.marked_clean), (0, false, false));
            let found = [0, 3000, 3004, 3008, 8191].map(|lba: usize| joined.disks[1].bytes[lba * 512 + 511]);
            assert_eq!(found, [11, 0, 21, 31, 41]);
            for (disk, ram) in before.0.iter().enumerate().filter(|(disk, _)| *disk != 2) {
                let now = if disk == 0 { &all[0] } else { &joined.disks[disk - 1] };
                assert!(now.bytes == ram.bytes, "{disk} is as it was");
            }
            if !is_cut {
                break;
            }
        }
        assert!(cuts > 2, "{cuts}");
    }

    #[test]
    fn other_disks_and_places_past_the_end_of_one_are_refused() {
        let mut disks = cut_off();
        disks.0[3].bytes[..512].fill(1);
        let refused = rescued(&mut disks, [u64::MAX; 3]);
        assert!(matches!(refused, Err(LogError::OtherData(other)) if other.disk == 2), "{refused:?}");
        let mut short = JoinedDisks::new(vec![disks.0[1].clone(), disks.0[2].clone()]);
        let refused = rescue(&mut disks.0[0], &mut short, RescueOptions::default(), &mut |_| {});
        assert!(matches!(refused, Err(LogError::Disks { found: 2, recorded: 3 })));
        for at in [8192, PART_SECTORS - 8, PART_SECTORS + 8192, 2 * PART_SECTORS] {
            let error = short.write(Lba(at), Buf::zeroed(4096)).expect_err("no disk has that");
            assert_eq!(error.kind, ErrorKind::OutOfRange, "{at}");
        }
    }
}
