//! A disk in memory for long runs whose data is blank: it keeps only what is not zero, sector by sector, and cannot be cut.
//!
//! Under such a run a log has headers and nothing between them. Of a header most is zero, too: a sector is kept up to its last
//! byte that is not.

use std::collections::BTreeMap;

use dcd_engine::{BlockDevice, Buf, Geometry, Io, IoResult, Lba, Nanos, SECTOR_BYTES};

use dcd_crash::{Flights, Latency, SimDevice, SimRng, Ticket};

const SECTOR: usize = SECTOR_BYTES as usize;

/// See the module's documentation.
#[derive(Debug)]
pub struct SparseDisk {
    geometry: Geometry,
    latency: Latency,
    rng: SimRng,
    /// The sectors that are not zero, without the zeroes at their ends.
    sectors: BTreeMap<u64, Box<[u8]>>,
    flights: Flights<Io>,
}

/// Compared as a whole: byte by byte, looking for what is not zero takes more time than all else in a run.
const ZEROES: [u8; SECTOR] = [0; SECTOR];

/// A sector up to its last byte that is not zero.
fn trimmed(sector: &[u8]) -> &[u8] {
    if sector == ZEROES {
        return &[];
    }
    let end = sector.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    &sector[..end]
}

impl SparseDisk {
    pub fn new(geometry: Geometry, latency: Latency, seed: u64) -> SparseDisk {
        SparseDisk {
            geometry,
            latency,
            rng: SimRng::new(seed),
            sectors: BTreeMap::new(),
            flights: Flights::default(),
        }
    }

    fn zero(&mut self, start: Lba, sectors: u64) {
        while let Some((&sector, _)) = self.sectors.range(start.0..start.0 + sectors).next() {
            self.sectors.remove(&sector);
        }
    }

    fn put(&mut self, start: Lba, bytes: &[u8]) {
        self.zero(start, (bytes.len() / SECTOR) as u64);
        for (sector, bytes) in (start.0..).zip(bytes.chunks_exact(SECTOR)) {
            let kept = trimmed(bytes);
            if !kept.is_empty() {
                self.sectors.insert(sector, kept.into());
            }
        }
    }

    fn get(&self, start: Lba, bytes: &mut [u8]) {
        bytes.fill(0);
        let end = start.0 + (bytes.len() / SECTOR) as u64;
        for (sector, kept) in self.sectors.range(start.0..end) {
            let at = (sector - start.0) as usize * SECTOR;
            bytes[at..at + kept.len()].copy_from_slice(kept);
        }
    }
}

impl SimDevice for SparseDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, now: Nanos, io: Io) -> Ticket {
        let done = now + self.latency.draw(&mut self.rng);
        Ticket { token: self.flights.insert(io), done }
    }

    fn finish(&mut self, _now: Nanos, token: u32) -> IoResult {
        let mut io = self.flights.remove(token);
        if let Err(error) = self.geometry.validate(&io) {
            return IoResult::err(io.take_buf(), error);
        }
        match &mut io {
            Io::Read { at, buf } | Io::ReadCopy { at, buf, .. } if !buf.is_blank() => {
                self.get(*at, buf.bytes_mut());
            }
            Io::Read { .. } | Io::ReadCopy { .. } | Io::Flush => {}
            Io::Write { at, buf, .. } | Io::WriteCopy { at, buf, .. } if !buf.is_blank() => {
                self.put(*at, buf.bytes())
            }
            Io::Write { .. } | Io::WriteCopy { .. } | Io::WriteZeroes { .. } | Io::Discard { .. } => {
                let extent = io.extent().expect("it changes something");
                self.zero(extent.start, extent.sectors);
                if matches!(io, Io::Discard { .. }) {
                    return IoResult::ok(Buf::none());
                }
            }
        }
        IoResult::ok(io.take_buf())
    }
}

impl BlockDevice for SparseDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn run(&mut self, io: Io) -> IoResult {
        let ticket = self.submit(Nanos::ZERO, io);
        self.finish(Nanos::ZERO, ticket.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_take_no_memory_and_other_sectors_what_is_in_them() {
        let mut disk = SparseDisk::new(Geometry::plain(1 << 31), Latency::INSTANT, 0);
        let mut bytes = vec![0; 64 * SECTOR];
        bytes[5 * SECTOR + 7] = 9;
        disk.put(Lba(100), &bytes);
        assert_eq!(disk.sectors.iter().map(|(at, kept)| (*at, kept.len())).collect::<Vec<_>>(), [(105, 8)]);
        disk.put(Lba(104), &[0; 2 * SECTOR]);
        assert!(disk.sectors.is_empty());
    }
}
