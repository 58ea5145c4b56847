"""What clients know for certain about their workers, kept outside the server.

Each worker has a set of views that may be true: one view while every call was answered, more views while a call is in
doubt. An answer, or a read of the worker, must agree with one of the views; that view is the true one from then on.
An answer that agrees with no view is a violation: an acknowledged change was lost, half of a call was applied, or a
lease ended early.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from liveness.v1 import service_pb2, worker_pb2
from tests.system.server.server_process import ServerLike

NAMESPACE = "crash"
TASK_QUEUE = "queue"
ACTIVE, INACTIVE = worker_pb2.WORKER_STATE_ACTIVE, worker_pb2.WORKER_STATE_INACTIVE
REGISTERED, RENEWED, REPEATED, SESSION_REPLACED, RESURRECTED = (
    worker_pb2.HEARTBEAT_OUTCOME_REGISTERED,
    worker_pb2.HEARTBEAT_OUTCOME_RENEWED,
    worker_pb2.HEARTBEAT_OUTCOME_REPEATED,
    worker_pb2.HEARTBEAT_OUTCOME_SESSION_REPLACED,
    worker_pb2.HEARTBEAT_OUTCOME_RESURRECTED,
)
LEASE_EXPIRED, SHUTDOWN = worker_pb2.INACTIVE_REASON_LEASE_EXPIRED, worker_pb2.INACTIVE_REASON_SHUTDOWN

Names = frozenset[str]
NOTHING: Names = frozenset()


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat as the client sends it. Activities are named by their workflow ids, each used once."""

    key: str
    session: str
    sequence: int
    lease_ms: int
    bound: Names = NOTHING
    unbound: Names = NOTHING

    def message(self) -> worker_pb2.WorkerHeartbeat:
        beat = worker_pb2.WorkerHeartbeat(
            worker_instance_key=self.key,
            session_id=self.session,
            sequence=self.sequence,
            task_queue=TASK_QUEUE,
            bound_activities=map(activity_ref, sorted(self.bound)),
            unbound_activities=map(activity_ref, sorted(self.unbound)),
        )
        beat.lease_duration.FromMilliseconds(self.lease_ms)
        return beat


def activity_ref(name: str) -> worker_pb2.ActivityRef:
    return worker_pb2.ActivityRef(
        workflow_id=name, run_id="run", activity_id="activity", attempt=1, token=name.encode()
    )


def names(refs: Iterable[worker_pb2.ActivityRef]) -> Names:
    found = list(refs)
    for ref in found:
        whole = activity_ref(ref.workflow_id)
        whole.task_queue = TASK_QUEUE
        assert ref == whole, f"{ref} is not the activity that was bound"
    return frozenset(ref.workflow_id for ref in found)


@dataclass(frozen=True, slots=True)
class Loss:
    """Activities that must be rescheduled, once each."""

    epoch: int
    activities: Names


@dataclass(frozen=True, slots=True)
class View:
    """The state of a worker at the server, if a certain set of calls was applied."""

    session: str
    sequence: int
    epoch: int
    lease_ms: int
    beat_at: float = field(compare=False)
    """Just before its last heartbeat was sent."""
    bindings: Names = NOTHING
    cancelled: Names = NOTHING
    """Lost activities that the worker has not unbound since."""
    ended: int = 0
    """Why it is INACTIVE; 0 while it is ACTIVE."""
    losses: tuple[Loss, ...] = ()
    lapsed: tuple[tuple[int, float], ...] = field(default=(), compare=False)
    """For each expired lease: its duration, and when its last heartbeat was sent."""

    def over(self, reason: int) -> View:
        """Return the view after the lease has ended; unchanged if it had ended before."""
        if self.ended:
            return self
        lapsed = (*self.lapsed, (self.lease_ms, self.beat_at)) if reason == LEASE_EXPIRED else self.lapsed
        return replace(
            self,
            bindings=NOTHING,
            cancelled=self.cancelled | self.bindings,
            ended=reason,
            losses=self.with_loss(self.bindings),
            lapsed=lapsed,
        )

    def with_loss(self, activities: Names) -> tuple[Loss, ...]:
        return (*self.losses, Loss(self.epoch, activities)) if activities else self.losses


def after(view: View | None, beat: Beat, at: float) -> tuple[int, View]:
    """Return the outcome that a heartbeat must have, and the view after it."""
    if view is None:
        return REGISTERED, View(beat.session, beat.sequence, 1, beat.lease_ms, at, beat.bound)
    same_session = beat.session == view.session
    if same_session and beat.sequence == view.sequence:
        return REPEATED, view
    if same_session and not view.ended:
        return RENEWED, replace(
            view,
            sequence=beat.sequence,
            lease_ms=beat.lease_ms,
            beat_at=at,
            bindings=view.bindings - beat.unbound | beat.bound,
            cancelled=view.cancelled - beat.unbound,
        )
    lost = NOTHING if view.ended else view.bindings - beat.bound
    return RESURRECTED if view.ended else SESSION_REPLACED, replace(
        view,
        session=beat.session,
        sequence=beat.sequence,
        epoch=view.epoch + 1,
        lease_ms=beat.lease_ms,
        beat_at=at,
        bindings=beat.bound,
        cancelled=view.cancelled if view.ended else NOTHING,
        ended=0,
        losses=view.with_loss(lost),
    )


class Ledger:
    def __init__(self, server: ServerLike) -> None:
        self._server = server
        self._possible: dict[str, list[View | None]] = {}
        self.violations: list[str] = []
        self.acked = 0
        self.in_doubt = 0
        self.in_doubt_applied = 0
        self.no_answers_after: float | None = None
        """Heartbeats sent later than this must not be acknowledged."""
        self._lapses_checked: Counter[str] = Counter()

    def keys(self) -> list[str]:
        return list(self._possible)

    def view(self, key: str) -> View | None:
        """Return the certain view. Call it only when nothing is in doubt, except why the worker is INACTIVE."""
        possible = self._possible.get(key, [None])
        first = possible[0]
        assert all(
            first is not None
            and view is not None
            and first.ended
            and view == replace(first, ended=view.ended)
            for view in possible[1:]
        ), f"{key} is in doubt"
        return first

    @property
    def lapses(self) -> int:
        return self._lapses_checked.total()

    def lapsed(self, prefix: str = "") -> list[str]:
        """Return the workers that lost a lease by silence, or by what the server took for silence."""
        return [key for key, lapses in self._lapses_checked.items() if lapses and key.startswith(prefix)]

    def doubtful(self) -> list[str]:
        return [key for key, possible in self._possible.items() if len(possible) > 1]

    def violate(self, what: str) -> None:
        self.violations.append(what)

    # -- calls

    def beat_answered(self, beat: Beat, sent_at: float, result: worker_pb2.HeartbeatResult) -> None:
        told = (result.outcome, result.lease_epoch, result.granted_lease_duration.ToMilliseconds())
        cancelled = names(result.cancel_activities)

        def agrees(view: View | None) -> View | None:
            outcome, now = after(view, beat, sent_at)
            if result.outcome == REPEATED and self._server.repeats_calls:
                outcome = REPEATED  # the node that forwarded it lost the first answer, and sent it again
            expected = (outcome, now.epoch, now.lease_ms)
            state = INACTIVE if now.ended else ACTIVE
            return now if (told, cancelled, result.state) == (expected, now.cancelled, state) else None

        self._settle(beat.key, agrees, lambda: f"the answer {told} to {beat}")
        self.acked += 1
        if self.no_answers_after is not None and sent_at > self.no_answers_after:
            self.violate(f"{beat.key}: acknowledged a heartbeat that cannot have been committed")

    def beat_in_doubt(self, beat: Beat, sent_at: float) -> None:
        self._doubt(beat.key, lambda view: after(view, beat, sent_at)[1])

    def goodbye_answered(self, key: str, response: service_pb2.ShutdownWorkerResponse) -> None:
        def agrees(view: View | None) -> View | None:
            if view is None or response.state != INACTIVE:
                return None
            moved = len(view.bindings)
            return view.over(SHUTDOWN) if response.rescheduled_activities == moved else None

        self._settle(key, agrees, lambda: f"the answer {response} to a goodbye")
        self.acked += 1

    def goodbye_in_doubt(self, key: str) -> None:
        self._doubt(key, lambda view: view and view.over(SHUTDOWN))

    # -- reads

    def seen(self, key: str, worker: worker_pb2.Worker | None) -> View | None:
        """Record the worker as the server shows it; None if the server has no such worker."""

        def agrees(view: View | None) -> View | None:
            return view if view is not None and worker is not None and _shows(worker, view) else None

        possible = self._possible.get(key, [None])
        if worker is None and None in possible:
            self._possible[key] = [None]
            return None
        found = self._settle(key, agrees, lambda: f"what the server shows: {worker}")
        if len(possible) > 1 and found is not None and found not in _perhaps_lapsed(possible[:1]):
            self.in_doubt_applied += 1
        return found

    # -- internals

    def _doubt(self, key: str, apply: Callable[[View | None], View | None]) -> None:
        self.in_doubt += 1
        possible = self._possible.get(key, [None])
        applied = [apply(view) for view in _perhaps_lapsed(possible)]
        self._possible[key] = [*possible, *(view for view in applied if view not in possible)]

    def _settle(
        self, key: str, agrees: Callable[[View | None], View | None], what: Callable[[], str]
    ) -> View | None:
        possible = self._possible.get(key, [None])
        agreeing: list[View] = []
        for view in _perhaps_lapsed(possible):
            now = agrees(view)
            if now is not None and now not in agreeing:
                agreeing.append(now)
        if agreeing:
            # Several views can agree: a worker without bindings that shuts down is not told whether its lease had
            # expired before.
            self._possible[key] = list(agreeing)
            if len(agreeing) == 1:
                self._check_lapses(key, agreeing[0])
            return agreeing[0]
        self.violate(f"{key}: {what()} agrees with none of {possible}")
        self._possible[key] = possible[:1]
        return None

    def _check_lapses(self, key: str, view: View) -> None:
        """Check that an expired lease lasted: its duration must have passed while the server listened."""
        for lease_ms, beat_at in view.lapsed[self._lapses_checked[key] :]:
            self._lapses_checked[key] += 1
            passed_ms = self._server.listening_ms(beat_at, time.monotonic())
            if passed_ms < lease_ms:
                self.violate(f"{key}: a lease of {lease_ms} ms ended after at most {passed_ms:.0f} ms")


def _perhaps_lapsed(possible: Iterable[View | None]) -> Iterator[View | None]:
    """Yield the views in which leases may have expired, the more likely view first."""
    views = list(possible)
    yield from views
    for view in views:
        if view is not None and not view.ended:
            yield view.over(LEASE_EXPIRED)


def _shows(worker: worker_pb2.Worker, view: View) -> bool:
    shown = (
        worker.session_id,
        worker.sequence,
        worker.lease_epoch,
        worker.granted_lease_duration.ToMilliseconds(),
        worker.state,
        worker.inactive_reason,
        names(worker.bound_activities),
        names(worker.cancel_activities),
    )
    return shown == (
        view.session,
        view.sequence,
        view.epoch,
        view.lease_ms,
        INACTIVE if view.ended else ACTIVE,
        view.ended,
        view.bindings,
        view.cancelled,
    )
