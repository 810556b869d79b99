//! Measures the rotation of the log's disk while the cache serves, if it is in doubt: format could not tell, or found no head, or following
//! the head does not pay.
//!
//! The survey writes zeroes in free segments, one block at a time, while nothing is dirty and no client waits; a request suspends it. It
//! begins soon after a request, so it wakes no disk that sleeps. If it finds nothing, the next one waits twice as long as this one did.

use std::ops::Range;

use super::LogCanary;
use super::destager::Destagers;
use super::env::{Env, LOG, Op, View};
use super::spindle::TRACK_POINTS;
use super::survey::{Probe, RotationSurvey};
use crate::layer::{Io, IoResult};
use crate::machine::Lifecycle;
use crate::{Buf, Lba, Nanos, SECTOR_BYTES};

/// Time without a request before each write of a survey.
const QUIET: Nanos = Nanos::from_millis(100);
/// Time after the last request in which a survey may begin or go on.
const AWAKE: Nanos = Nanos::from_secs(10);
/// Time between a survey that has found nothing and the next one, at first and at most.
const PAUSE_FIRST: Nanos = Nanos::from_secs(60);
const PAUSE_MAX: Nanos = Nanos::from_secs(86_400);
/// Writes after which a survey has found nothing.
const PROBES_MAX: u32 = 8192;
/// A survey needs one in so many of the segments.
const AREA_PART: u32 = 4;

/// See the module's documentation.
pub struct Surveying {
    survey: Option<RotationSurvey>,
    probes: u32,
    /// Time when the write in flight was sent, or the last one ended.
    at: Nanos,
    /// Time before which no survey begins, and the pause after the next one.
    due: Nanos,
    pause: Nanos,
    /// Time of the last request when the last survey ended.
    seen: Nanos,
    /// The log's device refuses such writes.
    has_failed: bool,
}

impl Default for Surveying {
    fn default() -> Surveying {
        let (at, due, seen) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
        Surveying { survey: None, probes: 0, at, due, pause: PAUSE_FIRST, seen, has_failed: false }
    }
}

impl Surveying {
    /// Returns when the survey begins or goes on; none if that needs another event first.
    pub fn deadline(&self, view: &View, destagers: &Destagers, is_at_rest: bool) -> Option<Nanos> {
        let View { log, queue, .. } = view;
        let last = queue.last_activity();
        let is_wanted =
            || !self.has_failed && last > self.seen && view.config.follow_head && log.head_is_in_doubt();
        let rests = || {
            view.life == Lifecycle::Serving
                && !log.has_failed()
                && !log.is_releasing()
                && log.buffers().is_empty()
                && queue.foreground() == 0
                && !queue.has_pending()
                && destagers.are_idle()
                && !view.index.is_dirty()
        };
        if !is_at_rest || !(self.survey.is_some() || is_wanted()) || !rests() {
            return None;
        }
        let at = self.due.max(last + QUIET);
        (at <= last + AWAKE || self.survey.is_some()).then_some(at)
    }

    /// Sends the next write of the survey, if it is time for that.
    pub fn step(&mut self, destagers: &Destagers, env: &mut Env) {
        let now = env.cx.now;
        if self.deadline(&env.view(), destagers, env.ops.is_empty()).is_none_or(|at| at > now) {
            return;
        }
        // The disk has turned too often since: another angle would be measured.
        let is_stale = now.since(self.at) > AWAKE;
        let survey = match self.survey.take().filter(|_| !is_stale) {
            Some(survey) => survey,
            None if env.log.ring().remembered() > 0 => return env.index.ask_for_room(),
            None => {
                let Some(area) = free_area(&env.view()) else { return self.rest(PAUSE_FIRST, env) };
                let geometry = env.log.geometry();
                let physical = geometry.logical_block_bytes.max(geometry.physical_block_bytes);
                let block = u64::from(env.log.superblock().log_block_bytes.max(physical)) / SECTOR_BYTES;
                self.probes = 0;
                RotationSurvey::new(area, block, TRACK_POINTS, geometry.volatile_cache)
            }
        };
        let Probe { at, sectors, durability } = match survey.next() {
            Ok(probe) if self.probes < PROBES_MAX => probe,
            Ok(_) => return self.end(env),
            Err(found) => {
                env.log.measured(found);
                return self.end(env);
            }
        };
        let segment = env.log.superblock().segment_of(at);
        if !env.log.ring().is_ready(segment) {
            return self.end(env);
        }
        (self.survey, self.at, self.probes) = (Some(survey), now, self.probes + 1);
        if !env.config.canary.is(LogCanary::UnpinnedProbe) {
            env.log.pin(segment);
        }
        let buf = Buf::zeroed((sectors * SECTOR_BYTES) as usize);
        env.submit(LOG, Op::Probe(segment), Io::Write { at: Lba(at), buf, durability });
    }

    /// Takes a write of the survey that has ended.
    pub fn written(&mut self, segment: u32, result: &IoResult, env: &mut Env) {
        if !env.config.canary.is(LogCanary::UnpinnedProbe) {
            env.log.unpin(segment);
        }
        let begun = std::mem::replace(&mut self.at, env.cx.now);
        match &mut self.survey {
            Some(survey) if result.status.is_ok() => survey.done(begun, env.cx.now),
            _ => (self.survey, self.has_failed) = (None, true),
        }
    }

    fn end(&mut self, env: &Env) {
        self.rest(self.pause, env);
        self.pause = Nanos(self.pause.0 * 2).min(PAUSE_MAX);
    }

    fn rest(&mut self, pause: Nanos, env: &Env) {
        self.survey = None;
        self.seen = env.queue.last_activity();
        self.due = env.cx.now + pause;
    }
}

/// Returns the longest row of free segments, in sectors; none if it is short.
fn free_area(view: &View) -> Option<Range<u64>> {
    let (ring, superblock) = (view.log.ring(), view.log.superblock());
    let rows = ring.indices(&(ring.head() + 1..ring.head() + 1 + ring.ready()));
    let longest = rows.into_iter().max_by_key(|row| row.len())?;
    (longest.len() as u32 >= superblock.segments / AREA_PART)
        .then(|| superblock.segment_start(longest.start)..superblock.segment_start(longest.end))
}
