"""The death certificate: what was known when a lease ended because nothing was heard of its worker.

It is a part of the event that ended the lease. State never depends on it. What is known only later, whether the worker
had been alive and where its activities went, is derived when somebody asks (`liveness.domain.verdicts`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from liveness.domain.worker import NO_PROFILE, InactiveReason, Profile, Worker, full_profile

HEARTBEATS_MAX = 8
STALLS_MAX = 8
CONCURRENT_DEATHS_WINDOW_MS = 60_000
"""Deaths that are not further apart may have one cause."""

DEATH_REASONS = (InactiveReason.LEASE_EXPIRED, InactiveReason.DISCONNECTED)
"""Reasons that are a verdict on the worker, and may be a false one. The others are somebody's decision."""


class Stall(NamedTuple):
    """A time in which the server may not have heard what workers said."""

    wall_ms: int
    duration_ms: int | None = None
    """None for a take-over: how long nobody had served the shard is not known."""


class ConcurrentDeaths(NamedTuple):
    """How many other workers of the namespace died in the same minute."""

    same_host: int = 0
    same_build: int = 0
    same_namespace: int = 0

    def max_with(self, other: ConcurrentDeaths) -> ConcurrentDeaths:
        """Both are counts of which some may be missing."""
        return ConcurrentDeaths(*map(max, self, other))

    def plus(self, other: ConcurrentDeaths) -> ConcurrentDeaths:
        return ConcurrentDeaths(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


NO_OTHER_DEATHS = ConcurrentDeaths()


class DeathEvidence(NamedTuple):
    """What the server knows besides the worker itself, oldest first."""

    heartbeats: tuple[int, ...] = ()
    """When they came, by the wall clock, as are all times for people. Of this lease, the last one included."""
    stalls: tuple[Stall, ...] = ()
    """Since the last heartbeat."""
    company: ConcurrentDeaths = NO_OTHER_DEATHS
    held_ms: int = 0
    """For how long a storm put off the end of the lease, as far as this server knows."""


NO_EVIDENCE = DeathEvidence()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathCertificate:
    """Of bounded size: a few short lists, and names that were bounded when they came in."""

    epoch: int
    session_id: str
    silence_ms: int | None
    """Since the last heartbeat, as far as the server was listening; None if that is not known."""
    granted_ms: int
    activities: int | None
    """How many it held; None if that is not known."""
    heartbeats: tuple[int, ...] = ()
    stalls: tuple[Stall, ...] = ()
    company: ConcurrentDeaths = NO_OTHER_DEATHS
    host_name: str = ""
    build_id: str = ""
    task_queue: str = ""
    held_ms: int = 0
    """Beyond its terms, because many fell due together."""


def issue_certificate(worker: Worker, at_ms: int, evidence: DeathEvidence) -> DeathCertificate:
    """For a worker whose lease ends now."""
    profile = worker.profile
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
    """For an event from before there were certificates: what can still be told. `worker`: as it is now, if its lease
    was not followed by another; the rest as the lease began."""
    matched = _EXPIRY_DETAIL.fullmatch(detail)
    silence_ms = int(matched[1]) if matched else None
    if matched:
        granted_ms = int(matched[2])
    if worker is not None:
        silence_ms, granted_ms = at_ms - worker.renewed_ms, worker.granted_ms
        profile = profile if worker.profile == NO_PROFILE else full_profile(worker.profile)
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
