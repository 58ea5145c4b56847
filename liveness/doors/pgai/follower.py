"""Follows pgai's tables: what workers write there becomes heartbeats, goodbyes and progress of liveness.

One loop, twice a second: hold the door's lease, read, make sure that the lease is still held, tell liveness. A follower that cannot
read counts no silence, and renews the leases of all workers that it knows until it can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import grpc
import structlog

from liveness.background import BackgroundTasks, RepeatedWarning
from liveness.clock import Clock, SystemClock
from liveness.doors.pgai.connection import shown_dsn
from liveness.doors.pgai.counting import count_sequence
from liveness.doors.pgai.database import DatabaseAway, UserDatabase, WorkerState, session_names
from liveness.doors.pgai.door_lease import CALL_TIMEOUT_MS, DoorLease, LivenessAway
from liveness.doors.pgai.followed_worker import (
    ALIVE,
    CUT_OFF,
    DOOR,
    DOOR_LABEL,
    ENDED_BEFORE,
    LAST_LEASE_MS,
    SAID_GOODBYE,
    SESSION_ENDED,
    SILENT,
    FollowedWorker,
)
from liveness.doors.pgai.progress import ProgressReporter
from liveness.doors.pgai.rows import ProcessRow, ProgressRow, Reading
from liveness.doors.pgai.schema import FORCED_SESSION, HEARTBEAT_SESSION
from liveness.doors.pgai.settings import FollowerSettings
from liveness.sdk.loop_client import LivenessClient, RpcFailed, RpcFailure
from liveness.sdk.rpc_failures import failure_of_status
from liveness.v1.service_pb2 import (
    DescribeWorkerRequest,
    ListWorkersRequest,
    RecordWorkerHeartbeatsRequest,
    RecordWorkerHeartbeatsResponse,
    ShutdownWorkerRequest,
)
from liveness.v1.worker_pb2 import WORKER_STATE_ACTIVE, HeartbeatResult, Worker, WorkerHeartbeat

logger = structlog.get_logger("liveness.door")

BATCH_MAX = 500
CALLS_AT_ONCE = 50
CALLS_MS_MAX = 1_000
"""For how long a turn calls liveness for single workers."""
PAGE_SIZE = 1_000
STEP_MS_MAX = 1_500
"""The most silence that passes between two readings. What is longer was no time in which this follower listened."""
SESSION_MISSES = 2
"""In so many readings a session must be missing: the heartbeat that ends a worker in order comes just after its session."""
OFF_SCHEDULE = 0.9
"""A heartbeat that comes before this share of the interval is over was forced by the end of its worker."""
RETRY_MS = 5_000
STANDBY_MS = 1_000
"""How often a follower that does not follow asks whether it may."""
HOLD_MS = 2_000
"""How often the door's lease is renewed at least."""
VIEW_MS = 5_000
"""How often the view is told at least that somebody follows."""


class PgaiFollower:
    def __init__(self, settings: FollowerSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._client = LivenessClient(settings.liveness, settings.credentials)
        self._database = UserDatabase(settings.dsn)
        self._lease = DoorLease(settings, self._client, self._clock)
        self._progress = ProgressReporter(settings.namespace, self._client, self._clock)
        self._workers: dict[str, FollowedWorker] = {}
        self._listed: dict[str, Worker] = {}
        """What liveness knew when this follower began, to tell rows of the past from those that matter."""
        self._passed_over: dict[str, int] = {}
        """Rows of the past, and their numbers of heartbeats."""
        self._read_ms: int | None = None
        """When the last reading ended; None if it failed."""
        self._server_started_s = 0.0
        self._serving_since_s = 0.0
        """Heartbeats from before this time, by the database's clock, came over connections that are gone."""
        self._held_ms = 0
        self._has_list = False
        self._in_view: dict[str, WorkerState] = {}
        self._viewed_ms: int | None = None
        self._away = RepeatedWarning(
            logger, "the database of pgai cannot be read; leases are kept", self._clock
        )
        self._liveness_away = RepeatedWarning(logger, "liveness does not answer the follower", self._clock)
        self._refused = RepeatedWarning(logger, "liveness refuses a pgai worker", self._clock)
        self._tasks = BackgroundTasks("pgai door", on_failure=self._start_again)

    def start(self) -> None:
        """Neither the database nor liveness need be there."""
        self._tasks.start(self._follow())

    def _start_again(self, _: BaseException) -> None:
        """A follower that stops would let all leases end."""
        self._forget_all()
        self._tasks.start(self._follow(RETRY_MS))

    async def stop(self) -> None:
        await self._tasks.close()
        self._database.close()
        await self._lease.give_up()
        self._client.close()

    @property
    def is_following(self) -> bool:
        return bool(self._lease.epoch) and self._read_ms is not None

    def is_silence_counted(self, id: str) -> bool:
        """Whether this follower counts the silence of a worker."""
        worker = self._workers.get(id)
        return worker is not None and self._read_ms is not None and not worker.is_cut_off

    async def _follow(self, delay_ms: int = 0) -> None:
        await self._clock.sleep(delay_ms)
        while True:
            began_ms = self._clock.monotonic_ms()
            try:
                await self.turn()
                self._liveness_away.resolve()
            except LivenessAway as error:
                self._liveness_away.warn(namespace=self._settings.namespace, why=str(error))
            took_ms = self._clock.monotonic_ms() - began_ms
            wait_ms = self._settings.poll_ms if self._lease.epoch else STANDBY_MS
            await self._clock.sleep(max(wait_ms - took_ms, wait_ms / 5))

    async def turn(self) -> None:
        """Read once, and tell liveness what has changed. Raises LivenessAway."""
        if not self._lease.epoch and not await self._take_over():
            return
        if not self._has_list:
            await self._list_workers()
        try:
            reading = await self._database.read(
                [id for id, worker in self._workers.items() if not worker.has_ended]
            )
        except DatabaseAway as error:
            self._away.warn(database=shown_dsn(self._settings.dsn), why=str(error))
            self._read_ms = None
            for worker in self._workers.values():
                worker.had_session = False  # it may have ended with the database
            if await self._is_held():
                await self._keep_leases()
            return
        self._away.resolve()
        self._note(reading)
        # After the reading: whoever follows after this one reads later, so that its numbers are not lower.
        if not await self._is_held():
            return
        await self._tell()
        await self._end_leases()
        await self._progress.report(reading.progress)
        await self._keep_view(reading)

    # -- one follower

    async def _take_over(self) -> bool:
        if not await self._lease.hold():
            self._database.close()
            self._read_ms = None
            return False
        self._held_ms = self._clock.monotonic_ms()
        self._forget_all()
        logger.info(
            "following pgai workers",
            namespace=self._settings.namespace,
            database=shown_dsn(self._settings.dsn),
        )
        return True

    async def _is_held(self) -> bool:
        """Whether the door's lease is held, and was when the last reading ended."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._held_ms < HOLD_MS and not self._has_news():
            return True
        if not await self._lease.hold():
            logger.warning("another server follows the pgai workers", namespace=self._settings.namespace)
            self._forget_all()
            return False
        self._held_ms = now_ms
        return True

    def _has_news(self) -> bool:
        return any(
            worker.needs_count or worker.suspected or worker.says_goodbye for worker in self._workers.values()
        )

    def _forget_all(self) -> None:
        self._workers.clear()
        self._passed_over.clear()
        self._progress.forget()
        self._database.begin()
        self._has_list = False
        self._listed.clear()
        self._in_view.clear()
        self._viewed_ms = None

    async def _list_workers(self) -> None:
        request = ListWorkersRequest(namespace=self._settings.namespace, page_size=PAGE_SIZE)
        while True:
            try:
                page = await self._client.call(
                    lambda endpoint: endpoint.liveness.ListWorkers, request, CALL_TIMEOUT_MS
                )
            except RpcFailed as error:
                raise LivenessAway(str(error)) from None
            for worker in page.workers:
                self._listed[worker.worker_instance_key] = worker
                is_ours = worker.labels.get(DOOR_LABEL) == DOOR and worker.sdk_name == DOOR
                if is_ours and worker.state == WORKER_STATE_ACTIVE:
                    known = FollowedWorker(worker.worker_instance_key)
                    known.adopt(worker)
                    # Enough to keep its lease, not to count: a list may be older than what its shard knows.
                    self._workers.setdefault(known.id, known)
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        self._has_list = True

    # -- what was read

    def _note(self, reading: Reading) -> None:
        now_ms = self._clock.monotonic_ms()
        passed_ms = 0 if self._read_ms is None else min(now_ms - self._read_ms, STEP_MS_MAX)
        self._read_ms = now_ms
        if reading.server_started_s != self._server_started_s:
            # The first reading believes the server; later on, it is another one, or the same after a restart.
            is_first = not self._server_started_s
            self._serving_since_s = reading.server_started_s if is_first else reading.now_s
            self._server_started_s = reading.server_started_s
        progress_s = _progress_times(reading.progress)
        for worker in self._workers.values():
            worker.silent_ms += passed_ms
        seen = set()
        for row in reading.processes:
            seen.add(row.id)
            followed = self._workers.get(row.id) or self._begin(row, reading)
            if followed is not None:
                self._note_row(followed, row, reading, progress_s.get(row.id, 0.0))
        if reading.is_complete:
            gone = [id for id, worker in self._workers.items() if id not in seen and worker.has_ended]
            for id in gone:
                del self._workers[id]
            self._passed_over = {id: n for id, n in self._passed_over.items() if id in seen}

    def _begin(self, row: ProcessRow, reading: Reading) -> FollowedWorker | None:
        """None for a row of the past, which says nothing new."""
        if self._passed_over.get(row.id) == row.heartbeats:
            return None
        is_late = (
            reading.now_s - row.last_heartbeat_s > row.silence_ms / 1_000 and row.id not in self._passed_over
        )
        if is_late and self._is_settled(row):
            self._passed_over[row.id] = row.heartbeats
            return None
        worker = self._workers[row.id] = FollowedWorker(row.id, is_late=is_late)
        self._passed_over.pop(row.id, None)
        return worker

    def _is_settled(self, row: ProcessRow) -> bool:
        """Whether a row of the past has nothing that liveness should be told."""
        listed = self._listed.get(row.id)
        return listed is None or (
            listed.state != WORKER_STATE_ACTIVE and listed.sequence >= count_sequence(row.heartbeats)
        )

    def _note_row(self, worker: FollowedWorker, row: ProcessRow, reading: Reading, progress_s: float) -> None:
        before, worker.row = worker.row, row
        if before is None:
            worker.progress_s = progress_s
            worker.silent_ms = 0
            worker.is_late = reading.now_s - row.last_heartbeat_s > row.silence_ms / 1_000
        elif row.heartbeats != before.heartbeats:
            if row.heartbeats < before.heartbeats:
                worker.is_fenced, worker.counting = False, None
            worker.hear()
            worker.is_late = False
        elif progress_s > worker.progress_s:
            worker.hear()
            worker.wants_renewal = True
        worker.progress_s = max(worker.progress_s, progress_s)
        heard_s = max(worker.progress_s, self._serving_since_s)
        worker.is_cut_off = (
            row.last_heartbeat_s < self._serving_since_s
            and (reading.now_s - heard_s) * 1_000 < self._settings.restart_allowance_ms
            and not row.said_goodbye
        )
        if worker.is_cut_off:
            worker.is_late = False
            worker.silent_ms = 0
            if worker.suspected == SESSION_ENDED:
                worker.suspected, worker.wants_renewal = "", True
        if reading.records_goodbyes:
            worker.says_goodbye = row.said_goodbye
        self._note_session(worker, row, before, reading)

    def _note_session(
        self, worker: FollowedWorker, row: ProcessRow, before: ProcessRow | None, reading: Reading
    ) -> None:
        names = session_names(worker.id, reading.sessions)
        if any(name.startswith(HEARTBEAT_SESSION) for name in names):
            worker.had_session, worker.missed_sessions = True, 0
            worker.heartbeats_in_session = row.heartbeats
            return
        if worker.is_cut_off:
            worker.had_session = False
            if names:
                worker.hear()  # it reports an error
            return
        if not worker.had_session:
            return
        worker.missed_sessions += 1
        if not reading.records_goodbyes:
            # A stock installation does not tell the heartbeat that ends a worker in order from others.
            is_forced = any(name.startswith(FORCED_SESSION) for name in names)
            if row.heartbeats == worker.heartbeats_in_session + 1 and before is not None:
                is_forced = is_forced or (
                    row.last_heartbeat_s - before.last_heartbeat_s < OFF_SCHEDULE * row.interval_ms / 1_000
                    and before.heartbeats < row.heartbeats
                )
            if is_forced:
                worker.says_goodbye = True
                worker.had_session = False
                return
        if worker.missed_sessions < SESSION_MISSES or worker.says_goodbye:
            return
        worker.had_session = False
        if self._settings.hint_ms and not worker.has_ended:
            worker.suspected = worker.suspected or SESSION_ENDED
            worker.wants_renewal = False

    # -- what liveness is told

    async def _tell(self) -> None:
        now_ms = self._clock.monotonic_ms()
        due = [
            worker for worker in self._workers.values() if worker.needs_count and now_ms >= worker.retry_ms
        ]
        # Those that live come first: a takeover may find thousands of rows.
        unknown = sorted((worker for worker in due if not worker.is_fenced), key=lambda each: each.is_late)
        await self._call_for_each(unknown, self._prepare)
        counts = [
            (worker, worker.next_count()[0]) for worker in due if worker.is_fenced and worker.needs_count
        ]
        for worker, outcome in await self._send(counts):
            if isinstance(outcome, RpcFailure):
                self._on_refused(worker, outcome)
                continue
            assert worker.counting is not None
            worker.recorded = worker.counting[1].after
            worker.counted, worker.counting = worker.recorded.counted, None
            worker.verdict = ALIVE
            self._on_recorded(worker, outcome)
            if worker.is_late and worker.row is not None:
                worker.silent_ms = worker.row.silence_ms
        await self._renew(worker for worker in self._workers.values() if self._is_renewal_due(worker))
        await self._say_goodbyes()

    async def _call_for_each(
        self, workers: Sequence[FollowedWorker], call: Callable[[FollowedWorker], Awaitable[None]]
    ) -> None:
        """For a limited time, because the tables are not read meanwhile. Those that are left have their turn in the next one."""
        began_ms = self._clock.monotonic_ms()
        for start in range(0, len(workers), CALLS_AT_ONCE):
            await _gather(map(call, workers[start : start + CALLS_AT_ONCE]))
            if self._clock.monotonic_ms() - began_ms > CALLS_MS_MAX:
                return

    async def _prepare(self, worker: FollowedWorker) -> None:
        """Learn what liveness has recorded, in a way that nothing of an earlier follower can change it afterwards."""
        worker.adopt(await self._describe(worker.id))
        assert worker.row is not None
        if worker.is_counted:
            worker.is_fenced = True
            if worker.has_ended:
                worker.verdict = ENDED_BEFORE
            return
        fence = worker.fence()
        if fence is None:
            worker.is_fenced = True
            return
        ((_, outcome),) = await self._send([(worker, fence)])
        if isinstance(outcome, RpcFailure):
            self._on_refused(worker, outcome)
            return
        self._on_recorded(worker, outcome)
        worker.adopt(await self._describe(worker.id))
        worker.is_fenced = worker.is_known

    def _on_recorded(self, worker: FollowedWorker, result: HeartbeatResult) -> None:
        worker.granted_ms = result.granted_lease_duration.ToMilliseconds()
        worker.renewed_ms = self._clock.monotonic_ms()
        worker.has_ended = result.state != WORKER_STATE_ACTIVE
        worker.wants_renewal = False
        worker.retry_ms = 0

    def _on_refused(self, worker: FollowedWorker, failure: RpcFailure) -> None:
        if failure.is_retryable:
            # It may have been recorded: it is sent again as it was.
            worker.retry_ms = self._clock.monotonic_ms() + failure.retry_after_ms
            return
        worker.is_fenced, worker.counting = False, None
        if failure.reason in ("STALE_HEARTBEAT", "SESSION_SUPERSEDED", "WORKER_CLEANED_UP"):
            worker.retry_ms = self._clock.monotonic_ms() + self._settings.poll_ms
            return
        worker.retry_ms = self._clock.monotonic_ms() + RETRY_MS
        self._refused.warn(namespace=self._settings.namespace, worker=worker.id, why=str(failure))

    def _is_renewal_due(self, worker: FollowedWorker) -> bool:
        if worker.recorded is None or worker.suspected or worker.says_goodbye:
            return False
        if worker.wants_renewal:
            return True
        is_old = self._clock.monotonic_ms() - worker.renewed_ms > worker.granted_ms // 3
        return worker.is_cut_off and is_old and not worker.has_ended

    async def _renew(self, workers: Iterable[FollowedWorker]) -> None:
        for worker, outcome in await self._send([(worker, worker.renewal()) for worker in workers]):
            if isinstance(outcome, RpcFailure):
                self._on_refused(worker, outcome)
            else:
                self._on_recorded(worker, outcome)
                worker.verdict = CUT_OFF if worker.is_cut_off else ALIVE

    async def _keep_leases(self) -> None:
        """While the database cannot be read, no lease ends for silence there."""
        now_ms = self._clock.monotonic_ms()
        kept = []
        for worker in self._workers.values():
            if worker.has_ended or worker.recorded is None or worker.says_goodbye:
                continue
            if worker.suspected == SESSION_ENDED:
                # Sessions end when their database does.
                worker.suspected = ""
            elif worker.suspected or now_ms - worker.renewed_ms <= worker.granted_ms // 3:
                continue
            kept.append(worker)
        await self._renew(kept)

    async def _end_leases(self) -> None:
        """Shorten the leases of silent workers, and of those whose session has ended."""
        due = []
        for worker in self._workers.values():
            if worker.has_ended or worker.recorded is None or worker.needs_count or worker.is_cut_off:
                continue
            silence_ms = worker.row.silence_ms if worker.row is not None else worker.granted_ms
            if not worker.suspected and worker.silent_ms >= silence_ms - LAST_LEASE_MS:
                worker.suspected = SILENT
            if worker.suspected:
                due.append(worker)
        await self._call_for_each(due, self._end_lease)

    async def _end_lease(self, worker: FollowedWorker) -> None:
        found = await self._describe(worker.id)
        if found is None or found.state != WORKER_STATE_ACTIVE:
            worker.has_ended, worker.verdict = True, worker.suspected
            worker.suspected = ""
            return
        if worker.verdict == worker.suspected:
            return  # it has been shortened
        lease_ms = self._settings.hint_ms if worker.suspected == SESSION_ENDED else LAST_LEASE_MS
        ((_, outcome),) = await self._send([(worker, worker.renewal(lease_ms))])
        if not isinstance(outcome, RpcFailure):
            self._on_recorded(worker, outcome)
            worker.verdict = worker.suspected
            logger.info("pgai worker is suspect", worker=worker.id, why=worker.suspected)

    async def _say_goodbyes(self) -> None:
        for worker in list(self._workers.values()):
            if not worker.says_goodbye or worker.has_ended or worker.needs_count or worker.recorded is None:
                continue
            request = ShutdownWorkerRequest(
                namespace=self._settings.namespace,
                worker_instance_key=worker.id,
                session_id=worker.recorded.session_id,
                reason="it has stopped in order",
            )
            try:
                await self._client.call(
                    lambda endpoint: endpoint.liveness.ShutdownWorker, request, CALL_TIMEOUT_MS
                )
            except RpcFailed as error:
                if error.rpc_failure.is_retryable:
                    raise LivenessAway(str(error)) from None
            worker.has_ended, worker.verdict, worker.suspected = True, SAID_GOODBYE, ""

    async def _describe(self, id: str) -> Worker | None:
        try:
            answer = await self._client.call(
                lambda endpoint: endpoint.liveness.DescribeWorker,
                DescribeWorkerRequest(namespace=self._settings.namespace, worker_instance_key=id),
                CALL_TIMEOUT_MS,
            )
        except RpcFailed as error:
            if error.rpc_failure.code is grpc.StatusCode.NOT_FOUND:
                return None
            raise LivenessAway(str(error)) from None
        worker: Worker = answer.worker
        return worker

    async def _send(
        self, beats: list[tuple[FollowedWorker, WorkerHeartbeat]]
    ) -> list[tuple[FollowedWorker, HeartbeatResult | RpcFailure]]:
        """Raises LivenessAway: then any of them may have been recorded."""
        outcomes: list[tuple[FollowedWorker, HeartbeatResult | RpcFailure]] = []
        for start in range(0, len(beats), BATCH_MAX):
            batch = beats[start : start + BATCH_MAX]
            try:
                answer: RecordWorkerHeartbeatsResponse = await self._client.call(
                    lambda endpoint: endpoint.liveness.RecordWorkerHeartbeats,
                    RecordWorkerHeartbeatsRequest(
                        namespace=self._settings.namespace, heartbeats=[beat for _, beat in batch]
                    ),
                    CALL_TIMEOUT_MS,
                )
            except RpcFailed as error:
                raise LivenessAway(str(error)) from None
            for (worker, _), item in zip(batch, answer.items, strict=True):
                is_result = item.WhichOneof("outcome") == "result"
                outcomes.append((worker, item.result if is_result else failure_of_status(item.status)))
        return outcomes

    # -- the view

    async def _keep_view(self, reading: Reading) -> None:
        if not self._database.may_write:
            return
        now_ms = self._clock.monotonic_ms()
        states = {
            worker.id: _view_state(worker) for worker in self._workers.values() if worker.recorded is not None
        }
        changed = {id: state for id, state in states.items() if self._in_view.get(id) != state}
        if not changed and self._viewed_ms is not None and now_ms - self._viewed_ms < VIEW_MS:
            return
        try:
            written = await self._database.write(
                self._lease.session_id, self._lease.epoch, changed, forget=reading.is_complete
            )
        except DatabaseAway as error:
            self._away.warn(database=shown_dsn(self._settings.dsn), why=str(error))
            return
        self._viewed_ms = now_ms
        if written:
            self._in_view = states


def _view_state(worker: FollowedWorker) -> WorkerState:
    verdict = worker.verdict
    if worker.is_cut_off and not worker.has_ended:
        verdict = CUT_OFF
    return WorkerState("INACTIVE" if worker.has_ended else "ACTIVE", worker.granted_ms / 1_000, verdict)


def _progress_times(rows: tuple[ProgressRow, ...]) -> dict[str, float]:
    """By worker: when it last reported progress."""
    times: dict[str, float] = {}
    for row in rows:
        for worker, at_s in ((row.success_worker, row.success_s), (row.error_worker, row.error_s)):
            if worker:
                times[worker] = max(times.get(worker, 0.0), at_s)
    return times


async def _gather(work: Iterable[object]) -> None:
    """Run all, and raise the first failure once all have ended."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):  # type: ignore[call-overload]
        if isinstance(outcome, BaseException):
            raise outcome
