"""Tells liveness what the bridge sees: which workers call, what they are handed, what they have finished.

Each worker has at most one heartbeat under way; what happens meanwhile goes into its next one, so that a busy worker stays
below the rate that liveness allows. Heartbeats of a namespace travel in one call. They carry no sequence,
because several bridges may speak for one worker: bindings are added and removed by attempt, in an order that Temporal
itself enforces, since nothing is finished before it was handed out.

While liveness is away, nothing waits for it. What is still true when it is back is told then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc
import structlog

from liveness.background import BackgroundTasks, RepeatedWarning
from liveness.bridges.temporal.binding_record import BindingRecord, NotRecordable, identifier, record_of
from liveness.bridges.temporal.messages import Caller, Completion, HandedOut, Shutdown, WorkerBeat
from liveness.bridges.temporal.settings import BridgeSettings
from liveness.bridges.temporal.statistics import BridgeStatistics
from liveness.bridges.temporal.worker_entry import HELD_MAX, PendingBind, WorkerEntry
from liveness.clock import Clock, wait_or_timeout
from liveness.sdk.loop_client import LivenessClient, RpcFailed, RpcFailure
from liveness.sdk.rpc_failures import failure_of_status
from liveness.v1.service_pb2 import (
    DescribeWorkerRequest,
    ListWorkersRequest,
    RecordWorkerHeartbeatsRequest,
    RecordWorkerHeartbeatsResponse,
    ShutdownWorkerRequest,
    WorkerFilter,
)
from liveness.v1.worker_pb2 import (
    WORKER_STATE_ACTIVE,
    ActivityRef,
    HeartbeatResult,
    Worker,
    WorkerHeartbeat,
)

logger = structlog.get_logger("liveness.bridge")

BATCH_MAX = 500
SPACING_MS = 25
"""Between two heartbeats of one worker: liveness takes 50 a second."""
RENEWAL_SPACING_MS = 500
"""The same if there is nothing to tell but that the worker lives."""
RENEWALS_APART_MS = 100
"""Between two calls that say so: the renewals of many workers travel together."""
RETRY_MS = 500
CALL_TIMEOUT_MS = 2_000
LEASE_MS_MIN = 1_000
"""The shortest lease that liveness grants."""
TICK_MS = 250
STALL_MS = 500
"""A longer time between two ticks was no time in which this bridge listened."""
FORGET_MS = 600_000
"""For how long a worker that is silent, and that liveness has been told about, stays in memory."""
PRUNE_AFTER_MS = 10_000
"""An activity whose worker has had no slot in use for so long is finished, or completed from elsewhere."""
LIVES_MAX = 1_000
QUEUES_MAX = 10_000
LEFT_ALONE_MAX = 10_000
SILENCE = "silence"
PENDING_SEARCHES_MAX = 1_000
SEARCH_BATCH_MAX = 20
SEARCH_REST = 9
"""How many times as long as a search the next one of its namespace waits."""


class Recorder:
    def __init__(
        self, settings: BridgeSettings, client: LivenessClient, clock: Clock, statistics: BridgeStatistics
    ) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._statistics = statistics
        self._workers: dict[tuple[str, str], WorkerEntry] = {}
        self._holders: dict[bytes, WorkerEntry] = {}
        """By task token."""
        self._dirty: dict[tuple[str, str], WorkerEntry] = {}
        self._wake = asyncio.Event()
        self._left_alone: dict[bytes, None] = {}
        """Task tokens that this bridge has handed out without a record, oldest first."""
        self._renewed_ms = clock.monotonic_ms() - RENEWALS_APART_MS
        """When renewals were sent last."""
        self._is_away = False
        self._away_until_ms = 0
        self._intervals: dict[tuple[str, str], int] = {}
        """By namespace and task queue: the heartbeat interval of the worker that told it last."""
        self._searches: dict[str, list[Completion]] = {}
        """By namespace: ended attempts whose worker this bridge does not know."""
        self._tasks = BackgroundTasks("temporal bridge")
        self._warning = RepeatedWarning(logger, "liveness does not answer; hand-outs are not recorded", clock)
        self._refused_warning = RepeatedWarning(logger, "liveness refuses a worker", clock)
        self._unrecorded_warning = RepeatedWarning(logger, "a hand-out is not recorded", clock)

    def start(self) -> None:
        self._tasks.start(self._send_forever())
        self._tasks.start(self._watch_silence())

    async def close(self) -> None:
        await self._tasks.close()

    # -- what the proxy reports

    def hear(self, caller: Caller) -> WorkerEntry | None:
        """Note a call of a worker; None if the call does not say which worker it comes from."""
        if not caller.worker_key or not caller.namespace:
            return None
        entry = self._entry(caller.namespace, caller.worker_key)
        entry.describe_by_poll(caller)
        entry.has_said_goodbye = False
        entry.hear(self._clock.monotonic_ms())
        self._mark(entry)
        return entry

    def hear_beat(self, namespace: str, beat: WorkerBeat) -> WorkerEntry | None:
        if not beat.worker_key or not namespace:
            return None
        now_ms = self._clock.monotonic_ms()
        entry = self._entry(namespace, beat.worker_key)
        known = entry.has_heartbeats, entry.interval_ms, entry.is_stopping
        entry.describe_by_heartbeat(beat)
        if entry.interval_ms and len(self._intervals) < QUEUES_MAX:
            self._intervals[namespace, entry.profile.task_queue] = entry.interval_ms
        if entry.has_said_goodbye and not entry.held:
            entry.heard_ms = now_ms
            return entry  # it is about to end, and its lease has ended already
        entry.has_said_goodbye = False
        self._drop_finished(entry, beat, now_ms)
        entry.hear(now_ms)
        if known != (entry.has_heartbeats, entry.interval_ms, entry.is_stopping):
            entry.is_urgent = True
        self._mark(entry)
        return entry

    def _drop_finished(self, entry: WorkerEntry, beat: WorkerBeat, now_ms: int) -> None:
        """Unbind what the worker cannot hold any more: none of its slots has been in use for a while. This concerns activities
        that are completed from elsewhere, and ends that no bridge could record."""
        if beat.used_activity_slots != 0:
            entry.idle_since_ms = None
            return
        if entry.idle_since_ms is None:
            entry.idle_since_ms = now_ms
        if now_ms - entry.idle_since_ms < PRUNE_AFTER_MS:
            return
        for task_token, since_ms in list(entry.held_since_ms.items()):
            if since_ms < entry.idle_since_ms:
                self._unbind(entry, task_token)

    async def bind(self, entry: WorkerEntry, task: HandedOut, task_queue: str, source: str) -> bool:
        """Record that the worker holds the attempt. Returns once that is durable, or cannot be. Returns whether it is.
        `source`: POLL or EAGER."""
        task_queue = task_queue or entry.profile.task_queue
        if task.opted_out or self._settings.is_left_alone(task_queue, task.activity_type):
            self._leave_alone(task.task_token)
            return False
        try:
            interval_ms = entry.interval_ms or self.likely_interval_ms(entry)
            reference = record_of(task, entry.key, task_queue, interval_ms).reference()
            if len(entry.held) >= HELD_MAX:
                raise NotRecordable("too_many")
        except NotRecordable as error:
            self._leave_alone(task.task_token)
            return self._count_unrecorded(entry, task, str(error))
        recorded: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._hold(entry, task.task_token, reference)
        entry.to_bind[task.task_token] = PendingBind(reference, recorded)
        self._mark(entry)
        if self._is_away:
            return self._count_unrecorded(entry, task, "away")
        if not await wait_or_timeout(recorded, self._clock, self._settings.bind_timeout_ms):
            return self._count_unrecorded(entry, task, "slow")
        if why := recorded.result():
            return self._count_unrecorded(entry, task, why)
        self._statistics.bindings[source] += 1
        return True

    def _count_unrecorded(self, entry: WorkerEntry, task: HandedOut, reason: str) -> bool:
        self._statistics.unrecorded[reason] += 1
        self._unrecorded_warning.warn(
            reason=reason,
            namespace=entry.namespace,
            worker=entry.key,
            workflow=task.workflow_id,
            activity=task.activity_id,
        )
        return False

    def bind_again(self, namespace: str, record: BindingRecord, generation: int) -> None:
        """Bind an attempt once more to a worker that lives, although its lease had ended. `generation`: new for each time."""
        entry = self._entry(namespace, record.worker_key)
        reference = record.reference(generation)
        self._hold(entry, record.task_token, reference)
        recorded: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        entry.to_bind[record.task_token] = PendingBind(reference, recorded)
        self._mark(entry)

    def _leave_alone(self, task_token: bytes) -> None:
        if len(self._left_alone) >= LEFT_ALONE_MAX:
            del self._left_alone[next(iter(self._left_alone))]
        self._left_alone[task_token] = None

    def unbind(self, completion: Completion) -> None:
        """Note that an attempt has ended."""
        if completion.task_token in self._left_alone:
            del self._left_alone[completion.task_token]
            return
        if completion.task_token:
            entry = self._holders.get(completion.task_token)
            if entry is not None:
                if completion.identity == entry.profile.worker_identity:
                    entry.hear(self._clock.monotonic_ms())
                self._unbind(entry, completion.task_token)
            else:
                self._search(completion)
            return
        found = [
            (entry, task_token)
            for task_token, entry in self._holders.items()
            if entry.namespace == completion.namespace and _is_named(entry.held[task_token], completion)
        ]
        for entry, task_token in found:
            self._unbind(entry, task_token)
        if not found:
            self._search(completion)

    def forget_hand_out(self, task_token: bytes) -> None:
        """Unbind an attempt that its worker has not received."""
        if (entry := self._holders.get(task_token)) is not None:
            self._unbind(entry, task_token)

    def hear_activity(self, task_token: bytes) -> WorkerEntry | None:
        """Note that the worker that holds an activity has sent the activity's own heartbeat. None: this bridge does not know it."""
        entry = self._holders.get(task_token)
        if entry is not None:
            entry.hear(self._clock.monotonic_ms())
            self._mark(entry)
        return entry

    def shut_down(self, shutdown: Shutdown) -> None:
        """Note that a worker is stopping. It may still finish what it holds: it says goodbye when that is done."""
        if not shutdown.worker_key or not shutdown.namespace:
            return
        entry = self._entry(shutdown.namespace, shutdown.worker_key)
        entry.is_stopping = True
        entry.hear(self._clock.monotonic_ms())
        entry.is_urgent = True
        self._mark(entry)

    def suspect(self, entry: WorkerEntry, reason: str, grace_ms: int) -> None:
        """Shorten the lease of a worker to `grace_ms`, unless it calls before."""
        if entry.suspected or entry.has_said_goodbye:
            return
        entry.suspected, entry.suspect_lease_ms = reason, max(grace_ms, LEASE_MS_MIN)
        entry.wants_renewal = entry.is_urgent = True
        self._statistics.hints[reason] += 1
        # Nothing is handed to a worker that may be gone. One that lives polls again at once, which restores its lease.
        for poll in tuple(entry.polls):
            poll.cancel()
        logger.info(
            "worker is suspect", namespace=entry.namespace, worker=entry.key, why=reason, grace_ms=grace_ms
        )
        self._mark(entry)

    def likely_interval_ms(self, entry: WorkerEntry) -> int:
        """The heartbeat interval of a worker that has sent none yet: that of its siblings; 0 if it has none."""
        return self._intervals.get((entry.namespace, entry.profile.task_queue), 0)

    def workers(self) -> Iterable[WorkerEntry]:
        return self._workers.values()

    # -- entries

    def _entry(self, namespace: str, key: str) -> WorkerEntry:
        entry = self._workers.get((namespace, key))
        if entry is None:
            now_ms = self._clock.monotonic_ms()
            entry = WorkerEntry(namespace, key, now_ms, first_seen_ms=now_ms)
            self._workers[namespace, key] = entry
            self._statistics.workers = len(self._workers)
        return entry

    def _mark(self, entry: WorkerEntry) -> None:
        worker = entry.namespace, entry.key
        if worker not in self._dirty or entry.has_changes or entry.is_urgent:
            self._dirty[worker] = entry
            self._wake.set()

    def _hold(self, entry: WorkerEntry, task_token: bytes, reference: ActivityRef) -> None:
        entry.held[task_token] = reference
        entry.held_since_ms[task_token] = self._clock.monotonic_ms()
        self._holders[task_token] = entry
        self._statistics.held = len(self._holders)

    def _unbind(self, entry: WorkerEntry, task_token: bytes) -> None:
        reference = entry.held.pop(task_token, None)
        entry.held_since_ms.pop(task_token, None)
        self._holders.pop(task_token, None)
        self._statistics.held = len(self._holders)
        if reference is not None:
            waiting = entry.to_bind.get(task_token)
            if waiting is not None and not entry.is_sending:
                del entry.to_bind[task_token]
            else:
                entry.to_unbind[task_token] = reference
        self._mark(entry)

    async def _load(self, entry: WorkerEntry) -> None:
        """Read what liveness knows about the worker, so that a restart of the bridge, or another one, forgets nothing."""
        try:
            worker = await self._describe(entry.namespace, entry.key)
        except RpcFailed:
            return
        if worker is None:
            entry.is_loaded = True
            return
        entry.load(worker, self._clock.monotonic_ms())
        for task_token in entry.held:
            self._holders[task_token] = entry
        self._statistics.held = len(self._holders)

    def _search(self, completion: Completion) -> None:
        """Look for the worker of an ended attempt that another bridge handed out."""
        if sum(map(len, self._searches.values())) >= PENDING_SEARCHES_MAX:
            return  # what is left bound costs a rescue that finds nothing to do
        waiting = self._searches.setdefault(completion.namespace, [])
        waiting.append(completion)
        if len(waiting) == 1:
            self._tasks.start(self._search_forever(completion.namespace, waiting))

    async def _search_forever(self, namespace: str, waiting: list[Completion]) -> None:
        """Until nothing is left to look for. Ends that come together are looked for together, in a small part of the time."""
        rest_ms = SPACING_MS
        while waiting:
            await self._clock.sleep(rest_ms)
            searched, waiting[:] = waiting[:], []
            started_ms = self._clock.monotonic_ms()
            try:
                await self._search_holders(namespace, searched)
            except RpcFailed:
                pass  # as above
            rest_ms = max(SPACING_MS, SEARCH_REST * (self._clock.monotonic_ms() - started_ms))
        del self._searches[namespace]

    async def _search_holders(self, namespace: str, searched: list[Completion]) -> None:
        """Most attempts are ended by their worker, so that its identity tells which one to ask for. Where that finds nothing, all
        workers that hold something are asked for."""
        identities = {completion.identity for completion in searched if completion.task_token}
        asked: set[str] = set()
        known = [
            entry.key
            for entry in self._workers.values()
            if entry.namespace == namespace and entry.profile.worker_identity in identities
        ]
        searched = await self._search_in(namespace, known, searched)
        if not searched:
            return
        asked.update(known)
        holders = await self._list_holders(namespace)
        for keys in (
            [worker.worker_instance_key for worker in holders if worker.worker_identity in identities],
            [worker.worker_instance_key for worker in holders],
        ):
            searched = await self._search_in(namespace, [key for key in keys if key not in asked], searched)
            asked.update(keys)

    async def _search_in(
        self, namespace: str, keys: list[str], searched: list[Completion]
    ) -> list[Completion]:
        """Unbind what these workers hold of what is searched. Returns what they do not hold."""
        for start in range(0, len(keys), SEARCH_BATCH_MAX):
            if not searched:
                break
            answers = await asyncio.gather(
                *(self._describe(namespace, key) for key in keys[start : start + SEARCH_BATCH_MAX])
            )
            for worker in filter(None, answers):
                searched = [completion for completion in searched if not self._unbind_in(worker, completion)]
        return searched

    def _unbind_in(self, worker: Worker, completion: Completion) -> bool:
        for reference in (*worker.bound_activities, *worker.cancel_activities):
            record = BindingRecord.decode(reference.token)
            if record is not None and record.is_meant_by(completion):
                entry = self._entry(worker.namespace, worker.worker_instance_key)
                self._hold(entry, record.task_token, reference)
                self._unbind(entry, record.task_token)
                return True
        return False

    async def _list_holders(self, namespace: str) -> list[Worker]:
        """The live workers that hold something."""
        found: list[Worker] = []
        request = ListWorkersRequest(
            namespace=namespace, filter=WorkerFilter(states=[WORKER_STATE_ACTIVE]), page_size=1_000
        )
        while True:
            page = await self._client.call(
                lambda endpoint: endpoint.liveness.ListWorkers, request, CALL_TIMEOUT_MS
            )
            found += [worker for worker in page.workers if worker.bound_activity_count]
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    async def _describe(self, namespace: str, key: str) -> Worker | None:
        """None if liveness does not know the worker."""
        try:
            answer = await self._client.call(
                lambda endpoint: endpoint.liveness.DescribeWorker,
                DescribeWorkerRequest(namespace=namespace, worker_instance_key=key),
                CALL_TIMEOUT_MS,
            )
        except RpcFailed as error:
            if error.rpc_failure.code is grpc.StatusCode.NOT_FOUND:
                return None
            raise
        worker: Worker = answer.worker
        return worker

    # -- sending

    async def _send_forever(self) -> None:
        while True:
            wait_ms = self._send_due()
            self._wake.clear()
            if wait_ms is None:
                await self._wake.wait()
            else:
                waiter = asyncio.ensure_future(self._wake.wait())
                try:
                    await wait_or_timeout(waiter, self._clock, wait_ms)
                finally:
                    waiter.cancel()

    def _send_due(self) -> int | None:
        """Send all heartbeats that are due. Returns in how many milliseconds the next one is; None if there is none."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._away_until_ms:
            return self._away_until_ms - now_ms if self._dirty else None
        due: dict[str, list[WorkerEntry]] = {}
        next_ms: int | None = None
        renewals_ms, has_renewals = self._renewed_ms + RENEWALS_APART_MS, False
        for worker, entry in list(self._dirty.items()):
            if entry.is_sending:
                continue  # it is looked at again when the heartbeat is answered
            is_renewal = not (entry.has_changes or entry.is_urgent)
            if is_renewal:
                at_ms = max(entry.sent_ms + RENEWAL_SPACING_MS, entry.retry_ms, renewals_ms)
            else:
                at_ms = max(entry.sent_ms + SPACING_MS, entry.retry_ms)
            if at_ms > now_ms:
                next_ms = at_ms if next_ms is None else min(next_ms, at_ms)
                continue
            has_renewals = has_renewals or is_renewal
            del self._dirty[worker]
            entry.is_sending = True
            due.setdefault(entry.namespace, []).append(entry)
        if has_renewals:
            self._renewed_ms = now_ms
        for namespace, entries in due.items():
            for start in range(0, len(entries), BATCH_MAX):
                self._tasks.start(self._send(namespace, entries[start : start + BATCH_MAX]))
        return None if next_ms is None else max(next_ms - now_ms, 1)

    async def _send(self, namespace: str, entries: list[WorkerEntry]) -> None:
        try:
            await asyncio.gather(*(self._load(entry) for entry in entries if not entry.is_loaded))
            await self._send_heartbeats(namespace, entries)
            for entry in entries:
                if entry.is_stopping and not (entry.held or entry.has_changes or entry.has_said_goodbye):
                    await self._say_goodbye(entry)
        finally:
            for entry in entries:
                entry.is_sending = False
                if entry.has_changes or entry.wants_renewal:
                    self._mark(entry)
                elif not entry.was_heard:
                    self._forget(entry)  # what it holds is known to the bridges that it calls
            self._wake.set()  # what was marked meanwhile was passed over

    async def _send_heartbeats(self, namespace: str, entries: list[WorkerEntry]) -> None:
        now_ms = self._clock.monotonic_ms()
        beats: list[WorkerHeartbeat] = []
        changes = []
        for entry in entries:
            beat, binds, unbinds = entry.next_heartbeat(self._settings)
            entry.wants_renewal = entry.is_urgent = False
            entry.sent_ms = now_ms
            beats.append(beat)
            changes.append((entry, binds, unbinds))
        try:
            answer: RecordWorkerHeartbeatsResponse = await self._client.call(
                lambda endpoint: endpoint.liveness.RecordWorkerHeartbeats,
                RecordWorkerHeartbeatsRequest(namespace=namespace, heartbeats=beats),
                CALL_TIMEOUT_MS,
            )
        except RpcFailed as error:
            self._note_away(error.rpc_failure)
            for entry, binds, _ in changes:
                entry.wants_renewal = True
                _settle(binds, "away")
            return
        self._note_back()
        for (entry, binds, unbinds), item in zip(changes, answer.items, strict=True):
            if item.WhichOneof("outcome") == "result":
                self._on_recorded(entry, binds, unbinds, item.result)
            else:
                self._on_refused(entry, binds, unbinds, failure_of_status(item.status))

    def _on_recorded(
        self,
        entry: WorkerEntry,
        binds: dict[bytes, PendingBind],
        unbinds: dict[bytes, ActivityRef],
        result: HeartbeatResult,
    ) -> None:
        entry.recorded_s = result.server_time.seconds + result.server_time.nanos / 1e9
        for task_token in binds:
            entry.to_bind.pop(task_token, None)
        for task_token in unbinds:
            entry.to_unbind.pop(task_token, None)
        _settle(binds, "")

    def _on_refused(
        self,
        entry: WorkerEntry,
        binds: dict[bytes, PendingBind],
        unbinds: dict[bytes, ActivityRef],
        failure: RpcFailure,
    ) -> None:
        if failure.reason in ("WORKER_CLEANED_UP", "SESSION_SUPERSEDED") and entry.life < LIVES_MAX:
            entry.life += 1
            entry.wants_renewal = True
            return
        if failure.is_retryable:
            entry.wants_renewal = True
            entry.retry_ms = self._clock.monotonic_ms() + max(failure.retry_after_ms, RETRY_MS)
            return
        # It would be refused again. The worker's next call makes the next try.
        self._refused_warning.warn(namespace=entry.namespace, worker=entry.key, why=str(failure))
        for task_token in binds:
            entry.to_bind.pop(task_token, None)
            entry.held.pop(task_token, None)
            entry.held_since_ms.pop(task_token, None)
            self._holders.pop(task_token, None)
        for task_token in unbinds:
            entry.to_unbind.pop(task_token, None)
        _settle(binds, (failure.reason or failure.code.name).lower())

    async def _say_goodbye(self, entry: WorkerEntry) -> None:
        request = ShutdownWorkerRequest(
            namespace=entry.namespace,
            worker_instance_key=entry.key,
            session_id=entry.session_id,
            reason="it has stopped in order",
        )
        try:
            await self._client.call(
                lambda endpoint: endpoint.liveness.ShutdownWorker, request, CALL_TIMEOUT_MS
            )
        except RpcFailed as error:
            if error.rpc_failure.is_retryable:
                entry.wants_renewal = True
                return
        entry.has_said_goodbye = True
        entry.wants_renewal = False

    def _note_away(self, failure: RpcFailure) -> None:
        self._is_away = True
        self._away_until_ms = self._clock.monotonic_ms() + RETRY_MS
        self._warning.warn(why=str(failure))

    def _note_back(self) -> None:
        self._is_away = False
        self._away_until_ms = 0
        self._warning.resolve()

    # -- silence

    async def _watch_silence(self) -> None:
        ticked_ms = self._clock.monotonic_ms()
        while True:
            await self._clock.sleep(TICK_MS)
            now_ms = self._clock.monotonic_ms()
            if now_ms - ticked_ms > STALL_MS:
                # The bridge did not run; workers may have called in vain.
                for entry in self._workers.values():
                    entry.heard_ms += now_ms - ticked_ms - TICK_MS
            ticked_ms = now_ms
            for entry in list(self._workers.values()):
                self._check_silence(entry, now_ms)

    def _check_silence(self, entry: WorkerEntry, now_ms: int) -> None:
        silent_ms = now_ms - entry.heard_ms
        if silent_ms > FORGET_MS + entry.lease_ms(self._settings):
            self._forget(entry)
            return
        if not entry.has_heartbeats or entry.suspected or self._is_away or not entry.recorded_s:
            return
        if entry.has_said_goodbye:
            return
        if silent_ms >= entry.lease_ms(self._settings) - LEASE_MS_MIN and not entry.is_sending:
            entry.is_sending = True
            self._tasks.start(self._end_lease(entry))

    async def _end_lease(self, entry: WorkerEntry) -> None:
        """Shorten the lease of a silent worker to its last second, unless it called through another bridge."""
        heard_ms = entry.heard_ms
        try:
            worker = await self._describe(entry.namespace, entry.key)
        except RpcFailed:
            return  # the next tick tries again
        finally:
            entry.is_sending = False
            self._wake.set()  # it may have had something to send meanwhile
        if worker is None:
            return
        last_s = worker.last_heartbeat_time.seconds + worker.last_heartbeat_time.nanos / 1e9
        if entry.heard_ms > heard_ms:
            return
        if worker.state != WORKER_STATE_ACTIVE:
            entry.suspected = SILENCE
        elif last_s > entry.recorded_s + 0.05:
            entry.recorded_s = last_s
            entry.heard_ms = self._clock.monotonic_ms()
        else:
            self.suspect(entry, SILENCE, LEASE_MS_MIN)

    def _forget(self, entry: WorkerEntry) -> None:
        if entry.is_sending:
            return
        self._workers.pop((entry.namespace, entry.key), None)
        self._dirty.pop((entry.namespace, entry.key), None)
        for task_token in entry.held:
            self._holders.pop(task_token, None)
        self._statistics.workers, self._statistics.held = len(self._workers), len(self._holders)


def _settle(binds: dict[bytes, PendingBind], outcome: str) -> None:
    for bind in binds.values():
        if not bind.recorded.done():
            bind.recorded.set_result(outcome)


def _is_named(reference: ActivityRef, completion: Completion) -> bool:
    if reference.workflow_id != identifier(completion.workflow_id or completion.activity_id):
        return False
    record = BindingRecord.decode(reference.token)
    return record is not None and record.is_meant_by(completion)
