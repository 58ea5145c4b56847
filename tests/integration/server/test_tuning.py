"""Replays of a namespace's history, over gRPC on both databases: what happened, and what other settings would have meant."""

from __future__ import annotations

from typing import Any

import pytest

from liveness.domain.silences import SilenceKind
from liveness.engine.recovery import RecoveredWorkers
from liveness.tuning import recommendation
from liveness.tuning.history import read_history
from liveness.tuning.recommendation import UNCHANGED
from liveness.tuning.replay import TICK_MS, Replay
from liveness.v1 import insight_pb2 as pb
from tests.integration.engine.engine import activity, duration
from tests.integration.server.activity_client import ActivityClient
from tests.integration.server.server_harness import ACTIVE, NAMESPACE, ServerHarness, heartbeat, refusal
from tests.integration.server.test_attach_streams import Stream, cut

LEASE_MS = 9_000
INTERVAL_MS = LEASE_MS // 3


@pytest.fixture
async def harness(stopped_harness: ServerHarness) -> ServerHarness:
    harness = await stopped_harness.start(takeover_grace_ms=0)
    harness.lift_rate_limits()
    return harness


async def tune(harness: ServerHarness, **fields: Any) -> pb.TuneNamespaceResponse:
    answer: pb.TuneNamespaceResponse = await harness.admin.TuneNamespace(
        pb.TuneNamespaceRequest(namespace=NAMESPACE, **fields)
    )
    return answer


def leases(answer: pb.TuneNamespaceResponse) -> dict[int, pb.TuneOutcome]:
    return {
        outcome.lease.ToMilliseconds(): outcome for outcome in answer.outcomes if outcome.HasField("lease")
    }


async def beat_all(harness: ServerHarness, names: list[str], session: str = "s", sequence: int = 0) -> None:
    beats = [
        heartbeat(
            name, lease_ms=LEASE_MS, session_id=f"{session}-{name}", sequence=sequence, bound_activities=[activity(f"a-{name}")]
        )
        for name in names
    ]  # fmt: skip
    for item in await harness.batch(*beats):
        assert item.HasField("result"), item


class Fleet:
    """Workers that send heartbeats every third of their lease, unless they are silent."""

    def __init__(self, harness: ServerHarness, names: list[str]) -> None:
        self.harness = harness
        self.names = names
        self.sequence = 0

    async def run(self, ms: int, silent: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        for _ in range(0, ms, INTERVAL_MS):
            self.sequence += 1
            alive = [name for name in self.names if name not in silent]
            await beat_all(self.harness, alive, sequence=self.sequence)
            await self.harness.advance(INTERVAL_MS)


async def assert_replay_equals_history(harness: ServerHarness) -> None:
    """Replay with today's settings, and compare each lease's end with what happened."""
    node = harness.server.node
    await node.checkpoint()
    now_ms = harness.clock.wall_ms()
    events = await harness.server.store.lease_events(NAMESPACE, 0, now_ms)
    silences = await harness.server.store.silences_between(NAMESPACE, 0, now_ms)
    active = (await harness.count(NAMESPACE)).get(ACTIVE, 0)
    history = read_history(events, silences, active, 0)
    replay = Replay(history, UNCHANGED, node.policies.of(NAMESPACE))
    for _ in replay.run():
        pass
    assert history.deaths
    for outage, ended_ms in zip(history.outages, replay.ended_ms, strict=True):
        assert (outage.ended_ms is None) == (ended_ms is None), outage
        if ended_ms is not None and outage.ended_ms is not None:
            assert abs(ended_ms - outage.ended_ms) <= 2 * 250 + TICK_MS, (
                "the test moves the clock by such steps"
            )


async def test_a_replay_with_todays_settings_repeats_what_happened(harness: ServerHarness) -> None:
    fleet = Fleet(harness, [f"w{number}" for number in range(12)])
    await fleet.run(30_000)
    await fleet.run(15_000, silent={"w0", "w1"})  # w1 comes back with its session: it was alive
    await fleet.run(12_000, silent={"w0"})
    await fleet.run(15_000, silent={"w0", "w2", "w3", "w4"})
    await beat_all(harness, ["w2"], session="new", sequence=1)
    fleet.names = [name for name in fleet.names if name != "w2"]
    await fleet.run(3_000, silent={"w0", "w3", "w4", "w5"})  # not long enough to die
    await fleet.run(15_000, silent={"w0", "w3", "w4"})
    await assert_replay_equals_history(harness)
    answer = await tune(harness, leases=[duration(LEASE_MS), duration(4_000), duration(30_000)])
    today = answer.outcomes[0]
    assert (answer.deaths, answer.false_deaths) == (6, 1), "w2 died twice"
    assert (today.deaths, today.false_deaths, today.repeated_activities) == (5, 1, 1)
    assert abs(today.detection_median.ToMilliseconds() - answer.detection_median.ToMilliseconds()) <= 500
    assert abs(today.detection_median.ToMilliseconds() - LEASE_MS) <= 500
    by_lease = leases(answer)
    assert by_lease[LEASE_MS].false_deaths == today.false_deaths
    assert by_lease[30_000].false_deaths == 0
    assert by_lease[30_000].detection_median.ToMilliseconds() > today.detection_median.ToMilliseconds()
    assert by_lease[4_000].false_deaths == 2, "w5 missed a heartbeat, and lived"
    assert by_lease[4_000].detection_median.ToMilliseconds() < today.detection_median.ToMilliseconds()


@pytest.mark.parametrize("hold_ms", [0, 3_600_000])
async def test_a_replay_repeats_a_storm(harness: ServerHarness, hold_ms: int) -> None:
    names = [f"w{number}" for number in range(30)]
    await harness.configure(storm_hold_ms=hold_ms, storm_pace=10)
    fleet = Fleet(harness, names)
    await fleet.run(9_000)
    await fleet.run(12_000, silent=set(names[:25]))  # longer than a lease, but shorter than the hold
    await fleet.run(9_000, silent=set(names[:6]))
    await fleet.run(12_000, silent=set(names[:6]))
    await assert_replay_equals_history(harness)
    answer = await tune(harness, storm_holds=[duration(0), duration(3_600_000)])
    without, with_hold = answer.outcomes[1:]
    assert (without.false_deaths, without.storms) == (19, 0)
    assert (with_hold.false_deaths, with_hold.storms) == (0, 1)
    assert answer.outcomes[0].false_deaths == (19 if hold_ms == 0 else 0)
    assert with_hold.detection_median.ToMilliseconds() > without.detection_median.ToMilliseconds()


async def test_a_broken_stream_is_replayed_with_other_graces(harness: ServerHarness) -> None:
    names = [f"w{number}" for number in range(6)]
    for name in names:
        await beat_all(harness, [name], sequence=1)
        stream = Stream(harness)
        await stream.attach(name, grace_ms=4_000, session=f"s-{name}")
        await cut(ActivityClient(harness), stream, name)
    await harness.advance(2_500)
    await beat_all(harness, ["w0"], sequence=2)  # heard again after more than half of its grace
    await harness.advance(4_000)
    await assert_replay_equals_history(harness)
    answer = await tune(harness, disconnect_graces=[duration(2_000), duration(8_000)])
    assert (answer.deaths, answer.false_deaths) == (5, 0)
    today, shorter, longer = answer.outcomes
    assert (today.false_deaths, shorter.false_deaths, longer.false_deaths) == (0, 1, 0)
    medians = [outcome.detection_median.ToMilliseconds() for outcome in (shorter, today, longer)]
    assert medians == sorted(set(medians)), "each grace takes its time"


async def test_a_shorter_lease_is_recommended_if_nobody_was_silent_for_long(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"w{number}" for number in range(8)]
    fleet = Fleet(harness, names)
    await fleet.run(18_000)
    await fleet.run(12_000, silent=set(names[:5]))
    await harness.server.node.checkpoint()
    answer = await tune(harness)
    assert (answer.recommended, answer.reason[:24]) == (0, "Keep the lease of 9 s: s"), "too short a time"
    assert answer.watched.ToSeconds() >= 60
    monkeypatch.setattr(recommendation, "WATCHED_MIN_S", 60)
    answer = await tune(harness)
    best = answer.outcomes[answer.recommended]
    assert best.lease.ToMilliseconds() < LEASE_MS
    assert best.false_deaths == 0
    assert answer.reason.startswith("Change the lease from 9 s to ")
    assert len({outcome.usual_lease.ToMilliseconds() for outcome in answer.outcomes}) > 4


async def test_too_little_history_is_refused(harness: ServerHarness) -> None:
    await beat_all(harness, ["a"], sequence=1)
    await harness.advance(LEASE_MS)
    answer = await refusal(tune(harness))
    assert answer.reason == "TOO_LITTLE_HISTORY"
    assert "1 worker died of silence within 7 days, and 5 deaths are needed" in answer.message
    for fields, field in (
        ({"leases": [duration(1)]}, "leases"),
        ({"storm_shares": [1.5]}, "storm_shares"),
        ({"storm_shares": [0.5] * 50, "leases": [duration(5_000)] * 50}, "leases"),
    ):
        assert [name for name, _ in (await refusal(tune(harness, **fields))).violations] == [field]


async def test_silences_survive_a_restart_and_are_counted_once(harness: ServerHarness) -> None:
    fleet = Fleet(harness, ["w0", "w1"])
    await fleet.run(6_000)
    await fleet.run(3_000, silent={"w1"})
    await fleet.run(3_000)
    await harness.server.node.checkpoint()
    await fleet.run(3_000, silent={"w0"})
    await fleet.run(3_000)
    await harness.restart()
    found = await harness.server.store.silences_between(NAMESPACE, 0, harness.clock.wall_ms())
    found = [each for each in found if each.silence.kind is SilenceKind.HEARTBEATS]
    assert [(silence.terms_ms, times) for silence, times in found] == [(LEASE_MS, 1)] * 2, "in two shards"
    assert all(6_000 <= silence.silence_ms <= 6_400 for silence, _ in found)


async def test_a_crash_loses_no_silence_that_the_log_still_has(harness: ServerHarness) -> None:
    fleet = Fleet(harness, ["w0"])
    await fleet.run(3_000)
    await harness.server.node.checkpoint()
    await fleet.run(3_000, silent={"w0"})
    await fleet.run(3_000)
    shard = harness.server.node.shard(NAMESPACE, "w0")
    before = dict(shard.census.silences.counts)
    assert len(before) == 1
    [snapshot] = await harness.server.store.take_over([shard.id], "another", 0)
    assert RecoveredWorkers(snapshot).silences.counts == before
