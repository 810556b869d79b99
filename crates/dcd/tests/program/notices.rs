//! Notices that are installed with a program name every library in it, and its manual pages fit a terminal.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{dcd, tool};

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

#[test]
fn manual_pages_fit_a_terminal_of_80_columns() {
    let Some(man) = tool("the width of manual pages", "man") else { return };
    let place = tempfile::tempdir().unwrap();
    assert!(dcd().arg("man").arg(place.path()).status().unwrap().success());
    let mut pages: Vec<_> = fs::read_dir(place.path()).unwrap().map(|page| page.unwrap().path()).collect();
    pages.sort();
    assert!(pages.len() > 20, "{pages:?}");
    let mut wide = Vec::new();
    for page in &pages {
        let mut man = Command::new(&man);
        man.arg("-l").arg(page).env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8");
        let output = man.output().unwrap();
        assert!(output.status.success(), "{page:?}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("NAME"), "{page:?}: {text}");
        let name = page.file_name().unwrap().display();
        wide.extend(
            text.lines().filter(|line| line.chars().count() > 80).map(|line| format!("{name}: {line}")),
        );
    }
    assert!(wide.is_empty(), "{} lines of more than 80 columns:\n{}", wide.len(), wide.join("\n"));
}
