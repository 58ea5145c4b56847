"""One component at work: carries out what its state machine decides, and tells it what happens to the process."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from random import random
from secrets import token_hex

from liveness.clock import Clock
from liveness.domain.component import DETAILS_BYTES_MAX, Component, ComponentStatus, ProcessExit
from liveness.sdk.loop_client import RpcFailure
from liveness.supervisor.actions import Action, Kill, Moment, Remember, Report, SendControl, Signal, Spawn
from liveness.supervisor.child import Child, ChildSpec
from liveness.supervisor.component_reports import ComponentReports
from liveness.supervisor.component_steps import WELL
from liveness.supervisor.health_pipe import BoundActivity, HealthFrame
from liveness.supervisor.jobs import UNNAMED_PART, Jobs
from liveness.supervisor.launcher_client import CannotSpawn, Launcher, LauncherLost, account_variables
from liveness.supervisor.notify_socket import NotifyMessage
from liveness.supervisor.output_log import LogSettings, OutputLog
from liveness.supervisor.probes import (
    Check,
    CommandCheck,
    HttpCheck,
    Probe,
    ProbeResult,
    ProbeSettings,
    TcpCheck,
)
from liveness.supervisor.server_link import ServerLink, session_labels
from liveness.supervisor.sessions import Session
from liveness.supervisor.settings import CheckSettings, GroupSettings, Health
from liveness.supervisor.state_machine import ComponentMachine
from liveness.v1.worker_pb2 import (
    WORKER_STATUS_PAUSED,
    WORKER_STATUS_RUNNING,
    WORKER_STATUS_STARTING,
    WORKER_STATUS_STOPPING,
    ActivityRef,
    HeartbeatResult,
)

logger = logging.getLogger("liveness.supervisor")

NAME_BYTES_MAX = 240
"""Of a job. Names of activities may have 255 bytes."""
DIGEST_CHARS = 16
NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
CANCELLED_MAX = 10
"""So many fit into one control line."""

_WORKER_STATUS = {
    ComponentStatus.STARTING: WORKER_STATUS_STARTING,
    ComponentStatus.HEALTHY: WORKER_STATUS_RUNNING,
    ComponentStatus.PAUSED: WORKER_STATUS_PAUSED,
    ComponentStatus.STOPPING: WORKER_STATUS_STOPPING,
}


class SupervisedComponent:
    def __init__(
        self,
        id: str,
        index: int,
        settings: GroupSettings,
        link: ServerLink,
        launcher: Launcher,
        output: OutputLog,
        clock: Clock,
        environment: Mapping[str, str],
        on_changed: Callable[[SupervisedComponent], None],
    ) -> None:
        """`environment`: of the supervisor, with what is the same for all components. `on_changed` is called after each
        change of status."""
        self.id = id
        self.index = index
        self.settings = settings
        self.machine = ComponentMachine(settings, random)
        self.output = output
        self.current_job = ""
        self.reason = ""
        self.last_exit: ProcessExit | None = None
        self.malformed_lines = 0
        self.stops = 0
        """How often it was ordered to stop."""
        self._link = link
        self._launcher = launcher
        self._clock = clock
        self._environment = environment
        self._on_changed = on_changed
        self._reports = ComponentReports(
            id, link.client, link.sender, link.namespace, clock, self._on_refused_report
        )
        self._child: Child | None = None
        self._session: Session | None = None
        self._jobs: Jobs | None = None
        self._probes: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._snapshot_timer: asyncio.TimerHandle | None = None
        self._spawning: asyncio.Task[None] | None = None
        self._told_pause = False
        self._signalled_pause = False
        self._worker_paused = False
        """What the server says of the worker. It follows the pause of the component, a moment later."""
        self._details: dict[str, object] = {}
        self._cancelled: list[dict[str, object]] = []

    # -- what the group asks for

    def continue_from(self, component: Component) -> None:
        self.machine.resume_from(component, self.now())
        self._reports.continue_from(component)
        self.last_exit, self.reason = component.last_exit, component.reason

    def begin(self) -> None:
        self._do(self.machine.start(self.now()))

    def change_settings(self, settings: GroupSettings, log: LogSettings) -> None:
        before, self.settings = self.settings, settings
        self.machine.settings = settings
        self.output.change_settings(log)
        if self._session is not None:
            self._session.change_lease(settings.lease_ms)
            self._link.sender.poke()
        if self._child is not None and (before.readiness, before.liveness) != (
            settings.readiness,
            settings.liveness,
        ):
            self._start_probes(settings)
        self._do(self.machine.tick(self.now()))

    def stop(self, by: str = "", reason: str = "") -> None:
        self.stops += 1
        self._do(self.machine.stop(self.now(), by, reason))

    def start(self, by: str = "", reason: str = "") -> None:
        self._do(self.machine.start_ordered(self.now(), by, reason))

    def restart(self, by: str = "", reason: str = "") -> None:
        self._do(self.machine.restart(self.now(), by, reason))

    def pause(self, by: str = "", reason: str = "") -> None:
        self._do(self.machine.pause(self.now(), by, reason))

    def resume(self, by: str = "", reason: str = "") -> None:
        self._do(self.machine.resume(self.now(), by, reason))

    def reset(self, by: str = "", reason: str = "") -> None:
        self._do(self.machine.reset(self.now(), by, reason))

    def shut_down(self) -> None:
        self._do(self.machine.shut_down(self.now()))

    def kill(self) -> None:
        """End the process without waiting for its limit."""
        if self._child is not None:
            self._child.signal(signal.SIGKILL)

    async def flush_reports(self) -> None:
        await self._reports.flush()

    def close(self) -> None:
        self._reports.cancel()
        if self._jobs is not None:
            self._jobs.close()
        for timer in (self._timer, self._snapshot_timer):
            if timer is not None:
                timer.cancel()
        self._stop_probes()

    def now(self) -> Moment:
        return Moment(self._clock.monotonic_ms(), self._clock.wall_ms())

    # -- what the machine decides

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Spawn():
                    self._spawning = asyncio.get_running_loop().create_task(self._spawn())
                case Signal(name, whole_group):
                    if self.machine.status in WELL and not whole_group:
                        self._signalled_pause = self.machine.paused
                    if self._child is not None:
                        self._child.signal(signal.Signals[name], whole_group=whole_group)
                case Kill():
                    self.kill()
                case SendControl():
                    self._tell_pause()
                case Report():
                    self._report(action)
                case Remember(reason, by, wall_ms, kept):
                    status = self.machine.status
                    if status is not None:
                        self._reports.report(
                            status, kept, wall_ms, reason=reason, by=by,
                            process_id=self.machine.process_id,
                            process_start_ms=self.machine.process_start_ms, details=self._details_json(),
                        )  # fmt: skip
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_ms = self.machine.next_tick_ms
        if at_ms is not None:
            delay_s = max(at_ms - self._clock.monotonic_ms(), 0) / 1_000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._do(self.machine.tick(self.now()))

    async def _spawn(self) -> None:
        session_id = token_hex(16)
        settings = self.settings
        told_pause = self._is_paused
        try:
            spec = self._spec(session_id)._replace(control={"paused": True} if told_pause else None)
            child = await Child.start(spec, self._launcher, self.output, self, self._clock)
        except (CannotSpawn, LauncherLost, OSError) as error:
            self._begin_session(session_id, 0, 0)
            text = error.text if isinstance(error, CannotSpawn) else str(error)
            self._do(self.machine.spawn_failed(self.now(), text))
            return
        self._child, process_id, start_ms = child, child.pid, child.started_ms
        self._cancelled = []
        self._told_pause = told_pause
        self._signalled_pause = False
        self._details, self.malformed_lines = {}, 0
        self._begin_session(session_id, process_id, start_ms)
        self._do(self.machine.spawned(self.now(), process_id, start_ms))
        self._tell_pause()
        self._start_probes(settings)

    def _spec(self, session_id: str) -> ChildSpec:
        settings = self.settings
        return ChildSpec(
            component_id=self.id,
            session_id=session_id,
            argv=settings.command,
            cwd=settings.directory or str(Path.cwd()),
            user=settings.user or "",
            env={
                **self._environment,
                **(account_variables(settings.user) if settings.user else {}),
                **settings.environment,
                "LIVENESS_TASK_QUEUE": settings.task_queue,
                "LIVENESS_LABELS": json.dumps(session_labels(settings)),
                "LIVENESS_BUILD_ID": settings.build_id,
                "LIVENESS_LEASE": str(settings.lease_ms / 1_000),
                "LIVENESS_GROUP": settings.name,
                "LIVENESS_INDEX": str(self.index),
            },
            # A process that has a watchdog to feed hangs when it does not.
            watchdog_s=settings.health_timeout_ms / 1_000
            if settings.health in (Health.AUTO, Health.NOTIFY)
            else 0.0,
        )

    def _begin_session(self, session_id: str, process_id: int, start_ms: int) -> None:
        session = self._link.new_session(
            self.id, session_id, self.settings, process_id, start_ms, listener=self
        )
        self._session = session
        self._jobs = Jobs(
            self._link.client, self._link.sender, self._link.namespace, self.settings.task_queue, session,
            self._clock, before=self._jobs,
        )  # fmt: skip
        self._reports.begin(session, self._jobs)

    def _report(self, report: Report) -> None:
        if report.exit is not None:
            self.last_exit = report.exit
        self.reason = report.reason
        if self._session is None:
            # The session that an earlier supervisor reported is not known here.
            self._begin_session(token_hex(16), 0, 0)
        self._reports.report(
            report.status, report.kept, report.wall_ms, reason=report.reason, by=report.by,
            process_id=report.process_id, process_start_ms=report.process_start_ms,
            details=self._details_json(), ended=report.exit,
        )  # fmt: skip
        if self._session is not None and report.status in _WORKER_STATUS:
            self._session.describe(status=_WORKER_STATUS[report.status])
            self._link.sender.poke()
        log = (
            logger.warning
            if report.status in (ComponentStatus.CRASHED, ComponentStatus.FAILED)
            else logger.info
        )
        log("%s is %s: %s", self.id, report.status.name.lower(), report.reason)
        if report.status is ComponentStatus.HEALTHY:
            self._signal_pause()
        self._on_changed(self)

    # -- what the process tells

    def on_frame(self, frame: HealthFrame) -> None:
        self.current_job = "" if frame.current_job is None else job_name(str(frame.current_job))
        if self._session is not None and not frame.sends_heartbeats and self._jobs is not None:
            self._jobs.update(self.current_job, [_reference(each) for each in frame.activities or ()])
        if self._session is not None and not self._session.is_over:
            self._link.hand_over(self._session, to_process=frame.sends_heartbeats)
        if frame.telemetry != "{}":
            self._details = json.loads(frame.telemetry)
            self._snapshot_later()
        self._do(self.machine.heard(self.now(), frame.status.name.lower(), by_pipe=True))

    def on_malformed(self, reason: str, count: int) -> None:
        if not self.malformed_lines:
            logger.warning("%s wrote a line that is no health frame: %s", self.id, reason)
        self.malformed_lines += count
        self._snapshot_later()

    def on_health_closed(self) -> None:
        self._do(self.machine.health_closed(self.now()))

    def on_notify(self, message: NotifyMessage) -> None:
        now = self.now()
        if message.status:
            self._details["status_text"] = message.status
            self._snapshot_later()
        if message.main_pid is not None:
            self._details["main_pid"] = message.main_pid
            self._snapshot_later()
        status = "stopping" if message.stopping else ""
        self._do(self.machine.heard(now, status, regular=message.watchdog, by_pipe=False))
        if not self.machine.listens(Health.NOTIFY):
            return
        if message.ready:
            self._do(self.machine.ready(now))
        if message.watchdog_failed:
            self._do(self.machine.liveness_failed(now, "it said that its watchdog has failed"))

    def on_exit(self, ended: ProcessExit) -> None:
        self._child = None
        self.current_job = ""
        self._stop_probes()
        self._do(self.machine.exited(self.now(), ended))

    # -- what the server tells

    def on_answer(self, result: HeartbeatResult) -> None:
        if result.pause != self._worker_paused:
            self._worker_paused = result.pause
            self._tell_pause()
            self._signal_pause()
        if result.cancel_activities and self._jobs is not None:
            self._jobs.drop(result.cancel_activities)
        if result.cancel_activities and self._child is not None:
            self._cancelled = [_names(activity) for activity in result.cancel_activities][:CANCELLED_MAX]
            self._send_control()

    def on_refused(self, failure: RpcFailure) -> None:
        if failure.reason == "WORKER_CLEANED_UP" and self._child is not None:
            self._begin_again()
        else:
            self._on_refused_report(failure)

    def _begin_again(self) -> None:
        """The server was out of reach for so long that it has cleaned the worker up: the same process is a new session of it."""
        machine = self.machine
        self._begin_session(token_hex(16), machine.process_id, machine.process_start_ms)
        if machine.status is not None:
            self._reports.report(
                machine.status, machine.kept, self._clock.wall_ms(), reason="the server had cleaned it up",
                process_id=machine.process_id, process_start_ms=machine.process_start_ms,
                details=self._details_json(),
            )  # fmt: skip

    def _on_refused_report(self, failure: RpcFailure) -> None:
        """Somebody else runs a process under this id: two must not work under one name."""
        if failure.reason in ("SESSION_SUPERSEDED", "SESSION_NOT_CURRENT"):
            logger.error("%s was taken over by another supervisor; its process is stopped here", self.id)
            self._do(self.machine.stop(self.now(), "", "another supervisor runs it"))

    # -- details

    @property
    def _is_paused(self) -> bool:
        return self.machine.paused or self._worker_paused

    def _tell_pause(self) -> None:
        if self._child is not None and self._told_pause != self._is_paused:
            self._told_pause = self._is_paused
            self._send_control()

    def _signal_pause(self) -> None:
        """Signal what the server ordered of the worker. The machine signals what was ordered of the component. A process that
        is not ready may have no handler yet, and would be ended."""
        paused = self._told_pause
        name = self.settings.pause_signal if paused else self.settings.resume_signal
        if self._child is None or self.machine.status not in WELL or paused == self._signalled_pause:
            return
        self._signalled_pause = paused
        if name is not None:
            self._child.signal(signal.Signals[name], whole_group=False)

    def _send_control(self) -> None:
        """Tell the process everything at once: a process that reads late gets the newest line only."""
        if self._child is not None:
            state: dict[str, object] = {"paused": self._told_pause}
            if self._cancelled:
                state["cancel"] = self._cancelled
            self._child.send_control(state)

    def _details_json(self) -> str:
        """What the process tells, and how many of its lines were malformed."""
        counted = {"malformed_lines": self.malformed_lines} if self.malformed_lines else {}
        for details in ({**self._details, **counted}, counted):
            text = json.dumps(details, separators=(",", ":")) if details else ""
            if len(text.encode()) <= DETAILS_BYTES_MAX:
                return text
        return ""

    def _snapshot_later(self) -> None:
        if self._snapshot_timer is None:
            delay_s = self.settings.snapshot_interval_ms / 1_000
            self._snapshot_timer = asyncio.get_running_loop().call_later(delay_s, self._snapshot)

    def _snapshot(self) -> None:
        self._snapshot_timer = None
        self._reports.describe(self._details_json(), self.machine.kept, self._clock.wall_ms())

    # -- checks

    def _start_probes(self, settings: GroupSettings) -> None:
        self._stop_probes()
        loop = asyncio.get_running_loop()
        for check, on_change in (
            (settings.readiness, self._on_readiness),
            (settings.liveness, self._on_liveness),
        ):
            if check is not None:
                probe = Probe(self._check(check), _probe_settings(check), on_change, self._clock)
                self._probes.append(loop.create_task(probe.run()))

    def _check(self, settings: CheckSettings) -> Check:
        if settings.http:
            return HttpCheck(settings.http)
        if settings.tcp:
            host, _, port = settings.tcp.rpartition(":")
            return TcpCheck(host.strip("[]"), int(port))
        spec = self._spec("")
        return CommandCheck(self._launcher, settings.command, spec.env, spec.cwd, spec.user)

    def _stop_probes(self) -> None:
        for probe in self._probes:
            probe.cancel()
        self._probes = []

    def _on_readiness(self, result: ProbeResult) -> None:
        if result.is_healthy:
            self._do(self.machine.ready(self.now(), by_check=True))

    def _on_liveness(self, result: ProbeResult) -> None:
        if not result.is_healthy:
            self._do(self.machine.liveness_failed(self.now(), f"its check failed: {result.reason}"))


def job_name(job: str) -> str:
    """Return a name that the server accepts, and another one for each job."""
    name = NOT_IN_NAMES.sub("?", job)
    if name == job and len(job.encode()) <= NAME_BYTES_MAX:
        return job
    digest = sha256(job.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]
    return f"{name.encode()[: NAME_BYTES_MAX - DIGEST_CHARS - 1].decode(errors='ignore')}-{digest}"


def _probe_settings(check: CheckSettings) -> ProbeSettings:
    return ProbeSettings(check.interval_ms / 1_000, check.timeout_ms / 1_000, check.failures, check.successes)


def _names(activity: ActivityRef) -> dict[str, object]:
    return {
        "workflow_id": activity.workflow_id,
        "run_id": activity.run_id,
        "activity_id": activity.activity_id,
        "attempt": activity.attempt,
    }


def _reference(activity: BoundActivity) -> ActivityRef:
    return ActivityRef(
        workflow_id=activity.workflow_id or activity.activity_id,
        run_id=activity.run_id or UNNAMED_PART,
        activity_id=activity.activity_id if activity.workflow_id else UNNAMED_PART,
        attempt=activity.attempt,
        task_queue=activity.task_queue,
    )
