"""Tells liveness the progress of each vectorizer: the differences between its row and what liveness has recorded.

The id of a report is made from the totals that it adds to, so that of all reports which start from the same totals, whoever sends
them, one is counted. The answer brings the totals that the next one starts from.
"""

from __future__ import annotations

import grpc
import structlog

from liveness.background import RepeatedWarning
from liveness.clock import Clock
from liveness.doors.pgai.counting import COUNTER_MAX, Totals
from liveness.doors.pgai.door_lease import DOOR_KEY, LivenessAway
from liveness.doors.pgai.rows import ProgressRow
from liveness.sdk.loop_client import LivenessClient, RpcFailed
from liveness.v1.progress_service_pb2 import (
    GetProgressRequest,
    ReportProgressRequest,
    ReportProgressResponse,
    UnitProgress,
)

logger = structlog.get_logger("liveness.door")

CALL_TIMEOUT_MS = 2_000
REPORTS_PER_TURN = 20
"""For one unit: a report carries one error, so that many take several turns."""
RETRY_MS = 30_000


class ProgressReporter:
    def __init__(self, namespace: str, client: LivenessClient, clock: Clock) -> None:
        self._namespace = namespace
        self._client = client
        self._clock = clock
        self._recorded: dict[str, Totals] = {}
        self._bases: dict[str, Totals] = {}
        """The recorded totals minus what of the row they contain, for rows whose totals have been set back."""
        self._retry_ms: dict[str, int] = {}
        self._warning = RepeatedWarning(logger, "progress is not recorded", clock)

    def forget(self) -> None:
        """Ask liveness anew: another follower may have reported."""
        self._recorded.clear()
        self._bases.clear()

    async def report(self, rows: tuple[ProgressRow, ...]) -> None:
        """Raises LivenessAway."""
        for row in rows:
            if self._clock.monotonic_ms() < self._retry_ms.get(row.unit, 0):
                continue
            try:
                await self._report(row)
            except RpcFailed as error:
                if error.rpc_failure.is_retryable:
                    raise LivenessAway(str(error)) from None
                self._warning.warn(unit=row.unit, why=str(error))
                self._retry_ms[row.unit] = self._clock.monotonic_ms() + RETRY_MS
                continue
            self._warning.resolve()

    async def _report(self, row: ProgressRow) -> None:
        recorded = self._recorded.get(row.unit)
        if recorded is None:
            recorded = await self._read(row.unit)
        for _ in range(REPORTS_PER_TURN):
            successes, errors = self._difference(row, recorded)
            self._recorded[row.unit] = recorded
            if not successes and not errors:
                return
            # An error is reported with the worker that had it; the successes go with their own.
            request = ReportProgressRequest(
                namespace=self._namespace,
                worker_instance_key=(row.error_worker if errors and not successes else row.success_worker)
                or DOOR_KEY,
                unit=row.unit,
                successes=min(successes, COUNTER_MAX),
                error="" if successes else (row.last_error or "no message"),
                report_id=f"pgai:{recorded.successes}:{recorded.errors}",
            )
            answer: ReportProgressResponse = await self._client.call(
                lambda endpoint: endpoint.progress.ReportProgress, request, CALL_TIMEOUT_MS
            )
            recorded = _totals(answer.progress)
        self._recorded[row.unit] = recorded

    def _difference(self, row: ProgressRow, recorded: Totals) -> Totals:
        base = self._bases.get(row.unit, Totals())
        difference = Totals(
            row.totals.successes - (recorded.successes - base.successes),
            row.totals.errors - (recorded.errors - base.errors),
        )
        if min(difference) >= 0:
            return difference
        # A total that has been set back counts nothing, and is counted on from where it is now.
        self._bases[row.unit] = Totals(
            base.successes - min(difference.successes, 0), base.errors - min(difference.errors, 0)
        )
        return Totals(max(difference.successes, 0), max(difference.errors, 0))

    async def _read(self, unit: str) -> Totals:
        try:
            answer = await self._client.call(
                lambda endpoint: endpoint.progress.GetProgress,
                GetProgressRequest(namespace=self._namespace, unit=unit),
                CALL_TIMEOUT_MS,
            )
        except RpcFailed as error:
            if error.rpc_failure.code is not grpc.StatusCode.NOT_FOUND:
                raise
            return Totals()
        return _totals(answer.progress)


def _totals(progress: UnitProgress) -> Totals:
    return Totals(progress.successes, progress.errors)
