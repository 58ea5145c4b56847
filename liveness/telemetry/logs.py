"""Structured logs: one event per line, JSON for machines, columns for a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import structlog

from liveness.engine.listener import NodeListener
from liveness.engine.shard import PreparedCommit

logger = structlog.get_logger("liveness.worker")


def configure_logging(level: str, log_format: str) -> None:
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    renderer = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks if as_json else structlog.processors.UnicodeDecoder(),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Of libraries that use the standard logging, only warnings and errors are shown.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    for name in ("apscheduler", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


class TransitionLog(NodeListener):
    """Logs each change of a worker's state once it is durable."""

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
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
                logger.info("worker changed", **fields)
