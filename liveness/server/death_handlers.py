"""Death certificates: assembled from the worker's history, the deaths at the same time, and the present state of the
worker's activities."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence

from liveness.domain.death_certificate import (
    CONCURRENT_DEATHS_WINDOW_MS,
    ConcurrentDeaths,
    DeathCertificate,
    count_others,
    reconstruct_certificate,
)
from liveness.domain.errors import DeathNotFound
from liveness.domain.events import (
    Activation,
    ActivityHanded,
    BindingsChanged,
    BindingsEnded,
    SessionReplaced,
    WorkerDeactivated,
    WorkerRegistered,
    WorkerResurrected,
)
from liveness.domain.keys import ActivityId, ActivityKey, WorkerKey
from liveness.domain.verdicts import is_death, refutes_death
from liveness.domain.worker import NO_PROFILE, BoundActivity, Worker
from liveness.engine.node import Node
from liveness.server import wire
from liveness.server.death_wire import LostActivities, RecordedDeath, certificate_message
from liveness.server.incidents import Incidents
from liveness.store.codec import LogEntry
from liveness.v1 import death_pb2, service_pb2

ACTIVITIES_MAX = 100
PAGE = 200
LEASE_EVENTS_MAX = 10_000
"""How many lease events are read, at most, to find the death in question."""
BINDING_EVENTS_MAX = 10_000
"""How many binding events are read, at most, to find the activities that the worker held."""

_LEASE_EVENTS = tuple(
    kind.__name__ for kind in (WorkerRegistered, SessionReplaced, WorkerResurrected, WorkerDeactivated)
)
_BINDING_EVENTS = tuple(
    kind.__name__
    for kind in (
        WorkerRegistered,
        SessionReplaced,
        WorkerResurrected,
        BindingsChanged,
        ActivityHanded,
        BindingsEnded,
    )
)


class DeathHandlers:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._incidents = Incidents(node)

    async def get_certificate(
        self, request: service_pb2.GetDeathCertificateRequest
    ) -> death_pb2.DeathCertificate:
        key = wire.worker_key(request.namespace, request.worker_instance_key)
        shard = self._node.shard(*key)
        worker = shard.workers.get(key)
        await self._node.wait_durable(shard)
        found = await self._find_death(key, shard.id, worker, request.lease_epoch)
        if found is None:
            state = (worker or shard.describe(key)).state.name
            when = f" in lease epoch {request.lease_epoch}" if request.lease_epoch else ""
            raise DeathNotFound(worker=key.instance_key, when=when, state=state)
        seq, death = found
        lost = await self._find_lost_activities(key, shard.id, worker, seq, death.certificate)
        message = certificate_message(key, death, await self._concurrent_deaths(key, death), lost)
        incident = await self._incidents.of_death(key.namespace, key.instance_key, death.wall_ms)
        if incident is not None:
            message.incident.CopyFrom(incident)
        return message

    async def _find_death(
        self, key: WorkerKey, shard_id: int, worker: Worker | None, epoch: int
    ) -> tuple[int, RecordedDeath] | None:
        """Returns the last death, or the one that ended this epoch, with its log sequence."""
        next_activation: LogEntry | None = None
        uncertified: tuple[LogEntry, LogEntry | None] | None = None
        async for entry in self._history_backwards(key, shard_id, _LEASE_EVENTS, None, LEASE_EVENTS_MAX):
            if uncertified is not None:
                known = _reconstruct_certificate(uncertified[0], entry, worker)
                if epoch in (0, known.epoch):
                    return uncertified[0].seq, _make_death(*uncertified, known)
                uncertified = None
            if is_death(entry.event):
                assert isinstance(entry.event, WorkerDeactivated)
                if entry.event.certificate is None:
                    uncertified = entry, next_activation  # the activation before it names the lease
                elif epoch in (0, entry.event.certificate.epoch):
                    return entry.seq, _make_death(entry, next_activation, entry.event.certificate)
            next_activation = entry
        if uncertified is not None and not epoch:
            return uncertified[0].seq, _make_death(
                *uncertified, _reconstruct_certificate(uncertified[0], None, worker)
            )
        return None

    async def _find_lost_activities(
        self,
        key: WorkerKey,
        shard_id: int,
        worker: Worker | None,
        before_seq: int,
        certificate: DeathCertificate,
    ) -> LostActivities:
        """Find the activities that the worker held: for each, the last event in the history decides. Changes of bindings
        are not kept for long, but a worker that has not come back still lists what it lost."""
        count = certificate.activities
        held: dict[ActivityId, BoundActivity] = {}
        seen: set[ActivityId] = set()
        limit_shown = ACTIVITIES_MAX if count is None else min(count, ACTIVITIES_MAX)
        if limit_shown:
            async for entry in self._history_backwards(
                key, shard_id, _BINDING_EVENTS, before_seq, BINDING_EVENTS_MAX
            ):
                bound, ended = _binding_changes(entry.event)
                for activity in reversed(bound):
                    if activity.id not in seen:
                        held[activity.id] = activity
                        seen.add(activity.id)
                seen.update(ended)
                if isinstance(entry.event, Activation) or (count is not None and len(held) >= limit_shown):
                    break
        if worker is not None and worker.epoch == certificate.epoch and count is not None:
            for activity in reversed(tuple(worker.lost.values())):
                if len(held) < limit_shown and activity.id not in seen:
                    held[activity.id] = activity
        shown = list(reversed(held.values()))[-ACTIVITIES_MAX:]
        keys = [ActivityKey(key.namespace, *activity.id) for activity in shown]
        current = await self._node.store.find_activities(keys) if keys else {}
        return LostActivities(shown, len(held) if count is None else count, current)

    async def _concurrent_deaths(self, key: WorkerKey, death: RecordedDeath) -> ConcurrentDeaths:
        """Returns how many others died within a minute before or after. The store's answer no longer changes when that
        minute is over; the certificate's own count is higher where a node of version 0.1.0 recorded no deaths."""
        known, window_ms = death.certificate, CONCURRENT_DEATHS_WINDOW_MS
        deaths = await self._node.store.deaths_between(
            key.namespace, death.wall_ms - window_ms, death.wall_ms + window_ms
        )
        found = count_others(key.instance_key, known.host_name, known.build_id, deaths)
        return found.max_with(known.company)

    async def _history_backwards(
        self, key: WorkerKey, shard_id: int, kinds: Collection[str], before_seq: int | None, limit: int
    ) -> AsyncIterator[LogEntry]:
        """Yield up to `limit` events of a worker, newest first."""
        for _ in range(0, limit, PAGE):
            entries = await self._node.store.worker_history(
                key, shard_id, newest_first=True, beyond_seq=before_seq, limit=PAGE, kinds=kinds
            )
            for entry in entries:
                yield entry
            if len(entries) < PAGE and not entries.is_cut:
                return
            before_seq = entries[-1].seq


def _make_death(entry: LogEntry, next_activation: LogEntry | None, known: DeathCertificate) -> RecordedDeath:
    """`next_activation`: the first activation after the death, if any."""
    assert isinstance(entry.event, WorkerDeactivated)
    refuted = next_activation is not None and refutes_death(next_activation.event, known.session_id)
    return RecordedDeath(
        entry.wall_ms,
        entry.event,
        known,
        next_activation.wall_ms if next_activation is not None and refuted else None,
    )


def _reconstruct_certificate(
    entry: LogEntry, before: LogEntry | None, worker: Worker | None
) -> DeathCertificate:
    """For a death without a stored certificate. `before`: the activation of the lease, if it is still in the log."""
    event = entry.event
    assert isinstance(event, WorkerDeactivated)
    lease = before.event if before is not None and isinstance(before.event, Activation) else None
    same_worker = worker if worker is not None and worker.inactive_reason is event.reason else None
    if lease is not None and same_worker is not None and same_worker.epoch != lease.epoch:
        same_worker = None
    epoch, session_id, granted_ms, profile = 0, "", 0, NO_PROFILE
    if lease is not None:
        epoch, session_id, granted_ms, profile = (
            lease.epoch, lease.session_id, lease.granted_ms, lease.profile,
        )  # fmt: skip
    elif same_worker is not None:
        epoch, session_id = same_worker.epoch, same_worker.session_id
    return reconstruct_certificate(
        event.detail,
        event.at_ms,
        same_worker,
        epoch=epoch,
        session_id=session_id,
        granted_ms=granted_ms,
        profile=profile,
    )


def _binding_changes(event: object) -> tuple[Sequence[BoundActivity], Sequence[ActivityId]]:
    """Returns the activities that an event bound, and those that it ended before that."""
    if isinstance(event, Activation):
        return event.bindings, ()
    if isinstance(event, BindingsChanged):
        return event.bound, event.unbound
    if isinstance(event, ActivityHanded):
        return (event.activity,), ()
    if isinstance(event, BindingsEnded):
        return (), event.ids
    return (), ()
