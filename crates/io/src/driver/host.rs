//! The host of a stack: who answers control calls, hears reports, and decides when to stop.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use dcd_engine::{Control, DeviceIndex, LayerIndex, Nanos, Report, Stack};
use serde_json::Value;

use super::Driver;
use super::stop::StopOutcome;
use crate::device::{Device, DeviceError, DeviceSpec};
use crate::listen::{ListenError, ListenSocket, SocketRights};
use crate::workers::Waker;
use crate::{FrontEnd, FrontEndNews, SessionFactory, Signal};

/// Names a client as long as the driver lives; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// Names a control call; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    pub client: ClientId,
    pub number: u64,
}

/// Names a device that is being opened; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpenId(pub(super) u64);

/// Why a client was turned away.
#[derive(Debug)]
pub enum Refused {
    /// The socket has its maximum number of clients.
    Places(usize),
    /// The process has no descriptor for one more.
    Descriptors,
    /// The system has no memory or descriptor for one more.
    System(std::io::Error),
}

/// Receiver of the driver's events while it runs. Every method but [`Host::call`] has a default.
pub trait Host {
    /// A control call; answer it with [`Context::answer`], now or later.
    fn call(&mut self, call: CallId, body: Value, context: &mut Context<'_>);

    /// A client has gone: its calls need no answer any more.
    fn client_gone(&mut self, _client: ClientId, _context: &mut Context<'_>) {}

    /// A client was turned away.
    fn client_refused(&mut self, _why: Refused, _context: &mut Context<'_>) {}

    /// A client was disconnected, or never served, for this reason.
    fn client_failed(&mut self, _who: &str, _why: &str, _context: &mut Context<'_>) {}

    fn report(&mut self, _layer: LayerIndex, _report: &Report, _context: &mut Context<'_>) {}

    /// Result of [`Context::open_device`].
    fn opened(&mut self, _open: OpenId, _device: Result<Device, DeviceError>, _context: &mut Context<'_>) {}

    /// A front-end of a disk that starts slowly is ready, or has failed.
    fn front_end(&mut self, _disk: usize, _news: FrontEndNews, _context: &mut Context<'_>) {}

    /// Result of [`Context::end_front_ends_of`]: all have ended, or one stays.
    fn front_ends_ended(&mut self, _disk: usize, _result: Result<(), String>, _context: &mut Context<'_>) {}

    /// SIGTERM or SIGINT, where [`Driver::take_signals`] was called.
    fn signal(&mut self, _signal: Signal, context: &mut Context<'_>) {
        context.stop(Nanos::from_secs(60));
    }

    /// Returns when [`Host::wake`] is to be called, if ever.
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// The deadline has come, or a [`Waker`] has rung.
    fn wake(&mut self, _context: &mut Context<'_>) {}

    /// While stopping: no request is in flight any more, and the root has been flushed. Either has the driver stop the
    /// layers, or does so itself and then calls [`Context::layers_stopped`].
    fn quiesced(&mut self, context: &mut Context<'_>) {
        context.stop_layers();
    }

    /// The layers have stopped, or the time limit has passed. Answers that are given here are still sent.
    fn stopped(&mut self, _outcome: &StopOutcome, _context: &mut Context<'_>) {}
}

/// Operations that the host may use while it is called.
pub struct Context<'a> {
    pub(super) driver: &'a mut Driver,
    pub(super) stack: &'a mut Stack,
}

impl Context<'_> {
    pub fn now(&self) -> Nanos {
        self.driver.now
    }

    pub fn stack(&self) -> &Stack {
        self.stack
    }

    /// The stack, for hosts that send controls to its layers. They must not send requests.
    pub fn stack_mut(&mut self) -> &mut Stack {
        self.stack
    }

    pub fn driver(&self) -> &Driver {
        self.driver
    }

    /// Returns a waker by which another thread wakes the host.
    pub fn waker(&self) -> Waker {
        self.driver.waker()
    }

    pub fn control(&mut self, layer: LayerIndex, control: Control) {
        self.stack.control(self.driver.now, layer, control);
    }

    /// Opens a device without waiting. [`Host::opened`] gets the result, unless the open never returns.
    ///
    /// # Errors
    /// Where the system has no thread for it.
    pub fn open_device(&mut self, spec: DeviceSpec) -> std::io::Result<OpenId> {
        self.driver.open_device(spec)
    }

    /// Adds a device to the driver and the stack while they run. [`Stack::add_port`] then gives a layer a port to it.
    ///
    /// # Errors
    /// Where the system has no thread for a device that needs one.
    pub fn add_device(&mut self, device: Device) -> Result<DeviceIndex, DeviceError> {
        let geometry = device.geometry();
        let added = self.driver.add_device(device)?;
        let known = self.stack.add_device(geometry);
        assert_eq!(known, added, "stack and driver count the same devices");
        Ok(added)
    }

    /// Begins to close a device permanently; no layer may use it. Returns false while operations on it are under way: then it stays open.
    pub fn close_device(&mut self, device: DeviceIndex) -> bool {
        self.driver.close_device(device)
    }

    /// Adds a front-end while the driver runs.
    ///
    /// # Errors
    /// Those of [`Driver::add_front_end`].
    pub fn add_front_end(&mut self, front_end: Box<dyn FrontEnd>) -> std::io::Result<()> {
        self.driver.add_front_end(front_end)
    }

    /// Begins to end the front-ends of a disk without connections; false if it has none. [`Host::front_ends_ended`] gets the result.
    pub fn end_front_ends_of(&mut self, disk: usize) -> bool {
        self.driver.begin_end_of(disk)
    }

    /// True while devices are being closed. The host is woken at the end of each close.
    pub fn is_closing(&self) -> bool {
        self.driver.closing > 0
    }

    /// Resets the counts of devices' operations.
    pub fn forget_device_counts(&mut self) {
        self.driver.forget_counts();
    }

    /// Answers a control call. Returns false if the caller is gone.
    pub fn answer(&mut self, call: CallId, body: Value, done: bool) -> bool {
        self.driver.calls.answer(call, body, done)
    }

    /// Begins to stop: no new clients, requests are refused, those in flight end, the root is flushed, the layers stop.
    /// All that may take until `limit` from now.
    pub fn stop(&mut self, limit: Nanos) {
        self.driver.begin_stop(limit);
    }

    /// Makes the driver stop the layers, from the top down.
    pub fn stop_layers(&mut self) {
        self.driver.begin_stop_layers(self.stack);
    }

    /// Tells the driver that the host has stopped the layers, with a text for each failure.
    pub fn layers_stopped(&mut self, failures: Vec<String>) {
        self.driver.end_stop_layers(failures);
    }

    /// Ends the loop immediately, without finishing requests or stopping layers.
    pub fn end(&mut self) {
        self.driver.end_now();
    }
}

impl Driver {
    /// Returns a waker for the host, as [`Context::waker`] does.
    pub fn waker(&self) -> Waker {
        self.finished_by_workers.waker()
    }

    /// Listens on a unix socket, whose directory is made if it does not exist.
    pub fn listen_unix(
        &mut self,
        path: &Path,
        rights: SocketRights,
        factory: Box<dyn SessionFactory>,
    ) -> Result<(), ListenError> {
        self.add_listener(ListenSocket::unix(path, rights)?, factory);
        Ok(())
    }

    /// Listens on TCP; tells the address, whose port was chosen where it was 0.
    pub fn listen_tcp(
        &mut self,
        address: SocketAddr,
        factory: Box<dyn SessionFactory>,
    ) -> Result<SocketAddr, ListenError> {
        let socket = ListenSocket::tcp(address)?;
        let address = socket.address.unwrap_or(address);
        self.add_listener(socket, factory);
        Ok(address)
    }
}

/// Recipient of the answer to a control call.
struct PendingCall {
    connection: usize,
    token: u64,
}

/// An answer on its way to a session.
pub(super) struct SessionAnswer {
    pub client: ClientId,
    pub connection: usize,
    pub token: u64,
    pub body: Value,
    pub done: bool,
}

/// Unanswered control calls, and answers that are not yet delivered.
#[derive(Default)]
pub(super) struct Calls {
    open: BTreeMap<CallId, PendingCall>,
    begun: u64,
    pub answers: std::collections::VecDeque<SessionAnswer>,
}

impl Calls {
    pub fn begin(&mut self, client: ClientId, connection: usize, token: u64) -> CallId {
        self.begun += 1;
        let id = CallId { client, number: self.begun };
        self.open.insert(id, PendingCall { connection, token });
        id
    }

    fn answer(&mut self, id: CallId, body: Value, done: bool) -> bool {
        let Some(call) = self.open.get(&id) else { return false };
        let (connection, token) = (call.connection, call.token);
        if done {
            self.open.remove(&id);
        }
        self.answers.push_back(SessionAnswer { client: id.client, connection, token, body, done });
        true
    }

    pub fn forget(&mut self, client: ClientId) {
        self.open.retain(|id, _| id.client != client);
    }
}
