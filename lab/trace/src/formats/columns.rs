//! Data sets whose columns have names, in the first line of a CSV file.

use dcd_engine::{Nanos, SECTOR_BYTES};

use crate::text::{Names, RESPONSE_UNKNOWN, counted, known_response};
use dcd_stack::{DeviceId, Record, RecordOp};

/// Meaning of a column; times in units of so many nanoseconds, places and lengths of so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    At(u64),
    Device,
    Host,
    Op,
    /// 0 is a read and 1 a write.
    IoType,
    Start(u64),
    Length(u64),
    Response(u64),
    /// 0: unknown.
    ResponseOrZero(u64),
}

/// A data set: its columns, by their names in lower case.
pub struct DataSet {
    pub about: &'static str,
    columns: &'static [(&'static str, Role)],
    /// Assumptions, as the data set does not state them.
    pub guess: Option<&'static str>,
}

const SECOND_NS: u64 = 1_000_000_000;

pub const DATA_SETS: [DataSet; 5] = [
    DataSet {
        about: "at_ns, op, lba, sectors, and perhaps device, response_ns",
        columns: &[
            ("at_ns", Role::At(1)),
            ("device", Role::Device),
            ("op", Role::Op),
            ("lba", Role::Start(SECTOR_BYTES)),
            ("sectors", Role::Length(SECTOR_BYTES)),
            ("response_ns", Role::Response(1)),
        ],
        guess: None,
    },
    DataSet {
        about: "Timestamp, Type, Offset, Size, and perhaps Hostname, DiskNumber, ResponseTime",
        columns: &[
            ("timestamp", Role::At(100)),
            ("hostname", Role::Host),
            ("disknumber", Role::Device),
            ("type", Role::Op),
            ("offset", Role::Start(1)),
            ("size", Role::Length(1)),
            ("responsetime", Role::ResponseOrZero(100)),
        ],
        guess: None,
    },
    DataSet {
        about: "timestamp, opcode, offset, length, and perhaps device_id",
        columns: &[
            ("timestamp", Role::At(1_000)),
            ("device_id", Role::Device),
            ("opcode", Role::Op),
            ("offset", Role::Start(1)),
            ("length", Role::Length(1)),
        ],
        guess: None,
    },
    DataSet {
        about: "Timestamp, Offset, Size, IOType, and perhaps VolumeID",
        columns: &[
            ("timestamp", Role::At(SECOND_NS)),
            ("offset", Role::Start(SECTOR_BYTES)),
            ("size", Role::Length(SECTOR_BYTES)),
            ("iotype", Role::IoType),
            ("volumeid", Role::Device),
        ],
        guess: None,
    },
    // libCacheSim.
    DataSet {
        about: "time, obj_id or lbn, size, and perhaps op",
        columns: &[
            ("time", Role::At(SECOND_NS)),
            ("timestamp", Role::At(SECOND_NS)),
            ("clock_time", Role::At(SECOND_NS)),
            ("op", Role::Op),
            ("lbn", Role::Start(SECTOR_BYTES)),
            ("obj_id", Role::Start(SECTOR_BYTES)),
            ("size", Role::Length(1)),
            ("obj_size", Role::Length(1)),
        ],
        guess: Some("times were taken for seconds, places for sectors of 512 bytes"),
    },
];

/// The roles of the columns of a file.
pub struct Columns {
    pub roles: Vec<Option<Role>>,
    pub set: &'static DataSet,
    names: Names,
    unknown: u64,
}

impl Columns {
    /// None if no data set is known that has these columns.
    pub fn of(names: &[String]) -> Option<Columns> {
        DATA_SETS.iter().find_map(|set| {
            let role = |name: &String| {
                set.columns
                    .iter()
                    .find(|(column, _)| name.eq_ignore_ascii_case(column))
                    .map(|&(_, role)| role)
            };
            let roles: Vec<Option<Role>> = names.iter().map(role).collect();
            let count =
                |wanted: fn(&Role) -> bool| roles.iter().flatten().filter(|role| wanted(role)).count();
            let whole = count(|role| matches!(role, Role::At(_))) == 1
                && count(|role| matches!(role, Role::Start(_))) == 1
                && count(|role| matches!(role, Role::Length(_))) == 1
                && (set.guess.is_some() || count(|role| matches!(role, Role::Op | Role::IoType)) == 1);
            whole.then(|| Columns { roles, set, names: Names::default(), unknown: 0 })
        })
    }

    pub fn known() -> String {
        DATA_SETS.iter().map(|set| set.about).collect::<Vec<_>>().join("; or ")
    }

    fn has_operations(&self) -> bool {
        self.roles.iter().flatten().any(|role| matches!(role, Role::Op | Role::IoType))
    }

    /// Tells what was assumed, and left out.
    pub fn note(&self) -> Option<String> {
        let reads = (!self.has_operations())
            .then_some("no column says what is read and what written: all is taken for reads");
        let guesses = self.set.guess.into_iter().chain(reads).map(str::to_owned);
        let notes: Vec<String> = guesses.chain(counted(self.unknown, RESPONSE_UNKNOWN)).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    pub fn record(&mut self, row: &Raw) -> Result<Record, String> {
        let number =
            u32::try_from(row.device).map_err(|_| format!("the device {} is too large", row.device))?;
        let device = match &row.host {
            Some(host) => self.names.id(&format!("{host}.{number}"), Some(number))?,
            None => DeviceId(number),
        };
        let record = match row.op {
            RecordOp::Flush => Record::flush(row.at, device),
            op => Record::of_bytes(row.at, device, op, row.start, row.length)?,
        };
        let or_zero = self.roles.iter().flatten().any(|role| matches!(role, Role::ResponseOrZero(_)));
        let response = match row.response {
            Some(response) if or_zero => known_response(response, &mut self.unknown),
            response => response,
        };
        Ok(record.with_fua(row.fua).answered_after(response))
    }
}

/// A row, in nanoseconds and bytes.
pub struct Raw {
    pub at: Nanos,
    pub op: RecordOp,
    pub start: u64,
    pub length: u64,
    pub device: u64,
    pub host: Option<String>,
    pub response: Option<Nanos>,
    pub fua: bool,
}

impl Raw {
    pub const fn new() -> Raw {
        Raw {
            at: Nanos::ZERO,
            op: RecordOp::Read,
            start: 0,
            length: 0,
            device: 0,
            host: None,
            response: None,
            fua: false,
        }
    }
}

/// The word of our own columns for a write that is durable when it is answered.
pub const WRITE_FUA: &str = "write-fua";

/// Words, and the codes of SCSI commands.
pub fn operation(column: &str, word: &str) -> Result<RecordOp, String> {
    match word.to_ascii_lowercase().as_str() {
        "r" | "read" | "get" | "08" | "28" | "88" | "a8" => Ok(RecordOp::Read),
        "w" | "write" | "set" | "put" | "0a" | "2a" | "8a" | "aa" => Ok(RecordOp::Write),
        "d" | "discard" | "trim" => Ok(RecordOp::Discard),
        "f" | "flush" | "sync" => Ok(RecordOp::Flush),
        _ => Err(format!("the {column} is not read, write, discard or flush: {word:?}")),
    }
}

pub fn io_type(column: &str, word: &str) -> Result<RecordOp, String> {
    match word {
        "0" => Ok(RecordOp::Read),
        "1" => Ok(RecordOp::Write),
        _ => Err(format!("the {column} is neither 0 nor 1: {word:?}")),
    }
}
