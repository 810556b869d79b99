//! The thread of a disk's machine: lets one client in at a time, and serves its messages and its queues.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dcd_io::ListenSocket;
use rustix::event::{PollFd, PollFlags};
use rustix::net::SocketFlags;
use vhost::vhost_user::BackendReqHandler;

use super::disk::VirtioDisk;
use super::handover::Handover;
use super::queues::VirtioQueues;

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
        let taken = self.messages.as_mut().is_some_and(|messages| messages.handle_request().is_ok());
        if !taken {
            // The driver may have a clone.
            let _ = self.connection.shutdown(std::net::Shutdown::Both);
            self.messages = None;
            self.queues().abandon();
            handover.disconnected();
        }
    }
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
            let Some(machine) = &mut self.machine else { continue };
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
            if let (Err(_), Some(machine)) = (rustix::io::read(kick, &mut [0; 8]), &self.machine) {
                let _ = machine.connection.shutdown(std::net::Shutdown::Both);
            }
        }
        (is_ready && self.machine.is_none(), is_ready && self.machine.is_some())
    }

    fn accept(&mut self) {
        let accepted = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC);
        // The client may be gone already.
        let Ok(connection) = accepted.map(|it: OwnedFd| UnixStream::from(it)) else { return };
        let clones = (connection.try_clone(), connection.try_clone(), connection.try_clone());
        let (Ok(for_messages), Ok(for_queues), Ok(for_driver)) = clones else { return };
        if !self.handover.connected(for_driver) {
            return;
        }
        let queues = VirtioQueues::new(self.disk.clone(), Arc::clone(&self.handover), for_queues);
        let queues = Arc::new(Mutex::new(queues));
        let messages = BackendReqHandler::from_stream(for_messages, Arc::clone(&queues));
        self.machine = Some(ConnectedMachine { queues, messages: Some(messages), connection });
    }
}
