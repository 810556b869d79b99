//! The bytes of a cache's blocks. A study that carries no bytes never makes it allocate any.

use dcd_engine::Buf;

use crate::write_cache::pool::SlotIndex;

/// See the module's documentation.
pub struct Store {
    blocks: usize,
    block_bytes: usize,
    bytes: Option<Buf>,
}

impl Store {
    pub const fn new(blocks: usize, block_bytes: usize) -> Store {
        Store { blocks, block_bytes, bytes: None }
    }

    /// Keeps a block, found at `at` in `source`.
    pub fn put(&mut self, slot: SlotIndex, source: &Buf, at: usize) {
        if source.is_blank() && self.bytes.is_none() {
            return;
        }
        let bytes = self.bytes.get_or_insert_with(|| Buf::zeroed(self.blocks * self.block_bytes));
        bytes.copy_from(slot.0 as usize * self.block_bytes, source, at, self.block_bytes);
    }

    /// Copies a block to `at` in `target`.
    pub fn get(&self, slot: SlotIndex, target: &mut Buf, at: usize) {
        match &self.bytes {
            Some(bytes) => target.copy_from(at, bytes, slot.0 as usize * self.block_bytes, self.block_bytes),
            None => target.zero(at, self.block_bytes),
        }
    }

    /// A buffer for `blocks` blocks, blank if nothing here has bytes.
    pub fn buffer(&self, blocks: usize) -> Buf {
        let len = blocks * self.block_bytes;
        if self.bytes.is_some() { Buf::zeroed(len) } else { Buf::blank(len) }
    }
}
