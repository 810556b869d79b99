//! Directories: names in chunks of 512 bytes, as they lie in the directory's blocks.

use std::collections::BTreeMap;

use super::config::DIRECTORY_CHUNK;
use super::layout::Ino;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub ino: Ino,
    pub chunk: u32,
    /// Names the entry in the name cache.
    pub id: u32,
}

/// See the module's documentation. `.` and `..` are in the first chunk and not among the entries.
#[derive(Clone)]
pub(crate) struct Directory {
    pub parent: Ino,
    entries: BTreeMap<Box<str>, Entry>,
    free: Vec<u16>,
    /// The block where the last search ended; the next one begins there (4.4BSD's `i_diroff`).
    pub hint: u32,
}

/// `.` and `..`, with their headers.
const DOTS_BYTES: u32 = 24;

/// An entry: inode, length of the entry, type and length of the name; the name with a zero, rounded to four bytes.
pub(crate) fn entry_bytes(name: &str) -> u32 {
    8 + (name.len() as u32 + 1).next_multiple_of(4)
}

impl Directory {
    pub fn new(parent: Ino) -> Directory {
        let first = (DIRECTORY_CHUNK - DOTS_BYTES) as u16;
        Directory { parent, entries: BTreeMap::new(), free: vec![first], hint: 0 }
    }

    pub fn find(&self, name: &str) -> Option<Entry> {
        self.entries.get(name).copied()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn bytes(&self) -> u64 {
        self.free.len() as u64 * u64::from(DIRECTORY_CHUNK)
    }

    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (&str, Entry)> {
        self.entries.iter().map(|(name, entry)| (&**name, *entry))
    }

    /// Puts a name into the first chunk that has room, or into a new one; says which.
    pub fn insert(&mut self, name: &str, ino: Ino, id: u32) -> u32 {
        let bytes = entry_bytes(name) as u16;
        let chunk = self.free.iter().position(|free| *free >= bytes).unwrap_or_else(|| {
            self.free.push(DIRECTORY_CHUNK as u16);
            self.free.len() - 1
        });
        self.free[chunk] -= bytes;
        let entry = Entry { ino, chunk: chunk as u32, id };
        let before = self.entries.insert(name.into(), entry);
        assert!(before.is_none(), "a name is in a directory once");
        chunk as u32
    }

    /// Lets an existing name lead to another inode, as rename does.
    pub fn replace(&mut self, name: &str, ino: Ino) -> Entry {
        let entry = self.entries.get_mut(name).expect("the name is there");
        std::mem::replace(entry, Entry { ino, ..*entry })
    }

    pub fn remove(&mut self, name: &str) -> Entry {
        let entry = self.entries.remove(name).expect("the name is there");
        self.free[entry.chunk as usize] += entry_bytes(name) as u16;
        entry
    }

    /// Panics where the room in the chunks disagrees with the names.
    #[cfg(test)]
    pub fn check(&self) {
        let mut free = vec![DIRECTORY_CHUNK as u16; self.free.len()];
        free[0] -= DOTS_BYTES as u16;
        for (name, entry) in &self.entries {
            free[entry.chunk as usize] -= entry_bytes(name) as u16;
        }
        assert_eq!(free, self.free, "room in the chunks");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fill_chunks_and_room_is_used_again() {
        let mut directory = Directory::new(Ino::ROOT);
        let names: Vec<String> = (0..80).map(|n| format!("file{n:04}")).collect();
        for (id, name) in names.iter().enumerate() {
            directory.insert(name, Ino(10), id as u32);
        }
        // Entries of 20 bytes: 24 beside the dots, then 25 in a chunk.
        assert_eq!(directory.bytes(), 4 * 512);
        assert_eq!(
            (directory.find("file0023").unwrap().chunk, directory.find("file0024").unwrap().chunk),
            (0, 1)
        );
        directory.check();
        assert_eq!(directory.remove("file0030").chunk, 1);
        assert_eq!(directory.insert("another1", Ino(11), 99), 1);
        directory.check();
    }
}
