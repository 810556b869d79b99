//! Every format: what is written is read again, nothing makes a reader panic, and each is recognised by its content.

use dcd_engine::Nanos;
use proptest::prelude::*;

use crate::format::{FORMATS, Format, by_name, recognise};
use crate::testing::{any_records, read, read_all, read_reader, written};
use crate::{Reading, open_input};
use dcd_stack::{DeviceId, Record, RecordOp};

fn writable() -> impl Iterator<Item = &'static Format> {
    FORMATS.iter().copied().filter(|f| f.write.is_some())
}

/// Cuts a record to what a format can hold.
fn held(format: &Format, record: &Record, first: Nanos) -> Record {
    let unit = format.time_unit.0;
    let cut = |t: Nanos| Nanos(t.0 / unit * unit);
    let mut at = cut(record.at);
    if format.name.starts_with("fio") {
        // Its times count from the start of the run.
        at = at.since(cut(first));
    }
    let response = match format.name {
        // Formats with no word for an unknown one: a response of less than their unit is lost.
        "msr" | "vscsi2" => record.response.map(cut).filter(|&response| response > Nanos::ZERO),
        _ => record.response.filter(|_| format.has_responses).map(cut),
    };
    let device = if format.name.starts_with("vscsi") { DeviceId(0) } else { record.device };
    Record { at, device, response, fua: record.fua && format.has_fua, ..*record }
}

#[test]
fn what_is_written_is_read_again() {
    for format in writable() {
        let records = any_records(2_000, format.has_discards_and_flushes);
        let expected: Vec<Record> = records.iter().map(|r| held(format, r, records[0].at)).collect();
        let got = read(format, &written(format, &records)).unwrap_or_else(|e| panic!("{format:?}: {e}"));
        let differs = got.iter().zip(&expected).find(|(a, b)| a != b);
        assert_eq!((got.len(), differs), (expected.len(), None), "{format:?}");
    }
}

#[test]
fn each_format_is_recognised_by_what_it_contains() {
    for format in writable().filter(|f| f.name != "mqsim") {
        let bytes = written(format, &any_records(300, format.has_discards_and_flushes));
        assert_eq!(recognise("test", &bytes).unwrap().name, format.name);
    }
    let validate = b"W Hit    4583176   4    663.00000  45422.00000\n";
    assert_eq!(recognise("test", validate).unwrap().name, "validate");
    let error = recognise("test", b"what is this?\n").unwrap_err().to_string();
    assert!(error.contains("what is this?") && error.contains("blkparse"), "{error}");
}

#[test]
fn a_wrong_line_is_named_with_its_number_and_the_next_is_read() {
    let text = "0,8,512,R,0.0\n0,8,512,X,0.1\n0,8\n\n0,16,512,W,0.2\n";
    let (records, errors) = read_all(&crate::formats::table::SPC, text.as_bytes());
    assert_eq!(records.len(), 2);
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(errors[0].starts_with("test: line 2: the opcode is neither R nor W: \"X\""), "{}", errors[0]);
    assert!(errors[1].starts_with("test: line 3: the size is missing"), "{}", errors[1]);
    assert!(errors[1].contains("--skip-bad"));
}

fn opened(text: &str, reading: &Reading) -> (Result<usize, String>, String) {
    let bytes = Box::new(std::io::Cursor::new(text.as_bytes().to_vec()));
    let mut trace = match open_input("test".to_owned(), bytes, reading, None) {
        Ok(trace) => trace,
        Err(error) => return (Err(error.to_string()), String::new()),
    };
    let read =
        read_reader(&mut *trace.reader).map(|records| records.len()).map_err(|error| error.to_string());
    (read, trace.reader.note().unwrap_or_default())
}

#[test]
fn an_odd_line_costs_that_line_and_many_are_refused() {
    let good = |count: usize| -> String { (0..count).map(|n| format!("0,{n},512,R,{n}.0\n")).collect() };
    let (recognised, skip) = (Reading::default(), Reading { skip_bad: true, ..Reading::default() });
    let (read, note) = opened(&format!("{}0,8,512,X,0.1\n{}", good(20), good(1)), &recognised);
    assert_eq!(read, Ok(21));
    assert!(
        note.contains("1 bad records left out; the first: line 21: the opcode is neither R nor W"),
        "{note}"
    );
    let odd = |count: usize, of: usize| format!("{}{}", good(of), "0,8,512,X,0.1\n".repeat(count));
    assert_eq!(opened(&odd(5, 600), &recognised).0, Ok(600));
    let refused = opened(&odd(8, 600), &recognised).0.unwrap_err();
    assert!(
        refused.contains("8 of the first 608 lines are wrong: line 601: ") && refused.contains("--skip-bad"),
        "{refused}"
    );
    let refused = opened(&odd(40, 600), &recognised).0.unwrap_err();
    assert!(refused.contains("17 of the first 617 lines"), "as soon as it is seen: {refused}");
    let (read, note) = opened(&odd(40, 600), &skip);
    assert_eq!(read, Ok(600));
    assert!(note.contains("40 bad records left out"), "{note}");
    let spc = Reading { format: Some(by_name("spc").unwrap()), ..Reading::default() };
    assert!(opened("0,8,512,X,0.1\n", &spc).0.unwrap_err().contains("1 of the first 1 lines"));
    // In a binary file, the records after a wrong one may be wrong, too.
    let blktrace = written(by_name("blktrace").unwrap(), &any_records(300, true));
    let cut = blktrace[..blktrace.len() - 7].to_vec();
    let of = |reading: &Reading| {
        open_input("test".to_owned(), Box::new(std::io::Cursor::new(cut.clone())), reading, None)
    };
    assert!(read_reader(&mut *of(&recognised).unwrap().reader).is_err());
    assert!(read_reader(&mut *of(&skip).unwrap().reader).is_ok());
}

#[test]
fn the_columns_of_a_user_decide_before_what_is_recognised() {
    let reading = Reading {
        columns: Some("device,offset:bytes,size:bytes,op,time:s".parse().unwrap()),
        ..Reading::default()
    };
    let text = "0,4096,4096,R,1.0\n0,8192,4096,X,1.0\n0,8192,4096,W,2.0\n";
    let (read, note) = opened(text, &reading);
    assert_eq!(read, Ok(2));
    assert!(note.contains("between commas") && note.contains("1 bad records"), "{note}");
}

#[test]
fn what_a_format_cannot_say_is_refused_and_not_dropped() {
    let flush = Record::flush(Nanos(0), DeviceId(0));
    for format in writable().filter(|f| !f.has_discards_and_flushes) {
        let mut writer = crate::writer(format, Box::new(std::io::sink())).unwrap();
        let error = writer.write(&flush).unwrap_err().to_string();
        assert!(error.contains("--only read,write"), "{format:?}: {error}");
    }
}

/// Text that is nearly right finds more than noise does.
fn nearly(format: &'static Format) -> impl Strategy<Value = Vec<u8>> {
    let good = written(format, &any_records(20, format.has_discards_and_flushes));
    let length = good.len();
    prop::collection::vec((0..length, any::<u8>()), 0..8).prop_map(move |changes| {
        let mut bytes = good.clone();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes
    })
}

/// Any input ends, in records that keep the limits, or in errors.
fn survives(format: &Format, bytes: &[u8]) {
    let (records, _) = read_all(format, bytes);
    for record in records {
        assert!(record.op == RecordOp::Flush || record.extent.sectors > 0);
        assert!(record.extent.start.0 + record.extent.sectors <= crate::LBA_END_MAX);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        for format in FORMATS {
            survives(format, &bytes);
        }
        let _ = recognise("test", &bytes);
    }

    #[test]
    fn no_damage_makes_a_reader_panic(
        cases in writable().map(|f| nearly(f).prop_map(move |bytes| (f, bytes))).collect::<Vec<_>>()
    ) {
        for (format, bytes) in cases {
            survives(format, &bytes);
        }
    }
}
