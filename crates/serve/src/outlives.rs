//! Clients that outlive the server: a kernel device continues with the next server.
//!
//! Answered writes must survive the server as well: the file system above continues, and would not repeat writes that a killed server
//! had only in RAM. So if a client outlives the server and the stack may answer from RAM, every write is durable, as with FUA.

/// Answered requests that survive a kill of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outlives {
    /// Not even durable writes; or no client outlives the server.
    #[default]
    No,
    /// Durable writes.
    Durable,
    /// Everything.
    Answered,
}
