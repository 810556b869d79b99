//! The superblocks of a running array: what they say, what they have to say, and who waits for that.
//!
//! Before the first write the superblocks say that writes are under way (*active*), and before anything is acknowledged that a
//! failed member has missed, they say that it has failed. Otherwise a later start would trust parity that a crash left
//! half-written, or a member that is out of date.

use crate::layer::{IoResult, Outbox};
use crate::raid::array::{Array, Flight};
use crate::raid::superblock::Superblock;

/// See the module's documentation.
pub(super) struct Recorder {
    recorded: Superblock,
    active: bool,
    synced: bool,
    failed: u64,
    /// A member failed in this life. One that was missing from the start is no news before something is written.
    fails: bool,
    recording: Option<Superblock>,
    /// Members that have not answered.
    left: u32,
}

impl Recorder {
    /// `failed`: the roles that cannot be used, whether or not the superblocks know.
    pub const fn new(recorded: Superblock, failed: u64) -> Recorder {
        let Superblock { active, synced, .. } = recorded;
        Recorder { recorded, active, synced, failed, fails: false, recording: None, left: 0 }
    }

    pub const fn recorded(&self) -> &Superblock {
        &self.recorded
    }

    pub const fn failed(&self) -> u64 {
        self.failed
    }

    pub const fn fail(&mut self, role: usize) {
        self.failed |= 1 << role;
        self.fails = true;
    }

    /// The parity of the whole array is right.
    pub const fn synced(&mut self) {
        self.synced = true;
    }

    /// No writes are under way any more.
    pub const fn rest(&mut self) {
        self.active = false;
    }

    /// What is to be recorded and is not.
    fn next(&self) -> Option<Superblock> {
        let (active, synced, failed) = (self.active, self.synced, self.failed);
        let failed = if self.fails || active || self.recorded.active { failed } else { self.recorded.failed };
        let next = Superblock { active, synced, failed, ..self.recorded };
        (next != self.recorded).then_some(Superblock { generation: next.generation + 1, ..next })
    }
}

impl Array {
    /// The superblocks do not say yet what they have to.
    pub fn is_recording(&self) -> bool {
        self.recorder.recording.is_some() || self.recorder.next().is_some()
    }

    /// Operations may write.
    pub fn may_write(&self) -> bool {
        self.recorder.recorded.active && !self.is_recording()
    }

    /// Writes are about to begin.
    pub fn record_activity(&mut self, out: &mut Outbox) {
        self.recorder.active = true;
        self.record(out);
    }

    /// Writes the superblocks, if they have something new to say and are not being written.
    pub fn record(&mut self, out: &mut Outbox) {
        if self.recorder.recording.is_some() || self.broken {
            return;
        }
        let Some(mut next) = self.recorder.next() else { return };
        if next.active && !self.recorder.recorded.active {
            next.epoch += 1;
            next.journaled = self.journal.is_some();
            if !self.open_journal(next.epoch, out) {
                return;
            }
        }
        self.recorder.recording = Some(next);
        self.statistics.superblocks += 1;
        for role in 0..self.ports.len() {
            if !self.is_failed(role) {
                self.recorder.left += 1;
                self.submit(role, Flight::Superblock { role }, next.write(role), out);
            }
        }
    }

    /// A member has written its superblock, or could not.
    pub fn superblock_returned(&mut self, role: usize, result: &IoResult, out: &mut Outbox) {
        self.recorder.left -= 1;
        if result.status.is_err() {
            self.member_failed(role, out);
        }
        if self.recorder.left == 0 {
            self.recorder.recorded = self.recorder.recording.take().expect("it is being recorded");
            self.record(out);
        }
    }
}
