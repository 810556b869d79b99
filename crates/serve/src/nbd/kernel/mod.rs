//! The kernel's NBD client, /dev/nbdN, over its generic netlink interface (linux/nbd-netlink.h; drivers/block/nbd.c says what it does).
//!
//! A device stores the text of its [`Backend`], and accepts a new connection only with the same text. The text names the device's owner,
//! so a server finds its devices again by it.
//!
//! The device outlives its server with a *dead-connection timeout*: a request that has no connection waits for one. A request that was in
//! flight when the server ended is checked when its request time is over. It is then sent again if there is a new connection; else its
//! time starts again. The queue has this time, and the device has no timeout: with one, the kernel would close the connection of a server
//! whose disk is slow, and send requests again that this server still has.

mod netlink;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use crate::ublk::{Owner, owner};
use dcd_nbd::Offer;
use netlink::{Attributes, NetlinkFamily, find};

const FAMILY: &str = "nbd";
const VERSION: u8 = 1;
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;

const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONN_TIMEOUT: u16 = 8;
const BACKEND_IDENTIFIER: u16 = 10;
/// Attribute within SOCKETS; the next one is within this.
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

/// Seconds that requests wait for the next server. An administrator who does not want to wait releases the device.
const DEAD_CONN_SECONDS: u64 = 7 * 24 * 3600;
/// Request time of the queue in milliseconds: requests of a killed server are sent again after this time at most. The kernel logs each
/// request that takes longer, which does no harm.
const REQUEST_MILLISECONDS: u32 = 5000;
/// The kernel's default request time.
const REQUEST_MILLISECONDS_DEFAULT: u32 = 30_000;
/// Maximum length of a stack's path: sysfs shows a page at most.
const PATH_CHARS_MAX: usize = 900;
/// Maximum length of a disk's name there.
const DISK_BYTES_MAX: usize = 100;

/// Size of the read that tests whether a server answers, and its maximum time: a disk that sleeps needs some seconds.
const READ_BYTES: usize = 4096;
const READ_PATIENCE: Duration = Duration::from_secs(30);

const DISKS: &str = "/sys/block";

/// Why a device is not connected, or not released.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("the kernel has no NBD client ({0}): load the module (modprobe nbd)")]
    NoNbd(io::Error),
    #[error("the kernel's NBD client needs root, or CAP_SYS_ADMIN: run this as root")]
    NotPermitted,
    #[error("{node}: {doing}: {source}; the kernel's messages (dmesg) may say more")]
    Failed { node: String, doing: &'static str, source: io::Error },
    #[error(
        "{0}: this kernel's NBD client does not store a device's owner (Linux 5.14 and later do), so no server would find the device again"
    )]
    NoBackend(String),
    #[error(
        "{node} has {has} bytes and the server {offers}: unmount what is on it, release it, and attach it again"
    )]
    Differs { node: String, has: u64, offers: u64 },
    #[error(
        "{0} was made when every answered write was durable (promise = \"always\"), so what uses it does not flush; the server now needs that: \
         start it with promise = \"always\" again; or unmount what is on the device then, release it, and change the promise"
    )]
    LessDurable(String),
    #[error(
        "{0} does not answer, so it keeps its size: it may be given a new connection still; try again in some seconds"
    )]
    Silent(String),
    #[error("{node} is not released: it is in use: {}", user.strip_prefix(&format!("{node}, ")).unwrap_or(user))]
    InUse { node: String, user: String },
}

/// Text that the kernel stores with a device: the mark of its stack, how it was attached, the name of its disk unless that is the first,
/// and the path of the stack file. The udev rules read it, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    text: String,
    /// True if requests wait for the next server.
    pub recovery: bool,
}

impl Backend {
    /// `disk`: the name of a disk after the first.
    pub fn new(owner: &Owner, disk: Option<&str>, recovery: bool) -> Backend {
        let way = if recovery { "recovery" } else { "once" };
        let marks: Vec<String> = owner.marks().iter().map(|mark| format!("{mark:x}")).collect();
        let disk = disk.map_or(String::new(), |disk| format!("-{}", disk_text(disk)));
        Backend {
            text: format!("dcd-{}-{way}{disk} {}", marks.join("+"), path_text(owner.stack())),
            recovery,
        }
    }

    /// Parses the text that the kernel stores.
    pub fn read(text: &str) -> Option<Backend> {
        let (marks, way) = text.split_once(' ')?.0.strip_prefix("dcd-")?.split_once('-')?;
        let recovery = match way.split_once('-').map_or(way, |(way, _)| way) {
            "recovery" => true,
            "once" => false,
            _ => return None,
        };
        marks_of(marks)?;
        Some(Backend { text: text.to_owned(), recovery })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// True for a device of this stack, whichever name its disk had when the device was made.
    pub fn is_of(&self, owner: &Owner) -> bool {
        owner.has(&self.marks()) && self.stack() == path_text(owner.stack())
    }

    /// True for a device of the same disk of the same stack.
    pub fn has_mark_of(&self, other: &Backend) -> bool {
        let own = self.marks();
        self.stack() == other.stack() && other.marks().iter().any(|mark| own.contains(mark))
    }

    fn marks(&self) -> Vec<u64> {
        let marks = self.text.strip_prefix("dcd-").and_then(|text| text.split_once('-'));
        marks.and_then(|(marks, _)| marks_of(marks)).unwrap_or_default()
    }

    /// True for the device of this disk of its stack; none: the first.
    pub fn is_of_disk(&self, disk: Option<&str>) -> bool {
        let named = self.text.split_once(' ').and_then(|(head, _)| head.splitn(4, '-').nth(3));
        named.map(str::to_owned) == disk.map(disk_text)
    }

    fn stack(&self) -> &str {
        self.text.split_once(' ').map_or("", |(_, path)| path)
    }
}

/// Encodes what would end the name of a disk. The names of most disks stay as they are.
fn disk_text(disk: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let encoded = |byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") };
    disk.bytes().take(DISK_BYTES_MAX).map(encoded).collect()
}

/// An earlier version wrote one mark.
fn marks_of(text: &str) -> Option<Vec<u64>> {
    text.split('+').map(|mark| u64::from_str_radix(mark, 16).ok()).collect()
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().chars().take(PATH_CHARS_MAX).collect()
}

/// A device that has a connection, or had one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdDevice {
    number: u32,
    pub backend: Backend,
}

impl NbdDevice {
    pub fn node(&self) -> String {
        format!("/dev/{}", name(self.number))
    }

    pub fn bytes(&self) -> Result<u64, KernelError> {
        size_of(self).map_err(self.failed("reading its size"))
    }

    /// True if the kernel passes flushes on to the server.
    fn flushes(&self, disks: &Path) -> bool {
        let path = disks.join(name(self.number)).join("queue/write_cache");
        fs::read_to_string(path).is_ok_and(|mode| mode.trim_end() == "write back")
    }

    /// Refuses a server that needs flushes, for a device that passes none on.
    fn admits(&self, offer: &Offer) -> Result<(), KernelError> {
        self.admits_in(Path::new(DISKS), offer)
    }

    fn admits_in(&self, disks: &Path, offer: &Offer) -> Result<(), KernelError> {
        match offer.durable || self.flushes(disks) {
            true => Ok(()),
            false => Err(KernelError::LessDurable(self.node())),
        }
    }

    /// Returns the user of the device.
    pub fn user(&self) -> Option<String> {
        owner::user(&name(self.number))
    }

    /// True if the server answers. The test reads a block from the server, not from memory.
    pub fn answers(&self) -> bool {
        let node = self.node();
        let reads = move || -> io::Result<()> {
            let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
            let file = rustix::fs::open(node, flags, Mode::empty())?;
            let mut memory = vec![0; 2 * READ_BYTES];
            let start = memory.as_ptr().align_offset(READ_BYTES);
            match rustix::io::pread(&file, &mut memory[start..start + READ_BYTES], 0)? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                _ => Ok(()),
            }
        };
        let (answered, answer) = mpsc::sync_channel(1);
        // The read may wait for a server. Sending fails only if the caller no longer waits.
        let asks = thread::Builder::new().spawn(move || {
            let _ = answered.send(reads().is_ok());
        });
        asks.is_ok() && answer.recv_timeout(READ_PATIENCE) == Ok(true)
    }

    fn failed(&self, doing: &'static str) -> impl FnOnce(io::Error) -> KernelError {
        failed(self.node(), doing)
    }
}

fn name(number: u32) -> String {
    format!("nbd{number}")
}

fn failed(node: String, doing: &'static str) -> impl FnOnce(io::Error) -> KernelError {
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => KernelError::NotPermitted,
        _ => KernelError::Failed { node, doing, source },
    }
}

/// The devices of a stack file, by their numbers.
pub fn devices_of(stack: &Path) -> Vec<NbdDevice> {
    devices_in(Path::new(DISKS), stack)
}

fn devices_in(disks: &Path, stack: &Path) -> Vec<NbdDevice> {
    let stack = fs::canonicalize(stack).unwrap_or_else(|_| stack.to_owned());
    let stack = path_text(&stack);
    let names = fs::read_dir(disks).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let device = |name: &str| {
        let number = name.strip_prefix("nbd")?.parse().ok()?;
        Some(NbdDevice { number, backend: backend_in(disks, number)? })
    };
    let mut devices: Vec<NbdDevice> = names
        .filter_map(|name| device(name.to_str()?))
        .filter(|device| device.backend.stack() == stack)
        .collect();
    devices.sort_by_key(|device| device.number);
    devices
}

fn backend_in(disks: &Path, number: u32) -> Option<Backend> {
    let text = fs::read_to_string(disks.join(name(number)).join("backend")).ok()?;
    Backend::read(text.strip_suffix('\n').unwrap_or(&text))
}

/// The kernel's client.
#[derive(Debug)]
pub struct NbdKernel(NetlinkFamily);

impl NbdKernel {
    /// # Errors
    /// If the kernel has no NBD client, or permission is missing.
    pub fn open() -> Result<NbdKernel, KernelError> {
        NetlinkFamily::open(FAMILY, VERSION).map(NbdKernel).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => KernelError::NotPermitted,
            _ => KernelError::NoNbd(error),
        })
    }

    /// Makes a device from a connection in the transmission phase.
    ///
    /// # Errors
    /// Where it is not made.
    pub fn connect(
        &self,
        socket: &OwnedFd,
        offer: &Offer,
        backend: &Backend,
    ) -> Result<NbdDevice, KernelError> {
        let node = || "a new NBD device".to_owned();
        let made = self.0.call(CONNECT, &to_connect(socket, offer, backend));
        let answer = made.map_err(failed(node(), "connecting it"))?;
        let number = find(&answer, INDEX).and_then(|value| Some(u32::from_ne_bytes(value.try_into().ok()?)));
        let none = || io::Error::other("the kernel does not say its number");
        let number = number.ok_or_else(|| failed(node(), "connecting it")(none()))?;
        let device = NbdDevice { number, backend: backend.clone() };
        if backend_in(Path::new(DISKS), number).as_ref() != Some(backend) {
            self.disconnect(&device)?;
            return Err(KernelError::NoBackend(device.node()));
        }
        if backend.recovery
            && let Err(error) = set_request_time(number, REQUEST_MILLISECONDS)
        {
            self.disconnect(&device)?;
            return Err(device.failed("setting the time after which a request is sent again")(error));
        }
        Ok(device)
    }

    /// Replaces a dead connection of a device. If none is dead, the kernel silently closes the new one.
    ///
    /// # Errors
    /// If the device, or the server's export or its promise, has changed meanwhile.
    pub fn reconnect(&self, device: &NbdDevice, socket: &OwnedFd, offer: &Offer) -> Result<(), KernelError> {
        device.admits(offer)?;
        let has = device.bytes()?;
        if has > offer.bytes {
            return Err(KernelError::Differs { node: device.node(), has, offers: offer.bytes });
        }
        let attributes = Attributes::default()
            .number(INDEX, device.number)
            .text(BACKEND_IDENTIFIER, &device.backend.text)
            .nested(SOCKETS, socket_list(socket));
        self.0.call(RECONFIGURE, &attributes).map(drop).map_err(device.failed("giving it a new connection"))
    }

    /// Gives a device the size of a server that has grown. The kernel first waits for the device's requests, which may wait for a new
    /// connection. So the device must answer before.
    ///
    /// # Errors
    /// If the device does not answer, the server's promise has changed, or the kernel refuses the new size.
    pub fn grow(&self, device: &NbdDevice, offer: &Offer) -> Result<(), KernelError> {
        device.admits(offer)?;
        if device.bytes()? >= offer.bytes {
            return Ok(());
        }
        if !device.answers() {
            return Err(KernelError::Silent(device.node()));
        }
        let attributes = Attributes::default()
            .number(INDEX, device.number)
            .text(BACKEND_IDENTIFIER, &device.backend.text)
            .long(SIZE_BYTES, offer.bytes);
        self.0.call(RECONFIGURE, &attributes).map(drop).map_err(device.failed("giving it a new size"))
    }

    /// Ends a device: requests that wait fail. The device must be held, or not in use.
    fn disconnect(&self, device: &NbdDevice) -> Result<(), KernelError> {
        let attributes = Attributes::default().number(INDEX, device.number);
        self.0.call(DISCONNECT, &attributes).map_err(device.failed("disconnecting it"))?;
        // The next user of the number expects the kernel's default. If this fails, the kernel only logs more.
        let _ = set_request_time(device.number, REQUEST_MILLISECONDS_DEFAULT);
        Ok(())
    }

    /// Ends a device that is not in use. `force`: also a device in use, whose requests then fail.
    ///
    /// # Errors
    /// If the device is in use.
    pub fn release(&self, device: &NbdDevice, force: bool) -> Result<(), KernelError> {
        let in_use = |user: String| Err(KernelError::InUse { node: device.node(), user });
        let mut held = None;
        if !force {
            if let Some(user) = device.user() {
                return in_use(user);
            }
            held = match owner::hold(&name(device.number)) {
                Ok(held) => held,
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    return in_use("its user is unknown, or it does not answer".to_owned());
                }
                Err(error) => return Err(device.failed("opening it")(error)),
            };
        }
        self.disconnect(device)?;
        drop(held);
        Ok(())
    }
}

fn to_connect(socket: &impl AsRawFd, offer: &Offer, backend: &Backend) -> Attributes {
    let mut attributes = Attributes::default()
        .long(SIZE_BYTES, offer.bytes)
        .long(BLOCK_SIZE_BYTES, u64::from(offer.block_bytes_min))
        // None: a server whose disk is slow keeps its connection.
        .long(TIMEOUT, 0)
        .long(SERVER_FLAGS, u64::from(offer.flags));
    if backend.recovery {
        attributes = attributes.long(DEAD_CONN_TIMEOUT, DEAD_CONN_SECONDS);
    }
    attributes.nested(SOCKETS, socket_list(socket)).text(BACKEND_IDENTIFIER, &backend.text)
}

fn socket_list(socket: &impl AsRawFd) -> Attributes {
    let fd = u32::try_from(socket.as_raw_fd()).expect("an open descriptor is not negative");
    Attributes::default().nested(SOCKET_ITEM, Attributes::default().number(SOCKET_FD, fd))
}

fn set_request_time(number: u32, milliseconds: u32) -> io::Result<()> {
    let path: PathBuf = [DISKS, &name(number), "queue/io_timeout"].iter().collect();
    fs::write(path, milliseconds.to_string())
}

fn size_of(device: &NbdDevice) -> io::Result<u64> {
    let path: PathBuf = [DISKS, &name(device.number), "size"].iter().collect();
    let sectors: u64 = fs::read_to_string(path)?.trim().parse().map_err(io::Error::other)?;
    Ok(sectors * dcd_engine::SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(stack: &str) -> Owner {
        Owner::new(Path::new(stack), "cache", &[])
    }

    #[test]
    fn a_backend_is_read_as_it_was_written_and_others_are_not_ours() {
        for recovery in [true, false] {
            let backend = Backend::new(&owner("/nowhere/a b-c.toml"), None, recovery);
            assert_eq!(Backend::read(backend.text()), Some(backend.clone()));
            assert_eq!(backend.stack(), "/nowhere/a b-c.toml");
        }
        assert_ne!(Backend::new(&owner("/a"), None, true), Backend::new(&owner("/a"), None, false));
        for disk in [Some("mail"), Some("a-b c"), Some("once"), None] {
            let backend = Backend::new(&owner("/nowhere/a b-c.toml"), disk, true);
            assert_eq!(Backend::read(backend.text()), Some(backend.clone()), "{disk:?}");
            assert!(backend.recovery && backend.stack() == "/nowhere/a b-c.toml", "{disk:?}");
            for other in [Some("mail"), Some("a-b c"), Some("once"), None] {
                assert_eq!(backend.is_of_disk(other), other == disk, "{disk:?} {other:?}");
            }
        }
        for text in ["", "dcd", "dcd-1f-twice /a", "dcd-x-once /a", "rbd-1f-once /a"] {
            assert_eq!(Backend::read(text), None, "{text}");
        }
        let long = Backend::new(&owner(&format!("/{}", "ü".repeat(2000))), None, true);
        assert!(long.text().len() < 4096);
    }

    #[test]
    fn a_backend_is_of_its_stack_also_when_the_disk_has_another_path() {
        let owner = |stack: &str, keys: &[&str]| {
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            Owner::new(Path::new(stack), "cache", &keys)
        };
        let made = Backend::new(&owner("/nowhere/a.toml", &["uuid-1", "/dev/dm-3"]), None, true);
        for keys in [["uuid-1", "/dev/dm-4"], ["uuid-2", "/dev/dm-3"]] {
            assert!(made.is_of(&owner("/nowhere/a.toml", &keys)));
            assert!(!made.is_of(&owner("/nowhere/b.toml", &keys)));
        }
        assert!(!made.is_of(&owner("/nowhere/a.toml", &["uuid-2", "/dev/dm-4"])));
        let earlier = Backend::new(&owner("/nowhere/a.toml", &["/dev/dm-3"]), None, true);
        assert!(earlier.is_of(&owner("/nowhere/a.toml", &["uuid-1", "/dev/dm-3"])));
    }

    #[test]
    fn the_devices_of_a_stack_are_those_that_name_it() {
        let disks = tempfile::tempdir().unwrap();
        let make = |name: &str, backend: Option<&str>| {
            fs::create_dir(disks.path().join(name)).unwrap();
            if let Some(backend) = backend {
                fs::write(disks.path().join(name).join("backend"), format!("{backend}\n")).unwrap();
            }
        };
        let ours = Backend::new(&owner("/nowhere/a.toml"), None, true);
        make("nbd11", Some(ours.text()));
        make("nbd2", Some(Backend::new(&owner("/nowhere/a.toml"), None, false).text()));
        make("nbd3", Some(Backend::new(&owner("/nowhere/b.toml"), None, true).text()));
        make("nbd4", Some("somebody's"));
        make("nbd5", None);
        make("sda", Some(ours.text()));
        let found = devices_in(disks.path(), Path::new("/nowhere/a.toml"));
        assert_eq!(found.iter().map(NbdDevice::node).collect::<Vec<_>>(), ["/dev/nbd2", "/dev/nbd11"]);
        assert_eq!(found[1].backend, ours);
    }

    #[test]
    fn a_device_that_passes_no_flushes_on_gets_no_server_that_needs_them() {
        let disks = tempfile::tempdir().unwrap();
        let device = NbdDevice { number: 7, backend: Backend::new(&owner("/nowhere/a.toml"), None, true) };
        let offer = |durable| Offer {
            bytes: 1 << 20,
            flags: if durable { 1 } else { 5 },
            durable,
            block_bytes_min: 512,
            block_bytes_preferred: 0,
            payload_bytes_max: 1 << 20,
        };
        fs::create_dir_all(disks.path().join("nbd7/queue")).unwrap();
        for (mode, flushes) in [("write back\n", true), ("write through\n", false)] {
            fs::write(disks.path().join("nbd7/queue/write_cache"), mode).unwrap();
            assert!(device.admits_in(disks.path(), &offer(true)).is_ok());
            assert_eq!(device.admits_in(disks.path(), &offer(false)).is_ok(), flushes);
        }
        fs::remove_file(disks.path().join("nbd7/queue/write_cache")).unwrap();
        let unknown = device.admits_in(disks.path(), &offer(false)).unwrap_err().to_string();
        assert!(unknown.starts_with("/dev/nbd7 was made when every answered write was durable"), "{unknown}");
    }

    #[test]
    fn only_a_device_that_outlives_its_server_has_a_dead_connection_timeout() {
        let offer = Offer {
            bytes: 1 << 20,
            flags: 5,
            durable: false,
            block_bytes_min: 512,
            block_bytes_preferred: 0,
            payload_bytes_max: 1 << 20,
        };
        for recovery in [true, false] {
            let backend = Backend::new(&owner("/nowhere/a.toml"), None, recovery);
            let asked = to_connect(&std::io::stdin(), &offer, &backend);
            let asked = asked.bytes();
            let long = |kind| find(asked, kind).map(|value| u64::from_ne_bytes(value.try_into().unwrap()));
            assert_eq!(long(DEAD_CONN_TIMEOUT), recovery.then_some(DEAD_CONN_SECONDS));
            assert_eq!((long(TIMEOUT), long(SIZE_BYTES)), (Some(0), Some(1 << 20)));
            assert_eq!(find(asked, INDEX), None, "the kernel chooses");
            let fd = find(find(find(asked, SOCKETS).unwrap(), SOCKET_ITEM).unwrap(), SOCKET_FD).unwrap();
            assert_eq!(fd, 0u32.to_ne_bytes());
        }
    }
}
