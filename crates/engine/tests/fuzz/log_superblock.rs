//! A superblock with forged fields and a checksum that fits: it is refused, or is the same after it was written and read again.

use dcd_engine::log_cache::format::{LogSuperblock, SUPERBLOCK_BYTES};
use zerocopy::IntoBytes;

use crate::forged::{Forged, forge, sign};
use crate::shape;

#[test]
fn a_forged_superblock_is_refused_or_written_as_it_was_read() {
    bolero::check!().with_type().for_each(|forged: &Vec<Forged>| {
        let mut area = shape::superblock().encode().as_bytes().to_vec();
        forge(&mut area[..SUPERBLOCK_BYTES], 0, &forged[..forged.len() % 6]);
        sign(&mut area[..SUPERBLOCK_BYTES], 12);
        if let Ok(superblock) = LogSuperblock::decode(&area) {
            let again = LogSuperblock::decode(superblock.encode().as_bytes()).expect("it was good");
            assert_eq!(again, superblock);
        }
    });
}
