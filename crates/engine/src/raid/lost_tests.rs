//! Rows of which more is missing than the parity makes up for. In stripe 0 of four members block `b` is row `b % 16` of column
//! `b / 16`, on the member of the same number; the parity is on member 3.

use super::*;

/// All blocks are 3, and row 5 has two bad sectors, in columns 0 and 1; nothing is in the cache.
fn damaged() -> Bench {
    let mut bench = Bench::new(config(Level::Raid5, 4));
    bench.write(0, 48, 3);
    bench.stop();
    let mut bench = Bench::start(config(Level::Raid5, 4), bench.members).expect("active");
    bench.bad_reads.extend([0, 1].map(|member| (member, Lba(DATA_SECTOR + 5 * 8))));
    bench
}

#[track_caller]
fn is_error(bench: &mut Bench, block: u64) {
    let error = bench.read(block, 1).map(drop).expect_err("nobody knows what it held");
    assert_eq!(error.kind, ErrorKind::Medium);
}

#[test]
fn only_the_lost_blocks_are_errors() {
    let mut bench = damaged();
    is_error(&mut bench, 5);
    is_error(&mut bench, 21);
    for block in (0..48).filter(|block| ![5, 21].contains(block)) {
        assert_eq!(bench.read(block, 1).expect("read"), [3; BLOCK], "block {block}");
    }
    // Readers of one unit wait together, and one of them gets an error.
    let mut bench = damaged();
    let asked = [4, 5, 6].map(|block| bench.ask(Io::Read { at: Lba(block * 8), buf: Buf::zeroed(BLOCK) }));
    bench.settle();
    let answers = asked.map(|id| bench.answer(id).status.is_ok());
    assert_eq!(answers, [true, false, true]);
    let status = bench.raid.status(Nanos::ZERO).to_json();
    assert_eq!((&status["state"], &status["unreadable_blocks"]), (&"damaged".into(), &2.into()));
    assert_eq!(bench.notices, 1, "told at once, and once");
}

#[test]
fn a_row_with_lost_blocks_is_written_whole_without_reading() {
    let mut bench = damaged();
    for column in 0..3 {
        bench.write(16 * column + 5, 1, 9);
    }
    bench.flush().expect("nothing of it has to be read");
    assert_eq!(bench.sent(), ["w0 5+1", "w1 5+1", "w2 5+1", "w3 5+1"]);
    assert!(bench.bad_reads.is_empty(), "they are written again");
    assert_eq!(bench.raid.status(Nanos::ZERO).to_json()["state"], "good");
    let mut bench = Bench::start(config(Level::Raid5, 4), bench.members).expect("active");
    assert_eq!(bench.read(21, 1).expect("read"), [9; BLOCK]);
}

#[test]
fn a_write_to_such_a_row_loses_the_rest_for_good_and_nothing_else() {
    let mut bench = damaged();
    bench.write(21, 1, 9);
    bench.flush().expect("it is safe");
    is_error(&mut bench, 5);
    assert_eq!(bench.raid.status(Nanos::ZERO).to_json()["lost_blocks"], 1);
    assert_eq!(bench.read(21, 1).expect("read"), [9; BLOCK]);
    bench.check_parity();
    bench.stop();
    let mut bench = Bench::start(config(Level::Raid5, 4), bench.members).expect("active");
    is_error(&mut bench, 5);
    // Without member 1, what was written is computed with what lies in the place of the lost block.
    bench.dead.push(1);
    assert_eq!(bench.read(21, 1).expect("computed"), [9; BLOCK]);
    is_error(&mut bench, 5);
    assert_eq!(bench.read(37, 1).expect("read"), [3; BLOCK]);
}

/// Block 21 is being destaged, and the first write to the row is about to reach a member.
fn about_to_write() -> Bench {
    let mut bench = damaged();
    bench.write(21, 1, 9);
    bench.ask(Io::Flush);
    let writes = |(_, _, io): &(Port, OpId, Io)| {
        io.modifies() && io.extent().is_some_and(|extent| extent.start.0 >= DATA_SECTOR)
    };
    while !bench.open.iter().any(writes) {
        assert!(bench.returns(), "it never writes");
    }
    bench
}

#[test]
fn what_is_lost_is_in_the_superblocks_before_anything_lies_in_its_place() {
    let bench = about_to_write();
    for port in 0..4 {
        let found =
            ArraySuperblock::read(&mut Memory(bench.members.0[port].0.clone())).expect("it has one").0;
        let lost: Vec<_> =
            found.lost.iter().map(|(lost, settled)| (lost.role, lost.block, *settled)).collect();
        assert!(lost.contains(&(0, 5, false)), "member {port}: {lost:?}");
    }
}

#[test]
fn a_lost_block_that_is_written_whole_is_found_again() {
    let mut bench = damaged();
    bench.write(21, 1, 9);
    bench.flush().expect("it is safe");
    let part = bench.ask(Io::Write {
        at: Lba(5 * 8 + 1),
        buf: Buf::copy_of(&[1; 512]),
        durability: Durability::Volatile,
    });
    bench.settle();
    let error = bench.answer(part).status.expect_err("nobody knows the rest of the block");
    assert_eq!(error.kind, ErrorKind::Medium);
    bench.write(5, 1, 8);
    assert_eq!(bench.read(5, 1).expect("from RAM"), [8; BLOCK]);
    bench.flush().expect("safe");
    bench.check_parity();
    let mut bench = Bench::start(config(Level::Raid5, 4), bench.members).expect("active");
    assert_eq!(bench.read(5, 1).expect("read"), [8; BLOCK]);
    assert_eq!(bench.raid.status(Nanos::ZERO).to_json()["lost_blocks"], 0);
}

/// Parity in doubt is never computed with. Only rows that are written lose what the member had of them. A cache with memory for only some
/// rows of the stripe manages with that memory.
#[test]
fn a_member_that_fails_while_the_parity_is_in_doubt_takes_only_what_is_in_rows_that_are_written() {
    let pieces = RaidConfig { strip_sectors: 2 * STRIP, ..config(Level::Raid5, 4) };
    let rows = 2 * STRIP / 8;
    let mut bench = Bench::over(pieces.clone(), false);
    for member in &mut bench.members.0 {
        member.0[(DATA_SECTOR * 512) as usize..].fill(3);
    }
    bench.dead.push(1);
    bench.write(rows + 5, 1, 9);
    bench.flush().expect("the row is written whole but for the member that fails by that");
    assert_eq!(bench.raid.status(Nanos::ZERO).to_json()["failed_members"], serde_json::json!([1]));
    bench.write(6, 1, 9);
    bench.flush().expect("written");
    assert_eq!(bench.read(rows + 5, 1).expect("computed of new parity, or in the cache"), [9; BLOCK]);
    assert_eq!(bench.read(6, 1).expect("read"), [9; BLOCK]);
    assert_eq!(bench.raid.status(Nanos::ZERO).to_json()["lost_blocks"], 1);
    for row in (0..rows).filter(|row| *row != 5) {
        is_error(&mut bench, rows + row);
    }
    let status = bench.raid.status(Nanos::ZERO).to_json();
    assert_eq!(
        (&status["lost_blocks"], &status["state"]),
        (&serde_json::json!(1), &serde_json::json!("degraded"))
    );
}

/// A member has failed while the parity is in doubt. What is written from then on is safe, the member's share of it too: the parity of
/// such a row is computed from all that is in it, and can be believed.
#[test]
fn what_is_written_after_a_member_has_failed_in_doubt_can_be_read() {
    for level in [Level::Raid5, Level::Raid6] {
        let (members, unit) = (if level == Level::Raid5 { 4 } else { 5 }, 3 * STRIP / 8);
        let small = RaidConfig { cache_bytes: unit * BLOCK as u64, ..config(level, members) };
        let mut bench = Bench::over(small, false);
        for member in &mut bench.members.0 {
            member.0[(DATA_SECTOR * 512) as usize..].fill(3);
        }
        bench.dead.push(1);
        let others = |bench: &mut Bench, byte: u8| {
            bench.write(unit, unit as usize, byte);
            bench.flush().expect("written, and the cache has nothing else");
        };
        // Of the first stripe: a column on member 1, and another.
        let column = bench.raid.array().layout.column(0, 1) as u64;
        let (of_it, of_another) = (STRIP / 8 * column, STRIP / 8 * ((column + 1) % 3));
        bench.write(of_it + 5, 1, 9);
        bench.write(of_another + 6, 1, 9);
        bench.flush().expect("safe without the member");
        others(&mut bench, 1);
        assert_eq!(bench.read(of_it + 5, 1).expect("computed"), [9; BLOCK]);
        assert_eq!(
            bench.raid.status(Nanos::ZERO).to_json()["lost_blocks"],
            1,
            "what the member had in the other row"
        );
        // Its neighbour in the row is written, and then the whole of it again.
        bench.write(of_another + 5, 1, 8);
        bench.flush().expect("safe");
        others(&mut bench, 2);
        assert_eq!(bench.read(of_it + 5, 1).expect("computed"), [9; BLOCK]);
        assert_eq!(bench.read(of_another + 5, 1).expect("read"), [8; BLOCK]);
        bench.write(of_it + 5, 1, 7);
        bench.flush().expect("safe");
        others(&mut bench, 3);
        assert_eq!(bench.read(of_it + 5, 1).expect("computed"), [7; BLOCK]);
        is_error(&mut bench, of_it + 6);
        let lost = bench.raid.status(Nanos::ZERO).to_json()["lost_blocks"].clone();
        assert_eq!(lost, 1, "{level:?}");
        // After a restart nobody knows which rows are right, but whoever accepts that finds them.
        let accepting = RaidConfig {
            accept_damage: true,
            present: present_without(members, 1),
            ..config(level, members)
        };
        bench.members.0.remove(1);
        let mut bench = Bench::start(accepting, bench.members).expect("active");
        assert_eq!(bench.read(of_it + 5, 1).expect("computed"), [7; BLOCK]);
        assert_eq!(bench.read(of_another + 5, 1).expect("read"), [8; BLOCK]);
    }
}

fn present_without(members: usize, role: usize) -> Vec<bool> {
    (0..members).map(|member| member != role).collect()
}

/// A crash has left a row that does not fit, with blocks that are lost: the parity of all of it becomes right again, and they stay lost.
#[test]
fn a_resync_settles_what_is_lost() {
    let crashed = about_to_write();
    let mut bench = Bench::start(config(Level::Raid5, 4), crashed.members).expect("active");
    assert!(!bench.raid.array().recorder.in_doubt().is_empty());
    while !bench.raid.array().recorder.recorded().in_doubt.is_empty() {
        bench.wait_for(Nanos::from_secs(1));
        assert!(bench.returns() || bench.now < Nanos::from_secs(60), "it resyncs");
    }
    bench.settle();
    bench.check_parity();
    let status = bench.raid.status(bench.now).to_json();
    assert_eq!(
        (&status["state"], &status["lost_blocks"]),
        (&serde_json::json!("damaged"), &serde_json::json!(1))
    );
    is_error(&mut bench, 5);
    // Without member 2, what it has of the row is computed.
    bench.dead.push(2);
    assert_eq!(bench.read(37, 1).expect("computed"), [3; BLOCK]);
}

/// A scrub computes nothing of a row that does not fit, and says what is lost in it.
#[test]
fn a_scrub_counts_what_is_lost() {
    for repair in [false, true] {
        let mut bench = damaged();
        let lost = crate::raid::superblock::LostBlock { role: 0, block: 5 };
        let recorder = &mut bench.raid.array.as_mut().expect("active").recorder;
        assert!(recorder.lose(lost));
        bench.bad_reads.clear();
        bench.tell(ArrayCommand::Scrub { repair }).expect("it is whole");
        while bench.raid.status(bench.now).to_json()["last_scrub"].is_null() {
            bench.wait_for(Nanos::from_secs(1));
            assert!(bench.returns() || bench.now < Nanos::from_secs(60), "it scrubs");
        }
        let found = &bench.raid.status(bench.now).to_json()["last_scrub"];
        assert_eq!(
            (&found["lost"], &found["repaired"]),
            (&serde_json::json!(1), &serde_json::json!(0)),
            "{found}"
        );
    }
}

/// The list is full: then nothing more is promised.
#[test]
fn a_list_without_room_stops_writes() {
    let mut bench = damaged();
    let recorder = &mut bench.raid.array.as_mut().expect("active").recorder;
    let full = (0..crate::raid::superblock::LOST_MAX as u64)
        .map(|block| crate::raid::superblock::LostBlock { role: 2, block: 16 + block });
    full.for_each(|lost| assert!(recorder.lose(lost)));
    bench.write(21, 1, 9);
    bench.flush().expect_err("it cannot be remembered what is lost");
    assert_eq!(bench.raid.status(Nanos::ZERO).to_json()["state"], "broken");
}
