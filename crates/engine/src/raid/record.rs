//! The superblocks of a running array: what they say, what they have to say, and who waits for that.
//!
//! Before the first write the superblocks say that writes are under way (*active*), and before anything is acknowledged that a
//! failed member has missed, they say that it has failed. Otherwise a later start would trust parity that a crash left
//! half-written, or a member that is out of date.

use crate::layer::{IoResult, Outbox};
use crate::raid::array::{Array, Flight};
use crate::raid::bitmap::Bitmap;
use crate::raid::superblock::Superblock;

/// See the module's documentation.
pub(super) struct Recorder {
    recorded: Superblock,
    /// What is to be recorded; its generation and epoch do not count.
    wanted: Superblock,
    /// What a crash before this life has left in doubt.
    in_doubt: Bitmap,
    /// A member failed in this life. One that was missing from the start is no news before something is written.
    fails: bool,
    recording: Option<Superblock>,
    /// Members that have not answered.
    left: u32,
}

impl Recorder {
    /// `failed`: the roles that cannot be used, whether or not the superblocks know.
    pub fn new(recorded: Superblock, failed: u64) -> Recorder {
        let wanted = Superblock { failed, ..recorded.clone() };
        let in_doubt = recorded.in_doubt.clone();
        Recorder { recorded, wanted, in_doubt, fails: false, recording: None, left: 0 }
    }

    pub const fn recorded(&self) -> &Superblock {
        &self.recorded
    }

    pub const fn failed(&self) -> u64 {
        self.wanted.failed
    }

    pub const fn fail(&mut self, role: usize) {
        self.wanted.failed |= 1 << role;
        self.fails = true;
    }

    /// The parity of the whole array is right.
    pub fn synced(&mut self) {
        self.in_doubt = Bitmap::default();
        if self.wanted.journaled || !self.wanted.active {
            self.wanted.in_doubt = Bitmap::default();
        }
    }

    /// Writes are about to begin. `journaled`: after a crash a journal knows which.
    fn begin(&mut self, journaled: bool, regions: u64) {
        if !self.wanted.active && !journaled {
            self.wanted.in_doubt = Bitmap::full(regions);
        }
        (self.wanted.active, self.wanted.journaled) = (true, journaled);
    }

    /// No writes are under way any more.
    pub fn rest(&mut self) {
        self.wanted.active = false;
        self.wanted.in_doubt = self.in_doubt.clone();
    }

    /// What is to be recorded and is not.
    fn next(&self) -> Option<Superblock> {
        let knows = self.fails || self.wanted.active || self.recorded.active;
        let next = Superblock {
            generation: self.recorded.generation,
            epoch: self.recorded.epoch,
            failed: if knows { self.wanted.failed } else { self.recorded.failed },
            ..self.wanted.clone()
        };
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
        self.recorder.begin(self.journal.is_some(), self.regions.count());
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
            if !self.open_journal(next.epoch, out) {
                return;
            }
        }
        self.statistics.superblocks += 1;
        for role in 0..self.ports.len() {
            if !self.is_failed(role) {
                self.recorder.left += 1;
                let write = next.write(next.identity(role));
                self.submit(role, Flight::Superblock { role }, write, out);
            }
        }
        self.recorder.recording = Some(next);
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
