"""A follower is killed at each of its steps in turn: its call has not arrived, or its answer is lost, or it arrives when the successor has counted.
What workers counted is counted once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from liveness.doors.pgai.follower import PgaiFollower
from liveness.sdk.loop_client import RpcFailed
from tests.integration.doors.pgai.conftest import Stage

STEPS_MAX = 60


class Killed(Exception):
    pass


class Killer:
    """Counts the calls of a follower to liveness and to the database, and kills it at one of them."""

    def __init__(self, follower: PgaiFollower, at_step: int, when: str) -> None:
        self._at_step = at_step
        self._when = when
        self._steps = count(1)
        self.is_done = False
        self.late: list[Callable[[], Awaitable[Any]]] = []
        client, database = follower._client, follower._database
        self._watched: tuple[tuple[Any, str], ...] = (
            (client, "call"), (database, "read"), (database, "write"),
        )  # fmt: skip
        for owner, name in self._watched:
            setattr(owner, name, self._watch(getattr(owner, name)))

    def leave(self) -> None:
        """Watch no longer, so that the test can close what the follower has open."""
        for owner, name in self._watched:
            delattr(owner, name)

    def _watch(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def watched(*arguments: Any, **options: Any) -> Any:
            if self.is_done:
                raise Killed
            is_last = next(self._steps) == self._at_step
            if not is_last:
                return await call(*arguments, **options)
            self.is_done = True
            if self._when == "after":
                await call(*arguments, **options)
            elif self._when == "late":
                self.late.append(lambda: call(*arguments, **options))
            raise Killed

        return watched


@pytest.mark.parametrize("when", ["before", "after", "late"])
async def test_a_follower_that_is_killed_at_any_step_loses_and_doubles_nothing(
    stage: Stage, when: str
) -> None:
    id, other = await stage.start_worker("5 minutes"), await stage.start_worker("5 minutes")
    session = await stage.heartbeat_session(id)
    await stage.turn(2)
    counted, done = [0, 0], 0
    for step in range(1, STEPS_MAX):
        killer = Killer(stage.follower, step, when)
        try:
            for successes in (step, 100 * step):
                await session.execute("SELECT ai._worker_heartbeat($1, $2, 1, 'torn')", id, successes)
                await stage.beat(other, 1)
                await stage.progress(id, 7, successes)
                counted, done = [counted[0] + successes, counted[1] + 1], done + successes
                await stage.turn()
        except Killed:
            pass
        killer.leave()
        if not killer.is_done:
            break
        await stage.replace_follower(orderly=False)
        await stage.turn(2, ms=9_000)  # the lease of the killed one ends
        for call in killer.late:
            try:
                await call()
            except RpcFailed:
                pass  # it is refused
        await stage.turn()
        assert stage.follower.is_following
        await stage.turn()
        assert [*stage.counts(id)] == counted, f"killed at step {step}"
        assert stage.unit("7").successes == done, f"killed at step {step}"
        assert [stage.state(id), stage.state(other)] == ["ACTIVE", "ACTIVE"]
    assert step > 8, "the follower has fewer steps than expected"
    assert [*stage.counts(id)] == counted
