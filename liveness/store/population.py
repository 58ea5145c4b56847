"""The workers of a namespace by what they have in common, and those that died: what incidents are found from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from liveness.domain.death_certificate import Death
from liveness.domain.worker import SharedProfile, WorkerState
from liveness.store import codec
from liveness.store.schema import deaths, workers

LABELLED_MAX = 5_000
"""Of how many living workers the labels are read. Of a larger namespace they are estimated from these."""
NAMES_PER_QUERY = 500
NAMES_MAX = 10_000
DEATHS_READ_MAX = 100_000


class TimedDeath(NamedTuple):
    wall_ms: int
    death: Death


class KnownWorker(NamedTuple):
    state: WorkerState
    profile: SharedProfile


class FormerWorker(NamedTuple):
    name: str
    lease_end_ms: int
    """When its last lease would have ended, in wall time."""
    profile: SharedProfile


class Population(NamedTuple):
    by_profile: Mapping[tuple[str, str, str], int]
    """How many ACTIVE workers have this host, build and task queue."""
    labels: Mapping[tuple[str, str], int]
    """How many of the `labelled` ACTIVE workers have this label."""
    labelled: int
    former: Sequence[FormerWorker]
    """Workers that are not ACTIVE any more; `LABELLED_MAX` of them."""
    known: Mapping[str, KnownWorker]
    """Those of the workers that were asked for, by key."""


def read_timed_deaths(
    connection: Connection, namespace: str, from_wall_ms: int, to_wall_ms: int
) -> list[TimedDeath]:
    """Return the last deaths in this time."""
    query = (
        select(deaths)
        .where(deaths.c.namespace == namespace, deaths.c.wall_ms.between(from_wall_ms, to_wall_ms))
        .order_by(deaths.c.wall_ms.desc(), deaths.c.shard_id, deaths.c.seq)
    )
    found: list[TimedDeath] = []
    for *key, payload in connection.execute(query):
        codec.verify_checksum(payload, "deaths", *key)
        found += [TimedDeath(key[1], death) for death in codec.decode_deaths(payload)]
        if len(found) >= DEATHS_READ_MAX:
            break
    return found


def read_population(connection: Connection, namespace: str, names: Collection[str]) -> Population:
    is_active = (workers.c.namespace == namespace) & (workers.c.state == int(WorkerState.ACTIVE))
    columns = (workers.c.host_name, workers.c.build_id, workers.c.task_queue)
    groups = connection.execute(select(*columns, func.count()).where(is_active).group_by(*columns))
    by_profile = {(host, build, queue): count for host, build, queue, count in groups}
    labels: Counter[tuple[str, str]] = Counter()
    labelled = 0
    row = select(workers.c.worker_key, workers.c.number, workers.c.state, workers.c.payload)
    for _, number, state, payload in connection.execute(row.where(is_active).limit(LABELLED_MAX)):
        labels.update(codec.decode_worker(number, state, payload).shared.profile.labels)
        labelled += 1
    former = []
    is_former = (workers.c.namespace == namespace) & (workers.c.state != int(WorkerState.ACTIVE))
    for name, number, state, payload in connection.execute(row.where(is_former).limit(LABELLED_MAX)):
        worker = codec.decode_worker(number, state, payload)
        heard_ms = worker.renewed_wall_ms or 0
        former.append(FormerWorker(name, heard_ms + worker.granted_ms, worker.shared.profile))
    known: dict[str, KnownWorker] = {}
    ordered = list(names)[:NAMES_MAX]
    for start in range(0, len(ordered), NAMES_PER_QUERY):
        chunk = ordered[start : start + NAMES_PER_QUERY]
        query = row.where(workers.c.namespace == namespace, workers.c.worker_key.in_(chunk))
        for name, number, state, payload in connection.execute(query):
            profile = codec.decode_worker(number, state, payload).shared.profile
            known[name] = KnownWorker(WorkerState(state), profile)
    return Population(by_profile, labels, labelled, former, known)
