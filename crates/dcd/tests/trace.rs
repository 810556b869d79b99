//! `dcd trace` in a pipeline.

mod common;

use std::io::Write;
use std::process::{Command, Stdio};

use common::{Place, dcd, expect};

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
    let Ok(metadata) = std::fs::metadata(disk) else { return common::skip("no loop devices here") };
    assert!(std::os::unix::fs::FileTypeExt::is_block_device(&metadata.file_type()));
    let output = trace(&["synthesise", "--preset", "off-day", disk]).output().unwrap();
    expect(&output, 1, "it is a block device: name a file");
}
