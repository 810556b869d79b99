//! Errors in traces: the place, the problem, the remedy.

use std::io;

/// The unit in which a place in a trace is counted, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Line,
    Record,
    Block,
}

impl Unit {
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Line => "line",
            Unit::Record => "record",
            Unit::Block => "block",
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A record is wrong; the reader can go on after it.
    #[error("{file}: {} {number}: {what}. Mend it, name the right format with --from, or leave such records out with --skip-bad", unit.name())]
    Malformed { file: String, unit: Unit, number: u64, what: String },
    /// More lines are wrong than one would overlook.
    #[error(
        "{file}: {bad} of the first {lines} lines are wrong: {first}. Name the right format with --from, or the columns with \
         --columns, or leave such lines out with --skip-bad"
    )]
    TooManyBad { file: String, bad: u64, lines: u64, first: String },
    /// All that is left of compressed data has been read.
    #[error(
        "{file}: the compressed data is damaged or was cut off ({what}); --skip-bad uses what comes before"
    )]
    CutOff { file: String, what: String },
    #[error("{file}: it is empty")]
    Empty { file: String },
    /// Everything was read, and none of it was a request.
    #[error("{file}: nothing in it is a request{}, read as {format}. If it is something else, name that with --from", told(.left_out.as_deref()))]
    Nothing { file: String, format: &'static str, left_out: Option<String> },
    /// The reader can read nothing after this.
    #[error("{file}: {what}")]
    Unreadable { file: String, what: String },
    #[error("{file}: {source}")]
    Io { file: String, source: io::Error },
    #[error(
        "{file}: no format is recognised; it begins with {begins:?}. Name the format with --from: {known}. Or name the columns of text with --columns"
    )]
    Unrecognised { file: String, begins: String, known: String },
    #[error("{file}: this could be {first} or {second}: name it with --from {first} or --from {second}")]
    Ambiguous { file: String, first: &'static str, second: &'static str },
    #[error("there is no trace format {name:?}; there are {known}")]
    NoSuchFormat { name: String, known: String },
    #[error("{format} traces can only be read; write another format: {known}")]
    ReadOnly { format: &'static str, known: String },
    /// The format has no way to say this.
    #[error("record {number}: the format {format} cannot say {what}. {advice}")]
    Inexpressible { format: &'static str, number: u64, what: String, advice: &'static str },
    #[error(transparent)]
    Output(#[from] dcd_stack::OutputError),
    #[error("{0}")]
    Other(String),
}

impl TraceError {
    pub fn io(file: &str, source: io::Error) -> TraceError {
        TraceError::Io { file: file.to_owned(), source }
    }

    /// Place and problem of one record, without its file.
    pub fn of_one_record(&self) -> Option<(Unit, String)> {
        match self {
            TraceError::Malformed { unit, number, what, .. } => {
                Some((*unit, format!("{} {number}: {what}", unit.name())))
            }
            _ => None,
        }
    }

    /// True if the reader can go on with the next record.
    pub const fn is_one_record(&self) -> bool {
        matches!(self, TraceError::Malformed { .. } | TraceError::CutOff { .. })
    }
}

fn told(left_out: Option<&str>) -> String {
    left_out.map_or_else(String::new, |what| format!(" ({what})"))
}
