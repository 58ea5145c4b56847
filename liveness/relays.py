"""Subjects under which a relay publishes. Public name of `liveness.integrations.relay.subjects`; see docs/relay.md."""

from liveness.integrations.relay.subjects import (
    ALL,
    EVENTS,
    MESSAGE_ID_HEADER,
    NAME_BYTES_MAX,
    NO_NAMESPACE,
    RESCHEDULES,
    EventSubject,
    RescheduleSubject,
    event_subject,
    events_subject,
    name_of,
    reschedules_subject,
    subject_of,
    token_of,
)

__all__ = [
    "ALL",
    "EVENTS",
    "MESSAGE_ID_HEADER",
    "NAME_BYTES_MAX",
    "NO_NAMESPACE",
    "RESCHEDULES",
    "EventSubject",
    "RescheduleSubject",
    "event_subject",
    "events_subject",
    "name_of",
    "reschedules_subject",
    "subject_of",
    "token_of",
]
