//! Kinds of layers that other crates register. Modelled disks and the write cache in RAM come from the laboratory, so that the
//! product builds without them.

use std::any::Any;
use std::fmt::Debug;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use dcd_engine::Layer;

use crate::error::StackFileError;
use crate::fields::Fields;

/// A part of the stack below a registered layer.
pub struct Below<'a> {
    pub sectors: u64,
    /// The part itself, if it is a registered layer: a layer that knows its type can ask it for more.
    pub layer: Option<&'a (dyn RegisteredLayer + 'static)>,
}

/// Treatment of a registered layer by the rest of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A model of a disk: the layer decides how long operations take, and the device below should take no time.
    ModelledDisk,
    /// A cache: it is drained and stopped, and what it holds is lost with the process.
    Cache { memory_bytes: u64, non_volatile: bool },
}

/// A layer that a stack file describes, ready to be made.
pub trait RegisteredLayer: Any + Debug + Send + Sync {
    /// Makes the layer; returns it with the number of sectors that it offers.
    fn make(&self, below: &[Below<'_>]) -> (Box<dyn Layer>, u64);

    fn role(&self) -> Role;

    /// Returns the layer with volatile RAM, if its file declares it non-volatile.
    fn without_non_volatile(&self) -> Option<Arc<dyn RegisteredLayer>> {
        None
    }
}

/// Reads the fields of one layer.
pub type ReadKind = fn(&mut Fields<'_>, &Path) -> Result<Arc<dyn RegisteredLayer>, StackFileError>;

/// A kind of layer that a stack file can name once it is registered.
#[derive(Clone, Copy, Debug)]
pub struct RegisteredKind {
    pub word: &'static str,
    /// True if the field `of` names a list of parts, false if it names a single part.
    pub on_several: bool,
    /// Reads its fields, but for `of`; relative paths are relative to the directory.
    pub read: ReadKind,
    /// Section of this kind in the reference of stack files.
    pub reference: &'static str,
}

static KINDS: RwLock<Vec<RegisteredKind>> = RwLock::new(Vec::new());

fn kinds() -> Vec<RegisteredKind> {
    KINDS.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Makes a kind known to this process, unless it is known already.
pub fn register(kind: RegisteredKind) {
    let mut kinds = KINDS.write().unwrap_or_else(PoisonError::into_inner);
    if kinds.iter().all(|known| known.word != kind.word) {
        kinds.push(kind);
    }
}

pub(crate) fn find(word: &str) -> Option<RegisteredKind> {
    kinds().into_iter().find(|kind| kind.word == word)
}

pub(crate) fn words() -> impl Iterator<Item = &'static str> {
    kinds().into_iter().map(|kind| kind.word)
}

/// The reference of stack files, as users read it: every field, with its default.
pub fn reference() -> String {
    kinds().iter().fold(crate::reference::product_reference(), |text, kind| text + "\n" + kind.reference)
}
