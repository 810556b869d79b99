//! Kinds of layers that other crates bring: modelled disks come from the laboratory, so that the product builds without them.

use std::fmt::Debug;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use dcd_engine::Layer;
use dcd_engine::write_cache::{DiskMap, RegionUnit};

use crate::error::StackFileError;
use crate::fields::Fields;

/// A layer over one thing that a stack file describes, ready to be made.
pub trait RegisteredLayer: Debug + Send + Sync {
    /// The layer over so many sectors, and how many it offers itself.
    fn make(&self, below_sectors: u64) -> (Box<dyn Layer>, u64);

    /// What a write cache above destages together, where this layer knows its tracks and its arm.
    fn disk_map(&self, _unit: RegionUnit) -> Option<DiskMap> {
        None
    }
}

/// Reads the fields of one layer.
pub type ReadKind = fn(&mut Fields<'_>, &Path) -> Result<Arc<dyn RegisteredLayer>, StackFileError>;

/// A kind of layer that a stack file can name once it is registered.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub word: &'static str,
    /// Reads its fields, but for `of`; relative paths are relative to the directory.
    pub read: ReadKind,
    /// Its part of the reference of stack files.
    pub reference: &'static str,
}

static KINDS: RwLock<Vec<Kind>> = RwLock::new(Vec::new());

fn kinds() -> Vec<Kind> {
    KINDS.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Makes a kind known to this process. Nothing changes where it is known already.
pub fn register(kind: Kind) {
    let mut kinds = KINDS.write().unwrap_or_else(PoisonError::into_inner);
    if kinds.iter().all(|known| known.word != kind.word) {
        kinds.push(kind);
    }
}

pub(crate) fn find(word: &str) -> Option<Kind> {
    kinds().into_iter().find(|kind| kind.word == word)
}

pub(crate) fn words() -> impl Iterator<Item = &'static str> {
    kinds().into_iter().map(|kind| kind.word)
}

/// The reference of stack files, as users read it: every field, with its default.
pub fn reference() -> String {
    kinds().iter().fold(crate::reference::REFERENCE.to_owned(), |text, kind| text + "\n" + kind.reference)
}
