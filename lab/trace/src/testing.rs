//! Helpers for the tests of the formats.

use dcd_engine::Nanos;

use crate::error::TraceError;
use crate::format::{Damage, Format, Input, ReadTrace, writer};
use dcd_stack::{DeviceId, Record, RecordOp};

pub fn input(name: &str, bytes: Vec<u8>) -> Input {
    let bytes = Box::new(std::io::Cursor::new(bytes));
    Input { name: name.to_owned(), bytes, damage: Damage::default() }
}

pub fn read_reader(reader: &mut dyn ReadTrace) -> Result<Vec<Record>, TraceError> {
    let mut records = Vec::new();
    while let Some(record) = reader.next_record()? {
        records.push(record);
    }
    Ok(records)
}

pub fn read(format: &Format, bytes: &[u8]) -> Result<Vec<Record>, TraceError> {
    read_reader(&mut *(format.read)(input("test", bytes.to_vec()))?)
}

pub fn read_text(format: &Format, text: &str) -> Result<Vec<Record>, TraceError> {
    read(format, text.as_bytes())
}

/// Everything that can be read, and every error on the way.
pub fn read_all(format: &Format, bytes: &[u8]) -> (Vec<Record>, Vec<TraceError>) {
    let (mut records, mut errors) = (Vec::new(), Vec::new());
    let mut reader = match (format.read)(input("test", bytes.to_vec())) {
        Ok(reader) => reader,
        Err(error) => return (records, vec![error]),
    };
    loop {
        match reader.next_record() {
            Ok(Some(record)) => records.push(record),
            Ok(None) => return (records, errors),
            Err(error) => {
                let goes_on = error.is_one_record();
                errors.push(error);
                if !goes_on {
                    return (records, errors);
                }
            }
        }
    }
}

/// A place to write to that can be looked at afterwards.
#[derive(Clone, Default)]
pub struct Shared(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub fn written(format: &'static Format, records: &[Record]) -> Vec<u8> {
    let out = Shared::default();
    let mut writer = writer(format, Box::new(out.clone())).expect("it can be written");
    for record in records {
        writer.write(record).expect("it can say this");
    }
    writer.finish().expect("memory does not fail");
    out.0.take()
}

/// Records of every kind, in the order of time, each at a place of its own: the same each time.
pub fn any_records(count: u64, all_operations: bool) -> Vec<Record> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut at = Nanos::from_secs(3);
    let record = |number: u64| {
        at += Nanos(next() % 10_000_000_000);
        let device = DeviceId((next() % 3) as u32);
        let ops = if all_operations { 4 } else { 2 };
        let op =
            [RecordOp::Read, RecordOp::Write, RecordOp::Discard, RecordOp::Flush][(next() % ops) as usize];
        let response = (next() % 4 > 0).then_some(Nanos(1 + next() % 1_000_000_000));
        if op == RecordOp::Flush {
            // Two flushes at once cannot be told apart by their completions.
            return Record::flush(at, device).answered_after(Some(Nanos(1000)));
        }
        let start = number * 4096 + next() % 1000;
        let record = Record::new(at, device, op, start, 1 + next() % 3000).expect("within the limits");
        record.answered_after(response).with_fua(next() % 4 == 0)
    };
    (0..count).map(record).collect()
}
