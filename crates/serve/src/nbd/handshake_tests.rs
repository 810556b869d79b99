//! The client's handshake beside the server's.

use std::io::{self, Read, Write};
use std::sync::Arc;

use dcd_engine::Geometry;
use dcd_io::{Actions, FrontEnd, OutputPiece};
use dcd_nbd::handshake::handshake;

use crate::Outlives;
use crate::nbd::{NbdExports, NbdSession, ReplyForm, protocol as p};

/// A connection to a session, without a socket.
struct Wire {
    session: NbdSession,
    sent: std::collections::VecDeque<u8>,
}

impl Wire {
    fn to(exports: NbdExports) -> Wire {
        let mut wire = Wire { session: NbdSession::new(Arc::new(exports)), sent: Default::default() };
        let mut actions = Actions::default();
        wire.session.start(&mut actions);
        wire.keep(actions);
        wire
    }

    fn keep(&mut self, actions: Actions) {
        for piece in actions.send {
            let OutputPiece::Bytes(bytes) = piece else { panic!("a handshake has no buffers") };
            self.sent.extend(bytes);
        }
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.sent.read(into)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut actions = Actions::default();
        self.session.receive(bytes, &mut actions);
        self.keep(actions);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_handshake_ends_in_the_transmission_phase_with_what_the_kernel_has_to_know() {
    let geometry = Geometry { logical_block_bytes: 4096, ..Geometry::plain(2048) };
    let exports = NbdExports::single("disk", geometry, false);
    let flags = exports.find("disk").unwrap().flags(ReplyForm::Simple);
    for (outlives, goes_on) in [(Outlives::No, true), (Outlives::Answered, false), (Outlives::Answered, true)]
    {
        let mut wire = Wire::to(exports.clone().outliving(outlives));
        let offer = handshake(&mut wire, "disk", goes_on).unwrap();
        assert_eq!((offer.bytes, offer.flags, offer.block_bytes_min), (1 << 20, flags, 4096));
        assert_eq!(offer.payload_bytes_max, crate::nbd::PAYLOAD_BYTES_MAX);
        assert!(wire.session.condition().has_device && wire.sent.is_empty());
        assert_eq!(wire.session.condition().holds_requests, outlives != Outlives::No);
        assert_eq!(wire.session.condition().outlives_server, goes_on && outlives != Outlives::No);
    }
}

#[test]
fn the_server_s_refusal_is_passed_on() {
    let mut wire = Wire::to(NbdExports::single("disk", Geometry::plain(2048), false));
    let refused = handshake(&mut wire, "other", false).unwrap_err().to_string();
    assert!(refused.contains("no export has this name"), "{refused}");
    let mut other = io::Cursor::new([0; 64].to_vec());
    assert!(handshake(&mut other, "", false).unwrap_err().to_string().contains("no NBD server"));
}

#[test]
fn nothing_is_granted_or_listened_to_in_the_clear_where_tls_is_needed() {
    let option = |option: u32| {
        let mut bytes = p::OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend_from_slice(&option.to_be_bytes());
        bytes.extend_from_slice(&0u32.to_be_bytes());
        bytes
    };
    let begun = |more: &[u8]| {
        let exports = NbdExports::single("disk", Geometry::plain(2048), false);
        let mut session = NbdSession::over_tls(Arc::new(exports));
        let mut actions = Actions::default();
        let flags = p::FLAG_C_FIXED_NEWSTYLE.to_be_bytes();
        session.receive(&[&flags[..], &option(p::OPT_LIST), more].concat(), &mut actions);
        let Some(OutputPiece::Bytes(refused)) = actions.send.first() else { panic!("LIST is answered") };
        assert_eq!(p::u32_at(refused, 12), p::REP_ERR_TLS_REQUIRED);
        (session, actions)
    };
    let (mut session, actions) = begun(&option(p::OPT_STARTTLS));
    assert!(session.begin_tls() && !actions.close);
    let (mut session, actions) = begun(&[option(p::OPT_STARTTLS), option(p::OPT_LIST)].concat());
    assert!(!session.begin_tls() && actions.close, "somebody else may have put that there");
    let (mut session, actions) = begun(&option(p::OPT_EXPORT_NAME));
    assert!(!session.begin_tls() && actions.close && !session.condition().has_device);
}
