//! Clients that have the device: those who notice when the server goes away.

use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd};

use dcd_engine::Nanos;

use super::network::Connection;
use super::{Context, Driver};

/// A client that has the device, as an administrator knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// A program and its process, an address, or a file that is open.
    pub who: String,
    /// Since when nothing has come from it.
    pub idle: Nanos,
    /// Requests that are not answered.
    pub unanswered: usize,
    /// Its requests wait for the next server, where this one ends.
    pub waits: bool,
}

impl Context<'_> {
    /// The clients that have the device.
    pub fn peers(&self) -> Vec<Peer> {
        self.driver.peers()
    }
}

impl Driver {
    fn peers(&self) -> Vec<Peer> {
        let idle = |heard: Nanos| self.now.since(heard);
        let connections = self.connections.iter().filter(|(_, connection)| connection.has_device());
        let connected = connections.map(|(_, connection)| Peer {
            who: connection.who(),
            idle: idle(connection.heard),
            unanswered: connection.unanswered,
            waits: connection.outlives_server(),
        });
        let sources = self.sources.iter().filter_map(|watched| {
            let who = watched.source.user()?;
            Some(Peer { who, idle: idle(watched.heard), unanswered: watched.unanswered, waits: false })
        });
        let commanded = self.commanded.iter().filter_map(|commanded| {
            let (who, waits) = (commanded.source.user()?, commanded.source.outlives_server());
            Some(Peer { who, idle: idle(commanded.heard), unanswered: commanded.unanswered, waits })
        });
        connected.chain(sources).chain(commanded).collect()
    }
}

impl Connection {
    fn who(&self) -> String {
        match self.remote() {
            Some(address) => address,
            None => local(self.fd()).unwrap_or_else(|| "a client".to_owned()),
        }
    }

    /// The address of a client on TCP.
    pub(super) fn remote(&self) -> Option<String> {
        let stream = TcpStream::from(self.fd().try_clone_to_owned().ok()?);
        stream.peer_addr().ok().map(|address| address.to_string())
    }
}

/// The process that has connected a unix socket. The kernel may use the connection by now, and the process be gone.
fn local(fd: BorrowedFd<'_>) -> Option<String> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option is one `ucred`, which lives for the call.
    let done = unsafe {
        let who = (&raw mut who).cast();
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, who, &mut size)
    };
    if done == 0 && who.pid == std::process::id() as libc::pid_t {
        // A device of the kernel that goes on with this server has its connection from it.
        return Some("the kernel".to_owned());
    }
    (done == 0 && who.pid != 0).then(|| match std::fs::read_to_string(format!("/proc/{}/comm", who.pid)) {
        Ok(name) => format!("process {} ({})", who.pid, name.trim()),
        Err(_) => format!("the kernel, for process {}, which is gone", who.pid),
    })
}
