"""Alerts: conditions that an operator should look at now, most urgent first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from google.protobuf.timestamp_pb2 import Timestamp

from liveness.domain.policy import DAY_MS, HOUR_MS, MINUTE_MS, Policy
from liveness.domain.storm import STORM_WINDOW_MS, is_storm
from liveness.server.component_alerts import component_alerts
from liveness.server.suspicion_alerts import suspicion_alerts
from liveness.v1 import cluster_pb2, fleet_pb2, insight_pb2

ALERTS_PER_KIND_MAX = 100
NAMED_QUEUES_MAX = 3
_KINDS_BY_URGENCY = (
    fleet_pb2.ALERT_KIND_DATABASE,
    fleet_pb2.ALERT_KIND_UNSERVED_SHARDS,
    fleet_pb2.ALERT_KIND_STORM,
    fleet_pb2.ALERT_KIND_INCIDENT,
    fleet_pb2.ALERT_KIND_NO_ACTIVE_WORKERS,
    fleet_pb2.ALERT_KIND_COMPONENT_GROUP_CRASHED,
    fleet_pb2.ALERT_KIND_COMPONENT_FAILED,
    fleet_pb2.ALERT_KIND_COMPONENT_RESTARTS,
    fleet_pb2.ALERT_KIND_UNPOLLED_QUEUE,
    fleet_pb2.ALERT_KIND_LONG_WAIT,
    fleet_pb2.ALERT_KIND_LOST_NODES,
    fleet_pb2.ALERT_KIND_INSECURE,
    fleet_pb2.ALERT_KIND_SUSPICIOUS,
    fleet_pb2.ALERT_KIND_STALL,
    fleet_pb2.ALERT_KIND_RELAY,
    fleet_pb2.ALERT_KIND_DEAD_LETTERS,
    fleet_pb2.ALERT_KIND_QUARANTINE,
)


def alerts(
    shares: Sequence[cluster_pb2.GetFleetShareResponse],
    namespaces: Sequence[fleet_pb2.NamespaceFleet],
    task_queues: Sequence[fleet_pb2.TaskQueueBacklog],
    shards: int,
    serving: int,
    policy_of: Callable[[str], Policy],
    *,
    wall_ms: int = 0,
    lost_nodes: int = 0,
    incidents: Sequence[insight_pb2.Incident] = (),
) -> list[fleet_pb2.Alert]:
    unpolled: defaultdict[str, list[str]] = defaultdict(list)
    for queue in task_queues:
        if queue.unpolled:
            unpolled[queue.namespace].append(queue.task_queue)
    found = [
        *_server_alerts(shares, shards, serving),
        *_cluster_alerts(shares, lost_nodes),
        *suspicion_alerts(shares),
        *component_alerts(shares, wall_ms),
        *map(_incident, incidents),
    ]
    for namespace in namespaces:
        policy = policy_of(namespace.namespace)
        if serving == shards:  # on a shard that nobody serves, workers may be active
            found += _no_active_workers(namespace)
        found += _namespace_alerts(namespace, policy)
        found += _waiting_work(namespace, unpolled[namespace.namespace], policy)
    # So that many alerts of one kind do not displace the other kinds.
    return [
        alert
        for kind in _KINDS_BY_URGENCY
        for alert in sorted((alert for alert in found if alert.kind == kind), key=lambda alert: -alert.count)[
            :ALERTS_PER_KIND_MAX
        ]
    ]


def _server_alerts(
    shares: Sequence[cluster_pb2.GetFleetShareResponse], shards: int, serving: int
) -> Iterator[fleet_pb2.Alert]:
    if unserved := shards - serving:
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_UNSERVED_SHARDS,
            message=f"{unserved} of {shards} shards are not served, or their server does not answer.",
            count=unserved,
        )
    stalls = [ms for share in shares for ms in share.stalls_ms]
    if stalls:
        times = "once" if len(stalls) == 1 else f"{len(stalls)} times"
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_STALL,
            message=f"Servers stood still or heard calls late {times} within the last minute, by "
            f"{max(stalls) / 1_000:.1f} s at most; no lease ended meanwhile.",
            count=len(stalls),
        )
    insecure = [share.insecure for share in shares if share.insecure]
    if insecure:
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_INSECURE,
            message=f"{_count(len(insecure), 'server')} can be reached from other machines without protection, since --insecure "
            f"allows it: {insecure[0]}.",
            count=len(insecure),
        )
    relay_errors = [share.relay_trouble for share in shares if share.relay_trouble]
    if relay_errors:
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_RELAY,
            message=f"The message broker takes nothing from {_count(len(relay_errors), 'server')}: {relay_errors[0]}.",
            count=len(relay_errors),
        )


def _incident(incident: insight_pb2.Incident) -> fleet_pb2.Alert:
    return fleet_pb2.Alert(
        kind=fleet_pb2.ALERT_KIND_INCIDENT,
        namespace=incident.namespace,
        message=f"{incident.message} `liveness incidents describe {incident.incident_id}` has the details.",
        count=incident.dead,
    )


def _cluster_alerts(
    shares: Sequence[cluster_pb2.GetFleetShareResponse], lost_nodes: int
) -> Iterator[fleet_pb2.Alert]:
    errors = [share.database_trouble for share in shares if share.database_trouble]
    if errors:
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_DATABASE,
            message=f"{_count(len(errors), 'server')} cannot use the database: {errors[0].removesuffix('.')}.",
            count=len(errors),
        )
    if lost_nodes:
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_LOST_NODES,
            message=f"{_count(lost_nodes, 'node')} {_pluralize(lost_nodes, 'has', 'have')} not renewed "
            f"{_pluralize(lost_nodes, 'its', 'their')} lease: the others serve {_pluralize(lost_nodes, 'its', 'their')} shards.",
            count=lost_nodes,
        )


def _namespace_alerts(fleet: fleet_pb2.NamespaceFleet, policy: Policy) -> Iterator[fleet_pb2.Alert]:
    name, deaths = fleet.namespace, fleet.deaths_last_minute
    if held := fleet.held_expiries:
        died = f" and {deaths} died" if deaths else ""
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_STORM,
            namespace=name,
            message=f"{_count(held, 'worker')} of {name} fell silent together{died}: their leases are held, until "
            f"{_format_time(fleet.held_until)} UTC at the latest, so that workers that come back lose nothing. Look at what they "
            "have in common before anything else; `liveness workers release-storm` ends the leases now.",
            count=held + deaths,
        )
    elif is_storm(deaths, fleet.active, policy):
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_STORM,
            namespace=name,
            message=f"{_count(deaths, 'worker')} of {name} died within {STORM_WINDOW_MS // 1_000} s and {fleet.active} "
            f"{_pluralize(fleet.active, 'is', 'are')} left: look at what they have in common before anything else.",
            count=deaths,
        )
    if count := fleet.quarantined_activities:
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_QUARANTINE,
            namespace=name,
            message=f"{_count(count, 'activity')} of {name} {_pluralize(count, 'is', 'are')} quarantined and "
            f"{_pluralize(count, 'waits', 'wait')} to be retried or cancelled.",
            count=count,
        )
    if count := fleet.dead_lettered_tasks:
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_DEAD_LETTERS,
            namespace=name,
            message=f"{_count(count, 'task')} of {name} failed too often and {_pluralize(count, 'waits', 'wait')} to be "
            "retried or discarded.",
            count=count,
        )


def _no_active_workers(fleet: fleet_pb2.NamespaceFleet) -> Iterator[fleet_pb2.Alert]:
    """Ends with the first heartbeat, or when the last of the dead is cleaned up: then nobody is expected back."""
    if fleet.dead and not fleet.active:
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_NO_ACTIVE_WORKERS,
            namespace=fleet.namespace,
            message=f"{_count(fleet.dead, 'worker')} of {fleet.namespace} died and none is active: nothing of it runs until "
            "workers come back.",
            count=fleet.dead,
        )


def _waiting_work(
    fleet: fleet_pb2.NamespaceFleet, unpolled_queues: Sequence[str], policy: Policy
) -> Iterator[fleet_pb2.Alert]:
    """`unpolled_queues`: the one that waits longest first; some are missing if there are very many."""
    name, count = fleet.namespace, fleet.unpolled_activities
    if count and 0 < policy.unpolled_alert_ms <= (oldest_ms := fleet.oldest_unpolled.ToMilliseconds()):
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_UNPOLLED_QUEUE,
            namespace=name,
            message=f"{_count(count, 'activity')} of {name} {_pluralize(count, 'waits', 'wait')} where no worker polls: "
            f"{_name_queues(unpolled_queues)}; the oldest for {_format_duration(oldest_ms)}.",
            count=count,
        )
    count = fleet.available_activities - fleet.unpolled_activities
    if count and 0 < policy.waiting_alert_ms <= (oldest_ms := fleet.oldest_polled.ToMilliseconds()):
        why = "the namespace is paused" if fleet.paused else "its workers do not keep up"
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_LONG_WAIT,
            namespace=name,
            message=f"{_count(count, 'activity')} of {name} {_pluralize(count, 'waits', 'wait')} for a worker, the oldest for "
            f"{_format_duration(oldest_ms)}: {why}.",
            count=count,
        )


def _name_queues(names: Sequence[str]) -> str:
    named = ", ".join(names[:NAMED_QUEUES_MAX])
    more = f" and {len(names) - NAMED_QUEUES_MAX} more" if len(names) > NAMED_QUEUES_MAX else ""
    return f"{_pluralize(len(names), 'task queue', 'task queues')} {named}{more}"


def _format_duration(ms: int) -> str:
    for unit_ms, unit in ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min")):
        if ms >= 2 * unit_ms or (unit_ms == MINUTE_MS and ms >= unit_ms):
            return f"{ms // unit_ms} {unit}"
    return f"{ms // 1_000} s"


def _format_time(time: Timestamp) -> str:
    return time.ToDatetime().strftime("%H:%M:%S")


def _count(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {_pluralize(number, noun, plural)}"


def _pluralize(number: int, singular: str, plural: str) -> str:
    return singular if number == 1 else plural
