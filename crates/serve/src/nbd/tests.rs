//! The protocol, byte by byte, against an engine in memory.

use super::*;
use dcd_engine::Geometry;
use dcd_io::{Actions, Piece, SessionFactory};

#[test]
fn greets_and_goes() {
    let mut session = NbdFactory::new(NbdExports::single("disk", Geometry::plain(2048), false)).connect();
    let mut actions = Actions::default();
    session.start(&mut actions);
    session.receive(&3u32.to_be_bytes(), &mut actions);
    assert!(!session.is_established());
    let mut go = b"IHAVEOPT".to_vec();
    go.extend_from_slice(&[0, 0, 0, 7, 0, 0, 0, 10, 0, 0, 0, 4]);
    go.extend_from_slice(b"disk\0\0");
    session.receive(&go, &mut actions);
    assert!(session.is_established() && !actions.close);
    assert!(matches!(&actions.send[0], Piece::Bytes(bytes) if bytes.starts_with(b"NBDMAGICIHAVEOPT")));
}
