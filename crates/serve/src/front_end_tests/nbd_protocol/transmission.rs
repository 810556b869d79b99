//! Requests, one by one and many at once.

use dcd_engine::{ErrorKind, IoError};
use dcd_serve::Outlives;
use dcd_serve::nbd::{CONNECTION_BYTES_MAX, FLIGHT_REQUESTS_MAX, PAYLOAD_BYTES_MAX};

use super::*;

const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const ENOTSUP: u32 = 95;
const ESHUTDOWN: u32 = 108;

fn writable() -> Peer {
    Peer::transmitting(geometry(), false)
}

#[test]
fn reads_return_what_was_written() {
    let mut peer = writable();
    let data: Vec<u8> = (0..4096).map(|at| at as u8).collect();
    assert_eq!(peer.ask(0, p::CMD_WRITE, 8192, 4096, &data), (0, vec![]));
    assert_eq!(peer.ask(0, p::CMD_READ, 8192, 4096, &[]), (0, data));
    assert_eq!(peer.log, ["write 16+8", "read 16+8"]);
}

#[test]
fn each_command_becomes_its_request() {
    let mut peer = writable();
    let zero = p::CMD_WRITE_ZEROES;
    assert_eq!(peer.ask(p::CMD_FLAG_FUA, p::CMD_WRITE, 0, 512, &[1; 512]).0, 0);
    assert_eq!(peer.ask(0, p::CMD_FLUSH, 0, 0, &[]).0, 0);
    assert_eq!(peer.ask(0, p::CMD_TRIM, 0, 1024, &[]).0, 0);
    assert_eq!(peer.ask(0, zero, 0, 1024, &[]).0, 0);
    assert_eq!(peer.ask(p::CMD_FLAG_NO_HOLE | p::CMD_FLAG_FUA, zero, 0, 1024, &[]).0, 0);
    assert_eq!(peer.ask(p::CMD_FLAG_FAST_ZERO, zero, 0, 1024, &[]).0, 0);
    // FUA is allowed where it has no effect.
    assert_eq!(peer.ask(p::CMD_FLAG_FUA, p::CMD_READ, 0, 512, &[]).0, 0);
    assert_eq!(peer.ask(p::CMD_FLAG_FUA, p::CMD_FLUSH, 0, 0, &[]).0, 0);
    assert_eq!(
        peer.log,
        [
            "write 0+1 durable",
            "flush",
            "discard 0+2",
            "write-zeroes 0+2 unmap",
            "write-zeroes 0+2 durable",
            "write-zeroes 0+2 unmap",
            "read 0+1",
            "flush"
        ]
    );
}

#[test]
fn writes_of_clients_that_outlive_the_server_are_durable_where_the_stack_answers_from_memory() {
    for (outlives, waits, words) in [
        (Outlives::No, false, ["write 0+1", "write-zeroes 0+2 unmap"]),
        (Outlives::Answered, true, ["write 0+1", "write-zeroes 0+2 unmap"]),
        (Outlives::Durable, true, ["write 0+1 durable", "write-zeroes 0+2 durable unmap"]),
    ] {
        let mut peer =
            Peer::transmitting_to(NbdExports::single("disk", geometry(), false).outliving(outlives));
        assert_eq!(peer.session.condition().holds_requests, waits);
        assert_eq!(peer.ask(0, p::CMD_WRITE, 0, 512, &[1; 512]).0, 0);
        assert_eq!(peer.ask(0, p::CMD_WRITE_ZEROES, 0, 1024, &[]).0, 0);
        assert_eq!(peer.log, words);
    }
}

/// The data is read, and not sent.
#[test]
fn a_cache_request_reads() {
    let mut peer = writable();
    assert_eq!(peer.ask(0, p::CMD_CACHE, 4096, 8192, &[]), (0, vec![]));
    assert_eq!(peer.log, ["read 8+16"]);
    let huge = Geometry { sectors: 1 << 40, ..geometry() };
    let mut peer = Peer::transmitting(huge, false);
    assert_eq!(peer.ask(0, p::CMD_CACHE, 0, PAYLOAD_BYTES_MAX + 512, &[]).0, EINVAL);
    peer.give(&request(0, p::CMD_CACHE, 1, 0, 512));
    let (token, io) = peer.requests.remove(0);
    peer.reply(token, IoResult::err(io.take_buf(), IoError::new(ErrorKind::Medium)));
    assert_eq!(peer.take(), p::simple_reply(EIO, 1));
}

#[test]
fn a_durable_trim_is_flushed_before_its_reply() {
    let mut peer = writable();
    peer.give(&request(p::CMD_FLAG_FUA, p::CMD_TRIM, 7, 0, 1024));
    let (token, io) = peer.requests.remove(0);
    let result = peer.run(io);
    peer.reply(token, result);
    assert!(peer.take().is_empty(), "no reply before it is durable");
    peer.finish();
    assert_eq!(peer.take(), p::simple_reply(0, 7));
    assert_eq!(peer.log, ["discard 0+2", "flush"]);
    // A trim that failed is not followed by a flush.
    peer.give(&request(p::CMD_FLAG_FUA, p::CMD_TRIM, 8, 0, 1024));
    let (token, _) = peer.requests.remove(0);
    peer.reply(token, IoResult::err(no_buf(), IoError::new(ErrorKind::Medium)));
    assert_eq!(peer.take(), p::simple_reply(EIO, 8));
}

#[test]
fn past_the_end_and_wrapping() {
    let mut peer = writable();
    let end = DISK_BYTES as u64;
    for (offset, length) in [
        (end, 512),
        (end - 512, 1024),
        (u64::MAX - 511, 512),
        (u64::MAX, 1),
        (u64::MAX - 511, 1024),
        (1 << 63, 512),
    ] {
        for command in [p::CMD_READ, p::CMD_TRIM] {
            assert_eq!(peer.ask(0, command, offset, length, &[]).0, EINVAL, "{command} {offset}+{length}");
        }
        assert_eq!(peer.ask(0, p::CMD_WRITE_ZEROES, offset, length, &[]).0, ENOSPC, "{offset}+{length}");
        let payload = vec![1; length as usize];
        assert_eq!(peer.ask(0, p::CMD_WRITE, offset, length, &payload).0, ENOSPC, "{offset}+{length}");
    }
    assert!(peer.log.is_empty(), "no effect");
    assert_eq!(peer.ask(0, p::CMD_READ, end - 512, 512, &[]).0, 0, "and the connection goes on");
}

#[test]
fn unaligned_is_invalid() {
    for (block, offset, length) in
        [(512, 1, 512), (512, 0, 100), (512, 100, 412), (4096, 512, 4096), (4096, 0, 512)]
    {
        let mut peer = Peer::transmitting(Geometry { logical_block_bytes: block, ..geometry() }, false);
        for command in [p::CMD_READ, p::CMD_TRIM, p::CMD_WRITE_ZEROES] {
            assert_eq!(peer.ask(0, command, offset, length, &[]).0, EINVAL, "{block}: {offset}+{length}");
        }
        assert_eq!(peer.ask(0, p::CMD_WRITE, offset, length, &vec![1; length as usize]).0, EINVAL);
        assert_eq!(peer.ask(0, p::CMD_WRITE, 0, 4096, &[1; 4096]).0, 0);
        assert_eq!(peer.log, ["write 0+8"]);
    }
}

#[test]
fn read_only_refuses_every_change() {
    let mut peer = Peer::transmitting(geometry(), true);
    assert_eq!(peer.ask(0, p::CMD_WRITE, 0, 512, &[1; 512]).0, EPERM);
    assert_eq!(peer.ask(0, p::CMD_TRIM, 0, 512, &[]).0, EPERM);
    assert_eq!(peer.ask(0, p::CMD_WRITE_ZEROES, 0, 512, &[]).0, EPERM);
    assert_eq!(peer.ask(0, p::CMD_READ, 0, 512, &[]).0, 0);
    assert_eq!(peer.ask(0, p::CMD_FLUSH, 0, 0, &[]).0, 0);
    assert_eq!(peer.log, ["read 0+1", "flush"]);
}

#[test]
fn unknown_commands_and_flags_are_invalid() {
    let mut peer = writable();
    for command in [7, 8, 99, u16::MAX] {
        assert_eq!(peer.ask(0, command, 0, 512, &[]).0, EINVAL, "command {command}");
    }
    for (flags, command) in [
        (1 << 2, p::CMD_READ),
        (1 << 2, p::CMD_CACHE),
        (1 << 5, p::CMD_FLUSH),
        (1 << 15, p::CMD_READ),
        (p::CMD_FLAG_NO_HOLE, p::CMD_READ),
        (p::CMD_FLAG_NO_HOLE, p::CMD_TRIM),
        (p::CMD_FLAG_FAST_ZERO, p::CMD_TRIM),
        (1 << 3, p::CMD_WRITE_ZEROES),
    ] {
        assert_eq!(peer.ask(flags, command, 0, 512, &[]).0, EINVAL, "flags {flags} on {command}");
    }
    assert_eq!(peer.ask(p::CMD_FLAG_NO_HOLE, p::CMD_WRITE, 0, 512, &[1; 512]).0, EINVAL);
    assert_eq!(peer.ask(0, p::CMD_FLUSH, 512, 0, &[]).0, EINVAL);
    assert_eq!(peer.ask(0, p::CMD_FLUSH, 0, 512, &[]).0, EINVAL);
    assert!(peer.log.is_empty());
    // A trim that was not offered.
    let mut plain = Peer::transmitting(Geometry { discards: dcd_engine::Discards::No, ..geometry() }, false);
    assert_eq!(plain.ask(0, p::CMD_TRIM, 0, 512, &[]).0, EINVAL);
}

#[test]
fn fast_zeroes_are_fast_or_not_done() {
    let mut peer = Peer::transmitting(Geometry { fast_zeroes: false, ..geometry() }, false);
    assert_eq!(peer.ask(p::CMD_FLAG_FAST_ZERO, p::CMD_WRITE_ZEROES, 0, 512, &[]).0, ENOTSUP);
    assert!(peer.log.is_empty());
    assert_eq!(peer.ask(0, p::CMD_WRITE_ZEROES, 0, 512, &[]).0, 0);
}

#[test]
fn requests_of_length_zero_do_nothing() {
    let mut peer = writable();
    for command in [p::CMD_READ, p::CMD_WRITE, p::CMD_TRIM, p::CMD_WRITE_ZEROES] {
        assert_eq!(peer.ask(0, command, 512, 0, &[]), (0, vec![]), "command {command}");
    }
    assert_eq!(peer.ask(0, p::CMD_READ, DISK_BYTES as u64 + 512, 0, &[]).0, EINVAL);
    assert!(peer.log.is_empty());
}

#[test]
fn long_requests_without_a_payload_are_no_reason_to_leave() {
    let huge = Geometry { sectors: 1 << 40, ..geometry() };
    let mut peer = Peer::transmitting(huge, false);
    assert_eq!(peer.ask(0, p::CMD_READ, 0, PAYLOAD_BYTES_MAX + 512, &[]).0, EINVAL);
    for (cookie, command) in [(1, p::CMD_TRIM), (2, p::CMD_WRITE_ZEROES)] {
        peer.give(&request(0, command, cookie, 0, u32::MAX - 511));
        let (token, io) = peer.requests.remove(0);
        assert_eq!(io.extent().unwrap().sectors, u64::from(u32::MAX - 511) / 512);
        peer.reply(token, IoResult::ok(no_buf()));
        assert_eq!(peer.take(), p::simple_reply(0, cookie));
    }
    assert_eq!(peer.ask(0, p::CMD_READ, 0, 512, &[]).0, 0);
}

#[test]
fn errors_of_the_stack_in_the_words_of_the_protocol() {
    for (kind, for_read, for_write) in [
        (ErrorKind::Medium, EIO, EIO),
        (ErrorKind::Lost, EIO, EIO),
        (ErrorKind::PowerCut, EIO, EIO),
        (ErrorKind::NoSpace, ENOSPC, ENOSPC),
        (ErrorKind::OutOfRange, EINVAL, ENOSPC),
        (ErrorKind::Invalid, EINVAL, EINVAL),
        (ErrorKind::Unsupported, EINVAL, EINVAL),
        (ErrorKind::ReadOnly, EPERM, EPERM),
        (ErrorKind::Shutdown, ESHUTDOWN, ESHUTDOWN),
    ] {
        let mut peer = writable();
        peer.give(&request(0, p::CMD_READ, 1, 0, 512));
        peer.give(&[request(0, p::CMD_WRITE, 2, 0, 512), vec![1; 512]].concat());
        for (token, io) in std::mem::take(&mut peer.requests) {
            peer.reply(token, IoResult::err(io.take_buf(), IoError::new(kind)));
        }
        // No data follows the error of a read.
        assert_eq!(
            peer.take(),
            [p::simple_reply(for_read, 1), p::simple_reply(for_write, 2)].concat(),
            "{kind:?}"
        );
        assert!(!peer.closed);
    }
}

#[test]
fn a_read_without_its_bytes_is_an_error_and_not_a_shift_of_the_stream() {
    for buf in [Buf::blank(1024), Buf::zeroed(512), Buf::none()] {
        let mut peer = writable();
        peer.give(&request(0, p::CMD_READ, 1, 0, 1024));
        let (token, _) = peer.requests.remove(0);
        peer.reply(token, IoResult::ok(buf));
        assert_eq!(peer.take(), p::simple_reply(EIO, 1));
    }
}

#[test]
fn replies_go_out_in_the_order_of_completion() {
    let mut peer = writable();
    for cookie in 0..4u64 {
        peer.give(&request(0, p::CMD_READ, cookie, cookie * 512, 512));
        peer.disk[cookie as usize * 512] = cookie as u8 + 1;
    }
    for (token, io) in std::mem::take(&mut peer.requests).into_iter().rev() {
        let result = peer.run(io);
        peer.reply(token, result);
    }
    let sent = peer.take();
    let seen: Vec<(u64, u8)> = sent.chunks(16 + 512).map(|reply| (p::u64_at(reply, 8), reply[16])).collect();
    assert_eq!(seen, [(3, 4), (2, 3), (1, 2), (0, 1)]);
}

#[test]
fn disconnect_waits_for_what_is_in_flight() {
    let mut peer = writable();
    peer.give(
        &[request(0, p::CMD_WRITE, 1, 0, 512), vec![1; 512], request(0, p::CMD_DISC, 2, 0, 0)].concat(),
    );
    assert!(!peer.closed);
    peer.give(&request(0, p::CMD_READ, 3, 0, 512));
    assert_eq!(peer.requests.len(), 1, "nothing is taken after DISC");
    peer.finish();
    assert!(peer.closed, "closed after the last reply, and DISC has none");
    assert_eq!(peer.take(), p::simple_reply(0, 1));

    let mut idle = writable();
    idle.give(&request(0, p::CMD_DISC, 1, 0, 0));
    assert!(idle.closed && idle.take().is_empty());
}

#[test]
fn nobody_is_told_anything_after_a_broken_request() {
    let mut peer = writable();
    peer.give(&request(p::CMD_FLAG_FUA, p::CMD_TRIM, 1, 0, 512));
    peer.give(&request(0, p::CMD_READ, 2, 0, 512));
    peer.give(&[0xff; 28]);
    assert!(peer.closed);
    peer.finish();
    assert!(peer.take().is_empty());
    assert_eq!(peer.log, ["discard 0+1", "read 0+1"]);
}

#[test]
fn half_a_write_has_no_effect() {
    let mut peer = writable();
    peer.give(&request(0, p::CMD_WRITE, 1, 0, 4096));
    peer.give(&[1; 4095]);
    assert!(peer.requests.is_empty() && peer.take().is_empty());
}

#[test]
fn flight_is_bounded_by_requests() {
    let mut peer = writable();
    let burst: Vec<u8> = (0..2000u64).flat_map(|cookie| request(0, p::CMD_READ, cookie, 0, 512)).collect();
    peer.give(&burst);
    assert!(peer.session.condition().is_saturated);
    assert_eq!(peer.requests.len(), FLIGHT_REQUESTS_MAX);
    // The rest comes as the first are answered, without another byte from the client, and in order.
    peer.finish();
    assert!(!peer.session.condition().is_saturated);
    let sent = peer.take();
    let cookies: Vec<u64> = sent.chunks(16 + 512).map(|reply| p::u64_at(reply, 8)).collect();
    assert_eq!(cookies, (0..2000).collect::<Vec<u64>>());
}

#[test]
fn flight_is_bounded_by_bytes() {
    let big = Geometry { sectors: 1 << 30, ..geometry() };
    let mut peer = Peer::transmitting(big, false);
    let burst: Vec<u8> =
        (0..100u64).flat_map(|cookie| request(0, p::CMD_READ, cookie, 0, PAYLOAD_BYTES_MAX)).collect();
    peer.give(&burst);
    assert!(peer.session.condition().is_saturated);
    assert_eq!(peer.requests.len(), CONNECTION_BYTES_MAX / PAYLOAD_BYTES_MAX as usize);
    // In the middle of a payload the driver must go on reading, or it would never end.
    let mut peer = Peer::transmitting(big, false);
    let largest =
        [request(0, p::CMD_WRITE, 1, 0, PAYLOAD_BYTES_MAX), vec![1; PAYLOAD_BYTES_MAX as usize]].concat();
    peer.give(&largest);
    peer.give(&largest[..largest.len() - 1]);
    assert!(!peer.session.condition().is_saturated);
    peer.give(&largest[largest.len() - 1..]);
    peer.give(&largest[..4096]);
    assert!(peer.session.condition().is_saturated && peer.requests.len() == 2);
}

#[test]
fn a_client_that_does_not_read_is_not_served_without_end() {
    let big = Geometry { sectors: 1 << 30, ..geometry() };
    let mut peer = Peer::transmitting(big, false);
    peer.disk = Vec::new();
    peer.reads_replies = false;
    let length = 128 << 10;
    let burst: Vec<u8> = (0..1000u64).flat_map(|cookie| request(0, p::CMD_READ, cookie, 0, length)).collect();
    peer.give(&burst);
    let mut finished = 0;
    while !peer.requests.is_empty() {
        let (token, io) = peer.requests.remove(0);
        peer.reply(token, IoResult::ok(io.take_buf()));
        finished += 1;
    }
    assert_eq!(finished, CONNECTION_BYTES_MAX / length as usize, "no more than the limit is held");
    assert!(peer.session.condition().is_saturated);
    // It reads, and is served again.
    peer.reads_replies = true;
    peer.read_replies();
    while !peer.requests.is_empty() {
        let (token, io) = peer.requests.remove(0);
        peer.reply(token, IoResult::ok(io.take_buf()));
        finished += 1;
    }
    assert!(finished == 1000 && !peer.session.condition().is_saturated);
}

#[test]
fn buffers_of_finished_writes_are_used_again_without_mixing_data() {
    let mut peer = writable();
    for round in 0..300u64 {
        let bytes = [512u32, 4096, 1024][round as usize % 3];
        let value = round as u8;
        let offset = round % 7 * 8192;
        assert_eq!(peer.ask(0, p::CMD_WRITE, offset, bytes, &vec![value; bytes as usize]).0, 0);
        let (error, data) = peer.ask(0, p::CMD_READ, offset, bytes, &[]);
        assert!(error == 0 && data == vec![value; bytes as usize], "round {round}");
    }
}

/// All connections of a server share its memory: what some hold, others wait for, in their order, and small requests go on.
#[test]
fn a_request_that_finds_no_memory_waits_until_others_give_some_back() {
    let exports = NbdExports::single("disk", Geometry { sectors: 1 << 30, ..geometry() }, false);
    let large = |cookie| request(0, p::CMD_READ, cookie, 0, PAYLOAD_BYTES_MAX);
    let mut greedy: Vec<Peer> = (0..4).map(|_| Peer::transmitting_to(exports.clone())).collect();
    for peer in &mut greedy {
        peer.reads_replies = false;
        peer.give(&[large(1), large(2)].concat());
        assert!(peer.requests.len() == 2 && peer.session.condition().has_wanted_memory);
    }
    let mut waits = Peer::transmitting_to(exports.clone());
    waits.give(&large(3));
    assert!(
        waits.requests.is_empty()
            && waits.session.condition().is_saturated
            && waits.session.condition().waits_for_memory
    );
    let mut small = Peer::transmitting_to(exports);
    small.give(&request(0, p::CMD_READ, 4, 0, 65536));
    assert_eq!(small.requests.len(), 1);
    let go_on = |peer: &mut Peer| {
        let mut actions = Actions::default();
        peer.session.go_on(&mut actions);
        peer.absorb(actions);
        peer.requests.len()
    };
    // An answer that has not gone out is still held, and so is what the engine does for a client that is gone.
    let (token, io) = greedy[0].requests.remove(0);
    let Io::Read { buf, .. } = io else { panic!("a read") };
    greedy[0].reply(token, IoResult::ok(buf));
    greedy[1].session.client_gone();
    assert_eq!(go_on(&mut waits), 0);
    let (token, io) = greedy[1].requests.remove(0);
    greedy[1].reply(token, IoResult::ok(io.take_buf()));
    assert_eq!(go_on(&mut waits), 1);
    assert!(!waits.session.condition().waits_for_memory && !waits.session.condition().is_saturated);
    drop(greedy);
    waits.give(&large(5));
    assert_eq!(waits.requests.len(), 2);
}
