//! Logs made by hand, for the tests of recovery and of the offline tools.

use std::collections::BTreeSet;

use super::fingerprint::{Fingerprint, LineSum, ends};
use super::format::*;
use super::spindle::Spindle;
use crate::layer::{Discards, Stripes};
use crate::{BlockDevice, Buf, ErrorKind, Extent, Geometry, Io, IoError, IoResult, Lba, SECTOR_BYTES};

/// A device in RAM, with sectors that cannot be read or written, and a count of writes after which the power is off.
#[derive(Clone)]
pub struct Ram {
    pub bytes: Vec<u8>,
    pub unreadable: BTreeSet<u64>,
    pub unwritable: BTreeSet<u64>,
    /// More than one: as legs of a mirror, of which the first one has other bytes in the rotten sectors.
    pub copies: u8,
    pub rotten: BTreeSet<u64>,
    /// Requests must be multiples of it.
    pub logical_block_bytes: u32,
    pub fast_zeroes: bool,
    pub discards: Discards,
    pub rotational: bool,
    pub stripes: Option<Stripes>,
    pub holes: bool,
    pub ssd: bool,
    /// Modifying operations and flushes that still work.
    pub operations_left: u64,
    pub operations: u64,
}

impl Ram {
    pub fn new(sectors: u64) -> Ram {
        Ram {
            bytes: vec![0; (sectors * SECTOR_BYTES) as usize],
            unreadable: BTreeSet::new(),
            unwritable: BTreeSet::new(),
            copies: 1,
            rotten: BTreeSet::new(),
            logical_block_bytes: 512,
            fast_zeroes: false,
            discards: Discards::No,
            rotational: false,
            stripes: None,
            holes: false,
            ssd: false,
            operations_left: u64::MAX,
            operations: 0,
        }
    }

    fn slice(&mut self, extent: Extent) -> &mut [u8] {
        let from = extent.start.bytes() as usize;
        &mut self.bytes[from..from + (extent.sectors * SECTOR_BYTES) as usize]
    }

    fn carry_out(&mut self, io: &mut Io) -> Result<(), IoError> {
        let extent = io.extent().unwrap_or(Extent::new(Lba(0), 0));
        if extent.end().0 > self.geometry().sectors {
            return Err(IoError::at(ErrorKind::OutOfRange, extent));
        }
        let block = u64::from(self.logical_block_bytes) / SECTOR_BYTES;
        if !extent.start.0.is_multiple_of(block) || !extent.sectors.is_multiple_of(block) {
            return Err(IoError::at(ErrorKind::Invalid, extent));
        }
        if !matches!(io, Io::Read { .. } | Io::ReadCopy { .. }) {
            if self.operations_left == 0 {
                return Err(IoError::new(ErrorKind::PowerCut));
            }
            self.operations_left -= 1;
            self.operations += 1;
        }
        let bad = if io.modifies() { &self.unwritable } else { &self.unreadable };
        if bad.range(extent.start.0..extent.end().0).next().is_some() {
            return Err(IoError::at(ErrorKind::Medium, extent));
        }
        let of_first = !matches!(io, Io::ReadCopy { copy, .. } | Io::WriteCopy { copy, .. } if *copy > 0);
        let in_extent = |lba: &u64| (extent.start.0..extent.end().0).contains(lba);
        if io.modifies() && of_first {
            self.rotten.retain(|lba| !in_extent(lba));
        }
        match io {
            Io::Read { buf, .. } | Io::ReadCopy { buf, .. } => {
                let bytes = self.slice(extent).to_vec();
                buf.bytes_mut().copy_from_slice(&bytes);
                for lba in self.rotten.iter().filter(|lba| of_first && in_extent(lba)) {
                    buf.bytes_mut()[((lba - extent.start.0) * SECTOR_BYTES) as usize] ^= 1;
                }
            }
            Io::Write { buf, .. } | Io::WriteCopy { buf, .. } => {
                self.slice(extent).copy_from_slice(buf.bytes())
            }
            Io::Flush => {}
            Io::Discard { .. } | Io::WriteZeroes { .. } => self.slice(extent).fill(0),
        }
        Ok(())
    }
}

impl BlockDevice for Ram {
    fn geometry(&self) -> Geometry {
        Geometry {
            logical_block_bytes: self.logical_block_bytes,
            fast_zeroes: self.fast_zeroes,
            discards: self.discards,
            rotational: self.rotational,
            stripes: self.stripes,
            copies: self.copies,
            holes: self.holes,
            ssd: self.ssd,
            disk: None,
            ..Geometry::plain(self.bytes.len() as u64 / SECTOR_BYTES)
        }
    }

    fn run(&mut self, mut io: Io) -> IoResult {
        let status = self.carry_out(&mut io);
        IoResult { buf: io.take_buf(), status }
    }
}

/// Part of a record that a test appends.
#[derive(Clone, Debug)]
pub enum Part {
    /// Sectors from an LBA on, each filled with a byte of the LBA and this one.
    Data(u64, u64, u8),
    /// A copy of what the data disk has.
    Clean(u64, u64, u8),
    Range(EntryKind, u64, u64),
}

/// Returns the content that [`Part::Data`] gives a sector: never zero, never the same for two tags or neighbours.
pub fn sector_of(lba: u64, tag: u8) -> Vec<u8> {
    let mut bytes = vec![tag; SECTOR_BYTES as usize];
    bytes[..8].copy_from_slice(&(lba + 1).to_le_bytes());
    bytes
}

/// The fingerprint of a disk of which nothing is known.
pub fn unknown(data_sectors: u64) -> Fingerprint {
    let lines = ends(data_sectors).map(|line| LineSum { line, sum: None, sectors: None }).collect();
    Fingerprint { lines, is_exact: false }
}

/// A log that is written by hand: the writer's place is public, so that tests can make gaps and leftovers.
pub struct Log {
    pub device: Ram,
    pub superblock: LogSuperblock,
    pub sector: u64,
    pub seq: u64,
    pub epoch: u64,
    pub oldest_live_seq: u64,
    pub durable_seq: u64,
}

impl Log {
    /// An empty log of `segments` of 16 KiB, in its first activation.
    pub fn new(segments: u32, log_block_bytes: u32) -> Log {
        let segment_bytes = SEGMENT_BYTES_MIN;
        let log_sectors =
            FIRST_SEGMENT_SECTOR + u64::from(segments) * u64::from(segment_bytes) / SECTOR_BYTES;
        let superblock = LogSuperblock {
            state: LogState::Active,
            generation: 1,
            cache_uuid: *b"cache of a test!",
            data_uuid: *b"disk of the test",
            log_sectors,
            data_sectors: 1 << 12,
            other_disks: Vec::new(),
            segment_bytes,
            segments,
            log_block_bytes,
            epoch: 1,
            epoch_start_seq: 1,
            tail_seq: 1,
            tail_sector: FIRST_SEGMENT_SECTOR,
            durable_seq: 1,
            flush_epoch: 0,
            live_seq: 1,
            summaries_epoch: 0,
            machine: 0,
            memory: None,
            fingerprint: unknown(1 << 12),
            calibration: None,
            spindle: Spindle::default(),
            kept_seq: 0,
            live_sector: 0,
        };
        let mut log = Log {
            device: Ram::new(log_sectors),
            sector: FIRST_SEGMENT_SECTOR,
            seq: 1,
            epoch: 1,
            oldest_live_seq: 1,
            durable_seq: 1,
            superblock,
        };
        log.store_superblock();
        log
    }

    pub fn store_superblock(&mut self) {
        let copy = SUPERBLOCK_SECTORS[(self.superblock.generation % 2) as usize];
        let bytes = self.superblock.encode();
        self.device.write(copy, Buf::copy_of(zerocopy::IntoBytes::as_bytes(&bytes))).unwrap();
    }

    /// Stores the superblock of an activation, as if the log ended where this writer is.
    pub fn activate(&mut self) {
        self.epoch += 1;
        self.superblock.state = LogState::Active;
        self.superblock.epoch = self.epoch;
        self.superblock.epoch_start_seq = self.seq;
        self.superblock.durable_seq = self.seq;
        self.durable_seq = self.seq;
        self.superblock.generation += 1;
        self.store_superblock();
    }

    /// Appends a record, in the next segment where it does not fit; returns where it lies.
    pub fn append(&mut self, parts: &[Part]) -> Header {
        self.append_with(parts, false)
    }

    pub fn append_with(&mut self, parts: &[Part], continues: bool) -> Header {
        let mut payload = Vec::new();
        let mut entries = Vec::new();
        for part in parts {
            match *part {
                Part::Data(lba, sectors, tag) | Part::Clean(lba, sectors, tag) => {
                    let bytes: Vec<u8> = (lba..lba + sectors).flat_map(|lba| sector_of(lba, tag)).collect();
                    let crc = crc32c::crc32c(&bytes);
                    let kind =
                        if matches!(part, Part::Clean(..)) { EntryKind::Clean } else { EntryKind::Data };
                    entries.push(Entry { kind, extent: Extent::new(Lba(lba), sectors), crc });
                    payload.extend(bytes);
                }
                Part::Range(kind, lba, sectors) => {
                    entries.push(Entry { kind, extent: Extent::new(Lba(lba), sectors), crc: 0 });
                }
            }
        }
        let block = self.superblock.log_block_bytes as usize;
        payload.resize(payload.len().next_multiple_of(block), 0);
        let sectors = (block + payload.len()) as u64 / SECTOR_BYTES;
        self.make_room(sectors);
        let header = Header {
            epoch: self.epoch,
            seq: self.seq,
            sector: self.sector,
            oldest_live_seq: self.oldest_live_seq,
            durable_seq: self.durable_seq,
            flush_epoch: 0,
            sectors: sectors as u32,
            continues,
            entries: entries.into(),
        };
        let mut bytes = vec![0; block];
        encode_header(&mut bytes, self.superblock.cache_uuid, &header);
        bytes.extend(payload);
        self.device.write(Lba(self.sector), Buf::copy_of(&bytes)).unwrap();
        self.seq += 1;
        self.sector += sectors;
        header
    }

    fn make_room(&mut self, sectors: u64) {
        let superblock = &self.superblock;
        let at_end = self.sector == superblock.end_sector();
        let segment = if at_end { superblock.segments - 1 } else { superblock.segment_of(self.sector) };
        let end = superblock.segment_start(segment) + superblock.segment_sectors();
        // A place at a segment's start may also be the end of the one before: then `segment` is this one already.
        if at_end || self.sector + sectors > end {
            self.sector = superblock.segment_start((segment + 1) % superblock.segments);
        }
    }

    /// Flips bits of one byte on the device.
    pub fn corrupt(&mut self, sector: u64, byte: usize, mask: u8) {
        self.device.bytes[(sector * SECTOR_BYTES) as usize + byte] ^= mask;
    }
}
