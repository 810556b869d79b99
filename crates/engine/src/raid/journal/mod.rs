//! Closes the write hole: data and parity that an operation is about to write are durable in the journal before any member is written.
//! After a crash all of them are written again, so that no row is left between two versions. Bytes are described in docs/format.md.
//!
//! The journal is a ring of equal slots, each large enough for all of a unit; the record with number `n` is in slot `n % slots`. One
//! record is written at a time, so a crash tears one at most, and that is the newest. Each record names the oldest one
//! whose writes were not all durable (the *tail*); recovery writes from there to the newest, in order, which leaves every
//! block as the last of them has it. Numbers begin again with each epoch, and records of another epoch are not looked at.
//!
//! A record of a unit says which roles have failed there: a member that has been filled since has what the rows say together, and not
//! what older records had for it. The crash explorer found this.
//!
//! A newest record that is not whole was torn, or has rotted after its writes were acknowledged. So its own tail counts, and older
//! records are not replayed over the unit that it names. Where not even that is known, the start is refused. Records name the ring that they
//! are in: the device may have another size by now. On a log with two legs a start reads both, as either may have lost records.

mod records;
mod writer;

pub use records::{
    FoundJournal, ReplayError, find_journal, has_journal_records, journal_header_bytes, may_be_journal_of,
};
pub(super) use records::{PendingRecords, Slots, fits, pending, read_record, slots};
pub(super) use writer::Journal;
