//! Forged superblocks on the members of an array, with checksums that fit: the array starts, or is refused.

use crate::array;
use crate::forged::{Forged, forge, sign};

#[test]
fn an_array_with_forged_superblocks_starts_or_is_refused() {
    bolero::check!().with_type().for_each(|of_members: &[Vec<Forged>; 3]| {
        let mut members = array::made();
        for (member, forged) in members.0.iter_mut().zip(of_members) {
            let block = &mut member.0[..8192];
            forge(block, 0, &forged[..forged.len() % 4]);
            sign(block, 12);
        }
        array::start(members);
    });
}
