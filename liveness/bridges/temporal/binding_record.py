"""A binding in liveness names a Temporal attempt, and carries everything that a rescue needs in its token."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from liveness.bridges.temporal.messages import Completion, HandedOut
from liveness.bridges.temporal.wire import Fields, Malformed, write_message
from liveness.v1.worker_pb2 import ActivityRef

RESCUE_QUEUE = "temporal-rescue"
IDENTIFIER_BYTES_MAX = 255
TOKEN_BYTES_MAX = 2_048
_KIND = "temporal/1"


class NotRecordable(Exception):
    """The attempt cannot be a binding. The message says why, in one word for the metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingRecord:
    """Stored as the token of a binding. Rows of all released versions stay readable: fields are only added."""

    task_token: bytes
    workflow_id: str
    """Empty for a standalone activity."""
    run_id: str
    """Of the workflow, or of the standalone activity."""
    activity_id: str
    activity_type: str
    attempt: int
    maximum_attempts: int
    worker_key: str
    task_queue: str
    """Temporal's."""
    interval_ms: int = 0
    """The worker's heartbeat interval; 0 if it was not known yet."""

    @property
    def is_standalone(self) -> bool:
        """Whether it is an activity of its own, without a workflow."""
        return not self.workflow_id

    def encode(self) -> bytes:
        return write_message(
            {
                1: _KIND,
                2: self.task_token,
                3: self.workflow_id,
                4: self.run_id,
                5: self.activity_id,
                6: self.activity_type,
                7: self.attempt,
                8: self.maximum_attempts,
                9: self.worker_key,
                10: self.task_queue,
                11: self.interval_ms,
            }
        )

    @classmethod
    def decode(cls, token: bytes) -> BindingRecord | None:
        """None if the token is not one of these."""
        try:
            fields = Fields(token)
            if fields.text(1) != _KIND:
                return None
            return cls(
                task_token=fields.data(2),
                workflow_id=fields.text(3),
                run_id=fields.text(4),
                activity_id=fields.text(5),
                activity_type=fields.text(6),
                attempt=fields.number(7),
                maximum_attempts=fields.number(8),
                worker_key=fields.text(9),
                task_queue=fields.text(10),
                interval_ms=fields.number(11),
            )
        except Malformed:
            return None

    def reference(self, generation: int = 0) -> ActivityRef:
        """The binding. Each attempt is an activity of its own in liveness: it is bound, and rescued, once. A standalone
        activity stands in the workflow's place. `generation`: more than 0 if it is bound again after a lease ended by mistake."""
        again = f".{generation}" if generation else ""
        name = "" if self.is_standalone else self.activity_id
        token = self.encode()
        if len(token) > TOKEN_BYTES_MAX:
            raise NotRecordable("too_large")
        return ActivityRef(
            workflow_id=identifier(self.workflow_id or self.activity_id),
            run_id=identifier(self.run_id),
            activity_id=identifier(f"{name}@{self.attempt}{again}"),
            attempt=max(self.attempt, 1),
            task_queue=RESCUE_QUEUE,
            token=token,
        )

    def is_meant_by(self, completion: Completion) -> bool:
        if completion.task_token:
            return self.task_token == completion.task_token
        ids = completion.workflow_id, completion.activity_id
        return (self.workflow_id, self.activity_id) == ids and completion.run_id in ("", self.run_id)


def record_of(task: HandedOut, worker_key: str, task_queue: str, interval_ms: int = 0) -> BindingRecord:
    return BindingRecord(
        task_token=task.task_token,
        workflow_id=task.workflow_id,
        run_id=task.run_id,
        activity_id=task.activity_id,
        activity_type=task.activity_type,
        attempt=task.attempt,
        maximum_attempts=task.maximum_attempts,
        worker_key=worker_key,
        task_queue=task_queue,
        interval_ms=interval_ms,
    )


def identifier(name: str) -> str:
    """The name as liveness takes it: one that is too long, or has control characters, ends in its hash."""
    if len(name.encode()) <= IDENTIFIER_BYTES_MAX and name.isprintable():
        return name or "-"
    shown = "".join(character for character in name if character.isprintable()).encode()[:180]
    return f"{shown.decode(errors='ignore')}~{sha256(name.encode()).hexdigest()[:32]}"
