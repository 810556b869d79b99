//! `dcd stop`: ends a server, unless a client uses the device that it serves.

use std::ops::ControlFlow;

use dcd_stack::StackFile;
use serde_json::{Value, json};

use crate::cli::Stop;
use crate::commands::flush::has_lost_data;
use crate::control;
use crate::failure::Failure;
use crate::session::record::Refusal;

pub fn run(args: &Stop) -> Result<(), Failure> {
    let mut client = control::connect(&args.file)?;
    // Afterwards nobody can be asked.
    let has_lost_data = has_lost_data(&mut client);
    let ended =
        client.call("stop", json!({ "force": args.force, "for-restart": args.for_restart }), |seen| {
            if let Some(why) = seen["waiting"].as_str() {
                eprintln!("dcd: {why}");
            }
            ControlFlow::Continue(())
        })?;
    if let Some(loss) = ended["loss"].as_str() {
        let stack = args.file.display();
        return Err(Failure::refused(
            format!("{stack} is not stopped: {loss}"),
            format!(
                "\"dcd status {stack}\" says how nothing is lost. \"dcd stop --force {stack}\" stops it all the same"
            ),
        ));
    }
    if ended["stopped"] != true {
        return Err(Failure::Refused(refusal(args, &ended["clients"], ended["wait"] == true)));
    }
    // The server closes its devices after that.
    client.wait_for_end()?;
    for left in ended["left"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let nothing = if ended["trouble"].is_null() { ", which loses nothing" } else { "" };
        eprintln!("dcd: {left}{nothing}");
    }
    match ended["trouble"].as_str() {
        Some(trouble) if has_lost_data => Err(Failure::Damage(trouble.to_owned())),
        Some(trouble) => Err(Failure::Failed(trouble.to_owned())),
        None => Ok(()),
    }
}

/// Explains the refusal. `wait`: the clients can wait for the next server.
fn refusal(args: &Stop, clients: &Value, wait: bool) -> Refusal {
    let clients: Vec<&str> = clients.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let has = if clients.len() == 1 { "a client has" } else { "clients have" };
    let stack = args.file.display();
    let ends = match args.for_restart && !wait {
        true => {
            ". A restart fails its requests, too: only a ublk device, or an NBD device with recovery, outlives the server"
        }
        false => "",
    };
    let broken = match StackFile::load(&args.file) {
        Err(_) if args.file.extension().is_some_and(|extension| extension == "toml") => {
            ". The stack file has an error: correct that first"
        }
        _ => "",
    };
    let reason = format!("{stack} is not stopped: {has} its device: {}{ends}{broken}", clients.join("; "));
    if wait {
        let action = format!(
            "to restart or upgrade with the file system mounted: dcd stop --for-restart {stack} && dcd serve {stack}. To stop for good: umount it, \
             then dcd attach --release {stack} (a ublk device needs no release), then dcd stop {stack}"
        );
        return Refusal::new(reason, action);
    }
    Refusal::new(
        reason,
        format!(
            "unmount what is on it and release it (umount, then \"dcd attach --release {stack}\", or the program that connected it), and stop it \
             again. \"dcd stop --force {stack}\" does not wait: a file system on it fails, and data written but not flushed may be \
             lost"
        ),
    )
}
