"""Takes the rescues that wait in liveness, one worker of liveness per namespace, and carries them out.

A rescue is an activity in the task queue `temporal-rescue`. If this bridge dies with it, liveness gives it to another
one. While Temporal is away the bridge holds what it has, which counts as no failure, and takes no more than it may hold.
"""

from __future__ import annotations

import asyncio
import os
import socket

import grpc
import structlog

from liveness.background import BackgroundTasks, RepeatedWarning
from liveness.bridges.temporal.binding_record import RESCUE_QUEUE, BindingRecord
from liveness.bridges.temporal.recorder import Recorder
from liveness.bridges.temporal.rescue import RescueRefused, TemporalAway, rescue
from liveness.bridges.temporal.settings import DEFAULT_INTERVAL_MS, INTERVALS_PER_LEASE, BridgeSettings
from liveness.bridges.temporal.statistics import BridgeStatistics
from liveness.bridges.temporal.upstream import Upstream
from liveness.bridges.temporal.worker_entry import INTERVAL_LABEL, NO_HEARTBEATS, SUSPECTED_LABEL, UI_LABEL
from liveness.clock import Clock, wait_or_timeout
from liveness.sdk import Quarantine, Worker
from liveness.sdk.errors import LivenessSdkError
from liveness.sdk.loop_client import LivenessClient, RpcFailed
from liveness.sdk.task import Task
from liveness.v1.service_pb2 import DescribeWorkerRequest
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE
from liveness.v1.worker_pb2 import Worker as LivenessWorker

logger = structlog.get_logger("liveness.bridge")

CONCURRENT_MAX = 50
REFUSALS_MAX = 10
"""After so many refusals by Temporal the rescue is given up: its activity is QUARANTINED until an operator retries or cancels it."""
BACKOFF_MS = (200, 5_000)
CALL_TIMEOUT_MS = 5_000
STOP_TIMEOUT_MS = 2_000
MARGIN_MS = 1_000
LEASE_S = 15.0
ENGINE_CAPABILITY = "temporal-bridge"


class Rescuer:
    def __init__(
        self,
        settings: BridgeSettings,
        upstream: Upstream,
        client: LivenessClient,
        recorder: Recorder,
        clock: Clock,
        statistics: BridgeStatistics,
    ) -> None:
        self._settings = settings
        self._recorder = recorder
        self._started_ms = clock.monotonic_ms()
        self._upstream = upstream
        self._client = client
        self._clock = clock
        self._statistics = statistics
        self._namespaces: set[str] = set()
        self._tasks = BackgroundTasks("temporal rescues")
        self._away_warning = RepeatedWarning(logger, "Temporal does not answer; rescues wait", clock)

    def serve(self, namespace: str) -> None:
        """Take rescues of this namespace from now on."""
        if namespace and namespace not in self._namespaces:
            self._namespaces.add(namespace)
            self._tasks.start(self._serve_forever(namespace))

    async def close(self) -> None:
        """Say goodbye to liveness, but do not wait long for it: what is left is given to another bridge."""
        closing = asyncio.ensure_future(self._tasks.close())
        while not await wait_or_timeout(closing, self._clock, STOP_TIMEOUT_MS):
            self._tasks.cancel()

    async def _serve_forever(self, namespace: str) -> None:
        warning = RepeatedWarning(logger, "rescues cannot be taken from liveness", self._clock)
        wait_ms = BACKOFF_MS[0]
        while True:
            worker = Worker(
                ",".join(self._settings.liveness),
                namespace=namespace,
                task_queue=RESCUE_QUEUE,
                lease=LEASE_S,
                disconnect_grace=None,
                max_concurrent=CONCURRENT_MAX,
                identity=f"temporal-bridge {os.getpid()}@{socket.gethostname()}",
                capabilities=(ENGINE_CAPABILITY,),
                # So that a rescue, which this worker holds, links to its workflow.
                labels={UI_LABEL: self._settings.temporal_ui} if self._settings.temporal_ui else {},
                tls=self._settings.credentials.tls or False,
                token=self._settings.credentials.token or "",
            )

            @worker.activity("")
            async def run(task: Task) -> str:
                return await self._run(namespace, task)

            try:
                async with worker:
                    warning.resolve()
                    wait_ms = BACKOFF_MS[0]
                    await worker.run(handle_signals=False)
            except LivenessSdkError as error:
                warning.warn(namespace=namespace, why=str(error))
            await self._clock.sleep(wait_ms)
            wait_ms = min(wait_ms * 2, BACKOFF_MS[1])

    async def _run(self, namespace: str, task: Task) -> str:
        record = BindingRecord.decode(task.ref.token)
        if record is None:
            raise Quarantine("its token is not that of a Temporal attempt")
        if await self._has_come_back(namespace, record):
            self._recorder.bind_again(namespace, record, task.attempt)
            outcome = "not_lost"
        elif await self._sends_no_heartbeats(namespace, record.worker_key):
            outcome = "unheard"
        else:
            outcome = await self._rescue(namespace, record, task.failures)
        self._statistics.rescues[outcome] += 1
        logger.info(
            "lost attempt",
            outcome=outcome,
            namespace=namespace,
            worker=record.worker_key,
            workflow=record.workflow_id,
            activity=record.activity_id,
            attempt=record.attempt,
        )
        return outcome

    async def _rescue(self, namespace: str, record: BindingRecord, failures: int) -> str:
        why = f"worker {record.worker_key} was lost with attempt {record.attempt}"
        wait_ms = BACKOFF_MS[0]
        while True:
            try:
                outcome = await rescue(self._upstream, namespace, record, why)
            except TemporalAway as error:
                self._away_warning.warn(why=str(error))
                self._statistics.rescues_waiting += 1
                try:
                    await self._clock.sleep(wait_ms)
                finally:
                    self._statistics.rescues_waiting -= 1
                wait_ms = min(wait_ms * 2, BACKOFF_MS[1])
            except RescueRefused as error:
                self._statistics.rescues_refused += 1
                # The loss of the worker counts as the first failure, unless an operator has retried the rescue.
                if failures >= REFUSALS_MAX:
                    self._statistics.rescues["given_up"] += 1
                    raise Quarantine(f"Temporal refuses the rescue: {error}") from error
                raise
            else:
                self._away_warning.resolve()
                return outcome

    async def _has_come_back(self, namespace: str, record: BindingRecord) -> bool:
        """Whether the worker lives, and its lease ended only because no bridge was there to hear it. A bridge that listens
        shortens the lease of a silent worker and says so, so that other ends mean that none did. This one waits
        until it has listened for a whole lease itself."""
        while True:
            worker = await self._describe(namespace, record.worker_key)
            if worker is None or SUSPECTED_LABEL in worker.labels:
                return False
            heard_ms = self._clock.monotonic_ms() - self._started_ms
            if heard_ms > lease_of(worker, record, self._settings) + MARGIN_MS:
                return worker.state == WORKER_STATE_ACTIVE
            if worker.state == WORKER_STATE_ACTIVE:
                return True
            await self._clock.sleep(BACKOFF_MS[0])

    async def _sends_no_heartbeats(self, namespace: str, worker_key: str) -> bool:
        """Whether the worker's silence says nothing: it never sent a heartbeat, and its connection did not break."""
        worker = await self._describe(namespace, worker_key)
        if worker is None:
            return False
        return worker.labels.get(INTERVAL_LABEL) == NO_HEARTBEATS and SUSPECTED_LABEL not in worker.labels

    async def _describe(self, namespace: str, worker_key: str) -> LivenessWorker | None:
        try:
            answer = await self._client.call(
                lambda endpoint: endpoint.liveness.DescribeWorker,
                DescribeWorkerRequest(namespace=namespace, worker_instance_key=worker_key),
                CALL_TIMEOUT_MS,
            )
        except RpcFailed as error:
            if error.rpc_failure.code is grpc.StatusCode.NOT_FOUND:
                return None
            raise
        worker: LivenessWorker = answer.worker
        return worker


def lease_of(worker: LivenessWorker, record: BindingRecord, settings: BridgeSettings) -> int:
    """How long the worker may be silent. What liveness has cleaned up has no labels any more: then the record tells."""
    interval = worker.labels.get(INTERVAL_LABEL, "")
    known_ms = (
        int(interval[:-2]) if interval.endswith("ms") and interval[:-2].isdigit() else record.interval_ms
    )
    return settings.lease_ms or INTERVALS_PER_LEASE * (known_ms or DEFAULT_INTERVAL_MS)
