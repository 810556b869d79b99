//! Superblocks and records of a journal whose checksums are right, and whose numbers are not: they are refused or used, and nothing panics.

use std::ops::ControlFlow;

use super::*;
use crate::raid::grow::add_member;
use crate::raid::journal::{self, Slots};
use crate::raid::superblock::tests::{HEAD, RESHAPE};
use crate::raid::superblock::{COPY_SECTORS, SUPERBLOCK_BYTES};

struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// A number at which code may go wrong.
    fn number(&mut self) -> u64 {
        let edge: [u64; 17] = [
            0,
            1,
            2,
            3,
            5,
            8,
            63,
            64,
            128,
            4096,
            32_768,
            1 << 31,
            1 << 32,
            1 << 43,
            1 << 48,
            1 << 62,
            1 << 63,
        ];
        let near = edge[self.below(edge.len() as u64) as usize];
        match self.below(4) {
            0 => near.wrapping_sub(1),
            1 => u64::MAX - near,
            2 => near.wrapping_add(self.below(9)),
            _ => near,
        }
    }
}

/// A few changes: where, how wide, and to what.
fn changes(draw: &mut Draw, head: u64, end: u64) -> Vec<(usize, usize, u64)> {
    (0..1 + draw.below(3))
        .map(|_| {
            // Most fields are at the beginning; behind them are tables.
            let end = if draw.below(4) > 0 { head } else { end };
            let width = [1, 2, 4, 8][draw.below(4) as usize];
            let at = draw.below((end - 8) / width) * width;
            (at as usize, width as usize, draw.number())
        })
        .collect()
}

/// Makes the changes, and seals the checksum again.
fn spoil(block: &mut [u8], changes: &[(usize, usize, u64)], crc: usize) {
    for (at, width, number) in changes {
        block[*at..at + width].copy_from_slice(&number.to_le_bytes()[..*width]);
    }
    block[crc..crc + 4].fill(0);
    let sealed = crc32c::crc32c(block);
    block[crc..crc + 4].copy_from_slice(&sealed.to_le_bytes());
}

fn copies(members: &Members) -> Members {
    Members(members.0.iter().map(|member| Memory(member.0.clone())).collect())
}

fn journaled() -> RaidConfig {
    RaidConfig { journal: true, spares: vec![true], cache_bytes: 1 << 20, ..config(Level::Raid5, 4) }
}

/// The devices of an array that was cut off amid writes that its journal has.
fn cut_off() -> Members {
    let mut bench = Bench::new(journaled());
    for block in 0..60 {
        bench.write(3 * block % 190, 2, block as u8);
    }
    bench.ask(Io::Flush);
    for _ in 0..60 {
        bench.returns();
    }
    bench.members
}

/// Uses an array that has started with such numbers.
fn use_it(bench: &mut Bench) {
    let sectors = bench.raid.geometry().sectors;
    for at in [0, sectors / 2, sectors.saturating_sub(8)] {
        let at = Lba(at / 8 * 8);
        bench.ask(Io::Read { at, buf: Buf::zeroed(BLOCK) });
        bench.ask(Io::Write { at, buf: Buf::zeroed(BLOCK), durability: Durability::Durable });
    }
    bench.handle(Event::Control(Control::Stop));
    for _ in 0..3000 {
        if !bench.returns() && bench.raid.has_work(bench.now) {
            bench.wait();
        }
    }
}

#[test]
fn superblocks_with_any_numbers_are_used_or_refused() {
    let mut draw = Draw(7);
    let members = cut_off();
    let (mut used, mut refused) = (0, 0);
    for _ in 0..400 {
        let mut spoiled = copies(&members);
        let changes = changes(&mut draw, HEAD as u64, SUPERBLOCK_BYTES as u64);
        let one = draw.below(9) as usize;
        for (port, member) in spoiled.0[..5].iter_mut().enumerate() {
            if one >= 5 || one == port {
                for at in COPY_SECTORS.map(|at| at.bytes() as usize) {
                    spoil(&mut member.0[at..at + SUPERBLOCK_BYTES], &changes, 12);
                }
            }
        }
        let grows = copies(&spoiled);
        match Bench::start(journaled(), spoiled) {
            Ok(mut bench) => {
                use_it(&mut bench);
                used += 1;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        }
        let mut grows = grows.0;
        let mut all: Vec<Option<&mut dyn BlockDevice>> =
            grows[..5].iter_mut().map(|member| Some(member as &mut dyn BlockDevice)).collect();
        let mut steps = 0;
        let _ = add_member(&mut all, None, 99, 64 << 10, &mut |_, _| {
            steps += 1;
            if steps > 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    }
    assert!(used > 30 && refused > 30, "{used} used, {refused} refused");
}

#[test]
fn superblocks_of_growth_with_any_numbers_are_used_or_refused() {
    let mut draw = Draw(8);
    let mut members: Vec<Memory> = (0..4).map(|_| Memory(vec![0; (MEMBER * 512) as usize])).collect();
    let mut all: Vec<Option<&mut dyn BlockDevice>> =
        members.iter_mut().map(|member| Some(member as &mut dyn BlockDevice)).collect();
    create(&mut all[..3], &config(Level::Raid5, 3), *b"an array of test", true).expect("made");
    let mut steps = 0;
    add_member(&mut all, None, 99, 16 << 10, &mut |_, _| {
        steps += 1;
        if steps > 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .expect_err("stopped amid it");
    for _ in 0..500 {
        let mut spoiled: Vec<Memory> = members.iter().map(|member| Memory(member.0.clone())).collect();
        let changes = changes(&mut draw, HEAD as u64, SUPERBLOCK_BYTES as u64);
        let reshape =
            (draw.below(3) > 0).then(|| (RESHAPE.start + 4 * draw.below(3) as usize, 4, draw.number()));
        let changes: Vec<_> = changes.into_iter().chain(reshape).collect();
        for member in &mut spoiled {
            for at in COPY_SECTORS.map(|at| at.bytes() as usize) {
                spoil(&mut member.0[at..at + SUPERBLOCK_BYTES], &changes, 12);
            }
        }
        let mut all: Vec<Option<&mut dyn BlockDevice>> =
            spoiled.iter_mut().map(|member| Some(member as &mut dyn BlockDevice)).collect();
        let _ = add_member(&mut all, None, 99, 64 << 10, &mut |_, _| ControlFlow::Continue(()));
    }
}

#[test]
fn records_with_any_numbers_are_replayed_or_refused() {
    let mut draw = Draw(9);
    let members = cut_off();
    let journal = members.0.len() - 1;
    let layout =
        Layout::new(Level::Raid5.shape(4).expect("a shape"), STRIP, MEMBER - DATA_SECTOR, CacheUnit::Stripe);
    let slots = Slots::new(&layout, members.0[journal].geometry().sectors);
    let slot_bytes = (slots.bytes_min() / Slots::COUNT_MIN) as usize;
    let (superblock, _) = ArraySuperblock::read(&mut copies(&members).0[0]).expect("it has one");
    let mut device = Memory(members.0[journal].0.clone());
    let pending = journal::pending(&mut device, &slots, superblock.uuid, superblock.epoch).expect("whole");
    assert!(superblock.active && !pending.records.is_empty(), "{pending:?}");
    let (mut used, mut refused) = (0, 0);
    for _ in 0..400 {
        let mut spoiled = copies(&members);
        let changes = changes(&mut draw, 72 + 4 * 16, 4096);
        let one = draw.below(2 * slots.count) as usize;
        for slot in (0..slots.count as usize).filter(|slot| one >= slots.count as usize || one == *slot) {
            let at = slot * slot_bytes;
            let header = &mut spoiled.0[journal].0[at..at + slots.header_bytes()];
            if header[..8] == *b"DCDRJRNL" {
                spoil(header, &changes, 8);
            }
        }
        match Bench::start(journaled(), spoiled) {
            Ok(mut bench) => {
                use_it(&mut bench);
                used += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(used > 15 && refused > 15, "{used} used, {refused} refused");
}
