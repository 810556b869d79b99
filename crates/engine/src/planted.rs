//! Bugs that are planted in layers, so that the crash explorer can show that it finds them.
//!
//! Only the feature `planted-bugs` makes them possible. The explorer enables it, the programs do not: there a [`Planted`] takes no
//! space, cannot be made with a bug, and its answer is a constant, so that the code of the bug is not in the program.

use std::marker::PhantomData;

/// Tells whether this build can have planted bugs.
pub const PLANTS_BUGS: bool = cfg!(feature = "planted-bugs");

/// The bug of a layer, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planted<B> {
    #[cfg(feature = "planted-bugs")]
    bug: Option<B>,
    kind: PhantomData<B>,
}

impl<B> Default for Planted<B> {
    fn default() -> Self {
        Planted {
            #[cfg(feature = "planted-bugs")]
            bug: None,
            kind: PhantomData,
        }
    }
}

impl<B: Copy + PartialEq> Planted<B> {
    /// Tells whether this bug is planted.
    #[inline(always)]
    pub fn is(self, bug: B) -> bool {
        self.is_any(|planted| planted == bug)
    }

    /// Tells whether a planted bug satisfies `fits`.
    #[cfg(feature = "planted-bugs")]
    pub fn is_any(self, fits: impl FnOnce(B) -> bool) -> bool {
        self.bug.is_some_and(fits)
    }

    /// Returns false: no bug can be planted.
    #[cfg(not(feature = "planted-bugs"))]
    #[inline(always)]
    pub fn is_any(self, _fits: impl FnOnce(B) -> bool) -> bool {
        const { assert!(size_of::<Self>() == 0, "a bug can be planted without the feature") }
        false
    }
}

#[cfg(feature = "planted-bugs")]
impl<B> From<Option<B>> for Planted<B> {
    fn from(bug: Option<B>) -> Self {
        Planted { bug, kind: PhantomData }
    }
}
