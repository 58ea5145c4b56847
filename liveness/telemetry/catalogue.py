"""Every metric that a server shows: its name, what it says, and where its numbers come from.

Of the labels, `namespace` has at most 100 values and then `_other`; all others have a fixed set. None has values that
grow with workers, activities, task queues, hosts or builds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import NamedTuple

from liveness.domain.worker import InactiveReason, WorkerState
from liveness.telemetry.histogram import Histogram
from liveness.telemetry.tallies import Tally
from liveness.telemetry.telemetry import Telemetry

Values = Iterator[tuple[tuple[str, ...], float]]
"""For each combination of label values, the number."""


class Count(NamedTuple):
    """It only rises, from 0 at the start of the server."""

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Telemetry], Values]


class Level(NamedTuple):
    """How it is at the moment."""

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Telemetry], Values]


class Distribution(NamedTuple):
    name: str
    help: str
    read: Callable[[Telemetry], Histogram]


Metric = Count | Level | Distribution


def _each(read: Callable[[Tally], float]) -> Callable[[Telemetry], Values]:
    def values(telemetry: Telemetry) -> Values:
        for namespace, tally in telemetry.tallies.items():
            yield (namespace,), read(tally)

    return values


def _each_by(read: Callable[[Tally], Mapping[str, int]]) -> Callable[[Telemetry], Values]:
    def values(telemetry: Telemetry) -> Values:
        for namespace, tally in telemetry.tallies.items():
            for reason, count in read(tally).items():
                yield (namespace, reason), count

    return values


def _one(read: Callable[[Telemetry], float]) -> Callable[[Telemetry], Values]:
    def values(telemetry: Telemetry) -> Values:
        yield (), read(telemetry)

    return values


def _by_namespace(read: Callable[[Telemetry], Mapping[str, int]]) -> Callable[[Telemetry], Values]:
    """Of counts by the name itself; those that have no numbers of their own are added up."""

    def values(telemetry: Telemetry) -> Values:
        found = Counter({namespace: 0 for namespace, _ in telemetry.tallies.items()})
        for namespace, count in read(telemetry).items():
            found[telemetry.tallies.label(namespace)] += count
        for namespace, count in found.items():
            yield (namespace,), count

    return values


def _endings(telemetry: Telemetry) -> Values:
    for namespace, tally in telemetry.tallies.items():
        for (
            reason
        ) in InactiveReason:  # those that did not happen yet, too: a rate needs a number to start from
            yield (namespace, reason.name), tally.endings[reason.name]


def _workers(telemetry: Telemetry) -> Values:
    found = Counter({(name, state): 0 for name, _ in telemetry.tallies.items() for state in WorkerState})
    for (namespace, state), count in telemetry.node.census.items():
        found[telemetry.tallies.label(namespace), state] += count
    for (namespace, state), count in found.items():
        yield (namespace, state.name), count


def _outcomes(telemetry: Telemetry) -> Values:
    for namespace, tally in telemetry.tallies.items():
        for (outcome, via), count in tally.outcomes.items():
            yield (namespace, outcome, via), count


def _queue(telemetry: Telemetry) -> Values:
    depths = telemetry.queues.depths().values()
    yield ("PENDING",), sum(depth.pending for depth in depths)
    yield ("RETRYING",), sum(depth.retrying for depth in depths)
    yield ("DEAD_LETTERED",), sum(depth.dead_lettered for depth in depths)


def _oldest_s(telemetry: Telemetry) -> float:
    since = [depth.oldest_wall_ms for depth in telemetry.queues.depths().values() if depth.oldest_wall_ms]
    return max(0, telemetry.node.clock.wall_ms() - min(since)) / 1_000 if since else 0.0


def _closed(telemetry: Telemetry) -> Values:
    for how in ("handed_over", "lost"):
        yield (how,), telemetry.shards_closed[how]


def _build(telemetry: Telemetry) -> Values:
    yield (version("liveness"),), 1


CATALOGUE: tuple[Metric, ...] = (
    # -- heartbeats
    Count(
        "liveness_heartbeats_total",
        "Heartbeats that were answered, refused ones included. A batch counts as many as it carries.",
        ("namespace",),
        _each(lambda tally: tally.heartbeats),
    ),
    Count(
        "liveness_heartbeats_refused_total",
        "Heartbeats that were refused, by the reason that the worker was told; RATE_LIMITED is one.",
        ("namespace", "reason"),
        _each_by(lambda tally: tally.refused),
    ),
    Distribution(
        "liveness_heartbeat_duration_seconds",
        "Calls with one or more heartbeats: from their arrival to the answer, which is durable.",
        lambda telemetry: telemetry.heartbeat_s,
    ),
    # -- workers
    Level(
        "liveness_workers",
        "Workers of this server's shards, by state.",
        ("namespace", "state"),
        _workers,
    ),
    Level(
        "liveness_suspect_workers",
        "ACTIVE workers whose stream broke and whose grace runs.",
        ("namespace",),
        _by_namespace(lambda telemetry: telemetry.suspects()),
    ),
    Level(
        "liveness_held_expiries",
        "ACTIVE workers whose lease is over and is held, because so many fell due together.",
        ("namespace",),
        _by_namespace(lambda telemetry: telemetry.node.brake.held()),
    ),
    Count(
        "liveness_storms_total",
        "How often so many workers fell due together that the end of their leases was put off.",
        ("namespace",),
        _by_namespace(lambda telemetry: telemetry.node.brake.storms),
    ),
    Count(
        "liveness_registrations_total",
        "Workers that sent their first heartbeat.",
        ("namespace",),
        _each(lambda tally: tally.registrations),
    ),
    Count(
        "liveness_session_replacements_total",
        "ACTIVE workers whose process was replaced by a new one.",
        ("namespace",),
        _each(lambda tally: tally.replacements),
    ),
    Count(
        "liveness_deactivations_total",
        "Workers that left ACTIVE, by reason. LEASE_EXPIRED and DISCONNECTED are deaths; SHUTDOWN, FORCED and "
        "DRAINED are not.",
        ("namespace", "reason"),
        _endings,
    ),
    Count(
        "liveness_resurrections_total",
        "INACTIVE workers that came back.",
        ("namespace",),
        _each(lambda tally: tally.resurrections),
    ),
    Count(
        "liveness_false_deaths_total",
        "Deaths that were none: the worker came back with the session that it had.",
        ("namespace",),
        _each(lambda tally: tally.false_deaths),
    ),
    Count(
        "liveness_cleanups_total",
        "INACTIVE workers that stayed away and were cleaned up.",
        ("namespace",),
        _each(lambda tally: tally.cleanups),
    ),
    Distribution(
        "liveness_expiry_lateness_seconds",
        "Leases that ended by their terms: from when they were due, or a storm let go of them, to when that was durable, "
        "on the clock that leases are counted on.",
        lambda telemetry: telemetry.lateness_s,
    ),
    # -- reschedules
    Count(
        "liveness_reschedules_total",
        "Activities that were taken from workers, each with a task to get it moving again.",
        ("namespace",),
        _each(lambda tally: tally.reschedules),
    ),
    Count(
        "liveness_reschedule_attempts_total",
        "Tries of those tasks: DONE, RETRYING after a failure, POSTPONED while a sink is away, or DEAD_LETTERED; via "
        "our own matching or a sink (webhook, relay).",
        ("namespace", "outcome", "via"),
        _outcomes,
    ),
    Distribution(
        "liveness_reschedule_duration_seconds",
        "From when an activity was taken from its worker to when it was available again, or a sink had it.",
        lambda telemetry: telemetry.reschedule_s,
    ),
    Level(
        "liveness_queue_tasks",
        "Unfinished tasks in the queues of this server's shards, by state, as of some seconds ago.",
        ("state",),
        _queue,
    ),
    Level(
        "liveness_queue_oldest_seconds",
        "How long the oldest task that is not dead-lettered has been waiting; 0 if there is none.",
        (),
        _one(_oldest_s),
    ),
    Level(
        "liveness_dead_lettered_tasks",
        "Tasks that failed too often and wait for somebody to retry or discard them.",
        ("namespace",),
        _by_namespace(lambda telemetry: telemetry.queues.dead_lettered()),
    ),
    Level(
        "liveness_quarantined_activities",
        "Activities that killed their workers too often and wait for somebody to retry or cancel them.",
        ("namespace",),
        _by_namespace(lambda telemetry: telemetry.quarantined()),
    ),
    # -- commits
    Distribution(
        "liveness_commit_duration_seconds",
        "Group commits that succeeded: how long the database took.",
        lambda telemetry: telemetry.commit_s,
    ),
    Distribution(
        "liveness_commit_events",
        "Events in a group commit, without plain renewals.",
        lambda telemetry: telemetry.commit_events,
    ),
    Distribution(
        "liveness_commit_renewals",
        "Plain renewals of leases in a group commit.",
        lambda telemetry: telemetry.commit_renewals,
    ),
    Distribution(
        "liveness_commit_shards",
        "Shards in a group commit.",
        lambda telemetry: telemetry.commit_shards,
    ),
    # -- the server
    Level(
        "liveness_shards",
        "Shards that there are, whoever serves them.",
        (),
        _one(lambda telemetry: telemetry.node.shard_count),
    ),
    Level(
        "liveness_shards_serving",
        "Shards that this server serves. Over all servers these add up to liveness_shards.",
        (),
        _one(lambda telemetry: len(telemetry.node.shards())),
    ),
    Count(
        "liveness_shards_taken_total",
        "Take-overs of shards, those at the start of the server included.",
        (),
        _one(lambda telemetry: telemetry.shards_taken),
    ),
    Count(
        "liveness_shards_closed_total",
        "Shards that ceased to be served here: handed_over in good order, or lost, to another owner or because a "
        "commit failed.",
        ("how",),
        _closed,
    ),
    Distribution(
        "liveness_loop_lag_seconds",
        "By how much the event loop's pulse, 20 times a second, was late: so long had everybody to wait.",
        lambda telemetry: telemetry.lag_s,
    ),
    Count(
        "liveness_stalls_total",
        "How often the process stood still for more than half a second. No lease ends for such time.",
        (),
        _one(lambda telemetry: telemetry.stalls),
    ),
    Count(
        "liveness_stalled_seconds_total",
        "For how long it did, in all.",
        (),
        _one(lambda telemetry: telemetry.stalled_s),
    ),
    Level(
        "liveness_streams",
        "Open streams of clients, and of nodes and frontends on behalf of theirs.",
        (),
        _one(lambda telemetry: telemetry.streams()),
    ),
    Level(
        "liveness_attached_workers",
        "Workers of this server's shards that are attached by a stream.",
        (),
        _one(lambda telemetry: telemetry.attached()),
    ),
    Level(
        "liveness_waiting_polls",
        "Polls of workers that wait for an activity.",
        (),
        _one(lambda telemetry: telemetry.polls()),
    ),
    Level(
        "liveness_relay_away",
        "1 while the message broker takes nothing from this server; 0 if it does, or none is used.",
        (),
        _one(lambda telemetry: bool(telemetry.relay_trouble())),
    ),
    Level("liveness_build_info", "1, with the server's version as a label.", ("version",), _build),
)
