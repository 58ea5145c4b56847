"""Alerts about supervised processes, and the facts about them that each node reports."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from typing import NamedTuple

from liveness.domain.component import ComponentStatus, group_of
from liveness.engine.component_index import RECENT_MS, TOGETHER_MS
from liveness.engine.node import Node
from liveness.slices import build_in_slices, in_slices
from liveness.v1 import cluster_pb2, fleet_pb2

RESTARTS_MAX = 3
"""More restarts of one component within RECENT_MS are an alert."""
GROUP_MIN = 2
TROUBLED_MAX = 1_000
GROUPS_MAX = 10_000
"""What one node reports at most."""
NAMED_MAX = 3
COMPONENTS_PER_SLICE = 2_000


class _Trouble(NamedTuple):
    """What an alert may be about; the most important first when sorted."""

    is_running: bool
    negative_restarts: int
    component_id: str
    crash_ms: int


async def troubled_components(node: Node, namespace: str) -> list[cluster_pb2.TroubledComponent]:
    """Those of the node's shards; only of one namespace, if one is given. Looks only at components that ever crashed, in slices:
    there may be as many as workers."""
    now_ms = node.clock.wall_ms()
    found: dict[str, list[_Trouble]] = {}
    for shard in node.shards():
        index = shard.census.components
        async for key in in_slices(list(index.last_crash_ms), COMPONENTS_PER_SLICE):
            if namespace and key.namespace != namespace:
                continue
            crash_ms, worker = index.last_crash_ms.get(key), shard.workers.get(key)
            if crash_ms is None or worker is None:  # it changed meanwhile
                continue
            is_running = index.statuses[key] is not ComponentStatus.FAILED
            if is_running and now_ms - RECENT_MS >= crash_ms:
                continue
            component = worker.standing.component
            restarts = sum(now_ms - RECENT_MS < at_ms for at_ms in (component.restarts if component else ()))
            of_namespace = found.setdefault(key.namespace, [])
            of_namespace.append(_Trouble(is_running, -restarts, key.instance_key, crash_ms))
            if len(of_namespace) >= 2 * TROUBLED_MAX:
                of_namespace[:] = nsmallest(TROUBLED_MAX, of_namespace)
    # Those of one namespace do not hide those of another.
    each_max = max(TROUBLED_MAX // max(len(found), 1), NAMED_MAX + 1)
    return await build_in_slices(
        (
            (name, trouble)
            for name in sorted(found)[:TROUBLED_MAX]
            for trouble in nsmallest(each_max, found[name])
        ),
        _troubled_message,
    )


def _troubled_message(found: tuple[str, _Trouble]) -> cluster_pb2.TroubledComponent:
    namespace, trouble = found
    return cluster_pb2.TroubledComponent(
        namespace=namespace,
        component_id=trouble.component_id,
        failed=not trouble.is_running,
        restarts=-trouble.negative_restarts,
        last_crash_wall_ms=trouble.crash_ms,
    )


async def component_groups(node: Node, namespace: str) -> list[cluster_pb2.ComponentGroupSize]:
    sizes: Counter[tuple[str, str]] = Counter()
    for shard in node.shards():
        group_sizes = shard.census.components.group_sizes
        async for name in in_slices(list(group_sizes), COMPONENTS_PER_SLICE):
            if (not namespace or name[0] == namespace) and (count := group_sizes[name]):
                sizes[name] += count
    return await build_in_slices(
        nsmallest(GROUPS_MAX, sizes),
        lambda name: cluster_pb2.ComponentGroupSize(namespace=name[0], group=name[1], components=sizes[name]),
    )


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
