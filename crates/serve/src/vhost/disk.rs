//! The disk as a virtio block device: its features and its configuration space (VIRTIO 1.2, 5.2).

use dcd_engine::{Discards, Geometry, SECTOR_BYTES};
use vhost::vhost_user::VhostUserVirtioFeatures;
use virtio_bindings::bindings::virtio_blk as b;
use virtio_bindings::bindings::{virtio_config, virtio_ring};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes};

/// Number of queues. A flush holds up the answers of its own queue alone.
pub const QUEUES: u16 = 4;
/// Maximum entries of a queue, as QEMU has.
pub const QUEUE_ENTRIES_MAX: u16 = 1024;
/// Maximum pieces of data in a request. With head and status they fit the smallest queue that clients use, of 128 entries.
const SEGMENTS_MAX: u32 = 126;
/// Maximum sectors that a request discards or zeroes: if that is cheap, and if zeroes have to be written.
const FREE_SECTORS_MAX: u32 = 1 << 21;
const WRITTEN_ZEROES_SECTORS_MAX: u32 = 1 << 15;
/// Minimum of the recommended unit of requests: a line of the log cache.
const PREFERRED_BYTES_MIN: u32 = 4096;
/// Bytes of an answer to GET_ID.
pub const ID_BYTES: usize = b::VIRTIO_BLK_ID_BYTES as usize;

/// `virtio_blk_config`, up to the fields of write-zeroes. Machines read it as little-endian.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
struct BlockConfig {
    capacity: U64,
    size_max: U32,
    seg_max: U32,
    cylinders: U16,
    heads: u8,
    sectors: u8,
    blk_size: U32,
    physical_block_exp: u8,
    alignment_offset: u8,
    min_io_size: U16,
    opt_io_size: U32,
    writeback: u8,
    unused0: u8,
    num_queues: U16,
    max_discard_sectors: U32,
    max_discard_seg: U32,
    discard_sector_alignment: U32,
    max_write_zeroes_sectors: U32,
    max_write_zeroes_seg: U32,
    write_zeroes_may_unmap: u8,
    unused1: [u8; 7],
}

/// A disk and what its machines are told of it.
#[derive(Clone, Debug)]
pub struct VirtioDisk {
    pub geometry: Geometry,
    pub id: [u8; ID_BYTES],
    /// True if every write is durable before it is answered, whatever the machine asks for.
    pub durable: bool,
    /// See [`super::VhostUserOptions::changed`].
    pub changed: Option<&'static str>,
}

impl VirtioDisk {
    pub fn new(geometry: Geometry, serial: &str, durable: bool) -> VirtioDisk {
        let mut id = [0; ID_BYTES];
        let len = serial.len().min(ID_BYTES);
        id[..len].copy_from_slice(&serial.as_bytes()[..len]);
        VirtioDisk { geometry, id, durable, changed: None }
    }

    /// The features on offer. Flushes always are: a machine may go on with a server that has another promise. The mode of the cache is
    /// not (`CONFIG_WCE`): the stack has the promise, and a machine that does not flush gets durable writes.
    pub fn features(&self) -> u64 {
        let bit = |bit: u32| 1u64 << bit;
        let discards = self.geometry.discards != Discards::No;
        let changes = if self.geometry.read_only {
            bit(b::VIRTIO_BLK_F_RO)
        } else {
            bit(b::VIRTIO_BLK_F_WRITE_ZEROES) | if discards { bit(b::VIRTIO_BLK_F_DISCARD) } else { 0 }
        };
        bit(virtio_config::VIRTIO_F_VERSION_1)
            | bit(virtio_ring::VIRTIO_RING_F_INDIRECT_DESC)
            | bit(virtio_ring::VIRTIO_RING_F_EVENT_IDX)
            | bit(b::VIRTIO_BLK_F_SEG_MAX)
            | bit(b::VIRTIO_BLK_F_BLK_SIZE)
            | bit(b::VIRTIO_BLK_F_TOPOLOGY)
            | bit(b::VIRTIO_BLK_F_FLUSH)
            | bit(b::VIRTIO_BLK_F_MQ)
            | changes
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    /// True if writes have to be durable for a machine with these features: one that cannot flush relies on that.
    pub fn writes_through(&self, features: u64) -> bool {
        self.durable || features & (1 << b::VIRTIO_BLK_F_FLUSH) == 0
    }

    /// A part of the configuration space; zeroes after its end.
    pub fn config(&self, offset: u32, len: u32) -> Vec<u8> {
        let block = self.geometry.logical_block_bytes;
        let block_sectors = u64::from(block) / SECTOR_BYTES;
        let physical = self.geometry.physical_block_bytes.max(block);
        let zeroes = if self.geometry.fast_zeroes { FREE_SECTORS_MAX } else { WRITTEN_ZEROES_SECTORS_MAX };
        let config = BlockConfig {
            capacity: (self.geometry.sectors / block_sectors * block_sectors).into(),
            seg_max: SEGMENTS_MAX.into(),
            blk_size: block.into(),
            physical_block_exp: (physical / block).ilog2() as u8,
            min_io_size: ((physical.max(PREFERRED_BYTES_MIN) / block) as u16).into(),
            num_queues: QUEUES.into(),
            max_discard_sectors: FREE_SECTORS_MAX.into(),
            max_discard_seg: 1.into(),
            discard_sector_alignment: (block_sectors as u32).into(),
            max_write_zeroes_sectors: zeroes.into(),
            max_write_zeroes_seg: 1.into(),
            write_zeroes_may_unmap: 1,
            ..BlockConfig::default()
        };
        let bytes = config.as_bytes();
        (offset..offset.saturating_add(len)).map(|at| bytes.get(at as usize).copied().unwrap_or(0)).collect()
    }

    /// Maximum sectors of a request that discards or zeroes.
    pub fn freed_max(&self, discards: bool) -> u32 {
        match discards || self.geometry.fast_zeroes {
            true => FREE_SECTORS_MAX,
            false => WRITTEN_ZEROES_SECTORS_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_configuration_is_laid_out_as_the_standard_has_it() {
        assert_eq!((offset_of!(BlockConfig, blk_size), offset_of!(BlockConfig, opt_io_size)), (20, 28));
        assert_eq!((offset_of!(BlockConfig, num_queues), offset_of!(BlockConfig, max_discard_seg)), (34, 40));
        assert_eq!(offset_of!(BlockConfig, write_zeroes_may_unmap), 56);
    }

    #[test]
    fn a_disk_tells_its_size_and_blocks() {
        let geometry =
            Geometry { logical_block_bytes: 4096, physical_block_bytes: 4096, ..Geometry::plain(1003) };
        let disk = VirtioDisk::new(geometry, "a serial number that is too long", false);
        assert_eq!(disk.config(0, 8), 1000u64.to_le_bytes(), "whole blocks");
        assert_eq!(disk.config(20, 6), [0, 16, 0, 0, 0, 0]);
        assert_eq!(disk.config(60, 200), [0; 200]);
        assert_eq!(disk.config(u32::MAX - 1, 8).len(), 1, "cut at the end");
        assert_eq!(&disk.id, b"a serial number that");
        let discards = 1 << b::VIRTIO_BLK_F_DISCARD;
        assert_eq!(disk.features() & discards, 0);
        let takes = Geometry { discards: Discards::Zero, ..geometry };
        assert_ne!(VirtioDisk::new(takes, "", false).features() & discards, 0);
        let read_only = VirtioDisk::new(Geometry { read_only: true, ..takes }, "", false).features();
        assert_eq!(read_only & (discards | 1 << b::VIRTIO_BLK_F_RO), 1 << b::VIRTIO_BLK_F_RO);
    }
}
