//! Every format: what is written is read again, nothing makes a reader panic, and each is recognised by its content.

use dcd_engine::Nanos;
use proptest::prelude::*;

use crate::format::{FORMATS, Format, recognise};
use crate::testing::{any_records, read, read_all, written};
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
    let (records, errors) = read_all(&crate::formats::comma::SPC, text.as_bytes());
    assert_eq!(records.len(), 2);
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(errors[0].starts_with("test: line 2: the opcode is neither R nor W: \"X\""), "{}", errors[0]);
    assert!(errors[1].starts_with("test: line 3: the size is missing"), "{}", errors[1]);
    assert!(errors[1].contains("--skip-bad"));
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
