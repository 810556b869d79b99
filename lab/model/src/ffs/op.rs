//! Calls of programs to a file system, and their results.

use dcd_engine::Nanos;

use super::layout::Ino;

/// A program that calls the file system; one call at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(pub u32);

/// A call. Paths begin with `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Makes an empty file and opens it.
    Create {
        path: String,
    },
    Open {
        path: String,
    },
    Close {
        file: Ino,
    },
    Read {
        file: Ino,
        offset: u64,
        bytes: u64,
    },
    Write {
        file: Ino,
        offset: u64,
        bytes: u64,
    },
    /// Writes at the end, wherever that is.
    Append {
        file: Ino,
        bytes: u64,
    },
    Unlink {
        path: String,
    },
    Mkdir {
        path: String,
    },
    Rmdir {
        path: String,
    },
    /// Replaces a file at `to`, but not a directory.
    Rename {
        from: String,
        to: String,
    },
    Readdir {
        path: String,
    },
    Stat {
        path: String,
    },
    Fsync {
        file: Ino,
    },
    /// Writes everything that is dirty, and waits for it.
    Sync,
    /// As [`Op::Sync`]; then forgets every buffer, name and inode, so that the next reads are cold. Nothing may be open.
    Remount,
    /// Computes.
    Compute {
        time: Nanos,
    },
    /// Does nothing for a while: a person at the keyboard.
    Think {
        time: Nanos,
    },
}

/// The kinds that are measured apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpKind {
    Create,
    Open,
    Close,
    Read,
    Write,
    Unlink,
    Mkdir,
    Rmdir,
    Rename,
    Readdir,
    Stat,
    Fsync,
    Sync,
    Compute,
    Think,
}

impl OpKind {
    pub const ALL: [OpKind; 15] = [
        OpKind::Create,
        OpKind::Open,
        OpKind::Close,
        OpKind::Read,
        OpKind::Write,
        OpKind::Unlink,
        OpKind::Mkdir,
        OpKind::Rmdir,
        OpKind::Rename,
        OpKind::Readdir,
        OpKind::Stat,
        OpKind::Fsync,
        OpKind::Sync,
        OpKind::Compute,
        OpKind::Think,
    ];

    /// True where the call changes the name space.
    pub(crate) const fn changes_names(self) -> bool {
        matches!(self, OpKind::Create | OpKind::Unlink | OpKind::Mkdir | OpKind::Rmdir | OpKind::Rename)
    }
}

impl Op {
    pub const fn kind(&self) -> OpKind {
        match self {
            Op::Create { .. } => OpKind::Create,
            Op::Open { .. } => OpKind::Open,
            Op::Close { .. } => OpKind::Close,
            Op::Read { .. } => OpKind::Read,
            Op::Write { .. } | Op::Append { .. } => OpKind::Write,
            Op::Unlink { .. } => OpKind::Unlink,
            Op::Mkdir { .. } => OpKind::Mkdir,
            Op::Rmdir { .. } => OpKind::Rmdir,
            Op::Rename { .. } => OpKind::Rename,
            Op::Readdir { .. } => OpKind::Readdir,
            Op::Stat { .. } => OpKind::Stat,
            Op::Fsync { .. } => OpKind::Fsync,
            Op::Sync | Op::Remount => OpKind::Sync,
            Op::Compute { .. } => OpKind::Compute,
            Op::Think { .. } => OpKind::Think,
        }
    }
}

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Nothing,
    /// A file is open now.
    Opened(Ino),
    /// Bytes that were read or written.
    Bytes(u64),
    /// A directory has so many names.
    Names(u64),
    /// A file or directory has so many bytes.
    Stat {
        bytes: u64,
        links: u32,
    },
}

/// Why a call failed; nothing was changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FsError {
    #[error("no such file or directory")]
    NotFound,
    #[error("the name is taken")]
    Exists,
    #[error("a directory is needed here")]
    NotADirectory,
    #[error("a directory cannot be used here")]
    IsADirectory,
    #[error("the directory is not empty")]
    NotEmpty,
    #[error("no space left in the file system")]
    NoSpace,
    #[error("the file is larger than a file can be")]
    TooLarge,
    #[error("the name is empty, or has more than 255 bytes")]
    BadName,
    #[error("the file is not open")]
    NotOpen,
    #[error("files are open")]
    Busy,
}
