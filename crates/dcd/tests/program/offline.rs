//! Tests what works without a server: formatting, looking, detaching; help.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{MIB, Place, dcd, expect, original};

#[test]
fn format_keeps_the_data_disk_and_detach_leaves_no_trace() {
    let place = Place::new();
    place.format();
    assert!(place.record().exists(), "the disk has a record of its cache");
    expect(&place.run("check", &[]), 0, "no problems");
    expect(&place.run("dump", &[]), 0, "(live)");
    expect(&place.run("rescue", &["--list"]), 0, "dirty: 0 B");
    expect(&place.run("detach", &[]), 0, "detached");
    assert!(place.bare() == original(16 * MIB));
    assert!(!place.record().exists());
    expect(&place.run("detach", &[]), 0, "was detached before");
    // The disk says so itself, if its log is gone since.
    fs::rename(place.path("log.img"), place.path("away.img")).unwrap();
    expect(&place.run("detach", &[]), 0, "was detached before");
    fs::rename(place.path("away.img"), place.path("log.img")).unwrap();
    place.format();
}

#[test]
fn a_log_of_its_own_can_be_looked_at() {
    let place = Place::new();
    place.format();
    for (command, said) in [("check", "no problems"), ("dump", "(live)")] {
        expect(&dcd().arg(command).arg(place.path("log.img")).output().unwrap(), 0, said);
    }
    let output = dcd().arg("check").arg(place.path("log.img")).arg("--json").output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["state"], "stopped");
}

#[test]
fn format_refuses_what_is_worth_something() {
    let place = Place::new();
    place.format();
    expect(&place.run("format", &[]), 3, "a cache is attached to the data disk already");
    // The whole way to another log is named.
    expect(&place.run("format", &[]), 3, "to replace the log, stop the server: everything is written back");
    expect(&place.run("format", &["--force"]), 0, "");
    let place = Place::new();
    let log = fs::OpenOptions::new().write(true).open(place.path("log.img")).unwrap();
    log.write_all_at(b"\x53\xef", 1080).unwrap();
    expect(&place.run("format", &[]), 3, "its 8 MiB would be overwritten");
    expect(&place.run("format", &["--force"]), 0, "");
}

#[test]
fn a_damaged_superblock_copy_is_found_and_two_are_the_end() {
    let place = Place::new();
    place.format();
    let log = fs::OpenOptions::new().write(true).open(place.path("log.img")).unwrap();
    log.write_all_at(&[0xff; 100], 8192 + 50).unwrap();
    expect(&place.run("check", &[]), 4, "dcd: 1 problem found;");
    log.write_all_at(&[0xff; 100], 50).unwrap();
    expect(&place.run("check", &[]), 3, "");
    expect(&place.run("format", &["--force"]), 0, "");
    expect(&place.run("check", &[]), 0, "no problems");
}

#[test]
fn a_data_disk_that_takes_no_writes_gets_no_cache() {
    let place = Place::new();
    let text = fs::read_to_string(place.stack()).unwrap();
    let read_only = text.replace("path = \"data.img\"", "path = \"data.img\"\nread-only = true");
    fs::write(place.stack(), read_only).unwrap();
    expect(&place.run("format", &[]), 3, "the data disk is read only");
    assert!(!place.record().exists());
    expect(&dcd().arg("check").arg(place.path("log.img")).output().unwrap(), 3, "holds no dcd log");
}

#[test]
fn bytes_at_the_end_of_a_file_that_are_no_block_are_told_of() {
    let place = Place::new();
    let data = fs::OpenOptions::new().write(true).open(place.path("data.img")).unwrap();
    data.set_len(10_000_128).unwrap();
    let said = "the last 256 bytes of ";
    expect(&place.run("format", &[]), 0, said);
    let server = place.serve();
    assert_eq!(place.nbd().bytes, 10_000_128 / 512 * 512);
    expect(&server.stop(), 0, said);
}

#[test]
fn what_is_open_elsewhere_is_in_use() {
    let place = Place::new();
    place.format();
    let other = dcd_io::FileDevice::open(&dcd_io::FileSpec::new(place.path("log.img"))).unwrap();
    for command in ["check", "dump", "detach", "rescue", "format"] {
        expect(&place.run(command, &[]), 3, "in use");
    }
    drop(other);
    expect(&place.run("check", &[]), 0, "");
}

#[test]
fn a_stack_file_error_names_the_line() {
    let place = Place::new();
    place.write_stack("promis = \"flush\"\n");
    expect(&place.run("check", &[]), 1, "did you mean \"promise\"?");
    expect(&place.run("check", &[]), 1, "stack.toml:13:1");
}

#[test]
fn help_completions_and_manual_pages_are_generated() {
    let place = Place::new();
    expect(&dcd().arg("--help").output().unwrap(), 0, "Exit codes:");
    expect(&dcd().args(["format", "--help"]).output().unwrap(), 0, "Examples:");
    expect(&dcd().arg("stack-file").output().unwrap(), 0, "ordered-destage");
    for (shell, part) in [("bash", "complete -"), ("zsh", "#compdef dcd"), ("fish", "complete --keep-order")]
    {
        expect(&dcd().args(["completions", shell]).output().unwrap(), 0, part);
    }
    expect(&dcd().arg("man").arg(place.path("man")).output().unwrap(), 0, "");
    for page in ["dcd.1", "dcd-format.1", "dcd-serve.1", "dcd-stack.5"] {
        assert!(fs::read_to_string(place.path("man").join(page)).unwrap().contains(".TH"), "{page}");
    }
    // They name documents by their pages, or where they are installed.
    for page in fs::read_dir(place.path("man")).unwrap().flatten() {
        let text = fs::read_to_string(page.path()).unwrap().replace("share/doc/dcd/docs/", "");
        assert!(!text.contains("docs/"), "{:?}", page.path());
    }
    let create = fs::read_to_string(place.path("man/dcd-create.1")).unwrap();
    let synopsis = create.split(".SH ").find(|part| part.starts_with("SYNOPSIS")).unwrap();
    assert!(synopsis.contains("\\-\\-data <PATH>"), "values are named: {synopsis}");
}

#[test]
fn uninstall_removes_what_install_put_there() {
    let place = Place::new();
    let built = Path::new(env!("CARGO_BIN_EXE_dcd")).parent().unwrap();
    let make = |target: &str| {
        let mut make = Command::new("make");
        make.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        make.args(["-s", target, "CARGO=:", &format!("BUILT={}", built.display())]);
        make.arg(format!("DESTDIR={}", place.path("root").display()));
        expect(&make.output().unwrap(), 0, "");
        let files = Command::new("find").arg(place.path("root")).args(["-type", "f"]).output().unwrap();
        String::from_utf8(files.stdout).unwrap()
    };
    let files = make("copy-dcd");
    for file in ["bin/dcd\n", "man7/dcd-runbook.7\n", "rules.d/63-z-dcd.rules\n"] {
        assert!(files.contains(file), "{file} of {files}");
    }
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    let installed = place.path("root/usr/local/bin/dcd");
    assert!(size(&installed) < size(&built.join("dcd")) / 2, "debug lines are not installed");
    assert_eq!(make("uninstall"), "");
}

#[test]
fn wrong_usage_and_no_server_have_their_codes() {
    let place = Place::new();
    expect(&dcd().arg("explode").output().unwrap(), 2, "unrecognized subcommand");
    expect(&dcd().args(["format", "--log", "x"]).output().unwrap(), 2, "--data");
    expect(
        &dcd().args(["format", "--log", "x", "--data", "y", "--log-size", "1 parsec"]).output().unwrap(),
        2,
        "64MiB",
    );
    expect(&place.run("status", &[]), 1, "not served. Start it with: dcd serve");
    expect(&place.run("flush", &[]), 1, "is the stack served?");
}

#[test]
fn a_reader_that_goes_is_no_failure_and_a_full_disk_is_one() {
    for args in [&["stack-file"][..], &["completions", "bash"]] {
        let mut child = dcd().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        expect(&output, 0, "");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = dcd().args(args).stdout(full).stderr(Stdio::piped()).output().unwrap();
        expect(&output, 1, "standard output: No space left");
    }
}

#[test]
fn commands_of_the_laboratory_go_there_or_say_what_to_install() {
    let place = Place::new();
    let program = place.path("dcd");
    fs::hard_link(dcd().get_program(), &program).unwrap();
    let run = |args: &[&str]| Command::new(&program).env("PATH", "").args(args).output().unwrap();
    for command in dcd_cli::LABORATORY {
        expect(
            &run(&[command, "x"]),
            1,
            &format!("\"{command}\" is a command of dcd-lab, which is not installed"),
        );
    }
    expect(&run(&["calibrate", "--drive=ra81"]), 1, "dcd-lab, which is not installed");
    std::os::unix::fs::symlink("/bin/echo", place.path("dcd-lab")).unwrap();
    expect(&run(&["tune", "a b", "--quiet"]), 0, "tune a b --quiet");
    expect(&run(&["help", "tune"]), 0, "help tune");
    expect(&run(&["tnue"]), 2, "unrecognized subcommand");
    expect(&run(&["help", "stauts"]), 2, "a similar subcommand exists: 'status'");
    expect(&run(&["help", "array", "ad"]), 2, "'add'");
    expect(&run(&["help", "array", "add"]), 0, "dcd array add");
}

#[test]
fn bash_completes_names_of_stacks_and_settings() {
    let place = Place::new();
    fs::create_dir(place.path("etc")).unwrap();
    for file in ["srv.toml", "srv2.toml", "mail.toml", "notes.txt"] {
        fs::write(place.path("etc").join(file), "").unwrap();
    }
    let programs = Path::new(env!("CARGO_BIN_EXE_dcd")).parent().unwrap();
    let asked = |programs: &Path, words: &[&str]| {
        let script = r#"source <(dcd completions bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
            _clap_complete_dcd dcd "${@: -1}" "${@: -2:1}"; printf '%s\n' "${COMPREPLY[@]}""#;
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let output = Command::new("bash")
            .args(["-c", script, "bash", "dcd"])
            .args(words)
            .env("PATH", path)
            .env("DCD_STACK_DIR", place.path("etc"))
            .current_dir(place.dir.path())
            .output()
            .unwrap();
        expect(&output, 0, "");
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(String::from).collect::<Vec<_>>()
    };
    let offered = |words: &[&str]| asked(programs, words);
    assert_eq!(offered(&["stat"]), ["status"]);
    assert_eq!(offered(&["status", "sr"]), ["srv", "srv2"]);
    assert_eq!(offered(&["calibrate", "--store", "ma"]), ["mail"]);
    assert_eq!(offered(&["serve", "./et"]), ["./etc/"], "a path is good, too");
    assert_eq!(offered(&["set", "srv", "high-m"]), ["high-mark"]);
    // Of a command of dcd-lab, that program is asked.
    let beside = place.path("bin");
    fs::create_dir(&beside).unwrap();
    fs::copy(programs.join("dcd"), beside.join("dcd")).unwrap();
    let lab = "#!/bin/sh\nprintf '%s\\n' $DCD_COMPLETE \"$@\"\n";
    fs::write(beside.join("dcd-lab"), lab).unwrap();
    fs::set_permissions(beside.join("dcd-lab"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(asked(&beside, &["study", "run", ""]), ["bash", "--", "dcd", "study", "run"]);
    assert_eq!(asked(&beside, &["help", "drive", "x"]), ["bash", "--", "dcd", "help", "drive", "x"]);
    assert_eq!(asked(&beside, &["status", "sr"]), ["srv", "srv2"]);
    fs::remove_file(beside.join("dcd-lab")).unwrap();
    assert_eq!(asked(&beside, &["drive", ""]), Vec::<String>::new(), "no command of dcd is offered");
}
