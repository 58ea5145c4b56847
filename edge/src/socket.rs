//! A connection's bytes on their way to and from `h2`: counted, and held back while Python is behind.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::frame_meter::FrameMeter;
use crate::inbox::Inbox;
use crate::stats::Stats;

/// What is known about a connection's bytes.
pub struct Watch {
    pub meter: RefCell<FrameMeter>,
    pub last_read: Cell<Instant>,
    /// Since when the client takes no byte, although there are some for it.
    pub blocked_since: Cell<Option<Instant>>,
    /// Bytes of answers that were given to `h2` and have not been written.
    unread: Cell<usize>,
    unread_in_all: Rc<Cell<usize>>,
    pub stop_reading: Cell<bool>,
    inbox: Arc<Inbox>,
    stats: Arc<Stats>,
}

impl Watch {
    pub fn new(meter: FrameMeter, unread_in_all: Rc<Cell<usize>>, inbox: Arc<Inbox>, stats: Arc<Stats>, now: Instant) -> Self {
        Self {
            meter: RefCell::new(meter),
            last_read: Cell::new(now),
            blocked_since: Cell::new(None),
            unread: Cell::new(0),
            unread_in_all,
            stop_reading: Cell::new(false),
            inbox,
            stats,
        }
    }

    pub fn unread(&self) -> usize {
        self.unread.get()
    }

    pub fn add_unread(&self, bytes: usize) {
        self.unread.set(self.unread.get() + bytes);
        self.unread_in_all.set(self.unread_in_all.get() + bytes);
    }

    pub fn remove_unread(&self, bytes: usize) {
        let bytes = bytes.min(self.unread.get());
        self.unread.set(self.unread.get() - bytes);
        self.unread_in_all.set(self.unread_in_all.get().saturating_sub(bytes));
    }

    fn was_read(&self, bytes: &[u8]) {
        let now = Instant::now();
        self.last_read.set(now);
        self.stats.bytes_read.add(bytes.len() as u64);
        self.meter.borrow_mut().read(bytes, now);
    }

    fn was_written(&self, result: &Poll<io::Result<usize>>) {
        match result {
            Poll::Ready(Ok(bytes)) => {
                self.blocked_since.set(None);
                self.stats.bytes_written.add(*bytes as u64);
                let mut meter = self.meter.borrow_mut();
                meter.written(*bytes);
                if self.unread.get() > 0 {
                    // Clients measure the round trip by pings while they read an answer.
                    meter.justify_pings();
                }
                self.remove_unread(*bytes);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.is_blocked(),
        }
    }

    fn is_blocked(&self) {
        if self.blocked_since.get().is_none() {
            self.blocked_since.set(Some(Instant::now()));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.remove_unread(self.unread.get());
    }
}

pub struct Watched<Io> {
    io: Io,
    watch: Rc<Watch>,
}

impl<Io> Watched<Io> {
    pub fn new(io: Io, watch: Rc<Watch>) -> Self {
        Self { io, watch }
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Watched<Io> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { io, watch } = self.get_mut();
        // Whoever stops reading also wakes the connection to end it.
        if watch.stop_reading.get() || watch.meter.borrow().abuse().is_some() || watch.inbox.stalls(cx.waker()) {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(io).poll_read(cx, buffer))?;
        watch.was_read(buffer.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Watched<Io> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { io, watch } = self.get_mut();
        let result = Pin::new(io).poll_write(cx, bytes);
        watch.was_written(&result);
        result
    }

    fn poll_write_vectored(self: Pin<&mut Self>, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let Self { io, watch } = self.get_mut();
        let result = Pin::new(io).poll_write_vectored(cx, parts);
        watch.was_written(&result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, watch } = self.get_mut();
        let result = Pin::new(io).poll_flush(cx);
        if result.is_pending() {
            watch.is_blocked();
        }
        result
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
