//! Checks whether a stack is served well, or would start.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use dcd_io::ListenError;
use dcd_stack::{Address, HumanBytes, StackFile};

use super::{Finding, Severity};
use crate::cli::VERSION;
use crate::commands::serve::{admit_local_users, certificates, check_front_ends};
use crate::commands::status::stopped::start_command;
use crate::commands::status::text::span;
use crate::control::server_of;
use crate::failure::Failure;
use crate::memory::enough_memory;
use crate::session::devices::Purpose;
use crate::session::judge::judge;
use crate::session::machine;
use crate::session::serving::checks::{admit_bare, admit_non_volatile, admit_plain_parts};
use crate::session::serving::status::ServerStatus;
use crate::session::serving::verdict::Verdict;
use crate::session::site::Site;
use crate::session::start::leave_out;
use crate::session::survey::{Survey, start};

pub fn findings(path: &Path, file: &Result<StackFile, String>) -> Vec<Finding> {
    let about = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match file {
        Err(error) => vec![
            Finding::new(Severity::Bad, about, error.as_str())
                .with("\"dcd stack-file\" describes every field"),
        ],
        Ok(file) => match admit_local_users(file) {
            Err(Failure::Refused(refusal)) => {
                vec![Finding::new(Severity::Bad, about, refusal.reason).with(refusal.action)]
            }
            _ => served(file, &about).unwrap_or_else(|| vec![not_served(file, about)]),
        },
    }
}

/// Reports a served stack; none if it is not served.
fn served(file: &StackFile, about: &str) -> Option<Vec<Finding>> {
    let asked = server_of(file).transpose()?.and_then(|mut client| ServerStatus::ask(&mut client));
    let finding = match asked {
        Ok(status) => return Some(of_server(&status, about)),
        Err(Failure::Refused(refusal)) => {
            Finding::new(Severity::Bad, about, refusal.reason).with(refusal.action)
        }
        Err(failure) => Finding::new(Severity::Bad, about, failure.to_string()),
    };
    Some(vec![finding])
}

/// Reports the state of a server, and a program that is not the installed one.
fn of_server(status: &ServerStatus, about: &str) -> Vec<Finding> {
    let verdict = Verdict::of(status);
    let found = format!("is served, and {}", verdict.state);
    let state = match verdict.actions.as_slice() {
        [] if verdict.health.is_damaged() => Finding::new(Severity::Bad, about, found),
        [] => match full_before_window(status) {
            Some(full) => Finding::new(Severity::Note, about, format!("{found}; {full}")).with(WIDER),
            None => Finding::new(Severity::Ok, about, found),
        },
        actions => Finding::new(Severity::Bad, about, found).with(actions.join("; ")),
    };
    let program = status.other_program().map(|program| {
        let found = format!("its server {program}. This dcd is {VERSION}");
        Finding::new(Severity::Note, about, found).with(restart(&status.stack))
    });
    [state].into_iter().chain(program).collect()
}

/// The command that serves a stack with the installed program.
fn restart(stack: &Path) -> String {
    format!(
        "dcd stop --for-restart {} && {}: requests wait meanwhile. It is refused where they would fail: unmount first what is on the device",
        stack.display(),
        start_command(stack)
    )
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
        Ok(Trial { told, dirty_bytes }) => {
            let dirty = Some(dirty_bytes).filter(|bytes| *bytes > 0);
            let dirty = dirty.map_or_else(String::new, |bytes| {
                format!(", with {} that the data disk lacks", HumanBytes(bytes))
            });
            let found = format!("is not served, and would start{dirty}");
            match told.is_empty() {
                true => Finding::new(Severity::Ok, about, found),
                false => Finding::new(Severity::Note, about, format!("{found}: {}", told.join("; "))),
            }
        }
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

/// Result of a start that was tried.
struct Trial {
    /// Parts that it would leave out, and warnings.
    told: Vec<String>,
    /// Data in the logs that the data disks lack.
    dirty_bytes: u64,
}

/// Tries a start. Each step is that of "dcd serve", but what the layers write stays in RAM.
fn would_start(file: &StackFile) -> Result<Trial, Failure> {
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
    told.extend(machine::without_id().filter(|_| file.log_caches().next().is_some()));
    admit_non_volatile(&file, false)?;
    enough_memory(&file, file.memory_bytes())?;
    if let Some(device) = file.devices.iter().find(|device| device.is_made() && !device.is_there()) {
        // The record of a data disk says what the log was for.
        let mut survey = Survey::default();
        survey.look_at(&file, &[&export], Purpose::Look)?;
        judge(&file, &survey.seen, &file.asked)?;
        let without_format = file.log_caches().next().is_none() && file.arrays().next().is_none();
        return match without_format {
            true => {
                let told = vec![format!("the start makes device \"{}\"", device.name)];
                Ok(Trial { told, dirty_bytes: 0 })
            }
            false => Err(Failure::refused(
                format!("device \"{}\" is missing", device.name),
                "connect it, or correct its path. Only if there never was one, \"dcd format\", or \"dcd array create\", makes it",
            )),
        };
    }
    admit_plain_parts(&file)?;
    let (started, parts) = start(&file, &[&export], Purpose::Look)?;
    admit_bare(&file, &parts, &export)?;
    // A server without a control socket has its devices, too: that is told first.
    addresses_are_free(&file)?;
    let dirty = |layer| started.status(layer).log_cache().map_or(0, |cache| cache.dirty_data_bytes);
    let dirty_bytes = parts.layers.values().copied().map(dirty).sum();
    Ok(Trial { told, dirty_bytes })
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
                tcp_trouble(address, &listening()).map(|source| ListenError::Tcp { address, source })
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

/// Returns the reason if a server cannot listen at an address. Nothing listens there for the answer: a server that starts at the same time
/// would find the port in use.
fn tcp_trouble(address: SocketAddr, listening: &[SocketAddr]) -> Option<io::Error> {
    let overlaps = |other: &&SocketAddr| {
        let is_any = |one: &SocketAddr, other: &SocketAddr| {
            one.ip().is_unspecified() && (one.is_ipv6() || other.is_ipv4())
        };
        other.port() == address.port()
            && (other.ip() == address.ip() || is_any(other, &address) || is_any(&address, other))
    };
    let is_in_use = address.port() > 0 && listening.iter().any(|other| overlaps(&other));
    is_in_use.then(|| io::ErrorKind::AddrInUse.into())
}

/// The addresses at which programs listen, in this network namespace.
fn listening() -> Vec<SocketAddr> {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    tables.iter().flat_map(|table| listening_in(&fs::read_to_string(table).unwrap_or_default())).collect()
}

/// Parses /proc/net/tcp or tcp6: the second column is the local address in words of the machine's byte order, and the fourth the state.
fn listening_in(table: &str) -> Vec<SocketAddr> {
    const LISTENS: &str = "0A";
    let address = |line: &str| {
        let mut columns = line.split_whitespace().skip(1);
        let (ip, port) = columns.next()?.split_once(':')?;
        columns.nth(1).filter(|state| *state == LISTENS)?;
        let word = |at: usize| u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok();
        let ip: IpAddr = match ip.len() {
            8 => Ipv4Addr::from(word(0)?.to_ne_bytes()).into(),
            32 => {
                let mut bytes = [0; 16];
                for (at, four) in bytes.chunks_mut(4).enumerate() {
                    four.copy_from_slice(&word(at)?.to_ne_bytes());
                }
                Ipv6Addr::from(bytes).into()
            }
            _ => return None,
        };
        Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
    };
    table.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_server_of_another_program_is_named_with_the_way_to_the_installed_one() {
        let found = |version: Option<&str>| {
            let version = version.map(str::to_owned);
            of_server(&ServerStatus { stack: "/x/a.toml".into(), version, ..ServerStatus::default() }, "a")
        };
        assert_eq!(found(Some(VERSION)), [Finding::new(Severity::Ok, "a", "is served, and serving")]);
        for (version, says) in [
            (Some("0.0.9 (abc)"), "its server runs another dcd: 0.0.9 (abc)."),
            (None, "its server runs an older dcd."),
        ] {
            let all = found(version);
            let [_, Finding { level: Severity::Note, found, action: Some(action), .. }] = all.as_slice()
            else {
                panic!("{all:?}");
            };
            assert_eq!(*found, format!("{says} This dcd is {VERSION}"));
            assert!(
                action.starts_with("dcd stop --for-restart /x/a.toml && dcd serve /x/a.toml: "),
                "{action}"
            );
        }
    }

    #[test]
    fn a_port_at_which_a_program_listens_is_found_without_listening_there() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (listens, wanted, is_in_use) in [
            ("127.0.0.1:10809", "127.0.0.1:10809", true),
            ("127.0.0.1:10809", "127.0.0.2:10809", false),
            ("127.0.0.1:10809", "127.0.0.1:10810", false),
            ("0.0.0.0:10809", "127.0.0.1:10809", true),
            ("127.0.0.1:10809", "0.0.0.0:10809", true),
            ("[::]:10809", "127.0.0.1:10809", true),
            ("[::1]:10809", "127.0.0.1:10809", false),
            ("0.0.0.0:10809", "[::1]:10809", false),
            ("127.0.0.1:10809", "127.0.0.1:0", false),
        ] {
            assert_eq!(tcp_trouble(at(wanted), &[at(listens)]).is_some(), is_in_use, "{listens} {wanted}");
        }
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A container may have no IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let address = listener.local_addr().unwrap();
            assert!(tcp_trouble(address, &listening()).is_some(), "{address}");
            drop(listener);
            assert!(tcp_trouble(address, &listening()).is_none(), "{address}");
        }
    }
}
