//! A record header with forged fields and a checksum that fits: it is refused, or lies within its segment and the data disk, and is the
//! same after it was written and read again.

use dcd_engine::log_cache::format::{FIRST_SEGMENT_SECTOR, decode_header, encode_header};

use crate::forged::{Forged, forge, sign};
use crate::shape;

#[test]
fn a_forged_record_lies_within_its_segment_or_is_refused() {
    bolero::check!().with_type().for_each(|forged: &Vec<Forged>| {
        let superblock = shape::superblock();
        let mut block = vec![0; 512];
        encode_header(&mut block, superblock.cache_uuid, &shape::header(5, FIRST_SEGMENT_SECTOR));
        forge(&mut block, 0, &forged[..forged.len() % 6]);
        sign(&mut block, 8);
        let Some(header) = decode_header(&block, &superblock, FIRST_SEGMENT_SECTOR) else { return };
        shape::holds_together(&header, &superblock, superblock.segment_start(1));
        let mut again = vec![0; 512];
        encode_header(&mut again, superblock.cache_uuid, &header);
        assert_eq!(decode_header(&again, &superblock, FIRST_SEGMENT_SECTOR), Some(header));
    });
}
