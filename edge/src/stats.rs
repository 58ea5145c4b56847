//! Counters, read by Python.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        #[derive(Debug, Default)]
        pub struct Stats { $(pub $name: Counter,)* }

        impl Stats {
            pub fn read(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

counters! {
    connections,
    connections_open,
    connections_refused,
    handshakes_failed,
    protocol_errors,
    calls,
    calls_open,
    calls_refused,
    calls_cancelled,
    messages_refused,
    bytes_read,
    bytes_written,
    closed_idle,
    closed_silent,
    closed_slow,
    closed_pings,
    closed_resets,
    closed_control_frames,
    closed_unread,
    answers_unread,
    panics,
}

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn increment(&self) {
        self.add(1);
    }

    pub fn decrement(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
