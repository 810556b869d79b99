//! Rebuilds: a spare is filled while clients read and write, members fail, sectors are bad, and the server dies.

use super::passes::byte_of;
use super::*;
use crate::raid::status::Findings;

struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

fn with_spares(level: Level, members: usize, spares: usize) -> RaidConfig {
    RaidConfig { spares: vec![true; spares], ..config(level, members) }
}

impl Bench {
    /// Members 1 and 4 fail while every block is written again, and spares are filled.
    pub(super) fn lose_two(&mut self) {
        self.dead.extend([1, 4]);
        for block in 0..4 * 48 {
            self.write(block, 1, byte_of(block));
        }
        self.flush().expect("the parity makes up for both");
        self.rest();
        assert!(self.is_good());
    }

    pub(super) fn is_good(&self) -> bool {
        self.raid.status(self.now).to_json()["state"] == "good"
    }

    /// Any of the commands that are open returns.
    fn returns_any(&mut self, draw: &mut Draw) {
        if !self.open.is_empty() {
            let index = draw.below(self.open.len() as u64) as usize;
            let command = self.open.remove(index).expect("it is there");
            self.open.push_front(command);
            self.returns();
        }
    }
}

#[test]
fn a_spare_gets_all_that_the_failed_member_had() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        for dead in 0..members {
            let mut bench = Bench::filled(with_spares(level, members, 1));
            let had = bench.members.0[dead].0[(DATA_SECTOR * 512) as usize..].to_vec();
            bench.dead.push(dead);
            bench.read(0, 16).expect("computed");
            bench.write(0, 1, byte_of(0));
            bench.flush().expect("the parity makes up for it");
            bench.rest();
            assert!(bench.is_good(), "{}", bench.status());
            assert!(bench.members.0[members].0[(DATA_SECTOR * 512) as usize..] == had, "{level:?}, {dead}");
            assert_eq!(bench.array().passes.last_rebuild, Some(Findings::default()));
            // What it is told afterwards it keeps, and a start finds it in its role.
            bench.write(3, 1, 200);
            bench.stop();
            let mut bench = Bench::start(with_spares(level, members, 1), bench.members).expect("active");
            assert!(bench.is_good());
            assert_eq!(bench.read(3, 1).expect("read"), [200; BLOCK]);
            assert_eq!(bench.scrub(false), Findings::default());
        }
    }
}

#[test]
fn two_members_of_a_raid_6_are_rebuilt_one_after_the_other() {
    let mut bench = Bench::filled(with_spares(Level::Raid6, 5, 2));
    bench.lose_two();
    assert_eq!(bench.scrub(false), Findings::default());
    bench.check_data();
}

/// Clients read and write everywhere while members fail and are rebuilt; all that was written is there, and fits.
fn storm(seed: u64, level: Level, members: usize, journal: bool) {
    let mut draw = Draw(seed);
    let parity = level.parity();
    // RAID-6 makes up for two dead members, or for one and a bad sector.
    let bad_sectors = level == Level::Raid6 && draw.below(2) == 0;
    let dead_max = parity - usize::from(bad_sectors);
    let unit = if draw.below(3) == 0 { CacheUnit::ParityBlockGroup } else { CacheUnit::Stripe };
    let config = RaidConfig {
        unit,
        journal,
        pass_bytes: [1, 1, 3 * STRIP * 512 * members as u64, 32 << 20][draw.below(4) as usize],
        cache_bytes: (1 + draw.below(3)) * (members - parity) as u64 * STRIP * 512,
        ..with_spares(level, members, parity)
    };
    let mut bench = Bench::filled(config);
    let blocks = bench.array().layout.sectors() / 8;
    let mut model: Vec<u8> = (0..blocks).map(byte_of).collect();
    let mut reads: Vec<(u64, u64)> = Vec::new();
    let mut writes: Vec<(u64, u64)> = Vec::new();
    for step in 0..1500 {
        if step % 300 == 100 && bench.dead.len() < dead_max {
            bench.dead.push(draw.below(members as u64) as usize);
        }
        if bad_sectors && step % 100 == 50 && bench.bad_reads.is_empty() {
            let lba = Lba(DATA_SECTOR + draw.below(4 * STRIP));
            bench.bad_reads.push((draw.below(members as u64) as usize, lba));
        }
        let block = draw.below(blocks);
        // What overlaps may happen in either order.
        let writing = writes.iter().any(|(_, other)| *other == block);
        let reading = reads.iter().any(|(_, other)| *other == block);
        match draw.below(12) {
            0..3 if !writing && !reading => {
                model[block as usize] = draw.below(255) as u8;
                writes.push((bench.write(block, 1, model[block as usize]), block));
            }
            3..5 if !writing => {
                let io = Io::Read { at: Lba(block * 8), buf: Buf::zeroed(BLOCK) };
                reads.push((bench.ask(io), block));
            }
            5 if step % 7 == 0 => drop(bench.ask(Io::Flush)),
            6 => {
                bench.wait_for(Nanos::from_millis(draw.below(700)));
            }
            _ => bench.returns_any(&mut draw),
        }
        for (id, result) in std::mem::take(&mut bench.answers) {
            result.status.unwrap_or_else(|e| panic!("seed {seed}, step {step}: {e}"));
            writes.retain(|(other, _)| *other != id);
            if let Some(index) = reads.iter().position(|(other, _)| *other == id) {
                let (_, block) = reads.swap_remove(index);
                let found = result.buf.bytes();
                assert!(
                    found == [model[block as usize]; BLOCK],
                    "seed {seed}, step {step}, block {block}: {}",
                    found[0]
                );
            }
        }
    }
    bench.rest();
    bench.flush().expect("flushed");
    for _ in 0..2 * members {
        // Whoever is dead has to notice it.
        (0..blocks).step_by(16).for_each(|block| assert!(bench.write(block, 1, model[block as usize]) > 0));
        bench.flush().expect("flushed");
        bench.rest();
    }
    let status = bench.status();
    assert!(bench.is_good(), "seed {seed}: {status}");
    let found = bench.scrub(false);
    assert_eq!((found.mismatches, found.lost), (0, 0), "seed {seed}");
    for block in 0..blocks {
        let found = bench.read(block, 1).expect("read");
        assert!(found == [model[block as usize]; BLOCK], "seed {seed}, block {block}");
    }
}

#[test]
fn clients_get_what_they_wrote_whatever_is_being_rebuilt() {
    for seed in 0..40 {
        storm(seed, Level::Raid5, 3 + seed as usize % 3, seed % 5 == 0);
        storm(1000 + seed, Level::Raid6, 4 + seed as usize % 3, seed % 5 == 0);
    }
}

#[test]
fn a_write_beside_the_windows_goes_to_the_spare_below_them_and_not_above() {
    let config = RaidConfig { pass_bytes: 1, ..with_spares(Level::Raid5, 4, 1) };
    let mut bench = Bench::filled(config);
    bench.dead.push(0);
    bench.write(0, 1, 201);
    bench.flush().expect("flushed");
    // The window that begins when clients have gone is the first one; the second begins after its time.
    while bench.array().recorder.rebuilding().is_none_or(|rebuild| rebuild.sectors != 2 * STRIP) {
        if !bench.returns() {
            bench.wait();
        }
    }
    // Member 0 has D0 of stripe 0 and P of stripe 3.
    bench.sent.clear();
    for block in [0, 3 * 48] {
        let buf = Buf::copy_of(&[203; BLOCK]);
        bench.ask(Io::Write { at: Lba(block * 8), buf, durability: Durability::Durable });
    }
    let rest = |bench: &mut Bench| while bench.returns() {};
    rest(&mut bench);
    let sent = bench.sent();
    assert!(sent.contains(&"w4 0+1".to_owned()), "{sent:?}");
    assert!(!sent.contains(&"w4 48+1".to_owned()), "{sent:?}");
    bench.rest();
    assert!(bench.is_good());
    assert_eq!(bench.scrub(false), Findings::default());
    assert_eq!(bench.read(3 * 48, 1).expect("read"), [203; BLOCK]);
}

/// A start trusts what lies below the checkpoint, so it has to be durable by then.
#[test]
fn the_spare_is_flushed_before_the_superblocks_say_what_it_has() {
    let mut bench = Bench::filled(RaidConfig { pass_bytes: 1, ..with_spares(Level::Raid5, 4, 1) });
    bench.dead.push(1);
    bench.write(16, 1, byte_of(16));
    bench.ask(Io::Flush);
    while bench.raid.array().members.holder(1).is_none() {
        assert!(bench.returns(), "a spare takes over");
    }
    // What the spare has been given, and what of that a flush has covered that was sent afterwards.
    let (mut written, mut covers, mut durable, mut checkpoints) = (0, None, 0, 0);
    while !bench.is_good() {
        bench.wait_for(Nanos::from_secs(11));
        let is_flush = |(port, _, io): &(Port, OpId, Io)| port.0 == 4 && matches!(io, Io::Flush);
        if bench.open.iter().any(is_flush) {
            covers.get_or_insert(written);
        }
        for (.., io) in &bench.open {
            let Io::Write { at, buf, .. } = io else { continue };
            if at.0 < DATA_SECTOR {
                let (superblock, _) = ArraySuperblock::decode(buf.bytes(), 0).expect("whole");
                let has_role = superblock.member_ids[1] == 70;
                let sectors = superblock.rebuilding.map_or(4 * STRIP, |rebuild| rebuild.sectors);
                let sectors = if has_role { sectors } else { 0 };
                assert!(
                    sectors <= durable,
                    "{sectors} sectors are said to be there, and {durable} are durable"
                );
                checkpoints += u64::from(sectors > 0);
            }
        }
        let returning = bench.open.front();
        let end = returning.and_then(|(port, _, io)| io.extent().filter(|_| port.0 == 4 && io.modifies()));
        written = end.map_or(written, |extent| written.max(extent.end().0.saturating_sub(DATA_SECTOR)));
        if returning.is_some_and(is_flush) {
            durable = covers.take().expect("it was sent");
        }
        assert!(bench.returns(), "it never comes to its end");
    }
    assert!(checkpoints > 3, "{checkpoints}");
}

#[test]
fn a_restart_goes_on_from_the_last_checkpoint() {
    let config = RaidConfig { pass_bytes: 1, journal: true, ..with_spares(Level::Raid5, 4, 1) };
    let mut bench = Bench::filled(config.clone());
    bench.dead.push(1);
    bench.write(16, 1, byte_of(16));
    bench.flush().expect("flushed");
    let recorded =
        |bench: &mut Bench| bench.array().recorder.recorded().rebuilding.map(|rebuild| rebuild.sectors);
    while recorded(&mut bench) != Some(2 * STRIP) {
        // Eleven seconds for each window: there is a checkpoint behind each.
        bench.wait_for(Nanos::from_secs(11));
        assert!(bench.returns(), "it never comes so far");
    }
    // What lies above the checkpoint may be anything after a crash, and the failed member is of no use.
    let data = (DATA_SECTOR * 512) as usize;
    let above = data + (2 * STRIP * 512) as usize;
    bench.members.0[4].0[above..].fill(0xee);
    bench.members.0[1].0[data..].fill(0xdd);
    let mut bench = Bench::start(config, bench.members).expect("degraded");
    bench.rest();
    assert!(bench.is_good());
    let sent = bench.sent();
    assert!(sent.contains(&"w4 32+16".to_owned()) && sent.contains(&"w4 48+16".to_owned()), "{sent:?}");
    assert!(!sent.iter().any(|sent| sent == "w4 0+16" || sent == "w4 16+16"), "{sent:?}");
    bench.check_data();
    assert_eq!(bench.scrub(false), Findings::default());
}

#[test]
fn a_stop_records_how_far_a_rebuild_has_come_although_nobody_writes() {
    let config = RaidConfig { pass_bytes: 1, ..with_spares(Level::Raid5, 4, 1) };
    let mut bench = Bench::filled(config.clone());
    bench.tell(ArrayCommand::Fail { role: 1 }).expect("it can be spared");
    let recorded =
        |bench: &mut Bench| bench.array().recorder.recorded().rebuilding.map(|rebuild| rebuild.sectors);
    for unit in 1..4 {
        let position = |bench: &mut Bench| bench.array().recorder.rebuilding().map(|rebuild| rebuild.sectors);
        while position(&mut bench).is_none_or(|sectors| sectors < unit * STRIP) {
            if !bench.returns() {
                bench.wait_for(Nanos::ZERO);
                assert!(!bench.open.is_empty(), "it never comes so far");
            }
        }
        let before = recorded(&mut bench).expect("it is not over");
        bench.handle(Event::Control(crate::Control::Stop));
        let mut flushed = false;
        loop {
            let says_more = |(_, _, io): &(Port, OpId, Io)| match io {
                Io::Write { at, buf, .. } if at.0 < DATA_SECTOR => {
                    let (superblock, _) = ArraySuperblock::decode(buf.bytes(), 0).expect("whole");
                    superblock.rebuilding.is_some_and(|rebuild| rebuild.sectors > before)
                }
                _ => false,
            };
            assert!(flushed || !bench.open.iter().any(says_more), "the spare is flushed before");
            flushed |= matches!(bench.open.front(), Some((Port(4), _, Io::Flush)));
            if !bench.returns() {
                break;
            }
        }
        assert_eq!(bench.reports.last(), Some(&crate::Report::Stopped));
        let done = recorded(&mut bench).expect("it is not over");
        assert!(flushed && done >= unit * STRIP, "{done}");
        // What lies above may be anything.
        let above = ((DATA_SECTOR + done) * 512) as usize;
        bench.members.0[4].0[above..].fill(0xee);
        bench = Bench::start(config.clone(), bench.members).expect("degraded");
        assert_eq!(
            bench.raid.status(Nanos::ZERO).to_json()["rebuilt_percent"],
            100.0 * done as f64 / (4 * STRIP) as f64
        );
    }
    bench.rest();
    assert!(bench.is_good());
    bench.check_data();
    assert_eq!(bench.scrub(false), Findings::default());
}

#[test]
fn what_a_second_member_cannot_give_is_an_error_and_the_rest_goes_on() {
    let mut bench = Bench::filled(with_spares(Level::Raid5, 4, 1));
    // Block 5 of stripe 0 has D0 on member 0, D1 on member 1; both of them are lost.
    bench.bad_reads.push((0, Lba(DATA_SECTOR + 5 * 8)));
    bench.dead.push(1);
    bench.write(16, 1, byte_of(16));
    bench.flush().expect("flushed");
    bench.rest();
    assert_eq!(
        bench.raid.status(bench.now).to_json()["state"],
        "damaged",
        "all members are whole, and blocks are lost"
    );
    assert_eq!(bench.array().passes.last_rebuild, Some(Findings { lost: 2, ..Findings::default() }));
    for block in 0..4 * 48 {
        match bench.read(block, 1) {
            Ok(found) => assert_eq!(found, [byte_of(block); BLOCK], "block {block}"),
            Err(error) => {
                assert!([5, 21].contains(&block) && error.kind == ErrorKind::Medium, "{block}: {error}")
            }
        }
    }
    assert!(bench.read(5, 1).is_err() && bench.read(21, 1).is_err());
    // The new member has nothing of its own to tell that, and the bad sector may be readable again.
    bench.stop();
    let mut bench = Bench::start(with_spares(Level::Raid5, 4, 1), bench.members).expect("active");
    assert!(bench.read(5, 1).is_err() && bench.read(21, 1).is_err());
    bench.write(21, 1, byte_of(21));
    bench.write(5, 1, byte_of(5));
    bench.flush().expect("they are written whole");
    bench.check_data();
    assert_eq!(bench.raid.status(Nanos::ZERO).to_json()["lost_blocks"], 0);
    assert_eq!(bench.scrub(false), Findings::default());
}

#[test]
fn raid_6_makes_up_for_a_bad_sector_in_a_rebuild() {
    let mut bench = Bench::filled(with_spares(Level::Raid6, 5, 1));
    bench.bad_reads.extend((2..5).map(|role| (role, Lba(DATA_SECTOR + 8 * role as u64))));
    bench.dead.push(1);
    bench.write(16, 1, byte_of(16));
    bench.flush().expect("flushed");
    bench.rest();
    assert!(bench.is_good());
    let found = Findings { unreadable: 3, repaired: 3, ..Findings::default() };
    assert_eq!(bench.array().passes.last_rebuild, Some(found));
    assert!(bench.bad_reads.is_empty());
    bench.check_data();
    assert_eq!(bench.scrub(false), Findings::default());
}
