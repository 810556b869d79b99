//! `dcd stack-file`: the reference of stack files.

use std::io::Write;

use crate::failure::Failure;

pub fn run() -> Result<(), Failure> {
    // A pager that is closed early is no failure.
    let _ = std::io::stdout().write_all(dcd_stack::REFERENCE.as_bytes());
    Ok(())
}
