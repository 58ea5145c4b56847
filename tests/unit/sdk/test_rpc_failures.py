"""Which failures make the SDK leave a node for another one."""

from __future__ import annotations

import grpc
import pytest

from liveness.domain.errors import CutOff, LivenessError, NoNodeReachable, ShardUnavailable, ShuttingDown
from liveness.rpc.status import status_of
from liveness.sdk.rpc_failures import RpcFailure, failure_of_status


@pytest.mark.parametrize("error", [ShuttingDown(), CutOff(node_id="n"), NoNodeReachable()])
def test_it_leaves_a_node_that_can_serve_nothing(error: LivenessError) -> None:
    assert failure_of_status(status_of(error)).should_fail_over


def test_it_leaves_a_node_that_does_not_answer() -> None:
    assert RpcFailure(grpc.StatusCode.UNAVAILABLE).should_fail_over


def test_it_stays_while_a_shard_moves() -> None:
    assert not failure_of_status(status_of(ShardUnavailable(shard_id=1))).should_fail_over
