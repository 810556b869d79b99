//! Looks for headers: the expected one, a proof that one was durable, and the next certain one after a hole.

use std::ops::Range;

use super::{Damage, DamageKind, LogCanary, Missing, RecoverError, Walk, WalkPlace};
use crate::log_cache::format::{FIRST_SEGMENT_SECTOR, Header, LogState, RECORD_MAGIC, decode_header};
use crate::log_cache::spindle::Spindle;

/// Sectors of a far segment that a planted bug searches.
const PROBE_SECTORS: u64 = 128;

/// Findings from the headers in the log.
#[derive(Clone, Debug)]
pub(super) struct Headers {
    /// The running activation when it was made.
    epoch: u64,
    /// True if every segment was read, apart from those between the first and the walk's place.
    whole: bool,
    /// The header of this activation that calls the most records durable.
    newest: Option<Header>,
    /// The highest `oldest_live_seq` in a header of this activation.
    oldest_live_seq: u64,
    /// A header of the newest later activation, and the lowest sequence number of that activation.
    newer: Option<Header>,
    newer_seq: u64,
}

/// All headers of a segment.
pub(super) struct SegmentHeaders {
    segment: u32,
    /// Each with the first copy that it is in; by their numbers, those of later activations first.
    found: Vec<(Header, usize)>,
    /// Sectors that no copy can read.
    unreadable: Vec<u64>,
}

impl Headers {
    fn note(&mut self, header: Header) {
        if header.epoch == self.epoch {
            self.oldest_live_seq = self.oldest_live_seq.max(header.oldest_live_seq);
            if self.newest.as_ref().is_none_or(|newest| newest.durable_seq < header.durable_seq) {
                self.newest = Some(header);
            }
        } else if header.epoch > self.epoch {
            let newer = self.newer.as_ref().map_or(0, |newer| newer.epoch);
            if header.epoch == newer {
                self.newer_seq = self.newer_seq.min(header.seq);
            } else if header.epoch > newer {
                self.newer_seq = header.seq;
                self.newer = Some(header);
            }
        }
    }
}

impl Walk<'_> {
    /// Looks for the expected record in all places that it may be in.
    pub(super) fn find_expected(&mut self) -> Result<Option<Header>, RecoverError> {
        let WalkPlace { segment, segments_left, .. } = self.place;
        let next = (segments_left > 0).then(|| self.segment_after(segment, 1));
        // A record that a believed summary lists lies in that segment, and in no other.
        for segment in [Some(segment), next].into_iter().flatten() {
            if let Some(header) = self.summarised(segment)? {
                return Ok(Some(header));
            }
        }
        let mut found: Option<(Header, usize)> = None;
        let left = self.has_left(segment) && next.is_some();
        for segment in [Some(segment).filter(|_| !left), next].into_iter().flatten() {
            // A leftover of a crashed activation may have the number, too: the latest activation counts.
            if found.as_ref().is_none_or(|(found, _)| found.epoch < self.superblock.epoch) {
                let other = self.find_in(segment)?;
                let epoch = found.as_ref().map(|(found, _)| found.epoch);
                found = other.filter(|(other, _)| Some(other.epoch) > epoch).or(found);
            }
        }
        Ok(found.map(|(header, copy)| {
            self.found_on = copy;
            header
        }))
    }

    /// Looks for the expected record in a segment; returns the copy that it is in, too.
    fn find_in(&mut self, segment: u32) -> Result<Option<(Header, usize)>, RecoverError> {
        let WalkPlace { segment: here, sector, .. } = self.place;
        let is_loaded = self.loaded.iter().any(|headers| headers.segment == segment);
        let at = if segment == here { sector } else { self.superblock.segment_start(segment) };
        if self.last_sectors >= self.hop_sectors && !is_loaded && at < self.segment_end(segment) {
            // The next record most likely begins right here and is large, too: read no more than its header.
            let until = at + self.superblock.log_block_sectors();
            if let Some(header) = self.header_at(at, until, |walk, header| {
                walk.is_expected(header) && header.epoch == walk.superblock.epoch
            })? {
                return Ok(Some((header, self.found_on)));
            }
        }
        let index = self.load(segment)?;
        let headers = &self.loaded[index];
        let follows_head = matches!(self.superblock.spindle, Spindle::Spins(_));
        let may_hold = |bad: &&u64| {
            segment != here
                || **bad >= sector
                || follows_head && !self.known.iter().any(|known| known.contains(bad))
        };
        if let Some(&bad) = headers.unreadable.iter().find(may_hold) {
            self.reader.first_unreadable.get_or_insert(bad);
        }
        let first = headers.found.partition_point(|(header, _)| header.seq < self.seq);
        let onward = segment == here && self.options.canary.is(LogCanary::OnwardOnly);
        let mut of_seq = headers.found[first..].iter().take_while(|(header, _)| header.seq == self.seq);
        let found = of_seq.find(|(h, _)| self.is_admissible(h) && !(onward && h.sector < sector));
        Ok(found.cloned())
    }

    /// Reads all headers of a segment; returns their index in `loaded`, which has this segment and that of the place at most.
    fn load(&mut self, segment: u32) -> Result<usize, RecoverError> {
        if let Some(index) = self.loaded.iter().position(|headers| headers.segment == segment) {
            return Ok(index);
        }
        let here = self.place.segment;
        self.loaded.retain(|headers| headers.segment == here);
        let (start, end) = (self.superblock.segment_start(segment), self.segment_end(segment));
        let (mut found, mut unreadable) = (Vec::new(), Vec::new());
        for copy in 0..self.reader.copies() {
            let mut bad = Vec::new();
            for sector in self.beginnings(start..end) {
                match self.header_of(copy, sector, end)? {
                    Ok(header) => found.extend(header.map(|header| (header, copy))),
                    Err(()) if self.begins_a_block(sector) => bad.push(sector),
                    Err(()) => {}
                }
            }
            match copy {
                0 => unreadable = bad,
                _ => unreadable.retain(|sector| bad.contains(sector)),
            }
        }
        found.sort_by_key(|(header, copy)| {
            (header.seq, std::cmp::Reverse(header.epoch), header.sector, *copy)
        });
        found.dedup_by_key(|(header, _)| (header.seq, header.epoch, header.sector));
        self.loaded.push(SegmentHeaders { segment, found, unreadable });
        Ok(self.loaded.len() - 1)
    }

    /// Decides what it means that the expected record is missing.
    pub(super) fn missing(&mut self) -> Result<Missing, RecoverError> {
        let unreadable = self.reader.first_unreadable;
        let (seq, place) = (self.seq, self.place);
        let damaged = |kind, until_seq, sector, proof| Missing::Damaged {
            damage: Damage { kind, seq, until_seq, sector, lost: Vec::new() },
            proof,
        };
        if seq < self.superblock.durable_seq {
            return Ok(damaged(DamageKind::Missing, self.superblock.durable_seq, place.sector, None));
        }
        Ok(match (self.proof_of_durability(seq)?, unreadable) {
            (Some(proof), _) if proof.epoch > self.superblock.epoch => {
                damaged(DamageKind::NewerEpoch, proof.seq.max(seq), proof.sector, Some(proof))
            }
            (Some(proof), _) => damaged(DamageKind::Missing, proof.durable_seq, place.sector, Some(proof)),
            (None, Some(sector)) => damaged(DamageKind::Unreadable, seq + 1, sector, None),
            (None, None) => Missing::End,
        })
    }

    /// Returns a header that proves that record `seq` was durable once: a header of this activation that says so, or one of a later
    /// activation.
    pub(super) fn proof_of_durability(&mut self, seq: u64) -> Result<Option<Header>, RecoverError> {
        if self.ignores_epochs() {
            return Ok(None);
        }
        let survey = self.survey(false)?;
        let states = |header: &&Header| header.seq > seq && header.durable_seq > seq;
        Ok(survey.newer.as_ref().or(survey.newest.as_ref().filter(states)).cloned())
    }

    /// Surveys the headers from the place of the walk on. They are read once, when the walk first misses a record; segments before that
    /// were walked over. After a clean stop nothing can lie beyond the end, except records after a lost superblock, which begin right
    /// there. So the next segment is enough, unless a durable record is missing (`whole`).
    fn survey(&mut self, whole: bool) -> Result<Headers, RecoverError> {
        let whole = whole || self.options.verify_all || self.superblock.state != LogState::Stopped;
        let epoch = self.superblock.epoch;
        if let Some(survey) = self.survey.as_ref().filter(|s| s.epoch == epoch && (s.whole || !whole)) {
            return Ok(survey.clone());
        }
        let mut survey =
            Headers { epoch, whole, newest: None, oldest_live_seq: 0, newer: None, newer_seq: 0 };
        // Up to the segment where the walk began: if the newest superblock is lost, the head may have wrapped around into it.
        let rest = (self.place.segments_left + 1).min(self.superblock.segments - 1);
        let far = if whole { rest } else { rest.min(1) };
        for steps in 0..=far {
            let segment = self.segment_after(self.place.segment, steps);
            let summaries = self.summaries.as_ref();
            if let Some(header) = summaries.and_then(|s| s.newest_header(&self.superblock, segment, steps)) {
                survey.note(header);
                continue;
            }
            if summaries.is_some_and(|s| s.is_not_entered(&self.superblock, segment, steps)) {
                continue;
            }
            self.each_header(segment, self.search_sectors(steps), |header| survey.note(header))?;
        }
        self.survey = Some(survey.clone());
        Ok(survey)
    }

    /// Returns how many sectors of the segment `steps` away are searched: all of them, except with a planted bug.
    fn search_sectors(&self, steps: u32) -> u64 {
        let all = self.superblock.segment_sectors();
        if steps <= 1 || !self.options.canary.is(LogCanary::NearProof) {
            return all;
        }
        if steps.is_power_of_two() { all.min(PROBE_SECTORS) } else { 0 }
    }

    /// Returns the next record after a hole that certainly belongs to the chain. A leftover of a crashed activation is none: a record of
    /// a later activation has its number, or a lower one.
    pub(super) fn resume(&mut self) -> Result<Option<Header>, RecoverError> {
        let WalkPlace { segment, segments_left, .. } = self.place;
        let mut after: Vec<Header> = Vec::new();
        for steps in 0..=segments_left {
            let is_last = !after.is_empty();
            let index = self.load(self.segment_after(segment, steps))?;
            let headers = self.loaded[index].found.iter().map(|(header, _)| header);
            after.extend(headers.filter(|h| h.seq > self.seq && self.is_admissible(h)).cloned());
            let mut lowest = u64::MAX;
            after.sort_by_key(|header| std::cmp::Reverse(header.epoch));
            let mut certain: Vec<Header> = Vec::new();
            for part in after.chunk_by(|one, other| one.epoch == other.epoch) {
                certain.extend(part.iter().filter(|header| header.seq < lowest).cloned());
                lowest = part.iter().map(|header| header.seq).fold(lowest, u64::min);
            }
            after = certain;
            if is_last {
                break;
            }
        }
        let found = after.into_iter().min_by_key(|header| header.seq);
        if found.is_some() {
            // A request that was incomplete before the hole stays incomplete: its end may be in the hole.
            self.drop_chain_before_hole();
        }
        Ok(found)
    }

    /// Looks for a later tail when a record is missing, as the record may be destaged. Headers of the newest activation state the present
    /// tail. If that is after the hole, the walk begins again there, and nothing is lost. (If the live superblock has rotted, the other
    /// one may even name a tail that was overwritten since.) False if no header states a later tail. Reads the whole log.
    pub(super) fn find_moved_tail(&mut self) -> Result<bool, RecoverError> {
        if self.ignores_epochs() {
            return Ok(false);
        }
        if self.seq < self.superblock.live_seq && self.superblock.live_sector != 0 {
            self.restart(self.superblock.live_seq, self.superblock.live_sector);
            self.tail_searched = false;
            return Ok(true);
        }
        let mut survey = self.survey(true)?;
        if let Some(newer) = &survey.newer {
            let (kind, seq, until_seq, sector) = (DamageKind::NewerEpoch, self.seq, newer.seq, newer.sector);
            self.superblock.epoch_start_seq = survey.newer_seq;
            self.superblock.epoch = newer.epoch;
            self.report(Damage { kind, seq, until_seq, sector, lost: Vec::new() })?;
            survey = self.survey(true)?;
        }
        let (epoch, tail_seq) = (survey.epoch, survey.oldest_live_seq);
        // The end of the lap is after the hole as well: the rest lies in the segment where the walk began.
        let lap_ended = self.place.segments_left == 0 && tail_seq > self.superblock.tail_seq;
        if tail_seq <= self.seq && !lap_ended {
            return Ok(false);
        }
        let mut found: Option<(u64, u64)> = None;
        for segment in 0..self.superblock.segments {
            self.each_header(segment, self.superblock.segment_sectors(), |header| {
                if header.seq == tail_seq && header.epoch <= epoch {
                    found = found.max(Some((header.epoch, header.sector)));
                }
            })?;
        }
        let Some((_, sector)) = found else { return Ok(false) };
        self.restart(tail_seq, sector);
        Ok(true)
    }

    /// Begins the walk again at a record before which everything is destaged.
    fn restart(&mut self, tail_seq: u64, sector: u64) {
        self.seq = tail_seq;
        self.oldest_live_seq = tail_seq;
        self.live.clear();
        self.chain.clear();
        let segment = self.superblock.segment_of(sector);
        self.place = WalkPlace { segment, sector, end: sector, segments_left: self.superblock.segments - 1 };
        self.known.clear();
        self.destaged.clear();
        self.last_sectors = 0;
    }

    /// Calls a function with every header in the first sectors of a segment.
    fn each_header(
        &mut self,
        segment: u32,
        sectors: u64,
        mut f: impl FnMut(Header),
    ) -> Result<(), RecoverError> {
        let loaded = self.loaded.iter().find(|headers| headers.segment == segment);
        if let Some(headers) =
            loaded.filter(|_| self.reader.copies() == 1 && sectors == self.superblock.segment_sectors())
        {
            if let Some(&bad) = headers.unreadable.first() {
                self.reader.first_unreadable.get_or_insert(bad);
            }
            headers.found.iter().for_each(|(header, _)| f(header.clone()));
            return Ok(());
        }
        let start = self.superblock.segment_start(segment);
        let (end, ring_end) = (start + sectors, self.superblock.end_sector());
        for sector in self.beginnings(start..end) {
            // Reads are large even if segments are small: the next segment is searched next.
            if let Some(header) = self.any_header_at(sector, ring_end)? {
                f(header);
            }
        }
        Ok(())
    }

    fn drop_chain_before_hole(&mut self) {
        let Some((first, _)) = self.chain.first() else { return };
        let first_seq = first.seq;
        self.drop_from(first_seq);
        self.chain.clear();
    }

    /// Returns the wanted header at a sector from the first copy that has it, and reads ahead up to `until`. A copy that lost the first
    /// record of an activation may still have one of an earlier activation there: the latest activation counts.
    fn header_at(
        &mut self,
        sector: u64,
        until: u64,
        wanted: impl Fn(&Self, &Header) -> bool,
    ) -> Result<Option<Header>, RecoverError> {
        let mut unreadable = 0;
        let mut found: Option<Header> = None;
        for copy in 0..self.reader.copies() {
            match self.header_of(copy, sector, until)? {
                Ok(header) => {
                    let epoch = found.as_ref().map(|found| found.epoch);
                    let later = |header: &Header| Some(header.epoch) > epoch && wanted(self, header);
                    if let Some(header) = header.filter(later) {
                        self.found_on = copy;
                        if header.epoch >= self.superblock.epoch {
                            return Ok(Some(header));
                        }
                        found = Some(header);
                    }
                }
                Err(()) => unreadable += 1,
            }
        }
        if unreadable == self.reader.copies() {
            self.reader.first_unreadable.get_or_insert(sector);
        }
        Ok(found)
    }

    /// Returns the header at a sector from the first copy that can be read. A header in another copy alone was not durable in both.
    fn any_header_at(&mut self, sector: u64, until: u64) -> Result<Option<Header>, RecoverError> {
        for copy in 0..self.reader.copies() {
            if let Ok(header) = self.header_of(copy, sector, until)? {
                return Ok(header);
            }
        }
        if self.begins_a_block(sector) {
            self.reader.first_unreadable.get_or_insert(sector);
        }
        Ok(None)
    }

    /// Returns the sectors at which a record may begin: those of blocks. Where the head was followed, versions of 0.1.0 before
    /// the end of November 2026 put records at any sector.
    fn beginnings(&self, sectors: Range<u64>) -> impl Iterator<Item = u64> + use<> {
        let block = self.superblock.log_block_sectors();
        let step = if matches!(self.superblock.spindle, Spindle::Spins(_)) { 1 } else { block };
        (sectors.start..(sectors.end + 1).saturating_sub(block)).step_by(step as usize)
    }

    const fn begins_a_block(&self, sector: u64) -> bool {
        (sector - FIRST_SEGMENT_SECTOR).is_multiple_of(self.superblock.log_block_sectors())
    }

    /// Returns the valid header at a sector of a copy, if there is one; an error if the sector cannot be read.
    fn header_of(
        &mut self,
        copy: usize,
        sector: u64,
        until: u64,
    ) -> Result<Result<Option<Header>, ()>, RecoverError> {
        let sectors = self.superblock.log_block_sectors();
        let Ok(block) = self.reader.get(copy, sector, sectors, until)? else { return Ok(Err(())) };
        if block[..4] != RECORD_MAGIC {
            return Ok(Ok(None));
        }
        let header = decode_header(block, &self.superblock, sector);
        Ok(Ok(
            header.filter(|header| header.oldest_live_seq <= header.seq && header.durable_seq <= header.seq)
        ))
    }

    pub(super) fn is_expected(&self, header: &Header) -> bool {
        header.seq == self.seq && self.is_admissible(header)
    }

    /// Applies the rule of epochs: they only grow along the log, and from the start of the running activation on all records are of its
    /// epoch. Without the rule, records after a hole before a crash could join the log after it.
    fn is_admissible(&self, header: &Header) -> bool {
        if self.ignores_epochs() {
            return true;
        }
        let running = self.superblock.epoch;
        let after_start = header.seq >= self.superblock.epoch_start_seq;
        header.epoch >= self.epoch
            && if after_start { header.epoch == running } else { header.epoch < running }
    }

    fn ignores_epochs(&self) -> bool {
        self.options.canary.is(LogCanary::IgnoreEpochs)
    }

    fn segment_after(&self, segment: u32, steps: u32) -> u32 {
        ((u64::from(segment) + u64::from(steps)) % u64::from(self.superblock.segments)) as u32
    }
}
