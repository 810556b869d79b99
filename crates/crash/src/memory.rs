//! Memory that outlives a simulated process: what was stored before a kill, cut between any two stores.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use dcd_engine::log_cache::{MemoryInUse, MemoryPlace, SharedMemory};

use crate::SimRng;

/// Content of each memory, by its number.
pub type MemoryContent = BTreeMap<u32, Vec<u8>>;

/// A change of the memory.
#[derive(Clone, Debug)]
enum MemoryChange {
    Store(u32, usize, Vec<u8>),
    Made(u32, usize),
    Removed(u32),
}

impl MemoryChange {
    /// Carries the change out; of a store, only the first `bytes`.
    fn apply(&self, content: &mut MemoryContent, bytes: usize) {
        match self {
            MemoryChange::Store(number, at, new) => {
                let content = content.get_mut(number).expect("it is stored in memory that exists");
                let bytes = bytes.min(new.len());
                content[*at..*at + bytes].copy_from_slice(&new[..bytes]);
            }
            MemoryChange::Made(number, bytes) => drop(content.insert(*number, vec![0; *bytes])),
            MemoryChange::Removed(number) => drop(content.remove(number)),
        }
    }
}

/// Content of the memory as a process leaves it, and the boot of the machine.
#[derive(Clone, Debug, Default)]
pub struct LeftMemory {
    pub boot: u64,
    pub content: MemoryContent,
    /// The number that was drawn last.
    pub drawn: u32,
    /// The next process does not reach it, and changes nothing there.
    pub hidden: bool,
}

#[derive(Debug, Default)]
struct MemoryState {
    left: LeftMemory,
    /// Maximum size of new memory.
    bytes_max: usize,
    /// Content before the changes since [`SimMemory::arm`], and these changes.
    before: Option<(MemoryContent, Vec<MemoryChange>)>,
}

impl MemoryState {
    fn change(&mut self, change: MemoryChange) {
        change.apply(&mut self.left.content, usize::MAX);
        if let Some((_, changes)) = &mut self.before {
            changes.push(change);
        }
    }
}

/// See the module's documentation. A copy is a handle on the same memory.
#[derive(Clone, Debug, Default)]
pub struct SimMemory(Rc<RefCell<MemoryState>>);

impl SimMemory {
    /// Makes the memory that the next process finds. It can make new memory of at most `bytes_max`; 0: none.
    pub fn new(left: LeftMemory, bytes_max: usize) -> SimMemory {
        SimMemory(Rc::new(RefCell::new(MemoryState { left, bytes_max, before: None })))
    }

    /// Returns the memory as a kill now leaves it.
    pub fn left(&self) -> LeftMemory {
        LeftMemory { hidden: false, ..self.0.borrow().left.clone() }
    }

    /// Begins to note the changes.
    pub fn arm(&self) {
        let mut state = self.0.borrow_mut();
        state.before = Some((state.left.content.clone(), Vec::new()));
    }

    /// Returns the memory as a kill between two of the noted changes, or within a store, leaves it; none if nothing was changed.
    pub fn cut(&self, rng: &mut SimRng) -> Option<LeftMemory> {
        let mut state = self.0.borrow_mut();
        let (mut content, changes) = state.before.take()?;
        let last = changes.len().checked_sub(1)?;
        let done = rng.below(last as u64 + 1) as usize;
        changes[..done].iter().for_each(|change| change.apply(&mut content, usize::MAX));
        if let MemoryChange::Store(_, _, bytes) = &changes[done]
            && bytes.len() > 8
        {
            changes[done].apply(&mut content, rng.below(bytes.len() as u64 / 8) as usize * 8);
        }
        let (boot, drawn) = (state.left.boot, state.left.drawn);
        Some(LeftMemory { boot, content, drawn, hidden: false })
    }
}

impl MemoryPlace for SimMemory {
    fn boot(&self) -> [u8; 16] {
        u128::from(self.0.borrow().left.boot).to_le_bytes()
    }

    fn draw(&mut self, _cache: &[u8; 16], _max: u32) -> Option<u32> {
        let left = &mut self.0.borrow_mut().left;
        left.drawn += 1;
        Some(left.drawn)
    }

    fn find(&mut self, _cache: &[u8; 16], number: u32) -> Result<Option<Vec<u8>>, MemoryInUse> {
        let left = &self.0.borrow().left;
        Ok(left.content.get(&number).filter(|_| !left.hidden).cloned())
    }

    fn make(&mut self, _cache: &[u8; 16], number: u32, bytes: usize) -> Option<Box<dyn SharedMemory>> {
        let bytes = bytes.min(self.0.borrow().bytes_max);
        if bytes == 0 || self.0.borrow().left.hidden {
            return None;
        }
        self.0.borrow_mut().change(MemoryChange::Made(number, bytes));
        Some(Box::new(SimShared { place: self.clone(), number }))
    }

    fn forget(&mut self, _cache: &[u8; 16], number: u32) {
        if !self.0.borrow().left.hidden {
            self.0.borrow_mut().change(MemoryChange::Removed(number));
        }
    }
}

/// Memory of one simulated process.
struct SimShared {
    place: SimMemory,
    number: u32,
}

impl SharedMemory for SimShared {
    fn len(&self) -> usize {
        self.place.0.borrow().left.content.get(&self.number).map_or(0, Vec::len)
    }

    fn store(&mut self, at: usize, bytes: &[u8]) {
        self.place.0.borrow_mut().change(MemoryChange::Store(self.number, at, bytes.to_vec()));
    }

    fn mark(&mut self, at: usize, number: u64) {
        self.store(at, &number.to_le_bytes());
    }

    fn remove(self: Box<Self>) {
        self.place.0.borrow_mut().change(MemoryChange::Removed(self.number));
    }
}
