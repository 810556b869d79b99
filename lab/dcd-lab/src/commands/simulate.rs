//! `dcd simulate`: a stack in virtual time against a generated workload. The same file, workload and seed give the same
//! run, which the trace hash shows. Where no disk is modelled it says how one is.

use dcd_stack::{HumanBytes, LayerKind, StackFile};
use serde_json::Value;

use crate::cli::Simulate;
use crate::failure::Failure;
use crate::virtual_run::{RunOptions, UNMODELLED, VirtualRun};
use crate::workload::{DEVICE_BYTES_MIN, Stream};

pub fn run(args: &Simulate) -> Result<(), Failure> {
    let file = StackFile::load(&args.file)?;
    let mut run = VirtualRun::start(&file, RunOptions::new(args.seed))?;
    let sectors = run.sectors();
    if sectors * dcd_engine::SECTOR_BYTES < DEVICE_BYTES_MIN {
        let least = HumanBytes(DEVICE_BYTES_MIN);
        return Err(Failure::Failed(format!(
            "{}: the export is too small: {least} at least",
            args.file.display()
        )));
    }
    let unmodelled = unmodelled(&file);
    if let Some(advice) = &unmodelled {
        eprintln!("dcd: {advice}");
    }
    run.run(&mut Stream::new(args.workload, sectors, args.seed), args.requests)?;
    let mut report = run.report();
    if args.json {
        report["seed"] = args.seed.into();
        report["disk_is_modelled"] = unmodelled.is_none().into();
        println!("{report}");
    } else {
        print!("{}", describe(&report));
    }
    Ok(())
}

/// What to do about a stack without a modelled disk: its times are those of no disk.
fn unmodelled(file: &StackFile) -> Option<String> {
    if file.layers.iter().any(|layer| matches!(layer.kind, LayerKind::Registered { .. })) {
        return None;
    }
    let mut data = file.export.as_str();
    while let Some(layer) = file.layer(data) {
        data = match &layer.kind {
            LayerKind::LogCache { data, .. } => &data.text,
            other => other.below_names().first()?,
        };
    }
    let above = file.layers.iter().find(|layer| layer.kind.below_names().contains(&data));
    let user = above.map_or("export = ".to_owned(), |layer| format!("[layer.{}]", layer.name));
    Some(format!(
        "{}: no disk is modelled: each device takes {} ms for an operation, and RAM no time. To model the disk \"{data}\", name \
         \"modelled\" in its place in {user}, and add:\n\n[layer.modelled]\nkind = \"disk\"\nof = \"{data}\"\ndrive = \"nearline-2018\"\n",
        file.path.display(),
        UNMODELLED.0 as f64 / 1e6
    ))
}

fn describe(report: &Value) -> String {
    let seconds = report["seconds"].as_f64().unwrap_or(0.0);
    let mut text = format!("{seconds:.3} s of virtual time\n");
    for kind in ["read", "write", "flush", "other"] {
        let times = &report["requests"][kind];
        let count = times["count"].as_u64().unwrap_or(0);
        if count > 0 {
            let ms = |field: &str| times[field].as_f64().unwrap_or(0.0);
            text.push_str(&format!(
                "{kind:<6} {count:>9}   mean {:>9.3} ms   p50 {:>9.3} ms   p99 {:>9.3} ms   max {:>9.3} ms\n",
                ms("mean_ms"),
                ms("p50_ms"),
                ms("p99_ms"),
                ms("max_ms")
            ));
        }
    }
    let hash = report["trace_hash"].as_str().unwrap_or("");
    text.push_str(&format!("trace hash {hash}\n"));
    text
}
