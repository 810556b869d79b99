//! The tests that docs/fault-model.md names exist.

use std::fs;
use std::path::Path;

fn sources(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_test_that_the_fault_model_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut all = String::new();
    sources(&root.join("crates"), &mut all);
    sources(&root.join("lab"), &mut all);
    let page = fs::read_to_string(root.join("docs/fault-model.md")).unwrap();
    let (_, tables) = page.split_once("tests that fail without them").expect("the table of rules");
    let is_name =
        |word: &&str| word.len() > 12 && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let names: Vec<&str> = tables.split('`').skip(1).step_by(2).filter(is_name).collect();
    assert!(names.len() > 35, "{}", names.len());
    for name in names {
        assert!(
            all.contains(&format!("fn {name}()")),
            "{name} is named in docs/fault-model.md, and there is no such test"
        );
    }
    for rule in 1..=14 {
        assert!(tables.contains(&format!("`rule_{rule:02}_")), "rule {rule} has no test");
    }
}
