//! CSV with a first line that names the columns: our own, and those of known data sets (see [`super::columns`]). What has no such
//! line is told apart by its fields: MSR, Alibaba, Tencent and SPC have formats of their own.

use std::io::Write;

use dcd_engine::Nanos;

use super::columns::{Columns, Raw, Role, WRITE_FUA, io_type, operation};
use crate::format::{Format, Head, Likeness};
use crate::text::{Lines, Print, TextReader, TextWriter, decimal, whole};
use dcd_stack::{Record, RecordOp};

const HEADER: &str = "at_ns,device,op,lba,sectors,response_ns";
const SEPARATORS: [char; 4] = [',', '\t', ';', '|'];

pub const FORMAT: Format = Format {
    name: "csv",
    about: "CSV whose first line names the columns: ours, or those of msr, alibaba, tencent, libCacheSim",
    recognise,
    read: |input| Ok(Box::new(TextReader::new(input, Csv::default()))),
    write: Some(|out| Box::new(TextWriter::new("csv", Printer, out))),
    time_unit: Nanos(1),
    has_responses: true,
    has_discards_and_flushes: true,
    has_fua: true,
    guess: None,
};

fn recognise(head: &Head<'_>) -> Likeness {
    Likeness::certain_if(head.lines().first().is_some_and(|line| header(line).is_some()))
}

/// The columns that a first line names, and what stands between them.
fn header(line: &str) -> Option<(char, Columns)> {
    let line = line.trim_start_matches(['#', ' ']);
    SEPARATORS.iter().find_map(|&separator| {
        let names: Vec<String> = fields(line, separator).map(str::to_owned).collect();
        Some((separator, Columns::of(&names)?))
    })
}

fn fields(line: &str, separator: char) -> impl Iterator<Item = &str> {
    line.split(separator).map(|field| field.trim().trim_matches('"'))
}

#[derive(Default)]
struct Csv {
    columns: Option<(char, Columns)>,
}

impl Lines for Csv {
    fn parse(&mut self, line: &str) -> Result<Option<Record>, String> {
        let Some((separator, columns)) = &mut self.columns else {
            let known = || format!("the first line has to name the columns: {}", Columns::known());
            self.columns = Some(header(line).ok_or_else(known)?);
            return Ok(None);
        };
        let mut raw = Raw::new();
        let mut fields = fields(line, *separator);
        for role in &columns.roles {
            let field = fields.next().ok_or("the line has fewer fields than the first")?;
            if let Some(role) = role {
                set(&mut raw, *role, field)?;
            }
        }
        if fields.next().is_some() {
            return Err("the line has more fields than the first".to_owned());
        }
        columns.record(&raw).map(Some)
    }

    fn note(&self) -> Option<String> {
        self.columns.as_ref()?.1.note()
    }
}

fn set(raw: &mut Raw, role: Role, field: &str) -> Result<(), String> {
    let time =
        |name: &str, unit| decimal(field, unit).ok_or_else(|| format!("the {name} is no time: {field:?}"));
    let bytes = |name: &str, unit| {
        let number = whole(field, name)?;
        number.checked_mul(unit).ok_or_else(|| format!("the {name} {number} is too large"))
    };
    match role {
        Role::At(unit) => raw.at = time("time", unit)?,
        Role::Device => raw.device = whole(field, "device")?,
        Role::Host => raw.host = Some(field.to_owned()),
        Role::Op if field.eq_ignore_ascii_case(WRITE_FUA) => (raw.op, raw.fua) = (RecordOp::Write, true),
        Role::Op => raw.op = operation("operation", field)?,
        Role::IoType => raw.op = io_type("IOType", field)?,
        Role::Start(unit) => raw.start = bytes("place", unit)?,
        Role::Length(unit) => raw.length = bytes("length", unit)?,
        Role::Response(_) | Role::ResponseOrZero(_) if is_unknown(field) => {}
        Role::Response(unit) | Role::ResponseOrZero(unit) => {
            raw.response = Some(time("response time", unit)?)
        }
    }
    Ok(())
}

/// Databases write an unknown value as nothing or as NULL.
fn is_unknown(field: &str) -> bool {
    field.is_empty() || field.eq_ignore_ascii_case("null")
}

struct Printer;

impl Print for Printer {
    fn head(&mut self, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(out, "{HEADER}")
    }

    fn print(&mut self, record: &Record, out: &mut dyn Write) -> std::io::Result<()> {
        let Record { at, device, op, extent, response, fua } = record;
        let op_name = if *fua { WRITE_FUA } else { op.name() };
        let (start, sectors) = if *op == RecordOp::Flush { (0, 0) } else { (extent.start.0, extent.sectors) };
        let response = response.map_or_else(String::new, |response| response.0.to_string());
        writeln!(out, "{},{},{},{start},{sectors},{response}", at.0, device.0, op_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{input, read_reader, read_text, written};
    use dcd_stack::DeviceId;

    #[test]
    fn our_columns_hold_everything() {
        let write = Record::new(Nanos(7), DeviceId(3), RecordOp::Write, 8, 16)
            .unwrap()
            .answered_after(Some(Nanos(9)));
        let flush = Record::flush(Nanos(8), DeviceId(3));
        let text = "at_ns,device,op,lba,sectors,response_ns\n7,3,write,8,16,9\n8,3,flush,0,0,\n";
        assert_eq!(written(&FORMAT, &[write, flush]), text.as_bytes());
        assert_eq!(read_text(&FORMAT, text).unwrap(), [write, flush]);
        let exported = text.replace("0,0,\n", "0,0,NULL\n");
        assert_eq!(read_text(&FORMAT, &exported).unwrap(), [write, flush]);
    }

    #[test]
    fn libcachesim_s_columns_are_known_and_what_is_guessed_is_told() {
        let text = "version,time,op,size,lbn\n1,33898,2a,6656,40409911\n1,33899,28,512,42932745\n";
        assert_eq!(crate::recognise("test", text.as_bytes()).unwrap().name, "csv");
        let mut reader = (FORMAT.read)(input("test", text.as_bytes().to_vec())).unwrap();
        let records = read_reader(&mut *reader).unwrap();
        let write =
            Record::new(Nanos::from_secs(33_898), DeviceId(0), RecordOp::Write, 40_409_911, 13).unwrap();
        let read = Record::new(Nanos::from_secs(33_899), DeviceId(0), RecordOp::Read, 42_932_745, 1).unwrap();
        assert_eq!(records, [write, read]);
        assert!(reader.note().unwrap().contains("sectors of 512 bytes"), "{:?}", reader.note());
        let without = "time\tobj_id\tsize\n1\t8\t4096\n";
        let mut reader = (FORMAT.read)(input("test", without.as_bytes().to_vec())).unwrap();
        assert_eq!(read_reader(&mut *reader).unwrap()[0].op, RecordOp::Read);
        assert!(reader.note().unwrap().contains("all is taken for reads"), "{:?}", reader.note());
    }

    #[test]
    fn named_columns_of_msr_may_be_in_any_order() {
        let text = "Type,Timestamp,Offset,Size,ResponseTime\nWrite,10,1024,512,0\n";
        let records = read_text(&FORMAT, text).unwrap();
        assert_eq!(records, [Record::new(Nanos(1_000), DeviceId(0), RecordOp::Write, 2, 1).unwrap()]);
        let tencent = "Timestamp,Offset,Size,IOType,VolumeID\n5,8,16,1,1063\n";
        let records = read_text(&FORMAT, tencent).unwrap();
        assert_eq!(
            records,
            [Record::new(Nanos::from_secs(5), DeviceId(1063), RecordOp::Write, 8, 16).unwrap()]
        );
        assert!(
            read_text(&FORMAT, "a,b,c\n1,2,3\n").unwrap_err().to_string().contains("has to name the columns")
        );
    }
}
