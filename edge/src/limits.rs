//! What clients may do, and for how long.

use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Limits {
    pub connections_max: usize,
    pub streams_max: u32,
    pub header_bytes_max: u32,
    pub waiting_calls_max: usize,
    pub waiting_bytes_max: usize,
    pub unfinished_bytes_max: usize,
    pub unfinished_bytes_in_all_max: usize,
    pub unread_bytes_max: usize,
    pub unread_bytes_in_all_max: usize,
    pub stream_buffer_bytes: usize,
    pub handshake_timeout: Duration,
    pub message_timeout: Duration,
    pub write_timeout: Duration,
    pub idle_max: Duration,
    pub ping_interval_min: Duration,
    pub keepalive: Duration,
    pub keepalive_timeout: Duration,
    pub rapid_resets_max: u32,
    pub control_frames_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            streams_max: 1_000,
            header_bytes_max: 16 * 1024,
            waiting_calls_max: 10_000,
            waiting_bytes_max: 64 << 20,
            unfinished_bytes_max: 32 << 20,
            unfinished_bytes_in_all_max: 512 << 20,
            unread_bytes_max: 64 << 20,
            unread_bytes_in_all_max: 512 << 20,
            stream_buffer_bytes: 256 << 10,
            handshake_timeout: Duration::from_secs(10),
            message_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            idle_max: Duration::from_secs(300),
            ping_interval_min: Duration::from_secs(5),
            keepalive: Duration::from_secs(60),
            keepalive_timeout: Duration::from_secs(20),
            rapid_resets_max: 2_000,
            control_frames_max: 2_000,
        }
    }
}

impl Limits {
    /// How often connections are looked at: often enough to notice the shortest time-out within a quarter of it.
    pub fn sweep_interval(&self) -> Duration {
        [self.handshake_timeout, self.message_timeout, self.write_timeout, self.idle_max, self.keepalive, self.keepalive_timeout]
            .into_iter()
            .min()
            .map_or(Duration::from_secs(1), |shortest| shortest / 4)
            .clamp(Duration::from_millis(10), Duration::from_secs(1))
    }
}
