//! The formats: what each must offer, the table of all of them, and how one is recognised.

use std::cell::RefCell;
use std::io::{BufRead, Write};
use std::rc::Rc;

use dcd_engine::Nanos;

use crate::error::TraceError;
use crate::formats;
use dcd_stack::Record;

/// Bytes of a trace by which its format is recognised.
pub const HEAD_BYTES: usize = 64 << 10;
/// Maximum number of lines of a text that are tried.
const LINES_TRIED: usize = 16;

/// Gives the records of a trace one by one, so that a trace may be larger than memory.
pub trait ReadTrace {
    /// The next record, or None at the end. After an error that [`TraceError::is_one_record`], the next call goes on.
    fn next_record(&mut self) -> Result<Option<Record>, TraceError>;

    /// Tells what was left out because it is not a request or not the chosen event, if the format has such.
    fn note(&self) -> Option<String> {
        None
    }
}

/// Takes the records of a trace one by one.
pub trait WriteTrace {
    fn write(&mut self, record: &Record) -> Result<(), TraceError>;
    /// Ends the trace. What is not finished is not a whole trace.
    fn finish(&mut self) -> Result<(), TraceError>;
}

/// Uncompressed bytes of a trace, with the name for messages.
pub struct Input {
    pub name: String,
    pub bytes: Box<dyn BufRead>,
    pub damage: Damage,
}

/// Why compressed data ends before its end; what is known only when a reader has come so far.
#[derive(Clone, Debug, Default)]
pub struct Damage(Rc<RefCell<Option<String>>>);

impl Damage {
    pub fn note(&self, why: String) {
        self.0.borrow_mut().get_or_insert(why);
    }

    pub fn is_known(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Gives it once, to the one who tells it.
    pub fn take(&self) -> Option<String> {
        self.0.borrow_mut().take()
    }
}

/// The first bytes of a trace.
pub struct Head<'a> {
    pub bytes: &'a [u8],
}

impl Head<'_> {
    /// Returns the first whole lines; none if it is no text.
    pub fn lines(&self) -> Vec<&str> {
        let whole = match self.bytes.iter().rposition(|&b| b == b'\n') {
            Some(last) if self.bytes.len() >= HEAD_BYTES => &self.bytes[..last],
            _ => self.bytes,
        };
        let Ok(text) = std::str::from_utf8(whole) else { return Vec::new() };
        text.lines().map(str::trim).filter(|line| !line.is_empty()).take(LINES_TRIED).collect()
    }

    /// Counts the first lines that a parser of lines takes for requests.
    pub fn requests(&self, mut lines: impl crate::text::Lines) -> Likeness {
        let count = self.lines().iter().filter(|line| matches!(lines.parse(line), Ok(Some(_)))).count();
        Likeness(count as u32)
    }
}

/// Likeness of a trace to a format; zero: none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Likeness(pub u32);

impl Likeness {
    pub const NONE: Likeness = Likeness(0);
    /// A magic number, or a first line that says it.
    pub const CERTAIN: Likeness = Likeness(u32::MAX);
    /// No magic number, but more than could be by chance.
    pub const LIKELY: Likeness = Likeness(u32::MAX - 1);

    pub const fn certain_if(it_is: bool) -> Likeness {
        if it_is { Likeness::CERTAIN } else { Likeness::NONE }
    }
}

type Writer = fn(Box<dyn Write>) -> Box<dyn WriteTrace>;

/// A format: a row of the table.
pub struct Format {
    pub name: &'static str,
    /// A line for the help.
    pub about: &'static str,
    pub recognise: fn(&Head<'_>) -> Likeness,
    pub read: fn(Input) -> Result<Box<dyn ReadTrace>, TraceError>,
    pub write: Option<Writer>,
    /// The finest time that it can hold; finer ones are cut off.
    pub time_unit: Nanos,
    pub has_responses: bool,
    pub has_discards_and_flushes: bool,
    /// True if writes say whether they are durable when they are answered.
    pub has_fua: bool,
    /// Assumptions where the format was recognised, and not named.
    pub guess: Option<&'static str>,
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Every format. A new one is one file under `formats` and one row here.
pub const FORMATS: &[&Format] = &[
    &formats::compact::FORMAT,
    &formats::table::MSR,
    &formats::table::SPC,
    &formats::disksim::FORMAT,
    &formats::disksim::MQSIM,
    &formats::validate::FORMAT,
    &formats::srt::FORMAT,
    &formats::blkparse::FORMAT,
    &formats::blkparse::PERF,
    &formats::blktrace::FORMAT,
    &formats::table::CSV,
    &formats::fio::V2,
    &formats::fio::V3,
    &formats::vscsi::V1,
    &formats::vscsi::V2,
    &formats::table::ALIBABA,
    &formats::table::TENCENT,
    &formats::table::SYSTOR,
    &formats::table::K5,
    &formats::table::FIU,
    &formats::table::FIO_LOG,
    &formats::table::ETW,
    &formats::oracle::FORMAT,
    &formats::oracle::LCS,
];

/// The names of all formats, or of those that can be written.
pub fn names(writable: bool) -> String {
    let named: Vec<&str> =
        FORMATS.iter().filter(|f| !writable || f.write.is_some()).map(|f| f.name).collect();
    named.join(", ")
}

pub fn by_name(name: &str) -> Result<&'static Format, TraceError> {
    FORMATS
        .iter()
        .find(|format| format.name == name)
        .copied()
        .ok_or_else(|| TraceError::NoSuchFormat { name: name.to_owned(), known: names(false) })
}

/// The writer of a format over `out`.
pub fn writer(format: &'static Format, out: Box<dyn Write>) -> Result<Box<dyn WriteTrace>, TraceError> {
    match format.write {
        Some(write) => Ok(write(out)),
        None => Err(TraceError::ReadOnly { format: format.name, known: names(true) }),
    }
}

/// The format that the first bytes look like most.
pub fn recognise(file: &str, bytes: &[u8]) -> Result<&'static Format, TraceError> {
    let head = Head { bytes };
    let mut best: Option<(Likeness, &'static Format)> = None;
    let mut rival = None;
    for &format in FORMATS {
        let likeness = (format.recognise)(&head);
        if likeness == Likeness::NONE || best.is_some_and(|(most, _)| likeness < most) {
            continue;
        }
        rival = best.filter(|&(most, _)| most == likeness).map(|(_, format)| format);
        best = Some((likeness, format));
    }
    match (best, rival) {
        (Some((_, second)), Some(first)) => {
            Err(TraceError::Ambiguous { file: file.to_owned(), first: first.name, second: second.name })
        }
        (Some((_, format)), None) => Ok(format),
        (None, _) if bytes.is_empty() => Err(TraceError::Empty { file: file.to_owned() }),
        (None, _) if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) => {
            let what = "this is UTF-16: convert it first (iconv -f UTF-16 -t UTF-8)".to_owned();
            Err(TraceError::Unreadable { file: file.to_owned(), what })
        }
        (None, _) if bytes.starts_with(b"PAR1") => {
            let what = "this is Parquet: convert it first (duckdb -csv -c \"FROM 'FILE'\"); dcd-lab-traces(7) has the columns".to_owned();
            Err(TraceError::Unreadable { file: file.to_owned(), what })
        }
        (None, _) if bytes.get(257..262) == Some(b"ustar") => {
            let what =
                "this is a tar archive: unpack it first (tar -xOf ARCHIVE NAME | dcd trace convert - ...)"
                    .to_owned();
            Err(TraceError::Unreadable { file: file.to_owned(), what })
        }
        (None, _) => {
            let begins = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
            Err(TraceError::Unrecognised { file: file.to_owned(), begins, known: names(false) })
        }
    }
}
