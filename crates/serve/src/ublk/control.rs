//! Control commands: making, starting, recovering and removing devices, each with a bound.

use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use dcd_engine::{Discards, Geometry};
use dcd_io::ControlCommand;
use zerocopy::{FromBytes, IntoBytes};

use super::owner::{self, Owner};
use super::uapi as u;
use super::{DEPTH, QUEUES_MAX, REQUEST_BYTES_MAX, UblkError, node};

/// Maximum time of a control command: some kernels never answer.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Interval of checks whether the last server of a device has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum sectors that a request discards or zeroes: if that is cheap, and if zeroes have to be written.
const FREE_SECTORS_MAX: u32 = 1 << 21;
const WRITTEN_ZEROES_SECTORS_MAX: u32 = 1 << 15;
/// Minimum of the recommended unit of requests: a line of the log cache.
const PREFERRED_BYTES_MIN: u32 = 4096;

/// The flags to ask for. User copy is not among them: the kernel copies a request's data to and from the command's buffer by itself,
/// without an additional entry of the ring.
const WANTED: u64 = RECOVERY | u::F_CMD_IOCTL_ENCODE;
const RECOVERY: u64 = u::F_USER_RECOVERY | u::F_USER_RECOVERY_REISSUE;

/// Interface to the kernel, or to a test's replacement.
pub trait UblkKernel: Send + Sync {
    /// Runs a control command; returns the data as the kernel has left it.
    fn control(&self, op: u32, command: u::CtrlCmd, data: Vec<u8>) -> io::Result<Vec<u8>>;

    /// The numbers of all devices.
    fn numbers(&self) -> Vec<u32>;
}

/// The running kernel.
#[derive(Debug)]
pub struct RunningKernel;

impl UblkKernel for RunningKernel {
    fn control(&self, op: u32, command: u::CtrlCmd, data: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(command.as_bytes());
        let device = PathBuf::from(u::CONTROL_DEVICE);
        ControlCommand { device, op, bytes, data }.run(PATIENCE)
    }

    fn numbers(&self) -> Vec<u32> {
        let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
        let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix("ublkc")?.parse().ok();
        let mut numbers: Vec<u32> = entries.filter_map(|entry| number(entry.file_name())).collect();
        numbers.sort_unstable();
        numbers
    }
}

/// Runs a command for a device. `data`: the word that goes with it; `payload`: what the kernel reads and writes.
fn call(kernel: &dyn UblkKernel, op: u32, number: u32, data: u64, payload: Vec<u8>) -> io::Result<Vec<u8>> {
    let len = payload.len() as u16;
    let command = u::CtrlCmd { dev_id: number, queue_id: u::NO_QUEUE, len, data, ..u::CtrlCmd::default() };
    kernel.control(op, command, payload)
}

/// Runs a command, and names it in errors.
fn named(
    kernel: &dyn UblkKernel,
    (doing, op): (&'static str, u32),
    number: u32,
    data: u64,
    payload: Vec<u8>,
) -> Result<Vec<u8>, UblkError> {
    call(kernel, op, number, data, payload).map_err(|source| UblkError::control(doing, number, source))
}

/// A structure out of what the kernel has written.
fn read<T: FromBytes>(bytes: &[u8]) -> io::Result<T> {
    T::read_from_prefix(bytes).map(|(read, _)| read).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Asks the kernel about a device; none if no device has that number.
pub fn info(kernel: &dyn UblkKernel, number: u32) -> Result<Option<u::DevInfo>, UblkError> {
    let payload = u::DevInfo::default().as_bytes().to_vec();
    match call(kernel, u::GET_DEV_INFO, number, 0, payload).and_then(|bytes| read(&bytes)) {
        Ok(info) => Ok(Some(info)),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => Ok(None),
        Err(source) => Err(UblkError::control("GET_DEV_INFO", number, source)),
    }
}

/// Returns an error if there is no ublk.
pub fn available() -> Result<(), UblkError> {
    let control = std::fs::OpenOptions::new().read(true).write(true).open(u::CONTROL_DEVICE);
    control.map(|_| ()).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => UblkError::NotPermitted,
        _ => UblkError::NoUblk { source },
    })
}

/// A device that this server has, and that does not serve yet.
#[derive(Clone, Copy, Debug)]
pub struct Claimed {
    pub info: u::DevInfo,
    /// True if the device existed before, and its requests wait.
    pub recovered: bool,
    /// The stack has become larger than the device is: it has so many sectors now.
    pub grown_to: Option<u64>,
}

/// Returns the flags to ask for. `outlives`: answered requests survive a kill of the server.
pub const fn flags_for(outlives: bool) -> u64 {
    if outlives { WANTED } else { WANTED & !RECOVERY }
}

/// Takes over a stack's device from its last server, or makes one. `wanted`: its number; none for any.
pub fn claim(
    kernel: &dyn UblkKernel,
    wanted: Option<u32>,
    owner: &Owner,
    geometry: &Geometry,
    flags: u64,
) -> Result<Claimed, UblkError> {
    let numbers = wanted.map_or_else(|| kernel.numbers(), |number| vec![number]);
    for number in numbers {
        let info = match info(kernel, number) {
            Ok(Some(info)) => info,
            Ok(None) => continue,
            // A device of another stack that does not answer must not stop this one.
            Err(_) if wanted.is_none() && !is_noted(number, owner) => continue,
            Err(error) => return Err(error),
        };
        if !owner.has_device(number, info.ublksrv_flags) {
            match wanted {
                Some(_) => return Err(UblkError::taken(&info)),
                None => continue,
            }
        }
        if info.state == u::STATE_DEAD {
            // The server ended before the device was started, or during its removal.
            named(kernel, ("DEL_DEV", u::DEL_DEV), number, 0, Vec::new())?;
            return add(kernel, Some(number), owner, geometry, flags);
        }
        return recover(kernel, info, geometry);
    }
    add(kernel, wanted, owner, geometry, flags)
}

/// True for a device that was noted as this stack's.
fn is_noted(number: u32, owner: &Owner) -> bool {
    owner.marks().iter().any(|mark| owner::stack_of(number, *mark).is_some())
}

fn add(
    kernel: &dyn UblkKernel,
    wanted: Option<u32>,
    owner: &Owner,
    geometry: &Geometry,
    flags: u64,
) -> Result<Claimed, UblkError> {
    let number = wanted.unwrap_or(u::ANY_NUMBER);
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let info = u::DevInfo {
        nr_hw_queues: processors.min(QUEUES_MAX) as u16,
        queue_depth: DEPTH,
        max_io_buf_bytes: REQUEST_BYTES_MAX,
        dev_id: number,
        flags,
        ublksrv_flags: owner.mark(),
        ..u::DevInfo::default()
    };
    let made = named(kernel, ("ADD_DEV", u::ADD_DEV), number, 0, info.as_bytes().to_vec())?;
    let info: u::DevInfo = read(&made).map_err(|source| UblkError::control("ADD_DEV", number, source))?;
    let params = parameters(geometry, info.max_io_buf_bytes);
    let set = named(kernel, ("SET_PARAMS", u::SET_PARAMS), info.dev_id, 0, params.as_bytes().to_vec());
    if let Err(error) = set {
        // Report the first error, not this one.
        let _ = call(kernel, u::DEL_DEV, info.dev_id, 0, Vec::new());
        return Err(error);
    }
    Ok(Claimed { info, recovered: false, grown_to: None })
}

/// Takes over a device whose server has exited, or is exiting.
fn recover(kernel: &dyn UblkKernel, info: u::DevInfo, geometry: &Geometry) -> Result<Claimed, UblkError> {
    let number = info.dev_id;
    let wanted = parameters(geometry, info.max_io_buf_bytes);
    let asked = u::Params { len: size_of::<u::Params>() as u32, ..u::Params::default() };
    let has = named(kernel, ("GET_PARAMS", u::GET_PARAMS), number, 0, asked.as_bytes().to_vec())?;
    let has: u::Params = read(&has).map_err(|source| UblkError::control("GET_PARAMS", number, source))?;
    let has_grown = wanted.basic.dev_sectors > has.basic.dev_sectors;
    let is_smaller = wanted.basic.dev_sectors < has.basic.dev_sectors;
    if is_smaller || wanted.basic.logical_bs_shift != has.basic.logical_bs_shift {
        let bytes = |params: &u::Params| params.basic.dev_sectors.saturating_mul(dcd_engine::SECTOR_BYTES);
        return Err(UblkError::Differs { number, has: bytes(&has), stack: bytes(&wanted) });
    }
    // The kernel does not flush a device without a volatile cache. (With a device that it flushes, every stack is right.)
    if has.basic.attrs & u::ATTR_VOLATILE_CACHE < wanted.basic.attrs & u::ATTR_VOLATILE_CACHE {
        return Err(UblkError::LessDurable { number });
    }
    let until = Instant::now() + PATIENCE;
    while let Err(error) = call(kernel, u::START_USER_RECOVERY, number, 0, Vec::new()) {
        match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
            // The kernel still ends the last server.
            Some(rustix::io::Errno::BUSY) if Instant::now() < until => thread::sleep(LOOK_INTERVAL),
            Some(rustix::io::Errno::BUSY) => {
                return Err(UblkError::Served { number, process: info.ublksrv_pid });
            }
            // An earlier server ended after this command and before its first commands. So nothing has changed since, and the recovery
            // can continue; if not, its end fails.
            Some(rustix::io::Errno::INVAL) if is_quiesced(kernel, number)? => break,
            _ => return Err(UblkError::control("START_USER_RECOVERY", number, error)),
        }
    }
    Ok(Claimed { info, recovered: true, grown_to: has_grown.then_some(wanted.basic.dev_sectors) })
}

fn is_quiesced(kernel: &dyn UblkKernel, number: u32) -> Result<bool, UblkError> {
    Ok(info(kernel, number)?.is_some_and(|info| matches!(info.state, u::STATE_QUIESCED | u::STATE_FAIL_IO)))
}

/// Lets clients in. Waits until the kernel has a command for every slot. The driver must serve meanwhile, as the kernel looks for
/// partitions.
pub fn start(kernel: &dyn UblkKernel, claimed: &Claimed) -> io::Result<()> {
    let op = if claimed.recovered { u::END_USER_RECOVERY } else { u::START_DEV };
    call(kernel, op, claimed.info.dev_id, u64::from(std::process::id()), Vec::new()).map(|_| ())
}

/// Gives a served device the size of a stack that has grown. Otherwise the device keeps its old size.
pub fn resize(kernel: &dyn UblkKernel, claimed: &Claimed) -> Result<(), UblkError> {
    let Some(sectors) = claimed.grown_to else { return Ok(()) };
    let number = claimed.info.dev_id;
    let known = features(kernel).unwrap_or_default();
    match known & u::F_UPDATE_SIZE {
        0 => Err(UblkError::NotLarger { number }),
        _ => named(kernel, ("UPDATE_SIZE", u::UPDATE_SIZE), number, sectors, Vec::new()).map(drop),
    }
}

/// Ends a device: its requests fail from now on.
pub fn stop(kernel: &dyn UblkKernel, number: u32) -> io::Result<()> {
    call(kernel, u::STOP_DEV, number, 0, Vec::new()).map(|_| ())
}

/// Deletes an ended device. `wait`: waits until its number is free, which needs all users to close it.
///
/// # Errors
/// In words.
pub fn delete(kernel: &dyn UblkKernel, number: u32, wait: bool) -> Result<(), String> {
    let failed = |error: io::Error| {
        format!("{} has ended, but the kernel does not delete it: DEL_DEV: {error}", node(number))
    };
    call(kernel, u::DEL_DEV_ASYNC, number, 0, Vec::new())
        .or_else(|error| match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
            // Linux before 6.9 has only the command that waits.
            Some(rustix::io::Errno::OPNOTSUPP) => call(kernel, u::DEL_DEV, number, 0, Vec::new()),
            _ => Err(error),
        })
        .map_err(failed)?;
    let until = Instant::now() + PATIENCE;
    while wait && matches!(info(kernel, number), Ok(Some(_))) {
        if Instant::now() >= until {
            return Err(failed(io::ErrorKind::TimedOut.into()));
        }
        thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}

/// Chooses the properties that clients see of the device.
pub fn parameters(geometry: &Geometry, request_bytes_max: u32) -> u::Params {
    let shift = |bytes: u32| bytes.ilog2() as u8;
    let logical = geometry.logical_block_bytes;
    let physical = geometry.physical_block_bytes.max(logical);
    let preferred = physical.max(PREFERRED_BYTES_MIN);
    // ublk can announce only a stripe whose size is a power of two.
    let stripe = geometry.stripes.map(|stripes| stripes.sectors * dcd_engine::SECTOR_BYTES);
    let stripe = stripe.and_then(|bytes| u32::try_from(bytes).ok()).filter(|bytes| bytes.is_power_of_two());
    let mut attrs = 0;
    for (is, attribute) in [
        (geometry.volatile_cache, u::ATTR_VOLATILE_CACHE | u::ATTR_FUA),
        (geometry.read_only, u::ATTR_READ_ONLY),
        (geometry.rotational, u::ATTR_ROTATIONAL),
    ] {
        attrs |= if is { attribute } else { 0 };
    }
    let changes = !geometry.read_only;
    let discards = changes && geometry.discards != Discards::No;
    let zeroes = if geometry.fast_zeroes { FREE_SECTORS_MAX } else { WRITTEN_ZEROES_SECTORS_MAX };
    u::Params {
        len: size_of::<u::Params>() as u32,
        types: u::PARAM_TYPE_BASIC | u::PARAM_TYPE_DISCARD,
        basic: u::ParamBasic {
            attrs,
            logical_bs_shift: shift(logical),
            physical_bs_shift: shift(physical),
            io_opt_shift: shift(stripe.unwrap_or(preferred).max(preferred)),
            io_min_shift: shift(preferred),
            max_sectors: request_bytes_max / dcd_engine::SECTOR_BYTES as u32,
            chunk_sectors: 0,
            dev_sectors: geometry.sectors - geometry.sectors % geometry.block_sectors(),
            virt_boundary_mask: 0,
        },
        discard: u::ParamDiscard {
            discard_alignment: 0,
            discard_granularity: preferred,
            max_discard_sectors: if discards { FREE_SECTORS_MAX } else { 0 },
            max_write_zeroes_sectors: if changes { zeroes } else { 0 },
            max_discard_segments: u16::from(discards),
            reserved0: 0,
        },
        pad: 0,
    }
}

/// The names of some flags.
pub fn flag_names(flags: u64) -> Vec<&'static str> {
    u::FLAGS.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| *name).collect()
}

/// The flags that the kernel knows.
pub fn features(kernel: &dyn UblkKernel) -> io::Result<u64> {
    let flags = call(kernel, u::GET_FEATURES, 0, 0, vec![0; size_of::<u64>()])?;
    read(&flags)
}

/// The flags that dcd asks for and that a kernel does not have.
pub fn missing(flags: u64) -> Vec<&'static str> {
    flag_names(WANTED & !flags)
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
