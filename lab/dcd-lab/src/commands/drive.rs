//! `dcd calibrate --drive`: the stride benchmark on a modelled drive, in virtual time.

use std::path::Path;

use dcd_cli::Failure;
use dcd_engine::raid::stride::Pass;
use dcd_engine::{Extent, Lba, Nanos};
use dcd_model::{Drive, drive};

/// How long each pass takes; `passes` are over the whole drive.
pub fn stride_times(name: &str, passes: &dyn Fn(Extent) -> Vec<Pass>) -> Result<Vec<Nanos>, Failure> {
    let drive = load(name)?;
    let whole = Extent::new(Lba(0), drive.sectors());
    dcd_studies::stride_times(&drive, passes(whole)).map_err(|error| Failure::Failed(error.to_string()))
}

fn load(name: &str) -> Result<Drive, Failure> {
    let wrong = |e: dcd_model::DriveError| Failure::Failed(format!("--drive {name}: {e}"));
    if !Path::new(name).is_file() {
        return drive::builtin(name).map_err(wrong);
    }
    let text = std::fs::read_to_string(name).map_err(|e| Failure::io(name, e))?;
    Drive::parse(&text).map_err(wrong)
}
