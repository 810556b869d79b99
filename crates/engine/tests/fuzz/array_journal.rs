//! A record with forged fields in the journal of an array that was cut off, with a checksum that fits: it is replayed, or refused.

use dcd_engine::BlockDevice;
use dcd_engine::raid::ArraySuperblock;

use crate::array;
use crate::forged::{Forged, forge, sign};

/// The header of a record of three columns.
const HEADER_BYTES: usize = 4096;

#[test]
fn a_forged_journal_of_an_array_is_replayed_or_refused() {
    bolero::check!().with_type().for_each(|forged: &Vec<Forged>| {
        let mut members = array::made();
        for member in &mut members.0[..3] {
            let (superblock, identity) = ArraySuperblock::read(member).expect("it has one");
            let active =
                ArraySuperblock { active: true, journaled: true, epoch: 1, generation: 2, ..superblock };
            let _ = member.run(active.write(identity));
        }
        let (superblock, _) = ArraySuperblock::read(&mut members.0[0]).expect("it has one");
        let header = &mut members.0[3].0[..HEADER_BYTES];
        header[..8].copy_from_slice(b"DCDRJRNL");
        header[16..32].copy_from_slice(&superblock.uuid);
        header[32] = 1;
        forge(&mut header[..128], 12, &forged[..forged.len() % 12]);
        sign(header, 8);
        array::start(members);
    });
}
