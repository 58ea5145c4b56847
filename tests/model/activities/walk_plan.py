"""Plans of random walks, chosen by a seed with weights that make some rare situations frequent, and the
shrinking of a failing walk."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.model.activities.participants import Step, WalkSettings
from tests.model.activities.random_walk import RandomWalk
from tests.model.workers.state_machine import ModelEnvironment

Choose = Callable[[Random], Any]


def _of(*values: Any) -> Choose:
    return lambda random: random.choice(values)


_WHO = {"who": _of(0, 0, 1, 1, 2)}
_WHAT = {"what": _of(*range(8))}
_BEATS = (
    *["plain"] * 3, *["confirm"] * 8, "vague", "forget", "forget", "full", "full", "blank", "grab", "again", "superseded",
    "replace", "adopt", "adopt", "mistake",
)  # fmt: skip
_TWISTS = (*["right"] * 8, "epoch", "attempt", "worker")

CHOICES: dict[str, dict[str, Choose]] = {
    "beat": {**_WHO, **_WHAT, "kind": _of(*_BEATS), "lease_ms": _of(1_000, 2_500, 4_000, 4_000, 8_000)},
    "schedule": {**_WHAT, "delay_ms": _of(0, 0, 0, 700)},
    "poll": {
        **_WHO, "queue": _of(0, 0, 1, 2), "limit": _of(1, 1, 2, 5), "wait_ms": _of(0, 0, 3_000, 30_000),
        "lost": _of(False, False, False, True),
    },
    "cancel_poll": {"which": _of(0, 1, 2)},
    "claim": {**_WHO, **_WHAT},
    "end": {
        "which": _of(0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7), "twist": _of(*_TWISTS),
        "how": _of("complete", "complete", "complete", "fail", "fail for good", "release", "heartbeat", "heartbeat"),
    },
    "cancel": _WHAT,
    "retry": _WHAT,
    "order": {
        **_WHO, "how": _of("pause", "resume", "resume", "drain", "pause all", "resume all", "resume all"),
        "limit_ms": _of(0, 1_000, 3_000),
    },
    "leave": {**_WHO, "how": _of("expire", "shutdown", "old")},
    "stream": {**_WHO, "how": _of("attach", "attach", "break", "detach"), "grace_ms": _of(1_000, 2_000)},
    "time": {"ms": _of(1, 250, 500, 1_000, 2_000, 5_000)},
    "until": {**_WHAT, "which": _of("lease", "due", "limit", "limit"), "off_ms": _of(-1, 0, 0, 1)},
    "fall_silent": {**_WHO, "queue": _of(0, 1, 2), "heard": _of(True, True, True, False)},
    "work": {},
    "sink": {"mode": _of("takes", "refuses", "hangs", "gone")},
    "upkeep": {"what": _of("checkpoint", "checkpoint", "evict", "evict", "retain")},
    "meanwhile": {"what": _of("checkpoint", "lose", "retry and cancel", "retry")},
    "fault": {"kind": _of("REJECTED", "UNKNOWN_LOST", "UNKNOWN_DONE")},
    "stall": {},
    "take_shard": {"what": _of(0, 1, 2, 3)},
    "restart": {"how": _of("crash", "crash", "unanswered", "orderly"), "away_ms": _of(0, 0, 10_000)},
}  # fmt: skip

WEIGHTS = {
    "beat": 24, "schedule": 12, "poll": 20, "cancel_poll": 2, "claim": 5, "end": 14, "cancel": 1, "retry": 1, "order": 3,
    "leave": 2, "stream": 4, "time": 5, "until": 5, "fall_silent": 2, "work": 8, "sink": 1, "upkeep": 2, "meanwhile": 2, "fault": 3, "stall": 3,
    "take_shard": 1, "restart": 1,
}  # fmt: skip

Weights = tuple[dict[str, int], list[Step]]
"""The steps that are more frequent than usual, and the first steps."""

_SCHEDULED_FOR_OTHER_ENGINE = [Step("schedule", {"what": 2})]
_REFUSED = [Step("sink", {"mode": "refuses"}), Step("fall_silent", {"who": 0, "queue": 2})]
_HANGING = [Step("sink", {"mode": "hangs"}), Step("fall_silent", {"who": 0, "queue": 2})]
_SINK_GONE = [Step("sink", {"mode": "gone"}), Step("time", {"ms": 1_000}), Step("work", {})]
_ATTACHED = [Step("stream", {"who": who, "how": "attach", "grace_ms": 1_000}) for who in range(3)]
_DETACHED = [Step("stream", {"who": 1, "how": how}) for how in ("detach", "break")]
_HELD = [Step("schedule", {"what": 0}), Step("poll", {"who": 0, "queue": 0})]
_DRAINED = [
    *_HELD,
    Step("order", {"who": 0, "how": "drain", "limit_ms": 1_000}),
    Step("time", {"ms": 1_500}),
]
_UNANSWERED = [
    Step("stall", {}, concurrent=True),
    Step("schedule", {"what": 5}, concurrent=True),
    Step("restart", {"how": "unanswered"}),
]
_EVICTED = [
    *_HELD,
    Step("end", {"which": 0}),
    Step("meanwhile", {"what": "checkpoint"}),
    Step("claim", {"who": 1, "what": 7}),
]
_UNKNOWN_END = [*_HELD, Step("fault", {"kind": "UNKNOWN_DONE"}), Step("end", {"which": 0})]
_UNBOUND = [*_HELD, Step("beat", {"who": 0, "kind": "forget"}), Step("end", {"which": 0})]
_CANCELLED = [
    Step("schedule", {"what": 3}),
    Step("poll", {"who": 1, "queue": 0, "limit": 5}),
    Step("cancel", {"what": 3}),
]
_CANCELLED_POLL = [
    Step("schedule", {"what": 0}), Step("stall", {}, concurrent=True),
    Step("poll", {"who": 0, "queue": 0, "wait_ms": 3_000}, concurrent=True),
    *[Step("schedule", {"what": what}, concurrent=True) for what in (4, 7, 1)], Step("cancel_poll", {"which": 0}),
]  # fmt: skip
_EVICTED_EARLY = [
    *_HELD, Step("stall", {}, concurrent=True), Step("end", {"which": 0}, concurrent=True),
    Step("upkeep", {"what": "evict"}, concurrent=True), Step("end", {"which": 0}),
]  # fmt: skip
_FAILED = [
    Step("schedule", {"what": 4}), Step("poll", {"who": 1, "queue": 1, "limit": 5}),
    *[Step("end", {"which": which, "how": "fail for good"}) for which in range(3)],
    Step("upkeep", {"what": "checkpoint"}),
]  # fmt: skip
_RETRIED_AND_CANCELLED = [
    *_FAILED,
    Step("meanwhile", {"what": "retry and cancel"}),
    Step("retry", {"what": 0}),
]
_RETRIED = [*_FAILED, Step("meanwhile", {"what": "retry"}), Step("schedule", {"what": 4})]
_BOUND_BY_HEARTBEAT = [
    Step("sink", {"mode": "refuses"}), Step("beat", {"who": 2, "kind": "grab", "what": 5, "lease_ms": 1_000}),
    Step("time", {"ms": 3_000}), Step("work", {}), Step("time", {"ms": 1_000}), Step("work", {}),
]  # fmt: skip
_RESUMED = [
    Step("order", {"who": 0, "how": "pause all"}), Step("poll", {"who": 2, "queue": 0, "wait_ms": 30_000}),
    Step("schedule", {"what": 6}), Step("schedule", {"what": 3}), Step("order", {"who": 0, "how": "resume all"}),
]  # fmt: skip
_LAST_ATTEMPT = [
    Step("schedule", {"what": 1}), Step("fall_silent", {"who": 0, "queue": 1}), Step("fall_silent", {"who": 1, "queue": 1}),
]  # fmt: skip
_REJECTED = [
    Step("schedule", {"what": 3}),
    Step("fault", {"kind": "REJECTED"}),
    Step("poll", {"who": 1, "queue": 0}),
]
_PAUSED_TWICE = [
    Step("fault", {"kind": "REJECTED"}), Step("stall", {}, concurrent=True),
    *[Step("order", {"who": 1, "how": "pause"}, concurrent=concurrent) for concurrent in (True, False)],
]  # fmt: skip
_CLAIMED = [Step("claim", {"who": who, "what": 6}) for who in (0, 1)]
WEIGHTINGS: tuple[Weights, ...] = (
    ({}, [*_REJECTED, *_UNKNOWN_END]),
    ({"fault": 14, "stall": 10, "restart": 6}, _UNANSWERED),
    ({"end": 30, "until": 12, "time": 8, "work": 3}, [*_UNBOUND, *_CANCELLED]),
    ({"poll": 30, "cancel_poll": 12, "stall": 10, "restart": 3}, _CANCELLED_POLL),
    ({"order": 14, "stream": 14, "until": 10}, [*_ATTACHED, *_PAUSED_TWICE, *_RESUMED, *_DRAINED]),
    ({"claim": 20, "upkeep": 10, "meanwhile": 10, "schedule": 20}, [*_CLAIMED, *_EVICTED, *_RETRIED]),
    (
        {"sink": 9, "fall_silent": 10, "work": 12, "time": 8, "take_shard": 3},
        [*_BOUND_BY_HEARTBEAT, *_SCHEDULED_FOR_OTHER_ENGINE, *_REFUSED],
    ),
    (
        {"sink": 5, "fall_silent": 8, "work": 8, "upkeep": 6},
        [*_SCHEDULED_FOR_OTHER_ENGINE, *_HANGING, *_SINK_GONE],
    ),
    (
        {"fall_silent": 16, "leave": 5, "retry": 5, "end": 6},
        [*_EVICTED_EARLY, *_RETRIED_AND_CANCELLED, *_LAST_ATTEMPT],
    ),
    (
        {"stream": 14, "fall_silent": 10, "order": 6, "beat": 12},
        [*_HELD, *_ATTACHED, *_DETACHED, Step("fall_silent", {"who": 0, "queue": 0})],
    ),
)


def plan(seed: int, length: int = 60) -> tuple[WalkSettings, list[Step]]:
    random = Random(seed)
    walk_settings = WalkSettings(
        quota=random.choice([1, 2, 3, 3, 8]), cleanup_ms=random.choice([3_600_000] * 3 + [4_000])
    )
    mode, prelude = WEIGHTINGS[seed % len(WEIGHTINGS)]
    weights = {**WEIGHTS, **mode}
    concurrent = random.choice([0.0, 0.15, 0.4])
    steps = [Step("beat", {"who": who, "kind": "plain", "what": 0, "lease_ms": 8_000}) for who in range(3)]
    steps += [Step("schedule", {"what": what}) for what in random.sample([0, 1, 2, 3, 4, 6, 7], 3)]
    steps += prelude
    while len(steps) < length + len(prelude):
        [name] = random.choices(list(weights), weights=list(weights.values()))
        args = {arg: choose(random) for arg, choose in CHOICES[name].items()}
        stalled = steps[-1].concurrent and any(step.name == "stall" for step in steps[-3:])
        steps.append(Step(name, args, name == "stall" or random.random() < (0.7 if stalled else concurrent)))
    return walk_settings, steps


class Violation(AssertionError):
    pass


def run_walk(environment: ModelEnvironment, walk_settings: WalkSettings, steps: list[Step]) -> None:
    """Run the walk; raise a Violation with its trace if a check fails."""
    walk = RandomWalk(environment, walk_settings)

    async def everything() -> None:
        try:
            await walk.take(steps)
            await walk.finish_all_work()
        finally:
            await walk.shut_down_all()

    try:
        environment.runner.run(everything())
    except Exception as error:
        raise Violation(
            "\n".join([f"with {walk_settings}:", *walk.trace, f"{type(error).__name__}: {error}"])
        ) from error


def fails(environment: ModelEnvironment, walk_settings: WalkSettings, steps: list[Step]) -> Violation | None:
    try:
        run_walk(environment, walk_settings, steps)
    except Violation as violation:
        return violation
    return None


def shrink(
    environment: ModelEnvironment,
    walk_settings: WalkSettings,
    steps: list[Step],
    violation: Violation,
    tries: int = 300,
) -> Violation:
    """Return the same kind of violation with fewer steps."""
    what = _kind(violation)
    size = max(1, len(steps) // 2)
    while tries > 0:
        start, shrunk = 0, False
        while start < len(steps) and tries > 0:
            fewer = steps[:start] + steps[start + size :]
            tries -= 1
            found = fails(environment, walk_settings, fewer)
            if found is not None and _kind(found) == what:
                steps, violation, shrunk = fewer, found, True
            else:
                start += size
        if size == 1 and not shrunk:
            break
        size = max(1, size // 2)
    return violation


def _kind(violation: Violation) -> str:
    return (
        str(violation.__cause__).splitlines()[0][:40]
        if str(violation.__cause__)
        else repr(violation.__cause__)
    )
