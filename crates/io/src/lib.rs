//! The real driver: one thread, one io_uring, real devices, sockets and timers.
//!
//! Everything that reaches the operating system is here, and so is all unsafe code of the project. [`Device`] and
//! [`FileDevice`] open, lock and measure; [`Driver`] carries a stack's outputs out, moves bytes between clients and
//! their [`FrontEnd`]s, and tells a [`Host`] what happened.

pub mod backup_marks;
mod bell;
mod command;
mod device;
mod driver;
mod front_end;
mod listen;
mod lock_file;
mod memory;
mod protect;
mod remote;
mod ring;
mod signals;
pub mod tls;
mod workers;

pub use bell::Bell;
pub use command::{ControlCommand, KernelMemory};
pub use device::{
    Device, DeviceError, DeviceSpec, DeviceUsage, Direct, DiskWear, Failures, FileDevice, FileSpec, LoopFile,
    MappedRun, MemoryDevice, OpCounts, OpKind, OpenedPlace, Overlay, is_in_memory, loop_file, mark_names,
    read_mark, reserve_space, write_mark,
};
pub use driver::{
    CallId, ClientId, Context, Driver, DriverError, Host, OpenId, Peer, Refused, Statistics, StopOutcome,
    UnansweredOps, UnknownPeer, process_name, process_of, way_to_io_uring,
};
pub use front_end::{
    Actions, Closing, ControlCall, Ending, FrontEnd, FrontEndCondition, FrontEndNews, KernelCommand, Lookup,
    MapCall, OutputPiece, SessionFactory, Task,
};
pub use listen::{ListenError, ListenSocket, SocketFile, SocketRights, group_number};
pub use lock_file::lock_notes;
pub use memory::MemoryDirectory;
pub use protect::{Protection, protect_process, run_promptly};
pub use remote::{LinkStatus, RemoteSpec};
pub use signals::{
    Signal, Signals, hold_signals_back, ignore_file_size_signal, on_interrupt, run_unless_interrupted,
};
pub use workers::Waker;
