//! Writes to standard output. A reader that has gone (a pager that was closed) is no failure; any other error makes the command fail, but
//! only at its end. Neither interrupts work that is under way.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Serialize, Serializer};

use crate::failure::Failure;

/// The first write that failed for another reason than a reader who has gone.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

pub fn print(text: fmt::Arguments<'_>) {
    note(io::stdout().write_fmt(text));
}

/// Prints a line of JSON.
///
/// # Errors
/// If the report cannot be written as JSON.
pub fn print_json(report: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(report).map_err(no_json)?;
    print(format_args!("{text}\n"));
    Ok(())
}

pub fn no_json(error: serde_json::Error) -> Failure {
    Failure::Failed(format!("the result cannot be written as JSON: {error}"))
}

/// Serialises a path as text. Bytes that are not UTF-8 are replaced, so only people can use such a path.
pub fn path_text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
}

/// Flushes standard output. Fails if anything printed was lost, unless its reader had gone.
pub fn finish() -> io::Result<()> {
    note(io::stdout().flush());
    FAILED.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
}

fn note(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        FAILED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}
