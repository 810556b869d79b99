//! The virtual driver, simulated devices with faults, the oracle and the crash explorer.
