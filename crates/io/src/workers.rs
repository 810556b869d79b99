//! Threads for calls that may wait for a device that does not answer, so that the driver's thread never waits.
//!
//! The ring calls some files within its submission and lets them wait there: FUSE on every kernel, and with older ones
//! every network file system. A device of that kind has threads of its own instead. Each makes one call at a time.
//! So neither the driver nor another device waits for a device that does not answer, not even at its open or close.
//!
//! ```text
//! driver ─ submit ─▶ a device's queue ─▶ its threads ─▶ finished ─ eventfd ─▶ driver
//! ```

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use dcd_engine::{Extent, IoResult, SectorState};

use crate::bell::Bell;
use crate::device::sync::run_to_end;
use crate::device::transfer::Transfer;
use crate::device::{Backing, Device, DeviceError, MappedRun, OpenFile, holes};
use crate::front_end::Task;

/// Calls of a device at a time, as many as a disk's command queue holds; further calls wait for a thread.
const THREADS_MAX: usize = 32;
/// Stack of a thread: our frames are small, and the kernel has its own stack.
const STACK_BYTES: usize = 128 << 10;

/// Results of threads that the driver has not taken, with a bell that the ring listens to.
pub(crate) struct Finished {
    queue: Mutex<FinishedQueue>,
    bell: Bell,
}

#[derive(Default)]
pub(crate) struct FinishedQueue {
    /// Ends of operations, by their place in the driver.
    pub ended: Vec<(usize, IoResult)>,
    /// States of the first sectors of extents, by the questions' places in the driver.
    pub mapped: Vec<(usize, Vec<MappedRun>)>,
    /// Devices that were to be opened, by the number that was given for each.
    pub opened: Vec<(u64, Result<Device, DeviceError>)>,
    /// Ends of front-ends' tasks, by their place in the driver.
    pub tasks: Vec<(usize, io::Result<()>)>,
    /// Number of devices that were closed.
    pub closed: usize,
    /// True if a thread has asked to wake the host.
    pub wakes_host: bool,
}

/// Wakes the host from another thread; see [`Context::waker`](crate::Context::waker).
#[derive(Clone)]
pub struct Waker(Arc<Finished>);

impl Waker {
    pub fn wake(&self) {
        self.0.add(|queue| queue.wakes_host = true);
    }
}

impl Finished {
    pub fn new() -> io::Result<Finished> {
        Ok(Finished { queue: Mutex::default(), bell: Bell::new()? })
    }

    pub fn bell(&self) -> RawFd {
        self.bell.fd()
    }

    /// Silences the bell and takes all. A result that arrives in between rings it again.
    pub fn take(&self) -> FinishedQueue {
        self.bell.silence();
        std::mem::take(&mut lock(&self.queue))
    }

    /// An operation has completed or failed.
    pub fn ended(&self, op: usize, result: IoResult) {
        self.add(|queue| queue.ended.push((op, result)));
    }

    fn closed(&self) {
        self.add(|queue| (queue.closed, queue.wakes_host) = (queue.closed + 1, true));
    }

    pub fn waker(self: &Arc<Finished>) -> Waker {
        Waker(Arc::clone(self))
    }

    fn add(&self, add: impl FnOnce(&mut FinishedQueue)) {
        add(&mut lock(&self.queue));
        self.bell.ring();
    }
}

/// The threads of one device. They end when it is dropped, each after the call that it is in, and the last closes the file.
pub(crate) struct Workers {
    shared: Arc<SharedFile>,
    threads: Vec<thread::JoinHandle<()>>,
}

struct SharedFile {
    file: File,
    jobs: Mutex<FileJobs>,
    work: Condvar,
    finished: Arc<Finished>,
}

/// A call, or several. The number is the place in the driver.
enum FileJob {
    Transfer(usize, Transfer),
    Holes { index: usize, extent: Extent, block_bytes: u64 },
}

#[derive(Default)]
struct FileJobs {
    waiting: VecDeque<FileJob>,
    /// Threads that wait for a job.
    idle: usize,
    closed: bool,
}

impl Workers {
    /// Starts with one thread. If the system has no more threads later, the device only becomes slower.
    ///
    /// # Errors
    /// Where there is no thread.
    pub fn new(file: File, finished: Arc<Finished>) -> io::Result<Workers> {
        let shared = SharedFile { file, jobs: Mutex::default(), work: Condvar::new(), finished };
        let mut workers = Workers { shared: Arc::new(shared), threads: Vec::new() };
        workers.add_thread()?;
        Ok(workers)
    }

    fn add_thread(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let builder = thread::Builder::new().name("dcd-device".to_owned()).stack_size(STACK_BYTES);
        self.threads.push(builder.spawn(move || work(&shared))?);
        Ok(())
    }

    /// Queues an operation for a thread.
    pub fn submit(&mut self, op: usize, transfer: Transfer) {
        self.add(FileJob::Transfer(op, transfer));
    }

    /// Queues a search for holes, for a question.
    pub fn look_for_holes(&mut self, index: usize, extent: Extent, block_bytes: u64) {
        self.add(FileJob::Holes { index, extent, block_bytes });
    }

    fn add(&mut self, job: FileJob) {
        let mut jobs = lock(&self.shared.jobs);
        jobs.waiting.push_back(job);
        let all_are_busy = jobs.waiting.len() > jobs.idle;
        drop(jobs);
        self.shared.work.notify_one();
        if all_are_busy && self.threads.len() < THREADS_MAX {
            // If this fails, the operation waits for the existing threads.
            let _ = self.add_thread();
        }
    }

    /// Waits until no thread holds the file.
    fn end(mut self) {
        self.tell_end();
        for thread in self.threads.drain(..) {
            // A thread that panicked has released the file.
            let _ = thread.join();
        }
    }

    fn tell_end(&self) {
        lock(&self.shared.jobs).closed = true;
        self.shared.work.notify_all();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.tell_end();
    }
}

fn work(shared: &SharedFile) {
    let mut jobs = lock(&shared.jobs);
    loop {
        while let Some(job) = jobs.waiting.pop_front() {
            drop(jobs);
            match job {
                FileJob::Transfer(op, transfer) => {
                    shared.finished.ended(op, run_to_end(shared.file.as_raw_fd(), transfer));
                }
                FileJob::Holes { index, extent, block_bytes } => {
                    let all = || vec![MappedRun { sectors: extent.sectors, state: SectorState::Data }];
                    let runs = holes::runs(&shared.file, extent, block_bytes).unwrap_or_else(|_| all());
                    shared.finished.add(|queue| queue.mapped.push((index, runs)));
                }
            }
            jobs = lock(&shared.jobs);
        }
        if jobs.closed {
            return;
        }
        jobs.idle += 1;
        jobs = shared.work.wait(jobs).expect("nobody panics while holding the jobs");
        jobs.idle -= 1;
    }
}

/// Opens a device on a thread of its own.
pub(crate) fn open(
    finished: &Arc<Finished>,
    number: u64,
    open: impl FnOnce() -> Result<Device, DeviceError> + Send + 'static,
) -> io::Result<()> {
    let finished = Arc::clone(finished);
    let opens = move || {
        let device = open();
        finished.add(|queue| queue.opened.push((number, device)));
    };
    thread::Builder::new().name("dcd-open".to_owned()).spawn(opens).map(|_| ())
}

/// Runs the task of a front-end on a thread of its own.
pub(crate) fn run_task(finished: &Arc<Finished>, front_end: usize, task: Task) -> io::Result<()> {
    let finished = Arc::clone(finished);
    let runs = move || {
        let ended = task();
        finished.add(|queue| queue.tasks.push((front_end, ended)));
    };
    thread::Builder::new().name("dcd-control".to_owned()).spawn(runs).map(|_| ())
}

/// Closes a device on a thread of its own. The host is woken at the end.
pub(crate) fn close(finished: &Arc<Finished>, device: Backing) {
    let ends = Arc::clone(finished);
    let closes = move || {
        match device {
            Backing::Worked { workers, .. } => workers.end(),
            Backing::File(OpenFile { file, workers, .. }) => {
                drop(file);
                workers.into_iter().for_each(Workers::end);
            }
            other => drop(other),
        }
        ends.closed();
    };
    // Without a thread the closure is dropped here, and the device with it.
    if thread::Builder::new().name("dcd-close".to_owned()).spawn(closes).is_err() {
        finished.closed();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics while holding it")
}

#[cfg(test)]
mod tests {
    use dcd_engine::{Buf, Durability, Io, Lba};

    use super::*;
    use crate::device::{CallsBy, FileTraits};

    #[test]
    fn operations_end_as_they_were_asked_and_the_end_lets_go_of_the_file() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let traits = FileTraits {
            block: 512,
            memory_align: 1,
            direct: false,
            is_block: false,
            calls_by: CallsBy::Workers,
        };
        let finished = Arc::new(Finished::new().unwrap());
        let mut workers = Workers::new(path.reopen().unwrap(), Arc::clone(&finished)).unwrap();
        assert_eq!(workers.threads.len(), 1, "the first operation needs no new thread");
        let shared = Arc::downgrade(&workers.shared);
        let mut run = |io: &dyn Fn(usize) -> Io| {
            for op in 0..100 {
                workers.submit(op, Transfer::new(traits, io(op)));
            }
            let mut ended = Vec::new();
            while ended.len() < 100 {
                ended.extend(finished.take().ended);
            }
            ended.sort_by_key(|(op, _)| *op);
            ended
        };
        let at = |op: usize| Lba(op as u64);
        let written = run(&|op| Io::Write {
            at: at(op),
            buf: Buf::copy_of(&[op as u8; 512]),
            durability: Durability::Volatile,
        });
        assert!(written.iter().all(|(_, result)| result.status.is_ok()));
        let read = run(&|op| Io::Read { at: at(op), buf: Buf::zeroed(512) });
        assert!(read.iter().all(|(op, result)| result.buf.bytes() == [*op as u8; 512]));
        assert!((1..=THREADS_MAX).contains(&workers.threads.len()));
        workers.end();
        assert!(shared.upgrade().is_none(), "nobody holds the file");
    }
}
