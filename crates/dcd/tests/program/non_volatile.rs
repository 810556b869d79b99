//! Stacks that declare RAM non-volatile: served only on purpose, named in the status, and never the reason for a loss that a clean end
//! could have avoided.

use std::fs;
use std::time::{Duration, Instant};

use crate::common::{MIB, Place, Server, dcd, expect};

const CONSENT: &str = "--i-have-nvram";
const LOST: &str = "RAM, lost with the process";

fn status(place: &Place) -> serde_json::Value {
    let output = place.run("status", &["--json"]);
    expect(&output, 0, "");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn an_array_whose_ram_is_declared_non_volatile_is_served_only_on_purpose_and_named() {
    let place = Place::new();
    let mut text =
        "export = \"array\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n".to_owned();
    for member in ["a", "b", "c"] {
        text += &format!("[device.{member}]\npath = \"{member}.img\"\nsize = \"{}\"\n", 4 * MIB);
    }
    text += "[layer.array]\nkind = \"raid\"\nof = [\"a\", \"b\", \"c\"]\njournal = \"none\"\nnon-volatile = true\n";
    fs::write(place.stack(), text).unwrap();
    expect(&dcd().args(["array", "create"]).arg(place.stack()).output().unwrap(), 0, "over 3 members");
    let refused = Server::start(&place, &[]).err().expect("nobody consented");
    expect(&refused, 3, "layer \"array\" declares its RAM non-volatile");
    let server = place.serve_with(&[CONSENT]);
    // Until its parity is computed the array is degraded.
    let deadline = Instant::now() + Duration::from_secs(60);
    while place.run("status", &[]).status.code() == Some(5) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    expect(&place.run("status", &[]), 0, LOST);
    assert_eq!(status(&place)["layers"]["array"]["non_volatile"], true);
    expect(&server.stop(), 0, "");
}
