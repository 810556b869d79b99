//! Writes the data of delayed writes to the device below, in an order that is safe.
//!
//! Delayed data is *held* until the model says that it is on the medium, then *going* below until the device has answered.
//! Reads are patched with both. A write or a flush for the device never overtakes data that is going where it must not:
//! it waits in line behind it. No request waits for the device to write delayed data. If that fails, the next flush
//! gets the error, as from a drive that reports a deferred error.

use std::collections::{BTreeMap, VecDeque};

use dcd_engine::{Buf, Cx, Durability, Extent, Io, IoError, IoResult, Lba, OpId, Port, SECTOR_BYTES};

use crate::held::{Held, Patch};

const BELOW: Port = Port(0);

/// Operations of the disk's own have this bit; those of requests have the number of the request.
const OWN: u64 = 1 << 63;

#[derive(Debug)]
struct Going {
    op: OpId,
    start: Lba,
    data: Buf,
    submitted: bool,
}

impl Going {
    fn extent(&self) -> Extent {
        Extent::new(self.start, self.data.len() as u64 / SECTOR_BYTES)
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    held: Held,
    /// In the order in which it was handed down for writing.
    going: VecDeque<Going>,
    line: VecDeque<(OpId, Io)>,
    patches: BTreeMap<u64, Vec<Patch>>,
    failed: Option<IoError>,
    next: u64,
}

impl Behind {
    /// Sectors that were acknowledged and not handed down.
    pub fn held_sectors(&self) -> u64 {
        self.held.sectors()
    }

    pub fn hold(&mut self, start: Lba, buf: &Buf) {
        self.held.insert(start, buf);
    }

    /// Hands the held data of a range to the device: it is on the medium now.
    pub fn destaged(&mut self, extent: Extent, cx: &mut Cx) {
        for (start, data) in self.held.take(extent) {
            self.next += 1;
            let op = OpId(OWN | self.next);
            let buf = data.window(0, data.len());
            self.going.push_back(Going { op, start, data, submitted: false });
            self.hand_down(op, Io::Write { at: start, buf, durability: Durability::Volatile }, cx);
        }
    }

    /// Hands an operation to the device, now or when what it must not overtake is through.
    pub fn hand_down(&mut self, op: OpId, io: Io, cx: &mut Cx) {
        if let Io::Read { .. } = io {
            self.note_patches(op, &io);
            return cx.submit(BELOW, op, io);
        }
        if let (true, Some(extent)) = (op.0 & OWN == 0, io.extent()) {
            // The model has written what was delayed of this range before it wrote this.
            assert!(self.held.take(extent).is_empty(), "a write overtakes delayed data");
        }
        self.line.push_back((op, io));
        self.release(cx);
    }

    fn note_patches(&mut self, op: OpId, io: &Io) {
        let Some(extent) = io.extent() else { return };
        let mut patches = Vec::new();
        for going in &self.going {
            if going.extent().overlaps(extent) {
                patches.push(Patch::of(going.start, &going.data, extent));
            }
        }
        patches.extend(self.held.patches(extent));
        if !patches.is_empty() {
            self.patches.insert(op.0, patches);
        }
    }

    fn release(&mut self, cx: &mut Cx) {
        while let Some((op, io)) = self.line.front() {
            let on_its_way = |going: &Going| {
                going.submitted && io.extent().is_none_or(|extent| going.extent().overlaps(extent))
            };
            if self.going.iter().any(on_its_way) {
                return;
            }
            if let Some(going) = self.going.iter_mut().find(|going| going.op == *op) {
                going.submitted = true;
            }
            let (op, io) = self.line.pop_front().expect("looked at");
            cx.submit(BELOW, op, io);
        }
    }

    /// The device has answered; tells what a request's answer is, and nothing for what the disk did on its own.
    pub fn completed(&mut self, op: OpId, is_flush: bool, result: IoResult, cx: &mut Cx) -> Option<IoResult> {
        if op.0 & OWN != 0 {
            self.going.retain(|going| going.op != op);
            if let Err(error) = result.status {
                self.failed.get_or_insert(error);
            }
            self.release(cx);
            return None;
        }
        let mut result = result;
        for patch in self.patches.remove(&op.0).into_iter().flatten() {
            patch.apply(&mut result.buf);
        }
        if is_flush && let Some(error) = self.failed.take() {
            result.status = Err(error);
        }
        Some(result)
    }
}
