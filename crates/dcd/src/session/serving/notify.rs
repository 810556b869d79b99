//! Tells systemd that a server with `Type=notify` starts, serves, or stops. `sd_notify(3)` describes the messages, and the variable
//! that names the socket for them.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::thread;

/// Tells what the server is doing; `systemctl status` shows it.
pub fn tell_doing(doing: &str) {
    send(&format!("STATUS={doing}"));
}

/// Tells that clients can connect: units that wait for this one start.
pub fn tell_ready(places: &str) {
    send(&format!("READY=1\nSTATUS={places}"));
}

pub fn tell_stopping() {
    send("STOPPING=1\nSTATUS=stopping");
}

/// Asks systemd to wait longer for a stop than the unit says.
pub fn tell_longer_stop(seconds: f64) {
    send(&format!("EXTEND_TIMEOUT_USEC={:.0}", seconds * 1e6));
}

/// Sends a message to systemd. Only the order in which systemd starts other units depends on it, and systemd notices a missing message.
fn send(message: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send_to(&socket, message) {
        eprintln!("dcd: telling {} of \"{message}\": {error}", socket.display());
    }
}

fn send_to(socket: &OsStr, message: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    match sender.send_to_addr(message.as_bytes(), &address) {
        // Nothing that serves waits for systemd.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            sender.set_nonblocking(false)?;
            let message = message.to_owned();
            let sends = move || sender.send_to_addr(message.as_bytes(), &address);
            thread::Builder::new().name("dcd-notify".to_owned()).spawn(sends).map(|_| ())
        }
        sent => sent.map(|_| ()),
    }
}
