"""The engine compared with the model: every input, in any order, on a store that fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import delete, insert

from liveness.clock import ManualClock
from liveness.domain.errors import LivenessError, ShardUnavailable
from liveness.domain.keys import WorkerKey, shard_of
from liveness.domain.policy import DEFAULT_POLICY
from liveness.domain.worker import InactiveReason, Worker, WorkerState
from liveness.store.api import TaskState
from liveness.store.database import Database
from liveness.store.schema import meta, metadata, shards
from liveness.v1 import admin_pb2, service_pb2, worker_pb2
from tests.databases import SHARD_COUNT
from tests.integration.engine.engine import Engine, duration
from tests.integration.store.faulty_store import Fault, FaultyStore
from tests.model.workers.commit_checker import CommitChecker, Effect
from tests.model.workers.model import (
    CLEANED_UP,
    INACTIVE,
    ActivityName,
    Beat,
    Model,
    ModelWorker,
    Refused,
    Rules,
)

T = TypeVar("T")

GRACE_MS = 3_000
STALL_MS = 500
NAMESPACES = ("north", "south")
KEYS = tuple((namespace, name) for namespace in NAMESPACES for name in ("w1", "w2"))
assert len(KEYS) < DEFAULT_POLICY.storm_min_workers, (
    "the model has no storms and expects every expiry on time"
)
ACTIVITIES: tuple[ActivityName, ...] = tuple((f"flow-{n}", "run", f"activity-{n}") for n in range(5))

keys = st.sampled_from(KEYS)
faults = st.sampled_from([Fault.NONE] * 6 + [Fault.REJECTED, Fault.UNKNOWN_LOST, Fault.UNKNOWN_DONE])
changes = st.lists(
    st.tuples(st.sampled_from(ACTIVITIES), st.sampled_from([1, 1, 1, 2])),
    max_size=3,
    unique_by=lambda change: change[0],
).map(tuple)
CONFIGS: dict[str, list[int]] = {
    "cleanup_delay_ms": [0, 1_000, 5_000, 3_600_000],
    "tombstone_retention_ms": [0, 1_000, 10_000],
    "max_workers": [0, 1, 100],
    "max_bindings_per_worker": [1, 2, 100],
    "default_lease_ms": [2_000, 10_000, 30_000],
    "max_lease_ms": [30_000, 60_000],
    "event_retention_ms": [0, 2_000],
    "binding_retention_ms": [0, 2_000],
}
leases = st.sampled_from([None, 1, 1_000, 2_500, 5_000, 40_000])
configs = st.sampled_from([{name: value} for name, values in CONFIGS.items() for value in values])


class ModelEnvironment:
    """An event loop and a migrated database that many runs use in turn."""

    def __init__(self, database: Callable[[], Database]) -> None:
        self.seen: Counter[str] = Counter()
        """The number of times each answer and each fault occurred, over all runs."""
        self.runner = asyncio.Runner()
        self.database = self.runner.run(self._open(database))

    async def _open(self, connect: Callable[[], Database]) -> Database:
        database = connect()
        await FaultyStore(database).open(SHARD_COUNT, "tests")
        return database

    async def clear(self) -> None:
        def empty(connection: Any) -> None:
            for table in metadata.sorted_tables:
                if table.name != "meta":
                    connection.execute(delete(table))
            connection.execute(delete(meta).where(meta.c.name.startswith("epoch_floor")))
            heads = {"epoch": 0, "last_seq": 0, "observed_ms": 0, "takeovers": "[]", "owner": ""}
            connection.execute(insert(shards), [{"shard_id": id, **heads} for id in range(SHARD_COUNT)])

        await self.database.write(empty)

    def close(self) -> None:
        self.runner.run(self.database.close())
        self.runner.close()


class EngineStateMachine(RuleBasedStateMachine):
    def __init__(self, environment: ModelEnvironment) -> None:
        super().__init__()
        self.environment = environment
        self.clock = ManualClock()
        self.model = Model(lambda key: shard_of(*key, SHARD_COUNT))
        self.sessions = 0
        self.beats = 0
        self.checker = CommitChecker(self.clock, GRACE_MS)
        self.store = FaultyStore(environment.database, self.checker)
        self.engine: Engine

    def run(self, work: Awaitable[T]) -> T:
        return self.environment.runner.run(self._watched(work))

    async def _watched(self, work: Awaitable[T]) -> T:
        """Fail if the engine stops, because a stopped node never answers."""
        doing = asyncio.ensure_future(work)
        ends: set[asyncio.Future[Any]] = {doing}
        if hasattr(self, "engine"):
            ends.add(self.engine.node.broken)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        doing.cancel()
        raise AssertionError(f"the engine stopped: {self.engine.node.broken.result()}")

    @initialize()
    def begin(self) -> None:
        self.run(self.environment.clear())
        self.run(self._start())
        # In one namespace the delays are short enough that workers reach their cleanup and are forgotten.
        self.configure("south", {"cleanup_delay_ms": 2_000, "tombstone_retention_ms": 10_000}, Fault.NONE)

    async def _start(self) -> None:
        self.engine = Engine(self.store, self.clock, grace_ms=GRACE_MS)
        # Walks lose the same activity many times, and each loss must reschedule it.
        self.engine.node.policies.replace("", {"max_worker_deaths": 0})
        self.last_tick_ms = self.clock.monotonic_ms()
        self.held_until_ms = 0
        await self.engine.start()

    # -- rules

    @rule(key=keys, fault=faults)
    def plain_heartbeat(self, key: Any, fault: Fault) -> None:
        """The most frequent heartbeat, which has a fast path in the server."""
        self._heartbeat(key, "same", "next", 5_000, (), (), False, fault)

    @rule(key=keys, bound=changes, unbound=changes, lease_ms=leases, fault=faults)
    def heartbeat_with_changes(
        self, key: Any, bound: Any, unbound: Any, lease_ms: int | None, fault: Fault
    ) -> None:
        self._heartbeat(key, "same", "next", lease_ms, bound, unbound, False, fault)

    @rule(
        key=keys,
        sequence=st.sampled_from(["gap", "equal", "equal", "lower", "none", "one"]),
        lease_ms=leases,
        bound=changes,
        full=st.booleans(),
        fault=faults,
    )
    def heartbeat_out_of_order(
        self, key: Any, sequence: str, lease_ms: int | None, bound: Any, full: bool, fault: Fault
    ) -> None:
        self._heartbeat(key, "same", sequence, lease_ms, bound, (), full, fault)

    @rule(
        key=keys,
        session=st.sampled_from(["new", "old", "none"]),
        sequence=st.sampled_from(["next", "gap", "equal", "none", "one"]),
        bound=changes,
        unbound=changes,
        full=st.booleans(),
        fault=faults,
    )
    def heartbeat_of_another_session(
        self, key: Any, session: str, sequence: str, bound: Any, unbound: Any, full: bool, fault: Fault
    ) -> None:
        self._heartbeat(key, session, sequence, None, bound, unbound, full, fault)

    @rule(
        key=keys,
        session=st.sampled_from(["new", "new", "same", "old", "none"]),
        held_epoch=st.sampled_from([0, 0, 1, 3]),
        bound=changes,
        fault=faults,
    )
    def heartbeat_of_a_new_incarnation(
        self, key: Any, session: str, held_epoch: int, bound: Any, fault: Fault
    ) -> None:
        """What the process of a key that was given to it sends first; also sent by processes that must not."""
        worker = self.model.workers.get(key)
        was_cleaned_up = worker is not None and worker.state == CLEANED_UP
        registered = self.environment.seen["REGISTERED"]
        self._heartbeat(
            key, session, "one", 5_000, bound, (), False, fault, new_incarnation=True, held_epoch=held_epoch
        )
        self.environment.seen["REINCARNATED"] += (
            was_cleaned_up and self.environment.seen["REGISTERED"] > registered
        )

    def _heartbeat(
        self, key: Any, session: str, sequence: str, lease_ms: int | None, bound: Any, unbound: Any, full: bool, fault: Fault,
        *, new_incarnation: bool = False, held_epoch: int = 0,
    ) -> None:  # fmt: skip
        worker = self.model.workers.get(key)
        name = self._session(worker, session)
        last = worker.sequence if worker and name in ("", worker.session) else 0
        numbers = {"next": last + 1, "gap": last + 3, "equal": last, "lower": last - 1, "one": 1}
        number = max(numbers.get(sequence, 0), 0)
        self.beats += 1
        error = ("", "", "", "broken", "torn")[self.beats % 5]
        beat = Beat(
            name, number, lease_ms, bound, unbound, full, new_incarnation, held_epoch,
            successes=self.beats % 4, errors=self.beats % 3, last_error=error,
        )  # fmt: skip
        self._compare(
            lambda: self.model.heartbeat(key, beat, self._now(key)), lambda: self._send(key, beat), fault
        )

    @rule(
        key=keys, how=st.sampled_from(["same", "same", "new", "old", "none", "force", "force"]), fault=faults
    )
    def leave(self, key: Any, how: str, fault: Fault) -> None:
        """Shut down with some session, or expire by force. Unknown workers are chosen only now and then."""
        if key not in self.model.workers and how in ("same", "new", "force"):
            key = min(self.model.workers, default=key)
        about = {"namespace": key[0], "worker_instance_key": key[1]}
        if how == "force":
            force = admin_pb2.ExpireWorkerRequest(**about, reason="why not")
            self._compare(
                lambda: self.model.force(key, self._now(key)),
                lambda: _moved(self.engine.admin.expire_worker(force)),
                fault,
            )
            return
        session = self._session(self.model.workers.get(key), how)
        shutdown = service_pb2.ShutdownWorkerRequest(**about, session_id=session)
        self._compare(
            lambda: self.model.shutdown(key, session, self._now(key)),
            lambda: _moved(self.engine.liveness.shutdown_worker(shutdown)),
            fault,
        )

    @rule(key=keys, fault=faults)
    def forget(self, key: Any, fault: Fault) -> None:
        """An operator frees the key."""
        request = admin_pb2.ForgetWorkerRequest(namespace=key[0], worker_instance_key=key[1])

        async def send() -> str:
            answer = await self.engine.admin.forget_worker(request)
            state = worker_pb2.WorkerState.Name(answer.previous_state).removeprefix("WORKER_STATE_")
            return f"FORGOTTEN WHILE {state}"

        self._compare(lambda: self.model.forget_now(key), send, fault)

    @rule(namespace=st.sampled_from(NAMESPACES), values=configs, fault=faults)
    def configure(self, namespace: str, values: dict[str, int], fault: Fault) -> None:
        request = admin_pb2.UpdateConfigRequest(namespace=namespace)
        for name, value in values.items():
            if name.endswith("_ms"):
                getattr(request.set, name.removesuffix("_ms")).CopyFrom(duration(value))
            else:
                setattr(request.set, name, value)

        def expect() -> None:
            known = {
                name: value
                for name, value in values.items()
                if name not in ("event_retention_ms", "binding_retention_ms")
            }
            rules = Rules(**{**self.model.rules_of(namespace).__dict__, **known})
            self.model.rules = {**self.model.rules, namespace: rules}

        async def update() -> None:
            await self.engine.admin.update_config(request)

        self._compare(expect, update, fault)

    @rule(ms=st.sampled_from([1, 50, 250, 500, 1_000, 3_000, 12_000]), fault=faults)
    def time_passes(self, ms: int, fault: Fault) -> None:
        if ms <= STALL_MS:
            self.run(self._step(ms, fault))
        else:
            self.run(self._advance(ms))

    @rule(key=keys, off_ms=st.sampled_from([-1, 0, 0, 1]), fault=faults)
    @precondition(lambda self: self.model.workers)
    def deadline_comes(self, key: Any, off_ms: int, fault: Fault) -> None:
        """Advance exactly to the deadline, or one millisecond before or after it."""
        worker = self.model.workers.get(key)
        if worker is None:
            return
        at_ms = worker.deadline_ms if worker.state == INACTIVE else self._clock_of(key).lease_end(worker)
        left_ms = at_ms + off_ms - self._now(key)
        if 0 < left_ms < 60_000:
            self.run(self._advance(left_ms - left_ms % 250))
            if left_ms % 250:
                self.run(self._step(left_ms % 250, fault))

    @rule(
        what=st.sampled_from(["stand still", "jump", "crash", "restart"]),
        ms=st.sampled_from([0, 600, 5_000, 86_400_000]),
    )
    def trouble(self, what: str, ms: int) -> None:
        if what == "stand still":
            self.run(self._step(ms, Fault.NONE))
        elif what == "jump":
            self.clock.jump_wall(ms or -3_600_000)
        else:
            self.run(self.engine.crash() if what == "crash" else self.engine.stop())
            self.clock.move(ms)
            self.run(self._start())

    @rule(what=st.sampled_from(["checkpoint", "retain", "work off", "work off"]), first=faults, second=faults)
    def upkeep(self, what: str, first: Fault, second: Fault) -> None:
        if what == "checkpoint":
            self.run(self._with_fault(first, self.engine.maintenance.checkpoint))
        elif what == "retain":
            self._retain()
        else:
            self.store.faults.extend([first, second])
            self.run(self.engine.queue.run_until_idle())
            self.store.faults.clear()
            self.run(self.engine.recovered())

    def _retain(self) -> None:
        now = {key: self._now(key) for key in self.model.workers}
        self.run(self.engine.maintenance.apply_retention())
        self.run(self.engine.node.barrier().wait())
        for key, now_ms in now.items():
            self.model.forget(key, now_ms)
            self.environment.seen["FORGOTTEN"] += key not in self.model.workers

    # -- execution

    def _session(self, worker: ModelWorker | None, kind: str) -> str:
        if kind == "none":
            return ""
        if kind == "old" and worker is not None and worker.replaced:
            return worker.replaced[0]
        if kind == "same" and worker is not None and worker.session:
            return worker.session
        self.sessions += 1
        return f"session-{self.sessions}"

    def _clock_of(self, key: tuple[str, str]) -> Any:
        return self.checker.clocks[shard_of(*key, SHARD_COUNT)]

    def _now(self, key: tuple[str, str]) -> int:
        now_ms: int = self._clock_of(key).now(self.clock.monotonic_ms())
        return now_ms

    async def _with_fault(self, fault: Fault, work: Callable[[], Awaitable[T]]) -> T:
        self.store.faults.append(fault)
        try:
            return await work()
        finally:
            self.store.faults.clear()
            await self.engine.recovered()

    def _compare(self, expect: Callable[[], Any], act: Callable[[], Awaitable[Any]], fault: Fault) -> None:
        """Let the model and the engine act; if the commit failed, undo the model's change unless it was
        committed."""
        workers, lost, rules = dict(self.model.workers), list(self.model.lost), self.model.rules
        floors = self.model.floors
        expected: Any
        try:
            expected = expect()
        except Refused as refusal:
            expected = refusal.reason
        failed = len(self.store.failed)
        answer: Any
        try:
            answer = self.run(self._with_fault(fault, act))
        except LivenessError as error:
            answer = error.reason if not isinstance(error, ShardUnavailable) else error
        if len(self.store.failed) > failed:
            self.environment.seen[fault.name] += 1
            assert isinstance(answer, ShardUnavailable), "a caller of a failed commit is told"
            if fault is not Fault.UNKNOWN_DONE:
                self.model.workers, self.model.lost, self.model.rules = workers, lost, rules
                self.model.floors = floors
        else:
            assert answer == expected
            self.environment.seen[str(answer)] += 1

    async def _send(self, key: tuple[str, str], beat: Beat) -> str:
        message = worker_pb2.WorkerHeartbeat(
            worker_instance_key=key[1],
            session_id=beat.session,
            sequence=beat.sequence,
            bound_activities=[_ref(*change) for change in beat.bound],
            unbound_activities=[_ref(*change) for change in beat.unbound],
            full_bindings=beat.full,
            new_incarnation=beat.new_incarnation,
            lease_epoch=beat.held_epoch,
            successes=beat.successes,
            errors=beat.errors,
            last_error=beat.last_error,
        )
        if beat.lease_ms is not None:
            message.lease_duration.CopyFrom(duration(beat.lease_ms))
        result = await self.engine.send(key[0], message)
        outcome = worker_pb2.HeartbeatOutcome.Name(result.outcome).removeprefix("HEARTBEAT_OUTCOME_")
        expected = self.model.workers[key]
        assert worker_pb2.WorkerState.Name(result.state) == f"WORKER_STATE_{expected.state}"
        assert result.lease_epoch == expected.epoch
        assert result.granted_lease_duration == duration(expected.lease_ms)
        cancel = {
            (ref.workflow_id, ref.run_id, ref.activity_id): ref.attempt for ref in result.cancel_activities
        }
        assert cancel == expected.to_cancel
        return outcome

    async def _advance(self, ms: int) -> None:
        while ms > 0:
            await self._step(min(ms, 250), Fault.NONE)
            ms -= 250

    async def _step(self, ms: int, fault: Fault) -> None:
        self.clock.move(ms)
        now_ms = self.clock.monotonic_ms()
        if now_ms - self.last_tick_ms > STALL_MS:
            self.held_until_ms = now_ms + STALL_MS
        self.last_tick_ms = now_ms
        before, lost_before = dict(self.model.workers), len(self.model.lost)
        if now_ms >= self.held_until_ms:
            for key in self.model.workers:
                self.model.tick(key, self._clock_of(key), self._now(key))
                self.environment.seen[self.model.workers[key].state] += self.model.workers[key] != before[key]
        failed = len(self.store.failed)
        self.store.faults.append(fault)
        self.engine.node.tick()
        await self.engine.node.barrier().wait()
        self.store.faults.clear()
        await self.engine.recovered()
        if len(self.store.failed) > failed and fault is not Fault.UNKNOWN_DONE:
            undone = {key for key in KEYS if shard_of(*key, SHARD_COUNT) in self.store.failed[-1]}
            self.model.workers.update({key: before[key] for key in undone & before.keys()})
            fresh = self.model.lost[lost_before:]
            self.model.lost[lost_before:] = [lost for lost in fresh if lost.worker not in undone]

    # -- checks

    @invariant()
    def model_and_server_agree(self) -> None:
        in_memory: dict[WorkerKey, Worker] = {}
        for shard in self.engine.node.shards():
            in_memory |= shard.workers
            assert shard.workers == self.checker.shards[shard.id].workers, "folding the log gives the state"
            assert shard.epoch_floor == self.model.floors.get(shard.id, 1)
        assert in_memory.keys() == self.model.workers.keys()
        for key, worker in in_memory.items():
            _same(worker, self.model.workers[key])
        totals: Counter[tuple[str, str]] = Counter()
        for (namespace, _), known in self.model.workers.items():
            for counter in ("heartbeats", "successes", "errors"):
                totals[namespace, counter] += getattr(known, counter)
        for namespace, counted in self.engine.node.counter_totals().items():
            assert counted._asdict() == {name: totals[namespace, name] for name in counted._fields}
        census = Counter((key.namespace, worker.state) for key, worker in in_memory.items())
        assert self.engine.node.census == census, "the maintained counts equal a new count"
        deaths = (InactiveReason.LEASE_EXPIRED, InactiveReason.DISCONNECTED)
        for shard in self.engine.node.shards():
            dead = Counter(
                key.namespace
                for key, worker in shard.workers.items()
                if worker.state is WorkerState.INACTIVE and worker.inactive_reason in deaths
            )
            assert shard.census.dead == dead, "so do those of the dead"
        for namespace in NAMESPACES:
            living = sum(key[0] == namespace and worker.state < 3 for key, worker in in_memory.items())
            assert self.engine.node.count_workers(namespace) == living
            rules, policy = self.model.rules_of(namespace), self.engine.node.policies.of(namespace)
            for name, value in rules.__dict__.items():
                assert getattr(policy, name) == value, name
        expected = sorted((*lost.worker, lost.epoch, lost.activity, lost.attempt) for lost in self.model.lost)
        taken = sorted((ns, name, epoch, a.id, a.attempt) for ns, name, epoch, a in self.checker.taken)
        assert taken == expected

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.run(self._teardown())

    async def _teardown(self) -> None:
        """Check at the end that every lost activity was rescheduled exactly once, and that the stored log
        equals the commits."""
        await self.engine.queue.run_until_idle()
        for shard in self.engine.node.shards():
            recorded = self.checker.shards[shard.id].entries
            read = await self.store.read_log(shard.id, 0, 2**62, 100_000)
            by_seq = {entry.seq: entry for entry in recorded}
            assert all(by_seq[entry.seq] == entry for entry in read), "the stored log equals the commits"
        stored = await self.store.list_tasks(None, list(TaskState), 0, 100_000)
        assert {task.state for task in stored} <= {TaskState.DONE}
        rows = sorted((s.task.namespace, s.task.worker, s.task.epoch, s.task.activity) for s in stored)
        assert rows == sorted(self.checker.taken), "every lost activity has its task"
        effects = {Effect(ns, worker, epoch, a.id, a.attempt) for ns, worker, epoch, a in self.checker.taken}
        assert set(self.checker.made_available) == effects, "every task had its effect"
        verdicts = await self.store.verdicts()
        assert {name: count.deaths for name, count in verdicts.items()} == self.checker.deaths
        false = {name: count.refuted for name, count in verdicts.items() if count.refuted}
        assert false == self.checker.false_deaths, "the stored death counts equal those of the log"
        self.environment.seen["A FALSE DEATH"] += sum(false.values())
        await self.engine.crash()


async def _moved(answer: Awaitable[Any]) -> int:
    count: int = (await answer).rescheduled_activities
    return count


def _ref(name: ActivityName, attempt: int) -> worker_pb2.ActivityRef:
    workflow_id, run_id, activity_id = name
    return worker_pb2.ActivityRef(
        workflow_id=workflow_id, run_id=run_id, activity_id=activity_id, attempt=attempt, task_queue="queue"
    )


def _same(worker: Worker, model: ModelWorker) -> None:
    assert worker.state.name == model.state
    assert worker.session_id == model.session
    assert worker.sequence == model.sequence
    assert worker.epoch == model.epoch
    assert worker.granted_ms == model.lease_ms
    assert worker.renewed_ms == model.heard_ms
    assert worker.deadline_ms == model.deadline_ms
    assert {tuple(id): a.attempt for id, a in worker.bindings.items()} == model.held
    assert {tuple(id): a.attempt for id, a in worker.lost.items()} == model.to_cancel
    assert worker.superseded == model.replaced
    if worker.session_id:
        assert worker.resync == model.resync
    counted = worker.heartbeats, worker.successes, worker.errors, worker.last_error
    assert counted == (model.heartbeats, model.successes, model.errors, model.last_error)
    assert bool(worker.standing.last_error_wall_ms) == model.error_reported


# -- random walks without hypothesis: they cannot be shrunk, but they reach far more situations


def random_walk(environment: ModelEnvironment, seed: int, steps: int) -> None:
    random, state_machine, way = Random(seed), EngineStateMachine(environment), []
    try:
        state_machine.begin()
        for _ in range(steps):
            [(rule_name, choices)] = random.choices(list(WALK_RULES.items()), weights=WALK_WEIGHTS)
            chosen = {name: choose(random) for name, choose in choices.items()}
            way.append(f"{rule_name}({', '.join(f'{name}={value!r}' for name, value in chosen.items())})")
            getattr(state_machine, rule_name)(**chosen)
            state_machine.model_and_server_agree()
        state_machine.teardown()
    except Exception as error:
        raise AssertionError("\n".join([f"walk({seed=}, {steps=}) went:", *way])) from error


def _one_of(*values: Any) -> Callable[[Random], Any]:
    return lambda random: random.choice(values)


def _changes(random: Random) -> tuple[tuple[ActivityName, int], ...]:
    names = random.sample(ACTIVITIES, random.choice([0, 1, 1, 2]))
    return tuple((name, random.choice([1, 1, 1, 2])) for name in names)


_KEY = {"key": _one_of(*KEYS)}
_FAULT = {"fault": _one_of(*[Fault.NONE] * 12, Fault.REJECTED, Fault.UNKNOWN_LOST, Fault.UNKNOWN_DONE)}
_BEAT = {**_KEY, **_FAULT, "bound": _changes}
_LEASE = {"lease_ms": _one_of(None, 1, 1_000, 2_500, 5_000, 40_000)}
_SEQUENCES = ("next", "gap", "equal", "lower", "none", "one")
_FULL = {"full": _one_of(False, False, True)}
_MS = {"ms": _one_of(0, 600, 5_000, 86_400_000)}

WALK_RULES: dict[str, dict[str, Callable[[Random], Any]]] = {
    "plain_heartbeat": {**_KEY, **_FAULT},
    "heartbeat_with_changes": {**_BEAT, **_LEASE, "unbound": _changes},
    "heartbeat_out_of_order": {**_BEAT, **_LEASE, **_FULL, "sequence": _one_of(*_SEQUENCES)},
    "heartbeat_of_another_session": {
        **_BEAT, **_FULL, "unbound": _changes, "session": _one_of("new", "old", "none"),
        "sequence": _one_of(*_SEQUENCES),
    },
    "heartbeat_of_a_new_incarnation": {
        **_BEAT, "session": _one_of("new", "new", "same", "old", "none"), "held_epoch": _one_of(0, 0, 1, 3),
    },
    "forget": {**_KEY, **_FAULT},
    "leave": {**_KEY, **_FAULT, "how": _one_of("same", "new", "old", "none", "force")},
    "configure": {
        **_FAULT, "namespace": _one_of(*NAMESPACES),
        "values": lambda random: {(name := random.choice(list(CONFIGS))): random.choice(CONFIGS[name])},
    },
    "time_passes": {**_FAULT, "ms": _one_of(1, 50, 250, 500, 1_000, 3_000, 12_000)},
    "deadline_comes": {**_KEY, **_FAULT, "off_ms": _one_of(-1, 0, 1)},
    "trouble": {**_MS, "what": _one_of("stand still", "jump", "crash", "restart")},
    "upkeep": {
        "what": _one_of("checkpoint", "retain", "work off"), "first": _FAULT["fault"], "second": _FAULT["fault"],
    },
}  # fmt: skip
WALK_WEIGHTS = (4, 4, 3, 2, 2, 1, 1, 1, 2, 3, 1, 2)
