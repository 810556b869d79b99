//! Any bytes, cut anywhere, from the first one of a connection on: no panic, bounded memory, no request outside the
//! device, nothing after the end.

use std::sync::Arc;

use dcd_engine::{Discards, Geometry, IoResult, SectorState};
use dcd_io::{Actions, FrontEnd, MappedRun};
use dcd_serve::nbd::{FLIGHT_REQUESTS_MAX, NbdExports, NbdSession};

const SECTORS: u64 = 128;

#[test]
fn a_client_that_sends_anything_stays_within_its_disk() {
    bolero::check!().for_each(|data: &[u8]| {
        let Some((&shape, stream)) = data.split_first() else { return };
        let geometry = Geometry {
            discards: if shape & 1 != 0 { Discards::Advisory } else { Discards::No },
            ..Geometry::plain(SECTORS)
        };
        let mut session = NbdSession::new(Arc::new(NbdExports::single("d", geometry, shape & 2 != 0)));
        let mut actions = Actions::default();
        session.start(&mut actions);
        if shape & 4 != 0 {
            // Straight to the transmission phase, which random bytes seldom reach.
            session.receive(b"\0\0\0\x03", &mut actions);
            if shape & 8 != 0 {
                session.receive(b"IHAVEOPT\0\0\0\x0b\0\0\0\0", &mut actions);
                let queries = b"IHAVEOPT\0\0\0\x0a\0\0\0\x1c\0\0\0\x01d\0\0\0\x01\0\0\0\x0fbase:allocation";
                session.receive(queries, &mut actions);
            }
            session.receive(b"IHAVEOPT\0\0\0\x01\0\0\0\x01d", &mut actions);
            assert!(session.condition().is_established);
        }
        for chunk in stream.chunks(usize::from(shape >> 3) * 7 + 1) {
            finish(&mut session, &mut actions);
            session.receive(chunk, &mut actions);
            assert!(actions.requests.len() <= FLIGHT_REQUESTS_MAX);
        }
        finish(&mut session, &mut actions);
    });
}

/// Answers everything, the newest first, and hands every buffer back.
fn finish(session: &mut NbdSession, actions: &mut Actions) {
    loop {
        for piece in std::mem::take(&mut actions.send) {
            if let dcd_io::OutputPiece::Buf(buf) = piece {
                session.sent(buf, actions);
            }
        }
        if let Some(map) = actions.maps.pop() {
            assert!(map.extent.sectors > 0 && map.extent.end().0 <= SECTORS, "outside the device: {map:?}");
            let all = MappedRun { sectors: map.extent.sectors, state: SectorState::Data };
            session.mapped(map.token, &[all], actions);
            continue;
        }
        let Some((token, io)) = actions.requests.pop() else { return };
        if let Some(extent) = io.extent() {
            assert!(extent.sectors > 0 && extent.end().0 <= SECTORS, "outside the device: {io:?}");
        }
        session.reply(token, IoResult::ok(io.take_buf()), actions);
    }
}
