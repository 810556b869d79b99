//! Prints by how many microseconds a busy host delays requests to a disk, and how late it notices their ends: a line for each request.
//!
//! The disk is a thread that sleeps until a request has ended. Two loops for each processor and a writer that flushes a file disturb it.
//!
//! `cargo run --release -p dcd-sim --example host_noise > lab/sim/src/tool_tests/busy-host.txt`

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

const SAMPLES: usize = 1000;

fn main() {
    let begun = Instant::now();
    let nanos = move |at: Instant| u64::try_from(at.duration_since(begun).as_nanos()).expect("a short time");
    let loops = 2 * thread::available_parallelism().map_or(1, usize::from);
    for _ in 0..loops {
        thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
    }
    let path = std::env::temp_dir().join("dcd-host-noise");
    let mut file = File::create(&path).expect("a file");
    thread::spawn(move || {
        loop {
            file.write_all(&[1; 65_536]).and_then(|()| file.sync_all()).expect("written");
            file.set_len(0).expect("truncated");
        }
    });
    let (mut host, mut disk) = UnixStream::pair().expect("a pair");
    thread::spawn(move || {
        let mut length = [0; 8];
        while disk.read_exact(&mut length).is_ok() {
            let arrived = Instant::now();
            let ends = arrived + Duration::from_nanos(u64::from_le_bytes(length));
            thread::sleep(ends - arrived);
            let answer = [nanos(arrived).to_le_bytes(), nanos(ends).to_le_bytes()].concat();
            disk.write_all(&answer).expect("answered");
        }
    });
    for sample in 0..SAMPLES {
        // Half a millisecond to nine: a write on a rotational disk.
        let length = 500_000 + (sample as u64).wrapping_mul(2_654_435_761) % 8_500_000;
        let sent = Instant::now();
        host.write_all(&length.to_le_bytes()).expect("sent");
        let mut answer = [0; 16];
        host.read_exact(&mut answer).expect("answered");
        let noticed = nanos(Instant::now());
        let number = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().expect("eight bytes"));
        println!("{} {}", (number(0) - nanos(sent)) / 1000, (noticed - number(8)) / 1000);
    }
    std::fs::remove_file(path).expect("removed");
}
