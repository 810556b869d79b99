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
/// cannot be read are unknown.
pub fn read_fingerprint(data: &mut dyn BlockDevice, data_sectors: u64) -> Result<Vec<Option<u32>>, IoError> {
    let mut fingerprint = vec![None; FINGERPRINT_BLOCKS];
    for line in lines(data_sectors) {
        let Some(index) = fingerprint_index(data_sectors, line) else { continue };
        match data.read(Lba(line * LINE_SECTORS), LINE_BYTES as usize) {
            // A blank buffer has no bytes to know.
            Ok(block) if !block.bytes().is_empty() => {
                fingerprint[index] = Some(crc32c::crc32c(block.bytes()))
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind, ErrorKind::Medium | ErrorKind::Lost) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(fingerprint)
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
