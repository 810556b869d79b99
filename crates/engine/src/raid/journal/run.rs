//! The journal of a running array.

use super::{RecordPlace, encode};
use crate::layer::{Durability, Io, IoResult, Outbox};
use crate::raid::array::{Array, Flight};
use crate::raid::stripe::OperationPhase;
use crate::{Buf, Lba};

impl Array {
    /// Opens an epoch: a first record, by which a later start knows the journal. True once it is durable.
    pub fn open_journal(&mut self, epoch: u64, out: &mut Outbox) -> bool {
        let uuid = self.recorder.recorded().uuid;
        let Some(journal) = &mut self.journal else { return true };
        if journal.writing || journal.epoch == epoch {
            return journal.epoch == epoch && !journal.writing;
        }
        (journal.epoch, journal.next, journal.writing) = (epoch, 1, true);
        let place = RecordPlace { uuid, epoch, number: 0, tail: 0 };
        let buf = encode(&journal.slots, place, &[]);
        let (port, at) = (journal.port, journal.slots.at(0));
        let io = Io::Write { at, buf, durability: Durability::Durable };
        self.submit_to(port, 0, Flight::Journal { operation: None }, io, out);
        false
    }

    /// Puts what an operation is about to write into the journal.
    pub fn journal_operation(&mut self, key: u64, out: &mut Outbox) {
        if let Some(journal) = &mut self.journal {
            journal.queue.push_back(key);
        }
        self.write_record(out);
    }

    fn write_record(&mut self, out: &mut Outbox) {
        let uuid = self.recorder.recorded().uuid;
        let Some(journal) = self.journal.as_mut().filter(|journal| !journal.writing) else { return };
        let number = journal.next;
        // The slot must be free: what was in it has been written to the members.
        if journal.live.first().is_some_and(|oldest| oldest + journal.slots.count <= number) {
            return;
        }
        let Some(key) = journal.queue.pop_front() else { return };
        journal.live.insert(number);
        (journal.next, journal.writing) = (number + 1, true);
        let tail = *journal.live.first().expect("it has this one");
        let place = RecordPlace { uuid, epoch: journal.epoch, number, tail };
        let (slots, port, at) = (journal.slots, journal.port, journal.slots.at(number));
        let unit = self.operations.get_mut(key).unit;
        let layout = self.layout;
        let failed: Vec<usize> =
            (0..layout.shape.columns()).filter(|role| self.has_failed_at(*role, unit)).collect();
        let operation = self.operations.get_mut(key);
        operation.record = Some(number);
        let nothing = Buf::none();
        let writes: Vec<(usize, Lba, &Buf)> = operation
            .writes
            .iter()
            .map(|(run, buf)| (layout.member(unit, run.column), layout.member_lba(unit, run.rows.start), buf))
            .collect();
        // A write to a member that has failed since the plan was made counts: no superblock may say yet that it has.
        let void = failed.iter().filter(|role| writes.iter().all(|(other, ..)| other != *role));
        let mut entries: Vec<(usize, Lba, &Buf)> =
            void.map(|role| (*role, layout.member_lba(unit, 0), &nothing)).collect();
        entries.extend(writes);
        let buf = encode(&slots, place, &entries);
        self.statistics.journal_records += 1;
        let io = Io::Write { at, buf, durability: Durability::Durable };
        self.submit_to(port, 0, Flight::Journal { operation: Some(key) }, io, out);
    }

    /// A record is durable, or could not be written.
    pub fn journal_returned(&mut self, operation: Option<u64>, result: &IoResult, out: &mut Outbox) {
        if let Some(journal) = &mut self.journal {
            journal.writing = false;
        }
        if result.status.is_err() {
            return self.journal_has_failed(operation, out);
        }
        match operation {
            Some(key) if self.broken => self.not_written(key, out),
            Some(key) => self.write_members(key, out),
            None => self.record(out),
        }
        self.write_record(out);
    }

    /// Lets operations that wait to be recorded go on without that, as soon as the superblocks say that the array has no journal any more.
    /// They never go on if the user wants no writes without a journal.
    fn journal_has_failed(&mut self, operation: Option<u64>, out: &mut Outbox) {
        let Some(journal) = self.journal.take() else { return };
        (self.journal_failed, self.notice) = (true, true);
        self.broken |= self.config.journal_required;
        // From now on the bitmap says what is under way.
        self.recorder.lose_journal(&self.in_use(self.regions));
        for key in operation.into_iter().chain(journal.queue) {
            self.operations.get_mut(key).phase = OperationPhase::Held;
            self.go_on(key, out);
        }
        self.record(out);
    }

    /// The writes of a record are durable.
    pub fn journal_over(&mut self, number: u64, out: &mut Outbox) {
        if let Some(journal) = &mut self.journal {
            journal.live.remove(&number);
        }
        self.write_record(out);
    }

    /// Ends the operations that wait to be recorded, without a write.
    pub fn clear_queue(&mut self, out: &mut Outbox) {
        let queue =
            self.journal.as_mut().map(|journal| std::mem::take(&mut journal.queue)).unwrap_or_default();
        for key in queue {
            self.not_written(key, out);
        }
    }
}
