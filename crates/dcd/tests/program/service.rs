//! Tests what an administrator relies on while a server runs and when it is stopped: devices that hang, connected clients, the unit.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{MIB, Nbd, Place, Server, dcd, expect, signal, skip, tool};
use crate::refusals::dirty;

/// Standard error of a server, line by line as it comes.
fn said(server: &mut Server) -> BufReader<ChildStderr> {
    BufReader::new(server.child.stderr.take().unwrap())
}

/// The next line that has `wanted` in it.
fn wait_for(said: &mut BufReader<ChildStderr>, wanted: &str) -> String {
    let mut all = String::new();
    loop {
        let mut line = String::new();
        assert!(said.read_line(&mut line).unwrap() > 0, "\"{wanted}\" is not in: {all}");
        if line.contains(wanted) {
            return line;
        }
        all += &line;
    }
}

/// True where FUSE can be used, or a line that says that the test is skipped.
fn has_fuse(test: &str) -> bool {
    let has = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !has {
        skip(&format!("{test}: /dev/fuse cannot be used"));
    }
    has
}

/// A data disk of 16 MiB on a FUSE file system, which hangs while the process of that is stopped.
struct Hanging {
    fuse: Child,
    image: PathBuf,
    _disk: Server,
    _place: Place,
}

impl Hanging {
    fn start(test: &str) -> Option<Hanging> {
        let nbdfuse = tool(test, "nbdfuse").filter(|_| has_fuse(test))?;
        let place = Place::new();
        fs::write(
            place.stack(),
            "export = \"data\"\n[serve]\nnbd = \"unix:nbd.sock\"\n[device.data]\npath = \"data.img\"\n",
        )
        .unwrap();
        let disk = place.serve();
        let image = place.path("image");
        fs::write(&image, "").unwrap();
        let fuse =
            Command::new(nbdfuse).arg(&image).arg("--unix").arg(place.path("nbd.sock")).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while fs::metadata(&image).unwrap().len() == 0 {
            assert!(Instant::now() < deadline, "nbdfuse mounts the disk");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(Hanging { fuse, image, _disk: disk, _place: place })
    }

    fn hang(&self) {
        signal(&self.fuse, "STOP");
        // A thread may go on for a moment.
        let tasks = format!("/proc/{}/task", self.fuse.id());
        let is_stopped = |task: fs::DirEntry| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !fs::read_dir(&tasks).unwrap().flatten().all(is_stopped) {
            assert!(Instant::now() < deadline, "the process stops");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn go_on(&self) {
        signal(&self.fuse, "CONT");
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        // The process that waits for it can be killed only after that.
        self.go_on();
        let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(&self.image).status();
        let _ = self.fuse.kill();
        let _ = self.fuse.wait();
    }
}

/// A cache before that disk.
fn cached(disk: &Path) -> Place {
    let place = Place::new();
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(place.stack(), text.replace("data.img", disk.to_str().unwrap())).unwrap();
    place.format();
    place
}

#[test]
fn a_data_disk_that_hangs_holds_up_only_what_needs_it() {
    let test = "a_data_disk_that_hangs_holds_up_only_what_needs_it";
    let Some(disk) = Hanging::start(test) else { return };
    let place = cached(&disk.image);
    let mut server = place.serve();
    let mut said = said(&mut server);
    let mut reader = place.nbd();
    let mut writer = place.nbd();
    disk.hang();
    // More than the kernel takes for a FUSE file without making the caller wait.
    for line in 0..400 {
        reader.ask(line * 8192, 4096).unwrap();
    }
    writer.write(8 * MIB, &[7; 4096]).unwrap();
    writer.flush().unwrap();
    let told = wait_for(&mut said, "has not answered");
    assert!(told.contains(&format!("device \"data\" ({})", disk.image.display())), "{told}");
    expect(&place.run("status", &[]), 5, "device data has not answered for ");
    disk.go_on();
    wait_for(&mut said, "answers again, after ");
    assert_eq!(
        reader.read(8 * MIB, 4096).unwrap_err().kind(),
        std::io::ErrorKind::Other,
        "400 replies come before"
    );
    let status = place.run("status", &[]);
    assert!(!String::from_utf8_lossy(&status.stdout).contains("not answered"));

    // A stop waits, says for what, and ends when it is told so once more.
    disk.hang();
    let mut waiting = place.nbd();
    waiting.ask(12 * MIB, 4096).unwrap();
    while !String::from_utf8_lossy(&place.run("status", &["--json"]).stdout).contains("\"in_flight\":1") {
        std::thread::sleep(Duration::from_millis(50));
    }
    writer.write(9 * MIB, &[8; 4096]).unwrap();
    writer.flush().unwrap();
    // Two signals at once are one wish.
    let both = format!("kill -TERM {0}; kill -INT {0}", server.child.id());
    assert!(Command::new("sh").args(["-c", &both]).status().unwrap().success());
    let told = wait_for(&mut said, "still stopping");
    assert!(told.contains("device \"data\"") && told.contains("another SIGTERM"), "{told}");
    signal(&server.child, "TERM");
    wait_for(&mut said, "the kernel may keep this process");
    let told = wait_for(&mut said, "not stopped cleanly");
    assert!(told.contains("Flushed data is in the log"), "{told}");
    disk.go_on();
    assert_eq!(server.wait().status.code(), Some(1));
    let server = place.serve();
    assert_eq!(place.nbd().read(9 * MIB, 4096).unwrap(), [8; 4096]);
    expect(&server.stop(), 0, "");
}

#[test]
fn a_start_that_waits_for_a_device_can_be_ended() {
    let test = "a_start_that_waits_for_a_device_can_be_ended";
    let Some(disk) = Hanging::start(test) else { return };
    let place = cached(&disk.image);
    disk.hang();
    let mut command = dcd();
    command.arg("serve").arg(place.stack()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut server = Server { child: command.spawn().unwrap() };
    let mut said = said(&mut server);
    // It has the signals when it watches its start.
    let tasks = format!("/proc/{}/task", server.child.id());
    let watches = |task: std::io::Result<fs::DirEntry>| {
        task.is_ok_and(|task| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "dcd-start\n")
        })
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while !fs::read_dir(&tasks).unwrap().any(watches) {
        assert!(Instant::now() < deadline, "it begins to start");
    }
    signal(&server.child, "TERM");
    wait_for(&mut said, "it stops as soon as it has started");
    signal(&server.child, "TERM");
    wait_for(&mut said, "Nothing is lost: the next start begins again");
    disk.go_on();
    assert_eq!(server.wait().status.code(), Some(1));
    expect(&place.serve().stop(), 0, "");
}

#[test]
fn a_stop_is_refused_while_a_client_has_the_device() {
    let place = Place::new();
    place.format();
    let server = place.serve();
    let mut nbd = place.nbd();
    nbd.write(4096, &[7; 4096]).unwrap();
    let who = format!("process {} (", std::process::id());
    let refused = place.run("stop", &[]);
    expect(&refused, 3, &who);
    expect(&refused, 3, "idle for 0 s");
    expect(&place.run("stop", &["--for-restart"]), 3, &who);
    nbd.write(8192, &[8; 4096]).unwrap();
    nbd.flush().unwrap();
    nbd.disconnect().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while place.run("stop", &[]).status.code() == Some(3) {
        assert!(Instant::now() < deadline, "a client that has gone is not in the way");
    }
    expect(&server.wait(), 0, "");
    expect(&place.run("stop", &[]), 1, "is the stack served?");

    // By force, and by a signal, which says who was there.
    let server = place.serve();
    let mut nbd = place.nbd();
    assert_eq!(nbd.read(8192, 4096).unwrap(), [8; 4096]);
    expect(&place.run("stop", &["--force"]), 0, "");
    expect(&server.wait(), 0, "");
    let server = place.serve();
    let _nbd = place.nbd();
    expect(&server.stop(), 0, &format!("stopping, although a client has the device: {who}"));
}

#[test]
fn an_open_image_is_a_client_too() {
    if !has_fuse("an_open_image_is_a_client_too") {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.path("mnt")).unwrap();
    fs::write(
        place.stack(),
        "export = \"data\"\n[serve]\nfuse = \"mnt\"\ncontrol = \"control.sock\"\n[device.data]\npath = \"data.img\"\n",
    )
    .unwrap();
    let server = place.serve();
    let open = fs::File::open(place.path("mnt/disk.img")).unwrap();
    expect(&place.run("stop", &[]), 3, "mnt/disk.img, open once, idle for");
    drop(open);
    let deadline = Instant::now() + Duration::from_secs(10);
    while place.run("stop", &[]).status.code() == Some(3) {
        assert!(Instant::now() < deadline, "the image is closed");
    }
    expect(&server.wait(), 0, "");
}

#[test]
fn clients_that_are_turned_away_are_told_of_once() {
    let place = Place::new();
    place.format();
    let server = place.serve();
    let clients: Vec<Nbd> = (0..100).map(|_| place.nbd()).collect();
    for _ in 0..3 {
        Nbd::connect(&place.path("nbd.sock")).err().expect("the socket has as many as it takes");
    }
    drop(clients);
    let ended = server.stop();
    expect(&ended, 0, "a client was turned away: a socket takes 100 clients at a time");
    assert_eq!(String::from_utf8_lossy(&ended.stderr).matches("turned away").count(), 1);
}

/// The kernel's table of connections has the kind of timer that each waits for; 2 is the keepalive's.
#[test]
fn the_kernel_asks_after_silent_clients_on_tcp() {
    let place = Place::new();
    place.format();
    let text = fs::read_to_string(place.stack()).unwrap();
    fs::write(
        place.stack(),
        text.replace("\"unix:nbd.sock\"", "\"tcp:127.0.0.1:0\"\nnbd-allow-local-users = true"),
    )
    .unwrap();
    let mut child =
        dcd().arg("serve").arg(place.stack()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let server = Server { child };
    let port: u16 = line.trim().rsplit(':').next().unwrap().parse().expect(&line);
    let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    // The greeting has come: the server has done all that it does to a socket.
    (&mut &client).take(18).read_to_end(&mut Vec::new()).unwrap();
    let ours = format!(":{port:04X} ");
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let connection = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut connection = connection.filter(|fields| fields[1].ends_with(ours.trim()) && fields[3] == "01");
    let fields = connection.next().expect("the server's end of the connection");
    assert!(fields[5].starts_with("02:"), "{fields:?}");
    expect(&server.stop(), 0, "");
}

#[test]
fn systemd_is_told_when_clients_can_connect_and_when_it_stops() {
    let place = Place::new();
    place.format();
    // A path, and a name that is none: systemd uses either.
    let name = format!("dcd-test-{}", std::process::id());
    let path = place.path("notify");
    let sockets = [
        (path.to_str().unwrap().to_owned(), SocketAddr::from_pathname(&path).unwrap()),
        (format!("@{name}"), SocketAddr::from_abstract_name(&name).unwrap()),
    ];
    for (variable, address) in sockets {
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let said = || {
            let mut message = [0; 4096];
            let bytes = socket.recv(&mut message).unwrap();
            String::from_utf8(message[..bytes].to_vec()).unwrap()
        };
        let mut command = dcd();
        command.arg("serve").arg(place.stack()).env("NOTIFY_SOCKET", &variable);
        let mut server =
            Server { child: command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap() };
        assert!(said().starts_with("STATUS=starting: opening the devices of "));
        assert!(said().starts_with("STATUS=starting: recovering"));
        let ready = said();
        assert!(ready.starts_with("READY=1\nSTATUS=nbd unix:") && ready.ends_with("nbd.sock"), "{ready}");
        place.nbd().disconnect().unwrap();
        signal(&server.child, "TERM");
        assert_eq!(said(), "STOPPING=1\nSTATUS=stopping");
        assert!(server.child.wait().unwrap().success());
    }
}

/// Units that systemd makes of lines in /etc/fstab: for the name of a ublk device, and for an NBD device, with _netdev.
const MOUNT: &str = "[Mount]\nWhat=/dev/dcd/disk\nWhere=/mnt/disk\n[Unit]\nBefore=local-fs.target\n";
const NBD_MOUNT: &str = "[Mount]\nWhat=/dev/nbd0\nWhere=/mnt/nbd\nOptions=_netdev\n";

fn is_read_only(place: &str) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut options = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        (fields.next() == Some(place)).then(|| fields.nth(1)).flatten()
    });
    options.next_back().is_some_and(|options| options.split(',').any(|option| option == "ro"))
}

#[test]
fn the_unit_stops_after_what_is_mounted_on_it() {
    let test = "the_unit_stops_after_what_is_mounted_on_it";
    let (Some(analyze), Some(setpriv)) = (tool(test, "systemd-analyze"), tool(test, "setpriv")) else {
        return;
    };
    let systemd = Path::new("/usr/lib/systemd/systemd");
    if !systemd.exists() {
        return skip(&format!("{test}: there is no {}", systemd.display()));
    }
    // systemd has no units for devices there, as in a container.
    if is_read_only("/sys") {
        return skip(&format!("{test}: /sys is read-only, so systemd has no units for devices"));
    }
    // Below no directory that only root may look into: systemd looks without rights in its test mode.
    let dir = tempfile::tempdir().unwrap();
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(dir.path(), open).unwrap();
    let unit = include_str!("../../../../packaging/dcd@.service").replace("/usr/local/bin/dcd", "/bin/true");
    fs::write(dir.path().join("dcd@.service"), unit).unwrap();
    let unit =
        include_str!("../../../../packaging/dcd-attach@.service").replace("/usr/local/bin/dcd", "/bin/true");
    fs::write(dir.path().join("dcd-attach@.service"), unit).unwrap();
    fs::write(dir.path().join("mnt-disk.mount"), MOUNT).unwrap();
    fs::write(dir.path().join("mnt-nbd.mount"), NBD_MOUNT).unwrap();
    let all = "[Unit]\nWants=dcd@disk.service dcd-attach@disk.service mnt-disk.mount mnt-nbd.mount\n";
    fs::write(dir.path().join("all.target"), all).unwrap();
    fs::create_dir(dir.path().join("dev-dcd-.device.d")).unwrap();
    let drop_in = include_str!("../../../../packaging/dev-dcd-.device.conf");
    fs::write(dir.path().join("dev-dcd-.device.d/dcd.conf"), drop_in).unwrap();
    let path = format!("{}:", dir.path().display());
    let verified = Command::new(analyze)
        .args(["--man=no", "verify", "dcd@disk.service", "dcd-attach@disk.service"])
        .env("SYSTEMD_UNIT_PATH", &path)
        .output()
        .unwrap();
    expect(&verified, 0, "");
    // Before version 254 systemd does not know the steps by which a unit is tried again.
    let known = |line: &&str| !line.contains("'RestartSteps'") && !line.contains("'RestartMaxDelaySec'");
    let said = String::from_utf8_lossy(&verified.stderr);
    assert_eq!(
        said.lines().filter(known).collect::<Vec<_>>(),
        Vec::<&str>::new(),
        "nothing is wrong with the unit"
    );
    let tested = Command::new(setpriv)
        .args(["--reuid=65534", "--clear-groups"])
        .arg(systemd)
        .args(["--test", "--system", "--unit=all.target", "--log-target=console"])
        .env("SYSTEMD_UNIT_PATH", &path)
        .output()
        .unwrap();
    let all = String::from_utf8_lossy(&tested.stdout);
    let section = |unit: &str| {
        let begin = all
            .find(&format!("-> Unit {unit}:"))
            .unwrap_or_else(|| panic!("{unit} is not in what systemd would do"));
        let rest = &all[begin + 2..];
        &rest[..rest.find("-> Unit ").unwrap_or(rest.len())]
    };
    // Units stop in the order that is the other way round. A cycle would have systemd leave one of them out.
    let said = String::from_utf8_lossy(&tested.stderr);
    assert!(!all.contains("ordering cycle") && !said.contains("ordering cycle"), "{said}");
    let has = |unit: &str, line: &str| {
        let section = section(unit);
        assert!(section.contains(line), "{unit} without {line}: {section}");
    };
    for target in ["blockdev@dev-dcd-disk.target", "remote-fs-pre.target", "shutdown.target"] {
        has("dcd@disk.service", &format!("Before: {target}"));
    }
    for target in ["blockdev@dev-dcd-disk.target", "remote-fs-pre.target"] {
        has("dcd@disk.service", &format!("Wants: {target}"));
    }
    has("dcd-attach@disk.service", "After: dcd@disk.service");
    has("dcd-attach@disk.service", "Before: blockdev@dev-dcd-disk.target");
    has("mnt-disk.mount", "After: blockdev@dev-dcd-disk.target");
    has("mnt-nbd.mount", "After: remote-fs-pre.target");
    // A mount has the server of its device started.
    has("mnt-disk.mount", "Requires: dev-dcd-disk.device");
    has("dev-dcd-disk.device", "Wants: dcd@disk.service");
    has("dev-dcd-disk.device", "After: dcd@disk.service");
}

/// A server that was killed may keep its devices for minutes, where the kernel has its operations in hand. By default systemd gives a unit up
/// after five failures in ten seconds; then clients of a ublk device would wait for ever.
#[test]
fn the_unit_is_tried_again_for_as_long_as_a_device_is_in_use() {
    let unit = include_str!("../../../../packaging/dcd@.service");
    assert!(unit.contains("\nStartLimitIntervalSec=0\n"));
    let start = unit.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
    assert!(start.contains(" serve ") && start.contains(" --wait-busy="));
    let place = Place::new();
    place.format();
    let first = place.serve();
    expect(&place.run("serve", &[]), 1, "in use");
    expect(&place.run("serve", &["--wait-busy=1s"]), 1, "in use");
    let mut command = dcd();
    command.arg("serve").arg("--wait-busy=10min").arg(place.stack());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut second = Server { child: command.spawn().unwrap() };
    wait_for(&mut said(&mut second), "waiting for that, 600 s at most");
    first.kill();
    let mut line = String::new();
    BufReader::new(second.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("nbd unix:"), "{line}");
    signal(&second.child, "TERM");
    assert!(second.child.wait().unwrap().success());
}

#[test]
fn a_server_that_does_not_answer_hides_no_other() {
    let (one, other) = (Place::new(), Place::new());
    let mut servers = Vec::new();
    for place in [&one, &other] {
        place.format();
        servers.push(place.serve());
    }
    let (alive, stopped) = (one.stack(), other.stack());
    signal(&servers[1].child, "STOP");
    let run = |command: &str, stacks: &[&Path]| {
        dcd().arg(command).args(stacks).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let asked =
        [run("status", &[&stopped, &alive]), run("metrics", &[&stopped, &alive]), run("stop", &[&stopped])];
    for (at, asked) in asked.into_iter().enumerate() {
        let output = asked.wait_with_output().unwrap();
        expect(&output, 1, "has said nothing for 10 s");
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(at == 2 || shown.lines().count() > 1, "the other is shown: {shown}");
    }
    signal(&servers[1].child, "CONT");
    let stopped = servers.pop().unwrap().stop().status;
    // The request to stop has waited, too: where it has ended the server, the signal may meet a process that is going.
    assert!(stopped.success() || stopped.signal() == Some(15), "{stopped:?}");
    expect(&servers.pop().unwrap().stop(), 0, "");
}

/// The package's script before a removal, with a `dcd` that answers as told.
#[test]
fn the_package_does_not_go_while_something_is_served_or_waits_for_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/debian/dcd.prerm");
    let run = |why: &str, status: &str, list: &str| {
        let program = format!("#!/bin/sh\ncase \"$1\" in\nstatus) {status} ;;\nublk) {list} ;;\nesac\n");
        fs::write(dir.path().join("dcd"), program).unwrap();
        fs::set_permissions(dir.path().join("dcd"), fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
        Command::new("sh").arg(script).arg(why).env("PATH", path).output().unwrap()
    };
    let nothing = "echo '[]'";
    let waiting = "echo '0 /dev/ublkb0  /etc/dcd/disk.toml  waiting for its next server'";
    expect(&run("remove", "echo '[{}]'", ""), 1, "dcd is not removed: it serves these stacks");
    // One is degraded, and one does not answer.
    expect(&run("remove", "echo '[{}]'; exit 5", ""), 1, "dcd is not removed: it serves these stacks");
    expect(&run("remove", "exit 1", ""), 1, "dcd is not removed: it serves these stacks");
    expect(&run("remove", nothing, waiting), 1, "these devices wait for their servers");
    expect(&run("remove", nothing, "exit 1"), 0, "");
    expect(&run("upgrade", "echo '[{}]'", waiting), 0, "");
}

/// A stack file that was copied still names the control socket of the first one.
#[test]
fn a_command_reaches_the_server_of_the_stack_that_it_names_and_no_other() {
    let (one, other) = (dirty(), dirty());
    let server = one.serve();
    let text = fs::read_to_string(other.stack()).unwrap();
    let control = one.path("control.sock").display().to_string();
    fs::write(other.stack(), text.replace("control.sock", &control)).unwrap();
    let said = format!("serves another stack file, {}", one.stack().display());
    let commands: [(&str, &[&str]); 11] = [
        ("flush", &["--quiet"]),
        ("status", &[]),
        ("metrics", &[]),
        ("get", &[]),
        ("set", &["high-mark=90"]),
        ("writeback", &["pause"]),
        ("mark", &[]),
        ("attach", &[]),
        ("stop", &[]),
        ("stop", &["--force"]),
        ("remove", &[]),
    ];
    for (command, more) in commands {
        let output = other.run(command, more);
        expect(&output, 3, &said);
        expect(&output, 3, "nothing was done. If both are to be served, give");
    }
    let found = other.run("doctor", &["--json"]);
    assert!(String::from_utf8_lossy(&found.stdout).contains(&said), "{found:?}");
    expect(&one.run("status", &[]), 0, "dirty 64 KiB");
    expect(&one.run("get", &["high-mark"]), 0, "100");
    // By its socket, and by the new name of a file that was moved, it is reached.
    fs::rename(one.stack(), one.path("moved.toml")).unwrap();
    for name in ["moved.toml", "control.sock"] {
        expect(&dcd().arg("status").arg(one.path(name)).output().unwrap(), 0, "dirty 64 KiB");
    }
    expect(&dcd().arg("stop").arg(one.path("moved.toml")).output().unwrap(), 0, "");
    expect(&server.wait(), 0, "");
    expect(&other.run("rescue", &[]), 0, "written back: 64 KiB");
}
