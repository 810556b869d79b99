//! Options, one by one.

use dcd_serve::nbd::ReplyForm;

use super::*;

fn negotiating() -> Peer {
    let mut peer = Peer::single();
    peer.give(&3u32.to_be_bytes());
    peer
}

#[test]
fn go_tells_size_flags_and_block_sizes() {
    let mut peer = negotiating();
    peer.give(&option(p::OPT_GO, &info_data(b"disk", &[p::INFO_NAME, p::INFO_DESCRIPTION, 77])));
    let replies = option_replies(&peer.take());
    let infos: Vec<&[u8]> = replies
        .iter()
        .filter(|(_, kind, _)| *kind == p::REP_INFO)
        .map(|(.., data)| data.as_slice())
        .collect();
    let flags = p::TFLAG_HAS_FLAGS
        | p::TFLAG_SEND_FLUSH
        | p::TFLAG_SEND_FUA
        | p::TFLAG_SEND_TRIM
        | p::TFLAG_SEND_WRITE_ZEROES
        | p::TFLAG_CAN_MULTI_CONN
        | p::TFLAG_SEND_CACHE
        | p::TFLAG_SEND_FAST_ZERO;
    let export = [&[0, 0][..], &(DISK_BYTES as u64).to_be_bytes(), &flags.to_be_bytes()].concat();
    let blocks =
        [&[0, 3][..], &512u32.to_be_bytes(), &4096u32.to_be_bytes(), &(32u32 << 20).to_be_bytes()].concat();
    assert_eq!(infos, [&export[..], &blocks[..], b"\0\x01disk"]);
    assert_eq!(replies.last().unwrap(), &(p::OPT_GO, p::REP_ACK, vec![]));
    assert!(peer.session.condition().is_established);
}

#[test]
fn info_tells_the_same_and_stays() {
    let mut peer = negotiating();
    peer.give(&option(p::OPT_INFO, &info_data(b"", &[p::INFO_NAME])));
    let replies = option_replies(&peer.take());
    assert!(
        replies.contains(&(p::OPT_INFO, p::REP_INFO, b"\0\x01disk".to_vec())),
        "the default export has a name"
    );
    assert_eq!(replies.last().unwrap().1, p::REP_ACK);
    assert!(!peer.session.condition().is_established);
    peer.give(&option(p::OPT_GO, &info_data(b"", &[])));
    assert!(peer.session.condition().is_established);
}

#[test]
fn flags_offer_only_what_is_done() {
    let flags = |geometry, read_only| {
        let exports = NbdExports::single("", geometry, read_only);
        exports.find("").unwrap().flags(ReplyForm::Simple)
    };
    let plain = flags(Geometry::plain(8), false);
    assert_eq!(plain & p::TFLAG_SEND_TRIM, 0, "no discards, no trim");
    assert_ne!(plain & p::TFLAG_SEND_WRITE_ZEROES, 0);
    assert_eq!(plain & (p::TFLAG_READ_ONLY | p::TFLAG_ROTATIONAL), 0);
    let read_only = flags(geometry(), true);
    assert_ne!(read_only & p::TFLAG_READ_ONLY, 0);
    assert_eq!(read_only & (p::TFLAG_SEND_TRIM | p::TFLAG_SEND_WRITE_ZEROES | p::TFLAG_SEND_FAST_ZERO), 0);
    assert_ne!(flags(Geometry { read_only: true, ..geometry() }, false) & p::TFLAG_READ_ONLY, 0);
    assert_ne!(flags(Geometry { rotational: true, ..geometry() }, false) & p::TFLAG_ROTATIONAL, 0);
}

/// Without a flag and without the item, a client has to assume that nothing is durable.
#[test]
fn what_is_durable_when_answered_is_told_to_those_who_ask_and_offers_no_flush() {
    for volatile_cache in [true, false] {
        let exports = NbdExports::single("disk", Geometry { volatile_cache, ..geometry() }, false);
        let flags = exports.find("").unwrap().flags(ReplyForm::Simple);
        assert_eq!(flags & p::TFLAG_SEND_FLUSH != 0, volatile_cache);
        assert_ne!(flags & p::TFLAG_SEND_FUA, 0);
        for asks in [true, false] {
            let mut peer = Peer::connect(exports.clone());
            peer.give(&3u32.to_be_bytes());
            let kinds = if asks { vec![p::INFO_DURABLE] } else { vec![] };
            peer.give(&option(p::OPT_GO, &info_data(b"disk", &kinds)));
            let replies = option_replies(&peer.take());
            let told = replies.contains(&(p::OPT_GO, p::REP_INFO, p::INFO_DURABLE.to_be_bytes().to_vec()));
            assert_eq!(told, asks && !volatile_cache);
        }
    }
}

#[test]
fn the_size_is_a_multiple_of_the_block() {
    let odd = Geometry { logical_block_bytes: 4096, ..Geometry::plain(8 * 3 + 5) };
    let exports = NbdExports::single("", odd, false);
    assert_eq!(exports.find("").unwrap().bytes(), 3 * 4096);
    assert_eq!(exports.find("").unwrap().block_bytes_min(), 4096);
}

#[test]
fn export_name_starts_without_an_option_reply() {
    for (flags, padding) in [(3u32, 0), (1, 124), (0, 124)] {
        let mut peer = Peer::single();
        peer.give(&flags.to_be_bytes());
        peer.give(&option(p::OPT_EXPORT_NAME, b"disk"));
        let reply = peer.take();
        assert_eq!(reply.len(), 10 + padding, "client flags {flags}");
        assert_eq!(p::u64_at(&reply, 0), DISK_BYTES as u64);
        assert!(reply[10..].iter().all(|byte| *byte == 0));
        assert!(peer.session.condition().is_established);
        assert_eq!(peer.ask(0, p::CMD_READ, 0, 512, &[]).1.len(), 512);
    }
}

#[test]
fn an_unknown_name_is_an_error_in_go_and_the_end_in_export_name() {
    for name in [&b"other"[..], b"disk\0", b"../disk", b"/etc/passwd"] {
        let mut peer = negotiating();
        peer.give(&option(p::OPT_GO, &info_data(name, &[])));
        assert_eq!(kinds(&peer.take()), [p::REP_ERR_UNKNOWN]);
        peer.give(&option(p::OPT_EXPORT_NAME, name));
        assert!(peer.closed && peer.take().is_empty() && !peer.session.condition().is_established);
    }
}

#[test]
fn list_names_every_export_and_takes_no_data() {
    let exports = NbdExports::single("a", geometry(), false);
    exports.add("b", geometry(), true, "to look at");
    let mut peer = Peer::connect(exports);
    peer.give(&3u32.to_be_bytes());
    peer.give(&option(p::OPT_LIST, &[]));
    let replies = option_replies(&peer.take());
    assert_eq!(
        replies,
        [
            (p::OPT_LIST, p::REP_SERVER, b"\0\0\0\x01a".to_vec()),
            (p::OPT_LIST, p::REP_SERVER, b"\0\0\0\x01bto look at".to_vec()),
            (p::OPT_LIST, p::REP_ACK, vec![])
        ]
    );
    peer.give(&option(p::OPT_LIST, b"x"));
    assert_eq!(kinds(&peer.take()), [p::REP_ERR_INVALID]);
    peer.give(&option(p::OPT_INFO, &info_data(b"b", &[p::INFO_DESCRIPTION])));
    assert!(option_replies(&peer.take()).iter().any(|(.., data)| data == b"\0\x02to look at"));
}

#[test]
fn abort_is_acknowledged_and_ends() {
    let mut peer = negotiating();
    peer.give(&option(p::OPT_ABORT, &[]));
    assert_eq!(kinds(&peer.take()), [p::REP_ACK]);
    assert!(peer.closed);
    peer.give(&option(p::OPT_LIST, &[]));
    assert!(peer.take().is_empty(), "nothing after the end");
}

#[test]
fn what_is_unknown_is_refused_in_step() {
    let mut peer = negotiating();
    // TLS, and numbers nobody uses.
    for (number, data) in [(5u32, 0), (0, 0), (4, 3), (12, 0), (12345, 64), (u32::MAX, 1)] {
        peer.give(&option(number, &vec![0xaa; data]));
        let replies = option_replies(&peer.take());
        assert_eq!((replies.len(), replies[0].0, replies[0].1), (1, number, p::REP_ERR_UNSUP));
    }
    peer.give(&option(p::OPT_STARTTLS, b"more"));
    assert_eq!(kinds(&peer.take()), [p::REP_ERR_INVALID]);
    peer.give(&option(p::OPT_GO, &info_data(b"disk", &[])));
    assert!(peer.session.condition().is_established, "still in step");
}

#[test]
fn clients_of_unknown_kinds_are_left() {
    for flags in [4u32, 0x8000_0000, u32::MAX] {
        let mut peer = Peer::single();
        peer.give(&flags.to_be_bytes());
        assert!(peer.closed, "client flags {flags:#x}");
    }
    // The old newstyle has no option replies: only EXPORT_NAME makes sense.
    let mut peer = Peer::single();
    peer.give(&0u32.to_be_bytes());
    peer.give(&option(p::OPT_LIST, &[]));
    assert!(peer.closed && peer.take().is_empty());
}

#[test]
fn bytes_one_at_a_time_lead_to_the_same() {
    let mut stream = 3u32.to_be_bytes().to_vec();
    stream.extend(option(12345, b"data"));
    stream.extend(option(p::OPT_LIST, &[]));
    stream.extend(option(p::OPT_GO, &info_data(b"disk", &[])));
    stream.extend(request(0, p::CMD_WRITE, 1, 512, 1024));
    stream.extend([7; 1024]);
    stream.extend(request(0, p::CMD_WRITE, 2, 1, 512));
    stream.extend([9; 512]);
    stream.extend(request(0, p::CMD_READ, 3, 0, 2048));
    stream.extend(request(0, p::CMD_FLUSH, 4, 0, 0));
    let outcome = |chunk: usize| {
        let mut peer = Peer::single();
        for bytes in stream.chunks(chunk) {
            peer.give(bytes);
            peer.finish();
        }
        (peer.sent, peer.log, peer.closed)
    };
    let whole = outcome(stream.len());
    assert_eq!(whole.1, ["write 1+2", "read 0+4", "flush"]);
    // A refused request is answered at once, so that in a single delivery its reply overtakes those of the device.
    let bytewise = outcome(1);
    assert_eq!((bytewise.0.len(), &bytewise.1, bytewise.2), (whole.0.len(), &whole.1, whole.2));
    for chunk in [2, 3, 5, 27, 28, 29, 100] {
        assert_eq!(outcome(chunk).0.len(), whole.0.len(), "chunks of {chunk}");
        assert_eq!(outcome(chunk).1, whole.1, "chunks of {chunk}");
    }
}
