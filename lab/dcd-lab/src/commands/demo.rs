//! `dcd demo`: what `make demo` needs besides a shell.

use std::path::Path;

use dcd_trace::Inputs;

use crate::cli::{Demo, DemoPart};
use crate::demo::report::{PROMISES, Results};
use crate::demo::tree;
use crate::failure::Failure;

/// The tree is the same on every machine.
const SEED: u64 = 1999;

pub fn run(args: &Demo) -> Result<(), Failure> {
    match &args.part {
        DemoPart::Tree { directory } => {
            tree::write(directory, SEED).map_err(|e| Failure::io(directory.display(), e))
        }
        DemoPart::Report { results, report, users, drive, front_end } => {
            let text = std::fs::read_to_string(results).map_err(|e| Failure::io(results.display(), e))?;
            let parsed =
                Results::parse(&text).map_err(|e| Failure::Failed(format!("{}: {e}", results.display())))?;
            let who = if *users == 1 { "one user".to_owned() } else { format!("{users} users at once") };
            let setting = format!(
                "A 7200 rpm disk ({drive}), modelled and paced in real time; ext2 with dirsync and ext4 through \
                 {front_end} and loop, {who}. Log of 64 MiB on the same disk."
            );
            show(&parsed, &setting, report, &Inputs::new([results]))
        }
    }
}

fn show(results: &Results, setting: &str, report: &Path, inputs: &Inputs) -> Result<(), Failure> {
    println!("{setting}\n\n{}\n{}\n\n{PROMISES}", results.table().text(), results.headline());
    if let Some(warning) = results.warning() {
        println!("\n{warning}");
    }
    if let Some(directory) = report.parent() {
        std::fs::create_dir_all(directory).map_err(|e| Failure::io(directory.display(), e))?;
    }
    let page = results.html("dcd: file systems on a slow disk, plain and cached", setting);
    inputs.write(report, page)?;
    println!("\nReport with histograms of response times: {}", report.display());
    Ok(())
}
