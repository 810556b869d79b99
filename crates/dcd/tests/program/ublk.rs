//! ublk, and the kernel's NBD client: under a kernel that has them, and what is said under one that has no ublk.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::{Place, dcd, expect, skip};

/// Path of the control device.
const CONTROL: &str = "/dev/ublk-control";

/// Parts of `scripts/ublk.sh` that are run.
const PARTS: [&str; 9] =
    ["limits", "stops", "kills", "recoveries", "attach", "nbd_kills", "grow", "queues", "removed_killed"];

/// The stack of a kernel that has lost a request. It waits so only after it has cancelled the commands of a server, which has ended: nothing
/// of dcd is left that could answer.
const REQUEST_LOST: &str = "ublk_wait_tagset_rqs_idle ublk_quiesce_work_fn";

/// A short form of `make ublk`: the limits of the device, stops that leave it, kills of the server below ext4, and one inside a recovery; what
/// `dcd attach` makes of NBD, and kills below that; a data disk that grows below both;
/// devices that are removed while their server is killed.
#[test]
fn ublk_and_nbd_under_a_kernel_that_has_them() {
    let mut run = run_parts();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    if !run.status.success() && said.contains(REQUEST_LOST) {
        println!(
            "this kernel has lost a request, and is booted once more (docs/clients.md, limits of kernels):\n{said}"
        );
        run = run_parts();
    }
    let said = String::from_utf8_lossy(&run.stdout);
    if let Some(reason) = said.lines().find_map(|line| line.strip_prefix("SKIPPED: ")) {
        return skip(reason);
    }
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
    for part in PARTS {
        assert!(said.lines().any(|line| line.starts_with(&format!("{part}: good"))), "{part}: {said}");
    }
}

fn run_parts() -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/ublk.sh");
    Command::new(script)
        .arg(dcd().get_program())
        .env("PARTS", PARTS.join(" "))
        .envs([("KILLS", "2"), ("RECOVERIES", "1"), ("REMOVALS", "1"), ("SECONDS_MAX", "700")])
        .output()
        .unwrap()
}

#[test]
fn a_kernel_without_ublk_is_told_of_with_what_helps() {
    if Path::new(CONTROL).exists() {
        return skip("a kernel without ublk is needed");
    }
    let place = Place::new();
    let stack = place.path("ublk.toml");
    let text =
        "export = \"disk\"\n[serve]\nublk = true\n[device.disk]\npath = \"disk.img\"\nsize = \"1MiB\"\n";
    fs::write(&stack, text).unwrap();
    for args in [&["serve", stack.to_str().unwrap()][..], &["ublk", "list"], &["ublk", "remove", "0"]] {
        let output = dcd().args(args).output().unwrap();
        for help in ["modprobe ublk_drv", "nbd = ", "fuse = "] {
            expect(&output, 1, help);
        }
    }
    assert!(!place.path("disk.img").exists(), "nothing was made");
}
