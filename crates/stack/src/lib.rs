//! Stack files: one TOML file describes a tree of layers over devices, to serve or to simulate.
//!
//! [`StackFile::parse`] reads and checks the text; every error names the file, the line and what to do.
//! [`StackFile::build`] joins the layers over devices that an opener provides: real ones for serving, models for
//! simulation. The reference of the fields is [`reference()`], which is also what `dcd stack-file` prints.
//!
//! ```toml
//! export = "cache"
//!
//! [serve]
//! nbd = "unix:disk.sock"
//! control = "disk.control"
//!
//! [device.log]
//! path = "log.img"
//!
//! [device.data]
//! path = "data.img"
//!
//! [layer.cache]
//! kind = "log-cache"
//! log = "log"
//! data = "data"
//! promise = "flush"
//! ```

mod asked;
mod build;
mod changes;
pub mod compact;
mod device;
mod error;
mod fields;
mod file;
mod kinds;
mod memory;
mod meter;
mod order;
mod output;
mod raid;
mod record;
mod reference;
mod registry;
mod serve;
mod settings;
mod several;
mod sharing;
mod status;
#[cfg(test)]
mod testing;
mod trace_file;
mod units;
mod window;
mod write_hole;

pub use asked::Asked;
pub use build::{Built, DeviceOpener, ForClients, METER, OpenError, Parts, RECORD};
pub use device::{DeclaredDevice, DeviceSource, RemoteSource};
pub use error::StackFileError;
pub use fields::{Fields, Located};
pub use file::StackFile;
pub use kinds::{LayerKind, LayerSpec, RaidSpec, SliceSpec, TraceSpec};
pub use meter::{Meter, MeterStatus, RecentTimes, ResponseTimes};
pub use output::{Inputs, OutputError};
pub use record::{DeviceId, InvalidRecord, LBA_END_MAX, Record, RecordOp};
pub use reference::{Change, field_names, wrapped};
pub use registry::{Below, ReadKind, RegisteredKind, RegisteredLayer, Role, reference, register};
pub use serve::{Address, ServeSettings, SocketAccess, UblkNumber};
pub use settings::StackSetting;
pub use status::{LayerStatus, WriteCacheState, WriteCacheStatus};
pub use trace_file::{Overrun, Recording};
pub use units::{HumanBytes, UnitError, parse_duration, parse_size, toml_text};
pub use window::{DestageWindow, WindowError};
pub use write_hole::IMPLIED_JOURNAL_BYTES;
