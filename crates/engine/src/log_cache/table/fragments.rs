//! Fragments: the pieces of lines that have more than one (the paper's fragment entries, section 3.3).
//!
//! The pieces of a broken line are a linked list of nodes; the masks in one list never overlap, so a list has at most
//! eight nodes and their order means nothing. Nodes live in chunks that never move. Free nodes are a list of their own.
//! Memory for fragments is allocated one chunk at a time, up to a fixed number of nodes, and never freed.

use super::packed::{Packed, WIDE_MAX};
use super::piece::{Line, Piece};

/// Nodes in a chunk: 16 KiB, so that a table of a few thousand lines allocates few unused ones.
const CHUNK_NODES: usize = 1024;
/// The end of a list.
const NIL: u64 = WIDE_MAX;

pub(super) struct Fragments {
    chunks: Vec<Box<[Packed]>>,
    free: u64,
    used: usize,
    /// Nodes handed out at least once; those after them have never been on the free list.
    touched: usize,
    nodes_max: usize,
}

impl Fragments {
    /// Creates a store for `nodes_max` nodes, of which `nodes_reserved` get their memory now.
    pub fn new(nodes_max: usize, nodes_reserved: usize) -> Fragments {
        let mut fragments = Fragments {
            chunks: Vec::with_capacity(nodes_max.div_ceil(CHUNK_NODES)),
            free: NIL,
            used: 0,
            touched: 0,
            nodes_max,
        };
        while fragments.chunks.len() * CHUNK_NODES < nodes_reserved.min(nodes_max) {
            fragments.grow();
        }
        fragments
    }

    fn grow(&mut self) {
        self.chunks.push(vec![Packed::EMPTY; CHUNK_NODES].into_boxed_slice());
    }

    pub fn used(&self) -> usize {
        self.used
    }

    pub fn nodes_max(&self) -> usize {
        self.nodes_max
    }

    pub fn memory_bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Box<[Packed]>>()
            + self.chunks.len() * CHUNK_NODES * size_of::<Packed>()
    }

    fn node(&self, index: u64) -> Packed {
        self.chunks[index as usize / CHUNK_NODES][index as usize % CHUNK_NODES]
    }

    fn set(&mut self, index: u64, node: Packed) {
        self.chunks[index as usize / CHUNK_NODES][index as usize % CHUNK_NODES] = node;
    }

    fn take(&mut self, next: u64, piece: &Piece) -> u64 {
        assert!(self.used < self.nodes_max, "no fragment is free: has_room() was not asked");
        let index = if self.free != NIL {
            let index = self.free;
            self.free = self.node(index).key();
            index
        } else {
            if self.touched == self.chunks.len() * CHUNK_NODES {
                self.grow();
            }
            self.touched += 1;
            (self.touched - 1) as u64
        };
        self.used += 1;
        self.set(index, Packed::whole(next, piece));
        index
    }

    fn release(&mut self, index: u64) {
        self.set(index, Packed::broken(Line(self.free), 0));
        self.free = index;
        self.used -= 1;
    }

    /// Adds `piece` to the pieces of `entry`, and returns the combined entry.
    pub fn join(&mut self, entry: Packed, piece: &Piece) -> Packed {
        let rest = if entry.is_broken() { entry.head() } else { self.take(NIL, &entry.piece()) };
        Packed::broken(entry.line(), self.take(rest, piece))
    }

    /// Calls `f` with every piece of `entry`.
    #[inline]
    pub fn each(&self, entry: Packed, mut f: impl FnMut(Piece)) {
        if !entry.is_broken() {
            return f(entry.piece());
        }
        let mut at = entry.head();
        while at != NIL {
            let node = self.node(at);
            f(node.piece());
            at = node.key();
        }
    }

    /// Lets `f` change every piece of `entry`, or drop it by returning `None`; returns the entry of the rest.
    #[inline]
    pub fn edit(&mut self, entry: Packed, mut f: impl FnMut(Piece) -> Option<Piece>) -> Option<Packed> {
        if entry.is_broken() {
            return self.edit_list(entry, &mut f);
        }
        let old = entry.piece();
        f(old).map(|new| if new == old { entry } else { Packed::whole(entry.key(), &new) })
    }

    fn edit_list(&mut self, entry: Packed, f: &mut impl FnMut(Piece) -> Option<Piece>) -> Option<Packed> {
        let (mut kept, mut at) = (NIL, entry.head());
        while at != NIL {
            let node = self.node(at);
            match f(node.piece()) {
                Some(piece) => {
                    self.set(at, Packed::whole(kept, &piece));
                    kept = at;
                }
                None => self.release(at),
            }
            at = node.key();
        }
        if kept == NIL {
            return None;
        }
        let first = self.node(kept);
        if first.key() != NIL {
            return Some(Packed::broken(entry.line(), kept));
        }
        // One piece is left: the line is whole again.
        self.release(kept);
        Some(Packed::whole(entry.key(), &first.piece()))
    }

    /// Panics if the free list and the count of nodes in use disagree.
    pub fn check(&self) {
        let (mut free, mut at) = (0, self.free);
        while at != NIL {
            free += 1;
            assert!(free <= self.touched, "the list of free fragments has a cycle");
            at = self.node(at).key();
        }
        assert_eq!(self.used + free, self.touched, "a fragment is neither free nor in use");
        assert!(self.used <= self.nodes_max);
    }
}
