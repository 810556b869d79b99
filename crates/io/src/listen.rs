//! Listening sockets: unix sockets that only their owner reaches, and TCP where it was asked for.

use std::ffi::CString;
use std::fs::{self, DirBuilder};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;

use crate::lock_file::{LockFile, NotLocked};

/// The longest path of a unix socket: `sun_path` without its end.
const SOCKET_PATH_MAX: usize = 107;

/// Errors of listening: clients cannot connect.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("{}: a server{} has this socket: stop it first, or choose another path", path.display(), process(*pid))]
    InUse { path: PathBuf, pid: Option<u32> },
    #[error("{}: it exists and is not a socket: remove it, or choose another path", path.display())]
    NotASocket { path: PathBuf },
    #[error("{}: longer than the {SOCKET_PATH_MAX} bytes that a socket's path may have: choose a shorter one",
        path.display())]
    TooLong { path: PathBuf },
    #[error("{}: {doing} failed: {source}", path.display())]
    Unix { path: PathBuf, doing: &'static str, source: io::Error },
    #[error("cannot listen on {address}: {source}")]
    Tcp { address: SocketAddr, source: io::Error },
}

/// Users who may connect to a unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketRights {
    pub mode: u32,
    /// Group of the socket, if it is not that of the process.
    pub group: Option<u32>,
}

impl Default for SocketRights {
    fn default() -> SocketRights {
        SocketRights::OWNER
    }
}

impl SocketRights {
    /// Only the user of the process.
    pub const OWNER: SocketRights = SocketRights { mode: 0o600, group: None };

    /// True if other users have to reach the socket.
    pub fn has_others(self) -> bool {
        self.mode & 0o077 != 0
    }

    /// Mode of a directory that is made for the socket: other users pass through it, and see nothing else there.
    fn directory_mode(self) -> u32 {
        if self.has_others() { 0o711 } else { 0o700 }
    }
}

/// The number of a group; none if this machine does not know it.
pub fn group_number(name: &str) -> io::Result<Option<u32>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    // Room for the names of the members, up to thousands of them.
    let mut room = vec![0; 1 << 20];
    // SAFETY: plain data; the call fills it.
    let mut group: libc::group = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are to live variables, and the length is that of `room`.
    let error = unsafe {
        libc::getgrnam_r(name.as_ptr(), &raw mut group, room.as_mut_ptr(), room.len(), &raw mut found)
    };
    match error {
        0 => Ok((!found.is_null()).then_some(group.gr_gid)),
        // A way in which some systems say that there is none.
        libc::ENOENT | libc::ESRCH => Ok(None),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// A socket that takes connections. A unix socket's file goes away with it.
pub struct ListenSocket {
    fd: OwnedFd,
    file: Option<SocketFile>,
    pub address: Option<SocketAddr>,
}

/// The file of a socket, which is removed when this is dropped.
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
    /// Keeps other servers off the socket. Its file is beside that of the socket.
    _lock: LockFile,
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn process(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

impl ListenSocket {
    /// A unix socket, with its directory if that does not exist.
    pub fn unix(path: &Path, rights: SocketRights) -> Result<ListenSocket, ListenError> {
        let failed = |doing| move |source| ListenError::Unix { path: path.to_owned(), doing, source };
        if path.as_os_str().as_bytes().len() > SOCKET_PATH_MAX {
            return Err(ListenError::TooLong { path: path.to_owned() });
        }
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        make_directory(parent, rights.directory_mode()).map_err(failed("making its directory"))?;
        let lock = LockFile::take(&beside(path)).map_err(|error| match error {
            NotLocked::Held(pid) => ListenError::InUse { path: path.to_owned(), pid },
            NotLocked::Failed(source) => failed("locking it")(source),
        })?;
        remove_stale(path)?;
        let listener = bind_private(path).map_err(failed("listening"))?;
        if rights.group.is_some() {
            chown(path, None, rights.group).map_err(failed("giving it to its group"))?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(rights.mode))
            .map_err(failed("setting its mode"))?;
        let about = fs::symlink_metadata(path).map_err(failed("looking at the socket"))?;
        let file = SocketFile { path: path.to_owned(), device: about.dev(), inode: about.ino(), _lock: lock };
        Ok(ListenSocket { fd: listener.into(), file: Some(file), address: None })
    }

    pub fn tcp(address: SocketAddr) -> Result<ListenSocket, ListenError> {
        let failed = |source| ListenError::Tcp { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(ListenSocket { fd: listener.into(), file: None, address: Some(address) })
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Takes the socket's file, so that another owner removes it.
    pub fn take_file(&mut self) -> Option<SocketFile> {
        self.file.take()
    }

    /// Removes the socket's file on a thread, which is returned: its file system may not answer.
    pub fn unlink(&mut self) -> Option<thread::JoinHandle<()>> {
        let file = self.file.take()?;
        // Without a thread the closure is dropped here, and the file with it.
        let builder = thread::Builder::new().name("dcd-unlink".to_owned()).stack_size(128 << 10);
        builder.spawn(|| drop(file)).ok()
    }
}

impl Drop for SocketFile {
    /// Removes the file, if it is still ours.
    fn drop(&mut self) {
        let same = fs::symlink_metadata(&self.path)
            .is_ok_and(|about| (about.dev(), about.ino()) == (self.device, self.inode));
        if same {
            // A failure does no harm: the next server finds the socket stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The lock file of a socket.
fn beside(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// True if a server listens on a socket. The connect does not block, even if a stopped server has a full queue of callers.
fn answers(path: &Path) -> io::Result<bool> {
    // SAFETY: plain data; all zeroes is an address without a path.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, byte) in address.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
        *to = *byte as libc::c_char;
    }
    let flags = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a plain system call.
    let fd = unsafe { libc::socket(libc::AF_UNIX, flags, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let size = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` outlives the call, and `size` is its size. The path is shorter than `sun_path`, so the rest is zeroes.
    if unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), size) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        error => Err(error),
    }
}

/// Removes a socket without a listener.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let failed = |doing| move |source| ListenError::Unix { path: path.to_owned(), doing, source };
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed("looking for an old socket")(e)),
        Ok(about) if !about.file_type().is_socket() => {
            return Err(ListenError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match answers(path).map_err(failed("trying an old socket"))? {
        false => fs::remove_file(path).map_err(failed("removing an old socket")),
        true => Err(ListenError::InUse { path: path.to_owned(), pid: None }),
    }
}

/// Makes a directory, if it does not exist, with a mode that the mask of the process does not change.
fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_directory(parent, mode)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode))),
    }
}

/// Binds so that no other user can connect, not even for a moment.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    // SAFETY: plain system calls. The mask is the process's; a file that another thread makes meanwhile gets fewer
    // rights, not more.
    let before = unsafe { libc::umask(0o177) };
    let bound = UnixListener::bind(path);
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    bound
}
