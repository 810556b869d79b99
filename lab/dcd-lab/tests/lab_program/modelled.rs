//! Modelled disks and drives: simulated, calibrated, and served as real ones are; and recordings, which `dcd trace` reads.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{MIB, Place, Server, dcd, expect, skip};
use serde_json::Value;

const QUICK: [&str; 4] = ["--span", "4MiB", "--strides", "2,8,32"];

fn json(output: &Output) -> Value {
    expect(output, 0, "");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A disk in memory: nothing but the recording is written to a file.
fn in_memory() -> Place {
    let place = Place::new();
    let text = "export = \"data\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n[device.data]\nmemory = \"16MiB\"\n";
    fs::write(place.stack(), text).unwrap();
    place
}

fn status(place: &Place) -> serde_json::Value {
    // A disk that takes no writes is no reason to say nothing.
    let output = place.run("status", &["--json"]);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_modelled_drive_gives_the_same_curve_each_time() {
    let run = |drive: &str| {
        json(&dcd().args(["calibrate", "--json", "--drive", drive]).args(QUICK).output().unwrap())
    };
    let cheetah = run("cheetah-15k4");
    assert_eq!(cheetah, run("cheetah-15k4"));
    let kept = include_str!("../../../../crates/dcd/tests/program/cheetah-15k4.json");
    assert_eq!(cheetah, serde_json::from_str::<Value>(kept).unwrap(), "what tests of dcd take for it");
    assert_eq!(cheetah["write"]["max"], 32, "{cheetah}");
    assert_eq!(cheetah["write"]["except"], serde_json::json!([]));
    assert!(cheetah["write"]["curve"][0][1].as_f64().unwrap() > 2.0, "{cheetah}");
    assert_eq!(run("nearline-2018")["write"]["max"], 1, "a drive that loses nothing fills nothing");
    let output = dcd().args(["calibrate", "--drive", "no-such-drive"]).output().unwrap();
    expect(&output, 1, "no drive is called \"no-such-drive\"");
}

#[test]
fn an_interrupted_flush_stops_and_loses_nothing() {
    let place = Place::new();
    // The data disk is a modelled one, and large: bringing blocks home from all over it takes a while.
    fs::File::create(place.path("data.img")).unwrap().set_len(2048 * MIB).unwrap();
    let text = "export = \"cache\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n\
        [device.log]\npath = \"log.img\"\n[device.data]\npath = \"data.img\"\n\
        [layer.disk]\nkind = \"disk\"\nof = \"data\"\ndrive = \"barracuda-1996\"\n\
        [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"disk\"\n\
        destage-memory = \"64KiB\"\nwhen = \"when-full\"\nhigh-mark = 100\n";
    fs::write(place.stack(), text).unwrap();
    place.format();
    let server = place.serve();
    let mut nbd = place.nbd();
    for i in 0..1000u64 {
        nbd.write((i * 1237 % 2048) * MIB, &[i as u8; 4096]).unwrap();
    }
    nbd.flush().unwrap();
    let before = status(&place)["layers"]["cache"]["dirty_bytes"].as_u64().unwrap();
    assert!(before >= 1000 * 4096 / 2, "{before}");
    let flush = dcd().arg("flush").arg(place.stack()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while status(&place)["layers"]["cache"]["dirty_bytes"].as_u64().unwrap() == before {
        assert!(began.elapsed() < Duration::from_secs(20), "the flush begins");
        std::thread::sleep(Duration::from_millis(10));
    }
    crate::common::signal(&flush, "TERM");
    expect(&flush.wait_with_output().unwrap(), 1, "interrupted: nothing is lost");
    // Once what was on its way has arrived, nothing more goes home.
    let settled = |place: &Place| {
        let mut last = status(place)["layers"]["cache"]["dirty_bytes"].as_u64().unwrap();
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let now = status(place)["layers"]["cache"]["dirty_bytes"].as_u64().unwrap();
            if now == last {
                return now;
            }
            last = now;
            assert!(began.elapsed() < Duration::from_secs(60), "the flush stops");
        }
    };
    assert!(settled(&place) > 0, "it was stopped before its end");
    for i in 900..1000u64 {
        assert_eq!(nbd.read((i * 1237 % 2048) * MIB, 4096).unwrap(), [i as u8; 4096]);
    }
    expect(&server.stop(), 0, "");
}

/// The scheduling policies of a server's threads, by their names: field 41 of proc(5), /proc/pid/stat.
fn policies(server: &Server) -> Vec<(String, u32)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
    let policy = |task: std::io::Result<fs::DirEntry>| {
        let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        let (name, rest) = stat.split_once('(').unwrap().1.rsplit_once(')').unwrap();
        (name.to_owned(), rest.split_whitespace().nth(38).unwrap().parse().unwrap())
    };
    tasks.map(policy).collect()
}

#[test]
fn a_server_of_a_spinning_disk_runs_as_soon_as_it_has_work_and_one_with_a_fast_log_as_others_do() {
    let may = Command::new("chrt").args(["-r", "1", "true"]).status();
    if !may.is_ok_and(|status| status.success()) {
        return skip("no real-time priority may be had, or no chrt");
    }
    const SCHED_RR: u32 = 2;
    let disk = "export = \"disk\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n\
        [device.data]\nmemory = \"64MiB\"\n[layer.disk]\nkind = \"disk\"\nof = \"data\"\ndrive = \"nearline-2018\"\n";
    let place = Place::new();
    fs::write(place.stack(), disk).unwrap();
    let server = place.serve();
    let policies_of = policies(&server);
    assert_eq!(policies_of.iter().filter(|(_, policy)| *policy == SCHED_RR).count(), 1, "{policies_of:?}");
    expect(&server.stop(), 0, "");
    let cached = disk.replace("export = \"disk\"", "export = \"cache\"")
        + "[device.log]\npath = \"log.img\"\n[layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"disk\"\n";
    fs::write(place.stack(), cached.replace("memory = \"64MiB\"", "path = \"data.img\"")).unwrap();
    place.format();
    let server = place.serve();
    let log_spins = status(&place)["layers"]["cache"]["log_head"] != "not-rotational";
    let policies_of = policies(&server);
    let prompt = policies_of.iter().any(|(_, policy)| *policy == SCHED_RR);
    assert_eq!(prompt, log_spins, "{policies_of:?}");
    expect(&server.stop(), 0, "");
}

/// On tracks of 2 MiB, small records take places at multiples of their size.
#[test]
fn a_log_whose_head_is_followed_has_all_that_was_flushed() {
    let place = Place::new();
    fs::File::create(place.path("disk.img")).unwrap().set_len(256 * MIB).unwrap();
    let text = "export = \"cache\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n\
        [device.image]\npath = \"disk.img\"\n\
        [layer.disk]\nkind = \"disk\"\nof = \"image\"\ndrive = \"nearline-2018\"\n\
        [layer.log]\nkind = \"slice\"\nof = \"disk\"\nsize = \"64MiB\"\n\
        [layer.data]\nkind = \"slice\"\nof = \"disk\"\nfirst = \"64MiB\"\n\
        [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"data\"\nwhen = \"when-full\"\n";
    fs::write(place.stack(), text).unwrap();
    // Other work on the machine may hide the head.
    let finds_head = |_| {
        let output = place.run("format", &["--force"]);
        expect(&output, 0, "");
        String::from_utf8_lossy(&output.stdout).contains("the log's disk turns in")
    };
    if !(0..5).any(finds_head) {
        return skip("the machine is too busy to find the head of a disk");
    }
    let server = place.serve();
    let mut nbd = place.nbd();
    for i in 0..200_u64 {
        nbd.write(i * 31 % 190 * MIB, &[i as u8; 4096]).unwrap();
        nbd.flush().unwrap();
    }
    drop(nbd);
    expect(&server.stop(), 0, "");
    expect(&place.run("check", &[]), 0, "");
    let server = place.serve();
    let mut nbd = place.nbd();
    for i in 10..200_u64 {
        assert_eq!(nbd.read(i * 31 % 190 * MIB, 4096).unwrap(), [i as u8; 4096], "{i}");
    }
    drop(nbd);
    expect(&server.stop(), 0, "");
    expect(&place.run("detach", &[]), 0, "detached");
}

#[test]
fn a_simulation_is_repeated_by_its_seed() {
    let place = Place::new();
    let text = "export = \"disk\"\n[device.image]\nmemory = \"64MiB\"\n[layer.disk]\nkind = \"disk\"\nof = \"image\"\n\
                drive = \"barracuda-1996\"\n";
    fs::write(place.stack(), text).unwrap();
    let run = |workload: &str, seed: &str| {
        let more = ["--workload", workload, "--requests", "300", "--seed", seed, "--json"];
        let output = place.run("simulate", &more);
        expect(&output, 0, "");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["stacks"][0].clone()
    };
    for workload in ["random-writes", "fsync-writes", "mixed", "sequential"] {
        let (one, again, other) = (run(workload, "1"), run(workload, "1"), run(workload, "2"));
        assert_eq!(one["trace_hash"], again["trace_hash"], "{workload}");
        assert!(workload == "sequential" || one["trace_hash"] != other["trace_hash"], "{workload}");
        let count = |kind: &str| one["requests"][kind]["count"].as_u64().unwrap();
        assert_eq!(count("read") + count("write") + count("flush"), 300);
    }
}

#[test]
fn a_recording_that_reaches_the_limit_on_file_sizes_ends_readable() {
    let place = in_memory();
    let recording = place.path("seen.dcd");
    let Some(prlimit) = crate::common::tool("a limit on file sizes", "prlimit") else { return };
    let mut command = Command::new(prlimit);
    // Room for one block of the trace, and not for the second.
    command.arg("--fsize=100000").arg(dcd().get_program()).args(["serve", "--quiet"]);
    command.arg(place.stack()).arg("--record").arg(&recording);
    let mut server = Server { child: command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap() };
    let mut line = String::new();
    BufReader::new(server.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let mut nbd = place.nbd();
    let requests = 20_000u64;
    for i in 0..requests {
        nbd.write(i * 7919 % 32768 * 512, &[1; 512]).unwrap();
    }
    nbd.disconnect().unwrap();
    let output = server.stop();
    expect(&output, 0, "File too large (os error 27)");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let kept: u64 =
        said.split("ends here, with ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let summary = dcd().args(["trace", "summarise", "--json", "--quiet"]).arg(&recording).output().unwrap();
    expect(&summary, 0, "");
    let summary: serde_json::Value = serde_json::from_slice(&summary.stdout).unwrap();
    assert_eq!(summary["all"]["writes"]["count"], kept);
    assert!(kept > 1000 && kept < requests, "{kept}");
    assert!(said.contains(&format!("{} requests are not in it", requests + 1 - kept)), "{said}");
}

#[test]
fn a_recording_is_a_trace_of_what_clients_asked() {
    let place = Place::new();
    place.format();
    let recording = place.path("seen.dcd");
    let server = place.serve_with(&["--record", recording.to_str().unwrap()]);
    let mut nbd = place.nbd();
    for i in 0..20 {
        nbd.write(i * 4096, &[1; 4096]).unwrap();
    }
    nbd.flush().unwrap();
    nbd.read(512, 1024).unwrap();
    expect(&place.run("status", &[]), 0, "recording, 22 requests");
    nbd.disconnect().unwrap();
    let output = server.stop();
    expect(&output, 0, "");
    let trace = |command: &[&str]| {
        let output = dcd().args(command).arg(&recording).args(["--json", "--quiet"]).output().unwrap();
        expect(&output, 0, "");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let all = &trace(&["trace", "summarise"])["all"];
    // The server flushes once more before it stops.
    assert_eq!(
        (&all["writes"]["count"], &all["reads"]["count"], &all["flushes"]),
        (&20.into(), &1.into(), &2.into())
    );
    assert_eq!((&all["writes"]["bytes"], &all["out_of_order"]), (&(20 * 4096).into(), &0.into()));
    assert!(all["reads"]["response_ns"]["max"].as_u64().unwrap() > 0, "{all}");
    let tuned = trace(&["tune", "--ssd", "--log-sizes", "16MiB"]);
    assert_eq!(tuned["requests"], 23);
    // Only a recording is overwritten.
    fs::write(&recording, "dear diary").unwrap();
    expect(
        &place.run("serve", &["--record", recording.to_str().unwrap()]),
        1,
        "is neither empty nor a trace",
    );
    assert_eq!(fs::read_to_string(&recording).unwrap(), "dear diary");
}

fn stack(place: &Place, text: &str) {
    fs::write(place.stack(), text).unwrap();
}

/// An array of four members of 8 MiB with a journal, and more of its layer.
fn array(members: &str, more: &str) -> String {
    let devices =
        ["a", "b", "c", "d", "e"].map(|name| format!("[device.{name}]\nmemory = \"8MiB\"\n")).concat();
    let used = |line: &str| {
        let name = line.trim_start_matches("[device.").trim_end_matches(']');
        format!("{members}{more}").contains(&format!("\"{name}\""))
    };
    let devices: Vec<&str> =
        devices.split_inclusive("MiB\"\n").filter(|text| used(text.lines().next().unwrap())).collect();
    format!(
        "export = \"array\"\n{}[device.ssd]\nmemory = \"16MiB\"\n\
         [layer.journal]\nkind = \"slice\"\nof = \"ssd\"\nsize = \"4MiB\"\n\
         [layer.array]\nkind = \"raid\"\nof = {members}\nstrip = \"64KiB\"\njournal = \"journal\"\n{more}",
        devices.concat()
    )
}

#[test]
fn arrays_are_simulated_and_repeated_by_their_seed() {
    let place = Place::new();
    let cache = "[layer.log]\nkind = \"slice\"\nof = \"ssd\"\nfirst = \"4MiB\"\n\
                 [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"array\"\n";
    let all = "[\"a\", \"b\", \"c\", \"d\"]";
    for text in [
        array(all, ""),
        array("[\"a\", \"missing\", \"c\", \"d\"]", ""),
        array(all, "spares = [\"e\"]\n"),
        array(all, cache).replace("export = \"array\"", "export = \"cache\""),
    ] {
        stack(&place, &text);
        let run = || {
            let output = place.run("simulate", &["--workload", "mixed", "--requests", "200", "--seed", "5"]);
            expect(&output, 0, "trace hash");
            output.stdout
        };
        assert_eq!(run(), run(), "{text}");
    }
}

#[test]
fn an_array_on_caches_is_simulated() {
    let place = Place::new();
    let member = |name: &str| {
        format!(
            "[device.{name}-log]\nmemory = \"8MiB\"\n[device.{name}-disk]\nmemory = \"4MiB\"\n\
             [layer.{name}]\nkind = \"log-cache\"\nlog = \"{name}-log\"\ndata = \"{name}-disk\"\n"
        )
    };
    let members = ["a", "b", "c"].map(member).concat();
    stack(
        &place,
        &format!(
            "export = \"array\"\n{members}[layer.array]\nkind = \"raid\"\nof = [\"a\", \"b\", \"c\"]\nstrip = \"64KiB\"\n"
        ),
    );
    let args = ["--workload", "random-writes", "--requests", "2000", "--json"];
    expect(&place.run("simulate", &args), 0, "\"requests\"");
}

#[test]
fn a_simulation_writes_the_file_of_a_trace_layer() {
    let place = Place::new();
    stack(
        &place,
        "export = \"seen\"\n[device.data]\nmemory = \"16MiB\"\n\
         [layer.seen]\nkind = \"trace\"\nof = \"data\"\nfile = \"seen.trace\"\n",
    );
    for _ in 0..2 {
        expect(&place.run("simulate", &["--workload", "mixed", "--requests", "50"]), 0, "trace hash");
        assert_eq!(fs::read_to_string(place.path("seen.trace")).unwrap().lines().count(), 50);
    }
}

#[test]
fn a_simulation_without_the_memory_for_it_is_refused_in_words() {
    let place = Place::new();
    let simulated = ["--workload", "mixed", "--requests", "10"];
    place.write_stack("destage-memory = \"1000TiB\"");
    expect(&place.run("simulate", &simulated), 1, "of RAM, and this machine has");
    // A log takes RAM for its table.
    for (device, size, says) in [
        ("log", "900TiB", "of RAM, and this machine has"),
        ("data", "900TiB", "device \"data\": 900 TiB is more than can be simulated: 64 TiB at most"),
    ] {
        place.write_stack("");
        let text = fs::read_to_string(place.stack()).unwrap();
        let path = format!("path = \"{device}.img\"");
        fs::write(place.stack(), text.replace(&path, &format!("{path}\nsize = \"{size}\""))).unwrap();
        expect(&place.run("simulate", &simulated), 1, says);
    }
}

#[test]
fn a_reader_that_goes_is_no_failure_and_a_full_disk_is_one() {
    for args in [&["study", "list"][..], &["lab", "list"], &["trace", "formats"]] {
        let mut child = dcd().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        expect(&child.wait_with_output().unwrap(), 0, "");
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = dcd().args(args).stdout(full).stderr(Stdio::piped()).output().unwrap();
        expect(&output, 1, "standard output: No space left");
    }
}
