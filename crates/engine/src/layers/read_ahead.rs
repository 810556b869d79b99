//! Reads ahead: fetches the blocks after sequential reads before they are asked for, and stores them in RAM.
//!
//! The small files of a directory lie one after the other, and their reader asks for each separately. A disk's own buffer helps as long
//! as it has a segment for each reader and the arm stays. This layer has as many *streams* as its RAM allows, and reads a long piece at a
//! time for each, so that several readers do not pay a seek for each file.
//!
//! | a stream is | until                                                                                  |
//! |-------------|----------------------------------------------------------------------------------------|
//! | seen        | a read begins at its end or a little after: the blocks after that read are loaded      |
//! | loading     | the piece is loaded, and is kept; reads of it wait meanwhile                           |
//! | kept        | a reader comes near its end: the next piece is loaded                                  |
//! | forgotten   | a load of it has failed: two reads in order make a new stream                          |
//!
//! A read that is not near a stream goes to the disk alone and becomes a stream, in place of the one used longest ago. The first piece is
//! a quarter of the longest, and pieces double. Blocks are forgotten when a write to them comes and again when it ends: data loaded
//! meanwhile may be from before it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::layer::{Cx, Io, IoResult, Layer, OpId, Request, RequestId};
use crate::layers::filter::{Filter, SeenGeometry};
use crate::{AnyStatus, Buf, Extent, Lba, Nanos, SECTOR_BYTES};

/// Flag of operations that load a stream; the rest of the number is the stream.
const LOAD: u64 = 1 << 63;
/// The first piece of a stream is this part of the longest.
const FIRST_PART: u64 = 4;

/// The settings of a read-ahead layer. It takes up to three times `bytes` of RAM for each stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReadAheadConfig {
    /// Number of readers that are followed at a time.
    pub streams: usize,
    /// Maximum read-ahead, in bytes: a multiple of 16 KiB.
    pub bytes: u64,
}

impl ReadAheadConfig {
    /// `bytes` must be a multiple of this, so that the first piece, too, is whole blocks of any disk.
    pub const UNIT_BYTES: u64 = FIRST_PART * 4096;

    pub const fn is_valid(&self) -> bool {
        self.streams > 0 && self.bytes > 0 && self.bytes.is_multiple_of(Self::UNIT_BYTES)
    }
}

impl Default for ReadAheadConfig {
    fn default() -> Self {
        ReadAheadConfig { streams: 32, bytes: 128 << 10 }
    }
}

/// A reader, and the data read ahead for it.
struct ReadStream {
    /// The end of the reader's last read.
    end: Lba,
    kept: Extent,
    buf: Buf,
    loading: Option<Extent>,
    /// True if some of the sectors that are being loaded were written since.
    stale: bool,
    waiting: Vec<(RequestId, Lba, Buf)>,
    /// The size of the next load, in sectors.
    piece: u64,
    used: u64,
}

impl ReadStream {
    fn new() -> ReadStream {
        ReadStream {
            end: Lba(0),
            kept: Extent::new(Lba(0), 0),
            buf: Buf::none(),
            loading: None,
            stale: false,
            waiting: Vec::new(),
            piece: 0,
            used: 0,
        }
    }

    fn keeps(&self, wanted: Extent, blank: bool) -> bool {
        covers(self.kept, wanted) && (blank || !self.buf.is_blank())
    }

    /// True if the wanted blocks are there once the load ends. Adjacent kept and loading ranges count as one.
    fn will_keep(&self, wanted: Extent) -> bool {
        self.loading.is_some_and(|loading| {
            let joined = self.kept.sectors > 0 && self.kept.end() == loading.start;
            let start = if joined { self.kept.start } else { loading.start };
            !self.stale && covers(Extent::new(start, loading.end() - start), wanted)
        })
    }
}

fn covers(extent: Extent, wanted: Extent) -> bool {
    extent.start <= wanted.start && wanted.end() <= extent.end()
}

/// Counters of a read-ahead layer.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ReadAheadStatistics {
    /// Reads answered from RAM, reads among these that had to wait, and reads not answered from RAM.
    pub hits: u64,
    pub waits: u64,
    pub misses: u64,
    pub loads: u64,
    pub loaded_bytes: u64,
}

/// The state of a read-ahead layer.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ReadAheadStatus {
    pub kept_bytes: u64,
    /// Readers with blocks in RAM.
    pub streams: usize,
    pub statistics: ReadAheadStatistics,
}

/// See the module's documentation.
pub struct ReadAhead {
    config: ReadAheadConfig,
    streams: Vec<ReadStream>,
    /// Operations under way that change data.
    changing: BTreeMap<RequestId, Extent>,
    uses: u64,
    seen: SeenGeometry,
    statistics: ReadAheadStatistics,
}

impl ReadAhead {
    /// # Panics
    /// If the configuration is not valid.
    pub fn new(config: ReadAheadConfig) -> ReadAhead {
        assert!(config.is_valid(), "{config:?} is no read-ahead");
        let streams = (0..config.streams).map(|_| ReadStream::new()).collect();
        let (changing, statistics) = (BTreeMap::new(), ReadAheadStatistics::default());
        ReadAhead { config, streams, changing, uses: 0, seen: SeenGeometry::new(Vec::new()), statistics }
    }

    fn piece_max(&self) -> u64 {
        self.config.bytes / SECTOR_BYTES
    }

    /// True for a well-formed read; the disk refuses the others.
    fn is_inside(&self, at: Lba, buf: &Buf) -> bool {
        let wanted = Extent::new(at, buf.len() as u64 / SECTOR_BYTES);
        let whole = (buf.len() as u64).is_multiple_of(u64::from(self.geometry().logical_block_bytes));
        wanted.sectors > 0 && whole && wanted.is_within(self.geometry().sectors)
    }

    fn read(&mut self, id: RequestId, at: Lba, mut buf: Buf, cx: &mut Cx) {
        let wanted = Extent::new(at, buf.len() as u64 / SECTOR_BYTES);
        let blank = buf.is_blank();
        if let Some(index) = self.streams.iter().position(|stream| stream.keeps(wanted, blank)) {
            self.statistics.hits += 1;
            self.touch(index, wanted);
            let stream = &self.streams[index];
            copy(stream, wanted, &mut buf);
            cx.reply(id, IoResult::ok(buf));
            return self.go_on(index, blank, cx);
        }
        if let Some(index) = self.streams.iter().position(|stream| stream.will_keep(wanted)) {
            self.statistics.hits += 1;
            self.statistics.waits += 1;
            self.touch(index, wanted);
            return self.streams[index].waiting.push((id, at, buf));
        }
        self.statistics.misses += 1;
        cx.submit(Self::BELOW, OpId(id.0), Io::Read { at, buf });
        let near = |stream: &ReadStream| {
            stream.used > 0 && stream.end <= wanted.start && wanted.start - stream.end <= self.piece_max()
        };
        match self.streams.iter().position(near) {
            Some(index) => {
                self.touch(index, wanted);
                if self.streams[index].loading.is_none() {
                    self.load(index, wanted.end(), blank, cx);
                }
            }
            None => self.begin(wanted),
        }
    }

    fn touch(&mut self, index: usize, wanted: Extent) {
        self.uses += 1;
        self.streams[index].used = self.uses;
        self.streams[index].end = wanted.end();
    }

    /// Follows a new reader, in place of the one used longest ago.
    fn begin(&mut self, wanted: Extent) {
        let free = |stream: &&mut ReadStream| stream.loading.is_none();
        let piece = self.piece_max() / FIRST_PART;
        let Some(stream) = self.streams.iter_mut().filter(free).min_by_key(|stream| stream.used) else {
            return;
        };
        self.uses += 1;
        stream.used = self.uses;
        stream.end = wanted.end();
        stream.piece = piece;
        stream.kept.sectors = 0;
    }

    /// Loads the next piece when a reader has read most of the last one.
    fn go_on(&mut self, index: usize, blank: bool, cx: &mut Cx) {
        let stream = &self.streams[index];
        // The reader may be past the loaded piece, if loading took long.
        let left = stream.kept.end().0.saturating_sub(stream.end.0);
        if stream.loading.is_none() && left <= stream.piece / 4 {
            self.load(index, stream.kept.end().max(stream.end), blank, cx);
        }
    }

    fn load(&mut self, index: usize, start: Lba, blank: bool, cx: &mut Cx) {
        let (piece_max, sectors) = (self.piece_max(), self.geometry().sectors);
        let stream = &mut self.streams[index];
        let extent = Extent::new(start, stream.piece.min(sectors - start.0));
        if extent.sectors == 0 {
            return;
        }
        stream.piece = (stream.piece * 2).min(piece_max);
        stream.loading = Some(extent);
        stream.stale = false;
        self.statistics.loads += 1;
        let bytes = (extent.sectors * SECTOR_BYTES) as usize;
        self.statistics.loaded_bytes += bytes as u64;
        let buf = if blank { Buf::blank(bytes) } else { Buf::zeroed(bytes) };
        cx.submit(Self::BELOW, OpId(LOAD | index as u64), Io::Read { at: start, buf });
    }

    fn loaded(&mut self, index: usize, result: IoResult, cx: &mut Cx) {
        let capacity = 2 * self.piece_max();
        let stream = &mut self.streams[index];
        let extent = stream.loading.take().expect("it was loading");
        if result.status.is_err() {
            // Two more reads in order are needed before a retry: otherwise the layer would retry indefinitely.
            *stream = ReadStream { waiting: std::mem::take(&mut stream.waiting), ..ReadStream::new() };
        } else if !stream.stale {
            stream.append(extent, result.buf, capacity);
        }
        let blank = stream.buf.is_blank();
        for (id, at, mut buf) in std::mem::take(&mut self.streams[index].waiting) {
            let wanted = Extent::new(at, buf.len() as u64 / SECTOR_BYTES);
            let stream = &self.streams[index];
            if stream.keeps(wanted, buf.is_blank()) {
                copy(stream, wanted, &mut buf);
                cx.reply(id, IoResult::ok(buf));
            } else {
                cx.submit(Self::BELOW, OpId(id.0), Io::Read { at, buf });
            }
        }
        if self.streams[index].kept.sectors > 0 {
            self.go_on(index, blank, cx);
        }
    }

    /// Forgets blocks that change. Requests that wait for them go to the disk.
    fn forget(&mut self, extent: Extent, cx: &mut Cx) {
        for stream in &mut self.streams {
            if stream.kept.overlaps(extent) {
                stream.kept.sectors = 0;
            }
            if stream.loading.is_some_and(|loading| loading.overlaps(extent)) {
                stream.stale = true;
            }
            // Waiting reads that begin in the kept range cannot be completed either.
            let gone = |(_, at, buf): &mut (RequestId, Lba, Buf)| {
                !stream.loading.is_some_and(|loading| {
                    !stream.stale && covers(loading, Extent::new(*at, buf.len() as u64 / SECTOR_BYTES))
                })
            };
            for (id, at, buf) in stream.waiting.extract_if(.., gone) {
                cx.submit(Self::BELOW, OpId(id.0), Io::Read { at, buf });
            }
        }
    }
}

impl ReadStream {
    /// Adds a piece to the blocks in RAM, if it follows them, and keeps the last `capacity` sectors.
    fn append(&mut self, piece: Extent, loaded: Buf, capacity: u64) {
        let follows = self.kept.sectors > 0 && self.kept.end() == piece.start;
        if !follows || self.buf.is_blank() != loaded.is_blank() {
            (self.kept, self.buf) = (piece, loaded);
            return;
        }
        let old = self.kept.sectors.min(capacity - piece.sectors);
        let kept = Extent::new(Lba(piece.start.0 - old), old + piece.sectors);
        let bytes = |sectors: u64| (sectors * SECTOR_BYTES) as usize;
        let blank = loaded.is_blank();
        let mut buf = if blank { Buf::blank(bytes(kept.sectors)) } else { Buf::zeroed(bytes(kept.sectors)) };
        buf.copy_from(0, &self.buf, bytes(self.kept.sectors - old), bytes(old));
        buf.copy_from(bytes(old), &loaded, 0, bytes(piece.sectors));
        (self.kept, self.buf) = (kept, buf);
    }
}

fn copy(stream: &ReadStream, wanted: Extent, buf: &mut Buf) {
    let from = ((wanted.start - stream.kept.start) * SECTOR_BYTES) as usize;
    let len = buf.len();
    buf.copy_from(0, &stream.buf, from, len);
}

impl Filter for ReadAhead {
    fn seen(&self) -> &SeenGeometry {
        &self.seen
    }

    fn pass(&mut self, Request { id, io, .. }: Request, cx: &mut Cx) {
        let io = match io {
            Io::Read { at, buf } if self.is_inside(at, &buf) => return self.read(id, at, buf, cx),
            io => io,
        };
        if let Some(extent) = io.extent().filter(|_| io.modifies()) {
            self.forget(extent, cx);
            self.changing.insert(id, extent);
        }
        cx.submit(Self::BELOW, OpId(id.0), io);
    }

    fn pass_back(&mut self, id: RequestId, result: IoResult, cx: &mut Cx) {
        if id.0 & LOAD != 0 {
            return self.loaded((id.0 & !LOAD) as usize, result, cx);
        }
        if let Some(extent) = self.changing.remove(&id) {
            self.forget(extent, cx);
        }
        cx.reply(id, result);
    }

    fn reset_statistics(&mut self, _now: Nanos) {
        self.statistics = ReadAheadStatistics::default();
    }

    fn verify(&self) {
        for stream in &self.streams {
            assert!(stream.waiting.is_empty() || stream.loading.is_some(), "who waits, waits for something");
            assert!(stream.kept.sectors <= 2 * self.piece_max());
            assert!(
                stream.kept.sectors == 0 || stream.buf.len() as u64 == stream.kept.sectors * SECTOR_BYTES
            );
        }
    }

    fn report(&self, _now: Nanos) -> Box<dyn AnyStatus> {
        Box::new(ReadAheadStatus {
            kept_bytes: self.streams.iter().map(|stream| stream.kept.sectors * SECTOR_BYTES).sum(),
            streams: self.streams.iter().filter(|stream| stream.kept.sectors > 0).count(),
            statistics: self.statistics,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Durability, Event, Geometry, Port, Ports};

    const SECTORS: u64 = 4096;
    /// 32 KiB, and the first piece 8 KiB.
    const CONFIG: ReadAheadConfig = ReadAheadConfig { streams: 2, bytes: 32 << 10 };

    /// A disk of one byte a sector, which answers when it is told to.
    struct Rig {
        layer: ReadAhead,
        disk: Vec<u8>,
        sent: Vec<(OpId, Io)>,
        answers: Vec<(u64, IoResult)>,
        next: u64,
    }

    struct Below;

    impl Ports for Below {
        fn geometry(&self, _port: Port) -> Geometry {
            Geometry::plain(SECTORS)
        }

        fn run(&mut self, _port: Port, _io: Io) -> IoResult {
            unreachable!("it reads nothing at its start")
        }
    }

    fn rig() -> Rig {
        let mut layer = ReadAhead::new(CONFIG);
        layer.activate(&mut Below).expect("active");
        let disk = (0..SECTORS).map(|sector| sector as u8).collect();
        Rig { layer, disk, sent: Vec::new(), answers: Vec::new(), next: 0 }
    }

    impl Rig {
        fn handle(&mut self, event: Event) {
            let mut cx = Cx::default();
            self.layer.handle(event, cx.at(Nanos::ZERO));
            self.layer.check();
            for command in cx.commands {
                match command {
                    Command::Submit { op, io, .. } => self.sent.push((op, io)),
                    Command::Reply { id, result } => self.answers.push((id.0, result)),
                    Command::Report(report) => panic!("{report:?}"),
                }
            }
            let unanswered = self.next as usize - self.answers.len();
            assert!(unanswered == 0 || !self.sent.is_empty(), "{unanswered} requests wait for nothing");
        }

        /// The disk cannot carry out what was sent first.
        fn fail(&mut self) {
            let (op, io) = self.sent.remove(0);
            let error = crate::IoError::new(crate::ErrorKind::Medium);
            self.handle(Event::Completed { op, result: IoResult::err(io.take_buf(), error) });
        }

        fn send(&mut self, io: Io) -> u64 {
            self.next += 1;
            self.handle(Event::Request(Request { id: RequestId(self.next), disk: 0, io }));
            self.next
        }

        fn read(&mut self, at: u64, sectors: u64) -> u64 {
            self.send(Io::Read { at: Lba(at), buf: Buf::zeroed((sectors * SECTOR_BYTES) as usize) })
        }

        fn write(&mut self, at: u64, value: u8) -> u64 {
            let buf = Buf::copy_of(&[value; SECTOR_BYTES as usize]);
            self.send(Io::Write { at: Lba(at), buf, durability: Durability::Volatile })
        }

        /// The disk carries out what was sent first.
        fn answer(&mut self) {
            let (op, mut io) = self.sent.remove(0);
            match &mut io {
                Io::Read { at, buf } => {
                    for (index, sector) in buf.bytes_mut().chunks_mut(SECTOR_BYTES as usize).enumerate() {
                        sector.fill(self.disk[at.0 as usize + index]);
                    }
                }
                Io::Write { at, buf, .. } => self.disk[at.0 as usize] = buf.bytes()[0],
                _ => {}
            }
            self.handle(Event::Completed { op, result: IoResult::ok(io.take_buf()) });
        }

        fn answer_all(&mut self) {
            while !self.sent.is_empty() {
                self.answer();
            }
        }

        /// The first byte that a request got, if it was answered.
        fn got(&self, id: u64) -> Option<u8> {
            let (_, result) = self.answers.iter().find(|(answered, _)| *answered == id)?;
            Some(result.buf.bytes()[0])
        }
    }

    #[test]
    fn reads_in_order_are_read_ahead_and_others_are_not() {
        let mut rig = rig();
        let first = rig.read(100, 8);
        assert_eq!(rig.sent.len(), 1, "one read is no stream");
        rig.answer_all();
        let second = rig.read(110, 8);
        assert_eq!(
            rig.sent.iter().map(|(_, io)| io.extent()).collect::<Vec<_>>(),
            [Some(Extent::new(Lba(110), 8)), Some(Extent::new(Lba(118), 16)),]
        );
        rig.answer_all();
        let third = rig.read(118, 4);
        assert_eq!((rig.got(first), rig.got(second), rig.got(third)), (Some(100), Some(110), Some(118)));
        assert!(rig.sent.is_empty());
        let fourth = rig.read(122, 12);
        assert_eq!(rig.sent[0].1.extent(), Some(Extent::new(Lba(134), 32)), "near its end, twice as much");
        let waits = rig.read(130, 20);
        assert_eq!((rig.got(fourth), rig.got(waits)), (Some(122), None), "it reaches into what is loading");
        rig.answer_all();
        assert_eq!(rig.got(waits), Some(130));
        rig.read(3000, 8);
        assert_eq!(rig.sent.len(), 1, "far away");
    }

    #[test]
    fn what_is_written_is_never_read_from_before_it() {
        // The write comes before the load, while it is under way, and after it; and ends before it or after it.
        for write_after in 0..3 {
            for write_ends_first in [false, true] {
                let mut rig = rig();
                rig.read(0, 8);
                rig.answer_all();
                let mut write = 0;
                for step in 0..3 {
                    if step == write_after {
                        write = rig.write(20, 255);
                    }
                    match step {
                        0 => drop(rig.read(8, 8)),
                        1 if write_ends_first => rig.sent.reverse(),
                        _ => {}
                    }
                }
                let waits = rig.read(20, 1);
                rig.answer_all();
                assert!(rig.got(write).is_some() && rig.got(waits).is_some());
                let after = rig.read(20, 1);
                rig.answer_all();
                assert_eq!(rig.got(after), Some(255), "{write_after} {write_ends_first}");
            }
        }
    }

    #[test]
    fn who_waits_for_a_piece_that_cannot_be_read_asks_the_disk() {
        let mut rig = rig();
        rig.read(0, 8);
        rig.answer_all();
        rig.read(8, 8);
        let waits = rig.read(16, 8);
        rig.answer();
        rig.fail();
        rig.answer_all();
        assert_eq!(rig.got(waits), Some(16));
    }

    #[test]
    fn a_load_that_failed_is_tried_again_only_for_a_client() {
        let mut rig = rig();
        rig.read(0, 8);
        rig.answer_all();
        rig.read(8, 8);
        rig.answer_all();
        let mut at = 16;
        while rig.sent.is_empty() {
            rig.read(at, 4);
            at += 4;
        }
        let loads = rig.layer.statistics.loads;
        rig.fail();
        assert!(rig.sent.is_empty(), "{:?} without a client", rig.sent);
        // The disk fails from there on. Each read of a client leads to one load at most.
        for read in 1..=20 {
            rig.read(at, 4);
            at += 4;
            for _ in 0..2 {
                if !rig.sent.is_empty() {
                    rig.fail();
                }
            }
            assert!(rig.sent.is_empty(), "{:?}", rig.sent);
            assert!(rig.layer.statistics.loads <= loads + read);
        }
    }

    #[test]
    fn a_stream_ends_with_the_disk() {
        let mut rig = rig();
        for at in (SECTORS - 64..SECTORS).step_by(8) {
            let read = rig.read(at, 8);
            rig.answer_all();
            assert_eq!(rig.got(read), Some(at as u8));
        }
        assert!(rig.layer.statistics.hits >= 5);
    }
}
