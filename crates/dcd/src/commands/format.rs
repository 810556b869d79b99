//! `dcd format`: makes the log of a cache, and attaches it to a data disk.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use dcd_engine::log_cache::offline::{FormatOptions, OfflineError, format, read_superblock};
use dcd_engine::{BlockDevice, SECTOR_BYTES};
use dcd_stack::{HumanBytes, StackFile, toml_text};

use crate::attachment::{AttachmentState, Refusal, admit_attach, uuid_text};
use crate::choice::Choice;
use crate::cli::Format;
use crate::failure::Failure;
use crate::opening::{Opened, attachment, refused};
use crate::probe::probe;

pub fn run(args: &Format) -> Result<(), Failure> {
    let written = written_stack(args)?;
    let choice = match (&args.file, &written) {
        (Some(file), _) => Choice::load(file, args.layer.as_deref())?,
        (None, written) => Choice::of(StackFile::parse(&written.text, &written.origin)?, None)?,
    };
    let mut opened = Opened::create(&choice)?;
    if let Some(record) = &opened.record {
        admit_attach(&record.load()?, record.extent(), args.force)?;
    }
    refuse_content(&mut opened.log, &choice, args.force)?;
    let options = FormatOptions {
        segment_bytes: u32::try_from(args.segment_size)
            .map_err(|_| Failure::Failed("--segment-size: it must be at most 16MiB".to_owned()))?,
        force: args.force,
        ..FormatOptions::new(random_uuid()?, random_uuid()?)
    };
    let superblock = format(&mut opened.log, &mut opened.data, &options).map_err(refused)?;
    if let Some(record) = &opened.record {
        let attached = attachment(&choice, record.extent(), &superblock, AttachmentState::Clean);
        record.update(|_| attached)?;
    }
    let log_bytes = u64::from(superblock.segments) * u64::from(superblock.segment_bytes);
    println!(
        "cache {}: a log of {} for {} of data, which keep their place",
        uuid_text(superblock.cache_uuid),
        HumanBytes(log_bytes),
        HumanBytes(superblock.data_sectors * SECTOR_BYTES)
    );
    if let Some(path) = &args.stack {
        write_new(path, &written.text)?;
        println!("stack file: {0}; serve it with: dcd serve {0}", path.display());
    }
    Ok(())
}

/// Refuses a log device with something on it, unless that is the empty log of a cache that is not in use.
fn refuse_content(log: &mut dyn BlockDevice, choice: &Choice, force: bool) -> Result<(), Failure> {
    match read_superblock(log) {
        // Whether that log may go is for `format` to say: it looks into it.
        Ok(_) => return Ok(()),
        Err(OfflineError::Io { what, source }) => return Err(Failure::Failed(format!("{what}: {source}"))),
        Err(_) => {}
    }
    let found = probe(log).map_err(|e| Failure::Failed(format!("reading the log device: {e}")))?;
    let (Some(what), false) = (found, force) else { return Ok(()) };
    let size = HumanBytes(log.geometry().sectors * SECTOR_BYTES);
    Err(Failure::Refused(Refusal::new(
        format!("{} has {what} on it", choice.log_name().display()),
        format!("choose another device for the log, or add --force: its {size} would be overwritten"),
    )))
}

/// The stack file that `--log` and `--data` describe.
struct Written {
    text: String,
    origin: PathBuf,
}

fn written_stack(args: &Format) -> Result<Written, Failure> {
    let origin = args.stack.clone().unwrap_or_else(|| PathBuf::from("dcd.toml"));
    let (Some(log), Some(data)) = (&args.log, &args.data) else {
        return Ok(Written { text: String::new(), origin });
    };
    if let Some(stack) = args.stack.as_deref().filter(|stack| stack.exists()) {
        return Err(Failure::Failed(format!("{}: it exists; choose another name", stack.display())));
    }
    // What was typed is relative to here, and a stack file is relative to itself.
    let absolute = |path: &Path| {
        let path = std::path::absolute(path).map_err(|e| Failure::io(path.display(), e))?;
        let text = path.to_str().ok_or_else(|| Failure::Failed(format!("{}: not UTF-8", path.display())))?;
        Ok::<String, Failure>(toml_text(text))
    };
    let name = origin.file_stem().and_then(|stem| stem.to_str()).unwrap_or("dcd");
    // Sockets lie beside the stack file, but not in /etc.
    let in_etc = std::path::absolute(&origin).is_ok_and(|path| path.starts_with("/etc"));
    let sockets = if in_etc { "/run/dcd/" } else { "" };
    let mut text = String::from(
        "# Written by dcd format; \"dcd stack-file\" describes every field.\nexport = \"cache\"\n\n",
    );
    let _ = writeln!(
        text,
        "[serve]\nnbd = {}\ncontrol = {}\n",
        toml_text(&format!("unix:{sockets}{name}.sock")),
        toml_text(&format!("{sockets}{name}.control"))
    );
    let _ = writeln!(text, "[device.log]\npath = {}", absolute(log)?);
    if let Some(size) = args.log_size {
        let _ = writeln!(text, "size = {size}");
    }
    let _ = writeln!(text, "\n[device.data]\npath = {}\n", absolute(data)?);
    text.push_str(
        "[layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"data\"\npromise = \"flush\"\n",
    );
    Ok(Written { text, origin })
}

fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|e| Failure::io(path.display(), e))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|e| Failure::io(path.display(), e))
}

/// A random UUID (version 4).
pub(super) fn random_uuid() -> Result<[u8; 16], Failure> {
    let mut uuid = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut uuid));
    read.map_err(|e| Failure::io("/dev/urandom", e))?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}
