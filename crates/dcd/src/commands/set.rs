//! `dcd set`: changes settings of a served stack, and of its file where that is asked for.

use std::path::{Path, PathBuf};

use dcd_stack::StackFile;
use serde_json::json;

use crate::cli::Set;
use crate::control::{self, ControlClient};
use crate::failure::Failure;
use crate::memory::enough_memory;
use crate::session::stack_text::ChangedText;

pub fn run(args: &Set) -> Result<(), Failure> {
    let mut client = control::connect(&args.file)?;
    let path = stack_file(&args.file, &mut client)?;
    // The server checks all else. A deeper destage takes more RAM.
    if let Ok(file) = StackFile::load(&path)
        && let Ok(changed) = file.changed(&args.changes)
    {
        enough_memory(&changed, changed.memory_bytes())?;
    }
    let text = if args.save { Some(ChangedText::prepare(&path, &args.changes)?) } else { None };
    control::ask(&mut client, "set", json!({ "changes": args.changes }))?;
    text.map_or(Ok(()), ChangedText::put)
}

/// The stack file of a server, which may have been named by its control socket.
pub fn stack_file(named: &Path, client: &mut ControlClient) -> Result<PathBuf, Failure> {
    if named.is_file() {
        return Ok(named.to_owned());
    }
    let answer = control::ask(client, "settings", json!({}))?;
    Ok(answer["stack"].as_str().unwrap_or_default().into())
}
