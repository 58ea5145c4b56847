"""The events of operators' orders name the principal that gave the order, wherever in a cluster it arrived."""

from __future__ import annotations

import json
from typing import Any

from liveness.cli.event_text import describe_event
from liveness.v1 import activity_pb2, admin_pb2, service_pb2
from tests.integration.security.auth_harness import AuthHarness, Client
from tests.integration.security.test_key_ownership import NAMESPACE, beat
from tests.integration.security.test_nodes_and_frontends import caller, key_on, nodes
from tests.integration.server.server_harness import ServerHarness

__all__ = ["nodes"]

ID = activity_pb2.ActivityId(workflow_id="wf", run_id="r", activity_id="a")


async def events_of(client: Client) -> list[Any]:
    request = service_pb2.ListRecentEventsRequest(namespace=NAMESPACE)
    return list((await client.liveness.ListRecentEvents(request)).events)


async def authors(client: Client) -> dict[str, str]:
    """By kind of event: the principal that the newest one names."""
    found: dict[str, str] = {}
    for event in await events_of(client):
        data = json.loads(event.data_json)
        if "by" in data:
            found.setdefault(event.type, data["by"])
    return found


async def test_every_order_names_who_gave_it(auth_on_each_database: AuthHarness) -> None:
    auth = auth_on_each_database
    worker = await auth.caller("render", f"worker:{NAMESPACE}", f"producer:{NAMESPACE}")
    oncall = await auth.caller("oncall", f"operator:{NAMESPACE}", f"admin:{NAMESPACE}")
    await beat(worker)
    target: dict[str, Any] = {"namespace": NAMESPACE, "worker_instance_key": "w"}
    admin = oncall.admin
    await admin.PauseWorkers(admin_pb2.PauseWorkersRequest(**target, reason="leak"))
    await admin.ResumeWorkers(admin_pb2.ResumeWorkersRequest(**target))
    await admin.DrainWorker(admin_pb2.DrainWorkerRequest(**target))
    await admin.ExpireWorker(admin_pb2.ExpireWorkerRequest(**target))
    await admin.ForgetWorker(admin_pb2.ForgetWorkerRequest(**target))
    await admin.PauseWorkers(admin_pb2.PauseWorkersRequest(namespace=NAMESPACE, all=True))
    await admin.ResumeWorkers(admin_pb2.ResumeWorkersRequest(namespace=NAMESPACE, all=True))
    await _fail_activity(worker)
    await oncall.activities.RetryActivity(activity_pb2.RetryActivityRequest(namespace=NAMESPACE, id=ID))
    assert await authors(auth.admin_client) == {"ActivityScheduled": "render"} | dict.fromkeys(
        [
            "WorkerPaused",
            "WorkerResumed",
            "DrainBegun",
            "WorkerDeactivated",
            "WorkerForgotten",
            "ConfigChanged",
            "ActivityMadeAvailable",
        ],
        "oncall",
    )
    texts = [str(describe_event(event)) for event in await events_of(auth.admin_client)]
    for text in (
        "w is paused by oncall: leak",
        "w may take new work again, by order of oncall",
        "w was forced out by oncall",
        "w is forgotten by oncall; its key may register again",
        "namespace shop is paused by oncall",
        "wf/r/a waits for a worker (attempt 2), with a fresh start by order of oncall",
    ):
        assert text in texts
    await auth.restart()
    assert (await authors(auth.admin_client))["WorkerDeactivated"] == "oncall"


async def _fail_activity(client: Client) -> None:
    await client.activities.ScheduleActivity(
        activity_pb2.ScheduleActivityRequest(namespace=NAMESPACE, id=ID, task_queue="q")
    )
    await beat(client, "runner")
    claim = activity_pb2.PollActivityRequest(
        namespace=NAMESPACE, worker_instance_key="runner", session_id="s1", task_queue="q"
    )
    [task] = (await client.activities.PollActivity(claim)).activities
    await client.activities.FailActivity(
        activity_pb2.FailActivityRequest(
            namespace=NAMESPACE,
            id=ID,
            worker_instance_key="runner",
            session_id="s1",
            lease_epoch=task.lease_epoch,
            attempt=task.attempt,
            non_retryable=True,
        )
    )


async def test_the_owner_of_the_shard_names_who_called_another_node(nodes: list[AuthHarness]) -> None:
    first, second = nodes
    oncall = first.client(await caller(nodes, "oncall", f"operator:{NAMESPACE}"))
    key = key_on(second)
    await beat(second.admin_client, key)
    where = service_pb2.WorkerFilter(key_prefix=key)
    await oncall.admin.PauseWorkers(admin_pb2.PauseWorkersRequest(namespace=NAMESPACE, filter=where))
    await oncall.admin.ExpireWorker(
        admin_pb2.ExpireWorkerRequest(namespace=NAMESPACE, worker_instance_key=key)
    )
    assert await authors(first.admin_client) == {"WorkerPaused": "oncall", "WorkerDeactivated": "oncall"}


async def test_an_order_names_nobody_where_nobody_is_asked(harness: ServerHarness) -> None:
    await harness.beat()
    await harness.expire()
    events = (await harness.liveness.ListRecentEvents(service_pb2.ListRecentEventsRequest())).events
    [deactivated] = [event for event in events if event.type == "WorkerDeactivated"]
    assert json.loads(deactivated.data_json)["by"] == ""
    assert str(describe_event(deactivated)) == "w was forced out"


async def test_a_death_and_a_shutdown_name_nobody(auth: AuthHarness) -> None:
    worker = await auth.caller("render", f"worker:{NAMESPACE}")
    await beat(worker, "silent", lease_ms=1_000)
    await beat(worker, "leaving")
    await worker.liveness.ShutdownWorker(
        service_pb2.ShutdownWorkerRequest(namespace=NAMESPACE, worker_instance_key="leaving", session_id="s1")
    )
    await auth.advance(15_000)
    events = [event for event in await events_of(auth.admin_client) if event.type == "WorkerDeactivated"]
    assert [json.loads(event.data_json)["by"] for event in events] == ["", ""]
