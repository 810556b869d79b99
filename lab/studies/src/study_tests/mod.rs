//! The studies at a small scale, and the lab as a whole.

mod arrays;
mod judged;
mod kept_reads;
mod lab;
