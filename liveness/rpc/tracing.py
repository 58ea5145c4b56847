"""Distributed tracing with OpenTelemetry: W3C `traceparent` in, spans out over OTLP.

A server never starts a trace by itself. It continues traces that the caller sampled, so untraced calls cost nothing, and the
sampling rate is decided in one place, at the start of the trace. OpenTelemetry is imported only if a collector is configured.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Container, Iterable
from contextvars import ContextVar, Token
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING

import grpc
import structlog

from liveness.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, Tracer

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
EXPORT_TIMEOUT_S = 5
"""How long one export to the collector may take."""
FLUSH_TIMEOUT_S = 2.0
"""How long a shutdown waits for the last export."""

Metadata = tuple[tuple[str, str | bytes], ...]

_SAMPLED = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf](-.*)?")
# Codes that indicate a fault of the server; with all others, the caller made the mistake.
_SERVER_ERRORS = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_CLIENT_ERRORS = frozenset(grpc.StatusCode) - {grpc.StatusCode.OK}


logger = structlog.get_logger("liveness.traces")


class _LogHandler(logging.Handler):
    """Forwards OpenTelemetry's log records to the server's log."""

    def emit(self, record: logging.LogRecord) -> None:
        logger.warning("tracing problem", why=record.getMessage())


class TracingNotInstalled(Exception):
    def __init__(self) -> None:
        super().__init__(
            "a traces URL is configured, but OpenTelemetry is not installed; install liveness[traces]"
        )


def is_sampled(metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
    """Whether the caller sampled this call."""
    for name, value in metadata or ():
        if name == TRACEPARENT:
            return isinstance(value, str) and _SAMPLED.fullmatch(value) is not None
    return False


_current_span: ContextVar[CallSpan | None] = ContextVar("current_span", default=None)


class CallSpan:
    """The span of a call; as a context manager, it is the current span."""

    def __init__(self, span: Span, context: Context, errors: Container[grpc.StatusCode]) -> None:
        """`errors`: the status codes that mark this span as failed."""
        self.context = context
        self._errors = errors
        self.is_over = False
        self._span = span
        self._token: Token[CallSpan | None] | None = None

    def __enter__(self) -> CallSpan:
        self._token = _current_span.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        _current_span.reset(self._token)
        # Background work that the call started is not traced after its end.
        self.is_over = True
        self._span.end()

    def set_attributes(self, **attributes: str | int) -> None:
        for name, value in attributes.items():
            self._span.set_attribute(f"liveness.{name}", value)

    def set_status_code(self, code: grpc.StatusCode) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("rpc.grpc.status_code", code.value[0])
        if code in self._errors:
            self._span.set_status(StatusCode.ERROR, code.name)

    def inject_into(self, metadata: Metadata) -> Metadata:
        """Return the metadata with this span as the parent of the receiver's span."""
        own = self._span.get_span_context()
        parent = f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"
        carried = [(name, value) for name, value in metadata if name not in (TRACEPARENT, TRACESTATE)]
        carried.append((TRACEPARENT, parent))
        if own.trace_state:
            carried.append((TRACESTATE, own.trace_state.to_header()))
        return tuple(carried)


class CommitSpan:
    """The commit that one call waits for. Other calls may wait for the same commit, each with a span in its own trace; the
    commit number is the same in all of them."""

    def __init__(self, tracer: Tracer, context: Context) -> None:
        self._tracer = tracer
        self._context = context
        self._span: Span | None = None

    def on_commit_started(self, number: int, shards: int) -> None:
        attributes = {"liveness.commit": number, "liveness.shards": shards}
        self._span = self._tracer.start_span("commit", self._context, attributes=attributes)

    def on_commit_ended(self, *, lost: bool) -> None:
        if self._span is not None:
            if lost:
                from opentelemetry.trace import StatusCode

                self._span.set_status(StatusCode.ERROR, "some shards were lost")
            self._span.end()


class CallTracer:
    def __init__(self, url: str, *, service: str, instance: str, version: str) -> None:
        """`url`: a collector that accepts OTLP over gRPC, http:// or https://."""
        try:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import SpanKind, set_span_in_context
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise TracingNotInstalled from error
        identity = {"service.name": service, "service.instance.id": instance, "service.version": version}
        self._provider = TracerProvider(resource=Resource.create(identity), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(
            endpoint=url, insecure=url.startswith("http://"), timeout=EXPORT_TIMEOUT_S
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        library = logging.getLogger("opentelemetry")
        library.propagate = False
        library.handlers = [_LogHandler(logging.WARNING)]
        self._tracer = self._provider.get_tracer("liveness", version)
        self._extract = TraceContextTextMapPropagator().extract
        self._in_context = set_span_in_context
        self._kinds = SpanKind

    def start_server_span(self, path: str, metadata: Iterable[tuple[str, str | bytes]] | None) -> CallSpan:
        """Start the span of an incoming call that `is_sampled`."""
        carrier = {name: value for name, value in metadata or () if name in (TRACEPARENT, TRACESTATE)}
        return self._start_span(path, self._kinds.SERVER, self._extract(carrier), _SERVER_ERRORS)

    def start_client_span(self, path: str, to: str) -> CallSpan | None:
        """Start the span of an outgoing call on behalf of the current one; None if that is not traced."""
        current = _current_span.get()
        if current is None or current.is_over:
            return None
        span = self._start_span(path, self._kinds.CLIENT, current.context, _CLIENT_ERRORS)
        span.set_attributes(to=to)
        return span

    def start_commit_span(self) -> CommitSpan | None:
        """The span of the commit that the current call will wait for; None if the call is not traced."""
        current = _current_span.get()
        if current is None or current.is_over:
            return None
        return CommitSpan(self._tracer, current.context)

    @property
    def has_current_span(self) -> bool:
        return _current_span.get() is not None

    def _start_span(
        self, path: str, kind: SpanKind, context: Context, errors: Container[grpc.StatusCode]
    ) -> CallSpan:
        service, _, method = path.removeprefix("/").rpartition("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
        span = self._tracer.start_span(f"{service}/{method}", context, kind=kind, attributes=attributes)
        return CallSpan(span, self._in_context(span), errors)

    async def close(self) -> None:
        """Export the remaining spans, for at most `FLUSH_TIMEOUT_S`."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def shut_down() -> None:
            self._provider.shutdown()
            try:
                loop.call_soon_threadsafe(done.cancel)
            except RuntimeError:
                pass  # the loop is closed, so nothing waits for the future

        Thread(target=shut_down, name="last-spans", daemon=True).start()
        await asyncio.wait([done], timeout=FLUSH_TIMEOUT_S)


def create_tracer(url: str, *, service: str, instance: str) -> CallTracer | None:
    """Return None without a URL."""
    return CallTracer(url, service=service, instance=instance, version=VERSION) if url else None
