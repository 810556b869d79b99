//! Standard output and standard error, as a user may give it: a reader that has gone (a pager that was closed) is no failure, and a file that
//! cannot take what is written makes the command fail at its end. Work that is under way is not cut short by either.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::{Mutex, PoisonError};

/// The first write that failed for another reason than a reader who has gone.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

pub fn print(text: fmt::Arguments<'_>) {
    note(io::stdout().write_fmt(text));
}

/// Writes to standard error, if somebody listens.
pub fn tell(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

/// Writes what is left. Whether all that was printed has arrived, or nobody wanted it.
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
