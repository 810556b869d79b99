//! Checks whether a stack is served well, or would start.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use dcd_io::ListenError;
use dcd_stack::{Address, StackFile};

use super::{Finding, Severity};
use crate::commands::serve::{admit_local_users, certificates, check_front_ends};
use crate::commands::status::text::span;
use crate::commands::status::verdict::Verdict;
use crate::control::server_of;
use crate::failure::Failure;
use crate::memory::enough_memory;
use crate::session::devices::Purpose;
use crate::session::judge::judge;
use crate::session::serving::checks::{admit_bare, admit_non_volatile, admit_plain_parts};
use crate::session::serving::status::ServerStatus;
use crate::session::site::Site;
use crate::session::start::leave_out;
use crate::session::survey::{Survey, start};

pub fn finding(path: &Path, file: &Result<StackFile, String>) -> Finding {
    let about = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match file {
        Err(error) => Finding::new(Severity::Bad, about, error.as_str())
            .with("\"dcd stack-file\" describes every field"),
        Ok(file) => match admit_local_users(file) {
            Err(Failure::Refused(refusal)) => {
                Finding::new(Severity::Bad, about, refusal.reason).with(refusal.action)
            }
            _ => served(file, &about).unwrap_or_else(|| not_served(file, about)),
        },
    }
}

/// Reports a served stack; none if it is not served.
fn served(file: &StackFile, about: &str) -> Option<Finding> {
    let asked = server_of(file).transpose()?.and_then(|mut client| ServerStatus::ask(&mut client));
    Some(match asked {
        Ok(status) => {
            let verdict = Verdict::of(&status);
            let found = format!("is served, and {}", verdict.state);
            match verdict.actions.as_slice() {
                [] if verdict.health.is_damaged() => Finding::new(Severity::Bad, about, found),
                [] => match full_before_window(&status) {
                    Some(full) => Finding::new(Severity::Note, about, format!("{found}; {full}")).with(WIDER),
                    None => Finding::new(Severity::Ok, about, found),
                },
                actions => Finding::new(Severity::Bad, about, found).with(actions.join("; ")),
            }
        }
        Err(Failure::Refused(refusal)) => {
            Finding::new(Severity::Bad, about, refusal.reason).with(refusal.action)
        }
        Err(failure) => Finding::new(Severity::Bad, about, failure.to_string()),
    })
}

const WIDER: &str = "widen destage-window, or take a larger log: what the log has no room for is written back at other times, too";

/// Describes a log that is full before its window opens, by the rate of the last minute; none if there is none.
fn full_before_window(status: &ServerStatus) -> Option<String> {
    status.writeback.iter().find_map(|(name, held)| {
        let opens = held.until_seconds?;
        let full = status.trends.get(name)?.full_in_seconds.filter(|full| *full < opens)?;
        Some(format!(
            "the log of \"{name}\" is full in {}, and destage-window opens in {}",
            span(full),
            span(opens)
        ))
    })
}

fn not_served(file: &StackFile, about: String) -> Finding {
    match would_start(file) {
        Ok(told) if told.is_empty() => Finding::new(Severity::Ok, about, "is not served, and would start"),
        Ok(told) => Finding::new(
            Severity::Note,
            about,
            format!("is not served, and would start: {}", told.join("; ")),
        ),
        Err(Failure::Busy(why)) => {
            let action = "stop what uses it, or add control = \"PATH\" to [serve] if that is its server";
            Finding::new(Severity::Note, about, why).with(action)
        }
        Err(Failure::Refused(refusal)) => {
            Finding::new(Severity::Bad, about, format!("would not start: {}", refusal.reason))
                .with(refusal.action)
        }
        Err(failure) => Finding::new(Severity::Bad, about, format!("would not start: {failure}")),
    }
}

/// Tries a start; returns what it would leave out. Each step is that of "dcd serve", but what the layers write stays in RAM.
fn would_start(file: &StackFile) -> Result<Vec<String>, Failure> {
    let mut file = Site::from(file.clone());
    file.hold(Purpose::Look);
    let export = file.export.clone();
    if !file.serve.has_front_end() {
        let why = "there is no front-end: add nbd, fuse, vhost-user or ublk to [serve]";
        return Err(Failure::Failed(why.to_owned()));
    }
    let tls = certificates(&file)?;
    check_front_ends(&file)?;
    let mut told = leave_out(&mut file, &[&export])?;
    told.extend(tls.into_iter().flat_map(|tls| tls.warnings));
    admit_non_volatile(&file, false)?;
    enough_memory(&file, file.memory_bytes())?;
    if let Some(device) = file.devices.iter().find(|device| device.is_made() && !device.is_there()) {
        // The record of a data disk says what the log was for.
        let mut survey = Survey::default();
        survey.look_at(&file, &[&export], Purpose::Look)?;
        judge(&file, &survey.seen, &file.asked)?;
        let without_format = file.log_caches().next().is_none() && file.arrays().next().is_none();
        return match without_format {
            true => Ok(vec![format!("the start makes device \"{}\"", device.name)]),
            false => Err(Failure::refused(
                format!("device \"{}\" is missing", device.name),
                "connect it, or correct its path. Only if there never was one, \"dcd format\", or \"dcd array create\", makes it",
            )),
        };
    }
    admit_plain_parts(&file)?;
    let (_started, parts) = start(&file, &[&export], Purpose::Look)?;
    admit_bare(&file, &parts, &export)?;
    // A server without a control socket has its devices, too: that is told first.
    addresses_are_free(&file)?;
    Ok(told)
}

/// Refuses a socket or port that another program has.
fn addresses_are_free(file: &StackFile) -> Result<(), Failure> {
    let unix = |path: &PathBuf| Address::Unix(path.clone());
    let serve = &file.serve;
    let sockets = serve.vhost_user.iter().chain(&serve.control).map(unix);
    let all = serve.nbd.iter().chain(&serve.metrics).cloned().chain(sockets);
    all.into_iter().try_for_each(|address| {
        let error = match address {
            Address::Tcp(address) => {
                TcpListener::bind(address).err().map(|source| ListenError::Tcp { address, source })
            }
            Address::Unix(path) => match fs::symlink_metadata(&path) {
                Ok(about) if !about.file_type().is_socket() => Some(ListenError::NotASocket { path }),
                Ok(_) if UnixStream::connect(&path).is_ok() => Some(ListenError::InUse { path, pid: None }),
                _ => None,
            },
        };
        error.map_or(Ok(()), |error| Err(Failure::Failed(error.to_string())))
    })
}
