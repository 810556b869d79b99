//! The driver with real files, sockets, timers and signals.

mod activation;
mod backup_marks;
mod clients;
mod commanded;
mod common;
mod sources;
mod stopping;
mod timers;
