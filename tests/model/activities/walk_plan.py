"""Where walks go: chosen by a seed, with a mood that makes some rare things frequent; and how a story is made short."""

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
    *["plain"] * 3, *["confirm"] * 8, "vague", "forget", "forget", "full", "full", "blank", "grab", "again", "zombie",
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
    "hang_up": {"which": _of(0, 1, 2)},
    "claim": {**_WHO, **_WHAT},
    "end": {
        "which": _of(0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7), "twist": _of(*_TWISTS),
        "how": _of("complete", "complete", "complete", "fail", "fail for good", "release"),
    },
    "cancel": _WHAT,
    "retry": _WHAT,
    "order": {
        **_WHO, "how": _of("pause", "resume", "resume", "drain", "pause all", "resume all", "resume all"),
        "limit_ms": _of(0, 1_000, 3_000),
    },
    "leave": {**_WHO, "how": _of("expire", "shutdown", "old")},
    "line": {**_WHO, "how": _of("attach", "attach", "break", "detach"), "grace_ms": _of(1_000, 2_000)},
    "time": {"ms": _of(1, 250, 500, 1_000, 2_000, 5_000)},
    "until": {**_WHAT, "which": _of("lease", "due"), "off_ms": _of(-1, 0, 0, 1)},
    "die": {**_WHO, "queue": _of(0, 1, 2), "heard": _of(True, True, True, False)},
    "work": {},
    "sink": {"mood": _of("takes", "refuses", "hangs", "gone")},
    "upkeep": {"what": _of("checkpoint", "checkpoint", "evict", "evict", "retain")},
    "meanwhile": {"what": _of("checkpoint", "lose", "life", "start")},
    "fault": {"kind": _of("REJECTED", "UNKNOWN_LOST", "UNKNOWN_DONE")},
    "stall": {},
    "steal": {"what": _of(0, 1, 2, 3)},
    "restart": {"how": _of("crash", "crash", "unheard", "orderly"), "away_ms": _of(0, 0, 10_000)},
}  # fmt: skip

WEIGHTS = {
    "beat": 24, "schedule": 12, "poll": 20, "hang_up": 2, "claim": 5, "end": 14, "cancel": 1, "retry": 1, "order": 3,
    "leave": 2, "line": 4, "time": 5, "until": 5, "die": 2, "work": 8, "sink": 1, "upkeep": 2, "meanwhile": 2, "fault": 3, "stall": 3,
    "steal": 1, "restart": 1,
}  # fmt: skip
NEVER_CONCURRENT = frozenset({"time", "until", "work"})

Weights = tuple[dict[str, int], list[Step]]
"""What is more frequent than usual, and how it begins."""

_SUNK = [Step("schedule", {"what": 2})]
_REFUSED = [Step("sink", {"mood": "refuses"}), Step("die", {"who": 0, "queue": 2})]
_HANGING = [Step("sink", {"mood": "hangs"}), Step("die", {"who": 0, "queue": 2})]
_SINK_GONE = [Step("sink", {"mood": "gone"}), Step("time", {"ms": 1_000}), Step("work", {})]
_ATTACHED = [Step("line", {"who": who, "how": "attach", "grace_ms": 1_000}) for who in range(3)]
_GOODBYE = [Step("line", {"who": 1, "how": how}) for how in ("detach", "break")]
_IN_HAND = [Step("schedule", {"what": 0}), Step("poll", {"who": 0, "queue": 0})]
_DRAINED = [
    *_IN_HAND,
    Step("order", {"who": 0, "how": "drain", "limit_ms": 1_000}),
    Step("time", {"ms": 1_500}),
]
_UNHEARD = [
    Step("stall", {}, rush=True),
    Step("schedule", {"what": 5}, rush=True),
    Step("restart", {"how": "unheard"}),
]
_EVICTED = [
    *_IN_HAND,
    Step("end", {"which": 0}),
    Step("meanwhile", {"what": "checkpoint"}),
    Step("claim", {"who": 1, "what": 7}),
]
_UNKNOWN_END = [*_IN_HAND, Step("fault", {"kind": "UNKNOWN_DONE"}), Step("end", {"which": 0})]
_LET_GO = [*_IN_HAND, Step("beat", {"who": 0, "kind": "forget"}), Step("end", {"which": 0})]
_CANCELLED = [
    Step("schedule", {"what": 3}),
    Step("poll", {"who": 1, "queue": 0, "limit": 5}),
    Step("cancel", {"what": 3}),
]
_HUNG_UP = [
    Step("schedule", {"what": 0}), Step("stall", {}, rush=True),
    Step("poll", {"who": 0, "queue": 0, "wait_ms": 3_000}, rush=True),
    *[Step("schedule", {"what": what}, rush=True) for what in (4, 7, 1)], Step("hang_up", {"which": 0}),
]  # fmt: skip
_FORGOTTEN_EARLY = [
    *_IN_HAND, Step("stall", {}, rush=True), Step("end", {"which": 0}, rush=True),
    Step("upkeep", {"what": "evict"}, rush=True), Step("end", {"which": 0}),
]  # fmt: skip
_FAILED = [
    Step("schedule", {"what": 4}), Step("poll", {"who": 1, "queue": 1, "limit": 5}),
    *[Step("end", {"which": which, "how": "fail for good"}) for which in range(3)],
    Step("upkeep", {"what": "checkpoint"}),
]  # fmt: skip
_TWO_LIVES = [*_FAILED, Step("meanwhile", {"what": "life"}), Step("retry", {"what": 0})]
_SECOND_LIFE = [*_FAILED, Step("meanwhile", {"what": "start"}), Step("schedule", {"what": 4})]
_GRABBED = [
    Step("sink", {"mood": "refuses"}), Step("beat", {"who": 2, "kind": "grab", "what": 5, "lease_ms": 1_000}),
    Step("time", {"ms": 3_000}), Step("work", {}), Step("time", {"ms": 1_000}), Step("work", {}),
]  # fmt: skip
_RESUMED = [
    Step("order", {"who": 0, "how": "pause all"}), Step("poll", {"who": 2, "queue": 0, "wait_ms": 30_000}),
    Step("schedule", {"what": 6}), Step("schedule", {"what": 3}), Step("order", {"who": 0, "how": "resume all"}),
]  # fmt: skip
_LAST_ATTEMPT = [
    Step("schedule", {"what": 1}), Step("die", {"who": 0, "queue": 1}), Step("die", {"who": 1, "queue": 1}),
]  # fmt: skip
_REJECTED = [
    Step("schedule", {"what": 3}),
    Step("fault", {"kind": "REJECTED"}),
    Step("poll", {"who": 1, "queue": 0}),
]
_PAUSED_TWICE = [
    Step("fault", {"kind": "REJECTED"}), Step("stall", {}, rush=True),
    *[Step("order", {"who": 1, "how": "pause"}, rush=rush) for rush in (True, False)],
]  # fmt: skip
_CLAIMED = [Step("claim", {"who": who, "what": 6}) for who in (0, 1)]
WEIGHTINGS: tuple[Weights, ...] = (
    ({}, [*_REJECTED, *_UNKNOWN_END]),
    ({"fault": 14, "stall": 10, "restart": 6}, _UNHEARD),
    ({"end": 30, "until": 12, "time": 8, "work": 3}, [*_LET_GO, *_CANCELLED]),
    ({"poll": 30, "hang_up": 12, "stall": 10, "restart": 3}, _HUNG_UP),
    ({"order": 14, "line": 14, "until": 10}, [*_ATTACHED, *_PAUSED_TWICE, *_RESUMED, *_DRAINED]),
    ({"claim": 20, "upkeep": 10, "meanwhile": 10, "schedule": 20}, [*_CLAIMED, *_EVICTED, *_SECOND_LIFE]),
    ({"sink": 9, "die": 10, "work": 12, "time": 8, "steal": 3}, [*_GRABBED, *_SUNK, *_REFUSED]),
    ({"sink": 5, "die": 8, "work": 8, "upkeep": 6}, [*_SUNK, *_HANGING, *_SINK_GONE]),
    ({"die": 16, "leave": 5, "retry": 5, "end": 6}, [*_FORGOTTEN_EARLY, *_TWO_LIVES, *_LAST_ATTEMPT]),
    (
        {"line": 14, "die": 10, "order": 6, "beat": 12},
        [*_IN_HAND, *_ATTACHED, *_GOODBYE, Step("die", {"who": 0, "queue": 0})],
    ),
)


def plan(seed: int, length: int = 60) -> tuple[WalkSettings, list[Step]]:
    random = Random(seed)
    walk_settings = WalkSettings(
        quota=random.choice([1, 2, 3, 3, 8]), cleanup_ms=random.choice([3_600_000] * 3 + [4_000])
    )
    mood, prelude = WEIGHTINGS[seed % len(WEIGHTINGS)]
    weights = {**WEIGHTS, **mood}
    rush = random.choice([0.0, 0.15, 0.4])
    steps = [Step("beat", {"who": who, "kind": "plain", "what": 0, "lease_ms": 8_000}) for who in range(3)]
    steps += [Step("schedule", {"what": what}) for what in random.sample([0, 1, 2, 3, 4, 6, 7], 3)]
    steps += prelude
    while len(steps) < length + len(prelude):
        [name] = random.choices(list(weights), weights=list(weights.values()))
        args = {arg: choose(random) for arg, choose in CHOICES[name].items()}
        stalled = steps[-1].rush and any(step.name == "stall" for step in steps[-3:])
        steps.append(Step(name, args, name == "stall" or random.random() < (0.7 if stalled else rush)))
    return walk_settings, steps


class Violation(AssertionError):
    pass


def run_walk(environment: ModelEnvironment, walk_settings: WalkSettings, steps: list[Step]) -> None:
    """Raises with the story if something does not hold."""
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
            "\n".join([f"with {walk_settings}:", *walk.story, f"{type(error).__name__}: {error}"])
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
    """The same kind of violation in fewer steps."""
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
