"""Which activities a bridge leaves alone, and how the kernel writes the names of connections."""

from __future__ import annotations

import pytest

from liveness.bridges.temporal.hints import in_table
from liveness.bridges.temporal.settings import BridgeSettings


@pytest.mark.parametrize(
    ("skip", "only", "left_alone"),
    [
        ((), (), False),
        (("mail",), (), True),
        (("ma*",), (), True),
        (("type:send",), (), True),
        (("send",), (), False),
        ((), ("mail",), False),
        ((), ("other",), True),
        ((), ("other", "type:s*"), False),
        (("type:send",), ("mail",), True),
    ],
)
def test_task_queues_and_types_can_be_left_alone(
    skip: tuple[str, ...], only: tuple[str, ...], left_alone: bool
) -> None:
    settings = BridgeSettings(upstream=("t:1",), liveness=("l:1",), skip=skip, only=only)
    assert settings.is_left_alone("mail", "send") is left_alone


@pytest.mark.parametrize(
    ("peer", "written"),
    [
        ("ipv4:127.0.0.1:4711", "0100007F:1267"),
        ("ipv6:[::1]:80", "00000000000000000000000001000000:0050"),
        ("ipv6:%5B::ffff:127.0.0.1%5D:80", "0100007F:0050"),
        ("ipv6:[fe80::1%25eth0]:80", "000080FE000000000000000001000000:0050"),
    ],
)
def test_peers_are_found_in_the_table_of_connections(peer: str, written: str) -> None:
    assert in_table(peer) == written
