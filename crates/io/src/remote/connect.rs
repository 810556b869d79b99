//! Connections to an NBD server, made and ready for requests.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use dcd_nbd::{Offer, Server, Uri, handshake, protocol as p};

use super::{SharedLink, tls};

/// Connections to a server that accepts several.
pub(super) const CONNECTIONS_MAX: usize = 4;
/// Maximum times of a connection, and of each answer of a handshake.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// Maximum time of each answer on further connections: a server that takes no more of them lets them wait.
const FURTHER_PATIENCE: Duration = Duration::from_millis(500);
/// Data that the other machine has not taken for this long, in ms: the connection is dead.
const UNTAKEN_MS_MAX: i32 = 5000;
/// TCP keepalive: seconds of silence before the first probe, seconds between probes, and the number of probes that may be lost.
const SILENT_SECONDS: i32 = 2;
const SIGN_SECONDS: i32 = 1;
const SIGNS_MAX: i32 = 3;

/// A stream socket.
pub(super) struct StreamSocket(File);

impl Read for StreamSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for StreamSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl StreamSocket {
    fn set(&self, level: i32, option: i32, value: i32) -> io::Result<()> {
        let bytes = size_of::<i32>() as libc::socklen_t;
        // SAFETY: the value lives for the call, and its size is told.
        let done =
            unsafe { libc::setsockopt(self.0.as_raw_fd(), level, option, (&raw const value).cast(), bytes) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// A connection in the transmission phase, which does not block.
pub(super) struct Wire {
    stream: RemoteStream,
    /// True if the sent bytes end with the end of a request.
    pub between_requests: bool,
}

enum RemoteStream {
    Plain(StreamSocket),
    Tls(Box<tls::TlsStream>),
}

impl Wire {
    fn new(stream: RemoteStream) -> Wire {
        Wire { stream, between_requests: true }
    }

    pub fn fd(&self) -> RawFd {
        match &self.stream {
            RemoteStream::Plain(socket) => socket.0.as_raw_fd(),
            RemoteStream::Tls(stream) => stream.sock.0.as_raw_fd(),
        }
    }

    /// True while TLS holds bytes that are not sent yet.
    pub fn is_holding(&self) -> bool {
        match &self.stream {
            RemoteStream::Plain(_) => false,
            RemoteStream::Tls(stream) => stream.conn.wants_write(),
        }
    }
}

impl Drop for Wire {
    /// Sends a disconnect request, as some servers report an error without it. It need not arrive. In the middle of a request it would be
    /// taken for data, so it is not sent there.
    fn drop(&mut self) {
        if self.between_requests {
            let _ = self.write(&p::request(p::CMD_DISC, 0, 0, 0, 0)).and_then(|_| self.flush());
        }
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.stream {
            RemoteStream::Plain(socket) => socket.read(into),
            RemoteStream::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.stream {
            RemoteStream::Plain(socket) => socket.write(bytes),
            RemoteStream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.stream {
            RemoteStream::Plain(_) => Ok(()),
            RemoteStream::Tls(stream) => stream.flush(),
        }
    }
}

/// Makes connections on a thread of its own: names, handshakes and TLS may take long, but waiting operations have a time limit.
pub(super) struct Connector {
    /// Sends the number of connections that are wanted.
    ask: mpsc::Sender<usize>,
    made: mpsc::Receiver<io::Result<(Vec<Wire>, Offer)>>,
    is_busy: bool,
}

impl Connector {
    pub fn new(uri: Uri, shared: Arc<SharedLink>) -> io::Result<Connector> {
        let ((ask, asked), (makes, made)) = (mpsc::channel(), mpsc::channel());
        let connects = move || {
            while let Ok(connections_max) = asked.recv() {
                if makes.send(connect(&uri, connections_max)).is_err() {
                    return;
                }
                shared.bell.ring();
            }
        };
        std::thread::Builder::new().name("dcd-connect".to_owned()).spawn(connects)?;
        Ok(Connector { ask, made, is_busy: false })
    }

    /// True while connections are being made.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    pub fn begin(&mut self, connections_max: usize) {
        self.is_busy = self.ask.send(connections_max).is_ok();
    }

    /// Takes the connections, or the error, once the thread is done.
    pub fn take(&mut self) -> Option<io::Result<(Vec<Wire>, Offer)>> {
        let made = self.made.try_recv().ok()?;
        self.is_busy = false;
        Some(made)
    }
}

/// Connects to a server as often as it accepts, up to `connections_max` times.
pub(super) fn connect(uri: &Uri, connections_max: usize) -> io::Result<(Vec<Wire>, Offer)> {
    let (first, offer) = connect_once(uri, ANSWER_PATIENCE)?;
    let mut wires = vec![first];
    let several = offer.has(p::TFLAG_CAN_MULTI_CONN);
    while several && wires.len() < connections_max {
        match connect_once(uri, FURTHER_PATIENCE) {
            Ok((wire, same)) if same == offer => wires.push(wire),
            _ => break,
        }
    }
    for wire in &wires {
        set_nonblocking(wire.fd())?;
    }
    Ok((wires, offer))
}

fn connect_once(uri: &Uri, patience: Duration) -> io::Result<(Wire, Offer)> {
    let mut socket = match &uri.server {
        Server::Unix(path) => {
            let stream = UnixStream::connect(path).map_err(|e| unreached(&path.display().to_string(), &e))?;
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            StreamSocket(File::from(OwnedFd::from(stream)))
        }
        Server::Tcp { host, port } => {
            let stream = connect_tcp(host, *port)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            let socket = StreamSocket(File::from(OwnedFd::from(stream)));
            // Without it, a cut cable is noticed after a quarter of an hour.
            socket.set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, UNTAKEN_MS_MAX)?;
            socket.set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
            socket.set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, SILENT_SECONDS)?;
            socket.set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, SIGN_SECONDS)?;
            socket.set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, SIGNS_MAX)?;
            socket
        }
    };
    handshake::greet(&mut socket).map_err(silent)?;
    if !uri.tls {
        let offer = handshake::choose(&mut socket, &uri.export).map_err(silent)?;
        return Ok((Wire::new(RemoteStream::Plain(socket)), offer));
    }
    handshake::ask_for_tls(&mut socket).map_err(silent)?;
    let mut stream = tls::begin(uri, socket)?;
    let offer = handshake::choose(&mut stream, &uri.export).map_err(|e| silent(tls::explained(e)))?;
    Ok((Wire::new(RemoteStream::Tls(Box::new(stream))), offer))
}

fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let place = format!("{host}:{port}");
    let addresses = (host, port).to_socket_addrs().map_err(|e| unreached(&place, &e))?;
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(unreached(&place, &last))
}

fn unreached(place: &str, error: &io::Error) -> io::Error {
    let what =
        format!("the server at {place} cannot be reached: {error}. Is it running, and is the address right?");
    io::Error::new(error.kind(), what)
}

/// Explains a timeout or an ended connection during a handshake.
fn silent(error: io::Error) -> io::Error {
    let what = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "the server does not answer: it may have its maximum number of clients"
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "the server has ended the connection"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), what)
}

fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: plain system calls on an open descriptor.
    let done = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
