//! `dcd attach`: makes a block device of a served stack, in the best way that its server and the kernel offer.
//!
//! | way | the device | made by |
//! |---|---|---|
//! | ublk | exists already | the server |
//! | NBD | records its stack, and outlives the server with nbd-recovery | this command, over netlink |
//! | FUSE | fails its requests once the server has ended | this command, with losetup |

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use dcd_nbd::handshake::Offer;
use dcd_serve::disk_user;
use dcd_serve::fuse::IMAGE_NAME;
use dcd_serve::nbd::kernel::{Backend, KernelError, NbdDevice, NbdKernel, devices_of};
use dcd_serve::ublk::UblkStatus;
use dcd_stack::{Address, StackFile};

use crate::cli::Attach;
use crate::control;
use crate::failure::Failure;
use crate::loops::{StackLoops, way_out};
use crate::nbd_device::{address, dial, owner};
use crate::session::serving::status::ServerStatus;

pub fn run(args: &Attach) -> Result<(), Failure> {
    let file = StackFile::load(&args.file)?;
    if args.print {
        return commands(&file).map(|lines| println!("{}", lines.join("\n")));
    }
    if args.release {
        let (stack, serve) = (file.path.display(), &file.serve);
        if !release(&file, args.force)? {
            let more = match serve.ublk {
                Some(_) => "; its ublk device ends with its server (\"dcd stop\")",
                None => "",
            };
            eprintln!("dcd: {stack} is not attached{more}");
        }
        return Ok(());
    }
    println!("{}", attach(&file)?);
    Ok(())
}

/// Locks a stack's devices: of two concurrent commands, the second finds the device that the first has made.
fn lock(file: &StackFile) -> Result<StackLoops, Failure> {
    StackLoops::lock(&file.path).map_err(|error| Failure::io("/run/dcd-attach", error))
}

/// Makes or finds the block device of a served stack.
pub fn attach(file: &StackFile) -> Result<String, Failure> {
    let status = ServerStatus::ask(&mut control::connect(&file.path)?)?;
    let others = status.disks.into_iter().skip(1).filter_map(|disk| disk.ublk);
    let devices: Vec<UblkStatus> = status.ublk.into_iter().chain(others).collect();
    if let Some(late) = devices.iter().find(|ublk| !ublk.is_ready) {
        return Err(Failure::Failed(format!("{} is not ready yet: try again in a moment", late.device)));
    }
    if !devices.is_empty() {
        return Ok(devices.into_iter().map(|ublk| ublk.device).collect::<Vec<_>>().join("\n"));
    }
    let mut loops = lock(file)?;
    match (address(&file.serve), &file.serve.fuse) {
        (Some(address), fuse) => {
            let backend = status.nbd_backend.as_deref().and_then(Backend::read).ok_or_else(|| {
                Failure::Failed(format!(
                    "the server of {} does not report its NBD export: it was started before [serve] had nbd, or is older than this \
                     program; start it again",
                    file.path.display()
                ))
            })?;
            match attach_nbd(file, address, &backend) {
                Ok(device) => Ok(device.node()),
                Err(Trouble::Kernel(why @ KernelError::NoNbd(_))) => match fuse {
                    Some(fuse) => attach_loop(fuse, &mut loops),
                    None => Err(Failure::Failed(format!(
                        "{why}; or add fuse = \"DIR\" to [serve], and start the server again"
                    ))),
                },
                Err(trouble) => Err(trouble.told(file)),
            }
        }
        (None, Some(fuse)) => attach_loop(fuse, &mut loops),
        (None, None) => Err(nothing(file)),
    }
}

fn nothing(file: &StackFile) -> Failure {
    Failure::Failed(format!(
        "{}: it has no way to a block device: add ublk = true, nbd = \"unix:PATH\" or fuse = \"DIR\" to [serve], and start the server again",
        file.path.display()
    ))
}

enum Trouble {
    Kernel(KernelError),
    Server(String),
}

impl Trouble {
    fn told(self, file: &StackFile) -> Failure {
        match self {
            Trouble::Kernel(why) => failure(file, why),
            Trouble::Server(why) => Failure::Failed(why),
        }
    }
}

impl From<KernelError> for Trouble {
    fn from(error: KernelError) -> Trouble {
        Trouble::Kernel(error)
    }
}

fn attach_nbd(file: &StackFile, address: &Address, backend: &Backend) -> Result<NbdDevice, Trouble> {
    let kernel = NbdKernel::open()?;
    // A device made when the disk had another path, or by an earlier version, also belongs to this stack.
    let owner = owner(file, &[]);
    let is_its_own = |device: &NbdDevice| {
        device.backend == *backend
            || device.backend.recovery == backend.recovery && device.backend.is_of(&owner)
    };
    let attached = || devices_of(&file.path).into_iter().filter(is_its_own).collect::<Vec<_>>();
    for device in attached() {
        // A device that does not outlive its server may have lost its server.
        if backend.recovery || device.answers() {
            grow(file, &kernel, &device)?;
            return Ok(device);
        }
        kernel.release(&device, false)?;
    }
    let (socket, offer) = dial_of(file, address, backend.recovery)?;
    Ok(kernel.connect(&socket, &offer, backend)?)
}

/// Gives a device the size of a stack that has grown.
fn grow(file: &StackFile, kernel: &NbdKernel, device: &NbdDevice) -> Result<(), Trouble> {
    let Some(address) = address(&file.serve) else { return Ok(()) };
    let (_, offer) = dial_of(file, address, device.backend.recovery)?;
    Ok(kernel.grow(device, &offer)?)
}

fn dial_of(file: &StackFile, address: &Address, goes_on: bool) -> Result<(OwnedFd, Offer), Trouble> {
    let dialled = dial(address, &file.serve.nbd_name, goes_on);
    dialled.map_err(|error| Trouble::Server(format!("{address}: {error}")))
}

fn failure(file: &StackFile, error: KernelError) -> Failure {
    let stack = file.path.display();
    match error {
        KernelError::InUse { .. } => Failure::refused(
            error.to_string(),
            format!(
                "unmount what is on it, and try again. \"dcd attach --release --force {stack}\" makes its requests fail, and a file system on it \
                 loses what it has not written yet"
            ),
        ),
        KernelError::NoBackend(_) => Failure::Failed(format!(
            "{error}; use nbd-client, whose devices end with the server: \"dcd attach --print {stack}\""
        )),
        other => Failure::Failed(other.to_string()),
    }
}

/// Returns the path of the image that a server shows in a directory.
fn image(directory: &Path) -> PathBuf {
    // If the stack file was named without a directory, this path is relative to the working directory.
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    // If the server is gone, the directory itself cannot be read, but its parent can.
    let parent = directory.parent().and_then(|parent| fs::canonicalize(parent).ok());
    let full = parent.zip(directory.file_name()).map(|(parent, name)| parent.join(name));
    full.unwrap_or(directory).join(IMAGE_NAME)
}

fn attach_loop(directory: &Path, loops: &mut StackLoops) -> Result<String, Failure> {
    let image = image(directory);
    if !image.exists() {
        return Err(Failure::Failed(format!(
            "{}: it is missing: was the server started before [serve] had fuse? Start it again",
            image.display()
        )));
    }
    // Found by the file itself: the image of an earlier server had the same path.
    let attached = losetup(&["--noheadings", "--output", "NAME", "--associated"], &image)?;
    let node = match attached.lines().next() {
        Some(node) => node.trim().to_owned(),
        None => losetup(&["--direct-io=on", "--find", "--show"], &image)?.trim().to_owned(),
    };
    let name = node.strip_prefix("/dev/").unwrap_or(&node);
    loops.add(name, &image).map_err(|error| Failure::io("/run/dcd-attach", error))?;
    for stale in loops.stale() {
        eprintln!(
            "dcd: /dev/{stale} is left from an earlier server, and its requests fail: {}",
            way_out(&stale)
        );
    }
    Ok(node)
}

fn losetup(arguments: &[&str], of: &Path) -> Result<String, Failure> {
    let output = Command::new("losetup").args(arguments).arg(of).output();
    let output = output.map_err(|error| Failure::io("losetup (of util-linux)", error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::Failed(format!("losetup {} {}: {}", arguments.join(" "), of.display(), said.trim())))
}

/// Finds the loop devices over an image, even if its server is gone.
fn loops_over(image: &Path) -> Vec<String> {
    let names = fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let over = |name: &String| {
        let backing = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        backing.is_ok_and(|path| Path::new(path.trim_end_matches('\n')) == image)
    };
    names.filter_map(|name| name.into_string().ok()).filter(over).collect()
}

/// Removes the block devices that [`attach`] has made; false if there is none.
pub fn release(file: &StackFile, force: bool) -> Result<bool, Failure> {
    let mut released = false;
    let mut loops = lock(file)?;
    let devices = devices_of(&file.path);
    if !devices.is_empty() {
        let kernel = NbdKernel::open().map_err(|error| failure(file, error))?;
        for device in devices {
            kernel.release(&device, force).map_err(|error| failure(file, error))?;
            released = true;
        }
    }
    let mut names = loops.names();
    names.extend(file.serve.fuse.iter().flat_map(|directory| loops_over(&image(directory))));
    names.sort();
    names.dedup();
    for name in names {
        if let Some(user) = disk_user(&name).filter(|_| !force) {
            let node = format!("/dev/{name}");
            return Err(failure(file, KernelError::InUse { node, user }));
        }
        losetup(&["--detach"], &Path::new("/dev").join(&name))?;
        loops.remove(&name).map_err(|error| Failure::io("/run/dcd-attach", error))?;
        released = true;
    }
    Ok(released)
}

/// Returns the commands of other programs that make such a device.
fn commands(file: &StackFile) -> Result<Vec<String>, Failure> {
    if file.serve.ublk.is_some() {
        return Ok(vec![
            "modprobe ublk_drv".to_owned(),
            format!("dcd serve {}      # makes the device itself", quoted(&file.path.display())),
        ]);
    }
    let name = match file.serve.nbd_name.as_str() {
        "" => String::new(),
        name => format!(" -name {}", quoted(&name)),
    };
    match (address(&file.serve), &file.serve.fuse) {
        (Some(address), _) => {
            let server = match address {
                Address::Unix(path) => format!("-unix {}", quoted(&path.display())),
                Address::Tcp(address) => format!("{} {}", address.ip(), address.port()),
            };
            let ends =
                "# this device ends with its server: \"dcd attach\" makes one that outlives it".to_owned();
            let lines = ["modprobe nbd".to_owned(), format!("nbd-client {server}{name} /dev/nbd0")];
            Ok(lines.into_iter().chain(file.serve.nbd_recovery.then_some(ends)).collect())
        }
        (None, Some(directory)) => {
            Ok(vec![format!("losetup --direct-io=on --find --show {}", quoted(&image(directory).display()))])
        }
        (None, None) => Err(nothing(file)),
    }
}

/// Quotes a text for a shell.
fn quoted(text: &dyn std::fmt::Display) -> String {
    let text = text.to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}
