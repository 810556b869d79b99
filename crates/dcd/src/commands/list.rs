//! `dcd list`: every stack of /etc/dcd, served or not, its dirty data, and the devices of its disks.

use std::path::{Path, PathBuf};

use dcd_engine::DataDiskStatus;
use dcd_stack::{HumanBytes, LayerStatus, StackFile};
use serde::Serialize;

use crate::block_devices::waiting_devices;
use crate::cli::List;
use crate::commands::status::columns;
use crate::commands::status::stopped::Stopped;
use crate::commands::status::text::{dirty_of, dirty_on};
use crate::control;
use crate::failure::Failure;
use crate::output::print_json;
use crate::session::serving::status::ServerStatus;
use crate::session::serving::verdict::Verdict;

/// A stack, as JSON shows it.
#[derive(Serialize)]
struct ListedStack {
    name: String,
    file: PathBuf,
    /// That of "dcd status", or "stopped", "given up" or "in use", or the reason why it is not known.
    state: String,
    /// True also where its devices are in use, and it has no control socket.
    is_served: bool,
    /// None if it is not known.
    dirty_bytes: Option<u64>,
    /// Time of the amounts of dirty data: "now", or the last "stop" of its server; none where they are not known.
    dirty_as_of: Option<&'static str>,
    /// Dirty data in words: discards and zeroes, which take almost no time to write back, are told apart.
    #[serde(skip)]
    dirty: Option<String>,
    /// The data disk, of several the first; none if the stack file cannot be read.
    data: Option<PathBuf>,
    /// The block devices by which the data disk is reached now, of several the first.
    block_devices: Vec<String>,
    /// The other data disks of a log with several.
    others: Vec<ListedDisk>,
    /// The first data disk of several.
    #[serde(skip)]
    first: Option<ListedDisk>,
    /// The reason why its state is not known, or an error of its file.
    #[serde(skip)]
    trouble: Option<String>,
}

/// A data disk of several, by its name in the stack file.
#[derive(Clone, Serialize)]
struct ListedDisk {
    name: String,
    path: Option<PathBuf>,
    block_devices: Vec<String>,
    /// None if it is not known.
    dirty_bytes: Option<u64>,
    /// In words, as of the stack.
    #[serde(skip)]
    dirty: Option<String>,
    #[serde(skip)]
    missing: bool,
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
    let notes: Vec<String> = all.iter().flat_map(ListedStack::notes).collect();
    let rows: Vec<[String; 5]> = all.into_iter().flat_map(rows).collect();
    print!("{}", columns(["STACK", "STATE", "DIRTY", "DEVICE", "DATA DISK"], &rows));
    notes.iter().for_each(|note| println!("{note}"));
    Ok(())
}

/// The line of a stack; of one with several disks, followed by a line for each.
fn rows(one: ListedStack) -> Vec<[String; 5]> {
    let dirty = |words: Option<String>, bytes: Option<u64>| {
        let words = words.as_deref().map(short).or(bytes.map(|bytes| HumanBytes(bytes).to_string()));
        match (words, one.dirty_as_of) {
            (Some(words), Some("stop")) => format!("{words} at its stop"),
            (words, _) => words.unwrap_or_else(|| "?".to_owned()),
        }
    };
    let path = |path: Option<PathBuf>| path.map_or("?".to_owned(), |path| path.display().to_string());
    let devices = |devices: &[String]| match devices {
        [] => "-".to_owned(),
        devices => devices.join(", "),
    };
    let state = if one.trouble.as_ref() == Some(&one.state) { "?".to_owned() } else { one.state };
    let Some(first) = one.first else {
        let dirty = dirty(one.dirty, one.dirty_bytes);
        return vec![[one.name, state, dirty, devices(&one.block_devices), path(one.data)]];
    };
    let all = dirty(one.dirty, one.dirty_bytes);
    let mut rows = vec![[one.name, state, all, String::new(), String::new()]];
    for disk in [first].into_iter().chain(one.others) {
        let state = if disk.missing { "missing" } else { "" };
        rows.push([
            format!("  {}", disk.name),
            state.to_owned(),
            dirty(disk.dirty, disk.dirty_bytes),
            devices(&disk.block_devices),
            path(disk.path),
        ]);
    }
    rows
}

/// Marks what a line below the table tells.
const NOTED: &str = " *";

/// Shortens an amount in words to its first part.
fn short(words: &str) -> String {
    words.split_once(" and ").map_or_else(|| words.to_owned(), |(first, _)| format!("{first}{NOTED}"))
}

impl ListedStack {
    /// The lines below the table: texts that are too long for a column.
    fn notes(&self) -> Vec<String> {
        let name = &self.name;
        let state = self.trouble.iter().map(|trouble| format!("{name}: {trouble}"));
        let amounts = self.dirty.iter().map(|dirty| (name.clone(), dirty));
        let disks = self.first.iter().chain(&self.others);
        let of_disks =
            disks.filter_map(|disk| Some((format!("{name}, {}", disk.name), disk.dirty.as_ref()?)));
        let dirty = amounts.chain(of_disks).filter(|(_, words)| short(words).ends_with(NOTED));
        state.chain(dirty.map(|(of, words)| format!("* {of}: {words}"))).collect()
    }
}

fn look(path: &Path) -> ListedStack {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let unknown = |state: String| ListedStack {
        name: name.clone(),
        file: path.to_owned(),
        state,
        is_served: false,
        dirty_bytes: None,
        dirty_as_of: None,
        dirty: None,
        data: None,
        block_devices: Vec::new(),
        others: Vec::new(),
        first: None,
        trouble: None,
    };
    let unknown = &unknown;
    let in_trouble = |why: String| ListedStack { trouble: Some(why.clone()), ..unknown(why) };
    let file = match StackFile::load(path) {
        Ok(file) => file,
        Err(error) => {
            // The server may still run with an earlier text of this file.
            let served = control::connect_if_served(path).ok().flatten();
            let status = served.and_then(|mut server| ServerStatus::ask(&mut server).ok());
            let of_server = status.map(|status| ListedStack {
                is_served: true,
                dirty_bytes: Some(status.dirty_bytes),
                dirty_as_of: Some("now"),
                dirty: Some(dirty_of(&status)),
                block_devices: status.block_devices.clone(),
                trouble: Some(error.to_string()),
                ..unknown(Verdict::of(&status).state.to_owned())
            });
            return of_server.unwrap_or_else(|| in_trouble(error.to_string()));
        }
    };
    let disk = |(disk, name): (usize, &str)| ListedDisk {
        name: name.to_owned(),
        path: file
            .data_path(if disk == 0 && !file.serves_several() { &file.export } else { name })
            .map(Path::to_owned),
        block_devices: waiting_devices(&file, disk, name),
        dirty_bytes: None,
        dirty: None,
        missing: false,
    };
    let mut disks: Vec<ListedDisk> = file.disks().into_iter().map(disk).collect();
    let server = control::server_of(&file);
    let asked = server.and_then(|server| server.map(|mut server| ServerStatus::ask(&mut server)).transpose());
    let mut listed = match asked {
        Ok(Some(status)) => {
            disks.iter_mut().for_each(|disk| disk.of_server(&status));
            ListedStack {
                is_served: true,
                dirty_bytes: Some(status.dirty_bytes),
                dirty_as_of: Some("now"),
                dirty: Some(dirty_of(&status)),
                block_devices: status.block_devices.clone(),
                ..unknown(Verdict::of(&status).state.to_owned())
            }
        }
        Ok(None) => {
            let stopped = Stopped::look(path);
            disks.iter_mut().for_each(|disk| disk.dirty_bytes = stopped.dirty_on(&disk.name));
            let dirty_bytes = stopped.dirty_bytes();
            ListedStack {
                is_served: stopped.is_in_use(),
                dirty_bytes,
                dirty_as_of: dirty_bytes.map(|_| "stop"),
                ..unknown(stopped.state().to_owned())
            }
        }
        Err(Failure::Refused(refusal)) => in_trouble(refusal.reason),
        Err(failure) => in_trouble(failure.to_string()),
    };
    let mut disks = disks.into_iter();
    let first = disks.next();
    listed.data = first.as_ref().and_then(|first| first.path.clone());
    if !listed.is_served {
        listed.block_devices = first.as_ref().map_or(Vec::new(), |first| first.block_devices.clone());
    }
    listed.others = disks.collect();
    listed.first = first.filter(|_| !listed.others.is_empty());
    listed
}

impl ListedDisk {
    /// Takes what a server says of the disk.
    fn of_server(&mut self, status: &ServerStatus) {
        let served = status.disks.iter().find(|disk| disk.name == self.name);
        self.block_devices = served.map_or(Vec::new(), |disk| disk.block_devices.clone());
        let mut all =
            status.layers.values().filter_map(LayerStatus::log_cache).flat_map(|cache| &cache.disks);
        let own: Option<&DataDiskStatus> = all.find(|disk| disk.name.as_deref() == Some(&self.name));
        self.dirty_bytes = own.map(|own| own.dirty_bytes);
        self.dirty = own.map(dirty_on);
        self.missing = own.is_some_and(|own| own.missing);
    }
}
