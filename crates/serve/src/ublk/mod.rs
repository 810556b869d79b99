//! ublk: a block device of the kernel, /dev/ublkbN, whose requests come through the driver's own ring.
//!
//! ```text
//! control commands ─ threads of their own, each with a bound ─▶ /dev/ublk-control     (control.rs)
//! driver's ring ◀─ a command for each tag: the next request, and the answer to the last ─▶ /dev/ublkcN     (device.rs)
//! ```
//!
//! The device outlives its server where the kernel has user recovery: requests wait, and those that were not answered come again. The
//! order of a recovery is START_USER_RECOVERY, open, the first command of every tag in one system call, mmap, END_USER_RECOVERY. At
//! each of these points the server may be killed, and the next one begins again.
//!
//! The server has no mount namespace of its own. A namespace made while the device is mounted copies that mount. With
//! private mounts, an unmount elsewhere would then not end the file system, and the ending server would wait for itself.

mod control;
mod device;
pub(crate) mod owner;
pub mod uapi;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub use control::{RunningKernel, UblkKernel, available, features, flag_names, missing as missing_flags};
pub use device::UblkDevice;
pub use owner::{Owner, user as disk_user};
use uapi as u;

/// Maximum number of a device's queues, at most one per processor. A single thread serves them all; several queues only reduce waits
/// between processors that send requests.
const QUEUES_MAX: usize = 2;
/// Requests of a queue at a time. The first commands of all queues go out by one system call.
const DEPTH: u16 = 64;
/// The largest request. Each tag may hold a buffer of this size: 64 MiB for both queues.
const REQUEST_BYTES_MAX: u32 = 512 << 10;

/// Why a device cannot be served, or not be removed.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    #[error(
        "there is no {}: {source}. Load the module (modprobe ublk_drv; Linux 6.4 or later with CONFIG_BLK_DEV_UBLK), or serve by \
         NBD (nbd = \"unix:PATH\") or FUSE (fuse = \"DIR\") in the place of ublk",
        u::CONTROL_DEVICE
    )]
    NoUblk { source: io::Error },
    #[error(
        "ublk needs root, or CAP_SYS_ADMIN and the right to open {}: run dcd as root, or serve by NBD (nbd = \"unix:PATH\") or FUSE \
         (fuse = \"DIR\") in the place of ublk",
        u::CONTROL_DEVICE
    )]
    NotPermitted,
    #[error(
        "{}: the kernel has not answered {doing} for {} s; some kernels never do: look at its messages (dmesg), and serve by NBD or \
         FUSE until it is another one",
        node(*number), control::PATIENCE.as_secs()
    )]
    NoAnswer { doing: &'static str, number: u32 },
    #[error("{}: {doing}: {source}", node(*number))]
    Control { doing: &'static str, number: u32, source: io::Error },
    #[error("{path}: {source}; /dev must be the kernel's (devtmpfs)")]
    Open { path: String, source: io::Error },
    #[error(
        "{} belongs to {of}: choose another number, or any with ublk = true; \"dcd ublk list\" shows all",
        node(*number)
    )]
    Taken { number: u32, of: String },
    #[error("{} is served by process {process}, which does not end: stop it first", node(*number))]
    Served { number: u32, process: i32 },
    #[error(
        "{} keeps its size, although the stack has become larger: this kernel cannot change that of a device that is served (Linux 6.16 \
         can). To use the rest, unmount what is on it, stop the server, and start it again",
        node(*number)
    )]
    NotLarger { number: u32 },
    #[error(
        "{} has {has} bytes and the stack {stack}: a device in use cannot become smaller or change its blocks; unmount what is on it, \
         remove it with \"dcd ublk remove {number}\", and start again",
        node(*number)
    )]
    Differs { number: u32, has: u64, stack: u64 },
    #[error(
        "{} was made when every answered write was durable (promise = \"always\"), so what uses it does not flush; now a write would need that: \
         start the server with promise = \"always\" again; or unmount what is on the device then, stop the server, and change the promise",
        node(*number)
    )]
    LessDurable { number: u32 },
    #[error("there is no {}", node(*.0))]
    None(u32),
    #[error("{} is not removed: {why}", node(*number))]
    Kept { number: u32, why: String },
    #[error("{0}")]
    NotForgotten(String),
}

impl UblkError {
    fn control(doing: &'static str, number: u32, source: io::Error) -> UblkError {
        match source.kind() {
            io::ErrorKind::TimedOut => UblkError::NoAnswer { doing, number },
            io::ErrorKind::PermissionDenied => UblkError::NotPermitted,
            io::ErrorKind::NotFound => UblkError::NoUblk { source },
            _ => UblkError::Control { doing, number, source },
        }
    }

    fn taken(info: &u::DevInfo) -> UblkError {
        let (number, mark) = (info.dev_id, info.ublksrv_flags);
        let of = match owner::stack_of(number, mark) {
            Some(stack) => format!("the stack {}", stack.display()),
            None if owner::is_ours(mark) => "another stack of dcd".to_owned(),
            None => format!("another program (process {})", info.ublksrv_pid),
        };
        UblkError::Taken { number, of }
    }
}

fn name(number: u32) -> String {
    format!("ublkb{number}")
}

fn node(number: u32) -> String {
    if number == u::ANY_NUMBER { "a new ublk device".to_owned() } else { format!("/dev/{}", name(number)) }
}

/// Status of a server's device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UblkStatus {
    pub device: String,
    pub is_ready: bool,
    /// True if the device was taken over from an earlier server.
    pub is_recovered: bool,
    pub queues: u16,
    pub depth: u16,
    pub request_bytes_max: u32,
    /// Flags that were agreed on with the kernel.
    pub flags: Vec<String>,
    /// Flags that were asked for and that the kernel lacks.
    pub missing: Vec<String>,
}

/// A device of any program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedUblk {
    pub number: u32,
    pub device: String,
    /// served, waiting (for its next server), failing (requests fail until its next server), or ended.
    pub state: &'static str,
    /// Process of the device's server, if it has one.
    pub process: Option<i32>,
    pub is_dcd: bool,
    /// The stack file, where it is known.
    pub stack: Option<PathBuf>,
    pub user: Option<String>,
    pub flags: Vec<&'static str>,
}

impl ListedUblk {
    fn of(info: &u::DevInfo) -> ListedUblk {
        let (number, mark) = (info.dev_id, info.ublksrv_flags);
        let state = match info.state {
            u::STATE_LIVE => "served",
            u::STATE_QUIESCED => "waiting",
            u::STATE_FAIL_IO => "failing",
            _ => "ended",
        };
        ListedUblk {
            number,
            device: node(number),
            state,
            process: (info.state == u::STATE_LIVE).then_some(info.ublksrv_pid),
            is_dcd: owner::is_ours(mark),
            stack: owner::stack_of(number, mark),
            user: owner::user(&name(number)),
            flags: control::flag_names(info.flags),
        }
    }
}

/// All devices.
///
/// # Errors
/// Where there is no ublk, or it does not answer.
pub fn list(kernel: &dyn UblkKernel) -> Result<Vec<ListedUblk>, UblkError> {
    let mut all = Vec::new();
    for number in kernel.numbers() {
        all.extend(control::info(kernel, number)?.as_ref().map(ListedUblk::of));
    }
    Ok(all)
}

/// Removes a device without a server. `force`: also if it has a server, is another program's, or is in use; its requests then fail.
///
/// # Errors
/// The reason why the device was kept.
pub fn remove(kernel: &dyn UblkKernel, number: u32, force: bool) -> Result<(), UblkError> {
    let info = control::info(kernel, number)?.ok_or(UblkError::None(number))?;
    let listed = ListedUblk::of(&info);
    let kept = |why: String| Err(UblkError::Kept { number, why });
    let is_free = listed.user.is_none();
    let mut hold = None;
    if !force {
        if !listed.is_dcd {
            return kept("it is not dcd's: use the program that has made it".to_owned());
        }
        if let Some(process) = listed.process {
            return kept(format!(
                "process {process} serves it: stop that (dcd stop), which removes the device unless it is in use"
            ));
        }
        let serve = listed.stack.as_ref().map_or("STACK".to_owned(), |stack| stack.display().to_string());
        let in_use = |user: String| {
            format!(
                "it is in use: {user}. Its requests wait: \"dcd serve {serve}\" goes on with them. \"dcd ublk remove --force {number}\" has \
                 them fail, and a file system on it loses what it has not written"
            )
        };
        if let Some(user) = listed.user {
            return kept(in_use(user));
        }
        match owner::hold(&name(number)) {
            Ok(held) => hold = held,
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
                return kept(in_use("its user is unknown".to_owned()));
            }
            Err(source) if source.kind() == io::ErrorKind::ResourceBusy => {
                return kept(in_use("an open of it does not return".to_owned()));
            }
            Err(source) => return Err(UblkError::control("opening it", number, source)),
        }
    }
    control::stop(kernel, number).map_err(|source| UblkError::control("STOP_DEV", number, source))?;
    drop(hold);
    owner::forget(number);
    control::delete(kernel, number, is_free).map_err(UblkError::NotForgotten)
}

/// The running kernel, as a shared handle.
pub fn system() -> Arc<dyn UblkKernel> {
    Arc::new(RunningKernel)
}
