//! FUSE: a directory with one file, the image, of the size of the device. A loop device makes a block device of it:
//! `losetup --direct-io=on -f --show DIR/disk.img`.
//!
//! ```text
//!  kernel ─ fuser's thread ─ Queue ─ eventfd ─▶ driver: FuseImage (FrontEnd) ─ Jobs ─▶ root of the stack
//!           names, attributes          ◀─ answers go straight to the kernel ─
//! ```
//!
//! Every open file is direct: the kernel keeps no pages of it, so that a flush of the stack is all there is to flush.

mod filesystem;
mod jobs;
mod mountpoint;
mod queue;
mod reply;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use dcd_engine::{Geometry, IoResult};
use dcd_io::{Actions, Ending, FrontEnd, FrontEndCondition, Lookup, Task};
use fuser::{BackgroundSession, MountOption};

use filesystem::{ImageFilesystem, ImageShape};
use jobs::Jobs;
use queue::RequestQueue;
use reply::Waiter;

/// The name of the file, unless it is given.
pub const IMAGE_NAME: &str = "disk.img";

/// Why an image cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    #[error(
        "{path} is not a directory: {}",
        if path.exists() { "a file has this name, so choose another".to_owned() } else { format!("make it with `mkdir -p {}`", path.display()) }
    )]
    NotADirectory { path: PathBuf },
    #[error("{path} is mounted already ({kind}); stop what is there with `umount {path}`, or choose another")]
    Occupied { path: PathBuf, kind: String },
    #[error(
        "{path} is mounted already, and its server does not answer, as where its process is stopped: end that process (fuser -m {path}), \
         then `umount {path}`"
    )]
    Silent { path: PathBuf },
    #[error("\"{0}\" cannot be the name of the image: it must be one file name, without a slash")]
    Name(String),
    #[error("mounting on {path}: {source}; it needs /dev/fuse, and fusermount3 for users other than root")]
    Mount { path: PathBuf, source: io::Error },
}

impl FuseError {
    fn mount(path: &Path, source: io::Error) -> FuseError {
        FuseError::Mount { path: path.to_owned(), source }
    }
}

#[derive(Clone, Debug)]
pub struct FuseOptions {
    /// The disk of the stack that the image is.
    pub disk: usize,
    pub image_name: String,
    pub read_only: bool,
    /// True if users other than the server's may use the image. Off by default.
    pub allow_other: bool,
    /// True if the thread that takes requests has real-time priority, where it may ([`dcd_io::run_promptly`]).
    pub promptly: bool,
}

impl Default for FuseOptions {
    fn default() -> Self {
        FuseOptions {
            disk: 0,
            image_name: IMAGE_NAME.to_owned(),
            read_only: false,
            allow_other: false,
            promptly: false,
        }
    }
}

/// A mounted image. Dropping it unmounts, and unanswered requests fail.
pub struct FuseImage {
    disk: usize,
    directory: PathBuf,
    image: PathBuf,
    queue: Arc<RequestQueue>,
    jobs: Jobs<Waiter>,
    /// None once it is unmounted.
    session: Arc<Mutex<Option<BackgroundSession>>>,
    was_stale: bool,
}

impl FuseImage {
    /// Mounts the image of a device on a directory. A stale mount of a killed dcd server is removed first.
    pub fn mount(
        directory: &Path,
        geometry: Geometry,
        options: &FuseOptions,
    ) -> Result<FuseImage, FuseError> {
        let name = options.image_name.as_str();
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) || name.len() > 255 {
            return Err(FuseError::Name(name.to_owned()));
        }
        let (directory, was_stale) = mountpoint::prepare(directory)?;
        let wrong = |source| FuseError::mount(&directory, source);
        let shape = ImageShape { promptly: options.promptly, ..ImageShape::new(geometry, options.read_only) };
        let queue = Arc::new(RequestQueue::new().map_err(wrong)?);
        let filesystem = ImageFilesystem::new(name, shape, Arc::clone(&queue));
        let session = fuser::Session::new(filesystem, &directory, &config(options, shape)).map_err(wrong)?;
        let session = session.spawn().map_err(wrong)?;
        let image = directory.join(name);
        let jobs = Jobs::new(shape.block);
        let session = Arc::new(Mutex::new(Some(session)));
        Ok(FuseImage { disk: options.disk, directory, image, queue, jobs, session, was_stale })
    }

    /// The file that clients use.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// True if a stale mount was removed first.
    pub fn was_stale(&self) -> bool {
        self.was_stale
    }

    /// Returns the work that takes no more requests, and unmounts the image.
    fn unmount(&self) -> Task {
        let (directory, queue) = (self.directory.clone(), Arc::clone(&self.queue));
        let session = Arc::clone(&self.session);
        Box::new(move || {
            let session = session.lock().unwrap_or_else(PoisonError::into_inner).take();
            if session.is_none() {
                return Ok(());
            }
            queue.stop();
            // This fails if a user has unmounted the image by hand.
            let _ = mountpoint::release(&directory);
            drop(session);
            Ok(())
        })
    }

    /// Opens of the image now.
    fn opens(&self) -> usize {
        self.queue.opens.load(Ordering::Relaxed)
    }
}

fn config(options: &FuseOptions, shape: ImageShape) -> fuser::Config {
    let mut config = fuser::Config::default();
    let access = if shape.read_only { MountOption::RO } else { MountOption::RW };
    config.mount_options = vec![
        MountOption::FSName(mountpoint::MOUNT_SOURCE.to_owned()),
        MountOption::Subtype("dcd".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoExec,
        access,
    ];
    config.acl = if options.allow_other { fuser::SessionACL::All } else { fuser::SessionACL::Owner };
    config
}

impl FrontEnd for FuseImage {
    fn disk(&self) -> usize {
        self.disk
    }

    fn condition(&self) -> FrontEndCondition {
        FrontEndCondition {
            is_established: true,
            has_device: self.opens() > 0,
            ..FrontEndCondition::default()
        }
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.bell())
    }

    fn rang(&mut self, actions: &mut Actions) {
        for (io, waiter) in self.queue.take() {
            self.jobs.submit(io, waiter);
        }
        actions.requests.append(&mut self.jobs.out);
    }

    fn reply(&mut self, token: u64, result: IoResult, actions: &mut Actions) {
        if let Some(done) = self.jobs.complete(token, result) {
            self.queue.answered(done.waiter.flight_bytes());
            done.waiter.answer(done.result);
        }
        // The second step of a job, or jobs that waited for this one.
        actions.requests.append(&mut self.jobs.out);
    }

    fn user(&self) -> Option<Lookup> {
        let by = match self.opens() {
            0 => return None,
            1 => "once".to_owned(),
            opens => format!("{opens} times"),
        };
        let user = format!("{}, open {by}", self.image.display());
        Some(Box::new(move || Some(user)))
    }

    fn withdraw(&mut self) -> Ending {
        match self.queue.close() {
            true => Ending::Remove(self.unmount()),
            false => Ending::Leave(String::new()),
        }
    }

    fn stay(&mut self, _actions: &mut Actions) {
        self.queue.reopen();
    }
}

impl Drop for FuseImage {
    fn drop(&mut self) {
        let _ = self.unmount()();
    }
}
