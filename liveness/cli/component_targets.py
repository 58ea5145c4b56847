"""Which components a command means, and what the server knows about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

import click

from liveness.cli.client import Client
from liveness.cli.component_output import GroupFinder
from liveness.cli.errors import CommandError, UsageError
from liveness.domain.component import COMPONENT_PREFIX, GROUP_NAME, component_id, group_of
from liveness.v1.component_pb2 import Component, ComponentStatus
from liveness.v1.component_service_pb2 import ListComponentGroupsRequest, ListComponentsRequest

NOT_FOUND = ("COMPONENT_NOT_FOUND", "COMPONENT_GROUP_NOT_FOUND", "WORKER_NOT_FOUND")


def parse_id(text: str) -> str | None:
    """worker:GROUP:INDEX, also for GROUP:INDEX; None if it is neither."""
    for id in (text, f"{COMPONENT_PREFIX}{text}"):
        if group_of(id) is not None:
            return id
    return None


def component_option_id(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Read the argument ID."""
    id = parse_id(value)
    if id is None:
        raise UsageError(
            f"{value!r} is no component; write its id, such as {component_id('discovery', 0)} or discovery:0"
        )
    return id


def parse_targets(targets: Iterable[str]) -> dict[str, set[str]]:
    """Return the chosen component ids by group; none means the whole group."""
    chosen: dict[str, set[str]] = {}
    whole: set[str] = set()
    for target in targets:
        id = parse_id(target)
        if id is not None:
            group = group_of(id)
            assert group is not None
            chosen.setdefault(group, set()).add(id)
        elif GROUP_NAME.fullmatch(target):
            chosen.setdefault(target, set())
            whole.add(target)
        else:
            raise UsageError(
                f"{target!r} is neither a component, such as {component_id('discovery', 0)} or discovery:0, nor a group"
            )
    return {group: set() if group in whole else ids for group, ids in chosen.items()}


def find_groups(client: Client) -> GroupFinder:
    found = client.list_all(
        client.components.ListComponentGroups,
        ListComponentGroupsRequest(namespace=client.namespace),
        lambda response: response.groups,
        0,
    )
    return GroupFinder({group.group: group for group in found})


def list_components(
    client: Client, group: str = "", statuses: Iterable[ComponentStatus.ValueType] = (), limit: int = 0
) -> Iterator[Component]:
    request = ListComponentsRequest(namespace=client.namespace, group=group, statuses=list(statuses))
    return client.list_all(
        client.components.ListComponents, request, lambda response: response.components, limit
    )


def similar(client: Client, name: str) -> str:
    """A sentence about where the component or group is that the user may have meant; empty if nothing is like it."""
    group = group_of(name) or name
    groups = find_groups(client).groups
    if group in groups:
        return f" `liveness components list {group}` shows those of the group."
    likely = get_close_matches(group, groups, n=1)
    return f" Did you mean {name.replace(group, likely[0])}?" if likely else ""


@contextmanager
def naming_similar(client: Client, name: str) -> Iterator[None]:
    """If there is no component or group of this name, say which the user may have meant."""
    try:
        yield
    except CommandError as error:
        if error.reason not in NOT_FOUND:
            raise
        raise CommandError(error.message + similar(client, name), error.reason) from error


def check_components_exist(client: Client, chosen: dict[str, set[str]]) -> None:
    """Refuse ids that the server does not know: a supervisor would ignore them."""
    for group, ids in chosen.items():
        if not ids:
            continue
        known = {component.component_id for component in list_components(client, group)}
        unknown = sorted(ids - known)
        if unknown:
            raise CommandError(
                f"there is no component {', '.join(unknown)} in namespace {client.namespace}; "
                f"`liveness components list {group}` shows those of the group"
            )
