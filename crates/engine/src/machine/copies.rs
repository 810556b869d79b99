//! The rule of state that a device has in two copies: the newest valid copy counts, and the next state is written over the other.

/// Worth of a copy, from the least.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub enum Worth<G> {
    /// Missing.
    None,
    Damaged,
    /// Valid, and of this generation.
    Valid(G),
    /// Written by another version, whose state this program must not touch.
    OtherVersion,
}

/// The copy that counts: the one with the most worth, and the last of equals.
///
/// # Panics
/// If there is no copy.
pub fn newest<T, E, G: Ord>(
    copies: impl IntoIterator<Item = Result<T, E>>,
    worth: impl Fn(&Result<T, E>) -> Worth<G>,
) -> Result<T, E> {
    copies.into_iter().max_by_key(worth).expect("there are two")
}

/// The place of a generation: the one after it goes to the other place.
pub const fn place_of(generation: u64) -> usize {
    (generation % 2) as usize
}
