//! A stack file as the commands work with it: with the options of its start, and its open devices.

use std::ops::Deref;
use std::path::Path;
use std::rc::Rc;

use dcd_stack::{Asked, StackFile};

use crate::failure::Failure;
use crate::session::devices::{HeldDevices, Purpose};

/// See the module's documentation.
#[derive(Clone)]
pub struct Site {
    pub file: StackFile,
    pub asked: Asked,
    held: Option<Rc<HeldDevices>>,
}

impl Site {
    /// Keeps the devices open and locked from their first look on, unless that is so already. `purpose`: of the start that takes them.
    pub fn hold(&mut self, purpose: Purpose) {
        self.held = Some(self.held(purpose));
    }

    /// Closes the devices that no start has taken.
    pub fn release(&mut self) {
        self.held = None;
    }

    pub fn held(&self, purpose: Purpose) -> Rc<HeldDevices> {
        self.held.clone().unwrap_or_else(|| Rc::new(HeldDevices::new(purpose)))
    }

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
        Site { file, asked: Asked::default(), held: None }
    }
}

impl Deref for Site {
    type Target = StackFile;

    fn deref(&self) -> &StackFile {
        &self.file
    }
}
