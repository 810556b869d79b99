//! Costs of a command on a bus that the drive gives up between its phases, as drives of the early 1990s did on SCSI: the
//! drive disconnects while the arm moves, and reselects its host when there is data to send or nothing left to do.
//!
//! All of it is zero where a drive file has no section `bus-phases`.

use dcd_engine::Nanos;

use crate::drive::Overhead;

/// A write whose drive disconnects before it takes the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EarlyDisconnect {
    /// In the place of the overhead of a write.
    pub command: Nanos,
    pub disconnect: Nanos,
    /// Between the disconnect and the reselect.
    pub pause: Nanos,
    /// In the place of the disconnect of a write.
    pub second_disconnect: Nanos,
    /// From the command to the start of the arm.
    pub seek_delay: Nanos,
    /// Sectors of a write that have come before the drive begins to put them on the medium.
    pub buffered: u64,
}

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct BusPhases {
    /// The part of a read that is in the buffer before the drive reselects; 0: one sector.
    pub high_water: f64,
    pub preparation: Nanos,
    pub read_disconnect: Overhead,
    pub write_disconnect: Nanos,
    pub reselect: Nanos,
    /// The second and later reselects of a command.
    pub reselect_again: Nanos,
    pub read_completion: Nanos,
    pub write_completion: Nanos,
    pub early: Option<EarlyDisconnect>,
    /// From the command to the medium, at least; for a write that appends to no other.
    pub write_positioning_min: Nanos,
}

impl BusPhases {
    /// Sectors of a read from the medium that are in the buffer before the bus moves the first.
    pub fn awaited(&self, sectors: u64) -> u64 {
        ((self.high_water * sectors as f64) as u64).clamp(1, sectors)
    }

    /// Returns the time at which the bus begins to move a read that comes from the medium; the heads were sent out at `begin`, and
    /// the awaited sectors were in the buffer at `ready`.
    pub fn read_begins(&self, begin: Nanos, wrote_last: bool, ready: Nanos) -> Nanos {
        ready.max(begin + self.read_disconnect.after(wrote_last)) + self.reselect + self.preparation
    }

    /// The command overhead of a write to the medium, from its arrival to the start of the arm.
    pub fn write_command(&self, own: Nanos) -> Nanos {
        self.early.map_or(own, |early| early.command + early.seek_delay)
    }

    /// Returns the time at which the bus begins to move the data of a write; the arm starts at `decoded`.
    pub fn write_begins(&self, decoded: Nanos) -> Nanos {
        let before = self.early.map_or(Nanos::ZERO, |early| {
            Nanos((early.disconnect + early.pause + self.reselect).since(early.seek_delay).0)
        });
        decoded + before + self.preparation
    }

    /// Sectors of a write that come before the first goes to the medium.
    pub fn buffered(&self, sectors: u64) -> u64 {
        self.early.map_or(0, |early| early.buffered.min(sectors))
    }

    /// Returns the time at which a write is answered that was on the medium at `end`, and whose data had come at `data_end`.
    pub fn write_ends(&self, end: Nanos, data_end: Nanos) -> Nanos {
        let (disconnect, reselect) = match &self.early {
            Some(early) => (early.second_disconnect, self.reselect_again),
            None => (self.write_disconnect, self.reselect),
        };
        end.max(data_end + disconnect) + reselect + self.write_completion
    }
}
