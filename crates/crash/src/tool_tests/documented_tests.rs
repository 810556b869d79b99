//! The tests that docs/safety.md names exist, and each of its rules has one. Guides are short.

use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = "docs/safety.md";

/// The sources of all crates.
pub fn sources() -> Vec<(PathBuf, String)> {
    let (mut files, mut folders) = (Vec::new(), vec![root().join("crates"), root().join("lab")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                files.push((path, text));
            }
        }
    }
    files
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// The tests that a row names in its last column.
fn tests_of(row: &str) -> Vec<&str> {
    let column = row.trim_end_matches('|').rsplit('|').next().unwrap();
    column.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_test_that_the_page_names_exists() {
    let all: String = sources().into_iter().map(|(_, text)| text).collect();
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    let (_, table) = page.split_once("## The table").expect("the table of rules and faults");
    let rows: Vec<&str> =
        table.lines().filter(|line| line.starts_with('|') && !line.contains("**")).skip(2).collect();
    assert!(rows.len() > 60, "{} rows", rows.len());
    for row in &rows {
        let tests = tests_of(row);
        assert!(!tests.is_empty(), "{PAGE} names no test in this row: {row}");
        for name in tests {
            assert!(
                all.contains(&format!("fn {name}()")),
                "{name} is named in {PAGE}, and there is no such test"
            );
        }
    }
    for rule in 1..=15 {
        let of_rule = format!("rule_{rule:02}_");
        let has_one = rows.iter().any(|row| {
            row.starts_with(&format!("| {rule} |"))
                && tests_of(row).iter().any(|name| name.starts_with(&of_rule))
        });
        assert!(has_one, "rule {rule} has no test in {PAGE}");
    }
}

/// Characters of a line, and lines, that a guide has at most.
const WIDTH: usize = 100;
const GUIDE: usize = 250;

/// Pages that are no guides: as long and as wide as what they list.
const REFERENCES: [&str; 6] =
    ["benchmarks.md", "drive-file.md", "experiments.md", "explored.md", "format.md", "safety.md"];

#[test]
fn every_guide_is_short() {
    let root = root();
    let mut guides = [("README.md", 150), ("ARCHITECTURE.md", 200), ("CONTRIBUTING.md", GUIDE)]
        .map(|(name, most)| (root.join(name), most))
        .to_vec();
    for entry in fs::read_dir(root.join("docs")).unwrap() {
        let path = entry.unwrap().path();
        let is_reference = REFERENCES.iter().any(|name| path.ends_with(name));
        if path.extension().is_some_and(|extension| extension == "md") && !is_reference {
            guides.push((path, GUIDE));
        }
    }
    assert!(guides.len() >= 10, "{guides:?}");
    for (path, most) in guides {
        let (text, path) = (fs::read_to_string(&path).unwrap(), path.display());
        let lines = text.lines().count();
        assert!(lines <= most, "{path} has {lines} lines, and a guide at most {most}");
        let wide = text.lines().enumerate().find(|(_, line)| line.chars().count() > WIDTH);
        assert!(wide.is_none(), "{path}: a line of a guide has at most {WIDTH} characters: {wide:?}");
    }
}
