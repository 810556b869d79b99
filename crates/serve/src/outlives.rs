//! Clients that outlive the server: a device of the kernel goes on with the next one.
//!
//! What is answered has to outlive the server as well: the file system above goes on, and would not write again what a killed server had in its
//! memory. So where a client outlives the server and the stack may answer from memory, every write is a durable one, as with FUA.

/// Answered requests that survive a kill of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outlives {
    /// Not even durable writes; or no client goes on.
    #[default]
    No,
    /// Durable writes.
    Durable,
    /// Everything.
    Answered,
}
