//! A device in RAM: chunks that take space when they are first written. The backing of modelled disks.

use std::collections::BTreeMap;

use dcd_engine::{BlockDevice, Discards, Extent, Geometry, Io, IoResult, Lba, PAGE_BYTES, SECTOR_BYTES};

use super::check;

/// Bytes in a chunk: small enough for scattered writes, large enough for the tree over them to stay small.
const CHUNK_BYTES: u64 = 64 << 10;

/// See the module's documentation. Untouched space reads as zeroes.
pub struct MemoryDevice {
    geometry: Geometry,
    chunks: BTreeMap<u64, Box<[u8]>>,
}

impl MemoryDevice {
    pub fn new(bytes: u64) -> MemoryDevice {
        let geometry = Geometry {
            sectors: bytes / SECTOR_BYTES,
            logical_block_bytes: SECTOR_BYTES as u32,
            physical_block_bytes: PAGE_BYTES as u32,
            volatile_cache: false,
            discards: Discards::Zero,
            fast_zeroes: true,
            rotational: false,
            read_only: false,
            stripes: None,
            copies: 1,
            holes: false,
            ssd: false,
            disk: None,
        };
        MemoryDevice { geometry, chunks: BTreeMap::new() }
    }

    /// Bytes of RAM that hold data.
    pub fn bytes_used(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK_BYTES
    }

    fn read_into(&self, at: Lba, buf: &mut [u8]) {
        for (chunk, inside, range) in pieces(at.bytes(), buf.len() as u64) {
            let target = &mut buf[range];
            match self.chunks.get(&chunk) {
                Some(data) => target.copy_from_slice(&data[inside..inside + target.len()]),
                None => target.fill(0),
            }
        }
    }

    fn write_from(&mut self, at: Lba, buf: &[u8]) {
        for (chunk, inside, range) in pieces(at.bytes(), buf.len() as u64) {
            let source = &buf[range];
            let data =
                self.chunks.entry(chunk).or_insert_with(|| vec![0; CHUNK_BYTES as usize].into_boxed_slice());
            data[inside..inside + source.len()].copy_from_slice(source);
        }
    }

    fn clear(&mut self, extent: Extent) {
        let (start, end) = (extent.start.bytes(), extent.end().bytes());
        let whole = start.div_ceil(CHUNK_BYTES)..end / CHUNK_BYTES;
        let touched: Vec<u64> = self
            .chunks
            .range(start / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES))
            .map(|(chunk, _)| *chunk)
            .collect();
        for chunk in touched {
            if whole.contains(&chunk) {
                self.chunks.remove(&chunk);
            } else if let Some(data) = self.chunks.get_mut(&chunk) {
                let base = chunk * CHUNK_BYTES;
                let from = start.max(base) - base;
                let to = end.min(base + CHUNK_BYTES) - base;
                data[from as usize..to as usize].fill(0);
            }
        }
    }
}

/// Cuts a range of bytes at the chunks: (chunk, offset inside it, range in the buffer).
fn pieces(start: u64, len: u64) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = start + done;
        let inside = at % CHUNK_BYTES;
        let count = (CHUNK_BYTES - inside).min(len - done);
        let range = done as usize..(done + count) as usize;
        done += count;
        Some((at / CHUNK_BYTES, inside as usize, range))
    })
}

impl BlockDevice for MemoryDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn run(&mut self, mut io: Io) -> IoResult {
        if let Err(error) = check(&self.geometry, &io) {
            return IoResult::err(io.take_buf(), error);
        }
        match &mut io {
            Io::Read { at, buf } | Io::ReadCopy { at, buf, .. } => self.read_into(*at, buf.bytes_mut()),
            Io::Write { at, buf, .. } | Io::WriteCopy { at, buf, .. } => self.write_from(*at, buf.bytes()),
            Io::Flush => {}
            Io::Discard { extent } | Io::WriteZeroes { extent, .. } => self.clear(*extent),
        }
        IoResult::ok(io.take_buf())
    }
}
