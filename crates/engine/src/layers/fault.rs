//! Makes the device or layer below fail, or lie, in a planned way. For tests, and to see how software reacts when a disk fails.

use serde::{Deserialize, Serialize};

use crate::layer::{Cx, Durability, ErrorKind, Io, IoError, IoKind, IoResult, OpId, Request};
use crate::layers::filter::{Filter, SeenGeometry};
use crate::{AnyStatus, Buf, Nanos};

/// The operations that a fault hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hits {
    #[default]
    All,
    Reads,
    /// Writes, zeroes and discards.
    Writes,
    Flushes,
}

/// The planned faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct FaultPlan {
    /// Flushes are answered but not carried out, and durable writes are made volatile.
    pub ignore_flush: bool,
    pub hits: Hits,
    /// Number of matching operations that succeed first.
    pub fail_after: u64,
    /// Number of matching operations that then fail; 0: none.
    pub fail_count: u64,
    /// ENOSPC in place of EIO.
    pub no_space: bool,
}

impl Default for FaultPlan {
    fn default() -> Self {
        FaultPlan { ignore_flush: false, hits: Hits::All, fail_after: 0, fail_count: 0, no_space: false }
    }
}

/// Counters of a fault layer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FaultStatus {
    /// Number of operations of the kinds that may fail.
    pub seen: u64,
    pub failed: u64,
    pub ignore_flush: bool,
}

/// See the module's documentation.
pub struct Fault {
    plan: FaultPlan,
    /// Number of matching operations since activation.
    come: u64,
    failed: u64,
    seen: SeenGeometry,
}

impl Fault {
    pub const fn new(plan: FaultPlan) -> Fault {
        Fault { plan, come: 0, failed: 0, seen: SeenGeometry::new(Vec::new()) }
    }

    /// Counts an operation, and tells whether it fails.
    fn fails(&mut self, io: &Io) -> bool {
        let hit = match self.plan.hits {
            Hits::All => true,
            Hits::Reads => io.kind() == IoKind::Read,
            Hits::Writes => io.modifies(),
            Hits::Flushes => matches!(io, Io::Flush),
        };
        if !hit {
            return false;
        }
        let place = self.come;
        self.come += 1;
        place >= self.plan.fail_after && place - self.plan.fail_after < self.plan.fail_count
    }
}

impl Filter for Fault {
    fn seen(&self) -> &SeenGeometry {
        &self.seen
    }

    fn pass(&mut self, Request { id, mut io, .. }: Request, cx: &mut Cx) {
        if self.fails(&io) {
            self.failed += 1;
            let kind = if self.plan.no_space { ErrorKind::NoSpace } else { ErrorKind::Medium };
            let error = IoError { kind, extent: io.extent() };
            return cx.reply(id, IoResult::err(io.take_buf(), error));
        }
        if self.plan.ignore_flush {
            match &mut io {
                Io::Flush => return cx.reply(id, IoResult::ok(Buf::none())),
                Io::Write { durability, .. }
                | Io::WriteCopy { durability, .. }
                | Io::WriteZeroes { durability, .. } => {
                    *durability = Durability::Volatile;
                }
                Io::Read { .. } | Io::ReadCopy { .. } | Io::Discard { .. } => {}
            }
        }
        cx.submit(Self::BELOW, OpId(id.0), io);
    }

    fn report(&self, _now: Nanos) -> Box<dyn AnyStatus> {
        Box::new(FaultStatus { seen: self.come, failed: self.failed, ignore_flush: self.plan.ignore_flush })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Event, Layer, Lba, RequestId};

    fn send(fault: &mut Fault, io: Io) -> Command {
        let mut cx = Cx::default();
        fault.handle(Event::Request(Request { id: RequestId(1), disk: 0, io }), cx.at(Nanos::ZERO));
        assert_eq!(cx.commands.len(), 1);
        cx.commands.remove(0)
    }

    fn write(durability: Durability) -> Io {
        Io::Write { at: Lba(8), buf: Buf::zeroed(512), durability }
    }

    #[test]
    fn a_liar_answers_flushes_and_forgets_durability() {
        let mut liar = Fault::new(FaultPlan { ignore_flush: true, ..FaultPlan::default() });
        assert!(matches!(send(&mut liar, Io::Flush), Command::Reply { result, .. } if result.status.is_ok()));
        let passed = send(&mut liar, write(Durability::Durable));
        let Command::Submit { io: Io::Write { durability, .. }, .. } = passed else { panic!("{passed:?}") };
        assert_eq!(durability, Durability::Volatile);
    }

    #[test]
    fn the_planned_operations_fail_and_no_others() {
        let plan = FaultPlan { hits: Hits::Writes, fail_after: 2, fail_count: 3, ..FaultPlan::default() };
        let mut fault = Fault::new(plan);
        let mut fails =
            |io| matches!(send(&mut fault, io), Command::Reply { result, .. } if result.status.is_err());
        assert!(!fails(Io::Flush) && !fails(Io::Flush) && !fails(Io::Flush));
        let failed: Vec<bool> = (0..7).map(|_| fails(write(Durability::Volatile))).collect();
        assert_eq!(failed, [false, false, true, true, true, false, false]);
    }
}
