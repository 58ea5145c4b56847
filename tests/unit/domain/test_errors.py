"""Every domain error has a fixed machine-readable reason, and is rebuilt from what another node reports."""

from __future__ import annotations

import pytest

from liveness.domain import errors
from liveness.domain.errors import (
    LivenessError,
    RateLimited,
    ShardMoved,
    StaleHeartbeat,
    Unavailable,
    error_from_reason,
)

# Clients decide by these: a reason may be added, never changed or removed.
REASONS = {
    "LivenessError": "LIVENESS_ERROR",
    "InvalidRequest": "INVALID_REQUEST",
    "InvalidField": "INVALID_FIELD",
    "MalformedRequest": "MALFORMED_REQUEST",
    "PageTokenInvalid": "PAGE_TOKEN_INVALID",
    "ResumeTokenInvalid": "RESUME_TOKEN_INVALID",
    "Refused": "REFUSED",
    "StaleHeartbeat": "STALE_HEARTBEAT",
    "SessionSuperseded": "SESSION_SUPERSEDED",
    "SessionNotCurrent": "SESSION_NOT_CURRENT",
    "WorkerCleanedUp": "WORKER_CLEANED_UP",
    "WorkerActive": "WORKER_ACTIVE",
    "WorkerKeyHeld": "WORKER_KEY_HELD",
    "ComponentChangeRefused": "COMPONENT_CHANGE_REFUSED",
    "WorkerNotActive": "WORKER_NOT_ACTIVE",
    "WorkerPaused": "WORKER_PAUSED",
    "WorkerDraining": "WORKER_DRAINING",
    "FencedOff": "FENCED_OFF",
    "ActivityHeld": "ACTIVITY_HELD",
    "ActivityNotAvailable": "ACTIVITY_NOT_AVAILABLE",
    "ActivityFinished": "ACTIVITY_FINISHED",
    "ActivityNotRetryable": "ACTIVITY_NOT_RETRYABLE",
    "TaskFinished": "TASK_FINISHED",
    "RelayNotConfigured": "RELAY_NOT_CONFIGURED",
    "EventsNotRelayed": "EVENTS_NOT_RELAYED",
    "TooLittleHistory": "TOO_LITTLE_HISTORY",
    "Exists": "EXISTS",
    "ActivityDiffers": "ACTIVITY_DIFFERS",
    "Exhausted": "EXHAUSTED",
    "WorkerQuotaExceeded": "WORKER_QUOTA_EXCEEDED",
    "SessionNeedsToken": "SESSION_NEEDS_TOKEN",
    "TokenQuotaExceeded": "TOKEN_QUOTA_EXCEEDED",
    "Unauthenticated": "UNAUTHENTICATED",
    "Denied": "DENIED",
    "PermissionDenied": "PERMISSION_DENIED",
    "WorkerKeyOwned": "WORKER_KEY_OWNED",
    "BindingQuotaExceeded": "BINDING_QUOTA_EXCEEDED",
    "OrderQuotaExceeded": "ORDER_QUOTA_EXCEEDED",
    "ReplicaQuotaExceeded": "REPLICA_QUOTA_EXCEEDED",
    "TooManyLogRequests": "TOO_MANY_LOG_REQUESTS",
    "SeriesQuotaExceeded": "SERIES_QUOTA_EXCEEDED",
    "TooManySamplesWaiting": "TOO_MANY_SAMPLES_WAITING",
    "ActivityQuotaExceeded": "ACTIVITY_QUOTA_EXCEEDED",
    "ActivityBytesExceeded": "ACTIVITY_BYTES_EXCEEDED",
    "TooManyPolls": "TOO_MANY_POLLS",
    "TooManyWatchers": "TOO_MANY_WATCHERS",
    "UnitNotFound": "UNIT_NOT_FOUND",
    "UnitQuotaExceeded": "UNIT_QUOTA_EXCEEDED",
    "ScheduleExists": "SCHEDULE_EXISTS",
    "ConcurrencyLimitReached": "CONCURRENCY_LIMIT_REACHED",
    "ConcurrencyLimitNotFound": "CONCURRENCY_LIMIT_NOT_FOUND",
    "LimitQuotaExceeded": "LIMIT_QUOTA_EXCEEDED",
    "ScheduleNotFound": "SCHEDULE_NOT_FOUND",
    "ScheduleQuotaExceeded": "SCHEDULE_QUOTA_EXCEEDED",
    "TooManyStreams": "TOO_MANY_STREAMS",
    "TooManyConnections": "TOO_MANY_CONNECTIONS",
    "AttachmentReplaced": "ATTACHMENT_REPLACED",
    "NotForwarded": "NOT_FORWARDED",
    "PeerNotAllowed": "PEER_NOT_ALLOWED",
    "RequestTooLarge": "REQUEST_TOO_LARGE",
    "RateLimited": "RATE_LIMITED",
    "NotFound": "NOT_FOUND",
    "WorkerNotFound": "WORKER_NOT_FOUND",
    "DeathNotFound": "DEATH_NOT_FOUND",
    "ComponentNotFound": "COMPONENT_NOT_FOUND",
    "ComponentGroupNotFound": "COMPONENT_GROUP_NOT_FOUND",
    "RegistryEntryNotFound": "REGISTRY_ENTRY_NOT_FOUND",
    "ActivityNotFound": "ACTIVITY_NOT_FOUND",
    "NamespaceNotFound": "NAMESPACE_NOT_FOUND",
    "TaskNotFound": "TASK_NOT_FOUND",
    "TokenNotFound": "TOKEN_NOT_FOUND",
    "Unavailable": "UNAVAILABLE",
    "ShardUnavailable": "SHARD_UNAVAILABLE",
    "StoreFull": "STORE_FULL",
    "ShardMoved": "SHARD_MOVED",
    "WrongNode": "WRONG_NODE",
    "CutOff": "CUT_OFF",
    "NoNodeReachable": "NO_NODE_REACHABLE",
    "NodeLost": "NODE_LOST",
    "BrokerUnavailable": "BROKER_UNAVAILABLE",
    "SupervisorSilent": "SUPERVISOR_SILENT",
    "ShuttingDown": "SHUTTING_DOWN",
}


def all_errors() -> list[type[LivenessError]]:
    found, waiting = [], [LivenessError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += kind.__subclasses__()
    return [kind for kind in found if kind.__module__ == errors.__name__]


def test_reasons_never_change() -> None:
    assert {kind.__name__: kind.reason for kind in all_errors()} == REASONS


def test_reasons_are_unique() -> None:
    assert len(set(REASONS.values())) == len(REASONS)


def test_a_class_without_a_reason_is_rejected() -> None:
    with pytest.raises(TypeError, match="Nameless needs a reason"):
        type("Nameless", (Unavailable,), {})


def test_every_message_is_a_sentence() -> None:
    assert [kind.__name__ for kind in all_errors() if not kind.template.endswith(".")] == []


def test_the_module_docstring_lists_every_error() -> None:
    assert [kind.__name__ for kind in all_errors() if kind.__name__ not in (errors.__doc__ or "")] == []


def test_an_error_is_rebuilt_with_typed_fields() -> None:
    stale = StaleHeartbeat(sequence=6, last_sequence=7)
    rebuilt = error_from_reason(stale.reason, {name: str(value) for name, value in stale.fields.items()})
    assert isinstance(rebuilt, StaleHeartbeat)
    assert rebuilt.fields == {"sequence": 6, "last_sequence": 7}
    assert str(rebuilt) == str(stale)


def test_a_field_that_the_message_omits_is_rebuilt_too() -> None:
    fields = {"shard_id": "3", "node_id": "b", "address": "10.0.0.2:7233", "epoch": "12"}
    rebuilt = error_from_reason("SHARD_MOVED", fields)
    assert isinstance(rebuilt, ShardMoved)
    assert (rebuilt.shard_id, rebuilt.epoch) == (3, 12)


def test_fields_that_only_the_other_version_knows_are_dropped() -> None:
    rebuilt = error_from_reason("RATE_LIMITED", {"whose": "a", "retry_after_ms": "5", "shade": "blue"})
    assert isinstance(rebuilt, RateLimited)
    assert rebuilt.fields == {"whose": "a", "retry_after_ms": 5, "what": "heartbeats"}


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("NEVER_HEARD_OF", {}),
        ("", {}),
        ("RATE_LIMITED", {"whose": "a"}),
        ("RATE_LIMITED", {"whose": "a", "retry_after_ms": "soon"}),
    ],
)
def test_an_error_that_cannot_be_rebuilt_is_none(reason: str, fields: dict[str, str]) -> None:
    assert error_from_reason(reason, fields) is None
