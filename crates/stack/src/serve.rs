//! The front-ends of a stack file, `[serve]`: where clients, control commands and monitoring connect.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::StackFileError;
use crate::fields::Fields;

/// Address to which clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// Users who may connect to the unix sockets of `nbd`, or to those of `vhost-user`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    pub mode: u32,
    pub group: Option<String>,
}

impl Default for SocketAccess {
    fn default() -> SocketAccess {
        SocketAccess { mode: 0o600, group: None }
    }
}

/// The number of a ublk device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UblkNumber {
    /// The number that the stack's device had before, or else a free one.
    Any,
    Is(u32),
}

/// ublk numbers devices by the minors of one major.
const UBLK_NUMBER_MAX: u64 = (1 << 20) - 1;

/// The front-ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServeSettings {
    pub nbd: Vec<Address>,
    pub nbd_socket: SocketAccess,
    /// The name of the NBD export; clients that ask for no name get it too.
    pub nbd_name: String,
    /// Directory of the certificates for TLS on the TCP addresses of `nbd`.
    pub nbd_tls: Option<PathBuf>,
    /// True if clients need no certificate for TLS.
    pub nbd_tls_anyone: bool,
    /// True if programs of all users of this machine may connect to the loopback addresses of `nbd` without TLS.
    pub nbd_allow_local_users: bool,
    /// True if NBD clients may outlive the server: then its answered writes must survive its kill, too.
    pub nbd_recovery: bool,
    /// A directory on which one image file appears.
    pub fuse: Option<PathBuf>,
    /// The socket for virtual machines. That of a disk after the first has the disk's name added.
    pub vhost_user: Option<PathBuf>,
    pub vhost_user_socket: SocketAccess,
    /// A block device of the kernel, /dev/ublkbN.
    pub ublk: Option<UblkNumber>,
    /// True if the ublk device outlives its server.
    pub ublk_recovery: bool,
    /// The control socket, for `dcd status`, `dcd flush` and `dcd detach`.
    pub control: Option<PathBuf>,
    /// Address from which a monitoring system fetches metrics.
    pub metrics: Option<Address>,
}

pub(crate) fn read(mut fields: Fields<'_>, dir: &Path) -> Result<ServeSettings, StackFileError> {
    let addresses = fields.texts("nbd")?;
    let nbd_tls = fields.text("nbd-tls")?.map(|path| dir.join(path.text));
    let nbd_tls_anyone = tls_clients(&mut fields)? == TlsClientsSetting::Anyone;
    let remote = fields.flag("nbd-allow-remote")?.unwrap_or(false);
    let nbd_allow_local_users = fields.flag("nbd-allow-local-users")?.unwrap_or(false) || remote;
    let mut nbd = Vec::new();
    for address in addresses {
        let parsed = match parse_address(&address.text, dir) {
            Ok(Address::Tcp(address)) if !address.ip().is_loopback() && !remote && nbd_tls.is_none() => {
                Err(AddressError::Remote(address))
            }
            parsed => parsed,
        };
        nbd.push(parsed.map_err(|why| fields.error(address.span, format!("\"nbd\": {why}")))?);
    }
    let has_socket = nbd.iter().any(|address| matches!(address, Address::Unix(_)));
    let nbd_socket = socket_access(&mut fields, &NBD_SOCKET, has_socket, nbd_allow_local_users)?;
    let nbd_name = fields.text("nbd-name")?.map_or(String::new(), |name| name.text);
    let nbd_recovery = fields.flag("nbd-recovery")?.unwrap_or(false);
    if nbd_recovery && nbd.is_empty() {
        let span = fields.value_span("nbd-recovery");
        return Err(fields.error(span, "\"nbd-recovery\" belongs to \"nbd\", which is missing"));
    }
    let fuse = fields.text("fuse")?.map(|path| dir.join(path.text));
    let vhost_user = match fields.text("vhost-user")? {
        None => None,
        Some(address) => match parse_address(&address.text, dir) {
            Ok(Address::Unix(path)) => Some(path),
            Ok(Address::Tcp(_)) => {
                let why =
                    "\"vhost-user\": a machine shares its memory over a unix socket, like \"unix:disk.sock\"";
                return Err(fields.error(address.span, why));
            }
            Err(why) => return Err(fields.error(address.span, format!("\"vhost-user\": {why}"))),
        },
    };
    let vhost_user_socket = socket_access(&mut fields, &MACHINE_SOCKET, vhost_user.is_some(), false)?;
    let ublk = if fields.is_number("ublk") {
        let number = fields.number_in("ublk", 0..=UBLK_NUMBER_MAX)?;
        number.and_then(|number| u32::try_from(number).ok()).map(UblkNumber::Is)
    } else {
        match fields.flag("ublk") {
            Ok(wanted) => wanted.unwrap_or(false).then_some(UblkNumber::Any),
            Err(_) => {
                let span = fields.value_span("ublk");
                return Err(fields.error(span, "\"ublk\" must be true, false, or the number of the device"));
            }
        }
    };
    let ublk_recovery = fields.flag("ublk-recovery")?.unwrap_or(true);
    let control = fields.text("control")?.map(|path| dir.join(path.text));
    let metrics = match fields.text("metrics")? {
        Some(address) => Some(
            read_metrics(&address.text, dir)
                .map_err(|why| fields.error(address.span, format!("\"metrics\": {why}")))?,
        ),
        None => None,
    };
    if nbd_tls.is_some() && !nbd.iter().any(|address| matches!(address, Address::Tcp(_))) {
        let span = fields.value_span("nbd-tls");
        return Err(fields.error(span, "\"nbd-tls\" belongs to a tcp: address of \"nbd\", and there is none"));
    }
    if nbd_tls.is_none() && nbd_tls_anyone {
        let span = fields.value_span("nbd-tls-clients");
        return Err(fields.error(span, "\"nbd-tls-clients\" belongs to \"nbd-tls\", which is missing"));
    }
    fields.finish()?;
    Ok(ServeSettings {
        nbd,
        nbd_socket,
        nbd_name,
        nbd_tls,
        nbd_tls_anyone,
        nbd_allow_local_users,
        nbd_recovery,
        fuse,
        vhost_user,
        vhost_user_socket,
        ublk,
        ublk_recovery,
        control,
        metrics,
    })
}

/// The field that has sockets, and those for their group and mode.
type SocketFields = [&'static str; 3];
const NBD_SOCKET: SocketFields = ["nbd", "nbd-socket-group", "nbd-socket-mode"];
const MACHINE_SOCKET: SocketFields = ["vhost-user", "vhost-user-socket-group", "vhost-user-socket-mode"];

fn socket_access(
    fields: &mut Fields<'_>,
    names: &SocketFields,
    has_socket: bool,
    allows_local_users: bool,
) -> Result<SocketAccess, StackFileError> {
    let [of, group_name, mode_name] = *names;
    let group = fields.text(group_name)?;
    let mode = fields.text(mode_name)?;
    for (name, value) in [(group_name, &group), (mode_name, &mode)] {
        if let Some(value) = value
            && !has_socket
        {
            let why = format!("\"{name}\" belongs to a unix: address of \"{of}\", and there is none");
            return Err(fields.error(value.span.clone(), why));
        }
    }
    let access = SocketAccess {
        mode: if group.is_some() { 0o660 } else { 0o600 },
        group: group.map(|group| group.text),
    };
    let Some(value) = mode else { return Ok(access) };
    let is_octal =
        (3..=4).contains(&value.text.len()) && value.text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = u32::from_str_radix(&value.text, 8).ok().filter(|mode| is_octal && mode & !0o666 == 0);
    let why = match mode {
        None => {
            format!("\"{}\" is not a mode of reads and writes in octal digits, like \"0660\"", value.text)
        }
        Some(mode) if mode & 0o600 != 0o600 => "the owner has to read and write, as with \"0660\"".to_owned(),
        Some(mode) if mode & 0o020 == 0 && access.group.is_some() => {
            format!("the group of {group_name} cannot connect: that needs writes, as with \"0660\"")
        }
        Some(mode) if mode & 0o006 != 0 && !allows_local_users => {
            let or = if of == "nbd" { ", or accept that with nbd-allow-local-users = true" } else { "" };
            format!(
                "each user of this machine could read and write the disk: name a group with {group_name}{or}"
            )
        }
        Some(mode) => return Ok(SocketAccess { mode, ..access }),
    };
    Err(fields.error(value.span, format!("\"{mode_name}\": {why}")))
}

/// Clients that are let in over TLS.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TlsClientsSetting {
    Signed,
    Anyone,
}

fn tls_clients(fields: &mut Fields<'_>) -> Result<TlsClientsSetting, StackFileError> {
    Ok(fields.word("nbd-tls-clients")?.unwrap_or(TlsClientsSetting::Signed))
}

impl ServeSettings {
    /// True if there is a way for clients to reach the disk.
    pub fn has_front_end(&self) -> bool {
        !self.nbd.is_empty() || self.fuse.is_some() || self.vhost_user.is_some() || self.ublk.is_some()
    }

    /// The NBD address, if any, by which every user of this machine can reach the disk without the stack file allowing it.
    pub fn open_to_local_users(&self) -> Option<SocketAddr> {
        let is_open = self.nbd_tls.is_none() && !self.nbd_allow_local_users;
        self.nbd.iter().find_map(|address| match address {
            Address::Tcp(address) if is_open => Some(*address),
            _ => None,
        })
    }
}

fn read_metrics(text: &str, dir: &Path) -> Result<Address, AddressError> {
    match parse_address(text, dir)? {
        Address::Tcp(address) if !address.ip().is_loopback() => Err(AddressError::RemoteMetrics(address)),
        address => Ok(address),
    }
}

/// Error for a text that is not an address to serve on.
#[derive(Debug, thiserror::Error)]
enum AddressError {
    #[error("there is no path after unix:, like \"unix:disk.sock\"")]
    NoPath,
    #[error("\"{0}\" must start with unix: or tcp:, like \"unix:disk.sock\"")]
    Kind(String),
    #[error("\"{0}\" is not ADDRESS:PORT, like \"tcp:127.0.0.1:10809\"")]
    NoPort(String),
    #[error("\"{0}\" is not a port number: the highest is 65535")]
    Port(String),
    #[error(
        "{0} can be reached from other hosts, and there is neither encryption nor a password: name certificates with nbd-tls = \"DIR\", use \
         a unix socket through ssh, or accept that with nbd-allow-remote = true"
    )]
    Remote(SocketAddr),
    #[error(
        "{0} can be reached from other hosts, and there is neither encryption nor a password: use tcp:PORT, which is the loopback address, and \
         let an agent or a proxy on this host pass the metrics on"
    )]
    RemoteMetrics(SocketAddr),
}

/// `unix:PATH`, `tcp:ADDRESS:PORT`, or `tcp:PORT` for loopback.
fn parse_address(text: &str, dir: &Path) -> Result<Address, AddressError> {
    if let Some(path) = text.strip_prefix("unix:") {
        if path.is_empty() {
            return Err(AddressError::NoPath);
        }
        return Ok(Address::Unix(dir.join(path)));
    }
    let Some(address) = text.strip_prefix("tcp:") else {
        return Err(AddressError::Kind(text.to_owned()));
    };
    let address = match address.parse::<u16>() {
        Err(_) if address.bytes().all(|byte| byte.is_ascii_digit()) && !address.is_empty() => {
            return Err(AddressError::Port(address.to_owned()));
        }
        Ok(port) => SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port),
        Err(_) => address.parse().map_err(|_| AddressError::NoPort(address.to_owned()))?,
    };
    Ok(Address::Tcp(address))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use crate::testing::{LOGICAL, parse};

    #[test]
    fn tcp_is_loopback_unless_spelled_out() {
        let file = parse(&LOGICAL.replace("unix:disk.sock", "tcp:10809")).unwrap();
        assert_eq!(file.serve.nbd[0].to_string(), "tcp:127.0.0.1:10809");
        assert_eq!(file.serve.open_to_local_users(), Some(SocketAddr::from(([127, 0, 0, 1], 10809))));
        let error = parse(&LOGICAL.replace("unix:disk.sock", "tcp:80000")).unwrap_err().to_string();
        assert!(error.contains("\"80000\" is not a port number: the highest is 65535"), "{error}");
        let metrics = |address: &str| {
            let text = LOGICAL.replace("nbd = \"unix:disk.sock\"", &format!("metrics = \"{address}\""));
            parse(&text).unwrap().serve.metrics.unwrap().to_string()
        };
        assert_eq!(metrics("tcp:9850"), "tcp:127.0.0.1:9850");
        assert_eq!(metrics("tcp:[::1]:9850"), "tcp:[::1]:9850");
        assert_eq!(metrics("unix:m.sock"), "unix:/stacks/m.sock");
        let remote =
            LOGICAL.replace("nbd = \"unix:disk.sock\"", "nbd = \"tcp:[::]:1\"\nnbd-allow-remote = true");
        assert_eq!(parse(&remote).unwrap().serve.nbd[0].to_string(), "tcp:[::]:1");
    }

    #[test]
    fn a_socket_is_for_its_owner_unless_a_group_is_named() {
        let read = |lines: &str| parse(&LOGICAL.replace("nbd = \"unix:disk.sock\"", lines));
        let access = |lines: &str| {
            let socket =
                read(&format!("nbd = [\"unix:disk.sock\", \"tcp:1\"]\n{lines}")).unwrap().serve.nbd_socket;
            (socket.mode, socket.group)
        };
        let group = Some("kvm".to_owned());
        assert_eq!(access(""), (0o600, None));
        assert_eq!(access("nbd-socket-group = \"kvm\""), (0o660, group.clone()));
        assert_eq!(access("nbd-socket-group = \"kvm\"\nnbd-socket-mode = \"620\""), (0o620, group));
        assert_eq!(access("nbd-socket-mode = \"0666\"\nnbd-allow-local-users = true"), (0o666, None));
        let refused = |lines: &str, why: &str| {
            let error = read(lines).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        let with_socket = |lines: &str, why| refused(&format!("nbd = \"unix:disk.sock\"\n{lines}"), why);
        with_socket("nbd-socket-mode = \"rw-rw----\"", "\"rw-rw----\" is not a mode");
        with_socket("nbd-socket-mode = \"0680\"", "in octal digits, like \"0660\"");
        with_socket("nbd-socket-mode = \"0770\"", "is not a mode of reads and writes");
        with_socket("nbd-socket-mode = \"0060\"", "the owner has to read and write");
        with_socket("nbd-socket-mode = \"0666\"", "each user of this machine could");
        with_socket("nbd-socket-mode = 660", "must be text");
        with_socket(
            "nbd-socket-group = \"kvm\"\nnbd-socket-mode = \"0640\"",
            "the group of nbd-socket-group cannot connect",
        );
        refused(
            "nbd = \"tcp:1\"\nnbd-socket-group = \"kvm\"",
            "\"nbd-socket-group\" belongs to a unix: address",
        );
        refused("nbd-socket-mode = \"0660\"", "\"nbd-socket-mode\" belongs to a unix: address");
    }

    #[test]
    fn virtual_machines_have_a_socket_of_their_own() {
        let read = |lines: &str| parse(&LOGICAL.replace("nbd = \"unix:disk.sock\"", lines));
        let serve = read("vhost-user = \"unix:vm.sock\"\nvhost-user-socket-group = \"kvm\"").unwrap().serve;
        assert_eq!(serve.vhost_user, Some("/stacks/vm.sock".into()));
        assert_eq!((serve.vhost_user_socket.mode, serve.nbd_socket.mode), (0o660, 0o600));
        let refused = |lines: &str, why: &str| {
            let error = read(lines).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        refused("vhost-user = \"tcp:1\"", "over a unix socket");
        refused("vhost-user = \"vm.sock\"", "\"vhost-user\": \"vm.sock\" must start with unix:");
        refused(
            "vhost-user = \"unix:vm.sock\"\nvhost-user-socket-mode = \"0666\"",
            "each user of this machine could read and write the disk: name a group with vhost-user-socket-group",
        );
        refused(
            "fuse = \"d\"\nvhost-user-socket-mode = \"0660\"",
            "belongs to a unix: address of \"vhost-user\"",
        );
    }

    #[test]
    fn a_tcp_address_is_open_to_local_users_unless_tls_or_a_word_says_otherwise() {
        let open = |lines: &str| {
            let text = LOGICAL.replace("nbd = \"unix:disk.sock\"", lines);
            parse(&text).unwrap().serve.open_to_local_users().is_some()
        };
        assert!(open("nbd = \"tcp:1\"") && open("nbd = [\"unix:disk.sock\", \"tcp:[::1]:1\"]"));
        for allowed in [
            "nbd = \"unix:disk.sock\"",
            "nbd = \"tcp:1\"\nnbd-allow-local-users = true",
            "nbd = \"tcp:1\"\nnbd-allow-remote = true",
            "nbd = \"tcp:1\"\nnbd-tls = \"certificates\"",
            "nbd = \"tcp:1\"\nnbd-tls = \"certificates\"\nnbd-tls-clients = \"anyone\"",
        ] {
            assert!(!open(allowed), "{allowed}");
        }
    }
}
