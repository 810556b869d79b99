//! The file of a trace layer: one JSON object a line, in the order in which the operations were answered.
//!
//! A start begins the file anew. As a wrong path must not cost data, that is done only to an empty file and to one that is a
//! trace already.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::path::Path;

use dcd_engine::layers::trace::{Sink, TraceRecord};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// What every trace begins with: the first field of [`TraceRecord`].
const BEGINNING: &[u8] = b"{\"at\":";
/// Some 500 records are written at once, so that recording costs little, and a server that is killed loses no more.
const BUFFER_BYTES: usize = 64 << 10;

/// Begins a file. The text of an error says what to do.
pub fn create(path: &Path) -> Result<Sink, String> {
    let file = begin(path).map_err(|why| format!("{}: {why}", path.display()))?;
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
    let path = path.to_owned();
    Ok(Box::new(move |record| append(&mut out, record).map_err(|e| format!("{}: {e}", path.display()))))
}

fn begin(path: &Path) -> Result<File, String> {
    let text = |e: std::io::Error| e.to_string();
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).truncate(false).open(path).map_err(text)?;
    if !file.metadata().map_err(text)?.is_file() {
        return Err("is no plain file: choose another name".to_owned());
    }
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| match e {
        Errno::WOULDBLOCK => "is written by another server: choose another name".to_owned(),
        e => text(e.into()),
    })?;
    let mut head = Vec::new();
    (&mut file).take(BEGINNING.len() as u64).read_to_end(&mut head).map_err(text)?;
    if !head.is_empty() && head != BEGINNING {
        return Err("holds something that is no trace: choose another name, or remove it".to_owned());
    }
    file.set_len(0).map_err(text)?;
    std::io::Seek::rewind(&mut file).map_err(text)?;
    Ok(file)
}

fn append(out: &mut BufWriter<File>, record: &TraceRecord) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, record)?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use dcd_engine::{Extent, Lba, Nanos};

    use super::*;

    fn record(at: u64) -> TraceRecord {
        let extent = Some(Extent::new(Lba(8), 16));
        TraceRecord { at: Nanos(at), operation: "write", extent, durable: true, latency: Nanos(5), ok: true }
    }

    #[test]
    fn every_operation_is_a_line_and_a_new_start_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.trace");
        for times in [3, 1] {
            let mut sink = create(&path).unwrap();
            assert!((0..times).all(|at| sink(&record(at)).is_ok()));
            assert!(create(&path).err().unwrap().contains("another server"));
            drop(sink);
            let text = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<serde_json::Value> =
                text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(lines.len() as u64, times);
            let last = &lines[times as usize - 1];
            assert_eq!((&last["at"], &last["extent"]["start"]), (&(times - 1).into(), &8.into()));
        }
    }

    #[test]
    fn what_is_no_trace_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious.img");
        for content in [&b"\0\0\0\0\0\0\0\0"[..], b"{", b"{\"a\": 1}"] {
            std::fs::write(&path, content).unwrap();
            assert!(create(&path).err().unwrap().contains("no trace: choose another name"));
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
        assert!(create(dir.path()).err().is_some(), "a directory");
        assert!(create(Path::new("/dev/null")).err().unwrap().contains("no plain file"));
    }
}
