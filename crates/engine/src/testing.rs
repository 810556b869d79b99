//! Tests a [`BlockDevice`], simulated or real: the suite that every device must pass.
//!
//! The suite destroys what is on the device. A failure panics with the step, the place and the seed, so that a test which
//! calls it fails with what is needed to repeat it. There is no randomness from outside: the seed is an argument.

use crate::{
    BlockDevice, Buf, Discards, Durability, ErrorKind, Extent, Geometry, Io, IoError, LINE_SECTORS, Lba,
    SECTOR_BYTES,
};

/// The most of a device that the random run covers: its oracle is as large.
const ORACLE_SECTORS_MAX: u64 = 8 << 11;
/// The longest request of the random run.
const RANDOM_SECTORS_MAX: u64 = 256;
const RANDOM_STEPS: usize = 2_000;

/// Runs everything on a device of at least 1 MiB.
///
/// # Panics
/// Where the device does not behave as [`BlockDevice`] and [`Geometry`] say.
pub fn conformance(device: &mut dyn BlockDevice, seed: u64) {
    let geometry = device.geometry();
    assert!(geometry.sectors >= 2048, "the suite needs a device of at least 1 MiB");
    assert!(!geometry.read_only, "the suite writes");
    let mut suite = Suite { block: u64::from(geometry.logical_block_bytes) / SECTOR_BYTES, geometry, device };
    suite.sizes_and_offsets();
    suite.boundaries();
    suite.malformed();
    suite.overlaps();
    suite.durability();
    suite.zeroes(false);
    suite.zeroes(true);
    suite.discards();
    suite.random(seed);
}

/// The suite for a read-only device: it reads, and takes no writes.
///
/// # Panics
/// Where a write is taken or a read is refused.
pub fn conformance_read_only(device: &mut dyn BlockDevice) {
    let geometry = device.geometry();
    assert!(geometry.read_only);
    let block = geometry.logical_block_bytes as usize;
    let extent = Extent::new(Lba(0), block as u64 / SECTOR_BYTES);
    device.read(Lba(0), block).expect("a read-only device reads");
    let before = device.read(Lba(0), block).expect("read").bytes().to_vec();
    let writes = [
        Io::Write { at: Lba(0), buf: Buf::copy_of(&vec![0xee; block]), durability: Durability::Durable },
        Io::WriteZeroes { extent, unmap: false, durability: Durability::Volatile },
    ];
    for io in writes {
        let name = io.name();
        let error = device.run(io).status.expect_err(name);
        assert_eq!(error.kind, ErrorKind::ReadOnly, "{name} on a read-only device");
    }
    device.run(Io::Discard { extent }).status.expect_err("a read-only device discards nothing");
    assert_eq!(device.read(Lba(0), block).expect("read").bytes(), before, "nothing changed");
}

struct Suite<'a> {
    device: &'a mut dyn BlockDevice,
    geometry: Geometry,
    /// Sectors in a logical block.
    block: u64,
}

/// Bytes that tell the sector and the version they belong to.
fn pattern(at: Lba, sectors: u64, version: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((sectors * SECTOR_BYTES) as usize);
    for sector in at.0..at.0 + sectors {
        let mut state =
            Mix(sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version.wrapping_mul(0xbf58_476d_1ce4_e5b9));
        for _ in 0..SECTOR_BYTES / 8 {
            bytes.extend_from_slice(&state.next().to_le_bytes());
        }
    }
    bytes
}

/// A small generator (splitmix64): enough to mix operations, and the same for ever.
struct Mix(u64);

impl Mix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

impl Suite<'_> {
    fn write(&mut self, at: Lba, bytes: &[u8], durability: Durability) {
        let status = self.device.run(Io::Write { at, buf: Buf::copy_of(bytes), durability }).status;
        status.unwrap_or_else(|e| panic!("writing {} bytes at {at}: {e}", bytes.len()));
    }

    fn expect(&mut self, at: Lba, wanted: &[u8], step: &str) {
        // What a device leaves untouched must not look right by chance.
        let result = self.device.run(Io::Read { at, buf: Buf::copy_of(&vec![0x5a; wanted.len()]) });
        result.status.unwrap_or_else(|e| panic!("{step}: reading {} bytes at {at}: {e}", wanted.len()));
        assert_eq!(result.buf.len(), wanted.len(), "{step}: a read at {at} gives its buffer back");
        if let Some(wrong) = result.buf.bytes().iter().zip(wanted).position(|(a, b)| a != b) {
            let place = at + wrong as u64 / SECTOR_BYTES;
            panic!("{step}: wrong data at {place} (byte {}) of a read at {at}", wrong as u64 % SECTOR_BYTES);
        }
    }

    fn refuse(&mut self, io: Io, kinds: &[ErrorKind]) {
        let what = format!("{} at {:?}", io.name(), io.extent());
        let IoError { kind, .. } = self.device.run(io).status.expect_err(&what);
        assert!(kinds.contains(&kind), "{what} gave {kind:?}, not one of {kinds:?}");
    }

    /// Sectors rounded down to whole blocks, at least one.
    fn blocks(&self, sectors: u64) -> u64 {
        (sectors / self.block).max(1) * self.block
    }

    fn sizes_and_offsets(&mut self) {
        let mut version = 1;
        for sectors in [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 127, 128, 255, 256, 1024] {
            let sectors = self.blocks(sectors);
            for at in [0, 1, 2, 7, 8, 9, 63, 127, 128, 129, 1000] {
                let at = Lba(at / self.block * self.block);
                let bytes = pattern(at, sectors, version);
                self.write(at, &bytes, Durability::Volatile);
                self.expect(at, &bytes, "read after write");
                let part = self.blocks(sectors / 2);
                let skip = sectors - part;
                self.expect(at + skip, &bytes[(skip * SECTOR_BYTES) as usize..], "read of a part");
                version += 1;
            }
        }
    }

    fn boundaries(&mut self) {
        let end = self.geometry.sectors;
        for sectors in [1, LINE_SECTORS, 64] {
            let sectors = self.blocks(sectors);
            let at = Lba(end - sectors);
            let bytes = pattern(at, sectors, 77);
            self.write(at, &bytes, Durability::Volatile);
            self.expect(at, &bytes, "the last sectors");
        }
    }

    fn malformed(&mut self) {
        let last = Lba(self.geometry.sectors - self.block);
        let kept = pattern(last, self.block, 78);
        self.write(last, &kept, Durability::Volatile);
        let block_bytes = (self.block * SECTOR_BYTES) as usize;
        let past = [Lba(self.geometry.sectors), last, Lba(u64::MAX / SECTOR_BYTES / self.block * self.block)];
        for at in past {
            let bytes = 2 * block_bytes;
            let extent = Extent::new(at, 2 * self.block);
            let durability = Durability::Volatile;
            self.refuse(Io::Read { at, buf: Buf::zeroed(bytes) }, &[ErrorKind::OutOfRange]);
            self.refuse(Io::Write { at, buf: Buf::zeroed(bytes), durability }, &[ErrorKind::OutOfRange]);
            self.refuse(Io::WriteZeroes { extent, unmap: true, durability }, &[ErrorKind::OutOfRange]);
            self.refuse(Io::Discard { extent }, &[ErrorKind::OutOfRange, ErrorKind::Unsupported]);
        }
        if self.block > 1 {
            let kinds = [ErrorKind::Invalid];
            self.refuse(Io::Read { at: Lba(1), buf: Buf::zeroed(block_bytes) }, &kinds);
            let buf = Buf::zeroed(SECTOR_BYTES as usize);
            self.refuse(Io::Write { at: Lba(0), buf, durability: Durability::Volatile }, &kinds);
        }
        self.expect(last, &kept, "after refused writes");
    }

    fn overlaps(&mut self) {
        let sectors = self.blocks(64);
        let base = Lba(self.blocks(512));
        let mut oracle = pattern(base, sectors, 1000);
        self.write(base, &oracle, Durability::Volatile);
        for version in 1001..1040 {
            let skip = self.block * (version % (sectors / self.block));
            let count = self.blocks((sectors - skip) / 2).min(sectors - skip);
            let bytes = pattern(base + skip, count, version);
            let start = (skip * SECTOR_BYTES) as usize;
            oracle[start..start + bytes.len()].copy_from_slice(&bytes);
            self.write(base + skip, &bytes, Durability::Volatile);
            self.expect(base, &oracle, "overlapping writes");
        }
    }

    fn durability(&mut self) {
        let sectors = self.blocks(16);
        let bytes = pattern(Lba(0), sectors, 2000);
        self.write(Lba(0), &bytes, Durability::Durable);
        self.expect(Lba(0), &bytes, "after a durable write");
        self.device.flush().expect("a flush with something to flush");
        self.device.flush().expect("a flush with nothing to flush");
        self.expect(Lba(0), &bytes, "after a flush");
    }

    /// Zeroes over data, the neighbours untouched.
    fn zeroes(&mut self, unmap: bool) {
        for (skip, count, durability) in
            [(8, 16, Durability::Volatile), (1, 1, Durability::Durable), (3, 300, Durability::Durable)]
        {
            let (skip, count) = (self.blocks(skip), self.blocks(count));
            let all = skip + count + self.blocks(8);
            let mut oracle = pattern(Lba(0), all, 3000);
            self.write(Lba(0), &oracle, Durability::Volatile);
            let extent = Extent::new(Lba(skip), count);
            let status = self.device.run(Io::WriteZeroes { extent, unmap, durability }).status;
            status.unwrap_or_else(|e| panic!("zeroes at {extent}: {e}"));
            oracle[(skip * SECTOR_BYTES) as usize..((skip + count) * SECTOR_BYTES) as usize].fill(0);
            self.expect(Lba(0), &oracle, "after zeroes");
        }
    }

    fn discards(&mut self) {
        let (skip, count) = (self.blocks(24), self.blocks(200));
        let all = skip + count + self.blocks(8);
        let mut oracle = pattern(Lba(0), all, 4000);
        self.write(Lba(0), &oracle, Durability::Volatile);
        let extent = Extent::new(Lba(skip), count);
        let status = self.device.run(Io::Discard { extent }).status;
        if self.geometry.discards == Discards::No {
            // Refusing is right, and so is ignoring it; the neighbours stay either way.
            self.expect(Lba(0), &oracle[..(skip * SECTOR_BYTES) as usize], "before a discard");
            return;
        }
        status.unwrap_or_else(|e| panic!("a discard at {extent}: {e}"));
        let discarded = (skip * SECTOR_BYTES) as usize..((skip + count) * SECTOR_BYTES) as usize;
        self.expect(Lba(0), &oracle[..discarded.start], "before a discard");
        self.expect(Lba(skip + count), &oracle[discarded.end..], "behind a discard");
        if self.geometry.discards == Discards::Zero {
            oracle[discarded].fill(0);
            self.expect(Lba(0), &oracle, "after a discard");
        }
        let again = pattern(Lba(skip), count, 4001);
        self.write(Lba(skip), &again, Durability::Volatile);
        self.expect(Lba(skip), &again, "written after a discard");
    }

    /// Random operations beside an array of bytes that knows what must be read.
    fn random(&mut self, seed: u64) {
        let sectors = self.geometry.sectors.min(ORACLE_SECTORS_MAX) / self.block * self.block;
        let everything = Extent::new(Lba(0), sectors);
        let zeroes = Io::WriteZeroes { extent: everything, unmap: true, durability: Durability::Volatile };
        self.device.run(zeroes).status.unwrap_or_else(|e| panic!("zeroing everything: {e}"));
        let mut oracle = vec![0u8; (sectors * SECTOR_BYTES) as usize];
        let mut mix = Mix(seed);
        for step in 0..RANDOM_STEPS {
            let at = Lba(mix.below(sectors / self.block) * self.block);
            let longest = (sectors - at.0).min(RANDOM_SECTORS_MAX);
            let count = self.blocks(1 + mix.below(longest)).min(sectors - at.0);
            self.random_step(
                &mut mix,
                &mut oracle,
                Extent::new(at, count),
                &format!("seed {seed}, step {step}"),
            );
        }
        let label = format!("seed {seed}, at the end");
        for at in (0..sectors).step_by(2048) {
            let count = (sectors - at).min(2048);
            let range = (at * SECTOR_BYTES) as usize..((at + count) * SECTOR_BYTES) as usize;
            self.expect(Lba(at), &oracle[range], &label);
        }
    }

    fn random_step(&mut self, mix: &mut Mix, oracle: &mut [u8], extent: Extent, label: &str) {
        let range = extent.start.bytes() as usize..extent.end().bytes() as usize;
        let durability = if mix.below(4) == 0 { Durability::Durable } else { Durability::Volatile };
        match mix.below(20) {
            0..8 => {
                let bytes = pattern(extent.start, extent.sectors, mix.next());
                oracle[range].copy_from_slice(&bytes);
                self.write(extent.start, &bytes, durability);
            }
            8..16 => self.expect(extent.start, &oracle[range], label),
            16 => self.device.flush().unwrap_or_else(|e| panic!("{label}: flush: {e}")),
            17 if self.geometry.discards == Discards::Zero => {
                oracle[range].fill(0);
                let status = self.device.run(Io::Discard { extent }).status;
                status.unwrap_or_else(|e| panic!("{label}: discard: {e}"));
            }
            _ => {
                oracle[range].fill(0);
                let unmap = mix.below(2) == 0;
                let status = self.device.run(Io::WriteZeroes { extent, unmap, durability }).status;
                status.unwrap_or_else(|e| panic!("{label}: zeroes: {e}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IoResult;

    /// A plain array of bytes, with a bug to plant.
    struct Array {
        bytes: Vec<u8>,
        bug: Option<Bug>,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Bug {
        DropsTheLastSector,
        ForgetsZeroes,
        TakesMoreThanItHas,
    }

    impl Array {
        fn carry_out(&mut self, io: &mut Io) -> Result<(), IoError> {
            let Some(extent) = io.extent() else { return Ok(()) };
            let sectors = self.bytes.len() as u64 / SECTOR_BYTES;
            if extent.start.0.checked_add(extent.sectors).is_none_or(|end| end > sectors) {
                let hidden = self.bug == Some(Bug::TakesMoreThanItHas) && io.modifies();
                return if hidden { Ok(()) } else { Err(IoError::at(ErrorKind::OutOfRange, extent)) };
            }
            let place = &mut self.bytes[extent.start.bytes() as usize..extent.end().bytes() as usize];
            match io {
                Io::Read { buf, .. } => buf.bytes_mut().copy_from_slice(place),
                Io::Write { buf, .. } if self.bug == Some(Bug::DropsTheLastSector) && extent.sectors > 60 => {
                    let kept = place.len() - 512;
                    place[..kept].copy_from_slice(&buf.bytes()[..kept]);
                }
                Io::Write { buf, .. } => place.copy_from_slice(buf.bytes()),
                _ if self.bug == Some(Bug::ForgetsZeroes) => {}
                _ => place.fill(0),
            }
            Ok(())
        }
    }

    impl BlockDevice for Array {
        fn geometry(&self) -> Geometry {
            Geometry { discards: Discards::Zero, ..Geometry::plain(self.bytes.len() as u64 / SECTOR_BYTES) }
        }

        fn run(&mut self, mut io: Io) -> IoResult {
            let status = self.carry_out(&mut io);
            IoResult { buf: io.take_buf(), status }
        }
    }

    fn run(bug: Option<Bug>) {
        conformance(&mut Array { bytes: vec![0xa5; 2 << 20], bug }, 1);
    }

    #[test]
    fn an_honest_array_passes() {
        run(None);
    }

    #[test]
    #[should_panic(expected = "wrong data")]
    fn lost_sectors_are_caught() {
        run(Some(Bug::DropsTheLastSector));
    }

    #[test]
    #[should_panic(expected = "wrong data")]
    fn forgotten_zeroes_are_caught() {
        run(Some(Bug::ForgetsZeroes));
    }

    #[test]
    #[should_panic(expected = "write at")]
    fn writes_past_the_end_are_caught() {
        run(Some(Bug::TakesMoreThanItHas));
    }
}
