//! Virtual machines without a machine: queues in a memfd, and the client of the crate `vhost` for the messages.

use std::os::fd::{AsFd as _, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::front_end_tests::common::{Disk, SourceDriver, pattern};
use crate::vhost::{VhostUserDisk, VhostUserOptions};
use dcd_engine::{Durability, ErrorKind, Io, IoError, IoResult};
use dcd_io::{Actions, Ending, FrontEnd, FrontEndNews};
use dcd_serve::Outlives;
use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::bindings::virtio_blk as b;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

const DISK_BYTES: usize = 16 << 20;
/// The machine's memory does not begin at 0, and the client has it elsewhere.
const MEMORY_AT: u64 = 0x10_0000;
const MEMORY_BYTES: u64 = 16 << 20;
const CLIENT_AT: u64 = 0x7000_0000_0000;
const ENTRIES: u16 = 16;
/// Rings of a queue: descriptors, entries on offer, entries used.
const QUEUE_BYTES: u64 = 0x3000;
const HEAD: u64 = MEMORY_AT + 0x10_0000;
const STATUS: u64 = HEAD + 0x1000;
const DATA: u64 = HEAD + 0x10_0000;
const FLUSH: u64 = 1 << b::VIRTIO_BLK_F_FLUSH;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const LIMIT: Duration = Duration::from_secs(20);

/// A descriptor: address, length, flags.
type RawDescriptor = (u64, u32, u16);

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A machine with two queues, of which it may lose its connection.
struct MemfdGuest {
    memory: GuestMemoryMmap,
    client: Option<Frontend>,
    kicks: Vec<EventFd>,
    calls: Vec<EventFd>,
    /// Requests that were offered in each queue.
    offered: [u16; 2],
}

impl MemfdGuest {
    fn new() -> MemfdGuest {
        let fd: OwnedFd = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::from(fd);
        file.set_len(MEMORY_BYTES).unwrap();
        let range = (GuestAddress(MEMORY_AT), MEMORY_BYTES as usize, Some(FileOffset::new(file, 0)));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).unwrap();
        let events = || (0..2).map(|_| EventFd::new(EFD_NONBLOCK).unwrap()).collect();
        MemfdGuest { memory, client: None, kicks: events(), calls: events(), offered: [0; 2] }
    }

    fn region(&self) -> VhostUserMemoryRegionInfo {
        let region = self.memory.iter().next().unwrap();
        let info = VhostUserMemoryRegionInfo::from_guest_region(region).unwrap();
        VhostUserMemoryRegionInfo { userspace_addr: CLIENT_AT, ..info }
    }

    /// Connects with all features but some.
    fn connect(&mut self, path: &Path, without: u64) {
        self.connect_by(UnixStream::connect(path).unwrap(), without);
    }

    fn connect_by(&mut self, connection: UnixStream, without: u64) {
        let mut client = Frontend::from_stream(connection, 2);
        client.set_owner().unwrap();
        let features = client.get_features().unwrap() & !without;
        let protocol = client.get_protocol_features().unwrap();
        assert!(protocol.contains(VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::MQ));
        // Pieces of memory would be missing while requests run.
        assert!(!protocol.contains(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS));
        client.set_protocol_features(protocol).unwrap();
        client.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        // Without the index of events, which would have to be kept in the rings.
        client.set_features(features & !(1 << 29)).unwrap();
        client.set_mem_table(&[self.region()]).unwrap();
        for queue in 0..2 {
            client.set_vring_num(queue, ENTRIES).unwrap();
            let at = CLIENT_AT + queue as u64 * QUEUE_BYTES;
            let rings = VringConfigData {
                queue_max_size: ENTRIES,
                queue_size: ENTRIES,
                flags: 0,
                desc_table_addr: at,
                avail_ring_addr: at + 0x1000,
                used_ring_addr: at + 0x2000,
                log_addr: None,
            };
            client.set_vring_base(queue, self.used(queue)).unwrap();
            client.set_vring_addr(queue, &rings).unwrap();
            client.set_vring_kick(queue, &self.kicks[queue]).unwrap();
            client.set_vring_call(queue, &self.calls[queue]).unwrap();
            client.set_vring_enable(queue, true).unwrap();
        }
        self.client = Some(client);
    }

    fn put<T: vm_memory::ByteValued>(&self, value: T, at: u64) {
        self.memory.write_obj(value, GuestAddress(at)).unwrap();
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }

    fn used(&self, queue: usize) -> u16 {
        let at = MEMORY_AT + queue as u64 * QUEUE_BYTES + 0x2002;
        self.memory.load(GuestAddress(at), Ordering::Acquire).unwrap()
    }

    /// The entry and the bytes that the n-th answer names.
    fn used_entry(&self, queue: usize, nth: u16) -> (u32, u32) {
        let at = MEMORY_AT + queue as u64 * QUEUE_BYTES + 0x2004 + u64::from(nth % ENTRIES) * 8;
        let words: [u32; 2] = self.memory.read_obj(GuestAddress(at)).unwrap();
        (words[0], words[1])
    }

    fn describe(&self, queue: usize, entry: u16, (address, len, flags): RawDescriptor, next: Option<u16>) {
        let at = MEMORY_AT + queue as u64 * QUEUE_BYTES + u64::from(entry) * 16;
        self.put(address, at);
        self.put(len, at + 8);
        self.put(flags | u16::from(next.is_some()), at + 12);
        self.put(next.unwrap_or(0), at + 14);
    }

    /// Offers the chain that begins at an entry.
    fn offer(&mut self, queue: usize, entry: u16) {
        let at = MEMORY_AT + queue as u64 * QUEUE_BYTES + 0x1000;
        self.put(entry, at + 4 + u64::from(self.offered[queue] % ENTRIES) * 2);
        self.offered[queue] = self.offered[queue].wrapping_add(1);
        self.memory.store(self.offered[queue], GuestAddress(at + 2), Ordering::Release).unwrap();
        self.kicks[queue].write(1).unwrap();
    }

    /// Offers pieces from an entry on.
    fn submit(&mut self, queue: usize, entry: u16, pieces: &[RawDescriptor]) {
        for (nth, piece) in pieces.iter().enumerate() {
            let place = entry + nth as u16;
            self.describe(queue, place, *piece, (nth + 1 < pieces.len()).then_some(place + 1));
        }
        self.offer(queue, entry);
    }

    fn head(&self, at: u64, kind: u32, sector: u64) -> RawDescriptor {
        self.put(kind, at);
        self.put(0u32, at + 4);
        self.put(sector, at + 8);
        (at, 16, 0)
    }

    /// Runs one request to its end; returns its status.
    fn run(&mut self, pieces: &[RawDescriptor]) -> u8 {
        self.put(0xffu8, STATUS);
        self.submit(0, 0, pieces);
        until("an answer", || self.used(0) == self.offered[0]);
        self.bytes(STATUS, 1)[0]
    }

    fn write(&mut self, sector: u64, data: &[u8]) -> u8 {
        self.memory.write_slice(data, GuestAddress(DATA)).unwrap();
        let head = self.head(HEAD, b::VIRTIO_BLK_T_OUT, sector);
        self.run(&[head, (DATA, data.len() as u32, 0), (STATUS, 1, WRITE)])
    }

    fn read(&mut self, sector: u64, len: u32) -> Result<Vec<u8>, u8> {
        let head = self.head(HEAD, b::VIRTIO_BLK_T_IN, sector);
        // In pieces that are no sectors, and with the status in the last one.
        self.put([0x11u8; 32], DATA);
        let pieces = [head, (DATA, 100, WRITE), (DATA + 100, len - 100 + 1, WRITE)];
        self.put(0xffu8, DATA + u64::from(len));
        self.submit(0, 0, &pieces);
        until("an answer", || self.used(0) == self.offered[0]);
        assert!(self.used_entry(0, self.offered[0].wrapping_sub(1)).1 >= 1);
        match self.bytes(DATA + u64::from(len), 1)[0] {
            0 => Ok(self.bytes(DATA, len as usize)),
            status => Err(status),
        }
    }

    fn free(&mut self, kind: u32, sector: u64, sectors: u32, flags: u32) -> u8 {
        let head = self.head(HEAD, kind, 0);
        self.put(sector, HEAD + 16);
        self.put(sectors, HEAD + 24);
        self.put(flags, HEAD + 28);
        self.run(&[head, (HEAD + 16, 16, 0), (STATUS, 1, WRITE)])
    }

    fn flush(&mut self) -> u8 {
        let head = self.head(HEAD, b::VIRTIO_BLK_T_FLUSH, 0);
        self.run(&[head, (STATUS, 1, WRITE)])
    }

    /// Offers a write of one sector of this number, to that sector.
    fn begin_write(&mut self, number: u8) {
        let at = DATA + u64::from(number) * 0x1000;
        self.memory.write_slice(&[number; 512], GuestAddress(at)).unwrap();
        let head = self.head(at + 512, b::VIRTIO_BLK_T_OUT, u64::from(number));
        self.put(0xffu8, at + 1024);
        let entry = u16::from(number) % 5 * 3;
        self.submit(0, entry, &[head, (at, 512, 0), (at + 1024, 1, WRITE)]);
    }
}

struct ServedSocket {
    _directory: tempfile::TempDir,
    path: PathBuf,
    disk: Arc<Disk>,
}

impl ServedSocket {
    fn new() -> ServedSocket {
        let directory = tempfile::tempdir().unwrap();
        ServedSocket {
            path: directory.path().join("vm.sock"),
            _directory: directory,
            disk: Disk::new(DISK_BYTES),
        }
    }

    fn listen(&self, outlives: Outlives) -> VhostUserDisk {
        self.listen_on_changed(outlives, None)
    }

    fn listen_on_changed(&self, outlives: Outlives, changed: Option<&'static str>) -> VhostUserDisk {
        let options =
            VhostUserOptions { outlives, changed, serial: "cache".to_owned(), ..VhostUserOptions::default() };
        VhostUserDisk::listen(&self.path, self.disk.geometry(512), &options).unwrap()
    }

    fn start(&self, outlives: Outlives) -> SourceDriver {
        SourceDriver::start(&self.disk, self.listen(outlives))
    }
}

/// Requests of a front-end that the test drives itself.
fn requests(front_end: &mut VhostUserDisk, count: usize) -> Vec<(u64, Io)> {
    let mut actions = Actions::default();
    until("requests", || {
        front_end.rang(&mut actions);
        actions.requests.len() >= count
    });
    assert_eq!(actions.requests.len(), count);
    actions.requests
}

fn reply(front_end: &mut VhostUserDisk, disk: &Disk, (token, io): (u64, Io)) {
    front_end.reply(token, disk.run(io), &mut Actions::default());
}

/// Waits until the machine is disconnected, and why.
fn until_disconnected(front_end: &mut VhostUserDisk, why: &str) {
    until("the end of the connection", || !front_end.condition().has_device);
    match front_end.take_news() {
        Some(FrontEndNews::Warning(what)) => assert!(what.contains(why), "{what}"),
        news => panic!("{news:?} instead of: {why}"),
    }
    assert_eq!(front_end.take_news(), None);
}

fn sector_of(request: &(u64, Io)) -> u64 {
    request.1.extent().unwrap().start.0
}

#[test]
fn a_machine_reads_what_it_wrote() {
    let served = ServedSocket::new();
    let _driver = served.start(Outlives::Answered);
    let mut guest = MemfdGuest::new();
    guest.connect(&served.path, 0);
    let client = guest.client.as_mut().unwrap();
    let (_, config) = client.get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60]).unwrap();
    assert_eq!(config[..8], (DISK_BYTES as u64 / 512).to_le_bytes());
    assert_eq!(client.get_queue_num().unwrap(), 4);
    let data = pattern(3, 300 << 10);
    assert_eq!(guest.write(77, &data), 0);
    assert_eq!(guest.read(77, data.len() as u32), Ok(data.clone()));
    assert!(served.disk.bytes.lock().unwrap()[77 * 512..][..data.len()] == data);
    assert!(guest.calls[0].read().is_ok(), "the machine is interrupted");
    assert_eq!(served.disk.durable.load(Ordering::Relaxed), 0, "it flushes itself");
    assert_eq!((guest.flush(), served.disk.flushes.load(Ordering::Relaxed)), (0, 1));
    let head = guest.head(HEAD, b::VIRTIO_BLK_T_GET_ID, 0);
    assert_eq!(guest.run(&[head, (DATA, 20, WRITE), (STATUS, 1, WRITE)]), 0);
    assert_eq!(guest.bytes(DATA, 20), *b"cache\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(guest.free(b::VIRTIO_BLK_T_DISCARD, 78, 2, 0), 0);
    assert_eq!(guest.free(b::VIRTIO_BLK_T_WRITE_ZEROES, 80, 2, 1), 0);
    assert_eq!(guest.read(78, 2048), Ok(vec![0; 2048]));
    assert_eq!(served.disk.discards.load(Ordering::Relaxed), 1);
    *served.disk.failing.lock().unwrap() = Some(ErrorKind::Medium);
    assert_eq!((guest.write(1, &[1; 512]), guest.read(1, 512)), (1, Err(1)));
}

#[test]
fn writes_of_a_machine_that_cannot_flush_are_durable() {
    let durable = |outlives, without| {
        let served = ServedSocket::new();
        let _driver = served.start(outlives);
        let mut guest = MemfdGuest::new();
        guest.connect(&served.path, without);
        assert_eq!(guest.write(0, &[1; 4096]), 0);
        served.disk.durable.load(Ordering::Relaxed)
    };
    assert_eq!(durable(Outlives::Answered, 0), 0);
    assert_eq!(durable(Outlives::Answered, FLUSH), 1);
    assert_eq!(durable(Outlives::Durable, 0), 1, "answered writes would not survive the server");
    let served = ServedSocket::new();
    let mut front_end = served.listen(Outlives::Answered);
    let mut guest = MemfdGuest::new();
    guest.connect(&served.path, FLUSH);
    let head = guest.head(HEAD, b::VIRTIO_BLK_T_WRITE_ZEROES, 0);
    guest.put([0u8, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0], HEAD + 16);
    guest.submit(0, 0, &[head, (HEAD + 16, 16, 0), (STATUS, 1, WRITE)]);
    let zeroes = requests(&mut front_end, 1).remove(0).1;
    assert!(matches!(zeroes, Io::WriteZeroes { durability: Durability::Durable, unmap: false, .. }));
}

#[test]
fn requests_that_make_no_sense_are_refused_and_the_next_is_served() {
    let served = ServedSocket::new();
    let _driver = served.start(Outlives::Answered);
    let mut guest = MemfdGuest::new();
    guest.connect(&served.path, 0);
    assert_eq!(guest.write(0, &[7; 4096]), 0);
    let sectors = DISK_BYTES as u64 / 512;
    let end = MEMORY_AT + MEMORY_BYTES;
    let status = (STATUS, 1, WRITE);
    let head_in = (HEAD, 16, 0);
    let (read, write) = (b::VIRTIO_BLK_T_IN, b::VIRTIO_BLK_T_OUT);
    let refused: &[(&str, u32, u64, &[RawDescriptor], u8)] = &[
        ("at the end", read, sectors, &[head_in, (DATA, 512, WRITE), status], 1),
        ("over the end", write, sectors - 1, &[head_in, (DATA, 1024, 0), status], 1),
        ("wrapped", read, u64::MAX, &[head_in, (DATA, 512, WRITE), status], 1),
        ("no whole sector", write, 0, &[head_in, (DATA, 500, 0), status], 1),
        ("no data", read, 0, &[head_in, status], 1),
        ("memory that does not exist", write, 0, &[head_in, (end - 256, 512, 0), status], 1),
        ("memory below", read, 0, &[head_in, (0, 512, WRITE), status], 1),
        ("a wrapped address", write, 0, &[head_in, (u64::MAX - 100, 512, 0), status], 1),
        ("a wrapped address to read to", read, 0, &[head_in, (u64::MAX - 511, 512, WRITE), status], 1),
        ("too much", read, 0, &[head_in, (DATA, u32::MAX - 511, WRITE), status], 1),
        ("more than 32 bits", read, 0, &[head_in, (DATA, u32::MAX, WRITE), status], 0xff),
        ("half a head", write, 0, &[(HEAD, 8, 0), status], 1),
        ("a head that cannot be read", write, 0, &[(end, 16, 0), (DATA, 512, 0), status], 1),
        ("data after the status", write, 0, &[head_in, status, (DATA, 512, 0)], 1),
        ("an unknown kind", 99, 0, &[head_in, (DATA, 512, 0), status], 2),
        ("two ranges", b::VIRTIO_BLK_T_DISCARD, 0, &[head_in, (DATA, 32, 0), status], 1),
        ("a table in no memory", write, 0, &[(end, 64, INDIRECT), status], 0xff),
        ("an odd table", write, 0, &[(DATA, 17, INDIRECT), status], 0xff),
        ("no status", read, 0, &[head_in], 0xff),
    ];
    for (what, kind, sector, pieces, expected) in refused {
        guest.head(HEAD, *kind, *sector);
        assert_eq!(guest.run(pieces), *expected, "{what}");
    }
    assert_eq!(guest.free(b::VIRTIO_BLK_T_DISCARD, 0, 8, 1), 2, "a discard has no flags");
    assert_eq!(guest.free(b::VIRTIO_BLK_T_WRITE_ZEROES, 0, 8, 2), 2);
    assert_eq!(guest.free(b::VIRTIO_BLK_T_WRITE_ZEROES, u64::MAX, 8, 0), 1);
    assert_eq!(guest.free(b::VIRTIO_BLK_T_DISCARD, 0, u32::MAX, 0), 1);
    // A loop, an entry that does not exist, and the same behind a head.
    let head = guest.head(HEAD, write, 0);
    guest.describe(0, 0, head, Some(1));
    guest.describe(0, 1, (DATA, 512, 0), Some(0));
    guest.offer(0, 0);
    guest.describe(0, 3, head, Some(ENTRIES));
    guest.offer(0, 3);
    until("both are answered", || guest.used(0) == guest.offered[0]);
    let (bytes, discards) = (served.disk.bytes.lock().unwrap()[..4096].to_vec(), &served.disk.discards);
    assert!(bytes == [7; 4096] && discards.load(Ordering::Relaxed) == 0, "nothing was changed");
    // Another queue is served all the same, with a table of descriptors beside it.
    let head = guest.head(HEAD, read, 0);
    for (nth, (address, len, flags)) in [head, (DATA + 4096, 512, WRITE), status].into_iter().enumerate() {
        let at = DATA + nth as u64 * 16;
        guest.put(address, at);
        guest.put(len, at + 8);
        guest.put(flags | u16::from(nth < 2), at + 12);
        guest.put(nth as u16 + 1, at + 14);
    }
    guest.submit(1, 0, &[(DATA, 48, INDIRECT)]);
    until("an answer", || guest.used(1) == 1);
    assert_eq!(guest.bytes(DATA + 4096, 512), [7; 512]);
    // An index that is far ahead stops its queue, and nothing else.
    guest.offered[0] = guest.offered[0].wrapping_add(1000);
    guest.offer(0, 0);
    guest.submit(1, 0, &[(DATA, 48, INDIRECT)]);
    until("an answer", || guest.used(1) == 2);
}

#[test]
fn requests_that_a_server_has_not_answered_are_carried_out_by_the_next() {
    let served = ServedSocket::new();
    let mut front_end = served.listen(Outlives::Answered);
    let mut guest = MemfdGuest::new();
    guest.connect(&served.path, 0);
    (1..=5).for_each(|number| guest.begin_write(number));
    let mut begun = requests(&mut front_end, 5);
    assert_eq!(begun.iter().map(sector_of).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    // Answered out of order: the machine hears of the first three alone.
    for place in [4, 2, 1, 0] {
        reply(&mut front_end, &served.disk, begun.remove(place));
    }
    until("the first answers", || guest.used(0) >= 2);
    thread::sleep(Duration::from_millis(20));
    let answers: Vec<u32> = (0..3).map(|nth| guest.used_entry(0, nth).0).collect();
    assert_eq!((guest.used(0), answers), (3, vec![3, 6, 9]), "the fourth is not complete");
    // A killed server: its socket closes, and the queues stay.
    drop(front_end);
    guest.begin_write(6);
    let mut front_end = served.listen(Outlives::Answered);
    while guest.calls[0].read().is_ok() {}
    guest.connect(&served.path, 0);
    let begun = requests(&mut front_end, 3);
    assert_eq!(begun.iter().map(sector_of).collect::<Vec<_>>(), [4, 5, 6]);
    assert!(guest.calls[0].read().is_ok(), "an interrupt may be missing");
    for request in begun {
        reply(&mut front_end, &served.disk, request);
    }
    until("all answers", || guest.used(0) == guest.offered[0]);
    for number in 1..=6u8 {
        let bytes = &served.disk.bytes.lock().unwrap()[usize::from(number) * 512..][..512];
        assert!(bytes.iter().all(|byte| *byte == number), "sector {number}");
        let status = guest.bytes(DATA + u64::from(number) * 0x1000 + 1024, 1);
        assert_eq!(status, [0], "{number}");
    }
}

#[test]
fn a_machine_that_connects_again_comes_after_its_earlier_requests() {
    let served = ServedSocket::new();
    let mut front_end = served.listen(Outlives::Answered);
    let mut guest = MemfdGuest::new();
    guest.connect(&served.path, 0);
    guest.begin_write(1);
    let earlier = requests(&mut front_end, 1).remove(0);
    guest.client = None;
    until("the end of the connection", || !front_end.condition().has_device);
    let path = served.path.clone();
    let connects = thread::spawn(move || {
        guest.connect(&path, 0);
        guest
    });
    thread::sleep(Duration::from_millis(100));
    assert!(!front_end.condition().has_device, "its write may still come to the disk");
    reply(&mut front_end, &served.disk, earlier);
    let guest = connects.join().unwrap();
    let again = requests(&mut front_end, 1).remove(0);
    assert_eq!(sector_of(&again), 1);
    reply(&mut front_end, &served.disk, again);
    until("an answer", || guest.used(0) == 1);
}

#[test]
fn an_interrupt_that_went_to_an_earlier_descriptor_is_repeated() {
    let served = ServedSocket::new();
    let _driver = served.start(Outlives::Answered);
    let mut guest = MemfdGuest::new();
    guest.connect(&served.path, 0);
    assert_eq!(guest.write(1, &[1; 512]), 0);
    // As QEMU does: nobody listens to the descriptor that it hands over before it enables the queue.
    let call = EventFd::new(EFD_NONBLOCK).unwrap();
    guest.client.as_ref().unwrap().set_vring_call(0, &call).unwrap();
    assert_eq!(call.read().unwrap(), 1);
}

#[test]
fn an_answer_that_the_machine_does_not_get_whole_is_not_published() {
    let served = ServedSocket::new();
    let mut front_end = served.listen(Outlives::Answered);
    let mut guest = MemfdGuest::new();
    guest.connect(&served.path, 0);
    let mut elsewhere = guest.region();
    elsewhere.guest_phys_addr += 1 << 32;
    guest.begin_write(1);
    let begun = requests(&mut front_end, 1).remove(0);
    guest.client.as_ref().unwrap().set_mem_table(&[elsewhere]).unwrap();
    reply(&mut front_end, &served.disk, begun);
    until_disconnected(&mut front_end, "its memory does not take an answer");
    assert_eq!(guest.used(0), 0);
    // The next connection has it carried out again.
    guest.connect(&served.path, 0);
    let again = requests(&mut front_end, 1).remove(0);
    assert_eq!(sector_of(&again), 1);
    reply(&mut front_end, &served.disk, again);
    until("an answer", || guest.used(0) == 1);
    // An entry that does not exist cannot be answered, and what comes after it waits for the answers before.
    guest.offer(0, ENTRIES + 5);
    guest.begin_write(2);
    until("the end of the connection", || !front_end.condition().has_device);
    assert_eq!((guest.used(0), front_end.take_news()), (1, None), "the same is told once");
}

#[test]
fn a_kick_that_cannot_be_silenced_ends_the_connection() {
    let served = ServedSocket::new();
    let mut front_end = served.listen(Outlives::Answered);
    let mut guest = MemfdGuest::new();
    let connection = UnixStream::connect(&served.path).unwrap();
    guest.connect_by(connection.try_clone().unwrap(), 0);
    let (at_its_end, other) = std::io::pipe().unwrap();
    drop(other);
    // SET_VRING_KICK of queue 0, by hand: code, version, length, queue.
    let mut message = [0u8; 20];
    (message[0], message[4], message[8]) = (12, 1, 8);
    let descriptors = [at_its_end.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let bytes = [std::io::IoSlice::new(&message)];
    rustix::net::sendmsg(&connection, &bytes, &mut ancillary, SendFlags::empty()).unwrap();
    until_disconnected(&mut front_end, "no eventfd");
    guest.connect(&served.path, 0);
    until("the next connection", || front_end.condition().has_device);
}

#[test]
fn a_machine_that_knows_another_content_of_the_disk_is_refused() {
    let served = ServedSocket::new();
    let mut guest = MemfdGuest::new();
    let driver = served.start(Outlives::Answered);
    guest.connect(&served.path, 0);
    assert_eq!(guest.write(1, &[1; 512]), 0);
    drop(driver);
    let mut front_end = served.listen_on_changed(Outlives::Answered, Some("the disk is another"));
    let old = thread::spawn({
        let path = served.path.clone();
        move || guest.connect(&path, 0)
    });
    assert!(old.join().is_err());
    until_disconnected(&mut front_end, "the disk is another: shut it down");
    // One that boots is let in, also after its connection.
    let _driver = SourceDriver::start(&served.disk, front_end);
    let mut guest = MemfdGuest::new();
    for number in 1..=2 {
        guest.connect(&served.path, 0);
        assert_eq!(guest.write(number, &[1; 512]), 0);
        guest.client = None;
    }
}

#[test]
fn a_queue_is_stopped_after_its_requests() {
    let served = ServedSocket::new();
    let mut front_end = served.listen(Outlives::Answered);
    let mut guest = MemfdGuest::new();
    guest.connect(&served.path, 0);
    guest.begin_write(1);
    guest.begin_write(2);
    let begun = requests(&mut front_end, 2);
    let client = guest.client.clone().unwrap();
    let stops = thread::spawn(move || client.get_vring_base(0).unwrap());
    thread::sleep(Duration::from_millis(100));
    assert!(!stops.is_finished(), "its requests may still use the machine's memory");
    for request in begun {
        reply(&mut front_end, &served.disk, request);
    }
    assert_eq!(stops.join().unwrap(), 2);
    guest.begin_write(3);
    thread::sleep(Duration::from_millis(50));
    let mut actions = Actions::default();
    front_end.rang(&mut actions);
    assert!(actions.requests.is_empty(), "it is stopped");
    // A server that ends does not wait for a client that waits.
    let client = guest.client.as_mut().unwrap();
    client.set_vring_kick(0, &guest.kicks[0]).unwrap();
    requests(&mut front_end, 1);
    let client = guest.client.clone().unwrap();
    let stops = thread::spawn(move || client.get_vring_base(0));
    thread::sleep(Duration::from_millis(50));
    drop(front_end);
    assert!(stops.join().unwrap().is_err());
}

#[test]
fn memory_for_requests_is_bounded() {
    let served = ServedSocket::new();
    let mut front_end = served.listen(Outlives::Answered);
    let mut guest = MemfdGuest::new();
    guest.connect(&served.path, 0);
    let len = 8u32 << 20;
    let head = guest.head(HEAD, b::VIRTIO_BLK_T_IN, 0);
    for _ in 0..12 {
        guest.submit(0, 0, &[head, (DATA, len, WRITE), (STATUS, 1, WRITE)]);
    }
    let begun = requests(&mut front_end, 8);
    thread::sleep(Duration::from_millis(50));
    let mut actions = Actions::default();
    front_end.rang(&mut actions);
    assert!(actions.requests.is_empty(), "64 MiB are in flight");
    for request in begun {
        reply(&mut front_end, &served.disk, request);
    }
    for request in requests(&mut front_end, 4) {
        reply(&mut front_end, &served.disk, request);
    }
    until("all answers", || guest.used(0) == 12);
    // More refusals than the queue has entries, at once.
    let head = guest.head(HEAD, 99, 0);
    for _ in 0..50 {
        guest.submit(0, 0, &[head, (STATUS, 1, WRITE)]);
        until("an answer", || guest.used(0) == guest.offered[0]);
    }
}

#[test]
fn a_disk_that_a_machine_has_is_not_taken_away() {
    let served = ServedSocket::new();
    let mut front_end = served.listen(Outlives::Answered);
    assert!(!front_end.condition().has_device && front_end.user().is_none());
    let mut guest = MemfdGuest::new();
    guest.connect(&served.path, 0);
    let condition = front_end.condition();
    assert!(condition.has_device && condition.holds_requests && !condition.outlives_server);
    let user = front_end.user().and_then(|look| look()).unwrap();
    assert!(!user.is_empty());
    assert!(matches!(front_end.withdraw(), Ending::Leave(_)));
    guest.client = None;
    until("the end of the connection", || !front_end.condition().has_device);
    assert!(matches!(front_end.withdraw(), Ending::Remove(_)));
    // Another front-end of the disk is in use, so all stay.
    front_end.stay(&mut Actions::default());
    guest.connect(&served.path, 0);
    assert!(matches!(front_end.withdraw(), Ending::Leave(_)));
    guest.client = None;
    until("the end of the connection", || !front_end.condition().has_device);
    let Ending::Remove(task) = front_end.withdraw() else { panic!("nobody has it") };
    task().unwrap();
    assert!(!served.path.exists());
    // A reply that comes too late does no harm.
    let failed = IoResult::err(dcd_engine::Buf::none(), IoError::new(ErrorKind::Shutdown));
    front_end.reply(0, failed, &mut Actions::default());
}

#[test]
fn a_client_that_breaks_the_protocol_is_disconnected_and_the_next_is_served() {
    let served = ServedSocket::new();
    let _driver = served.start(Outlives::Answered);
    let breaks: [fn(&Frontend, &mut MemfdGuest); 5] = [
        |client, _| assert!(client.set_features(u64::MAX).is_err()),
        |client, _| assert!(client.set_vring_num(0, 3).is_err()),
        |client, guest| assert!(client.set_vring_kick(1, &guest.kicks[0]).is_err(), "no rings in its memory"),
        |client, guest| {
            let region = VhostUserMemoryRegionInfo { memory_size: 1 << 40, ..guest.region() };
            assert!(client.set_mem_table(&[region]).is_err(), "more than its file has");
        },
        |client, _| {
            let rings =
                VringConfigData { desc_table_addr: 8, avail_ring_addr: 8, used_ring_addr: 8, ..rings() };
            assert!(client.set_vring_addr(0, &rings).is_err());
        },
    ];
    for break_it in breaks {
        let mut guest = MemfdGuest::new();
        let mut client = Frontend::connect(&served.path, 2).unwrap();
        client.get_features().unwrap();
        let protocol = client.get_protocol_features().unwrap();
        client.set_protocol_features(protocol).unwrap();
        client.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        break_it(&client, &mut guest);
    }
    let mut guest = MemfdGuest::new();
    guest.connect(&served.path, 0);
    assert_eq!(guest.write(0, &[1; 512]), 0);
    // Half a message, and then a server that ends.
    let half = std::os::unix::net::UnixStream::connect(&served.path).unwrap();
    guest.client = None;
    std::io::Write::write_all(&mut &half, &[1, 0, 0]).unwrap();
    assert!(half.as_raw_fd() >= 0);
    thread::sleep(Duration::from_millis(50));
}

fn rings() -> VringConfigData {
    VringConfigData {
        queue_max_size: ENTRIES,
        queue_size: ENTRIES,
        flags: 0,
        desc_table_addr: 0,
        used_ring_addr: 0,
        avail_ring_addr: 0,
        log_addr: None,
    }
}
