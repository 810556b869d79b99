//! A served stack, as the driver calls it: the [`StackHost`], the devices that are opened and watched, and the stop.
//!
//! A stop harms clients that have the device. `dcd stop` is refused as long as there are any; a signal stops the server in any case,
//! and the clients are reported. Tables of the system name them, which are read on a thread of their own.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dcd_engine::{LayerIndex, Nanos, Report, Stack};
use dcd_io::{
    CallId, ClientId, Context, Device, DeviceError, DeviceSpec, Driver, FileSpec, FrontEndNews, OpenId, Peer,
    Refused, Signal, StopOutcome, UnknownPeer,
};
use dcd_stack::{DeviceSource, HumanBytes};
use serde_json::{Value, json};

use crate::messages;
use crate::session::devices::remote_spec;
use crate::session::random::random_id;
use crate::session::serving::backup_marks::MarkKeeper;
use crate::session::serving::disks::DiskChanges;
use crate::session::serving::host::{GivenDevice, StackHost};
use crate::session::serving::notify::{tell_longer_stop, tell_stopping};
use crate::session::serving::watch::{DeviceWatch, OpenPlaces, SILENCE, TroubledDevices};

/// Maximum duration of a clean stop. Data that is not written back then stays in the log, as after a crash.
const STOP_MAX: Nanos = Nanos::from_secs(120);
/// Maximum duration of a stop that has to write everything back, as a log is lost when the server ends.
const STOP_WITHOUT_LOG_MAX: Nanos = Nanos::from_secs(86_400);
/// Duration of a stop after which a message says that it is still stopping.
const STOP_LONG: Nanos = Nanos::from_secs(5);
/// That message names the devices that have not answered for this long.
const OWING: Nanos = Nanos::from_secs(2);
/// Signals closer together count as one: a terminal and a supervisor may both send theirs.
const SAME_WISH: Nanos = Nanos::from_secs(1);
/// Maximum wait for the tables of the system that tell which clients have the device.
const LOOK_UP_MAX: Nanos = Nanos::from_secs(5);
/// Maximum wait for these tables at the end of the run.
const LOOK_UP_AT_END: Duration = Duration::from_secs(1);
/// Maximum wait of answers for the close of devices. Those that answer close at once.
const CLOSE_MAX: Nanos = Nanos::from_millis(100);
/// Minimum time between two messages about clients that are turned away.
const REFUSED_INTERVAL: Nanos = Nanos::from_secs(60);

/// See the module's documentation.
pub struct Served {
    pub host: StackHost,
    /// Text about the data that a stop leaves when it is not clean.
    left: &'static str,
    /// True when a stop was requested before the server had started.
    pub stop_at_once: bool,
    /// Time of the request to stop.
    asked: Option<Nanos>,
    /// Calls that wait for the end of the stop.
    stop_calls: Vec<CallId>,
    /// True while the layers are being stopped.
    stopping: bool,
    /// True after the message that the stop takes long.
    told_long: bool,
    watch: DeviceWatch,
    pub disk_changes: DiskChanges,
    /// The backup marks, or the reason why there can be none.
    pub marks: Result<MarkKeeper, String>,
    /// Time until which answers wait for the close of devices: a caller that is told of the close may open them again.
    closing: Option<Nanos>,
    /// Devices that are being opened, with what they are for.
    opening: BTreeMap<OpenId, (CallId, Value)>,
    /// Time of the last message about clients that are turned away, and their number by then.
    refused: Option<(Nanos, u64)>,
    /// Time of the last message that a client is not served, and number of clients since then that had no message.
    failed: Option<(Nanos, u64)>,
    /// Announces that clients can connect, once the last front-end is ready: those that are not, and the places of those that are.
    announce: Option<(Announce, usize, Vec<String>)>,
    /// Reason why a front-end cannot serve.
    front_end_failed: Option<String>,
    /// Calls for a stop that wait until it is known who has the device.
    asking: Vec<Asking>,
    /// Results of look-ups, and number of threads that still look something up for a signal.
    looked_up: (mpsc::Sender<LookedUp>, mpsc::Receiver<LookedUp>),
    lookups: usize,
}

/// A call for a stop that waits until it is known who has the device.
struct Asking {
    call: CallId,
    for_restart: bool,
    until: Nanos,
}

/// The clients that have the device, the devices that are lost by a stop, and the call for which they were looked up; none for a signal.
struct LookedUp {
    call: Option<CallId>,
    peers: Vec<Peer>,
    lost: TroubledDevices,
}

/// Announces that clients can connect. The argument has the places of the front-ends that were waited for.
pub type Announce = Box<dyn FnOnce(Vec<String>)>;

impl Served {
    pub fn new(host: StackHost, left: &'static str) -> Served {
        Served {
            host,
            left,
            stop_at_once: false,
            asked: None,
            stop_calls: Vec::new(),
            stopping: false,
            told_long: false,
            watch: DeviceWatch::default(),
            disk_changes: DiskChanges::default(),
            marks: Err("they are not kept".to_owned()),
            closing: None,
            opening: BTreeMap::new(),
            refused: None,
            failed: None,
            announce: None,
            front_end_failed: None,
            asking: Vec::new(),
            looked_up: mpsc::channel(),
            lookups: 0,
        }
    }

    /// Announces that clients can connect: now, or when a slow front-end is ready.
    pub fn announce(&mut self, announce: Announce, driver: &Driver) {
        match driver.front_end_statuses().len() {
            0 => announce(Vec::new()),
            many => self.announce = Some((announce, many, Vec::new())),
        }
    }

    /// Returns the message about a stop that is not clean.
    pub fn not_clean(&self, outcome: &StopOutcome) -> Option<String> {
        if outcome.is_clean() {
            return self.front_end_failed.clone();
        }
        let mut why = outcome.failures.clone();
        why.extend(self.front_end_failed.clone());
        if outcome.timed_out || outcome.abandoned {
            why.push("it did not have enough time".to_owned());
        }
        let left = match self.host.records.failed_logs() {
            Ok(failed) => failed.unwrap_or_else(|| self.left.to_owned()),
            Err(error) => error,
        };
        Some(format!("not stopped cleanly: {}. {left}", why.join("; ")))
    }

    /// Returns the time of the message that the stop takes long.
    fn long_at(&self) -> Option<Nanos> {
        self.asked.filter(|_| !self.told_long).map(|asked| asked + STOP_LONG)
    }

    pub fn is_stopping(&self) -> bool {
        self.asked.is_some()
    }

    fn begin_stop(&mut self, context: &mut Context<'_>) {
        tell_stopping();
        self.asked = Some(context.now());
        let longest =
            if self.loses_log(context.now(), context.stack_mut()) { STOP_WITHOUT_LOG_MAX } else { STOP_MAX };
        if longest > STOP_MAX {
            tell_longer_stop(longest.as_secs_f64());
        }
        context.stop(longest);
    }

    /// Returns the devices that are lost when the server ends, without those that nothing needs.
    fn lost_devices(&self, now: Nanos, stack: &Stack) -> Vec<&str> {
        let lost: Vec<&str> =
            self.watch.removed().filter_map(|device| self.host.device_name(device)).collect();
        lost.iter().copied().filter(|name| !self.host.is_spared(name, &lost, now, stack)).collect()
    }

    /// True if the device of a log works only until the server ends.
    fn loses_log(&self, now: Nanos, stack: &Stack) -> bool {
        self.lost_devices(now, stack).iter().any(|name| self.host.holds_log(name))
    }

    /// Describes why a stop would lose data, as a device works only until the server ends; none if it would not.
    fn loss_by_stop(&self, for_restart: bool, now: Nanos, stack: &Stack) -> Option<String> {
        let lost = self.lost_devices(now, stack);
        let (name, holds_log) = lost.into_iter().find_map(|name| {
            let holds_log = self.host.holds_log(name);
            (!holds_log || for_restart).then(|| (name.to_owned(), holds_log))
        })?;
        Some(match holds_log {
            true => format!(
                "device \"{name}\" is lost when the server ends, so the next server would not find the log"
            ),
            false => format!(
                "device \"{name}\" was deleted or moved, and what is on it is lost when the server ends"
            ),
        })
    }

    /// Stops, if no client has the device or the call allows that.
    fn stop_call(&mut self, call: CallId, args: &Value, context: &mut Context<'_>) {
        if self.asked.is_some() || args["force"] == true {
            return self.stop_for(call, context);
        }
        let (for_restart, until) = (args["for-restart"] == true, context.now() + LOOK_UP_MAX);
        self.asking.push(Asking { call, for_restart, until });
        self.look_up(Some(call), context);
    }

    /// Has the SSDs below the logs tell their wear: nothing here waits for them.
    fn look_at_wear(&mut self, context: &Context<'_>) {
        let holds_log = |device| self.host.device_name(device).is_some_and(|name| self.host.holds_log(name));
        self.watch.look_at_wear(context.now(), context.driver(), holds_log);
    }

    /// Looks up, on a thread, which clients have the device, and which devices are lost by a stop.
    fn look_up(&mut self, call: Option<CallId>, context: &mut Context<'_>) {
        let (peers, waker, told) = (context.peers(), context.waker(), self.looked_up.0.clone());
        let places = OpenPlaces::of(context.driver());
        let looks_up = move || {
            let peers = peers.into_iter().filter_map(UnknownPeer::look_up).collect();
            // Nobody waits any more where this fails.
            let _ = told.send(LookedUp { call, peers, lost: places.look() });
            waker.wake();
        };
        match (thread::Builder::new().name("dcd-look-up".to_owned()).spawn(looks_up), call) {
            (Ok(_), None) => self.lookups += 1,
            (Ok(_), Some(_)) => {}
            // As if no answer came: the calls time out now.
            (Err(_), _) => self.asking.iter_mut().for_each(|asking| asking.until = context.now()),
        }
    }

    /// Takes the results of look-ups, and refuses calls whose look-up takes too long.
    fn take_looked_up(&mut self, context: &mut Context<'_>) {
        while let Ok(LookedUp { call, peers, lost }) = self.looked_up.1.try_recv() {
            self.watch.found(lost);
            match call {
                None => self.tell_peers(&peers),
                Some(call) => {
                    let Some(place) = self.asking.iter().position(|asking| asking.call == call) else {
                        continue;
                    };
                    let Asking { for_restart, .. } = self.asking.swap_remove(place);
                    let wait = peers.iter().all(|peer| peer.waits);
                    let loss = self.loss_by_stop(for_restart, context.now(), context.stack_mut());
                    if let Some(loss) = loss.filter(|_| self.asked.is_none()) {
                        context.answer(call, json!({ "stopped": false, "loss": loss }), true);
                    } else if peers.is_empty() || (wait && for_restart) || self.asked.is_some() {
                        self.stop_for(call, context);
                    } else {
                        let clients: Vec<String> = peers.iter().map(describe).collect();
                        refuse_stop(call, &clients, wait, context);
                    }
                }
            }
        }
        let now = context.now();
        for late in self.asking.extract_if(.., |asking| asking.until <= now) {
            let unknown =
                "the clients are not known: the tables of the system (/proc) do not answer".to_owned();
            refuse_stop(late.call, &[unknown], false, context);
        }
    }

    /// Reports which clients had the device at a signal.
    fn tell_peers(&mut self, peers: &[Peer]) {
        self.lookups -= 1;
        for peer in peers {
            let then = match (peer.waits, peer.may_wait) {
                (true, _) => "Its requests wait for the next server",
                (_, true) => {
                    "If it connects again (QEMU: reconnect=1), its requests wait for the next server; if not, they fail"
                }
                _ => "A file system that is mounted on it fails from now on",
            };
            warnln!("dcd: stopping, although a client has the device: {}. {then}", describe(peer));
        }
    }

    /// Stops, and answers a call when that is done.
    fn stop_for(&mut self, call: CallId, context: &mut Context<'_>) {
        // A stop may take long; this answer says that it has begun.
        context.answer(call, json!({}), false);
        self.stop_calls.push(call);
        if self.asked.is_none() {
            self.begin_stop(context);
        }
    }

    /// Reports once that a stop takes long, and why.
    fn tell_long(&mut self, context: &mut Context<'_>) {
        if self.long_at().is_none_or(|at| context.now() < at) {
            return;
        }
        self.told_long = true;
        if self.loses_log(context.now(), context.stack_mut()) {
            let left = HumanBytes(self.host.dirty_data_bytes(context.now(), context.stack_mut()));
            return self.tell_waiting(
                context,
                &format!(
                    "still stopping: {left} are written back first, as the log is lost when the server ends. Do not end it before: that data \
                     would be lost"
                ),
            );
        }
        let owing = self.watch.owing(context.driver(), OWING, |device| self.host.device_name(device));
        let why = match owing.is_empty() {
            true => "the disks have not completed their operations yet".to_owned(),
            false => owing.join("; "),
        };
        let text = format!(
            "still stopping, for {} s at most: {why}; another SIGTERM or SIGINT ends this now. {}",
            STOP_MAX.as_secs_f64(),
            self.left
        );
        self.tell_waiting(context, &text);
    }

    fn tell_waiting(&self, context: &mut Context<'_>, text: &str) {
        warnln!("dcd: {text}");
        for call in &self.stop_calls {
            context.answer(*call, json!({ "waiting": text }), false);
        }
    }

    /// Delivers the host's answers and messages, and closes devices that it does not use any more.
    pub fn after(&mut self, context: &mut Context<'_>) {
        for (name, device) in self.host.take_closing() {
            match context.close_device(device) {
                true => self.closing = Some(context.now() + CLOSE_MAX),
                false => eprintln!(
                    "dcd: \"{name}\" stays open until the server stops: commands to it have not returned"
                ),
            }
        }
        self.closing = self.closing.filter(|until| context.is_closing() && context.now() < *until);
        while self.closing.is_none()
            && let Some(answer) = self.host.take_answer()
        {
            context.answer(answer.to, answer.body, answer.done);
        }
        if self.stopping && self.host.is_stopped() {
            self.stopping = false;
            context.layers_stopped(self.host.take_troubles());
        } else if !self.stopping {
            self.tell();
        }
    }

    /// Begins to open a device that is to be a spare.
    fn open_spare(&mut self, call: CallId, args: &Value, context: &mut Context<'_>) -> Result<(), String> {
        let newcomer = self.host.newcomer(args)?;
        let spec = match DeviceSource::of(&newcomer.path).map_err(|e| e.to_string())? {
            DeviceSource::Remote(remote) => remote_spec(&remote, false),
            _ => DeviceSpec::File(FileSpec::new(&newcomer.path)),
        };
        let opened = context.open_device(spec);
        self.opening.insert(opened.map_err(|e| e.to_string())?, (call, args.clone()));
        Ok(())
    }

    /// Gives an opened device to the array.
    fn add_spare(
        &mut self,
        call: CallId,
        args: &Value,
        opened: Result<Device, DeviceError>,
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        let opened = opened.map_err(|e| e.to_string())?;
        // Another call may have given the array a device of that name meanwhile.
        let newcomer = self.host.newcomer(args)?;
        let id = random_id().map_err(|e| e.to_string())?;
        let device = context.add_device(opened).map_err(|e| e.to_string())?;
        let port = context.stack_mut().add_port(newcomer.layer, device);
        let now = context.now();
        self.host.give(now, context.stack_mut(), call, GivenDevice { newcomer, device, port, id });
        Ok(())
    }

    /// Reports what is left at the end of the run: an operation that the kernel has not completed keeps the process from ending.
    pub fn tell_end(&mut self, driver: &Driver) {
        self.host.records.end();
        self.tell();
        while self.lookups > 0
            && let Ok(LookedUp { call, peers, .. }) = self.looked_up.1.recv_timeout(LOOK_UP_AT_END)
        {
            if call.is_none() {
                self.tell_peers(&peers);
            }
        }
        for owing in self.watch.owing(driver, Nanos::ZERO, |device| self.host.device_name(device)) {
            warnln!(
                "dcd: {owing}; the kernel may keep this process until it answers, or until its file system is gone"
            );
        }
    }

    /// Writes news and troubles to standard error, for the administrator or the journal.
    pub fn tell(&mut self) {
        for (priority, what) in self.host.take_news() {
            messages::tell(priority, format_args!("dcd: {what}\n"));
        }
        for what in self.host.take_troubles() {
            errorln!("dcd: {what}");
        }
    }
}

impl dcd_io::Host for Served {
    fn call(&mut self, call: CallId, body: Value, context: &mut Context<'_>) {
        let (now, args) = (context.now(), &body["args"]);
        match body["verb"].as_str() {
            Some("stop") => self.stop_call(call, args, context),
            Some("array") if args["command"] == "add" => {
                if let Err(why) = self.open_spare(call, args, context) {
                    self.host.refuse(call, why);
                }
            }
            Some("disk") => self.disk_call(call, args, context),
            Some("mark") => match self.mark_call(args) {
                Ok(answer) => self.host.answer(call, answer),
                Err(why) => self.host.refuse(call, why),
            },
            verb => {
                if verb == Some("reset-statistics") {
                    context.forget_device_counts();
                }
                self.watch.notice_own_stall(now);
                self.look_at_wear(context);
                let name = |device| self.host.device_name(device);
                let silent = self.watch.silent_devices(now, context.driver(), name);
                let devices = self.watch.devices(context.driver(), name);
                (self.host.silent, self.host.devices) = (silent, devices);
                let ublk = context.driver().front_end_statuses().into_iter();
                let known = ublk.filter_map(|(disk, ublk)| Some((disk, serde_json::from_value(ublk).ok()?)));
                self.host.ublk = known.collect();
                self.host.call(now, context.stack_mut(), call, &body);
            }
        }
        self.after(context);
    }

    fn opened(&mut self, open: OpenId, device: Result<Device, DeviceError>, context: &mut Context<'_>) {
        let Some(device) = self.disk_opened(open, device, context) else { return self.after(context) };
        let (call, args) = self.opening.remove(&open).expect("an open ends once");
        if let Err(why) = self.add_spare(call, &args, device, context) {
            self.host.refuse(call, why);
        }
        self.after(context);
    }

    fn client_gone(&mut self, client: ClientId, context: &mut Context<'_>) {
        let now = context.now();
        self.host.client_gone(now, context.stack_mut(), client);
        self.after(context);
    }

    fn client_refused(&mut self, why: Refused, context: &mut Context<'_>) {
        let (now, count) = (context.now(), context.driver().statistics().connections_refused);
        let before = match self.refused {
            Some((told, _)) if now < told + REFUSED_INTERVAL => return,
            Some((_, before)) => before,
            None => 0,
        };
        self.refused = Some((now, count));
        let clients = match count - before {
            1 => "a client was turned away".to_owned(),
            many => format!("{many} clients were turned away"),
        };
        match why {
            Refused::Places(clients_max) => warnln!(
                "dcd: {clients}: a socket takes {clients_max} clients at a time, and has that many. \"ss -p\" lists them"
            ),
            Refused::Descriptors => warnln!(
                "dcd: {clients}: this process may open no more files for them. Raise its limit (LimitNOFILE= in the unit, or ulimit -n)"
            ),
            Refused::System(error) => {
                warnln!("dcd: clients cannot connect: the system has no resources for another one: {error}")
            }
        }
    }

    fn client_failed(&mut self, who: &str, why: &str, context: &mut Context<'_>) {
        let now = context.now();
        let untold = match &mut self.failed {
            Some((told, untold)) if now < *told + REFUSED_INTERVAL => {
                *untold += 1;
                return;
            }
            last => last.map_or(0, |(_, untold)| untold),
        };
        self.failed = Some((now, 0));
        let more = if untold > 0 { format!(" (and {untold} others before)") } else { String::new() };
        warnln!("dcd: {who} is not served: {why}{more}");
    }

    fn report(&mut self, layer: LayerIndex, report: &Report, context: &mut Context<'_>) {
        if let Report::Disk(answer) = report {
            return self.disk_answered(answer.clone(), context);
        }
        let now = context.now();
        self.host.report(now, context.stack_mut(), layer, report.clone());
        self.after(context);
    }

    fn front_ends_ended(&mut self, disk: usize, result: Result<(), String>, context: &mut Context<'_>) {
        self.disk_front_ends_ended(disk, result, context);
    }

    fn front_end(&mut self, disk: usize, news: FrontEndNews, context: &mut Context<'_>) {
        let Some(news) = self.news_of_disk(disk, news, context) else { return };
        match news {
            FrontEndNews::Ready { place, but } => {
                but.iter().for_each(|what| warnln!("dcd: {what}"));
                self.announce = self.announce.take().and_then(|(announce, left, mut places)| {
                    places.push(place);
                    if left > 1 {
                        return Some((announce, left - 1, places));
                    }
                    announce(places);
                    None
                });
            }
            FrontEndNews::Warning(what) => warnln!("dcd: {what}"),
            FrontEndNews::Failed(why) => {
                errorln!("dcd: {why}");
                self.front_end_failed = Some(why);
                if self.asked.is_none() {
                    self.begin_stop(context);
                }
            }
        }
    }

    fn signal(&mut self, _signal: Signal, context: &mut Context<'_>) {
        match self.asked {
            None => {
                self.look_up(None, context);
                self.begin_stop(context);
            }
            Some(asked) if context.now() >= asked + SAME_WISH => context.stop(Nanos::ZERO),
            Some(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let at_once = self.stop_at_once.then_some(Nanos::ZERO);
        let asking = self.asking.iter().map(|asking| asking.until).min();
        let own = [Some(self.watch.next_deadline()), self.long_at(), at_once, asking, self.closing];
        let disks = self.disk_changes.next_deadline();
        own.into_iter().chain([self.host.next_deadline(), disks]).flatten().min()
    }

    fn wake(&mut self, context: &mut Context<'_>) {
        if std::mem::take(&mut self.stop_at_once) {
            self.signal(Signal::Terminate, context);
        }
        self.take_looked_up(context);
        self.tell_long(context);
        let now = context.now();
        let news = self.watch.look(now, context.driver(), |device| self.host.device_name(device));
        self.look_at_wear(context);
        news.iter().for_each(|what| warnln!("dcd: {what}"));
        self.wake_disks(context);
        self.host.owing = match self.host.is_flushing() {
            true => self.watch.owing(context.driver(), SILENCE, |device| self.host.device_name(device)),
            false => Vec::new(),
        };
        self.host.take_noted(now, context.stack_mut());
        self.host.tick(now, context.stack_mut());
        self.after(context);
    }

    fn quiesced(&mut self, context: &mut Context<'_>) {
        self.stopping = true;
        let now = context.now();
        let loses_log = self.loses_log(now, context.stack_mut());
        self.host.stop(now, context.stack_mut(), loses_log);
        self.after(context);
    }

    fn stopped(&mut self, outcome: &StopOutcome, context: &mut Context<'_>) {
        let (trouble, left) = (self.not_clean(outcome), self.host.left_at_stop());
        for call in std::mem::take(&mut self.stop_calls) {
            context.answer(call, json!({ "stopped": true, "trouble": trouble, "left": left }), true);
        }
    }
}

/// Refuses a stop, as clients have the device.
fn refuse_stop(call: CallId, clients: &[String], wait: bool, context: &mut Context<'_>) {
    context.answer(call, json!({ "stopped": false, "clients": clients, "wait": wait }), true);
}

/// Describes a client for the administrator.
fn describe(peer: &Peer) -> String {
    let Peer { who, idle, unanswered, waits: _, may_wait: _ } = peer;
    match unanswered {
        0 => format!("{who}, idle for {:.0} s", idle.as_secs_f64()),
        1 => format!("{who}, with a request that is not answered"),
        many => format!("{who}, with {many} requests that are not answered"),
    }
}
