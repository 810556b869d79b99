//! Parquet: our own columns, and those of known data sets where somebody has converted them (see [`super::columns`]). A file
//! ends with its directory, so it is read from its place, or whole into memory from a stream.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use dcd_engine::Nanos;
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::parser::parse_message_type;

use super::columns::{Columns, Raw, Role, io_type, operation};
use crate::error::{TraceError, Unit};
use crate::format::{Format, Input, Likeness, ReadTrace, WriteTrace};
use dcd_stack::Record;

const MAGIC: &[u8] = b"PAR1";
/// From a stream, no more than this is kept in memory.
const STREAM_BYTES_MAX: u64 = 1 << 30;
/// Records in a row group, which is what is held in memory: some 6 MB.
const GROUP_RECORDS: usize = 1 << 17;

const SCHEMA: &str = "message trace {
    REQUIRED INT64 at_ns (INTEGER(64,false));
    REQUIRED INT32 device (INTEGER(32,false));
    REQUIRED BINARY op (STRING);
    REQUIRED INT64 lba;
    REQUIRED INT64 sectors;
    OPTIONAL INT64 response_ns (INTEGER(64,false));
}";

pub const FORMAT: Format = Format {
    name: "parquet",
    about: "Parquet: columns at_ns, device, op, lba, sectors, response_ns; or those of msr, alibaba, tencent, libCacheSim",
    recognise: |head| Likeness::certain_if(head.bytes.starts_with(MAGIC)),
    read: |input| Ok(Box::new(Reader::open(input)?)),
    write: Some(|out| Box::new(Writer::new(out))),
    time_unit: Nanos(1),
    has_responses: true,
    has_discards_and_flushes: true,
    guess: None,
};

struct Reader {
    name: String,
    rows: RowIter<'static>,
    columns: Columns,
    number: u64,
}

fn unreadable(file: &str, what: impl std::fmt::Display) -> TraceError {
    TraceError::Unreadable { file: file.to_owned(), what: what.to_string() }
}

fn reader(name: &str, source: impl ChunkReader + 'static) -> Result<Box<dyn FileReader>, TraceError> {
    let reader = SerializedFileReader::new(source).map_err(|e| unreadable(name, e))?;
    Ok(Box::new(reader))
}

impl Reader {
    fn open(input: Input) -> Result<Reader, TraceError> {
        let Input { name, bytes, path, .. } = input;
        let file = match path {
            Some(path) => reader(&name, File::open(&path).map_err(|e| TraceError::io(&name, e))?)?,
            None => {
                let mut all = Vec::new();
                let read = bytes.take(STREAM_BYTES_MAX + 1).read_to_end(&mut all);
                read.map_err(|e| TraceError::io(&name, e))?;
                if all.len() as u64 > STREAM_BYTES_MAX {
                    return Err(unreadable(
                        &name,
                        "this Parquet file is too large for a stream: name the file itself, not compressed again",
                    ));
                }
                reader(&name, bytes::Bytes::from(all))?
            }
        };
        let schema = file.metadata().file_metadata().schema_descr();
        let names: Vec<String> = schema.columns().iter().map(|column| column.name().to_owned()).collect();
        let flat = schema.root_schema().get_fields().iter().all(|field| field.is_primitive());
        let Some(columns) = Columns::of(&names).filter(|_| flat) else {
            let (found, known) = (names.join(", "), Columns::known());
            return Err(unreadable(
                &name,
                format!("its columns are {found}. A trace has {known}, each a plain number or text"),
            ));
        };
        Ok(Reader { name, rows: RowIter::from_file_into(file), columns, number: 0 })
    }

    fn record(&mut self, row: &Row) -> Result<Record, String> {
        let mut raw = Raw::new();
        for ((column, field), role) in row.get_column_iter().zip(&self.columns.roles) {
            let scaled = |unit| scaled(column, field, unit);
            let word = || text(field).unwrap_or_else(|| field.to_string());
            match role {
                None => {}
                Some(Role::At(unit)) => raw.at = Nanos(time(column, field, *unit)?),
                Some(Role::Device) => raw.device = scaled(1)?,
                Some(Role::Host) => raw.host = text(field),
                Some(Role::Op) => raw.op = operation(column, &word())?,
                Some(Role::IoType) => raw.op = io_type(column, &word())?,
                Some(Role::Start(unit)) => raw.start = scaled(*unit)?,
                Some(Role::Length(unit)) => raw.length = scaled(*unit)?,
                Some(Role::Response(_) | Role::ResponseOrZero(_)) if *field == Field::Null => {}
                Some(Role::Response(unit) | Role::ResponseOrZero(unit)) => {
                    raw.response = Some(Nanos(scaled(*unit)?));
                }
            }
        }
        self.columns.record(&raw)
    }
}

impl ReadTrace for Reader {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        let Some(row) = self.rows.next() else { return Ok(None) };
        let row = row.map_err(|e| unreadable(&self.name, e))?;
        self.number += 1;
        let (file, number) = (self.name.clone(), self.number);
        let record = self.record(&row);
        record.map(Some).map_err(|what| TraceError::Malformed { file, unit: Unit::Record, number, what })
    }

    fn note(&self) -> Option<String> {
        self.columns.note()
    }
}

fn whole_number(field: &Field) -> Option<u64> {
    match field {
        Field::Byte(number) => u64::try_from(*number).ok(),
        Field::Short(number) => u64::try_from(*number).ok(),
        Field::Int(number) => u64::try_from(*number).ok(),
        Field::Long(number) => u64::try_from(*number).ok(),
        Field::UByte(number) => Some(u64::from(*number)),
        Field::UShort(number) => Some(u64::from(*number)),
        Field::UInt(number) => Some(u64::from(*number)),
        Field::ULong(number) => Some(*number),
        _ => None,
    }
}

fn scaled(column: &str, field: &Field, unit: u64) -> Result<u64, String> {
    let number = whole_number(field).ok_or_else(|| format!("the {column} is no whole number: {field}"))?;
    number.checked_mul(unit).ok_or_else(|| format!("the {column} {number} is too large"))
}

/// A column of Parquet's own times says its unit itself.
fn time(column: &str, field: &Field, unit: u64) -> Result<u64, String> {
    match field {
        Field::TimestampMillis(ms) => scaled(column, &Field::Long(*ms), 1_000_000),
        Field::TimestampMicros(us) => scaled(column, &Field::Long(*us), 1_000),
        field => scaled(column, field, unit),
    }
}

fn text(field: &Field) -> Option<String> {
    match field {
        Field::Str(text) => Some(text.clone()),
        Field::Bytes(bytes) => bytes.as_utf8().ok().map(str::to_owned),
        _ => None,
    }
}

/// What the library writes to; it is emptied after each row group, as it wants something that can be sent to a thread.
#[derive(Clone, Default)]
struct Spool(Arc<Mutex<Vec<u8>>>);

impl Write for Spool {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nobody panics with the lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Writer {
    out: Box<dyn Write>,
    spool: Spool,
    file: Option<SerializedFileWriter<Spool>>,
    records: Vec<Record>,
}

fn io(error: std::io::Error) -> TraceError {
    TraceError::io("output", error)
}

fn library(error: ParquetError) -> TraceError {
    TraceError::Other(format!("output: {error}"))
}

fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Spool>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let mut column = group.next_column()?.expect("the schema has this column");
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

impl Writer {
    fn new(out: Box<dyn Write>) -> Writer {
        let schema = Arc::new(parse_message_type(SCHEMA).expect("the schema is well-formed"));
        let compression = Compression::ZSTD(ZstdLevel::default());
        let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
        let spool = Spool::default();
        let file = SerializedFileWriter::new(spool.clone(), schema, properties);
        let file = Some(file.expect("writing to memory does not fail"));
        Writer { out, spool, file, records: Vec::new() }
    }

    /// Times and addresses have 64 bits; which of them are signed is in the schema.
    fn write_group(&mut self) -> Result<(), ParquetError> {
        let records = std::mem::take(&mut self.records);
        let file = self.file.as_mut().expect("it is taken at the end only");
        let mut group = file.next_row_group()?;
        let longs = |of: fn(&Record) -> u64| records.iter().map(|r| of(r) as i64).collect::<Vec<i64>>();
        let devices: Vec<i32> = records.iter().map(|r| r.device.0 as i32).collect();
        let ops: Vec<ByteArray> = records.iter().map(|r| ByteArray::from(r.op.name())).collect();
        let responses: Vec<i64> = records.iter().filter_map(|r| r.response).map(|r| r.0 as i64).collect();
        let known: Vec<i16> = records.iter().map(|r| i16::from(r.response.is_some())).collect();
        column::<Int64Type>(&mut group, &longs(|r| r.at.0), None)?;
        column::<Int32Type>(&mut group, &devices, None)?;
        column::<ByteArrayType>(&mut group, &ops, None)?;
        column::<Int64Type>(&mut group, &longs(|r| r.extent.start.0), None)?;
        column::<Int64Type>(&mut group, &longs(|r| r.extent.sectors), None)?;
        column::<Int64Type>(&mut group, &responses, Some(&known))?;
        group.close().map(drop)
    }

    fn empty_spool(&mut self) -> Result<(), TraceError> {
        let bytes = std::mem::take(&mut *self.spool.0.lock().expect("nobody panics with the lock"));
        self.out.write_all(&bytes).map_err(io)
    }
}

impl WriteTrace for Writer {
    fn write(&mut self, record: &Record) -> Result<(), TraceError> {
        self.records.push(*record);
        if self.records.len() < GROUP_RECORDS {
            return Ok(());
        }
        self.write_group().map_err(library)?;
        self.empty_spool()
    }

    fn finish(&mut self) -> Result<(), TraceError> {
        if !self.records.is_empty() {
            self.write_group().map_err(library)?;
        }
        if let Some(file) = self.file.take() {
            file.close().map_err(library)?;
        }
        self.empty_spool()?;
        self.out.flush().map_err(io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_records, read, written};
    use dcd_stack::{DeviceId, Op};

    /// A file of one row group with these columns.
    fn file(schema: &str, numbers: &[&[i64]], ops: &[&str]) -> Vec<u8> {
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let spool = Spool::default();
        let mut file = SerializedFileWriter::new(spool.clone(), schema, Arc::default()).unwrap();
        let mut group = file.next_row_group().unwrap();
        for values in numbers {
            column::<Int64Type>(&mut group, values, None).unwrap();
        }
        let ops: Vec<ByteArray> = ops.iter().map(|&op| ByteArray::from(op)).collect();
        column::<ByteArrayType>(&mut group, &ops, None).unwrap();
        group.close().unwrap();
        file.close().unwrap();
        spool.0.lock().unwrap().clone()
    }

    #[test]
    fn columns_of_published_data_sets_are_known() {
        let msr = file(
            "message m { REQUIRED INT64 Timestamp; REQUIRED INT64 DiskNumber; REQUIRED INT64 Offset; REQUIRED INT64 Size;
             REQUIRED INT64 ResponseTime; REQUIRED BINARY Type (STRING); }",
            &[&[10, 20], &[1, 1], &[512, 8192], &[1024, 4096], &[7, 8]],
            &["Read", "Write"],
        );
        let expected = [
            Record::new(Nanos(1_000), DeviceId(1), Op::Read, 1, 2).unwrap().answered_after(Some(Nanos(700))),
            Record::new(Nanos(2_000), DeviceId(1), Op::Write, 16, 8)
                .unwrap()
                .answered_after(Some(Nanos(800))),
        ];
        assert_eq!(read(&FORMAT, &msr).unwrap(), expected);
        let alibaba = file(
            "message m { REQUIRED INT64 device_id; REQUIRED INT64 offset; REQUIRED INT64 length;
             REQUIRED INT64 timestamp; REQUIRED BINARY opcode (STRING); }",
            &[&[4], &[4096], &[512], &[3]],
            &["W"],
        );
        let expected = Record::new(Nanos(3_000), DeviceId(4), Op::Write, 8, 1).unwrap();
        assert_eq!(read(&FORMAT, &alibaba).unwrap(), [expected]);
    }

    #[test]
    fn what_is_no_trace_is_told_with_the_columns_that_one_has() {
        let other = file("message m { REQUIRED INT64 price; REQUIRED BINARY name; }", &[&[1]], &["x"]);
        let error = read(&FORMAT, &other).unwrap_err().to_string();
        assert!(error.contains("its columns are price, name") && error.contains("at_ns, op, lba"), "{error}");
        let bad = file(
            "message m { REQUIRED INT64 at_ns; REQUIRED INT64 lba; REQUIRED INT64 sectors; REQUIRED BINARY op; }",
            &[&[1], &[-4], &[1]],
            &["read"],
        );
        let error = read(&FORMAT, &bad).unwrap_err().to_string();
        assert!(error.contains("record 1: the lba is no whole number: -4"), "{error}");
        assert!(read(&FORMAT, b"PAR1 and nothing else").is_err());
    }

    #[test]
    fn several_row_groups_are_one_trace() {
        let records = any_records(GROUP_RECORDS as u64 + 10, true);
        assert!(read(&FORMAT, &written(&FORMAT, &records)).unwrap() == records);
    }
}
