//! Records what the disk would hold after a crash: changes of metadata and writes of their blocks, in order, for tests.

use super::layout::{Frag, Ino};

/// Meaning of a block's change for the name space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// An inode of this generation is in use, or none is.
    Inode {
        ino: Ino,
        generation: Option<u32>,
    },
    /// A name leads to this generation of an inode, or to none.
    Entry {
        directory: Ino,
        name: u64,
        to: Option<(Ino, u32)>,
    },
}

/// Names a write from its request to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WriteId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// In memory.
    Changed { at: Frag, effect: Effect },
    /// These blocks' content in memory is sent to the disk.
    Issued { write: WriteId, at: Frag, frags: u32 },
    /// The write is completed.
    Ended { write: WriteId },
}

/// FNV-1a: a number for a name, so that what is recorded stays small.
pub(crate) fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
