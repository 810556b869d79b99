//! An allocator that counts for each thread by itself, so that neither other tests nor the harness are in the figures.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// The bytes allocated now.
    pub static ALLOCATED: Cell<usize> = const { Cell::new(0) };
    /// The largest single allocation since this was last set.
    pub static LARGEST: Cell<usize> = const { Cell::new(0) };
    /// The most bytes that were allocated at once since this was last set.
    pub static PEAK: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory but the counters, which have no destructor and
// need no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = ALLOCATED.get().wrapping_add(layout.size());
        ALLOCATED.set(now);
        // What another thread allocated may be given back here.
        if now <= isize::MAX as usize {
            PEAK.set(PEAK.get().max(now));
        }
        LARGEST.set(LARGEST.get().max(layout.size()));
        // SAFETY: the caller keeps to the contract of `alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.set(ALLOCATED.get().wrapping_sub(layout.size()));
        // SAFETY: the pointer came from `alloc` above with the same layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
