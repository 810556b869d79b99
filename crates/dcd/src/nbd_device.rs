//! Connects the kernel's NBD device of a stack, and connects it again when its server starts again.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use dcd_nbd::handshake::{Offer, handshake};
use dcd_serve::nbd::kernel::{Backend, NbdDevice, NbdKernel, devices_of};
use dcd_serve::ublk::Owner;
use dcd_stack::{Address, ServeSettings, StackFile};

use crate::session::record::names_of;

/// Maximum duration of a handshake.
const PATIENCE: Duration = Duration::from_secs(10);
/// Delays before new connections of a device, each after the one before. The kernel takes a new connection only after it has seen that the
/// last one is dead, and does not say whether it has. A connection too many does no harm.
const PAUSES: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
];

/// Name in /dev/dcd of the ublk device of a disk of a stack.
pub fn name_of(file: &StackFile, stack: &str, disk: &str) -> String {
    match file.served_disks().as_slice() {
        [_] => stack.to_owned(),
        [first, ..] if *first == disk => stack.to_owned(),
        _ => format!("{stack}-{disk}"),
    }
}

/// Owner of the kernel's devices of one of the disks that are served. The first has the owner of a single disk. `caches`: the UUIDs of its
/// caches, as far as they are known.
pub fn owner_of(file: &StackFile, disk: &str, caches: &[String]) -> Owner {
    let disk = if file.served_disks()[0] == disk { &file.export } else { disk };
    let data = file.data_path(disk);
    let full = data.map(|path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()));
    let is_block = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    let path = full.as_ref().map(|path| path.display().to_string());
    let keys: Vec<String> = match &full {
        // The path of a block device can lead to another disk after a reboot, so names come first.
        Some(device) if is_block(device) => {
            names_of(device).into_iter().chain(caches.iter().cloned()).chain(path).collect()
        }
        _ => path.into_iter().chain(caches.iter().cloned()).collect(),
    };
    Owner::new(&file.path, disk, &keys)
}

/// Identifier of its server that the device of a disk keeps. `caches`: as for [`owner_of`].
pub fn backend(file: &StackFile, (disk, name): (usize, &str), caches: &[String]) -> Backend {
    Backend::new(&owner_of(file, name, caches), after_first(disk, name), file.serve.nbd_recovery)
}

/// Name of a disk in the identifier of its server; none for the first.
pub fn after_first(disk: usize, name: &str) -> Option<&str> {
    (disk > 0).then_some(name)
}

/// Name of the NBD export of a disk.
pub fn export_name<'a>(file: &'a StackFile, (disk, name): (usize, &'a str)) -> &'a str {
    after_first(disk, name).unwrap_or(&file.serve.nbd_name)
}

/// Returns the address to which the kernel is connected. A unix socket costs less, and holds no data after its server has ended.
pub fn address(serve: &ServeSettings) -> Option<&Address> {
    let unix = serve.nbd.iter().find(|address| matches!(address, Address::Unix(_)));
    // The kernel's client has no TLS of its own.
    unix.or(serve.nbd.first().filter(|_| serve.nbd_tls.is_none()))
}

/// Makes a connection, up to the transmission phase. `goes_on`: the connection is for a device that outlives the server.
///
/// # Errors
/// If there is no answer, or not that of an NBD server.
pub fn dial(address: &Address, name: &str, goes_on: bool) -> io::Result<(OwnedFd, Offer)> {
    match address {
        Address::Unix(path) => {
            let mut stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let offer = handshake(&mut stream, name, goes_on)?;
            // The kernel would take a silent server for a dead one.
            stream.set_read_timeout(None)?;
            Ok((stream.into(), offer))
        }
        Address::Tcp(address) => {
            let mut stream = TcpStream::connect_timeout(address, PATIENCE)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let offer = handshake(&mut stream, name, goes_on)?;
            stream.set_read_timeout(None)?;
            Ok((stream.into(), offer))
        }
    }
}

/// A device that waited for its server.
struct Waiting {
    device: NbdDevice,
    /// Name of its export.
    export: String,
    /// Size of the export.
    bytes: u64,
}

/// Connects devices that waited for a server to this one, once it answers. `served`: the disks, with the size of each in bytes.
pub fn go_on(file: &StackFile, caches: &[String], served: &[(usize, &str, u64)]) {
    let mut left = devices_of(&file.path);
    let mut waiting = Vec::new();
    for (disk, name, bytes) in served {
        let owner = owner_of(file, name, caches);
        let goes_on = |device: &NbdDevice| {
            file.serve.nbd_recovery && device.backend.recovery && device.backend.is_of(&owner)
        };
        let (own, others) = left.into_iter().partition::<Vec<_>, _>(goes_on);
        let export = export_name(file, (*disk, name));
        waiting.extend(own.into_iter().map(|device| Waiting {
            device,
            export: export.to_owned(),
            bytes: *bytes,
        }));
        left = others;
    }
    // The device of a disk that is missing now waits for a later server.
    let is_missing = |(disk, _): &(usize, &str)| !served.iter().any(|(own, ..)| own == disk);
    let missing: Vec<Option<&str>> =
        file.disks().into_iter().filter(is_missing).map(|(disk, name)| after_first(disk, name)).collect();
    left.retain(|device| !missing.iter().any(|disk| device.backend.is_of_disk(*disk)));
    for device in left {
        eprintln!(
            "dcd: {} is left from an earlier server with other settings or without nbd-recovery: it gets no connection from this server. Start the \
             server with the earlier settings, or unmount what is on the device, and take it away alone: nbd-client -d {}",
            device.node(),
            device.node()
        );
    }
    let Some(address) = address(&file.serve).cloned().filter(|_| !waiting.is_empty()) else { return };
    let stack = file.path.display().to_string();
    // The thread of the server has to answer the handshake, so another thread makes it.
    let spawned = thread::Builder::new().name("dcd-nbd".to_owned()).spawn(move || {
        for pause in PAUSES {
            thread::sleep(pause);
            waiting.retain(|waits| match give(waits, &address) {
                Ok(()) => true,
                Err(why) => {
                    eprintln!(
                        "dcd: {} waits, and cannot be connected to this server: {why}",
                        waits.device.node()
                    );
                    false
                }
            });
        }
        for waits in waiting.iter().filter(|waits| waits.device.bytes().is_ok_and(|has| has < waits.bytes)) {
            eprintln!(
                "dcd: {} still has its old size: \"dcd attach {stack}\" gives it the new one",
                waits.device.node()
            );
        }
    });
    if let Err(error) = spawned {
        eprintln!("dcd: devices of the kernel's NBD client wait: no thread can be started for them: {error}");
    }
}

fn give(waits: &Waiting, address: &Address) -> Result<(), String> {
    let (socket, offer) =
        dial(address, &waits.export, true).map_err(|error| format!("{address}: {error}"))?;
    let given = NbdKernel::open().and_then(|kernel| kernel.reconnect(&waits.device, &socket, &offer));
    given.map_err(|error| error.to_string())
}
