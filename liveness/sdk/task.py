"""The task that a handler receives, and the reports that end an attempt: complete, fail, release."""

from __future__ import annotations

import builtins
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from traceback import format_exception
from typing import Any, TypeVar, overload

from google.protobuf.message import Message

from liveness.sdk.activity_heartbeats import ActivityHeartbeats
from liveness.sdk.connection import Connection, SelectMethod
from liveness.sdk.converter import Converter, Payload, decode, encode, parse_json
from liveness.sdk.errors import GiveUp, InvalidArgument, NotConvertible, Outcome, Quarantine, RetryLater
from liveness.sdk.held_attempt import HeldAttempt, LostSignal
from liveness.sdk.rpc_failures import RpcFailure
from liveness.sdk.session import WorkerSession
from liveness.sdk.values import ActivityRef, FencingToken, id_to_proto, to_duration
from liveness.v1 import activity_pb2

MESSAGE_BYTES_MAX = 4_000
DETAILS_BYTES_MAX = 16 * 1024
STACK_TRACE_BYTES_MAX = 16 * 1024

_SDK = Path(__file__).parent

T = TypeVar("T")


class Task:
    """One attempt of an activity, held by this worker."""

    def __init__(
        self,
        held_attempt: HeldAttempt,
        message: activity_pb2.ActivityTask,
        converter: Converter,
        heartbeats: ActivityHeartbeats,
    ) -> None:
        self._held_attempt = held_attempt
        self._message = message
        self._converter = converter
        self._heartbeats = heartbeats
        held_attempt.stop_heartbeats = heartbeats.close
        self.result: object = None
        """For claims: the result to record when the body ends normally."""

    @property
    def ref(self) -> ActivityRef:
        return self._held_attempt.ref

    @property
    def id(self) -> str:
        """The id under which it was scheduled: the workflow_id."""
        return self._held_attempt.ref.workflow_id

    @property
    def type(self) -> str:
        return self._message.activity_type

    @property
    def input(self) -> bytes:
        """The input as it is stored; `value` decodes it."""
        return self._message.input

    @property
    def input_encoding(self) -> str:
        """How the input is encoded; empty if the client that scheduled it did not say."""
        return self._message.input_encoding

    @overload
    def value(self) -> Any: ...
    @overload
    def value(self, type_hint: builtins.type[T]) -> T: ...
    @overload
    def value(self, type_hint: Any) -> Any: ...
    def value(self, type_hint: Any = Any) -> Any:
        """The input as it was scheduled; with a type, as a value of that type. Raises NotConvertible if it is none."""
        return decode(self._converter, f"the input of {self.ref}", self._payload, type_hint)

    def json(self) -> Any:
        """The input, parsed as JSON; None if there is none."""
        return parse_json(self._payload)

    @property
    def _payload(self) -> Payload:
        return Payload(self._message.input, self._message.input_encoding)

    @property
    def attempt(self) -> int:
        return self._held_attempt.ref.attempt

    @property
    def failures(self) -> int:
        """Earlier attempts that failed or ended because their worker died."""
        return self._message.failures

    @property
    def last_failure(self) -> str:
        return self._message.last_failure

    @property
    def lost(self) -> LostSignal:
        return self._held_attempt.lost

    @property
    def fencing_token(self) -> FencingToken:
        """Pass this token with every write. Raises ActivityLost once the activity is lost."""
        return self._held_attempt.fencing_token

    def progress(self, details: object = None) -> None:
        """Tell the server that the handler is at work, and how far it has come: `task.progress({"rows": 17_000})`.

        Returns at once, on the event loop and in threads alike; call it as often as you like. The newest details are sent up
        to once a second, shown to people, and given to the next attempt (`task.details`). A handler whose activity has a
        heartbeat timeout must call it in time. `details`: a value as for results, of at most 16 KiB; None keeps the last
        one. Raises ActivityLost if the activity is lost."""
        self._held_attempt.check()
        payload = None
        if details is not None:
            payload = encode(self._converter, f"the progress of {self.ref}", details)
            if len(payload.data) > DETAILS_BYTES_MAX:
                raise InvalidArgument(detail=f"the progress must be at most {DETAILS_BYTES_MAX} bytes.")
        self._heartbeats.record(payload)

    @overload
    def details(self) -> Any: ...
    @overload
    def details(self, type_hint: builtins.type[T]) -> T | None: ...
    @overload
    def details(self, type_hint: Any) -> Any: ...
    def details(self, type_hint: Any = Any) -> Any:
        """What an earlier attempt last said with `progress`; None if it said nothing. Like `value`, with a type."""
        payload = Payload(self._message.heartbeat_details, self._message.heartbeat_details_encoding)
        if not payload.data and not payload.encoding:
            return None
        return decode(self._converter, f"the progress of {self.ref}", payload, type_hint)

    def check(self) -> None:
        """Raise ActivityLost if the activity is lost. For bodies that cannot be cancelled: threads, and long loops."""
        self._held_attempt.check()

    def __repr__(self) -> str:
        return f"<Task {self.type!r} {self.ref}>"


@dataclass(slots=True)
class Stats:
    """How the attempts of this worker ended."""

    completed: int = 0
    failed: int = 0
    lost: int = 0
    """Taken away, or refused at the end because another worker holds it."""
    released: int = 0
    """Handed back when the worker stopped."""
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def count(self, *, completed: int = 0, failed: int = 0, lost: int = 0, released: int = 0) -> None:
        """Add to the counters. Any thread may call this."""
        with self._lock:
            self.completed += completed
            self.failed += failed
            self.lost += lost
            self.released += released


class OutcomeReporter:
    """Reports the end of attempts. It repeats each call until the server answers, the attempt is lost, or the worker ends."""

    def __init__(self, connection: Connection, session: WorkerSession) -> None:
        self._connection = connection
        self._session = session

    def complete(self, held_attempt: HeldAttempt, result: Payload) -> Future[Any]:
        held_attempt.stop_heartbeats()
        request = activity_pb2.CompleteActivityRequest(
            **self._fencing_fields(held_attempt), result=result.data, result_encoding=result.encoding
        )
        return self._call(lambda endpoint: endpoint.activities.CompleteActivity, request, held_attempt)

    def fail(self, held_attempt: HeldAttempt, error: BaseException | str) -> Future[Any]:
        request = activity_pb2.FailActivityRequest(
            **self._fencing_fields(held_attempt), message=failure_message(error)
        )
        if (details := held_attempt.stop_heartbeats()) is not None:
            request.last_heartbeat_details = details.data
            request.last_heartbeat_details_encoding = details.encoding
        request.stack_trace = stack_trace(error)
        request.non_retryable = isinstance(error, GiveUp | NotConvertible)
        request.quarantine = isinstance(error, Quarantine)
        if isinstance(error, RetryLater):
            request.retry_after.CopyFrom(to_duration(max(error.after, 0)))
        return self._call(lambda endpoint: endpoint.activities.FailActivity, request, held_attempt)

    def release(self, ref: ActivityRef, epoch: int, timeout_ms: int) -> Future[Any]:
        """Hand the attempt back, trying for `timeout_ms`. If that fails, the end of the lease frees the attempt."""
        deadline_ms = self._connection.clock.monotonic_ms() + timeout_ms
        self._session.mark_reporting(ref)
        request = activity_pb2.ReleaseActivityRequest(**self._request_fields(ref, epoch))
        return self._connection.call(
            lambda endpoint: endpoint.activities.ReleaseActivity,
            request,
            timeout_s=self._connection.call_timeout_s(timeout_ms / 1_000),
            should_retry=lambda rpc_failure: (
                rpc_failure.is_retryable and self._connection.clock.monotonic_ms() < deadline_ms
            ),
        )

    def _fencing_fields(self, held_attempt: HeldAttempt) -> dict[str, Any]:
        return self._request_fields(held_attempt.ref, held_attempt.epoch)

    def _request_fields(self, ref: ActivityRef, epoch: int) -> dict[str, Any]:
        return {
            "namespace": self._session.namespace,
            "id": id_to_proto(ref),
            "worker_instance_key": self._session.key,
            "lease_epoch": epoch,
            "attempt": ref.attempt,
            "session_id": self._session.session_id,
        }

    def _call(self, select_method: SelectMethod, request: Message, held_attempt: HeldAttempt) -> Future[Any]:
        def should_retry(rpc_failure: RpcFailure) -> bool:
            return rpc_failure.is_retryable and not held_attempt.lost.is_set() and not self._session.has_ended

        self._session.mark_reporting(held_attempt.ref)
        return self._connection.call(select_method, request, should_retry=should_retry)


def stack_trace(error: BaseException | str) -> str:
    """Where the program failed, without the SDK's own part, and the end of it if it is long."""
    if isinstance(error, str) or (trace := error.__traceback__) is None:
        return ""
    while trace is not None and Path(trace.tb_frame.f_code.co_filename).parent == _SDK:
        trace = trace.tb_next
    if trace is None:
        return ""  # the SDK raised it
    text = "".join(format_exception(type(error), error, trace)).encode("utf-8", "replace")
    if len(text) > STACK_TRACE_BYTES_MAX:
        text = b"..." + text[3 - STACK_TRACE_BYTES_MAX :]
    return text.decode("utf-8", "ignore")


def failure_message(error: BaseException | str) -> str:
    """The text of a failure that the server stores and shows to people."""
    if isinstance(error, Outcome):
        text = error.why
    elif isinstance(error, str):
        text = error
    elif isinstance(error, NotConvertible):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}"
    return text.encode("utf-8", "replace")[:MESSAGE_BYTES_MAX].decode("utf-8", "ignore")
