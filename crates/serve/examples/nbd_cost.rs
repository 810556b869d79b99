//! Measures the cost of the NBD session by itself, beside the copy of the payload that it cannot avoid.
use std::sync::Arc;
use std::time::Instant;

use dcd_engine::{Geometry, IoResult};
use dcd_io::{Actions, FrontEnd, OutputPiece};
use dcd_serve::nbd::{NbdExports, NbdSession, protocol as p};

fn request(command: u16, offset: u64) -> Vec<u8> {
    let mut bytes = p::REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(command.to_be_bytes());
    bytes.extend([7; 8]);
    bytes.extend(offset.to_be_bytes());
    bytes.extend(4096u32.to_be_bytes());
    if command == p::CMD_WRITE {
        bytes.extend([1; 4096]);
    }
    bytes
}

fn main() {
    for (name, command) in [("write", p::CMD_WRITE), ("read", p::CMD_READ)] {
        let mut session = NbdSession::new(Arc::new(NbdExports::single("", Geometry::plain(1 << 20), false)));
        let mut actions = Actions::default();
        session.receive(&[&[0, 0, 0, 3][..], b"IHAVEOPT", &[0, 0, 0, 1, 0, 0, 0, 0]].concat(), &mut actions);
        assert!(session.condition().is_established);
        let burst: Vec<u8> = (0..32).flat_map(|at| request(command, at * 4096)).collect();
        let rounds = 20_000;
        let start = Instant::now();
        for _ in 0..rounds {
            for piece in std::mem::take(&mut actions.send) {
                if let OutputPiece::Buf(buf) = piece {
                    session.sent(buf, &mut actions);
                }
            }
            session.receive(&burst, &mut actions);
            for (token, io) in std::mem::take(&mut actions.requests) {
                session.reply(token, IoResult::ok(io.take_buf()), &mut actions);
            }
        }
        let nanos = start.elapsed().as_nanos() / (rounds * 32);
        println!("{name}: {nanos} ns for 4 KiB at depth 32");
    }
    let (source, mut target) = (vec![1u8; 4096 * 32], vec![0u8; 4096]);
    let start = Instant::now();
    for at in 0..640_000 {
        target.copy_from_slice(&source[at % 32 * 4096..][..4096]);
        std::hint::black_box(&mut target);
    }
    println!("copy: {} ns for 4 KiB", start.elapsed().as_nanos() / 640_000);
}
