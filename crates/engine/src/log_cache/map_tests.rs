//! The state of sectors beside what a read returns.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::env::DATA;
use super::testing_steps::{Steps, ZEROES, quiet};
use crate::layer::{Discards, Durability, Io, MapPart, MapSource, SectorState};
use crate::{Extent, Lba, SECTOR_BYTES};

const SECTORS: u64 = 256;
const FIRST: u64 = 2176;

/// State of each sector; those of the data disk by what it holds.
fn map(steps: &Steps) -> Vec<SectorState> {
    let end = FIRST + SECTORS;
    let (mut at, mut states) = (FIRST, Vec::new());
    while at < end {
        let MapPart { sectors, source } = steps.core.view().map(0, Extent::new(Lba(at), end - at));
        assert!(sectors > 0 && at + sectors <= end);
        states.extend((at..at + sectors).map(|lba| match source {
            MapSource::Known(state) => state,
            MapSource::Below(port, place) => {
                assert_eq!((port, place), (DATA, Lba(at)));
                let bytes = &steps.disks.0[DATA.0].bytes[(lba * SECTOR_BYTES) as usize..][..512];
                if bytes.iter().all(|byte| *byte == 0) { SectorState::Hole } else { SectorState::Data }
            }
        }));
        at += sectors;
    }
    states
}

fn zeroes(at: u64, sectors: u64, unmap: bool) -> Io {
    Io::WriteZeroes { extent: Extent::new(Lba(at), sectors), unmap, durability: Durability::Volatile }
}

#[test]
fn what_is_known_of_sectors_is_told_whether_it_is_destaged_or_not() {
    for discards in [Discards::Zero, Discards::Advisory] {
        let mut steps = Steps::new(8, quiet());
        (steps.data().holes, steps.data().discards) = (true, discards);
        let mut steps = steps.restart(quiet());
        let before = FIRST * SECTOR_BYTES;
        steps.data().bytes[before as usize..][..(SECTORS * SECTOR_BYTES) as usize].fill(0);
        steps.write(FIRST + 3, 5, 1);
        steps.send(zeroes(FIRST + 16, 16, true));
        steps.write(FIRST + 20, 2, 2);
        steps.send(zeroes(FIRST + 40, 8, false));
        steps.send(Io::Discard { extent: Extent::new(Lba(FIRST + 64), 64) });
        let discarded = if discards == Discards::Zero { SectorState::Hole } else { SectorState::Data };
        let mut expected = vec![SectorState::Hole; SECTORS as usize];
        expected[3..8].fill(SectorState::Data);
        expected[20..22].fill(SectorState::Data);
        expected[40..48].fill(SectorState::Zeroes);
        expected[64..128].fill(discarded);
        assert_eq!(map(&steps), expected);
        steps.drain();
        // The disk of the test has holes where it has zeroes.
        expected[40..48].fill(SectorState::Hole);
        expected[64..128].fill(SectorState::Hole);
        assert_eq!(map(&steps), expected);
    }
}

#[test]
fn a_disk_that_cannot_tell_its_holes_is_full_of_data() {
    let mut steps = Steps::new(8, quiet());
    steps.send(zeroes(FIRST + 16, 16, true));
    let mut expected = vec![SectorState::Data; SECTORS as usize];
    expected[16..32].fill(SectorState::Hole);
    assert_eq!(map(&steps), expected);
}

/// Sectors that are not called data read as zeroes, at any time between requests, held back destages included.
#[test]
fn no_sector_with_data_is_called_zero() {
    for seed in 0..60 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut steps = Steps::new(8, quiet());
        steps.data().holes = true;
        let mut steps = steps.restart(quiet());
        let start = (FIRST * SECTOR_BYTES) as usize;
        steps.data().bytes[start..][..(SECTORS * SECTOR_BYTES) as usize].fill(0);
        for round in 0..60 {
            let at = random.random_range(0..SECTORS - 24);
            let sectors = random.random_range(1..24);
            match random.random_range(0..8) {
                0..3 => _ = steps.write(FIRST + at, sectors, round + 1),
                3 => _ = steps.send(zeroes(FIRST + at, sectors, random.random())),
                4 => _ = steps.send(Io::Discard { extent: Extent::new(Lba(FIRST + at), sectors) }),
                5 => steps.drain(),
                6 => {
                    // A destage that is cut off: its operations are held.
                    steps.hold = Box::new(|port, io| port == DATA && !matches!(io, Io::Read { .. }));
                    steps.control(crate::layer::Control::Drain);
                }
                _ => steps.let_go(),
            }
            let states = map(&steps);
            for (place, state) in states.iter().enumerate() {
                if *state != SectorState::Data {
                    assert_eq!(
                        steps.read(FIRST + place as u64),
                        Some(ZEROES),
                        "seed {seed}, round {round}, {place}"
                    );
                }
            }
        }
        steps.let_go();
        steps.drain();
        let known = map(&steps).iter().filter(|state| **state != SectorState::Data).count();
        assert!(known > 0, "seed {seed}");
    }
}
