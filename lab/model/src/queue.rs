//! The drive's command queue: requests wait here, and a scheduler picks the next one.
//!
//! A drive knows only as many commands as its queue is deep, the one in service among them; what comes on top waits
//! outside, in order, and enters as places become free. Requests that are in the queue at the same time may be served in any order, as on a real drive:
//! a client that needs an order waits for completions. Only a flush stays behind the writes that came before it.

use std::collections::VecDeque;

use dcd_engine::{Extent, Lba, Nanos, Request};
use serde::{Deserialize, Serialize};

use crate::controller::{Access, Controller};
use crate::geometry::Spot;

/// Maximum time for which nearer commands pass over a command. Its turn comes then whatever it costs. Several times what a full
/// queue of 64 needs, so that it changes nothing but starvation.
const PASSED_OVER_MAX: Nanos = Nanos::from_secs(2);

/// Order in which waiting requests are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// First come, first served.
    Fcfs,
    /// Up through the LBAs to the last request that waits, and down again.
    Look,
    /// Up through the LBAs to the last request that waits, and again from the first one.
    CLook,
    /// The nearest LBA first.
    Sstf,
    /// Shortest positioning time first: arm and rotation, as drives with command queueing do.
    #[default]
    Sptf,
}

/// Request as the drive sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskWork {
    Transfer {
        access: Access,
        extent: Extent,
        /// Place where it begins, for [`Scheduler::Sptf`].
        spot: Option<Spot>,
    },
    Flush,
}

impl DiskWork {
    const fn writes(&self) -> bool {
        matches!(
            self,
            DiskWork::Transfer { access: Access::Write | Access::WriteBehind | Access::WriteZeroes, .. }
        )
    }
}

#[derive(Debug)]
pub(crate) struct Pending {
    pub request: Request,
    pub work: DiskWork,
    pub arrival: Nanos,
    /// Time at which the drive got the command; later than its arrival where the queue was full.
    pub known: Nanos,
}

#[derive(Debug)]
pub(crate) struct DiskQueue {
    scheduler: Scheduler,
    depth: usize,
    pending: VecDeque<Pending>,
    /// The last request's first sector, and whether the sweep goes up.
    last: Lba,
    upwards: bool,
}

impl DiskQueue {
    pub fn new(scheduler: Scheduler, depth: usize) -> DiskQueue {
        DiskQueue { scheduler, depth, pending: VecDeque::with_capacity(depth), last: Lba(0), upwards: true }
    }

    pub fn len(&self) -> usize {
        self.pending.len()
    }

    pub fn scheduler(&self) -> Scheduler {
        self.scheduler
    }

    pub fn push(&mut self, request: Request, work: DiskWork, now: Nanos) {
        self.pending.push_back(Pending { request, work, arrival: now, known: now });
    }

    /// The drive knows all that wait: the next command goes to it at once.
    pub fn has_place(&self) -> bool {
        self.pending.len() < self.depth
    }

    /// Takes the request to serve next, and tells from when on the drive is free for it. Where all places were taken,
    /// another command is let in.
    pub fn take(&mut self, free_at: Nanos, controller: &mut Controller) -> Option<(Nanos, Pending)> {
        let oldest = self.pending.front()?;
        let start = free_at.max(oldest.arrival);
        // The place of the request that has just ended is free: one enters that did not fit beside it.
        if let Some(entering) = self.pending.get_mut(self.depth - 1) {
            entering.known = entering.known.max(start);
        }
        let oldest = &self.pending[0];
        let index = match self.scheduler {
            Scheduler::Fcfs => 0,
            _ if self.pending.len() == 1 => 0,
            _ if start.since(oldest.known) > PASSED_OVER_MAX => 0,
            Scheduler::Sptf => self.nearest(start, controller),
            Scheduler::Look | Scheduler::CLook | Scheduler::Sstf => self.next_by_lba(),
        };
        let taken = self.pending.remove(index)?;
        if let DiskWork::Transfer { extent, .. } = taken.work {
            self.upwards = extent.start >= self.last;
            self.last = extent.start;
        }
        Some((start, taken))
    }

    /// The cheapest of the commands that the drive knows. A flush comes before what came after it, and after the writes
    /// that came before it.
    fn cheapest<K: Ord>(&self, mut cost: impl FnMut(&Pending) -> K) -> usize {
        let mut best: Option<(K, usize)> = None;
        let mut writes = false;
        for (index, pending) in self.pending.iter().take(self.depth).enumerate() {
            if pending.work == DiskWork::Flush {
                if !writes {
                    return index;
                }
                continue;
            }
            writes |= pending.work.writes();
            let cost = cost(pending);
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, index));
            }
        }
        best.map_or(0, |(_, index)| index)
    }

    fn next_by_lba(&self) -> usize {
        let (last, upwards) = (self.last.0, self.upwards);
        let distance = |pending: &Pending| match pending.work {
            DiskWork::Transfer { extent, .. } => (extent.start.0 < last, extent.start.0.abs_diff(last)),
            DiskWork::Flush => (false, 0),
        };
        self.cheapest(|pending| {
            let (below, distance) = distance(pending);
            match self.scheduler {
                // Against the direction of the sweep only when nothing is left in it.
                Scheduler::Look => (below == upwards && distance > 0, distance),
                // From the lowest one when nothing is left above: what is farthest below.
                Scheduler::CLook => (below, if below { u64::MAX - distance } else { distance }),
                _ => (false, distance),
            }
        })
    }

    fn nearest(&self, start: Nanos, controller: &mut Controller) -> usize {
        controller.catch_up(start);
        self.cheapest(|pending| match &pending.work {
            DiskWork::Transfer { access, extent, spot: Some(spot) } => {
                controller.positioning(start, pending.known, *access, *extent, spot)
            }
            DiskWork::Transfer { .. } | DiskWork::Flush => 0,
        })
    }
}
