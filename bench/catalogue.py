"""All measurements, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench import cluster, failover_latency, take_over
from bench.rounds import Plan
from bench.rows import (
    against_etcd,
    against_noop,
    against_postgres,
    against_temporal,
    against_valkey,
    celery_workers,
    latency,
    lateness,
    mass_expiry,
    native_edge,
    registered_components,
    supervision,
    temporal_bridge,
    tracked_workers,
    with_activities,
    with_authentication,
)


@dataclass(frozen=True, slots=True)
class Family:
    """Rows that are measured together."""

    name: str
    names: Mapping[str, str]
    """The names of its rows, with a description of each."""
    measure: Callable[[Plan], Iterator[dict[str, Any]]]


FAMILIES = (
    Family("no-op", against_noop.NAMES, against_noop.measure),
    Family("edge", native_edge.NAMES, native_edge.measure),
    Family("activities", with_activities.NAMES, with_activities.measure),
    Family("authentication", with_authentication.NAMES, with_authentication.measure),
    Family("latency", latency.NAMES, latency.measure),
    Family("mass expiry", mass_expiry.NAMES, mass_expiry.measure),
    Family("lateness", lateness.NAMES, lateness.measure),
    Family("workers", tracked_workers.NAMES, tracked_workers.measure),
    Family("etcd", against_etcd.NAMES, against_etcd.measure),
    Family("temporal", against_temporal.NAMES, against_temporal.measure),
    Family("temporal bridge", temporal_bridge.NAMES, temporal_bridge.measure),
    Family("valkey", against_valkey.NAMES, against_valkey.measure),
    Family("celery", celery_workers.NAMES, celery_workers.measure),
    Family("postgresql", against_postgres.NAMES, against_postgres.measure),
    Family("growth of activities", with_activities.GROWTH_NAMES, with_activities.grow),
    Family("cluster", cluster.NAMES, cluster.measure),
    Family("take-over", take_over.NAMES, take_over.measure),
    Family("moving on", failover_latency.NAMES, failover_latency.measure),
    Family("registry", registered_components.NAMES, registered_components.measure),
    Family("idle supervisor", supervision.IDLE_NAMES, supervision.measure_idle),
    Family("killed process", supervision.KILLED_NAMES, supervision.measure_killed),
)


def row_order() -> list[str]:
    return [name for family in FAMILIES for name in family.names]


def select_families(parts: list[str]) -> list[Family]:
    """Return the families with these names or with rows of these names; failing that, those whose names contain the
    text; all without names.
    """
    known = {name for family in FAMILIES for name in (family.name, *family.names)}

    def wanted(family: Family) -> bool:
        names = (family.name, *family.names)
        return any(
            part in names or (part not in known and any(part in name for name in names)) for part in parts
        )

    return [family for family in FAMILIES if not parts or wanted(family)]
