//! The data disks, and their address space.
//!
//! A log with one data disk uses the addresses of that disk. Of several, each has a part of one address space. Records, table and recovery
//! know addresses of that space alone; requests come with an address of their disk, and operations go to a disk with one.

use std::ops::{Index, IndexMut};

use super::data_disk::DataDisk;
use crate::{Extent, Geometry, LINE_SECTORS, Lba};

/// Maximum number of data disks. An entry of the table has room for the addresses of so many parts.
pub const DISKS_MAX: usize = 64;
const PART_BITS: u32 = 37;
/// Sectors of a disk's part of the address space, if there are several disks: 64 TiB.
pub const PART_SECTORS: u64 = 1 << PART_BITS;
/// Lines of such a part.
pub const PART_LINES: u64 = PART_SECTORS / LINE_SECTORS;

/// The sizes of the data disks, in sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressSpace(Vec<u64>);

impl AddressSpace {
    pub fn new(sectors: Vec<u64>) -> AddressSpace {
        assert!(!sectors.is_empty() && sectors.len() <= DISKS_MAX, "from one disk to {DISKS_MAX}");
        AddressSpace(sectors)
    }

    /// The space of one disk.
    pub fn one(sectors: u64) -> AddressSpace {
        AddressSpace(vec![sectors])
    }

    /// Number of disks.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Number of disks, without places that are free.
    pub fn served(&self) -> usize {
        self.0.iter().filter(|sectors| **sectors > 0).count()
    }

    /// The disk that an address belongs to.
    #[inline]
    pub fn disk_of(&self, at: Lba) -> usize {
        if self.0.len() == 1 { 0 } else { (at.0 / PART_SECTORS) as usize }
    }

    /// The address of a disk's first sector.
    pub const fn start(disk: usize) -> Lba {
        Lba(disk as u64 * PART_SECTORS)
    }

    /// Takes a disk of so many sectors, in a new place or in one that there is.
    pub fn set(&mut self, disk: usize, sectors: u64) {
        match self.0.get_mut(disk) {
            Some(known) => *known = sectors,
            None => self.0.push(sectors),
        }
        assert!(disk < self.0.len() && self.0.len() <= DISKS_MAX, "places follow each other");
    }

    pub fn sectors(&self, disk: usize) -> u64 {
        self.0[disk]
    }

    /// The addresses of a disk.
    pub fn extent(&self, disk: usize) -> Extent {
        AddressSpace::of(disk, self.0[disk])
    }

    /// The addresses of a disk of this many sectors.
    pub const fn of(disk: usize, sectors: u64) -> Extent {
        Extent::new(AddressSpace::start(disk), sectors)
    }

    /// An extent in the addresses of its disk.
    pub fn local(&self, extent: Extent) -> Extent {
        let start = AddressSpace::start(self.disk_of(extent.start));
        Extent::new(Lba(extent.start - start), extent.sectors)
    }
}

/// The data disks of a running cache.
pub struct DataDisks {
    space: AddressSpace,
    disks: Vec<DataDisk>,
}

impl DataDisks {
    pub fn new(space: AddressSpace, disks: Vec<DataDisk>) -> DataDisks {
        assert_eq!(space.count(), disks.len(), "each disk has addresses");
        DataDisks { space, disks }
    }

    pub const fn space(&self) -> &AddressSpace {
        &self.space
    }

    /// Takes a disk that the cache serves so many sectors of.
    pub fn set(&mut self, disk: usize, sectors: u64, data: DataDisk) {
        self.space.set(disk, sectors);
        match self.disks.get_mut(disk) {
            Some(known) => *known = data,
            None => self.disks.push(data),
        }
    }

    pub fn disk_of(&self, at: Lba) -> usize {
        self.space.disk_of(at)
    }

    /// The disk that an extent lies on.
    pub fn at(&self, extent: Extent) -> &DataDisk {
        &self.disks[self.disk_of(extent.start)]
    }

    pub fn at_mut(&mut self, extent: Extent) -> &mut DataDisk {
        let disk = self.disk_of(extent.start);
        &mut self.disks[disk]
    }

    pub fn iter(&self) -> std::slice::Iter<'_, DataDisk> {
        self.disks.iter()
    }

    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, DataDisk> {
        self.disks.iter_mut()
    }

    /// Returns the first disk that `is_it` selects.
    pub fn find(&self, is_it: impl Fn(&DataDisk) -> bool) -> Option<usize> {
        self.disks.iter().position(is_it)
    }

    /// Geometry of a disk, as its clients see it.
    pub fn geometry(&self, disk: usize) -> Geometry {
        Geometry { sectors: self.space.sectors(disk), ..*self.disks[disk].geometry() }
    }
}

impl Index<usize> for DataDisks {
    type Output = DataDisk;
    fn index(&self, disk: usize) -> &DataDisk {
        &self.disks[disk]
    }
}

impl IndexMut<usize> for DataDisks {
    fn index_mut(&mut self, disk: usize) -> &mut DataDisk {
        &mut self.disks[disk]
    }
}
