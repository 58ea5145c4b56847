"""Why did a worker die? Put together from the worker's history, from what other nodes know, and from where its
activities are now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence

from liveness.domain.death import Certificate, Company, certify_afterwards
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
from liveness.domain.verdict import is_death, refutes
from liveness.domain.worker import NO_PROFILE, BoundActivity, Worker
from liveness.server import wire
from liveness.server.death_wire import Death, Lost, certificate_message, company, count_request
from liveness.server.everywhere import Everywhere
from liveness.shard.node import Node
from liveness.store.codec import LogEntry
from liveness.v1 import cluster_pb2, death_pb2, service_pb2

ACTIVITIES_MAX = 100
PAGE = 200
LIVES_MAX = 10_000
"""How many activations and ends of leases are looked through for the one that was asked for."""
BINDINGS_MAX = 10_000
"""How many changes of its bindings are looked through for what the worker held."""
ANSWER_SECONDS_MAX = 1.0

_LIVES = tuple(
    kind.__name__ for kind in (WorkerRegistered, SessionReplaced, WorkerResurrected, WorkerDeactivated)
)
_BINDINGS = tuple(
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


class DeathDesk:
    def __init__(self, node: Node, everywhere: Everywhere | None = None) -> None:
        self._node = node
        self._everywhere = everywhere

    async def certificate(
        self, request: service_pb2.GetDeathCertificateRequest
    ) -> death_pb2.DeathCertificate:
        key = wire.worker_key(request.namespace, request.worker_instance_key)
        shard = self._node.shard(*key)
        worker = shard.workers.get(key)
        await self._node.durable(shard)
        found = await self._find(key, shard.id, worker, request.lease_epoch)
        if found is None:
            state = (worker or shard.describe(key)).state.name
            when = f" in lease epoch {request.lease_epoch}" if request.lease_epoch else ""
            raise DeathNotFound(worker=key.instance_key, when=when, state=state)
        seq, death = found
        lost = await self._lost(key, shard.id, seq, death.certificate.activities)
        return certificate_message(key, death, await self._company(key, death), lost)

    async def _find(
        self, key: WorkerKey, shard_id: int, worker: Worker | None, epoch: int
    ) -> tuple[int, Death] | None:
        """The last death, or the one that ended this epoch, with its place in the log."""
        later: LogEntry | None = None
        bare: tuple[LogEntry, LogEntry | None] | None = None
        async for entry in self._backwards(key, shard_id, _LIVES, None, LIVES_MAX):
            if bare is not None:
                known = _afterwards(bare[0], entry, worker)
                if epoch in (0, known.epoch):
                    return bare[0].seq, _death(*bare, known)
                bare = None
            if is_death(entry.event):
                assert isinstance(entry.event, WorkerDeactivated)
                if entry.event.certificate is None:
                    bare = entry, later  # the activation before it says which lease it ended
                elif epoch in (0, entry.event.certificate.epoch):
                    return entry.seq, _death(entry, later, entry.event.certificate)
            later = entry
        if bare is not None and not epoch:
            return bare[0].seq, _death(*bare, _afterwards(bare[0], None, worker))
        return None

    async def _lost(self, key: WorkerKey, shard_id: int, before_seq: int, count: int | None) -> Lost:
        """What the worker held: of each activity, the last that its history says decides."""
        held: dict[ActivityId, BoundActivity] = {}
        seen: set[ActivityId] = set()
        enough = ACTIVITIES_MAX if count is None else min(count, ACTIVITIES_MAX)
        if enough:
            async for entry in self._backwards(key, shard_id, _BINDINGS, before_seq, BINDINGS_MAX):
                bound, ended = _bindings(entry.event)
                for activity in reversed(bound):
                    if activity.id not in seen:
                        held[activity.id] = activity
                        seen.add(activity.id)
                seen.update(ended)
                if isinstance(entry.event, Activation) or (count is not None and len(held) >= enough):
                    break
        shown = list(reversed(held.values()))[-ACTIVITIES_MAX:]
        keys = [ActivityKey(key.namespace, *activity.id) for activity in shown]
        now = await self._node.store.find_activities(keys) if keys else {}
        return Lost(shown, len(held) if count is None else count, now)

    async def _company(self, key: WorkerKey, death: Death) -> Company:
        """As it was recorded, or as the nodes that are there remember it since: those who died afterwards, or on other
        nodes, could not be known then."""
        known = death.certificate
        found = self._node.obituaries.around(key, known.host_name, known.build_id, death.wall_ms)
        if self._everywhere is not None:
            answers = await self._everywhere.ask_others(
                "ClusterService/CountDeaths",
                count_request(key, known, death.wall_ms),
                cluster_pb2.CountDeathsResponse,
                patient=True,
                timeout_s=ANSWER_SECONDS_MAX,
            )
            for answer in answers:
                found = found.and_also(company(answer))
        return found.or_more(known.company)

    async def _backwards(
        self, key: WorkerKey, shard_id: int, kinds: Collection[str], before_seq: int | None, limit: int
    ) -> AsyncIterator[LogEntry]:
        """Events of a worker, the newest first, so many at most."""
        for _ in range(0, limit, PAGE):
            entries = await self._node.store.worker_history(
                key, shard_id, newest_first=True, beyond_seq=before_seq, limit=PAGE, kinds=kinds
            )
            for entry in entries:
                yield entry
            if len(entries) < PAGE:
                return
            before_seq = entries[-1].seq


def _death(entry: LogEntry, later: LogEntry | None, known: Certificate) -> Death:
    """`later`: the activation that came next."""
    assert isinstance(entry.event, WorkerDeactivated)
    refuted = later is not None and refutes(later.event, known.session_id)
    return Death(entry.wall_ms, entry.event, known, later.wall_ms if later is not None and refuted else None)


def _afterwards(entry: LogEntry, before: LogEntry | None, worker: Worker | None) -> Certificate:
    """For a death without a certificate. `before`: the activation of the lease that it ended, if it is still kept."""
    event = entry.event
    assert isinstance(event, WorkerDeactivated)
    lease = before.event if before is not None and isinstance(before.event, Activation) else None
    still = worker if worker is not None and worker.inactive_reason is event.reason else None
    if lease is not None and still is not None and still.epoch != lease.epoch:
        still = None
    epoch, session_id, granted_ms, profile = 0, "", 0, NO_PROFILE
    if lease is not None:
        epoch, session_id, granted_ms, profile = (
            lease.epoch, lease.session_id, lease.granted_ms, lease.profile,
        )  # fmt: skip
    elif still is not None:
        epoch, session_id = still.epoch, still.session_id
    return certify_afterwards(
        event.detail,
        event.at_ms,
        still,
        epoch=epoch,
        session_id=session_id,
        granted_ms=granted_ms,
        profile=profile,
    )


def _bindings(event: object) -> tuple[Sequence[BoundActivity], Sequence[ActivityId]]:
    """What an event bound and, before that, ended."""
    if isinstance(event, Activation):
        return event.bindings, ()
    if isinstance(event, BindingsChanged):
        return event.bound, event.unbound
    if isinstance(event, ActivityHanded):
        return (event.activity,), ()
    if isinstance(event, BindingsEnded):
        return (), event.ids
    return (), ()
