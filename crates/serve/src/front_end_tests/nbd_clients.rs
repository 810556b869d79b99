//! The clients that people use, against the NBD session on a real socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::front_end_tests::common::{Disk, Server, pattern, run, run_ok, tool};
use dcd_engine::{ErrorKind, Geometry};
use dcd_serve::nbd::{NbdExports, NbdSession};

const DISK_BYTES: usize = 32 << 20;

fn serve(disk: &Arc<Disk>, logical_block_bytes: u32) -> Server {
    let geometry = disk.geometry(logical_block_bytes);
    let exports = NbdExports::single("disk", geometry, false);
    exports.add("view", geometry, true, "the same, to look at");
    let exports = Arc::new(exports);
    Server::start(disk, move || NbdSession::new(Arc::clone(&exports)))
}

fn disk() -> Arc<Disk> {
    Disk::new(DISK_BYTES)
}

#[test]
fn nbdinfo_lists_and_describes() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    let disk = disk();
    let server = serve(&disk, 4096);
    let list = run_ok(&nbdinfo, &["--list", &server.uri("")]);
    assert!(list.contains("export=\"disk\"") && list.contains("export=\"view\""), "{list}");
    let info = run_ok(&nbdinfo, &[&server.uri("disk")]);
    for line in [
        "protocol: newstyle-fixed without TLS",
        "export-size: 33554432",
        "is_read_only: false",
        "can_flush: true",
        "can_fua: true",
        "can_trim: true",
        "can_zero: true",
        "can_fast_zero: true",
        "can_multi_conn: true",
        "block_size_minimum: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(info.contains(line), "{line}\n{info}");
    }
    assert!(run_ok(&nbdinfo, &[&server.uri("view")]).contains("is_read_only: true"));
    assert!(!run(&nbdinfo, &[&server.uri("other")]).status.success());
}

/// Clients send no flush to a server that offers none, and succeed.
#[test]
fn clients_do_not_flush_a_disk_whose_answers_are_durable() {
    let disk = disk();
    let geometry = Geometry { volatile_cache: false, ..disk.geometry(512) };
    let exports = Arc::new(NbdExports::single("disk", geometry, false));
    let server = Server::start(&disk, move || NbdSession::new(Arc::clone(&exports)));
    let uri = server.uri("disk");
    if let Some(nbdinfo) = tool("nbdinfo") {
        let info = run_ok(&nbdinfo, &[&uri]);
        assert!(info.contains("can_flush: false") && info.contains("can_fua: true"), "{info}");
    }
    if let Some(qemu_io) = tool("qemu-io") {
        let commands = ["-c", "write -P 7 0 1M", "-c", "flush", "-c", "write -f -P 8 0 4k", "-c", "flush"];
        run_ok(&qemu_io, &[&["-f", "raw", "-t", "none"][..], &commands, &[uri.as_str()]].concat());
    }
    if let Some(nbdcopy) = tool("nbdcopy") {
        let from = server.directory.path().join("from");
        std::fs::write(&from, pattern(5, DISK_BYTES)).unwrap();
        run_ok(&nbdcopy, &[from.to_str().unwrap(), &uri]);
        assert!(*disk.bytes.lock().unwrap() == pattern(5, DISK_BYTES));
    }
    assert_eq!(disk.flushes.load(Ordering::Relaxed), 0);
}

#[test]
fn nbdcopy_there_and_back_over_many_connections() {
    let Some(nbdcopy) = tool("nbdcopy") else { return };
    let disk = disk();
    let server = serve(&disk, 512);
    let (from, to) = (server.directory.path().join("from"), server.directory.path().join("to"));
    let mut data = pattern(11, DISK_BYTES);
    // A hole, so that zeroes and trims are used as well.
    data[4 << 20..12 << 20].fill(0);
    std::fs::write(&from, &data).unwrap();
    disk.bytes.lock().unwrap().fill(0xee);
    let uri = server.uri("disk");
    run_ok(&nbdcopy, &["-C", "4", "--flush", from.to_str().unwrap(), &uri]);
    assert!(*disk.bytes.lock().unwrap() == data);
    assert!(disk.flushes.load(Ordering::Relaxed) > 0 && disk.zeroes.load(Ordering::Relaxed) > 0);
    run_ok(&nbdcopy, &["-C", "4", &uri, to.to_str().unwrap()]);
    assert!(std::fs::read(&to).unwrap() == data);
}

#[test]
fn qemu_tools_read_write_zero_and_trim() {
    let (Some(qemu_io), Some(qemu_img)) = (tool("qemu-io"), tool("qemu-img")) else { return };
    let disk = disk();
    let server = serve(&disk, 512);
    let uri = server.uri("disk");
    let output = run_ok(
        &qemu_io,
        &[
            "-f",
            "raw",
            "-t",
            "none",
            "-d",
            "unmap",
            "-c",
            "write -P 7 0 1M",
            "-c",
            "write -f -P 8 1M 4k",
            "-c",
            "flush",
            "-c",
            "write -z 64k 64k",
            "-c",
            "write -z -u 128k 64k",
            "-c",
            "discard 256k 64k",
            "-c",
            "read -P 7 0 64k",
            "-c",
            "read -P 0 64k 128k",
            "-c",
            "read -P 0 256k 64k",
            "-c",
            "read -P 8 1M 4k",
            // Not a multiple of the block: qemu reads and writes around it, as it was told the block size.
            "-c",
            "write -P 9 1000 100",
            "-c",
            "read -P 9 1000 100",
            "-c",
            "read -P 7 0 1000",
            &uri,
        ],
    );
    assert!(!output.contains("Pattern verification failed") && !output.contains("error"), "{output}");
    assert!(disk.durable.load(Ordering::Relaxed) > 0 && disk.discards.load(Ordering::Relaxed) > 0);
    let copy = server.directory.path().join("copy.qcow2");
    let copy = copy.to_str().unwrap();
    run_ok(&qemu_img, &["convert", "-f", "raw", "-O", "qcow2", &uri, copy]);
    run_ok(&qemu_img, &["compare", "-f", "raw", "-F", "qcow2", &uri, copy]);
    assert!(run_ok(&qemu_img, &["info", "-f", "raw", &uri]).contains("32 MiB"));
    assert!(!run(&qemu_io, &["-f", "raw", "-c", "write 0 4k", &server.uri("view")]).status.success());
}

#[test]
fn nbdsh_sees_each_error() {
    let Some(nbdsh) = tool("nbdsh") else { return };
    let disk = disk();
    let server = serve(&disk, 512);
    // Strict mode off: the library would otherwise refuse these itself.
    let script = format!(
        r#"
import errno, nbd, threading
def connect(uri):
    h = nbd.NBD(); h.set_strict_mode(0); h.connect_uri(uri); return h
def expect(number, call, *args):
    try: call(*args)
    except nbd.Error as e: assert e.errnum == number, (e.errno, number)
    else: raise SystemExit("no error where %d was expected" % number)
h = connect("{disk}")
size = h.get_size()
expect(errno.EINVAL, h.pread, 512, size)
expect(errno.ENOSPC, h.pwrite, b"x" * 512, size)
expect(errno.ENOSPC, h.zero, 512, size)
expect(errno.EINVAL, h.trim, 512, size)
expect(errno.EINVAL, h.pread, 1, 0)
expect(errno.EINVAL, h.pwrite, b"x" * 100, 512)
expect(errno.EINVAL, h.pread, 512, 2**63 - 512)
h.pwrite(b"a" * 512, 0, nbd.CMD_FLAG_FUA)
h.trim(512, 0, nbd.CMD_FLAG_FUA)
assert h.pread(512, 0) == bytearray(512)
h.zero(4096, 4096, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO)
# What one connection has flushed or only been told, every other one sees.
other = connect("{disk}")
assert h.can_multi_conn()
h.pwrite(b"b" * 4096, 8192); assert other.pread(4096, 8192) == b"b" * 4096
other.flush()
r = connect("{view}")
assert r.is_read_only()
expect(errno.EPERM, r.pwrite, b"x" * 512, 0)
expect(errno.EPERM, r.trim, 512, 0)
expect(errno.EPERM, r.zero, 512, 0)
r.flush()
o = nbd.NBD(); o.set_opt_mode(True); o.connect_uri("{disk}")
names = []
o.opt_list(lambda name, text: names.append(name))
assert names == ["disk", "view"], names
o.set_export_name("nothing")
expect(errno.ENOENT, o.opt_info)
o.set_export_name("view"); o.set_full_info(True); o.opt_info()
assert o.get_canonical_export_name() == "view" and o.get_export_description() == "the same, to look at"
assert o.get_block_size(nbd.SIZE_MINIMUM) == 512
o.opt_abort()
h.shutdown()
print("fine")
"#,
        disk = server.uri("disk"),
        view = server.uri("view"),
    );
    assert!(run_ok(&nbdsh, &["-c", &script]).contains("fine"));
}

#[test]
fn nbdsh_sees_the_errors_of_the_device() {
    let Some(nbdsh) = tool("nbdsh") else { return };
    for (kind, name) in
        [(ErrorKind::Medium, "EIO"), (ErrorKind::NoSpace, "ENOSPC"), (ErrorKind::Shutdown, "ESHUTDOWN")]
    {
        let disk = disk();
        let server = serve(&disk, 512);
        *disk.failing.lock().unwrap() = Some(kind);
        let script = format!(
            "import errno\nfor call in (lambda: h.pread(512, 0), lambda: h.pwrite(b'x' * 512, 0), h.flush):\n\
             \x20   try: call()\n    except nbd.Error as e: assert e.errnum == errno.{name}, e\n\
             \x20   else: raise SystemExit('no error')\n"
        );
        run_ok(&nbdsh, &["-u", &server.uri("disk"), "-c", &script]);
    }
}

#[test]
fn fio_verifies_what_it_wrote() {
    let Some(fio) = tool("fio") else { return };
    if !run_ok(&fio, &["--enghelp"]).contains("nbd") {
        return crate::front_end_tests::common::skip("fio has no nbd engine");
    }
    let disk = disk();
    let server = serve(&disk, 512);
    let uri = format!("--uri={}", server.uri("disk"));
    for (name, more) in [
        ("random", &["--rw=randwrite", "--bs=4k", "--iodepth=32"][..]),
        ("mixed", &["--rw=randrw", "--bsrange=512-128k", "--bs_unaligned=0", "--iodepth=16", "--fsync=32"]),
    ] {
        let name = format!("--name={name}");
        let mut args = vec![
            name.as_str(),
            "--ioengine=nbd",
            &uri,
            "--size=24m",
            "--io_size=48m",
            "--verify=crc32c",
            "--verify_state_save=0",
            "--do_verify=1",
        ];
        args.extend(more);
        let output = run_ok(&fio, &args);
        assert!(output.contains("err= 0"), "{output}");
    }
}

/// A client that says nothing, or nonsense, or leaves in the middle of a write, does not disturb another one.
#[test]
fn bad_clients_do_not_disturb_others() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    let disk = disk();
    let server = serve(&disk, 512);
    let mut silent: Vec<UnixStream> =
        (0..100).map(|_| UnixStream::connect(&server.socket).unwrap()).collect();
    let mut nonsense = UnixStream::connect(&server.socket).unwrap();
    nonsense.write_all(&[0xff; 1 << 16]).ok();
    let mut half = UnixStream::connect(&server.socket).unwrap();
    half.write_all(&[&3u32.to_be_bytes()[..], b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0"].concat()).unwrap();
    half.write_all(
        &[&0x2560_9513u32.to_be_bytes()[..], &[0, 0, 0, 1], &[0; 16], &[0, 1, 0, 0], &[1; 1000]].concat(),
    )
    .unwrap();
    drop(half);
    run_ok(&nbdinfo, &["--size", &server.uri("disk")]);
    let mut greeting = [0; 18];
    silent[99].read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting[..8], b"NBDMAGIC");
    assert!(disk.bytes.lock().unwrap().iter().all(|byte| *byte == 0), "half a write has no effect");
    assert!(Path::new(&server.socket).exists());
}
