//! The programs that people use are built without the bugs that the explorer plants.

use std::process::Command;

/// Lists the packages that one is built with, each with its features.
fn features(package: &str) -> Option<String> {
    let mut tree = Command::new(env!("CARGO"));
    let what = ["--edges", "normal", "--format", "{p} {f}", "--package", package];
    tree.args(["tree", "--locked", "--offline"]).args(what);
    let tree = tree.current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
    tree.status.success().then(|| String::from_utf8_lossy(&tree.stdout).into_owned())
}

#[test]
fn only_the_explorer_plants_bugs() {
    let Some(explorer) = features("dcd-crash") else {
        eprintln!("SKIPPED: cargo tree does not run here");
        return;
    };
    assert!(explorer.contains("planted-bugs"), "{explorer}");
    for program in ["dcd", "dcd-lab"] {
        let features = features(program).expect("cargo tree ran for the explorer");
        assert!(features.contains("dcd-engine "), "{features}");
        assert!(!features.contains("planted-bugs"), "{program} can have planted bugs: {features}");
    }
}
