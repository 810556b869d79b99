//! Devices on another machine: an export of an NBD server, with a thread of its own that keeps the connection.
//!
//! Callers put operations into the thread's inbox, and the thread calls them back with the results. Name lookups, handshakes and TLS
//! block only that thread, not the driver's. Commands without a driver use the same code.
//!
//! ```text
//! driver ─ submit ─▶ inbox ─ bell ─▶ thread: dcd_nbd::Client ─ sockets ─▶ server
//! ```

mod connect;
mod thread;
mod tls;

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use dcd_engine::{Discards, ErrorKind, Geometry, Io, IoError, IoResult, SECTOR_BYTES};
use dcd_nbd::{Offer, Server, Uri, protocol as p};

use crate::bell::Bell;
use crate::device::{Backing, Device, DeviceError};
use crate::lock_file::{LockFile, NotLocked};
use thread::RemoteKeeper;

/// The longest name of a lock file; file systems take 255.
const LOCK_NAME_BYTES_MAX: usize = 200;
/// Maximum time to wait for the end of a connection.
const END_PATIENCE: Duration = Duration::from_millis(500);

/// An export to open.
#[derive(Clone, Debug)]
pub struct RemoteSpec {
    pub uri: Uri,
    /// The URI as it was written, for messages.
    pub text: String,
    pub read_only: bool,
    /// Time after which an unanswered operation fails; none: it waits indefinitely.
    pub timeout: Option<Duration>,
}

/// State of the connection to a server.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    pub connections: usize,
    /// Time when the connections were made, or lost.
    pub since: Instant,
    /// The reason why there is no connection, or why the last one ended.
    pub why: Option<String>,
    /// Number of times that the connection was lost.
    pub losses: u64,
    /// Bytes of answered writes that are retained until a flush covers them.
    pub kept_bytes: u64,
}

/// Gets the end of an operation, on the device's thread.
pub(crate) type Answer = Box<dyn FnOnce(IoResult) + Send>;

/// State that a device and its thread share.
struct SharedLink {
    inbox: Mutex<Inbox>,
    bell: Bell,
    link: Mutex<LinkStatus>,
}

#[derive(Default)]
struct Inbox {
    asked: Vec<(Io, Answer)>,
    closed: bool,
}

/// An open export.
pub(crate) struct Remote {
    shared: Arc<SharedLink>,
    /// Disconnected when the thread ends.
    ended: mpsc::Receiver<()>,
    /// Keeps others on this machine from opening the export.
    _claim: LockFile,
}

/// Opens an export.
pub(crate) fn open(spec: &RemoteSpec) -> Result<Device, DeviceError> {
    let path = PathBuf::from(&spec.text);
    let unsuitable = |what: String| DeviceError::Unsuitable { path: path.clone(), what };
    let claim = claim(&spec.uri).map_err(|error| match error {
        NotLocked::Held(pid) => DeviceError::Claimed { path: path.clone(), pid },
        NotLocked::Failed(source) => DeviceError::system(&path, "locking it", source),
    })?;
    let connected = connect::connect(&spec.uri, connect::CONNECTIONS_MAX);
    let (wires, offer) = connected.map_err(|error| unsuitable(error.to_string()))?;
    let geometry = geometry(&offer, spec.read_only).map_err(unsuitable)?;
    let bell = Bell::new().map_err(|e| DeviceError::system(&path, "making an eventfd", e))?;
    let link =
        LinkStatus { connections: wires.len(), since: Instant::now(), why: None, losses: 0, kept_bytes: 0 };
    let shared = Arc::new(SharedLink { inbox: Mutex::default(), bell, link: Mutex::new(link) });
    let failed = |error| DeviceError::system(&path, "making a thread", error);
    let keeper = RemoteKeeper::new(spec.clone(), offer, wires, Arc::clone(&shared)).map_err(failed)?;
    let (alive, ended) = mpsc::channel();
    let runs = move || {
        keeper.run();
        drop(alive);
    };
    let thread = std::thread::Builder::new().name("dcd-remote".to_owned()).spawn(runs);
    thread.map_err(failed)?;
    let backing = Backing::Remote(Remote { shared, ended, _claim: claim });
    Ok(Device::new(spec.text.clone(), geometry, backing, None))
}

/// Locks an export on this machine: the server itself cannot be locked. The lock has the host name of the URI, not the resolved address.
fn claim(uri: &Uri) -> Result<LockFile, NotLocked> {
    let place = match &uri.server {
        Server::Tcp { host, port } => format!("{host}:{port}"),
        Server::Unix(path) => {
            std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()).display().to_string()
        }
    };
    let directory = lock_directory().map_err(NotLocked::Failed)?;
    LockFile::take(&directory.join(lock_name(&format!("{place}/{}", uri.export))))
}

/// Returns the name of an export's lock file. Only exports with very long names may share one.
fn lock_name(export: &str) -> String {
    let mut name = String::from("remote-");
    for byte in export.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' => name.push(char::from(byte)),
            byte => name += &format!("%{byte:02x}"),
        }
    }
    if name.len() > LOCK_NAME_BYTES_MAX {
        let sum = dcd_nbd::checksum(name.as_bytes());
        name = format!("remote-{sum:08x}-{}", &name[name.len() - LOCK_NAME_BYTES_MAX / 2..]);
    }
    name
}

/// Returns the directory of the locks: one per user, which no other user can write. Root's is that of the sockets.
fn lock_directory() -> io::Result<PathBuf> {
    // SAFETY: a plain system call.
    let user = unsafe { libc::geteuid() };
    let directory = match (user, std::env::var_os("XDG_RUNTIME_DIR")) {
        (0, _) => PathBuf::from("/run/dcd"),
        (_, Some(runtime)) => PathBuf::from(runtime).join("dcd"),
        (user, None) => std::env::temp_dir().join(format!("dcd-{user}")),
    };
    DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    let about = std::fs::symlink_metadata(&directory)?;
    if !about.is_dir() || about.uid() != user || about.mode() & 0o022 != 0 {
        return Err(io::Error::other(format!(
            "{} is for locks, and other users can write it: have it belong to the user of dcd, with mode 0700",
            directory.display()
        )));
    }
    Ok(directory)
}

/// Returns the geometry of the export as a device; or why it cannot be one.
fn geometry(offer: &Offer, read_only: bool) -> Result<Geometry, String> {
    let block = offer.block_bytes_min.max(SECTOR_BYTES as u32);
    if !matches!(block, 512 | 4096) {
        return Err(format!("its blocks have {block} bytes: dcd needs 512 or 4096"));
    }
    if offer.payload_bytes_max < 4096 {
        return Err(format!(
            "its server takes {} bytes at a time at most: dcd needs 4096",
            offer.payload_bytes_max
        ));
    }
    if !read_only && offer.has(p::TFLAG_READ_ONLY) {
        return Err(
            "its server exports it read-only: make it writable there, or set read-only = true".to_owned()
        );
    }
    // Without flushes, a foreign server promises nothing.
    let tells_durability = offer.has(p::TFLAG_SEND_FUA) && (offer.has(p::TFLAG_SEND_FLUSH) || offer.durable);
    if !read_only && !tells_durability {
        return Err("its server does not say when data is on its medium (it knows no flush, or no FUA): what it acknowledges could be lost. \
                    Use a server that does (qemu-nbd, nbdkit, dcd)"
            .to_owned());
    }
    let physical = offer.block_bytes_preferred;
    let (blocks, sectors) = (offer.bytes / u64::from(block), u64::from(block) / SECTOR_BYTES);
    if blocks == 0 {
        return Err("it is smaller than one block".to_owned());
    }
    Ok(Geometry {
        sectors: blocks * sectors,
        logical_block_bytes: block,
        physical_block_bytes: if matches!(physical, 512 | 4096) { physical.max(block) } else { 4096 },
        volatile_cache: offer.has(p::TFLAG_SEND_FLUSH),
        discards: if offer.has(p::TFLAG_SEND_TRIM) && !read_only { Discards::Advisory } else { Discards::No },
        fast_zeroes: offer.has(p::TFLAG_SEND_WRITE_ZEROES) && !read_only,
        rotational: offer.has(p::TFLAG_ROTATIONAL),
        read_only,
        stripes: None,
        copies: 1,
        holes: false,
        ssd: false,
        disk: None,
    })
}

impl Remote {
    /// Queues an operation for the thread. `answer` is called once, unless the device is closed before.
    pub fn submit(&self, io: Io, answer: Answer) {
        lock(&self.shared.inbox).asked.push((io, answer));
        self.shared.bell.ring();
    }

    /// Waits for the end of an operation.
    pub fn run(&self, io: Io) -> IoResult {
        let (answer, answered) = mpsc::channel();
        // The receiver exists, as this function waits on it.
        self.submit(io, Box::new(move |result| answer.send(result).unwrap_or_default()));
        let gone = || IoResult::err(dcd_engine::Buf::none(), IoError::new(ErrorKind::Shutdown));
        answered.recv().unwrap_or_else(|_| gone())
    }

    pub fn link(&self) -> LinkStatus {
        lock(&self.shared.link).clone()
    }
}

impl Drop for Remote {
    /// Ends the connection, and waits briefly for its end.
    fn drop(&mut self) {
        lock(&self.shared.inbox).closed = true;
        self.shared.bell.ring();
        // A server that accepts only a single client is then free for the next.
        let _ = self.ended.recv_timeout(END_PATIENCE);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics while holding it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_tell_what_is_durable_is_only_read() {
        let with = |flags: u16, durable| Offer {
            bytes: 1 << 20,
            flags: p::TFLAG_HAS_FLAGS | flags,
            durable,
            block_bytes_min: 512,
            block_bytes_preferred: 4096,
            payload_bytes_max: 1 << 20,
        };
        let (flush, fua) = (p::TFLAG_SEND_FLUSH, p::TFLAG_SEND_FUA);
        for (offer, volatile_cache) in [
            (with(flush | fua, false), Some(true)),
            (with(fua, true), Some(false)),
            (with(fua, false), None),
            (with(flush, false), None),
            (with(0, true), None),
        ] {
            assert_eq!(geometry(&offer, false).ok().map(|geometry| geometry.volatile_cache), volatile_cache);
            assert!(geometry(&offer, true).is_ok());
        }
    }

    #[test]
    fn each_export_has_its_own_lock() {
        let names =
            ["nas:10809/a", "nas:10809/b", "nas:10809/a_", "nas:10809/a/", "nas_10809/a", "/run/x.sock/a"];
        let all: std::collections::BTreeSet<String> = names.iter().map(|name| lock_name(name)).collect();
        assert_eq!(all.len(), names.len());
        let long = ["x", "y"].map(|first| lock_name(&format!("{first}{}", "/".repeat(4096))));
        assert!(long[0] != long[1] && long[0].len() < 255 && !long[0].contains('/'));
    }
}
