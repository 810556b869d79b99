//! `dcd set`: changes settings of a served stack, and of its file where that is asked for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use dcd_engine::log_cache::WritesState;
use dcd_engine::{LogCacheState, LogCacheStatus};
use dcd_stack::StackFile;
use serde_json::json;

use crate::cli::Set;
use crate::control::{self, ControlClient};
use crate::failure::Failure;
use crate::memory::enough_memory;
use crate::progress::Progress;
use crate::session::serving::status::{ServerStatus, destage_trouble, lost_text};
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
    text.map_or(Ok(()), ChangedText::put)?;
    match args.changes.iter().any(|change| is_through(change)) {
        true => wait_for_through(&mut client),
        false => Ok(()),
    }
}

/// Polling interval of a server whose log is emptied.
const INTERVAL: Duration = Duration::from_millis(100);

fn is_through(change: &str) -> bool {
    change.split_once('=').is_some_and(|(key, value)| {
        key.trim().rsplit('.').next() == Some("writes") && value.trim().trim_matches('"') == "through"
    })
}

/// Waits until writes go to the data disk, which is when everything in the logs is written back. The server does that without this command,
/// too.
fn wait_for_through(client: &mut ControlClient) -> Result<(), Failure> {
    let mut progress = Progress::new(false);
    let mut told = String::new();
    let interrupted = || {
        eprintln!(
            "\ndcd: interrupted: the setting stays, and the server goes on. Writes go through once \"dcd status\" says so; until then the log is \
             needed"
        );
        std::process::exit(1);
    };
    // Without that, an interrupt ends this without a message.
    let _ = dcd_io::on_interrupt(interrupted);
    loop {
        let status = ServerStatus::ask(client)?;
        let caches = || status.layers.iter().filter_map(|(name, layer)| Some((name, layer.log_cache()?)));
        let wanted = |name: &str| status.writes_to_go_through.iter().any(|other| other == name);
        let waits =
            |(name, cache): &(&String, &LogCacheStatus)| cache.writes != WritesState::Through && wanted(name);
        let Some((name, cache)) = caches().find(waits) else {
            progress.end();
            return Ok(());
        };
        let never = match cache.state {
            LogCacheState::LogFailed => Some("its log device failed".to_owned()),
            _ => lost_text(cache.lost_blocks)
                .map(|lost| format!("{lost}, which have to be written again first")),
        };
        if let Some(why) = never {
            progress.end();
            return Err(Failure::Degraded(format!(
                "log cache \"{name}\": the setting is in force, but the log cannot be emptied: {why}. \"dcd status\" says what to do"
            )));
        }
        if let Some(trouble) = destage_trouble(cache).filter(|trouble| *trouble != told) {
            progress.end();
            eprintln!("dcd: log cache \"{name}\": {trouble}; trying again until interrupted");
            told = trouble;
        }
        progress.left(cache.dirty_data_bytes);
        std::thread::sleep(INTERVAL);
    }
}

/// The stack file of a server, which may have been named by its control socket.
pub fn stack_file(named: &Path, client: &mut ControlClient) -> Result<PathBuf, Failure> {
    if named.is_file() {
        return Ok(named.to_owned());
    }
    let answer = control::ask(client, "settings", json!({}))?;
    Ok(answer["stack"].as_str().unwrap_or_default().into())
}
