//! Layers that are right by being simple, and others that are wrong in one way: what explorers and sweeps are tested on.

use std::collections::VecDeque;

use dcd_engine::layers::filter::{Filter, SeenGeometry};
use dcd_engine::layers::slice::Slice;
use dcd_engine::log_cache::Promise;
use dcd_engine::{
    ActivateError, Cx, Discards, Durability, Extent, Geometry, Io, IoError, IoResult, Lba, Nanos, OpId,
    Request, RequestId, StackBuilder,
};

use crate::explore::Rig;
use crate::{DiskFaults, Latency, MemDisk, Value};

const SECTORS: u64 = 1024;
const LATENCY: Latency =
    Latency::Tailed { min: Nanos(5_000), max: Nanos(300_000), slow: Nanos(9_000_000), slow_per_mille: 30 };

/// A layer that changes what passes in one way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Twist {
    None,
    /// Answers flushes by itself.
    SwallowFlushes,
    /// Passes FUA on as if it were missing.
    DropFua,
    /// Makes every write durable.
    Through,
    /// Never answers a flush.
    Stall,
    /// Says that all went well.
    HideErrors,
    /// Says that a failed flush went well after all.
    RetryFlushes,
    PanicOnErrors,
}

struct Twisted {
    twist: Twist,
    seen: SeenGeometry,
    stalled: VecDeque<RequestId>,
}

impl Filter for Twisted {
    fn seen(&self) -> &SeenGeometry {
        &self.seen
    }

    fn pass(&mut self, request: Request, cx: &mut Cx) {
        let io = match (self.twist, request.io) {
            (Twist::SwallowFlushes, Io::Flush) => {
                return cx.reply(request.id, IoResult::ok(dcd_engine::Buf::none()));
            }
            (Twist::Stall, Io::Flush) => return self.stalled.push_back(request.id),
            (Twist::DropFua, Io::Write { at, buf, .. }) => {
                Io::Write { at, buf, durability: Durability::Volatile }
            }
            (Twist::Through, Io::Write { at, buf, .. }) => {
                Io::Write { at, buf, durability: Durability::Durable }
            }
            (Twist::Through, Io::WriteZeroes { extent, unmap, .. }) => {
                Io::WriteZeroes { extent, unmap, durability: Durability::Durable }
            }
            (_, io) => io,
        };
        cx.submit(Self::BELOW, OpId(request.id.0), io);
    }

    fn pass_back(&mut self, id: RequestId, mut result: IoResult, cx: &mut Cx) {
        match (self.twist, result.status) {
            (Twist::HideErrors, _) => result.status = Ok(()),
            (Twist::RetryFlushes, Err(IoError { extent: None, .. })) => {
                return cx.submit(Self::BELOW, OpId(id.0), Io::Flush);
            }
            (Twist::PanicOnErrors, Err(error)) => panic!("{error}"),
            _ => {}
        }
        cx.reply(id, result);
    }

    fn over(&self, below: Geometry) -> Result<Geometry, ActivateError> {
        // A discard cannot be made durable, so a layer that promises `always` does not offer it.
        let discards = if self.twist == Twist::Through { Discards::No } else { below.discards };
        Ok(Geometry { discards, ..below })
    }
}

pub(crate) fn rig(seed: u64, promise: Promise, twist: Twist, faults: &DiskFaults) -> Rig {
    let geometry = Geometry { discards: Discards::Zero, ..Geometry::plain(2 * SECTORS) };
    let mut disk = MemDisk::new(geometry, LATENCY, seed);
    let mut bytes = vec![0; (SECTORS * 512) as usize];
    crate::stamp::stamp(&mut bytes, Lba(0), 0, seed);
    disk.put(Lba(SECTORS), &bytes);
    disk.set_faults(faults.clone());
    let build = move |geometries: &[Geometry]| {
        let mut builder = StackBuilder::new();
        let device = builder.device(geometries[0]);
        let extent = Extent::new(Lba(SECTORS), SECTORS);
        let slice = builder.layer("slice", Box::new(Slice::new(extent)), &[device]);
        let twisted = Twisted { twist, seen: SeenGeometry::default(), stalled: VecDeque::new() };
        let root = builder.layer("twisted", Box::new(twisted), &[slice]);
        builder.finish(root)
    };
    Rig {
        promise,
        ..Rig::plain(vec![disk], vec![Value::Write(0); SECTORS as usize], Box::new(build), "a slice".into())
    }
}
