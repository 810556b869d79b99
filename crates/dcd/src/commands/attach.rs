//! `dcd attach`: makes a block device of each disk of a served stack, in the best way that its server and the kernel offer.
//!
//! | way | the device | made by |
//! |---|---|---|
//! | ublk | exists already | the server |
//! | NBD | records its stack, and outlives the server with nbd-recovery | this command, over netlink |
//! | FUSE | fails its requests once the server has ended | this command, with losetup |

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use dcd_nbd::handshake::Offer;
use dcd_serve::disk_user;
use dcd_serve::fuse::IMAGE_NAME;
use dcd_serve::nbd::kernel::{Backend, KernelError, NbdDevice, NbdKernel, devices_of};
use dcd_stack::{Address, StackFile};

use crate::block_devices::{loops_over, real};
use crate::cli::Attach;
use crate::control;
use crate::failure::Failure;
use crate::loops::{StackLoops, way_out};
use crate::nbd_device::{address, after_first, dial, export_name, owner_of};
use crate::session::serving::front_ends::own_path;
use crate::session::serving::status::ServerStatus;

/// A disk of a stack: its number, and its name.
type NamedDisk<'a> = (usize, &'a str);

pub fn run(args: &Attach) -> Result<(), Failure> {
    let file = StackFile::load(&args.file)?;
    let only = args.disk.as_deref();
    if args.print {
        return commands(&file, only).map(|lines| println!("{}", lines.join("\n")));
    }
    if args.release {
        let (stack, serve) = (file.path.display(), &file.serve);
        if !release(&file, only, args.force)? {
            let more = match serve.ublk {
                Some(_) => "; its ublk device ends with its server (\"dcd stop\")",
                None => "",
            };
            let disk = only.map(|name| format!(", disk \"{name}\",")).unwrap_or_default();
            eprintln!("dcd: {stack}{disk} is not attached{more}");
        }
        return Ok(());
    }
    let (nodes, result) = attach_each(&file, only);
    nodes.iter().for_each(|node| println!("{node}"));
    result
}

/// Locks a stack's devices: of two concurrent commands, the second finds the device that the first has made.
fn lock(file: &StackFile) -> Result<StackLoops, Failure> {
    StackLoops::lock(&file.path).map_err(|error| Failure::io("/run/dcd-attach", error))
}

/// The disks of a stack, or the one that was named.
fn disks<'a>(file: &'a StackFile, only: Option<&str>) -> Result<Vec<NamedDisk<'a>>, Failure> {
    let mut all = file.disks();
    let Some(wanted) = only else { return Ok(all) };
    let names: Vec<&str> = all.iter().map(|(_, name)| *name).collect();
    let none =
        format!("{}: it has no disk \"{wanted}\"; its disks are {}", file.path.display(), names.join(", "));
    all.retain(|(_, name)| *name == wanted);
    if all.is_empty() { Err(Failure::Failed(none)) } else { Ok(all) }
}

/// Makes or finds the block devices of a served stack, one of each disk, in their order. `only`: of this disk.
pub fn attach(file: &StackFile, only: Option<&str>) -> Result<Vec<String>, Failure> {
    let (nodes, result) = attach_each(file, only);
    result.map(|()| nodes)
}

/// Also returns the devices of the disks before one that fails.
fn attach_each(file: &StackFile, only: Option<&str>) -> (Vec<String>, Result<(), Failure>) {
    let mut nodes = Vec::new();
    let mut make = || {
        let status = ServerStatus::ask(&mut control::connect(&file.path)?)?;
        let mut loops = None;
        for (disk, name) in disks(file, only)? {
            if status.missing_disks().contains(&name) {
                let why = format!(
                    "disk \"{name}\" is missing, so it has no device: reconnect it, and restart the server"
                );
                if only.is_some() {
                    return Err(Failure::Failed(why));
                }
                warnln!("dcd: {why}");
                continue;
            }
            let own = status.disks.iter().find(|own| own.name == name);
            let (ublk, backend) = match own {
                Some(own) => (&own.ublk, &own.nbd_backend),
                None if disk == 0 => (&status.ublk, &status.nbd_backend),
                None => {
                    return Err(Failure::Failed(format!(
                        "the server of {} does not have the disk \"{name}\" of the stack file: start it again",
                        file.path.display()
                    )));
                }
            };
            nodes.push(match ublk {
                Some(late) if !late.is_ready => {
                    return Err(Failure::Failed(format!(
                        "{} is not ready yet: try again in a moment",
                        late.device
                    )));
                }
                Some(ublk) => ublk.device.clone(),
                None => {
                    let loops = match &mut loops {
                        Some(loops) => loops,
                        none => none.insert(lock(file)?),
                    };
                    make_device(file, (disk, name), backend.as_deref(), loops)?
                }
            });
        }
        Ok(())
    };
    let result = make();
    (nodes, result)
}

/// Makes or finds the device of a disk that is not served by ublk.
fn make_device(
    file: &StackFile,
    disk: NamedDisk<'_>,
    backend: Option<&str>,
    loops: &mut StackLoops,
) -> Result<String, Failure> {
    let image = image(file, disk);
    let Some(address) = address(&file.serve) else {
        return attach_loop(&image.ok_or_else(|| nothing(file))?, loops);
    };
    let backend = backend.and_then(Backend::read).ok_or_else(|| {
        Failure::Failed(format!(
            "the server of {} does not report its NBD export: it was started before [serve] had nbd, or is older than this \
             program; start it again",
            file.path.display()
        ))
    })?;
    match attach_nbd(file, disk, address, &backend) {
        Ok(device) => Ok(device.node()),
        Err(Trouble::Kernel(why @ KernelError::NoNbd(_))) => match image {
            Some(image) => attach_loop(&image, loops),
            None => Err(Failure::Failed(format!(
                "{why}; or add fuse = \"DIR\" to [serve], and start the server again"
            ))),
        },
        Err(trouble) => Err(trouble.told(file)),
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
            Trouble::Kernel(why) => failure(file, None, why),
            Trouble::Server(why) => Failure::Failed(why),
        }
    }
}

impl From<KernelError> for Trouble {
    fn from(error: KernelError) -> Trouble {
        Trouble::Kernel(error)
    }
}

fn attach_nbd(
    file: &StackFile,
    disk: NamedDisk<'_>,
    address: &Address,
    backend: &Backend,
) -> Result<NbdDevice, Trouble> {
    let kernel = NbdKernel::open()?;
    // A device made when the disk had another path, or by an earlier version, also belongs to this stack.
    let owner = owner_of(file, disk.1, &[]);
    let is_its_own = |device: &NbdDevice| {
        device.backend == *backend
            || device.backend.recovery == backend.recovery && device.backend.is_of(&owner)
    };
    let attached = || devices_of(&file.path).into_iter().filter(is_its_own).collect::<Vec<_>>();
    for device in attached() {
        // A device that does not outlive its server may have lost its server.
        if backend.recovery || device.answers() {
            grow(file, disk, &kernel, &device)?;
            return Ok(device);
        }
        kernel.release(&device, false)?;
    }
    let (socket, offer) = dial_of(file, disk, address, backend.recovery)?;
    Ok(kernel.connect(&socket, &offer, backend)?)
}

/// Gives a device the size of a disk that has grown.
fn grow(
    file: &StackFile,
    disk: NamedDisk<'_>,
    kernel: &NbdKernel,
    device: &NbdDevice,
) -> Result<(), Trouble> {
    let Some(address) = address(&file.serve) else { return Ok(()) };
    let (_, offer) = dial_of(file, disk, address, device.backend.recovery)?;
    Ok(kernel.grow(device, &offer)?)
}

fn dial_of(
    file: &StackFile,
    disk: NamedDisk<'_>,
    address: &Address,
    goes_on: bool,
) -> Result<(OwnedFd, Offer), Trouble> {
    let dialled = dial(address, export_name(file, disk), goes_on);
    dialled.map_err(|error| Trouble::Server(format!("{address}: {error}")))
}

fn failure(file: &StackFile, only: Option<&str>, error: KernelError) -> Failure {
    let stack = file.path.display();
    let disk = only.map_or(String::new(), |disk| format!(" --disk {disk}"));
    match error {
        KernelError::InUse { .. } => Failure::refused(
            error.to_string(),
            format!(
                "unmount what is on it, and try again. \"dcd attach --release --force{disk} {stack}\" makes its requests fail, and a file system on it \
                 loses what it has not written yet"
            ),
        ),
        KernelError::NoBackend(_) => Failure::Failed(format!(
            "{error}; use nbd-client, whose devices end with the server: \"dcd attach --print {stack}\""
        )),
        other => Failure::Failed(other.to_string()),
    }
}

/// Returns the path of the image that a server shows of a disk; none without FUSE.
fn image(file: &StackFile, (disk, name): NamedDisk<'_>) -> Option<PathBuf> {
    let directory = own_path(file.serve.fuse.as_ref()?, disk, name);
    // If the stack file was named without a directory, this path is relative to the working directory.
    Some(real(&std::path::absolute(&directory).unwrap_or(directory).join(IMAGE_NAME)))
}

fn attach_loop(image: &Path, loops: &mut StackLoops) -> Result<String, Failure> {
    if !image.exists() {
        return Err(Failure::Failed(format!(
            "{}: it is missing: was the server started before [serve] had fuse? Start it again",
            image.display()
        )));
    }
    // Found by the file itself: the image of an earlier server had the same path.
    let attached = losetup(&["--noheadings", "--output", "NAME", "--associated"], image)?;
    let node = match attached.lines().next() {
        Some(node) => node.trim().to_owned(),
        None => losetup(&["--direct-io=on", "--find", "--show"], image)?.trim().to_owned(),
    };
    let name = node.strip_prefix("/dev/").unwrap_or(&node);
    loops.add(name, image).map_err(|error| Failure::io("/run/dcd-attach", error))?;
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

/// Removes the block devices that [`attach`] has made; false if there is none. `only`: those of this disk.
pub fn release(file: &StackFile, only: Option<&str>, force: bool) -> Result<bool, Failure> {
    let disks = disks(file, only)?;
    let images: Vec<PathBuf> = disks.iter().filter_map(|disk| image(file, *disk)).collect();
    let is_meant = |device: &NbdDevice| {
        let is_of = |(disk, name): &NamedDisk<'_>| device.backend.is_of_disk(after_first(*disk, name));
        only.is_none() || disks.iter().any(is_of)
    };
    let mut released = false;
    let mut loops = lock(file)?;
    let devices: Vec<NbdDevice> = devices_of(&file.path).into_iter().filter(is_meant).collect();
    if !devices.is_empty() {
        let kernel = NbdKernel::open().map_err(|error| failure(file, only, error))?;
        for device in devices {
            kernel.release(&device, force).map_err(|error| failure(file, only, error))?;
            released = true;
        }
    }
    let mut names = loops.names(|image| only.is_none() || images.iter().any(|own| own == image));
    names.extend(images.iter().flat_map(|image| loops_over(image)));
    names.sort();
    names.dedup();
    for name in names {
        if let Some(user) = disk_user(&name).filter(|_| !force) {
            let node = format!("/dev/{name}");
            return Err(failure(file, only, KernelError::InUse { node, user }));
        }
        losetup(&["--detach"], &Path::new("/dev").join(&name))?;
        loops.remove(&name).map_err(|error| Failure::io("/run/dcd-attach", error))?;
        released = true;
    }
    Ok(released)
}

/// Returns the commands of other programs that make such devices.
fn commands(file: &StackFile, only: Option<&str>) -> Result<Vec<String>, Failure> {
    let disks = disks(file, only)?;
    if file.serve.ublk.is_some() {
        return Ok(vec![
            "modprobe ublk_drv".to_owned(),
            format!("dcd serve {}      # makes the device itself", quoted(&file.path.display())),
        ]);
    }
    if let Some(address) = address(&file.serve) {
        let server = match address {
            Address::Unix(path) => format!("-unix {}", quoted(&path.display())),
            Address::Tcp(address) => format!("{} {}", address.ip(), address.port()),
        };
        let client = |(number, disk): (usize, &NamedDisk<'_>)| {
            let name = match export_name(file, *disk) {
                "" => String::new(),
                name => format!(" -name {}", quoted(&name)),
            };
            format!("nbd-client {server}{name} /dev/nbd{number}")
        };
        let ends = "# this device ends with its server: \"dcd attach\" makes one that outlives it".to_owned();
        let clients = disks.iter().enumerate().map(client);
        let lines = std::iter::once("modprobe nbd".to_owned()).chain(clients);
        return Ok(lines.chain(file.serve.nbd_recovery.then_some(ends)).collect());
    }
    let images = disks.iter().filter_map(|disk| image(file, *disk));
    let lines: Vec<String> = images
        .map(|image| format!("losetup --direct-io=on --find --show {}", quoted(&image.display())))
        .collect();
    if lines.is_empty() { Err(nothing(file)) } else { Ok(lines) }
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
