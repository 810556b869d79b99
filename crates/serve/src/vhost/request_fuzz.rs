//! Requests of a machine that writes anything into its memory: `cargo bolero test -p dcd-serve a_forged_request_stays_within_its_memory`.

use bolero::TypeGenerator;
use dcd_engine::{Discards, Geometry};
use virtio_queue::{Queue, QueueT};

use super::*;

const ENTRIES: u16 = 16;
const MEMORY_BYTES: usize = 64 << 10;
const AVAILABLE: usize = 0x400;
const USED: u64 = 0x600;
const DISK_SECTORS: u64 = 64;

/// A descriptor. `tame`: the numbers are near to being right.
#[derive(Debug, TypeGenerator)]
struct ForgedDescriptor {
    tame: bool,
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

#[derive(Debug, TypeGenerator)]
struct ForgedQueue {
    descriptors: [ForgedDescriptor; ENTRIES as usize],
    heads: [u16; 4],
    /// Kind and sector of a request, at each 256 bytes of the machine's memory from 4 KiB on.
    content: [(u8, u8); 8],
    durable: bool,
    read_only: bool,
}

impl ForgedDescriptor {
    fn bytes(&self) -> Vec<u8> {
        const LENGTHS: [u32; 8] = [0, 1, 16, 17, 32, 512, 4096, 4097];
        let (address, len, flags, next) = match self.tame {
            true => {
                let address = 0x1000 + u64::from(self.address as u8 % 16) * 256;
                (address, LENGTHS[self.len as usize % 8], self.flags % 4, self.next % ENTRIES)
            }
            false => (self.address, self.len, self.flags, self.next),
        };
        [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat()
    }
}

impl ForgedQueue {
    fn memory(&self) -> Vec<u8> {
        let mut all = vec![0; MEMORY_BYTES];
        for (at, descriptor) in self.descriptors.iter().enumerate() {
            all[at * 16..][..16].copy_from_slice(&descriptor.bytes());
        }
        all[AVAILABLE + 2..][..2].copy_from_slice(&(self.heads.len() as u16).to_le_bytes());
        for (at, head) in self.heads.iter().enumerate() {
            let head = if head & 0x8000 == 0 { head % ENTRIES } else { *head };
            all[AVAILABLE + 4 + at * 2..][..2].copy_from_slice(&head.to_le_bytes());
        }
        for (at, (kind, sector)) in self.content.iter().enumerate() {
            all[0x1000 + at * 256] = kind % 16;
            all[0x1000 + at * 256 + 8] = *sector;
        }
        all
    }

    fn disk(&self) -> VirtioDisk {
        let geometry =
            Geometry { read_only: self.read_only, discards: Discards::Zero, ..Geometry::plain(DISK_SECTORS) };
        VirtioDisk::new(geometry, "forged", false)
    }
}

#[test]
fn a_forged_request_stays_within_its_memory() {
    bolero::check!().with_type::<ForgedQueue>().for_each(|forged: &ForgedQueue| {
        let bytes = forged.memory();
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)]).unwrap();
        memory.write_slice(&bytes, GuestAddress(0)).unwrap();
        let mut queue = Queue::new(ENTRIES).unwrap();
        queue.set_size(ENTRIES);
        queue.try_set_avail_ring_address(GuestAddress(AVAILABLE as u64)).unwrap();
        queue.try_set_used_ring_address(GuestAddress(USED)).unwrap();
        queue.set_ready(true);
        let mut read = 0;
        while let Some(chain) = queue.pop_descriptor_chain(&memory) {
            check(&GuestRequest::read(chain), forged, &memory, &bytes);
            read += 1;
        }
        assert!(read <= forged.heads.len(), "no entry comes twice");
    });
}

/// Asserts on what a request may ask of the stack.
fn check(request: &GuestRequest, forged: &ForgedQueue, memory: &GuestMemoryMmap, bytes: &[u8]) {
    let disk = forged.disk();
    assert!(
        request.readable.pieces.len() + request.writable.pieces.len() <= usize::from(QUEUE_ENTRIES_MAX) + 1
    );
    let sum = |bytes: &GuestBytes| bytes.pieces.iter().map(|(_, len)| u64::from(*len)).sum::<u64>();
    assert!(
        request.readable.len() == sum(&request.readable) && request.writable.len() == sum(&request.writable)
    );
    let io = match request.work(&disk, memory, forged.durable) {
        GuestWork::Refused(status) => return assert_ne!(status, STATUS_OK),
        GuestWork::Data(id) => return assert!(id.len() as u64 <= request.writable.len() && request.is_whole),
        GuestWork::Io(io) => io,
    };
    assert!(request.is_whole && request.status.is_some());
    assert!(io.extent().is_none_or(|extent| extent.end().0 <= DISK_SECTORS));
    // The pieces again, from the copy of the memory.
    let piece = |(at, len): &(GuestAddress, u32)| bytes[at.0 as usize..][..*len as usize].to_vec();
    match &io {
        Io::Read { buf, .. } => assert_eq!(buf.len() as u64, request.writable.len()),
        Io::Write { buf, durability, .. } => {
            let sent: Vec<u8> = request.readable.pieces.iter().flat_map(piece).collect();
            assert!(buf.bytes() == &sent[HEAD_BYTES..], "the bytes are those of the machine");
            assert!(!forged.read_only && (*durability == Durability::Durable) == forged.durable);
        }
        Io::Flush => {}
        _ => assert!(!forged.read_only),
    }
}
