//! Carries out a request to a file as a series of system calls: a state machine without the calls themselves.
//!
//! | phase    | call                                | then                                                       |
//! |----------|-------------------------------------|------------------------------------------------------------|
//! | `Move`   | read or write, what is left of it   | `Move` after a short one; end                              |
//! | `Punch`  | fallocate: a hole                   | `Sync` where durable; not supported: `Fill` (zeroes)       |
//! | `Discard`| the block layer's discard           | end; not supported: nothing to do, as it is advice         |
//! | `Zero`   | fallocate: zeroes, space kept       | `Sync` where durable; not supported: `Fill`                |
//! | `Fill`   | write of zeroes, a piece at a time  | `Fill` until all is written; end                           |
//! | `Sync`   | fdatasync                           | end                                                        |
//!
//! EINTR and EAGAIN repeat a call. A short transfer goes on from the last whole block.

use std::os::fd::RawFd;

use dcd_engine::{Buf, Durability, ErrorKind, Io, IoError, IoResult, SECTOR_BYTES};

/// Caller of a file's system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallsBy {
    /// A file in memory: calling costs less than asking the ring.
    Itself,
    /// The kernel promises that no call waits in the ring's submission.
    Ring,
    /// A call may wait: [`Workers`](crate::workers::Workers) make the calls.
    Workers,
}

/// Properties of a file that decide how it is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileTraits {
    /// The logical block, in bytes.
    pub block: usize,
    /// Required alignment of buffers' addresses.
    pub memory_align: usize,
    pub direct: bool,
    pub is_block: bool,
    pub calls_by: CallsBy,
}

/// Memory of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallMemory {
    pub pointer: *mut u8,
    pub len: u32,
}

/// A system call. The memory belongs to the [`Transfer`] that gave it, and stays where it is until [`Transfer::advance`] is called.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SystemCall {
    Read {
        offset: u64,
        memory: CallMemory,
    },
    Write {
        offset: u64,
        memory: CallMemory,
        durable: bool,
    },
    Allocate {
        offset: u64,
        len: u64,
        mode: i32,
    },
    /// For a block device; waits until the device has discarded the range.
    Discard {
        offset: u64,
        len: u64,
    },
    Sync,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransferPhase {
    Move,
    Punch,
    Discard,
    Zero,
    Fill,
    Sync,
}

/// The most that one call moves: below the kernel's own limit, and a multiple of every block.
const CALL_BYTES_MAX: usize = 1 << 30;
/// The most zeroes that are written by one call.
const FILL_BYTES: usize = 1 << 20;
/// From linux/fs.h.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Transfer {
    traits: FileTraits,
    io: Io,
    phase: TransferPhase,
    /// Bytes done.
    done: usize,
    /// Bytes to do.
    total: usize,
    /// Aligned memory where the buffer is not, or zeroes to write.
    bounce: Option<Buf>,
}

impl Transfer {
    /// `io` has passed [`check`](super::check).
    pub fn new(traits: FileTraits, io: Io) -> Transfer {
        let total = io.extent().map_or(0, |extent| extent.sectors * SECTOR_BYTES) as usize;
        let phase = match &io {
            Io::Read { .. } | Io::ReadCopy { .. } | Io::Write { .. } | Io::WriteCopy { .. } => {
                TransferPhase::Move
            }
            Io::Flush => TransferPhase::Sync,
            Io::Discard { .. } if traits.is_block => TransferPhase::Discard,
            Io::Discard { .. } | Io::WriteZeroes { unmap: true, .. } => TransferPhase::Punch,
            Io::WriteZeroes { .. } => TransferPhase::Zero,
        };
        let bounce = match &io {
            Io::Read { buf, .. } if is_odd(buf, traits) => Some(Buf::zeroed(buf.len())),
            Io::Write { buf, .. } if is_odd(buf, traits) => Some(Buf::copy_of(buf.bytes())),
            _ => None,
        };
        Transfer { traits, io, phase, done: 0, total, bounce }
    }

    /// Bytes of the request. A large one is worth a kernel thread even on a file in memory.
    pub fn bytes(&self) -> usize {
        self.total
    }

    /// True for a discard of a block device: before Linux 6.12 the ring has no such call, so a thread makes it.
    pub fn is_for_thread(&self) -> bool {
        self.phase == TransferPhase::Discard
    }

    /// The next call to make.
    pub fn call(&mut self) -> SystemCall {
        let offset = self.io.extent().map_or(0, |extent| extent.start.bytes());
        match self.phase {
            TransferPhase::Move => self.move_call(offset),
            TransferPhase::Punch => SystemCall::Allocate {
                offset,
                len: self.total as u64,
                mode: libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            },
            TransferPhase::Discard => SystemCall::Discard { offset, len: self.total as u64 },
            TransferPhase::Zero => SystemCall::Allocate {
                offset,
                len: self.total as u64,
                mode: libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
            },
            TransferPhase::Fill => {
                let len = (self.total - self.done).min(FILL_BYTES);
                let fill = FILL_BYTES.min(self.total);
                let zeroes = self.bounce.get_or_insert_with(|| Buf::zeroed(fill));
                let memory = CallMemory { pointer: zeroes.bytes_mut().as_mut_ptr(), len: len as u32 };
                SystemCall::Write { offset: offset + self.done as u64, memory, durable: durable(&self.io) }
            }
            TransferPhase::Sync => SystemCall::Sync,
        }
    }

    fn move_call(&mut self, offset: u64) -> SystemCall {
        let len = (self.total - self.done).min(CALL_BYTES_MAX) as u32;
        let offset = offset + self.done as u64;
        let durable = durable(&self.io);
        match &mut self.io {
            Io::Read { buf, .. } => {
                let bytes = self.bounce.as_mut().unwrap_or(buf).bytes_mut();
                SystemCall::Read {
                    offset,
                    memory: CallMemory { pointer: bytes[self.done..].as_mut_ptr(), len },
                }
            }
            Io::Write { buf, .. } => {
                // The pointer is only ever read through: the call is a write.
                let bytes = self.bounce.as_ref().unwrap_or(buf).bytes();
                let pointer = bytes[self.done..].as_ptr().cast_mut();
                SystemCall::Write { offset, memory: CallMemory { pointer, len }, durable }
            }
            _ => unreachable!("only reads and writes move data"),
        }
    }

    /// Takes the result of the last call, a count or a negative error number. Returns the status for
    /// [`finish`](Transfer::finish) once the request is complete.
    pub fn advance(&mut self, result: i32) -> Option<Result<(), IoError>> {
        if result == -libc::EINTR || result == -libc::EAGAIN {
            return None;
        }
        match self.phase {
            TransferPhase::Move | TransferPhase::Fill => self.moved(result),
            TransferPhase::Punch | TransferPhase::Zero => self.allocated(result),
            TransferPhase::Discard if result == -libc::EOPNOTSUPP => Some(Ok(())),
            TransferPhase::Sync | TransferPhase::Discard if result < 0 => {
                Some(Err(self.error(kind_of(-result))))
            }
            TransferPhase::Sync | TransferPhase::Discard => Some(Ok(())),
        }
    }

    fn moved(&mut self, result: i32) -> Option<Result<(), IoError>> {
        if result < 0 {
            return Some(Err(self.error(kind_of(-result))));
        }
        let reached = self.done + result as usize;
        if reached >= self.total {
            return Some(Ok(()));
        }
        // A short transfer may end inside a block; from there O_DIRECT could not go on.
        let whole = reached / self.traits.block * self.traits.block;
        if whole == self.done {
            // Nothing moved: the file ends earlier than it did when it was opened.
            return Some(Err(self.error(ErrorKind::Medium)));
        }
        self.done = whole;
        None
    }

    fn allocated(&mut self, result: i32) -> Option<Result<(), IoError>> {
        let cannot = matches!(-result, libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY);
        match result {
            0.. if durable(&self.io) => self.phase = TransferPhase::Sync,
            0.. => return Some(Ok(())),
            _ if cannot && matches!(self.io, Io::WriteZeroes { .. }) => self.phase = TransferPhase::Fill,
            _ => return Some(Err(self.error(kind_of(-result)))),
        }
        None
    }

    fn error(&self, kind: ErrorKind) -> IoError {
        IoError { kind, extent: self.io.extent() }
    }

    /// Gives the buffer back.
    pub fn finish(mut self, status: Result<(), IoError>) -> IoResult {
        if let (Io::Read { buf, .. }, Some(bounce), Ok(())) = (&mut self.io, &self.bounce, &status) {
            buf.bytes_mut().copy_from_slice(bounce.bytes());
        }
        IoResult { buf: self.io.take_buf(), status }
    }
}

fn is_odd(buf: &Buf, traits: FileTraits) -> bool {
    traits.direct && !buf.bytes().as_ptr().addr().is_multiple_of(traits.memory_align)
}

fn durable(io: &Io) -> bool {
    matches!(
        io,
        Io::Write { durability: Durability::Durable, .. }
            | Io::WriteZeroes { durability: Durability::Durable, .. }
    )
}

/// The kernel's error numbers in the terms of the layers.
pub(crate) fn kind_of(errno: i32) -> ErrorKind {
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => ErrorKind::NoSpace,
        libc::EROFS | libc::EPERM | libc::EACCES => ErrorKind::ReadOnly,
        libc::EINVAL => ErrorKind::Invalid,
        libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => ErrorKind::Unsupported,
        _ => ErrorKind::Medium,
    }
}

/// Makes a call and waits for its end: a count, or a negative error number.
pub(crate) fn make_call(fd: RawFd, call: SystemCall) -> i32 {
    let vector =
        |memory: CallMemory| libc::iovec { iov_base: memory.pointer.cast(), iov_len: memory.len as usize };
    let result = match call {
        SystemCall::Read { offset, memory } => {
            let vector = vector(memory);
            // SAFETY: the memory is writable and belongs to the transfer, which waits for this call.
            unsafe { libc::preadv2(fd, &vector, 1, offset as libc::off_t, 0) as i64 }
        }
        SystemCall::Write { offset, memory, durable } => {
            let vector = vector(memory);
            let flags = if durable { libc::RWF_DSYNC } else { 0 };
            // SAFETY: the memory is readable and belongs to the transfer, which waits for this call.
            unsafe { libc::pwritev2(fd, &vector, 1, offset as libc::off_t, flags) as i64 }
        }
        SystemCall::Allocate { offset, len, mode } => {
            // SAFETY: a plain system call.
            unsafe { i64::from(libc::fallocate(fd, mode, offset as libc::off_t, len as libc::off_t)) }
        }
        SystemCall::Discard { offset, len } => {
            let range = [offset, len];
            // SAFETY: two numbers that live for the call.
            unsafe { i64::from(libc::ioctl(fd, BLKDISCARD, range.as_ptr())) }
        }
        // SAFETY: a plain system call.
        SystemCall::Sync => unsafe { i64::from(libc::fdatasync(fd)) },
    };
    if result < 0 {
        -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
    } else {
        result as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dcd_engine::{Extent, Lba};

    const TRAITS: FileTraits =
        FileTraits { block: 512, memory_align: 512, direct: true, is_block: false, calls_by: CallsBy::Ring };

    fn offset_and_len(call: SystemCall) -> (u64, u64) {
        match call {
            SystemCall::Read { offset, memory } | SystemCall::Write { offset, memory, .. } => {
                (offset, u64::from(memory.len))
            }
            SystemCall::Allocate { offset, len, .. } | SystemCall::Discard { offset, len } => (offset, len),
            SystemCall::Sync => (0, 0),
        }
    }

    #[test]
    fn short_transfers_go_on_from_the_last_whole_block() {
        let mut read = Transfer::new(TRAITS, Io::Read { at: Lba(8), buf: Buf::zeroed(4096) });
        assert_eq!(offset_and_len(read.call()), (4096, 4096));
        assert!(read.advance(-libc::EINTR).is_none());
        assert_eq!(offset_and_len(read.call()), (4096, 4096));
        assert!(read.advance(1000).is_none());
        assert_eq!(offset_and_len(read.call()), (4096 + 512, 4096 - 512));
        assert!(read.advance(-libc::EAGAIN).is_none());
        assert_eq!(read.advance(4096 - 512), Some(Ok(())));
    }

    /// Linux promises nothing of a discard.
    #[test]
    fn a_discard_of_a_block_device_is_advice_and_never_zeroes() {
        let traits = FileTraits { is_block: true, ..TRAITS };
        let discard = || Transfer::new(traits, Io::Discard { extent: Extent::new(Lba(8), 16) });
        assert!(matches!(discard().call(), SystemCall::Discard { offset: 4096, len: 8192 }));
        assert_eq!(discard().advance(0), Some(Ok(())));
        assert_eq!(discard().advance(-libc::EOPNOTSUPP), Some(Ok(())));
        let failed = discard().advance(-libc::EIO).unwrap().unwrap_err();
        assert_eq!(failed.kind, ErrorKind::Medium);
    }

    #[test]
    fn a_file_that_ends_early_is_an_error() {
        let mut read = Transfer::new(TRAITS, Io::Read { at: Lba(8), buf: Buf::zeroed(1024) });
        read.call();
        assert!(read.advance(512).is_none());
        read.call();
        let error = read.advance(0).expect("an end").expect_err("nothing was read");
        assert_eq!((error.kind, error.extent), (ErrorKind::Medium, Some(Extent::new(Lba(8), 2))));
    }

    #[test]
    fn durable_zeroes_are_synced_and_fall_back_to_writing() {
        let zeroes = |unmap| Io::WriteZeroes {
            extent: Extent::new(Lba(0), 4096),
            unmap,
            durability: Durability::Durable,
        };
        let mut punched = Transfer::new(TRAITS, zeroes(true));
        assert!(
            matches!(punched.call(), SystemCall::Allocate { mode, .. } if mode & libc::FALLOC_FL_PUNCH_HOLE != 0)
        );
        assert!(punched.advance(0).is_none());
        assert!(matches!(punched.call(), SystemCall::Sync));
        assert_eq!(punched.advance(0), Some(Ok(())));

        let mut filled = Transfer::new(TRAITS, zeroes(false));
        assert!(
            matches!(filled.call(), SystemCall::Allocate { mode, .. } if mode & libc::FALLOC_FL_PUNCH_HOLE == 0)
        );
        assert!(filled.advance(-libc::EOPNOTSUPP).is_none());
        assert!(matches!(filled.call(), SystemCall::Write { durable: true, .. }));
        assert!(filled.advance(1 << 20).is_none());
        assert_eq!(offset_and_len(filled.call()), (1 << 20, 1 << 20));
        assert_eq!(filled.advance(1 << 20), Some(Ok(())));
    }

    #[test]
    fn a_failed_sync_and_a_full_disk_are_told_apart() {
        let mut flush = Transfer::new(TRAITS, Io::Flush);
        assert_eq!(flush.advance(-libc::EIO), Some(Err(IoError::new(ErrorKind::Medium))));
        let buf = Buf::zeroed(512);
        let mut write =
            Transfer::new(TRAITS, Io::Write { at: Lba(1), buf, durability: Durability::Volatile });
        let error = write.advance(-libc::ENOSPC).expect("an end").expect_err("no space");
        assert_eq!(error.kind, ErrorKind::NoSpace);
    }

    #[test]
    fn odd_memory_is_bounced() {
        let mut all = Buf::zeroed(8192);
        all.share();
        let traits = FileTraits { memory_align: 4096, ..TRAITS };
        let odd = Io::Write { at: Lba(0), buf: all.window(512, 512), durability: Durability::Volatile };
        let even = Io::Write { at: Lba(0), buf: all.window(4096, 512), durability: Durability::Volatile };
        assert!(Transfer::new(traits, odd).bounce.is_some());
        assert!(Transfer::new(traits, even).bounce.is_none());
    }
}
