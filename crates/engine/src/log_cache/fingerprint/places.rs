//! Finds the places between the ends of a disk that file systems write on each mount, creation or check, from what lies at the starts of
//! the disk and of its partitions. Correctness does not depend on these places: a wrong one is merely a line that seldom changes.
//!
//! | found | places |
//! |---|---|
//! | a partition (MBR, GPT), the data of md, the first extent of LVM | its first line, and the one at 64 KiB |
//! | ext2, ext3, ext4 | the group descriptors, the inode of the root, the start of the journal, the first copy of the superblock |
//! | xfs | the headers of its allocation groups, the start of its log |
//! | btrfs | the copies of the superblock |
//! | NTFS | the master file table and its mirror, the copy of the boot sector |

use super::{LINE_BYTES, LineContent};
use crate::{BlockDevice, IoError, LINE_SECTORS};

/// Partitions that are looked at.
const STARTS_MAX: usize = 8;
/// Maximum number of places; the rest of the samples are drawn.
const PLACES_MAX: usize = 24;
/// Allocation groups of an xfs that are covered: it has four by default.
const GROUPS_MAX: u64 = 8;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Finds places. `content` has the ends; any other lines read are added to it.
pub fn find(
    content: &mut LineContent,
    data: &mut dyn BlockDevice,
    data_sectors: u64,
) -> Result<Vec<u64>, IoError> {
    let mut disk = Disk { content, data, lines: data_sectors / LINE_SECTORS };
    let mut starts = disk.partitions();
    starts.truncate(STARTS_MAX);
    starts.sort_unstable();
    let mut places = Vec::new();
    for &start in starts.iter().filter(|start| **start > 0) {
        places.extend([start, start + 64 * KIB]);
    }
    disk.fetch(&places)?;
    for start in starts {
        disk.file_system(start, &mut places)?;
    }
    let mut lines: Vec<u64> = places.into_iter().map(|place| place / LINE_BYTES).collect();
    lines.retain(|line| super::middle(data_sectors).contains(line));
    lines.truncate(PLACES_MAX);
    Ok(lines)
}

struct Disk<'a> {
    content: &'a mut LineContent,
    data: &'a mut dyn BlockDevice,
    lines: u64,
}

impl Disk<'_> {
    /// Reads the lines at these places that were not read yet.
    fn fetch(&mut self, places: &[u64]) -> Result<(), IoError> {
        let mut lines: Vec<u64> = places.iter().map(|place| place / LINE_BYTES).collect();
        lines.retain(|&line| line < self.lines && self.content.line(line).is_none());
        lines.sort_unstable();
        lines.dedup();
        self.content.read(self.data, lines.into_iter())
    }

    /// Bytes that lie within a line; zeroes if the line was not read.
    fn bytes<const N: usize>(&self, at: u64) -> [u8; N] {
        let line = self.content.line(at / LINE_BYTES);
        let from = (at % LINE_BYTES) as usize;
        line.and_then(|line| line.get(from..from + N)?.try_into().ok()).unwrap_or([0; N])
    }

    fn le16(&self, at: u64) -> u64 {
        u64::from(u16::from_le_bytes(self.bytes(at)))
    }

    fn le32(&self, at: u64) -> u64 {
        u64::from(u32::from_le_bytes(self.bytes(at)))
    }

    fn le64(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }

    fn be32(&self, at: u64) -> u64 {
        u64::from(u32::from_be_bytes(self.bytes(at)))
    }

    fn be64(&self, at: u64) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }

    fn has(&self, at: u64, magic: &[u8; 8]) -> bool {
        self.bytes(at) == *magic
    }

    /// Byte offsets where a file system may begin: the start of the disk, and those of its partitions and volumes.
    fn partitions(&self) -> Vec<u64> {
        let mut starts = vec![0];
        for header in [512, 4096_u64].into_iter().filter(|at| self.has(*at, b"EFI PART")) {
            let (table, count, size) =
                (self.le64(header + 72), self.le32(header + 80), self.le32(header + 84));
            for entry in 0..count.min(STARTS_MAX as u64) {
                let at = table.saturating_mul(header).saturating_add(entry * size);
                let is_used = self.bytes::<16>(at) != [0; 16];
                starts.extend(is_used.then(|| self.le64(at.saturating_add(32)).saturating_mul(header)));
            }
        }
        if starts.len() == 1 && self.bytes(510) == [0x55, 0xaa] {
            starts.extend((0..4).map(|entry| self.le32(446 + 16 * entry + 8) * 512));
        }
        // The label of a physical volume is in one of the first sectors; the first extent follows the metadata.
        if (0..4).any(|sector| self.has(sector * 512, b"LABELONE")) {
            starts.push(MIB);
        }
        let md = 4 * KIB;
        if self.le32(md) == 0xa92b_4efc {
            starts.push(self.le64(md + 128).saturating_mul(512));
        }
        starts.retain(|start| *start < self.lines * LINE_BYTES && start.is_multiple_of(LINE_BYTES));
        starts.dedup();
        starts
    }

    /// The places of the file system that begins at a byte.
    fn file_system(&mut self, start: u64, places: &mut Vec<u64>) -> Result<(), IoError> {
        if self.le16(start + KIB + 56) == 0xef53 {
            return self.ext(start, places);
        }
        if self.bytes(start) == *b"XFSB" {
            self.xfs(start, places);
        } else if self.has(start + 64 * KIB + 64, b"_BHRfS_M") {
            places.extend([start + 64 * MIB, start + 256 * KIB * MIB]);
        } else if self.has(start + 3, b"NTFS    ") {
            let cluster = self.le16(start + 11) * u64::from(self.bytes::<1>(start + 13)[0]);
            let at = |field| start.saturating_add(self.le64(start + field).saturating_mul(cluster));
            let last = self.le64(start + 40).saturating_mul(self.le16(start + 11));
            places.extend([at(48), at(56), start.saturating_add(last)]);
        }
        Ok(())
    }

    fn ext(&mut self, start: u64, places: &mut Vec<u64>) -> Result<(), IoError> {
        let superblock = start + KIB;
        let block = KIB << self.le32(superblock + 24).min(6);
        let at = |number: u64| start.saturating_add(number.saturating_mul(block));
        let first = self.le32(superblock + 20);
        let descriptors = at(first + 1);
        self.fetch(&[descriptors])?;
        // The superblock has a copy of the journal's inode: a tree of extents, or a list of blocks.
        let journal = superblock + 0x10c;
        let begin = match (self.bytes::<1>(superblock + 0xfd)[0], self.le16(journal)) {
            (1, 0xf30a) => self.le16(journal + 18) << 32 | self.le32(journal + 20),
            (1, _) => self.le32(journal),
            _ => 0,
        };
        if begin > 0 {
            places.extend([0, 1, 2].map(|line| at(begin).saturating_add(line * LINE_BYTES)));
        }
        places.extend([descriptors, at(self.le32(descriptors + 8)), at(first + self.le32(superblock + 32))]);
        Ok(())
    }

    fn xfs(&self, start: u64, places: &mut Vec<u64>) {
        let (block, group_blocks, groups) =
            (self.be32(start + 4), self.be32(start + 84), self.be32(start + 88));
        let at = |group: u64, number: u64| {
            let blocks = group.saturating_mul(group_blocks).saturating_add(number);
            start.saturating_add(blocks.saturating_mul(block))
        };
        places.extend((0..groups.min(GROUPS_MAX)).map(|group| at(group, 0)));
        let (log, bits) = (self.be64(start + 48), u32::from(self.bytes::<1>(start + 124)[0]).min(63));
        let begin = at(log >> bits, log & ((1 << bits) - 1));
        places.extend([begin, begin.saturating_add(LINE_BYTES)]);
    }
}
