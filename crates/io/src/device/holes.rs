//! The holes of a file, found without reading it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use dcd_engine::{Extent, SECTOR_BYTES, SectorState};

/// Maximum number of runs that one call finds, as each takes two system calls.
const RUNS_MAX: usize = 256;

/// Adjacent sectors of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRun {
    pub sectors: u64,
    pub state: SectorState,
}

/// Describes the first sectors of an extent. A block counts as a hole if all of it is. The file's offset changes, which no transfer uses.
///
/// # Errors
/// Those of lseek.
pub(crate) fn runs(file: &File, extent: Extent, block_bytes: u64) -> io::Result<Vec<MappedRun>> {
    let (mut at, end) = (extent.start.bytes(), extent.end().bytes());
    let mut runs = Vec::new();
    while at < end && runs.len() < RUNS_MAX {
        let data = seek(file, at, libc::SEEK_DATA)?.map_or(end, |data| data.min(end));
        let begin = (data - data % block_bytes).max(at);
        let (next, state) = if begin > at {
            (begin, SectorState::Hole)
        } else if data == end {
            (end, SectorState::Hole)
        } else {
            let hole = seek(file, data, libc::SEEK_HOLE)?.unwrap_or(end);
            // Data may have become a hole in between.
            (hole.max(at + 1).next_multiple_of(block_bytes).min(end), SectorState::Data)
        };
        runs.push(MappedRun { sectors: (next - at) / SECTOR_BYTES, state });
        at = next;
    }
    Ok(runs)
}

/// Returns the next place of data, or of a hole, from `at` on; none if the file has no more.
fn seek(file: &File, at: u64, whence: libc::c_int) -> io::Result<Option<u64>> {
    let at = libc::off_t::try_from(at).map_err(io::Error::other)?;
    // SAFETY: a plain system call on an open descriptor.
    let found = unsafe { libc::lseek(file.as_raw_fd(), at, whence) };
    if let Ok(found) = u64::try_from(found) {
        return Ok(Some(found));
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use dcd_engine::Lba;

    use super::*;

    fn states(file: &File, sectors: u64, block: u64) -> Vec<(u64, SectorState)> {
        let found = runs(file, Extent::new(Lba(0), sectors), block).unwrap();
        found.iter().map(|run| (run.sectors, run.state)).collect()
    }

    #[test]
    fn data_and_holes_are_told_apart_in_whole_blocks() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.set_len(1 << 20).unwrap();
        assert_eq!(states(&file, 2048, 512), [(2048, SectorState::Hole)]);
        file.write_all_at(&[1; 4096], 256 << 10).unwrap();
        file.sync_all().unwrap();
        let found = states(&file, 2048, 4096);
        if found == [(2048, SectorState::Data)] {
            return eprintln!("SKIPPED: the file system has no holes");
        }
        let (hole, data) = (SectorState::Hole, SectorState::Data);
        assert_eq!(found, [(512, hole), (8, data), (1528, hole)]);
        // With larger blocks, no block of data counts as a hole.
        assert_eq!(states(&file, 2048, 64 << 10), [(512, hole), (128, data), (1408, hole)]);
        file.write_all_at(&[1; 4096], (1 << 20) - 4096).unwrap();
        assert_eq!(states(&file, 2048, 64 << 10).last(), Some(&(128, data)));
        let within = runs(&file, Extent::new(Lba(516), 100), 512).unwrap();
        assert_eq!(within[0], MappedRun { sectors: 4, state: data });
    }

    #[test]
    fn a_call_finds_a_bounded_number_of_runs() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.set_len(64 << 20).unwrap();
        for at in 0..512u64 {
            file.write_all_at(&[1; 4096], at * 65536 + 32768).unwrap();
        }
        let found = runs(&file, Extent::new(Lba(0), 128 << 10), 512).unwrap();
        assert!(found.len() <= RUNS_MAX);
    }
}
