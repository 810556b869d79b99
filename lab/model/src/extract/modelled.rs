//! A modelled drive that is read as a real one, in virtual time.

use dcd_engine::{Extent, Lba, Nanos};

use super::Reads;
use crate::controller::{Access, Controller};
use crate::drive::Drive;

/// See the module's documentation.
#[derive(Debug)]
pub struct ModelledReads {
    controller: Controller,
    now: Nanos,
}

impl ModelledReads {
    pub fn new(drive: Drive) -> ModelledReads {
        ModelledReads { controller: Controller::new(drive), now: Nanos::ZERO }
    }

    pub fn now(&self) -> Nanos {
        self.now
    }
}

impl Reads for ModelledReads {
    fn sectors(&self) -> u64 {
        self.controller.drive().sectors()
    }

    fn unit(&self) -> u64 {
        u64::from(self.controller.drive().logical_block_bytes()) / dcd_engine::SECTOR_BYTES
    }

    fn read(&mut self, at: Lba, sectors: u64) -> Result<(Nanos, Nanos), String> {
        let begin = self.now;
        self.now = self.controller.serve(begin, begin, Access::Read, Extent::new(at, sectors)).end;
        Ok((begin, self.now))
    }

    fn pause(&mut self, time: Nanos) {
        self.now += time;
    }

    fn progress(&mut self, _what: &str, _done: f64) {}
}
