"""The blocking client has what the client has. `make check` compares it with what the client generates."""

from __future__ import annotations

import inspect

from liveness.sdk import ActivityHandle, BlockingActivityHandle, BlockingClient, Client


def methods(kind: type) -> dict[str, list[str]]:
    return {
        name: list(inspect.signature(member).parameters)
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


def test_both_clients_have_the_same_methods() -> None:
    assert methods(Client) == methods(BlockingClient)
    assert methods(ActivityHandle) == methods(BlockingActivityHandle)
    assert not any(map(inspect.iscoroutinefunction, vars(BlockingClient).values()))
