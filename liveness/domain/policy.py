"""The settings of a namespace. Deciders read them; events record the values that shaped a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from liveness.domain.errors import InvalidField

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
DURATION_MS_MAX = 100 * 365 * DAY_MS
COUNT_MAX = 2**53
"""Up to this value, integers and floats are equally exact."""
BINDINGS_PER_WORKER_MAX = 1_000
"""The most that `max_bindings_per_worker` may allow, so that one heartbeat can name all bindings of a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    default_lease_ms: int = 30 * SECOND_MS
    min_lease_ms: int = SECOND_MS
    max_lease_ms: int = HOUR_MS
    cleanup_delay_ms: int = 60 * MINUTE_MS
    """How long an INACTIVE worker may return before it is cleaned up."""
    tombstone_retention_ms: int = 30 * DAY_MS
    """How long the key of a cleaned-up worker is refused; 0 for ever."""
    event_retention_ms: int = 30 * DAY_MS
    """How long events are kept; 0 for ever."""
    binding_retention_ms: int = DAY_MS
    """How long changes of bindings and reports of progress are kept, if other events are kept for longer; 0 for as long as those. A busy fleet writes
    hundreds a second, and the workers' rows contain their outcome."""
    max_workers: int = 1_000_000
    """Limit on ACTIVE and INACTIVE workers of the namespace."""
    max_bindings_per_worker: int = BINDINGS_PER_WORKER_MAX
    max_open_activities: int = 1_000_000
    """Limit on activities of the namespace that are not finished."""
    max_open_activity_bytes: int = 1024**3
    """Limit on the bytes of their inputs, which are kept in memory."""
    max_progress_units: int = 10_000
    """Limit on units of work whose progress is kept, in memory too, until an operator forgets them."""
    max_schedules: int = 1_000
    """Limit on schedules, which are kept in memory."""
    max_concurrency_limits: int = 10_000
    """Limit on concurrency limits, which are kept in memory."""
    namespace_heartbeat_rate: float = 0.0
    """Heartbeats per second of the whole namespace; 0 for no limit."""
    worker_heartbeat_rate: float = 50.0
    """Heartbeats per second of one worker; 0 for no limit."""
    worker_sessions_per_minute: float = 10.0
    """New sessions and resurrections per minute of one worker; 0 for no limit. Each writes the worker's metadata anew."""
    max_worker_deaths: int = 3
    """After this many workers in a row died with it, an activity is quarantined; 0 for never."""
    activity_retention_ms: int = 7 * DAY_MS
    """How long finished activities are kept, and protect against scheduling them again; 0 for ever."""
    dispatch_timeout_ms: int = 10 * SECOND_MS
    """How long a worker may take to confirm an activity that it was handed."""
    paused: int = 0
    """1: no worker of the namespace is handed new work."""
    storm_min_workers: int = 20
    """Fewer concurrent expiries are no storm, whatever their share of the namespace."""
    storm_share: float = 0.3
    """Concurrent expiries of at most this share of the namespace are no storm."""
    storm_hold_ms: int = HOUR_MS
    """How long a storm may delay the end of a lease, at most the length of that lease; 0 for not at all."""
    storm_pace: int = 1_000
    """Expiries per second and server after that; 0 for no limit."""
    unpolled_alert_ms: int = MINUTE_MS
    """An alert is raised for activities that have waited this long in a task queue that no worker polls; 0 for never."""
    waiting_alert_ms: int = 10 * MINUTE_MS
    """The same for task queues that workers poll."""
    max_metric_series: int = 10_000
    """Limit on series of metrics that components of the namespace report."""
    max_metric_series_per_worker: int = 200
    token_floor: int = 1
    """The lowest lease epoch and attempt that may be given out. Not a setting: a restored database carries it."""

    @property
    def has_rate_limits(self) -> bool:
        return bool(self.namespace_heartbeat_rate or self.worker_heartbeat_rate)

    def granted_ms(self, requested_ms: int | None) -> int:
        if requested_ms is None:
            requested_ms = self.default_lease_ms
        if self.min_lease_ms <= requested_ms <= self.max_lease_ms:
            return requested_ms
        return min(max(requested_ms, self.min_lease_ms), self.max_lease_ms)


POLICY_FIELDS = frozenset(field.name for field in fields(Policy)) - {"token_floor"}
_WHOLE_NUMBERS = frozenset(field.name for field in fields(Policy) if field.type == "int")
_MAY_BE_ZERO = POLICY_FIELDS - {
    "default_lease_ms",
    "min_lease_ms",
    "max_lease_ms",
    "max_bindings_per_worker",
    "dispatch_timeout_ms",
    "storm_min_workers",
}
DEFAULT_POLICY = Policy()


def check_new_settings(values: Mapping[str, int | float]) -> None:
    """Refuse settings that older versions accepted and stored. `override_policy` limits those that are stored."""
    if values.get("max_bindings_per_worker", 0) > BINDINGS_PER_WORKER_MAX:
        raise InvalidField(
            field="max_bindings_per_worker",
            rule=f"must be at most {BINDINGS_PER_WORKER_MAX}, which is what a heartbeat with full_bindings can name",
        )


def override_policy(base: Policy, overrides: Mapping[str, int | float]) -> Policy:
    """Return `base` with some fields replaced; raise `InvalidField` if the result is not consistent."""
    values: dict[str, Any] = {}
    for name, value in overrides.items():
        shown = name.removesuffix("_ms")
        if name not in POLICY_FIELDS:
            known = ", ".join(sorted(field.removesuffix("_ms") for field in POLICY_FIELDS))
            raise InvalidField(field=shown, rule=f"is not a setting; there are: {known}")
        if not value >= 0 or value == float("inf"):
            raise InvalidField(field=shown, rule="must be a finite number, 0 or more")
        if value == 0 and name not in _MAY_BE_ZERO:
            raise InvalidField(field=shown, rule="must be more than 0")
        if name.endswith("_ms") and value > DURATION_MS_MAX:
            raise InvalidField(field=shown, rule="must be at most 100 years")
        if name in _WHOLE_NUMBERS and value != int(value):
            raise InvalidField(field=shown, rule="must be a whole number")
        if name == "paused" and value not in (0, 1):
            raise InvalidField(field=shown, rule="must be 0 or 1")
        if name == "storm_share" and value > 1:
            raise InvalidField(field=shown, rule="must be at most 1")
        if value > COUNT_MAX and name in _WHOLE_NUMBERS:
            raise InvalidField(field=shown, rule=f"must be at most {COUNT_MAX}")
        # The store returns settings as floats; an event must contain integers, or it would not decode to an equal value.
        values[name] = int(value) if name in _WHOLE_NUMBERS else float(value)
    if "max_bindings_per_worker" in values:
        values["max_bindings_per_worker"] = min(values["max_bindings_per_worker"], BINDINGS_PER_WORKER_MAX)
    policy = replace(base, **values)
    if not policy.min_lease_ms <= policy.default_lease_ms <= policy.max_lease_ms:
        raise InvalidField(
            field="default_lease",
            rule=f"must lie between min_lease and max_lease, but {policy.min_lease_ms} ms <= "
            f"{policy.default_lease_ms} ms <= {policy.max_lease_ms} ms does not hold",
        )
    return policy
