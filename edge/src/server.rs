//! The edge's thread: it accepts connections, gives their calls to Python, and sends what Python answers.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::HeaderMap;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio_rustls::TlsAcceptor;

use crate::answering::{self, Answering};
use crate::connection::{self, ById, Connection, Session, Unreleased};
use crate::frame_meter::FrameMeter;
use crate::inbox::{Event, Inbox, lock};
use crate::limits::Limits;
use crate::listener::{self, Listener};
use crate::outbox::{Order, Outbox, SendBuffer};
use crate::socket::{Watch, Watched};
use crate::stats::Stats;
use crate::status::{self, Code};

/// How long a connection may take to say goodbye.
const ENDING_MAX: Duration = Duration::from_secs(2);
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Unary(i64),
    Streaming(i64),
    Prefix,
}

/// Which methods there are, and how large their messages may be.
#[derive(Default)]
pub struct Methods {
    listed: HashMap<String, (Kind, usize)>,
    prefixes: Vec<(String, usize)>,
}

impl Methods {
    pub fn new(unary: Vec<(String, usize)>, streaming: Vec<(String, usize)>, prefixes: Vec<(String, usize)>) -> Self {
        let mut listed = HashMap::new();
        for (index, (path, bytes_max)) in (0..).zip(unary) {
            listed.insert(path, (Kind::Unary(index), bytes_max));
        }
        for (index, (path, bytes_max)) in (0..).zip(streaming) {
            listed.insert(path, (Kind::Streaming(index), bytes_max));
        }
        Self { listed, prefixes }
    }

    pub fn find(&self, path: &str) -> Option<(Kind, usize)> {
        self.listed.get(path).copied().or_else(|| {
            let (_, bytes_max) = self.prefixes.iter().find(|(prefix, _)| path.starts_with(prefix.as_str()))?;
            Some((Kind::Prefix, *bytes_max))
        })
    }
}

/// What both threads see.
pub struct Shared {
    pub limits: Limits,
    pub inbox: Arc<Inbox>,
    pub outbox: Outbox,
    pub stats: Arc<Stats>,
    pub tls: RwLock<Option<Arc<ServerConfig>>>,
    /// Of calls that are answered in parts.
    pub buffers: Mutex<ById<u64, Arc<SendBuffer>>>,
    pub flush: Mutex<Duration>,
}

impl Shared {
    pub fn new(limits: Limits) -> io::Result<Self> {
        let inbox = Arc::new(Inbox::new(limits.waiting_calls_max, limits.waiting_bytes_max)?);
        Ok(Self {
            limits,
            inbox,
            outbox: Outbox::default(),
            stats: Arc::default(),
            tls: RwLock::default(),
            buffers: Mutex::default(),
            flush: Mutex::default(),
        })
    }
}

/// A call that Python knows of and has not ended.
pub struct Call {
    connection: Rc<Connection>,
    stream: u32,
    respond: SendResponse<Bytes>,
    answering: Option<Rc<Answering>>,
    has_buffer: bool,
    unreleased: Option<Rc<Unreleased>>,
}

impl Call {
    pub fn new(connection: Rc<Connection>, stream: u32, respond: SendResponse<Bytes>, unreleased: Option<Rc<Unreleased>>) -> Self {
        Self { connection, stream, respond, answering: None, has_buffer: false, unreleased }
    }
}

pub struct Server {
    pub limits: Limits,
    pub inbox: Arc<Inbox>,
    pub stats: Arc<Stats>,
    pub methods: Methods,
    shared: Arc<Shared>,
    calls: RefCell<ById<u64, Call>>,
    next_call: Cell<u64>,
    connections: RefCell<HashMap<u64, Rc<Connection>>>,
    next_connection: Cell<u64>,
    sockets: Cell<usize>,
    unread_in_all: Rc<Cell<usize>>,
    pub unfinished_in_all: Cell<usize>,
    is_draining: Cell<bool>,
    connection_gone: Notify,
}

impl Server {
    pub fn register(&self, call: Call) -> u64 {
        let id = self.next_call.get();
        self.next_call.set(id + 1);
        self.calls.borrow_mut().insert(id, call);
        self.stats.calls.increment();
        self.stats.calls_open.increment();
        id
    }

    /// False: the call was over.
    pub fn cancel(&self, id: u64) -> bool {
        let Some(call) = self.remove(id) else { return false };
        if let Some(answering) = call.answering {
            answering.abandon(Reason::CANCEL);
        }
        self.stats.calls_open.decrement();
        true
    }

    fn remove(&self, id: u64) -> Option<Call> {
        let call = self.calls.borrow_mut().remove(&id)?;
        if call.has_buffer {
            lock(&self.shared.buffers).remove(&id);
        }
        Some(call)
    }

    /// The edge itself ends a call that Python knows of.
    pub fn end_for_python(self: &Rc<Self>, id: u64, code: Code, message: &str) {
        self.finish(id, status::trailers(code as u32, message, HeaderMap::new()));
    }

    pub fn connection_ended(&self, number: u64) {
        self.connections.borrow_mut().remove(&number);
    }

    // Orders of Python

    fn obey(self: &Rc<Self>, order: Order) {
        match order {
            Order::Answers(answers) => {
                for (id, message) in answers {
                    self.answer(id, message);
                }
            }
            Order::InitialMetadata { id, headers } => self.begin(id, headers),
            Order::Send { id, message, buffer } => self.send(id, message, buffer),
            Order::Finish { id, trailers } => self.finish(id, trailers),
            Order::Release { id, bytes, messages } => self.release(id, bytes, messages),
            Order::Drain => {
                self.is_draining.set(true);
                for connection in self.connections.borrow().values() {
                    connection.drain();
                }
            }
            // The loop that calls this handles them.
            Order::StopAccepting | Order::Close => {}
        }
    }

    fn answer(self: &Rc<Self>, id: u64, message: Bytes) {
        let Some(mut call) = self.remove(id) else { return };
        call.connection.call_ended(call.stream);
        call.connection.watch.meter.borrow_mut().justify_pings();
        if call.answering.is_some() {
            self.send_part(id, &mut call, message, None);
            return self.end(call, status::trailers(0, "", HeaderMap::new()));
        }
        match answering::answer(&call.connection, &mut call.respond, message) {
            Some(rest) => self.write(id, &call.connection, rest, true),
            None => self.stats.calls_open.decrement(),
        }
        self.end_if_unread(&call.connection);
    }

    fn begin(&self, id: u64, headers: HeaderMap) {
        if let Some(call) = self.calls.borrow_mut().get_mut(&id)
            && call.answering.is_none()
        {
            call.answering = Answering::begin(&mut call.respond, headers);
        }
    }

    fn send(self: &Rc<Self>, id: u64, message: Bytes, buffer: Arc<SendBuffer>) {
        let mut calls = self.calls.borrow_mut();
        let Some(call) = calls.get_mut(&id) else {
            lock(&self.shared.buffers).remove(&id);
            return;
        };
        call.has_buffer = true;
        self.send_part(id, call, message, Some(buffer));
        let connection = call.connection.clone();
        drop(calls);
        self.end_if_unread(&connection);
    }

    fn send_part(self: &Rc<Self>, id: u64, call: &mut Call, message: Bytes, buffer: Option<Arc<SendBuffer>>) {
        call.connection.watch.meter.borrow_mut().justify_pings();
        if call.answering.is_none() {
            call.answering = Answering::begin(&mut call.respond, HeaderMap::new());
        }
        let Some(answering) = &call.answering else { return };
        let had_writer = answering.needs_writer();
        if answering.send(&call.connection, message, buffer) {
            self.inbox.publish(&mut vec![Event::Writable { id }]);
        }
        if !had_writer && answering.needs_writer() {
            self.write(id, &call.connection, answering.clone(), false);
        }
    }

    fn finish(self: &Rc<Self>, id: u64, trailers: HeaderMap) {
        let Some(call) = self.remove(id) else { return };
        call.connection.call_ended(call.stream);
        self.end(call, trailers);
    }

    fn end(self: &Rc<Self>, mut call: Call, trailers: HeaderMap) {
        call.connection.watch.meter.borrow_mut().justify_pings();
        match call.answering {
            None => {
                answering::trailers_only(&mut call.respond, trailers);
                self.stats.calls_open.decrement();
            }
            Some(answering) => {
                answering.finish(trailers);
                if answering.is_over() {
                    self.stats.calls_open.decrement();
                } else {
                    // Its writer ends the call.
                    answering.counts_when_over();
                }
            }
        }
        self.end_if_unread(&call.connection);
    }

    /// Writes an answer as the client makes room.
    fn write(self: &Rc<Self>, id: u64, connection: &Rc<Connection>, answering: Rc<Answering>, is_finished: bool) {
        if is_finished {
            answering.counts_when_over();
        }
        let (server, connection) = (self.clone(), connection.clone());
        connection.writers.set(connection.writers.get() + 1);
        spawn_local(async move {
            let on_room = || server.inbox.publish(&mut vec![Event::Writable { id }]);
            if !answering.write_queue(&connection, server.limits.write_timeout, on_room).await {
                server.stats.answers_unread.increment();
                answering.abandon(Reason::CANCEL);
            }
            if answering.is_counted() {
                server.stats.calls_open.decrement();
            }
            connection.writers.set(connection.writers.get() - 1);
            connection.wake();
        });
    }

    fn release(&self, id: u64, bytes: usize, messages: usize) {
        let calls = self.calls.borrow();
        let Some(call) = calls.get(&id) else { return };
        let Some(unreleased) = &call.unreleased else { return };
        let had_enough = unreleased.is_enough(self.limits.stream_buffer_bytes);
        unreleased.remove(bytes, messages);
        if had_enough && !unreleased.is_enough(self.limits.stream_buffer_bytes) {
            call.connection.read_on(call.stream);
        }
    }

    fn end_if_unread(&self, connection: &Connection) {
        if connection.watch.unread() > self.limits.unread_bytes_max {
            self.stats.closed_unread.increment();
            connection.kill();
        } else if self.unread_in_all.get() > self.limits.unread_bytes_in_all_max {
            let connections = self.connections.borrow();
            if let Some(worst) = connections.values().max_by_key(|connection| connection.watch.unread()) {
                self.stats.closed_unread.increment();
                worst.watch.remove_unread(worst.watch.unread());
                worst.kill();
            }
        }
    }

    // Connections

    async fn accept_from(self: Rc<Self>, listener: Listener) {
        match listener {
            Listener::Tcp(listener) => {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                loop {
                    match listener.accept().await {
                        Ok((socket, address)) => {
                            let _ = socket.set_nodelay(true);
                            let tls = self.shared.tls.read().ok().and_then(|config| config.clone());
                            self.admit(|server| server.serve_tcp(socket, listener::peer(address), tls));
                        }
                        Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
                    }
                }
            }
            Listener::Unix(listener) => {
                let Ok(listener) = tokio::net::UnixListener::from_std(listener) else { return };
                loop {
                    match listener.accept().await {
                        Ok((socket, _)) => {
                            self.admit(|server| server.serve_http2(socket, Arc::from("unix:"), None));
                        }
                        Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
                    }
                }
            }
        }
    }

    fn admit<Serving: Future<Output = ()> + 'static>(self: &Rc<Self>, serve: impl FnOnce(Rc<Self>) -> Serving) {
        self.stats.connections.increment();
        if self.sockets.get() >= self.limits.connections_max {
            self.stats.connections_refused.increment();
            return;
        }
        self.sockets.set(self.sockets.get() + 1);
        self.stats.connections_open.increment();
        let (server, serving) = (self.clone(), serve(self.clone()));
        let task = spawn_local(serving);
        spawn_local(async move {
            if task.await.is_err_and(|error| error.is_panic()) {
                server.stats.panics.increment();
            }
            server.sockets.set(server.sockets.get() - 1);
            server.stats.connections_open.decrement();
            server.connection_gone.notify_one();
        });
    }

    async fn serve_tcp(self: Rc<Self>, socket: tokio::net::TcpStream, peer: Arc<str>, tls: Option<Arc<ServerConfig>>) {
        let Some(config) = tls else { return self.serve_http2(socket, peer, None).await };
        let handshake = TlsAcceptor::from(config).accept(socket);
        let secured = match tokio::time::timeout(self.limits.handshake_timeout, handshake).await {
            Ok(Ok(secured)) if secured.get_ref().1.alpn_protocol() == Some(b"h2") => secured,
            _ => return self.stats.handshakes_failed.increment(),
        };
        let certificate =
            secured.get_ref().1.peer_certificates().and_then(|chain| chain.first()).map(|certificate| Arc::from(certificate.as_ref()));
        self.serve_http2(secured, peer, certificate).await;
    }

    async fn serve_http2<Io: AsyncRead + AsyncWrite + Unpin>(self: Rc<Self>, io: Io, peer: Arc<str>, certificate: Option<Arc<[u8]>>) {
        let now = Instant::now();
        let meter = FrameMeter::new(self.limits.control_frames_max, self.limits.ping_interval_min, now);
        let watch = Rc::new(Watch::new(meter, self.unread_in_all.clone(), self.inbox.clone(), self.stats.clone(), now));
        let handshake = connection::builder(&self.limits).handshake::<_, Bytes>(Watched::new(io, watch.clone()));
        let h2 = match tokio::time::timeout(self.limits.handshake_timeout, handshake).await {
            Ok(Ok(h2)) => h2,
            _ => return self.stats.handshakes_failed.increment(),
        };
        let number = self.next_connection.get();
        self.next_connection.set(number + 1);
        let connection = Rc::new(Connection::new(number, peer, certificate, watch, &self.limits, now));
        self.connections.borrow_mut().insert(number, connection.clone());
        if self.is_draining.get() {
            connection.drain();
        }
        Session::new(h2, connection, self).run().await;
    }

    /// Looks at all connections: who is too slow, silent or idle?
    async fn sweep_always(self: Rc<Self>) {
        let mut ticks = tokio::time::interval(self.limits.sweep_interval());
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = Instant::now();
            for connection in self.connections.borrow().values() {
                self.sweep(connection, now);
            }
        }
    }

    fn sweep(&self, connection: &Connection, now: Instant) {
        let (limits, stats, watch) = (&self.limits, &self.stats, &connection.watch);
        let is_past = |since: Option<Instant>, allowed: Duration| since.is_some_and(|since| now.saturating_duration_since(since) > allowed);
        if is_past(connection.ending_since.get(), ENDING_MAX) {
            return connection.kill();
        }
        if is_past(watch.blocked_since.get(), limits.write_timeout) {
            stats.closed_unread.increment();
            return connection.kill();
        }
        if is_past(connection.idle_since.get(), limits.idle_max) && !connection.is_draining() {
            stats.closed_idle.increment();
            connection.drain();
        }
        if connection.is_draining() && connection.ending_since.get().is_none() {
            // Nothing is left to answer; a client that lives closes within moments.
            connection.ending_since.set(connection.idle_since.get().map(|_| now));
        }
        if connection.unread_bodies.get() > 0 {
            connection.look_at_bodies();
        }
        if self.inbox.is_full() {
            // It is us who do not read.
            return watch.last_read.set(now);
        }
        let meter = watch.meter.borrow();
        let is_slow = (meter.frames() == 0 && is_past(Some(connection.since), limits.handshake_timeout))
            || is_past(meter.headers_since(), limits.handshake_timeout)
            || is_past(meter.unfinished_since(), limits.message_timeout);
        if is_slow {
            stats.closed_slow.increment();
            return connection.kill();
        }
        let (last_read, pinged) = (watch.last_read.get(), connection.pinged.get());
        if pinged.is_some_and(|pinged| pinged >= last_read) {
            if is_past(pinged, limits.keepalive_timeout) {
                stats.closed_silent.increment();
                connection.kill();
            }
        } else if is_past(Some(last_read), limits.keepalive) && connection.idle_since.get().is_none() {
            connection.ping(now);
        }
    }

    /// Waits until answers that were given have left.
    async fn say_goodbye(&self, at_most: Duration) {
        for connection in self.connections.borrow().values() {
            connection.drain();
            if !connection.calls.borrow().is_empty() {
                connection.end_when_written();
            }
        }
        let all_gone = async {
            while self.sockets.get() > 0 {
                self.connection_gone.notified().await;
            }
        };
        let _ = tokio::time::timeout(at_most, all_gone).await;
    }
}

/// The thread's work, until Python closes the edge. Err: why it ended otherwise.
pub fn run(shared: Arc<Shared>, methods: Methods, listeners: Vec<Listener>) {
    let inbox = shared.inbox.clone();
    match catch_unwind(AssertUnwindSafe(|| run_inside(shared, methods, listeners))) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => inbox.fail(error.to_string()),
        Err(panic) => {
            let why = panic
                .downcast_ref::<&str>()
                .map(|why| (*why).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            inbox.fail(format!("the edge's thread panicked: {why}"));
        }
    }
}

fn run_inside(shared: Arc<Shared>, methods: Methods, listeners: Vec<Listener>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = Rc::new(Server {
        limits: shared.limits.clone(),
        inbox: shared.inbox.clone(),
        stats: shared.stats.clone(),
        methods,
        shared: shared.clone(),
        calls: RefCell::default(),
        next_call: Cell::new(1),
        connections: RefCell::default(),
        next_connection: Cell::new(1),
        sockets: Cell::new(0),
        unread_in_all: Rc::default(),
        unfinished_in_all: Cell::new(0),
        is_draining: Cell::new(false),
        connection_gone: Notify::new(),
    });
    LocalSet::new().block_on(&runtime, async move {
        let mut accepting: Vec<AbortHandle> =
            listeners.into_iter().map(|listener| spawn_local(server.clone().accept_from(listener)).abort_handle()).collect();
        spawn_local(server.clone().sweep_always());
        let mut orders = Vec::new();
        loop {
            shared.outbox.next(&mut orders).await;
            for order in orders.drain(..) {
                let is_close = matches!(order, Order::Close);
                if is_close || matches!(order, Order::StopAccepting) {
                    accepting.drain(..).for_each(|task| task.abort());
                }
                if is_close {
                    let at_most = *lock(&shared.flush);
                    server.say_goodbye(at_most).await;
                    return Ok(());
                }
                server.obey(order);
            }
        }
    })
}
