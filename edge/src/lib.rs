//! The native edge of liveness: it terminates HTTP/2 and gRPC on a thread of its own and decides nothing.
//!
//! Python takes the calls that have arrived, many at a time, and gives the answers back, many at a time. `python.rs` is the only file
//! that knows of Python.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod answering;
mod connection;
mod frame_meter;
pub mod inbox;
pub mod limits;
pub mod listener;
pub mod message;
pub mod metadata;
pub mod outbox;
#[cfg(feature = "python")]
mod python;
pub mod server;
mod socket;
mod stats;
pub mod status;
mod timeout;
pub mod tls;
