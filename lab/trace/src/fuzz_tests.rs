//! Every reader under damaged input, for a minute in all: traces as they are, then changed as disks, editors and other programs
//! change them. No input may make a reader panic or go on for ever, nor what is done with its records.
//!
//! Half of the time goes to cases that are the same each time, half to fresh ones, whose seed is printed. A case is replayed with
//! `DCD_FUZZ=SEED:CASE cargo test -p dcd-trace --lib fuzz_tests`; `DCD_FUZZ_SECONDS` sets another time.

use std::hash::{BuildHasher, Hasher};
use std::io::{Cursor, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use dcd_engine::Nanos;
use dcd_trace::{
    Characteriser, Cut, Cutter, DeviceId, FORMATS, Format, LBA_END_MAX, Merge, Options, ReadTrace, Reading,
    Record, RecordOp, Scale, Scaler, TraceError, open_input, recognise, writer,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SEED: u64 = 0x7ace_5eed;
const SECONDS: u64 = 60;
/// No input here has nearly as many.
const STEPS_MAX: usize = 1 << 20;
const NUMBERS: [u64; 14] = [
    0,
    1,
    511,
    512,
    1 << 20,
    (1 << 31) - 1,
    1 << 32,
    1 << 45,
    LBA_END_MAX,
    18_446_744_073_709_551,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

#[test]
fn no_damage_makes_a_reader_panic_or_go_on_for_ever() {
    if let Ok(replayed) = std::env::var("DCD_FUZZ") {
        let (seed, case) = replayed.split_once(':').expect("SEED:CASE");
        let seed = u64::from_str_radix(seed.trim_start_matches("0x"), 16).expect("a seed in hexadecimal");
        return one(seed, case.parse().expect("the number of a case"));
    }
    let seconds = std::env::var("DCD_FUZZ_SECONDS").map_or(SECONDS, |text| text.parse().expect("seconds"));
    let fresh = std::hash::RandomState::new().build_hasher().finish();
    for seed in [SEED, fresh] {
        let until = Instant::now() + Duration::from_millis(seconds * 500);
        let mut case = 0;
        // Every format at least once, however slow the machine is.
        while case < FORMATS.len() as u64 || Instant::now() < until {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| one(seed, case))) {
                let format = FORMATS[case as usize % FORMATS.len()].name;
                let _ = writeln!(std::io::stderr(), "{format}: replay it with DCD_FUZZ={seed:#x}:{case}");
                resume_unwind(panic);
            }
            case += 1;
        }
        let _ = writeln!(std::io::stderr(), "readers of traces: {case} damaged inputs, seed {seed:#x}");
    }
}

fn one(seed: u64, case: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let format = FORMATS[case as usize % FORMATS.len()];
    let mut bytes = sample(format, &mut random);
    for _ in 0..random.random_range(0..6) {
        damage(&mut bytes, &mut random);
    }
    if random.random_ratio(1, 10) {
        bytes = compressed(&bytes, &mut random);
        if random.random_bool(0.7) {
            damage(&mut bytes, &mut random);
        }
    }
    let _ = recognise("fuzz", &bytes);
    if random.random_ratio(1, 8) {
        let columns = [
            "time:s,device,op,offset:bytes,size:bytes,latency:us",
            "end:ms,latency:ns,op:0=read,size:8,offset:sectors",
        ];
        let columns = columns[random.random_range(0..columns.len())].parse().expect("they are columns");
        let input = crate::testing::input("fuzz", bytes.clone());
        if let Ok(reader) = crate::formats::table::open_columns(input, &columns) {
            follow(reader, &mut random);
        }
    }
    let named = random.random_bool(0.7).then_some(format);
    let reading = Reading { format: named, columns: None, skip_bad: random.random_bool(0.5) };
    let opened = open_input("fuzz".to_owned(), Box::new(Cursor::new(bytes)), &reading, None);
    if let Ok(opened) = opened {
        follow(opened.reader, &mut random);
    }
}

/// Reads to the end, past every record that is wrong, and does with the others what the commands do.
fn follow(reader: Box<dyn ReadTrace>, random: &mut ChaCha8Rng) {
    let mut reader = staged(reader, random);
    let blocks_max = random.random_bool(0.9).then(|| random.random_range(0..500));
    let mut characteriser = Characteriser::new(Options { blocks_max, service: Nanos(any(random)) });
    let writable: Vec<&'static Format> =
        FORMATS.iter().copied().filter(|format| format.write.is_some()).collect();
    let to = writable[random.random_range(0..writable.len())];
    let mut out = writer(to, Box::new(std::io::sink())).expect("it can be written");
    for step in 0.. {
        assert!(step < STEPS_MAX, "it never ends");
        match reader.next_record() {
            Ok(Some(record)) => {
                assert!(record.op == RecordOp::Flush || record.extent.sectors > 0);
                assert!(record.extent.start.0 + record.extent.sectors <= LBA_END_MAX);
                characteriser.add(&record);
                let _ = out.write(&record);
            }
            Err(error) if error.is_one_record() => {
                let _ = error.to_string();
            }
            Ok(None) | Err(_) => break,
        }
    }
    let _ = (out.finish(), reader.note(), characteriser.finish());
}

fn staged(reader: Box<dyn ReadTrace>, random: &mut ChaCha8Rng) -> Box<dyn ReadTrace> {
    match random.random_range(0..6) {
        0 => Box::new(Merge::new(vec![reader], random.random_range(0..64))),
        1 => {
            let scale = Scale { time: 1e9, space: 1e-3, from_zero: random.random_bool(0.5) };
            Box::new(Scaler::new(reader, scale))
        }
        2 => {
            let cut = Cut { from: Nanos(any(random)), to: Some(Nanos(any(random))), ..Cut::default() };
            Box::new(Cutter::new(reader, cut))
        }
        _ => reader,
    }
}

fn any(random: &mut ChaCha8Rng) -> u64 {
    match random.random_bool(0.5) {
        true => NUMBERS[random.random_range(0..NUMBERS.len())],
        false => random.random::<u64>() >> random.random_range(0..64),
    }
}

fn records(random: &mut ChaCha8Rng, all: bool) -> Vec<Record> {
    let mut at = 0u64;
    let count = random.random_range(1..80);
    let record = |_| {
        at = if random.random_ratio(1, 30) { any(random) } else { at.saturating_add(any(random) >> 20) };
        let device = DeviceId(random.random_range(0..4));
        let ops = if all { 4 } else { 2 };
        let op = [RecordOp::Read, RecordOp::Write, RecordOp::Discard, RecordOp::Flush]
            [random.random_range(0..ops)];
        let response = random.random_bool(0.6).then(|| Nanos(any(random)));
        let start = any(random) % (LBA_END_MAX - (1 << 33));
        let large = random.random_ratio(1, 10);
        let sectors = if large { any(random) % (1 << 32) } else { random.random_range(1..64) };
        let record = match op {
            RecordOp::Flush => Record::flush(Nanos(at), device),
            op => Record::new(Nanos(at), device, op, start, sectors.max(1)).expect("within the limits"),
        };
        record.answered_after(response).with_fua(random.random_ratio(1, 4))
    };
    (0..count).map(record).collect()
}

/// A place to write to that can be looked at afterwards.
#[derive(Clone, Default)]
struct Shared(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A trace of a format, as it should be.
fn sample(format: &'static Format, random: &mut ChaCha8Rng) -> Vec<u8> {
    let records = records(random, format.has_discards_and_flushes);
    match format.name {
        "validate" => {
            b"W Hit    4583176   4    663.00000  45422.00000\nR Miss 4583180 4 607.0 3.4e+04\n".repeat(3)
        }
        "srt" => srt(&records),
        "systor" => b"1456095145.133076,0.000806,R,4,899056122368,131072\n1456095146.1,,,4,0,512\n".repeat(4),
        "k5" => b"2,1508630400.25,W,4096,8192\n2,1508630401.5,R,8192,512\n".repeat(4),
        "fiu" => b"89968195792462 20782 gzip a 283193184 8 R 6 0 56f11b711d\n".repeat(4),
        "fio-log" => b"5, 2000000, 1, 4096, 8192, 0x0000\n6, 5, 0, 4096, 0, 0\n".repeat(4),
        "etw" => {
            let rows = " DiskRead, 2664955, p ( 980), 0x6c80556e00, 0x00010000, 183, 3\n".repeat(4);
            format!(
                "DiskRead, TimeStamp, Process Name ( PID), ByteOffset, IOSize, ElapsedTime, DiskNum\n{rows}"
            )
            .into_bytes()
        }
        "perf" => b"a b 12 [000] 6011.824759: block:block_rq_issue: 254,16 FWFS 0 () 7322849 + 16 [a]\n\
            a 12 [000] 6011.9: block:block_rq_complete: 254,16 WFS () 7322849 + 16 [0]\n"
            .repeat(4),
        "lcs" => {
            let mut bytes = vec![0; 8192];
            bytes[..8].copy_from_slice(&0x1234_5678_9abc_def0u64.to_le_bytes());
            bytes[8] = random.random_range(1..9);
            bytes.copy_within(..8, 8184);
            bytes.extend(oracle(&records));
            bytes
        }
        "oracle-general" => oracle(&records),
        "blktrace" if random.random_bool(0.3) => blktrace_8(&records),
        "csv" if random.random_bool(0.5) => csv(random),
        _ => {
            let out = Shared::default();
            let mut writer = writer(format, Box::new(out.clone())).expect("it can be written");
            for record in &records {
                match writer.write(record) {
                    // More than the format can say.
                    Ok(()) | Err(TraceError::Inexpressible { .. }) => {}
                    Err(error) => panic!("{format:?}: {error}"),
                }
            }
            writer.finish().expect("memory does not fail");
            out.0.take()
        }
    }
}

fn csv(random: &mut ChaCha8Rng) -> Vec<u8> {
    let (header, rows) = match random.random_range(0..4) {
        0 => ("TIME(s) COMM DISK T SECTOR BYTES LAT(ms)\n", "2.000004 a b xvda1 WFS 13092560 4096 0.74\n"),
        1 => ("STARTs,ENDs,TYPE,DEV,BLOCK,BYTES,LATms\n", "5.5,6.5,W,202.1,13092560,4096,0.74\n"),
        2 => ("version,time,op,size,lbn\n", "1,33898,2a,6656,40409911\n1,33899,28,512,4293\n"),
        _ => (
            "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n",
            "5,hm,0,Write,9056014336,2048,2833\n6,a,1,Read,0,512,0\n",
        ),
    };
    format!("{header}{}", rows.repeat(5)).into_bytes()
}

fn srt(records: &[Record]) -> Vec<u8> {
    let mut bytes = b"a header\n\x0c".to_vec();
    for record in records {
        let time = record.at.0 as u32;
        let words: [u32; 14] =
            [56, 0x0004_0001, 1, time, 12, 10_038, 4096, 1040, 0x0801_0107, 0, 0, 0x0100_0001, 0, 1];
        bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    }
    bytes
}

fn oracle(records: &[Record]) -> Vec<u8> {
    let one = |record: &Record| {
        let seconds = ((record.at.0 >> 32) as u32).to_le_bytes();
        let size = (record.extent.sectors as u32).to_le_bytes();
        [&seconds[..], &record.extent.start.0.to_le_bytes(), &size, &(-1i64).to_le_bytes()].concat()
    };
    records.iter().flat_map(one).collect()
}

fn blktrace_8(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        for action in [0x0012_0101u64, 0x0082_0008] {
            let mut raw = [0; 64];
            raw[..4].copy_from_slice(&0x6561_7408u32.to_le_bytes());
            raw[8..16].copy_from_slice(&record.at.0.to_le_bytes());
            raw[16..24].copy_from_slice(&record.extent.start.0.to_le_bytes());
            raw[24..28].copy_from_slice(&(record.extent.sectors as u32).to_le_bytes());
            raw[32..40].copy_from_slice(&action.to_le_bytes());
            bytes.extend(raw);
        }
    }
    bytes
}

fn compressed(bytes: &[u8], random: &mut ChaCha8Rng) -> Vec<u8> {
    if random.random_bool(0.3) {
        return crate::zip::archive(&[("a", bytes)], 8 * random.random_range(0..2), random.random_bool(0.5));
    }
    if random.random_bool(0.3) {
        let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
        return encoder
            .write_all(bytes)
            .and_then(|()| encoder.finish().map_err(std::io::Error::other))
            .expect("memory does not fail");
    }
    if random.random_bool(0.5) {
        return zstd::bulk::compress(bytes, 1).expect("memory does not fail");
    }
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory does not fail")
}

/// Makes a change such as a disk, an editor or another program makes.
fn damage(bytes: &mut Vec<u8>, random: &mut ChaCha8Rng) {
    if bytes.is_empty() {
        return bytes.push(random.random());
    }
    let length = bytes.len();
    let at = random.random_range(0..length);
    let to = random.random_range(at..=length.min(at + 64));
    match random.random_range(0..9) {
        0 => bytes[at] ^= 1 << random.random_range(0..8),
        1 => bytes[at] = [0, 0xff, 0x7f, 0x80, b'\n', b',', b'-', b'.', b'e'][random.random_range(0..9)],
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..to)),
        4 => {
            let copied = bytes[at..to].to_vec();
            let place = random.random_range(0..=length);
            bytes.splice(place..place, copied);
        }
        5 => bytes.splice(0..0, *b"\xef\xbb\xbf").for_each(drop),
        6 => {
            let number = any(random);
            let all = if random.random_bool(0.5) { number.to_le_bytes() } else { number.to_be_bytes() };
            let width = [2, 4, 8][random.random_range(0..3)].min(length - at);
            bytes[at..at + width].copy_from_slice(&all[..width]);
        }
        7 => bytes.swap(at, random.random_range(0..length)),
        _ => put_number(bytes, at, random),
    }
}

/// Another number in the place of one in a text.
fn put_number(bytes: &mut Vec<u8>, at: usize, random: &mut ChaCha8Rng) {
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|found| at + found) else { return };
    let digits = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = match random.random_range(0..6) {
        0 => "99999999999999999999999".to_owned(),
        1 => "-1".to_owned(),
        2 => "1e308".to_owned(),
        3 => format!("{}.5", any(random)),
        _ => any(random).to_string(),
    };
    bytes.splice(start..start + digits, text.into_bytes());
}
