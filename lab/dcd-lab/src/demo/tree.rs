//! The tree of files of the DCD paper's benchmark (Nightingale et al. 1999, section 4.1): 31 directories, 508 files,
//! 9.9 KB each on average, 4.9 MB in all. The paper's own tree is not to be had; this one has its numbers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

pub const DIRECTORIES: usize = 31;
pub const FILES: usize = 508;
/// 9.9 KB: the sum over all files is exactly `FILES` times this.
pub const MEAN_BYTES: usize = 9_900;
/// No file is smaller than this, as sources seldom are.
const SMALLEST_BYTES: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeFile {
    pub path: PathBuf,
    pub bytes: usize,
}

/// The directories (parents first) and the files, the same for the same seed.
pub fn plan(seed: u64) -> (Vec<PathBuf>, Vec<TreeFile>) {
    let mut random = ChaCha12Rng::seed_from_u64(seed);
    let mut directories = vec![PathBuf::from("tree")];
    while directories.len() < DIRECTORIES {
        // Each directory below an earlier one, so that the tree has some depth.
        let parent = below(&mut random, directories.len().min(12));
        directories.push(directories[parent].join(format!("dir{:02}", directories.len())));
    }
    let weights: Vec<f64> = (0..FILES).map(|_| skewed(&mut random)).collect();
    let sum: f64 = weights.iter().sum();
    let spread = (FILES * (MEAN_BYTES - SMALLEST_BYTES)) as f64;
    let mut files: Vec<TreeFile> = weights
        .iter()
        .enumerate()
        .map(|(index, weight)| {
            let directory = &directories[below(&mut random, DIRECTORIES)];
            let bytes = SMALLEST_BYTES + (weight / sum * spread) as usize;
            TreeFile { path: directory.join(format!("file{index:03}")), bytes }
        })
        .collect();
    // What rounding left out.
    let total: usize = files.iter().map(|file| file.bytes).sum();
    files[0].bytes += FILES * MEAN_BYTES - total;
    (directories, files)
}

/// Writes the tree under `root`; its content, too, follows from the seed.
pub fn write(root: &Path, seed: u64) -> io::Result<()> {
    let (directories, files) = plan(seed);
    for directory in directories {
        fs::create_dir_all(root.join(directory))?;
    }
    let mut random = ChaCha12Rng::seed_from_u64(seed ^ 0x7ee);
    let mut content = Vec::new();
    for file in files {
        content.resize(file.bytes, 0);
        random.fill_bytes(&mut content);
        fs::write(root.join(file.path), &content)?;
    }
    Ok(())
}

fn below(random: &mut ChaCha12Rng, limit: usize) -> usize {
    (random.next_u64() % limit as u64) as usize
}

/// Exponential, with most files small and a few many times the mean.
fn skewed(random: &mut ChaCha12Rng) -> f64 {
    let uniform = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    -(1.0 - uniform).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_has_the_papers_numbers() {
        let (directories, files) = plan(1);
        assert_eq!((directories.len(), files.len()), (31, 508));
        assert_eq!(files.iter().map(|file| file.bytes).sum::<usize>(), 508 * 9_900);
        assert!(files.iter().all(|file| file.bytes >= SMALLEST_BYTES));
        let largest = files.iter().map(|file| file.bytes).max().unwrap();
        assert!((30_000..200_000).contains(&largest), "{largest}");
        let populated = directories.iter().filter(|dir| files.iter().any(|f| f.path.parent() == Some(dir)));
        assert!(populated.count() > 25);
    }

    #[test]
    fn the_same_seed_gives_the_same_tree() {
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }
}
