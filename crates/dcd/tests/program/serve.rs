//! Serving, without a cache: clients, the control socket, stopping, a second server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{MIB, Nbd, Place, Server, SmallFs, dcd, expect, original, skip, tool};

/// The data disk of the place, served as it is.
fn plain(more: &str) -> Place {
    let place = Place::new();
    let text = format!(
        "export = \"data\"\n[serve]\nnbd = [\"unix:nbd.sock\", \"tcp:0\"]\nnbd-allow-local-users = true\ncontrol = \"control.sock\"\n\
         [device.data]\npath = \"data.img\"\n{more}"
    );
    fs::write(place.stack(), text).unwrap();
    place
}

#[test]
fn a_plain_disk_is_served_and_stops_cleanly() {
    let place = plain("");
    let server = place.serve();
    let mut nbd = place.nbd();
    assert_eq!(nbd.bytes, 16 * MIB);
    assert!(nbd.read(MIB, 65536).unwrap() == original(16 * MIB)[MIB as usize..][..65536]);
    nbd.write(4096, &[7; 8192]).unwrap();
    nbd.write_fua(65536, &[8; 512]).unwrap();
    nbd.flush().unwrap();
    let mut second = place.nbd();
    assert_eq!(second.read(4096, 8192).unwrap(), [7; 8192], "all clients see one disk");
    assert_eq!(second.write(16 * MIB, &[0; 512]).unwrap_err().raw_os_error(), Some(28), "past the end");
    expect(&place.run("status", &[]), 0, "no cache");
    expect(&place.run("flush", &[]), 0, "");
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
    assert!(place.bare()[65536..][..512] == [8; 512]);
    assert!(!place.path("nbd.sock").exists(), "sockets are taken away");
    assert!(!place.record().exists(), "a disk without a cache has no record");
}

#[test]
fn the_disk_is_not_given_to_every_user_of_the_machine_without_a_word() {
    let place = plain("");
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace("nbd-allow-local-users = true\n", "")).unwrap();
    for command in ["serve", "doctor"] {
        let refused = place.run(command, &[]);
        let said = [refused.stdout, refused.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!refused.status.success() && said.contains("lets each user of this machine"), "{said}");
        assert!(said.contains("nbd-allow-local-users = true"), "{said}");
    }
    assert_eq!(place.run("serve", &[]).status.code(), Some(3), "the unit does not try again");
}

#[test]
fn nbd_recovery_belongs_to_nbd() {
    let place = Place::new();
    place.add_to_serve("nbd-recovery = true\n");
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace("nbd = \"unix:nbd.sock\"", "fuse = \"mnt\"")).unwrap();
    expect(&place.run("serve", &[]), 1, "\"nbd-recovery\" belongs to \"nbd\", which is missing");
}

#[test]
fn sockets_belong_to_their_user() {
    let place = plain("");
    let server = place.serve();
    for socket in ["nbd.sock", "control.sock"] {
        let mode = fs::metadata(place.path(socket)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{socket}");
    }
    expect(&server.stop(), 0, "");
}

#[test]
fn a_second_server_is_refused_and_the_first_goes_on() {
    let place = plain("");
    let server = place.serve();
    match Server::start(&place, &[]) {
        Ok(_) => panic!("a second server"),
        Err(output) => expect(&output, 1, "in use"),
    }
    place.nbd().write(0, &[1; 512]).unwrap();
    expect(&server.stop(), 0, "");
}

#[test]
fn a_server_whose_process_is_stopped_is_not_waited_for_for_ever() {
    let place = plain("");
    let server = place.serve();
    crate::common::signal(&server.child, "STOP");
    let began = Instant::now();
    for command in ["status", "flush"] {
        expect(&place.run(command, &[]), 1, "has said nothing for 10 s: its process is stopped");
    }
    assert!(began.elapsed() < Duration::from_secs(60));
    crate::common::signal(&server.child, "CONT");
    expect(&place.run("status", &[]), 0, "");
    expect(&server.stop(), 0, "");
}

#[test]
fn statistics_are_counted_and_start_again() {
    let place = plain("");
    let server = place.serve();
    let mut nbd = place.nbd();
    for _ in 0..5 {
        nbd.write(0, &[1; 4096]).unwrap();
    }
    let count = || {
        let output = place.run("status", &["--json"]);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        status["requests"]["write"]["count"].as_u64().unwrap()
    };
    assert_eq!(count(), 5);
    expect(&place.run("status", &["--reset"]), 0, "5 writes");
    assert_eq!(count(), 0);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_killed_server_leaves_nothing_in_the_way() {
    let place = plain("");
    for _ in 0..3 {
        let server = place.serve();
        place.nbd().write(0, &[1; 512]).unwrap();
        server.kill();
    }
    let server = place.serve();
    expect(&server.stop(), 0, "");
}

#[test]
fn failures_below_reach_the_client_and_only_it() {
    let fault =
        "[layer.bad]\nkind = \"fault\"\nof = \"data\"\nhits = \"writes\"\nfail-after = 1\nfail-count = 1\n";
    let place = plain(fault);
    let text = fs::read_to_string(place.stack()).unwrap().replace("export = \"data\"", "export = \"bad\"");
    fs::write(place.stack(), text).unwrap();
    let server = place.serve();
    let mut nbd = place.nbd();
    nbd.write(0, &[1; 512]).unwrap();
    assert_eq!(nbd.write(512, &[2; 512]).unwrap_err().raw_os_error(), Some(5), "EIO");
    nbd.write(512, &[3; 512]).unwrap();
    let mut other = Nbd::connect(&place.path("nbd.sock")).unwrap();
    assert_eq!(other.read(512, 512).unwrap(), [3; 512]);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_stack_that_nobody_can_reach_is_no_use() {
    let place = plain("");
    let text = fs::read_to_string(place.stack()).unwrap();
    let silent: String =
        text.lines().filter(|line| !line.starts_with("nbd")).map(|line| format!("{line}\n")).collect();
    fs::write(place.stack(), silent).unwrap();
    expect(&place.run("serve", &[]), 1, "there is no front-end");
}

#[test]
fn a_trace_layer_shows_and_writes_down_what_passes() {
    let trace = "[layer.seen]\nkind = \"trace\"\nof = \"data\"\nkeep = 2\nfile = \"seen.trace\"\n";
    let place = plain(trace);
    let text = fs::read_to_string(place.stack()).unwrap().replace("export = \"data\"", "export = \"seen\"");
    fs::write(place.stack(), text).unwrap();
    let server = place.serve();
    let mut nbd = place.nbd();
    nbd.write(4096, &[1; 8192]).unwrap();
    nbd.flush().unwrap();
    nbd.read(512, 1024).unwrap();
    let status: serde_json::Value = serde_json::from_slice(&place.run("status", &["--json"]).stdout).unwrap();
    let seen = &status["layers"]["seen"];
    assert_eq!((&seen["operations"], &seen["newest"][0]["operation"]), (&3.into(), &"flush".into()));
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
    let text = fs::read_to_string(place.path("seen.trace")).unwrap();
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(first["extent"], serde_json::json!({ "start": 8, "sectors": 16 }));
    // Nothing but a trace is ever overwritten.
    fs::write(place.path("seen.trace"), "dear diary").unwrap();
    expect(&place.run("serve", &[]), 1, "is neither empty nor a trace");
    assert_eq!(fs::read_to_string(place.path("seen.trace")).unwrap(), "dear diary");
}

#[test]
fn a_disk_with_a_cache_is_not_served_without_it_and_a_refused_disk_gets_no_record() {
    let place = Place::new();
    place.format();
    let cached = fs::read_to_string(place.stack()).unwrap();
    // The plain disk, then through a layer.
    for (export, layer) in [("data", ""), ("seen", "[layer.seen]\nkind = \"trace\"\nof = \"data\"\n")] {
        let text = format!(
            "export = \"{export}\"\n[serve]\nnbd = \"unix:nbd.sock\"\n[device.data]\npath = \"data.img\"\n{layer}"
        );
        fs::write(place.stack(), text).unwrap();
        expect(&place.run("serve", &[]), 3, "this stack serves the disk without it");
    }
    // Dirty data in the log, and then another disk under it.
    fs::write(place.stack(), &cached).unwrap();
    let server = place.serve();
    let mut nbd = place.nbd();
    nbd.write(4096, &[7; 4096]).unwrap();
    nbd.flush().unwrap();
    server.kill();
    fs::write(place.path("other.img"), vec![9; 16 * MIB as usize]).unwrap();
    fs::write(place.stack(), cached.replace("data.img", "other.img")).unwrap();
    expect(&place.run("serve", &[]), 3, "is of another disk, which is there, too");
    fs::rename(place.path("data.img"), place.path("away.img")).unwrap();
    expect(&place.run("serve", &[]), 3, "the data disk was changed without this cache, or is another disk");
    fs::rename(place.path("away.img"), place.path("data.img")).unwrap();
    assert!(!place.path("other.img.dcd").exists(), "no record on a disk that was refused");
    fs::write(place.stack(), &cached).unwrap();
    let server = place.serve();
    assert_eq!(place.nbd().read(4096, 4096).unwrap(), [7; 4096]);
    expect(&server.stop(), 0, "");
}

/// A disk in memory: nothing but the recording is written to a file.
fn in_memory() -> Place {
    let place = Place::new();
    let text = "export = \"data\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n[device.data]\nmemory = \"16MiB\"\n";
    fs::write(place.stack(), text).unwrap();
    place
}

#[test]
fn a_recording_on_a_full_disk_is_told_of_at_once_and_counts_nothing() {
    let Some(small) = SmallFs::mount("a recording on a full disk", 64 << 10) else { return };
    small.fill();
    let place = in_memory();
    let server = place.serve_with(&["--record", small.path("seen.dcd").to_str().unwrap()]);
    let mut nbd = place.nbd();
    (0..5).for_each(|_| nbd.write(0, &[1; 4096]).unwrap());
    let deadline = Instant::now() + Duration::from_secs(30);
    let status = || String::from_utf8(place.run("status", &[]).stdout).unwrap();
    while !status().contains("recording has stopped, 0 requests (5 left out)") {
        assert!(Instant::now() < deadline, "it says nothing: {}", status());
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = "No space left on device (os error 28): the recording ends here, with 0 requests";
    expect(&server.stop(), 0, said);
}

#[test]
fn the_status_of_several_stacks_is_a_line_each_and_a_list() {
    let (a, b, c) = (plain(""), plain(""), plain(""));
    let servers = [a.serve(), b.serve()];
    a.nbd().write(0, &[1; 4096]).unwrap();
    let output = dcd().arg("status").args([a.stack(), b.stack()]).output().unwrap();
    expect(&output, 0, "stack  serving    0 B  none\nstack  serving    0 B  none\n");
    let list = dcd().args(["status", "--json"]).args([a.stack(), b.stack()]).output().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list[0]["requests"]["write"]["recent"]["count"], 1);
    assert_eq!((&list[0]["state"], &list[1]["action"]), (&"serving".into(), &serde_json::json!([])));
    assert_eq!(list[1]["stack"], b.stack().to_str().unwrap());
    // One that is not served keeps nobody else from being shown, and is a failure.
    let output = dcd().arg("status").args([c.stack(), a.stack()]).output().unwrap();
    expect(&output, 1, "stack  serving    0 B  none\n");
    expect(&output, 1, "not served: no server on");
    servers.into_iter().for_each(|server| expect(&server.stop(), 0, ""));
}

#[test]
fn what_a_device_fails_is_counted_and_named_until_it_is_reset() {
    let Some(small) = SmallFs::mount("a device that fails writes", 64 << 10) else { return };
    let place = Place::new();
    let text = format!(
        "export = \"data\"\n[serve]\nnbd = \"unix:nbd.sock\"\ncontrol = \"control.sock\"\n[device.data]\npath = \"{}\"\nsize = \"1MiB\"\n",
        small.path("data.img").display()
    );
    fs::write(place.stack(), text).unwrap();
    let server = place.serve();
    small.fill();
    let mut nbd = place.nbd();
    for _ in 0..2 {
        nbd.write(0, &[1; 4096]).unwrap_err();
    }
    assert_eq!(nbd.read(0, 4096).unwrap(), [0; 4096]);
    let told = place.run("status", &[]);
    expect(&told, 0, "which failed 2 operations: no space left on device");
    expect(&told, 0, "data  errors: 2 write  ");
    expect(&told, 0, "1 read");
    let json = place.run("status", &["--json", "--reset"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let device = &json["devices"][0];
    assert_eq!(
        (&device["device"], &device["state"], &device["failed_writes"]),
        (&"data".into(), &"errors".into(), &2.into())
    );
    expect(&place.run("status", &[]), 0, "action: none");
    let _ = server.stop();
}

#[test]
fn users_of_a_group_connect_where_the_stack_file_lets_them() {
    let test = "users_of_a_group_connect";
    let (Some(nbdinfo), Some(setpriv)) = (tool(test, "nbdinfo"), tool(test, "setpriv")) else { return };
    if !Command::new(&setpriv).args(["--reuid=65534", "true"]).status().is_ok_and(|status| status.success()) {
        return skip(&format!("{test}: needs root"));
    }
    let place = Place::new();
    place.add_to_serve("nbd-socket-group = \"no-such-group\"\n");
    place.format();
    let refusal = "\"nbd-socket-group\": this machine has no group \"no-such-group\"";
    expect(&place.run("serve", &[]), 1, refusal);
    let text = fs::read_to_string(place.stack()).unwrap().replace("no-such-group", "daemon");
    fs::write(place.stack(), &text).unwrap();
    fs::set_permissions(place.dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    expect(&place.run("serve", &[]), 1, "is for its owner alone: name another directory in nbd");
    let open = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = open.path().join("made/nbd.sock");
    fs::write(place.stack(), text.replace("nbd.sock", socket.to_str().unwrap())).unwrap();
    let server = place.serve();
    let connects = |group: &str| {
        let mut user = Command::new(&setpriv);
        user.args(["--reuid=65534", &format!("--regid={group}"), "--clear-groups"]).arg(&nbdinfo);
        user.arg("--size").arg(format!("nbd+unix:///?socket={}", socket.display()));
        user.output().unwrap().status.success()
    };
    assert!(connects("daemon") && !connects("nogroup"));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&place.path("control.sock")), mode(socket.parent().unwrap())), (0o600, 0o711));
    expect(&server.stop(), 0, "");
}
