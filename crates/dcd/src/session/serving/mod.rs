//! A stack that is served: what is admitted before, the host that the driver calls, and the watch over its devices.

pub mod backup_marks;
pub mod checks;
pub mod discard;
pub mod disks;
pub mod front_ends;
pub mod host;
pub mod metrics;
pub mod notify;
pub mod records;
pub mod server;
pub mod status;
pub mod trend;
pub mod verdict;
pub mod watch;
pub mod wear;
mod windows;
