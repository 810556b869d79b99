//! Stack files: one TOML file describes a tree of layers over devices, to serve or to simulate.
