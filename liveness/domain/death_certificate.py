"""The death certificate: the evidence at the moment when a lease ended because its worker was silent.

It is part of the event that ended the lease; state never depends on it. Facts that become known later (whether the worker
was alive after all, where its activities went) are derived from the log on request (`liveness.domain.verdicts`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from liveness.domain.component import ProcessExit
from liveness.domain.worker import NO_PROFILE, InactiveReason, Profile, Worker

HEARTBEATS_MAX = 8
STALLS_MAX = 8
CONCURRENT_DEATHS_WINDOW_MS = 60_000
"""Deaths within this time of each other may have a common cause."""

SILENCE_REASONS = (InactiveReason.LEASE_EXPIRED, InactiveReason.DISCONNECTED)
"""The server concluded that the worker is dead, and may be wrong."""
DEATH_REASONS = (*SILENCE_REASONS, InactiveReason.PROCESS_EXITED)
"""Of the last one, a supervisor saw the process end. All other reasons are a decision of a person or a worker."""


class Stall(NamedTuple):
    """A period in which the server may have missed heartbeats."""

    wall_ms: int
    duration_ms: int | None = None
    """None for a take-over: the time for which no node served the shard is unknown."""


class ConcurrentDeaths(NamedTuple):
    """How many other workers of the namespace died within `CONCURRENT_DEATHS_WINDOW_MS`."""

    same_host: int = 0
    same_build: int = 0
    same_namespace: int = 0

    def max_with(self, other: ConcurrentDeaths) -> ConcurrentDeaths:
        """Each count is a lower bound, so the larger one is closer to the truth."""
        return ConcurrentDeaths(*map(max, self, other))


NO_OTHER_DEATHS = ConcurrentDeaths()


class Death(NamedTuple):
    """A death in a namespace, as other certificates count it."""

    worker: str
    host_name: str
    build_id: str


def count_others(worker: str, host_name: str, build_id: str, deaths: Iterable[Death]) -> ConcurrentDeaths:
    """Count the workers among `deaths` other than `worker`. One that died several times counts once."""
    others = {death for death in deaths if death.worker != worker}
    return ConcurrentDeaths(
        len({death.worker for death in others if death.host_name == host_name}) if host_name else 0,
        len({death.worker for death in others if death.build_id == build_id}) if build_id else 0,
        len({death.worker for death in others}),
    )


class DeathEvidence(NamedTuple):
    """The facts about a death that are not in the worker's state. Lists are oldest first."""

    heartbeats: tuple[int, ...] = ()
    """Wall-clock times of the heartbeats of this lease, the last one included."""
    stalls: tuple[Stall, ...] = ()
    """Stalls since the last heartbeat."""
    company: ConcurrentDeaths = NO_OTHER_DEATHS
    held_ms: int = 0
    """How long a storm delayed the end of the lease, as far as this server knows."""
    exit: ProcessExit | None = None
    """How the process ended, if a supervisor saw it."""


NO_EVIDENCE = DeathEvidence()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathCertificate:
    """Bounded in size: the lists are short, and the names were bounded on input."""

    epoch: int
    session_id: str
    silence_ms: int | None
    """Time since the last heartbeat, without times in which the server was not listening; None if unknown."""
    granted_ms: int
    activities: int | None
    """How many activities the worker held; None if unknown."""
    heartbeats: tuple[int, ...] = ()
    stalls: tuple[Stall, ...] = ()
    company: ConcurrentDeaths = NO_OTHER_DEATHS
    host_name: str = ""
    build_id: str = ""
    task_queue: str = ""
    held_ms: int = 0
    """How long a storm delayed the end of the lease."""
    exit: ProcessExit | None = None
    """How the process ended, if a supervisor saw it."""


def issue_certificate(worker: Worker, at_ms: int, evidence: DeathEvidence) -> DeathCertificate:
    profile = worker.shared.profile
    return DeathCertificate(
        epoch=worker.epoch,
        session_id=worker.session_id,
        silence_ms=at_ms - worker.renewed_ms,
        granted_ms=worker.granted_ms,
        activities=len(worker.bindings),
        heartbeats=evidence.heartbeats[-HEARTBEATS_MAX:],
        stalls=evidence.stalls[-STALLS_MAX:],
        company=evidence.company,
        host_name=profile.host_name,
        build_id=profile.build_id,
        task_queue=profile.task_queue,
        held_ms=evidence.held_ms,
        exit=evidence.exit,
    )


_EXPIRY_DETAIL = re.compile(r"no heartbeat for (\d+) ms of a (\d+) ms lease")


def reconstruct_certificate(
    detail: str,
    at_ms: int,
    worker: Worker | None,
    *,
    epoch: int,
    session_id: str,
    granted_ms: int,
    profile: Profile,
) -> DeathCertificate:
    """Build a certificate for an event that was stored before certificates existed.

    `worker`: its current state, if no later lease followed. The other arguments describe the start of the lease.
    """
    matched = _EXPIRY_DETAIL.fullmatch(detail)
    silence_ms = int(matched[1]) if matched else None
    if matched:
        granted_ms = int(matched[2])
    if worker is not None:
        silence_ms, granted_ms = at_ms - worker.renewed_ms, worker.granted_ms
        profile = profile if worker.profile == NO_PROFILE else worker.profile
    return DeathCertificate(
        epoch=epoch,
        session_id=session_id,
        silence_ms=silence_ms,
        granted_ms=granted_ms,
        activities=None,
        host_name=profile.host_name,
        build_id=profile.build_id,
        task_queue=profile.task_queue,
    )
