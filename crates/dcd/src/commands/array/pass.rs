//! `dcd array rebuild` and `dcd array scrub`: done by the server if the array is served, else in this process.

use std::time::Duration;

use dcd_engine::raid::{ArrayState, ArrayStatus, members_named};
use dcd_engine::{ArrayCommand, Control, LayerIndex, Nanos, Pump, Report, Stack};
use dcd_io::{CallId, Context, Driver, Signal, Signals};
use dcd_serve::control::{ClientError, ControlClient};
use dcd_stack::LayerStatus;
use serde_json::{Value, json};

use crate::advice::Advised;
use crate::cli_array::{ArrayRebuild, ArrayScrub};
use crate::commands::array::status::{findings_line, pass_line};
use crate::control::{ask, server_of};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::session::choice::ArrayChoice;
use crate::session::devices::{Opener, Purpose};
use crate::session::judge::judge;
use crate::session::running::RunningCaches;
use crate::session::serving::status::array_of_server;
use crate::session::survey::Survey;

/// Polling interval for progress.
const INTERVAL: Nanos = Nanos::from_millis(250);
/// Polls without progress after which a pass is given up as stuck.
const IDLE_LOOKS_MAX: u32 = 40;
/// Maximum duration of a stop.
const STOP_MAX: Nanos = Nanos::from_secs(60);

pub fn rebuild(args: &ArrayRebuild) -> Result<(), Failure> {
    let mut choice = ArrayChoice::load(&args.array)?;
    choice.site.asked.accept_doubt = args.accept_doubt;
    let status = run(&choice, ArrayCommand::Rebuild, Progress::new(args.quiet))?;
    if !status.failed_members.is_empty() {
        let members = members_named(&status.failed_members);
        return Err(Failure::Failed(format!(
            "still without {members}: add a device, with \"dcd array add\""
        )));
    }
    let parity = match status.state {
        ArrayState::Resyncing => {
            "; parity may be out of sync until the resync ends, which continues while the array is served"
        }
        _ => "",
    };
    println!("all members are complete{parity}");
    for advice in &status.advice {
        println!("note: {advice}");
    }
    Ok(())
}

pub fn scrub(args: &ArrayScrub) -> Result<(), Failure> {
    let choice = ArrayChoice::load(&args.array)?;
    if args.stop {
        let mut client = server_of(&choice.site)?.ok_or_else(|| {
            Failure::Failed(format!(
                "{}: it is not served: interrupt the scrub command",
                choice.site.path.display()
            ))
        })?;
        return tell(&mut client, &choice, ArrayCommand::ScrubStop);
    }
    let status = run(&choice, ArrayCommand::Scrub { repair: args.repair }, Progress::new(args.quiet))?;
    let findings = status
        .last_scrub
        .ok_or_else(|| Failure::Failed("the scrub ended early: see \"dcd array status\"".to_owned()))?;
    let line = findings_line(&findings);
    if findings.lost > 0 || (!args.repair && findings.are_left()) {
        let advice = if args.repair { "" } else { "; --repair rewrites them" };
        return Err(Failure::Damage(format!("{line}{advice}")));
    }
    println!("{line}");
    Ok(())
}

/// Gives the array the command, follows the pass to its end, and returns the status then.
fn run(choice: &ArrayChoice, command: ArrayCommand, progress: Progress) -> Result<ArrayStatus, Failure> {
    let Some(mut client) = server_of(&choice.site)? else { return foreground(choice, command, progress) };
    let before = array_of_server(&mut client, &choice.layer)?;
    if has_nothing_to_do(command, &before) {
        return Ok(before);
    }
    if let Err(failure) = tell(&mut client, choice, command) {
        // A rebuild that the array began by itself may have ended since.
        let now = array_of_server(&mut client, &choice.layer)?;
        return if has_nothing_to_do(command, &now) { Ok(now) } else { Err(failure) };
    }
    let mut follower = Follower::new(progress);
    loop {
        let array = array_of_server(&mut client, &choice.layer)?;
        if follower.is_over(&array)? {
            return Ok(array);
        }
        std::thread::sleep(Duration::from_nanos(INTERVAL.0));
    }
}

/// True for a rebuild of an array without failed members.
fn has_nothing_to_do(command: ArrayCommand, array: &ArrayStatus) -> bool {
    command == ArrayCommand::Rebuild && array.failed_members.is_empty()
}

fn tell(client: &mut ControlClient, choice: &ArrayChoice, command: ArrayCommand) -> Result<(), Failure> {
    let (word, repair) = match command {
        ArrayCommand::Scrub { repair } => ("scrub", repair),
        ArrayCommand::ScrubStop => ("scrub-stop", false),
        ArrayCommand::Rebuild
        | ArrayCommand::Fail { .. }
        | ArrayCommand::Add { .. }
        | ArrayCommand::Remove { .. }
        | ArrayCommand::Close { .. }
        | ArrayCommand::Forget => ("rebuild", false),
    };
    let args = json!({ "layer": choice.layer, "command": word, "repair": repair });
    match ask(client, "array", args) {
        Ok(_) => Ok(()),
        Err(ClientError::Refused(why)) => Err(Failure::Failed(why)),
        Err(other) => Err(other.into()),
    }
}

/// Watches the status of an array that has been told to begin something.
struct Follower {
    progress: Progress,
    idle_looks: u32,
}

impl Follower {
    const fn new(progress: Progress) -> Follower {
        Follower { progress, idle_looks: 0 }
    }

    /// True when all passes have ended.
    fn is_over(&mut self, array: &ArrayStatus) -> Result<bool, Failure> {
        let pass = array.pass.as_ref();
        if let Some(pass) = pass.filter(|pass| !pass.paused) {
            self.idle_looks = 0;
            self.progress.left(pass.member_bytes_left);
            return Ok(false);
        }
        self.idle_looks += 1;
        let waits = pass.is_some() || array.rebuilding_member.is_some();
        if waits && self.idle_looks > IDLE_LOOKS_MAX {
            self.progress.end();
            let what = pass.map_or_else(|| "the rebuild does not begin".to_owned(), pass_line);
            return Err(Failure::Failed(format!("{what}: see \"dcd array status\"")));
        }
        if !waits {
            self.progress.end();
        }
        Ok(!waits)
    }
}

/// Runs the array alone in this process, until the pass is over or a signal comes.
fn foreground(
    choice: &ArrayChoice,
    command: ArrayCommand,
    progress: Progress,
) -> Result<ArrayStatus, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
    let mut driver = Driver::new()?;
    driver.take_signals(Signals::of_command().map_err(|e| failed(&e))?);
    let mut site = choice.site.clone();
    site.hold(Purpose::Change);
    let mut survey = Survey::default();
    survey.look_at(&site, &[&choice.layer], Purpose::Change)?;
    let plan = judge(&site, &survey.seen, &site.asked)?;
    plan.prepare(&mut site, &[&choice.layer]);
    let mut caches = RunningCaches::of(survey.admitted(&site, &plan));
    site.asked.volatile = true;
    let mut opener = Opener::new(&site, Purpose::Change);
    let built = site.build_parts(&[&choice.layer], &mut opener).map_err(|error| opener.failure(error))?;
    for device in opener.into_devices() {
        driver.add_device(device).map_err(|e| failed(&e))?;
    }
    let mut stack = built.stack;
    caches.note_start()?;
    let ended =
        follow(&mut driver, &mut stack, &mut caches, built.parts.layers[&choice.layer], command, progress);
    let noted = caches.note_end(driver.now(), &stack);
    let status = ended?;
    noted?;
    Ok(status)
}

fn follow(
    driver: &mut Driver,
    stack: &mut Stack,
    caches: &mut RunningCaches,
    layer: LayerIndex,
    command: ArrayCommand,
    progress: Progress,
) -> Result<ArrayStatus, Failure> {
    stack.activate(driver).map_err(|error| Failure::Refused(error.refusal()))?;
    caches.note_started(driver.now(), stack)?;
    let mut host = Foreground {
        layer,
        command: Some(command),
        follower: Follower::new(progress),
        next: Nanos::ZERO,
        ended: None,
        caches,
    };
    let outcome = driver.run(stack, &mut host).map_err(|e| Failure::Failed(e.to_string()))?;
    host.follower.progress.end();
    let ended =
        host.ended.unwrap_or_else(|| Err(Failure::Failed("interrupted; the next run continues".to_owned())));
    if outcome.is_clean() { ended } else { Err(Failure::Failed(outcome.failures.join("; "))) }
}

/// Host of an array that has no clients.
struct Foreground<'a> {
    layer: LayerIndex,
    command: Option<ArrayCommand>,
    follower: Follower,
    next: Nanos,
    ended: Option<Result<ArrayStatus, Failure>>,
    caches: &'a mut RunningCaches,
}

impl Foreground<'_> {
    fn end(&mut self, ended: Result<ArrayStatus, Failure>, context: &mut Context<'_>) {
        self.ended = Some(ended);
        context.stop(STOP_MAX);
    }
}

impl dcd_io::Host for Foreground<'_> {
    fn call(&mut self, call: CallId, _body: Value, context: &mut Context<'_>) {
        context.answer(call, dcd_serve::control::error("it is not served"), true);
    }

    fn report(&mut self, layer: LayerIndex, report: &Report, context: &mut Context<'_>) {
        match report {
            Report::Array(Err(why)) => self.end(Err(Failure::Failed(why.told())), context),
            Report::LogFailed => {
                let now = context.now();
                match self.caches.log_failed(now, context.stack_mut(), layer) {
                    Ok(told) => eprintln!("dcd: {told}"),
                    Err(error) => self.end(Err(error.into()), context),
                }
            }
            _ => {}
        }
    }

    fn signal(&mut self, _signal: Signal, context: &mut Context<'_>) {
        context.stop(STOP_MAX);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.ended.is_none().then_some(self.next)
    }

    fn wake(&mut self, context: &mut Context<'_>) {
        if self.ended.is_some() {
            return;
        }
        self.next = context.now() + INTERVAL;
        let status = LayerStatus::of(context.stack(), self.layer, context.now());
        let status = status.array().expect("it is an array").clone();
        if let Some(command) = self.command.take() {
            if has_nothing_to_do(command, &status) {
                return self.end(Ok(status), context);
            }
            return context.control(self.layer, Control::Array(command));
        }
        match self.follower.is_over(&status) {
            Ok(false) => {}
            Ok(true) => self.end(Ok(status), context),
            Err(failure) => self.end(Err(failure), context),
        }
    }
}
