//! Gives the program its version: that of the workspace, and in a release build from a clone the commit.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    // Tests need no commit, and would be built again after each.
    let commit = env::var("PROFILE").is_ok_and(|profile| profile == "release").then(commit).flatten();
    let commit = commit.map_or(String::new(), |commit| format!(" ({commit})"));
    println!("cargo::rustc-env=DCD_VERSION={version}{commit}");
}

/// Names the commit, with "-dirty" where files differed from it at the last commit, checkout or `git add`. None without git or its
/// directory, as in a tarball, also where that was unpacked in the clone of another project.
fn commit() -> Option<String> {
    if git(&["ls-files", "--full-name", "build.rs"])? != "crates/dcd/build.rs" {
        return None;
    }
    // HEAD changes with the branch, its log with each commit, the index with what is added.
    for file in ["HEAD", "logs/HEAD", "index"] {
        let path = git(&["rev-parse", "--git-path", file])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"])
}

fn git(arguments: &[&str]) -> Option<String> {
    // Git would otherwise write the index, and cargo would run this again.
    let output = Command::new("git").args(arguments).env("GIT_OPTIONAL_LOCKS", "0").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
}
