//! vhost-user: a disk of virtual machines. The machine's memory is shared with this process, so a request needs neither a system call of
//! the machine nor the host's kernel.
//!
//! ```text
//!  machine ─ virtqueues in its memory ─▶ thread: VirtioQueues ─ Handover, bell ─▶ driver: VhostUserDisk ─▶ root of the stack
//!          ◀─ data, status, interrupt ─                       ◀─ answers, bell ─
//! ```
//!
//! The thread reads and writes the machine's memory; the driver never waits for it. One machine at a time is connected.
//!
//! Requests of a queue are answered in their order, although the stack carries them out side by side. So the used index in the machine's
//! memory tells which requests are not answered: all after it. A machine that connects to the next server has these carried out again, and
//! nothing else has to be kept about them. (Of the protocol's own way, shared memory for requests in flight, the crate
//! vhost-user-backend 0.24 has nothing either; and it holds a lock while it handles a message, so it is not used.)

mod disk;
mod handover;
mod queues;
mod request;
mod thread;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use dcd_engine::{Geometry, IoResult};
use dcd_io::{
    Actions, Ending, FrontEnd, FrontEndCondition, FrontEndNews, ListenError, ListenSocket, Lookup,
    SocketFile, SocketRights, Task, process_name,
};

use crate::Outlives;
use disk::VirtioDisk;
use handover::Handover;
use thread::MachineThread;

/// Maximum wait for the end of the thread: a client may have handed over descriptors that block.
const END_MAX: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 5000 });

/// Errors of making the front-end.
#[derive(Debug, thiserror::Error)]
pub enum VhostUserError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("vhost-user: {0}")]
    System(#[from] io::Error),
}

#[derive(Clone, Debug, Default)]
pub struct VhostUserOptions {
    /// The disk of the stack.
    pub disk: usize,
    /// Users who may connect.
    pub rights: SocketRights,
    /// Answered writes that survive a kill of the server: a machine may go on with the next one.
    pub outlives: Outlives,
    /// Name that the machine's kernel is told (`/dev/disk/by-id/virtio-NAME`), at most 20 bytes of it.
    pub serial: String,
    /// True if the thread has real-time priority, where it may ([`dcd_io::run_promptly`]).
    pub promptly: bool,
    /// Reason why the disk may not have what a machine knows of it from an earlier server. Such a machine is refused: it would go on,
    /// unaware.
    pub changed: Option<&'static str>,
}

/// A disk that a virtual machine may connect. Dropping it disconnects the machine, and removes the socket.
pub struct VhostUserDisk {
    disk: usize,
    handover: Arc<Handover>,
    /// None once it has ended.
    thread: Arc<Mutex<Option<RunningThread>>>,
}

/// The thread, and the file of its socket: it goes even if the thread does not end.
struct RunningThread {
    handle: JoinHandle<()>,
    /// The channel's other end goes away with the thread.
    ended: mpsc::Receiver<()>,
    file: Option<SocketFile>,
}

/// Held by the thread: where that panics, its client must see a disconnection, although the driver has a clone of the connection.
struct StopsAtEnd(Arc<Handover>);

impl Drop for StopsAtEnd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0
                .warn("the thread has panicked: virtual machines can connect after a restart of the server");
        }
        self.0.stop();
    }
}

impl VhostUserDisk {
    /// Listens on a socket.
    pub fn listen(
        path: &Path,
        geometry: Geometry,
        options: &VhostUserOptions,
    ) -> Result<VhostUserDisk, VhostUserError> {
        let mut listener = ListenSocket::unix(path, options.rights)?;
        let file = listener.take_file();
        rustix::io::ioctl_fionbio(&listener, true).map_err(io::Error::from)?;
        let handover = Arc::new(Handover::new(format!("vhost-user unix:{}", path.display()))?);
        let disk = VirtioDisk {
            changed: options.changed,
            ..VirtioDisk::new(geometry, &options.serial, options.outlives == Outlives::Durable)
        };
        let machine = MachineThread::new(listener, disk, Arc::clone(&handover));
        let (alive, ended) = mpsc::sync_channel(0);
        let (promptly, stops) = (options.promptly, StopsAtEnd(Arc::clone(&handover)));
        let handle = std::thread::Builder::new().name("dcd-vhost".to_owned()).spawn(move || {
            let _ending: (StopsAtEnd, mpsc::SyncSender<()>) = (stops, alive);
            if promptly {
                let _ = dcd_io::run_promptly();
            }
            machine.run();
        })?;
        let thread = Arc::new(Mutex::new(Some(RunningThread { handle, ended, file })));
        Ok(VhostUserDisk { disk: options.disk, handover, thread })
    }

    /// Returns the work that disconnects the machine, and waits for the end of the thread.
    fn stop(&self) -> Task {
        let (handover, thread) = (Arc::clone(&self.handover), Arc::clone(&self.thread));
        Box::new(move || {
            handover.stop();
            let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(RunningThread { handle, ended, file }) = thread else { return Ok(()) };
            let ended = ended.recv_timeout(END_MAX);
            drop(file);
            match ended {
                // It hands over no more requests, and lets nobody in.
                Err(mpsc::RecvTimeoutError::Timeout) => Ok(()),
                _ => handle.join().map_err(|_| io::Error::other("the thread of vhost-user has panicked")),
            }
        })
    }
}

impl FrontEnd for VhostUserDisk {
    fn disk(&self) -> usize {
        self.disk
    }

    /// No client tells whether it connects again, so none is said to outlive the server. Its requests are held all the same: one that
    /// does not connect again gets no answers in any case.
    fn condition(&self) -> FrontEndCondition {
        FrontEndCondition {
            is_established: true,
            has_device: self.handover.client().is_some(),
            holds_requests: true,
            may_reconnect: true,
            ..FrontEndCondition::default()
        }
    }

    fn take_news(&mut self) -> Option<FrontEndNews> {
        self.handover.take_warnings().map(FrontEndNews::Warning)
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.handover.driver_bell())
    }

    fn rang(&mut self, actions: &mut Actions) {
        self.handover.take_requests(&mut actions.requests);
    }

    fn reply(&mut self, token: u64, result: IoResult, _actions: &mut Actions) {
        self.handover.answer(token, result);
    }

    fn user(&self) -> Option<Lookup> {
        let process = self.handover.client()?;
        Some(Box::new(move || {
            let machine = process.map_or("a virtual machine".to_owned(), process_name);
            Some(format!("{machine}, over vhost-user"))
        }))
    }

    fn withdraw(&mut self) -> Ending {
        match self.handover.close() {
            true => Ending::Remove(self.stop()),
            false => Ending::Leave(String::new()),
        }
    }

    fn stay(&mut self, _actions: &mut Actions) {
        self.handover.reopen();
    }
}

impl Drop for VhostUserDisk {
    fn drop(&mut self) {
        let _ = self.stop()();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_does_not_end_leaves_no_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vm.sock");
        let mut disk =
            VhostUserDisk::listen(&path, Geometry::plain(8), &VhostUserOptions::default()).unwrap();
        let (alive, ended) = mpsc::sync_channel(0);
        let (release, wait) = mpsc::channel::<()>();
        let stuck = std::thread::spawn(move || {
            let _alive: mpsc::SyncSender<()> = alive;
            let _ = wait.recv();
        });
        let running = disk.thread.lock().unwrap().take().unwrap();
        *disk.thread.lock().unwrap() = Some(RunningThread { handle: stuck, ended, file: running.file });
        let Ending::Remove(task) = disk.withdraw() else { panic!("nobody is connected") };
        assert!(task().is_ok() && !path.exists());
        assert!(ListenSocket::unix(&path, SocketRights::OWNER).is_ok(), "the next one listens there");
        drop(release);
        running.handle.join().unwrap();
    }
}
