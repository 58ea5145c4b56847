"""Describe events of the log, one sentence each. Events that only a newer server knows are shown with their raw data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple

from liveness.cli.durations import humanize_ms
from liveness.v1.event_pb2 import Event

EMPTY_ID_PART = "-"
"""Stands for the run, or for the activity, when an activity is named by its id alone."""
NAMED_ACTIVITIES_MAX = 3
"""Up to this many activities are named; of more, only the count is shown."""
TEXT_CHARS_MAX = 300
"""Longer texts of programs are cut; `--json` has all of them."""


class EventTone(Enum):
    """The kind of an event, which selects its colour."""

    ARRIVAL = "arrival"
    PROGRESS = "progress"
    MINOR = "minor"
    OPERATOR = "operator"
    DEPARTURE = "departure"
    DEATH = "death"
    PROBLEM = "problem"


class EventText(NamedTuple):
    tone: EventTone
    subject: str
    """The worker, activity, namespace or shard."""
    text: str
    """The rest of the sentence, after the subject."""

    def __str__(self) -> str:
        return f"{self.subject} {self.text}"


Data = Mapping[str, Any]


def describe_event(event: Event) -> EventText:
    data = _parse_data(event)
    formatter = FORMATTERS.get(event.type)
    try:
        if formatter is not None and data is not None:
            return formatter(event, data)
    except (KeyError, TypeError, ValueError, AttributeError):
        # Another version uses other fields for this event: show it raw.
        pass
    return EventText(
        EventTone.MINOR, _fallback_subject(event), f"{_split_camel_case(event.type)}: {event.data_json}"
    )


def _parse_data(event: Event) -> Data | None:
    try:
        data = json.loads(event.data_json or "{}")
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _fallback_subject(event: Event) -> str:
    return (
        event.worker_instance_key
        or event.workflow_id
        or (f"namespace {event.namespace}" if event.namespace else f"shard {event.shard_id}")
    )


def _split_camel_case(name: str) -> str:
    """WorkerRegistered → worker registered."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


# -- parts of sentences


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def _activity_count(number: int) -> str:
    return _count(number, "activity", "activities")


def _truncate(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}…"


def _reason_suffix(text: str) -> str:
    return f": {_truncate(text)}" if text else ""


def _by(data: Data, before: str = " by ") -> str:
    """Who gave the order, if callers are asked who they are."""
    return f"{before}{_truncate(data['by'])}" if data.get("by") else ""


def _activity_name(workflow_id: str, run_id: str, activity_id: str) -> str:
    return "/".join(part for part in (workflow_id, run_id, activity_id) if part != EMPTY_ID_PART)


def _activity_names(activities: Sequence[Data]) -> str:
    """The names of the activities, or only their number if there are many."""
    if len(activities) > NAMED_ACTIVITIES_MAX:
        return _activity_count(len(activities))
    return ", ".join(_binding_name(activity) for activity in activities)


def _binding_name(activity: Data) -> str:
    name = _activity_name(activity["workflow_id"], activity["run_id"], activity["activity_id"])
    attempt = activity.get("attempt", 1)
    return f"{name} (attempt {attempt})" if attempt > 1 else name


def _humanize_ms_in(text: str) -> str:
    """Rewrite the milliseconds in the server's texts as readable durations."""
    return re.sub(r"\b([0-9]{1,15}) ms\b", lambda found: humanize_ms(int(found[1])), text)


def _profile_details(profile: Data) -> list[str]:
    return [
        f"{word} {_truncate(profile[field])}"
        for field, word in (("build_id", "build"), ("host_name", "host"), ("task_queue", "task queue"))
        if profile.get(field)
    ]


def _lease_details(data: Data) -> str:
    parts = [f"lease of {humanize_ms(data['granted_ms'])}", *_profile_details(data["profile"])]
    if data["bindings"]:
        parts.append(f"holds {_activity_names(data['bindings'])}")
    return ", ".join(parts)


def _event_activity_name(event: Event, data: Data) -> str:
    return _activity_name(event.workflow_id, data["run_id"], data["activity_id"])


def _holder(data: Data) -> str:
    return f"{data['worker']} (attempt {data['attempt']})"


# -- workers


def _registered(event: Event, data: Data) -> EventText:
    return EventText(EventTone.ARRIVAL, event.worker_instance_key, f"registered: {_lease_details(data)}")


def _session_replaced(event: Event, data: Data) -> EventText:
    text = f"started again: session {data['session_id']} under epoch {data['epoch']}, {_lease_details(data)}"
    return EventText(EventTone.ARRIVAL, event.worker_instance_key, text)


def _resurrected(event: Event, data: Data) -> EventText:
    text = f"is back with a clean slate: epoch {data['epoch']}, {_lease_details(data)}"
    return EventText(EventTone.ARRIVAL, event.worker_instance_key, text)


def _adopted(event: Event, data: Data) -> EventText:
    return EventText(
        EventTone.MINOR, event.worker_instance_key, f"belongs to {data['principal']} from now on"
    )


def _terms_changed(event: Event, data: Data) -> EventText:
    return EventText(
        EventTone.MINOR,
        event.worker_instance_key,
        f"has a lease of {humanize_ms(data['granted_ms'])} from now on",
    )


def _bindings_changed(event: Event, data: Data) -> EventText:
    parts = [
        f"{verb} {_activity_names(data.get(field, ()))}"
        for field, verb in (("unbound", "let go of"), ("bound", "took up"), ("confirmed", "confirmed"))
        if data.get(field)
    ]
    if data["resync"]:
        parts.append("is asked for the full list of its activities")
    return EventText(
        EventTone.PROGRESS,
        event.worker_instance_key,
        "; ".join(parts) or "holds the same activities as before",
    )


def _handed(event: Event, data: Data) -> EventText:
    return EventText(
        EventTone.PROGRESS, event.worker_instance_key, f"was handed {_binding_name(data['activity'])}"
    )


def _bindings_ended(event: Event, data: Data) -> EventText:
    verb = "is told to stop" if data["taken"] else "is done with"
    return EventText(EventTone.PROGRESS, event.worker_instance_key, f"{verb} {_activity_names(data['ids'])}")


def _paused(event: Event, data: Data) -> EventText:
    return EventText(
        EventTone.OPERATOR, event.worker_instance_key, f"is paused{_by(data)}{_reason_suffix(data['reason'])}"
    )


def _resumed(event: Event, data: Data) -> EventText:
    text = f"may take new work again{_by(data, ', by order of ')}"
    return EventText(EventTone.OPERATOR, event.worker_instance_key, text)


def _drain_begun(event: Event, data: Data) -> EventText:
    limit = f" within {humanize_ms(data['deadline_ms'] - event.observed_ms)}" if data["deadline_ms"] else ""
    return EventText(
        EventTone.OPERATOR,
        event.worker_instance_key,
        f"is to finish and leave{limit}{_by(data, ', by order of ')}{_reason_suffix(data['reason'])}",
    )


def _grace_granted(event: Event, data: Data) -> EventText:
    text = f"has {humanize_ms(data['grace_ms'])} to come back whenever its stream breaks"
    return EventText(EventTone.MINOR, event.worker_instance_key, text)


def _described(event: Event, data: Data) -> EventText:
    parts = [data["status"].lower()] if data["status"] != "UNSPECIFIED" else []
    parts += _profile_details(data["profile"])
    if data["profile"].get("current_job"):
        parts.append(f"works on {_truncate(data['profile']['current_job'])}")
    if data.get("loop_lag_ms"):
        parts.append(f"its loop has not answered for {humanize_ms(data['loop_lag_ms'])}")
    if data["last_error"] and data.get("error_reported", True):
        parts.append(f"last error: {_truncate(data['last_error'])}")
    return EventText(
        EventTone.PROBLEM if data["last_error"] else EventTone.MINOR,
        event.worker_instance_key,
        f"reports: {', '.join(parts) or 'nothing'}",
    )


DEACTIVATION_TEXT = {
    "LEASE_EXPIRED": (EventTone.DEATH, "fell silent"),
    "DISCONNECTED": (EventTone.DEATH, "was cut off"),
    "SHUTDOWN": (EventTone.DEPARTURE, "said goodbye"),
    "FORCED": (EventTone.DEPARTURE, "was forced out"),
    "DRAINED": (EventTone.DEPARTURE, "was drained"),
    "PROCESS_EXITED": (EventTone.DEATH, "lost its process"),
}


def _deactivated(event: Event, data: Data) -> EventText:
    tone, verb = DEACTIVATION_TEXT.get(data["reason"], (EventTone.DEPARTURE, "left"))
    verb += _by(data)
    detail = _truncate(_humanize_ms_in(re.sub(r"^drained(; |$)", "", data["detail"])))
    parts = [part for part in (detail, *_death_details(data.get("certificate") or {})) if part]
    return EventText(tone, event.worker_instance_key, f"{verb}: {', '.join(parts)}" if parts else verb)


def _death_details(certificate: Data) -> list[str]:
    """Further parts of the sentence from the death certificate, if there is one."""
    parts = []
    if certificate.get("activities"):
        parts.append(f"{_activity_count(certificate['activities'])} rescheduled")
    if certificate.get("held_ms"):
        parts.append(f"held by a storm for {humanize_ms(certificate['held_ms'])}")
    company = certificate.get("company") or {}
    for field, subject_name in (("same_host", "host"), ("same_build", "build")):
        if company.get(field):
            parts.append(
                f"{_count(company[field], 'other', 'others')} of its {subject_name} died in the same minute"
            )
            break
    return parts


def _cleaned_up(event: Event, data: Data) -> EventText:
    retention_ms = data["tombstone_retention_ms"]
    refused = f"for {humanize_ms(retention_ms)}" if retention_ms else "for ever"
    return EventText(
        EventTone.DEPARTURE,
        event.worker_instance_key,
        f"is cleaned up; heartbeats are refused {refused}, unless a new incarnation begins",
    )


def _forgotten(event: Event, data: Data) -> EventText:
    reason = _reason_suffix(data.get("reason", ""))
    return EventText(
        EventTone.MINOR,
        event.worker_instance_key,
        f"is forgotten{_by(data)}; its key may register again{reason}",
    )


COMPONENT_TONES = {
    "HEALTHY": EventTone.ARRIVAL,
    "PAUSED": EventTone.OPERATOR,
    "STOPPING": EventTone.DEPARTURE,
    "STOPPED": EventTone.DEPARTURE,
    "CRASHED": EventTone.DEATH,
    "FAILED": EventTone.DEATH,
}


def _component_changed(event: Event, data: Data) -> EventText:
    status = data["status"]
    parts = []
    if status in ("STARTING", "HEALTHY") and data["process_id"]:
        parts.append(f"process {data['process_id']}")
    if status in ("CRASHED", "FAILED", "STOPPED") and data["last_exit"]:
        parts.append(exit_text(data["last_exit"]))
    if data["restart_count"]:
        parts.append(_count(data["restart_count"], "restart", "restarts"))
    facts = f" ({', '.join(parts)})" if parts else ""
    return EventText(
        COMPONENT_TONES.get(status, EventTone.PROGRESS),
        event.worker_instance_key,
        f"is {status.lower()}{facts}{_by(data, ', by order of ')}{_reason_suffix(data['reason'])}",
    )


def exit_text(ended: Data) -> str:
    """How a process ended, in words."""
    if ended["signal"]:
        return f"killed by {_truncate(ended['signal'])}"
    return "ended" if ended["code"] is None else f"exit code {ended['code']}"


def _components_ordered(event: Event, data: Data) -> EventText:
    order = data["order"]
    action = order["action"].lower().replace("_", " ")
    if order["action"] == "SCALE":
        action += f" to {_count(order['processes'], 'process', 'processes')}"
    components = order["components"]
    if len(components) > NAMED_ACTIVITIES_MAX:
        action += f" {len(components)} components"
    elif components:
        action += f" {', '.join(components)}"
    text = f"is ordered to {action}{_by(order)}{_reason_suffix(order['reason'])}"
    return EventText(EventTone.OPERATOR, event.worker_instance_key, text)


def _component_orders_done(event: Event, data: Data) -> EventText:
    text = f"has carried out all orders up to number {data['through']}"
    return EventText(EventTone.PROGRESS, event.worker_instance_key, text)


def _entry_changed(event: Event, data: Data) -> EventText:
    facts = [f"at {_truncate(data['uri'])}"] if data["uri"] else []
    if data["capacity"] is not None:
        facts.append(f"capacity {data['capacity']}")
    told = f" ({', '.join(facts)})" if facts else ""
    return EventText(
        EventTone.PROGRESS,
        event.worker_instance_key,
        f"registers itself as {_truncate(data['status'])}{told}",
    )


def _replica_seen(event: Event, data: Data) -> EventText:
    text = f"is also registered by {_process(data)}, as a replica"
    return EventText(EventTone.MINOR, event.worker_instance_key, text)


def _process(data: Data) -> str:
    if not data["host_name"] and not data["process_id"]:
        return f"session {_truncate(data['session_id'])}"
    return f"process {_truncate(data['process_id']) or '?'} on {_truncate(data['host_name']) or 'an unnamed host'}"


def _replica_left(event: Event, data: Data) -> EventText:
    text = f"has no replica of session {_truncate(data['session_id'])} any more"
    return EventText(EventTone.MINOR, event.worker_instance_key, text)


def _renewed(event: Event, data: Data) -> EventText:
    if "renewals" in data:
        leases = _count(data["renewals"], "lease was", "leases were")
        return EventText(EventTone.MINOR, f"shard {event.shard_id}:", f"{leases} renewed")
    return EventText(EventTone.MINOR, event.worker_instance_key, "renewed its lease")


# -- activities


def _scheduled(event: Event, data: Data) -> EventText:
    kind = f" as {data['activity_type']}" if data["activity_type"] else ""
    wait_ms = data["due_ms"] - data["at_ms"]
    due = f", due in {humanize_ms(wait_ms)}" if wait_ms > 0 else ""
    return EventText(
        EventTone.PROGRESS,
        _event_activity_name(event, data),
        f"was scheduled{kind} on task queue {data['task_queue']}{_by(data)}{due}",
    )


def _started(event: Event, data: Data) -> EventText:
    return EventText(EventTone.PROGRESS, _event_activity_name(event, data), f"started on {_holder(data)}")


def _heartbeat_recorded(event: Event, data: Data) -> EventText:
    told = " and told how far it has come" if data.get("heartbeat_details") is not None else ""
    return EventText(
        EventTone.MINOR, _event_activity_name(event, data), f"is at work (attempt {data['attempt']}){told}"
    )


def _timed_out(event: Event, data: Data) -> EventText:
    again = f", again in {humanize_ms(data['due_ms'] - data['at_ms'])}" if data["due_ms"] else " for good"
    holder = f" on {_holder(data)}" if data["worker"] else ""
    text = f"failed{holder}{again}{_reason_suffix(data['message'])}"
    tone = EventTone.PROBLEM if data["due_ms"] else EventTone.DEATH
    return EventText(tone, _event_activity_name(event, data), text)


def _completed(event: Event, data: Data) -> EventText:
    return EventText(
        EventTone.ARRIVAL, _event_activity_name(event, data), f"was completed by {_holder(data)}"
    )


def _attempt_failed(event: Event, data: Data) -> EventText:
    again = humanize_ms(max(data["due_ms"] - data["at_ms"], 0))
    text = f"failed on {_holder(data)}, again in {again}{_reason_suffix(data['message'])}"
    return EventText(EventTone.PROBLEM, _event_activity_name(event, data), text)


def _failed(event: Event, data: Data) -> EventText:
    text = f"failed for good on {_holder(data)}{_reason_suffix(data['message'])}"
    return EventText(EventTone.DEATH, _event_activity_name(event, data), text)


def _given_back(event: Event, data: Data) -> EventText:
    text = f"was given back by {_holder(data)}{_reason_suffix(data['reason'])}"
    return EventText(EventTone.DEPARTURE, _event_activity_name(event, data), text)


def _cancelled(event: Event, data: Data) -> EventText:
    return EventText(
        EventTone.OPERATOR,
        _event_activity_name(event, data),
        f"was cancelled{_by(data)}{_reason_suffix(data['reason'])}",
    )


def _cancel_requested(event: Event, data: Data) -> EventText:
    deaths = data.get("deaths", 0)
    in_a_row = f": {deaths} worker deaths in a row" if deaths > 1 else ""
    return EventText(
        EventTone.DEPARTURE, _event_activity_name(event, data), f"is taken from {_holder(data)}{in_a_row}"
    )


def _released(event: Event, data: Data) -> EventText:
    return EventText(EventTone.MINOR, _event_activity_name(event, data), "is no longer held by a worker")


def _made_available(event: Event, data: Data) -> EventText:
    fresh = f", with a fresh start{_by(data, ' by order of ')}" if data.get("fresh") else ""
    fresh += _reason_suffix(data.get("reason", ""))
    return EventText(
        EventTone.PROGRESS,
        _event_activity_name(event, data),
        f"waits for a worker (attempt {data['attempt']}){fresh}",
    )


def _quarantined(event: Event, data: Data) -> EventText:
    died = f"{_count(data['deaths'], 'worker', 'workers')} in a row died while holding it"
    why = died if data["deaths"] else "its worker leaves it to an operator"
    return EventText(EventTone.DEATH, _event_activity_name(event, data), f"is quarantined: {why}")


def _handed_on(event: Event, data: Data) -> EventText:
    return EventText(EventTone.PROGRESS, _event_activity_name(event, data), "was handed on to another engine")


# -- progress


def _progress_reported(event: Event, data: Data) -> EventText:
    parts = (
        [_count(data["successes"], "success", "successes")] if data["successes"] or not data["error"] else []
    )
    if data["error"]:
        more = (
            f"{_count(data['errors'], 'error', 'errors')}, the last one"
            if data.get("errors")
            else "the error"
        )
        parts.append(f"{more} {_truncate(data['error'])}")
    return EventText(
        EventTone.PROBLEM if data["error"] else EventTone.MINOR,
        f"unit {data['unit']}",
        f"got {' and '.join(parts)} from {data['worker']}",
    )


def _progress_forgotten(event: Event, data: Data) -> EventText:
    return EventText(
        EventTone.OPERATOR,
        f"unit {data['unit']}",
        f"was forgotten{_by(data)}{_reason_suffix(data['reason'])}",
    )


# -- schedules


def _schedule_name(data: Data) -> str:
    return f"schedule {data['schedule_id']}"


def _wall_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _next_firing(data: Data) -> str:
    return f"; fires next at {_wall_time(data['next_ms'])}" if data["next_ms"] else "; never fires again"


def _schedule_saved(event: Event, data: Data) -> EventText:
    spec = data["spec"]
    when = (
        f"every {humanize_ms(spec['every_ms'])}"
        if spec["every_ms"]
        else f"by {spec['cron']} ({spec['time_zone']})"
    )
    return EventText(
        EventTone.OPERATOR,
        _schedule_name(data),
        f"schedules {_truncate(spec['activity']['type'])} {when}{_by(data)}{_next_firing(data)}",
    )


def _schedule_paused(event: Event, data: Data) -> EventText:
    text = f"is paused{_by(data)}{_reason_suffix(data['reason'])}"
    return EventText(EventTone.OPERATOR, _schedule_name(data), text)


def _schedule_resumed(event: Event, data: Data) -> EventText:
    text = f"is resumed{_by(data)}{_next_firing(data)}{_reason_suffix(data['reason'])}"
    return EventText(EventTone.OPERATOR, _schedule_name(data), text)


def _schedule_fired(event: Event, data: Data) -> EventText:
    why = f"for {_wall_time(data['tick_ms'])}" if data["tick_ms"] else f"by hand{_by(data)}"
    return EventText(EventTone.PROGRESS, _schedule_name(data), f"fired {why}{_next_firing(data)}")


def _schedule_ticks_dropped(event: Event, data: Data) -> EventText:
    first, last = _wall_time(data["first_ms"]), _wall_time(data["last_ms"])
    when = f"of {first}" if data["count"] == 1 else f"from {first} to {last}"
    why = "the activity before is not finished" if data["overlapping"] else "nobody fired in time"
    return EventText(
        EventTone.PROBLEM,
        _schedule_name(data),
        f"dropped {_count(data['count'], 'tick', 'ticks')} {when}: {why}{_next_firing(data)}",
    )


def _schedule_deleted(event: Event, data: Data) -> EventText:
    text = f"was deleted{_by(data)}{_reason_suffix(data['reason'])}"
    return EventText(EventTone.OPERATOR, _schedule_name(data), text)


# -- concurrency limits


def _limit_set(event: Event, data: Data) -> EventText:
    text = f"may have {_activity_count(data['maximum'])} running at once{_by(data)}{_reason_suffix(data['reason'])}"
    return EventText(EventTone.OPERATOR, f"workflow {data['workflow_id']}", text)


def _limit_removed(event: Event, data: Data) -> EventText:
    text = f"has no concurrency limit any more{_by(data)}{_reason_suffix(data['reason'])}"
    return EventText(EventTone.OPERATOR, f"workflow {data['workflow_id']}", text)


# -- the rest


def _config_changed(event: Event, data: Data) -> EventText:
    subject_name = f"namespace {event.namespace}" if event.namespace else "the default of all namespaces"
    changes = dict(data["set"])
    if event.namespace and {*changes, *data["unset"]} == {"paused"}:
        text = (
            f"is paused{_by(data)}"
            if changes.get("paused")
            else f"may take new work again{_by(data, ', by order of ')}"
        )
        return EventText(EventTone.OPERATOR, subject_name, text + _reason_suffix(data.get("reason", "")))
    parts = [
        f"{name.removesuffix('_ms')} is now {_setting_value(name, value)}" for name, value in changes.items()
    ]
    parts += [f"{name.removesuffix('_ms')} is inherited again" for name in data["unset"]]
    return EventText(
        EventTone.OPERATOR,
        subject_name,
        f"changed{_by(data)}: {'; '.join(parts) or 'nothing'}{_reason_suffix(data.get('reason', ''))}",
    )


def _setting_value(name: str, value: float) -> str:
    return humanize_ms(int(value)) if name.endswith("_ms") else f"{value:.15g}"


def _shard_taken(event: Event, data: Data) -> EventText:
    return EventText(
        EventTone.MINOR,
        f"shard {event.shard_id}",
        f"is served by {data['owner']} under epoch {data['epoch']}",
    )


FORMATTERS: Mapping[str, Callable[[Event, Data], EventText]] = {
    "LeasesRenewed": _renewed,
    "LeaseRenewed": _renewed,
    "WorkerRegistered": _registered,
    "SessionReplaced": _session_replaced,
    "WorkerResurrected": _resurrected,
    "WorkerAdopted": _adopted,
    "LeaseTermsChanged": _terms_changed,
    "BindingsChanged": _bindings_changed,
    "ActivityHanded": _handed,
    "BindingsEnded": _bindings_ended,
    "WorkerPaused": _paused,
    "WorkerResumed": _resumed,
    "DrainBegun": _drain_begun,
    "DisconnectGraceGranted": _grace_granted,
    "WorkerDescribed": _described,
    "WorkerDeactivated": _deactivated,
    "WorkerCleanedUp": _cleaned_up,
    "WorkerForgotten": _forgotten,
    "ComponentChanged": _component_changed,
    "ComponentsOrdered": _components_ordered,
    "ComponentOrdersDone": _component_orders_done,
    "EntryChanged": _entry_changed,
    "ReplicaSeen": _replica_seen,
    "ReplicaLeft": _replica_left,
    "ActivityScheduled": _scheduled,
    "ActivityStarted": _started,
    "ActivityHeartbeatRecorded": _heartbeat_recorded,
    "ActivityTimedOut": _timed_out,
    "ActivityCompleted": _completed,
    "ActivityAttemptFailed": _attempt_failed,
    "ActivityFailed": _failed,
    "ActivityGivenBack": _given_back,
    "ActivityCancelled": _cancelled,
    "ActivityCancelRequested": _cancel_requested,
    "ActivityReleased": _released,
    "ActivityMadeAvailable": _made_available,
    "ActivityQuarantined": _quarantined,
    "ActivityHandedOn": _handed_on,
    "ProgressReported": _progress_reported,
    "ProgressForgotten": _progress_forgotten,
    "ScheduleSaved": _schedule_saved,
    "SchedulePaused": _schedule_paused,
    "ScheduleResumed": _schedule_resumed,
    "ScheduleFired": _schedule_fired,
    "ScheduleTicksDropped": _schedule_ticks_dropped,
    "ScheduleDeleted": _schedule_deleted,
    "ConcurrencyLimitSet": _limit_set,
    "ConcurrencyLimitRemoved": _limit_removed,
    "ConfigChanged": _config_changed,
    "ShardTaken": _shard_taken,
}
