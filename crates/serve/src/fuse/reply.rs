//! Waiting requests of the kernel, and their answers.

use std::ops::Range;

use dcd_engine::{ErrorKind, IoResult};
use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};

/// A request of the kernel that waits for the stack.
pub enum Waiter {
    /// A read: the requested part of the blocks that were read.
    Read {
        reply: ReplyData,
        data: Range<usize>,
    },
    Write {
        reply: ReplyWrite,
        len: u32,
    },
    Other {
        reply: ReplyEmpty,
    },
}

impl Waiter {
    /// Bytes that the request holds until it is answered.
    pub fn flight_bytes(&self) -> usize {
        match self {
            Waiter::Read { data, .. } => data.len(),
            Waiter::Write { len, .. } => *len as usize,
            Waiter::Other { .. } => 0,
        }
    }

    pub fn answer(self, result: IoResult) {
        match (result.status, self) {
            (Err(error), waiter) => waiter.fail(errno_of(error.kind)),
            (Ok(()), Waiter::Read { reply, data }) => match result.buf.bytes().get(data) {
                Some(bytes) => reply.data(bytes),
                None => reply.error(Errno::EIO),
            },
            (Ok(()), Waiter::Write { reply, len }) => reply.written(len),
            (Ok(()), Waiter::Other { reply }) => reply.ok(),
        }
    }

    /// Answers with an error: the server is stopping.
    pub fn refuse(self) {
        self.fail(errno_of(ErrorKind::Shutdown));
    }

    fn fail(self, errno: Errno) {
        match self {
            Waiter::Read { reply, .. } => reply.error(errno),
            Waiter::Write { reply, .. } => reply.error(errno),
            Waiter::Other { reply } => reply.error(errno),
        }
    }
}

/// Translates an error for a program: the same numbers as over NBD, in the words of a file system.
fn errno_of(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::Medium | ErrorKind::Lost | ErrorKind::PowerCut => Errno::EIO,
        ErrorKind::NoSpace | ErrorKind::OutOfRange => Errno::ENOSPC,
        ErrorKind::ReadOnly => Errno::EROFS,
        ErrorKind::Invalid => Errno::EINVAL,
        ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        ErrorKind::Shutdown => Errno::from_i32(rustix::io::Errno::SHUTDOWN.raw_os_error()),
    }
}
