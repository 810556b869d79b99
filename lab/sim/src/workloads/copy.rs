//! Copying files to another directory of the same file system (Baek and Park, section IV-E, "self-copy"), and reading and
//! writing one large file.

use dcd_engine::Nanos;
use dcd_model::ffs::Op;

use super::aging::normal;
use super::host::Host;
use super::steps::{Step, Steps, copy_file, read_file, write_file};
use super::{Measured, RunError};
use dcd_crash::{SimDevice, SimRng};

/// Bytes that a program moves at a time.
const PIECE: u64 = 64 << 10;
/// Files in a directory of a source tree, on average.
const DIRECTORY_FILES: u64 = 17;
/// The deviation of the logarithms of the sizes in a source tree: with a mean of 18 KB half are below 6 KB, and a tenth above 40 KB.
const SIZE_DEVIATION: f64 = 1.5;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelfCopy {
    pub files: u64,
    pub bytes: u64,
    /// A source tree: directories in one another, and sizes that differ as sizes of files do (their logarithms have a normal
    /// distribution). Otherwise all sizes are the same, in one directory.
    pub varied: bool,
}

/// A directory, below the tree's root, and the sizes of its files.
struct Directory {
    path: String,
    files: Vec<u64>,
}

impl Directory {
    fn path(&self, tree: &str) -> String {
        format!("/{tree}{}", self.path)
    }

    fn file(&self, tree: &str, number: usize) -> String {
        format!("/{tree}{}/f{number}", self.path)
    }
}

impl SelfCopy {
    fn sizes(&self, random: &mut SimRng) -> Vec<u64> {
        let mut weight = || if self.varied { (SIZE_DEVIATION * normal(random)).exp() } else { 1.0 };
        let weights: Vec<f64> = (0..self.files).map(|_| weight()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| (weight / sum * self.bytes as f64) as u64 + 1).collect()
    }

    /// The directories in the order in which a tree is walked: each with its files, and then those in it.
    fn tree(&self, seed: u64) -> Vec<Directory> {
        let mut random = SimRng::new(seed);
        let sizes = self.sizes(&mut random);
        if !self.varied {
            return vec![Directory { path: "/d0".to_owned(), files: sizes }];
        }
        let count = self.files.div_ceil(DIRECTORY_FILES).max(1);
        let mut directories: Vec<Directory> = Vec::new();
        let mut within: Vec<String> = Vec::new();
        let mut left = &sizes[..];
        for number in 0..count {
            // The walk goes on in the directory where it is, or in one of those around it.
            within.truncate(random.below(within.len() as u64 + 1) as usize);
            within.push(format!("/d{number}"));
            let share = if number + 1 == count {
                left.len()
            } else {
                left.len().min(random.below(2 * DIRECTORY_FILES + 1) as usize)
            };
            let (files, rest) = left.split_at(share);
            directories.push(Directory { path: within.concat(), files: files.to_vec() });
            left = rest;
        }
        directories
    }

    /// The phase "copy": from a cold start until all of the copy is synced.
    pub(super) fn run<D: SimDevice>(&self, host: &mut Host<D>, seed: u64) -> Result<Measured, RunError> {
        let directories = self.tree(seed);
        for tree in ["from", "to"] {
            host.set_up(Op::Mkdir { path: format!("/{tree}") })?;
        }
        for directory in &directories {
            host.set_up(Op::Mkdir { path: directory.path("from") })?;
            for (number, bytes) in directory.files.iter().enumerate() {
                host.set_up_file(&directory.file("from", number), *bytes)?;
            }
        }
        host.script(vec![Op::Remount])?;
        let copies = directories.iter().flat_map(|directory| {
            let begin =
                [Op::Readdir { path: directory.path("from") }, Op::Mkdir { path: directory.path("to") }];
            let files = directory.files.iter().enumerate().flat_map(|(number, bytes)| {
                copy_file(directory.file("from", number), directory.file("to", number), *bytes, PIECE)
            });
            begin.map(Step::Plain).into_iter().chain(files)
        });
        let mut program = Steps::new(copies.chain(std::iter::once(Step::Plain(Op::Sync))));
        host.phase("copy", &mut [&mut program])?;
        Ok(host.take_measured())
    }
}

/// A large file, written and then, cold, read; and the same in large requests at random places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeFile {
    pub bytes: u64,
    /// Bytes of a request at a random place; as many requests as the file has room for.
    pub random_bytes: u64,
}

impl LargeFile {
    /// The phases "write" (until it is synced) and "read", "random read" and "random write" (until it is synced).
    pub(super) fn run<D: SimDevice>(&self, host: &mut Host<D>, seed: u64) -> Result<Measured, RunError> {
        let path = || "/large".to_owned();
        let writes = write_file(path(), self.bytes, PIECE).chain(std::iter::once(Step::Plain(Op::Sync)));
        host.phase("write", &mut [&mut Steps::new(writes)])?;
        host.script(vec![Op::Remount])?;
        host.phase("read", &mut [&mut Steps::new(read_file(path(), self.bytes, PIECE))])?;
        let (mut random, bytes, count) =
            (SimRng::new(seed), self.random_bytes, self.bytes / self.random_bytes);
        for (name, writes) in [("random read", false), ("random write", true)] {
            // What is read ahead comes to its end.
            host.script(vec![Op::Think { time: Nanos::from_secs(5) }, Op::Remount])?;
            let request = |_| match random.below(count) * bytes {
                offset if writes => Step::Write { slot: 0, offset, bytes },
                offset => Step::Read { slot: 0, offset, bytes },
            };
            let steps = std::iter::once(Step::open(0, path())).chain((0..count).map(request));
            let end = [Step::Close { slot: 0 }, Step::Plain(Op::Sync)];
            host.phase(name, &mut [&mut Steps::new(steps.chain(end))])?;
        }
        Ok(host.take_measured())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_tree_has_small_files_and_a_few_large_ones_in_nested_directories() {
        let copy = SelfCopy { files: 25_628, bytes: 458_000_000, varied: true };
        let tree = copy.tree(1);
        let mut sizes: Vec<u64> = tree.iter().flat_map(|directory| directory.files.iter().copied()).collect();
        assert_eq!((tree.len(), sizes.len()), (1508, 25_628));
        assert!(sizes.iter().sum::<u64>().abs_diff(copy.bytes) <= copy.files);
        sizes.sort_unstable();
        let (median, large) = (sizes[sizes.len() / 2], sizes[sizes.len() * 9 / 10]);
        assert!(
            (5_000..7_000).contains(&median) && (35_000..45_000).contains(&large),
            "{median} and {large}"
        );
        let depth = |directory: &Directory| directory.path.matches('/').count();
        let deepest = tree.iter().map(depth).max().unwrap_or(0);
        assert!((4..10).contains(&deepest), "{deepest}");
        for (number, directory) in tree.iter().enumerate() {
            let (parent, _) = directory.path.rsplit_once('/').expect("it has a name");
            let is_there = parent.is_empty() || tree[..number].iter().any(|before| before.path == parent);
            assert!(is_there, "{} comes after what it is in", directory.path);
        }
    }

    #[test]
    fn files_of_one_size_lie_in_one_directory() {
        let tree = SelfCopy { files: 154, bytes: 154_000, varied: false }.tree(1);
        assert_eq!(tree.len(), 1);
        assert!(
            tree[0].files.len() == 154 && tree[0].files.iter().all(|bytes| (1000..=1001).contains(bytes))
        );
    }
}
