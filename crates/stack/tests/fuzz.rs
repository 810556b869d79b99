//! Stack files that were damaged: each is read, or refused with its name and the place. It takes a second, or
//! `BOLERO_RANDOM_TEST_TIME_MS`; `cargo bolero test -p dcd-stack damaged_stack_files_are_read_or_refused` takes hours.

use std::path::Path;

use bolero::TypeGenerator;
use dcd_stack::StackFile;

const WHOLE: &str = r#"export = "cache"

[device.log]
path = "log.img"
size = "1GiB"
[device.a]
path = "/dev/disk/by-id/ata-1"
[device.b]
path = "nbd+unix:///b?socket=/run/b.sock"
timeout = "30s"
[device.c]
memory = "64MiB"

[layer.array]
kind = "raid"
level = "raid5"
of = ["a", "b", "c"]
strip = "64KiB"
journal = "none"
pass-rate = "10MiB"

[layer.cache]
kind = "log-cache"
log = "log"
data = "array"
promise = "ordered"
delay-max = "500ms"
when = "high-low"
high-mark = 80
low-mark = 40
idle-empty = "250ms"
destage-window = ["02:00-05:00", "Sat 00:00-24:00"]
wear-budget = "50GB/day"

[serve]
nbd = ["unix:/run/dcd/srv.sock", "tcp:10809"]
nbd-allow-local-users = true
nbd-recovery = true
vhost-user = "unix:/run/dcd/vm.sock"
control = "/run/dcd/srv.control"
"#;

const ODD: [&str; 14] = [
    "-1",
    "18446744073709551615",
    "9223372036854775808",
    "1e308",
    "nan",
    "\"\"",
    "\"\\u0000\"",
    "[[]]",
    "{}",
    "\"1 parsec\"",
    "\"16EiB\"",
    "1979-05-27",
    "\"25:00-26:00\"",
    "[\"cache\", \"cache\"]",
];

/// A change of the lines of a file.
#[derive(Debug, TypeGenerator)]
enum Damage {
    Drop(u8),
    Double(u8, u8),
    /// Another value for a field: one of another field, or an odd one.
    Value(u8, u8),
    Odd(u8, u8),
    Byte(u16, u8),
    Cut(u16),
}

fn damaged(damages: &[Damage]) -> Vec<u8> {
    let mut lines: Vec<String> = WHOLE.lines().map(str::to_owned).collect();
    let value = |line: &str| line.split_once(" = ").map(|(_, value)| value.to_owned());
    for damage in damages {
        let count = lines.len().max(1);
        let at = |index: u8| usize::from(index) % count;
        match *damage {
            _ if lines.is_empty() => break,
            Damage::Drop(line) => drop(lines.remove(at(line))),
            Damage::Double(line, to) => lines.insert(at(to), lines[at(line)].clone()),
            Damage::Value(line, from) => {
                let other = WHOLE.lines().nth(usize::from(from) % WHOLE.lines().count()).unwrap();
                replace(&mut lines[at(line)], value(other));
            }
            Damage::Odd(line, odd) => {
                replace(&mut lines[at(line)], Some(ODD[usize::from(odd) % ODD.len()].to_owned()))
            }
            Damage::Byte(..) | Damage::Cut(_) => {}
        }
    }
    let mut bytes = lines.join("\n").into_bytes();
    for damage in damages {
        let len = bytes.len().max(1);
        match *damage {
            Damage::Byte(at, byte) if !bytes.is_empty() => bytes[usize::from(at) % len] = byte,
            Damage::Cut(at) => bytes.truncate(usize::from(at) % len),
            _ => {}
        }
    }
    bytes
}

fn replace(line: &mut String, value: Option<String>) {
    if let Some((name, value)) = line.split_once(" = ").map(|(name, _)| name.to_owned()).zip(value) {
        *line = format!("{name} = {value}");
    }
}

#[test]
fn damaged_stack_files_are_read_or_refused() {
    StackFile::parse(WHOLE, Path::new("whole.toml")).expect("it is whole");
    bolero::check!().with_type().for_each(|damages: &Vec<Damage>| {
        let bytes = damaged(&damages[..damages.len() % 6]);
        let Ok(text) = std::str::from_utf8(&bytes) else { return };
        if let Err(error) = StackFile::parse(text, Path::new("damaged.toml")) {
            let told = error.to_string();
            assert!(told.starts_with("damaged.toml"), "{told}");
        }
    });
}
