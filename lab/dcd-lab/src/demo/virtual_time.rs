//! The demonstration in virtual time: the same disks and caches, and generated requests in place of a file system.

use dcd_engine::{Control, Io};
use dcd_stack::METER;

use super::files::Files;
use super::report::{Phase, Results};
use crate::failure::Failure;
use crate::virtual_run::{RunOptions, VirtualRun, made};

const SEED: u64 = 1;
const COMMITS: u64 = 100;
/// The first part of each disk is the log, or unused on the plain one.
const LOG: &str = "64MiB";

fn stack(promise: Option<&str>) -> String {
    let mut text = format!(
        "[device.image]\nmemory = \"2GiB\"\n\
         [layer.disk]\nkind = \"disk\"\nof = \"image\"\ndrive = \"barracuda-1996\"\n\
         [layer.data]\nkind = \"slice\"\nof = \"disk\"\nfirst = \"{LOG}\"\n"
    );
    match promise {
        None => text.insert_str(0, "export = \"data\"\n"),
        Some(promise) => {
            text.insert_str(0, "export = \"cache\"\n");
            text.push_str(&format!(
                "[layer.log]\nkind = \"slice\"\nof = \"disk\"\nsize = \"{LOG}\"\n\
                 [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"data\"\npromise = \"{promise}\"\n"
            ));
        }
    }
    text
}

/// The requests of one phase.
type Requests = fn(&mut Files) -> Vec<Io>;

/// All phases on all disks.
pub fn run() -> Result<Results, Failure> {
    let mut phases = Vec::new();
    for (name, promise) in [("plain", None), ("flush", Some("flush")), ("always", Some("always"))] {
        let file = made(&stack(promise))?;
        let mut run = VirtualRun::start(&file, RunOptions::new(SEED))?;
        let mut files = Files::new(run.sectors(), SEED);
        let parts: [(&str, Requests); 4] = [
            ("untar", Files::untar),
            ("copy", Files::copy),
            ("remove", Files::remove),
            ("sqlite", |files| files.commits(COMMITS)),
        ];
        for (phase, requests) in parts {
            phases.push(measure(&mut run, name, phase, requests(&mut files))?);
        }
    }
    Ok(Results::new(phases))
}

fn measure(run: &mut VirtualRun, disk: &str, phase: &str, ios: Vec<Io>) -> Result<Phase, Failure> {
    run.control_all(Control::ResetStatistics);
    let begin = run.now();
    for io in ios {
        let what = dcd_crash::describe(&io);
        run.request(io).map_err(|e| Failure::Failed(format!("{what} failed: {e}")))?;
    }
    let seconds = run.now().since(begin).as_secs_f64();
    let report = run.report();
    debug_assert!(report["layers"].get(METER).is_none());
    Phase::from_status(disk, phase, seconds, &report).map_err(|e| Failure::Failed(e.to_string()))
}
