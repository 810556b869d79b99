//! Requests in a machine's memory. Nothing there is trusted: addresses and lengths are checked, and read once.

use dcd_engine::{Buf, Durability, ErrorKind, Extent, Io, IoError, Lba, SECTOR_BYTES};
use virtio_bindings::bindings::virtio_blk as b;
use virtio_queue::DescriptorChain;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryMmap};

use super::disk::{ID_BYTES, QUEUE_ENTRIES_MAX, VirtioDisk};

/// Maximum data of a request: as over NBD.
pub const REQUEST_BYTES_MAX: u64 = 32 << 20;
/// Bytes before the data: kind, a reserved field, sector.
const HEAD_BYTES: usize = 16;
/// `virtio_blk_discard_write_zeroes`.
const RANGE_BYTES: u64 = 16;

pub const STATUS_OK: u8 = b::VIRTIO_BLK_S_OK as u8;
pub const STATUS_ERROR: u8 = b::VIRTIO_BLK_S_IOERR as u8;
pub const STATUS_UNSUPPORTED: u8 = b::VIRTIO_BLK_S_UNSUPP as u8;

/// Bytes of a machine's memory that are not its own, or do not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideMemory;

/// Pieces of a machine's memory, one after the other.
#[derive(Debug, Default)]
pub struct GuestBytes {
    pieces: Vec<(GuestAddress, u32)>,
    bytes: u64,
}

impl GuestBytes {
    fn push(&mut self, address: GuestAddress, len: u32) {
        if len > 0 {
            self.pieces.push((address, len));
            self.bytes += u64::from(len);
        }
    }

    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Takes the last byte off.
    fn pop(&mut self) -> Option<GuestAddress> {
        let (address, len) = self.pieces.last_mut()?;
        *len -= 1;
        let last = address.checked_add(u64::from(*len));
        if *len == 0 {
            self.pieces.pop();
        }
        self.bytes -= 1;
        last
    }

    /// Moves bytes between the pieces, from the one `at` bytes after their beginning, and a buffer.
    fn each(
        &self,
        at: u64,
        len: usize,
        mut copy: impl FnMut(GuestAddress, std::ops::Range<usize>) -> bool,
    ) -> Result<(), OutsideMemory> {
        let (mut skip, mut done) = (at, 0);
        for &(address, piece) in &self.pieces {
            let here = u64::from(piece).saturating_sub(skip).min((len - done) as u64);
            if here > 0 {
                let from = address.checked_add(skip).ok_or(OutsideMemory)?;
                if !copy(from, done..done + here as usize) {
                    return Err(OutsideMemory);
                }
                done += here as usize;
            }
            skip = skip.saturating_sub(u64::from(piece));
        }
        if done == len { Ok(()) } else { Err(OutsideMemory) }
    }

    fn read(&self, memory: &GuestMemoryMmap, at: u64, to: &mut [u8]) -> Result<(), OutsideMemory> {
        self.each(at, to.len(), |from, range| memory.read_slice(&mut to[range], from).is_ok())
    }

    pub fn write(&self, memory: &GuestMemoryMmap, from: &[u8]) -> Result<(), OutsideMemory> {
        self.each(0, from.len(), |to, range| memory.write_slice(&from[range], to).is_ok())
    }
}

/// A chain of descriptors, read.
#[derive(Debug)]
pub struct GuestRequest {
    /// The entry of the queue.
    pub entry: u16,
    readable: GuestBytes,
    /// Room for the answer, without its status.
    pub writable: GuestBytes,
    /// Address of the status; none where the chain has no room for it.
    pub status: Option<GuestAddress>,
    /// False if the chain is broken.
    is_whole: bool,
}

/// Work that a request asks for.
#[derive(Debug)]
pub enum GuestWork {
    Io(Io),
    /// The request is answered with these bytes.
    Data(Vec<u8>),
    /// The request is refused with this status.
    Refused(u8),
}

impl GuestRequest {
    /// Reads a chain. One that is broken still has the status of its last piece.
    pub fn read(chain: DescriptorChain<&GuestMemoryMmap>) -> GuestRequest {
        let entry = chain.head_index();
        let (mut readable, mut writable) = (GuestBytes::default(), GuestBytes::default());
        // A chain that ends with the promise of another piece was cut off: by a bad index, a loop, or too many bytes.
        let (mut goes_on, mut is_ordered) = (true, true);
        for (pieces, descriptor) in chain.take(usize::from(QUEUE_ENTRIES_MAX) + 1).enumerate() {
            goes_on = descriptor.has_next() || pieces == usize::from(QUEUE_ENTRIES_MAX);
            if descriptor.is_write_only() {
                writable.push(descriptor.addr(), descriptor.len());
            } else {
                is_ordered &= writable.len() == 0;
                readable.push(descriptor.addr(), descriptor.len());
            }
        }
        let status = writable.pop();
        let is_whole = !goes_on && is_ordered && status.is_some();
        GuestRequest { entry, readable, writable, status, is_whole }
    }

    /// Memory that the request holds until its answer.
    pub fn held_bytes(&self) -> usize {
        let pieces = self.readable.pieces.capacity() + self.writable.pieces.capacity();
        size_of::<GuestRequest>() + pieces * size_of::<(GuestAddress, u32)>()
    }

    /// Translates the request for the stack. `durable`: writes are durable before their answer.
    pub fn work(&self, disk: &VirtioDisk, memory: &GuestMemoryMmap, durable: bool) -> GuestWork {
        match self.translate(disk, memory, durable) {
            Ok(GuestWork::Io(io)) => match disk.geometry.validate(&io) {
                Ok(()) => GuestWork::Io(io),
                Err(error) => GuestWork::Refused(status_of(error)),
            },
            Ok(work) => work,
            Err(status) => GuestWork::Refused(status),
        }
    }

    fn translate(&self, disk: &VirtioDisk, memory: &GuestMemoryMmap, durable: bool) -> Result<GuestWork, u8> {
        let outside = |_: OutsideMemory| STATUS_ERROR;
        if !self.is_whole {
            return Err(STATUS_ERROR);
        }
        let mut head = [0; HEAD_BYTES];
        self.readable.read(memory, 0, &mut head).map_err(outside)?;
        let kind = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let sector = u64::from_le_bytes(head[8..].try_into().expect("eight bytes"));
        let durability = if durable { Durability::Durable } else { Durability::Volatile };
        let sent = self.readable.len() - HEAD_BYTES as u64;
        let io = match kind {
            b::VIRTIO_BLK_T_IN => Io::Read { at: Lba(sector), buf: buffer(self.writable.len())? },
            b::VIRTIO_BLK_T_OUT => {
                let mut buf = buffer(sent)?;
                self.readable.read(memory, HEAD_BYTES as u64, buf.bytes_mut()).map_err(outside)?;
                Io::Write { at: Lba(sector), buf, durability }
            }
            b::VIRTIO_BLK_T_FLUSH => Io::Flush,
            b::VIRTIO_BLK_T_GET_ID => {
                let len = self.writable.len().min(ID_BYTES as u64) as usize;
                return Ok(GuestWork::Data(disk.id[..len].to_vec()));
            }
            b::VIRTIO_BLK_T_DISCARD | b::VIRTIO_BLK_T_WRITE_ZEROES if sent == RANGE_BYTES => {
                let mut range = [0; RANGE_BYTES as usize];
                self.readable.read(memory, HEAD_BYTES as u64, &mut range).map_err(outside)?;
                free(disk, kind == b::VIRTIO_BLK_T_DISCARD, &range, durability)?
            }
            b::VIRTIO_BLK_T_DISCARD | b::VIRTIO_BLK_T_WRITE_ZEROES => return Err(STATUS_ERROR),
            _ => return Err(STATUS_UNSUPPORTED),
        };
        Ok(GuestWork::Io(io))
    }
}

/// Translates a discard or a write of zeroes. A discard has no flags, and zeroes have one.
fn free(disk: &VirtioDisk, discards: bool, range: &[u8; 16], durability: Durability) -> Result<Io, u8> {
    let sector = u64::from_le_bytes(range[..8].try_into().expect("eight bytes"));
    let word = |at: usize| u32::from_le_bytes(range[at..at + 4].try_into().expect("four bytes"));
    let (sectors, flags) = (word(8), word(12));
    let unmap = flags == b::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP;
    if flags != 0 && (discards || !unmap) {
        return Err(STATUS_UNSUPPORTED);
    }
    if sectors > disk.freed_max(discards) {
        return Err(STATUS_ERROR);
    }
    let extent = Extent::new(Lba(sector), u64::from(sectors));
    Ok(match discards {
        true => Io::Discard { extent },
        false => Io::WriteZeroes { extent, unmap, durability },
    })
}

/// A buffer for the data of a request; refused unless it is sectors, and not too many.
fn buffer(bytes: u64) -> Result<Buf, u8> {
    if bytes == 0 || bytes > REQUEST_BYTES_MAX || !bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(STATUS_ERROR);
    }
    Buf::try_zeroed(bytes as usize).ok_or(STATUS_ERROR)
}

/// Translates an error of the stack.
pub fn status_of(error: IoError) -> u8 {
    match error.kind {
        ErrorKind::Unsupported => STATUS_UNSUPPORTED,
        _ => STATUS_ERROR,
    }
}

#[cfg(test)]
#[path = "request_fuzz.rs"]
mod fuzz;
