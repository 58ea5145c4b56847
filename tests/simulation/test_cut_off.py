"""Nodes that are cut off from the database cost no worker its lease."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.failure_report import failure_report
from tests.simulation.plan import StormSettings, plan_of
from tests.simulation.world import live


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_lease_is_lost_by_nodes_that_are_cut_off(seed: int) -> None:
    plan = replace(
        plan_of(seed),
        nodes_max=3,
        shards=8,
        workers=10,
        quota=1_000,
        busy_s=16.0,
        every_s=4.0,
        acts=("cut node from database",),
        node_lease_ms=1_000,
        grace_ms=5_000,
        leases_ms=(6_000,),
        storm_settings=StormSettings(),
    )
    outcome = live(seed, plan)
    assert not outcome.violation, failure_report(outcome)
    assert outcome.sometimes["owner cut off from the database lost its shards"]
    assert not outcome.sometimes["live worker expired and came back with its session"]
    assert not outcome.sometimes["worker fenced itself before the server expired it"]
