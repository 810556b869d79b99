//! Checks that this machine has the RAM that a stack file asks for.

use dcd_stack::{HumanBytes, StackFile};

use crate::failure::Failure;

/// Refuses a stack file that asks for more RAM than this machine has: allocating it would end the program without a message.
pub fn enough_memory(file: &StackFile, wanted: u64) -> Result<(), Failure> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    match total.map(|kib: u64| kib << 10) {
        Some(has) if wanted > has => Err(Failure::Failed(format!(
            "{}: it asks for {} of RAM, and this machine has {}: make its memory, destage-memory, cache-size, write-size, log or the \
             like smaller",
            file.path.display(),
            HumanBytes(wanted),
            HumanBytes(has)
        ))),
        _ => Ok(()),
    }
}
