//! The notices that are installed with a program name every library in it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::dcd;

/// NAME-VERSION of each library with code in a program: its debug information names the files.
fn libraries(program: &[u8]) -> BTreeSet<String> {
    let mark = b"/registry/src/";
    let at = program.windows(mark.len()).enumerate().filter(|(_, window)| window == mark);
    let names = at.filter_map(|(at, _)| {
        let rest = &program[at + mark.len()..][..200];
        let mut parts = rest.split(|byte| *byte == b'/' || *byte == 0);
        Some(String::from_utf8_lossy(parts.nth(1)?).into_owned())
    });
    names.filter(|name| name.bytes().any(|byte| byte.is_ascii_digit())).collect()
}

#[test]
fn every_library_in_the_program_has_its_notice() {
    let program = dcd().get_program().to_owned();
    let package = Path::new(&program).file_name().unwrap();
    let found = libraries(&fs::read(&program).unwrap());
    assert!(found.len() > 30, "{found:?}");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/notices.sh");
    let output = Command::new(script).arg(package).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let notices = String::from_utf8_lossy(&output.stdout).into_owned();
    let named: BTreeSet<String> = notices
        .lines()
        .filter(|line| line.contains(" ("))
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some(format!("{}-{}", words.next()?, words.next()?))
        })
        .collect();
    assert_eq!(found.difference(&named).collect::<Vec<_>>(), Vec::<&String>::new(), "they lack a notice");
    for copyright in ["Copyright", "Permission is hereby granted", "Redistribution and use"] {
        assert!(notices.contains(copyright), "{copyright}");
    }
}
