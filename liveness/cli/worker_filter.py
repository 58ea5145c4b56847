"""Options that select workers: by state, task queue, build, host and the beginning of their key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import click

from liveness.cli.client import check_utf8
from liveness.v1.service_pb2 import WorkerFilter
from liveness.v1.worker_pb2 import (
    WORKER_STATE_ACTIVE,
    WORKER_STATE_CLEANED_UP,
    WORKER_STATE_INACTIVE,
    WorkerState,
)

ACTIVE_OR_INACTIVE: Mapping[str, WorkerState.ValueType] = {
    "active": WORKER_STATE_ACTIVE,
    "inactive": WORKER_STATE_INACTIVE,
}
"""The states of workers that can be given orders."""
STATES: Mapping[str, WorkerState.ValueType] = {**ACTIVE_OR_INACTIVE, "cleaned-up": WORKER_STATE_CLEANED_UP}


def filter_options(
    states: Mapping[str, WorkerState.ValueType],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options, and pass the command a filter as `where`; None if no option was given."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(
            *args: Any,
            chosen: tuple[str, ...],
            task_queue: str,
            build_id: str,
            host: str,
            prefix: str,
            query: str,
            **rest: Any,
        ) -> None:
            check_utf8(task_queue, build_id, host, prefix, query)
            where = WorkerFilter(
                states=[states[state] for state in chosen],
                task_queue=task_queue,
                build_id=build_id,
                host_name=host,
                key_prefix=prefix,
                query=query,
            )
            command(*args, where=where if where.ListFields() else None, **rest)

        options: list[Callable[..., Any]] = [
            click.option(
                "--filter",
                "query",
                default="",
                metavar="WORDS",
                help='Only workers with all these words, as in the dashboard: "state:inactive host:db-3 photo".',
            ),
            click.option(
                "--prefix", default="", metavar="TEXT", help="Only workers whose key begins with this."
            ),
            click.option("--host", default="", metavar="NAME", help="Only workers on this host."),
            click.option("--build-id", default="", metavar="ID", help="Only workers of this build."),
            click.option("--task-queue", default="", metavar="NAME", help="Only workers of this task queue."),
            click.option(
                "--state",
                "chosen",
                type=click.Choice(tuple(states)),
                multiple=True,
                help="Only workers in this state; may be repeated.",
            ),
        ]
        decorated: Callable[..., None] = run
        for option in options:
            decorated = option(decorated)
        return decorated

    return decorate
