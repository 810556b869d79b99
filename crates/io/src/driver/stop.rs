//! Stopping: requests end, the root is flushed, the layers stop from the top down, the last answers go out.
//!
//! | phase    | until                                                                           |
//! |----------|---------------------------------------------------------------------------------|
//! | Requests | every request that was taken has been answered: flush the disks of the root     |
//! | Flush    | each flush has ended: ask the host                                              |
//! | Host     | the host has the driver stop the layers, or says that it has done it            |
//! | Layers   | every layer has said that it stopped, or has nothing to say                     |
//! | Stopped  | at once: tell the host                                                          |
//! | Answers  | everything has been sent, or a second is over                                   |
//!
//! Steps that are not complete at the time limit are left as after a crash: no acknowledged data is lost.

use dcd_engine::{Control, Io, IoError, LayerIndex, Nanos, Report, Request, RequestId, Stack};

use super::{AnswerTo, Context, Driver, Host, RequestOrigin, keys};

/// Time for the last answers to go out.
const ANSWERS: Nanos = Nanos::from_secs(1);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopOutcome {
    /// Failed steps, in words for the administrator.
    pub failures: Vec<String>,
    /// True if the layers had not stopped at the time limit.
    pub timed_out: bool,
    /// True if the host ended the run without stopping.
    pub abandoned: bool,
}

impl StopOutcome {
    /// True if all steps completed and no layer failed to stop.
    pub fn is_clean(&self) -> bool {
        *self == StopOutcome::default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopPhase {
    Requests,
    /// Number of flushes that have not ended.
    Flush(usize),
    FlushEnded,
    Host,
    /// The layer that was told to stop, and whether it has answered.
    Layers {
        layer: usize,
        answered: bool,
    },
    Stopped,
    Answers {
        until: Nanos,
    },
}

pub(super) struct Stopping {
    phase: StopPhase,
    limit: Nanos,
    outcome: StopOutcome,
}

impl Driver {
    pub(super) fn begin_stop(&mut self, limit: Nanos) {
        let limit = self.now.saturating_add(limit);
        if let Some(stopping) = &mut self.stopping {
            // A second request may shorten the limit.
            stopping.limit = stopping.limit.min(limit);
            return;
        }
        self.stopping = Some(Stopping { phase: StopPhase::Requests, limit, outcome: StopOutcome::default() });
        for listener in keys(&self.listeners) {
            self.close_listener(listener);
        }
    }

    pub(super) fn begin_stop_layers(&mut self, stack: &mut Stack) {
        if let Some(stopping) = &mut self.stopping
            && stopping.phase == StopPhase::Host
        {
            let layer = stack.layer_count();
            stopping.phase = StopPhase::Layers { layer, answered: true };
        }
    }

    pub(super) fn end_stop_layers(&mut self, failures: Vec<String>) {
        if let Some(stopping) = &mut self.stopping
            && !matches!(stopping.phase, StopPhase::Answers { .. })
        {
            stopping.outcome.failures.extend(failures);
            stopping.phase = StopPhase::Stopped;
        }
    }

    pub(super) fn last_flush_ended(&mut self, status: Result<(), IoError>) {
        let Some(stopping) = &mut self.stopping else { return };
        if let Err(error) = status {
            stopping.outcome.failures.push(format!("the last flush failed: {error}"));
        }
        match &mut stopping.phase {
            StopPhase::Flush(1) => stopping.phase = StopPhase::FlushEnded,
            StopPhase::Flush(left) => *left -= 1,
            _ => {}
        }
    }

    /// Takes a layer's report while the driver stops it.
    pub(super) fn heard(&mut self, stack: &Stack, from: LayerIndex, report: &Report) {
        let Some(stopping) = &mut self.stopping else { return };
        let StopPhase::Layers { layer, answered } = &mut stopping.phase else { return };
        if from.0 != *layer {
            return;
        }
        match report {
            Report::Stopped => *answered = true,
            Report::Failed(why) => {
                stopping.outcome.failures.push(format!("layer \"{}\": {why}", stack.layer_name(from)));
                *answered = true;
            }
            Report::Drained
            | Report::LogFailed
            | Report::WritesThrough
            | Report::Array(_)
            | Report::Disk(_)
            | Report::Notice => {}
        }
    }

    pub(super) fn stop_deadline(&self) -> Option<Nanos> {
        self.stopping.as_ref().map(|stopping| match stopping.phase {
            StopPhase::Answers { until } => until,
            _ => stopping.limit,
        })
    }

    /// Advances as far as possible without waiting. Returns true once the run is over.
    pub(super) fn advance_stop(&mut self, stack: &mut Stack, host: &mut dyn Host) -> bool {
        loop {
            let now = self.now;
            let Some(stopping) = &mut self.stopping else { return false };
            let working = !matches!(stopping.phase, StopPhase::Stopped | StopPhase::Answers { .. });
            if working && now >= stopping.limit {
                stopping.outcome.timed_out = true;
                stopping.phase = StopPhase::Stopped;
            }
            match stopping.phase {
                StopPhase::Requests if self.origins.is_empty() => {
                    stopping.phase = StopPhase::Flush(stack.disks());
                    for disk in 0..stack.disks() {
                        let origin = RequestOrigin { to: AnswerTo::LastFlush, changes: None };
                        let id = RequestId(self.origins.insert(origin) as u64);
                        stack.request(now, Request { id, disk, io: Io::Flush });
                    }
                }
                StopPhase::FlushEnded => {
                    stopping.phase = StopPhase::Host;
                    host.quiesced(&mut Context { driver: self, stack });
                }
                StopPhase::Layers { layer, answered } => {
                    if !answered && !is_silent(now, stack, LayerIndex(layer)) {
                        return false;
                    }
                    if layer == 0 {
                        stopping.phase = StopPhase::Stopped;
                        continue;
                    }
                    stopping.phase = StopPhase::Layers { layer: layer - 1, answered: false };
                    stack.control(now, LayerIndex(layer - 1), Control::Stop);
                    if stack.has_outputs() {
                        return false;
                    }
                }
                StopPhase::Stopped => {
                    stopping.phase = StopPhase::Answers { until: now + ANSWERS };
                    let outcome = stopping.outcome.clone();
                    host.stopped(&outcome, &mut Context { driver: self, stack });
                }
                StopPhase::Answers { until } => {
                    let sent = self.connections.iter().all(|(_, c)| c.outgoing.is_empty());
                    return now >= until || (sent && self.calls.answers.is_empty());
                }
                StopPhase::Requests | StopPhase::Flush(_) | StopPhase::Host => return false,
            }
        }
    }

    pub(super) fn take_outcome(&mut self) -> StopOutcome {
        self.stopping.take().map(|stopping| stopping.outcome).unwrap_or_default()
    }
}

/// True if a layer that was told to stop will never answer, as it does not know of stopping: the stack has no message under
/// way, and the layer neither works nor waits for an instant.
fn is_silent(now: Nanos, stack: &Stack, layer: LayerIndex) -> bool {
    let layer = stack.layer(layer);
    stack.in_flight() == 0 && !stack.has_outputs() && !layer.has_work(now) && layer.next_deadline().is_none()
}
