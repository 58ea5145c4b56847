"""decide, for components: what a supervisor reports, and what operators order."""

from __future__ import annotations

from typing import NamedTuple

from liveness.domain.component import (
    LEGAL_CHANGES,
    ORDERS_MAX,
    STATUSES_WITH_PROCESS,
    ComponentOrder,
    ComponentStatus,
    OrderAction,
    ProcessExit,
)
from liveness.domain.death_certificate import NO_EVIDENCE, DeathEvidence, issue_certificate
from liveness.domain.decider import check_owner
from liveness.domain.errors import (
    ComponentChangeRefused,
    OrderQuotaExceeded,
    SessionNotCurrent,
    SessionSuperseded,
)
from liveness.domain.events import (
    ComponentChanged,
    ComponentOrdersDone,
    ComponentsOrdered,
    WorkerDeactivated,
    WorkerEvent,
)
from liveness.domain.keys import WorkerKey
from liveness.domain.policy import Policy
from liveness.domain.worker import InactiveReason, Worker, WorkerState

SUPERVISOR_SILENT = "nothing was heard of its supervisor"


class ComponentReport(NamedTuple):
    """What a supervisor says about a component. The fields that `Component` has, too, mean the same."""

    number: int
    status: ComponentStatus
    wall_ms: int
    session_id: str
    reason: str = ""
    by: str = ""
    process_id: int = 0
    process_start_ms: int = 0
    paused: bool = False
    wanted: bool = True
    details: str = ""
    restart_count: int = 0
    restarts: tuple[int, ...] = ()
    last_exit: ProcessExit | None = None
    principal: str = ""
    """Who reports it; empty if callers are not asked."""


def current_status(worker: Worker) -> ComponentStatus | None:
    """The status of a component as far as it can be true: its process is not known to run if the lease has ended without a
    report, or if a later session has begun."""
    component = worker.standing.component
    if component is None:
        return None
    if component.status in STATUSES_WITH_PROCESS and (
        worker.state is not WorkerState.ACTIVE or worker.session_id != component.session_id
    ):
        return ComponentStatus.CRASHED
    return component.status


def report(
    key: WorkerKey,
    worker: Worker,
    report: ComponentReport,
    policy: Policy,
    at_ms: int,
    evidence: DeathEvidence = NO_EVIDENCE,
) -> tuple[WorkerEvent, ...]:
    """Record a report. One that says that there is no process ends the lease."""
    check_owner(key, worker, report.principal)
    component = worker.standing.component
    _check_session(key, worker, report)
    last_number = component.number if component else 0
    if component is not None and report.number == last_number and report.status is component.status:
        return ()  # sent again because the answer was lost
    before = current_status(worker)
    if report.number != last_number + 1:
        why = f"report {report.number} does not follow report {last_number}"
        raise _refused(key, report, why)
    if report.status is not before and report.status not in LEGAL_CHANGES[before]:
        raise _refused(key, report, f"it is {before.name}" if before else "it was never started")
    changed = ComponentChanged(
        number=report.number,
        status=report.status,
        wall_ms=report.wall_ms,
        session_id=report.session_id,
        reason=report.reason,
        by=report.by,
        process_id=report.process_id,
        process_start_ms=report.process_start_ms,
        paused=report.paused,
        wanted=report.wanted,
        details=report.details,
        restart_count=report.restart_count,
        restarts=report.restarts,
        last_exit=report.last_exit,
    )
    if worker.state is not WorkerState.ACTIVE or report.status in STATUSES_WITH_PROCESS:
        return (changed,)
    return changed, _lease_end(worker, report, policy, at_ms, evidence)


def _check_session(key: WorkerKey, worker: Worker, report: ComponentReport) -> None:
    session_id, component = report.session_id, worker.standing.component
    if session_id == worker.session_id:
        return
    if (
        worker.state is WorkerState.CLEANED_UP
        and component is not None
        and session_id == component.session_id
        and report.status not in STATUSES_WITH_PROCESS
    ):
        return  # a tombstone has no session; a component that failed long ago may still be told to stay stopped
    if session_id in worker.superseded:
        raise SessionSuperseded(session_id=session_id, worker=key.instance_key)
    raise SessionNotCurrent(session_id=session_id, worker=key.instance_key)


def _refused(key: WorkerKey, report: ComponentReport, why: str) -> ComponentChangeRefused:
    return ComponentChangeRefused(component=key.instance_key, status=report.status.name, why=why)


def _lease_end(
    worker: Worker, report: ComponentReport, policy: Policy, at_ms: int, evidence: DeathEvidence
) -> WorkerDeactivated:
    is_death = report.status is not ComponentStatus.STOPPED
    # What caused the end is known before the process has ended, if it hung.
    detail = report.reason or str(report.last_exit or "its process ended")
    return WorkerDeactivated(
        reason=InactiveReason.PROCESS_EXITED if is_death else InactiveReason.SHUTDOWN,
        detail=detail,
        at_ms=at_ms,
        cleanup_delay_ms=policy.cleanup_delay_ms,
        certificate=issue_certificate(worker, at_ms, evidence._replace(exit=report.last_exit))
        if is_death
        else None,
        by=report.by,
    )


def order(
    group: str,
    supervisor: Worker,
    action: OrderAction,
    components: tuple[str, ...],
    processes: int,
    reason: str,
    by: str,
    wall_ms: int,
) -> tuple[ComponentsOrdered, ...]:
    """Give an order to the group of a supervisor, also while no supervisor runs."""
    orders = supervisor.standing.orders
    if len(orders.waiting) >= ORDERS_MAX:
        raise OrderQuotaExceeded(group=group, limit=ORDERS_MAX)
    number = orders.last_number + 1
    return (
        ComponentsOrdered(order=ComponentOrder(number, action, components, processes, reason, by, wall_ms)),
    )


def end_orders(supervisor: Worker, through: int) -> tuple[ComponentOrdersDone, ...]:
    """Remove the orders that the supervisor has carried out."""
    if any(order.number <= through for order in supervisor.standing.orders.waiting):
        return (ComponentOrdersDone(through=through),)
    return ()
