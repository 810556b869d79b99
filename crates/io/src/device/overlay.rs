//! A device that is only inspected: writes to it stay in RAM, and are dropped with the overlay.

use std::collections::BTreeMap;

use dcd_engine::{BlockDevice, Discards, Extent, Geometry, Io, IoResult, SECTOR_BYTES};

use super::check;

const SECTOR: usize = SECTOR_BYTES as usize;

/// See the module's documentation. Its users see a device that can be written.
pub struct Overlay {
    below: Box<dyn BlockDevice>,
    geometry: Geometry,
    written: BTreeMap<u64, [u8; SECTOR]>,
}

impl Overlay {
    pub fn new(below: impl BlockDevice + 'static) -> Overlay {
        let geometry =
            Geometry { read_only: false, discards: Discards::No, fast_zeroes: false, ..below.geometry() };
        Overlay { below: Box::new(below), geometry, written: BTreeMap::new() }
    }

    fn run_read(&mut self, io: Io) -> IoResult {
        let extent = io.extent().expect("it is a read");
        let mut result = self.below.run(io);
        if result.status.is_ok() {
            for (sector, bytes) in self.written.range(extent.start.0..extent.end().0) {
                let at = (sector - extent.start.0) as usize * SECTOR;
                result.buf.bytes_mut()[at..at + SECTOR].copy_from_slice(bytes);
            }
        }
        result
    }

    fn fill(&mut self, extent: Extent) {
        self.written.extend((extent.start.0..extent.end().0).map(|sector| (sector, [0; SECTOR])));
    }
}

impl BlockDevice for Overlay {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn run(&mut self, io: Io) -> IoResult {
        if let Err(error) = check(&self.geometry, &io) {
            return IoResult::err(io.take_buf(), error);
        }
        match &io {
            Io::Read { .. } | Io::ReadCopy { .. } => return self.run_read(io),
            Io::Write { at, buf, .. } | Io::WriteCopy { at, buf, .. } => {
                let sectors = buf.bytes().chunks_exact(SECTOR);
                let numbered = (at.0..).zip(sectors.map(|bytes| bytes.try_into().expect("a whole sector")));
                self.written.extend(numbered);
            }
            Io::Discard { extent } | Io::WriteZeroes { extent, .. } => self.fill(*extent),
            Io::Flush => {}
        }
        IoResult::ok(io.take_buf())
    }
}

#[cfg(test)]
mod tests {
    use dcd_engine::{Buf, Durability, Lba};

    use super::*;
    use crate::{FileDevice, FileSpec};

    #[test]
    fn what_is_written_is_read_again_and_the_file_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, [7; 8 * 4096]).unwrap();
        let spec = FileSpec { read_only: true, ..FileSpec::new(&path) };
        let mut overlay = Overlay::new(FileDevice::open(&spec).unwrap());
        assert!(!overlay.geometry().read_only);
        overlay.write(Lba(8), Buf::copy_of(&[9; 4096])).unwrap();
        let zeroes =
            Io::WriteZeroes { extent: Extent::new(Lba(24), 8), unmap: true, durability: Durability::Durable };
        overlay.run(zeroes).status.unwrap();
        overlay.flush().unwrap();
        let all = overlay.read(Lba(0), 8 * 4096).unwrap();
        let pages: Vec<u8> = all.bytes().chunks(4096).map(|page| page[0]).collect();
        assert_eq!(pages, [7, 9, 7, 0, 7, 7, 7, 7]);
        assert!(all.bytes().chunks(4096).all(|page| page.iter().all(|byte| *byte == page[0])));
        assert!(overlay.write(Lba(64), Buf::copy_of(&[9; 4096])).is_err(), "it is behind the end");
        drop(overlay);
        assert_eq!(std::fs::read(&path).unwrap(), [7; 8 * 4096]);
    }
}
