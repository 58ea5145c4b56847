"""Activities whose worker, caller and shard are on different nodes."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest

from liveness.domain.keys import shard_of
from liveness.v1 import activity_pb2, service_pb2
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from tests.crash.scale import seeds
from tests.system.cluster.nodes import SHARDS, Cluster, Node
from tests.system.server.crash_loop import ReportResult
from tests.system.worker_processes.activity_totals import check_totals
from tests.system.worker_processes.namespace_client import NamespaceClient, names
from tests.system.worker_processes.worker_notes import Action
from tests.system.worker_processes.worker_processes import WorkerGroup

ACTIVITIES = 60
LEASE = 1.5
GRACE = 1.0


async def run_on_all_nodes(
    shared_cluster: Cluster, namespace: str, folder: Path, report_result: ReportResult, kills: int
) -> None:
    """Let each worker poll one node, schedule activities at all nodes in turn, and kill some workers."""
    node_addresses = [node.fixed_address for node in shared_cluster.nodes]
    async with (
        NamespaceClient(node_addresses[0], namespace) as namespace_client,
        NamespaceClient(node_addresses[1], namespace) as second,
        NamespaceClient(node_addresses[2], namespace) as third,
    ):
        second.scheduled = third.scheduled = namespace_client.scheduled
        # A hand-out that was on its way to a killed worker is taken back after this time.
        await namespace_client.configure(dispatch_timeout={"seconds": 1})
        worker_group = WorkerGroup(folder, namespace, node_addresses[0], [])
        joined = count()

        async def join() -> None:
            number = next(joined)
            await worker_group.join(
                f"worker-{number}",
                address=node_addresses[number % 3],
                lease=LEASE,
                grace=GRACE,
                slots=3,
                wait=False,
            )

        try:
            for _ in node_addresses:
                await join()
            jobs = dict.fromkeys(names("job", ACTIVITIES), "stubborn")
            for number, name in enumerate(jobs):
                await (namespace_client, second, third)[number % 3].schedule(
                    name, "stubborn", deaths_max=0, ms=100
                )
            for number in range(kills):
                victim = worker_group.members[number]
                await victim.wait_for_note(Action.STARTED)
                await victim.kill()
                await join()
            reckoning = await check_totals(worker_group, namespace_client, jobs)
            report_result(str(reckoning))
            # Every node gives the same answer.
            whole = await namespace_client.completions()
            assert await second.completions() == await third.completions() == whole
        finally:
            await worker_group.close()


async def test_every_activity_completes_once_although_workers_die(
    shared_cluster: Cluster, namespace: str, tmp_path: Path, report_result: ReportResult
) -> None:
    await run_on_all_nodes(shared_cluster, namespace, tmp_path, report_result, kills=2)


@pytest.mark.crash_long
@pytest.mark.parametrize("kills", seeds(3, 6))
async def test_every_activity_completes_once_although_many_workers_die(
    shared_cluster: Cluster, namespace: str, tmp_path: Path, report_result: ReportResult, kills: int
) -> None:
    await run_on_all_nodes(shared_cluster, namespace, tmp_path, report_result, kills)


class DistinctOwners:
    """A worker, an activity, and a node that owns neither of their shards."""

    def __init__(self, cluster: Cluster, namespace: str, owners: dict[int, str]) -> None:
        self.namespace = namespace
        self._owners = owners
        self.worker = "worker"
        mine = self._owner(self.worker)
        self._candidates = (name for number in count() if self._owner(name := f"workflow-{number}") != mine)
        first = next(self._candidates)
        (self.node,) = (node for node in cluster.nodes if node.node_id not in (mine, self._owner(first)))

    def _owner(self, name: str) -> str:
        return self._owners[shard_of(self.namespace, name, SHARDS)]

    def activity(self) -> activity_pb2.ActivityId:
        """Return a new activity on a shard that neither the node nor the worker's owner serves."""
        name = next(name for name in self._candidates if self._owner(name) != self.node.node_id)
        return activity_pb2.ActivityId(workflow_id=name, run_id="run", activity_id="activity")


async def distinct_owners(cluster: Cluster, namespace: str) -> DistinctOwners:
    shards = await cluster.all_served()
    return DistinctOwners(cluster, namespace, {id: shard.node_id for id, shard in shards.items()})


async def beat(node: Node, namespace: str, key: str, **content: Any) -> Any:
    request = service_pb2.RecordWorkerHeartbeatRequest(namespace=namespace)
    request.heartbeat.worker_instance_key = key
    request.heartbeat.lease_duration.FromSeconds(600)
    request.heartbeat.bound_activities.extend(content.get("bound", ()))
    return await node.liveness.RecordWorkerHeartbeat(request, timeout=30)


async def test_a_node_that_owns_neither_shard_claims_completes_and_cancels(
    shared_cluster: Cluster, namespace: str
) -> None:
    found = await distinct_owners(shared_cluster, namespace)
    node, key = found.node, found.worker
    activities: Any = ActivityServiceStub(node.channel)
    claim = partial(
        activity_pb2.ClaimActivityRequest, namespace=namespace, worker_instance_key=key, task_queue="queue"
    )
    await beat(node, namespace, key)
    done, cancelled = found.activity(), found.activity()
    held = (await activities.ClaimActivity(claim(id=done), timeout=30)).activity
    completion = activity_pb2.CompleteActivityRequest(
        namespace=namespace,
        id=done,
        worker_instance_key=key,
        lease_epoch=held.lease_epoch,
        attempt=held.attempt,
        result=b"done",
    )
    await activities.CompleteActivity(completion, timeout=30)
    await activities.CompleteActivity(completion, timeout=30)
    completion.result = b"otherwise"
    completion.attempt += 1
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await activities.CompleteActivity(completion, timeout=30)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    await activities.ClaimActivity(claim(id=cancelled), timeout=30)
    order = activity_pb2.CancelActivityRequest(namespace=namespace, id=cancelled)
    assert (await activities.CancelActivity(order, timeout=30)).was_held
    told = await beat(node, namespace, key)
    assert [ref.workflow_id for ref in told.cancel_activities] == [cancelled.workflow_id]
    for other in shared_cluster.nodes:
        stub: Any = ActivityServiceStub(other.channel)
        listed = await stub.ListActivities(
            activity_pb2.ListActivitiesRequest(namespace=namespace), timeout=30
        )
        assert {(seen.id.workflow_id, seen.state) for seen in listed.activities} == {
            (done.workflow_id, activity_pb2.ACTIVITY_STATE_COMPLETED),
            (cancelled.workflow_id, activity_pb2.ACTIVITY_STATE_CANCELLED),
        }


async def test_any_node_lists_counts_and_shows_the_history_of_all_workers(
    shared_cluster: Cluster, namespace: str
) -> None:
    keys = [f"worker-{number}" for number in range(30)]
    await asyncio.gather(*(beat(shared_cluster.nodes[0], namespace, key) for key in keys))
    histories: list[dict[str, list[int]]] = []
    for node in shared_cluster.nodes:
        counted = await node.liveness.CountWorkers(service_pb2.CountWorkersRequest(namespace=namespace))
        assert counted.total == len(keys)
        listed: list[str] = []
        page = ""
        while page or not listed:
            answer = await node.liveness.ListWorkers(
                service_pb2.ListWorkersRequest(namespace=namespace, page_size=7, page_token=page)
            )
            listed += [worker.worker_instance_key for worker in answer.workers]
            page = answer.next_page_token
        assert sorted(listed) == sorted(keys)
        history = {}
        for key in keys:
            told = await node.liveness.GetWorkerHistory(
                service_pb2.GetWorkerHistoryRequest(namespace=namespace, worker_instance_key=key)
            )
            history[key] = [event.sequence for event in told.events]
            assert history[key]
        histories.append(history)
    assert histories[0] == histories[1] == histories[2]
