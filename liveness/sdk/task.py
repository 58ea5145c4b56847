"""An attempt as a handler sees it, and the three ways to end one."""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from google.protobuf.message import Message

from liveness.sdk.connection import Connection, Pick
from liveness.sdk.errors import GiveUp, RetryLater
from liveness.sdk.holding import Hold, LostSignal
from liveness.sdk.life import Life
from liveness.sdk.refusals import Refusal
from liveness.sdk.values import ActivityRef, FencingToken, duration, id_message
from liveness.v1 import activity_pb2

MESSAGE_BYTES_MAX = 4_000


class Task:
    """One attempt of an activity, held by this worker."""

    def __init__(self, hold: Hold, message: activity_pb2.ActivityTask) -> None:
        self._hold = hold
        self._message = message
        self.result: object = None
        """For claims: what to record when the body ends well."""

    @property
    def ref(self) -> ActivityRef:
        return self._hold.ref

    @property
    def id(self) -> str:
        """What it was scheduled as: the workflow_id."""
        return self._hold.ref.workflow_id

    @property
    def type(self) -> str:
        return self._message.activity_type

    @property
    def input(self) -> bytes:
        return self._message.input

    def json(self) -> Any:
        """The input, read as JSON."""
        return json.loads(self._message.input)

    @property
    def attempt(self) -> int:
        return self._hold.ref.attempt

    @property
    def failures(self) -> int:
        """Attempts before this one that failed or were lost with their worker."""
        return self._message.failures

    @property
    def last_failure(self) -> str:
        return self._message.last_failure

    @property
    def lost(self) -> LostSignal:
        return self._hold.lost

    @property
    def fencing_token(self) -> FencingToken:
        """To go with every write. Raises ActivityLost once the activity is lost."""
        return self._hold.fencing_token

    def check(self) -> None:
        """Raise ActivityLost if the activity is lost. For bodies that nobody can cancel: threads, and long loops."""
        self._hold.check()

    def __repr__(self) -> str:
        return f"<Task {self.type!r} {self.ref}>"


@dataclass(slots=True)
class Stats:
    """What became of the attempts that this worker was handed."""

    completed: int = 0
    failed: int = 0
    lost: int = 0
    """Taken away, or refused at the end because somebody else has it."""
    released: int = 0
    """Handed back when the worker stopped."""
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def count(self, *, completed: int = 0, failed: int = 0, lost: int = 0, released: int = 0) -> None:
        """From any thread."""
        with self._lock:
            self.completed += completed
            self.failed += failed
            self.lost += lost
            self.released += released


class Endings:
    """Ends attempts. Each call is made until it is answered, or the attempt is lost, or the worker has ended."""

    def __init__(self, connection: Connection, life: Life) -> None:
        self._connection = connection
        self._life = life

    def complete(self, hold: Hold, result: bytes) -> Future[Any]:
        request = activity_pb2.CompleteActivityRequest(**self._token(hold), result=result)
        return self._call(lambda route: route.activities.CompleteActivity, request, hold)

    def fail(self, hold: Hold, error: BaseException | str) -> Future[Any]:
        request = activity_pb2.FailActivityRequest(**self._token(hold), message=told(error))
        request.non_retryable = isinstance(error, GiveUp)
        if isinstance(error, RetryLater):
            request.retry_after.CopyFrom(duration(max(error.after, 0)))
        return self._call(lambda route: route.activities.FailActivity, request, hold)

    def release(self, ref: ActivityRef, epoch: int, within_ms: int) -> Future[Any]:
        """Try for so long; if that does not do, the end of the lease will."""
        until_ms = self._connection.clock.monotonic_ms() + within_ms
        self._life.ending(ref)
        request = activity_pb2.ReleaseActivityRequest(**self._names(ref, epoch))
        return self._connection.call(
            lambda route: route.activities.ReleaseActivity,
            request,
            timeout_s=self._connection.patience_s(within_ms / 1_000),
            again=lambda refusal: refusal.passing and self._connection.clock.monotonic_ms() < until_ms,
        )

    def _token(self, hold: Hold) -> dict[str, Any]:
        return self._names(hold.ref, hold.epoch)

    def _names(self, ref: ActivityRef, epoch: int) -> dict[str, Any]:
        return {
            "namespace": self._life.namespace,
            "id": id_message(ref),
            "worker_instance_key": self._life.key,
            "lease_epoch": epoch,
            "attempt": ref.attempt,
        }

    def _call(self, pick: Pick, request: Message, hold: Hold) -> Future[Any]:
        def again(refusal: Refusal) -> bool:
            return refusal.passing and not hold.lost.is_set() and not self._life.ended

        self._life.ending(hold.ref)
        return self._connection.call(pick, request, again=again)


def told(error: BaseException | str) -> str:
    """What people will read about a failure."""
    if isinstance(error, GiveUp | RetryLater):
        text = error.why
    elif isinstance(error, str):
        text = error
    else:
        text = f"{type(error).__name__}: {error}"
    return text.encode("utf-8", "replace")[:MESSAGE_BYTES_MAX].decode("utf-8", "ignore")
