"""The remaining steps of a walk (time, upkeep, failures), the checks between steps, and the final phase in
which all work must finish."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from liveness.domain.activity import Activity, ActivityState, limit_ends
from liveness.domain.keys import ActivityKey, WorkerKey
from liveness.domain.worker import Worker, WorkerState
from liveness.engine.shard import Shard
from liveness.store.api import TaskState
from liveness.v1 import activity_pb2 as pb
from liveness.v1 import admin_pb2
from tests.integration.store.faulty_store import Fault
from tests.model.activities.activity_engine import WorkerClient
from tests.model.activities.client_steps import STEP_MS, ClientSteps
from tests.model.activities.participants import KEYS, NAMESPACE, QUEUES, WORKERS, id_of, queue_of

FINAL_ROUNDS = 40
FINAL_LEASE_MS = 3_000


class RandomWalk(ClientSteps):
    # -- time

    async def do_time(self, ms: int) -> None:
        await self.pass_time(ms)
        if ms >= 2_000 and not self.calls and not self.store.faults:
            await self.settle()
            for name, worker in self.checker.workers.items():
                now_ms = self.engine.node.shard(*name).now_ms()
                assert not worker.drain_ms or now_ms < worker.drain_ms + 1_000, "a drain ends at its deadline"

    async def pass_time(self, ms: int) -> None:
        while ms > 0:
            self.clock.move(min(ms, STEP_MS))
            self.engine.node.tick()
            ms -= STEP_MS
            if self.store.commits_allowed.is_set() and not self.calls:
                await self.wait_for(asyncio.ensure_future(self.engine.node.barrier().wait()))
                await asyncio.sleep(0)

    async def do_until(self, what: int, which: str, off_ms: int = 0) -> None:
        """Advance to the millisecond at which something is due, or one beside it."""
        if which == "lease":
            name = WorkerKey(NAMESPACE, WORKERS[what % len(WORKERS)])
            shard = self.engine.node.shard_table()[self.shard_id(name.instance_key)]
            worker = shard.workers.get(name) if shard else None
            if shard is None or worker is None or worker.state is not WorkerState.ACTIVE:
                return
            left_ms = shard.lease_deadlines.lease_end_ms(name, worker) - shard.now_ms()
        else:
            key = KEYS[what % len(KEYS)]
            shard = self.engine.node.shard_table()[self.shard_id(key.workflow_id)]
            activity = shard.activities.get(key) if shard else None
            due_ms = activity.due_ms if activity else 0
            if activity is not None and which == "limit":
                due_ms = min((end.end_ms for end in limit_ends(activity)), default=0)
            if shard is None or not due_ms:
                return
            left_ms = due_ms - shard.now_ms()
        if left_ms + off_ms > 0:
            await self.pass_time(min(left_ms + off_ms, 10_000))

    async def do_fall_silent(self, who: int, queue: int, heard: bool = True) -> None:
        """A worker polls, confirms the activities and falls silent, while the others continue."""
        client = self.client(who)
        lease_ms = 1_000 if client.stream is None else 6_000
        await self.do(self.beat_by(client, "confirm", 0, lease_ms))
        await self.do(self.poll_by(client, queue, 2))
        if heard:
            await self.do(self.beat_by(client, "confirm", 0, lease_ms))
        for other in self.clients.values():
            if other is not client and other.sequence:
                await self.do(self.beat_by(other, "confirm", 0, 8_000))
        if client.stream is not None:
            await self.break_stream(client)
        await self.pass_time(2_000)
        client.held = {}
        await self.do_work()

    # -- upkeep

    async def do_work(self) -> None:
        self.launch(self.engine.queue.run_until_idle())

    async def do_sink(self, mode: str) -> None:
        self.routed = mode != "gone"
        self.sink.mode = mode if mode != "gone" else self.sink.mode

    async def do_upkeep(self, what: str) -> None:
        maintenance = self.engine.maintenance
        if what == "evict":  # as at the end of a checkpoint, whatever is in progress
            for shard in self.engine.node.shards():
                self.seen["evicted"] += shard.activities.evict(shard.durable_seq)
            return
        self.launch(
            self._guarded(maintenance.checkpoint if what == "checkpoint" else maintenance.apply_retention)
        )

    async def _guarded(self, job: Callable[[], Awaitable[None]]) -> None:
        await self.engine.maintenance._run_job(job)

    async def do_meanwhile(self, what: str) -> None:
        """Let something happen between the next read of activities and the decision on it."""

        async def meanwhile() -> None:
            if what == "checkpoint":
                before = sum(shard.activities.eviction_count for shard in self.engine.node.shards())
                await self._guarded(self.engine.maintenance.checkpoint)
                after = sum(shard.activities.eviction_count for shard in self.engine.node.shards())
                self.seen["evicted between read and decide"] += after > before
            elif what in ("retry and cancel", "retry"):
                await self._end_and_forget(to_its_end=what == "retry and cancel")
            else:
                self.store.faults.append(Fault.REJECTED)
                for shard in self.engine.node.shards():
                    self.engine.node.committer.mark_dirty(shard)
                await self.engine.node.barrier().wait()
                await self.engine.recovered()
                self.seen["re-read between read and decide"] += 1

        self.store.during_find = meanwhile

    async def _end_and_forget(self, *, to_its_end: bool) -> None:
        """Retry the failed activities, and with `to_its_end` also cancel them and evict them from memory."""
        activities = self.engine.activities
        for key in [key for key in KEYS if self.checker.known[key].state == "FAILED"]:
            retry = pb.RetryActivityRequest(namespace=NAMESPACE, id=id_of(key))
            await self.engine.call(activities.retry_activity, retry)
            if to_its_end:
                self.cancels.add(key)
                cancel = pb.CancelActivityRequest(namespace=NAMESPACE, id=id_of(key))
                await self.engine.call(activities.cancel_activity, cancel)
            self.seen["retried between read and decide"] += 1
        if to_its_end:
            await self._guarded(self.engine.maintenance.checkpoint)

    # -- failures

    async def do_fault(self, kind: str) -> None:
        self.store.faults.append(Fault[kind])

    async def do_stall(self) -> None:
        """Commits wait until the next step that is not concurrent."""
        self.store.commits_allowed.clear()

    async def do_take_shard(self, what: int) -> None:
        """Another owner takes a shard and disappears."""
        await self.settle()
        await self.store.take_over([what % len(self.checker.shards)], "other owner", self.clock.wall_ms())

    async def do_restart(self, how: str, away_ms: int = 0) -> None:
        self.store.faults.clear()
        self.store.during_find = None
        if how == "unanswered":  # committed, but the answer is lost
            self.store.keep_answers = True
            self.store.kept.clear()
            self.store.commits_allowed.set()
            for _ in range(200):
                if self.store.kept.is_set() or not self.calls:
                    break
                await asyncio.sleep(0.001)
            self.seen["killed after an unanswered commit"] += self.store.kept.is_set()
        self.seen["killed during calls"] += bool(self.calls) and how != "orderly"
        if how == "orderly":
            await self.settle()
            self.engine.matching.end_polls()
            self.engine.streams.close()
            await self.settle()
            await self.engine.stop()
        await self.engine.crash()
        gone = [*self.calls, *self.polls, *self.stream_tasks()]
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        await self.store.idle()
        self.calls.clear()
        self.polls.clear()
        self.loop_errors.clear()
        for client in (*self.clients.values(), *self.former_clients):
            client.stream = None
        self.checker.broken_at.clear()
        self.checker.incarnation += 1
        self.store.keep_answers = False
        self.store.commits_allowed.set()
        self.clock.move(away_ms)
        await self.start()

    # -- checks

    def check(self) -> None:
        node, checker = self.engine.node, self.checker
        self._check_hand_outs(may_be_lost=bool(checker.dropped) or self.incarnation != checker.incarnation)
        self.incarnation, self.resumed = checker.incarnation, False
        checker.check_at_rest()
        checker.paused = bool(node.policies.of(NAMESPACE).paused)
        for shard in node.shards():
            folded = checker.shards[shard.id]
            assert shard.workers == folded.workers, "workers in memory equal the folded log"
            for key, activity in shard.activities.items():
                assert activity == folded.activities[key], "activities in memory equal the folded log"
            assert folded.unfinished().keys() <= {key for key, _ in shard.activities.items()}
            _check_backlog(shard)
        recorded = {result for known in checker.known.values() for _, result in known.completions}
        assert not recorded & self.not_recorded, "refused results are not recorded"
        self._check_polls()
        self._check_streams()

    def _check_hand_outs(self, *, may_be_lost: bool) -> None:
        """The holder of every started activity was told; if the answer failed, the hand-out is taken back at
        once."""
        for key, known in self.checker.known.items():
            if known.state == "STARTED" and (key, known.last_started) not in self.given:
                if may_be_lost:
                    self.unacknowledged.add((key, known.last_started))
                assert (key, known.last_started) in self.unacknowledged, (
                    f"no client was told of {known.holder}"
                )

    def _check_polls(self) -> None:
        """No poll waits while an activity is available for it."""
        for poll, (client, queue) in self.polls.items():
            if poll.done():
                continue
            worker = self.checker.workers[WorkerKey(NAMESPACE, client.name)]
            takes = worker.active and not (worker.paused or worker.draining)
            takes = takes and not self._is_disconnected(client.name)
            takes = takes and not self.engine.node.policies.of(NAMESPACE).paused
            if not takes or len(worker.bound) >= self.walk_settings.quota:
                self.seen["a poll waits though there is work"] += bool(self._available(queue))
                continue
            assert not self._available(queue), (
                f"{client.name} waits for {queue} although an activity is available"
            )

    def _is_disconnected(self, name: str) -> bool:
        return WorkerKey(NAMESPACE, name) in self.engine.node.shard(NAMESPACE, name).disconnected

    def _available(self, queue: str) -> list[ActivityKey]:
        return [
            key
            for key, known in self.checker.known.items()
            if known.state == "AVAILABLE" and known.queue == queue
        ]

    def _check_streams(self) -> None:
        for client in self.clients.values():
            stream = client.stream
            if stream is None or stream.task.done() or not (orders := stream.orders.get(client.name)):
                continue
            if not self.engine.streams.is_attached(WorkerKey(NAMESPACE, client.name), client.session):
                continue
            worker = self.memory(client.name)
            if worker is None:
                continue
            assert int(orders.state) == int(worker.state)
            assert orders.lease_epoch == worker.epoch
            assert orders.drain == worker.standing.draining, "an attached worker is told to drain at once"
            paused = worker.standing.paused or bool(self.engine.node.policies.of(NAMESPACE).paused)
            assert orders.pause == paused, "an attached worker is told to pause at once"
            asked = {(ref.activity_id, ref.attempt) for ref in orders.cancel_activities}
            assert asked == {(a.activity_id, a.attempt) for a in worker.lost.values()}
            self.seen["orders compared on a stream"] += 1

    def memory(self, name: str) -> Worker | None:
        return self.engine.node.shard(NAMESPACE, name).workers.get(WorkerKey(NAMESPACE, name))

    # -- the end

    async def finish_all_work(self) -> None:
        """Without failures and with working workers, every activity that is not finished by rule must be
        completed."""
        self.trace.append("finish")
        self.store.faults.clear()
        self.store.during_find = None
        self.sink.mode = "takes"
        while self.engine.node.policies.of(NAMESPACE).paused or any(
            w.paused for w in self.checker.workers.values()
        ):
            await self.do_order(0, "resume all")
            await self.settle()
        for poll in self.polls:
            poll.cancel()
        await self.settle()
        names = [*WORKERS, "fresh-1", "fresh-2"]
        for name in names:
            self._renew(name)
        for turn in range(FINAL_ROUNDS):
            await self._retry_tasks()
            for name in names:
                await self._one_turn(self.clients[name])
            self.check()
            if turn > 1 and self._is_done():
                break
            await self.pass_time(1_000)
        await self._check_end()

    def _renew(self, name: str) -> None:
        client = self.add_client(name)
        if (worker := self.memory(name)) is not None and worker.session_id:
            client.session, client.sequence, client.epoch = worker.session_id, worker.sequence, worker.epoch

    async def _one_turn(self, client: WorkerClient) -> None:
        worker = self.memory(client.name)
        if worker is not None and worker.state is WorkerState.CLEANED_UP:
            return
        await self.do(self.beat_by(client, "full", 0, FINAL_LEASE_MS))
        for queue in range(len(QUEUES)):
            await self.do(self.poll_by(client, queue, 100))
        await self.do(self.beat_by(client, "confirm", 0, FINAL_LEASE_MS))
        for token in tuple(client.held.values()):
            await self.do(self.end_by(token))
        await self.do(self.do_work())

    async def do(self, step: Awaitable[None]) -> None:
        await step
        await self.settle()

    async def _retry_tasks(self) -> None:
        dead = await self.store.list_tasks(None, [TaskState.DEAD_LETTERED], 0, 1_000)
        for stored in dead:
            self.ask(
                "retry task", self.engine.admin.retry_task, admin_pb2.RetryTaskRequest(task_id=stored.task_id)
            )
        await self.settle()

    def _is_done(self) -> bool:
        over = all(self._is_over(key) for key in self.checker.known)
        return over and not any(worker.handed for worker in self.checker.workers.values())

    def _is_over(self, key: ActivityKey) -> bool:
        known = self.checker.known[key]
        return known.state in ("NONE", "COMPLETED", "CANCELLED", "FAILED", "QUARANTINED", "HANDED_ON")

    async def _check_end(self) -> None:
        checker = self.checker
        for key in self.scheduled:
            known = checker.known[key]
            assert self._is_over(key), f"{key} is lost: {known}"
            if known.state == "CANCELLED":
                assert key in self.cancels
            elif known.state == "HANDED_ON":
                assert queue_of(key) == QUEUES[2]
            self.seen[f"ended {known.state}"] += 1
        for key, known in checker.known.items():
            assert self._is_over(key), f"{key} is lost: {known}"
        for name, worker in checker.workers.items():
            assert not worker.handed, f"{name} is left with {worker.handed}"
        stored = await self.store.list_tasks(None, list(TaskState), 0, 100_000)
        assert {task.state for task in stored} <= {TaskState.DONE}
        rows: dict[ActivityKey, Activity] = await self.store.find_activities(list(checker.known))
        folded = {key: a for shard in checker.shards for key, a in shard.activities.items()}
        assert rows == folded, "the rows equal the folded log"
        for shard in checker.shards:
            read = await self.store.read_log(checker.shards.index(shard), 0, 2**62, 100_000)
            by_seq = {entry.seq: entry for entry in shard.entries}
            assert all(by_seq[entry.seq] == entry for entry in read), "the stored log equals the commits"
        await self.do_restart("crash")
        self.check()


def _check_backlog(shard: Shard) -> None:
    """What is kept about waiting and held activities equals what a look at all of them gives."""
    by_age = sorted(shard.activities.items(), key=lambda item: item[1].since_ms)
    available: dict[tuple[str, str, str], list[int]] = {}
    held: Counter[tuple[str, str]] = Counter()
    for key, activity in by_age:
        if activity.state is ActivityState.AVAILABLE:
            name = key.namespace, activity.task_queue, activity.type
            available.setdefault(name, []).append(activity.since_ms)
        elif activity.state is ActivityState.STARTED:
            held[key.namespace, activity.task_queue] += 1
    backlog = shard.activities.backlog
    assert {tuple(key): list(waiting.values()) for key, waiting in backlog.available.items()} == available
    assert backlog.available_counts.total() == sum(map(len, available.values()))
    assert backlog.held == held
