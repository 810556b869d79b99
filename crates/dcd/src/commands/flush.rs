//! `dcd flush`: writes all dirty data of a served stack back to the data disk.
//!
//! An interrupt ends this process and its connection, and the server then stops the flush: data written back stays written, and the
//! rest stays dirty.

use std::ops::ControlFlow;

use dcd_serve::control::{ClientError, ControlClient};

use crate::cli::Flush;
use crate::control;
use crate::failure::Failure;
use crate::progress::{Progress, say_so_when_interrupted};
use crate::session::serving::status::ServerStatus;
use crate::session::serving::verdict::Verdict;

pub fn run(args: &Flush) -> Result<(), Failure> {
    let mut client = control::connect(&args.file)?;
    let mut progress = Progress::new(args.quiet);
    let (mut told, mut waits) = (String::new(), false);
    let mut first = None;
    say_so_when_interrupted("");
    let result = client.call("flush", serde_json::json!({}), |seen| {
        if let Some(bytes) = seen["dirty_bytes"].as_u64() {
            // Written data counts as dirty until it is durable, which can take long.
            let durable = first.get_or_insert(bytes).saturating_sub(bytes);
            let written = seen["written_bytes"].as_u64().unwrap_or(0);
            progress.left(bytes - written.saturating_sub(durable).min(bytes));
        }
        if let Some(trouble) = seen["trouble"].as_str().filter(|trouble| *trouble != told) {
            progress.end();
            eprintln!("dcd: {trouble}; trying again until interrupted");
            trouble.clone_into(&mut told);
        }
        let waits_for = seen["waits"].as_str();
        if let Some(device) = waits_for.filter(|_| !waits) {
            progress.end();
            eprintln!("dcd: waiting, as {device}. An interrupt ends this command, and nothing is lost");
        }
        waits = waits_for.is_some();
        ControlFlow::Continue(())
    });
    match result {
        Ok(result) => {
            let left: Vec<&str> =
                result["left"].as_array().into_iter().flatten().filter_map(|left| left.as_str()).collect();
            if !left.is_empty() {
                progress.end();
                return Err(Failure::Degraded(format!(
                    "not everything is written back: {}. The other disks have all their data. \"dcd status {}\" says what to do",
                    left.join("; "),
                    args.file.display()
                )));
            }
            progress.done()
        }
        Err(error) => {
            progress.end();
            return Err(match error {
                ClientError::Refused(why) if has_lost_data(&mut client) => Failure::Damage(why),
                error => error.into(),
            });
        }
    }
    Ok(())
}

/// True if acknowledged data is lost or damaged, as the server's status says.
pub fn has_lost_data(client: &mut ControlClient) -> bool {
    ServerStatus::ask(client).is_ok_and(|status| Verdict::of(&status).health.is_damaged())
}
