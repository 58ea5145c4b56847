"""The largest requests that each kind of call accepts, as far as they make the server work the most."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.v1 import (
    activity_pb2,
    admin_pb2,
    cluster_pb2,
    component_metrics_service_pb2,
    component_pb2,
    component_service_pb2,
    progress_service_pb2,
    registry_service_pb2,
    service_pb2,
    worker_pb2,
)

NAMESPACE = "large"


class LargeRequest(NamedTuple):
    name: str
    service: str
    method: str
    build: Callable[[int], Any]
    """Makes the request, given the number of the try: the same worker can be registered once only."""

    @property
    def makes_state(self) -> bool:
        """Whether later requests need what it stores."""
        return self.method.startswith(("Record", "Schedule", "Report", "Register"))


def ref(number: int, **fields: Any) -> worker_pb2.ActivityRef:
    return worker_pb2.ActivityRef(
        **{"workflow_id": f"f{number}", "run_id": "r", "activity_id": "a", "attempt": 1, "task_queue": "q", **fields}
    )  # fmt: skip


def long_name(number: int) -> str:
    return f"{number:07d}".rjust(255, "x")


def beat(worker: str, **fields: Any) -> worker_pb2.WorkerHeartbeat:
    return worker_pb2.WorkerHeartbeat(worker_instance_key=worker, **fields)


def batch(beats: Iterator[worker_pb2.WorkerHeartbeat]) -> service_pb2.RecordWorkerHeartbeatsRequest:
    return service_pb2.RecordWorkerHeartbeatsRequest(namespace=NAMESPACE, heartbeats=beats)


def bindings(worker: int, count: int, shift: int = 0) -> list[worker_pb2.ActivityRef]:
    return [ref(worker * 1_000 + number + shift) for number in range(count)]


def activity_id(number: int) -> activity_pb2.ActivityId:
    return activity_pb2.ActivityId(
        workflow_id=long_name(number), run_id=long_name(number), activity_id=long_name(number)
    )


def _large_requests() -> Iterator[LargeRequest]:
    def heartbeats(
        name: str, one: Callable[[int, int], worker_pb2.WorkerHeartbeat], count: int = 1_000
    ) -> LargeRequest:
        return LargeRequest(
            name, "Liveness", "RecordWorkerHeartbeats", lambda run: batch(one(run, n) for n in range(count))
        )

    def listing(prefix: str) -> service_pb2.ListWorkersRequest:
        return service_pb2.ListWorkersRequest(
            namespace=NAMESPACE, page_size=1_000, filter=service_pb2.WorkerFilter(key_prefix=prefix)
        )

    yield heartbeats("1,000 registrations", lambda run, n: beat(f"w{run}-{n}"))
    yield heartbeats("1,000 new sessions", lambda run, n: beat(f"w{run}-{n}", session_id="s"))
    yield heartbeats("6 MB of profiles", lambda run, n: beat(f"p{run}-{n}", current_job="j" * 6_000))
    yield heartbeats(
        "90,000 labels", lambda run, n: beat(f"l{run}-{n}", labels={str(i): str(i) for i in range(90)})
    )
    yield heartbeats(
        "90,000 bindings",
        lambda run, n: beat(f"b{run}-{n}", session_id="s", bound_activities=bindings(n, 90)),
    )
    yield heartbeats(
        "90,000 other bindings",
        lambda run, n: beat(f"b{run}-{n}", session_id="s", full_bindings=True, bound_activities=bindings(n, 90, 5)),
    )  # fmt: skip
    yield heartbeats(
        "1,000 refusals",
        lambda run, n: beat(f"x{n}", bound_activities=[ref(i, task_queue="") for i in range(90)]),
    )
    for number in range(4):
        yield LargeRequest(
            f"2 MB of tokens, {number}",
            "Liveness",
            "RecordWorkerHeartbeat",
            lambda run, number=number: service_pb2.RecordWorkerHeartbeatRequest(  # type: ignore[misc]
                namespace=NAMESPACE,
                heartbeat=beat(
                    "tokens",
                    full_bindings=True,
                    bound_activities=[ref(run * 9_000 + number * 1_000 + i, token=b"x" * 2_048) for i in range(1_000)],
                ),
            ),
        )  # fmt: skip
    yield LargeRequest(
        "a history of 24 MB",
        "Liveness",
        "GetWorkerHistory",
        lambda run: service_pb2.GetWorkerHistoryRequest(
            namespace=NAMESPACE, worker_instance_key="tokens", page_size=1_000
        ),
    )
    for prefix in "wpl":
        yield LargeRequest(
            f"a list of 1,000 workers {prefix}",
            "Liveness",
            "ListWorkers",
            lambda run, prefix=prefix: listing(prefix),  # type: ignore[misc]
        )
    yield LargeRequest(
        "1,000 events",
        "Liveness",
        "ListRecentEvents",
        lambda run: service_pb2.ListRecentEventsRequest(namespace=NAMESPACE, page_size=1_000),
    )
    yield LargeRequest(
        "1,000 tasks", "Admin", "ListTasks", lambda run: admin_pb2.ListTasksRequest(page_size=1_000)
    )
    yield LargeRequest(
        "pause 3,000 workers",
        "Admin",
        "PauseWorkers",
        lambda run: admin_pb2.PauseWorkersRequest(namespace=NAMESPACE, filter=service_pb2.WorkerFilter()),
    )
    yield LargeRequest(
        "resume 3,000 workers",
        "Admin",
        "ResumeWorkers",
        lambda run: admin_pb2.ResumeWorkersRequest(namespace=NAMESPACE, all=True),
    )
    for number in range(20):
        yield LargeRequest(
            f"256 KiB of input, {number}",
            "Activity",
            "ScheduleActivity",
            lambda run, number=number: activity_pb2.ScheduleActivityRequest(  # type: ignore[misc]
                namespace=NAMESPACE,
                id=activity_pb2.ActivityId(workflow_id=f"s{number}", run_id=str(run), activity_id="a"),
                task_queue="large",
                input=b"\xff" * 262_000,
            ),
        )
    yield heartbeats("the poller", lambda run, n: beat("poller", session_id="s", task_queue="large"), 1)
    yield LargeRequest(
        "a poll for 100 large activities",
        "Activity",
        "PollActivity",
        lambda run: activity_pb2.PollActivityRequest(
            namespace=NAMESPACE, worker_instance_key="poller", session_id="s", max_activities=100
        ),
    )
    yield LargeRequest(
        "a poll for 1,000 types",
        "Activity",
        "PollActivity",
        lambda run: activity_pb2.PollActivityRequest(
            namespace=NAMESPACE, worker_instance_key="poller", session_id="s", task_queue="none",
            activity_types=map(long_name, range(1_000)), wait=Duration(nanos=1),
        ),
    )  # fmt: skip
    for name, labels in (("16,000 labels", 16), ("1,000 samples", 0)):
        yield LargeRequest(
            name,
            "Metrics",
            "ReportMetrics",
            lambda run, labels=labels: component_metrics_service_pb2.ReportMetricsRequest(  # type: ignore[misc]
                namespace=NAMESPACE,
                worker_instance_key="measured",
                samples=[
                    component_metrics_service_pb2.MetricSample(
                        name=f"m{n % 90}",
                        labels={f"{'l' * 50}{i}": "v" * 50 for i in range(labels)},
                        time=Timestamp(seconds=int(time.time()) - n),
                        help="h" * 200,
                    )
                    for n in range(1_000)
                ],
            ),
        )
    yield LargeRequest(
        "180 series",
        "Metrics",
        "QueryMetrics",
        lambda run: component_metrics_service_pb2.QueryMetricsRequest(
            namespace=NAMESPACE, page_size=1_000, step=Duration(seconds=4)
        ),
    )
    yield LargeRequest(
        "1,000 activities",
        "Activity",
        "ListActivities",
        lambda run: activity_pb2.ListActivitiesRequest(namespace=NAMESPACE, page_size=1_000),
    )
    yield LargeRequest(
        "look up 1,000 workers",
        "Cluster",
        "LookUpWorkers",
        lambda run: cluster_pb2.LookUpWorkersRequest(
            namespace=NAMESPACE, worker_instance_keys=[f"p{run}-{n}" for n in range(1_000)]
        ),
    )
    yield LargeRequest(
        "look at 1,000 holders",
        "Cluster",
        "LookAtHolders",
        lambda run: cluster_pb2.LookAtHoldersRequest(
            questions=[
                cluster_pb2.LookAtHoldersRequest.Question(
                    namespace=NAMESPACE, worker_instance_key=long_name(n), id=activity_id(n)
                )
                for n in range(1_000)
            ]
        ),
    )
    yield LargeRequest(
        "find 1,000 attempts",
        "Cluster",
        "FindNotHeld",
        lambda run: cluster_pb2.FindNotHeldRequest(
            attempts=[
                cluster_pb2.HeldAttempt(
                    namespace=NAMESPACE, worker_instance_key=long_name(n), id=activity_id(n), attempt=1
                )
                for n in range(1_000)
            ]
        ),
    )
    for method, kind in (
        ("BindAttempts", cluster_pb2.BindAttemptsRequest),
        ("TakeBack", cluster_pb2.TakeBackRequest),
    ):
        yield LargeRequest(
            f"{method} of 100",
            "Cluster",
            method,
            lambda run, kind=kind: kind(  # type: ignore[misc]
                namespace=NAMESPACE, worker_instance_key="poller", activities=bindings(run + 5_000, 100)
            ),
        )  # fmt: skip
    yield LargeRequest(
        "50,000 heads",
        "Cluster",
        "Hint",
        lambda run: cluster_pb2.HintRequest(
            node_id="n",
            address="127.0.0.1:1",
            heads=[cluster_pb2.LogHead(shard_id=n % 8, sequence=n) for n in range(50_000)],
        ),
    )
    yield from _registry_requests()
    yield from _component_requests()
    yield from _progress_requests()
    # Last, because the queue has 90,000 tasks from then on.
    yield heartbeats("90,000 lost bindings", lambda run, n: beat(f"b{run}-{n}", session_id="t"))


def _registry_requests() -> Iterator[LargeRequest]:
    """Components that describe themselves at length, and lists that look into all of it."""
    numbers = "{" + ",".join(f'"{number}":1' for number in range(480)) + "}"
    nested = '{"a":' + '{"":' * 300 + "[" * 100 + "]" * 100 + "}" * 301
    for number in range(600):
        yield LargeRequest(
            f"a component, {number}",
            "Registry",
            "Register",
            lambda run, number=number: registry_service_pb2.RegisterRequest(  # type: ignore[misc]
                namespace=NAMESPACE,
                worker_instance_key=f"pool:{number}",
                session_id="s",
                uri="u" * 2_048,
                runtime_json=nested if number % 2 else numbers,
                labels={f"{label:03}": "v" * 20 for label in range(300)},
            ),
        )
    for number in range(100):
        yield LargeRequest(
            f"a replica, {number}",
            "Registry",
            "Register",
            lambda run, number=number: registry_service_pb2.RegisterRequest(  # type: ignore[misc]
                namespace=NAMESPACE, worker_instance_key="pool:0", session_id=f"r{number}", uri="u" * 2_048
            ),
        )
    for name, fields in (
        ("all", {}),
        ("none", {"runtime": {"x": "y"}, "labels": {"000": "v" * 20}}),
        ("nested", {"runtime": {"a": "y"}}),
        ("conditions", {"labels": {f"{label:03}": "v" * 20 for label in range(100)}}),
    ):
        yield LargeRequest(
            f"a list of components: {name}",
            "Registry",
            "ListEntries",
            lambda run, fields=fields: registry_service_pb2.ListEntriesRequest(  # type: ignore[misc]
                namespace=NAMESPACE, page_size=1_000, **fields
            ),
        )


def _component_requests() -> Iterator[LargeRequest]:
    for number in range(100):
        component: dict[str, Any] = {
            "namespace": NAMESPACE,
            "worker_instance_key": f"worker:g:{number}",
            "session_id": "s",
        }
        yield LargeRequest(
            f"a process, {number}",
            "Liveness",
            "RecordWorkerHeartbeat",
            lambda run, number=number: service_pb2.RecordWorkerHeartbeatRequest(  # type: ignore[misc]
                namespace=NAMESPACE,
                heartbeat=beat(f"worker:g:{number}", session_id="s", sequence=run + 1),
            ),
        )
        yield LargeRequest(
            f"a report, {number}",
            "Component",
            "ReportComponent",
            lambda run, component=component: component_service_pb2.ReportComponentRequest(  # type: ignore[misc]
                **component,
                number=run + 1,
                status=component_pb2.COMPONENT_STATUS_STARTING,
                time=Timestamp(seconds=int(time.time())),
                reason="r" * 4_000,
                details_json="{" + ",".join(f'"{at}":1' for at in range(480)) + "}",
                restart_times=[Timestamp(seconds=at) for at in range(100)],
                last_exit=component_pb2.ProcessExit(
                    code=1, time=Timestamp(seconds=1), last_lines=["x" * 400] * 20
                ),
            ),
        )
    for method, kind in (
        ("ListComponents", component_service_pb2.ListComponentsRequest),
        ("ListComponentGroups", component_service_pb2.ListComponentGroupsRequest),
    ):
        yield LargeRequest(
            method,
            "Component",
            method,
            lambda run, kind=kind: kind(namespace=NAMESPACE, page_size=1_000),  # type: ignore[misc]
        )


def _progress_requests() -> Iterator[LargeRequest]:
    """Units that remember as many reports as they can."""
    for number in range(1_000):
        yield LargeRequest(
            f"progress, {number}",
            "Progress",
            "ReportProgress",
            lambda run, number=number: progress_service_pb2.ReportProgressRequest(  # type: ignore[misc]
                namespace=NAMESPACE,
                worker_instance_key="w",
                unit=f"{number // 20:03}".rjust(200, "u"),
                successes=1,
                error="e" * 1_024,
                report_id=f"{run}-{number}".rjust(128, "i"),
            ),
        )
    yield LargeRequest(
        "a list of progress",
        "Progress",
        "ListProgress",
        lambda run: progress_service_pb2.ListProgressRequest(namespace=NAMESPACE, page_size=1_000),
    )


LARGE_REQUESTS = tuple(_large_requests())
