"""The catalogue of metrics: name, help text, labels, and the source of the values.

The label `namespace` has at most 100 values and then `_other`, `group` at most 1,000; every other label has a fixed set of
values. No label grows with workers, activities, task queues, hosts or builds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from liveness.domain.component import ComponentStatus
from liveness.domain.errors import ActivityBytesExceeded, ActivityQuotaExceeded
from liveness.domain.worker import InactiveReason, WorkerState
from liveness.engine.registry_index import COUNTED_KINDS, COUNTED_STATUSES, OTHER
from liveness.store.size import Storage
from liveness.telemetry.component_numbers import ComponentGroup
from liveness.telemetry.counters import NamespaceCounters
from liveness.telemetry.metric_types import CounterMetric, GaugeMetric, HistogramMetric, Metric, Values
from liveness.telemetry.metric_types import single_value as _single_value
from liveness.telemetry.process_metrics import CALL_METRICS, DATABASE_METRICS, SECURITY_METRICS
from liveness.telemetry.telemetry import Telemetry
from liveness.version import VERSION


def _per_namespace(read: Callable[[NamespaceCounters], float]) -> Callable[[Telemetry], Values]:
    def values(telemetry: Telemetry) -> Values:
        for namespace, counters in telemetry.counters.items():
            yield (namespace,), read(counters)

    return values


def _per_namespace_and_reason(
    read: Callable[[NamespaceCounters], Mapping[str, int]],
) -> Callable[[Telemetry], Values]:
    def values(telemetry: Telemetry) -> Values:
        for namespace, counters in telemetry.counters.items():
            for reason, count in read(counters).items():
                yield (namespace, reason), count

    return values


def _summed_by_namespace(read: Callable[[Telemetry], Mapping[str, int]]) -> Callable[[Telemetry], Values]:
    """From counts by namespace. Namespaces that are not tracked are added up as `_other`."""

    def values(telemetry: Telemetry) -> Values:
        found = Counter({namespace: 0 for namespace, _ in telemetry.counters.items()})
        for namespace, count in read(telemetry).items():
            found[telemetry.counters.label(namespace)] += count
        for namespace, count in found.items():
            yield (namespace,), count

    return values


def _deactivations(telemetry: Telemetry) -> Values:
    for namespace, counters in telemetry.counters.items():
        # Reasons that have not occurred yet, too: a rate needs a first value.
        for reason in InactiveReason:
            yield (namespace, reason.name), counters.deactivations[reason.name]


def _refused_activities(telemetry: Telemetry) -> Values:
    for namespace, counters in telemetry.counters.items():
        for error in (ActivityQuotaExceeded, ActivityBytesExceeded):
            yield (namespace, error.reason), counters.refused_activities[error.reason]


def _workers(telemetry: Telemetry) -> Values:
    found = Counter({(name, state): 0 for name, _ in telemetry.counters.items() for state in WorkerState})
    for (namespace, state), count in telemetry.node.census.items():
        found[telemetry.counters.label(namespace), state] += count
    for (namespace, state), count in found.items():
        yield (namespace, state.name), count


def _components(telemetry: Telemetry) -> Values:
    names = [name for name, _ in telemetry.counters.items()]
    found = Counter({(name, status): 0 for name in names for status in ComponentStatus})
    for (namespace, status), count in telemetry.node.components.statuses.items():
        found[telemetry.counters.label(namespace), status] += count
    for (namespace, status), count in found.items():
        yield (namespace, status.name), count


def _last_crash_age_s(telemetry: Telemetry) -> Values:
    last_ms: dict[str, int] = {}
    for namespace, crash_ms in telemetry.component_numbers.last_crashes().items():
        label = telemetry.counters.label(namespace)
        last_ms[label] = max(last_ms.get(label, 0), crash_ms)
    now_ms = telemetry.node.clock.wall_ms()
    for label, crash_ms in last_ms.items():
        yield (label,), max(0, now_ms - crash_ms) / 1_000


def _recent_restarts(telemetry: Telemetry) -> Values:
    most = {namespace: 0 for namespace, _ in telemetry.counters.items()}
    for namespace, restarts in telemetry.component_numbers.recent_restarts().items():
        label = telemetry.counters.label(namespace)
        most[label] = max(most.get(label, 0), restarts)
    for label, restarts in most.items():
        yield (label,), restarts


def _group_values(read: Callable[[ComponentGroup], int]) -> Callable[[Telemetry], Values]:
    def values(telemetry: Telemetry) -> Values:
        for (namespace, name), group in telemetry.component_numbers.groups().items():
            yield (namespace, name), read(group)

    return values


KINDS = (*COUNTED_KINDS, OTHER)
ENTRY_STATUSES = (*COUNTED_STATUSES, OTHER)


def _registered(telemetry: Telemetry) -> Values:
    names = [name for name, _ in telemetry.counters.items()]
    found = Counter(
        {(name, kind, status): 0 for name in names for kind in KINDS for status in ENTRY_STATUSES}
    )
    for (namespace, kind, status), count in telemetry.node.registry.statuses.items():
        label = telemetry.counters.label(namespace)
        found[label, kind, status] += count
    yield from found.items()


def _outcomes(telemetry: Telemetry) -> Values:
    for namespace, counters in telemetry.counters.items():
        for (outcome, via), count in counters.reschedule_outcomes.items():
            yield (namespace, outcome, via), count


def _queue_tasks(telemetry: Telemetry) -> Values:
    by_shard = telemetry.queue_depths.by_shard().values()
    yield ("PENDING",), sum(depth.pending for depth in by_shard)
    yield ("RETRYING",), sum(depth.retrying for depth in by_shard)
    yield ("DEAD_LETTERED",), sum(depth.dead_lettered for depth in by_shard)


def _oldest_s(telemetry: Telemetry) -> float:
    since = [
        depth.oldest_wall_ms for depth in telemetry.queue_depths.by_shard().values() if depth.oldest_wall_ms
    ]
    return max(0, telemetry.node.clock.wall_ms() - min(since)) / 1_000 if since else 0.0


def _oldest_available_s(telemetry: Telemetry) -> Values:
    oldest_ms = {namespace: 0 for namespace, _ in telemetry.counters.items()}
    for namespace, work in telemetry.waiting_work.namespaces():
        label = telemetry.counters.label(namespace)
        oldest_ms[label] = max(oldest_ms[label], work.oldest_ms)
    for label, ms in oldest_ms.items():
        yield (label,), ms / 1_000


def _shards_closed(telemetry: Telemetry) -> Values:
    for cause in ("handed_over", "lost"):
        yield (cause,), telemetry.shards_closed[cause]


def _storage_value(read: Callable[[Storage], float | None]) -> Callable[[Telemetry], Values]:
    """No value while it is not known."""

    def values(telemetry: Telemetry) -> Values:
        if telemetry.storage is not None and (value := read(telemetry.storage)) is not None:
            yield (), value

    return values


def _build_info(telemetry: Telemetry) -> Values:
    yield (VERSION,), 1


METRICS: tuple[Metric[Telemetry], ...] = (
    # -- heartbeats
    CounterMetric(
        "liveness_heartbeats_total",
        "Heartbeats that were answered, refused ones included. A batch counts as many as it carries.",
        ("namespace",),
        _per_namespace(lambda counters: counters.heartbeats),
    ),
    CounterMetric(
        "liveness_heartbeats_applied_total",
        "Heartbeats that were applied: neither refused nor repeated. As of the last two seconds, like the next two.",
        ("namespace",),
        _per_namespace(lambda counters: counters.counted.heartbeats),
    ),
    CounterMetric(
        "liveness_successes_total",
        "Successes that these heartbeats reported.",
        ("namespace",),
        _per_namespace(lambda counters: counters.counted.successes),
    ),
    CounterMetric(
        "liveness_errors_total",
        "Errors that these heartbeats reported.",
        ("namespace",),
        _per_namespace(lambda counters: counters.counted.errors),
    ),
    CounterMetric(
        "liveness_heartbeats_refused_total",
        "Heartbeats that were refused, by the reason that the worker was told; RATE_LIMITED is one.",
        ("namespace", "reason"),
        _per_namespace_and_reason(lambda counters: counters.refused),
    ),
    HistogramMetric(
        "liveness_heartbeat_duration_seconds",
        "Calls with one or more heartbeats: from their arrival to the answer, which is durable.",
        lambda telemetry: telemetry.heartbeat_duration_s,
    ),
    # -- progress
    GaugeMetric(
        "liveness_progress_units",
        "Units of work whose progress is kept; the limit is `max_progress_units`.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.progress_units()),
    ),
    CounterMetric(
        "liveness_progress_successes_total",
        "Successes that reports of progress counted.",
        ("namespace",),
        _per_namespace(lambda counters: counters.progress_successes),
    ),
    CounterMetric(
        "liveness_progress_errors_total",
        "Reports of progress with an error.",
        ("namespace",),
        _per_namespace(lambda counters: counters.progress_errors),
    ),
    CounterMetric(
        "liveness_progress_repeated_total",
        "Reports of progress that had been counted before, by their report_id, and changed nothing.",
        ("namespace",),
        _per_namespace(lambda counters: counters.progress_repeated),
    ),
    # -- schedules
    GaugeMetric(
        "liveness_schedules",
        "Schedules; the limit is `max_schedules`.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.schedules()),
    ),
    GaugeMetric(
        "liveness_paused_schedules",
        "Schedules that do not fire until somebody resumes them.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.paused_schedules()),
    ),
    CounterMetric(
        "liveness_schedule_ticks_total",
        "Ticks of schedules by outcome: fired, missed (no server ran in time, or the activity quota was used up), overlapped "
        "(the activity before was not finished); and triggered for firings by hand.",
        ("namespace", "outcome"),
        _per_namespace_and_reason(lambda counters: counters.schedule_ticks),
    ),
    # -- concurrency limits
    GaugeMetric(
        "liveness_concurrency_limits",
        "Workflows with a concurrency limit; the limit on them is `max_concurrency_limits`.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.concurrency("counts")),
    ),
    GaugeMetric(
        "liveness_concurrency_limited_running",
        "Activities of these workflows that workers hold.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.concurrency("running")),
    ),
    GaugeMetric(
        "liveness_concurrency_limited_waiting",
        "Activities of these workflows that wait for a worker or for a free slot.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.concurrency("waiting")),
    ),
    # -- workers
    GaugeMetric(
        "liveness_workers",
        "Workers of this server's shards, by state.",
        ("namespace", "state"),
        _workers,
    ),
    GaugeMetric(
        "liveness_dead_workers",
        "INACTIVE workers that died: their lease ended for silence, a broken stream or the end of their process.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.dead()),
    ),
    GaugeMetric(
        "liveness_suspect_workers",
        "ACTIVE workers whose stream broke and whose disconnect grace is running.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.disconnected_counts()),
    ),
    GaugeMetric(
        "liveness_held_expiries",
        "ACTIVE workers whose lease is over and is held, because so many were due together.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.node.throttle.held_counts()),
    ),
    CounterMetric(
        "liveness_storms_total",
        "How often so many leases were due together that their end was delayed.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.node.throttle.storm_counts),
    ),
    CounterMetric(
        "liveness_registrations_total",
        "Workers that sent their first heartbeat.",
        ("namespace",),
        _per_namespace(lambda counters: counters.registrations),
    ),
    CounterMetric(
        "liveness_session_replacements_total",
        "ACTIVE workers whose process was replaced by a new one.",
        ("namespace",),
        _per_namespace(lambda counters: counters.session_replacements),
    ),
    CounterMetric(
        "liveness_deactivations_total",
        "Workers that left ACTIVE, by reason. LEASE_EXPIRED, DISCONNECTED and PROCESS_EXITED are deaths; "
        "SHUTDOWN, FORCED and DRAINED are not.",
        ("namespace", "reason"),
        _deactivations,
    ),
    CounterMetric(
        "liveness_resurrections_total",
        "INACTIVE workers that came back.",
        ("namespace",),
        _per_namespace(lambda counters: counters.resurrections),
    ),
    CounterMetric(
        "liveness_false_deaths_total",
        "Workers that were declared dead and came back in the same session.",
        ("namespace",),
        _per_namespace(lambda counters: counters.false_deaths),
    ),
    CounterMetric(
        "liveness_cleanups_total",
        "INACTIVE workers that stayed away and were cleaned up.",
        ("namespace",),
        _per_namespace(lambda counters: counters.cleanups),
    ),
    HistogramMetric(
        "liveness_expiry_lateness_seconds",
        "Leases that ended by their terms: from when they were due, or a storm released them, to when that was durable, "
        "on the clock that leases are counted on.",
        lambda telemetry: telemetry.lateness_s,
    ),
    # -- components
    GaugeMetric(
        "liveness_components",
        "Supervised processes of this server's shards, by status. FAILED ones are left alone until somebody starts them.",
        ("namespace", "status"),
        _components,
    ),
    CounterMetric(
        "liveness_component_restarts_total",
        "Supervised processes that were started in place of an earlier one.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.node.components.restarts),
    ),
    CounterMetric(
        "liveness_component_crashes_total",
        "Supervised processes that ended or hung without having been told to stop, or whose supervisor fell silent.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.node.components.crashes),
    ),
    GaugeMetric(
        "liveness_component_last_crash_age_seconds",
        "How long ago a supervised process crashed last; no value if none ever did.",
        ("namespace",),
        _last_crash_age_s,
    ),
    GaugeMetric(
        "liveness_component_recent_restarts",
        "The restarts within the last 5 minutes of the supervised process that has most of them; restarts by hand are not "
        "counted.",
        ("namespace",),
        _recent_restarts,
    ),
    GaugeMetric(
        "liveness_component_group_size",
        "Supervised processes of a group that are not STOPPED. Add up the servers: a group is spread over them.",
        ("namespace", "group"),
        _group_values(lambda group: group.size),
    ),
    GaugeMetric(
        "liveness_component_group_crashed",
        "How many of a group have crashed within the last minute, also if they run again.",
        ("namespace", "group"),
        _group_values(lambda group: group.crashed),
    ),
    CounterMetric(
        "liveness_component_samples_total",
        "Samples of metrics that components reported to this server, by outcome: stored, refused, and of those that are stored "
        "forwarded or not_forwarded to a collector.",
        ("outcome",),
        lambda telemetry: (((outcome,), count) for outcome, count in telemetry.component_samples().items()),
    ),
    # -- registry
    GaugeMetric(
        "liveness_registry_entries",
        "Registered components of this server's shards, by kind and status. Kinds and statuses that are not well known are "
        "counted as _other; offline ones have lost their lease or said goodbye.",
        ("namespace", "kind", "status"),
        _registered,
    ),
    GaugeMetric(
        "liveness_registry_stale_entries",
        "Registered components that have a live lease and were not heard of for two expected intervals.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.component_numbers.stale_entries()),
    ),
    # -- reschedules
    CounterMetric(
        "liveness_reschedules_total",
        "Activities that were taken from workers, each with a task to get it moving again.",
        ("namespace",),
        _per_namespace(lambda counters: counters.reschedules),
    ),
    CounterMetric(
        "liveness_reschedule_attempts_total",
        "Attempts of those tasks: DONE, RETRYING after a failure, POSTPONED while a sink is down, or DEAD_LETTERED; via "
        "our own matching or a sink (webhook, relay).",
        ("namespace", "outcome", "via"),
        _outcomes,
    ),
    HistogramMetric(
        "liveness_reschedule_duration_seconds",
        "From when an activity was taken from its worker to when it was available again, or a sink had it.",
        lambda telemetry: telemetry.reschedule_s,
    ),
    GaugeMetric(
        "liveness_queue_tasks",
        "Unfinished tasks in the queues of this server's shards, by state, as of some seconds ago.",
        ("state",),
        _queue_tasks,
    ),
    GaugeMetric(
        "liveness_queue_oldest_seconds",
        "How long the oldest task that is not dead-lettered has been waiting; 0 if there is none.",
        (),
        _single_value(_oldest_s),
    ),
    GaugeMetric(
        "liveness_dead_lettered_tasks",
        "Tasks that failed too often and wait for an operator to retry or discard them.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.queue_depths.dead_lettered()),
    ),
    GaugeMetric(
        "liveness_quarantined_activities",
        "Quarantined activities: their workers died too often, or left them to an operator, who retries or cancels them.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.quarantined()),
    ),
    # -- open activities
    GaugeMetric(
        "liveness_open_activities",
        "Activities of this server's shards that are not finished. All servers together stay within max_open_activities.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.node.open_activities.counts),
    ),
    GaugeMetric(
        "liveness_open_activity_bytes",
        "Bytes of their inputs, which are kept in memory. All servers together stay within max_open_activity_bytes.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.node.open_activities.payload_bytes),
    ),
    CounterMetric(
        "liveness_activities_refused_total",
        "Activities that were not scheduled, claimed or retried because a quota of the namespace is used up, by the reason that "
        "the caller was told.",
        ("namespace", "reason"),
        _refused_activities,
    ),
    # -- waiting activities
    GaugeMetric(
        "liveness_available_activities",
        "Activities that wait for a worker to take them.",
        ("namespace",),
        _summed_by_namespace(lambda telemetry: telemetry.waiting_work.available_counts()),
    ),
    GaugeMetric(
        "liveness_unpolled_activities",
        "Those of them that wait in task queues that no worker has polled for as long as the namespace's "
        "unpolled_alert, as of some seconds ago.",
        ("namespace",),
        _summed_by_namespace(
            lambda telemetry: {name: work.unpolled for name, work in telemetry.waiting_work.namespaces()}
        ),
    ),
    GaugeMetric(
        "liveness_available_oldest_seconds",
        "How long the oldest available activity has been waiting, as of some seconds ago; 0 if none waits.",
        ("namespace",),
        _oldest_available_s,
    ),
    # -- commits
    HistogramMetric(
        "liveness_commit_duration_seconds",
        "Group commits that succeeded: how long the database took.",
        lambda telemetry: telemetry.commit_s,
    ),
    HistogramMetric(
        "liveness_commit_events",
        "Events in a group commit, without plain renewals.",
        lambda telemetry: telemetry.commit_events,
    ),
    HistogramMetric(
        "liveness_commit_renewals",
        "Plain renewals of leases in a group commit.",
        lambda telemetry: telemetry.commit_renewals,
    ),
    HistogramMetric(
        "liveness_commit_shards",
        "Shards in a group commit.",
        lambda telemetry: telemetry.commit_shards,
    ),
    CounterMetric(
        "liveness_commit_failures_total",
        "Group commits that failed: lost to another owner of a shard, rejected by the database, or with an unknown outcome. "
        "Their shards are read again, and their callers repeat the calls.",
        ("kind",),
        lambda telemetry: (((kind,), count) for kind, count in telemetry.node.committer.failures.items()),
    ),
    # -- the database
    *DATABASE_METRICS,
    # -- calls
    *CALL_METRICS,
    *SECURITY_METRICS,
    # -- the cluster
    GaugeMetric(
        "liveness_nodes",
        "Nodes in the registry as this server sees them, by state; LOST are those whose lease is over.",
        ("state",),
        lambda telemetry: (((state,), count) for state, count in telemetry.cluster().nodes.items()),
    ),
    GaugeMetric(
        "liveness_node_lease_seconds",
        "The lease of this server as a node (node_lease_ms): after this time without a renewal, others take its shards.",
        (),
        _single_value(lambda telemetry: telemetry.cluster().lease_s),
    ),
    GaugeMetric(
        "liveness_node_renewal_age_seconds",
        "How long ago this server last renewed its own lease; about half a second at most while all is well.",
        (),
        _single_value(lambda telemetry: telemetry.cluster().renewal_age_s),
    ),
    CounterMetric(
        "liveness_node_renewal_failures_total",
        "Renewals of this server's own lease that failed.",
        (),
        _single_value(lambda telemetry: telemetry.cluster().renewal_failures),
    ),
    # -- the server
    GaugeMetric(
        "liveness_shards",
        "Number of shards of the store.",
        (),
        _single_value(lambda telemetry: telemetry.node.shard_count),
    ),
    GaugeMetric(
        "liveness_shards_serving",
        "Shards that this server serves. Over all servers these add up to liveness_shards.",
        (),
        _single_value(lambda telemetry: len(telemetry.node.shards())),
    ),
    CounterMetric(
        "liveness_shards_taken_total",
        "Take-overs of shards, those at the start of the server included.",
        (),
        _single_value(lambda telemetry: telemetry.shards_taken_over),
    ),
    CounterMetric(
        "liveness_shards_closed_total",
        "Shards that ceased to be served here: handed_over in good order, or lost, to another owner or because a "
        "commit failed.",
        ("how",),
        _shards_closed,
    ),
    HistogramMetric(
        "liveness_loop_lag_seconds",
        "Delay of the event loop, measured 20 times a second; every call waits that long.",
        lambda telemetry: telemetry.loop_lag_s,
    ),
    HistogramMetric(
        "liveness_receive_lag_seconds",
        "How long a call waits in this server's sockets and queues before it is heard, measured by calls of the server to "
        "itself. Hardly any of that time counts as silence of workers.",
        lambda telemetry: telemetry.receive_lag_s,
    ),
    CounterMetric(
        "liveness_stalls_total",
        "How often the process stood still for more than half a second. No lease ends for such time.",
        (),
        _single_value(lambda telemetry: telemetry.stalls),
    ),
    CounterMetric(
        "liveness_stalled_seconds_total",
        "Total time for which the process stood still.",
        (),
        _single_value(lambda telemetry: telemetry.stalled_s),
    ),
    GaugeMetric(
        "liveness_streams",
        "Open streams of clients, and of nodes and frontends on behalf of theirs.",
        (),
        _single_value(lambda telemetry: telemetry.streams()),
    ),
    GaugeMetric(
        "liveness_attached_workers",
        "Workers of this server's shards that are attached by a stream.",
        (),
        _single_value(lambda telemetry: telemetry.attached()),
    ),
    GaugeMetric(
        "liveness_waiting_polls",
        "Polls of workers that wait for an activity.",
        (),
        _single_value(lambda telemetry: telemetry.waiting_polls()),
    ),
    GaugeMetric(
        "liveness_relay_away",
        "1 while the message broker accepts nothing from this server; 0 if it does, or if there is no broker.",
        (),
        _single_value(lambda telemetry: bool(telemetry.relay_trouble())),
    ),
    CounterMetric(
        "liveness_relay_publishes_total",
        "Messages for the broker, by outcome: acknowledged, a duplicate that it had already, refused for good, or failed "
        "because the broker is away.",
        ("outcome",),
        lambda telemetry: (((outcome,), count) for outcome, count in telemetry.relay_publishes().items()),
    ),
    CounterMetric(
        "liveness_relay_missed_events_total",
        "Events, at most, that retention deleted before they were published to the message broker.",
        (),
        _single_value(lambda telemetry: telemetry.relay_missed()),
    ),
    GaugeMetric(
        "liveness_insecure",
        "1 if this server listens beyond loopback without TLS or without authentication, as --insecure allows.",
        (),
        _single_value(lambda telemetry: bool(telemetry.insecure)),
    ),
    GaugeMetric("liveness_build_info", "1, with the server's version as a label.", ("version",), _build_info),
    # -- the database
    GaugeMetric(
        "liveness_database_bytes",
        "What the database holds, without space that it will use again; on PostgreSQL an estimate.",
        (),
        _storage_value(lambda storage: storage.size.used_bytes),
    ),
    GaugeMetric(
        "liveness_database_disk_bytes",
        "What the database takes on its disk.",
        (),
        _storage_value(lambda storage: storage.size.disk_bytes),
    ),
    GaugeMetric(
        "liveness_database_free_bytes",
        "For how much more the database has room: free disk, and space in its file that it will use again. Not for PostgreSQL.",
        (),
        _storage_value(lambda storage: storage.size.free_bytes),
    ),
    GaugeMetric(
        "liveness_database_growth_bytes_per_day",
        "Growth of what the database holds, by the last day, or less if less is known.",
        (),
        _storage_value(lambda storage: storage.growth_bytes_per_day),
    ),
)
