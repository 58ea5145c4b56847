"""The client steps of a walk, which are valid in any order, on a real engine, and the knowledge of the
clients.

The arguments of a step are taken modulo the number of existing things, so that any part of a walk is a valid
walk. With `concurrent` the next step does not wait for the end of this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from liveness.clock import ManualClock
from liveness.domain.errors import FencedOff, LivenessError, Unavailable
from liveness.domain.keys import ActivityKey, WorkerKey, shard_of
from liveness.tasks.sinks import Sink
from liveness.v1 import activity_pb2 as pb
from liveness.v1 import admin_pb2, service_pb2, worker_pb2
from tests.integration.engine.engine import duration
from tests.model.activities.activity_checker import ActivityChecker, Token
from tests.model.activities.activity_engine import (
    ActivityEngine,
    OtherEngine,
    SlowStore,
    WorkerClient,
    WorkerStream,
)
from tests.model.activities.participants import (
    ACTIVITIES,
    KEYS,
    NAMESPACE,
    QUEUES,
    WORKERS,
    Step,
    WalkSettings,
    id_of,
    queue_of,
    ref_to,
    retry_of,
    timeouts_of,
)
from tests.model.workers.state_machine import ModelEnvironment

MAX_DEATHS = 3
DISPATCH_MS = 2_000
STEP_MS = 500
TIMEOUT_S = 20
"""Real seconds after which a call counts as hanging."""


class ClientSteps:
    def __init__(self, environment: ModelEnvironment, walk_settings: WalkSettings) -> None:
        self.environment = environment
        self.walk_settings = walk_settings
        self.seen = environment.seen
        self.clock = ManualClock()
        self.checker = ActivityChecker(self.clock, walk_settings.quota, MAX_DEATHS, environment.seen)
        self.store = SlowStore(environment.database, self.checker)
        self.sink = OtherEngine(self.checker)
        self.routed = True
        self.engine: ActivityEngine
        self.trace: list[str] = []
        self.clients: dict[str, WorkerClient] = {}
        self.former_clients: list[WorkerClient] = []
        self.sessions = 0
        self.tokens: list[Token] = []
        """All tokens that were handed out, newest last."""
        self.given: dict[tuple[ActivityKey, int], Token] = {}
        self.unacknowledged: set[tuple[ActivityKey, int]] = set()
        """Hand-outs whose answer was lost with the shard or the process."""
        self.incarnation = 0
        self.scheduled: set[ActivityKey] = set()
        self.not_recorded: set[bytes] = set()
        """The results of refused completions."""
        self.cancels: set[ActivityKey] = set()
        self.results = 0
        self.resumed = False
        """Whether a worker may have been resumed since the last check."""
        self.calls: set[asyncio.Task[None]] = set()
        self.polls: dict[asyncio.Task[None], tuple[WorkerClient, str]] = {}
        self.loop_errors: list[str] = []

    # -- life cycle

    async def start(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        self.engine = ActivityEngine(self.store, self.clock, self._route)
        self.engine.node.policies.replace("", {
            "max_worker_deaths": MAX_DEATHS, "dispatch_timeout_ms": DISPATCH_MS,
            "max_bindings_per_worker": self.walk_settings.quota, "cleanup_delay_ms": self.walk_settings.cleanup_ms,
        })  # fmt: skip
        await self.engine.start()

    def _route(self, task_queue: str) -> Sink | None:
        return self.sink if self.routed and task_queue == QUEUES[2] else None

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, LivenessError):
            self.loop_errors.append(f"{context.get('message')}: {error!r}")

    def check(self) -> None:
        """Run the checks between two steps."""

    def shard_id(self, name: str) -> int:
        return shard_of(NAMESPACE, name, self.engine.node.shard_count)

    async def take(self, steps: list[Step]) -> None:
        await self.environment.clear()
        await self.start()
        for step in steps:
            self.trace.append(str(step))
            await getattr(self, f"do_{step.name}")(**step.args)
            if step.concurrent:
                await asyncio.sleep(0)
            else:
                await self.settle()
                self.check()
        await self.settle()
        self.check()

    async def shut_down_all(self) -> None:
        """End all tasks and streams, whatever happened."""
        self.store.commits_allowed.set()
        await self.engine.crash()
        for task in (*self.calls, *self.polls, *self.stream_tasks()):
            task.cancel()
        await asyncio.gather(*self.calls, *self.polls, *self.stream_tasks(), return_exceptions=True)
        await self.store.idle()

    def stream_tasks(self) -> list[asyncio.Task[None]]:
        return [c.stream.task for c in (*self.clients.values(), *self.former_clients) if c.stream is not None]

    def launch(self, work: Coroutine[Any, Any, None]) -> None:
        self.calls.add(asyncio.ensure_future(work))

    async def settle(self) -> None:
        """Wait until no call is in progress."""
        self.store.commits_allowed.set()
        node = self.engine.node
        for _ in range(1_000):
            await self.wait_for(*self.calls)
            for task in [task for task in self.calls if task.done()]:
                self.calls.discard(task)
                task.result()
            await self.wait_for(asyncio.ensure_future(self.engine.recovered()))
            await self.wait_for(asyncio.ensure_future(node.barrier().wait()))
            for _ in range(8):
                await asyncio.sleep(0)
            for poll in [poll for poll in self.polls if poll.done()]:
                del self.polls[poll]
                if not poll.cancelled():
                    poll.result()
            if not self.calls and node.barrier().done and len(node.shards()) == node.shard_count:
                break
        else:
            raise AssertionError("the calls never finish")
        await self.store.idle()
        assert not self.loop_errors, self.loop_errors

    async def wait_for(self, *tasks: asyncio.Future[Any]) -> None:
        if tasks:
            broken: asyncio.Future[Any] = self.engine.node.broken
            waiting: asyncio.Future[Any] = asyncio.ensure_future(asyncio.wait(tasks))
            await asyncio.wait((waiting, broken), timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if broken.done():
                raise self.checker.violation or AssertionError(f"the engine stopped: {broken.result()}")
            assert waiting.done(), "a call waits for ever"

    def client(self, who: int) -> WorkerClient:
        name = WORKERS[who % len(WORKERS)]
        if name not in self.clients:
            self.add_client(name)
        return self.clients[name]

    def add_client(self, name: str) -> WorkerClient:
        if name in self.clients:
            self.former_clients.append(self.clients[name])
        self.sessions += 1
        self.clients[name] = WorkerClient(name, f"session-{self.sessions}")
        return self.clients[name]

    def note(self, text: object) -> None:
        self.trace.append(f"    {text}")

    # -- heartbeats

    async def do_beat(self, who: int, kind: str, what: int = 0, lease_ms: int = 4_000) -> None:
        client = self.client(who)
        if kind == "superseded":
            if not self.former_clients:
                return
            client = self.former_clients[what % len(self.former_clients)]
        elif kind in ("replace", "adopt", "mistake") and client.sequence:
            held = client.held
            client = self.add_client(client.name)
            if kind != "replace":
                client.held = dict(held)
        await self.beat_by(client, kind, what, lease_ms)

    async def beat_by(self, client: WorkerClient, kind: str, what: int, lease_ms: int) -> None:
        self.launch(self._beat(client, kind, what, lease_ms))

    async def _beat(self, client: WorkerClient, kind: str, what: int, lease_ms: int) -> None:
        if kind != "again" or not client.sequence:
            client.sequence += 1
        beat = worker_pb2.WorkerHeartbeat(
            worker_instance_key=client.name, session_id=client.session, sequence=client.sequence,
            task_queue=QUEUES[0], lease_duration=duration(lease_ms), full_bindings=kind in ("full", "blank"),
        )  # fmt: skip
        if kind in ("confirm", "full", "adopt"):
            beat.bound_activities.extend(ref_to(token) for token in client.held.values())
        elif kind == "mistake":
            wrong = [token._replace(attempt=token.attempt + 1) for token in client.held.values()]
            beat.bound_activities.extend(ref_to(token) for token in wrong)
        elif kind == "vague":
            beat.bound_activities.extend(ref_to(token, queue=False) for token in client.held.values())
        elif kind == "forget" and client.held:
            token = client.held.pop(sorted(client.held)[what % len(client.held)])
            beat.unbound_activities.append(ref_to(token))
        elif kind == "grab":  # bound by heartbeat, perhaps an activity that another worker holds
            key = KEYS[what % ACTIVITIES]
            attempt = max(1, self.checker.known[key].attempt)
            beat.bound_activities.append(ref_to(Token(key, client.name, 0, attempt)))
        elif kind == "blank":
            client.held = {}
        declared = {(b.workflow_id, b.attempt) for b in beat.bound_activities}
        request = service_pb2.RecordWorkerHeartbeatRequest(namespace=NAMESPACE, heartbeat=beat)
        broken = self.checker.broken_at.get(client.name)
        holding = self.checker.workers[WorkerKey(NAMESPACE, client.name)]
        unconfirmed = [id for id, heard in holding.handed.items() if not heard]
        undisturbed, began_ms = len(self.calls) == 1, self.clock.monotonic_ms()
        answer = await self.engine.call(self.engine.liveness.record_worker_heartbeat, request)
        if isinstance(answer, LivenessError):
            self._refused("beat", answer)
            return
        result = worker_pb2.HeartbeatResult.FromString(answer)
        if result.outcome != worker_pb2.HEARTBEAT_OUTCOME_REPEATED:
            self._heard(client, broken)
        if result.outcome == worker_pb2.HEARTBEAT_OUTCOME_RENEWED and kind in ("full", "blank"):
            undisturbed = (
                undisturbed
                and len(self.calls) == 1
                and not self.polls
                and began_ms == self.clock.monotonic_ms()
            )
            kept = not undisturbed or all(id in holding.bound for id in unconfirmed)
            assert kept, "a full set does not drop unconfirmed hand-outs"
        if result.lease_epoch > client.epoch > 0:
            named = {key: t for key, t in client.held.items() if (key.workflow_id, t.attempt) in declared}
            client.held = {key: t._replace(epoch=result.lease_epoch) for key, t in named.items()}
            self.tokens += client.held.values()
        elif client.epoch == 0:
            client.held = {key: t._replace(epoch=result.lease_epoch) for key, t in client.held.items()}
            self.tokens += client.held.values()
        client.epoch = max(client.epoch, result.lease_epoch)
        for ref in result.cancel_activities:
            key = ActivityKey(NAMESPACE, ref.workflow_id, ref.run_id, ref.activity_id)
            if key in client.held and client.held[key].attempt <= ref.attempt:
                del client.held[key]
        self.note(f"{client.name} {worker_pb2.HeartbeatOutcome.Name(result.outcome)} {result.lease_epoch}")

    def _heard(self, client: WorkerClient, broken: tuple[int, int] | None) -> None:
        """A heartbeat or an attach cancels an earlier break."""
        if self.checker.broken_at.get(client.name) == broken:
            self.checker.broken_at.pop(client.name, None)

    # -- activities

    async def do_schedule(self, what: int, delay_ms: int = 0) -> None:
        self.launch(self._schedule(KEYS[what % ACTIVITIES], delay_ms))

    async def _schedule(self, key: ActivityKey, delay_ms: int) -> None:
        request = pb.ScheduleActivityRequest(
            namespace=NAMESPACE, id=id_of(key), task_queue=queue_of(key), retry_policy=retry_of(key),
            start_delay=duration(delay_ms), timeouts=timeouts_of(key),
        )  # fmt: skip
        before = self.checker.known[key].state
        answer = await self.engine.call(self.engine.activities.schedule_activity, request)
        if isinstance(answer, LivenessError):
            self._refused("schedule", answer)
            return
        assert self.checker.known[key].state != "NONE", "an acknowledged schedule is durable"
        self.seen["scheduled again when finished"] += before in ("COMPLETED", "CANCELLED", "FAILED")
        self.scheduled.add(key)

    async def do_poll(
        self, who: int, queue: int, limit: int = 1, wait_ms: int = 0, lost: bool = False
    ) -> None:
        await self.poll_by(self.client(who), queue, limit, wait_ms, lost)

    async def poll_by(
        self, client: WorkerClient, queue: int, limit: int, wait_ms: int = 0, lost: bool = False
    ) -> None:
        request = pb.PollActivityRequest(
            namespace=NAMESPACE, worker_instance_key=client.name, session_id=client.session,
            task_queue=QUEUES[queue % len(QUEUES)], wait=duration(wait_ms), max_activities=limit,
        )  # fmt: skip
        work = self._poll(client, request, lost)
        if wait_ms:
            self.polls[asyncio.ensure_future(work)] = (client, request.task_queue)
        else:
            self.launch(work)

    async def _poll(self, client: WorkerClient, request: pb.PollActivityRequest, lost: bool) -> None:
        answer = await self.engine.call(self.engine.activities.poll_activity, request)
        if isinstance(answer, LivenessError):
            self._refused("poll", answer)
            return
        for task in answer.activities:
            self._received(client, task, lost)
        self.seen["several handed out at once"] += len(answer.activities) > 1

    def _received(self, client: WorkerClient, task: pb.ActivityTask, lost: bool = False) -> None:
        key = ActivityKey(NAMESPACE, task.id.workflow_id, task.id.run_id, task.id.activity_id)
        token = Token(key, client.name, task.lease_epoch, task.attempt)
        self.note(f"{client.name} has {key.activity_id}/{token.attempt} in {token.epoch}" + " (lost)" * lost)
        earlier = self.given.setdefault((key, token.attempt), token)
        assert earlier == token, f"an attempt has one holder: {earlier} and {token}"
        assert self.checker.known[key].last_started >= token.attempt, "an acknowledged hand-out is durable"
        assert task.task_queue == queue_of(key), "an activity stays in its task queue"
        self.seen["an answer lost"] += lost
        if not lost:
            client.held[key] = token
            self.tokens.append(token)

    async def do_cancel_poll(self, which: int) -> None:
        if self.polls:
            list(self.polls)[which % len(self.polls)].cancel()
            self.seen["a poll cancelled"] += 1

    async def do_claim(self, who: int, what: int) -> None:
        self.launch(self._claim(self.client(who), KEYS[what % ACTIVITIES]))

    async def _claim(self, client: WorkerClient, key: ActivityKey) -> None:
        request = pb.ClaimActivityRequest(
            namespace=NAMESPACE, id=id_of(key), worker_instance_key=client.name, session_id=client.session,
            task_queue=queue_of(key), retry_policy=retry_of(key), timeouts=timeouts_of(key),
        )  # fmt: skip
        undisturbed, began_ms = len(self.calls) == 1, self.clock.monotonic_ms()
        answer = await self.engine.call(self.engine.activities.claim_activity, request)
        if isinstance(answer, LivenessError):
            self._refused("claim", answer)
            return
        self._received(client, answer.activity)
        undisturbed = (
            undisturbed and len(self.calls) == 1 and not self.polls and began_ms == self.clock.monotonic_ms()
        )
        if undisturbed:
            bound = self.checker.workers[WorkerKey(NAMESPACE, client.name)].bound.get(key.id)
            assert bound == answer.activity.attempt, (
                "a worker with a successful claim is bound to the activity"
            )

    async def do_end(self, which: int, how: str = "complete", twist: str = "right") -> None:
        if self.tokens:
            token = self.tokens[-1 - which % min(len(self.tokens), 8)]
            if twist == "epoch":
                token = token._replace(epoch=max(1, token.epoch + (1 if which % 2 else -1)))
            elif twist == "attempt":
                token = token._replace(attempt=max(1, token.attempt + (1 if which % 2 else -1)))
            elif twist == "worker":
                token = token._replace(worker=WORKERS[which % len(WORKERS)])
            await self.end_by(token, how)

    async def end_by(self, token: Token, how: str = "complete") -> None:
        self.launch(self._end(token, how))

    async def _end(self, token: Token, how: str) -> None:
        self.results += 1
        result = f"result {self.results}".encode()
        about: dict[str, Any] = {
            "namespace": NAMESPACE, "id": id_of(token.key), "worker_instance_key": token.worker,
            "lease_epoch": token.epoch, "attempt": token.attempt,
        }  # fmt: skip
        known, activities = self.checker.known[token.key], self.engine.activities
        mine = [ended for ended, _ in known.completions] == [token]
        if how == "heartbeat":
            beat = pb.RecordActivityHeartbeatRequest(**about, details=result)
            answer = await self.engine.call(activities.record_activity_heartbeat, beat)
            if isinstance(answer, LivenessError):
                self._refused(how, answer)
            else:
                assert result in known.details, "an acknowledged heartbeat is durable"
            return
        if how == "complete":
            request = pb.CompleteActivityRequest(**about, result=result)
            answer = await self.engine.call(activities.complete_activity, request)
        elif how == "release":
            answer = await self.engine.call(activities.release_activity, pb.ReleaseActivityRequest(**about))
        else:
            final = how == "fail for good"
            message = "for good" if final else "no"
            failure = pb.FailActivityRequest(**about, message=message, non_retryable=final)
            answer = await self.engine.call(activities.fail_activity, failure)
        self.note(
            f"{how} {token.key.activity_id}/{token.attempt} by {token.worker} in {token.epoch}: {answer!s}"
        )
        if isinstance(answer, LivenessError):
            self._refused(how, answer)
            if how == "complete" and not isinstance(answer, Unavailable):
                assert not mine, "a repeated end call gets the same answer"
                self.not_recorded.add(result)
            return
        if how == "complete":
            assert known.completions, "an acknowledged end is durable"
            assert known.completions[0][0] == token, "the acknowledged token completed it"
            self.seen["a repeated end"] += known.completions[0][1] != result
        client = self.clients.get(token.worker)
        if client is not None and client.held.get(token.key) == token:
            del client.held[token.key]

    async def do_cancel(self, what: int) -> None:
        request = pb.CancelActivityRequest(namespace=NAMESPACE, id=id_of(KEYS[what % ACTIVITIES]))
        self.cancels.add(KEYS[what % ACTIVITIES])
        self.ask("cancel", self.engine.activities.cancel_activity, request)

    async def do_retry(self, what: int) -> None:
        ended = [key for key in KEYS if self.checker.known[key].state in ("QUARANTINED", "FAILED")]
        key = ended[what % len(ended)] if ended else KEYS[what % ACTIVITIES]
        request = pb.RetryActivityRequest(namespace=NAMESPACE, id=id_of(key))
        self.ask("retry", self.engine.activities.retry_activity, request)

    def ask(self, name: str, handler: Any, request: Any) -> None:
        async def ask() -> None:
            answer = await self.engine.call(handler, request)
            if isinstance(answer, LivenessError):
                self._refused(name, answer)

        self.launch(ask())

    def _refused(self, name: str, error: LivenessError) -> None:
        self.note(f"{name}: {error}")
        self.seen[f"{name}: {error.reason}"] += 1
        if isinstance(error, FencedOff):
            self.seen["a token fenced off"] += 1
            for why in (
                "INACTIVE",
                "lease epoch is",
                "not bound",
                "held by",
                "it holds attempt",
                "COMPLETED",
            ):
                self.seen[f"refused: {why}"] += why in str(error)

    # -- orders

    async def do_order(self, who: int, how: str, limit_ms: int = 1_500) -> None:
        admin = self.engine.admin
        about: dict[str, Any] = {"namespace": NAMESPACE}
        name = self.client(who).name
        self.resumed |= how in ("resume", "resume all")
        if how == "pause":
            request = admin_pb2.PauseWorkersRequest(**about, worker_instance_key=name)
            self.launch(self._pause(request, name))
        elif how == "resume":
            self.ask(
                how, admin.resume_workers, admin_pb2.ResumeWorkersRequest(**about, worker_instance_key=name)
            )
        elif how == "drain":
            drain = admin_pb2.DrainWorkerRequest(**about, worker_instance_key=name, limit=duration(limit_ms))
            self.ask(how, admin.drain_worker, drain)
        elif how == "pause all":
            self.launch(self._pause(admin_pb2.PauseWorkersRequest(**about, all=True), ""))
        else:
            self.checker.paused = False
            self.ask(how, admin.resume_workers, admin_pb2.ResumeWorkersRequest(**about, all=True))

    async def _pause(self, request: admin_pb2.PauseWorkersRequest, name: str) -> None:
        undisturbed, began_ms = len(self.calls) == 1, self.clock.monotonic_ms()
        answer = await self.engine.call(self.engine.admin.pause_workers, request)
        if isinstance(answer, LivenessError):
            self._refused("pause", answer)
        elif not name and undisturbed and len(self.calls) == 1:
            paused = self.engine.node.policies.of(NAMESPACE).paused
            assert paused, "an acknowledged pause of all is in force"
        elif name and not self.resumed and began_ms == self.clock.monotonic_ms():
            assert self.checker.workers[WorkerKey(NAMESPACE, name)].paused, "an acknowledged pause is durable"

    async def do_leave(self, who: int, how: str) -> None:
        name = self.client(who).name
        about = {"namespace": NAMESPACE, "worker_instance_key": name}
        if how == "expire":
            self.ask(how, self.engine.admin.expire_worker, admin_pb2.ExpireWorkerRequest(**about))
        else:
            session = (
                self.former_clients[-1].session
                if how == "old" and self.former_clients
                else self.client(who).session
            )
            request = service_pb2.ShutdownWorkerRequest(**about, session_id=session)
            self.ask("shutdown", self.engine.liveness.shutdown_worker, request)

    async def do_stream(self, who: int, how: str, grace_ms: int = 1_500) -> None:
        """Open, break or detach a stream."""
        client = self.client(who)
        if how == "attach":
            if client.stream is None or client.stream.task.done():
                client.stream = WorkerStream(self.engine)
            attach = service_pb2.AttachRequest.Attach(
                namespace=NAMESPACE, worker_instance_key=client.name, session_id=client.session,
                disconnect_grace=duration(grace_ms),
            )  # fmt: skip
            client.stream.write(service_pb2.AttachRequest(attach=attach))
            client.detached = False
            self.launch(self._attached(client, self.checker.broken_at.get(client.name)))
        elif client.stream is not None and how == "break":
            await self.break_stream(client)
        elif client.stream is not None:
            detach = service_pb2.AttachRequest.Detach(namespace=NAMESPACE, worker_instance_key=client.name)
            client.stream.write(service_pb2.AttachRequest(detach=detach))
            client.detached = True

    async def _attached(self, client: WorkerClient, broken: tuple[int, int] | None) -> None:
        stream = client.stream
        if stream is None:
            return
        while client.name not in stream.attached and not stream.task.done():
            await asyncio.sleep(0.0005)
        if client.name in stream.attached and not stream.attached[client.name].HasField("status"):
            self._heard(client, broken)

    async def break_stream(self, client: WorkerClient) -> None:
        if client.stream is not None and not client.stream.task.done():
            if not client.detached:
                self.checker.broken_at[client.name] = (self.clock.monotonic_ms(), self.checker.incarnation)
            self.seen["a stream broke"] += 1
            await client.stream.end()
        client.stream = None
