//! Runs a workload on the plain disk of 1996, and says what it measured and how long that took to simulate.
//!
//! `cargo run --release -p dcd-sim --example workloads [untar|postmark|RES|INS|WEB|HARP|SITAR] [MiB of buffer cache]`
//!
//! A trace can be given other numbers of files and another skew behind that, to see what they do.

use std::time::Instant;

use dcd_crash::{BlankDisk, Latency, VirtualDriver};
use dcd_engine::{Geometry, StackBuilder};
use dcd_model::ffs::{FfsConfig, OpKind, RequestClass};
use dcd_model::{Disk, DiskConfig};
use dcd_sim::workloads::{Measured, NUser, PROFILES, PostMark, Synthetic, Workload, run};

const DISK_BYTES: u64 = 4_000_000_000;

fn simulate(ffs: &FfsConfig, workload: &Workload) -> Measured {
    let geometry = Geometry::plain(DISK_BYTES / 4096 * 8);
    let mut builder = StackBuilder::new();
    let device = builder.device(geometry);
    let disk = Disk::new(&DiskConfig::default()).expect("a drive that is always there");
    let root = builder.layer("disk", Box::new(disk), &[device]);
    let mut stack = builder.finish(root);
    let mut driver = VirtualDriver::new(vec![BlankDisk::new(geometry, Latency::INSTANT, 1)]);
    stack.activate(&mut driver).expect("active");
    run(&mut stack, &mut driver, ffs, workload, 1).expect("it runs to its end")
}

fn print(measured: &Measured) {
    for phase in &measured.phases {
        println!("{}: {}, CPU {:.1} %", phase.name, phase.elapsed, phase.cpu_share() * 100.0);
        let requests = &phase.requests;
        println!(
            "  block requests: {} reads of mean {}, {} writes of mean {}",
            requests.reads.count(),
            requests.reads.mean(),
            requests.writes.count(),
            requests.writes.mean()
        );
        let Some(files) = &phase.files else { continue };
        for kind in OpKind::ALL {
            let times = files.op(kind);
            if times.count() > 0 {
                println!("  {kind:?}: {} calls, mean {}", times.count(), times.mean());
            }
        }
        for class in RequestClass::ALL {
            let (name, class) = (class.name(), files.class(class));
            if class.response.count() > 0 {
                println!(
                    "  {name:>17}: {:>8} requests, mean {}",
                    class.response.count(),
                    class.response.mean()
                );
            }
        }
        println!(
            "  misses: {:.1} % of data, {:.1} % of metadata",
            files.data.miss_rate() * 100.0,
            files.metadata.miss_rate() * 100.0
        );
    }
    for fit in &measured.fit {
        println!("  {:>22}: table {:>10.2}, run {:>10.2}", fit.what, fit.table, fit.run);
    }
    if let Some(counters) = measured.postmark {
        println!("{counters:?}");
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "untar".to_owned());
    let cache = arguments.next().and_then(|text| text.parse::<u64>().ok());
    let mut profile = PROFILES.into_iter().find(|profile| profile.name == name);
    if let (Some(profile), Some(files)) = (&mut profile, arguments.next().and_then(|text| text.parse().ok()))
    {
        profile.files = files;
    }
    if let (Some(profile), Some(skew)) = (&mut profile, arguments.next().and_then(|text| text.parse().ok())) {
        profile.skew = skew;
    }
    let (mut ffs, workload) = match (name.as_str(), profile) {
        (_, Some(profile)) => (FfsConfig::default(), Workload::Synthetic(Synthetic { profile })),
        ("postmark", _) => (FfsConfig::default(), Workload::PostMark(PostMark::default())),
        _ => (FfsConfig::ultra_1(), Workload::NUser(NUser::default())),
    };
    ffs.buffer_cache_bytes = cache.map_or(ffs.buffer_cache_bytes, |mib| mib << 20);
    let started = Instant::now();
    let measured = simulate(&ffs, &workload);
    print(&measured);
    println!("{:.2} s", started.elapsed().as_secs_f64());
}
