"""The heartbeats of everything that a supervisor runs: its own workers, one per group, and one session per process.

All of them travel in one call. A session is registered by a call of its own, because what is reported about it must
follow, and what was reported about the session before it must come first (`component_reports`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import grpc
from google.protobuf.duration_pb2 import Duration

from liveness.clock import Clock
from liveness.sdk.component_environment import OWN_SEQUENCES
from liveness.sdk.loop_client import LivenessClient, RpcFailed, RpcFailure
from liveness.sdk.rpc_failures import failure_of_status
from liveness.v1.service_pb2 import RecordWorkerHeartbeatRequest, RecordWorkerHeartbeatsRequest
from liveness.v1.worker_pb2 import ActivityRef, HeartbeatResult, WorkerHeartbeat

CALL_TIMEOUT_MS = 5_000
BATCH_MAX = 1_000
RETRY_MS = (200, 2_000)
REFUSED_RETRY_MS = 5_000
FULL_BINDINGS_MAX = 1_000
LAST_TRIES = 3
"""A refused one may have corrected the sequence."""

SESSION_ENDS = frozenset(
    (
        "SESSION_SUPERSEDED",
        "SESSION_NOT_CURRENT",
        "WORKER_KEY_OWNED",
        "WORKER_KEY_HELD",
        "WORKER_CLEANED_UP",
        "NAMESPACE_NOT_FOUND",
    )
)
"""Reasons after which the server will never accept the session again. After others, such as a token that has just expired or a
full namespace, it may."""

logger = logging.getLogger("liveness.supervisor")


def may_pass(failure: RpcFailure) -> bool:
    """Whether the same call may succeed later, perhaps after somebody has changed the server or the credentials."""
    waits_for_people = failure.code in (
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    )
    return failure.is_retryable or (waits_for_people and failure.reason not in SESSION_ENDS)


class JobKey(NamedTuple):
    workflow_id: str
    run_id: str
    activity_id: str
    attempt: int


def job_key(activity: ActivityRef) -> JobKey:
    return JobKey(activity.workflow_id, activity.run_id, activity.activity_id, activity.attempt or 1)


class SessionListener(Protocol):
    def on_answer(self, result: HeartbeatResult) -> None:
        """The server answered a heartbeat."""

    def on_refused(self, failure: RpcFailure) -> None:
        """The server does not accept this session any more."""


class Session:
    """One process, as a session of its worker."""

    def __init__(
        self,
        profile: WorkerHeartbeat,
        listener: SessionListener,
        *,
        bound: Iterable[ActivityRef] = (),
    ) -> None:
        """`profile`: the fields that all heartbeats share, with key and session."""
        self.profile = profile
        self.is_registered = False
        self.is_over = False
        """Nothing may be sent for it any more: its process has ended, or the server refuses it."""
        self.is_quiet = False
        """The process sends heartbeats itself, through the SDK."""
        self._was_handed_back = False
        self.on_registered: Callable[[], None] = lambda: None
        """Called when the server knows the session."""
        self.epoch = 0
        self.due_ms = 0
        self._listener = listener
        self._sequence = 0
        self._bound = {job_key(activity): activity for activity in bound}
        self._is_changed = bool(self._bound)
        self._is_sent_whole = False
        """The heartbeat under way has the whole set."""
        self._last_refusal = ""
        """Logged once."""

    @property
    def key(self) -> str:
        return self.profile.worker_instance_key

    @property
    def session_id(self) -> str:
        return self.profile.session_id

    @property
    def bound(self) -> dict[JobKey, ActivityRef]:
        return dict(self._bound)

    @property
    def has_unsent_bindings(self) -> bool:
        return self._is_changed and self.is_registered and not self.is_quiet

    def bind(self, activities: Iterable[ActivityRef]) -> bool:
        """Make this the whole set of what the process works on. Returns whether it differs from before."""
        bound = {job_key(activity): activity for activity in activities}
        if bound.keys() == self._bound.keys():
            return False
        self._bound = bound
        self.send_soon(changed=True)
        return True

    def describe(self, **fields: Any) -> bool:
        """Change what all heartbeats say. Returns whether it differs from before."""
        changed = False
        for name, value in fields.items():
            if getattr(self.profile, name) != value:
                setattr(self.profile, name, value)
                changed = True
        if changed:
            self.send_soon()
        return changed

    def change_lease(self, ms: int) -> None:
        lease = lease_duration(ms)
        if self.profile.lease_duration != lease:
            self.profile.lease_duration.CopyFrom(lease)
            self.send_soon()

    def hand_over(self, *, to_process: bool) -> bool:
        """From now on the process, or the supervisor again, sends the heartbeats. Whoever begins sends the whole set. Returns
        whether that is new."""
        if self.is_quiet == to_process:
            return False
        self.is_quiet = to_process
        self._was_handed_back = not to_process
        self.send_soon(changed=True)
        return True

    def send_soon(self, *, changed: bool = False) -> None:
        self.due_ms = 0
        self._is_changed = self._is_changed or changed

    def next_heartbeat(self, *, is_first: bool = False) -> WorkerHeartbeat:
        self._sequence += 1
        beat = WorkerHeartbeat()
        beat.CopyFrom(self.profile)
        beat.sequence, beat.lease_epoch, beat.new_incarnation = self._sequence, self.epoch, is_first
        if self._is_changed or is_first:
            beat.full_bindings = True
            beat.bound_activities.extend(list(self._bound.values())[:FULL_BINDINGS_MAX])
        # A heartbeat whose answer is lost is followed by one that has the whole set again.
        self._is_sent_whole = self._is_changed
        self._is_changed = False
        return beat

    def on_result(self, result: HeartbeatResult, now_ms: int) -> None:
        is_first = not self.is_registered
        self.is_registered, self.epoch, self._last_refusal = True, result.lease_epoch, ""
        interval = result.next_heartbeat_after
        if self.due_ms or not self._is_changed:
            self.due_ms = now_ms + interval.seconds * 1_000 + interval.nanos // 1_000_000
        if result.cancel_activities or result.resync_bindings:
            for activity in result.cancel_activities:
                self._bound.pop(job_key(activity), None)
            self.send_soon(changed=True)
        self._listener.on_answer(result)
        if is_first:
            self.on_registered()

    def on_failure(self, failure: RpcFailure, now_ms: int) -> None:
        self._is_changed = self._is_changed or self._is_sent_whole
        if failure.is_retryable:
            return
        if failure.reason == "STALE_HEARTBEAT":
            last = int(failure.metadata.get("last_sequence", 0))
            if last >= OWN_SEQUENCES and self._sequence < OWN_SEQUENCES and not self._was_handed_back:
                self.is_quiet = True  # the process has begun; its frame that says so is on the way
                return
            self._sequence = max(self._sequence, last)
            self.send_soon(changed=True)
            return
        if failure.reason not in SESSION_ENDS:
            if failure.reason != self._last_refusal:
                self._last_refusal = failure.reason
                logger.error("%s: the server refuses its heartbeat: %s", self.key, failure)
            self.due_ms = now_ms + REFUSED_RETRY_MS
            return
        self.is_over = True
        if self.is_registered:
            self._listener.on_refused(failure)


class HeartbeatSender:
    """Sends the heartbeats of all sessions when they are due."""

    def __init__(self, client: LivenessClient, namespace: str, clock: Clock) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._poked = asyncio.Event()
        self._in_flight: asyncio.Future[None] | None = None
        self._in_flight_sessions: list[Session] = []
        self.is_server_away = False
        self.on_server_changed: Callable[[bool], None] = lambda is_away: None

    async def register(self, session: Session) -> None:
        """Begin the session. Raises RpcFailed; nothing is known to have changed then."""
        await self._send_one(session, is_first=True)
        self._sessions[session.key] = session
        self.poke()

    def poke(self) -> None:
        """Look now for heartbeats that are due."""
        self._poked.set()

    async def end(self, session: Session) -> None:
        """Send nothing more for the session, and wait for a heartbeat of it that is under way."""
        session.is_over = True
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
        if self._in_flight is not None and session in self._in_flight_sessions:
            await asyncio.shield(self._in_flight)

    async def send_last(self, session: Session) -> None:
        """After `end`: send the bindings that the server does not know yet, if there are any. Raises RpcFailed if it may
        succeed later."""
        for _ in range(LAST_TRIES):
            if not session.has_unsent_bindings:
                return
            try:
                await self._send_one(session, is_first=False)
            except RpcFailed as error:
                if may_pass(error.rpc_failure):
                    raise

    async def _send_one(self, session: Session, *, is_first: bool) -> None:
        request = RecordWorkerHeartbeatRequest(
            namespace=self._namespace, heartbeat=session.next_heartbeat(is_first=is_first)
        )
        try:
            result = await self._client.call(
                lambda endpoint: endpoint.liveness.RecordWorkerHeartbeat, request, CALL_TIMEOUT_MS
            )
        except RpcFailed as error:
            self._note_server(error.rpc_failure)
            session.on_failure(error.rpc_failure, self._clock.monotonic_ms())
            raise
        self._note_server(None)
        session.on_result(result, self._clock.monotonic_ms())

    async def run(self) -> None:
        wait_ms = RETRY_MS[0]
        while True:
            now_ms = self._clock.monotonic_ms()
            due = self._due(now_ms)
            if not due:
                await self._sleep_until(self._next_due_ms(now_ms))
                continue
            self._in_flight, self._in_flight_sessions = asyncio.get_running_loop().create_future(), due
            try:
                is_answered = await self._send(due)
            finally:
                self._in_flight.set_result(None)
                self._in_flight = None
            if is_answered:
                wait_ms = RETRY_MS[0]
            else:
                await self._clock.sleep(wait_ms)
                wait_ms = min(wait_ms * 2, RETRY_MS[1])

    def _due(self, now_ms: int) -> list[Session]:
        live = self._live()
        if not any(session.due_ms <= now_ms for session in live):
            return []
        soon_ms = now_ms + 500
        return [session for session in live if session.due_ms <= soon_ms][:BATCH_MAX]

    def _next_due_ms(self, now_ms: int) -> int:
        return min((session.due_ms for session in self._live()), default=now_ms + 60_000)

    def _live(self) -> list[Session]:
        return [
            session for session in self._sessions.values() if not session.is_over and not session.is_quiet
        ]

    async def _sleep_until(self, at_ms: int) -> None:
        self._poked.clear()
        timeout_s = max(at_ms - self._clock.monotonic_ms(), 1) / 1_000
        try:
            async with asyncio.timeout(timeout_s):
                await self._poked.wait()
        except TimeoutError:
            pass

    async def _send(self, due: list[Session]) -> bool:
        """Returns whether the server answered."""
        request = RecordWorkerHeartbeatsRequest(
            namespace=self._namespace, heartbeats=[session.next_heartbeat() for session in due]
        )
        try:
            answer = await self._client.call(
                lambda endpoint: endpoint.liveness.RecordWorkerHeartbeats, request, CALL_TIMEOUT_MS
            )
        except RpcFailed as error:
            self._note_server(error.rpc_failure)
            for session in due:
                session.on_failure(error.rpc_failure, self._clock.monotonic_ms())
            return False
        self._note_server(None)
        now_ms = self._clock.monotonic_ms()
        all_answered = True
        for session, item in zip(due, answer.items, strict=True):
            if session.is_over:
                continue
            if item.HasField("result"):
                session.on_result(item.result, now_ms)
            else:
                failure = failure_of_status(item.status)
                session.on_failure(failure, now_ms)
                all_answered = all_answered and not failure.is_retryable
        return all_answered

    def _note_server(self, failure: RpcFailure | None) -> None:
        is_away = failure is not None and failure.is_retryable
        if is_away != self.is_server_away:
            self.is_server_away = is_away
            if is_away:
                logger.warning("the server does not answer (%s); processes go on without it", failure)
            else:
                logger.info("the server answers again")
            self.on_server_changed(is_away)


def lease_duration(ms: int) -> Duration:
    return Duration(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)
