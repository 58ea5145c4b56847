"""`liveness components restart`, `stop`, `start`, `pause`, `resume`, `reset` and `scale`: orders to supervisors."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event as Waiting
from typing import Any, NamedTuple

import click

from liveness.cli.client import Client, client_command, confirm, confirm_option
from liveness.cli.component_output import print_components
from liveness.cli.component_targets import (
    check_components_exist,
    find_groups,
    list_components,
    naming_similar,
    parse_targets,
)
from liveness.cli.durations import format_ms
from liveness.cli.errors import CommandError, UsageError
from liveness.cli.output import print_json, print_note, to_json
from liveness.clock import SystemClock
from liveness.domain.component import GROUP_NAME, supervisor_key
from liveness.v1.component_pb2 import (
    COMPONENT_ACTION_PAUSE,
    COMPONENT_ACTION_RESET,
    COMPONENT_ACTION_RESTART,
    COMPONENT_ACTION_RESUME,
    COMPONENT_ACTION_ROLLING_RESTART,
    COMPONENT_ACTION_SCALE,
    COMPONENT_ACTION_START,
    COMPONENT_ACTION_STOP,
    COMPONENT_STATUS_FAILED,
    Component,
    ComponentAction,
    ComponentGroup,
)
from liveness.v1.component_service_pb2 import OrderComponentsRequest
from liveness.v1.service_pb2 import DescribeWorkerRequest

POLL_SECONDS_MIN = 0.05
POLL_SECONDS_MAX = 1.0
PROCESSES_MAX = 10_000

ORDER_TIMEOUT = "2m"
ORDER_TIMEOUT_HELP = "How long to wait for the server, and until the order is carried out."


class GivenOrder(NamedTuple):
    group: str
    ids: tuple[str, ...]
    """Empty: the whole group."""
    number: int
    is_supervised: bool


def _order_options(command: Callable[..., None]) -> Callable[..., None]:
    options: list[Callable[..., Any]] = [
        click.option(
            "--wait/--no-wait",
            default=True,
            show_default=True,
            help="Wait until the supervisor has carried the order out.",
        ),
        click.option(
            "--reason", default="", metavar="TEXT", help="The reason; shown in the component's history."
        ),
    ]
    for option in options:
        command = option(command)
    return command


def _target_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--all", "all_groups", is_flag=True, help="All groups of the namespace."),
        click.argument("targets", metavar="[TARGET]...", nargs=-1),
    ):
        command = option(command)
    return command


@click.command()
@_target_options
@click.option(
    "--rolling", is_flag=True, help="One after the other; each waits until the one before is healthy."
)
@_order_options
@confirm_option
@client_command(timeout=ORDER_TIMEOUT, timeout_help=ORDER_TIMEOUT_HELP)
def restart(client: Client, *, rolling: bool, yes: bool, **options: Any) -> None:
    """End the processes of components and start new ones, also of those that have stopped or failed.

    TARGET is a component, such as worker:discovery:0 or discovery:0, or a group.

    \b
    Examples:
      liveness components restart discovery:0
      liveness components restart discovery --rolling --timeout 10m --reason "new build"
      liveness components restart --all --yes
    """
    action = COMPONENT_ACTION_ROLLING_RESTART if rolling else COMPONENT_ACTION_RESTART
    _order_targets(client, action, question=None if yes else "Restart", **options)


@click.command()
@_target_options
@_order_options
@confirm_option
@client_command(timeout=ORDER_TIMEOUT, timeout_help=ORDER_TIMEOUT_HELP)
def stop(client: Client, *, yes: bool, **options: Any) -> None:
    """End the processes of components, and start no others until `start`.

    TARGET is a component, such as worker:discovery:0 or discovery:0, or a group.

    \b
    Examples:
      liveness components stop discovery:0 --reason "it eats the disk"
      liveness components stop --all
    """
    _order_targets(client, COMPONENT_ACTION_STOP, question=None if yes else "Stop", **options)


@click.command()
@_target_options
@_order_options
@client_command(timeout=ORDER_TIMEOUT, timeout_help=ORDER_TIMEOUT_HELP)
def start(client: Client, **options: Any) -> None:
    """Start components that have stopped or failed.

    TARGET is a component, such as worker:discovery:0 or discovery:0, or a group.

    \b
    Example:
      liveness components start discovery:0 discovery:3
    """
    _order_targets(client, COMPONENT_ACTION_START, **options)


@click.command()
@_target_options
@_order_options
@confirm_option
@client_command(timeout=ORDER_TIMEOUT, timeout_help=ORDER_TIMEOUT_HELP)
def pause(client: Client, *, yes: bool, **options: Any) -> None:
    """Let components finish their current job and begin no other, until `resume`. Restarts do not end the pause.

    TARGET is a component, such as worker:discovery:0 or discovery:0, or a group.

    \b
    Example:
      liveness components pause discovery --reason "database is upgraded"
    """
    _order_targets(client, COMPONENT_ACTION_PAUSE, question=None if yes else "Pause", **options)


@click.command()
@_target_options
@_order_options
@client_command(timeout=ORDER_TIMEOUT, timeout_help=ORDER_TIMEOUT_HELP)
def resume(client: Client, **options: Any) -> None:
    """Let paused components take jobs again.

    TARGET is a component, such as worker:discovery:0 or discovery:0, or a group.

    \b
    Example:
      liveness components resume discovery
    """
    _order_targets(client, COMPONENT_ACTION_RESUME, **options)


@click.command()
@_target_options
@_order_options
@client_command(timeout=ORDER_TIMEOUT, timeout_help=ORDER_TIMEOUT_HELP)
def reset(client: Client, **options: Any) -> None:
    """Forget the restarts that the limits count, and start what has failed.

    TARGET is a component, such as worker:discovery:0 or discovery:0, or a group.

    \b
    Example:
      liveness components reset discovery:0
    """
    _order_targets(client, COMPONENT_ACTION_RESET, **options)


@click.command()
@click.argument("group")
@click.argument("count", type=click.IntRange(0, PROCESSES_MAX))
@_order_options
@client_command(timeout=ORDER_TIMEOUT, timeout_help=ORDER_TIMEOUT_HELP)
def scale(client: Client, *, group: str, count: int, reason: str, wait: bool, as_json: bool) -> None:
    """Run another number of processes in GROUP, until its supervisor reads its configuration again.

    \b
    Example:
      liveness components scale discovery 8
    """
    if not GROUP_NAME.fullmatch(group):
        raise UsageError(f"{group!r} is no group; `liveness components list` shows the groups")
    given = _give(client, COMPONENT_ACTION_SCALE, group, (), reason, count)
    _finish(client, [given], wait=wait, as_json=as_json)


def _order_targets(
    client: Client,
    action: ComponentAction.ValueType,
    *,
    targets: tuple[str, ...],
    all_groups: bool,
    reason: str,
    wait: bool,
    as_json: bool,
    question: str | None = None,
) -> None:
    """`question`: how to ask before an order to everything; None for an order that needs no question."""
    if bool(targets) == all_groups:
        raise UsageError(
            "say which components: their ids, groups, or --all for the whole namespace; not both"
            if targets
            else "say which components: their ids, groups, or --all for the whole namespace"
        )
    if all_groups:
        chosen: dict[str, set[str]] = {name: set() for name in find_groups(client).groups}
        if not chosen:
            raise CommandError(
                f"no supervisor has run in namespace {client.namespace}; `liveness supervise` starts one"
            )
        if question:
            count = sum(1 for _ in list_components(client))
            confirm(f"{question} all {count} components of namespace {client.namespace}?")
    else:
        chosen = parse_targets(targets)
        check_components_exist(client, chosen)
    given: list[GivenOrder] = []
    refused: list[CommandError] = []
    for group, ids in chosen.items():
        try:
            given.append(_give(client, action, group, tuple(sorted(ids)), reason))
        except CommandError as failure:
            refused.append(failure)
    for other in refused[:-1]:
        other.show()
    if refused and not given:
        raise refused[-1]
    if refused:
        refused[-1].show()
    _finish(client, given, wait=wait, as_json=as_json)
    if refused:
        raise click.exceptions.Exit(CommandError.exit_code)


def _give(
    client: Client,
    action: ComponentAction.ValueType,
    group: str,
    ids: tuple[str, ...],
    reason: str,
    count: int = 0,
) -> GivenOrder:
    request = OrderComponentsRequest(
        namespace=client.namespace, group=group, action=action, component_ids=ids, count=count, reason=reason
    )
    with naming_similar(client, group):
        answer = client.call(client.components.OrderComponents, request)
    return GivenOrder(group, ids, answer.order_number, answer.supervised)


def _finish(client: Client, given: list[GivenOrder], *, wait: bool, as_json: bool) -> None:
    """Wait for the orders and print what became of the components. Fails if an order was not carried out, or if a component
    has failed."""
    deadline_ms = SystemClock().monotonic_ms() + round(client.timeout_s * 1_000)
    problems = {
        order: problem for order in given if (problem := _problem(client, order, deadline_ms, wait=wait))
    }
    components = [component for order in given for component in _components_of(client, order)] if wait else []
    if as_json:
        orders = [_order_json(order, done=wait and order not in problems) for order in given]
        print_json({"orders": orders, "components": [to_json(component) for component in components]})
    elif wait:
        print_components(components, find_groups(client))
    if not wait:
        # Not to wait is to be content with orders that are carried out later.
        for order in given:
            print_note(problems.get(order) or f"Group {order.group} was given order {order.number}.")
        return
    sentences = [
        *problems.values(),
        *(_failure(component) for component in components if component.status == COMPONENT_STATUS_FAILED),
    ]
    for sentence in sentences[:-1]:
        CommandError(sentence).show()
    if sentences:
        raise CommandError(sentences[-1])


def _problem(client: Client, order: GivenOrder, deadline_ms: int, *, wait: bool) -> str:
    """Wait for one order. Returns why it was not carried out; empty if it was."""
    if not order.is_supervised:
        return (
            f"No supervisor runs group {order.group}; order {order.number} waits for the next one, "
            f"such as `liveness supervise --name {order.group} -- COMMAND`."
        )
    if not wait or _wait_until_done(client, order, deadline_ms):
        return ""
    return (
        f"Order {order.number} to group {order.group} was not carried out within "
        f"{format_ms(round(client.timeout_s * 1_000))}; it stays, and `liveness components list {order.group}` shows it."
    )


def _failure(component: Component) -> str:
    return (
        f"{component.component_id} has failed: {component.reason or 'no reason is known'}; "
        f"`liveness components logs {component.component_id}` shows its output."
    )


def _order_json(order: GivenOrder, *, done: bool) -> dict[str, object]:
    return {
        "group": order.group,
        "order_number": str(order.number),
        "supervised": order.is_supervised,
        "done": done,
    }


def _wait_until_done(client: Client, order: GivenOrder, deadline_ms: int) -> bool:
    clock, pauses, pause_s = SystemClock(), Waiting(), POLL_SECONDS_MIN
    while any(waiting.number == order.number for waiting in _group(client, order.group).waiting_orders):
        left_s = (deadline_ms - clock.monotonic_ms()) / 1_000
        if left_s <= 0:
            return False
        pauses.wait(min(pause_s, left_s))
        pause_s = min(2 * pause_s, POLL_SECONDS_MAX)
    return True


def _group(client: Client, name: str) -> ComponentGroup:
    request = DescribeWorkerRequest(namespace=client.namespace, worker_instance_key=supervisor_key(name))
    return client.call(client.liveness.DescribeWorker, request).worker.component_group


def _components_of(client: Client, order: GivenOrder) -> list[Component]:
    return [
        component
        for component in list_components(client, order.group)
        if not order.ids or component.component_id in order.ids
    ]
