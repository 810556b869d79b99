//! Sends what has broken other servers, a test a story, and random bytes.
//!
//! Two rows of that history are not about the session: the limits on idle handshakes and on clients that do not read are the driver's,
//! which knows `is_established` and what it could not send.

use dcd_serve::nbd::{CONNECTION_BYTES_MAX, OPTION_BYTES_MAX, OPTIONS_MAX, PAYLOAD_BYTES_MAX, ReplyForm};
use proptest::prelude::*;

use super::*;

fn negotiating() -> Peer {
    let mut peer = Peer::single();
    peer.give(&3u32.to_be_bytes());
    peer
}

/// CVE-2022-26495 and 26496: a name length of 4 GiB, inside an option that is short.
#[test]
fn a_name_longer_than_its_option() {
    for length in [u32::MAX, u32::MAX - 1, 0x8000_0000, 5, 1 << 20] {
        for number in [p::OPT_GO, p::OPT_INFO] {
            let mut peer = negotiating();
            let data = [&length.to_be_bytes()[..], b"disk\0\0"].concat();
            peer.give(&option(number, &data));
            assert_eq!(kinds(&peer.take()), [p::REP_ERR_INVALID], "length {length}");
            peer.give(&option(p::OPT_GO, &info_data(b"disk", &[])));
            assert!(peer.session.condition().is_established);
        }
    }
}

/// Options that end inside one of their fields, and counts that do not fit.
#[test]
fn a_go_that_is_too_short_or_too_long() {
    let whole = info_data(b"disk", &[p::INFO_NAME, p::INFO_BLOCK_SIZE]);
    for cut in 0..whole.len() {
        let mut peer = negotiating();
        peer.give(&option(p::OPT_GO, &whole[..cut]));
        assert_eq!(kinds(&peer.take()), [p::REP_ERR_INVALID], "cut at {cut}");
    }
    let mut peer = negotiating();
    peer.give(&option(p::OPT_GO, &[&whole[..], b"x"].concat()));
    assert_eq!(kinds(&peer.take()), [p::REP_ERR_INVALID]);
}

/// CVE-2013-7441 and 2011-1925: closing in negotiation, or an unknown name, ended the whole server. Here a session can
/// be dropped after any byte; the others do not know.
#[test]
fn a_client_may_leave_after_any_byte() {
    let mut stream = 3u32.to_be_bytes().to_vec();
    stream.extend(option(p::OPT_GO, &info_data(b"disk", &[])));
    stream.extend(request(0, p::CMD_WRITE, 1, 0, 512));
    stream.extend([1; 512]);
    for cut in 0..stream.len() {
        let mut peer = Peer::single();
        peer.give(&stream[..cut]);
        drop(peer);
    }
}

/// CVE-2005-3534 and 2011-0530: a request longer than the server's buffer.
#[test]
fn a_payload_longer_than_was_advertised_ends_the_connection() {
    for length in [PAYLOAD_BYTES_MAX + 1, PAYLOAD_BYTES_MAX + 512, u32::MAX] {
        let mut peer = Peer::transmitting(Geometry { sectors: 1 << 40, ..geometry() }, false);
        peer.give(&request(0, p::CMD_WRITE, 1, 0, length));
        assert!(peer.closed && peer.requests.is_empty() && peer.take().is_empty());
        peer.give(&vec![1; 4096]);
    }
}

/// CVE-2017-15118 and 2020-10761: a name that is as long as a string may be, and one that is longer.
#[test]
fn long_export_names() {
    for (length, expected) in
        [(4096, p::REP_ERR_UNKNOWN), (4097, p::REP_ERR_TOO_BIG), (5000, p::REP_ERR_TOO_BIG)]
    {
        let mut peer = negotiating();
        peer.give(&option(p::OPT_GO, &info_data(&vec![b'a'; length], &[])));
        assert_eq!(kinds(&peer.take()), [expected], "{length} bytes");
        peer.give(&option(p::OPT_EXPORT_NAME, &vec![b'a'; length]));
        assert!(peer.closed);
    }
    // A name of the greatest length works.
    let name = "a".repeat(4096);
    let mut peer = Peer::connect(NbdExports::single(&name, geometry(), false));
    peer.give(&3u32.to_be_bytes());
    peer.give(&option(p::OPT_LIST, &[]));
    assert_eq!(kinds(&peer.take()), [p::REP_SERVER, p::REP_ACK]);
    peer.give(&option(p::OPT_GO, &info_data(name.as_bytes(), &[p::INFO_NAME])));
    assert!(peer.session.condition().is_established);
}

/// CVE-2017-15119: an option of 4 GiB kept the server reading it.
#[test]
fn a_long_option_ends_the_connection_before_its_data() {
    for length in [OPTION_BYTES_MAX + 1, 1 << 31, u32::MAX] {
        for number in [p::OPT_GO, p::OPT_EXPORT_NAME, p::OPT_LIST, 12345] {
            let mut peer = negotiating();
            let mut header = option(number, &[]);
            header[12..16].copy_from_slice(&length.to_be_bytes());
            peer.give(&header);
            assert!(peer.closed, "option {number} of {length} bytes");
        }
    }
    let mut peer = negotiating();
    peer.give(&option(12345, &vec![0; OPTION_BYTES_MAX as usize]));
    assert_eq!(kinds(&peer.take()), [p::REP_ERR_UNSUP], "the longest that is read");
}

/// CVE-2017-7539 and 9524: data where none belongs, or another protocol altogether.
#[test]
fn bytes_that_are_no_option_end_the_connection() {
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"NBDMAGICIHAVEOPT", &[0; 16], &[0xff; 64]] {
        let mut peer = negotiating();
        peer.give(bytes);
        assert!(peer.closed && !peer.session.condition().is_established);
    }
    let mut peer = Peer::transmitting(geometry(), false);
    peer.give(&[0xff; 28]);
    assert!(peer.closed && peer.requests.is_empty());
}

/// CVE-2024-7409 is about handshakes that never end; the session says that it is in one, and bounds their number of
/// options.
#[test]
fn endless_negotiation_is_ended() {
    let mut peer = negotiating();
    for _ in 0..OPTIONS_MAX {
        assert!(!peer.closed && !peer.session.condition().is_established);
        peer.give(&option(p::OPT_LIST, &[]));
    }
    peer.give(&option(p::OPT_LIST, &[]));
    assert!(peer.closed);
}

/// CVE-2019-14850 and 14851: the device was touched before the client had chosen it, and commands that came too early
/// met an assertion.
#[test]
fn the_device_is_not_touched_before_the_handshake_is_over() {
    let mut peer = negotiating();
    peer.give(&option(p::OPT_INFO, &info_data(b"disk", &[])));
    peer.give(&request(0, p::CMD_READ, 1, 0, 512));
    assert!(peer.closed && peer.requests.is_empty() && peer.log.is_empty());
}

/// CVE-2021-3716: what was said before STARTTLS counted after it. There is no TLS, so STARTTLS changes nothing, and
/// options that follow in the same packet are answered in the clear, in order.
#[test]
fn starttls_changes_nothing() {
    let mut peer = negotiating();
    peer.give(&[option(p::OPT_STARTTLS, &[]), option(p::OPT_LIST, &[])].concat());
    assert_eq!(kinds(&peer.take()), [p::REP_ERR_UNSUP, p::REP_SERVER, p::REP_ACK]);
}

/// CVE-2025-47711 and 47712: the length of a block status, off by one and overflowing.
#[test]
fn block_statuses_of_nothing_past_the_end_or_without_a_context_are_invalid() {
    let mut peer = Peer::transmitting(geometry(), false);
    for length in [0, 1, 512, u32::MAX - 511, u32::MAX] {
        for offset in [0, u64::MAX, DISK_BYTES as u64] {
            assert_eq!(peer.ask(1 << 3, 7, offset, length, &[]).0, 22);
        }
    }
    for form in [ReplyForm::Structured, ReplyForm::Extended] {
        let mut peer = chunks::transmitting(form, NbdExports::single("disk", geometry(), false), true);
        let end = DISK_BYTES as u64;
        for (offset, length) in [
            (0, 0),
            (0, 1),
            (0, end + 512),
            (end, 512),
            (u64::MAX - 511, 512),
            (512, u64::MAX - 511),
            (0, u64::MAX),
        ] {
            if form == ReplyForm::Extended || length <= u64::from(u32::MAX) {
                let reply = peer.ask_chunk(form, 0, p::CMD_BLOCK_STATUS, offset, length);
                assert_eq!(reply.error(), Some(22), "{offset}+{length}");
            }
        }
        assert!(peer.maps.is_empty());
    }
}

/// A payload where none belongs is skipped, so that the stream stays in step; one that is too long ends the connection.
#[test]
fn a_payload_of_another_command_is_skipped() {
    let form = ReplyForm::Extended;
    for command in [p::CMD_READ, p::CMD_FLUSH, p::CMD_BLOCK_STATUS, p::CMD_TRIM, p::CMD_DISC, 99] {
        let mut peer = chunks::transmitting(form, NbdExports::single("disk", geometry(), false), true);
        peer.give(&chunks::extended(p::CMD_FLAG_PAYLOAD_LEN, command, 1, 0, 5000));
        assert!(peer.take().is_empty(), "its payload comes first");
        peer.give(&[0xff; 5000]);
        assert_eq!(chunks::parse(form, &peer.take())[0].error(), Some(22), "{command}");
        assert_eq!(peer.ask_chunk(form, 0, p::CMD_READ, 0, 512).error(), None);
    }
    for (command, length) in [(p::CMD_FLUSH, u64::MAX), (p::CMD_WRITE, 1 << 40), (99, (32 << 20) + 1)] {
        let mut peer = chunks::transmitting(form, NbdExports::single("disk", geometry(), false), true);
        peer.give(&chunks::extended(p::CMD_FLAG_PAYLOAD_LEN, command, 1, 0, length));
        assert!(peer.closed && peer.take().is_empty());
    }
}

/// Options about contexts that end inside one of their fields, and lengths and counts that do not fit.
#[test]
fn context_queries_that_do_not_add_up() {
    let whole = chunks::queries(b"disk", &[b"base:allocation", b"qemu:x"]);
    for number in [p::OPT_LIST_META_CONTEXT, p::OPT_SET_META_CONTEXT] {
        for cut in 0..whole.len() {
            let mut peer = negotiating();
            peer.give(&option(p::OPT_STRUCTURED_REPLY, &[]));
            peer.take();
            peer.give(&option(number, &whole[..cut]));
            assert_eq!(kinds(&peer.take()), [p::REP_ERR_INVALID], "cut at {cut}");
        }
        for (at, value) in [(0, u32::MAX), (0, 5), (8, u32::MAX), (8, 3), (8, 1), (12, u32::MAX), (12, 16)] {
            let mut data = whole.clone();
            data[at..at + 4].copy_from_slice(&value.to_be_bytes());
            let mut peer = negotiating();
            peer.give(&option(p::OPT_STRUCTURED_REPLY, &[]));
            peer.take();
            peer.give(&option(number, &data));
            assert_eq!(kinds(&peer.take()), [p::REP_ERR_INVALID], "{value} at {at}");
        }
    }
}

/// Status replies that a client does not take count as its memory, as data does.
#[test]
fn a_client_that_asks_for_statuses_and_does_not_read_is_not_served_without_end() {
    let form = ReplyForm::Extended;
    let mut peer = chunks::transmitting(form, NbdExports::single("disk", geometry(), false), true);
    for sector in (0..DISK_BYTES).step_by(1024) {
        peer.disk[sector] = 1;
    }
    peer.reads_replies = false;
    let asks: Vec<u8> = (0..20_000)
        .flat_map(|cookie| chunks::extended(0, p::CMD_BLOCK_STATUS, cookie, 0, DISK_BYTES as u64))
        .collect();
    peer.give(&asks);
    peer.finish();
    assert!(peer.session.condition().is_saturated);
    assert!(peer.take().len() <= CONNECTION_BYTES_MAX);
    peer.reads_replies = true;
    peer.read_replies();
    peer.finish();
    assert!(!peer.session.condition().is_saturated);
}

/// CVE-2022-0485 is a client's: it took failed reads for data. The replies to failed reads carry none to take.
#[test]
fn a_failed_read_carries_no_data() {
    let mut peer = Peer::transmitting(geometry(), false);
    let (error, data) = peer.ask(0, p::CMD_READ, 1, 512, &[]);
    assert!(error != 0 && data.is_empty());
}

/// Bytes that are often the beginning of something.
fn token() -> impl Strategy<Value = Vec<u8>> {
    let edge =
        prop_oneof![Just(0u64), Just(512), Just(4096), Just(1 << 20), Just(u64::MAX - 511), any::<u64>()];
    let length = prop_oneof![Just(0u32), Just(512), Just(8192), 0..70_000u32, any::<u32>()];
    prop_oneof![
        2 => Just(3u32.to_be_bytes().to_vec()),
        3 => (0..13u32, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(number, data)| option(number, &data)),
        2 => Just([option(8, &[]), option(10, &chunks::queries(b"disk", &[b"base:allocation"]))].concat()),
        1 => Just(option(11, &[])),
        2 => prop_oneof![Just(p::OPT_GO), Just(p::OPT_INFO)].prop_map(|o| option(o, &info_data(b"disk", &[1, 3]))),
        4 => (0..64u16, 0..9u16, edge.clone(), edge.clone())
            .prop_map(|(flags, command, offset, length)| chunks::extended(flags, command, 7, offset, length)),
        6 => (0..32u16, 0..9u16, any::<u64>(), edge, length)
            .prop_map(|(flags, command, cookie, offset, length)| request(flags, command, cookie, offset, length)),
        2 => prop::collection::vec(any::<u8>(), 0..2000),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// No panic, bounded memory, and requests that the device can take, whatever the bytes and however they arrive.
    #[test]
    fn random_streams_do_no_harm(
        established in prop::option::of(prop_oneof![Just(ReplyForm::Simple), Just(ReplyForm::Structured), Just(ReplyForm::Extended)]),
        tokens in prop::collection::vec(token(), 0..40),
        chunk in 1..3000usize,
        answer_every in 1..4usize,
    ) {
        let mut peer = match established {
            Some(form) => chunks::transmitting(form, NbdExports::single("disk", geometry(), false), true),
            None => Peer::single(),
        };
        let stream = tokens.concat();
        let (mut answered, mut in_flight_max) = (0, 0);
        for (turn, bytes) in stream.chunks(chunk).enumerate() {
            if peer.session.condition().is_saturated {
                peer.finish();
            }
            peer.give(bytes);
            in_flight_max = in_flight_max.max(peer.requests.len());
            if turn % answer_every == 0 {
                // `finish` panics on a range outside the device.
                peer.finish();
            }
        }
        peer.finish();
        answered += peer.log.len();
        prop_assert!(in_flight_max <= dcd_serve::nbd::FLIGHT_REQUESTS_MAX);
        // A request becomes one command, and a flush after it where a trim says FUA.
        prop_assert!(answered <= 2 * (stream.len() / 28));
        prop_assert!(peer.requests.is_empty() && peer.maps.is_empty());
    }
}
