//! `dcd list`: every stack of /etc/dcd, served or not, and its dirty data.

use std::path::{Path, PathBuf};

use dcd_stack::{HumanBytes, StackFile};
use serde::Serialize;

use crate::cli::List;
use crate::commands::status::columns;
use crate::commands::status::stopped::Stopped;
use crate::commands::status::text::dirty_of;
use crate::commands::status::verdict::Verdict;
use crate::control;
use crate::failure::Failure;
use crate::output::print_json;
use crate::session::serving::status::ServerStatus;

/// A stack, as JSON shows it.
#[derive(Serialize)]
struct ListedStack {
    name: String,
    file: PathBuf,
    /// That of "dcd status", or "stopped", or the reason why it is not known.
    state: String,
    is_served: bool,
    /// None if it is not known.
    dirty_bytes: Option<u64>,
    /// Dirty data in words: discards and zeroes, which take almost no time to write back, are told apart.
    #[serde(skip)]
    dirty: Option<String>,
    /// The data disk, of several the first; none if the stack file cannot be read.
    data: Option<PathBuf>,
    /// The other data disks of a log with several.
    others: Vec<ListedDisk>,
}

/// A data disk of several, by its name in the stack file.
#[derive(Serialize)]
struct ListedDisk {
    name: String,
    path: Option<PathBuf>,
}

pub fn run(args: &List) -> Result<(), Failure> {
    let all = control::at_once(&control::stack_files(), |file| look(file));
    if args.json {
        return print_json(&all);
    }
    if all.is_empty() {
        println!("there is no stack in {}: \"dcd create\" makes one", control::stacks_dir().display());
        return Ok(());
    }
    let unknown = || "?".to_owned();
    let row = |one: ListedStack| {
        let bytes = one.dirty_bytes.map(|bytes| HumanBytes(bytes).to_string());
        let dirty = one.dirty.or(bytes).unwrap_or_else(unknown);
        let mut data = one.data.map_or_else(unknown, |data| data.display().to_string());
        for ListedDisk { name, path } in one.others {
            let path = path.map_or_else(unknown, |path| path.display().to_string());
            data += &format!(", {name}: {path}");
        }
        [one.name, one.state, dirty, data]
    };
    let rows: Vec<[String; 4]> = all.into_iter().map(row).collect();
    print!("{}", columns(["STACK", "STATE", "DIRTY", "DATA DISK"], &rows));
    Ok(())
}

fn look(path: &Path) -> ListedStack {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let listed = |state: String, data| ListedStack {
        name,
        file: path.to_owned(),
        state,
        is_served: false,
        dirty_bytes: None,
        dirty: None,
        data,
        others: Vec::new(),
    };
    let file = match StackFile::load(path) {
        Ok(file) => file,
        Err(error) => return listed(error.to_string(), None),
    };
    let data = file.data_path(&file.export).map(Path::to_owned);
    let disk =
        |name: &str| ListedDisk { name: name.to_owned(), path: file.data_path(name).map(Path::to_owned) };
    let others = file.served_disks().into_iter().skip(1).filter(|name| !file.is_free_place(name));
    let others = others.map(disk).collect();
    let server = control::server_of(&file);
    let listed = |state, data| ListedStack { others, ..listed(state, data) };
    match server.and_then(|server| server.map(|mut server| ServerStatus::ask(&mut server)).transpose()) {
        Ok(Some(status)) => {
            let state = Verdict::of(&status).state.to_owned();
            let dirty = Some(dirty_of(&status));
            ListedStack {
                is_served: true,
                dirty_bytes: Some(status.dirty_bytes),
                dirty,
                ..listed(state, data)
            }
        }
        Ok(None) => {
            let dirty_bytes = Stopped::look(path).dirty_bytes();
            ListedStack { dirty_bytes, ..listed("stopped".to_owned(), data) }
        }
        Err(Failure::Refused(refusal)) => listed(refusal.reason, data),
        Err(failure) => listed(failure.to_string(), data),
    }
}
