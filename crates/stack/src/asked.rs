//! Options of a start: they come from a command, and not from the stack file.

use dcd_engine::log_cache::LogCacheConfig;
use dcd_engine::raid::RaidConfig;

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Identity of this machine: a log records which machine serves it. None if it does not matter: writes stay in RAM, or time is
    /// virtual.
    pub machine: Option<u64>,
    /// Lets log caches start although acknowledged records of their logs are damaged.
    pub accept_damage: bool,
    /// Lets arrays start although their journals are lost, or although their parity is in doubt and members are missing.
    pub accept_doubt: bool,
    /// Lets log caches start although another machine has served their logs last, and has not stopped them.
    pub take_over: bool,
    /// Lets arrays start although members are missing that are not known to have failed.
    pub degraded_members: bool,
    /// Lets mirrored logs start although legs are missing that are not known to have failed.
    pub degraded_legs: bool,
    /// Lets logs of several data disks start although some of these are missing.
    pub degraded_disks: bool,
    /// Makes log caches grow to the size of their data disks.
    pub grow: bool,
    /// Makes log caches answer a write only when it survives a kill of the server.
    pub outlive_server: bool,
    /// Treats all RAM as volatile, whatever the layers declare: for a process that relies on flushes.
    pub volatile: bool,
    /// Stops arrays from beginning a resync or a rebuild, and mirrors from filling legs: for commands that only inspect.
    pub only_looks: bool,
    /// Log caches that forget their clean copies.
    pub doubt_kept: Vec<String>,
}

impl Asked {
    pub(crate) fn of_log_cache(&self, name: &str, config: &LogCacheConfig) -> LogCacheConfig {
        LogCacheConfig {
            machine: self.machine.unwrap_or_default(),
            take_over: self.take_over || self.machine.is_none(),
            accept_damage: self.accept_damage,
            grow: self.grow,
            outlives_server: self.outlive_server,
            doubt_kept: self.doubt_kept.iter().any(|layer| layer == name),
            ..config.clone()
        }
    }

    pub(crate) fn of_array(&self, config: &RaidConfig) -> RaidConfig {
        RaidConfig {
            accept_damage: self.accept_doubt,
            non_volatile: config.non_volatile && !self.volatile,
            pass_rate: if self.only_looks { 0 } else { config.pass_rate },
            ..config.clone()
        }
    }
}
