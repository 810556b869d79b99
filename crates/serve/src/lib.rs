//! Front-ends: NBD and FUSE, and the control socket.
