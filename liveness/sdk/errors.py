"""What can go wrong for a program that uses the SDK. Each class's docstring is its message; fields fill the braces.

LivenessSdkError
├── CannotStart             the worker never came to be
│   ├── ServerAway
│   ├── NamespaceUnknown
│   ├── VersionMismatch
│   └── QuotaReached
├── WorkerEnded             it was, and cannot go on
│   ├── WorkerGone
│   ├── SessionReplaced
│   └── WorkerStopped
├── ActivityLost            what was held is held no more
│   └── LeaseLost
├── ActivityRefused         it was never held
│   ├── ActivityHeld
│   ├── ActivityFinished
│   ├── ActivityUnknown
│   ├── ActivityDiffers
│   ├── AlreadyBound
│   ├── BindingRefused
│   └── NoNewWork
├── InvalidArgument         the program must change
├── CallFailed              the server's answer was none of the above
└── Outcome                 raised by handlers, to say how an attempt ends
    ├── GiveUp
    └── RetryLater
"""

from __future__ import annotations

from inspect import cleandoc


class LivenessSdkError(Exception):
    """Something went wrong between this program and the liveness server."""

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__(cleandoc(type(self).__doc__ or "").format(**fields))


class CannotStart(LivenessSdkError):
    """The worker could not be started."""


class ServerAway(CannotStart):
    """No liveness server answers at {address}. Is it running? `liveness serve` starts one. (What was seen: {detail})"""


class NamespaceUnknown(CannotStart):
    """The server at {address} does not serve the namespace {namespace!r}: {detail}"""


class VersionMismatch(CannotStart):
    """This SDK (API level {level}) and the server at {address} do not understand each other: {detail}"""


class QuotaReached(CannotStart):
    """The server takes no more workers: {detail}"""


class WorkerEnded(LivenessSdkError):
    """The worker cannot go on."""


class WorkerGone(WorkerEnded):
    """Worker {worker} was silent for so long that it was cleaned up, and its instance key is refused from now on.
    Start under another key, or leave the key to the SDK."""


class SessionReplaced(WorkerEnded):
    """Another process runs as worker {worker} now, so this one has stopped its work.
    Each process needs an instance key of its own."""


class WorkerStopped(WorkerEnded):
    """Worker {worker} does not run: it was stopped, or never started."""


class ActivityLost(LivenessSdkError):
    """{activity} is no longer held by this worker: {reason}"""


class LeaseLost(ActivityLost):
    """{activity} is no longer held by this worker, because its lease is over: {reason}"""


class ActivityRefused(LivenessSdkError):
    """{activity} cannot be had: {detail}"""


class ActivityHeld(ActivityRefused):
    """{activity} is held by another worker: {detail}"""


class ActivityFinished(ActivityRefused):
    """{activity} is finished already: {detail}"""


class ActivityUnknown(ActivityRefused):
    """{activity} is not known: {detail}"""


class ActivityDiffers(ActivityRefused):
    """{activity} was scheduled before, and not like this: {detail}"""


class AlreadyBound(ActivityRefused):
    """{activity} is held by this very worker already."""


class BindingRefused(ActivityRefused):
    """The server takes no more bindings of this worker, so {activity} is not bound: {detail}"""


class NoNewWork(ActivityRefused):
    """{activity} cannot be had while this worker is paused or drained: {detail}"""


class InvalidArgument(LivenessSdkError):
    """The server refused what it was sent: {detail}"""


class CallFailed(LivenessSdkError):
    """{call} failed: {detail} ({code})"""


class Outcome(LivenessSdkError):
    """How an attempt ends."""

    def __init__(self, why: str) -> None:
        self.why = why
        self.fields = {"why": why}
        Exception.__init__(self, why)


class GiveUp(Outcome):
    """The activity is not to be tried again."""


class RetryLater(Outcome):
    """The activity is to be tried again after so many seconds, whatever its retry policy says."""

    def __init__(self, why: str, after: float) -> None:
        super().__init__(why)
        self.after = after
