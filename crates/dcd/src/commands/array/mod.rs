//! `dcd array`: making, looking after and changing arrays, one file for each kind of work.

mod add;
mod assemble;
mod change;
mod create;
mod devices;
mod grow;
mod pass;
mod status;

pub use change::store_calibration;
pub use devices::{Devices, Standing, random_id, refused};
pub use status::judge;

use std::ops::ControlFlow;

use dcd_engine::raid::members_named;
use dcd_serve::control::{Client, ClientError};
use dcd_stack::{LayerKind, StackFile};
use serde_json::{Value, json};

use crate::cli_array::{Array, ArrayArgs, ArrayCommand};
use crate::failure::Failure;
use crate::opening::start;
use crate::real::{Purpose, patiently};

pub fn run(args: &Array) -> Result<(), Failure> {
    match &args.command {
        ArrayCommand::Create(args) => create::run(args),
        ArrayCommand::Assemble(args) => assemble::run(args),
        ArrayCommand::Status(args) => status::run(args),
        ArrayCommand::Fail(args) => change::fail(args),
        ArrayCommand::Add(args) => add::run(args),
        ArrayCommand::Remove(args) => change::remove(args),
        ArrayCommand::Rebuild(args) => pass::rebuild(args),
        ArrayCommand::Scrub(args) => pass::scrub(args),
        ArrayCommand::Grow(args) => grow::run(args),
    }
}

/// One array of a stack file.
pub struct Choice {
    pub file: StackFile,
    pub layer: String,
    config: dcd_engine::raid::RaidConfig,
    /// The members' names in the order of their roles; none where one is missing.
    pub members: Vec<Option<String>>,
    pub spares: Vec<String>,
    journal: Option<String>,
}

impl Choice {
    /// The array that is named, or the only one.
    fn load(args: &ArrayArgs) -> Result<Choice, Failure> {
        let file = StackFile::load(&args.file)?;
        let names: Vec<&str> = file.arrays().map(|(layer, _)| layer.name.as_str()).collect();
        let path = file.path.display();
        let layer = match (&args.layer, names.as_slice()) {
            (_, []) => return Err(Failure::Failed(format!("{path}: there is no raid layer in it"))),
            (None, [only]) => (*only).to_owned(),
            (None, _) => {
                let names = names.join(", ");
                return Err(Failure::Failed(format!(
                    "{path}: it has several arrays; choose with --layer: {names}"
                )));
            }
            (Some(wanted), _) if names.contains(&wanted.as_str()) => wanted.clone(),
            (Some(wanted), _) => {
                let names = names.join(", ");
                return Err(Failure::Failed(format!(
                    "{path}: no array is called \"{wanted}\"; it has {names}"
                )));
            }
        };
        Ok(Choice::of(file, layer))
    }

    pub fn of(file: StackFile, layer: String) -> Choice {
        let spec = file.layer(&layer).expect("it is one of the file's");
        let LayerKind::Raid(raid) = &spec.kind else { unreachable!("arrays gives arrays") };
        let config = raid.config.clone();
        let mut names = spec.kind.below_names().into_iter().map(str::to_owned);
        let members: Vec<Option<String>> =
            config.present.iter().map(|present| if *present { names.next() } else { None }).collect();
        let spares: Vec<String> =
            names.by_ref().take(config.spares.iter().filter(|there| **there).count()).collect();
        let journal = names.next();
        Choice { file, layer, config, members, spares, journal }
    }

    /// The names of all devices that are there, the members first.
    pub fn names(&self) -> Vec<&str> {
        self.members.iter().flatten().chain(&self.spares).map(String::as_str).collect()
    }

    /// The journal, where it lies on what a log lies on.
    pub fn journal_beside(&self, log: &str) -> Option<&str> {
        let of = |part: &str| self.file.layer(part).map(|layer| layer.kind.below_names());
        self.journal.as_deref().filter(|journal| of(journal).is_some_and(|below| of(log) == Some(below)))
    }

    /// What comes of the next start: the array's status then, or why it is refused. Nothing is changed.
    fn try_start(&self) -> Result<Result<Value, String>, Failure> {
        match start(&self.file, &[&self.layer], Purpose::Look) {
            Ok((offline, parts)) => Ok(Ok(offline.status(parts.layers[&self.layer]))),
            Err(Failure::Busy(why)) => Err(Failure::Busy(why)),
            Err(Failure::Refused(refusal)) => Ok(Err(refusal.reason)),
            Err(failure) => Ok(Err(failure.to_string())),
        }
    }

    /// The server of the stack, if it is served. The kernel takes some milliseconds to close the socket of a killed one.
    fn server(&self) -> Result<Option<Client>, Failure> {
        let Some(path) = &self.file.serve.control else { return Ok(None) };
        let connected = patiently(
            || {
                let mut client = Client::connect(path)?;
                client.call("status", json!({}), |_| ControlFlow::Continue(()))?;
                Ok(client)
            },
            |error| matches!(error, ClientError::Io { .. } | ClientError::Closed { .. }),
        );
        match connected {
            Ok(client) => Ok(Some(client)),
            Err(ClientError::NotServed { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Refuses what cannot be done while the stack is served.
    fn not_served(&self, what: &str) -> Result<(), Failure> {
        match self.server()? {
            None => Ok(()),
            Some(_) => Err(Failure::Failed(format!(
                "{}: it is served: stop its server, {what}, and serve it again",
                self.file.path.display()
            ))),
        }
    }
}

/// How a member is called in messages.
pub fn place(choice: &Choice, name: &str) -> String {
    let role = choice.members.iter().position(|member| member.as_deref() == Some(name));
    match (role, choice.spares.iter().position(|spare| spare == name)) {
        (Some(role), _) => format!("member {role}"),
        (None, Some(spare)) => format!("spare {spare}"),
        (None, None) => "no device of the array".to_owned(),
    }
}

/// The members that a status lists by role: "member 1", "members 1 and 3"; none where it lists nobody.
pub fn members_listed(roles: &Value) -> Option<String> {
    let roles = roles.as_array().into_iter().flatten().filter_map(Value::as_u64);
    let roles: Vec<usize> = roles.map(|role| role as usize).collect();
    (!roles.is_empty()).then(|| members_named(&roles))
}
