//! The commands in the documents' blocks of code do what the documents say: each block is run, in order, on a machine of files.
//! With `DCD_DOCUMENTS=arrays` only documents with that in their name are, and `--nocapture` shows what the commands print.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{MIB, skip, tool};

/// Commands of other programs that need more than files: they do nothing here, and succeed.
const FOREIGN: &str = "mount umount systemctl modprobe make virsh docker docker-compose podman systemd-tmpfiles kubectl qm pvesm pvcreate vgcreate lvextend \
                       blktrace qemu-nbd nbdkit fence_ipmilan backup.sh";

/// The state that commands need: a part of the document's name, the heading or the first line of the block, and what is run before it.
const BEFORE: &[(&str, &str, &str)] = &[
    (
        "administration",
        "lvextend -L +100G vg/data",
        "sed -i 's|^nbd = .*|fuse = \"/run/image\"|' disk.toml; mkdir /run/image; dcd format disk.toml && dcd serve disk.toml",
    ),
    (
        "administration",
        "dcd flush disk.toml",
        "dcd attach --release disk.toml; cp disk.toml ~/old.toml; sed -i s/part3/part5/ disk.toml; truncate -s 32M \
         /dev/disk/by-id/nvme-FAST-part5",
    ),
    (
        "arrays",
        "Watch one",
        "dcd serve raid.toml && until dcd array status raid.toml | grep good; do sleep 0.1; done",
    ),
    ("arrays", "Check the parity", "until dcd array status raid.toml | grep good; do sleep 0.1; done"),
    (
        "arrays",
        "Find an array whose stack file is lost",
        "head -c 65536 /dev/zero > x; nbdcopy x 'nbd+unix:///?socket=/run/dcd/raid.sock'; dcd stop raid.toml; rm raid.toml; \
         for disk in 0b 1c 2d 3e; do ln -s disk/by-id/ata-DISK${disk:0:1} /dev/sd${disk:1}; done; \
         ln -sf disk/by-id/nvme-FAST-part4 /dev/nvme0n1p4",
    ),
    ("clients", "Attach", "truncate -s 32M log && dcd create disk --data /dev/disk/by-id/ata-SLOW --log log"),
    ("docker", "dcd in a container of Docker or Podman", "jq() { :; }"),
    ("docker", "export DATA=", "formatted srv"),
    ("kubernetes", "modprobe ublk_drv", "truncate -s 32M LOG && truncate -s 64M DATA"),
    ("monitoring", "# dcd doctor", "formatted disk && mv log away"),
    (
        "monitoring",
        "# curl",
        "mv away log; sed -i 's/^.serve.$/&\\nmetrics = \"tcp:9850\"/' disk.toml; dcd serve disk.toml",
    ),
    (
        "remote",
        "dcd serve --take-over",
        "formatted disk && DCD_MACHINE=other dcd serve disk.toml && kill -KILL $(cat /run/server)",
    ),
    (
        "several-disks",
        "Add and remove disks",
        "sed -i 's|^ublk = true|nbd = \"unix:/run/dcd/pool.sock\"|' pool.toml; dcd format pool.toml && dcd serve pool.toml",
    ),
    (
        "traces",
        "dcd trace convert mine.txt",
        "for i in {1..9}; do echo $i.5 disk W ${i}4096 8 120; done > mine.txt",
    ),
    ("traces", "dcd serve disk.toml --record", "formatted disk"),
    (
        "traces",
        "dcd tune /var/tmp/week.dcd",
        "for i in {1..400}; do echo $((i / 7)).5 disk W $((i * 7919 % 4096))0000 8 120; done > t.txt; rm /var/tmp/week.dcd; \
         dcd trace convert t.txt /var/tmp/week.dcd --columns time:s,device,op,offset:sectors,size:sectors,latency:us",
    ),
    (
        "traces",
        "dcd simulate plain.toml",
        "cp week/simulate.toml plain.toml; cp week/simulate.toml cached.toml; cp /var/tmp/week.dcd .",
    ),
    ("traces", "dcd simulate cached.toml", "printf 'size = \"4KiB\"\nrequests = 50\n' > mine.toml"),
    (
        "drives",
        "dcd drive validate",
        "for i in {1..99}; do echo R Miss ${i}0000 8 4000.5 100; done | tee {atlas10k,barracuda,atlas_III,hp_c2247a}.trace.gz",
    ),
];

/// Commands that are not run, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("dcd study run", "it takes hours"),
    ("blktrace -d", "it needs a block device"),
    ("virsh dumpxml", "it needs libvirt"),
];

/// A block of code: line of the document, heading above, language, text without the block's indentation.
struct CodeBlock {
    line: usize,
    section: String,
    language: String,
    text: Vec<String>,
}

fn blocks(document: &str) -> Vec<CodeBlock> {
    let (mut found, mut section, mut open) = (Vec::new(), String::new(), None::<(CodeBlock, usize)>);
    for (i, line) in document.lines().enumerate() {
        let code = line.trim_start();
        match (&mut open, code.strip_prefix("```")) {
            (None, Some(language)) => {
                let (section, language) = (section.clone(), language.to_owned());
                let block = CodeBlock { line: i + 2, section, language, text: Vec::new() };
                open = Some((block, line.len() - code.len()));
            }
            (Some(_), Some(_)) => found.extend(open.take().map(|(block, _)| block)),
            (Some((block, indent)), None) => {
                block.text.push(line.get(*indent..).unwrap_or_default().to_owned());
            }
            (None, None) => {
                if let Some(heading) = line.strip_prefix('#') {
                    section = heading.trim_start_matches('#').trim().to_owned();
                }
            }
        }
    }
    found
}

/// A command, and the output that the document shows.
struct Step {
    line: usize,
    command: String,
    output: Option<String>,
}

/// The commands of a block. In one with outputs each command has the prompt of root.
fn steps(block: &CodeBlock) -> Vec<Step> {
    let prompted =
        |line: &String| line.starts_with("# ") && line[2..].starts_with(|c: char| c.is_ascii_lowercase());
    let has_outputs = block.text.iter().any(prompted);
    let (mut steps, mut goes_on) = (Vec::<Step>::new(), false);
    for (i, line) in block.text.iter().enumerate() {
        let continued = std::mem::replace(&mut goes_on, line.ends_with('\\'));
        let text = line.strip_suffix('\\').unwrap_or(line);
        match steps.last_mut() {
            Some(step) if continued => step.command.push_str(text),
            Some(step) if has_outputs && !prompted(line) => {
                goes_on = false;
                step.output.get_or_insert_default().extend([line, "\n"]);
            }
            _ => {
                let text = if has_outputs { text.trim_start_matches("# ") } else { text };
                steps.push(Step { line: block.line + i, command: text.to_owned(), output: None });
            }
        }
    }
    steps.retain(|step| !step.command.trim().is_empty());
    steps
}

/// The words of an output: numbers with their units, names of block devices and UUIDs differ from run to run.
fn masked(output: &str) -> Vec<String> {
    const UNITS: [&str; 14] =
        ["B", "KiB", "MiB", "GiB", "B/s", "KiB/s", "MiB/s", "GiB/s", "us", "ms", "s", "min", "h", "days"];
    let mut words = Vec::<String>::new();
    for word in output.split_whitespace() {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
        if UNITS.contains(&bare) && words.last().is_some_and(|last| last.ends_with('0')) {
            *words.last_mut().unwrap() = word.replacen(bare, "0", 1);
            continue;
        }
        let is_uuid = bare.len() == 36 && bare.matches('-').count() == 4;
        if is_uuid {
            words.push(word.replacen(bare, "UUID", 1));
            continue;
        }
        let (mut text, mut in_number) = (String::new(), false);
        for c in word.chars() {
            let belongs = c.is_ascii_digit() || (in_number && (c == '.' || c == ','));
            if !belongs {
                text.push(c);
            } else if !in_number {
                text.push('0');
            }
            in_number = belongs;
        }
        // "12,": the comma is not of the number.
        if word.ends_with([',', '.']) && text.ends_with('0') {
            text.extend(word.chars().last());
        }
        words.push(
            ["nbd0", "loop0", "ublkb0"].iter().fold(text, |text, device| text.replace(device, "DEVICE")),
        );
    }
    words
}

/// True if the output is what the document shows, where "..." is any part.
fn is_shown(shown: &str, output: &str) -> bool {
    fn matches(shown: &[String], output: &[String]) -> bool {
        match shown.split_first() {
            None => output.is_empty(),
            Some((dots, rest)) if dots == "..." => {
                (0..=output.len()).any(|skip| matches(rest, &output[skip..]))
            }
            Some((word, rest)) => output.first() == Some(word) && matches(rest, &output[1..]),
        }
    }
    matches(&masked(shown), &masked(output))
}

/// Paths in /dev that a text names.
fn devices(text: &str) -> BTreeSet<&str> {
    let names = text.match_indices("/dev/").map(|(at, _)| {
        let end = text[at..].find(|c: char| !(c.is_ascii_alphanumeric() || "/-".contains(c)));
        &text[at..end.map_or(text.len(), |end| at + end)]
    });
    let kinds = ["/dev/disk/by-id/", "/dev/nvme", "/dev/sd", "/dev/vg/"];
    names.filter(|name| kinds.iter().any(|kind| name.starts_with(kind) && name.len() > kind.len())).collect()
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The steps of a document, and a script that makes its devices and stack files and takes the steps.
fn script_of(name: &str, document: &str) -> (Vec<Step>, String) {
    let (mut all, mut script) = (Vec::new(), String::new());
    for device in devices(document) {
        let size = if device.contains("nvme") { 32 } else { 64 } * MIB;
        let _ = writeln!(script, "truncate -s {size} {device}");
    }
    let mut begun = BTreeSet::new();
    for block in blocks(document) {
        let is_first = begun.insert(block.section.clone());
        let before = BEFORE.iter().filter(|(of, at, _)| {
            name.contains(of) && (is_first && *at == block.section || block.text[0].starts_with(at))
        });
        let before = before.map(|(.., commands)| (*commands).to_owned());
        let mut taken: Vec<Step> =
            before.map(|command| Step { line: block.line, command, output: None }).collect();
        let text = block.text.join("\n");
        let control =
            text.split_once("control = \"/run/dcd/").and_then(|(_, rest)| rest.split_once(".control"));
        match (block.language.as_str(), control) {
            ("toml", Some((stack, _))) => {
                let _ = writeln!(script, "printf %s {} > /etc/dcd/{stack}.toml", quoted(&text));
            }
            ("console", _) => taken.extend(steps(&block)),
            _ => {}
        }
        taken.retain(|step| !NOT_RUN.iter().any(|(part, _)| step.command.contains(part)));
        taken.iter().for_each(|step| {
            // A server is in the background here, too, and the next command waits until clients can connect.
            let command = step.command.trim_end_matches(" &");
            let _ = writeln!(script, "step {} {}", step.line, quoted(command));
        });
        all.extend(taken);
    }
    (all, script)
}

/// Runs the blocks of a document, and returns what is wrong.
fn faults(name: &str, document: &str, root: &Path) -> Vec<String> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (steps, script) = script_of(name, document);
    symlink(root.join("examples"), dir.path().join("examples")).unwrap();
    let beside = format!(
        "ln -s {0}/examples .\ncp {1}/*.conf {1}/*.xml . 2> /dev/null\n",
        dir.path().display(),
        root.join(name).parent().unwrap().display()
    );
    let commands = dir.path().join("commands");
    fs::write(&commands, beside + &script).unwrap();
    let output = Command::new("timeout")
        .args(["120", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "bash"])
        .arg(root.join("lab/dcd-lab/tests/lab_program/documents.sh"))
        .args([dir.path(), Path::new(env!("CARGO_BIN_EXE_dcd-lab")), &commands])
        .env("FOREIGN", FOREIGN)
        .env("PATH", std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin")
        .output()
        .unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if std::env::var_os("DCD_DOCUMENTS").is_some() {
        println!("==== {name}\n{said}");
    }
    let results: Vec<&str> = said.split("\n@step ").skip(1).collect();
    let fault = |(i, step): (usize, &Step)| {
        let said = results.get(i).and_then(|result| result.split_once('\n')?.1.split_once("\n@exit "));
        let (said, exit) = said.unwrap_or((&errors, "none: it did not end"));
        let is_right = match &step.output {
            // A command whose output is shown may say by its exit code what the output says.
            Some(shown) => is_shown(shown, said),
            None => exit.trim() == "0",
        };
        (!is_right).then(|| format!("{name}:{}: {}: exit {}\n{said}", step.line, step.command, exit.trim()))
    };
    steps.iter().enumerate().filter_map(fault).collect()
}

/// The documents with commands for users.
fn documents(root: &Path) -> Vec<PathBuf> {
    let in_folder = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> = in_folder(root.join("docs")).collect();
    all.extend(in_folder(root.join("examples")).map(|example| example.join("README.md")));
    all.push(root.join("README.md"));
    all.retain(|path| path.extension().is_some_and(|is| is == "md") && path.exists());
    all.sort();
    all
}

#[test]
fn the_commands_of_the_documents_do_what_is_written() {
    let test = "the_commands_of_the_documents";
    if ["ip", "curl", "jq", "nbdcopy", "losetup"].iter().any(|name| tool(test, name).is_none()) {
        return;
    }
    let script =
        "test $(id -u) = 0 && test -w /dev/fuse && losetup -f && unshare --mount --net --pid --fork true";
    if !Command::new("sh").args(["-c", script]).output().is_ok_and(|output| output.status.success()) {
        return skip(&format!("{test}: needs root, namespaces, FUSE and loop devices"));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let wanted = std::env::var("DCD_DOCUMENTS").unwrap_or_default();
    let mut all = Vec::new();
    for path in documents(root) {
        let name = path.strip_prefix(root).unwrap().to_str().unwrap();
        if name.contains(&wanted) {
            all.extend(faults(name, &fs::read_to_string(&path).unwrap(), root));
        }
    }
    assert!(all.is_empty(), "{} commands are wrong:\n{}", all.len(), all.join("\n\n"));
}

#[test]
fn outputs_are_compared_without_numbers() {
    assert!(is_shown("array ... 189 MiB over\n4 members", "array 12, 1.5 GiB over 4 members\n"));
    assert!(is_shown("/dev/nbd0", "/dev/loop12"));
    assert!(is_shown("in use, event counter 2", "in use, event counter 17"));
    assert!(!is_shown("4 members", "4 disks") && !is_shown("a", "a b") && !is_shown("a b", "a"));
}
