//! The modelled disks beside what was measured of real ones.

mod common;
mod components;
mod import;
mod layer;
mod measure;
mod phases;
mod physics;
mod stack_kind;
mod validation;
mod write_back;
