"""Alerts about supervised processes, and the facts about them that each node reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from liveness.domain.component import ComponentStatus, group_of
from liveness.engine.component_index import RECENT_MS, TOGETHER_MS
from liveness.engine.node import Node
from liveness.v1 import cluster_pb2, fleet_pb2

RESTARTS_MAX = 3
"""More restarts of one component within RECENT_MS are an alert."""
GROUP_MIN = 2
TROUBLED_MAX = 1_000
GROUPS_MAX = 10_000
"""What one node reports at most."""
NAMED_MAX = 3


def troubled_components(node: Node, namespace: str) -> list[cluster_pb2.TroubledComponent]:
    """Those of the node's shards; only of one namespace, if one is given. Looks only at components that ever crashed."""
    now_ms = node.clock.wall_ms()
    found = []
    for shard in node.shards():
        index = shard.census.components
        for key, crash_ms in index.last_crash_ms.items():
            failed = index.statuses[key] is ComponentStatus.FAILED
            is_recent = now_ms - RECENT_MS < crash_ms
            if not (failed or is_recent) or (namespace and key.namespace != namespace):
                continue
            component = shard.workers[key].standing.component
            restarts = component.restarts if component else ()
            found.append(
                cluster_pb2.TroubledComponent(
                    namespace=key.namespace,
                    component_id=key.instance_key,
                    failed=failed,
                    restarts=sum(now_ms - RECENT_MS < wall_ms for wall_ms in restarts),
                    last_crash_wall_ms=crash_ms,
                )
            )
    found.sort(key=lambda each: (not each.failed, -each.restarts, each.namespace, each.component_id))
    return found[:TROUBLED_MAX]


def component_groups(node: Node, namespace: str) -> list[cluster_pb2.ComponentGroupSize]:
    sizes: defaultdict[tuple[str, str], int] = defaultdict(int)
    for shard in node.shards():
        for (group_namespace, group), count in shard.census.components.group_sizes.items():
            if not namespace or group_namespace == namespace:
                sizes[group_namespace, group] += count
    return [
        cluster_pb2.ComponentGroupSize(namespace=group_namespace, group=group, components=count)
        for (group_namespace, group), count in sorted(sizes.items())[:GROUPS_MAX]
    ]


def component_alerts(
    shares: Sequence[cluster_pb2.GetFleetShareResponse], now_ms: int
) -> Iterator[fleet_pb2.Alert]:
    by_namespace: defaultdict[str, list[cluster_pb2.TroubledComponent]] = defaultdict(list)
    by_group: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for share in shares:
        for component in share.troubled_components:
            by_namespace[component.namespace].append(component)
            if now_ms - RECENT_MS < component.last_crash_wall_ms:
                group = group_of(component.component_id) or ""
                by_group[component.namespace, group].append(component.last_crash_wall_ms)
    for namespace, components in by_namespace.items():
        yield from _namespace_alerts(namespace, components)
    sizes: defaultdict[tuple[str, str], int] = defaultdict(int)
    for share in shares:
        for size in share.component_groups:
            sizes[size.namespace, size.group] += size.components
    for (namespace, group), crashes in by_group.items():
        # The rest of the group would be missing from the crashes.
        if (
            len(crashes) >= max(GROUP_MIN, sizes[namespace, group])
            and max(crashes) - min(crashes) <= TOGETHER_MS
        ):
            yield fleet_pb2.Alert(
                kind=fleet_pb2.ALERT_KIND_COMPONENT_GROUP_CRASHED,
                namespace=namespace,
                message=f"All {len(crashes)} components of group {group} of {namespace} crashed together: look at what they "
                "have in common, such as their build, configuration or host.",
                count=len(crashes),
            )


def _namespace_alerts(
    namespace: str, components: Sequence[cluster_pb2.TroubledComponent]
) -> Iterator[fleet_pb2.Alert]:
    if failed := [component for component in components if component.failed]:
        verb = "has" if len(failed) == 1 else "have"
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_COMPONENT_FAILED,
            namespace=namespace,
            message=f"{_names(failed)} of {namespace} {verb} crashed too often and {'is' if len(failed) == 1 else 'are'} not "
            "started again; `liveness components logs` shows why, `liveness components reset` starts it.",
            count=len(failed),
        )
    for component in components:
        if component.restarts > RESTARTS_MAX and not component.failed:
            yield fleet_pb2.Alert(
                kind=fleet_pb2.ALERT_KIND_COMPONENT_RESTARTS,
                namespace=namespace,
                message=f"{component.component_id} of {namespace} was restarted {component.restarts} times within 5 minutes.",
                count=component.restarts,
            )


def _names(components: Sequence[cluster_pb2.TroubledComponent]) -> str:
    ids = sorted(component.component_id for component in components)
    more = f" and {len(ids) - NAMED_MAX} more" if len(ids) > NAMED_MAX else ""
    return ", ".join(ids[:NAMED_MAX]) + more
