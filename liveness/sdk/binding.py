"""The two ways to hold something by one's own doing: `bind`, for programs with an engine of their own, and `claim`.

Both are context managers for coroutines (`async with`) and for plain threads (`with`).
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from liveness.sdk.connection import Connection, promise
from liveness.sdk.errors import ActivityLost, AlreadyBound, InvalidArgument
from liveness.sdk.holding import CancelledOnLoss, Hold
from liveness.sdk.life import Life
from liveness.sdk.refusals import Refusal, Refused, activity_error
from liveness.sdk.task import Endings, Stats, Task, told
from liveness.sdk.values import ActivityRef, RetryPolicy, id_message, payload, ref_of_task, retry_message
from liveness.v1 import activity_pb2

RELEASE_MS = 5_000
NOT_LIVE = frozenset({"WORKER_NOT_ACTIVE", "SESSION_NOT_CURRENT"})

log = logging.getLogger("liveness.sdk")


class Binding(Hold):
    """An attempt that this worker holds while the body runs. The server has recorded it, durably, before the body
    begins.

    If it is lost, the coroutine in the body is cancelled, and leaving the body raises ActivityLost. A thread cannot be
    cancelled: let it look at `lost`, or call `check()`, now and then."""

    def __init__(self, life: Life, ref: ActivityRef) -> None:
        super().__init__(life, ref)
        self._life = life
        self._scope = CancelledOnLoss(self)
        self._used = False

    async def __aenter__(self) -> Binding:
        try:
            await asyncio.wrap_future(self._begin())
        except BaseException:
            self._life.end(self)
            raise
        self._scope.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._life.end(self)
        self._scope.__exit__(kind, error, trace)

    def __enter__(self) -> Binding:
        try:
            self._begin().result()
        except BaseException:
            self._life.end(self)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._life.end(self)
        if kind is None and self.lost.is_set():
            raise self.loss()

    def _begin(self) -> Future[None]:
        if self._used:
            raise InvalidArgument(detail="a binding is for one `with` only; call bind() again.")
        self._used = True
        return self._life.bind(self)


class Claim:
    """An activity that this worker found by itself and holds while the body runs; at most one live worker does.

    A body that ends well completes the activity with `task.result`; an exception fails the attempt, and goes on. If the
    activity is lost meanwhile, nothing is reported, and ActivityLost is raised."""

    def __init__(
        self,
        connection: Connection,
        life: Life,
        stats: Stats,
        ref: ActivityRef,
        *,
        activity_type: str,
        content: object,
        retry: RetryPolicy | None,
    ) -> None:
        self._connection = connection
        self._life = life
        self._stats = stats
        self._endings = Endings(connection, life)
        self._ref = ref
        self._request = activity_pb2.ClaimActivityRequest(
            namespace=life.namespace,
            id=id_message(ref),
            task_queue=ref.task_queue,
            activity_type=activity_type,
            input=payload(content),
            retry_policy=retry_message(retry),
        )
        self._task: Task | None = None
        self._hold: Hold | None = None
        self._scope: CancelledOnLoss | None = None
        self._unwanted = False

    async def __aenter__(self) -> Task:
        try:
            task = await asyncio.wrap_future(self._begin())
        except BaseException:
            self._abandon()
            raise
        assert self._hold is not None
        self._scope = CancelledOnLoss(self._hold)
        self._scope.__enter__()
        return task

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._scope is not None
        assert self._hold is not None
        try:
            self._scope.__exit__(kind, error, trace)
        except ActivityLost:
            self._gave_up(self._hold)
            raise
        # Shielded: a cancellation that comes now must not leave the outcome unreported.
        ended = asyncio.ensure_future(asyncio.wrap_future(self._end(error)))
        await asyncio.shield(ended)

    def __enter__(self) -> Task:
        try:
            return self._begin().result()
        except BaseException:
            self._abandon()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._hold is not None
        if self._hold.lost.is_set():
            self._gave_up(self._hold)
            if kind is None:
                raise self._hold.loss()
            return
        self._end(error).result()

    # -- beginning

    def _begin(self) -> Future[Task]:
        if self._request.worker_instance_key:
            raise InvalidArgument(detail="a claim is for one `with` only; call claim() again.")
        self._request.worker_instance_key = self._life.key
        self._request.session_id = self._life.session_id
        outcome: Future[Task] = promise()
        call = self._connection.call(
            lambda route: route.activities.ClaimActivity, self._request, again=self._again
        )
        call.add_done_callback(lambda done: self._claimed(done, outcome))
        return outcome

    def _again(self, refusal: Refusal) -> bool:
        if self._unwanted or self._life.ended:
            return False
        if refusal.reason in NOT_LIVE:
            # The lease has lapsed without our noticing; the next heartbeat begins another.
            self._life.beat_now()
            self._request.worker_instance_key = self._life.key
            self._request.session_id = self._life.session_id
            return True
        return refusal.passing

    def _claimed(self, call: Future[Any], outcome: Future[Task]) -> None:
        """On the ticker's thread."""
        error = call.exception()
        if isinstance(error, Refused):
            place = {"address": self._connection.address, "namespace": self._life.namespace}
            worker = self._life.key
            outcome.set_exception(
                activity_error(error.refusal, "ClaimActivity", self._ref, **place, worker=worker)
            )
            return
        message: activity_pb2.ActivityTask = call.result().activity
        ref = ref_of_task(message)
        if any(hold.ref.key == ref.key for hold in self._life.holds):
            outcome.set_exception(AlreadyBound(activity=ref))
            return
        if self._unwanted:
            self._endings.release(ref, message.lease_epoch, RELEASE_MS)
            return
        hold = self._life.adopt_now(message)
        if hold is None:
            outcome.set_exception(ActivityLost(activity=ref, reason="the lease ended meanwhile"))
            return
        self._hold, self._task = hold, Task(hold, message)
        outcome.set_result(self._task)

    def _abandon(self) -> None:
        """Nobody waits any more. The answer may be on its way, or have come this very moment."""
        self._unwanted = True
        self._connection.ticker.post(self._let_go)

    def _let_go(self) -> None:
        hold = self._hold
        if hold is not None:
            self._endings.release(hold.ref, hold.epoch, RELEASE_MS)
            self._life.end(hold)

    # -- ending

    def _end(self, error: BaseException | None) -> Future[None]:
        """Settled when the outcome is recorded, or fails with ActivityLost."""
        hold, task = self._hold, self._task
        assert hold is not None
        assert task is not None
        outcome: Future[None] = promise()
        if error is None:
            call = self._endings.complete(hold, payload(task.result))
        elif isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
            call = self._endings.release(hold.ref, hold.epoch, RELEASE_MS)
        else:
            call = self._endings.fail(hold, error)

        def recorded(done: Future[Any]) -> None:
            refused = done.exception()
            if isinstance(refused, Refused):
                self._gave_up(hold)
                if error is not None:
                    outcome.set_result(None)  # what the body raised says more
                elif hold.lost.is_set() or self._life.ended:
                    outcome.set_exception(hold.loss() if hold.lost.is_set() else refused)
                else:
                    place = {"address": self._connection.address, "namespace": self._life.namespace}
                    outcome.set_exception(
                        activity_error(refused.refusal, "CompleteActivity", hold.ref, **place)
                    )
                return
            if error is None:
                self._stats.count(completed=1)
                self._life.forget(hold, succeeded=True)
            else:
                self._stats.count(failed=1)
                self._life.forget(hold, succeeded=False, error=told(error))
            outcome.set_result(None)

        call.add_done_callback(recorded)
        return outcome

    def _gave_up(self, hold: Hold) -> None:
        self._stats.count(lost=1)
        self._life.end(hold)
