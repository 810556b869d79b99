//! The 4.4BSD Fast File System as a workload: calls of programs go in, block requests come out.
//!
//! After Table 1 of Zhu and Hu (2003) and McKusick et al. (1984): cylinder groups, blocks and fragments, directories and
//! inodes in blocks of the disk, synchronous metadata, clustering, reading ahead, a buffer cache, and an update daemon.
//! Like a layer it has no clock and draws no random numbers: one event in, requests and returns out. No bytes move: the
//! requests carry blank buffers, and what blocks hold is kept in memory (`volume::Volume`). So it runs on any stack.
//!
//! | module      | what                                                                     |
//! |-------------|--------------------------------------------------------------------------|
//! | `layout`    | addresses; `bitmap`, `alloc`: what is free, and the policies of placement |
//! | `reserve`   | ext3's policy of placement                                               |
//! | `inode`     | files; `directory`: names in chunks of 512 bytes                         |
//! | `volume`    | all of that together; `check` is its fsck                                |
//! | `plan`      | a call becomes steps, with the order of synchronous writes               |
//! | `machine`   | processes carry steps out; `disk_io` reads and writes through `buffers`  |
//! | `journal`   | ext3's journal: metadata is written back later than data                 |
//! | `cpu`       | one processor for all                                                    |
//!
//! A metadata write that a call waits for is [`Durability::Durable`](dcd_engine::Durability), all else is volatile: that is
//! how a disk with selective write caching tells them apart.
//!
//! Simpler than 4.4BSD: blocks are not moved together after the fact (`reallocblks`), as files here are laid out in a row
//! from the start; an inode goes into its block when its file is closed or synced, not every 30 s; a directory does not
//! shrink; there are no links besides the first, no quotas, and no data in inodes.

mod alloc;
mod bitmap;
mod buffers;
mod config;
mod cpu;
mod directory;
mod disk_io;
mod inode;
mod journal;
mod layout;
mod lru;
mod machine;
mod measure;
mod op;
mod plan;
mod record;
mod reserve;
mod volume;

#[cfg(test)]
mod tests;

pub use config::{CachedWrite, CpuCosts, FfsConfig, FfsConfigError, Placement};
pub use layout::Ino;
pub use machine::{Ffs, FfsEvent, FfsOutbox, Return};
pub use measure::{CacheHits, ClassMeasured, FfsMeasured, RequestClass};
pub use op::{Done, FsError, Op, OpKind, ProcessId};
