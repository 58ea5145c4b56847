"""A sampled call is one trace from the worker through the frontend to the commit; other calls leave no spans."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from liveness.rpc.tracing import is_sampled
from liveness.v1.service_pb2 import DescribeWorkerRequest, RecordWorkerHeartbeatRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub
from liveness.v1.worker_pb2 import WorkerHeartbeat
from tests.system.cli.server_processes import child_process, environment, first_address, liveness_command
from tests.system.tracing.collector import Spans, chain, collecting
from tests.system.tracing.conftest import TracedServers

ROOT = Path(__file__).resolve().parents[3]
SERVICE = "liveness.v1.LivenessService"
BEATS = f"{SERVICE}/RecordWorkerHeartbeats"
BEAT = f"{SERVICE}/RecordWorkerHeartbeat"
PARENT_ID = "b7ad6b7169203331"


def traceparent(trace_id: str, *, sampled: bool = True) -> tuple[tuple[str, str], ...]:
    return (("traceparent", f"00-{trace_id}-{PARENT_ID}-{'01' if sampled else '00'}"),)


def beat(
    address: str, namespace: str, key: str = "w", metadata: tuple[tuple[str, str], ...] | None = None
) -> None:
    request = RecordWorkerHeartbeatRequest(
        namespace=namespace, heartbeat=WorkerHeartbeat(worker_instance_key=key)
    )
    with grpc.insecure_channel(address) as channel:
        LivenessServiceStub(channel).RecordWorkerHeartbeat(request, timeout=30, metadata=metadata)


def commits(spans: Spans, of: str, namespace: str) -> Spans:
    """Return the commits at the end of a complete trace of such a call."""
    ends = [span for span in spans if span.name == "commit"]
    return [
        end
        for end in ends
        if len(way := chain(spans, end)) >= 5
        and way[-2].name == of
        and way[-2].attributes.get("liveness.namespace") == namespace
    ]


def full_chain(servers: TracedServers, of: str, namespace: str) -> Spans:
    servers.collector.until(lambda spans: commits(spans, of, namespace))
    spans = servers.collector.spans
    return chain(spans, commits(spans, of, namespace)[0])


def full_chain_of(servers: TracedServers, trace_id: str, how_many: int) -> Spans:
    """Return the `how_many` spans of a trace without branches, once all have arrived."""

    def wanted(spans: Spans) -> Spans:
        found = [span for span in spans if span.trace_id == trace_id]
        return found if len(found) >= how_many else []

    found = servers.collector.until(wanted)
    parents = {span.parent_id for span in found}
    (last,) = (span for span in found if span.span_id not in parents)
    return chain(found, last)


@pytest.fixture(scope="module")
def traced_run(traced_servers: TracedServers) -> TracedServers:
    """The servers after a traced program has worked through the frontend."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.system.tracing.traced_program", traced_servers.collector.url, traced_servers.frontend, "traced"],
        cwd=ROOT,
        env=environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return traced_servers


def test_a_heartbeat_is_one_trace_from_worker_through_frontend_to_commit(traced_run: TracedServers) -> None:
    way = full_chain(traced_run, BEATS, "traced")
    assert [(span.service, span.kind, span.name) for span in way] == [
        ("program", "CLIENT", BEATS),
        ("liveness-frontend", "SERVER", BEATS),
        ("liveness-frontend", "CLIENT", BEATS),
        ("liveness-server", "SERVER", BEATS),
        ("liveness-server", "INTERNAL", "commit"),
    ]
    assert way[0].parent_id == ""
    assert way[0].attributes["liveness.heartbeats"] == 1
    assert all(span.attributes["rpc.grpc.status_code"] == 0 for span in way[:-1])
    assert int(way[-1].attributes["liveness.shards"]) >= 1


def test_a_call_belongs_to_the_span_in_which_it_is_made(traced_run: TracedServers) -> None:
    way = full_chain(traced_run, "liveness.v1.ActivityService/ScheduleActivity", "traced")
    assert [(span.service, span.name) for span in way[:2]] == [
        ("program", "order"),
        ("program", "liveness.v1.ActivityService/ScheduleActivity"),
    ]


def test_a_sampled_heartbeat_has_a_span_at_every_stage(traced_servers: TracedServers, namespace: str) -> None:
    trace_id = secrets.token_hex(16)
    beat(traced_servers.frontend, namespace, metadata=traceparent(trace_id))
    way = full_chain_of(traced_servers, trace_id, 4)
    assert [(span.service, span.kind, span.name) for span in way] == [
        ("liveness-frontend", "SERVER", BEAT),
        ("liveness-frontend", "CLIENT", BEAT),
        ("liveness-server", "SERVER", BEAT),
        ("liveness-server", "INTERNAL", "commit"),
    ]
    assert way[0].parent_id == PARENT_ID


def test_an_unsampled_call_leaves_no_spans(traced_servers: TracedServers, namespace: str) -> None:
    unsampled, marked = secrets.token_hex(16), secrets.token_hex(16)
    beat(traced_servers.frontend, namespace, "unsampled", traceparent(unsampled, sampled=False))
    beat(traced_servers.frontend, namespace, "untraced")
    beat(traced_servers.node, namespace, "strange", (("traceparent", "00-zz-yy-01"),))
    beat(traced_servers.frontend, namespace, "marked", traceparent(marked))
    full_chain_of(traced_servers, marked, 4)
    here = [
        span
        for span in traced_servers.collector.spans
        if span.attributes.get("liveness.namespace") == namespace
    ]
    assert {span.trace_id for span in here} == {marked}


def test_a_rejected_call_records_its_status(traced_servers: TracedServers, namespace: str) -> None:
    trace_id = secrets.token_hex(16)
    request = DescribeWorkerRequest(namespace=namespace, worker_instance_key="nobody")
    with grpc.insecure_channel(traced_servers.frontend) as channel, pytest.raises(grpc.RpcError):
        LivenessServiceStub(channel).DescribeWorker(request, timeout=30, metadata=traceparent(trace_id))
    way = full_chain_of(traced_servers, trace_id, 3)
    not_found = grpc.StatusCode.NOT_FOUND.value[0]
    assert [span.attributes["rpc.grpc.status_code"] for span in way] == [not_found] * 3
    assert [(span.kind, span.failed) for span in way] == [
        ("SERVER", False),  # the server itself did not fail
        ("CLIENT", True),
        ("SERVER", False),
    ]


def test_calls_in_one_commit_share_its_number_in_their_own_traces(
    traced_servers: TracedServers, namespace: str
) -> None:
    trace_ids = [secrets.token_hex(16) for _ in range(30)]
    with grpc.insecure_channel(traced_servers.node) as channel:
        calls = [
            LivenessServiceStub(channel).RecordWorkerHeartbeat.future(
                RecordWorkerHeartbeatRequest(
                    namespace=namespace, heartbeat=WorkerHeartbeat(worker_instance_key=f"w-{number}")
                ),
                timeout=30,
                metadata=traceparent(trace_id),
            )
            for number, trace_id in enumerate(trace_ids)
        ]
        for call in calls:
            call.result()
    numbers = [
        full_chain_of(traced_servers, trace_id, 2)[-1].attributes["liveness.commit"] for trace_id in trace_ids
    ]
    assert len(set(numbers)) < len(numbers)


# -- costs and failures


def test_a_server_without_tracing_loads_no_tracing_code() -> None:
    program = (
        "import sys, liveness.app, liveness.frontend.app, liveness.cli.server_process, liveness.sdk\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", [("serve",), ("frontend", "--nodes", "127.0.0.1:1")])
def test_a_missing_extra_is_named_in_one_sentence(tmp_path: Path, command: tuple[str, ...]) -> None:
    arguments = (*command, "--listen", "127.0.0.1:0", "--traces", "http://127.0.0.1:4317")
    program = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        f"from liveness.cli import main; main({list(arguments)!r}, prog_name='liveness')"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: a traces URL is configured, but OpenTelemetry is not installed; install liveness[traces]\n"
    )


def test_an_unreachable_collector_delays_neither_answers_nor_the_shutdown(
    tmp_path: Path, namespace: str
) -> None:
    with collecting() as gone:
        url = gone.url
    serve = liveness_command("serve", "--listen", "127.0.0.1:0", "--shards", "2", "--traces", url)
    with child_process(serve, tmp_path) as node:
        assert node.stdout is not None
        address, _ = first_address(node.stdout)
        for number in range(20):
            beat(address, namespace, f"w-{number}", traceparent(secrets.token_hex(16)))
        node.send_signal(signal.SIGTERM)
        assert node.wait() == 0


def test_a_shutdown_sends_the_remaining_spans(tmp_path: Path, namespace: str) -> None:
    trace_id = secrets.token_hex(16)
    with collecting() as collector:
        serve = liveness_command(
            "serve", "--listen", "127.0.0.1:0", "--shards", "2", "--traces", collector.url
        )
        with child_process(serve, tmp_path) as node:
            assert node.stdout is not None
            beat(first_address(node.stdout)[0], namespace, metadata=traceparent(trace_id))
            node.send_signal(signal.SIGTERM)
            assert node.wait() == 0
        assert {span.name for span in collector.spans if span.trace_id == trace_id} == {BEAT, "commit"}


# -- sampling


@pytest.mark.parametrize(
    ("value", "followed"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03", True),
        ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes-later", True),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", False),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02", False),
        ("00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01", False),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", False),
        ("", False),
        (b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", False),
    ],
)
def test_a_call_is_traced_if_its_caller_samples_it(value: str | bytes, followed: bool) -> None:
    assert is_sampled((("user-agent", "x"), ("traceparent", value))) is followed
    assert not is_sampled(())
    assert not is_sampled(None)
