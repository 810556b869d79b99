//! The front-ends of a data disk: made at the start, and for a disk that comes while the server runs.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use dcd_engine::Geometry;
use dcd_io::{FrontEnd, ListenError};
use dcd_serve::Outlives;
use dcd_serve::fuse::{FuseError, FuseImage, FuseOptions};
use dcd_serve::nbd::NbdExports;
use dcd_serve::ublk::{self, UblkDevice};
use dcd_serve::vhost::{VhostUserDisk, VhostUserError, VhostUserOptions};
use dcd_stack::{StackFile, UblkNumber};

use crate::control::stack_name;
use crate::nbd_device;
use crate::session::devices::patiently;

/// A disk that is served.
#[derive(Clone, Debug)]
pub struct DiskToServe {
    pub disk: usize,
    pub name: String,
    pub geometry: Geometry,
}

/// Settings that the front-ends of all disks have in common.
#[derive(Clone, Default)]
pub struct FrontEndSettings {
    /// UUIDs of the caches.
    pub caches: Vec<String>,
    /// The exports of the NBD sockets.
    pub exports: NbdExports,
    /// True where the threads of front-ends run with real-time priority.
    pub promptly: bool,
    /// Answered requests that a killed server does not take with it.
    pub ublk_outlives: Outlives,
    /// Options of vhost-user that all disks have in common.
    pub vhost_user: VhostUserOptions,
    /// Reason why a ublk device does not outlive its server.
    pub lost: Option<String>,
}

/// A front-end that another thread may make.
pub type MadeFrontEnd = Box<dyn FrontEnd + Send>;

/// Front-ends, and the places of those that are ready when they are added.
#[derive(Default)]
pub struct MadeFrontEnds {
    pub front_ends: Vec<MadeFrontEnd>,
    pub places: Vec<String>,
    /// Identifier of this server in a device of the kernel's NBD client; none without NBD.
    pub nbd_backend: Option<String>,
    /// Number of front-ends that tell when they are ready.
    pub slow: usize,
}

impl FrontEndSettings {
    /// Makes the image, the socket for machines and the ublk device of a disk, where the stack file has them. May take long.
    ///
    /// # Errors
    /// In words.
    pub fn make(&self, file: &StackFile, to_serve: &DiskToServe) -> Result<MadeFrontEnds, String> {
        let DiskToServe { disk, name, geometry } = to_serve;
        let mut made = MadeFrontEnds::default();
        if !file.serve.nbd.is_empty() {
            let backend = nbd_device::backend(file, (*disk, name), &self.caches);
            made.nbd_backend = Some(backend.text().to_owned());
        }
        if let Some(directory) = &file.serve.fuse {
            let options = FuseOptions { disk: *disk, promptly: self.promptly, ..FuseOptions::default() };
            let directory = own_path(directory, *disk, name);
            // The mount reports the error. The directory itself may be a mount that does not answer, so it is not looked at.
            let parent_made = directory.parent().map_or(Ok(()), fs::create_dir_all);
            let dir_made = parent_made.and_then(|()| fs::create_dir(&directory));
            let image =
                FuseImage::mount(&directory, *geometry, &options).map_err(|e| match (&e, dir_made) {
                    (FuseError::NotADirectory { path }, Err(why))
                        if why.kind() != ErrorKind::AlreadyExists =>
                    {
                        format!("{}: this directory cannot be made: {why}", path.display())
                    }
                    _ => e.to_string(),
                })?;
            if image.was_stale() {
                eprintln!("dcd: {}: removed a mount whose server is gone", directory.display());
            }
            made.places.push(format!("fuse {}", image.image().display()));
            made.front_ends.push(Box::new(image));
        }
        if let Some(socket) = &file.serve.vhost_user {
            let socket = own_path(socket, *disk, name);
            let serial = if *disk == 0 { file.export.clone() } else { name.clone() };
            let options = VhostUserOptions { disk: *disk, serial, ..self.vhost_user.clone() };
            let listening = patiently(
                || VhostUserDisk::listen(&socket, *geometry, &options),
                |error| matches!(error, VhostUserError::Listen(ListenError::InUse { .. })),
            );
            made.front_ends.push(Box::new(listening.map_err(|error| error.to_string())?));
            made.places.push(format!("vhost-user unix:{}", socket.display()));
        }
        if let Some(number) = file.serve.ublk {
            made.front_ends.push(Box::new(self.ublk_device(file, number, to_serve)?));
            made.slow += 1;
        }
        Ok(made)
    }

    /// Makes the ublk device, which is announced when clients can use it.
    fn ublk_device(
        &self,
        file: &StackFile,
        number: UblkNumber,
        to_serve: &DiskToServe,
    ) -> Result<UblkDevice, String> {
        let DiskToServe { disk, name, geometry } = to_serve;
        let number = match number {
            UblkNumber::Any => None,
            UblkNumber::Is(number) => Some(number + *disk as u32),
        };
        let owner = nbd_device::owner_of(file, name, &self.caches);
        let owner = owner.named(stack_name(&file.path).map(|stack| nbd_device::name_of(file, &stack, name)));
        let device = UblkDevice::open(ublk::system(), number, &owner, *geometry, self.ublk_outlives)
            .map_err(|error| error.to_string())?
            .of_disk(*disk);
        let (node, missing) = (device.node(), device.missing().join(", "));
        match &self.lost {
            Some(why) if device.condition().outlives_server => warnln!(
                "dcd: {node} was made to outlive its server, but what this server answers does not ({why}): unmount what is on it, and restart the server"
            ),
            Some(why) => {
                warnln!("dcd: {node} ends with this server, and a file system on it fails then: {why}");
            }
            None if !missing.is_empty() => eprintln!(
                "dcd: {node} ends with this server, and a file system on it fails then: this kernel's ublk lacks {missing}"
            ),
            None => {}
        }
        Ok(device)
    }
}

/// Returns the directory of a disk's image, or its socket. That of a disk after the first is beside that of the first.
pub fn own_path(of_first: &Path, disk: usize, name: &str) -> PathBuf {
    if disk == 0 {
        return of_first.to_owned();
    }
    let mut own = of_first.as_os_str().to_owned();
    own.push(format!("-{name}"));
    own.into()
}
