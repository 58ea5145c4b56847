//! The way of answers to the client, no faster than the client reads them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::connection::Connection;
use crate::outbox::SendBuffer;
use crate::status::Code;

/// An answer up to this size is given to `h2` as a whole, whether or not the client has room for it: no client has more than
/// `streams_max` of them.
const WHOLE_BYTES_MAX: usize = 4 * 1024;
/// `h2` keeps no more than this of one call.
pub const SEND_BUFFER_BYTES: usize = 128 * 1024;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// 200, with `headers`.
fn response(mut headers: HeaderMap) -> Response<()> {
    headers.insert(http::header::CONTENT_TYPE, GRPC);
    let mut response = Response::new(());
    *response.headers_mut() = headers;
    response
}

/// An answer without messages. False: the client is gone.
pub fn trailers_only(respond: &mut SendResponse<Bytes>, trailers: HeaderMap) -> bool {
    respond.send_response(response(trailers), true).is_ok()
}

/// An answer before Python knows of the call.
pub fn refuse(respond: &mut SendResponse<Bytes>, code: Code, message: &str) {
    let mut trailers = crate::status::trailers(code as u32, message, HeaderMap::new());
    if code == Code::Unimplemented {
        trailers.insert("grpc-accept-encoding", HeaderValue::from_static("identity,gzip"));
    }
    trailers_only(respond, trailers);
}

/// To a request that is no call of gRPC.
pub fn refuse_other(mut respond: SendResponse<Bytes>, status: StatusCode) {
    let mut response = Response::new(());
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    if let Ok(mut stream) = respond.send_response(response, false) {
        let _ = stream.send_data(Bytes::from_static(b"This port serves gRPC.\n"), true);
    }
}

/// OK with one message, at once. Returns what is left to be written if the client has no room for it.
pub fn answer(connection: &Connection, respond: &mut SendResponse<Bytes>, message: Bytes) -> Option<Rc<Answering>> {
    let mut stream = respond.send_response(response(HeaderMap::new()), false).ok()?;
    let trailers = crate::status::trailers(0, "", HeaderMap::new());
    if message.len() <= WHOLE_BYTES_MAX {
        connection.watch.add_unread(message.len());
        if stream.send_data(message, false).is_ok() {
            let _ = stream.send_trailers(trailers);
        }
        return None;
    }
    let answering = Rc::new(Answering::new(stream));
    answering.send(connection, message, None);
    answering.finish(trailers);
    if answering.is_over() { None } else { Some(answering) }
}

/// The rest of one answer.
pub struct Answering {
    state: RefCell<State>,
}

struct State {
    stream: SendStream<Bytes>,
    queue: VecDeque<(Bytes, Option<Arc<SendBuffer>>)>,
    trailers: Option<HeaderMap>,
    is_over: bool,
    /// Whoever writes it to the end also counts the call as answered.
    is_counted: bool,
    /// Of the task that writes, while it has nothing to write.
    waker: Option<Waker>,
}

impl Answering {
    fn new(stream: SendStream<Bytes>) -> Self {
        Self {
            state: RefCell::new(State { stream, queue: VecDeque::new(), trailers: None, is_over: false, is_counted: false, waker: None }),
        }
    }

    /// The headers go out; messages follow.
    pub fn begin(respond: &mut SendResponse<Bytes>, headers: HeaderMap) -> Option<Rc<Self>> {
        let stream = respond.send_response(response(headers), false).ok()?;
        Some(Rc::new(Self::new(stream)))
    }

    /// Returns whether somebody waits for room in `buffer`, and there is some.
    pub fn send(&self, connection: &Connection, message: Bytes, buffer: Option<Arc<SendBuffer>>) -> bool {
        let mut state = self.state.borrow_mut();
        if state.is_over {
            return false;
        }
        let bytes = message.len();
        if state.queue.is_empty() && state.has_room(bytes) {
            connection.watch.add_unread(bytes);
            state.is_over = state.stream.send_data(message, false).is_err();
            return buffer.is_some_and(|buffer| buffer.remove(bytes, connection.stream_buffer_bytes));
        }
        connection.watch.add_unread(bytes);
        state.queue.push_back((message, buffer));
        state.wake();
        false
    }

    /// The end. It follows what waits.
    pub fn finish(&self, trailers: HeaderMap) {
        let mut state = self.state.borrow_mut();
        if state.is_over {
            return;
        }
        if state.queue.is_empty() {
            let _ = state.stream.send_trailers(trailers);
            state.is_over = true;
        } else {
            state.trailers = Some(trailers);
        }
        state.wake();
    }

    pub fn is_over(&self) -> bool {
        self.state.borrow().is_over
    }

    pub fn counts_when_over(&self) {
        self.state.borrow_mut().is_counted = true;
    }

    pub fn is_counted(&self) -> bool {
        self.state.borrow().is_counted
    }

    /// Nobody waits for the rest any more.
    pub fn abandon(&self, reason: Reason) {
        let mut state = self.state.borrow_mut();
        if !state.is_over {
            state.stream.send_reset(reason);
        }
        state.is_over = true;
        state.wake();
    }

    pub fn needs_writer(&self) -> bool {
        let state = self.state.borrow();
        !state.is_over && !state.queue.is_empty()
    }

    /// Writes what waits, as the client makes room. Ends when nothing waits. False: the client has read nothing for
    /// `patience`, after the answer was complete.
    pub async fn write_queue(&self, connection: &Connection, patience: Duration, on_room: impl Fn()) -> bool {
        let is_taken = loop {
            let is_complete = {
                let mut state = self.state.borrow_mut();
                if state.is_over {
                    break true;
                }
                let Some((next, _)) = state.queue.front() else { break true };
                let wanted = next.len().min(SEND_BUFFER_BYTES);
                state.stream.reserve_capacity(wanted);
                state.trailers.is_some()
            };
            let room = poll_fn(|cx| {
                let mut state = self.state.borrow_mut();
                if state.is_over {
                    return Poll::Ready(None);
                }
                // `h2` tells of room only once, when it arises.
                match state.stream.capacity() {
                    0 => {}
                    room => return Poll::Ready(Some(Ok(room))),
                }
                let room = state.stream.poll_capacity(cx);
                if room.is_pending() {
                    state.waker = Some(cx.waker().clone());
                }
                room
            });
            match tokio::time::timeout(patience, room).await {
                Ok(Some(Ok(room))) => {
                    if self.write_part(connection, room) {
                        on_room();
                    }
                }
                Ok(_) => {
                    self.state.borrow_mut().is_over = true;
                    break true;
                }
                Err(_) if is_complete => break false,
                // The handler still runs, and waits or gives up as it likes.
                Err(_) => {}
            }
        };
        let mut state = self.state.borrow_mut();
        let rest: usize = state.queue.drain(..).map(|(message, _)| message.len()).sum();
        connection.watch.remove_unread(rest);
        is_taken
    }

    fn write_part(&self, connection: &Connection, room: usize) -> bool {
        let mut state = self.state.borrow_mut();
        let Some((message, buffer)) = state.queue.front_mut() else { return false };
        let part = message.split_to(room.min(message.len()));
        let (bytes, is_whole) = (part.len(), message.is_empty());
        let has_room = buffer.as_ref().is_some_and(|buffer| buffer.remove(bytes, connection.stream_buffer_bytes));
        if is_whole {
            state.queue.pop_front();
        }
        if state.stream.send_data(part, false).is_err() {
            state.is_over = true;
        } else if state.queue.is_empty()
            && let Some(trailers) = state.trailers.take()
        {
            let _ = state.stream.send_trailers(trailers);
            state.is_over = true;
        }
        has_room
    }
}

impl State {
    fn has_room(&mut self, bytes: usize) -> bool {
        self.stream.reserve_capacity(bytes);
        self.stream.capacity() >= bytes
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
