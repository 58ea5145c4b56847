"""Alerts: conditions that an operator should look at now, most urgent first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from google.protobuf.timestamp_pb2 import Timestamp

from liveness.domain.policy import Policy
from liveness.domain.storm import STORM_WINDOW_MS, is_storm
from liveness.v1 import cluster_pb2, fleet_pb2

ALERTS_MAX = 100
_KINDS_BY_URGENCY = (
    fleet_pb2.ALERT_KIND_UNSERVED_SHARDS,
    fleet_pb2.ALERT_KIND_STORM,
    fleet_pb2.ALERT_KIND_STALL,
    fleet_pb2.ALERT_KIND_RELAY,
    fleet_pb2.ALERT_KIND_DEAD_LETTERS,
    fleet_pb2.ALERT_KIND_QUARANTINE,
)


def alerts(
    shares: Sequence[cluster_pb2.GetFleetShareResponse],
    namespaces: Sequence[fleet_pb2.NamespaceFleet],
    shards: int,
    serving: int,
    policy_of: Callable[[str], Policy],
) -> list[fleet_pb2.Alert]:
    found = [*_server_alerts(shares, shards, serving)]
    for namespace in namespaces:
        found += _namespace_alerts(namespace, policy_of(namespace.namespace))
    return sorted(found, key=lambda alert: (_KINDS_BY_URGENCY.index(alert.kind), -alert.count))[:ALERTS_MAX]


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
            message=f"Servers stood still {times} within the last minute, for {max(stalls) / 1_000:.1f} s at most; "
            "no lease ended meanwhile.",
            count=len(stalls),
        )
    relay_errors = [share.relay_trouble for share in shares if share.relay_trouble]
    if relay_errors:
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_RELAY,
            message=f"The message broker takes nothing from {_count(len(relay_errors), 'server')}: {relay_errors[0]}.",
            count=len(relay_errors),
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
            message=f"{_count(count, 'activity')} of {name} killed {_pluralize(count, 'its', 'their')} workers too often and "
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


def _format_time(time: Timestamp) -> str:
    return time.ToDatetime().strftime("%H:%M:%S")


def _count(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {_pluralize(number, noun, plural)}"


def _pluralize(number: int, singular: str, plural: str) -> str:
    return singular if number == 1 else plural
