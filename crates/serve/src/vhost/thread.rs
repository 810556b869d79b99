//! The thread of a disk's machine: lets one client in at a time, and serves its messages and its queues.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dcd_io::ListenSocket;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use vhost::vhost_user::{BackendReqHandler, Error};

use super::disk::VirtioDisk;
use super::handover::Handover;
use super::queues::VirtioQueues;

/// Wait after a client that could not be let in: the reason lasts, as where the process may open no more files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A client.
struct ConnectedMachine {
    queues: Arc<Mutex<VirtioQueues>>,
    /// None once the client is gone.
    messages: Option<BackendReqHandler<Mutex<VirtioQueues>>>,
    connection: UnixStream,
}

impl ConnectedMachine {
    fn queues(&self) -> MutexGuard<'_, VirtioQueues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a message. A client that breaks the protocol is disconnected.
    fn take_message(&mut self, handover: &Handover) {
        let Some(Err(error)) = self.messages.as_mut().map(BackendReqHandler::handle_request) else { return };
        match error {
            // The client has gone, or is made to.
            _ if handover.is_stopped() || self.queues().has_ended() => {}
            Error::Disconnected | Error::PartialMessage | Error::SocketBroken(_) => {}
            Error::ReqHandlerError(why) => disconnected_as(handover, &why.to_string()),
            why => disconnected_as(handover, &why.to_string()),
        }
        // The driver may have a clone.
        let _ = self.connection.shutdown(std::net::Shutdown::Both);
        self.messages = None;
        self.queues().abandon();
        handover.disconnected();
    }
}

/// Warns of a machine that is disconnected.
pub fn disconnected_as(handover: &Handover, why: &str) {
    handover.warn(&format!("a virtual machine is disconnected: {why}"));
}

pub struct MachineThread {
    listener: ListenSocket,
    disk: VirtioDisk,
    handover: Arc<Handover>,
    machine: Option<ConnectedMachine>,
}

impl MachineThread {
    pub fn new(listener: ListenSocket, disk: VirtioDisk, handover: Arc<Handover>) -> MachineThread {
        MachineThread { listener, disk, handover, machine: None }
    }

    /// Serves until the handover is stopped.
    pub fn run(mut self) {
        while !self.handover.is_stopped() {
            let (has_client, has_message) = self.wait();
            if has_client {
                self.accept();
            }
            let Some(machine) = &mut self.machine else {
                // The bell of the last machine's last answer may come after that answer was taken.
                self.handover.take_answers();
                continue;
            };
            machine.queues().take_answers();
            if has_message {
                machine.take_message(&self.handover);
            }
            let mut queues = machine.queues();
            queues.read();
            // Requests of a client that is gone are still in the stack. The next one may send them again, and comes after them.
            let is_over = machine.messages.is_none() && queues.unanswered() == 0;
            drop(queues);
            if is_over {
                self.machine = None;
            }
        }
    }

    /// Waits for work. Returns true for a new client, and for a message of the client or its end.
    fn wait(&self) -> (bool, bool) {
        let queues = self.machine.as_ref().map(ConnectedMachine::queues);
        let socket = match &self.machine {
            None => Some(PollFd::new(&self.listener, PollFlags::IN)),
            Some(ConnectedMachine { messages: None, .. }) => None,
            Some(ConnectedMachine { connection, .. }) => {
                Some(PollFd::new(connection, PollFlags::IN | PollFlags::RDHUP))
            }
        };
        let mut polled = vec![PollFd::from_borrowed_fd(self.handover.thread_bell(), PollFlags::IN)];
        let has_socket = socket.is_some();
        polled.extend(socket);
        let kicks = queues.iter().flat_map(|queues| queues.kicks());
        polled.extend(kicks.map(|kick| PollFd::from_borrowed_fd(kick, PollFlags::IN)));
        // It fails if a signal comes, or without memory: then all is looked at, without the socket.
        let is_good = rustix::event::poll(&mut polled, None).is_ok();
        let is_ready = is_good && has_socket && !polled[1].revents().is_empty();
        for kick in polled.iter().skip(1 + usize::from(has_socket)).filter(|kick| !kick.revents().is_empty())
        {
            // A kick that cannot be silenced would ring for ever.
            let is_silent = kick.revents().contains(PollFlags::IN)
                && matches!(rustix::io::read(kick, &mut [0; 8]), Ok(8) | Err(Errno::AGAIN));
            if let (false, Some(machine)) = (is_silent, &self.machine) {
                disconnected_as(&self.handover, "its descriptor for kicks is no eventfd");
                let _ = machine.connection.shutdown(std::net::Shutdown::Both);
            }
        }
        (is_ready && self.machine.is_none(), is_ready && self.machine.is_some())
    }

    fn accept(&mut self) {
        match self.try_accept() {
            Ok(()) => {}
            // The client may be gone already.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {}
            Err(error) => {
                self.handover.warn(&format!("a virtual machine cannot connect: {error}"));
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }

    fn try_accept(&mut self) -> io::Result<()> {
        let connection = UnixStream::from(rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC)?);
        let (for_messages, for_queues) = (connection.try_clone()?, connection.try_clone()?);
        if !self.handover.connected(connection.try_clone()?) {
            return Ok(());
        }
        let queues = VirtioQueues::new(self.disk.clone(), Arc::clone(&self.handover), for_queues);
        let queues = Arc::new(Mutex::new(queues));
        let messages = BackendReqHandler::from_stream(for_messages, Arc::clone(&queues));
        self.machine = Some(ConnectedMachine { queues, messages: Some(messages), connection });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use dcd_engine::{Buf, Geometry, IoError, IoResult};
    use dcd_io::SocketRights;

    use super::super::StopsAtEnd;
    use super::*;

    #[test]
    fn an_answer_that_nobody_waits_for_does_not_ring_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let listener = ListenSocket::unix(&directory.path().join("vm.sock"), SocketRights::OWNER).unwrap();
        let handover = Arc::new(Handover::new(String::new()).unwrap());
        let disk = VirtioDisk::new(Geometry::plain(8), "", false);
        let serving = MachineThread::new(listener, disk, Arc::clone(&handover));
        let thread = std::thread::spawn(move || serving.run());
        let failed = IoError::new(dcd_engine::ErrorKind::Shutdown);
        handover.answer(0, IoResult::err(Buf::none(), failed));
        let rings = || {
            let mut bell = [PollFd::from_borrowed_fd(handover.thread_bell(), PollFlags::IN)];
            rustix::event::poll(&mut bell, Some(&rustix::event::Timespec::default())).unwrap() > 0
        };
        let is_silenced = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            !rings()
        });
        handover.stop();
        thread.join().unwrap();
        assert!(is_silenced);
    }

    #[test]
    fn a_thread_that_panics_disconnects_its_machine() {
        let handover = Arc::new(Handover::new("here".to_owned()).unwrap());
        let (ours, mut client) = UnixStream::pair().unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert!(handover.connected(ours));
        let stops = StopsAtEnd(Arc::clone(&handover));
        let thread = std::thread::spawn(move || {
            let _stops = stops;
            panic!("as a test");
        });
        assert!(thread.join().is_err());
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert!(handover.take_warnings().unwrap().starts_with("here: the thread has panicked"));
    }
}
