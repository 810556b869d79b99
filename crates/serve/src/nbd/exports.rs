//! The exports of a server: a table from names to views of the disks of the one stack that it serves.
//!
//! A name is only a key, and never becomes a path. Names may lead to the same data, some of them read-only.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dcd_engine::{Discards, Geometry, SECTOR_BYTES};
use dcd_io::backup_marks::BackupMarks;

use super::budget::Budget;
use super::protocol as p;
use super::replies::ReplyForm;
use crate::Outlives;

/// The longest payload of a request or a reply: every server must accept it, and no request can make this server allocate
/// more.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Minimum of the recommended unit of requests: a line of the log cache.
const PREFERRED_BYTES_MIN: u32 = 4096;

/// A name in the table.
#[derive(Clone, Debug)]
pub struct Export {
    pub name: String,
    pub description: String,
    pub geometry: Geometry,
    pub read_only: bool,
    /// The disk of the stack.
    pub disk: usize,
}

impl Export {
    /// Size in bytes: a multiple of the smallest block, as the protocol demands.
    pub fn bytes(&self) -> u64 {
        let bytes = self.geometry.sectors.saturating_mul(SECTOR_BYTES);
        bytes - bytes % u64::from(self.block_bytes_min())
    }

    pub fn block_bytes_min(&self) -> u32 {
        self.geometry.logical_block_bytes
    }

    pub fn block_bytes_preferred(&self) -> u32 {
        self.geometry.physical_block_bytes.max(self.block_bytes_min()).max(PREFERRED_BYTES_MIN)
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only || self.geometry.read_only
    }

    /// True if what is answered survives a power cut: then no flush is offered.
    pub fn is_durable(&self) -> bool {
        !self.geometry.volatile_cache
    }

    /// The transmission flags: only abilities that the server really has.
    pub fn flags(&self, form: ReplyForm) -> u16 {
        // One stack serves every connection, so a flush on one covers what was replied to on all of them.
        let mut flags =
            p::TFLAG_HAS_FLAGS | p::TFLAG_SEND_FUA | p::TFLAG_CAN_MULTI_CONN | p::TFLAG_SEND_CACHE;
        if form >= ReplyForm::Structured {
            flags |= p::TFLAG_SEND_DF;
        }
        if !self.is_durable() {
            flags |= p::TFLAG_SEND_FLUSH;
        }
        if self.geometry.rotational {
            flags |= p::TFLAG_ROTATIONAL;
        }
        if self.is_read_only() {
            return flags | p::TFLAG_READ_ONLY;
        }
        if self.geometry.discards != Discards::No {
            flags |= p::TFLAG_SEND_TRIM;
        }
        flags | p::TFLAG_SEND_WRITE_ZEROES | p::TFLAG_SEND_FAST_ZERO
    }
}

/// The table of exports. The empty name is the default export of the protocol: the first that was added. The sockets
/// of a server have copies, which share the table and its memory for requests.
#[derive(Clone, Debug, Default)]
pub struct NbdExports {
    table: Arc<Mutex<ExportTable>>,
    outlives: Outlives,
    budget: Arc<Budget>,
    marks: BackupMarks,
}

#[derive(Debug, Default)]
struct ExportTable {
    exports: BTreeMap<String, Arc<Export>>,
    default: Option<String>,
}

impl NbdExports {
    fn table(&self) -> MutexGuard<'_, ExportTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn new() -> NbdExports {
        NbdExports::default()
    }

    /// A table of one export, which is also the default one.
    pub fn single(name: &str, geometry: Geometry, read_only: bool) -> NbdExports {
        let exports = NbdExports::new();
        exports.add(name, geometry, read_only, "");
        exports
    }

    /// A table of disks, of which disk 0 is the default one. If it is missing, there is none: its clients must not get another disk.
    pub fn of_disks(disks: impl IntoIterator<Item = (usize, String, Geometry)>) -> NbdExports {
        let exports = NbdExports::new();
        disks.into_iter().for_each(|(disk, name, geometry)| exports.add_disk(disk, &name, geometry));
        {
            let table = &mut *exports.table();
            let is_first = |name: &String| table.exports.get(name).is_some_and(|export| export.disk == 0);
            table.default = table.default.take().filter(is_first);
        }
        exports
    }

    /// Adds a disk, which new clients find.
    pub fn add_disk(&self, disk: usize, name: &str, geometry: Geometry) {
        self.put(name, geometry, false, "", disk);
    }

    /// Removes the exports of a disk: new clients do not find it. Others keep it.
    pub fn remove_disk(&self, disk: usize) {
        self.table().exports.retain(|_, export| export.disk != disk);
    }

    /// Lets clients outlive the server.
    pub fn outliving(self, outlives: Outlives) -> NbdExports {
        NbdExports { outlives, ..self }
    }

    /// Tells clients what has changed since these marks.
    pub fn with_marks(self, marks: BackupMarks) -> NbdExports {
        NbdExports { marks, ..self }
    }

    pub const fn marks(&self) -> &BackupMarks {
        &self.marks
    }

    pub fn outlives(&self) -> Outlives {
        self.outlives
    }

    pub(super) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Adds a name. A name that is there already is replaced.
    ///
    /// # Panics
    /// On a name or a description longer than the protocol allows, and on a geometry that it cannot express.
    pub fn add(&self, name: &str, geometry: Geometry, read_only: bool, description: &str) {
        self.put(name, geometry, read_only, description, 0);
    }

    fn put(&self, name: &str, geometry: Geometry, read_only: bool, description: &str, disk: usize) {
        assert!(
            name.len() <= p::STRING_BYTES_MAX,
            "an export name has at most {} bytes",
            p::STRING_BYTES_MAX
        );
        assert!(description.len() <= p::STRING_BYTES_MAX, "a description has the same limit");
        let block = geometry.logical_block_bytes;
        assert!(
            block.is_power_of_two() && (512..=65536).contains(&block),
            "a block is a power of two from 512 to 65536 bytes"
        );
        let export =
            Export { name: name.to_owned(), description: description.to_owned(), geometry, read_only, disk };
        let mut table = self.table();
        table.default.get_or_insert_with(|| name.to_owned());
        table.exports.insert(name.to_owned(), Arc::new(export));
    }

    /// Looks a name up as a client sent it: the empty name means the default export.
    pub fn find(&self, name: &str) -> Option<Arc<Export>> {
        let table = self.table();
        let found = match table.exports.get(name) {
            None if name.is_empty() => table.exports.get(table.default.as_deref()?),
            found => found,
        };
        found.cloned()
    }

    /// All exports in the order of their names.
    pub fn all(&self) -> Vec<Arc<Export>> {
        self.table().exports.values().cloned().collect()
    }
}
