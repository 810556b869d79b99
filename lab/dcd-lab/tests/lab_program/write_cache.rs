//! Write caches in RAM, served: with volatile RAM, and with RAM that is declared non-volatile, which is served only on purpose, is named in the
//! status, and is never the reason for a loss that a clean end could have avoided.

use std::fs;

use crate::common::{Place, Server, expect};

const CONSENT: &str = "--i-have-nvram";
const LOST: &str = "RAM, lost with the process";

/// A write cache over the data disk that writes nothing back by itself. `more`: settings, and further layers.
fn write_cache(place: &Place, export: &str, more: &str) {
    let text = format!(
        "export = \"{export}\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n\
         [device.data]\npath = \"data.img\"\n\
         [layer.ram]\nkind = \"write-cache\"\nof = \"data\"\nwhen = \"when-full\"\n{more}"
    );
    fs::write(place.stack(), text).unwrap();
}

fn status(place: &Place) -> serde_json::Value {
    let output = place.run("status", &["--json"]);
    expect(&output, 0, "");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn ram_that_is_declared_non_volatile_is_served_only_on_purpose_and_named() {
    let place = Place::new();
    write_cache(&place, "ram", "non-volatile = true\n");
    let refused = Server::start(&place, &[]).err().expect("nobody consented");
    expect(&refused, 3, "layer \"ram\" declares its RAM non-volatile");
    expect(&refused, 3, "remove \"non-volatile = true\" from [layer.ram]: a flush then destages");
    expect(&refused, 3, CONSENT);
    let server = place.serve_with(&[CONSENT]);
    let mut nbd = place.nbd();
    nbd.write(4096, &[7; 4096]).unwrap();
    nbd.flush().unwrap();
    assert_ne!(place.bare()[4096..8192], [7; 4096], "a flush is answered from RAM, as was consented to");
    let output = place.run("status", &[]);
    expect(&output, 0, &format!("ram: dirty 4 KiB, {LOST}\n"));
    expect(&output, 0, "answered: 1 write ");
    let json = status(&place);
    let ram = &json["layers"]["ram"];
    assert_eq!((&ram["type"], &ram["non_volatile"]), (&"write-cache".into(), &true.into()));
    assert_eq!(json["dirty_bytes"], 4096);
    expect(&place.run("flush", &["--quiet"]), 0, "");
    assert_eq!(place.bare()[4096..8192], [7; 4096], "dcd flush destages");
    nbd.write(8192, &[8; 4096]).unwrap();
    nbd.flush().unwrap();
    nbd.disconnect().unwrap();
    let stopped = server.stop();
    expect(&stopped, 0, "\"ram\": flushes are answered from RAM");
    assert_eq!(place.bare()[8192..12288], [8; 4096], "so does a clean stop");
}

#[test]
fn ram_that_is_volatile_is_named_too_and_needs_no_consent() {
    let place = Place::new();
    write_cache(&place, "ram", "");
    let server = place.serve();
    let mut nbd = place.nbd();
    nbd.write(4096, &[7; 4096]).unwrap();
    let output = place.run("status", &[]);
    expect(&output, 0, "ram: dirty 4 KiB\n");
    expect(&output, 0, "answered: 1 write ");
    nbd.flush().unwrap();
    assert_eq!(place.bare()[4096..8192], [7; 4096]);
    server.kill();
}

/// Data that an offline command reports as written back is on the disk, whatever the layers below declare.
#[test]
fn an_offline_command_takes_all_ram_for_volatile() {
    let place = Place::new();
    let cache = "non-volatile = true\n[device.log]\npath = \"log.img\"\n\
                 [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"ram\"\nwhen = \"high-low\"\n";
    write_cache(&place, "cache", cache);
    place.format();
    let server = place.serve_with(&[CONSENT]);
    let mut nbd = place.nbd();
    nbd.write(4096, &[7; 4096]).unwrap();
    nbd.flush().unwrap();
    server.kill();
    expect(&place.run("detach", &["--quiet"]), 0, "");
    assert_eq!(place.bare()[4096..8192], [7; 4096]);
}
