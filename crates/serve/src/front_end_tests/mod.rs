//! The front-ends with real clients, and by every byte of their protocols.

mod block_devices;
mod common;
mod control_socket;
mod fuse_image;
mod nbd_clients;
mod nbd_protocol;
mod nbd_tls;
mod vhost_user;
