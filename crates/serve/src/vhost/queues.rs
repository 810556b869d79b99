//! The virtqueues of one machine: messages of its client set them up, requests come out of them, and answers go back in.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dcd_engine::Io;
use rustix::event::{PollFd, PollFlags};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
    VhostUserVirtioFeatures,
};
use virtio_bindings::bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap, GuestRegionMmap};

use super::disk::{QUEUE_ENTRIES_MAX, QUEUES, VirtioDisk};
use super::handover::Handover;
use super::request::{GuestRequest, GuestWork, STATUS_ERROR, STATUS_OK, status_of};
use super::thread::disconnected_as;

/// Bytes that requests without an answer hold. A queue is not read while there are more, so that one request can exceed this.
const FLIGHT_BYTES_MAX: usize = 64 << 20;
/// Low bits of a token, which count the requests of a queue.
const COUNT_BITS: u32 = 56;

/// A request that is not answered yet, as it or one before it is not complete.
struct WaitingRequest {
    request: GuestRequest,
    reads: bool,
    /// Status, and bytes of data in the machine's memory.
    complete: Option<(u8, u32)>,
    flight_bytes: usize,
}

struct VirtioQueue {
    queue: Queue,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    is_enabled: bool,
    waiting: VecDeque<WaitingRequest>,
    /// Number of requests before the first one that waits.
    answered: u64,
}

impl VirtioQueue {
    fn new() -> VirtioQueue {
        VirtioQueue {
            queue: Queue::new(QUEUE_ENTRIES_MAX).expect("a power of two"),
            kick: None,
            call: None,
            is_enabled: false,
            waiting: VecDeque::new(),
            answered: 0,
        }
    }

    fn runs(&self) -> bool {
        self.kick.is_some() && self.is_enabled && self.queue.ready()
    }

    /// Interrupts the machine. The descriptor does not block.
    fn interrupt(&self) {
        if let Some(call) = &self.call {
            let _ = rustix::io::write(call, &1u64.to_ne_bytes());
        }
    }
}

/// A piece of the machine's memory: its address in the client, and in the machine.
struct Mapped {
    client: u64,
    guest: u64,
    bytes: u64,
}

/// See the module's documentation.
pub struct VirtioQueues {
    disk: VirtioDisk,
    handover: Arc<Handover>,
    /// Clone of the connection, whose end a wait notices; none once it has ended. Then nothing is read or answered.
    connection: Option<UnixStream>,
    queues: Vec<VirtioQueue>,
    memory: GuestMemoryMmap,
    mapped: Vec<Mapped>,
    features: u64,
    flight_bytes: usize,
    /// Requests that the driver has.
    unanswered: usize,
}

fn data_bytes(io: &Io) -> usize {
    match io {
        Io::Read { buf, .. } | Io::Write { buf, .. } => buf.len(),
        _ => 0,
    }
}

fn system(error: impl Into<std::io::Error>) -> Error {
    Error::ReqHandlerError(error.into())
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ReqHandlerError(std::io::Error::other(error))
}

impl VirtioQueues {
    pub fn new(disk: VirtioDisk, handover: Arc<Handover>, connection: UnixStream) -> VirtioQueues {
        VirtioQueues {
            disk,
            handover,
            connection: Some(connection),
            queues: (0..QUEUES).map(|_| VirtioQueue::new()).collect(),
            memory: GuestMemoryMmap::new(),
            mapped: Vec::new(),
            features: 0,
            flight_bytes: 0,
            unanswered: 0,
        }
    }

    /// Descriptors that announce requests.
    pub fn kicks(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let running = self.queues.iter().filter(|queue| queue.runs());
        running.filter_map(|queue| queue.kick.as_ref().map(AsFd::as_fd))
    }

    /// Requests that the driver has not answered.
    pub fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// True once the machine is disconnected.
    pub fn has_ended(&self) -> bool {
        self.connection.is_none()
    }

    /// The client is gone: its memory is released, and answers are only counted.
    pub fn abandon(&mut self) {
        self.connection = None;
        self.queues = Vec::new();
        self.memory = GuestMemoryMmap::new();
        self.mapped = Vec::new();
    }

    /// Hands all new requests to the driver, until too many are in flight.
    pub fn read(&mut self) {
        for index in 0..self.queues.len() {
            if self.queues[index].runs() {
                self.read_queue(index);
            }
        }
    }

    fn read_queue(&mut self, index: usize) {
        let _ = self.queues[index].queue.disable_notification(&self.memory);
        let mut was_empty = false;
        while !self.handover.is_stopped() && !self.has_ended() {
            if !self.has_room(index) {
                self.answer(index);
                if !self.has_room(index) {
                    // The next answer leads here again.
                    return;
                }
            }
            let chain = self.queues[index].queue.pop_descriptor_chain(&self.memory);
            if let Some(request) = chain.map(GuestRequest::read) {
                was_empty = false;
                self.begin(index, request);
                continue;
            }
            self.answer(index);
            let has_more = self.queues[index].queue.enable_notification(&self.memory);
            // An index that makes no sense would always be more.
            if was_empty || !has_more.unwrap_or(false) {
                return;
            }
            was_empty = true;
        }
    }

    /// A machine could offer an entry again and again.
    fn has_room(&self, index: usize) -> bool {
        let VirtioQueue { queue, waiting, .. } = &self.queues[index];
        waiting.len() < usize::from(queue.size()) && self.flight_bytes < FLIGHT_BYTES_MAX
    }

    fn begin(&mut self, index: usize, request: GuestRequest) {
        let work = request.work(&self.disk, &self.memory, self.disk.writes_through(self.features));
        let mut flight_bytes = request.held_bytes();
        let reads = matches!(work, GuestWork::Io(Io::Read { .. }));
        let queue = &mut self.queues[index];
        let token = (index as u64) << COUNT_BITS | (queue.answered + queue.waiting.len() as u64);
        let complete = match work {
            GuestWork::Io(io) => {
                flight_bytes += data_bytes(&io);
                self.unanswered += 1;
                self.handover.request(token, io);
                None
            }
            GuestWork::Data(bytes) => Some(match request.writable.write(&self.memory, &bytes) {
                Ok(()) => (STATUS_OK, bytes.len() as u32),
                Err(_) => (STATUS_ERROR, 0),
            }),
            GuestWork::Refused(status) => Some((status, 0)),
        };
        self.flight_bytes += flight_bytes;
        queue.waiting.push_back(WaitingRequest { request, reads, complete, flight_bytes });
    }

    /// Takes the answers of the driver.
    pub fn take_answers(&mut self) {
        for (token, result) in self.handover.take_answers() {
            self.unanswered -= 1;
            let index = (token >> COUNT_BITS) as usize;
            let Some(queue) = self.queues.get_mut(index) else { continue };
            let place = (token & ((1 << COUNT_BITS) - 1)) - queue.answered;
            let waiting = &mut queue.waiting[place as usize];
            waiting.complete = Some(match result.status {
                Err(error) => (status_of(error), 0),
                Ok(()) if !waiting.reads => (STATUS_OK, 0),
                Ok(()) => match waiting.request.writable.write(&self.memory, result.buf.bytes()) {
                    Ok(()) => (STATUS_OK, result.buf.len() as u32),
                    Err(_) => (STATUS_ERROR, 0),
                },
            });
        }
        for index in 0..self.queues.len() {
            self.answer(index);
        }
    }

    /// Answers the first requests of a queue that are complete. Where the machine's memory does not take an answer whole, the machine is
    /// disconnected: the used index still names the request, which is carried out again for the next connection.
    fn answer(&mut self, index: usize) {
        let VirtioQueue { queue, waiting, answered, .. } = &mut self.queues[index];
        let before = *answered;
        while let Some(first) = waiting.front().filter(|_| self.connection.is_some())
            && let Some((status, bytes)) = first.complete
        {
            let request = &first.request;
            let status = request.status.map(|at| self.memory.write_obj(status, at).map(|()| 1));
            let written = status.unwrap_or(Ok(0)).map(|more| bytes + more);
            let is_told =
                written.is_ok_and(|bytes| queue.add_used(&self.memory, request.entry, bytes).is_ok());
            if is_told {
                self.flight_bytes -= first.flight_bytes;
                *answered += 1;
                waiting.pop_front();
            } else if let Some(connection) = self.connection.take() {
                disconnected_as(&self.handover, "its memory does not take an answer");
                let _ = connection.shutdown(std::net::Shutdown::Both);
            }
        }
        if *answered > before && queue.needs_notification(&self.memory).unwrap_or(true) {
            self.queues[index].interrupt();
        }
    }

    /// Waits until all requests of a queue are answered.
    fn drain(&mut self, index: usize) -> Result<()> {
        loop {
            self.take_answers();
            if self.queues[index].waiting.is_empty() {
                return Ok(());
            }
            let Some(connection) = self.connection.as_ref().filter(|_| !self.handover.is_stopped()) else {
                return Err(Error::Disconnected);
            };
            let mut polled = [
                PollFd::from_borrowed_fd(self.handover.thread_bell(), PollFlags::IN),
                PollFd::new(connection, PollFlags::RDHUP),
            ];
            match rustix::event::poll(&mut polled, None) {
                Ok(_) if polled[1].revents().is_empty() => {}
                Err(rustix::io::Errno::INTR) => {}
                _ => return Err(Error::Disconnected),
            }
        }
    }

    fn queue(&mut self, index: u32) -> Result<&mut VirtioQueue> {
        self.queues.get_mut(index as usize).ok_or(Error::InvalidParam)
    }

    /// The address in the machine of an address in the client.
    fn guest_address(&self, client: u64) -> Result<GuestAddress> {
        let guest = self.mapped.iter().find_map(|mapped| {
            let offset = client.checked_sub(mapped.client).filter(|offset| *offset < mapped.bytes)?;
            mapped.guest.checked_add(offset)
        });
        guest.map(GuestAddress).ok_or(Error::InvalidParam)
    }
}

/// Maps a piece of the machine's memory.
fn map(region: &VhostUserMemoryRegion, file: File) -> Result<(GuestRegionMmap, Mapped)> {
    let (guest, bytes) = (region.guest_phys_addr, region.memory_size);
    let end = region.mmap_offset.checked_add(bytes).ok_or(Error::InvalidParam)?;
    // A touch of memory that is mapped and is not in the file would end this process.
    if file.metadata().map_err(system)?.len() < end {
        return Err(Error::InvalidParam);
    }
    let made = GuestRegionMmap::new(region.mmap_region(file)?, GuestAddress(guest));
    Ok((made.ok_or(Error::InvalidParam)?, Mapped { client: region.user_addr, guest, bytes }))
}

/// Takes a descriptor of the client, which must not make the thread wait.
fn take_descriptor(file: Option<File>) -> Result<Option<OwnedFd>> {
    let Some(file) = file else { return Ok(None) };
    rustix::io::ioctl_fionbio(&file, true).map_err(system)?;
    Ok(Some(file.into()))
}

impl VhostUserBackendReqHandlerMut for VirtioQueues {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    /// Deprecated, without a meaning.
    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("RESET_DEVICE"))
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.disk.features())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.disk.features() != 0 {
            return Err(Error::InvalidParam);
        }
        self.features = features;
        for queue in &mut self.queues {
            queue.queue.set_event_idx(features & 1 << VIRTIO_RING_F_EVENT_IDX != 0);
            // Without messages that enable them, queues are enabled from the start.
            queue.is_enabled |= features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0;
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let made = regions.iter().zip(files).map(|(region, file)| map(region, file));
        let (memory, mapped): (Vec<_>, Vec<_>) = made.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        self.memory = GuestMemoryMmap::from_regions(memory).map_err(other)?;
        self.mapped = mapped;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, entries: u32) -> Result<()> {
        let entries = u16::try_from(entries).map_err(|_| Error::InvalidParam)?;
        self.queue(index)?.queue.try_set_size(entries).map_err(|_| Error::InvalidParam)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let [descriptor, used, available] = [descriptor, used, available].map(|at| self.guest_address(at));
        let (descriptor, used, available) = (descriptor?, used?, available?);
        let queue = &mut self.queue(index)?.queue;
        queue
            .try_set_desc_table_address(descriptor)
            .and_then(|()| queue.try_set_used_ring_address(used))
            .and_then(|()| queue.try_set_avail_ring_address(available))
            .map_err(|_| Error::InvalidParam)
    }

    /// The used index in the machine's memory says the same.
    fn set_vring_base(&mut self, index: u32, _base: u32) -> Result<()> {
        self.queue(index).map(|_| ())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let queue = self.queue(index)?;
        queue.kick = None;
        self.drain(index as usize)?;
        let queue = self.queue(index)?;
        queue.queue.set_ready(false);
        queue.call = None;
        Ok(VhostUserVringState::new(index, u32::from(queue.queue.next_avail())))
    }

    /// Starts a queue after the last request that was answered: by an earlier server, if none has come to this one.
    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.queue(u32::from(index))?;
        self.drain(usize::from(index))?;
        let memory = &self.memory;
        let queue = self.queues.get_mut(usize::from(index)).ok_or(Error::InvalidParam)?;
        let used = queue.queue.used_idx(memory, Ordering::Acquire).map_err(other)?;
        if !self.handover.starts(usize::from(index), used.0)
            && let Some(why) = self.disk.changed
        {
            return Err(system(std::io::Error::other(format!(
                "it was connected before this server's start, and {why}: shut it down, and start it again"
            ))));
        }
        queue.queue.set_next_avail(used.0);
        queue.queue.set_next_used(used.0);
        queue.queue.set_ready(true);
        queue.kick = take_descriptor(file)?;
        match queue.kick.is_some() && queue.queue.is_valid(memory) {
            true => Ok(()),
            // Nobody looks into queues that are not announced.
            false => Err(Error::InvalidParam),
        }
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let queue = self.queue(u32::from(index))?;
        queue.call = take_descriptor(file)?;
        // Earlier answers had another descriptor, or none: that of a killed server, or one to which the client does not listen.
        // A machine that missed this interrupt may ask for no other.
        queue.interrupt();
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _file: Option<File>) -> Result<()> {
        self.queue(u32::from(index)).map(|_| ())
    }

    /// Without `CONFIGURE_MEM_SLOTS`: memory that is changed piece by piece lacks pieces meanwhile, with requests and rings in them.
    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::CONFIG)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(u64::from(QUEUES))
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.queue(index)?.is_enabled = enable;
        Ok(())
    }

    fn get_config(&mut self, offset: u32, len: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Ok(self.disk.config(offset, len))
    }

    fn set_config(&mut self, _offset: u32, _bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        Err(Error::InvalidOperation("nothing can be configured"))
    }

    // The rest is not on offer.

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Err(Error::InvalidOperation("GET_MAX_MEM_SLOTS"))
    }

    fn add_mem_region(
        &mut self,
        _region: &VhostUserSingleMemoryRegion,
        _file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        Err(Error::InvalidOperation("ADD_MEM_REG"))
    }

    fn remove_mem_region(&mut self, _region: &VhostUserSingleMemoryRegion) -> Result<()> {
        Err(Error::InvalidOperation("REM_MEM_REG"))
    }

    fn set_gpu_socket(&mut self, _backend: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("GPU_SET_SOCKET"))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("GET_SHARED_OBJECT"))
    }

    fn get_inflight_fd(&mut self, _inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(Error::InvalidOperation("GET_INFLIGHT_FD"))
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("SET_INFLIGHT_FD"))
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("SET_DEVICE_STATE_FD"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("CHECK_DEVICE_STATE"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("GET_SHMEM_CONFIG"))
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("SET_LOG_BASE"))
    }
}
