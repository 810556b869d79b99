//! Tests rot in the log: a block that rotted is an error for every read of it, however the read is put together, and for no other.

use crate::log_tests::rig::{Ram, Rig};
use dcd_engine::log_cache::LogCacheConfig;
use dcd_engine::*;

const LINES: u64 = 4;

fn content(line: u64) -> Vec<u8> {
    vec![0x40 + line as u8; LINE_BYTES as usize]
}

fn read(rig: &mut Rig, line: u64, lines: u64) -> IoResult {
    let buf = Buf::zeroed((lines * LINE_BYTES) as usize);
    rig.ask(Io::Read { at: Lba(line * LINE_SECTORS), buf })
}

#[test]
fn a_rotten_block_is_an_error_for_its_readers_alone() {
    let mut rig = Rig::new(LogCacheConfig::default(), 512, Ram::new(8 << 20), Ram::without_bytes(64 << 20));
    for line in 0..LINES {
        let (at, buf) = (Lba(line * LINE_SECTORS), Buf::copy_of(&content(line)));
        assert!(rig.ask(Io::Write { at, buf, durability: Durability::Volatile }).status.is_ok());
    }
    assert!(rig.ask(Io::Flush).status.is_ok());
    // One stretch of the log is the whole answer: it is read into the client's buffer.
    let whole = read(&mut rig, 0, LINES);
    assert!(whole.status.is_ok());
    let all: Vec<u8> = (0..LINES).flat_map(content).collect();
    assert_eq!(whole.buf.bytes(), all);

    let rotten = rig.log_bytes().windows(64).position(|bytes| bytes == [0x42; 64]).expect("it is in the log");
    rig.log_bytes()[rotten + 100] ^= 1;
    let lost = |line| Some(IoError::at(ErrorKind::Lost, Extent::new(Lba(line * LINE_SECTORS), LINE_SECTORS)));
    assert_eq!(read(&mut rig, 0, LINES).status.err(), lost(2), "a part of a long read");
    assert_eq!(read(&mut rig, 2, 1).status.err(), lost(2), "a read of it alone");
    assert_eq!(read(&mut rig, 2, LINES).status.err(), lost(2), "a read that the data disk has a part in");
    for line in [0, 1, 3] {
        let good = read(&mut rig, line, 1);
        assert!(good.status.is_ok() && good.buf.bytes() == content(line), "line {line}");
    }
}
