//! Requests of any numbers, in a correct frame, against a model: each reply has the error that the protocol asks for, and
//! reads return what was written.

use std::sync::Arc;

use bolero::TypeGenerator;
use dcd_engine::{Discards, Geometry, Io, IoResult};
use dcd_io::{Actions, FrontEnd, OutputPiece};
use dcd_serve::nbd::{NbdExports, NbdSession, protocol as p};

const DISK_BYTES: usize = 64 << 10;

#[derive(Debug, TypeGenerator)]
struct Ask {
    flags: u16,
    command: u16,
    offset: u64,
    length: u32,
    /// Makes numbers that are near to being right.
    tame: bool,
}

#[derive(Debug, TypeGenerator)]
struct Case {
    read_only: bool,
    discards: bool,
    fast_zeroes: bool,
    large_blocks: bool,
    asks: Vec<Ask>,
}

#[test]
fn each_reply_is_what_the_protocol_asks_for() {
    bolero::check!().with_type::<Case>().for_each(|case: &Case| {
        let block = if case.large_blocks { 4096 } else { 512 };
        let geometry = Geometry {
            logical_block_bytes: block,
            discards: if case.discards { Discards::Zero } else { Discards::No },
            fast_zeroes: case.fast_zeroes,
            ..Geometry::plain(DISK_BYTES as u64 / 512)
        };
        let mut session = NbdSession::new(Arc::new(NbdExports::single("d", geometry, case.read_only)));
        let mut actions = Actions::default();
        session.receive(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x01d", &mut actions);
        let (mut disk, mut model) = (vec![0; DISK_BYTES], vec![0; DISK_BYTES]);
        for (number, ask) in case.asks.iter().enumerate() {
            let (command, offset, length) = if ask.tame {
                let unit = u64::from(block);
                (ask.command % 9, ask.offset % 20 * unit, ask.length % 20 * block)
            } else {
                (ask.command, ask.offset, ask.length)
            };
            if command == p::CMD_DISC || command == p::CMD_WRITE && length > 1 << 20 {
                continue;
            }
            let payload = if command == p::CMD_WRITE { length as usize } else { 0 };
            let mut bytes = p::REQUEST_MAGIC.to_be_bytes().to_vec();
            bytes.extend(ask.flags.to_be_bytes());
            bytes.extend(command.to_be_bytes());
            bytes.extend((number as u64).to_be_bytes());
            bytes.extend(offset.to_be_bytes());
            bytes.extend(length.to_be_bytes());
            bytes.resize(bytes.len() + payload, number as u8);
            actions.send.clear();
            session.receive(&bytes, &mut actions);
            while let Some((token, io)) = actions.requests.pop() {
                session.reply(token, run(&mut disk, io), &mut actions);
            }

            let error = expected(case, ask.flags, command, offset, length, block);
            let mut reply = p::simple_reply(error, number as u64).to_vec();
            if error == 0 {
                let range = offset as usize..offset as usize + length as usize;
                match command {
                    p::CMD_READ => reply.extend(&model[range]),
                    p::CMD_WRITE => model[range].fill(number as u8),
                    p::CMD_TRIM | p::CMD_WRITE_ZEROES => model[range].fill(0),
                    _ => {}
                }
            }
            let mut sent = Vec::new();
            for piece in std::mem::take(&mut actions.send) {
                match piece {
                    OutputPiece::Bytes(bytes) => sent.extend(bytes),
                    OutputPiece::Buf(buf) => {
                        sent.extend(buf.bytes());
                        session.sent(buf, &mut actions);
                    }
                }
            }
            assert!(!actions.close && sent == reply, "{command} {offset}+{length} flags {:#x}", ask.flags);
            assert!(disk == model);
        }
    });
}

fn run(disk: &mut [u8], mut io: Io) -> IoResult {
    let range = io.extent().map(|e| e.start.bytes() as usize..e.end().bytes() as usize);
    match (&mut io, range) {
        (Io::Read { buf, .. }, Some(range)) => buf.bytes_mut().copy_from_slice(&disk[range]),
        (Io::Write { buf, .. }, Some(range)) => disk[range].copy_from_slice(buf.bytes()),
        (_, Some(range)) => disk[range].fill(0),
        _ => {}
    }
    IoResult::ok(io.take_buf())
}

/// The protocol's text, written down a second time, in wide numbers.
fn expected(case: &Case, flags: u16, command: u16, offset: u64, length: u32, block: u32) -> u32 {
    const FUA: u16 = 1;
    let (changes, known) = match command {
        0 | 3 | 5 => (false, FUA),
        1 => (true, FUA),
        4 => (true, FUA),
        6 => (true, FUA | 2 | 16),
        _ => return 22,
    };
    if changes && case.read_only {
        return 1;
    }
    if flags & !known != 0 || command == 4 && !case.discards {
        return 22;
    }
    if command == 3 {
        return if offset == 0 && length == 0 { 0 } else { 22 };
    }
    if u128::from(offset) + u128::from(length) > DISK_BYTES as u128 {
        return if command == 1 || command == 6 { 28 } else { 22 };
    }
    if !offset.is_multiple_of(u64::from(block)) || !length.is_multiple_of(block) {
        return 22;
    }
    if command == 6 && flags & 16 != 0 && !case.fast_zeroes && length > 0 { 95 } else { 0 }
}
