//! A summary with forged fields and checksums that fit: it is refused, or its headers lie within their segment and the data disk.

use dcd_engine::log_cache::summary::{Gathered, SUMMARY_FIXED_BYTES, Summary};

use crate::forged::{Forged, forge, sign};
use crate::shape;

#[test]
fn a_forged_summary_lies_within_its_segment_or_is_refused() {
    bolero::check!().with_type().for_each(|(of_fixed, of_body): &(Vec<Forged>, Vec<Forged>)| {
        let superblock = shape::superblock();
        let (segment, sector) = (0, superblock.segment_start(1));
        let mut gathered = Gathered::default();
        for record in 0..3 {
            let offset = record * 4;
            gathered.note(1, offset, &shape::header(5 + record, superblock.segment_start(0) + offset));
        }
        let mut bytes = gathered.encode(1, &superblock, sector, 5, 1);
        let (fixed, body) = bytes.split_at_mut(SUMMARY_FIXED_BYTES);
        forge(fixed, 0, &of_fixed[..of_fixed.len() % 3]);
        forge(body, 0, &of_body[..of_body.len() % 6]);
        let body_bytes = u32::from_le_bytes(fixed[16..20].try_into().expect("four bytes")) as usize;
        if let Some(body) = body.get(..body_bytes) {
            fixed[12..16].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
        }
        sign(fixed, 8);
        let Some(summary) = Summary::decode(&bytes, &superblock, segment, sector) else { return };
        for header in summary.headers(&bytes, &superblock).into_iter().flatten() {
            shape::holds_together(&header, &superblock, superblock.segment_start(1));
        }
    });
}
