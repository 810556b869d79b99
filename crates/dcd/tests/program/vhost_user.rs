//! vhost-user: a virtual machine whose server is killed, and a stop beside one.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Place, dcd, expect, skip};

/// A short form of `make vhost`.
#[test]
fn a_virtual_machine_survives_kills_and_a_stop_of_its_server() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/vhost.sh");
    let run = Command::new(script)
        .arg(dcd().get_program())
        .envs([("KILLS", "4"), ("SECONDS_MAX", "500")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    if let Some(reason) = said.lines().find_map(|line| line.strip_prefix("SKIPPED: ")) {
        return skip(reason);
    }
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
    for part in ["features", "fio", "ext4", "disk"] {
        assert!(said.lines().any(|line| line.starts_with(&format!("{part}: good"))), "{part}: {said}");
    }
}

#[test]
fn a_stop_is_refused_while_a_machine_is_connected() {
    let place = Place::new();
    place.format();
    place.add_to_serve("vhost-user = \"unix:vm.sock\"\n");
    let server = place.serve();
    let socket = place.path("vm.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let mut machine = UnixStream::connect(&socket).unwrap();
    // GET_FEATURES: its answer tells that the server has seen the connection.
    machine.write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    machine.read_exact(&mut [0; 20]).unwrap();
    expect(&place.run("stop", &["--for-restart"]), 3, "over vhost-user");
    let told = server.stop();
    expect(
        &told,
        0,
        "If it connects again (QEMU: reconnect=1), its requests wait for the next server; if not, they fail",
    );
    assert!(!String::from_utf8_lossy(&told.stderr).contains("fails from now on"), "{told:?}");
    drop(machine);
    assert!(!socket.exists());
    let server = place.serve();
    let mut machine = UnixStream::connect(&socket).unwrap();
    machine.write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    machine.read_exact(&mut [0; 20]).unwrap();
    expect(&place.run("stop", &[]), 3, "over vhost-user");
    drop(machine);
    let end = Instant::now() + Duration::from_secs(10);
    while place.run("stop", &[]).status.code() == Some(3) {
        assert!(Instant::now() < end, "the end of the connection is not seen");
    }
    expect(&server.wait(), 0, "");
    assert!(!socket.exists());
}
