//! Buffers: page-aligned memory that travels down with a command and comes back with its completion.
//!
//! A buffer is *blank* (a length without bytes, for timing studies), *owned* (writable), or *shared* (read only, a
//! window on pages that others hold too). The memory is aligned to 4096 bytes, so that every buffer made here and every
//! window that starts on a sector can be handed to O_DIRECT.

use std::sync::Arc;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Bytes in a page: the alignment of buffers.
pub const PAGE_BYTES: usize = 4096;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

enum Memory {
    Blank,
    Owned(Vec<Page>),
    Shared(Arc<Vec<Page>>),
}

/// A buffer of `len` bytes.
pub struct Buf {
    memory: Memory,
    start: usize,
    len: usize,
}

impl Default for Buf {
    fn default() -> Self {
        Buf::none()
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.memory {
            Memory::Blank => "blank",
            Memory::Owned(_) => "owned",
            Memory::Shared(_) => "shared",
        };
        write!(f, "Buf({kind}, {} bytes)", self.len)
    }
}

impl Buf {
    /// The empty buffer, for commands that move no data.
    pub const fn none() -> Buf {
        Buf { memory: Memory::Blank, start: 0, len: 0 }
    }

    /// A length without bytes.
    pub const fn blank(len: usize) -> Buf {
        Buf { memory: Memory::Blank, start: 0, len }
    }

    /// Writable memory, all zero.
    ///
    /// # Panics
    /// Where there is no memory.
    pub fn zeroed(len: usize) -> Buf {
        Buf::try_zeroed(len).unwrap_or_else(|| {
            panic!(
                "no memory for a buffer of {len} bytes: the machine has none left, or this process may have no more \
                 (ulimit -v, MemoryMax=). What was flushed is safe: start again with more"
            )
        })
    }

    /// Writable memory, all zero, for a request of a client: none if memory is short.
    pub fn try_zeroed(len: usize) -> Option<Buf> {
        let pages = len.div_ceil(PAGE_BYTES).max(1);
        let memory = Page::new_vec_zeroed(pages).ok()?;
        Some(Buf { memory: Memory::Owned(memory), start: 0, len })
    }

    /// Writable memory with a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        let mut buf = Buf::zeroed(bytes.len());
        buf.bytes_mut().copy_from_slice(bytes);
        buf
    }

    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub const fn is_blank(&self) -> bool {
        matches!(self.memory, Memory::Blank)
    }

    /// The bytes; empty for a blank buffer.
    pub fn bytes(&self) -> &[u8] {
        let all = match &self.memory {
            Memory::Blank => return &[],
            Memory::Owned(pages) => pages.as_slice().as_bytes(),
            Memory::Shared(pages) => pages.as_slice().as_bytes(),
        };
        &all[self.start..self.start + self.len]
    }

    /// The bytes to write into; empty for a blank buffer.
    ///
    /// # Panics
    /// On a shared buffer: others may be reading it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Blank => &mut [],
            Memory::Owned(pages) => {
                &mut pages.as_mut_slice().as_mut_bytes()[self.start..self.start + self.len]
            }
            Memory::Shared(_) => panic!("a shared buffer is read only"),
        }
    }

    /// Copies `len` bytes from `source`; a blank source reads as zeroes, a blank target takes nothing.
    pub fn copy_from(&mut self, at: usize, source: &Buf, source_at: usize, len: usize) {
        assert!(at + len <= self.len && source_at + len <= source.len, "a copy stays inside both buffers");
        if self.is_blank() {
            return;
        }
        let target = &mut self.bytes_mut()[at..at + len];
        if source.is_blank() {
            target.fill(0);
        } else {
            target.copy_from_slice(&source.bytes()[source_at..source_at + len]);
        }
    }

    /// Fills a part with zeroes.
    pub fn zero(&mut self, at: usize, len: usize) {
        if !self.is_blank() {
            self.bytes_mut()[at..at + len].fill(0);
        }
    }

    /// Makes the buffer shared, so that `window` can hand out parts of it.
    pub fn share(&mut self) {
        if let Memory::Owned(pages) = &mut self.memory {
            self.memory = Memory::Shared(Arc::new(std::mem::take(pages)));
        }
    }

    /// A read-only window on a shared or blank buffer.
    ///
    /// # Panics
    /// On an owned buffer (call `share` first) and outside the buffer.
    pub fn window(&self, at: usize, len: usize) -> Buf {
        assert!(at + len <= self.len, "a window stays inside its buffer");
        match &self.memory {
            Memory::Blank => Buf::blank(len),
            Memory::Owned(_) => panic!("share a buffer before taking windows of it"),
            Memory::Shared(pages) => {
                Buf { memory: Memory::Shared(Arc::clone(pages)), start: self.start + at, len }
            }
        }
    }

    /// Makes a shared buffer writable again if there is no other holder; true if it is now owned or blank.
    pub fn reclaim(&mut self) -> bool {
        if let Memory::Shared(pages) = &mut self.memory {
            match Arc::get_mut(pages) {
                Some(pages) => self.memory = Memory::Owned(std::mem::take(pages)),
                None => return false,
            }
        }
        true
    }

    /// True when the buffer is writable and its pages hold `len` bytes.
    pub fn has_room(&self, len: usize) -> bool {
        matches!(&self.memory, Memory::Owned(pages) if self.start + len <= pages.len() * PAGE_BYTES)
    }

    /// Cuts or grows the length within the pages that are held.
    ///
    /// # Panics
    /// If the pages do not reach that far.
    pub fn set_len(&mut self, len: usize) {
        let capacity = match &self.memory {
            Memory::Blank => usize::MAX,
            Memory::Owned(pages) => pages.len() * PAGE_BYTES,
            Memory::Shared(pages) => pages.len() * PAGE_BYTES,
        };
        assert!(len <= capacity - self.start, "a buffer's length stays inside its pages");
        self.len = len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_for_direct_io() {
        for len in [1, 512, 4096, 5000, 1 << 20] {
            assert_eq!(Buf::zeroed(len).bytes().as_ptr() as usize % PAGE_BYTES, 0);
        }
    }

    #[test]
    fn windows_share_and_return() {
        let mut buf = Buf::copy_of(&[7u8; 8192]);
        buf.bytes_mut()[4096] = 9;
        buf.share();
        let window = buf.window(4096, 512);
        assert_eq!(window.bytes()[0], 9);
        assert!(!buf.reclaim(), "a window is out");
        drop(window);
        assert!(buf.reclaim());
        buf.bytes_mut()[0] = 1;
    }

    #[test]
    fn blank_reads_as_zero_and_takes_nothing() {
        let mut real = Buf::copy_of(&[1u8; 512]);
        real.copy_from(0, &Buf::blank(512), 0, 256);
        assert_eq!((real.bytes()[255], real.bytes()[256]), (0, 1));
        let mut blank = Buf::blank(512);
        blank.copy_from(0, &real, 0, 512);
        assert!(blank.bytes().is_empty());
    }
}
