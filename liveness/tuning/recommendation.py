"""What each setting would have meant, and which one to choose.

A false death comes first, because it runs work twice; then how soon a death is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from liveness.domain.policy import HOUR_MS, SECOND_MS, Policy
from liveness.domain.silences import SilenceKind
from liveness.tuning.history import History
from liveness.tuning.replay import Replay, Setting, interval_change_ms

DEATHS_MIN = 5
"""With fewer deaths, a median says nothing."""
HEADROOM = 0.8
"""A lease is only made shorter if no worker that lived was silent for more of it than this."""
WATCHED_MIN_S = 24 * 3_600
"""A lease is only made shorter if workers were watched for so long, added up: for a day, if there is one."""
LEASE_FACTORS = (0.25, 1 / 3, 0.5, 2 / 3, 1, 1.5, 2, 3)
GRACE_FACTORS = (0.5, 2, 4)
SHARE_FACTORS = (0.5, 2)
BUILT_IN_HOLD_MS = HOUR_MS
UNCHANGED = Setting()


class Outcome(NamedTuple):
    setting: Setting
    lease_ms: int
    """Of most workers."""
    deaths: int
    """Workers that were gone, and found to be."""
    false_deaths: int
    """Workers that were declared dead and were alive."""
    median_ms: int
    """From the last heartbeat of workers that were gone until their work could move on."""
    p99_ms: int
    repeated_activities: int
    """Activities that were taken from workers that were alive, and so run twice."""
    waited_ms: int
    """For how long the activities of workers that were gone waited for it to be known, added up."""
    storms: int
    longest_share: float
    """The longest silence of a worker that was not declared dead, as a share of what would have ended its lease."""


class Recommendation(NamedTuple):
    outcome: Outcome
    reason: str

    @property
    def changes(self) -> bool:
        return self.outcome.setting != UNCHANGED


def usual_lease_ms(history: History) -> int:
    leases = sorted(outage.granted_ms for outage in history.deaths)
    return leases[len(leases) // 2]


def usual_grace_ms(history: History) -> int:
    """0 if nobody had one."""
    graces = [outage.grace_ms for outage in history.outages if outage.grace_ms]
    graces += [silence.terms_ms for silence, _ in history.silences if silence.kind is SilenceKind.STREAM]
    return sorted(graces)[len(graces) // 2] if graces else 0


def settings_to_try(history: History, policy: Policy) -> list[Setting]:
    """Return today's setting first, then others that differ from it in one respect."""
    lease_ms, grace_ms = usual_lease_ms(history), usual_grace_ms(history)
    leases = {_rounded_ms(lease_ms * factor) for factor in LEASE_FACTORS} - {lease_ms}
    settings = [UNCHANGED]
    settings += [
        Setting(lease_ms=ms) for ms in sorted(leases) if policy.min_lease_ms <= ms <= policy.max_lease_ms
    ]
    if grace_ms:
        graces = {_rounded_ms(grace_ms * factor) for factor in GRACE_FACTORS}
        settings += [Setting(grace_ms=ms) for ms in sorted(graces)]
    if _fell_silent_together(history, policy):
        settings.append(Setting(storm_hold_ms=0 if policy.storm_hold_ms else BUILT_IN_HOLD_MS))
        if policy.storm_hold_ms:
            shares = [policy.storm_share * factor for factor in SHARE_FACTORS]
            settings += [Setting(storm_share=share) for share in shares if 0 < share <= 1]
    return settings


def _rounded_ms(ms: float) -> int:
    """To full seconds, and from a minute on to five."""
    step_ms = SECOND_MS if ms < 60 * SECOND_MS else 5 * SECOND_MS
    return max(SECOND_MS, round(ms / step_ms) * step_ms)


def _fell_silent_together(history: History, policy: Policy) -> bool:
    """Whether the outages of any minute were enough for a storm, whatever their share."""
    starts, first = [outage.start_ms for outage in history.outages], 0
    for last, start_ms in enumerate(starts):
        while starts[first] < start_ms - 60 * SECOND_MS:
            first += 1
        if last - first + 1 >= policy.storm_min_workers:
            return True
    return False


def outcome_of(history: History, replay: Replay, setting: Setting, interval_ms: int | None = None) -> Outcome:
    """`replay`: of this setting, and run to its end."""
    detections: list[int] = []
    false_deaths = repeated = waited_ms = 0
    longest = 0.0
    for outage, terms, ended_ms in zip(history.outages, replay.terms, replay.ended_ms, strict=True):
        if outage.returned_ms is not None:
            if ended_ms is None:
                longest = max(longest, (outage.returned_ms - terms.start_ms) / terms.granted_ms)
            else:
                false_deaths += 1
                repeated += outage.activities
            continue
        known = [at_ms for at_ms in (ended_ms, outage.replaced_ms) if at_ms is not None]
        if known:
            detections.append(max(0, min(known) - terms.start_ms))
            waited_ms += outage.activities * detections[-1]
    held = [outage.activities for outage in history.deaths]
    for (kind, _, terms_ms, silence_ms), count in history.silences:
        if kind is SilenceKind.HEARTBEATS:
            silence_ms -= interval_change_ms(terms_ms, setting, interval_ms)
            allowed_ms = terms_ms if setting.lease_ms is None else setting.lease_ms
        else:
            allowed_ms = terms_ms if setting.grace_ms is None else setting.grace_ms
        if silence_ms >= allowed_ms:
            false_deaths += count
            repeated += round(count * sum(held) / max(1, len(held)))
        elif kind is SilenceKind.HEARTBEATS:
            longest = max(longest, silence_ms / allowed_ms)
    detections.sort()
    return Outcome(
        setting,
        usual_lease_ms(history) if setting.lease_ms is None else setting.lease_ms,
        len(detections),
        false_deaths,
        quantile(detections, 0.5),
        quantile(detections, 0.99),
        repeated,
        waited_ms,
        replay.storms,
        longest,
    )


def quantile(sorted_values: Sequence[int], share: float) -> int:
    """The smallest value that at least this share of the values do not exceed; 0 of none."""
    if not sorted_values:
        return 0
    return sorted_values[max(0, -(-round(len(sorted_values) * share * 1_000) // 1_000) - 1)]


def recommend(outcomes: Iterable[Outcome], watched_s: int) -> Recommendation:
    """Recommend one of the leases. `outcomes`: today's first."""
    today, *others = outcomes
    leases = [outcome for outcome in others if outcome.setting == Setting(lease_ms=outcome.setting.lease_ms)]
    fewest = min(outcome.false_deaths for outcome in [today, *leases])
    safe = [
        outcome
        for outcome in leases
        if outcome.false_deaths == fewest
        and (
            outcome.lease_ms > today.lease_ms
            or (outcome.longest_share <= HEADROOM and watched_s >= WATCHED_MIN_S)
        )
    ]
    if today.false_deaths == fewest:
        safe = [outcome for outcome in safe if outcome.median_ms < today.median_ms]
    if not safe:
        return Recommendation(today, _why_keep(today, leases, watched_s))
    best = min(safe, key=lambda outcome: (outcome.median_ms, outcome.lease_ms))
    return Recommendation(best, _why_change(today, best))


def _why_keep(today: Outcome, leases: Sequence[Outcome], watched_s: int) -> str:
    kept = f"Keep the lease of {_seconds(today.lease_ms)}: "
    shorter = [outcome for outcome in leases if outcome.median_ms < today.median_ms]
    if not shorter:
        return kept + "a shorter one would not have found deaths sooner."
    nearest = max(shorter, key=lambda outcome: outcome.lease_ms)
    if added := nearest.false_deaths - today.false_deaths:
        return (
            f"{kept}with {_seconds(nearest.lease_ms)}, {added} more {'worker' if added == 1 else 'workers'} would have been declared "
            "dead while they were alive."
        )
    if nearest.longest_share <= HEADROOM and watched_s < WATCHED_MIN_S:
        return (
            f"{kept}silences of living workers were counted for {watched_s / 3_600:.1f} worker hours, and it takes {WATCHED_MIN_S // 3_600} "
            "to say that a shorter one declares none of them dead."
        )
    return (
        f"{kept}with {_seconds(nearest.lease_ms)}, a worker that was alive was silent for {nearest.longest_share:.0%} of the "
        "lease, which is too close."
    )


def _why_change(today: Outcome, best: Outcome) -> str:
    change = f"Change the lease from {_seconds(today.lease_ms)} to {_seconds(best.lease_ms)}: "
    found = (
        f"deaths are found after {_seconds(best.median_ms)} instead of {_seconds(today.median_ms)} (median)"
    )
    if best.false_deaths < today.false_deaths:
        fewer = today.false_deaths - best.false_deaths
        return (
            f"{change}{fewer} of {today.false_deaths} false deaths would not have happened, and {today.repeated_activities - best.repeated_activities} "
            f"fewer activities would have run twice. Then {found}."
        )
    longest = (
        f"the longest silence of a worker that was alive took {best.longest_share:.0%} of the new lease"
        if best.longest_share
        else "no worker that was alive was silent for long"
    )
    return (
        f"{change}{found}, and no further worker would have been declared dead while it was alive: {longest}."
    )


def _seconds(ms: int) -> str:
    return f"{ms / 1_000:.1f}".removesuffix(".0") + " s"
