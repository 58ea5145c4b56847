"""An activity as the server sees it."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self, TypeVar, overload

from liveness.sdk.converter import DEFAULT_CONVERTER, Converter, Payload, decode, parse_json
from liveness.sdk.timeouts import timed_out_from_proto
from liveness.sdk.values import (
    RESTING_STATES,
    ActivityRef,
    ActivityState,
    state_from_proto,
    time_from_proto,
)
from liveness.v1 import activity_pb2

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptInfo:
    """One attempt of an activity."""

    attempt: int
    worker: str
    started: datetime | None
    """None for an attempt that its worker bound by heartbeat alone."""
    ended: datetime | None
    """None while it runs."""
    outcome: str
    """"running", "completed", "failed", "timed_out", "worker_died", "lost", "given_back" or "cancelled"."""
    message: str
    stack_trace: str
    """Where the handler failed, if this program may see it."""

    @classmethod
    def from_proto(cls, message: activity_pb2.ActivityAttempt) -> Self:
        return cls(
            attempt=message.attempt,
            worker=message.worker_instance_key,
            started=time_from_proto(message.start_time) if message.HasField("start_time") else None,
            ended=time_from_proto(message.end_time) if message.HasField("end_time") else None,
            outcome=_outcome_name(message.outcome),
            message=message.message,
            stack_trace=message.stack_trace,
        )


def _outcome_name(number: int) -> str:
    known = activity_pb2.AttemptOutcome.DESCRIPTOR.values_by_number
    return known[number].name.removeprefix("ATTEMPT_OUTCOME_").lower() if number in known else str(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitInfo:
    """How many activities of a workflow may run at once."""

    workflow_id: str
    maximum: int
    running: int | None
    """None if the node that knows does not answer, as with `waiting`."""
    waiting: int | None

    @classmethod
    def from_proto(cls, message: activity_pb2.ConcurrencyLimit) -> Self:
        return cls(
            workflow_id=message.workflow_id,
            maximum=message.maximum,
            running=message.running if message.HasField("running") else None,
            waiting=message.waiting if message.HasField("waiting") else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityInfo:
    """An activity as the server sees it."""

    ref: ActivityRef
    """With the number of the current or next attempt."""
    state: ActivityState
    type: str
    failures: int
    """Attempts that failed or ended because their worker died."""
    worker_deaths: int
    """Consecutive attempts whose worker died; the count is reset by an attempt that ends otherwise."""
    worker: str
    """While STARTED: the instance key of the worker that holds it."""
    since: datetime
    due: datetime | None
    """While WAITING: the time at which it becomes available."""
    last_failure: str
    input: bytes
    """As it is stored; empty in lists. So is the result."""
    result: bytes
    input_encoding: str = ""
    """How the input is encoded; empty if the client that scheduled it did not say. The result has its own."""
    result_encoding: str = ""
    timed_out: str = ""
    """The time limit that ended the last attempt, or the activity: "start_to_close", "heartbeat", "schedule_to_start" or
    "schedule_to_close"; empty if none did."""
    last_heartbeat: datetime | None = None
    """When the present attempt last called `task.progress`."""
    heartbeat_details: bytes = b""
    """As it is stored; shortened in lists. `details` decodes it."""
    heartbeat_details_encoding: str = ""
    converter: Converter = field(default=DEFAULT_CONVERTER, repr=False, compare=False)
    """The client's."""

    @property
    def id(self) -> str:
        return self.ref.workflow_id

    @property
    def resting(self) -> bool:
        """Whether the activity stays in its state unless an operator or another engine acts."""
        return self.state in RESTING_STATES

    @overload
    def value(self) -> Any: ...
    @overload
    def value(self, type_hint: builtins.type[T]) -> T: ...
    @overload
    def value(self, type_hint: Any) -> Any: ...
    def value(self, type_hint: Any = Any) -> Any:
        """The result as the handler returned it; with a type, as a value of that type. Raises NotConvertible if it is
        none."""
        return decode(self.converter, f"the result of {self.ref}", self._result_payload, type_hint)

    @overload
    def input_value(self) -> Any: ...
    @overload
    def input_value(self, type_hint: builtins.type[T]) -> T: ...
    @overload
    def input_value(self, type_hint: Any) -> Any: ...
    def input_value(self, type_hint: Any = Any) -> Any:
        """The input as it was scheduled, like `value`."""
        payload = Payload(self.input, self.input_encoding)
        return decode(self.converter, f"the input of {self.ref}", payload, type_hint)

    @overload
    def details(self) -> Any: ...
    @overload
    def details(self, type_hint: builtins.type[T]) -> T | None: ...
    @overload
    def details(self, type_hint: Any) -> Any: ...
    def details(self, type_hint: Any = Any) -> Any:
        """What the handler last said with `task.progress`, like `value`; None if it said nothing."""
        if not self.heartbeat_details and not self.heartbeat_details_encoding:
            return None
        payload = Payload(self.heartbeat_details, self.heartbeat_details_encoding)
        return decode(self.converter, f"the progress of {self.ref}", payload, type_hint)

    def json(self) -> Any:
        """The result, parsed as JSON; None if there is none."""
        return parse_json(self._result_payload)

    @property
    def _result_payload(self) -> Payload:
        return Payload(self.result, self.result_encoding)

    @classmethod
    def from_proto(cls, message: activity_pb2.Activity, converter: Converter) -> Self:
        names = message.id
        return cls(
            ref=ActivityRef(
                names.workflow_id,
                names.run_id,
                names.activity_id,
                max(message.attempt, 1),
                message.task_queue,
                message.token,
            ),
            state=state_from_proto(message.state),
            type=message.activity_type,
            failures=message.failures,
            worker_deaths=message.worker_deaths,
            worker=message.worker_instance_key,
            since=time_from_proto(message.since),
            due=time_from_proto(message.due_time) if message.HasField("due_time") else None,
            last_failure=message.last_failure,
            input=message.input,
            result=message.result,
            input_encoding=message.input_encoding,
            result_encoding=message.result_encoding,
            timed_out=timed_out_from_proto(message.timeout_type),
            last_heartbeat=time_from_proto(message.last_heartbeat_time)
            if message.HasField("last_heartbeat_time")
            else None,
            heartbeat_details=message.heartbeat_details,
            heartbeat_details_encoding=message.heartbeat_details_encoding,
            converter=converter,
        )
