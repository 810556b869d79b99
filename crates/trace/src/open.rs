//! Opening a trace: decompression by magic bytes, the format by content, `-` for standard input; and creating one.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::error::TraceError;
use crate::format::{Format, HEAD_BYTES, Input, ReadTrace, recognise, writer};
use crate::formats::blktrace;

/// Large reads: decompression and parsing are what takes time.
const BUFFER_BYTES: usize = 256 << 10;
/// More CPUs than a machine has.
const CPUS_MAX: usize = 4096;

/// A trace that is open, and the format that it has.
pub struct OpenTrace {
    pub format: &'static Format,
    pub reader: Box<dyn ReadTrace>,
}

/// Opens a trace. `format` is what the user says it is; else its content tells. A path that does not exist but has
/// `.blktrace.0` beside it is a blktrace recording of all CPUs.
pub fn open(path: &Path, format: Option<&'static Format>) -> Result<OpenTrace, TraceError> {
    if path == Path::new("-") {
        return open_input(
            "standard input".to_owned(),
            Box::new(BufReader::new(std::io::stdin())),
            format,
            None,
        );
    }
    if !path.exists() && cpu_file(path, 0).exists() {
        let files = (0..CPUS_MAX).map(|cpu| cpu_file(path, cpu)).take_while(|file| file.exists());
        let inputs: Result<Vec<Input>, TraceError> = files.map(|file| plain(&file)).collect();
        return Ok(OpenTrace { format: &blktrace::FORMAT, reader: blktrace::read_merged(inputs?) });
    }
    let name = path.display().to_string();
    let file = File::open(path).map_err(|e| TraceError::io(&name, e))?;
    let bytes = Box::new(BufReader::with_capacity(BUFFER_BYTES, file));
    open_input(name, bytes, format, Some(path.to_owned()))
}

fn cpu_file(path: &Path, cpu: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".blktrace.{cpu}"));
    PathBuf::from(name)
}

fn plain(path: &Path) -> Result<Input, TraceError> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|e| TraceError::io(&name, e))?;
    let bytes = decompressed(&name, Box::new(BufReader::with_capacity(BUFFER_BYTES, file)))?.0;
    Ok(Input { name, bytes, path: None })
}

/// Opens a trace from any stream of bytes.
pub fn open_input(
    name: String,
    bytes: Box<dyn BufRead>,
    format: Option<&'static Format>,
    path: Option<PathBuf>,
) -> Result<OpenTrace, TraceError> {
    let (mut bytes, compressed) = decompressed(&name, bytes)?;
    let path = path.filter(|_| !compressed);
    let mut head = Vec::new();
    let read = Read::take(&mut bytes, HEAD_BYTES as u64).read_to_end(&mut head);
    read.map_err(|e| TraceError::io(&name, e))?;
    let format = match format {
        Some(format) => format,
        None => recognise(&name, &head)?,
    };
    let bytes = Box::new(std::io::Cursor::new(head).chain(bytes));
    Ok(OpenTrace { format, reader: (format.read)(Input { name, bytes, path })? })
}

/// The bytes themselves, and whether they were compressed.
fn decompressed(name: &str, mut bytes: Box<dyn BufRead>) -> Result<(Box<dyn BufRead>, bool), TraceError> {
    fn buffered(reader: impl Read + 'static) -> Box<dyn BufRead> {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, reader))
    }
    let magic = bytes.fill_buf().map_err(|e| TraceError::io(name, e))?;
    let bytes = match magic {
        [0x1f, 0x8b, ..] => buffered(flate2::bufread::MultiGzDecoder::new(bytes)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let decoder = zstd::stream::read::Decoder::with_buffer(bytes);
            buffered(decoder.map_err(|e| TraceError::io(name, e))?)
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            buffered(liblzma::bufread::XzDecoder::new_multi_decoder(bytes))
        }
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => buffered(bzip2::bufread::MultiBzDecoder::new(bytes)),
        _ => return Ok((bytes, false)),
    };
    Ok((bytes, true))
}

/// Creates a trace; `-` is standard output. A name that ends in `.gz` or `.zst` is compressed.
pub fn create(path: &Path, format: &'static Format) -> Result<Box<dyn crate::WriteTrace>, TraceError> {
    let failed = |e| TraceError::io(&path.display().to_string(), e);
    // Before the file is touched.
    if format.write.is_none() {
        writer(format, Box::new(std::io::sink()))?;
    }
    if path == Path::new("-") {
        return writer(format, Box::new(BufWriter::with_capacity(BUFFER_BYTES, std::io::stdout())));
    }
    // A disk has a name that is as short as a file's.
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device()) {
        let path = path.display();
        return Err(TraceError::Other(format!("{path}: it is a block device: name a file for the trace")));
    }
    let file = BufWriter::with_capacity(BUFFER_BYTES, File::create(path).map_err(failed)?);
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
