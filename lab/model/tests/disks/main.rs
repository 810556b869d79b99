//! The modelled disks beside what was measured of real ones.

mod common;
mod components;
mod layer;
mod physics;
mod stack_kind;
mod validation;
mod write_back;
