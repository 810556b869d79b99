//! Generated requests for `dcd simulate` and for the demonstration in virtual time: a stream of operations with the pauses
//! before them, the same for the same seed.

use dcd_crash::SimRng;
use dcd_engine::{Buf, Durability, Io, Lba, Nanos, SECTOR_BYTES};

use crate::cli_simulate::Workload;

const BLOCK_BYTES: u64 = 4096;
const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES;
const STREAM_BYTES: u64 = 256 << 10;
/// The smallest device that every workload fits on.
pub const DEVICE_BYTES_MIN: u64 = STREAM_BYTES;

/// An operation of a client that waits for each answer before it goes on.
pub struct Step {
    /// Pause of the client before the operation.
    pub pause: Nanos,
    pub io: Io,
}

/// An endless stream of operations on a device of `sectors`.
pub struct Stream {
    workload: Workload,
    random: SimRng,
    sectors: u64,
    count: u64,
    /// Position of the next sequential write.
    position: u64,
}

impl Stream {
    /// # Panics
    /// On a device of less than [`DEVICE_BYTES_MIN`].
    pub fn new(workload: Workload, sectors: u64, seed: u64) -> Stream {
        assert!(sectors * SECTOR_BYTES >= DEVICE_BYTES_MIN, "the caller has checked the size");
        Stream { workload, random: SimRng::new(seed), sectors, count: 0, position: 0 }
    }

    pub fn next_step(&mut self) -> Step {
        let count = self.count;
        self.count += 1;
        let io = match self.workload {
            Workload::RandomWrites if count % 17 == 16 => Io::Flush,
            Workload::FsyncWrites if count % 2 == 1 => Io::Flush,
            Workload::RandomWrites | Workload::FsyncWrites => self.write(),
            Workload::Mixed if self.random.chance(500) => {
                Io::Read { at: self.anywhere(), buf: Buf::zeroed(BLOCK_BYTES as usize) }
            }
            Workload::Mixed => self.write(),
            Workload::Sequential => self.stream(),
        };
        // Bursts of 64 with half a second between them, so that there is idle time to destage in.
        let pauses = matches!(self.workload, Workload::Mixed) && count % 64 == 63;
        let pause = if pauses { Nanos::from_millis(500) } else { Nanos::ZERO };
        Step { pause, io }
    }

    fn anywhere(&mut self) -> Lba {
        Lba(self.random.below(self.sectors / BLOCK_SECTORS) * BLOCK_SECTORS)
    }

    fn write(&mut self) -> Io {
        let at = self.anywhere();
        let stamp = self.random.next_u64().to_le_bytes();
        let bytes = stamp.repeat(BLOCK_BYTES as usize / stamp.len());
        Io::Write { at, buf: Buf::copy_of(&bytes), durability: Durability::Volatile }
    }

    fn stream(&mut self) -> Io {
        let sectors = STREAM_BYTES / SECTOR_BYTES;
        if self.position + sectors > self.sectors {
            self.position = 0;
        }
        let at = Lba(self.position);
        self.position += sectors;
        Io::Write { at, buf: Buf::zeroed(STREAM_BYTES as usize), durability: Durability::Volatile }
    }
}
