"""The SDK takes part in a program's traces, and works without OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from opentelemetry import trace

from liveness.sdk import traces
from liveness.v1.activity_pb2 import ScheduleActivityRequest
from liveness.v1.service_pb2 import RecordWorkerHeartbeatsRequest

NO_PROVIDER = "of this process: the tests set none up"


def test_a_program_without_tracing_sends_no_trace_context() -> None:
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider), NO_PROVIDER
    assert traces.start_call(RecordWorkerHeartbeatsRequest()) is None
    assert traces.current_span_context() is None


def test_a_program_without_opentelemetry_imports_none_of_it() -> None:
    program = (
        "import sys\n"
        "from liveness.sdk import traces\n"
        "from liveness.v1.service_pb2 import RecordWorkerHeartbeatsRequest\n"
        "assert traces.start_call(RecordWorkerHeartbeatsRequest()) is None\n"
        "assert traces.current_span_context() is None\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_call_inside_a_foreign_span_continues_its_trace() -> None:
    """Also where the program only forwards a trace and records no spans itself."""
    state = trace.TraceState([("vendor", "x")])
    theirs = trace.SpanContext(
        0xABC, 0xDEF, is_remote=True, trace_flags=trace.TraceFlags(1), trace_state=state
    )
    with trace.use_span(trace.NonRecordingSpan(theirs)):
        span = traces.current_span_context()
    assert span is not None
    sent = traces.start_call(ScheduleActivityRequest(), span)
    assert sent is not None
    assert dict(sent.metadata) == {
        "traceparent": f"00-{0xABC:032x}-{0xDEF:016x}-01",
        "tracestate": "vendor=x",
    }


def test_a_failing_tracer_costs_no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no tracer today")

    monkeypatch.setitem(sys.modules, "opentelemetry.trace", SimpleNamespace(get_tracer=fail))
    assert traces.start_call(RecordWorkerHeartbeatsRequest()) is None
