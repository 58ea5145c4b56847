//! Counts what a client sends, frame by frame, beside `h2`, which answers some kinds of frames without telling anyone.

use std::time::{Duration, Instant};

const CLIENT_PREFACE_BYTES: usize = 24;
const HEADER_BYTES: usize = 9;
const FLAG_ACK: u8 = 0x1;
const FLAG_END_STREAM: u8 = 0x1;
const FLAG_END_HEADERS: u8 = 0x4;
const PING_STRIKES_MAX: u32 = 2;
/// What a call, a frame of data and so many written bytes justify.
const CREDIT_OF_CALL: i64 = 4;
const CREDIT_OF_DATA: i64 = 2;
const WRITTEN_BYTES_PER_CREDIT: usize = 4096;
const RESETS_REMEMBERED_MAX: usize = 10_000;

mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RST_STREAM: u8 = 3;
    pub const PING: u8 = 6;
    pub const CONTINUATION: u8 = 9;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abuse {
    Pings,
    ControlFrames,
    RapidResets,
}

/// A bucket of tokens that refills by a tenth of its size per second.
pub struct Bucket {
    size: i64,
    tokens: i64,
    filled: Instant,
}

impl Bucket {
    pub fn new(size: u32, now: Instant) -> Self {
        Self { size: i64::from(size), tokens: i64::from(size), filled: now }
    }

    /// False: there was none left.
    pub fn take(&mut self, now: Instant) -> bool {
        let per_token = Duration::from_secs(10).as_nanos() / u128::from(self.size.max(1).unsigned_abs());
        let new = now.saturating_duration_since(self.filled).as_nanos() / per_token;
        if new > 0 {
            self.give(i64::try_from(new).unwrap_or(i64::MAX));
            self.filled = now;
        }
        self.tokens -= 1;
        self.tokens >= 0
    }

    pub fn give(&mut self, tokens: i64) {
        self.tokens = self.tokens.saturating_add(tokens).min(self.size);
    }
}

pub struct FrameMeter {
    ping_interval_min: Duration,
    calm: Bucket,
    skip: usize,
    header: [u8; HEADER_BYTES],
    header_len: usize,
    last_ping: Option<Instant>,
    ping_strikes: u32,
    frames: u64,
    unfinished_since: Option<Instant>,
    headers_since: Option<Instant>,
    resets: Vec<u32>,
    abuse: Option<Abuse>,
}

impl FrameMeter {
    pub fn new(control_frames_max: u32, ping_interval_min: Duration, now: Instant) -> Self {
        Self {
            ping_interval_min,
            calm: Bucket::new(control_frames_max, now),
            skip: CLIENT_PREFACE_BYTES,
            header: [0; HEADER_BYTES],
            header_len: 0,
            last_ping: None,
            ping_strikes: 0,
            frames: 0,
            unfinished_since: None,
            headers_since: None,
            resets: Vec::new(),
            abuse: None,
        }
    }

    pub fn read(&mut self, mut bytes: &[u8], now: Instant) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            if bytes.is_empty() {
                break;
            }
            let [first, rest @ ..] = bytes else { break };
            if let Some(slot) = self.header.get_mut(self.header_len) {
                *slot = *first;
            }
            self.header_len += 1;
            bytes = rest;
            if self.header_len == HEADER_BYTES {
                self.header_len = 0;
                self.frame(now);
            }
        }
        let is_between_frames = self.skip == 0 && self.header_len == 0;
        self.unfinished_since = if is_between_frames { None } else { Some(self.unfinished_since.unwrap_or(now)) };
    }

    fn frame(&mut self, now: Instant) {
        let [a, b, c, kind, flags, s3, s2, s1, s0] = self.header;
        let size = u32::from_be_bytes([0, a, b, c]) as usize;
        let stream = u32::from_be_bytes([s3 & 0x7f, s2, s1, s0]);
        self.skip = size;
        self.frames += 1;
        self.unfinished_since = None;
        match kind {
            kind::HEADERS => {
                self.calm.give(CREDIT_OF_CALL);
                self.justify_pings();
                self.block_of_headers(flags, now);
            }
            kind::DATA if size > 0 => {
                self.calm.give(CREDIT_OF_DATA);
                self.justify_pings();
            }
            // How many clients end a stream.
            kind::DATA if flags & FLAG_END_STREAM != 0 => {}
            kind::CONTINUATION => {
                self.block_of_headers(flags, now);
                self.control_frame(now);
            }
            kind::RST_STREAM => {
                // Whoever owns the calls says whether it came too fast.
                if self.resets.len() < RESETS_REMEMBERED_MAX {
                    self.resets.push(stream);
                } else {
                    self.abuse = Some(Abuse::RapidResets);
                }
            }
            kind::PING => {
                if flags & FLAG_ACK == 0 {
                    self.ping(now);
                }
                self.control_frame(now);
            }
            _ => self.control_frame(now),
        }
    }

    fn block_of_headers(&mut self, flags: u8, now: Instant) {
        self.headers_since = if flags & FLAG_END_HEADERS != 0 { None } else { Some(self.headers_since.unwrap_or(now)) };
    }

    fn control_frame(&mut self, now: Instant) {
        if !self.calm.take(now) && self.abuse.is_none() {
            self.abuse = Some(Abuse::ControlFrames);
        }
    }

    fn ping(&mut self, now: Instant) {
        let is_too_soon = self.last_ping.is_some_and(|last| now.saturating_duration_since(last) < self.ping_interval_min);
        self.last_ping = Some(now);
        if is_too_soon {
            self.ping_strikes += 1;
            if self.ping_strikes > PING_STRIKES_MAX && self.abuse.is_none() {
                self.abuse = Some(Abuse::Pings);
            }
        }
    }

    /// Data went one way or the other: pings of the client measure its round trip, or keep the way open.
    pub fn justify_pings(&mut self) {
        self.last_ping = None;
        self.ping_strikes = 0;
    }

    pub fn written(&mut self, bytes: usize) {
        self.calm.give(i64::try_from(bytes / WRITTEN_BYTES_PER_CREDIT).unwrap_or(i64::MAX));
    }

    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Since when the client owes the rest of a frame.
    pub fn unfinished_since(&self) -> Option<Instant> {
        self.unfinished_since
    }

    /// Since when the client owes the rest of a block of headers.
    pub fn headers_since(&self) -> Option<Instant> {
        self.headers_since
    }

    pub fn abuse(&self) -> Option<Abuse> {
        self.abuse
    }

    pub fn is_abused_by_resets(&mut self) {
        self.abuse.get_or_insert(Abuse::RapidResets);
    }

    /// Streams that the client has reset since the last call.
    pub fn take_resets(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.resets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend_from_slice(&[kind, flags]);
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(payload);
        bytes
    }

    fn meter(now: Instant) -> FrameMeter {
        let mut meter = FrameMeter::new(100, Duration::from_secs(5), now);
        meter.read(PREFACE, now);
        meter
    }

    #[test]
    fn the_third_ping_that_comes_too_soon_is_abuse() {
        let now = Instant::now();
        let mut meter = meter(now);
        for _ in 0..3 {
            meter.read(&frame(6, 0, 0, &[0; 8]), now);
            assert_eq!(meter.abuse(), None);
        }
        meter.read(&frame(6, 0, 0, &[0; 8]), now);
        assert_eq!(meter.abuse(), Some(Abuse::Pings));
    }

    #[test]
    fn pings_beside_data_and_slow_pings_are_fine() {
        let mut now = Instant::now();
        let mut meter = meter(now);
        for _ in 0..50 {
            meter.read(&frame(6, 0, 0, &[0; 8]), now);
            meter.read(&frame(0, 0, 1, b"data"), now);
        }
        for _ in 0..50 {
            now += Duration::from_secs(5);
            meter.read(&frame(6, 0, 0, &[0; 8]), now);
        }
        assert_eq!(meter.abuse(), None);
    }

    #[test]
    fn frames_without_content_are_abuse_above_the_limit_and_not_over_time() {
        for kind in [0, 4, 8, 9, 2, 77] {
            let mut now = Instant::now();
            let mut meter = meter(now);
            for _ in 0..1_000 {
                now += Duration::from_millis(100);
                meter.read(&frame(kind, 4, 1, b""), now);
            }
            assert_eq!(meter.abuse(), None, "kind {kind}");
            for _ in 0..101 {
                meter.read(&frame(kind, 4, 1, b""), now);
            }
            assert_eq!(meter.abuse(), Some(Abuse::ControlFrames), "kind {kind}");
        }
    }

    #[test]
    fn calls_justify_control_frames() {
        let now = Instant::now();
        let mut meter = meter(now);
        for stream in 0..10_000 {
            meter.read(&frame(1, 5, 2 * stream + 1, b"headers"), now);
            meter.read(&frame(8, 0, 0, &[0, 0, 1, 0]), now);
            meter.read(&frame(8, 0, 2 * stream + 1, &[0, 0, 1, 0]), now);
        }
        assert_eq!(meter.abuse(), None);
    }

    #[test]
    fn blocks_of_headers_and_frames_that_do_not_end_are_dated() {
        let start = Instant::now();
        let mut meter = meter(start);
        meter.read(&frame(1, 0, 1, b"begin"), start);
        let later = start + Duration::from_secs(1);
        meter.read(&frame(9, 0, 1, b"more"), later);
        assert_eq!(meter.headers_since(), Some(start));
        meter.read(&frame(9, 4, 1, b"end"), later);
        assert_eq!(meter.headers_since(), None);
        assert_eq!(meter.unfinished_since(), None);
        meter.read(&[0, 0, 9, 0], start);
        meter.read(&[0], later);
        assert_eq!(meter.unfinished_since(), Some(start));
    }

    proptest! {
        #[test]
        fn counts_do_not_depend_on_how_bytes_are_cut(
            frames in proptest::collection::vec((0u8..12, any::<u8>(), 0u32..100, proptest::collection::vec(any::<u8>(), 0..40)), 0..30),
            cuts in proptest::collection::vec(1usize..50, 1..30),
        ) {
            let now = Instant::now();
            let bytes: Vec<u8> = frames.iter().flat_map(|(kind, flags, stream, payload)| frame(*kind, *flags, *stream, payload)).collect();
            let mut whole = meter(now);
            whole.read(&bytes, now);
            let mut cut = meter(now);
            let (mut rest, mut turn) = (&bytes[..], 0);
            while !rest.is_empty() {
                let count = cuts[turn % cuts.len()].min(rest.len());
                turn += 1;
                cut.read(&rest[..count], now);
                rest = &rest[count..];
            }
            prop_assert_eq!(whole.frames(), frames.len() as u64);
            prop_assert_eq!(cut.frames(), whole.frames());
            prop_assert_eq!(cut.abuse(), whole.abuse());
            prop_assert_eq!(cut.headers_since(), whole.headers_since());
            prop_assert_eq!(cut.unfinished_since(), None);
            prop_assert_eq!(cut.take_resets(), whole.take_resets());
        }
    }
}
