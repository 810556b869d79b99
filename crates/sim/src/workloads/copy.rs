//! Copying files to another directory of the same file system (Baek and Park, section IV-E, "self-copy"), and reading and
//! writing one large file.

use dcd_model::ffs::Op;

use super::host::Host;
use super::steps::{Step, Steps, copy_file, read_file, write_file};
use super::{Measured, RunError};
use crate::{SimDevice, SimRng};

/// What a program moves at a time.
const PIECE: u64 = 64 << 10;
/// Files in a directory.
const DIRECTORY_FILES: u64 = 24;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelfCopy {
    pub files: u64,
    pub bytes: u64,
    /// Sizes differ, as those of sources do: most are small. Otherwise all are the same.
    pub varied: bool,
}

impl SelfCopy {
    fn sizes(&self, seed: u64) -> Vec<u64> {
        if !self.varied {
            return vec![(self.bytes / self.files.max(1)).max(1); self.files as usize];
        }
        let mut random = SimRng::new(seed);
        let weights: Vec<f64> = (0..self.files).map(|_| random.exponential()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| (weight / sum * self.bytes as f64) as u64 + 1).collect()
    }

    /// The phase "copy": from a cold start until all of the copy is synced.
    pub(super) fn run<D: SimDevice>(&self, host: &mut Host<D>, seed: u64) -> Result<Measured, RunError> {
        let path = |tree: &str, number: u64| format!("/{tree}/d{}/f{number}", number / DIRECTORY_FILES);
        let sizes = self.sizes(seed);
        for tree in ["from", "to"] {
            host.set_up(Op::Mkdir { path: format!("/{tree}") })?;
            for directory in 0..=self.files.saturating_sub(1) / DIRECTORY_FILES {
                host.set_up(Op::Mkdir { path: format!("/{tree}/d{directory}") })?;
            }
        }
        for (number, bytes) in sizes.iter().enumerate() {
            host.set_up_file(&path("from", number as u64), *bytes)?;
        }
        host.script(vec![Op::Remount])?;
        let numbered = sizes.into_iter().enumerate().map(|(number, bytes)| (number as u64, bytes));
        let copies = numbered
            .flat_map(|(number, bytes)| copy_file(path("from", number), path("to", number), bytes, PIECE));
        let mut program = Steps::new(copies.chain(std::iter::once(Step::Sync)));
        host.phase("copy", &mut [&mut program])?;
        Ok(host.take_measured())
    }
}

/// One large file, written and then, cold, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeFile {
    pub bytes: u64,
}

impl LargeFile {
    /// The phases "write" (until it is synced) and "read".
    pub(super) fn run<D: SimDevice>(&self, host: &mut Host<D>) -> Result<Measured, RunError> {
        let path = || "/large".to_owned();
        let writes = write_file(path(), self.bytes, PIECE).chain(std::iter::once(Step::Sync));
        host.phase("write", &mut [&mut Steps::new(writes)])?;
        host.script(vec![Op::Remount])?;
        host.phase("read", &mut [&mut Steps::new(read_file(path(), self.bytes, PIECE))])?;
        Ok(host.take_measured())
    }
}
