"""Progress compared with a model: reports in any order, sent again, several at once, on a store that fails and servers that crash.

The model is written from the contract and not from the code: totals, and a list of the last hundred ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from liveness.clock import ManualClock
from liveness.cluster.quotas import Quotas
from liveness.domain.errors import LivenessError, ShardUnavailable
from liveness.domain.progress import UnitKey, name_of_unit
from liveness.server.progress_service import ProgressService
from liveness.v1 import progress_service_pb2 as pb
from tests.integration.engine.engine import Engine
from tests.integration.store.faulty_store import Fault, FaultyStore
from tests.model.workers.state_machine import ModelEnvironment

T = TypeVar("T")

NAMESPACE = "north"
UNITS = ("table-1", "table-2", "größe")
REMEMBERED = 100
UNITS_MAX = 2

units = st.sampled_from(UNITS)
faults = st.sampled_from([Fault.NONE] * 4 + [Fault.REJECTED, Fault.UNKNOWN_LOST, Fault.UNKNOWN_DONE])


class Report(NamedTuple):
    unit: str
    worker: str
    successes: int
    error: str
    id: str
    errors: int = 0


@dataclass(frozen=True)
class ModelUnit:
    successes: int = 0
    errors: int = 0
    last_error: str = ""
    last_error_worker: str = ""
    last_success_worker: str = ""
    failing: bool = False
    ids: list[str] = field(default_factory=list)

    def after(self, report: Report) -> ModelUnit:
        unit = replace(self, successes=self.successes + report.successes, failing=report.error != "")
        if report.successes:
            unit = replace(unit, last_success_worker=report.worker)
        if report.error:
            unit = replace(
                unit,
                errors=self.errors + (report.errors or 1),
                last_error=report.error,
                last_error_worker=report.worker,
            )
        return replace(unit, ids=[*self.ids, report.id][-REMEMBERED:]) if report.id else unit


class ProgressStateMachine(RuleBasedStateMachine):
    def __init__(self, environment: ModelEnvironment) -> None:
        super().__init__()
        self.environment = environment
        self.clock = ManualClock()
        self.store = FaultyStore(environment.database)
        self.units: dict[str, ModelUnit] = {}
        self.sent: list[Report] = []
        self.ids = 0
        self.engine: Engine
        self.service: ProgressService

    def run(self, work: Awaitable[T]) -> T:
        return self.environment.runner.run(work)  # type: ignore[arg-type]

    @initialize()
    def begin(self) -> None:
        self.run(self.environment.clear())
        self.run(self._start())

    async def _start(self) -> None:
        self.engine = Engine(self.store, self.clock)
        node = self.engine.node
        node.policies.replace(NAMESPACE, {"max_progress_units": UNITS_MAX})
        self.service = ProgressService(node, self.engine.telemetry, Quotas(node))
        await self.engine.start()

    # -- rules

    @rule(
        unit=units,
        worker=st.sampled_from(["w1", "w2"]),
        successes=st.integers(0, 3),
        error=st.sampled_from(["", "", "kaputt 💥"]),
        errors=st.integers(0, 3),
        has_id=st.booleans(),
        fault=faults,
    )
    def report(
        self, unit: str, worker: str, successes: int, error: str, errors: int, has_id: bool, fault: Fault
    ) -> None:
        id = self._new_id() if has_id else ""
        self._send([Report(unit, worker, successes, error, id, errors if error else 0)], fault)

    @rule(back=st.sampled_from([1, 1, 1, 2, 3, 60, 120]), times=st.integers(1, 3), fault=faults)
    def report_again(self, back: int, times: int, fault: Fault) -> None:
        """What a reporter does that got no answer; also late, and several times at once."""
        if len(self.sent) >= back and self.sent[-back].id:
            self._send([self.sent[-back]] * times, fault)

    @rule(unit=units, count=st.sampled_from([3, 60]), fault=faults)
    def many_at_once(self, unit: str, count: int, fault: Fault) -> None:
        self._send([Report(unit, "w3", 1, "", self._new_id()) for _ in range(count)], fault)

    @rule(unit=units, fault=faults)
    def forget(self, unit: str, fault: Fault) -> None:
        request = pb.ForgetProgressRequest(namespace=NAMESPACE, unit=unit)
        expected = "OK" if unit in self.units else "UNIT_NOT_FOUND"
        after = {name: known for name, known in self.units.items() if name != unit}
        self._compare([(self.service.forget_progress(request), expected)], [after], fault)

    @rule(how=st.sampled_from(["crash", "stop", "checkpoint", "retain"]))
    def trouble(self, how: str) -> None:
        if how == "checkpoint":
            self.run(self.engine.maintenance.checkpoint())
        elif how == "retain":
            self.clock.move(86_400_000)
            self.run(self.engine.maintenance.apply_retention())
        else:
            self.run(self.engine.crash() if how == "crash" else self.engine.stop())
            self.run(self._start())

    # -- execution

    def _new_id(self) -> str:
        self.ids += 1
        return f"report-{self.ids}"

    def _send(self, reports: Sequence[Report], fault: Fault) -> None:
        calls, states = [], []
        known = self.units
        for report in reports:
            expected = "OK"
            unit = known.get(report.unit)
            if unit is None and len(known) >= UNITS_MAX:
                expected = "UNIT_QUOTA_EXCEEDED"
            elif unit is not None and report.id and report.id in unit.ids:
                expected = "REPEATED"
            else:
                known = {**known, report.unit: (unit or ModelUnit()).after(report)}
            self.sent.append(report)
            calls.append((self._report(report), expected))
            states.append(known)
        self._compare(calls, states, fault)

    async def _report(self, report: Report) -> str:
        answer = await self.service.report_progress(
            pb.ReportProgressRequest(
                namespace=NAMESPACE,
                worker_instance_key=report.worker,
                unit=report.unit,
                successes=report.successes,
                error=report.error,
                report_id=report.id,
                errors=report.errors,
            )
        )
        return "REPEATED" if answer.repeated_report else "OK"

    def _compare(
        self, calls: Sequence[tuple[Awaitable[Any], str]], states: list[dict[str, ModelUnit]], fault: Fault
    ) -> None:
        """The calls are decided in their order and share one commit. If it fails, none of them changed anything, unless it was
        committed after all."""

        async def act() -> list[Any]:
            self.store.faults.append(fault)
            try:
                return await asyncio.gather(*(call for call, _ in calls), return_exceptions=True)
            finally:
                self.store.faults.clear()
                await self.engine.recovered()

        failed = len(self.store.failed)
        answers = self.run(act())
        if len(self.store.failed) > failed:
            self.environment.seen[fault.name] += 1
            assert all(isinstance(answer, ShardUnavailable) for answer in answers), "who waits is told"
            if fault is not Fault.UNKNOWN_DONE:
                return
        else:
            for answer, (_, expected) in zip(answers, calls, strict=True):
                if isinstance(answer, LivenessError):
                    told = answer.reason
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    told = answer if isinstance(answer, str) else "OK"
                assert told == expected
                self.environment.seen[told] += 1
        self.units = states[-1]

    # -- checks

    @invariant()
    def model_and_server_agree(self) -> None:
        node = self.engine.node
        in_memory = {}
        for unit in UNITS:
            key = UnitKey(NAMESPACE, unit)
            book = node.shard(NAMESPACE, name_of_unit(unit)).progress
            if key in book:
                in_memory[unit] = book[key]
        assert in_memory.keys() == self.units.keys()
        assert node.count_units(NAMESPACE) == len(self.units)
        rows = self.run(self.store.list_progress(NAMESPACE, "", False, None, 100))
        assert {row.key.unit: row.progress for row in rows} == in_memory, "the rows equal the memory"
        for unit, found in in_memory.items():
            expected = self.units[unit]
            assert (
                found.successes, found.errors, found.last_error, found.last_error_worker,
                found.last_success_worker, found.failing, list(found.report_ids),
            ) == (
                expected.successes, expected.errors, expected.last_error, expected.last_error_worker,
                expected.last_success_worker, expected.failing, expected.ids,
            )  # fmt: skip
            self.environment.seen["AN ID WAS FORGOTTEN"] += len(expected.ids) == REMEMBERED

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.run(self.engine.crash())
