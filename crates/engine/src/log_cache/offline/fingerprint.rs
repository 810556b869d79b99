//! The fingerprint of the data disk: a checksum of each 4 KiB of its first and last MiB, where file systems, partition tables
//! and volume managers keep what changes whenever somebody uses the disk without its cache.

use crate::log_cache::format::{FINGERPRINT_BLOCKS, FINGERPRINT_END_BLOCKS, fingerprint_index};
use crate::{BlockDevice, ErrorKind, IoError, LINE_BYTES, LINE_SECTORS, Lba};

/// The lines that a fingerprint covers, ascending.
fn lines(data_sectors: u64) -> impl Iterator<Item = u64> {
    let lines = data_sectors / LINE_SECTORS;
    let ends = FINGERPRINT_END_BLOCKS as u64;
    (0..lines.min(ends)).chain(lines.saturating_sub(ends).max(ends)..lines.max(ends))
}

/// Computes the fingerprint of a data disk of this size (the size that was formatted: a disk may have grown since). Blocks that
/// cannot be read are unknown. Each end is one request; only an end with unreadable blocks is read again, block by block.
pub fn read_fingerprint(data: &mut dyn BlockDevice, data_sectors: u64) -> Result<Vec<Option<u32>>, IoError> {
    let mut fingerprint = vec![None; FINGERPRINT_BLOCKS];
    let (head, tail): (Vec<u64>, Vec<u64>) =
        lines(data_sectors).partition(|line| *line < FINGERPRINT_END_BLOCKS as u64);
    for end in [head, tail] {
        if !note_lines(data, data_sectors, &end, &mut fingerprint)? {
            for line in end {
                note_lines(data, data_sectors, &[line], &mut fingerprint)?;
            }
        }
    }
    Ok(fingerprint)
}

/// Reads lines that follow one another with one request; false where the medium cannot read one of them.
fn note_lines(
    data: &mut dyn BlockDevice,
    data_sectors: u64,
    lines: &[u64],
    fingerprint: &mut [Option<u32>],
) -> Result<bool, IoError> {
    let Some(first) = lines.first() else { return Ok(true) };
    let buf = match data.read(Lba(first * LINE_SECTORS), lines.len() * LINE_BYTES as usize) {
        Ok(buf) => buf,
        Err(error) if matches!(error.kind, ErrorKind::Medium | ErrorKind::Lost) => return Ok(false),
        Err(error) => return Err(error),
    };
    // A blank buffer has no bytes to know.
    for (line, block) in lines.iter().zip(buf.bytes().chunks_exact(LINE_BYTES as usize)) {
        if let Some(index) = fingerprint_index(data_sectors, *line) {
            fingerprint[index] = Some(crc32c::crc32c(block));
        }
    }
    Ok(true)
}

/// The lines whose content is known in both and differs, but for those that the cache itself may have written since (`exempt`):
/// the lines in any record of the log.
pub fn compare_fingerprint(
    data_sectors: u64,
    recorded: &[Option<u32>],
    actual: &[Option<u32>],
    exempt: &dyn Fn(u64) -> bool,
) -> Vec<u64> {
    let differs = |line: &u64| {
        let index = fingerprint_index(data_sectors, *line);
        let both = index.and_then(|index| Some(((*recorded.get(index)?)?, (*actual.get(index)?)?)));
        both.is_some_and(|(recorded, actual)| recorded != actual) && !exempt(*line)
    };
    lines(data_sectors).filter(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_cache::testing::Ram;
    use crate::{Geometry, Io, IoResult};

    struct Counted(Ram, u64);

    impl BlockDevice for Counted {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }

        fn run(&mut self, io: Io) -> IoResult {
            self.1 += 1;
            self.0.run(io)
        }
    }

    #[test]
    fn each_end_of_the_disk_is_one_request_unless_it_has_bad_blocks() {
        for sectors in [8, 3000, 5000, 8192] {
            let mut disk = Counted(Ram::new(sectors), 0);
            let good = read_fingerprint(&mut disk, sectors).unwrap();
            assert!(disk.1 <= 2, "{} requests for {sectors} sectors", disk.1);
            assert_eq!(good.iter().flatten().count() as u64, (sectors / LINE_SECTORS).min(512));
            disk.0.unreadable.insert(9);
            let bad = read_fingerprint(&mut disk, sectors).unwrap();
            let unknown: Vec<usize> = (0..512).filter(|&index| bad[index] != good[index]).collect();
            assert_eq!(unknown, if sectors > 9 { vec![1] } else { vec![] });
        }
    }
}
