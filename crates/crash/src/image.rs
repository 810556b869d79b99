//! The bytes of a medium: sparse, where zeroes take no memory, and shared between copies until one of them writes.
//!
//! A crash state is a copy of an image with a few sectors changed, and there are millions of them: a copy costs one
//! reference for each 256 KiB, and a write to a copy costs the page it touches.

use std::sync::Arc;

use dcd_engine::{Lba, SECTOR_BYTES};

const SECTOR: usize = SECTOR_BYTES as usize;
const PAGE_SECTORS: usize = 8;
const PAGE: usize = PAGE_SECTORS * SECTOR;
const CHUNK_PAGES: usize = 64;
const CHUNK_SECTORS: usize = CHUNK_PAGES * PAGE_SECTORS;

type ImagePage = Arc<[u8; PAGE]>;

#[derive(Clone)]
struct ImageChunk {
    pages: [Option<ImagePage>; CHUNK_PAGES],
}

/// Content of a medium. Sectors that were never written read as zeroes and take no memory.
#[derive(Clone)]
pub struct Image {
    sectors: u64,
    chunks: Vec<Option<Arc<ImageChunk>>>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} sectors)", self.sectors)
    }
}

/// A run of sectors inside one page: where it is, and which part of the caller's bytes.
struct Span {
    chunk: usize,
    page: usize,
    offset: usize,
    at: usize,
    len: usize,
}

fn spans(start: Lba, len: usize) -> impl Iterator<Item = Span> {
    let mut at = 0;
    std::iter::from_fn(move || {
        (at < len).then(|| {
            let sector = start.0 as usize + at / SECTOR;
            let offset = sector % PAGE_SECTORS * SECTOR;
            let span = Span {
                chunk: sector / CHUNK_SECTORS,
                page: sector % CHUNK_SECTORS / PAGE_SECTORS,
                offset,
                at,
                len: (PAGE - offset).min(len - at),
            };
            at += span.len;
            span
        })
    })
}

impl Image {
    pub fn new(sectors: u64) -> Image {
        Image { sectors, chunks: vec![None; (sectors as usize).div_ceil(CHUNK_SECTORS)] }
    }

    pub const fn sectors(&self) -> u64 {
        self.sectors
    }

    fn check(&self, start: Lba, len: usize) {
        assert!(len.is_multiple_of(SECTOR), "a medium holds whole sectors");
        assert!(start.0 + (len / SECTOR) as u64 <= self.sectors, "inside the medium");
    }

    pub fn read(&self, start: Lba, bytes: &mut [u8]) {
        self.check(start, bytes.len());
        for span in spans(start, bytes.len()) {
            let target = &mut bytes[span.at..span.at + span.len];
            match self.chunks[span.chunk].as_ref().and_then(|chunk| chunk.pages[span.page].as_ref()) {
                Some(page) => target.copy_from_slice(&page[span.offset..span.offset + span.len]),
                None => target.fill(0),
            }
        }
    }

    pub fn write(&mut self, start: Lba, bytes: &[u8]) {
        self.check(start, bytes.len());
        for span in spans(start, bytes.len()) {
            let source = &bytes[span.at..span.at + span.len];
            let chunk = self.chunks[span.chunk]
                .get_or_insert_with(|| Arc::new(ImageChunk { pages: [const { None }; CHUNK_PAGES] }));
            let place = &mut Arc::make_mut(chunk).pages[span.page];
            match place {
                // A whole page replaces the old one, so a page that other copies share need not be copied.
                Some(page) if span.len == PAGE && Arc::strong_count(page) > 1 => {
                    *page = Arc::new(source.try_into().expect("a whole page"));
                }
                Some(page) => {
                    Arc::make_mut(page)[span.offset..span.offset + span.len].copy_from_slice(source);
                }
                // It reads as zeroes already.
                None if source.iter().all(|&byte| byte == 0) => {}
                None => {
                    let mut page = [0; PAGE];
                    page[span.offset..span.offset + span.len].copy_from_slice(source);
                    *place = Some(Arc::new(page));
                }
            }
        }
    }

    pub fn zero(&mut self, start: Lba, sectors: u64) {
        self.check(start, sectors as usize * SECTOR);
        let end = start.0 + sectors;
        let mut at = start.0;
        while at < end {
            let chunk = at as usize / CHUNK_SECTORS;
            let chunk_end = ((chunk + 1) * CHUNK_SECTORS) as u64;
            let part = end.min(chunk_end) - at;
            // A whole chunk is dropped at a time; a chunk that was never written holds nothing to drop.
            match part as usize {
                CHUNK_SECTORS => self.chunks[chunk] = None,
                _ if self.chunks[chunk].is_some() => self.zero_pages(Lba(at), part),
                _ => {}
            }
            at += part;
        }
    }

    fn zero_pages(&mut self, start: Lba, sectors: u64) {
        for span in spans(start, sectors as usize * SECTOR) {
            let Some(chunk) = &mut self.chunks[span.chunk] else { continue };
            if chunk.pages[span.page].is_none() {
                continue;
            }
            let place = &mut Arc::make_mut(chunk).pages[span.page];
            match place {
                Some(page) if span.len < PAGE => {
                    Arc::make_mut(page)[span.offset..span.offset + span.len].fill(0);
                }
                _ => *place = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_its_bytes_when_the_original_goes_on() {
        let mut image = Image::new(10_000);
        image.write(Lba(5), &[1; 20 * SECTOR]);
        let copy = image.clone();
        image.write(Lba(7), &[2; 3 * SECTOR]);
        image.zero(Lba(11), 9);
        let mut bytes = vec![9; 30 * SECTOR];
        copy.read(Lba(0), &mut bytes);
        let expected = |sector: usize| u8::from((5..25).contains(&sector));
        assert!((0..30).all(|s| bytes[s * SECTOR] == expected(s) && bytes[s * SECTOR + 511] == expected(s)));
        image.read(Lba(0), &mut bytes);
        let seen: Vec<u8> = (4..26).map(|s| bytes[s * SECTOR]).collect();
        assert_eq!(seen, [0, 1, 1, 2, 2, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0]);
    }

    #[test]
    fn zeroes_over_whole_chunks_and_parts_of_them_reach_exactly_their_sectors() {
        let (sectors, chunk) = (4 * CHUNK_SECTORS as u64, CHUNK_SECTORS as u64);
        let mut full = Image::new(sectors);
        // The third chunk was never written.
        for start in [0, 1, 3] {
            full.write(Lba(start * chunk), &[1; CHUNK_SECTORS * SECTOR]);
        }
        for (start, end) in
            [(0, sectors), (chunk - 3, 2 * chunk + 5), (chunk, 2 * chunk), (7, 9), (chunk + 1, sectors - 1)]
        {
            let mut image = full.clone();
            image.zero(Lba(start), end - start);
            let mut byte = [0; SECTOR];
            for sector in 0..sectors {
                image.read(Lba(sector), &mut byte);
                let kept = !(start..end).contains(&sector) && sector / chunk != 2;
                assert_eq!(byte, [u8::from(kept); SECTOR], "sector {sector} after zeroes in {start}..{end}");
            }
        }
    }

    #[test]
    fn a_large_medium_takes_no_memory_until_written() {
        let mut image = Image::new(1 << 31);
        image.write(Lba((1 << 31) - 1), &[7; SECTOR]);
        let mut bytes = [0; 2 * SECTOR];
        image.read(Lba((1 << 31) - 2), &mut bytes);
        assert_eq!((bytes[0], bytes[511], bytes[512], bytes[1023]), (0, 0, 7, 7));
    }
}
