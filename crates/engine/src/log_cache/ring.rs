//! The ring of segments: which are in use, which hold something still needed, and which may be written again.
//!
//! A segment goes through five states, always in ring order (rule 1):
//!
//! | state | where in the ring | leaves it when |
//! |---|---|---|
//! | free | `head + 1..=ready` | the head comes to it |
//! | head | `head` | it is full, and the next segment is free |
//! | live | `tail..head` | nothing in it is dirty, all its records and all that replaced its blocks are durable |
//! | clean | `kept..tail` | a superblock that says so is durable |
//! | remembered | after `ready` | the clean copies in it are forgotten, shortly before the head comes |
//!
//! Recovery reads live and clean segments. Only the running cache knows, and reads, the copies in a remembered segment.
//!
//! Segments are counted with numbers that never wrap; the index on the device is the number modulo the count.

use std::num::NonZeroU32;
use std::ops::Range;

/// State of a segment that is in use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    /// The first sequence number in it (or, while it is empty, the one that will be).
    pub first_seq: u64,
    /// Offset of that record in sectors from the start of the segment, plus one. Recovery starts there, not at the start of the segment:
    /// a gap before the record may hold another one of the same number, lost in an earlier crash.
    first_offset: Option<NonZeroU32>,
    /// Reads of the segment that are in flight.
    pub pins: u32,
}

impl Segment {
    /// Returns the offset of the first record, in sectors from the start of the segment.
    pub fn first_offset(&self) -> Option<u64> {
        self.first_offset.map(|offset| u64::from(offset.get()) - 1)
    }

    pub fn set_first_offset(&mut self, offset: u64) {
        self.first_offset = u32::try_from(offset + 1).ok().and_then(NonZeroU32::new);
    }
}

/// See the module's documentation.
pub struct Ring {
    segments: Vec<Segment>,
    head: u64,
    tail: u64,
    kept: u64,
    /// The tail of the superblock before that one, which is the older copy; none until this activation has written one more.
    kept_before: Option<u64>,
    /// The last segment that the head may move to.
    ready: u64,
}

impl Ring {
    /// Creates a ring that recovery has read from index `kept` on, and whose live part goes from index `tail` to index `head`.
    pub fn new(count: u32, kept: u32, tail: u32, head: u32, first_seq: u64) -> Ring {
        let distance = |from: u32, to: u32| u64::from((to + count - from) % count);
        let mut segments = vec![Segment::default(); count as usize];
        segments[tail as usize].first_seq = first_seq;
        let (kept, live, length) = (u64::from(kept), distance(kept, tail), distance(tail, head));
        let tail = kept + live;
        let ready = kept + u64::from(count) - 1;
        Ring { segments, head: tail + length, tail, kept, kept_before: None, ready }
    }

    pub fn memory_bytes(&self) -> usize {
        size_of::<Ring>() + self.segments.len() * size_of::<Segment>()
    }

    pub fn index(&self, number: u64) -> u32 {
        (number % self.segments.len() as u64) as u32
    }

    /// True when the segment is live, or the head.
    pub fn is_live(&self, index: u32) -> bool {
        (self.tail..=self.head).contains(&self.number(index))
    }

    /// The number of a segment that is in use.
    pub fn number(&self, index: u32) -> u64 {
        let kept = self.index(self.kept);
        self.kept + (u64::from(index) + self.count() - u64::from(kept)) % self.count()
    }

    pub fn count(&self) -> u64 {
        self.segments.len() as u64
    }

    pub const fn head(&self) -> u64 {
        self.head
    }

    pub const fn tail(&self) -> u64 {
        self.tail
    }

    pub const fn kept(&self) -> u64 {
        self.kept
    }

    pub fn at(&self, index: u32) -> &Segment {
        &self.segments[index as usize]
    }

    pub fn at_mut(&mut self, index: u32) -> &mut Segment {
        &mut self.segments[index as usize]
    }

    /// Number of segments from the tail to the head, both included.
    pub const fn live(&self) -> u64 {
        self.head - self.tail + 1
    }

    /// Number of segments that the head can still move to without a new superblock, once their clean copies are forgotten.
    pub fn free(&self) -> u64 {
        self.count() - (self.head - self.kept + 1)
    }

    /// Returns how full the log is: 0 when only the head is in use, 1 when the head cannot move.
    pub fn utilisation(&self) -> f64 {
        f64::from((self.head - self.tail) as u32) / f64::from(self.segments.len() as u32 - 1)
    }

    /// Moves the head on, if the next segment may be written.
    pub fn advance_head(&mut self, first_seq: u64) -> bool {
        let next = self.index(self.head + 1);
        if self.head == self.ready || self.segments[next as usize].pins > 0 {
            return false;
        }
        self.segments[next as usize] = Segment { first_seq, ..Segment::default() };
        self.head += 1;
        true
    }

    /// Lets the head's segment begin with a record that is still to be written.
    pub fn begin_anew(&mut self, first_seq: u64) {
        let head = self.at_mut(self.index(self.head));
        (head.first_seq, head.first_offset) = (first_seq, None);
    }

    /// Number of remembered segments: their clean copies may be read until they are forgotten.
    pub fn remembered(&self) -> u64 {
        self.kept + self.count() - 1 - self.ready
    }

    /// The numbers that remembered segments get when the head comes to them.
    pub fn remembered_numbers(&self) -> Range<u64> {
        self.ready + 1..self.kept + self.count()
    }

    pub const fn is_forgotten(&self, number: u64) -> bool {
        number <= self.ready
    }

    /// True for a segment that the head can move to immediately.
    pub fn is_ready(&self, index: u32) -> bool {
        (self.head + 1..=self.ready).contains(&self.number(index))
    }

    /// Number of segments that the head can move to immediately.
    pub const fn ready(&self) -> u64 {
        self.ready - self.head
    }

    /// The numbers of the first remembered segments, `count` at most.
    pub fn next_remembered(&self, count: u64) -> Range<u64> {
        self.ready + 1..self.ready + 1 + count.min(self.remembered())
    }

    /// The indices of consecutive segment numbers: the second range is the part after the ring wraps.
    pub fn indices(&self, numbers: &Range<u64>) -> [Range<u32>; 2] {
        let (first, count) = (self.index(numbers.start), (numbers.end - numbers.start) as u32);
        let all = self.segments.len() as u32;
        let end = (first + count).min(all);
        [first..end, 0..first + count - end]
    }

    /// Notes that the clean copies in these remembered segments are forgotten: the head may move to them.
    pub fn forget(&mut self, numbers: Range<u64>) {
        assert!(numbers.start == self.ready + 1, "segments are forgotten in ring order");
        self.ready = numbers.end - 1;
    }

    /// Moves the tail over every segment that is not needed, at most to the number `limit`. `durable`: the newest record that a crash
    /// cannot take.
    pub fn advance_tail(&mut self, is_clean: impl Fn(u32) -> bool, durable: u64, limit: u64) {
        while self.tail < self.head.min(limit)
            && is_clean(self.index(self.tail))
            && self.has_ended(self.tail, durable)
        {
            self.tail += 1;
        }
    }

    /// True when every record of a segment before the head is durable. A record can be clean earlier, and one without entries always is:
    /// if the segment were written again during the record's own write, the older write could end last.
    fn has_ended(&self, number: u64, durable: u64) -> bool {
        self.at(self.index(number + 1)).first_seq <= durable.saturating_add(1)
    }

    /// Moves the tail to a segment, whatever lies before it: a planted bug (rule 1 broken).
    pub const fn skip_to(&mut self, number: u64) {
        self.tail = number;
    }

    /// Notes that a superblock with this tail is durable: segments before it may be written again.
    pub fn keep_from(&mut self, number: u64) {
        assert!(
            self.kept <= number && number <= self.tail,
            "the superblock's tail is never ahead of the tail"
        );
        self.kept_before = Some(self.kept);
        self.kept = number;
    }

    /// The numbers of free segments that recovery needs from neither copy of the superblock; from `first` on at least.
    pub fn free_for_both(&self, first: u64) -> Range<u64> {
        let first = first.max(self.head + 1);
        let end = self.kept_before.map_or(first, |kept| (kept + self.count()).min(self.ready + 1));
        first..end.max(first)
    }

    /// True while a read pins one of these segments.
    pub fn is_pinned(&self, numbers: Range<u64>) -> bool {
        numbers.into_iter().any(|number| self.at(self.index(number)).pins > 0)
    }

    pub fn check(&self) {
        assert!(self.kept <= self.tail && self.tail <= self.head && self.head - self.kept < self.count());
        assert!(self.kept_before.is_none_or(|before| before <= self.kept));
        assert!(self.head <= self.ready && self.ready < self.kept + self.count());
    }
}
