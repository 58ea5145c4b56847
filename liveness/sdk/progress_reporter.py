"""Report progress of units of work in the background. Everything here but `report` and `flush` runs on the scheduler's thread.

A report has an id, so that the server counts it once, however often it is sent. Reports of one unit are sent one after the other;
those that wait are joined where that changes no count.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from uuid import uuid4

from liveness.sdk.connection import Connection, uncancellable_future
from liveness.sdk.errors import InvalidArgument
from liveness.sdk.rpc_failures import RpcFailed
from liveness.v1.progress_service_pb2 import ReportProgressRequest

WAITING_MAX = 1_000
"""How many reports wait while the server is away. Those that come then are dropped."""
IN_FLIGHT_MAX = 16
UNIT_BYTES_MAX = 200
SUCCESSES_MAX = 2**40
ERROR_CHARS_MAX = 1_024

log = logging.getLogger("liveness.sdk")


class ProgressReporter:
    def __init__(self, connection: Connection, namespace: str, worker_key: Callable[[], str]) -> None:
        self._connection = connection
        self._namespace = namespace
        self._worker_key = worker_key
        self._waiting: dict[str, deque[ReportProgressRequest]] = {}
        """Reports that are not sent yet, by unit."""
        self._waiting_count = 0
        self._in_flight: set[str] = set()
        """Units of which a report is being sent."""
        self._dropped = 0
        """Reports that were dropped since the last one that was not."""
        self._flushed: list[Future[None]] = []

    def report(self, unit: str, successes: int, error: str) -> None:
        """Any thread may call this; it returns at once."""
        if not unit or len(unit.encode()) > UNIT_BYTES_MAX:
            raise InvalidArgument(detail=f"the unit must have 1 to {UNIT_BYTES_MAX} bytes of UTF-8.")
        if not 0 <= successes <= SUCCESSES_MAX:
            raise InvalidArgument(detail="successes must be 0 to 2^40.")
        self._connection.scheduler.call_soon(lambda: self._add(unit, successes, error[:ERROR_CHARS_MAX]))

    def flush(self) -> Future[None]:
        """The future completes when no report waits or is being sent."""
        outcome: Future[None] = uncancellable_future()
        self._connection.scheduler.call_soon(lambda: self._flush(outcome))
        return outcome

    def _add(self, unit: str, successes: int, error: str) -> None:
        waiting = self._waiting.setdefault(unit, deque())
        last = waiting[-1] if waiting else None
        # A report is some successes and then at most one error.
        if last is not None and not last.error and last.successes + successes <= SUCCESSES_MAX:
            last.successes += successes
            last.error = error
        elif self._waiting_count >= WAITING_MAX:
            if not self._dropped:
                log.warning("progress of %s is dropped, because %d reports wait already", unit, WAITING_MAX)
            self._dropped += 1
            if not waiting:
                del self._waiting[unit]
            return
        else:
            self._waiting_count += 1
            waiting.append(
                ReportProgressRequest(
                    namespace=self._namespace,
                    worker_instance_key=self._worker_key(),
                    unit=unit,
                    successes=successes,
                    error=error,
                    report_id=uuid4().hex,
                )
            )
        self._send_next()

    def _send_next(self) -> None:
        if self._dropped and self._waiting_count < WAITING_MAX:
            log.warning("%d reports of progress were dropped", self._dropped)
            self._dropped = 0
        for unit in [unit for unit in self._waiting if unit not in self._in_flight]:
            if len(self._in_flight) >= IN_FLIGHT_MAX:
                break
            self._send(unit)
        if not self._waiting and not self._in_flight:
            flushed, self._flushed = self._flushed, []
            for outcome in flushed:
                outcome.set_result(None)

    def _send(self, unit: str) -> None:
        waiting = self._waiting[unit]
        request = waiting.popleft()
        self._waiting_count -= 1
        if not waiting:
            del self._waiting[unit]
        self._in_flight.add(unit)
        call = self._connection.call(
            lambda endpoint: endpoint.progress.ReportProgress,
            request,
            should_retry=lambda rpc_failure: rpc_failure.is_retryable,
        )
        call.add_done_callback(
            lambda done: self._connection.scheduler.call_soon(lambda: self._on_done(unit, done))
        )

    def _on_done(self, unit: str, call: Future[object]) -> None:
        self._in_flight.discard(unit)
        error = call.exception()
        if isinstance(error, RpcFailed):
            log.warning("progress of %s was not counted: %s", unit, error.rpc_failure)
        self._send_next()

    def _flush(self, outcome: Future[None]) -> None:
        self._flushed.append(outcome)
        self._send_next()
