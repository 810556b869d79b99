//! RAID-5 and RAID-6 with a stripe cache and the contiguity transform: MSC-CT (Baek and Park, "Matrix stripe cache-based
//! contiguity transform for fragmented writes in RAID-5").
//!
//! | module       | what                                                                              |
//! |--------------|-----------------------------------------------------------------------------------|
//! | `matrix`     | the stripe as a matrix: Z, and the operations of the rxw-matrix                   |
//! | `plan`       | from Z to reads, XORs and writes                                                  |
//! | `contiguity` | what may be read and written in between, and when that pays                       |
//! | `compute`    | the XORs of a plan, on bytes                                                      |
//! | `parity`     | P and Q                                                                           |

pub mod compute;
pub mod contiguity;
pub mod matrix;
pub mod parity;
pub mod plan;
