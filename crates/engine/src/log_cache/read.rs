//! Reads: put together from RAM, log and data disk (section 3.5.2), without any foreground destage.
//!
//! Dirty data comes from the log or its buffers. Clean data comes from there only if the whole request does, and on a rotational log only
//! in one piece that is nearer ([`super::nearer`]): one read of the data disk is cheaper than many of the log. Every block read from the
//! log is checked. A clean copy that cannot be read is forgotten, and the data disk is read instead.

use smallvec::{SmallVec, smallvec};

use super::copies::repair;
use super::env::{Env, LOG, Op, View, data_port};
use super::keep::Keep;
use super::log::Log;
use super::table::{Line, Piece, Place, sectors_mask};
use crate::layer::{ErrorKind, Io, IoError, IoResult, RequestId};
use crate::slab::Slab;
use crate::{Buf, Extent, LINE_SECTORS, Lba, SECTOR_BYTES, byte_offset};

/// Maximum sectors of one read of adjacent pieces in the log (256 KiB).
const LOG_READ_SECTORS_MAX: u64 = 512;

/// List for one element without allocation: nearly every request has one source.
type Few<T> = SmallVec<[T; 1]>;

/// Source of some sectors of a request.
#[derive(Clone, Copy, Debug)]
struct FromLog {
    line: Line,
    piece: Piece,
}

/// A read of one device that a request needs.
enum ReadPart {
    /// Read from the data disk, from `start` on: the `wanted` extents of it go to the request, and `watched` lines of it are copied to
    /// the log.
    Data { start: Lba, wanted: Few<Extent>, watched: Option<u64> },
    /// Read from the log from this sector on; these pieces of it are wanted. `whole`: they are exactly the request, so they are read into
    /// the client's own buffer.
    Log { start: u64, segment: u32, pieces: Few<FromLog>, whole: bool },
    /// A piece from one copy of the log, after another copy failed its check.
    Copy { source: FromLog, segment: u32, copy: u8 },
}

/// A request that is being put together.
struct Reading {
    id: RequestId,
    at: Lba,
    buf: Buf,
    parts: Few<Option<ReadPart>>,
    left: usize,
    /// A clean copy could not be read: the request starts again without it.
    again: bool,
    error: Option<IoError>,
}

/// Sources of a request's sectors.
#[derive(Default)]
struct ReadPlan {
    zeroes: Few<Extent>,
    data: Few<Extent>,
    log: Few<FromLog>,
    /// A line whose newest copy was in the log and is lost.
    lost: Option<Line>,
}

/// The requests that are being put together.
#[derive(Default)]
pub struct OpenReads(Slab<Reading>);

impl OpenReads {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Handles a read of a client.
    pub fn read(&mut self, id: RequestId, at: Lba, buf: Buf, keep: &mut Keep, env: &mut Env) {
        let extent = Extent::new(at, buf.len() as u64 / SECTOR_BYTES);
        env.data.at_mut(extent).nearer.note(extent);
        if !env.index.table().contains_any(extent) && !env.index.ranges().contains_any(extent) {
            env.statistics.read_miss_bytes += buf.len() as u64;
            return forward(id, at, buf, keep, env);
        }
        let plan = plan(extent, &env.view());
        if let Some(line) = plan.lost {
            let error = IoError::at(ErrorKind::Lost, env.data.space().local(line.extent()));
            return env.finish(env.data.disk_of(at), id, IoResult::err(buf, error));
        }
        count_sources(&plan, keep, env);
        if plan.log.is_empty() && plan.zeroes.is_empty() {
            return forward(id, at, buf, keep, env);
        }
        self.assemble(id, at, buf, plan, keep, env);
    }

    fn assemble(
        &mut self,
        id: RequestId,
        at: Lba,
        mut buf: Buf,
        plan: ReadPlan,
        keep: &mut Keep,
        env: &mut Env,
    ) {
        env.statistics.read_hits += 1;
        for zero in &plan.zeroes {
            buf.zero(byte_offset(at, zero.start), (zero.sectors * SECTOR_BYTES) as usize);
        }
        let mut from_log = Few::with_capacity(plan.log.len());
        for source in plan.log {
            match env.log.buffers().holding(source.piece.place.0) {
                Some(buffer) => source.line.runs(source.piece.mask, |run| {
                    let first = (run.start.0 % LINE_SECTORS) as u8;
                    let place = source.piece.place_of(first).0;
                    assert!(
                        buffer.read(place, &mut buf, byte_offset(at, run.start), run.sectors),
                        "it is in RAM"
                    );
                }),
                None => from_log.push(source),
            }
        }
        let mut parts = log_parts(from_log, |place| env.index.segment_of(place));
        if let (Some(first), Some(last)) = (plan.data.first(), plan.data.last()) {
            let end = last.end();
            let span = Extent::new(first.start, end - first.start);
            let watched = keep.watch(span, &env.view());
            parts.push(ReadPart::Data { start: span.start, wanted: plan.data, watched });
        }
        if parts.is_empty() {
            return env.finish(env.data.disk_of(at), id, IoResult::ok(buf));
        }
        let blank = buf.is_blank();
        let left = parts.len();
        let mut own = is_whole_request(&mut parts, at, buf.len(), env.log).then(|| std::mem::take(&mut buf));
        let parts_of = Few::with_capacity(left);
        let key = self.0.insert(Reading { id, at, buf, parts: parts_of, left, again: false, error: None });
        for (index, part) in parts.into_iter().enumerate() {
            let (port, io) = part_io(&part, blank, own.take(), &env.view());
            if let ReadPart::Log { segment, .. } = &part {
                env.log.pin(*segment);
            }
            self.0.get_mut(key).parts.push(Some(part));
            env.submit(port, Op::Part { reading: key, part: index }, io);
        }
    }

    /// Takes a part that was read. True when writes may go on: no part of its request pins a segment of the log any more.
    pub fn completed(
        &mut self,
        key: u64,
        index: usize,
        mut result: IoResult,
        keep: &mut Keep,
        env: &mut Env,
    ) -> bool {
        let part = self.0.get_mut(key).parts[index].take().expect("a part ends once");
        let mut error = result.status.err();
        match &part {
            ReadPart::Data { start, wanted, watched } => {
                let data = env.data.at_mut(Extent::new(*start, 1));
                data.readers.end(env.cx.now);
                let start = data.geometry().whole_blocks(Extent::new(*start, 1)).start;
                let reading = self.0.get_mut(key);
                for extent in wanted.iter().filter(|_| error.is_none()) {
                    let (to, from) =
                        (byte_offset(reading.at, extent.start), byte_offset(start, extent.start));
                    reading.buf.copy_from(to, &result.buf, from, (extent.sectors * SECTOR_BYTES) as usize);
                }
                if let Some(key) = *watched {
                    keep.copy_watched(key, start, &result, env);
                }
            }
            ReadPart::Log { start, segment, pieces, whole } => {
                env.log.unpin(*segment);
                let start = env.log.geometry().whole_blocks(Extent::new(Lba(*start), 1)).start;
                let bad = match error {
                    None => self.take_pieces(key, start, pieces, &result.buf, *whole),
                    Some(_) => pieces.clone(),
                };
                if *whole {
                    self.0.get_mut(key).buf = std::mem::take(&mut result.buf);
                }
                let bad = self.read_other_copies(key, bad, *segment, None, env);
                error = self.bad_pieces(key, &bad, env);
            }
            ReadPart::Copy { source, segment, copy } => {
                let piece = source.piece;
                let start = env.log.geometry().whole_blocks(Extent::new(Lba(piece.place.0), 1)).start;
                let bad = match error.take() {
                    None => self.take_pieces(key, start, &[*source], &result.buf, false),
                    Some(_) => smallvec![*source],
                };
                if bad.is_empty() {
                    repair(&piece, *segment, std::mem::take(&mut result.buf), *copy, env);
                }
                env.log.unpin(*segment);
                let bad = self.read_other_copies(key, bad, *segment, Some(*copy), env);
                error = self.bad_pieces(key, &bad, env);
            }
        }
        let reading = self.0.get_mut(key);
        reading.error = reading.error.or(error);
        reading.left -= 1;
        if reading.left > 0 {
            return false;
        }
        let reading = self.0.remove(key);
        if reading.again && reading.error.is_none() {
            self.read(reading.id, reading.at, reading.buf, keep, env);
            return true;
        }
        let status = reading.error.map_or(Ok(()), Err);
        env.finish(env.data.disk_of(reading.at), reading.id, IoResult { buf: reading.buf, status });
        true
    }

    /// Reads dirty pieces from another copy of the log; returns those that have none, or need none.
    fn read_other_copies(
        &mut self,
        key: u64,
        bad: Few<FromLog>,
        segment: u32,
        tried: Option<u8>,
        env: &mut Env,
    ) -> Few<FromLog> {
        let Some(copy) = env.log.next_copy(tried) else { return bad };
        let (dirty, clean): (Few<FromLog>, _) = bad.into_iter().partition(|source| source.piece.dirty);
        for source in dirty {
            let part = ReadPart::Copy { source, segment, copy };
            let reading = self.0.get_mut(key);
            let (index, blank) = (reading.parts.len(), reading.buf.is_blank());
            reading.left += 1;
            let (port, io) = part_io(&part, blank, None, &env.view());
            self.0.get_mut(key).parts.push(Some(part));
            env.log.pin(segment);
            env.submit(port, Op::Part { reading: key, part: index }, io);
        }
        clean
    }

    /// Handles pieces that could not be read or failed their check. Returns an error if there is no other copy.
    fn bad_pieces(&mut self, key: u64, bad: &[FromLog], env: &mut Env) -> Option<IoError> {
        let first = bad.first()?;
        env.statistics.log_read_errors += 1;
        // The bad block may lie in any of several pieces: a dirty piece counts as lost when it fails alone.
        let mut again = false;
        let mut lost = None;
        for FromLog { line, piece } in bad {
            match env.index.drop_clean(*line, piece.place, env.log.last_seq()) {
                true => again = true,
                false => _ = lost.get_or_insert(*line),
            }
        }
        self.0.get_mut(key).again |= again;
        // The error has the client's address, not the log's: acknowledged data cannot be read back.
        let extent = lost.unwrap_or(first.line).extent();
        let error = IoError::at(ErrorKind::Lost, env.data.space().local(extent));
        env.statistics.last_error = Some(error);
        (!again).then_some(error)
    }

    /// Copies checked pieces into a request, unless the source is its buffer; returns those that failed their check.
    fn take_pieces(
        &mut self,
        key: u64,
        start: Lba,
        pieces: &[FromLog],
        source: &Buf,
        whole: bool,
    ) -> Few<FromLog> {
        let reading = self.0.get_mut(key);
        let mut bad = Few::new();
        for FromLog { line, piece } in pieces {
            let from = byte_offset(start, Lba(piece.place.0));
            if !piece.is_intact(source, from) {
                bad.push(FromLog { line: *line, piece: *piece });
                continue;
            }
            if whole {
                continue;
            }
            line.runs(piece.mask, |run| {
                let skip = (run.start.0 % LINE_SECTORS) as usize - usize::from(piece.first);
                let from = from + skip * SECTOR_BYTES as usize;
                let to = byte_offset(reading.at, run.start);
                reading.buf.copy_from(to, source, from, (run.sectors * SECTOR_BYTES) as usize);
            });
        }
        bad
    }
}

/// Reads the whole request from the data disk.
fn forward(id: RequestId, at: Lba, buf: Buf, keep: &mut Keep, env: &mut Env) {
    let watched = keep.watch(Extent::new(at, buf.len() as u64 / SECTOR_BYTES), &env.view());
    env.submit(data_port(env.data.disk_of(at)), Op::Forward { id, at, watched }, Io::Read { at, buf });
}

/// Finds the sources.
fn plan(extent: Extent, view: &View) -> ReadPlan {
    let mut plan = ReadPlan::default();
    let mut clean = Few::new();
    let mut clean_extents = Few::new();
    let mut cached_sectors = 0;
    for line in Line::touching(extent).map(Line) {
        let wanted = line.mask_of(extent);
        let mut covered = 0u8;
        for &piece in view.index.table().lookup(line).iter() {
            let mask = piece.mask & wanted;
            if mask == 0 {
                continue;
            }
            covered |= mask;
            cached_sectors += u64::from(mask.count_ones());
            let source = FromLog { line, piece: Piece { mask, ..piece } };
            if piece.dirty {
                // The next start is without this log, so lost blocks stay lost: a block must not be right today and old tomorrow.
                if view.log.has_failed() && view.index.lost.is_lost(line, piece.place) {
                    plan.lost = Some(line);
                }
                plan.log.push(source);
            } else {
                clean.push(source);
                line.runs(mask, |run| clean_extents.push(run));
            }
        }
        plan_rest(line, wanted & !covered, &mut plan, view);
    }
    cached_sectors += plan.zeroes.iter().map(|zero| zero.sectors).sum::<u64>();
    if cached_sectors == extent.sectors && is_cheaper_in_log(extent, &plan.log, &clean, view) {
        plan.log.append(&mut clean);
    } else {
        plan.data.append(&mut clean_extents);
        plan.data.sort_unstable();
    }
    plan
}

/// Decides, for a request that needs nothing from the data disk, whether clean copies are read from the log.
fn is_cheaper_in_log(extent: Extent, dirty: &[FromLog], clean: &[FromLog], view: &View) -> bool {
    if view.log.has_failed() || !view.config.read_clean || view.log.through().is_voiding() {
        return false;
    }
    if !view.log.geometry().rotational {
        return true;
    }
    let on_device = |source: &&FromLog| view.log.buffers().holding(source.piece.place.0).is_none();
    let sources = dirty.iter().chain(clean).filter(on_device).copied().collect();
    match log_parts(sources, |place| view.index.segment_of(place)).len() {
        0 => true,
        // Dirty data takes the arm to the log anyway.
        1 => view.data.at(extent).nearer.is_log() || dirty.iter().any(|source| on_device(&source)),
        _ => false,
    }
}

/// Plans the sectors that the table does not know: zeroes, or read from the data disk.
fn plan_rest(line: Line, mask: u8, plan: &mut ReadPlan, view: &View) {
    line.runs(mask, |run| {
        let mut at = run.start;
        for part in view.index.ranges().lookup(run) {
            if at < part.extent.start {
                plan.data.push(Extent::new(at, part.extent.start - at));
            }
            plan.zeroes.push(part.extent);
            at = part.extent.end();
        }
        if at < run.end() {
            plan.data.push(Extent::new(at, run.end() - at));
        }
    });
}

fn count_sources(plan: &ReadPlan, keep: &Keep, env: &mut Env) {
    let bytes = |extents: &[Extent]| extents.iter().map(|part| part.sectors * SECTOR_BYTES).sum::<u64>();
    env.statistics.read_dirty_bytes += bytes(&plan.zeroes);
    env.statistics.read_miss_bytes += bytes(&plan.data);
    for FromLog { line, piece } in &plan.log {
        keep.hit(*line, piece.place, env.index);
        let statistics = &mut *env.statistics;
        let counter = match env.log.buffers().holding(piece.place.0) {
            Some(_) => &mut statistics.read_ram_bytes,
            None if piece.dirty => &mut statistics.read_dirty_bytes,
            None => &mut statistics.read_clean_bytes,
        };
        *counter += u64::from(piece.mask.count_ones()) * SECTOR_BYTES;
    }
}

/// True when the only part is a read of the log that gives exactly the request. Notes that in the part.
fn is_whole_request(parts: &mut [ReadPart], at: Lba, bytes: usize, log: &Log) -> bool {
    let [ReadPart::Log { start, pieces, whole, .. }] = parts else { return false };
    // The pieces are adjacent in the log; they must be adjacent in the request, too.
    let mut end = at;
    for FromLog { line, piece } in pieces.iter() {
        let first = line.start() + u64::from(piece.first);
        if first != end || piece.mask != sectors_mask(piece.first, piece.count) {
            return false;
        }
        end = end + u64::from(piece.count);
    }
    let extent = Extent::new(Lba(*start), end - at);
    *whole = byte_offset(at, end) == bytes && log.geometry().whole_blocks(extent) == extent;
    *whole
}

/// The operation that reads a part. `own`: the buffer to read into.
fn part_io(part: &ReadPart, blank: bool, own: Option<Buf>, view: &View) -> (crate::Port, Io) {
    let memory = |sectors: u64| {
        let bytes = (sectors * SECTOR_BYTES) as usize;
        own.unwrap_or_else(|| if blank { Buf::blank(bytes) } else { Buf::zeroed(bytes) })
    };
    match part {
        ReadPart::Data { start, wanted, .. } => {
            let end = wanted.last().expect("something is wanted").end();
            let disk = view.data.disk_of(*start);
            let extent = view.data[disk].geometry().whole_blocks(Extent::new(*start, end - *start));
            (data_port(disk), Io::Read { at: extent.start, buf: memory(extent.sectors) })
        }
        ReadPart::Log { start, pieces, .. } => {
            let last = pieces.last().expect("something is wanted").piece;
            let end = last.place.0 + u64::from(last.count);
            let extent = view.log.geometry().whole_blocks(Extent::new(Lba(*start), end - *start));
            (LOG, Io::Read { at: extent.start, buf: memory(extent.sectors) })
        }
        ReadPart::Copy { source: FromLog { piece, .. }, copy, .. } => {
            let extent =
                view.log.geometry().whole_blocks(Extent::new(Lba(piece.place.0), u64::from(piece.count)));
            (LOG, Log::read(extent.start, memory(extent.sectors), Some(*copy)))
        }
    }
}

/// Joins pieces that lie side by side in the log.
fn log_parts(mut sources: Few<FromLog>, segment_of: impl Fn(Place) -> u32) -> Few<ReadPart> {
    sources.sort_unstable_by_key(|source| source.piece.place);
    let mut parts: Few<ReadPart> = Few::new();
    for source in sources {
        let place = source.piece.place.0;
        let at = segment_of(Place(place));
        if let Some(ReadPart::Log { start, segment, pieces, .. }) = parts.last_mut() {
            let last = pieces.last().expect("a part has pieces").piece;
            let end = last.place.0 + u64::from(last.count);
            if *segment == at && place == end && end - *start < LOG_READ_SECTORS_MAX {
                pieces.push(source);
                continue;
            }
        }
        parts.push(ReadPart::Log { start: place, segment: at, pieces: smallvec![source], whole: false });
    }
    parts
}
