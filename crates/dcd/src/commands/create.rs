//! `dcd create`: makes a cache, serves it now and at each boot, and prints how to mount it.
//!
//! | step | repeated after an interruption |
//! |---|---|
//! | 1. `dcd format --stack`: checks, the stack file, log and record | with the file: format again, unless log and record agree |
//! | 2. a server: the unit, or one in the background | finds the server |
//! | 3. `dcd attach`, and wait for the name in /dev/dcd | finds the device |

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dcd_engine::log_cache::format::LogState;
use dcd_engine::{BlockDevice, SECTOR_BYTES};
use dcd_serve::nbd::kernel::NbdKernel;
use dcd_serve::ublk;
use dcd_stack::{HumanBytes, Inputs, StackFile, toml_text};

use crate::cli::{Create, Format};
use crate::commands::{attach, disks, format};
use crate::control::{self, sockets_dir, stacks_dir};
use crate::failure::Failure;
use crate::nbd_device::name_of;
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::judge::CacheSeen;
use crate::session::probe::probe;
use crate::session::record::{LogSeen, admit_overwrite, stack_with_log, state_dir};
use crate::session::serving::status::ServerStatus;
use crate::session::site::Site;
use crate::session::survey::{inspect, record, start, target};

/// Maximum wait for a device that a server or udev is making.
const DEVICE_MAX: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Boundary of the parts of a disk that has its own log.
const ALIGN: u64 = 1 << 20;

pub fn run(args: &Create) -> Result<(), Failure> {
    create(args).map_err(|failure| match failure {
        Failure::Busy(why) => Failure::refused(
            why.split(". Stop its user first").next().unwrap_or_default(),
            "unmount it, or stop what uses it, and repeat this command. Nothing was changed",
        ),
        failure => failure,
    })
}

fn create(args: &Create) -> Result<(), Failure> {
    let stack = args.log.iter().find_map(|log| named_stack(log));
    if let Some(stack) = &stack
        && args.log.len() > 1
    {
        return Err(Failure::Failed(format!(
            "--log {}: a stack is named alone: its log has the new disk, too. Nothing was changed",
            stack.display()
        )));
    }
    if let Some(stack) = stack {
        println!("{}", disks::add(&stack, &args.name, &args.data, args.force)?);
        let attached = attach_added(&StackFile::load(&stack)?, &args.name);
        tell_of_data(&args.data, &format!("{} --disk {}", stack.display(), args.name));
        return attached;
    }
    let path = stacks_dir().join(format!("{}.toml", args.name));
    let was_made = path.exists();
    if was_made {
        go_on(args, &path)?;
    } else {
        make(args, &path)?;
    }
    let file = StackFile::load(&path)?;
    match serve(args, &file).and_then(|boot| Ok((device(&file, Some(&args.name), None)?, boot))) {
        Ok((node, boot)) => tell(args, &node, boot),
        Err(failure) => {
            let name = &args.name;
            match was_made {
                true => warnln!("dcd: {name} is not served: mend the following and repeat this command"),
                false => warnln!(
                    "dcd: the cache is made: mend the following and repeat this command, or take it away: dcd remove {name}"
                ),
            }
            return Err(failure);
        }
    }
    Ok(())
}

/// Makes the device of a disk that was added to a served stack, if the first disk has one.
fn attach_added(file: &StackFile, disk: &str) -> Result<(), Failure> {
    let Some(mut server) = control::server_of(file)? else { return Ok(()) };
    let by_hand = format!("dcd attach {} --disk {disk}", file.path.display());
    if ServerStatus::ask(&mut server)?.block_devices.is_empty() {
        println!("  for a block device of it: {by_hand}");
        return Ok(());
    }
    let name = control::stack_name(&file.path).map(|stack| name_of(file, &stack, disk));
    match device(file, name.as_deref(), Some(disk)) {
        Ok(node) => {
            tell_mount(&node);
            Ok(())
        }
        Err(failure) => {
            warnln!(
                "dcd: the disk is added, and has no block device: mend the following, and then: {by_hand}"
            );
            Err(failure)
        }
    }
}

/// Returns the stack that is named in the place of a log: by its file, or by its name where no file has that name.
fn named_stack(log: &Path) -> Option<PathBuf> {
    if log.exists() {
        return log.extension().is_some_and(|extension| extension == "toml").then(|| log.to_owned());
    }
    let named = stacks_dir().join(format!("{}.toml", log.display()));
    (log.components().count() == 1 && named.exists()).then_some(named)
}

/// Makes log, record and stack file.
fn make(args: &Create, path: &Path) -> Result<(), Failure> {
    let (parts, log) = parts(args)?;
    let text = stack_text(args, &parts, &log)?;
    fs::create_dir_all(stacks_dir()).map_err(|error| Failure::io(stacks_dir().display(), error))?;
    let choice = CacheChoice::of(StackFile::parse(&text, path)?, None)?;
    if !args.force && stack_with_log(&choice.log_place()).is_none() && is_cache_already(&choice) {
        return Ok(Inputs::default().write(path, &text)?);
    }
    let formatted = Format {
        log: args.log.clone(),
        data: Some(args.data.clone()),
        stack: Some(path.to_owned()),
        force: args.force,
        ..Format::default()
    };
    format::make(&formatted, &text)
}

/// True if the log is that of a cache of this disk, from another machine or without its record, and the two would start. Says so.
fn is_cache_already(choice: &CacheChoice) -> bool {
    let is_in_use =
        |seen: CacheSeen| matches!(seen.log, LogSeen::Present { state, .. } if !state.is_out_of_use());
    let is_there = inspect(choice).is_ok_and(|(seen, _)| is_in_use(seen))
        && start(&choice.site, &[&choice.site.export], Purpose::Look).is_ok();
    if is_there {
        println!(
            "{} has the log of this disk's cache, which is served as it is",
            choice.log_name().display()
        );
    }
    is_there
}

/// Goes on with a create that was interrupted. Refuses a name that another stack has.
fn go_on(args: &Create, path: &Path) -> Result<(), Failure> {
    let choice = CacheChoice::load(path, None)?;
    let full =
        |path: &Path| fs::canonicalize(path).or_else(|_| std::path::absolute(path)).unwrap_or_default();
    let is =
        |part: &str, typed: &Path| choice.site.path_below(part).is_some_and(|it| full(it) == full(typed));
    let legs = choice.legs();
    let is_log = match (legs.as_slice(), args.log.as_slice()) {
        ([], []) => is(&choice.log, &args.data),
        ([], [log]) => is(&choice.log, log),
        (legs, logs) => {
            legs.len() == logs.len() && legs.iter().all(|leg| logs.iter().any(|log| is(leg, log)))
        }
    };
    if !is(&choice.data, &args.data) || !is_log {
        let data = choice.site.path_below(&choice.data).unwrap_or(Path::new(&choice.data)).display();
        return Err(Failure::Failed(format!(
            "the name {} is taken: {} has data disk {data} and log {}. Choose another name; if it is this cache, from another machine or with \
             new paths, correct them in that file. Nothing was changed",
            args.name,
            path.display(),
            choice.log_name().display()
        )));
    }
    if control::server_of(&choice.site)?.is_some() {
        return Ok(());
    }
    let (CacheSeen { log: seen, .. }, record) = match inspect(&choice) {
        // The server of an interrupted create is on its way.
        Err(Failure::Busy(_)) => return Ok(()),
        seen => seen?,
    };
    let attachment = match &record {
        Some(record) => record.load()?.of(record.extent()).cloned(),
        None => None,
    };
    let is_made = match (&seen, &attachment) {
        (LogSeen::Present { state, uuid, .. }, Some(own)) => {
            *state != LogState::Detached && own.cache_uuid == *uuid
        }
        // The start says which log is missing.
        (LogSeen::Missing(_), attachment) => attachment.is_some(),
        // The two may come from another machine, with their stack file.
        (LogSeen::Present { .. }, None) => is_cache_already(&choice),
    };
    if !is_made {
        // Without its record, a log of dcd may have the newest data: only "dcd format --force" discards it.
        let force = args.force && matches!(seen, LogSeen::Missing(_));
        format::make(&Format { file: Some(path.to_owned()), force, ..Format::default() }, "")?;
    }
    Ok(())
}

/// The tables of log and data disk in a stack file, and the text that names the log.
fn parts(args: &Create) -> Result<(String, String), Failure> {
    let data = format::quoted_place(&args.data)?;
    let Some(log_bytes) = args.same_disk else {
        let (tables, log) = format::log_tables(&args.log, args.log_size)?;
        return Ok((format!("{tables}[device.data]\npath = {data}\n"), log));
    };
    let disk = Site::of_device(&args.data, true)?;
    let (offline, parts) = start(&disk, &[&disk.export], Purpose::Look)?;
    let mut device = offline.part(target(&parts, &disk.export));
    let place = args.data.display();
    let bytes = device.geometry().sectors * SECTOR_BYTES;
    let first = bytes.saturating_sub(log_bytes) / ALIGN * ALIGN;
    if first < log_bytes {
        return Err(Failure::Failed(format!(
            "{place} has {}: --same-disk must be at most half of that. Nothing was changed",
            HumanBytes(bytes)
        )));
    }
    if !args.force {
        let attached = match record(&disk, &parts, &disk.export)? {
            Some(record) => {
                admit_overwrite(&record.load_with_others()?, record.extent(), &place.to_string(), false)
            }
            None => Ok(()),
        };
        let attached = attached.map_err(Failure::from);
        let seen =
            probe(&mut device).map_err(|error| Failure::Failed(format!("reading {place}: {error}")))?;
        let content = seen.map(|what| {
            Err(Failure::refused(
                format!("{place} has {what} on it, and its log would be written over the end of that"),
                "put the log on another device: --log PATH. --same-disk is for a disk without data: check that it is the right one, and empty \
                 it (blkdiscard -zf), or add --force. Nothing was changed",
            ))
        });
        Failure::of_all(std::iter::once(attached).chain(content))?;
    }
    let tables = format!(
        "# The log is at the end, so that the disk without its cache has its data where a plain disk has it.\n\
         [device.disk]\npath = {data}\n\n\
         [layer.log]\nkind = \"slice\"\nof = \"disk\"\nfirst = {first}\n\n\
         [layer.data]\nkind = \"slice\"\nof = \"disk\"\nsize = {first}\n"
    );
    Ok((tables, toml_text("log")))
}

/// The directory of a stack's image, where neither ublk nor NBD makes its device.
pub fn image_dir(name: &str) -> PathBuf {
    state_dir().join(format!("{name}.fuse"))
}

/// The stack file, with comments for whoever opens it.
fn stack_text(args: &Create, parts: &str, log: &str) -> Result<String, Failure> {
    let name = &args.name;
    let in_run = |suffix: &str| toml_text(&sockets_dir().join(format!("{name}.{suffix}")).to_string_lossy());
    let front_end = if has_ublk() {
        format!(
            "# The block device /dev/dcd/{name}. Its file system continues when the server is killed or upgraded.\nublk = true\n"
        )
    } else if NbdKernel::open().is_ok() {
        format!(
            "# \"dcd attach {name}\" makes the block device /dev/dcd/{name}. Its file system continues when the server is killed.\n\
             nbd = {}\nnbd-recovery = true\n",
            toml_text(&format!("unix:{}", sockets_dir().join(format!("{name}.sock")).display()))
        )
    } else if Path::new("/dev/fuse").exists() {
        format!(
            "# This kernel had neither ublk nor NBD: \"dcd attach {name}\" makes a loop device, which ends with the server.\nfuse = {}\n",
            toml_text(&image_dir(name).to_string_lossy())
        )
    } else {
        return Err(Failure::Failed(
            "this kernel has none of ublk, NBD and FUSE, so it can have no block device of a cache: modprobe ublk_drv, nbd or fuse. \
             Nothing was changed"
                .to_owned(),
        ));
    };
    Ok(format!(
        "# Written by dcd create. \"dcd stack-file\" describes every field; a change counts from the next start of the server.\n\
         export = \"cache\"\n\n\
         [serve]\n{front_end}control = {}\n\n\
         {parts}\n\
         [layer.cache]\nkind = \"log-cache\"\nlog = {log}\ndata = \"data\"\n\
         # flush: durable after FLUSH and FUA, as on any disk. always: every write is durable when it returns.\n\
         promise = \"flush\"\n",
        in_run("control")
    ))
}

fn has_ublk() -> bool {
    if ublk::available().is_err() {
        // A failure shows when the device is looked for next.
        let _ = Command::new("modprobe").args(["-q", "ublk_drv"]).stderr(Stdio::null()).status();
    }
    ublk::available().is_ok()
}

/// True if systemd runs, and has the units that serve the stacks of /etc/dcd.
pub fn has_units() -> bool {
    let knows = || Command::new("systemctl").args(["cat", "dcd@.service"]).output();
    stacks_dir() == Path::new("/etc/dcd")
        && Path::new("/run/systemd/system").exists()
        && knows().is_ok_and(|output| output.status.success())
}

pub fn systemctl(what: &[&str], unit: &str) -> Result<(), Failure> {
    let done = Command::new("systemctl").args(what).arg(unit).output();
    let done = done.map_err(|error| Failure::io("systemctl", error))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let what = what.join(" ");
    let show =
        Command::new("systemctl").args(["show", "--value", "--property=ExecMainStatus", unit]).output();
    let code = show.ok().and_then(|output| String::from_utf8_lossy(&output.stdout).trim().parse().ok());
    Err(Failure::of_exit_code(
        code,
        format!("systemctl {what} {unit}: {} (journalctl -u {unit} has more)", said.trim()),
    ))
}

/// Serves the stack, now and at each boot. Returns what to say about boots.
fn serve(args: &Create, file: &StackFile) -> Result<&'static str, Failure> {
    let name = &args.name;
    if has_units() {
        systemctl(&["enable", "--now"], &format!("dcd@{name}.service"))?;
        if file.serve.ublk.is_none() {
            systemctl(&["enable", "--now"], &format!("dcd-attach@{name}.service"))?;
        }
        return Ok("it is served now and at each boot");
    }
    if control::server_of(file)?.is_none() {
        in_background(name, file)?;
    }
    Ok(
        "it is served until this machine stops: without systemd, run this command again at each boot (it finds the cache, and keeps it)",
    )
}

/// File of what the servers of a stack say that were started without systemd.
pub fn background_log(name: &str) -> PathBuf {
    sockets_dir().join(format!("{name}.log"))
}

/// Starts a server that goes on when this command has ended, and waits until clients can connect.
fn in_background(name: &str, file: &StackFile) -> Result<(), Failure> {
    let failed = |error| Failure::io("starting the server", error);
    let made = DirBuilder::new().recursive(true).mode(0o700).create(sockets_dir());
    made.map_err(|error| Failure::io(sockets_dir().display(), error))?;
    let said = background_log(name);
    let log = OpenOptions::new().create(true).append(true).open(&said);
    let log = log.map_err(|error| Failure::io(said.display(), error))?;
    let mut server = Command::new(std::env::current_exe().map_err(failed)?);
    server
        .args(["serve", "--quiet", "--wait-busy=10s"])
        .arg(std::path::absolute(&file.path).map_err(failed)?);
    server.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).process_group(0);
    let mut server = server.spawn().map_err(failed)?;
    let mut ready = String::new();
    if let Some(output) = server.stdout.take() {
        BufReader::new(output).read_line(&mut ready).map_err(failed)?;
    }
    // The server of an earlier create may have been on its way.
    if ready.is_empty() && control::server_of(file)?.is_none() {
        let said_all = fs::read_to_string(&said).unwrap_or_default();
        let last = match said_all.rfind("dcd: ") {
            Some(last) => said_all[last + "dcd: ".len()..].trim_end(),
            None => "it did not say why",
        };
        let why = format!("the server has ended: {last} ({} has more)", said.display());
        return Err(Failure::of_exit_code(server.wait().ok().and_then(|status| status.code()), why));
    }
    Ok(())
}

/// Returns the block device of a served stack, by its name where udev makes one. `only`: of this disk; else of the first, and all get one.
fn device(file: &StackFile, name: Option<&str>, only: Option<&str>) -> Result<PathBuf, Failure> {
    let until = Instant::now() + DEVICE_MAX;
    let nodes = loop {
        match attach::attach(file, only) {
            Err(_) if Instant::now() < until => std::thread::sleep(LOOK_INTERVAL),
            attached => break attached?,
        }
    };
    let none = || Failure::Failed("no disk of the stack has a block device".to_owned());
    let node = PathBuf::from(nodes.first().ok_or_else(none)?);
    let has_names = file.serve.fuse.is_none()
        && stacks_dir() == Path::new("/etc/dcd")
        && Path::new("/run/udev/control").exists();
    let Some(name) = name.filter(|_| has_names) else { return Ok(node) };
    let named = Path::new("/dev/dcd").join(name);
    while !named.exists() && Instant::now() < until {
        std::thread::sleep(LOOK_INTERVAL);
    }
    Ok(if named.exists() { named } else { node })
}

fn tell(args: &Create, device: &Path, boot: &str) {
    println!("{} is ready; {boot}", device.display());
    tell_mount(device);
    tell_of_data(&args.data, &args.name);
}

fn tell_mount(device: &Path) {
    println!("  mount {} /MOUNTPOINT", device.display());
    tell_of_fstab(device);
}

fn tell_of_fstab(device: &Path) {
    if device.starts_with("/dev/dcd") {
        println!("  in /etc/fstab: {}  /MOUNTPOINT  auto  nofail  0  2", device.display());
    }
}

fn tell_of_data(data: &Path, removed: &str) {
    let data = data.display();
    println!("never mount or check {data} itself from now on: its newest blocks are in the log");
    println!("  to have the plain disk back: dcd remove {removed}");
}
