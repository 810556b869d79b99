//! NBD on both sides under any bytes. As tests each takes a second, or `BOLERO_RANDOM_TEST_TIME_MS`; for hours, with a nightly compiler
//! and cargo-bolero: `cargo bolero test -p dcd-serve nbd_bytes::a_client_that_sends_anything_stays_within_its_disk`.

mod nbd_answers;
mod nbd_bytes;
mod nbd_requests;
