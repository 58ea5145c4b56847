"""Interceptors read the calls that say something about workers, and record it. A call that they cannot read passes all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import structlog

from liveness.background import BackgroundTasks
from liveness.bridges.temporal import messages
from liveness.bridges.temporal.binding_record import NotRecordable, record_of
from liveness.bridges.temporal.hints import ConnectionHints
from liveness.bridges.temporal.messages import Caller, Completion, HandedOut
from liveness.bridges.temporal.proxy import Call, Interceptor
from liveness.bridges.temporal.recorder import Recorder
from liveness.bridges.temporal.rescue import RescueRefused, TemporalAway, rescue
from liveness.bridges.temporal.rescuer import Rescuer
from liveness.bridges.temporal.statistics import EAGER, POLL, BridgeStatistics
from liveness.bridges.temporal.upstream import Upstream
from liveness.bridges.temporal.wire import Malformed
from liveness.bridges.temporal.worker_entry import WorkerEntry
from liveness.clock import Clock, wait_or_timeout

logger = structlog.get_logger("liveness.bridge")

_ENDED_CODES = frozenset({grpc.StatusCode.NOT_FOUND})
"""The attempt of the call is over, too, if Temporal answers so."""

_REFUSED_CODES = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
"""Temporal does not let the client do it."""
CLOSE_TIMEOUT_MS = 2_000


class Interceptors:
    def __init__(
        self,
        recorder: Recorder,
        rescuer: Rescuer,
        upstream: Upstream,
        hints: ConnectionHints,
        statistics: BridgeStatistics,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._recorder = recorder
        self._rescuer = rescuer
        self._upstream = upstream
        self._hints = hints
        self._statistics = statistics
        self._tasks = BackgroundTasks("temporal bridge")

    def table(self) -> dict[str, Interceptor]:
        return {
            "PollActivityTaskQueue": self._poll_activity,
            "DescribeNamespace": self._describe_namespace,
            "PollWorkflowTaskQueue": self._poll_workflow,
            "RespondWorkflowTaskCompleted": self._complete_workflow_task,
            "StartActivityExecution": self._start_standalone,
            "RespondActivityTaskCompleted": self._end_attempt,
            "RespondActivityTaskFailed": self._end_attempt,
            "RespondActivityTaskCanceled": self._end_attempt,
            "RespondActivityTaskCompletedById": self._end_attempt_by_id,
            "RespondActivityTaskFailedById": self._end_attempt_by_id,
            "RespondActivityTaskCanceledById": self._end_attempt_by_id,
            "RecordActivityTaskHeartbeat": self._activity_heartbeat,
            "RecordWorkerHeartbeat": self._worker_heartbeat,
            "ShutdownWorker": self._shut_down,
        }

    async def close(self) -> None:
        """Give back what is about to be given back, but do not wait long for Temporal."""
        await wait_or_timeout(asyncio.ensure_future(self._tasks.wait()), self._clock, CLOSE_TIMEOUT_MS)
        await self._tasks.close()

    def _hear(self, call: Call, caller: Caller | None) -> WorkerEntry | None:
        """Note a call of a worker, if Temporal has served its client before: nobody whom Temporal refuses is recorded."""
        if caller is None or caller.namespace not in self._upstream.channel(call.peer).admitted:
            return None
        return self._recorder.hear(caller)

    def _admit(self, call: Call, namespace: str) -> None:
        """Note that Temporal has served a client."""
        if namespace:
            self._upstream.channel(call.peer).admitted.add(namespace)
            self._upstream.note_authorization(namespace, call.metadata)
            self._rescuer.serve(namespace)

    async def _describe_namespace(self, call: Call) -> bytes:
        """Every SDK asks this before it polls."""
        answer = await call.pass_on()
        self._admit(call, _read(messages.read_namespace, call.request) or "")
        return answer

    async def _poll_workflow(self, call: Call) -> bytes:
        caller = _read(messages.read_poll, call.request)
        entry = self._hear(call, caller)
        with self._hints.open_call(entry, call.peer):
            answer = await self._poll(call, entry)
        if caller is not None:
            self._admit(call, caller.namespace)
        return answer

    async def _poll_activity(self, call: Call) -> bytes:
        caller = _read(messages.read_poll, call.request)
        entry = self._hear(call, caller)
        with self._hints.open_call(entry, call.peer):
            answer = await self._poll(call, entry)
        if caller is None:
            return answer
        self._admit(call, caller.namespace)
        entry = entry or self._hear(call, caller)
        if entry is None:
            return answer
        self._hints.note(entry, call.peer)
        task = _read(messages.read_activity_task, answer)
        if task is not None:
            give_back = _GiveBack(self, caller.namespace, entry, task, caller.task_queue)
            call.context.add_done_callback(give_back.on_done)  # type: ignore[arg-type]  # its type names its parameter
            try:
                await self._recorder.bind(entry, task, caller.task_queue, POLL)
            except asyncio.CancelledError:
                give_back.start()
                raise
        return answer

    async def _poll(self, call: Call, entry: WorkerEntry | None) -> bytes:
        """Poll at Temporal. If the client goes away in the moment in which Temporal hands a task out, give the task back. If
        its worker becomes suspect, end the poll, so that nothing is handed to it."""
        polling = asyncio.ensure_future(call.pass_on())
        polls = set() if entry is None else entry.polls
        polls.add(polling)
        polling.add_done_callback(polls.discard)
        try:
            return await asyncio.shield(polling)
        except asyncio.CancelledError:
            if polling.cancelled() and not _is_cancelled():
                await call.context.abort(
                    grpc.StatusCode.UNAVAILABLE, "the worker was not heard; it may poll again"
                )
            if polling.done() and not polling.cancelled() and polling.exception() is None:
                self._give_back_answer(call, polling.result())
            else:
                polling.cancel()
                polling.add_done_callback(lambda done: self._on_late_answer(call, done))
            raise

    def _on_late_answer(self, call: Call, polling: asyncio.Future[bytes]) -> None:
        if not polling.cancelled() and polling.exception() is None:
            self._give_back_answer(call, polling.result())

    def _give_back_answer(self, call: Call, answer: bytes) -> None:
        caller, task = _read(messages.read_poll, call.request), _read(messages.read_activity_task, answer)
        if caller is not None and task is not None:
            _GiveBack(self, caller.namespace, None, task, caller.task_queue).start()

    async def _complete_workflow_task(self, call: Call) -> bytes:
        caller = _read(messages.read_workflow_task_completion, call.request)
        answer = await call.pass_on()
        if caller is None:
            return answer
        self._admit(call, caller.namespace)
        if (entry := self._hear(call, caller)) is not None:
            self._hints.note(entry, call.peer)
            tasks = _read(messages.read_eager_tasks, answer) or []
            await asyncio.gather(*(self._bind_eager(call, caller, entry, task) for task in tasks))
        return answer

    async def _bind_eager(self, call: Call, caller: Caller, entry: WorkerEntry, task: HandedOut) -> None:
        give_back = _GiveBack(self, caller.namespace, entry, task, "")
        call.context.add_done_callback(give_back.on_done)  # type: ignore[arg-type]  # its type names its parameter
        try:
            await self._recorder.bind(entry, task, "", EAGER)
        except asyncio.CancelledError:
            give_back.start()
            raise

    async def _start_standalone(self, call: Call) -> bytes:
        """Its answer may hand the activity out, but does not say to which worker."""
        answer = await call.pass_on()
        if _read(messages.has_eager_task, answer):
            self._statistics.unrecorded["no_worker"] += 1
        return answer

    async def _end_attempt(self, call: Call) -> bytes:
        return await self._end(call, _read(messages.read_completion, call.request))

    async def _end_attempt_by_id(self, call: Call) -> bytes:
        return await self._end(call, _read(messages.read_completion_by_id, call.request))

    async def _end(self, call: Call, completion: Completion | None) -> bytes:
        try:
            answer = await call.pass_on()
        except grpc.aio.AioRpcError as error:
            if completion is not None and error.code() in _ENDED_CODES:
                self._recorder.unbind(completion)
            raise
        if completion is not None:
            self._recorder.unbind(completion)
        return answer

    async def _activity_heartbeat(self, call: Call) -> bytes:
        completion = _read(messages.read_completion, call.request)
        if (
            completion is not None
            and (entry := self._recorder.hear_activity(completion.task_token)) is not None
        ):
            self._hints.note(entry, call.peer)
        return await call.pass_on()

    async def _worker_heartbeat(self, call: Call) -> bytes:
        namespace, beats = _read(messages.read_worker_beats, call.request) or ("", [])

        def record() -> None:
            for beat in beats:
                if (entry := self._recorder.hear_beat(namespace, beat)) is not None:
                    self._hints.note(entry, call.peer)

        return await self._record_if_admitted(call, namespace, record)

    async def _shut_down(self, call: Call) -> bytes:
        shutdown = _read(messages.read_shutdown, call.request)
        if shutdown is None:
            return await call.pass_on()
        return await self._record_if_admitted(
            call, shutdown.namespace, lambda: self._recorder.shut_down(shutdown)
        )

    async def _record_if_admitted(self, call: Call, namespace: str, record: Callable[[], None]) -> bytes:
        """Record at once what a client says that Temporal has served before; otherwise once Temporal has not refused it."""
        is_recorded = namespace in self._upstream.channel(call.peer).admitted
        if is_recorded:
            record()
        try:
            answer = await call.pass_on()
        except grpc.aio.AioRpcError as error:
            if not is_recorded and error.code() not in _REFUSED_CODES:
                record()
            raise
        self._admit(call, namespace)
        if not is_recorded:
            record()
        return answer

    async def give_back(self, namespace: str, task: HandedOut, task_queue: str) -> None:
        """Fail an attempt that no worker has received, so that Temporal gives it to another one at once."""
        try:
            record = record_of(task, "", task_queue)
            outcome = await rescue(
                self._upstream,
                namespace,
                record,
                "the worker that polled was gone before it was handed the attempt",
            )
        except (NotRecordable, TemporalAway, RescueRefused) as error:
            logger.warning(
                "an attempt that no worker received could not be given back",
                namespace=namespace,
                workflow=task.workflow_id,
                activity=task.activity_id,
                why=str(error),
            )
            return
        self._statistics.failed_back += 1
        logger.info(
            "attempt given back", outcome=outcome, workflow=task.workflow_id, activity=task.activity_id
        )

    def start(self, work: Any) -> None:
        self._tasks.start(work)

    def forget_hand_out(self, task: HandedOut) -> None:
        self._recorder.forget_hand_out(task.task_token)


class _GiveBack:
    """Gives an attempt back if its client is gone before the answer has left."""

    def __init__(
        self,
        interceptors: Interceptors,
        namespace: str,
        entry: WorkerEntry | None,
        task: HandedOut,
        task_queue: str,
    ) -> None:
        self._interceptors = interceptors
        self._namespace = namespace
        self._entry = entry
        self._task = task
        self._task_queue = task_queue
        self._is_started = False

    def on_done(self, context: Any) -> None:
        if context.cancelled():
            self.start()

    def start(self) -> None:
        if self._is_started:
            return
        self._is_started = True
        if self._entry is not None:
            self._interceptors.forget_hand_out(self._task)
        self._interceptors.start(self._interceptors.give_back(self._namespace, self._task, self._task_queue))


def _is_cancelled() -> bool:
    """Whether the call itself is cancelled, not only something that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _read(read: Callable[[bytes], Any], message: bytes) -> Any:
    """None if the message cannot be read: it is passed on as it is."""
    try:
        return read(message)
    except Malformed as error:
        logger.warning("a message cannot be read", message=getattr(read, "__name__", ""), why=str(error))
        return None
