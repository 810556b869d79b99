//! Reads and writes text formats: lines with numbers, fields, numbers, and names that become device numbers.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};

use dcd_engine::Nanos;

use crate::error::{TraceError, Unit};
use crate::format::{Input, ReadTrace, WriteTrace};
use dcd_stack::{DeviceId, Record};

/// No line of any format is nearly this long; what is longer is not text.
const LINE_BYTES_MAX: usize = 64 << 10;
/// More names than any trace has disks.
const NAMES_MAX: usize = 1 << 16;

/// Converts a line of a format to a record. None: the line is not a request (a header, a comment, another event).
pub trait Lines {
    /// True if a line that names columns, or a comment, may stand before the first record.
    const HAS_HEADER: bool = false;

    fn parse(&mut self, line: &str) -> Result<Option<Record>, String>;

    /// Returns what the reader may still hold at the end of the input.
    fn held(&mut self) -> Option<Record> {
        None
    }

    /// Tells what was left out, or assumed.
    fn note(&self) -> Option<String> {
        None
    }
}

/// Lines before the first record that may be no records.
const HEADER_LINES_MAX: usize = 16;
/// Maximum number of characters of a line that are quoted.
const QUOTED_CHARS: usize = 60;

/// Names of columns, or a comment: some words, and no field that begins as a number does.
fn is_header(line: &str) -> bool {
    let mut fields = line.split([',', ';', ' ', '\t']).map(|field| field.trim().trim_matches('"'));
    line.starts_with('#')
        || fields
            .all(|field| !field.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.')))
}

/// Reads a text format.
pub struct TextReader<L> {
    input: Input,
    lines: L,
    buffer: Vec<u8>,
    number: u64,
    begun: bool,
    /// Lines that were taken for names of columns.
    headers: Vec<String>,
}

impl<L: Lines> TextReader<L> {
    pub const fn new(input: Input, lines: L) -> TextReader<L> {
        TextReader { input, lines, buffer: Vec::new(), number: 0, begun: false, headers: Vec::new() }
    }

    /// Takes a line for a header, where one may be.
    fn take_header(&mut self) -> bool {
        let line = std::str::from_utf8(&self.buffer).expect("it was read as text").trim();
        let may_be = L::HAS_HEADER && !self.begun && self.headers.len() < HEADER_LINES_MAX && is_header(line);
        if may_be {
            let quoted: String = line.chars().take(QUOTED_CHARS).collect();
            self.headers.push(format!("line {} was left out as a header: {quoted:?}", self.number));
        }
        may_be
    }

    fn malformed(&self, what: String) -> TraceError {
        TraceError::Malformed { file: self.input.name.clone(), unit: Unit::Line, number: self.number, what }
    }

    /// Reads a line into the buffer; false at the end.
    fn line(&mut self) -> Result<bool, TraceError> {
        self.buffer.clear();
        let mut limited = std::io::Read::take(&mut self.input.bytes, LINE_BYTES_MAX as u64);
        let read = limited.read_until(b'\n', &mut self.buffer);
        let read = read.map_err(|e| TraceError::io(&self.input.name, e))?;
        // Of a line that was cut off, a number may have lost its last digits.
        if read > 0 && self.buffer.last() != Some(&b'\n') && self.at_damage()? {
            return Ok(false);
        }
        self.number += u64::from(read > 0);
        if read == LINE_BYTES_MAX && self.buffer.last() != Some(&b'\n') {
            let what = format!("line {} is longer than {LINE_BYTES_MAX} bytes: this is no text", self.number);
            return Err(TraceError::Unreadable { file: self.input.name.clone(), what });
        }
        Ok(read > 0)
    }

    /// True if the input ends here, and should not.
    fn at_damage(&mut self) -> Result<bool, TraceError> {
        let ended = self.input.bytes.fill_buf().map_err(|e| TraceError::io(&self.input.name, e))?.is_empty();
        Ok(ended && self.input.damage.is_known())
    }
}

impl<L: Lines> ReadTrace for TextReader<L> {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        while self.line()? {
            let Ok(line) = std::str::from_utf8(&self.buffer) else {
                return Err(self.malformed("this is no text".to_owned()));
            };
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            match self.lines.parse(line) {
                Ok(Some(record)) => {
                    self.begun = true;
                    return Ok(Some(record));
                }
                Ok(None) => {}
                Err(_) if self.take_header() => {}
                Err(what) => return Err(self.malformed(what)),
            }
        }
        Ok(self.lines.held())
    }

    fn note(&self) -> Option<String> {
        let notes: Vec<String> = self.headers.iter().cloned().chain(self.lines.note()).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

/// Prints records as text.
pub trait Print {
    fn head(&mut self, _out: &mut dyn Write) -> std::io::Result<()> {
        Ok(())
    }
    fn print(&mut self, record: &Record, out: &mut dyn Write) -> std::io::Result<()>;
    /// Returns what cannot be said in this format, if the record has any of it.
    fn refuses(&self, _record: &Record) -> Option<Refused> {
        None
    }
    fn end(&mut self, _out: &mut dyn Write) -> std::io::Result<()> {
        Ok(())
    }
}

/// Content that a format cannot hold, and the remedy.
pub struct Refused {
    pub what: String,
    pub advice: &'static str,
}

/// The formats without discards and flushes refuse them in one way.
pub fn only_reads_and_writes(record: &Record) -> Option<Refused> {
    use dcd_stack::RecordOp;
    matches!(record.op, RecordOp::Discard | RecordOp::Flush).then(|| Refused {
        what: format!("{:?}", record.op.name()),
        advice: "Leave them out with --only read,write, or write a format that has them (dcd, fio, blkparse, blktrace)",
    })
}

/// Writes a text format.
pub struct TextWriter<P> {
    format: &'static str,
    print: P,
    out: Box<dyn Write>,
    number: u64,
}

impl<P: Print> TextWriter<P> {
    pub const fn new(format: &'static str, print: P, out: Box<dyn Write>) -> TextWriter<P> {
        TextWriter { format, print, out, number: 0 }
    }
}

impl<P: Print> WriteTrace for TextWriter<P> {
    fn write(&mut self, record: &Record) -> Result<(), TraceError> {
        self.number += 1;
        if let Some(Refused { what, advice }) = self.print.refuses(record) {
            return Err(TraceError::Inexpressible { format: self.format, number: self.number, what, advice });
        }
        let head = if self.number == 1 { self.print.head(&mut self.out) } else { Ok(()) };
        head.and_then(|()| self.print.print(record, &mut self.out)).map_err(|e| TraceError::io("output", e))
    }

    fn finish(&mut self) -> Result<(), TraceError> {
        let head = if self.number == 0 { self.print.head(&mut self.out) } else { Ok(()) };
        head.and_then(|()| self.print.end(&mut self.out))
            .and_then(|()| self.out.flush())
            .map_err(|e| TraceError::io("output", e))
    }
}

/// The fields of a line, each asked for by its name so that an error can say which is missing.
pub struct Fields<I> {
    fields: I,
}

pub fn blank(line: &str) -> Fields<impl Iterator<Item = &str>> {
    Fields { fields: line.split_ascii_whitespace() }
}

impl<'a, I: Iterator<Item = &'a str>> Fields<I> {
    pub fn text(&mut self, name: &str) -> Result<&'a str, String> {
        self.fields.next().ok_or_else(|| format!("the {name} is missing"))
    }

    pub fn optional(&mut self) -> Option<&'a str> {
        self.fields.next()
    }

    pub fn number(&mut self, name: &str) -> Result<u64, String> {
        whole(self.text(name)?, name)
    }

    /// A decimal number of units of `unit_ns` nanoseconds.
    pub fn decimal(&mut self, name: &str, unit_ns: u64) -> Result<Nanos, String> {
        decimal(self.text(name)?, unit_ns).ok_or_else(|| format!("the {name} is no time"))
    }

    /// Fails if anything follows.
    pub fn end(mut self) -> Result<(), String> {
        match self.fields.next() {
            None => Ok(()),
            Some(more) => Err(format!("there is more than the format has: {more:?}")),
        }
    }
}

pub fn whole(text: &str, name: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("the {name} is no whole number: {text:?}"))
}

/// `12.345` units of `unit_ns` nanoseconds, exactly: a floating-point number would lose nanoseconds of large times.
/// Digits past the nanosecond are dropped.
pub fn decimal(text: &str, unit_ns: u64) -> Option<Nanos> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { digits(whole)? };
    let mut ns = whole.checked_mul(unit_ns)?;
    let mut place = unit_ns;
    for digit in fraction.bytes() {
        if !digit.is_ascii_digit() {
            return exponent(text, unit_ns);
        }
        place /= 10;
        ns = ns.checked_add(place * u64::from(digit - b'0'))?;
    }
    Some(Nanos(ns))
}

fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Some writers print small times as `3e-05`.
fn exponent(text: &str, unit_ns: u64) -> Option<Nanos> {
    let ns = text.parse::<f64>().ok()? * unit_ns as f64;
    (ns >= 0.0 && ns < u64::MAX as f64).then_some(Nanos(ns.round() as u64))
}

/// A time as a decimal number of units, with no digit lost and none too many.
pub struct Decimal {
    pub time: Nanos,
    pub unit_ns: u64,
    /// At least so many digits after the point.
    pub digits_min: usize,
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let places = self.unit_ns.ilog10() as usize;
        let (whole, rest) = (self.time.0 / self.unit_ns, self.time.0 % self.unit_ns);
        let rest = format!("{rest:0places$}");
        let kept = rest.trim_end_matches('0').len().max(self.digits_min.min(places));
        match kept {
            0 => write!(f, "{whole}"),
            kept => write!(f, "{whole}.{}", &rest[..kept]),
        }
    }
}

/// A count for a note; none where there is nothing to tell.
pub fn counted(count: u64, of: &str) -> Option<String> {
    (count > 0).then(|| format!("{count} {of}"))
}

/// A response time of zero is that of no request: writers have no other word for one that they do not know.
pub fn known_response(response: Nanos, unknown: &mut u64) -> Option<Nanos> {
    *unknown += u64::from(response == Nanos::ZERO);
    Some(response).filter(|&response| response > Nanos::ZERO)
}

/// Note about response times of zero.
pub const RESPONSE_UNKNOWN: &str = "response times are 0, and were taken for unknown";

/// Device numbers for names: the number that is in the name where it is free, else the lowest free one.
#[derive(Default)]
pub struct Names {
    ids: BTreeMap<String, DeviceId>,
    taken: std::collections::BTreeSet<u32>,
}

impl Names {
    pub fn id(&mut self, name: &str, preferred: Option<u32>) -> Result<DeviceId, String> {
        if let Some(&id) = self.ids.get(name) {
            return Ok(id);
        }
        if self.ids.len() == NAMES_MAX {
            return Err(format!("{name:?} is one device more than the {NAMES_MAX} that a trace may have"));
        }
        let free = || (0..).find(|id| !self.taken.contains(id)).expect("fewer are taken than there are");
        let id = preferred.filter(|id| !self.taken.contains(id)).unwrap_or_else(free);
        self.taken.insert(id);
        self.ids.insert(name.to_owned(), DeviceId(id));
        Ok(DeviceId(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        assert_eq!(decimal("13.191135", 1_000_000), Some(Nanos(13_191_135)));
        assert_eq!(decimal("128166372.003061629", 1_000_000_000), Some(Nanos(128_166_372_003_061_629)));
        assert_eq!(decimal("3", 1_000), Some(Nanos(3_000)));
        assert_eq!(decimal(".5", 1_000), Some(Nanos(500)));
        assert_eq!(decimal("1.5e-05", 1_000_000_000), Some(Nanos(15_000)));
        for wrong in ["", ".", "-1", "x", "1.2x", "99999999999999999999", "1.e999"] {
            assert_eq!(decimal(wrong, 1_000), None, "{wrong}");
        }
        let text = |ns, digits_min| Decimal { time: Nanos(ns), unit_ns: 1_000_000, digits_min }.to_string();
        assert_eq!((text(13_191_135, 0).as_str(), text(5_000_000, 0).as_str()), ("13.191135", "5"));
        assert_eq!(text(5_000_000, 6), "5.000000");
    }

    #[test]
    fn a_name_keeps_its_number_where_it_is_free() {
        let mut names = Names::default();
        assert_eq!(names.id("a.1", Some(1)), Ok(DeviceId(1)));
        assert_eq!(names.id("b.1", Some(1)), Ok(DeviceId(0)));
        assert_eq!(names.id("c", None), Ok(DeviceId(2)));
        assert_eq!(names.id("a.1", Some(1)), Ok(DeviceId(1)));
    }
}
