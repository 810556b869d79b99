//! Measures the speed of the model and prints its figures: random 4 KiB reads over a whole drive, one after the other.
//!
//! `cargo run --release -p dcd-model --example random_reads -- [DRIVE] [REQUESTS] [DEPTH] [fcfs|sptf]`

// An example is its own driver, and drivers have clocks.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::time::Instant;

use dcd_engine::{
    Buf, Command, Cx, Event, Geometry, Io, IoResult, Layer, Lba, Nanos, Port, Ports, Request, RequestId,
};
use dcd_model::{Disk, DiskConfig, Scheduler, drive};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

struct Below(Geometry);

impl Ports for Below {
    fn geometry(&self, _port: Port) -> Geometry {
        self.0
    }

    fn run(&mut self, _port: Port, io: Io) -> IoResult {
        IoResult::ok(io.take_buf())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize, default: &str| arguments.get(index).cloned().unwrap_or(default.to_owned());
    let name = argument(0, "barracuda-1996");
    let requests: u64 = argument(1, "1000000").parse()?;
    let depth: u64 = argument(2, "1").parse()?;
    let queue = match argument(3, "fcfs").as_str() {
        "fcfs" => Scheduler::Fcfs,
        "sptf" => Scheduler::Sptf,
        other => return Err(format!("no scheduler is called {other}: write fcfs or sptf").into()),
    };
    let drive = drive::builtin(&name)?;
    let sectors = drive.sectors();
    println!("{}: {}", drive.name(), drive.description());
    let facts = [drive.mean_seek(), drive.revolution()].map(Nanos::as_millis_f64);
    println!("mean seek {:.3} ms, revolution {:.3} ms, {sectors} sectors", facts[0], facts[1]);
    let mut disk = Disk::with_drive(drive, &DiskConfig { queue, ..DiskConfig::default() });
    disk.activate(&mut Below(Geometry::plain(sectors)))?;

    let begin = Instant::now();
    let end = run(&mut disk, requests, depth.max(1), sectors / 8);
    let seconds = begin.elapsed().as_secs_f64();
    println!("{requests} requests in {:.1} simulated seconds and {seconds:.2} real ones:", end.as_secs_f64());
    println!(
        "{:.0} requests/s, mean {:.3} ms each",
        requests as f64 / seconds,
        end.as_millis_f64() / requests as f64
    );
    println!("{:#}", disk.status(end).to_json());
    Ok(())
}

fn run(disk: &mut Disk, requests: u64, depth: u64, places: u64) -> Nanos {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let (mut now, mut sent, mut answered) = (Nanos::ZERO, 0, 0);
    let mut cx = Cx::default();
    let mut events = Vec::new();
    while answered < requests {
        while sent < requests && sent - answered < depth {
            let at = Lba(random.random_range(0..places) * 8);
            let request =
                Request { id: RequestId(sent), disk: 0, io: Io::Read { at, buf: Buf::blank(4096) } };
            disk.handle(Event::Request(request), cx.at(now));
            sent += 1;
        }
        now = disk.next_deadline().expect("requests are in flight");
        events.push(Event::Wake);
        while let Some(event) = events.pop() {
            disk.handle(event, cx.at(now));
            for command in cx.commands.drain(..) {
                match command {
                    Command::Submit { op, io, .. } => {
                        events.push(Event::Completed { op, result: IoResult::ok(io.take_buf()) });
                    }
                    Command::Reply { .. } => answered += 1,
                    Command::Report(_) => {}
                }
            }
        }
    }
    now
}
