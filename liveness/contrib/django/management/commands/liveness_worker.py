"""`manage.py liveness_worker`: run the activities of all apps until SIGTERM, Ctrl-C or an operator's drain."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections
from django.utils.module_loading import autodiscover_modules

from liveness.contrib.django import registered
from liveness.sdk import LivenessSdkError, Worker

MODULE = "activities"


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    help = f"Run the activities that the modules `{MODULE}` of the installed apps register."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--address", help="The server.  [default: LIVENESS_ADDRESS or 127.0.0.1:7400]")
        parser.add_argument("--namespace", help="[default: LIVENESS_NAMESPACE or default]")
        parser.add_argument("--task-queue", required=True, help="The task queue to poll.")
        parser.add_argument("--max-concurrent", type=int, default=10, help="[default: 10]")
        parser.add_argument(
            "--stop-timeout",
            type=float,
            default=10.0,
            help="Seconds for running handlers at the end.  [default: 10]",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        autodiscover_modules(MODULE)
        if not registered:
            raise CommandError(
                f"no app has activities; write a module {MODULE}.py with functions under @activity, and add its app to INSTALLED_APPS."
            )
        _show_log(options["verbosity"])
        try:
            worker = Worker(
                options["address"],
                namespace=options["namespace"],
                task_queue=options["task_queue"],
                max_concurrent=options["max_concurrent"],
                stop_timeout=options["stop_timeout"],
            )
            with worker:
                for activity_type, handler in registered.items():
                    worker.activity(activity_type)(_with_connections(handler))
                worker.run_blocking()
        except LivenessSdkError as error:
            raise CommandError(str(error)) from error


def _show_log(verbosity: int) -> None:
    """Show what the SDK logs, unless the project's LOGGING does, or --verbosity 0 asks for silence."""
    logger = logging.getLogger("liveness")
    if verbosity and not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)


def _with_connections(handler: Callable[..., Any]) -> Callable[..., Any]:
    """What Django does around a request: no handler gets a database connection that is too old or broken."""
    if inspect.iscoroutinefunction(handler):
        return handler  # Django's asynchronous queries run in a thread that it minds itself

    @wraps(handler)
    def run(*args: Any, **options: Any) -> Any:
        close_old_connections()
        try:
            return handler(*args, **options)
        finally:
            close_old_connections()

    return run
