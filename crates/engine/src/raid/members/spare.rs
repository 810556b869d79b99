//! Describes a spare: a device that waits for a member to fail.

use crate::layer::{Port, Seat};

/// A device that waits for a member to fail.
#[derive(Clone, Copy, Debug)]
pub struct Spare {
    pub port: Port,
    pub id: u64,
    /// The copy of its superblock that counts.
    pub copy: usize,
    pub seat: Seat,
}

impl Spare {
    /// The place among the spares.
    pub const fn place(&self) -> Option<usize> {
        match self.seat {
            Seat::Spare(place) => Some(place),
            Seat::Member(_) => None,
        }
    }

    /// The member in whose place it was added.
    pub const fn role(&self) -> Option<usize> {
        match self.seat {
            Seat::Spare(_) => None,
            Seat::Member(role) => Some(role),
        }
    }
}
