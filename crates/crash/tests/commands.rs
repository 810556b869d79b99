//! The options of `dcd-crash` that documents and scripts name are known to the program.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Returns the refusal of options: those before --help are read, and nothing is explored.
fn refusal(options: &str) -> Option<String> {
    let words = options.split_whitespace().map(|word| match word {
        "P" => "flush",
        "N" | "SEED" => "1",
        word => word,
    });
    let output = Command::new(env!("CARGO_BIN_EXE_dcd-crash")).args(words).arg("--help").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // A sentence may name an option without its value.
    (output.status.code() == Some(2)
        && !said.contains("a value is required")
        && !said.contains("[possible values"))
    .then(|| format!("dcd-crash {options}: {said}"))
}

#[test]
fn every_option_that_is_written_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let mut all = Vec::new();
    for page in fs::read_dir(root.join("docs")).unwrap() {
        let path = page.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap().replace('\n', " ");
        for span in text.split('`').skip(1).step_by(2) {
            let of_explorer = span.strip_prefix("dcd-crash ");
            // That page leaves out the name of the program.
            all.extend(
                of_explorer
                    .or(Some(span).filter(|span| path.ends_with("explored.md") && span.starts_with("--")))
                    .map(str::to_owned),
            );
        }
    }
    let script = read("scripts/soak.sh");
    let kinds = script.split_once("kinds=(").unwrap().1.split_once("\n)").unwrap().0;
    all.extend(kinds.split('"').skip(1).step_by(2).map(str::to_owned));
    all.sort();
    all.dedup();
    assert!(all.len() > 60, "{}", all.len());
    let refusals: Vec<String> = all.iter().filter_map(|options| refusal(options)).collect();
    assert!(refusals.is_empty(), "{}", refusals.join("\n"));
    assert!(refusal("--promise flush --legz").is_some() && refusal("--raid raid6 --journal").is_none());
}
