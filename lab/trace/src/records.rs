//! Reads the binary formats whose records have one length.

use std::io::{BufRead, ErrorKind, Read};

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::error::{TraceError, Unit};
use crate::format::{Input, ReadTrace};
use dcd_stack::Record;

/// Converts a record of a format to ours. None: it is not a request.
pub trait Records {
    type Raw: FromBytes + IntoBytes;

    fn parse(&mut self, raw: &Self::Raw) -> Result<Option<Record>, String>;

    /// Tells what was left out, or assumed.
    fn note(&self) -> Option<String> {
        None
    }
}

/// Reads a binary format.
pub struct RecordReader<R> {
    input: Input,
    number: u64,
    records: R,
}

impl<R: Records> RecordReader<R> {
    pub const fn new(input: Input, records: R) -> RecordReader<R> {
        RecordReader { input, number: 0, records }
    }

    fn malformed(&self, what: String) -> TraceError {
        TraceError::Malformed { file: self.input.name.clone(), unit: Unit::Record, number: self.number, what }
    }

    /// The bytes of the next record; None at the end.
    fn raw(&mut self) -> Result<Option<R::Raw>, TraceError> {
        if self.input.bytes.fill_buf().map_err(|e| TraceError::io(&self.input.name, e))?.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let mut raw = R::Raw::new_zeroed();
        match self.input.bytes.read_exact(raw.as_mut_bytes()) {
            Ok(()) => Ok(Some(raw)),
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                Err(self.malformed("the file was cut off within it".to_owned()))
            }
            Err(e) => Err(TraceError::io(&self.input.name, e)),
        }
    }
}

impl<R: Records> ReadTrace for RecordReader<R> {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        while let Some(raw) = self.raw()? {
            let record = self.records.parse(&raw).map_err(|what| self.malformed(what))?;
            if record.is_some() {
                return Ok(record);
            }
        }
        Ok(None)
    }

    fn note(&self) -> Option<String> {
        self.records.note()
    }
}
