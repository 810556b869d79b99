//! The life of a layer, from its start to the end of an administrator's stop.

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifecycle {
    #[default]
    Serving,
    /// Serving, and destaging at full speed until nothing is dirty.
    Draining,
    /// Stopping: takes no more requests, and waits for those under way.
    Ending,
    /// Stopping: makes everything durable at its place.
    Flushing,
    /// Stopping: writes that it has stopped cleanly.
    Marking,
    Stopped,
}

impl Lifecycle {
    pub const fn serves(self) -> bool {
        matches!(self, Lifecycle::Serving | Lifecycle::Draining)
    }

    pub const fn drains(self) -> bool {
        matches!(self, Lifecycle::Draining)
    }

    pub const fn is_stopping(self) -> bool {
        !self.serves() && !matches!(self, Lifecycle::Stopped)
    }
}
