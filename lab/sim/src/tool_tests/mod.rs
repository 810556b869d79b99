//! Stacks over modelled disks, the write cache, and the tools that measure them.

mod away_cost;
mod busy_host;
mod gives_way;
mod log_bytes;
mod modelled_disk;
mod sparse_disk;
mod spindle;
mod write_cache;
