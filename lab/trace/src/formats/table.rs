//! Text whose lines are fields: one table of the columns that data sets and programs have, and the columns that a user names.
//!
//! A first line that names the columns decides. Without it, the order of the columns does. Windows file times of MSR Cambridge are
//! 100 ns since 1601. SPC 1.0.1 allows white space in fields, and fields of one's own at the end. 0 is a read in Tencent's traces and 1 a
//! write: the opposite of DiskSim. biosnoop, fio and Windows note a request when it is completed; it came its response time before.

use std::io::{BufRead, Write};

use dcd_engine::{Nanos, SECTOR_BYTES};
use dcd_stack::{DeviceId, Record, RecordOp};

use super::blk::Rwbs;
use super::blkparse;
use super::units;
use crate::error::TraceError;
use crate::format::{Format, Input, Likeness, ReadTrace};
use crate::text::{
    Decimal, Lines, Names, Print, RESPONSE_UNKNOWN, Refused, TextReader, TextWriter, counted, decimal,
    known_response, only_reads_and_writes,
};

pub const SECOND_NS: u64 = 1_000_000_000;
const MILLISECOND_NS: u64 = 1_000_000;
const MICROSECOND_NS: u64 = 1_000;
/// Windows counts time in so many nanoseconds.
const FILE_TIME_NS: u64 = 100;

/// Meaning of a column; times in units of so many nanoseconds, places and lengths of so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    At(u64),
    /// Time of completion, used where there is no other.
    End(u64),
    Device,
    /// A number, or a name that becomes one.
    NamedDevice,
    Host,
    /// Words for a read and for a write.
    Op([&'static str; 2]),
    /// Hexadecimal; bit 0 is a read.
    Flags,
    Start(u64),
    Length(u64),
    /// 0 is unknown, and several add up.
    Response(u64),
    /// In nanoseconds, and 0 is 0.
    ExactResponse,
    Other,
    /// A column of no use that each line has: without it the columns are others.
    Present,
    /// The name of a program, which may have blanks in it.
    Program,
}

const WORDS: Role = Role::Op(["read", "write"]);
const LETTERS: Role = Role::Op(["R", "W"]);
const DIGITS: Role = Role::Op(["0", "1"]);
const DIGITS_REVERSED: Role = Role::Op(["1", "0"]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Separator {
    Char(char),
    Blanks,
}

const SEPARATORS: [Separator; 5] = [
    Separator::Char(','),
    Separator::Char('\t'),
    Separator::Char(';'),
    Separator::Char('|'),
    Separator::Blanks,
];

impl Separator {
    /// Takes the first field off a line; None if nothing is left.
    fn field<'a>(self, rest: &mut Option<&'a str>) -> Option<&'a str> {
        let line = (*rest)?;
        match self {
            Separator::Char(separator) => {
                let (field, after) =
                    line.split_once(separator).map_or((line, None), |(field, after)| (field, Some(after)));
                *rest = after;
                Some(field.trim().trim_matches('"'))
            }
            Separator::Blanks => {
                let line = line.trim_ascii_start();
                let end = line.find(|c: char| c.is_ascii_whitespace()).unwrap_or(line.len());
                *rest = Some(&line[end..]);
                Some(&line[..end]).filter(|field| !field.is_empty())
            }
        }
    }

    fn fields(self, line: &str) -> Vec<&str> {
        let mut rest = Some(line);
        std::iter::from_fn(|| self.field(&mut rest)).collect()
    }

    const fn words(self) -> &'static str {
        match self {
            Separator::Char(',') => "commas",
            Separator::Char('\t') => "tabs",
            Separator::Char(';') => "semicolons",
            Separator::Char(_) => "bars",
            Separator::Blanks => "blanks",
        }
    }
}

/// The columns of a data set or a program, by their names in a first line, and in their order where there is none.
pub struct Set {
    columns: &'static [(&'static str, Role)],
    separator: Separator,
    /// Fields of one's own may follow.
    more: bool,
    /// Times are written with a decimal point.
    decimals: bool,
    /// Numbers may be hexadecimal.
    hex: bool,
    /// The names say the units.
    sure: bool,
    /// Assumptions, as the data set does not state them.
    guess: Option<&'static str>,
}

const SET: Set = Set {
    columns: &[],
    separator: Separator::Char(','),
    more: false,
    decimals: false,
    hex: false,
    sure: false,
    guess: None,
};

const HEADER: &str = "at_ns,device,op,lba,sectors,response_ns";

static OURS: Set = Set {
    columns: &[
        ("at_ns", Role::At(1)),
        ("device", Role::Device),
        ("op", WORDS),
        ("lba", Role::Start(SECTOR_BYTES)),
        ("sectors", Role::Length(SECTOR_BYTES)),
        ("response_ns", Role::ExactResponse),
    ],
    sure: true,
    ..SET
};

static MSR_SET: Set = Set {
    columns: &[
        ("timestamp", Role::At(FILE_TIME_NS)),
        ("hostname", Role::Host),
        ("disknumber", Role::Device),
        ("type", Role::Op(["Read", "Write"])),
        ("offset", Role::Start(1)),
        ("size", Role::Length(1)),
        ("responsetime", Role::Response(FILE_TIME_NS)),
    ],
    ..SET
};

static ALIBABA_SET: Set = Set {
    columns: &[
        ("device_id", Role::Device),
        ("opcode", LETTERS),
        ("offset", Role::Start(1)),
        ("length", Role::Length(1)),
        ("timestamp", Role::At(MICROSECOND_NS)),
    ],
    ..SET
};

static TENCENT_SET: Set = Set {
    columns: &[
        ("timestamp", Role::At(SECOND_NS)),
        ("offset", Role::Start(SECTOR_BYTES)),
        ("size", Role::Length(SECTOR_BYTES)),
        ("IOType", DIGITS),
        ("VolumeID", Role::Device),
    ],
    ..SET
};

static SPC_SET: Set = Set {
    columns: &[
        ("ASU", Role::Device),
        ("LBA", Role::Start(SECTOR_BYTES)),
        ("size", Role::Length(1)),
        ("opcode", LETTERS),
        ("timestamp", Role::At(SECOND_NS)),
    ],
    more: true,
    decimals: true,
    ..SET
};

static SYSTOR_SET: Set = Set {
    columns: &[
        ("timestamp", Role::At(SECOND_NS)),
        ("response", Role::Response(SECOND_NS)),
        ("IOType", LETTERS),
        ("LUN", Role::Device),
        ("offset", Role::Start(1)),
        ("size", Role::Length(1)),
    ],
    ..SET
};

static K5_SET: Set = Set {
    columns: &[
        ("volume", Role::NamedDevice),
        ("timestamp", Role::At(SECOND_NS)),
        ("type", LETTERS),
        ("offset", Role::Start(1)),
        ("size", Role::Length(1)),
    ],
    ..SET
};

static FIU_SET: Set = Set {
    columns: &[
        ("time", Role::At(1)),
        ("process id", Role::Other),
        ("process", Role::Program),
        ("block number", Role::Start(SECTOR_BYTES)),
        ("count of blocks", Role::Length(SECTOR_BYTES)),
        ("operation", LETTERS),
        ("major number", Role::Other),
        ("minor number", Role::Device),
        ("digest", Role::Other),
    ],
    separator: Separator::Blanks,
    ..SET
};

static FIO_LOG_SET: Set = Set {
    columns: &[
        ("time", Role::End(MILLISECOND_NS)),
        ("latency", Role::Response(1)),
        ("direction", DIGITS),
        ("block size", Role::Length(1)),
        ("offset", Role::Start(1)),
        ("priority", Role::Present),
    ],
    more: true,
    ..SET
};

pub static DISKSIM_SET: Set =
    Set { columns: &disksim(MILLISECOND_NS), separator: Separator::Blanks, decimals: true, ..SET };
pub static MQSIM_SET: Set = Set { columns: &disksim(1), separator: Separator::Blanks, ..SET };

const fn disksim(unit_ns: u64) -> [(&'static str, Role); 5] {
    [
        ("time", Role::At(unit_ns)),
        ("device number", Role::Device),
        ("block number", Role::Start(SECTOR_BYTES)),
        ("count of blocks", Role::Length(SECTOR_BYTES)),
        ("flags", Role::Flags),
    ]
}

static LIBCACHESIM: Set = Set {
    columns: &[
        ("time", Role::At(SECOND_NS)),
        ("timestamp", Role::At(SECOND_NS)),
        ("clock_time", Role::At(SECOND_NS)),
        ("op", WORDS),
        ("lbn", Role::Start(SECTOR_BYTES)),
        ("obj_id", Role::Start(SECTOR_BYTES)),
        ("size", Role::Length(1)),
        ("obj_size", Role::Length(1)),
    ],
    guess: Some("times were taken for seconds, places for sectors of 512 bytes"),
    ..SET
};

/// bcc and libbpf-tools.
static BIOSNOOP: Set = Set {
    columns: &[
        ("TIME(s)", Role::End(SECOND_NS)),
        ("COMM", Role::Program),
        ("DISK", Role::NamedDevice),
        ("T", LETTERS),
        ("SECTOR", Role::Start(SECTOR_BYTES)),
        ("BYTES", Role::Length(1)),
        ("QUE(ms)", Role::Response(MILLISECOND_NS)),
        ("LAT(ms)", Role::Response(MILLISECOND_NS)),
    ],
    sure: true,
    ..SET
};

/// perf-tools, with -s or -t.
static IOSNOOP: Set = Set {
    columns: &[
        ("STARTs", Role::At(SECOND_NS)),
        ("ENDs", Role::End(SECOND_NS)),
        ("COMM", Role::Program),
        ("TYPE", LETTERS),
        ("DEV", Role::NamedDevice),
        ("BLOCK", Role::Start(SECTOR_BYTES)),
        ("BYTES", Role::Length(1)),
        ("LATms", Role::Response(MILLISECOND_NS)),
    ],
    sure: true,
    ..SET
};

/// Events of Windows as `xperf` prints them: their kind names the first column, and is in each line.
static ETW_SET: Set = Set {
    columns: &[
        ("DiskRead", Role::Op(["DiskRead", "DiskWrite"])),
        ("DiskWrite", Role::Op(["DiskRead", "DiskWrite"])),
        ("DiskFlush", Role::Op(["DiskRead", "DiskWrite"])),
        ("TimeStamp", Role::End(MICROSECOND_NS)),
        ("ByteOffset", Role::Start(1)),
        ("IOSize", Role::Length(1)),
        ("ElapsedTime", Role::Response(MICROSECOND_NS)),
        ("DiskNum", Role::Device),
    ],
    more: true,
    hex: true,
    sure: true,
    ..SET
};

/// Those that a first line may name.
static HEADED: [&Set; 9] =
    [&OURS, &MSR_SET, &ALIBABA_SET, &TENCENT_SET, &SYSTOR_SET, &SPC_SET, &LIBCACHESIM, &BIOSNOOP, &IOSNOOP];

macro_rules! row {
    ($name:literal, $about:literal, $set:ident, $unit:expr, $responses:literal, $write:expr) => {
        Format {
            name: $name,
            about: $about,
            recognise: |head| head.requests(Rows::of(&$set)),
            read: |input| open(input, Rows::of(&$set)),
            write: $write,
            time_unit: Nanos($unit),
            has_responses: $responses,
            has_discards_and_flushes: false,
            has_fua: false,
            guess: None,
        }
    };
    ($name:literal, $about:literal, $set:ident, $unit:expr, $responses:literal) => {
        row!(
            $name,
            $about,
            $set,
            $unit,
            $responses,
            Some(|out| Box::new(TextWriter::new($name, Rows::of(&$set), out)))
        )
    };
}

pub(super) use row;

pub const ALIBABA: Format = row!("alibaba", "Alibaba Cloud CSV", ALIBABA_SET, MICROSECOND_NS, false);
pub const TENCENT: Format =
    row!("tencent", "Tencent Cloud CBS CSV; its times are whole seconds", TENCENT_SET, SECOND_NS, false);
pub const MSR: Format = row!("msr", "MSR Cambridge CSV", MSR_SET, FILE_TIME_NS, true);
pub const SPC: Format = row!("spc", "SPC 1.0.1 (UMass: Financial, WebSearch)", SPC_SET, 1, false);
pub const SYSTOR: Format = row!("systor", "SYSTOR '17 CSV (read only)", SYSTOR_SET, 1, true, None);
pub const K5: Format = row!("k5", "K5cloud CSV (read only)", K5_SET, 1, false, None);
pub const FIU: Format =
    row!("fiu", "FIU IODedup and SRCMap, between blanks (read only)", FIU_SET, 1, false, None);
pub const FIO_LOG: Format = Format {
    guess: Some("its latencies were taken for nanoseconds, as fio 3 writes them"),
    ..row!(
        "fio-log",
        "fio latency log with log_offset=1 (read only)",
        FIO_LOG_SET,
        MILLISECOND_NS,
        true,
        None
    )
};

pub const ETW: Format = Format {
    name: "etw",
    about: "Windows events as xperf prints them: Microsoft's production servers (read only)",
    // The columns of a hundred other kinds may come first.
    recognise: |head| {
        Likeness::certain_if(whole_lines(head.bytes).lines().any(|line| Etw::names(line).is_some()))
    },
    read: |input| Ok(Box::new(TextReader::new(input, Etw::default()))),
    write: None,
    time_unit: Nanos(MICROSECOND_NS),
    has_responses: true,
    has_discards_and_flushes: true,
    has_fua: false,
    guess: None,
};

pub const CSV: Format = Format {
    name: "csv",
    about: "a first line names the columns: ours, or those of a data set, biosnoop, iosnoop",
    recognise: |head| {
        Likeness::certain_if(head.lines().iter().take(2).any(|line| Rows::named(line).is_some()))
    },
    read: |input| {
        let mut input = input;
        let head = input.bytes.fill_buf().map_err(|e| TraceError::io(&input.name, e))?;
        let text = String::from_utf8_lossy(head);
        let rows = text.lines().take(2).find_map(Rows::named);
        let no_names =
            || format!("the first line has to name the columns: {}; or name them with --columns", known());
        match rows {
            Some(rows) => open(input, rows),
            None => Err(TraceError::Unreadable { file: input.name, what: no_names() }),
        }
    },
    write: Some(|out| Box::new(TextWriter::new("csv", Printer, out))),
    time_unit: Nanos(1),
    has_responses: true,
    has_discards_and_flushes: true,
    has_fua: true,
    guess: None,
};

fn known() -> String {
    let names = |set: &&Set| set.columns.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    HEADED.iter().map(names).collect::<Vec<_>>().join("; or ")
}

/// Reads rows, if their units can be right.
pub fn open(mut input: Input, mut rows: Rows) -> Result<Box<dyn ReadTrace>, TraceError> {
    if !rows.sure {
        let head = input.bytes.fill_buf().map_err(|e| TraceError::io(&input.name, e))?;
        let sample: Vec<Raw> = whole_lines(head).lines().filter_map(|line| rows.row(line).ok()).collect();
        if let Err(what) = units::check(&rows.columns, &sample) {
            return Err(TraceError::Unreadable { file: input.name, what });
        }
    }
    rows.reset();
    Ok(Box::new(TextReader::new(input, rows)))
}

/// Opens text whose columns the user named. What stands between them is the separator with which most lines are rows.
pub fn open_columns(mut input: Input, columns: &Columns) -> Result<Box<dyn ReadTrace>, TraceError> {
    let head = input.bytes.fill_buf().map_err(|e| TraceError::io(&input.name, e))?;
    let text = whole_lines(head);
    let rows = |separator| {
        Rows::new(separator, columns.0.clone(), &Set { more: true, hex: true, sure: true, ..SET })
    };
    let count = |&separator: &Separator| {
        let mut rows = rows(separator);
        text.lines()
            .filter(|line| matches!(rows.row(line), Ok(row) if row.record(&mut Names::default()).is_ok()))
            .count()
    };
    let best = SEPARATORS.iter().rev().copied().max_by_key(count).expect("there are some");
    if count(&best) == 0 {
        let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let why = rows(best).row(line.trim()).err().unwrap_or_default();
        let what = format!(
            "no line has the columns that --columns names. The first one, between {}: {why}",
            best.words()
        );
        return Err(TraceError::Unreadable { file: input.name, what });
    }
    let mut rows = rows(best);
    let between = format!("its fields were taken to stand between {}", best.words());
    rows.guess = Some(rows.guess.into_iter().chain([between]).collect::<Vec<_>>().join("; "));
    Ok(Box::new(TextReader::new(input, rows)))
}

/// The text up to the last end of a line, or all if there is none.
fn whole_lines(head: &[u8]) -> std::borrow::Cow<'_, str> {
    let end = head.iter().rposition(|&byte| byte == b'\n').unwrap_or(head.len());
    String::from_utf8_lossy(&head[..end])
}

/// The columns that a user names, in their order.
#[derive(Clone, Debug)]
pub struct Columns(Vec<Column>);

pub type Column = (String, Role);

/// Units of times and of places, by their names.
const TIMES: [(&str, u64); 5] =
    [("s", SECOND_NS), ("ms", MILLISECOND_NS), ("us", MICROSECOND_NS), ("ns", 1), ("100ns", FILE_TIME_NS)];
const PLACES: [(&str, u64); 2] = [("bytes", 1), ("sectors", SECTOR_BYTES)];

impl std::str::FromStr for Columns {
    type Err = String;

    fn from_str(text: &str) -> Result<Columns, String> {
        let columns: Result<Vec<Column>, String> = text.split(',').map(column).collect();
        let columns = columns?;
        let roles: Vec<Role> = columns.iter().map(|&(_, role)| role).collect();
        if let Some(lacking) = lacking(&roles) {
            return Err(format!("{lacking}. {COLUMNS_HELP}"));
        }
        Ok(Columns(columns))
    }
}

const COLUMNS_HELP: &str = "Known are time, end (of a request) and latency with :s, :ms, :us, :ns or :100ns; offset and size with :bytes, \
     :sectors or :N for blocks of N bytes; op, op:0=read and op:1=read; device; host; program; and - for any other";

fn column(text: &str) -> Result<Column, String> {
    let (name, unit) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
    let time = || TIMES.iter().find(|(name, _)| *name == unit).map(|&(_, ns)| ns);
    let place = || {
        let named = PLACES.iter().find(|(name, _)| *name == unit).map(|&(_, bytes)| bytes);
        named.or_else(|| unit.parse().ok().filter(|&bytes| bytes > 0))
    };
    let role = match (name, unit) {
        ("time", _) => time().map(Role::At),
        ("end", _) => time().map(Role::End),
        ("latency", _) => time().map(Role::Response),
        ("offset", _) => place().map(Role::Start),
        ("size", _) => place().map(Role::Length),
        ("op", "") => Some(LETTERS),
        ("op", "0=read") => Some(DIGITS),
        ("op", "1=read") => Some(DIGITS_REVERSED),
        ("device", "") => Some(Role::NamedDevice),
        ("host", "") => Some(Role::Host),
        ("program", "") => Some(Role::Program),
        ("-", "") => Some(Role::Other),
        _ => None,
    };
    role.map(|role| (name.to_owned(), role))
        .ok_or_else(|| format!("{text:?} is no column with its unit. {COLUMNS_HELP}"))
}

/// The columns as a user names them, for a message.
pub fn described(columns: &[Column]) -> String {
    let unit = |units: &[(&str, u64)], of: u64| {
        units
            .iter()
            .find(|&&(_, known)| known == of)
            .map_or_else(|| of.to_string(), |(name, _)| (*name).to_owned())
    };
    let one = |&(_, role): &Column| match role {
        Role::At(ns) => format!("time:{}", unit(&TIMES, ns)),
        Role::End(ns) => format!("end:{}", unit(&TIMES, ns)),
        Role::Response(ns) => format!("latency:{}", unit(&TIMES, ns)),
        Role::ExactResponse => "latency:ns".to_owned(),
        Role::Start(bytes) => format!("offset:{}", unit(&PLACES, bytes)),
        Role::Length(bytes) => format!("size:{}", unit(&PLACES, bytes)),
        DIGITS => "op:0=read".to_owned(),
        DIGITS_REVERSED | Role::Flags => "op:1=read".to_owned(),
        Role::Op(_) => "op".to_owned(),
        Role::Device | Role::NamedDevice => "device".to_owned(),
        Role::Host => "host".to_owned(),
        Role::Program => "program".to_owned(),
        Role::Other | Role::Present => "-".to_owned(),
    };
    columns.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Says which column is missing, or is there twice.
fn lacking(roles: &[Role]) -> Option<String> {
    let count = |is: fn(&Role) -> bool| roles.iter().filter(|role| is(role)).count();
    let (at, end) = (count(|role| matches!(role, Role::At(_))), count(|role| matches!(role, Role::End(_))));
    let wanted = [
        ("time", at.max(usize::from(at == 0 && end == 1))),
        ("offset", count(|role| matches!(role, Role::Start(_)))),
        ("size", count(|role| matches!(role, Role::Length(_)))),
    ];
    let wrong = wanted.iter().find(|(_, count)| *count != 1);
    let wrong =
        wrong.map(|(name, count)| format!("there has to be one column {name}, and there are {count}"));
    let ops = count(|role| matches!(role, Role::Op(_) | Role::Flags));
    wrong.or_else(|| (ops > 1).then(|| "there is more than one column op".to_owned()))
}

/// Reads rows, and prints them.
pub struct Rows {
    separator: Separator,
    pub columns: Vec<Column>,
    more: bool,
    decimals: bool,
    hex: bool,
    sure: bool,
    /// A first line with names is still to come.
    headed: bool,
    guess: Option<String>,
    names: Names,
    /// Requests whose response time is not known, that have no operation, that flush first.
    unknown: u64,
    blank: u64,
    preflushed: u64,
}

impl Rows {
    fn new(separator: Separator, columns: Vec<Column>, set: &Set) -> Rows {
        let has_op = columns.iter().any(|(_, role)| matches!(role, Role::Op(_) | Role::Flags));
        let reads =
            (!has_op).then_some("no column says what is read and what written: all is taken for reads");
        let guesses: Vec<&str> = set.guess.into_iter().chain(reads).collect();
        Rows {
            separator,
            columns,
            more: set.more,
            decimals: set.decimals,
            hex: set.hex,
            sure: set.sure,
            headed: false,
            guess: (!guesses.is_empty()).then(|| guesses.join("; ")),
            names: Names::default(),
            unknown: 0,
            blank: 0,
            preflushed: 0,
        }
    }

    /// The columns of a data set in their order.
    pub fn of(set: &Set) -> Rows {
        let columns = set.columns.iter().map(|&(name, role)| (name.to_owned(), role)).collect();
        Rows::new(set.separator, columns, set)
    }

    /// The columns that a first line names.
    fn named(line: &str) -> Option<Rows> {
        let line = line.trim_start_matches(['#', ' ']);
        let found = SEPARATORS.iter().flat_map(|&separator| {
            let names = separator.fields(line);
            HEADED.iter().filter_map(move |set| Rows::of_names(set, separator, &names))
        });
        // The first of equals.
        let found: Vec<(usize, Rows)> = found.collect();
        found.into_iter().rev().max_by_key(|(known, _)| *known).map(|(_, rows)| rows)
    }

    /// None if the names are not those of the data set; else also how many of them it knows.
    fn of_names(set: &Set, separator: Separator, names: &[&str]) -> Option<(usize, Rows)> {
        let role = |name: &&str| {
            set.columns.iter().find(|(column, _)| name.eq_ignore_ascii_case(column)).map(|&(_, role)| role)
        };
        let known: Vec<Role> = names.iter().filter_map(role).collect();
        let has_op = known.iter().any(|role| matches!(role, Role::Op(_)));
        if lacking(&known).is_some() || !(has_op || set.guess.is_some()) {
            return None;
        }
        let columns = names.iter().map(|name| ((*name).to_owned(), role(name).unwrap_or(Role::Other)));
        Some((known.len(), Rows { headed: true, ..Rows::new(separator, columns.collect(), set) }))
    }

    fn reset(&mut self) {
        (self.names, self.unknown, self.blank, self.preflushed) = (Names::default(), 0, 0, 0);
    }

    fn row(&mut self, line: &str) -> Result<Raw, String> {
        let mut raw = Raw::default();
        let mut rest = Some(line);
        let program = self.columns.iter().any(|&(_, role)| role == Role::Program);
        let spare =
            if program { self.separator.fields(line).len().saturating_sub(self.columns.len()) } else { 0 };
        for (name, role) in &self.columns {
            match self.separator.field(&mut rest) {
                Some(field) => raw.set(name, *role, field, self.hex)?,
                None if matches!(role, Role::Response(_) | Role::ExactResponse | Role::Other) => {}
                None => return Err(format!("the {name} is missing")),
            }
            if *role == Role::Program {
                for _ in 0..spare {
                    self.separator.field(&mut rest);
                }
            }
        }
        match self.separator.field(&mut rest) {
            Some(more) if !self.more => Err(format!("there is more than the format has: {more:?}")),
            _ => Ok(raw),
        }
    }
}

impl Lines for Rows {
    const HAS_HEADER: bool = true;

    fn parse(&mut self, line: &str) -> Result<Option<Record>, String> {
        if self.headed && Rows::named(line).is_some() {
            self.headed = false;
            return Ok(None);
        }
        let raw = self.row(line)?;
        if raw.blank {
            self.blank += 1;
            return Ok(None);
        }
        let record = raw.record(&mut self.names)?;
        let preflush = raw.rwbs.is_some_and(|rwbs| rwbs.preflush);
        self.preflushed += u64::from(preflush && record.op != RecordOp::Flush);
        Ok(Some(match (raw.exact, raw.response) {
            (false, Some(response)) => record.answered_after(known_response(response, &mut self.unknown)),
            (_, response) => record.answered_after(response),
        }))
    }

    fn note(&self) -> Option<String> {
        let told = [
            counted(self.unknown, RESPONSE_UNKNOWN),
            counted(self.blank, "lines were left out: they do not say whether they read or write"),
            counted(self.preflushed, "requests flush before they write, and these flushes were left out"),
        ];
        let notes: Vec<String> = self.guess.iter().cloned().chain(told.into_iter().flatten()).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

/// A row, in nanoseconds and bytes.
#[derive(Default)]
pub struct Raw {
    at: Option<Nanos>,
    end: Option<Nanos>,
    rwbs: Option<Rwbs>,
    blank: bool,
    start: Option<Result<u64, String>>,
    length: Option<Result<u64, String>>,
    number: u32,
    name: Option<String>,
    host: Option<String>,
    response: Option<Nanos>,
    exact: bool,
}

impl Raw {
    fn set(&mut self, name: &str, role: Role, field: &str, hex: bool) -> Result<(), String> {
        let time = |unit| decimal(field, unit).ok_or_else(|| format!("the {name} is no time: {field:?}"));
        let number = || match field.strip_prefix("0x").filter(|_| hex) {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => field.parse(),
        };
        let whole = || number().map_err(|_| format!("the {name} is no whole number: {field:?}"));
        let bytes = |unit| {
            let number = whole()?;
            number.checked_mul(unit).ok_or_else(|| format!("the {name} {number} is too large"))
        };
        match role {
            Role::At(unit) => self.at = Some(time(unit)?),
            Role::End(unit) => self.end = Some(time(unit)?),
            Role::Device => {
                let number = whole()?;
                self.number = number.try_into().map_err(|_| format!("the {name} {number} is too large"))?;
            }
            Role::NamedDevice => match (number().map(u32::try_from), blkparse::device(field)) {
                (Ok(Ok(number)), _) => self.number = number,
                (_, Some(DeviceId(number))) => self.number = number,
                _ if field.is_empty() => return Err(format!("the {name} is missing")),
                _ => self.name = Some(field.to_owned()),
            },
            Role::Host => self.host = Some(field.to_owned()),
            Role::Op(_) if field.is_empty() => self.blank = true,
            Role::Op(words) => self.rwbs = Some(operation(name, words, field)?),
            Role::Flags => {
                let flags = u64::from_str_radix(field.trim_start_matches("0x"), 16);
                let flags = flags.map_err(|_| format!("the {name} are no hexadecimal number: {field:?}"))?;
                self.rwbs = Some(of(if flags & 1 == 0 { RecordOp::Write } else { RecordOp::Read }));
            }
            // A flush need not have them.
            Role::Start(unit) => self.start = Some(bytes(unit)),
            Role::Length(unit) => self.length = Some(bytes(unit)),
            Role::Response(_) | Role::ExactResponse if is_unknown(field) => {}
            Role::Response(unit) => {
                let before = self.response.unwrap_or_default();
                self.response = Some(before.saturating_add(time(unit)?));
            }
            Role::ExactResponse => (self.response, self.exact) = (Some(time(1)?), true),
            Role::Other | Role::Present | Role::Program => {}
        }
        Ok(())
    }

    /// Time of arrival.
    pub fn at(&self) -> Nanos {
        let arrival = |end: Nanos| Nanos(end.0.saturating_sub(self.response.unwrap_or_default().0));
        self.at.or_else(|| self.end.map(arrival)).unwrap_or_default()
    }

    /// The time as it stands there.
    pub fn stamp(&self) -> Nanos {
        self.at.or(self.end).unwrap_or_default()
    }

    /// First byte and count of bytes, of what has them.
    pub fn range(&self) -> Option<(u64, u64)> {
        match (&self.start, &self.length) {
            (Some(Ok(start)), Some(Ok(length))) => Some((*start, *length)),
            _ => None,
        }
    }

    fn record(&self, names: &mut Names) -> Result<Record, String> {
        let device = match (&self.host, &self.name) {
            (None, None) => DeviceId(self.number),
            (Some(host), None) => names.id(&format!("{host}.{}", self.number), Some(self.number))?,
            (None, Some(name)) => names.id(name, None)?,
            (Some(host), Some(name)) => names.id(&format!("{host}.{name}"), None)?,
        };
        let Rwbs { op, preflush, fua } = self.rwbs.unwrap_or(of(RecordOp::Read));
        let empty = self.range().is_some_and(|(_, length)| length == 0);
        let op = match op {
            Some(op) if !(preflush && empty) => op,
            None if !preflush => return Err("it neither reads nor writes".to_owned()),
            _ => RecordOp::Flush,
        };
        if op == RecordOp::Flush {
            return Ok(Record::flush(self.at(), device));
        }
        let known = |number: &Option<Result<u64, String>>| number.clone().unwrap_or(Ok(0));
        let (start, length) = (known(&self.start)?, known(&self.length)?);
        Ok(Record::of_bytes(self.at(), device, op, start, length)?.with_fua(fua))
    }
}

const fn of(op: RecordOp) -> Rwbs {
    Rwbs { op: Some(op), preflush: false, fua: false }
}

/// The word of our own columns for a write that is durable when it is answered.
const WRITE_FUA: &str = "write-fua";

/// The two words of a format; where these are no digits also other words, the codes of SCSI commands, and the kernel's letters.
fn operation(column: &str, [read, write]: [&str; 2], word: &str) -> Result<Rwbs, String> {
    // Most words are these, and cost no copy.
    if word.eq_ignore_ascii_case(read) {
        return Ok(of(RecordOp::Read));
    }
    if word.eq_ignore_ascii_case(write) {
        return Ok(of(RecordOp::Write));
    }
    let digits = read.starts_with(|c: char| c.is_ascii_digit());
    Ok(match word.to_ascii_lowercase().as_str() {
        // fio.
        "2" if read == "0" => of(RecordOp::Discard),
        _ if digits => return Err(format!("the {column} is neither {read} nor {write}: {word:?}")),
        "r" | "read" | "get" | "08" | "28" | "88" | "a8" => of(RecordOp::Read),
        "w" | "write" | "set" | "put" | "0a" | "2a" | "8a" | "aa" => of(RecordOp::Write),
        WRITE_FUA => Rwbs { fua: true, ..of(RecordOp::Write) },
        "d" | "discard" | "trim" => of(RecordOp::Discard),
        "f" | "flush" | "sync" | "diskflush" => of(RecordOp::Flush),
        _ if word.bytes().all(|letter| b"RWDFNSMAEUHP".contains(&letter)) => blkparse::rwbs(word),
        _ => return Err(format!("the {column} is neither {read} nor {write}: {word:?}")),
    })
}

/// Databases write an unknown value as nothing or as NULL.
fn is_unknown(field: &str) -> bool {
    field.is_empty() || field.eq_ignore_ascii_case("null")
}

impl Print for Rows {
    fn refuses(&self, record: &Record) -> Option<Refused> {
        only_reads_and_writes(record)
    }

    /// Prints an unknown response time as 0, as the format has no other word for it.
    fn print(&mut self, record: &Record, out: &mut dyn Write) -> std::io::Result<()> {
        let between = if self.separator == Separator::Blanks { " " } else { "," };
        for (index, &(_, role)) in self.columns.iter().enumerate() {
            out.write_all(if index == 0 { "" } else { between }.as_bytes())?;
            let is_read = record.op == RecordOp::Read;
            let number = match role {
                Role::At(unit_ns) if self.decimals => {
                    write!(out, "{}", Decimal { time: record.at, unit_ns, digits_min: 6 })?;
                    continue;
                }
                Role::Op([read, write]) => {
                    out.write_all(if is_read { read } else { write }.as_bytes())?;
                    continue;
                }
                Role::Host | Role::Program | Role::Other | Role::Present => {
                    out.write_all(b"dcd")?;
                    continue;
                }
                Role::Flags => u64::from(is_read),
                Role::At(unit) | Role::End(unit) => record.at.0 / unit,
                Role::Device | Role::NamedDevice => u64::from(record.device.0),
                Role::Start(unit) => record.extent.start.bytes() / unit,
                Role::Length(unit) => record.bytes() / unit,
                Role::Response(unit) => record.response.unwrap_or_default().0 / unit,
                Role::ExactResponse => record.response.unwrap_or_default().0,
            };
            write!(out, "{number}")?;
        }
        writeln!(out)
    }
}

struct Printer;

impl Print for Printer {
    fn head(&mut self, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(out, "{HEADER}")
    }

    fn print(&mut self, record: &Record, out: &mut dyn Write) -> std::io::Result<()> {
        let Record { at, device, op, extent, response, fua } = record;
        let (start, sectors) = if *op == RecordOp::Flush { (0, 0) } else { (extent.start.0, extent.sectors) };
        let response = response.map_or_else(String::new, |response| response.0.to_string());
        let op = if *fua { WRITE_FUA } else { op.name() };
        writeln!(out, "{},{},{op},{start},{sectors},{response}", at.0, device.0)
    }
}

/// Events of several kinds, each with columns of its own.
#[derive(Default)]
struct Etw {
    kinds: std::collections::BTreeMap<&'static str, Rows>,
    other: u64,
}

const KINDS: [&str; 3] = ["DiskRead", "DiskWrite", "DiskFlush"];

impl Etw {
    /// The names of the columns of a kind, if the line has them.
    fn names(line: &str) -> Option<Vec<&str>> {
        let names = Separator::Char(',').fields(line);
        (KINDS.contains(names.first()?) && names.get(1) == Some(&"TimeStamp")).then_some(names)
    }
}

impl Lines for Etw {
    fn parse(&mut self, line: &str) -> Result<Option<Record>, String> {
        let first = line.split(',').next().unwrap_or_default().trim();
        let Some(kind) = KINDS.into_iter().find(|kind| *kind == first) else {
            self.other += 1;
            return Ok(None);
        };
        if let Some(names) = Etw::names(line) {
            let role = |name: &str| ETW_SET.columns.iter().find(|(known, _)| *known == name);
            let column =
                |name: &&str| ((*name).to_owned(), role(name).map_or(Role::Other, |&(_, role)| role));
            let columns = names.iter().map(column).collect();
            self.kinds.insert(kind, Rows::new(Separator::Char(','), columns, &ETW_SET));
            return Ok(None);
        }
        let unnamed = || format!("no line before has named the columns of {kind}");
        self.kinds.get_mut(kind).ok_or_else(unnamed)?.parse(line)
    }

    fn note(&self) -> Option<String> {
        let rows = self.kinds.values().filter_map(Lines::note);
        let notes: Vec<String> =
            counted(self.other, "lines are other events").into_iter().chain(rows).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{input, read_reader, read_text, written};
    use dcd_engine::{Extent, Lba};

    fn recognised(text: &str) -> &'static str {
        crate::recognise("test", text.as_bytes()).unwrap().name
    }

    /// Reads all, and asks for the note.
    fn told(format: &Format, text: &str) -> (Vec<Record>, String) {
        let mut reader = (format.read)(input("test", text.as_bytes().to_vec())).unwrap();
        let records = read_reader(&mut *reader).unwrap();
        (records, reader.note().unwrap_or_default())
    }

    fn record(ns: u64, device: u32, op: RecordOp, start: u64, sectors: u64) -> Record {
        Record::new(Nanos(ns), DeviceId(device), op, start, sectors).unwrap()
    }

    #[test]
    fn lines_of_the_published_traces() {
        let msr = read_text(&MSR, "128166385295514663,hm,0,Write,9056014336,2048,2833\n").unwrap()[0];
        assert_eq!((msr.at, msr.op), (Nanos(12_816_638_529_551_466_300), RecordOp::Write));
        assert_eq!((msr.extent, msr.response), (Extent::new(Lba(17_687_528), 4), Some(Nanos(283_300))));

        let text = "419,W,8792731648,16384,1577808144360767\n";
        let alibaba = read_text(&ALIBABA, text).unwrap();
        assert_eq!(alibaba, [record(1_577_808_144_360_767_000, 419, RecordOp::Write, 17_173_304, 32)]);
        assert_eq!(written(&ALIBABA, &alibaba), text.as_bytes());

        let text = "1538323200,12910952,128,0,1063\n1538323200,6338688,8,1,1627\n";
        let tencent = read_text(&TENCENT, text).unwrap();
        assert_eq!((tencent[0].op, tencent[1].op), (RecordOp::Read, RecordOp::Write));
        assert_eq!((tencent[0].extent, tencent[1].device.0), (Extent::new(Lba(12_910_952), 128), 1627));
        assert_eq!(written(&TENCENT, &tencent), text.as_bytes());

        let text = "0,303567,3584,w,0.000000\n 1 , 512 , 4096 , R , 0.5 , x\n";
        let spc = read_text(&SPC, text).unwrap();
        assert_eq!((spc[0].extent, spc[0].op), (Extent::new(Lba(303_567), 7), RecordOp::Write));
        assert_eq!((spc[1].device.0, spc[1].at), (1, Nanos(500_000_000)));
        assert_eq!(written(&SPC, &spc[..1]), b"0,303567,3584,W,0.000000\n");
    }

    #[test]
    fn a_response_time_of_zero_or_none_is_unknown() {
        let text = "1,hm,0,Write,0,512,0\n2,hm,0,Write,0,512,\n3,hm,0,Write,0,512\n4,hm,0,Write,0,512,7\n";
        let (records, note) = told(&MSR, text);
        let responses: Vec<_> = records.iter().map(|record| record.response).collect();
        assert_eq!(responses, [None, None, None, Some(Nanos(700))]);
        assert!(note.starts_with("1 response times are 0"), "{note}");
        assert_eq!(written(&MSR, &records[3..]), b"4,dcd,0,Write,0,512,7\n");
    }

    #[test]
    fn disks_of_two_hosts_are_two_devices() {
        let text = "1,hm,1,Read,0,512,1\n2,web,1,R,0,512,1\n3,hm,1,Read,0,512,1\n";
        let devices: Vec<u32> = read_text(&MSR, text).unwrap().iter().map(|r| r.device.0).collect();
        assert_eq!(devices, [1, 0, 1]);
    }

    #[test]
    fn our_columns_hold_everything() {
        let write = record(7, 3, RecordOp::Write, 8, 16).answered_after(Some(Nanos(9)));
        let flush = Record::flush(Nanos(8), DeviceId(3));
        let durable = record(9, 3, RecordOp::Write, 8, 16).with_fua(true).answered_after(Some(Nanos(0)));
        let text = "at_ns,device,op,lba,sectors,response_ns\n7,3,write,8,16,9\n8,3,flush,0,0,\n9,3,write-fua,8,16,0\n";
        assert_eq!(written(&CSV, &[write, flush, durable]), text.as_bytes());
        assert_eq!(told(&CSV, text), (vec![write, flush, durable], String::new()));
        let exported = text.replace("0,0,\n", "0,0,NULL\n");
        assert_eq!(read_text(&CSV, &exported).unwrap(), [write, flush, durable]);
    }

    #[test]
    fn libcachesim_s_columns_are_known_and_what_is_guessed_is_told() {
        let text = "version,time,op,size,lbn\n1,33898,2a,6656,40409911\n1,33899,28,512,42932745\n";
        assert_eq!(recognised(text), "csv");
        let write = record(33_898 * SECOND_NS, 0, RecordOp::Write, 40_409_911, 13);
        let read = record(33_899 * SECOND_NS, 0, RecordOp::Read, 42_932_745, 1);
        let (records, note) = told(&CSV, text);
        assert_eq!(records, [write, read]);
        assert!(note.contains("sectors of 512 bytes"), "{note}");
        let (records, note) = told(&CSV, "time\tobj_id\tsize\n1\t8\t4096\n");
        assert_eq!(records[0].op, RecordOp::Read);
        assert!(note.contains("all is taken for reads"), "{note}");
    }

    #[test]
    fn named_columns_may_be_in_any_order_and_the_set_that_knows_most_of_them_counts() {
        let text = "Type,Timestamp,Offset,Size,ResponseTime\nWrite,10,1024,512,0\n";
        assert_eq!(read_text(&CSV, text).unwrap(), [record(1_000, 0, RecordOp::Write, 2, 1)]);
        let tencent = "Timestamp,Offset,Size,IOType,VolumeID\n5,8,16,1,1063\n";
        assert_eq!(read_text(&CSV, tencent).unwrap(), [record(5 * SECOND_NS, 1063, RecordOp::Write, 8, 16)]);
        let none = (CSV.read)(input("test", b"a,b,c\n1,2,3\n".to_vec())).err().unwrap().to_string();
        assert!(none.contains("has to name the columns") && none.contains("--columns"), "{none}");
    }

    #[test]
    fn the_traces_of_a_desktop_infrastructure_and_of_a_cloud() {
        let line = "1456095145.133076000,0.000806000,R,4,899056122368,131072\n";
        let read = record(1_456_095_145_133_076_000, 4, RecordOp::Read, 899_056_122_368 / 512, 256);
        let read = read.answered_after(Some(Nanos(806_000)));
        // A request that was never answered has no type.
        let headed = format!("Timestamp,Response,IOType,LUN,Offset,Size\n{line}1456095145.2,,,4,0,512\n");
        let (records, note) = told(&CSV, &headed);
        assert_eq!((records, recognised(&headed)), (vec![read], "csv"));
        assert!(note.contains("1 lines were left out"), "{note}");
        assert_eq!((read_text(&SYSTOR, line).unwrap(), recognised(line)), (vec![read], "systor"));
        let k5 = "2,1508630400.25,W,4096,8192\n";
        assert_eq!(recognised(k5), "k5");
        let write = record(1_508_630_400_250_000_000, 2, RecordOp::Write, 8, 16);
        assert_eq!(read_text(&K5, k5).unwrap(), [write]);
    }

    #[test]
    fn the_traces_of_a_university() {
        let text = "89968195792462 20782 gzip 283193184 8 R 6 0 56f11b711d91a065a2b6458eca924523\n\
                    89968195797777 20782 Web Content 16 8 W 6 1 56f11b711d91a065a2b6458eca924523\n";
        assert_eq!(recognised(text), "fiu");
        let first = record(89_968_195_792_462, 0, RecordOp::Read, 283_193_184, 8);
        let second = record(89_968_195_797_777, 1, RecordOp::Write, 16, 8);
        assert_eq!(read_text(&FIU, text).unwrap(), [first, second]);
    }

    #[test]
    fn a_log_of_fio_has_times_of_completion() {
        let text =
            "5, 2000000, 1, 4096, 8192, 0x0000\n6, 500000, 0, 4096, 0, 0x0000\n7, 0, 2, 4096, 4096, 0x0000\n";
        assert_eq!(recognised(text), "fio-log");
        let answered = |record: Record, ns| record.answered_after(Some(Nanos(ns)));
        let expected = [
            answered(record(3_000_000, 0, RecordOp::Write, 16, 8), 2_000_000),
            answered(record(5_500_000, 0, RecordOp::Read, 0, 8), 500_000),
            record(7_000_000, 0, RecordOp::Discard, 8, 8),
        ];
        assert_eq!(read_text(&FIO_LOG, text).unwrap(), expected);
        // Without log_offset=1 the fifth is a priority.
        for text in ["5, 2000000, 1, 4096, 0x0000\n", "5, 2000000, 1, 4096, 0\n6, 500000, 0, 4096, 1\n"] {
            assert!(crate::recognise("test", text.as_bytes()).is_err());
        }
    }

    #[test]
    fn biosnoop_and_iosnoop_as_they_print() {
        let biosnoop = "\
TIME(s)     COMM           PID     DISK      T SECTOR     BYTES  QUE(ms) LAT(ms)
2.000004    supervise      1950    xvda1     W 13092560   4096   0.01    0.74
3.5         Web Content    77      xvdb      FF 0         0      0.00    1.00
";
        assert_eq!(recognised(biosnoop), "csv");
        let records = read_text(&CSV, biosnoop).unwrap();
        let write = record(1_999_254_000, 0, RecordOp::Write, 13_092_560, 8);
        assert_eq!(records[0], write.answered_after(Some(Nanos(750_000))));
        let flush = Record::flush(Nanos(3_499_000_000), DeviceId(1)).answered_after(Some(Nanos(1_000_000)));
        assert_eq!(records[1], flush);
        let iosnoop = "\
Tracing block I/O. Ctrl-C to end.
STARTs          ENDs            COMM         PID    TYPE DEV      BLOCK        BYTES     LATms
5982800.302061  5982800.302679  supervise    1809   W    202,1    17039600     4096       0.62
5982800.302423  5982800.302842  jbd2/a b     1809   WFS  202,1    17039608     4096       0.42
";
        assert_eq!(recognised(iosnoop), "csv");
        let records = read_text(&CSV, iosnoop).unwrap();
        assert_eq!((records[0].at, records[0].device.0), (Nanos(5_982_800_302_061_000), 202 << 20 | 1));
        assert_eq!((records[0].response, records[1].fua), (Some(Nanos(620_000)), true));
    }

    #[test]
    fn events_of_windows() {
        let others = " Thread, TimeStamp, A\n".repeat(40);
        let text = &format!("BeginHeader\n{others}{ETW_TEXT}");
        assert_eq!(recognised(text), "etw");
        let (records, note) = told(&ETW, text);
        let write = record(2_664_772_000, 3, RecordOp::Write, 0x6c_8055_6e00 / 512, 128);
        assert_eq!(records[0], write.answered_after(Some(Nanos(183_000))));
        let flush = Record::flush(Nanos(2_664_900_000), DeviceId(3)).answered_after(Some(Nanos(100_000)));
        assert_eq!(records[1..], [flush]);
        assert!(note.contains("43 lines are other events"), "{note}");
    }

    const ETW_TEXT: &str = "\
 DiskRead, TimeStamp, Process Name ( PID), ThreadID, IrpPtr, ByteOffset, IOSize, ElapsedTime, DiskNum, IrpFlags, DiskSvcTime, I/O Pri, VolSnap, FileObject, FileName
 DiskWrite, TimeStamp, Process Name ( PID), ThreadID, IrpPtr, ByteOffset, IOSize, ElapsedTime, DiskNum, IrpFlags, DiskSvcTime, I/O Pri, VolSnap, FileObject, FileName
 DiskFlush, TimeStamp, Process Name ( PID), ThreadID, IrpPtr, ElapsedTime, DiskNum, IrpFlags, DiskSvcTime, I/O Pri
EndHeader
 DiskWrite, 2664955, p1 ( 980), 6852, 0xfffffade6b0a2010, 0x6c80556e00, 0x00010000, 183, 3, 0x000043, 183, 0, Unknown, 0xfffffade72165e40, \"Disk5:\\s71,\\s72\"
 FileIoCreate, 2664956, p1 ( 980), 6852
 DiskFlush, 2665000, p1 ( 980), 6852, 0xfffffade6b0a2010, 100, 3, 0x000043, 100, 0
";
    /// Reads a text by the columns of a user.
    fn by_columns(columns: &str, text: &str) -> Result<(Vec<Record>, String), String> {
        let input = input("test", text.as_bytes().to_vec());
        let mut reader = open_columns(input, &columns.parse()?).map_err(|error| error.to_string())?;
        let records = read_reader(&mut *reader).map_err(|error| error.to_string())?;
        Ok((records, reader.note().unwrap_or_default()))
    }

    #[test]
    fn a_user_may_name_the_columns_and_their_units() {
        let columns = "time:s,device,op,offset:bytes,size:bytes,latency:us";
        let write = record(1_500_000_000, 0, RecordOp::Write, 8, 16).answered_after(Some(Nanos(7_000)));
        for between in [",", "\t", " ", ";", " | "] {
            let text = ["when@disk@what@where@length@took\n", "1.5@sda@W@4096@8192@7@more\n"].concat();
            let (records, note) = by_columns(columns, &text.replace('@', between)).unwrap();
            assert_eq!(records, [write], "{between:?}");
            assert!(note.contains("its fields were taken to stand between"), "{note}");
            assert!(note.contains("was left out as a header"), "{note}");
        }
        let (records, note) = by_columns("time:ms,-,offset:4096,size:sectors", "1,x,2,8\n").unwrap();
        assert_eq!(records, [record(1_000_000, 0, RecordOp::Read, 16, 8)]);
        assert!(note.contains("all is taken for reads"), "{note}");
        let (records, _) =
            by_columns("end:us,latency:us,op:1=read,offset:bytes,size:bytes", "9,4,1,0x200,512\n").unwrap();
        assert_eq!(records, [record(5_000, 0, RecordOp::Read, 1, 1).answered_after(Some(Nanos(4_000)))]);
        let refused = |columns: &str| by_columns(columns, "1,2,3\n").unwrap_err();
        assert!(refused("time,offset:bytes,size:bytes").contains("\"time\" is no column with its unit"));
        assert!(refused("time:s,offset:bytes").contains("one column size, and there are 0"));
        assert!(refused("time:s,offset:bytes,size:bytes,size:bytes").contains("there are 2"));
        assert!(refused("time:s,op,offset:bytes,size:bytes").contains("no line has the columns"));
    }

    #[test]
    fn columns_are_described_as_they_are_named() {
        let text = "time:100ns,end:s,latency:ms,op:0=read,op:1=read,op,offset:4096,size:sectors,device,host,program,-";
        let columns: Result<Vec<Column>, String> = text.split(',').map(column).collect();
        assert_eq!(described(&columns.unwrap()), text);
    }
}
