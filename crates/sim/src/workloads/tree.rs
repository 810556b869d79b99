//! The tree of the DCD paper's benchmark (Nightingale et al. 1999, section 4.1): the sources of Apache 1.3.3, 31
//! directories with 508 files of 9.9 KB on average, 4.9 MB in all.
//!
//! The paper's tree is not to be had; this one has its numbers. How many files lie in each directory is an estimate with
//! one hold: of the requests of a remove the paper saw 15 % of 2 KB and 35 % of 1 KB (section 4.2.2). Those are writes of
//! directories, so three files in ten are in directories of more than 1 KB, which is some fifty names.

use crate::SimRng;

/// Files in each directory.
const FILES: [usize; 31] = [
    53, 52, 51, 40, 36, 32, 28, 24, 22, 20, 18, 16, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 4, 3, 3, 2, 2, 1,
    1, 1,
];
/// 9.9 KB: the sum over all files is exactly their number times this.
pub const MEAN_BYTES: u64 = 9_900;
/// No file is smaller than this, as sources seldom are.
const SMALLEST_BYTES: u64 = 200;
/// Directories that others may lie in.
const PARENTS: u64 = 12;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeDirectory {
    /// Where it lies, below the tree's root; empty for the root itself.
    pub path: String,
    /// Its directories, by their number in the tree.
    pub directories: Vec<usize>,
    pub files: Vec<TreeFile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeFile {
    pub name: String,
    pub bytes: u64,
}

/// See the module's documentation. Parents come before what is in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    pub directories: Vec<TreeDirectory>,
}

impl Tree {
    /// The same for the same seed.
    pub fn new(seed: u64) -> Tree {
        let mut rng = SimRng::new(seed);
        let mut counts = FILES;
        for last in (1..counts.len()).rev() {
            counts.swap(last, rng.below(last as u64 + 1) as usize);
        }
        let mut sizes = sizes(&mut rng, counts.iter().sum()).into_iter();
        let mut directories: Vec<TreeDirectory> = Vec::new();
        for (index, count) in counts.into_iter().enumerate() {
            let path = if index == 0 {
                String::new()
            } else {
                let parent = rng.below((index as u64).min(PARENTS)) as usize;
                directories[parent].directories.push(index);
                format!("{}/dir{index:02}", directories[parent].path)
            };
            let file = |(number, bytes)| TreeFile { name: format!("file{number:03}.c"), bytes };
            let files = sizes.by_ref().take(count).enumerate().map(file).collect();
            directories.push(TreeDirectory { path, directories: Vec::new(), files });
        }
        Tree { directories }
    }

    pub fn files(&self) -> usize {
        self.directories.iter().map(|directory| directory.files.len()).sum()
    }

    pub fn bytes(&self) -> u64 {
        self.directories.iter().flat_map(|directory| &directory.files).map(|file| file.bytes).sum()
    }
}

/// Exponential: most files are small, and a few are many times the mean.
fn sizes(rng: &mut SimRng, count: usize) -> Vec<u64> {
    let weights: Vec<f64> = (0..count).map(|_| rng.exponential()).collect();
    let sum: f64 = weights.iter().sum();
    let spread = (count as u64 * (MEAN_BYTES - SMALLEST_BYTES)) as f64;
    let mut sizes: Vec<u64> =
        weights.iter().map(|weight| SMALLEST_BYTES + (weight / sum * spread) as u64).collect();
    // What rounding left out.
    let total: u64 = sizes.iter().sum();
    sizes[0] += count as u64 * MEAN_BYTES - total;
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_has_the_papers_numbers() {
        let tree = Tree::new(1);
        assert_eq!((tree.directories.len(), tree.files(), tree.bytes()), (31, 508, 508 * 9_900));
        let large: usize = tree.directories.iter().map(|d| d.files.len()).filter(|files| *files > 49).sum();
        assert!((140..165).contains(&large), "{large} files in directories of 2 KB");
        let inside: usize = tree.directories.iter().map(|d| d.directories.len()).sum();
        assert_eq!(inside, 30, "every directory but the root is in one other");
        assert_eq!(tree, Tree::new(1));
        assert_ne!(tree, Tree::new(2));
    }
}
