"""TuneNamespace: replay the history of a namespace with other settings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import product

from google.protobuf.duration_pb2 import Duration

from liveness.domain.errors import InvalidField, TooLittleHistory
from liveness.domain.policy import DAY_MS, Policy
from liveness.domain.worker import WorkerState
from liveness.engine.node import Node
from liveness.server.validation import check_count, duration_ms, require_identifier
from liveness.server.wire import duration, timestamp
from liveness.slices import end_slice
from liveness.store.api import WorkerFilter
from liveness.tuning.history import History, Outage, read_history
from liveness.tuning.recommendation import (
    DEATHS_MIN,
    Outcome,
    outcome_of,
    quantile,
    recommend,
    settings_to_try,
)
from liveness.tuning.replay import Replay, Setting
from liveness.v1 import insight_pb2

RANGE_MS = 7 * DAY_MS
SETTINGS_MAX = 100


class Tuning:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._turn = asyncio.Lock()
        """A replay takes seconds of processor time, if not at a stretch; many at once would leave none to heartbeats."""

    async def tune(self, request: insight_pb2.TuneNamespaceRequest) -> insight_pb2.TuneNamespaceResponse:
        async with self._turn:
            return await self._tune(request)

    async def _tune(self, request: insight_pb2.TuneNamespaceRequest) -> insight_pb2.TuneNamespaceResponse:
        namespace = require_identifier("namespace", request.namespace)
        policy = self._node.policies.of(namespace)
        settings = _requested_settings(request, policy)
        interval_ms = (
            duration_ms("heartbeat_interval", request.heartbeat_interval)
            if request.HasField("heartbeat_interval")
            else None
        )
        range_ms = duration_ms("range", request.range) if request.HasField("range") else RANGE_MS
        to_ms = self._node.clock.wall_ms()
        from_ms = max(0, to_ms - range_ms)
        history, is_cut = await self._read(namespace, from_ms, to_ms)
        deaths = history.deaths
        if len(deaths) < DEATHS_MIN:
            raise TooLittleHistory(
                namespace=namespace,
                deaths=f"{len(deaths) or 'no'} {'worker' if len(deaths) == 1 else 'workers'}",
                days=f"{range_ms / DAY_MS:.3g} days",
                needed=DEATHS_MIN,
            )
        outcomes = [
            await self._try(history, setting, policy, interval_ms)
            for setting in settings or settings_to_try(history, policy)
        ]
        best = recommend(outcomes, history.watched_s)
        detections = sorted(
            death.ended_ms - death.start_ms
            for death in deaths
            if death.ended_ms is not None and not death.is_false
        )
        return insight_pb2.TuneNamespaceResponse(
            namespace=namespace,
            start_time=timestamp(from_ms),
            end_time=timestamp(to_ms),
            deaths=len(deaths),
            false_deaths=sum(death.is_false for death in deaths),
            detection_median=duration(quantile(detections, 0.5)),
            detection_p99=duration(quantile(detections, 0.99)),
            survived_silences=sum(times for _, times in history.silences) + len(_saved(history.outages)),
            active_workers=history.active,
            truncated=is_cut,
            watched=duration(history.watched_s * 1_000),
            outcomes=map(_outcome_message, outcomes),
            recommended=outcomes.index(best.outcome),
            reason=best.reason,
        )

    async def _read(self, namespace: str, from_ms: int, to_ms: int) -> tuple[History, bool]:
        store = self._node.store
        events = await store.lease_events(namespace, from_ms, to_ms)
        silences = await store.silences_between(namespace, from_ms - DAY_MS, to_ms)
        counts = await store.count_workers(namespace, WorkerFilter(states=(WorkerState.ACTIVE,)))
        active = counts.get(WorkerState.ACTIVE, 0)
        return await asyncio.to_thread(read_history, events, silences, active, from_ms), events.is_cut

    async def _try(
        self, history: History, setting: Setting, policy: Policy, interval_ms: int | None
    ) -> Outcome:
        replay = Replay(history, setting, policy, interval_ms)
        for _ in replay.run():
            await end_slice()
        await end_slice()
        return outcome_of(history, replay, setting, interval_ms)


def _saved(outages: Iterable[Outage]) -> list[Outage]:
    return [outage for outage in outages if outage.ended_ms is None]


def _requested_settings(request: insight_pb2.TuneNamespaceRequest, policy: Policy) -> list[Setting]:
    """Return today's setting, and every combination of those that were asked for; nothing if none was."""
    check_count("leases", request.leases, SETTINGS_MAX)
    check_count("disconnect_graces", request.disconnect_graces, SETTINGS_MAX)
    check_count("storm_holds", request.storm_holds, SETTINGS_MAX)
    check_count("storm_shares", request.storm_shares, SETTINGS_MAX)
    leases = [duration_ms("leases", value) for value in request.leases]
    for lease_ms in leases:
        if not policy.min_lease_ms <= lease_ms <= policy.max_lease_ms:
            raise InvalidField(
                field="leases",
                rule=f"must lie between min_lease and max_lease of the namespace, {policy.min_lease_ms} ms and "
                f"{policy.max_lease_ms} ms",
            )
    for share in request.storm_shares:
        if not 0 <= share <= 1:
            raise InvalidField(field="storm_shares", rule="must lie between 0 and 1")
    graces = [duration_ms("disconnect_graces", value) for value in request.disconnect_graces]
    holds = [duration_ms("storm_holds", value, allow_zero=True) for value in request.storm_holds]
    shares = list(request.storm_shares)
    if not (leases or graces or holds or shares):
        return []
    # None alone, if nothing was asked for: as it was.
    combinations = list(product(leases or (None,), graces or (None,), holds or (None,), shares or (None,)))
    if len(combinations) > SETTINGS_MAX:
        rule = f"and the others name {len(combinations)} combinations, more than {SETTINGS_MAX}"
        raise InvalidField(field="leases", rule=rule)
    return [Setting(), *(Setting(*combination) for combination in combinations)]


def _outcome_message(outcome: Outcome) -> insight_pb2.TuneOutcome:
    setting = outcome.setting
    return insight_pb2.TuneOutcome(
        lease=_optional(setting.lease_ms),
        disconnect_grace=_optional(setting.grace_ms),
        storm_hold=_optional(setting.storm_hold_ms),
        storm_share=setting.storm_share,
        usual_lease=duration(outcome.lease_ms),
        deaths=outcome.deaths,
        false_deaths=outcome.false_deaths,
        detection_median=duration(outcome.median_ms),
        detection_p99=duration(outcome.p99_ms),
        repeated_activities=outcome.repeated_activities,
        waited=duration(outcome.waited_ms),
        storms=outcome.storms,
        longest_silence_share=outcome.longest_share,
    )


def _optional(ms: int | None) -> Duration | None:
    return None if ms is None else duration(ms)
