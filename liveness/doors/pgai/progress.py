"""Tells liveness the progress of each vectorizer: the differences between its row and what liveness has recorded.

The id of a report is made from the totals that it adds to, so that of all reports which start from the same totals, whoever sends
them, one is counted. The answer brings the totals that the next one starts from.

There may be thousands of vectorizers. A turn of the follower reports for a limited time, because heartbeats wait meanwhile; what is
left is reported in later turns.
"""

from __future__ import annotations

import asyncio
from collections import deque

import structlog

from liveness.background import RepeatedWarning
from liveness.clock import Clock
from liveness.doors.pgai.counting import COUNTER_MAX, Totals
from liveness.doors.pgai.door_lease import DOOR_KEY, LivenessAway
from liveness.doors.pgai.rows import ProgressRow
from liveness.sdk.loop_client import LivenessClient, RpcFailed
from liveness.v1.progress_service_pb2 import (
    ListProgressRequest,
    ReportProgressRequest,
    ReportProgressResponse,
    UnitProgress,
)

logger = structlog.get_logger("liveness.door")

CALL_TIMEOUT_MS = 2_000
PAGE_SIZE = 1_000
TURN_MS_MAX = 500
REPORTS_AT_ONCE = 32
RETRY_MS = 30_000


class ProgressReporter:
    def __init__(self, namespace: str, client: LivenessClient, clock: Clock) -> None:
        self._namespace = namespace
        self._client = client
        self._clock = clock
        self._recorded: dict[str, Totals] | None = None
        """By unit, for those that liveness has; None if it was not asked yet."""
        self._bases: dict[str, Totals] = {}
        """The recorded totals minus what of the row they contain, for rows whose totals have been set back."""
        self._reported: dict[str, Totals] = {}
        """The row's totals when it was last reported, or found to be."""
        self._due: dict[str, ProgressRow] = {}
        """Rows that changed since then, in the order in which their units are reported."""
        self._retry_ms: dict[str, int] = {}
        self._warning = RepeatedWarning(logger, "progress is not recorded", clock)

    def forget(self) -> None:
        """Ask liveness anew: another follower may have reported."""
        self._recorded = None
        self._bases.clear()
        self._reported.clear()
        self._due.clear()

    async def report(self, rows: tuple[ProgressRow, ...]) -> None:
        """`rows`: at least those that changed since the last call. Raises LivenessAway."""
        for row in rows:
            if self._reported.get(row.unit) != row.totals:
                self._due[row.unit] = row
        now_ms = self._clock.monotonic_ms()
        waiting = deque(unit for unit in self._due if now_ms >= self._retry_ms.get(unit, 0))
        try:
            if self._recorded is None and waiting:
                self._recorded = await self._list()
            if self._recorded is None:
                return
            while waiting and self._clock.monotonic_ms() - now_ms < TURN_MS_MAX:
                batch = [waiting.popleft() for _ in range(min(len(waiting), REPORTS_AT_ONCE))]
                # Units that are not done now come after those that had no turn yet.
                rows_of_batch = [self._due.pop(unit) for unit in batch]
                self._due.update(zip(batch, rows_of_batch, strict=True))
                for outcome in await asyncio.gather(
                    *map(self._report, rows_of_batch), return_exceptions=True
                ):
                    if isinstance(outcome, BaseException):
                        raise outcome
        except RpcFailed as error:
            raise LivenessAway(str(error)) from None

    async def _report(self, row: ProgressRow) -> None:
        """Raises RpcFailed if liveness does not answer."""
        assert self._recorded is not None
        base = self._recorded.get(row.unit, Totals())
        try:
            for request in self._requests(row, base):
                # Of all reports that start from these totals, one counts.
                request.report_id = f"pgai:{base.successes}:{base.errors}"
                expected = Totals(base.successes + request.successes, base.errors + request.errors)
                answer: ReportProgressResponse = await self._client.call(
                    lambda endpoint: endpoint.progress.ReportProgress, request, CALL_TIMEOUT_MS
                )
                base = self._recorded[row.unit] = _totals(answer.progress)
                if base != expected:
                    return  # a report of a predecessor counted: there is another difference now
        except RpcFailed as error:
            if error.rpc_failure.is_retryable:
                raise
            self._warning.warn(unit=row.unit, why=str(error))
            self._retry_ms[row.unit] = self._clock.monotonic_ms() + RETRY_MS
            return
        self._warning.resolve()
        if self._difference(row, base) == Totals():
            del self._due[row.unit]
            self._reported[row.unit] = row.totals

    def _requests(self, row: ProgressRow, recorded: Totals) -> list[ReportProgressRequest]:
        """One for the successes and one for the errors, each with its own worker. The later outcome comes last."""
        successes, errors = self._difference(row, recorded)
        requests = []
        if successes:
            request = self._request(row.unit, row.success_worker)
            request.successes = min(successes, COUNTER_MAX)
            requests.append(request)
        if errors:
            request = self._request(row.unit, row.error_worker)
            request.errors = min(errors, COUNTER_MAX)
            request.error = row.last_error or "no message"
            requests.append(request)
        return requests[::-1] if row.success_s > row.error_s else requests

    def _request(self, unit: str, worker: str) -> ReportProgressRequest:
        return ReportProgressRequest(
            namespace=self._namespace, worker_instance_key=worker or DOOR_KEY, unit=unit
        )

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

    async def _list(self) -> dict[str, Totals] | None:
        """What liveness has recorded; None if it may not be read. A report that is under way adds to totals of this list or later ones, so that its id is known
        to whoever starts from them."""
        found: dict[str, Totals] = {}
        request = ListProgressRequest(namespace=self._namespace, page_size=PAGE_SIZE)
        while True:
            try:
                page = await self._client.call(
                    lambda endpoint: endpoint.progress.ListProgress, request, CALL_TIMEOUT_MS
                )
            except RpcFailed as error:
                if error.rpc_failure.is_retryable:
                    raise
                self._warning.warn(namespace=self._namespace, why=str(error))
                return None
            found.update((unit.unit, _totals(unit)) for unit in page.units)
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token


def _totals(progress: UnitProgress) -> Totals:
    return Totals(progress.successes, progress.errors)
