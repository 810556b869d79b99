//! `dcd flush`: brings all dirty data of a served stack home.
//!
//! An interrupt ends this process and with it the connection, by which the server learns to stop: what is home stays
//! home, and the rest is where it was.

use std::ops::ControlFlow;

use crate::cli::Flush;
use crate::control;
use crate::failure::Failure;
use crate::progress::Progress;

pub fn run(args: &Flush) -> Result<(), Failure> {
    let mut client = control::connect(&args.file)?;
    let mut progress = Progress::new(args.quiet);
    let result = client.call("flush", serde_json::json!({}), |seen| {
        if let Some(bytes) = seen["dirty_bytes"].as_u64() {
            progress.left(bytes);
        }
        ControlFlow::Continue(())
    });
    progress.end();
    result?;
    Ok(())
}
