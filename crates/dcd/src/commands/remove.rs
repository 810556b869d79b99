//! `dcd remove`: writes everything back, detaches the cache, and leaves the disk as if there had never been a cache.
//!
//! Each step can be repeated, and none is done before those above it, so an interrupted command is simply run again:
//! release the device, stop the server, detach, disable the units, remove the stack file.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dcd_serve::control::ControlClient;
use dcd_serve::ublk;
use dcd_stack::{DeclaredDevice, LayerStatus, StackFile};

use crate::cli::{Detach, Remove, Stop};
use crate::commands::create::{background_log, has_units, image_dir, systemctl};
use crate::commands::status::stopped::start_command;
use crate::commands::{attach, detach, disks, stop};
use crate::control;
use crate::events::EventFile;
use crate::failure::Failure;
use crate::nbd_device::name_of;
use crate::progress::say_so_when_interrupted;
use crate::session::below::caches_below;
use crate::session::choice::CacheChoice;
use crate::session::serving::front_ends::own_path;
use crate::session::serving::status::ServerStatus;
use crate::session::site::Site;

/// Maximum wait for the end of a loop device.
pub const RELEASE_MAX: Duration = Duration::from_secs(5);
/// Maximum wait for the end of a server that was told to stop: it writes its state to log and record first.
const STOP_MAX: Duration = Duration::from_secs(60);
/// Wait after which the command says what it waits for.
const SILENT_MAX: Duration = Duration::from_secs(2);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

pub fn run(args: &Remove) -> Result<(), Failure> {
    if let Some(disk) = &args.disk {
        println!("{}", disks::remove(&args.file, disk)?);
        return Ok(());
    }
    let site = Site::load(&args.file)?;
    refuse_several_caches(&site)?;
    let name = control::stack_name(&args.file);
    name.iter().try_for_each(|_| refuse_array(&site))?;
    let choice = CacheChoice::of(site, None)?;
    let file = &choice.site;
    let server = match control::server_of(file) {
        Err(refused @ Failure::Refused(_)) => return Err(refused),
        server => server.ok().flatten(),
    };
    let was_served = server.is_some();
    server.map_or(Ok(()), |mut client| refuse_missing(&choice, &mut client))?;
    let gone_disks = gone_disks(&choice, was_served, args.force)?;
    say_so_when_interrupted(", and until then the stack is not served");
    // The kernel closes the image of a loop device some time after the device is gone.
    patiently(RELEASE_MAX, |_| file.serve.fuse.is_some(), || release(file))?;
    if file.serve.ublk.is_some() {
        remove_waiting(file)?;
    }
    let detached = Detach::of(&args.file);
    // A server that an interrupted command has told to stop has its devices until it ends; one that it has started may answer only now.
    patiently(
        STOP_MAX,
        |failure| matches!(failure, Failure::Busy(_)),
        || {
            if matches!(control::server_of(file), Ok(Some(_))) {
                let _ = release(file);
            }
            if gone_disks.is_empty() { detach::run(&detached) } else { Ok(()) }
        },
    )
    .inspect_err(|_| {
        if was_served {
            warnln!(
                "dcd: the server was stopped for this, and the stack is not served now. It can be again: {}",
                start_command(&args.file)
            );
        }
    })?;
    let Some(name) = name else {
        println!(
            "the stack file {} is not one of {}, and stays",
            args.file.display(),
            control::stacks_dir().display()
        );
        return Ok(());
    };
    if has_units() {
        for unit in ["dcd-attach", "dcd"] {
            systemctl(&["disable", "--now"], &format!("{unit}@{name}.service"))?;
        }
    }
    if file.serve.fuse.as_ref().is_some_and(|directory| *directory == image_dir(&name)) {
        for (disk, of_disk) in file.disks() {
            let directory = own_path(&image_dir(&name), disk, of_disk);
            // A server that was killed leaves its mount.
            let _ = Command::new("umount").arg("--lazy").arg(&directory).stderr(Stdio::null()).status();
            gone(fs::remove_dir(&directory), &directory)?;
        }
    }
    // The messages of servers in the background.
    let said = background_log(&name);
    gone(fs::remove_file(&said), &said)?;
    let events = EventFile::of(&args.file);
    gone(events.remove(), events.path())?;
    gone(fs::remove_file(&args.file), &args.file)?;
    for disk in choice.disks().iter().filter(|disk| !file.is_free_place(disk)) {
        let data = file.path_below(disk).unwrap_or(Path::new(disk)).display();
        if !is_there(&choice, disk) {
            println!(
                "{data} is missing, and may lack what the log {} has for it",
                choice.log_name().display()
            );
            continue;
        }
        let fstab = match file.serve.ublk.is_none() && file.serve.nbd.is_empty() {
            true => String::new(),
            false => {
                format!(", and take /dev/dcd/{} out of /etc/fstab if it is there", name_of(file, &name, disk))
            }
        };
        println!("{data} is a plain disk again: use it itself{fstab}");
    }
    Ok(())
}

/// False for a data disk whose device is missing.
fn is_there(choice: &CacheChoice, disk: &str) -> bool {
    choice.site.bottom_device(disk).is_none_or(DeclaredDevice::is_there)
}

/// Returns the data disks if all are missing, and the user has said that they are gone for good: nothing can be written back then.
fn gone_disks(choice: &CacheChoice, is_served: bool, force: bool) -> Result<Vec<&String>, Failure> {
    let stack = choice.site.path.display();
    let disks: Vec<&String> = choice.disks().iter().filter(|disk| !choice.site.is_free_place(disk)).collect();
    if disks.iter().any(|disk| is_there(choice, disk)) {
        return match force {
            true => Err(Failure::Failed(format!(
                "--force is for a stack whose data disk is gone, and {stack} has one that is there: leave it out. Nothing was changed"
            ))),
            false => Ok(Vec::new()),
        };
    }
    let path = |disk: &&String| {
        choice.site.path_below(disk).unwrap_or(Path::new(disk.as_str())).display().to_string()
    };
    let named = disks.iter().map(path).collect::<Vec<_>>().join(", ");
    match (is_served, force) {
        (true, _) => Err(Failure::refused(
            format!("{named} is missing while it is served"),
            format!("\"dcd status {stack}\" says how nothing is lost. Nothing was changed"),
        )),
        (false, true) => Ok(disks),
        (false, false) => Err(Failure::refused(
            format!(
                "{named} is missing, and its log {} may have its newest data",
                choice.log_name().display()
            ),
            format!(
                "reconnect it, or correct its path in {stack}, and repeat this command: nothing is lost then. If it is gone for good: \"dcd remove {stack} \
                 --force\" gives up the stack. The log stays as it is. Nothing was changed"
            ),
        )),
    }
}

/// Refuses a stack with a cache on another one: only the upper one, once it is detached, leaves the lower one complete.
fn refuse_several_caches(site: &Site) -> Result<(), Failure> {
    let mut caches: Vec<&str> = site.log_caches().map(|layer| layer.name.as_str()).collect();
    if caches.len() < 2 {
        return Ok(());
    }
    // A cache comes before those that it stands on.
    caches.sort_by_key(|cache| std::cmp::Reverse(caches_below(site, cache)));
    let stack = site.path.display();
    let steps: Vec<String> =
        caches.iter().map(|cache| format!("dcd detach --layer {cache} {stack}")).collect();
    Err(Failure::refused(
        format!("{stack} has the caches {}, and this command removes one", caches.join(" and ")),
        format!(
            "unmount the device, and take them off one after the other: dcd stop {stack}; {}; then remove the stack file. Nothing was changed",
            steps.join("; ")
        ),
    ))
}

/// Refuses a stack file that describes an array: without it, the array cannot be served.
fn refuse_array(site: &Site) -> Result<(), Failure> {
    let Some((array, _)) = site.arrays().next() else { return Ok(()) };
    let (stack, array) = (site.path.display(), &array.name);
    Err(Failure::refused(
        format!("{stack} describes the array \"{array}\", too, and this command would delete it"),
        format!(
            "unmount the device, and take the cache off alone: dcd stop {stack}; dcd detach {stack}; then take its layer out of the file, with export = \
             \"{array}\". Nothing was changed"
        ),
    ))
}

/// Refuses while a data disk is missing: the log keeps what it has for it, and the others go on being served.
fn refuse_missing(choice: &CacheChoice, client: &mut ControlClient) -> Result<(), Failure> {
    let status = ServerStatus::ask(client)?;
    // By the name of the layer: a cache on another one has other disks.
    let cache = status.layers.get(&choice.layer).and_then(LayerStatus::log_cache);
    let disks = cache.into_iter().flat_map(|cache| &cache.disks);
    match disks.zip(choice.disks()).find(|(disk, _)| disk.missing) {
        None => Ok(()),
        Some((_, name)) => Err(Failure::refused(
            format!("data disk \"{name}\" is missing, and the log may have its newest data"),
            format!(
                "connect it, start the server again, and repeat this command. If it is gone for good: stop the server, then dcd detach {} --gone \
                 {name}. Nothing was changed",
                choice.site.path.display()
            ),
        )),
    }
}

/// Repeats a step for at most `wait`, as long as its failure is one that passes. Says after a while what it waits for.
pub fn patiently(
    wait: Duration,
    passes: impl Fn(&Failure) -> bool,
    mut step: impl FnMut() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut is_told = false;
    loop {
        match step() {
            Err(failure) if passes(&failure) && begun.elapsed() < wait => {
                if begun.elapsed() > SILENT_MAX && !is_told {
                    warnln!("dcd: waiting, {} s at most: {failure}", wait.as_secs());
                    is_told = true;
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
            done => return done,
        }
    }
}

/// Releases the device and stops the server, if there is one.
fn release(file: &StackFile) -> Result<(), Failure> {
    attach::release(file, None, false)?;
    match control::server_of(file)? {
        Some(_) => stop::run(&Stop { file: file.path.clone(), for_restart: false, force: false }),
        None => Ok(()),
    }
}

/// Removes ublk devices of the stack whose server was killed, unless they are in use: their requests wait for the next server.
fn remove_waiting(file: &StackFile) -> Result<(), Failure> {
    // Without ublk there is no such device.
    for device in ublk::list(&ublk::RunningKernel).unwrap_or_default() {
        if device.stack.as_ref() == Some(&file.path) && device.process.is_none() {
            ublk::remove(&ublk::RunningKernel, device.number, false).map_err(|error| {
                Failure::refused(
                    error.to_string(),
                    "serve the stack, unmount what is on it, and repeat this command",
                )
            })?;
        }
    }
    Ok(())
}

fn gone(removed: std::io::Result<()>, path: &Path) -> Result<(), Failure> {
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::io(path.display(), error)),
        _ => Ok(()),
    }
}
