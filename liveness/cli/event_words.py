"""Events of the log in plain words, one sentence each. What a newer server tells beyond this is told as it came."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from liveness.cli.durations import in_words
from liveness.v1.event_pb2 import Event

NO_PART = "-"
"""Stands for the run, or for the activity, where an id alone names an activity."""
NAMED_MAX = 3
"""So many activities are named; of more, only how many."""
TEXT_MAX = 300
"""What others write may be long; `--json` has all of it."""


class Tone(Enum):
    """How a sentence is to be heard."""

    COMES = "comes"
    WORKS = "works"
    QUIET = "quiet"
    ORDER = "order"
    LEAVES = "leaves"
    DIES = "dies"
    TROUBLE = "trouble"


class Sentence(NamedTuple):
    tone: Tone
    subject: str
    """Whom it is about: a worker, an activity, a namespace, a shard."""
    text: str
    """What happened to them."""

    def __str__(self) -> str:
        return f"{self.subject} {self.text}"


Data = Mapping[str, Any]


def sentence_of(event: Event) -> Sentence:
    data = _data(event)
    telling = TELLINGS.get(event.type)
    try:
        if telling is not None and data is not None:
            return telling(event, data)
    except (KeyError, TypeError, ValueError, AttributeError):
        # Another version's idea of this event: better told raw than not at all.
        pass
    return Sentence(Tone.QUIET, _someone(event), f"{_spaced(event.type)}: {event.data_json}")


def _data(event: Event) -> Data | None:
    try:
        data = json.loads(event.data_json or "{}")
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _someone(event: Event) -> str:
    return (
        event.worker_instance_key
        or event.workflow_id
        or (f"namespace {event.namespace}" if event.namespace else f"shard {event.shard_id}")
    )


def _spaced(name: str) -> str:
    """WorkerRegistered → worker registered."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


# -- parts of sentences


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _activities(number: int) -> str:
    return _count(number, "activity", "activities")


def _short(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"


def _because(text: str) -> str:
    return f": {_short(text)}" if text else ""


def _name(workflow_id: str, run_id: str, activity_id: str) -> str:
    return "/".join(part for part in (workflow_id, run_id, activity_id) if part != NO_PART)


def _names(activities: Sequence[Data]) -> str:
    """Activities of a list, by name as far as one wants to read them."""
    if len(activities) > NAMED_MAX:
        return _activities(len(activities))
    return ", ".join(_bound(activity) for activity in activities)


def _bound(activity: Data) -> str:
    name = _name(activity["workflow_id"], activity["run_id"], activity["activity_id"])
    attempt = activity.get("attempt", 1)
    return f"{name} (attempt {attempt})" if attempt > 1 else name


def _milliseconds_in_words(text: str) -> str:
    """The server's own remarks count in milliseconds."""
    return re.sub(r"\b([0-9]{1,15}) ms\b", lambda found: in_words(int(found[1])), text)


def _traits(profile: Data) -> list[str]:
    return [
        f"{word} {_short(profile[field])}"
        for field, word in (("build_id", "build"), ("host_name", "host"), ("task_queue", "task queue"))
        if profile.get(field)
    ]


def _lease(data: Data) -> str:
    parts = [f"lease of {in_words(data['granted_ms'])}", *_traits(data["profile"])]
    if data["bindings"]:
        parts.append(f"holds {_names(data['bindings'])}")
    return ", ".join(parts)


def _activity(event: Event, data: Data) -> str:
    return _name(event.workflow_id, data["run_id"], data["activity_id"])


def _holder(data: Data) -> str:
    return f"{data['worker']} (attempt {data['attempt']})"


# -- workers


def _registered(event: Event, data: Data) -> Sentence:
    return Sentence(Tone.COMES, event.worker_instance_key, f"registered: {_lease(data)}")


def _session_replaced(event: Event, data: Data) -> Sentence:
    text = f"started anew: session {data['session_id']} under epoch {data['epoch']}, {_lease(data)}"
    return Sentence(Tone.COMES, event.worker_instance_key, text)


def _resurrected(event: Event, data: Data) -> Sentence:
    text = f"is back with a clean slate: epoch {data['epoch']}, {_lease(data)}"
    return Sentence(Tone.COMES, event.worker_instance_key, text)


def _terms_changed(event: Event, data: Data) -> Sentence:
    return Sentence(
        Tone.QUIET, event.worker_instance_key, f"has a lease of {in_words(data['granted_ms'])} from now on"
    )


def _bindings_changed(event: Event, data: Data) -> Sentence:
    parts = [
        f"{verb} {_names(data.get(field, ()))}"
        for field, verb in (("unbound", "let go of"), ("bound", "took up"), ("confirmed", "confirmed"))
        if data.get(field)
    ]
    if data["resync"]:
        parts.append("is asked for all it holds")
    return Sentence(Tone.WORKS, event.worker_instance_key, "; ".join(parts) or "holds what it held")


def _handed(event: Event, data: Data) -> Sentence:
    return Sentence(Tone.WORKS, event.worker_instance_key, f"was handed {_bound(data['activity'])}")


def _bindings_ended(event: Event, data: Data) -> Sentence:
    verb = "is told to stop" if data["taken"] else "is through with"
    return Sentence(Tone.WORKS, event.worker_instance_key, f"{verb} {_names(data['ids'])}")


def _paused(event: Event, data: Data) -> Sentence:
    return Sentence(Tone.ORDER, event.worker_instance_key, f"is paused{_because(data['reason'])}")


def _resumed(event: Event, data: Data) -> Sentence:
    return Sentence(Tone.ORDER, event.worker_instance_key, "may take new work again")


def _drain_begun(event: Event, data: Data) -> Sentence:
    limit = f" within {in_words(data['deadline_ms'] - event.observed_ms)}" if data["deadline_ms"] else ""
    return Sentence(
        Tone.ORDER, event.worker_instance_key, f"is to finish and leave{limit}{_because(data['reason'])}"
    )


def _grace_granted(event: Event, data: Data) -> Sentence:
    text = f"has {in_words(data['grace_ms'])} to come back whenever its stream breaks"
    return Sentence(Tone.QUIET, event.worker_instance_key, text)


def _described(event: Event, data: Data) -> Sentence:
    parts = [data["status"].lower()] if data["status"] != "UNSPECIFIED" else []
    parts += _traits(data["profile"])
    if data["profile"].get("current_job"):
        parts.append(f"works on {_short(data['profile']['current_job'])}")
    if data.get("loop_lag_ms"):
        parts.append(f"its loop has not answered for {in_words(data['loop_lag_ms'])}")
    if data["last_error"]:
        parts.append(f"last error: {_short(data['last_error'])}")
    return Sentence(
        Tone.TROUBLE if data["last_error"] else Tone.QUIET,
        event.worker_instance_key,
        f"says of itself: {', '.join(parts) or 'nothing any more'}",
    )


ENDINGS = {
    "LEASE_EXPIRED": (Tone.DIES, "fell silent"),
    "DISCONNECTED": (Tone.DIES, "was cut off"),
    "SHUTDOWN": (Tone.LEAVES, "said goodbye"),
    "FORCED": (Tone.LEAVES, "was forced out"),
    "DRAINED": (Tone.LEAVES, "was drained"),
}


def _deactivated(event: Event, data: Data) -> Sentence:
    tone, verb = ENDINGS.get(data["reason"], (Tone.LEAVES, "left"))
    detail = _short(_milliseconds_in_words(re.sub(r"^drained(; |$)", "", data["detail"])))
    parts = [part for part in (detail, *_circumstances(data.get("certificate") or {})) if part]
    return Sentence(tone, event.worker_instance_key, f"{verb}: {', '.join(parts)}" if parts else verb)


def _circumstances(certificate: Data) -> list[str]:
    """What is known besides, if it is a death."""
    parts = []
    if certificate.get("activities"):
        parts.append(f"{_activities(certificate['activities'])} rescheduled")
    if certificate.get("held_ms"):
        parts.append(f"held by a storm for {in_words(certificate['held_ms'])}")
    company = certificate.get("company") or {}
    for field, whose in (("same_host", "host"), ("same_build", "build")):
        if company.get(field):
            parts.append(
                f"{_count(company[field], 'other', 'others')} of its {whose} died in the same minute"
            )
            break
    return parts


def _cleaned_up(event: Event, data: Data) -> Sentence:
    retention_ms = data["tombstone_retention_ms"]
    refused = f"for {in_words(retention_ms)}" if retention_ms else "for ever"
    return Sentence(Tone.LEAVES, event.worker_instance_key, f"is cleaned up; its key stays refused {refused}")


def _forgotten(event: Event, data: Data) -> Sentence:
    return Sentence(Tone.QUIET, event.worker_instance_key, "is forgotten; its key may register again")


def _renewed(event: Event, data: Data) -> Sentence:
    if "renewals" in data:
        leases = _count(data["renewals"], "lease was", "leases were")
        return Sentence(Tone.QUIET, f"shard {event.shard_id}:", f"{leases} renewed")
    return Sentence(Tone.QUIET, event.worker_instance_key, "renewed its lease")


# -- activities


def _scheduled(event: Event, data: Data) -> Sentence:
    kind = f" as {data['activity_type']}" if data["activity_type"] else ""
    wait_ms = data["due_ms"] - data["at_ms"]
    due = f", due in {in_words(wait_ms)}" if wait_ms > 0 else ""
    return Sentence(
        Tone.WORKS, _activity(event, data), f"was scheduled{kind} on task queue {data['task_queue']}{due}"
    )


def _started(event: Event, data: Data) -> Sentence:
    return Sentence(Tone.WORKS, _activity(event, data), f"started on {_holder(data)}")


def _completed(event: Event, data: Data) -> Sentence:
    return Sentence(Tone.COMES, _activity(event, data), f"was completed by {_holder(data)}")


def _attempt_failed(event: Event, data: Data) -> Sentence:
    again = in_words(max(data["due_ms"] - data["at_ms"], 0))
    text = f"failed on {_holder(data)}, again in {again}{_because(data['message'])}"
    return Sentence(Tone.TROUBLE, _activity(event, data), text)


def _failed(event: Event, data: Data) -> Sentence:
    text = f"failed for good on {_holder(data)}{_because(data['message'])}"
    return Sentence(Tone.DIES, _activity(event, data), text)


def _given_back(event: Event, data: Data) -> Sentence:
    text = f"was given back by {_holder(data)}{_because(data['reason'])}"
    return Sentence(Tone.LEAVES, _activity(event, data), text)


def _cancelled(event: Event, data: Data) -> Sentence:
    return Sentence(Tone.ORDER, _activity(event, data), f"was cancelled{_because(data['reason'])}")


def _cancel_requested(event: Event, data: Data) -> Sentence:
    deaths = data.get("deaths", 0)
    in_a_row = f": {deaths} worker deaths in a row" if deaths > 1 else ""
    return Sentence(Tone.LEAVES, _activity(event, data), f"is taken from {_holder(data)}{in_a_row}")


def _released(event: Event, data: Data) -> Sentence:
    return Sentence(Tone.QUIET, _activity(event, data), "is held by nobody now")


def _made_available(event: Event, data: Data) -> Sentence:
    fresh = ", with a fresh start" if data.get("fresh") else ""
    return Sentence(
        Tone.WORKS, _activity(event, data), f"waits for a worker (attempt {data['attempt']}){fresh}"
    )


def _quarantined(event: Event, data: Data) -> Sentence:
    deaths = _count(data["deaths"], "worker", "workers")
    return Sentence(
        Tone.DIES, _activity(event, data), f"is quarantined: {deaths} in a row died while holding it"
    )


def _handed_on(event: Event, data: Data) -> Sentence:
    return Sentence(Tone.WORKS, _activity(event, data), "was handed on to another engine")


# -- the rest


def _config_changed(event: Event, data: Data) -> Sentence:
    whose = f"namespace {event.namespace}" if event.namespace else "the default of all namespaces"
    changes = dict(data["set"])
    if event.namespace and {*changes, *data["unset"]} == {"paused"}:
        text = "is paused" if changes.get("paused") else "may take new work again"
        return Sentence(Tone.ORDER, whose, text + _because(data.get("reason", "")))
    parts = [f"{name.removesuffix('_ms')} is now {_setting(name, value)}" for name, value in changes.items()]
    parts += [f"{name.removesuffix('_ms')} is inherited again" for name in data["unset"]]
    return Sentence(
        Tone.ORDER, whose, f"changed: {'; '.join(parts) or 'nothing'}{_because(data.get('reason', ''))}"
    )


def _setting(name: str, value: float) -> str:
    return in_words(int(value)) if name.endswith("_ms") else f"{value:.15g}"


def _shard_taken(event: Event, data: Data) -> Sentence:
    return Sentence(
        Tone.QUIET, f"shard {event.shard_id}", f"is served by {data['owner']} under epoch {data['epoch']}"
    )


TELLINGS: Mapping[str, Callable[[Event, Data], Sentence]] = {
    "LeasesRenewed": _renewed,
    "LeaseRenewed": _renewed,
    "WorkerRegistered": _registered,
    "SessionReplaced": _session_replaced,
    "WorkerResurrected": _resurrected,
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
    "ActivityScheduled": _scheduled,
    "ActivityStarted": _started,
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
    "ConfigChanged": _config_changed,
    "ShardTaken": _shard_taken,
}
