//! `dcd trace` in a pipeline.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Place, dcd, expect};

fn trace(args: &[&str]) -> Command {
    let mut command = dcd();
    command.arg("trace").args(args);
    command
}

#[test]
fn blktrace_s_stream_is_read_while_it_is_written() {
    let place = Place::new();
    let path = |name: &str| place.path(name).display().to_string();
    let [described, made, streamed, recorded] =
        ["small.toml", "made.dcd", "made.blktrace", "recorded.dcd"].map(path);
    let description = trace(&["synthesise", "--preset", "off-day", "--describe"]).output().unwrap();
    expect(&description, 0, "");
    let text = String::from_utf8(description.stdout).unwrap();
    let small = text.replace("count = 58468", "count = 1000").replace("count = 91726", "count = 2000");
    assert_ne!(text, small);
    std::fs::write(&described, small).unwrap();
    expect(&trace(&["synthesise", "--description", &described, &made]).output().unwrap(), 0, "");
    expect(&trace(&["convert", "--to", "blktrace", &made, &streamed]).output().unwrap(), 0, "");
    // As `blktrace -d /dev/sdX -o - | dcd trace convert --from blktrace - FILE` does it: in pieces.
    let mut command = trace(&["convert", "--from", "blktrace", "--quiet", "-", &recorded]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    for piece in std::fs::read(&streamed).unwrap().chunks(10_007) {
        pipe.write_all(piece).unwrap();
        pipe.flush().unwrap();
    }
    drop(pipe);
    expect(&child.wait_with_output().unwrap(), 0, "");
    let figures = |path: &str| {
        let output = trace(&["summarise", "--json", "--quiet", path]).output().unwrap();
        expect(&output, 0, "");
        let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        figures["all"].clone()
    };
    let (was, is) = (figures(&made), figures(&recorded));
    for field in ["reads", "writes", "flushes", "lba_end", "interarrival_ns"] {
        assert_eq!(was[field], is[field], "{field}");
    }
}

#[test]
fn a_trace_is_not_written_over_a_disk() {
    // None is attached there; all that counts is what it is.
    let disk = "/dev/loop7";
    let Ok(metadata) = std::fs::metadata(disk) else { return crate::common::skip("no loop devices here") };
    assert!(std::os::unix::fs::FileTypeExt::is_block_device(&metadata.file_type()));
    let output = trace(&["synthesise", "--preset", "off-day", disk]).output().unwrap();
    expect(&output, 1, "it is a block device: name a file");
    let place = Place::new();
    fs::write(place.path("a.csv"), MSR).unwrap();
    let mut characterise = trace(&["characterise", "a.csv", "--plots", disk]);
    let output = characterise.current_dir(place.dir.path()).output().unwrap();
    expect(&output, 1, "it is a block device: name a file");
}

const MSR: &str = "128166372000000000,host,0,Write,0,4096,100\n128166372000100000,host,0,Read,8192,4096,0\n";

/// Other names of a file: a hard link, a symbolic one, and a bind mount where that is allowed.
struct Names {
    all: Vec<PathBuf>,
    mounted: Option<PathBuf>,
}

impl Names {
    fn of(place: &Place, file: &Path) -> Names {
        let [hard, symbolic, bound] = ["hard.link", "symbolic.link", "bound"].map(|name| place.path(name));
        fs::hard_link(file, &hard).unwrap();
        std::os::unix::fs::symlink(file, &symbolic).unwrap();
        let mut names = Names { all: vec![file.to_owned(), hard, symbolic], mounted: None };
        File::create(&bound).unwrap();
        let mount = Command::new("mount").arg("--bind").args([file, &bound]).output();
        if mount.is_ok_and(|mount| mount.status.success()) {
            names.all.push(bound.clone());
            names.mounted = Some(bound);
        } else {
            crate::common::skip("no bind mounts here: they were left out");
        }
        names
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        if let Some(bound) = &self.mounted {
            let _ = Command::new("umount").arg(bound).status();
        }
    }
}

#[test]
fn no_command_writes_over_what_it_reads() {
    let place = Place::new();
    let directory = place.dir.path();
    let source = place.path("a.csv");
    fs::write(&source, MSR).unwrap();
    let names = Names::of(&place, &source);
    let refused = |arguments: &[&str], said: &str| {
        let output = dcd().args(arguments).current_dir(directory).output().unwrap();
        expect(&output, 1, said);
        assert_eq!(fs::read_to_string(&source).unwrap(), MSR, "{arguments:?}");
    };
    for name in &names.all {
        let name = name.to_str().unwrap();
        for arguments in [
            &["convert", "a.csv", name][..],
            &["cut", "a.csv", name],
            &["scale", "a.csv", name],
            &["merge", "a.csv", "a.csv", "--output", name],
            &["synthesise", "--like", "a.csv", name],
            &["synthesise", "--description", "a.csv", name],
            &["characterise", "a.csv", "--plots", name],
        ] {
            let all = [&["trace"], arguments].concat();
            // What is no description is told first.
            let said = if arguments[1] == "--description" { "" } else { "is the same file as a.csv" };
            refused(&all, said);
        }
        let drive = format!("drive={}", source.display());
        refused(
            &["lab", "run", "dcd-nuser", "--set", &drive, "--out", "results", "--doc", name],
            "is the same file as",
        );
    }
    fs::create_dir(place.path("out")).unwrap();
    fs::hard_link(&source, place.path("out/tune.json")).unwrap();
    refused(&["tune", "a.csv", "--out", "out"], "out/tune.json is the same file as a.csv");
    // As shells name them.
    let mut convert = dcd();
    convert.args(["trace", "convert", "-", "a.csv"]).current_dir(directory);
    expect(&convert.stdin(File::open(&source).unwrap()).output().unwrap(), 1, "as standard input");
    let mut convert = dcd();
    convert.args(["trace", "convert", "--to", "msr", "a.csv", "-"]).current_dir(directory);
    let appended = OpenOptions::new().append(true).open(&source).unwrap();
    let output = convert.stdout(appended).output().unwrap();
    expect(&output, 1, "standard output is the same file as a.csv");
    assert_eq!(fs::read_to_string(&source).unwrap(), MSR);
}

#[test]
fn a_description_is_not_written_over() {
    let place = Place::new();
    let text = trace(&["synthesise", "--preset", "off-day", "--describe"]).output().unwrap().stdout;
    fs::write(place.path("mine.toml"), &text).unwrap();
    fs::hard_link(place.path("mine.toml"), place.path("mine.dcd")).unwrap();
    let mut make = trace(&["synthesise", "--description", "mine.toml", "mine.dcd"]);
    let output = make.current_dir(place.dir.path()).output().unwrap();
    expect(&output, 1, "mine.dcd is the same file as mine.toml");
    assert!(fs::read(place.path("mine.toml")).unwrap() == text);
}

#[test]
fn a_disk_that_begins_like_a_trace_is_not_recorded_over() {
    let place = Place::new();
    let mut disk = fs::read(place.path("data.img")).unwrap();
    disk[..8].copy_from_slice(b"DCDTRACE");
    fs::write(place.path("data.img"), &disk).unwrap();
    fs::hard_link(place.path("data.img"), place.path("week.dcd")).unwrap();
    expect(&place.run("format", &[]), 0, "");
    let record = place.path("week.dcd").display().to_string();
    expect(&place.run("serve", &["--record", &record]), 1, "is the same file as");
    assert!(fs::read(place.path("data.img")).unwrap() == disk);
}

/// A file of a place, and what a command says of it there.
fn of_file(place: &Place, name: &str, content: impl AsRef<[u8]>, arguments: &[&str]) -> std::process::Output {
    fs::write(place.path(name), content).unwrap();
    dcd().args(arguments).current_dir(place.dir.path()).output().unwrap()
}

/// Asserts on how many writes a summary counts.
fn expect_writes(output: &std::process::Output, count: u64) {
    expect(output, 0, &format!("{:<8} {count:>11}", "writes"));
}

fn summary(place: &Place, name: &str, content: impl AsRef<[u8]>) -> std::process::Output {
    of_file(place, name, content, &["trace", "summarise", name])
}

#[test]
fn files_as_programs_write_them_are_read() {
    let place = Place::new();
    // A byte order mark, lines of Windows, and a header.
    let text = format!("\u{feff}{}", MSR.replace('\n', "\r\n"));
    expect_writes(&summary(&place, "bom.csv", text), 1);
    let tencent = "time,offset,size,type,volume\n1538323200,12910952,128,1,1063\n";
    let output = summary(&place, "header.csv", tencent);
    expect_writes(&output, 1);
    expect(&output, 0, "dcd: header.csv: line 1 was left out as a header: \"time,offset");
    let named = format!("Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n{MSR}");
    expect(&summary(&place, "named.csv", named), 0, "format csv, 1 devices");
    let wide: Vec<u8> =
        std::iter::once(0xfeff).chain(MSR.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    expect(&summary(&place, "wide.csv", wide), 1, "this is UTF-16: convert it first");
    let parquet = b"PAR1 and columns".to_vec();
    expect(&summary(&place, "t.parquet", parquet), 1, "this is Parquet: convert it first (duckdb");
    // What is not told is guessed, and said.
    let mq = "1000000 0 0 8 1\n9000000 0 8 8 0\n";
    expect(
        &summary(&place, "mq", mq),
        0,
        "taken for mqsim: its times are whole numbers, and were taken for nanoseconds",
    );
    let sectors = "version,time,op,size,lbn\n1,33898,2a,6656,40409911\n";
    expect(&summary(&place, "cloud.csv", sectors), 0, "cloud.csv: times were taken for seconds");
    let fio = "fio version 3 iolog\n22 f add\n203 f write 0 4096\n244 f sync_file_range 12288 0\n";
    expect(&summary(&place, "w.log", fio), 0, "1 sync_file_range were left out");
}

#[test]
fn where_nothing_is_understood_that_is_a_failure() {
    let place = Place::new();
    fs::write(place.path("old.dcd"), "an older result").unwrap();
    let plugs = "  8,0 0 1 0.0 0  m   N cfq697S alloced\n  8,0 3 3 0.000002197 697  P   N [kjournald]\n";
    for part in ["summarise", "characterise"] {
        let output = of_file(&place, "plugs", plugs, &["trace", part, "plugs"]);
        expect(&output, 1, "plugs: nothing in it is a request (2 lines are no arrival");
    }
    expect(&of_file(&place, "plugs", plugs, &["tune", "plugs"]), 1, "read as blkparse");
    let output = of_file(&place, "plugs", plugs, &["trace", "convert", "plugs", "old.dcd"]);
    expect(&output, 1, "nothing in it is a request");
    assert_eq!(fs::read_to_string(place.path("old.dcd")).unwrap(), "an older result");
    let bad = "0,8,512,X,0.0\n0,8,512,Y,0.1\n";
    let output =
        of_file(&place, "bad.spc", bad, &["trace", "summarise", "--from", "spc", "--skip-bad", "bad.spc"]);
    expect(&output, 1, "nothing in it is a request");
    expect(&output, 1, "2 bad records left out; the first");
    expect(&summary(&place, "empty", ""), 1, "empty: it is empty");
}

#[test]
fn the_good_part_of_a_file_that_was_cut_off_can_be_used() {
    let place = Place::new();
    let lines: String = (0..60_000u64)
        .map(|i| format!("{},host,0,Write,{},4096,100\n", 10 * i, i * i * 7919 % 99_991 * 4096))
        .collect();
    fs::write(place.path("all.csv"), &lines).unwrap();
    for (compressor, ending) in [("gzip", "gz"), ("xz", "xz"), ("zstd", "zst"), ("bzip2", "bz2")] {
        let Some(compressor) = crate::common::tool("cut-off traces", compressor) else { continue };
        let whole = Command::new(compressor).arg("-c").arg(place.path("all.csv")).output().unwrap().stdout;
        let name = format!("cut.csv.{ending}");
        let cut = &whole[..whole.len() * 3 / 4];
        let output = summary(&place, &name, cut);
        expect(&output, 1, "damaged or was cut off");
        expect(&output, 1, "--skip-bad uses what comes before");
        let output = of_file(&place, &name, cut, &["trace", "convert", "--skip-bad", &name, "good.msr"]);
        expect(&output, 0, "damaged or was cut off");
        let good = fs::read_to_string(place.path("good.msr")).unwrap();
        let count = good.lines().count();
        assert!(count > 10_000 && count < 60_000, "{ending}: {count}");
        // Every record is one of the trace: the last was not shortened.
        for (line, original) in good.lines().zip(lines.lines()) {
            assert_eq!(line.replace(",dcd,", ",host,"), original);
        }
    }
}

#[test]
fn a_cpu_without_a_file_is_told() {
    let place = Place::new();
    fs::write(place.path("a.csv"), MSR).unwrap();
    let mut convert = trace(&["convert", "a.csv", "a.blktrace"]);
    expect(&convert.current_dir(place.dir.path()).output().unwrap(), 0, "");
    for cpu in [1, 3] {
        fs::copy(place.path("a.blktrace"), place.path(&format!("sda.blktrace.{cpu}"))).unwrap();
    }
    let summarise = |name: &str| trace(&["summarise", name]).current_dir(place.dir.path()).output().unwrap();
    let output = summarise("sda");
    expect(&output, 0, "there is no sda.blktrace.0, sda.blktrace.2: what these CPUs did");
    expect_writes(&output, 2);
    expect(&summarise("sda.blktrace.3"), 0, "only what CPU 3 did was read; of all CPUs (1 more): name sda");
}

#[test]
fn a_name_says_what_is_in_a_file() {
    let place = Place::new();
    let convert = |output: &str| of_file(&place, "a.csv", MSR, &["trace", "convert", "a.csv", output]);
    expect(&convert("o.csv"), 0, "2 records written to o.csv (csv)");
    let written = fs::read_to_string(place.path("o.csv")).unwrap();
    assert!(
        written
            .starts_with("at_ns,device,op,lba,sectors,response_ns\n12816637200000000000,0,write,0,8,10000\n")
    );
    assert!(written.ends_with(",0,read,16,8,\n"), "an unknown response time is none: {written}");
    expect(&convert("O.FIO"), 0, "(fio)");
    expect(&convert("week.2024"), 0, "(dcd)");
    for name in ["o.txt", "o.json.gz", "o.bz2"] {
        expect(&convert(name), 1, "say which format is to be in it with --to");
        assert!(!place.path(name).exists());
    }
}

#[test]
fn units_are_those_of_the_numbers_and_nothing_is_made_of_none() {
    let place = Place::new();
    let output = of_file(&place, "a.csv", MSR, &["trace", "characterise", "a.csv"]);
    expect(
        &output,
        0,
        "mean 4.00 KiB, median 4.00 KiB   response mean 0.010 ms, median 0.010 ms, p99 0.010 ms",
    );
    expect(&output, 0, "1 response times are 0, and were taken for unknown");
    expect(&output, 0, "avg KiB");
    let text = String::from_utf8(output.stdout).unwrap();
    // The read has no response time, and nothing was overwritten.
    let reads = text.lines().find(|line| line.starts_with("reads")).unwrap();
    assert!(!reads.contains("response") && !text.contains(" KB"), "{text}");
    let row = text.lines().skip_while(|line| !line.starts_with("Table 4.5")).nth(2).unwrap();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>()[3..6], ["-", "-", "-"], "{text}");
    let output = of_file(&place, "a.csv", MSR, &["trace", "characterise", "a.csv", "--blocks-max", "0"]);
    expect(&output, 2, "a number of 1000 or more");
}
