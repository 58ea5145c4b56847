"""All errors that the SDK raises to a program.

LivenessSdkError
├── CannotStart             the worker did not start
│   ├── ServerAway
│   ├── NamespaceUnknown
│   ├── VersionMismatch
│   └── QuotaReached
├── WorkerEnded             the worker ran and cannot go on
│   ├── WorkerGone
│   ├── SessionReplaced
│   └── WorkerStopped
├── ActivityLost            this worker no longer holds the activity
│   └── LeaseLost
├── ActivityRefused         this worker never held the activity
│   ├── ActivityHeld
│   ├── ActivityFinished
│   ├── ActivityUnknown
│   ├── ActivityDiffers
│   ├── AlreadyBound
│   ├── BindingRefused
│   └── NoNewWork
├── ActivityFailed          the activity ended without a result
├── WorkerUnknown           there is no worker of this key
├── ScheduleUnknown         there is no schedule of this id
├── ScheduleExists          there is one, and it says something else
├── AccessRefused           the server does not let this program do it
│   ├── NotAuthenticated
│   └── NotPermitted
├── InvalidArgument         the program must be changed
│   ├── InvalidCredentials
│   └── NotConvertible
├── CallFailed              any other failure of a call
└── Outcome                 raised by handlers to end an attempt
    ├── GiveUp
    ├── Quarantine
    └── RetryLater
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from liveness.templated_error import TemplatedError

if TYPE_CHECKING:
    from liveness.sdk.values import ActivityRef, ActivityState


class LivenessSdkError(Exception):
    """The base of all errors of the SDK."""


class _TemplatedSdkError(TemplatedError, LivenessSdkError):
    template = "Something went wrong between this program and the liveness server."


class CannotStart(_TemplatedSdkError):
    template = "The worker could not be started."


class ServerAway(CannotStart):
    template = "No liveness server answers at {address}. Is it running? `liveness serve` starts one. (The last error: {detail})"

    address: str
    detail: str


class NamespaceUnknown(CannotStart):
    template = "The server at {address} does not serve the namespace {namespace!r}: {detail}"

    address: str
    namespace: str
    detail: str


class VersionMismatch(CannotStart):
    template = (
        "This SDK (API level {level}) and the server at {address} do not understand each other: {detail}"
    )

    level: int
    address: str
    detail: str


class QuotaReached(CannotStart):
    template = "The server takes no more workers: {detail}"

    detail: str


class WorkerEnded(_TemplatedSdkError):
    template = "The worker cannot go on."


class WorkerGone(WorkerEnded):
    template = (
        "Worker {worker} was cleaned up, and the server, which is of an older version, refuses its instance key.\n"
        "Update the server, start under another key, or leave the key to the SDK."
    )

    worker: str


class SessionReplaced(WorkerEnded):
    template = (
        "Another process runs as worker {worker} now, so this one has stopped its work.\n"
        "Each process needs an instance key of its own."
    )

    worker: str


class WorkerStopped(WorkerEnded):
    template = "Worker {worker} does not run: it was stopped, or never started."

    worker: str


class ActivityLost(_TemplatedSdkError):
    template = "{activity} is no longer held by this worker: {reason}"

    activity: ActivityRef
    reason: str


class LeaseLost(ActivityLost):
    template = "{activity} is no longer held by this worker, because its lease is over: {reason}"


class ActivityRefused(_TemplatedSdkError):
    template = "{activity} was not given to this worker: {detail}"

    activity: ActivityRef
    detail: str


class ActivityHeld(ActivityRefused):
    template = "{activity} is held by another worker: {detail}"


class ActivityFinished(ActivityRefused):
    template = "{activity} is finished already: {detail}"


class ActivityUnknown(ActivityRefused):
    template = "{activity} is not known: {detail}"


class ActivityDiffers(ActivityRefused):
    template = "{activity} was scheduled before with different contents: {detail}"


class AlreadyBound(ActivityRefused):
    template = "{activity} is already held by this worker."

    detail: str = ""


class BindingRefused(ActivityRefused):
    template = "The server takes no more bindings of this worker, so {activity} is not bound: {detail}"


class NoNewWork(ActivityRefused):
    template = "{activity} was not given to this worker, which is paused or drained: {detail}"


class ActivityFailed(_TemplatedSdkError):
    template = "{activity} has no result, because it is {state}: {detail}"

    activity: ActivityRef
    state: ActivityState
    detail: str


class WorkerUnknown(_TemplatedSdkError):
    template = "There is no worker {worker} in the namespace {namespace}: {detail}"

    worker: str
    namespace: str
    detail: str


class ScheduleUnknown(_TemplatedSdkError):
    template = "There is no schedule {schedule} in the namespace {namespace}: {detail}"

    schedule: str
    namespace: str
    detail: str


class ScheduleExists(_TemplatedSdkError):
    template = "Schedule {schedule} exists in the namespace {namespace} and says something else: {detail}"

    schedule: str
    namespace: str
    detail: str


class AccessRefused(_TemplatedSdkError):
    template = "The server at {address} refused {call}: {detail}"

    address: str
    call: str
    detail: str


class NotAuthenticated(AccessRefused):
    template = "The server at {address} does not know who calls {call}: {detail} Set token= or LIVENESS_TOKEN_FILE to a valid token."


class NotPermitted(AccessRefused):
    template = "The server at {address} does not permit {call}: {detail} Ask its operator for a grant, or use another token."


class InvalidArgument(_TemplatedSdkError):
    template = "The server refused the request: {detail}"

    detail: str


class InvalidCredentials(InvalidArgument):
    """A token, certificate or key cannot be read, or must not be sent."""

    template = "The credentials cannot be used: {detail}."


class NotConvertible(InvalidArgument):
    """A value has no payload, or a payload is no value of the type that is asked for."""

    template = "{detail}."


class CallFailed(_TemplatedSdkError):
    template = "{call} failed: {detail} ({code})"

    call: str
    detail: str
    code: str


class Outcome(LivenessSdkError):
    """How an attempt ends. A plain exception, so that programs can subclass the two below as they like."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    # A subclass may have other parameters than `args` holds.
    __reduce__ = TemplatedError.__reduce__


class GiveUp(Outcome):
    """The activity is not to be tried again."""


class Quarantine(Outcome):
    """The activity waits for an operator, who retries or cancels it."""


class RetryLater(Outcome):
    """The activity is to be tried again after `after` seconds, whatever its retry policy says."""

    def __init__(self, why: str, after: float) -> None:
        super().__init__(why)
        self.after = after
