//! One connection: its calls, from their first frame until Python has them, and what ends it.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Ping, PingPong, Reason, RecvStream};
use http::{HeaderMap, Method, Request, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::answering::{self, SEND_BUFFER_BYTES};
use crate::frame_meter::{Abuse, Bucket};
use crate::inbox::{Event, Head, HeaderBlock, lock};
use crate::limits::Limits;
use crate::message::{MessageReader, Unreadable};
use crate::metadata;
use crate::server::{Call, Kind, Server};
use crate::socket::{Watch, Watched};
use crate::status::Code;
use crate::timeout;

const UNRELEASED_MESSAGES_MAX: usize = 64;
const HEADER_BLOCKS_KEPT: usize = 8;
/// A call that its client cancels so soon counts as a rapid reset.
const RAPID: Duration = Duration::from_secs(1);
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// How long `h2` still knows streams that ended before their client had finished, and how many.
const ENDED_STREAMS_KEPT: Duration = Duration::from_secs(10);
const ENDED_STREAMS_KEPT_MAX: usize = 1_000;
/// Streams that a client's own errors may end, over the life of a connection.
const FAULTY_STREAMS_MAX: usize = 1_024;

/// For ids that are numbers: they are spread well enough by one multiplication.
#[derive(Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        self.write_u64(u64::from(id));
    }

    fn write_u64(&mut self, id: u64) {
        let product = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ (product >> 32);
    }
}

pub type ById<Id, Value> = HashMap<Id, Value, BuildHasherDefault<IdHasher>>;

pub fn builder(limits: &Limits) -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(limits.streams_max)
        .max_header_list_size(limits.header_bytes_max)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_concurrent_reset_streams(ENDED_STREAMS_KEPT_MAX)
        .reset_stream_duration(ENDED_STREAMS_KEPT)
        .max_pending_accept_reset_streams(usize::try_from(limits.streams_max).unwrap_or(usize::MAX))
        .max_local_error_reset_streams(Some(FAULTY_STREAMS_MAX))
        .data_frame_budget(CONNECTION_WINDOW_BYTES as usize / 2);
    builder
}

/// What others know of a connection, and ask of it.
pub struct Connection {
    pub number: u64,
    pub peer: Arc<str>,
    pub certificate: Option<Arc<[u8]>>,
    pub watch: Rc<Watch>,
    pub since: Instant,
    pub stream_buffer_bytes: usize,
    /// Calls that Python knows of and has not ended, by stream.
    pub calls: RefCell<ById<u32, (u64, Instant)>>,
    /// Tasks that write answers for which the client had no room.
    pub writers: Cell<usize>,
    pub idle_since: Cell<Option<Instant>>,
    pub ending_since: Cell<Option<Instant>>,
    pub pinged: Cell<Option<Instant>>,
    pub unread_bodies: Cell<usize>,
    is_draining: Cell<bool>,
    wants: Cell<Wants>,
    /// Streams whose call has ended, or may go on reading.
    ended: RefCell<Vec<u32>>,
    ready: Arc<Ready>,
}

#[derive(Clone, Copy, Default)]
struct Wants {
    drain: bool,
    ping: bool,
    look_at_bodies: bool,
    end: Option<Reason>,
    end_when_written: bool,
    kill: bool,
}

impl Connection {
    pub fn new(number: u64, peer: Arc<str>, certificate: Option<Arc<[u8]>>, watch: Rc<Watch>, limits: &Limits, now: Instant) -> Self {
        Self {
            number,
            peer,
            certificate,
            watch,
            since: now,
            stream_buffer_bytes: limits.stream_buffer_bytes,
            calls: RefCell::default(),
            writers: Cell::new(0),
            idle_since: Cell::new(Some(now)),
            ending_since: Cell::new(None),
            pinged: Cell::new(None),
            unread_bodies: Cell::new(0),
            is_draining: Cell::new(false),
            wants: Cell::default(),
            ended: RefCell::default(),
            ready: Arc::default(),
        }
    }

    fn want(&self, change: impl FnOnce(&mut Wants)) {
        let mut wants = self.wants.get();
        change(&mut wants);
        self.wants.set(wants);
        self.ready.wake_connection();
    }

    /// GOAWAY; calls that were read go on.
    pub fn drain(&self) {
        self.want(|wants| wants.drain = true);
    }

    pub fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    pub fn ping(&self, now: Instant) {
        self.pinged.set(Some(now));
        self.want(|wants| wants.ping = true);
    }

    pub fn look_at_bodies(&self) {
        self.want(|wants| wants.look_at_bodies = true);
    }

    /// GOAWAY with `reason`, and the end of all calls.
    pub fn end(&self, reason: Reason) {
        self.want(|wants| wants.end = Some(reason));
    }

    /// The same, when nothing that was answered waits to be written.
    pub fn end_when_written(&self) {
        self.want(|wants| wants.end_when_written = true);
    }

    pub fn wake(&self) {
        self.ready.wake_connection();
    }

    /// The end, without a word.
    pub fn kill(&self) {
        self.want(|wants| wants.kill = true);
    }

    /// The call of `stream` has ended: nobody reads the rest of its request.
    pub fn call_ended(&self, stream: u32) {
        self.calls.borrow_mut().remove(&stream);
        if self.unread_bodies.get() > 0 {
            self.ended.borrow_mut().push(stream);
            self.ready.wake_connection();
        }
    }

    /// There is room for more messages of `stream`.
    pub fn read_on(&self, stream: u32) {
        self.ready.push(stream);
    }
}

/// Streams of which there may be more to read.
#[derive(Default)]
struct Ready {
    streams: Mutex<Vec<u32>>,
    waker: Mutex<Option<Waker>>,
    is_polled: AtomicBool,
}

impl Ready {
    fn push(&self, stream: u32) {
        lock(&self.streams).push(stream);
        // While the connection is polled, it looks here before it rests.
        if !self.is_polled.load(Ordering::Relaxed) {
            self.wake_connection();
        }
    }

    fn wake_connection(&self) {
        if let Some(waker) = &*lock(&self.waker) {
            waker.wake_by_ref();
        }
    }

    fn set_waker(&self, waker: &Waker) {
        let mut mine = lock(&self.waker);
        if !mine.as_ref().is_some_and(|mine| mine.will_wake(waker)) {
            *mine = Some(waker.clone());
        }
    }
}

struct StreamWaker {
    stream: u32,
    ready: Arc<Ready>,
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.stream);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.push(self.stream);
    }
}

/// Messages of a streaming call that its handler has not taken.
#[derive(Default)]
pub struct Unreleased {
    bytes: Cell<usize>,
    messages: Cell<usize>,
}

impl Unreleased {
    fn add(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
        self.messages.set(self.messages.get() + 1);
    }

    pub fn remove(&self, bytes: usize, messages: usize) {
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
        self.messages.set(self.messages.get().saturating_sub(messages));
    }

    /// No further message is read meanwhile.
    pub fn is_enough(&self, bytes_max: usize) -> bool {
        self.bytes.get() > bytes_max || self.messages.get() > UNRELEASED_MESSAGES_MAX
    }
}

/// The rest of a request.
struct Body {
    recv: RecvStream,
    reader: MessageReader,
    waker: Waker,
    /// Since when the message that is incomplete is under way.
    since: Instant,
    /// What of it counts as unfinished.
    counted: usize,
    of: BodyOf,
}

enum BodyOf {
    /// Python learns of the call when its request is whole.
    Unary {
        respond: SendResponse<Bytes>,
        head: Head,
        message: Option<Bytes>,
    },
    Stream {
        id: u64,
        unreleased: Rc<Unreleased>,
    },
    /// Of a request that is no call. It is read and forgotten.
    Other {
        respond: SendResponse<Bytes>,
        status: StatusCode,
    },
}

enum Progress {
    /// More comes later.
    Waits,
    Ends,
    /// Reset, or the connection is lost.
    Lost,
    Refused(Code, String),
}

pub struct Session<Io> {
    h2: h2::server::Connection<Watched<Io>, Bytes>,
    connection: Rc<Connection>,
    server: Rc<Server>,
    bodies: ById<u32, Body>,
    unfinished_bytes: usize,
    events: Vec<Event>,
    header_blocks: Vec<(HeaderMap, Arc<HeaderBlock>)>,
    resets: Bucket,
    /// Streams that were reset before `h2` told of them.
    early_resets: HashSet<u32>,
    last_stream: u32,
    pings: Option<PingPong>,
    is_ending: bool,
    ends_when_written: bool,
}

impl<Io: AsyncRead + AsyncWrite + Unpin> Session<Io> {
    pub fn new(mut h2: h2::server::Connection<Watched<Io>, Bytes>, connection: Rc<Connection>, server: Rc<Server>) -> Self {
        let pings = h2.ping_pong();
        let resets = Bucket::new(server.limits.rapid_resets_max, connection.since);
        Self {
            h2,
            connection,
            server,
            bodies: ById::default(),
            unfinished_bytes: 0,
            events: Vec::new(),
            header_blocks: Vec::new(),
            resets,
            early_resets: HashSet::new(),
            last_stream: 0,
            pings,
            is_ending: false,
            ends_when_written: false,
        }
    }

    pub async fn run(mut self) {
        std::future::poll_fn(|cx| self.poll(cx)).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let ready = self.connection.ready.clone();
        ready.set_waker(cx.waker());
        ready.is_polled.store(true, Ordering::Relaxed);
        let result = self.turn(cx);
        ready.is_polled.store(false, Ordering::Relaxed);
        self.server.inbox.publish(&mut self.events);
        result
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        let wants = self.connection.wants.take();
        if wants.kill {
            return Poll::Ready(());
        }
        self.obey(wants, cx, now);
        loop {
            match self.h2.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    self.read_resets(now);
                    self.accept(request, respond, now);
                }
                Poll::Ready(Some(Err(error))) => {
                    if error.is_library() {
                        self.server.stats.protocol_errors.increment();
                    }
                    return Poll::Ready(());
                }
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => break,
            }
        }
        self.read_resets(now);
        let last = self.last_stream;
        self.early_resets.retain(|stream| *stream > last);
        self.drop_ended_bodies();
        self.read_bodies(now);
        self.note_idleness(now);
        if self.ends_when_written
            && !self.is_ending
            && self.connection.writers.get() == 0
            && self.connection.watch.blocked_since.get().is_none()
        {
            self.connection.end(Reason::NO_ERROR);
        }
        let abuse = self.connection.watch.meter.borrow().abuse();
        if let Some(abuse) = abuse
            && !self.is_ending
        {
            match abuse {
                Abuse::Pings => &self.server.stats.closed_pings,
                Abuse::ControlFrames => &self.server.stats.closed_control_frames,
                Abuse::RapidResets => &self.server.stats.closed_resets,
            }
            .increment();
            self.connection.end(Reason::ENHANCE_YOUR_CALM);
        }
        Poll::Pending
    }

    fn obey(&mut self, wants: Wants, cx: &mut Context<'_>, now: Instant) {
        if let Some(reason) = wants.end
            && !self.is_ending
        {
            self.is_ending = true;
            self.connection.ending_since.set(Some(now));
            self.connection.watch.stop_reading.set(true);
            self.h2.abrupt_shutdown(reason);
        }
        if wants.drain && !self.connection.is_draining.replace(true) {
            self.h2.graceful_shutdown();
        }
        if let Some(pings) = &mut self.pings {
            // Any byte counts as an answer; this one only makes room for the next ping.
            let _ = pings.poll_pong(cx);
            if wants.ping {
                let _ = pings.send_ping(Ping::opaque());
            }
        }
        self.ends_when_written |= wants.end_when_written;
        if wants.look_at_bodies {
            self.refuse_slow_bodies(now);
        }
    }

    fn note_idleness(&self, now: Instant) {
        let connection = &self.connection;
        let is_busy = !self.bodies.is_empty() || !connection.calls.borrow().is_empty() || connection.writers.get() > 0;
        if is_busy {
            connection.idle_since.set(None);
        } else if connection.idle_since.get().is_none() {
            connection.idle_since.set(Some(now));
        }
    }

    // Calls

    fn accept(&mut self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>, now: Instant) {
        let stream = respond.stream_id().as_u32();
        self.last_stream = stream;
        if self.early_resets.remove(&stream) {
            return;
        }
        let (parts, recv) = request.into_parts();
        let is_grpc = parts.headers.get(http::header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
        if parts.method != Method::POST || !is_grpc {
            self.server.stats.calls_refused.increment();
            let status = if is_grpc { StatusCode::METHOD_NOT_ALLOWED } else { StatusCode::UNSUPPORTED_MEDIA_TYPE };
            return self.begin_to_read(stream, recv, MessageReader::new(0, false), BodyOf::Other { respond, status }, now);
        }
        let (kind, message_bytes_max) = match self.server.methods.find(parts.uri.path()) {
            Some(found) => found,
            None => {
                let message = format!("the method {} is unknown", parts.uri.path());
                return self.refuse(&mut respond, Code::Unimplemented, &message);
            }
        };
        let is_gzip = match parts.headers.get("grpc-encoding").map(|value| value.as_bytes()) {
            None | Some(b"identity") => false,
            Some(b"gzip") => true,
            Some(other) => {
                let message = format!("the encoding {} is unknown", String::from_utf8_lossy(other));
                return self.refuse(&mut respond, Code::Unimplemented, &message);
            }
        };
        let deadline = match parts.headers.get("grpc-timeout") {
            None => None,
            Some(value) => match timeout::parse(value.as_bytes()) {
                Some(timeout) => Some(now + timeout),
                None => return self.refuse(&mut respond, Code::Internal, "the grpc-timeout is malformed"),
            },
        };
        let headers = match self.header_block(parts.headers) {
            Ok(headers) => headers,
            Err(name) => {
                let message = format!("the metadata {name} is not base64");
                return self.refuse(&mut respond, Code::Internal, &message);
            }
        };
        let reader = MessageReader::new(message_bytes_max, is_gzip);
        let (method, path, is_unary) = match kind {
            Kind::Unary(index) => (index, None, true),
            Kind::Streaming(index) => (index, None, false),
            Kind::Prefix => (-1, Some(Arc::from(parts.uri.path())), false),
        };
        let head = Head { method, path, headers, deadline };
        let of = if is_unary {
            BodyOf::Unary { respond, head, message: None }
        } else {
            let unreleased = Rc::<Unreleased>::default();
            let id = self.register(stream, respond, Some(unreleased.clone()), now);
            self.events.push(Event::Open { id, head });
            BodyOf::Stream { id, unreleased }
        };
        self.begin_to_read(stream, recv, reader, of, now);
    }

    /// What has arrived is read at once; a waker is only made for the rest.
    fn begin_to_read(&mut self, stream: u32, mut recv: RecvStream, mut reader: MessageReader, mut of: BodyOf, now: Instant) {
        let stream_buffer_bytes = self.server.limits.stream_buffer_bytes;
        let progress = Self::read(&mut recv, &mut reader, &mut of, Waker::noop(), &mut self.events, stream_buffer_bytes);
        if !matches!(progress, Progress::Waits) {
            drop(recv);
            return self.body_ended(stream, of, progress, now);
        }
        let waker = Waker::from(Arc::new(StreamWaker { stream, ready: self.connection.ready.clone() }));
        let mut body = Body { recv, reader, waker, since: now, counted: 0, of };
        self.count_unfinished(&mut body);
        self.bodies.insert(stream, body);
        self.connection.unread_bodies.set(self.bodies.len());
        self.read_body(stream, now);
    }

    fn refuse(&self, respond: &mut SendResponse<Bytes>, code: Code, message: &str) {
        self.server.stats.calls_refused.increment();
        answering::refuse(respond, code, message);
    }

    fn register(&mut self, stream: u32, respond: SendResponse<Bytes>, unreleased: Option<Rc<Unreleased>>, now: Instant) -> u64 {
        let id = self.server.register(Call::new(self.connection.clone(), stream, respond, unreleased));
        self.connection.calls.borrow_mut().insert(stream, (id, now));
        id
    }

    fn header_block(&mut self, headers: HeaderMap) -> Result<Arc<HeaderBlock>, String> {
        if let Some((_, block)) = self.header_blocks.iter().find(|(kept, _)| metadata::same(kept, &headers)) {
            return Ok(block.clone());
        }
        let block = Arc::new(HeaderBlock {
            metadata: metadata::received(&headers)?,
            peer: self.connection.peer.clone(),
            connection: self.connection.number,
            certificate: self.connection.certificate.clone(),
            seen: std::sync::OnceLock::new(),
        });
        if self.header_blocks.len() >= HEADER_BLOCKS_KEPT {
            self.header_blocks.remove(0);
        }
        self.header_blocks.push((headers, block.clone()));
        Ok(block)
    }

    // Requests

    fn read(
        recv: &mut RecvStream,
        reader: &mut MessageReader,
        of: &mut BodyOf,
        waker: &Waker,
        events: &mut Vec<Event>,
        stream_buffer_bytes: usize,
    ) -> Progress {
        let mut cx = Context::from_waker(waker);
        loop {
            if let BodyOf::Stream { unreleased, .. } = of
                && unreleased.is_enough(stream_buffer_bytes)
            {
                return Progress::Waits;
            }
            match recv.poll_data(&mut cx) {
                Poll::Pending => return Progress::Waits,
                Poll::Ready(None) => return Progress::Ends,
                Poll::Ready(Some(Err(_))) => return Progress::Lost,
                Poll::Ready(Some(Ok(chunk))) => {
                    let _ = recv.flow_control().release_capacity(chunk.len());
                    if matches!(of, BodyOf::Other { .. }) {
                        if recv.is_end_stream() {
                            return Progress::Ends;
                        }
                        continue;
                    }
                    let mut is_second = false;
                    let read = reader.push(chunk, |whole| match of {
                        BodyOf::Unary { message: Some(_), .. } => is_second = true,
                        BodyOf::Unary { message, .. } => *message = Some(whole),
                        BodyOf::Stream { id, unreleased } => {
                            unreleased.add(whole.len());
                            events.push(Event::Message { id: *id, message: whole });
                        }
                        BodyOf::Other { .. } => {}
                    });
                    if let Err(error) = read {
                        let code = match error {
                            Unreadable::TooLarge { .. } | Unreadable::UnpackedTooLarge { .. } => Code::ResourceExhausted,
                            _ => Code::Internal,
                        };
                        return Progress::Refused(code, error.to_string());
                    }
                    if is_second {
                        return Progress::Refused(Code::Internal, "a unary call has one message, not several".to_owned());
                    }
                    if recv.is_end_stream() {
                        return Progress::Ends;
                    }
                }
            }
        }
    }

    fn body_ended(&mut self, stream: u32, of: BodyOf, progress: Progress, now: Instant) {
        match (progress, of) {
            (Progress::Waits, _) => {}
            (Progress::Ends, BodyOf::Unary { respond, head, message: Some(message) }) => {
                let id = self.register(stream, respond, None, now);
                self.events.push(Event::Call { id, head, message });
            }
            (Progress::Ends, BodyOf::Unary { mut respond, message: None, .. }) => {
                self.server.stats.messages_refused.increment();
                answering::refuse(&mut respond, Code::Internal, "a unary call has one message; there is none");
            }
            (Progress::Ends, BodyOf::Stream { id, .. }) => self.events.push(Event::HalfClose { id }),
            (Progress::Ends, BodyOf::Other { respond, status }) => answering::refuse_other(respond, status),
            // A reset or the end of the connection is told elsewhere, if Python knows of the call.
            (Progress::Lost, _) => {}
            (Progress::Refused(..), BodyOf::Other { respond, status }) => answering::refuse_other(respond, status),
            (Progress::Refused(code, message), BodyOf::Unary { mut respond, .. }) => {
                self.server.stats.messages_refused.increment();
                answering::refuse(&mut respond, code, &message);
            }
            (Progress::Refused(code, message), BodyOf::Stream { id, .. }) => {
                self.server.stats.messages_refused.increment();
                self.server.end_for_python(id, code, &message);
                self.events.push(Event::Cancel { id });
            }
        }
    }

    fn read_bodies(&mut self, now: Instant) {
        loop {
            let streams = std::mem::take(&mut *lock(&self.connection.ready.streams));
            if streams.is_empty() {
                return;
            }
            for stream in streams {
                self.read_body(stream, now);
            }
        }
    }

    fn read_body(&mut self, stream: u32, now: Instant) {
        let Some(body) = self.bodies.get_mut(&stream) else { return };
        let progress = Self::read(
            &mut body.recv,
            &mut body.reader,
            &mut body.of,
            &body.waker,
            &mut self.events,
            self.server.limits.stream_buffer_bytes,
        );
        if matches!(progress, Progress::Waits) {
            let Some(mut body) = self.bodies.remove(&stream) else { return };
            if body.reader.partial_bytes() == 0 && matches!(body.of, BodyOf::Stream { .. }) {
                body.since = now;
            }
            self.count_unfinished(&mut body);
            if self.holds_too_much() {
                self.forget_unfinished(body.counted);
                let refused = Progress::Refused(Code::ResourceExhausted, "too many bytes of requests are unfinished".to_owned());
                self.body_ended(stream, body.of, refused, now);
            } else {
                self.bodies.insert(stream, body);
            }
        } else if let Some(body) = self.bodies.remove(&stream) {
            self.forget_unfinished(body.counted);
            // The stream's handle goes first: the answer to a request that is not over tells its client to stop.
            let Body { recv, of, .. } = body;
            drop(recv);
            self.body_ended(stream, of, progress, now);
        }
        self.connection.unread_bodies.set(self.bodies.len());
    }

    fn count_unfinished(&mut self, body: &mut Body) {
        let held = match &body.of {
            BodyOf::Unary { message: Some(message), .. } => message.len(),
            _ => 0,
        };
        let counted = body.reader.partial_bytes() + held;
        self.forget_unfinished(body.counted);
        self.unfinished_bytes += counted;
        self.server.unfinished_in_all.set(self.server.unfinished_in_all.get() + counted);
        body.counted = counted;
    }

    fn forget_unfinished(&mut self, bytes: usize) {
        self.unfinished_bytes = self.unfinished_bytes.saturating_sub(bytes);
        self.server.unfinished_in_all.set(self.server.unfinished_in_all.get().saturating_sub(bytes));
    }

    fn holds_too_much(&self) -> bool {
        self.unfinished_bytes > self.server.limits.unfinished_bytes_max
            || self.server.unfinished_in_all.get() > self.server.limits.unfinished_bytes_in_all_max
    }

    fn drop_ended_bodies(&mut self) {
        let ended = std::mem::take(&mut *self.connection.ended.borrow_mut());
        for stream in ended {
            if let Some(body) = self.bodies.remove(&stream) {
                self.forget_unfinished(body.counted);
            }
        }
        self.connection.unread_bodies.set(self.bodies.len());
    }

    fn refuse_slow_bodies(&mut self, now: Instant) {
        let patience = self.server.limits.message_timeout;
        let slow: Vec<u32> = self
            .bodies
            .iter()
            .filter(|(_, body)| match &body.of {
                BodyOf::Unary { .. } | BodyOf::Other { .. } => true,
                BodyOf::Stream { unreleased, .. } => {
                    body.reader.partial_bytes() > 0 && !unreleased.is_enough(self.server.limits.stream_buffer_bytes)
                }
            } && now.saturating_duration_since(body.since) > patience)
            .map(|(stream, _)| *stream)
            .collect();
        for stream in slow {
            if let Some(body) = self.bodies.remove(&stream) {
                self.forget_unfinished(body.counted);
                let refused = Progress::Refused(Code::DeadlineExceeded, "the request did not arrive in time".to_owned());
                self.body_ended(stream, body.of, refused, now);
            }
        }
    }

    // Cancellations

    fn read_resets(&mut self, now: Instant) {
        let resets = self.connection.watch.meter.borrow_mut().take_resets();
        for stream in resets {
            let known = self.connection.calls.borrow_mut().remove(&stream);
            let is_rapid = match known {
                Some((id, since)) => {
                    self.cancel(id);
                    now.saturating_duration_since(since) < RAPID
                }
                None => {
                    if stream > self.last_stream {
                        self.early_resets.insert(stream);
                    }
                    true
                }
            };
            if let Some(body) = self.bodies.remove(&stream) {
                self.forget_unfinished(body.counted);
                self.connection.unread_bodies.set(self.bodies.len());
            }
            if is_rapid && !self.resets.take(now) {
                self.connection.watch.meter.borrow_mut().is_abused_by_resets();
            }
        }
    }

    fn cancel(&mut self, id: u64) {
        if self.server.cancel(id) {
            self.server.stats.calls_cancelled.increment();
            self.events.push(Event::Cancel { id });
        }
    }
}

impl<Io> Drop for Session<Io> {
    fn drop(&mut self) {
        let calls = std::mem::take(&mut *self.connection.calls.borrow_mut());
        for (id, _) in calls.into_values() {
            if self.server.cancel(id) {
                self.server.stats.calls_cancelled.increment();
                self.events.push(Event::Cancel { id });
            }
        }
        self.server.inbox.publish(&mut self.events);
        self.server.unfinished_in_all.set(self.server.unfinished_in_all.get().saturating_sub(self.unfinished_bytes));
        self.server.connection_ended(self.connection.number);
    }
}
