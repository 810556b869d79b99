//! A start with a journal of which something is wrong: a newest record that has rotted, a device of another size, a block that cannot be
//! read.

use super::*;

const JOURNAL: usize = 4;

fn journaled() -> RaidConfig {
    RaidConfig { journal: true, ..config(Level::Raid5, JOURNAL) }
}

/// The bytes of an array that was killed after it had acknowledged a number of writes to one block, and the value of the last.
fn killed(writes: u8) -> Members {
    let mut bench = Bench::new(journaled());
    for value in 1..=writes {
        bench.write(0, 1, value);
        bench.flush().expect("flushed");
    }
    bench.members
}

/// The places of the headers in the journal, the oldest first.
fn headers(members: &Members) -> Vec<usize> {
    let journal = &members.0[JOURNAL].0;
    let is_header = |at: &usize| journal[*at..].starts_with(b"DCDRJRNL");
    let mut found: Vec<usize> = (0..journal.len()).step_by(BLOCK).filter(is_header).collect();
    found.sort_by_key(|at| journal[*at + 40..*at + 48].iter().rev().copied().collect::<Vec<u8>>());
    found
}

#[test]
fn what_a_torn_record_writes_to_is_not_replayed() {
    for (writes, older_tail) in (2..8).flat_map(|writes| [(writes, false), (writes, true)]) {
        let mut members = killed(writes);
        let newest = *headers(&members).last().expect("it has records");
        let journal = &mut members.0[JOURNAL].0;
        if older_tail {
            // Writes to another unit were under way meanwhile.
            let header = &mut journal[newest..newest + BLOCK];
            header[48] -= 1;
            header[8..12].fill(0);
            let crc = crc32c::crc32c(header);
            header[8..12].copy_from_slice(&crc.to_le_bytes());
        }
        journal[newest + BLOCK + 100] ^= 1;
        let mut bench = Bench::start(journaled(), members).expect("the header is good");
        assert_eq!(bench.read(0, 1).expect("read"), [writes; BLOCK], "{writes} {older_tail}");
        bench.check_parity();
    }
}

#[test]
fn a_rotten_header_of_the_newest_record_is_refused_until_damage_is_accepted() {
    for writes in 1..8 {
        let mut members = killed(writes);
        let newest = *headers(&members).last().expect("it has records");
        members.0[JOURNAL].0[newest + 20] ^= 1;
        let left = || Members(members.0.iter().map(|member| Memory(member.0.clone())).collect());
        let error = Bench::start(journaled(), left()).err().expect("refused");
        assert_eq!(error, AssembleError::Replay(ReplayError::Damaged(u64::from(writes))));
        let mut bench =
            Bench::start(RaidConfig { accept_damage: true, ..journaled() }, left()).expect("accepted");
        assert_eq!(bench.read(0, 1).expect("read"), [writes; BLOCK]);
        bench.settle();
        bench.check_parity();
    }
}

#[test]
fn a_journal_of_another_size_replays_no_older_record() {
    for writes in 1..40 {
        let members = killed(writes);
        for bytes in [2 << 20, 3 << 20, 5 << 20, 8 << 20] {
            let mut members = Members(members.0.iter().map(|member| Memory(member.0.clone())).collect());
            members.0[JOURNAL].0.resize(bytes, 0);
            match Bench::start(journaled(), members) {
                Ok(mut bench) => {
                    assert_eq!(bench.read(0, 1).expect("read"), [writes; BLOCK], "{writes}, {bytes}");
                    bench.check_parity();
                    // The ring of the next activation is as large as the device.
                    bench.write(0, 1, 99);
                    bench.flush().expect("flushed");
                    let mut bench = Bench::start(journaled(), bench.members).expect("active");
                    assert_eq!(bench.read(0, 1).expect("read"), [99; BLOCK]);
                }
                Err(error) => {
                    let is_shrunk = matches!(error, AssembleError::Replay(ReplayError::Shrunk { .. }));
                    assert!(is_shrunk && bytes < 4 << 20, "{error}");
                }
            }
        }
    }
}

/// Members of which one sector of the journal cannot be read.
struct Unreadable(Members, Lba);

impl Ports for Unreadable {
    fn geometry(&self, port: Port) -> Geometry {
        self.0.geometry(port)
    }

    fn run(&mut self, port: Port, io: Io) -> IoResult {
        let is_read = port.0 == JOURNAL && matches!(io, Io::Read { .. });
        if is_read && io.extent().is_some_and(|extent| extent.contains(self.1)) {
            return IoResult::err(io.take_buf(), IoError::new(ErrorKind::Medium));
        }
        self.0.run(port, io)
    }
}

#[test]
fn an_unreadable_journal_is_refused_until_damage_is_accepted() {
    let members = killed(3);
    for (record, sector) in headers(&members).iter().flat_map(|at| [(*at, 0), (*at, 9)]) {
        let at = Lba((record / 512) as u64 + sector);
        let start = |accept_damage: bool| {
            let left = Members(members.0.iter().map(|member| Memory(member.0.clone())).collect());
            let mut raid = RaidLayer::new(RaidConfig { accept_damage, ..journaled() });
            let started = raid.activate(&mut Unreadable(left, at));
            started.map(|()| raid.array().recorder.in_doubt().len())
        };
        let is_replayed = sector == 9 && Some(&record) != headers(&members).last();
        match start(false) {
            Ok(in_doubt) => assert!(is_replayed && in_doubt == 0, "its payload is not needed"),
            Err(error) => {
                let error: Box<AssembleError> = error.downcast().expect("of an array");
                assert!(matches!(*error, AssembleError::Replay(ReplayError::Io(_))), "{error}");
                assert!(start(true).expect("accepted") > 0, "the parity is computed again");
            }
        }
    }
}
