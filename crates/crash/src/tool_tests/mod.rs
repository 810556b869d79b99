//! Whole stacks in virtual time.

mod conformance;
mod doc_comments;
mod documented_tests;
mod full_stripes;
mod grow;
mod product;
mod store_calibration;
mod type_names;
