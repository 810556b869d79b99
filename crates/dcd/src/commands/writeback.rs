//! `dcd writeback`: holds write-back of a served stack, ends that, or starts it now.

use dcd_stack::HumanBytes;
use serde_json::json;

use crate::cli::{Writeback, WritebackCommand};
use crate::control;
use crate::failure::Failure;

pub fn run(args: &Writeback) -> Result<(), Failure> {
    let word = match args.command {
        WritebackCommand::Pause => "pause",
        WritebackCommand::Resume => "resume",
        WritebackCommand::Now => "now",
    };
    let mut client = control::connect(&args.file)?;
    let answer = control::ask(&mut client, "writeback", json!({ "command": word }))?;
    let dirty = HumanBytes(answer["dirty_bytes"].as_u64().unwrap_or(0));
    match args.command {
        WritebackCommand::Pause => println!(
            "{dirty} dirty; write-back is paused until \"dcd writeback {} resume\", or until the server stops. Over its high mark a log is \
             written back all the same",
            args.file.display()
        ),
        WritebackCommand::Resume => println!("{dirty} dirty; write-back goes on as the settings say"),
        WritebackCommand::Now => {
            println!("{dirty} dirty; write-back has begun, and \"dcd status\" shows when it ends")
        }
    }
    Ok(())
}
