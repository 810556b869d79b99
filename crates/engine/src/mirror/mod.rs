//! Mirrors a log on legs with the same content, so that a leg can be lost. The log cache above decides by its checksums which of two
//! copies is right (see [`Io::ReadCopy`]).
//!
//! | part | does |
//! |---|---|
//! | `label` | the bytes on the legs |
//! | `assemble` | which legs a start believes; pure |
//! | `clients` | requests from above |
//! | `record` | writes the labels, and knows the requests that wait for that |
//! | `copying` | copies from leg to leg: fills a leg, repairs a place that could not be read |
//! | `command` | adds and removes legs |
//! | `offline` | makes a mirror |
//!
//! - A write is answered when it is on all legs in use.
//! - When a leg misses a write, nothing more is answered before the labels of the others say so.
//! - A leg that is being filled gets all writes, and is believed only once the labels call it whole.
//! - After a crash the legs may differ in writes that were under way. The mirror does not decide which of them count: the layer above
//!   reads both copies, and repeats the writes that it believes.

mod assemble;
mod clients;
mod command;
mod copying;
mod label;
pub mod offline;
mod record;
mod status;
#[cfg(test)]
mod tests;

pub use assemble::FoundLabel;
pub use label::{CONTENT_SECTOR, LEGS_MAX, Label, LabelError, Leg, LegState, content_sectors, was_removed};
pub use status::{LegStatus, MirrorStatistics, MirrorStatus};

use crate::layer::{
    ActivateError, BlockDevice, Control, Cx, Discards, Event, Geometry, Io, IoError, IoResult, Layer, OpId,
    Port, PortDevice, Ports, Report,
};
use crate::machine::Lifecycle;
use crate::slab::Slab;
use crate::{AnyStatus, Durability, Nanos, Planted};
use assemble::{Assembled, MirrorRefused, assemble};
use clients::MirrorRequests;
use command::PendingCommands;
use copying::Copier;
use record::LabelUpdate;

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegCanary {
    /// A leg that lacks acknowledged data is believed.
    StaleLeg,
    /// A write is answered when the first leg has it.
    OneLeg,
    /// Writes are answered before the labels name a leg that missed one.
    LateLabel,
}

#[derive(Clone, Debug, Default)]
pub struct MirrorConfig {
    /// Names of the legs, in the order of the ports.
    pub names: Vec<String>,
    /// Starts although legs are missing and not known to have failed.
    pub degraded: bool,
    /// Fills no leg: for commands that change nothing.
    pub only_looks: bool,
    pub canary: Planted<LegCanary>,
}

/// Reason for refusing to start a mirror. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MirrorError {
    #[error("none of the devices is a leg of a mirrored log: {0}")]
    NoLegs(String),
    #[error("\"{0}\" and \"{1}\" are legs of different logs")]
    TwoMirrors(String, String),
    #[error("\"{0}\" and \"{1}\" are the same leg: one is a copy of the other")]
    Twice(String, String),
    #[error(
        "\"{0}\" and \"{1}\" were used without each other, so each has writes that the other lacks: leave out the one whose writes may be lost"
    )]
    Apart(String, String),
    #[error(
        "{} missing, and \"{says}\" does not say that {} failed{}",
        if *missing == 1 { "one leg of the log is".to_owned() } else { format!("{missing} legs of the log are") },
        if *missing == 1 { "it" } else { "they" },
        no_legs.iter().map(|(name, why)| format!("; \"{name}\" is no leg: {why}")).collect::<String>()
    )]
    Missing {
        missing: usize,
        /// A leg that is present.
        says: String,
        /// Devices that are present but are no legs, and the reasons.
        no_legs: Vec<(String, LabelError)>,
    },
    #[error("no leg that was found has all that was acknowledged ({0}): the log needs one that has")]
    NoneWhole(String),
    #[error("\"{name}\" has {found} sectors, but a leg of this log needs {needed}")]
    TooSmall { name: String, found: u64, needed: u64 },
    #[error("\"{0}\" is read only, but every leg must be writable")]
    ReadOnly(String),
    #[error("\"{name}\": its label cannot be written: {error}")]
    Label { name: String, error: IoError },
}

/// A leg whose device is present.
struct Member {
    id: u64,
    port: Port,
    /// Operations on their way.
    in_flight: u32,
}

/// Purpose of an operation.
enum MirrorOp {
    /// An operation of a client.
    Client {
        client: u64,
        leg: u64,
    },
    Label {
        leg: u64,
        counts: bool,
    },
    Copy {
        leg: u64,
    },
    /// The flush of a leg that was filled.
    Filled {
        leg: u64,
    },
    /// Erases the label of a leg that was removed.
    Erase {
        leg: u64,
    },
}

struct MirrorCore {
    label: Label,
    members: Vec<Member>,
    geometry: Geometry,
    ops: Slab<MirrorOp>,
    clients: MirrorRequests,
    record: LabelUpdate,
    copier: Copier,
    calls: PendingCommands,
    life: Lifecycle,
    canary: Planted<LegCanary>,
    /// The legs by the numbers of [`Io::ReadCopy`]. A leg keeps its number while it is whole: bytes read from one copy must never
    /// overwrite another under the same number.
    copies: Vec<u64>,
    /// Legs that have lost data which they had reported as durable.
    distrusted: Vec<u64>,
    /// Errors for which legs have failed.
    causes: Vec<(u64, IoError)>,
    /// Legs that were missing at the start although no label called them failed; next, the newest label found at the start.
    missing: Vec<u64>,
    found_generation: u64,
    statistics: MirrorStatistics,
}

/// The mirror as a layer: its legs are on the ports, in the order of [`MirrorConfig::names`]; added legs come after.
pub struct Mirror {
    config: MirrorConfig,
    core: Option<MirrorCore>,
}

impl Mirror {
    pub const fn new(config: MirrorConfig) -> Mirror {
        Mirror { config, core: None }
    }

    fn core(&self) -> &MirrorCore {
        self.core.as_ref().expect("a layer is activated before it is used")
    }
}

impl Layer for Mirror {
    fn handle(&mut self, event: Event, cx: &mut Cx) {
        let core = self.core.as_mut().expect("a layer is activated before it gets events");
        match event {
            Event::Request(request) => core.on_request(request, cx),
            Event::Completed { op, result } => core.on_completed(op, result, cx),
            Event::Control(Control::ResetStatistics) => core.statistics = MirrorStatistics::default(),
            Event::Control(Control::Array(command)) => core.on_command(command, cx),
            // The mirror has nothing to destage.
            Event::Control(Control::Drain) => cx.report(Report::Drained),
            Event::Control(Control::Stop) => core.life = Lifecycle::Ending,
            Event::Control(Control::DistrustCopy(copy)) => core.distrust(copy, cx),
            Event::Wake | Event::Control(_) => {}
        }
        core.record_step(cx);
        core.copy_step(cx);
        core.answer_held(cx);
        core.answer_calls(cx);
        core.stop_step(cx);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.core.as_ref().and_then(MirrorCore::next_copy)
    }

    fn check(&self) {
        self.core().check();
    }

    fn geometry(&self) -> Geometry {
        self.core().geometry
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        self.core = Some(activate(&self.config, below)?);
        Ok(())
    }

    fn status(&self, _now: Nanos) -> Box<dyn AnyStatus> {
        match &self.core {
            Some(core) => Box::new(core.status()),
            None => Box::new(()),
        }
    }

    fn has_work(&self, _now: Nanos) -> bool {
        self.core.as_ref().is_some_and(MirrorCore::has_work)
    }
}

impl MirrorCore {
    fn on_completed(&mut self, op: OpId, result: IoResult, cx: &mut Cx) {
        match self.ops.remove(op.0) {
            MirrorOp::Client { client, leg } => {
                self.ended(leg);
                self.on_client(client, leg, result, cx);
            }
            MirrorOp::Label { leg, counts } => {
                self.ended(leg);
                self.on_label(leg, counts, result.status, cx);
            }
            MirrorOp::Copy { leg } => {
                self.ended(leg);
                self.on_copied(result, cx);
            }
            MirrorOp::Filled { leg } => {
                self.ended(leg);
                self.on_filled(leg, result, cx);
            }
            MirrorOp::Erase { leg } => self.ended(leg),
        }
    }

    fn ended(&mut self, leg: u64) {
        self.members.iter_mut().filter(|member| member.id == leg).for_each(|member| member.in_flight -= 1);
    }

    fn submit(&mut self, leg: u64, op: MirrorOp, io: Io, cx: &mut Cx) {
        let member = self.members.iter_mut().find(|member| member.id == leg).expect("its device is there");
        member.in_flight += 1;
        cx.submit(member.port, OpId(self.ops.insert(op)), io);
    }

    /// The whole leg with the fewest operations, except for some.
    fn reader(&self, but: &[u64]) -> Option<u64> {
        let is_whole = |member: &&Member| self.label.standing(member.id) == Some(LegState::Whole);
        let usable = self.members.iter().filter(is_whole).filter(|member| !but.contains(&member.id));
        usable.min_by_key(|member| member.in_flight).map(|member| member.id)
    }

    /// The leg with the number of a copy, while it is whole.
    fn leg_of(&self, copy: u8) -> Option<u64> {
        let leg = self.copies.get(usize::from(copy)).copied();
        leg.filter(|id| self.label.standing(*id) == Some(LegState::Whole))
    }

    /// Gives a leg that has become whole the number of one that is no longer whole.
    fn number(&mut self, leg: u64) {
        if self.copies.contains(&leg) {
            return;
        }
        let is_free = |id: &u64| self.label.standing(*id) != Some(LegState::Whole);
        match self.copies.iter().position(is_free) {
            Some(free) => self.copies[free] = leg,
            None => self.copies.push(leg),
        }
    }

    /// The legs that get writes.
    fn written(&self) -> Vec<u64> {
        let gets = |id: u64| matches!(self.label.standing(id), Some(LegState::Whole | LegState::Filling));
        self.members.iter().map(|member| member.id).filter(|id| gets(*id)).collect()
    }

    fn stop_step(&mut self, cx: &mut Cx) {
        if self.life == Lifecycle::Ending
            && self.clients.is_idle()
            && !self.copier.is_running()
            && self.record.is_over()
        {
            self.life = Lifecycle::Stopped;
            cx.report(Report::Stopped);
        }
    }

    fn is_last_whole(&self, leg: u64) -> bool {
        self.label.whole().eq([leg])
    }

    /// See [`Layer::has_work`].
    fn has_work(&self) -> bool {
        let records = !self.record.is_over();
        let works = self.copies() || self.clients.are_waiting() || records || !self.calls.is_empty();
        self.life.is_stopping() || self.life.serves() && works
    }

    fn check(&self) {
        let is_there = |id: u64| self.members.iter().any(|member| member.id == id);
        assert!(self.label.whole().all(is_there), "a whole leg is there");
        assert!(self.label.whole().next().is_some(), "one leg is whole");
        self.clients.check();
    }
}

/// Decides by the labels on the ports if a mirror may start. Pure: for those who want to know before a start.
///
/// # Errors
/// The refusal that the start would return.
pub fn may_start(config: &MirrorConfig, found: &[FoundLabel]) -> Result<(), MirrorError> {
    assembled(config, found).map(|_| ())
}

fn assembled(config: &MirrorConfig, found: &[FoundLabel]) -> Result<Assembled, MirrorError> {
    let name = |port: usize| config.names[port].clone();
    assemble(found, config.degraded, config.canary).map_err(|refused| match refused {
        MirrorRefused::NoLegs => {
            let why = found.iter().zip(&config.names);
            let why = why.filter_map(|(found, name)| Some(format!("\"{name}\": {}", found.as_ref().err()?)));
            MirrorError::NoLegs(why.collect::<Vec<_>>().join("; "))
        }
        MirrorRefused::TwoMirrors(a, b) => MirrorError::TwoMirrors(name(a), name(b)),
        MirrorRefused::Twice(a, b) => MirrorError::Twice(name(a), name(b)),
        MirrorRefused::Apart(a, b) => MirrorError::Apart(name(a), name(b)),
        MirrorRefused::Missing(missing) => {
            let says = name(found.iter().position(Result::is_ok).unwrap_or(0));
            let no_legs = found.iter().zip(&config.names);
            let no_legs = no_legs.filter_map(|(found, name)| Some((name.clone(), found.clone().err()?)));
            MirrorError::Missing { missing, says, no_legs: no_legs.collect() }
        }
        MirrorRefused::NoneWhole => {
            let there = found.iter().zip(&config.names).filter(|(found, _)| found.is_ok());
            let there: Vec<String> = there.map(|(_, name)| format!("\"{name}\"")).collect();
            MirrorError::NoneWhole(there.join(", "))
        }
    })
}

fn activate(config: &MirrorConfig, below: &mut dyn Ports) -> Result<MirrorCore, MirrorError> {
    let ports: Vec<Port> = (0..config.names.len()).map(Port).collect();
    let found: Vec<_> =
        ports.iter().map(|&port| Label::read(&mut PortDevice { ports: below, port })).collect();
    let name = |port: usize| config.names[port].clone();
    let Assembled { mut label, on_port, missing, found_generation } = assembled(config, &found)?;
    let members: Vec<Member> = on_port
        .iter()
        .zip(&ports)
        .filter_map(|(id, &port)| Some(Member { id: (*id)?, port, in_flight: 0 }))
        .collect();
    for member in &members {
        let (geometry, needed) = (below.geometry(member.port), label::device_sectors(label.sectors));
        let name = name(member.port.0);
        if geometry.sectors < needed {
            return Err(MirrorError::TooSmall { name, found: geometry.sectors, needed });
        }
        if geometry.read_only {
            return Err(MirrorError::ReadOnly(name));
        }
    }
    write_labels(config, &mut label, &members, below)?;
    let geometries = members.iter().map(|member| below.geometry(member.port));
    let geometry = combined(label.sectors, geometries);
    let record = LabelUpdate::of(label.generation);
    let copies = label.whole().collect();
    let copier = Copier::new(config.only_looks);
    Ok(MirrorCore {
        label,
        members,
        geometry,
        ops: Slab::default(),
        clients: MirrorRequests::default(),
        record,
        copier,
        calls: PendingCommands::default(),
        life: Lifecycle::Serving,
        canary: config.canary,
        copies,
        distrusted: Vec::new(),
        causes: Vec::new(),
        missing,
        found_generation,
        statistics: MirrorStatistics::default(),
    })
}

/// Writes the label for the next start: first on the whole legs, then on those that are filled.
fn write_labels(
    config: &MirrorConfig,
    label: &mut Label,
    members: &[Member],
    below: &mut dyn Ports,
) -> Result<(), MirrorError> {
    'again: loop {
        for wanted in [LegState::Whole, LegState::Filling] {
            for member in members.iter().filter(|member| label.standing(member.id) == Some(wanted)) {
                let written =
                    write_label(label, member.id, &mut PortDevice { ports: &mut *below, port: member.port });
                let Err(error) = written else { continue };
                label.set(member.id, LegState::Failed);
                label.generation += 1;
                if label.whole().next().is_none() {
                    return Err(MirrorError::Label { name: config.names[member.port.0].clone(), error });
                }
                continue 'again;
            }
        }
        return Ok(());
    }
}

/// Writes the label of a leg. A killed server may have left the valid copy in the device's cache, so the device is flushed first.
fn write_label(label: &Label, own: u64, device: &mut dyn BlockDevice) -> Result<(), IoError> {
    let (at, buf) = label.encode(own);
    device.flush()?;
    device.run(Io::Write { at, buf, durability: Durability::Durable }).status
}

/// Combines the geometries of the legs.
fn combined(sectors: u64, legs: impl Iterator<Item = Geometry>) -> Geometry {
    let mut copies = 0;
    let all = legs.fold(None, |all: Option<Geometry>, leg| {
        copies += 1;
        let Some(all) = all else { return Some(leg) };
        Some(Geometry {
            logical_block_bytes: all.logical_block_bytes.max(leg.logical_block_bytes),
            physical_block_bytes: all.physical_block_bytes.max(leg.physical_block_bytes),
            volatile_cache: all.volatile_cache || leg.volatile_cache,
            discards: match (all.discards, leg.discards) {
                (Discards::No, _) | (_, Discards::No) => Discards::No,
                // A leg that fails one misses nothing.
                _ => Discards::Advisory,
            },
            fast_zeroes: all.fast_zeroes && leg.fast_zeroes,
            rotational: all.rotational || leg.rotational,
            ssd: all.ssd && leg.ssd,
            ..all
        })
    });
    let all = all.expect("a mirror has a leg");
    // A second leg may be added to a mirror of one.
    Geometry { sectors, stripes: None, read_only: false, copies: copies.max(2), ..all }
}
