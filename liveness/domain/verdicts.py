"""Verdicts: whether workers that were declared dead really were, as far as the log shows.

A worker that returns with the session that it had when its lease ended was alive: the verdict was false. This needs no event
of its own, because it follows from the others.
"""

from __future__ import annotations

from typing import NamedTuple

from liveness.domain.death_certificate import DEATH_REASONS, SILENCE_REASONS
from liveness.domain.events import Event, WorkerDeactivated, WorkerResurrected
from liveness.domain.worker import Worker, WorkerState


class VerdictCounts(NamedTuple):
    deaths: int = 0
    refuted: int = 0

    def __add__(self, other: tuple[int, ...]) -> VerdictCounts:  # type: ignore[override]  # tuples add otherwise
        deaths, refuted = other
        return VerdictCounts(self.deaths + deaths, self.refuted + refuted)


NO_VERDICTS = VerdictCounts()
_DEATH = VerdictCounts(deaths=1)
_REFUTED = VerdictCounts(refuted=1)


def is_death(event: object) -> bool:
    return isinstance(event, WorkerDeactivated) and event.reason in DEATH_REASONS


def is_silent_death(event: object) -> bool:
    """Whether the server ended the lease because it heard nothing. Only such deaths can be the network's fault."""
    return isinstance(event, WorkerDeactivated) and event.reason in SILENCE_REASONS


def is_dead(worker: Worker | None) -> bool:
    """Whether a worker is INACTIVE because it died; a goodbye or an operator's word is no death."""
    return (
        worker is not None
        and worker.state is WorkerState.INACTIVE
        and worker.inactive_reason in DEATH_REASONS
    )


def refutes_death(event: object, session_id: str) -> bool:
    """Whether the first activation after a death shows that the worker was alive: the same session returned.

    Without a session id, a returning process cannot be told from a new one.
    """
    return isinstance(event, WorkerResurrected) and session_id != "" and event.session_id == session_id


def count_verdict(before: Worker | None, event: Event) -> VerdictCounts:
    """Return what an event adds to the counts. `before`: the worker before the event."""
    if is_death(event):
        return _DEATH
    if (
        before is not None
        and before.inactive_reason in DEATH_REASONS
        and refutes_death(event, before.session_id)
    ):
        return _REFUTED
    return NO_VERDICTS
