"""Makes Temporal retry an attempt whose worker is lost. Every step may be repeated, by any bridge."""

from __future__ import annotations

import grpc

from liveness.bridges.temporal import messages
from liveness.bridges.temporal.binding_record import BindingRecord
from liveness.bridges.temporal.messages import SERVICE
from liveness.bridges.temporal.upstream import OWN_CALLS, Upstream
from liveness.bridges.temporal.wire import Malformed

TIMEOUT_S = 10.0
AWAY_CODES = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
    }
)


class TemporalAway(Exception):
    """Temporal cannot be reached, or cannot serve at the moment. The message says why."""


class RescueRefused(Exception):
    """Temporal has refused the call."""


async def rescue(upstream: Upstream, namespace: str, record: BindingRecord, why: str) -> str:
    """Make Temporal retry the attempt at once, and return the outcome: `retried`, `cancelled`, `finished` if it was over
    already, or `opted_out`. Raises TemporalAway or RescueRefused."""
    pending = await _describe(upstream, namespace, record)
    if pending is None or pending.attempt != record.attempt:
        return "finished"
    if pending.opted_out:
        return "opted_out"
    if pending.state == messages.PENDING_CANCEL_REQUESTED:
        # Temporal retries no activity that is to be cancelled: a failure would reach the workflow instead.
        cancellation = messages.write_cancellation(namespace, record.task_token)
        done = await _call(upstream, namespace, "RespondActivityTaskCanceled", cancellation)
        return "finished" if done is None else "cancelled"
    if record.maximum_attempts > 0 and not await _raise_maximum_attempts(upstream, namespace, record):
        return "finished"
    failure = messages.write_failure(namespace, record.task_token, why)
    done = await _call(upstream, namespace, "RespondActivityTaskFailed", failure)
    return "finished" if done is None else "retried"


async def _describe(
    upstream: Upstream, namespace: str, record: BindingRecord
) -> messages.PendingActivity | None:
    """None if the activity is over."""
    if record.is_standalone:
        method = "DescribeActivityExecution"
        request = messages.write_describe_standalone(namespace, record.activity_id, record.run_id)
    else:
        method = "DescribeWorkflowExecution"
        request = messages.write_describe_workflow(namespace, record.workflow_id, record.run_id)
    described = await _call(upstream, namespace, method, request)
    if described is None:
        return None
    try:
        if record.is_standalone:
            return messages.read_described_standalone(described)
        return messages.read_described_workflow(described, record.activity_id)
    except Malformed as error:
        raise RescueRefused(f"the answer of {method} is malformed: {error}") from None


async def _raise_maximum_attempts(upstream: Upstream, namespace: str, record: BindingRecord) -> bool:
    """Returns whether the activity is still there."""
    maximum = record.maximum_attempts + 1
    if record.is_standalone:
        method = "UpdateActivityExecutionOptions"
        update = messages.write_standalone_maximum_attempts(
            namespace, record.activity_id, record.run_id, maximum
        )
    else:
        method = "UpdateActivityOptions"
        update = messages.write_maximum_attempts(
            namespace, record.workflow_id, record.run_id, record.activity_id, maximum
        )
    return await _call(upstream, namespace, method, update) is not None


async def _call(upstream: Upstream, namespace: str, method: str, request: bytes) -> bytes | None:
    """Returns None if Temporal does not know what the call is about any more."""
    channel = upstream.channel(OWN_CALLS).channel
    call: grpc.aio.UnaryUnaryCall[bytes, bytes] = channel.unary_unary(SERVICE + method)(
        request,  # type: ignore[arg-type]  # without a serializer, messages are bytes
        timeout=TIMEOUT_S,
        metadata=upstream.own_metadata(namespace),
    )
    try:
        answer: bytes = await call
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return None
        message = f"{method}: {error.details()} ({error.code().name})"
        if error.code() in AWAY_CODES:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                upstream.note_unavailable(OWN_CALLS, error.details() or "")
            raise TemporalAway(message) from None
        raise RescueRefused(message) from None
    return answer
