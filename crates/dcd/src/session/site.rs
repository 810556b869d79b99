//! A stack file as the commands work with it: with the options of its start.

use std::ops::Deref;
use std::path::Path;

use dcd_stack::{Asked, StackFile};

use crate::failure::Failure;

/// See the module's documentation.
#[derive(Clone)]
pub struct Site {
    pub file: StackFile,
    pub asked: Asked,
}

impl Site {
    pub fn load(path: &Path) -> Result<Site, Failure> {
        Ok(StackFile::load(path)?.into())
    }

    /// Makes a stack of a single device.
    pub fn of_device(path: &Path, read_only: bool) -> Result<Site, Failure> {
        let file = StackFile::of_device(path, read_only);
        file.map(Site::from).map_err(|error| Failure::Failed(error.to_string()))
    }
}

impl From<StackFile> for Site {
    fn from(file: StackFile) -> Site {
        Site { file, asked: Asked::default() }
    }
}

impl Deref for Site {
    type Target = StackFile;

    fn deref(&self) -> &StackFile {
        &self.file
    }
}
