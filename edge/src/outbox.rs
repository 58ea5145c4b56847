//! What Python has decided: answers, messages and orders for the edge's thread.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::Notify;

use crate::inbox::lock;

/// How much of one call waits to be sent. Shared with the thread that sends.
#[derive(Default)]
pub struct SendBuffer {
    bytes: AtomicUsize,
    is_awaited: AtomicBool,
}

impl SendBuffer {
    /// Returns what waits now. Above `bytes_max`, the caller waits until it is told that there is room.
    pub fn add(&self, bytes: usize, bytes_max: usize) -> usize {
        let now = self.bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        if now > bytes_max {
            self.is_awaited.store(true, Ordering::SeqCst);
        }
        now
    }

    /// True: somebody waits for room, and there is some.
    pub fn remove(&self, bytes: usize, bytes_max: usize) -> bool {
        let before = self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        before.saturating_sub(bytes) <= bytes_max / 2 && self.is_awaited.swap(false, Ordering::SeqCst)
    }
}

pub enum Order {
    /// OK, with one message each, already with its prefix.
    Answers(Vec<(u64, Bytes)>),
    InitialMetadata {
        id: u64,
        headers: HeaderMap,
    },
    Send {
        id: u64,
        message: Bytes,
        buffer: Arc<SendBuffer>,
    },
    /// `trailers` with the status.
    Finish {
        id: u64,
        trailers: HeaderMap,
    },
    Release {
        id: u64,
        bytes: usize,
        messages: usize,
    },
    StopAccepting,
    Drain,
    Close,
}

#[derive(Default)]
pub struct Outbox {
    orders: Mutex<Vec<Order>>,
    arrived: Notify,
}

impl Outbox {
    pub fn push(&self, order: Order) {
        let mut orders = lock(&self.orders);
        let was_empty = orders.is_empty();
        orders.push(order);
        drop(orders);
        if was_empty {
            self.arrived.notify_one();
        }
    }

    /// Waits until there is something. Swaps it with `orders`, which is empty, so that both buffers are used again.
    pub async fn next(&self, orders: &mut Vec<Order>) {
        loop {
            std::mem::swap(&mut *lock(&self.orders), orders);
            if !orders.is_empty() {
                return;
            }
            self.arrived.notified().await;
        }
    }
}
