//! What Python sees. Nothing here waits for the network, except `close`, which lets other threads of Python run meanwhile.

// The macros of PyO3 write `unsafe`; this file does not.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::inbox::{Event, Head, HeaderBlock, lock};
use crate::limits::Limits;
use crate::listener::{self, Listener};
use crate::message::{self, PREFIX_BYTES};
use crate::metadata::{self, Value};
use crate::outbox::Order;
use crate::server::{self, Methods, Shared};
use crate::status;
use crate::tls;

const CALL: i64 = 0;
const OPEN: i64 = 1;
const MESSAGE: i64 = 2;
const HALF_CLOSE: i64 = 3;
const CANCEL: i64 = 4;
const WRITABLE: i64 = 5;

#[pyclass(module = "liveness_edge", dict, weakref)]
struct Headers {
    #[pyo3(get)]
    metadata: Py<PyTuple>,
    #[pyo3(get)]
    peer: Py<PyString>,
    #[pyo3(get)]
    connection: u64,
    #[pyo3(get)]
    certificate: Option<Py<PyBytes>>,
    #[pyo3(get, set)]
    caller: Option<Py<PyAny>>,
}

impl Headers {
    fn of(py: Python<'_>, block: &HeaderBlock) -> PyResult<Self> {
        let mut pairs = Vec::with_capacity(block.metadata.len());
        for (name, value) in &block.metadata {
            let value = match value {
                Value::Text(text) => PyString::new(py, text).into_any(),
                Value::Binary(bytes) => PyBytes::new(py, bytes).into_any(),
            };
            pairs.push((PyString::intern(py, name), value).into_pyobject(py)?);
        }
        Ok(Self {
            metadata: PyTuple::new(py, pairs)?.unbind(),
            peer: PyString::new(py, &block.peer).unbind(),
            connection: block.connection,
            certificate: block.certificate.as_ref().map(|der| PyBytes::new(py, der).unbind()),
            caller: None,
        })
    }
}

#[pymethods]
impl Headers {
    fn __repr__(&self, py: Python<'_>) -> String {
        format!("Headers(peer={}, connection={})", self.peer.bind(py), self.connection)
    }
}

#[derive(FromPyObject)]
enum Sent {
    Text(String),
    Binary(Vec<u8>),
}

fn sent(metadata: Vec<(String, Sent)>) -> PyResult<http::HeaderMap> {
    let metadata: metadata::Metadata = metadata
        .into_iter()
        .map(|(name, value)| {
            let value = match value {
                Sent::Text(text) => Value::Text(text),
                Sent::Binary(bytes) => Value::Binary(bytes),
            };
            (name, value)
        })
        .collect();
    metadata::to_send(&metadata).map_err(PyValueError::new_err)
}

enum State {
    Bound(Vec<Listener>),
    Running(JoinHandle<()>),
    Closed,
}

#[pyclass(module = "liveness_edge", frozen)]
struct Edge {
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// One moment on both clocks: ours, and the monotonic one of Python in milliseconds.
    epoch: (Instant, i64),
    #[pyo3(get)]
    stream_buffer_bytes: usize,
}

#[pymethods]
impl Edge {
    #[new]
    #[pyo3(signature = (
        *,
        connections_max = 10_000,
        streams_max = 1_000,
        header_bytes_max = 16_384,
        waiting_calls_max = 10_000,
        waiting_bytes_max = 67_108_864,
        unfinished_bytes_max = 33_554_432,
        unfinished_bytes_in_all_max = 536_870_912,
        unread_bytes_max = 67_108_864,
        unread_bytes_in_all_max = 536_870_912,
        stream_buffer_bytes = 262_144,
        handshake_timeout_ms = 10_000,
        message_timeout_ms = 60_000,
        write_timeout_ms = 60_000,
        idle_ms_max = 300_000,
        ping_interval_ms_min = 5_000,
        keepalive_ms = 60_000,
        keepalive_timeout_ms = 20_000,
        rapid_resets_max = 2_000,
        control_frames_max = 2_000,
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        connections_max: usize,
        streams_max: u32,
        header_bytes_max: u32,
        waiting_calls_max: usize,
        waiting_bytes_max: usize,
        unfinished_bytes_max: usize,
        unfinished_bytes_in_all_max: usize,
        unread_bytes_max: usize,
        unread_bytes_in_all_max: usize,
        stream_buffer_bytes: usize,
        handshake_timeout_ms: u64,
        message_timeout_ms: u64,
        write_timeout_ms: u64,
        idle_ms_max: u64,
        ping_interval_ms_min: u64,
        keepalive_ms: u64,
        keepalive_timeout_ms: u64,
        rapid_resets_max: u32,
        control_frames_max: u32,
    ) -> PyResult<Self> {
        let limits = Limits {
            connections_max,
            streams_max,
            header_bytes_max,
            waiting_calls_max,
            waiting_bytes_max,
            unfinished_bytes_max,
            unfinished_bytes_in_all_max,
            unread_bytes_max,
            unread_bytes_in_all_max,
            stream_buffer_bytes,
            handshake_timeout: Duration::from_millis(handshake_timeout_ms),
            message_timeout: Duration::from_millis(message_timeout_ms),
            write_timeout: Duration::from_millis(write_timeout_ms),
            idle_max: Duration::from_millis(idle_ms_max),
            ping_interval_min: Duration::from_millis(ping_interval_ms_min),
            keepalive: Duration::from_millis(keepalive_ms),
            keepalive_timeout: Duration::from_millis(keepalive_timeout_ms),
            rapid_resets_max,
            control_frames_max,
        };
        let monotonic_s: f64 = py.import("time")?.call_method0("monotonic")?.extract()?;
        Ok(Self {
            shared: Arc::new(Shared::new(limits)?),
            state: Mutex::new(State::Bound(Vec::new())),
            epoch: (Instant::now(), (monotonic_s * 1000.0) as i64),
            stream_buffer_bytes,
        })
    }

    fn bind(&self, host: &str, port: u16) -> PyResult<u16> {
        let mut state = lock(&self.state);
        let State::Bound(listeners) = &mut *state else {
            return Err(PyRuntimeError::new_err("bind comes before start"));
        };
        let (listener, port) = listener::bind(host, port)?;
        listeners.push(listener);
        Ok(port)
    }

    fn set_tls(&self, certificate_chain: &[u8], key: &[u8], client_ca: Option<&[u8]>, client_auth: &str) -> PyResult<()> {
        let config = tls::server_config(certificate_chain, key, client_ca, client_auth).map_err(PyValueError::new_err)?;
        if let Ok(mut current) = self.shared.tls.write() {
            *current = Some(config);
        }
        Ok(())
    }

    #[pyo3(signature = (*, unary, streaming, prefixes = Vec::new()))]
    fn start(&self, unary: Vec<(String, usize)>, streaming: Vec<(String, usize)>, prefixes: Vec<(String, usize)>) -> PyResult<()> {
        let mut state = lock(&self.state);
        let State::Bound(listeners) = &mut *state else {
            return Err(PyRuntimeError::new_err("the edge was started before"));
        };
        let listeners = std::mem::take(listeners);
        let (shared, methods) = (self.shared.clone(), Methods::new(unary, streaming, prefixes));
        let thread = std::thread::Builder::new().name("edge".to_owned()).spawn(move || server::run(shared, methods, listeners))?;
        *state = State::Running(thread);
        Ok(())
    }

    fn fileno(&self) -> RawFd {
        self.shared.inbox.fd()
    }

    #[pyo3(signature = (events_max = 2_000))]
    fn take<'py>(&self, py: Python<'py>, events_max: usize) -> PyResult<Bound<'py, PyList>> {
        if let Some(why) = self.shared.inbox.failure() {
            return Err(PyRuntimeError::new_err(why));
        }
        let events = self.shared.inbox.take(events_max);
        let list = PyList::empty(py);
        for event in events {
            list.append(self.tuple(py, event)?)?;
        }
        Ok(list)
    }

    fn answer(&self, answers: &Bound<'_, PyList>) -> PyResult<()> {
        let mut ids = Vec::with_capacity(answers.len());
        let mut framed = BytesMut::with_capacity(answers.len() * 64);
        for answer in answers {
            let answer = answer.cast_into::<PyTuple>()?;
            let message = answer.get_item(1)?.cast_into::<PyBytes>()?;
            let bytes = message.as_bytes();
            message::put_with_prefix(&mut framed, checked(bytes)?);
            ids.push((answer.get_item(0)?.extract::<u64>()?, PREFIX_BYTES + bytes.len()));
        }
        let mut framed = framed.freeze();
        let answers = ids.into_iter().map(|(id, size)| (id, framed.split_to(size))).collect();
        self.shared.outbox.push(Order::Answers(answers));
        Ok(())
    }

    fn send(&self, id: u64, message: &[u8]) -> PyResult<usize> {
        let message = message::with_prefix(checked(message)?);
        let buffer = lock(&self.shared.buffers).entry(id).or_default().clone();
        let waiting = buffer.add(message.len(), self.stream_buffer_bytes);
        self.shared.outbox.push(Order::Send { id, message, buffer });
        Ok(waiting)
    }

    #[pyo3(signature = (id, message_bytes, messages = 1))]
    fn release(&self, id: u64, message_bytes: usize, messages: usize) {
        self.shared.outbox.push(Order::Release { id, bytes: message_bytes, messages });
    }

    fn initial_metadata(&self, id: u64, metadata: Vec<(String, Sent)>) -> PyResult<()> {
        self.shared.outbox.push(Order::InitialMetadata { id, headers: sent(metadata)? });
        Ok(())
    }

    fn finish(&self, id: u64, code: u32, message: &str, trailing: Vec<(String, Sent)>) -> PyResult<()> {
        let trailers = status::trailers(code, message, sent(trailing)?);
        self.shared.outbox.push(Order::Finish { id, trailers });
        Ok(())
    }

    fn stop_accepting(&self) {
        lock(&self.state).drop_listeners();
        self.shared.outbox.push(Order::StopAccepting);
    }

    fn drain(&self) {
        self.shared.outbox.push(Order::Drain);
    }

    fn open_calls(&self) -> u64 {
        self.shared.stats.calls_open.get()
    }

    #[pyo3(signature = (flush_ms = 1_000))]
    fn close(&self, py: Python<'_>, flush_ms: u64) {
        let state = std::mem::replace(&mut *lock(&self.state), State::Closed);
        if let State::Running(thread) = state {
            *lock(&self.shared.flush) = Duration::from_millis(flush_ms);
            self.shared.outbox.push(Order::Close);
            // A panic of the thread was caught inside.
            let _ = py.detach(|| thread.join());
        }
        self.shared.inbox.close();
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        for (name, count) in self.shared.stats.read() {
            stats.set_item(name, count)?;
        }
        Ok(stats)
    }
}

impl Edge {
    fn tuple<'py>(&self, py: Python<'py>, event: Event) -> PyResult<Bound<'py, PyTuple>> {
        match event {
            Event::Call { id, head, message } => {
                let headers = headers(py, &head)?;
                (CALL, id, head.method, headers, self.deadline_ms(&head), PyBytes::new(py, &message)).into_pyobject(py)
            }
            Event::Open { id, head } => {
                let headers = headers(py, &head)?;
                let deadline_ms = self.deadline_ms(&head);
                match head.path {
                    None => (OPEN, id, head.method, headers, deadline_ms).into_pyobject(py),
                    Some(path) => (OPEN, id, head.method, headers, deadline_ms, &*path).into_pyobject(py),
                }
            }
            Event::Message { id, message } => (MESSAGE, id, PyBytes::new(py, &message)).into_pyobject(py),
            Event::HalfClose { id } => (HALF_CLOSE, id).into_pyobject(py),
            Event::Cancel { id } => (CANCEL, id).into_pyobject(py),
            Event::Writable { id } => (WRITABLE, id).into_pyobject(py),
        }
    }

    /// 0: none.
    fn deadline_ms(&self, head: &Head) -> i64 {
        let Some(deadline) = head.deadline else { return 0 };
        let (epoch, epoch_ms) = self.epoch;
        let after_ms = deadline.saturating_duration_since(epoch).as_millis();
        epoch_ms.saturating_add(i64::try_from(after_ms).unwrap_or(i64::MAX)).max(1)
    }
}

impl State {
    fn drop_listeners(&mut self) {
        if let Self::Bound(listeners) = self {
            listeners.clear();
        }
    }
}

/// One object for all calls that share the block.
fn headers<'py>(py: Python<'py>, head: &Head) -> PyResult<Bound<'py, Headers>> {
    let seen = head.headers.seen.get().and_then(|seen| seen.downcast_ref::<Py<Headers>>());
    if let Some(seen) = seen {
        return Ok(seen.bind(py).clone());
    }
    let made = Bound::new(py, Headers::of(py, &head.headers)?)?;
    let _ = head.headers.seen.set(Box::new(made.clone().unbind()));
    Ok(made)
}

/// The length of a message has 32 bits.
fn checked(message: &[u8]) -> PyResult<&[u8]> {
    if u32::try_from(message.len() + PREFIX_BYTES).is_err() {
        return Err(PyValueError::new_err("a message has at most 4 GiB"));
    }
    Ok(message)
}

impl Drop for Edge {
    fn drop(&mut self) {
        let state = self.state.get_mut().map(|state| std::mem::replace(state, State::Closed));
        if let Ok(State::Running(_)) = state {
            // Nobody waits for the thread: this may run anywhere.
            self.shared.outbox.push(Order::Close);
        }
    }
}

#[pymodule]
fn liveness_edge(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Edge>()?;
    module.add_class::<Headers>()?;
    module.add("CALL", CALL)?;
    module.add("OPEN", OPEN)?;
    module.add("MESSAGE", MESSAGE)?;
    module.add("HALF_CLOSE", HALF_CLOSE)?;
    module.add("CANCEL", CANCEL)?;
    module.add("WRITABLE", WRITABLE)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}
