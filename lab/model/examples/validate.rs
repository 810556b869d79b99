//! The model against two real drives: their measured traces replayed, with the demerit figure.
//!
//! `DCD_TRACES=DIRECTORY cargo run --release -p dcd-model --example validate`
//!
//! The directory holds `atlas10k.trace.gz` and `barracuda.trace.gz`, which the DiskSim distribution has (uncompressed).

// An example is a program: it reads files.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

#[path = "../tests/disks/common/measured_trace.rs"]
mod measured_trace;

use std::path::Path;

use dcd_model::{Drive, ReadAhead, drive};

/// The rates of the buses on which the two drives were measured, in bytes a second: 0.099 and 0.134 ms for a block.
const ATLAS_BUS: u64 = 5_171_717;
const BARRACUDA_BUS: u64 = 3_820_896;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(dir) = std::env::var_os("DCD_TRACES") else {
        println!("SKIPPED: DCD_TRACES is not the directory with the measured traces");
        return Ok(());
    };
    let atlas = drive::builtin("atlas-10k")?.with_bus(ATLAS_BUS)?;
    let barracuda = drive::builtin("barracuda-st32171w")?.with_bus(BARRACUDA_BUS)?;
    let without = atlas.clone().with_read_ahead(ReadAhead::None);
    println!("{:<46} {:>9} {:>9} {:>9} {:>9}", "", "measured", "model", "demerit", "read hits");
    let trace = read(&Path::new(&dir).join("atlas10k.trace.gz"))?;
    row("Quantum Atlas 10K", &atlas, &trace, true);
    row("  without write-back", &atlas, &trace, false);
    row("  without read-ahead", &without, &trace, true);
    let trace = read(&Path::new(&dir).join("barracuda.trace.gz"))?;
    row("Seagate Barracuda ST32171W", &barracuda, &trace, true);
    Ok(())
}

fn read(path: &Path) -> Result<Vec<measured_trace::Measured>, Box<dyn std::error::Error>> {
    let file = std::fs::File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let text = std::io::read_to_string(flate2::read::GzDecoder::new(file))?;
    Ok(measured_trace::parse(&text)?)
}

fn row(what: &str, drive: &Drive, trace: &[measured_trace::Measured], write_cache: bool) {
    let measured: Vec<_> = trace.iter().map(|request| request.response).collect();
    let replay = measured_trace::replay(drive, trace, write_cache);
    println!(
        "{what:<46} {:>6.3} ms {:>6.3} ms {:>6.3} ms {:>8.1}%",
        measured_trace::mean_ms(&measured),
        replay.mean_ms(),
        measured_trace::demerit_ms(&measured, &replay.responses),
        100.0 * replay.read_hits as f64 / replay.reads as f64,
    );
}
