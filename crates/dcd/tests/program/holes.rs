//! Clients that ask which parts of a disk are holes, through a cache over a sparse file.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{MIB, Place, Server, expect, tool};

const DISK: u64 = 64 * MIB;

/// A served cache over a sparse file of this size, which has data at 1 MiB: 64 KiB of ones.
fn served(bytes: u64) -> (Place, Server) {
    let place = Place::new();
    let data = File::create(place.path("data.img")).unwrap();
    data.set_len(bytes).unwrap();
    data.write_all_at(&[1; 64 << 10], MIB).unwrap();
    place.write_stack("idle-empty = \"3600s\"\n");
    place.format();
    let server = place.serve();
    (place, server)
}

fn uri(place: &Place) -> String {
    format!("nbd+unix:///?socket={}", place.path("nbd.sock").display())
}

/// Runs a program, and returns what it prints.
fn run(program: &Path, arguments: &[&str]) -> String {
    // nbdsh is for the system's Python.
    let path = "/usr/bin:/usr/sbin:/bin:/sbin";
    let output = Command::new(program).args(arguments).env("PATH", path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {arguments:?}: {said}", program.display());
    String::from_utf8(output.stdout).unwrap()
}

/// The extents that nbdinfo prints: offset, length, flags.
fn map(nbdinfo: &Path, uri: &str) -> Vec<(u64, u64, u64)> {
    parse(&run(nbdinfo, &["--map", "--json", uri]))
}

fn parse(json: &str) -> Vec<(u64, u64, u64)> {
    let extents: Vec<Value> = serde_json::from_str(json).unwrap();
    let number = |extent: &Value, name: &str| extent[name].as_u64().unwrap();
    let all = extents.iter();
    all.map(|extent| (number(extent, "offset"), number(extent, "length"), number(extent, "type"))).collect()
}

/// Writes data and zeroes in the log and returns what a map has to say then. Nothing is destaged.
fn change(place: &Place) -> Vec<(u64, u64, u64)> {
    let mut nbd = place.nbd();
    nbd.write(8 * MIB, &[7; 4096]).unwrap();
    nbd.write(8 * MIB + 4096, &[8; 4096]).unwrap();
    // Half of what the data disk has becomes a hole, and a part of that data again.
    nbd.zero(MIB, 32 << 10).unwrap();
    nbd.write(MIB + 8192, &[9; 4096]).unwrap();
    nbd.flush().unwrap();
    nbd.disconnect().unwrap();
    vec![
        (0, MIB + 8192, 3),
        (MIB + 8192, 4096, 0),
        (MIB + 12288, 20 << 10, 3),
        (MIB + (32 << 10), 32 << 10, 0),
        (MIB + (64 << 10), 7 * MIB - (64 << 10), 3),
        (8 * MIB, 8192, 0),
        (8 * MIB + 8192, DISK - 8 * MIB - 8192, 3),
    ]
}

/// False where the file system of the tests has no holes.
fn has_holes(place: &Place) -> bool {
    let blocks = fs::metadata(place.path("data.img")).unwrap().blocks();
    if blocks * 512 >= DISK / 2 {
        crate::common::skip("the file system has no holes");
    }
    blocks * 512 < DISK / 2
}

#[test]
fn nbdinfo_shows_holes_of_the_disk_and_of_the_log() {
    let Some(nbdinfo) = tool("nbdinfo_shows_holes", "nbdinfo") else { return };
    let (place, server) = served(DISK);
    if !has_holes(&place) {
        return;
    }
    let uri = uri(&place);
    assert_eq!(
        map(&nbdinfo, &uri),
        [(0, MIB, 3), (MIB, 64 << 10, 0), (MIB + (64 << 10), DISK - MIB - (64 << 10), 3)]
    );
    let expected = change(&place);
    assert_eq!(map(&nbdinfo, &uri), expected);
    let contexts = run(&nbdinfo, &["--json", &uri]);
    assert!(contexts.contains("base:allocation"), "{contexts}");
    // Another program between passes everything on.
    if let Some(nbdkit) = tool("nbdinfo_shows_holes", "nbdkit") {
        let remote = format!("uri={uri}");
        let json = run(&nbdkit, &["-U", "-", "nbd", &remote, "--run", "nbdinfo --map --json \"$uri\""]);
        assert_eq!(parse(&json), expected);
    }
    // Destaged, the disk says the same, in whole blocks of its file system.
    expect(&place.run("flush", &[]), 0, "");
    let destaged = map(&nbdinfo, &uri);
    assert!(destaged.iter().any(|(offset, _, state)| *offset == 8 * MIB && *state == 0), "{destaged:?}");
    expect(&server.stop(), 0, "");
}

#[test]
fn copies_are_sparse_and_the_same() {
    let (place, server) = served(DISK);
    if !has_holes(&place) {
        return;
    }
    change(&place);
    let (uri, out) = (uri(&place), place.path("copy.img"));
    let whole = place.nbd().read(0, 32 << 20).unwrap();
    let look = |by: &str| {
        let copy = fs::read(&out).unwrap();
        assert!(copy.len() as u64 == DISK && copy[..32 << 20] == whole, "{by}");
        let bytes = fs::metadata(&out).unwrap().blocks() * 512;
        assert!(bytes < MIB, "{by}: {bytes} bytes are allocated");
        fs::remove_file(&out).unwrap();
    };
    let path = out.to_str().unwrap();
    if let Some(nbdcopy) = tool("copies_are_sparse", "nbdcopy") {
        run(&nbdcopy, &[&uri, path]);
        look("nbdcopy");
    }
    if let Some(qemu_img) = tool("copies_are_sparse", "qemu-img") {
        run(&qemu_img, &["convert", "-f", "raw", "-O", "raw", &uri, path]);
        look("qemu-img convert");
        let json = run(&qemu_img, &["map", "-f", "raw", "--output=json", &uri]);
        let extents: Vec<Value> = serde_json::from_str(&json).unwrap();
        let data: u64 =
            extents.iter().filter(|e| e["data"] == true).map(|e| e["length"].as_u64().unwrap()).sum();
        assert_eq!(data, 4096 + (32 << 10) + 8192, "{json}");
    }
    expect(&server.stop(), 0, "");
}

#[test]
fn libnbd_reads_in_chunks_and_is_told_what_is_zero() {
    let Some(nbdsh) = tool("libnbd_reads_in_chunks", "nbdsh") else { return };
    let (place, server) = served(DISK);
    change(&place);
    let script = "
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(uri)
assert h.get_structured_replies_negotiated() and h.can_df() and h.can_cache()
kinds = []
def chunk(data, offset, status, error):
    kinds.append((len(data), offset, status))
data = h.pread_structured(8192, 8 << 20, chunk)
assert data == bytes([7]) * 4096 + bytes([8]) * 4096
zeroes = h.pread_structured(65536, 32 << 20, chunk)
assert zeroes == bytes(65536)
assert kinds == [(8192, 8 << 20, nbd.READ_DATA), (65536, 32 << 20, nbd.READ_HOLE)], kinds
h.cache(1 << 20, 1 << 20)
found = []
def extents(context, offset, entries, error):
    found.extend(entries)
h.block_status(1 << 20, 8 << 20, extents, nbd.CMD_FLAG_REQ_ONE)
assert found == [8192, 0], found
h.set_strict_mode(0)
try:
    h.block_status(0, 0, extents)
    assert False
except nbd.Error as error:
    assert error.errno == 'EINVAL'
assert h.pread(4096, 8 << 20) == bytes([7]) * 4096
h.shutdown()
";
    run(&nbdsh, &["-c", &format!("uri = '{}'\n", uri(&place)), "-c", script]);
    expect(&server.stop(), 0, "");
}

/// A disk of 1 TiB, data all over it in the log and on the disk, and another client that does not wait.
#[test]
fn a_map_of_a_large_disk_takes_no_time_and_nobody_waits() {
    let Some(nbdinfo) = tool("a_map_of_a_large_disk", "nbdinfo") else { return };
    const LARGE: u64 = 1 << 40;
    let place = Place::new();
    if File::create(place.path("data.img")).unwrap().set_len(LARGE).is_err() {
        return crate::common::skip("the file system has no files of 1 TiB");
    }
    drop(place);
    let (place, server) = served(LARGE);
    let mut nbd = place.nbd();
    for part in 0..64 {
        nbd.write(LARGE / 64 * part, &[1; 4096]).unwrap();
    }
    nbd.flush().unwrap();
    let uri = uri(&place);
    let began = Instant::now();
    let (mut longest, mut extents) = (Duration::ZERO, Vec::new());
    std::thread::scope(|scope| {
        let maps = scope.spawn(|| map(&nbdinfo, &uri));
        while !maps.is_finished() {
            let asked = Instant::now();
            nbd.read(MIB, 4096).unwrap();
            longest = longest.max(asked.elapsed());
        }
        extents = maps.join().unwrap();
    });
    println!("{:?} for {} extents, a read took {longest:?} at most", began.elapsed(), extents.len());
    // 64 in the log and one on the disk, holes in between.
    assert_eq!(extents.iter().filter(|(_, _, state)| *state == 0).count(), 65);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(longest < Duration::from_millis(500), "{longest:?}");
    nbd.disconnect().unwrap();
    expect(&server.stop(), 0, "");
}
