//! What waits for Python: calls, messages and cancellations, in the order in which they arrived.

use std::any::Any;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;

use crate::metadata::Metadata;

/// What a call costs beside its message.
const EVENT_BYTES: usize = 256;

/// The metadata of all calls of a connection that sent the same.
pub struct HeaderBlock {
    pub metadata: Metadata,
    pub peer: Arc<str>,
    pub connection: u64,
    pub certificate: Option<Arc<[u8]>>,
    /// The object that Python sees, made when the first call is taken.
    pub seen: OnceLock<Box<dyn Any + Send + Sync>>,
}

pub struct Head {
    /// The method's place in its list, or -1.
    pub method: i64,
    /// The path of a method that is in no list.
    pub path: Option<Arc<str>>,
    pub headers: Arc<HeaderBlock>,
    pub deadline: Option<Instant>,
}

pub enum Event {
    Call { id: u64, head: Head, message: Bytes },
    Open { id: u64, head: Head },
    Message { id: u64, message: Bytes },
    HalfClose { id: u64 },
    Cancel { id: u64 },
    Writable { id: u64 },
}

impl Event {
    fn bytes(&self) -> usize {
        match self {
            Self::Call { message, .. } | Self::Message { message, .. } => EVENT_BYTES + message.len(),
            _ => EVENT_BYTES,
        }
    }
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<Event>,
    bytes: usize,
    /// Readers of sockets that wait until Python has taken enough.
    stalled: Vec<Waker>,
}

pub struct Inbox {
    waiting: Mutex<Waiting>,
    is_full: AtomicBool,
    failure: Mutex<Option<String>>,
    events_max: usize,
    bytes_max: usize,
    signal: Mutex<Option<Signal>>,
}

/// What a selector watches: one end is readable while something waits.
struct Signal {
    readable: UnixStream,
    writable: UnixStream,
}

impl Inbox {
    pub fn new(events_max: usize, bytes_max: usize) -> io::Result<Self> {
        let (readable, writable) = UnixStream::pair()?;
        readable.set_nonblocking(true)?;
        writable.set_nonblocking(true)?;
        Ok(Self {
            waiting: Mutex::default(),
            is_full: AtomicBool::new(false),
            failure: Mutex::default(),
            events_max,
            bytes_max,
            signal: Mutex::new(Some(Signal { readable, writable })),
        })
    }

    /// -1 after `close`.
    pub fn fd(&self) -> RawFd {
        lock(&self.signal).as_ref().map_or(-1, |signal| signal.readable.as_raw_fd())
    }

    /// Give the descriptors back to the system; Python may keep the edge for longer.
    pub fn close(&self) {
        lock(&self.signal).take();
    }

    /// Leaves `events` empty. What one turn of a connection has read becomes visible at once.
    pub fn publish(&self, events: &mut Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let mut waiting = lock(&self.waiting);
        let was_empty = waiting.events.is_empty();
        waiting.bytes += events.iter().map(Event::bytes).sum::<usize>();
        waiting.events.extend(events.drain(..));
        if waiting.events.len() >= self.events_max || waiting.bytes >= self.bytes_max {
            self.is_full.store(true, Ordering::Relaxed);
        }
        drop(waiting);
        if was_empty {
            self.wake();
        }
    }

    /// At most `events_max` events.
    pub fn take(&self, events_max: usize) -> VecDeque<Event> {
        let mut scrap = [0u8; 64];
        // Clear the signal first: whatever comes after this finds the queue empty, or is taken below.
        if let Some(signal) = lock(&self.signal).as_mut() {
            while matches!(signal.readable.read(&mut scrap), Ok(count) if count == scrap.len()) {}
        }
        let mut waiting = lock(&self.waiting);
        let (taken, is_rest) = if waiting.events.len() <= events_max {
            waiting.bytes = 0;
            (std::mem::take(&mut waiting.events), false)
        } else {
            let rest = waiting.events.split_off(events_max);
            let taken = std::mem::replace(&mut waiting.events, rest);
            waiting.bytes = waiting.bytes.saturating_sub(taken.iter().map(Event::bytes).sum());
            (taken, true)
        };
        let has_room = waiting.events.len() <= self.events_max / 2 && waiting.bytes <= self.bytes_max / 2;
        let stalled =
            if has_room && self.is_full.swap(false, Ordering::Relaxed) { std::mem::take(&mut waiting.stalled) } else { Vec::new() };
        drop(waiting);
        if is_rest {
            self.wake();
        }
        for waker in stalled {
            waker.wake();
        }
        taken
    }

    /// True: too much waits; `waker` is called when there is room again.
    pub fn stalls(&self, waker: &Waker) -> bool {
        if !self.is_full.load(Ordering::Relaxed) {
            return false;
        }
        let mut waiting = lock(&self.waiting);
        let is_full = self.is_full.load(Ordering::Relaxed);
        if is_full && !waiting.stalled.iter().any(|other| other.will_wake(waker)) {
            waiting.stalled.push(waker.clone());
        }
        is_full
    }

    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    pub fn fail(&self, why: String) {
        lock(&self.failure).get_or_insert(why);
        self.wake();
    }

    pub fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    fn wake(&self) {
        if let Some(signal) = lock(&self.signal).as_mut() {
            // If the buffer is full, it is readable already.
            let _ = signal.writable.write(&[1]);
        }
    }
}

/// A panic elsewhere leaves each value behind these locks usable.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cancels(ids: std::ops::Range<u64>) -> Vec<Event> {
        ids.map(|id| Event::Cancel { id }).collect()
    }

    fn ids(events: VecDeque<Event>) -> Vec<u64> {
        events
            .into_iter()
            .map(|event| match event {
                Event::Cancel { id } => id,
                _ => u64::MAX,
            })
            .collect()
    }

    fn is_readable(inbox: &Inbox) -> bool {
        let mut byte = [0u8; 1];
        let got = lock(&inbox.signal).as_mut().is_some_and(|signal| signal.readable.read(&mut byte).is_ok());
        if got {
            inbox.wake();
        }
        got
    }

    #[test]
    fn events_are_taken_in_order_and_in_parts() {
        let inbox = Inbox::new(100, 1 << 20).unwrap();
        inbox.publish(&mut cancels(0..3));
        inbox.publish(&mut cancels(3..5));
        assert!(is_readable(&inbox));
        assert_eq!(ids(inbox.take(4)), [0, 1, 2, 3]);
        assert!(is_readable(&inbox), "one is left");
        assert_eq!(ids(inbox.take(4)), [4]);
        assert!(!is_readable(&inbox));
        assert!(inbox.take(4).is_empty());
    }

    #[test]
    fn a_closed_inbox_has_no_descriptor_and_still_takes_events() {
        let inbox = Inbox::new(4, 1 << 20).unwrap();
        assert!(inbox.fd() >= 0);
        inbox.close();
        assert_eq!(inbox.fd(), -1);
        inbox.publish(&mut cancels(0..1));
        assert_eq!(ids(inbox.take(4)), [0]);
    }

    #[test]
    fn readers_stall_while_too_much_waits() {
        let inbox = Inbox::new(4, 1 << 20).unwrap();
        assert!(!inbox.stalls(Waker::noop()));
        inbox.publish(&mut cancels(0..4));
        assert!(inbox.stalls(Waker::noop()));
        inbox.take(1);
        assert!(inbox.stalls(Waker::noop()), "more than half are left");
        inbox.take(10);
        assert!(!inbox.stalls(Waker::noop()));
    }
}
