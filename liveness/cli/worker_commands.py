"""`liveness workers pause`, `resume` and `drain`: orders of operators to workers."""

from __future__ import annotations

from collections.abc import Callable

import click

from liveness.cli.client import (
    Client,
    Milliseconds,
    client_command,
    confirm,
    confirm_option,
)
from liveness.cli.durations import format_ms, from_ms
from liveness.cli.errors import CommandError, UsageError
from liveness.cli.output import print_json, print_note, to_json
from liveness.cli.worker_filter import ACTIVE_OR_INACTIVE, filter_options
from liveness.v1.admin_pb2 import (
    DrainWorkerRequest,
    GetConfigRequest,
    PauseWorkersRequest,
    ResumeWorkersRequest,
)
from liveness.v1.service_pb2 import CountWorkersRequest, DescribeWorkerRequest, WorkerFilter
from liveness.v1.worker_pb2 import Worker

NAMESPACE_PAUSED = "the whole namespace is paused; `liveness workers resume --all` resumes it"

keys_argument = click.argument("keys", metavar="[KEY]...", nargs=-1)


def _check_selection(keys: tuple[str, ...], where: WorkerFilter | None, all_workers: bool) -> None:
    selector_count = bool(keys) + (where is not None) + all_workers
    if selector_count == 0:
        raise UsageError(
            "say which workers: their KEYs, a condition like --task-queue, or --all for the whole namespace"
        )
    if selector_count > 1:
        raise UsageError(
            "workers are chosen by their KEYs, by conditions, or by --all; use one of these only"
        )


@click.command()
@keys_argument
@click.option(
    "--all", "all_workers", is_flag=True, help="The whole namespace, with the workers that join later."
)
@filter_options(ACTIVE_OR_INACTIVE)
@click.option("--reason", default="", metavar="TEXT", help="The reason; recorded with the event.")
@confirm_option
@client_command()
def pause(
    client: Client,
    *,
    keys: tuple[str, ...],
    all_workers: bool,
    where: WorkerFilter | None,
    reason: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Give workers no new work. They keep their leases and finish their activities.

    The pause lasts until `resume`, across restarts of the server and of the workers. Conditions select among the workers
    that exist now.

    \b
    Examples:
      liveness workers pause worker-7 worker-8 --reason "disk is full"
      liveness workers pause --build-id 1.4.0
      liveness workers pause --all
    """
    _check_selection(keys, where, all_workers)
    if all_workers and not yes:
        confirm(
            f"Pause the whole namespace {client.namespace}, with its {_existing_workers(client)} and all that join later?"
        )

    def send(key: str) -> int:
        request = PauseWorkersRequest(
            namespace=client.namespace, worker_instance_key=key, filter=where, all=all_workers, reason=reason
        )
        return client.call(client.admin.PauseWorkers, request).changed

    def outcome(worker: Worker, changed: int) -> str:
        return f"Worker {worker.worker_instance_key} {'is paused' if changed else 'was paused before'}."

    if keys:
        _apply_to_each(client, keys, send, outcome, "paused", as_json=as_json)
        return
    changed = send("")
    if as_json:
        _print_changed(changed)
    elif all_workers:
        print_note(f"Namespace {client.namespace} is paused; that changed {_worker_count(changed)}.")
    elif changed:
        print_note(f"{_worker_count(changed)} paused.")
    else:
        print_note("No worker was paused: none meets the conditions, or those that do were paused before.")


@click.command()
@keys_argument
@click.option(
    "--all",
    "all_workers",
    is_flag=True,
    help="The whole namespace, with every worker that was paused on its own.",
)
@filter_options(ACTIVE_OR_INACTIVE)
@confirm_option
@client_command()
def resume(
    client: Client,
    *,
    keys: tuple[str, ...],
    all_workers: bool,
    where: WorkerFilter | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Give paused workers work again, at once.

    \b
    Examples:
      liveness workers resume worker-7 worker-8
      liveness workers resume --build-id 1.4.0
      liveness workers resume --all
    """
    _check_selection(keys, where, all_workers)
    if all_workers and not yes:
        confirm(
            f"Resume the whole namespace {client.namespace}, with every worker that was paused on its own?"
        )

    def send(key: str) -> int:
        request = ResumeWorkersRequest(
            namespace=client.namespace, worker_instance_key=key, filter=where, all=all_workers
        )
        return client.call(client.admin.ResumeWorkers, request).changed

    def outcome(worker: Worker, changed: int) -> str:
        if worker.paused:
            return f"Worker {worker.worker_instance_key} stays paused, because {NAMESPACE_PAUSED}."
        return f"Worker {worker.worker_instance_key} {'is resumed' if changed else 'was not paused'}."

    if keys:
        _apply_to_each(client, keys, send, outcome, "resumed", as_json=as_json)
        return
    changed = send("")
    if as_json:
        _print_changed(changed)
    elif all_workers:
        print_note(f"Namespace {client.namespace} is resumed; that changed {_worker_count(changed)}.")
    elif _namespace_is_paused(client):
        print_note(
            f"No worker was resumed, because {NAMESPACE_PAUSED}; {_worker_count(changed)} will not be paused then."
        )
    elif changed:
        print_note(f"{_worker_count(changed)} resumed.")
    else:
        print_note("No worker was resumed: none meets the conditions, or those that do were not paused.")


def _apply_to_each(
    client: Client,
    keys: tuple[str, ...],
    send: Callable[[str], int],
    outcome: Callable[[Worker, int], str],
    done: str,
    *,
    as_json: bool,
) -> None:
    """Send the order to each worker, and print the result in a line. A refusal does not stop the others."""
    total = 0
    refused: list[CommandError] = []
    for key in dict.fromkeys(keys):
        try:
            changed = send(key)
            request = DescribeWorkerRequest(namespace=client.namespace, worker_instance_key=key)
            worker = client.call(client.liveness.DescribeWorker, request).worker
        except CommandError as failure:
            refused.append(failure)
            continue
        total += changed
        if not as_json:
            print_note(outcome(worker, changed))
    if as_json:
        _print_changed(total)
    for other in refused[:-1]:
        other.show()
    if refused:
        raise refused[-1]


@click.command()
@click.argument("key")
@click.option(
    "--limit",
    "limit_ms",
    type=Milliseconds(),
    default="60s",
    show_default=True,
    help="Reschedule the remaining activities after this time.",
)
@click.option("--reason", default="", metavar="TEXT", help="The reason; shown in the worker's history.")
@client_command()
def drain(client: Client, *, key: str, limit_ms: int, reason: str, as_json: bool) -> None:
    """Give a worker no new work, let it finish its activities and end.

    Draining it again sets a new limit.

    \b
    Example:
      liveness workers drain worker-7 --limit 5m --reason "host db-3 is retired"
    """
    response = client.call(
        client.admin.DrainWorker,
        DrainWorkerRequest(
            namespace=client.namespace, worker_instance_key=key, limit=from_ms(limit_ms), reason=reason
        ),
    )
    if as_json:
        print_json(to_json(response))
        return
    held = response.bound_activities
    print_note(
        f"Worker {key} is draining; it holds {held} {'activity' if held == 1 else 'activities'}, "
        f"and those left after {format_ms(limit_ms)} are rescheduled."
    )


def _print_changed(count: int) -> None:
    print_json({"changed": count})


def _namespace_is_paused(client: Client) -> bool:
    request = GetConfigRequest(namespace=client.namespace)
    return bool(client.call(client.admin.GetConfig, request).effective.paused)


def _existing_workers(client: Client) -> str:
    request = CountWorkersRequest(
        namespace=client.namespace, filter=WorkerFilter(states=list(ACTIVE_OR_INACTIVE.values()))
    )
    return _worker_count(client.call(client.liveness.CountWorkers, request).total)


def _worker_count(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"
