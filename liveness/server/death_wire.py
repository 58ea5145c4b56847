"""The only mapping between death certificates and their messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from liveness.domain.activity import Activity
from liveness.domain.death_certificate import ConcurrentDeaths, DeathCertificate, Stall
from liveness.domain.events import WorkerDeactivated
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.domain.worker import BoundActivity
from liveness.server.activity_wire import state_number
from liveness.server.component_wire import exit_message
from liveness.server.wire import activity_ref, attempt_number, duration, timestamp
from liveness.v1 import death_pb2


class RecordedDeath(NamedTuple):
    """A death as the log records it."""

    wall_ms: int
    event: WorkerDeactivated
    certificate: DeathCertificate
    refuted_wall_ms: int | None
    """When the same session came back; None if it did not."""


class LostActivities(NamedTuple):
    """The activities that the worker held when it died."""

    shown: Sequence[BoundActivity]
    total: int
    current: Mapping[ActivityKey, Activity]
    """Their present state; activities that are not stored any more are missing."""


def certificate_message(
    key: WorkerKey, death: RecordedDeath, company: ConcurrentDeaths, lost: LostActivities
) -> death_pb2.DeathCertificate:
    event, known = death.event, death.certificate
    message = death_pb2.DeathCertificate(
        namespace=key.namespace,
        worker_instance_key=key.instance_key,
        lease_epoch=known.epoch,
        session_id=known.session_id,
        cause=event.reason,  # type: ignore[arg-type]
        detail=event.detail,
        time=timestamp(death.wall_ms),
        granted_lease_duration=duration(known.granted_ms),
        heartbeats=_heartbeat_messages(known.heartbeats),
        stalls=map(_stall_message, known.stalls),
        company=death_pb2.DeathCertificate.Company(**company._asdict()),
        host_name=known.host_name,
        build_id=known.build_id,
        task_queue=known.task_queue,
        activities=[_lost_activity_message(key.namespace, activity, lost.current) for activity in lost.shown],
        activity_count=lost.total,
        verdict=death_pb2.VERDICT_STANDS,
    )
    if known.silence_ms is not None:
        message.silence.CopyFrom(duration(known.silence_ms))
        heartbeat_times = known.heartbeats
        last_wall_ms = heartbeat_times[-1] if heartbeat_times else death.wall_ms - known.silence_ms
        message.last_heartbeat_time.CopyFrom(timestamp(last_wall_ms))
    if known.exit is not None:
        message.exit.CopyFrom(exit_message(known.exit))
    if known.held_ms:
        message.held.CopyFrom(duration(known.held_ms))
    if death.refuted_wall_ms is not None:
        message.verdict = death_pb2.VERDICT_FALSE
        message.refuted_time.CopyFrom(timestamp(death.refuted_wall_ms))
    return message


def _heartbeat_messages(heartbeat_times: Sequence[int]) -> Iterable[death_pb2.DeathCertificate.Heartbeat]:
    for index, wall_ms in enumerate(heartbeat_times):
        message = death_pb2.DeathCertificate.Heartbeat(time=timestamp(wall_ms))
        if index:
            # The wall clock may have been set back in between.
            message.gap.CopyFrom(duration(max(0, wall_ms - heartbeat_times[index - 1])))
        yield message


def _stall_message(stall: Stall) -> death_pb2.DeathCertificate.Stall:
    message = death_pb2.DeathCertificate.Stall(
        time=timestamp(stall.wall_ms), take_over=stall.duration_ms is None
    )
    if stall.duration_ms is not None:
        message.duration.CopyFrom(duration(stall.duration_ms))
    return message


def _lost_activity_message(
    namespace: str, activity: BoundActivity, current: Mapping[ActivityKey, Activity]
) -> death_pb2.DeathCertificate.Moved:
    message = death_pb2.DeathCertificate.Moved(activity=activity_ref(activity))
    known = current.get(ActivityKey(namespace, *activity.id))
    if known is not None:
        message.state = state_number(known)
        message.attempt = attempt_number(known.attempt)
        message.worker_instance_key = known.worker
    return message
