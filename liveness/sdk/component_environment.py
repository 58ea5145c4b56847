"""What a supervisor tells its child through the environment.

The variables outlive the process that they are meant for: whatever it starts inherits them. The first reader therefore notes its
process id beside them, and a process with another id is no component. A forked process is none either.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from threading import Lock
from typing import NamedTuple

COMPONENT_ID = "LIVENESS_COMPONENT_ID"
SESSION_ID = "LIVENESS_SESSION_ID"
ADDRESS = "LIVENESS_ADDRESS"
NAMESPACE = "LIVENESS_NAMESPACE"
TASK_QUEUE = "LIVENESS_TASK_QUEUE"
LABELS = "LIVENESS_LABELS"
BUILD_ID = "LIVENESS_BUILD_ID"
LEASE = "LIVENESS_LEASE"
HEALTH_FD = "LIVENESS_HEALTH_FD"
CONTROL_FD = "LIVENESS_CONTROL_FD"
TAKEN_BY = "LIVENESS_COMPONENT_PROCESS"
"""The session and the process id of the process that is the component."""

OWN_SEQUENCES = 1_000_000
"""The first heartbeat that a component's own worker sends has this number, or a multiple of it if there was another worker before.
Its supervisor has used lower ones in the same session."""


class ComponentEnvironment(NamedTuple):
    component_id: str
    session_id: str
    address: str = ""
    namespace: str = ""
    task_queue: str = ""
    labels: Mapping[str, str] = {}
    build_id: str = ""
    lease_s: float | None = None
    health_fd: int | None = None
    control_fd: int | None = None
    first_sequence: int = OWN_SEQUENCES
    """Of the heartbeats of whoever has taken the session."""


_lock = Lock()
_known: ComponentEnvironment | None = None
_was_read = False
_session_is_taken = False
_times_taken = 0


def component_environment() -> ComponentEnvironment | None:
    """None if this process is no child of a supervisor."""
    global _known, _was_read
    with _lock:
        if not _was_read:
            _known, _was_read = parse_environment(os.environ, os.getpid()), True
            if _known is not None:
                os.environ[TAKEN_BY] = f"{_known.session_id}:{os.getpid()}"
        return _known


def take_session(namespace: str) -> ComponentEnvironment | None:
    """The component whose session the caller may use from now on: one caller at a time, and only in the component's namespace."""
    global _session_is_taken, _times_taken
    environment = component_environment()
    if environment is None or not environment.session_id or environment.namespace != namespace:
        return None
    with _lock:
        if _session_is_taken:
            return None
        _session_is_taken = True
        _times_taken += 1
        return environment._replace(first_sequence=_times_taken * OWN_SEQUENCES)


def give_session_back() -> None:
    """The caller of `take_session` does not use it any more."""
    global _session_is_taken
    with _lock:
        _session_is_taken = False


def parse_environment(variables: Mapping[str, str], process_id: int) -> ComponentEnvironment | None:
    component_id, session_id = variables.get(COMPONENT_ID, ""), variables.get(SESSION_ID, "")
    taken_session, _, taken_process = variables.get(TAKEN_BY, "").rpartition(":")
    is_inherited = bool(taken_process) and taken_session == session_id and taken_process != str(process_id)
    if not component_id or is_inherited:
        return None
    return ComponentEnvironment(
        component_id,
        session_id,
        variables.get(ADDRESS, ""),
        variables.get(NAMESPACE, ""),
        variables.get(TASK_QUEUE, ""),
        _parse_labels(variables.get(LABELS, "")),
        variables.get(BUILD_ID, ""),
        _parse_seconds(variables.get(LEASE, "")),
        _parse_descriptor(variables.get(HEALTH_FD, "")),
        _parse_descriptor(variables.get(CONTROL_FD, "")),
    )


def _parse_descriptor(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _parse_seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _parse_labels(text: str) -> Mapping[str, str]:
    try:
        labels = json.loads(text)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in labels.items()} if isinstance(labels, dict) else {}


def _forget_after_fork() -> None:
    global _lock, _known, _was_read
    _lock = Lock()  # another thread may have held it
    _known, _was_read = None, True


os.register_at_fork(after_in_child=_forget_after_fork)
