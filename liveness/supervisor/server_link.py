"""The supervisor's side of everything that it asks of the server."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from pathlib import Path
from secrets import token_hex

from google.protobuf.timestamp_pb2 import Timestamp

from liveness.clock import Clock
from liveness.domain.component import (
    Component,
    ComponentStatus,
    ProcessExit,
    supervisor_key,
)
from liveness.sdk.loop_client import LivenessClient, RpcFailed
from liveness.supervisor.errors import (
    GroupHeld,
    GroupRunsHere,
    ServerAway,
    ServerRefused,
    StateDirectoryRefused,
)
from liveness.supervisor.sessions import HeartbeatSender, Session, SessionListener, lease_duration
from liveness.supervisor.settings import GroupSettings
from liveness.v1 import component_pb2
from liveness.v1.component_service_pb2 import ListComponentsRequest
from liveness.v1.service_pb2 import DescribeWorkerRequest, ShutdownWorkerRequest
from liveness.v1.worker_pb2 import WORKER_STATUS_RUNNING, WORKER_STATUS_STARTING, Worker, WorkerHeartbeat
from liveness.version import VERSION

SDK_NAME = "liveness-supervisor"
CALL_TIMEOUT_MS = 5_000
HELD_RETRY_MS = 500

logger = logging.getLogger("liveness.supervisor")


class ServerLink:
    def __init__(self, client: LivenessClient, address: str, namespace: str, clock: Clock) -> None:
        self.client = client
        self.address = address
        self.namespace = namespace
        self.sender = HeartbeatSender(client, namespace, clock)
        self.host_name = socket.gethostname()
        self._clock = clock

    def new_session(
        self,
        key: str,
        session_id: str,
        settings: GroupSettings,
        process_id: int,
        start_ms: int,
        listener: SessionListener,
    ) -> Session:
        """A session of a component. `process_id`: 0 if no process could be started."""
        profile = WorkerHeartbeat(
            worker_instance_key=key,
            session_id=session_id,
            lease_duration=lease_duration(settings.lease_ms),
            status=WORKER_STATUS_STARTING,
            task_queue=settings.task_queue,
            build_id=settings.build_id,
            sdk_name=SDK_NAME,
            sdk_version=VERSION,
            host_name=self.host_name,
            process_id=str(process_id) if process_id else "",
            start_time=_timestamp(start_ms),
            labels=session_labels(settings),
        )
        return Session(profile, listener)

    def hand_over(self, session: Session, *, to_process: bool) -> None:
        """From now on the process, or the supervisor again, sends the heartbeats of the session."""
        if session.hand_over(to_process=to_process):
            self.sender.poke()

    async def acquire_group(
        self, settings: GroupSettings, listener: SessionListener, lock: GroupLock, wait_ms: int
    ) -> Session:
        """Become the supervisor of the group. Waits for up to `wait_ms` for the lease of another one to end."""
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        profile = WorkerHeartbeat(
            worker_instance_key=supervisor_key(settings.name),
            session_id=token_hex(16),
            lease_duration=lease_duration(settings.lease_ms),
            status=WORKER_STATUS_RUNNING,
            sdk_name=SDK_NAME,
            sdk_version=VERSION,
            host_name=self.host_name,
            process_id=str(os.getpid()),
            labels={"group": settings.name, **lock.labels},
            only_if_free=True,
        )
        while True:
            session = Session(profile, listener)
            try:
                await self.sender.register(session)
            except RpcFailed as error:
                failure = error.rpc_failure
                if failure.reason != "WORKER_KEY_HELD" and not failure.is_retryable:
                    raise ServerRefused(address=self.address, detail=str(failure)) from None
                if failure.reason == "WORKER_KEY_HELD" and await self._had_lock(settings.name, lock):
                    logger.info("the last supervisor of %s is gone; taking over", settings.name)
                    profile.only_if_free = False
                    continue
                if self._clock.monotonic_ms() < deadline_ms:
                    await self._clock.sleep(HELD_RETRY_MS)
                    continue
                if failure.is_retryable:
                    raise ServerAway(address=self.address, detail=str(failure)) from None
                host = failure.metadata.get("host", "another host")
                raise GroupHeld(group=settings.name, host=host) from None
            session.profile.only_if_free = True
            return session

    async def last_supervisor(self, group: str) -> Worker | None:
        """The supervisor that the group had last, or has."""
        request = DescribeWorkerRequest(namespace=self.namespace, worker_instance_key=supervisor_key(group))
        try:
            answer = await self.client.call(
                lambda endpoint: endpoint.liveness.DescribeWorker, request, CALL_TIMEOUT_MS
            )
        except RpcFailed as error:
            logger.debug("cannot see who supervised %s: %s", group, error)
            return None
        worker: Worker = answer.worker
        return worker

    async def _had_lock(self, group: str, lock: GroupLock) -> bool:
        """Whether the supervisor that has the lease had the lock that is ours now, and so must have ended."""
        worker = await self.last_supervisor(group)
        return worker is not None and all(
            value and worker.labels.get(name) == value for name, value in lock.labels.items()
        )

    async def release_group(self, session: Session) -> None:
        """Say that nobody supervises the group any more, so that another supervisor need not wait."""
        await self.sender.end(session)
        request = ShutdownWorkerRequest(
            namespace=self.namespace,
            worker_instance_key=session.key,
            session_id=session.session_id,
            reason="the supervisor ends",
        )
        try:
            await self.client.call(
                lambda endpoint: endpoint.liveness.ShutdownWorker, request, CALL_TIMEOUT_MS
            )
        except RpcFailed as error:
            logger.info("cannot release the group: %s", error)

    async def read_components(self, group: str) -> dict[int, Component]:
        """What earlier supervisors of the group left, by index."""
        found: dict[int, Component] = {}
        request = ListComponentsRequest(namespace=self.namespace, group=group, page_size=1_000)
        while True:
            try:
                answer = await self.client.call(
                    lambda endpoint: endpoint.components.ListComponents, request, CALL_TIMEOUT_MS
                )
            except RpcFailed as error:
                raise ServerRefused(address=self.address, detail=str(error.rpc_failure)) from None
            found.update((message.index, _component(message)) for message in answer.components)
            if not answer.next_page_token:
                return found
            request.page_token = answer.next_page_token


class GroupLock:
    """Holds a file of this machine for as long as this process lives, so that two supervisors of one group cannot run here."""

    def __init__(self, path: Path, group: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = path.open("a+")
        except OSError as error:
            raise StateDirectoryRefused(path=path.parent, detail=error.strerror or str(error)) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise GroupRunsHere(group=group, path=path) from None
        except OSError as error:
            self._file.close()
            raise StateDirectoryRefused(path=path.parent, detail=error.strerror or str(error)) from None
        status = os.fstat(self._file.fileno())
        self.labels = {"boot": _boot_id(), "lock": f"{status.st_dev}:{status.st_ino}"}
        """Which file of which machine it is: whoever told the same ones held this lock, and is gone."""

    def release(self) -> None:
        self._file.close()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def session_labels(settings: GroupSettings) -> dict[str, str]:
    """Of every worker of the group, whoever sends its heartbeats."""
    return {**settings.labels, "group": settings.name}


def _timestamp(wall_ms: int) -> Timestamp | None:
    return Timestamp(seconds=wall_ms // 1_000, nanos=wall_ms % 1_000 * 1_000_000) if wall_ms else None


def _wall_ms(stamp: Timestamp) -> int:
    return stamp.seconds * 1_000 + stamp.nanos // 1_000_000


def _component(message: component_pb2.Component) -> Component:
    ended = message.last_exit
    # A process that ended with its supervisor, or was cut off with it, has not crashed by itself.
    status = ComponentStatus.HEALTHY if message.supervisor_silent else ComponentStatus(int(message.status))
    return Component(
        number=message.number,
        status=status,
        since_ms=_wall_ms(message.status_time),
        session_id="",
        reason=message.reason,
        by=message.by,
        process_id=message.process_id,
        process_start_ms=_wall_ms(message.process_start_time),
        paused=message.paused,
        wanted=message.wanted,
        details=message.details_json,
        restart_count=message.restart_count,
        restarts=tuple(map(_wall_ms, message.restart_times)),
        created_ms=_wall_ms(message.create_time),
        last_exit=ProcessExit(
            ended.code if ended.HasField("code") else None,
            ended.signal,
            _wall_ms(ended.time),
            tuple(ended.last_lines),
        )
        if message.HasField("last_exit")
        else None,
    )
