"""Incidents: read from the deaths and the workers in the database, so that every node gives the same answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from liveness.domain.death_certificate import CONCURRENT_DEATHS_WINDOW_MS
from liveness.domain.errors import InvalidField
from liveness.domain.incidents import (
    Incident,
    Living,
    Trait,
    TraitKind,
    WorkerDeath,
    find_incident,
    group_deaths,
)
from liveness.domain.policy import DAY_MS, HOUR_MS, MINUTE_MS, Policy
from liveness.domain.worker import SharedProfile, WorkerState
from liveness.engine.node import Node
from liveness.server.validation import duration_ms, require_identifier
from liveness.server.wire import timestamp
from liveness.store.population import KnownWorker, Population, TimedDeath
from liveness.v1 import insight_pb2

INCIDENTS_MAX = 100
WORKERS_SHOWN_MAX = 100
RECENT_MS = 5 * MINUTE_MS
"""For how long an incident is an alert."""
READ_EVERY_MS = 5_000
GROUPED_FROM_MS = HOUR_MS
"""How much earlier deaths are read, so that the same minutes are grouped whatever is asked for."""
_CAUSES = {
    TraitKind.HOST: insight_pb2.INCIDENT_CAUSE_HOST,
    TraitKind.LABEL: insight_pb2.INCIDENT_CAUSE_LABEL,
    TraitKind.BUILD: insight_pb2.INCIDENT_CAUSE_BUILD,
    TraitKind.TASK_QUEUE: insight_pb2.INCIDENT_CAUSE_TASK_QUEUE,
}


class FoundIncident(NamedTuple):
    incident: Incident
    returned: int
    """Those of the dead that are ACTIVE again."""


class Incidents:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._turn = asyncio.Lock()
        self._recent: dict[str, tuple[int, list[insight_pb2.Incident]]] = {}
        """By namespace: when they were read, on the monotonic clock, and those of the last minutes."""

    async def list_incidents(
        self, request: insight_pb2.ListIncidentsRequest
    ) -> insight_pb2.ListIncidentsResponse:
        namespace = require_identifier("namespace", request.namespace)
        now_ms = self._node.clock.wall_ms()
        if request.incident_id:
            from_ms = to_ms = began_ms(request.incident_id)
        else:
            range_ms = duration_ms("range", request.range) if request.HasField("range") else DAY_MS
            from_ms, to_ms = now_ms - range_ms, now_ms
        found = await self.find(namespace, from_ms, to_ms)
        newest_first = sorted(found, key=lambda each: -each.incident.began_ms)
        return insight_pb2.ListIncidentsResponse(
            incidents=[incident_message(namespace, each) for each in newest_first[:INCIDENTS_MAX]]
        )

    async def recent(self, namespace: str, deaths_last_minute: int) -> Sequence[insight_pb2.Incident]:
        """Return the incidents of the last minutes, oldest first. The database is asked only if there may be any."""
        known = self._recent.get(namespace)
        now_ms, wall_ms = self._node.clock.monotonic_ms(), self._node.clock.wall_ms()
        if known is None or now_ms - known[0] >= READ_EVERY_MS:
            if not deaths_last_minute and not (known and known[1]):
                return ()
            found = await self.find(namespace, wall_ms - RECENT_MS, wall_ms)
            known = now_ms, [incident_message(namespace, each, shows_workers=False) for each in found]
            self._recent[namespace] = known
            if not known[1]:
                del self._recent[namespace]
        return known[1]

    async def find(self, namespace: str, from_ms: int, to_ms: int) -> list[FoundIncident]:
        """Return the incidents that began in this time, oldest first.

        Ten thousand deaths take long to look at, so that is done in a thread, for one caller after the other."""
        store, window_ms = self._node.store, CONCURRENT_DEATHS_WINDOW_MS
        async with self._turn:
            deaths = await store.timed_deaths(namespace, from_ms - GROUPED_FROM_MS, to_ms + window_ms)
            if not deaths:
                return []
            groups = await asyncio.to_thread(self._group, deaths, from_ms, to_ms)
            if not groups:
                return []
            names = {death.worker for group in groups for death in group}
            population = await store.population(namespace, names)
            policy = self._node.policies.of(namespace)
            return await asyncio.to_thread(self._find, deaths, groups, population, policy)

    @staticmethod
    def _group(deaths: Sequence[TimedDeath], from_ms: int, to_ms: int) -> list[list[WorkerDeath]]:
        return [
            group
            for group in group_deaths([_death(death, None) for death in deaths])
            if from_ms <= group[0].wall_ms <= to_ms
        ][-INCIDENTS_MAX:]

    @staticmethod
    def _find(
        deaths: Sequence[TimedDeath],
        groups: Sequence[Sequence[WorkerDeath]],
        population: Population,
        policy: Policy,
    ) -> list[FoundIncident]:
        known_deaths = {
            (death.wall_ms, death.death.worker): _death(death, population.known.get(death.death.worker))
            for death in deaths
        }
        found = []
        for group in groups:
            whole = [known_deaths[death.wall_ms, death.worker] for death in group]
            returned = [
                death
                for death in whole
                if (worker := population.known.get(death.worker)) and worker.state is WorkerState.ACTIVE
            ]
            living = _living(population, returned, {death.worker for death in group}, group[0].wall_ms)
            incident = find_incident(whole, living, policy)
            if incident is not None:
                found.append(FoundIncident(incident, len(returned)))
        return found

    async def of_death(self, namespace: str, worker: str, wall_ms: int) -> insight_pb2.Incident | None:
        """Return the incident that a worker's death at this time is part of."""
        for found in await self.find(namespace, wall_ms - CONCURRENT_DEATHS_WINDOW_MS, wall_ms):
            if any(death.worker == worker and death.wall_ms == wall_ms for death in found.incident.deaths):
                return incident_message(namespace, found, shows_workers=False)
        return None


def began_ms(incident_id: str) -> int:
    if not (incident_id.isascii() and incident_id.isdigit() and len(incident_id) <= 15):
        raise InvalidField(field="incident_id", rule="is not the id of an incident: these are numbers")
    return int(incident_id)


def _death(timed: TimedDeath, known: KnownWorker | None) -> WorkerDeath:
    wall_ms, death = timed
    traits = {Trait(TraitKind.HOST, "", death.host_name), Trait(TraitKind.BUILD, "", death.build_id)}
    if known is not None:  # host and build may be others by now
        as_recorded = (TraitKind.HOST, TraitKind.BUILD)
        traits.update(trait for trait in _traits(known.profile) if trait.kind not in as_recorded)
    return WorkerDeath(wall_ms, death.worker, frozenset(trait for trait in traits if trait.value))


def _traits(profile: SharedProfile) -> list[Trait]:
    return [
        Trait(TraitKind.HOST, "", profile.host_name),
        Trait(TraitKind.BUILD, "", profile.build_id),
        Trait(TraitKind.TASK_QUEUE, "", profile.task_queue),
        *(Trait(TraitKind.LABEL, *label) for label in profile.labels),
    ]


def _living(
    population: Population, returned: Sequence[WorkerDeath], dead: Collection[str], began_ms: int
) -> Living:
    """Return the workers that lived when the incident began, as far as it shows today: those that are ACTIVE, but for the dead
    that came back, and those whose leases ended later."""
    total, counts = 0, Counter[Trait]()
    for (host, build, queue), workers in population.by_profile.items():
        total += workers
        counts[Trait(TraitKind.HOST, "", host)] += workers
        counts[Trait(TraitKind.BUILD, "", build)] += workers
        counts[Trait(TraitKind.TASK_QUEUE, "", queue)] += workers
    for label, workers in population.labels.items():
        counts[Trait(TraitKind.LABEL, *label)] = round(workers * total / population.labelled)
    for death in returned:
        counts.subtract(dict.fromkeys(death.traits, 1))
    lived = [
        worker for worker in population.former if worker.lease_end_ms > began_ms and worker.name not in dead
    ]
    for worker in lived:
        counts.update(_traits(worker.profile))
    total = max(0, total - len(returned)) + len(lived)
    return Living(total, {trait: max(0, workers) for trait, workers in counts.items()})


def incident_message(
    namespace: str, found: FoundIncident, *, shows_workers: bool = True
) -> insight_pb2.Incident:
    incident, cause = found.incident, found.incident.cause
    trait = cause.trait
    return insight_pb2.Incident(
        namespace=namespace,
        incident_id=str(incident.began_ms),
        start_time=timestamp(incident.began_ms),
        end_time=timestamp(incident.ended_ms),
        cause=insight_pb2.INCIDENT_CAUSE_WIDESPREAD if trait is None else _CAUSES[trait.kind],
        label="" if trait is None else trait.name,
        value="" if trait is None else trait.value,
        dead=len(incident.deaths),
        dead_with=cause.dead_with,
        living=incident.living,
        living_with=cause.living_with,
        chance=cause.chance,
        message=incident_text(namespace, incident),
        worker_instance_keys=incident.workers[:WORKERS_SHOWN_MAX] if shows_workers else (),
        returned=found.returned,
    )


def incident_text(namespace: str, incident: Incident) -> str:
    dead, cause = len(incident.deaths), incident.cause
    seconds = max(1, round((incident.ended_ms - incident.began_ms) / 1_000))
    died = f"{dead} workers of {namespace} died within {seconds} s"
    trait = cause.trait
    if trait is None:
        return (
            f"{died}, and have nothing in common but the time; {incident.living} lived on. Probably it is the network, the name service, or "
            "what all of them need."
        )
    what = {
        TraitKind.HOST: f"host {trait.value}",
        TraitKind.LABEL: f"{trait.name} {trait.value}",
        TraitKind.BUILD: f"build {trait.value}",
        TraitKind.TASK_QUEUE: f"task queue {trait.value}",
    }[trait.kind]
    who = "all of them" if cause.dead_with == dead else f"{cause.dead_with} of them"
    return f"{died}. Probably it is the {what}: {who} had it, and {cause.living_with} of the {incident.living} that lived on."
