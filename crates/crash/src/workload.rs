//! A random client: a stream of requests with a character of its own, checked by the oracle as it goes.
//!
//! The character is drawn from the seed: one run hammers a few lines with 4 KiB writes and flushes, the next writes odd
//! sectors with sixteen requests in flight, another one pauses long enough for everything to be destaged.

use dcd_engine::{
    Buf, Discards, Durability, Extent, Geometry, Io, IoResult, Lba, Nanos, RequestId, SECTOR_BYTES,
};

use crate::dealt::{self, CHUNK_SECTORS};
use crate::oracle::{FlushMark, ReadMark, WriteContent};
use crate::{Oracle, SimRng, stamp};

/// Maximum number of times that a place is drawn anew because it overlaps a write in flight.
const PLACES_TRIED_MAX: u32 = 8;

/// Alignment of the start of the hot part of a device: any line of 4 KiB.
const HOT_ALIGN_SECTORS: u64 = 8;

/// Character of a client. Chances are in a thousand.
#[derive(Clone, Copy, Debug)]
pub struct Character {
    pub requests: u64,
    pub depth: usize,
    /// Sizes of common writes and reads, in sectors.
    pub sectors_min: u64,
    pub sectors_max: u64,
    /// Places and sizes are multiples of this many sectors.
    pub align: u64,
    /// Chance of a write that is large enough to bypass a cache.
    pub large: u64,
    pub large_sectors: u64,
    /// The hot part of the device, to which most requests go.
    pub hot_start: u64,
    pub hot_sectors: u64,
    pub hot: u64,
    pub reads: u64,
    pub flushes: u64,
    pub discards: u64,
    /// A discarded sector reads as zeroes.
    pub discards_zero: bool,
    pub zeroes: u64,
    pub fua: u64,
    /// Chance that the client stops for a while, and the maximum pause.
    pub pauses: u64,
    pub pause_max: Nanos,
    /// True if a write may overlap another in flight.
    pub overlaps: bool,
    /// No request crosses a multiple of this many sectors.
    pub chunk: u64,
    /// A disk of so many to which chunks are dealt in turn: no request goes there.
    pub avoids: Option<(usize, usize)>,
}

impl Character {
    /// Draws a client that suits a device.
    pub fn draw(rng: &mut SimRng, geometry: Geometry, overlaps: bool) -> Character {
        let drawn = Character::draw_any(rng, geometry, overlaps);
        if rng.chance(500) {
            return drawn;
        }
        if rng.chance(150) {
            // Files are changed, destaged during a rest, read, and then overwritten by a single write: the cache must drop its older copies
            // of them.
            return Character {
                depth: rng.pick(&[1, 2]),
                hot_sectors: rng.pick(&[256, 512]).min(geometry.sectors),
                hot: 1000,
                large: 300,
                reads: 300,
                flushes: 50,
                pauses: 200,
                pause_max: Nanos::from_secs(3),
                ..drawn
            };
        }
        // A database's log: one durable write of one size after the other. Records of a log then lie at the same places in
        // each life, where old ones are taken for new ones most easily.
        let size = rng.pick(&[8, 8, 16]);
        let (flushes, fua) = rng.pick(&[(500, 0), (50, 1000), (100, 0), (100, 300)]);
        Character {
            depth: rng.pick(&[1, 2, 3]),
            sectors_min: size,
            sectors_max: size,
            align: size,
            large: 0,
            hot_sectors: rng.pick(&[16, 64, 256]).min(drawn.hot_sectors),
            hot: 900,
            reads: 30,
            discards: 0,
            zeroes: 0,
            flushes,
            fua,
            ..drawn
        }
    }

    /// Returns, mostly, a client that rereads the same blocks, and overwrites them in pieces or as a whole.
    pub fn reads_again(self, rng: &mut SimRng) -> Character {
        if rng.chance(300) {
            return self;
        }
        Character {
            depth: rng.pick(&[1, 2, 4, 8]),
            hot_sectors: rng.pick(&[64, 256, 512]).min(self.hot_sectors.max(64)),
            hot: 1000,
            align: self.align.max(8),
            sectors_min: 8,
            sectors_max: self.sectors_max.max(8),
            reads: rng.pick(&[400, 600, 800]),
            large: rng.pick(&[0, 50, 200]),
            flushes: rng.pick(&[20, 50, 100]),
            ..self
        }
    }

    fn draw_any(rng: &mut SimRng, geometry: Geometry, overlaps: bool) -> Character {
        let block = u64::from(geometry.logical_block_bytes) / SECTOR_BYTES;
        let uniform = rng.chance(400);
        let size = if uniform { rng.pick(&[8, 8, 8, 1, 16]) } else { rng.pick(&[8, 24, 64, 64]) };
        let odd = !uniform && rng.chance(500);
        let align = if odd { block } else { block.max(if uniform { size.min(8) } else { 8 }) };
        let hot_sectors = rng.pick(&[64, 256, 1024]).min(geometry.sectors);
        // Mostly in the middle third, as a cache may treat the ends of a device differently.
        let hot_places = (geometry.sectors - hot_sectors) / HOT_ALIGN_SECTORS + 1;
        let hot_place = match rng.below(5) {
            0 => 0,
            1 => rng.below(hot_places),
            _ => hot_places / 3 + rng.below(hot_places / 3 + 1),
        };
        Character {
            requests: rng.range(60, 160),
            depth: rng.pick(&[1, 1, 2, 4, 8, 16]),
            sectors_min: if uniform { size.max(block) } else { block },
            sectors_max: size.max(block),
            align,
            large: rng.pick(&[0, 100, 200, 300]),
            large_sectors: rng.pick(&[128, 128, 136, 256]),
            hot_start: hot_place * HOT_ALIGN_SECTORS,
            hot_sectors,
            hot: rng.pick(&[0, 500, 900, 1000]),
            reads: rng.pick(&[50, 150, 300]),
            flushes: rng.pick(&[0, 50, 150, 300]),
            discards_zero: geometry.discards == Discards::Zero,
            discards: if geometry.discards != Discards::No { rng.pick(&[0, 30, 100]) } else { 0 },
            zeroes: rng.pick(&[0, 20, 60]),
            fua: rng.pick(&[0, 0, 100, 500]),
            pauses: rng.pick(&[0, 20, 60, 200]),
            pause_max: rng.pick(&[Nanos::from_millis(5), Nanos::from_millis(300), Nanos::from_secs(3)]),
            overlaps,
            chunk: u64::MAX,
            avoids: None,
        }
    }
}

#[derive(Debug)]
enum SentKind {
    Write { number: u32, extent: Extent },
    Read(ReadMark),
    Flush(FlushMark),
}

/// See the module's documentation.
#[derive(Debug)]
pub struct SimClient {
    pub oracle: Oracle,
    character: Character,
    rng: SimRng,
    left: u64,
    next_id: u64,
    in_flight: Vec<(RequestId, SentKind)>,
    /// True if a pause begins once all requests in flight are answered.
    wants_pause: bool,
    errors: u64,
    /// True if errors are expected: they are counted, and are no violation.
    pub errors_expected: bool,
}

impl SimClient {
    pub fn new(character: Character, oracle: Oracle, rng: SimRng) -> SimClient {
        SimClient {
            oracle,
            character,
            rng,
            left: character.requests,
            next_id: 1,
            in_flight: Vec::new(),
            wants_pause: false,
            errors: 0,
            errors_expected: false,
        }
    }

    pub const fn is_done(&self) -> bool {
        self.left == 0 && self.in_flight.is_empty()
    }

    pub const fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Requests that were answered with an error.
    pub const fn errors(&self) -> u64 {
        self.errors
    }

    /// Returns the time to wait before anything else, once; only when nothing is in flight.
    pub fn take_pause(&mut self) -> Option<Nanos> {
        if !self.wants_pause || !self.in_flight.is_empty() {
            return None;
        }
        self.wants_pause = false;
        Some(Nanos(self.rng.range(1, self.character.pause_max.0)))
    }

    /// The next request, if one may be sent now.
    pub fn next_request(&mut self) -> Option<(RequestId, Io)> {
        if self.left == 0 || self.wants_pause || self.in_flight.len() >= self.character.depth {
            return None;
        }
        self.left -= 1;
        self.wants_pause = self.rng.chance(self.character.pauses);
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let (kind, io) = self.draw();
        self.in_flight.push((id, kind));
        Some((id, io))
    }

    fn draw(&mut self) -> (SentKind, Io) {
        let c = self.character;
        let die = self.rng.below(1000);
        let durability = if self.rng.chance(c.fua) { Durability::Durable } else { Durability::Volatile };
        if die < c.flushes {
            return (SentKind::Flush(self.oracle.flush_begins()), Io::Flush);
        }
        let die = die - c.flushes;
        let place = self.place();
        if die < c.reads {
            return self.read(place);
        }
        if !c.overlaps && self.overlaps_a_write(place) {
            return self.read(place);
        }
        let die = die - c.reads;
        if die < c.discards + c.zeroes {
            let discard = die < c.discards;
            let durable = !discard && durability == Durability::Durable;
            let content =
                if discard && !c.discards_zero { WriteContent::Unknown } else { WriteContent::Zeroes };
            let number = self.oracle.write_begins(place, content, durable);
            let unmap = self.rng.chance(500);
            let io = match discard {
                true => Io::Discard { extent: place },
                false => Io::WriteZeroes { extent: place, unmap, durability },
            };
            return (SentKind::Write { number, extent: place }, io);
        }
        let number = self.oracle.write_begins(place, WriteContent::Stamps, durability == Durability::Durable);
        let mut buf = Buf::zeroed((place.sectors * SECTOR_BYTES) as usize);
        stamp::stamp(buf.bytes_mut(), place.start, number, self.oracle.seed());
        (SentKind::Write { number, extent: place }, Io::Write { at: place.start, buf, durability })
    }

    fn read(&mut self, place: Extent) -> (SentKind, Io) {
        let buf = Buf::zeroed((place.sectors * SECTOR_BYTES) as usize);
        (SentKind::Read(self.oracle.read_begins(place)), Io::Read { at: place.start, buf })
    }

    fn overlaps_a_write(&self, place: Extent) -> bool {
        let hit = |kind: &SentKind| matches!(kind, SentKind::Write { extent, .. } if extent.overlaps(place));
        self.in_flight.iter().any(|(_, kind)| hit(kind))
    }

    /// Draws a place, and tries to avoid the writes in flight.
    fn place(&mut self) -> Extent {
        let mut place = self.any_place();
        for _ in 0..PLACES_TRIED_MAX {
            if self.character.overlaps || !self.overlaps_a_write(place) {
                break;
            }
            place = self.any_place();
        }
        place
    }

    fn any_place(&mut self) -> Extent {
        let c = self.character;
        let total = self.oracle.sectors();
        let large = self.rng.chance(c.large);
        let sectors = if large {
            c.large_sectors
        } else {
            self.rng.range(c.sectors_min, c.sectors_max).next_multiple_of(c.align)
        };
        let sectors = sectors.min(total / c.align * c.align);
        // Many large writes go to uncached places, like a new file.
        let hot = self.rng.chance(if large { c.hot / 4 * 3 } else { c.hot });
        let room = if hot { c.hot_sectors.max(sectors).min(total) } else { total };
        let places = (room - sectors) / c.align + 1;
        // In the hot part, take the lesser of two draws: low addresses are written more often, as in a file system.
        let place = self.rng.below(places);
        let place = if hot { place.min(self.rng.below(places)) } else { place };
        let start = if hot { c.hot_start.min(total - room).next_multiple_of(c.align) } else { 0 };
        let start = (start + place * c.align).min((total - sectors) / c.align * c.align);
        let start = match c.avoids {
            // The next chunk, or the one before it, is on another disk.
            Some((disk, disks)) if dealt::place_of(Lba(start), disks).0 == disk => {
                if start + CHUNK_SECTORS < total { start + CHUNK_SECTORS } else { start - CHUNK_SECTORS }
            }
            _ => start,
        };
        Extent::new(Lba(start), sectors.min(c.chunk - start % c.chunk))
    }

    /// Takes an answer, and judges it.
    pub fn reply(&mut self, now: Nanos, id: RequestId, result: &IoResult) -> Result<(), String> {
        let index = self.in_flight.iter().position(|(known, _)| *known == id);
        let index = index.ok_or_else(|| format!("request {} was answered twice, or never asked", id.0))?;
        let (_, kind) = self.in_flight.swap_remove(index);
        let ok = result.status.is_ok();
        if let Err(error) = result.status {
            self.errors += 1;
            if !self.errors_expected {
                return Err(format!("a request failed on good devices: {error} ({kind:?})"));
            }
        }
        match kind {
            SentKind::Write { number, .. } => self.oracle.write_ends(number, ok, now),
            SentKind::Flush(mark) => self.oracle.flush_ends(mark, ok),
            SentKind::Read(mark) if ok => self.oracle.read_ends(&mark, result.buf.bytes())?,
            SentKind::Read(_) => {}
        }
        Ok(())
    }
}
