"""Where walks go: chosen by a seed, with a mood that makes some rare things frequent; and how a story is made short."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from liveness.shard import custody
from tests.model.machine import World
from tests.model_activities.course import Course
from tests.model_activities.walk import Step, Terms

custody.DOUBT_MS, custody.SCRUB_MS = 1_500, 3_000  # as in the product, but soon

Choose = Callable[[Random], Any]


def _of(*values: Any) -> Choose:
    return lambda random: random.choice(values)


_WHO = {"who": _of(0, 0, 1, 1, 2)}
_WHAT = {"what": _of(*range(8))}
_BEATS = (
    *["plain"] * 3, *["confirm"] * 8, "vague", "forget", "forget", "full", "full", "blank", "grab", "again", "zombie",
    "replace", "adopt",
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
    "work": {},
    "sink": {"mood": _of("takes", "refuses", "hangs", "gone")},
    "upkeep": {"what": _of("checkpoint", "checkpoint", "retain")},
    "meanwhile": {"what": _of("checkpoint", "lose")},
    "fault": {"kind": _of("REJECTED", "UNKNOWN_LOST", "UNKNOWN_DONE")},
    "stall": {},
    "steal": {"what": _of(0, 1, 2, 3)},
    "restart": {"how": _of("crash", "crash", "unheard", "orderly"), "away_ms": _of(0, 0, 10_000)},
}  # fmt: skip

WEIGHTS = {
    "beat": 24, "schedule": 12, "poll": 20, "hang_up": 2, "claim": 5, "end": 14, "cancel": 1, "retry": 1, "order": 3,
    "leave": 2, "line": 4, "time": 5, "until": 5, "work": 8, "sink": 1, "upkeep": 2, "meanwhile": 2, "fault": 3, "stall": 3,
    "steal": 1, "restart": 1,
}  # fmt: skip
ALWAYS_ALONE = frozenset({"time", "until", "work"})

MOODS: tuple[dict[str, int], ...] = (
    {},
    {"fault": 14, "stall": 8, "restart": 3},
    {"end": 30, "until": 12, "time": 8, "work": 3},
    {"poll": 30, "hang_up": 12, "stall": 8},
    {"order": 14, "line": 14, "until": 10},
    {"claim": 20, "upkeep": 10, "meanwhile": 10, "schedule": 20},
    {"sink": 5, "work": 14, "until": 12, "steal": 3},
    {"leave": 8, "until": 14, "work": 12, "retry": 4},
)


def plan(seed: int, length: int = 60) -> tuple[Terms, list[Step]]:
    random = Random(seed)
    terms = Terms(quota=random.choice([1, 2, 3, 3, 8]), cleanup_ms=random.choice([3_600_000] * 3 + [4_000]))
    weights = {**WEIGHTS, **random.choice(MOODS)}
    rush = random.choice([0.0, 0.15, 0.4])
    steps = [Step("beat", {"who": who, "kind": "plain", "what": 0, "lease_ms": 8_000}) for who in range(3)]
    steps += [Step("schedule", {"what": what}) for what in random.sample(range(8), 3)]
    while len(steps) < length:
        [name] = random.choices(list(weights), weights=list(weights.values()))
        args = {arg: choose(random) for arg, choose in CHOICES[name].items()}
        steps.append(Step(name, args, name == "stall" or random.random() < rush))
    return terms, steps


class Violation(AssertionError):
    pass


def go(world: World, terms: Terms, steps: list[Step]) -> None:
    """Raises with the story if something does not hold."""
    walk = Course(world, terms)

    async def everything() -> None:
        try:
            await walk.take(steps)
            await walk.calm_down()
        finally:
            await walk.quit()

    try:
        world.runner.run(everything())
    except Exception as error:
        raise Violation(
            "\n".join([f"with {terms}:", *walk.story, f"{type(error).__name__}: {error}"])
        ) from error


def fails(world: World, terms: Terms, steps: list[Step]) -> Violation | None:
    try:
        go(world, terms, steps)
    except Violation as violation:
        return violation
    return None


def shortened(
    world: World, terms: Terms, steps: list[Step], violation: Violation, tries: int = 300
) -> Violation:
    """The same kind of violation in fewer steps."""
    what = _kind(violation)
    size = max(1, len(steps) // 2)
    while tries > 0:
        start, shrunk = 0, False
        while start < len(steps) and tries > 0:
            fewer = steps[:start] + steps[start + size :]
            tries -= 1
            found = fails(world, terms, fewer)
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
