//! The tree of the DCD paper's benchmark (Nightingale et al. 1999, section 4.1): the sources of Apache 1.3.3, 31
//! subdirectories with 508 files of 9.9 KB on average, 4.9 MB in all.
//!
//! `apache-1.3.3.tree` lists the directories, their files and their bytes. Names are those of the repository of Apache 1.3
//! (`apache/httpd`), without what came after 1.3.3 (October 1998). Bytes are those of a version in that repository, where
//! one could be had of the years about 1998 (sources in C mostly of January 1999; `CHANGES` is exact: what stands from
//! "Changes with Apache 1.3.3" on in a later one). Those with a `~` are estimates, a third of all bytes: what is small, and
//! pictures, of which only the kind is known. So they come to 4.84 MB, and all are made larger by 6.4 % to have the
//! paper's sum. Which files are left out to have the paper's number is a choice among small ones.

/// A line is a directory (`.` is the root), or an indented name and its bytes.
const LISTED: &str = include_str!("apache-1.3.3.tree");
/// 508 files of 9.9 KB.
const BYTES: u64 = 5_149_901;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeDirectory {
    /// Path below the tree's root; empty for the root itself.
    pub path: String,
    /// Numbers of its directories in the tree.
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
    pub fn apache() -> Tree {
        let mut directories: Vec<TreeDirectory> = Vec::new();
        for line in LISTED.lines() {
            if let Some(file) = line.strip_prefix("  ") {
                let (name, bytes) = file.split_once(' ').expect("a name and its bytes");
                let bytes = bytes.trim_start_matches('~').parse().expect("a number");
                let directory = directories.last_mut().expect("a directory before its files");
                directory.files.push(TreeFile { name: name.to_owned(), bytes });
                continue;
            }
            let path = line.trim_start_matches('.').to_owned();
            if let Some((parent, _)) = path.rsplit_once('/') {
                let inner = directories.len();
                let parent = directories.iter_mut().find(|directory| directory.path == parent);
                parent.expect("parents come first").directories.push(inner);
            }
            directories.push(TreeDirectory { path, directories: Vec::new(), files: Vec::new() });
        }
        let mut tree = Tree { directories };
        tree.scale();
        tree
    }

    /// Makes all files larger, so that their sum is the paper's. The largest gets what rounding leaves.
    fn scale(&mut self) {
        let listed = self.bytes();
        let files = self.directories.iter_mut().flat_map(|directory| &mut directory.files);
        let mut files: Vec<&mut TreeFile> = files.collect();
        for file in &mut files {
            file.bytes = file.bytes * BYTES / listed;
        }
        let sum: u64 = files.iter().map(|file| file.bytes).sum();
        let largest = files.into_iter().max_by_key(|file| file.bytes).expect("there are files");
        largest.bytes += BYTES - sum;
    }

    pub fn files(&self) -> usize {
        self.directories.iter().map(|directory| directory.files.len()).sum()
    }

    pub fn bytes(&self) -> u64 {
        self.directories.iter().flat_map(|directory| &directory.files).map(|file| file.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_has_the_papers_numbers() {
        let tree = Tree::apache();
        // The root and its 31 subdirectories.
        assert_eq!((tree.directories.len(), tree.files()), (32, 508));
        let kilobytes = tree.bytes() as f64 / 1024.0;
        assert!((kilobytes / 508.0 - 9.9).abs() < 0.001, "a mean of {} KB", kilobytes / 508.0);
        assert_eq!(format!("{:.1}", kilobytes / 1024.0), "4.9", "MB in all");
        let inside: usize = tree.directories.iter().map(|d| d.directories.len()).sum();
        assert_eq!(inside, 31, "every directory but the root is in one other");
    }

    #[test]
    fn most_files_are_small_and_a_few_have_much_of_all_bytes() {
        let tree = Tree::apache();
        let mut sizes: Vec<u64> =
            tree.directories.iter().flat_map(|d| &d.files).map(|file| file.bytes).collect();
        sizes.sort_unstable();
        assert!(sizes[254] < 5_000, "half are smaller than {}", sizes[254]);
        let large: u64 = sizes.iter().filter(|bytes| **bytes >= 64 << 10).sum();
        let share = large * 100 / tree.bytes();
        assert!((20..40).contains(&share), "{share} % of the bytes in files of 64 KB and more");
    }
}
