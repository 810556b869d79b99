//! `dcd drive`, and `dcd calibrate --drive`: the stride benchmark on a modelled drive, in virtual time.

mod validate;

use std::path::Path;

use dcd_engine::raid::stride::StridePass;
use dcd_engine::{Extent, Lba, Nanos, SECTOR_BYTES};
use dcd_model::{AnyDrive, DriveError, drive};

use crate::cli_drive::{self, DrivePart, Show};
use crate::failure::Failure;

pub fn run(args: &cli_drive::Drive) -> Result<(), Failure> {
    match &args.part {
        DrivePart::Show(args) => show(args),
        DrivePart::Validate(args) => validate::run(args),
    }
}

fn show(args: &Show) -> Result<(), Failure> {
    match &args.drive {
        None if args.fields => {
            print!("{}", dcd_model::fields());
            Ok(())
        }
        None => list(),
        Some(name) if args.file => {
            // What is shown can be used: a file that cannot be read as a drive is refused here, too.
            load(name)?;
            let text = drive::source(name, Path::new(name)).map_err(|e| wrong(name, &e))?;
            print!("{text}");
            Ok(())
        }
        Some(name) => {
            print!("{}", dcd_model::describe(&load(name)?));
            Ok(())
        }
    }
}

fn list() -> Result<(), Failure> {
    println!("{:<20} {:>9}  about", "drive", "capacity");
    for name in drive::names() {
        let drive = load(name)?;
        let gigabytes = (drive.sectors() * SECTOR_BYTES) as f64 / 1e9;
        println!("{name:<20} {gigabytes:>6.1} GB  {}", drive.description());
    }
    Ok(())
}

/// Returns how long each pass takes; `passes` are over the whole drive.
pub fn stride_times(
    name: &str,
    passes: &dyn Fn(Extent) -> Vec<StridePass>,
) -> Result<Vec<Nanos>, dcd_cli::Failure> {
    let failed = |text: String| dcd_cli::Failure::Failed(text);
    let drive = drive::open(name, Path::new(name)).map_err(|e| failed(format!("--drive {name}: {e}")))?;
    let whole = Extent::new(Lba(0), drive.sectors());
    dcd_studies::stride_times(&drive, passes(whole)).map_err(|error| failed(error.to_string()))
}

fn load(name: &str) -> Result<AnyDrive, Failure> {
    AnyDrive::open(name, Path::new(name)).map_err(|e| wrong(name, &e))
}

fn wrong(name: &str, error: &DriveError) -> Failure {
    Failure::Failed(format!("drive {name}: {error}"))
}
