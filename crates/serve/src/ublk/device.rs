//! A device that is served: requests come as the ends of commands, one command for each tag of each queue.
//!
//! | phase    | a request                                   | leads to |
//! |----------|---------------------------------------------|----------|
//! | Starting | goes to the stack: the kernel looks for partitions | Live, when the kernel has started the device |
//! | Live     | goes to the stack; while the driver stops, it is held | Ending, where nobody has the device |
//! | Ending   | fails                                       | the device is gone |
//! | Gone     | there is none: somebody has removed the device | the end |
//!
//! A held request is never answered: with the end of the process the kernel keeps it for the next server.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dcd_engine::{Buf, Durability, ErrorKind, Extent, Geometry, Io, IoError, IoResult, Lba, SECTOR_BYTES};
use dcd_io::{
    Actions, Closing, Ending, FrontEnd, FrontEndCondition, FrontEndNews, KernelCommand, KernelMemory, Lookup,
    Task,
};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::control::{self, Claimed, UblkKernel, flag_names};
use super::owner::{self, Owner};
use super::uapi as u;
use super::{UblkError, UblkStatus, name, node};
use crate::Outlives;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DevicePhase {
    Starting,
    Live,
    /// The server ends, and checks whether the device is in use.
    Asking,
    Ending,
    Gone,
}

/// State of a slot until its answer.
#[derive(Debug, Default)]
struct PendingSlot {
    /// Bytes that the request moves, which is its answer on success.
    bytes: i32,
    reads: bool,
    /// The slot's buffer, while a request without data is in the stack.
    spare: Option<Buf>,
}

/// See the module's documentation.
pub struct UblkDevice {
    /// The disk of the stack.
    disk: usize,
    kernel: Arc<dyn UblkKernel>,
    claimed: Claimed,
    geometry: Geometry,
    file: File,
    outlives: Outlives,
    /// The descriptors of each queue; mapped once the kernel has the first commands.
    descriptors: Vec<KernelMemory>,
    pending: Vec<PendingSlot>,
    /// Slots and buffers of requests that arrived while the server checked whether the device is in use.
    late: Vec<(usize, Buf)>,
    /// Exclusive open that prevents mounts while the device is removed.
    hold: Arc<Mutex<Option<OwnedFd>>>,
    phase: DevicePhase,
    news: Option<FrontEndNews>,
    /// Warning for an administrator, told when the device is ready.
    told: Arc<OnceLock<String>>,
}

/// Returns the flags to ask the kernel for.
fn flags_of(outlives: Outlives) -> u64 {
    control::flags_for(outlives != Outlives::No)
}

impl UblkDevice {
    /// Makes the device of a stack, or takes it over from its last server. `wanted`: its number; none for any.
    pub fn open(
        kernel: Arc<dyn UblkKernel>,
        wanted: Option<u32>,
        owner: &Owner,
        geometry: Geometry,
        outlives: Outlives,
    ) -> Result<UblkDevice, UblkError> {
        let asked = flags_of(outlives);
        let claimed = control::claim(kernel.as_ref(), wanted, owner, &geometry, asked)?;
        let number = claimed.info.dev_id;
        let noted = owner.with_mark(claimed.info.ublksrv_flags).note(number);
        let path = format!("/dev/ublkc{number}");
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let file = opened.map_err(|source| UblkError::Open { path, source })?;
        let device = UblkDevice::new(kernel, claimed, geometry, file, outlives);
        if let Err(error) = noted {
            device.tell(format!("{}: it gets no name in /dev/dcd: {error}", device.node()));
        }
        Ok(device)
    }

    pub(super) fn new(
        kernel: Arc<dyn UblkKernel>,
        claimed: Claimed,
        geometry: Geometry,
        file: File,
        outlives: Outlives,
    ) -> UblkDevice {
        let slots = usize::from(claimed.info.nr_hw_queues) * usize::from(claimed.info.queue_depth);
        UblkDevice {
            disk: 0,
            kernel,
            claimed,
            geometry,
            file,
            outlives,
            descriptors: Vec::new(),
            pending: (0..slots).map(|_| PendingSlot::default()).collect(),
            late: Vec::new(),
            hold: Arc::default(),
            phase: DevicePhase::Starting,
            news: None,
            told: Arc::default(),
        }
    }

    /// Returns the device for this disk of the stack.
    pub fn of_disk(self, disk: usize) -> UblkDevice {
        UblkDevice { disk, ..self }
    }

    /// Stores a warning; only the first one is kept.
    fn tell(&self, what: String) {
        let _ = self.told.set(what);
    }

    fn number(&self) -> u32 {
        self.claimed.info.dev_id
    }

    pub fn node(&self) -> String {
        node(self.number())
    }

    pub fn is_recovered(&self) -> bool {
        self.claimed.recovered
    }

    /// Returns the names of flags that were asked for and that the kernel lacks.
    pub fn missing(&self) -> Vec<&'static str> {
        flag_names(flags_of(self.outlives) & !self.claimed.info.flags)
    }

    fn depth(&self) -> usize {
        usize::from(self.claimed.info.queue_depth)
    }

    /// Bytes of a command's buffer that the kernel may use.
    fn buffer_bytes(&self) -> usize {
        self.claimed.info.max_io_buf_bytes as usize
    }

    fn outlives_server(&self) -> bool {
        self.claimed.info.flags & u::F_USER_RECOVERY != 0
    }

    fn command(&self, op: u32, slot: usize, result: i32, buf: Buf) -> KernelCommand {
        let (queue, tag) = (slot / self.depth(), slot % self.depth());
        let command = u::IoCmd { q_id: queue as u16, tag: tag as u16, result, addr: 0 };
        let mut head = [0; 8];
        head.copy_from_slice(&command.as_bytes()[..8]);
        KernelCommand { fd: self.file.as_raw_fd(), slot, op, head, buf, bytes: self.buffer_bytes() }
    }

    /// Answers a request, and asks for the next one of its slot.
    fn commit(&self, slot: usize, result: i32, buf: Buf, actions: &mut Actions) {
        actions.commands.push(self.command(u::COMMIT_AND_FETCH_REQ, slot, result, buf));
    }

    /// Ends the server, and leaves the device.
    fn leave(&self, why: &str) -> Ending {
        Ending::Leave(match self.outlives_server() {
            true => stays(self.number(), why),
            false => format!("{} is gone, although it was in use: {why}", self.node()),
        })
    }

    fn fail(&mut self, why: String) {
        self.news.get_or_insert(FrontEndNews::Failed(why));
    }

    /// Passes a request of the kernel to the stack, or refuses it immediately.
    pub(super) fn request(&mut self, slot: usize, asked: u::IoDesc, buf: Buf, actions: &mut Actions) {
        let durable = self.outlives_server() && self.outlives != Outlives::Answered;
        let request = match read_request(asked, buf, self.buffer_bytes(), durable) {
            Ok(request) => request,
            Err((buf, errno)) => return self.commit(slot, -errno.raw_os_error(), buf, actions),
        };
        let UblkRequest { io, bytes, spare } = request;
        let pending = PendingSlot { bytes, reads: matches!(io, Io::Read { .. }), spare };
        if let Err(error) = self.geometry.validate(&io) {
            let buf = pending.spare.unwrap_or_else(|| io.take_buf());
            let buf = self.whole(buf);
            return self.commit(slot, -errno_of(error.kind).raw_os_error(), buf, actions);
        }
        self.pending[slot] = pending;
        actions.requests.push((slot as u64, io));
    }

    /// Returns a buffer for the next command of its slot: of full length, not shared, and with the data of a read at its beginning.
    fn whole(&self, mut buf: Buf) -> Buf {
        let bytes = self.buffer_bytes();
        if buf.reclaim() && buf.has_room(bytes) {
            buf.set_len(bytes);
            return buf;
        }
        let mut whole = Buf::zeroed(bytes);
        whole.copy_from(0, &buf, 0, buf.len());
        whole
    }
}

/// A request of the kernel, translated for the stack.
#[derive(Debug)]
struct UblkRequest {
    io: Io,
    bytes: i32,
    /// The buffer, if the request does not carry it.
    spare: Option<Buf>,
}

/// Reads a descriptor. The stack checks later that the geometry allows the request. `durable`: makes all writes durable.
fn read_request(
    asked: u::IoDesc,
    mut buf: Buf,
    bytes_max: usize,
    durable: bool,
) -> Result<UblkRequest, (Buf, Errno)> {
    let extent = Extent::new(Lba(asked.start_sector), u64::from(asked.nr_sectors));
    let fua = durable || asked.op_flags & u::IO_F_FUA != 0;
    let durability = if fua { Durability::Durable } else { Durability::Volatile };
    let bytes = extent.sectors * SECTOR_BYTES;
    let op = asked.op_flags as u8;
    if matches!(op, u::OP_READ | u::OP_WRITE) {
        if bytes > bytes_max as u64 {
            return Err((buf, Errno::INVAL));
        }
        buf.set_len(bytes as usize);
    }
    let io = match op {
        u::OP_READ => Io::Read { at: extent.start, buf },
        u::OP_WRITE => Io::Write { at: extent.start, buf, durability },
        u::OP_FLUSH => return Ok(UblkRequest { io: Io::Flush, bytes: 0, spare: Some(buf) }),
        u::OP_DISCARD => return Ok(UblkRequest { io: Io::Discard { extent }, bytes: 0, spare: Some(buf) }),
        u::OP_WRITE_ZEROES => {
            let unmap = asked.op_flags & u::IO_F_NOUNMAP == 0;
            let io = Io::WriteZeroes { extent, unmap, durability };
            return Ok(UblkRequest { io, bytes: 0, spare: Some(buf) });
        }
        _ => return Err((buf, Errno::OPNOTSUPP)),
    };
    Ok(UblkRequest { io, bytes: bytes as i32, spare: None })
}

/// Translates an error for a client; the kernel makes EIO of most.
fn errno_of(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::Medium | ErrorKind::Lost | ErrorKind::PowerCut | ErrorKind::Shutdown => Errno::IO,
        ErrorKind::NoSpace => Errno::NOSPC,
        ErrorKind::OutOfRange | ErrorKind::Invalid => Errno::INVAL,
        ErrorKind::ReadOnly => Errno::ROFS,
        ErrorKind::Unsupported => Errno::OPNOTSUPP,
    }
}

impl FrontEnd for UblkDevice {
    fn disk(&self) -> usize {
        self.disk
    }

    fn start(&mut self, actions: &mut Actions) {
        for slot in 0..self.pending.len() {
            let buf = Buf::zeroed(self.buffer_bytes());
            actions.commands.push(self.command(u::FETCH_REQ, slot, 0, buf));
        }
    }

    /// Maps the descriptors only here. If a server ended between the mapping and its first commands, the kernel would refuse the
    /// mapping of every later server.
    fn begun(&mut self) -> io::Result<Option<Task>> {
        let page = rustix::param::page_size();
        let len = (self.depth() * size_of::<u::IoDesc>()).next_multiple_of(page);
        for queue in 0..usize::from(self.claimed.info.nr_hw_queues) {
            let offset = u::descriptors_at(queue, page) as u64;
            self.descriptors.push(KernelMemory::map(self.file.as_fd(), offset, len)?);
        }
        let kernel = Arc::clone(&self.kernel);
        let (claimed, told) = (self.claimed, Arc::clone(&self.told));
        Ok(Some(Box::new(move || {
            control::start(kernel.as_ref(), &claimed)?;
            if let Err(why) = control::resize(kernel.as_ref(), &claimed) {
                let _ = told.set(why.to_string());
            }
            Ok(())
        })))
    }

    fn task_ended(&mut self, ended: io::Result<()>) {
        match ended {
            Ok(()) if self.phase == DevicePhase::Starting => {
                self.phase = DevicePhase::Live;
                let (place, but) = (format!("ublk {}", self.node()), self.told.get().cloned());
                self.news.get_or_insert(FrontEndNews::Ready { place, but });
            }
            Ok(()) => {}
            Err(source) => {
                let doing = if self.claimed.recovered { "END_USER_RECOVERY" } else { "START_DEV" };
                let error = UblkError::control(doing, self.number(), source);
                self.fail(error.to_string());
            }
        }
    }

    fn take_news(&mut self) -> Option<FrontEndNews> {
        self.news.take()
    }

    fn completed(&mut self, slot: usize, result: i32, buf: Buf, actions: &mut Actions) {
        match result {
            0 => {}
            u::RES_ABORT => {
                if self.phase == DevicePhase::Live {
                    self.phase = DevicePhase::Gone;
                    self.fail(format!("{} has been removed by another program", self.node()));
                }
                return;
            }
            _ => {
                let source = io::Error::from_raw_os_error(-result);
                let error = UblkError::control("a command for a request", self.number(), source);
                return self.fail(error.to_string());
            }
        }
        match self.phase {
            DevicePhase::Asking => return self.late.push((slot, buf)),
            DevicePhase::Ending => return self.commit(slot, -Errno::IO.raw_os_error(), buf, actions),
            DevicePhase::Starting | DevicePhase::Live | DevicePhase::Gone => {}
        }
        let words: [u64; 3] =
            self.descriptors[slot / self.depth()].words((slot % self.depth()) * size_of::<u::IoDesc>());
        let asked = u::IoDesc::read_from_bytes(words.as_bytes()).expect("a descriptor is three words");
        self.request(slot, asked, buf, actions);
    }

    fn reply(&mut self, token: u64, result: IoResult, actions: &mut Actions) {
        let slot = token as usize;
        let pending = std::mem::take(&mut self.pending[slot]);
        let answer = match result.status {
            Ok(()) => pending.bytes,
            Err(IoError { kind, .. }) => -errno_of(kind).raw_os_error(),
        };
        // A write need not return its buffer, and the written bytes are no longer needed.
        let buf = match pending.spare {
            Some(spare) => spare,
            None => {
                let mut buf = result.buf;
                if !pending.reads && !buf.reclaim() {
                    buf = Buf::none();
                }
                self.whole(buf)
            }
        };
        self.commit(slot, answer, buf, actions);
    }

    fn condition(&self) -> FrontEndCondition {
        let outlives_server = self.outlives_server();
        let all =
            FrontEndCondition { is_established: true, has_device: true, ..FrontEndCondition::default() };
        FrontEndCondition { holds_requests: true, outlives_server, ..all }
    }

    fn user(&self) -> Option<Lookup> {
        let name = name(self.number());
        Some(Box::new(move || owner::user(&name)))
    }

    fn status(&self) -> Option<serde_json::Value> {
        let info = &self.claimed.info;
        let status = UblkStatus {
            device: self.node(),
            is_ready: self.phase == DevicePhase::Live,
            is_recovered: self.claimed.recovered,
            queues: info.nr_hw_queues,
            depth: info.queue_depth,
            request_bytes_max: info.max_io_buf_bytes,
            flags: flag_names(info.flags).into_iter().map(str::to_owned).collect(),
            missing: self.missing().into_iter().map(str::to_owned).collect(),
        };
        Some(serde_json::to_value(status).expect("a status is plain data"))
    }

    fn end(&mut self, unanswered: usize) -> Option<Ending> {
        match self.phase {
            DevicePhase::Gone => {
                return Some(Ending::Leave(format!("{} was removed by another program", self.node())));
            }
            // The device existed before this server, and may be mounted.
            DevicePhase::Starting if self.claimed.recovered => {
                return Some(self.leave("it was not recovered yet"));
            }
            _ if unanswered > 0 => return Some(self.leave(&format!("requests wait: {unanswered}"))),
            _ => {}
        }
        self.phase = DevicePhase::Asking;
        let (name, hold) = (name(self.number()), Arc::clone(&self.hold));
        Some(Ending::Ask(Box::new(move || match owner::user(&name) {
            Some(user) => Err(io::Error::other(user)),
            None => {
                // From here on the device cannot be mounted.
                *hold.lock().unwrap_or_else(PoisonError::into_inner) = owner::hold(&name)?;
                Ok(())
            }
        })))
    }

    fn ended(&mut self, result: io::Result<()>, actions: &mut Actions) -> Ending {
        if let Err(error) = result {
            return match error.kind() {
                io::ErrorKind::ResourceBusy if self.phase == DevicePhase::Ending => {
                    Ending::Leave(stays(self.number(), "it is in use"))
                }
                kind if self.phase == DevicePhase::Ending => {
                    let error = UblkError::control("STOP_DEV", self.number(), io::Error::from(kind));
                    Ending::Failed(error.to_string())
                }
                io::ErrorKind::ResourceBusy => self.leave("it is in use"),
                io::ErrorKind::TimedOut => self.leave("the system does not tell whether it is in use"),
                _ => self.leave(&error.to_string()),
            };
        }
        self.phase = DevicePhase::Ending;
        for (slot, buf) in std::mem::take(&mut self.late) {
            self.commit(slot, -Errno::IO.raw_os_error(), buf, actions);
        }
        let (kernel, number, hold) = (Arc::clone(&self.kernel), self.number(), Arc::clone(&self.hold));
        Ending::Remove(Box::new(move || {
            let stopped = control::stop(kernel.as_ref(), number);
            drop(hold.lock().unwrap_or_else(PoisonError::into_inner).take());
            stopped
        }))
    }

    fn stay(&mut self, actions: &mut Actions) {
        if matches!(self.phase, DevicePhase::Asking | DevicePhase::Ending) {
            self.phase = DevicePhase::Live;
            *self.hold.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        for (slot, buf) in std::mem::take(&mut self.late) {
            self.completed(slot, 0, buf, actions);
        }
    }

    fn close(self: Box<Self>) -> Closing {
        let (kernel, number) = (Arc::clone(&self.kernel), self.number());
        // The kernel forgets a device once its file is closed, and its memory unmapped.
        drop(self);
        Box::new(move || {
            owner::forget(number);
            control::delete(kernel.as_ref(), number, true)
        })
    }
}

/// Returns the message to an administrator about a device that outlives its server.
fn stays(number: u32, why: &str) -> String {
    format!(
        "{} stays, and its requests wait for the next \"dcd serve\" of this stack: {why}. \"dcd ublk remove {number}\" ends it",
        node(number)
    )
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
