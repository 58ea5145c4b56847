"""Structured logs: one event per line, JSON for machines, columns for a terminal.

Everything that the process writes to stderr goes this way: our own events, those of libraries that use the standard
logging (asyncio, gRPC, APScheduler, uvicorn), warnings, and exceptions that nobody caught. gRPC's C core writes by itself;
`liveness serve` silences it (GRPC_VERBOSITY).

Clients cause many of these lines, so each event has a rate: beyond it, lines are dropped, and the next one that is written
says how many were.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

import structlog
from structlog.typing import EventDict, Processor

from liveness.clock import SystemClock
from liveness.engine.listener import NodeListener
from liveness.engine.shard import PreparedCommit

logger = structlog.get_logger("liveness.worker")
_process_logger = structlog.get_logger("liveness.process")

_FOREIGN_LEVEL = logging.WARNING
"""Of libraries, only warnings and errors are shown."""


LINES_PER_S = 100
LINES_BURST = 1_000
_EVENTS_MAX = 1_000
"""Our own events have fixed names, so there are never as many."""


class LineLimit:
    """The rate of each event's lines."""

    def __init__(self, monotonic_ms: Callable[[], int] | None = None) -> None:
        self._monotonic_ms = monotonic_ms or SystemClock().monotonic_ms
        self._lock = threading.Lock()
        """Several threads write logs."""
        self._lines_left: dict[str, tuple[float, int]] = {}
        """How many lines of an event may be written, as of a time."""
        self._dropped: dict[str, int] = {}

    def admit(self, event: str) -> int | None:
        """Returns how many lines of this event were dropped since the last one that was written; None: drop this one too."""
        now_ms = self._monotonic_ms()
        with self._lock:
            if event not in self._lines_left and len(self._lines_left) >= _EVENTS_MAX:
                self._lines_left.clear()
            left, at_ms = self._lines_left.get(event, (LINES_BURST, now_ms))
            left = min(LINES_BURST, left + (now_ms - at_ms) * LINES_PER_S / 1_000)
            if left < 1:
                self._lines_left[event] = left, now_ms
                self._dropped[event] = self._dropped.get(event, 0) + 1
                return None
            self._lines_left[event] = left - 1, now_ms
            return self._dropped.pop(event, 0)

    def drop_excess(self, _: object, level: str, event_dict: EventDict) -> EventDict:
        """A processor for our own events."""
        if level != "critical":
            dropped = self.admit(str(event_dict.get("event")))
            if dropped is None:
                raise structlog.DropEvent
            if dropped:
                event_dict["dropped"] = dropped
        return event_dict

    def filter(self, record: logging.LogRecord) -> bool:
        """A filter for libraries: all lines of a logger share one rate, because their texts may contain anything."""
        dropped = self.admit(f"logger {record.name}")
        record.dropped_lines = dropped
        return dropped is not None


def configure_logging(level: str, log_format: str) -> None:
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    renderer: Processor = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    limit = LineLimit()
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _json_tracebacks if as_json else structlog.processors.UnicodeDecoder(),
    ]
    structlog.configure(
        processors=[limit.drop_excess, *shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        # One write per line: lines of different threads do not mix.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    _redirect_standard_logging(shared, renderer, limit)
    _redirect_uncaught_exceptions()


_json_tracebacks = structlog.processors.ExceptionRenderer(
    # Local variables may hold passwords and users' data.
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)


class _ForeignHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Known by its class, so that configuring twice does not write lines twice."""


def _redirect_standard_logging(shared: list[Processor], renderer: Processor, limit: LineLimit) -> None:
    handler = _ForeignHandler(sys.stderr)
    handler.addFilter(limit.filter)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [*(known for known in root.handlers if not isinstance(known, _ForeignHandler)), handler]
    root.setLevel(_FOREIGN_LEVEL)
    for name in ("apscheduler", "alembic"):
        logging.getLogger(name).setLevel(_FOREIGN_LEVEL)
    logging.captureWarnings(capture=True)


def _add_logger_name(_: object, __: str, event_dict: EventDict) -> EventDict:
    event_dict["logger"] = event_dict["_record"].name
    if dropped := getattr(event_dict["_record"], "dropped_lines", 0):
        event_dict["dropped"] = dropped
    return event_dict


def _redirect_uncaught_exceptions() -> None:
    def on_exception(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, traceback)
        else:
            _process_logger.critical("uncaught exception", exc_info=(kind, error, traceback))

    def on_thread_exception(found: threading.ExceptHookArgs) -> None:
        if found.exc_value is not None and found.exc_type is not SystemExit:
            _process_logger.error(
                "uncaught exception in a thread",
                thread=found.thread.name if found.thread is not None else "",
                exc_info=(found.exc_type, found.exc_value, found.exc_traceback),
            )

    def on_unraisable(found: sys.UnraisableHookArgs) -> None:
        _process_logger.error(
            found.err_msg or "exception ignored",
            object=repr(found.object),
            exc_info=(found.exc_type, found.exc_value, found.exc_traceback),
        )

    sys.excepthook = on_exception
    threading.excepthook = on_thread_exception
    sys.unraisablehook = on_unraisable


class TransitionLog(NodeListener):
    """Logs each change of a worker's state once it is durable."""

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        bound = logger.bind()  # once for all lines: thousands of leases may end in one commit
        for commit in commits:
            for change in commit.transitions:
                fields = {
                    "worker-id": change.key.instance_key,
                    "namespace": change.key.namespace,
                    "from": change.before.name if change.before else "NONE",
                    "to": change.after.name if change.after else "FORGOTTEN",
                    "reason": change.reason,
                }
                if change.activities:
                    fields["rescheduled"] = str(change.activities)
                bound.info("worker changed", **fields)
