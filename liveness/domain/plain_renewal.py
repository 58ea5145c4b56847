"""Decide and evolve in one step, for the heartbeat that only renews the lease: nearly all traffic.

The result equals `decider.heartbeat` followed by `fold.evolve` (`tests/unit/domain/test_plain_renewal.py` checks that), but the
worker is unpacked only once.
"""

from __future__ import annotations

from liveness.domain.decider import COUNTER_MAX
from liveness.domain.events import LeaseRenewed
from liveness.domain.worker import Worker, WorkerState, shared_state

# Looked up once: on Python 3.11, each access to an enum member costs as much as a dict lookup.
ACTIVE = WorkerState.ACTIVE
_new = tuple.__new__


def renew_if_plain(
    worker: Worker, sequence: int, successes: int, errors: int, at_ms: int, wall_offset_ms: int
) -> tuple[LeaseRenewed, Worker] | None:
    """Renew the lease for a plain heartbeat of the current session; None if the general path must decide.

    `wall_offset_ms`: wall time minus observed time, now."""
    number, last, _, all_successes, all_errors, heartbeats, _, _, texts, shared = worker
    if shared.state is not ACTIVE or (
        errors and shared.last_error
    ):  # the general path knows whether the error was reported again
        return None
    if not sequence:
        sequence = last
    elif sequence <= last:
        return None
    elif sequence > last + 1 > 1 and not shared.resync:
        shared = shared_state(*shared._replace(resync=True))
    all_successes += successes
    all_errors += errors
    if sequence > COUNTER_MAX or all_successes > COUNTER_MAX or all_errors > COUNTER_MAX:
        return None
    event = _new(LeaseRenewed, (sequence, at_ms, all_successes, all_errors))
    after = _new(Worker, (
        number, sequence, at_ms, all_successes, all_errors, heartbeats + 1, wall_offset_ms, None, texts, shared,
    ))  # fmt: skip
    return event, after
