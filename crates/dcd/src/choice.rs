//! Which log cache of a stack file a command is about.

use std::path::{Path, PathBuf};

use dcd_stack::{LayerKind, StackFile};

use crate::failure::Failure;
use crate::on_array::{array_below, stands_on_a_cache};

/// One log cache of a stack file.
pub struct Choice {
    pub file: StackFile,
    pub layer: String,
    pub log: String,
    pub data: String,
}

impl Choice {
    /// The log cache called `layer`, or the only one.
    pub fn load(path: &Path, layer: Option<&str>) -> Result<Choice, Failure> {
        Choice::of(StackFile::load(path)?, layer)
    }

    pub fn of(file: StackFile, layer: Option<&str>) -> Result<Choice, Failure> {
        let path = file.path.clone();
        let names: Vec<&str> = file.log_caches().map(|layer| layer.name.as_str()).collect();
        let name = match (layer, names.as_slice()) {
            (_, []) => {
                return Err(Failure::Failed(format!(
                    "{}: there is no log-cache layer in it{}",
                    path.display(),
                    match file.arrays().next() {
                        Some(_) => "; \"dcd array status\", \"assemble\" and \"scrub\" look at an array",
                        None => "",
                    }
                )));
            }
            (None, [only]) => only,
            (None, _) => {
                let names = names.join(", ");
                let text =
                    format!("{}: it has several log caches; choose with --layer: {names}", path.display());
                return Err(Failure::Failed(text));
            }
            (Some(wanted), _) => names.iter().find(|name| **name == wanted).ok_or_else(|| {
                let names = names.join(", ");
                Failure::Failed(format!(
                    "{}: no log cache is called \"{wanted}\"; it has {names}",
                    path.display()
                ))
            })?,
        };
        let name = (*name).to_owned();
        match &file.layer(&name).expect("it is one of the file's").kind {
            LayerKind::LogCache { log, data, .. } => {
                let (log, data) = (log.text.clone(), data.text.clone());
                Ok(Choice { file, layer: name, log, data })
            }
            _ => unreachable!("log_caches gives log caches"),
        }
    }

    /// True where log or data disk are on another log cache: they cannot be looked at without serving that. An array can: it has an
    /// id, and who has that is read without changing anything.
    pub fn stands_on_a_cache(&self) -> bool {
        stands_on_a_cache(&self.file, &self.log)
            || (stands_on_a_cache(&self.file, &self.data) && array_below(&self.file, &self.data).is_none())
    }

    /// True where the data disk is an array, or lies on one.
    pub fn is_over_array(&self) -> bool {
        let mut names = vec![self.data.as_str()];
        while let Some(name) = names.pop() {
            let Some(layer) = self.file.layer(name) else { continue };
            if matches!(layer.kind, LayerKind::Raid(_)) {
                return true;
            }
            names.extend(layer.kind.below_names());
        }
        false
    }

    /// As [`Choice::log_name`], for those who read it elsewhere.
    pub fn log_place(&self) -> PathBuf {
        let path = self.file.path_below(&self.log).and_then(|path| std::path::absolute(path).ok());
        path.unwrap_or_else(|| self.log_name())
    }

    /// The log's path, or its name in quotes where it has none: for messages.
    pub fn log_name(&self) -> PathBuf {
        let named = || PathBuf::from(format!("\"{}\"", self.log));
        self.file.path_below(&self.log).map_or_else(named, Path::to_owned)
    }
}
