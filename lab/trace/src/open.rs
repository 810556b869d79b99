//! Opening a trace: decompression by magic bytes, the format by content, `-` for standard input; and creating one.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::{TraceError, Unit};
use crate::format::{Damage, Format, HEAD_BYTES, Input, ReadTrace, recognise, writer};
use crate::formats::blktrace;
use crate::formats::table::{self, CSV, Columns};
use dcd_stack::Inputs;
use dcd_stack::Record;

/// Large reads: decompression and parsing are what takes time.
const BUFFER_BYTES: usize = 256 << 10;
/// Mark with which some programs begin a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Names in a message.
const LISTED_MAX: usize = 8;
/// Wrong lines that are quoted.
const QUOTED_MAX: usize = 3;
/// Lines of which a single wrong one is left out.
const LINES_A_BAD_ONE: u64 = 100;
/// Wrong lines before their share counts: a trace may begin with a few.
const BAD_EARLY: u64 = 16;

/// Instructions for reading a trace; the default is to recognise its format.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    pub format: Option<&'static Format>,
    /// The columns of text that has no format.
    pub columns: Option<Columns>,
    /// Leave out everything that is wrong, however much it is.
    pub skip_bad: bool,
}

/// A trace that is open, and the format that it has.
pub struct OpenTrace {
    pub format: &'static Format,
    pub reader: Box<dyn ReadTrace>,
}

/// Opens a trace. `format` is what the user says it is; else its content tells.
pub fn open(path: &Path, format: Option<&'static Format>) -> Result<OpenTrace, TraceError> {
    open_as(path, &Reading { format, ..Reading::default() })
}

/// Opens a trace. A path that does not exist but has `.blktrace.N` beside it is a blktrace recording of all CPUs.
pub fn open_as(path: &Path, reading: &Reading) -> Result<OpenTrace, TraceError> {
    if path == Path::new("-") {
        let input = Box::new(BufReader::new(std::io::stdin()));
        return open_input("standard input".to_owned(), input, reading, None);
    }
    let cpus = cpu_files(path);
    let name = path.display().to_string();
    if !cpus.is_empty() {
        return open_cpus(name, &cpus, reading.skip_bad);
    }
    let file = File::open(path).map_err(|e| TraceError::io(&name, e))?;
    let bytes = Box::new(BufReader::with_capacity(BUFFER_BYTES, file));
    open_input(name, bytes, reading, Some(path.to_owned()))
}

/// The recording of all CPUs: those between them that have no file were off, or their files are lost.
fn open_cpus(name: String, cpus: &[(u32, PathBuf)], skip_bad: bool) -> Result<OpenTrace, TraceError> {
    let damage = Damage::default();
    let inputs: Result<Vec<Input>, TraceError> = cpus.iter().map(|(_, file)| plain(file, &damage)).collect();
    let last = cpus.last().map_or(0, |&(cpu, _)| cpu);
    let missing = |cpu: &u32| !cpus.iter().any(|(there, _)| there == cpu);
    let lacking: Vec<String> =
        (0..last).filter(missing).take(LISTED_MAX).map(|cpu| format!("{name}.blktrace.{cpu}")).collect();
    let guessed = (!lacking.is_empty()).then(|| {
        format!("there is no {}: what these CPUs did, if they were on, is missing", lacking.join(", "))
    });
    let source = blktrace::read_merged(inputs?);
    let checked =
        Checked::new(name, &blktrace::FORMAT, source, guessed.into_iter().collect(), damage, skip_bad);
    Ok(OpenTrace { format: &blktrace::FORMAT, reader: Box::new(checked) })
}

/// The files of blktrace for each CPU, where there is no file of this name itself. A CPU that was off has none.
pub(crate) fn cpu_files(path: &Path) -> Vec<(u32, PathBuf)> {
    let Some(name) = path.file_name().filter(|_| !path.exists()) else { return Vec::new() };
    let mut prefix = name.to_owned();
    prefix.push(".blktrace.");
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let cpu = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let number = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes())?;
        let number = std::str::from_utf8(number).ok()?.split('.').next()?.parse().ok()?;
        Some((number, entry.path()))
    };
    let mut files: Vec<(u32, PathBuf)> =
        std::fs::read_dir(directory).into_iter().flatten().flatten().filter_map(cpu).collect();
    files.sort_unstable();
    files
}

fn plain(path: &Path, damage: &Damage) -> Result<Input, TraceError> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|e| TraceError::io(&name, e))?;
    let bytes = decompressed(&name, Box::new(BufReader::with_capacity(BUFFER_BYTES, file)), damage)?;
    Ok(Input { name, bytes, damage: damage.clone() })
}

/// That this is the file of one CPU, where there are others.
fn one_of_cpus(path: &Path) -> Option<String> {
    let (stem, number) = path.to_str()?.rsplit_once(".blktrace.")?;
    let others = cpu_files(Path::new(stem)).len().checked_sub(1).filter(|&others| others > 0)?;
    Some(format!("only what CPU {number} did was read; of all CPUs ({others} more): name {stem}"))
}

/// Opens a trace from any stream of bytes.
pub fn open_input(
    name: String,
    bytes: Box<dyn BufRead>,
    reading: &Reading,
    path: Option<PathBuf>,
) -> Result<OpenTrace, TraceError> {
    let damage = Damage::default();
    let mut bytes = decompressed(&name, bytes, &damage)?;
    let mut notes: Vec<String> = path.as_deref().and_then(one_of_cpus).into_iter().collect();
    let mut head = Vec::new();
    let read = Read::take(&mut bytes, HEAD_BYTES as u64).read_to_end(&mut head);
    read.map_err(|e| TraceError::io(&name, e))?;
    if let Some(what) = head.is_empty().then(|| damage.take()).flatten() {
        return Err(TraceError::CutOff { file: name, what });
    }
    if head.starts_with(BYTE_ORDER_MARK) {
        head.drain(..BYTE_ORDER_MARK.len());
    }
    let format = match (reading.format, &reading.columns) {
        (Some(format), _) => format,
        (None, Some(_)) => &CSV,
        (None, None) => {
            let format = recognise(&name, &head)?;
            notes.extend(format.guess.map(|guess| format!("taken for {}: {guess}", format.name)));
            format
        }
    };
    let bytes = Box::new(std::io::Cursor::new(head).chain(bytes));
    let input = Input { name: name.clone(), bytes, damage: damage.clone() };
    let source = match &reading.columns {
        Some(columns) => table::open_columns(input, columns)?,
        None => (format.read)(input)?,
    };
    let reader = Box::new(Checked::new(name, format, source, notes, damage, reading.skip_bad));
    Ok(OpenTrace { format, reader })
}

/// Tells what a reader cannot: what was guessed, that the bytes ended too early, that there was nothing. Leaves out what is wrong: a
/// few lines, or all with `skip_bad`.
struct Checked {
    name: String,
    format: &'static Format,
    source: Box<dyn ReadTrace>,
    guessed: Vec<String>,
    damage: Damage,
    skip_bad: bool,
    given: u64,
    bad: u64,
    /// The first ones that are wrong.
    quoted: Vec<String>,
    cut_off: Option<String>,
}

impl Checked {
    const fn new(
        name: String,
        format: &'static Format,
        source: Box<dyn ReadTrace>,
        guessed: Vec<String>,
        damage: Damage,
        skip_bad: bool,
    ) -> Checked {
        let quoted = Vec::new();
        Checked { name, format, source, guessed, damage, skip_bad, given: 0, bad: 0, quoted, cut_off: None }
    }

    /// Counts a record that is wrong, or fails with it.
    fn leave_out(&mut self, error: TraceError) -> Result<(), TraceError> {
        let Some((unit, text)) = error.of_one_record() else { return Err(error) };
        // Of a binary file more may be wrong than can be seen.
        if !(self.skip_bad || unit == Unit::Line) {
            return Err(error);
        }
        self.bad += 1;
        if self.quoted.len() < QUOTED_MAX {
            self.quoted.push(text);
        }
        if self.bad > BAD_EARLY { self.check_share() } else { Ok(()) }
    }

    /// Fails if more is wrong than one would overlook.
    fn check_share(&self) -> Result<(), TraceError> {
        let lines = self.given + self.bad;
        let few = self.bad == 1 && self.given > 0 || self.bad * LINES_A_BAD_ONE <= lines;
        if self.skip_bad || few {
            return Ok(());
        }
        let (file, first) = (self.name.clone(), self.quoted.join("; "));
        Err(TraceError::TooManyBad { file, bad: self.bad, lines, first })
    }
}

impl ReadTrace for Checked {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            match self.source.next_record() {
                Ok(None) => break,
                Ok(record) => {
                    self.given += 1;
                    return Ok(record);
                }
                Err(error) => self.leave_out(error)?,
            }
        }
        if let Some(what) = self.damage.take() {
            let error = TraceError::CutOff { file: self.name.clone(), what };
            if !self.skip_bad {
                return Err(error);
            }
            self.cut_off = Some(error.to_string());
        }
        self.check_share()?;
        if self.given == 0 {
            let (file, format) = (self.name.clone(), self.format.name);
            return Err(TraceError::Nothing { file, format, left_out: self.source.note() });
        }
        Ok(None)
    }

    fn note(&self) -> Option<String> {
        // Where nothing was given, the error says what the source left out.
        let left_out = self.source.note().filter(|_| self.given > 0);
        let bad = (self.bad > 0)
            .then(|| format!("{} bad records left out; the first: {}", self.bad, self.quoted.join("; ")));
        let told = left_out.into_iter().chain(bad).chain(self.cut_off.clone());
        let notes: Vec<String> = self.guessed.iter().cloned().chain(told).collect();
        (!notes.is_empty()).then(|| format!("{}: {}", self.name, notes.join("; ")))
    }
}

/// The bytes themselves.
fn decompressed(
    name: &str,
    mut bytes: Box<dyn BufRead>,
    damage: &Damage,
) -> Result<Box<dyn BufRead>, TraceError> {
    let buffered = |reader: Box<dyn Read>| -> Box<dyn BufRead> {
        let good = GoodPart { reader, damage: damage.clone(), ended: false };
        Box::new(BufReader::with_capacity(BUFFER_BYTES, good))
    };
    let magic = bytes.fill_buf().map_err(|e| TraceError::io(name, e))?;
    Ok(match magic {
        [0x1f, 0x8b, ..] => buffered(Box::new(flate2::bufread::MultiGzDecoder::new(bytes))),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let decoder = zstd::stream::read::Decoder::with_buffer(bytes);
            buffered(Box::new(decoder.map_err(|e| TraceError::io(name, e))?))
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            buffered(Box::new(liblzma::bufread::XzDecoder::new_multi_decoder(bytes)))
        }
        [4, 0x22, 0x4d, 0x18, ..] => buffered(Box::new(Lz4(lz4_flex::frame::FrameDecoder::new(bytes)))),
        [b'P', b'K', 3, 4, ..] => {
            let file =
                |e: std::io::Error| TraceError::Unreadable { file: name.to_owned(), what: e.to_string() };
            buffered(Box::new(crate::zip::open(bytes).map_err(file)?))
        }
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => buffered(Box::new(bzip2::bufread::MultiBzDecoder::new(bytes))),
        _ => bytes,
    })
}

/// Reads one frame of lz4 after another.
struct Lz4(lz4_flex::frame::FrameDecoder<Box<dyn BufRead>>);

impl Read for Lz4 {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let read = self.0.read(buffer)?;
            if read > 0 || buffer.is_empty() || self.0.get_mut().fill_buf()?.is_empty() {
                return Ok(read);
            }
        }
    }
}

/// Compressed data up to where it is damaged or cut off: an end, and a word for the one who asks.
struct GoodPart {
    reader: Box<dyn Read>,
    damage: Damage,
    ended: bool,
}

impl Read for GoodPart {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.ended {
            return Ok(0);
        }
        match self.reader.read(buffer) {
            // What the operating system says is no matter of the data.
            Err(e) if e.raw_os_error().is_none() && e.kind() != ErrorKind::Interrupted => {
                self.damage.note(e.to_string());
                self.ended = true;
                Ok(0)
            }
            read => read,
        }
    }
}

/// Creates a trace; `-` is standard output. A name that ends in `.gz` or `.zst` is compressed. `inputs`: what it is made of.
pub fn create(
    path: &Path,
    format: &'static Format,
    inputs: &Inputs,
) -> Result<Box<dyn crate::WriteTrace>, TraceError> {
    let failed = |e| TraceError::io(&path.display().to_string(), e);
    // Before the file is touched.
    if format.write.is_none() {
        writer(format, Box::new(std::io::sink()))?;
    }
    if path == Path::new("-") {
        inputs.check(path)?;
        return writer(format, Box::new(BufWriter::with_capacity(BUFFER_BYTES, std::io::stdout())));
    }
    let file = BufWriter::with_capacity(BUFFER_BYTES, inputs.create(path)?);
    let out: Box<dyn Write> = match path.extension().and_then(|e| e.to_str()) {
        Some("gz") => {
            let encoder = flate2::write::GzEncoder::new(file, flate2::Compression::default());
            Box::new(BufWriter::with_capacity(BUFFER_BYTES, encoder))
        }
        Some("zst") => {
            // Its own default level; dropping it ends the frame.
            let encoder = zstd::stream::write::Encoder::new(file, 0).map_err(failed)?.auto_finish();
            Box::new(BufWriter::with_capacity(BUFFER_BYTES, encoder))
        }
        _ => Box::new(file),
    };
    writer(format, out)
}
/// The files that a trace is read from: itself, or those of all CPUs.
pub fn inputs_of_trace(path: &Path) -> Vec<PathBuf> {
    let cpus = cpu_files(path);
    if cpus.is_empty() { vec![path.to_owned()] } else { cpus.into_iter().map(|(_, file)| file).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::read_reader;

    fn opened(bytes: Vec<u8>, skip_bad: bool) -> Result<usize, String> {
        let reading = Reading { skip_bad, ..Reading::default() };
        let mut trace = open_input("test".to_owned(), Box::new(std::io::Cursor::new(bytes)), &reading, None)
            .map_err(|e| e.to_string())?;
        read_reader(&mut *trace.reader).map(|records| records.len()).map_err(|e| e.to_string())
    }

    #[test]
    fn lz4_and_zip_are_read_and_an_end_that_is_missing_is_told() {
        let text: String = (0..50_000).map(|n| format!("0,{},512,R,{n}.0\n", n * 7919 % 99_991)).collect();
        let blocks = lz4_flex::frame::FrameInfo::new().block_size(lz4_flex::frame::BlockSize::Max64KB);
        let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(blocks, Vec::new());
        encoder.write_all(text.as_bytes()).unwrap();
        let lz4 = encoder.finish().unwrap();
        let zip = crate::zip::archive(&[("a.spc", text.as_bytes())], 8, true);
        for whole in [lz4.clone(), zip.clone()] {
            assert_eq!(opened(whole.clone(), false), Ok(50_000));
            let cut = whole[..whole.len() * 3 / 4].to_vec();
            let refused = opened(cut.clone(), false).unwrap_err();
            assert!(refused.contains("damaged or was cut off"), "{refused}");
            let good = opened(cut, true).unwrap();
            assert!(good > 10_000 && good < 50_000, "{good}");
        }
        assert!(opened(lz4[..200].to_vec(), false).unwrap_err().contains("damaged or was cut off"));
        assert_eq!(opened([lz4.clone(), lz4].concat(), false), Ok(100_000), "two frames");
        let two = crate::zip::archive(&[("a.spc", text.as_bytes()), ("b.spc", b"")], 8, true);
        assert!(opened(two.clone(), false).unwrap_err().contains("several files"));
        assert_eq!(opened(two, true), Ok(50_000));
        let mut tar = vec![0; 512];
        tar[..5].copy_from_slice(b"a.csv");
        tar[257..262].copy_from_slice(b"ustar");
        assert!(opened(tar, false).unwrap_err().contains("tar -xOf"));
    }
}
