"""Reasons for which a supervisor cannot run. Each is one sentence that says what to do."""

from __future__ import annotations

from pathlib import Path

from liveness.templated_error import TemplatedError


class SupervisorError(TemplatedError):
    template = "The supervisor cannot run."


class GroupHeld(SupervisorError):
    template = "A supervisor on {host} runs the group {group}; stop it first, or choose another --name."

    group: str
    host: str


class GroupRunsHere(SupervisorError):
    template = "A supervisor on this machine runs the group {group} (it holds {path}); stop it first, or choose another --name."

    group: str
    path: Path


class StateDirectoryRefused(SupervisorError):
    template = (
        "The supervisor cannot write to its state directory {path} ({detail}); name another with --state-dir."
    )

    path: Path
    detail: str


class GroupLost(SupervisorError):
    template = "Another supervisor has taken the group {group}; its processes here were stopped."

    group: str


class ServerAway(SupervisorError):
    template = "No server answers at {address} ({detail}); start one with `liveness serve`, name it with --address, or use --embedded."

    address: str
    detail: str


class ServerRefused(SupervisorError):
    template = "The server at {address} refuses this supervisor: {detail}"

    address: str
    detail: str


class LauncherKilled(SupervisorError):
    template = "The launcher, which is the parent of all processes, was killed; the supervisor ended them."
