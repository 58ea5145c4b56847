"""Add the SDK's calls to the traces of a program that uses OpenTelemetry.

The SDK does not depend on OpenTelemetry: this module uses it only if the program has loaded it. Heartbeats are not caused
by a call of the program, so they begin traces of their own, as many as the program's sampler lets through. Other calls
belong to the span in which they are made, if there is one.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import grpc
from google.protobuf.message import Message

_TRACE_API_MODULE = "opentelemetry.trace"

log = logging.getLogger("liveness.sdk")


class CallSpan:
    """The span of a pending call."""

    def __init__(self, api: Any, span: Any) -> None:
        self._api = api
        self._span = span
        span_context = span.get_span_context()
        self.metadata: tuple[tuple[str, str], ...] = (
            (
                "traceparent",
                f"00-{span_context.trace_id:032x}-{span_context.span_id:016x}-{span_context.trace_flags:02x}",
            ),
        )
        if span_context.trace_state:
            self.metadata += (("tracestate", span_context.trace_state.to_header()),)

    def on_done(self, call: Any) -> None:
        code = call.code()
        try:
            self._span.set_attribute("rpc.grpc.status_code", code.value[0])
            if code is not grpc.StatusCode.OK:
                self._span.set_status(self._api.StatusCode.ERROR, code.name)
            self._span.end()
        except Exception:  # a tracer that fails must not cost a lease
            log.debug("a span could not be ended", exc_info=True)


def current_span_context() -> Any | None:
    """The context of the program's current span; None if there is none."""
    api = sys.modules.get(_TRACE_API_MODULE)
    if api is None:
        return None
    span = api.get_current_span()
    return api.set_span_in_context(span) if span.get_span_context().is_valid else None


def start_call(request: Message, parent: Any | None = None, **attributes: str | int) -> CallSpan | None:
    """Start the span of a call; None if the program does not trace. Without a parent, the span begins a trace."""
    api = sys.modules.get(_TRACE_API_MODULE)
    if api is None:
        return None
    try:
        method = request.DESCRIPTOR.name.removesuffix("Request")
        service = _service_of(request, method)
        span = api.get_tracer("liveness.sdk").start_span(
            f"{service}/{method}",
            parent,
            kind=api.SpanKind.CLIENT,
            attributes={
                "rpc.system": "grpc",
                "rpc.service": service,
                "rpc.method": method,
                **{f"liveness.{name}": value for name, value in attributes.items()},
            },
        )
        # Without a tracer provider, the API returns invalid spans.
        return CallSpan(api, span) if span.get_span_context().is_valid else None
    except Exception:  # a tracer that fails must not cost a lease
        log.debug("a span could not be started", exc_info=True)
        return None


def _service_of(request: Message, method: str) -> str:
    services = request.DESCRIPTOR.file.services_by_name.values()
    return next((service.full_name for service in services if method in service.methods_by_name), "")
