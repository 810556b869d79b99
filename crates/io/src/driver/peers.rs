//! Clients that use the device: those affected when the server ends.

use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd};

use dcd_engine::Nanos;

use super::network::Connection;
use super::{Context, Driver};
use crate::front_end::Lookup;

/// A client that uses the device, described for an administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// A program and its process, an address, or a file that is open.
    pub who: String,
    /// Time since its last request.
    pub idle: Nanos,
    /// Requests that are not answered.
    pub unanswered: usize,
    /// True if its requests wait for the next server when this one ends.
    pub waits: bool,
    /// True if its requests wait for the next server in case it connects again, which is not known.
    pub may_wait: bool,
}

/// A client that may use the device, not yet identified.
pub struct UnknownPeer {
    /// The disk of the root that it uses.
    pub disk: usize,
    user: Lookup,
    idle: Nanos,
    unanswered: usize,
    waits: bool,
    may_wait: bool,
}

impl UnknownPeer {
    /// Identifies the client in tables of the system. May block, so it needs a thread of its own. None if nobody uses the device.
    pub fn look_up(self) -> Option<Peer> {
        let UnknownPeer { user, idle, unanswered, waits, may_wait, disk: _ } = self;
        Some(Peer { who: user()?, idle, unanswered, waits, may_wait })
    }
}

impl Context<'_> {
    /// Returns the clients that may use the device.
    pub fn peers(&self) -> Vec<UnknownPeer> {
        self.driver.peers()
    }
}

impl Driver {
    fn peers(&self) -> Vec<UnknownPeer> {
        let idle = |heard: Nanos| self.now.since(heard);
        let connections = self.connections.iter().filter(|(_, connection)| connection.has_device());
        let connected = connections.map(|(_, connection)| UnknownPeer {
            disk: connection.disk(),
            user: connection.user(),
            idle: idle(connection.heard),
            unanswered: connection.unanswered,
            waits: connection.outlives_server(),
            may_wait: connection.may_reconnect(),
        });
        let others = self.front_ends.iter().filter_map(|served| {
            let front_end = served.front_end.as_ref()?;
            Some(UnknownPeer {
                disk: front_end.disk(),
                user: front_end.user()?,
                idle: idle(served.heard),
                unanswered: served.unanswered,
                waits: front_end.condition().outlives_server,
                may_wait: front_end.condition().may_reconnect,
            })
        });
        connected.chain(others).collect()
    }
}

impl Connection {
    fn user(&self) -> Lookup {
        let remote = self.remote();
        let process = if remote.is_none() { process_of(self.fd()) } else { None };
        Box::new(move || {
            let who = remote.or_else(|| process.map(process_name));
            Some(who.unwrap_or_else(|| "a client".to_owned()))
        })
    }

    /// The address of a client on TCP.
    pub(super) fn remote(&self) -> Option<String> {
        let stream = TcpStream::from(self.fd().try_clone_to_owned().ok()?);
        stream.peer_addr().ok().map(|address| address.to_string())
    }
}

/// Returns the process that connected a unix socket. It may have ended and left the connection to the kernel.
pub fn process_of(fd: BorrowedFd<'_>) -> Option<libc::pid_t> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option is one `ucred`, which lives for the call.
    let done = unsafe {
        let who = (&raw mut who).cast();
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, who, &mut size)
    };
    (done == 0 && who.pid != 0).then_some(who.pid)
}

/// Names a process that connected a unix socket. Reads tables of the system, so it may block.
pub fn process_name(process: libc::pid_t) -> String {
    if process == std::process::id() as libc::pid_t {
        // A kernel device that was reconnected by this server has its connection from this process.
        return "the kernel".to_owned();
    }
    match std::fs::read_to_string(format!("/proc/{process}/comm")) {
        Ok(name) => format!("process {process} ({})", name.trim()),
        Err(_) => format!("the kernel, for process {process}, which is gone"),
    }
}
