//! Files that commands write. A mistyped name must destroy neither the command's input nor a disk. So a result overwrites neither,
//! under whatever name the user reaches it (a hard or symbolic link, a bind mount).

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Why a result cannot be written where the user wants it.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    #[error("{output} is the same file as {input}, which is read: name another file")]
    Input { output: String, input: String },
    #[error("{output}: it is a block device: name a file")]
    BlockDevice { output: String },
    #[error("{output}: is not a regular file: choose another name")]
    NoFile { output: String },
    #[error("{output}: is written by another server: choose another name")]
    Busy { output: String },
    #[error("{output}: is neither empty nor a trace: choose another name, or remove it")]
    NoTrace { output: String },
    #[error("{output}: {source}")]
    Io { output: String, source: io::Error },
}

/// Device and inode of a file. Names and mounts do not matter.
type FileIdentity = (u64, u64);

/// Files that a command reads. No result of the command may overwrite them.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    files: Vec<(String, FileIdentity)>,
}

/// Only a plain file is emptied by a writer; a terminal or a pipe is read and written at once.
fn identity(metadata: &Metadata) -> Option<FileIdentity> {
    metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
}

fn of_descriptor(descriptor: BorrowedFd<'_>) -> io::Result<Metadata> {
    File::from(descriptor.try_clone_to_owned()?).metadata()
}

impl Inputs {
    pub fn new<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Inputs {
        let mut inputs = Inputs::default();
        for path in paths {
            inputs.add(path.as_ref());
        }
        inputs
    }

    /// `-` is standard input. A missing file cannot be lost.
    pub fn add(&mut self, path: &Path) {
        let (name, metadata) = match path == Path::new("-") {
            true => ("standard input".to_owned(), of_descriptor(io::stdin().as_fd())),
            false => (path.display().to_string(), std::fs::metadata(path)),
        };
        if let Some(identity) = metadata.ok().and_then(|metadata| identity(&metadata)) {
            self.files.push((name, identity));
        }
    }

    /// Refuses a result that would overwrite an input or a disk, or that cannot be written. A long run asks this before its work; an
    /// existing file is kept until there is a result to replace it.
    pub fn check(&self, output: &Path) -> Result<(), OutputError> {
        if output == Path::new("-") {
            let metadata = of_descriptor(io::stdout().as_fd());
            return metadata.map_or(Ok(()), |it| self.check_opened("standard output".to_owned(), &it));
        }
        let name = output.display().to_string();
        let written = match std::fs::metadata(output) {
            Ok(metadata) => {
                self.check_opened(name.clone(), &metadata)?;
                output
            }
            Err(_) => match output.parent() {
                Some(parent) if parent != Path::new("") => parent,
                _ => Path::new("."),
            },
        };
        rustix::fs::access(written, rustix::fs::Access::WRITE_OK)
            .map_err(|source| OutputError::Io { output: name, source: source.into() })
    }

    fn check_opened(&self, output: String, metadata: &Metadata) -> Result<(), OutputError> {
        if metadata.file_type().is_block_device() {
            return Err(OutputError::BlockDevice { output });
        }
        let identity = identity(metadata);
        match self.files.iter().find(|(_, input)| Some(*input) == identity) {
            Some((input, _)) => Err(OutputError::Input { output, input: input.clone() }),
            None => Ok(()),
        }
    }

    /// Opens a file for a result. The file is emptied only once it is known not to be an input.
    pub fn create(&self, output: &Path) -> Result<File, OutputError> {
        self.check(output)?;
        let name = output.display().to_string();
        let failed = |source| OutputError::Io { output: name.clone(), source };
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(output).map_err(failed)?;
        // The name may lead to another file by now.
        let metadata = file.metadata().map_err(failed)?;
        self.check_opened(name.clone(), &metadata)?;
        if metadata.is_file() {
            file.set_len(0).map_err(failed)?;
        }
        Ok(file)
    }

    /// Writes a whole result.
    pub fn write(&self, output: &Path, content: impl AsRef<[u8]>) -> Result<(), OutputError> {
        let written = self.create(output)?.write_all(content.as_ref());
        written.map_err(|source| OutputError::Io { output: output.display().to_string(), source })
    }
}
