//! Writes a line for each request while the run goes on. The columns are those of a trace in CSV, so a trace of the run is what
//! comes out.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use dcd_engine::{Nanos, SECTOR_BYTES};

use crate::failure::Failure;
use crate::virtual_run::{Asked, Kind};

pub struct Samples {
    name: String,
    file: BufWriter<File>,
    begin: Nanos,
    result: std::io::Result<()>,
}

impl Samples {
    pub fn create(path: &Path) -> Result<Samples, Failure> {
        let name = path.display().to_string();
        let mut file = BufWriter::new(File::create(path).map_err(|e| Failure::io(&name, e))?);
        let result = writeln!(file, "at_ns,device,op,lba,sectors,response_ns");
        Ok(Samples { name, file, begin: Nanos::ZERO, result })
    }

    /// Times count from here.
    pub fn begin(&mut self, now: Nanos) {
        self.begin = now;
    }

    pub fn answered(&mut self, asked: &Asked, now: Nanos, time: Nanos) {
        let at = now.since(self.begin).0.saturating_sub(time.0);
        let op = match asked.kind {
            Kind::Read => "read",
            Kind::Write if asked.durable => "write-fua",
            Kind::Write => "write",
            Kind::Flush => "flush",
        };
        // The first error is told at the end.
        if self.result.is_ok() {
            let sectors = asked.bytes / SECTOR_BYTES;
            self.result = writeln!(self.file, "{at},0,{op},{},{sectors},{}", asked.lba, time.0);
        }
    }

    pub fn end(mut self) -> Result<(), Failure> {
        self.result.and_then(|()| self.file.flush()).map_err(|e| Failure::io(&self.name, e))
    }
}
