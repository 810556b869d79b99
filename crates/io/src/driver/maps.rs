//! Questions of sessions what sectors hold.
//!
//! The stack answers in steps of bounded cost, one in a turn, so that no other client waits. Where a step leads to a sparse file, a thread
//! looks for its holes. An answer may tell of less than was asked: then the client asks again.

use std::collections::VecDeque;

use dcd_engine::{DeviceIndex, Extent, SECTOR_BYTES, SectorState, Stack, StackMap};
use slab::Slab;

use super::{ClientId, Driver, Host};
use crate::device::MappedRun;
use crate::front_end::MapCall;

/// Maximum number of steps for one answer.
const STEPS_MAX: usize = 32;

/// The questions that are not answered.
#[derive(Default)]
pub(super) struct Maps {
    open: Slab<OpenMap>,
    /// Those of which the next step is due.
    due: VecDeque<usize>,
}

struct OpenMap {
    connection: usize,
    client: ClientId,
    disk: usize,
    call: MapCall,
    /// The rest of the extent.
    left: Extent,
    runs: Vec<MappedRun>,
    steps: usize,
}

impl OpenMap {
    /// Takes the states of the next sectors. Returns true if the answer is complete, or long enough.
    fn take(&mut self, found: &[MappedRun]) -> bool {
        self.steps += 1;
        for run in found {
            let is_full = self.runs.len() == self.call.runs_max;
            match self.runs.last_mut() {
                Some(last) if last.state == run.state => last.sectors += run.sectors,
                _ if is_full => return true,
                _ => self.runs.push(*run),
            }
            self.left = Extent::new(self.left.start + run.sectors, self.left.sectors - run.sectors);
        }
        self.left.sectors == 0 || self.steps >= STEPS_MAX
    }
}

impl Maps {
    pub fn are_due(&self) -> bool {
        !self.due.is_empty()
    }
}

impl Driver {
    pub(super) fn map(&mut self, connection: usize, client: ClientId, disk: usize, call: MapCall) {
        let map = OpenMap { connection, client, disk, call, left: call.extent, runs: Vec::new(), steps: 0 };
        let index = self.maps.open.insert(map);
        self.maps.due.push_back(index);
    }

    /// Takes the next step of the question whose turn it is.
    pub(super) fn step_map(&mut self, stack: &mut Stack, host: &mut dyn Host) {
        let Some(index) = self.maps.due.pop_front() else { return };
        let map = &self.maps.open[index];
        if !self.is_client(map.connection, map.client) {
            self.maps.open.remove(index);
            return;
        }
        let (sectors, answer) = stack.map(map.disk, map.left);
        let known = |state| vec![MappedRun { sectors, state }];
        match answer {
            StackMap::Known(state) => self.mapped(stack, host, index, &known(state)),
            StackMap::Device(device, at) => {
                if !self.look_for_holes(index, device, Extent::new(at, sectors)) {
                    self.mapped(stack, host, index, &known(SectorState::Data));
                }
            }
        }
    }

    /// Has a thread look for the holes of a device. Returns false if there is none.
    fn look_for_holes(&mut self, index: usize, device: DeviceIndex, extent: Extent) -> bool {
        let block = self.devices[device.0].geometry.block_sectors() * SECTOR_BYTES;
        self.workers_of(device.0).is_some_and(|workers| {
            workers.look_for_holes(index, extent, block);
            true
        })
    }

    /// Takes what a step has found.
    pub(super) fn mapped(
        &mut self,
        stack: &mut Stack,
        host: &mut dyn Host,
        index: usize,
        found: &[MappedRun],
    ) {
        if !self.maps.open[index].take(found) {
            return self.maps.due.push_back(index);
        }
        let OpenMap { connection, client, call, runs, .. } = self.maps.open.remove(index);
        if self.is_client(connection, client) {
            self.answered(connection);
            self.with_session(stack, host, connection, |session, actions| {
                session.mapped(call.token, &runs, actions);
            });
        }
    }
}
