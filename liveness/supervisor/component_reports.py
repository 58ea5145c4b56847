"""What a supervisor tells the server about one component, in order and without loss.

A queue of steps: begin a session, report a change, begin the next session, and so on. Each step waits until the one before
was answered, for minutes if the server is away. Meanwhile the supervisor goes on: it decides, the server records.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.clock import Clock
from liveness.domain.component import (
    LEGAL_CHANGES,
    STATUSES_WITH_PROCESS,
    Component,
    ComponentStatus,
    ProcessExit,
)
from liveness.sdk.loop_client import LivenessClient, RpcFailed, RpcFailure
from liveness.supervisor.actions import Kept
from liveness.supervisor.jobs import Jobs
from liveness.supervisor.sessions import HeartbeatSender, Session, may_pass
from liveness.v1.component_pb2 import ProcessExit as ProcessExitMessage
from liveness.v1.component_service_pb2 import GetComponentRequest, ReportComponentRequest

CALL_TIMEOUT_MS = 5_000
RETRY_MS = (100, 2_000)
STEPS_MAX = 1_000
"""Beyond it, repeated descriptions are left out. Changes of status never are: limits bound them."""

logger = logging.getLogger("liveness.supervisor")


def timestamp(wall_ms: int) -> Timestamp:
    return Timestamp(seconds=wall_ms // 1_000, nanos=wall_ms % 1_000 * 1_000_000)


def exit_message(ended: ProcessExit) -> ProcessExitMessage:
    return ProcessExitMessage(
        code=ended.code, signal=ended.signal, time=timestamp(ended.wall_ms), last_lines=ended.last_lines
    )


class Beginning(NamedTuple):
    """The begin of the session of a new process."""

    session: Session
    jobs: Jobs


class ComponentReports:
    def __init__(
        self,
        id: str,
        client: LivenessClient,
        sender: HeartbeatSender,
        namespace: str,
        clock: Clock,
        on_refused: Callable[[RpcFailure], None],
    ) -> None:
        """`on_refused`: the server says that somebody else runs this component."""
        self.id = id
        self._client = client
        self._sender = sender
        self._namespace = namespace
        self._clock = clock
        self._on_refused = on_refused
        self._steps: deque[Beginning | ReportComponentRequest] = deque()
        self._session: Session | None = None
        """Of the newest step."""
        self._begun: Beginning | None = None
        """The last one that was answered."""
        self._has_lease = False
        """No report has ended the lease of its session yet."""
        self._number = 0
        self._task: asyncio.Task[None] | None = None
        self._last: ReportComponentRequest | None = None
        self._told_again: list[ReportComponentRequest] = []
        """Reports that lead a server which refused one to the same status."""

    def continue_from(self, component: Component) -> None:
        """Count on from what an earlier supervisor reported."""
        self._number = component.number

    def begin(self, session: Session, jobs: Jobs) -> None:
        """Begin the session of a new process, which works on these jobs."""
        self._session = session
        self._steps.append(Beginning(session, jobs))
        self._start()

    def report(
        self,
        status: ComponentStatus,
        kept: Kept,
        wall_ms: int,
        *,
        reason: str = "",
        by: str = "",
        process_id: int = 0,
        process_start_ms: int = 0,
        details: str = "",
        ended: ProcessExit | None = None,
    ) -> None:
        if self._session is None:
            return  # it never had a process, and nobody knows it
        if status not in STATUSES_WITH_PROCESS:
            self._session.is_over = True
        request = ReportComponentRequest(
            namespace=self._namespace,
            worker_instance_key=self.id,
            session_id=self._session.session_id,
            status=int(status),  # type: ignore[arg-type]
            time=timestamp(wall_ms),
            reason=reason[:4_000],
            by=by,
            process_id=process_id,
            process_start_time=timestamp(process_start_ms) if process_start_ms else None,
            paused=kept.paused,
            wanted=kept.wanted,
            details_json=details,
            restart_count=kept.restart_count,
            restart_times=[timestamp(time) for time in kept.restarts],
            last_exit=exit_message(ended) if ended else None,
        )
        self._last = request
        self._steps.append(request)
        self._start()

    def describe(self, details: str, kept: Kept, wall_ms: int) -> None:
        """Report other details of the same status."""
        last = self._last
        if last is None or len(self._steps) >= STEPS_MAX or last.details_json == details:
            return
        request = ReportComponentRequest()
        request.CopyFrom(last)
        request.ClearField("number")
        request.ClearField("last_exit")
        request.details_json, request.restart_count = details, kept.restart_count
        request.time.CopyFrom(timestamp(wall_ms))
        self._last = request
        self._steps.append(request)
        self._start()

    @property
    def is_idle(self) -> bool:
        return self._task is None

    async def flush(self) -> None:
        """Wait until everything was reported."""
        while self._task is not None:
            await asyncio.shield(self._task)

    def cancel(self) -> None:
        self._steps.clear()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._steps:
                await self._take(self._steps[0])
                self._steps.popleft()
        finally:
            self._task = None

    async def _take(self, step: Beginning | ReportComponentRequest) -> None:
        wait_ms = RETRY_MS[0]
        while True:
            try:
                if isinstance(step, Beginning):
                    await self._begin(step)
                else:
                    await self._send(step)
                return
            except RpcFailed as error:
                failure = error.rpc_failure
                if not may_pass(failure):
                    await self._give_up(step, failure)
                    return
                if not failure.is_retryable and wait_ms == RETRY_MS[0]:
                    logger.error("%s: the server refuses a call, which is repeated: %s", self.id, failure)
                await self._clock.sleep(max(wait_ms, failure.retry_after_ms))
                wait_ms = min(wait_ms * 2, RETRY_MS[1])

    async def _begin(self, beginning: Beginning) -> None:
        if self._begun is not None:
            await self._sender.end(self._begun.session)
        await self._sender.register(beginning.session)
        self._begun, self._has_lease = beginning, True

    async def _send(self, request: ReportComponentRequest) -> None:
        if self._begun is None or not self._begun.session.epoch:
            return  # the server refused its session
        ends_lease = ComponentStatus(int(request.status)) not in STATUSES_WITH_PROCESS
        if ends_lease and self._has_lease:
            session, jobs = self._begun
            # What is still bound is rescheduled with this report, so first comes what the process has finished or begun.
            await jobs.settle()
            # A heartbeat that arrived after the end of the lease would begin a new one.
            await self._sender.end(session)
            await self._sender.send_last(session)
        if not request.number:
            request.number = self._number + 1
        await self._client.call(
            lambda endpoint: endpoint.components.ReportComponent, request, CALL_TIMEOUT_MS
        )
        self._number = request.number
        if ends_lease:
            self._has_lease = False

    async def _give_up(self, step: Beginning | ReportComponentRequest, failure: RpcFailure) -> None:
        if failure.reason in ("SESSION_SUPERSEDED", "SESSION_NOT_CURRENT", "WORKER_KEY_OWNED"):
            self._on_refused(failure)
        if isinstance(step, Beginning):
            logger.error("%s: the server refuses its session: %s", self.id, failure)
            return
        logger.error("%s: the server refuses a report: %s", self.id, failure)
        if failure.reason == "COMPONENT_CHANGE_REFUSED":
            await self._tell_again(step)

    async def _tell_again(self, refused: ReportComponentRequest) -> None:
        """Another server may know other reports, for instance after it was restored from a backup, or after it has cleaned up
        a worker that was out of reach for long. Lead it to the status that it refused."""
        request = GetComponentRequest(namespace=self._namespace, worker_instance_key=self.id)
        before: ComponentStatus | None = None
        try:
            answer = await self._client.call(
                lambda endpoint: endpoint.components.GetComponent, request, CALL_TIMEOUT_MS
            )
        except RpcFailed as error:
            if error.rpc_failure.code is not grpc.StatusCode.NOT_FOUND:
                logger.info("%s: cannot read its last report: %s", self.id, error)
                return
            self._number = 0
        else:
            self._number = answer.component.number
            before = ComponentStatus(int(answer.component.status))
        if any(refused is each for each in self._told_again):
            return
        repeated = []
        for status in changes_between(before, ComponentStatus(int(refused.status))):
            again = ReportComponentRequest()
            again.CopyFrom(refused)
            again.ClearField("number")
            again.status = int(status)  # type: ignore[assignment]
            repeated.append(again)
        self._told_again = repeated
        first = self._steps.popleft()  # it is taken away after this
        self._steps.extendleft(reversed([first, *repeated]))


def changes_between(before: ComponentStatus | None, wanted: ComponentStatus) -> list[ComponentStatus]:
    """Return the shortest legal way. A process that runs is on none that says that it does not; empty if there is no other."""
    ways = deque[list[ComponentStatus]]([[]])
    seen: set[ComponentStatus | None] = {before}
    if before is wanted:
        return [wanted]
    while ways:
        way = ways.popleft()
        for status in sorted(LEGAL_CHANGES[way[-1] if way else before]):
            if status is wanted:
                return [*way, status]
            if status not in seen and (
                status in STATUSES_WITH_PROCESS or wanted not in STATUSES_WITH_PROCESS
            ):
                seen.add(status)
                ways.append([*way, status])
    return []
