//! The directory with one file, as the kernel asks for it. Questions about names and attributes are answered here, on the
//! front-end's own thread; everything that touches data goes to the driver.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use dcd_engine::{Discards, Durability, Geometry, SECTOR_BYTES};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags};

use super::jobs::{ByteIo, Placed};
use super::queue::RequestQueue;
use super::reply::Waiter;

const IMAGE: INodeNo = INodeNo(2);
/// Lifetime of attributes in the kernel: they do not change while the file is mounted.
const ATTRIBUTES_TTL: Duration = Duration::from_secs(3600);
/// The longest write in one request: what the kernel allows a request by default (256 pages).
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel keeps in flight without a thread waiting for each (asynchronous direct I/O of a loop
/// device). The default of 16 starves a queue depth of 32.
const BACKGROUND_MAX: u16 = 128;

/// Size, unit and abilities of the image, as the front-end uses them.
#[derive(Clone, Copy, Debug)]
pub struct ImageShape {
    pub bytes: u64,
    pub block: u32,
    pub discards: bool,
    pub fast_zeroes: bool,
    pub read_only: bool,
    /// True if writes need a flush to survive a power cut.
    pub volatile: bool,
    pub promptly: bool,
}

impl ImageShape {
    pub fn new(geometry: Geometry, read_only: bool) -> ImageShape {
        let block = geometry.logical_block_bytes;
        let bytes = geometry.sectors.saturating_mul(SECTOR_BYTES);
        ImageShape {
            bytes: bytes - bytes % u64::from(block),
            block,
            discards: geometry.discards == Discards::Zero,
            fast_zeroes: geometry.fast_zeroes,
            read_only: read_only || geometry.read_only,
            volatile: geometry.volatile_cache,
            promptly: false,
        }
    }

    /// The part of a range that is inside the file.
    fn clip(&self, offset: u64, len: u64) -> Range<u64> {
        offset.min(self.bytes)..offset.saturating_add(len).min(self.bytes)
    }
}

pub struct ImageFilesystem {
    name: String,
    shape: ImageShape,
    queue: Arc<RequestQueue>,
    mounted: SystemTime,
    uid: u32,
    gid: u32,
}

impl ImageFilesystem {
    pub fn new(name: &str, shape: ImageShape, queue: Arc<RequestQueue>) -> ImageFilesystem {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        ImageFilesystem { name: name.to_owned(), shape, queue, mounted: SystemTime::now(), uid, gid }
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let write = if self.shape.read_only { 0 } else { 0o200 };
        let (kind, perm, size, nlink) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o500, 0, 2),
            IMAGE => (FileType::RegularFile, 0o400 | write, self.shape.bytes, 1),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / SECTOR_BYTES,
            atime: self.mounted,
            mtime: self.mounted,
            ctime: self.mounted,
            crtime: self.mounted,
            kind,
            perm,
            nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: self.shape.block.max(4096),
            flags: 0,
        })
    }

    fn push(&self, io: ByteIo, waiter: Waiter) {
        if let Err(waiter) = self.queue.push(io, waiter) {
            waiter.refuse();
        }
    }

    /// Chooses how a range is made to read as zeroes; an error if the mode asks for something else.
    fn zero(&self, range: Range<u64>, mode: FallocateFlags) -> Result<ByteIo, Errno> {
        let (offset, len) = (range.start, range.end - range.start);
        match mode - FallocateFlags::KEEP_SIZE {
            // Only if it is cheap: a trim of a file system's free space must not write gigabytes of zeroes.
            FallocateFlags::PUNCH_HOLE if self.shape.discards || self.shape.fast_zeroes => {
                Ok(ByteIo::Zero { offset, len, discard: self.shape.discards, unmap: true })
            }
            FallocateFlags::ZERO_RANGE => Ok(ByteIo::Zero { offset, len, discard: false, unmap: false }),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

impl Filesystem for ImageFilesystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The defaults stand where the kernel allows less. The writeback cache is left out on purpose: with it, data that
        // a program believes written would sit in the kernel, where no flush of the stack can reach it.
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.set_congestion_threshold(BACKGROUND_MAX);
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(IMAGE) {
            Some(attributes) if parent == INodeNo::ROOT && name == OsStr::new(&self.name) => {
                reply.entry(&ATTRIBUTES_TTL, &attributes, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&ATTRIBUTES_TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let Some(attributes) = self.attributes(inode) else { return reply.error(Errno::ENOENT) };
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        // The device fixes the size. Times are accepted and ignored: programs set them after a copy.
        match size {
            Some(size) if size != attributes.size => reply.error(Errno::EINVAL),
            _ => reply.attr(&ATTRIBUTES_TTL, &attributes),
        }
    }

    fn open(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if inode != IMAGE {
            return reply.error(Errno::EISDIR);
        }
        if self.shape.promptly {
            // Opens come on the thread that takes all requests.
            let _ = dcd_io::run_promptly();
        }
        // No page cache of the kernel between a program and the stack, and no lock that puts direct writes in a row.
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        if !self.queue.open() {
            return reply.error(Errno::ENODEV);
        }
        reply.opened(FileHandle(0), flags);
    }

    fn release(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if inode == IMAGE {
            self.queue.opens.fetch_sub(1, Ordering::Relaxed);
        }
        reply.ok();
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if inode != IMAGE {
            return reply.error(Errno::EISDIR);
        }
        let range = self.shape.clip(offset, u64::from(size));
        let len = (range.end - range.start) as usize;
        if len == 0 {
            return reply.data(&[]);
        }
        let skip = (offset % u64::from(self.shape.block)) as usize;
        self.push(ByteIo::Read { offset, len }, Waiter::Read { reply, data: skip..skip + len });
    }

    fn write(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if inode != IMAGE {
            return reply.error(Errno::EISDIR);
        }
        if self.shape.read_only {
            return reply.error(Errno::EROFS);
        }
        if data.is_empty() {
            return reply.written(0);
        }
        let range = self.shape.clip(offset, data.len() as u64);
        let len = (range.end - range.start) as usize;
        if len == 0 {
            // As a block device answers a write at its end. A write that crosses the end is cut short.
            return reply.error(Errno::ENOSPC);
        }
        // The kernel leaves O_DSYNC of a direct write to the file system.
        let synchronous = OFlags::from_bits_retain(flags.0 as u32).intersects(OFlags::DSYNC);
        let durability = if synchronous { Durability::Durable } else { Durability::Volatile };
        let mut placed = Placed::covering(u64::from(self.shape.block), offset, len, durability);
        placed.buf.bytes_mut()[placed.data.clone()].copy_from_slice(&data[..len]);
        self.push(ByteIo::Write(placed), Waiter::Write { reply, len: len as u32 });
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Closing promises nothing; the kernel does not ask again after this answer.
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        match self.shape.volatile {
            true => self.push(ByteIo::Flush, Waiter::Other { reply }),
            // Answered writes are durable. The kernel then answers every fsync itself.
            false => reply.error(Errno::ENOSYS),
        }
    }

    fn fallocate(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if inode != IMAGE || self.shape.read_only {
            return reply.error(if inode == IMAGE { Errno::EROFS } else { Errno::EISDIR });
        }
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.shape.bytes);
        if !inside && !mode.contains(FallocateFlags::KEEP_SIZE) {
            return reply.error(Errno::ENOSPC);
        }
        if (mode - FallocateFlags::KEEP_SIZE).is_empty() {
            // All of the file is there already.
            return reply.ok();
        }
        let range = self.shape.clip(offset, length);
        match self.zero(range.clone(), mode) {
            Ok(_) if range.is_empty() => reply.ok(),
            Ok(io) => self.push(io, Waiter::Other { reply }),
            Err(errno) => reply.error(errno),
        }
    }

    fn lseek(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        // The kernel then treats the whole file as data.
        reply.error(Errno::ENOSYS);
    }

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if inode != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (IMAGE, FileType::RegularFile, self.name.as_str()),
        ];
        for (place, (inode, kind, name)) in entries.into_iter().enumerate() {
            let next = place as u64 + 1;
            if next > offset && reply.add(inode, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let block = self.shape.block.max(4096);
        // The file system is full: its only file takes all of it.
        reply.statfs(self.shape.bytes / u64::from(block), 0, 0, 1, 0, block, 255, block);
    }
}
