//! `dcd stack-file`: the reference of stack files.

use crate::failure::Failure;

pub fn run() -> Result<(), Failure> {
    print!("{}", dcd_stack::reference());
    Ok(())
}
