"""Hold an activity on the program's own initiative: `bind`, for programs with an engine of their own, and `claim`.

Both are context managers for coroutines (`async with`) and for plain threads (`with`).
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from liveness.sdk.activity_heartbeats import ActivityHeartbeats
from liveness.sdk.connection import Connection, uncancellable_future
from liveness.sdk.converter import Converter, Payload, encode
from liveness.sdk.errors import ActivityLost, AlreadyBound, InvalidArgument, NotConvertible
from liveness.sdk.held_attempt import CancelOnLoss, HeldAttempt
from liveness.sdk.rpc_failures import RpcFailed, RpcFailure, activity_error
from liveness.sdk.session import WorkerSession
from liveness.sdk.task import OutcomeReporter, Stats, Task, failure_message
from liveness.sdk.timeouts import Timeouts, timeouts_to_proto
from liveness.sdk.values import (
    ActivityRef,
    RetryPolicy,
    id_to_proto,
    ref_from_task,
    retry_policy_to_proto,
)
from liveness.v1 import activity_pb2

RELEASE_TIMEOUT_MS = 5_000
WORKER_NOT_LIVE_REASONS = frozenset({"WORKER_NOT_ACTIVE", "SESSION_NOT_CURRENT"})

log = logging.getLogger("liveness.sdk")


class Binding(HeldAttempt):
    """An attempt that this worker holds while the body runs. The server has recorded it durably before the body begins.

    If the attempt is lost, the coroutine in the body is cancelled, and leaving the body raises ActivityLost. A thread
    cannot be cancelled: it should look at `lost`, or call `check()`, regularly."""

    def __init__(self, session: WorkerSession, ref: ActivityRef) -> None:
        super().__init__(session, ref)
        self._session = session
        self._cancel_scope = CancelOnLoss(self)
        self._entered = False

    async def __aenter__(self) -> Binding:
        try:
            await asyncio.wrap_future(self.start())
        except BaseException:
            self.end()
            raise
        self._cancel_scope.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._cancel_scope.__exit__(kind, error, trace)

    def __enter__(self) -> Binding:
        try:
            self.start().result()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if kind is None and self.lost.is_set():
            raise self.loss()

    def start(self) -> Future[None]:
        """Bind without `with`, for engines whose work begins and ends in different places. The future completes when the server has
        recorded it; `end` must be called afterwards, whatever happens."""
        if self._entered:
            raise InvalidArgument(detail="a binding is for one `with` only; call bind() again.")
        self._entered = True
        return self._session.bind(self)

    def end(self) -> None:
        """The work has ended. Any thread may call this, also more than once."""
        self._session.unbind(self)


class Claim:
    """An activity that this worker found by itself and holds while the body runs; at most one live worker holds it.

    When the body ends normally, the activity is completed with `task.result`. An exception in the body fails the attempt
    and propagates; a result that cannot be encoded fails the activity, with NotConvertible. If the activity is lost meanwhile, nothing is reported, and ActivityLost is raised."""

    def __init__(
        self,
        connection: Connection,
        session: WorkerSession,
        stats: Stats,
        ref: ActivityRef,
        *,
        activity_type: str,
        content: object,
        retry: RetryPolicy | None,
        timeouts: Timeouts | None,
        converter: Converter,
    ) -> None:
        self._connection = connection
        self._converter = converter
        payload = encode(converter, f"the input of {ref}", content)
        self._session = session
        self._stats = stats
        self._reporter = OutcomeReporter(connection, session)
        self._ref = ref
        self._request = activity_pb2.ClaimActivityRequest(
            namespace=session.namespace,
            id=id_to_proto(ref),
            task_queue=ref.task_queue,
            activity_type=activity_type,
            input=payload.data,
            input_encoding=payload.encoding,
            retry_policy=retry_policy_to_proto(retry),
            timeouts=timeouts_to_proto(timeouts),
        )
        self._task: Task | None = None
        self._held_attempt: HeldAttempt | None = None
        self._cancel_scope: CancelOnLoss | None = None
        self._abandoned = False

    async def __aenter__(self) -> Task:
        try:
            task = await asyncio.wrap_future(self._start())
        except BaseException:
            self._abandon()
            raise
        assert self._held_attempt is not None
        self._cancel_scope = CancelOnLoss(self._held_attempt)
        self._cancel_scope.__enter__()
        return task

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._cancel_scope is not None
        assert self._held_attempt is not None
        try:
            self._cancel_scope.__exit__(kind, error, trace)
        except ActivityLost:
            self._drop_lost(self._held_attempt)
            raise
        # Shielded: a cancellation at this point must not leave the outcome unreported.
        ended = asyncio.ensure_future(asyncio.wrap_future(self._report_outcome(error)))
        await asyncio.shield(ended)

    def __enter__(self) -> Task:
        try:
            return self._start().result()
        except BaseException:
            self._abandon()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._held_attempt is not None
        if self._held_attempt.lost.is_set():
            self._drop_lost(self._held_attempt)
            if kind is None:
                raise self._held_attempt.loss()
            return
        self._report_outcome(error).result()

    # -- claiming

    def _start(self) -> Future[Task]:
        if self._request.worker_instance_key:
            raise InvalidArgument(detail="a claim is for one `with` only; call claim() again.")
        self._request.worker_instance_key = self._session.key
        self._request.session_id = self._session.session_id
        outcome: Future[Task] = uncancellable_future()
        call = self._connection.call(
            lambda endpoint: endpoint.activities.ClaimActivity, self._request, should_retry=self._should_retry
        )
        call.add_done_callback(lambda done: self._on_claim_reply(done, outcome))
        return outcome

    def _should_retry(self, rpc_failure: RpcFailure) -> bool:
        if self._abandoned or self._session.has_ended:
            return False
        if rpc_failure.reason in WORKER_NOT_LIVE_REASONS:
            # The lease ended before this process noticed; the next heartbeat begins a new one.
            self._session.send_heartbeat_now()
            self._request.worker_instance_key = self._session.key
            self._request.session_id = self._session.session_id
            return True
        return rpc_failure.is_retryable

    def _on_claim_reply(self, call: Future[Any], outcome: Future[Task]) -> None:
        """Runs on the scheduler's thread."""
        error = call.exception()
        if isinstance(error, RpcFailed):
            target = {"address": self._connection.address, "namespace": self._session.namespace}
            worker = self._session.key
            outcome.set_exception(
                activity_error(error.rpc_failure, "ClaimActivity", self._ref, **target, worker=worker)
            )
            return
        message: activity_pb2.ActivityTask = call.result().activity
        ref = ref_from_task(message)
        if any(held_attempt.ref.key == ref.key for held_attempt in self._session.held_attempts):
            outcome.set_exception(AlreadyBound(activity=ref))
            return
        if self._abandoned:
            self._reporter.release(ref, message.lease_epoch, RELEASE_TIMEOUT_MS)
            return
        held_attempt = self._session.accept_now(message)
        if held_attempt is None:
            outcome.set_exception(ActivityLost(activity=ref, reason="the lease ended meanwhile"))
            return
        heartbeats = ActivityHeartbeats(self._connection, self._session, held_attempt, message)
        self._held_attempt = held_attempt
        self._task = Task(held_attempt, message, self._converter, heartbeats)
        outcome.set_result(self._task)

    def _abandon(self) -> None:
        """The caller stopped waiting. The reply may still arrive, or may just have arrived: then the claim is released."""
        self._abandoned = True
        self._connection.scheduler.call_soon(self._release_abandoned)

    def _release_abandoned(self) -> None:
        held_attempt = self._held_attempt
        if held_attempt is not None:
            self._reporter.release(held_attempt.ref, held_attempt.epoch, RELEASE_TIMEOUT_MS)
            self._session.unbind(held_attempt)

    # -- reporting the outcome

    def _report_outcome(self, error: BaseException | None) -> Future[None]:
        """A future that completes when the server has recorded the outcome, or fails with ActivityLost."""
        held_attempt, task = self._held_attempt, self._task
        assert held_attempt is not None
        assert task is not None
        outcome: Future[None] = uncancellable_future()
        result = Payload(b"")
        not_convertible: NotConvertible | None = None
        if error is None:
            try:
                result = encode(self._converter, "the result", task.result)
            except NotConvertible as problem:
                error = not_convertible = problem
        if error is None:
            call = self._reporter.complete(held_attempt, result)
        elif isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
            call = self._reporter.release(held_attempt.ref, held_attempt.epoch, RELEASE_TIMEOUT_MS)
        else:
            call = self._reporter.fail(held_attempt, error)

        def on_reported(done: Future[Any]) -> None:
            rpc_error = done.exception()
            if isinstance(rpc_error, RpcFailed):
                self._drop_lost(held_attempt)
                if not_convertible is not None:
                    outcome.set_exception(not_convertible)
                elif error is not None:
                    outcome.set_result(None)  # the caller gets the exception of the body instead
                elif held_attempt.lost.is_set() or self._session.has_ended:
                    outcome.set_exception(held_attempt.loss() if held_attempt.lost.is_set() else rpc_error)
                else:
                    target = {"address": self._connection.address, "namespace": self._session.namespace}
                    outcome.set_exception(
                        activity_error(rpc_error.rpc_failure, "CompleteActivity", held_attempt.ref, **target)
                    )
                return
            if error is None:
                self._stats.count(completed=1)
                self._session.forget(held_attempt, succeeded=True)
            else:
                self._stats.count(failed=1)
                self._session.forget(held_attempt, succeeded=False, error=failure_message(error))
            if not_convertible is not None:
                outcome.set_exception(not_convertible)
            else:
                outcome.set_result(None)

        call.add_done_callback(on_reported)
        return outcome

    def _drop_lost(self, held_attempt: HeldAttempt) -> None:
        self._stats.count(lost=1)
        self._session.unbind(held_attempt)
